"""From a spec and its arrays to what every engine computes: all conveniences of the contract resolved.

Packing, pages, the past, rotary embedding, alignments, positions, windows and patterns are ways to say which
q, k and v meet and which pairs may see each other. They are resolved here, once, in numpy; an engine is left
with one problem:

    s = scale · q·k   →   softcap · tanh(s / softcap)   →   + slope · (kv_pos − q_pos)   →   + bias
    −∞ where the mask is false, kv_pos is outside [q_pos − left, q_pos + right], j ≥ kv_lens[b] or
    i ≥ q_lens[b]; a softmax over the keys, and a sink if there is one, in its denominator alone.

With the inputs of MLA, q, k and v are made here too: every engine that computes from them can run MLA.

All but MLA is linear in q, k and v, so that gradients find their way back by the adjoints
(``input_gradient``): a rotation by the opposite angle, a slice for a concatenation, a sum for a page that
several rows read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import DTypeLike

from kernels import positions
from kernels.arrays import Array
from kernels.patterns import pattern_mask
from kernels.rope import cos_sin, rotate
from kernels.spec.families import MLA_INPUTS
from kernels.spec.model import RunSpec
from kernels.spec.rope import rotated_dim


class Rotate(Protocol):
    """``kernels.rope.rotate``, or a kernel that does the same."""

    def __call__(self, x: Array, cos: Array, sin: Array, *, style: str, dim_offset: int) -> Array: ...


@dataclass(frozen=True)
class Latents:
    """The inputs of multi-head latent attention (``kernels.spec.families``), RoPE applied.

    Rank 4 throughout, so that they multiply by broadcasting. c, r, d and e are the widths of latents, of
    rotated keys, of the rest of a key, and of values.
    """

    q_nope: Array  # [b, h, n, d]
    q_rope: Array  # [b, h, n, r]
    c_kv: Array  # [b, 1, m, c]
    k_rope: Array  # [b, 1, m, r]
    w_uk: Array  # [1, h, c, d]
    w_uv: Array  # [1, h, c, e]

    def expanded(self) -> tuple[Array, Array, Array]:
        """q [b, h, n, d + r], k [b, h, m, d + r] and v [b, h, m, e] of ordinary attention."""
        with np.errstate(invalid="ignore", over="ignore"):  # what lies beyond the lengths may be anything
            k_nope, v = self.c_kv @ self.w_uk, self.c_kv @ self.w_uv
        k_rope = np.broadcast_to(self.k_rope, (*k_nope.shape[:3], self.k_rope.shape[3]))
        q = np.concatenate([self.q_nope, self.q_rope], axis=3)
        return q, np.concatenate([k_nope, k_rope], axis=3), v


@dataclass(frozen=True)
class Operands:
    """A spec with its data. b batch, h query heads, n queries, m keys, d and e widths of keys and values."""

    q: Array  # [b, h, n, d], rotated where the spec has RoPE
    k: Array  # [b, h_kv, m, d]: the past first, pages gathered, the fresh part rotated
    v: Array  # [b, h_kv, m, e]
    scale: float
    softcap: float  # 0: none
    left: int | None  # key visible iff q_pos − left ≤ kv_pos ≤ q_pos + right; None: unbounded
    right: int | None  # causal masking is right = 0
    q_positions: Array  # [b or 1, n] int64
    kv_positions: Array  # [b or 1, m] int64
    slopes: Array | None  # [b or 1, h] float32, ALiBi
    sinks: Array | None  # [h] float32
    mask: Array | None  # bool, 4-D, broadcasts to [b, h, n, m]: a boolean attn_mask AND the pattern
    bias: Array | None  # float32, 4-D, likewise: a float attn_mask
    q_lens: Array | None  # [b] int64: beyond them out and weights are 0 and the LSE is −∞
    kv_lens: Array | None  # [b] int64: what lies beyond is never read and may be NaN
    latents: Latents | None = None  # what q, k and v were made from

    @property
    def group(self) -> int:
        """See ``group_of``."""
        return group_of(self.q.shape[-3], self.k.shape[-3])


def group_of(heads: int, kv_heads: int) -> int:
    """Consecutive query heads that share a key head."""
    return heads // kv_heads if kv_heads else 1


def operands(
    spec: RunSpec,
    arrays: Mapping[str, Array],
    *,
    dtype: DTypeLike,
    expand: bool = True,
    rotate: Rotate = rotate,
) -> Operands:
    """``arrays``: canonical, as ``kernels.layout.to_canonical`` gives them. q, k and v come back in ``dtype``
    (numpy's). ``rotate`` turns them: in float64, unless an engine has a kernel of its own for it. Without
    ``expand`` those of MLA have their shapes but no memory: for an engine that computes from the latents."""
    q_lens, kv_lens = arrays.get("q_lens"), arrays.get("kv_lens")
    left, right = spec.attention.sides
    latents = _latents(spec, arrays, dtype, rotate) if spec.is_latent else None
    if latents is None:
        q, k, v = _plain(spec, arrays, dtype, rotate)
    elif expand:
        q, k, v = latents.expanded()
    else:
        nothing = np.zeros((), dtype)
        q, k, v = (np.broadcast_to(nothing, spec.canonical_shape(name)) for name in ("q", "k", "v"))
    mask, bias = _mask_and_bias(arrays.get("attn_mask"), pattern_mask(spec, q_lens, kv_lens))
    sinks = spec.attention.sinks
    return Operands(
        q=q,
        k=k,
        v=v,
        scale=spec.scale,
        softcap=spec.attention.softcap,
        left=left,
        right=right,
        q_positions=positions.query_positions(spec, q_lens, kv_lens),
        kv_positions=positions.key_positions(spec),
        slopes=positions.alibi_slopes(spec),
        sinks=None if sinks is None else np.array(sinks, dtype=np.float32),
        mask=mask,
        bias=bias,
        q_lens=q_lens,
        kv_lens=kv_lens,
        latents=latents,
    )


def _plain(
    spec: RunSpec, arrays: Mapping[str, Array], dtype: DTypeLike, rotate: Rotate
) -> tuple[Array, Array, Array]:
    """q, k and v where they are sent as such: pages gathered, rotated, the past in front."""
    q, k = arrays["q"].astype(dtype, copy=False), _fresh(arrays, "k", dtype)
    q, k = _rotated(spec, arrays, q, k, rotate)
    v = _fresh(arrays, "v", dtype)
    if "past_key" in arrays:
        k = np.concatenate([arrays["past_key"].astype(dtype), k], axis=2)
        v = np.concatenate([arrays["past_value"].astype(dtype), v], axis=2)
    return q, k, v


def _latents(spec: RunSpec, arrays: Mapping[str, Array], dtype: DTypeLike, rotate: Rotate) -> Latents:
    """The inputs of MLA in ``dtype``, those that carry the position rotated."""
    given = {name: arrays[name].astype(dtype, copy=False) for name in MLA_INPUTS}
    q_rope, k_rope = _rotated(spec, arrays, given["q_rope"], given["k_rope"], rotate)
    return Latents(**given | {"q_rope": q_rope, "k_rope": k_rope})


def without_padding(given: Operands) -> Operands:
    """With 0 in the place of whatever lies beyond the lengths."""
    k, v = zero_beyond(given.k, given.kv_lens), zero_beyond(given.v, given.kv_lens)
    return replace(given, q=zero_beyond(given.q, given.q_lens), k=k, v=v)


def zero_beyond(given: Array, lens: Array | None) -> Array:
    """[b, h, len, d] with zeros from ``lens[b]`` on: so are ``present_key`` and ``present_value`` made."""
    if lens is None:
        return given
    beyond = np.arange(given.shape[2]) >= lens[:, None]
    return np.where(beyond[:, None, :, None], given.dtype.type(0), given)


def input_gradient(spec: RunSpec, arrays: Mapping[str, Array], name: str, gradient: Array) -> Array:
    """The gradient of the input ``name`` (q, k or v) from that of the operand, 0 beyond the lengths.

    [b, h, n, d] for q. For k and v the fresh part [b, h_kv, len, d] alone, or the pages: a page that several
    rows read gets the sum of what they ask for, and one that none reads gets 0.
    """
    if name != "q" and "past_key" in arrays:
        gradient = gradient[:, :, arrays["past_key"].shape[2] :]
    if name != "v" and spec.attention.rope is not None:
        gradient = _unrotated(spec, arrays, name, gradient)
    if name != "q" and "block_table" in arrays:
        return _scatter_pages(gradient, arrays["block_table"], arrays[name].shape)
    return gradient


# -- masks ---------------------------------------------------------------------------------------------------


def _mask_and_bias(attn_mask: Array | None, pattern: Array | None) -> tuple[Array | None, Array | None]:
    """(bool, float32), each 4-D or None."""
    mask, bias = pattern, None
    if attn_mask is not None:
        full_rank = attn_mask.reshape((1,) * (4 - attn_mask.ndim) + attn_mask.shape)
        if attn_mask.dtype != np.bool_:
            bias = full_rank.astype(np.float32, copy=False)
        else:
            mask = full_rank if pattern is None else pattern & full_rank
    return mask, bias


# -- pages ---------------------------------------------------------------------------------------------------


def _fresh(arrays: Mapping[str, Array], name: str, dtype: DTypeLike) -> Array:
    """k or v as sent, [b, h_kv, len, dim]; pages put in a row."""
    if "block_table" not in arrays:
        return arrays[name].astype(dtype, copy=False)
    return gather_pages(arrays[name].astype(dtype, copy=False), arrays["block_table"])


def gather_pages(pages: Array, block_table: Array) -> Array:
    """pages [num_blocks, page_size, h_kv, dim], table [b, max_blocks] → [b, h_kv, max_blocks · page_size,
    dim]; zeros for a block of −1."""
    batch, blocks = block_table.shape
    _, size, heads, dim = pages.shape
    gathered = np.zeros((batch, blocks, size, heads, dim), dtype=pages.dtype)
    used = block_table >= 0
    gathered[used] = pages[block_table[used]]
    return np.ascontiguousarray(gathered.reshape(batch, blocks * size, heads, dim).transpose(0, 2, 1, 3))


def _scatter_pages(gradient: Array, block_table: Array, shape: tuple[int, ...]) -> Array:
    """The adjoint of ``gather_pages``."""
    batch, blocks = block_table.shape
    _, size, heads, dim = shape
    by_block = gradient.transpose(0, 2, 1, 3).reshape(batch, blocks, size, heads, dim)
    pages = np.zeros(shape, dtype=gradient.dtype)
    used = block_table >= 0
    with np.errstate(over="ignore", invalid="ignore"):  # of gradients that have overflowed
        np.add.at(pages, block_table[used], by_block[used])
    return pages


# -- rotary embedding ---------------------------------------------------------------------------------------


def _rotated(
    spec: RunSpec, arrays: Mapping[str, Array], q: Array, k: Array, rotate: Rotate
) -> tuple[Array, Array]:
    """q and the fresh k, rotated to their positions where the spec has RoPE."""
    rope = spec.attention.rope
    if rope is None:
        return q, k
    angles = rope_angles(spec, arrays)
    with np.errstate(invalid="ignore", over="ignore"):  # what lies beyond the lengths may be anything
        q, k = (
            rotate(x, *angles[name], style=rope.style, dim_offset=rope.dim_offset)
            for name, x in (("q", q), ("k", k))
        )
    return q, k


def _unrotated(spec: RunSpec, arrays: Mapping[str, Array], name: str, gradient: Array) -> Array:
    """The adjoint of a rotation (and of the attention factor in it): the same by the opposite angle."""
    rope = spec.attention.rope
    if rope is None:
        return gradient
    cos, sin = rope_angles(spec, arrays)[name]
    return rotate(gradient, cos, -sin, style=rope.style, dim_offset=rope.dim_offset)


def rope_angles(spec: RunSpec, arrays: Mapping[str, Array]) -> dict[str, tuple[Array, Array]]:
    """(cos, sin), each [b or 1, len, pairs] float64, for "q" and for the fresh "k" of a spec with RoPE.

    A scaling that depends on the length sees one for both; padding has no say in it.
    """
    rope = spec.attention.rope
    if rope is None:
        return {}
    q_lens, kv_lens = arrays.get("q_lens"), arrays.get("kv_lens")
    past = arrays["past_key"].shape[2] if "past_key" in arrays else 0
    if rope.positions is None:
        queries = positions.query_positions(spec, q_lens, kv_lens)
        keys = positions.key_positions(spec)[:, past:]
    else:
        queries = positions.resolve(rope.positions, spec.q_len)
        keys = positions.resolve(rope.positions, spec.kv_len - past)
    found = {
        "q": _without_padding(queries, q_lens),
        "k": _without_padding(keys, None if kv_lens is None else kv_lens - past),
    }
    length = 1 + max(int(x.max(initial=-1)) for x in found.values())
    dim = rotated_dim(rope, spec.rope_head_dim)
    return {name: cos_sin(rope, dim, x, length) for name, x in found.items()}


def _without_padding(given: Array, lens: Array | None) -> Array:
    """Positions [b or 1, len] with 0 in the place of padding."""
    if lens is None:
        return given
    return np.where(np.arange(given.shape[1]) < lens[:, None], given, 0)
