"""Full text in the database: what is kept is found, by either database alike, and nothing out of date."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import connection, connections

from workers.search import KEPT, Asked, SearchEdition, holding, keep

DOCUMENTS = [["flash", "attention"], ["online", "softmax"], ["flash", "decoding", "émile"], []]


@pytest.fixture
def edition(db: None) -> str:
    keep("one", DOCUMENTS)
    return "one"


def test_documents_are_found_by_their_words(edition: str) -> None:
    assert holding(edition, [Asked(("flash",))]) == [0, 2]
    assert holding(edition, [Asked(("flash",)), Asked(("decoding",))]) == [2]
    assert holding(edition, [Asked(("flash",)), Asked(("softmax",))]) == []
    assert holding(edition, [Asked(("flash",)), Asked(("softmax",))], every=False) == [0, 1, 2]
    assert holding(edition, [Asked(("softmax", "decoding"))]) == [1, 2]
    assert holding(edition, [Asked((), "atten")]) == [0]
    assert holding(edition, [Asked(("online",), "deco")]) == [1, 2]


def test_words_are_taken_as_they_are(edition: str) -> None:
    """No language of the database's own: no stemming, no accents dropped, no word too common to be found."""
    keep("two", [["the"], ["masks"], ["1e5"], ["émile"]])
    assert holding("two", [Asked(("the",))]) == [0]
    assert holding("two", [Asked(("mask",))]) == []
    assert holding("two", [Asked(("1e5",))]) == [2]
    assert holding("two", [Asked(("émile",))]) == [3]
    assert holding("two", [Asked(("emile",))]) == []


def test_operators_are_words(edition: str) -> None:
    for word in ("OR", "AND", "NOT", "NEAR", "words", "edition"):
        assert holding(edition, [Asked((word.lower(),), word.lower())]) == []


def test_each_edition_answers_for_itself(edition: str) -> None:
    keep("two", [["softmax"]])
    assert holding("two", [Asked(("softmax",))]) == [0]
    assert holding(edition, [Asked(("softmax",))]) == [1]


def test_an_edition_is_stored_once(edition: str) -> None:
    keep(edition, DOCUMENTS)
    assert holding(edition, [Asked(("flash",))]) == [0, 2]


def test_an_edition_whose_row_was_lost_is_whole_again(edition: str) -> None:
    SearchEdition.objects.all().delete()
    keep(edition, DOCUMENTS)
    assert holding(edition, [Asked(("flash",))]) == [0, 2]


def test_old_editions_go(db: None) -> None:
    for number in range(KEPT + 3):
        keep(f"edition {number}", [["word"]])
    with connection.cursor() as cursor:
        cursor.execute("SELECT DISTINCT edition FROM workers_search")
        kept = {edition for (edition,) in cursor.fetchall()}
    assert kept == {f"edition {number}" for number in range(3, KEPT + 3)}
    assert set(SearchEdition.objects.values_list("pk", flat=True)) == kept


@pytest.mark.django_db(transaction=True)
def test_processes_that_start_together_store_it_once() -> None:
    def start(_: int) -> None:
        try:
            keep("together", DOCUMENTS)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(start, range(4)))
    with connection.cursor() as cursor:
        cursor.execute("SELECT number FROM workers_search WHERE edition = 'together' ORDER BY number")
        assert [number for (number,) in cursor.fetchall()] == [0, 1, 2, 3]
