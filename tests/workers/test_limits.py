"""Admission: what is too much is refused with the limit and what would fit."""

import dataclasses
import re

import pytest
from django.core.checks import run_checks

from kernels.estimate import estimate
from kernels.spec import parse_run
from kernels.spec.shorter import shortened
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


def seeded(*shape):
    return {"seed": 1, "shape": list(shape)}


def latents(q_len, kv_len):
    return {"q_nope": seeded(4, q_len, 8), "q_rope": seeded(4, q_len, 4), "c_kv": seeded(kv_len, 16),
            "k_rope": seeded(kv_len, 4), "w_uk": seeded(4, 16, 8), "w_uv": seeded(4, 16, 8)}  # fmt: skip


def plain(q_len, kv_len):
    return {"q": seeded(1, 2, q_len, 8), "k": seeded(1, 2, kv_len, 8), "v": seeded(1, 2, kv_len, 8)}


def packed(q_len, kv_len):
    return {"q": seeded(1, q_len, 16), "k": seeded(1, kv_len, 16), "v": seeded(1, kv_len, 16)}


def with_past(q_len, kv_len):
    """Fresh keys as many as queries; all others come from a cache."""
    past = {name: seeded(1, 2, kv_len - q_len, 8) for name in ("past_key", "past_value")}
    return plain(q_len, q_len) | past


def pages(q_len, kv_len):
    table = {"block_table": [[0, 1, 2, 3] * (kv_len // 16 // 4) + [0] * (kv_len // 16 % 4)]}
    return {"q": seeded(1, 2, q_len, 8), **dict.fromkeys("kv", seeded(4, 16, 2, 8)), **table}


def with_packed_past(q_len, kv_len):
    return with_past(q_len, kv_len) | packed(q_len, q_len)


def with_mask(*shape):
    """A mask of such axes: "q" and "kv" stand for lengths."""
    return lambda q_len, kv_len: (
        plain(q_len, kv_len)
        | {"attn_mask": seeded(*({"q": q_len, "kv": kv_len}.get(axis, axis) for axis in shape))}
    )


def with_dout(q_len, kv_len):
    return plain(q_len, kv_len) | {"dout": seeded(1, 2, q_len, 8)}


SMALL = {"options": {"block_m": 16, "block_n": 16}}
WINDOW = {"attention": {"window": [64, 0]}, "options": {"block_m": 64}}
PACKED = {"attention": {"num_heads": 2}}
# Inputs of given lengths, how long they are at first, and what else the request says.
LONG = {
    "plain": ("eager", plain, (3000, 3000), {}),
    "more keys than queries": ("eager", plain, (500, 4000), {}),
    "more queries than keys": ("flash", plain, (4000, 500), SMALL),
    "a window": ("flash", plain, (4000, 4000), WINDOW),
    "packed": ("eager", packed, (3000, 3000), PACKED),
    "a past": ("eager", with_past, (700, 3000), {}),
    "a packed past": ("eager", with_packed_past, (700, 3000), PACKED),
    "pages": ("paged", pages, (400, 3200), {"options": {"block_n": 16}}),
    "pages for few queries": ("reference", pages, (1, 160_000), {}),
    "a mask": ("eager", with_mask("q", "kv"), (1000, 3000), {}),
    "a mask of keys": ("eager", with_mask("kv"), (3000, 3000), {}),
    "a broadcast mask": ("eager", with_mask(2, "q", 1), (3000, 3000), {}),
    "latents": ("mla", latents, (3000, 3000), {}),
    "expanded latents": ("eager", latents, (1500, 3000), {}),
    "gradients": ("eager", with_dout, (2000, 3000), {"return": ["dq"]}),
}


def named(refused):
    """(q_len, kv_len) of what fits, the same for every limit that is exceeded."""
    found = {problem.detail[problem.detail.index("With these") :] for problem in refused.problems}
    (remedy,) = found
    numbers = [int(number.replace(",", "")) for number in re.findall(r"[\d,]*\d", remedy)]
    return tuple(numbers[1:]) if len(numbers) == 3 else (numbers[0], numbers[0])


@pytest.mark.parametrize("kind", LONG)
def test_the_lengths_named_are_admitted_and_the_next_are_not(kind):
    engine, inputs, (q_len, kv_len), more = LONG[kind]

    def spec(*lengths):
        return parse_run({"engine": engine, "inputs": inputs(*lengths), **more}).spec

    budget = estimate(spec(q_len, kv_len)).predicted_seconds / 2
    with pytest.raises(limits.Refused) as refused:
        limits.admit(spec(q_len, kv_len), budget)
    fits = named(refused.value)
    limits.admit(spec(*fits), budget)
    step = 16 if inputs is pages else 1
    longest = max(fits) + step
    following = (max(1, longest * length // max(q_len, kv_len)) for length in (q_len, kv_len))
    with pytest.raises(limits.Refused):
        limits.admit(spec(*following), budget)


def test_a_refusal_with_listed_positions_still_names_what_fits():
    def spec(length):
        return spec_of(length, attention={"is_causal": True, "q_positions": list(range(length))})

    with pytest.raises(limits.Refused) as refused:
        limits.admit(spec(6000), 2)
    length, _ = named(refused.value)
    limits.admit(spec(length), 2)
    with pytest.raises(limits.Refused):
        limits.admit(spec(length + 1), 2)


def test_every_limit_that_is_exceeded_names_a_length_that_none_refuses(settings):
    settings.MAX_RUN_BYTES, settings.MAX_RESULT_ELEMENTS = 100 * 2**20, 10_000
    with pytest.raises(limits.Refused) as refused:
        limits.admit(spec_of(10_000, returns=["weights"]), 2)
    codes = {problem.code for problem in refused.value.problems}
    assert codes == {"too-slow", "too-much-memory", "too-much-output"}
    assert named(refused.value) == (100, 100)


def test_an_axis_of_zero_stays_one():
    spec = spec_of(1000, heads=2, timing={"iters": 1000})
    empty = dataclasses.replace(
        spec, inputs=spec.inputs | {"q": dataclasses.replace(spec.inputs["q"], shape=(1, 2, 0, 8))}
    )
    assert shortened(empty, 1, 2).q_len == 0
    assert shortened(empty, 1, 2).kv_len == 500


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


def test_a_trace_is_made_where_a_kernel_can_be_watched(settings):
    settings.QUEUES = ["cpu", "gpu"]
    assert limits.queue_for(spec_of(4, engine="flash", returns=("out", "trace_max"))) == "cpu"


def test_a_trace_in_too_many_tiles_names_the_length_that_fits(settings):
    settings.MAX_RESULT_ELEMENTS = 4_000
    asked = {"engine": "flash", "returns": ("trace_out",), "options": {"block_m": 16, "block_n": 16}}
    with pytest.raises(limits.Refused) as refused:
        limits.admit(spec_of(128, **asked), 60)
    (problem,) = refused.value.problems
    assert problem.code == "too-much-output"
    assert largest_named(problem) == 83  # · 8 numbers · 6 tiles = 3,984
    limits.admit(spec_of(128, **asked | {"options": {"block_m": 16, "block_n": 64}}), 60)


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
        ("GRADE_BUDGET", 286),
        ("GRADE_BUDGET", 5),
        ("GRADE_MAX_AGE", 300),
    ],
)
def test_failure_11_time_limits_that_do_not_nest_stop_the_start(settings, name, value):
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
