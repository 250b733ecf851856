"""The arithmetic of one cell, spelt out: from the query and the key to what the value adds to the output."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from django.utils.translation import gettext as _

from kernels.closeup import Cell
from kernels.operands import Operands
from lab.heatmap import number

TERMS = 4  # of a sum that are written; the rest is a dot, dot, dot
VECTOR = 6  # numbers of a vector that are written


@dataclass(frozen=True)
class Line:
    """What is computed, how, and what comes of it; `matrix` is the picture that has it."""

    name: str
    steps: str
    value: str
    matrix: str = ""


def spelt(cell: Cell, given: Operands) -> list[Line]:
    """Every step, in order; those that a configuration does not have are left out."""
    lines = [
        Line(_("query · key"), dot(cell.q, cell.k), number(cell.dot)),
        Line(_("score"), f"{plain(cell.scale)} × {signed(cell.dot)}", number(cell.score), "scores"),
    ]
    if cell.softcap:
        steps = f"{plain(cell.softcap)} · tanh({number(cell.score)} ∕ {plain(cell.softcap)})"
        lines.append(Line(_("softcapped"), steps, number(cell.softcapped), "softcapped_scores"))
    lines.append(Line(_("masked score"), masked(cell, given), number(cell.masked), "masked_scores"))
    if cell.total:
        lines += weight(cell)
    else:
        lines.append(Line(_("weight"), _("this query sees no key at all"), number(0.0), "weights"))
    lines.append(
        Line(
            _("adds to the output"),
            f"{number(cell.weight)} × {vector(cell.v)}",
            vector(cell.weight * cell.v),
        )
    )
    lines.append(Line(_("output of this query"), _("the sum over all keys"), vector(cell.out), "out"))
    return lines


def weight(cell: Cell) -> Iterator[Line]:
    """The softmax, with the largest logit of the row taken out as kernels do."""
    steps = f"exp({number(cell.masked)} − {signed(cell.largest)})"
    yield Line(_("exponential"), steps, number(cell.exponential))
    of_sink = _(", a sink of {logit} among them").format(logit=number(cell.sink))
    what = _("of all keys of this query") + (of_sink if np.isfinite(cell.sink) else "")
    yield Line(_("their sum"), what, number(cell.total))
    yield Line(
        _("weight"), f"{number(cell.exponential)} ∕ {number(cell.total)}", number(cell.weight), "weights"
    )


def masked(cell: Cell, given: Operands) -> str:
    """What is added to the score, or why this query may not see this key."""
    if not cell.is_allowed:
        return why_not(cell, given)
    terms = [number(cell.softcapped)]
    if given.slopes is not None:
        distance = cell.key_position - cell.query_position
        terms.append(f"{plain(float(given.slopes[0, 0]))} × {signed(distance)}")
    if given.bias is not None:
        terms.append(signed(cell.bias))
    return " + ".join(terms) if len(terms) > 1 else _("the query may see this key; nothing is added")


def why_not(cell: Cell, given: Operands) -> str:
    distance = cell.key_position - cell.query_position
    positions = {"key": cell.key_position, "query": cell.query_position}
    if given.right is not None and distance > given.right:
        if given.right == 0:
            return _("causal: the key’s position {key} is after the query’s {query}").format(**positions)
        return _(
            "outside the window: the key is {away} positions after the query, {most} are allowed"
        ).format(away=distance, most=given.right)
    if given.left is not None and distance < -given.left:
        return _(
            "outside the window: the key is {away} positions before the query, {most} are allowed"
        ).format(away=-distance, most=given.left)
    return _("the mask or the pattern forbids this pair")


# --- Numbers --------------------------------------------------------------------------------------


def plain(value: float) -> str:
    """A factor as it was given: 0.125, not 0.1250."""
    return f"{value:.6g}".replace("-", "−")


def signed(value: Any) -> str:
    """In brackets where it is negative, so that no two signs meet."""
    text = number(value) if isinstance(value, float) else str(value).replace("-", "−")
    return f"({text})" if text.startswith("−") else text


def dot(one: np.ndarray, other: np.ndarray) -> str:
    """0.5 × 1.2 + … of as many dimensions as are worth reading."""
    if not one.size:
        return _("there are no dimensions")
    terms = [
        f"{number(float(a))} × {signed(float(b))}" for a, b in zip(one[:TERMS], other[:TERMS], strict=True)
    ]
    return " + ".join(terms) + more(one, TERMS)


def more(of: Sequence[float] | np.ndarray, shown: int) -> str:
    return _(" + … ({count} terms)").format(count=len(of)) if len(of) > shown else ""


def vector(values: np.ndarray) -> str:
    text = ", ".join(number(float(value)) for value in values[:VECTOR])
    return f"[{text}, …]" if len(values) > VECTOR else f"[{text}]"
