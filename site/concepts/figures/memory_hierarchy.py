"""Fast memory and slow memory: the levels of a GPU, what attention moves between them, and how the saving
grows with what fits on the chip; by `kernels.flash.accesses`.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from concepts.figures import Links, lineplot, parts, pyramid
from concepts.figures.controls import Choice, Number, Switch
from concepts.figures.explorable import Explorable, Values
from concepts.figures.lineplot import Axis, Series
from concepts.figures.numbers import show, show_power
from concepts.figures.plotted import Plot, Plotted
from concepts.figures.pyramid import Level
from concepts.figures.quadratic import in_bytes
from kernels.flash.accesses import (
    flops,
    matrix_bytes,
    saving,
    standard_accesses,
    standard_transfers,
    tile_rows,
    tiled_accesses,
    tiled_transfers,
)
from kernels.sizing.gpus import Gpu, gpus

ITEM = 2  # bytes of a number
KB = 1024
SLUGS = ("v100-sxm2-32", "a100-80-sxm", "h100-sxm", "b200", "rtx-4090", "l4")
USUAL_GPU = "a100-80-sxm"
GPUS = [(slug, gpus()[slug].title) for slug in SLUGS]
WORDS = {
    "Q, K, V read": gettext_lazy("Q, K, V read"),
    "S written": gettext_lazy("scores written"),
    "S read": gettext_lazy("scores read"),
    "P written": gettext_lazy("weights written"),
    "P read": gettext_lazy("weights read"),
    "K, V read again": gettext_lazy("K, V read again"),
    "O written": gettext_lazy("output written"),
    "LSE written": gettext_lazy("log-sum-exp written"),
}
RUN_LENGTH = 512  # tokens at most, of those that the lab is given
RUN_ROWS = (16, 32, 64, 128, 256)


def times(factor: float) -> str:
    return _("×\u202f%(factor)s") % {"factor": show(factor, 2)}


# -- what attention moves ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Moved:
    """One head of attention: its bytes by what is moved, and how long that and its arithmetic must take."""

    transfers: dict[str, int]
    flops: int
    gpu: Gpu

    @property
    def bytes(self) -> int:
        return sum(self.transfers.values())

    @property
    def memory_seconds(self) -> float:
        return self.bytes / self.gpu.bandwidth

    @property
    def compute_seconds(self) -> float:
        return self.flops / (self.gpu.tflops_16bit * 1e12)

    @property
    def intensity(self) -> float:
        """Operations to a byte."""
        return self.flops / self.bytes

    @property
    def waits(self) -> bool:
        """Whether memory is the bound."""
        return self.memory_seconds > self.compute_seconds


class Traffic(Explorable):
    name = "traffic"
    title = gettext_lazy("The figure: what one head of attention moves")
    controls = (
        Number("n", gettext_lazy("Tokens, n"), 4096, 64, 131_072, is_log=True),
        Number("d", gettext_lazy("Numbers in a query, d"), 64, 16, 256, is_log=True),
        Number("kb", gettext_lazy("On chip, for tiles"), 100, 8, 256, is_log=True, unit=gettext_lazy("KB")),
        Choice("gpu", gettext_lazy("GPU"), USUAL_GPU, GPUS),
        Switch("cached", gettext_lazy("Read K and V again from the L2 cache, if they fit"), False),
    )

    def rows(self, values: Values) -> int:
        """Of a tile of queries."""
        return min(tile_rows(values["d"], values["kb"] * KB / ITEM), int(values["n"]))

    def both(self, values: Values) -> tuple[Moved, Moved]:
        """One operation after another, and in tiles."""
        n, d, gpu = values["n"], values["d"], gpus()[values["gpu"]]
        tiled = tiled_transfers(n, d, self.rows(values), item=ITEM)
        if values["cached"] and 2 * n * d * ITEM <= (gpu.l2_mb or 0) * KB**2:
            tiled["K, V read again"] = 0
        return (
            Moved(standard_transfers(n, d, item=ITEM), flops(n, d), gpu),
            Moved(tiled, flops(n, d), gpu),
        )

    def view(self, values: Values, links: Links) -> SafeString:
        standard, tiled = self.both(values)
        most = max(*standard.transfers.values(), *tiled.transfers.values())
        return format_html(
            '<div class="split traffic">{}{}</div>{}',
            self.listing(_("One operation after another"), standard, most),
            self.listing(_("In tiles of %(rows)d queries") % {"rows": self.rows(values)}, tiled, most),
            self.bounds(standard, tiled),
        )

    def listing(self, title: str, moved: Moved, most: int) -> SafeString:
        rows = [
            (str(WORDS[name]), parts.bar(count / most), in_bytes(count))
            for name, count in moved.transfers.items()
        ]
        return parts.listing(
            title, ("", "", _("bytes")), rows, (_("all"), parts.EMPTY, in_bytes(moved.bytes))
        )

    def bounds(self, standard: Moved, tiled: Moved) -> SafeString:
        both = (standard, tiled)
        rows = [
            (_("moving takes at least"), *(seconds(one.memory_seconds) for one in both)),
            (_("arithmetic takes at least"), *(seconds(one.compute_seconds) for one in both)),
            (_("operations per byte"), *(show(one.intensity, 1) for one in both)),
            (_("waits for"), *(_("memory") if one.waits else _("arithmetic") for one in both)),
        ]
        caption = _("On this GPU: %(bandwidth)s GB/s, balanced at %(ridge)s operations per byte") % {
            "bandwidth": f"{standard.gpu.bandwidth_gb_s:,.0f}",
            "ridge": show(standard.gpu.ridge, 0),
        }
        table = parts.listing(caption, ("", _("one by one"), _("in tiles")), rows)
        return format_html('<div class="outputs">{}</div>', table)

    def sentence(self, values: Values) -> str:
        standard, tiled = self.both(values)
        return _(
            "One operation after another moves %(standard)s, of which %(scores)s are scores and weights:"
            " %(factor)s times the %(tiled)s that tiles move. The first waits for %(first)s, the second for"
            " %(second)s."
        ) % {
            "standard": in_bytes(standard.bytes),
            "scores": in_bytes(4 * matrix_bytes(values["n"], item=ITEM)),
            "tiled": in_bytes(tiled.bytes),
            "factor": show(standard.bytes / tiled.bytes, 1),
            "first": _("memory") if standard.waits else _("arithmetic"),
            "second": _("memory") if tiled.waits else _("arithmetic"),
        }

    def numbers(self, values: Values) -> dict[str, Any]:
        told = {
            name: {
                "bytes": one.transfers,
                "memory_seconds": one.memory_seconds,
                "compute_seconds": one.compute_seconds,
                "intensity": one.intensity,
            }
            for name, one in zip(("standard", "tiled"), self.both(values), strict=True)
        }
        return {**told, "rows": self.rows(values), "flops": flops(values["n"], values["d"])}

    def picture(self, values: Values) -> str:
        """Over lengths, since a file has room for no more than that."""
        lengths = np.geomspace(64, 131_072, 12).astype(int).tolist()
        moved = [(n, self.both({**values, "n": n})) for n in lengths]
        series = [
            Series(name, [(n, both[which].bytes) for n, both in moved], has_marks=False)
            for which, name in enumerate((_("one operation after another"), _("in tiles")))
        ]
        x = Axis(_("tokens"), partial(show, digits=0), is_log=True)
        return lineplot.document(series, x, Axis(_("bytes"), in_bytes, is_log=True), self.sentence(values))

    def lab(self, values: Values) -> list[tuple[str, str]]:
        """Tiles as the kernel has them: a power of two."""
        length = min(values["n"], RUN_LENGTH)
        rows = max((rows for rows in RUN_ROWS if rows <= self.rows(values)), default=RUN_ROWS[0])
        shape = {"batch": 1, "heads": 1, "q_len": length, "head_dim": values["d"], "seed": 1}
        return [
            ("engine", "flash"),
            ("source", "seed"),
            *((name, str(size)) for name, size in shape.items()),
            ("option_block_m", str(rows)),
            ("option_block_n", str(rows)),
        ]


def seconds(value: float) -> str:
    """In microseconds, or milliseconds from one on."""
    return (
        _("%(n)s ms") % {"n": show(value * 1e3, 2)}
        if value >= 1e-3
        else _("%(n)s µs") % {"n": show(value * 1e6, 1)}
    )


# -- the levels of a GPU -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Storage:
    """A level: `size` in bytes, and as it is called."""

    name: str
    size: float
    text: str
    note: str

    @property
    def tokens(self) -> int:
        """Of how many the scores of one head fit."""
        return int((self.size / ITEM) ** 0.5)


class Pyramid(Explorable):
    name = "levels"
    title = gettext_lazy("The figure: the memories of a GPU")
    controls = (
        Choice("chip", gettext_lazy("GPU"), USUAL_GPU, GPUS),
        Number("tokens", gettext_lazy("Tokens"), 4096, 64, 131_072, is_log=True),
    )

    def levels(self, values: Values) -> list[Storage]:
        """From the nearest to the farthest."""
        gpu = gpus()[values["chip"]]
        kb, sms, l2 = gpu.shared_kb_per_sm or 0, gpu.sms or 0, gpu.l2_mb or 0
        counts = {"sms": sms, "kb": kb, "bandwidth": f"{gpu.bandwidth_gb_s:,.0f}"}
        return [
            Storage(_("on one multiprocessor"), kb * KB, f"{kb}\u00a0KB", _("shared memory and L1")),
            Storage(
                _("on all together"),
                gpu.shared_bytes or 0,
                f"{(gpu.shared_bytes or 0) / KB**2:g}\u00a0MiB",
                _("%(sms)d × %(kb)d KB") % counts,
            ),
            Storage(_("L2 cache"), l2 * KB**2, f"{l2:g}\u00a0MB", _("shared by all")),
            Storage(
                _("memory"), gpu.memory_bytes, f"{gpu.memory_gb:g}\u00a0GB", _("%(bandwidth)s GB/s") % counts
            ),
        ]

    def drawn(self, values: Values) -> list[Level]:
        return [Level(one.size, (one.name, f"{one.text}, {one.note}")) for one in self.levels(values)]

    def view(self, values: Values, links: Links) -> SafeString:
        need = matrix_bytes(values["tokens"], item=ITEM)
        rows = [
            (one.name, one.text, f"{one.tokens:,}", _("yes") if need <= one.size else _("no"))
            for one in self.levels(values)
        ]
        holds = _("holds those of %(n)s") % {"n": f"{values['tokens']:,}"}
        heads = ("", _("size"), _("tokens that fit"), holds)
        table = parts.listing(_("Scores of one head, in 16 bits"), heads, rows)
        return format_html(
            '<div class="split"><div>{}</div>{}</div>',
            pyramid.svg(self.drawn(values), self.sentence(values)),
            table,
        )

    def sentence(self, values: Values) -> str:
        gpu, need = gpus()[values["chip"]], matrix_bytes(values["tokens"], item=ITEM)
        shared = gpu.shared_bytes or 1
        return _(
            "All %(sms)s multiprocessors together have %(shared)s on chip; the memory has %(memory)s times as"
            " much. Scores of one head for %(tokens)s tokens take %(need)s."
        ) % {
            "sms": gpu.sms,
            "shared": f"{shared / KB**2:g} MiB",
            "memory": f"{gpu.memory_bytes / shared:,.0f}",
            "tokens": f"{values['tokens']:,}",
            "need": in_bytes(need),
        }

    def numbers(self, values: Values) -> dict[str, Any]:
        return {
            "levels": {one.name: one.size for one in self.levels(values)},
            "scores": matrix_bytes(values["tokens"], item=ITEM),
        }

    def picture(self, values: Values) -> str:
        return pyramid.document(self.drawn(values), self.sentence(values))


# -- how the saving grows with the chip ----------------------------------------------------------------------


class Accesses(Plotted):
    name = "accesses"
    title = gettext_lazy("The figure: how much is moved, by what fits on the chip")
    controls = (
        Number("length", gettext_lazy("Tokens, n"), 4096, 64, 131_072, is_log=True),
        Number("width", gettext_lazy("Numbers in a query, d"), 64, 16, 256, is_log=True),
        Number(
            "room",
            gettext_lazy("On chip, M"),
            51_200,
            64,
            33_554_432,
            is_log=True,
            unit=gettext_lazy("numbers"),
        ),
    )

    def within(self, values: Values) -> int:
        """M, from a row to all four tiles as high as the head is long."""
        n, d = values["length"], values["width"]
        return int(min(max(values["room"], d), 4 * n * d))

    def counted(self, values: Values, room: float) -> int:
        """Numbers that tiles move, LSE left out."""
        n, d = values["length"], values["width"]
        moved = tiled_transfers(n, d, min(tile_rows(d, room), n), item=1)
        return sum(moved.values()) - moved["LSE written"]

    def plot(self, values: Values) -> Plot:
        n, d, here = values["length"], values["width"], self.within(values)
        rooms = np.geomspace(d, 4 * n * d, 49).astype(int).tolist()
        proved = [m for m in rooms if m <= n * d]
        series = [
            Series(_("nd + n², one by one"), [(m, standard_accesses(n, d)) for m in rooms], has_marks=False),
            Series(_("n²d²/M"), [(m, tiled_accesses(n, d, m)) for m in proved], has_marks=False),
            Series(_("counted, in tiles"), [(m, self.counted(values, m)) for m in rooms], has_marks=False),
            Series(_("this M"), [(here, self.counted(values, here))], is_joined=False),
        ]
        x = Axis(_("numbers on chip, M"), partial(show_power, digits=1), is_log=True)
        return series, x, Axis(_("numbers moved"), partial(show_power, digits=1), is_log=True)

    def table(self, values: Values) -> SafeString:
        n, room = values["length"], self.within(values)
        rows = []
        for d in sorted({64, 128, 256, values["width"]}):
            standard = sum(standard_transfers(n, d, item=1).values())
            counted = standard / self.counted({**values, "width": d}, room)
            rows.append(
                (str(d), str(min(tile_rows(d, room), n)), times(saving(d, room, item=1)), times(counted))
            )
        heads = (_("d"), _("rows of a tile"), _("M/d²"), _("saved, counted"))
        return parts.listing(_("With this M and n"), heads, rows)

    def sentence(self, values: Values) -> str:
        n, d, room = values["length"], values["width"], self.within(values)
        standard = sum(standard_transfers(n, d, item=1).values())
        return _(
            "With %(room)s numbers on chip, M/d² is %(ratio)s; counted, one operation after another moves"
            " %(counted)s times what tiles move."
        ) % {
            "room": f"{room:,}",
            "ratio": show(saving(d, room, item=1), 1),
            "counted": show(standard / self.counted(values, room), 1),
        }

    def numbers(self, values: Values) -> dict[str, Any]:
        n, d, room = values["length"], values["width"], self.within(values)
        return {
            "standard": standard_accesses(n, d),
            "theorem": tiled_accesses(n, d, min(room, n * d)),
            "counted": self.counted(values, room),
        }


TRAFFIC = Traffic()
FIGURES = (TRAFFIC, Pyramid(), Accesses())
