"""From a recurrence to what its kernels take, be it tensors or a compilation's stand-ins."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kernels.flash.arguments import Shape, rows
from kernels.flash.device import Launch
from kernels.integers import ceil_div
from kernels.linear.chunks import chunk_outputs, chunk_states
from kernels.linear.inputs import Recurrence
from kernels.linear.quadratic import quadratic
from kernels.linear.steps import token_steps
from kernels.linear.tiles import States, Tokens
from kernels.linear.tiling import Tiling


@dataclass(frozen=True)
class Bound:
    """A recurrence, of which only shapes are looked at, and pointers ``at`` its arrays, at the start_s and
    start_z of a state to start from, and at all that ``written`` names."""

    given: Recurrence
    at: Mapping[str, Any]
    tiling: Tiling

    @property
    def by_row(self) -> bool:
        """Whether each row of the state has a decay of its own."""
        return self.given.log_decay is not None and self.given.log_decay.shape[3] != 1

    @property
    def columns(self) -> int:
        """Programs beside each other; one where values have no dimensions, whose normaliser is a column."""
        return max(1, ceil_div(self.given.sizes.e, self.tiling.block_e))

    @property
    def chunks(self) -> int:
        """Chunks of keys."""
        return ceil_div(self.given.sizes.kv_len, self.tiling.block_t)

    def written(self, form: str) -> dict[str, Shape]:
        """Out; the last state, s and z; the states that chunks find; what the delta rule writes. All float32,
        but for out, which has the dtype of q."""
        sizes = self.given.sizes
        found: dict[str, Shape] = {"out": (sizes.batch, sizes.heads, sizes.q_len, sizes.e)}
        if form != "parallel":
            found |= self._state_shapes("", 1)
        if form == "chunked" and self.given.causal:
            found |= self._state_shapes("found_", self.chunks)
        if form == "chunked" and self.given.beta is not None:
            found["u"] = self._u_shape
        return found

    def launches(self, form: str) -> Iterator[Launch]:
        """The kernels of a form, in their order. Raises ValueError for a rule that the form cannot follow."""
        if self.by_row and form != "recurrent":
            raise ValueError(
                f"log_decay is as wide as q: form {form} takes one decay for a whole state; use form "
                "recurrent, or send log_decay with one number for each token"
            )
        if self.given.beta is not None and form == "parallel":
            raise ValueError(
                "beta asks for the delta rule, which form parallel cannot follow; use form chunked"
            )
        if form == "parallel":
            yield self._quadratic()
            return
        yield self._token_steps() if form == "recurrent" else self._chunk_states()
        if form == "chunked" or not self.given.causal:
            yield self._chunk_outputs()

    def _chunk_states(self) -> Launch:
        arguments = (
            self._walk()
            | self._tiles()
            | {
                "STATES": self._states("found_", self.chunks),
                "U": self._u.rows if self.given.beta is not None else None,
            }
        )
        return Launch("chunk_states", chunk_states, arguments, self._walk_grid)

    def _token_steps(self) -> Launch:
        sizes, reads = self.given.sizes, self.given.causal
        arguments = self._walk() | {
            "Q": self._tokens("q", sizes.heads) if reads else None,
            "O": self._out if reads else None,
            "scale": self.given.scale,
            "state_group": self._state_group,
            "WIDTH_G": sizes.d if self.by_row else 1,
            "BLOCK_G": self.tiling.block_d if self.by_row else 1,
        }
        return Launch("token_steps", token_steps, arguments, self._walk_grid)

    def _chunk_outputs(self) -> Launch:
        sizes, causal = self.given.sizes, self.given.causal
        u = self._u if self.given.beta is not None else self._tokens("v", sizes.heads)
        arguments = self._tiles() | {
            "Q": self._tokens("q", sizes.heads),
            "K": self._tokens("k", sizes.heads) if causal else None,
            "U": u if causal else None,
            "G": self._tokens("log_decay", sizes.heads),
            "STATES": self._states("found_", self.chunks) if causal else self._states("", 1),
            "O": self._out,
            "scale": self.given.scale,
            "num_heads": sizes.heads,
            "length": sizes.q_len,
            "state_group": self._state_group,
            "CAUSAL": causal,
        }
        return Launch("chunk_outputs", chunk_outputs, arguments, self._query_grid)

    def _quadratic(self) -> Launch:
        sizes = self.given.sizes
        arguments = self._tiles() | {
            "Q": self._tokens("q", sizes.heads),
            "K": self._tokens("k", sizes.heads),
            "V": self._tokens("v", sizes.heads),
            "G": self._tokens("log_decay", sizes.heads),
            "START": self._states("start_", 1),
            "O": self._out,
            "scale": self.given.scale,
            "num_heads": sizes.heads,
            "q_len": sizes.q_len,
            "kv_len": sizes.kv_len,
            "state_group": self._state_group,
            "CAUSAL": self.given.causal,
            "NORMALISED": self.given.normalised,
        }
        return Launch("quadratic", quadratic, arguments, self._query_grid)

    def _walk(self) -> dict[str, Any]:
        """What a kernel that carries a state takes."""
        sizes = self.given.sizes
        names = {"K": "k", "V": "v", "G": "log_decay", "BETA": "beta"}
        return {argument: self._tokens(name, sizes.state_heads) for argument, name in names.items()} | {
            "START": self._states("start_", 1),
            "LAST": self._states("", 1),
            "num_heads": sizes.state_heads,
            "length": sizes.kv_len,
            **self._widths(),
        }

    def _widths(self) -> dict[str, Any]:
        sizes, tiling = self.given.sizes, self.tiling
        blocks = {"BLOCK_D": tiling.block_d, "BLOCK_E": tiling.block_e}
        options = {"FEATURES": self.given.features, "num_warps": tiling.num_warps}
        return {"D": sizes.d, "E": sizes.e, **options, **blocks}

    def _tiles(self) -> dict[str, Any]:
        return self._widths() | {"BLOCK_T": self.tiling.block_t, "PRECISION": self.tiling.precision}

    def _tokens(self, name: str, heads: int) -> Tokens | None:
        array = getattr(self.given, name)
        return None if array is None else _tokens(self.at[name], tuple(array.shape), heads)

    def _states(self, prefix: str, count: int) -> States | None:
        """Those at ``prefix`` + s and z, ``count`` to a head; None where there are none."""
        if prefix + "s" not in self.at:
            return None
        shapes = self._state_shapes(prefix, count)
        return States(*(rows(self.at[name], shape) for name, shape in shapes.items()))

    def _state_shapes(self, prefix: str, count: int) -> dict[str, Shape]:
        sizes = self.given.sizes
        lead = (sizes.batch, sizes.state_heads)
        found: dict[str, Shape] = {prefix + "s": (*lead, count * sizes.d, sizes.e)}
        return found | ({prefix + "z": (*lead, count, sizes.d)} if self.given.normalised else {})

    @property
    def _out(self) -> Any:
        sizes = self.given.sizes
        return rows(self.at["out"], (sizes.batch, sizes.heads, sizes.q_len, sizes.e))

    @property
    def _u(self) -> Tokens:
        return _tokens(self.at["u"], self._u_shape, self.given.sizes.heads)

    @property
    def _u_shape(self) -> Shape:
        sizes = self.given.sizes
        return sizes.batch, sizes.state_heads, sizes.kv_len, sizes.e

    @property
    def _state_group(self) -> int:
        return self.given.sizes.heads // self.given.sizes.state_heads

    @property
    def _walk_grid(self) -> tuple[int, ...]:
        return self.given.sizes.batch * self.given.sizes.state_heads, self.columns

    @property
    def _query_grid(self) -> tuple[int, ...]:
        sizes = self.given.sizes
        return sizes.batch * sizes.heads, ceil_div(sizes.q_len, self.tiling.block_t), self.columns


def _tokens(pointer: Any, shape: Shape, heads: int) -> Tokens:
    """An array that ``heads`` heads of a grid read."""
    return Tokens(rows(pointer, shape), heads // shape[1])
