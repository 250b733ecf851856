"""What contradicts itself in a spec of engine ``lsh``. No torch: the web process checks and prices runs."""

from __future__ import annotations

from collections.abc import Iterator

from kernels.registry import option
from kernels.spec.model import RunSpec
from kernels.spec.problems import TOO_LARGE, FieldProblem

MAX_DIRECTIONS = 2**22  # random numbers in all rounds together


def directions(spec: RunSpec) -> int:
    """Random numbers that the hashes of all rounds and key heads take."""
    columns = int(option(spec, "buckets")) // 2
    return int(option(spec, "rounds")) * spec.num_kv_heads * spec.head_dim * columns


def problems(spec: RunSpec) -> Iterator[FieldProblem]:
    """Why a spec of ``lsh`` cannot be computed."""
    buckets, mask = option(spec, "buckets"), spec.inputs.get("attn_mask")
    if buckets % 2:
        detail = (
            f"buckets come in pairs, of a direction and its opposite: send an even number, {buckets - 1} or "
            f"{buckets + 1}, not {buckets}"
        )
        yield FieldProblem("/options/buckets", "out-of-range", detail)
    elif directions(spec) > MAX_DIRECTIONS:
        detail = (
            f"{option(spec, 'rounds'):,} rounds with {buckets:,} buckets draw {directions(spec):,} random "
            f"numbers for {spec.num_kv_heads:,} key heads of {spec.head_dim:,} dimensions, and at most "
            f"{MAX_DIRECTIONS:,} are drawn: send fewer buckets, rounds, heads or dimensions"
        )
        yield FieldProblem("/options/buckets", "too-large", detail, TOO_LARGE)
    if mask is not None and mask.dtype != "bool":
        detail = (
            "engine lsh looks for the best of the keys that may be seen, and adds nothing to their scores: "
            "send a mask of booleans"
        )
        yield FieldProblem("/inputs/attn_mask", "bad-dtype", detail)
