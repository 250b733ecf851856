"""What users of a server feel, and what its owner pays for: latencies and throughput of a schedule.

- TTFT, time to first token: from arrival until the first token is there.
- TPOT, time per output token: (last − first token) / (tokens − 1); none for answers of one token.
- ITL, inter-token latency: each gap between two tokens. Its largest is the stall that TPOT averages away.
- End to end: from arrival until the request is answered.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from itertools import pairwise
from typing import Any

from kernels.serving import batching
from kernels.serving.batching import Schedule, to_nanoseconds

PERCENTILES = (50, 90, 99)


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Nearest rank: the smallest of these values that ``percent`` % of them do not exceed."""
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def spread(values: Sequence[float]) -> dict[str, float | None]:
    """Mean, percentiles and the largest; null where there are no values."""
    if not values:
        return dict.fromkeys(("mean", *(f"p{percent}" for percent in PERCENTILES), "max"))
    ordered = sorted(values)
    shares = {f"p{percent}": percentile(ordered, percent) for percent in PERCENTILES}
    return {"mean": to_nanoseconds(math.fsum(values) / len(values)), **shares, "max": ordered[-1]}


def of_sequence(sequence: batching.Sequence) -> dict[str, Any]:
    """The times of one request."""
    request, times = sequence.request, sequence.times
    tpot = to_nanoseconds((times[-1] - times[0]) / (len(times) - 1)) if len(times) > 1 else None
    return {
        **asdict(request),
        "started": sequence.started,
        "finished": sequence.finished,
        "ttft": to_nanoseconds(times[0] - request.arrival),
        "tpot": tpot,
        "e2e": to_nanoseconds(sequence.finished - request.arrival),
        "preemptions": sequence.preemptions,
        "token_times": list(times),
    }


def summary(schedule: Schedule) -> dict[str, Any]:
    """Figures of a schedule; seconds, tokens, and tokens or requests a second."""
    sequences, iterations = schedule.sequences, schedule.iterations
    requests = [of_sequence(sequence) for sequence in sequences]
    first, last = min(each.request.arrival for each in sequences), max(each.finished for each in sequences)
    makespan = to_nanoseconds(last - first)
    gaps = [to_nanoseconds(b - a) for each in sequences for a, b in pairwise(each.times)]
    output = sum(each.request.output_len for each in sequences)
    computed = sum(each.prefill_tokens + each.decode_tokens + each.padding for each in iterations)
    padding = sum(each.padding for each in iterations)
    needed = sum(each.request.largest for each in sequences)
    return {
        "makespan": makespan,
        "busy": to_nanoseconds(math.fsum(each.end - each.start for each in iterations)),
        "iterations": len(iterations),
        "output_tokens": output,
        "computed_tokens": computed,
        "padding_tokens": padding,
        "recomputed_tokens": computed - padding - needed,
        "preemptions": sum(each.preemptions for each in sequences),
        "throughput_tokens": output / makespan,
        "throughput_requests": len(sequences) / makespan,
        "mean_batch": sum(each.sequences for each in iterations) / len(iterations),
        "peak_held": max(each.held for each in iterations),
        "ttft": spread([each["ttft"] for each in requests]),
        "tpot": spread([each["tpot"] for each in requests if each["tpot"] is not None]),
        "itl": spread(gaps),
        "e2e": spread([each["e2e"] for each in requests]),
    }
