"""Local attention, one key at a time; and what of it can be learned."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.arrays import generate
from kernels.scoring.attention import softmax
from kernels.scoring.local import centre_gradient, local_attention, monotonic_centres, predicted_centres


def scores_and_values(n: int, m: int, distribution: str = "normal") -> tuple[np.ndarray, np.ndarray]:
    return (
        generate("scores", 1, (2, 2, n, m), distribution, "float64"),
        generate("v", 1, (2, 1, m, 3), "normal", "float64"),
    )


def by_definition(scores: list[float], centre: float, half_width: float, gaussian: bool) -> list[float]:
    """The weights of one query."""
    inside = [abs(s - centre) <= half_width for s in range(len(scores))]
    total = math.fsum(math.exp(x) for x, seen in zip(scores, inside, strict=True) if seen)
    sigma = half_width / 2
    return [
        math.exp(x) / total * (math.exp(-((s - centre) ** 2) / (2 * sigma**2)) if gaussian else 1)
        if inside[s]
        else 0.0
        for s, x in enumerate(scores)
    ]


@settings(max_examples=60, deadline=None)
@given(
    st.tuples(st.integers(0, 6), st.integers(0, 9)),
    st.sampled_from([0, 1, 2.5, 4, 30]),
    st.booleans(),
    st.sampled_from(["normal", "peaked"]),
    st.integers(0, 99),
)
def test_every_window_is_its_definition(
    sizes: tuple[int, int], half_width: float, gaussian: bool, distribution: str, seed: int
) -> None:
    n, m = sizes
    gaussian = gaussian and half_width > 0
    scores, v = scores_and_values(n, m, distribution)
    centres = m * (generate("centres", seed, (2, 2, n), "uniform", "float64") + 1) / 2
    found = local_attention(scores, v, centres, half_width, gaussian=gaussian)
    inside = 0
    for b, h, t in np.ndindex(2, 2, n):
        wanted = by_definition(scores[b, h, t].tolist(), float(centres[b, h, t]), half_width, gaussian)
        np.testing.assert_allclose(found.weights[b, h, t], wanted, atol=1e-13)
        np.testing.assert_allclose(found.out[b, h, t], np.array(wanted) @ v[b, 0], atol=1e-12)
        inside += sum(abs(s - centres[b, h, t]) <= half_width for s in range(m))
    assert found.pairs == inside


def test_a_window_over_all_keys_is_global_attention() -> None:
    scores, v = scores_and_values(4, 6)
    found = local_attention(scores, v, monotonic_centres(4), 6, gaussian=False)
    np.testing.assert_allclose(found.weights, softmax(scores), atol=1e-15)
    # A Gaussian as wide as the moon forbids nothing either.
    found = local_attention(scores, v, monotonic_centres(4), 1e9, gaussian=True)
    np.testing.assert_allclose(found.weights, softmax(scores), atol=1e-12)


def test_weights_are_the_global_ones_divided_by_their_sum_in_the_window() -> None:
    """Without a Gaussian."""
    scores, v = scores_and_values(4, 9, "peaked")
    allowed = np.tril(np.ones((4, 9), bool), 5)
    found = local_attention(scores, v, monotonic_centres(4), 2, gaussian=False, allowed=allowed)
    everywhere = softmax(scores, allowed)
    window = np.abs(np.arange(9) - np.arange(4)[:, None]) <= 2
    np.testing.assert_allclose(found.inside, (everywhere * window).sum(-1), atol=1e-14)
    np.testing.assert_allclose(found.weights * found.inside[..., None], everywhere * window, atol=1e-14)
    assert found.pairs == 4 * (window & allowed).sum()


def test_monotonic_windows_move_with_the_query_and_end_with_the_keys() -> None:
    scores, v = scores_and_values(5, 3)
    found = local_attention(scores, v, monotonic_centres(5), 1, gaussian=False)
    seen = ["".join("x" if w else "." for w in row) for row in found.weights[0, 0]]
    assert seen == ["xx.", "xxx", ".xx", "..x", "..."]
    assert found.pairs == 4 * 8
    np.testing.assert_allclose(found.weights.sum(-1)[..., :4], 1)
    assert (found.out[:, :, 4] == 0).all()


def test_predicted_centres_lie_among_the_keys() -> None:
    h = generate("h", 1, (2, 2, 4, 3), "normal", "float64")
    w_p, v_p = generate("w", 1, (2, 5, 3), "normal", "float64"), generate("v", 1, (2, 5), "normal", "float64")
    found = predicted_centres(h, w_p, v_p, 7)
    for b, head, t in np.ndindex(2, 2, 4):
        activation = float(v_p[head] @ np.tanh(w_p[head] @ h[b, head, t]))
        assert found[b, head, t] == pytest.approx(7 / (1 + math.exp(-activation)))
    assert ((found > 0) & (found < 7)).all()
    extreme = predicted_centres(h, w_p, 1e6 * v_p, 7)
    assert np.isfinite(extreme).all()
    np.testing.assert_allclose(predicted_centres(h, w_p, 0 * v_p, 7), 3.5)


def test_the_centre_learns_through_the_gaussian() -> None:
    """By autograd through everything; the edges of the window give it nothing."""
    scores, v = scores_and_values(4, 9)
    centres = 9 * (generate("centres", 2, (2, 2, 4), "uniform", "float64") + 1) / 2
    dout = generate("u", 1, (2, 2, 4, 3), "normal", "float64")
    width = 3.0
    leaf = torch.from_numpy(centres).requires_grad_()
    distance = torch.arange(9) - leaf[..., None]
    masked = torch.from_numpy(scores).masked_fill(distance.abs() > width, -math.inf)
    weights = torch.softmax(masked, -1) * torch.exp(-(distance**2) / (2 * (width / 2) ** 2))
    (weights @ torch.from_numpy(v) * torch.from_numpy(dout)).sum().backward()
    found = local_attention(scores, v, centres, width, gaussian=True)
    np.testing.assert_allclose(centre_gradient(found, v, dout, width), leaf.grad, atol=1e-12)


def test_mistakes_are_explained() -> None:
    scores, v = scores_and_values(2, 3)
    with pytest.raises(ValueError, match="0 or more; not -1"):
        local_attention(scores, v, monotonic_centres(2), -1, gaussian=False)
    with pytest.raises(ValueError, match="more than 0 with a Gaussian"):
        local_attention(scores, v, monotonic_centres(2), 0, gaussian=True)
    with pytest.raises(ValueError, match=r"\[a, 4\]"):
        predicted_centres(np.zeros((1, 1, 2, 4)), np.zeros((1, 5, 3)), np.zeros((1, 5)), 3)
