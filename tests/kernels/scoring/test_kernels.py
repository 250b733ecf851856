"""The Triton kernels of attention by scores, against float64, its bounds, and each other."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given as tried
from hypothesis import settings
from hypothesis import strategies as st

from kernels.flash.interpreter import counted_traffic
from kernels.flash.launch import forward
from kernels.flash.logits import Terms
from kernels.scoring.inputs import Scoring
from kernels.tuning import Tiling
from tests.kernels.fences import fences, poisoned_memory
from tests.kernels.scoring.cases import (
    SCORES,
    SPANS,
    TILES,
    allowed_pairs,
    assert_within,
    by_formula,
    case,
    computed,
    with_bounds,
)

TINY, HUGE = 1e-25, 1e18


# -- right, whatever is sent ---------------------------------------------------------------------------------

SHAPES = st.fixed_dictionaries(
    {
        "b": st.integers(1, 2),
        "n": st.integers(2, 40),
        "m": st.integers(3, 70),
        "d": st.integers(1, 24),
        "e": st.integers(1, 20),
        "a": st.integers(1, 6),
    }
)
HEADS = st.sampled_from(({"h": 1, "h_kv": 1}, {"h": 4, "h_kv": 2}, {"h": 3, "h_kv": 3}, {"h": 2, "h_kv": 1}))


KINDS = st.sampled_from(
    [
        {"distribution": distribution, "times": times}
        for distribution, times in (("normal", 1.0), ("peaked", 1.0), ("uniform", TINY), ("normal", 30.0))
    ]
)
OTHERS = st.fixed_dictionaries(
    {
        "shared": st.booleans(),
        "half_width": st.sampled_from([0.75, 4.0, 11.3, 1000.0]),
        "seed": st.integers(0, 2**32),
    }
)


@pytest.mark.parametrize("span", SPANS)
@pytest.mark.parametrize("name", SCORES)
@settings(max_examples=6)
@tried(st.booleans(), st.tuples(SHAPES, HEADS, KINDS, OTHERS))
def test_every_score_with_every_span_is_within_its_bound(name, span, causal, parts):
    given = case(name, span, **{key: value for part in parts for key, value in part.items()})
    with fences(), poisoned_memory():
        found = computed(given, causal=causal)
    assert_within(found, given, causal=causal)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", SCORES)
def test_16_bits_are_within_their_bound(name, dtype):
    for span, distribution in zip(SPANS, ("normal", "peaked", "normal"), strict=True):
        given = case(name, span, dtype=dtype, distribution=distribution)
        assert_within(computed(given, dtype=dtype), given, dtype)


@pytest.mark.parametrize("span", SPANS)
@pytest.mark.parametrize("name", SCORES)
def test_what_bounds_are_of_is_what_the_functions_say(name, span):
    """Two ways to float64: head by head with the errors, and as functions of whole arrays."""
    for distribution in ("normal", "peaked"):
        given = case(name, span, distribution=distribution)
        (found, _), wanted = with_bounds(given, causal=True), by_formula(given, causal=True)
        for result, array in wanted.items():
            np.testing.assert_allclose(found[result], array, atol=1e-11, err_msg=result)


@pytest.mark.parametrize(
    ("name", "most"), [("dot", 2e-4), ("additive", 1e-3), ("concat", 1e-3), ("cosine", 1e-4)]
)
def test_bounds_are_close_enough_to_notice_a_mistake(name, most):
    given = case(name, n=33, m=64)
    found, off = with_bounds(given)
    assert off["out"].max() < most * np.abs(found["out"]).max()
    assert off["scores"].max() < most * np.abs(found["scores"]).max()


def test_bounds_of_general_hold_what_tensor_cores_lose():
    """The interpreter has no TF32: here 13 bits of q W are cut off, as in a run of 16 bits."""
    given = case("general", dtype="float16")
    projected = (given.q.astype(np.float64) @ given.parameters["w_general"]).astype(np.float32)
    cut = (projected.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
    scores = cut.astype(np.float64) @ np.swapaxes(given.k, 2, 3)  # one key head for all
    (wanted, off), (_, full) = with_bounds(given, "float16"), with_bounds(given, "float32")
    error = np.abs(scores - wanted["scores"])
    assert (error <= off["scores"]).all()
    assert (error > full["scores"]).any()


@pytest.mark.parametrize("span", SPANS)
def test_masks_and_biases_decide_as_they_do_for_flash(span):
    """Booleans for each pair, rows that see nothing, and numbers that are added, −∞ among them."""
    given = case("additive", span, half_width=9.0)
    mask = np.random.default_rng(0).random((1, 2, 21, 37)) < 0.7
    mask[:, :, 5] = False
    bias = np.where(np.random.default_rng(1).random((2, 1, 21, 37)) < 0.2, -np.inf, 1.5).astype(np.float32)
    bias[0, 0, 9] = -np.inf
    with fences():
        found = computed(given, mask=mask, bias=bias)
    assert_within(found, given, mask=mask, bias=bias)
    for row in (found[name][0, :, i] for name in ("out", "weights") for i in (5, 9)):
        assert (row == 0).all()
    assert np.isneginf(found["lse"][0, :, [5, 9]]).all()
    assert (found["weights"][np.broadcast_to(~mask, found["weights"].shape)] == 0).all()


def test_a_query_whose_window_holds_no_key_gets_nothing():
    """Monotonic, and the queries go on where the keys have ended."""
    given = case("dot", "monotonic", n=40, m=20, half_width=3.0)
    found = computed(given)
    assert (found["out"][:, :, 23:] == 0).all()
    assert np.isneginf(found["lse"][:, :, 23:]).all()
    assert (found["kept_weight"][:, :, 23:] == 0).all()
    assert np.isfinite(found["lse"][:, :, :23]).all()


@pytest.mark.parametrize("name", SCORES)
@pytest.mark.parametrize("axis", ["b", "n", "m", "e", "a", "h"])
def test_empty_axes_are_legal(name, axis):
    sizes = {axis: 0} | ({"h_kv": 0} if axis == "h" else {})
    given = case(name, "predictive", **sizes)
    found = computed(given)
    assert found["out"].shape == (*given.q.shape[:3], given.v.shape[3])
    assert not np.isnan(found["out"]).any()
    assert (found["out"] == 0).all() or axis == "a"
    assert_within(found, given)


def test_without_hidden_numbers_every_key_fits_alike():
    given = case("additive", a=0)
    wanted = given.v.astype(np.float64).mean(2, keepdims=True)
    np.testing.assert_allclose(computed(given)["out"], np.broadcast_to(wanted, (2, 2, 21, 12)), atol=1e-6)


# -- independent sources -------------------------------------------------------------------------------------


def of_torch(given: Scoring) -> dict[str, torch.Tensor]:
    """In float64, key heads repeated."""
    found = {name: torch.from_numpy(getattr(given, name)).double() for name in "qkv"}
    found |= {name: found[name].repeat_interleave(given.group, 1) for name in "kv"}
    return found | {name: torch.from_numpy(x).double() for name, x in given.parameters.items()}


@pytest.mark.parametrize("distribution", ["normal", "peaked"])
def test_torch_agrees_on_additive_attention_around_a_predicted_centre(distribution):
    """Bahdanau et al. 2015, §A.1.2, and Luong et al. 2015, equations 9 and 10."""
    given = case("additive", "predictive", distribution=distribution, half_width=8.0)
    t = of_torch(given)
    hidden = torch.tanh((t["q"] @ t["w_q"].mT)[:, :, :, None] + (t["k"] @ t["w_k"].mT)[:, :, None])
    scores = torch.einsum("bhija,ha->bhij", hidden, t["v_a"])
    m = scores.shape[3]
    centre = m * torch.sigmoid(torch.einsum("bhip,hp->bhi", torch.tanh(t["q"] @ t["w_p"].mT), t["v_p"]))
    distance = torch.arange(m) - centre[..., None]
    scores = scores.masked_fill(distance.abs() > 8.0, -torch.inf)
    weights = torch.softmax(scores, -1) * torch.exp(-distance.square() / (2 * 4.0**2))
    found = computed(given)
    np.testing.assert_allclose(found["centres"], centre, rtol=1e-12)
    np.testing.assert_allclose(found["weights"], weights, atol=2e-6)
    np.testing.assert_allclose(found["out"], weights @ t["v"], atol=1e-5)
    np.testing.assert_allclose(found["lse"], torch.logsumexp(scores, -1), atol=1e-5)
    assert (found["weights"].sum(-1) < 1).all()


def test_torch_agrees_on_cosines():
    given = case("cosine", distribution="peaked")
    t = of_torch(given)
    cosines = torch.nn.functional.cosine_similarity(t["q"][:, :, :, None], t["k"][:, :, None], dim=-1)
    np.testing.assert_allclose(computed(given)["scores"], 3.0 * cosines, atol=2e-6)


def test_local_attention_is_a_sum_over_some_keys_written_out():
    given = case("general", "monotonic", b=1, h=2, h_kv=1, n=9, m=7, half_width=2.5)
    found = computed(given)["out"]
    for h, t in np.ndindex(2, 9):
        near = [s for s in range(7) if abs(s - t) <= 2.5]
        q, w = given.q[0, h, t].astype(float), given.parameters["w_general"][h].astype(float)
        e = np.array([np.exp(q @ w @ given.k[0, 0, s]) for s in near])
        wanted = e / e.sum() @ given.v[0, 0, near] if near else np.zeros(12)
        np.testing.assert_allclose(found[0, h, t], wanted, atol=1e-5)


def test_scaled_dot_is_the_flash_kernel():
    """The same tiles, the same order of sums: the same bits."""
    given = case("scaled_dot")
    q, k, v = (torch.from_numpy(x) for x in (given.q, given.k, given.v))
    wanted = forward(q, k, v, Terms(scale=given.factor), tiles=TILES[:2])
    found = computed(given)
    np.testing.assert_array_equal(found["out"], wanted["out"].numpy())
    np.testing.assert_array_equal(found["lse"], wanted["lse"].numpy())


# -- equalities between scores -------------------------------------------------------------------------------


@settings(max_examples=8)
@tried(st.sampled_from(SPANS), st.booleans(), st.sampled_from(["normal", "peaked"]), st.integers(0, 2**32))
def test_concat_is_additive(span, shared, distribution, seed):
    """W [q; k] = W_q q + W_k k where W = [W_q W_k]: made again for each tile, or once before."""
    one = case("additive", span, seed=seed, shared=shared, distribution=distribution, b=1)
    w = np.concatenate([one.parameters[name] for name in ("w_q", "w_k")], 2)
    parameters = {name: x for name, x in one.parameters.items() if name not in ("w_q", "w_k")}
    other = replace(one, score="concat", parameters={**parameters, "w_concat": w})
    found, again = computed(one), computed(other)
    _, off = with_bounds(one)
    for name in ("scores", "weights", "out"):
        assert (np.abs(found[name] - again[name]) <= 2 * off[name]).all(), name
    exact, repeated = by_formula(one), by_formula(other)
    for name in ("scores", "weights", "out"):
        np.testing.assert_allclose(exact[name], repeated[name], atol=1e-10)


@pytest.mark.parametrize("by", [2.0**-60, 2.0**60, 1e-30, 1e30, 0.3])
def test_cosines_do_not_depend_on_lengths(by):
    given = case("cosine")
    longer = replace(given, k=given.k * np.float32(by), q=given.q * np.float32(3.0))
    found, again = computed(given)["scores"], computed(longer)["scores"]
    np.testing.assert_allclose(again, found, atol=3e-6)
    if by in (2.0**-60, 2.0**60):
        np.testing.assert_array_equal(computed(replace(given, k=longer.k))["scores"], found)


def test_the_shortest_and_the_longest_vectors_have_directions_and_zero_has_none():
    given = case("cosine", b=1, h=1, h_kv=1, n=3, m=3, d=2)
    given.q[0, 0] = [[3e38, 3e38], [1e-45, 0], [0, 0]]
    given.k[0, 0] = [[1e-40, 1e-40], [-3e38, 3e38], [0, 0]]
    wanted = 3 * np.array([[1, 0, 0], [0.5**0.5, -(0.5**0.5), 0], [0, 0, 0]])
    np.testing.assert_allclose(computed(given)["scores"][0, 0], wanted, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_general_with_the_identity_is_dot(dtype):
    given = case("dot", dtype=dtype)
    identity = np.eye(20, dtype=np.float32)[None]
    other = replace(given, score="general", parameters={"w_general": identity})
    found, again = (computed(one, dtype=dtype) for one in (given, other))
    np.testing.assert_allclose(again["scores"], found["scores"], rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", SCORES)
def test_a_window_wider_than_all_is_global(name):
    for span in ("monotonic", "predictive"):
        given = case(name, span, half_width=1e8)
        everywhere = replace(given, span="global")
        found, wanted = computed(given), computed(everywhere)
        for result in ("out", "weights", "lse"):
            np.testing.assert_allclose(found[result], wanted[result], atol=1e-5)
        np.testing.assert_allclose(found["kept_weight"], 1.0, atol=1e-6)


def test_parameters_of_one_head_are_shared_by_all():
    for name in ("additive", "general", "concat"):
        given = case(name, "predictive", shared=True)
        for_each = {each: np.repeat(x, 2, 0) for each, x in given.parameters.items()}
        found, wanted = computed(given), computed(replace(given, parameters=for_each))
        for result in ("scores", "centres", "out"):
            np.testing.assert_allclose(found[result], wanted[result], atol=1e-5)


def test_heads_that_share_keys_have_their_own_w_k():
    """One key head for four of queries, and a W_k for each of these: as with four copies of the keys."""
    given = case("additive", b=1, h=4, h_kv=1)
    copies = replace(given, k=np.repeat(given.k, 4, 1), v=np.repeat(given.v, 4, 1))
    found, wanted = computed(given), computed(copies)
    np.testing.assert_allclose(found["scores"], wanted["scores"], atol=1e-6)
    assert not np.allclose(found["scores"][:, 0], found["scores"][:, 1], atol=0.1)


# -- numbers at the edges ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["additive", "concat", "cosine"])
def test_scores_that_are_bounded_stay_so_with_huge_vectors(name):
    """W q is 10¹⁹ here, its exponential is beyond everything, and tanh is ±1."""
    given = case(name, "predictive", times=HUGE)
    found = computed(given)
    most = 3.0 if name == "cosine" else np.abs(given.parameters["v_a"]).sum(1).max()
    assert np.abs(found["scores"]).max() <= most * (1 + 1e-6)
    assert_within(found, given)


@pytest.mark.parametrize("name", ["additive", "concat"])
def test_tiny_hidden_numbers_keep_their_digits(name):
    """tanh x = x there, where (eˣ − e⁻ˣ) / (eˣ + e⁻ˣ) has none left."""
    given = case(name, times=1e-6)
    found, wanted = computed(given)["scores"], by_formula(given)["scores"]
    np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-6 * np.abs(wanted).max())


def test_keys_at_the_edge_are_in_the_window():
    """All centres are m / 2 exactly where v_p is 0: with D = 3 keys 5 to 11 of 16 are seen."""
    for half_width, seen in ((3.0, range(5, 12)), (2.9, range(6, 11)), (0.5, [8])):
        given = case("dot", "predictive", m=16, half_width=half_width)
        given.parameters["v_p"][:] = 0
        found = computed(given)
        assert (found["centres"] == 8).all()
        np.testing.assert_array_equal(np.flatnonzero(found["weights"][0, 0, 0]), seen)


def test_a_key_in_doubt_makes_bounds_that_say_so():
    """On the edge exactly, as rounding of the centre has it: in the window, or not."""
    given = case("dot", "predictive", m=16, half_width=3.0)
    given.parameters["v_p"][:] = 0
    without = replace(given, half_width=float(np.nextafter(np.float32(3), 0)))
    (found, off), (other, usual) = with_bounds(given), with_bounds(without)
    for name in ("out", "lse", "weights"):
        assert (np.abs(found[name] - other[name]) <= off[name] + usual[name]).all()
    assert np.abs(found["out"] - other["out"]).max() > 0.1
    assert usual["out"].max() < 1e-4


def test_saturated_centres_are_the_first_and_the_last_key():
    given = case("dot", "predictive", m=33, half_width=2.0)
    given.parameters["w_p"][:] = 1e3
    for sign, first, last in ((60, 31, 32), (-60, 0, 2)):
        given.parameters["v_p"][:] = sign
        given.q[:] = np.abs(given.q)
        found = computed(given)
        seen = found["weights"] > 0
        assert seen[..., first : last + 1].all()
        assert seen.sum(-1).max() == last - first + 1
        assert_within(found, given)
        assert with_bounds(given)[1]["out"].max() < 1e-4  # no key is in doubt


# -- what is read --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["dot", "cosine", "concat"])
def test_tiles_of_keys_that_no_window_reaches_are_not_read(name):
    """They may hold anything."""
    given = case(name, "monotonic", n=16, m=96, half_width=8.0)
    wanted = computed(given, wanted=("out", "lse"))
    given.k[:, :, 32:] = given.v[:, :, 32:] = np.nan
    found = computed(given, wanted=("out", "lse"))
    np.testing.assert_array_equal(found["out"], wanted["out"])


def test_a_tile_that_a_window_reaches_with_one_key_is_read():
    """Query 15 sees key 32, the first of the second tile; query 48 sees key 31, the last of the first."""
    for n, m in ((16, 40), (52, 60)):
        given = case("dot", "monotonic", n=n, m=m, half_width=17.0)
        found = computed(given, wanted=("out", "lse"))  # the share of a window would take every tile
        np.testing.assert_allclose(found["out"], by_formula(given)["out"], atol=1e-5)


def test_hidden_numbers_are_made_once_or_for_each_tile():
    """Bytes read: additive reads x and y of each tile, concat W and the vectors themselves."""
    sizes = {"b": 1, "h": 1, "h_kv": 1, "n": 32, "m": 64, "d": 16, "e": 16, "a": 4}

    def read(name: str) -> int:
        with counted_traffic() as traffic:
            computed(case(name, **sizes), wanted=("out", "lse"), tiles=Tiling(16, 32))
        return traffic.bytes_read // 4

    values, tiles = 2 * 64 * 16, 2 * 2
    vectors, projections = 32 * 16 + 64 * 16, 2 * 4 * 16
    hidden = tiles * (16 * 4 + 32 * 4 + 4)
    assert read("additive") == vectors + projections + hidden + values
    assert read("concat") == 32 * 16 + 2 * 64 * 16 + tiles * (4 * 32 + 4) + values


def test_windows_and_their_share_take_what_they_need():
    """A row of windows reads a band of keys; whoever asks for their share reads them all."""

    def read(*more: str) -> int:
        with counted_traffic() as traffic:
            given = case("dot", "monotonic", b=1, h=1, h_kv=1, n=128, m=128, d=16, e=16, half_width=4.0)
            computed(given, wanted=("out", "lse", *more), tiles=Tiling(16, 16))
        return traffic.bytes_read // 4

    tile = 16 * (16 + 16)
    # Eight tiles of queries, each with three tiles of keys but for the first and the last.
    assert read() == 128 * 16 + (2 * 2 + 6 * 3) * tile
    assert read("kept_weight") == 128 * 16 + 8 * 8 * tile


def test_causal_windows_end_at_the_query():
    given = case("additive", "monotonic", n=20, m=20, half_width=3.0)
    found = computed(given, causal=True)
    seen = found["weights"][0, 0] > 0
    distance = np.arange(20)[:, None] - np.arange(20)
    np.testing.assert_array_equal(seen, (distance >= 0) & (distance <= 3))
    assert (found["weights"][~allowed_pairs(given, causal=True)] == 0).all()
