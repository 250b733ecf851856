"""Costs: counted pairs against a brute-force count, and the figures everybody quotes."""

import importlib
import subprocess
import sys
import time
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from kernels import counts, positions
from kernels.engines.reference import reference
from kernels.estimate import FIXED_BYTES, Estimate, estimate
from kernels.execute import execute
from kernels.registry import ENGINES
from kernels.spec import RunSpec, parse_run
from tests.kernels.cases import Arrays, Case, canonical, cases, make


def described(
    batch: int, heads: int, length: int, dim: int, *, dout: bool = False, **fields: object
) -> RunSpec:
    seeded = {"seed": 1, "shape": [batch, heads, length, dim]}
    inputs = dict.fromkeys([*"qkv", *(["dout"] if dout else [])], seeded)
    return parse_run({"engine": "flash", "inputs": inputs, **fields}).spec


def test_flops_are_the_familiar_formula_and_about_half_when_causal() -> None:
    full = estimate(described(1, 8, 1024, 64))
    assert full.flops == 4 * 8 * 1024 * 1024 * 64
    causal = estimate(described(1, 8, 1024, 64, attention={"is_causal": True}))
    assert causal.flops == 4 * 8 * (1024 * 1025 // 2) * 64
    assert full.bytes_min == 4 * 4 * 8 * 1024 * 64
    assert full.arithmetic_intensity == full.flops / full.bytes_min


def test_a_boolean_is_a_byte_and_other_masks_and_lengths_are_four() -> None:
    def read(**more: object) -> int:
        plain = {name: {"seed": 1, "shape": [2, 1, 16, 8]} for name in ("q", "k", "v")}
        return counts.bytes_min(parse_run({"engine": "flash", "inputs": plain | more}).spec)

    assert read(attn_mask=[[True] * 16] * 16, kv_lens=[16, 5]) == read() + 16 * 16 + 2 * 4
    assert read(attn_mask=[[0.0] * 16] * 16) == read() + 16 * 16 * 4


def test_visible_pairs_are_those_the_reference_leaves_unmasked() -> None:
    rng = np.random.default_rng()
    for _ in range(150):
        q_len, kv_len = (int(n) for n in rng.integers(0, 9, 2))
        attention: dict[str, object] = {
            "is_causal": bool(rng.random() < 0.5),
            "causal_alignment": str(rng.choice(["top_left", "bottom_right"])),
            "window": [None if rng.random() < 0.5 else int(rng.integers(0, 5)) for _ in range(2)],
        }
        if rng.random() < 0.3:
            attention["q_positions"] = int(rng.integers(-6, 12))
        elif rng.random() < 0.5:
            attention["q_positions"] = rng.integers(-3, 9, q_len).tolist()
        if rng.random() < 0.3:
            attention["kv_positions"] = rng.integers(-3, 9, (2, kv_len)).tolist()
        spec, arrays = make("reference", (2, 2, 1, q_len, kv_len, 4), attention=attention)
        masked = reference(spec, arrays, ("masked_scores",))["masked_scores"]
        assert positions.visible_pairs(spec) == np.isfinite(masked).sum(), attention


@pytest.mark.parametrize("listed", ["q_positions", "kv_positions"])
def test_default_positions_are_counted_without_being_written_out(listed: str) -> None:
    long, short = {"seed": 1, "shape": [2**24, 0]}, {"seed": 1, "shape": [3, 0]}
    q, k = (short, long) if listed == "q_positions" else (long, short)
    attention = {"is_causal": True, "causal_alignment": "top_left", listed: [0, 5, 9]}
    spec = parse_run({"engine": "reference", "inputs": {"q": q, "k": k, "v": k}, "attention": attention}).spec
    tracemalloc.start()
    try:
        pairs = positions.visible_pairs(spec)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()
    # Queries at 0, 5, 9 see 1, 6, 10 keys; of queries that begin at 0, keys at 0, 5, 9 miss 0, 5, 9.
    assert pairs == (17 if listed == "q_positions" else 3 * 2**24 - 14)


@pytest.mark.parametrize("engine", ["reference", "eager", "sdpa"])
def test_rows_cost_memory_and_time_without_a_single_score(engine: str) -> None:
    def cost(length: int) -> Estimate:
        q, kv = ({"seed": 1, "shape": [n, 0]} for n in (length, 0))
        return estimate(parse_run({"engine": engine, "inputs": {"q": q, "k": kv, "v": kv}}).spec)

    few, many = cost(1), cost(2**24)
    # At least eight vectors of float64 in the reference: maxima, sums, LSE and what lies between.
    assert many.predicted_bytes - few.predicted_bytes > 8 * 8 * 2**24
    assert many.predicted_seconds > few.predicted_seconds + 1


def test_out_is_held_even_if_only_the_lse_is_returned() -> None:
    q, k, v = ({"seed": 1, "shape": shape} for shape in ([2**15, 1], [1, 1], [1, 2**15]))
    fields = {"engine": "eager", "inputs": {"q": q, "k": k, "v": v}, "return": ["lse"]}
    assert estimate(parse_run(fields).spec).predicted_bytes > (4 + 8) * 2**30


@pytest.mark.parametrize("lengths", [(2**19, 0), (2**19, 2), (2, 2**19), (512, 512)])
def test_predicted_memory_covers_what_a_run_allocates(lengths: tuple[int, int]) -> None:
    q, kv = ({"seed": 1, "shape": [n, 2]} for n in lengths)
    fields = {
        "engine": "reference",
        "inputs": {"q": q, "k": kv, "v": kv},
        "attention": {"is_causal": True},
        "timing": {"warmup": 0, "iters": 1},
        "return": ["out", "lse"],
    }
    parsed = parse_run(fields)
    tracemalloc.start()
    try:
        execute(parsed.spec, parsed.arrays)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak <= estimate(parsed.spec).predicted_bytes


def test_the_memory_of_flash_grows_with_the_length_and_that_of_eager_with_its_square() -> None:
    """As the peak does that is measured beside it, whatever the float64 reference holds afterwards."""

    def growth(engine: str) -> float:
        short, long = (
            estimate(parse_run({"engine": engine, "inputs": dict.fromkeys("qkv", seeded(1, 1, n, 64))}).spec)
            for n in (4096, 8192)
        )
        return (long.engine_bytes - FIXED_BYTES) / (short.engine_bytes - FIXED_BYTES)

    assert growth("flash") < 2
    assert growth("eager") > 3.5


def test_more_work_never_costs_less() -> None:
    specs = [described(1, heads, length, 64) for heads in (1, 8) for length in (16, 256, 1024, 4096)]
    seconds = [estimate(spec).predicted_seconds for spec in specs]
    assert seconds[:4] == sorted(seconds[:4])
    assert seconds[4:] == sorted(seconds[4:])
    assert (
        estimate(described(1, 8, 1024, 64, options={"block_m": 16, "block_n": 16})).predicted_seconds
        > seconds[6]
    )
    more = estimate(described(1, 1, 256, 64, timing={"warmup": 5, "iters": 50})).predicted_seconds
    assert more > 5 * seconds[1]


def test_results_count_towards_output() -> None:
    cost = estimate(described(1, 2, 100, 8, **{"return": ["out", "lse", "weights"]}))
    assert cost.output_elements == 2 * (100 * 8 + 100 + 100 * 100)
    assert cost.output_bytes == 4 * cost.output_elements


def test_an_estimate_of_the_largest_spec_is_instant_arithmetic() -> None:
    spec = described(1, 1, 2**22, 1, attention={"is_causal": True})
    cost = estimate(spec)
    assert cost.flops == 4 * (2**22 * (2**22 + 1) // 2)
    assert cost.predicted_seconds > 1e4


@pytest.mark.parametrize(
    "module", ["kernels.spec", "kernels.registry", "kernels.refusals", "kernels.estimate", "kernels.arrays"]
)
def test_the_web_process_never_needs_torch(module: str) -> None:
    code = f"import sys, {module}; assert not {{'torch', 'triton', 'django'}} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def seeded(*shape: int) -> dict[str, object]:
    return {"seed": 2, "shape": list(shape)}


N, H, D = 500, 2, 16
FEATURES: dict[str, dict[str, object]] = {
    "plain": {},
    "causal": {"attention": {"is_causal": True}},
    "alibi and sinks": {"attention": {"alibi_slopes": "auto", "sinks": [0, 1], "window": [9, None]}},
    "softcap": {"attention": {"softcap": 5}},
    "mask": {"inputs": {"attn_mask": seeded(N, N)}},
    "ragged": {"inputs": {"q_lens": [N, 9], "kv_lens": [9, N]}, "attention": {"is_causal": True}},
    "rope": {"attention": {"rope": {"style": "half"}}},
    "pattern": {"attention": {"pattern": {"type": "longformer", "window": 9, "global": [0]}}},
    "gradients": {"inputs": {"dout": seeded(2, H, N, D)}, "return": ["dq", "dk", "dv", "lse"]},
    "gradients of all": {
        "inputs": {"dout": seeded(2, H, N, D), "attn_mask": seeded(2, 1, N, N)},
        "attention": {"alibi_slopes": "auto", "is_causal": True, "softcap": 3, "rope": {"style": "half"}},
        "return": ["dq", "dk", "dv"],
    },
    "matrices": {"return": ["scores", "softcapped_scores", "masked_scores", "weights"]},
    "past": {
        "inputs": {"past_key": seeded(2, H, N, D), "past_value": seeded(2, H, N, D)},
        "return": ["present_key", "present_value"],
    },
    "pages": {
        "inputs": {
            "q": seeded(2, H, 1, D), "k": seeded(4, 64, H, D), "v": seeded(4, 64, H, D),
            "block_table": [[0, 1, 2, 3] * 20] * 2,
        }
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def warm_process() -> None:
    """What a process takes once, for libraries and their threads, is an idle worker's."""
    for engine in ("eager", "sdpa"):
        inputs = {name: seeded(4, 4) for name in ("q", "k", "v", "dout")}
        parsed = parse_run({"engine": engine, "inputs": inputs, "return": ["dq"]})
        execute(parsed.spec, parsed.arrays)


@pytest.mark.usefixtures("warm_process")
@pytest.mark.parametrize("engine", ["reference", "eager", "sdpa"])
@pytest.mark.parametrize("feature", FEATURES)
def test_predicted_memory_covers_every_feature(feature: str, engine: str) -> None:
    fields = dict(FEATURES[feature])
    if engine == "sdpa":
        fields["attention"] = {**fields.get("attention", {}), "softcap": 0}  # type: ignore[dict-item]
        wanted = [name for name in fields.get("return", ["out"]) if name in ENGINES["sdpa"].returns]  # type: ignore[attr-defined]
        fields["return"] = wanted or ["out"]
    given = {name: seeded(2, H, N, D) for name in "qkv"} | fields.pop("inputs", {})  # type: ignore[operator]
    parsed = parse_run({"engine": engine, "inputs": given, "timing": {"warmup": 0, "iters": 1}, **fields})
    predicted = estimate(parsed.spec)
    tracemalloc.start()  # sees numpy; what torch allocates is in the measured peak
    try:
        outcome = execute(parsed.spec, parsed.arrays)
        traced = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert traced <= predicted.predicted_bytes
    assert outcome.memory["peak_bytes"] <= predicted.engine_bytes <= predicted.predicted_bytes
    assert sum(array.size for array in outcome.arrays.values()) == predicted.output_elements
    assert (
        outcome.timing["worker_ns"] / 1e9 < 30 * predicted.predicted_seconds
    )  # a busy machine; not an order


def test_gradients_cost_two_and_a_half_times_as_much_again() -> None:
    plain = described(1, 2, 256, 64)
    more = described(1, 2, 256, 64, **{"return": ["dq", "dk", "dv"]}, dout=True)
    assert estimate(more).flops == 3.5 * estimate(plain).flops
    assert estimate(more).predicted_seconds > 2 * estimate(plain).predicted_seconds


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(cases())
def test_pairs_are_never_counted_too_few(case: Case) -> None:
    """Ragged lengths are data: without them the count is an upper bound, with patterns and masks too."""
    spec, arrays = case.on("reference")
    masked = reference(spec, arrays, ("masked_scores",))["masked_scores"]
    assert positions.visible_pairs(spec) >= np.isfinite(masked).sum()


# -- our own kernels: what they take against what is predicted ---------------------------------------------

TILES = {"block_m": 32, "block_n": 32}
LONG = 512
KERNELS: dict[str, tuple[str, dict[str, object]]] = {
    "whole": ("flash", {}),
    "window": ("flash", {"attention": {"window": [32, 0]}, "options": TILES}),
    "causal": ("flash", {"attention": {"is_causal": True}, "options": TILES}),
    "terms": ("flash", {"attention": {"softcap": 5, "alibi_slopes": "auto"}, "options": TILES}),
    "mask": ("flash", {"inputs": {"attn_mask": seeded(LONG, LONG)}, "options": TILES}),
    "matrices": ("flash", {"attention": {"window": [32, 0]}, "return": ["weights"], "options": TILES}),
    "codes": ("flash", {"options": TILES | {"kv_dtype": "fp8_e4m3"}}),
    "gradients": (
        "flash",
        {
            "inputs": {"dout": seeded(1, 1, LONG, 32)},
            "attention": {"window": [32, 0]},
            "return": ["dq", "dk", "dv"],
            "options": TILES,
        },
    ),
    "pages": ("paged", {"attention": {"is_causal": True}, "options": {"block_n": 64, "page_size": 7}}),
    "latents": ("mla", {"attention": {"window": [32, 0]}, "options": TILES | {"form": "absorbed"}}),
    "expanded": ("mla", {"attention": {"window": [32, 0]}, "options": TILES | {"form": "expanded"}}),
}
LATENTS = {
    "q_nope": seeded(4, LONG // 2, 16), "q_rope": seeded(4, LONG // 2, 8), "c_kv": seeded(LONG, 32),
    "k_rope": seeded(LONG, 8), "w_uk": seeded(4, 32, 16), "w_uv": seeded(4, 32, 16),
}  # fmt: skip


def cpu_seconds(spec: RunSpec, arrays: Arrays) -> float:
    """Of one call of the engine, the least of three. No clock on the wall says it: others may be at work,
    and the threads of a matrix product wait for one another at its cost."""
    prepared = importlib.import_module(ENGINES[spec.engine].module).prepare(spec, arrays, "cpu")
    found = []
    for _ in range(3):
        start = time.thread_time()
        prepared.compute()
        found.append(time.thread_time() - start)
    return min(found)


@pytest.mark.parametrize("kind", KERNELS)
def test_a_kernel_takes_no_longer_than_predicted_nor_a_tenth_of_it(kind: str) -> None:
    engine, fields = KERNELS[kind]
    fields = {"timing": {"warmup": 0, "iters": 1}, **fields}
    if engine == "mla":
        spec, arrays = canonical({"engine": engine, "inputs": LATENTS, **fields})
    else:
        spec, arrays = make(engine, (1, 1, 1, LONG, LONG, 32), **fields)
    again = replace(spec, timing=replace(spec.timing, iters=2))
    predicted = estimate(again).predicted_seconds - estimate(spec).predicted_seconds
    assert predicted / 10 < cpu_seconds(spec, arrays) < predicted


def test_a_window_over_a_long_sequence_is_predicted_by_what_it_reaches() -> None:
    """Twice the length, twice the tiles; of whole rows there would be four times as many."""

    def call(length: int, **fields: object) -> float:
        one, two = (
            estimate(described(1, 8, length, 64, timing={"iters": n}, options=TILES, **fields))
            for n in (1, 2)
        )
        return two.predicted_seconds - one.predicted_seconds

    assert call(2**13) > 3.5 * call(2**12)
    window = {"window": [64, 0]}
    assert call(2**13, attention=window) == pytest.approx(2 * call(2**12, attention=window), rel=0.05)
    assert call(2**13, attention=window) < call(2**13) / 20
