"""RoPE: one function, with the lines of the scaling that is asked for."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from kernels import positions
from kernels.rope import frequencies, rotation_index
from kernels.spec.model import Rope
from kernels.spec.rope import BETA_FAST, BETA_SLOW, EXTENDED, ORIGINAL, field, rotated_dim
from lab.sharing.program.facts import Facts, Lines, is_by_row, typed
from lab.sharing.program.literals import literal
from lab.sharing.program.places import with_suffix

Scaling = Mapping[str, Any]


def function(facts: Facts) -> Lines:
    rope = facts.spec.attention.rope
    if rope is None:
        return []
    dim, start = rotated_dim(rope, facts.spec.rope_head_dim), rope.dim_offset
    end, half = start + dim, start + dim // 2
    length = positions_in_use(facts, rope)
    factor = frequencies(rope, dim, length)[1]
    times = f"{factor!r} * " if factor != 1.0 else ""
    if rope.style == "interleaved":
        pairs = f"    a, b = x[..., {start}:{end}:2], x[..., {start + 1}:{end}:2]  # neighbours are a pair"
        joined = "torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)"
    else:
        pairs = f"    a, b = x[..., {start}:{half}], x[..., {half}:{end}]  # a pair is half the width apart"
        joined = "torch.cat([a * cos - b * sin, a * sin + b * cos], -1)"
    is_whole = dim == facts.spec.rope_head_dim
    return [
        "",
        "",
        "def rope(x, positions):",
        '    """Turn each pair of dimensions by its position times its frequency."""',
        *omega(rope, dim, length),
        "    angle = positions[..., None] * omega",
        f"    cos, sin = {times}angle.cos(), {times}angle.sin()",
        pairs,
        *(
            [f"    return {joined}"]
            if is_whole
            else [
                f"    turned = {joined}",
                f"    return torch.cat([x[..., :{start}], turned, x[..., {end}:]], -1)",
            ]
        ),
    ]


def positions_in_use(facts: Facts, rope: Rope) -> int:
    """What a scaling that depends on the length sees: padding has no say in it."""
    spec, past = facts.spec, facts.past
    if rope.positions is None:
        q, k = facts.query_positions(), facts.key_positions()[:, past:]
    else:
        q, k = (
            positions.resolve(rope.positions, spec.q_len),
            positions.resolve(rope.positions, spec.kv_len - past),
        )
    lens = facts.lengths
    if "q_lens" in lens:
        q = np.where(np.arange(q.shape[1]) < lens["q_lens"][:, None], q, 0)
    if "kv_lens" in lens:
        k = np.where(np.arange(k.shape[1]) < lens["kv_lens"][:, None] - past, k, 0)
    return 1 + max(int(q.max(initial=-1)), int(k.max(initial=-1)))


def turning(facts: Facts) -> Lines:
    """Turn the queries and the fresh keys."""
    rope = facts.spec.attention.rope
    if rope is None:
        return []
    q, k = ("q_rope", "k_rope") if facts.spec.is_latent else ("q", "k")
    if rope.positions is None:
        at_q, at_k = at(facts, "i"), at(facts, "j")
        return [f"{q} = rope({q}, {at_q})", f"{k} = rope({k}, {at_k})"]
    lines: Lines = []
    given = rope.positions
    lines += place(facts, "turn_q", given, facts.spec.q_len)
    lines += place(facts, "turn_k", given, facts.spec.kv_len - facts.past)
    return [*lines, f"{q} = rope({q}, turn_q)", f"{k} = rope({k}, turn_k)"]


def at(facts: Facts, name: str) -> str:
    """The positions of `i` (a column) or `j` (a row) as [length] or [batch, 1, length]."""
    if name == "i":
        return "i[..., 0]"
    fresh = f"[..., {facts.past}:]" if facts.past else ""
    batched = is_by_row(facts.spec.attention.kv_positions)
    return f"j{fresh}[..., 0, :]" if batched else f"j{fresh}"


def place(facts: Facts, name: str, given: Any, length: int) -> Lines:
    if isinstance(given, int):
        return [f"{name} = torch.arange({given}, {given + length})"]
    lines = typed(name, [list(row) if isinstance(row, tuple) else row for row in given])
    return with_suffix(lines, "[:, None]") if is_by_row(given) else lines


# -- frequencies -----------------------------------------------------------------------------------


def omega(rope: Rope, dim: int, length: int) -> Lines:
    """`omega`, the radians by which each pair turns from one position to the next."""
    scaling = rope.scaling
    if scaling is None:
        return [powers(repr(rope.theta), dim)]
    return SCALINGS[scaling["type"]](scaling, rope.theta, dim, length)


def powers(theta: str, dim: int) -> str:
    return f"    omega = {theta} ** (-torch.arange(0, {dim}, 2, dtype=torch.float64) / {dim})"


def linear(scaling: Scaling, theta: float, dim: int, length: int) -> Lines:
    return [powers(repr(theta), dim) + f" / {scaling['factor']!r}  # linear scaling"]


def stretched(theta: float, factor: str, dim: int) -> Lines:
    if dim <= 2:
        return [powers(repr(theta), dim)]
    return [
        f"    theta = {theta!r} * {factor} ** ({dim} / {dim - 2})  # the slowest pair is that much slower",
        powers("theta", dim),
    ]


def ntk(scaling: Scaling, theta: float, dim: int, length: int) -> Lines:
    return stretched(theta, repr(scaling["factor"]), dim)


def dynamic(scaling: Scaling, theta: float, dim: int, length: int) -> Lines:
    original, s = original_length(scaling), scaling["factor"]
    used = max(length, original)
    return [
        f"    stretch = {s!r} * {used} / {original} - ({s!r} - 1)  # for {length} positions",
        *stretched(theta, "stretch", dim),
    ]


def yarn(scaling: Scaling, theta: float, dim: int, length: int) -> Lines:
    fast, slow = field(scaling, "beta_fast", BETA_FAST), field(scaling, "beta_slow", BETA_SLOW)
    original, cuts = original_length(scaling), field(scaling, "truncate", True)
    low, high = (rotation_index(turns, theta, dim, original) for turns in (fast, slow))
    low, high = (math.floor(low), math.ceil(high)) if cuts else (low, high)
    is_step = max(low, 0) == min(high, dim - 1)
    first, last = ("math.floor(low)", "math.ceil(high)") if cuts else ("low", "high")
    index = f"{dim} * math.log({original} / (2 * math.pi * turns)) / (2 * math.log({theta!r}))"
    return [
        powers(repr(theta), dim),
        f"    # YaRN: above {fast:g} turns in {original} tokens a pair stays, below {slow:g} it slows down.",
        f"    low, high = ({index} for turns in ({fast!r}, {slow!r}))",
        f"    low, high = max({first}, 0), min({last}, {dim - 1}){' + 0.001' if is_step else ''}",
        f"    slowed = ((torch.arange({dim // 2}) - low) / (high - low)).clamp(0, 1)",
        f"    omega = slowed * omega / {scaling['factor']!r} + (1 - slowed) * omega",
    ]


def llama3(scaling: Scaling, theta: float, dim: int, length: int) -> Lines:
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    return [
        powers(repr(theta), dim),
        f"    turns = {scaling[ORIGINAL]} * omega / (2 * math.pi)  # within the original length",
        f"    kept = ((turns - {low!r}) / ({high!r} - {low!r})).clamp(0, 1)",
        f"    omega = (1 - kept) * omega / {scaling['factor']!r} + kept * omega",
    ]


def longrope(scaling: Scaling, theta: float, dim: int, length: int) -> Lines:
    which = "long_factor" if length > original_length(scaling) else "short_factor"
    divisors = literal([float(value) for value in scaling[which]], 30).replace("\n", "\n    ")
    return [
        powers(repr(theta), dim),
        *f"    omega = omega / torch.tensor({divisors}, dtype=torch.float64)  # {which}".split("\n"),
    ]


def original_length(scaling: Scaling) -> int:
    return int(field(scaling, ORIGINAL, scaling.get(EXTENDED)))


SCALINGS: dict[str, Callable[[Scaling, float, int, int], Lines]] = {
    "linear": linear,
    "ntk": ntk,
    "dynamic": dynamic,
    "yarn": yarn,
    "llama3": llama3,
    "longrope": longrope,
}
