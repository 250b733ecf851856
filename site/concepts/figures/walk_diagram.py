"""The blocks of both stacks, one of them lit, and the wires between them."""

from collections.abc import Sequence
from itertools import pairwise

from django.utils.translation import gettext as _

from concepts.figures.blocks import Block, Diagram, Wire
from concepts.figures.walk import STACKS, Place, name_of

WIDE, HIGH, PITCH, TOP = 166.0, 32.0, 45.0, 30.0
COLUMNS = {"encoder": 28.0, "decoder": 222.0}
GUTTER, BETWEEN = 16.0, 208.0  # how far beside a block a bypass runs; where the encoder's output does


def diagram(places: Sequence[Place], chosen: int, hrefs: Sequence[str]) -> Diagram:
    """Both stacks from above to below; `chosen` is lit."""
    shown, wires = [], []
    for stack, x in COLUMNS.items():
        mine = [(number, place) for number, place in enumerate(places) if place.stack == stack]
        column = [
            Block(
                x,
                TOP + PITCH * row,
                WIDE,
                HIGH,
                f"{number + 1}  {name_of(place)}",
                "main" if place.kind in ("in", "sub", "out") else "",
                hrefs[number],
                _("Step %(number)d, %(stack)s: %(name)s")
                % {"number": number + 1, "stack": STACKS[stack], "name": name_of(place)},
                number == chosen,
            )
            for row, (number, place) in enumerate(mine)
        ]
        shown += [note(x, _("Encoder") if stack == "encoder" else _("Decoder")), *column]
        wires += [down(*pair) for pair in pairwise(column)]
        for block, (_number, place) in zip(column, mine, strict=True):
            if place.kind == "add":
                of_parts = [other.part for _other, other in mine]
                first = column[of_parts.index(place.part)]
                wires.append(bypass(first, block, is_left=stack == "encoder"))
        if stack == "encoder":
            last = column[-1]
        else:
            asked = next(
                block for block, (_number, place) in zip(column, mine, strict=True) if is_across(place)
            )
            wires.append(across(last, asked))
    height = max(block.y + HIGH for block in shown) + 14
    return Diagram(COLUMNS["decoder"] + WIDE + 2 * GUTTER - 6, height, shown, wires)


def is_across(place: Place) -> bool:
    return (place.part, place.kind) == ("cross", "sub")


def note(x: float, text: str) -> Block:
    return Block(x, 0, WIDE, TOP - 8, text, "note")


def down(upper: Block, lower: Block) -> Wire:
    x = upper.middle[0]
    return Wire(f"M{x:g} {upper.y + HIGH:g}V{lower.y - 5:g}", (x, lower.y), "down")


def bypass(first: Block, added: Block, *, is_left: bool) -> Wire:
    """The residual connection: from above the first block of a sublayer into its addition."""
    x, y = first.middle[0], first.y - 8
    side = added.x if is_left else added.x + WIDE
    beside = side - GUTTER if is_left else side + GUTTER
    path = f"M{x:g} {y:g}H{beside:g}V{added.middle[1]:g}H{side + (-5 if is_left else 5):g}"
    return Wire(path, (side, added.middle[1]), "right" if is_left else "left", added.is_lit)


def across(last: Block, asked: Block) -> Wire:
    """From the end of the encoder to the cross-attention."""
    x, y = last.middle[0], last.y + HIGH
    path = f"M{x:g} {y:g}V{y + 8:g}H{BETWEEN:g}V{asked.middle[1]:g}H{asked.x - 5:g}"
    return Wire(path, (asked.x, asked.middle[1]), "right", asked.is_lit)
