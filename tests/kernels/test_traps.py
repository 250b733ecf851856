"""The classic mistakes of attention kernels, one test each, on every engine that could make them.

Each test says the right answer from first principles (a few lines of float64), computes what the usual wrong
implementation gives, and asserts that an engine gives the one and could not pass with the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from triton.backends.nvidia.compiler import min_dot_size
from triton.runtime import interpreter

from kernels.arrays import round_to_dtype
from kernels.flash.tiles import padded_dim
from kernels.quantise import KV_DTYPES, KV_SCALES, decode_fp8, dequantise, encode_fp8, quantise
from kernels.registry import ENGINES
from tests.kernels.cases import Arrays
from tests.kernels.fences import long_strides
from tests.kernels.ways import Problem, Way, on_ways, quantised_ways, ways

# What overflows or is NaN on purpose, and what a kernel computes of padding before it drops it.
pytestmark = pytest.mark.filterwarnings("ignore:(invalid value|overflow|divide by zero):RuntimeWarning")
INF = np.inf
TOLERANCE = {"float32": 3e-5, "float16": 4e-3}


def numbers(seed: int, *shape: int, spread: float = 1.0) -> np.ndarray:
    """Normal float32 numbers."""
    return (np.random.default_rng(seed).standard_normal(shape) * spread).astype(np.float32)


def problem(
    seed: int,
    n: int,
    m: int,
    d: int = 8,
    e: int | None = None,
    *,
    heads: tuple[int, int] = (1, 1),
    batch: int = 1,
    spread: float = 1.0,
    **fields: Any,
) -> Problem:
    """Random q, k and v; ``heads``: of queries and of keys. Further fields as in Problem."""
    q, k = numbers(seed, batch, heads[0], n, d, spread=spread), numbers(seed + 1, batch, heads[1], m, d)
    return Problem(q, k, numbers(seed + 2, batch, heads[1], m, d if e is None else e), **fields)


def logits(given: Problem) -> np.ndarray:
    """scale · q·k in float64, [b, h, n, m]; query head h reads key head ⌊h · h_kv / heads⌋."""
    group = given.q.shape[1] // given.k.shape[1]
    k = np.repeat(given.k.astype(np.float64), group, 1)
    return given.scale * (given.q.astype(np.float64) @ k.swapaxes(2, 3))


def softmax(s: np.ndarray, v: np.ndarray, sinks: np.ndarray | float = -INF) -> Arrays:
    """out, lse and weights from logits [b, h, n, m] (−∞: forbidden) by the definition; nothing seen: zeros.

    ``sinks`` broadcasts to [b, h, n].
    """
    v = np.repeat(v.astype(np.float64), s.shape[1] // v.shape[1], 1)
    top = np.maximum(s.max(3, initial=-INF), sinks)
    safe = np.where(np.isneginf(top), 0.0, top)
    p, sink = np.exp(s - safe[..., None]), np.exp(sinks - safe)
    total = p.sum(3) + sink
    with np.errstate(divide="ignore"):
        lse = np.log(total) + safe
    weights = p / np.where(total == 0.0, 1.0, total)[..., None]
    return {"out": weights @ v, "lse": lse, "weights": weights}


def differentiated(
    way: Way, given: Problem, s: np.ndarray, right: Arrays, dout: np.ndarray
) -> tuple[Problem, Arrays]:
    """The problem with a dout, and the right answer with gradients, where the way has any: of the definition,
    by the chain rule. Logits are as in ``logits``, without softcap."""
    if not way.can(["gradients"]):
        return given, right
    (batch, heads), kv_heads, p = given.q.shape[:2], given.k.shape[1], right["weights"]
    group, upstream = heads // kv_heads, np.where(np.isneginf(s).all(3)[..., None], 0.0, dout)
    q, k, v = (np.where(np.isfinite(x), x, 0.0).astype(np.float64) for x in (given.q, given.k, given.v))
    dp = upstream @ np.repeat(v, group, 1).swapaxes(2, 3)
    ds = given.scale * p * (dp - (p * dp).sum(3, keepdims=True))
    shared = lambda x: x.reshape(batch, kv_heads, group, *x.shape[2:]).sum(2)  # noqa: E731
    right = right | {
        "dq": ds @ np.repeat(k, group, 1),
        "dk": shared(ds.swapaxes(2, 3) @ q),
        "dv": shared(p.swapaxes(2, 3) @ upstream),
    }
    return replace(given, inputs={**given.inputs, "dout": dout}), right


def only(visible: np.ndarray, s: np.ndarray, instead: float = -INF) -> np.ndarray:
    """Logits where ``visible``, ``instead`` elsewhere."""
    return np.where(visible, s, instead)


def settle(way: Way, given: Problem, right: Arrays, *wrong: Arrays) -> None:
    """The way gives what is right, of which none of the wrong answers is a passable copy."""
    tolerance = TOLERANCE[given.dtype]
    got = way.compute(given, tuple(right))
    assert got
    for name, result in got.items():
        np.testing.assert_allclose(
            result, right[name], rtol=tolerance, atol=tolerance, err_msg=f"{way.name}: {name}"
        )
    for answer in wrong:
        assert differs({name: right[name] for name in got}, answer, 10 * tolerance), "the mistake would pass"


def differs(right: Arrays, wrong: Arrays, tolerance: float) -> bool:
    return any(
        not np.allclose(wrong[name], right[name], rtol=tolerance, atol=tolerance)
        for name in right
        if name in wrong
    )


# -- rows that see nothing, and −∞ ---------------------------------------------------------------------------

ONE_ROW_FORBIDDEN = np.array([[True] * 5, [True] * 5, [False] * 5, [True, False, True, True, False]])
NOTHING_SEEN: dict[str, tuple[Problem, np.ndarray, tuple[str, ...]]] = {
    "boolean-mask": (
        problem(1, 4, 5, heads=(2, 1), inputs={"attn_mask": ONE_ROW_FORBIDDEN}),
        ONE_ROW_FORBIDDEN,
        ("attn_mask", "gqa"),
    ),
    "additive-mask": (
        problem(2, 4, 5, inputs={"attn_mask": np.where(ONE_ROW_FORBIDDEN, 0.0, -INF)}),
        ONE_ROW_FORBIDDEN,
        ("attn_mask",),
    ),
    "causal-before-the-first-key": (
        problem(3, 4, 3, attention={"is_causal": True}),
        np.tri(4, 3, -1, dtype=bool),
        ("causal",),
    ),
    "window-past-the-last-key": (
        problem(4, 4, 5, attention={"window": [1, 0], "q_positions": 4}),
        np.array([[j in (i + 3, i + 4) for j in range(5)] for i in range(4)]),
        ("window", "position_offset"),
    ),
    "no-key-yet": (
        problem(5, 4, 5, batch=2, inputs={"kv_lens": [0, 3]}),
        np.arange(5) < np.array([0, 3])[:, None, None, None],
        ("ragged",),
    ),
}


@pytest.mark.parametrize(
    ("how", "way"),
    [
        pytest.param(how, way, id=f"{how}-{way.name}")
        for how, (_, _, features) in NOTHING_SEEN.items()
        for way in ways(*features, q_len=4)
    ],
)
def test_trap_01_a_fully_masked_row_is_zero_with_lse_minus_infinity(how: str, way: Way) -> None:
    """Softmax of nothing. A finite stand-in for −∞ makes it the mean of all values, for every key is then
    equally forbidden; subtracting a maximum of −∞ makes it NaN."""
    given, visible, _ = NOTHING_SEEN[how]
    s = logits(given)
    right = softmax(only(visible, s), given.v)
    empty = ~visible.any(-1)
    assert empty.any()
    assert not (right["out"] * empty[..., None]).any()
    masked = only(visible, s)
    with np.errstate(invalid="ignore"):
        naive = np.exp(masked - masked.max(3, keepdims=True))
        naive /= naive.sum(3, keepdims=True)
    group = s.shape[1] // given.v.shape[1]
    mean, nan = softmax(only(visible, s, -1e9), given.v), {"out": naive @ np.repeat(given.v, group, 1)}
    given, right = differentiated(way, given, masked, right, numbers(7, *right["out"].shape))
    settle(way, given, right, mean, nan)


def online(s: np.ndarray, v: np.ndarray, tile: int, *, guard: str) -> Arrays:
    """The online softmax over tiles of keys. ``guard``: "copy" subtracts a zeroed copy of a maximum of −∞,
    "carry" goes on with the zero, "none" does not look."""
    m, l, o = np.full(s.shape[:3], -INF), 0.0, 0.0  # noqa: E741
    for first in range(0, s.shape[3], tile):
        part = s[..., first : first + tile]
        new = np.maximum(m, part.max(3))
        safe = new if guard == "none" else np.where(np.isneginf(new), 0.0, new)
        with np.errstate(invalid="ignore"):
            p, shrink = np.exp(part - safe[..., None]), np.exp(m - safe)
        l, o = l * shrink + p.sum(3), o * shrink[..., None] + p @ v[:, :, first : first + tile]  # noqa: E741
        m = safe if guard == "carry" else new
    with np.errstate(divide="ignore", invalid="ignore"):
        return {"out": o / np.where(l == 0.0, 1.0, l)[..., None], "lse": m + np.log(l)}


@on_ways("attn_mask", "scale", q_len=2)
def test_trap_02_a_tile_of_forbidden_keys_leaves_no_zero_in_the_running_maximum(way: Way) -> None:
    """Query 1 may see nothing in the first tile, and its logits in the second are near −1000. While nothing
    is seen the maximum is −∞, and −∞ − (−∞) is NaN. Subtracting 0 there is right; but a maximum of 0 that is
    carried on towers above −1000, and the row is lost to underflow."""
    rng = np.random.default_rng(1)
    k = np.stack([np.ones(32), rng.integers(-8, 8, 32) / 8.0], 1)[None, None]
    q = np.array([[[[1.0, 2.0], [-1000.0, 2.0]]]])
    visible = np.ones((2, 32), dtype=bool)
    visible[1, :16] = False
    given = Problem(q, k, numbers(2, 1, 1, 32, 3), {"scale": 1.0}, {"attn_mask": visible})
    s = only(visible, logits(given))
    right = softmax(s, given.v)
    assert not differs({"out": right["out"]}, online(s, given.v, 16, guard="copy"), 1e-12)
    carried, none = (online(s, given.v, 16, guard=guard) for guard in ("carry", "none"))
    assert not carried["out"][0, 0, 1].any()
    assert np.isnan(none["out"][0, 0, 1]).all()
    settle(way, given, {name: right[name] for name in ("out", "lse")}, carried, none)


@on_ways("causal", "scale", q_len=6)
def test_trap_03_no_finite_number_stands_in_for_minus_infinity(way: Way) -> None:
    """Every logit is near −4 million. Beside them −10⁴ and −10⁶ are enormous: with such a stand-in the
    forbidden keys take all of the weight. The logits are whole numbers that float32 holds."""
    k = np.stack([np.full(6, -(2.0**22)), -np.arange(6.0)], 1)[None, None]
    given = Problem(np.ones((1, 1, 6, 2)), k, numbers(3, 1, 1, 6, 4), {"scale": 1.0, "is_causal": True})
    visible, s = np.tri(6, dtype=bool), logits(given)
    right = {name: softmax(only(visible, s), given.v)[name] for name in ("out", "lse")}
    assert (right["lse"] < -4e6).all()
    settle(way, given, right, *(softmax(only(visible, s, number), given.v) for number in (-1e4, -1e6)))


# -- positions -----------------------------------------------------------------------------------------------

ALIGNMENTS: dict[str, tuple[Problem, int, int, tuple[str, ...]]] = {
    # what is asked; the position of query 0; the position with the other convention
    "top-left": (
        problem(4, 3, 7, attention={"is_causal": True, "causal_alignment": "top_left"}), 0, 4, (),
    ),
    "bottom-right": (problem(5, 3, 7, attention={"is_causal": True}), 4, 0, ()),
    "a-past": (problem(6, 3, 7, attention={"is_causal": True}, past=4), 4, 0, ("past",)),
    "a-past-and-more-fresh-keys-than-queries": (
        problem(7, 3, 7, attention={"is_causal": True, "q_positions": 2}, past=2), 2, 4,
        ("past", "position_offset"),
    ),
    "a-cache-longer-than-what-it-holds": (
        problem(8, 3, 7, attention={"is_causal": True}, inputs={"kv_lens": [5]}), 2, 4, ("ragged",),
    ),
    "fewer-queries-than-rows": (
        problem(9, 3, 7, attention={"is_causal": True}, inputs={"q_lens": [2]}), 5, 4, ("ragged",),
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("asked", "way"),
    [
        pytest.param(asked, way, id=f"{asked}-{way.name}")
        for asked, (_, _, _, features) in ALIGNMENTS.items()
        for way in ways("causal", *features, q_len=3)
    ],
)
def test_trap_04_causal_masks_are_aligned_as_asked(asked: str, way: Way) -> None:
    """With fewer queries than keys "causal" has two meanings: query 0 stands at key 0 (torch), or the last
    query at the last key (flash-attention). With a past the queries follow it; in a cache that is not full
    they end where its content ends."""
    given, first, other, _ = ALIGNMENTS[asked]
    (m, s), n = (given.k.shape[2], logits(given)), given.q.shape[2]
    inside = np.arange(m) < given.inputs.get("kv_lens", [m])[0]
    n_queries = given.inputs.get("q_lens", [n])[0]

    def answer(offset: int) -> Arrays:
        visible = np.arange(m) <= np.arange(n)[:, None] + offset
        visible = visible & inside & (np.arange(n) < n_queries)[:, None]
        return softmax(only(visible, s), given.v)

    settle(way, given, answer(first), answer(other))


@pytest.mark.parametrize("window", [(2, 1), (0, 0), (3, None), (None, 1), (1, 0)])
@on_ways("window", q_len=6)
def test_trap_05_windows_count_distances_and_include_both_ends(way: Way, window: Any) -> None:
    """A window of [2, 1] lets a query see two keys before its own, its own, and one after. A model whose
    window of W tokens counts the query itself says [W − 1, 0]; taking W for a distance, or the ends for
    excluded, is off by one."""
    given = problem(10, 6, 6, e=6, attention={"window": list(window)})
    distance, s = np.arange(6) - np.arange(6)[:, None], logits(given)

    def answer(left: int | None, right: int | None) -> Arrays:
        visible = np.ones((6, 6), dtype=bool)
        if left is not None:
            visible &= distance >= -left
        if right is not None:
            visible &= distance <= right
        return softmax(only(visible, s), given.v)

    left, right = window
    off = [answer(left + by, right) for by in (1, -1) if left is not None]
    off += [answer(left, right + by) for by in (1, -1) if right is not None]
    settle(way, given, answer(left, right), *off)


# -- softcap, ALiBi ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["boolean", "additive"])
@on_ways("softcap", "attn_mask", q_len=4)
def test_trap_06_softcap_comes_before_the_mask(way: Way, kind: str) -> None:
    """c · tanh(−∞ / c) = −c: capped after it was masked, a forbidden key is an ordinary one again."""
    visible = np.random.default_rng(5).random((4, 9)) < 0.5
    mask = visible if kind == "boolean" else np.where(visible, 0.0, -INF)
    given = problem(11, 4, 9, spread=3.0, attention={"softcap": 2.0}, inputs={"attn_mask": mask})
    s = logits(given)
    right = softmax(only(visible, 2 * np.tanh(s / 2)), given.v)
    late = softmax(2 * np.tanh(only(visible, s) / 2), given.v)
    settle(way, given, right, late)
    assert late["weights"][..., ~visible].min() > 1e-3


@on_ways("softcap", "scale", q_len=2)
def test_trap_07_tanh_saturates_instead_of_overflowing(way: Way) -> None:
    """Scores are capped at 1 from ±90 to ±4000. tanh as (eˣ − e⁻ˣ) / (eˣ + e⁻ˣ) is ∞/∞ in float32 beyond
    88."""
    k = np.array([90.0, -90.0, 300.0, -4000.0, 0.25, 0.0]).reshape(1, 1, 6, 1)
    given = Problem(np.array([[[[1.0], [-1.0]]]]), k, numbers(6, 1, 1, 6, 3), {"softcap": 1.0, "scale": 1.0})
    s = logits(given)
    with np.errstate(over="ignore", invalid="ignore"):
        up, down = np.exp(np.float32(s)), np.exp(np.float32(-s))
        naive = (up - down) / (up + down)
    assert np.isnan(naive).any()
    settle(way, given, softmax(np.tanh(s), given.v), softmax(naive, given.v))


@on_ways("softcap", q_len=4)
def test_trap_08_softcap_takes_the_natural_logit_whatever_the_base_of_the_exponential(way: Way) -> None:
    """Kernels that exponentiate with 2ˣ fold log₂e into the scale. tanh is not linear: with the factor inside
    it the cap is another one. It belongs outside."""
    given = problem(13, 4, 9, spread=3.0, attention={"softcap": 1.5})
    s, log2e = logits(given), np.log2(np.e)
    folded = 1.5 * np.tanh(s * log2e / 1.5) * np.log(2.0)  # as natural logits: 2ˣ = exp(x · ln 2)
    settle(way, given, softmax(1.5 * np.tanh(s / 1.5), given.v), softmax(folded, given.v))


@on_ways("softcap", "alibi", "attn_mask", "causal", q_len=4)
def test_trap_09_softcap_then_alibi_then_the_additive_mask(way: Way) -> None:
    """The cap is for the product of query and key alone. Over everything it would flatten distances and
    biases, too."""
    bias = numbers(8, 4, 9, spread=2.0)
    given = problem(
        14, 4, 9, heads=(2, 2), spread=3.0,
        attention={"softcap": 2.0, "alibi_slopes": [0.7, 0.2], "is_causal": True}, inputs={"attn_mask": bias},
    )  # fmt: skip
    distance = np.arange(9) - (np.arange(4)[:, None] + 5)
    visible, alibi = distance <= 0, np.array([0.7, 0.2])[:, None, None] * distance
    s, cap = logits(given), lambda x: 2 * np.tanh(x / 2)
    right, over_alibi, over_all = (
        softmax(only(visible, x), given.v)
        for x in (cap(s) + alibi + bias, cap(s + alibi) + bias, cap(s + alibi + bias))
    )
    settle(way, given, right, over_alibi, over_all)


@on_ways("alibi", "causal", q_len=5, returns=("lse",))
def test_trap_10_alibi_counts_from_the_query(way: Way) -> None:
    """slope · key position instead of slope · (key position − query position) adds the same to a whole row:
    the output is equal to the last digit, and the LSE is not. Whoever merges or differentiates needs it."""
    given = problem(15, 5, 7, heads=(2, 2), attention={"is_causal": True, "alibi_slopes": [0.5, 0.125]})
    slopes = np.array([0.5, 0.125])[:, None, None]
    keys, queries = np.arange(7), np.arange(5)[:, None] + 2
    s, visible = logits(given), keys <= queries
    right = softmax(only(visible, s + slopes * (keys - queries)), given.v)
    wrong = softmax(only(visible, s + slopes * keys), given.v)
    np.testing.assert_allclose(wrong["out"], right["out"], rtol=1e-12)
    settle(way, given, {name: right[name] for name in ("out", "lse")}, {"lse": wrong["lse"]})


# -- heads, RoPE, scale, precision ---------------------------------------------------------------------------


@on_ways("gqa", q_len=3)
def test_trap_11_consecutive_query_heads_share_a_key_head(way: Way) -> None:
    """Of 6 query heads and 2 key heads, heads 0, 1, 2 read key head 0. Tiling the key heads (h mod 2) would
    make it heads 0, 2, 4."""
    given = problem(16, 3, 5, heads=(6, 2), spread=2.0)
    right = softmax(logits(given), given.v)
    order = [0, 1] * 3
    tiled = Problem(given.q, given.k[:, order], given.v[:, order])
    wrong = softmax(logits(tiled), tiled.v)
    given, right = differentiated(way, given, logits(given), right, numbers(19, 1, 6, 3, 8))
    settle(way, given, right, wrong)


def turned(x: np.ndarray, positions: Sequence[int], theta: float, style: str) -> np.ndarray:
    """RoPE by complex numbers: pair i of a row at position p is multiplied by exp(√−1 · p · θ^(−2i/d))."""
    half = x.shape[3] // 2
    pairs = np.stack(np.split(x, 2, 3), 4) if style == "half" else x.reshape(*x.shape[:3], half, 2)
    angles = np.asarray(positions)[:, None] * theta ** (-np.arange(half) / half)
    z = (pairs[..., 0] + 1j * pairs[..., 1]) * np.exp(1j * angles)
    if style == "half":
        return np.concatenate([z.real, z.imag], 3)
    return np.stack([z.real, z.imag], 4).reshape(x.shape)


@pytest.mark.parametrize("style", ["interleaved", "half"])
@on_ways("rope", q_len=4)
def test_trap_12_rope_pairs_neighbours_or_halves_as_asked(way: Way, style: str) -> None:
    """Two conventions, both deployed: pairs (0, 1), (2, 3), … or (0, d/2), (1, d/2 + 1), … Checkpoints made
    for one give plausible nonsense with the other."""
    given = problem(17, 4, 6, attention={"rope": {"style": style, "theta": 30.0}})

    def answer(style: str) -> Arrays:
        q, k = turned(given.q, range(2, 6), 30.0, style), turned(given.k, range(6), 30.0, style)
        return softmax(logits(Problem(q, k, given.v)), given.v)

    settle(way, given, answer(style), answer("half" if style == "interleaved" else "interleaved"))


@on_ways(q_len=4, returns=("lse",))
def test_trap_13_the_lse_is_a_natural_logarithm(way: Way) -> None:
    """Kernels that exponentiate with 2ˣ have log₂ Σ at hand, which is 1.44 times too large."""
    given = problem(18, 4, 40, spread=2.0)
    right = softmax(logits(given), given.v)
    settle(way, given, {"lse": right["lse"]}, {"lse": right["lse"] / np.log(2.0)})


@on_ways("scale", dtype="float16", q_len=4)
def test_trap_14_scores_are_kept_in_float32_whatever_the_inputs(way: Way) -> None:
    """q·k reaches 200 · 200 · 64 = 2.56 million, and float16 ends at 65504. The scale that makes it small
    again comes after."""
    signs = lambda seed, *shape: np.sign(numbers(seed, *shape)) * 200  # noqa: E731
    given = Problem(
        signs(1, 1, 1, 4, 64), signs(2, 1, 1, 20, 64), numbers(3, 1, 1, 20, 8), {"scale": 1e-5},
        dtype="float16",
    )  # fmt: skip
    v = round_to_dtype(given.v, "float16")
    right = softmax(logits(given), v)
    with np.errstate(over="ignore", invalid="ignore"):
        s = (given.q.astype(np.float16) @ given.k.astype(np.float16).swapaxes(2, 3)) * np.float16(1e-5)
        half = np.exp(s - s.max(3, keepdims=True))
        out = half / half.sum(3, keepdims=True) @ v
    assert np.isnan(out).any()
    settle(way, given, {"out": right["out"], "lse": right["lse"]}, {"out": out})


@pytest.mark.parametrize("scale", [None, -1.5, 0.0])
@on_ways("scale", q_len=4)
def test_trap_15_the_scale_is_of_the_true_head_dim_and_of_any_sign(way: Way, scale: float | None) -> None:
    """A head dim of 40 is padded to 64, but the scale is 1/√40. A maximum that is taken before scaling is the
    minimum once the scale is negative, and everything overflows. And 0 is a scale, not the lack of one."""
    given = problem(20, 4, 20, 40, spread=8.0, attention={} if scale is None else {"scale": scale})
    s = logits(given)
    raw = s / given.scale if given.scale else s
    if scale is None:
        wrong = softmax(s * np.sqrt(40 / 64), given.v)
    elif scale == 0.0:
        wrong = softmax(logits(Problem(given.q, given.k, given.v)), given.v)
    else:
        with np.errstate(over="ignore", invalid="ignore"):
            p = np.exp(np.float32(s - scale * raw.max(3, keepdims=True)))
            wrong = {"out": p / p.sum(3, keepdims=True) @ given.v}
        assert np.isnan(wrong["out"]).any()
    settle(way, given, softmax(s, given.v), wrong)


# -- lengths and memory --------------------------------------------------------------------------------------

EMPTY: dict[str, tuple[Problem, tuple[str, ...]]] = {
    "no-queries": (problem(21, 0, 5), ()),
    "no-keys": (problem(22, 3, 0), ()),
    "no-batch": (problem(23, 3, 5, batch=0), ()),
    "neither": (problem(24, 0, 0), ()),
    "no-head-of-queries": (problem(28, 3, 5, heads=(0, 2)), ("gqa",)),
    "rows-without-keys": (problem(25, 3, 40, batch=3, inputs={"kv_lens": [0, 40, 1]}), ("ragged",)),
    "rows-without-queries": (
        problem(26, 3, 40, batch=2, attention={"is_causal": True}, inputs={"q_lens": [0, 2]}),
        ("ragged", "causal"),
    ),
}


@pytest.mark.parametrize(
    ("what", "way"),
    [
        pytest.param(what, way, id=f"{what}-{way.name}")
        for what, (_, features) in EMPTY.items()
        for way in ways(*features, q_len=3)
    ],
)
def test_trap_16_lengths_of_zero_are_lengths(what: str, way: Way) -> None:
    """No query, no key, an empty row of a ragged batch, and, where keys are split, two empty splits that are
    merged: exp(−∞ − (−∞)) is NaN, and so is 0/0. Right is nothing, or zeros with an LSE of −∞; and gradients
    that nobody asks for are 0, not what memory held."""
    given, _ = EMPTY[what]
    batch, heads, n, _ = given.q.shape
    m = given.k.shape[2]
    q_lens, kv_lens = (
        np.asarray(given.inputs.get(name, [size] * batch), dtype=int).reshape(batch, 1, 1, 1)
        for name, size in (("q_lens", n), ("kv_lens", m))
    )
    visible = (np.arange(m) < kv_lens) & (np.arange(n)[:, None] < q_lens)
    if given.attention:
        visible = visible & (np.arange(m) <= np.arange(n)[:, None] + kv_lens - q_lens)
    s = only(visible, logits(given))
    right = softmax(s, given.v)
    with np.errstate(invalid="ignore"):
        p = np.exp(s - s.max(3, keepdims=True, initial=-INF))
        wrong = {"out": p @ np.repeat(given.v, heads // given.v.shape[1], 1) / p.sum(3, keepdims=True)}
    discriminates = [wrong] if heads and (~visible.any(3)).any() else []
    assert right["out"].shape == (batch, heads, n, 8)
    given, right = differentiated(way, given, s, right, numbers(29, batch, heads, n, 8))
    settle(way, given, right, *discriminates)


@pytest.mark.parametrize("tail", [np.nan, np.inf])
@on_ways("ragged", q_len=3)
def test_trap_17_what_lies_beyond_the_end_of_a_cache_is_never_read(way: Way, tail: float) -> None:
    """A cache is longer than its content, and the rest was never written. A weight of 0 does not silence it:
    0 · NaN is NaN. Queries of a ragged batch have such a tail, too."""
    given = problem(27, 3, 40, batch=2, inputs={"kv_lens": [21, 40], "q_lens": [3, 1]})
    visible = np.arange(40) < np.array([21, 40]).reshape(2, 1, 1, 1)
    asked = np.arange(3)[:, None] < np.array([3, 1]).reshape(2, 1, 1, 1)
    s = only(visible & asked, logits(given))
    right = softmax(s, given.v)
    for name in ("k", "v"):
        getattr(given, name)[0, :, 21:] = tail
    given.q[1, :, 1:] = tail
    with np.errstate(invalid="ignore"):
        wrong = {"out": right["weights"] @ given.v}
    assert np.isnan(wrong["out"]).any()
    given, right = differentiated(way, given, s, right, np.where(asked, numbers(29, 2, 1, 3, 8), tail))
    settle(way, given, right, wrong)


FAR: dict[str, tuple[Problem, tuple[str, ...]]] = {
    "rows": (problem(30, 10, 40, inputs={"attn_mask": numbers(9, 10, 40)}, dtype="float16"), ("attn_mask",)),
    "heads": (problem(31, 1, 1, heads=(12, 12), dtype="float16"), ()),
    "batch": (problem(32, 1, 1, batch=12, dtype="float16"), ()),
}


@pytest.mark.parametrize(
    ("what", "way"),
    [
        pytest.param(what, way, id=f"{what}-{way.name}-{way.options.get('kv_dtype')}")
        for what, (_, features) in FAR.items()
        for way in [
            *ways(*features, dtype="float16", q_len=10, triton=True),
            *quantised_ways("int8", "per_token_head", *features, q_len=10, triton=True),
        ]
    ],
)
def test_trap_18_offsets_beyond_two_to_the_31_do_not_wrap_around(what: str, way: Way) -> None:
    """Row times stride passes 2³¹ in large batches and long sequences, and 32-bit integers start again at
    −2³¹. Every array of the launch is taken apart in reserved address space until its rows are 2²⁸ elements
    from each other, which changes nothing but offsets."""
    given, _ = FAR[what]
    with long_strides() as sprawl:
        far = way.compute(given, ("out", "lse"))
    assert sprawl.farthest > 2**31
    near = way.compute(given, ("out", "lse"))
    for name, result in near.items():
        np.testing.assert_array_equal(far[name], result)
    s = logits(given) + given.inputs.get("attn_mask", 0.0)
    right = softmax(s, round_to_dtype(given.v, "float16"))
    # What 32 bits would find: nothing was ever written there.
    wrapped = np.array([8], np.int32) * np.int32(2**28)
    assert wrapped[0] == -(2**31)
    lost = np.array(given.v)
    lost[:, :, 8:] = 0.0
    if "kv_dtype" not in way.options:
        settle(way, given, right, *([softmax(s, lost)] if what == "rows" else []))


@pytest.mark.parametrize("dim", [40, 59, 96, 111, 160, 192])
@on_ways(q_len=5)
def test_trap_19_head_dims_that_are_no_power_of_two(way: Way, dim: int) -> None:
    """Tiles are powers of two wide. What is loaded beyond the last column without a mask is the beginning of
    the next row."""
    given = problem(33, 5, 19, dim)
    right = softmax(logits(given), given.v)
    width = padded_dim(dim)

    def rows(x: np.ndarray) -> np.ndarray:
        """Each row with what lies behind it in memory."""
        memory = np.append(x.ravel(), np.zeros(width))
        return np.stack([memory[i * dim : i * dim + width] for i in range(x.shape[2])]).astype(np.float64)

    s = given.scale * (rows(given.q) @ rows(given.k).T)
    settle(way, given, {"out": right["out"], "lse": right["lse"]}, softmax(s[None, None], given.v))


@pytest.mark.parametrize(("n", "m"), [(5, 97), (13, 113), (3, 1023), (113, 97), (97, 203)])
def test_trap_20_lengths_that_are_no_multiple_of_a_tile(n: int, m: int) -> None:
    """A last tile that is not full: dropped, its keys are missing; taken for full, it adds keys whose logit
    is 0, and weight goes to nobody."""
    given = problem(34 + n, n, m)
    given = Problem(np.abs(given.q), -np.abs(given.k), given.v + 1)
    s = logits(given)  # all below 0
    right = softmax(s, given.v)
    whole, over = m // 16 * 16, -m % 16
    dropped = softmax(s[..., :whole], given.v[:, :, :whole])
    padded = softmax(
        np.pad(s, [(0, 0)] * 3 + [(0, over)]), np.pad(given.v, [(0, 0)] * 2 + [(0, over), (0, 0)])
    )
    for way in ways(q_len=n):
        settle(way, given, {"out": right["out"], "lse": right["lse"]}, dropped, padded)


# -- inside a kernel -----------------------------------------------------------------------------------------


@triton.jit
def narrow_dot(p_x, p_y):
    """A product of [4, 4] tiles."""
    o = tl.arange(0, 4)[:, None] * 4 + tl.arange(0, 4)[None, :]
    b_x = tl.load(p_x + o)
    tl.store(p_y + o, tl.dot(b_x, b_x))


class Operand:
    """As much of a tile's type as Triton's rule looks at."""

    def __init__(self, scalar: Any) -> None:
        self.scalar = scalar


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@on_ways(dtype="float16", triton=True)
def test_trap_21_products_are_never_narrower_than_a_gpu_can_multiply(
    way: Way, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compiled, tl.dot sums over at least 16 products (32 of 8-bit numbers). The interpreter multiplies
    anything, so that a head dim of 1 or a page of 1 would pass here and fail on every GPU; so each product is
    held against the compiler's own rule."""
    seen: list[tuple[tuple[int, int, int], Operand, Operand]] = []
    multiply = interpreter.InterpreterBuilder.create_dot

    def watched(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        sizes = (a.data.shape[-2], b.data.shape[-1], a.data.shape[-1])
        seen.append((sizes, Operand(a.dtype.scalar), Operand(b.dtype.scalar)))
        return multiply(self, a, b, *rest)

    def too_small() -> list[tuple[int, int, int]]:
        rule = min_dot_size(None)
        return [
            sizes
            for sizes, left, right in seen
            if any(size < least for size, least in zip(sizes, rule(left, right), strict=True))
        ]

    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", watched)
    narrow_dot[(1,)](torch.ones(4, 4), torch.empty(4, 4))
    assert too_small() == [(4, 4, 4)]  # which the interpreter did not mind
    seen.clear()
    for n, m, d in ((1, 1, 1), (2, 3, 5)):
        gradients = [name for name in ("dq", "dk", "dv") if name in way.returns]
        inputs = {"dout": numbers(41, 1, 1, n, 1)} if gradients else {}
        given = problem(40, n, m, d, 1, dtype=dtype, inputs=inputs)
        way.compute(given, ("out", *gradients))
    assert len(seen) >= 4
    assert not too_small()


@on_ways("sinks", "scale", "attn_mask", q_len=3)
def test_trap_22_a_sink_is_counted_once_and_is_not_scaled(way: Way) -> None:
    """A sink is one logit in the denominator. Added by every split, or every tile, it counts double; taken
    for a score it is scaled with them; and forgotten in the LSE it spoils every later merge. A row that sees
    nothing else has an output of 0 and the sink for its LSE; a sink of −∞ is none."""
    sinks, splits = np.array([3.0, -1.0, -INF]), 3
    visible = np.arange(80) < np.array([80, 33, 0])[:, None]
    given = problem(
        42, 3, 80, heads=(3, 1), inputs={"attn_mask": visible},
        attention={"sinks": [3.0, -1.0, "-inf"], "scale": 0.25},
    )  # fmt: skip
    s = only(visible, logits(given))
    right = softmax(s, given.v, sinks[:, None])
    assert right["lse"][0, :, 2].tolist() == sinks.tolist()
    double, scaled = (
        softmax(s, given.v, sinks[:, None] + np.log(splits)),
        softmax(s, given.v, sinks[:, None] / 4),
    )
    settle(way, given, right, double, scaled, {"lse": softmax(s, given.v)["lse"], "out": double["out"]})


# -- quantised caches, splits and pages ----------------------------------------------------------------------

FLOAT8 = {"fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}
LARGEST = {"int8": 127.0, "fp8_e4m3": 448.0, "fp8_e5m2": 57344.0}


def scales(x: np.ndarray, kv_dtype: str, kv_scale: str) -> np.ndarray:
    """What codes are multiplied by: the largest magnitude of a block becomes the largest code."""
    largest = np.abs(x).max(None if kv_scale == "per_tensor" else 3, keepdims=True)
    return (largest / LARGEST[kv_dtype]).astype(np.float32)


def nearest_code(x: np.ndarray, kv_dtype: str) -> np.ndarray:
    """The numbers of the nearest codes, clamped: torch's, for fp8."""
    if kv_dtype == "int8":
        return np.clip(np.rint(x), -127, 127)
    clamped = torch.from_numpy(np.clip(x, -LARGEST[kv_dtype], LARGEST[kv_dtype]))
    return clamped.float().to(FLOAT8[kv_dtype]).float().numpy().astype(np.float64)


def test_trap_23_codes_are_rounded_and_clamped() -> None:
    """Storing 1.9 as an 8-bit integer truncates it to 1, and storing 200 wraps it around to −56; fp8 casts of
    500 have given 256. Here: 500 is 448, infinity is 448, and no code is farther than half a step from its
    number, nor of another sign."""
    assert np.array([1.9]).astype(np.int8)[0] == 1
    assert np.array([200]).astype(np.int8)[0] == -56
    x = np.concatenate([numbers(50, 1, 1, 50, 32), numbers(51, 1, 1, 14, 32, spread=1e-3)], 2)
    for kv_scale in ("per_tensor", "per_token_head"):
        made, step = quantise(x, "int8", kv_scale), scales(x, "int8", kv_scale)
        scaled = x / step.astype(np.float64)
        assert np.abs(made.codes - scaled).max() <= 0.5 + 1e-5
        assert np.abs(np.trunc(scaled) - scaled).max() > 0.9
        assert (made.codes * np.sign(x) >= 0).all()
        assert np.abs(made.codes).max() == 127
        beyond = np.rint(scaled * 200 / 127).astype(int).astype(np.int8)
        assert (beyond * np.sign(x) < 0).any()
    for kv_dtype, kind in FLOAT8.items():
        most = LARGEST[kv_dtype]
        many = np.array([most * 500 / 448, 1e30, np.inf, -1e30, most * 0.9, 0.3, -0.3, most])
        got = decode_fp8(encode_fp8(many, kv_dtype), kv_dtype)
        expected = torch.from_numpy(np.clip(many, -most, most)).float().to(kind).float().numpy()
        np.testing.assert_array_equal(got, expected)


QUANTISED = [
    pytest.param(kv_dtype, kv_scale, way, id=f"{kv_dtype}-{kv_scale}-{way.name}")
    for kv_dtype in KV_DTYPES
    for kv_scale in KV_SCALES
    for way in quantised_ways(kv_dtype, kv_scale, "gqa", "v_head_dim", q_len=3)
]


@pytest.mark.parametrize(("kv_dtype", "kv_scale", "way"), QUANTISED)
def test_trap_23_rounding_in_an_engine(kv_dtype: str, kv_scale: str, way: Way) -> None:
    """The output is that of the nearest codes, not of truncated ones."""
    given = problem(52, 3, 21, 8, 5, heads=(4, 2), batch=2)
    k, v = (
        nearest_code(x / scales(x, kv_dtype, kv_scale).astype(np.float64), kv_dtype)
        * scales(x, kv_dtype, kv_scale)
        for x in (given.k, given.v)
    )
    right = softmax(logits(replace(given, k=k)), v)
    if kv_dtype == "int8":
        cut_k, cut_v = (
            np.trunc(x / scales(x, kv_dtype, kv_scale)) * scales(x, kv_dtype, kv_scale)
            for x in (given.k, given.v)
        )
    else:  # bits of the mantissa cut off instead of rounded
        cut_k, cut_v = (
            nearest_code(x / scales(x, kv_dtype, kv_scale) * 0.97, kv_dtype) * scales(x, kv_dtype, kv_scale)
            for x in (given.k, given.v)
        )
    wrong = softmax(logits(replace(given, k=cut_k)), cut_v)
    settle(way, given, {name: right[name] for name in ("out", "lse")}, wrong)


@pytest.mark.parametrize("kv_scale", ["per_tensor", "per_token_head"])
@pytest.mark.parametrize("kv_dtype", ["int8", "fp8_e4m3", "fp8_e5m2"])
def test_trap_24_what_is_stored_is_x_over_the_scale(kv_dtype: str, kv_scale: str) -> None:
    """A code times the scale is the number. Stored the other way round, or decoded without the scale, small
    tensors vanish and large ones saturate."""
    for spread in (1e-4, 1.0, 300.0):
        x = numbers(53, 1, 2, 9, 8, spread=spread)
        made, step = quantise(x, kv_dtype, kv_scale), scales(x, kv_dtype, kv_scale)
        got = dequantise(made, "float64")
        np.testing.assert_allclose(got, nearest_code(x / step.astype(np.float64), kv_dtype) * step, rtol=1e-6)
        reversed_, unscaled = nearest_code(x * step, kv_dtype) * step, got / step
        for wrong in (reversed_, unscaled):
            assert np.abs(wrong - x).max() > 0.5 * np.abs(x).max()


@pytest.mark.parametrize(("kv_dtype", "kv_scale", "way"), QUANTISED)
def test_trap_24_scales_of_keys_and_of_values_are_each_in_their_place(
    kv_dtype: str, kv_scale: str, way: Way
) -> None:
    """The scale of a key belongs to its logits, that of a value to what it adds to the output; forgotten, or
    taken for each other, the answer is another one."""
    given = problem(54, 3, 21, 8, 8, heads=(4, 2))
    given = replace(given, k=given.k * 3, v=given.v * 40)
    k_scale, v_scale = (scales(x, kv_dtype, kv_scale).astype(np.float64) for x in (given.k, given.v))
    k, v = nearest_code(given.k / k_scale, kv_dtype), nearest_code(given.v / v_scale, kv_dtype)

    def answer(k_scale: Any, v_scale: Any) -> Arrays:
        found = softmax(logits(replace(given, k=k * k_scale)), v * v_scale)
        return {name: found[name] for name in ("out", "lse")}

    settle(way, given, answer(k_scale, v_scale), answer(1.0, v_scale), answer(k_scale, 1.0),
           answer(v_scale, k_scale))  # fmt: skip


@pytest.mark.parametrize(
    "engine", [name for name, engine in ENGINES.items() if "num_splits" in engine.options]
)
def test_trap_25_every_number_of_splits_with_every_page_size(engine: str) -> None:
    """A split may hold no token of a sequence, or end within a page, or be all padding: each combination
    gives the same answer, never NaN. (Merged without regard for empty splits, their maximum of −∞ makes it
    NaN.)"""
    given = problem(
        55, 2, 70, batch=3, heads=(2, 1), attention={"is_causal": True}, inputs={"kv_lens": [0, 17, 70]}
    )
    offset = np.array([0, 17, 70]).reshape(3, 1, 1, 1) - 2
    visible = np.arange(70) <= np.arange(2)[:, None] + offset
    s = only(visible, logits(given))
    right = {name: softmax(s, given.v)[name] for name in ("out", "lse")}
    parts = np.split(s, [16, 32, 48, 64], 3)
    top = np.stack([part.max(3) for part in parts])
    merged = np.exp(top - top.max(0)).sum(0)
    assert np.isnan(merged[0]).all()
    wrong = {"out": np.where(np.isnan(merged)[..., None], np.nan, right["out"])}
    pages = (None, 1, 2, 7, 16, 70) if "paged" in ENGINES[engine].features else (None,)
    for page in pages:
        for splits in (None, 2, 3, 100):
            options = {"num_splits": splits, "block_n": 16} if splits else {}
            way = Way(f"{engine} {page} {splits}", engine, options, page=page)
            settle(way, given, right, wrong)
            if "page_size" in ENGINES[engine].options and page in (2, 7):
                own = Way(f"{engine} own {page} {splits}", engine, {**options, "page_size": page})
                settle(own, given, right, wrong)


# -- integers ------------------------------------------------------------------------------------------------


@triton.jit
def divide(p_x, p_quotient, p_rest, divisor):
    """x // divisor and x % divisor of 16 integers."""
    o = tl.arange(0, 16)
    x = tl.load(p_x + o)
    tl.store(p_quotient + o, x // divisor)
    tl.store(p_rest + o, x % divisor)


@on_ways("causal", "window", "position_offset", q_len=5)
def test_trap_26_division_in_a_kernel_rounds_towards_zero(way: Way) -> None:
    """As in C, not as in Python: −13 // 16 is 0 inside a kernel. Bounds of tiles that are computed from
    positions below 0 then start too late, and the keys before them are lost."""
    x = torch.arange(-13, 3, dtype=torch.int32)
    quotient, rest = torch.empty_like(x), torch.empty_like(x)
    divide[(1,)](x, quotient, rest, 16)
    assert (int(quotient[0]), int(rest[0])) == (0, -13) != divmod(-13, 16)

    positions = {"q_positions": -3, "kv_positions": -20}
    given = problem(43, 5, 40, attention={"is_causal": True, "window": [10, None], **positions})
    keys, queries, s = np.arange(40) - 20, np.arange(5)[:, None] - 3, logits(given)
    visible = (keys <= queries) & (keys >= queries - 10)
    first_tile = np.fix((queries.min() - 10) / 16) * 16
    settle(
        way, given, softmax(only(visible, s), given.v),
        softmax(only(visible & (keys >= first_tile), s), given.v),
    )  # fmt: skip
    for first in (-60, -25, 19, 60):
        asked = {**given.attention, "q_positions": first}
        queries = np.arange(5)[:, None] + first
        visible = (keys <= queries) & (keys >= queries - 10)
        moved = Problem(given.q, given.k, given.v, asked)
        settle(way, moved, softmax(only(visible, s), given.v))


@on_ways("rope", "causal", q_len=1)
def test_trap_27_positions_in_a_streaming_cache_are_those_of_the_cache(way: Way) -> None:
    """StreamingLLM keeps the first tokens and the latest and drops those between. Its rotations are by the
    place in the cache, where the gap has closed; by the place in the text a query would stand farther from
    the first tokens than in any training text. Both can be said; the default is the cache."""
    text = [0, 1, 2, 3, *range(50, 59)]
    given = problem(
        44, 1, len(text), spread=2.0, attention={"is_causal": True, "rope": {"style": "half", "theta": 50.0}}
    )

    def answer(places: list[int]) -> Arrays:
        q, k = (turned(x, at, 50.0, "half") for x, at in ((given.q, places[-1:]), (given.k, places)))
        return softmax(logits(Problem(q, k, given.v)), given.v)

    settle(way, given, answer(list(range(len(text)))), answer(text))
    if way.can(["rope", "causal", "positions"]):
        stated = {**given.attention, "kv_positions": text, "q_positions": [58]}
        settle(way, Problem(given.q, given.k, given.v, stated), answer(text), answer(list(range(len(text)))))
