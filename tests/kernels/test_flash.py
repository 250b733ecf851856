"""Our Triton kernel, through the interpreter, against the float64 reference and torch's own attention."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from torch.nn.functional import scaled_dot_product_attention

from kernels.engines.reference import reference
from kernels.flash.arguments import terms
from kernels.flash.interpreter import counted_traffic
from kernels.flash.launch import forward as launch
from kernels.flash.logits import tanh
from kernels.flash.softmax import step
from kernels.operands import Operands
from tests.kernels.cases import compute, make
from tests.kernels.error_bounds import error_bound

ALL = ("out", "lse", "scores", "masked_scores", "weights")
SMALL = {"options": {"block_m": 16, "block_n": 32}}


def forward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, tiles: tuple[int, int], **fields: Any
) -> dict[str, torch.Tensor]:
    """The kernel on tensors; ``fields`` as in Operands."""
    absent = {f.name: None for f in dataclasses.fields(Operands)}
    keys = np.arange(k.shape[2])[None, :]
    given = Operands(
        **absent | {
            "q": q.numpy(), "k": k.numpy(), "v": v.numpy(), "scale": 1.0, "softcap": 0.0,
            "q_positions": np.arange(q.shape[2])[None, :], "kv_positions": keys, **fields,
        }
    )  # fmt: skip
    return launch(q, k, v, terms(given, tiles, lambda array: torch.from_numpy(np.array(array))), tiles=tiles)


def check(
    shape: tuple[int, int, int, int, int, int],
    *,
    v_dim: int | None = None,
    matrices: bool = True,
    **fields: object,
) -> None:
    returns = list(ALL if matrices else ALL[:2])
    spec, arrays = make("flash", shape, v_dim=v_dim, **{"return": returns}, **fields)
    got, expected = compute(spec, arrays), reference(spec, arrays, tuple(returns))
    bound = error_bound(spec, arrays)
    np.testing.assert_allclose(got["out"], expected["out"], rtol=0, atol=bound)
    for name in returns[1:]:
        np.testing.assert_allclose(got[name], expected[name], rtol=3e-5, atol=3e-5, err_msg=name)
    assert [got[n].shape for n in returns] == [expected[n].shape for n in returns]


def test_attention_by_hand() -> None:
    x, v = [[1, 0], [0, 1], [1, 1]], [[1, 0], [0, 2], [2, 2]]
    spec, arrays = make(
        "flash", (1, 1, 1, 3, 3, 2), inputs={"q": x, "k": x, "v": v}, **{"return": ["out", "weights"]}
    )
    got = compute(spec, arrays)
    np.testing.assert_allclose(
        got["out"][0, 0], [[1.2033, 1.1978], [1.0000, 1.6044], [1.2552, 1.5035]], rtol=0, atol=5e-5
    )
    np.testing.assert_allclose(got["weights"][0, 0, 2], [0.2483, 0.2483, 0.5035], rtol=0, atol=5e-5)


@pytest.mark.parametrize("alignment", ["bottom_right", "top_left"])
@pytest.mark.parametrize(("q_len", "kv_len"), [(1, 97), (97, 97), (113, 97), (97, 113), (64, 64), (5, 1)])
def test_awkward_lengths_causal(q_len: int, kv_len: int, alignment: str) -> None:
    attention = {"is_causal": True, "causal_alignment": alignment}
    check((1, 2, 1, q_len, kv_len, 16), distribution="peaked", seed=q_len, attention=attention, **SMALL)


@pytest.mark.parametrize(("q_len", "kv_len"), [(1, 1), (97, 113), (113, 1)])
@pytest.mark.parametrize("tiles", [(16, 16), (64, 16), (16, 64), (None, None)])
def test_awkward_lengths_without_a_mask(q_len: int, kv_len: int, tiles: tuple[int, int]) -> None:
    options = {"block_m": tiles[0], "block_n": tiles[1]}
    check((1, 1, 1, q_len, kv_len, 8), distribution="peaked", seed=kv_len, options=options)


@pytest.mark.parametrize("dim", [1, 40, 59, 96, 111, 192, 256])
def test_head_dims_that_are_no_power_of_two(dim: int) -> None:
    check((1, 1, 1, 33, 49, dim), seed=dim, attention={"is_causal": True}, **SMALL)


@pytest.mark.parametrize(("dim", "v_dim"), [(16, 59), (192, 128), (40, 1), (8, 0), (0, 8)])
def test_values_of_another_width(dim: int, v_dim: int) -> None:
    check((1, 2, 2, 19, 35, dim), v_dim=v_dim, **SMALL)


@pytest.mark.parametrize("heads", [(6, 2), (6, 1), (4, 4)])
def test_consecutive_query_heads_share_a_key_head(heads: tuple[int, int]) -> None:
    check((2, *heads, 17, 18, 8), seed=9, distribution="peaked", **SMALL)


@pytest.mark.parametrize("scale", [-1.5, 0.0, 3.0, 1e-30])
def test_a_scale_of_any_sign(scale: float) -> None:
    check((1, 2, 1, 33, 40, 8), seed=4, attention={"scale": scale, "is_causal": True}, **SMALL)


@pytest.mark.parametrize(
    "shape",
    [(0, 2, 1, 3, 3, 4), (1, 2, 1, 0, 3, 4), (1, 2, 1, 3, 0, 4), (2, 0, 0, 3, 3, 4), (1, 0, 2, 4, 4, 4)],
)
def test_empty_axes(shape: tuple[int, int, int, int, int, int]) -> None:
    check(shape, attention={"is_causal": True})


def test_rows_that_see_nothing_are_zero_with_lse_minus_infinity() -> None:
    spec, arrays = make(
        "flash", (1, 1, 1, 40, 7, 8), attention={"is_causal": True}, **SMALL, **{"return": list(ALL)}
    )
    got = compute(spec, arrays)
    assert not got["out"][0, 0, :33].any()
    assert not got["weights"][0, 0, :33].any()
    assert np.isneginf(got["lse"][0, 0, :33]).all()
    assert np.isneginf(got["masked_scores"][0, 0, :33]).all()
    assert np.isfinite(got["lse"][0, 0, 33:]).all()


@pytest.mark.parametrize("offset", [-200, -3, 0, 5, 2**40])
def test_positions_given_as_an_integer(offset: int) -> None:
    attention = {"is_causal": True, "q_positions": offset + 2, "kv_positions": 2}
    check((1, 1, 1, 21, 37, 8), seed=2, attention=attention, **SMALL)


def test_very_negative_logits_are_not_lost() -> None:
    """Every score near −3·10⁵: a finite stand-in for −∞, or a carried maximum of 0, loses these rows."""
    q = np.full((1, 1, 40, 4), 300.0)
    k = -np.full((1, 1, 50, 4), 300.0) + np.random.default_rng(1).standard_normal((1, 1, 50, 4)) / 100
    inputs = {"q": q.tolist(), "k": k.tolist()}
    spec, arrays = make(
        "flash", (1, 1, 1, 40, 50, 4), inputs=inputs, attention={"scale": 1.0, "is_causal": True}, **SMALL,
        **{"return": ["out", "lse"]},
    )  # fmt: skip
    got, expected = compute(spec, arrays), reference(spec, arrays, ("out", "lse"))
    assert (expected["lse"] < -3e5).all()
    np.testing.assert_allclose(got["lse"], expected["lse"], rtol=1e-6)
    np.testing.assert_allclose(got["out"], expected["out"], atol=error_bound(spec, arrays))
    np.testing.assert_allclose(got["out"], expected["out"], atol=0.2)


@triton.jit
def two_softmax_steps(p_s, p_m, p_l):
    """Two tiles [16, 16] of scores after one another, as a window or a mask may let them come."""
    o = tl.arange(0, 16)
    m = tl.full([16], float("-inf"), tl.float32)
    l = tl.full([16], 0.0, tl.float32)  # noqa: E741
    for i_tile in range(2):
        b_s = tl.load(p_s + i_tile * 256 + o[:, None] * 16 + o[None, :])
        _, m, l, _ = step(b_s, m, l)  # noqa: E741
    tl.store(p_m + o, m)
    tl.store(p_l + o, l)


def test_a_tile_without_a_key_leaves_no_trace_in_the_running_maximum() -> None:
    """First a tile of nothing but −∞, then scores near −1000: the maximum is theirs, not 0 (and not NaN)."""
    scores = torch.stack([torch.full((16, 16), float("-inf")), torch.randn(16, 16) - 1000])
    m, l = torch.empty(16), torch.empty(16)  # noqa: E741
    two_softmax_steps[(1,)](scores, m, l)
    torch.testing.assert_close(m, scores[1].amax(1))
    torch.testing.assert_close(m + l.log(), torch.logsumexp(scores[1], 1))


@pytest.mark.parametrize("size", [2.0**22, -(2.0**22)])
@pytest.mark.parametrize("made_by", ["product", "bias", "alibi"])
def test_weights_are_right_beside_large_logits(made_by: str, size: float) -> None:
    """Scores are small integers, so that logits near ±2²² are exact. A float32 counts in halves there: of an
    LSE, which weights could be made from, nothing of the sum of its row but halves of ln l would be left."""
    rng, n, m, sign = np.random.default_rng(5), 20, 40, float(np.sign(size))
    q, k = (rng.integers(-2, 3, (1, 1, length, 4)).astype(float) for length in (n, m))
    inputs, attention = {"q": q, "k": k}, {"scale": 1.0}
    if made_by == "product":
        q[..., 3], k[..., 3] = 2.0**11, sign * 2.0**11
    elif made_by == "bias":
        inputs["attn_mask"] = np.full((n, m), size)
    else:
        attention |= {"alibi_slopes": [sign], "q_positions": 0, "kv_positions": int(abs(size))}
    spec, arrays = make(
        "flash", (1, 1, 1, n, m, 4), inputs={name: array.tolist() for name, array in inputs.items()},
        attention=attention, **{"return": ["out", "weights"]}, **SMALL,
    )  # fmt: skip
    got, expected = compute(spec, arrays), reference(spec, arrays, ("out", "weights"))
    np.testing.assert_allclose(got["weights"], expected["weights"], rtol=1e-5)
    np.testing.assert_allclose(got["out"], expected["out"], rtol=1e-5, atol=1e-6)


def test_a_row_masked_by_the_smallest_number_shares_its_weight() -> None:
    """Masks of torch.finfo(dtype).min drown every score of a row: the weights are equal, as in torch."""
    mask = np.zeros((5, 7))
    mask[2] = torch.finfo(torch.float32).min
    inputs = {"attn_mask": mask.tolist(), "dout": {"seed": 1, "shape": [1, 1, 5, 8]}}
    spec, arrays = make("flash", (1, 1, 1, 5, 7, 8), inputs=inputs, **{"return": ["weights", "dv"]})
    got, scores = compute(spec, arrays), torch.from_numpy(arrays["q"] @ arrays["k"].swapaxes(2, 3)) / 8**0.5
    weights = torch.softmax(scores + torch.from_numpy(mask).float(), -1).numpy()
    np.testing.assert_allclose(got["weights"][0, 0, 2], 1 / 7, rtol=1e-6)
    np.testing.assert_allclose(got["weights"], weights, rtol=1e-5)
    np.testing.assert_allclose(got["dv"], weights.swapaxes(2, 3) @ arrays["dout"], rtol=1e-5, atol=1e-6)


@triton.jit
def tanh_of(p_x, p_y):
    o = tl.program_id(0) * 1024 + tl.arange(0, 1024)
    tl.store(p_y + o, tanh(tl.load(p_x + o)))


@pytest.mark.filterwarnings("ignore:overflow")  # of what is not taken
def test_tanh_is_as_near_as_it_says() -> None:
    x = torch.cat([torch.linspace(0, 12, 2**20), torch.logspace(-30, 38, 2**16)])
    x = torch.cat([x, -x])
    got, exact = torch.empty_like(x), torch.tanh(x.double())
    tanh_of[(x.numel() // 1024,)](x, got)
    error = (got.double() - exact).abs()
    assert error.max() <= 3.2 * 2.0**-24
    assert (error <= 10 * 2.0**-24 * exact.abs()).all()


def test_float16_scores_beyond_float16() -> None:
    """q·k reaches 200 · 200 · 64 = 2.56 million; float16 ends at 65504."""
    rng = np.random.default_rng()
    big = lambda n: (rng.choice([-1.0, 1.0], (1, 1, n, 64)) * 200).tolist()  # noqa: E731
    spec, arrays = make(
        "flash", (1, 1, 1, 20, 33, 64), inputs={"q": big(20), "k": big(33)}, dtype="float16", **SMALL,
        attention={"scale": 1e-5}, **{"return": ["out", "lse", "scores"]},
    )  # fmt: skip
    got, expected = compute(spec, arrays), reference(spec, arrays, ("out", "lse", "scores"))
    assert np.abs(expected["scores"]).max() > 3
    np.testing.assert_allclose(got["scores"], expected["scores"], rtol=1e-5)
    np.testing.assert_allclose(got["out"], expected["out"], atol=error_bound(spec, arrays))
    assert got["out"].dtype == np.float16


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_stays_near_torchs_own_error(dtype: str) -> None:
    spec, arrays = make(
        "flash", (1, 4, 2, 65, 97, 59), dtype=dtype, seed=8, attention={"is_causal": True}, **SMALL
    )
    got, expected = compute(spec, arrays)["out"], reference(spec, arrays, ("out",))["out"]
    theirs, _ = make("sdpa", (1, 4, 2, 65, 97, 59), dtype=dtype, seed=8, attention={"is_causal": True})
    torch_error = np.abs(compute(theirs, arrays)["out"] - expected).max()
    assert np.abs(got - expected).max() <= 2 * torch_error + 1e-4
    assert np.abs(got - expected).max() <= error_bound(spec, arrays)
    if dtype == "bfloat16":
        as_bf16 = torch.from_numpy(got).bfloat16().float().numpy()
        np.testing.assert_array_equal(got, as_bf16)  # really rounded back


def test_a_nan_beyond_the_end_of_the_cache_is_never_read() -> None:
    q = torch.randn(1, 1, 20, 8)
    room_k, room_v = torch.full((1, 1, 64, 8), float("nan")), torch.full((1, 1, 64, 8), float("nan"))
    k, v = room_k[:, :, :21], room_v[:, :, :21]  # contiguous, with NaN right behind
    k.copy_(torch.randn_like(k)), v.copy_(torch.randn_like(v))
    out = forward(q, k, v, scale=0.3, tiles=(16, 16))["out"]
    torch.testing.assert_close(out, scaled_dot_product_attention(q, k, v, scale=0.3))


def test_the_lse_is_natural_and_merges_two_halves() -> None:
    q, k, v = torch.randn(1, 2, 9, 8), torch.randn(1, 2, 30, 8), torch.randn(1, 2, 30, 8)
    both = forward(q, k, v, scale=1.0, tiles=(16, 16))
    torch.testing.assert_close(both["lse"], torch.logsumexp(q @ k.transpose(-1, -2), -1))
    halves = [
        forward(
            q,
            k[:, :, s].contiguous(),
            v[:, :, s].contiguous(),
            scale=1.0,
            tiles=(16, 16),
        )
        for s in (slice(0, 11), slice(11, 30))
    ]
    shares = torch.softmax(torch.stack([h["lse"] for h in halves]), 0)[..., None]
    torch.testing.assert_close(both["out"], sum(s * h["out"] for s, h in zip(shares, halves, strict=True)))


def test_tiles_beyond_the_causal_bound_are_not_read() -> None:
    """Reads: Q once, and of K and V per tile of queries only the tiles it can see."""
    n, d, block = 128, 16, 32
    q, k, v = (torch.randn(1, 1, n, d) for _ in range(3))
    read = {}
    for is_causal in (False, True):
        with counted_traffic() as traffic:
            forward(q, k, v, scale=1.0, right=0 if is_causal else None, tiles=(block, block))
        read[is_causal] = traffic.bytes_read
        assert traffic.bytes_written == 4 * (n * d + n)
    tile_rows = n // block
    assert read[False] == 4 * d * (n + 2 * n * tile_rows)
    offsets = 4 * tile_rows  # each program reads where its queries stand
    assert read[True] == 4 * d * (n + 2 * block * (1 + 2 + 3 + 4)) + offsets


def test_listed_positions_alone_forbid_nothing() -> None:
    """With ALiBi and no window, tiles are not masked whatever the positions: each tile of keys asks once
    where its keys stand, for the bias, and not again for a mask."""
    n, m, d = 64, 96, 16
    q, k, v = (torch.randn(1, 1, length, d) for length in (n, m, m))
    rng = np.random.default_rng(1)
    listed = {"q_positions": rng.integers(0, 99, (1, n)), "kv_positions": rng.integers(0, 99, (1, m))}
    with counted_traffic() as traffic:
        got = forward(q, k, v, scale=0.2, slopes=np.array([[0.1]], np.float32), tiles=(32, 32), **listed)
    slopes_and_positions = 4 * n + 4 * n + 2 * 4 * m
    assert traffic.bytes_read == 4 * d * (n + 2 * 2 * m) + slopes_and_positions
    distance = torch.from_numpy(listed["kv_positions"][0][None, :] - listed["q_positions"][0][:, None])
    bias = (0.1 * distance).float()
    torch.testing.assert_close(got["out"], scaled_dot_product_attention(q, k, v, bias, scale=0.2))


def test_runs_are_repeatable_bit_for_bit() -> None:
    q, k, v = (torch.randn(1, 2, 50, 24) for _ in range(3))
    run = lambda: forward(q, k, v, scale=0.2, right=0, tiles=(16, 32))  # noqa: E731
    first, second = run(), run()
    assert torch.equal(first["out"], second["out"])
    assert torch.equal(first["lse"], second["lse"])


def test_weights_made_again_reproduce_the_output() -> None:
    spec, arrays = make("flash", (1, 2, 1, 33, 65, 16), seed=6, attention={"is_causal": True}, **SMALL,
                        **{"return": ["out", "weights"]})  # fmt: skip
    got = compute(spec, arrays)
    np.testing.assert_allclose(got["weights"].sum(-1), 1.0, rtol=1e-5)
    v = np.repeat(arrays["v"], 2, axis=1)
    np.testing.assert_allclose(got["weights"] @ v, got["out"], atol=1e-5)
