"""What the form offers for an engine, by what the registry says that it has. No engine is named here."""

from dataclasses import dataclass
from typing import Any

from django.utils.translation import gettext_lazy as _

from kernels.registry import ENGINES, Engine
from kernels.spec.families import PLAIN, REPLACING
from kernels.spec.results import DRAWN, GRADIENTS, RESULTS, TRACE

ARRAYS = PLAIN.required
USUAL_RETURNS = ("out", "lse", "weights")
# What of the form's own fields an engine must have, by its name among the registry's features.
FEATURES_OF_FIELDS = {"causal": "causal", "alignment": "causal", "scale": "scale"}
# Results that need dout, for which the form has no field; and those that are no picture by themselves.
NOT_OFFERED = frozenset({*GRADIENTS, *DRAWN, *TRACE})

# Results: what each is called, and what it says.
MEANINGS: dict[str, tuple[Any, Any]] = {
    "out": (_("output"), _("the mean of the values by the weights, a row for each query")),
    "lse": (_("log-sum-exp"), _("ln Σ exp of the scores of each query")),
    "scores": (_("scores"), _("of every query with every key, before anything is added or masked")),
    "softcapped_scores": (_("softcapped scores"), _("after the softcap, before biases and masks")),
    "masked_scores": (_("masked scores"), _("with everything added; −∞ where a key may not be seen")),
    "weights": (_("weights"), _("how much of each value goes into each output")),
    "present_key": (_("keys in the cache"), _("the past in front, rotated where there is a rotation")),
    "present_value": (_("values in the cache"), _("the past in front")),
    "dq": (_("gradient of q"), _("of the sum of the outputs, each times its dout")),
    "dk": (_("gradient of k"), _("of the sum of the outputs, each times its dout")),
    "dv": (_("gradient of v"), _("of the sum of the outputs, each times its dout")),
    "state": (_("state"), _("what a recurrence keeps of all tokens, after the last")),
    "normaliser": (_("normaliser"), _("what it keeps to divide by, after the last")),
    "centres": (_("centres"), _("where the window of each query lies")),
    "kept_weight": (_("kept weight"), _("the share of the exact weights on the keys that each query sees")),
    "recall": (_("recall"), _("the share of the best keys of each query that it sees")),
    "row_error": (_("row error"), _("how far each output is from exact attention")),
    "chosen": (_("chosen key"), _("the first that was drawn for each query")),
    "dscores": (_("gradient of the scores"), _("exact")),
    "dscores_estimate": (_("gradient of the scores, estimated"), _("from what was drawn")),
    "dscores_variance": (_("variance of the estimate"), _("of one draw")),
    "q_buckets": (_("buckets of the queries"), _("in every round of hashing")),
    "k_buckets": (_("buckets of the keys"), _("in every round of hashing")),
    "held": (_("held tokens"), _("which ones the cache holds when each query comes")),
}


@dataclass(frozen=True)
class Input:
    """Something that an engine takes beside q, k and v. shape: as the registry describes it."""

    name: str
    shape: str


def engines() -> dict[str, Engine]:
    """The engines of q, k and v, which is what the form has fields for."""
    return {name: engine for name, engine in ENGINES.items() if engine.takes == ARRAYS}


def results(engine: Engine) -> list[str]:
    """What the form can ask of an engine."""
    return [name for name in RESULTS if name in engine.returns and name not in NOT_OFFERED]


def without_effect(engine: Engine) -> list[str]:
    """The form's own fields that an engine does not know, or that it would not heed."""
    lacking = [name for name, feature in FEATURES_OF_FIELDS.items() if feature not in engine.features]
    return [*lacking, *(["causal"] if engine.is_always_causal and "causal" not in lacking else [])]


def usual_returns(engine: Engine) -> list[str]:
    """What a form asks for unless it is told otherwise."""
    return [name for name in USUAL_RETURNS if name in engine.returns]


def result_name(name: str) -> str:
    return str(MEANINGS[name][0]) if name in MEANINGS else name


def result_meaning(name: str) -> str:
    return str(MEANINGS[name][1]) if name in MEANINGS else ""


def other_inputs(engine: Engine) -> list[Input]:
    """What an engine takes beside q, k and v, and not in their place."""
    elsewhere = {name for family in REPLACING for name in family.axes} - set(PLAIN.axes)
    described = engine.describe()["inputs_schema"]["properties"]
    return [
        Input(name, schema["description"])
        for name, schema in described.items()
        if name not in ARRAYS and name not in elsewhere
    ]
