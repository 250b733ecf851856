"""Schedules by hand, against a slow simulation written otherwise, and what holds of every one."""

import sys
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.serving import latency
from kernels.serving.batching import POLICIES, Cost, Request, Server, poisson_trace, simulate
from kernels.serving.events import EventLog

# An iteration takes 1 s and ¼ s for each token.
COST = Cost(fixed=1, per_token=0.25)
THREE = [Request("a", 0, 4, 2), Request("b", 0, 2, 6), Request("c", 1, 8, 3)]


def server(max_batch=2, budget=4, capacity=sys.maxsize, cost=COST):
    return Server(cost, max_batch, budget, capacity)


def served(policy, requests=THREE, **options):
    return simulate(policy, requests, server(**options), EventLog())


def times(schedule):
    return {each.request.name: each.times for each in schedule.sequences}


# --- By hand ---------------------------------------------------------------------------------


def test_a_padded_batch_computes_all_rows_until_the_last_has_ended():
    """a and b: 2 rows of 4 tokens are 3 s, then five iterations of 2 rows at 1.5 s; c: 3, 1.25 and 1.25 s."""
    schedule = served("static_padded")
    assert times(schedule) == {
        "a": [3, 4.5], "b": [3, 4.5, 6, 7.5, 9, 10.5], "c": [13.5, 14.75, 16],
    }  # fmt: skip
    assert [each.finished for each in schedule.sequences] == [10.5, 10.5, 16]  # a returns with its batch
    assert latency.summary(schedule)["throughput_tokens"] == 11 / 16
    assert latency.summary(schedule)["padding_tokens"] == 2 + 4


def test_without_padding_rows_that_have_ended_cost_nothing():
    """6 tokens are 2.5 s; both decode for 1.5 s; b alone four times 1.25 s; then c: 3, 1.25, 1.25."""
    schedule = served("static")
    assert times(schedule) == {
        "a": [2.5, 4], "b": [2.5, 4, 5.25, 6.5, 7.75, 9], "c": [12, 13.25, 14.5],
    }  # fmt: skip
    assert [each.finished for each in schedule.sequences] == [9, 9, 14.5]
    assert latency.summary(schedule)["throughput_tokens"] == 11 / 14.5


def test_who_waits_enters_when_somebody_leaves():
    """c enters when a has left, at 4: 1 token of b and 8 of c are 3.25 s, in which b stalls."""
    schedule = served("continuous")
    assert times(schedule) == {
        "a": [2.5, 4], "b": [2.5, 4, 7.25, 8.75, 10.25, 11.5], "c": [7.25, 8.75, 10.25],
    }  # fmt: skip
    summary = latency.summary(schedule)
    assert summary["throughput_tokens"] == 11 / 11.5
    assert summary["itl"]["max"] == 3.25
    assert summary["ttft"] == {
        "mean": pytest.approx(11.25 / 3),
        "p50": 2.5,
        "p90": 6.25,
        "p99": 6.25,
        "max": 6.25,
    }
    assert summary["e2e"]["max"] == 11.5
    assert summary["tpot"]["max"] == 1.8  # b: (11.5 − 2.5) / 5


def test_chunks_keep_prompts_from_stalling_those_who_decode():
    """At most 4 tokens: a's prompt, then 1 of a and 2 of b, then 1 of b and 3 of c, three times."""
    schedule = served("chunked")
    assert times(schedule) == {
        "a": [2, 3.75], "b": [3.75, 5.75, 7.75, 9.5, 11, 12.5], "c": [9.5, 11, 12.5],
    }  # fmt: skip
    assert latency.summary(schedule)["itl"]["max"] == 2  # 3.25 with the whole prompt


def test_an_idle_server_waits_for_the_next_request():
    schedule = served("continuous", [Request("a", 2, 1, 1), Request("b", 10, 1, 1)])
    assert times(schedule) == {"a": [3.25], "b": [11.25]}
    assert latency.summary(schedule)["busy"] == 2.5
    assert latency.summary(schedule)["makespan"] == 9.25


def test_who_entered_last_gives_its_cache_back_and_computes_it_again():
    """8 tokens of cache: 3 + 3 fit, 4 + 4 fit, 5 + 5 do not. b waits while a goes on alone, then computes its
    prompt of 3 and the 2 tokens that it had produced."""
    requests = [Request("a", 0, 3, 4), Request("b", 0, 3, 3)]
    log = EventLog()
    schedule = simulate("continuous", requests, server(capacity=8), log)
    assert times(schedule) == {"a": [2.5, 4, 5.25, 6.5], "b": [2.5, 4, 8.75]}
    of_b = [event.kind for event in log.events if event.ids["request"] == "b"]
    assert of_b == ["start", "prefill", "decode", "preempt", "resume", "prefill", "finish"]
    assert [event.details["dropped"] for event in log.events if event.kind == "preempt"] == [4]
    assert latency.summary(schedule)["recomputed_tokens"] == 4
    assert latency.summary(schedule)["preemptions"] == 1


def test_a_static_batch_reserves_all_it_will_need():
    """Each needs 3 + 3 − 1 = 5 tokens in the end, so that 8 hold one at a time, and 10 both."""
    requests = [Request("a", 0, 3, 3), Request("b", 0, 3, 3)]
    assert [len(served("static", requests, capacity=room).iterations) for room in (8, 10)] == [6, 3]
    assert [len(served("static_padded", requests, capacity=room).iterations) for room in (8, 10)] == [6, 3]


@pytest.mark.parametrize(
    ("cost", "seconds"),
    [(Cost(1, 0.25, 0.5), 1 + 2.5 + 10), (Cost(1, 0.25, 0.5, "max"), 11), (Cost(1, 2, 0.5, "max"), 20)],
)
def test_the_cost_of_an_iteration(cost, seconds):
    """Ten tokens on a context of twenty: a sum, or a roofline of reading or computing."""
    assert cost.seconds(10, 20) == seconds


def test_the_context_is_what_the_tokens_attend_to():
    """1 s per token of cache alone: a prompt of 3, then 4 tokens, then 5."""
    schedule = served("continuous", [Request("a", 0, 3, 3)], cost=Cost(0.5, 0, 1))
    assert times(schedule) == {"a": [3.5, 8, 13.5]}


# --- An independent simulation ---------------------------------------------------------------


def known(state):
    return state["r"].prompt_len + len(state["made"])


def missing(state):
    return known(state) - state["cached"] - state["share"]


def slowly(requests, max_batch, budget, capacity):
    """Continuous batching from the state of every request in plain numbers, one token at a time."""
    states = [
        {"r": r, "cached": 0, "made": [], "rank": None} for r in sorted(requests, key=lambda r: r.arrival)
    ]
    clock, entered = 0.0, 0
    preempted = []  # who lost its cache, the one that entered first before the others
    while pending := [s for s in states if len(s["made"]) < s["r"].output_len]:
        inside = sorted((s for s in pending if s["rank"] is not None), key=lambda s: s["rank"])
        if not inside:
            clock = max(clock, min(s["r"].arrival for s in pending))
        lost = False
        while sum(map(known, inside)) > capacity:
            victim = inside.pop()
            victim["rank"], victim["cached"], lost = None, 0, True
            preempted.insert(0, victim)
        for s in states:
            s["share"] = 0
        spent = 0
        for s in [s for s in inside if missing(s) == 1] + [s for s in inside if missing(s) > 1]:
            while missing(s) and spent < budget:
                s["share"], spent = s["share"] + 1, spent + 1
        queue = preempted + [s for s in pending if s["rank"] is None and s not in preempted]
        for s in [] if lost else queue:
            fits = sum(map(known, inside)) + known(s) <= capacity and len(inside) < max_batch
            if s["r"].arrival > clock or not fits or spent >= budget:
                break
            s["rank"], entered = entered, entered + 1
            inside.append(s)
            preempted = [other for other in preempted if other is not s]
            while missing(s) and spent < budget:
                s["share"], spent = s["share"] + 1, spent + 1
        clock = round(clock + 1 + 0.25 * spent, 9)
        for s in inside:
            s["cached"] += s["share"]
            if s["share"] and s["cached"] == known(s):
                s["made"].append(clock)
    return {s["r"].name: s["made"] for s in states}


def in_closed_form(requests, max_batch):
    """When each batch of a static schedule without padding ends: sums over its prompts and its alive rows."""
    clock, ends, left = 0.0, {}, sorted(requests, key=lambda r: r.arrival)
    while left:
        clock = max(clock, left[0].arrival)
        batch = [r for r in left if r.arrival <= clock][:max_batch]
        left = [r for r in left if r not in batch]
        longest = max(r.output_len for r in batch)
        computed = sum(r.prompt_len + r.output_len - 1 for r in batch)
        clock += longest * 1 + 0.25 * computed
        ends |= dict.fromkeys((r.name for r in batch), clock)
    return ends


@st.composite
def traces(draw):
    fields = st.tuples(st.integers(0, 60), st.integers(1, 12), st.integers(1, 9))
    chosen = draw(st.lists(fields, min_size=1, max_size=12))
    return [Request(str(i), quarter / 4, *lengths) for i, (quarter, *lengths) in enumerate(chosen)]


@given(traces(), st.integers(1, 5), st.integers(0, 9), st.integers(20, 60))
@settings(max_examples=300)
def test_every_token_comes_when_the_slow_simulation_says(requests, max_batch, more, capacity):
    options = {"max_batch": max_batch, "budget": max_batch + more, "capacity": capacity}
    chunked = served("chunked", requests, **options)
    assert times(chunked) == slowly(requests, max_batch, max_batch + more, capacity)
    whole = served("continuous", requests, **options)
    assert times(whole) == slowly(requests, max_batch, sys.maxsize, capacity)


@given(traces(), st.integers(1, 5))
def test_static_batches_end_when_the_sums_say(requests, max_batch):
    schedule = served("static", requests, max_batch=max_batch)
    assert {each.request.name: each.finished for each in schedule.sequences} == in_closed_form(
        requests, max_batch
    )


# --- What holds of every schedule ------------------------------------------------------------


@given(traces(), st.integers(1, 5), st.integers(0, 9), st.integers(20, 60), st.sampled_from(list(POLICIES)))
@settings(max_examples=300)
def test_every_token_is_produced_once_and_no_limit_is_exceeded(requests, max_batch, more, capacity, policy):
    log = EventLog()
    schedule = simulate(policy, requests, server(max_batch, max_batch + more, capacity), log)
    wanted = {(r.name, number) for r in requests for number in range(1, r.output_len + 1)}
    outputs = [(e.ids["request"], e.details["output"]) for e in log.events if "output" in e.details]
    assert Counter(outputs) == Counter(wanted)
    for each in schedule.sequences:
        assert all(a < b for a, b in zip(each.times, each.times[1:], strict=False))
        assert each.request.arrival <= each.started < each.times[0] <= each.times[-1] <= each.finished
    for each in schedule.iterations:
        assert each.held <= capacity
        assert each.sequences <= max_batch
        if policy == "chunked":
            assert each.prefill_tokens + each.decode_tokens <= max_batch + more
    summary = latency.summary(schedule)
    needed = sum(r.prompt_len + r.output_len - 1 for r in requests)
    assert summary["computed_tokens"] == needed + summary["padding_tokens"] + summary["recomputed_tokens"]
    assert (summary["recomputed_tokens"] > 0) == (summary["preemptions"] > 0)
    assert policy == "static_padded" or summary["padding_tokens"] == 0


@given(traces(), st.integers(1, 5))
def test_padding_never_helps(requests, max_batch):
    plain, padded = (served(policy, requests, max_batch=max_batch) for policy in ("static", "static_padded"))
    assert max(e.finished for e in plain.sequences) <= max(e.finished for e in padded.sequences)


def test_refilling_is_what_continuous_batching_gains_not_padding():
    """Prompts of one length, answers of many, and iterations that take a second whatever they compute: there
    is no padding to be saved, and yet three quarters of the time is."""
    requests = [Request(str(i), 0, 4, 40 if i % 8 == 0 else 1) for i in range(64)]
    cost = Cost(1, 0)
    padded, static, continuous = (
        latency.summary(served(policy, requests, max_batch=8, cost=cost))
        for policy in ("static_padded", "static", "continuous")
    )
    assert padded["makespan"] == static["makespan"] == 8 * 40
    assert continuous["makespan"] < static["makespan"] / 4
    assert continuous["throughput_tokens"] > 4 * static["throughput_tokens"]


def test_where_all_are_alike_all_schedules_are():
    requests = [Request(str(i), 0, 5, 7) for i in range(8)]
    spans = {
        latency.summary(served(policy, requests, max_batch=4, budget=20))["makespan"] for policy in POLICIES
    }
    assert len(spans) == 1


# --- Figures ---------------------------------------------------------------------------------


def test_percentiles_are_values_that_occur():
    values = [float(v) for v in range(1, 11)]
    assert [latency.percentile(values, p) for p in (0, 10, 50, 90, 99, 100)] == [1, 1, 5, 9, 10, 10]
    assert latency.percentile([3.0], 50) == 3
    assert latency.spread([]) == {"mean": None, "p50": None, "p90": None, "p99": None, "max": None}


def test_one_token_has_no_time_per_token():
    summary = latency.summary(served("continuous", [Request("a", 0, 1, 1)]))
    assert summary["tpot"]["mean"] is None
    assert summary["ttft"]["max"] == 1.25


def test_a_trace_is_its_seed_and_has_the_rate_asked_for():
    trace = poisson_trace(4, 500, 2.0, (3, 9), (1, 5))
    assert trace == poisson_trace(4, 500, 2.0, (3, 9), (1, 5)) != poisson_trace(5, 500, 2.0, (3, 9), (1, 5))
    assert trace[0].arrival == 0
    assert trace[-1].arrival == pytest.approx(250, rel=0.1)
    assert {request.prompt_len for request in trace} == set(range(3, 10))
    assert {request.output_len for request in trace} == set(range(1, 6))
