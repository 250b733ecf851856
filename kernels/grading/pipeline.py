"""One computation of everything that can be graded, for many students at once.

The equations are those of ``kernels.engines.reference``, which computes one head at a time; here arrays have
an axis of students in front, ``[students, batch, heads, len, dim]``, and what is the same for all of them
(positions, a window, a pattern) has none. A :class:`Setting` is what is computed on, and can be changed: most
mistakes are the right computation on another setting (``kernels.grading.hypotheses``).

``attend`` also computes in float32, or with every intermediate result rounded to float16 or bfloat16, to say
how far a right computation in that precision is off.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kernels.arrays import Array, round_to_dtype
from kernels.operands import Operands, operands, rope_angles
from kernels.patterns import pattern_mask
from kernels.rope import rotate
from kernels.spec.model import Rope, RunSpec
from kernels.spec.results import GRADIENTS

Results = dict[str, Array]  # by the names of ``kernels.spec.results``, and "mask"


# -- precision -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Precision:
    """What is computed in, and what becomes of every intermediate result."""

    work: type[np.float32 | np.float64]
    rounded: Callable[[Array], Array]


def _kept(array: Array) -> Array:
    return array


def _rounding(dtype: str) -> Callable[[Array], Array]:
    return lambda array: round_to_dtype(array, dtype).astype(np.float32, copy=False)


PRECISIONS = {
    "float64": Precision(np.float64, _kept),
    "float32": Precision(np.float32, _kept),
    "float16": Precision(np.float32, _rounding("float16")),
    "bfloat16": Precision(np.float32, _rounding("bfloat16")),
}
DOUBLE = PRECISIONS["float64"]


# -- what is computed on -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Setting:
    """The operands of a case, and what they were made of. q, k and v in ``given`` have students in front."""

    spec: RunSpec  # canonical: every axis there, no pages
    arrays: Mapping[str, Array]  # [students or 1, …]
    given: Operands
    dout: Array | None = None  # [students, b, h, n, e] float64
    attn_mask: Array | None = None  # bool, broadcasts to [students, b, h, n, m]; in ``given`` are none
    pattern: Array | None = None  # bool [b or 1, 1, n, m]
    rows: tuple[int, ...] | None = None  # the queries that are left, None: all
    kv_of: tuple[int, ...] | None = None  # the key head of each query head; None: consecutive groups

    def changed(self, **fields: Any) -> Setting:
        """With other operands."""
        return replace(self, given=replace(self.given, **fields))

    @property
    def students(self) -> int:
        """How many."""
        return max(len(self.given.q), len(self.given.k))

    def row_numbers(self) -> Array:
        """[n]: which queries those that are left are."""
        return np.arange(self.given.q.shape[-2]) if self.rows is None else np.array(self.rows, dtype=np.int64)

    def real_queries(self) -> Array | None:
        """[b, n]: which queries are within ``q_lens``; None: all."""
        lens = self.given.q_lens
        return None if lens is None else self.row_numbers() < lens[:, None]

    def real_keys(self) -> Array | None:
        """[b, m]: which keys are within ``kv_lens``; None: all."""
        lens = self.given.kv_lens
        return None if lens is None else np.arange(self.given.k.shape[-2]) < lens[:, None]

    def of(self, students: Array) -> Setting:
        """Only these students."""

        def taken(array: Array | None, rank: int) -> Array | None:
            if array is None or array.ndim < rank or len(array) == 1:
                return array
            return array[students]

        given = self.given
        kept: dict[str, Any] = {name: taken(getattr(given, name), 5) for name in ("q", "k", "v", "bias")}
        return replace(
            self,
            arrays={name: x if len(x) == 1 else x[students] for name, x in self.arrays.items()},
            given=replace(given, **kept),
            dout=taken(self.dout, 5),
            attn_mask=taken(self.attn_mask, 5),
        )

    def at(self, rows: tuple[int, ...]) -> Setting:
        """Only these queries, of a setting that has all."""
        index, given = list(rows), self.given
        n = given.q.shape[-2]

        def cut(array: Array | None) -> Array | None:
            return array if array is None or array.shape[-2] != n else array[..., index, :]

        return replace(
            self,
            given=replace(
                given,
                q=given.q[..., index, :],
                q_positions=given.q_positions[:, index],
                bias=cut(given.bias),
            ),
            attn_mask=cut(self.attn_mask),
            pattern=cut(self.pattern),
            dout=None if self.dout is None else self.dout[..., index, :],
            rows=rows,
        )

    def turned(self, rope: Rope | None) -> dict[str, Array]:
        """q and k as another RoPE turns them, or none."""
        spec = replace(self.spec, attention=replace(self.spec.attention, rope=rope))
        q, k = _queries_and_keys(spec, self.arrays, self.given.q_lens, self.given.kv_lens)
        return {"q": q if self.rows is None else q[..., list(self.rows), :], "k": k}


def resolve(spec: RunSpec, arrays: Mapping[str, Array]) -> Setting:
    """``spec`` canonical; ``arrays`` [students or 1, …], rounded; lengths are those of all students."""
    one = {name: array[0] for name, array in arrays.items()}
    shared = operands(spec, one, dtype=np.float64)
    q_lens, kv_lens = shared.q_lens, shared.kv_lens
    q, k = _queries_and_keys(spec, arrays, q_lens, kv_lens)
    v = _within(_with_past("past_value", arrays["v"].astype(np.float64), arrays), kv_lens)
    dout = _within(arrays["dout"].astype(np.float64), q_lens) if "dout" in arrays else None
    attn_mask, bias = _masks(arrays.get("attn_mask"))
    given = replace(shared, q=q, k=k, v=v, mask=None, bias=bias)
    return Setting(spec, arrays, given, dout, attn_mask, pattern_mask(spec, q_lens, kv_lens))


def _queries_and_keys(
    spec: RunSpec, arrays: Mapping[str, Array], q_lens: Array | None, kv_lens: Array | None
) -> tuple[Array, Array]:
    """As operands: turned, the past in front, zeros beyond the lengths."""
    q, k = rotated(spec, arrays)
    return _within(q, q_lens), _within(_with_past("past_key", k, arrays), kv_lens)


def rotated(spec: RunSpec, arrays: Mapping[str, Array]) -> tuple[Array, Array]:
    """q and the fresh k of all students, float64, turned where the spec has RoPE."""
    q, k = (arrays[name].astype(np.float64) for name in ("q", "k"))
    rope = spec.attention.rope
    if rope is None:
        return q, k
    angles = rope_angles(spec, {name: array[0] for name, array in arrays.items()})
    with np.errstate(invalid="ignore", over="ignore"):  # what lies beyond the lengths may be anything
        return (
            rotate(q, *angles["q"], style=rope.style, dim_offset=rope.dim_offset),
            rotate(k, *angles["k"], style=rope.style, dim_offset=rope.dim_offset),
        )


def _with_past(name: str, fresh: Array, arrays: Mapping[str, Array]) -> Array:
    """Past and fresh tokens, where one of them may be the same for all students."""
    if name not in arrays:
        return fresh
    past = arrays[name].astype(np.float64)
    students = max(len(past), len(fresh))
    return np.concatenate([np.broadcast_to(x, (students, *x.shape[1:])) for x in (past, fresh)], axis=-2)


def _masks(attn_mask: Array | None) -> tuple[Array | None, Array | None]:
    """A boolean and a float mask, [students or 1, b or 1, h or 1, n or 1, m or 1]."""
    if attn_mask is None:
        return None, None
    full = attn_mask.reshape(len(attn_mask), *(1,) * (5 - attn_mask.ndim), *attn_mask.shape[1:])
    return (full, None) if full.dtype == np.bool_ else (None, full.astype(np.float64))


def _within(array: Array, lens: Array | None) -> Array:
    """[students, b, h, len, dim] with zeros from ``lens[b]`` on."""
    if lens is None:
        return array
    inside = np.arange(array.shape[-2]) < lens[:, None]
    return np.where(inside[:, None, :, None], array, 0.0)


# -- who sees what -------------------------------------------------------------------------------------------


def distance(given: Operands) -> Array:
    """[b or 1, 1, n, m]: key position − query position."""
    return given.kv_positions[:, None, None, :] - given.q_positions[:, None, :, None]


def allowed(setting: Setting) -> Array | None:
    """True where a query may see a key, by whatever says so; None: everywhere. Broadcasts to
    [students, b, h, n, m]."""
    given = setting.given
    found: list[Array] = [mask for mask in (setting.attn_mask, setting.pattern) if mask is not None]
    if given.left is not None or given.right is not None:
        apart = distance(given)
        if given.left is not None:
            found.append(apart >= -given.left)
        if given.right is not None:
            found.append(apart <= given.right)
    keys, queries = setting.real_keys(), setting.real_queries()
    if keys is not None:
        found.append(keys[:, None, None, :])
    if queries is not None:
        found.append(queries[:, None, :, None])
    if given.bias is not None and bool(np.isneginf(given.bias).any()):
        found.append(~np.isneginf(given.bias))
    if not found:
        return None
    seen = found[0]
    for other in found[1:]:
        seen = seen & other
    return np.asarray(seen)


def added(setting: Setting) -> Array | None:
    """What ALiBi and a float mask add to the logits, without its −inf; None: nothing."""
    given, total = setting.given, None
    if given.slopes is not None:
        total = given.slopes.astype(np.float64)[:, :, None, None] * distance(given)
    if given.bias is not None:
        bias = np.where(np.isneginf(given.bias), 0.0, given.bias)
        total = bias if total is None else total + bias
    return total


# -- the computation -----------------------------------------------------------------------------------------


def attend(setting: Setting, precision: Precision = DOUBLE, *, gradients: bool = False) -> Results:
    """Every result that can be asked for, those of gradients by query heads: "dq", "dk", "dv" are summed and
    turned back by ``as_answers``."""
    given, rounded = setting.given, precision.rounded
    q, k, v = (x.astype(precision.work, copy=False) for x in (given.q, given.k, given.v))
    scores = rounded(q_by_k(q, k, setting.kv_of))
    scores *= precision.work(given.scale)
    scores = rounded(scores)
    softcapped = capped(scores, given.softcap, rounded)
    masked = softcapped
    more, seen = added(setting), allowed(setting)
    if more is not None:
        masked = rounded(masked + rounded(more.astype(precision.work)))
    if seen is not None:
        masked = np.where(seen, masked, precision.work(-np.inf))
    weights, lse = softmax(setting, masked, rounded)
    results = {
        "scores": scores,
        "softcapped_scores": softcapped,
        "masked_scores": masked,
        "weights": weights,
        "lse": lse,
        "out": rounded(by_v(weights, v, setting.kv_of)),
    }
    if gradients and setting.dout is not None:
        results |= _gradients(setting, results, precision)
    return results


def q_by_k(q: Array, k: Array, kv_of: tuple[int, ...] | None) -> Array:
    """q·k of every query head with its key head: [students, b, h, n, m]."""
    students, (b, heads, n), m = max(len(q), len(k)), q.shape[1:4], k.shape[-2]
    if kv_of is not None:
        return np.asarray(q @ np.swapaxes(k[:, :, list(kv_of)], -1, -2))
    kv_heads = k.shape[2]
    grouped = q.reshape(len(q), b, kv_heads, heads // max(kv_heads, 1) * n, q.shape[-1])
    return np.asarray((grouped @ np.swapaxes(k, -1, -2)).reshape(students, b, heads, n, m))


def by_v(weights: Array, v: Array, kv_of: tuple[int, ...] | None) -> Array:
    """weights·v of every query head with its key head: [students, b, h, n, e]."""
    students, (b, heads, n, m) = max(len(weights), len(v)), weights.shape[1:]
    if kv_of is not None:
        return np.asarray(weights @ v[:, :, list(kv_of)])
    kv_heads = v.shape[2]
    grouped = weights.reshape(len(weights), b, kv_heads, heads // max(kv_heads, 1) * n, m)
    return np.asarray((grouped @ v).reshape(students, b, heads, n, v.shape[-1]))


def capped(scores: Array, softcap: float, rounded: Callable[[Array], Array] = _kept) -> Array:
    """softcap · tanh(scores / softcap); the scores themselves where there is none."""
    if not softcap:
        return scores
    cap = scores.dtype.type(softcap)
    return rounded(cap * rounded(np.tanh(rounded(scores / cap))))


def softmax(
    setting: Setting, masked: Array, rounded: Callable[[Array], Array] = _kept
) -> tuple[Array, Array]:
    """Weights and LSE along the keys, sinks in the denominator. A row that sees nothing: 0, and −inf or the
    logit of its sink."""
    sinks = setting.given.sinks
    largest = masked.max(-1, initial=-np.inf)
    if sinks is not None:
        sinks = sinks.astype(masked.dtype)[:, None]
        largest = np.maximum(largest, sinks)
    finite = np.where(np.isneginf(largest), masked.dtype.type(0), largest)
    exponentials = rounded(masked - finite[..., None])
    np.exp(exponentials, out=exponentials)
    exponentials = rounded(exponentials)
    total = rounded(exponentials.sum(-1))
    if sinks is not None:
        total = total + np.exp(sinks - finite)
    empty = total == 0.0
    with np.errstate(divide="ignore"):
        lse = rounded(np.where(empty, -np.inf, rounded(np.log(total)) + finite).astype(masked.dtype))
    queries = setting.real_queries()
    if queries is not None:
        lse = np.where(queries[:, None], lse, masked.dtype.type(-np.inf))
    total = np.where(empty, masked.dtype.type(1), total)
    exponentials /= total[..., None]
    return rounded(exponentials), lse


def _gradients(setting: Setting, results: Results, precision: Precision) -> Results:
    """By query heads: dq, dk [students, b, h, m, d] and dv; dmasked and dscores [students, b, h, n, m]."""
    given, rounded, dout = setting.given, precision.rounded, setting.dout
    if dout is None:
        return {}
    dout, weights = dout.astype(precision.work, copy=False), results["weights"]
    k, v = (by_query_head(x, setting).astype(precision.work, copy=False) for x in (given.k, given.v))
    q = given.q.astype(precision.work, copy=False)
    dweights = rounded(dout @ np.swapaxes(v, -1, -2))
    delta = rounded((weights * dweights).sum(-1, keepdims=True))
    dmasked = rounded(weights * rounded(dweights - delta))
    dscores = dmasked
    if given.softcap:
        tanh = results["softcapped_scores"] / precision.work(given.softcap)
        dscores = rounded(dmasked * rounded(1.0 - np.square(tanh)))
    scale = precision.work(given.scale)
    return {
        "dq": rounded(scale * rounded(dscores @ k)),
        "dk": rounded(scale * rounded(np.swapaxes(dscores, -1, -2) @ q)),
        "dv": rounded(np.swapaxes(weights, -1, -2) @ dout),
        "dmasked": dmasked,
        "dscores": dscores,
    }


def by_query_head(array: Array, setting: Setting) -> Array:
    """k or v [students, b, h_kv, m, ·] with a head for each query head."""
    group = setting.given.group
    if setting.kv_of is not None:
        return np.asarray(array[:, :, list(setting.kv_of)])
    return array if group == 1 else np.repeat(array, group, axis=2)


def by_key_head(array: Array, setting: Setting) -> Array:
    """What each query head adds to its key head, [students, b, h, m, ·] → [students, b, h_kv, m, ·]."""
    kv_heads = setting.given.k.shape[2]
    if setting.kv_of is not None:
        total = np.zeros((*array.shape[:2], kv_heads, *array.shape[3:]), dtype=array.dtype)
        for head, kv in enumerate(setting.kv_of):
            total[:, :, kv] += array[:, :, head]
        return total
    students, b, heads, m, width = array.shape
    return np.asarray(array.reshape(students, b, kv_heads, heads // max(kv_heads, 1), m, width).sum(3))


def as_answers(setting: Setting, results: Mapping[str, Array]) -> Results:
    """As they are handed in: gradients of the inputs in the place of those of the operands, and "mask"."""
    found = {name: array for name, array in results.items() if name not in GRADIENTS}
    seen = allowed(setting)
    shape = results["masked_scores"].shape
    found["mask"] = np.broadcast_to(True if seen is None else seen, shape)
    for name in GRADIENTS.keys() & results.keys():
        whole = results[name] if name == "dq" else by_key_head(results[name], setting)
        found[name] = input_gradient(setting, GRADIENTS[name], whole)
    return found


def input_gradient(setting: Setting, name: str, gradient: Array) -> Array:
    """The gradient of the input q, k or v: the fresh part alone, turned back where it was rotated."""
    spec, arrays = setting.spec, setting.arrays
    if name != "q" and "past_key" in arrays:
        gradient = gradient[..., arrays["past_key"].shape[-2] :, :]
    rope = spec.attention.rope
    if name == "v" or rope is None:
        return gradient
    cos, sin = rope_angles(spec, {each: array[0] for each, array in arrays.items()})[name]
    if name == "q" and setting.rows is not None:
        cos, sin = cos[:, list(setting.rows)], sin[:, list(setting.rows)]
    return rotate(gradient, cos, -sin, style=rope.style, dim_offset=rope.dim_offset)
