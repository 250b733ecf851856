"""The reference against closed forms and against torch in float64: nothing else can vouch for it."""

import math

import numpy as np
import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from kernels.engines.reference import attend, reference
from kernels.positions import automatic_slopes
from tests.kernels.cases import make

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
