"""Linear recurrences in float64: three forms are one, and what they compute is what others say it is."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given as tried
from hypothesis import settings
from hypothesis import strategies as st

from kernels.linear.inputs import Recurrence, Result, State
from kernels.linear.recurrence import chunked, parallel, recurrent, weights
from tests.kernels.linear.cases import KINDS, recurrence, some_state
from tests.kernels.onnx_cases import generated

HEADS = ((1, 1, 1), (4, 2, 2), (2, 2, 4), (1, 2, 4), (6, 3, 3))


def assert_close(found: Result, wanted: Result, tolerance: float = 1e-10) -> None:
    for name, a, b in (
        ("out", found.out, wanted.out),
        ("s", found.state.s, wanted.state.s),
        ("z", found.state.z, wanted.state.z),
    ):
        if b is None:
            assert a is None
        else:
            assert a.shape == b.shape
            np.testing.assert_allclose(
                a, b, rtol=0, atol=tolerance * (1 + np.abs(b).max(initial=0)), err_msg=name
            )


SIZES = st.fixed_dictionaries(
    {"heads": st.sampled_from(HEADS), "n": st.integers(0, 33), "d": st.integers(1, 7), "e": st.integers(1, 5)}
)


@settings(max_examples=60)
@tried(st.sampled_from(sorted(KINDS)), SIZES, st.integers(1, 40), st.booleans(), st.integers(0, 2**32))
def test_three_forms_are_one(kind, sizes, chunk, starts, seed):
    given = recurrence(seed, **sizes, **KINDS[kind])
    state = some_state(given, seed) if starts else None
    wanted = recurrent(given, state)
    assert_close(parallel(given, state), wanted)
    assert_close(chunked(given, state, chunk=chunk), wanted)


@pytest.mark.parametrize("kind", [name for name in KINDS if "not causal" not in name])
def test_a_sequence_may_be_cut_anywhere_and_its_state_carried_over(kind):
    given = recurrence(n=13, **KINDS[kind])
    whole, cut = parallel(given), 5

    def part(where: slice) -> Recurrence:
        arrays = {name: getattr(given, name) for name in ("q", "k", "v", "log_decay", "beta")}
        return replace(given, **{name: x[:, :, where] for name, x in arrays.items() if x is not None})

    first = parallel(part(slice(None, cut)))
    second = recurrent(part(slice(cut, None)), first.state)
    assert_close(Result(np.concatenate([first.out, second.out], 2), second.state), whole)


def test_a_decay_of_zero_forgets_everything():
    given = recurrence(n=8, decay="one", beta=True)
    given.log_decay[:, :, 4] = -np.inf
    found = [form(given, some_state(given)) for form in (parallel, recurrent)]
    assert_close(*found)
    after = replace(
        given, **{name: getattr(given, name)[:, :, 4:] for name in ("q", "k", "v", "log_decay", "beta")}
    )
    np.testing.assert_allclose(found[0].out[:, :, 4:], parallel(after).out, atol=1e-12)


def test_large_decays_cost_no_digits():
    """A difference of running sums would be wrong by 10⁸ · 2⁻⁵³ after the first token."""
    given = recurrence(n=6, decay="one")
    given.log_decay[:, :, 1] = -1e8
    assert_close(parallel(given), recurrent(given), 1e-14)


def test_linear_attention_is_a_product_whose_brackets_moved():
    """φ(Q) (φ(K)ᵀ V) / φ(Q) φ(K)ᵀ 1, as Katharopoulos et al. write it, without any of our code."""
    given = recurrence(n=11, features="elu", normalised=True, causal=False)
    q, k = (np.where(x > 0, x + 1, np.exp(x)) for x in (given.q, given.k))
    wanted = q @ (k.mT @ given.v) / (q @ k.sum(2)[..., None])
    np.testing.assert_allclose(chunked(given, chunk=4).out, wanted, atol=1e-13)


def test_the_delta_rule_replaces_what_a_sum_would_add_up():
    """A key of length 1 is written twice, at rate 1: its second value is retrieved, not both."""
    given = recurrence(n=2, beta=True)
    given.beta[:] = 1.0
    given.k[:] = given.q[:] = np.eye(5)[3]
    replaced, added = recurrent(given).out, recurrent(replace(given, beta=None)).out
    np.testing.assert_allclose(replaced, given.v, atol=1e-14)
    np.testing.assert_allclose(added, given.v.cumsum(2), atol=1e-14)


def test_the_delta_rule_is_gradient_descent():
    """A step of size β on ½‖Sᵀk − v‖², by torch's autograd."""
    import torch

    given = recurrence(batch=1, heads=(1, 1, 1), n=5, beta=True)
    s = torch.zeros(5, 4, dtype=torch.float64, requires_grad=True)
    tokens = [torch.from_numpy(x[0, 0]) for x in (given.k, given.v, given.beta)]
    for k, v, beta in zip(*tokens, strict=True):
        (gradient,) = torch.autograd.grad((s.T @ k - v).square().sum() / 2, s)
        s = (s - beta * gradient).detach().requires_grad_()
    np.testing.assert_allclose(parallel(given).state.s[0, 0], s.detach().numpy(), atol=1e-12)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_weights_make_the_outputs_of_the_values(kind):
    given = recurrence(n=7, **KINDS[kind])
    np.testing.assert_allclose(weights(given) @ given.v, recurrent(given).out, atol=1e-12)


def test_shared_heads_are_those_of_repeat_interleave():
    given = recurrence(heads=(4, 2, 2), decay="one", beta=True)
    alone = replace(
        given,
        **{name: np.repeat(getattr(given, name), 2, 1) for name in ("k", "v", "log_decay", "beta")},
    )
    np.testing.assert_array_equal(parallel(given).out, parallel(alone).out)
    np.testing.assert_array_equal(parallel(given).state.s, parallel(alone).state.s[:, ::2])


def test_rows_without_a_key_are_zero():
    given = recurrence(n=0, features="elu", normalised=True)
    with_queries = replace(given, q=np.ones((2, 2, 3, 5)), causal=False)
    for form in (parallel, recurrent):
        np.testing.assert_array_equal(form(with_queries).out, np.zeros((2, 2, 3, 4)))


# -- ONNX's operator LinearAttention -------------------------------------------------------------------------


@pytest.mark.parametrize("case", generated("test_linear_attention_"), ids=lambda case: case.name[22:])
def test_onnx_agrees(case):
    (node,), (inputs, outputs) = case.model.graph.node, case.data_sets[0]
    arrays = dict(zip([name for name in node.input if name], inputs, strict=True))
    attributes = {a.name: a.f if a.name == "scale" else a.i for a in node.attribute}
    heads, kv_heads = attributes["q_num_heads"], attributes["kv_num_heads"]

    def four(name: str, count: int) -> np.ndarray | None:
        if name not in arrays:
            return None
        batch, n, width = arrays[name].shape
        return arrays[name].reshape(batch, n, count, width // count).swapaxes(1, 2).astype(np.float64)

    q, k, v = four("query", heads), four("key", kv_heads), four("value", kv_heads)
    beta = four("beta", min(kv_heads, arrays["beta"].shape[2])) if "beta" in arrays else None
    scale = attributes.get("scale") or q.shape[3] ** -0.5
    given = Recurrence(q, k, v, four("decay", kv_heads), beta, scale=scale)
    past = State(arrays["past_state"].astype(np.float64)) if "past_state" in arrays else None
    tolerance = 1e-3 if inputs[0].dtype == np.float16 else 1e-6
    for form in (parallel, recurrent):
        found = form(given, past)
        out = found.out.swapaxes(1, 2).reshape(outputs[0].shape)
        np.testing.assert_allclose(out, outputs[0], rtol=tolerance, atol=tolerance)
        np.testing.assert_allclose(found.state.s, outputs[1], rtol=tolerance, atol=tolerance)


# -- what does not fit together ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"features": "relu"}, "features must be None or one of elu, not 'relu'"),
        ({"k": np.ones((2, 2, 9, 4))}, "k is 4 wide; it must be 5"),
        ({"v": np.ones((2, 2, 8, 4))}, "v has batch 2 and length 8; q and k have 2 and 9"),
        ({"v": np.ones((2, 9, 4))}, "v must be \\[batch, heads, len, dim\\], not of shape \\[2, 9, 4\\]"),
        ({"k": np.ones((2, 3, 9, 5))}, "q has 2 heads, which must divide 3, the most that an array has"),
        ({"q": np.ones((2, 2, 4, 5))}, "q has length 4 and k 9: equal where causal; or set causal=False"),
        ({"beta": np.ones((2, 2, 9, 2))}, "beta is 2 wide; it must be 1"),
        ({"log_decay": np.ones((2, 2, 9, 3))}, "log_decay is 3 wide; it must be 1 or 5"),
        ({"beta": np.ones((2, 2, 9, 1)), "normalised": True}, "leave one of the two out"),
        ({"log_decay": np.ones((2, 2, 9, 1)), "causal": False}, "or set causal=True"),
    ],
)  # fmt: skip
def test_what_does_not_fit_together_is_named(changes, said):
    with pytest.raises(ValueError, match=said):
        replace(recurrence(), **changes)


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (State(np.ones((2, 2, 4, 5))), "state.s has shape \\[2, 2, 4, 5\\]; it must be \\[2, 2, 5, 4\\]"),
        (State(np.ones((2, 2, 5, 4)), np.ones((2, 2, 5))), "send it without z"),
    ],
)
def test_a_state_of_another_recurrence_is_refused(state, said):
    with pytest.raises(ValueError, match=said):
        parallel(recurrence(), state)
