"""How figures grow with what varied: exponents of power laws, by least squares on logarithms."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from kernels.sweeps.points import is_axis

QUANTITIES = ("peak_bytes", "predicted_bytes", "traffic_bytes", "flops", "median_ns", "max_abs_err")


@dataclass(frozen=True)
class PowerLaw:
    """y ≈ c·x^exponent through ``points`` points. ``r_squared`` is of the logarithms: the share of their
    variance that the line explains; None where any line would (two points), or there is none to explain.
    ``standard_error`` is that of the exponent: the spread of the points around the line, carried over to its
    slope; None with two points, which leave no spread."""

    exponent: float
    r_squared: float | None
    points: int
    standard_error: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self)


def fit_power(pairs: Sequence[tuple[float, float]]) -> PowerLaw | None:
    """The law that fits some (x, y) best; of those with a number that is not positive there is no logarithm.
    None with fewer than two different x."""
    logs = [(math.log(x), math.log(y)) for x, y in pairs if x > 0 and y > 0]
    if len({x for x, _y in logs}) < 2:
        return None
    mean_x, mean_y = (sum(values) / len(logs) for values in zip(*logs, strict=True))
    spread = sum((x - mean_x) ** 2 for x, _y in logs)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in logs) / spread
    total = sum((y - mean_y) ** 2 for _x, y in logs)
    missed = sum((y - mean_y - slope * (x - mean_x)) ** 2 for x, y in logs)
    explained = None if len(logs) == 2 or total < 1e-18 else max(0.0, 1 - missed / total)
    uncertain = None if len(logs) == 2 else math.sqrt(missed / (len(logs) - 2) / spread)
    return PowerLaw(slope, explained, len(logs), uncertain)


def exponents(points: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """The laws of some points, each given by (varied values, figures).

    One for every length that varied, every quantity, and every combination of the other values (``at``). A
    time that is not representative is left out.
    """
    found = []
    for over in [name for name in (points[0][0] if points else ()) if is_axis(name)]:
        series: dict[str, list[tuple[Mapping[str, Any], Mapping[str, Any]]]] = defaultdict(list)
        for values, figures in points:
            others = {name: value for name, value in values.items() if name != over}
            series[repr(others)].append((values, figures))
        for line in series.values():
            at = {name: value for name, value in line[0][0].items() if name != over}
            for quantity in QUANTITIES:
                law = fit_power([(v[over], f[quantity]) for v, f in line if _counts(quantity, f)])
                if law:
                    found.append({"over": over, "at": at, "quantity": quantity, **law.to_dict()})
    return found


def _counts(quantity: str, figures: Mapping[str, Any]) -> bool:
    known = isinstance(figures.get(quantity), int | float)
    return known and (quantity != "median_ns" or bool(figures.get("representative")))
