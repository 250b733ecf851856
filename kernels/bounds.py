"""How far rounding alone may take a result from the float64 reference.

The bound is the largest, over the elements of a result, of what follows; it holds for every correct kernel on
these inputs, whatever the order of its sums, and is no fit to ours. u is the unit roundoff of the dtype (2⁻²⁴
float32, 2⁻¹¹ float16, 2⁻⁸ bfloat16, 2⁻⁵³ float64), a that of what sums are kept in (2⁻²⁴; 2⁻⁵³ for float64).
A sum of n products errs by λ√n·a times the sum of their sizes, as rounding errors do that are not all of one
sign; λ = 4 is exceeded with a probability below 10⁻³ (Higham and Mary 2019, *A new approach to probabilistic
rounding error analysis*). P are the weights of a row, Σ runs over its keys j, |·| is taken of each element.

* A logit s_j is wrong by at most
      ε_j = a·(2 + λ√d)·|scale|·|q|·|k_j|                      the product and its scaling
          + 2(u + 4a)·|scale|·‖q‖·‖k_j‖                        RoPE: rotated q and k are rounded
          + 16a·|softcapped_j|                                 softcap: division, tanh, multiplication
          + 3a·(|slope·distance_j| + |bias_j| + |s_j|)         ALiBi and an additive mask, where there are any
          + 3a·(|s_j − lse| + ln m) + 4a                       minus the maximum, and the exponential
  and by what vanishes below the smallest normal number τ of float32, be it the scale, any of the d products,
  or what comes of them: τ·(|q|·|k_j| + d·|scale| + 1), and by another τ·(softcap + 1) where there is one. Its
  score, scale·q·k_j, is wrong by ς_j at most, the first two lines, the first of these, and what MLA and a
  quantised cache add below.
* A weight is multiplied by e^δ, |δ| ≤ ε_j, before the row is divided by its sum. With ρ_j = e^ε_j − 1,
      out′ − out = Σ P_j r_j (v_j − out) / (1 + Σ P_j r_j),   |r_j| ≤ ρ_j,
  and by Cauchy and Schwarz the numerator is at most R·σ: R = √(Σ P_j ρ_j²) and σ² = Σ P_j v_j² − out², the
  variance of the values under the weights. By Jensen's inequality the denominator is at least e^−R. A sink is
  one more key, whose value is 0. So
      |out′ − out| ≤ e^R·R·σ + (2λ√m·a + u)·√(Σ P_j v_j²) + (u + 2a)·|out| + underflow,
  the last three for the sums, the rounding of weights and of the result to the dtype (Σ P_j|v_j| is at most
  that root); never more than twice the largest |v|, since out is a mean. Underflow is what a weight or a
  result loses below the range of the dtype: Σ|v_j| + 1 times 2⁻²⁵ for float16 (half its smallest number), τ
  for the others.
* MLA makes keys k′ = c·W and values from latents c, or moves the products to either side: q̃ = q·Wᵀ before,
  z = Σ P_j c_j after. What is made is a sum and is rounded, each element by itself: λ times the root of their
  squared errors bounds what a product with them loses, ‖x ∘ y‖ = √(Σ x_i² y_i²). With l, d and r the widths
  of c, k′ and the rotated parts, a score errs by a further |scale| times the larger of
      λ(u·‖q̃ ∘ c_j‖ + a√d·‖|q|·|W|ᵀ ∘ c_j‖) + a(2 + λ√(l+r))·(|q̃|·|c_j| + |q_rope|·|k_rope|)      absorbed
      λ(u·‖q ∘ k′_j‖ + a√l·‖q ∘ |c_j|·|W|‖)                                                          expanded
  and out by the larger of
      λu·‖z ∘ W‖ + 2aλ√m·(Σ P_j|c_j|)·|W| + a(4 + λ√l)·|z|·|W|                                       absorbed
      u·Σ P_j|v_j| + a(4 + λ√l)·(Σ P_j|c_j|)·|W|                                                     expanded
  each with its underflow.
* A quantised cache holds k′ and v′ with |k′ − k| ≤ κ and |v′ − v| ≤ ν, element by element
  (``quantise.element_errors``). A score errs by a further |scale|·|q|·κ_j, and the products of rounding are
  those of |k| + κ and |v| + ν. Here all errors may be of one sign: data that repeat are rounded alike. Out
  moves by Σ P′_j (v′_j − v_j), P′ being the weights after all that moves them (π below), which is at most
      min(Σ P_j(1 + π_j)·ν_j, max ν),
  and by u·Σ P_j|v′_j| where decoded values are rounded to the dtype.
* π_j = e^R·(ρ_j + R) + 2λ√m·a + 4a bounds the relative error of a weight. The LSE moves by ln(1 + Σ P_j r_j),
  upwards by Σ P_j ρ_j at most and downwards, by Jensen's inequality, by Σ P_j ε_j. Neither is more than R, so
  that with its own rounding it errs by η = R + 2λ√m·a + 4a·(1 + |lse|). For gradients torch's fused kernels
  make a weight from an LSE in float32, exp(s_j − lse), whose exponent errs by both; it may exceed 1. So for
  engine sdpa π_j is e^(ε_j + η) − 1 there, infinite where that overflows.
* Gradients, with dP = dO·Vᵀ, Δ = Σ P_j dP_j and dmasked = P ∘ (dP − Δ):
      dmasked errs by  E = |dmasked|·(π + u + 4a) + P ∘ (θ + D),
          θ = a·(2 + λ√e)·|dO|·|V|ᵀ,    D = |dO|·(bound of out) + Σ P_j θ_j     (Δ from dO·out or from P·dP)
      dscores by       E·(1 − t²) + |dmasked|·min(1, 2(ς/c + 16a)),             t = tanh(scores / c)
      dQ by            |scale|·(E + |dscores|·(λ√m·a + u))·|K| + (u + 2a)·|dQ|, dK likewise with n
      dV by            (P ∘ (π + u + λ√n·a))ᵀ·|dO| + (u + 2a)·|dV|
  each with its underflow. n counts the queries of all heads that share a key head. A dQ or dK that RoPE
  turns back is rounded twice, 2u in the place of u, and the two elements of a pair are mixed: √2 times the
  attention factor. A page that r rows read: r times.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from kernels.arrays import Array
from kernels.engines.reference import Head
from kernels.limits import SMALLEST_NORMAL
from kernels.operands import Latents, Operands, rope_angles, zero_beyond
from kernels.quantise import element_errors
from kernels.spec.model import RunSpec
from kernels.spec.results import MATRICES, PRESENT

UNIT_ROUNDOFF = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
LAMBDA = 4.0
TAU = SMALLEST_NORMAL


def vanishing(dtype: str) -> float:
    """How much rounding to ``dtype`` takes of what is below its range: half the smallest number of float16;
    of the others the smallest normal one, as a processor may take what is below for 0."""
    return {"float16": 2.0**-25, "float64": 2.0**-1022}.get(dtype, TAU)


class Bounds:
    """How far rounding may take each result of a spec; ``observe`` every head of the reference, then ask
    ``found``."""

    def __init__(self, spec: RunSpec, given: Operands, dout: Array | None) -> None:
        self.spec, self.given, self.dout = spec, given, dout
        self.unit = UNIT_ROUNDOFF[spec.dtype]
        self.kept = min(self.unit, UNIT_ROUNDOFF["float32"])
        self.tiny = TAU if spec.dtype != "float64" else 2.0**-1022
        self.lost = vanishing(spec.dtype)
        self.rotated = spec.attention.rope is not None
        # [b, h_kv, m, d] and [b, h_kv, m, e]: how far the cache is from k and from v
        self.off: tuple[Array, Array] | None = None
        kv_dtype, kv_scale = spec.options.kv_dtype, spec.options.kv_scale
        if kv_dtype is not None:
            k_off, v_off = (element_errors(x, kv_dtype, kv_scale, given.kv_lens) for x in (given.k, given.v))
            self.off = (k_off, v_off)
        asked = {"out", *spec.returns} | ({"dq"} if dout is not None else set())
        self.largest = {name: 0.0 for name in ("out", "lse", *MATRICES, "dq") if name in asked}
        # Summed over the query heads that share a key head.
        self.sums: dict[str, Array] = {}
        if dout is not None:
            self.sums = {"dk": np.zeros(given.k.shape), "dv": np.zeros(given.v.shape)}

    def observe(self, head: Head) -> None:
        """Take one head of the reference into account."""
        n = len(head.q)
        found = self.of(head, None if self.dout is None else self.dout[head.b, head.h, :n])
        for name in self.largest:
            self.largest[name] = max(self.largest[name], most(found[name]))
        for name, total in self.sums.items():
            total[head.b, head.kv, : len(head.k)] += found[name]

    def of(self, head: Head, dout: Array | None = None) -> dict[str, Array]:
        """The bound of each number of a head, by result; with ``dout`` [n, e] of its gradients, those of dk
        and dv before the heads that share a key head are added. Of softmax alone (no latents, no quantised
        cache) also where all arrays of ``head`` and ``dout`` have the same axes in front: many heads."""
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            score, logit = self.logits(head)
            found = self._forward(head, score, logit)
            return found if dout is None else found | self._backward(head, score, found, dout)

    def logits(self, head: Head) -> tuple[Array, Array]:
        """Bounds [n, m] of the errors of scores and of logits, ε."""
        given, a, u = self.given, self.kept, self.unit
        d, m = head.q.shape[-1], head.k.shape[-2]
        scale = abs(given.scale)
        if scale == 0.0:
            score = np.zeros((*head.q.shape[:-1], m))
        else:
            factor = scale * a * (2 + LAMBDA * math.sqrt(d)) + self.tiny
            score = (factor * np.abs(head.q)) @ _turned(np.abs(head.k)) + self.tiny * (d * scale + 1)
            if self.off is not None:
                k_off = self.off[0][head.b, head.kv, :m]
                # One more product, with the scale of the key.
                score += (scale * a * np.abs(head.q)) @ np.abs(head.k).T
                score += ((scale + 2 * factor) * np.abs(head.q)) @ k_off.T
        if self.rotated and scale != 0.0:
            queries, keys = (np.sqrt(np.einsum("...ij,...ij->...i", x, x)) for x in (head.q, head.k))
            queries, keys = queries[..., :, None], keys[..., None, :]
            score += 2 * (u + 4 * a) * scale * (queries * keys)
            score += scale * self.lost * math.sqrt(d) * (queries + keys)
        if given.latents is not None:
            score += scale * self._latent_scores(head, given.latents)
        masked = head.results["masked_scores"]
        logit = _sizes(masked - _finite(head.results["lse"])[..., None])
        logit *= 3 * a
        logit += score
        logit += 3 * a * math.log(m + 1) + 4 * a
        if given.softcap:
            logit += 16 * a * np.abs(head.results["softcapped_scores"]) + self.tiny * (given.softcap + 1)
        added = [_sizes(x) for x in (head.alibi, head.bias) if isinstance(x, np.ndarray)]
        for sizes in [*added, _sizes(masked)] if added else []:
            logit += 3 * a * sizes
        return score, logit

    def _forward(self, head: Head, score: Array, logit: Array) -> dict[str, Array]:
        """Bounds of whatever was asked for but the gradients."""
        a, u, out, weights = self.kept, self.unit, head.results["out"], head.results["weights"]
        lse, m = _sizes(head.results["lse"]), head.k.shape[-2]
        spread, grown = self._moved(head, logit)
        growth = np.exp(np.minimum(spread, 600.0))
        sums = 2 * LAMBDA * math.sqrt(m) * a + 4 * a
        # Σ P|v| is at most its root mean square.
        square = weights @ np.square(head.v)
        # The variance is a difference: what its own rounding leaves of it (in float64) is added.
        sigma = np.sqrt(np.maximum(square - np.square(out), 0.0) + 2.0**-45 * square)
        bound = (growth * spread)[..., None] * sigma
        bound += (sums + u) * np.sqrt(square) + (u + 2 * a) * np.abs(out)
        sizes = np.abs(head.v)
        bound += self.lost * (sizes.sum(-2, keepdims=True) + 1.0)
        # Out is a mean of values, and so never further away than twice the largest; nor is a NaN a bound.
        bound = np.fmin(bound, 2 * sizes.max((-2, -1), initial=0.0, keepdims=True) + self.lost)
        if self.given.latents is not None:
            bound = bound + self._latent_values(head, self.given.latents)
        moved = None
        if "weights" in self.largest or self.dout is not None or self.off is not None:
            moved = growth[..., None] * (grown + weights * spread[..., None]) + weights * sums
            moved = np.minimum(moved, 1.0) + self.tiny
        if self.off is not None and moved is not None:
            v_off = self.off[1][head.b, head.kv, :m]
            decoded = np.minimum((weights + moved) @ v_off, v_off.max(0, initial=0.0))
            bound = bound + (1 + sums + 2 * u) * decoded + u * (weights @ np.abs(head.v))
        found = {
            "out": bound,
            "lse": spread + sums + 4 * a * lse,
            "scores": score,
            "softcapped_scores": logit if self.given.softcap else score,
            "masked_scores": logit,
        }
        if moved is not None:
            found["weights"] = moved
        return found

    def _moved(self, head: Head, logit: Array) -> tuple[Array, Array]:
        """R [n], and P_j ρ_j [n, m]."""
        a, lse = self.kept, _finite(head.results["lse"])
        squares, grown = moved_weights(head.results["weights"], head.results["masked_scores"], lse, logit)
        if np.isfinite(head.sink).any():
            beyond = np.where(np.isfinite(head.sink), head.sink - lse, -np.inf)
            sink = 3 * a * (_sizes(beyond) + math.log(head.k.shape[-2] + 1)) + 4 * a
            squares = squares + np.exp(np.minimum(beyond + 2 * sink, 600.0)) * np.square(2 * sink)
        return np.sqrt(squares), grown

    def _latent_scores(self, head: Head, latents: Latents) -> Array:
        """[n, m] what q·k may lose where MLA's products are rounded, be it absorbed queries or keys."""
        a, u, (n, m) = self.kept, self.unit, (len(head.q), len(head.k))
        q, q_rope = latents.q_nope[head.b, head.h, :n], np.abs(latents.q_rope[head.b, head.h, :n])
        c, k_rope = latents.c_kv[head.b, 0, :m], np.abs(latents.k_rope[head.b, 0, :m])
        w = latents.w_uk[0, head.h]
        (l, d), r = w.shape, k_rope.shape[1]  # noqa: E741
        queries, sums = q @ w.T, math.sqrt(d) * a * (np.abs(q) @ np.abs(w).T)
        absorbed = LAMBDA * (u * _root_of_squares(queries, c) + _root_of_squares(sums, c))
        absorbed += a * (2 + LAMBDA * math.sqrt(l + r)) * (np.abs(queries) @ np.abs(c).T + q_rope @ k_rope.T)
        sums = math.sqrt(l) * a * (np.abs(c) @ np.abs(w))
        expanded = LAMBDA * (u * _root_of_squares(q, head.k[:, :d]) + _root_of_squares(q, sums))
        lost = np.add.outer(np.abs(q).sum(1), np.abs(c).sum(1))
        return np.asarray(np.maximum(absorbed, expanded) + self.lost * lost)

    def _latent_values(self, head: Head, latents: Latents) -> Array:
        """[n, e] what out may lose likewise, be it in summed latents or in values."""
        a, u, m = self.kept, self.unit, len(head.k)
        c, w, weights = latents.c_kv[head.b, 0, :m], latents.w_uv[0, head.h], head.results["weights"]
        summed, sizes = weights @ c, weights @ np.abs(c)
        root = math.sqrt(len(w))
        absorbed = LAMBDA * (u * _root_of_squares(summed, w.T) + 2 * math.sqrt(m) * a * (sizes @ np.abs(w)))
        absorbed += a * (4 + LAMBDA * root) * (np.abs(summed) @ np.abs(w))
        expanded = u * (weights @ np.abs(head.v)) + a * (4 + LAMBDA * root) * (sizes @ np.abs(w))
        return np.asarray(np.maximum(absorbed, expanded) + self.lost * (1 + np.abs(w).sum(0)))

    def _backward(
        self, head: Head, score: Array, found: Mapping[str, Array], dout: Array
    ) -> dict[str, Array]:
        """The bounds of dq, and of what this head adds to dk and dv."""
        a, u, results, given = self.kept, self.unit, head.results, self.given
        (n, e), m = results["out"].shape[-2:], head.k.shape[-2]
        dout = dout.astype(np.float64)
        upstream, weights, moved = np.abs(dout), results["weights"], found["weights"]
        if self.spec.engine == "sdpa":
            moved = _rebuilt(results, found["masked_scores"] + found["lse"][..., None])
        theta = a * (2 + LAMBDA * math.sqrt(e)) * (upstream @ _turned(np.abs(head.v)))
        dweights = dout @ _turned(head.v)
        distance = np.abs(dweights - (weights * dweights).sum(-1, keepdims=True))
        delta = (upstream * found["out"]).sum(-1) + (weights * theta).sum(-1)
        error = moved * distance + (weights + moved) * (theta + delta[..., None])
        error += (u + 4 * a) * np.abs(results["dmasked"])
        if given.softcap:
            slope = 1.0 - np.square(results["softcapped_scores"] / given.softcap)
            bent = np.minimum(1.0, 2 * (score / given.softcap + 16 * a))
            error = error * slope + np.abs(results["dmasked"]) * bent
        rounded = u * (2 if self.rotated else 1) + 2 * a
        by_keys = error + np.abs(results["dscores"]) * (LAMBDA * math.sqrt(m) * a + u)
        by_queries = error + np.abs(results["dscores"]) * (LAMBDA * math.sqrt(n * given.group) * a + u)
        by_values = moved + weights * (u + LAMBDA * math.sqrt(n * given.group) * a)
        scale, sizes = abs(given.scale), {"q": np.abs(head.q), "k": np.abs(head.k)}
        lost = {name: self.lost * (scale * x.sum(-2, keepdims=True) + 1.0) for name, x in sizes.items()}
        return {
            "dq": scale * (by_keys @ sizes["k"]) + rounded * np.abs(results["dq"]) + lost["k"],
            "dk": scale * (_turned(by_queries) @ sizes["q"]) + rounded * np.abs(results["dk"]) + lost["q"],
            "dv": _turned(by_values) @ upstream + (u + 2 * a) * np.abs(results["dv"])
            + self.lost * (upstream.sum(-2, keepdims=True) + 1.0),
        }  # fmt: skip

    def found(self, arrays: Mapping[str, Array]) -> dict[str, float]:
        """The bound of every result that the observed heads have, by name."""
        bounds = dict(self.largest)
        turned = 1.0
        if self.rotated:
            cos, sin = rope_angles(self.spec, arrays)["q"]
            turned = math.sqrt(2.0) * float(np.sqrt(cos**2 + sin**2).max(initial=1.0))
        uses = 1
        if "block_table" in arrays:
            named = arrays["block_table"][arrays["block_table"] >= 0]
            uses = int(np.bincount(named).max(initial=1))
        for name, total in self.sums.items():
            bounds[name] = uses * most(total)
        for name in {"dq", "dk"} & bounds.keys():
            bounds[name] *= turned
        largest_key = float(np.abs(zero_beyond(self.given.k, self.given.kv_lens)).max(initial=0.0))
        bounds["present_key"] = (self.unit + 8 * self.kept) * largest_key + self.lost if self.rotated else 0.0
        bounds["present_value"] = 0.0
        if self.off is not None:
            for name, off, x in zip(PRESENT, self.off, (self.given.k, self.given.v), strict=True):
                largest = float(np.abs(zero_beyond(x, self.given.kv_lens)).max(initial=0.0))
                furthest = float(off.max(initial=0.0))
                bounds[name] += furthest + self.unit * (largest + furthest) + self.lost
        return {
            name: 0.0 if self.spec.engine == "reference" else rounded_up(bound)
            for name, bound in bounds.items()
        }


def moved_weights(weights: Array, masked: Array, lse: Array, logit: Array) -> tuple[Array, Array]:
    """Σ P_j ρ_j² [n], and P_j ρ_j [n, m], of weights P [n, m] = exp(masked − lse) whose logits err by
    ``logit`` at most; ``lse`` [n] is finite. Of many heads, with axes in front, each by itself."""
    worst = logit.max((-2, -1), initial=0.0, keepdims=True)
    with np.errstate(over="ignore", invalid="ignore"):
        # ρ = e^ε − 1 ≤ ε + ε²
        grown = weights * logit * (1 + worst)
        squares = (1 + worst[..., 0]) * np.einsum("...ij,...ij->...i", grown, logit)
    large = worst >= 1.0
    if not large.any():
        return squares, grown
    # From the exponents, where P has underflowed and ρ would overflow.
    exponent = masked - lse[..., None]
    kept = np.where(logit < 1.0, 2 * weights * logit, np.exp(np.minimum(exponent + logit, 0.0)))
    sums = np.exp(np.minimum(exponent + 2 * logit, 600.0))
    sums = np.where(logit < 1.0, weights * np.square(2 * logit), sums).sum(-1)
    return np.where(large[..., 0], sums, squares), np.where(large, kept, grown)


def _rebuilt(results: Mapping[str, Array], slip: Array) -> Array:
    """Bounds [n, m] of the errors of exp(masked score − lse), whose exponent may be off by ``slip``."""
    exponent = results["masked_scores"] - _finite(results["lse"])[..., None]
    # From the exponents, where P has underflowed and its factor would overflow.
    return np.where(slip < 1.0, results["weights"] * np.expm1(slip), np.exp(exponent + slip))


def _root_of_squares(x: Array, y: Array) -> Array:
    """√(Σ x_i² y_i²) of each row of x [n, d] with each row of y [m, d]: [n, m]."""
    return np.asarray(np.sqrt(np.square(x) @ np.square(y).T))


def _turned(array: Array) -> Array:
    """[..., n, m] as [..., m, n]."""
    return np.swapaxes(array, -1, -2)


def _sizes(array: Array) -> Array:
    """|array|, with 0 in the place of ±∞: −∞ is exact wherever it stands, and +∞ has made the row NaN."""
    sizes = np.abs(array)
    np.copyto(sizes, 0.0, where=np.isinf(sizes))
    return sizes


def _finite(array: Array) -> Array:
    """With 0 in the place of −∞."""
    return np.where(np.isneginf(array), 0.0, array)


def most(bounds: Array) -> float:
    """The largest; a NaN is where float64 itself had no number to give, and means no bound."""
    largest = float(np.max(bounds, initial=0.0))
    return math.inf if math.isnan(largest) else largest


def rounded_up(bound: float) -> float:
    """To three digits, upwards."""
    if not math.isfinite(bound):
        return bound
    near = float(f"{bound:.3g}")
    return near if near >= bound else float(f"{bound * 1.005:.3g}")
