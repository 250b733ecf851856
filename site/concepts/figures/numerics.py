"""Where implementations of attention go wrong: each mistake with a number that shows it, what is right, the
page that explains it, and runs of what is right.

The numbers are computed when they are asked for, by `kernels.traps`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any
from urllib.parse import urlencode

from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from concepts.figures import Links, parts
from concepts.figures.controls import Choice, Text
from concepts.figures.explorable import Values
from concepts.figures.numbers import show
from concepts.figures.tables import LINE, NAMES, Column, Table, page_named, ways
from kernels.traps import TRAPS, Outcome
from lab.form import presets
from lab.form.presets.traps import TRAPS as PRESETS

ALL = "all"
KINDS = {
    "empty": gettext_lazy("nothing to see"),
    "range": gettext_lazy("overflow"),
    "rounding": gettext_lazy("rounding"),
    "masks": gettext_lazy("masks"),
    "convention": gettext_lazy("conventions"),
    "order": gettext_lazy("order of steps"),
    "tiles": gettext_lazy("tiles and memory"),
}
BY_NAME = {preset.name: preset.state for preset in PRESETS}
MIDDLE = 300.0  # of the picture: where what is right begins


@dataclass(frozen=True)
class Trap:
    """`name` is that in `kernels.traps`, whose number is an `example`; `presets` are those of the lab, `run`
    a form of its own where there is none; `source` a report in the bibliography."""

    name: str
    title: Text
    kind: str
    wrong: Text
    right: Text
    example: Text
    page: str
    presets: tuple[str, ...] = ()
    run: Mapping[str, Any] = field(default_factory=dict)
    source: str = ""

    @property
    def outcome(self) -> Outcome:
        return outcome(self.name)

    @property
    def runs(self) -> list[Mapping[str, Any]]:
        return [*(BY_NAME[name] for name in self.presets), *([self.run] if self.run else [])]


@cache
def outcome(name: str) -> Outcome:
    return TRAPS[name]()


ROWS = (
    Trap(
        "masked_row", gettext_lazy("A row that sees nothing"), "empty",
        gettext_lazy("Softmax of nothing is 0/0; with large negative numbers in the place of −∞ it is the "
                     "mean of what is forbidden."),
        gettext_lazy("Output 0, log-sum-exp −∞."),
        gettext_lazy("the output"), "masks", ("masked-row",), source="torch103963",
    ),
    Trap(
        "empty_tile", gettext_lazy("A tile without a key to see"), "empty",
        gettext_lazy("The maximum so far is −∞, and −∞ − (−∞) is not a number. A 0 that is kept in its place "
                     "loses whole heads later."),
        gettext_lazy("Subtract 0 in that tile, and carry −∞ on as the maximum."),
        gettext_lazy("the output after the next tile"), "online-softmax", ("masked-tile",),
        source="flash2082",
    ),
    Trap(
        "sentinel", gettext_lazy("A large number for −∞"), "range",
        gettext_lazy("Scores below it exist. All exponentials become 0, and the row is lost."),
        gettext_lazy("Start from −∞ itself."),
        gettext_lazy("the sum of a row near −2,000,000, from −10,000"), "online-softmax", ("sentinel",),
        source="flashinfer4267",
    ),
    Trap(
        "alignment", gettext_lazy("Which corner causal means"), "masks",
        gettext_lazy("With fewer queries than keys, a mask from the top left hides the past from the newest "
                     "query."),
        gettext_lazy("With a cache, align at the bottom right; say which of both, always."),
        gettext_lazy("keys of 4 that the last of 2 queries sees"), "masks", ("bottom-right", "top-left",
        "more-queries"), source="flashreadme",
    ),
    Trap(
        "window", gettext_lazy("A window, off by one"), "masks",
        gettext_lazy("A count of keys is handed to a function that takes a distance."),
        gettext_lazy("Both ends count: W tokens, itself among them, are a distance of W − 1."),
        gettext_lazy("keys in “a window of 4”"), "soft-hard-local", ("window-of-one",),
        source="transformers39408",
    ),
    Trap(
        "softcap_mask", gettext_lazy("Mask, then softcap"), "order",
        gettext_lazy("A cap makes −∞ finite, and what is forbidden gets some weight."),
        gettext_lazy("First the cap, then the mask."),
        gettext_lazy("the weight of a forbidden key"), "scoring", ("softcap-mask",), source="onnx7865",
    ),
    Trap(
        "tanh", gettext_lazy("tanh made of exponentials"), "range",
        gettext_lazy("In float32 both exponentials overflow beyond 88, and ∞/∞ is not a number."),
        gettext_lazy("1 − 2/(exp(2x) + 1), which ends at 1."),
        gettext_lazy("tanh 100"), "scoring", ("softcap-large",), source="vllm56578",
    ),
    Trap(
        "softcap_base", gettext_lazy("Softcap in powers of two"), "order",
        gettext_lazy("log₂ e is multiplied in before the cap, which is not linear."),
        gettext_lazy("Cap the natural logit, and multiply afterwards."),
        gettext_lazy("the weight of the larger of two keys"), "scoring",
        run={**presets.drawn(16, 16, engine="flash"), "softcap": "2", "distribution": "peaked",
             "returns": ["out", "scores", "softcapped_scores", "weights"]},
    ),
    Trap(
        "softcap_alibi", gettext_lazy("Softcap after a bias"), "order",
        gettext_lazy("The cap flattens the penalty for distance: far keys all cost the same."),
        gettext_lazy("The cap, then the bias, then the mask."),
        gettext_lazy("a logit at distance 8"), "alibi", ("softcap-alibi",),
    ),
    Trap(
        "alibi_anchor", gettext_lazy("From where ALiBi counts"), "convention",
        gettext_lazy("slope · key gives the same weights as slope · (key − query), and another log-sum-exp: "
                     "parts merge wrongly."),
        gettext_lazy("Count from the query."),
        gettext_lazy("the log-sum-exp of eight scores of 0"), "alibi", ("alibi-anchor",),
    ),
    Trap(
        "gqa_order", gettext_lazy("Which heads share"), "convention",
        gettext_lazy("Heads of keys are tiled and not repeated. The shape is right, the pairs are not."),
        gettext_lazy("Neighbours share: query head h reads ⌊h · kv heads / heads⌋."),
        gettext_lazy("which of 2 heads the query head 1 of 4 reads"), "mqa-gqa-mla", ("gqa-order",),
        source="onnx7274",
    ),
    Trap(
        "rope_pairs", gettext_lazy("Which numbers RoPE pairs"), "convention",
        gettext_lazy("Halves where the model was trained on neighbours, or the other way round."),
        gettext_lazy("Say which, always; nothing in the shapes does."),
        gettext_lazy("the second number of (1, 0, 0, 0), turned"), "rope", ("rope-half", "rope-interleaved"),
        source="transformers25199",
    ),
    Trap(
        "lse_base", gettext_lazy("The base of the log-sum-exp"), "convention",
        gettext_lazy("Kernels that compute with powers of two return it to base 2; merged as if it were "
                     "natural, the weights are wrong."),
        gettext_lazy("Natural at every border."),
        gettext_lazy("the log-sum-exp of three zeros"), "online-softmax", ("lse-base",),
        source="flashinfer2113",
    ),
    Trap(
        "fp16_overflow", gettext_lazy("Scores in float16"), "range",
        gettext_lazy("Beyond 65,504 a score is infinite."),
        gettext_lazy("Accumulate in float32, and keep scores there."),
        gettext_lazy("q·k of 800 and 800"), "sdpa-in-code", ("fp16-overflow",),
    ),
    Trap(
        "padded_scale", gettext_lazy("The scale of a padded head"), "tiles",
        gettext_lazy("1/√ of the width of the tile, not of the head. Or a maximum taken before the scale, "
                     "which is the wrong end where the scale is negative."),
        gettext_lazy("The true width; the scale first."),
        gettext_lazy("the scale of a head of 40"), "sqrt-dk", ("odd-dim", "scale-negative", "scale-zero"),
    ),
    Trap(
        "empty_merge", gettext_lazy("Nothing merged with nothing"), "empty",
        gettext_lazy("No queries, no keys, an empty text in a batch, two empty parts: weights 0/0."),
        gettext_lazy("Empty is legal everywhere: output 0, log-sum-exp −∞."),
        gettext_lazy("the output of two empty parts"), "online-softmax", ("no-keys",),
    ),
    Trap(
        "nan_tail", gettext_lazy("Memory that was never written"), "tiles",
        gettext_lazy("The weight behind the end is 0, but 0 · NaN is NaN."),
        gettext_lazy("Read values behind the end as 0, beside masking their scores."),
        gettext_lazy("the output beside an unwritten value"), "kv-cache", ("nan-tail",), source="vllm641",
    ),
    Trap(
        "int32_offset", gettext_lazy("Addresses in 32 bits"), "range",
        gettext_lazy("Token times numbers a token passes 2³¹ and wraps: the kernel reads elsewhere."),
        gettext_lazy("Cast to 64 bits before multiplying. No run here is as large; its kernel casts."),
        gettext_lazy("where token 131,072 of 16,384 numbers begins"), "flash-attention",
        run={**presets.drawn(64, 64, engine="flash"), "heads": "8"}, source="sglang20389",
    ),
    Trap(
        "odd_dim", gettext_lazy("Heads that are no power of two"), "tiles",
        gettext_lazy("A tile of 64 reads a head of 40 and the start of the next row."),
        gettext_lazy("Mask every load and store, along this axis too."),
        gettext_lazy("q·k of 40 ones and 40 ones"), "flash-attention", ("odd-dim",),
    ),
    Trap(
        "ragged_tile", gettext_lazy("Lengths that no tile divides"), "tiles",
        gettext_lazy("Keys behind the end read as 0, and exp 0 is 1: each adds to the sum."),
        gettext_lazy("−∞ behind the end. Test with 97, 113 and 1,023."),
        gettext_lazy("the sum over 113 scores of 0"), "online-softmax", ("odd-lengths",),
    ),
    Trap(
        "narrow_dot", gettext_lazy("Products too narrow"), "tiles",
        gettext_lazy("Matrix units take no fewer than 16 numbers of 16 bits. An interpreter takes fewer, and "
                     "hides it."),
        gettext_lazy("Pad with zeros, and compile what is tested."),
        gettext_lazy("numbers multiplied for a head of 3"), "memory-hierarchy", ("tiny-dim",),
    ),
    Trap(
        "sink_once", gettext_lazy("A sink in every split"), "order",
        gettext_lazy("Keys are cut into splits, and each adds the sink to its sum."),
        gettext_lazy("Add it once, when the splits are merged, on the scale of the logits."),
        gettext_lazy("the sum of the weights, of 64 keys in 4 splits"), "streaming-sinks", ("sinks",),
    ),
    Trap(
        "int8_store", gettext_lazy("A store that wraps"), "rounding",
        gettext_lazy("Stored as int8, a number loses its fraction and then its upper bits."),
        gettext_lazy("Round, then clamp, then store."),
        gettext_lazy("200 as int8"), "kv-compression", ("int8",),
    ),
    Trap(
        "fp8_scale", gettext_lazy("fp8 without a scale"), "rounding",
        gettext_lazy("e4m3 ends at 448: what is larger is cut off or not a number."),
        gettext_lazy("Store x/s. The scale of keys goes into that of the softmax, that of values into the "
                     "output."),
        gettext_lazy("1,000, stored and read"), "kv-compression", ("fp8",), source="micikevicius2022",
    ),
    Trap(
        "splits_pages", gettext_lazy("Splits of pages"), "empty",
        gettext_lazy("Seven pages in five splits are 2, 2, 2, 1 and none. What the last leaves behind is "
                     "merged with the rest."),
        gettext_lazy("An empty split has weight 0 and output 0. Test every number of splits with every "
                     "number of pages."),
        gettext_lazy("the output, where all values are 1"), "paged-attention", ("splits-pages",),
        source="torchtitan3235",
    ),
    Trap(
        "negative_division", gettext_lazy("// and % of negative numbers"), "tiles",
        gettext_lazy("In a kernel they round towards 0, as in C, and not down, as in Python."),
        gettext_lazy("Keep them positive, or clamp first."),
        gettext_lazy("the tile of 16 that holds key −1"), "flash-attention",
        run={**presets.drawn(40, 16, heads="1"), "kv_len": "8", "causal": "on", "option_block_m": "16",
             "option_block_n": "16"}, source="tritonsemantics",
    ),
    Trap(
        "streamed_positions", gettext_lazy("Positions in a stream"), "convention",
        gettext_lazy("Counted in the text, the distance to the first token outgrows all that was trained."),
        gettext_lazy("Count places in the cache."),
        gettext_lazy("distance of token 32 to the first, with room for 8"), "streaming-sinks",
        ("positions-cache", "positions-text"), source="xiao2024",
    ),
)  # fmt: skip


def key(value: float) -> float | str:
    """What JSON can hold."""
    return value if math.isfinite(value) else shown(value)


def shown(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    return f"{int(value):,}".replace("-", "−") if value == int(value) else show(value, 3)


class Numerics(Table[Trap]):
    name = "numerics"
    title = gettext_lazy("The figure: numerical traps")
    caption = gettext_lazy("Mistakes of implementations of attention, and what is right")
    columns = (
        Column("wrong", gettext_lazy("what goes wrong"), lambda row: str(row.wrong)),
        Column("example", gettext_lazy("for example"), lambda row: str(row.example)),
        Column(
            "gives",
            gettext_lazy("mistaken"),
            lambda row: key(row.outcome.wrong),
            lambda row: shown(row.outcome.wrong),
        ),
        Column(
            "should",
            gettext_lazy("right"),
            lambda row: key(row.outcome.right),
            lambda row: shown(row.outcome.right),
        ),
        Column("right", gettext_lazy("what is right"), lambda row: str(row.right)),
        Column("kind", gettext_lazy("kind"), lambda row: str(KINDS[row.kind])),
    )
    extra = (Choice("of", gettext_lazy("Kind"), ALL, ((ALL, gettext_lazy("all")), *KINDS.items())),)

    def all_rows(self, values: Values) -> Sequence[Trap]:
        return [row for row in ROWS if values["of"] in (ALL, row.kind)]

    def named(self, row: Trap) -> str:
        return str(row.title)

    def first_head(self) -> str:
        return _("trap")

    def head(self, row: Trap, links: Links) -> SafeString:
        """The page that explains it, if that is written; beneath it the report, and runs."""
        title = page_named(row.page, str(row.title))
        return format_html("{}{}", title, ways(*self.runs_of(row, links), *self.report_of(row)))

    def runs_of(self, row: Trap, links: Links) -> list[tuple[str, str, str]]:
        many = len(row.runs) > 1
        return [
            (
                f"{links.lab}?{urlencode(run, doseq=True)}",
                _("Run %(number)d of: %(name)s") % {"number": number, "name": row.title}
                if many
                else _("Run: %(name)s") % {"name": row.title},
                _("run %(number)d") % {"number": number} if many else _("run"),
            )
            for number, run in enumerate(row.runs, 1)
        ]

    def report_of(self, row: Trap) -> list[tuple[str, str, str]]:
        if not row.source:
            return []
        references = reverse("concepts:concept", args=["references"])
        said = _("The source on: %(name)s") % {"name": row.title}
        return [(f"{references}#ref-{row.source}", said, _("source"))]

    def picture(self, values: Values) -> str:
        """What each mistake gives beside what is right: sizes so different fit no common scale."""
        rows = self.rows(values)
        heads = _("mistaken"), _("right")
        lines = [(heads[0], heads[1], _("trap"))] + [
            (shown(row.outcome.wrong), shown(row.outcome.right), self.named(row)) for row in rows
        ]
        drawn = [
            format_html(
                '<text x="{}" y="{}" text-anchor="end" fill="#9a3412">{}</text>'
                '<text x="{}" y="{}" text-anchor="end" fill="#1e1a24">{}</text>'
                '<text x="{}" y="{}" fill="#57515f">{}</text>',
                NAMES - 60, LINE * at, wrong, MIDDLE - 20, LINE * at, right, MIDDLE, LINE * at, name,
            )
            for at, (wrong, right, name) in enumerate(lines, 1)
        ]  # fmt: skip
        height = LINE * (len(lines) + 1)
        return parts.drawing(2 * MIDDLE, height, self.sentence(values), parts.join(drawn), size=12)


FIGURE = Numerics()
