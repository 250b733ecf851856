"""Verdicts, reasons and mistakes as people say them."""

import re
from collections.abc import Mapping
from typing import Any

from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as lazy

from kernels.grading.hypotheses import HINTS
from lab import units

Words = str | Promise
MINUS = {"-": "−", "−": "−", "+": ""}

VERDICTS: Mapping[str, Words] = {
    "accepted": lazy("Right"),
    "wrong_answer": lazy("Not right yet"),
    "rejected": lazy("Nothing to grade"),
    "internal_error": lazy("Not graded, through our fault"),
}
STATES: Mapping[str, Words] = {
    "queued": lazy("waiting for a grader"),
    "grading": lazy("being graded"),
    "graded": lazy("graded"),
    "error": lazy("not graded"),
    "canceled": lazy("taken back"),
}
# What a pill of the design system is to look like.
LOOKS = {
    "queued": "queued",
    "grading": "running",
    "accepted": "succeeded",
    "wrong_answer": "failed",
    "rejected": "failed",
    "error": "canceled",
    "canceled": "canceled",
}
REASONS: Mapping[str, Words] = {
    "numeric_mismatch": lazy("Some numbers are further from the right ones than rounding explains."),
    "mask_leak": lazy("A query sees a key that it may not see."),
    "non_finite": lazy("There are numbers that are not finite where finite ones are right."),
    "shape_mismatch": lazy("An answer is missing, or has another shape than is asked for."),
    "dtype_mismatch": lazy("An answer does not hold the kind of numbers that is asked for."),
    "no_answers": lazy("Nothing that is asked for was handed in."),
    "missing": lazy("It was not handed in."),
}
VISIBILITIES: Mapping[str, Words] = {
    "visible": lazy("shown"),
    "hidden": lazy("hidden"),
    "after_due_date": lazy("hidden until the last due date"),
    "after_published": lazy("hidden until grades are published"),
}
SEED_SCOPES: Mapping[str, Words] = {
    "student": lazy("your own, the same at every try"),
    "submission": lazy("your own, new at every try"),
    "fixed": lazy("the same for everybody"),
}
# What an answer was instead of right: to follow “This is the right computation …”.
MISTAKES: Mapping[str, Words] = {
    "no_scale": lazy("without 1/√d"),
    "scale_by_d": lazy("with 1/d in the place of 1/√d"),
    "scale_by_sqrt_d_model": lazy("scaled by the width of the whole model in the place of a head’s"),
    "no_mask": lazy("without the mask"),
    "mask_after_softmax": lazy("masked after the softmax, so that the weights no longer sum to 1"),
    "mask_added_as_01": lazy("with 0 and 1 added for a mask in the place of 0 and −∞"),
    "mask_inverted": lazy("with the mask the other way round"),
    "causal_top_left": lazy("with the causal mask aligned at the first key"),
    "causal_bottom_right": lazy("with the causal mask aligned at the last key"),
    "strict_causal": lazy("in which no query sees its own position"),
    "softmax_over_queries": lazy("with the softmax along the queries"),
    "unnormalised": lazy("with weights that are not divided by their sum"),
    "no_softmax": lazy("without the softmax"),
    "uniform_weights": lazy("with equal weights for all keys"),
    "argmax_weights": lazy("with the best key alone"),
    "zeros": lazy("replaced by zeros"),
    "returned_v": lazy("replaced by V itself"),
    "heads_tiled": lazy("with key heads tiled where they are to be repeated"),
    "heads_swapped": lazy("with the heads in another order"),
    "heads_merged_wrong": lazy("with heads and positions mixed by a reshape"),
    "transposed": lazy("with its last two axes swapped"),
    "rope_other_pairing": lazy("with RoPE turning other pairs of dimensions"),
    "rope_missing": lazy("without RoPE"),
    "rope_positions_off_by_one": lazy("with RoPE’s positions off by one"),
    "rope_on_v": lazy("with RoPE on V too"),
    "softcap_missing": lazy("without the softcap"),
    "softcap_after_mask": lazy("with the softcap after the mask"),
    "window_off_by_one": lazy("with a window that ends one key off"),
    "alibi_missing": lazy("without ALiBi"),
    "alibi_sign": lazy("with ALiBi’s sign the other way round"),
    "sink_missing": lazy("without the sink"),
    "sink_double": lazy("with the sink counted twice"),
    "lse_base2": lazy("with logarithms to the base 2"),
    "lse_without_max": lazy("with an LSE to which the maximum was not added back"),
    "online_no_rescale": lazy("in blocks whose older sums were not rescaled"),
    "last_block_dropped": lazy("without its last block"),
    "block_mean": lazy("with blocks averaged as if they weighed the same"),
    "block_off_by_one": lazy("with blocks one too many, or counted from 1"),
    "block_order": lazy("with blocks taken, freed or written in another order"),
    "copy_missing": lazy("without the copy of a shared block that is written to"),
    "copy_needless": lazy("with copies of blocks that need none"),
    "freed_while_shared": lazy("with blocks freed while another table holds them"),
    "draft_always_accepted": lazy("with every drafted token accepted"),
    "accepted_without_ratio": lazy("with drafted tokens accepted where p ≥ q and nowhere else"),
    "ratio_inverted": lazy("with q/p in the place of p/q"),
    "examined_on": lazy("with drafted tokens looked at beyond one that was refused"),
    "residual_missing": lazy("with refused tokens replaced by some from p in the place of the residual"),
    "residual_not_normalised": lazy("with a residual that is not divided by its sum"),
    "other_uniform": lazy("with another of the random numbers for the last token"),
    "bonus_missing": lazy("without the token that follows a draft accepted whole"),
    "low_precision": lazy("in too low a precision"),
}
PROGRESS: Mapping[str, Words] = {
    "right": lazy("all right"),
    "partly": lazy("partly right"),
    "wrong": lazy("nothing right yet"),
    "waiting": lazy("without a verdict"),
}
PHASES: Mapping[str, Words] = {
    "unreleased": lazy("not open yet"),
    "open": lazy("open"),
    "closed": lazy("closed"),
}
NOTES: Mapping[str, Words] = {
    "low_precision": lazy("Some answers are right, but less precise than the number format of the problem.")
}
PROPERTIES: Mapping[str, Words] = {
    "rows_sum_to_one": lazy("The weights of a query sum to 1."),
    "value_of_ones": lazy("Where every value is 1, so is every output."),
    "future_keys_do_not_matter": lazy("A key that a query may not see can change without changing it."),
}


MADE: Mapping[str, Words] = {
    "value_of_ones": lazy("with every value 1"),
    "future_keys_do_not_matter": lazy("with another last key"),
}


def mistake(code: str) -> Words:
    """A code in words; one that is new here says itself."""
    return MISTAKES.get(code, code.replace("_", " "))


def hint(code: str) -> str:
    return HINTS.get(code, "")


def diagnosis(hypotheses: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each hypothesis as a sentence, with its residual, and what there is to learn."""
    found = []
    for each in hypotheses:
        residual = units.error(each["residual"])
        sentence = _("This is the right computation {mistake}: residual {residual}.")
        found.append(
            {
                "code": each["code"],
                "sentence": sentence.format(mistake=mistake(each["code"]), residual=residual),
                "hint": hint(each["code"]),
            }
        )
    return found


def note(text: str) -> Words:
    return NOTES.get(text, text)


def case_name(name: str) -> str:
    """A case that a property made says what is different in it."""
    base, _dot, made_by = name.rpartition(".")
    return f"{base}, {MADE[made_by]}" if base and made_by in MADE else name


def typeset(text: str) -> str:
    """Exponents as everywhere on pages, and unbroken: 8e-07 -> 8e−7."""
    return re.sub(r"(?<=\d)e([-+−])0?(\d+)", lambda found: f"e{MINUS[found[1]]}{found[2]}", text)


def points(value: float | None) -> str:
    """3 -> 3; 2.5 -> 2.5; 1/3 -> 0.33"""
    return "–" if value is None else f"{value:.2f}".rstrip("0").rstrip(".")


def look(status: str, verdict: str | None) -> str:
    """The kind of pill for a submission."""
    return LOOKS.get(verdict or status, "queued")


def state(status: str, verdict: str | None) -> Words:
    """A submission in a word or two."""
    return VERDICTS.get(verdict or "") or STATES.get(status, status)
