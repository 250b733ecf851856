"""Attention with every sum in a stated order, held to numbers that are added one by one."""

import numpy as np
import pytest
import torch

from kernels.arrays import generate, round_to_dtype
from kernels.flash.bits import DTYPES, agreement, exactly, in_tiles, one_by_one


def inputs(n: int = 5, m: int = 24, d: int = 8):
    return [
        generate(name, 3, (rows, d), "normal", "float64") for name, rows in (("q", n), ("k", m), ("v", m))
    ]


def rounded(x, dtype: str) -> np.float32:
    return np.float32(round_to_dtype(np.array([x], np.float32), dtype)[0])


def exp(x: np.float32) -> np.float32:
    return np.float32(np.exp(np.float64(x)))


def number_by_number(q, k, v, dtype: str, block: int | None) -> np.ndarray:
    """Scalars of float32, in the order that the module states. `block` None: one operation after another."""
    q, k, v = (round_to_dtype(x, dtype).astype(np.float32) for x in (q, k, v))
    out = np.zeros((len(q), v.shape[1]), np.float32)
    for i in range(len(q)):
        s = []
        for j in range(len(k)):
            total = np.float32(0)
            for at in range(q.shape[1]):
                total = np.float32(total + np.float32(q[i, at] * k[j, at]))
            s.append(np.float32(total * np.float32(q.shape[1] ** -0.5)))
        if block is None:
            s = [rounded(x, dtype) for x in s]
        m, ell, o = np.float32(-np.inf), np.float32(0), np.zeros(v.shape[1], np.float32)
        step = block or len(k)
        for first in range(0, len(k), step):
            tile = range(first, min(first + step, len(k)))
            raised = max(m, *(s[j] for j in tile))
            by = exp(m - raised)
            ell, o, m = np.float32(ell * by), o * by, raised
            weights = [exp(s[j] - raised) for j in tile]
            for weight in weights:
                ell = np.float32(ell + weight)
            for j, weight in zip(tile, weights, strict=True):
                share = rounded(weight if block else np.float32(weight / ell), dtype)
                o = o + share * v[j]
        out[i] = o / ell if block else o
    return round_to_dtype(out, dtype).astype(np.float32)


@pytest.mark.parametrize("dtype", DTYPES)
def test_both_are_what_their_order_says(dtype: str) -> None:
    q, k, v = inputs()
    assert np.array_equal(one_by_one(q, k, v, dtype), number_by_number(q, k, v, dtype, None))
    for block in (1, 7, 24, 100):
        assert np.array_equal(in_tiles(q, k, v, block, dtype), number_by_number(q, k, v, dtype, block))


@pytest.mark.parametrize("dtype", DTYPES)
def test_both_are_attention(dtype: str) -> None:
    q, k, v = inputs(7, 40, 16)
    exact = exactly(q, k, v, dtype)
    given = [torch.tensor(round_to_dtype(x, dtype)).double()[None] for x in (q, k, v)]
    assert exact == pytest.approx(
        torch.nn.functional.scaled_dot_product_attention(*given)[0].numpy(), rel=1e-12
    )
    near = {"float32": 2e-6, "float16": 2e-3, "bfloat16": 2e-2}[dtype]
    for result in (one_by_one(q, k, v, dtype), in_tiles(q, k, v, 16, dtype)):
        assert np.abs(result - exact).max() < near


def test_agreement_counts_equal_bits_and_errors() -> None:
    first, second = np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[1.0, 2.5], [3.0, 3.0]])
    found = agreement(first, second, np.array([[1.0, 2.0], [3.0, 3.75]]))
    assert (found.equal, found.largest, found.first_error, found.second_error) == (0.5, 1.0, 0.25, 0.75)
    assert found.difference.tolist() == [[0, 0.5], [0, -1]]
