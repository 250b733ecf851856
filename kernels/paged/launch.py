"""Launch attention over pages: the cache on the device, new tokens appended, then decode or flash kernels.

The same kernels as for caches in a row, read through tables: a few queries are the decode kernels' work, more
are the flash kernel's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl

from kernels.decode.launch import KERNEL_VERSION as DECODE_VERSION
from kernels.decode.launch import decode, decode_kernels, decode_terms, multiprocessors, said
from kernels.decode.splits import make_plan
from kernels.engines import Array, Place, Prepared
from kernels.engines.tensors import TORCH_DTYPES, as_inputs, to_numpy, to_tensor
from kernels.flash.arguments import Place as PlaceArray
from kernels.flash.arguments import rows, shared_arguments, terms
from kernels.flash.codes import Codes
from kernels.flash.interpreter import INTERPRETED, on_device, target_here
from kernels.flash.kernel import flash_forward
from kernels.flash.launch import require_triton, working_dtype
from kernels.flash.logits import Terms
from kernels.flash.memory import Pages, Rows
from kernels.flash.rotation import recorder, rotator
from kernels.flash.tiles import INTERPRETER_BLOCK, choose_tiling, next_power_of_two, padded_dim
from kernels.operands import Operands, Rotate, operands
from kernels.paged.append import append_rows
from kernels.paged.tables import Cache, Fresh, make_cache, page_size
from kernels.quantise import Quantised, QuantisedCache, held, quantised_cache
from kernels.registry import MAX_DECODE_LEN
from kernels.spec.model import RunSpec
from kernels.tuning import Tiling

KERNEL_VERSION = hashlib.sha256(
    DECODE_VERSION.encode() + (Path(__file__).parent / "append.py").read_bytes()
).hexdigest()[:12]
GPU_TILE = 4096  # numbers of a tile of tokens that are appended


def prepare(spec: RunSpec, arrays: Mapping[str, Array], device: str) -> Prepared:
    """Move the inputs to ``device``, k and v in pages; raises CannotRunError where no kernel can run."""
    require_triton(device, spec.engine)
    dtype, notes = working_dtype(spec)
    given = unpaged_operands(spec, arrays, rotator(device))
    quantised = quantised_cache(spec, given)

    def place(array: Array) -> torch.Tensor:
        return to_tensor(array, device)

    def place_input(array: Array) -> torch.Tensor:
        return to_tensor(array, device, dtype)

    q = place_input(given.q)
    cache, keys, values, append = cache_on_device(
        spec, arrays, given, quantised, place=place, place_input=place_input
    )
    how: tuple[str, ...] = ()
    if spec.q_len <= MAX_DECODE_LEN:
        plan = make_plan(spec, multiprocessors=multiprocessors(device))
        bound, how = decode_terms(given, plan, place), (said(plan),)
        attend = partial(decode, q, keys, values, bound=bound, given=given, plan=plan)
    else:
        tiles = choose_tiling(spec, target_here())
        bound = terms(given, tiles, place)
        attend = partial(flash, q, keys, values, bound=bound, given=given, tiles=tiles)

    def compute() -> Mapping[str, Any]:
        append()
        results = attend()
        return {**results, "out": results["out"].to(TORCH_DTYPES[spec.dtype])}

    def collect(results: Mapping[str, Any]) -> dict[str, Array]:
        whole = held(given, quantised)
        if quantised is None and any(name.startswith("present") for name in spec.returns):
            whole = operands(spec, arrays, dtype=np.float32)
        return as_inputs(spec, arrays, whole, to_numpy(results))

    return Prepared(compute, collect, (*notes, *how, described(cache)))


def kernels_of(
    spec: RunSpec, arrays: Mapping[str, Array], place: Place
) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """See ``kernels.engines``: attention over pages, what appends to them, and the rotation."""
    rotate, rotations = recorder(place)
    given = unpaged_operands(spec, arrays, rotate)
    quantised = quantised_cache(spec, given)
    size = page_size(spec)
    table = np.broadcast_to(np.int32(0), (spec.batch, -(-spec.kv_len // size)))

    def place_input(array: Array) -> Any:
        return place(array, spec.dtype)

    def in_pages(x: Array, placed: PlaceArray) -> Rows:
        return page_rows(placed(x), (1, size, x.shape[1], x.shape[3]), place(table), table.shape)

    parts: list[tuple[Array, Array, PlaceArray]] = [(given.k, given.v, place_input)]
    if quantised is not None:
        parts = [(quantised.k.codes, quantised.v.codes, place)]
        if quantised.k.scale.ndim:
            parts.append((quantised.k.scale[..., None], quantised.v.scale[..., None], place))
    pages = [(in_pages(k, placed), in_pages(v, placed)) for k, v, placed in parts]
    keys, values = pages[0]
    if quantised is not None:
        scales = pages[1] if len(pages) > 1 else (None, None)
        keys, values = coded(keys, quantised.k, scales[0]), coded(values, quantised.v, scales[1])
    if spec.q_len <= MAX_DECODE_LEN:
        yield from decode_kernels(spec, given, keys, values, place)
    else:
        tiles = choose_tiling(spec, place.target)
        queries, out, lse = place_input(given.q), place_input(given.q), place(given.q, "float32")
        bound = terms(given, tiles, place)
        launched = flash_arguments(queries, keys, values, out, lse, bound=bound, given=given, tiles=tiles)
        yield "flash_forward", flash_forward, launched
    if "past_key" in arrays:
        lens = np.zeros(spec.batch, np.int32)
        past = arrays["past_key"].shape[2]
        for (k, v, placed), (to_k, to_v) in zip(parts, pages, strict=True):
            fresh = Fresh(k[:, :, past:], v[:, :, past:], lens, lens)
            launched = append_arguments(fresh, to_k, to_v, place, placed, interpreted=False)
            yield "append_rows", append_rows, launched
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


def described(cache: Cache) -> str:
    """What a result says of its pages."""
    blocks, size = cache.k.shape[:2]
    return f"{blocks} page{'s' * (blocks != 1)} of {size} token{'s' * (size != 1)}."


def cache_on_device(
    spec: RunSpec,
    arrays: Mapping[str, Array],
    given: Operands,
    quantised: QuantisedCache | None,
    *,
    place: PlaceArray,
    place_input: PlaceArray,
) -> tuple[Cache, Rows, Rows, Callable[[], None]]:
    """The pages, keys and values as kernels read them, and what appends the tokens that are still fresh."""
    if quantised is None:
        cache = make_cache(spec, arrays, given)
        keys, values = cache_rows(cache, place, place_input)
        return cache, keys, values, appender(cache, keys, values, place, place_input)
    cache = make_cache(spec, arrays, replace(given, k=quantised.k.codes, v=quantised.v.codes))
    keys, values = cache_rows(cache, place, place)
    append = appender(cache, keys, values, place, place)
    if quantised.k.scale.ndim == 0:
        return cache, coded(keys, quantised.k), coded(values, quantised.v), append
    # Scales are paged and appended as their tokens are: as keys and values one number wide.
    k_scale, v_scale = quantised.k.scale[..., None], quantised.v.scale[..., None]
    scales = make_cache(spec, arrays, replace(given, k=k_scale, v=v_scale))
    k_scales, v_scales = cache_rows(scales, place, place)
    append_scales = appender(scales, k_scales, v_scales, place, place)

    def append_both() -> None:
        append()
        append_scales()

    return cache, coded(keys, quantised.k, k_scales), coded(values, quantised.v, v_scales), append_both


def coded(pages: Rows, quantised: Quantised, scales: Rows | None = None) -> Rows:
    """Pages of codes, to be read as ``quantised`` says; each token with its own of ``scales`` if it has."""
    kv_dtype = tl.constexpr(quantised.kv_dtype)
    scale = None if scales else float(quantised.scale)
    return pages._replace(codes=Codes(kv_dtype, scale, scales))


def cache_rows(cache: Cache, place: PlaceArray, place_input: PlaceArray) -> tuple[Rows, Rows]:
    """Keys and values as kernels read and write them; tables go to ``place``, pages to ``place_input``."""
    return (
        page_rows(place_input(cache.k), cache.k.shape, place(cache.k_table), cache.k_table.shape),
        page_rows(place_input(cache.v), cache.v.shape, place(cache.v_table), cache.v_table.shape),
    )


def page_rows(pages: Any, shape: tuple[int, ...], table: Any, table_shape: tuple[int, ...]) -> Rows:
    """Pages [num_blocks, page_size, h_kv, dim] with their table [batch, max_blocks]."""
    _, size, heads, dim = shape
    return Rows(pages, size * heads * dim, dim, heads * dim, Pages(table, table_shape[1], max(size, 1)))


def appender(
    cache: Cache, keys: Rows, values: Rows, place: PlaceArray, place_input: PlaceArray
) -> Callable[[], None]:
    """What appends the fresh tokens of ``cache``, any number of times over: each token has its slot."""
    fresh = cache.fresh
    if fresh is None or 0 in fresh.k.shape[:3]:
        return lambda: None
    launched = append_arguments(fresh, keys, values, place, place_input, interpreted=INTERPRETED)
    batch, heads, new, _ = fresh.k.shape
    grid = (batch * heads, triton.cdiv(new, launched["BLOCK_T"]))

    def append() -> None:
        with on_device():
            append_rows[grid](**launched)

    return append


def append_arguments(
    fresh: Fresh, keys: Rows, values: Rows, place: PlaceArray, place_input: PlaceArray, *, interpreted: bool
) -> dict[str, Any]:
    """What ``append_rows`` is launched with."""
    (_, heads, new, d), e = fresh.k.shape, fresh.v.shape[3]
    width, v_width = padded_dim(d), padded_dim(e)
    most = INTERPRETER_BLOCK if interpreted else GPU_TILE // max(width, v_width)
    return {
        "NewK": rows(place_input(fresh.k), fresh.k.shape),
        "NewV": rows(place_input(fresh.v), fresh.v.shape),
        "K": keys,
        "V": values,
        "p_first": place(fresh.first),
        "p_count": place(fresh.count),
        "num_kv_heads": heads,
        "D": d,
        "DV": e,
        "BLOCK_D": width,
        "BLOCK_DV": v_width,
        "BLOCK_T": min(most, next_power_of_two(new)),
    }


def flash(
    q: torch.Tensor, keys: Rows, values: Rows, *, bound: Terms, given: Operands, tiles: Tiling
) -> dict[str, torch.Tensor]:
    """The flash kernel over pages: q [b, h, n, d] → out [b, h, n, e] (dtype of q), lse [b, h, n] float32."""
    batch, heads, n, _ = q.shape
    out = torch.empty((batch, heads, n, given.v.shape[3]), dtype=q.dtype, device=q.device)
    lse = torch.empty((batch, heads, n), dtype=torch.float32, device=q.device)
    if lse.numel():
        launched = flash_arguments(q, keys, values, out, lse, bound=bound, given=given, tiles=tiles)
        with on_device():
            flash_forward[(batch * heads, triton.cdiv(n, tiles.block_m))](**launched)
    return {"out": out, "lse": lse}


def flash_arguments(
    q: Any, keys: Rows, values: Rows, out: Any, lse: Any, *, bound: Terms, given: Operands, tiles: Tiling
) -> dict[str, Any]:
    """What ``flash_forward`` is launched with over pages."""
    e = given.v.shape[3]
    return {
        "Q": rows(q, given.q.shape),
        "K": keys,
        "V": values,
        "O": rows(out, (*given.q.shape[:3], e)),
        "p_lse": lse,
        "DV": e,
        "BLOCK_DV": padded_dim(e),
        **shared_arguments(given.q.shape, given.k.shape, bound, tiles),
    }
