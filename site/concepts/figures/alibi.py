"""A penalty for distance (ALiBi): a slope for each head and the window that it leaves, and the weights of one
row in eight heads; by `kernels.alibi`.
"""

import math
from functools import partial
from typing import Any

import numpy as np
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from concepts.figures import Links, grids, parts
from concepts.figures.controls import Choice, Number
from concepts.figures.explorable import Explorable, Values
from concepts.figures.lineplot import Axis, Series
from concepts.figures.numbers import plain, show, to_json
from concepts.figures.plotted import Plot, Plotted
from concepts.figures.quadratic import percent
from kernels.alibi import beyond, biases, nearest, remains
from kernels.positions import automatic_slopes
from kernels.scoring.attention import softmax

# -- a slope for each head -----------------------------------------------------------------------------------

SHARE = 0.99  # of the weight, that a window holds
MOST_HEADS = 128
LONGEST = 65_536
LISTED = 8  # heads in the table, and curves beside that of the chosen one
FARTHEST = 4096  # the plot reaches at least as far
POINTS = 48
RUN_LENGTH = 64  # tokens at most, of those that the lab is given


def fraction(slope: float) -> str:
    """1/256 where it is one over a whole number, else a decimal."""
    over = 1 / slope
    return f"1/{over:.0f}" if over == round(over) else f"{slope:.4f}"


def little(share: float) -> str:
    """In per cent, and no more of what is next to nothing."""
    return percent(share) if share >= 0.0005 else _("< 0.1\u202f%")


class Penalty(Plotted):
    name = "penalty"
    title = gettext_lazy("The figure: a slope for each head, and its window")
    controls = (
        Number("heads", gettext_lazy("Heads, H"), 8, 1, MOST_HEADS, is_log=True),
        Number("which", gettext_lazy("Head to follow, h"), 8, 1, MOST_HEADS, is_log=True),
        Number("tokens", gettext_lazy("Tokens in training, L"), 512, 16, LONGEST, is_log=True),
    )

    def chosen(self, values: Values) -> int:
        """From 1; the last head, where there are not as many."""
        return int(min(values["which"], values["heads"]))

    def listed(self, values: Values) -> list[tuple[int, float]]:
        """Some of the heads, evenly from the first to the last, and the chosen one: (number, slope)."""
        slopes = automatic_slopes(values["heads"])
        count = min(LISTED, len(slopes))
        numbers = {round(at) for at in np.linspace(1, len(slopes), count).tolist()} | {self.chosen(values)}
        return [(number, slopes[number - 1]) for number in sorted(numbers)]

    def plot(self, values: Values) -> Plot:
        distances = np.unique(np.geomspace(1, max(FARTHEST, values["tokens"]), POINTS).round())

        def curve(name: str, slope: float, number: int) -> Series:
            points = [*zip(distances.tolist(), remains(slope, distances).tolist(), strict=True)]
            return Series(name, points, has_marks=False, number=number)

        chosen = self.chosen(values)
        listed = self.listed(values)
        others = [slope for number, slope in listed if number != chosen]
        named = [_("other heads"), *[""] * len(others)]
        series = [
            *(curve(name, slope, 3) for name, slope in zip(named, others, strict=False)),
            curve(_("head %(h)d") % {"h": chosen}, dict(listed)[chosen], 0),
            Series(
                _("L tokens"),
                [(values["tokens"], 0.0), (values["tokens"], 1.0)],
                has_marks=False,
                is_dashed=True,
                number=1,
            ),
        ]
        x = Axis(_("distance of the key, in tokens"), partial(show, digits=0), is_log=True, base=4)
        return series, x, Axis(_("what is left of its exponential"), partial(show, digits=1), from_zero=True)

    def table(self, values: Values) -> SafeString:
        rows = [
            (
                str(number),
                fraction(slope),
                f"{nearest(slope, SHARE):,}",
                little(beyond(slope, values["tokens"])),
            )
            for number, slope in self.listed(values)
        ]
        heads = (_("head"), _("slope"), _("keys with 99\u202f%"), _("beyond L"))
        return parts.listing(_("Equal scores, an endless text"), heads, rows)

    def sentence(self, values: Values) -> str:
        slopes = automatic_slopes(values["heads"])
        slope = slopes[self.chosen(values) - 1]
        return _(
            "With equal scores %(closed)d of %(heads)d heads give 99\u202f%% of their weight to the nearest"
            " %(tokens)s keys, however long the text is. Head %(which)d, of slope %(slope)s, needs %(window)s"
            " keys for that, and leaves %(beyond)s to what lies beyond %(tokens)s."
        ) % {
            "closed": sum(nearest(one, SHARE) <= values["tokens"] for one in slopes),
            "heads": values["heads"],
            "tokens": f"{values['tokens']:,}",
            "which": self.chosen(values),
            "slope": fraction(slope),
            "window": f"{nearest(slope, SHARE):,}",
            "beyond": little(beyond(slope, values["tokens"])),
        }

    def numbers(self, values: Values) -> dict[str, Any]:
        slopes = automatic_slopes(values["heads"])
        return {
            "slopes": slopes,
            "windows": [nearest(slope, SHARE) for slope in slopes],
            "beyond": [beyond(slope, values["tokens"]) for slope in slopes],
        }

    def lab(self, values: Values) -> list[tuple[str, str]]:
        """The heads of the table on random numbers, causal."""
        slopes = [slope for _number, slope in self.listed(values)]
        length = min(values["tokens"], RUN_LENGTH)
        shape = {"batch": 1, "heads": len(slopes), "q_len": length, "head_dim": 16, "seed": 1}
        return [
            ("engine", "flash"),
            ("source", "seed"),
            *((name, str(size)) for name, size in shape.items()),
            ("causal", "on"),
            ("alibi_slopes", ", ".join(map(plain, slopes))),
        ]


# -- one row, in eight heads ---------------------------------------------------------------------------------

HEADS = 8
KEYS = 10
FORMS = (
    ("causal", gettext_lazy("causal: −m(i − j), later keys masked")),
    ("symmetric", gettext_lazy("both sides: −m|i − j|")),
    ("halves", gettext_lazy("half of the heads look back, half ahead")),
    ("signed", gettext_lazy("wrong: −m(i − j) without a mask")),
)


class Row(Explorable):
    name = "row"
    title = gettext_lazy("The figure: one row of weights in eight heads")
    controls = (
        Choice("form", gettext_lazy("Added to the scores"), "causal", FORMS),
        Number("query", gettext_lazy("Query, i"), KEYS, 1, KEYS),
        Number("far", gettext_lazy("The key that matches, j"), 2, 1, KEYS),
        Number("lead", gettext_lazy("By how much its score leads"), 2, 0, 12, 0.1),
    )

    def added(self, values: Values) -> np.ndarray:
        """Biases [8, 10]."""
        return biases(HEADS, values["query"] - 1, KEYS, values["form"])

    def weights(self, values: Values) -> np.ndarray:
        """[8, 10]; all scores are 0 but that of the key that matches."""
        scores = np.where(np.arange(KEYS) == values["far"] - 1, values["lead"], 0.0)
        return np.asarray(softmax(scores + self.added(values)))

    def head_names(self, values: Values) -> list[SafeString]:
        slopes = automatic_slopes(HEADS // 2) * 2 if values["form"] == "halves" else automatic_slopes(HEADS)
        return [format_html("{}: {}", number, fraction(slope)) for number, slope in enumerate(slopes, 1)]

    def view(self, values: Values, links: Links) -> SafeString:
        names, keys = self.head_names(values), grids.key_heads(KEYS)
        weights = self.weights(values)
        framed = np.zeros(weights.shape, dtype=bool)
        framed[:, values["far"] - 1] = True
        title = _("Weights of the query")
        note = _("a row for each head and its slope; the key that matches is framed")
        table = grids.weights(title, weights.round(2), names, keys, has_sums=False, outlined=framed)
        return format_html(
            '{}<div class="outputs">{}</div>',
            grids.panel(title, table, note),
            grids.panel(_("Added to the scores"), self.bias_table(values, names, keys)),
        )

    def bias_table(self, values: Values, names: list[SafeString], keys: list[SafeString]) -> SafeString:
        rows = [[parts.cell(bias_text(x), extra="" if math.isfinite(x) else "shut") for x in row]
                for row in self.added(values).tolist()]  # fmt: skip
        caption = _("What each head adds to the scores of the query")
        return grids.framed(parts.table(caption, rows, names, keys), caption)

    def sentence(self, values: Values) -> str:
        weights, far = self.weights(values)[:, values["far"] - 1], values["far"]
        words = {
            "far": far,
            "lead": show(values["lead"], 1),
            "away": abs(values["query"] - far),
            "query": values["query"],
            "first": show(float(weights[0]), 3),
            "last": show(float(weights[-1]), 3),
        }
        if not weights.any():
            return _("Key %(far)d comes after query %(query)d: no head may see it.") % words
        told = [
            _(
                "Key %(far)d leads by %(lead)s and stands %(away)d from query %(query)d: head 1 gives it"
                " %(first)s of its weight, head 8 %(last)s."
            )
            % words
        ]
        if values["form"] == "signed" and values["query"] < KEYS:
            gained = show(float(self.weights(values)[0, -1]), 3)
            told.append(
                _("What comes later gains: head 1 gives %(share)s to the last key.") % {"share": gained}
            )
        return " ".join(told)

    def numbers(self, values: Values) -> dict[str, Any]:
        added = [[x if math.isfinite(x) else None for x in row] for row in self.added(values).tolist()]
        return {"added": added, "weights": self.weights(values).tolist()}

    def picture(self, values: Values) -> str:
        return grids.picture(
            self.sentence(values), [(_("Weights, a row for each head"), grids.shaded(self.weights(values)))]
        )

    def lab(self, values: Values) -> list[tuple[str, str]]:
        """Eight queries of one number, and keys that all heads share; the values are the unit matrix."""
        keys = [[values["lead"] if key == values["far"] - 1 else 0.0] for key in range(KEYS)]
        pairs = [
            ("engine", "flash"),
            ("q", "[" + ",".join(["[[1]]"] * HEADS) + "]"),
            ("k", f"[{to_json(keys)}]"),
            ("v", f"[{to_json(np.eye(KEYS).tolist())}]"),
            ("scale", "1"),
        ]
        if values["form"] in ("causal", "signed"):
            pairs += [("alibi_slopes", "auto"), ("q_positions", str(values["query"] - 1))]
            return [*pairs, ("causal", "on")] if values["form"] == "causal" else pairs
        return [*pairs, ("how_attn_mask", "text"), ("in_attn_mask", mask_text(self.added(values)))]


def bias_text(value: float) -> str:
    return show(round(value, 3), 3) if math.isfinite(value) else "−∞"


def mask_text(added: np.ndarray) -> str:
    """Biases [heads, keys] as a mask of the lab, [1, heads, 1, keys]."""
    rows = (",".join(plain(x) if math.isfinite(x) else "-inf" for x in row) for row in added.tolist())
    return f"[[{','.join(f'[[{row}]]' for row in rows)}]]"


FIGURES = (Penalty(), Row())
