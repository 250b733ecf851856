"""One word through both stacks, block by block: which block is looked at is the figure's step."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from concepts.figures import Links, blocks, grids, parts
from concepts.figures.controls import Choice, Number, Words
from concepts.figures.explorable import Explorable, Values
from concepts.figures.numbers import show
from concepts.figures.walk import (
    MOST,
    STACKS,
    TEXT,
    WRITTEN,
    Place,
    attended,
    name_of,
    size,
    vocabulary,
    walk,
)
from concepts.figures.walk_diagram import diagram
from concepts.figures.walk_inside import DIGITS, inside, told
from kernels.blocks import Attended

ORDERS = (
    ("post", gettext_lazy("after the addition (post-LN, 2017)")),
    ("pre", gettext_lazy("before the sublayer (pre-LN)")),
)
LAST = 20  # steps, with the norms that a pre-LN stack ends with


class Walk(Explorable):
    name = "walk"
    title = gettext_lazy("The figure: one word through both stacks, block by block")
    controls = (
        Number("step", gettext_lazy("Step"), 12, 1, LAST),
        Choice("norm", gettext_lazy("LayerNorm"), "post", ORDERS),
        Words("text", gettext_lazy("The encoder reads"), TEXT, most=MOST),
        Number("place", gettext_lazy("Follow its word number"), 2, 1, MOST),
        Words("written", gettext_lazy("The decoder has written"), WRITTEN, most=MOST - 1),
    )

    def at(self, values: Values, places: Sequence[Place]) -> int:
        """Which place is lit, from 0: no more than there are."""
        return int(min(values["step"], len(places))) - 1

    def view(self, values: Values, links: Links) -> SafeString:
        places = walk(values)
        chosen = self.at(values, places)
        hrefs = [self.address(links, values, step=number) for number in range(1, len(places) + 1)]
        return format_html(
            '<div class="split"><div>{}</div><div>{}{}</div></div>{}',
            blocks.svg(diagram(places, chosen, hrefs), _("Blocks of both stacks, in their order")),
            self.moves(chosen, hrefs),
            inside(places[chosen], values),
            self.trace(places, chosen, hrefs),
        )

    def moves(self, chosen: int, hrefs: Sequence[str]) -> SafeString:
        items = [format_html('<a href="{}">{}</a> ', hrefs[chosen - 1], _("A step back"))] if chosen else []
        if chosen + 1 < len(hrefs):
            items.append(format_html('<a href="{}">{}</a>', hrefs[chosen + 1], _("The next step")))
        return format_html('<p class="figure-links">{}</p>', parts.join(items))

    def trace(self, places: Sequence[Place], chosen: int, hrefs: Sequence[str]) -> SafeString:
        """What leaves each block, of the one word."""
        rows = []
        for number, place in enumerate(places):
            words = f"{number + 1}. {name_of(place)}"
            current = SafeString(' aria-current="true"') if number == chosen else parts.EMPTY
            head = format_html('<a href="{}"{}>{}</a>', hrefs[number], current, words)
            is_out = place.kind == "out"
            rows.append(
                (
                    head,
                    place.words[place.row],
                    *(["", "", "", ""] if is_out else [show(x, DIGITS) for x in place.vector.tolist()]),
                    "" if is_out else show(size(place.vector), DIGITS),
                )
            )
        caption = _("What leaves each block, of the word that is followed")
        heads = (_("block"), _("word"), "1", "2", "3", "4", _("size"))
        return format_html(
            '<div class="outputs">{}</div>', grids.framed(parts.listing(caption, heads, rows), caption)
        )

    def sentence(self, values: Values) -> str:
        places = walk(values)
        chosen = self.at(values, places)
        place = places[chosen]
        return _("Step %(number)d of %(all)d, %(stack)s: %(told)s") % {
            "number": chosen + 1,
            "all": len(places),
            "stack": STACKS[place.stack],
            "told": told(place, values),
        }

    def numbers(self, values: Values) -> dict[str, Any]:
        places = walk(values)
        return {
            "at": self.at(values, places) + 1,
            "steps": [
                {
                    "stack": place.stack,
                    "block": f"{place.part} {place.kind}" if place.part != place.kind else place.part,
                    "word": place.words[place.row],
                    "out": place.vector.tolist(),
                }
                for place in places
            ],
            "vocabulary": list(vocabulary(values)),
        }

    def picture(self, values: Values) -> str:
        places = walk(values)
        return blocks.document(
            diagram(places, self.at(values, places), [""] * len(places)), self.sentence(values)
        )

    def lab(self, values: Values) -> list[tuple[str, str]]:
        """The attention that is lit, or the one before it; before the first, the first."""
        places = walk(values)
        asked = [place for place in places if place.step and isinstance(place.step.found, Attended)]
        passed = [place for place in places[: self.at(values, places) + 1] if place in asked]
        place = (passed or asked)[-1 if passed else 0]
        found = attended(place)
        arrays = [(name, json.dumps(np.round(getattr(found, name), 4).tolist())) for name in ("q", "k", "v")]
        is_causal = (place.stack, place.part) == ("decoder", "self")
        return [("engine", "flash"), *arrays, *([("causal", "on")] if is_causal else [])]


FIGURE = Walk()
