"""Launch attention over pages: the cache on the device, new tokens appended, then decode or flash kernels.

The same kernels as for caches in a row, read through tables: a few queries are the decode kernels' work, more
are the flash kernel's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from kernels.arrays import Array
from kernels.decode.launch import KERNEL_VERSION as DECODE_VERSION
from kernels.decode.launch import decode, decode_kernels, decode_terms, plan_note
from kernels.decode.splits import is_decoding, make_plan
from kernels.engines import Kernels, Place, Prepared, version_of
from kernels.engines.tensors import TORCH_DTYPES, as_inputs, to_numpy
from kernels.flash.arguments import Shape, Shapes, coded, rows, terms
from kernels.flash.device import (
    Launch,
    Memory,
    compilable,
    launch,
    multiprocessors,
    require_triton,
    rows_of_a_program,
    working_dtype,
)
from kernels.flash.launch import attend, forward_kernels
from kernels.flash.memory import Pages, Rows
from kernels.flash.rotation import recorder, rotator
from kernels.flash.tiles import padded_dim, tilings
from kernels.integers import ceil_div, next_power_of_two
from kernels.operands import Operands, Rotate, operands
from kernels.paged.append import append_rows
from kernels.paged.tables import Cache, Fresh, make_cache, page_size
from kernels.quantise import QuantisedCache, quantised_cache
from kernels.spec.model import RunSpec
from kernels.spec.results import PRESENT

KERNEL_VERSION = version_of(Path(__file__).parent, ("append.py",), DECODE_VERSION)
GPU_TILE = 4096  # numbers of a tile of tokens that are appended


class Part(NamedTuple):
    """What of a cache has pages of its own."""

    k: Array  # [b, h_kv, m, d]
    v: Array  # [b, h_kv, m, e]
    dtype: str | None  # that it is kept in; None: its own


def prepare(spec: RunSpec, arrays: Mapping[str, Array], device: str) -> Prepared:
    """Move the inputs to ``device``, k and v in pages; raises CannotRunError where no kernel can run."""
    require_triton(device, spec.engine)
    place = Memory(device)
    dtype, notes = working_dtype(spec)
    given = unpaged_operands(spec, arrays, rotator(device))
    quantised = quantised_cache(spec, given)
    parts = parts_of(given, quantised, dtype)
    caches = [make_cache(spec, arrays, replace(given, k=part.k, v=part.v)) for part in parts]
    pages, appends = [], []
    for cache, part in zip(caches, parts, strict=True):
        pages.append(paged_rows(cache, place, part.dtype))
        if cache.fresh is not None:
            appends.append(append_launch(cache.fresh, *pages[-1], place, part.dtype))
    q, (keys, values) = place(given.q, dtype), as_read(pages, quantised)
    how: tuple[str, ...] = ()
    if is_decoding(spec, spec.engine):
        plan = make_plan(spec, target=place.target, multiprocessors=multiprocessors(device))
        how, logit_terms = (plan_note(plan),), decode_terms(given, plan, place)
        run = partial(decode, q, keys, values, logit_terms, shapes=Shapes.of(given), plan=plan)
    else:
        tiles = tilings(spec, place.target)["flash_forward"]
        logit_terms = terms(given, tiles, place)
        run = partial(attend, q, keys, values, logit_terms, shapes=Shapes.of(given), tiles=tiles)

    def compute() -> Mapping[str, Any]:
        for one in appends:  # any number of times over: each token has its slot
            launch(*one)
        results = run()
        return {**results, "out": results["out"].to(TORCH_DTYPES[spec.dtype])}

    def collect(results: Mapping[str, Any]) -> dict[str, Array]:
        whole = given
        if quantised is None and any(name in PRESENT for name in spec.returns):
            whole = operands(spec, arrays, dtype=np.float32)
        return as_inputs(spec, arrays, whole, to_numpy(results), quantised)

    return Prepared(compute, collect, (*notes, *how, pages_note(caches[0])))


def kernels_of(spec: RunSpec, arrays: Mapping[str, Array], place: Place) -> Kernels:
    """See ``kernels.engines``: attention over pages, what appends to them, and the rotation."""
    rotate, rotations = recorder(place)
    given = unpaged_operands(spec, arrays, rotate)
    quantised = quantised_cache(spec, given)
    size = page_size(spec)
    table = np.broadcast_to(np.int32(0), (spec.batch, ceil_div(spec.kv_len, size)))

    def in_pages(x: Array, dtype: str | None) -> Rows:
        return page_rows(place(x, dtype), (1, size, x.shape[1], x.shape[3]), place(table), table.shape)

    parts = parts_of(given, quantised, spec.dtype)
    pages = [(in_pages(part.k, part.dtype), in_pages(part.v, part.dtype)) for part in parts]
    attention = decode_kernels if is_decoding(spec, spec.engine) else forward_kernels
    yield from attention(spec, given, *as_read(pages, quantised), place)
    if "past_key" in arrays:
        past, lens = arrays["past_key"].shape[2], np.zeros(spec.batch, np.int32)
        fresh = [Fresh(part.k[:, :, past:], part.v[:, :, past:], lens, lens) for part in parts]
        yield from compilable(
            append_launch(new, *where, place, part.dtype)
            for new, where, part in zip(fresh, pages, parts, strict=True)
        )
    yield from rotations


def unpaged_operands(spec: RunSpec, arrays: Mapping[str, Array], rotate: Rotate) -> Operands:
    """The operands; k and v that are read from the pages sent are shapes without memory."""
    if "block_table" in arrays and spec.attention.rope is None and spec.options.kv_dtype is None:
        shape = (spec.batch, spec.num_kv_heads, spec.kv_len)
        nothing = np.zeros((), np.float32)
        arrays = {name: array for name, array in arrays.items() if name != "block_table"} | {
            "k": np.broadcast_to(nothing, (*shape, spec.head_dim)),
            "v": np.broadcast_to(nothing, (*shape, spec.v_head_dim)),
        }
    return operands(spec, arrays, dtype=np.float32, rotate=rotate)


def pages_note(cache: Cache) -> str:
    """What a result says of its pages."""
    blocks, size = cache.k.shape[:2]
    return f"{blocks} page{'s' * (blocks != 1)} of {size} token{'s' * (size != 1)}."


def parts_of(given: Operands, quantised: QuantisedCache | None, dtype: str) -> list[Part]:
    """Numbers of ``dtype``; or codes and, where each token has its own, their scales, which are paged and
    appended as the tokens are: as keys and values one number wide."""
    if quantised is None:
        return [Part(given.k, given.v, dtype)]
    k, v = quantised.k, quantised.v
    codes = Part(k.codes, v.codes, None)
    return [codes] if k.scale.ndim == 0 else [codes, Part(k.scale[..., None], v.scale[..., None], None)]


def as_read(pages: list[tuple[Rows, Rows]], quantised: QuantisedCache | None) -> tuple[Rows, Rows]:
    """Keys and values from the pages of each part of a cache."""
    keys, values = pages[0]
    if quantised is None:
        return keys, values
    k_scales, v_scales = pages[1] if len(pages) > 1 else (None, None)
    return coded(keys, quantised.k, k_scales), coded(values, quantised.v, v_scales)


def paged_rows(cache: Cache, place: Place, dtype: str | None) -> tuple[Rows, Rows]:
    """Keys and values as kernels read and write them."""
    return (
        page_rows(place(cache.k, dtype), cache.k.shape, place(cache.k_table), cache.k_table.shape),
        page_rows(place(cache.v, dtype), cache.v.shape, place(cache.v_table), cache.v_table.shape),
    )


def page_rows(pages: Any, shape: Shape, table: Any, table_shape: Shape) -> Rows:
    """Pages [num_blocks, page_size, h_kv, dim] with their table [batch, max_blocks]."""
    _, size, heads, dim = shape
    return Rows(pages, size * heads * dim, dim, heads * dim, Pages(table, table_shape[1], max(size, 1)))


def append_launch(fresh: Fresh, keys: Rows, values: Rows, place: Place, dtype: str | None) -> Launch:
    """Of ``append_rows``, which brings ``fresh``, as ``dtype``, to the pages of ``keys`` and ``values``."""
    (batch, heads, new, d), e = fresh.k.shape, fresh.v.shape[3]
    width, v_width = padded_dim(d), padded_dim(e)
    largest = min(GPU_TILE // max(width, v_width), next_power_of_two(new))
    block = rows_of_a_program(new, largest, interpreted=place.target is None)
    arguments = {
        "NewK": rows(place(fresh.k, dtype), fresh.k.shape),
        "NewV": rows(place(fresh.v, dtype), fresh.v.shape),
        "K": keys,
        "V": values,
        "p_first": place(fresh.first),
        "p_count": place(fresh.count),
        "num_kv_heads": heads,
        "D": d,
        "DV": e,
        "BLOCK_D": width,
        "BLOCK_DV": v_width,
        "BLOCK_T": block,
    }
    return Launch("append_rows", append_rows, arguments, (batch * heads, ceil_div(new, block)))
