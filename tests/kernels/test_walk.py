"""The walk over the tiles of a head, against the whole mask that the reference makes."""

import itertools

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernels.engines.reference import reference
from kernels.flash.schedule import FULL, MASKED, SKIPPED, deciding, schedule_of
from kernels.flash.walk import finish_time, walk
from tests.kernels.cases import Case, cases, make

TILES = st.sampled_from([(16, 16), (32, 16), (16, 64)])
LENGTHS = st.sampled_from([1, 16, 17, 33, 50])


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(cases("flash", q_lens=LENGTHS, kv_lens=LENGTHS), TILES)
def test_of_each_head_it_is_what_the_mask_says(case: Case, tiles: tuple[int, int]) -> None:
    spec, arrays = case.on("flash")
    seen = np.isfinite(reference(spec, arrays, ("masked_scores",))["masked_scores"])
    whole = schedule_of(spec, arrays, tiles)
    for b, h in itertools.product(range(spec.batch), range(spec.num_heads)):
        found = walk(deciding(spec, arrays), tiles, b, h)
        np.testing.assert_array_equal(found.kinds, whole[b, h])
        assert found.pairs == seen[b, h].sum()
        loads = 0
        for i, j in found.visits:
            loads += min(tiles[1], spec.kv_len - j * tiles[1])
            assert found.kinds[i, j] != SKIPPED
        assert found.keys_loaded == loads
        assert found.visited == len(found.visits) == found.work.sum()
        assert found.pairs_computed == found.visited * tiles[0] * tiles[1] >= found.pairs
        assert sum(found.count(kind) for kind in (SKIPPED, MASKED, FULL)) == found.kinds.size


def test_visits_come_program_by_program_from_left_to_right() -> None:
    spec, _ = make("flash", (1, 1, 1, 48, 48, 4), attention={"is_causal": True})
    found = walk(deciding(spec, {}), (16, 16), 0, 0)
    assert found.visits.tolist() == [[0, 0], [1, 0], [1, 1], [2, 0], [2, 1], [2, 2]]
    assert found.work.tolist() == [1, 2, 3]


def test_there_is_no_head_beyond_the_last() -> None:
    spec, _ = make("flash", (1, 2, 1, 48, 48, 4))
    with pytest.raises(IndexError, match="no head 2"):
        walk(deciding(spec, {}), (16, 16), 0, 2)


@pytest.mark.parametrize(
    ("work", "places", "end"),
    [
        ([1, 2, 3, 4], 1, 10),
        ([1, 2, 3, 4], 4, 4),
        ([1, 2, 3, 4], 2, 6),  # 1 then 3 beside 2 then 4
        ([4, 3, 2, 1], 2, 5),  # 4 then 1 beside 3 then 2
        ([], 3, 0),
    ],
)
def test_programs_follow_one_another_where_a_place_is_free(work: list[int], places: int, end: int) -> None:
    assert finish_time(work, places) == end
