"""Programs that are wrong, as they circulate: to be run beside what is right, and seen to differ.

Each is a snippet whose indentation, calls and broadcasting are in order, so that it runs, and whose
mathematics is left as it was. Float64; if nothing else is said one head: q [n, d], k [m, d], v [m, e].
"""

from __future__ import annotations

import numpy as np

from kernels.arrays import Array, round_to_dtype
from kernels.rope import frequencies
from kernels.spec.model import Rope

ONLINE = ("unfinished", "block_not_rescaled")
MASKING = ("zero_after", "added", "inverted", "finite", "plain")
SPLITTING = ("not_transposed",)
GROUPING = ("tiled",)


def mixed_rope(x: Array, positions: Array, *, theta: float = 10_000.0) -> Array:
    """RoPE of x [n, d] that takes its pairs from neighbours, as GPT-J, and puts them back as halves, as
    GPT-NeoX: x · cos + [−odd, even] · sin, with the angles of pairs of neighbours.

    Either of the two would do. Together they are no rotation: lengths change, and so does q·k with the
    positions of both, though their distance stays.
    """
    omega, _ = frequencies(Rope("interleaved", theta=theta), x.shape[-1], 1)
    angles = np.repeat(positions[:, None] * omega, 2, axis=-1)
    turned = np.concatenate([-x[:, 1::2], x[:, ::2]], axis=-1)
    return np.asarray(x * np.cos(angles) + turned * np.sin(angles))


def rounded_angles(positions: Array, dim: int, dtype: str, *, theta: float = 10_000.0) -> Array:
    """The angles [n, dim/2] of RoPE, float64, where positions, frequencies and their products are numbers of
    ``dtype``; infinite where a position is beyond what it holds.

    bfloat16 tells no two neighbouring positions above 256 apart, float16 none above 2,048.
    """
    omega, _ = frequencies(Rope("half", theta=theta), dim, 1)
    at, turns = (round_to_dtype(x.astype(np.float64), dtype).astype(np.float64) for x in (positions, omega))
    with np.errstate(over="ignore"):
        return round_to_dtype(at[:, None] * turns, dtype).astype(np.float64)


def online_softmax(
    q: Array, k: Array, v: Array, *, scale: float, block: int, mistake: str | None = None
) -> Array:
    """Attention block by block of keys, [n, e]. Without a ``mistake`` it is right; with one each block is
    normalised by itself first, and then

    * ``unfinished``: what was summed before shrinks as it should, but no sum of weights is kept, and nothing
      is divided in the end;
    * ``block_not_rescaled``: it is kept and divided by, but what a block adds to it is not shrunk from the
      block's own maximum to that of all.

    ValueError for any other ``mistake``.
    """
    _known(mistake, ONLINE)
    out, total = np.zeros((len(q), v.shape[1])), np.zeros((len(q), 1))
    largest = np.full((len(q), 1), -np.inf)
    for start in range(0, len(k), block):
        scores = scale * (q @ k[start : start + block].T)
        own = scores.max(axis=1, keepdims=True)
        higher = np.maximum(largest, own)
        exponentials = np.exp(scores - (higher if mistake is None else own))
        added = exponentials.sum(axis=1, keepdims=True)
        weights = exponentials if mistake is None else exponentials / added
        shrunk = np.exp(largest - higher)
        out = out * shrunk + weights @ v[start : start + block]
        total, largest = total * shrunk + added, higher
    return out if mistake == "unfinished" else np.asarray(out / total)


def masked_weights(scores: Array, allowed: Array, mistake: str | None = None) -> Array:
    """Weights [n, m] of softmax over the keys that are ``allowed`` (bool [n, m]); 0 in a row that sees none.
    With a ``mistake``

    * ``zero_after``: softmax over all keys, then the forbidden weights set to 0;
    * ``added``: the mask added to the scores as 1 and 0;
    * ``inverted``: what is allowed taken for what is forbidden;
    * ``finite``: −10⁹ in the place of −∞, in float32 as it is done;
    * ``plain``: −∞, and a softmax that knows nothing of rows without a key: NaN there.

    ValueError for any other ``mistake``.
    """
    _known(mistake, MASKING)
    if mistake == "zero_after":
        return np.asarray(_softmax(scores) * allowed)
    if mistake == "added":
        return _softmax(scores + allowed)
    if mistake == "finite":
        hidden = scores.astype(np.float32) + np.where(allowed, np.float32(0), np.float32(-1e9))
        return np.asarray(_softmax(hidden), dtype=np.float64)
    weights = _softmax(np.where(allowed != (mistake == "inverted"), scores, -np.inf))
    return weights if mistake == "plain" else np.nan_to_num(weights, nan=0.0)


def split_heads(x: Array, heads: int, mistake: str | None = None) -> Array:
    """x [n, heads · d] → [heads, n, d]: each head has d columns of every row. With the ``mistake``
    ``not_transposed`` the numbers are only given that shape, in the order in which they lie: each head has
    all columns of some rows, cut into rows of d.

    ValueError for any other ``mistake``.
    """
    _known(mistake, SPLITTING)
    if mistake:
        return x.reshape(heads, len(x), -1)
    return x.reshape(len(x), heads, -1).transpose(1, 0, 2)


def merge_heads(parts: Array, mistake: str | None = None) -> Array:
    """parts [heads, n, d] → [n, heads · d], by which ``split_heads`` is undone; a ``mistake`` as there."""
    _known(mistake, SPLITTING)
    ordered = parts if mistake else parts.transpose(1, 0, 2)
    return np.asarray(ordered.reshape(parts.shape[1], -1))


def expand_groups(x: Array, heads: int, mistake: str | None = None) -> Array:
    """x [kv_heads, …] → [heads, …]: the keys, or the values, that each query head reads; head h those of
    group ⌊h · kv_heads / heads⌋. With the ``mistake`` ``tiled`` all of x comes again and again, so that head
    h reads those of h modulo kv_heads; the shape is the same.

    ValueError for any other ``mistake``, or where ``heads`` is no multiple of kv_heads.
    """
    _known(mistake, GROUPING)
    times, rest = divmod(heads, len(x))
    if rest:
        raise ValueError(f"{heads} query heads cannot share {len(x)} key heads evenly")
    return np.concatenate([x] * times) if mistake else np.repeat(x, times, axis=0)


def _known(mistake: str | None, mistakes: tuple[str, ...]) -> None:
    if mistake not in (None, *mistakes):
        raise ValueError(f"mistake must be one of {', '.join(mistakes)}, not {mistake!r}")


def _softmax(scores: Array) -> Array:
    """Of each row; NaN where it holds nothing but −∞."""
    with np.errstate(invalid="ignore"):
        exponentials = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(exponentials / exponentials.sum(axis=1, keepdims=True))
