"""Questions that a page asks and judges: a number, or one of a few answers.

A question is a fenced block of YAML in the page (```` ```ask name ````): its words, what is right, and what
is likely to be answered instead, each with the reason why it is wrong. The answer is in the address
(`ask-name=…`), so it works without JavaScript and can be shared; htmx only makes it immediate.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml
from django.template.loader import render_to_string
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from concepts import strict

PREFIX = "ask-"
KEYS = {"question", "answer", "within", "unit", "wrong", "choices", "hint", "why"}
MAX_TYPED = 40


class AskError(ValueError):
    """What is wrong with the YAML of a question."""


@dataclass(frozen=True)
class Option:
    """An answer to choose; `why` is said to who chose it."""

    text: str
    why: str
    is_right: bool


@dataclass(frozen=True)
class Slip:
    """A number that a known mistake leads to, and what the mistake is."""

    value: float
    why: str


@dataclass(frozen=True)
class Ask:
    """Sentences are HTML already. Without `options` it asks for a number, within `within` of `answer`."""

    name: str
    question: str
    why: str
    hint: str = ""
    answer: float = math.nan
    within: float = 0.0
    unit: str = ""
    slips: tuple[Slip, ...] = ()
    options: tuple[Option, ...] = ()

    @property
    def field(self) -> str:
        return PREFIX + self.name


@dataclass(frozen=True)
class Verdict:
    is_right: bool
    words: str  # HTML


def read(name: str, text: str, to_html: Callable[[str], str]) -> Ask:
    """The question of a block. `to_html` is how sentences of this page become HTML. Raises AskError."""
    try:
        found = strict.read(text)
    except yaml.YAMLError as error:
        raise AskError(str(error).replace("\n", " ")) from error
    if not isinstance(found, dict) or "question" not in found:
        raise AskError("a question is a mapping with the key question")
    if unknown := found.keys() - KEYS:
        raise AskError(f"unknown key {min(unknown)}")
    if ("choices" in found) == ("answer" in found):
        raise AskError("a question has either choices or an answer")
    question, why, hint = (to_html(str(found.get(key, ""))) for key in ("question", "why", "hint"))
    if "choices" in found:
        return Ask(name, question, why, hint, options=_options(found["choices"], to_html))
    if not found.get("why"):
        raise AskError("a number needs the key why: what is said of the right answer")
    within = float(found.get("within", 0.0))
    answer = float(found["answer"])
    slips = tuple(Slip(float(value), to_html(str(why))) for value, why in (found.get("wrong") or {}).items())
    if close := [slip.value for slip in slips if abs(slip.value - answer) <= within]:
        raise AskError(f"{close[0]} is as good as the answer, {answer}")
    unit = str(found.get("unit", ""))
    return Ask(name, question, why, hint, answer=answer, within=within, unit=unit, slips=slips)


def _options(given: Any, to_html: Callable[[str], str]) -> tuple[Option, ...]:
    options = tuple(
        Option(to_html(str(one["text"])), to_html(str(one.get("why", ""))), bool(one.get("right", False)))
        for one in given
    )
    if sum(option.is_right for option in options) != 1:
        raise AskError("one of the choices is right")
    if not all(option.why for option in options):
        raise AskError("every choice says why it is right or wrong")
    return options


def judge(ask: Ask, text: str) -> Verdict | None:
    """What is said of an answer as it was typed; None where there is none."""
    text = text.strip()
    if not text:
        return None
    return _chosen(ask, text) if ask.options else _typed(ask, text)


def _chosen(ask: Ask, text: str) -> Verdict:
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 4 else len(ask.options)
    if number >= len(ask.options):
        return Verdict(False, _("That is none of the answers: choose one of them."))
    option = ask.options[number]
    return Verdict(option.is_right, option.why)


def _typed(ask: Ask, text: str) -> Verdict:
    value = _number(text)
    if math.isnan(value):
        return Verdict(False, _("That is not a number. Write one such as 0.25 or 1/4."))
    if abs(value - ask.answer) <= ask.within:
        return Verdict(True, ask.why)
    for slip in ask.slips:
        if abs(value - slip.value) <= max(ask.within, 1e-9 * abs(slip.value)):
            return Verdict(False, slip.why)
    return Verdict(
        False, _("It is another number. The hint may help.") if ask.hint else _("It is another number.")
    )


def _number(text: str) -> float:
    """A decimal number or a fraction; nan where it is neither."""
    if len(text) > MAX_TYPED or "_" in text:
        return math.nan
    try:
        top, _slash, bottom = text.replace("−", "-").replace(" ", "").partition("/")
        value = float(top) / (float(bottom) if bottom else 1.0)
    except (ValueError, ZeroDivisionError, OverflowError):
        return math.nan
    return value if math.isfinite(value) else math.nan


def render(ask: Ask, state: Mapping[str, str], page: str, others: Sequence[tuple[str, str]]) -> SafeString:
    """The question with what was answered; `others` are the parameters of the rest of the page."""
    typed = state.get(ask.field, "")[:200]
    context = {"ask": ask, "typed": typed, "page": page, "others": others, "verdict": judge(ask, typed)}
    return SafeString(render_to_string("concepts/ask.html", context))


def query(ask: Ask, state: Mapping[str, str]) -> list[tuple[str, str]]:
    """The parameters that keep an answer."""
    typed = state.get(ask.field, "")[:MAX_TYPED].strip()
    return [(ask.field, typed)] if typed else []
