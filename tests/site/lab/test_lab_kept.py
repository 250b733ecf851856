"""What is kept of late computations: one for all who ask, and nobody waits for somebody else's."""

import threading

from lab.kept import Kept

SECONDS = 20  # after which a thread that waits in vain gives up


def test_who_asks_for_something_else_does_not_wait():
    kept: Kept[str, str] = Kept(4)
    began, may_end = threading.Event(), threading.Event()

    def slow() -> str:
        began.set()
        assert may_end.wait(SECONDS)
        return "slow"

    thread = threading.Thread(target=lambda: kept.get("a", slow))
    thread.start()
    assert began.wait(SECONDS)
    found: list[str | None] = []
    other = threading.Thread(target=lambda: found.append(kept.get("b", lambda: "quick")))
    other.start()
    other.join(SECONDS)
    may_end.set()
    thread.join(SECONDS)
    assert found == ["quick"]
    assert list(kept.found) == ["b", "a"]


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
