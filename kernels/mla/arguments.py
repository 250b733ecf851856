"""What the MLA kernels are launched with: pointers, strides, tile sizes and grids."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from kernels.engines import Place
from kernels.flash.arguments import Shape, rows, strides, terms
from kernels.flash.device import Launch, rows_of_a_program
from kernels.flash.logits import Terms
from kernels.flash.memory import Matrix, Rows
from kernels.flash.tiles import padded_dim
from kernels.integers import ceil_div
from kernels.mla.forms import projection_tiles
from kernels.mla.kernel import latent_attention, project, share_columns
from kernels.operands import Operands
from kernels.spec.families import MLA_INPUTS
from kernels.tuning import Tiling

SHARED_BLOCK = 32  # rows of a program of ``share_columns`` on a GPU


@dataclass(frozen=True)
class LatentShapes:
    """Of the inputs, and of what is made between them and the output."""

    q_nope: Shape
    q_rope: Shape
    c_kv: Shape
    k_rope: Shape
    w_uk: Shape
    w_uv: Shape

    @classmethod
    def of(cls, inputs: Mapping[str, Any]) -> LatentShapes:
        """Of arrays or tensors by name, as ``Latents`` has them."""
        return cls(**{name: tuple(inputs[name].shape) for name in MLA_INPUTS})

    @property
    def sums(self) -> Shape:
        """[b, h, n, c] of absorbed queries and of latents summed up by weights."""
        return (*self.q_nope[:3], self.c_kv[3])

    @property
    def out(self) -> Shape:
        """[b, h, n, e]."""
        return (*self.q_nope[:3], self.w_uv[3])

    @property
    def keys(self) -> Shape:
        """[b, h, m, d + r] of expanded keys."""
        return (*self.values[:3], self.w_uk[3] + self.k_rope[3])

    @property
    def values(self) -> Shape:
        """[b, h, m, e] of expanded values."""
        return (self.c_kv[0], self.w_uv[1], self.c_kv[2], self.w_uv[3])


def latent_terms(given: Operands, block_n: int, place: Place) -> Terms:
    """``arguments.terms`` for tiles that hold queries of all heads: which tiles of keys are visited is said
    for each query."""
    return terms(given, (1, block_n), place, group=max(given.q.shape[1], 1))


def absorbed_launches(
    shapes: LatentShapes,
    at: Mapping[str, Any],
    logit_terms: Terms,
    tiles: Tiling,
    *,
    dtype: str,
    interpreted: bool,
) -> list[Launch]:
    """Queries absorbed, attention over latents, and what it sums up released into values.

    ``at``: the pointers, by name: the inputs, ``absorbed`` and ``sums``, ``out`` and ``lse``.
    ``logit_terms``: see ``latent_terms``.
    """
    batch, heads, q_len, _ = shapes.q_nope
    product = partial(projection, dtype=dtype, interpreted=interpreted)
    queries, sums = rows(at["absorbed"], shapes.sums), rows(at["sums"], shapes.sums)
    out = rows(at["out"], shapes.out)
    w_uk, w_uv = _weights(shapes, at)
    transposed = w_uk._replace(stride_row=w_uk.stride_col, stride_col=w_uk.stride_row)
    q_nope, q_rope, latents, k_rope = (
        rows(at[name], getattr(shapes, name)) for name in ("q_nope", "q_rope", "c_kv", "k_rope")
    )
    attention = {
        "Q": queries,
        "Q_ROPE": q_rope,
        "LATENT": latents,
        "K_ROPE": k_rope,
        "O": sums,
        "p_lse": at["lse"],
        "T": logit_terms,
        "num_heads": heads,
        "q_len": q_len,
        "kv_len": shapes.c_kv[2],
        "C": shapes.c_kv[3],
        "ROPE": shapes.k_rope[3],
        "BLOCK_C": padded_dim(shapes.c_kv[3]),
        "BLOCK_ROPE": padded_dim(shapes.k_rope[3]),
        "BLOCK_M": tiles.block_m,
        "BLOCK_N": tiles.block_n,
        "num_warps": tiles.num_warps,
        "num_stages": tiles.num_stages,
    }
    grid = (batch, ceil_div(q_len * heads, tiles.block_m))
    return [
        product("absorb", q_nope, transposed, queries, x_shape=shapes.q_nope, y_shape=shapes.sums),
        Launch("latent_attention", latent_attention, attention, grid),
        product("release", sums, w_uv, out, x_shape=shapes.sums, y_shape=shapes.out),
    ]


def expanded_launches(
    shapes: LatentShapes, at: Mapping[str, Any], *, dtype: str, interpreted: bool
) -> list[Launch]:
    """Keys and values made, for ``flash_forward`` to come after.

    ``at``: the pointers, by name: the inputs, ``keys`` and ``values``. The first columns of a key are made
    from a latent, the others are k_rope.
    """
    product = partial(projection, dtype=dtype, interpreted=interpreted)
    latents = rows(at["c_kv"], shapes.c_kv)
    w_uk, w_uv = _weights(shapes, at)
    keys, values = rows(at["keys"], shapes.keys), rows(at["values"], shapes.values)
    made = (*shapes.keys[:3], shapes.w_uk[3])
    return [
        product("expand_keys", latents, w_uk, keys, x_shape=shapes.c_kv, y_shape=made),
        product("expand_values", latents, w_uv, values, x_shape=shapes.c_kv, y_shape=shapes.values),
        _sharing(rows(at["k_rope"], shapes.k_rope), keys, shapes, interpreted=interpreted),
    ]


def _weights(shapes: LatentShapes, at: Mapping[str, Any]) -> tuple[Matrix, Matrix]:
    """w_uk and w_uv."""
    w_uk, w_uv = (Matrix(at[name], *strides(getattr(shapes, name))) for name in ("w_uk", "w_uv"))
    return w_uk, w_uv


def _sharing(k_rope: Rows, keys: Rows, shapes: LatentShapes, *, interpreted: bool) -> Launch:
    """Of ``share_columns``, which brings k_rope to the keys of every head."""
    batch, heads, length, _ = shapes.keys
    width = shapes.k_rope[3]
    block = rows_of_a_program(length, SHARED_BLOCK, interpreted=interpreted)
    arguments = {
        "X": k_rope,
        "Y": keys,
        "num_heads": heads,
        "length": length,
        "FIRST": shapes.w_uk[3],
        "WIDTH": width,
        "BLOCK_WIDTH": padded_dim(width),
        "BLOCK_M": block,
    }
    return Launch("share_rope", share_columns, arguments, (batch * heads, ceil_div(length, block)))


def projection(
    name: str,
    x: Rows,
    w: Matrix,
    y: Rows,
    *,
    x_shape: Shape,
    y_shape: Shape,
    dtype: str,
    interpreted: bool,
) -> Launch:
    """Of ``project``, y = x · w for each head."""
    batch, heads, length, width_out = y_shape
    num_rows, width_in = batch * length, x_shape[3]
    block_m, block_in, block_out = projection_tiles(
        num_rows, width_in, width_out, dtype, interpreted=interpreted
    )
    if not interpreted:
        block_m = rows_of_a_program(num_rows, block_m, interpreted=False)
    arguments = {
        "X": x,
        "W": w,
        "Y": y,
        "num_rows": num_rows,
        "length": length,
        "width_in": width_in,
        "width_out": width_out,
        "BLOCK_M": block_m,
        "BLOCK_IN": block_in,
        "BLOCK_OUT": block_out,
    }
    grid = (heads, ceil_div(num_rows, block_m), ceil_div(width_out, block_out))
    return Launch(name, project, arguments, grid)
