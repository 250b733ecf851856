"""What is kept of late computations: one for all who ask, and nobody waits for somebody else's."""

import threading

import pytest

from api import preferences
from api.computing import Busy
from lab import kept as module
from lab.kept import Kept

SECONDS = 20  # after which a thread that waits in vain gives up


def test_all_who_ask_for_the_same_share_one_computation():
    kept: Kept[str, int] = Kept(4)
    count: list[int] = []
    all_ask = threading.Barrier(4, timeout=SECONDS)

    def compute() -> int:
        count.append(1)
        return 7

    def ask() -> None:
        all_ask.wait()
        assert kept.get("a", compute) == 7

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    assert count == [1]
    assert not kept.turns, "nobody waits any more"


def test_nothing_is_not_kept_and_the_oldest_go():
    kept: Kept[int, int] = Kept(2)
    assert kept.get(0, lambda: None) is None
    for number in range(3):
        assert kept.get(number, [number].pop) == number
    assert list(kept.found) == [1, 2]
    assert kept.get(1, lambda: 9) == 1


@pytest.fixture
def under_way(monkeypatch):
    """Something that is being computed until the test lets it end, while one request more may wait."""
    monkeypatch.setattr(preferences, "_waiting", threading.BoundedSemaphore(1))
    kept: Kept[str, str] = Kept(4)
    began, may_end = threading.Event(), threading.Event()

    def slow() -> str:
        began.set()
        assert may_end.wait(SECONDS)
        return "slow"

    thread = threading.Thread(target=lambda: kept.get("a", slow))
    thread.start()
    assert began.wait(SECONDS)
    yield kept
    may_end.set()
    thread.join(SECONDS)
    assert kept.get("a", lambda: "again") == "slow"


def test_who_asks_for_something_else_does_not_wait(under_way):
    found: list[str | None] = []
    other = threading.Thread(target=lambda: found.append(under_way.get("b", lambda: "quick")))
    other.start()
    other.join(SECONDS)
    assert found == ["quick"]
    assert list(under_way.found) == ["b"], "the other is still under way"


def test_where_too_many_wait_the_next_is_told_when_to_come_again(under_way):
    with preferences.place_to_wait() as admitted:
        assert admitted
        with pytest.raises(Busy) as refused:
            under_way.get("a", lambda: "again")
    assert refused.value.retry_after == 1
    assert "computed for others already" in refused.value.detail


def test_nobody_waits_for_ever(under_way, monkeypatch):
    monkeypatch.setattr(module, "WAIT_SECONDS", 0.01)
    with pytest.raises(Busy):
        under_way.get("a", lambda: "again")
    with preferences.place_to_wait() as admitted:
        assert admitted, "whoever gave up has left the place to others"
