"""The timeline: dates that identifiers say, sources, pages and runs that exist."""

import re
from urllib.parse import parse_qs

import pytest

from concepts.facts import FACTS
from concepts.figures import Links
from concepts.figures.timeline import EVENTS, FIGURE, Event
from concepts.pages import book, sources
from kernels.spec import parse_run

LINKS = Links("/page/", "/fragment/", "/lab/")
EVERY_EVENT = pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.key)


@EVERY_EVENT
def test_a_paper_is_in_the_bibliography_and_was_public_before_it_was_published(event: Event) -> None:
    source = sources()[event.key]
    if "arxiv.org" in source.url:
        assert source.url.endswith(event.arxiv)
    year, month = map(int, event.date.split("-"))
    assert 2014 <= year <= 2026
    assert 1 <= month <= 12
    printed = re.search(r"20\d\d", event.published)
    assert year <= int(printed[0] if printed else source.year) <= year + 3
    if printed:
        assert printed[0] in source.venue
    assert event.page in {entry.slug for part in book("en").parts for entry in part.entries}


@EVERY_EVENT
def test_the_lab_runs_the_idea_without_a_complaint(event: Event) -> None:
    from lab.form.forms import LabForm

    if not event.run:
        return
    [link] = re.findall(r'href="/lab/\?([^"]+)"', FIGURE.head(event, LINKS))
    state = parse_qs(link.replace("&amp;", "&"))
    form = LabForm.from_link({name: value if len(value) > 1 else value[0] for name, value in state.items()})
    assert not form.errors
    assert parse_run(form.body()).spec


def test_what_is_often_misdated_was_public_earlier_or_later_than_that() -> None:
    said = {event.name: (event.said, event.date[:4]) for event in EVENTS if event.said}
    assert said == {
        "Show, Attend and Tell": ("2016", "2015"),
        "Multi-query attention": ("2022", "2019"),
        "Linear attention": ("2023–24", "2020"),
        "ALiBi": ("2019", "2021"),
        "FlashAttention": ("2023", "2022"),
    }


@pytest.mark.parametrize(
    ("name", "date"),
    {
        "Additive attention": "2014-09", "Show, Attend and Tell": "2015-02",
        "Global and local attention": "2015-08", "The Transformer": "2017-06",
        "Transformer-XL": "2019-01", "XLNet": "2019-06", "Multi-query attention": "2019-11",
        "Reformer": "2020-01", "Longformer": "2020-04", "BigBird": "2020-07", "Performer": "2020-09",
        "ALiBi": "2021-08", "FlashAttention": "2022-05", "Grouped queries": "2023-05",
        "Mamba": "2023-12", "Mamba-2": "2024-05",
    }.items(),
)  # fmt: skip
def test_a_paper_is_at_its_date(name: str, date: str) -> None:
    found = {row["name"]: row["date"] for row in FIGURE.data({})["rows"]}
    assert found[name] == date


def test_it_opens_in_the_order_of_time_and_shows_a_thread() -> None:
    dates = [row["date"] for row in FIGURE.data({})["rows"]]
    assert dates == sorted(dates)
    assert {row["name"] for row in FIGURE.data({"thread": "beyond"})["rows"]} == {
        "Reformer", "Longformer", "Linear attention", "BigBird", "Performer", "Mamba", "Jamba", "Mamba-2",
    }  # fmt: skip


def test_its_picture_has_the_date_of_every_paper() -> None:
    svg = FIGURE.svg({})
    for event in EVENTS:
        assert re.search(rf">{re.escape(event.name)}</text>.*?>{event.date}</text>", svg), event.name


def test_months_between_papers() -> None:
    assert FACTS["timeline-to-flash"].text == str((2022 - 2017) * 12 + 5 - 6)
    assert FACTS["timeline-mqa-gqa"].text == str((2023 - 2019) * 12 + 5 - 11)
    assert FACTS["timeline-papers"].text == str(len(EVENTS))
