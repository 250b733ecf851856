"""A cache of prefixes as a radix tree (Zheng et al. 2024, "SGLang", RadixAttention): requests that begin
alike compute the K and V of their common beginning once.

A node stands for the tokens on its edge, a path from the root for a prefix that is in the cache. Within
``capacity`` tokens, what was used longest ago goes first, from the ends of the leaves: no prefix can be kept
without what it begins with. No more is evicted than is needed (SGLang drops whole nodes), so that what is
kept does not depend on how the tree came to be cut into nodes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count

Token = int | str


@dataclass(eq=False)
class Node:
    """Tokens that follow those of ``parent`` (None for the root, whose tokens are none); ``last_used`` is the
    time of their last request."""

    number: int
    tokens: list[Token]
    parent: Node | None
    last_used: int
    children: dict[Token, Node] = field(default_factory=dict)  # by the first token of each


@dataclass(frozen=True)
class Eviction:
    """``tokens`` dropped from the end of a node; all it had, or fewer."""

    node: int
    tokens: int


@dataclass(frozen=True)
class Served:
    """What one request found (``matched``), added, and put out of the cache. The last token of a prompt is
    computed even if all is there, for only its output says what comes next."""

    matched: int
    computed: int
    inserted: int
    evicted: list[Eviction]


class PrefixCache:
    """Prefixes of at most ``capacity`` tokens in all; None: without limit."""

    def __init__(self, capacity: int | None) -> None:
        self.capacity = capacity
        self.size = self.time = 0
        self._numbers = count()
        self.root = Node(next(self._numbers), [], None, 0)

    def serve(self, prompt: Sequence[Token], output: Sequence[Token] = ()) -> Served:
        """Look a prompt of at least one token up, then keep it with its answer; the beginning of them, if
        they are longer than the cache. The last token of an answer was never fed back: it has no K and V."""
        self.time += 1
        node, matched = self._walk(prompt)
        whole = [*prompt, *output[:-1]]
        kept = whole if self.capacity is None else whole[: self.capacity]
        end, there = self._walk(kept) if output else (node, min(matched, len(kept)))
        evicted = self._make_room(len(kept) - there)
        if kept[there:]:
            self._add(end, list(kept[there:]))
        computed = len(prompt) - min(matched, len(prompt) - 1)
        return Served(matched, computed, len(kept) - there, evicted)

    def nodes(self) -> Iterator[Node]:
        """All nodes but the root, parents before children."""
        stack = list(reversed(self.root.children.values()))
        while stack:
            node = stack.pop()
            yield node
            stack += reversed(node.children.values())

    def _walk(self, tokens: Sequence[Token]) -> tuple[Node, int]:
        """Follow the tokens as far as they are in the cache, marking them used; a node that they leave in its
        middle is cut in two there. The last node, and how many tokens lead to it."""
        node, matched = self.root, 0
        while matched < len(tokens) and (child := node.children.get(tokens[matched])):
            common = _common(child.tokens, tokens, matched)
            if common < len(child.tokens):
                child = self._cut(node, child, common)
            child.last_used = self.time
            node, matched = child, matched + common
        return node, matched

    def _cut(self, parent: Node, node: Node, length: int) -> Node:
        """Put a node with the first ``length`` tokens of a node between it and its parent."""
        upper = Node(next(self._numbers), node.tokens[:length], parent, node.last_used)
        node.tokens, node.parent = node.tokens[length:], upper
        upper.children[node.tokens[0]] = node
        parent.children[upper.tokens[0]] = upper
        return upper

    def _add(self, parent: Node, tokens: list[Token]) -> None:
        parent.children[tokens[0]] = Node(next(self._numbers), tokens, parent, self.time)
        self.size += len(tokens)

    def _make_room(self, tokens: int) -> list[Eviction]:
        """Evict until there is room, but nothing that is in use now."""
        evicted = []
        while self.capacity is not None and (excess := self.size + tokens - self.capacity) > 0:
            # Tokens of one time lie on one path, so that no two leaves have the same.
            leaf = min((node for node in self.nodes() if not node.children), key=lambda node: node.last_used)
            dropped = min(excess, len(leaf.tokens))
            evicted.append(Eviction(leaf.number, dropped))
            if dropped == len(leaf.tokens) and leaf.parent:
                del leaf.parent.children[leaf.tokens[0]]
            else:
                del leaf.tokens[-dropped:]
            self.size -= dropped
        return evicted


def _common(edge: Sequence[Token], tokens: Sequence[Token], start: int) -> int:
    """How many tokens of an edge agree with ``tokens[start:]``."""
    length = min(len(edge), len(tokens) - start)
    return next((i for i in range(length) if edge[i] != tokens[start + i]), length)
