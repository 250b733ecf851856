"""Vectors of a plane as the hands of a dial: where each came from, where it is, and the path of its tip."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from concepts.figures import parts

SIDE, RADIUS = 240.0, 98.0  # of the drawing, and of what is drawn, in pixels
MIDDLE = SIDE / 2
TIPS = {  # told apart by shape as well as by colour, around (0, 0)
    "q": "M-5 0a5 5 0 1 0 10 0a5 5 0 1 0 -10 0z",
    "k": "M-4.5 -4.5h9v9h-9z",
}


@dataclass(frozen=True)
class Hand:
    """`css` is the class of its colour and the key of its tip; points are (x, y), `path` is (n, 2)."""

    css: str
    name: str
    before: np.ndarray
    now: np.ndarray
    path: np.ndarray


@dataclass(frozen=True)
class Dial:
    """A plane with its hands. `reach` is the distance from the middle that the drawing has room for."""

    hands: Sequence[Hand]
    across: str
    up: str
    reach: float

    def at(self, points: np.ndarray) -> np.ndarray:
        """In pixels; y grows upwards in the plane, and downwards on the screen."""
        scale = RADIUS / self.reach if self.reach > 0 else 0.0
        return np.asarray(MIDDLE + scale * points * (1, -1))


def svg(dial: Dial, label: str) -> SafeString:
    return format_html(
        '<svg class="dial" viewBox="0 0 {0} {0}" width="{0}" height="{0}" role="img" aria-label="{1}">'
        '<path class="cross" d="M{2} 12V{3}M12 {2}H{3}"/>'
        '<text class="tick" x="{3}" y="{4}" text-anchor="end">{5}</text>'
        '<text class="tick" x="{6}" y="20">{7}</text>{8}</svg>',
        f"{SIDE:g}",
        label,
        f"{MIDDLE:g}",
        f"{SIDE - 12:g}",
        f"{MIDDLE - 6:g}",
        dial.across,
        f"{MIDDLE + 6:g}",
        dial.up,
        parts.join([drawn(dial, hand) for hand in dial.hands]),
    )


def drawn(dial: Dial, hand: Hand) -> SafeString:
    """The path below the hand, and its name beyond its tip."""
    (old_x, old_y), (x, y) = dial.at(hand.before), dial.at(hand.now)
    outwards = np.array([x - MIDDLE, y - MIDDLE])
    length = float(np.hypot(*outwards))
    beyond = outwards / length * 15 if length else np.array([10.0, -10.0])
    route = format_html_join("L", "{} {}", ((f"{a:.1f}", f"{b:.1f}") for a, b in dial.at(hand.path)))
    return format_html(
        '<g class="hand {0}"><path class="path" d="M{1}"/>'
        '<path class="before" d="M{2} {2}L{3} {4}"/><path class="now" d="M{2} {2}L{5} {6}"/>'
        '<path class="tip" d="{7}" transform="translate({5} {6})"/>'
        '<text class="name" x="{8}" y="{9}" text-anchor="middle">{10}</text></g>',
        hand.css,
        route,
        f"{MIDDLE:g}",
        f"{old_x:.1f}",
        f"{old_y:.1f}",
        f"{x:.1f}",
        f"{y:.1f}",
        TIPS[hand.css],
        f"{x + beyond[0]:.1f}",
        f"{y + beyond[1] + 5:.1f}",
        hand.name,
    )
