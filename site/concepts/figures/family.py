"""The first Transformer and what came of it: which stacks a model kept, and what it changed in a layer; and
what the first one's training took."""

from dataclasses import dataclass
from typing import Any

from django.utils.functional import Promise
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from concepts.figures import Links, blocks, grids, parts
from concepts.figures.blocks import Block, Diagram, Wire
from concepts.figures.controls import Choice, Menu, Number
from concepts.figures.explorable import Explorable, Values
from concepts.figures.numbers import show, show_power
from concepts.figures.scales import ink, sequential
from kernels.sizing.original import GPUS, ORIGINALS, P100_TFLOPS, counted_flops, params, timed_flops

Text = str | Promise
BOTH, ENCODER, DECODER = "both", "encoder", "decoder"
KEPT = {
    BOTH: gettext_lazy("encoder and decoder"),
    ENCODER: gettext_lazy("encoder alone"),
    DECODER: gettext_lazy("decoder alone, without cross-attention"),
}
POST, PRE = gettext_lazy("after the addition"), gettext_lazy("before the sublayer")
UNSAID = gettext_lazy("not published")


@dataclass(frozen=True)
class Member:
    """From the model's own paper. `row` is its place in its column, from the top."""

    title: str
    year: int
    kept: str
    row: int
    norm: Text
    network: Text
    positions: Text
    more: Text = ""


MEMBERS = {
    "transformer": Member("Transformer", 2017, BOTH, 0, POST, "ReLU", gettext_lazy("sinusoids")),
    "gpt": Member("GPT", 2018, DECODER, 1, POST, "GELU", gettext_lazy("learned")),
    "bert": Member("BERT", 2018, ENCODER, 1, POST, "GELU", gettext_lazy("learned")),
    "t5": Member(
        "T5", 2019, BOTH, 2, PRE, "ReLU", gettext_lazy("a bias by distance"),
        gettext_lazy("The norm has no bias and takes no mean away."),
    ),
    "gpt2": Member("GPT-2", 2019, DECODER, 2, PRE, "GELU", gettext_lazy("learned")),
    "gpt3": Member(
        "GPT-3", 2020, DECODER, 3, PRE, "GELU", gettext_lazy("learned"),
        gettext_lazy("Every second layer attends sparsely."),
    ),
    "palm": Member(
        "PaLM", 2022, DECODER, 4, PRE, "SwiGLU", "RoPE",
        gettext_lazy("Attention and network side by side, both added at once; one head of keys and values."),
    ),
    "llama": Member(
        "LLaMA", 2023, DECODER, 5, PRE, "SwiGLU", "RoPE",
        gettext_lazy("The norm is RMSNorm, which takes no mean away."),
    ),
    "gemini": Member(
        "Gemini", 2023, DECODER, 6, UNSAID, UNSAID, UNSAID,
        gettext_lazy("Its report says “Transformer decoders” and little more."),
    ),
}  # fmt: skip
COLUMNS = {ENCODER: 4.0, BOTH: 140.0, DECODER: 290.0}
WIDE, HIGH, PITCH, TOP = 124.0, 34.0, 52.0, 30.0


class Family(Explorable):
    name = "family"
    title = gettext_lazy("The figure: the family of the Transformer")
    controls = (
        Menu(
            "model", gettext_lazy("Model"), "llama", tuple((slug, one.title) for slug, one in MEMBERS.items())
        ),
    )

    def member(self, values: Values) -> Member:
        return MEMBERS[values["model"]]

    def view(self, values: Values, links: Links) -> SafeString:
        hrefs = {slug: self.address(links, values, model=slug) for slug in MEMBERS}
        drawn = blocks.svg(tree(values["model"], hrefs), _("Models by what they kept, oldest above"))
        return format_html('<div class="split"><div>{}</div>{}</div>', drawn, self.table(values))

    def table(self, values: Values) -> SafeString:
        one, first = self.member(values), MEMBERS["transformer"]
        rows = [
            (_("stacks"), *(str(KEPT[each.kept]) for each in (first, one))),
            (_("norm"), *(str(each.norm) for each in (first, one))),
            (_("network"), *(str(each.network) for each in (first, one))),
            (_("positions"), *(str(each.positions) for each in (first, one))),
        ]
        marked = [
            (name, format_html("{}", old), format_html("<b>{}</b>" if new != old else "{}", new))
            for name, old, new in rows
        ]
        caption = _("What changed; bold is what differs")
        heads = ("", f"{first.title}, {first.year}", f"{one.title}, {one.year}")
        table = grids.framed(parts.listing(caption, heads, marked), caption)
        return format_html('<div>{}<p class="panel-note">{}</p></div>', table, one.more)

    def sentence(self, values: Values) -> str:
        one = self.member(values)
        words = _("%(title)s, %(year)d: %(kept)s; norm %(norm)s.")
        if one.norm == UNSAID:
            words = _("%(title)s, %(year)d: %(kept)s; where its norm stands is not published.")
        return words % {"title": one.title, "year": one.year, "kept": KEPT[one.kept], "norm": one.norm}

    def numbers(self, values: Values) -> dict[str, Any]:
        one = self.member(values)
        return {
            "title": one.title,
            "year": one.year,
            "stacks": one.kept,
            "norm": str(one.norm),
            "network": str(one.network),
            "positions": str(one.positions),
        }

    def picture(self, values: Values) -> str:
        return blocks.document(tree(values["model"], dict.fromkeys(MEMBERS, "")), self.sentence(values))


def tree(chosen: str, hrefs: dict[str, str]) -> Diagram:
    """A column for each way to keep stacks, time downwards."""
    boxes = {
        slug: Block(
            COLUMNS[one.kept],
            TOP + PITCH * one.row,
            WIDE,
            HIGH,
            f"{one.title}, {one.year}",
            "main" if slug == "transformer" else "",
            hrefs[slug],
            is_lit=slug == chosen,
        )
        for slug, one in MEMBERS.items()
    }
    heads = {ENCODER: _("Encoder"), BOTH: _("Both"), DECODER: _("Decoder")}
    notes = [Block(COLUMNS[kept], 0, WIDE, TOP - 6, text, "note") for kept, text in heads.items()]
    first = boxes["transformer"]
    wires = [descent(first, box) for box in boxes.values() if box is not first]
    height = TOP + PITCH * max(one.row for one in MEMBERS.values()) + HIGH + 6
    return Diagram(COLUMNS[DECODER] + WIDE + 4, height, [*notes, *boxes.values()], wires)


def descent(first: Block, one: Block) -> Wire:
    """From the first of all to one of the others, and from none to the next below it: that a model is younger
    does not mean that it came of the one above."""
    x, y = one.middle
    if one.x > first.x:
        trunk = one.x - 14
        path = f"M{first.x + WIDE:g} {first.middle[1]:g}H{trunk:g}V{y:g}H{one.x - 5:g}"
        return Wire(path, (one.x, y), "right")
    start = f"{x:g} {first.y + HIGH:g}" if one.x == first.x else f"{first.x:g} {first.middle[1]:g}H{x:g}"
    return Wire(f"M{start}V{one.y - 5:g}", (x, one.y), "down")


# -- what the first one took ---------------------------------------------------------------------------------


class Bill(Explorable):
    name = "bill"
    title = gettext_lazy("The figure: what the first Transformers took to train")
    controls = (
        Choice("run", gettext_lazy("Model"), "base", (("base", "base"), ("big", "big"))),
        Number("gpus", gettext_lazy("GPUs"), GPUS, 1, 4096, is_log=True),
        Number("hours", gettext_lazy("Hours"), 12, 0.1, 10_000, 0.1, is_log=True),
        Number("rate", gettext_lazy("TFLOP/s of one"), P100_TFLOPS, 0.1, 5000, 0.1, is_log=True),
    )

    def hours(self, values: Values) -> float:
        """Of one GPU."""
        return float(values["gpus"] * values["hours"])

    def timed(self, values: Values) -> float:
        return timed_flops(values["gpus"], values["hours"], values["rate"])

    def share(self, values: Values) -> float:
        """Of what these GPUs could have done, what the training needs."""
        return counted_flops(ORIGINALS[values["run"]]) / self.timed(values)

    def view(self, values: Values, links: Links) -> SafeString:
        return format_html('<div class="split">{}{}</div>', self.table(values), self.catalogue(values, links))

    def table(self, values: Values) -> SafeString:
        one = ORIGINALS[values["run"]]
        rows = [
            (_("hours of one GPU"), show(self.hours(values), 1)),
            (_("what they can do in that time, FLOP"), show_power(self.timed(values))),
            (_("what the paper says, FLOP"), show_power(one.flops)),
            (_("a GPU’s rate by that, TFLOP/s"), show(one.flops / self.hours(values) / 3600e12, 2)),
            (_("what training needs, 6·N·D, FLOP"), show_power(counted_flops(one))),
            (_("of what they can do"), _("%(share)s %%") % {"share": show(100 * self.share(values), 1)}),
        ]
        caption = _("The %(run)s model, on these GPUs") % {"run": values["run"]}
        return grids.framed(parts.listing(caption, ("", ""), rows), caption)

    def catalogue(self, values: Values, links: Links) -> SafeString:
        rows = []
        for slug, one in ORIGINALS.items():
            mine = {"run": slug, "gpus": GPUS, "hours": one.hours, "rate": P100_TFLOPS}
            name = format_html('<a href="{}">{}</a>', self.address(links, mine), slug)
            rows.append(
                (name, f"{one.steps:,}", show(one.hours, 1), f"{params(one):,}", show_power(one.flops),
                 show(one.bleu, 1))
            )  # fmt: skip
        caption = _("As in the paper, on 8 P100; a link sets the figure")
        heads = (_("model"), _("steps"), _("hours"), _("parameters, counted"), _("FLOP"), "BLEU")
        return grids.framed(parts.listing(caption, heads, rows), caption)

    def sentence(self, values: Values) -> str:
        words = _(
            "%(hours)s hours of one GPU; in that time they can do %(able)s FLOP, and training the %(run)s"
            " model needs %(needs)s, %(share)s %% of it."
        )
        if self.share(values) > 1:
            words = _(
                "%(hours)s hours of one GPU can do %(able)s FLOP: too few, since training the %(run)s model"
                " needs %(needs)s."
            )
        return words % {
            "hours": show(self.hours(values), 1),
            "able": show_power(self.timed(values)),
            "run": values["run"],
            "needs": show_power(counted_flops(ORIGINALS[values["run"]])),
            "share": show(100 * self.share(values), 1),
        }

    def numbers(self, values: Values) -> dict[str, Any]:
        one = ORIGINALS[values["run"]]
        return {
            "gpu_hours": self.hours(values),
            "timed_flops": self.timed(values),
            "counted_flops": counted_flops(one),
            "parameters": params(one),
        }

    def picture(self, values: Values) -> str:
        white = sequential(0)
        cells = (
            show(self.hours(values), 1),
            show_power(self.timed(values)),
            show(100 * self.share(values), 1),
        )
        rows = [[(text, white.hex, ink(white).hex)] for text in cells]
        return grids.picture(self.sentence(values), [(_("GPU-hours, FLOP, per cent"), rows)])


FIGURES = (Family(), Bill())
