"""One convention changed, and everything else as it was: the flips that apply to a spec.

Each is the spec after the change, and the inputs that the change replaces, where there are such. What a flip
teaches is said where it is shown; here is what it does, in one table. A flip that cannot change any number of
this spec says why (``idle``): it is worth knowing, and not worth a run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from kernels import refusals
from kernels.arrays import Array
from kernels.positions import alibi_slopes, visible_pairs
from kernels.registry import ENGINES
from kernels.spec.families import PLAIN
from kernels.spec.model import InputSpec, Options, RunSpec
from kernels.spec.patterns import pattern_problems

SOFTCAP = 5.0  # where one is put on: scores beyond it are bent visibly
SINK = 0.0  # a logit: one more key that scores 0 and has no value
DTYPES = ("float32", "float16", "bfloat16")
RANDOM_SEED = 0  # of BigBird's blocks
MASK_SHAPE = 2  # a mask [1, kv_len] is the same for all queries
STEEPER = 2.0  # times: slopes of ALiBi
FARTHEST = 128  # keys: in longer texts windows of every size are too many

# Why a flip changes nothing.
SAME_LENGTHS, NOTHING_FORBIDDEN = "same_lengths", "nothing_forbidden"

Inputs = Mapping[str, Array]


def _nothing(_: Inputs) -> dict[str, Array]:
    return {}


@dataclass(frozen=True)
class Flip:
    """``to`` is what ``kind`` is changed to. ``replaced``: from the inputs as sent to those that differ."""

    kind: str
    to: str
    spec: RunSpec
    replaced: Callable[[Inputs], dict[str, Array]] = field(default=_nothing, compare=False)
    idle: str = ""

    @property
    def name(self) -> str:
        return f"{self.kind}.{self.to}"

    @property
    def is_numeric(self) -> bool:
        """Whether it says how to compute and not what: in float64 nothing changes but the rounded inputs."""
        return self.kind in ("dtype", "engine")


def flips(spec: RunSpec) -> list[Flip]:
    """All that apply, in the order of the table; those that the engine takes."""
    if spec.engine not in ENGINES:  # a run may outlive an engine
        return []
    return [flip for make in _TABLE for flip in make(spec) if flip.idle or takes(flip.spec)]


def reaches(spec: RunSpec) -> Iterator[Flip]:
    """Other stretches of keys that a causal query may see: windows of every size from either corner, and a
    diagonal that starts anywhere. Too many for buttons; one of them may explain an output. For runs that give
    neither positions nor lengths of their own. A window of one key is left out: it returns v."""
    attention = spec.attention
    own = attention.q_positions is not None or attention.kv_positions is not None
    if own or {"q_lens", "kv_lens"} & spec.inputs.keys() or spec.kv_len > FARTHEST:
        return
    away = spec.kv_len - spec.q_len
    for corner, last in (("bottom_right", spec.kv_len - 1), ("top_left", spec.q_len - 1)):
        for left in range(1, min(last, spec.kv_len) if away or corner == "bottom_right" else 0):
            changes = {"is_causal": True, "causal_alignment": corner, "pattern": None, "window": (left, None)}
            yield Flip("reach", f"{left}_{corner}", _attention(spec, **changes))
    if attention.rope is None and attention.alibi_slopes is None:
        for first in range(1 - spec.q_len, spec.kv_len - 1):
            if first not in (0, away):
                yield Flip("diagonal", str(first), _attention(spec, is_causal=True, q_positions=first))


def conventions(spec: RunSpec) -> list[Flip]:
    """Those that change what is computed, whatever an engine takes."""
    return [flip for make in _TABLE for flip in make(spec) if not (flip.is_numeric or flip.idle)]


def find(spec: RunSpec, name: str) -> Flip | None:
    """The flip of that name, if it applies and is worth a run."""
    return next((flip for flip in _worth_a_run(spec) if flip.name == name), None)


def between(first: RunSpec, second: RunSpec) -> Flip | None:
    """The flip that leads from one spec to the other, where one does."""
    wanted = _essence(second)
    return next((flip for flip in _worth_a_run(first) if _essence(flip.spec) == wanted), None)


def _worth_a_run(spec: RunSpec) -> Iterator[Flip]:
    yield from (flip for flip in flips(spec) if not flip.idle)
    if spec.engine in ENGINES:
        yield from (flip for flip in reaches(spec) if takes(flip.spec))


def takes(spec: RunSpec) -> bool:
    return not refusals.refused(spec) and not pattern_problems(spec)


def _essence(spec: RunSpec) -> Any:
    """Of a spec what is neither the source of its inputs nor a choice of how to run it."""
    shapes = {name: tuple(given.shape) for name, given in spec.inputs.items()}
    return spec.engine, spec.dtype, shapes, spec.attention


def _attention(spec: RunSpec, **changes: Any) -> RunSpec:
    return replace(spec, attention=replace(spec.attention, **changes))


# -- who stands where, who sees whom -------------------------------------------------------------------------


def _alignment(spec: RunSpec) -> Iterator[Flip]:
    """Only positions feel it: causality, windows, ALiBi and RoPE."""
    attention = spec.attention
    sided = (
        attention.sides != (None, None) or attention.alibi_slopes is not None or attention.rope is not None
    )
    own = attention.rope is not None and attention.rope.positions is not None
    if not sided or attention.q_positions is not None or (own and attention.sides == (None, None)):
        return
    other = "top_left" if attention.causal_alignment == "bottom_right" else "bottom_right"
    same = spec.q_len == spec.kv_len and not {"q_lens", "kv_lens"} & spec.inputs.keys()
    flipped = _attention(spec, causal_alignment=other)
    yield Flip("causal_alignment", other, flipped, idle=SAME_LENGTHS if same else "")


def _causal(spec: RunSpec) -> Iterator[Flip]:
    is_causal = spec.attention.is_causal
    flipped = _attention(spec, is_causal=not is_causal)
    plain = not {"q_lens", "kv_lens"} & spec.inputs.keys()
    idle = NOTHING_FORBIDDEN if plain and visible_pairs(flipped) == visible_pairs(spec) else ""
    yield Flip("causal", "off" if is_causal else "on", flipped, idle=idle)


def _padding(spec: RunSpec) -> Iterator[Flip]:
    """A causal mask in the place of one of padding, and the other way round."""
    inputs, is_causal = spec.inputs, spec.attention.is_causal
    if "kv_lens" in inputs and "q_lens" not in inputs and spec.family is PLAIN:
        rest = {name: given for name, given in inputs.items() if name != "kv_lens"}
        if not is_causal:
            yield Flip("padding", "causal", _attention(replace(spec, inputs=rest), is_causal=True))
        else:
            yield Flip("padding", "seen", replace(spec, inputs=rest))
    mask = inputs.get("attn_mask")
    if mask is not None and not is_causal and mask.dtype == "bool" and _is_for_all_queries(mask.shape):
        rest = {name: given for name, given in inputs.items() if name != "attn_mask"}
        yield Flip("padding", "causal", _attention(replace(spec, inputs=rest), is_causal=True))
    if is_causal and mask is None and "kv_lens" not in inputs and spec.kv_len > 1:
        shape = (1, spec.kv_len)
        masked = replace(spec, inputs={**inputs, "attn_mask": InputSpec(shape, "bool", "inline")})
        yield Flip("padding", "mask", _attention(masked, is_causal=False), _last_quarter(spec.kv_len))


def _is_for_all_queries(shape: tuple[int, ...]) -> bool:
    return len(shape) < MASK_SHAPE or shape[-MASK_SHAPE] == 1


def padded(kv_len: int) -> int:
    """How many keys are taken for padding where nobody said: a quarter."""
    return max(1, kv_len // 4)


def _last_quarter(kv_len: int) -> Callable[[Inputs], dict[str, Array]]:
    return lambda _: {"attn_mask": np.arange(kv_len)[None] < kv_len - padded(kv_len)}


def _window(spec: RunSpec) -> Iterator[Flip]:
    """One more, one less: whether the ends are included."""
    window = spec.attention.window
    for place, side in enumerate(("left", "right")):
        here = window[place]
        for step, by in (("more", 1), ("less", -1)):
            if here is None or here + by < 0:
                continue
            sides = (here + by, window[1]) if place == 0 else (window[0], here + by)
            flipped = _attention(spec, window=sides)
            if flipped.attention.sides != spec.attention.sides:
                yield Flip("window", f"{side}_{step}", flipped)


def _pattern(spec: RunSpec) -> Iterator[Flip]:
    attention = spec.attention
    if attention.is_sparse:
        yield Flip("pattern", "full", _attention(spec, pattern=None, window=(None, None)))
    size = max(1, min(spec.q_len, spec.kv_len) // 4)
    right = 0 if attention.is_causal else size
    if attention.window == (None, None) and spec.kv_len > size:
        yield Flip("pattern", "window", _attention(spec, pattern=None, window=(size, right)))
    block = max(1, min(spec.q_len, spec.kv_len) // 8)
    bigbird = {"type": "bigbird", "window": 3, "global": 1, "random": 1, "seed": RANDOM_SEED, "block": block}
    if (attention.pattern or {}).get("type") != "bigbird" and spec.kv_len > 3 * block:
        yield Flip("pattern", "bigbird", _attention(spec, pattern=bigbird, window=(None, None)))


# -- what a score is -----------------------------------------------------------------------------------------


def _rope(spec: RunSpec) -> Iterator[Flip]:
    rope = spec.attention.rope
    if rope is not None:
        other = "half" if rope.style == "interleaved" else "interleaved"
        yield Flip("rope_pairing", other, _attention(spec, rope=replace(rope, style=other)))
        yield Flip("rope", "off", _attention(spec, rope=None))


def _scale(spec: RunSpec) -> Iterator[Flip]:
    if spec.head_dim > 1:
        to, scale = ("none", 1.0) if spec.attention.scale is None else ("root", None)
        yield Flip("scale", to, _attention(spec, scale=scale))


def _softcap(spec: RunSpec) -> Iterator[Flip]:
    cap = spec.attention.softcap
    yield Flip("softcap", "off" if cap else "on", _attention(spec, softcap=0.0 if cap else SOFTCAP))


def _sink(spec: RunSpec) -> Iterator[Flip]:
    sinks = spec.attention.sinks
    other = (SINK,) * spec.num_heads if sinks is None else None
    yield Flip("sink", "on" if sinks is None else "off", _attention(spec, sinks=other))


def _alibi(spec: RunSpec) -> Iterator[Flip]:
    slopes = alibi_slopes(spec)
    if slopes is None:
        yield Flip("alibi", "on", _attention(spec, alibi_slopes="auto"))
        return
    for to, factor in (("steeper", STEEPER), ("sign", -1.0)):
        rows = tuple(tuple(float(factor * slope) for slope in row) for row in slopes)
        yield Flip("alibi", to, _attention(spec, alibi_slopes=rows[0] if len(rows) == 1 else rows))
    yield Flip("alibi", "off", _attention(spec, alibi_slopes=None))


def _heads(spec: RunSpec) -> Iterator[Flip]:
    """Query head h reads key head h mod (number of key heads), not h ∕ group: k and v repeated as they are
    tiled, a key head for each query head."""
    kv, whole = spec.num_kv_heads, spec.num_heads
    beside = {"block_table", "past_key", "past_value"} & spec.inputs.keys()
    if not 1 < kv < whole or spec.family is not PLAIN or spec.is_packed or beside:
        return

    def tiled(inputs: Inputs) -> dict[str, Array]:
        times = whole // kv
        return {name: np.concatenate([inputs[name]] * times, axis=-3) for name in ("k", "v")}

    shapes = {
        name: replace(given, shape=(*given.shape[:-3], whole, *given.shape[-2:]), source="inline", seed=None)
        for name, given in spec.inputs.items()
        if name in ("k", "v")
    }
    yield Flip("heads", "interleaved", replace(spec, inputs={**spec.inputs, **shapes}), tiled)


# -- how it is computed --------------------------------------------------------------------------------------


def _dtype(spec: RunSpec) -> Iterator[Flip]:
    for dtype in DTYPES:
        if dtype != spec.dtype:
            yield Flip("dtype", dtype, replace(spec, dtype=dtype))


def _engine(spec: RunSpec) -> Iterator[Flip]:
    """Those that compute the same first. Options are the engine's own, and are left behind."""
    for name in sorted(ENGINES, key=lambda name: ENGINES[name].computes != ENGINES[spec.engine].computes):
        engine = ENGINES[name]
        if name == spec.engine:
            continue
        returns = tuple(result for result in spec.returns if result in engine.returns) or ("out",)
        device = spec.device if spec.device in engine.devices else "auto"
        yield Flip(
            "engine", name, replace(spec, engine=name, returns=returns, device=device, options=Options())
        )


_TABLE: tuple[Callable[[RunSpec], Iterator[Flip]], ...] = (
    _alignment,
    _causal,
    _padding,
    _rope,
    _window,
    _scale,
    _softcap,
    _sink,
    _alibi,
    _heads,
    _pattern,
    _dtype,
    _engine,
)
