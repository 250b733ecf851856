"""Tiles that the kernels visit are those that hold a visible pair, counted without looking at a pair."""

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernels.engines.reference import reference
from kernels.flash.visits import Visits, visits, visits_of_keys
from kernels.spec import RunSpec
from tests.kernels.cases import make

SIDES = st.none() | st.sampled_from([0, 1, 7, 16, 40])
LENGTHS = st.sampled_from([0, 1, 15, 16, 17, 40, 65])
BLOCKS = st.sampled_from([16, 32, 64])


def counted(seen: np.ndarray, block_m: int, block_n: int) -> Visits:
    """Of one head's visible pairs."""
    tiles = loads = pairs = 0
    for i in range(0, seen.shape[0], block_m):
        for j in range(0, seen.shape[1], block_n):
            tile = seen[i : i + block_m, j : j + block_n]
            if tile.any():
                tiles, loads, pairs = tiles + 1, loads + tile.shape[1], pairs + tile.size
    return Visits(tiles, loads, pairs)


def problem(data: st.DataObject, *, ragged: bool = False) -> tuple[RunSpec, np.ndarray]:
    """(spec, visible pairs [batch, q_len, kv_len])."""
    attention = {
        "is_causal": data.draw(st.booleans()),
        "window": [data.draw(SIDES), data.draw(SIDES)],
        "causal_alignment": data.draw(st.sampled_from(["bottom_right", "top_left"])),
        "q_positions": data.draw(st.none() | st.integers(-30, 70)),
    }
    q_len, kv_len = data.draw(LENGTHS), data.draw(LENGTHS)
    batch = 3 if ragged else 1
    lengths = {"q_lens": q_len, "kv_lens": kv_len} if ragged else {}
    inputs = {name: [data.draw(st.integers(0, n)) for _ in range(batch)] for name, n in lengths.items()}
    spec, arrays = make("reference", (batch, 1, 1, q_len, kv_len, 2), attention=attention, inputs=inputs)
    return spec, np.isfinite(reference(spec, arrays, ("masked_scores",))["masked_scores"])[:, 0]


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data(), BLOCKS, BLOCKS)
def test_as_many_as_hold_a_visible_pair(data: st.DataObject, block_m: int, block_n: int) -> None:
    spec, seen = problem(data)
    assert visits(spec, block_m, block_n) == counted(seen[0], block_m, block_n)
    assert visits_of_keys(spec, block_m, block_n) == counted(seen[0].T, block_n, block_m)


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data(), BLOCKS, BLOCKS, st.sampled_from([2, 3, 128]))
def test_rows_of_several_heads_stand_where_their_query_does(
    data: st.DataObject, block_m: int, block_n: int, heads: int
) -> None:
    spec, seen = problem(data)
    rows = np.repeat(seen[0], heads, axis=0)
    assert visits(spec, block_m, block_n, group=heads) == counted(rows, block_m, block_n)


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data(), BLOCKS, BLOCKS)
def test_never_fewer_than_a_ragged_batch_may_need(data: st.DataObject, block_m: int, block_n: int) -> None:
    spec, seen = problem(data, ragged=True)
    most, of_keys = visits(spec, block_m, block_n), visits_of_keys(spec, block_m, block_n)
    for row in seen:
        assert all(np.array(counted(row, block_m, block_n)) <= most)
        assert all(np.array(counted(row.T, block_n, block_m)) <= of_keys)
