"""The selective scan: all its forms are one, in float64 and in Triton within its bound; and its dual form."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given as tried
from hypothesis import settings
from hypothesis import strategies as st

from kernels.arrays import generate, round_to_dtype
from kernels.flash.interpreter import counted_traffic
from kernels.linear import launch as linear
from kernels.linear import recurrence as linear_reference
from kernels.scan import launch, tiling
from kernels.scan.bounds import error_bounds
from kernels.scan.duality import as_linear, as_scanned, state_as_linear
from kernels.scan.inputs import Scanned, SelectiveScan
from kernels.scan.recurrence import chunked, compose, prefixes, quadratic, recurrent, scan
from tests.kernels.fences import fences, poisoned_memory

ARRAYS = ("x", "delta", "a", "b", "c", "skip")


def selective(
    seed: int = 0, *, batch: int = 2, heads: int = 2, groups: int = 1, n: int = 9, p: int = 3,
    states: int = 4, shared: bool = False, skip: bool = True, dtype: str = "float32",
) -> SelectiveScan:  # fmt: skip
    """Inputs as Mamba makes them (rates −1 … −N, Δ after a softplus), or, ``shared``, Mamba-2: one Δ and one
    rate to a head. x, b and c are of ``dtype``, in float64 arrays."""

    def made(name: str, *shape: int) -> np.ndarray:
        return generate(f"scan/{name}", seed, shape, "normal", "float64")

    def rounded(array: np.ndarray, to: str = dtype) -> np.ndarray:
        return round_to_dtype(array, to).astype(np.float64)

    width = 1 if shared else p
    rates = -np.exp(made("a", heads, 1, 1)) if shared else np.tile(-np.arange(1.0, states + 1), (heads, p, 1))
    return SelectiveScan(
        x=rounded(made("x", batch, heads, n, p)),
        delta=rounded(np.log1p(np.exp(made("delta", batch, heads, n, width) - 1)), "float32"),
        a=rounded(rates, "float32"),
        b=rounded(made("b", batch, groups, n, states)),
        c=rounded(made("c", batch, groups, n, states)),
        skip=rounded(made("skip", heads, p), "float32") if skip else None,
    )


def some_state(given: SelectiveScan) -> np.ndarray:
    batch, heads, _, p, states = given.sizes
    return generate("scan/state", 1, (batch, heads, p, states), "normal", "float32").astype(np.float64)


def assert_same(found: Scanned, wanted: Scanned, tolerance: float = 1e-10) -> None:
    for a, b in zip(found, wanted, strict=True):
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * (1 + np.abs(b).max(initial=0)))


SIZES = st.fixed_dictionaries(
    {
        "heads": st.sampled_from((2, 4)),
        "groups": st.sampled_from((1, 2)),
        "n": st.integers(0, 33),
        "p": st.integers(1, 5),
        "states": st.integers(1, 6),
        "shared": st.booleans(),
        "skip": st.booleans(),
    }
)


# -- float64 -------------------------------------------------------------------------------------------------


@settings(max_examples=50)
@tried(SIZES, st.integers(1, 40), st.booleans(), st.integers(0, 2**32))
def test_recurrent_is_scan_is_chunked_is_quadratic(sizes, chunk, starts, seed):
    given = selective(seed, **sizes)
    state = some_state(given) if starts else None
    wanted = recurrent(given, state)
    assert_same(scan(given, state), wanted)
    assert_same(chunked(given, state, chunk=chunk), wanted)
    assert_same(quadratic(given, state), wanted)


def test_composing_steps_is_associative_but_not_commutative():
    first, second, third = ((np.array(a), np.array(b)) for a, b in ((0.5, 2.0), (-3.0, 1.0), (0.25, 7.0)))
    left, right = compose(*compose(*first, *second), *third), compose(*first, *compose(*second, *third))
    assert left == right
    assert compose(*first, *second) != compose(*second, *first)


def test_prefixes_are_compositions_of_everything_before():
    decay, into = generate("scan/pairs", 0, (2, 1, 1, 11, 2, 3), "normal", "float64")
    product, total = prefixes(decay, into)
    np.testing.assert_allclose(product, decay.cumprod(2), atol=1e-12)
    h = np.zeros((1, 1, 2, 3))
    for t in range(11):
        h = decay[:, :, t] * h + into[:, :, t]
        np.testing.assert_allclose(total[:, :, t], h, atol=1e-12)


def test_one_step_of_mamba_by_hand():
    """Δ = ½, A = −2, B = 3, x = 5, from h = 7: e⁻¹·7 + ½·3·5; C = −1, D = 10."""
    one = np.ones((1, 1, 1, 1))
    given = SelectiveScan(5 * one, one / 2, -2 * one[0], 3 * one, -one, 10 * one[0, 0])
    h = np.exp(-1) * 7 + 7.5
    found = recurrent(given, 7 * one)
    assert found.state.item() == pytest.approx(h)
    assert found.y.item() == pytest.approx(-h + 50)


def test_eulers_input_is_the_zero_order_hold_to_first_order():
    """(e^ΔA − 1)/A against Δ: halving Δ halves the relative distance."""
    a, distance = -1.5, []
    for delta in (0.02, 0.01):
        held = np.expm1(delta * a) / a
        distance.append(abs(delta - held) / held)
    assert distance[0] / distance[1] == pytest.approx(2, rel=0.02)


def test_delta_is_a_gate():
    """Where it is 0 the token is passed by; where it is large all before is forgotten."""
    given = selective(n=5, skip=False)
    given.delta[:, :, 2] = 0.0
    without = replace(
        given, **{name: np.delete(getattr(given, name), 2, 2) for name in ("x", "delta", "b", "c")}
    )
    np.testing.assert_allclose(recurrent(given).state, recurrent(without).state, atol=1e-14)
    given.delta[:, :, 2] = 1e3
    np.testing.assert_allclose(
        recurrent(given, 1e6 * some_state(given)).y[:, :, 2:], recurrent(given).y[:, :, 2:], atol=1e-12
    )


# -- the dual ------------------------------------------------------------------------------------------------


@settings(max_examples=40)
@tried(SIZES, st.booleans(), st.integers(0, 2**32))
def test_a_scan_with_one_rate_to_a_head_is_linear_attention(sizes, starts, seed):
    given = selective(seed, **{**sizes, "shared": True})
    state = some_state(given) if starts else None
    wanted = recurrent(given, state)
    dual, started = as_linear(given), state_as_linear(state)
    assert_same(as_scanned(given, linear_reference.parallel(dual, started)), wanted)
    assert_same(as_scanned(given, linear_reference.chunked(dual, started, chunk=4)), wanted)


def test_the_dual_is_a_masked_matrix_of_c_and_b():
    """y = (L ∘ C Bᵀ)(Δ x) with L written down from its definition."""
    given = selective(batch=1, heads=1, n=6, shared=True, skip=False)
    exponents = (given.delta * given.a[None])[0, 0, :, 0]
    decays = np.array(
        [[np.exp(exponents[j + 1 : t + 1].sum()) * (j <= t) for j in range(6)] for t in range(6)]
    )
    matrix = decays * (given.c[0, 0] @ given.b[0, 0].T)
    np.testing.assert_allclose(matrix @ (given.delta * given.x)[0, 0], recurrent(given).y[0, 0], atol=1e-12)
    np.testing.assert_allclose(linear_reference.weights(as_linear(given))[0, 0], matrix, atol=1e-12)


def test_mambas_rates_have_no_such_dual():
    for ask in (lambda: as_linear(selective()), lambda: launch.quadratic(on_device(selective()))):
        with pytest.raises(ValueError, match=r"delta .* and a .* must be 1 wide"):
            ask()


@settings(max_examples=15)
@tried(SIZES, st.booleans(), st.integers(0, 2**32))
def test_the_dual_is_within_the_bound_of_a_scan(sizes, starts, seed):
    """In Triton: over all pairs, which makes no state, and in chunks of linear attention."""
    given = selective(seed, batch=1, **{**sizes, "shared": True})
    state = some_state(given) if starts else None
    started = None if state is None else torch.from_numpy(state).float()
    tensors = on_device(given)
    with fences(), poisoned_memory():
        y, nothing = launch.quadratic(tensors, started)
        chunks = linear.chunked(as_linear(tensors), state_as_linear(started), chunk=16)
    assert nothing is None
    found = as_scanned(tensors, chunks)
    assert_within(found, given, state)
    assert_within(Scanned(y, found.state), given, state)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_dual_of_16_bits_is_within_their_bound(dtype):
    name = str(dtype).removeprefix("torch.")
    given = selective(n=70, p=6, states=5, shared=True, dtype=name)
    y, _ = launch.quadratic(on_device(given, dtype))
    assert y.dtype == dtype
    assert_within(Scanned(y, torch.from_numpy(recurrent(given).state)), given, None, name)


# -- Triton --------------------------------------------------------------------------------------------------


def on_device(given: SelectiveScan, dtype: torch.dtype = torch.float32) -> SelectiveScan:
    low = ("x", "b", "c")
    arrays = {name: getattr(given, name) for name in ARRAYS}
    return SelectiveScan(
        **{
            name: None if x is None else torch.from_numpy(x).to(dtype if name in low else torch.float32)
            for name, x in arrays.items()
        }
    )


def assert_within(found: Scanned, given: SelectiveScan, state: Any, dtype: str = "float32") -> None:
    wanted, bounds = recurrent(given, state), error_bounds(given, state, dtype)
    for a, b, bound in zip(found, wanted, bounds, strict=True):
        assert tuple(a.shape) == b.shape
        excess = np.abs(a.double().numpy() - b) - bound
        assert not np.isnan(excess).any()
        assert excess.max(initial=0.0) <= 0


@settings(max_examples=15)
@tried(SIZES, st.sampled_from((1, 4, 16, 64)), st.booleans(), st.integers(0, 2**32))
def test_kernels_are_within_their_bound(sizes, chunk, starts, seed):
    given = selective(seed, batch=1, **sizes)
    state = some_state(given) if starts else None
    started = None if state is None else torch.from_numpy(state).float()
    with fences(), poisoned_memory():
        assert_within(launch.chunked(on_device(given), started, chunk=chunk), given, state)
        assert_within(launch.recurrent(on_device(given), started), given, state)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_16_bits_are_within_their_bound(dtype):
    name = str(dtype).removeprefix("torch.")
    given = selective(n=20, p=6, states=5, dtype=name)
    for form in (launch.chunked, launch.recurrent):
        found = form(on_device(given, dtype))
        assert found.y.dtype == dtype
        assert_within(found, given, None, name)


def test_channels_are_cut_into_tiles(monkeypatch):
    monkeypatch.setattr(tiling, "INTERPRETED_NUMBERS", 64)
    given = selective(n=11, p=7, states=3)
    with fences(), poisoned_memory():
        assert_within(launch.chunked(on_device(given), chunk=8), given, None)
        assert_within(launch.recurrent(on_device(given)), given, None)


def test_the_bound_is_close_enough_to_notice_a_mistake():
    given = selective(n=40, states=16)
    assert error_bounds(given, None, "float32").y.max() < 1e-4 * np.abs(recurrent(given).y).max()


def test_states_are_never_in_memory():
    """Bytes: inputs, outputs, rates and the last state, and not length · p · states of them."""
    given = selective(batch=1, heads=1, n=64, p=4, states=8, skip=False)
    with counted_traffic() as traffic:
        launch.chunked(on_device(given), chunk=16)
    assert traffic.bytes_read == 4 * (64 * (4 + 4 + 8 + 8) + 4 * 8)
    assert traffic.bytes_written == 4 * (64 * 4 + 4 * 8)


def test_tiles_on_a_gpu_hold_any_number_of_states():
    for states in (1, 16, 64, 128, 256):
        given = selective(p=64, states=states, n=1)
        chosen = tiling.choose_tiling(given.sizes, chunk=None, interpreted=False)
        assert chosen.block_t * chosen.block_p * chosen.block_n <= 2048


# -- what does not fit together ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"x": np.ones((2, 2, 9))}, r"x must have 4 axes, not the shape \[2, 2, 9\]"),
        ({"delta": np.ones((2, 2, 9, 2))}, r"delta has shape \[2, 2, 9, 2\]; .* must be \[2, 2, 9, 3\] or "),
        ({"a": np.ones((2, 3, 5))}, r"a has shape \[2, 3, 5\]; .* must be \[2, 3, 4\] or "),
        ({"c": np.ones((2, 1, 9, 5))}, r"c has shape \[2, 1, 9, 5\]; .* must be \[2, 1, 9, 4\]"),
        ({"b": np.ones((2, 3, 9, 4))}, "b has 3 groups, which must divide the 2 heads of x"),
    ],
)
def test_what_does_not_fit_together_is_named(changes, said):
    with pytest.raises(ValueError, match=said):
        replace(selective(), **changes)


def test_a_state_or_a_chunk_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match=r"the state has shape \[2, 2, 4, 3\]; it must be \[2, 2, 3, 4\]"):
        recurrent(selective(), np.ones((2, 2, 4, 3)))
    for chunk in (0, 12, 2**17):
        with pytest.raises(ValueError, match=f"chunk must be a power of two from 1 to 65536 .*, not {chunk}"):
            launch.chunked(on_device(selective()), chunk=chunk)
