"""Query heads that share keys and values: which reads which, what a wrong grouping does, what is stored.

Eight query heads, four tokens, four numbers a head, one decimal each. Shared keys and values are the mean of
those that the heads of a group had of their own, as a model is converted.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from concepts.figures import Links, grids, parts
from concepts.figures.controls import Choice, Number
from concepts.figures.explorable import Explorable, Values
from concepts.figures.numbers import show
from concepts.figures.projections import drawn
from concepts.figures.scales import ink, sequential
from kernels.engines.reference import attend
from kernels.mistakes import expand_groups
from kernels.sizing.kv_cache import token_bytes
from kernels.sizing.layers import Attention, LatentAttention
from kernels.sizing.models import models, read_model
from kernels.sizing.storage import cache_format

HEADS, TOKENS, WIDTH = 8, 4, 4
Q, K, V = (drawn(f"sharing/{name}", HEADS, TOKENS, WIDTH, size=1.2) for name in "qkv")
EXACT = 1e-9  # a difference that is rounding


def pooled(x: np.ndarray, groups: int) -> np.ndarray:
    """x [heads, …] → [groups, …]: the mean of the heads of each group."""
    return np.asarray(x.reshape(groups, len(x) // groups, *x.shape[1:]).mean(axis=1))


def outputs(groups: int, mistake: str | None = None) -> np.ndarray:
    """Of all heads [8, 4, 4], with that many heads of keys and values."""
    k, v = (expand_groups(pooled(x, groups), HEADS, mistake) for x in (K, V))
    each = [attend(*one, scale=WIDTH**-0.5)["out"] for one in zip(Q, k, v, strict=True)]
    return np.stack(each)


def read_by(groups: int, mistake: str | None = None) -> list[int]:
    """Which head of keys and values each query head reads, from 0."""
    return [int(group) for group in expand_groups(np.arange(groups), HEADS, mistake)]


def largest(difference: np.ndarray) -> list[float]:
    """In the output of each head."""
    return [float(x) for x in np.abs(difference).max(axis=(1, 2))]


class Groups(Explorable):
    name = "groups"
    title = gettext_lazy("The figure: eight query heads and what they read")
    controls = (
        Choice(
            "kv",
            gettext_lazy("Heads of keys and values"),
            "2",
            (("8", "8 (MHA)"), ("4", "4 (GQA)"), ("2", "2 (GQA)"), ("1", "1 (MQA)")),
        ),
        Choice(
            "expand",
            gettext_lazy("Expanded to eight by"),
            "right",
            (("right", "repeat_interleave"), ("tiled", "repeat")),
        ),
    )

    def mistake(self, values: Values) -> str | None:
        return None if values["expand"] == "right" else "tiled"

    def readings(self, values: Values) -> tuple[list[int], list[int]]:
        """What is read, and what should be."""
        groups = int(values["kv"])
        return read_by(groups, self.mistake(values)), read_by(groups)

    def errors(self, values: Values) -> list[float]:
        groups = int(values["kv"])
        return largest(outputs(groups, self.mistake(values)) - outputs(groups))

    def view(self, values: Values, links: Links) -> SafeString:
        found, right = self.readings(values)
        diagram = drawing(found, right, int(values["kv"]), self.sentence(values), is_bare=False)
        return format_html('<div class="split"><div>{}</div>{}</div>', diagram, self.table(values))

    def table(self, values: Values) -> SafeString:
        found, right = self.readings(values)
        pooling = largest(outputs(int(values["kv"])) - outputs(HEADS))
        rows = [
            (
                f"q{head}",
                f"kv{reads + 1}" + ("" if reads == should else f" ! (kv{should + 1})"),
                show(error if error > EXACT else 0.0, 2),
                show(change if change > EXACT else 0.0, 2),
            )
            for head, (reads, should, error, change) in enumerate(
                zip(found, right, self.errors(values), pooling, strict=True), 1
            )
        ]
        caption = _("What each query head reads, and by how much its output is off at most")
        heads = (_("head"), _("reads"), _("off by grouping"), _("off by pooling"))
        return grids.framed(parts.listing(caption, heads, rows), caption)

    def sentence(self, values: Values) -> str:
        found, right = self.readings(values)
        count = int(values["kv"])
        wrong = [head for head, pair in enumerate(zip(found, right, strict=True), 1) if pair[0] != pair[1]]
        if wrong:
            told = _(
                "The shapes fit, and no error is raised; but query heads %(heads)s read the wrong group, and"
                " their outputs are off by up to %(error)s."
            )
            error = show(max(self.errors(values)), 2)
            return told % {"heads": ", ".join(map(str, wrong)), "error": error}
        told = _(
            "Each head of keys and values serves %(share)d query heads; the cache is 1/%(share)d of MHA’s."
        )
        if count == HEADS:
            told = _("Every query head has keys and values of its own.")
        elif count == 1:
            told = _("All query heads read one head of keys and values; the cache is 1/%(share)d of MHA’s.")
        text = told % {"share": HEADS // count, "count": count}
        if self.mistake(values):
            text += " " + _("Both ways to expand are the same here: a test of this case finds no bug.")
        return text

    def numbers(self, values: Values) -> dict[str, Any]:
        found, right = self.readings(values)
        return {"reads": found, "should_read": right, "errors": self.errors(values)}

    def picture(self, values: Values) -> str:
        found, right = self.readings(values)
        return drawing(found, right, int(values["kv"]), self.sentence(values), is_bare=True)

    def lab(self, values: Values) -> list[tuple[str, str]]:
        groups = int(values["kv"])
        arrays = {"q": Q, "k": pooled(K, groups), "v": pooled(V, groups)}
        return [
            ("engine", "flash"),
            *((name, json.dumps(np.round(array, 4).tolist())) for name, array in arrays.items()),
        ]


STEP, SIDE, DROP = 56.0, 40.0, 130.0


def drawing(found: list[int], right: list[int], groups: int, label: str, *, is_bare: bool) -> SafeString:
    """Query heads above, heads of keys and values below; a line to what is read, dashed where it is wrong."""
    width = STEP * HEADS
    above = [STEP * (head + 0.5) for head in range(HEADS)]
    below = [width * (group + 0.5) / groups for group in range(groups)]
    colors = {"line": "#57515f", "bad": "#b3251e", "q": "#1459a8", "k": "#a34a06"}
    if not is_bare:
        colors = {"line": "currentColor", "bad": "currentColor", "q": "currentColor", "k": "currentColor"}
    lines = [
        format_html(
            '<path class="{}" d="M{} {}L{} {}" stroke="{}" stroke-width="2"{}/>',
            "reads" if reads == should else "reads bad",
            *(f"{place:g}" for place in (above[head], SIDE, below[reads], DROP)),
            colors["line" if reads == should else "bad"],
            SafeString("") if reads == should else SafeString(' stroke-dasharray="5 4"'),
        )
        for head, (reads, should) in enumerate(zip(found, right, strict=True))
    ]
    boxes = [
        *(box(x, 0, f"q{n}", "q", colors["q"]) for n, x in enumerate(above, 1)),
        *(box(x, DROP, f"kv{n}", "k", colors["k"]) for n, x in enumerate(below, 1)),
    ]
    drawn, height = parts.join([*lines, *boxes]), DROP + SIDE
    if is_bare:
        return parts.drawing(width, height, label, drawn, size=15)
    head = (
        '<svg class="groups" viewBox="0 0 {0} {1}" width="{0}" height="{1}" role="img"'
        ' aria-label="{2}">{3}</svg>'
    )
    return format_html(head, f"{width:g}", f"{height:g}", label, drawn)


def box(x: float, top: float, name: str, css: str, color: str) -> SafeString:
    return format_html(
        '<g class="{}"><rect x="{}" y="{}" width="{}" height="{}" rx="4" fill="none" stroke="{}"'
        ' stroke-width="2"/><text x="{}" y="{}" text-anchor="middle" fill="{}">{}</text></g>',
        css,
        f"{x - SIDE / 2:.1f}",
        f"{top + 2:g}",
        f"{SIDE:g}",
        f"{SIDE - 4:g}",
        color,
        f"{x:.1f}",
        f"{top + SIDE / 2 + 5:g}",
        color,
        name,
    )


# -- what is stored ------------------------------------------------------------------------------------------

STORED = cache_format("bfloat16")
KIB, GIB = 2.0**10, 2.0**30
SLUGS = (
    "llama-7b", "llama-2-70b", "llama-3-8b", "llama-3-70b", "mistral-7b-v0.2",
    "falcon-7b", "falcon-180b", "gemma-2b", "deepseek-v2", "deepseek-v3",
)  # fmt: skip


@dataclass(frozen=True)
class Cached:
    """What a model keeps of a token, in bytes of all layers, 16 bits a number."""

    title: str
    heads: int
    kv_heads: int  # 0: one latent for all
    mine: int
    mha: int
    mqa: int

    def grouped(self, groups: int) -> float:
        """With that many heads of keys and values."""
        return self.mqa * groups

    @property
    def kind(self) -> str:
        if not self.kv_heads:
            return "MLA"
        return {self.heads: "MHA", 1: "MQA"}.get(self.kv_heads, "GQA")


@cache
def cached(slug: str) -> Cached:
    layers = [layer.mixers[0] for layer in read_model(slug).model.layers]
    first = layers[0]
    if not isinstance(first, Attention | LatentAttention):
        raise TypeError(f"{slug} has no attention in its first layer")
    kv_heads = first.kv_heads if isinstance(first, Attention) else 0
    mine = sum(token_bytes(mixer, STORED) for mixer in layers)
    mha, mqa = total(layers, first.heads), total(layers, 1)
    return Cached(models()[slug].title, first.heads, kv_heads, mine, mha, mqa)


def total(layers: Iterable[Any], kv_heads: int) -> int:
    """As plain attention with that many heads of keys and values."""
    return sum(token_bytes(plain(mixer, kv_heads), STORED) for mixer in layers)


def plain(mixer: Attention | LatentAttention, kv_heads: int) -> Attention:
    """The same heads without latents: a key is then what is and what is not rotated, side by side."""
    if isinstance(mixer, LatentAttention):
        return Attention(mixer.heads, kv_heads, mixer.nope_dim + mixer.rope_dim, mixer.v_head_dim)
    return replace(mixer, kv_heads=kv_heads)


class Stored(Explorable):
    name = "stored"
    title = gettext_lazy("The figure: what each way keeps of a text")
    controls = (
        Choice(
            "model",
            gettext_lazy("Model"),
            "llama-2-70b",
            tuple((slug, models()[slug].title) for slug in SLUGS),
        ),
        Number("length", gettext_lazy("Tokens of context"), 4096, 1, 1_048_576, is_log=True),
    )

    def ways(self, values: Values) -> list[tuple[str, float]]:
        """Names and bytes of a token: as MHA, with 8 groups, as MQA, and as it is."""
        one = cached(values["model"])
        grouped = [(_("GQA, 8 heads"), one.grouped(8))] if one.heads % 8 == 0 and one.heads > 8 else []
        mine = _("as it is: %(kind)s") % {"kind": one.kind}
        return [(_("MHA"), one.mha), *grouped, (_("MQA"), one.mqa), (mine, one.mine)]

    def view(self, values: Values, links: Links) -> SafeString:
        return format_html('<div class="split">{}{}</div>', self.table(values), self.catalogue(values, links))

    def table(self, values: Values) -> SafeString:
        ways, most = self.ways(values), max(size for _name, size in self.ways(values))
        rows = [
            (name, parts.bar(size / most), kib(size), show(size * values["length"] / GIB, 2))
            for name, size in ways
        ]
        caption = _("Bytes of keys and values, 16 bits a number")
        heads = (_("way"), "", _("KiB per token"), _("GiB in all"))
        return grids.framed(parts.listing(caption, heads, rows), caption)

    def catalogue(self, values: Values, links: Links) -> SafeString:
        rows = []
        for slug in SLUGS:
            one = cached(slug)
            name = format_html('<a href="{}">{}</a>', self.address(links, values, model=slug), one.title)
            rows.append((name, one.kind, str(one.heads), str(one.kv_heads or "–"), kib(one.mine)))
        caption = _("What models do; a link sets the figure")
        heads = (_("model"), _("way"), _("Q heads"), _("KV heads"), _("KiB per token"))
        return grids.framed(parts.listing(caption, heads, rows), caption)

    def sentence(self, values: Values) -> str:
        one = cached(values["model"])
        told = _(
            "%(model)s keeps %(size)s KiB of each token, %(times)s times less than MHA would: %(all)s GiB of"
            " %(length)s tokens."
        )
        if one.mine == one.mha:
            told = _("%(model)s is MHA: %(size)s KiB of each token, %(all)s GiB of %(length)s tokens.")
        return told % {
            "model": one.title,
            "size": kib(one.mine),
            "times": show(round(one.mha / one.mine, 6), 1),
            "all": show(one.mine * values["length"] / GIB, 2),
            "length": f"{values['length']:,}",
        }

    def numbers(self, values: Values) -> dict[str, Any]:
        return {"bytes_per_token": dict(self.ways(values))}

    def picture(self, values: Values) -> str:
        white = sequential(0)
        rows = [
            [(text, white.hex, ink(white).hex) for text in (name[:5], kib(size))]
            for name, size in self.ways(values)
        ]
        return grids.picture(self.sentence(values), [(_("KiB per token"), rows)])


def kib(size: float) -> str:
    return show(size / KIB, 1)


FIGURES = (Groups(), Stored())
