"""What a run found beside its arrays, for people: any engine's figures, by what the registry says of each.

How a figure is written follows from its name and its description: `…_bytes` are bytes, and what is described
(or, within an object or a row, called) a share is a percentage.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from django.utils.translation import gettext as _

from lab import units
from lab.form.descriptions import explained

MAX_ROWS = 12  # of a table
MAX_ITEMS = 16  # of a list
MAX_TEXT = 200  # characters of what is neither a number nor a list
SHARE = re.compile(r"\b(share|fraction|percent)", re.IGNORECASE)


@dataclass(frozen=True)
class Found:
    """A figure. Of `text`, `items`, `rows` and `parts` it has one."""

    label: str
    meaning: str = ""
    text: str = ""
    items: list[str] = field(default_factory=list)
    columns: list[str] = field(default_factory=list)
    rows: list[tuple[str, list[str]]] = field(default_factory=list)  # (name or "", cells)
    parts: "list[Found]" = field(default_factory=list)
    total: int = 0  # of items or rows; more than are shown where the others are left to the JSON

    @property
    def is_cut(self) -> bool:
        return self.total > len(self.items or self.rows)


def shown(found: Mapping[str, Any], described: Mapping[str, str]) -> list[Found]:
    """The figures of a run, in the order of the registry."""
    names = [name for name in described if name in found] + [name for name in found if name not in described]
    return [figure(name, found[name], described.get(name, "")) for name in names]


def figure(name: str, value: Any, description: str = "") -> Found:
    meaning, null = explained(description)
    label = label_of(name)
    if isinstance(value, Mapping) and value:
        if len(value) > 1 and all(isinstance(item, Mapping) for item in value.values()):
            columns, rows = table_of([*value.values()], description, [*map(label_of, value)])
            return Found(label, meaning, columns=["", *columns], rows=rows, total=len(value))
        return Found(label, meaning, parts=[figure(key, value[key]) for key in in_order(value, description)])
    is_share = SHARE.search(f"{name.replace('_', ' ')} {meaning}") is not None
    if isinstance(value, list) and value:
        columns, rows = table_of(value, description)
        items = [] if rows else [written(name, item, is_share=is_share) for item in value[:MAX_ITEMS]]
        return Found(label, meaning, items=items, columns=columns, rows=rows, total=len(value))
    text = null if value is None and null else written(name, value, is_share=is_share)
    return Found(label, meaning, text=text)


def table_of(
    value: list[Any], description: str, names: Sequence[str] = ()
) -> tuple[list[str], list[tuple[str, list[str]]]]:
    """(columns, rows) of a list of objects, or of lists; neither of any other. names: those of rows."""
    if all(isinstance(row, Mapping) for row in value):
        keys = in_order(dict.fromkeys(key for row in value for key in row), description)
        columns = [label_of(key) for key in keys]
        rows = [[written(key, row.get(key)) for key in keys] for row in value[:MAX_ROWS]]
    elif all(isinstance(row, list) for row in value):
        rows = [[written("", item) for item in row[:MAX_ITEMS]] for row in value[:MAX_ROWS]]
        columns = [str(i) for i in range(max(map(len, rows)))]
    else:
        return [], []
    return columns, [(names[i] if names else "", row) for i, row in enumerate(rows)]


def label_of(name: str) -> str:
    """cache_bytes -> cache: the unit stands at the number."""
    return (name.removesuffix("_bytes") or name).replace("_", " ")


def in_order(names: Iterable[str], description: str) -> list[str]:
    """As a description mentions them: a database may keep the fields of an object in another order."""

    def place(name: str) -> int:
        at = [description.find(text) for text in (name, name.replace("_", " "))]
        return min((found for found in at if found >= 0), default=len(description))

    return sorted(names, key=place)


def written(name: str, value: Any, *, is_share: bool = False) -> str:
    if value is None:
        return "–"
    if value in ([], {}):
        return str(_("none"))
    if isinstance(value, bool):
        return str(_("yes") if value else _("no"))
    if isinstance(value, int | float):
        return number(name, value, is_share=is_share or bool(SHARE.search(name.replace("_", " "))))
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…"


def number(name: str, value: float, *, is_share: bool) -> str:
    if name == "bytes" or name.endswith("_bytes"):
        return units.size(value)
    if is_share and 0 <= value <= 1:
        return units.percent(value)
    return units.whole(value) if isinstance(value, int) else units.significant(value, 4)
