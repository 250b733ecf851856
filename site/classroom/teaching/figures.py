"""Figures of a dashboard, drawn on the server; each has a table with the same numbers beside it."""

from collections.abc import Sequence

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

WIDTH, HEIGHT = 640, 180  # of the bars, in SVG units
LEFT, TOP, BOTTOM = 8, 24, 44


def histogram(bins: Sequence[tuple[str, int]], label: str) -> SafeString:
    """A bar for each (name, count), the count above it."""
    most = max([count for _name, count in bins] + [1])
    step = WIDTH / len(bins)
    bars = format_html_join(
        "",
        '<g><title>{}: {}</title><rect class="hist-bar" x="{}" y="{}" width="{}" height="{}"/>'
        '<text class="hist-count" x="{}" y="{}">{}</text><text class="hist-name" x="{}" y="{}">{}</text></g>',
        (
            (
                name,
                count,
                round(LEFT + n * step + 3, 1),
                round(TOP + HEIGHT - _height(count, most), 1),
                round(step - 6, 1),
                round(_height(count, most), 1),
                round(LEFT + (n + 0.5) * step, 1),
                round(TOP + HEIGHT - _height(count, most) - 6, 1),
                count or "",
                round(LEFT + (n + 0.5) * step, 1),
                TOP + HEIGHT + 20,
                name.partition("–")[0],
            )
            for n, (name, count) in enumerate(bins)
        ),
    )
    base = TOP + HEIGHT
    return format_html(
        '<svg class="histogram" viewBox="0 0 {} {}" role="img" aria-label="{}">{}'
        '<path class="hist-base" d="M{} {}h{}"/><text class="hist-name" x="{}" y="{}">{}</text></svg>',
        WIDTH + 2 * LEFT,
        TOP + HEIGHT + BOTTOM,
        label,
        bars,
        LEFT,
        base,
        WIDTH,
        LEFT + WIDTH / 2,
        base + 40,
        _("% of the points, from …"),
    )


def _height(count: int, most: int) -> float:
    return max(HEIGHT * count / most, 2.0) if count else 0.0


def shares(parts: Sequence[tuple[str, str, int]], label: str) -> SafeString:
    """One bar, divided among (kind, words, count)."""
    total = sum(count for _kind, _words, count in parts) or 1
    pieces, at = [], 0.0
    for kind, words, count in parts:
        width = WIDTH * count / total
        if count:
            pieces.append((kind, round(at, 1), round(width, 1), words, count))
        at += width
    drawn = format_html_join(
        "", '<rect class="share-{}" x="{}" y="0" width="{}" height="20"><title>{}: {}</title></rect>', pieces
    )
    head = '<svg class="shares" viewBox="0 0 {} 20" preserveAspectRatio="none" role="img" aria-label="{}">'
    return format_html(head + "{}</svg>", WIDTH, label, drawn)
