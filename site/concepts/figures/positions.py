"""Telling positions apart: vectors of sines and cosines, a table that ends, and segments that remember the
one before; by `kernels.sinusoids` and `kernels.sparse.receptive`.
"""

from functools import partial
from typing import Any

import numpy as np
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from concepts.figures import Links, grids, heatmap, lineplot, listings, parts
from concepts.figures.controls import Number, Switch
from concepts.figures.explorable import Explorable, Values
from concepts.figures.heatmap import HeatMap
from concepts.figures.lineplot import Axis, Series
from concepts.figures.listings import Line
from concepts.figures.numbers import show, to_json
from concepts.figures.scales import ink, sequential
from kernels.sinusoids import sinusoids
from kernels.sparse.receptive import cone

# -- sines and cosines ---------------------------------------------------------------------------------------

SHOWN = 48  # positions
RUN_POSITIONS, RUN_WIDTH = 6, 8  # of what the lab gets


class Waves(Explorable):
    name = "waves"
    title = gettext_lazy("The figure: positions as vectors of sines and cosines")
    controls = (
        Number("p", gettext_lazy("Position, p"), 20, 0, SHOWN - 1),
        Number("pairs", gettext_lazy("Pairs, d/2"), 16, 1, 32),
        Number("base", gettext_lazy("Base, b"), 10_000, 1, 1e6, is_log=True),
    )

    def vectors(self, values: Values) -> np.ndarray:
        return sinusoids(np.arange(SHOWN), 2 * values["pairs"], values["base"])

    def products(self, values: Values) -> np.ndarray:
        """Of this position with every other, (48,), without the noise of rounding."""
        vectors = self.vectors(values)
        return np.asarray(np.round(vectors @ vectors[values["p"]], 10)) + 0.0

    def heat(self, values: Values) -> HeatMap:
        width = 2 * values["pairs"]
        return HeatMap(
            self.vectors(values),
            1.0,
            down=_("position"),
            across=_("number of the vector"),
            rows=range(0, SHOWN, 10),
            columns=range(0, width, max(1, width // 8)),
            lit=values["p"],
        )

    def view(self, values: Values, links: Links) -> SafeString:
        series, x, y = self.plot(values)
        label = _("Vectors of %(count)d positions: sines and cosines, fast ones on the left") % {
            "count": SHOWN
        }
        return format_html(
            '<div class="split"><div>{}</div><div>{}{}{}</div></div>',
            heatmap.svg(self.heat(values), label),
            lineplot.svg(series, x, y, self.sentence(values)),
            lineplot.legend(series),
            self.table(values),
        )

    def plot(self, values: Values) -> tuple[list[Series], Axis, Axis]:
        products = self.products(values).tolist()
        series = [
            Series(_("product with this position"), [*enumerate(products)], has_marks=False),
            Series(_("the position itself"), [(values["p"], products[values["p"]])], is_joined=False),
        ]
        x = Axis(_("position"), partial(show, digits=0))
        return series, x, Axis(_("dot product"), partial(show, digits=1))

    def table(self, values: Values) -> SafeString:
        """What a few distances make, on both sides."""
        products, p = self.products(values), values["p"]
        rows = [
            (
                str(distance),
                *(
                    show(float(products[at]), 3) if 0 <= at < SHOWN else "–"
                    for at in (p - distance, p + distance)
                ),
            )
            for distance in (0, 1, 2, 5, 10, 20)
        ]
        return parts.listing(_("Dot products"), (_("distance"), _("before"), _("after")), rows)

    def sentence(self, values: Values) -> str:
        vectors = sinusoids(np.array([0, 1, 10]), 2 * values["pairs"], values["base"])
        itself, near, far = (vectors @ vectors[0]).tolist()
        told = _(
            "Position %(p)d has a product of %(itself)s with itself, %(near)s with its neighbours on both"
            " sides, and %(far)s at a distance of 10. So has every position."
        )
        words = {"itself": show(itself, 2), "near": show(near, 2), "far": show(far, 2)}
        return told % {"p": values["p"], **words}

    def numbers(self, values: Values) -> dict[str, Any]:
        return {
            "vector": self.vectors(values)[values["p"]].tolist(),
            "products": self.products(values).tolist(),
        }

    def picture(self, values: Values) -> str:
        return heatmap.document(self.heat(values), self.sentence(values))

    def lab(self, values: Values) -> list[tuple[str, str]]:
        """A few positions as queries and as keys, with as much of the vector as fits into an address."""
        width = min(2 * values["pairs"], RUN_WIDTH)
        vectors = to_json(np.round(sinusoids(np.arange(RUN_POSITIONS), width, values["base"]), 4).tolist())
        return [
            ("engine", "flash"),
            ("q", vectors),
            ("k", vectors),
            ("v", to_json(np.eye(RUN_POSITIONS).tolist())),
            ("scale", "1"),
            *(("returns", name) for name in ("out", "scores", "weights")),
        ]


# -- a table that ends ---------------------------------------------------------------------------------------

OUT_OF_RANGE = "IndexError: index out of range in self"  # PyTorch 2.13


class Table(Explorable):
    name = "table"
    title = gettext_lazy("The figure: a position that was never seen")
    controls = (
        Number("rows", gettext_lazy("Longest text of the training"), 1024, 1, 131_072, is_log=True),
        Number("width", gettext_lazy("Width of the model"), 768, 1, 32_768, is_log=True),
        Number("at", gettext_lazy("Position asked for"), 1024, 0, 1_048_576),
    )

    def is_seen(self, values: Values) -> bool:
        return bool(values["at"] < values["rows"])

    def rows(self, values: Values) -> list[tuple[str, str, str]]:
        """Of each way its name, what it has at the position, and how many numbers it learns."""
        at = values["at"]
        first = sinusoids(np.array([at]), 2)[0]
        return [
            (
                _("learned table"),
                _("row %(at)s") % {"at": f"{at:,}"} if self.is_seen(values) else OUT_OF_RANGE,
                f"{values['rows'] * values['width']:,}",
            ),
            (
                _("sinusoids"),
                _("a vector: %(sin)s, %(cos)s, …") % {"sin": show(first[0], 4), "cos": show(first[1], 4)},
                "0",
            ),
            (
                _("RoPE"),
                _("a fastest pair after %(turns)s turns") % {"turns": f"{at / (2 * np.pi):,.1f}"},
                "0",
            ),
            (_("ALiBi"), _("−%(at)s slopes to the first key") % {"at": f"{at:,}"} if at else "0", "0"),
        ]

    def view(self, values: Values, links: Links) -> SafeString:
        caption = _("What there is at position %(at)s") % {"at": f"{values['at']:,}"}
        heads = (_("way"), _("what it has"), _("numbers learned"), _("seen in training"))
        seen = _("yes") if self.is_seen(values) else _("no")
        rows = [(name, format_html("{}", found), learned, seen) for name, found, learned in self.rows(values)]
        return grids.framed(parts.listing(caption, heads, rows), caption)

    def sentence(self, values: Values) -> str:
        words = {
            "rows": f"{values['rows']:,}",
            "last": f"{values['rows'] - 1:,}",
            "at": f"{values['at']:,}",
            "count": f"{values['rows'] * values['width']:,}",
        }
        if self.is_seen(values):
            return (
                _("The table has a row %(at)s, one of %(rows)s; together they are %(count)s numbers.") % words
            )
        told = _(
            "The table has rows 0 to %(last)s and none for %(at)s. The others have a formula there, and no"
            " experience."
        )
        return told % words

    def numbers(self, values: Values) -> dict[str, Any]:
        return {"has_row": self.is_seen(values), "learned": values["rows"] * values["width"]}

    def picture(self, values: Values) -> str:
        lines = [Line(f"{name}: {found}") for name, found, _learned in self.rows(values)]
        return listings.picture(self.sentence(values), lines)


# -- segments ------------------------------------------------------------------------------------------------

SEGMENTS = 5
HEARD, REMEMBERED, UNHEARD = "●", "○", "·"


def segment_mask(tokens: int, length: int, *, has_memory: bool) -> np.ndarray:
    """Who sees whom in a layer, bool [tokens, tokens]: what came before in the own segment and, with a
    memory, all of the segment before."""
    at = np.arange(tokens)
    segment = at // length
    apart = segment[:, None] - segment
    return np.asarray((at <= at[:, None]) & (apart <= int(has_memory)))


class Segments(Explorable):
    name = "segments"
    title = gettext_lazy("The figure: what the last token hears of")
    controls = (
        Number("length", gettext_lazy("Tokens in a segment"), 3, 2, 6),
        Number("layers", gettext_lazy("Layers"), 3, 1, 4),
        Switch("memory", gettext_lazy("Keep the segment before"), True),
    )

    def tokens(self, values: Values) -> int:
        return SEGMENTS * int(values["length"])

    def heard(self, values: Values) -> np.ndarray:
        """[layers + 1, tokens], the last layer first."""
        tokens = self.tokens(values)
        mask = segment_mask(tokens, values["length"], has_memory=values["memory"])
        return np.stack(cone([mask] * values["layers"], tokens - 1))

    def before(self, values: Values) -> int:
        """Tokens before its own segment that it hears of."""
        return int(self.heard(values)[-1].sum()) - int(values["length"])

    def view(self, values: Values, links: Links) -> SafeString:
        heard, length, tokens = self.heard(values), values["length"], self.tokens(values)
        own = np.arange(tokens) >= tokens - length
        names = [_("layer %(n)d") % {"n": n} for n in range(values["layers"], 0, -1)]
        rows = [[mark(bool(told), bool(mine)) for told, mine in zip(row, own, strict=True)] for row in heard]
        rows += [
            [parts.cell(str(at % length), extra="sum") for at in range(tokens)],
            [parts.cell(str(tokens - 1 - at), extra="sum") for at in range(tokens)],
        ]
        heads = [*names, _("input"), _("place"), _("distance")]
        caption = _(
            "What the last token hears of: ● in its own segment, ○ remembered, · not at all. Place: in its"
            " segment. Distance: to the last token."
        )
        table = parts.table(
            caption,
            rows,
            [format_html("{}", head) for head in heads],
            [format_html("{}", at) for at in range(tokens)],
        )
        note = format_html('<p class="panel-note">{}</p>', caption)
        return format_html('<div class="segments">{}{}</div>', grids.framed(table, caption), note)

    def sentence(self, values: Values) -> str:
        words = {
            "layers": values["layers"],
            "before": self.before(values),
            "length": values["length"],
        }
        told = _(
            "Without a memory the last token hears of the %(length)d of its own segment, through however many"
            " layers; the first of a segment hears of itself alone."
        )
        if values["memory"]:
            told = _(
                "Through %(layers)d layers the last token hears of %(before)d tokens before its own segment:"
                " %(length)d more with every layer."
            )
        return told % words

    def numbers(self, values: Values) -> dict[str, Any]:
        return {"heard": self.heard(values).astype(int).tolist(), "before_its_segment": self.before(values)}

    def picture(self, values: Values) -> str:
        paper, dark = sequential(2), sequential(14)
        rows = [
            [
                (HEARD if told else UNHEARD, shade.hex, ink(shade).hex)
                for told in row
                for shade in [dark if told else paper]
            ]
            for row in self.heard(values).tolist()
        ]
        return grids.picture(self.sentence(values), [(_("last layer above, input below"), rows)])

    def lab(self, values: Values) -> list[tuple[str, str]]:
        """One segment, whose keys begin a segment earlier where there is a memory."""
        length = values["length"]
        shape = {"batch": 1, "heads": 1, "q_len": length, "head_dim": 16, "seed": 1}
        if values["memory"]:
            shape["kv_len"] = 2 * length
        return [
            ("engine", "flash"),
            ("source", "seed"),
            *((name, str(size)) for name, size in shape.items()),
            ("causal", "on"),
            *(("returns", name) for name in ("out", "weights")),
        ]


def mark(is_heard: bool, is_own: bool) -> SafeString:
    if not is_heard:
        return parts.cell(UNHEARD, extra="shut")
    return parts.cell(HEARD if is_own else REMEMBERED, extra="open")


FIGURES = (Waves(), Table(), Segments())
