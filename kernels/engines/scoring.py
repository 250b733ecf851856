"""Engine ``scoring``: from a spec to attention by a score (``kernels.scoring``), and how right it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from kernels.arrays import Array
from kernels.engines import Checkpoint, Kernels, Place, Prepared
from kernels.engines.tensors import TORCH_DTYPES, to_numpy
from kernels.flash.arguments import terms
from kernels.flash.device import Memory, compilable, require_triton, working_dtype
from kernels.flash.logits import Terms
from kernels.operands import Operands, operands
from kernels.registry import option
from kernels.scoring import bounds, launch
from kernels.scoring.arguments import MATRICES, Bound, written
from kernels.scoring.costs import Cost, Sizes, cost
from kernels.scoring.inputs import SCORE_INPUTS, SPAN_INPUTS, Scoring
from kernels.scoring.launch import KERNEL_VERSION
from kernels.scoring.pricing import tiling_of
from kernels.scoring.rules import factor, half_width
from kernels.spec.model import RunSpec
from kernels.tuning import Tiling

__all__ = ["KERNEL_VERSION", "expected", "kernels_of", "prepare"]

BY_KERNELS = ("kept_weight", *MATRICES)  # what they write if they are asked to


def prepare(spec: RunSpec, arrays: Mapping[str, Array], device: str) -> Prepared:
    """Move the inputs to ``device`` and bind them; raises CannotRunError where no kernel can run."""
    require_triton(device, spec.engine)
    place, (dtype, notes) = Memory(device), working_dtype(spec)
    given, masks = scoring(spec, arrays), operands(spec, arrays, dtype=np.float32)
    tiling = tiling_of(replace(spec, dtype=dtype), interpreted=place.target is None)
    logit_terms = _terms(masks, tiling, place)
    tensors: dict[str, Any] = {name: place(getattr(given, name), dtype) for name in "qkv"}
    tensors["parameters"] = {name: place(array, dtype) for name, array in given.parameters.items()}
    bound = replace(given, **tensors)

    def compute() -> Mapping[str, Any]:
        found = launch.attend(bound, logit_terms, tiling, _wanted(spec))
        found["out"] = found["out"].to(TORCH_DTYPES[spec.dtype])
        return found

    def collect(raw: Mapping[str, Any]) -> dict[str, Array]:
        names = dict.fromkeys(("out", *spec.returns))
        results = to_numpy({name: raw[name] for name in names if name in raw})
        if "centres" in names:
            results["centres"] = _centres(spec, raw).astype(np.float32)
        return results

    def findings(raw: Mapping[str, Any], checkpoint: Checkpoint) -> dict[str, Any]:
        return _findings(spec, given, scored_pairs(spec, given, masks, _centres(spec, raw), checkpoint))

    return Prepared(compute, collect, notes, findings)


def kernels_of(spec: RunSpec, arrays: Mapping[str, Array], place: Place) -> Kernels:
    """See ``kernels.engines``: the attention, the matrices, and what is made of queries and keys before."""
    given, masks = scoring(spec, arrays), operands(spec, arrays, dtype=np.float32)
    interpreted = place.target is None
    tiling, wanted = tiling_of(spec, interpreted=interpreted), _wanted(spec)
    at = {name: place(getattr(given, name), spec.dtype) for name in "qkv"}
    at |= {name: place(array, spec.dtype) for name, array in given.parameters.items()}
    at |= {name: place(given.q, one.dtype or spec.dtype) for name, one in written(given, wanted).items()}
    launches = list(
        Bound(given, at, _terms(masks, tiling, place), tiling, spec.dtype, wanted, interpreted).launches()
    )
    first = next(one for one in launches if one.name == "scored_forward")
    yield from compilable([first, *(one for one in launches if one is not first)])


def expected(
    spec: RunSpec, arrays: Mapping[str, Array], wanted: tuple[str, ...], checkpoint: Checkpoint
) -> tuple[dict[str, Array], dict[str, float]]:
    """The ``wanted`` results in float64, and how far from them rounding may take a kernel's, head by head."""
    given, masks = scoring(spec, arrays), operands(spec, arrays, dtype=np.float64)
    (batch, heads, n, _), (m, e) = given.q.shape, given.v.shape[2:]
    shapes = {"out": (n, e), **dict.fromkeys(MATRICES, (n, m))}
    results = {name: np.zeros((batch, heads, *shapes.get(name, (n,)))) for name in wanted}
    largest = dict.fromkeys(wanted, 0.0)
    for b, h in np.ndindex(batch, heads):
        checkpoint()
        head = bounds.head_of(given, b, h)
        scores = bounds.scores(head, spec.dtype, checkpoint)
        found = bounds.attend(
            head, scores, dtype=spec.dtype, bias=_bias(masks, b, h), allowed=_allowed(masks, b, h)
        )
        for name, off in bounds.most({name: found.bounds[name] for name in wanted}).items():
            results[name][b, h] = found.results[name]
            largest[name] = max(largest[name], off)
    return results, largest


def scoring(spec: RunSpec, arrays: Mapping[str, Array]) -> Scoring:
    """What a spec asks for, in arrays."""
    score, span = option(spec, "score"), option(spec, "span")
    parameters = {name: arrays[name][0] for name in (*SCORE_INPUTS[score], *SPAN_INPUTS[span])}
    vectors = {name: array[..., 0] for name, array in parameters.items() if name in ("v_a", "v_p")}
    return Scoring(
        score,
        arrays["q"],
        arrays["k"],
        arrays["v"],
        parameters | vectors,
        factor=factor(spec),
        span=span,
        half_width=half_width(spec),
    )


def _wanted(spec: RunSpec) -> tuple[str, ...]:
    return ("out", "lse", *(name for name in BY_KERNELS if name in spec.returns))


def _terms(masks: Operands, tiling: Tiling, place: Place) -> Terms:
    """Masks alone: a factor is the score's business."""
    return terms(masks, tiling, place)._replace(scale=None)


# -- masks, of one head --------------------------------------------------------------------------------------


def _bias(masks: Operands, b: int, h: int) -> Array | float:
    """[n, m] to be added, or 0."""
    return 0.0 if masks.bias is None else _part(masks.bias, b, h).astype(np.float64)


def _allowed(masks: Operands, b: int, h: int) -> Array | bool:
    """[n, m] which pairs, or True."""
    allowed: Array | bool = True if masks.mask is None else _part(masks.mask, b, h)
    queries, keys = (x[b % len(x)] for x in (masks.q_positions, masks.kv_positions))
    if masks.left is not None:
        allowed = np.asarray((keys[None, :] >= queries[:, None] - masks.left) & allowed)
    if masks.right is not None:
        allowed = np.asarray((keys[None, :] <= queries[:, None] + masks.right) & allowed)
    return allowed


def _part(given: Array, b: int, h: int) -> Array:
    """Row b and head h of an array whose first two axes are batch and heads, or 1 for all."""
    return np.asarray(given[b % len(given), h % given.shape[1]])


# -- figures beside the arrays -------------------------------------------------------------------------------


def _centres(spec: RunSpec, raw: Mapping[str, Any]) -> Array:
    """[b, h, n] float64; of a global span too, where nobody looks at them."""
    if "centres" in raw:
        return np.asarray(raw["centres"].cpu().numpy())
    rows = (spec.batch, spec.num_heads, spec.q_len)
    return np.broadcast_to(np.arange(spec.q_len, dtype=np.float64), rows)


def scored_pairs(
    spec: RunSpec, given: Scoring, masks: Operands, centres: Array, checkpoint: Checkpoint
) -> int:
    """Pairs of query and key within windows and masks, in all heads. A bias of −∞ forbids as a mask does."""
    m, pairs = spec.kv_len, 0
    for b, h in np.ndindex(centres.shape[:2]):
        checkpoint()
        reach = bounds.reach(centres[b, h], given.half_width if given.span != "global" else np.inf, m)
        allowed, bias = _allowed(masks, b, h), _bias(masks, b, h)
        if isinstance(bias, np.ndarray):
            allowed = allowed & ~np.isneginf(bias)
        if isinstance(allowed, np.ndarray):
            pairs += int(np.count_nonzero(reach.holds(m) & allowed))
        else:
            pairs += int(reach.sizes().sum())
    return pairs


def _findings(spec: RunSpec, given: Scoring, pairs: int) -> dict[str, Any]:
    d, every = spec.head_dim, spec.batch * spec.num_heads * spec.q_len * spec.kv_len
    sizes = Sizes(spec.batch, spec.num_heads, spec.q_len, spec.kv_len, d, d, given.hidden)
    return {
        "pairs_scored": pairs,
        "share_scored": pairs / every if every else None,
        "score_cost": _cost(cost(given.score, sizes, pairs)),
        "scaled_dot_cost": _cost(cost("scaled_dot", sizes)),
    }


def _cost(found: Cost) -> dict[str, int]:
    return {
        "multiply_adds": found.multiply_adds,
        "in_matrix_products": found.in_products,
        "functions": found.functions,
    }
