"""What the MLA kernels are launched with: pointers, strides and tile sizes, for a launch or a compilation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import triton

from kernels.flash.arguments import Place, rows, strides, terms
from kernels.flash.logits import Terms
from kernels.flash.memory import Matrix, Rows
from kernels.flash.tiles import padded_dim
from kernels.mla.forms import projection_tiles
from kernels.mla.kernel import latent_attention, project
from kernels.operands import Latents, Operands
from kernels.tuning import Tiling

Launches = dict[str, dict[str, Any]]  # name -> keyword arguments
# By form, in order; ``flash_forward`` comes last in the expanded one.
KERNELS: dict[str, dict[str, Any]] = {
    "absorbed": {"absorb": project, "latent_attention": latent_attention, "release": project},
    "expanded": {"expand_keys": project, "expand_values": project},
}


@dataclass(frozen=True)
class Shapes:
    """Of the inputs, and of what is made between them and the output."""

    q_nope: tuple[int, ...]
    q_rope: tuple[int, ...]
    c_kv: tuple[int, ...]
    k_rope: tuple[int, ...]
    w_uk: tuple[int, ...]
    w_uv: tuple[int, ...]

    @classmethod
    def of(cls, latents: Latents) -> Shapes:
        """As ``Latents`` has them."""
        return cls(**{name: getattr(latents, name).shape for name in cls.__dataclass_fields__})

    @property
    def sums(self) -> tuple[int, ...]:
        """[b, h, n, c] of absorbed queries and of latents summed up by weights."""
        return (*self.q_nope[:3], self.c_kv[3])

    @property
    def out(self) -> tuple[int, ...]:
        """[b, h, n, e]."""
        return (*self.q_nope[:3], self.w_uv[3])

    @property
    def keys(self) -> tuple[int, ...]:
        """[b, h, m, d + r] of expanded keys."""
        return (*self.values[:3], self.w_uk[3] + self.k_rope[3])

    @property
    def values(self) -> tuple[int, ...]:
        """[b, h, m, e] of expanded values."""
        return (self.c_kv[0], self.w_uv[1], self.c_kv[2], self.w_uv[3])


def latent_terms(given: Operands, block_n: int, place: Place) -> Terms:
    """``arguments.terms`` for tiles that hold queries of all heads: which tiles of keys are visited is said
    for each query."""
    return terms(given, (1, block_n), place, group=max(given.q.shape[1], 1))


def absorbed_launches(
    shapes: Shapes,
    at: Mapping[str, Any],
    bound: Terms,
    tiles: Tiling,
    *,
    dtype: str,
    interpreted: bool,
) -> Launches:
    """``at``: the pointers, by name: the inputs, ``absorbed`` and ``sums``, ``out`` and ``lse``. ``bound``:
    see ``latent_terms``."""
    _, heads, q_len, _ = shapes.q_nope
    product = partial(_projection, dtype=dtype, interpreted=interpreted)
    queries, sums = rows(at["absorbed"], shapes.sums), rows(at["sums"], shapes.sums)
    w_uk, w_uv = (Matrix(at[name], *strides(getattr(shapes, name))) for name in ("w_uk", "w_uv"))
    transposed = w_uk._replace(stride_row=w_uk.stride_col, stride_col=w_uk.stride_row)
    q_nope, q_rope, latents, k_rope = (
        rows(at[name], getattr(shapes, name)) for name in ("q_nope", "q_rope", "c_kv", "k_rope")
    )
    return {
        "absorb": product(q_nope, transposed, queries, shapes.q_nope, shapes.sums),
        "latent_attention": {
            "Q": queries,
            "Q_ROPE": q_rope,
            "LATENT": latents,
            "K_ROPE": k_rope,
            "O": sums,
            "p_lse": at["lse"],
            "T": bound,
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
        },
        "release": product(sums, w_uv, rows(at["out"], shapes.out), shapes.sums, shapes.out),
    }


def expanded_launches(shapes: Shapes, at: Mapping[str, Any], *, dtype: str, interpreted: bool) -> Launches:
    """``at``: the pointers, by name: the inputs, ``keys`` and ``values``. Of each key the part that is made
    from a latent is written, its first columns."""
    product = partial(_projection, dtype=dtype, interpreted=interpreted)
    latents = rows(at["c_kv"], shapes.c_kv)
    w_uk, w_uv = (Matrix(at[name], *strides(getattr(shapes, name))) for name in ("w_uk", "w_uv"))
    keys, values = rows(at["keys"], shapes.keys), rows(at["values"], shapes.values)
    made = (*shapes.keys[:3], shapes.w_uk[3])
    return {
        "expand_keys": product(latents, w_uk, keys, shapes.c_kv, made),
        "expand_values": product(latents, w_uv, values, shapes.c_kv, shapes.values),
    }


def grid(name: str, launched: Mapping[str, Any], shapes: Shapes) -> tuple[int, ...]:
    """The grid of one of KERNELS; with a 0 in it there is nothing to launch."""
    batch, heads, q_len, _ = shapes.q_nope
    if name == "latent_attention":
        return (batch, triton.cdiv(q_len * heads, launched["BLOCK_M"]))
    by_rows = triton.cdiv(launched["num_rows"], launched["BLOCK_M"])
    return (heads, by_rows, triton.cdiv(launched["width_out"], launched["BLOCK_OUT"]))


def _projection(
    x: Rows,
    w: Matrix,
    y: Rows,
    x_shape: tuple[int, ...],
    y_shape: tuple[int, ...],
    *,
    dtype: str,
    interpreted: bool,
) -> dict[str, Any]:
    """The arguments of ``project``."""
    num_rows, width_in, width_out = y_shape[0] * y_shape[2], x_shape[3], y_shape[3]
    tiles = projection_tiles(num_rows, width_in, width_out, dtype, interpreted=interpreted)
    return {
        "X": x,
        "W": w,
        "Y": y,
        "num_rows": num_rows,
        "length": y_shape[2],
        "width_in": width_in,
        "width_out": width_out,
        **dict(zip(("BLOCK_M", "BLOCK_IN", "BLOCK_OUT"), tiles, strict=True)),
    }
