"""The Triton kernels of linear recurrences, against the float64 reference and its bound."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given as tried
from hypothesis import settings
from hypothesis import strategies as st

from kernels.arrays import generate, round_to_dtype
from kernels.flash.interpreter import counted_traffic
from kernels.linear import launch, tiling
from kernels.linear.arguments import Bound
from kernels.linear.bounds import error_bounds
from kernels.linear.comparison import Exact
from kernels.linear.favor import performer
from kernels.linear.inputs import Recurrence, Result, Sizes, State
from kernels.linear.recurrence import parallel, recurrent
from kernels.linear.tiling import choose_tiling
from tests.kernels.fences import fences, poisoned_memory
from tests.kernels.linear.cases import KINDS, on_device, recurrence, some_state, state_on_device

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
FORMS = ("chunked", "parallel", "recurrent")


@pytest.fixture(autouse=True, scope="module")
def _small_tiles():
    """So that short sequences have several."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiling, "INTERPRETED_CHUNK", 16)
        yield


def computed(form: str, given: Recurrence, state: State | None, dtype: str = "float32") -> Result:
    """By a kernel; a state of None where the form makes none."""
    tensors = on_device(given, DTYPES[dtype])
    started = None if state is None else state_on_device(state)
    with fences(), poisoned_memory():
        if form == "parallel":
            return Result(launch.parallel(tensors, started), State(None))
        if form == "chunked":
            return launch.chunked(tensors, started)
        return launch.recurrent(tensors, started)


def can(form: str, given: Recurrence) -> bool:
    by_row = given.log_decay is not None and given.log_decay.shape[3] > 1
    return form == "recurrent" or not (by_row or (form == "parallel" and given.beta is not None))


def assert_within(found: Result, given: Recurrence, state: State | None, dtype: str = "float32") -> None:
    wanted, bounds = recurrent(given, state), error_bounds(given, state, dtype)
    for name, a, b, bound in (
        ("out", found.out, wanted.out, bounds.out),
        ("s", found.state.s, wanted.state.s, bounds.state.s),
        ("z", found.state.z, wanted.state.z, bounds.state.z),
    ):
        if a is not None:
            assert tuple(a.shape) == b.shape
            excess = np.abs(a.double().numpy() - b) - bound
            assert not np.isnan(excess).any(), name
            assert excess.max(initial=0.0) <= 0, name


SIZES = st.fixed_dictionaries(
    {
        "heads": st.sampled_from(((1, 1, 1), (4, 2, 2), (2, 1, 4))),
        "n": st.integers(0, 52),
        "d": st.integers(1, 20),
        "e": st.integers(1, 20),
    }
)


@settings(max_examples=20)
@tried(st.sampled_from(sorted(KINDS)), SIZES, st.booleans(), st.integers(0, 2**32))
def test_every_form_is_within_its_bound(kind, sizes, starts, seed):
    given = recurrence(seed, batch=1, **sizes, **KINDS[kind])
    state = some_state(given, seed) if starts else None
    for form in FORMS:
        if can(form, given):
            assert_within(computed(form, given, state), given, state)


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [("elu", "float16"), ("gated delta", "float16"), ("decay", "float16"), ("decay", "bfloat16")],
)
def test_16_bits_are_within_their_bound(kind, dtype):
    given = recurrence(n=21, d=9, dtype=dtype, **KINDS[kind])
    for form in FORMS:
        if can(form, given):
            found = computed(form, given, some_state(given), dtype)
            assert found.out.dtype == DTYPES[dtype]
            assert_within(found, given, some_state(given), dtype)


@pytest.mark.parametrize("kind", ["elu", "decay", "gated delta"])
def test_the_bound_is_close_enough_to_notice_a_mistake(kind):
    given = recurrence(n=33, d=16, e=16, **KINDS[kind])
    bounds, wanted = error_bounds(given, None, "float32"), parallel(given)
    assert bounds.out.max() < 2e-4 * np.abs(wanted.out).max()


def test_keys_may_be_longer_or_shorter_than_queries_where_nothing_is_causal():
    given = recurrence(n=19, **KINDS["elu, not causal"])
    for m in (0, 3, 40):
        queries = replace(given, q=np.resize(given.q, (2, 2, m, 5)))
        for form in FORMS:
            assert_within(computed(form, queries, None), queries, None)


def test_sums_beyond_float16_are_kept():
    """Σ k v grows past 65504 here, and out = Σ / n is small."""
    given = recurrence(n=20, d=4, e=3, dtype="float16")
    large = replace(given, k=np.abs(given.k).round() * 200, v=np.ones_like(given.v) * 200, scale=2.0**-10)
    for form in FORMS:
        assert_within(computed(form, large, None, "float16"), large, None, "float16")
    assert parallel(large).state.s.max() > 65504


def test_repeated_keys_cost_the_delta_rule_no_digits():
    """Where the inverse of a chunk's system, made of its powers, has none left."""
    given = recurrence(n=64, d=4, e=3, beta=True)
    given.k[:], given.beta[:] = np.eye(4)[1], 1.0
    found = launch.chunked(on_device(given), chunk=64)
    np.testing.assert_allclose(found.out.numpy(), recurrent(given).out, atol=1e-6)


def test_a_decay_of_zero_forgets_everything():
    given = recurrence(n=20, decay="one")
    given.log_decay[:, :, [3, 17]] = -np.inf
    for form in FORMS:
        found = computed(form, given, None)
        np.testing.assert_allclose(found.out.numpy(), recurrent(given).out, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize(
    ("form", "kind", "said"),
    [
        ("chunked", "decay by row", "use form recurrent"),
        ("parallel", "decay by row", "use form recurrent"),
        ("parallel", "delta", "use form chunked"),
    ],
)
def test_a_form_that_cannot_says_which_can(form, kind, said):
    with pytest.raises(ValueError, match=said):
        computed(form, recurrence(**KINDS[kind]), None)


@pytest.mark.parametrize("chunk", [8, 24, -16, 0, 2048])
def test_a_chunk_that_no_tile_can_have_is_refused(chunk):
    with pytest.raises(ValueError, match=f"chunk must be a power of two from 16 to 1024, not {chunk}"):
        launch.chunked(on_device(recurrence()), chunk=chunk)


def test_a_decoded_token_reads_a_state_and_not_the_past():
    """Bytes read and written by one step: state, token, output; whatever came before."""
    given = recurrence(batch=1, heads=(1, 1, 1), n=1, d=8, e=16)
    state = state_on_device(some_state(given))
    with counted_traffic() as traffic:
        launch.recurrent(on_device(given), state)
    assert traffic.bytes_read == 4 * (8 * 16 + 8 + 8 + 16)
    assert traffic.bytes_written == 4 * (8 * 16 + 16)


def test_chunks_read_linearly_and_the_quadratic_form_quadratically():
    def read(form: str, n: int) -> int:
        given = on_device(recurrence(batch=1, heads=(1, 1, 1), n=n, d=16, e=16))
        with counted_traffic() as traffic:
            getattr(launch, form)(given)
        return traffic.bytes_read

    # Tiles of 16: 2 and 8 of them.
    assert read("chunked", 128) == 4 * read("chunked", 32)
    tile = 4 * 16 * 16
    assert [read("parallel", n) for n in (32, 128)] == [tile * (2 + 2 * 3), tile * (8 + 2 * 36)]


def test_features_of_a_performer_go_through_the_same_kernels():
    q, k, v = (generate(f"performer/{name}", 0, (1, 2, 21, 6), "normal", "float64") for name in "qkv")
    linear = performer(Exact(q, k, v, 6**-0.5, causal=True), count=20, seed=0)
    given = replace(linear, **{name: round_to_dtype(getattr(linear, name), "float32") for name in "qkv"})
    for form in FORMS:
        assert_within(computed(form, given, None), given, None)


@pytest.mark.parametrize("kind", ["elu", "elu, not causal", "gated delta"])
def test_columns_are_cut_into_tiles(kind, monkeypatch):
    """As on a GPU: three programs beside each other, and one z."""
    monkeypatch.setattr(launch, "choose_tiling", lambda *_, **__: tiling.Tiling(16, 16, 16, "ieee"))
    given = recurrence(n=19, e=40, **KINDS[kind])
    for form in FORMS:
        if can(form, given):
            assert_within(computed(form, given, some_state(given)), given, some_state(given))


def test_states_of_all_chunks_are_kept_in_their_order():
    given = recurrence(n=40, d=6, e=5)
    tiling = choose_tiling(given.sizes, "float32", chunk=16, interpreted=True)
    shapes = Bound(given, {}, tiling).written("chunked")
    assert shapes["found_s"] == (2, 2, 3 * 6, 5)
    assert shapes["s"] == (2, 2, 6, 5)


def test_tiles_on_a_gpu_hold_the_widest_heads():
    for d in (16, 64, 128, 256):
        for dtype in ("float32", "bfloat16"):
            tiling = choose_tiling(Sizes(1, 1, 1, 9, 9, d, 256), dtype, chunk=None, interpreted=False)
            assert tiling.block_d * tiling.block_e <= 4096
            assert min(tiling[:3]) >= 16
