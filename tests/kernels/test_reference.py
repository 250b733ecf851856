"""The reference against closed forms and against torch in float64: nothing else can vouch for it."""

import math

import numpy as np
import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from kernels.engines.reference import attend, reference
from kernels.positions import automatic_slopes, query_positions
from kernels.spec import RunSpec
from tests.kernels.cases import Arrays, canonical, make

ALL = ("out", "lse", "scores", "softcapped_scores", "masked_scores", "weights")


def test_attention_by_hand() -> None:
    x = np.array([[1.0, 0], [0, 1], [1, 1]])
    head = attend(x, x, np.array([[1.0, 0], [0, 2], [2, 2]]), scale=1 / math.sqrt(2))
    np.testing.assert_allclose(head["scores"] * math.sqrt(2), [[1, 0, 1], [0, 1, 1], [1, 1, 2]], atol=1e-15)
    np.testing.assert_allclose(
        head["weights"],
        [[0.4011, 0.1978, 0.4011], [0.1978, 0.4011, 0.4011], [0.2483, 0.2483, 0.5035]],
        atol=5e-5,
    )
    np.testing.assert_allclose(head["out"], [[1.2033, 1.1978], [1.0000, 1.6044], [1.2552, 1.5035]], atol=5e-5)
    np.testing.assert_allclose(head["lse"], np.log(np.exp(head["scores"]).sum(1)), rtol=1e-15)


def test_equal_scores_give_the_mean_and_the_log_of_the_count() -> None:
    v = np.arange(10.0).reshape(5, 2)
    head = attend(np.zeros((3, 4)), np.ones((5, 4)), v, scale=2.0)
    np.testing.assert_allclose(head["out"], np.tile(v.mean(0), (3, 1)))
    np.testing.assert_allclose(head["lse"], math.log(5))


def test_one_huge_score_is_a_hard_choice_and_nothing_overflows() -> None:
    q, k = np.array([[1e4]]), np.array([[-1.0], [1.0], [0.5]])
    head = attend(q, k, np.array([[1.0], [2.0], [3.0]]), scale=1.0)
    assert head["out"].tolist() == [[2.0]]
    assert head["lse"].tolist() == [1e4]
    head = attend(-q, np.abs(k), np.array([[1.0], [2.0], [3.0]]), scale=1.0)  # all logits very negative
    np.testing.assert_allclose(head["out"], [[3.0]])


def test_a_row_that_sees_nothing_is_zero_with_lse_minus_infinity() -> None:
    spec, arrays = make("reference", (1, 1, 1, 5, 3, 4), attention={"is_causal": True})
    got = reference(spec, arrays, ALL)
    assert not got["out"][0, 0, :2].any()
    assert not got["weights"][0, 0, :2].any()
    assert np.isneginf(got["lse"][0, 0, :2]).all()
    assert np.isfinite(got["lse"][0, 0, 2:]).all()


def test_a_sink_takes_its_share_of_the_denominator_and_of_the_lse() -> None:
    spec, arrays = make(
        "reference", (1, 2, 1, 4, 4, 8), attention={"sinks": [0.7, "-inf"], "is_causal": True}
    )
    got = reference(spec, arrays, ALL)
    with_sink, without = got["masked_scores"][0, 0], got["masked_scores"][0, 1]
    np.testing.assert_allclose(got["lse"][0, 0], np.log(np.exp(with_sink).sum(1) + np.exp(np.float32(0.7))))
    np.testing.assert_allclose(got["lse"][0, 1], np.log(np.exp(without).sum(1)))
    assert (got["weights"][0, 0].sum(1) < 1).all()
    np.testing.assert_allclose(got["weights"][0, 1].sum(1), 1)
    empty, arrays = make("reference", (1, 1, 1, 2, 1, 8), attention={"sinks": [0.5], "is_causal": True})
    assert reference(empty, arrays, ALL)["lse"][0, 0, 0] == 0.5  # a masked row with a sink: the sink's logit


def test_softcap_then_alibi_then_mask() -> None:
    mask = [[0.5, "-inf", 0, 0.25]]
    attention = {"softcap": 2.0, "alibi_slopes": [0.5, 0.125], "causal_alignment": "top_left"}
    spec, arrays = make("reference", (1, 2, 2, 3, 4, 8), inputs={"attn_mask": mask}, attention=attention)
    got = reference(spec, arrays, ALL)
    scores = arrays["q"].astype(float) @ arrays["k"].astype(float).swapaxes(-1, -2) / math.sqrt(8)
    np.testing.assert_allclose(got["scores"], scores)
    capped = 2 * np.tanh(scores / 2)
    np.testing.assert_allclose(got["softcapped_scores"], capped)
    distance = np.arange(4)[None, :] - np.arange(3)[:, None]
    bias = np.array([0.5, 0.125])[:, None, None] * distance
    np.testing.assert_allclose(got["masked_scores"][0], capped[0] + bias + np.array([0.5, -np.inf, 0, 0.25]))


@pytest.mark.parametrize("alignment", ["top_left", "bottom_right"])
@pytest.mark.parametrize(("q_len", "kv_len"), [(3, 5), (5, 3), (4, 4), (1, 6)])
def test_causal_alignments_and_grouped_heads_against_torch(alignment: str, q_len: int, kv_len: int) -> None:
    spec, arrays = make(
        "reference",
        (2, 6, 2, q_len, kv_len, 8),
        v_dim=3,
        distribution="peaked",
        attention={"is_causal": True, "causal_alignment": alignment},
    )
    offset = kv_len - q_len if alignment == "bottom_right" else 0
    allowed = torch.ones(q_len, kv_len, dtype=torch.bool).tril(offset)
    q, k, v = (torch.from_numpy(arrays[n]).double() for n in "qkv")
    k, v = (torch.repeat_interleave(t, 3, dim=1) for t in (k, v))
    expected = torch.nan_to_num(scaled_dot_product_attention(q, k, v, attn_mask=allowed), 0.0)
    np.testing.assert_allclose(
        reference(spec, arrays, ("out",))["out"], expected.numpy(), rtol=1e-10, atol=1e-12
    )


def test_windows_are_inclusive_distances_in_positions() -> None:
    spec, arrays = make("reference", (1, 1, 1, 4, 6, 4), attention={"window": [2, 1], "q_positions": 1})
    seen = np.isfinite(reference(spec, arrays, ALL)["masked_scores"][0, 0])
    assert seen.astype(int).tolist() == [
        [1, 1, 1, 0, 0, 0],
        [1, 1, 1, 1, 0, 0],
        [0, 1, 1, 1, 1, 0],
        [0, 0, 1, 1, 1, 1],
    ]


def test_positions_of_each_batch_row_decide_causality() -> None:
    spec, arrays = make(
        "reference",
        (2, 1, 1, 2, 3, 4),
        attention={
            "is_causal": True,
            "q_positions": [[0, 5], [2, 1]],
            "kv_positions": [[0, 1, 9], [2, 2, 1]],
        },
    )
    seen = np.isfinite(reference(spec, arrays, ALL)["masked_scores"][:, 0]).astype(int)
    assert seen.tolist() == [[[1, 0, 0], [1, 1, 0]], [[1, 1, 1], [0, 0, 1]]]


def test_automatic_slopes_follow_the_alibi_authors() -> None:
    assert automatic_slopes(8) == [2.0**-h for h in range(1, 9)]
    # Their get_slopes(6): that of 4 heads, then every other one of 8.
    assert automatic_slopes(6) == [2**-2, 2**-4, 2**-6, 2**-8, 2**-1, 2**-3]
    assert automatic_slopes(1) == [2**-8]


@pytest.mark.parametrize(
    "shape", [(0, 2, 1, 3, 3, 4), (1, 2, 1, 0, 3, 4), (1, 2, 1, 3, 0, 4), (1, 2, 1, 3, 3, 0)]
)
def test_empty_axes(shape: tuple[int, int, int, int, int, int]) -> None:
    spec, arrays = make("reference", shape, attention={"is_causal": True})
    got = reference(spec, arrays, ALL)
    assert got["out"].shape == (*shape[:2], shape[3], shape[5])
    assert got["weights"].shape == (*shape[:2], shape[3], shape[4])
    assert not np.isnan(got["out"]).any()
    if shape[4] == 0:
        assert np.isneginf(got["lse"]).all()


def test_equal_scores_share_alike_however_large() -> None:
    """Beside a logit of 10³⁰ the logarithm of a sum is lost in float64; the weights must not be."""
    head = attend(np.full((1, 2), 1e15), np.full((4, 2), 1e15), np.arange(4.0)[:, None], scale=1.0)
    np.testing.assert_array_equal(head["weights"], 0.25)
    assert head["out"].tolist() == [[1.5]]


# -- lengths, the past, pages --------------------------------------------------------------------------------

GRADIENTS = ("dq", "dk", "dv")
rng = np.random.default_rng(2)


def numbers(*shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def uploaded(attention: dict[str, object], **arrays: object) -> tuple[RunSpec, Arrays]:
    """Lists are lengths, arrays are uploads."""
    inputs = {n: a if isinstance(a, list) else {"upload": "test", "name": n} for n, a in arrays.items()}
    body = {"engine": "reference", "inputs": inputs, "attention": attention, "dtype": "float64"}
    return canonical(body, {n: a for n, a in arrays.items() if isinstance(a, np.ndarray)})


@pytest.mark.parametrize("alignment", ["bottom_right", "top_left"])
def test_each_row_of_a_ragged_batch_is_computed_as_if_alone(alignment: str) -> None:
    """…with windows, ALiBi, RoPE and gradients, whatever its padding holds."""
    q, k, v, dout = numbers(2, 4, 5, 6), numbers(2, 2, 7, 6), numbers(2, 2, 7, 3), numbers(2, 4, 5, 3)
    attention = {
        "is_causal": True, "causal_alignment": alignment, "window": [3, None], "alibi_slopes": "auto",
        "rope": {"style": "half"}, "softcap": 3.0, "sinks": [0.5, -1.0, 0.0, 2.0],
    }  # fmt: skip
    q_lens, kv_lens = [3, 5], [6, 4]
    for b in range(2):
        q[b, :, q_lens[b] :], dout[b, :, q_lens[b] :] = np.nan, np.nan
        k[b, :, kv_lens[b] :], v[b, :, kv_lens[b] :] = np.nan, np.nan
    spec, arrays = uploaded(attention, q=q, k=k, v=v, dout=dout, q_lens=q_lens, kv_lens=kv_lens)
    got = reference(spec, arrays, (*ALL, *GRADIENTS, "present_key"))
    for b, (n, m) in enumerate(zip(q_lens, kv_lens, strict=True)):
        spec, arrays = uploaded(
            attention, q=q[b : b + 1, :, :n], k=k[b : b + 1, :, :m], v=v[b : b + 1, :, :m],
            dout=dout[b : b + 1, :, :n],
        )  # fmt: skip
        for name, alone in reference(spec, arrays, tuple(got)).items():
            padding = -np.inf if name in ("lse", "masked_scores") else 0.0
            whole = np.full(got[name].shape[1:], padding)
            whole[tuple(slice(length) for length in alone.shape[1:])] = alone[0]
            np.testing.assert_allclose(got[name][b], whole, rtol=1e-9, atol=1e-12, err_msg=name)


def test_lengths_of_zero() -> None:
    spec, arrays = uploaded(
        {"is_causal": True, "sinks": [0.25]}, q=numbers(2, 1, 3, 4), k=numbers(2, 1, 3, 4),
        v=numbers(2, 1, 3, 4), q_lens=[0, 3], kv_lens=[3, 0],
    )  # fmt: skip
    got = reference(spec, arrays, ALL)
    assert not got["out"].any()
    assert np.isneginf(got["lse"][0]).all()  # no query, no row: not even the sink
    assert (got["lse"][1] == 0.25).all()  # queries without keys: the sink alone


def test_a_past_gives_the_last_rows_of_the_whole() -> None:
    """Decoding two tokens over six is the end of computing eight, RoPE, causality and windows included; so
    are present_key, and the gradients of what is fresh."""
    q, k, v, dout = numbers(1, 4, 8, 6), numbers(1, 2, 8, 6), numbers(1, 2, 8, 3), numbers(1, 4, 8, 3)
    attention = {"is_causal": True, "window": [4, None], "rope": {"style": "interleaved", "dim": 4}}
    whole_spec, whole_arrays = uploaded(attention, q=q, k=k, v=v, dout=dout)
    wanted = ("out", "lse", "present_key", "present_value", *GRADIENTS)
    whole = reference(whole_spec, whole_arrays, wanted)
    spec, arrays = uploaded(
        attention, q=q[:, :, 6:], k=k[:, :, 6:], v=v[:, :, 6:], dout=dout[:, :, 6:],
        past_key=whole["present_key"][:, :, :6], past_value=v[:, :, :6],
    )  # fmt: skip
    step = reference(spec, arrays, wanted)
    for name in ("out", "lse", "dq", "dk", "dv"):
        np.testing.assert_allclose(step[name], whole[name][:, :, 6:], rtol=1e-12, atol=1e-14, err_msg=name)
    for name in ("present_key", "present_value"):
        np.testing.assert_allclose(step[name], whole[name], rtol=1e-15, err_msg=name)
    np.testing.assert_array_equal(whole["present_value"], v)
    assert not np.allclose(whole["present_key"][..., :4], k[..., :4])
    np.testing.assert_array_equal(whole["present_key"][..., 4:], k[..., 4:])  # not rotated


@pytest.mark.parametrize("page", [1, 2, 3, 8])
def test_pages_are_the_contiguous_cache_in_another_order(page: int) -> None:
    """Shuffled and shared pages; a page that two rows read gets the sum of their gradients."""
    rng = np.random.default_rng(page)
    blocks = -(-7 // page)
    pool_k, pool_v = numbers(2 * blocks + 1, page, 2, 6), numbers(2 * blocks + 1, page, 2, 3)
    table = np.stack([rng.permutation(2 * blocks + 1)[:blocks] for _ in range(2)])
    table[1, 0] = table[0, 0]
    q, dout, lens = numbers(2, 4, 3, 6), numbers(2, 4, 3, 3), [7, 5]
    attention = {"is_causal": True, "rope": {"style": "half"}, "alibi_slopes": "auto"}
    k, v = (pool[table].reshape(2, blocks * page, 2, -1).transpose(0, 2, 1, 3) for pool in (pool_k, pool_v))
    plain = reference(*uploaded(attention, q=q, k=k, v=v, dout=dout, kv_lens=lens), (*ALL, *GRADIENTS))
    unread = np.ones(pool_k.shape[:2], dtype=bool)
    for b in range(2):
        for token in range(lens[b]):
            unread[table[b, token // page], token % page] = False
    pool_k[unread], pool_v[unread] = np.nan, np.nan
    table[1, -(-5 // page) :] = -1
    paged_spec, paged_arrays = uploaded(
        attention, q=q, k=pool_k, v=pool_v, dout=dout, kv_lens=lens, block_table=table
    )
    paged = reference(paged_spec, paged_arrays, (*ALL, *GRADIENTS, "present_value"))
    for name in (*ALL, "dq"):
        np.testing.assert_allclose(paged[name], plain[name], rtol=1e-14, err_msg=name)
    np.testing.assert_array_equal(paged["present_value"][0, :, :7], v[0, :, :7])
    for name in ("dk", "dv"):
        expected = np.zeros(paged[name].shape)
        for b in range(2):
            for token in range(lens[b]):
                expected[table[b, token // page], token % page] += plain[name][b, :, token]
        np.testing.assert_allclose(paged[name], expected, rtol=1e-12, atol=1e-14, err_msg=name)


def test_the_last_query_stands_at_the_last_key_of_its_row() -> None:
    spec, arrays = uploaded(
        {"is_causal": True}, q=numbers(3, 1, 4, 2), k=numbers(3, 1, 6, 2), v=numbers(3, 1, 6, 2),
        q_lens=[4, 2, 3], kv_lens=[6, 3, 1],
    )  # fmt: skip
    seen = np.isfinite(reference(spec, arrays, ("masked_scores",))["masked_scores"][:, 0]).sum(-1)
    assert seen.tolist() == [[3, 4, 5, 6], [2, 3, 0, 0], [0, 0, 1, 0]]
    np.testing.assert_array_equal(
        query_positions(spec, arrays["q_lens"], arrays["kv_lens"]),
        [[2, 3, 4, 5], [1, 2, 3, 4], [-2, -1, 0, 1]],
    )


# -- gradients -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("softcap", [0.0, 1.5])
def test_gradients_are_the_slope_of_the_loss(softcap: float) -> None:
    """Central differences of Σ out · dout along random directions, through sinks, ALiBi, a mask, grouped
    heads, RoPE with an attention factor, a past and padding."""
    given = {
        "q": numbers(2, 4, 3, 6), "k": numbers(2, 2, 4, 6), "v": numbers(2, 2, 4, 3),
        "dout": numbers(2, 4, 3, 3),
        "past_key": numbers(2, 2, 2, 6), "past_value": numbers(2, 2, 2, 3),
        "attn_mask": np.where(numbers(1, 4, 3, 6) < -1, -np.inf, numbers(1, 4, 3, 6)),
        "q_lens": [3, 2], "kv_lens": [6, 5],
    }  # fmt: skip
    yarn = {"type": "yarn", "factor": 4, "original_max_position_embeddings": 16}
    attention = {
        "is_causal": True, "softcap": softcap, "alibi_slopes": "auto", "sinks": [0.5, -1.0, "-inf", 2.0],
        "rope": {"style": "half", "theta": 50, "scaling": yarn},
    }  # fmt: skip
    given = {name: a.astype(np.float64) if isinstance(a, np.ndarray) else a for name, a in given.items()}

    def loss(**changed: np.ndarray) -> float:
        spec, arrays = uploaded(attention, **{**given, **changed})
        return float((reference(spec, arrays, ("out",))["out"] * given["dout"] * inside).sum())

    inside = (np.arange(3) < np.array([3, 2])[:, None])[:, None, :, None]
    gradients = reference(*uploaded(attention, **given), GRADIENTS)
    for name in ("q", "k", "v"):
        direction, step = np.random.default_rng(1).standard_normal(given[name].shape), 1e-5
        slope = (
            loss(**{name: given[name] + step * direction}) - loss(**{name: given[name] - step * direction})
        ) / (2 * step)
        assert (gradients[f"d{name}"] * direction).sum() == pytest.approx(slope, rel=1e-7, abs=1e-9), name


def test_gradients_against_torchs_autograd_in_float64() -> None:
    q, k, v, dout = (torch.from_numpy(numbers(2, 3, n, 5)).double() for n in (4, 7, 7, 4))
    leaves = [x.requires_grad_() for x in (q, k, v)]
    out = scaled_dot_product_attention(*leaves, attn_mask=torch.ones(4, 7, dtype=torch.bool).tril(3))
    expected = torch.autograd.grad(out, leaves, dout)
    spec, arrays = uploaded(
        {"is_causal": True},
        **{n: x.detach().numpy() for n, x in {"q": q, "k": k, "v": v, "dout": dout}.items()},
    )
    got = reference(spec, arrays, GRADIENTS)
    for name, right in zip(GRADIENTS, expected, strict=True):
        np.testing.assert_allclose(got[name], right.numpy(), rtol=1e-10, atol=1e-12)


def test_a_row_that_sees_nothing_has_no_gradient() -> None:
    spec, arrays = make("reference", (1, 1, 1, 5, 3, 4), inputs={"dout": {"seed": 1, "shape": [1, 1, 5, 4]}},
                        attention={"is_causal": True})  # fmt: skip
    got = reference(spec, arrays, GRADIENTS)
    assert not got["dq"][0, 0, :2].any()
    assert got["dq"][0, 0, 3:].any()
    assert all(np.isfinite(array).all() for array in got.values())
