"""Bytes to and from memory where nothing counts them, as on a GPU: a model, from shapes and tiles.

Every engine reads its inputs and writes its results once. Beyond that

* eager and reference write the scores and the weights and read them once more; with gradients, those of the
  weights and of the scores too;
* flash writes the output and the LSE even if they are not returned, and two numbers of each row where its
  weights are needed again. K and V stream past each tile of queries, as far as its window reaches; the
  matrices have tiles of their own, each of which reads its queries and its keys. With gradients K and V
  stream past the queries once more (dQ), and queries and the gradients of their outputs past each tile of
  keys (dK, dV);
* decode, and paged with few queries, read the keys that anyone sees once for each tile of rows; the states of
  splits, a few rows each, and the queries of all but one split are left out;
* mla reads what its tiles hold, padding included, and writes what it makes on the way: keys and values, or
  absorbed queries and sums of latents;
* linear and scan read keys once for each program that has some columns of the values, and write and read the
  states that chunks find (``kernels.recurrent_traffic``); performer writes its features and reads them again;
* cache reads at each step what its policy holds, and writes each token once;
* lsh writes the scores of all pairs and their weights, within buckets and over all, and reads them again;
* hard does so with the scores, the weights and the keys that it draws.

With a kv_dtype K and V are bytes and scales, but eager decodes them first.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kernels.counts import (
    ITEM_BYTES,
    cached_bytes,
    input_bytes,
    item_bytes,
    result_bytes,
)
from kernels.decode.splits import decode_tiling, is_decoding, rows_per_kv_head
from kernels.flash.tiles import DEFAULT_TARGET, choose_tiles, choose_tiling
from kernels.flash.visits import visits, visits_of_keys
from kernels.integers import ceil_div
from kernels.mla.forms import work
from kernels.registry import ENGINES, pricing_of
from kernels.spec.model import RunSpec
from kernels.spec.results import MATRICES

KEPT_BYTES = 8  # the maximum and the sum of a row of scores, kept for whoever needs its weights again
DOT_BYTES = 4  # the Δ of a row, which its gradients need


def modelled_traffic(spec: RunSpec) -> dict[str, Any]:
    """``bytes_read`` and ``bytes_written`` of one call."""
    if spec.engine == "eager":
        spec = replace(spec, options=replace(spec.options, kv_dtype=None))
    read = sum(input_bytes(spec, name) for name in spec.inputs)
    written = sum(result_bytes(spec, name) for name in spec.returns)
    if spec.engine in ("eager", "reference"):
        more_read, more_written = _whole_matrices(spec)
        read, written = read + more_read, written + more_written
    elif spec.engine == "mla":
        done, item = work(spec, interpreted=False), ITEM_BYTES[spec.dtype]
        read, written = done.loads * item, done.stores * item + result_bytes(spec, "lse")
    elif (pricing := pricing_of(spec.engine)) is not None:
        more_read, more_written = pricing.more_traffic(spec)
        read, written = read + more_read, written + more_written
    elif ENGINES[spec.engine].is_triton:
        read, written = _of_kernels(spec)
    return {"bytes_read": read, "bytes_written": written, "method": "model"}


def _whole_matrices(spec: RunSpec) -> tuple[int, int]:
    """(read, written) of the scores and of the weights, and in the backward pass: the weights are read for dV
    and for ds, their gradient is written and read, and ds written, and read for dQ and for dK."""
    matrix = spec.batch * spec.num_heads * spec.q_len * spec.kv_len * item_bytes(spec, "weights")
    return (7 * matrix, 4 * matrix) if spec.differentiates else (2 * matrix, 2 * matrix)


def _of_kernels(spec: RunSpec) -> tuple[int, int]:
    """(read, written) of the kernels of flash, decode and paged."""
    read = input_bytes(spec, "q")
    written = sum(result_bytes(spec, name) for name in {"out", "lse", *spec.returns})
    if is_decoding(spec, spec.engine):
        read += _decoded(spec)
    else:
        read += _streamed(spec, *choose_tiles(spec, interpreted=False))
    if spec.is_paged:
        read += 4 * (spec.inputs["block_table"].elements + spec.batch)
    if "weights" in spec.returns or spec.differentiates:
        written += spec.batch * spec.num_heads * spec.q_len * KEPT_BYTES
    if any(name in spec.returns for name in MATRICES):
        read += _tiles_of_matrices(spec)
    if spec.differentiates:
        back_read, back_written = _backward(spec)
        read, written = read + back_read, written + back_written
    return read, written


def _streamed(spec: RunSpec, block_m: int, block_n: int) -> int:
    """The keys, values and masks that stream past tiles of queries."""
    visited, token = visits(spec, block_m, block_n), _token_bytes(spec)
    return spec.batch * spec.num_heads * (visited.loads * token + visited.pairs * _mask_bytes(spec))


def _decoded(spec: RunSpec) -> int:
    """The keys, values and masks that stream past tiles of rows of the decode kernels."""
    block_m, block_n = decode_tiling(spec, DEFAULT_TARGET)[:2]
    visited = visits(spec, max(spec.q_len, 1), block_n)
    row_tiles = spec.batch * spec.num_kv_heads * ceil_div(rows_per_kv_head(spec), block_m)
    masks = spec.batch * spec.num_heads * visited.pairs * _mask_bytes(spec)
    return row_tiles * visited.loads * _token_bytes(spec) + masks


def _tiles_of_matrices(spec: RunSpec) -> int:
    """Queries and keys of every tile of the matrices, what was kept for the weights, and masks."""
    block_m, block_n = choose_tiling(spec, DEFAULT_TARGET, "flash_scores")[:2]
    query = spec.head_dim * ITEM_BYTES[spec.dtype] + KEPT_BYTES * ("weights" in spec.returns)
    queries = spec.q_len * ceil_div(spec.kv_len, block_n) * query
    keys = spec.kv_len * ceil_div(spec.q_len, block_m) * cached_bytes(spec, spec.head_dim)
    masks = spec.q_len * spec.kv_len * _mask_bytes(spec)
    return spec.batch * spec.num_heads * (queries + keys + masks)


def _backward(spec: RunSpec) -> tuple[int, int]:
    """(read, written) of the kernels of the backward pass."""
    heads, tiles = spec.batch * spec.num_heads, choose_tiling(spec, DEFAULT_TARGET, "flash_backward_keys")[:2]
    item, rows = ITEM_BYTES[spec.dtype], heads * spec.q_len
    query = (spec.head_dim + spec.v_head_dim) * item + KEPT_BYTES + DOT_BYTES  # with dout
    read, written = rows * 2 * spec.v_head_dim * item, rows * DOT_BYTES  # Δ, of out and dout
    if "dq" in spec.returns:
        read += rows * query + _streamed(spec, *tiles)
    if "dk" in spec.returns or "dv" in spec.returns:
        visited = visits_of_keys(spec, *tiles)
        read += spec.batch * spec.num_kv_heads * spec.kv_len * _token_bytes(spec)
        read += heads * (visited.loads * query + visited.pairs * _mask_bytes(spec))
        # One kernel makes both, whichever is returned.
        written += sum(result_bytes(spec, name) for name in ("dk", "dv") if name not in spec.returns)
    return read, written


def _token_bytes(spec: RunSpec) -> int:
    """Of the key and the value of one token in one head."""
    return cached_bytes(spec, spec.head_dim) + cached_bytes(spec, spec.v_head_dim)


def _mask_bytes(spec: RunSpec) -> int:
    """Of each pair of query and key: a byte of a boolean mask or a pattern, four of a bias."""
    mask = spec.inputs.get("attn_mask")
    allowed = spec.attention.pattern is not None or (mask is not None and mask.dtype == "bool")
    return allowed + 4 * (mask is not None and mask.dtype != "bool")
