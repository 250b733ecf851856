"""Where implementations of attention go wrong, each on the smallest input that shows it: what comes of the
mistake, and what is right. In numpy, and in the number format that the mistake needs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from kernels.arrays import Array
from kernels.flash.online import one_pass
from kernels.integers import next_power_of_two
from kernels.limits import MIN_BLOCK
from kernels.mistakes import expand_groups, masked_weights
from kernels.positions import automatic_slopes
from kernels.quantise import decode_fp8, encode_fp8

CAP = 2.0
LOG2E = math.log2(math.e)
BYTE = 256


@dataclass(frozen=True)
class Outcome:
    """One number, as the mistake has it and as it should be."""

    wrong: float
    right: float


def masked_row() -> Outcome:
    """The output of a row that may see nothing, whose values are 1 and 3."""
    scores, none = np.zeros((1, 2)), np.zeros((1, 2), bool)
    wrong, right = (
        masked_weights(scores, none, mistake) @ np.array([1.0, 3.0]) for mistake in ("plain", None)
    )
    return Outcome(float(wrong[0]), float(right[0]))


def empty_tile() -> Outcome:
    """The output where a tile of forbidden keys comes first; the values of the seen ones are 1 and 3."""
    scores = np.array([-np.inf, -np.inf, 0.0, 0.0])
    return Outcome(*(_streamed(scores, [9.0, 9.0, 1.0, 3.0], mistake) for mistake in ("infinite", None)))


def sentinel() -> Outcome:
    """The sum of weights of logits near −2,000,000, where the maximum starts at −10,000."""
    logits = np.array([-2_000_000.0, -2_000_001.0])
    right = np.exp(logits - logits.max())
    return Outcome(float(np.exp(logits - max(-1e4, logits.max())).sum()), float(right.sum()))


def alignment() -> Outcome:
    """How many of four keys the last of two queries sees, under a causal mask."""
    return Outcome(float(np.tri(2, 4)[-1].sum()), float(np.tri(2, 4, k=4 - 2)[-1].sum()))


def window() -> Outcome:
    """How many keys a token sees with “a window of 4”, where the four include itself."""
    back = np.arange(20)[:, None] - np.arange(20)
    return Outcome(*(float(((back >= 0) & (back <= left)).sum(axis=1).max()) for left in (4, 3)))


def softcap_mask() -> Outcome:
    """The weight of a forbidden key beside one whose logit is 1, with a cap of 2."""
    capped = np.array([cap(1.0), cap(-math.inf)])
    return Outcome(float(_softmax(capped)[1]), float(_softmax(np.array([cap(1.0), -np.inf]))[1]))


def tanh() -> Outcome:
    """tanh of 100 in float32."""
    x = np.float32(100)
    with np.errstate(over="ignore", invalid="ignore"):
        up, down = np.exp(x), np.exp(-x)
        return Outcome(float((up - down) / (up + down)), float(1 - 2 / (np.exp(2 * x) + 1)))


def softcap_base() -> Outcome:
    """The weight of a key with logit 4 beside one with logit 0, with a cap of 2, by powers of two."""
    wrong = cap(4.0 * LOG2E), cap(0.0)
    right = LOG2E * cap(4.0), LOG2E * cap(0.0)
    return Outcome(*(2.0**one / (2.0**one + 2.0**other) for one, other in (wrong, right)))


def softcap_alibi() -> Outcome:
    """The logit of a score of 1 at a distance of 8 with a slope of one half, with a cap of 2."""
    return Outcome(cap(1.0 - 0.5 * 8), cap(1.0) - 0.5 * 8)


def alibi_anchor() -> Outcome:
    """The log-sum-exp of query 7 over eight keys with score 0, by the first slope of two heads."""
    slope, keys = float(automatic_slopes(2)[0]), np.arange(8)
    return Outcome(_lse(slope * keys), _lse(slope * (keys - 7)))


def gqa_order() -> Outcome:
    """Which head of two the query head 1 of four reads its keys from."""
    heads = np.arange(2.0).reshape(2, 1, 1)
    return Outcome(*(float(expand_groups(heads, 4, mistake)[1, 0, 0]) for mistake in ("tiled", None)))


def rope_pairs() -> Outcome:
    """The second number of (1, 0, 0, 0), turned by a radian in its first pair: halves, which are 0 and 2,
    where the model was trained on neighbours, 0 and 1."""
    turned = np.array([math.cos(1), math.sin(1)])
    halves, neighbours = np.zeros(4), np.zeros(4)
    halves[[0, 2]], neighbours[[0, 1]] = turned, turned
    return Outcome(float(halves[1]), float(neighbours[1]))


def lse_base() -> Outcome:
    """The log-sum-exp of three logits of 0."""
    return Outcome(math.log2(3), _lse(np.zeros(3)))


def fp16_overflow() -> Outcome:
    """The score of q = k = (800, 0)."""
    q = np.array([800.0, 0.0], np.float16)
    with np.errstate(over="ignore"):
        return Outcome(
            float((q * q).sum(dtype=np.float16)), float(q.astype(np.float32) @ q.astype(np.float32))
        )


def padded_scale() -> Outcome:
    """By what scores of heads of 40 numbers are multiplied, which a tile pads to 64."""
    return Outcome(1 / math.sqrt(64), 1 / math.sqrt(40))


def empty_merge() -> Outcome:
    """The output of two parts of a row merged, neither of which has a key."""
    lse, out = np.array([-np.inf, -np.inf]), np.zeros(2)
    return Outcome(_merged(lse, out, lse.max()), _merged(lse, out, 0.0))


def nan_tail() -> Outcome:
    """The output of two keys with value 1 and 3, where a third was never written."""
    weights, values = np.array([0.5, 0.5, 0.0]), np.array([1.0, 3.0, np.nan])
    return Outcome(float(weights @ values), float(weights @ np.where(weights > 0, values, 0.0)))


def int32_offset() -> Outcome:
    """Where token 131,072, counted from 0, begins, of heads with 16,384 numbers a token in all."""
    token, stride = np.array([131_072], np.int32), np.array([16_384], np.int32)
    with np.errstate(over="ignore"):
        return Outcome(float((token * stride)[0]), float((token.astype(np.int64) * stride)[0]))


def odd_dim() -> Outcome:
    """q·k of 40 ones with 40 ones, where a tile of 64 reads on into the next row, of ones as well."""
    rows = np.ones(2 * 40)
    q, read = np.ones(64), rows[:64]
    inside = np.arange(64) < 40
    return Outcome(float(q @ read), float(np.where(inside, q, 0) @ np.where(inside, read, 0)))


def ragged_tile() -> Outcome:
    """The sum of the exponentials of 113 scores of 0 in tiles of 32, where what is beyond reads as 0."""
    padded = np.zeros(-(-113 // 32) * 32)
    return Outcome(
        float(np.exp(padded).sum()), float(np.exp(np.where(np.arange(128) < 113, padded, -np.inf)).sum())
    )


def narrow_dot() -> Outcome:
    """How wide a product of heads of 3 numbers is asked of a matrix unit, in 16 bits."""
    return Outcome(3.0, float(max(MIN_BLOCK, next_power_of_two(3))))


def sink_once() -> Outcome:
    """The sum of the weights of 64 keys with logit 0 and a sink of 3, in four splits."""
    exponentials, sink = 64.0, math.exp(3)
    return Outcome(exponentials / (exponentials + 4 * sink), exponentials / (exponentials + sink))


def int8_store() -> Outcome:
    """200 as an int8."""
    return Outcome(float(np.array([200], np.int64).astype(np.int8)[0]), float(np.clip(200, -127, 127)))


def fp8_scale() -> Outcome:
    """1,000 kept in fp8 (e4m3) and read again."""
    x = np.array([1000.0], np.float32)
    scale = x / 448
    wrong, right = (decode_fp8(encode_fp8(y, "fp8_e4m3"), "fp8_e4m3") for y in (x, x / scale))
    return Outcome(float(wrong[0]), float((right * scale)[0]))


def splits_pages() -> Outcome:
    """The output of seven pages with value 1 cut into five splits, of which the last has none."""
    each = -(-7 // 5)
    pages = np.array([min(max(7 - each * split, 0), each) for split in range(5)], float)
    with np.errstate(divide="ignore", invalid="ignore"):
        lse, out = np.log(pages), pages / pages
    return Outcome(_merged(lse, out, lse.max()), _merged(lse, np.where(pages > 0, out, 0.0), lse.max()))


def negative_division() -> Outcome:
    """The last of 8 keys that query 31 of 40 sees is −1, aligned at the bottom right; in which tile of 16?"""
    key = 31 + 8 - 40
    return Outcome(float(int(key / 16)), float(key // 16))


def streamed_positions() -> Outcome:
    """How far the newest of 32 tokens is from the first, in a cache that keeps 8."""
    return Outcome(32.0 - 1, 8.0 - 1)


TRAPS: dict[str, Callable[[], Outcome]] = {
    one.__name__: one
    for one in (
        masked_row, empty_tile, sentinel, alignment, window, softcap_mask, tanh, softcap_base, softcap_alibi,
        alibi_anchor, gqa_order, rope_pairs, lse_base, fp16_overflow, padded_scale, empty_merge, nan_tail,
        int32_offset, odd_dim, ragged_tile, narrow_dot, sink_once, int8_store, fp8_scale, splits_pages,
        negative_division, streamed_positions,
    )
}  # fmt: skip


def cap(logit: float) -> float:
    return CAP * math.tanh(logit / CAP)


def _softmax(logits: Array) -> Array:
    exponentials = np.exp(logits - logits.max())
    return np.asarray(exponentials / exponentials.sum())


def _lse(logits: Array) -> float:
    return float(logits.max() + np.log(np.exp(logits - logits.max()).sum()))


def _streamed(scores: Array, values: list[float], mistake: str | None) -> float:
    last = one_pass(scores, np.array(values)[:, None], 2, mistake=mistake)[-1].after
    return float(last.out[0])


def _merged(lse: Array, out: Array, reference: float) -> float:
    """Outputs of parts by their log-sum-exps; 0 where all parts are empty and ``reference`` is finite."""
    with np.errstate(invalid="ignore"):
        weights = np.exp(lse - reference)
        total = weights.sum()
        return float(weights @ out / total) if total != 0 else 0.0
