"""What the usual lines of attention get wrong, in figures, each beside the same thing done right.

Printed figures are those that were published of single runs, whose random numbers nobody kept.
tests/site/test_sdpa_in_code.py holds each step to PyTorch.
"""

import numpy as np
import pytest

from kernels.arrays import generate
from kernels.engines.reference import attend
from kernels.snippet import REPAIRS, Call, Stopped, attention


def normal(name, *shape, seed=0):
    return generate(f"snippet/{name}", seed, shape, "normal", "float64")


def one_head(q, k, v, mask=None, repaired=(), **more):
    out, weights = attention(Call(q[None], k[None], v[None], mask, **more), repaired)
    return out[0], weights[0]


def test_without_a_mask_it_is_right():
    q, k, v = normal("q", 5, 8), normal("k", 9, 8), normal("v", 9, 3)
    exact = attend(q, k, v, scale=8**-0.5)
    out, weights = one_head(q, k, v)
    np.testing.assert_allclose(out, exact["out"], rtol=1e-13)
    np.testing.assert_allclose(weights, exact["weights"], rtol=1e-13)


def test_a_causal_call_overwrites_the_mask_that_came_along():
    """Printed: a forbidden column still got .127. It gets what it would get without a mask: of 8 keys that
    fit alike an eighth, .125."""
    forbidden = np.zeros((8, 8))
    forbidden[:, 3] = -np.inf
    q, k, v = np.zeros((8, 16)), normal("k", 8, 16), normal("v", 8, 16)
    _, weights = one_head(q, k, v, forbidden, is_causal=True)
    assert weights[-1, 3] == pytest.approx(0.127, abs=0.0025)
    allowed = np.isfinite(forbidden) & np.tri(8, dtype=bool)
    expected = attend(q, k, v, scale=0.25, allowed=allowed)["weights"]
    assert expected[-1, 3] == 0
    _, weights = one_head(q, k, v, forbidden, ("keep",), is_causal=True)
    np.testing.assert_allclose(weights, expected, rtol=1e-13)


@pytest.mark.parametrize(("allowed", "leak"), [(5 / 13, 0.37), (1 / 2, 0.27), (1 / 8, 0.72)])
def test_a_boolean_mask_that_is_added_leaks(allowed, leak):
    """What is allowed gets e times as much as what is not. Printed: .37, which is 5 keys allowed of 13."""
    keys = 104
    k, v = normal("k", keys, 8), normal("v", keys, 8)
    mask = np.arange(keys) < allowed * keys
    _, weights = one_head(np.zeros((1, 8)), k, v, mask[None])
    assert weights[0, ~mask].sum() == pytest.approx(leak, abs=0.005)
    _, weights = one_head(np.zeros((1, 8)), k, v, mask[None], ("boolean",))
    assert weights[0, ~mask].sum() == 0


def test_its_causal_mask_fits_no_past_but_one_of_a_single_token():
    k, v = normal("k", 16, 8), normal("v", 16, 8)
    with pytest.raises(Stopped, match=r"tensor a \(16\) must match the size of tensor b \(4\)"):
        one_head(normal("q", 4, 8), k, v, is_causal=True)
    one = normal("q", 1, 8)
    expected = attend(one, k, v, scale=8**-0.5)["out"]
    np.testing.assert_allclose(one_head(one, k, v, is_causal=True)[0], expected, rtol=1e-13)


def test_a_row_that_sees_nothing_is_nan():
    q, k, v = (normal(name, 3, 4) for name in "qkv")
    mask = np.array([[0.0, 0.0, 0.0], [-np.inf] * 3, [0.0, 0.0, -np.inf]])
    out, _ = one_head(q, k, v, mask)
    assert np.isnan(out).all(1).tolist() == [False, True, False]
    right = attend(q, k, v, scale=0.5, allowed=np.isfinite(mask))["out"]
    assert (right[1] == 0).all()
    np.testing.assert_allclose(out[[0, 2]], right[[0, 2]], rtol=1e-13)
    np.testing.assert_allclose(one_head(q, k, v, mask, ("empty",))[0], right, rtol=1e-13)


@pytest.mark.parametrize("seed", range(3))
def test_repaired_it_is_attention_with_bias_groups_and_a_cache(seed):
    """Peaked inputs, four heads of which two share a key, three new tokens of eight."""
    q, k, v = (normal(name, h, n, 6, seed=seed) for name, h, n in (("q", 4, 3), ("k", 2, 8), ("v", 2, 8)))
    q, bias = 4 * q, normal("bias", 3, 8, seed=seed)
    out, weights = attention(Call(q, k, v, bias, is_causal=True), set(REPAIRS) - {"precise"})
    for head in range(4):
        exact = attend(
            q[head], k[head // 2], v[head // 2], scale=6**-0.5, allowed=np.tri(3, 8, 5, dtype=bool), bias=bias
        )
        np.testing.assert_allclose(out[head], exact["out"], rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(weights[head], exact["weights"], rtol=1e-12, atol=1e-14)


def test_float16_does_not_hold_large_scores():
    q, k, v = np.full((1, 64), 40.0, "float16"), np.full((3, 64), 40.0, "float16"), np.eye(3, dtype="float16")
    assert np.isnan(one_head(q, k, v)[0]).all()
    np.testing.assert_allclose(one_head(q, k, v, None, ("precise",))[0], 1 / 3, atol=2e-4)


def test_a_repair_that_is_not_there():
    with pytest.raises(ValueError, match="not 'other'"):
        one_head(np.ones((1, 1)), np.ones((1, 1)), np.ones((1, 1)), repaired=("other",))
