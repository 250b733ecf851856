"""What each engine supports, from what it declares (`kernels.registry`), and how many cases of ONNX it
passes.
"""

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from concepts.figures import Links, conformance
from concepts.figures.controls import Menu
from concepts.figures.explorable import Values
from concepts.figures.tables import Column, Table, ways
from kernels.registry import ENGINES, FEATURES, Engine
from lab.form.presets import drawn
from lab.sources.kernels import KERNELS

ANY = "any"
YES = gettext_lazy("yes")
# What an engine is run with, where that is not a few queries and keys.
RUNS: Mapping[str, Mapping[str, Any]] = {
    "decode": {"q_len": "1", "kv_len": "64"},
    "paged": {"q_len": "4", "kv_len": "60", "option_page_size": "16"},
    "mla": {"heads": "8", "causal": "on"},
    "scan": {"heads": "2"},
    "linear": {"heads": "2", "causal": "on"},
    "cache": {"q_len": "48", "option_budget": "12", "option_sinks": "4"},
    "hard": {"option_draws": "64"},
    "lsh": {"q_len": "48", "distribution": "peaked"},
}


def feature(name: str) -> Column[Engine]:
    """As a column of numbers, which is narrow; yes comes before what is not there."""
    return Column(
        f"can-{name}",
        name.replace("_", " "),
        lambda row: True if name in row.features else None,
        lambda row: str(YES) if name in row.features else "–",
    )


def form(engine: str) -> dict[str, Any]:
    """Of the lab: a small run of it."""
    return {**drawn(32, 16, heads="1"), "engine": engine, **RUNS.get(engine, {})}


class Engines(Table[Engine]):
    name = "engines"
    title = gettext_lazy("The figure: engines and what they support")
    caption = gettext_lazy("Engines of the lab, and what each supports")
    columns = (
        Column("count", gettext_lazy("features"), lambda row: len(row.features)),
        Column(
            "onnx",
            gettext_lazy("ONNX"),
            lambda row: conformance.passes(row.name),
            note=gettext_lazy("cases passed"),
        ),
        *(feature(name) for name in FEATURES),
        Column("computes", gettext_lazy("computes"), lambda row: row.computes),
        Column("results", gettext_lazy("results"), lambda row: len(row.returns)),
        Column("dtypes", gettext_lazy("number formats"), lambda row: ", ".join(row.dtypes)),
        Column("devices", gettext_lazy("runs on"), lambda row: ", ".join(row.devices)),
        Column("dim", gettext_lazy("widest head"), lambda row: row.max_head_dim),
        Column("queries", gettext_lazy("most queries"), lambda row: row.max_q_len),
    )
    extra = (
        Menu(
            "needs",
            gettext_lazy("Engines with"),
            ANY,
            ((ANY, gettext_lazy("whatever features")), *FEATURES.items()),
        ),
    )

    def all_rows(self, values: Values) -> Sequence[Engine]:
        return [one for one in ENGINES.values() if values["needs"] in (ANY, *one.features)]

    def named(self, row: Engine) -> str:
        return row.name

    def first_head(self) -> str:
        return _("engine")

    def has(self, row: Engine, word: str) -> bool:
        """Its features in words too, and what it returns."""
        told = (row.title, row.summary, *row.returns, *(FEATURES[name] for name in row.features))
        return any(word in text.casefold() for text in told) or super().has(row, word)

    def head(self, row: Engine, links: Links) -> SafeString:
        """Beneath its name a run, its kernel if that is one of ours, and what it is."""
        run = f"{links.lab}?{urlencode(form(row.name), doseq=True)}"
        source = []
        if row.name in KERNELS:
            said = _("The source of %(name)s") % {"name": row.name}
            source = [(reverse("lab:kernel", args=[row.name]), said, _("source"))]
        return format_html(
            "{}{}<small>{}</small>",
            row.name,
            ways((run, _("Run %(name)s") % {"name": row.name}, _("run")), *source),
            row.title,
        )


FIGURE = Engines()
