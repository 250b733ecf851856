"""What a reader looks at on the page of a run, as its query string says it: never out of range."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from django.http import QueryDict
from django.utils.text import capfirst
from django.utils.translation import gettext as _

from kernels.spec import RunSpec
from lab.form.offers import result_name
from lab.runs import roofline
from lab.runs.maps import SIDES, Part

MAX_LINKS = 32  # heads beyond which the picker is a number box
RETURNED = "run"  # the source that is what the engine returned, not float64
FIELDS = ("table", "batch", "head", "row", "col", "zoom", "from")  # of a query string, beside the GPUs


@dataclass(frozen=True)
class Choice:
    """row and column: the cell that is lit, where the query string names one. side: of the part of the
    matrices that is shown, 0 for all. source: RETURNED, or "" for what is computed in float64."""

    batch: int
    head: int
    table: str
    row: int | None = None
    column: int | None = None
    side: int = 0
    source: str = ""

    @classmethod
    def read(cls, query: QueryDict, spec: RunSpec, tables: Sequence[str] = ()) -> "Choice":
        side = query.get("zoom", "")
        return cls(
            batch=index(query.get("batch", ""), spec.batch),
            head=index(query.get("head", ""), spec.num_heads),
            table=one_of(query.get("table", ""), tables),
            row=chosen_index(query.get("row", ""), spec.q_len),
            column=chosen_index(query.get("col", ""), spec.kv_len),
            side=int(side) if side in map(str, SIDES) else 0,
            source=RETURNED if query.get("from") == RETURNED else "",
        )

    @property
    def part(self) -> Part:
        return Part.around(self.side, self.row or 0, self.column or 0)


def one_of(chosen: str, names: Sequence[str]) -> str:
    """What was chosen where there is such, else the first."""
    return chosen if chosen in names else next(iter(names), "")


def index(text: str, size: int) -> int:
    return min(int(text), max(size - 1, 0)) if text.isascii() and text.isdigit() and len(text) < 10 else 0


def chosen_index(text: str, size: int) -> int | None:
    return index(text, size) if text and size else None


# --- Pickers --------------------------------------------------------------------------------------


def head_pickers(choice: Choice, spec: RunSpec, query: QueryDict) -> list[dict[str, Any]]:
    """Batch row and head: a row of links each, or a number box for very many."""
    found = []
    for name, label, size, chosen in (
        ("batch", _("Batch row"), spec.batch, choice.batch),
        ("head", _("Head"), spec.num_heads, choice.head),
    ):
        if size > 1:
            options = [(str(i), str(i), i == chosen) for i in range(size)] if size <= MAX_LINKS else []
            found.append(picker(name, label, options, query) | {"last": size - 1, "chosen": chosen})
    return found


def zoom_picker(choice: Choice, shape: tuple[int, int], query: QueryDict) -> list[dict[str, Any]]:
    """How much of the matrices is shown; nothing to choose where they are small."""
    rows, columns = shape
    sides = [side for side in SIDES if side < max(rows, columns)]
    if not sides or not rows or not columns:
        return []
    options = [("", _("all {rows:,} × {columns:,}").format(rows=rows, columns=columns), not choice.side)]
    options += [(str(side), f"{side} × {side}", side == choice.side) for side in sides]
    return [picker("zoom", _("Zoom"), options, query)]


def source_picker(choice: Choice, query: QueryDict) -> list[dict[str, Any]]:
    options = [
        ("", _("computed in float64"), not choice.source),
        (RETURNED, _("returned by the engine"), bool(choice.source)),
    ]
    return [picker("from", _("Numbers"), options, query)]


def table_picker(choice: Choice, tables: Sequence[str], query: QueryDict) -> list[dict[str, Any]]:
    if len(tables) < 2:
        return []
    options = [(name, capfirst(result_name(name)), name == choice.table) for name in tables]
    return [picker("table", _("Table"), options, query)]


def picker(name: str, label: str, options: list[tuple[str, str, bool]], query: QueryDict) -> dict[str, Any]:
    """Links that change one choice and keep the others; an empty value is that of an address without it."""
    others = kept(query, name)
    return {
        "name": name,
        "label": label,
        "kept": others,
        "options": [
            {
                "label": text,
                "href": "?" + urlencode([*others, *([(name, value)] if value else [])]),
                "current": current,
            }
            for value, text, current in options
        ],
    }


def kept(query: QueryDict, but: str = "") -> list[tuple[str, str]]:
    """The share key, the GPUs, and every choice of what is looked at but one."""
    chosen = [(name, str(query[name])) for name in ("key", *FIELDS) if name in query and name != but]
    return [*chosen, *((roofline.FIELD, gpu) for gpu in query.getlist(roofline.FIELD))]
