"""Texts longer than those of the training: how slowly each pair of a head turns when RoPE is stretched, which
pairs meet new angles, and how wild a score may become where no training held it; by `kernels.stretching`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from concepts.figures import Links, dials, grids, lineplot, parts
from concepts.figures.controls import Menu, Number, Text
from concepts.figures.dials import Dial, Hand
from concepts.figures.explorable import Explorable, Values
from concepts.figures.lineplot import Axis, Series
from concepts.figures.numbers import plain, show, show_power, to_json
from concepts.figures.plotted import Plot, Plotted
from concepts.figures.rope import show_long
from kernels.rope import frequencies, stretched_base
from kernels.spec.model import Rope
from kernels.spec.rope import ORIGINAL
from kernels.stretching import fit, new_angles, omegas, reach, unturned, waves

# -- seven ways to turn --------------------------------------------------------------------------------------

Scaling = dict[str, Any]


@dataclass(frozen=True)
class Way:
    """`scaling` is what a config has as `rope_scaling`, of the values of the figure; `number` is that of the
    colour, which those of one family share."""

    name: Text
    scaling: Callable[[Values], Scaling | None]
    number: int
    is_dashed: bool = False
    has_other_base: bool = False


def scaled(kind: str, *, has_length: bool = False, **more: float) -> Callable[[Values], Scaling]:
    def scaling(values: Values) -> Scaling:
        length = {ORIGINAL: values["length"]} if has_length else {}
        return {"type": kind, "factor": values["s"], **more, **length}

    return scaling


def unscaled(_values: Values) -> None:
    return None


WAYS = {
    "plain": Way(gettext_lazy("as trained"), unscaled, 0),
    "pi": Way(gettext_lazy("PI"), scaled("linear"), 1),
    "ntk": Way(gettext_lazy("NTK-aware"), scaled("ntk"), 2),
    "dynamic": Way(gettext_lazy("dynamic NTK, at n"), scaled("dynamic", has_length=True), 2, is_dashed=True),
    "yarn": Way(gettext_lazy("YaRN"), scaled("yarn", has_length=True), 3),
    "llama3": Way(
        gettext_lazy("as Llama 3.1"),
        scaled("llama3", has_length=True, low_freq_factor=1, high_freq_factor=4),
        4,
    ),
    "base": Way(gettext_lazy("another base"), unscaled, 5, has_other_base=True),
}
STYLE = "half"
LONGEST = 2**24


def rope_of(values: Values, way: str) -> Rope:
    one = WAYS[way]
    theta = values["other"] if one.has_other_base else values["b"]
    return Rope(STYLE, theta=theta, scaling=one.scaling(values))


class Stretch(Explorable):
    name = "stretch"
    title = gettext_lazy("The figure: how slowly pairs turn, and who meets new angles")
    controls = (
        Number("length", gettext_lazy("Tokens in training, L"), 4096, 16, 1_048_576, is_log=True),
        Number("n", gettext_lazy("Tokens of the text, n"), 32_768, 2, LONGEST, is_log=True),
        Number("s", gettext_lazy("Factor, s"), 8, 1, 1024, 0.1, is_log=True),
        Number("d", gettext_lazy("Numbers in a head, d"), 128, 4, 256, 2),
        Number("b", gettext_lazy("Base, b"), 10_000, 2, 1e8, is_log=True),
        Number("other", gettext_lazy("Another base"), 500_000, 2, 1e9, is_log=True),
        Number("pair", gettext_lazy("Pair to follow, from 0"), 60, 0, 127),
        Menu(
            "way",
            gettext_lazy("How it is turned"),
            "pi",
            tuple((slug, way.name) for slug, way in WAYS.items()),
        ),
    )

    # --- What is computed ----------------------------------------------------------------------

    def pair(self, values: Values) -> int:
        """The last one, where there are not as many."""
        return int(min(values["pair"], values["d"] // 2 - 1))

    def omegas(self, values: Values, way: str) -> np.ndarray:
        """Radians a token of each pair, in a text of n tokens."""
        return omegas(rope_of(values, way), values["d"], values["n"])

    def slow(self, values: Values) -> np.ndarray:
        """Which pairs do not turn once in training."""
        return unturned(rope_of(values, "plain"), values["d"], values["length"])

    def new(self, values: Values, way: str) -> np.ndarray:
        trained, used = rope_of(values, "plain"), rope_of(values, way)
        return new_angles(trained, used, values["d"], values["length"], values["n"])

    def reach(self, values: Values, way: str) -> int | None:
        return reach(rope_of(values, "plain"), rope_of(values, way), values["d"], values["length"])

    def factor(self, values: Values, way: str) -> float:
        """By which scores are multiplied: the attention factor is that of q, and again that of k."""
        return frequencies(rope_of(values, way), values["d"], values["n"])[1] ** 2

    # --- What is shown -------------------------------------------------------------------------

    def view(self, values: Values, links: Links) -> SafeString:
        return format_html(
            '<div class="split">{}{}</div><div class="outputs"><div class="dials">{}{}</div></div>{}',
            drawn(self.wavelengths(values), _("How many tokens each pair takes for one turn")),
            drawn(self.slower(values), _("How much slower each pair turns than in training")),
            self.dial(values, "plain"),
            self.dial(values, values["way"]),
            self.table(values),
        )

    def lines(self, values: Values, of: Callable[[np.ndarray], np.ndarray]) -> list[Series]:
        """A curve over the pairs for each way."""
        return [
            Series(
                str(way.name),
                [*enumerate(of(self.omegas(values, slug)).tolist())],
                is_dashed=way.is_dashed,
                has_marks=False,
                number=way.number,
            )
            for slug, way in WAYS.items()
        ]

    def wavelengths(self, values: Values) -> Plot:
        last = values["d"] // 2 - 1
        level = [(0, values["length"]), (last, values["length"])]
        series = [
            *self.lines(values, lambda omega: 2 * np.pi / omega),
            Series(_("L tokens"), level, has_marks=False, is_dashed=True, number=0),
        ]
        y = Axis(_("tokens a turn"), partial(show_power, digits=3), is_log=True)
        return series, Axis(_("pair, from 0"), partial(show, digits=0)), y

    def slower(self, values: Values) -> Plot:
        own, slow = self.omegas(values, "plain"), np.flatnonzero(self.slow(values))
        needed = max(values["n"] / values["length"], 1.0)
        series = self.lines(values, lambda omega: own / omega)
        if len(slow):
            level = [(float(slow[0]), needed), (float(slow[-1]), needed)]
            series.append(
                Series(_("n/L, what slow pairs need"), level, has_marks=False, is_dashed=True, number=0)
            )
        y = Axis(_("times slower than in training"), partial(show_power, digits=3), is_log=True, base=2)
        return series, Axis(_("pair, from 0"), partial(show, digits=0)), y

    def table(self, values: Values) -> SafeString:
        rows = []
        for slug, way in WAYS.items():
            omega, found = self.omegas(values, slug), self.reach(values, slug)
            rows.append(
                (
                    str(way.name),
                    show_power(float(omega[0])),
                    show_long(float(2 * np.pi / omega[-1])),
                    str(int(self.new(values, slug).sum())),
                    _("any") if found is None else f"{found:,}",
                    show(self.factor(values, slug), 3),
                )
            )
        heads = (
            "",
            _("fastest, radians a token"),
            _("slowest, tokens a turn"),
            _("pairs with new angles"),
            _("tokens before the first"),
            _("scores times"),
        )  # fmt: skip
        caption = _("A head of %(d)d numbers in a text of %(n)s tokens") % {
            "d": values["d"],
            "n": f"{values['n']:,}",
        }
        return grids.framed(parts.listing(caption, heads, rows), caption)

    def dial(self, values: Values, way: str) -> SafeString:
        """The pair on its circle: inside how far it turns in the text, outside how far it did in training."""
        pair = self.pair(values)
        trained = float(self.omegas(values, "plain")[pair]) * values["length"]
        needed = float(self.omegas(values, way)[pair]) * values["n"]
        hands = [hand("k", "L", trained, 1.0), hand("q", "n", needed, 0.62)]
        words = {
            "pair": pair,
            "trained": degrees(trained),
            "needed": degrees(needed),
            "way": str(WAYS[way].name),
        }
        note = _("%(trained)s in the L tokens of the training, %(needed)s in the n of the text.") % words
        verdict = _("Some of these angles are new.") if self.new(values, way)[pair] else _("No angle is new.")
        picture = dials.svg(Dial(hands, "0°", "90°", 1.0), f"{note} {verdict}")
        return format_html(
            '<section class="panel"><h3>{}</h3>{}<p class="panel-note">{} {}</p></section>',
            _("Pair %(pair)d, %(way)s") % words,
            picture,
            note,
            verdict,
        )

    def sentence(self, values: Values) -> str:
        slow = int(self.slow(values).sum())
        words = {
            "slow": slow,
            "pairs": values["d"] // 2,
            "length": f"{values['length']:,}",
            "n": f"{values['n']:,}",
            **{way: int(self.new(values, way).sum()) for way in WAYS},
        }
        if not slow:
            told = _(
                "All %(pairs)d pairs turn at least once within %(length)s tokens: no angle is new to any."
            )
            return told % words
        return (
            _(
                "%(slow)d of %(pairs)d pairs do not turn once within %(length)s tokens. In a text of %(n)s"
                " tokens as trained, %(plain)d meet new angles; with PI %(pi)d, with NTK-aware scaling"
                " %(ntk)d, with YaRN %(yarn)d."
            )
            % words
        )

    def numbers(self, values: Values) -> dict[str, Any]:
        return {
            "unturned_in_training": np.flatnonzero(self.slow(values)).tolist(),
            "stretched_base": stretched_base(values["b"], values["s"], values["d"]),
            "ways": {
                way: {
                    "tokens_per_turn": (2 * np.pi / self.omegas(values, way)).tolist(),
                    "pairs_with_new_angles": np.flatnonzero(self.new(values, way)).tolist(),
                    "tokens_before_the_first": self.reach(values, way),
                    "scores_times": self.factor(values, way),
                }
                for way in WAYS
            },
        }

    def picture(self, values: Values) -> str:
        return lineplot.document(*self.slower(values), self.sentence(values))

    def lab(self, values: Values) -> list[tuple[str, str]]:
        """Query and key of length 1 in the plane of the pair: the query at the end of the text, a key at its
        start and one at its end. The values are the unit matrix."""
        half, pair = values["d"] // 2, self.pair(values)
        one = [float(number == pair) for number in range(2 * half)]
        rope = rope_of(values, values["way"])
        scaling = dict(rope.scaling or {})
        kind = scaling.pop("type", "")
        return [
            ("engine", "flash"),
            ("q", to_json([one])),
            ("k", to_json([one, one])),
            ("v", to_json(np.eye(2).tolist())),
            ("q_positions", str(values["n"] - 1)),
            ("kv_positions", f"[0,{values['n'] - 1}]"),
            ("rope", STYLE),
            ("rope_theta", f"{rope.theta:.12g}"),
            *([("rope_scaling", kind)] if kind else []),
            *((f"scaling_{name}", plain(value)) for name, value in scaling.items()),
            ("scale", "1"),
            *(("returns", name) for name in ("out", "scores", "weights")),
        ]


def drawn(plot: Plot, label: str) -> SafeString:
    series, x, y = plot
    return format_html("<div>{}{}</div>", lineplot.svg(series, x, y, label), lineplot.legend(series))


def hand(css: str, name: str, angle: float, radius: float) -> Hand:
    """A hand that has turned by the angle, with its way as an arc, at most once round."""
    arc = np.linspace(0, min(angle, 2 * np.pi), 121)
    path = radius * np.stack([np.cos(arc), np.sin(arc)], axis=1)
    now = radius * np.array([np.cos(angle), np.sin(angle)])
    return Hand(css, name, radius * np.array([1.0, 0.0]), now, path)


def degrees(angle: float) -> str:
    """Less than a turn in degrees, else in turns."""
    if angle < 2 * np.pi:
        return f"{np.degrees(angle):.1f}°"
    return _("%(turns)s turns") % {"turns": show(angle / (2 * np.pi), 1)}


# -- a score that nothing held -------------------------------------------------------------------------------

DIM, BASE, TRAINED = 128, 10_000.0, 2048
BIN = 32  # distances to a point of the plot, which is the largest of them
CLOSE = 64


@lru_cache(maxsize=64)
def scores(draw: int, price: float, is_pi: bool) -> np.ndarray:
    """At the distances 0 … 2L − 1, as they are or halved, [2L]."""
    distances = np.arange(2 * TRAINED) / (2 if is_pi else 1)
    found = waves(distances, Rope(STYLE, theta=BASE), DIM) @ fit(draw, price, DIM, BASE, TRAINED)
    return np.asarray(np.abs(found))


class Wild(Plotted):
    name = "wild"
    title = gettext_lazy("The figure: a score that is tame in training, and beyond")
    controls = (
        Number("draw", gettext_lazy("Random scores, number"), 0, 0, 99),
        Number("price", gettext_lazy("Price of large coefficients"), 1e-8, 1e-12, 100, 1e-12, is_log=True),
    )

    def plot(self, values: Values) -> Plot:
        starts = range(0, 2 * TRAINED, BIN)

        def curve(name: str, is_pi: bool) -> Series:
            largest = scores(values["draw"], values["price"], is_pi).reshape(-1, BIN).max(axis=1)
            points = [*zip([start + BIN / 2 for start in starts], largest.tolist(), strict=True)]
            return Series(name, points, has_marks=False)

        series = [curve(_("as trained"), is_pi=False), curve(_("with PI, s = 2"), is_pi=True)]
        tops = [point[1] for one in series for point in one.points]
        edge = [(TRAINED, min(tops)), (TRAINED, max(tops))]
        series.append(Series(_("L tokens"), edge, has_marks=False, is_dashed=True))
        x = Axis(_("distance, in tokens"), partial(show, digits=0), at=(0, 1024, 2048, 3072, 4096))
        return series, x, Axis(_("size of the score"), partial(show_power, digits=1), is_log=True)

    def largest(self, values: Values) -> dict[str, float]:
        raw, pi = (scores(values["draw"], values["price"], is_pi) for is_pi in (False, True))
        return {
            "training": float(raw[:TRAINED].max()),
            "close": float(raw[TRAINED : TRAINED + CLOSE].max()),
            "beyond": float(raw[TRAINED:].max()),
            "pi": float(pi.max()),
        }

    def table(self, values: Values) -> SafeString:
        found = self.largest(values)
        names = {
            "training": _("0 to 2,047, as trained"),
            "close": _("the next 64"),
            "beyond": _("2,048 to 4,095"),
            "pi": _("0 to 4,095, with PI"),
        }
        rows = [(name, show_power(found[key])) for key, name in names.items()]
        return parts.listing(_("The largest score, without its sign"), (_("distances"), _("size")), rows)

    def sentence(self, values: Values) -> str:
        words = {key: show_power(value) for key, value in self.largest(values).items()}
        return (
            _(
                "Up to 2,047 tokens away no score is larger than %(training)s; up to 4,095 one is %(beyond)s."
                " With positions halved none is larger than %(pi)s."
            )
            % words
        )

    def numbers(self, values: Values) -> dict[str, Any]:
        return {"largest": self.largest(values)}


FIGURES = (Stretch(), Wild())
