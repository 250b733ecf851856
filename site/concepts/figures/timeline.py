"""When what was first public: papers by date, each with the page that explains it and a run of its idea.

The date of a paper is the month of its first version on arXiv, which its identifier says.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from concepts.figures import Links
from concepts.figures.controls import Choice, Text
from concepts.figures.explorable import Values
from concepts.figures.tables import Column, Table, page_named, ways

ALL = "all"
THREADS = {
    "attention": gettext_lazy("attention itself"),
    "positions": gettext_lazy("positions and length"),
    "cost": gettext_lazy("cost and serving"),
    "beyond": gettext_lazy("beyond full attention"),
}
SEED = {"source": "seed"}
KEPT = ["out", "weights", "held", "row_error"]


@dataclass(frozen=True)
class Event:
    """A paper: its key in the bibliography, its identifier at arXiv; `said` is the year often given."""

    key: str
    name: str
    arxiv: str
    published: str
    thread: str
    idea: Text
    page: str
    run: Mapping[str, Any] = field(default_factory=dict)
    said: str = ""

    @property
    def date(self) -> str:
        """Year and month: 2017-06."""
        return f"20{self.arxiv[:2]}-{self.arxiv[2:4]}"


def drawn(q_len: int, head_dim: int, **more: Any) -> dict[str, Any]:
    return {**SEED, "q_len": q_len, "head_dim": head_dim, "heads": 1, **more}


EVENTS = (
    Event(
        "bahdanau2015", "Additive attention", "1409.0473", "ICLR 2015", "attention",
        gettext_lazy("A decoder that looks back at all of the sentence in the place of one vector of it."),
        "scoring", drawn(12, 8, engine="scoring"),
    ),
    Event(
        "graves2014", "Neural Turing Machines", "1410.5401", "arXiv", "attention",
        gettext_lazy("A memory that is read by content: weights from the cosine of a key with each row."),
        "scoring", drawn(12, 8, engine="scoring", option_score="cosine"),
    ),
    Event(
        "xu2015", "Show, Attend and Tell", "1502.03044", "ICML 2015", "attention",
        gettext_lazy("Attention over the regions of a picture, soft, or hard with one region drawn."),
        "soft-hard-local", drawn(12, 8, engine="hard", option_draws=64, returns=["out", "weights", "chosen"]),
        said="2016",
    ),
    Event(
        "luong2015", "Global and local attention", "1508.04025", "EMNLP 2015", "attention",
        gettext_lazy("Dot-product and bilinear scores, and a window that moves along the sentence."),
        "soft-hard-local", drawn(32, 16, causal="on", window_left=4),
    ),
    Event(
        "vaswani2017", "The Transformer", "1706.03762", "NeurIPS 2017", "attention",
        gettext_lazy("Attention alone: many scaled heads, no recurrence."),
        "transformer", drawn(32, 8, heads=8, distribution="peaked"),
    ),
    Event(
        "shaw2018", "Relative positions", "1803.02155", "NAACL 2018", "positions",
        gettext_lazy("A learned vector for each distance, in the scores and in the values."), "positions",
    ),
    Event(
        "dai2019", "Transformer-XL", "1901.02860", "ACL 2019", "positions",
        gettext_lazy("Keys and values of the segment before are kept, and positions are relative."),
        "positions",
    ),
    Event(
        "yang2019", "XLNet", "1906.08237", "NeurIPS 2019", "positions",
        gettext_lazy("Words predicted in drawn orders, on Transformer-XL's positions and segments."),
        "gpt-and-bert",
    ),
    Event(
        "shazeer2019", "Multi-query attention", "1911.02150", "arXiv", "cost",
        gettext_lazy("All heads share one key and value: the cache shrinks by their number."),
        "mqa-gqa-mla", drawn(32, 16, heads=8, kv_heads=1, causal="on"), said="2022",
    ),
    Event(
        "kitaev2020", "Reformer", "2001.04451", "ICLR 2020", "beyond",
        gettext_lazy("Only keys that fall into the same bucket of a hash are looked at."), "reformer",
        drawn(48, 16, engine="lsh", distribution="peaked", returns=["out", "weights", "recall"]),
    ),
    Event(
        "beltagy2020", "Longformer", "2004.05150", "arXiv", "beyond",
        gettext_lazy("A window, and a few tokens that see all and are seen by all."), "sparse",
        drawn(32, 16, pattern="longformer", pattern_window=6, pattern_global="[0]"),
    ),
    Event(
        "katharopoulos2020", "Linear attention", "2006.16236", "ICML 2020", "beyond",
        gettext_lazy("Features in the place of the softmax, and a state in the place of the cache."),
        "linear-attention", drawn(32, 16, engine="linear", heads=2, causal="on", returns=["out", "state"]),
        said="2023–24",
    ),
    Event(
        "zaheer2020", "BigBird", "2007.14062", "NeurIPS 2020", "beyond",
        gettext_lazy("A window, global blocks, and blocks at random."), "sparse",
        drawn(32, 16, pattern="bigbird", pattern_window=1, pattern_block=4),
    ),
    Event(
        "choromanski2021", "Performer", "2009.14794", "ICLR 2021", "beyond",
        gettext_lazy("Random features whose expected product is the exponential."), "performer",
        drawn(32, 16, engine="performer", heads=2, option_num_features=64, option_trials=6),
    ),
    Event(
        "su2021", "Rotary positions", "2104.09864", "arXiv; Neurocomputing 2024", "positions",
        gettext_lazy("Queries and keys are turned, and the score depends on the distance."), "rope",
        drawn(16, 16, rope="half", causal="on", returns=["out", "scores", "weights"]),
    ),
    Event(
        "press2022", "ALiBi", "2108.12409", "ICLR 2022", "positions",
        gettext_lazy("A penalty for distance, steeper in some heads than in others."), "alibi",
        drawn(24, 16, heads=4, causal="on", alibi_slopes="auto"), said="2019",
    ),
    Event(
        "dao2022", "FlashAttention", "2205.14135", "NeurIPS 2022", "cost",
        gettext_lazy("Exact attention in tiles that never leave the chip."), "flash-attention",
        drawn(64, 32, engine="flash", causal="on"), said="2023",
    ),
    Event(
        "ainslie2023", "Grouped queries", "2305.13245", "EMNLP 2023", "cost",
        gettext_lazy("Groups of heads share, and a trained model can be converted."), "mqa-gqa-mla",
        drawn(32, 16, heads=8, kv_heads=2, causal="on"),
    ),
    Event(
        "chen2023", "Position interpolation", "2306.15595", "arXiv", "positions",
        gettext_lazy("Positions squeezed into the range that a model has seen."), "long-context",
        drawn(32, 64, rope="half", rope_scaling="linear", scaling_factor=4),
    ),
    Event(
        "dao2023", "FlashAttention-2", "2307.08691", "ICLR 2024", "cost",
        gettext_lazy("The same with less else to do: 73 % of an A100's arithmetic."), "flash-attention",
        drawn(64, 32, engine="flash")
    ),
    Event(
        "kwon2023", "PagedAttention", "2309.06180", "SOSP 2023", "cost",
        gettext_lazy("The cache in pages, as an operating system keeps memory."), "paged-attention",
        drawn(4, 32, engine="paged", kv_len=60, option_page_size=16),
    ),
    Event(
        "xiao2024", "Attention sinks", "2309.17453", "ICLR 2024", "cost",
        gettext_lazy("A window and the first four tokens, for texts without an end."), "streaming-sinks",
        drawn(48, 16, engine="cache", option_budget=12, option_sinks=4, returns=KEPT),
    ),
    Event(
        "gu2024", "Mamba", "2312.00752", "COLM 2024", "beyond",
        gettext_lazy("A state of fixed size whose gates depend on the input."), "state-space",
        {"engine": "scan", "heads": 2, "q_len": 16},
    ),
    Event(
        "lieber2024", "Jamba", "2403.19887", "arXiv", "beyond",
        gettext_lazy("One layer of attention to seven of Mamba."), "hybrids",
    ),
    Event(
        "deepseekv2", "Multi-head latent attention", "2405.04434", "arXiv", "cost",
        gettext_lazy("One latent of each token, from which all heads make keys and values."), "mqa-gqa-mla",
        {"engine": "mla", "heads": 8, "q_len": 16, "causal": "on"},
    ),
    Event(
        "dao2024", "Mamba-2", "2405.21060", "ICML 2024", "beyond",
        gettext_lazy("State-space models and masked linear attention are two forms of one matrix."),
        "state-space", {"engine": "scan", "heads": 2, "q_len": 16},
    ),
    Event(
        "shah2024", "FlashAttention-3", "2407.08608", "NeurIPS 2024", "cost",
        gettext_lazy("For Hopper: loads, products and exponentials at the same time, and 8 bits."),
        "flash-attention", drawn(64, 32, engine="flash"),
    ),
    Event(
        "zadouri2026", "FlashAttention-4", "2603.05451", "arXiv", "cost",
        gettext_lazy("For Blackwell, where the exponentials have become the bottleneck."), "flash-attention",
        drawn(64, 32, engine="flash"),
    ),
)  # fmt: skip


class Timeline(Table[Event]):
    name = "timeline"
    title = gettext_lazy("The figure: what was first public when")
    caption = gettext_lazy("Papers on attention by the month in which they were first public")
    columns = (
        Column("date", gettext_lazy("first public"), lambda row: row.date),
        Column("idea", gettext_lazy("the idea"), lambda row: str(row.idea)),
        Column("said", gettext_lazy("often dated"), lambda row: row.said or None),
        Column("published", gettext_lazy("published"), lambda row: row.published),
    )
    sorted_at_first = ("date", False)
    extra = (Choice("thread", gettext_lazy("About"), ALL, ((ALL, gettext_lazy("all")), *THREADS.items())),)

    def all_rows(self, values: Values) -> Sequence[Event]:
        return [one for one in EVENTS if values["thread"] in (ALL, one.thread)]

    def named(self, row: Event) -> str:
        return row.name

    def first_head(self) -> str:
        return _("paper")

    def head(self, row: Event, links: Links) -> SafeString:
        """Its page; beneath it where it is cited in full, and a run."""
        references = reverse("concepts:concept", args=["references"])
        paper = f"{references}#ref-{row.key}", _("The paper on %(name)s") % {"name": row.name}, _("paper")
        return format_html("{}{}", page_named(row.page, row.name), ways(paper, *self.run_of(row, links)))

    def run_of(self, row: Event, links: Links) -> list[tuple[str, str, str]]:
        if not row.run:
            return []
        address = f"{links.lab}?{urlencode(row.run, doseq=True)}"
        return [(address, _("Run %(name)s") % {"name": row.name}, _("run"))]


FIGURE = Timeline()
