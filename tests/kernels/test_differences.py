"""What differs between two computations, cell by cell, against whole matrices by plain numpy."""

import numpy as np
import pytest

from kernels import closeup, differences
from kernels.arrays import generate
from kernels.differences import CHANGED, NEITHER, ONLY_FIRST, ONLY_SECOND, SAME
from kernels.spec import parse_run

N, M, D = 6, 9, 4


def plain(attention, dtype="float64"):
    """(scores, masked, weights, out) of the one head, by the equations and nothing of ours."""
    q, k, v = (
        generate(name, 3, (1, 1, length, D), "normal", dtype).astype(np.float64)[0, 0]
        for name, length in (("q", N), ("k", M), ("v", M))
    )
    scores = q @ k.T / np.sqrt(D)
    masked = scores.copy()
    if attention.get("is_causal"):
        away = M - N if attention.get("causal_alignment", "bottom_right") == "bottom_right" else 0
        masked[np.arange(M)[None] > np.arange(N)[:, None] + away] = -np.inf
    weights = np.exp(masked - masked.max(1, keepdims=True))
    weights /= weights.sum(1, keepdims=True)
    return {"scores": scores, "masked_scores": masked, "weights": weights, "out": weights @ v}


def head(attention, dtype="float64"):
    shapes = {"q": [1, 1, N, D], "k": [1, 1, M, D], "v": [1, 1, M, D]}
    inputs = {name: {"seed": 3, "shape": shape, "distribution": "normal"} for name, shape in shapes.items()}
    spec = parse_run({"engine": "flash", "inputs": inputs, "attention": attention}).spec
    made = {name: generate(name, 3, tuple(shape), "normal", dtype) for name, shape in shapes.items()}
    return closeup.one_head(closeup.look(spec, made), 0, 0)


BOTTOM, TOP = {"is_causal": True}, {"is_causal": True, "causal_alignment": "top_left"}


@pytest.mark.parametrize("strip", [1 << 20, M, 2 * M])
@pytest.mark.parametrize(
    ("one", "other"), [(BOTTOM, TOP), (TOP, BOTTOM), ({}, BOTTOM), (BOTTOM, BOTTOM)], ids=str
)
def test_every_cell_that_changed_and_no_other(monkeypatch, one, other, strip):
    monkeypatch.setattr(closeup, "STRIP", strip)
    found = differences.compare(head(one), head(other), 64)
    first, second = plain(one), plain(other)
    for name in ("scores", "masked_scores", "weights", "out"):
        a, b = first[name], second[name]
        with np.errstate(invalid="ignore"):
            apart = b - a
        same = np.isclose(a, b, rtol=1e-10, atol=1e-14)
        it = found.of[name]
        assert it.count == np.count_nonzero(~same), name
        assert it.changed_rows == np.count_nonzero((~same).any(1))
        assert np.allclose(it.picture, np.where(same & np.isfinite(a), 0, apart), atol=1e-12, equal_nan=True)
        finite = np.abs(apart[np.isfinite(apart)])
        assert it.largest == pytest.approx(finite.max(), abs=1e-12)
    seen = [~np.isneginf(x["masked_scores"]) for x in (first, second)]
    masked = found.of["masked_scores"]
    assert masked.only_first == np.count_nonzero(seen[0] & ~seen[1])
    assert masked.only_second == np.count_nonzero(seen[1] & ~seen[0])
    moved = ~np.isclose(first["weights"], second["weights"], rtol=1e-10, atol=1e-14)
    kinds = np.where(moved, CHANGED, SAME)
    kinds[seen[0] & ~seen[1]] = ONLY_FIRST
    kinds[seen[1] & ~seen[0]] = ONLY_SECOND
    kinds[~seen[0] & ~seen[1]] = NEITHER
    assert np.array_equal(found.kinds, kinds)
    assert (found.seen_by_both, found.seen_by_neither) == (
        np.count_nonzero(seen[0] & seen[1]),
        np.count_nonzero(kinds == NEITHER),
    )


def test_the_largest_differences_are_listed_with_both_numbers(monkeypatch):
    monkeypatch.setattr(closeup, "STRIP", 2 * M)
    found = differences.compare(head(BOTTOM), head(TOP), 64)
    a, b = plain(BOTTOM)["weights"], plain(TOP)["weights"]
    order = np.argsort(-np.abs(b - a), axis=None)[: differences.TOP]
    listed = found.of["weights"].top
    assert [(each.row, each.column) for each in listed] == [divmod(int(at), M) for at in order]
    assert [each.first for each in listed] == pytest.approx(a.flat[order])
    assert [each.difference for each in listed] == pytest.approx((b - a).flat[order])


def test_a_picture_keeps_the_largest_difference_of_each_block_with_its_sign():
    first = np.zeros((10, 7))
    second = first.copy()
    second[3, 5], second[2, 4], second[9, 0] = -2.0, 1.5, 0.25
    one = differences.of_arrays(first, second, 5)
    assert one.picture.shape == (5, 4)
    assert one.picture[1, 2] == -2.0
    assert one.picture[4, 0] == 0.25
    assert np.count_nonzero(one.picture) == 2
    assert (one.count, one.largest, one.first_row, one.last_row) == (3, 2.0, 2, 9)


def test_what_rounding_explains_has_not_changed():
    first = np.array([[1.0, 2.0], [3.0, 4.0]])
    one = differences.of_arrays(first, first + np.array([[1e-3, 0.0], [0.0, 0.5]]), 64, allowed=1e-2)
    assert (one.count, one.share, one.changed_rows) == (1, 0.25, 1)
    assert one.largest == 0.5


def test_noise_of_another_order_of_sums_is_no_change():
    first = np.array([[1e6, 1.0]])
    assert differences.of_arrays(first, first + np.array([[1e-9, 1e-9]]), 64).count == 0
    assert differences.of_arrays(first, first + np.array([[0.0, 1e-5]]), 64).count == 1


def test_nan_and_infinity():
    first = np.array([[np.nan, np.nan, np.inf, 1.0]])
    second = np.array([[np.nan, 1.0, np.inf, np.inf]])
    one = differences.of_arrays(first, second, 64)
    assert one.count == 2
    assert one.largest == 0.0


def test_where_one_has_padding_nothing_is_seen_there():
    """Five of nine keys: cut off, they are as if masked."""
    shapes = {"q": [1, 1, N, D], "k": [1, 1, M, D], "v": [1, 1, M, D]}
    inputs = {name: {"seed": 3, "shape": shape, "distribution": "normal"} for name, shape in shapes.items()}
    spec = parse_run({"engine": "flash", "inputs": {**inputs, "kv_lens": [5]}}).spec
    made = {name: generate(name, 3, tuple(shape), "normal", "float64") for name, shape in shapes.items()}
    cut = closeup.one_head(closeup.look(spec, {**made, "kv_lens": np.array([5])}), 0, 0)
    found = differences.compare(head({}), cut, 64)
    assert found.of["masked_scores"].only_first == N * (M - 5)
    assert (found.of["weights"].rows, found.of["weights"].columns) == (N, M)
    assert np.allclose(found.of["weights"].picture[:, 5:], -plain({})["weights"][:, 5:])


def test_no_queries_are_no_differences():
    one = differences.of_arrays(np.zeros((0, 4)), np.zeros((0, 4)), 64)
    assert (one.count, one.share, one.picture.shape, one.top) == (0, 0.0, (0, 4), [])
