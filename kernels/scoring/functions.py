"""How well a key fits a query: the scores of the field, before the softmax. For each pair of the two

    additive     v · tanh(W_q q + W_k k)      Bahdanau, Cho & Bengio 2015, ICLR, arXiv 1409.0473, §A.1.2
    dot          q · k                        Luong, Pham & Manning 2015, EMNLP, arXiv 1508.04025, §3.1
    scaled_dot   q · k / √d                   Vaswani et al. 2017, NeurIPS, arXiv 1706.03762, §3.2.1
    general      q · W k                      Luong et al. 2015: bilinear, and so as linear in q as in k
    concat       v · tanh(W [q; k])           Luong et al. 2015
    cosine       β · q·k / (‖q‖ ‖k‖)          Graves, Wayne & Danihelka 2014, *Neural Turing Machines*, arXiv
                                              1410.5401, eq. 5 and 6, where β is the key strength

``concat`` is ``additive``: W [q; k] = W_q q + W_k k where W = [W_q W_k]. Here each is computed as it is
written, concat pair by pair, which is what tells them apart: not the result but the work.

A cosine forgets how long vectors are and stays within ±β, so that with β = 1 no key of many gets much: at
most 1 / (1 + (m − 1) e⁻²) of the weight, from its score of 1 beside m − 1 others of −1. The cosine with a
vector of zeros, which has no direction, is 0 here.

Shapes: q [b, h, n, d_q], k [b, h_kv, m, d_k] → scores [b, h, n, m] float64. The parameters are shared by all
heads or there is one for each: w_q [1 or h, a, d_q], w_k [1 or h, a, d_k], v_a [1 or h, a]; W of general
[1 or h, d_q, d_k]; W of concat [1 or h, a, d_q + d_k]. All but these want d_q = d_k. ValueError where shapes
do not fit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from kernels.arrays import Array

Parameters = Mapping[str, Array]


def additive(q: Array, k: Array, w_q: Array, w_k: Array, v_a: Array) -> Array:
    """v · tanh(W_q q + W_k k); what belongs to a query or a key alone is computed once for it."""
    a_q, a_k = _projected(q, w_q), for_query_heads(_projected(k, w_k, q.shape[1]), q.shape[1])
    hidden = (a_q[:, :, i, None] + a_k for i in range(q.shape[2]))
    return _from_hidden(hidden, q, k, v_a)


def concat(q: Array, k: Array, w: Array, v_a: Array) -> Array:
    """v · tanh(W [q; k]), pair by pair."""
    k, hidden_rows = for_query_heads(k, q.shape[1]), np.swapaxes(w, -1, -2)

    def hidden() -> Iterator[Array]:
        for i in range(q.shape[2]):
            repeated = np.broadcast_to(q[:, :, i, None], (*k.shape[:3], q.shape[3]))
            yield np.concatenate([repeated, k], axis=3) @ hidden_rows

    return _from_hidden(hidden(), q, k, v_a)


def _from_hidden(hidden: Iterator[Array], q: Array, k: Array, v_a: Array) -> Array:
    """v · tanh(·) of [b, h, m, a] for each query in turn: [b, h, n, m]."""
    scores = np.empty((*q.shape[:3], k.shape[2]))
    for i, of_query in enumerate(hidden):
        scores[:, :, i] = (np.tanh(of_query) @ v_a[:, :, None])[..., 0]
    return scores


def dot(q: Array, k: Array) -> Array:
    """q · k."""
    return np.asarray(q @ np.swapaxes(for_query_heads(k, q.shape[1]), -1, -2))


def scaled_dot(q: Array, k: Array) -> Array:
    """q · k / √d: with elements of variance 1, the variance of q · k is d, and this has 1."""
    return dot(q, k) / math.sqrt(max(q.shape[3], 1))


def general(q: Array, k: Array, w: Array) -> Array:
    """q · W k; the queries are projected, then met with the keys as they are."""
    return dot(q @ w, k)


def cosine(q: Array, k: Array, beta: float = 1.0) -> Array:
    """β · cos of the angle between q and k; 0 where either is 0."""
    return beta * dot(directions(q), directions(k))


def directions(x: Array) -> Array:
    """x / ‖x‖ along the last axis; the largest element is taken out first, so that no square overflows."""
    largest = np.max(np.abs(x), axis=-1, keepdims=True, initial=0.0)
    scaled = x / np.where(largest == 0.0, 1.0, largest)
    norm = np.sqrt(np.sum(np.square(scaled), axis=-1, keepdims=True))
    return np.asarray(scaled / np.where(norm == 0.0, 1.0, norm))


def _projected(x: Array, w: Array, heads: int | None = None) -> Array:
    """W x: [b, h, len, d] by [1 or h, a, d] → [b, h, len, a]; x gets ``heads`` first where each has its W."""
    if heads is not None and len(w) > 1:
        x = for_query_heads(x, heads)
    return np.asarray(x @ np.swapaxes(w, -1, -2))


def for_query_heads(x: Array, heads: int) -> Array:
    """[b, h_kv, len, d] → [b, heads, len, d]: consecutive query heads share a key head."""
    return x if x.shape[1] == heads else np.repeat(x, heads // x.shape[1], axis=1)


# -- by name -------------------------------------------------------------------------------------------------

_FUNCTIONS: dict[str, Callable[..., Array]] = {
    "additive": additive,
    "dot": dot,
    "scaled_dot": scaled_dot,
    "general": general,
    "concat": concat,
    "cosine": cosine,
}
SCORES = tuple(_FUNCTIONS)


def parameter_shapes(name: str, d_q: int, d_k: int, hidden: int) -> dict[str, tuple[int, ...]]:
    """Of one head, in the order in which the function takes them; ``hidden`` is a.

    ValueError for a name that is not of ``SCORES``.
    """
    if name not in SCORES:
        raise ValueError(f"a score is one of {', '.join(SCORES)}, not {name!r}")
    shapes: dict[str, dict[str, tuple[int, ...]]] = {
        "additive": {"w_q": (hidden, d_q), "w_k": (hidden, d_k), "v_a": (hidden,)},
        "general": {"w": (d_q, d_k)},
        "concat": {"w": (hidden, d_q + d_k), "v_a": (hidden,)},
    }
    return shapes.get(name, {})


def score(name: str, q: Array, k: Array, parameters: Parameters, *, beta: float = 1.0) -> Array:
    """The scores of one of ``SCORES``; ``beta`` is for cosine alone."""
    hidden = parameters["v_a"].shape[-1] if "v_a" in parameters else 0
    wanted = parameter_shapes(name, q.shape[3], k.shape[3], hidden)
    _check(name, q, k, parameters, wanted)
    given = (parameters[each] for each in wanted)
    options = {"beta": beta} if name == "cosine" else {}
    return _FUNCTIONS[name](q, k, *given, **options)


def _check(
    name: str, q: Array, k: Array, parameters: Parameters, wanted: Mapping[str, tuple[int, ...]]
) -> None:
    """ValueError where something does not fit, is missing or is not used."""
    if not wanted and q.shape[3] != k.shape[3]:
        raise ValueError(
            f"{name} needs q and k of one width, not {q.shape[3]} and {k.shape[3]}: project one of them, or "
            "use additive, general or concat"
        )
    if q.shape[1] != k.shape[1] and (k.shape[1] == 0 or q.shape[1] % k.shape[1]):
        raise ValueError(f"{q.shape[1]} query heads are no multiple of {k.shape[1]} key heads")
    if parameters.keys() != wanted.keys():
        listed = ", ".join(wanted) or "no parameters"
        raise ValueError(f"{name} takes {listed}, and got {', '.join(parameters) or 'none'}")
    for each, shape in wanted.items():
        if parameters[each].shape[1:] != shape or parameters[each].shape[0] not in (1, q.shape[1]):
            axes = ", ".join(map(str, shape))
            raise ValueError(
                f"{each} of {name} must be [1, {axes}], or [{q.shape[1]}, {axes}] with one for each head, "
                f"not {list(parameters[each].shape)}"
            )
