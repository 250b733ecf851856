"""A mask that is painted, what it makes of the weights and what it would make of them if applied wrongly;
and the two corners at which a causal mask can start where queries and keys differ in number.

Scores come from fixed queries and keys, one decimal each, so that they fit into an address of the lab. There
the values are the rows of the unit matrix: what comes out are the weights.
"""

import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import numpy as np
from django.utils.functional import Promise
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from concepts.figures import Links, grids, parts
from concepts.figures.controls import Cells, Choice, Number
from concepts.figures.explorable import Explorable, Values
from concepts.figures.numbers import show, to_json
from concepts.figures.scales import ink, sequential
from kernels.mistakes import masked_weights

MOST = 8
QUERIES = np.array(
    [[-0.5, 0.3], [0.8, -1.3], [1.0, 0.3], [1.0, 0.4], [1.5, -1.2], [2.3, 1.6], [-0.8, 0.9], [0.6, -2.3]]
)
KEYS = np.array(
    [
        [0.8, -0.8],
        [-0.3, -0.8],
        [-0.6, 0.1],
        [0.1, -2.0],
        [-0.3, -1.7],
        [-1.7, -0.5],
        [1.1, 0.8],
        [-0.8, -0.9],
    ]
)
OPEN, SHUT = "0", "−∞"
WAYS = (
    ("zero_after", gettext_lazy("0 after softmax")),
    ("added", gettext_lazy("added as 1 and 0")),
    ("inverted", gettext_lazy("True and False exchanged")),
    ("finite", gettext_lazy("−10⁹ for −∞")),
    ("plain", gettext_lazy("softmax as it is")),
)


@dataclass(frozen=True)
class Rules:
    """Who may see whom, before anything is painted. The last query stands at the last key."""

    is_causal: bool = False
    window: int = MOST  # keys within reach, the own one counted
    real: int = MOST  # keys that are no padding


def allowed_by(queries: int, keys: int, rules: Rules, corner: str = "bottom_right") -> np.ndarray:
    """True where a query may see a key: bool [queries, keys]. `corner`: where positions meet."""
    shift = keys - queries if corner == "bottom_right" else 0
    ahead = np.arange(keys)[None, :] - np.arange(queries)[:, None] - shift
    reach = np.abs(ahead) < rules.window
    in_order = ahead <= 0 if rules.is_causal else np.ones_like(reach)
    return np.asarray(in_order & reach & (np.arange(keys) < rules.real))


def scores_of(queries: int, keys: int) -> np.ndarray:
    return np.asarray(QUERIES[:queries] @ KEYS[:keys].T / np.sqrt(QUERIES.shape[1]))


def mask_rows(allowed: np.ndarray) -> list[list[tuple[str, str, str]]]:
    """A mask as cells of a picture."""
    shades = {True: sequential(8), False: sequential(0)}
    return [
        [(OPEN if cell else SHUT, shades[cell].hex, ink(shades[cell]).hex) for cell in row]
        for row in allowed.tolist()
    ]


class Masks(Explorable):
    name = "masks"
    title = gettext_lazy("The figure: a mask to paint")
    controls = (
        Number("queries", gettext_lazy("Queries"), 5, 1, MOST),
        Number("keys", gettext_lazy("Keys"), 5, 1, MOST),
        Choice(
            "rule",
            gettext_lazy("A query sees"),
            "causal",
            (("all", gettext_lazy("every key")), ("causal", gettext_lazy("no later key"))),
        ),
        Number("window", gettext_lazy("Window, in keys (8: none)"), MOST, 1, MOST),
        Number("real", gettext_lazy("Real keys; the rest is padding"), MOST, 0, MOST),
        Choice("instead", gettext_lazy("Beside it, what is wrong"), "zero_after", WAYS),
        Cells("flip", gettext_lazy("Painted cells"), most=MOST),
    )

    def allowed(self, values: Values) -> np.ndarray:
        """The mask of the rules with the painted cells turned over."""
        rules = Rules(values["rule"] == "causal", values["window"], values["real"])
        allowed = allowed_by(values["queries"], values["keys"], rules)
        for row, column in self.painted(values):
            allowed[row - 1, column - 1] ^= True
        return allowed

    def painted(self, values: Values) -> tuple[tuple[int, int], ...]:
        """Those of the painted cells that the grid has."""
        return tuple(
            cell for cell in values["flip"] if cell[0] <= values["queries"] and cell[1] <= values["keys"]
        )

    def weights(self, values: Values, mistake: str | None = None) -> np.ndarray:
        return masked_weights(scores_of(values["queries"], values["keys"]), self.allowed(values), mistake)

    # --- What is shown -------------------------------------------------------------------------

    def view(self, values: Values, links: Links) -> SafeString:
        queries, keys = grids.query_heads(values["queries"]), grids.key_heads(values["keys"])
        right, wrong = _("Weights, −∞ before softmax"), _("Weights, wrong: %(way)s")
        wrong %= {"way": dict(WAYS)[values["instead"]]}
        return grids.panels(
            grids.panel(
                _("Mask, added to the scores"), self.grid(values, links), self.remarks(values, links)
            ),
            grids.panel(right, grids.weights(right, self.weights(values), queries, keys)),
            grids.panel(wrong, grids.weights(wrong, self.weights(values, values["instead"]), queries, keys)),
        )

    def grid(self, values: Values, links: Links) -> SafeString:
        """The mask, each cell a link that turns it over."""
        rows = [
            [self.cell(values, links, (i, j), bool(cell)) for j, cell in enumerate(row, 1)]
            for i, row in enumerate(self.allowed(values), 1)
        ]
        table = parts.table(
            _("The mask"), rows, grids.query_heads(len(rows)), grids.key_heads(values["keys"])
        )
        return format_html(
            '<div class="tight paint" data-roving>{}{}</div>', table, PAINT.hidden(values["flip"])
        )

    def cell(self, values: Values, links: Links, cell: tuple[int, int], is_open: bool) -> SafeString:
        words = _("query %(i)d may see key %(j)d") if is_open else _("query %(i)d may not see key %(j)d")
        is_painted = cell in values["flip"]
        page = self.address(links, values, flip=PAINT.toggled(values["flip"], cell))
        query = page.partition("?")[2].partition("#")[0]
        return format_html(
            '<td class="{}"><a id="masks-cell-{}{}" href="{}" hx-get="{}?{}" aria-label="{}{}">{}</a></td>',
            ("open" if is_open else "shut") + (" painted" if is_painted else ""),
            *cell,
            page,
            links.fragment,
            query,
            words % {"i": cell[0], "j": cell[1]},
            _(", painted") if is_painted else "",
            OPEN if is_open else SHUT,
        )

    def remarks(self, values: Values, links: Links) -> SafeString:
        told = _("Choose a cell to open or shut it.")
        if not self.painted(values):
            return format_html("{}", told)
        away = self.address(links, values, flip=())
        return format_html('{} <a href="{}">{}</a>', told, away, _("Wipe off the paint"))

    def sentence(self, values: Values) -> str:
        allowed, wrong = self.allowed(values), self.weights(values, values["instead"])
        count = _("%(open)d of %(all)d pairs are open.") % {"open": int(allowed.sum()), "all": allowed.size}
        empty = [i for i, row in enumerate(allowed, 1) if not row.any()]
        if empty:
            count += " " + _("Query %(i)d sees no key: its weights are 0.") % {"i": empty[0]}
        return f"{count} {remark(values['instead'], wrong, allowed)}"

    def numbers(self, values: Values) -> dict[str, Any]:
        wrong = self.weights(values, values["instead"])
        return {
            "allowed": self.allowed(values).tolist(),
            "weights": self.weights(values).tolist(),
            "instead": [[None if np.isnan(x) else x for x in row] for row in wrong.tolist()],
        }

    def picture(self, values: Values) -> str:
        weights = grids.shaded(self.weights(values))
        tables = [(_("Mask"), mask_rows(self.allowed(values))), (_("Weights"), weights)]
        return grids.picture(self.sentence(values), tables)

    def lab(self, values: Values) -> list[tuple[str, str]]:
        allowed = self.allowed(values)
        queries, keys = allowed.shape
        pairs = inputs(queries, keys)
        if np.array_equal(allowed, allowed_by(queries, keys, Rules(is_causal=True))):
            return [*pairs, ("causal", "on"), ("alignment", "bottom_right")]
        if allowed.all():
            return pairs
        mask = json.dumps(allowed.tolist(), separators=(",", ":"))
        return [*pairs, ("how_attn_mask", "text"), ("in_attn_mask", mask)]


def inputs(queries: int, keys: int) -> list[tuple[str, str]]:
    """The lab's fields of these queries and keys; the values are the unit matrix."""
    return [
        ("engine", "flash"),
        ("q", to_json(QUERIES[:queries].tolist())),
        ("k", to_json(KEYS[:keys].tolist())),
        ("v", to_json(np.eye(keys).tolist())),
    ]


PAINT: Cells = next(one for one in Masks.controls if isinstance(one, Cells))


# --- What is wrong with it, in words ------------------------------------------------------------------------

LEAKS = {
    "added": gettext_lazy("Added as 1 and 0 it forbids nothing: query %(i)d gives %(weight)s to key %(j)d."),
    "inverted": gettext_lazy("The other way round query %(i)d gives %(weight)s to key %(j)d, which is shut."),
}
EMPTY = {
    "finite": gettext_lazy("With −10⁹ query %(i)d averages over every key, shut as they are."),
    "plain": gettext_lazy("A plain softmax divides 0 by 0 in row %(i)d: NaN."),
}


def remark(way: str, wrong: np.ndarray, allowed: np.ndarray) -> str:
    """What is to be seen in weights that were masked in a wrong way."""
    if way in EMPTY:
        return remark_on_empty(EMPTY[way], allowed)
    if allowed.all():
        return _("Nothing is shut, so it makes no difference.")
    if way in LEAKS:
        leak = np.where(allowed, 0.0, wrong)
        i, j = divmod(int(leak.argmax()), leak.shape[1])
        return LEAKS[way] % {"i": i + 1, "j": j + 1, "weight": show(float(leak[i, j]), 2)}
    sums = wrong.sum(axis=1)
    row = int(sums.argmin())
    told = _("With 0 after softmax row %(i)d adds up to %(sum)s.")
    return told % {"i": row + 1, "sum": show(float(sums[row]), 2)}


def remark_on_empty(words: Promise, allowed: np.ndarray) -> str:
    blind = ~allowed.any(axis=1)
    if not blind.any():
        return _("It makes a difference only where a query sees no key: shut a whole row.")
    return str(words) % {"i": int(blind.argmax()) + 1}


# --- Two corners --------------------------------------------------------------------------------------------

CORNERS = ("top_left", "bottom_right")


class Alignment(Explorable):
    name = "alignment"
    title = gettext_lazy("The figure: a causal mask that is not square")
    controls = (
        Number("rows", gettext_lazy("Queries"), 2, 1, MOST),
        Number("columns", gettext_lazy("Keys"), 5, 1, MOST),
    )

    def allowed(self, values: Values) -> dict[str, np.ndarray]:
        causal = Rules(is_causal=True)
        return {corner: allowed_by(values["rows"], values["columns"], causal, corner) for corner in CORNERS}

    def view(self, values: Values, links: Links) -> SafeString:
        masks = self.allowed(values)
        differ = masks["top_left"] != masks["bottom_right"]
        return grids.panels(
            grids.panel(
                _("Top left"),
                self.grid(_("Causal mask from the top left"), masks["top_left"], differ),
                self.below(values, links, "top_left", _("Query 1 stands at key 1.")),
            ),
            grids.panel(
                _("Bottom right"),
                self.grid(_("Causal mask from the bottom right"), masks["bottom_right"], differ),
                self.below(values, links, "bottom_right", _("The last query stands at the last key.")),
            ),
        )

    def grid(self, caption: str, allowed: np.ndarray, differ: np.ndarray) -> SafeString:
        rows = [
            [
                parts.cell(
                    OPEN if cell else SHUT, extra=("open" if cell else "shut") + (" painted" if other else "")
                )
                for cell, other in zip(row, others, strict=True)
            ]
            for row, others in zip(allowed.tolist(), differ.tolist(), strict=True)
        ]
        heads = grids.query_heads(len(allowed)), grids.key_heads(allowed.shape[1])
        return grids.framed(parts.table(caption, rows, *heads), caption)

    def below(self, values: Values, links: Links, corner: str, words: str) -> SafeString:
        query = urlencode(self.lab_pairs(values, corner), safe="[],")
        return format_html('{} <a href="{}?{}">{}</a>', words, links.lab, query, _("Run this one"))

    def sentence(self, values: Values) -> str:
        blind = values["rows"] - values["columns"]
        if blind == 0:
            return _("As many queries as keys: both corners give the same mask.")
        if blind > 0:
            told = _(
                "From the bottom right the first %(count)d queries see no key; from the top left all do."
            )
            return told % {"count": blind}
        seen = {corner: int(mask[-1].sum()) for corner, mask in self.allowed(values).items()}
        told = _(
            "From the top left the last query sees %(top)d of %(keys)d keys; from the bottom right,"
            " %(bottom)d."
        )
        return told % {"top": seen["top_left"], "bottom": seen["bottom_right"], "keys": values["columns"]}

    def numbers(self, values: Values) -> dict[str, Any]:
        return {corner: mask.tolist() for corner, mask in self.allowed(values).items()}

    def picture(self, values: Values) -> str:
        names = dict(zip(CORNERS, (_("Top left"), _("Bottom right")), strict=True))
        tables = [(names[corner], mask_rows(mask)) for corner, mask in self.allowed(values).items()]
        return grids.picture(self.sentence(values), tables)

    def lab(self, values: Values) -> list[tuple[str, str]]:
        return self.lab_pairs(values, "bottom_right")

    def lab_pairs(self, values: Values, corner: str) -> list[tuple[str, str]]:
        return [*inputs(values["rows"], values["columns"]), ("causal", "on"), ("alignment", corner)]


FIGURE = Masks()
ALIGNMENT = Alignment()
