"""What a run of engine ``scoring`` takes: see ``kernels.estimate``, which asks. No torch.

Seconds are of one core, measured and then raised to two or three times. Operations and bytes are of what the
kernels do, in their tiles; where centres are predicted, of as many as there might be.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kernels.arrays import Array
from kernels.counts import ITEM_BYTES
from kernels.flash.tiles import padded_dim
from kernels.integers import ceil_div
from kernels.positions import query_offset, visible_pairs
from kernels.registry import option
from kernels.scoring.costs import Sizes, cost
from kernels.scoring.rules import half_width
from kernels.scoring.tiling import choose_tiling
from kernels.spec.model import RunSpec
from kernels.spec.results import MATRICES
from kernels.tuning import Tiling

CALL, PROGRAM, TILE = 0.01, 8e-3, 4e-3
STEP, HIDDEN, SUMMED = 2.4e-3, 1.4e-8, 1e-9  # a hidden number of a tile; of a pair; of a row times its width
SCORE, MATRIX, MULTIPLY, HALF_MULTIPLY = 4e-8, 4e-8, 1e-10, 1.2e-9
CENTRE_STEP, CENTRE = 1.2e-3, 6e-9
# Of the float64 reference and its bound.
HEAD, ROW, PAIR, WINDOW_PAIR, HIDDEN_AGAIN, MULTIPLY_AGAIN = 1e-3, 5e-5, 1.5e-7, 2e-7, 1.3e-8, 2.5e-10
TILE_BYTES, PAIR_BYTES, HIDDEN_BYTES = 60.0, 160.0, 100.0


def tiling_of(spec: RunSpec, *, interpreted: bool) -> Tiling:
    """In which a spec is launched."""
    widths, lengths = (spec.head_dim, spec.v_head_dim), (spec.q_len, spec.kv_len)
    return choose_tiling(option(spec, "score"), widths, lengths, spec.dtype, interpreted=interpreted)


# -- counts --------------------------------------------------------------------------------------------------


class Visits(NamedTuple):
    """Of one head, padding left out."""

    tiles: int  # of queries with keys
    queries: int  # of all of them together
    keys: int
    pairs: int


def visits(spec: RunSpec, tiling: Tiling) -> Visits:
    """Which tiles ``scored_forward`` goes through: as far as causality and windows reach, but all where the
    share of windows is asked for. Masks are data."""
    n, m = spec.q_len, spec.kv_len
    starts = np.arange(0, n, tiling.block_m)
    rows = np.minimum(starts + tiling.block_m, n) - starts
    first, end = np.zeros_like(starts), np.full_like(starts, m)
    (left, right), offset = spec.attention.sides, query_offset(spec)
    if offset is not None:
        if right is not None:
            end = np.clip(starts + rows + offset + right, 0, m)
        if left is not None:
            first = np.clip(starts + offset - left, 0, m)
    if option(spec, "span") == "monotonic" and "kept_weight" not in spec.returns:
        first = np.maximum(first, np.ceil(starts - half_width(spec)).astype(np.int64))
        end = np.minimum(end, np.floor(starts + rows - 1 + half_width(spec)).astype(np.int64) + 1)
    return _visits(first, end, rows, tiling, m)


def _visits(first: Array, end: Array, rows: Array, tiling: Tiling, m: int) -> Visits:
    """Of so many ``rows`` that see the keys from ``first`` to before ``end``."""
    some = first < end
    begin, stop = (np.where(some, x, 0) for x in (first // tiling.block_n, -(-end // tiling.block_n)))
    tiles = stop - begin
    keys = np.minimum(stop * tiling.block_n, m) - np.minimum(begin * tiling.block_n, m)
    return Visits(int(tiles.sum()), int((tiles * rows).sum()), int(keys.sum()), int((keys * rows).sum()))


def all_tiles(spec: RunSpec, tiling: Tiling) -> Visits:
    """Those of ``scored_matrices``."""
    by_m, by_n = ceil_div(spec.q_len, tiling.block_m), ceil_div(spec.kv_len, tiling.block_n)
    return Visits(by_m * by_n, by_n * spec.q_len, by_m * spec.kv_len, spec.q_len * spec.kv_len)


def scored_pairs(spec: RunSpec) -> int:
    """Pairs within causality and windows, in all heads; of predicted centres as many as there might be."""
    rows, visible = spec.batch * spec.num_heads, visible_pairs(spec)
    if option(spec, "span") == "global":
        return visible
    reach = half_width(spec)
    if option(spec, "span") == "predictive":
        return min(visible, rows * spec.q_len * min(spec.kv_len, int(2 * reach) + 1))
    queries = np.arange(spec.q_len)
    last = np.minimum(queries + np.floor(reach).astype(np.int64), spec.kv_len - 1)
    sizes = last - np.maximum(queries - np.floor(reach).astype(np.int64), 0) + 1
    return min(visible, rows * int(np.maximum(sizes, 0).sum()))


def flops(spec: RunSpec) -> int:
    """Of one call: scores, what concat makes again for each tile but once for its rows, centres, and the sums
    of values."""
    score, heads, d = option(spec, "score"), spec.batch * spec.num_heads, spec.head_dim
    pairs, hidden = scored_pairs(spec), _hidden(spec)
    sizes = Sizes(spec.batch, spec.num_heads, spec.q_len, spec.kv_len, d, d, hidden)
    products = cost(score, sizes, pairs).multiply_adds
    if score == "concat":
        visited = visits(spec, tiling_of(spec, interpreted=False))
        products = 2 * pairs * hidden + heads * hidden * d * (visited.queries + visited.keys)
    if option(spec, "span") == "predictive":
        products += heads * spec.q_len * _hidden(spec, "v_p") * (d + 1)
    return 2 * (products + pairs * spec.v_head_dim)


def _hidden(spec: RunSpec, of: str = "v_a") -> int:
    return spec.inputs[of].shape[-1] if of in spec.inputs else 0


def more_traffic(spec: RunSpec) -> tuple[int, int]:
    """What the kernels read and write beyond each input and each result once, a mask left out."""
    tiling = tiling_of(spec, interpreted=False)
    loaded, stored = traffic(spec, tiling)
    arrays = ("q", "k", "v", *(name for name in spec.inputs if name.startswith(("w_", "v_"))))
    once = sum(spec.inputs[name].elements * ITEM_BYTES[spec.dtype] for name in arrays)
    rows = spec.batch * spec.num_heads * spec.q_len
    results = {"out": rows * spec.v_head_dim * ITEM_BYTES[spec.dtype], "lse": 4 * rows}
    results |= {
        "kept_weight": 4 * rows,
        **dict.fromkeys(MATRICES, 4 * rows * spec.kv_len),
        "centres": 4 * rows,
    }
    return loaded - once, stored - sum(results[name] for name in spec.returns)


def traffic(spec: RunSpec, tiling: Tiling) -> tuple[int, int]:
    """(read, written) by the kernels in such tiles, masks left out."""
    score, heads, item = option(spec, "score"), spec.batch * spec.num_heads, ITEM_BYTES[spec.dtype]
    rows, d, hidden = heads * spec.q_len, spec.head_dim, _hidden(spec)
    matrices = [name for name in ("scores", "weights") if name in spec.returns]
    passes = [visits(spec, tiling), *([all_tiles(spec, tiling)] if matrices else [])]
    read = heads * passes[0].keys * spec.v_head_dim * item
    written = rows * (spec.v_head_dim * item + 4) + 4 * rows * spec.kv_len * len(matrices)
    if "kept_weight" in spec.returns:
        written += 4 * rows
    if "weights" in spec.returns:
        by_row = 16 if option(spec, "span") == "predictive" else 8  # maximum, sum, and the centre
        written, read = written + 8 * rows, read + by_row * rows * ceil_div(spec.kv_len, tiling.block_n)
    for number, done in enumerate(passes):
        queries = done.queries if number else spec.q_len  # in the forward pass they stay on chip
        if score == "additive":
            read += heads * hidden * (4 * (done.queries + done.keys) + item * done.tiles)
        else:
            read += heads * d * (queries * (4 if score == "general" else item) + done.keys * item)
        if score == "concat":
            read += heads * hidden * (2 * d + 1) * item * done.tiles
    more_read, more_written = _made_before(spec, tiling)
    return read + more_read, written + more_written


def _made_before(spec: RunSpec, tiling: Tiling) -> tuple[int, int]:
    """(read, written) of projections, a block of each axis at a time left out, and of centres."""
    score, item, d = option(spec, "score"), ITEM_BYTES[spec.dtype], spec.head_dim
    rows, read, written = spec.batch * spec.num_heads * spec.q_len, 0, 0
    if score in ("additive", "general"):
        names = ("w_q", "w_k") if score == "additive" else ("w_general",)
        read += sum(spec.inputs[name].elements for name in names) * item + rows * d * item
        written += 4 * rows * (_hidden(spec) if score == "additive" else d)
    if score == "additive":
        keys = spec.batch * spec.num_kv_heads * spec.kv_len
        group = (
            spec.num_heads // spec.num_kv_heads
            if spec.num_kv_heads and spec.inputs["w_k"].shape[0] > 1
            else 1
        )
        read, written = read + keys * d * item, written + 4 * keys * _hidden(spec) * group
    if option(spec, "span") == "predictive":
        hidden, programs = _hidden(spec, "v_p"), ceil_div(spec.q_len, tiling.block_m)
        read += rows * d * item + spec.batch * spec.num_heads * programs * hidden * (d + 1) * item
        read, written = read + 8 * rows, written + 8 * rows
    return read, written


# -- seconds and memory of a CPU worker ----------------------------------------------------------------------


def engine_seconds(spec: RunSpec) -> float:
    """One call."""
    tiling, heads = tiling_of(spec, interpreted=True), spec.batch * spec.num_heads
    programs = ceil_div(spec.q_len, tiling.block_m)
    passes = [visits(spec, tiling)]
    matrices = sum(name in spec.returns for name in ("scores", "weights"))
    seconds = CALL + heads * programs * PROGRAM + MATRIX * heads * spec.q_len * spec.kv_len * matrices
    if matrices:
        passes.append(all_tiles(spec, tiling))
    is_product = not _hidden(spec)
    width = padded_dim(spec.v_head_dim) + is_product * padded_dim(spec.head_dim)
    per_score = SCORE * (2 if "kept_weight" in spec.returns else 1)
    per_score += width * (HALF_MULTIPLY if spec.dtype == "float16" else MULTIPLY)
    for done in passes:
        seconds += heads * (TILE * done.tiles + _tile_seconds(spec, tiling, done.tiles, per_score))
    if option(spec, "span") == "predictive":
        hidden, block = _hidden(spec, "v_p"), programs * tiling.block_m
        seconds += heads * hidden * (CENTRE_STEP * programs + CENTRE * block * padded_dim(spec.head_dim))
    return seconds


def _tile_seconds(spec: RunSpec, tiling: Tiling, tiles: int, per_score: float) -> float:
    """Of so many tiles, whose padding is computed too."""
    hidden, scores = _hidden(spec), tiling.block_m * tiling.block_n
    step = STEP + HIDDEN * scores
    if option(spec, "score") == "concat":
        step += SUMMED * (tiling.block_m + tiling.block_n) * padded_dim(spec.head_dim)
    return tiles * (scores * per_score + hidden * step)


def reference_seconds(spec: RunSpec) -> float:
    """The scores and their attention in float64, and how far rounding may go."""
    heads, pairs, hidden = spec.batch * spec.num_heads, spec.q_len * spec.kv_len, _hidden(spec)
    per_pair = PAIR + HIDDEN_AGAIN * hidden + MULTIPLY_AGAIN * (spec.head_dim + spec.v_head_dim)
    if option(spec, "span") != "global":
        per_pair += WINDOW_PAIR
    predicted = _hidden(spec, "v_p")
    by_row = ROW * ((hidden > 0) + (predicted > 0)) + HIDDEN_AGAIN * predicted
    return heads * (HEAD + pairs * per_pair + by_row * spec.q_len)


def engine_bytes(spec: RunSpec) -> float:
    """What the engine holds at once beside inputs and results."""
    tiling, hidden, heads = tiling_of(spec, interpreted=True), _hidden(spec), spec.batch * spec.num_heads
    made = spec.q_len * max(hidden, spec.head_dim) + spec.kv_len * hidden
    rows = tiling.block_m * padded_dim(spec.head_dim) + tiling.block_n * (
        padded_dim(spec.head_dim) + padded_dim(spec.v_head_dim)
    )
    return TILE_BYTES * (tiling.block_m * tiling.block_n + rows) + 8 * heads * made


def reference_bytes(spec: RunSpec) -> float:
    """What a head of the mathematics holds in float64."""
    numbers = (spec.q_len + spec.kv_len) * (spec.head_dim + spec.v_head_dim + 2 * _hidden(spec))
    return PAIR_BYTES * spec.q_len * spec.kv_len + HIDDEN_BYTES * numbers
