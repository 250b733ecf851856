"""The two forms of multi-head latent attention in numbers: which is cheaper, and how large tiles are.

Arithmetic only: no torch, no triton. The forms are explained in ``kernels/mla/kernel.py``.

For P pairs of query and key, over all heads, the products take

    expanded   P · (d_nope + d_rope + d_v)  +  kv_len · heads · d_c · (d_nope + d_v)
    absorbed   P · (2 · d_c + d_rope)       +  q_len  · heads · d_c · (d_nope + d_v)

multiply-adds in each batch row. Absorbing is dearer for every pair, but pays for the queries instead of the
keys; so it wins where queries are few. With the sizes of DeepSeek-V2 (d_c 512, d_nope and d_v 128) and a long
cache that is up to 512 · 256 / (1024 − 256) = 170 queries. It also makes no keys and values, which would be
heads · (d_nope + d_rope + d_v) / (d_c + d_rope) times as large as the cache: 71 times, with 128 heads.
"""

from __future__ import annotations

from dataclasses import dataclass

from kernels.flash.tiles import (
    DEFAULT_TARGET,
    INTERPRETER_BLOCK,
    Needs,
    as_asked,
    choose_tiles,
    choose_tiling,
    padded_dim,
    weight_registers,
)
from kernels.flash.visits import visits
from kernels.integers import ceil_div, next_power_of_two
from kernels.limits import MAX_BLOCK_ELEMENTS, MIN_BLOCK
from kernels.positions import visible_pairs
from kernels.spec.model import RunSpec
from kernels.tuning import Tiling, tuned

FORMS = ("expanded", "absorbed")


def multiply_adds(spec: RunSpec, form: str) -> int:
    """Of one call, over all batch rows and heads."""
    latent, rope = (spec.inputs[name].shape[-1] for name in ("c_kv", "q_rope"))
    nope, width_v = spec.inputs["q_nope"].shape[-1], spec.v_head_dim
    if form == "expanded":
        per_pair, projected = nope + rope + width_v, spec.kv_len
    else:
        per_pair, projected = 2 * latent + rope, spec.q_len
    projections = spec.batch * spec.num_heads * projected * latent * (nope + width_v)
    return visible_pairs(spec) * per_pair + projections


def chosen_form(spec: RunSpec) -> str:
    """As asked for in the options, else the one with fewer multiply-adds; absorbed where they are equal."""
    asked: str | None = spec.options.more.get("form")
    return asked or min(reversed(FORMS), key=lambda form: multiply_adds(spec, form))


def tilings(spec: RunSpec, target: str | None) -> dict[str, Tiling]:
    """How each kernel that works on tiles of queries and keys is launched for ``spec``, by its name."""
    if chosen_form(spec) == "expanded":
        return {"flash_forward": choose_tiling(spec, target)}
    return {"latent_attention": latent_tiling(spec, target)}


def latent_tiling(spec: RunSpec, target: str | None) -> Tiling:
    """Of the absorbed form, block_m in (query, head) pairs: as asked for, else what suits ``target`` (a key
    of TARGETS; None: the interpreter), no larger than the lengths need."""
    width = padded_dim(spec.inputs["c_kv"].shape[-1])
    if target is None:
        largest = min(INTERPRETER_BLOCK, MAX_BLOCK_ELEMENTS // width)
        best = Tiling(largest, largest)
    else:
        best = tuned("latent_attention", target, width, spec) or Tiling(MIN_BLOCK, MIN_BLOCK, 8, 1)
    pairs = spec.q_len * spec.num_heads
    fit_m, fit_n = (max(MIN_BLOCK, next_power_of_two(length)) for length in (pairs, spec.kv_len))
    block_m, block_n = min(best.block_m, fit_m), min(best.block_n, fit_n)
    block_m, block_n = as_asked(spec.options, block_m, block_n)
    return best._replace(block_m=block_m, block_n=block_n)


def needs(spec: RunSpec, tiling: Tiling) -> Needs:
    """Of ``latent_attention``: a tile of latents is key and value at once."""
    m, n = tiling[:2]
    latent, rope = (padded_dim(spec.inputs[name].shape[-1]) for name in ("c_kv", "q_rope"))
    registers = m * (n + latent) + weight_registers(spec, tiling)
    return Needs(registers, (m + n) * (latent + rope), m * n * (2 * latent + rope))


def projection_tiles(
    rows: int, width_in: int, width_out: int, dtype: str, *, interpreted: bool
) -> tuple[int, int, int]:
    """(block_m, block_in, block_out) of ``project``."""
    if interpreted:
        largest = (INTERPRETER_BLOCK, INTERPRETER_BLOCK, INTERPRETER_BLOCK)
    else:
        largest = (32, 32, 32) if dtype == "float32" else (64, 32, 64)
    fit = (max(MIN_BLOCK, next_power_of_two(size)) for size in (rows, width_in, width_out))
    block_m, block_in, block_out = (min(most, size) for most, size in zip(largest, fit, strict=True))
    return block_m, block_in, block_out


@dataclass(frozen=True)
class Work:
    """What the kernels of one call do, padding included but in what they write."""

    programs: int
    tiles: int  # of queries with keys
    scores: int
    multiplies: int
    loads: int  # numbers read into tiles
    stores: int  # numbers written, without the LSE

    def __add__(self, other: Work) -> Work:
        return Work(
            self.programs + other.programs,
            self.tiles + other.tiles,
            self.scores + other.scores,
            self.multiplies + other.multiplies,
            self.loads + other.loads,
            self.stores + other.stores,
        )


def _latent_tiles(spec: RunSpec, *, interpreted: bool) -> tuple[int, int]:
    """(block_m, block_n) of the absorbed form, in the interpreter or on DEFAULT_TARGET."""
    return latent_tiling(spec, None if interpreted else DEFAULT_TARGET)[:2]


def work(spec: RunSpec, *, interpreted: bool) -> Work:
    """Of the form that is chosen for ``spec``."""
    latent, rope = (spec.inputs[name].shape[-1] for name in ("c_kv", "q_rope"))
    nope, width_v = spec.inputs["q_nope"].shape[-1], spec.v_head_dim
    if chosen_form(spec) == "absorbed":
        tiles = _latent_tiles(spec, interpreted=interpreted)
        widths = padded_dim(latent) + padded_dim(rope), padded_dim(latent)
        return (
            _attention(spec, spec.num_heads, tiles, widths, latent)
            + _projection(spec, spec.q_len, nope, latent, interpreted=interpreted)
            + _projection(spec, spec.q_len, latent, width_v, interpreted=interpreted)
        )
    tiles = choose_tiles(spec, interpreted=interpreted)
    widths = padded_dim(nope + rope), padded_dim(width_v)
    attention = _attention(spec, 1, tiles, widths, width_v)
    values = Work(0, 0, 0, 0, attention.tiles * tiles[1] * widths[1], 0)  # not the tiles that were keys
    shared = spec.batch * spec.num_heads * spec.kv_len * rope
    return (
        attention
        + values
        + Work(0, 0, 0, 0, shared, shared)  # k_rope, which goes to every head
        + _projection(spec, spec.kv_len, latent, nope, interpreted=interpreted)
        + _projection(spec, spec.kv_len, latent, width_v, interpreted=interpreted)
    )


def _attention(
    spec: RunSpec, heads: int, tiles: tuple[int, int], widths: tuple[int, int], width_out: int
) -> Work:
    """Queries against the keys of their sequence, those of so many ``heads`` in the rows of one tile;
    ``widths`` of a key and of a value, padded, and of what is written of a value."""
    block_m, block_n = tiles
    sequences = spec.batch * spec.num_heads // max(heads, 1)
    programs = sequences * ceil_div(spec.q_len * heads, block_m)
    visited = sequences * visits(spec, block_m, block_n, group=heads).tiles
    scores = visited * block_m * block_n
    loads = visited * block_n * widths[0] + programs * block_m * widths[0]
    stores = spec.batch * spec.num_heads * spec.q_len * width_out
    return Work(programs, visited, scores, scores * sum(widths), loads, stores)


def _projection(spec: RunSpec, length: int, width_in: int, width_out: int, *, interpreted: bool) -> Work:
    """``project`` of every head."""
    rows = spec.batch * length
    block_m, block_in, block_out = projection_tiles(
        rows, width_in, width_out, spec.dtype, interpreted=interpreted
    )
    programs = spec.num_heads * ceil_div(rows, block_m) * ceil_div(width_out, block_out)
    steps = programs * ceil_div(width_in, block_in)
    loads = steps * block_in * (block_m + block_out)
    stores = spec.num_heads * rows * width_out
    return Work(programs, 0, 0, steps * block_m * block_in * block_out, loads, stores)


def largest_tile(spec: RunSpec, *, interpreted: bool) -> int:
    """Numbers in the tiles that one program holds at once, those of its inputs and of its result."""
    latent = padded_dim(spec.inputs["c_kv"].shape[-1])
    if chosen_form(spec) == "absorbed":
        block_m, block_n = _latent_tiles(spec, interpreted=interpreted)
        width = latent + padded_dim(spec.inputs["q_rope"].shape[-1])
        rows = spec.batch * spec.q_len
    else:
        block_m, block_n = choose_tiles(spec, interpreted=interpreted)
        width = max(padded_dim(spec.head_dim), padded_dim(spec.v_head_dim))
        rows = spec.batch * spec.kv_len
    attention = block_m * block_n + (2 * block_m + 2 * block_n) * width
    nope = max(spec.inputs["q_nope"].shape[-1], spec.v_head_dim)
    tiles = projection_tiles(rows, latent, nope, spec.dtype, interpreted=interpreted)
    return max(attention, sum(tiles[i] * tiles[j] for i, j in ((0, 1), (1, 2), (0, 2))))
