"""What may be asked of the batching simulator, and its answer."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import Any

from kernels.serving import batching, latency
from kernels.serving.batching import POLICIES, Cost, Request, Server
from kernels.serving.bodies.reading import (
    Answer,
    item_pointer,
    logged,
    one_source,
    read_body,
    read_list,
    read_name,
    read_range,
    read_seed,
    required,
)
from kernels.serving.events import EventLog
from kernels.serving.timeline import columns
from kernels.spec.problems import MALFORMED, TOO_LARGE, join, nearest, show
from kernels.spec.reader import ObjectReader

LIMITS = {
    "requests": 500,
    "prompt_len": 2**20,
    "output_tokens": 5_000,  # of all requests together
    "max_batch": 256,
    "token_budget": 2**20,
    "kv_capacity": 2**40,
}
MAX_SECONDS, LEAST_SECONDS = 1e6, 1e-6  # of an arrival, of a cost: a clock of nanoseconds can add them
FIELDS = ("requests", "trace", "policies", "max_batch", "token_budget", "kv_capacity", "cost")
DEFAULT_POLICIES = ["static", "continuous"]
EXAMPLE: dict[str, Any] = {
    "requests": [
        {"arrival": 0, "prompt_len": 4, "output_len": 2},
        {"arrival": 0, "prompt_len": 2, "output_len": 6},
        {"arrival": 1, "prompt_len": 8, "output_len": 3},
    ],
    "policies": ["static_padded", "static", "continuous", "chunked"],
    "max_batch": 2,
    "token_budget": 4,
    "cost": {"fixed": 1, "per_token": 0.25},
}


def simulate(body: object) -> Answer:
    """Answer ``POST /api/v1/simulations/batching``. Raises :class:`kernels.spec.SpecError`."""
    reader = read_body(body, FIELDS)
    requests = _requests(reader)
    policies = _policies(reader)
    server = _server(reader, policies)
    _check_requests(requests, server, reader)
    reader.problems.raise_if_any()
    limited = server.kv_capacity < sys.maxsize
    shown = {**asdict(server), "kv_capacity": server.kv_capacity if limited else None}
    answer = logged(
        lambda log: _serve(policies, requests, server, log),
        "send fewer or shorter requests, fewer policies, or a larger token_budget",
    )
    return {**shown, **answer}


def _serve(policies: list[str], requests: list[Request], server: Server, log: EventLog) -> Answer:
    schedules = {policy: batching.simulate(policy, requests, server, log) for policy in policies}
    return {
        "summary": {policy: latency.summary(schedule) for policy, schedule in schedules.items()},
        "timeline": {
            policy: {
                "requests": [latency.of_sequence(each) for each in schedule.sequences],
                "iterations": columns([asdict(each) for each in schedule.iterations]),
            }
            for policy, schedule in schedules.items()
        },
    }


def _policies(reader: ObjectReader) -> list[str]:
    """The policies to compare, each once."""
    if "policies" not in reader.fields:
        return DEFAULT_POLICIES
    found = read_list(reader, "policies", len(POLICIES), "names of policies")
    for index, name in enumerate(found):
        pointer = item_pointer(reader, "policies", index)
        if not isinstance(name, str):
            detail = f"the name of a policy is a string, not {show(name)}"
            reader.problems.add(pointer, "wrong-type", detail, MALFORMED)
        elif name not in POLICIES:
            detail = f"there is no policy {show(name)}; {nearest(name, POLICIES)}"
            reader.problems.add(pointer, "not-a-choice", detail)
        elif name in found[:index]:
            detail = f"the policy {name} is there twice; name each once"
            reader.problems.add(pointer, "already-there", detail)
    return found


def _server(reader: ObjectReader, policies: list[str]) -> Server:
    max_batch = reader.integer("max_batch", 8, 1, LIMITS["max_batch"])
    budget = reader.integer("token_budget", max(512, max_batch), 1, LIMITS["token_budget"])
    capacity = reader.integer_or_null("kv_capacity", 1, LIMITS["kv_capacity"])
    if "chunked" in policies and budget < max_batch:
        detail = (
            f"token_budget must be at least max_batch ({max_batch}), not {budget}: an iteration computes a "
            "token of every sequence that decodes"
        )
        reader.problems.add(reader.at("token_budget"), "out-of-range", detail)
    return Server(_cost(reader), max_batch, budget, sys.maxsize if capacity is None else capacity)


def _cost(body: ObjectReader) -> Cost:
    names = ("fixed", "per_token", "per_context_token", "combine")
    if "cost" not in body.fields:
        required(body, "cost", "seconds of an iteration, such as {fixed: 0.02, per_token: 0.0001}")
        return Cost(1, 1)
    reader = ObjectReader(body.fields["cost"], body.at("cost"), body.problems, names)
    fixed, per_token, per_context = (reader.number(name, 0.0, 0.0, MAX_SECONDS) for name in names[:3])
    combine = reader.choice("combine", "sum", ("sum", "max"))
    if isinstance(body.fields["cost"], dict) and fixed + per_token < LEAST_SECONDS:
        detail = f"an iteration must take time: fixed + per_token must be at least {LEAST_SECONDS:g} s"
        body.problems.add(body.at("cost"), "out-of-range", detail)
    return Cost(fixed, per_token, per_context, combine)


def _requests(reader: ObjectReader) -> list[Request]:
    source = one_source(reader, ("requests", "trace"))
    if source == "trace":
        return _trace(reader)
    items = read_list(reader, "requests", LIMITS["requests"], "requests") if source else []
    found = [_request(item, index, reader) for index, item in enumerate(items)]
    names: set[str] = set()
    for index, request in enumerate(found):
        if request.name in names:
            detail = f"the name {show(request.name)} is there twice; give each request its own"
            reader.problems.add(
                join(item_pointer(reader, "requests", index), "name"), "already-there", detail
            )
        names.add(request.name)
    return found


def _request(item: object, index: int, body: ObjectReader) -> Request:
    pointer = item_pointer(body, "requests", index)
    reader = ObjectReader(item, pointer, body.problems, ("name", "arrival", "prompt_len", "output_len"))
    for name in ("prompt_len", "output_len") if isinstance(item, dict) else ():
        if name not in reader.fields:
            required(reader, name, "a number of tokens, at least 1")
    return Request(
        read_name(reader, "name", str(index)),
        reader.number("arrival", 0.0, 0.0, MAX_SECONDS),
        reader.integer("prompt_len", 1, 1, LIMITS["prompt_len"]),
        reader.integer("output_len", 1, 1, LIMITS["output_tokens"]),
    )


def _trace(body: ObjectReader) -> list[Request]:
    names = ("seed", "requests", "rate", "prompt_len", "output_len")
    reader = ObjectReader(body.fields["trace"], body.at("trace"), body.problems, names)
    return batching.poisson_trace(
        read_seed(reader),
        reader.integer("requests", 20, 1, LIMITS["requests"]),
        reader.number("rate", 1.0, 1e-3, MAX_SECONDS),
        read_range(reader, "prompt_len", (16, 256), 1, LIMITS["prompt_len"]),
        read_range(reader, "output_len", (1, 64), 1, LIMITS["output_tokens"]),
    )


def _check_requests(requests: list[Request], server: Server, reader: ObjectReader) -> None:
    """The limits of the simulation, and that each request fits the cache when alone."""
    source = "requests" if reader.has("requests") else "trace"
    output = sum(request.output_len for request in requests)
    if output > LIMITS["output_tokens"]:
        detail = (
            f"the requests ask for {output:,} tokens of output; at most {LIMITS['output_tokens']:,} are "
            "simulated: fewer requests or shorter outputs"
        )
        reader.problems.add(reader.at(source), "too-large", detail, TOO_LARGE)
    for index, request in enumerate(requests):
        if request.largest > server.kv_capacity:
            where = item_pointer(reader, "requests", index) if source == "requests" else reader.at(source)
            detail = (
                f"request {request.name} needs {request.largest:,} tokens of cache (prompt_len + output_len "
                f"− 1) and kv_capacity is {server.kv_capacity:,}: raise it or shorten the request"
            )
            reader.problems.add(where, "out-of-range", detail)
            break
