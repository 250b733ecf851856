"""The models that are known by name: ``models.json``, each a Hugging Face config with its source."""

from __future__ import annotations

import difflib
import json
import re
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from kernels.sizing.hf_config import ReadConfig, read_config
from kernels.spec.problems import NOT_COMPUTABLE, FieldProblem, SpecError, all_of, show

TABLE = Path(__file__).with_name("models.json")


@dataclass(frozen=True)
class NamedModel:
    """One row: a name for programs, one for people, where its fields are from, and the fields."""

    slug: str
    title: str
    source: str
    config: dict[str, Any]
    published_params: str = ""  # as its authors say it
    note: str = ""
    aliases: tuple[str, ...] = field(default=())


@cache
def models() -> dict[str, NamedModel]:
    """The whole table by slug, in its order."""
    rows = json.loads(TABLE.read_text(encoding="utf-8"))
    named = (NamedModel(**{**row, "aliases": tuple(row.get("aliases", ()))}) for row in rows)
    return {model.slug: model for model in named}


def find_model(name: str) -> NamedModel:
    """The model of that name, however it is spelt. Raises SpecError naming the nearest."""
    by_name = _by_any_name()
    found = by_name.get(_plain(name))
    if found is not None:
        return found
    close = difflib.get_close_matches(_plain(name[:60]), by_name, n=3)
    nearest = dict.fromkeys(by_name[match].slug for match in close)
    hint = f"near it: {all_of(nearest)}" if nearest else "GET /models lists them all"
    detail = (
        f"model {show(name)} is not in the table ({hint}); any other can be sent as config, its config.json"
    )
    raise SpecError([FieldProblem("/model", "unknown-model", detail, NOT_COMPUTABLE)])


@cache
def read_model(slug: str) -> ReadConfig:
    """The layers of a model of the table."""
    return read_config(models()[slug].config)


@cache
def _by_any_name() -> dict[str, NamedModel]:
    return {_plain(name): model for model in models().values() for name in (model.slug, *model.aliases)}


def _plain(name: str) -> str:
    """Letters and digits alone: Llama-2-70B and llama 2 70b are one name."""
    return re.sub(r"[^a-z0-9]", "", name.lower())
