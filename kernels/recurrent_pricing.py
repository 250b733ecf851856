"""What a run of linear, performer or scan takes on a CPU worker: see ``kernels.estimate``, which asks.

Seconds of one core, measured and then raised to two or three times; what dominates is how many steps the
interpreter takes, of a chunk or of a token, whatever their size.
"""

from __future__ import annotations

from kernels.counts import state_numbers
from kernels.integers import ceil_div, next_power_of_two
from kernels.positions import visible_pairs
from kernels.recurrent import ALL_PAIRS, is_dual, is_ranked, weights
from kernels.recurrent_traffic import more_traffic
from kernels.registry import is_causal, option
from kernels.spec.model import RunSpec

__all__ = [
    "engine_bytes",
    "engine_seconds",
    "flops",
    "more_traffic",
    "reference_bytes",
    "reference_seconds",
]

CALL = 0.02
INTERPRETED_CHUNK = 64
SCANNED_AT_ONCE = 2**18  # numbers of states that a program of a scan holds
CHUNK, DELTA_CHUNK, PAIR_TILE = 0.045, 0.09, 0.025  # a chunk of keys, or of queries
TOKEN, READER, DELTA_TOKEN, STATE_NUMBER = 0.006, 0.012, 0.004, 2.5e-7  # of a state, token by token
MULTIPLY = 6e-9
SCAN_CHUNK, SCAN_TOKEN, SCANNED_NUMBER = 0.07, 0.016, 5e-7
FEATURE, TORCH_CHUNK = 3e-7, 1e-3
# Of the float64 reference and its bound.
PAIR, PAIR_MULTIPLY, INVERSE, LOOP = 1.2e-6, 4e-9, 3e-9, 1e-4
FEATURE_AGAIN, SCANNED_AGAIN, SCAN_LOOP = 1e-6, 4e-7, 3e-4
PAIR_BYTES, SCANNED_BYTES, FEATURE_BYTES, FEATURE_AGAIN_BYTES, TILE_BYTES = 160.0, 300.0, 24.0, 64.0, 40.0
RANKED, TRIED_BYTES = 2e-9, 64.0
TRIED_WEIGHT, TRIED_PRODUCT, TRIED_FEATURE, TRIED_COUNTS = 7e-8, 1e-10, 2e-8, 4
TRIED_VALUE, TRIED_STATE = 8e-8, 1e-8  # a number of values and outputs; of the states, which are made too
HELD, HELD_AGAIN = 3e-8, 6e-8  # a number of a state, when a chunk is added to it
DRAWN, ORTHOGONAL, DRAWN_BYTES = 4e-7, 3e-10, 64.0  # a number of a direction; QR, of d³ to a block of them
REFERENCE_NUMBERS = 2**19  # of the states of all tokens, which the reference of a scan holds at once


def flops(spec: RunSpec) -> int:
    """Of one call."""
    return 2 * _products(spec)


def _products(spec: RunSpec) -> int:
    """Multiply-adds of an engine with a state: of each token to write and of each query to read, with the
    features of a performer; in forms without one, of all pairs that may meet."""
    queries, keys = spec.num_heads * spec.q_len, spec.num_kv_heads * spec.kv_len
    if spec.engine == "performer":
        width = int(option(spec, "num_features"))
        drawn = spec.batch * (queries + keys) * width * spec.head_dim
        return drawn + spec.batch * (queries + keys) * width * (spec.v_head_dim + 1)
    if option(spec, "form") in ALL_PAIRS:
        return visible_pairs(spec) * (spec.head_dim + spec.v_head_dim)
    if spec.engine == "scan":  # each number decays, takes in and is read
        return 3 * spec.q_len * state_numbers(spec)
    return spec.batch * (queries + keys) * spec.head_dim * spec.v_head_dim


def engine_seconds(spec: RunSpec) -> float:
    """One call."""
    by_engine = {"linear": _linear_seconds, "performer": _performer_seconds, "scan": _scan_seconds}
    return CALL + by_engine[spec.engine](spec)


def reference_seconds(spec: RunSpec) -> float:
    """The engine's own mathematics in float64, and how far rounding may go."""
    group = spec.num_heads // spec.num_kv_heads if spec.num_kv_heads else 1
    states = spec.batch * spec.num_kv_heads
    ranked = RANKED * weights(spec) * (spec.kv_len + 64) if is_ranked(spec) else 0.0
    if spec.engine == "performer":
        again = FEATURE_AGAIN * _features(spec) + LOOP * states * (spec.kv_len + 1)
        again += HELD_AGAIN * _added(spec)
        return again + ranked + _trial_seconds(spec) + _drawing_seconds(spec)
    if spec.engine == "scan":
        slices = spec.batch * spec.num_heads * ceil_div(_numbers_of_head(spec), REFERENCE_NUMBERS)
        return SCANNED_AGAIN * spec.q_len * state_numbers(spec) + SCAN_LOOP * slices * spec.q_len
    pairs = states * max(group * spec.q_len * spec.kv_len, spec.head_dim * spec.kv_len)
    seconds = pairs * (PAIR + PAIR_MULTIPLY * (spec.head_dim + spec.v_head_dim)) + LOOP * states
    if "beta" in spec.inputs:
        seconds += states * (INVERSE * group * spec.kv_len**3 + LOOP * spec.kv_len)
    return seconds + ranked


def engine_bytes(spec: RunSpec) -> float:
    """What the engine holds at once beside inputs and results."""
    if spec.engine == "performer":
        item = 8 if spec.dtype == "float64" else 4
        held = _values_held(spec, spec.batch * spec.num_heads)
        return FEATURE_BYTES * _features(spec) * item / 4 + 3 * item * held + DRAWN_BYTES * _drawn(spec)
    if spec.engine == "scan" and not is_dual(spec):
        padded = next_power_of_two(spec.q_len) * next_power_of_two(spec.head_dim)
        numbers = padded * next_power_of_two(spec.v_head_dim)
        return SCANNED_BYTES * min(numbers, max(padded, SCANNED_AT_ONCE)) + 4 * state_numbers(spec)
    found = _chunks(spec, spec.kv_len) * state_numbers(spec) if option(spec, "form") == "chunked" else 0
    tile = (spec.head_dim + INTERPRETED_CHUNK) * (spec.v_head_dim + spec.head_dim + INTERPRETED_CHUNK)
    return TILE_BYTES * tile + 8 * found


def reference_bytes(spec: RunSpec) -> float:
    """What the engine's mathematics hold in float64, a head at a time."""
    group = spec.num_heads // spec.num_kv_heads if spec.num_kv_heads else 1
    if spec.engine == "performer":
        tokens = group * spec.q_len + spec.kv_len
        tried = TRIED_BYTES * (weights(spec) + _features(spec)) if option(spec, "trials") else 0.0
        tried += 24 * _values_held(spec, spec.batch * spec.num_heads) if tried else 0.0
        again = FEATURE_AGAIN_BYTES * tokens * int(option(spec, "num_features"))
        return max(again + 24 * _values_held(spec, group), tried) + DRAWN_BYTES * _drawn(spec)
    if spec.engine == "scan":
        return SCANNED_BYTES * min(_numbers_of_head(spec), max(REFERENCE_NUMBERS, spec.q_len * spec.head_dim))
    pairs = group * max(spec.q_len, spec.head_dim) * spec.kv_len
    return PAIR_BYTES * (pairs + spec.head_dim * (spec.head_dim + spec.v_head_dim))


def _linear_seconds(spec: RunSpec) -> float:
    states, heads, form = spec.batch * spec.num_kv_heads, spec.batch * spec.num_heads, option(spec, "form")
    delta = "beta" in spec.inputs
    if form == "parallel":
        return _seconds_of_pairs(spec)
    outputs = heads * _chunks(spec, spec.q_len) * CHUNK
    if form == "recurrent":
        token = TOKEN + DELTA_TOKEN * delta + STATE_NUMBER * (spec.head_dim + 16) * (spec.v_head_dim + 16)
        walk = states * spec.kv_len * token
        return walk + (heads * spec.q_len * READER if is_causal(spec) else outputs)
    chunks = states * _chunks(spec, spec.kv_len) * (DELTA_CHUNK if delta else CHUNK)
    padded = (spec.head_dim + 16) * (spec.v_head_dim + 16)
    tokens = states * spec.kv_len + heads * spec.q_len
    return chunks + outputs + MULTIPLY * tokens * (padded + INTERPRETED_CHUNK * (spec.head_dim + 16))


def _seconds_of_pairs(spec: RunSpec) -> float:
    """Without a state, a tile of queries with each tile of keys."""
    rows, columns = (ceil_div(length, INTERPRETED_CHUNK) for length in (spec.q_len, spec.kv_len))
    tiles = rows * (rows + 1) // 2 if is_causal(spec) else rows * columns
    padded = spec.head_dim + spec.v_head_dim + 32
    return spec.batch * spec.num_heads * tiles * (PAIR_TILE + MULTIPLY * INTERPRETED_CHUNK**2 * padded)


def _performer_seconds(spec: RunSpec) -> float:
    chunks = ceil_div(spec.kv_len, INTERPRETED_CHUNK) if is_causal(spec) else 1
    products = MULTIPLY / 4 * _products(spec) + HELD * _added(spec)
    return FEATURE * _features(spec) + products + TORCH_CHUNK * chunks


def _drawing_seconds(spec: RunSpec) -> float:
    """Of the directions: of the engine, of what bounds it, of the ranks, and of all trials."""
    times = 3 + TRIED_COUNTS * int(option(spec, "trials"))
    made = ORTHOGONAL * _drawn(spec) * spec.head_dim if option(spec, "orthogonal") else 0.0
    return times * (DRAWN * _drawn(spec) + made)


def _drawn(spec: RunSpec) -> int:
    """Numbers of the directions, which come in blocks of as many as there are dimensions."""
    return ceil_div(int(option(spec, "num_features")), max(spec.head_dim, 1)) * spec.head_dim**2


def _added(spec: RunSpec) -> int:
    """Numbers of the states, once for each chunk that is added to them, and what is held beside them."""
    heads = spec.batch * spec.num_heads
    again = max(ceil_div(spec.kv_len, INTERPRETED_CHUNK) - 1, 0) if is_causal(spec) else 0
    state = heads * int(option(spec, "num_features")) * (spec.v_head_dim + 1)
    return _values_held(spec, heads) + again * state


def _values_held(spec: RunSpec, heads: int) -> int:
    """Numbers of the state, the values and the outputs of so many heads, a normaliser with each."""
    rows = int(option(spec, "num_features")) + spec.kv_len + spec.q_len
    return heads * rows * (spec.v_head_dim + 1)


def _scan_seconds(spec: RunSpec) -> float:
    if is_dual(spec):
        return _seconds_of_pairs(spec)
    form, length, heads = option(spec, "form"), spec.q_len, spec.batch * spec.num_heads
    numbers = heads * length * next_power_of_two(spec.head_dim) * next_power_of_two(spec.v_head_dim)
    held = min(length, _chunk(spec)) * next_power_of_two(spec.head_dim) if form == "chunked" else length
    at_once = max(1, SCANNED_AT_ONCE // max(1, held))
    programs = heads * ceil_div(spec.v_head_dim, at_once)
    if form == "recurrent":
        return programs * length * SCAN_TOKEN + STATE_NUMBER * numbers
    steps = _chunks(spec, length) if form == "chunked" else 2
    return programs * steps * SCAN_CHUNK + SCANNED_NUMBER * numbers


def _trial_seconds(spec: RunSpec) -> float:
    """Of drawing other features, fewer and as many, and attending by them."""
    width = int(option(spec, "num_features")) + TRIED_COUNTS * spec.v_head_dim
    seconds = weights(spec) * (TRIED_COUNTS * TRIED_WEIGHT + TRIED_PRODUCT * width)
    wide = spec.batch * spec.num_heads * (spec.v_head_dim + 1)
    seconds += TRIED_COUNTS * TRIED_VALUE * wide * (spec.q_len + spec.kv_len)
    seconds += (TRIED_STATE + TRIED_PRODUCT * spec.kv_len) * wide * int(option(spec, "num_features"))
    return int(option(spec, "trials")) * (seconds + TRIED_FEATURE * _features(spec))


def _features(spec: RunSpec) -> int:
    """Numbers of all features, those of keys once for each query head."""
    return spec.batch * spec.num_heads * (spec.q_len + spec.kv_len) * int(option(spec, "num_features"))


def _numbers_of_head(spec: RunSpec) -> int:
    """Of the states of all tokens of one head."""
    return spec.q_len * spec.head_dim * spec.v_head_dim


def _chunk(spec: RunSpec) -> int:
    return int(option(spec, "chunk_size") or INTERPRETED_CHUNK)


def _chunks(spec: RunSpec, length: int) -> int:
    return ceil_div(length, _chunk(spec))
