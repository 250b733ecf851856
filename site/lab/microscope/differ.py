"""Two kernels side by side: what of their resources and instructions differs, and their PTX line by line."""

import difflib
from collections.abc import Mapping
from itertools import islice
from typing import Any

from django.utils.translation import gettext as _

from kernels.machine_code import skeleton
from lab import units
from lab.microscope import compiled

MOST_LINES = 3_000  # of each PTX, that are compared
SHOWN = 300  # of the difference
CONTEXT = 2


def resources(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[tuple[str, str, str, str]]:
    """(what, of the one, of the other, the difference)."""
    names = {
        "registers": _("registers of a thread"),
        "shared_bytes": _("shared memory of a block, bytes"),
        "spills_bytes": _("spilled, bytes of a thread"),
        "tmem_bytes": _("tensor memory of a block, bytes"),
        "num_warps": _("warps of a block"),
        "num_stages": _("stages"),
        "blocks_per_sm": _("blocks on a multiprocessor"),
    }
    rows = [
        (label, *numbers(one.get(name, 0), other.get(name, 0)))
        for name, label in names.items()
        if one.get(name) or other.get(name)
    ]
    before, after = one["occupancy"], other["occupancy"]
    rows.append(
        (
            _("occupancy"),
            units.percent(round(before, 4)),
            units.percent(round(after, 4)),
            _("{change:+.1f} points").format(change=100 * (after - before)).replace("-", "−"),
        )
    )
    left, right = (str(compiled.LIMITS[figures["limited_by"]]) for figures in (one, other))
    rows.append((_("what stops one more block"), left, right, "=" if left == right else "≠"))
    return rows


def instructions(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[tuple[str, Any, str, str, str]]:
    """(kind, meaning, of the one, of the other, the difference)."""
    before, after = (compiled.with_other(figures["instructions"]) for figures in (one, other))
    rows = [
        (kind, compiled.KINDS[kind], *numbers(before[kind], after[kind]))
        for kind in before
        if before[kind] or after[kind]
    ]
    totals = (figures["instructions"]["total"] for figures in (one, other))
    return [*rows, (_("all"), "", *numbers(*totals))]


def numbers(before: int, after: int) -> tuple[str, str, str]:
    """1,024 and 2,048: +1,024 (× 2)."""
    change = f"{after - before:+,}".replace("-", "−") if after != before else "="
    if before and after and after != before:
        change += f" (× {units.significant(after / before)})"
    return units.whole(before), units.whole(after), change


def ptx(one: str, other: str, names: tuple[str, str]) -> dict[str, Any]:
    """A unified difference of what is left of both when nothing but instructions is looked at."""
    before, after = skeleton(one), skeleton(other)
    is_cut = max(len(before), len(after)) > MOST_LINES
    lines = difflib.unified_diff(before[:MOST_LINES], after[:MOST_LINES], *names, n=CONTEXT, lineterm="")
    shown = list(islice(lines, SHOWN))
    more = sum(1 for _line in lines)
    return {
        "rows": [(kind_of(line), line) for line in shown],
        "more": units.whole(more) if more else "",
        "is_same": not shown,
        "is_cut": is_cut,
        "most": units.whole(MOST_LINES),
        "counts": (units.whole(len(before)), units.whole(len(after))),
    }


def kind_of(line: str) -> str:
    """Of a line of a unified difference, as a class of the stylesheet."""
    if line.startswith(("+++", "---", "@@")):
        return "head"
    return {"+": "added", "-": "removed"}.get(line[:1], "same")
