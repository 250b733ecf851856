"""Configurations to begin with, each a permalink of the form and nothing else: what it sets, anybody can."""

from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from django.urls import reverse

State = dict[str, Any]  # fields of the form by name, as its links have them


@dataclass(frozen=True)
class Preset:
    """A link, what it is called, and what there is to see."""

    name: str
    title: Any
    text: Any
    state: State

    @property
    def address(self) -> str:
        return f"{reverse('lab:home')}?{urlencode(self.state, doseq=True)}"


def pasted(q: str, k: str, v: str, **more: Any) -> State:
    return {"q": q, "k": k, "v": v, **more}


def drawn(q_len: int, head_dim: int, **more: Any) -> State:
    """Of the seed, with few timed runs: a preset is there to be run."""
    return {"source": "seed", "q_len": str(q_len), "head_dim": str(head_dim), **more}
