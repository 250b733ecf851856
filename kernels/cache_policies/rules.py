"""What a spec of engine ``cache`` asks for: its policy, and what contradicts itself.

No torch: the web process checks and prices runs.
"""

from __future__ import annotations

from collections.abc import Iterator

from kernels.cache_policies.policies import Full, HeavyHitters, Policy, Sliding, Streaming
from kernels.cache_policies.stream import MAX_MULTIPLY_ADDS, multiply_adds
from kernels.integers import ceil_div
from kernels.registry import option
from kernels.spec.model import RunSpec
from kernels.spec.problems import TOO_LARGE, FieldProblem, join, one_of

SINKS = 4  # unless a spec says otherwise: those of the paper
USED = {  # options that are no use to the other policies
    "full": (),
    "sliding": ("budget",),
    "streaming": ("budget", "sinks"),
    "heavy_hitters": ("budget", "recent"),
}
MEANINGS = {
    "budget": "how many tokens are held at most",
    "sinks": "how many of the first tokens stay",
    "recent": "how many of the newest tokens are safe",
}


def sinks(spec: RunSpec) -> int:
    """How many of the first tokens stay in a streaming cache."""
    asked = option(spec, "sinks")
    return SINKS if asked is None else int(asked)


def budget(spec: RunSpec) -> int | None:
    """The most tokens that a head holds: as asked for, else half of the text, and one more than the sinks at
    least; None where none is evicted."""
    policy, asked = option(spec, "policy"), option(spec, "budget")
    if policy == "full":
        return None
    if asked is not None:
        return int(asked)
    return max(ceil_div(spec.q_len, 2), sinks(spec) + 1 if policy == "streaming" else 1)


def policy_of(spec: RunSpec) -> Policy:
    """ValueError for a spec with ``problems``."""
    held = budget(spec)
    if held is None:
        return Full()
    if option(spec, "policy") == "sliding":
        return Sliding(held)
    if option(spec, "policy") == "streaming":
        return Streaming(held - sinks(spec), sinks(spec))
    return HeavyHitters(held, option(spec, "recent"))


def problems(spec: RunSpec) -> Iterator[FieldProblem]:
    """Why a spec of ``cache`` cannot be computed."""
    if spec.q_len != spec.kv_len:
        detail = (
            f"a text is read token by token, each with a query, a key and a value: q has length {spec.q_len} "
            f"and k {spec.kv_len}; make them equal"
        )
        yield FieldProblem("/inputs/q", "shape-mismatch", detail)
    needed = multiply_adds(spec.batch, spec.num_heads, spec.q_len, spec.head_dim + spec.v_head_dim)
    if needed > MAX_MULTIPLY_ADDS:
        detail = (
            f"reading {spec.q_len:,} tokens in all heads takes {needed:,} multiply-adds, and at most "
            f"{MAX_MULTIPLY_ADDS:,} are made: send fewer tokens (half of them are a quarter), batch rows or "
            "heads"
        )
        yield FieldProblem("/inputs/q", "too-large", detail, TOO_LARGE)
    yield from _unused(spec)
    yield from _too_small(spec)
    rope = spec.attention.rope
    if rope is None and option(spec, "cache_positions") is not None:
        detail = "what a position counts matters to RoPE alone: set attention.rope, or leave it out"
        yield FieldProblem("/options/cache_positions", "needs", detail)
    if rope is not None and rope.positions is not None:
        detail = (
            "tokens have the places at which they are read, in the text or in the cache, as cache_positions "
            "says: leave positions out"
        )
        yield FieldProblem("/attention/rope/positions", "unsupported", detail)


def _unused(spec: RunSpec) -> Iterator[FieldProblem]:
    """Options of other policies."""
    policy = option(spec, "policy")
    for name, meaning in MEANINGS.items():
        if name not in USED[policy] and option(spec, name) is not None:
            others = one_of(other for other, used in USED.items() if name in used)
            detail = (
                f"{name} says {meaning} with policy {others}; policy {policy} has no use for it: leave it "
                "out, or take another policy"
            )
            yield FieldProblem(join("/options", name), "unsupported", detail)


def _too_small(spec: RunSpec) -> Iterator[FieldProblem]:
    """A budget that what is safe fills, or more."""
    policy, held = option(spec, "policy"), budget(spec)
    if held is None:
        return
    if policy == "streaming" and held <= sinks(spec):
        asked = "sinks" if option(spec, "sinks") is not None else "budget"
        detail = (
            f"of a budget of {held:,} tokens {sinks(spec):,} are sinks, and nothing is left for the token "
            f"that comes in: send a budget of {sinks(spec) + 1:,} or more, or fewer sinks"
        )
        yield FieldProblem(join("/options", asked), "out-of-range", detail)
    recent = option(spec, "recent")
    if policy == "heavy_hitters" and recent is not None and recent > held:
        detail = (
            f"{recent:,} recent tokens are safe, and {held:,} are held: send at most {held:,}, or a budget "
            f"of {recent:,} or more"
        )
        yield FieldProblem("/options/recent", "out-of-range", detail)
