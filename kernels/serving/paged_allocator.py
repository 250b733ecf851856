"""A KV cache in blocks, as PagedAttention keeps it (Kwon et al. 2023, "Efficient Memory Management for Large
Language Model Serving with PagedAttention"): memory as an operating system pages it.

The memory is ``num_blocks`` blocks of B slots, a slot for the K and V of one token. A sequence has a table of
blocks, which may lie anywhere: token i is in slot ``table[i // B]·B + i mod B``. Sequences that begin alike
share blocks, counted by references; who writes to a shared block gets a copy of it first.

This is the bookkeeping alone. A :class:`Change` says what to do to the memory itself.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from kernels.integers import ceil_div


class OutOfBlocks(Exception):
    """There are fewer free blocks than needed; nothing has been changed."""

    def __init__(self, needed: int, free: int) -> None:
        self.needed, self.free = needed, free
        super().__init__(f"{needed} blocks are needed, {free} are free")


@dataclass
class Sequence:
    """The blocks of one sequence, in order of its tokens; ⌈length / B⌉ of them."""

    table: list[int] = field(default_factory=list)
    length: int = 0


@dataclass(frozen=True)
class Change:
    """What an append does to the memory: first copy block ``copied[0]`` to ``copied[1]``, if at all, then
    write the new tokens to ``slots``."""

    slots: list[int]
    handed_out: list[int]
    copied: tuple[int, int] | None


@dataclass(frozen=True)
class Usage:
    """What is in use. ``filled`` counts the slots whose token some sequence still reads."""

    tokens: int  # over all sequences, each counting what it shares
    blocks: int
    table_entries: int  # the blocks that would be in use if nothing were shared
    slots: int
    filled: int

    @property
    def internal_waste(self) -> int:
        """Slots in blocks handed out that hold nothing: at most B − 1 for each sequence."""
        return self.slots - self.filled


class PagedAllocator:
    """Hands out blocks, the one freed last first."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.free_blocks = list(reversed(range(num_blocks)))
        self.references = [0] * num_blocks  # how many tables hold a block
        self.sequences: dict[str, Sequence] = {}

    def allocate(self, name: str, tokens: int) -> Change:
        """Begin a sequence with ``tokens`` tokens. Raises :class:`OutOfBlocks`."""
        self.sequences[name] = Sequence()
        try:
            return self.append(name, tokens)
        except OutOfBlocks:
            del self.sequences[name]
            raise

    def append(self, name: str, tokens: int = 1) -> Change:
        """Add tokens to the end of a sequence, all or none. Raises :class:`OutOfBlocks`."""
        sequence, size = self.sequences[name], self.block_size
        needed = self.blocks_needed(name, tokens)
        if needed > len(self.free_blocks):
            raise OutOfBlocks(needed, len(self.free_blocks))
        is_shared = tokens > 0 and self._writes_to_shared(sequence)
        taken = [self._take() for _ in range(needed)]
        copied = None
        if is_shared:
            copied = (sequence.table[-1], taken[0])
            self._drop(sequence.table.pop())
        sequence.table += taken
        first, sequence.length = sequence.length, sequence.length + tokens
        slots = [sequence.table[i // size] * size + i % size for i in range(first, sequence.length)]
        return Change(slots, taken, copied)

    def fork(self, parent: str, name: str, length: int | None = None) -> Sequence:
        """A sequence that begins with the first ``length`` tokens of another (all, if None) and shares their
        blocks. Takes no memory until one of the two writes to a block that both hold."""
        source = self.sequences[parent]
        length = source.length if length is None else length
        child = Sequence(source.table[: ceil_div(length, self.block_size)], length)
        for block in child.table:
            self.references[block] += 1
        self.sequences[name] = child
        return child

    def free(self, name: str) -> list[int]:
        """End a sequence; the blocks that nobody else holds, which are free now."""
        return [block for block in reversed(self.sequences.pop(name).table) if self._drop(block)]

    def slot(self, name: str, position: int) -> int:
        """Where token ``position`` of a sequence lies."""
        block = self.sequences[name].table[position // self.block_size]
        return block * self.block_size + position % self.block_size

    def blocks_needed(self, name: str, tokens: int) -> int:
        """Free blocks that appending ``tokens`` would take, the copy of a shared one among them."""
        sequence = self.sequences[name]
        blocks = ceil_div(sequence.length + tokens, self.block_size)
        return blocks - len(sequence.table) + (tokens > 0 and self._writes_to_shared(sequence))

    def usage(self) -> Usage:
        """Exact figures of this moment."""
        blocks = len(self.references) - len(self.free_blocks)
        sequences = self.sequences.values()
        # Only the last block of a sequence may be partly filled, and it counts as full if another sequence
        # goes on beyond it.
        in_last: dict[int, list[int]] = defaultdict(list)
        for each in sequences:
            if each.table:
                in_last[each.table[-1]].append(each.length - self.block_size * (len(each.table) - 1))
        empty = sum(
            self.block_size - max(filled)
            for block, filled in in_last.items()
            if len(filled) == self.references[block]
        )
        slots = blocks * self.block_size
        entries = sum(len(each.table) for each in sequences)
        return Usage(sum(each.length for each in sequences), blocks, entries, slots, slots - empty)

    def _writes_to_shared(self, sequence: Sequence) -> bool:
        """Whether the next token goes to a block that another sequence holds too."""
        return sequence.length % self.block_size > 0 and self.references[sequence.table[-1]] > 1

    def _take(self) -> int:
        block = self.free_blocks.pop()
        self.references[block] = 1
        return block

    def _drop(self, block: int) -> bool:
        """Hold a block one time less; whether that frees it."""
        self.references[block] -= 1
        if self.references[block] == 0:
            self.free_blocks.append(block)
        return self.references[block] == 0
