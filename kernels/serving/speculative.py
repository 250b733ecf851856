"""Speculative decoding (Leviathan et al. 2023, Chen et al. 2023): a small model drafts γ tokens, the large
one checks them all in one run, and what comes out is distributed as if the large one had written it.

With p the target's distribution at a position and q the draft's: a drafted token x ~ q is accepted with
probability min(1, p(x)/q(x)). The first that is not is replaced by one drawn from the residual, max(0, p − q)
normalised, and the rest of the draft is dropped. After a draft accepted whole, the target's run gives one
more token, from p. So a run yields between 1 and γ + 1 tokens, and each is distributed as p:

    q(x)·min(1, p(x)/q(x)) + (1 − α)·max(0, p(x) − q(x)) / (1 − α) = p(x),   α = Σ min(p, q).

A *table* has a distribution for each position of the sequence to be written.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kernels.serving.draws import Draws, cumulated
from kernels.serving.events import EventLog

Distribution = Sequence[float]  # [vocabulary], its sum is 1
Table = Sequence[Distribution]  # [positions, vocabulary]


def acceptance(p: Distribution, q: Distribution) -> float:
    """α: the probability that a token drafted from q is accepted; 1 − the total variation distance."""
    return min(1.0, math.fsum(map(min, p, q)))


def residual(p: Distribution, q: Distribution) -> list[float]:
    """What replaces a rejected token: max(0, p − q), normalised. Where p = q nothing is rejected; then p."""
    excess = [max(0.0, wanted - drafted) for wanted, drafted in zip(p, q, strict=True)]
    total = math.fsum(excess)
    return [each / total for each in excess] if total else list(p)


def produced(p: Distribution, q: Distribution) -> list[float]:
    """The law of a token that is drafted, then accepted or replaced: p, which is the point."""
    rejected, replacement = 1 - acceptance(p, q), residual(p, q)
    return [min(a, b) + rejected * r for a, b, r in zip(p, q, replacement, strict=True)]


@dataclass(frozen=True)
class Generated:
    """A sequence, and what it took. ``examined`` leaves out what was drafted beyond a rejection: of those
    examined, α are accepted."""

    tokens: list[int]
    runs: int  # of the target
    drafted: int
    examined: int
    accepted: int


def generate(
    target: Table, draft: Table, gamma: int, draws: Draws, *, log: EventLog | None = None, sequence: int = 0
) -> Generated:
    """Write a token for each position of the tables; ``sequence`` is its number in the log.

    Values are drawn in this order, in each run: the drafted tokens, then one u for each until a token is
    rejected (u ≥ p/q), then the token that replaces it or follows. No more is drafted than can be used.
    """
    cumulative = [cumulated(q) for q in draft]
    tokens: list[int] = []
    runs = drafted = examined = 0
    while len(tokens) < len(target):
        first = len(tokens)
        count = min(gamma, len(target) - first - 1)
        guesses = [draws.index(each) for each in cumulative[first : first + count]]
        ahead = slice(first, first + count + 1)
        kept = _check(guesses, target[ahead], draft[ahead], draws, _Notes(log, sequence, runs, first))
        tokens += kept
        runs, drafted, examined = runs + 1, drafted + count, examined + min(len(kept), count)
    return Generated(tokens, runs, drafted, examined, accepted=len(tokens) - runs)


def _check(guesses: list[int], target: Table, draft: Table, draws: Draws, notes: _Notes) -> list[int]:
    """The tokens of one run of the target, over the positions guessed and the one after them."""
    for offset, (token, p, q) in enumerate(zip(guesses, target, draft, strict=False)):
        u, ratio = draws.uniform(), min(1.0, p[token] / q[token])
        notes.add(
            "accept" if u < ratio else "reject", offset, token, p=p[token], q=q[token], ratio=ratio, u=u
        )
        if u >= ratio:
            replacement = draws.index(cumulated(residual(p, q)))
            notes.add("replace", offset, replacement)
            return [*guesses[:offset], replacement]
    following = draws.index(cumulated(target[len(guesses)]))
    notes.add("follow", len(guesses), following)
    return [*guesses, following]


@dataclass(frozen=True)
class _Notes:
    """The log of one run."""

    log: EventLog | None
    sequence: int
    run: int
    first: int

    def add(self, kind: str, offset: int, token: int, **details: float) -> None:
        if self.log is not None:
            ids = {"sequence": self.sequence, "run": self.run, "position": self.first + offset}
            self.log.add(self.run, kind, ids, token=token, **details)


def expected_tokens(alpha: float, gamma: int) -> float:
    """Tokens of a run, on average, when each drafted token is accepted with probability α:
    (1 − α^(γ+1)) / (1 − α)."""
    return gamma + 1.0 if alpha == 1 else (1 - alpha ** (gamma + 1)) / (1 - alpha)


def expected_speedup(alpha: float, gamma: int, cost: float) -> float:
    """How much faster than the target alone, where a draft token takes ``cost`` runs of the target and a run
    takes no longer for γ + 1 tokens than for one: expected_tokens / (γ·cost + 1)."""
    return expected_tokens(alpha, gamma) / (gamma * cost + 1)


def best_length(speedup: Callable[[int], float], limit: int) -> int:
    """The γ from 0 to ``limit`` with the greatest speed-up; the least of equals."""
    return max(range(limit + 1), key=lambda gamma: (speedup(gamma), -gamma))


def expected_time(alphas: Sequence[float], gamma: int, cost: float) -> float:
    """Mean time of a whole sequence in runs of the target, exactly: α of each position given, the end
    included, where less is drafted. With cost 0 this is the mean number of runs."""
    end = len(alphas)
    left = [0.0] * (end + 1)  # mean time from a position to the end
    for first in reversed(range(end)):
        count = min(gamma, end - first - 1)
        time, reached = 1 + cost * count, 1.0
        for offset in range(count):
            time += reached * (1 - alphas[first + offset]) * left[first + offset + 1]
            reached *= alphas[first + offset]
        left[first] = time + reached * left[first + count + 1]
    return left[0]
