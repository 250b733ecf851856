"""Admission: what is too much is refused with the limit and what would fit."""

import re

import pytest
from django.core.checks import run_checks

from kernels.estimate import estimate
from kernels.spec import parse_run
from workers import limits


def spec_of(q_len, kv_len=None, *, heads=1, returns=("out",), engine="reference", **more):
    kv_len = kv_len or q_len
    body = {
        "engine": engine,
        "inputs": {
            "q": {"seed": 1, "shape": [1, heads, q_len, 8], "distribution": "normal"},
            "k": {"seed": 1, "shape": [1, heads, kv_len, 8], "distribution": "normal"},
            "v": {"seed": 1, "shape": [1, heads, kv_len, 8], "distribution": "normal"},
        },
        "return": list(returns),
        **more,
    }
    return parse_run(body).spec


def largest_named(problem):
    return int(re.search(r"lengths up to ([\d,]+) fit", problem.detail)[1].replace(",", ""))


def test_a_small_run_is_admitted_with_its_estimate():
    spec = spec_of(16)
    assert limits.admit(spec, 30) == estimate(spec)


@pytest.mark.parametrize("engine", ["reference", "eager", "flash"])
def test_the_largest_length_named_fits_and_the_next_does_not(engine):
    with pytest.raises(limits.Refused) as refused:
        limits.admit(spec_of(100_000, engine=engine), 30)
    largest = min(largest_named(problem) for problem in refused.value.problems)
    limits.admit(spec_of(largest, engine=engine), 30)
    with pytest.raises(limits.Refused):
        limits.admit(spec_of(largest + 1, engine=engine), 30)


@pytest.mark.parametrize("engine", ["mla", "eager"])
def test_a_cache_of_latents_that_is_too_long_is_refused_with_the_length_that_fits(engine):
    def spec(length):
        shapes = {"q_nope": [4, length, 8], "q_rope": [4, length, 4], "c_kv": [length, 16],
                  "k_rope": [length, 4], "w_uk": [4, 16, 8], "w_uv": [4, 16, 8]}  # fmt: skip
        inputs = {name: {"seed": 1, "shape": shape} for name, shape in shapes.items()}
        return parse_run({"engine": engine, "inputs": inputs}).spec

    with pytest.raises(limits.Refused) as refused:
        limits.admit(spec(100_000), 30)
    assert {problem.pointer for problem in refused.value.problems} == {"/inputs/c_kv"}
    largest = min(largest_named(problem) for problem in refused.value.problems)
    limits.admit(spec(largest), 30)
    with pytest.raises(limits.Refused):
        limits.admit(spec(largest + 1), 30)


def test_a_refusal_with_listed_positions_still_names_what_fits():
    positions = {"is_causal": True, "q_positions": list(range(6000))}
    with pytest.raises(limits.Refused) as refused:
        limits.admit(spec_of(6000, attention=positions, timing={"iters": 1000}), 30)
    assert 0 < largest_named(refused.value.problems[0]) < 6000


def test_lengths_keep_their_ratio_in_the_remedy():
    with pytest.raises(limits.Refused) as refused:
        limits.admit(spec_of(100, 1_000_000), 30)
    largest = min(largest_named(problem) for problem in refused.value.problems)
    limits.admit(spec_of(largest // 10_000, largest), 30)


def test_too_many_numbers_returned_names_both_counts(settings):
    settings.MAX_RESULT_ELEMENTS = 1_000
    with pytest.raises(limits.Refused) as refused:
        limits.admit(spec_of(64, returns=("weights",)), 30)
    (problem,) = refused.value.problems
    assert problem.code == "too-much-output"
    assert "4,096" in problem.detail
    assert "1,000" in problem.detail
    assert largest_named(problem) == 31


def test_when_no_length_fits_the_remedy_is_another(settings):
    settings.MAX_RESULT_ELEMENTS = 3
    with pytest.raises(limits.Refused) as refused:
        limits.admit(spec_of(1, heads=4), 30)
    assert "No length fits" in refused.value.problems[0].detail


def test_cuda_without_a_gpu_worker_is_refused(settings):
    settings.QUEUES = ["cpu"]
    with pytest.raises(limits.Refused) as refused:
        limits.queue_for(spec_of(4, engine="flash", device="cuda"))
    assert refused.value.problems[0].pointer == "/device"


@pytest.mark.parametrize(("device", "queue"), [("auto", "gpu"), ("cuda", "gpu"), ("cpu", "cpu")])
def test_a_gpu_worker_takes_what_does_not_ask_for_the_cpu(settings, device, queue):
    settings.QUEUES = ["cpu", "gpu"]
    assert limits.queue_for(spec_of(4, device=device, engine="flash")) == queue


def test_an_engine_that_knows_no_gpu_goes_to_the_cpu(settings):
    settings.QUEUES = ["cpu", "gpu"]
    assert limits.queue_for(spec_of(4, engine="reference")) == "cpu"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("RUN_BUDGET_TOKEN", 291),
        ("VISIBILITY_TIMEOUT", 130),
        ("RUN_MAX_AGE", 300),
        ("HEARTBEAT_TIMEOUT", 2),
        ("HEARTBEAT_TIMEOUT", 5),
        ("HEARTBEAT_SECONDS", 15),
    ],
)
def test_time_limits_that_do_not_nest_stop_the_start(settings, name, value):
    assert not [error for error in run_checks() if error.id == "workers.E001"]
    setattr(settings, name, value)
    assert [error for error in run_checks() if error.id == "workers.E001"]


def test_a_tile_that_would_compile_for_minutes_is_refused_before_it_is_queued(settings):
    settings.QUEUES = ["cpu", "compile"]
    limits.admit_compile(spec_of(1024, engine="flash"), ["sm_80"])
    large = spec_of(1024, engine="flash", options={"block_m": 512, "block_n": 512})
    with pytest.raises(limits.Refused) as refused:
        limits.admit_compile(large, ["sm_80", "sm_90"])
    assert {problem.pointer for problem in refused.value.problems} == {"/options/block_m"}
