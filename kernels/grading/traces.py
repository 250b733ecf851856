"""Traces of serving that a student writes by hand or by program: block tables, and drafts accepted or not.

Everything is integers, so answers are compared exactly. What is drawn keeps away from every edge by a
thousandth (``MARGIN``), so that arithmetic in float32 decides as float64 does.

* ``paging``: operations on a cache in blocks (``kernels.serving.paged_allocator``), one a row: what is done
  (0 allocate, 1 append, 2 fork, 3 free), with which sequence, how many tokens, and from which parent. The
  block that was freed last is handed out first; at the beginning block 0 is. Answers: ``block_table``
  [sequences, blocks], a row for each number up to the largest that an operation names, −1 where there is no
  block; ``lens`` [sequences]; ``slots``, where each token was written, in order; ``free_blocks``, the next
  one first; ``references`` [blocks]; ``copies`` [copies, 2], from and to.
* ``speculative``: each row is one run of the target over ``gamma`` drafted tokens. Token i is accepted where
  uniforms[i] < p/q; the first that is not is replaced by one from max(0, p − q), a draft accepted whole is
  followed by one from p: the first token whose cumulative probability exceeds the last of the uniforms.
  Answers: ``accepted`` [runs, gamma], 1, 0, or −1 where it was not looked at; ``tokens`` [runs, gamma + 1],
  what was written, −1 beyond; ``counts`` [runs], how many.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from kernels.arrays import Array
from kernels.integers import ceil_div
from kernels.serving.draws import Draws, cumulated
from kernels.serving.paged_allocator import Change, OutOfBlocks, PagedAllocator
from kernels.serving.speculative import residual
from kernels.spec.problems import MALFORMED, Problems, all_of, join
from kernels.spec.reader import ObjectReader

ANSWERS = {
    "paging": ("block_table", "lens", "slots", "free_blocks", "references", "copies"),
    "speculative": ("accepted", "tokens", "counts"),
}
KINDS = tuple(ANSWERS)
AXES = {
    "block_table": ("sequence", "block"),
    "lens": ("sequence",),
    "slots": ("token",),
    "free_blocks": ("place",),
    "references": ("block",),
    "copies": ("copy", "side"),
    "accepted": ("run", "draft"),
    "tokens": ("run", "place"),
    "counts": ("run",),
}
PADDED = ("block_table", "tokens")  # −1 says that there is nothing: as many columns as one likes
OPERATIONS = ("allocate", "append", "fork", "free")
MARGIN = 1e-3

PAGING_LIMITS = {"num_blocks": (1, 4096), "block_size": (1, 1024), "sequences": (1, 64), "steps": (1, 512)}
SPECULATIVE_LIMITS = {"runs": (1, 256), "gamma": (1, 16), "vocabulary": (2, 64)}


class Trace(Protocol):
    """The inputs of one case, and what follows from them."""

    @property
    def is_drawn(self) -> bool:
        """Whether the inputs depend on a seed."""
        ...

    def inputs(self, seed: int) -> dict[str, Array]:
        """As the student gets them."""
        ...

    def expected(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Every answer that may be asked for, int64."""
        ...


def read_trace(kind: str, reader: ObjectReader) -> Trace | None:
    """The case of ``reader``; None where a problem was noted."""
    return _read_paging(reader) if kind == "paging" else _read_speculative(reader)


def padded(name: str, given: Array, like: Array) -> Array:
    """``given`` with as many columns as ``like``, where more or fewer of −1 say the same."""
    if name not in PADDED or given.ndim != 2 or given.shape[0] != like.shape[0]:
        return given
    width = like.shape[1]
    if given.shape[1] > width and bool((given[:, width:] == -1).all()):
        return given[:, :width]
    missing = max(width - given.shape[1], 0)
    return np.pad(given, ((0, 0), (0, missing)), constant_values=-1)


# -- paging --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Paging:
    """A memory of ``num_blocks`` · ``block_size`` slots, and what is done with it."""

    num_blocks: int
    block_size: int
    sequences: int
    steps: int
    operations: tuple[tuple[int, int, int, int], ...] | None  # None: drawn

    @property
    def is_drawn(self) -> bool:
        """Without operations of the author's."""
        return self.operations is None

    def inputs(self, seed: int) -> dict[str, Array]:
        """``operations`` [steps, 4] and ``memory`` [num_blocks, block_size]."""
        done = self.operations if self.operations is not None else self._draw(Draws(seed))
        return {
            "operations": np.array(done, dtype=np.int64).reshape(-1, 4),
            "memory": np.array([self.num_blocks, self.block_size], dtype=np.int64),
        }

    def expected(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """What the allocator says in the end, and what it did on the way."""
        return self.carried_out(inputs)

    def carried_out(
        self, inputs: Mapping[str, Array], kind: type[PagedAllocator] = PagedAllocator
    ) -> dict[str, Array]:
        """The same, by an allocator that may do it otherwise. Raises OutOfBlocks where that takes more."""
        cache = kind(self.num_blocks, self.block_size)
        slots: list[int] = []
        copies: list[tuple[int, int]] = []
        for operation in inputs["operations"].tolist():
            change = _apply(cache, *operation)
            if isinstance(change, Change):
                slots += change.slots
                copies += [change.copied] if change.copied else []
        names = [str(number) for number in range(1 + int(inputs["operations"][:, 1].max(initial=0)))]
        tables = [cache.sequences[name].table if name in cache.sequences else [] for name in names]
        width = max(map(len, tables), default=0)
        lens = [cache.sequences[name].length if name in cache.sequences else 0 for name in names]
        found: dict[str, Any] = {
            "block_table": [table + [-1] * (width - len(table)) for table in tables],
            "lens": lens,
            "slots": slots,
            "free_blocks": cache.free_blocks[::-1],
            "references": cache.references,
            "copies": copies,
        }
        shapes = {"block_table": (len(names), width), "copies": (-1, 2)}
        return {
            name: np.array(value, dtype=np.int64).reshape(shapes.get(name, (-1,)))
            for name, value in found.items()
        }

    def _draw(self, draws: Draws) -> list[tuple[int, int, int, int]]:
        """Operations for which there is room, every sequence begun once at most."""
        cache = PagedAllocator(self.num_blocks, self.block_size)
        done: list[tuple[int, int, int, int]] = []
        begun = 0
        for _ in range(20 * self.steps):
            alive = list(cache.sequences)
            share = draws.uniform()
            tokens = draws.integer(1, max(1, 2 * self.block_size))
            which = int(alive[draws.integer(0, len(alive) - 1)]) if alive else 0
            if begun < self.sequences and (not alive or share < 0.3):
                operation = (0, begun, tokens, -1)
            elif begun < self.sequences and share < 0.45:
                length = cache.sequences[str(which)].length
                operation = (2, begun, draws.integer(max(1, length // 2), max(1, length)), which)
            elif alive and share < 0.85:
                operation = (1, which, draws.integer(1, self.block_size), -1)
            elif len(alive) > 1:
                operation = (3, which, 0, -1)
            else:
                continue
            try:
                _apply(cache, *operation)
            except OutOfBlocks:
                continue
            begun += operation[0] in (0, 2)
            done.append(operation)
            if len(done) == self.steps:
                break
        return done


def _apply(cache: PagedAllocator, operation: int, sequence: int, tokens: int, parent: int) -> Any:
    """Carry out one operation; the Change of memory where it writes."""
    name = str(sequence)
    if operation == 0:
        return cache.allocate(name, tokens)
    if operation == 1:
        return cache.append(name, tokens)
    if operation == 2:
        return cache.fork(str(parent), name, tokens)
    return cache.free(name)


def _read_paging(reader: ObjectReader) -> Trace | None:
    problems = reader.problems
    drawn = not reader.has("operations")
    shape = _read_shape(reader, PAGING_LIMITS, () if drawn else ("sequences", "steps"))
    if shape is None:
        return None
    if drawn:
        return Paging(**shape, operations=None)
    given = reader.fields["operations"]
    if not isinstance(given, list) or not 1 <= len(given) <= PAGING_LIMITS["steps"][1]:
        reader.wrong_type("operations", f"a list of 1 to {PAGING_LIMITS['steps'][1]} operations")
        return None
    before = len(problems.found)
    read = [_read_operation(each, join(reader.at("operations"), i), problems) for i, each in enumerate(given)]
    if len(problems.found) > before:
        return None
    operations = tuple(each for each in read if each is not None)
    sequences = 1 + max(each[1] for each in operations)
    trace = Paging(shape["num_blocks"], shape["block_size"], sequences, len(operations), operations)
    cache = PagedAllocator(trace.num_blocks, trace.block_size)
    for index, operation in enumerate(operations):
        why = _why_impossible(cache, *operation)
        if why:
            problems.add(join(reader.at("operations"), index), "not-possible", why)
            return None
        _apply(cache, *operation)
    return trace


def _read_operation(given: object, pointer: str, problems: Problems) -> tuple[int, int, int, int] | None:
    reader = ObjectReader(given, pointer, problems, ("op", "sequence", "tokens", "parent"))
    if not isinstance(given, dict):
        return None
    for name in ("op", "sequence"):
        if name not in given:
            problems.add(reader.at(name), "required", f"{name} is required", MALFORMED)
    limit = PAGING_LIMITS["num_blocks"][1] * PAGING_LIMITS["block_size"][1]
    op = reader.choice("op", OPERATIONS[0], OPERATIONS)
    sequence = reader.integer("sequence", 0, 0, PAGING_LIMITS["sequences"][1] - 1)
    tokens = reader.integer("tokens", 0, 0, limit)
    parent = reader.integer("parent", -1, -1, PAGING_LIMITS["sequences"][1] - 1)
    return OPERATIONS.index(op), sequence, tokens, parent


def _why_impossible(cache: PagedAllocator, operation: int, sequence: int, tokens: int, parent: int) -> str:
    """Why an operation cannot follow those before it; "" where it can."""
    name, source, why = str(sequence), str(parent), ""
    if operation in (0, 2) and name in cache.sequences:
        why = f"sequence {sequence} has begun already; append to it, or give it another number"
    elif operation in (1, 3) and name not in cache.sequences:
        why = f"sequence {sequence} has not begun; allocate or fork it first"
    elif operation == 2 and source not in cache.sequences:
        why = f"the parent {parent} has not begun; allocate it first"
    elif operation == 2 and tokens > cache.sequences[source].length:
        why = f"a fork takes up to the {cache.sequences[source].length} tokens of its parent, not {tokens}"
    elif operation in (0, 1):
        needed = cache.blocks_needed(name, tokens) if operation else ceil_div(tokens, cache.block_size)
        if needed > len(cache.free_blocks):
            why = f"{needed} blocks are needed, {len(cache.free_blocks)} are free; raise num_blocks"
    return why


# -- speculative decoding ------------------------------------------------------------------------------------


def first_beyond(weights: list[float], u: float) -> int:
    """The first token whose cumulative share of the weights exceeds u."""
    draws = Draws(0)
    draws.uniform = lambda: u
    return draws.index(cumulated(weights))


@dataclass(frozen=True)
class Rules:
    """How a draft is checked: as it is right, but for what is said."""

    accepts: Callable[[float, float, float], bool] = lambda u, p, q: u < p / q
    replaces: Callable[[list[float], list[float], float], int] = lambda p, q, u: first_beyond(
        residual(p, q), u
    )
    draws_by: Callable[[int], int] = lambda kept: -1  # which uniform value replaces, after so many accepted
    follows: bool = True  # one from p after a draft accepted whole

    def kept(self, target: list[Any], draft: list[Any], drafted: list[int], uniforms: list[float]) -> int:
        """How many drafted tokens are accepted."""
        for place, token in enumerate(drafted):
            if not self.accepts(uniforms[place], target[place][token], draft[place][token]):
                return place
        return len(drafted)


RIGHT = Rules()


@dataclass(frozen=True)
class Speculative:
    """So many runs of the target, each over ``gamma`` tokens drafted from the other distribution."""

    runs: int
    gamma: int
    vocabulary: int

    @property
    def is_drawn(self) -> bool:
        """Always."""
        return True

    def inputs(self, seed: int) -> dict[str, Array]:
        """``target`` [runs, gamma + 1, vocabulary] and ``draft`` [runs, gamma, vocabulary] float64,
        ``drafted`` [runs, gamma] int64, ``uniforms`` [runs, gamma + 1] float64."""
        draws = Draws(seed)
        runs = [self._draw(draws) for _ in range(self.runs)]
        names = ("target", "draft", "drafted", "uniforms")
        return {name: np.array([run[place] for run in runs]) for place, name in enumerate(names)}

    def _draw(self, draws: Draws) -> tuple[list[list[float]], list[list[float]], list[int], list[float]]:
        target = [self._distribution(draws) for _ in range(self.gamma + 1)]
        draft = [self._distribution(draws) for _ in range(self.gamma)]
        drafted = [draws.index(cumulated(each)) for each in draft]
        uniforms = [
            _away(draws, [p[token] / q[token]]) for token, p, q in zip(drafted, target, draft, strict=False)
        ]
        kept = RIGHT.kept(target, draft, drafted, uniforms)
        last = target[kept] if kept == self.gamma else residual(target[kept], draft[kept])
        total = cumulated(last)[-1]
        return target, draft, drafted, [*uniforms, _away(draws, [x / total for x in cumulated(last)])]

    def _distribution(self, draws: Draws) -> list[float]:
        weights = [draws.integer(1, 60) for _ in range(self.vocabulary)]
        return [weight / sum(weights) for weight in weights]

    def expected(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Every run, token by token."""
        return self.written(inputs, RIGHT)

    def written(self, inputs: Mapping[str, Array], rules: Rules) -> dict[str, Array]:
        """The same by rules that may be others."""
        accepted = np.full((self.runs, self.gamma), -1, dtype=np.int64)
        tokens = np.full((self.runs, self.gamma + 1), -1, dtype=np.int64)
        rows = (inputs[name].tolist() for name in ("target", "draft", "drafted", "uniforms"))
        for run, (target, draft, drafted, uniforms) in enumerate(zip(*rows, strict=True)):
            kept = rules.kept(target, draft, drafted, uniforms)
            accepted[run, :kept], accepted[run, kept : kept + 1] = 1, 0
            tokens[run, :kept] = drafted[:kept]
            if kept < self.gamma:
                u = uniforms[rules.draws_by(kept)]
                tokens[run, kept] = rules.replaces(target[kept], draft[kept], u)
            elif rules.follows:
                tokens[run, kept] = first_beyond(target[kept], uniforms[-1])
        return {"accepted": accepted, "tokens": tokens, "counts": (tokens >= 0).sum(axis=1)}


def _away(draws: Draws, edges: list[float]) -> float:
    """A uniform value that no rounding takes across one of ``edges``."""
    for _ in range(1000):
        value = draws.uniform()
        if min(abs(value - edge) for edge in edges) > MARGIN:
            break
    return value


def _read_speculative(reader: ObjectReader) -> Trace | None:
    shape = _read_shape(reader, SPECULATIVE_LIMITS, ())
    return None if shape is None else Speculative(**shape)


def _read_shape(
    reader: ObjectReader, limits: Mapping[str, tuple[int, int]], unless: tuple[str, ...]
) -> dict[str, int] | None:
    """The whole numbers of ``shape``; those of ``unless`` are left out."""
    wanted = [name for name in limits if name not in unless]
    if not reader.has("shape"):
        detail = f"shape is required: an object with {all_of(wanted)}"
        reader.problems.add(reader.at("shape"), "required", detail, MALFORMED)
        return None
    before = len(reader.problems.found)
    inner = ObjectReader(reader.fields["shape"], reader.at("shape"), reader.problems, wanted)
    found = {}
    for name in wanted if isinstance(reader.fields["shape"], dict) else ():
        if name not in inner.fields:
            low, high = limits[name]
            detail = f"{name} is required, an integer between {low} and {high}"
            reader.problems.add(inner.at(name), "required", detail, MALFORMED)
        else:
            found[name] = inner.integer(name, limits[name][0], *limits[name])
    return None if len(reader.problems.found) > before else found
