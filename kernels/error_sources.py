"""Where the error of an output comes from: of one head, split into parts that add up to it exactly.

With P and v the weights and values in float64 on the inputs as they were sent, P̄ and v̄ the same on the inputs
as a dtype rounds them, o = Pv and ō = P̄v̄, and x what an engine returned,

    x − o  =  (P̄ − P)v          rounding of q and k, which moves the weights
            + P̄(v̄ − v)          rounding of v
            + (round(ō) − ō)    rounding of what is stored: the least that any engine errs by
            + (x − round(ō))    the computation

Each has a bound. Let u be the unit roundoff of the dtype, and η what it loses below its range
(``bounds.vanishing``). Rounding moves a query by ‖δq‖ ≤ u‖q‖ + η√d, a key likewise, RoPE turns both without
changing their lengths (but for its attention factor, a small number times η), and so a logit moves by

    |δs| ≤ |scale|·(‖δq‖‖k‖ + ‖q‖‖δk‖ + ‖δq‖‖δk‖) ≤ ε,          ε the largest among the keys of a row.

A softcap makes it no larger. Each weight is then multiplied by something between e^−2ε and e^2ε, and with σ²
the variance of the values under the weights (a sink is one more key, whose value is 0),

    |(P̄ − P)v| ≤ (e^2ε − 1)·σ,                 and never more than twice the largest |v_j|;
    |P̄(v̄ − v)| ≤ e^2ε·Σ P_j (u|v_j| + η),       and never more than the largest u|v_j| + η.

The bound of what is stored is u|ō| + η; that of the computation is the one of ``kernels.bounds`` and this.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from kernels import closeup
from kernels.arrays import Array, generate, largest, round_to_dtype
from kernels.bounds import UNIT_ROUNDOFF, Bounds, vanishing
from kernels.engines.reference import Head
from kernels.operands import Operands
from kernels.spec.model import RunSpec
from kernels.spec.values import ROUNDED

FACTOR = 4.0  # times η: more than any attention factor of RoPE
SMALLEST_NORMAL = {"float16": 2.0**-14, "bfloat16": 2.0**-126, "float32": 2.0**-126, "float64": 2.0**-1022}
PARTS = ("qk", "v", "stored", "computation")
WORST = 5  # cells that are listed
CANCELS, LARGE_LOGIT = 8.0, 11.0  # Σ P|v| beyond so many times |o|; float16 keeps a logit of 11 to 0.004
OUTLIER = 8.0  # times: how much larger values are in a dimension than in a typical one


@dataclass(frozen=True)
class Part:
    """One part of the error of a head, at its worst."""

    largest: float
    row: int
    column: int
    bound: float  # there
    root_mean_square: float


@dataclass(frozen=True)
class Cell:
    """One number of the output whose error is large, and what is special about it."""

    row: int
    column: int
    exact: float
    returned: float
    parts: dict[str, float]
    largest_logit: float  # in size, of the keys that its query sees
    moved: float  # ε: how far the rounding of inputs may have moved a logit of this query
    cancellation: float  # Σ P|v| over |o|; infinite where o is 0
    largest_value: float  # |v| of its dimension, of the keys that its query sees
    outlier: float  # the same over that of the median dimension; infinite where that is 0
    largest_score: float  # |q·k| before the scale: what a program keeps that scales afterwards
    vanished: int  # keys that are seen, and whose weight the dtype rounds to 0
    subnormal: int  # inputs of this cell that are below the normal numbers of the dtype


@dataclass(frozen=True)
class Split:
    """The errors of one head's output."""

    dtype: str
    parts: dict[str, Part]
    total: Part
    worst: list[Cell]
    overflowed: int  # numbers that are not finite, though in float64 they are


def as_sent(spec: RunSpec, submitted: Mapping[str, Array], rounded: Mapping[str, Array]) -> dict[str, Array]:
    """Every input before it was rounded to the dtype, float64; ``rounded``: as the engine saw them."""
    found = {}
    for name, array in rounded.items():
        given = spec.inputs[name]
        if name not in ROUNDED:
            found[name] = array
        elif given.seed is not None:
            found[name] = generate(name, given.seed, given.shape, given.distribution or "normal", "float64")
        else:
            found[name] = submitted[name].astype(np.float64)
    return found


def split(spec: RunSpec, exact: Operands, rounded: Operands, returned: Array) -> Split:
    """``exact`` and ``rounded``: ``closeup.one_head`` of the same head; ``returned`` [n, e]."""
    bounds = Bounds(spec, rounded, None)
    found: dict[str, list[Array]] = {}
    for start, head in closeup.strips(rounded):
        before = closeup.rows(exact, start, start + len(head.q))
        for name, array in _strip(spec, bounds, before, head, returned[start : start + len(head.q)]).items():
            found.setdefault(name, []).append(array)
    whole = {name: np.concatenate(arrays) for name, arrays in found.items()}
    if not whole or not whole["total"].size:
        nothing = Part(0.0, 0, 0, 0.0, 0.0)
        return Split(spec.dtype, dict.fromkeys(PARTS, nothing), nothing, [], 0)
    lost = np.isfinite(whole["exact"]) & ~np.isfinite(whole["returned"])
    return Split(
        spec.dtype,
        {name: _part(whole[name], whole[f"{name} bound"]) for name in PARTS},
        _part(whole["total"], sum((whole[f"{name} bound"] for name in PARTS), np.zeros(()))),
        [_cell(spec, exact, rounded, whole, int(at)) for at in _largest(whole["total"])],
        int(np.count_nonzero(lost)),
    )


def _strip(spec: RunSpec, bounds: Bounds, before: Head, head: Head, returned: Array) -> dict[str, Array]:
    u, eta = UNIT_ROUNDOFF[spec.dtype], vanishing(spec.dtype)
    exact, rounded, returned = before.results["out"], head.results["out"], returned.astype(np.float64)
    nearest = round_to_dtype(rounded, spec.dtype).astype(np.float64)
    stored = u * np.abs(rounded) + eta
    with np.errstate(invalid="ignore", over="ignore"):
        return {
            "exact": exact,
            "returned": returned,
            "qk": (head.results["weights"] - before.results["weights"]) @ before.v,
            "v": head.results["weights"] @ (head.v - before.v),
            "stored": nearest - rounded,
            "computation": returned - nearest,
            "total": returned - exact,
            **input_bounds(before, abs(bounds.given.scale), u, eta),
            "stored bound": stored,
            "computation bound": bounds.of(head)["out"] + stored,
        }


def logit_moves(head: Head, scale: float, u: float, eta: float) -> Array:
    """ε [n]: how far rounding q and k may move a logit that the query sees; 0 where it sees none."""
    queries, keys = (np.sqrt(np.einsum("ij,ij->i", x, x)) for x in (head.q, head.k))
    lost = FACTOR * eta * math.sqrt(head.q.shape[1])
    off_q, off_k = u * queries + lost, u * keys + lost
    seen = ~np.isneginf(head.results["masked_scores"])

    def most(of_keys: Array) -> Array:
        return np.asarray(np.max(np.where(seen, of_keys[None], 0.0), axis=1, initial=0.0))

    return np.asarray(scale * (off_q * most(keys + off_k) + queries * most(off_k)))


def input_bounds(head: Head, scale: float, u: float, eta: float) -> dict[str, Array]:
    """[n, e]: how far rounding q and k, and rounding v, may move the output of a head of numbers as sent."""
    weights, out = head.results["weights"], head.results["out"]
    moved = np.minimum(2 * logit_moves(head, scale, u, eta), 600.0)[:, None]
    square = weights @ np.square(head.v)
    # The variance is a difference: what its own rounding leaves of it is added.
    sigma = np.sqrt(np.maximum(square - np.square(out), 0.0) + 2.0**-45 * square)
    values = u * (weights @ np.abs(head.v)) + eta * weights.sum(axis=1, keepdims=True)
    most = np.abs(head.v).max(axis=0, initial=0.0)
    return {
        "qk bound": np.minimum(np.expm1(moved) * sigma, 2 * most),
        "v bound": np.minimum(np.exp(moved) * values, u * most + eta),
    }


def _part(errors: Array, bounds: Array) -> Part:
    sizes = np.where(np.isnan(errors), np.inf, np.abs(errors))
    at = int(sizes.argmax())
    row, column = divmod(at, errors.shape[1])
    finite = sizes[np.isfinite(sizes)]
    mean = float(np.sqrt(np.mean(np.square(finite)))) if finite.size else math.inf
    return Part(float(sizes.flat[at]), row, column, float(bounds[row, column]), mean)


def _largest(errors: Array) -> Array:
    """Where the errors are largest, one of each row: neighbours of a row have the same cause."""
    sizes = np.where(np.isnan(errors), np.inf, np.abs(errors))
    columns = sizes.argmax(axis=1)
    worst = np.argsort(-sizes[np.arange(len(sizes)), columns], kind="stable")[:WORST]
    return np.asarray(worst * errors.shape[1] + columns[worst])


def _cell(spec: RunSpec, exact: Operands, rounded: Operands, whole: Mapping[str, Array], at: int) -> Cell:
    row, column = divmod(at, whole["total"].shape[1])
    head = closeup.rows(exact, row, row + 1)
    after = closeup.rows(rounded, row, row + 1)
    u, eta = UNIT_ROUNDOFF[spec.dtype], vanishing(spec.dtype)
    masked, weights = head.results["masked_scores"][0], head.results["weights"][0]
    seen = np.isfinite(masked)
    out = float(head.results["out"][0, column])
    sizes = float(weights @ np.abs(head.v[:, column]))
    normal = SMALLEST_NORMAL[spec.dtype]
    inputs = (head.q[0], head.k[seen], head.v[seen, column])
    largest_values = np.abs(head.v[seen]).max(axis=0, initial=0.0)
    largest_value, typical = float(largest_values[column]), float(np.median(largest_values))
    with np.errstate(over="ignore", invalid="ignore"):
        products = np.abs(after.q[0] @ after.k[seen].T)
        kept = round_to_dtype(weights[seen], spec.dtype)
    return Cell(
        row,
        column,
        out,
        float(whole["returned"][row, column]),
        {name: float(whole[name][row, column]) for name in PARTS},
        float(np.max(np.abs(masked[seen]), initial=0.0)),
        float(logit_moves(head, abs(exact.scale), u, eta)[0]),
        sizes / abs(out) if out else (math.inf if sizes else 1.0),
        largest_value,
        largest_value / typical if typical else (math.inf if largest_value else 1.0),
        float(np.max(products, initial=0.0)),
        int(np.count_nonzero(kept == 0)),
        sum(int(np.count_nonzero((x != 0) & (np.abs(x) < normal))) for x in inputs),
    )


def spacing(value: float, dtype: str) -> float:
    """How far apart neighbouring numbers of the dtype are at the size of value, which is finite."""
    size = max(abs(value), SMALLEST_NORMAL[dtype])
    return math.ldexp(2 * UNIT_ROUNDOFF[dtype], math.frexp(size)[1] - 1)


def overflows(cell: Cell, dtype: str) -> bool:
    """Whether q·k is beyond the largest number of the dtype: our engines keep it in float32, not all do."""
    return cell.largest_score > largest(dtype)
