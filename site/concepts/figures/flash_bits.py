"""How often attention in tiles has the same bits as attention one operation after another; by
`kernels.flash.bits`."""

from functools import lru_cache
from typing import Any

from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from concepts.figures import Links, heatmap, parts
from concepts.figures.controls import Choice, Number
from concepts.figures.explorable import Explorable, Values
from concepts.figures.heatmap import HeatMap
from concepts.figures.numbers import show, show_power
from kernels.arrays import generate
from kernels.flash.bits import DTYPES, Agreement, agreement, exactly, in_tiles, one_by_one

QUERIES, WIDTH = 24, 32
PLAIN, TILES = "plain", "tiles"
OTHER = 16  # keys to a tile, of what tiles are compared with


@lru_cache(maxsize=64)
def compared(keys: int, block: int, dtype: str, seed: int, beside: str) -> Agreement:
    q, k, v = (
        generate(name, seed, (count, WIDTH), "normal", "float64")
        for name, count in (("q", QUERIES), ("k", keys), ("v", keys))
    )
    first = one_by_one(q, k, v, dtype) if beside == PLAIN else in_tiles(q, k, v, OTHER, dtype)
    return agreement(first, in_tiles(q, k, v, block, dtype), exactly(q, k, v, dtype))


class Bits(Explorable):
    name = "bits"
    title = gettext_lazy("The figure: how often both have the same bits")
    controls = (
        Number("keys", gettext_lazy("Keys"), 128, 16, 512),
        Number("block", gettext_lazy("Keys to a tile"), 32, 1, 512),
        Choice("format", gettext_lazy("Numbers"), "float32", [(name, name) for name in DTYPES]),
        Choice(
            "beside",
            gettext_lazy("Beside"),
            PLAIN,
            [
                (PLAIN, gettext_lazy("one operation after another")),
                (TILES, gettext_lazy("tiles of 16 keys")),
            ],
        ),
        Number("draw", gettext_lazy("Numbers, drawn anew"), 1, 1, 99),
    )

    def found(self, values: Values) -> Agreement:
        return compared(*(values[name] for name in ("keys", "block", "format", "draw", "beside")))

    def view(self, values: Values, links: Links) -> SafeString:
        found = self.found(values)
        first = _("one by one") if values["beside"] == PLAIN else _("tiles of 16")
        rows = [
            (_("numbers of the output"), f"{found.difference.size:,}"),
            (_("with the same bits"), f"{percent(found.equal)} %"),
            (_("largest difference"), power(found.largest)),
            (_("largest error, %(first)s") % {"first": first}, power(found.first_error)),
            (_("largest error, in tiles"), power(found.second_error)),
        ]
        table = parts.listing(_("Errors are those from float64 on the same inputs"), ("", ""), rows)
        return format_html(
            '<div class="split"><div>{}</div>{}</div>',
            heatmap.svg(self.map(found), self.sentence(values)),
            table,
        )

    def map(self, found: Agreement) -> HeatMap:
        return HeatMap(
            values=found.difference,
            largest=found.largest,
            down=_("query"),
            across=_("number of the output; blank where both are the same"),
            rows=range(0, QUERIES, 8),
            columns=range(0, WIDTH, 8),
        )

    def sentence(self, values: Values) -> str:
        found = self.found(values)
        words = {
            "format": values["format"],
            "equal": percent(found.equal),
            "largest": power(found.largest),
        }
        if found.equal == 1.0:
            return _("In %(format)s all numbers of the output have the same bits.") % words
        return (
            _(
                "In %(format)s %(equal)s %% of the output have the same bits; the rest differ by %(largest)s"
                " at most."
            )
            % words
        )

    def numbers(self, values: Values) -> dict[str, Any]:
        found = self.found(values)
        return {
            "equal": found.equal,
            "largest": found.largest,
            "first_error": found.first_error,
            "second_error": found.second_error,
        }

    def picture(self, values: Values) -> str:
        return heatmap.document(self.map(self.found(values)), self.sentence(values))

    def lab(self, values: Values) -> list[tuple[str, str]]:
        """As many queries and keys of the lab's own draw: the kernel, beside float64."""
        shape = {"batch": 1, "heads": 1, "q_len": QUERIES, "kv_len": values["keys"], "head_dim": WIDTH}
        return [
            ("engine", "flash"),
            ("dtype", values["format"]),
            ("source", "seed"),
            *((name, str(size)) for name, size in shape.items()),
            ("seed", str(values["draw"])),
        ]


def percent(share: float) -> str:
    return show(100 * share, 1)


def power(value: float) -> str:
    return show_power(value, 2) if value else "0"


FIGURE = Bits()
