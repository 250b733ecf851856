"""Scores against their formulas pair by pair, against each other, and beside exact attention."""

import math
import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.arrays import generate
from kernels.engines.reference import attend as exact_attend
from kernels.scoring.attention import softmax, summed
from kernels.scoring.costs import Cost, Sizes, cost
from kernels.scoring.functions import SCORES, cosine, parameter_shapes, score

SIZES = st.tuples(
    st.integers(1, 2), st.integers(1, 2), st.integers(1, 2), st.integers(0, 5), st.integers(0, 7)
)  # batch, key heads, group, q_len, kv_len


def random(name: str, *shape: int, distribution: str = "normal") -> np.ndarray:
    return generate(name, 7, shape, distribution, "float64")


def inputs(
    sizes: tuple[int, ...], d_q: int, d_k: int, distribution: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    b, h_kv, group, n, m = sizes
    return (
        random("q", b, h_kv * group, n, d_q, distribution=distribution),
        random("k", b, h_kv, m, d_k, distribution=distribution),
        random("v", b, h_kv, m, 3),
    )


def parameters(name: str, d_q: int, d_k: int, hidden: int, heads: int) -> dict[str, np.ndarray]:
    shapes = parameter_shapes(name, d_q, d_k, hidden)
    return {each: random(each, heads, *shape) for each, shape in shapes.items()}


def by_formula(name: str, q: np.ndarray, k: np.ndarray, p: dict[str, np.ndarray]) -> float:
    """The score of one query and one key, in plain Python."""

    def dot(x: np.ndarray, y: np.ndarray) -> float:
        return math.fsum(a * b for a, b in zip(x.tolist(), y.tolist(), strict=True))

    match name:
        case "dot":
            return dot(q, k)
        case "scaled_dot":
            return dot(q, k) / math.sqrt(len(q))
        case "cosine":
            return dot(q, k) / math.hypot(*q) / math.hypot(*k)
        case "general":
            return dot(q, np.array([dot(row, k) for row in p["w"]]))
        case "additive":
            hidden = [dot(a, q) + dot(b, k) for a, b in zip(p["w_q"], p["w_k"], strict=True)]
        case "concat":
            hidden = [dot(row, np.concatenate([q, k])) for row in p["w"]]
    return math.fsum(v * math.tanh(x) for v, x in zip(p["v_a"].tolist(), hidden, strict=True))


@pytest.mark.parametrize("name", SCORES)
@settings(max_examples=25, deadline=None)
@given(SIZES, st.booleans(), st.sampled_from(["normal", "peaked"]), st.integers(1, 5))
def test_every_score_is_its_formula(
    name: str, sizes: tuple[int, ...], shared: bool, distribution: str, d: int
) -> None:
    d_k = d + 2 if name in ("additive", "concat", "general") else d
    q, k, _ = inputs(sizes, d, d_k, distribution)
    heads = 1 if shared else q.shape[1]
    given_parameters = parameters(name, d, d_k, 4, heads)
    found = score(name, q, k, given_parameters)
    assert found.shape == (*q.shape[:3], k.shape[2])
    for b, h, i, j in np.ndindex(found.shape):
        of_head = {each: x[h % heads] for each, x in given_parameters.items()}
        wanted = by_formula(name, q[b, h, i], k[b, h // sizes[2], j], of_head)
        assert found[b, h, i, j] == pytest.approx(wanted, rel=1e-11, abs=1e-11)


@settings(max_examples=100, deadline=None)
@given(SIZES, st.integers(1, 6), st.integers(1, 6), st.integers(1, 9), st.sampled_from(["normal", "peaked"]))
def test_concat_is_additive(
    sizes: tuple[int, ...], d_q: int, d_k: int, hidden: int, distribution: str
) -> None:
    """W [q; k] = W_q q + W_k k where W = [W_q W_k]."""
    q, k, v = inputs(sizes, d_q, d_k, distribution)
    of_additive = parameters("additive", d_q, d_k, hidden, q.shape[1])
    side_by_side = np.concatenate([of_additive["w_q"], of_additive["w_k"]], axis=2)
    of_concat = {"w": side_by_side, "v_a": of_additive["v_a"]}
    one, other = score("additive", q, k, of_additive), score("concat", q, k, of_concat)
    np.testing.assert_allclose(one, other, atol=1e-10, rtol=0)
    one, other = (summed(softmax(scores), v) for scores in (one, other))
    np.testing.assert_allclose(one, other, atol=1e-10, rtol=0)


def test_general_with_the_identity_is_dot_and_is_bilinear() -> None:
    """General is no nonlinear score: it is linear in q and in k."""
    q, k, _ = inputs((2, 2, 1, 4, 5), 3, 3, "normal")
    np.testing.assert_allclose(score("general", q, k, {"w": np.eye(3)[None]}), score("dot", q, k, {}))
    w = {"w": random("w", 1, 3, 3)}
    other = random("other", *q.shape)
    np.testing.assert_allclose(
        score("general", 2 * q - 3 * other, k, w),
        2 * score("general", q, k, w) - 3 * score("general", other, k, w),
        atol=1e-12,
    )


def test_cosines_do_not_depend_on_lengths_and_agree_with_torch() -> None:
    q, k, _ = inputs((1, 2, 2, 3, 4), 5, 5, "peaked")
    stretched = cosine(q * 1e-170, k * np.array([1.0, 1e-200, 1e200, 7.0])[:, None])
    np.testing.assert_allclose(stretched, cosine(q, k), atol=1e-15)
    of_torch = torch.nn.functional.cosine_similarity(
        torch.from_numpy(q)[:, :, :, None],
        torch.from_numpy(k).repeat_interleave(2, 1)[:, :, None],
        dim=-1,
    )
    np.testing.assert_allclose(cosine(q, k), of_torch, atol=1e-12)
    k[:, :, 1] = 0
    assert (cosine(q, k)[..., 1] == 0).all()


def test_cosine_weights_stay_flat_unless_sharpened() -> None:
    """Of m keys the best gets at most 1 / (1 + (m − 1) e⁻²ᵝ)."""
    m = 9
    q = np.ones((1, 1, 1, 4))
    k = np.concatenate([np.ones((1, 1, 1, 4)), -np.ones((1, 1, m - 1, 4))], axis=2)
    for beta in (1.0, 5.0):
        weights = softmax(score("cosine", q, k, {}, beta=beta))
        assert weights.max() == pytest.approx(1 / (1 + (m - 1) * math.exp(-2 * beta)))


@pytest.mark.parametrize("distribution", ["normal", "peaked"])
def test_scaled_dot_is_exact_attention_and_no_other_score_is(distribution: str) -> None:
    q, k, v = inputs((2, 2, 3, 5, 7), 4, 4, distribution)
    allowed = np.tril(np.ones((5, 7), bool), 1)
    allowed[3] = False
    for name in SCORES:
        weights = softmax(score(name, q, k, parameters(name, 4, 4, 3, 6)), allowed)
        out = summed(weights, v)
        for b, h in np.ndindex(2, 6):
            wanted = exact_attend(q[b, h], k[b, h // 3], v[b, h // 3], scale=0.5, allowed=allowed)
            assert np.allclose(out[b, h], wanted["out"], rtol=0, atol=1e-13) == (name == "scaled_dot")
            assert np.allclose(weights[b, h], wanted["weights"], rtol=0, atol=1e-13) == (name == "scaled_dot")
        sums = weights.sum(-1)
        np.testing.assert_allclose(sums, np.broadcast_to([1, 1, 1, 0, 1], sums.shape), atol=1e-12)
        assert (weights[..., ~allowed] == 0).all()


class Counted(float):
    """A number that counts the products and sums it takes part in."""

    done = 0

    def __mul__(self, other: float) -> "Counted":
        Counted.done += 1
        return Counted(float(self) * float(other))

    __rmul__ = __mul__


@pytest.mark.parametrize("name", ["dot", "general", "additive", "concat"])
def test_costs_count_the_multiply_adds(name: str) -> None:
    """Every multiply-add has one product; the sums alone of additive are n·m·a, and concat's v·tanh n·m·a."""
    n, m, d, a = 3, 4, 5, 2
    q, k, _ = inputs((1, 1, 1, n, m), d, d, "normal")

    def matrix(rows: np.ndarray) -> list[list[Counted]]:
        return [[Counted(x) for x in row] for row in rows]

    def dot(x: list[Counted], y: list[Counted]) -> Counted:
        return Counted(sum(a * b for a, b in zip(x, y, strict=True)))

    queries, keys = matrix(q[0, 0]), matrix(k[0, 0])
    p = {each: x[0] for each, x in parameters(name, d, d, a, 1).items()}
    Counted.done, sums = 0, 0
    match name:
        case "general":
            columns = matrix(p["w"].T)
            queries = [[dot(row, column) for column in columns] for row in queries]
        case "additive":
            queries = [[dot(row, each) for each in matrix(p["w_q"])] for row in queries]
            keys = [[dot(row, each) for each in matrix(p["w_k"])] for row in keys]
    for query in queries:
        for key in keys:
            if name in ("dot", "general"):
                dot(query, key)
                continue
            hidden = [Counted(x + y) for x, y in zip(query, key, strict=True)]
            sums += a * (name == "additive")
            if name == "concat":
                hidden = [dot(query + key, row) for row in matrix(p["w"])]
            dot([Counted(math.tanh(x)) for x in hidden], matrix(p["v_a"][None])[0])
    found = cost(name, Sizes(2, 3, n, m, d, d, a))
    assert found.multiply_adds == 6 * (Counted.done + sums)
    assert found.functions == (6 * n * m * a if name in ("additive", "concat") else 0)
    # What is not of matrix products: v·tanh of concat, and of additive the sum of both parts too.
    beside = {"additive": 2, "concat": 1}.get(name, 0)
    assert found.multiply_adds - found.in_products == 6 * n * m * a * beside
    half = cost(name, Sizes(2, 3, n, m, d, d, a), pairs=3 * n * m)
    assert half.functions == found.functions / 2


def test_additive_takes_about_twice_the_operations_of_dot_and_a_tanh_for_each() -> None:
    sizes = Sizes(1, 8, 512, 512, 64, 64, 64)
    dot, additive, concat = (cost(name, sizes) for name in ("dot", "additive", "concat"))
    assert dot == Cost(8 * 512 * 512 * 64, in_products=8 * 512 * 512 * 64)
    assert additive.in_products == 8 * (512 + 512) * 64 * 64
    assert 2 < additive.multiply_adds / dot.multiply_adds < 2.3
    assert additive.functions == concat.functions == dot.multiply_adds
    assert concat.multiply_adds > 60 * additive.multiply_adds / 2.3


@pytest.mark.parametrize(
    ("name", "q_shape", "k_shape", "given_parameters", "words"),
    [
        ("dot", (1, 1, 2, 3), (1, 1, 2, 4), {}, ["3 and 4", "project"]),
        ("dot", (1, 3, 2, 4), (1, 2, 2, 4), {}, ["3 query heads", "2 key heads"]),
        ("dot", (1, 1, 2, 4), (1, 1, 2, 4), {"w": (1, 4, 4)}, ["takes no parameters", "got w"]),
        ("general", (1, 1, 2, 4), (1, 1, 2, 4), {}, ["takes w", "got none"]),
        ("general", (1, 2, 2, 4), (1, 2, 2, 5), {"w": (3, 4, 5)}, ["[1, 4, 5]", "[2, 4, 5]", "[3, 4, 5]"]),
        ("additive", (1, 1, 2, 4), (1, 1, 2, 5), {"w_q": (1, 6, 4), "w_k": (1, 6, 4), "v_a": (1, 6)},
         ["w_k of additive", "[1, 6, 5]", "not [1, 6, 4]"]),
        ("euclidean", (1, 1, 2, 4), (1, 1, 2, 4), {}, ["one of additive, dot", "'euclidean'"]),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_explained(
    name: str,
    q_shape: tuple[int, ...],
    k_shape: tuple[int, ...],
    given_parameters: dict[str, tuple[int, ...]],
    words: list[str],
) -> None:
    made = {each: np.zeros(shape) for each, shape in given_parameters.items()}
    with pytest.raises(ValueError, match=re.escape(words[0])) as caught:
        score(name, np.zeros(q_shape), np.zeros(k_shape), made)
    assert all(word in str(caught.value) for word in words), caught.value
