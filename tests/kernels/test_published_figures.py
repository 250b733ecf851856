"""Figures that articles print about attention itself, from the code that computes them here; where an article
is wrong, what is right."""

from itertools import product

import numpy as np
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from kernels.arrays import generate
from kernels.cache_policies.policies import Streaming
from kernels.counts import result_elements
from kernels.engines.reference import attend
from kernels.estimate import flops
from kernels.positions import visible_pairs
from kernels.rope import cos_sin, rotation_index, stretched_base
from kernels.scoring.attention import softmax
from kernels.scoring.functions import dot, scaled_dot
from kernels.sparse.figures import pattern_figures
from kernels.sparse.masks import mask_of, visible
from kernels.sparse.questions import parse_pattern_question
from kernels.sparse.receptive import receptive_fields
from kernels.spec import Attention, InputSpec, Rope, RunSpec
from kernels.spec.model import Options
from tests.kernels.cases import compute, make

# -- attention by hand ---------------------------------------------------------------------------------------

HAND = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
VALUES = np.array([[1.0, 0.0], [0.0, 2.0], [2.0, 2.0]])
ROWS = ([0.4011, 0.1978, 0.4011], [0.1978, 0.4011, 0.4011], [0.2483, 0.2483, 0.5035])


def test_the_worked_example_to_the_last_digit_and_the_trap_in_it():
    found = attend(HAND, HAND, VALUES, scale=2**-0.5)
    weights = np.round(found["weights"], 4)
    assert weights.tolist() == list(ROWS)
    assert np.round(found["out"][2], 4).tolist() == [1.2552, 1.5035]
    # From the weights as they are shown: other digits, and a row that does not add up to 1.
    assert np.round(weights[2] @ VALUES, 4).tolist() == [1.2553, 1.5036]
    assert round(weights[2].sum(), 4) == 1.0001
    assert np.round(found["weights"].sum(0), 4).tolist() == [0.8471, 0.8471, 1.3057]


def solutions(entries):
    """Every (Q, K) of these entries with the weights of the example, and in row 3 its scores 1, 1, 2."""
    rows = np.array(list(product(entries, repeat=2)), dtype=float)
    keys = rows[np.array(list(product(range(len(rows)), repeat=3)))]
    queries = np.broadcast_to(rows, (len(keys), 1, len(rows), 2))
    weights = softmax(scaled_dot(queries, keys[:, None]))[:, 0]
    fits = [(np.round(weights, 4) == row).all(-1) for row in ROWS]
    fits[2] &= (dot(queries, keys[:, None])[:, 0] == [1, 1, 2]).all(-1)
    for number in np.flatnonzero(np.prod([fit.any(1) for fit in fits], axis=0)):
        for chosen in product(*(np.flatnonzero(fit[number]) for fit in fits)):
            yield rows[list(chosen)], keys[number]


def test_whole_numbers_that_give_the_worked_example():
    found = list(solutions(range(-2, 3)))
    assert len(found) == 184
    sizes = np.array([np.abs(q).sum() + np.abs(k).sum() for q, k in found])
    smallest = [pair for pair, size in zip(found, sizes, strict=True) if size == 8]
    assert sizes.min() == 8
    assert len(smallest) == 8
    assert all((q == k).all() for q, k in smallest)
    assert any((q == HAND).all() for q, _ in smallest)


def test_two_of_them_are_not_negative():
    swapped = HAND[:, ::-1]
    found = [q.tolist() for q, k in solutions(range(5)) if (q == k).all()]
    assert sorted(found) == sorted([HAND.tolist(), swapped.tolist()])
    assert len(list(solutions(range(5)))) == 2


# -- exact, but not bit by bit -------------------------------------------------------------------------------


def outputs(engine, dtype="float32", **fields):
    return compute(*make(engine, (1, 2, 2, 512, 512, 64), dtype=dtype, **fields))["out"]


def equal_share(one, other):
    """The share of numbers that are the same to the bit."""
    bits = f"u{one.dtype.itemsize}"
    return np.mean(np.ascontiguousarray(one).view(bits) == np.ascontiguousarray(other).view(bits))


def test_tiles_give_other_bits_than_one_operation_after_another():
    """Printed: some 7% of the numbers equal to the bit, the others off by 7e−8 at most. The share is of sums
    that happen to round alike, and the order of a sum is the machine's (6 to 11% by length and tile): to a
    factor of two. The largest error of many is that of the largest numbers: to a factor of five."""
    plain, tiled = outputs("eager"), outputs("flash", options={"block_m": 32, "block_n": 32})
    assert 0.035 < equal_share(plain, tiled) < 0.14
    assert 7e-8 / 5 < np.abs(plain - tiled).max() < 7e-8 * 5


def test_torch_s_own_two_ways_differ_too():
    """Printed: of float32 14% are equal (here half of it, by the machine: to a factor of three), of bfloat16
    59% with errors of 2e−3 at most, a unit in the last place of a number below 1/2."""
    fused = {dtype: outputs("sdpa", dtype) for dtype in ("float32", "bfloat16")}
    with sdpa_kernel(SDPBackend.MATH):
        plain = {dtype: outputs("sdpa", dtype) for dtype in fused}
    assert 0.14 / 3 < equal_share(fused["float32"], plain["float32"]) < 0.14 * 3
    assert equal_share(fused["bfloat16"], plain["bfloat16"]) == pytest.approx(0.59, abs=0.06)
    assert np.abs(fused["bfloat16"] - plain["bfloat16"]).max() == pytest.approx(2e-3, rel=0.03)


# -- order and distance --------------------------------------------------------------------------------------


def test_permuted_tokens_give_permuted_outputs_until_a_mask_counts_positions():
    """Equivariant, which is often called invariant; a causal mask ends even that."""
    x, order = generate("x", 1, (3, 9, 4), "peaked", "float64"), np.array([3, 1, 8, 0, 2, 5, 7, 6, 4])

    def out(q, k, v, allowed=True):
        return attend(q, k, v, scale=0.5, allowed=allowed)["out"]

    np.testing.assert_allclose(out(*x[:, order]), out(*x)[order], rtol=1e-12)
    assert not np.allclose(out(*x[:, order]), out(*x))
    causal = np.tri(9, dtype=bool)
    assert not np.allclose(out(*x[:, order], causal), out(*x, causal)[order])


@pytest.mark.parametrize("n", [2, 17, 100])
def test_every_token_is_one_step_from_every_other_and_n_minus_1_in_a_chain(n):
    for window, layers in (([None, None], 1), ([1, 1], n - 1)):
        asked = parse_pattern_question({"len": n, "window": window, "num_layers": n})
        assert pattern_figures(asked).stack.layers_to_hear_all == layers
        masks = [mask_of(None, n, window=tuple(window))] * layers
        assert [bool(heard.all()) for heard in receptive_fields(masks)] == [False] * (layers - 1) + [True]
    # Causal: the last hears of the first at once, or after as many layers as there are tokens between them.
    assert next(iter(receptive_fields([np.tri(n, dtype=bool)])))[-1, 0]
    chain = [mask_of(None, n, is_causal=True, window=(1, 0))] * (n - 1)
    assert [bool(heard[-1, 0]) for heard in receptive_fields(chain)] == [False] * (n - 2) + [True]


@pytest.mark.parametrize(("factor", "base"), [(8, 82_685), (1, 10_000)])
def test_the_base_of_ntk_aware_scaling(factor, base):
    assert round(stretched_base(1e4, factor, 128)) == base


@pytest.mark.parametrize(("turns", "index"), [(32, 20.9), (1, 45.0)])
def test_the_ends_of_yarn_s_ramp_for_4096_tokens(turns, index):
    assert round(rotation_index(turns, 1e4, 128, 4096), 1) == index


def test_interpolated_positions_stay_within_angles_that_were_seen():
    """m → m·L/L′: of 8,192 positions on 4,096 the last turns as position 4,095.5 did; without it, beyond."""
    stretched = Rope("half", scaling={"type": "linear", "factor": 2.0})
    last = np.array([[8191]])
    for found, seen in zip(cos_sin(stretched, 64, last), cos_sin(Rope("half"), 64, last / 2), strict=True):
        np.testing.assert_allclose(found, seen, atol=1e-12)


# -- what is counted -----------------------------------------------------------------------------------------


def spec_of(engine, heads, q_len, kv_len, d, **fields):
    shapes = {"q": (1, heads, q_len, d), "k": (1, heads, kv_len, d), "v": (1, heads, kv_len, d)}
    inputs = {name: InputSpec(shape, "float32", "inline") for name, shape in shapes.items()}
    return RunSpec(engine, inputs, **fields)


def test_heads_cost_no_products_but_as_many_times_the_scores():
    """512 numbers in one head or in 8: as many multiplications, and 8 times as many scores and
    exponentials."""
    one, eight = spec_of("eager", 1, 100, 100, 512), spec_of("eager", 8, 100, 100, 64)
    assert flops(eight) == flops(one)
    assert result_elements(eight, "weights") == 8 * result_elements(one, "weights")


def test_scores_of_4096_tokens():
    assert result_elements(spec_of("eager", 1, 4096, 4096, 64), "scores") == 16_777_216


@pytest.mark.parametrize("d", [16, 64])
def test_brackets_decide_between_the_square_of_the_length_and_that_of_the_width(d):
    """(QKᵀ)V takes 4n²d, Q(KᵀV) 4nd²: the same at n = d."""

    def counted(n, form):
        return flops(spec_of("linear", 1, n, n, d, options=Options(more={"form": form})))

    for n in (d // 2, d, 40 * d):
        assert counted(n, "parallel") == 4 * n * n * d
        assert counted(n, "recurrent") == 4 * n * d * d


def test_a_decoded_token_costs_attention_more_and_more_and_a_state_the_same():
    """4nd to look back at n tokens; a scan of d channels with N states takes 6dN for each, and no n²."""
    assert [flops(spec_of("decode", 1, 1, n, 64)) for n in (1000, 2000)] == [4 * 1000 * 64, 4 * 2000 * 64]
    assert [flops(scan_of(n, 128, 16)) for n in (1, 1000)] == [6 * 128 * 16, 6 * 1000 * 128 * 16]


def scan_of(n, channels, states):
    shapes = {
        "x": (1, 1, n, channels), "b": (1, 1, n, states), "c": (1, 1, n, states),
        "delta": (1, 1, n, channels), "a": (1, channels, states),
    }  # fmt: skip
    return RunSpec("scan", {name: InputSpec(shape, "float32", "inline") for name, shape in shapes.items()})


@pytest.mark.parametrize(
    ("alignment", "seen"), [("top_left", [1, 2, 3, 4]), ("bottom_right", [13, 14, 15, 16])]
)
def test_what_causal_means_for_4_queries_and_16_keys(alignment, seen):
    """torch's is_causal, and flash-attention's."""
    attention = Attention(is_causal=True, causal_alignment=alignment)
    spec = spec_of("reference", 1, 4, 16, 8, attention=attention)
    assert np.broadcast_to(visible(spec), (1, 1, 4, 16))[0, 0].sum(1).tolist() == seen
    assert visible_pairs(spec) == sum(seen)
    if alignment == "top_left":
        q, k, v = torch.ones(4, 8)[None, None], torch.ones(16, 8)[None, None], torch.eye(16)[None, None]
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        assert (out[0, 0] > 0).sum(1).tolist() == seen


def test_four_sinks_are_kept_unless_asked_otherwise():
    assert Streaming(window=1020).sinks == 4
    assert Streaming(window=1020).budget == 1024


def test_a_token_decoded_alone_needs_no_mask():
    attention = Attention(is_causal=True)
    assert visible(spec_of("reference", 1, 1, 16, 8, attention=attention)).all()
