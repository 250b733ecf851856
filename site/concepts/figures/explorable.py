"""A figure of a few controls and a view that follows from them: the frame that nearly every figure has.

A figure of its own is a subclass that says its controls and what follows from their values: `view` as HTML,
`sentence` in words, `numbers` for programs, `picture` as an SVG that stands alone, and `lab` where the lab
can run it. All of these are pure functions of the values; this module reads them, frames them, keeps
addresses short.
"""

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from django.template.loader import render_to_string
from django.utils.html import format_html
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext as _

from concepts.figures import Links, parts
from concepts.figures.controls import Control, Reading, Text

Values = Mapping[str, Any]
Readings = Mapping[str, Reading[Any]]


class Explorable:
    """See the module. `name` is also the id of the figure's form and the prefix of the ids inside it."""

    name: str
    title: Text
    controls: Sequence[Control[Any]]
    parts = frozenset({"", "run"})
    #: whether the view has cells that are shown by pointing at them (static/js/figures.js)
    has_cells = False

    # --- What a figure says --------------------------------------------------------------------

    def view(self, values: Values, links: Links) -> SafeString:
        """The picture or the tables that follow from the values."""
        raise NotImplementedError

    def sentence(self, values: Values) -> str:
        """What is to be seen, in one sentence: for ears, and for eyes that look for the point."""
        raise NotImplementedError

    def numbers(self, values: Values) -> dict[str, Any]:
        """What was computed, JSON-ready."""
        raise NotImplementedError

    def picture(self, values: Values) -> str:
        """An SVG with colours of its own."""
        raise NotImplementedError

    def lab(self, values: Values) -> list[tuple[str, str]]:
        """Parameters of the lab's form that run these values."""
        return []

    # --- The protocol of figures ---------------------------------------------------------------

    def render(self, params: Mapping[str, str], links: Links, part: str = "") -> str:
        readings = self.read(params)
        if part == "run":
            return self.run_link(readings, links)
        context = {
            "figure": self,
            "links": links,
            "controls": [one.render(readings[one.name], self.name) for one in self.controls],
            "sentence": self.sentence(values_of(readings)),
            "view": self.framed(readings, links),
        }
        return render_to_string("concepts/explorable.html", context)

    def fragment(self, params: Mapping[str, str], links: Links) -> str:
        readings = self.read(params)
        sentence = format_html(
            '<p class="figure-status" id="{}-status" hx-swap-oob="innerHTML">{}</p>',
            self.name,
            self.sentence(values_of(readings)),
        )
        messages = [one.told_elsewhere(readings[one.name], self.name) for one in self.controls]
        run = [self.run_link(readings, links, oob=True)] if links.has_run else []
        return parts.join([self.framed(readings, links), *messages, sentence, *run])

    def query(self, params: Mapping[str, str]) -> str:
        return urlencode(self._pairs(values_of(self.read(params))), safe="[],")

    def data(self, params: Mapping[str, str]) -> dict[str, Any]:
        readings = self.read(params)
        problems = [
            {"field": key or name, "detail": message}
            for name, reading in readings.items()
            for key, message in reading.problems.items()
        ]
        if problems:
            return {"figure": self.name, "problems": problems}
        values = values_of(readings)
        return {"figure": self.name, "values": values, **self.numbers(values)}

    def svg(self, params: Mapping[str, str]) -> str:
        return self.picture(values_of(self.read(params)))

    @property
    def usual(self) -> dict[str, Any]:
        """The values that the page opens with."""
        return {one.name: one.usual for one in self.controls}

    # --- Its pieces ----------------------------------------------------------------------------

    def read(self, params: Mapping[str, str]) -> Readings:
        return {one.name: one.read(params) for one in self.controls}

    def framed(self, readings: Readings, links: Links) -> SafeString:
        view = self.view(values_of(readings), links)
        return format_html('<div class="view" id="{}-view">{}</div>', self.name, view)

    def run_link(self, readings: Readings, links: Links, *, oob: bool = False) -> SafeString:
        return format_html(
            '<p class="buttons" id="{}-run"{}><a class="button" href="{}?{}">{}</a></p>',
            self.name,
            mark_safe(' hx-swap-oob="true"') if oob else "",
            links.lab,
            urlencode(self.lab(values_of(readings)), safe="[],"),
            _("Run these numbers on a worker"),
        )

    def address(self, links: Links, values: Values, **changed: Any) -> str:
        """The page with some of the values changed: for links inside the view."""
        return links.address(urlencode(self._pairs({**values, **changed}), safe="[],"), self.name)

    def _pairs(self, values: Values) -> list[tuple[str, str]]:
        return [pair for one in self.controls for pair in one.query(values[one.name])]


def values_of(readings: Readings) -> dict[str, Any]:
    return {name: reading.value for name, reading in readings.items()}
