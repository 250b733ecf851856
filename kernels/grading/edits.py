"""Wrong computations that are the right one on something else: another scale, mask, rotation, or bias."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from kernels.arrays import Array
from kernels.grading import pipeline
from kernels.grading.pipeline import (
    Results,
    Setting,
    added,
    allowed,
    as_answers,
    capped,
    distance,
    softmax,
)
from kernels.grading.readings import (
    Edit,
    Finish,
    Reading,
    from_logits,
    from_weights,
    is_masked,
    seen_of,
    with_mask,
    within_lengths,
)
from kernels.operands import rope_angles
from kernels.patterns import pattern_mask
from kernels.positions import query_positions, resolve
from kernels.rope import cos_sin, frequencies, rotate
from kernels.spec.model import Rope, RunSpec
from kernels.spec.rope import rotated_dim

Readings = Iterator[Reading]


def _changed(**fields: Any) -> Edit:
    return lambda setting: setting.changed(**fields)


# -- scale ---------------------------------------------------------------------------------------------------


def no_scale(setting: Setting) -> Readings:
    scale = setting.given.scale
    if scale == 1.0:
        return
    says = f"the scores are q·k as it is, without the factor {scale:.4g} that belongs before the softmax"
    yield Reading("no_scale", "", says, _changed(scale=1.0))
    if setting.dout is not None and scale:
        says = f"the gradients of q and k lack the factor {scale:.4g} that the scores had"
        yield Reading("no_scale", "gradient", says, None, _gradients_without_scale, is_main=False)


def _gradients_without_scale(setting: Setting, right: Results) -> Results:
    answers = as_answers(setting, right)
    scale = setting.given.scale
    return {name: answers[name] / scale for name in ("dq", "dk") if name in answers} | (
        {"dv": answers["dv"]} if "dv" in answers else {}
    )


def scale_by_d(setting: Setting) -> Readings:
    d, scale = setting.given.q.shape[-1], setting.given.scale
    found = [
        (1.0 / d, "", f"q·k is divided by d = {d}, not multiplied by {scale:.4g}", True),
        (scale * scale, "twice", f"the factor {scale:.4g} is applied twice", False),
        (math.sqrt(d), "times", f"q·k is multiplied by √d = {math.sqrt(d):.4g}, not divided by it", False),
    ]
    seen = {scale, 1.0}
    for other, key, says, is_main in found:
        if other not in seen:
            seen.add(other)
            yield Reading("scale_by_d", key, says, _changed(scale=other), is_main=is_main)


def scale_by_sqrt_d_model(setting: Setting) -> Readings:
    heads, d = setting.given.q.shape[2], setting.given.q.shape[-1]
    other = 1.0 / math.sqrt(heads * d)
    if heads > 1 and other not in (setting.given.scale, 1.0 / d):
        says = (
            f"q·k is divided by the root of the whole model dim, √{heads * d}, not by that of a head's, √{d}"
        )
        yield Reading("scale_by_sqrt_d_model", "", says, _changed(scale=other))


# -- masks ---------------------------------------------------------------------------------------------------


def no_mask(setting: Setting) -> Readings:
    kinds = dict(_without(setting))
    if len(kinds) > 1:
        says = "no mask at all is applied, so that forbidden keys are seen"
        yield Reading("no_mask", "", says, _without_any)
    for key, (says, edit) in kinds.items():
        yield Reading("no_mask", key if len(kinds) > 1 else "", says, edit)
    if setting.given.kv_lens is not None and "kv_lens" in setting.arrays:
        says = "keys beyond kv_lens, which are padding, are seen"
        yield Reading("no_mask", "lengths", says, _without_lengths, is_main=False)


def _without_any(setting: Setting) -> Setting:
    return replace(setting.changed(left=None, right=None, bias=None), attn_mask=None, pattern=None)


def _without(setting: Setting) -> Iterator[tuple[str, tuple[str, Edit]]]:
    """Each thing that masks, and the setting without it."""
    attention = setting.spec.attention
    left, right = attention.window
    if attention.is_causal:
        says = "later keys are seen: the causal mask is missing"
        yield "causal", (says, _changed(right=right))
    if (left, right) != (None, None):
        right = 0 if attention.is_causal else None
        says = "keys outside the window are seen: the window is missing"
        yield "window", (says, _changed(left=None, right=right))
    if setting.attn_mask is not None:
        says = "keys that attn_mask forbids are seen: it is not applied"
        yield "attn_mask", (says, lambda given: replace(given, attn_mask=None))
    if setting.given.bias is not None:
        yield "attn_mask", ("attn_mask is not added to the scores", _changed(bias=None))
    if setting.pattern is not None:
        says = "keys outside the pattern are seen: it is not applied"
        yield "pattern", (says, lambda given: replace(given, pattern=None))


def _without_lengths(setting: Setting) -> Setting:
    arrays = {name: array for name, array in setting.arrays.items() if name != "kv_lens"}
    whole = pipeline.resolve(setting.spec, arrays).given
    return setting.changed(k=whole.k, v=whole.v, kv_lens=None)


def mask_after_softmax(setting: Setting) -> Readings:
    if is_masked(setting):
        says = "weights of forbidden keys are set to 0 after the softmax, and the rest is not renormalised"
        yield Reading("mask_after_softmax", "", says, None, _mask_after_softmax)


def _mask_after_softmax(setting: Setting, right: Results) -> Results:
    free = _free_logits(setting, right)
    weights, lse = softmax(setting, free)
    weights = np.where(seen_of(setting), weights, 0.0)
    return {"masked_scores": free, "lse": lse, **from_weights(setting, weights)}


def _free_logits(setting: Setting, right: Results) -> Array:
    """Everything added, nothing forbidden within the lengths."""
    more, inside = added(setting), within_lengths(setting)
    logits = right["softcapped_scores"]
    if more is not None:
        logits = logits + more
    return logits if inside is None else np.where(inside, logits, -np.inf)


def mask_added_as_01(setting: Setting) -> Readings:
    if not is_masked(setting):
        return
    ways = (
        ("allowed", "1 is added where a key is allowed and 0 where not, instead of −inf where not", True),
        ("forbidden", "1 is added where a key is forbidden, instead of −inf", True),
        ("less", "1 is subtracted where a key is forbidden, instead of −inf", False),
        ("filled", "scores of forbidden keys are set to 0, instead of −inf", False),
    )
    for key, says, is_main in ways:
        yield Reading("mask_added_as_01", key, says, None, _added(key), is_main=is_main)
    others = setting.given.left is not None or setting.given.right is not None or setting.pattern is not None
    if setting.attn_mask is not None and others:
        for key, says, _ in ways:
            finish = _added(key, only_attn_mask=True)
            instead = f"in the place of attn_mask {says}"
            yield Reading("mask_added_as_01", f"{key}/attn_mask", instead, None, finish, is_main=False)


def _added(key: str, *, only_attn_mask: bool = False) -> Finish:
    def finish(setting: Setting, right: Results) -> Results:
        if only_attn_mask and setting.attn_mask is not None:
            seen: Array = setting.attn_mask
            others = allowed(replace(setting, attn_mask=None))
        else:
            seen, others = seen_of(setting), within_lengths(setting)
        logits = _free_logits(setting, right)
        if key == "allowed":
            logits = logits + seen
        elif key == "forbidden":
            logits = logits + ~seen
        elif key == "less":
            logits = logits - (~seen).astype(np.float64)
        else:
            logits = np.where(seen, logits, 0.0)
        return from_logits(setting, logits if others is None else np.where(others, logits, -np.inf))

    return finish


def mask_inverted(setting: Setting) -> Readings:
    if not is_masked(setting):
        return
    says = "the mask is the wrong way round: keys are seen where they are forbidden, and only there"
    yield Reading("mask_inverted", "", says, lambda given: with_mask(given, ~seen_of(given)))
    if setting.attn_mask is not None and len(dict(_without(setting))) > 1:
        says = "attn_mask is the wrong way round: true means that a key may be seen"
        yield Reading("mask_inverted", "attn_mask", says, _attn_mask_inverted, is_main=False)
    if setting.spec.attention.is_causal:
        says = "the upper triangle is kept, not the lower: each query sees itself and what follows"
        yield Reading("mask_inverted", "triangle", says, _changed(left=0, right=None), is_main=False)


def _attn_mask_inverted(setting: Setting) -> Setting:
    return replace(setting, attn_mask=None if setting.attn_mask is None else ~setting.attn_mask)


def causal_top_left(setting: Setting) -> Readings:
    yield from _aligned(setting, "top_left")


def causal_bottom_right(setting: Setting) -> Readings:
    yield from _aligned(setting, "bottom_right")


def _aligned(setting: Setting, alignment: str) -> Readings:
    attention = setting.spec.attention
    placed = setting.given.left is not None or setting.given.right is not None or setting.pattern is not None
    if not placed or np.array_equal(_placed(setting, alignment), setting.given.q_positions):
        return
    where = {"top_left": "the first query at the first key", "bottom_right": "the last query at the last key"}
    says = f"the mask is aligned {alignment.replace('_', '-')}, {where[alignment]}"

    def edit(given: Setting) -> Setting:
        pattern = pattern_mask(_with_alignment(given, alignment), given.given.q_lens, given.given.kv_lens)
        if pattern is not None and given.rows is not None and pattern.shape[-2] > 1:
            pattern = pattern[..., list(given.rows), :]
        return replace(given.changed(q_positions=_placed(given, alignment)), pattern=pattern)

    yield Reading(f"causal_{alignment}", "", says, edit)
    if attention.rope is not None and attention.rope.positions is None:

        def turned(given: Setting) -> Setting:
            spec = _with_alignment(given, alignment)
            moved = replace(given, spec=spec).turned(spec.attention.rope)
            return edit(given).changed(**moved)

        says += ", and so are the positions of RoPE"
        yield Reading(f"causal_{alignment}", "rope", says, turned, is_main=False)


def _with_alignment(setting: Setting, alignment: str) -> RunSpec:
    attention = replace(setting.spec.attention, causal_alignment=alignment, q_positions=None)
    return replace(setting.spec, attention=attention)


def _placed(setting: Setting, alignment: str) -> Array:
    """Where another alignment puts the queries."""
    given = setting.given
    found = query_positions(_with_alignment(setting, alignment), given.q_lens, given.kv_lens)
    return found if setting.rows is None else found[:, list(setting.rows)]


def strict_causal(setting: Setting) -> Readings:
    if not setting.spec.attention.is_causal:
        return
    says = "a query does not see its own key: j < i instead of j ≤ i"
    yield Reading("strict_causal", "", says, _changed(right=-1))
    says = "the causal mask is off by one: each query sees one key too many, j ≤ i + 1"
    yield Reading("strict_causal", "one more", says, _changed(right=1), is_main=False)


def window_off_by_one(setting: Setting) -> Readings:
    left, right = setting.spec.attention.window
    if (left, right) == (None, None):
        return
    causal = setting.spec.attention.is_causal
    for step, much in ((-1, "one key too few"), (1, "one key too many")):
        sides: dict[str, dict[str, int]] = {}
        if left is not None:
            sides["left"] = {"left": left + step}
        if right is not None and not causal:
            sides["right"] = {"right": right + step}
        if len(sides) == 2:
            sides["both"] = sides["left"] | sides["right"]
        for side, fields in sides.items():
            says = f"the window sees {much} on {'both sides' if side == 'both' else 'the ' + side}"
            key, is_main = f"{side}{step:+d}", side != "both"
            yield Reading("window_off_by_one", key, says, _changed(**fields), is_main=is_main)


# -- rotary embedding ----------------------------------------------------------------------------------------


def rope_other_pairing(setting: Setting) -> Readings:
    rope = setting.spec.attention.rope
    if rope is None:
        return
    other = "interleaved" if rope.style == "half" else "half"
    pairs = {"half": "i with i + d/2", "interleaved": "2i with 2i + 1"}
    says = f"RoPE pairs dimension {pairs[other]} ({other}), where it should pair {pairs[rope.style]}"
    yield Reading("rope_other_pairing", "", says, _with_rope(style=other))
    says = "RoPE takes its pairs from one convention and puts them back by the other, which is no rotation"
    yield Reading("rope_other_pairing", "mixed", says, _mixed, is_main=False)
    if rope.dim is not None and rope.dim < setting.given.q.shape[-1] - rope.dim_offset:
        says = f"RoPE turns all dimensions, where only {rope.dim} are to turn"
        yield Reading("rope_other_pairing", "dim", says, _with_rope(dim=None), is_main=False)


def _with_rope(**fields: Any) -> Edit:
    def edit(setting: Setting) -> Setting:
        rope = setting.spec.attention.rope
        return setting if rope is None else setting.changed(**setting.turned(replace(rope, **fields)))

    return edit


def _mixed(setting: Setting) -> Setting:
    rope, past = setting.spec.attention.rope, _past(setting)
    if rope is None:
        return setting
    plain, angles = setting.turned(None), rope_angles(setting.spec, _of_one(setting))
    rows = slice(None) if setting.rows is None else list(setting.rows)
    q_cos, q_sin = (x[:, rows] for x in angles["q"])
    k_cos, k_sin = angles["k"]
    k = plain["k"]
    fresh = _mix(k[..., past:, :], k_cos, k_sin, rope)
    q = _mix(plain["q"], q_cos, q_sin, rope)
    return setting.changed(q=q, k=np.concatenate([k[..., :past, :], fresh], axis=-2))


def _mix(x: Array, cos: Array, sin: Array, rope: Rope) -> Array:
    width, start = 2 * cos.shape[-1], rope.dim_offset
    part = x[..., start : start + width]
    cos, sin = (np.repeat(each[:, None], 2, axis=-1) for each in (cos, sin))
    turned = np.concatenate([-part[..., 1::2], part[..., ::2]], axis=-1)
    mixed = x.copy()
    mixed[..., start : start + width] = part * cos + turned * sin
    return mixed


def _of_one(setting: Setting) -> dict[str, Array]:
    return {name: array[0] for name, array in setting.arrays.items()}


def _past(setting: Setting) -> int:
    return setting.arrays["past_key"].shape[-2] if "past_key" in setting.arrays else 0


def rope_missing(setting: Setting) -> Readings:
    rope = setting.spec.attention.rope
    if rope is None:
        return

    def without(*names: str) -> Edit:
        def edit(given: Setting) -> Setting:
            plain = given.turned(None)
            return given.changed(**{name: plain[name] for name in names})

        return edit

    yield Reading("rope_missing", "", "q and k are not rotated: RoPE is missing", without("q", "k"))
    yield Reading("rope_missing", "q", "q is not rotated, only k is", without("q"), is_main=False)
    yield Reading("rope_missing", "k", "k is not rotated, only q is", without("k"), is_main=False)
    if rope.scaling is not None:
        says = f"the scaling of RoPE ({rope.scaling['type']}) is missing"
        yield Reading("rope_missing", "scaling", says, _with_rope(scaling=None), is_main=False)


def rope_positions_off_by_one(setting: Setting) -> Readings:
    if setting.spec.attention.rope is None:
        return
    says = "queries are rotated by one position too {}, as if each stood one token {} than it does"
    for step, words in ((1, ("many", "later")), (-1, ("few", "earlier"))):
        edit = _turned_by(step)
        yield Reading("rope_positions_off_by_one", f"{step:+d}", says.format(*words), edit)
    past = _past(setting)
    if past:
        places = {
            1: "by one position too many",
            -1: "by one position too few",
            -past: f"from position 0 on, although {past} tokens are before them",
        }
        for step, where in places.items():
            says = f"new queries and keys are rotated {where}"
            edit = _turned_by(step, with_keys=True)
            yield Reading("rope_positions_off_by_one", f"new {step:+d}", says, edit, is_main=False)


def _turned_by(step: int, *, with_keys: bool = False) -> Edit:
    """A rotation by one position more is that of position 1 after the right one."""

    def edit(setting: Setting) -> Setting:
        rope = setting.spec.attention.rope
        if rope is None:
            return setting
        dim, whole = rotated_dim(rope, setting.given.q.shape[-1]), _positions_in_use(setting)
        omega, _ = frequencies(rope, dim, whole)
        one = (np.cos(step * omega)[None, None], np.sin(step * omega)[None, None])
        q, k, past = setting.given.q, setting.given.k, _past(setting)
        if with_keys:
            fresh = rotate(k[..., past:, :], *one, style=rope.style, dim_offset=rope.dim_offset)
            k = np.concatenate([k[..., :past, :], fresh], axis=-2)
        return setting.changed(q=rotate(q, *one, style=rope.style, dim_offset=rope.dim_offset), k=k)

    return edit


def _positions_in_use(setting: Setting) -> int:
    """As ``kernels.operands.rope_angles`` counts them."""
    spec, given = setting.spec, setting.given
    rope = spec.attention.rope
    if rope is not None and rope.positions is not None:
        found = [resolve(rope.positions, spec.q_len)]
    else:
        found = [given.kv_positions, query_positions(spec, given.q_lens, given.kv_lens)]
    return 1 + max(int(x.max(initial=-1)) for x in found)


def rope_on_v(setting: Setting) -> Readings:
    rope = setting.spec.attention.rope
    if rope is None:
        return
    width = setting.given.v.shape[-1]
    dim = rope.dim if rope.dim is not None else width - rope.dim_offset
    if dim < 2 or dim % 2 or rope.dim_offset + dim > width:
        return

    def edit(given: Setting) -> Setting:
        past, v = _past(given), given.given.v
        own = replace(rope, dim=dim)
        if dim == rotated_dim(rope, given.given.k.shape[-1]):
            cos, sin = rope_angles(given.spec, _of_one(given))["k"]
        else:
            if own.scaling is not None and own.scaling["type"] == "longrope":
                return given
            cos, sin = cos_sin(own, dim, given.given.kv_positions[:, past:])
        fresh = rotate(v[..., past:, :], cos, sin, style=rope.style, dim_offset=rope.dim_offset)
        return given.changed(v=np.concatenate([v[..., :past, :], fresh], axis=-2))

    yield Reading("rope_on_v", "", "v is rotated too: RoPE turns q and k alone", edit)


# -- softcap, ALiBi, sinks -----------------------------------------------------------------------------------


def softcap_missing(setting: Setting) -> Readings:
    if setting.given.softcap:
        says = f"the softcap of {setting.given.softcap:g} is missing"
        yield Reading("softcap_missing", "", says, _changed(softcap=0.0))


def softcap_after_mask(setting: Setting) -> Readings:
    cap = setting.given.softcap
    if not cap or not (is_masked(setting) or added(setting) is not None):
        return
    says = f"the softcap comes after the mask, which turns −inf into −{cap:g} and lets forbidden keys be seen"
    if not is_masked(setting):
        says = "the softcap comes after what is added to the scores; it belongs before"
    yield Reading("softcap_after_mask", "", says, None, _softcap_last)
    if is_masked(setting) and added(setting) is not None:
        says = f"the softcap comes between the mask and the bias: −inf becomes −{cap:g}"
        yield Reading("softcap_after_mask", "bias", says, None, _softcap_between, is_main=False)


def _softcap_last(setting: Setting, right: Results) -> Results:
    more = added(setting)
    logits = right["scores"] if more is None else right["scores"] + more
    return _capped_late(setting, np.where(seen_of(setting), logits, -np.inf))


def _softcap_between(setting: Setting, right: Results) -> Results:
    return _capped_late(setting, np.where(seen_of(setting), right["scores"], -np.inf), added(setting))


def _capped_late(setting: Setting, logits: Array, more: Array | None = None) -> Results:
    logits, inside = capped(logits, setting.given.softcap), within_lengths(setting)
    if more is not None:
        logits = logits + more
    return from_logits(setting, logits if inside is None else np.where(inside, logits, -np.inf))


def alibi_missing(setting: Setting) -> Readings:
    if setting.given.slopes is not None:
        says = "the ALiBi bias is missing"
        yield Reading("alibi_missing", "", says, _changed(slopes=None))


def alibi_sign(setting: Setting) -> Readings:
    slopes = setting.given.slopes
    if slopes is None:
        return
    says = "the ALiBi bias has the wrong sign: far keys gain what they should lose"
    yield Reading("alibi_sign", "", says, _changed(slopes=-slopes))
    says = "the ALiBi bias is −slope·|i − j|: later keys lose too, where slope·(j − i) lets them gain"
    yield Reading("alibi_sign", "distance", says, _by_distance, is_main=False)


def _by_distance(setting: Setting) -> Setting:
    slopes, bias = setting.given.slopes, setting.given.bias
    if slopes is None:
        return setting
    more = -slopes.astype(np.float64)[:, :, None, None] * np.abs(distance(setting.given))
    return setting.changed(slopes=None, bias=more[None] if bias is None else bias + more)


def sink_missing(setting: Setting) -> Readings:
    sinks = setting.given.sinks
    if sinks is not None and bool(np.isfinite(sinks).any()):
        yield Reading("sink_missing", "", "the sink is missing from the denominator", _changed(sinks=None))


def sink_double(setting: Setting) -> Readings:
    sinks = setting.given.sinks
    if sinks is None or not bool(np.isfinite(sinks).any()):
        return
    says = "the sink is counted twice in the denominator"
    yield Reading("sink_double", "", says, _times_sinks(2))
    m = setting.given.k.shape[-2]
    seen = {1, 2}
    for block in (16, 32, 64, 128):
        count = -(-m // block)
        if count not in seen:
            seen.add(count)
            says = f"the sink is counted once for each block of {block} keys, {count} times in all"
            yield Reading("sink_double", f"block {block}", says, _times_sinks(count), is_main=False)


def _times_sinks(count: int) -> Edit:
    def edit(setting: Setting) -> Setting:
        sinks = setting.given.sinks
        return setting if sinks is None else setting.changed(sinks=sinks.astype(np.float64) + math.log(count))

    return edit
