"""How fast a step of writing can at most be: what it reads, by `kernels.sizing.roofline`, over the published
bandwidth of an accelerator. Bounds, never measurements."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from concepts.figures import grids, parts
from concepts.figures.controls import Choice, Menu, Number
from concepts.figures.explorable import Values
from concepts.figures.lineplot import Axis, Series
from concepts.figures.numbers import show
from concepts.figures.plotted import Plot, Plotted
from kernels.sizing.gpus import Gpu, gpus
from kernels.sizing.layers import Attention, LatentAttention, Model
from kernels.sizing.memory import Workload, per_gpu_bytes
from kernels.sizing.models import models, read_model
from kernels.sizing.roofline import Bound, Intensities, bound, intensities, traffic_of
from kernels.sizing.storage import GB

MODELS = ("llama-2-7b", "llama-3-8b", "llama-2-70b", "llama-3-70b", "llama-3.1-405b", "falcon-7b")
MOST_SEQUENCES = 1024
CARDS = tuple((slug, gpu.title) for slug, gpu in gpus().items())
BATCHES = [2**power for power in range(11)]
MILLI = 1e3


def model_of(slug: str) -> Model:
    return read_model(slug).model


def titled(slugs: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    return tuple((slug, models()[slug].title) for slug in slugs)


@dataclass(frozen=True)
class Pace:
    """Milliseconds of a step, at least, by what is read; and of its arithmetic."""

    batch: int
    weights: float
    cache: float
    arithmetic: float

    @property
    def memory(self) -> float:
        return self.weights + self.cache

    @property
    def least(self) -> float:
        return max(self.memory, self.arithmetic)

    @property
    def tokens(self) -> float:
        """Of all sequences, in a second, at most."""
        return MILLI * self.batch / self.least


@lru_cache(maxsize=1024)
def pace(model: str, card: str, cards: int, batch: int, length: int) -> Pace:
    load = Workload(length=length, batch=batch, gpus=cards)
    gpu = gpus()[card]
    found: Bound = bound(model_of(model), load, gpu)
    read = traffic_of(model_of(model), load, gpus=cards)
    weights = MILLI * read["weights"] / gpu.bandwidth
    return Pace(batch, weights, MILLI * found.memory_seconds - weights, MILLI * found.compute_seconds)


class PaceFigure(Plotted):
    name = "pace"
    title = gettext_lazy("The figure: the least time of a step, by what it reads")
    controls = (
        Menu("model", gettext_lazy("Model, in 16 bits"), "llama-3-8b", titled(MODELS)),
        Menu("gpu", gettext_lazy("Accelerator"), "h100-sxm", CARDS),
        Choice("cards", gettext_lazy("How many share the model"), "1", tuple((n, n) for n in "1248")),
        Number("batch", gettext_lazy("Sequences"), 1, 1, MOST_SEQUENCES, is_log=True),
        Number("length", gettext_lazy("Tokens of each"), 8192, 1, 131_072, is_log=True),
    )

    def at(self, values: Values, batch: int) -> Pace:
        return pace(values["model"], values["gpu"], int(values["cards"]), batch, values["length"])

    def here(self, values: Values) -> Pace:
        return self.at(values, values["batch"])

    def gpu(self, values: Values) -> Gpu:
        return gpus()[values["gpu"]]

    def fits(self, values: Values, batch: int) -> bool:
        """Whether each of them has room for its part of weights, cache and what a step needs."""
        load = Workload(length=values["length"], batch=batch, gpus=int(values["cards"]))
        return per_gpu_bytes(model_of(values["model"]), load) <= self.gpu(values).memory_bytes

    def plot(self, values: Values) -> Plot:
        found = [self.at(values, batch) for batch in BATCHES]
        here = self.here(values)
        lines = (
            (_("weights and cache read"), [one.memory for one in found]),
            (_("weights read"), [one.weights for one in found]),
            (_("cache read"), [one.cache for one in found]),
            (_("arithmetic"), [one.arithmetic for one in found]),
        )
        series = [
            Series(name, list(zip(BATCHES, line, strict=True)), has_marks=False) for name, line in lines
        ]
        series.append(Series(_("these sequences"), [(values["batch"], here.least)], is_joined=False))
        x = Axis(_("sequences at once"), lambda n: show(n, 0), is_log=True, base=2)
        return series, x, Axis(_("ms a step, at least"), written, is_log=True)

    def table(self, values: Values) -> SafeString:
        rows = []
        for batch in sorted({1, 4, 16, 64, 256, values["batch"]}):
            one = self.at(values, batch)
            rows.append(
                (
                    str(batch),
                    written(one.least),
                    f"{one.tokens / batch:,.0f}",
                    f"{one.tokens:,.0f}",
                    _("yes") if self.fits(values, batch) else _("no"),
                )
            )
        caption = _("Bounds from published figures; nothing here was measured")
        heads = (
            _("sequences"),
            _("ms, at least"),
            _("tokens/s for each, at most"),
            _("for all"),
            _("fits"),
        )
        table = grids.framed(parts.listing(caption, heads, rows), caption)
        return format_html("<div>{}{}</div>", table, published(self.gpu(values)))

    def sentence(self, values: Values) -> str:
        one, gpu, cards = self.here(values), self.gpu(values), int(values["cards"])
        per_card = gpu.bandwidth / MILLI / GB
        told = _(
            "A step takes %(least)s ms or more: %(weights)s GB of weights and %(cache)s GB of cache at"
            " %(bandwidth)s GB/s."
        )
        if one.arithmetic > one.memory:
            told = _(
                "A step takes %(least)s ms or more for its arithmetic; its %(weights)s GB of weights and"
                " %(cache)s GB of cache at %(bandwidth)s GB/s would take less."
            )
        words = told % {
            "least": written(one.least),
            "weights": show(one.weights * per_card * cards, 2),
            "cache": show(one.cache * per_card * cards, 2),
            "bandwidth": f"{gpu.bandwidth_gb_s * cards:,.0f}",
        }
        rate = _("At most %(each)s tokens a second for each sequence, %(all)s in all.")
        words += " " + rate % {"each": f"{one.tokens / one.batch:,.0f}", "all": f"{one.tokens:,.0f}"}
        if not self.fits(values, values["batch"]):
            words += " " + _("It does not fit into that memory.")
        return words

    def numbers(self, values: Values) -> dict[str, Any]:
        one = self.here(values)
        names = ("weights", "cache", "arithmetic", "least")
        return {
            "ms_at_least": {name: getattr(one, name) for name in names},
            "fits": self.fits(values, one.batch),
        }


def published(gpu: Gpu) -> SafeString:
    """What is taken from data sheets, and from whose copy of them."""
    told = _("%(gpu)s: %(bandwidth)s GB/s and %(peak)s dense TFLOP/s in 16 bits, by %(source)s.")
    words = told % {
        "gpu": gpu.title,
        "bandwidth": f"{gpu.bandwidth_gb_s:,.0f}",
        "peak": f"{gpu.tflops_16bit:,.0f}",
        "source": gpu.source,
    }
    return format_html('<p class="panel-note">{}</p>', words)


def written(ms: float) -> str:
    """Three digits."""
    return f"{ms:,.3g}" if ms < 1000 else f"{ms:,.0f}"


# -- the roof ------------------------------------------------------------------------------------------------

SHAPES = ("llama-2-7b", "llama-3-8b", "llama-2-70b", "falcon-7b")
LATENT = "deepseek-v2"
LENGTH = 8192  # of a sequence; no intensity of attention depends on it
REACH = (0.25, 4096.0)  # FLOP per byte, from where to where the roof is drawn
TERA = 1e12


def sharing(slug: str) -> str:
    """How many query heads read one key, in words."""
    mixer = model_of(slug).layers[0].mixers[0]
    if isinstance(mixer, LatentAttention):
        return _("MLA, %(heads)d heads") % {"heads": mixer.heads}
    if not isinstance(mixer, Attention):
        raise TypeError(f"{slug} has no attention in its first layer")
    return _("%(group)d to a key") % {"group": mixer.heads // mixer.kv_heads}


@lru_cache(maxsize=1024)
def intensity(slug: str, batch: int) -> Intensities:
    return intensities(model_of(slug), Workload(length=LENGTH, batch=batch))


class Roof(Plotted):
    name = "roof"
    title = gettext_lazy("The figure: a step under the roof")
    controls = (
        Menu("card", gettext_lazy("Accelerator"), "h100-sxm", CARDS),
        Choice("shape", gettext_lazy("Model"), "llama-3-8b", titled(SHAPES)),
        Number("rows", gettext_lazy("Sequences at once"), 1, 1, MOST_SEQUENCES, is_log=True),
    )

    def found(self, values: Values) -> tuple[Gpu, Intensities]:
        return gpus()[values["card"]], intensity(values["shape"], values["rows"])

    def plot(self, values: Values) -> Plot:
        gpu, here = self.found(values)
        corners = sorted({REACH[0], gpu.ridge, max(REACH[1], 4 * gpu.ridge)})
        points = [
            (_("the roof"), corners, True),
            (_("products with weights"), [here.weights], False),
            (_("attention over the cache"), [here.cache], False),
        ]
        series = [
            Series(
                name, [(x, gpu.attainable(x) / TERA) for x in places], is_joined=joined, has_marks=not joined
            )
            for name, places, joined in points
        ]
        x = Axis(_("FLOP per byte"), lambda n: f"{n:g}", is_log=True)
        return series, x, Axis(_("TFLOP/s, at most"), lambda n: f"{n:g}", is_log=True)

    def table(self, values: Values) -> SafeString:
        gpu, here = self.found(values)
        rows = [
            (
                name,
                show(one, 1),
                show(round(gpu.attainable(one) / TERA, 1), 1),
                percent(gpu.attainable(one), gpu),
            )
            for name, one in (
                (_("products with weights"), here.weights),
                (_("attention over the cache"), here.cache),
                (_("the ridge"), gpu.ridge),
            )
        ]
        caption = _("Of peak arithmetic, what memory can feed")
        heads = (_("part"), _("FLOP per byte"), _("TFLOP/s, at most"), _("of peak"))
        others = [
            (models()[slug].title, sharing(slug), show(intensity(slug, values["rows"]).cache, 1))
            for slug in (*SHAPES, LATENT)
        ]
        models_caption = _("Attention of a step, whatever the sequences and tokens")
        return format_html(
            "<div>{}{}{}</div>",
            grids.framed(parts.listing(caption, heads, rows), caption),
            grids.framed(
                parts.listing(models_caption, (_("model"), _("query heads"), _("FLOP per byte")), others),
                models_caption,
            ),
            published(gpu),
        )

    def sentence(self, values: Values) -> str:
        gpu, here = self.found(values)
        return _(
            "%(weights)s FLOP per byte in products with weights, %(cache)s in attention; arithmetic becomes"
            " the limit at %(ridge)s. Memory can feed %(first)s and %(second)s of the peak."
        ) % {
            "weights": show(here.weights, 1),
            "cache": show(here.cache, 1),
            "ridge": show(gpu.ridge, 0),
            "first": percent(gpu.attainable(here.weights), gpu),
            "second": percent(gpu.attainable(here.cache), gpu),
        }

    def numbers(self, values: Values) -> dict[str, Any]:
        gpu, here = self.found(values)
        return {"flop_per_byte": {"weights": here.weights, "cache": here.cache, "ridge": gpu.ridge}}

    def lab(self, values: Values) -> list[tuple[str, str]]:
        """One head of keys with as many of queries as share it, for the engine of steps like this."""
        mixer = model_of(values["shape"]).layers[0].mixers[0]
        if not isinstance(mixer, Attention):
            raise TypeError(f"{values['shape']} has no keys of its own")
        group = mixer.heads // mixer.kv_heads
        sizes = {
            "batch": 1, "heads": group, "kv_heads": 1, "q_len": 1, "kv_len": 1024, "head_dim": 64, "seed": 1,
        }  # fmt: skip
        pairs = [("engine", "decode"), ("source", "seed")]
        return [*pairs, *((name, str(size)) for name, size in sizes.items())]


def tera(attained: float) -> str:
    return show(round(attained / TERA, 1), 1)


def percent(attained: float, gpu: Gpu) -> str:
    share = 100 * attained / (gpu.tflops_16bit * TERA)
    return _("%(share)s\u202f%%") % {"share": f"{share:.3g}"}


FIGURES = (PaceFigure(), Roof())
