"""Facts: numbers in prose that are computed, never typed.

`@fact("by-hand-w33", ".4f")` registers a function without arguments; `{fact:by-hand-w33}` in a page
becomes its value in that format. A page that names an unknown fact does not load.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

FACTS: dict[str, "Fact"] = {}


@dataclass(frozen=True)
class Fact:
    name: str
    compute: Callable[[], Any]
    format: str

    @cached_property
    def text(self) -> str:
        value = self.compute()
        items = value if isinstance(value, tuple) else (value,)
        words = [item if isinstance(item, str) else _minus(format(item, self.format)) for item in items]
        return f"({', '.join(words)})" if isinstance(value, tuple) else words[0]


def _minus(text: str) -> str:
    return text.replace("-", "−")


def fact(name: str, format: str = "") -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    def register(compute: Callable[[], Any]) -> Callable[[], Any]:
        if name in FACTS:
            raise ValueError(f"two facts are called {name}")
        FACTS[name] = Fact(name, compute, format)
        return compute

    return register


from concepts.facts import (  # noqa: E402, F401  (register their facts)
    alibi,
    average,
    before_attention,
    by_hand,
    debates,
    decode_bandwidth,
    engines,
    fit,
    flash_attention,
    gpt_bert,
    kv_cache,
    kv_compression,
    long_context,
    masks,
    memory_hierarchy,
    multi_head,
    numerics,
    online_softmax,
    positions,
    projections,
    quadratic,
    rope,
    scoring,
    sdpa_in_code,
    sharing,
    soft_hard_local,
    sqrt_dk,
    tables,
    timeline,
    transformer,
)
