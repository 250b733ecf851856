"""Wrong computations that take another step: another softmax, other heads, another order, other blocks."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from kernels.arrays import Array
from kernels.grading.pipeline import (
    Results,
    Setting,
    added,
    allowed,
    as_answers,
    by_query_head,
    capped,
    resolve,
)
from kernels.grading.readings import (
    Edit,
    Finish,
    Reading,
    every,
    from_logits,
    from_weights,
    is_masked,
    within_lengths,
)
from kernels.spec.results import GRADIENTS, MATRICES

Readings = Iterator[Reading]

BLOCKS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
USUAL_BLOCKS = (16, 32, 64, 128)
LN2 = float(np.log(2.0))


# -- the softmax ---------------------------------------------------------------------------------------------


def softmax_over_queries(setting: Setting) -> Readings:
    shape = setting.given.q.shape
    ways: list[tuple[str, tuple[int, ...], str, bool]] = []
    if shape[-2] > 1:
        ways.append(("", (-2,), "over the queries, down the columns of the scores", True))
        ways.append(("all", (-2, -1), "over all scores of a head together", False))
    if shape[2] > 1:
        ways.append(("heads", (-3,), "over the heads", False))
    if shape[1] > 1:
        ways.append(("batch", (-4,), "over the batch", False))
    for key, axes, where, is_main in ways:
        says = f"the softmax is taken {where}, and not over the keys"
        yield Reading(
            "softmax_over_queries", key, says, None, _softmax_over(axes), by_rows=False, is_main=is_main,
            silent=("lse",),
        )  # fmt: skip


def _softmax_over(axes: tuple[int, ...]) -> Finish:
    def finish(setting: Setting, right: Results) -> Results:
        masked = right["masked_scores"]
        largest = masked.max(axes, keepdims=True)
        exponentials = np.exp(masked - np.where(np.isneginf(largest), 0.0, largest))
        total = exponentials.sum(axes, keepdims=True)
        return from_weights(setting, exponentials / np.where(total == 0.0, 1.0, total))

    return finish


def unnormalised(setting: Setting) -> Readings:
    del setting
    says = "weights are exp(score) and are not divided by their sum"
    yield Reading("unnormalised", "", f"{says} (the largest score was subtracted)", None, _exp_less_max)
    yield Reading("unnormalised", "plain", says, None, _exp)


def _exp_less_max(setting: Setting, right: Results) -> Results:
    masked = right["masked_scores"]
    largest = masked.max(-1, keepdims=True, initial=-np.inf)
    return from_weights(setting, np.exp(masked - np.where(np.isneginf(largest), 0.0, largest)))


def _exp(setting: Setting, right: Results) -> Results:
    return from_weights(setting, np.exp(np.minimum(right["masked_scores"], 700.0)))


def no_softmax(setting: Setting) -> Readings:
    says = "the scores themselves are the weights: there is no softmax"
    yield Reading("no_softmax", "", says, None, _raw, silent=("lse",))
    if is_masked(setting):
        says += ", and no mask"
        yield Reading("no_softmax", "all", says, None, _raw_everywhere, is_main=False, silent=("lse",))


def _raw(setting: Setting, right: Results) -> Results:
    return from_weights(setting, np.where(np.isneginf(right["masked_scores"]), 0.0, right["masked_scores"]))


def _raw_everywhere(setting: Setting, right: Results) -> Results:
    more, inside = added(setting), within_lengths(setting)
    logits = right["softcapped_scores"] if more is None else right["softcapped_scores"] + more
    return from_weights(setting, logits if inside is None else np.where(inside, logits, 0.0))


def uniform_weights(setting: Setting) -> Readings:
    says = "every key that may be seen has the same weight: the output is a plain mean of the values"
    yield Reading("uniform_weights", "", says, None, _uniform)
    if is_masked(setting):
        says = "all keys, forbidden ones too, have the same weight: the output is the mean of all values"
        yield Reading("uniform_weights", "all", says, None, _uniform_everywhere)


def _uniform(setting: Setting, right: Results) -> Results:
    return _mean(setting, right, allowed(setting))


def _uniform_everywhere(setting: Setting, right: Results) -> Results:
    return _mean(setting, right, within_lengths(setting))


def _mean(setting: Setting, right: Results, seen: Array | None) -> Results:
    shape = right["weights"].shape
    counted = np.broadcast_to(1.0 if seen is None else seen.astype(np.float64), shape)
    total = counted.sum(-1, keepdims=True)
    with np.errstate(divide="ignore"):
        lse = np.log(total[..., 0])
    return {"lse": lse, **from_weights(setting, counted / np.where(total == 0.0, 1.0, total))}


def argmax_weights(setting: Setting) -> Readings:
    says = "the key with the largest score has all the weight: a hard choice in the place of the softmax"
    yield Reading("argmax_weights", "", says, None, _hard)
    if is_masked(setting):
        says = "the largest score has all the weight, forbidden keys included"
        yield Reading("argmax_weights", "all", says, None, _hard_everywhere, is_main=False)


def _hard(setting: Setting, right: Results) -> Results:
    return _chosen(setting, right["masked_scores"])


def _hard_everywhere(setting: Setting, right: Results) -> Results:
    more, inside = added(setting), within_lengths(setting)
    logits = right["softcapped_scores"] if more is None else right["softcapped_scores"] + more
    return _chosen(setting, logits if inside is None else np.where(inside, logits, -np.inf))


def _chosen(setting: Setting, logits: Array) -> Results:
    weights = np.zeros(logits.shape)
    np.put_along_axis(weights, logits.argmax(-1)[..., None], 1.0, axis=-1)
    largest = logits.max(-1)
    weights[np.isneginf(largest)] = 0.0
    return {"lse": largest, **from_weights(setting, weights)}


# -- no computation ------------------------------------------------------------------------------------------


def zeros(setting: Setting) -> Readings:
    del setting
    yield Reading("zeros", "", "every number is 0: nothing was computed or written", None, _zeros)


def _zeros(setting: Setting, right: Results) -> Results:
    return every(as_answers(setting, right), np.zeros_like)


def returned_v(setting: Setting) -> Readings:
    n, m = setting.spec.q_len, setting.given.k.shape[-2]
    if n == m:
        yield Reading("returned_v", "", "the output is V itself", None, _v_from(0), silent=_all_but("out"))
    elif m > n:
        for start, which, key in ((m - n, "last", ""), (0, "first", "first")):
            says = f"the output is V itself, its {which} {n} rows"
            yield Reading(
                "returned_v", key, says, None, _v_from(start), is_main=not key, silent=_all_but("out")
            )


def _all_but(*names: str) -> tuple[str, ...]:
    every_answer = ("out", "lse", *MATRICES, "mask", *GRADIENTS)
    return tuple(name for name in every_answer if name not in names)


def _v_from(start: int) -> Finish:
    def finish(setting: Setting, right: Results) -> Results:
        v = by_query_head(setting.given.v, setting)[..., start + setting.row_numbers(), :]
        return {"out": np.broadcast_to(v, right["out"].shape)}

    return finish


# -- heads and axes ------------------------------------------------------------------------------------------


def heads_tiled(setting: Setting) -> Readings:
    heads, kv_heads = setting.given.q.shape[2], setting.given.k.shape[2]
    if kv_heads > 1 and heads > kv_heads:
        says = (
            f"query head h reads key head h mod {kv_heads}, as if K and V were tiled; consecutive heads "
            f"share one: it is ⌊h / {heads // kv_heads}⌋"
        )
        edit = _with_kv_of(tuple(head % kv_heads for head in range(heads)))
        yield Reading("heads_tiled", "", says, edit)


def _with_kv_of(kv_of: tuple[int, ...]) -> Edit:
    return lambda setting: replace(setting, kv_of=kv_of)


def heads_swapped(setting: Setting) -> Readings:
    heads, kv_heads, group = setting.given.q.shape[2], setting.given.k.shape[2], setting.given.group
    if heads < 2:
        return
    last = tuple(reversed(range(heads)))
    yield Reading("heads_swapped", "", f"the {heads} heads come in reverse order", None, _in_order(last))
    orders = {
        (*range(1, heads), 0): "the heads are moved up by one",
        (heads - 1, *range(heads - 1)): "the heads are moved down by one",
        tuple(
            head ^ 1 if head ^ 1 < heads else head for head in range(heads)
        ): "neighbouring heads are swapped",
    }
    if heads <= 4:
        for order in itertools.permutations(range(heads)):
            orders.setdefault(order, f"the heads come in the order {', '.join(map(str, order))}")
    for order, says in orders.items():
        if order not in (last, tuple(range(heads))):
            key = " ".join(map(str, order)) if heads <= 4 else says
            yield Reading("heads_swapped", key, says, None, _in_order(order), is_main=False)
    if kv_heads > 1:
        reverse = tuple(kv_heads - 1 - head // group for head in range(heads))
        says = "the heads of K and V come in reverse order beside those of Q"
        yield Reading("heads_swapped", "kv", says, _with_kv_of(reverse), is_main=False)


def _in_order(order: tuple[int, ...]) -> Finish:
    def finish(setting: Setting, right: Results) -> Results:
        whole = as_answers(setting, right)
        kv_heads = setting.given.k.shape[2]
        of_keys = list(order) if kv_heads == len(order) else None
        found = {}
        for name, array in whole.items():
            own = of_keys if name in ("dk", "dv") else list(order)
            if own is not None:
                found[name] = array[:, :, own]
        return found

    return finish


def heads_merged_wrong(setting: Setting) -> Readings:
    heads, n = setting.given.q.shape[2:4]
    if heads < 2 or n < 2:
        return
    says = (
        "the result [heads, len, dim] is transposed to [len, heads, dim], and reshaped instead of turned back"
    )
    yield Reading("heads_merged_wrong", "", says, None, _apart, by_rows=False)
    says = "the result [heads, len, dim] is reshaped to [len, heads, dim] without being transposed"
    yield Reading("heads_merged_wrong", "back", says, None, _together, by_rows=False)
    if {"past_key", "q_lens", "kv_lens"}.isdisjoint(setting.arrays):
        says = "heads and length of q, k and v are mixed: [len, heads, dim] is reshaped to [heads, len, dim]"
        ways = (("inputs", "", None), ("in and out", ", and the output likewise", _together))
        for key, more, finish in ways:
            yield Reading(
                "heads_merged_wrong", key, says + more, _mixed_inputs, finish, by_rows=False, is_main=False
            )


def _apart(setting: Setting, right: Results) -> Results:
    return every(_by_query(setting, right), lambda x: np.swapaxes(x, 2, 3).reshape(x.shape))


def _together(setting: Setting, right: Results) -> Results:
    def change(array: Array) -> Array:
        students, batch, heads, n = array.shape[:4]
        return np.swapaxes(array.reshape(students, batch, n, heads, *array.shape[4:]), 2, 3)

    return every(_by_query(setting, right), change)


def _by_query(setting: Setting, right: Results) -> Results:
    """The results [students, b, h, n, …]."""
    return {name: x for name, x in as_answers(setting, right).items() if name not in ("dk", "dv")}


def _mixed_inputs(setting: Setting) -> Setting:
    arrays = dict(setting.arrays)
    for name in ("q", "k", "v"):
        arrays[name] = np.swapaxes(arrays[name], 2, 3).reshape(arrays[name].shape)
    made = resolve(setting.spec, arrays).given
    return setting.changed(q=made.q, k=made.k, v=made.v)


def transposed(setting: Setting) -> Readings:
    n, m = setting.spec.q_len, setting.given.k.shape[-2]
    says = "the last two axes are swapped"
    yield Reading("transposed", "", says, None, _swapped, by_rows=False)
    says = "K is reshaped to [dim, len] where it should be transposed: its numbers are in the wrong places"
    if m > 1 and setting.given.k.shape[-1] > 1:
        yield Reading("transposed", "k", says, _reshaped_keys, is_main=False)
    if n == m and n > 1:
        says = "the weights are transposed before they meet V"
        yield Reading("transposed", "weights", says, None, _weights_turned, by_rows=False, is_main=False)
        says = "q and k are swapped: the scores are K·Qᵀ"
        yield Reading("transposed", "scores", says, None, _scores_turned, by_rows=False, is_main=False)


def _swapped(setting: Setting, right: Results) -> Results:
    answers = as_answers(setting, right)
    return {name: x if name == "lse" else np.swapaxes(x, -1, -2) for name, x in answers.items()}


def _reshaped_keys(setting: Setting) -> Setting:
    k = setting.given.k
    m, d = k.shape[-2:]
    return setting.changed(k=np.swapaxes(k.reshape(*k.shape[:-2], d, m), -1, -2))


def _weights_turned(setting: Setting, right: Results) -> Results:
    return from_weights(setting, np.swapaxes(right["weights"], -1, -2))


def _scores_turned(setting: Setting, right: Results) -> Results:
    scores = np.swapaxes(right["scores"], -1, -2)
    logits, more, seen = capped(scores, setting.given.softcap), added(setting), allowed(setting)
    turned = {"scores": scores, "softcapped_scores": logits}
    if more is not None:
        logits = logits + more
    return turned | from_logits(setting, logits if seen is None else np.where(seen, logits, -np.inf))


# -- LSE -----------------------------------------------------------------------------------------------------


def lse_base2(setting: Setting) -> Readings:
    del setting
    says = "the LSE is to base 2: it is the natural one divided by ln 2 = 0.6931"
    yield Reading("lse_base2", "", says, None, lambda _, right: {"lse": right["lse"] / LN2})
    says = "only the logarithm of the sum is to base 2, the largest score in the LSE is as it is"
    yield Reading("lse_base2", "sum", says, None, _base2_sum, is_main=False)


def _base2_sum(setting: Setting, right: Results) -> Results:
    largest = _largest(setting, right)
    rest = np.where(np.isneginf(right["lse"]), -np.inf, right["lse"] - largest)
    return {"lse": largest + rest / LN2}


def _largest(setting: Setting, right: Results) -> Array:
    largest = right["masked_scores"].max(-1, initial=-np.inf)
    if setting.given.sinks is not None:
        largest = np.maximum(largest, setting.given.sinks[:, None])
    return np.where(np.isneginf(largest), 0.0, largest)


def lse_without_max(setting: Setting) -> Readings:
    del setting
    says = "the largest score, which was subtracted before exp, is not added to the LSE again"
    yield Reading("lse_without_max", "", says, None, _without_max)


def _without_max(setting: Setting, right: Results) -> Results:
    return {"lse": right["lse"] - _largest(setting, right)}


# -- blocks --------------------------------------------------------------------------------------------------


def _blocks(setting: Setting) -> Iterator[tuple[int, bool]]:
    """Sizes of blocks that leave more than one, and which of them the mutants are to include: the usual ones,
    where the keys fill two. Nobody computes a few keys by blocks."""
    m = setting.given.k.shape[-2]
    for block in BLOCKS:
        if block < m:
            yield block, block in USUAL_BLOCKS and 2 * block <= m


def online_no_rescale(setting: Setting) -> Readings:
    ways = (
        ("", "what was summed before is not rescaled, nor is the sum of weights,"),
        ("out", "what was summed before is not rescaled (the sum of weights is)"),
        ("sum", "the sum of weights is not rescaled (what was summed before is)"),
    )
    for block, is_usual in _blocks(setting):
        for key, what in ways:
            says = f"in online softmax with blocks of {block} keys {what} when the maximum grows"
            name, finish = f"{block} {key}".strip(), _not_rescaled(block, key)
            yield Reading("online_no_rescale", name, says, None, finish, is_main=is_usual and not key)


def _not_rescaled(block: int, key: str) -> Finish:
    def finish(setting: Setting, right: Results) -> Results:
        masked, sinks = right["masked_scores"], setting.given.sinks
        m = masked.shape[-1]
        starts = np.arange(0, m, block)
        growing = np.maximum.accumulate(np.maximum.reduceat(masked, starts, axis=-1), axis=-1)
        growing = np.where(np.isneginf(growing), 0.0, growing)
        last = growing[..., -1]
        old = np.exp(masked - np.repeat(growing, block, axis=-1)[..., :m])
        new = np.exp(masked - last[..., None])
        sink = 0.0 if sinks is None else np.exp(sinks[:, None] - last)
        total = (new if key == "out" else old).sum(-1) + sink
        weights = (new if key == "sum" else old) / np.where(total == 0.0, 1.0, total)[..., None]
        with np.errstate(divide="ignore"):
            lse = last + np.log(total)
        return {"lse": lse, **from_weights(setting, weights)}

    return finish


def last_block_dropped(setting: Setting) -> Readings:
    n, m = setting.spec.q_len, setting.given.k.shape[-2]
    for block, is_main in _blocks(setting):
        kept = (m - 1) // block * block
        what = f"block of {block} keys" if block > 1 else "key"
        says = f"the last {what} is left out: the loop ends early, at key {kept} of {m}"
        edit = _only_first(kept)
        yield Reading("last_block_dropped", str(block), says, edit, is_main=is_main)
        if block < n and block in USUAL_BLOCKS:
            rows = (n - 1) // block * block
            says = f"the last block of {block} queries is never written: rows from {rows} on are 0"
            yield Reading(
                "last_block_dropped", f"queries {block}", says, None, _only_rows(rows), is_main=False
            )


def _only_first(kept: int) -> Edit:
    def edit(setting: Setting) -> Setting:
        inside = np.arange(setting.given.k.shape[-2]) < kept
        if setting.attn_mask is not None:
            return replace(setting, attn_mask=setting.attn_mask & inside)
        return replace(setting, attn_mask=inside[None, None, None, None, :])

    return edit


def _only_rows(kept: int) -> Finish:
    def finish(setting: Setting, right: Results) -> Results:
        inside = setting.row_numbers() < kept
        answers = {name: x for name, x in as_answers(setting, right).items() if name not in ("dk", "dv")}
        return {
            name: np.where(inside if name == "lse" else inside[:, None], x, 0) for name, x in answers.items()
        }

    return finish


def block_mean(setting: Setting) -> Readings:
    for block, is_main in _blocks(setting):
        if block == 1:
            continue
        says = f"the outputs of blocks of {block} keys are averaged as if each had the same weight"
        yield Reading(
            "block_mean", str(block), says, None, _block_mean(block, all_count=True), is_main=is_main,
            silent=("lse",),
        )  # fmt: skip
        if is_masked(setting):
            says += ", blocks in which nothing is seen left out"
            yield Reading(
                "block_mean", f"{block} seen", says, None, _block_mean(block, all_count=False),
                is_main=False, silent=("lse",),
            )  # fmt: skip


def _block_mean(block: int, *, all_count: bool) -> Finish:
    def finish(setting: Setting, right: Results) -> Results:
        masked = right["masked_scores"]
        m, starts = masked.shape[-1], np.arange(0, masked.shape[-1], block)
        largest = np.maximum.reduceat(masked, starts, axis=-1)
        largest = np.where(np.isneginf(largest), 0.0, largest)
        weights = np.exp(masked - np.repeat(largest, block, axis=-1)[..., :m])
        total = np.add.reduceat(weights, starts, axis=-1)
        count = np.float64(len(starts)) if all_count else np.maximum((total > 0).sum(-1, keepdims=True), 1)
        weights /= np.repeat(np.where(total == 0.0, 1.0, total), block, axis=-1)[..., :m]
        return from_weights(setting, weights / count)

    return finish
