"""What the flash kernel holds after each tile of keys, recorded as it runs: attention to the keys so far."""

import importlib
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernels import execute as execution
from kernels.engines import CannotRunError
from kernels.engines.reference import reference
from kernels.estimate import estimate
from kernels.execute import execute, resolve_device
from kernels.flash import kernel, trace
from kernels.flash.interpreter import overheard
from kernels.flash.schedule import FULL, MASKED, SKIPPED, schedule, schedule_of
from kernels.operands import operands
from kernels.refusals import refused
from kernels.spec import RunSpec, SpecError, parse_run
from kernels.spec.results import TRACE
from tests.kernels.cases import Arrays, Case, cases, compute, make

RETURNS = {"return": ["out", "lse", *TRACE]}
ONCE = {"timing": {"warmup": 0, "iters": 1}}
TILES = st.sampled_from([(16, 16), (32, 16), (16, 32)])
LENGTHS = st.sampled_from([0, 1, 16, 17, 33, 50])
RAGGED = {"q_lens": [40, 17, 0], "kv_lens": [33, 50, 20]}
SETTINGS: dict[str, dict[str, Any]] = {
    "whole": {},
    "causal": {"is_causal": True},
    "from the first": {"is_causal": True, "causal_alignment": "top_left"},
    "window": {"window": [9, 5]},
    "left only": {"window": [9, None], "is_causal": True},
    "sinks": {"is_causal": True, "sinks": [0.0, 1.0, -2.0, 20.0]},
    "softcap and alibi": {"softcap": 2.0, "alibi_slopes": "auto", "is_causal": True},
    "longformer": {"pattern": {"type": "longformer", "window": 8, "global": [0]}},
    "positions": {"is_causal": True, "q_positions": [*range(5, 25), *range(40, 60)]},
}


def traced(attention: dict[str, Any], **fields: Any) -> tuple[RunSpec, Arrays]:
    options = {"block_m": 16, "block_n": 16}
    return make(
        "flash", (3, 4, 2, 40, 50, 8), v_dim=5, attention=attention, options=options, **RETURNS, **fields
    )


@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize("name", SETTINGS)
def test_after_each_tile_it_is_attention_to_the_keys_so_far(name: str, ragged: bool) -> None:
    spec, arrays = traced(SETTINGS[name], distribution="peaked", inputs=RAGGED if ragged else {})
    got, whole = compute(spec, arrays), operands(spec, arrays, dtype=np.float64)
    masked = reference(spec, arrays, ("masked_scores",))["masked_scores"]
    before = np.full(masked.shape[:3], -np.inf)
    if whole.sinks is not None:
        before[:] = whole.sinks[:, None]
    if ragged:  # in padding not even a sink is seen
        before.swapaxes(1, 2)[np.arange(40) >= arrays["q_lens"][:, None]] = -np.inf
    sinks, values = before, np.repeat(whole.v, 2, axis=1)

    def check(name: str, expected: np.ndarray) -> None:
        np.testing.assert_allclose(got[name][:, :, :, tile], expected, rtol=2e-5, atol=2e-5, err_msg=name)

    for tile, (begin, end) in enumerate(((0, 16), (16, 32), (32, 48), (48, 50))):
        seen = masked[..., :end]
        m = np.maximum(seen.max(-1), sinks)
        finite = np.where(np.isneginf(m), 0.0, m)
        weights = np.exp(seen - finite[..., None])
        is_taken = got["trace_tiles"][..., tile] != SKIPPED
        assert np.isneginf(masked[..., begin:end][~is_taken]).all()
        check("trace_max", m)
        check("trace_sum", weights.sum(-1) + np.exp(sinks - finite))
        check("trace_out", weights @ values[:, :, :end])
        check("trace_rescale", np.where(is_taken, np.exp(before - finite), 1.0))
        before = m


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(cases("flash", q_lens=LENGTHS, kv_lens=LENGTHS), TILES, st.sampled_from(["float32", "float16"]))
def test_of_whatever_is_asked_every_state_is_within_its_bound_and_the_last_one_gives_the_results(
    case: Case, tiles: tuple[int, int], dtype: str
) -> None:
    options = {"block_m": tiles[0], "block_n": tiles[1]}
    spec, arrays = case.on("flash", dtype=dtype, options=options, **RETURNS, **ONCE)
    done = execute(*spec_and_uploads(case, spec))
    assert {name: found for name, found in done.numerics["arrays"].items() if not found["within_bound"]} == {}
    got, plain = compute(spec, arrays), compute(*case.on("flash", dtype=dtype, options=options))
    np.testing.assert_array_equal(got["out"], plain["out"])
    np.testing.assert_array_equal(got["trace_tiles"], schedule_by_row(spec, arrays, tiles))
    assert [got[name].size for name in TRACE] == [
        np.prod(
            (*got["lse"].shape, -(-spec.kv_len // tiles[1]), *got["out"].shape[3:][: name == "trace_out"])
        )
        for name in TRACE
    ]
    if spec.kv_len:
        m, l, o = (got[name][:, :, :, -1] for name in ("trace_max", "trace_sum", "trace_out"))  # noqa: E741
        with np.errstate(divide="ignore", invalid="ignore"):
            lse = np.where(l == 0, -np.inf, m + np.log(l))
        np.testing.assert_allclose(got["lse"], lse, rtol=1e-6, atol=1e-6)
        out = (o / np.where(l == 0, 1, l)[..., None]).astype(got["out"].dtype)
        np.testing.assert_array_equal(got["out"], out)


def spec_and_uploads(case: Case, spec: RunSpec) -> tuple[RunSpec, Arrays]:
    """What ``execute`` takes: arrays as they were sent."""
    body = case.body | {
        "engine": "flash", "dtype": spec.dtype, "return": list(spec.returns),
        "options": {"block_m": spec.options.block_m, "block_n": spec.options.block_n}, **ONCE,
    }  # fmt: skip
    parsed = parse_run(body, load_upload=lambda _, name: case.uploads[name])
    return parsed.spec, parsed.arrays


def schedule_by_row(spec: RunSpec, arrays: Arrays, tiles: tuple[int, int]) -> np.ndarray:
    """The schedule, for each query that there is."""
    kinds = schedule(operands(spec, arrays, dtype=np.float32), tiles)
    np.testing.assert_array_equal(schedule_of(spec, arrays, tiles), kinds)
    rows = kinds[:, :, np.arange(spec.q_len) // tiles[0]]
    if "q_lens" in arrays:
        rows.swapaxes(1, 2)[np.arange(spec.q_len) >= arrays["q_lens"][:, None]] = SKIPPED
    return rows


@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
@given(cases("flash", q_lens=LENGTHS, kv_lens=LENGTHS), TILES)
def test_no_tile_is_left_out_that_holds_a_visible_pair_and_none_is_full_that_lacks_one(
    case: Case, tiles: tuple[int, int]
) -> None:
    spec, arrays = case.on("flash")
    kinds = schedule(operands(spec, arrays, dtype=np.float32), tiles)
    seen = np.isfinite(reference(spec, arrays, ("masked_scores",))["masked_scores"])
    q_lens = arrays.get("q_lens", np.full(spec.batch, spec.q_len))
    for (b, h, i, j), kind in np.ndenumerate(kinds):
        first = i * tiles[0]
        tile = seen[b, h, first : min(first + tiles[0], q_lens[b]), j * tiles[1] : (j + 1) * tiles[1]]
        assert not (kind == SKIPPED and tile.any())
        assert not (kind == FULL and not (tile.all() and tile.shape[1] == tiles[1]))


def test_tiles_of_a_causal_mask_by_hand() -> None:
    spec, _ = make("flash", (1, 2, 1, 48, 64, 4), attention={"is_causal": True})
    kinds = schedule_of(spec, {}, (16, 16))
    assert kinds.shape == (1, 2, 3, 4)
    assert kinds[0, 1].tolist() == [[FULL, MASKED, SKIPPED, SKIPPED], [FULL, FULL, MASKED, SKIPPED],
                                    [FULL, FULL, FULL, MASKED]]  # fmt: skip


def test_a_trace_changes_neither_the_traffic_nor_the_least_that_must_move() -> None:
    attention = {"is_causal": True}
    spec, _ = make("flash", (1, 2, 1, 40, 50, 8), attention=attention, **ONCE)
    with_trace, _ = make("flash", (1, 2, 1, 40, 50, 8), attention=attention, **RETURNS, **ONCE)
    plain, watched = execute(spec, {}), execute(with_trace, {})
    assert watched.traffic == plain.traffic
    assert watched.cost["bytes_min"] == plain.cost["bytes_min"] + 4 * 2 * 40  # the LSE
    np.testing.assert_array_equal(watched.arrays["out"], plain.arrays["out"])


def test_what_it_takes_is_told_before_it_is_run() -> None:
    attention, options = {"is_causal": True}, {"block_n": 16}
    spec, _ = make("flash", (1, 2, 1, 40, 50, 8), attention=attention, options=options, **RETURNS, **ONCE)
    done, told = execute(spec, {}), estimate(spec)
    assert told.output_elements == sum(array.size for array in done.arrays.values())
    assert told.output_bytes == sum(array.nbytes for array in done.arrays.values())
    plain, _ = make("flash", (1, 2, 1, 40, 50, 8), attention=attention, options=options, **ONCE)
    assert told.predicted_seconds > 1.4 * estimate(plain).predicted_seconds
    assert told.predicted_bytes > estimate(plain).predicted_bytes


# -- where it cannot be had ----------------------------------------------------------------------------------


def test_on_a_gpu_it_is_refused_with_the_remedy() -> None:
    with pytest.raises(SpecError) as caught:
        make("flash", (1, 1, 1, 4, 4, 4), device="cuda", **RETURNS)
    (problem,) = caught.value.problems
    assert (problem.pointer, problem.code) == ("/device", "unsupported")
    assert "ask for device cpu or auto, or leave trace_tiles, trace_max" in problem.detail
    spec, _ = make("flash", (1, 1, 1, 4, 4, 4), **RETURNS)
    assert not refused(spec)


def test_other_engines_name_the_one_that_has_it() -> None:
    with pytest.raises(SpecError, match="engine decode does not support the result trace_max; flash can"):
        make("decode", (1, 1, 1, 4, 4, 4), **{"return": ["trace_max"]})


def test_a_machine_with_a_gpu_makes_it_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(execution, "_interpreter_is_on", lambda: False)
    assert resolve_device(make("flash", (1, 1, 1, 4, 4, 4))[0]) == "cuda"
    assert resolve_device(make("flash", (1, 1, 1, 4, 4, 4), **RETURNS)[0]) == "cpu"


def test_without_the_interpreter_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "INTERPRETED", False)
    spec, arrays = make("flash", (1, 1, 1, 4, 4, 4), **RETURNS)
    with pytest.raises(CannotRunError, match="TRITON_INTERPRET=1, or leave the trace out"):
        importlib.import_module("kernels.flash.launch").prepare(spec, arrays, "cpu")


def test_nobody_listens_afterwards_whatever_happened() -> None:
    before = kernel.step

    def stops() -> None:
        with overheard(kernel, {"step": lambda *_: None}):
            assert kernel.step is not before
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        stops()
    assert kernel.step is before
