"""What our engines make of the cases of ONNX: read from docs/onnx.md, which a test compares
with what the engines do.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from django.conf import settings
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from concepts.figures import Links
from concepts.figures.controls import Choice
from concepts.figures.explorable import Values
from concepts.figures.tables import Column, Table

PAGE = settings.ROOT / "docs" / "onnx.md"
PASSED, REFUSED = "passed", "refused: "


@dataclass(frozen=True)
class Case:
    """Of each engine what came of it: passed, or what it refused."""

    name: str
    verdicts: Mapping[str, str]

    @property
    def is_refused(self) -> bool:
        return any(one != PASSED for one in self.verdicts.values())


@cache
def cases() -> tuple[Case, ...]:
    lines = [
        [cell.strip() for cell in line.strip("|\n").split("|")]
        for line in PAGE.read_text().splitlines()
        if line.startswith("|")
    ]
    (_case, *engines), _rule, *rows, _sums = lines
    return tuple(Case(name, dict(zip(engines, found, strict=True))) for name, *found in rows)


def engines() -> tuple[str, ...]:
    return tuple(cases()[0].verdicts)


def passes(engine: str) -> int | None:
    """How many of the cases; None for an engine to which they were not given."""
    if engine not in engines():
        return None
    return sum(case.verdicts[engine] == PASSED for case in cases())


def verdict(engine: str) -> Column[Case]:
    return Column(engine, engine, lambda row: row.verdicts[engine])


class Conformance(Table[Case]):
    name = "onnx"
    title = gettext_lazy("The figure: ONNX's cases, engine by engine")
    caption = gettext_lazy("Cases of ONNX's Attention operator, and what each engine made of them")
    prefix = "case-"
    columns = tuple(verdict(engine) for engine in engines())
    extra = (
        Choice(
            "case-show",
            gettext_lazy("Cases"),
            "refused",
            (("refused", gettext_lazy("that an engine refuses")), ("all", gettext_lazy("all"))),
        ),
    )

    def all_rows(self, values: Values) -> Sequence[Case]:
        return [case for case in cases() if values["case-show"] == "all" or case.is_refused]

    def named(self, row: Case) -> str:
        return row.name

    def first_head(self) -> str:
        return _("case")

    def head(self, row: Case, links: Links) -> SafeString:
        """Its words, so that a long name breaks between them."""
        return format_html("{}", row.name.replace("_", " "))

    def has(self, row: Case, word: str) -> bool:
        return word in row.name.replace("_", " ") or super().has(row, word)


FIGURE = Conformance()
