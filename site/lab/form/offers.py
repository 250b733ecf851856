"""What the form offers for an engine, by what the registry says that it has. No engine is named here."""

from typing import Any

from django.utils.translation import gettext_lazy as _

from kernels.registry import ENGINES, Engine
from kernels.spec.families import MLA, PLAIN, SCAN, Family
from kernels.spec.results import RESULTS

ARRAYS = PLAIN.required
USUAL_RETURNS = ("out", "lse", "weights")
# Where the inputs of a run come from: those of q, k and v, and those of what stands in their place.
SOURCES = {
    "matrices": _("Paste matrices"),
    "grid": _("Type in a grid"),
    "seed": _("Random, from a seed"),
    "upload": _("Upload a file"),
    "latents": _("Latents, of MLA"),
    "scan": _("Inputs of a scan"),
}
FAMILIES = {"latents": MLA, "scan": SCAN}

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
    "trace_tiles": (_("tiles taken"), _("by each query: skipped, looked at for masks, or taken whole")),
    "trace_max": (_("running maximum"), _("of each query after each tile of keys")),
    "trace_sum": (_("running sum"), _("of the exponentials, after each tile of keys")),
    "trace_rescale": (_("rescaling"), _("what each tile of keys multiplied all before it by")),
    "trace_out": (_("running output"), _("not yet divided, after each tile of keys")),
}


def every_engine() -> dict[str, Engine]:
    """All that a form can ask."""
    return ENGINES


def engines() -> dict[str, Engine]:
    """Those of q, k and v."""
    return {name: engine for name, engine in ENGINES.items() if engine.takes == ARRAYS}


def sources(engine: Engine) -> list[str]:
    """Where the inputs of an engine may come from."""
    plain = [source for source in SOURCES if source not in FAMILIES]
    if engine.takes == ARRAYS:
        return [*plain, *(["latents"] if "mla" in engine.features else [])]
    return [source for source, family in FAMILIES.items() if family.required == engine.takes] or plain


def family(source: str) -> Family:
    """The inputs that belong together, of a source."""
    return FAMILIES.get(source, PLAIN)


def results(engine: Engine) -> list[str]:
    """What the form can ask of an engine."""
    return [name for name in RESULTS if name in engine.returns]


def usual_returns(engine: Engine) -> list[str]:
    """What a form asks for unless it is told otherwise."""
    return [name for name in USUAL_RETURNS if name in engine.returns]


def result_name(name: str) -> str:
    return str(MEANINGS[name][0]) if name in MEANINGS else name


def result_meaning(name: str) -> str:
    return str(MEANINGS[name][1]) if name in MEANINGS else ""
