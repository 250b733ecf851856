"""Blocks are handed out, shared, copied and given back; whatever happens, every sequence reads its tokens."""

import copy
from collections import Counter
from itertools import count

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from kernels.serving.paged_allocator import OutOfBlocks, PagedAllocator


def test_a_token_is_in_the_slot_that_the_table_says():
    cache = PagedAllocator(num_blocks=8, block_size=4)
    assert cache.allocate("other", 5).handed_out == [0, 1]
    cache.allocate("mine", 3)
    cache.append("other", 6)
    assert cache.append("mine", 6).slots == [11, 16, 17, 18, 19, 20]
    assert cache.sequences["mine"].table == [2, 4, 5]
    assert [cache.slot("mine", i) for i in (0, 3, 4, 8)] == [8, 11, 16, 20]


def test_a_fork_takes_memory_only_when_somebody_writes():
    cache = PagedAllocator(num_blocks=4, block_size=4)
    cache.allocate("a", 6)
    cache.fork("a", "b")
    assert cache.usage().blocks == 2
    first = cache.append("a")
    assert first.copied == (1, 2)
    assert first.slots == [2 * 4 + 2]
    assert cache.append("b").copied is None  # the old block is its own by now
    assert cache.sequences["b"].table == [0, 1]


def test_a_fork_at_the_end_of_a_block_needs_no_copy():
    cache = PagedAllocator(num_blocks=4, block_size=4)
    cache.allocate("a", 8)
    cache.fork("a", "b")
    assert cache.append("b").copied is None
    assert cache.usage().blocks == 3


def test_without_room_nothing_changes_and_the_error_says_how_much_is_needed():
    cache = PagedAllocator(num_blocks=3, block_size=4)
    cache.allocate("a", 6)
    cache.fork("a", "b")
    before = copy.deepcopy(vars(cache))
    with pytest.raises(OutOfBlocks) as caught:
        cache.append("a", 3)  # a copy of the shared block, and one more
    assert (caught.value.needed, caught.value.free) == (2, 1)
    with pytest.raises(OutOfBlocks):
        cache.allocate("c", 5)
    assert vars(cache) == before
    cache.append("a", 2)


def test_waste_is_what_the_last_blocks_leave_empty():
    cache = PagedAllocator(num_blocks=10, block_size=16)
    cache.allocate("a", 17)
    assert cache.usage().internal_waste == 15
    cache.fork("a", "b", 3)  # of its block, "a" fills all 16
    assert cache.usage().internal_waste == 15
    cache.free("a")
    assert cache.usage().internal_waste == 13
    assert cache.usage().tokens == 3


class Memory(RuleBasedStateMachine):
    """A memory that does what the allocator says, beside what each sequence should read."""

    names = Bundle("names")

    def __init__(self):
        super().__init__()
        self.size, self.blocks = 3, 9
        self.cache = PagedAllocator(self.blocks, self.size)
        self.slots = [None] * (self.blocks * self.size)
        self.wanted = {}
        self.fresh, self.named = count(), count()

    def write(self, name, change, tokens):
        if change.copied:
            source, target = (block * self.size for block in change.copied)
            self.slots[target : target + self.size] = self.slots[source : source + self.size]
        assert len(change.slots) == tokens
        for slot in change.slots:
            self.slots[slot] = next(self.fresh)
            self.wanted[name].append(self.slots[slot])

    def blocks_needed(self, name, tokens):
        """Counted afresh from the tables."""
        table, length = self.cache.sequences[name].table, len(self.wanted[name])
        shared = tokens > 0 and length % self.size > 0 and self.holders()[table[-1]] > 1
        return sum((length + i) % self.size == 0 for i in range(tokens)) + shared

    def holders(self):
        return Counter(block for each in self.cache.sequences.values() for block in each.table)

    def free_blocks(self):
        return self.blocks - len(self.holders())

    @rule(target=names, tokens=st.integers(0, 7))
    def allocate(self, tokens):
        name = str(next(self.named))
        if -(-tokens // self.size) > self.free_blocks():
            with pytest.raises(OutOfBlocks):
                self.cache.allocate(name, tokens)
            return multiple()
        self.wanted[name] = []
        self.write(name, self.cache.allocate(name, tokens), tokens)
        return name

    @rule(name=names, tokens=st.integers(0, 5))
    def append(self, name, tokens):
        needed = self.blocks_needed(name, tokens)
        if needed > self.free_blocks():
            with pytest.raises(OutOfBlocks) as caught:
                self.cache.append(name, tokens)
            assert (caught.value.needed, caught.value.free) == (needed, self.free_blocks())
        else:
            self.write(name, self.cache.append(name, tokens), tokens)

    @rule(target=names, parent=names, data=st.data())
    def fork(self, parent, data):
        name, length = str(next(self.named)), len(self.wanted[parent])
        kept = data.draw(st.sampled_from([None, *range(length + 1)]))
        self.cache.fork(parent, name, kept)
        self.wanted[name] = self.wanted[parent][:kept]
        return name

    @rule(name=consumes(names))
    def free(self, name):
        before = self.free_blocks()
        freed = self.cache.free(name)
        del self.wanted[name]
        assert len(freed) == self.free_blocks() - before

    @invariant()
    def every_sequence_reads_its_tokens(self):
        for name, tokens in self.wanted.items():
            assert [self.slots[self.cache.slot(name, i)] for i in range(len(tokens))] == tokens
            assert len(self.cache.sequences[name].table) == -(-len(tokens) // self.size)

    @invariant()
    def references_count_the_tables_that_hold_a_block(self):
        assert self.cache.references == [self.holders()[block] for block in range(self.blocks)]

    @invariant()
    def no_block_is_both_free_and_used_and_none_is_lost(self):
        assert sorted([*self.cache.free_blocks, *self.holders()]) == list(range(self.blocks))

    @invariant()
    def figures_are_those_counted_slot_by_slot(self):
        read = {self.cache.slot(name, i) for name, tokens in self.wanted.items() for i in range(len(tokens))}
        usage = self.cache.usage()
        assert usage.filled == len(read)
        assert usage.slots == self.size * len(self.holders())
        assert usage.table_entries == self.holders().total()
        assert usage.tokens == sum(map(len, self.wanted.values()))
        assert usage.internal_waste <= (self.size - 1) * len(self.wanted)

    def teardown(self):
        for name in list(self.wanted):
            self.cache.free(name)
        assert sorted(self.cache.free_blocks) == list(range(self.blocks))
        assert not any(self.cache.references)


TestMemory = Memory.TestCase
TestMemory.settings = settings(max_examples=150, stateful_step_count=40)
