"""Requests on a cache of prefixes, in order: what each finds there, and what is saved in the end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kernels.serving.draws import Draws
from kernels.serving.events import EventLog
from kernels.serving.prefix_cache import PrefixCache, Served, Token

VOCABULARY = 32_000  # of the tokens that are drawn


@dataclass(frozen=True)
class PrefixRequest:
    """A prompt and the answer that the model gives to it, in tokens."""

    prompt: Sequence[Token]
    output: Sequence[Token] = ()


@dataclass(frozen=True)
class Conversations:
    """Many conversations at once: each begins with one of ``systems`` prompts, and each of its requests
    repeats all that was said before. Whose turn it is, is drawn."""

    conversations: int
    turns: int
    systems: int
    system_len: tuple[int, int]
    message_len: tuple[int, int]
    answer_len: tuple[int, int]
    seed: int

    def requests(self) -> list[PrefixRequest]:
        """The requests in the order in which they come."""
        draws = Draws(self.seed)
        systems = [_tokens(draws, self.system_len) for _ in range(self.systems)]
        said = [list(systems[draws.integer(0, self.systems - 1)]) for _ in range(self.conversations)]
        left = [self.turns] * self.conversations
        made = []
        while open_ones := [number for number, turns in enumerate(left) if turns]:
            chosen = open_ones[draws.integer(0, len(open_ones) - 1)]
            left[chosen] -= 1
            said[chosen] += _tokens(draws, self.message_len)
            answer = _tokens(draws, self.answer_len)
            made.append(PrefixRequest(tuple(said[chosen]), tuple(answer)))
            said[chosen] += answer
        return made


def _tokens(draws: Draws, length: tuple[int, int]) -> list[int]:
    return [draws.integer(0, VOCABULARY - 1) for _ in range(draws.integer(*length))]


def replay(requests: Sequence[PrefixRequest], capacity: int | None, log: EventLog) -> dict[str, Any]:
    """Figures of every request, the tree that is left, and what an unlimited cache would have saved."""
    cache = PrefixCache(capacity)
    served, sizes = [], []
    for step, request in enumerate(requests):
        served.append(cache.serve(request.prompt, request.output))
        sizes.append(cache.size)
        _note(log, step, request, served[-1])
    unlimited = PrefixCache(None)
    best = [unlimited.serve(request.prompt, request.output) for request in requests]
    tokens = sum(len(request.prompt) for request in requests)
    return {
        "summary": {
            **_saved(tokens, served),
            "requests": len(requests),
            "prompt_tokens": tokens,
            "evicted_tokens": sum(each.tokens for one in served for each in one.evicted),
            "peak_size": max(sizes, default=0),
            "unlimited": {**_saved(tokens, best), "size": unlimited.size},
        },
        "timeline": {
            "matched": [one.matched for one in served],
            "computed": [one.computed for one in served],
            "inserted": [one.inserted for one in served],
            "evicted": [sum(each.tokens for each in one.evicted) for one in served],
            "size": sizes,
        },
        "tree": [
            {
                "node": node.number,
                "parent": node.parent.number if node.parent else None,
                "tokens": node.tokens,
                "last_used": node.last_used - 1,  # the number of a request; the cache's time starts at 1
            }
            for node in cache.nodes()
        ],
    }


def _saved(tokens: int, served: Sequence[Served]) -> dict[str, Any]:
    computed = sum(one.computed for one in served)
    matched = sum(one.matched for one in served)
    return {
        "computed_tokens": computed,
        "saved_tokens": tokens - computed,
        "hit_rate": matched / tokens if tokens else 0.0,
    }


def _note(log: EventLog, step: int, request: PrefixRequest, served: Served) -> None:
    ids = {"request": step}
    log.add(step, "match", ids, tokens=len(request.prompt), matched=served.matched, computed=served.computed)
    for each in served.evicted:
        log.add(step, "evict", {**ids, "node": each.node}, tokens=each.tokens)
    if served.inserted:
        log.add(step, "insert", ids, tokens=served.inserted)
