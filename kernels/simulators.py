"""The simulators by name: what each is, what it takes at most, and the function that answers a body."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kernels.scan import recall_body
from kernels.serving.bodies import batching, paged_allocator, prefix_cache, speculative
from kernels.serving.events import MAX_EVENTS


@dataclass(frozen=True)
class Simulator:
    """``simulate(body)`` gives an answer of JSON with ``summary`` and ``events`` in it, and raises
    :class:`kernels.spec.SpecError` with all that is wrong with the body."""

    name: str
    title: str
    summary: str
    simulate: Callable[[object], dict[str, Any]]
    own_limits: Mapping[str, int]
    example: Mapping[str, Any]

    @property
    def limits(self) -> dict[str, int]:
        """The most of everything that is simulated."""
        return {**self.own_limits, "events": MAX_EVENTS}


_ALL = (
    Simulator(
        "paged-allocator",
        "A KV cache in blocks",
        "Sequences that grow, fork and end, on blocks with reference counts and copy on write; beside it "
        "what contiguous reservations of the same memory would hold and waste.",
        paged_allocator.simulate,
        paged_allocator.LIMITS,
        paged_allocator.EXAMPLE,
    ),
    Simulator(
        "batching",
        "Static, continuous and chunked batching",
        "The same requests under several schedules, token by token: throughput, time to first token, time "
        "per token, end to end, and who was preempted.",
        batching.simulate,
        batching.LIMITS,
        batching.EXAMPLE,
    ),
    Simulator(
        "speculative",
        "Speculative decoding",
        "A draft checked by the target: what is accepted, that the distribution stays the target's, the "
        "speed-up to be expected, and the best length of a draft.",
        speculative.simulate,
        speculative.LIMITS,
        speculative.EXAMPLE,
    ),
    Simulator(
        "prefix-cache",
        "A cache of prefixes",
        "A radix tree of what was computed before: what each request finds, what is evicted, what is saved.",
        prefix_cache.simulate,
        prefix_cache.LIMITS,
        prefix_cache.EXAMPLE,
    ),
    Simulator(
        "recall",
        "What a state of fixed size forgets",
        "Associative recall and copying: the same pairs kept by attention, by a linear state and by the "
        "delta rule, each asked for every one of them; what the size of a state allows at best.",
        recall_body.simulate,
        recall_body.LIMITS,
        recall_body.EXAMPLE,
    ),
)
SIMULATORS: dict[str, Simulator] = {simulator.name: simulator for simulator in _ALL}
