"""What a sweep would be, before it is submitted: its points, and what each and all of them cost."""

from dataclasses import dataclass
from typing import Any

from api.callers import Caller
from api.sweeps.submission import Examined
from lab import units
from lab.sweeps.points import name_of_values, telling_fields


@dataclass(frozen=True)
class Line:
    """A point; either what it costs, or why it is refused."""

    name: str
    seconds: str = ""
    memory: str = ""
    flops: str = ""
    reasons: tuple[str, ...] = ()


def preview(examined: Examined, caller: Caller) -> dict[str, Any]:
    """What the page shows of it."""
    costs = [point.cost for point in examined.points]
    slowest = max((cost.predicted_seconds for cost in costs), default=0.0)
    return {
        "count": len(costs),
        "refused": len(examined.refused),
        "seconds": units.seconds(sum(cost.predicted_seconds for cost in costs)),
        "slowest": units.seconds(slowest),
        "budget": caller.budget_seconds,
        "memory": units.size(max((cost.predicted_bytes for cost in costs), default=0)),
        "lines": lines(examined),
    }


def lines(examined: Examined) -> list[Line]:
    costs = iter(point.cost for point in examined.points)
    telling = telling_fields(examined.asked.vary)
    found = []
    for index, point in enumerate(examined.asked.points):
        name = name_of_values(point.values, telling)
        if index in examined.refused:
            reasons = tuple(problem.detail for problem in examined.refused[index])
            found.append(Line(name, reasons=reasons))
        else:
            cost = next(costs)
            found.append(
                Line(
                    name,
                    units.seconds(cost.predicted_seconds),
                    units.size(cost.predicted_bytes),
                    units.count(cost.flops),
                )
            )
    return found
