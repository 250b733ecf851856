"""What a run will cost, before it runs: arithmetic on the spec, in microseconds, without torch.

``predicted_seconds`` and ``predicted_bytes`` decide admission, so they lean upwards: coefficients were fitted
on one core of a two-core x86-64 server and then raised (see ``Cost``). They are of all that a worker does; of
the engine alone, whose peak is measured, are ``engine_bytes``. What is only counted is in ``kernels.counts``.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from kernels import counts
from kernels.counts import GRADIENT_FACTOR
from kernels.decode.splits import is_decoding, make_plan, rows_per_kv_head
from kernels.flash.tiles import choose_tiles, padded_dim
from kernels.flash.visits import visits
from kernels.integers import ceil_div
from kernels.mla.forms import largest_tile, multiply_adds, work
from kernels.registry import ENGINES, SOFTMAX, is_causal, pricing_of
from kernels.spec.model import RunSpec
from kernels.spec.results import MATRICES


@dataclass(frozen=True)
class Cost:
    """Seconds of one call, on one core: see the fields. Measured, then raised: by a half at least, and where
    many small steps are counted, whose cost differs most between machines, to about three times."""

    per_call: float
    per_program: float  # a head; for Triton a head's tile of queries
    per_tile: float  # a tile of queries with a tile of keys
    per_score: float  # a pair of query and key
    per_multiply: float  # a multiply-add of the two products
    bytes_per_score: float  # working memory, for each score that is held at once
    per_load: float = 0.0  # a number of K or V that is loaded, where tiles of queries are small


COSTS = {
    "reference": Cost(5e-4, 2.5e-4, 0.0, 6e-8, 1.5e-10, 80.0),  # with the bounds of its errors
    "eager": Cost(1e-3, 1e-5, 0.0, 5.5e-8, 5e-11, 28.0),
    "sdpa": Cost(2e-4, 5e-6, 0.0, 2e-9, 5e-11, 5.0),
    "flash": Cost(1e-2, 8e-3, 4e-3, 2e-8, 1.2e-10, 40.0),
    "decode": Cost(1e-2, 8e-3, 4e-3, 4e-8, 1.2e-10, 40.0, 3e-8),
    "mla": Cost(1e-2, 8e-3, 4e-3, 5e-8, 1.2e-10, 40.0, 1.2e-7),
}
PAGED_FACTOR = 1.5  # where a table is asked for the page of every key
HALF_PRECISION_FACTOR = {
    "reference": 1.0,
    "eager": 1.2,
    "sdpa": 3.0,
    "flash": 2.0,
    "decode": 2.0,
    "paged": 2.0,
    "mla": 3.0,
}
MASKING_FACTOR = 2.0  # masks, biases and softcaps on whole matrices: further passes over them
# The same of a tile: of flash and mla; of decoding, whose tiles are flat: a pass costs more than a product.
FLASH_TERMS_FACTOR, TERMS_FACTOR = 1.75, 3.0
PAGED_BYTES = 16.0  # of each number that is put in pages: of float32, twice, at most twice as many slots
LOADED_BYTES = 40.0  # working memory for each number of K and V in a tile: itself, its address, its mask
# Working memory for each score: of one head of the reference; of torch's positions and masks, and its floats.
REFERENCE_MASKING_BYTES, REFERENCE_GRADIENT_BYTES = 60.0, 70.0
DISTANCE_BYTES, BIAS_BYTES, GRADIENT_BYTES = 24.0, 16.0, 40.0
PATTERN_SECONDS, PATTERN_BYTES = 2e-8, 8.0
REFERENCE_ROW_BYTES = 64.0  # of each number of one head's q, k, v and out
ROTATED_SECONDS, ROTATED_BYTES = 5e-8, 40.0
GATHERED_SECONDS, GATHERED_BYTES = 2e-8, 32.0
FIXED_SECONDS = 0.02
FIXED_BYTES = 4 * 2**20
COPIED_BYTES = 32.0  # of each number of an input: as sent, rounded, in float64 and on the engine's device
# Whatever the engine: inputs made from a seed, maxima and sums of each row, results beside their reference.
GENERATED_SECONDS, GENERATED_BYTES = 2.5e-7, 48.0
EXPANDED_BYTES = 32.0  # of each, parts and whole in float64, and the engine's own
QUANTISED_SECONDS, QUANTISED_BYTES = 4e-7, 80.0  # of each number: made a code, decoded, and its error bounded
DECODED_SECONDS = 6e-8  # of each number of K or V that a kernel loads
ROW_SECONDS, ROW_BYTES = 1e-7, 80.0
PREFIX_SECONDS = 6e-8  # of each pair of a query and one of the first keys
RESULT_SECONDS, COMPARED_BYTES = 6e-8, 32.0  # of each comparison of a number


@dataclass(frozen=True)
class Estimate:
    """Bytes are bytes, seconds are of one CPU worker; ``flops`` are of one call of the engine."""

    flops: int
    bytes_min: int
    arithmetic_intensity: float
    input_elements: int
    output_elements: int
    output_bytes: int
    predicted_bytes: int
    engine_bytes: int
    predicted_seconds: float

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self)


def estimate(spec: RunSpec) -> Estimate:
    """Bound the cost of a valid spec on a CPU worker: engine × (warmup + iters), plus the float64
    reference."""
    operations, bytes_min = flops(spec), counts.bytes_min(spec)
    calls = spec.timing.warmup + spec.timing.iters
    seconds = calls * _seconds(spec, spec.engine) + _seconds(spec, "reference") + _fixed_seconds(spec)
    pricing = pricing_of(spec.engine)
    if pricing is not None:  # whose reference is its own, and softmax attention what it stands for
        seconds += pricing.reference_seconds(spec)
    elif spec.attention.is_sparse:  # compared with what it would be if it were not
        seconds += _seconds(spec, "reference")
    if spec.is_traced:  # by one call more; and in float64 the first keys are attended to alone, tile by tile
        pairs = spec.batch * spec.num_heads * spec.q_len * spec.kv_len * (counts.key_tiles(spec) + 1) / 2
        per_pair = PREFIX_SECONDS + COSTS["reference"].per_multiply * (spec.head_dim + spec.v_head_dim)
        seconds += _seconds(spec, spec.engine) + per_pair * pairs
    return Estimate(
        flops=operations,
        bytes_min=bytes_min,
        arithmetic_intensity=round(operations / bytes_min, 3) if bytes_min else 0.0,
        input_elements=sum(given.elements for given in spec.inputs.values()),
        output_elements=sum(counts.result_elements(spec, name) for name in spec.returns),
        output_bytes=sum(counts.result_bytes(spec, name) for name in spec.returns),
        predicted_bytes=_worker_bytes(spec),
        engine_bytes=_engine_bytes(spec),
        predicted_seconds=float(f"{seconds:.3g}"),
    )


def flops(spec: RunSpec) -> int:
    """Of one call of the engine."""
    pricing = pricing_of(spec.engine)
    return counts.softmax_flops(spec) if pricing is None else pricing.flops(spec)


def _rotated(spec: RunSpec) -> int:
    """Numbers that RoPE turns, or passes on."""
    if spec.attention.rope is None:
        return 0
    return spec.batch * (spec.num_heads * spec.q_len + spec.num_kv_heads * spec.kv_len) * spec.head_dim


def _gathered(spec: RunSpec) -> int:
    """Numbers of pages that are put in a row."""
    keys = spec.batch * spec.num_kv_heads * spec.kv_len
    return keys * (spec.head_dim + spec.v_head_dim) if spec.is_paged else 0


def _pattern_pairs(spec: RunSpec) -> int:
    return spec.batch * spec.q_len * spec.kv_len if spec.attention.pattern is not None else 0


def _computed(spec: RunSpec) -> dict[str, int]:
    """Elements of each result that is computed: ``out`` always is, to be compared."""
    return {name: counts.result_elements(spec, name) for name in {"out", *spec.returns}}


def _fixed_seconds(spec: RunSpec) -> float:
    """What is done once, however often the engine is called."""
    seeded = sum(given.elements for given in spec.inputs.values() if given.source == "seed")
    operands = ROTATED_SECONDS * _rotated(spec) + GATHERED_SECONDS * _gathered(spec)
    operands += PATTERN_SECONDS * _pattern_pairs(spec) + QUANTISED_SECONDS * _quantised(spec)
    again = counts.result_elements(spec, "out") if _is_compared(spec) else 0
    results = RESULT_SECONDS * (sum(_computed(spec).values()) + again)
    return FIXED_SECONDS + GENERATED_SECONDS * seeded + operands + results


def _is_compared(spec: RunSpec) -> bool:
    """Whether there is exact attention to stand beside the run."""
    return ENGINES[spec.engine].computes != SOFTMAX or spec.attention.is_sparse


def _quantised(spec: RunSpec) -> int:
    """Numbers of keys and values that become codes."""
    if spec.options.kv_dtype is None:
        return 0
    return spec.batch * spec.num_kv_heads * spec.kv_len * (spec.head_dim + spec.v_head_dim)


def _rows(spec: RunSpec) -> int:
    """Rows that hold a number each, of queries (LSE, maxima, positions) and of keys (positions)."""
    return spec.batch * spec.num_heads * spec.q_len + spec.kv_len


def _seconds(spec: RunSpec, engine: str) -> float:
    """One call on one core."""
    pricing = pricing_of(engine)
    if pricing is not None:
        return pricing.engine_seconds(spec)
    if engine == "mla":
        return _latent_seconds(spec)
    cost, programs = _cost(spec, engine), spec.batch * spec.num_heads
    tiles, scores, loads = 0, 1.0 * programs * spec.q_len * spec.kv_len, 0
    width = spec.head_dim + spec.v_head_dim
    if is_decoding(spec, engine):
        width = padded_dim(spec.head_dim) + padded_dim(spec.v_head_dim)
        programs, tiles, scores, loads = _decoded(spec)
    elif ENGINES[engine].is_triton:
        width = padded_dim(spec.head_dim) + padded_dim(spec.v_head_dim)
        programs, tiles, scores = _tiled(spec)
    elif _modifies_scores(spec):
        scores *= MASKING_FACTOR
    again = GRADIENT_FACTOR if spec.differentiates else 1.0
    per_score = cost.per_score + cost.per_multiply * width
    if spec.dtype == "float16" or (spec.dtype == "bfloat16" and not ENGINES[engine].is_triton):
        per_score *= HALF_PRECISION_FACTOR[engine]
    seconds = cost.per_program * programs + cost.per_tile * tiles + per_score * scores
    seconds = cost.per_call + again * seconds
    if spec.is_latent:
        # Made in float64, and for the reference multiplied once more each way, by what bounds the error.
        made = 2 * (multiply_adds(spec, "expanded") + multiply_adds(spec, "absorbed"))
        seconds += COSTS["reference"].per_multiply * made
    if spec.options.kv_dtype is not None and engine != "eager":
        # Codes are decoded wherever they are loaded; for the reference, the bound has another product.
        seconds += DECODED_SECONDS * tiles * choose_tiles(spec, interpreted=True)[1] * width
        seconds += COSTS["reference"].per_multiply * scores * width if engine == "reference" else 0.0
    return seconds + cost.per_load * loads + ROW_SECONDS * _rows(spec)


def _latent_seconds(spec: RunSpec) -> float:
    """One call of engine ``mla`` on one core."""
    cost, done = _cost(spec, "mla"), work(spec, interpreted=True)
    factor = HALF_PRECISION_FACTOR["mla"] if spec.dtype == "float16" else 1.0
    seconds = cost.per_call + cost.per_program * done.programs + cost.per_tile * done.tiles
    seconds += cost.per_score * done.scores + cost.per_multiply * done.multiplies * factor
    return seconds + cost.per_load * done.loads + ROW_SECONDS * _rows(spec)


def _cost(spec: RunSpec, engine: str) -> Cost:
    """What ``paged`` costs depends on whose kernels do the work, and on the table; what ``flash`` and ``mla``
    cost, on what is done with each score."""
    if engine == "paged":
        cost = _cost(spec, "decode" if is_decoding(spec, engine) else "flash")
        return replace(cost, per_tile=PAGED_FACTOR * cost.per_tile, per_load=PAGED_FACTOR * cost.per_load)
    cost = COSTS[engine]
    if engine in ("flash", "mla") and _has_terms(spec):
        factor = FLASH_TERMS_FACTOR
        return replace(cost, per_tile=factor * cost.per_tile, per_score=factor * cost.per_score)
    return cost


def _has_terms(spec: RunSpec) -> bool:
    """Whether something is looked up or computed for each score, beside the product."""
    attention = spec.attention
    return (
        attention.softcap > 0
        or attention.alibi_slopes is not None
        or attention.pattern is not None
        or spec.options.kv_dtype is not None
        or "attn_mask" in spec.inputs
    )


def _modifies_scores(spec: RunSpec) -> bool:
    attention = spec.attention
    return (
        is_causal(spec)
        or attention.window != (None, None)
        or attention.softcap > 0
        or attention.alibi_slopes is not None
        or attention.pattern is not None
        or attention.sinks is not None
        or not {"attn_mask", "q_lens", "kv_lens"}.isdisjoint(spec.inputs)
    )


def _tiled(spec: RunSpec) -> tuple[int, int, float]:
    """Programs of the flash kernels, the tiles that they visit, and the scores in them (padding included)."""
    block_m, block_n = choose_tiles(spec, interpreted=True)
    heads, rows = spec.batch * spec.num_heads, ceil_div(spec.q_len, block_m)
    tiles = visits(spec, block_m, block_n).tiles
    if any(name in spec.returns for name in MATRICES):  # by a kernel that leaves no tile out
        tiles, rows = tiles + rows * ceil_div(spec.kv_len, block_n), 2 * rows
    return heads * rows, heads * tiles, 1.0 * heads * tiles * block_m * block_n


def _decoded(spec: RunSpec) -> tuple[int, int, float, int]:
    """Programs, tiles, scores (padding included) and loaded numbers of K and V of the decode kernels."""
    plan = make_plan(spec, target=None, multiprocessors=None)
    block_m, block_n = plan.tiling[:2]
    groups = spec.batch * spec.num_kv_heads * ceil_div(rows_per_kv_head(spec), block_m)
    tiles = groups * visits(spec, max(spec.q_len, 1), block_n).tiles
    scores = 1.0 * tiles * block_m * block_n
    if _modifies_scores(spec):
        scores *= TERMS_FACTOR
    width = padded_dim(spec.head_dim) + padded_dim(spec.v_head_dim)
    return groups * plan.num_splits + 1, tiles, scores, tiles * block_n * width


def _decoding_bytes(spec: RunSpec) -> float:
    """Working memory of the decode kernels: a tile of scores, one of K and V, and the states between them,
    all of which the second kernel takes into one tile if it can."""
    plan = make_plan(spec, target=None, multiprocessors=None)
    block_m, block_n = plan.tiling[:2]
    width = padded_dim(spec.head_dim) + padded_dim(spec.v_head_dim)
    tile = block_m * block_n * _cost(spec, spec.engine).bytes_per_score
    states = plan.num_splits * spec.batch * spec.num_heads * spec.q_len * (padded_dim(spec.v_head_dim) + 2)
    return max(tile + block_n * width * LOADED_BYTES, LOADED_BYTES * min(states, 2**21)) + 4 * states


def _worker_bytes(spec: RunSpec) -> int:
    """Peak memory above an idle worker: copies of the inputs, results twice and once in float64, and what
    scores and rows are held at once, by the engine or after it by the reference."""
    held = max(_working_bytes(spec), _reference_bytes(spec))
    pricing = pricing_of(spec.engine)
    if pricing is not None:
        held = max(held, pricing.reference_bytes(spec))
    return int(_operand_bytes(spec) + _generated_bytes(spec) + _result_bytes(spec) + held)


def _engine_bytes(spec: RunSpec) -> int:
    """Peak memory of the engine above what its process held when it had the inputs."""
    results = sum(count * counts.item_bytes(spec, name) for name, count in _computed(spec).items())
    return int(_operand_bytes(spec) + 2 * results + _working_bytes(spec))


def _working_bytes(spec: RunSpec) -> float:
    """What the engine holds at once beside inputs, rows and results."""
    if spec.engine == "reference":
        return _reference_bytes(spec)
    if is_decoding(spec, spec.engine):
        return _decoding_bytes(spec)
    pricing = pricing_of(spec.engine)
    if pricing is not None:
        return pricing.engine_bytes(spec)
    if spec.engine == "mla":
        return LOADED_BYTES * largest_tile(spec, interpreted=True)
    if ENGINES[spec.engine].is_triton:
        block_m, block_n = choose_tiles(spec, interpreted=True)
        return block_m * block_n * _cost(spec, spec.engine).bytes_per_score
    return _torch_bytes(spec)


def _reference_bytes(spec: RunSpec) -> float:
    """Of one head, and what bounds its errors."""
    per_score = COSTS["reference"].bytes_per_score
    per_score += REFERENCE_MASKING_BYTES * _modifies_scores(spec)
    per_score += REFERENCE_GRADIENT_BYTES * spec.differentiates
    numbers = (spec.q_len + spec.kv_len) * (spec.head_dim + spec.v_head_dim)
    return spec.q_len * spec.kv_len * per_score + REFERENCE_ROW_BYTES * numbers


def _torch_bytes(spec: RunSpec) -> float:
    """Of eager's score matrices or sdpa's mask: booleans and distances for each row of the batch that has its
    own (or one for all), and floats for each head."""
    attention, inputs, pairs = spec.attention, spec.inputs, spec.q_len * spec.kv_len
    wide = 2 if spec.dtype == "float64" else 1
    per_row = attention.pattern is not None or not {"attn_mask", "q_lens", "kv_lens"}.isdisjoint(inputs)
    listed = (attention.q_positions, attention.kv_positions, attention.alibi_slopes)
    masks = spec.batch if per_row or any(isinstance(given, tuple) for given in listed) else 1
    held = DISTANCE_BYTES * masks * pairs if _modifies_scores(spec) else 0.0
    if spec.engine == "eager":
        held += COSTS["eager"].bytes_per_score * spec.batch * spec.num_heads * pairs * wide
    elif attention.alibi_slopes is not None or attention.sinks is not None or "attn_mask" in inputs:
        held += BIAS_BYTES * masks * spec.num_heads * pairs * wide
    else:
        held += COSTS["sdpa"].bytes_per_score * pairs * wide
    if spec.differentiates:
        held += GRADIENT_BYTES * spec.batch * spec.num_heads * pairs * wide
    return held


def _operand_bytes(spec: RunSpec) -> float:
    """Every input in a few copies, the keys, values and queries that are made of latents, and what is kept of
    each row; a few pages more, whatever is run."""
    elements = sum(given.elements for given in spec.inputs.values())
    made = 0
    if spec.is_latent:
        rows = spec.batch * spec.num_heads
        made = rows * (spec.kv_len * (spec.head_dim + spec.v_head_dim) + spec.q_len * spec.head_dim)
    moved = ROTATED_BYTES * _rotated(spec) + GATHERED_BYTES * _gathered(spec) + EXPANDED_BYTES * made
    moved += QUANTISED_BYTES * _quantised(spec) + (PAGED_BYTES * elements if spec.engine == "paged" else 0.0)
    rows_kept = ROW_BYTES * _rows(spec) + PATTERN_BYTES * _pattern_pairs(spec)
    return FIXED_BYTES + COPIED_BYTES * elements + moved + rows_kept


def _generated_bytes(spec: RunSpec) -> float:
    """What generating the largest seeded input takes."""
    seeded = (given.elements for given in spec.inputs.values() if given.source == "seed")
    return GENERATED_BYTES * max(seeded, default=0)


def _result_bytes(spec: RunSpec) -> float:
    """The engine's results twice, the float64 reference of each, and the comparison of the largest."""
    computed = _computed(spec)
    held = sum(count * (2 * counts.item_bytes(spec, name) + 8) for name, count in computed.items())
    return held + COMPARED_BYTES * max(computed.values())
