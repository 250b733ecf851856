"""The same operations on a paged cache and on contiguous ones of the same size, step by step.

What the contiguous ones reserve for a sequence when it begins is what Kwon et al. (2023) compare with:

- ``max``: ``max_len`` slots, the longest that the model allows;
- ``pow2``: the next power of two of the length that the sequence will have, as if that could be guessed;
- ``oracle``: exactly the length that it will have, which no server knows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from kernels.serving.contiguous_allocator import ContiguousAllocator, NoHole
from kernels.serving.draws import Draws
from kernels.serving.events import EventLog
from kernels.serving.paged_allocator import Change, OutOfBlocks, PagedAllocator
from kernels.serving.timeline import columns, ranges

OPERATIONS = ("allocate", "append", "fork", "free")
RESERVATIONS = ("max", "pow2", "oracle")


@dataclass(frozen=True)
class Operation:
    """``allocate``, ``append`` (``tokens``), ``fork`` (from ``parent``, its first ``tokens``) or ``free``."""

    op: str
    sequence: str
    tokens: int = 0
    parent: str = ""


@dataclass(frozen=True)
class Workload:
    """Requests that a server gets: at most ``running`` at once, each answered ``samples`` times from one
    prompt; lengths are drawn between two limits."""

    requests: int
    running: int
    samples: int
    prompt_len: tuple[int, int]
    output_len: tuple[int, int]
    seed: int

    def lengths(self) -> list[tuple[int, list[int]]]:
        """Of each request the length of its prompt, and of its answers."""
        draws, samples = Draws(self.seed), range(self.samples)
        return [
            (draws.integer(*self.prompt_len), [draws.integer(*self.output_len) for _ in samples])
            for _ in range(self.requests)
        ]

    def operations(self) -> list[Operation]:
        """The operations that serve it: a token each in turn, the next request when one has ended."""
        done: list[Operation] = []
        waiting = deque(enumerate(self.lengths()))
        left: dict[str, int] = {}  # tokens still to come, of each running sequence
        while waiting or left:
            while waiting and len(left) + self.samples <= self.running * self.samples:
                number, (prompt, outputs) = waiting.popleft()
                name = str(number)
                names = [name, *(f"{name}.{sample}" for sample in range(1, self.samples))]
                done.append(Operation("allocate", name, prompt))
                done += [Operation("fork", each, prompt, name) for each in names[1:]]
                left |= dict(zip(names, outputs, strict=True))
            for name in list(left):
                done.append(Operation("append", name, 1))
                left[name] -= 1
                if left[name] == 0:
                    done.append(Operation("free", name))
                    del left[name]
        return done


def longest(operations: Iterable[Operation]) -> dict[str, int]:
    """The length that each sequence reaches before it is freed, in the order in which they begin.

    A name may be used again after ``free``: then the longest of its lives.
    """
    lengths: dict[str, int] = {}
    reached: dict[str, int] = {}
    for each in operations:
        if each.op == "append":
            lengths[each.sequence] += each.tokens
        elif each.op != "free":
            lengths[each.sequence] = each.tokens
        reached[each.sequence] = max(reached.get(each.sequence, 0), lengths[each.sequence])
    return reached


class PagedReplay:
    """Operations on a paged cache, logged. One that finds no room has no effect; those that follow do with
    the sequence as it is, and none on one that never began."""

    def __init__(self, num_blocks: int, block_size: int, log: EventLog) -> None:
        self.allocator, self.log = PagedAllocator(num_blocks, block_size), log
        self.refused = self.copies = 0

    def apply(self, step: int, each: Operation) -> None:
        """Carry out one operation."""
        cache, ids = self.allocator, {"sequence": each.sequence}
        if (each.parent or each.sequence) not in cache.sequences and each.op != "allocate":
            self.log.add(step, "skipped", ids, op=each.op)
            return
        try:
            if each.op == "allocate":
                self._written(step, each, cache.allocate(each.sequence, each.tokens))
            elif each.op == "append":
                self._written(step, each, cache.append(each.sequence, each.tokens))
            elif each.op == "fork":
                tokens = min(each.tokens, cache.sequences[each.parent].length)
                shared = len(cache.fork(each.parent, each.sequence, tokens).table)
                self.log.add(step, "fork", {**ids, "parent": each.parent}, tokens=tokens, shared=shared)
            else:
                self.log.add(step, "free", ids, freed=cache.free(each.sequence))
        except OutOfBlocks as error:
            self.refused += 1
            self.log.add(step, "out_of_memory", ids, op=each.op, needed=error.needed, free=error.free)

    def _written(self, step: int, each: Operation, change: Change) -> None:
        ids = {"sequence": each.sequence}
        if change.copied:
            self.copies += 1
            self.log.add(step, "copy", ids, block=change.copied[0], to=change.copied[1])
        details = {"tokens": each.tokens, "handed_out": change.handed_out, "slots": ranges(change.slots)}
        self.log.add(step, each.op, ids, **details)


class ContiguousReplay:
    """The same operations on a contiguous cache that reserves ``reserve[sequence]`` slots. A fork is a copy:
    a run of its own."""

    def __init__(self, slots: int, reserve: dict[str, int]) -> None:
        self.allocator, self.reserve = ContiguousAllocator(slots), reserve
        self.refused = 0

    def apply(self, each: Operation) -> None:
        """Carry out one operation."""
        cache = self.allocator
        if (each.parent or each.sequence) not in cache.runs and each.op != "allocate":
            return
        if each.op == "append":
            cache.append(each.sequence, each.tokens)
        elif each.op == "free":
            cache.free(each.sequence)
        else:
            try:
                cache.allocate(each.sequence, each.tokens, self.reserve[each.sequence])
            except NoHole:
                self.refused += 1


def compare(
    operations: Sequence[Operation], num_blocks: int, block_size: int, max_len: int, log: EventLog
) -> dict[str, Any]:
    """Figures after every operation, and what they amount to. ``max_len`` is at least every length."""
    slots = num_blocks * block_size
    reached = {name: max(1, length) for name, length in longest(operations).items()}
    paged = PagedReplay(num_blocks, block_size, log)
    others = {name: ContiguousReplay(slots, _reservations(name, reached, max_len)) for name in RESERVATIONS}
    usages: list[dict[str, Any]] = []
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in others}
    for step, operation in enumerate(operations):
        paged.apply(step, operation)
        usage = paged.allocator.usage()
        usages.append({**asdict(usage), "internal_waste": usage.internal_waste})
        for name, other in others.items():
            other.apply(operation)
            runs[name].append(_snapshot(other.allocator))
    return {
        "summary": {
            "operations": len(operations),
            "slots": slots,
            "paged": _summary(usages, paged),
            "contiguous": {name: _contiguous_summary(rows, others[name]) for name, rows in runs.items()},
        },
        "timeline": {
            "paged": columns(usages),
            "contiguous": {name: columns(rows) for name, rows in runs.items()},
        },
        "sequences": {
            name: {"length": each.length, "table": each.table}
            for name, each in paged.allocator.sequences.items()
        },
        "free_blocks": sorted(paged.allocator.free_blocks),
    }


def _reservations(kind: str, reached: dict[str, int], max_len: int) -> dict[str, int]:
    if kind == "max":
        return dict.fromkeys(reached, max_len)
    if kind == "pow2":
        return {name: 1 << (length - 1).bit_length() for name, length in reached.items()}
    return reached


def _snapshot(cache: ContiguousAllocator) -> dict[str, Any]:
    return {
        "sequences": len(cache.runs),
        "reserved": cache.reserved(),
        "filled": cache.filled(),
        "wasted": cache.reserved() - cache.filled(),
        "external_fragmentation": cache.external_fragmentation(),
    }


def _summary(rows: list[dict[str, Any]], paged: PagedReplay) -> dict[str, Any]:
    """Shares are of slots summed over all steps: a mean that weighs each moment by what was in use."""
    entries = sum(row["table_entries"] for row in rows)
    return {
        "refused": paged.refused,
        "copies": paged.copies,
        "peak_blocks": max(row["blocks"] for row in rows),
        "peak_tokens": max(row["tokens"] for row in rows),
        "wasted_share": _share(rows, "internal_waste", "slots"),
        "saved_by_sharing": 1 - sum(row["blocks"] for row in rows) / entries if entries else 0.0,
        "external_fragmentation": 0.0,  # any free block serves any sequence
    }


def _contiguous_summary(rows: list[dict[str, Any]], other: ContiguousReplay) -> dict[str, Any]:
    return {
        "refused": other.refused,
        "peak_reserved": max(row["reserved"] for row in rows),
        "peak_tokens": max(row["filled"] for row in rows),
        "wasted_share": _share(rows, "wasted", "reserved"),
        "external_fragmentation": sum(row["external_fragmentation"] for row in rows) / len(rows),
    }


def _share(rows: list[dict[str, Any]], part: str, whole: str) -> float:
    total = sum(row[whole] for row in rows)
    return sum(row[part] for row in rows) / total if total else 0.0
