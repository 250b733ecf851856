"""What a run will cost, before it runs: arithmetic on the spec, in microseconds, without torch.

``flops`` counts the two matrix products over the pairs that the mask lets through, 2·pairs·(d + d_v); with
nothing masked and d_v = d that is the familiar 4·B·H·Lq·Lk·d. Gradients are two and a half times as much
again. The lengths of a ragged batch are data: every row counts as full. ``bytes_min`` reads each input and
writes each result once. ``predicted_seconds`` and ``predicted_bytes`` decide admission, so they lean upwards:
coefficients were fitted on one core of a two-core x86-64 server and then raised (see ``Cost``).
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

from kernels.decode.splits import make_plan, rows_per_kv_head
from kernels.flash.tiles import choose_tiles, padded_dim
from kernels.mla.forms import chosen_form, largest_tile, multiply_adds, work
from kernels.positions import visible_pairs
from kernels.registry import ENGINES, MAX_DECODE_LEN
from kernels.spec.model import RunSpec
from kernels.spec.results import GRADIENTS, MATRICES
from kernels.spec.values import ROUNDED

ITEM_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "int32": 4, "int64": 8, "bool": 1}
CACHED = ("k", "v", "past_key", "past_value")  # what a kv_dtype makes bytes of
SCALE_BYTES = {"per_tensor": 0, "per_token_head": 4}  # of each token and head; one for all is no array


@dataclass(frozen=True)
class Cost:
    """Seconds of one call, on one core: see the fields. Measured, then raised by about a half."""

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
    "flash": Cost(1e-2, 1.5e-2, 7e-3, 4e-8, 1.2e-10, 40.0),
    "decode": Cost(1e-2, 8e-3, 4e-3, 4e-8, 1.2e-10, 40.0, 3e-8),
    "mla": Cost(1e-2, 1e-2, 7e-3, 1e-7, 1.2e-10, 40.0, 2.5e-7),
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
TERMS_FACTOR = 3.0  # the same on the flat tiles of decoding, where a pass costs more than a product
PAGED_BYTES = 16.0  # of each number that is put in pages: of float32, twice, at most twice as many slots
LOADED_BYTES = 40.0  # working memory for each number of K and V in a tile: itself, its address, its mask
GRADIENT_FACTOR = 3.5  # forward and backward
# Working memory for each score: of one head of the reference; of torch's positions and masks, and its floats.
REFERENCE_MASKING_BYTES, REFERENCE_GRADIENT_BYTES = 60.0, 70.0
DISTANCE_BYTES, BIAS_BYTES, GRADIENT_BYTES = 24.0, 16.0, 40.0
PATTERN_SECONDS, PATTERN_BYTES = 2e-8, 8.0
REFERENCE_ROW_BYTES = 64.0  # of each number of one head's q, k, v and out
ROTATED_SECONDS, ROTATED_BYTES = 5e-8, 40.0
GATHERED_SECONDS, GATHERED_BYTES = 2e-8, 32.0
FIXED_SECONDS = 0.02
FIXED_BYTES = 4 * 2**20
# Whatever the engine: inputs made from a seed, maxima and sums of each row, results beside their reference.
GENERATED_SECONDS, GENERATED_BYTES = 2.5e-7, 48.0
EXPANDED_BYTES = 32.0  # of each, parts and whole in float64, and the engine's own
QUANTISED_SECONDS, QUANTISED_BYTES = 4e-7, 80.0  # of each number: made a code, decoded, and its error bounded
DECODED_SECONDS = 6e-8  # of each number of K or V that a kernel loads
ROW_SECONDS, ROW_BYTES = 1e-7, 80.0
RESULT_SECONDS, COMPARED_BYTES = 2e-8, 32.0


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
    predicted_seconds: float

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self)


def estimate(spec: RunSpec) -> Estimate:
    """Bound the cost of a valid spec on a CPU worker: engine × (warmup + iters), plus the float64
    reference."""
    flops = 2 * _multiply_adds(spec)
    if _differentiates(spec):
        flops = int(flops * GRADIENT_FACTOR)
    input_elements = sum(given.elements for given in spec.inputs.values())
    input_bytes = sum(_read_bytes(spec, name) for name in spec.inputs)
    outputs = {name: output_elements(spec, name) for name in spec.returns}
    output_bytes = sum(count * _item_bytes(spec, name) for name, count in outputs.items())
    bytes_min = input_bytes + output_bytes
    calls = spec.timing.warmup + spec.timing.iters
    seconds = calls * _seconds(spec, spec.engine) + _seconds(spec, "reference") + _fixed_seconds(spec)
    return Estimate(
        flops=flops,
        bytes_min=bytes_min,
        arithmetic_intensity=round(flops / bytes_min, 3) if bytes_min else 0.0,
        input_elements=input_elements,
        output_elements=sum(outputs.values()),
        output_bytes=output_bytes,
        predicted_bytes=_bytes(spec),
        predicted_seconds=float(f"{seconds:.3g}"),
    )


def _read_bytes(spec: RunSpec, name: str) -> int:
    """Of an input, read once: keys and values as the cache has them."""
    given = spec.inputs[name]
    if name in CACHED and spec.options.kv_dtype is not None:
        return given.elements + SCALE_BYTES[spec.options.kv_scale] * math.prod(spec.canonical_shape(name)[:3])
    return given.elements * (ITEM_BYTES[spec.dtype] if name in ROUNDED else 4)


def _token_bytes(spec: RunSpec) -> int:
    """Of the key and the value of one token in one head."""
    width = spec.head_dim + spec.v_head_dim
    if spec.options.kv_dtype is None:
        return width * ITEM_BYTES[spec.dtype]
    return width + 2 * SCALE_BYTES[spec.options.kv_scale]


def _multiply_adds(spec: RunSpec) -> int:
    """Of one call of the engine; all but ``mla`` expand latents."""
    if spec.is_latent:
        return multiply_adds(spec, chosen_form(spec) if spec.engine == "mla" else "expanded")
    return visible_pairs(spec) * (spec.head_dim + spec.v_head_dim)


def output_elements(spec: RunSpec, name: str) -> int:
    """How many numbers a result has."""
    rows = spec.batch * spec.num_heads * spec.q_len
    if name in MATRICES:
        return rows * spec.kv_len
    if name in ("dk", "dv"):
        return spec.inputs[name[1:]].elements
    keys = spec.batch * spec.num_kv_heads * spec.kv_len
    return {
        "out": rows * spec.v_head_dim,
        "lse": rows,
        "dq": rows * spec.head_dim,
        "present_key": keys * spec.head_dim,
        "present_value": keys * spec.v_head_dim,
    }[name]


def _item_bytes(spec: RunSpec, name: str) -> int:
    if spec.engine == "reference":
        return 8
    return ITEM_BYTES[spec.dtype] if name not in ("lse", *MATRICES) else max(4, ITEM_BYTES[spec.dtype])


def _differentiates(spec: RunSpec) -> bool:
    return any(name in spec.returns for name in GRADIENTS)


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
    return {name: output_elements(spec, name) for name in {"out", *spec.returns}}


def _fixed_seconds(spec: RunSpec) -> float:
    """What is done once, however often the engine is called."""
    seeded = sum(given.elements for given in spec.inputs.values() if given.source == "seed")
    operands = ROTATED_SECONDS * _rotated(spec) + GATHERED_SECONDS * _gathered(spec)
    operands += PATTERN_SECONDS * _pattern_pairs(spec) + QUANTISED_SECONDS * _quantised(spec)
    results = RESULT_SECONDS * sum(_computed(spec).values())
    return FIXED_SECONDS + GENERATED_SECONDS * seeded + operands + results


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
    if engine == "mla":
        return _latent_seconds(spec)
    cost, programs = _cost(spec, engine), spec.batch * spec.num_heads
    tiles, scores, loads = 0, 1.0 * programs * spec.q_len * spec.kv_len, 0
    width = spec.head_dim + spec.v_head_dim
    if _is_decoding(spec, engine):
        width = padded_dim(spec.head_dim) + padded_dim(spec.v_head_dim)
        programs, tiles, scores, loads = _decoded(spec)
    elif ENGINES[engine].is_triton:
        programs *= math.ceil(spec.q_len / choose_tiles(spec, interpreted=True)[0])
        tiles, scores = _tiled(spec)
        width = padded_dim(spec.head_dim) + padded_dim(spec.v_head_dim)
        if any(name in spec.returns for name in MATRICES):
            programs, tiles, scores = 2 * programs, 2 * tiles, 2 * scores
    elif _modifies_scores(spec):
        scores *= MASKING_FACTOR
    again = GRADIENT_FACTOR if _differentiates(spec) else 1.0
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
    cost, done = COSTS["mla"], work(spec, interpreted=True)
    factor = HALF_PRECISION_FACTOR["mla"] if spec.dtype == "float16" else 1.0
    seconds = cost.per_call + cost.per_program * done.programs + cost.per_tile * done.tiles
    seconds += cost.per_score * done.scores + cost.per_multiply * done.multiplies * factor
    return seconds + cost.per_load * done.loads + ROW_SECONDS * _rows(spec)


def _is_decoding(spec: RunSpec, engine: str) -> bool:
    """Whether the kernels of kernels/decode do the work, for a few queries."""
    return engine == "decode" or (engine == "paged" and spec.q_len <= MAX_DECODE_LEN)


def _cost(spec: RunSpec, engine: str) -> Cost:
    """What ``paged`` costs depends on whose kernels do the work, and on the table."""
    if engine != "paged":
        return COSTS[engine]
    cost = COSTS["decode" if _is_decoding(spec, engine) else "flash"]
    return replace(cost, per_tile=PAGED_FACTOR * cost.per_tile, per_load=PAGED_FACTOR * cost.per_load)


def _modifies_scores(spec: RunSpec) -> bool:
    attention = spec.attention
    return (
        attention.is_causal
        or attention.window != (None, None)
        or attention.softcap > 0
        or attention.alibi_slopes is not None
        or attention.pattern is not None
        or attention.sinks is not None
        or not {"attn_mask", "q_lens", "kv_lens"}.isdisjoint(spec.inputs)
    )


def _tiled(spec: RunSpec) -> tuple[int, float]:
    """Tiles that the flash kernel visits, and the scores in them (padding included)."""
    block_m, block_n = choose_tiles(spec, interpreted=True)
    rows, columns = math.ceil(spec.q_len / block_m), math.ceil(spec.kv_len / block_n)
    tiles = spec.batch * spec.num_heads * rows * columns
    total = spec.batch * spec.num_heads * spec.q_len * spec.kv_len
    if spec.attention.is_causal and total:
        # Tiles beyond the causal bound are skipped; those it crosses are whole.
        share = visible_pairs(spec) / total + (block_m / max(spec.q_len, 1) + block_n / spec.kv_len) / 2
        tiles = math.ceil(tiles * min(1.0, share))
    return tiles, tiles * block_m * block_n


def _decoded(spec: RunSpec) -> tuple[int, int, float, int]:
    """Programs, tiles, scores (padding included) and loaded numbers of K and V of the decode kernels."""
    plan = make_plan(spec, multiprocessors=None)
    groups = spec.batch * spec.num_kv_heads * math.ceil(rows_per_kv_head(spec) / plan.block_m)
    tiles = groups * math.ceil(spec.kv_len / plan.block_n)
    scores = 1.0 * tiles * plan.block_m * plan.block_n
    if _modifies_scores(spec):
        scores *= TERMS_FACTOR
    width = padded_dim(spec.head_dim) + padded_dim(spec.v_head_dim)
    return groups * plan.num_splits + 1, tiles, scores, tiles * plan.block_n * width


def _decoding_bytes(spec: RunSpec) -> float:
    """Working memory of the decode kernels: a tile of scores, one of K and V, and the states between them,
    all of which the second kernel takes into one tile if it can."""
    plan = make_plan(spec, multiprocessors=None)
    width = padded_dim(spec.head_dim) + padded_dim(spec.v_head_dim)
    tile = plan.block_m * plan.block_n * _cost(spec, spec.engine).bytes_per_score
    states = plan.num_splits * spec.batch * spec.num_heads * spec.q_len * (padded_dim(spec.v_head_dim) + 2)
    return max(tile + plan.block_n * width * LOADED_BYTES, LOADED_BYTES * min(states, 2**21)) + 4 * states


def _bytes(spec: RunSpec) -> int:
    """Peak memory above an idle worker: copies of the inputs, results twice and once in float64, and what
    scores and rows are held at once."""
    if _is_decoding(spec, spec.engine):
        engine = _decoding_bytes(spec)
    elif spec.engine == "mla":
        engine = LOADED_BYTES * largest_tile(spec, interpreted=True)
    elif ENGINES[spec.engine].is_triton:
        block_m, block_n = choose_tiles(spec, interpreted=True)
        engine = block_m * block_n * _cost(spec, spec.engine).bytes_per_score
    else:
        engine = _torch_bytes(spec) if spec.engine != "reference" else 0.0
    rows = ROW_BYTES * _rows(spec) + PATTERN_BYTES * _pattern_pairs(spec)
    held = max(engine, _reference_bytes(spec))
    return int(FIXED_BYTES + _input_bytes(spec) + _result_bytes(spec) + rows + held)


def _reference_bytes(spec: RunSpec) -> float:
    """Of one head, and what bounds its errors."""
    per_score = COSTS["reference"].bytes_per_score
    per_score += REFERENCE_MASKING_BYTES * _modifies_scores(spec)
    per_score += REFERENCE_GRADIENT_BYTES * _differentiates(spec)
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
    if _differentiates(spec):
        held += GRADIENT_BYTES * spec.batch * spec.num_heads * pairs * wide
    return held


def _input_bytes(spec: RunSpec) -> float:
    """Every input in a few copies, beside what generating the largest one takes, and the keys, values and
    queries that are made of latents."""
    elements = [given.elements for given in spec.inputs.values()]
    seeded = [given.elements for given in spec.inputs.values() if given.source == "seed"]
    made = 0
    if spec.is_latent:
        rows = spec.batch * spec.num_heads
        made = rows * (spec.kv_len * (spec.head_dim + spec.v_head_dim) + spec.q_len * spec.head_dim)
    paged = PAGED_BYTES * sum(elements) if spec.engine == "paged" else 0.0
    moved = ROTATED_BYTES * _rotated(spec) + GATHERED_BYTES * _gathered(spec) + EXPANDED_BYTES * made + paged
    moved += QUANTISED_BYTES * _quantised(spec)
    return 32 * sum(elements) + GENERATED_BYTES * max(seeded, default=0) + moved


def _result_bytes(spec: RunSpec) -> float:
    """The engine's results twice, the float64 reference of each, and the comparison of the largest."""
    computed = _computed(spec)
    held = sum(count * (2 * _item_bytes(spec, name) + 8) for name, count in computed.items())
    return held + COMPARED_BYTES * max(computed.values())


def modelled_traffic(spec: RunSpec) -> dict[str, Any]:
    """Bytes to and from memory, where nothing counted them: the inputs once and the results once, and

    * eager and reference: the score and the weight matrix each written once and read once more;
    * flash on a GPU: K and V once for each tile of queries (of which causal masking skips a share);
    * decode on a GPU, and paged with few queries: no more (the states of splits, a few rows each, are left
      out, and pages that several rows name are read for each);
    * mla on a GPU: what its tiles hold, padding included.

    With a kv_dtype K and V are bytes and scales; but eager decodes them first.
    """
    if spec.engine == "eager":
        spec = replace(spec, options=replace(spec.options, kv_dtype=None))
    item = ITEM_BYTES[spec.dtype]
    cache_of_a_head = spec.kv_len * _token_bytes(spec)
    read = sum(_read_bytes(spec, name) for name in spec.inputs)
    written = sum(output_elements(spec, name) * _item_bytes(spec, name) for name in spec.returns)
    pairs = spec.batch * spec.num_heads * spec.q_len * spec.kv_len
    if spec.engine in ("eager", "reference"):
        matrix = pairs * (8 if spec.engine == "reference" else max(4, item))
        read, written = read + 2 * matrix, written + 2 * matrix
    elif spec.engine == "mla":
        read = work(spec, interpreted=False).loads * item
    elif ENGINES[spec.engine].is_triton and not _is_decoding(spec, spec.engine) and pairs:
        block_m, _ = choose_tiles(spec, interpreted=False)
        share = visible_pairs(spec) / pairs if spec.attention.is_causal else 1.0
        keys = spec.batch * spec.num_heads * cache_of_a_head
        queries = spec.inputs["q"].elements * item
        read = queries + int(keys * math.ceil(spec.q_len / block_m) * share)
    elif spec.is_paged and spec.engine == "paged":
        tables = 4 * (spec.inputs["block_table"].elements + spec.batch)
        read = spec.inputs["q"].elements * item + spec.batch * spec.num_kv_heads * cache_of_a_head + tables
    return {"bytes_read": read, "bytes_written": written, "method": "model"}
