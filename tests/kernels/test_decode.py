"""Split-KV decoding, through the interpreter: the algebra of states, and the same answer for every cut."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention

from kernels.decode.kernel import split_bounds
from kernels.decode.launch import decode, decode_terms
from kernels.decode.merge import merge, merge_all
from kernels.decode.splits import Plan, choose_splits, make_plan, merge_tile
from kernels.engines.reference import reference
from kernels.flash.arguments import Shapes, rows
from kernels.flash.interpreter import counted_traffic
from kernels.operands import Operands
from kernels.spec import SpecError
from kernels.tuning import Tiling
from tests.kernels.cases import Case, cases, compute, make, torch_in_low_precision
from tests.kernels.error_bounds import error_bounds

RESULTS = ("out", "lse", "present_key", "present_value")
SIZES = (1, 2, 1, 4, 40, 8)
INF = float("inf")


@pytest.fixture(autouse=True)
def poisoned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the kernels are given to write to holds NaN."""
    monkeypatch.setattr(torch, "empty", lambda shape, **how: torch.full(shape, torch.nan, **how))


def run(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, plan: Plan, **fields: Any
) -> dict[str, torch.Tensor]:
    """The kernels on tensors; ``fields`` as in Operands."""
    absent = {f.name: None for f in dataclasses.fields(Operands)}
    offset = k.shape[2] - q.shape[2]
    problem = Operands(
        **absent | {
            "q": q.numpy(), "k": k.numpy(), "v": v.numpy(), "scale": 1.0, "softcap": 0.0,
            "q_positions": np.arange(q.shape[2])[None, :] + offset,
            "kv_positions": np.arange(k.shape[2])[None, :], **fields,
        }
    )  # fmt: skip
    bound = decode_terms(problem, plan, lambda array: torch.from_numpy(np.array(array)))
    keys, values = rows(k, problem.k.shape), rows(v, problem.v.shape)
    return decode(q, keys, values, bound, shapes=Shapes.of(problem), plan=plan)


def check(spec: Any, arrays: dict[str, np.ndarray]) -> None:
    """Every result of the engine within what rounding alone can do."""
    got, expected, bounds = (
        compute(spec, arrays),
        reference(spec, arrays, RESULTS),
        error_bounds(spec, arrays),
    )
    for name in {"out", *spec.returns}:
        assert got[name].shape == expected[name].shape
        error = np.zeros(got[name].shape)
        np.subtract(got[name], expected[name], out=error, where=got[name] != expected[name])
        error = np.nan_to_num(np.abs(error), nan=INF)
        assert error.max(initial=0.0) <= bounds[name], (name, error.max(), bounds[name])


# -- the algebra of states -----------------------------------------------------------------------------------


@triton.jit
def merge_two(p_m, p_l, p_o, i_1, i_2, i_to):  # noqa: PLR0917
    """State i_to of [states, 16] and [states, 16, 16] becomes the merger of i_1 and i_2."""
    o = tl.arange(0, 16)
    o_tile = o[:, None] * 16 + o[None, :]
    m, l, b_o = merge(  # noqa: E741
        tl.load(p_m + i_1 * 16 + o), tl.load(p_l + i_1 * 16 + o), tl.load(p_o + i_1 * 256 + o_tile),
        tl.load(p_m + i_2 * 16 + o), tl.load(p_l + i_2 * 16 + o), tl.load(p_o + i_2 * 256 + o_tile),
    )  # fmt: skip
    tl.store(p_m + i_to * 16 + o, m)
    tl.store(p_l + i_to * 16 + o, l)
    tl.store(p_o + i_to * 256 + o_tile, b_o)


@triton.jit
def merge_four(p_m, p_l, p_o, i_to):
    """State i_to becomes the merger of states 0 … 3, all at once."""
    o, o_s = tl.arange(0, 16), tl.arange(0, 4)
    o_ms = o[:, None] + o_s[None, :] * 16
    o_os = o_s[None, :, None] * 256 + o[:, None, None] * 16 + o[None, None, :]
    m, l, b_o = merge_all(tl.load(p_m + o_ms), tl.load(p_l + o_ms), tl.load(p_o + o_os))  # noqa: E741
    tl.store(p_m + i_to * 16 + o, m)
    tl.store(p_l + i_to * 16 + o, l)
    tl.store(p_o + i_to * 256 + o[:, None] * 16 + o[None, :], b_o)


State = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


@st.composite
def states(draw: st.DrawFn) -> State:
    """m [8, 16], l [8, 16], O [8, 16, 16] with four states of 16 rows; some rows of some are empty."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    m = rng.standard_normal((8, 16)) * draw(st.sampled_from([0.1, 1.0, 30.0, 1e5]))
    m = np.where(rng.random((8, 16)) < draw(st.sampled_from([0.0, 0.5, 0.9])), -np.inf, m)
    empty = np.isneginf(m)
    total = np.where(empty, 0.0, 1.0 + rng.random((8, 16)) * 50)
    o = np.where(empty[:, :, None], 0.0, rng.standard_normal((8, 16, 16)) * total[:, :, None])
    m[4:], total[4:], o[4:] = -np.inf, 0.0, 0.0
    return tuple(torch.tensor(x, dtype=torch.float32) for x in (m, total, o))


def exact(given_states: State) -> tuple[np.ndarray, np.ndarray]:
    """(lse, out) of all states together, in float64, from the definition."""
    m, total, o = (x.double().numpy()[:4] for x in given_states)
    top = m.max(0)
    factor = np.exp(m - np.where(np.isneginf(top), 0.0, top))
    sums, outs = (factor * total).sum(0), (factor[:, :, None] * o).sum(0)
    with np.errstate(divide="ignore"):
        return top + np.log(sums), outs / np.where(sums == 0.0, 1.0, sums)[:, None]


def finished(given_states: State, number: int) -> tuple[np.ndarray, np.ndarray]:
    m, total, o = (x[number].double().numpy() for x in given_states)
    with np.errstate(divide="ignore"):
        return m + np.log(total), o / np.where(total == 0.0, 1.0, total)[:, None]


@settings(max_examples=25, deadline=None)
@given(states())
def test_merging_is_commutative_to_the_bit_and_an_empty_state_changes_nothing(some: State) -> None:
    merge_two[(1,)](*some, 0, 1, 4)
    merge_two[(1,)](*some, 1, 0, 5)
    for array in some:
        assert torch.equal(array[4], array[5])
    merge_two[(1,)](*some, 2, 6, 7)  # 6 is empty
    for array in some:
        assert torch.equal(array[7], array[2])


@settings(max_examples=25, deadline=None)
@given(states(), st.permutations(range(4)))
def test_states_merge_to_the_same_in_any_order_and_all_at_once(some: State, order: list[int]) -> None:
    """((a b) c) d in any order, (a b) (c d), and all four at once: the softmax over all keys."""
    lse, out = exact(some)
    first, second, third, fourth = order
    merge_two[(1,)](*some, first, second, 4)
    merge_two[(1,)](*some, third, fourth, 5)
    merge_two[(1,)](*some, 4, third, 6)
    merge_two[(1,)](*some, 6, fourth, 6)
    merge_two[(1,)](*some, 4, 5, 5)
    merge_four[(1,)](*some, 7)
    for number in (5, 6, 7):
        got_lse, got_out = finished(some, number)
        np.testing.assert_allclose(got_lse, lse, rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(got_out, out, rtol=1e-5, atol=1e-6)


# -- how keys are cut ----------------------------------------------------------------------------------------


@triton.jit
def bounds_of(p_to, n_from, n_to, num_splits):
    i_split = tl.program_id(0)
    s_from, s_to = split_bounds(n_from, n_to, i_split, num_splits, 16)
    tl.store(p_to + 2 * i_split, s_from)
    tl.store(p_to + 2 * i_split + 1, s_to)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 5), st.integers(-20, 300), st.integers(1, 9))
def test_splits_are_whole_tiles_dealt_out_evenly_and_miss_no_key(start: int, keys: int, splits: int) -> None:
    n_from, n_to = 16 * start, 16 * start + keys
    found = torch.zeros(splits, 2, dtype=torch.int32)
    bounds_of[(splits,)](found, n_from, n_to, splits)
    visited = [key for low, high in found.tolist() for key in range(low, high)]
    assert visited == list(range(n_from, n_to))
    assert all((low - n_from) % 16 == 0 for low, _ in found.tolist())
    tiles = [-(-(high - low) // 16) for low, high in found.tolist() if high >= low]
    assert max(tiles, default=0) - min(tiles, default=0) <= 1


@given(st.integers(1, 5000), st.integers(0, 5000), st.integers(1, 200))
@settings(max_examples=60, deadline=None)
def test_splits_are_chosen_to_occupy_a_gpu(programs: int, tiles: int, multiprocessors: int) -> None:
    splits = choose_splits(programs, tiles, multiprocessors)
    assert 1 <= splits <= max(1, min(tiles, 1024))
    assert choose_splits(programs, tiles, None) == 1  # one program after another: nothing to occupy
    waves = lambda s: -(-programs * s // (2 * multiprocessors)) * (-(-tiles // s) + 1)  # noqa: E731
    assert all(waves(splits) <= waves(s) for s in range(1, max(2, min(tiles, 1024) + 1)))


def test_known_choices_of_splits() -> None:
    """On 132 multiprocessors, 264 programs at a time: a lone sequence of 8 key heads is cut so as to fill
    them all; a batch that fills them by itself is not cut; one a little too large for a wave is."""
    assert choose_splits(8, 512, 132) == 32
    assert choose_splits(264, 512, 132) == 1
    assert choose_splits(270, 512, 132) > 1
    assert choose_splits(8, 1, 132) == 1
    assert choose_splits(8, 0, 132) == 1


def test_what_was_asked_for_is_what_is_planned() -> None:
    plan = lambda on=None, **options: make_plan(  # noqa: E731
        make("decode", (1, 8, 2, 4, 1000, 64), options=options)[0],
        target="sm_90" if on else None,
        multiprocessors=on,
    )
    assert plan() == Plan(Tiling(16, 1024), 1)
    assert plan(num_splits=4) == Plan(Tiling(16, 256), 4)
    assert plan(num_splits=4, block_n=512) == Plan(Tiling(16, 512), 2)  # as many as there are tiles
    assert plan(num_splits=1024) == Plan(Tiling(16, 16), 63)
    assert plan(132, num_splits=3).num_splits == 3
    assert plan(132).num_splits == -(-1000 // plan(132).tiling.block_n)
    windowed = make("decode", (1, 8, 2, 1, 10_000, 64), attention={"window": [99, 0]})[0]
    cut = make_plan(windowed, target="sm_90", multiprocessors=132)
    assert cut.num_splits == -(-100 // cut.tiling.block_n)


@pytest.mark.parametrize("interpreted", [True, False])
def test_a_tile_of_states_is_no_larger_than_triton_allows(interpreted: bool) -> None:
    for count in (1, 16, 5000):
        for splits in (1, 7, 1024):
            for dim in (0, 64, 256):
                block_rows, block_splits = merge_tile(count, splits, dim, interpreted=interpreted)
                assert block_rows * block_splits * max(dim, 16) <= (2**20 if interpreted else 4096)
                assert min(block_rows, block_splits) >= 1


# -- attention -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_splits", [1, 3, 8, 1024])
@pytest.mark.parametrize("lengths", [(1, 97), (5, 113), (16, 16), (16, 3), (1, 1)])
def test_awkward_lengths_causal(lengths: tuple[int, int], num_splits: int) -> None:
    options = {"num_splits": num_splits, "block_n": 16}
    check(*make("decode", (2, 4, 2, *lengths, 16), distribution="peaked", seed=lengths[1], options=options,
                attention={"is_causal": True}, **{"return": ["out", "lse"]}))  # fmt: skip


@pytest.mark.parametrize("dims", [(1, 1), (40, 40), (59, 111), (192, 128), (256, 256), (8, 0), (0, 8)])
def test_head_dims_of_any_size(dims: tuple[int, int]) -> None:
    check(*make("decode", (1, 2, 1, 2, 49, dims[0]), v_dim=dims[1], seed=dims[0], options={"num_splits": 3},
                **{"return": list(RESULTS)}))  # fmt: skip


@pytest.mark.parametrize(
    "shape",
    [(0, 2, 1, 3, 3, 4), (1, 2, 1, 0, 3, 4), (1, 2, 1, 3, 0, 4), (2, 0, 0, 3, 3, 4), (1, 0, 2, 4, 4, 4)],
)
def test_empty_axes(shape: tuple[int, int, int, int, int, int]) -> None:
    check(*make("decode", shape, attention={"is_causal": True}, **{"return": list(RESULTS)}))


@settings(max_examples=120, deadline=None)
@given(
    cases("decode", q_lens=st.sampled_from([1, 1, 2, 5, 16]), kv_lens=st.sampled_from([0, 1, 17, 40, 100])),
    st.sampled_from([None, 1, 2, 3, 7, 1024]),
    st.sampled_from([None, 16, 32]),
    st.sampled_from(["float32", "float32", "float16", "bfloat16"]),
)
def test_any_spec_is_the_same_for_every_number_of_splits(
    case: Case, num_splits: int | None, block_n: int | None, dtype: str
) -> None:
    options = {"num_splits": num_splits, "block_n": block_n}
    check(*case.on("decode", options=options, dtype=dtype, **{"return": list(RESULTS)}))


@pytest.mark.parametrize("heads", [(6, 2), (6, 1), (40, 1), (3, 3)])
@pytest.mark.parametrize("q_len", [1, 7])
def test_torch_says_the_same_of_grouped_heads(heads: tuple[int, int], q_len: int) -> None:
    """Rows of several heads share a tile; with 40 heads and 7 queries they take several."""
    q = torch.randn(2, heads[0], q_len, 12)
    k, v = torch.randn(2, heads[1], 83, 12), torch.randn(2, heads[1], 83, 12)
    expected = scaled_dot_product_attention(q, k, v, scale=1.0, enable_gqa=True)
    got = run(q, k, v, Plan(Tiling(64, 32), 2))
    torch.testing.assert_close(got["out"], expected, rtol=1e-4, atol=1e-5)


def test_each_split_alone_is_the_attention_of_its_keys() -> None:
    """One split of everything equals the merger of any number: to rounding, and bit for bit when repeated."""
    q, k, v = torch.randn(1, 4, 3, 16), torch.randn(1, 2, 200, 16), torch.randn(1, 2, 200, 16)
    whole = run(q, k, v, Plan(Tiling(16, 16), 1), right=0)
    for splits in (2, 5, 13, 40):
        cut = run(q, k, v, Plan(Tiling(16, 16), splits), right=0)
        again = run(q, k, v, Plan(Tiling(16, 16), splits), right=0)
        for name in ("out", "lse"):
            torch.testing.assert_close(cut[name], whole[name], rtol=1e-5, atol=1e-5)
            assert torch.equal(cut[name], again[name])


@pytest.mark.parametrize("splits", [1, 2, 3])
def test_a_sink_is_counted_once_however_many_splits_there_are(splits: int) -> None:
    """Keys of score 0 and a sink of 0: n keys weigh n / (n + 1), and the LSE is ln(n + 1)."""
    q, k, v = torch.zeros(1, 2, 2, 4), torch.randn(1, 1, 48, 4), torch.ones(1, 1, 48, 4)
    sinks = np.array([0.0, -np.inf], np.float32)
    got = run(q, k, v, Plan(Tiling(16, 16), splits), sinks=sinks)
    for head, count in ((0, 49), (1, 48)):
        torch.testing.assert_close(got["lse"][0, head], torch.full((2,), float(np.log(count))))
        torch.testing.assert_close(got["out"][0, head], torch.full((2, 4), 48 / count))


@pytest.mark.parametrize("splits", [1, 4])
def test_a_row_that_sees_nothing_has_out_zero_and_lse_minus_infinity(splits: int) -> None:
    q, k, v = torch.randn(1, 2, 4, 8), torch.randn(1, 1, 40, 8), torch.randn(1, 1, 40, 8)
    mask = np.ones((1, 2, 4, 40), bool)
    mask[0, 1, 2] = False
    got = run(q, k, v, Plan(Tiling(16, 16), splits), mask=mask)
    assert not got["out"][0, 1, 2].any()
    assert torch.isneginf(got["lse"][0, 1, 2])
    assert torch.isfinite(got["lse"]).sum() == 7


def test_padding_of_a_ragged_batch_has_seen_nothing_not_even_the_sink() -> None:
    q, k, v = torch.randn(2, 2, 4, 8), torch.randn(2, 1, 40, 8), torch.randn(2, 1, 40, 8)
    got = run(
        q, k, v, Plan(Tiling(16, 16), 2), q_lens=np.array([3, 0]), sinks=np.array([1.0, 2.0], np.float32)
    )
    padding = np.arange(4) >= np.array([3, 0])[:, None]
    for head in range(2):
        assert not got["out"][:, head][padding].any()
        assert torch.isneginf(got["lse"][:, head][padding]).all()
        assert torch.isfinite(got["lse"][:, head][~padding]).all()


def test_very_negative_logits_are_not_lost_in_a_merger() -> None:
    """Every logit near −3·10⁵, and one split of a masked half: an empty state's maximum is −∞, not 0."""
    q = torch.full((1, 1, 1, 4), 300.0)
    k, v = -q.expand(1, 1, 64, 4) + torch.randn(1, 1, 64, 4) / 100, torch.randn(1, 1, 64, 4)
    mask = (np.arange(64) >= 32)[None, None, None, :]
    got = run(q, k.contiguous(), v, Plan(Tiling(16, 16), 4), mask=mask)
    scores = (q @ k.transpose(-1, -2)).double()[..., 32:]
    torch.testing.assert_close(got["lse"].double(), torch.logsumexp(scores, -1), rtol=1e-6, atol=0)
    assert torch.isfinite(got["out"]).all()


def test_a_nan_beyond_the_end_of_the_cache_is_never_read() -> None:
    q = torch.randn(2, 2, 3, 8)
    k, v = torch.randn(2, 1, 50, 8), torch.randn(2, 1, 50, 8)
    lens = np.array([33, 0])
    clean = run(q, k, v, Plan(Tiling(16, 16), 3), kv_lens=lens)
    for b, n in enumerate(lens):
        k[b, :, n:], v[b, :, n:] = torch.nan, torch.nan
    dirty = run(q, k, v, Plan(Tiling(16, 16), 3), kv_lens=lens)
    assert torch.equal(clean["out"], dirty["out"])
    assert not dirty["out"][1].any()
    assert torch.isneginf(dirty["lse"][1]).all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_stays_near_torchs_own_error(dtype: str) -> None:
    spec, arrays = make("decode", (1, 4, 2, 5, 97, 59), dtype=dtype, seed=8, attention={"is_causal": True},
                        options={"num_splits": 3})  # fmt: skip
    got, expected = compute(spec, arrays)["out"], reference(spec, arrays, ("out",))["out"]
    theirs = np.abs(torch_in_low_precision(spec, arrays)["out"] - expected).max()
    assert np.abs(got - expected).max() <= 2 * theirs
    if dtype == "bfloat16":
        np.testing.assert_array_equal(got, torch.from_numpy(got).bfloat16().float().numpy())


# -- what is read and written --------------------------------------------------------------------------------


@pytest.mark.parametrize("group", [1, 4])
@pytest.mark.parametrize("splits", [1, 3])
def test_each_key_and_value_is_read_once_for_all_heads_that_share_it(group: int, splits: int) -> None:
    batch, kv_heads, n, m, d, e = 2, 2, 3, 96, 16, 8
    heads = group * kv_heads
    q, k, v = (
        torch.randn(batch, heads, n, d),
        torch.randn(batch, kv_heads, m, d),
        torch.randn(batch, kv_heads, m, e),
    )
    with counted_traffic() as traffic:
        run(q, k, v, Plan(Tiling(16, 16), splits))
    count = batch * heads * n
    states = splits * count * (e + 2)
    keys = batch * kv_heads * m * (d + e)
    assert traffic.bytes_read == 4 * (keys + splits * count * d + states)
    assert traffic.bytes_written == 4 * (states + count * (e + 1))


def test_keys_outside_the_window_are_not_read_and_the_rest_is_shared_out() -> None:
    """One query, the last of 1024 positions, sees the last 64 keys: 4 tiles of 16, in 4 splits."""
    q, k, v = torch.randn(1, 1, 1, 16), torch.randn(1, 1, 1024, 16), torch.randn(1, 1, 1024, 16)
    k[:, :, : 1024 - 64], v[:, :, : 1024 - 64] = torch.nan, torch.nan
    with counted_traffic() as traffic:
        got = run(q, k, v, Plan(Tiling(16, 16), 4), left=63, right=0)
    offsets, states = 4, 4 * (16 + 2)
    assert traffic.bytes_read == 4 * (offsets + 4 * 16 + 64 * 32 + states)
    expected = scaled_dot_product_attention(q, k[:, :, -64:], v[:, :, -64:], scale=1.0)
    torch.testing.assert_close(got["out"], expected)


@pytest.mark.parametrize("as_bias", [False, True])
def test_tiles_that_a_mask_forbids_to_every_head_of_a_group_are_not_read(as_bias: bool) -> None:
    """Tile 0 is seen by the second head of the first group alone, tile 1 by nobody, tile 2 by all."""
    q, k, v = torch.randn(1, 4, 2, 16), torch.randn(1, 2, 48, 16), torch.randn(1, 2, 48, 16)
    mask = np.zeros((1, 4, 2, 48), bool)
    mask[0, 1, :, :16] = True
    mask[..., 32:] = True
    k[:, :, 16:32], v[:, :, 16:32], k[:, 1, :16], v[:, 1, :16] = [torch.nan] * 4
    terms = {"bias": np.where(mask, np.float32(0), -np.inf)} if as_bias else {"mask": mask}
    got = run(q, k, v, Plan(Tiling(16, 16), 2), **terms)
    clean_k, clean_v = torch.nan_to_num(k), torch.nan_to_num(v)
    expected = scaled_dot_product_attention(
        q, clean_k, clean_v, torch.from_numpy(mask), scale=1.0, enable_gqa=True
    )
    torch.testing.assert_close(got["out"], expected)


# -- the contract --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "fields", "says"),
    [
        ((1, 2, 1, 17, 40, 8), {}, "a q_len of 17 (its limit is 16); reference, eager, sdpa"),
        (SIZES, {"return": ["weights"]}, "the result weights; reference, eager or flash can"),
        (SIZES, {"options": {"block_m": 16}}, "the option block_m; flash"),
        (SIZES, {"options": {"num_splits": 1025}}, "1024"),
        (SIZES, {"options": {"num_splits": 0}}, "num_splits"),
        ((1, 1, 1, 1, 4, 257), {}, "a head dim of 257 (its limit is 256)"),
    ],
)
def test_what_it_cannot_do_is_refused_by_name(sizes: Any, fields: dict[str, Any], says: str) -> None:
    with pytest.raises(SpecError) as refused:
        make("decode", sizes, **fields)
    assert any(says in problem.detail for problem in refused.value.problems)
