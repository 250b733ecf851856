"""Numbers of the page of debates."""

from concepts.facts import fact
from concepts.figures.debates import FIGURES, MIDDLE

TRAINING, EMERGENCE = FIGURES
USUAL = {one.name: one.usual for one in TRAINING.controls}
TWENTY = EMERGENCE.curves({"k": 20})


@fact("debates-hours", ".1f")
def hours() -> float:
    """Millions, of one A100 for GPT-3."""
    return TRAINING.hours(USUAL) / 1e6


@fact("debates-days", ".0f")
def days() -> float:
    return TRAINING.days(USUAL)


@fact("debates-cost", ".1f")
def cost() -> float:
    """Millions of dollars."""
    return TRAINING.dollars(USUAL) / 1e6


@fact("debates-half-answers", ".4f")
def half_answers() -> float:
    """Per cent."""
    return 100 * float(TWENTY[1][MIDDLE])


@fact("debates-more-tokens", ".0f")
def more_tokens() -> float:
    return 100 * float(TWENTY[0][MIDDLE + 20])


@fact("debates-more-answers", ".0f")
def more_answers() -> float:
    return 100 * float(TWENTY[1][MIDDLE + 20])


@fact("debates-most-tokens", ".0f")
def most_tokens() -> float:
    return 100 * float(TWENTY[0][-1])


@fact("debates-most-answers", ".0f")
def most_answers() -> float:
    return 100 * float(TWENTY[1][-1])
