"""The heat-map colours: two scales of 21 steps, each for a light and a dark page.

Both scales run in OKLCH with lightness as the carrier, so they survive colour blindness and grey print.
`stylesheet()` writes static/css/heat.css; tests hold that file to this module and every step's text to a
contrast of 4.5:1 or more.

* sequential (weights, 0 to 1): the page's own paper to deep violet, or to bright violet on a dark page;
* diverging (scores, sign matters): blue below zero, neutral at step 10, orange above.
"""

import math
from dataclasses import dataclass

STEPS = 21


@dataclass(frozen=True)
class Color:
    red: float
    green: float
    blue: float

    @property
    def rgb(self) -> tuple[int, int, int]:
        """0 … 255 each."""
        return round(255 * self.red), round(255 * self.green), round(255 * self.blue)

    @property
    def hex(self) -> str:
        return "#" + "".join(f"{part:02x}" for part in self.rgb)

    @property
    def luminance(self) -> float:
        """Relative luminance of WCAG 2."""
        linear = [
            c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4
            for c in (self.red, self.green, self.blue)
        ]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def oklch(lightness: float, chroma: float, hue: float) -> Color:
    """OKLCH to sRGB, clipped channel by channel (Ottosson 2020)."""
    a, b = chroma * math.cos(math.radians(hue)), chroma * math.sin(math.radians(hue))
    l3 = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3
    m3 = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3
    s3 = (lightness - 0.0894841775 * a - 1.2914855480 * b) ** 3
    linear = (
        4.0767416621 * l3 - 3.3077115913 * m3 + 0.2309699292 * s3,
        -1.2684380046 * l3 + 2.6097574011 * m3 - 0.3413193965 * s3,
        -0.0041960863 * l3 - 0.7034186147 * m3 + 1.7076147010 * s3,
    )

    def gamma(c: float) -> float:
        c = min(max(c, 0.0), 1.0)
        return 12.92 * c if c <= 0.0031308 else 1.055 * c ** (1 / 2.4) - 0.055

    return Color(*(gamma(c) for c in linear))


def contrast(one: Color, other: Color) -> float:
    high, low = sorted((one.luminance, other.luminance), reverse=True)
    return (high + 0.05) / (low + 0.05)


INKS = (Color(0, 0, 0), Color(1, 1, 1))


def ink(paper: Color) -> Color:
    """Black or white, whichever reads better on `paper`."""
    return max(INKS, key=lambda candidate: contrast(candidate, paper))


def _mix(start: tuple[float, float, float], end: tuple[float, float, float], t: float) -> Color:
    return oklch(*(a + (b - a) * t for a, b in zip(start, end, strict=True)))


def sequential(step: float, dark: bool = False) -> Color:
    t = step / (STEPS - 1)
    if dark:
        return _mix((0.235, 0.02, 300), (0.86, 0.12, 308), t)
    return _mix((0.975, 0.008, 308), (0.36, 0.16, 298), t)


def diverging(step: float, dark: bool = False) -> Color:
    t = abs(step - 10) / 10
    hue = 250 if step < 10 else 55
    if dark:
        return _mix((0.25, 0.005, hue), (0.80, 0.12, hue), t)
    return _mix((0.97, 0.004, hue), (0.52 if step < 10 else 0.60, 0.14, hue), t)


def weight_class(weight: float) -> str:
    """The class of a cell that shows a number from 0 to 1."""
    return f"heat-seq-{round(20 * min(max(weight, 0.0), 1.0))}"


def score_class(score: float, largest: float) -> str:
    """The class of a cell that shows a signed number, where `largest` bounds the absolute values."""
    t = 0.0 if largest <= 0 else min(max(score / largest, -1.0), 1.0)
    return f"heat-div-{10 + round(10 * t)}"


def stylesheet() -> str:
    lines = [
        "/* Written by `python manage.py build_heat_scales` from concepts/figures/scales.py. */",
        '[class*="heat-seq-"], [class*="heat-div-"] { background-color: var(--heat); color: var(--heat-ink);'
        " fill: var(--heat); }",
        '[class*="heat-seq-"] + text.on-heat, [class*="heat-div-"] + text.on-heat { fill: var(--heat-ink); }',
    ]
    for name, scale in (("seq", sequential), ("div", diverging)):
        for step in range(STEPS):
            light, dark = scale(step), scale(step, dark=True)
            lines.append(
                f".heat-{name}-{step}, .heat-{name}-{step} + .on-heat {{"
                f" --heat: light-dark({light.hex}, {dark.hex});"
                f" --heat-ink: light-dark({ink(light).hex}, {ink(dark).hex}); }}"
            )
    for name, scale in (("seq", sequential), ("div", diverging)):
        stops = ", ".join(
            f"light-dark({scale(step).hex}, {scale(step, dark=True).hex})" for step in range(0, STEPS, 5)
        )
        lines.append(f".scale-{name} {{ background: linear-gradient(to right, {stops}); }}")
    return "\n".join(lines) + "\n"
