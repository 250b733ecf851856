"""Long tables to look things up in: narrowed by words, sorted by any column, each row with its source.

A table of its own is a subclass that says its columns and its rows; a row is whatever the columns read.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from concepts.figures import Links, grids, parts
from concepts.figures.controls import Control, Find, Menu, Switch, Text
from concepts.figures.explorable import Explorable, Values
from concepts.figures.numbers import show

Row = TypeVar("Row")
Key = float | str | None
IN_ORDER = "given"  # the order of the table itself
MANY = 20  # columns from which a sheet of paper has no room for words in one piece
SENTENCE = 24  # characters from which a cell is as wide as a sentence needs
BAR, LINE, NAMES = 320.0, 20.0, 190.0  # of the picture: the longest bar, a line, room for names


@dataclass(frozen=True)
class Column(Generic[Row]):
    """`key` of a row is what it is sorted by and what programs are told; None, where there is nothing, comes
    last whichever way. `shown` is how it is written, `note` what is written small behind the head."""

    name: str
    label: Text
    key: Callable[[Row], Key]
    shown: Callable[[Row], str] | None = None
    note: Text = ""

    def cell(self, row: Row) -> str:
        if self.shown is not None:
            return self.shown(row)
        key = self.key(row)
        if key is None:
            return "–"
        return key if isinstance(key, str) else number(key)

    @property
    def title(self) -> str:
        """Its label with its unit, where there is no room below it."""
        return f"{self.label} ({self.note})" if self.note else str(self.label)


def number(value: float) -> str:
    """With commas, and no more decimals than it takes to tell rows apart."""
    if value == int(value):
        return f"{int(value):,}"
    return f"{value:,.0f}" if value >= 1000 else show(value, 1 if value >= 100 else 2)


class Table(Explorable, Generic[Row]):
    """See the module."""

    columns: Sequence[Column[Row]]
    caption: Text
    extra: Sequence[Control[Any]] = ()
    #: the column that it opens sorted by, and whether from the largest down
    sorted_at_first = (IN_ORDER, False)
    #: before the names of its parameters, where another table is on its page
    prefix = ""
    parts = frozenset({""})

    @property
    def controls(self) -> Sequence[Control[Any]]:  # type: ignore[override]
        options = [(IN_ORDER, gettext_lazy("as it stands")), *((one.name, one.label) for one in self.columns)]
        sort, down = self.sorted_at_first
        return (
            Find(f"{self.prefix}find", gettext_lazy("Rows with these words"), ""),
            Menu(f"{self.prefix}sort", gettext_lazy("Sorted by"), sort, options),
            Switch(f"{self.prefix}down", gettext_lazy("from the largest down"), down),
            *self.extra,
        )

    # --- What a table says ------------------------------------------------------------------------

    @abstractmethod
    def all_rows(self, values: Values) -> Sequence[Row]:
        """Every row, in the table's own order."""

    @abstractmethod
    def named(self, row: Row) -> str:
        """What a row is of."""

    @abstractmethod
    def head(self, row: Row, links: Links) -> SafeString:
        """Its first cell, with what it leads to."""

    def has(self, row: Row, word: str) -> bool:
        """Whether it is found by this word, in lower case."""
        cells = (self.named(row), *(one.cell(row) for one in self.columns))
        return any(word in cell.casefold() for cell in cells)

    # --- The rest follows ---------------------------------------------------------------------------

    def rows(self, values: Values) -> Sequence[Row]:
        """Those that are looked for, sorted."""
        words = values[f"{self.prefix}find"].casefold().split()
        found = [row for row in self.all_rows(values) if all(self.has(row, word) for word in words)]
        column = self.sorted_by(values)
        if column is None:
            return found[::-1] if values[f"{self.prefix}down"] else found
        key = column.key
        there = [row for row in found if key(row) is not None]
        there.sort(key=lambda row: order(key(row)), reverse=values[f"{self.prefix}down"])
        return [*there, *(row for row in found if key(row) is None)]

    def sorted_by(self, values: Values) -> Column[Row] | None:
        return next((one for one in self.columns if one.name == values[f"{self.prefix}sort"]), None)

    def view(self, values: Values, links: Links) -> SafeString:
        rows = self.rows(values)
        texts = {one.name for one in self.columns if any(isinstance(one.key(row), str) for row in rows)}
        heads = [self._column_head(one, values, links, one.name in texts) for one in self.columns]
        body = [
            format_html(
                '<tr><th scope="row">{}</th>{}</tr>',
                self.head(row, links),
                parts.join([cell(one.cell(row), one.name in texts) for one in self.columns]),
            )
            for row in rows
        ]
        caption = str(self.caption)
        if not body:
            body = [
                format_html('<tr><td colspan="{}">{}</td></tr>', 1 + len(heads), _("No row has these words."))
            ]
        table = format_html(
            '<table class="listing long{}"><caption class="visually-hidden">{}</caption><thead><tr>'
            '<th scope="col">{}</th>{}</tr></thead><tbody>{}</tbody></table>',
            " many" if len(heads) > MANY else "",
            caption,
            self.first_head(),
            parts.join(heads),
            parts.join(body),
        )
        return grids.framed(table, caption)

    def first_head(self) -> str:
        return _("name")

    def _column_head(self, column: Column[Row], values: Values, links: Links, is_text: bool) -> SafeString:
        """A link that sorts by it, or the other way round where it is sorted by already."""
        is_sorted = values[f"{self.prefix}sort"] == column.name
        down = is_sorted and not values[f"{self.prefix}down"]
        direction = ' aria-sort="descending"' if values[f"{self.prefix}down"] else ' aria-sort="ascending"'
        return format_html(
            '<th scope="col" class="{}"{}><a href="{}">{}</a>{}</th>',
            "text" if is_text else "num",
            SafeString(direction) if is_sorted else "",
            self.address(links, values, **{f"{self.prefix}sort": column.name, f"{self.prefix}down": down}),
            column.label,
            format_html(" <small>{}</small>", column.note) if column.note else "",
        )

    def sentence(self, values: Values) -> str:
        rows = self.rows(values)
        count = ngettext("%(count)d row", "%(count)d rows", len(rows)) % {"count": len(rows)}
        column = self.sorted_by(values)
        known = [row for row in rows if column and column.key(row) is not None]
        if column is None or not known:
            return _("%(count)s.") % {"count": count}
        return _("%(count)s, by %(column)s: from %(first)s (%(low)s) to %(last)s (%(high)s).") % {
            "count": count,
            "column": column.title,
            "first": self.named(known[0]),
            "low": column.cell(known[0]),
            "last": self.named(known[-1]),
            "high": column.cell(known[-1]),
        }

    def numbers(self, values: Values) -> dict[str, Any]:
        return {
            "rows": [
                {"name": self.named(row), **{one.name: one.key(row) for one in self.columns}}
                for row in self.rows(values)
            ]
        }

    def picture(self, values: Values) -> str:
        """Bars of the column that it is sorted by, or else of the first that has numbers; where none has, the
        words of the first."""
        rows = self.rows(values)
        numeric = [one for one in self.columns if any(is_number(one.key(row)) for row in rows)]
        chosen = self.sorted_by(values)
        column = chosen if chosen in numeric else next(iter(numeric), self.columns[0])
        height = LINE * (2 + max(len(rows), 1))
        title = format_html('<text x="8" y="22" font-weight="600" fill="#1e1a24">{}</text>', column.title)
        return parts.drawing(
            NAMES + BAR + 110,
            height,
            self.sentence(values),
            parts.join([title, *self._bars(column, rows)]),
            size=12,
        )

    def _bars(self, column: Column[Row], rows: Sequence[Row]) -> list[SafeString]:
        sizes = [size(column.key(row)) for row in rows]
        unit = BAR / (max(sizes, default=0.0) or 1.0)
        return [
            format_html(
                '<text x="{}" y="{}" text-anchor="end" fill="#1e1a24">{}</text>'
                '<rect x="{}" y="{}" width="{}" height="12" fill="#73349e"/>'
                '<text x="{}" y="{}" fill="#57515f">{}</text>',
                NAMES - 8,
                LINE * line,
                self.named(row),
                NAMES,
                LINE * line - 10,
                f"{unit * length:.1f}",
                f"{NAMES + unit * length + 6:.1f}",
                LINE * line,
                column.cell(row),
            )
            for line, (row, length) in enumerate(zip(rows, sizes, strict=True), 2)
        ]


def page_named(slug: str, name: str) -> SafeString:
    """What a row is of: a link to the page that explains it, where that is written."""
    from concepts.pages import current_book  # the book holds the tables

    if slug not in current_book().pages:
        return format_html("{}", name)
    return format_html('<a href="{}">{}</a>', reverse("concepts:concept", args=[slug]), name)


def ways(*links: tuple[str, str, str]) -> SafeString:
    """Where a row leads, beneath its name: (address, what a screen reader says, the word to be seen)."""
    items = [format_html('<a href="{}" aria-label="{}">{}</a>', *link) for link in links]
    return format_html('<span class="ways">{}</span>', parts.join(items))


def cell(words: str, is_text: bool) -> SafeString:
    css = "num" if not is_text else ("text sentence" if len(words) > SENTENCE else "text")
    return format_html('<td class="{}">{}</td>', css, words)


def is_number(key: Key) -> bool:
    return isinstance(key, int | float)


def size(key: Key) -> float:
    """Of a bar: none for what is no number."""
    return float(key) if isinstance(key, int | float) else 0.0


def order(key: Key) -> tuple[int, float, str]:
    """Numbers before words, where a column has both."""
    return (0, float(key), "") if isinstance(key, int | float) else (1, 0.0, str(key).casefold())
