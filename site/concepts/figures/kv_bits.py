"""A cache in fewer bits: four numbers rounded to a few codes, and the error of attention against the bytes of
its keys and values; by `kernels.group_quantise` and `kernels.quantise`.

The cache is one head of 32 tokens and 32 channels, drawn once, with one decimal. Three channels of its keys
stand away from 0 in every token, and tokens differ in the size of their values, both as far as one sets them.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

import numpy as np
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from concepts.figures import Links, grids, heatmap, parts
from concepts.figures.controls import Choice, Matrix, Number
from concepts.figures.explorable import Explorable, Values
from concepts.figures.heatmap import HeatMap
from concepts.figures.lineplot import Axis, Series
from concepts.figures.numbers import show
from concepts.figures.plotted import Plot, Plotted
from concepts.figures.projections import drawn
from concepts.figures.scales import ink, sequential
from kernels.engines.reference import attend
from kernels.group_quantise import GROUP_BITS, Grouped, bits_a_number, quantise_groups
from kernels.group_quantise import Axis as Along
from kernels.quantise import dequantise, quantise

SIXTEEN = 16

# -- four numbers --------------------------------------------------------------------------------------------

FOUR = [[-0.8, 0.1, 0.3, 1.3]]


class FourCodes(Explorable):
    name = "fourcodes"
    title = gettext_lazy("The figure: four numbers that share a step")
    controls = (
        Matrix(
            "x",
            gettext_lazy("Four numbers"),
            FOUR,
            row_head=lambda _number: SafeString("<i>x</i>"),
            coordinate="i",
        ),
        Choice(
            "width",
            gettext_lazy("Bits of a code"),
            "2",
            (("2", "2"), ("3", "3"), ("4", "4"), ("8", "8")),
        ),
    )

    def stored(self, values: Values) -> Grouped:
        return quantise_groups(np.array(values["x"]), int(values["width"]), len(FOUR[0]), "token")

    def view(self, values: Values, links: Links) -> SafeString:
        kept = self.stored(values)
        bits, (row,) = int(values["width"]), values["x"]
        shares = (np.array(row) - kept.least[0, 0]) / max(float(kept.step[0, 0]), np.finfo(float).tiny)
        rows = [
            (show(x, 2), tidy(share), f"{code}\u00a0=\u00a0{code:0{bits}b}", tidy(back), tidy(back - x))
            for x, share, code, back in zip(
                row, shares, kept.codes[0].tolist(), kept.restored()[0], strict=True
            )
        ]
        caption = _("From numbers to codes, and back")
        heads = (_("number"), _("(number − least) / step"), _("code"), _("back"), _("off by"))
        return grids.framed(parts.listing(caption, heads, rows), caption)

    def sentence(self, values: Values) -> str:
        kept, bits = self.stored(values), int(values["width"])
        off = np.abs(kept.restored() - np.array(values["x"])).max()
        told = _(
            "Least number %(least)s, step %(step)s: %(codes)d bits of codes and %(extra)d for step and least"
            " number. The worst of the four is off by %(off)s."
        )
        return told % {
            "least": tidy(kept.least[0, 0]),
            "step": tidy(kept.step[0, 0]),
            "codes": bits * len(FOUR[0]),
            "extra": GROUP_BITS,
            "off": tidy(off),
        }

    def numbers(self, values: Values) -> dict[str, Any]:
        kept = self.stored(values)
        return {
            "codes": kept.codes[0].tolist(),
            "least": float(kept.least[0, 0]),
            "step": float(kept.step[0, 0]),
            "restored": kept.restored()[0].tolist(),
        }

    def picture(self, values: Values) -> str:
        white, kept = sequential(0), self.stored(values)
        rows = [
            [(text, white.hex, ink(white).hex) for text in texts]
            for texts in (
                [show(x, 2) for x in values["x"][0]],
                [str(code) for code in kept.codes[0].tolist()],
                [tidy(x) for x in kept.restored()[0]],
            )
        ]
        return grids.picture(self.sentence(values), [(_("numbers, codes, back"), rows)])


def tidy(value: float) -> str:
    """Two decimals, without what float16 makes of the third."""
    return show(round(float(value), 2) + 0.0, 2)


# -- a cache -------------------------------------------------------------------------------------------------

TOKENS, CHANNELS, QUERIES = 32, 32, 16
FAR = {4: 1.0, 13: -1.0, 26: 1.0}  # the channels of keys that stand away from 0, and to which side
SCALE = CHANNELS**-0.5
LAYOUTS: dict[tuple[Along, Along], Any] = {
    ("channel", "token"): gettext_lazy("keys per channel, values per token"),
    ("channel", "channel"): gettext_lazy("both per channel"),
    ("token", "token"): gettext_lazy("both per token"),
    ("token", "channel"): gettext_lazy("keys per token, values per channel"),
}
WIDTHS = ("8", "4", "2")
FP8, FP8_NAME = "fp8", "fp8_e4m3"
FP8_BITS = 8 + 2 * 32 / (2 * TOKENS * CHANNELS)  # with a float32 for all keys and one for all values
SIZES = np.random.default_rng(5).permutation(np.linspace(0.0, 1.0, TOKENS))  # of tokens' values, as powers


@lru_cache(maxsize=64)
def cache_of(far: float, spread: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Queries [16, 32], keys and values [32, 32]."""
    shapes = {"q": (QUERIES, CHANNELS), "k": (TOKENS, CHANNELS), "v": (TOKENS, CHANNELS)}
    q, k, v = (drawn(f"kv-bits/{name}", *shape) for name, shape in shapes.items())
    k[:, list(FAR)] += far * np.array(list(FAR.values()))
    return q, k, v * (spread**SIZES)[:, None]


def off(out: np.ndarray, exact: np.ndarray) -> float:
    """‖out − exact‖ / ‖exact‖ of a row, in the mean."""
    return float((np.linalg.norm(out - exact, axis=1) / np.linalg.norm(exact, axis=1)).mean())


@dataclass(frozen=True)
class Way:
    """How a cache is kept: codes of `width` bits in groups along these axes; or FP8."""

    width: str
    keys: Along = "channel"
    values: Along = "token"
    group: int = TOKENS

    @property
    def bits(self) -> float:
        """Of a number, with its part of the scales."""
        return FP8_BITS if self.width == FP8 else bits_a_number(int(self.width), self.group)

    def rounded(self, x: np.ndarray, along: Along) -> np.ndarray:
        if self.width == FP8:
            kept = quantise(x[None, None], FP8_NAME, "per_tensor")
            return np.asarray(dequantise(kept, "float64")[0, 0])
        return quantise_groups(x, int(self.width), self.group, along).restored()


@lru_cache(maxsize=1024)
def errors(far: float, spread: float, way: Way) -> tuple[float, float, float]:
    """Of the output: with the keys alone rounded, the values alone, and both."""
    q, k, v = cache_of(far, spread)
    exact = attend(q, k, v, scale=SCALE)["out"]
    keys, rows = way.rounded(k, way.keys), way.rounded(v, way.values)
    weights = attend(q, keys, v, scale=SCALE)
    return (
        off(weights["out"], exact),
        off(attend(q, k, rows, scale=SCALE)["out"], exact),
        off(weights["weights"] @ rows, exact),
    )


def percent(share: float) -> str:
    return _("%(share)s\u202f%%") % {"share": f"{100 * share:.3g}"}


ALONG = (("channel", gettext_lazy("per channel")), ("token", gettext_lazy("per token")))


class FewBits(Plotted):
    name = "fewbits"
    title = gettext_lazy("The figure: error against bytes")
    controls = (
        Choice(
            "bits",
            gettext_lazy("Bits of a number"),
            "4",
            (("8", "8"), ("4", "4"), ("2", "2"), (FP8, gettext_lazy("8, as FP8"))),
        ),
        Choice("keys", gettext_lazy("Keys share a scale"), "channel", ALONG),
        Choice("values", gettext_lazy("Values share a scale"), "token", ALONG),
        Choice("group", gettext_lazy("Numbers to a scale"), "32", (("8", "8"), ("16", "16"), ("32", "32"))),
        Number("far", gettext_lazy("Three channels of keys, away from 0 by"), 10, 0, 30),
        Number("spread", gettext_lazy("Values of tokens differ by a factor of"), 8, 1, 30),
    )

    def way(self, values: Values) -> Way:
        keys, rows = cast(Along, values["keys"]), cast(Along, values["values"])
        return Way(values["bits"], keys, rows, int(values["group"]))

    def errors(self, values: Values, way: Way | None = None) -> tuple[float, float, float]:
        return errors(values["far"], values["spread"], way or self.way(values))

    def plot(self, values: Values) -> Plot:
        def at(way: Way) -> tuple[float, float]:
            return way.bits, self.errors(values, way)[2]

        group = int(values["group"])
        series = [
            Series(name, [at(Way(width, *layout, group)) for width in WIDTHS])
            for layout, name in LAYOUTS.items()
        ]
        series.append(Series(_("FP8 (e4m3), one scale"), [at(Way(FP8))], is_joined=False))
        series.append(Series(_("as set above"), [at(self.way(values))], is_joined=False))
        x = Axis(_("bits a number, scales included"), lambda value: show(value, 1))
        return series, x, Axis(_("error of the output"), percent, is_log=True)

    def view(self, values: Values, links: Links) -> SafeString:
        drawn_maps = [
            grids.panel(name, heatmap.svg(heat, label))
            for name, heat, label in zip(
                (_("Keys"), _("Values")), self.maps(values), self.labels(), strict=True
            )
        ]
        return format_html("{}{}", super().view(values, links), grids.panels(*drawn_maps))

    def labels(self) -> tuple[str, str]:
        return (
            _("Keys as colours: three columns stand out, in every row."),
            _("Values as colours: no column stands out; some rows are paler than others."),
        )

    def maps(self, values: Values) -> list[HeatMap]:
        _q, *both = cache_of(values["far"], values["spread"])
        ticks = range(0, TOKENS, 10)
        return [
            HeatMap(x, largest, down=_("token"), across=_("channel"), rows=ticks, columns=ticks)
            for x in both
            for largest in [float(np.quantile(np.abs(x), 0.98))]
        ]

    def table(self, values: Values) -> SafeString:
        way, numbers = self.way(values), 2 * TOKENS * CHANNELS
        codes = 8 if way.width == FP8 else int(way.width)
        rows = [
            (_("codes"), show(codes, 1), in_bytes(numbers * codes)),
            (_("scales"), show(way.bits - codes, 3), in_bytes(numbers * (way.bits - codes))),
        ]
        foot = (_("together"), show(way.bits, 3), in_bytes(numbers * way.bits))
        size = _("Bytes: %(count)s numbers, which are %(all)s in 16 bits") % {
            "count": f"{numbers:,}",
            "all": in_bytes(numbers * SIXTEEN),
        }
        lost = [
            (name, percent(error))
            for name, error in zip((_("keys"), _("values"), _("both")), self.errors(values, way), strict=True)
        ]
        caption = _("How far the output is off")
        return format_html(
            "<div>{}{}</div>",
            parts.listing(size, (_("what"), _("bits a number"), _("bytes")), rows, foot),
            parts.listing(caption, (_("rounded"), _("error")), lost),
        )

    def sentence(self, values: Values) -> str:
        way = self.way(values)
        kept = _("%(width)s bits with a scale to %(group)d numbers are %(bits)s bits a number")
        layout = LAYOUTS[way.keys, way.values]
        if way.width == FP8:
            kept, layout = _("FP8 is %(bits)s bits a number"), _("one scale for all keys, one for all values")
        told = kept + _(", %(times)s times fewer than 16; %(layout)s: the output is off by %(error)s.")
        return told % {
            "width": way.width,
            "group": way.group,
            "bits": show(way.bits, 2),
            "times": show(SIXTEEN / way.bits, 1),
            "layout": layout,
            "error": percent(self.errors(values, way)[2]),
        }

    def numbers(self, values: Values) -> dict[str, Any]:
        way = self.way(values)
        keys, rows, both = self.errors(values, way)
        size = round(2 * TOKENS * CHANNELS * way.bits / 8)
        return {"bits": way.bits, "bytes": size, "errors": {"keys": keys, "values": rows, "both": both}}

    def lab(self, values: Values) -> list[tuple[str, str]]:
        """A step of writing from a cache of 8 bits, which is as few as the engines take."""
        is_fp8 = values["bits"] == FP8
        sizes = {"batch": 1, "heads": 4, "kv_heads": 1, "q_len": 1, "kv_len": 512, "head_dim": 64, "seed": 1}
        return [
            ("engine", "decode"),
            ("source", "seed"),
            *((name, str(size)) for name, size in sizes.items()),
            ("option_kv_dtype", FP8_NAME if is_fp8 else "int8"),
            ("option_kv_scale", "per_tensor" if is_fp8 else "per_token_head"),
        ]


def in_bytes(bits: float) -> str:
    return f"{round(bits / 8):,}"


FIGURES = (FourCodes(), FewBits())
