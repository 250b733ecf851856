"""A whole run: inputs, results, errors, measurements, as a worker sees them."""

import hashlib
import importlib
import json
import os
import subprocess
import sys
import time
import types
from typing import Any

import numpy as np
import pytest

from kernels import execute as module
from kernels.arrays import generate
from kernels.compiling import StandIn, without_data
from kernels.engines import TilesError
from kernels.execute import CannotRunError, DeadlineExceeded, Outcome, execute, warm
from kernels.measure import PeakMemory
from kernels.numerics import errors
from kernels.registry import ENGINES, SOFTMAX
from kernels.spec import parse_run

X, V = [[1, 0], [0, 1], [1, 1]], [[1, 0], [0, 2], [2, 2]]


def run(
    engine: str, inputs: dict[str, Any] | None = None, *, deadline: float | None = None, **fields: Any
) -> Outcome:
    timing = {"timing": {"warmup": 0, "iters": 2}}
    given = {"q": X, "k": X, "v": V} if inputs is None else inputs
    parsed = parse_run({"engine": engine, "inputs": given, **timing, **fields})
    return execute(parsed.spec, parsed.arrays, deadline=deadline)


def seeded(*shape: int) -> dict[str, Any]:
    return {"seed": 3, "shape": list(shape)}


@pytest.mark.parametrize("engine", ["reference", "eager", "sdpa", "flash"])
def test_the_worked_example_in_full(engine: str) -> None:
    outcome = run(engine)
    np.testing.assert_allclose(
        outcome.arrays["out"], [[1.2033, 1.1978], [1.0, 1.6044], [1.2552, 1.5035]], atol=5e-5
    )
    n = outcome.numerics
    assert n["reference"] == "float64"
    assert n["within_bound"] is True
    assert n["nan_count"] == 0
    assert n["max_abs_err"] <= n["bound"] < 1e-4
    assert len(outcome.timing["samples_ns"]) == 2
    assert outcome.timing["p10_ns"] <= outcome.timing["median_ns"] <= outcome.timing["p90_ns"]
    assert outcome.timing["worker_ns"] > sum(outcome.timing["samples_ns"])
    assert outcome.memory["method"].startswith("peak memory of the worker process, above")
    assert outcome.cost["flops"] == 4 * 9 * 2
    assert outcome.environment["device"] == "cpu"
    triton = engine == "flash"
    assert outcome.timing["method"] == ("interpreter" if triton else "wall")
    assert outcome.timing["representative"] is not triton
    assert outcome.environment["interpreter"] is triton
    assert outcome.traffic["method"] == ("interpreter" if triton else "model")
    for part in ("input_info", "numerics", "timing", "memory", "traffic", "cost", "environment", "notes"):
        json.dumps(getattr(outcome, part), allow_nan=False)


def test_inputs_are_those_the_engine_saw() -> None:
    outcome = run(
        "eager", {"q": seeded(2, 3, 4), "k": seeded(2, 3, 4), "v": seeded(2, 3, 4)}, dtype="float16"
    )
    expected = generate("q", 3, (2, 3, 4), "normal", "float16")
    np.testing.assert_array_equal(outcome.inputs["q"], expected)
    info = outcome.input_info["q"]
    assert (info["shape"], info["dtype"], info["seed"]) == ([2, 3, 4], "float16", 3)
    assert info["sha256"] == hashlib.sha256(expected.tobytes()).hexdigest()
    assert outcome.arrays["out"].dtype == np.float16


@pytest.mark.parametrize(
    ("shape", "attention", "out", "rows"),
    [
        ((5, 4), {}, (5, 4), (5,)),
        ((2, 5, 4), {}, (2, 5, 4), (2, 5)),
        ((3, 2, 5, 4), {}, (3, 2, 5, 4), (3, 2, 5)),
        ((3, 5, 8), {"num_heads": 2}, (3, 5, 8), (3, 2, 5)),
    ],
)
@pytest.mark.parametrize("engine", ["reference", "flash"])
def test_results_have_the_rank_of_the_input(
    engine: str, shape: Any, attention: Any, out: Any, rows: Any
) -> None:
    inputs = {name: seeded(*shape) for name in "qkv"}
    outcome = run(engine, inputs, attention=attention, **{"return": ["out", "lse", "weights"]})
    assert outcome.arrays["out"].shape == out
    assert outcome.arrays["lse"].shape == rows
    assert outcome.arrays["weights"].shape == (*rows, shape[-2])


def test_packed_heads_are_side_by_side() -> None:
    q = generate("q", 3, (3, 5, 8), "normal", "float32")
    packed = run("eager", {name: seeded(3, 5, 8) for name in "qkv"}, attention={"num_heads": 2})
    k, v = (generate(n, 3, (3, 5, 8), "normal", "float32") for n in "kv")
    for h in range(2):
        part = {n: a[..., 4 * h : 4 * h + 4][:, None].tolist() for n, a in {"q": q, "k": k, "v": v}.items()}
        alone = run("eager", part)
        np.testing.assert_allclose(
            packed.arrays["out"][..., 4 * h : 4 * h + 4], alone.arrays["out"][:, 0], atol=1e-6
        )


def test_bfloat16_under_the_interpreter_says_what_it_did() -> None:
    outcome = run("flash", dtype="bfloat16")
    assert any("bfloat16" in note for note in outcome.notes)
    assert outcome.numerics["within_bound"]
    assert outcome.input_info["q"]["dtype"] == "bfloat16"


def test_a_mask_of_zeros_and_ones_in_floats_is_remarked_upon() -> None:
    outcome = run("eager", {"q": X, "k": X, "v": V, "attn_mask": [[0, 1, 1]]})
    assert any("booleans" in note for note in outcome.notes)


def test_a_wrong_kernel_is_outside_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    from kernels.engines import eager

    right = eager.attend

    def wrong(q: Any, k: Any, v: Any, *, scale: float, **rest: Any) -> Any:
        return right(q, k, v, scale=scale * 1.001, **rest)  # a scale off by a thousandth

    monkeypatch.setattr(eager, "attend", wrong)
    outcome = run("eager", {name: seeded(2, 64, 32) for name in "qkv"})
    assert outcome.numerics["within_bound"] is False


def test_nan_in_a_result_is_counted_and_out_of_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    from kernels.engines import eager

    right = eager.attend
    monkeypatch.setattr(
        eager, "attend", lambda *a, **k: {n: x * float("nan") for n, x in right(*a, **k).items()}
    )
    numerics = run("eager").numerics
    assert numerics["nan_count"] == 6
    assert numerics["within_bound"] is False
    json.dumps(numerics, allow_nan=False)


LARGE_LOGITS = {"q": [[100, 100]], "k": [[1, 1], [-1, -1]], "v": [[1], [2]]}
LARGE_SUM = {"q": [[0]] * 8, "k": [[0]], "v": [[1]], "dout": [[60000]] * 8}


@pytest.mark.filterwarnings("ignore:(invalid value|overflow):RuntimeWarning")
@pytest.mark.parametrize(
    ("engine", "name", "inputs", "fields", "words"),
    [
        *(
            (engine, "out", LARGE_LOGITS, {"attention": {"scale": 3e38}}, "computed from, are beyond float32")
            for engine in ("flash", "decode", "paged", "sdpa")
        ),
        ("flash", "lse", LARGE_LOGITS, {"attention": {"scale": 3e38}}, "3.40282e+38"),
        *((engine, "dv", LARGE_SUM, {}, "they are beyond float16, whose largest number is 65504")
          for engine in ("flash", "eager", "sdpa")),
        ("eager", "present_key", {"q": [[1, 1]], "k": [[6e4, 6e4]], "v": [[1]]},
         {"attention": {"rope": {"style": "half", "positions": 1}}}, "they are beyond float16"),
    ],
)  # fmt: skip
def test_what_overflowed_is_said(
    engine: str, name: str, inputs: dict[str, Any], fields: dict[str, Any], words: str
) -> None:
    """And that the reference has it; which has nothing to say of itself."""
    dtype = "float32" if inputs is LARGE_LOGITS else "float16"
    asked = {"dtype": dtype, "return": ["out", name], **fields}
    outcome = run(engine, inputs, **asked)
    array, (note,) = outcome.arrays[name], [x for x in outcome.notes if f"numbers of {name} are" in x]
    lost = np.count_nonzero(~np.isfinite(array))
    assert lost > 0
    assert note.startswith(f"{lost} of {array.size} numbers of {name} are not finite")
    assert words in note
    assert "Engine reference computes in float64" in note
    assert not run("reference", inputs, **asked).notes


def test_an_infinity_that_is_right_is_no_overflow() -> None:
    outcome = run("flash", {"q": X, "k": X, "v": V, "attn_mask": [[False] * 3]}, **{"return": ["out", "lse"]})
    assert np.isneginf(outcome.arrays["lse"]).all()
    assert not any("not finite" in note for note in outcome.notes)


@pytest.mark.parametrize("scale", [None, 0.0, -1.0])
@pytest.mark.parametrize("engine", ["eager", "sdpa", "reference"])
def test_numbers_at_the_end_of_float64_stay_json(engine: str, scale: float | None) -> None:
    inputs = {"q": [[1e200, 1e200]], "k": [[1.0, 1e200]], "v": [[1e308]]}
    outcome = run(engine, inputs, dtype="float64", attention={"scale": scale})
    numerics = outcome.numerics
    for part in ("input_info", "numerics", "timing", "memory", "traffic", "cost"):
        json.dumps(getattr(outcome, part), allow_nan=False)
    if engine != "reference" and scale != 0.0:
        assert numerics["bound"] == "inf"
    error, bound = float(numerics["max_abs_err"]), float(numerics["bound"])
    assert bound >= 0.0
    expected = numerics["nan_count"] == 0 and error < np.inf and error <= bound
    assert numerics["within_bound"] is expected


def test_the_bound_is_finite_where_it_need_not_be_infinite() -> None:
    tame = {"q": [[1e200]], "k": [[1e-200]], "v": [[1.0]]}
    assert 0 < run("eager", tame, dtype="float64").numerics["bound"] < 1e-14
    # Row norms squared overflow; scale · ‖q‖ · ‖k‖ does not.
    tiny = run("eager", {"q": [[1e250]], "k": [[1e250]], "v": [[1.0]]}, dtype="float64",
               attention={"scale": 1e-38})  # fmt: skip
    assert tiny.numerics["bound"] == 2.0  # twice the largest |v|
    zero = run("eager", {"q": [[1e308] * 9], "k": [[1.0] * 9], "v": [[1.0]]}, dtype="float64",
               attention={"scale": 0.0})  # fmt: skip
    assert zero.numerics["bound"] <= 2.0  # q·k is beyond float64, and ∞ · 0 has no value


def test_the_mean_of_large_errors_is_not_infinite() -> None:
    found = errors(np.array([1e200, 0.0]), np.array([0.0, 0.0]))
    assert found["rmse"] == pytest.approx(1e200 / 2**0.5)


def test_the_interpreter_counts_the_traffic_of_the_io_theorem() -> None:
    inputs = {name: seeded(1, 1, 64, 16) for name in "qkv"}
    outcome = run("flash", inputs, options={"block_m": 16, "block_n": 16})
    assert outcome.traffic["bytes_read"] == 4 * 16 * (64 + 2 * 64 * 4)  # Q + (N / block_m)·(K + V)
    assert outcome.traffic["bytes_written"] == 4 * (64 * 16 + 64)


def test_memory_that_the_process_had_freed_before_is_seen_when_it_is_used_again() -> None:
    for _ in range(2):  # what is freed once is given back; then glibc keeps blocks of this size
        np.ones(20 * 2**20, dtype=np.uint8)
    memory = PeakMemory("cpu")
    np.ones(16 * 2**20, dtype=np.uint8)
    assert memory.peak_bytes() >= 15 * 2**20


def test_memory_sees_a_large_score_matrix() -> None:
    inputs = {name: seeded(1, 4, 1024, 16) for name in "qkv"}
    memory = run("eager", inputs, timing={"warmup": 0, "iters": 1}).memory
    assert 0.5 * 4 * 4 * 1024 * 1024 < memory["peak_bytes"] <= memory["predicted_bytes"]


def test_a_deadline_that_has_passed_stops_a_run_before_it_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "materialise", lambda *_: pytest.fail("inputs were made"))
    with pytest.raises(DeadlineExceeded):
        run("flash", deadline=time.monotonic() - 1)


def test_a_deadline_stops_a_run_between_iterations(monkeypatch: pytest.MonkeyPatch) -> None:
    timed, clock = module.timed, iter(range(10**6))
    calls = []

    def counted(*arguments: Any) -> Any:
        calls.append(arguments)
        return timed(*arguments)

    monkeypatch.setattr(module, "timed", counted)
    monkeypatch.setattr(
        module, "time", types.SimpleNamespace(monotonic=lambda: next(clock), perf_counter_ns=lambda: 0)
    )
    with pytest.raises(DeadlineExceeded):  # the clock ticks once per look at it, twice before the first call
        run("reference", deadline=4, timing={"warmup": 0, "iters": 1000})
    assert len(calls) == 3


@pytest.mark.parametrize(
    "attention",
    [
        {"kv_positions": [0, 1, 5]},
        {"kv_positions": [0, 1, 5], "is_causal": True},
        {"q_positions": [0, 1, 5], "window": [1, None]},
        {"pattern": {"type": "document", "ids": [0, 0, 1]}},
    ],
)
@pytest.mark.parametrize("lengths", [{}, {"kv_lens": []}, {"q_lens": [], "kv_lens": []}])
@pytest.mark.parametrize("engine", [name for name, it in ENGINES.items() if it.computes == SOFTMAX])
def test_a_batch_may_have_no_rows(engine: str, lengths: dict[str, Any], attention: dict[str, Any]) -> None:
    """What is said of all rows at once is then said of none; nor is there anything to compile for it but
    what there is for any batch."""
    shapes = dict.fromkeys("qkv", (0, 2, 3, 4))
    if "c_kv" in ENGINES[engine].takes:
        shapes = {"q_nope": (0, 2, 3, 4), "q_rope": (0, 2, 3, 2), "c_kv": (0, 3, 8), "k_rope": (0, 3, 2),
                  "w_uk": (2, 8, 4), "w_uv": (2, 8, 4)}  # fmt: skip
    options = {"form": "absorbed"} if "form" in ENGINES[engine].options else {}
    inputs = {name: seeded(*shape) for name, shape in shapes.items()} | lengths
    outcome = run(engine, inputs, attention=attention, options=options)
    assert outcome.arrays["out"].shape == (0, 2, 3, 4)
    assert outcome.numerics["within_bound"]
    if ENGINES[engine].is_triton:
        spec = parse_run(
            {"engine": engine, "inputs": inputs, "attention": attention, "options": options}
        ).spec
        module_of = importlib.import_module(ENGINES[engine].module)
        assert list(module_of.kernels_of(spec, without_data(spec), StandIn("sm_90")))


@pytest.mark.parametrize("kind", [TimeoutError, MemoryError])
@pytest.mark.parametrize("engine", ["flash", "decode", "paged"])
def test_what_stops_a_kernel_is_not_wrapped(
    monkeypatch: pytest.MonkeyPatch, engine: str, kind: type[Exception]
) -> None:
    """As a worker's time limit does: an exception out of a signal, anywhere in the interpreter."""

    def stop(*args: Any, **kwargs: Any) -> None:
        raise kind("stopped")

    parsed = parse_run({"engine": engine, "inputs": {n: {"seed": 1, "shape": [3, 4]} for n in "qkv"}})
    execute(parsed.spec, parsed.arrays)  # so that the engine is there
    monkeypatch.setattr("triton.runtime.interpreter.InterpreterBuilder.create_dot", stop)
    with pytest.raises(kind, match="stopped"):
        execute(parsed.spec, parsed.arrays)


def test_tiles_that_a_gpu_refuses_are_answered_with_options_that_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: Any) -> None:
        raise TilesError("these do not fit", "smaller", ("block_m", "block_n"))

    monkeypatch.setattr("kernels.decode.launch.prepare", refuse)
    with pytest.raises(CannotRunError, match=r"these do not fit: ask for a smaller block_n$"):
        run("decode")


def test_a_gpu_that_is_not_there_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.torch.cuda, "is_available", lambda: False)
    with pytest.raises(CannotRunError, match="there is none here"):
        run("sdpa", device="cuda")


def test_flash_without_gpu_and_interpreter_says_what_is_missing() -> None:
    code = (
        "from kernels.spec import parse_run; from kernels.execute import execute, CannotRunError\n"
        "p = parse_run({'engine': 'flash', 'device': 'cpu', 'inputs': {n: [[1.0]] for n in 'qkv'}})\n"
        "try: execute(p.spec, p.arrays)\n"
        "except CannotRunError as e: print(e)"
    )
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {"PYTHONPATH": "."}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=True)
    assert "TRITON_INTERPRET=1" in done.stdout


def test_warm_runs_every_engine() -> None:
    warm()
    assert "kernels.flash.launch" in sys.modules
