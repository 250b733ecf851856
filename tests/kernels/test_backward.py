"""The backward pass of the flash kernels, through the interpreter: against the float64 reference, torch's
autograd and finite differences; whatever is launched writes into memory that holds NaN, and not beside it."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernels.engines.reference import reference
from kernels.execute import execute
from kernels.flash.arguments import terms
from kernels.flash.gradients import GRADIENTS, backward
from kernels.flash.interpreter import counted_traffic
from kernels.flash.launch import forward, prepare
from kernels.flash.softmax import Kept
from kernels.numerics import compare
from kernels.operands import Operands, operands
from kernels.spec import RunSpec
from tests.kernels.cases import Arrays, Case, cases, compute, make, torch_in_low_precision
from tests.kernels.error_bounds import error_bounds

SMALL = {"options": {"block_m": 16, "block_n": 32}}
BORDER = 64
Shape = tuple[int, int, int, int, int, int]  # batch, heads, kv_heads, q_len, kv_len, dim


def inside_nan(given: torch.Tensor) -> torch.Tensor:
    """A copy with NaN before and behind it."""
    room = torch.full((given.numel() + 2 * BORDER,), float("nan"), dtype=given.dtype)
    view = room[BORDER : BORDER + given.numel()].view(given.shape)
    return view.copy_(given)


@pytest.fixture(autouse=True)
def poisoned(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Memory for results is NaN, between NaN that must stay: what is left out, or written beside, shows."""
    rooms = []

    def empty(shape: tuple[int, ...], *, dtype: torch.dtype, device: Any) -> torch.Tensor:
        view = inside_nan(torch.full(tuple(shape), float("nan"), dtype=dtype, device=device))
        rooms.append((view, view.numel()))
        return view

    monkeypatch.setattr(torch, "empty", empty)
    yield
    for view, count in rooms:
        room = view.as_strided((count + 2 * BORDER,), (1,), 0)
        assert torch.isnan(room[:BORDER]).all()
        assert torch.isnan(room[BORDER + count :]).all()


def with_gradients(shape: Shape, **fields: Any) -> tuple[RunSpec, Arrays]:
    """(spec, arrays) of the flash engine, gradients asked for; dout as random as the rest."""
    batch, heads, _, n, _, d = shape
    v_dim = fields.get("v_dim")
    seeded = {
        "seed": fields.get("seed", 0) + 1, "shape": [batch, heads, n, d if v_dim is None else v_dim],
        "distribution": fields.get("distribution", "normal"),
    }  # fmt: skip
    inputs = {"dout": seeded, **fields.pop("inputs", {})}
    return make("flash", shape, inputs=inputs, **{"return": ["out", *GRADIENTS]}, **fields)


def check(spec: RunSpec, arrays: Arrays) -> Arrays:
    """Every gradient within the bound that rounding allows, and in float32 near the reference besides."""
    got, expected = compute(spec, arrays), reference(spec, arrays, spec.returns)
    found = compare(spec, got, expected, error_bounds(spec, arrays, gradients=True))["arrays"]
    for name in spec.returns[1:]:
        assert got[name].shape == expected[name].shape
        assert found[name]["within_bound"], (name, found[name])
        if spec.dtype == "float32":
            largest = np.abs(expected[name]).max(initial=1.0)
            assert found[name]["max_abs_err"] <= 2e-5 * largest, (name, found[name])
    return got


def test_gradients_by_hand() -> None:
    """One query, two keys with equal scores: P = ½, ½; dP = dO·v = 2, 4; Δ = 3; ds = −½, ½."""
    inputs = {"q": [[3.0]], "k": [[0.0], [0.0]], "v": [[1.0], [2.0]], "dout": [[2.0]]}
    spec, arrays = make(
        "flash", (1, 1, 1, 1, 2, 1), inputs=inputs, attention={"scale": 2.0}, **{"return": ["dq", "dk", "dv"]}
    )
    got = compute(spec, arrays)
    np.testing.assert_allclose(got["dv"][0, 0], [[1.0], [1.0]], rtol=1e-6)
    np.testing.assert_allclose(got["dk"][0, 0], [[-3.0], [3.0]], rtol=1e-6)  # 2 · ds · 3
    np.testing.assert_allclose(got["dq"][0, 0], [[0.0]], atol=1e-7)  # 2 · Σ ds · 0


# -- every term ----------------------------------------------------------------------------------------------

rng = np.random.default_rng(3)
B, H, N, M = 2, 4, 37, 53
FORBIDDING = [["-inf" if x < 0.6 else x for x in row] for row in rng.random((N, M)).tolist()]
TERMS: dict[str, dict[str, Any]] = {
    "plain": {},
    "negative scale": {"attention": {"scale": -0.7, "is_causal": True}},
    "zero scale": {"attention": {"scale": 0.0}},
    "causal bottom right": {"attention": {"is_causal": True}},
    "causal top left": {"attention": {"is_causal": True, "causal_alignment": "top_left"}},
    "window": {"attention": {"window": [5, 3]}},
    "window to the left": {"attention": {"window": [7, None]}},
    "window to the right": {"attention": {"window": [None, 4]}},
    "causal window": {"attention": {"window": [20, None], "is_causal": True}},
    "softcap": {"attention": {"softcap": 1.5, "is_causal": True}},
    "alibi": {"attention": {"alibi_slopes": "auto", "is_causal": True}},
    "alibi by row": {"attention": {"alibi_slopes": rng.standard_normal((B, H)).tolist()}},
    "bias": {"inputs": {"attn_mask": rng.standard_normal((H, N, M)).tolist()}},
    "bias that forbids": {"inputs": {"attn_mask": FORBIDDING}},
    "mask": {
        "inputs": {"attn_mask": (rng.random((B, 1, N, M)) < 0.2).tolist()},
        "attention": {"is_causal": True},
    },
    "mask of keys": {"inputs": {"attn_mask": (rng.random(M) < 0.5).tolist()}},
    "sinks": {"attention": {"sinks": [0.5, -1, "-inf", 4], "is_causal": True}},
    "offset": {"attention": {"is_causal": True, "q_positions": 7, "kv_positions": -2}},
    "far offset": {"attention": {"window": [9, 0], "q_positions": 2**40 + 9, "kv_positions": 2**40}},
    "positions": {
        "attention": {
            "q_positions": rng.integers(0, 60, (B, N)).tolist(),
            "kv_positions": rng.permutation(M).tolist(),
            "window": [30, 0],
            "alibi_slopes": "auto",
        }
    },
    "pattern": {"attention": {"pattern": {"type": "chunked", "size": 9}, "is_causal": True}},
    "ragged": {
        "inputs": {"q_lens": [37, 11], "kv_lens": [30, 53]},
        "attention": {"is_causal": True, "sinks": [0.5, -1, "-inf", 4]},
    },
    "ragged without a mask": {"inputs": {"q_lens": [11, 37], "kv_lens": [53, 30]}},
    "ragged and empty": {"inputs": {"q_lens": [0, 20], "kv_lens": [53, 0]}},
    "rope": {"attention": {"rope": {"style": "interleaved", "dim": 8, "dim_offset": 4}, "is_causal": True}},
    "past": {
        "inputs": {
            "past_key": {"seed": 5, "shape": [B, 2, 20, 12]},
            "past_value": {"seed": 5, "shape": [B, 2, 20, 7]},
        },
        "attention": {"is_causal": True, "rope": {"style": "half"}},
    },
    "everything": {
        "inputs": {
            "attn_mask": rng.standard_normal((1, N, M)).tolist(), "q_lens": [37, 30], "kv_lens": [50, 41],
        },
        "attention": {
            "softcap": 3, "alibi_slopes": "auto", "window": [14, 20], "sinks": [1, 0, -1, 2], "scale": 0.5,
            "rope": {"style": "half", "dim": 8}, "pattern": {"type": "prefix", "len": 6},
        },
    },
}  # fmt: skip


@pytest.mark.parametrize("case", TERMS)
def test_every_term_of_a_logit(case: str) -> None:
    distribution = "normal" if len(case) % 2 else "peaked"
    options = {"block_m": 32, "block_n": 32}
    check(
        *with_gradients(
            (B, H, 2, N, M, 12), v_dim=7, distribution=distribution, options=options, **TERMS[case]
        )
    )


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("dim", [32, 40, 59, 64, 80, 96, 111, 128, 160, 192, 224, 256])
def test_head_dims(dim: int, dtype: str) -> None:
    """In float16 by flash-attention's rule: an error at most three times that of torch's operations, each
    rounded to float16."""
    spec, arrays = with_gradients(
        (1, 2, 1, 23, 37, dim), dtype=dtype, seed=dim, attention={"is_causal": True},
        options={"block_m": 16, "block_n": 64},
    )  # fmt: skip
    got = check(spec, arrays)
    if dtype == "float16":
        no_worse_than_torch(spec, arrays, got)


def no_worse_than_torch(spec: RunSpec, arrays: Arrays, got: Arrays) -> None:
    expected, theirs = reference(spec, arrays, spec.returns), torch_in_low_precision(spec, arrays)
    for name in spec.returns:
        ours, torchs = (np.abs(x[name] - expected[name]).max(initial=0.0) for x in (got, theirs))
        assert ours <= (2 if name == "out" else 3) * torchs, (name, ours, torchs)


@pytest.mark.parametrize("alignment", ["bottom_right", "top_left", None])
@pytest.mark.parametrize("lengths", [(113, 203), (97, 113), (1, 239), (3, 79), (79, 3), (64, 64)])
def test_pairs_of_lengths(lengths: tuple[int, int], alignment: str | None) -> None:
    attention = {"is_causal": True, "causal_alignment": alignment} if alignment else {}
    options = {"block_m": 32, "block_n": 64}
    check(*with_gradients((1, 1, 1, *lengths, 16), attention=attention, seed=lengths[0], options=options))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(
    "attention",
    [
        {"is_causal": True},
        {"window": [30, 3], "alibi_slopes": "auto"},
        {"softcap": 2.0},
        {"sinks": [1, 0, 2, -1]},
    ],
)
def test_half_precision_stays_near_torchs_own_error(attention: dict[str, Any], dtype: str) -> None:
    spec, arrays = with_gradients(
        (1, 4, 2, 65, 97, 40), dtype=dtype, seed=8, attention=attention,
        options={"block_m": 64, "block_n": 32},
    )  # fmt: skip
    no_worse_than_torch(spec, arrays, check(spec, arrays))


@pytest.mark.parametrize("heads", [(4, 4), (6, 2), (6, 1)])
def test_query_heads_that_share_a_key_head_add_up(heads: tuple[int, int]) -> None:
    check(*with_gradients((2, *heads, 19, 35, 8), distribution="peaked", seed=4, **SMALL))


@pytest.mark.parametrize(("dim", "v_dim"), [(16, 59), (192, 128), (40, 1), (8, 0), (0, 8)])
def test_values_of_another_width(dim: int, v_dim: int) -> None:
    check(*with_gradients((1, 2, 2, 19, 35, dim), v_dim=v_dim, **SMALL))


@pytest.mark.parametrize(
    "shape",
    [
        (0, 2, 1, 3, 3, 4),
        (1, 2, 1, 0, 3, 4),
        (1, 2, 1, 3, 0, 4),
        (2, 0, 0, 3, 3, 4),
        (1, 2, 1, 0, 0, 4),
        (1, 0, 2, 4, 4, 4),
    ],
)
def test_empty_axes(shape: Shape) -> None:
    got = check(*with_gradients(shape, attention={"is_causal": True}))
    assert not any(got[name].any() for name in GRADIENTS)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_no_spec_leads_out_of_the_bounds(dtype: str) -> None:
    """Whatever is combined, with tiles of any size; what lies beyond the lengths is NaN."""

    @settings(deadline=None, max_examples=20, suppress_health_check=list(HealthCheck))
    @given(cases("flash", gradients=True), st.sampled_from([16, 32]), st.sampled_from([16, 64]))
    def holds(case: Case, block_m: int, block_n: int) -> None:
        options = {"block_m": block_m, "block_n": block_n}
        spec, arrays = case.on("flash", dtype=dtype, options=options, **{"return": ["out", *GRADIENTS]})
        got, expected = compute(spec, arrays), reference(spec, arrays, spec.returns)
        found = compare(spec, got, expected, error_bounds(spec, arrays, gradients=True))
        for name, verdict in {"out": found, **found["arrays"]}.items():
            assert verdict["within_bound"], (name, verdict)

    holds()


def test_gradients_are_right_beside_large_logits() -> None:
    """Integers plus 2²², exact in float32, whose LSE is not: see ``test_flash.py``."""
    large = np.random.default_rng(5)
    q, k = (large.integers(-2, 3, (1, 2, length, 8)).astype(float).tolist() for length in (N, M))
    inputs = {"q": q, "k": k, "attn_mask": np.full((N, M), 2.0**22).tolist()}
    check(*with_gradients((1, 2, 2, N, M, 8), inputs=inputs, attention={"scale": 1.0}, **SMALL))


@pytest.mark.parametrize("softcap", [1e30, 3.4e38])
def test_a_softcap_beyond_all_scores_changes_no_gradient(softcap: float) -> None:
    shape: Shape = (1, 2, 1, 20, 33, 8)
    got = check(*with_gradients(shape, attention={"softcap": softcap}, **SMALL))
    plain = compute(*with_gradients(shape, **SMALL))
    for name in GRADIENTS:
        np.testing.assert_allclose(got[name], plain[name], rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("scale", [1e10, -1e10, 1e30, -1e30])
def test_a_huge_scale_makes_no_nan(scale: float) -> None:
    """Every row sees one key, and differences of logits are beyond what an exponential can be of."""
    returns = ["out", "lse", "scores", "masked_scores", "weights", *GRADIENTS]
    attention = {"scale": scale, "is_causal": True}
    spec, arrays = with_gradients((1, 2, 1, 20, 33, 8), attention=attention, **SMALL)
    spec = dataclasses.replace(spec, returns=tuple(returns))
    got, expected = compute(spec, arrays), reference(spec, arrays, spec.returns)
    found = compare(spec, got, expected, error_bounds(spec, arrays, gradients=True))
    for name, verdict in {"out": found, **found["arrays"]}.items():
        assert verdict["within_bound"], (name, verdict)


# -- other yardsticks ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("softcap", [0.0, 2.0])
def test_torchs_autograd_agrees(softcap: float) -> None:
    """The textbook's operations in float64, differentiated by torch: nothing of the reference is in it."""
    spec, arrays = with_gradients(
        (1, 4, 2, 33, 40, 16), distribution="peaked", seed=2,
        attention={"softcap": softcap, "window": [20, 0], "scale": 0.4}, **SMALL,
    )  # fmt: skip
    q, k, v = (torch.tensor(arrays[name]).double().requires_grad_() for name in "qkv")
    scores = 0.4 * torch.einsum("bgrnd,bgmd->bgrnm", q.reshape(1, 2, 2, 33, 16), k)
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    distance = torch.arange(40)[None, :] - torch.arange(7, 40)[:, None]
    scores = scores.masked_fill((distance > 0) | (distance < -20), float("-inf"))
    out = torch.einsum("bgrnm,bgme->bgrne", torch.softmax(scores, -1), v).reshape(1, 4, 33, 16)
    expected = torch.autograd.grad(out, (q, k, v), torch.tensor(arrays["dout"]).double())
    got = compute(spec, arrays)
    for name, gradient in zip(GRADIENTS, expected, strict=True):
        largest = float(gradient.abs().max())
        np.testing.assert_allclose(got[name], gradient.numpy(), rtol=0, atol=2e-5 * largest, err_msg=name)


def test_slopes_of_the_loss_agree() -> None:
    """Σ dO·O of the float64 forward pass, moved along every number of q, k and v in turn."""
    attention = {
        "softcap": 1.5, "alibi_slopes": [0.3, -0.2], "sinks": [0.5, -1], "window": [2, 1], "scale": 0.8,
    }  # fmt: skip
    mask = rng.standard_normal((4, 5)).tolist()
    spec, arrays = with_gradients((1, 2, 1, 4, 5, 3), attention=attention, inputs={"attn_mask": mask})
    got, step = compute(spec, arrays), 1e-4

    def loss(name: str, at: tuple[int, ...], by: float) -> float:
        moved = arrays[name].astype(np.float64)
        moved[at] += by
        return float((reference(spec, arrays | {name: moved}, ("out",))["out"] * arrays["dout"]).sum())

    for name in "qkv":
        slopes = [
            (loss(name, at, step) - loss(name, at, -step)) / (2 * step)
            for at in np.ndindex(arrays[name].shape)
        ]
        np.testing.assert_allclose(got[f"d{name}"].ravel(), slopes, rtol=1e-4, atol=1e-5, err_msg=name)


# -- what must be exactly so ---------------------------------------------------------------------------------


def test_rows_that_see_nothing_ask_for_nothing() -> None:
    """40 queries and 7 keys, aligned at their ends: 33 queries see no key."""
    for attention in ({"is_causal": True}, {"is_causal": True, "sinks": [2.0]}):
        spec, arrays = with_gradients((1, 1, 1, 40, 7, 8), attention=attention, **SMALL)
        got = check(spec, arrays)
        assert not got["dq"][0, 0, :33].any()
        assert got["dq"][0, 0, 34:].all()


def test_keys_that_nobody_sees_get_exactly_nothing() -> None:
    hidden = np.isin(np.arange(70), [0, 5, 69, *range(32, 48)])
    mask = np.where(rng.random((9, 70)) < 0.7, True, False) & ~hidden
    mask[0] |= ~hidden
    spec, arrays = with_gradients((1, 2, 1, 9, 70, 8), inputs={"attn_mask": mask.tolist()}, **SMALL)
    got = check(spec, arrays)
    for name in ("dk", "dv"):
        assert not got[name][:, :, hidden].any()
        assert got[name][:, :, ~hidden].any(axis=-1).all()
    spec, arrays = with_gradients(
        (1, 2, 1, 9, 70, 8), attention={"is_causal": True, "causal_alignment": "top_left"}, **SMALL
    )
    got = check(spec, arrays)
    assert not got["dk"][:, :, 9:].any()
    assert not got["dv"][:, :, 9:].any()


@pytest.mark.parametrize("attention", [{}, {"is_causal": True, "alibi_slopes": "auto"}])
def test_padding_is_never_read_and_gets_nothing(attention: dict[str, Any]) -> None:
    """NaN beyond the lengths, in dout too."""
    lens = {"q_lens": [13, 0], "kv_lens": [21, 40]}
    spec, arrays = with_gradients((2, 2, 1, 20, 40, 8), inputs=lens, attention=attention, **SMALL)
    for b, (n, m) in enumerate([(13, 21), (0, 40)]):
        for name in ("q", "dout"):
            arrays[name][b, :, n:] = np.nan
        for name in ("k", "v"):
            arrays[name][b, :, m:] = np.nan
    got = check(spec, arrays)
    assert not got["dq"][0, :, 13:].any()
    assert not got["dk"][0, :, 21:].any()
    assert not got["dv"][0, :, 21:].any()
    assert not any(got[name][1].any() for name in GRADIENTS)


def test_very_negative_logits_keep_their_gradients() -> None:
    """Every score near −3·10⁵, where a finite stand-in for −∞ would be the larger."""
    k = -np.full((1, 1, 50, 4), 300.0) + np.random.default_rng(1).standard_normal((1, 1, 50, 4)) / 100
    inputs = {"q": np.full((1, 1, 40, 4), 300.0).tolist(), "k": k.tolist()}
    spec, arrays = with_gradients(
        (1, 1, 1, 40, 50, 4), inputs=inputs, attention={"scale": 1.0, "is_causal": True}, **SMALL
    )
    expected = reference(spec, arrays, ("dv",))["dv"]
    np.testing.assert_allclose(compute(spec, arrays)["dv"], expected, atol=0.3 * np.abs(expected).max())


@pytest.mark.parametrize("window", [[None, 2**31 - 1], [2**31 - 1, None], [2**31, 2**53]])
def test_a_window_wider_than_32_bits_hides_nothing(window: list[int | None]) -> None:
    spec, arrays = with_gradients((1, 1, 1, 20, 33, 8), attention={"window": window}, **SMALL)
    plain, _ = with_gradients((1, 1, 1, 20, 33, 8), **SMALL)
    got, expected = compute(spec, arrays), compute(plain, arrays)
    for name in ("out", *GRADIENTS):
        np.testing.assert_allclose(got[name], expected[name], rtol=1e-6, atol=1e-6)


def test_runs_are_repeatable_bit_for_bit() -> None:
    spec, arrays = with_gradients((1, 4, 2, 50, 70, 24), attention={"is_causal": True}, **SMALL)
    first, second = compute(spec, arrays), compute(spec, arrays)
    for name in GRADIENTS:
        assert np.array_equal(first[name], second[name])


def test_gradients_beyond_float16_are_computed_in_float32() -> None:
    """dP = dO·v reaches 40 · 40 · 64 = 102,400, where float16 ends at 65,504; keys are small and so is dQ."""
    signs = lambda *shape: np.where(rng.random(shape) < 0.5, -40.0, 40.0)  # noqa: E731
    dout = signs(1, 1, 20, 64)
    inputs = {
        "q": rng.standard_normal((1, 1, 20, 64)).tolist(),
        "k": (rng.standard_normal((1, 1, 33, 64)) / 500).tolist(),
        "v": np.where(rng.random((1, 1, 33, 1)) < 0.5, dout[:, :, :1], signs(1, 1, 33, 64)).tolist(),
        "dout": dout.tolist(),
    }
    spec, arrays = with_gradients((1, 1, 1, 20, 33, 64), dtype="float16", inputs=inputs, **SMALL)
    prepared = prepare(spec, arrays, "cpu")
    assert any("float32" in note for note in prepared.notes)
    got, expected = prepared.collect(prepared.compute()), reference(spec, arrays, spec.returns)
    verdicts = compare(spec, got, expected, error_bounds(spec, arrays, gradients=True))["arrays"]
    assert all(verdict["within_bound"] for verdict in verdicts.values()), verdicts
    assert all(got[name].dtype == np.float16 for name in spec.returns)


# -- launches ------------------------------------------------------------------------------------------------


def bound_terms(given: Operands, tiles: tuple[int, int]) -> Any:
    return terms(given, tiles, lambda array: torch.from_numpy(np.array(array)))


def kept(done: dict[str, torch.Tensor]) -> Kept:
    return Kept(done["m"], done["l"])


def run(given: Operands, dout: torch.Tensor, tiles: tuple[int, int]) -> dict[str, torch.Tensor]:
    """Both passes on the operands, every one of them in the middle of NaN."""
    q, k, v, dout = (inside_nan(torch.as_tensor(x)) for x in (given.q, given.k, given.v, dout))
    bound = bound_terms(given, tiles)
    done = forward(q, k, v, bound, tiles=tiles, wanted=GRADIENTS)
    return backward(q, k, v, bound, out=done["out"], kept=kept(done), dout=dout, tiles=tiles)


def random_operands(n: int, m: int, **fields: Any) -> tuple[Operands, torch.Tensor]:
    """Four query heads, two key heads, keys 8 and values 4 wide; dout."""
    normal = lambda *shape: np.random.default_rng(7).standard_normal(shape).astype(np.float32)  # noqa: E731
    absent = {f.name: None for f in dataclasses.fields(Operands)}
    given = Operands(
        **absent | {
            "q": normal(1, 4, n, 8), "k": normal(1, 2, m, 8), "v": normal(1, 2, m, 4), "scale": 0.5,
            "softcap": 0.0, "q_positions": np.arange(m - n, m)[None], "kv_positions": np.arange(m)[None],
            **fields,
        }
    )  # fmt: skip
    return given, torch.from_numpy(normal(1, 4, n, 4))


@settings(deadline=None, max_examples=12, suppress_health_check=list(HealthCheck))
@given(
    lengths=st.tuples(st.integers(1, 70), st.integers(1, 70)),
    tiles=st.tuples(st.sampled_from([16, 32, 64, 128]), st.sampled_from([16, 32, 64, 128])),
    window=st.tuples(st.none() | st.integers(0, 40), st.none() | st.integers(0, 40)),
    masked=st.booleans(),
)
def test_tile_sizes_do_not_matter(
    lengths: tuple[int, int], tiles: tuple[int, int], window: tuple[int | None, int | None], masked: bool
) -> None:
    mask = np.random.default_rng(lengths).random((1, 4, *lengths)) < 0.3 if masked else None
    given, dout = random_operands(*lengths, left=window[0], right=window[1], mask=mask)
    got, expected = run(given, dout, tiles), run(given, dout, (128, 128))
    for name in GRADIENTS:
        torch.testing.assert_close(got[name], expected[name], rtol=1e-5, atol=1e-5, msg=name)


def test_one_gradient_alone_is_the_same() -> None:
    spec, arrays = with_gradients((1, 2, 1, 20, 33, 8), **SMALL)
    together = compute(spec, arrays)
    for name in GRADIENTS:
        alone = compute(dataclasses.replace(spec, returns=(name,)), arrays)
        assert set(alone) == {"out", name}
        assert np.array_equal(alone[name], together[name])


MASK = np.kron(rng.random((1, 4, 5, 3)) < 0.4, np.ones((1, 1, 16, 32), dtype=bool))[:, :, :70, :90]
SKIPPING: dict[str, dict[str, Any]] = {
    "nothing": {},
    "causal": {"right": 0},
    "causal top left": {"right": 0, "q_positions": np.arange(70)[None]},
    "window": {"left": 20, "right": 5},
    "window to the left": {"left": 3},
    "window beyond the keys": {"left": 3, "right": 500, "q_positions": np.arange(300, 370)[None]},
    "keys beyond the window": {"right": 0, "q_positions": np.arange(-50, 20)[None]},
    "mask": {"mask": MASK},
    "bias": {"bias": np.where(MASK, rng.standard_normal(MASK.shape), -np.inf).astype(np.float32)},
    "ragged": {"q_lens": np.array([40]), "kv_lens": np.array([50])},
    "positions": {"left": 10, "right": 0, "q_positions": np.sort(rng.integers(0, 90, 70))[None]},
}


def sees(given: Operands) -> np.ndarray:
    """[4, n, m] by the definition, cut to the lengths."""
    distance = given.kv_positions[0][None, :] - given.q_positions[0][:, None]
    seen = np.ones((4, *distance.shape), dtype=bool)
    seen &= distance >= -given.left if given.left is not None else True
    seen &= distance <= given.right if given.right is not None else True
    seen &= given.mask[0] if given.mask is not None else True
    seen &= ~np.isneginf(given.bias[0]) if given.bias is not None else True
    n, m = (None if lens is None else lens[0] for lens in (given.q_lens, given.kv_lens))
    return seen[:, :n, :m]


def visible_tiles(seen: np.ndarray, block_m: int, block_n: int) -> list[tuple[int, int]]:
    """(rows, columns) of each tile of each head in which any query sees any key."""
    corners = itertools.product(
        seen, range(0, seen.shape[1], block_m), range(0, seen.shape[2], block_n)
    )  # fmt: skip
    tiles = [head[i : i + block_m, j : j + block_n] for head, i, j in corners]
    return [tile.shape for tile in tiles if tile.any()]


@pytest.mark.parametrize("case", SKIPPING)
def test_only_tiles_with_a_visible_pair_are_read(case: str) -> None:
    """Beside a tile of keys stream Q, dO, m, l and Δ of the tiles of queries that see it; beside a tile of
    queries, K and V. Counted to the byte, but for lists of positions."""
    tiles, d, e = (16, 32), 8, 4
    given, dout = random_operands(70, 90, **SKIPPING[case])
    bound = bound_terms(given, tiles)
    q, k, v = (torch.from_numpy(x) for x in (given.q, given.k, given.v))
    done = forward(q, k, v, bound, tiles=tiles, wanted=GRADIENTS)
    read = {}
    for name in ("dk", "dq"):
        with counted_traffic() as traffic:
            backward(
                q, k, v, bound, out=done["out"], kept=kept(done), dout=dout, tiles=tiles, wanted=(name,)
            )  # fmt: skip
        read[name] = traffic.bytes_read
    seen, by_queries, by_keys = sees(given), 4 * 5, 2 * 3  # programs of 16 queries, of 32 keys
    visited = visible_tiles(seen, *tiles)
    (n, m), rows, columns = seen.shape[1:], sum(t[0] for t in visited), sum(t[1] for t in visited)
    # Each program reads its lengths and offset; a byte for each tile tells whether to visit it.
    own = 4 * sum(p is not None for p in (bound.p_offset, bound.p_q_lens, bound.p_kv_lens))
    dots = by_queries * own + 4 * 4 * n * 2 * e
    matrix = 1 if given.mask is not None else 4 if given.bias is not None else 0
    matrices = 4 * 5 * 3 * (matrix > 0) + matrix * sum(t[0] * t[1] for t in visited)
    keys = dots + by_keys * own + 4 * (2 * m * (d + e) + rows * (d + e + 3)) + matrices
    queries = dots + by_queries * own + 4 * (4 * n * (d + e + 3) + columns * (d + e)) + matrices
    if case == "positions":  # which are read more than once
        assert keys <= read["dk"] <= 1.5 * keys
        assert queries <= read["dq"] <= 1.5 * queries
    else:
        assert read == {"dk": keys, "dq": queries}
    assert case == "nothing" or len(visited) < 4 * 5 * 3


def test_a_run_tells_of_its_gradients() -> None:
    spec, arrays = with_gradients((1, 2, 1, 20, 33, 8), attention={"is_causal": True})
    outcome = execute(spec, {})
    assert {name: outcome.arrays[name].shape for name in GRADIENTS} == {
        "dq": (1, 2, 20, 8), "dk": (1, 1, 33, 8), "dv": (1, 1, 33, 8),
    }  # fmt: skip
    assert all(outcome.numerics["arrays"][name]["within_bound"] for name in GRADIENTS)
    assert any("backward" in note for note in outcome.notes)
    assert outcome.traffic["bytes_written"] > 4 * sum(outcome.arrays[name].size for name in GRADIENTS)
    assert operands(spec, arrays, dtype=np.float32).q.shape == (1, 2, 20, 8)
