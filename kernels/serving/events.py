"""The log of a simulation: what happened, when, to whom. A list for programs, CSV for spreadsheets.

A log is bounded, and with it whatever writes to it: every simulator logs each of its steps.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

MAX_EVENTS = 20_000  # about 2 MB of JSON

Id = int | str


class TooManyEvents(Exception):
    """The simulation is longer than its log may be."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        super().__init__(f"more than {limit:,} events")


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened: ``time`` in the simulator's unit, ``ids`` of those concerned."""

    time: float
    kind: str
    ids: Mapping[str, Id]
    details: Mapping[str, Any]

    def as_json(self) -> dict[str, Any]:
        """The event as an object of JSON."""
        return {"time": self.time, "kind": self.kind, "ids": dict(self.ids), "details": dict(self.details)}


@dataclass
class EventLog:
    """Events in the order in which they happened, at most ``limit`` of them."""

    limit: int = MAX_EVENTS
    events: list[Event] = field(default_factory=list)

    def add(self, time: float, kind: str, ids: Mapping[str, Id], **details: Any) -> None:
        """Note an event. Raises :class:`TooManyEvents` when the log is full."""
        if len(self.events) >= self.limit:
            raise TooManyEvents(self.limit)
        self.events.append(Event(time, kind, ids, details))

    def as_json(self) -> list[dict[str, Any]]:
        """All events as JSON has them."""
        return [event.as_json() for event in self.events]


def to_csv(events: Iterable[Mapping[str, Any]]) -> str:
    """CSV (RFC 4180) of events in their JSON form: time, kind, then a column for every id and every detail
    that occurs. Lists are written as JSON; what an event does not have is empty."""
    events = list(events)
    ids = dict.fromkeys(name for event in events for name in event["ids"])
    details = dict.fromkeys(name for event in events for name in event["details"])
    columns = ["time", "kind", *(ids | details)]
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\r\n")
    writer.writeheader()
    for event in events:
        values = {**event["ids"], **event["details"]}
        cells = {name: _cell(value) for name, value in values.items()}
        writer.writerow({"time": event["time"], "kind": event["kind"], **cells})
    return text.getvalue()


def _cell(value: object) -> object:
    if value is None:
        return ""
    return (
        value if isinstance(value, int | float | str) and not isinstance(value, bool) else json.dumps(value)
    )
