"""Requests that work, spoiled: for the tests that whatever is sent is answered, or told what is wrong."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any

from hypothesis import strategies as st

Path = tuple[Any, ...]


def places(value: Any, at: Path = ()) -> Iterator[Path]:
    """Where the values of a body of JSON are, itself first."""
    yield at
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from places(inner, (*at, key))


@st.composite
def spoiled(
    draw: st.DrawFn,
    bodies: Sequence[tuple[str, Any]],
    odd: st.SearchStrategy[Any],
    added: Sequence[str],
) -> tuple[str, Any]:
    """One of some named bodies, with up to three of its values replaced by odd ones, removed, or added under
    one of the names ``added``."""
    name, body = draw(st.sampled_from(bodies))
    body = copy.deepcopy(body)
    for _ in range(draw(st.integers(1, 3))):
        *parents, last = draw(st.sampled_from([at for at in places(body) if at] or [("x",)]))
        owner = body
        for key in parents:
            owner = owner[key]
        if draw(st.booleans()) or not isinstance(owner, dict):
            owner[last] = copy.deepcopy(draw(odd))
        elif draw(st.booleans()):
            owner.pop(last, None)
        else:
            owner[draw(st.sampled_from(added))] = copy.deepcopy(draw(odd))
    return name, body
