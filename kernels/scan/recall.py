"""What a state of fixed size cannot do: recall of pairs, and copying, computed rather than learned.

A memory takes in pairs (key, value) and is asked for the value of each key; it answers with the value whose
vector is nearest to its output. Keys are unit vectors in d_k dimensions, values one of V symbols, as the V
unit vectors of d_v = V dimensions. Three memories are given the same pairs:

*Attention* keeps all of them: softmax(β K k) V. Let c < 1 be the largest cosine of two different keys. With β
= (ln N + 1) / (1 − c) the right key's weight is more than 1 / (1 + N e^{−β(1−c)}) > ½, so its answer is
right, whatever N and however few dimensions: a growing cache needs a sharper softmax, and no more room.

*The linear state* Σ k vᵀ answers with Σ_i (k·k_i) v_i: the right value, and the *crosstalk* of all other
keys. With N ≤ d_k orthonormal keys there is none. Random keys have products of variance 1/d_k; a symbol's
crosstalk is a sum over the N/V pairs that hold it, near enough normal, with σ² = N / (V d_k). The answer is
right when 1 plus one such draw exceeds V − 1 others:

    P(right) = ∫ φ(z) Φ(z + 1/σ)^{V−1} dz,

which falls from 1 when N passes about d_k V / (2 ln V): the size of the state over a logarithm.

*The delta rule* writes what is missing, so that the last pairs are kept and the first are worn away.

No rule for writing does better than linear algebra allows: outputs for N keys that a d_k × d_v state makes
have rank d_k at most. The values, as unit vectors, have for squared singular values how often each symbol is
there; so by Eckart and Young ‖outputs − values‖² is at least the pairs of all symbols but the d_k commonest:
if all N values differ, N − d_k. *Copying* meets that bound with equality. There keys are positions, and those
that serve a state best: of N points on a circle, d_k/2 frequencies (a harmonic tight frame). K Kᵀ is then a
low-pass filter: a sequence longer than d_k comes back blurred, each token mixed with its neighbours, while
attention still tells the positions apart.

And whatever is read, b bits of state tell 2^b sequences apart: over V symbols and n tokens at most a fraction
2^{b − n log₂ V} of all can be copied (Jelassi et al. 2024, *Repeat After Me: Transformers are Better than
State Space Models at Copying*, ICML). Arora et al. 2024, *Zoology: Measuring and Improving Recall in
Efficient Language Models*, ICLR, for recall as the gap between the two; Schlag et al. 2021 for d_k as the
capacity of a linear state.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from kernels.arrays import Array, generate
from kernels.engines.reference import attend
from kernels.linear.inputs import Recurrence
from kernels.linear.recurrence import chunked

CHUNK = 64
LEAST_GAP = 1e-9  # between a cosine and 1, for two keys to be told apart


@dataclass(frozen=True)
class Pairs:
    """N pairs to be remembered: keys [N, d_k], of length 1, and symbols [N] below ``vocabulary``."""

    keys: Array
    symbols: Array
    vocabulary: int

    @property
    def values(self) -> Array:
        """[N, vocabulary]: the unit vector of each symbol."""
        return np.eye(self.vocabulary)[self.symbols]


@dataclass(frozen=True)
class Recall:
    """How a memory did: its ``answers`` [N] to the pairs in the order of writing, which were ``right`` [N],
    and the squared distance of its outputs from the values, per pair."""

    answers: Array
    right: Array
    squared_error: float

    @property
    def accuracy(self) -> float:
        """The fraction that was right."""
        return float(self.right.mean())


def recall_pairs(count: int, *, d_k: int, vocabulary: int, seed: int) -> Pairs:
    """Associative recall: orthonormal keys while there are d_k dimensions for them, else random ones; random
    symbols. Raises ValueError for counts below 1."""
    _check(count=count, d_k=d_k, vocabulary=vocabulary)
    keys = generate("recall/keys", seed, (max(count, d_k), d_k), "normal", "float64")
    if count <= d_k:
        # Gram and Schmidt, of rows.
        keys = np.linalg.qr(keys[:d_k].T)[0].T
    keys = keys[:count] / np.linalg.norm(keys[:count], axis=1, keepdims=True)
    return Pairs(keys, _symbols("recall/symbols", count, vocabulary, seed), vocabulary)


def copy_pairs(count: int, *, d_k: int, seed: int | None = None, vocabulary: int | None = None) -> Pairs:
    """Copying: keys are the positions of a sequence, in d_k dimensions (even), orthonormal while there are
    dimensions for them. Symbols are random below
    ``vocabulary``, or, without one, all different. Raises ValueError for counts below 1 and an odd d_k."""
    _check(count=count, d_k=d_k, vocabulary=vocabulary or 1)
    if d_k % 2:
        raise ValueError(f"d_k must be even, a sine and a cosine for each frequency, not {d_k}")
    if count <= d_k:
        keys = np.eye(d_k)[:count]
    else:
        angles = 2 * np.pi / count * np.arange(count)[:, None] * np.arange(1, d_k // 2 + 1)
        keys = np.concatenate([np.cos(angles), np.sin(angles)], 1) / math.sqrt(d_k / 2)
    if vocabulary is None:
        return Pairs(keys, np.arange(count), count)
    return Pairs(keys, _symbols("copy/symbols", count, vocabulary, seed or 0), vocabulary)


def attention_recall(pairs: Pairs) -> Recall:
    """Exact attention, as sharp as these keys need it."""
    keys = pairs.keys
    found = attend(keys, keys, pairs.values, scale=sharpness(keys))
    return _judged(found["out"], pairs)


def sharpness(keys: Array) -> float:
    """β = (ln N + 1) / (1 − largest cosine). Raises ValueError where two keys are the same."""
    cosines = keys @ keys.T
    np.fill_diagonal(cosines, -1.0)
    gap = 1.0 - float(cosines.max(initial=-1.0))
    if gap < LEAST_GAP:
        raise ValueError("two keys are the same: nothing can tell their values apart; use more dimensions")
    return (math.log(len(keys)) + 1) / gap


def linear_recall(pairs: Pairs, *, delta: bool = False) -> Recall:
    """A state of d_k × d_v, written by sums, or by the delta rule with rate 1; read after the last pair.

    Sums are scaled by d_k/N where there are more pairs than dimensions, which is the least-squares scale for
    the keys of copying, and moves no answer.
    """
    count, d_k = pairs.keys.shape
    k, v = pairs.keys[None, None], pairs.values[None, None]
    beta = np.ones((1, 1, count, 1)) if delta else None
    written = chunked(Recurrence(k, k, v, beta=beta), chunk=CHUNK).state.s[0, 0]
    out = pairs.keys @ written
    return _judged(out if delta else out * min(1.0, d_k / count), pairs)


def expected_accuracy(count: int, *, d_k: int, vocabulary: int) -> float:
    """Of the linear state with random keys and symbols: the integral at the top."""
    if vocabulary == 1:
        return 1.0
    normal, sigma = NormalDist(), math.sqrt(count / (vocabulary * d_k))
    grid = np.linspace(-9.0, 9.0, 1801)
    density = np.exp(-np.square(grid) / 2) / math.sqrt(2 * math.pi)
    below = np.array([normal.cdf(z + 1 / sigma) for z in grid]) ** (vocabulary - 1)
    return float(np.sum(density * below) * (grid[1] - grid[0]))


def least_squared_error(symbols: Array, d_k: int) -> float:
    """Per pair, of any state with d_k rows that is asked for these symbols [N]; 1 − d_k / N if all differ."""
    commonest = np.sort(np.bincount(symbols))[::-1]
    return float(commonest[d_k:].sum() / len(symbols))


def copied_fraction(state_bits: int, *, tokens: int, vocabulary: int) -> float:
    """The largest fraction of all sequences of ``tokens`` symbols that a state of so many bits can copy."""
    return float(2.0 ** min(0.0, state_bits - tokens * math.log2(vocabulary)))


def _symbols(name: str, count: int, vocabulary: int, seed: int) -> Array:
    uniform = (generate(name, seed, (count,), "uniform", "float64") + 1) / 2
    return np.minimum((uniform * vocabulary).astype(np.int64), vocabulary - 1)


def _judged(out: Array, pairs: Pairs) -> Recall:
    error = float(np.square(out - pairs.values).sum() / len(out))
    answers = out.argmax(1)
    return Recall(answers, answers == pairs.symbols, error)


def _check(**counts: int) -> None:
    for name, count in counts.items():
        if count < 1:
            raise ValueError(f"{name} must be at least 1, not {count}")
