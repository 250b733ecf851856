"""A text read token by token through a cache that forgets, beside one that does not.

At step t the key and the value of token t come in, the policy evicts, and query t looks at what is held, H_t:

    o_t = Σ_{j ∈ H_t} α_tj v_j,   α = softmax over H_t          exact: over all j ≤ t, with nothing quantised

Where keys are kept as they are, and stand where they stood, α is the exact one restricted to H_t and divided
by its sum p there, so that

    o_t − exact_t = (1 − p) (o_t − mean of what was evicted, by its exact weights)

and the error is at most 1 − p times the largest distance between two values: what is forgotten costs as
much as it would have been looked at.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from kernels.arrays import Array
from kernels.cache_policies.policies import CACHE, TEXT, Policy
from kernels.cache_policies.storage import Storage
from kernels.rope import cos_sin, rotate
from kernels.scoring.attention import softmax
from kernels.spec.model import Rope
from kernels.spec.rope import rotated_dim

MAX_MULTIPLY_ADDS = 2**32
Turn = Callable[[Array, slice], Array]  # [b, h, len, d], the positions of these len (or the one of all)


class _Step(NamedTuple):
    """What one token finds. b batch, h query heads in groups of g that share one of h_kv key heads."""

    tokens: Array  # [b, h_kv, c] int64: H_t, in order of the text, itself the last
    out: Array  # [b, h_kv, g, e]
    weights: Array  # [b, h_kv, g, c]: α
    exact: Array  # [b, h_kv, g, e]
    weight: Array  # [b, h_kv, g]: p


@dataclass(frozen=True)
class Streamed:
    """T steps. b batch, h query heads, h_kv key heads, e width of a value."""

    out: Array  # [b, h, T, e]
    exact: Array  # [b, h, T, e]
    error: Array  # [b, h, T]: ‖out − exact‖ / ‖exact‖
    weight: Array  # [b, h, T]: p, the share of the exact weights that falls on what is held
    held: Array  # bool [b, h_kv, T, T]: which tokens, at each step
    weights: Array | None  # [b, h, T, T]: α, and 0 for what is not held; where they were asked for
    bytes: Array  # [T] int64: of all heads and batch rows
    full_bytes: Array  # [T] int64: of a full cache in the dtype of the storage


def multiply_adds(batch: int, heads: int, length: int, width: int) -> int:
    """Of a full cache and a policy that evicts nobody, which is the most that ``stream`` takes; ``width``: of
    a key and a value together."""
    return batch * heads * length * (length + 1) * width


def stream(
    q: Array,
    k: Array,
    v: Array,
    policy: Policy,
    storage: Storage | None = None,
    *,
    scale: float | None = None,
    rope: Rope | None = None,
    positions: str | None = None,
    keep_weights: bool = False,
) -> Streamed:
    """q [b, h, T, d], k [b, h_kv, T, d] and v [b, h_kv, T, e], as they come in; ``scale``: 1/√d unless given.

    ``rope`` turns queries and keys to their ``positions``: "text" or "cache", by default those of the
    policy. The full cache is always read by positions in the text. ValueError where shapes do not fit, or
    for more than ``MAX_MULTIPLY_ADDS``.
    """
    storage, positions = storage or Storage(), positions or policy.positions
    _check(q, k, v, positions)
    full, cache = _caches(q, k, v, storage, scale=scale, rope=rope, positions=positions)
    (batch, heads, length, _), kv_heads, e = q.shape, k.shape[1], v.shape[3]
    grouped = full.queries.shape[:3]
    out, exact = np.zeros((*grouped, length, e)), np.zeros((*grouped, length, e))
    weight, counts = np.zeros((*grouped, length)), np.zeros(length, dtype=np.int64)
    held = np.zeros((batch, kv_heads, length, length), dtype=np.bool_)
    weights = np.zeros((*grouped, length, length)) if keep_weights else None
    for t, step in enumerate(_steps(full, cache, policy)):
        out[..., t, :], exact[..., t, :], weight[..., t] = step.out, step.exact, step.weight
        np.put_along_axis(held[:, :, t], step.tokens, True, axis=2)
        counts[t] = step.tokens.shape[2]
        if weights is not None:
            np.put_along_axis(weights[..., t, :], step.tokens[:, :, None], step.weights, axis=3)
    out, exact = (x.reshape(batch, heads, length, e) for x in (out, exact))
    plain = replace(storage, kv_dtype=None)
    token_bytes = storage.token_bytes(k.shape[3], e) + policy.mass_bytes
    return Streamed(
        out=out,
        exact=exact,
        error=_relative(out, exact),
        weight=weight.reshape(batch, heads, length),
        held=held,
        weights=None if weights is None else weights.reshape(batch, heads, length, length),
        bytes=batch * kv_heads * token_bytes * counts + storage.shared_bytes,
        full_bytes=batch * kv_heads * plain.token_bytes(k.shape[3], e) * np.arange(1, length + 1),
    )


def _steps(full: _Cache, cache: _Cache, policy: Policy) -> Iterator[_Step]:
    """Token after token: in, others out, then attention."""
    batch, kv_heads, _, length, _ = full.queries.shape
    tokens, mass = np.zeros((batch, kv_heads, 0), dtype=np.int64), np.zeros((batch, kv_heads, 0))
    for t in range(length):
        tokens, mass = _with_another(tokens, t), _with_another(mass, 0.0)
        places = policy.survivors(mass)
        places = np.broadcast_to(places, (batch, kv_heads, places.shape[-1]))
        tokens, mass = (np.take_along_axis(x, places, axis=2) for x in (tokens, mass))
        out, weights = cache.attend(t, *cache.read(t, tokens))
        mass = mass + weights.sum(axis=2)
        exact, exact_weights = full.attend(t, *full.read(t))
        seen = np.take_along_axis(exact_weights, tokens[:, :, None], axis=3)
        yield _Step(tokens, out, weights, exact, seen.sum(axis=3))


@dataclass(frozen=True)
class _Cache:
    """Everything that ever comes in; what is read of it, a policy says."""

    queries: Array  # [b, h_kv, g, T, d]: the g query heads of each key head; scaled
    keys: Array  # [b, h_kv, T, d]
    values: Array  # [b, h_kv, T, e]
    turn: Turn | None = None  # to places in the cache; None: turned already, or never

    def read(self, t: int, tokens: Array | None = None) -> tuple[Array, Array]:
        """Keys and values of tokens [b, h_kv, c], or of all up to t."""
        if tokens is None or tokens.shape[2] == t + 1:
            keys, values = self.keys[:, :, : t + 1], self.values[:, :, : t + 1]
        else:
            keys, values = (
                np.take_along_axis(x, tokens[..., None], axis=2) for x in (self.keys, self.values)
            )
        return keys if self.turn is None else self.turn(keys, slice(keys.shape[2])), values

    def attend(self, t: int, keys: Array, values: Array) -> tuple[Array, Array]:
        """Output [b, h_kv, g, e] and weights [b, h_kv, g, c] of query t, the last of the c tokens."""
        queries, c = self.queries[:, :, :, t], keys.shape[2]
        if self.turn is not None:
            queries = self.turn(queries, slice(c - 1, c))
        weights = softmax(queries @ np.swapaxes(keys, -1, -2))
        return weights @ values, weights


def _caches(
    q: Array,
    k: Array,
    v: Array,
    storage: Storage,
    *,
    scale: float | None,
    rope: Rope | None,
    positions: str,
) -> tuple[_Cache, _Cache]:
    """The full one, by positions in the text, and the one that a policy reads."""
    batch, heads, length, d = q.shape
    kv_heads = k.shape[1]
    group = heads // kv_heads if kv_heads else 1
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    q *= 1.0 / math.sqrt(max(d, 1)) if scale is None else scale
    turn = _turn(rope, d, length)
    turned_q, turned_k = (x if turn is None else turn(x, slice(length)) for x in (q, k))
    shape = (batch, kv_heads, group, length, d)
    full = _Cache(turned_q.reshape(shape), turned_k, v)
    if positions == TEXT:
        return full, _Cache(full.queries, storage.kept(turned_k), storage.kept(v))
    return full, _Cache(q.reshape(shape), storage.kept(k), storage.kept(v), turn)


def _turn(rope: Rope | None, d: int, length: int) -> Turn | None:
    """The rotation to positions below ``length``, which a scaling may depend on."""
    if rope is None:
        return None
    cos, sin = cos_sin(rope, rotated_dim(rope, d), np.arange(length)[None], length)

    def turn(x: Array, places: slice) -> Array:
        return rotate(x, cos[:, places], sin[:, places], style=rope.style, dim_offset=rope.dim_offset)

    return turn


def _with_another(x: Array, value: float) -> Array:
    """[b, h, c] → [b, h, c + 1]."""
    return np.concatenate([x, np.full((*x.shape[:2], 1), value, dtype=x.dtype)], axis=2)


def _relative(out: Array, exact: Array) -> Array:
    """‖out − exact‖ / ‖exact‖ along the last axis; 0 where both are 0."""
    (error, most), (size, largest) = _norm(out - exact), _norm(exact)
    with np.errstate(divide="ignore", over="ignore"):
        relative = error / np.where(error == 0.0, 1.0, size) * (most / np.where(error == 0.0, 1.0, largest))
    return np.asarray(relative)


def _norm(x: Array) -> tuple[Array, Array]:
    """Two factors of ‖x‖ along the last axis, of which the second is the largest number: no square overflows,
    and none vanishes beside others."""
    largest = np.max(np.abs(x), axis=-1, initial=0.0)
    scaled = x / np.where(largest == 0.0, 1.0, largest)[..., None]
    return np.sqrt(np.square(scaled).sum(axis=-1)), largest


def _check(q: Array, k: Array, v: Array, positions: str) -> None:
    if positions not in (TEXT, CACHE):
        raise ValueError(f"positions must be {TEXT} or {CACHE}, not {positions!r}")
    if k.shape[0] != q.shape[0] or k.shape[2:] != q.shape[2:] or v.shape[:3] != k.shape[:3]:
        raise ValueError(
            f"a stream has one query, key and value for each token: q {list(q.shape)}, k {list(k.shape)} and "
            f"v {list(v.shape)} must agree in batch and length, k and v in heads, q and k in width"
        )
    if q.shape[1] != k.shape[1] and (k.shape[1] == 0 or q.shape[1] % k.shape[1]):
        raise ValueError(f"{q.shape[1]} query heads are no multiple of {k.shape[1]} key heads")
    batch, heads, length, d = q.shape
    needed = multiply_adds(batch, heads, length, d + v.shape[3])
    if needed > MAX_MULTIPLY_ADDS:
        raise ValueError(
            f"{needed:,} multiply-adds are more than {MAX_MULTIPLY_ADDS:,}: take fewer tokens "
            "or heads; half of the tokens are a quarter of it"
        )
