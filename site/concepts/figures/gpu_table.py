"""The accelerators that are known by name, in one table, and how fast each could at best write a token."""

from collections.abc import Sequence
from dataclasses import dataclass

from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from concepts.figures import Links
from concepts.figures.controls import Choice, Menu, Number
from concepts.figures.explorable import Values
from concepts.figures.tables import Column, Table
from kernels.sizing.gpus import Gpu, gpus
from kernels.sizing.memory import Workload, per_gpu_bytes
from kernels.sizing.models import models, read_model
from kernels.sizing.roofline import bound
from kernels.sizing.storage import weight_format

MEBIBYTE = 2**20


@dataclass(frozen=True)
class Card:
    """A row: an accelerator, and the least milliseconds in which it writes a token of the chosen model; None
    where the model does not fit it."""

    gpu: Gpu
    token_ms: float | None


def cards(slug: str, weights: str, length: int) -> list[Card]:
    """Each alone, with one text of `length` tokens."""
    model, load = read_model(slug).model, Workload(length, weights=weight_format(weights))
    needed = per_gpu_bytes(model, load)
    return [
        Card(gpu, 1e3 * bound(model, load, gpu).seconds if needed <= gpu.memory_bytes else None)
        for gpu in gpus().values()
    ]


def chip_mib(gpu: Gpu) -> float | None:
    return None if gpu.shared_bytes is None else gpu.shared_bytes / MEBIBYTE


class GpuTable(Table[Card]):
    name = "gpus"
    title = gettext_lazy("The figure: what accelerators hold, move and compute")
    caption = gettext_lazy("Accelerators: memory, bandwidth, arithmetic, and memory on the chip")
    columns = (
        Column("memory", gettext_lazy("memory"), lambda row: row.gpu.memory_gb, note="GB"),
        Column("bandwidth", gettext_lazy("bandwidth"), lambda row: row.gpu.bandwidth_gb_s, note="GB/s"),
        Column(
            "token",
            gettext_lazy("a token, at least"),
            lambda row: row.token_ms,
            lambda row: "–" if row.token_ms is None else f"{row.token_ms:.2f}",
            note="ms",
        ),
        Column("tf16", gettext_lazy("16 bits"), lambda row: row.gpu.tflops_16bit, note="TFLOP/s"),
        Column("tf8", gettext_lazy("8 bits"), lambda row: row.gpu.tflops_8bit, note="TFLOP/s"),
        Column(
            "ridge",
            gettext_lazy("ridge"),
            lambda row: row.gpu.ridge,
            lambda row: f"{row.gpu.ridge:.0f}",
            note=gettext_lazy("FLOP a byte"),
        ),
        Column("sms", gettext_lazy("multi\u00adprocessors"), lambda row: row.gpu.sms),
        Column("l1", gettext_lazy("L1 and shared, each"), lambda row: row.gpu.shared_kb_per_sm, note="KB"),
        Column("shared", gettext_lazy("of it shared, at most"), lambda row: row.gpu.max_shared_kb, note="KB"),
        Column("chip", gettext_lazy("L1 and shared, all"), lambda row: chip_mib(row.gpu), note="MiB"),
        Column("l2", "L2", lambda row: row.gpu.l2_mb, note="MB"),
        Column("note", gettext_lazy("remark"), lambda row: row.gpu.note or None),
        Column("source", gettext_lazy("source"), lambda row: row.gpu.source),
    )
    sorted_at_first = ("token", False)
    extra = (
        Menu(
            "model",
            gettext_lazy("Model that writes a token"),
            "llama-3-8b",
            tuple((slug, one.title) for slug, one in models().items()),
        ),
        Choice(
            "weights",
            gettext_lazy("Bits of a weight"),
            "bfloat16",
            (("bfloat16", "16"), ("int8", "8"), ("int4", "4")),
        ),
        Number("n", gettext_lazy("Tokens, n"), 4096, 1, 1_048_576, is_log=True),
    )

    def all_rows(self, values: Values) -> Sequence[Card]:
        return cards(values["model"], values["weights"], values["n"])

    def named(self, row: Card) -> str:
        return row.gpu.title

    def first_head(self) -> str:
        return _("accelerator")

    def head(self, row: Card, links: Links) -> SafeString:
        """Its name asks what fits on it."""
        page = reverse("concepts:concept", args=["inference-memory"])
        return format_html('<a href="{}?gpu={}#fit">{}</a>', page, row.gpu.slug, row.gpu.title)


FIGURE = GpuTable()
