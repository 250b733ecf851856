"""The online softmax of one row, its mistakes and the merge of parts, against softmax over all at once."""

import itertools
import math
from functools import reduce

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kernels.arrays import generate
from kernels.flash.online import MISTAKES, merge, merge_all, normalised, one_pass, state_of
from kernels.flash.steps import State
from kernels.mistakes import online_softmax

FINITE = st.floats(-60, 60)
SCORES = st.lists(st.one_of(FINITE, st.just(-math.inf)), min_size=1, max_size=9)


def values_for(scores: np.ndarray) -> np.ndarray:
    return generate("online/v", 1, (len(scores), 3), "normal", "float64")


def at_once(scores: np.ndarray, values: np.ndarray) -> tuple[float, np.ndarray]:
    """LSE and output, by PyTorch; nothing where every key is masked."""
    s, v = torch.tensor(scores), torch.tensor(values)
    if np.isneginf(scores).all():
        return -math.inf, np.zeros(values.shape[1])
    return float(torch.logsumexp(s, 0)), (torch.softmax(s, 0) @ v).numpy()


@given(SCORES, st.integers(1, 10))
def test_after_every_tile_it_is_softmax_over_the_keys_so_far(row: list[float], block: int) -> None:
    scores = np.array(row)
    values = values_for(scores)
    tiles = one_pass(scores, values, block)
    assert [tile.first for tile in tiles] == list(range(0, len(scores), block))
    for tile in tiles:
        lse, out = at_once(scores[: tile.end], values[: tile.end])
        assert tile.after.lse == pytest.approx(lse, abs=1e-12)
        np.testing.assert_allclose(tile.after.out, out, atol=1e-12)
        assert tile.after.m == scores[: tile.end].max()


@given(SCORES, st.data())
def test_parts_are_merged_in_any_order_and_grouping(row: list[float], data: st.DataObject) -> None:
    scores = np.array(row)
    values = values_for(scores)
    where = np.array(data.draw(st.lists(st.integers(0, 2), min_size=len(row), max_size=len(row))))
    states = [state_of(scores[where == part], values[where == part]) for part in range(3)]
    lse, out = at_once(scores, values)
    for a, b, c in itertools.permutations(states):
        for whole in (merge(merge(a, b), c), merge(a, merge(b, c)), merge_all([c, normalised(b), a])):
            assert whole.lse == pytest.approx(lse, abs=1e-12)
            np.testing.assert_allclose(whole.out, out, atol=1e-12)


def test_no_key_changes_nothing() -> None:
    none = state_of(np.empty(0), np.empty((0, 2)))
    some = state_of(np.array([3.0, -1.0]), np.array([[1.0, 2.0], [3.0, 4.0]]))
    for whole in (merge(none, some), merge(some, none), merge_all([none, none, some])):
        assert (whole.m, whole.l, *whole.o) == (some.m, some.l, *some.o)
    assert (none.m, none.l, *none.o) == (-math.inf, 0, 0, 0)
    assert merge(none, none).lse == -math.inf


# -- what is done wrong --------------------------------------------------------------------------------------

ROW, VALUES = np.array([1.0, 0, 3, 1, 2, 0, 5, 4]), np.array([8.0, 6, 2, 4, 3, 7, 1, 0])[:, None]


def result(mistake: str | None, scores: np.ndarray = ROW, block: int = 2, dtype: str = "float64") -> float:
    with np.errstate(invalid="ignore"):
        last: State = one_pass(scores, VALUES, block, dtype=dtype, mistake=mistake)[-1].after
        return float(last.out[0])


def right(scores: np.ndarray = ROW) -> float:
    return float(at_once(scores, VALUES)[1][0])


def test_what_is_not_rescaled_keeps_the_maximum_of_its_tile() -> None:
    """Written out: a key counts as exp(s − m) with the m after its tile, or with the last one."""
    then = np.exp(ROW - np.repeat(np.maximum.accumulate(ROW.reshape(4, 2).max(1)), 2))
    last = np.exp(ROW - 5)
    v = VALUES[:, 0]
    assert result("out") == pytest.approx(then @ v / last.sum())
    assert result("sum") == pytest.approx(last @ v / then.sum())
    assert result("both") == pytest.approx(then @ v / then.sum())
    assert min(v) < result("both") < max(v) < result("out")


@pytest.mark.parametrize("mistake", ["out", "sum", "both"])
def test_a_mistake_of_rescaling_is_hidden_where_no_later_tile_has_more(mistake: str) -> None:
    falling = -np.sort(-ROW)
    assert result(mistake, falling) == pytest.approx(right(falling))
    assert result(mistake, block=8) == pytest.approx(right())


@pytest.mark.parametrize("shift", [-60, -20, -3, 0, 40])
def test_a_maximum_that_starts_at_0_only_has_to_be_near(shift: int) -> None:
    assert result("zero", ROW + shift, dtype="float32") == pytest.approx(right(), rel=1e-5)


def test_where_it_is_too_far_everything_is_0_and_nothing_is_said() -> None:
    assert result("zero", ROW - 120, dtype="float32") == 0
    assert result("zero", ROW - 30, dtype="float16") == 0
    assert result(None, ROW - 120, dtype="float32") == pytest.approx(right(), rel=1e-5)


def test_a_first_tile_without_a_key() -> None:
    masked = np.where(np.arange(8) < 2, -np.inf, ROW)
    assert math.isnan(result("infinite", masked))
    assert result("infinite") == pytest.approx(right())
    assert result(None, masked) == pytest.approx(right(masked))
    assert result(None, np.full(8, -np.inf)) == 0


@pytest.mark.parametrize(("dtype", "largest"), [("float16", 11.09), ("float32", 88.72)])
def test_nothing_subtracted_overflows_where_the_page_says(dtype: str, largest: float) -> None:
    for above, fits in ((-0.01, True), (0.01, False)):
        row = np.array([-np.inf, largest + above])
        (tile,) = one_pass(row, np.ones((2, 1)), 2, dtype=dtype, mistake="plain")
        assert math.isfinite(tile.after.l) == fits
        assert one_pass(row, np.ones((2, 1)), 2, dtype=dtype)[-1].after.l == 1


def test_a_format_rounds_every_number() -> None:
    """As a loop in PyTorch over float16 does."""
    half = torch.float16
    m, total, out = (
        torch.tensor(-math.inf, dtype=half),
        torch.tensor(0, dtype=half),
        torch.tensor(0, dtype=half),
    )
    for s, v in zip(torch.tensor(ROW, dtype=half), torch.tensor(VALUES[:, 0], dtype=half), strict=True):
        new = torch.maximum(m, s)
        by, weight = torch.exp(m - new), torch.exp(s - new)
        m, total, out = new, total * by + weight, out * by + weight * v
    assert result(None, block=1, dtype="float16") == pytest.approx(float(out) / float(total), rel=2e-3)
    assert result(None, dtype="float16") != result(None)


def test_the_program_without_a_mistake_is_the_same() -> None:
    """Beside the program in circulation, mended."""
    scores = generate("online/s", 2, (1, 40), "normal", "float64") * 4
    values = values_for(scores[0])
    mended = online_softmax(np.ones((1, 1)), scores.T, values, scale=1.0, block=7)
    np.testing.assert_allclose(one_pass(scores[0], values, 7)[-1].after.out, mended[0], atol=1e-12)


def test_a_mistake_that_is_not_there() -> None:
    with pytest.raises(ValueError, match=f"mistake must be one of {', '.join(MISTAKES)}, not 'other'"):
        one_pass(ROW, VALUES, 2, mistake="other")


def test_a_loop_over_tiles_is_a_merge_repeated() -> None:
    parts = [state_of(ROW[at : at + 2], VALUES[at : at + 2]) for at in range(0, 8, 2)]
    for tile, merged in zip(one_pass(ROW, VALUES, 2), itertools.accumulate(parts, merge), strict=True):
        assert (tile.after.m, tile.after.l) == pytest.approx((merged.m, merged.l), rel=1e-14)
    assert reduce(merge, parts).out[0] == pytest.approx(right())
