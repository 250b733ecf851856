"""What students get wrong in traces of serving: block tables and drafts, by the same names as other mistakes.

A reading is what somebody gets who does one thing otherwise. Traces are integers, so that it is compared
exactly: it explains an answer where it gives every array of it that it says anything of.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from kernels.arrays import Array
from kernels.grading.traces import Paging, Rules, Speculative, Trace, first_beyond, padded
from kernels.serving.draws import cumulated
from kernels.serving.paged_allocator import Change, OutOfBlocks, PagedAllocator
from kernels.serving.paged_allocator import Sequence as Cached

Inputs = Mapping[str, Array]
Answers = dict[str, Array]


@dataclass(frozen=True)
class TraceReading:
    """One way to make one mistake; ``compute`` gives the answers, but for those of which it says nothing."""

    code: str
    key: str  # tells the readings of a code apart
    says: str  # what was done, to complete "Your answer is what one gets if …"
    compute: Callable[[Any, Inputs], Answers]
    is_main: bool = True  # whether the cases of a problem have to tell it

    @property
    def name(self) -> str:
        """Unique among all readings."""
        return f"{self.code}/{self.key}" if self.key else self.code

    def answers(self, trace: Trace, inputs: Inputs) -> Answers | None:
        """None: it cannot be done, since it takes more memory than there is."""
        try:
            return self.compute(trace, inputs)
        except OutOfBlocks:
            return None


def zeros(trace: Trace, inputs: Inputs) -> Answers:
    """As large as what is right."""
    return {name: np.zeros_like(array) for name, array in trace.expected(inputs).items()}


# -- paging --------------------------------------------------------------------------------------------------


class _OldestFirst(PagedAllocator):
    def _drop(self, block: int) -> bool:
        is_free = super()._drop(block)
        if is_free:
            self.free_blocks.insert(0, self.free_blocks.pop())
        return is_free


class _LowestFirst(PagedAllocator):
    def _take(self) -> int:
        free = self.free_blocks
        free.append(free.pop(free.index(min(free))))
        return super()._take()


class _Sorted(PagedAllocator):
    def _take(self) -> int:
        self.free_blocks.sort(reverse=True)
        return super()._take()


class _HighestFirst(PagedAllocator):
    def __init__(self, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks, block_size)
        self.free_blocks.reverse()


class _FreesFirstToLast(PagedAllocator):
    def free(self, name: str) -> list[int]:
        self.sequences[name].table.reverse()
        return super().free(name)


class _TakesEarly(PagedAllocator):
    def blocks_needed(self, name: str, tokens: int) -> int:
        length = self.sequences[name].length + tokens
        is_full = tokens > 0 and length % self.block_size == 0
        return super().blocks_needed(name, tokens + is_full)


class _ForksOneMore(PagedAllocator):
    def fork(self, parent: str, name: str, length: int | None = None) -> Cached:
        child, table = super().fork(parent, name, length), self.sequences[parent].table
        for block in table[len(child.table) : child.length // self.block_size + 1]:
            child.table.append(block)
            self.references[block] += 1
        return child


class _NeverCopies(PagedAllocator):
    def _writes_to_shared(self, sequence: Cached) -> bool:
        return False


class _CopiesAtFork(PagedAllocator):
    def fork(self, parent: str, name: str, length: int | None = None) -> Any:
        child = super().fork(parent, name, length)
        if child.length % self.block_size == 0:
            return child
        shared, own = child.table[-1], self._taken()
        self._drop(shared)
        child.table[-1] = own
        return Change([], [own], (shared, own))

    def _taken(self) -> int:
        if not self.free_blocks:
            raise OutOfBlocks(1, 0)
        return self._take()


class _SharesNothing(_CopiesAtFork):
    def fork(self, parent: str, name: str, length: int | None = None) -> Any:
        child = PagedAllocator.fork(self, parent, name, length)
        for place, block in enumerate(child.table):
            child.table[place] = self._taken()
            self._drop(block)
        return child


class _CopiesWhatWasShared(PagedAllocator):
    def __init__(self, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks, block_size)
        self.shared: set[int] = set()

    def fork(self, parent: str, name: str, length: int | None = None) -> Cached:
        child = super().fork(parent, name, length)
        self.shared.update(child.table)
        return child

    def _take(self) -> int:
        block = super()._take()
        self.shared.discard(block)
        return block

    def _writes_to_shared(self, sequence: Cached) -> bool:
        return sequence.length % self.block_size > 0 and sequence.table[-1] in self.shared


class _FreesAll(PagedAllocator):
    def free(self, name: str) -> list[int]:
        freed = self.sequences.pop(name).table[::-1]
        for block in freed:
            self.references[block] -= 1
        self.free_blocks += freed
        return freed


class _FreesAllUncounted(PagedAllocator):
    def free(self, name: str) -> list[int]:
        freed = self.sequences.pop(name).table[::-1]
        self.free_blocks += freed
        return freed


class _CountsNoForks(PagedAllocator):
    def fork(self, parent: str, name: str, length: int | None = None) -> Cached:
        child = super().fork(parent, name, length)
        for block in child.table:
            self.references[block] -= 1
        return child


def _by(kind: type[PagedAllocator], *silent: str) -> Callable[[Paging, Inputs], Answers]:
    """The answers of another allocator."""

    def compute(trace: Paging, inputs: Inputs) -> Answers:
        found = trace.carried_out(inputs, kind)
        return {name: array for name, array in found.items() if name not in silent}

    return compute


def _whole_blocks_only(trace: Paging, inputs: Inputs) -> Answers:
    right = trace.expected(inputs)
    table, whole = right["block_table"], right["lens"][:, None] // trace.block_size
    return {"block_table": np.where(np.arange(table.shape[1]) < whole, table, -1)}


def _reversed_tables(trace: Paging, inputs: Inputs) -> Answers:
    right = trace.expected(inputs)
    rows = [[*row[row >= 0][::-1], *row[row < 0]] for row in right["block_table"]]
    return {**right, "block_table": np.array(rows, dtype=np.int64).reshape(right["block_table"].shape)}


def _from_one(trace: Paging, inputs: Inputs, *, slots: int | None = None) -> Answers:
    """Numbers of blocks counted from 1; the slots follow, or are ``slots`` more."""
    right = trace.expected(inputs)
    found = {name: right[name] + (right[name] >= 0) for name in ("block_table", "free_blocks", "copies")}
    return {**found, "lens": right["lens"], "slots": right["slots"] + (slots or trace.block_size)}


_PAGING = (
    TraceReading("zeros", "", "every number is 0: nothing was computed or written", zeros),
    TraceReading(
        "last_block_dropped", "", "blocks that are only partly filled are left out", _whole_blocks_only
    ),
    TraceReading(
        "block_off_by_one", "early", "a block is taken as soon as the last is full", _by(_TakesEarly)
    ),
    TraceReading("block_off_by_one", "from-one", "blocks are counted from 1", _from_one),
    TraceReading(
        "block_off_by_one",
        "all-from-one",
        "blocks and slots are counted from 1",
        partial(_from_one, slots=1),
        is_main=False,
    ),
    TraceReading(
        "block_off_by_one",
        "fork",
        "a fork shares one block more than its tokens lie in",
        _by(_ForksOneMore),
        is_main=False,
    ),
    TraceReading("block_order", "oldest", "the block that was freed first is taken first", _by(_OldestFirst)),
    TraceReading("block_order", "lowest", "the lowest free block is taken first", _by(_LowestFirst)),
    TraceReading(
        "block_order", "sorted", "the lowest free block is taken first", _by(_Sorted), is_main=False
    ),
    TraceReading(
        "block_order", "highest", "the highest block is taken first at the beginning", _by(_HighestFirst)
    ),
    TraceReading(
        "block_order",
        "freed",
        "a sequence that ends lets go of its first block first",
        _by(_FreesFirstToLast),
    ),
    TraceReading(
        "block_order", "table", "tables are written from the last block to the first", _reversed_tables
    ),
    TraceReading("copy_missing", "", "shared blocks are written to without a copy", _by(_NeverCopies)),
    TraceReading("copy_needless", "fork", "a fork copies its last block at once", _by(_CopiesAtFork)),
    TraceReading(
        "copy_needless", "all", "a fork copies all blocks and shares none", _by(_SharesNothing, "copies")
    ),
    TraceReading(
        "copy_needless",
        "held",
        "a block is copied that nobody else holds any more",
        _by(_CopiesWhatWasShared),
        is_main=False,
    ),
    TraceReading("freed_while_shared", "", "blocks are freed that another table still holds", _by(_FreesAll)),
    TraceReading(
        "freed_while_shared",
        "kept",
        "blocks are freed that another table still holds",
        _by(_FreesAllUncounted),
    ),
    TraceReading(
        "freed_while_shared", "fork", "forks are not counted as holders of their blocks", _by(_CountsNoForks)
    ),
)


# -- speculative decoding ------------------------------------------------------------------------------------


def _with(**changed: Any) -> Callable[[Speculative, Inputs], Answers]:
    """The answers by rules that differ in this."""
    rules = Rules(**changed)
    return lambda trace, inputs: trace.written(inputs, rules)


def _by_excess(beyond: Callable[[int], int]) -> Callable[[list[float], list[float], float], int]:
    """A token from max(0, p − q) as it is, whose sum u may exceed: then ``beyond`` of the vocabulary."""

    def replaces(p: list[float], q: list[float], u: float) -> int:
        token = bisect_right(cumulated(max(0.0, a - b) for a, b in zip(p, q, strict=True)), u)
        return token if token < len(p) else beyond(len(p))

    return replaces


def _examined_on(trace: Speculative, inputs: Inputs) -> Answers:
    """What becomes of every drafted token by itself."""
    runs, places = np.indices(inputs["drafted"].shape)
    p, q = (inputs[name][runs, places, inputs["drafted"]] for name in ("target", "draft"))
    return {"accepted": (inputs["uniforms"][:, :-1] < p / q).astype(np.int64)}


_SPECULATIVE = (
    TraceReading("zeros", "", "every number is 0: nothing was computed or written", zeros),
    TraceReading(
        "draft_always_accepted", "", "every drafted token is accepted", _with(accepts=lambda u, p, q: True)
    ),
    TraceReading(
        "accepted_without_ratio",
        "",
        "a drafted token is accepted where p ≥ q, and else never",
        _with(accepts=lambda u, p, q: p >= q),
    ),
    TraceReading(
        "ratio_inverted",
        "",
        "a drafted token is accepted with probability q/p",
        _with(accepts=lambda u, p, q: u < q / p),
    ),
    TraceReading("examined_on", "", "drafted tokens are looked at beyond one that was refused", _examined_on),
    TraceReading(
        "residual_missing",
        "",
        "a refused token is replaced by one from p, not from the residual",
        _with(replaces=lambda p, q, u: first_beyond(p, u)),
    ),
    TraceReading(
        "residual_not_normalised",
        "outside",
        "the residual is not divided by its sum, and u finds no token in it",
        _with(replaces=_by_excess(lambda vocabulary: vocabulary)),
    ),
    TraceReading(
        "residual_not_normalised",
        "last",
        "the residual is not divided by its sum, and what is missing is the last token",
        _with(replaces=_by_excess(lambda vocabulary: vocabulary - 1)),
    ),
    TraceReading(
        "residual_not_normalised",
        "first",
        "the residual is not divided by its sum, and what is missing is token 0",
        _with(replaces=_by_excess(lambda vocabulary: 0)),
    ),
    TraceReading(
        "other_uniform",
        "same",
        "the number that refused a token also draws the one in its place",
        _with(draws_by=lambda kept: kept),
    ),
    TraceReading(
        "other_uniform",
        "next",
        "the number after the one that refused a token draws the one in its place",
        _with(draws_by=lambda kept: kept + 1),
    ),
    TraceReading(
        "bonus_missing", "", "no token follows a draft that was accepted whole", _with(follows=False)
    ),
)

READINGS: Mapping[str, Sequence[TraceReading]] = {"paging": _PAGING, "speculative": _SPECULATIVE}
# Of traces alone, in the order of the table.
CODES = tuple(
    dict.fromkeys(
        reading.code
        for readings in READINGS.values()
        for reading in readings
        if reading.code not in ("zeros", "last_block_dropped")
    )
)


def same(name: str, given: Array, other: Array) -> bool:
    """Whether two answers say the same."""
    if not given.size and not other.size:
        return True
    given = padded(name, given, other)
    return given.shape == other.shape and bool((given == other).all())
