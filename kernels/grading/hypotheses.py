"""The table of mistakes: what students do, the simplest first, and what is to be learnt from each.

A code has one or more readings, which are computed and compared with an answer that is wrong. A reading that
gives what is right (the other alignment where there are as many queries as keys, tiled heads where there is
one group) explains no wrong answer, and no problem has to tell it apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from kernels.grading import edits, steps, trace_mistakes
from kernels.grading.pipeline import Setting
from kernels.grading.readings import Reading

LOW_PRECISION = "low_precision"

_READINGS: dict[str, Callable[[Setting], Iterator[Reading]]] = {
    "no_scale": edits.no_scale,
    "scale_by_d": edits.scale_by_d,
    "scale_by_sqrt_d_model": edits.scale_by_sqrt_d_model,
    "no_mask": edits.no_mask,
    "mask_after_softmax": edits.mask_after_softmax,
    "mask_added_as_01": edits.mask_added_as_01,
    "mask_inverted": edits.mask_inverted,
    "causal_top_left": edits.causal_top_left,
    "causal_bottom_right": edits.causal_bottom_right,
    "strict_causal": edits.strict_causal,
    "softmax_over_queries": steps.softmax_over_queries,
    "unnormalised": steps.unnormalised,
    "no_softmax": steps.no_softmax,
    "uniform_weights": steps.uniform_weights,
    "argmax_weights": steps.argmax_weights,
    "zeros": steps.zeros,
    "returned_v": steps.returned_v,
    "heads_tiled": steps.heads_tiled,
    "heads_swapped": steps.heads_swapped,
    "heads_merged_wrong": steps.heads_merged_wrong,
    "transposed": steps.transposed,
    "rope_other_pairing": edits.rope_other_pairing,
    "rope_missing": edits.rope_missing,
    "rope_positions_off_by_one": edits.rope_positions_off_by_one,
    "rope_on_v": edits.rope_on_v,
    "softcap_missing": edits.softcap_missing,
    "softcap_after_mask": edits.softcap_after_mask,
    "window_off_by_one": edits.window_off_by_one,
    "alibi_missing": edits.alibi_missing,
    "alibi_sign": edits.alibi_sign,
    "sink_missing": edits.sink_missing,
    "sink_double": edits.sink_double,
    "lse_base2": steps.lse_base2,
    "lse_without_max": steps.lse_without_max,
    "online_no_rescale": steps.online_no_rescale,
    "last_block_dropped": steps.last_block_dropped,
    "block_mean": steps.block_mean,
}
# The last is no other computation, but the right one, less precisely.
CODES = (*_READINGS, *trace_mistakes.CODES, LOW_PRECISION)

_MASK = "Before the softmax, add −inf to the scores of forbidden keys."
_SOFTMAX = "A query's weights are exp(score) over the sum of exp(score) along the keys, the last axis."
_ALIGNED = "causal_alignment says whether the first query stands at the first key or the last at the last."
_HEADS = "Transpose before you reshape, and keep the heads in order."
_ROPE = "RoPE turns pairs of dimensions of q and k, not of v, by the position times a frequency."
_ORDER = "The order is: scale, softcap, ALiBi, mask, softmax."
_ALIBI = "ALiBi adds slope·(key position − query position) to the scores."
_LSE = "The LSE is the natural logarithm of the sum of exp(score), the largest score added back."
_DRAFT = "Accept a drafted token x where u < p(x)/q(x), and stop at the first that is refused."
_RESIDUAL = "What replaces a refused token is drawn from max(0, p − q), divided by its sum."
HINTS = {
    "no_scale": "Multiply q·k by the scale, 1/√head_dim unless another is given.",
    "scale_by_d": "The scale is one over the square root of head_dim, once.",
    "scale_by_sqrt_d_model": "The scale is about the width of one head, not of all together.",
    "no_mask": _MASK,
    "mask_after_softmax": f"{_MASK} Then nothing has to be set to 0 afterwards.",
    "mask_added_as_01": f"True means that a query may see a key. {_MASK}",
    "mask_inverted": "True means that a query may see a key.",
    "causal_top_left": _ALIGNED,
    "causal_bottom_right": _ALIGNED,
    "strict_causal": "A query sees every key up to its own position, and that one too.",
    "softmax_over_queries": _SOFTMAX,
    "unnormalised": _SOFTMAX,
    "no_softmax": _SOFTMAX,
    "uniform_weights": "Weights depend on the scores: did q or k arrive as zeros?",
    "argmax_weights": _SOFTMAX,
    "zeros": "Was the array filled, and is it the one that you handed in?",
    "returned_v": "Multiply V by the weights.",
    "heads_tiled": "Repeat each key head for its group (repeat_interleave); do not tile.",
    "heads_swapped": _HEADS,
    "heads_merged_wrong": _HEADS,
    "transposed": "Rows are queries, in every result; check which axis is which.",
    "rope_other_pairing": f"{_ROPE} Its style says which two dimensions make a pair.",
    "rope_missing": _ROPE,
    "rope_positions_off_by_one": f"{_ROPE} Query and key at one position are turned alike.",
    "rope_on_v": _ROPE,
    "softcap_missing": _ORDER,
    "softcap_after_mask": _ORDER,
    "window_off_by_one": "Both sides of the window are distances, and both ends are included.",
    "alibi_missing": _ALIBI,
    "alibi_sign": _ALIBI,
    "sink_missing": "exp(sink) is in the denominator of its head, and so in the LSE.",
    "sink_double": "exp(sink) is in the denominator once, however many blocks there are.",
    "lse_base2": _LSE,
    "lse_without_max": _LSE,
    "online_no_rescale": "When the maximum grows from m to m′, multiply the old sums by exp(m − m′).",
    "last_block_dropped": "The last block counts too, also where it is shorter.",
    "block_mean": "Blocks count by their sums of exp(score), not equally.",
    "block_off_by_one": "A sequence of n tokens has ⌈n/B⌉ blocks, and all numbers count from 0.",
    "block_order": "Free blocks are a stack, block 0 on top at first; a sequence is freed from its end.",
    "copy_missing": "Before you write to a block that another table holds too, take a new one and copy it.",
    "copy_needless": "A block is copied when it is written to, and only while another table holds it.",
    "freed_while_shared": "A block is free when the last table that holds it lets go; a fork holds it too.",
    "draft_always_accepted": _DRAFT,
    "accepted_without_ratio": _DRAFT,
    "ratio_inverted": _DRAFT,
    "examined_on": _DRAFT,
    "residual_missing": _RESIDUAL,
    "residual_not_normalised": _RESIDUAL,
    "other_uniform": "The last of the numbers u draws the last token of a run, however many were accepted.",
    "bonus_missing": "Where the whole draft is accepted, one more token follows, drawn from p.",
    LOW_PRECISION: "Keep scores, softmax and sums in float32 or better.",
}


def readings(setting: Setting) -> list[Reading]:
    """Every reading of every mistake that can be made on a setting (one that has all queries)."""
    return [reading for make in _READINGS.values() for reading in make(setting)]


def rank(code: str) -> tuple[int, ...]:
    """The place of a code in the table; two mistakes together come after all single ones."""
    parts = code.split("+")
    return (len(parts), *(CODES.index(part) for part in parts))
