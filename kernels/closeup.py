"""A close look at softmax attention: one head in float64, as pictures, and down to the arithmetic of a cell.

Nothing here needs torch or Triton: it is the reference, on the inputs that a run has kept, for whoever wants
to see a matrix that a kernel never holds. Queries do not depend on one another, so a head is looked at in
strips of rows, and what is kept of a strip is no larger than the picture.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from kernels.arrays import Array
from kernels.engines.reference import Head, heads
from kernels.layout import to_canonical
from kernels.operands import Operands, operands
from kernels.spec.model import RunSpec
from kernels.spec.results import MATRICES

STRIP = 1 << 20  # numbers of a matrix that are computed at a time


def look(spec: RunSpec, inputs: Mapping[str, Array]) -> Operands:
    """What every engine computes, from the inputs of a run as it has kept them (any rank): float64."""
    canonical = {name: to_canonical(spec, name, array) for name, array in inputs.items()}
    return operands(spec, canonical, dtype=np.float64)


def one_head(given: Operands, batch: int, head: int) -> Operands:
    """The operands of one query head of one batch row; both axes stay, with 1 each.

    Padding is cut off: n and m are the lengths of this row. Raises IndexError where there is no such head.
    """
    b, h, kv = batch, head, head // given.group
    if not (0 <= b < given.q.shape[0] and 0 <= h < given.q.shape[1]):
        raise IndexError(f"no head {h} of batch row {b} in {given.q.shape[:2]}")
    n = given.q.shape[2] if given.q_lens is None else int(given.q_lens[b])
    m = given.k.shape[2] if given.kv_lens is None else int(given.kv_lens[b])

    def of_pairs(array: Array | None) -> Array | None:
        return None if array is None else _broadcast(array, b, h, given)[:, :, :n, :m]

    return replace(
        given,
        q=given.q[b : b + 1, h : h + 1, :n],
        k=given.k[b : b + 1, kv : kv + 1, :m],
        v=given.v[b : b + 1, kv : kv + 1, :m],
        q_positions=given.q_positions[b % len(given.q_positions)][None, :n],
        kv_positions=given.kv_positions[b % len(given.kv_positions)][None, :m],
        slopes=None if given.slopes is None else given.slopes[b % len(given.slopes)][None, h : h + 1],
        sinks=None if given.sinks is None else given.sinks[h : h + 1],
        mask=of_pairs(given.mask),
        bias=of_pairs(given.bias),
        q_lens=None,
        kv_lens=None,
        latents=None,
    )


def alone(given: Operands) -> Operands:
    """A ``one_head`` with arrays of its own: who keeps it does not keep all the other heads."""
    return replace(
        given,
        q=given.q.copy(),
        k=given.k.copy(),
        v=given.v.copy(),
        mask=_own(given.mask),
        bias=_own(given.bias),
    )


def _own(array: Array | None) -> Array | None:
    """A copy of what there is, whatever it is broadcast to."""
    if array is None:
        return None
    there = array[tuple(slice(0, 1) if step == 0 else slice(None) for step in array.strides)]
    return np.broadcast_to(there.copy(), array.shape)


def _broadcast(array: Array, b: int, h: int, given: Operands) -> Array:
    """A mask or bias of all pairs as [1, 1, n, m] of one head: a view."""
    shape = (given.q.shape[2], given.k.shape[2])
    part = array[b % array.shape[0], h % array.shape[1]]
    return np.broadcast_to(part, shape)[None, None]


def rows(given: Operands, start: int, stop: int) -> Head:
    """Queries start … stop − 1 of a ``one_head``, with all that the reference makes of them."""
    cut = slice(start, stop)
    part = replace(
        given,
        q=given.q[:, :, cut],
        q_positions=given.q_positions[:, cut],
        mask=None if given.mask is None else given.mask[:, :, cut],
        bias=None if given.bias is None else given.bias[:, :, cut],
    )
    return next(heads(part))


def strips(given: Operands, multiple_of: int = 1) -> Iterator[tuple[int, Head]]:
    """The whole of ``one_head`` from top to bottom: (first query, rows). Every strip but the last has a
    multiple of so many queries."""
    n, m = given.q.shape[2], given.k.shape[2]
    height = max(1, STRIP // max(m * multiple_of, 1)) * multiple_of
    for start in range(0, n, height):
        yield start, rows(given, start, min(start + height, n))


# --- Pictures -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pictures:
    """Matrices [n, m] by name, each reduced to at most ``limit`` rows and columns by the maximum of its
    blocks, and what there is one number of for each query."""

    matrices: dict[str, Array]  # float64
    row_block: int
    column_block: int
    n: int
    m: int
    lse: Array  # [n]
    entropy: Array  # [n], of the weights, in nats
    seen: Array  # [n], how many keys each query may see
    out: Array  # [n, e]


def pictures(given: Operands, limit: int, names: tuple[str, ...] = MATRICES) -> Pictures:
    """The matrices of ``one_head``, small enough to be drawn, without ever holding one of them whole."""
    n, m = given.q.shape[2], given.k.shape[2]
    down, across = blocks((n, m), limit)
    found: dict[str, list[Array]] = {name: [] for name in names}
    lse, entropies, seen, out = [], [], [], []
    for _start, head in strips(given, down):
        for name in names:
            found[name].append(block_maximum(head.results[name], down, across))
        lse.append(head.results["lse"])
        entropies.append(entropy(head.results["weights"]))
        seen.append((~np.isneginf(head.results["masked_scores"])).sum(axis=1))
        out.append(head.results["out"])
    empty = np.zeros((0, math.ceil(m / across)))
    return Pictures(
        {name: np.concatenate(parts) if parts else empty for name, parts in found.items()},
        down,
        across,
        n,
        m,
        np.concatenate(lse) if lse else np.zeros(0),
        np.concatenate(entropies) if entropies else np.zeros(0),
        np.concatenate(seen) if seen else np.zeros(0, np.int64),
        np.concatenate(out) if out else np.zeros((0, given.v.shape[3])),
    )


def detail(given: Operands, part: tuple[slice, slice], names: tuple[str, ...] = MATRICES) -> dict[str, Array]:
    """Some rows and columns of the matrices [n, m] of ``one_head``, number by number."""
    queries, keys = part
    head = rows(given, queries.start, queries.stop)
    return {name: head.results[name][:, keys] for name in names}


def blocks(shape: tuple[int, ...], limit: int) -> tuple[int, int]:
    """How many rows and columns of a matrix a cell of a picture stands for, of at most ``limit`` each."""
    rows, columns = (max(1, math.ceil(size / limit)) for size in shape)
    return rows, columns


def block_maximum(values: Array, row_block: int, column_block: int) -> Array:
    """The largest value of each block of [rows, columns]; a NaN anywhere in a block shows, −inf only when
    it is all there is."""
    row_count, column_count = values.shape
    if row_block > 1:
        values = np.maximum.reduceat(values, range(0, row_count, row_block), axis=0)
    if column_block > 1:
        values = np.maximum.reduceat(values, range(0, column_count, column_block), axis=1)
    return values


def block_extreme(values: Array, row_block: int, column_block: int) -> Array:
    """The number of the largest size in each block of [rows, columns], with its sign: what ``block_maximum``
    is to numbers of both signs. Of two as large the positive one; a NaN anywhere in a block shows."""
    if row_block == column_block == 1:
        return values
    high = block_maximum(values, row_block, column_block)
    low = -block_maximum(-values, row_block, column_block)
    return np.where(high < -low, low, high)


def entropy(weights: Array) -> Array:
    """−Σ p ln p of each row of [n, m], in nats: 0 where one key has it all, ln m where all have the same.

    Rows of weights that sum to less than 1 (a sink took the rest) are taken as they are.
    """
    logarithms = np.log(weights, out=np.zeros_like(weights), where=weights > 0)
    return np.asarray(np.abs((weights * logarithms).sum(axis=1)))


# --- One cell -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cell:
    """Query i and key j of a head: every number between them, in float64."""

    query: int
    key: int
    query_position: int
    key_position: int
    q: Array  # [d]
    k: Array  # [d]
    v: Array  # [e]
    dot: float
    scale: float
    score: float  # scale · dot
    softcap: float  # 0: none
    softcapped: float
    alibi: float  # 0 without ALiBi
    bias: float  # 0 without a float mask
    is_allowed: bool
    masked: float  # −inf where forbidden
    sink: float  # −inf without one
    largest: float  # of the row, the sink included; −inf where the query sees nothing
    exponential: float  # exp(masked − largest)
    total: float  # of the row's exponentials, the sink's included
    lse: float
    weight: float
    out: Array  # [e], the whole row's


def cell(given: Operands, query: int, key: int) -> Cell:
    """The arithmetic of one pair of ``one_head``. Raises IndexError where there is no such pair."""
    n, m = given.q.shape[2], given.k.shape[2]
    if not (0 <= query < n and 0 <= key < m):
        raise IndexError(f"no query {query} and key {key} in {n} × {m}")
    head = rows(given, query, query + 1)
    row = {name: head.results[name][0] for name in (*MATRICES, "lse", "out")}
    largest = float(np.max(row["masked_scores"], initial=head.sink))
    base = largest if np.isfinite(largest) else 0.0
    return Cell(
        query=query,
        key=key,
        query_position=int(given.q_positions[0, query]),
        key_position=int(given.kv_positions[0, key]),
        q=head.q[0],
        k=head.k[key],
        v=head.v[key],
        dot=float(head.q[0] @ head.k[key]),
        scale=given.scale,
        score=float(row["scores"][key]),
        softcap=given.softcap,
        softcapped=float(row["softcapped_scores"][key]),
        alibi=_at(head.alibi, key),
        bias=_at(head.bias, key),
        is_allowed=bool(head.allowed if isinstance(head.allowed, bool) else head.allowed[0, key]),
        masked=float(row["masked_scores"][key]),
        sink=head.sink,
        largest=largest,
        exponential=float(np.exp(row["masked_scores"][key] - base)),
        total=float(np.exp(row["masked_scores"] - base).sum() + np.exp(head.sink - base)),
        lse=float(row["lse"]),
        weight=float(row["weights"][key]),
        out=row["out"],
    )


def _at(term: Array | float, key: int) -> float:
    return float(term[0, key]) if isinstance(term, np.ndarray) else float(term)
