"""From attention by a score to what its kernels take, be it tensors or a compilation's stand-ins."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import triton.language as tl

from kernels.flash.arguments import Shape, rows, strides
from kernels.flash.device import Launch
from kernels.flash.logits import Terms
from kernels.flash.memory import Matrix
from kernels.flash.softmax import Kept
from kernels.flash.tiles import padded_dim
from kernels.integers import ceil_div
from kernels.mla.arguments import projection
from kernels.scoring.inputs import Scoring
from kernels.scoring.kernel import scored_forward, scored_matrices
from kernels.scoring.pairs import Score
from kernels.scoring.windows import Windows, predict_centres
from kernels.tuning import Tiling

YES = tl.constexpr(True)
CENTRES_BLOCK = 16  # queries of a program of ``predict_centres``, whose numbers have 64 bits
MATRICES = ("scores", "weights")


class Written(NamedTuple):
    """An array that a kernel writes."""

    shape: Shape
    dtype: str | None = None  # None: that of the inputs


@dataclass(frozen=True)
class Bound:
    """Attention by a score, of which only shapes are looked at, and pointers ``at`` its arrays, by their
    names and those of ``written``. ``masks``: see ``kernels.flash.arguments.terms``, for the tiling."""

    given: Scoring
    at: Mapping[str, Any]
    masks: Terms
    tiling: Tiling
    dtype: str
    wanted: Collection[str]  # of out, lse, kept_weight, scores and weights: the first two always are
    interpreted: bool

    def launches(self) -> Iterator[Launch]:
        """The kernels in their order."""
        yield from self._made()
        yield self._forward()
        if any(name in self.wanted for name in MATRICES):
            yield self._matrices()

    def _made(self) -> Iterator[Launch]:
        """What belongs to a query or a key alone."""
        given, made = self.given, written(self.given, self.wanted)
        if given.score == "additive":
            yield self._projected("q", "w_q", made["hidden_q"].shape)
            yield self._projected("k", "w_k", made["hidden_k"].shape)
        elif given.score == "general":
            yield self._projected("q", "w_general", made["projected"].shape)
        if given.span == "predictive":
            yield self._centres()

    def _projected(self, name: str, weights: str, shape: Shape) -> Launch:
        """Queries or keys times their weights, [heads, ·, width]; W of several heads that share a key is one
        matrix for it."""
        x, (_, heads, _, width) = getattr(self.given, name), shape
        by_head, _, _ = strides(tuple(self.given.parameters[weights].shape))
        of_head = x.shape[3] * width
        to = {"w_q": "hidden_q", "w_k": "hidden_k", "w_general": "projected"}[weights]
        # W q has a row of W to a hidden number, q W a column
        row, col = (width, 1) if weights == "w_general" else (1, x.shape[3])
        w = Matrix(self.at[weights], 0, of_head if by_head and heads > 1 else 0, row, col)
        return projection(
            f"{weights}_{name}", rows(self.at[name], tuple(x.shape)), w, rows(self.at[to], shape),
            x_shape=tuple(x.shape), y_shape=shape, dtype=self.dtype, interpreted=self.interpreted,
        )  # fmt: skip

    def _centres(self) -> Launch:
        batch, heads, n, d = self.given.q.shape
        arguments = {
            "Q": rows(self.at["q"], (batch, heads, n, d)),
            "W": self._matrix("w_p"),
            "V": self._vector("v_p"),
            "p_centre": self.at["centres"],
            "num_heads": heads,
            "q_len": n,
            "kv_len": self.given.k.shape[2],
            "hidden": self.given.parameters["v_p"].shape[1],
            "D": d,
            "BLOCK_D": padded_dim(d),
            "BLOCK_M": self.tiling.block_m if self.interpreted else CENTRES_BLOCK,
        }
        grid = (batch * heads, ceil_div(n, arguments["BLOCK_M"]))
        return Launch("predict_centres", predict_centres, arguments, grid)

    def _forward(self) -> Launch:
        batch, heads, n, _ = self.given.q.shape
        values = tuple(self.given.v.shape)
        arguments = self._shared() | {
            "V": rows(self.at["v"], values),
            "O": rows(self.at["out"], (batch, heads, n, values[3])),
            "p_lse": self.at["lse"],
            "p_share": self.at.get("kept_weight"),
            "kept": self._kept if "weights" in self.wanted else None,
            "DV": values[3],
            "BLOCK_DV": padded_dim(values[3]),
        }
        grid = (batch * heads, ceil_div(n, self.tiling.block_m))
        return Launch("scored_forward", scored_forward, arguments, grid)

    def _matrices(self) -> Launch:
        batch, heads, n, _ = self.given.q.shape
        arguments = self._shared() | {
            "kept": self._kept if "weights" in self.wanted else None,
            **{f"p_{name}": self.at.get(name) for name in MATRICES},
        }
        by_tile = (ceil_div(n, self.tiling.block_m), ceil_div(self.given.k.shape[2], self.tiling.block_n))
        return Launch("scored_matrices", scored_matrices, arguments, (batch * heads, *by_tile))

    def _shared(self) -> dict[str, Any]:
        _, heads, n, d = self.given.q.shape
        return {
            "S": self._score(),
            "T": self.masks,
            "X": self._windows(),
            "num_heads": heads,
            "group": self.given.group,
            "q_len": n,
            "kv_len": self.given.k.shape[2],
            "D": d,
            "BLOCK_D": padded_dim(d),
            "BLOCK_M": self.tiling.block_m,
            "BLOCK_N": self.tiling.block_n,
            "num_warps": self.tiling.num_warps,
            "num_stages": self.tiling.num_stages,
        }

    def _score(self) -> Score:
        given = self.given
        queries, keys = rows(self.at["q"], tuple(given.q.shape)), rows(self.at["k"], tuple(given.k.shape))
        if given.score == "additive":
            made = written(given, self.wanted)
            queries, keys = (rows(self.at[name], made[name].shape) for name in ("hidden_q", "hidden_k"))
            shares = made["hidden_k"].shape[3] == given.hidden
            step = 0 if shares else given.hidden
            return Score(queries, keys, V=self._vector("v_a"), hidden=given.hidden, step=step)
        if given.score == "concat":
            w, v = self._matrix("w_concat"), self._vector("v_a")
            return Score(queries, keys, V=v, W=w, hidden=given.hidden)
        if given.score == "general":
            queries = rows(self.at["projected"], tuple(given.q.shape))
        return Score(queries, keys, given.factor, normed=YES if given.score == "cosine" else None)

    def _windows(self) -> Windows | None:
        given = self.given
        if given.span == "global":
            return None
        if given.span == "monotonic":
            return Windows(None, given.half_width)
        return Windows(self.at["centres"], given.half_width, gaussian=YES)

    def _matrix(self, name: str) -> Matrix:
        """[1 or h, ·, ·]."""
        return Matrix(self.at[name], 0, *strides(tuple(self.given.parameters[name].shape)))

    def _vector(self, name: str) -> Matrix:
        """[1 or h, ·]."""
        head, col = strides(tuple(self.given.parameters[name].shape))
        return Matrix(self.at[name], 0, head, 0, col)

    @property
    def _kept(self) -> Kept:
        return Kept(self.at["m"], self.at["l"])


def written(given: Scoring, wanted: Collection[str]) -> dict[str, Written]:
    """What the kernels write where ``wanted`` is: out and lse, of the others those named, and what is made on
    the way to them."""
    (batch, heads, n, d), (_, kv_heads, m, _) = given.q.shape, given.k.shape
    by_row = (batch, heads, n)
    found = {"out": Written((*by_row, given.v.shape[3])), "lse": Written(by_row, "float32")}
    if given.score == "additive":
        found["hidden_q"] = Written((*by_row, given.hidden), "float32")
        shared = given.parameters["w_k"].shape[0] == 1
        width = given.hidden * (1 if shared else given.group)
        found["hidden_k"] = Written((batch, kv_heads, m, width), "float32")
    elif given.score == "general":
        found["projected"] = Written((*by_row, d), "float32")
    if given.span == "predictive":
        found["centres"] = Written(by_row, "float64")
    if "weights" in wanted:
        found |= dict.fromkeys(("m", "l"), Written(by_row, "float32"))
    if "kept_weight" in wanted:
        found["kept_weight"] = Written(by_row, "float32")
    return found | {name: Written((*by_row, m), "float32") for name in MATRICES if name in wanted}
