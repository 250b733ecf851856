"""What each flip is called, what it teaches, and why it changes the cells that it does, in a run's numbers.

`kernels.flips` says what a flip does. A label names it on a button; `why` is a sentence or two that stands
before the numbers and is true before anything is computed; `apart` says with which inputs two conventions can
be told from each other.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from kernels.flips import SAME_LENGTHS, SINK, SOFTCAP, STEEPER, Flip, padded
from kernels.positions import automatic_slopes
from kernels.registry import ENGINES
from kernels.spec import RunSpec
from lab import units
from lab.heatmap import number

Text = Promise | str

GROUPS: dict[str, Text] = {
    "causal_alignment": gettext_lazy("Causal alignment"),
    "causal": gettext_lazy("Causal mask"),
    "padding": gettext_lazy("Causal or padding mask"),
    "rope_pairing": gettext_lazy("RoPE pairing"),
    "rope": gettext_lazy("RoPE"),
    "window": gettext_lazy("Window"),
    "reach": gettext_lazy("Window"),
    "diagonal": gettext_lazy("Causal diagonal"),
    "scale": gettext_lazy("Scale"),
    "softcap": gettext_lazy("Softcap"),
    "sink": gettext_lazy("Sink"),
    "alibi": gettext_lazy("ALiBi"),
    "heads": gettext_lazy("Grouped heads"),
    "pattern": gettext_lazy("Pattern"),
    "dtype": gettext_lazy("Number format"),
    "engine": gettext_lazy("Engine"),
}

LABELS: dict[str, Text] = {
    "causal_alignment.top_left": gettext_lazy("top left: the first query at the first key"),
    "causal_alignment.bottom_right": gettext_lazy("bottom right: the last query at the last key"),
    "causal.on": gettext_lazy("on"),
    "causal.off": gettext_lazy("off"),
    "padding.causal": gettext_lazy("causal in the place of the padding mask"),
    "padding.mask": gettext_lazy("a padding mask in the place of the causal one"),
    "padding.seen": gettext_lazy("the padding seen"),
    "rope_pairing.half": gettext_lazy("halves"),
    "rope_pairing.interleaved": gettext_lazy("neighbours"),
    "rope.off": gettext_lazy("off"),
    "window.left_more": gettext_lazy("one key more on the left"),
    "window.left_less": gettext_lazy("one key less on the left"),
    "window.right_more": gettext_lazy("one key more on the right"),
    "window.right_less": gettext_lazy("one key less on the right"),
    "scale.none": gettext_lazy("1: without 1/√d"),
    "scale.root": gettext_lazy("1/√d"),
    "softcap.on": gettext_lazy("on"),
    "softcap.off": gettext_lazy("off"),
    "sink.on": gettext_lazy("on"),
    "sink.off": gettext_lazy("off"),
    "alibi.on": gettext_lazy("on"),
    "alibi.off": gettext_lazy("off"),
    "alibi.steeper": gettext_lazy("slopes twice as steep"),
    "alibi.sign": gettext_lazy("slopes with the other sign"),
    "heads.interleaved": gettext_lazy("interleaved, not consecutive"),
    "pattern.full": gettext_lazy("all pairs"),
    "pattern.window": gettext_lazy("a sliding window"),
    "pattern.bigbird": gettext_lazy("BigBird"),
}


def label(flip: Flip) -> str:
    """What is chosen, after the name of its group."""
    if flip.kind == "engine":
        return f"{flip.to}: {ENGINES[flip.to].title}" if ENGINES[flip.to].title != flip.to else flip.to
    if flip.kind == "reach":
        return _reach_label(flip)
    if flip.kind == "diagonal":
        return _("query i sees keys up to {key}").format(key=moved(int(flip.to)))
    return str(LABELS.get(flip.name, flip.to))


def _reach_label(flip: Flip) -> str:
    """A corner is named where there are two."""
    spec = flip.spec
    keys = (spec.attention.window[0] or 0) + 1
    text = _("{keys} keys with the query’s own").format(keys=keys)
    if spec.q_len == spec.kv_len:
        return text
    return f"{text}, {now('causal_alignment', spec)}"


def title(flip: Flip) -> str:
    """Causal alignment: top left"""
    chosen = flip.to if flip.kind in ("engine", "dtype") else label(flip)
    return f"{GROUPS[flip.kind]}: {chosen}"


def now(kind: str, spec: RunSpec) -> str:
    """How it is in this run, where that has a name; "" where it has none."""
    attention = spec.attention
    names = {
        "causal_alignment": attention.causal_alignment.replace("_", " "),
        "causal": LABELS["causal.on" if attention.is_causal else "causal.off"],
        "rope_pairing": LABELS[f"rope_pairing.{attention.rope.style}"] if attention.rope else "",
        "scale": LABELS["scale.root"] if attention.scale is None else number(attention.scale),
        "dtype": spec.dtype,
        "engine": spec.engine,
    }
    return str(names.get(kind, ""))


def idle(flip: Flip, spec: RunSpec) -> str:
    """Why a flip would change nothing here."""
    if flip.idle == SAME_LENGTHS:
        return _(
            "There are as many queries as keys ({count}), so that both alignments are the same mask. They "
            "differ where q_len and kv_len do: try fewer queries than keys."
        ).format(count=units.whole(spec.q_len))
    return _("It would forbid no pair here: no key is later than the query that looks at it.")


# --- Why these cells change -----------------------------------------------------------------------


@dataclass(frozen=True)
class Change:
    """Two runs that differ by one flip."""

    flip: Flip
    before: RunSpec

    @property
    def after(self) -> RunSpec:
        return self.flip.spec


def why(change: Change) -> str:
    """Which cells change, and why, in the numbers of the run."""
    return _WHY[change.flip.kind](change)


def _alignment(change: Change) -> str:
    spec, to_top = change.before, change.flip.to == "top_left"
    n, m = spec.q_len, spec.kv_len
    away = m - n
    if {"q_lens", "kv_lens"} & spec.inputs.keys() or spec.attention.kv_positions is not None:
        return _(
            "Bottom right puts the last query at the last key of each batch row, as its lengths and "
            "positions say; top left puts the first query at the first key. Where the two differ, every "
            "query moves, and with it the diagonal and all distances."
        )
    text = _(
        "There are {n} queries and {m} keys. Bottom right puts the last query at the last key, so that query "
        "i stands at position i + {away}; top left puts the first query at the first key, and query i at i."
    ).format(n=units.whole(n), m=units.whole(m), away=bracketed(away))
    if spec.attention.rope or spec.attention.alibi_slopes:
        text += " " + _(
            "RoPE and ALiBi go by the distance of query and key, which changes by {away}: so scores change "
            "too."
        ).format(away=units.whole(abs(away)))
    if spec.attention.sides[1] != 0:
        return text
    return f"{text} {_causal_alignment(away, to_top=to_top)}"


def _causal_alignment(away: int, *, to_top: bool) -> str:
    """What a causal mask makes of it."""
    if away > 0:
        sentence = (
            _("Causally, each query then loses the {away} keys at positions i + 1 … i + {away}.")
            if to_top
            else _("Causally, each query then gains the {away} keys at positions i + 1 … i + {away}.")
        )
    else:
        sentence = (
            _("Causally, each query gains up to {away} keys: at bottom right, the first {away} saw none.")
            if to_top
            else _("Causally, each query loses up to {away} keys, and the first {away} see none at all.")
        )
    return sentence.format(away=units.whole(abs(away)))


def _causal(change: Change) -> str:
    spec = change.before
    if change.flip.to == "off":
        return _(
            "Without the causal mask, each query also sees the keys after its own position: the earlier a "
            "query, the more keys it gains, and the more the rest of its row shrinks to make room for them."
        )
    return _(
        "A causal mask forbids every key after the query’s position: of {pairs} pairs, those above the "
        "diagonal. What is left of a row is divided by a smaller sum, so that all its weights grow."
    ).format(pairs=units.whole(spec.q_len * spec.kv_len))


def _padding(change: Change) -> str:
    m = change.before.kv_len
    if change.flip.to == "mask":
        return _(
            "A causal mask is a triangle: what is forbidden depends on the query. A padding mask is a "
            "stripe: it forbids the same keys to all queries, here the last {padded} of {m} as if they were "
            "padding. So each query now sees the future, up to key {last}, and no query sees the padding."
        ).format(padded=padded(m), m=units.whole(m), last=m - padded(m) - 1)
    if change.flip.to == "seen":
        return _(
            "Without kv_lens, what lies beyond the lengths is read like any other key. The causal mask does "
            "not keep it out: where the padding is on the right, late queries see it."
        )
    return _(
        "A padding mask forbids the same keys to all queries; a causal mask forbids each query the keys "
        "after it. With the second in the place of the first, late queries see the padding, and early ones "
        "lose real keys."
    )


def _pairing(change: Change) -> str:
    rope = change.before.attention.rope
    d = (rope.dim if rope and rope.dim else None) or change.before.rope_head_dim
    return _(
        "RoPE turns pairs of dimensions by an angle that grows with the position. Halves pair dimension i "
        "with i + {half}, neighbours pair 2i with 2i + 1; the angles are the same, on other dimensions. So "
        "every score of a query and a key at different positions changes; where both stand at the same "
        "position, both are turned alike and the score stays."
    ).format(half=d // 2)


def _rope(change: Change) -> str:
    return _(
        "Without rotation, a score no longer depends on how far apart query and key stand. Where both stand "
        "at the same position, both were turned by the same angle and their score stays."
    )


def _window(change: Change) -> str:
    place = 0 if change.flip.to.startswith("left") else 1
    before, after = change.before.attention.window[place], change.after.attention.window[place]
    far = max(before or 0, after or 0)
    sentence = {
        "left_more": _("the key {far} positions before it comes into view"),
        "left_less": _("the key {far} positions before it goes out of view"),
        "right_more": _("the key {far} positions after it comes into view"),
        "right_less": _("the key {far} positions after it goes out of view"),
    }[change.flip.to].format(far=far)
    return _(
        "A window says how many keys away from its position a query sees, the ends included: {before} "
        "before, {after} now. For each query {what}, one cell of its row, where there is such a key; the "
        "other weights of the row change because they share its sum."
    ).format(before=before, after=after, what=sentence)


def _reach(change: Change) -> str:
    spec = change.after
    left = spec.attention.window[0] or 0
    first = 0 if spec.attention.causal_alignment == "top_left" else spec.kv_len - spec.q_len
    return _(
        "Query i stands at position {place}, and sees that key and the {left} before it, where there are "
        "such keys. A library that counts distances calls this a window of {left}, one that counts keys a "
        "window of {keys}."
    ).format(place=moved(first), left=left, keys=left + 1)


def _diagonal(change: Change) -> str:
    away = change.before.kv_len - change.before.q_len
    corners = (
        _("As many queries as keys: query i should see keys up to i.")
        if away == 0
        else _("Bottom right, it would be up to {place}, and top left up to i.").format(place=moved(away))
    )
    return f"{corners} " + _("Positions were counted from elsewhere, as where a cache holds more or less.")


def _scale(change: Change) -> str:
    before, after = change.before.scale, change.after.scale
    return _(
        "Every score is multiplied by {after} in the place of {before}: all scores change by the factor "
        "{factor}. Larger scores make a sharper softmax, smaller ones a flatter one. A score of 0 stays, and "
        "so does the weight of a row with a single key."
    ).format(
        after=number(after), before=number(before), factor=units.significant(after / before if before else 0)
    )


def _softcap(change: Change) -> str:
    cap = change.before.attention.softcap or SOFTCAP
    text = _(
        "A softcap bends every score s to c · tanh(s/c), with c = {cap}: scores near 0 hardly change, and "
        "none exceeds {cap}."
    ).format(cap=units.significant(cap))
    ends = (
        _("So the largest scores grow back, and their rows become sharper.")
        if change.flip.to == "off"
        else _("So the largest scores shrink most, and their rows become flatter.")
    )
    return f"{text} {ends}"


def _sink(change: Change) -> str:
    logits = change.before.attention.sinks or (SINK,)
    text = _(
        "A sink is a logit in the denominator of the softmax, with no value: exp({logit}) beside the "
        "exponentials of the keys. Scores do not change."
    ).format(logit=number(logits[0]) if len(set(logits)) == 1 else "sink")
    if change.flip.to == "on":
        return f"{text} " + _(
            "Every weight of a row shrinks by the same factor, and the row sums to less than 1."
        )
    return f"{text} " + _(
        "Without it, every weight of a row grows by the same factor, and the row sums to 1."
    )


def _alibi(change: Change) -> str:
    text = _(
        "ALiBi adds slope · (key position − query position) to each score, with a slope for each head. It "
        "adds 0 where both stand at the same position, and more the further apart they are."
    )
    ends = {
        "on": _("Here the first slope is {slope}.").format(
            slope=units.significant(automatic_slopes(change.before.num_heads)[0])
        ),
        "off": _("Without it, distance no longer counts."),
        "steeper": _("With slopes {times} times as steep, distant keys lose weight faster.").format(
            times=number(STEEPER, 0)
        ),
        "sign": _("With the other sign, distant keys gain where they lost: a popular mistake."),
    }
    return f"{text} {ends[change.flip.to]}"


def _heads(change: Change) -> str:
    spec = change.before
    heads, kv = spec.num_heads, spec.num_kv_heads
    moved = [h for h in range(heads) if h // (heads // kv) != h % kv]
    return _(
        "{heads} query heads share {kv} key heads. Consecutive groups: query head h reads key head ⌊h ∕ "
        "{group}⌋. Interleaved, as tiling the key heads does: h mod {kv}. The two differ for query heads "
        "{moved}, in all of their cells, and agree on the others."
    ).format(heads=heads, kv=kv, group=heads // kv, moved=listed(moved))


def _pattern(change: Change) -> str:
    spec, to = change.after, change.flip.to
    if to == "full":
        return _(
            "Without the pattern, every query sees all keys (up to its own, where it is causal). What was "
            "masked comes into view, and every weight of such a row changes."
        )
    if to == "window":
        left, right = spec.attention.sides
        return _(
            "A window of {left} keys before and {right} after the query’s position: what is further away is "
            "masked, near the diagonal every pair stays."
        ).format(left=left, right=right)
    pattern = spec.attention.pattern or {}
    return _(
        "BigBird sees, in blocks of {block} tokens, {window} blocks around the own one, the first {first} as "
        "global tokens, and {random} drawn at random. The rest is masked."
    ).format(
        block=pattern.get("block"),
        window=pattern.get("window"),
        first=pattern.get("global"),
        random=pattern.get("random"),
    )


BITS = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}


def _dtype(change: Change) -> str:
    before, after = change.before.dtype, change.after.dtype
    return _(
        "q, k and v are rounded to {after}, which keeps {bits} bits of each number, in the place of {before} "
        "with {before_bits}. No convention changes, and no pair is masked or seen anew: the larger q and k, "
        "the more scores move; the larger v, the more the output."
    ).format(after=after, bits=BITS[after], before=before, before_bits=BITS[before])


def _engine(change: Change) -> str:
    before, after = ENGINES[change.before.engine], ENGINES[change.after.engine]
    if before.computes == after.computes:
        return _(
            "Both engines compute {what}, in another order of sums: in float64 nothing changes at all, and "
            "what they returned differs by rounding."
        ).format(what=before.computes)
    return _(
        "The engines compute different things: {before}, and {after}. There is no matrix of scores that both "
        "have, so their outputs are compared."
    ).format(before=before.computes, after=after.computes)


_WHY: dict[str, Callable[[Change], str]] = {
    "causal_alignment": _alignment,
    "causal": _causal,
    "padding": _padding,
    "rope_pairing": _pairing,
    "rope": _rope,
    "window": _window,
    "reach": _reach,
    "diagonal": _diagonal,
    "scale": _scale,
    "softcap": _softcap,
    "sink": _sink,
    "alibi": _alibi,
    "heads": _heads,
    "pattern": _pattern,
    "dtype": _dtype,
    "engine": _engine,
}

# --- How to tell them apart -----------------------------------------------------------------------

APART: dict[str, Text] = {
    "causal_alignment": gettext_lazy("use fewer queries than keys: q_len ≠ kv_len"),
    "causal": gettext_lazy("use more than one query, and keys that come later than some of them"),
    "padding": gettext_lazy("use keys that are padding and others that are in the future"),
    "rope_pairing": gettext_lazy("use a head dimension above 2, and positions that differ"),
    "rope": gettext_lazy("use positions that differ: more than one key"),
    "window": gettext_lazy("use more keys than the window holds"),
    "scale": gettext_lazy("use a head dimension other than 1, and scores that are not 0"),
    "softcap": gettext_lazy("use larger queries and keys, whose scores come near the softcap"),
    "sink": gettext_lazy("use a sink whose logit is near the scores"),
    "alibi": gettext_lazy("use more than one key, so that distances differ"),
    "heads": gettext_lazy("use at least two key heads, and more query heads than those"),
    "pattern": gettext_lazy("use a text longer than the window or the pattern reaches"),
}


def apart(kinds: list[str]) -> list[str]:
    return [str(APART[kind]) for kind in dict.fromkeys(kinds) if kind in APART]


# --- Small words ----------------------------------------------------------------------------------


def bracketed(value: int) -> str:
    """In brackets where it is negative: i + (−2)."""
    text = units.whole(value)
    return f"({text})" if value < 0 else text


def moved(by: int) -> str:
    """Where query i stands: i, i + 2, i − 1."""
    return "i" if by == 0 else f"i {'+' if by > 0 else '−'} {abs(by)}"


def listed(numbers: list[int], most: int = 8) -> str:
    """0, 2, 5 and so on, not all of very many."""
    text = ", ".join(str(each) for each in numbers[:most])
    return f"{text}, …" if len(numbers) > most else text or "–"


def shown(value: Any) -> str:
    """A setting as it reads in a table."""
    if value is None:
        return _("not set")
    if isinstance(value, bool):
        return _("yes") if value else _("no")
    text = str(value).replace("None", "∞") if isinstance(value, list | tuple) else str(value)
    return text if len(text) <= 80 else text[:79] + "…"
