"""Numbers of the timeline, from the dates in it."""

from concepts.facts import fact
from concepts.figures.timeline import EVENTS

BY_KEY = {event.key: event for event in EVENTS}


def months(key: str) -> int:
    """Since the year 2000."""
    year, month = BY_KEY[key].date.split("-")
    return 12 * (int(year) - 2000) + int(month)


@fact("timeline-papers")
def papers() -> int:
    return len(EVENTS)


@fact("timeline-to-flash")
def to_flash() -> int:
    return months("dao2022") - months("vaswani2017")


@fact("timeline-mqa-gqa")
def to_groups() -> int:
    return months("ainslie2023") - months("shazeer2019")
