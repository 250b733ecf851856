"""Parts of a row of scores that are merged into the softmax of the whole, in any order; by
`kernels.flash.online`."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from concepts.figures import Links, grids, parts
from concepts.figures.controls import Choice, Number
from concepts.figures.explorable import Explorable, Values
from concepts.figures.numbers import show_power
from concepts.figures.online_softmax import KEYS, LAB_TILE, ROWS, drawn, spread, written
from kernels.flash.online import merge_all, normalised, state_of
from kernels.flash.steps import State

NAMES = "ABC"
ORDERS = {"left": (0, 1, 2), "right": (1, 2, 0), "back": (2, 0, 1)}  # which part comes when
LSE = "lse"


@dataclass(frozen=True)
class Part:
    """Some keys of the row, and the state that their softmax ends with."""

    name: str
    keys: range
    state: State


def parts_of(values: Values) -> list[Part]:
    """Two or three, as the cuts say."""
    table = np.array(ROWS, dtype=np.float64)
    edges = [0, *sorted({values["cut"], values["cut2"]}), KEYS]
    return [
        Part(name, range(first, end), state_of(table[first:end, 0], table[first:end, 1:]))
        for name, first, end in zip(NAMES, edges, edges[1:], strict=False)
    ]


def shares(values: Values, found: list[Part]) -> np.ndarray:
    """What each part's output counts in the whole."""
    if values["by"] == "mean":
        return np.full(len(found), 1 / len(found))
    if values["by"] == "count":
        return np.array([len(one.keys) / KEYS for one in found])
    whole = merge_all([one.state for one in found]).lse
    return np.exp([one.state.lse - whole for one in found])


def steps(values: Values, found: list[Part]) -> list[tuple[str, State]]:
    """Merged one by one in the order chosen, each result as a kernel hands it on."""
    order = [found[n] for n in ORDERS[values["order"]] if n < len(found)]
    merged = [(order[0].name, normalised(order[0].state))]
    for one in order[1:]:
        name, state = merged[-1]
        told = name if len(name) == 1 else f"({name})"
        merged.append((f"{told} + {one.name}", normalised(merge_all([state, normalised(one.state)]))))
    return merged[1:]


class Merge(Explorable):
    name = "merge"
    title = gettext_lazy("The figure: parts of a row that are merged")
    controls = (
        Number("cut", gettext_lazy("Cut after key"), 3, 1, KEYS - 1),
        Number("cut2", gettext_lazy("and after key"), 6, 1, KEYS - 1),
        Choice(
            "order",
            gettext_lazy("Merge in the order"),
            "left",
            [("left", "A, B, C"), ("right", "B, C, A"), ("back", "C, A, B")],
        ),
        Choice(
            "by",
            gettext_lazy("Average the outputs by"),
            LSE,
            [
                (LSE, gettext_lazy("their log-sum-exp")),
                ("count", gettext_lazy("their numbers of keys")),
                ("mean", gettext_lazy("nothing: all alike")),
            ],
        ),
    )

    def result(self, values: Values) -> float:
        found = parts_of(values)
        if values["by"] == LSE:
            return float(steps(values, found)[-1][1].out[0])
        return float(shares(values, found) @ [one.state.out[0] for one in found])

    @property
    def exact(self) -> float:
        table = np.array(ROWS, dtype=np.float64)
        return float(state_of(table[:, 0], table[:, 1:]).out[0])

    def view(self, values: Values, links: Links) -> SafeString:
        found = parts_of(values)
        rows = [
            (
                one.name,
                f"{one.keys.start + 1}–{one.keys.stop}" if len(one.keys) > 1 else str(one.keys.stop),
                *map(written, (one.state.m, one.state.l, one.state.lse, one.state.out[0], share)),
            )
            for one, share in zip(found, shares(values, found).tolist(), strict=True)
        ]
        caption = _("What each part ends with")
        heads = ("", _("keys"), "m", "ℓ", _("LSE"), _("output"), _("share"))
        table = grids.framed(parts.listing(caption, heads, rows), caption)
        return format_html('<div class="split">{}{}</div>', table, self.merging(values, found))

    def merging(self, values: Values, found: list[Part]) -> SafeString:
        exact = (_("all keys at once"), "", written(self.exact))
        if values["by"] != LSE:
            rows = [(_("averaged"), "", written(self.result(values))), exact]
        else:
            told = [(name, written(one.lse), written(one.out[0])) for name, one in steps(values, found)]
            rows = [*told, exact]
        caption = _("Merged")
        return grids.framed(parts.listing(caption, ("", _("LSE"), _("output")), rows), caption)

    def sentence(self, values: Values) -> str:
        found, result = parts_of(values), self.result(values)
        words = {
            "count": len(found),
            "result": written(result),
            "exact": written(self.exact),
            "error": show_power(abs(result - self.exact), 1),
        }
        if abs(result - self.exact) < 1e-12:
            return _("%(count)d parts, merged: %(result)s, as of all keys at once.") % words
        return _("%(count)d parts, averaged: %(result)s. Right is %(exact)s.") % words

    def numbers(self, values: Values) -> dict[str, Any]:
        found = parts_of(values)
        return {
            "parts": [
                {"keys": [one.keys.start + 1, one.keys.stop], "lse": one.state.lse, "out": one.state.out[0]}
                for one in found
            ],
            "shares": shares(values, found).tolist(),
            "result": self.result(values),
            "exact": self.exact,
        }

    def picture(self, values: Values) -> str:
        lines = [[one.name, written(one.state.lse), written(one.state.out[0])] for one in parts_of(values)]
        result = ["", "", written(self.result(values))]
        rows = [["", _("LSE"), _("output")], *lines, result]
        return drawn(self.sentence(values), _("Parts and the whole"), rows)

    def lab(self, values: Values) -> list[tuple[str, str]]:
        """Each part in a split of its own, by the kernel that splits the keys."""
        edges = [(one.keys.start, one.keys.stop) for one in parts_of(values)]
        return [
            ("engine", "decode"),
            *spread(np.array(ROWS, dtype=np.float64), edges),
            ("option_block_n", str(LAB_TILE)),
            ("option_num_splits", str(len(edges))),
            *(("returns", name) for name in ("out", "lse")),
        ]


FIGURE = Merge()
