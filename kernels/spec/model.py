"""The validated description of one attention computation: plain frozen data.

Everything that computes, estimates, stores or shows a run reads these classes; nothing in them needs torch,
Django or the arrays themselves. ``RunSpec.to_dict`` gives the normalised request body, ``RunSpec.from_dict``
takes it back.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from kernels.spec.families import BESIDE, PLAIN, Family, family_of
from kernels.spec.results import GRADIENTS, TRACE

Positions = int | tuple[int, ...] | tuple[tuple[int, ...], ...] | None
Slopes = str | tuple[float, ...] | tuple[tuple[float, ...], ...] | None


@dataclass(frozen=True)
class InputSpec:
    """One input array: its shape as sent, the dtype of its data and where the data come from."""

    shape: tuple[int, ...]
    dtype: str
    source: str  # "inline" | "seed" | "upload"
    seed: int | None = None
    distribution: str | None = None

    @property
    def elements(self) -> int:
        """How many numbers it holds."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Rope:
    """Rotary position embedding of q and the fresh k."""

    style: str  # "interleaved" | "half"
    theta: float = 10000.0
    dim: int | None = None
    dim_offset: int = 0
    positions: Positions = None
    scaling: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Attention:
    """The ``attention`` object of the contract, defaults included."""

    scale: float | None = None
    is_causal: bool = False
    causal_alignment: str = "bottom_right"  # | "top_left"
    q_positions: Positions = None
    kv_positions: Positions = None
    window: tuple[int | None, int | None] = (None, None)
    softcap: float = 0.0
    alibi_slopes: Slopes = None
    rope: Rope | None = None
    sinks: tuple[float, ...] | None = None
    pattern: Mapping[str, Any] | None = None
    num_heads: int | None = None
    num_kv_heads: int | None = None

    @property
    def sides(self) -> tuple[int | None, int | None]:
        """(left, right) of the window and causality together: a key is visible where its position is within
        left below and right above that of the query; None: unbounded."""
        left, right = self.window
        if self.is_causal:
            right = 0 if right is None else min(right, 0)
        return left, right

    @property
    def is_sparse(self) -> bool:
        """Whether a pattern or a window may leave out pairs that causality does not."""
        return self.pattern is not None or self.window != (None, None)


@dataclass(frozen=True)
class Options:
    """The ``options`` object: how to compute, never what."""

    block_m: int | None = None
    block_n: int | None = None
    num_splits: int | None = None
    page_size: int | None = None
    kv_dtype: str | None = None
    kv_scale: str = "per_token_head"
    more: Mapping[str, Any] = field(default_factory=dict)  # those that single engines declare, by name


@dataclass(frozen=True)
class Timing:
    """Untimed runs first, then timed ones."""

    warmup: int = 1
    iters: int = 5


@dataclass(frozen=True)
class RunSpec:
    """One attention computation. Sizes are those of the canonical ``[batch, heads, len, dim]`` view."""

    engine: str
    inputs: Mapping[str, InputSpec]
    device: str = "auto"
    dtype: str = "float32"
    attention: Attention = field(default_factory=Attention)
    returns: tuple[str, ...] = ("out",)
    options: Options = field(default_factory=Options)
    timing: Timing = field(default_factory=Timing)

    # -- sizes ---------------------------------------------------------------------------------------------

    @property
    def rank(self) -> int:
        """Rank of q, or of what decides it, as sent: 2, 3 or 4."""
        return len(self.inputs[self.family.first].shape)

    @property
    def family(self) -> Family:
        """Which inputs are there: q, k and v, or others in their place."""
        return family_of(self.inputs)

    @property
    def is_packed(self) -> bool:
        """Whether q, k, v are rank 3 ``[batch, len, heads·dim]``."""
        return self.attention.num_heads is not None

    @property
    def is_paged(self) -> bool:
        """Whether k and v are pages ``[num_blocks, page_size, kv_heads, dim]``."""
        return "block_table" in self.inputs

    @property
    def is_latent(self) -> bool:
        """Whether the inputs are those of MLA (``kernels.spec.families``)."""
        return "c_kv" in self.inputs

    def canonical_shape(self, name: str) -> tuple[int, int, int, int]:
        """``[batch, heads, len, dim]`` of q, k, v, the past or dout (a page keeps its own order).

        With inputs in the place of q, k and v, of those that are made from them, and of themselves, with 1
        for the axes that they lack: c_kv of MLA has one head, w_uk is ``[1, heads, d_c, dim]``.
        """
        family = self.family
        if name in family.made:
            return family.made_shape(name, {given: it.shape for given, it in self.inputs.items()})
        shape = self.inputs[name].shape
        if name in BESIDE or (family is not PLAIN and name in family.axes):
            return family.canonical_shape(name, shape, 4 if self.is_packed else self.rank)
        pages = self.is_paged and name in {"k", "v"}
        if self.is_packed and name in {"q", "k", "v", "dout"} and not pages:
            heads = self.num_heads if name in {"q", "dout"} else self.num_kv_heads
            return (shape[0], heads, shape[1], shape[2] // heads if heads else 0)
        padded = (1,) * (4 - len(shape)) + shape
        return (padded[0], padded[1], padded[2], padded[3])

    @property
    def batch(self) -> int:
        """Number of independent sequences."""
        return self.canonical_shape("q")[0]

    @property
    def num_heads(self) -> int:
        """Query heads."""
        return (
            self.attention.num_heads if self.attention.num_heads is not None else self.canonical_shape("q")[1]
        )

    @property
    def num_kv_heads(self) -> int:
        """Key and value heads; consecutive groups of query heads share one."""
        if self.is_paged:
            return self.canonical_shape("k")[2]
        if self.attention.num_heads is not None:
            given = self.attention.num_kv_heads
            return given if given is not None else self.attention.num_heads
        return self.canonical_shape("k")[1]

    @property
    def q_len(self) -> int:
        """Queries per sequence."""
        return self.canonical_shape("q")[2]

    @property
    def kv_len(self) -> int:
        """Keys per sequence, the past included."""
        if self.is_paged:
            return self.inputs["block_table"].shape[-1] * self.inputs["k"].shape[1]
        past = self.inputs["past_key"].shape[-2] if "past_key" in self.inputs else 0
        return self.canonical_shape("k")[2] + past

    @property
    def head_dim(self) -> int:
        """Width of q and k."""
        return self.canonical_shape("q")[3]

    @property
    def rope_head_dim(self) -> int:
        """Width of what RoPE turns: q and k, or with MLA inputs the parts that carry the position."""
        return self.inputs["q_rope"].shape[-1] if self.is_latent else self.head_dim

    @property
    def v_head_dim(self) -> int:
        """Width of v and of the output."""
        return self.canonical_shape("v")[3]

    @property
    def differentiates(self) -> bool:
        """Whether gradients are asked for."""
        return any(name in self.returns for name in GRADIENTS)

    @property
    def is_traced(self) -> bool:
        """Whether something of what a kernel holds on its way is asked for."""
        return any(name in self.returns for name in TRACE)

    @property
    def scale(self) -> float:
        """The factor on q·k: as asked for, else 1/√(true head dim); 1 where the head dim is 0."""
        if self.attention.scale is not None:
            return self.attention.scale
        return 1.0 / math.sqrt(self.head_dim) if self.head_dim else 1.0

    # -- JSON ----------------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """The normalised request body; arrays are described, not contained."""
        return {
            "engine": self.engine,
            "device": self.device,
            "dtype": self.dtype,
            "inputs": {name: _input_to_dict(given) for name, given in self.inputs.items()},
            "attention": _to_json(self.attention),
            "return": list(self.returns),
            "options": _to_json(self.options),
            "timing": _to_json(self.timing),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> RunSpec:
        """Inverse of :meth:`to_dict`; trusts its input."""
        attention = {name: _from_json(value) for name, value in data["attention"].items()}
        if attention["rope"] is not None:
            rope = {name: _from_json(value) for name, value in data["attention"]["rope"].items()}
            attention["rope"] = Rope(**{**rope, "scaling": data["attention"]["rope"]["scaling"]})
        attention["pattern"] = data["attention"]["pattern"]
        return cls(
            engine=data["engine"],
            device=data["device"],
            dtype=data["dtype"],
            inputs={name: _input_from_dict(value) for name, value in data["inputs"].items()},
            attention=Attention(**attention),
            returns=tuple(data["return"]),
            options=_options_from_dict(data["options"]),
            timing=Timing(**data["timing"]),
        )


@dataclass(frozen=True)
class ParsedRun:
    """A spec and the data of those inputs that came with the request (seeded ones are made by the worker)."""

    spec: RunSpec
    arrays: dict[str, Any]  # name -> numpy.ndarray, shaped as sent


def _input_to_dict(given: InputSpec) -> dict[str, Any]:
    described: dict[str, Any] = {"shape": list(given.shape), "dtype": given.dtype, "source": given.source}
    if given.source == "seed":
        described |= {"seed": given.seed, "distribution": given.distribution}
    return described


def _input_from_dict(data: Mapping[str, Any]) -> InputSpec:
    return InputSpec(
        tuple(data["shape"]), data["dtype"], data["source"], data.get("seed"), data.get("distribution")
    )


def _options_from_dict(data: Mapping[str, Any]) -> Options:
    shared = {f.name for f in fields(Options)}
    more = {name: value for name, value in data.items() if name not in shared}
    return Options(**{name: value for name, value in data.items() if name in shared}, more=more)


def _to_json(value: Any) -> Any:
    """Dataclasses become objects, tuples lists, infinities strings."""
    if isinstance(value, Options):
        shared = {f.name: getattr(value, f.name) for f in fields(value) if f.name != "more"}
        return {**shared, **value.more}
    if isinstance(value, Attention | Timing | Rope):
        return {f.name: _to_json(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, tuple):
        return [_to_json(item) for item in value]
    if isinstance(value, float) and math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return value


def _from_json(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_from_json(item) for item in value)
    return float(value) if value in ("inf", "-inf") else value
