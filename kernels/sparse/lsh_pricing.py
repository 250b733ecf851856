"""What a run of engine ``lsh`` takes on a CPU worker: see ``kernels.estimate``, which asks.

Seconds of one core, measured and then raised to two or three times. All scores are computed, whatever the
buckets: without them nobody knows which keys were missed.
"""

from __future__ import annotations

from kernels.positions import visible_pairs
from kernels.registry import option
from kernels.sparse.lsh_rules import directions
from kernels.spec.model import RunSpec

CALL, HEAD, HASHED_ROUND, HASHED, MULTIPLY = 5e-3, 4e-4, 4e-5, 8e-9, 3e-10
PAIR, COMPARED = 1.5e-7, 3e-9  # a score and all that is made of it; and each round
DRAWN, DRAWN_BYTES = 2.5e-7, 80.0  # a random number
PAIR_BYTES, HASHED_BYTES, ROW_BYTES = 80.0, 48.0, 64.0


def hash_multiply_adds(spec: RunSpec) -> int:
    """Of every query and key with the directions of every round."""
    tokens = spec.num_heads * spec.q_len + spec.num_kv_heads * spec.kv_len
    return (
        spec.batch * tokens * spec.head_dim * int(option(spec, "rounds")) * int(option(spec, "buckets")) // 2
    )


def flops(spec: RunSpec) -> int:
    """Of one call: the hash, and scores and sums over all pairs that are not forbidden."""
    return 2 * (hash_multiply_adds(spec) + visible_pairs(spec) * (spec.head_dim + spec.v_head_dim))


def more_traffic(spec: RunSpec) -> tuple[int, int]:
    """The scores, and the weights with and without buckets, each written; the scores are read twice."""
    matrix = 8 * spec.batch * spec.num_heads * spec.q_len * spec.kv_len
    return 4 * matrix, 3 * matrix


def engine_seconds(spec: RunSpec) -> float:
    """One call."""
    heads, kv_heads, rounds = (
        spec.batch * spec.num_heads,
        spec.batch * spec.num_kv_heads,
        option(spec, "rounds"),
    )
    tokens = heads * spec.q_len + kv_heads * spec.kv_len
    hashed = rounds * (HASHED_ROUND * (heads + kv_heads) + HASHED * tokens * (option(spec, "buckets") + 4))
    width = spec.head_dim + spec.v_head_dim
    pairs = heads * spec.q_len * spec.kv_len * (PAIR + COMPARED * rounds + MULTIPLY * width)
    return float(CALL + HEAD * heads + hashed + MULTIPLY * hash_multiply_adds(spec) + pairs)


def reference_seconds(spec: RunSpec) -> float:
    """What is drawn before the first call."""
    return DRAWN * directions(spec)


def engine_bytes(spec: RunSpec) -> float:
    """What is held at once beside inputs and results: what is drawn, the buckets, and one head."""
    tokens = spec.batch * (spec.num_heads * spec.q_len + spec.num_kv_heads * spec.kv_len)
    longest = max(spec.q_len, spec.kv_len)
    head = PAIR_BYTES * spec.q_len * spec.kv_len + HASHED_BYTES * longest * option(spec, "buckets")
    permitted = 2.0 * spec.batch * spec.q_len * spec.kv_len
    kept = tokens * (8 * option(spec, "rounds") + ROW_BYTES)
    return float(DRAWN_BYTES * directions(spec) + kept + head + permitted)


def reference_bytes(spec: RunSpec) -> float:
    """Nothing."""
    return 0.0
