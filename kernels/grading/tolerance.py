"""How far a right answer may be off, number by number: what rounding does to a right computation.

For float32 and float64 it is the bound of ``kernels.bounds``, for the dtype of the answer, but never for a
more precise one than the problem's. Whoever turns with RoPE may compute the angles in float32 too: an angle p
is then off by 2a·p, which moves q·k by 6a·p·|scale|·√(Σ q_i² k_i²) at most, with all but certainty.

The engines keep scores and weights in float32 whatever the dtype. Students who compute *in* float16 or
bfloat16 round every intermediate result to it, with unit roundoff u, and a score of 30 is off by 30·u. Errors
of many roundings are not of one sign; with r, the root of the sum of their squared bounds, they exceed 3r
hardly ever (never, where nine or fewer are added). For the logit of key j,

    r_j² = u²·(t²·(c·scale²·Σ q_i² k_ij² + 2 s_j²)              q and k, given and scaled; the product
             + 2 softcapped_j² + t² s_j²                         where there is a softcap
             + alibi_j² + bias_j² + 2 masked_j²                  where something is added
             + (masked_j − max)² + 3),                           minus the maximum, exp, the division

with c = 4, or 8 with RoPE, and t the slope 1 − tanh² of the softcap, 1 without one. With g_j =
P_j·(e^(3 r_j) − 1)/3, for small r_j the same as P_j·r_j, a right computation in that dtype is off by at most
the above and

    out      3·√(Σ g_j² (v_j − out)²) + 3u·√(2 Σ P_j² v_j²) + 3u·|out|, twice the largest |v| at most
    lse      3·√(Σ g_j²) + 3u·(|lse| + 1)
    weights  3·√(g_j² + P_j²·Σ g²) + 3u·P_j
    scores   3u·√(c·scale²·Σ q_i² k_ij² + 2 s_j²); others 3 r_j

and gradients likewise: dP = dO·Vᵀ rounded, P and Δ off by as much as they are. What underflows in float16
counts four times, for exponentials, weights and what is made of them.

``reference_err`` is measured: the largest error of this very computation in the dtype of the answer.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import replace

import numpy as np

from kernels.arrays import Array
from kernels.bounds import UNIT_ROUNDOFF, Bounds
from kernels.engines.reference import Head
from kernels.grading.model import Tolerance, coarser
from kernels.grading.pipeline import (
    PRECISIONS,
    Results,
    Setting,
    added,
    as_answers,
    attend,
    by_key_head,
    by_query_head,
    distance,
)
from kernels.operands import rope_angles
from kernels.positions import key_positions
from kernels.spec.results import GRADIENTS

TIMES = 3.0  # the root of the sum of squares


def held_to(answer: str, problem: str, least: str | None) -> str:
    """The dtype whose rounding an answer may show: its own, the problem's where that is less precise, and
    none less precise than the problem demands. Of integers and booleans, the problem's."""
    dtype = coarser(answer, problem) if answer in UNIT_ROUNDOFF else problem
    if least is not None and coarser(dtype, least) != least:
        return least
    return dtype


def allowed_errors(
    setting: Setting, results: Results, dtype: str, asked: Collection[str], tolerance: Tolerance | None = None
) -> dict[str, Array]:
    """How far each number of each answer may be off, for answers held to ``dtype``; ``results`` are those of
    ``attend`` in float64 (with gradients where they are asked for). Shaped as the answer, or to broadcast."""
    if tolerance is not None and tolerance.policy == "allclose":
        return _close(as_answers(setting, results), dtype, asked, tolerance, setting.spec.dtype)
    found = _Rounding(setting, results, dtype, asked).found()
    if tolerance is not None and dtype in tolerance.per_dtype:
        close = _close(as_answers(setting, results), dtype, asked, tolerance, setting.spec.dtype)
        found = {name: np.maximum(found[name], close[name]) for name in found}
    return found


def _close(
    expected: Mapping[str, Array], dtype: str, asked: Collection[str], tolerance: Tolerance, own: str
) -> dict[str, Array]:
    """atol + rtol·|expected|; of a dtype that the author does not name, those of the problem's."""
    atol, rtol = tolerance.of(dtype, own)
    found = {}
    for name in asked:
        if name == "mask":
            continue
        sizes = np.abs(expected[name])
        found[name] = atol + rtol * np.where(np.isfinite(sizes), sizes, 0.0)
    return found


def reference_errors(
    setting: Setting, results: Mapping[str, Array], dtype: str, asked: Collection[str]
) -> dict[str, Array]:
    """The largest error [students] of the right computation in ``dtype`` (out and gradients rounded to it),
    by answer."""
    gradients = bool(GRADIENTS.keys() & set(asked))
    if dtype == "float64":
        return {name: np.zeros(setting.students) for name in asked}
    with np.errstate(over="ignore", invalid="ignore"):
        computed = as_answers(setting, attend(setting, PRECISIONS[dtype], gradients=gradients))
        found = {}
        for name in asked:
            if name == "mask":
                found[name] = np.zeros(setting.students)
                continue
            apart = np.abs(computed[name] - results[name])
            apart = np.where(np.isnan(apart), 0.0, apart)  # −inf that is right
            found[name] = apart.reshape(len(apart), -1).max(1)
    return found


class _Rounding(Bounds):
    """``kernels.bounds`` on many heads, with what students round beyond what kernels do."""

    def __init__(self, setting: Setting, results: Results, dtype: str, asked: Collection[str]) -> None:
        self.asked = [name for name in asked if name != "mask"]
        returns = tuple(name for name in self.asked if name not in GRADIENTS)
        wants_gradients = bool(GRADIENTS.keys() & set(asked))
        self.upstream = setting.dout if wants_gradients else None
        super().__init__(replace(setting.spec, dtype=dtype, returns=returns), setting.given, None)
        if self.upstream is not None:
            self.largest["weights"] = 0.0
        self.setting, self.results = setting, results
        self.is_low = self.unit > UNIT_ROUNDOFF["float32"]
        given = setting.given
        slopes = given.slopes
        self.head = Head(
            b=0,
            h=0,
            kv=0,
            q=given.q,
            k=by_query_head(given.k, setting),
            v=by_query_head(given.v, setting),
            alibi=0.0 if slopes is None else slopes.astype(np.float64)[:, :, None, None] * distance(given),
            bias=0.0 if given.bias is None else given.bias,
            allowed=True,
            sink=-math.inf if given.sinks is None else given.sinks.astype(np.float64)[:, None],  # type: ignore[arg-type]
            results=results,
        )

    def logits(self, head: Head) -> tuple[Array, Array]:
        """With angles that were computed in float32."""
        score, logit = super().logits(head)
        if self.rotated and self.given.scale:
            angles = 6 * self.kept * self._furthest() * abs(self.given.scale) * self._products()
            score, logit = score + angles, logit + angles
        return score, logit

    def _furthest(self) -> float:
        """The largest position that turns q or k."""
        rope = self.spec.attention.rope
        positions = [self.given.q_positions, self.given.kv_positions, key_positions(self.spec)]
        if rope is not None and rope.positions is not None:
            positions.append(np.array(rope.positions))
        return 1.0 + max(float(np.abs(x).max(initial=0)) for x in positions)

    def _products(self) -> Array:
        """√(Σ q_i² k_ij²): [students, b, h, n, m]."""
        squares = np.square(self.head.q) @ np.swapaxes(np.square(self.head.k), -1, -2)
        return np.asarray(np.sqrt(squares))

    def found(self) -> dict[str, Array]:  # type: ignore[override]
        """By answer."""
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            found = self.of(self.head, self.upstream)
            if self.is_low:
                for name, more in self._low().items():
                    if name in found:
                        found[name] = found[name] + more
        for name in GRADIENTS.keys() & set(self.asked):
            found[name] = self._of_input(name, found[name])
        return {name: np.nan_to_num(found[name], nan=np.inf, posinf=np.inf) for name in self.asked}

    def _of_input(self, name: str, bound: Array) -> Array:
        """That of a gradient of an input from that of each query head."""
        setting = self.setting
        whole = bound if name == "dq" else by_key_head(bound, setting)
        if name != "dq" and "past_key" in setting.arrays:
            whole = whole[..., setting.arrays["past_key"].shape[-2] :, :]
        if name != "dv" and self.rotated:
            # The two elements of a pair are mixed, by angles that may be off.
            arrays = {each: array[0] for each, array in setting.arrays.items()}
            cos, sin = rope_angles(self.spec, arrays)[GRADIENTS[name]]
            factor = math.sqrt(2.0) * float(np.sqrt(cos**2 + sin**2).max(initial=1.0))
            values = (
                np.abs(self.results[name])
                if name == "dq"
                else by_key_head(np.abs(self.results[name]), setting)
            )
            if name != "dq" and "past_key" in setting.arrays:
                values = values[..., setting.arrays["past_key"].shape[-2] :, :]
            whole = factor * whole.max(-1, keepdims=True)
            whole = whole + 4 * self.kept * self._furthest() * values.max(-1, keepdims=True)
        return whole

    # -- float16 and bfloat16 ----------------------------------------------------------------------------

    def _low(self) -> dict[str, Array]:
        """What rounding every intermediate result adds."""
        u, results = self.unit, self.results
        weights, out, v = results["weights"], results["out"], self.head.v
        products, roots = self._roots()
        g = weights * np.expm1(np.minimum(TIMES * roots, 60.0)) / TIMES
        g = np.minimum(g, 1.0)
        squares = np.square(g)
        total = squares.sum(-1, keepdims=True)
        own = {"scores": products, "softcapped_scores": roots, "masked_scores": roots}
        found = {name: TIMES * root for name, root in own.items() if name in self.asked}
        if "lse" in self.asked:
            found["lse"] = TIMES * np.sqrt(total[..., 0]) + TIMES * u * (_finite(results["lse"]) + 1.0)
        if "out" in self.asked:
            v2, sizes = np.square(v), np.abs(v)
            apart = squares @ v2 - 2 * out * (squares @ v) + np.square(out) * total
            mean = np.square(weights) @ v2
            bound = TIMES * np.sqrt(np.maximum(apart, 0.0))
            bound += TIMES * u * (np.sqrt(2 * mean) + np.abs(out))
            bound += 4 * self.lost * sizes.sum(-2, keepdims=True)
            found["out"] = np.minimum(bound, 2 * sizes.max((-2, -1), initial=0.0, keepdims=True))
        if "weights" in self.asked or self.upstream is not None:
            moved = TIMES * np.sqrt(squares + np.square(weights) * total) + TIMES * u * weights
            found["weights"] = np.minimum(moved + 4 * self.lost, 1.0)
        if self.upstream is not None:
            found |= self._low_gradients(found["weights"], products)
        return found

    def _roots(self) -> tuple[Array, Array]:
        """The root of the sum of squares of a score, and r_j of a logit."""
        u, results, given = self.unit, self.results, self.given
        scores, masked = results["scores"], results["masked_scores"]
        count = 8.0 if self.rotated else 4.0
        products = count * np.square(given.scale * self._products()) + 2 * np.square(scores)
        squares = products
        if given.softcap:
            capped = results["softcapped_scores"]
            slope = np.square(1.0 - np.square(capped / given.softcap))
            squares = slope * (products + np.square(scores)) + 2 * np.square(capped)
        sizes = _finite(masked)
        more = added(self.setting)
        if more is not None:
            squares = squares + np.square(more) + 2 * np.square(sizes)
        largest = masked.max(-1, keepdims=True, initial=-np.inf)
        squares = squares + np.square(_finite(masked - _signed(largest))) + 3.0
        return u * np.sqrt(products), u * np.sqrt(squares)

    def _low_gradients(self, moved: Array, products: Array) -> dict[str, Array]:
        u, results, given = self.unit, self.results, self.given
        dout, weights, k, q = self.upstream, results["weights"], self.head.k, self.head.q
        if dout is None:
            return {}
        dweights = dout @ np.swapaxes(self.head.v, -1, -2)
        delta = (weights * dweights).sum(-1, keepdims=True)
        apart = np.abs(dweights - delta)
        lost = TIMES * np.sqrt(
            (np.square(moved * apart) + np.square(u * weights * dweights)).sum(-1, keepdims=True)
        ) + u * np.abs(delta)
        error = moved * apart + TIMES * u * weights * (np.abs(dweights) + apart) + weights * lost
        if given.softcap:
            slope = 1.0 - np.square(results["softcapped_scores"] / given.softcap)
            bent = np.minimum(1.0, TIMES * (products / given.softcap + 2 * u))
            error = error * slope + np.abs(results["dmasked"]) * bent
        error = error + u * np.abs(results["dscores"])
        scale = abs(given.scale)
        sums = {
            "dq": scale * (error @ np.abs(k)),
            "dk": scale * (np.swapaxes(error, -1, -2) @ np.abs(q)),
            "dv": np.swapaxes(moved, -1, -2) @ np.abs(dout),
        }
        return {name: total + TIMES * u * np.abs(results[name]) for name, total in sums.items()}


def _finite(array: Array) -> Array:
    """|array|, with 0 in the place of −inf."""
    return np.where(np.isinf(array), 0.0, np.abs(array))


def _signed(array: Array) -> Array:
    """With 0 in the place of −inf."""
    return np.where(np.isneginf(array), 0.0, array)
