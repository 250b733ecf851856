"""What share of a GPU's arithmetic each FlashAttention is reported to use: papers' figures over what the GPU
can do, by `kernels.sizing.gpus`."""

from dataclasses import dataclass
from typing import Any

from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from concepts.figures import Links, grids, parts
from concepts.figures.controls import Choice
from concepts.figures.explorable import Explorable, Values
from concepts.figures.online_softmax import drawn
from kernels.sizing.gpus import Gpu, gpus


@dataclass(frozen=True)
class Reported:
    """`tera`: operations a second in 10¹², or `share` where a paper gives that alone, from … to."""

    title: str
    gpu_slug: str
    source: str
    tera: float | None = None
    share: tuple[float, float] | None = None
    bits: int = 16

    @property
    def gpu(self) -> Gpu:
        return gpus()[self.gpu_slug]

    @property
    def shares(self) -> tuple[float, float]:
        """Of the peak, from … to."""
        if self.share is not None:
            return self.share
        reached = self.gpu.utilisation((self.tera or 0.0) * 1e12, self.bits)
        return reached, reached

    @property
    def teras(self) -> tuple[float, float]:
        peak = (self.gpu.peak(self.bits) or 0.0) / 1e12
        low, high = self.shares
        return low * peak, high * peak


REPORTED = (
    Reported("FlashAttention", "a100-80-sxm", "Dao, 2024", share=(0.25, 0.40)),
    Reported("FlashAttention-2", "a100-80-sxm", "Dao, 2024", tera=230),
    Reported("FlashAttention-2", "h100-sxm", "Shah et al., 2024", share=(0.35, 0.35)),
    Reported("FlashAttention-3, FP16", "h100-sxm", "Shah et al., 2024 (version 1)", tera=740),
    Reported("FlashAttention-3, BF16", "h100-sxm", "Shah et al., 2024", tera=840),
    Reported("FlashAttention-3, FP8", "h100-sxm", "Shah et al., 2024 (version 1)", tera=1200, bits=8),
    Reported("FlashAttention-3, FP8", "h100-sxm", "Shah et al., 2024", tera=1300, bits=8),
    Reported("FlashAttention-4, BF16", "b200", "Zadouri et al., 2026", tera=1613),
)
ALL = "all"


class Utilisation(Explorable):
    name = "utilisation"
    title = gettext_lazy("The figure: how much of a GPU each version uses")
    controls = (
        Choice(
            "on",
            gettext_lazy("GPU"),
            ALL,
            [
                (ALL, gettext_lazy("all")),
                *((slug, gpus()[slug].title) for slug in ("a100-80-sxm", "h100-sxm", "b200")),
            ],
        ),
    )

    def shown(self, values: Values) -> list[Reported]:
        return [one for one in REPORTED if values["on"] in (ALL, one.gpu_slug)]

    def view(self, values: Values, links: Links) -> SafeString:
        rows = [
            (
                one.title,
                format_html("{}", one.gpu.title),
                format_html("{}<b>{} %</b>", parts.bar(one.shares[1]), between(one.shares, 100, 1)),
                between(one.teras),
                format_html("{}", one.source),
            )
            for one in self.shown(values)
        ]
        caption = _("Of the peak of dense matrices, in as many bits: as reported, the best of each paper")
        heads = ("", _("GPU"), _("of the peak"), _("TFLOP/s"), _("source"))
        return format_html(
            '<div class="utilisation">{}</div>', grids.framed(parts.listing(caption, heads, rows), caption)
        )

    def sentence(self, values: Values) -> str:
        shown = self.shown(values)
        best = max(shown, key=lambda one: one.shares[1])
        return _(
            "The fullest: %(title)s on %(gpu)s, %(share)s %% of its peak in %(bits)d bits (%(source)s)."
        ) % {
            "title": best.title,
            "gpu": best.gpu.title,
            "share": between(best.shares, 100, 1),
            "bits": best.bits,
            "source": best.source,
        }

    def numbers(self, values: Values) -> dict[str, Any]:
        return {
            "reported": [
                {"title": one.title, "gpu": one.gpu_slug, "share": one.shares, "tflops": one.teras}
                for one in self.shown(values)
            ]
        }

    def picture(self, values: Values) -> str:
        lines = [[one.gpu.title[:5], f"{between(one.shares, 100, 1)}%"] for one in self.shown(values)]
        return drawn(self.sentence(values), _("Of the peak"), lines)

    def lab(self, values: Values) -> list[tuple[str, str]]:
        return [("engine", "flash")]


def between(ends: tuple[float, float], factor: float = 1.0, digits: int = 0) -> str:
    low, high = (f"{end * factor:,.{digits}f}".removesuffix(".0") for end in ends)
    return low if low == high else f"{low}–{high}"


FIGURE = Utilisation()
