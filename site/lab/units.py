"""Numbers with their units, for people. A true minus sign, at most four significant digits."""

import math
from collections.abc import Sequence
from typing import Any

from lab.heatmap import number

SECOND_STEPS = ((1e-6, 1e9, "ns"), (1e-3, 1e6, "µs"), (1.0, 1e3, "ms"), (120.0, 1.0, "s"))
RATE_STEPS = ((1, ""), (1e3, "k"), (1e6, "M"), (1e9, "G"), (1e12, "T"), (1e15, "P"))
COUNT_STEPS = ((1e3, ""), (1e6, "thousand"), (1e9, "million"), (1e12, "billion"), (1e15, "trillion"))


def significant(value: float, digits: int = 3) -> str:
    """1234.5 -> 1,230; 0.01234 -> 0.0123; 1.2e-7 -> 1.20e-7."""
    if not math.isfinite(value) or value == 0:
        return number(value)
    exponent = math.floor(math.log10(abs(value)))
    if exponent < -4 or exponent >= 9:
        mantissa, power = f"{value:.{digits - 1}e}".split("e")
        return f"{mantissa}e{int(power)}".replace("-", "−")
    rounded = round(value, digits - 1 - exponent)
    return f"{rounded:,.{max(0, digits - 1 - exponent)}f}".replace("-", "−")


def whole(value: int) -> str:
    """-12345 -> −12,345"""
    return f"{value:,}".replace("-", "−")


def shape(lengths: Sequence[int]) -> str:
    """[2, 3, 4] -> 2 × 3 × 4"""
    return " × ".join(map(str, lengths))


def percent(share: float) -> str:
    """0.25 -> 25 %; 0.91267 -> 91.27 %; 1.2e-6 -> 0.000120 %."""
    value = 100 * share
    text = f"{value:.2f}".rstrip("0").rstrip(".") if value == 0 or value >= 0.1 else significant(value)
    return f"{text} %"


def seconds(value: float) -> str:
    for limit, factor, unit in SECOND_STEPS:
        if value < limit:
            return f"{significant(value * factor)} {unit}"
    return f"{value / 60:,.1f} min"


def nanoseconds(value: float) -> str:
    return seconds(value / 1e9)


def size(count: float) -> str:
    """Bytes, in binary units."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:,.0f} bytes" if unit == "bytes" else f"{significant(count)} {unit}"
        count /= 1024
    raise AssertionError("unreachable")


def rate(value: float) -> str:
    """9.89e14 -> 989 TFLOP/s."""
    number, prefix = prefixed(value)
    return f"{significant(number)} {prefix}FLOP/s"


def prefixed(value: float) -> tuple[float, str]:
    """In the prefixes of the SI: 9.89e14 -> (989.0, "T")."""
    factor, prefix = next(step for step in RATE_STEPS if value < 1e3 * step[0] or step is RATE_STEPS[-1])
    return value / factor, prefix


def tick(value: float) -> str:
    """A round number on an axis: 1e13 -> 10 T."""
    number, prefix = prefixed(value)
    return f"{number:,g} {prefix}".rstrip().replace("-", "−")


def count(value: float) -> str:
    """48 -> 48; 1_234_567 -> 1.23 million."""
    previous = 1.0
    for limit, name in COUNT_STEPS:
        if value < limit:
            return f"{value:,.0f}" if not name else f"{significant(value / previous)} {name}"
        previous = limit
    return significant(value)


def error(value: Any) -> str:
    """0.0123 -> 0.012; 1.2345e-7 -> 1.2e−7. The contract's strings for infinities pass as they are."""
    if value is None:
        return "–"
    if isinstance(value, str):
        return value
    if 1e-4 <= abs(value) < 1e4:
        return significant(value, 2)
    return "0" if value == 0 else f"{value:.1e}".replace("e-0", "e-").replace("e+0", "e+").replace("-", "−")
