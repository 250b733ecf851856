"""Values that somebody types for a field: a list of them, or ranges, or both.

64, 128, 256        these
64..1024            doubling: 64, 128, 256, 512, 1024
64..256 +64         in steps: 64, 128, 192, 256
8..512 *4           in factors: 8, 32, 128, 512
"""

import re
from collections.abc import Callable
from typing import Any

from django.utils.translation import gettext as _

from kernels.sweeps.points import MAX_POINTS
from lab.form.options import literal
from lab.matrices import brief

MAX_TEXT = 2_000  # characters of a field; 64 values are shorter
ITEM = re.compile(
    r"(?P<first>[0-9]{1,15})\s*(?:\.{2,3}|…)\s*(?P<last>[0-9]{1,15})"
    r"(?:\s*(?P<how>[+*×x])\s*(?P<step>[0-9]{1,15}))?(?![^\s,;])"
    r"|(?P<word>[^\s,;]+)"
)


class ValuesError(ValueError):
    """What is wrong with a text, and what to do."""


def parse(text: str, read: Callable[[str], Any] = literal) -> list[Any]:
    """The values of a text, in order; `read` makes a value of a word. Raises ValuesError."""
    if len(text) > MAX_TEXT:
        detail = _(
            "{count:,} characters are more than a field holds ({limit:,}): write a range, as 64..1024."
        )
        raise ValuesError(detail.format(count=len(text), limit=MAX_TEXT))
    values: list[Any] = []
    for item in ITEM.finditer(text):
        values.extend(_range(item) if item["word"] is None else [read(item["word"])])
    if len(values) > MAX_POINTS:
        raise ValuesError(_too_many(len(values)))
    return values


def _range(item: re.Match[str]) -> list[int]:
    first, last = int(item["first"]), int(item["last"])
    adds, step = item["how"] == "+", int(item["step"] or 2)
    if first > last:
        detail = _("{range} goes down: write {last}..{first}.")
        raise ValuesError(detail.format(range=brief(item.group()), first=first, last=last))
    if step < (1 if adds else 2) or not (adds or first):
        detail = _("{range} never ends: add at least 1, or multiply by at least 2, from 1 on.")
        raise ValuesError(detail.format(range=brief(item.group())))
    if adds and (last - first) // step >= MAX_POINTS:
        raise ValuesError(_too_many((last - first) // step + 1))
    values = [first]
    while (following := values[-1] + step if adds else values[-1] * step) <= last:
        values.append(following)
    return values


def _too_many(count: int) -> str:
    return _("{count:,} values; a sweep has at most {limit} points.").format(count=count, limit=MAX_POINTS)


def window(word: str) -> Any:
    """A window: "63" sees that many keys before the query, "63:15" some after it too, "none" all of them.
    Raises ValuesError."""
    if word.lower() in ("none", "null", "all"):
        return [None, None]
    before, colon, after = word.partition(":")
    sides = [literal(before), literal(after) if colon else 0]
    if not all(side is None or type(side) is int for side in sides):
        detail = _("“{word}” is no window: write 63, or 63:15 for keys after the query too, or none.")
        raise ValuesError(detail.format(word=brief(word)))
    return sides


def text_of(value: Any) -> str:
    """A value as it is typed."""
    if isinstance(value, list) and len(value) == 2:  # a window
        before, after = ("" if side is None else str(side) for side in value)
        if before == after == "":
            return "none"
        return before if after == "0" else f"{before}:{after}"
    return str(value)
