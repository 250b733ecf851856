"""Questions on pages: what is right passes, what is likely to be answered instead is told why not."""

import pytest
from django.test import Client

from concepts import asks
from concepts.asks import Ask, AskError, judge
from concepts.pages import Page, book

EVERY_ASK = pytest.mark.parametrize(
    ("page", "ask"),
    [(page, ask) for page in book("en").pages.values() for ask in page.asks],
    ids=lambda value: getattr(value, "slug", None) or value.name,
)


def read(text: str) -> Ask:
    return asks.read("name", text, str)


def right_answer(ask: Ask) -> str:
    if ask.options:
        return str(next(n for n, option in enumerate(ask.options) if option.is_right))
    return repr(ask.answer)


def shown(client: Client, page: Page, ask: Ask, text: str) -> str:
    """What the page says of an answer, without JavaScript."""
    html = client.get(f"/en/concepts/{page.slug}/", {ask.field: text}).content.decode()
    return html.partition(f'id="{ask.field}-verdict"')[2].partition("</div>")[0]


@EVERY_ASK
def test_the_right_answer_is_right_and_says_why(client: Client, page: Page, ask: Ask) -> None:
    told = shown(client, page, ask, right_answer(ask))
    assert "Right." in told
    words = next((option.why for option in ask.options if option.is_right), ask.why)
    assert words in told


@EVERY_ASK
def test_each_likely_mistake_is_told_why(client: Client, page: Page, ask: Ask) -> None:
    mistakes = [(str(n), option.why) for n, option in enumerate(ask.options) if not option.is_right]
    mistakes += [(repr(slip.value), slip.why) for slip in ask.slips]
    assert mistakes, "a question without a likely mistake teaches nothing"
    for text, why in mistakes:
        told = shown(client, page, ask, text)
        assert "Not so." in told
        assert why in told


@EVERY_ASK
@pytest.mark.parametrize("text", ["x", "99", "-1", "nan", "1/0", "<b>", "9" * 500])
def test_anything_else_is_answered_too(client: Client, page: Page, ask: Ask, text: str) -> None:
    told = shown(client, page, ask, text)
    assert "Not so." in told
    assert "<b>Not so.</b>" in told
    assert "&lt;b&gt;" not in told


def test_a_number_within_its_tolerance_is_right_and_may_be_a_fraction() -> None:
    ask = read("{question: q, answer: 0.25, within: 0.001, why: w}")
    for text in ("0.25", ".2509", "1/4", "−0.25e0".replace("−", ""), " 0.2495 "):
        verdict = judge(ask, text)
        assert verdict
        assert verdict.is_right, text
    for text in ("0.26", "-0.25", "25%", "1/4/1"):
        verdict = judge(ask, text)
        assert verdict
        assert not verdict.is_right, text
    assert judge(ask, "  ") is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("question: [", "expected"),
        ("answer: 1", "key question"),
        ("{question: q}", "choices or an answer"),
        ("{question: q, answer: 1, choices: []}", "choices or an answer"),
        ("{question: q, answer: 1}", "needs the key why"),
        ("{question: q, answer: 1, why: w, colour: red}", "unknown key colour"),
        ("{question: q, answer: 1, within: 0.1, why: w, wrong: {1.05: x}}", "as good as the answer"),
        ("{question: q, choices: [{text: a, why: w}, {text: b, why: w}]}", "one of the choices is right"),
        ("{question: q, choices: [{text: a, right: true}, {text: b, why: w}]}", "says why"),
    ],
)
def test_a_mistake_of_the_author_is_named(text: str, says: str) -> None:
    with pytest.raises(AskError, match=says):
        read(text)
