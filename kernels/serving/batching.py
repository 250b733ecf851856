"""Many requests on one model: who is computed when, token by token.

All policies share one rule. The tokens *known* of a sequence are its prompt and what it has produced; a
sequence whose known tokens all have K and V in the cache produces the next. What is *missing* is then the
whole prompt at first (prefill), one token later (decode), or everything again after the cache was taken
away. An iteration computes some missing tokens of some sequences, and lasts as long as :class:`Cost` says.

- ``static_padded``: a batch is taken, its prompts padded to the longest; all rows are computed until the
  last has ended; then the next batch.
- ``static``: the same batches, but padding and rows that have ended cost nothing. A batch returns whole.
- ``continuous`` (iteration-level scheduling; Yu et al. 2022, "Orca"): after every iteration who has ended
  leaves and who waits enters, with the whole prompt.
- ``chunked`` (Agrawal et al. 2024, "Sarathi-Serve"): the same, but an iteration computes at most
  ``token_budget`` tokens: first one for everybody who decodes, then as much of prompts as fits.

Where the cache is full, the two last take it from who entered last, who computes it again later.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from kernels.serving.draws import Draws
from kernels.serving.events import EventLog


@dataclass(frozen=True)
class Request:
    """``output_len`` tokens are wanted after ``prompt_len``; both at least 1."""

    name: str
    arrival: float
    prompt_len: int
    output_len: int

    @property
    def largest(self) -> int:
        """The most tokens it has in the cache: the last that it produces is never fed back."""
        return self.prompt_len + self.output_len - 1


@dataclass(frozen=True)
class Cost:
    """Seconds of an iteration that computes ``tokens`` and reads ``context`` tokens of cache.

    ``sum``: fixed + per_token·tokens + per_context_token·context. ``max`` (a roofline): reading (the weights,
    fixed, and the cache) and computing overlap, so max(fixed + per_context_token·context, per_token·tokens).
    """

    fixed: float
    per_token: float
    per_context_token: float = 0.0
    combine: str = "sum"

    def seconds(self, tokens: int, context: int) -> float:
        """The time of one iteration."""
        reading, computing = self.fixed + self.per_context_token * context, self.per_token * tokens
        return max(reading, computing) if self.combine == "max" else reading + computing


@dataclass(frozen=True)
class Server:
    """``max_batch`` sequences at once, ``token_budget`` tokens in a chunked iteration (at least
    ``max_batch``), ``kv_capacity`` tokens in the cache (at least the largest of any request)."""

    cost: Cost
    max_batch: int
    token_budget: int
    kv_capacity: int


@dataclass
class Sequence:
    """A request on its way."""

    request: Request
    cached: int = 0  # tokens whose K and V are there
    times: list[float] = field(default_factory=list)  # of the tokens produced
    started: float | None = None
    finished: float = 0.0
    preemptions: int = 0

    @property
    def known(self) -> int:
        """Tokens of the prompt and those produced."""
        return self.request.prompt_len + len(self.times)

    @property
    def missing(self) -> int:
        """Tokens to compute before the next is produced."""
        return self.known - self.cached

    @property
    def has_ended(self) -> bool:
        """Whether everything wanted is there."""
        return len(self.times) == self.request.output_len


Work = list[tuple[Sequence, int]]  # how many missing tokens of whom


@dataclass(frozen=True)
class Iteration:
    """One pass through the model. ``padding`` counts the tokens computed for nobody, ``held`` those in the
    cache (padding apart)."""

    start: float
    end: float
    prefill_tokens: int
    decode_tokens: int
    padding: int
    sequences: int
    held: int


@dataclass
class Schedule:
    """What one policy did."""

    sequences: list[Sequence]
    iterations: list[Iteration] = field(default_factory=list)


def to_nanoseconds(seconds: float) -> float:
    """Seconds on a clock that ticks in nanoseconds: 0.3, where float64 sums to 0.30000000000000004."""
    return round(seconds, 9)


class Engine:
    """The clock, and iterations that move it."""

    def __init__(self, policy: str, requests: Iterable[Request], server: Server, log: EventLog) -> None:
        self.policy, self.server, self.log = policy, server, log
        self.clock = 0.0
        ordered = sorted(requests, key=lambda request: request.arrival)
        self.waiting = deque(Sequence(request) for request in ordered)
        self.schedule = Schedule(list(self.waiting))

    def note(self, kind: str, sequence: Sequence, **details: object) -> None:
        """Log what happens to a sequence now."""
        ids = {"policy": self.policy, "request": sequence.request.name}
        self.log.add(self.clock, kind, ids, **details)

    def next_waiting(self) -> Sequence | None:
        """Who has arrived and waits longest."""
        head = self.waiting[0] if self.waiting else None
        return head if head and head.request.arrival <= self.clock else None

    def wait(self) -> None:
        """Idle until somebody is there."""
        self.clock = max(self.clock, self.waiting[0].request.arrival)

    def enter(self) -> Sequence:
        """Take the first of those who wait into the batch."""
        sequence = self.waiting.popleft()
        if sequence.started is None:
            sequence.started = self.clock
            self.note("start", sequence, waited=to_nanoseconds(self.clock - sequence.request.arrival))
        else:
            self.note("resume", sequence)
        return sequence

    def preempt(self, sequence: Sequence) -> None:
        """Take the cache away; the sequence waits again, before all others."""
        self.note("preempt", sequence, dropped=sequence.cached)
        sequence.cached = 0
        sequence.preemptions += 1
        self.waiting.appendleft(sequence)

    def iterate(
        self, work: Work, present: Iterable[Sequence], padding: int = 0, padding_context: int = 0
    ) -> None:
        """Compute ``work`` of those ``present``, and ``padding`` tokens that are nobody's."""
        start = self.clock
        tokens = sum(chunk for _, chunk in work)
        context = sum(sequence.cached + chunk for sequence, chunk in work)
        seconds = self.server.cost.seconds(tokens + padding, context + padding_context)
        self.clock = to_nanoseconds(start + seconds)
        decode = 0
        for sequence, chunk in work:
            is_decode = sequence.missing == 1 and bool(sequence.times)
            decode += is_decode
            sequence.cached += chunk
            produced = sequence.missing == 0
            details = {"start": start, "tokens": chunk, "cached": sequence.cached}
            if produced:
                sequence.times.append(self.clock)
                details["output"] = len(sequence.times)
            self.note("decode" if is_decode else "prefill", sequence, **details)
        held = sum(sequence.cached for sequence in present)
        done = Iteration(start, self.clock, tokens - decode, decode, padding, len(work), held)
        self.schedule.iterations.append(done)

    def finish(self, sequences: Iterable[Sequence]) -> None:
        """Answer the requests of these sequences."""
        for sequence in sequences:
            sequence.finished = self.clock
            self.note("finish", sequence)


def run_static(engine: Engine, *, padded: bool) -> None:
    """One batch after the other."""
    while engine.waiting:
        engine.wait()
        batch = _take_batch(engine, padded=padded)
        width = max(sequence.request.prompt_len for sequence in batch)
        for step in range(max(sequence.request.output_len for sequence in batch)):
            going = [sequence for sequence in batch if not sequence.has_ended]
            work = [(sequence, sequence.missing) for sequence in going]
            if padded:
                tokens = len(batch) * (width if step == 0 else 1) - sum(chunk for _, chunk in work)
                context = len(batch) * (width + step) - sum(each.known for each in going)
                engine.iterate(work, batch, tokens, context)
            else:
                engine.iterate(work, batch)
        engine.finish(batch)


def _take_batch(engine: Engine, *, padded: bool) -> list[Sequence]:
    """Who has arrived, first come first served, as many as the cache holds to their ends."""
    batch: list[Sequence] = []
    while len(batch) < engine.server.max_batch and (head := engine.next_waiting()):
        requests = [sequence.request for sequence in (*batch, head)]
        room = sum(request.largest for request in requests)
        if padded:
            prompt = max(request.prompt_len for request in requests)
            room = len(requests) * (prompt + max(request.output_len for request in requests) - 1)
        if room > engine.server.kv_capacity:
            break
        batch.append(engine.enter())
    return batch


def run_continuous(engine: Engine, *, budget: int) -> None:
    """Decide anew before every iteration, which computes at most ``budget`` tokens."""
    running: list[Sequence] = []  # in the order in which they entered
    while engine.waiting or running:
        if not running:
            engine.wait()
        while _held(running) > engine.server.kv_capacity:
            engine.preempt(running.pop())
        work = _plan(running, budget)
        work += _admit(engine, running, budget - sum(tokens for _, tokens in work))
        engine.iterate(work, running)
        ended = [sequence for sequence in running if sequence.has_ended]
        running = [sequence for sequence in running if not sequence.has_ended]
        engine.finish(ended)


def _plan(running: list[Sequence], budget: int) -> Work:
    """What is computed of those already in. A prompt takes all that is left of a budget, so that only who
    entered last can be amid its prompt: all others come before it, and none of them stalls."""
    work: Work = []
    for sequence in running:
        chunk = min(sequence.missing, budget)
        work.append((sequence, chunk))
        budget -= chunk
    return work


def _held(running: Iterable[Sequence]) -> int:
    """Tokens of cache that these need to produce their next."""
    return sum(sequence.known for sequence in running)


def _admit(engine: Engine, running: list[Sequence], left: int) -> Work:
    """Let in who waits while there is room in batch, cache and budget; their first work."""
    work: Work = []
    while left > 0 and len(running) < engine.server.max_batch and (head := engine.next_waiting()):
        if _held((*running, head)) > engine.server.kv_capacity:
            break
        running.append(engine.enter())
        chunk = min(head.missing, left)
        work.append((head, chunk))
        left -= chunk
    return work


POLICIES: dict[str, Callable[[Engine], None]] = {
    "static_padded": lambda engine: run_static(engine, padded=True),
    "static": lambda engine: run_static(engine, padded=False),
    "continuous": lambda engine: run_continuous(engine, budget=sys.maxsize),
    "chunked": lambda engine: run_continuous(engine, budget=engine.server.token_budget),
}


def simulate(policy: str, requests: Iterable[Request], server: Server, log: EventLog) -> Schedule:
    """Serve the requests by one of :data:`POLICIES`.

    Raises :class:`~kernels.serving.events.TooManyEvents` when it takes too long.
    """
    engine = Engine(policy, requests, server, log)
    POLICIES[policy](engine)
    return engine.schedule


def poisson_trace(
    seed: int, count: int, rate: float, prompt_len: tuple[int, int], output_len: tuple[int, int]
) -> list[Request]:
    """``count`` requests that arrive independently, ``rate`` a second; lengths uniform between two limits.

    The first arrives at 0. Times are rounded to microseconds, so that logarithms of all machines agree.
    """
    draws, clock, requests = Draws(seed), 0.0, []
    for number in range(count):
        lengths = draws.integer(*prompt_len), draws.integer(*output_len)
        requests.append(Request(str(number), round(clock, 6), *lengths))
        clock += draws.exponential(rate)
    return requests
