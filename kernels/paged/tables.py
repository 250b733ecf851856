"""Caches in pages, in numpy: which page each block of a sequence gets, and what is put where.

A page holds ``page_size`` tokens, [page_size, h_kv, dim]; token j of row b lies in page
table[b, j // page_size] at slot j % page_size. Pages are what a server hands out as sequences grow, so that
they lie in memory in any order, and rows that begin alike may name the same pages.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from kernels.arrays import Array
from kernels.integers import ceil_div
from kernels.operands import Operands
from kernels.spec.model import RunSpec

DEFAULT_PAGE_SIZE = 16
ORDER_SEED = 0  # of the order in which pages are handed out


@dataclass(frozen=True)
class Fresh:
    """Tokens that are still to be appended: row b has count[b] of them, the first at position first[b]."""

    k: Array  # [b, h_kv, new, d]
    v: Array  # [b, h_kv, new, e]
    first: Array  # [b] int32
    count: Array  # [b] int32


@dataclass(frozen=True)
class Cache:
    """Pages of keys and of values, each with its table; NaN in slots that nothing was written to. Codes and
    scales of a quantised cache are a Cache each."""

    k: Array  # [num_blocks, page_size, h_kv, d]
    v: Array  # [num_blocks, page_size, h_kv, e]
    k_table: Array  # [b, max_blocks] int32
    v_table: Array
    fresh: Fresh | None = None


def make_cache(spec: RunSpec, arrays: Mapping[str, Array], given: Operands) -> Cache:
    """The pages that were sent, as they are; or the operands k and v put in pages, with a past as far as it
    goes, the rest to be appended.

    Keys in pages that RoPE turns get pages of their own: a page that several rows name can stand at several
    positions, and is another key at each. With a kv_dtype keys and values do: what was sent are numbers.
    """
    if "block_table" in arrays and spec.options.kv_dtype is None:
        table = arrays["block_table"].astype(np.int32)
        if spec.attention.rope is None:
            return Cache(arrays["k"], arrays["v"], table, table)
        own = in_pages(spec, given, past=None)
        return Cache(own.k, arrays["v"], own.k_table, table)
    past = arrays["past_key"].shape[2] if "past_key" in arrays else None
    return in_pages(spec, given, past=past)


def in_pages(spec: RunSpec, given: Operands, *, past: int | None) -> Cache:
    """The operands k and v in pages: all of them, or the first ``past`` with the rest as ``Fresh``."""
    size, length = page_size(spec), given.k.shape[2]
    lens = np.full(len(given.k), length) if given.kv_lens is None else given.kv_lens
    table = hand_out(lens, ceil_div(length, size), size)
    written = lens if past is None else np.minimum(lens, past)
    k, v = (put_in_pages(array, table, written, size) for array in (given.k, given.v))
    if past is None:
        return Cache(k, v, table, table)
    first, count = np.full(len(lens), past, np.int32), (lens - written).astype(np.int32)
    return Cache(k, v, table, table, Fresh(given.k[:, :, past:], given.v[:, :, past:], first, count))


def page_size(spec: RunSpec) -> int:
    """Of the pages sent, as asked for, or the default; no larger than the longest sequence, for what is
    beyond would never be used."""
    if spec.is_paged:
        return max(1, spec.canonical_shape("k")[1])
    return max(1, min(spec.options.page_size or DEFAULT_PAGE_SIZE, spec.kv_len))


def hand_out(lens: Array, max_blocks: int, size: int) -> Array:
    """[b, max_blocks] int32: a page of its own for each block of ``lens[b]`` tokens, in a shuffled order so
    that no two neighbours are likely to be neighbours in memory; −1 beyond."""
    table = np.full((len(lens), max_blocks), -1, np.int32)
    used = np.arange(max_blocks) < -(-lens[:, None] // size)
    table[used] = np.random.default_rng(ORDER_SEED).permutation(int(used.sum()))
    return table


def put_in_pages(array: Array, table: Array, lens: Array, size: int) -> Array:
    """[b, h, len, dim] → pages [num_blocks, size, h, dim] with the first ``lens[b]`` tokens of each row."""
    _, heads, length, dim = array.shape
    unwritten = np.nan if array.dtype.kind == "f" else 0x7F  # a NaN too, where codes are fp8
    pages = np.full((int(table.max(initial=-1)) + 1, size, heads, dim), unwritten, array.dtype)
    row, token = np.nonzero(np.arange(length) < lens[:, None])
    pages[table[row, token // size], token % size] = array[row, :, token]
    return pages
