"""Pages beside contiguous reservations: figures counted slot by slot, and the claims made for paging."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.serving import paging
from kernels.serving.bodies import paged_allocator
from kernels.serving.contiguous_allocator import ContiguousAllocator, NoHole
from kernels.serving.events import EventLog
from kernels.serving.paging import Operation, Workload
from kernels.serving.timeline import ranges

REQUESTS = st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9)), max_size=30)


@given(REQUESTS)
def test_first_fit_is_what_a_bitmap_finds(requests):
    """Each request wants a run of some length, and before that one of those there ends."""
    cache, bitmap, alive = ContiguousAllocator(20), [None] * 20, []
    for number, (reserve, ends) in enumerate(requests):
        if alive and ends < 7:
            name = alive.pop(ends % len(alive))
            cache.free(name)
            bitmap = [None if holder == name else holder for holder in bitmap]
        free = [slot for slot in range(21 - reserve) if bitmap[slot : slot + reserve] == [None] * reserve]
        if not free:
            with pytest.raises(NoHole):
                cache.allocate(str(number), 0, reserve)
        else:
            cache.allocate(str(number), 0, reserve)
            assert cache.runs[str(number)].start == free[0]
            bitmap[free[0] : free[0] + reserve] = [str(number)] * reserve
            alive.append(str(number))
        holes = "".join("." if holder is None else "#" for holder in bitmap).split("#")
        sizes = [len(hole) for hole in holes if hole]
        assert [size for _, size in cache.holes()] == sizes
        assert cache.reserved() == 20 - sum(sizes)
        assert cache.external_fragmentation() == (1 - max(sizes) / sum(sizes) if sizes else 0)


def test_memory_enough_in_all_but_not_in_one_piece():
    """Six slots free, in holes of three: external fragmentation, which pages do not have."""
    operations = [Operation("allocate", name, 3) for name in "abcd"]
    operations += [Operation("free", "a"), Operation("free", "c"), Operation("allocate", "e", 6)]
    answer = paging.compare(operations, num_blocks=12, block_size=1, max_len=6, log=EventLog())
    contiguous = answer["summary"]["contiguous"]["oracle"]
    assert contiguous["refused"] == 1
    assert answer["timeline"]["contiguous"]["oracle"]["external_fragmentation"][-1] == 0.5
    assert answer["summary"]["paged"]["refused"] == 0
    assert answer["sequences"]["e"]["length"] == 6


def test_reserving_the_maximum_wastes_what_does_not_come():
    """One token of 16 in use: 15/16 of a reservation of max_len, 3/4 of a block."""
    answer = paging.compare([Operation("allocate", "a", 1)], 8, 4, 16, EventLog())
    summary = answer["summary"]
    assert summary["contiguous"]["max"]["wasted_share"] == 15 / 16
    assert summary["contiguous"]["oracle"]["wasted_share"] == 0
    assert summary["paged"]["wasted_share"] == 3 / 4


def test_the_next_power_of_two_of_the_length_that_comes():
    operations = [Operation("allocate", "a", 5), Operation("append", "a", 4), Operation("allocate", "b", 8)]
    row = paging.compare(operations, 16, 4, 32, EventLog())["timeline"]["contiguous"]
    assert row["pow2"]["reserved"] == [16, 16, 24]
    assert row["oracle"]["reserved"] == [9, 9, 17]
    assert row["max"]["reserved"] == [32, 32, 64]


def test_pages_waste_less_than_four_percent_where_reservations_waste_most_of_it():
    """The figures that vLLM is known for, in a workload like theirs: long contexts, short answers."""
    workload = Workload(12, 6, 1, (100, 900), (50, 150), seed=3)
    summary = paging.compare(workload.operations(), 400, 16, 2048, EventLog())["summary"]
    assert summary["paged"]["wasted_share"] < 0.04
    assert 0.6 < summary["contiguous"]["max"]["wasted_share"] < 0.8
    assert summary["contiguous"]["max"]["refused"] > 0 == summary["paged"]["refused"]


def test_samples_of_one_prompt_share_it():
    """Four answers to a prompt of 16 blocks: 16 blocks and those of the answers instead of 64 and those."""
    workload = Workload(1, 1, 4, (64, 64), (4, 4), seed=0)
    answer = paging.compare(workload.operations(), 40, 4, 100, EventLog())
    timeline = answer["timeline"]["paged"]
    assert max(timeline["blocks"]) == 16 + 4
    assert max(timeline["table_entries"]) == 4 * (16 + 1)
    saved = 1 - sum(timeline["blocks"]) / sum(timeline["table_entries"])
    assert answer["summary"]["paged"]["saved_by_sharing"] == pytest.approx(saved)
    assert saved > 0.6
    assert answer["summary"]["paged"]["copies"] == 0  # the prompt fills its blocks


@given(st.integers(0, 2**63 - 1))
def test_a_workload_is_its_seed_and_ends_with_everything_free(seed):
    workload = Workload(5, 2, 2, (1, 9), (1, 6), seed)
    operations = workload.operations()
    assert operations == Workload(5, 2, 2, (1, 9), (1, 6), seed).operations()
    answer = paging.compare(operations, 20, 4, 15, EventLog())
    assert answer["free_blocks"] == list(range(20))
    assert max(answer["timeline"]["paged"]["tokens"]) <= 2 * 2 * 15
    appended = [each.sequence for each in operations if each.op == "append"]
    assert len(appended) == sum(sum(outputs) for _, outputs in workload.lengths())


def test_what_follows_on_a_sequence_that_found_no_room_is_skipped():
    answer = paged_allocator.simulate(
        {
            "num_blocks": 1,
            "block_size": 4,
            "operations": [
                {"op": "allocate", "sequence": "a", "tokens": 5},
                {"op": "append", "sequence": "a"},
                {"op": "fork", "sequence": "b", "from": "a"},
                {"op": "free", "sequence": "a"},
                {"op": "allocate", "sequence": "c", "tokens": 4},
            ],
        }
    )
    assert [event["kind"] for event in answer["events"]] == ["out_of_memory", *["skipped"] * 3, "allocate"]
    assert answer["events"][0]["details"] == {"op": "allocate", "needed": 2, "free": 1}
    assert answer["summary"]["paged"]["refused"] == 1


def test_a_fork_of_a_sequence_that_could_not_grow_has_what_there_is():
    """Eight tokens were asked for and four are there: a fork of all of it has four."""
    operations = [
        Operation("allocate", "a", 4),
        Operation("append", "a", 4),
        Operation("fork", "b", 8, "a"),
        Operation("append", "b", 1),
    ]
    answer = paging.compare(operations, num_blocks=1, block_size=4, max_len=9, log=EventLog())
    assert answer["sequences"] == {name: {"length": 4, "table": [0]} for name in "ab"}
    assert answer["summary"]["paged"]["refused"] == 2


def test_slots_are_logged_as_runs_of_neighbours():
    assert ranges([4, 5, 6, 12, 13, 3]) == [[4, 6], [12, 13], [3, 3]]
    assert ranges([]) == []
