"""The compass of the home page: one query turns among five keys, and the output follows.

Keys lie on the unit circle and are their own values, so the output is a point that can be seen: the weighted
average of the five, which never leaves the shape they span.
"""

import math
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

import numpy as np
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from concepts.figures import Links, parts
from concepts.figures.numbers import show

KEY_DEGREES = (18, 74, 132, 208, 300)
ANGLE, LENGTH = 50, 4.0
MAX_LENGTH = 12.0
RADIUS = 130


def read(params: Mapping[str, str]) -> tuple[int, float]:
    """Angle in whole degrees and length of the query; what cannot be read becomes the usual value."""
    return (
        round(_number(params.get("angle", ""), ANGLE, 0, 360)) % 360,
        round(_number(params.get("length", ""), LENGTH, 0, MAX_LENGTH), 1),
    )


def _number(text: str, usual: float, low: float, high: float) -> float:
    try:
        value = float(text[:20])
    except ValueError:
        return usual
    return min(max(value, low), high) if math.isfinite(value) else usual


def compute(angle: int, length: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Keys (5, 2), weights (5,) and output (2,) of softmax(qKᵀ/√2)K."""
    degrees = np.radians(KEY_DEGREES)
    keys = np.stack([np.cos(degrees), np.sin(degrees)], axis=1)
    query = length * np.array([math.cos(math.radians(angle)), math.sin(math.radians(angle))])
    scores = keys @ query / math.sqrt(2)
    powers = np.exp(scores - scores.max())
    weights = powers / powers.sum()
    return keys, weights, weights @ keys


def px(*lengths: float) -> tuple[str, ...]:
    return tuple(f"{length:.1f}" for length in lengths)


class Compass:
    name = "compass"
    parts = frozenset({""})

    def render(self, params: Mapping[str, str], links: Links, part: str = "") -> str:
        angle, length = read(params)
        return format_html(
            '<form class="compass" id="compass" method="get" action="{}" hx-get="{}"'
            ' hx-trigger="input delay:30ms, submit" hx-target="#compass-result" hx-swap="outerHTML"'
            ' hx-sync="this:replace">{}'
            '<div class="compass-controls"><label for="compass-angle">{}</label>'
            '<input type="range" id="compass-angle" name="angle" min="0" max="359" step="1" value="{}">'
            '<label for="compass-length">{}</label>'
            '<input type="range" id="compass-length" name="length" min="0" max="12" step="0.1" value="{}">'
            '<button class="button button-small without-js">{}</button></div></form>',
            links.page,
            links.fragment,
            self.fragment(params, links),
            _("Turn the query"),
            angle,
            _("Make it longer: sharper weights"),
            length,
            _("Compute"),
        )

    def fragment(self, params: Mapping[str, str], links: Links) -> str:
        return format_html(
            '<div id="compass-result" class="compass-result">{}{}</div>',
            self._picture(params),
            self._weights(params),
        )

    def query(self, params: Mapping[str, str]) -> str:
        angle, length = read(params)
        return "" if (angle, length) == (ANGLE, LENGTH) else urlencode({"angle": angle, "length": length})

    def data(self, params: Mapping[str, str]) -> dict[str, Any]:
        angle, length = read(params)
        keys, weights, out = compute(angle, length)
        return {
            "figure": self.name,
            "angle": angle,
            "length": length,
            "keys": keys.tolist(),
            "weights": weights.tolist(),
            "out": out.tolist(),
        }

    def svg(self, params: Mapping[str, str]) -> str:
        return self._picture(params)

    def _picture(self, params: Mapping[str, str]) -> SafeString:
        angle, length = read(params)
        keys, weights, out = compute(angle, length)
        at = [(RADIUS * x, -RADIUS * y) for x, y in keys]
        ox, oy = RADIUS * out[0], -RADIUS * out[1]
        turn = math.radians(angle)
        reach = RADIUS * (0.25 + 0.72 * length / MAX_LENGTH)
        qx, qy = reach * math.cos(turn), -reach * math.sin(turn)
        pulls = (
            (*px(ox, oy, x, y), f"{0.6 + 11 * weight:.2f}")
            for (x, y), weight in zip(at, weights, strict=True)
        )
        dots = (
            (*px(x, y, 5 + 13 * math.sqrt(weight), 1.19 * x, 1.17 * y + 5), number)
            for number, ((x, y), weight) in enumerate(zip(at, weights, strict=True), 1)
        )
        return format_html(
            '<svg xmlns="http://www.w3.org/2000/svg" viewBox="-170 -160 340 320" role="img" aria-label="{}">'
            '<circle class="orbit" r="{}"/><polygon class="hull" points="{}"/>{}'
            '<line class="query" x2="{}" y2="{}"/><circle class="query-tip" cx="{}" cy="{}" r="6"/>{}'
            '<circle class="out" cx="{}" cy="{}" r="8"/>'
            '<text class="query-name" x="{}" y="{}">q</text></svg>',
            self._words(params),
            RADIUS,
            " ".join(",".join(px(x, y)) for x, y in at),
            format_html_join(
                "", '<line class="pull" x1="{}" y1="{}" x2="{}" y2="{}" stroke-width="{}"/>', pulls
            ),
            *px(qx, qy, qx, qy),
            format_html_join(
                "",
                '<circle class="key" cx="{}" cy="{}" r="{}"/><text class="key-name" x="{}" y="{}">{}</text>',
                dots,
            ),
            *px(ox, oy, qx + 14 * math.cos(turn + 0.9), qy - 14 * math.sin(turn + 0.9) + 5),
        )

    def _weights(self, params: Mapping[str, str]) -> SafeString:
        _keys, weights, out = compute(*read(params))
        rows = (
            (number, parts.bar(float(weight)), show(round(float(weight), 3), 3))
            for number, weight in enumerate(weights, 1)
        )
        return format_html(
            '<div class="compass-table"><table class="weights"><caption>{}</caption><tbody>{}</tbody></table>'
            '<p class="compass-out"><span class="dot" aria-hidden="true"></span> {}</p></div>',
            _("Weight of each key"),
            format_html_join("", '<tr><th scope="row">{}</th><td>{}</td><td class="num">{}</td></tr>', rows),
            _("output (%(x)s, %(y)s)") % {"x": show(float(out[0]), 2), "y": show(float(out[1]), 2)},
        )

    def _words(self, params: Mapping[str, str]) -> str:
        angle, length = read(params)
        _keys, weights, _out = compute(angle, length)
        first = int(weights.argmax())
        return _(
            "A query at %(angle)d degrees among five keys on a circle; key %(key)d gets the most weight,"
            " %(weight)s. The output is the weighted average of the keys and lies inside the shape they span."
        ) % {"angle": angle, "key": first + 1, "weight": show(float(weights[first]), 2)}


FIGURE = Compass()
