"""What students compute: attention written out by hand, right and with every mistake of the table.

Nothing here calls the product. One head at a time, one query at a time; ``dtype`` is what everything is
computed in. A mistake may name a variation after a colon.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

Arrays = dict[str, np.ndarray]


class Student:
    """One case: ``inputs`` as the student gets them, the ``attention`` object, and a mistake."""

    def __init__(
        self, inputs: Arrays, attention: dict[str, Any], mistake: str = "", dtype: type = np.float64
    ) -> None:
        self.code, _, self.variation = mistake.partition(":")
        self.dtype, self.attention = dtype, attention
        self.q, self.k, self.v = (inputs[name].astype(dtype) for name in ("q", "k", "v"))
        self.mask = inputs.get("attn_mask")
        self.batch, self.heads, self.n, self.d = self.q.shape
        self.kv_heads, self.m, self.e = self.k.shape[1], self.k.shape[2], self.v.shape[3]

    def has(self, code: str, *variations: str) -> bool:
        return self.code == code and (not variations or self.variation in variations)

    # -- what the answers are ------------------------------------------------------------------------------

    def answers(self) -> Arrays:
        if self.has("heads_merged_wrong", "inputs"):
            self.q, self.k, self.v = (
                x.transpose(0, 2, 1, 3).reshape(x.shape) for x in (self.q, self.k, self.v)
            )
        out = np.zeros((self.batch, self.heads, self.n, self.e), self.dtype)
        weights = np.zeros((self.batch, self.heads, self.n, self.m), self.dtype)
        scores, masked = np.zeros_like(weights), np.zeros_like(weights)
        lse = np.zeros((self.batch, self.heads, self.n), self.dtype)
        for b in range(self.batch):
            for h in range(self.heads):
                found = self.head(b, h)
                for whole, part in zip((out, weights, scores, masked, lse), found, strict=True):
                    whole[b, h] = part
        found = {"out": out, "weights": weights, "scores": scores, "masked_scores": masked, "lse": lse}
        return self.rearranged(found)

    def rearranged(self, found: Arrays) -> Arrays:
        changes = {
            "zeros:": np.zeros_like,
            "transposed:": lambda x: x if x.ndim == 3 else np.swapaxes(x, 2, 3).copy(),
            "heads_merged_wrong:": lambda x: np.swapaxes(x, 1, 2).reshape(x.shape),
            "heads_merged_wrong:back": lambda x: np.swapaxes(
                x.reshape(self.batch, self.n, self.heads, *x.shape[3:]), 1, 2
            ).copy(),
            "heads_swapped:": lambda x: x[:, ::-1].copy(),
            "heads_swapped:rolled": lambda x: np.roll(x, 1, axis=1),
        }
        change = changes.get(f"{self.code}:{self.variation}")
        if change is not None:
            return {name: change(x) for name, x in found.items()}
        if self.has("softmax_over_queries", "heads"):
            exponentials = np.exp(found["masked_scores"])
            found["weights"] = exponentials / exponentials.sum(1, keepdims=True)
            for h in range(self.heads):
                found["out"][:, h] = found["weights"][:, h] @ self.v[:, h // (self.heads // self.kv_heads)]
        return found

    # -- one head ------------------------------------------------------------------------------------------

    def head(self, b: int, h: int) -> tuple[np.ndarray, ...]:
        kv = h // (self.heads // self.kv_heads)
        if self.code == "heads_tiled":
            kv = h % self.kv_heads
        if self.has("heads_swapped", "kv"):
            kv = self.kv_heads - 1 - kv
        q, k, v = self.rotated(self.q[b, h], self.k[b, kv], self.v[b, kv])
        scores = self.scores(q, k)
        logits = self.logits(scores, h)
        seen = np.array([[self.sees(b, h, i, j) for j in range(self.m)] for i in range(self.n)])
        masked = self.masked(scores, logits, seen, h)
        weights, lse = self.softmax(masked, logits, seen, h)
        if self.has("transposed", "weights"):
            weights = weights.T
        out = self.output(weights, v, masked)
        return out, weights, scores, masked, lse

    def scores(self, q: np.ndarray, k: np.ndarray) -> np.ndarray:
        scale = self.attention.get("scale")
        scale = 1 / math.sqrt(self.d) if scale is None else scale
        if self.code == "no_scale":
            scale = 1.0
        elif self.code == "scale_by_d":
            scale = 1 / self.d
        elif self.code == "scale_by_sqrt_d_model":
            scale = 1 / math.sqrt(self.d * self.heads)
        if self.has("transposed", "k"):
            return (q @ k.reshape(self.d, self.m)) * self.dtype(scale)
        if self.has("transposed", "scores"):
            return (k @ q.T) * self.dtype(scale)
        return (q @ k.T) * self.dtype(scale)

    def cap(self, x: np.ndarray) -> np.ndarray:
        softcap = self.attention.get("softcap", 0.0)
        return self.dtype(softcap) * np.tanh(x / self.dtype(softcap)) if softcap else x

    def bias(self, h: int) -> np.ndarray:
        """ALiBi [n, m]; slopes as the paper has them for a power of two of heads."""
        slopes = self.attention.get("alibi_slopes")
        if slopes is None or self.code == "alibi_missing":
            return np.zeros((self.n, self.m), self.dtype)
        slope = 2.0 ** (-8.0 * (h + 1) / self.heads) if slopes == "auto" else slopes[h]
        distance = np.array([[j - self.position(i) for j in range(self.m)] for i in range(self.n)])
        if self.has("alibi_sign", ""):
            slope = -slope
        if self.has("alibi_sign", "distance"):
            distance = -np.abs(distance)
        return (slope * distance).astype(self.dtype)

    def logits(self, scores: np.ndarray, h: int) -> np.ndarray:
        capped = scores if self.code == "softcap_missing" else self.cap(scores)
        return capped + self.bias(h) + self.float_mask()

    def float_mask(self) -> np.ndarray:
        return np.zeros((self.n, self.m), self.dtype)

    def masked(self, scores: np.ndarray, logits: np.ndarray, seen: np.ndarray, h: int) -> np.ndarray:
        forbidden = np.where(seen, 0.0, -np.inf).astype(self.dtype)
        if self.has("no_mask", "") or self.code == "mask_after_softmax":
            return logits
        if self.code == "softcap_after_mask":
            return self.cap(scores + self.bias(h) + forbidden)
        odd = {
            "mask_added_as_01:allowed": logits + seen.astype(self.dtype),
            "mask_added_as_01:forbidden": logits + (~seen).astype(self.dtype),
            "mask_added_as_01:filled": np.where(seen, logits, 0).astype(self.dtype),
            "mask_inverted:": np.where(seen, -np.inf, logits).astype(self.dtype),
        }
        return odd.get(f"{self.code}:{self.variation}", logits + forbidden)

    # -- softmax -------------------------------------------------------------------------------------------

    def softmax(
        self, masked: np.ndarray, logits: np.ndarray, seen: np.ndarray, h: int
    ) -> tuple[np.ndarray, np.ndarray]:
        weights, lse = np.zeros((self.n, self.m), self.dtype), np.zeros(self.n, self.dtype)
        for i in range(self.n):
            weights[i], lse[i] = self.row(masked[i], h)
        if self.has("softmax_over_queries", ""):
            exponentials = np.exp(masked - masked.max())
            return exponentials / exponentials.sum(0), lse
        if self.code == "mask_after_softmax":
            weights = np.where(seen, weights, 0)
        if self.has("unnormalised", ""):
            weights = np.exp(masked - masked.max(1, keepdims=True))
        if self.has("unnormalised", "plain"):
            weights = np.exp(masked)
        if self.has("no_softmax", ""):
            weights = np.where(seen, logits, 0)
        if self.has("uniform_weights", ""):
            weights = seen / seen.sum(1, keepdims=True)
        if self.has("uniform_weights", "all"):
            weights = np.full((self.n, self.m), 1 / self.m)
        if self.code == "argmax_weights":
            weights = np.eye(self.m)[masked.argmax(1)]
        return weights.astype(self.dtype), lse

    def row(self, x: np.ndarray, h: int) -> tuple[np.ndarray, float]:
        sinks = self.attention.get("sinks")
        sink = -math.inf if sinks is None or self.code == "sink_missing" else sinks[h]
        if self.code in ("online_no_rescale", "block_mean", "last_block_dropped"):
            return self.by_blocks(x, int(self.variation.split()[0]))
        largest = max(x.max(), sink)
        if largest == -math.inf:
            return np.zeros_like(x), -math.inf
        exponentials = np.exp(x - self.dtype(largest))
        total = exponentials.sum() + math.exp(sink - largest) * (2 if self.code == "sink_double" else 1)
        lse = largest + math.log(total)
        if self.has("lse_base2", ""):
            lse = lse / math.log(2)
        if self.code == "lse_without_max":
            lse = math.log(total)
        return exponentials / self.dtype(total), lse

    def by_blocks(self, x: np.ndarray, size: int) -> tuple[np.ndarray, float]:
        """Weights as each loop over blocks makes them."""
        weights, total, largest = np.zeros_like(x), 0.0, -math.inf
        starts = list(range(0, self.m, size))
        if self.code == "last_block_dropped":
            starts = starts[:-1]
        for start in starts:
            part = x[start : start + size]
            here = slice(start, start + len(part))
            if part.max() == -math.inf:
                continue
            if self.code == "block_mean":
                exponentials = np.exp(part - part.max())
                weights[here] = exponentials / exponentials.sum() / len(starts)
                continue
            higher = max(largest, part.max())
            if self.code == "last_block_dropped":
                weights, total = (
                    weights * np.exp(self.dtype(largest - higher)),
                    total * math.exp(largest - higher),
                )
            elif self.variation.endswith("out"):
                total *= math.exp(largest - higher)
            weights[here] = np.exp(part - self.dtype(higher))
            total, largest = total + float(weights[here].sum()), higher
        if self.code == "block_mean":
            return weights, 0.0
        return (weights / self.dtype(total), largest + math.log(total)) if total else (weights, -math.inf)

    def output(self, weights: np.ndarray, v: np.ndarray, masked: np.ndarray) -> np.ndarray:
        if self.code == "returned_v":
            return v[-self.n :]
        return weights @ v

    # -- who sees what -------------------------------------------------------------------------------------

    def position(self, i: int) -> int:
        alignment = self.attention.get("causal_alignment", "bottom_right")
        if self.code == "causal_top_left":
            alignment = "top_left"
        if self.code == "causal_bottom_right":
            alignment = "bottom_right"
        return i + self.m - self.n if alignment == "bottom_right" else i

    def sees(self, b: int, h: int, i: int, j: int) -> bool:
        p = self.position(i)
        left, right = self.attention.get("window", (None, None))
        ignored = self.variation if self.code == "no_mask" else None
        if self.code == "window_off_by_one":
            side, step = self.variation[:-2], int(self.variation[-2:])
            left = left + step if side == "left" else left
            right = right + step if side == "right" else right
        if self.attention.get("is_causal") and ignored != "causal":
            if self.has("mask_inverted", "triangle"):
                return j >= p
            if j > p + (1 if self.has("strict_causal", "one more") else 0):
                return False
            if self.has("strict_causal", "") and j == p:
                return False
        if ignored != "window" and (
            (left is not None and j < p - left) or (right is not None and j > p + right)
        ):
            return False
        if self.mask is not None and ignored != "attn_mask":
            mask = np.broadcast_to(self.mask, (self.batch, self.heads, self.n, self.m))
            return bool(mask[b, h, i, j])
        return True

    # -- RoPE ----------------------------------------------------------------------------------------------

    def rotated(self, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, ...]:
        rope = self.attention.get("rope")
        if rope is None or self.has("rope_missing", ""):
            return q, k, v
        shift = {"rope_positions_off_by_one:": 1, "rope_positions_off_by_one:-1": -1}.get(
            f"{self.code}:{self.variation}", 0
        )
        style = rope["style"]
        if self.has("rope_other_pairing", ""):
            style = "half" if style == "interleaved" else "interleaved"
        theta = rope.get("theta", 10000.0)
        bottom = self.attention.get("causal_alignment", "bottom_right") == "bottom_right"
        first = shift + (self.m - self.n if bottom else 0)
        if not self.has("rope_missing", "q"):
            q = np.array([self.turned(x, i + first, theta, style) for i, x in enumerate(q)])
        if not self.has("rope_missing", "k"):
            k = np.array([self.turned(x, j, theta, style) for j, x in enumerate(k)])
        if self.code == "rope_on_v":
            v = np.array([self.turned(x, j, theta, style) for j, x in enumerate(v)])
        return q, k, v

    def turned(self, x: np.ndarray, position: int, theta: float, style: str) -> np.ndarray:
        d, turned = len(x), x.copy()
        for pair in range(d // 2):
            one, other = (2 * pair, 2 * pair + 1) if style == "interleaved" else (pair, pair + d // 2)
            if self.has("rope_other_pairing", "mixed"):
                angles = [position * theta ** (-2 * (place // 2) / d) for place in (pair, pair + d // 2)]
                one, other = pair, pair + d // 2
                turned[one] = x[one] * math.cos(angles[0]) - x[2 * pair + 1] * math.sin(angles[0])
                turned[other] = x[other] * math.cos(angles[1]) + x[2 * pair] * math.sin(angles[1])
                continue
            angle = position * theta ** (-2 * pair / d)
            turned[one] = x[one] * math.cos(angle) - x[other] * math.sin(angle)
            turned[other] = x[one] * math.sin(angle) + x[other] * math.cos(angle)
        return turned
