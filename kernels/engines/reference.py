"""The reference: the equations of attention and of its gradients in numpy, double precision.

Independent of torch and of Triton, one head at a time, every intermediate kept, no trick that is not in the
equations. Forward:

    scores            = scale · Q Kᵀ
    softcapped_scores = c · tanh(scores / c)                       where a softcap c is set
    masked_scores     = softcapped + slope · (key pos − query pos) + bias,  −∞ where forbidden
    lse               = ln(Σ_j exp(masked_scores_j) + exp(sink))
    P = weights       = exp(masked_scores) / (Σ_j exp(masked_scores_j) + exp(sink))
    out               = P V

Backward, from dO, the gradient of a loss with respect to out:

    dV       = Pᵀ dO
    dP       = dO Vᵀ
    dmasked  = P ∘ (dP − Δ)                   Δ_i = Σ_j P_ij dP_ij
    dscores  = dmasked ∘ (1 − tanh²(scores / c))
    dQ       = scale · dscores K
    dK       = scale · dscoresᵀ Q

Δ is there because the weights of a row share one denominator: ∂P_j/∂s_l = P_j (δ_jl − P_l). A sink is in that
denominator through P and adds nothing else, for it has no value; ALiBi and bias are constants, and their
gradients are nobody's. Query heads that share a key head add their dK and dV.

What lies beyond ``q_lens`` and ``kv_lens`` is cut off before anything is computed; results are 0 there, the
LSE and the masked scores −∞.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from kernels.arrays import Array
from kernels.engines import Prepared
from kernels.operands import Operands, input_gradient, operands, zero_beyond
from kernels.spec.model import RunSpec
from kernels.spec.results import GRADIENTS, MATRICES, PRESENT


@dataclass(frozen=True)
class Head:
    """One head of one batch row, cut to its lengths: n queries, m keys. All float64."""

    b: int
    h: int  # query head
    kv: int  # the key head it reads
    q: Array  # [n, d]
    k: Array  # [m, d]
    v: Array  # [m, e]
    alibi: Array | float  # [n, m], or 0
    bias: Array | float  # [n, m], or 0
    allowed: Array | bool  # [n, m], or True
    sink: float
    results: dict[str, Array]


def attend(
    q: Array,
    k: Array,
    v: Array,
    *,
    scale: float,
    softcap: float = 0.0,
    bias: Array | float = 0.0,
    allowed: Array | bool = True,
    sink: float = -np.inf,
) -> dict[str, Array]:
    """One head: q [n, d], k [m, d], v [m, e] float64 → out [n, e], lse [n] and the four matrices [n, m]."""
    scores = scale * (q @ k.T)
    softcapped = softcap * np.tanh(scores / softcap) if softcap else scores
    masked = np.where(allowed, softcapped + bias, -np.inf)
    weights, lse = _softmax(masked, sink)
    return {
        "out": weights @ v,
        "lse": lse,
        "scores": scores,
        "softcapped_scores": softcapped,
        "masked_scores": masked,
        "weights": weights,
    }


def _softmax(masked: Array, sink: float) -> tuple[Array, Array]:
    """Weights [n, m] and LSE [n], the largest logit of each row taken out of the exponentials.

    Neither do they overflow then, nor is the sum lost: exp(masked − lse) would forget ln Σ beside an LSE of
    10¹⁷. A row that sees nothing has weights 0 and LSE −∞.
    """
    largest = np.max(masked, axis=1, initial=sink)
    finite = np.where(np.isneginf(largest), 0.0, largest)
    exponentials = np.exp(masked - finite[:, None])
    total = exponentials.sum(axis=1) + np.exp(sink - finite)
    with np.errstate(divide="ignore"):
        lse = np.where(total == 0.0, -np.inf, np.log(total) + finite)
    return exponentials / np.where(total == 0.0, 1.0, total)[:, None], np.asarray(lse)


def differentiate(
    head: Mapping[str, Array], q: Array, k: Array, v: Array, dout: Array, *, scale: float, softcap: float
) -> dict[str, Array]:
    """The gradients of one head, from what ``attend`` gave and dout [n, e]; dmasked and dscores too."""
    weights = head["weights"]
    dweights = dout @ v.T
    delta = (weights * dweights).sum(axis=1, keepdims=True)
    dmasked = weights * (dweights - delta)
    dscores = dmasked * (1.0 - np.square(head["softcapped_scores"] / softcap)) if softcap else dmasked
    return {
        "dq": scale * (dscores @ k),
        "dk": scale * (dscores.T @ q),
        "dv": weights.T @ dout,
        "dmasked": dmasked,
        "dscores": dscores,
    }


def reference(
    spec: RunSpec,
    arrays: Mapping[str, Array],
    wanted: tuple[str, ...],
    checkpoint: Callable[[], None] = lambda: None,
    *,
    observe: Callable[[Head], None] = lambda head: None,
    given: Operands | None = None,
) -> dict[str, Array]:
    """All heads of a spec: canonical arrays in, the ``wanted`` results out, float64.

    ``checkpoint`` is called between heads; it may raise to stop. ``observe`` is shown every head. ``given``:
    the operands in float64, where they are made already.
    """
    if given is None:
        given = operands(spec, arrays, dtype=np.float64)
    results = {name: _unread(name, given) for name in wanted if name not in PRESENT}
    for head in heads(given, arrays["dout"] if GRADIENTS.keys() & set(wanted) else None):
        checkpoint()
        observe(head)
        n, m = len(head.q), len(head.k)
        for name, whole in results.items():
            if name in ("dk", "dv"):
                whole[head.b, head.kv, :m] += head.results[name]
            elif name in MATRICES:
                whole[head.b, head.h, :n, :m] = head.results[name]
            else:
                whole[head.b, head.h, :n] = head.results[name]
    for name in results.keys() & GRADIENTS:
        results[name] = input_gradient(spec, arrays, GRADIENTS[name], results[name])
    for name in PRESENT.keys() & set(wanted):
        results[name] = zero_beyond(getattr(given, PRESENT[name]), given.kv_lens)
    return results


def heads(given: Operands, dout: Array | None = None) -> Iterator[Head]:
    """Every head in turn, computed; with ``dout`` [b, h, n, e] its gradients too."""
    for b in range(given.q.shape[0]):
        n = given.q.shape[2] if given.q_lens is None else int(given.q_lens[b])
        m = given.k.shape[2] if given.kv_lens is None else int(given.kv_lens[b])
        distance = _distance(given, b)[:n, :m]
        in_window = _in_window(given, distance)
        for h in range(given.q.shape[1]):
            kv = h // given.group
            q, k, v = given.q[b, h, :n], given.k[b, kv, :m], given.v[b, kv, :m]
            alibi = _part(given.slopes, b, h) * distance if given.slopes is not None else 0.0
            bias = _part(given.bias, b, h)[:n, :m].astype(np.float64) if given.bias is not None else 0.0
            allowed = in_window
            if given.mask is not None:
                allowed = in_window & _part(given.mask, b, h)[:n, :m]
            sink = float(given.sinks[h]) if given.sinks is not None else -np.inf
            with np.errstate(over="ignore", invalid="ignore"):
                results = attend(
                    q, k, v, scale=given.scale, softcap=given.softcap, bias=alibi + bias, allowed=allowed,
                    sink=sink,
                )  # fmt: skip
                if dout is not None:
                    results |= differentiate(
                        results, q, k, v, dout[b, h, :n].astype(np.float64), scale=given.scale,
                        softcap=given.softcap,
                    )  # fmt: skip
            yield Head(b, h, kv, q, k, v, alibi, bias, allowed, sink, results)


def _unread(name: str, given: Operands) -> Array:
    """A result as it is where nothing is computed."""
    (batch, count, n, _), m = given.q.shape, given.k.shape[2]
    shape = {
        "out": (batch, count, n, given.v.shape[3]),
        "lse": (batch, count, n),
        **dict.fromkeys(MATRICES, (batch, count, n, m)),
        "dq": given.q.shape,
        "dk": given.k.shape,
        "dv": given.v.shape,
    }[name]
    return np.full(shape, -np.inf if name in ("lse", "masked_scores") else 0.0)


def _part(given: Array, b: int, h: int) -> Array:
    """Row b and head h of an array whose first two axes are batch and heads, or 1 for all."""
    return np.asarray(given[b % len(given), h % given.shape[1]])


def _distance(given: Operands, b: int) -> Array:
    """[n, m] key position − query position of batch row b; a view of one 0 where nothing depends on it."""
    if given.left is None and given.right is None and given.slopes is None:
        return np.broadcast_to(0, (given.q.shape[2], given.k.shape[2]))
    queries, keys = (x[b % len(x)] for x in (given.q_positions, given.kv_positions))
    return np.asarray(keys[None, :] - queries[:, None])


def _in_window(given: Operands, distance: Array) -> Array | bool:
    """Which key each query may see by causality and window."""
    if given.left is None and given.right is None:
        return True
    seen = np.ones(distance.shape, dtype=np.bool_)
    if given.left is not None:
        seen &= distance >= -given.left
    if given.right is not None:
        seen &= distance <= given.right
    return seen


def prepare(spec: RunSpec, arrays: Mapping[str, Array], device: str) -> Prepared:
    """As an engine: the results themselves, in float64."""
    del device  # numpy computes on the host

    def compute() -> Mapping[str, Any]:
        return reference(spec, arrays, tuple(dict.fromkeys(("out", *spec.returns))))

    return Prepared(compute, dict)
