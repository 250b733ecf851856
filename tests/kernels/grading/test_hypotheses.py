"""Every mistake of the table, made by hand, is called by its name; the right computation is accepted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kernels.grading import trace_mistakes
from kernels.grading.hypotheses import CODES, HINTS
from kernels.grading.model import Problem
from tests.kernels.grading.asking import ask, inputs, judged, shape
from tests.kernels.grading.students import Student

SHAPES = {
    "square": shape(1, 1, 24, 24, 8),
    "wide": shape(2, 2, 6, 20, 8, e=4),
    "groups": shape(4, 2, 10, 20, 8),
    "heads": shape(4, 4, 8, 18, 8, e=6, batch=2),
    "even": shape(2, 1, 16, 16, 16),
    "long": shape(1, 1, 40, 40, 8),
}
CAUSAL = {"is_causal": True}
ROPE = {"rope": {"style": "half"}}
SPECS: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("square", {}),
    "plain wide": ("wide", {}),
    "plain heads": ("heads", {}),
    "causal": ("square", CAUSAL),
    "causal wide": ("wide", CAUSAL),
    "causal groups": ("groups", CAUSAL),
    "causal long": ("long", CAUSAL),
    "top left": ("wide", {**CAUSAL, "causal_alignment": "top_left"}),
    "top left groups": ("groups", {**CAUSAL, "causal_alignment": "top_left"}),
    "top left heads": ("heads", {**CAUSAL, "causal_alignment": "top_left"}),
    "window": ("square", {"window": [3, 2]}),
    "causal window": ("groups", {**CAUSAL, "window": [4, None]}),
    "window wide": ("wide", {"window": [2, 3]}),
    "masked": ("square", {}),
    "masked groups": ("groups", {}),
    "masked heads": ("heads", {}),
    "rope": ("even", {**CAUSAL, **ROPE}),
    "rope wide": ("groups", {"rope": {"style": "interleaved"}}),
    "rope heads": ("heads", {**CAUSAL, **ROPE}),
    "rope long": ("long", {"rope": {"style": "interleaved", "theta": 100.0}}),
    "softcap": ("square", {**CAUSAL, "softcap": 8.0}),
    "softcap groups": ("groups", {**CAUSAL, "softcap": 5.0}),
    "softcap window": ("wide", {"window": [3, 3], "softcap": 4.0}),
    "alibi": ("heads", {"alibi_slopes": "auto"}),
    "alibi causal": ("groups", {**CAUSAL, "alibi_slopes": "auto"}),
    "alibi long": ("long", {**CAUSAL, "alibi_slopes": [0.5]}),
    "sinks": ("square", {"sinks": [9.0]}),
    "sinks groups": ("groups", {**CAUSAL, "sinks": [5.0, 8.0, 3.0, 12.0]}),
    "sinks heads": ("wide", {"sinks": [7.0, 11.0]}),
    "scaled": ("groups", {"scale": 0.2}),
    "everything": ("groups", {**CAUSAL, **ROPE, "softcap": 20.0, "alibi_slopes": "auto", "window": [12, None],
                              "sinks": [4.0, 5.0, 3.0, 6.0]}),
}  # fmt: skip
MASKED = ("masked", "masked groups", "masked heads")
FREE = ("plain", "causal wide", "sinks groups")
ROPES = ("rope", "rope wide", "rope heads")
ALIGNED = ("top left", "top left groups", "top left heads")
BLOCKS = ("plain", "causal", "causal long")
# A mistake, with its variation, and where it is made.
MISTAKES: dict[str, tuple[str, ...]] = {
    "no_scale": (*FREE, "rope", "softcap", "scaled", "everything"),
    "scale_by_d": (*FREE, "alibi", "everything"),
    "scale_by_sqrt_d_model": ("plain wide", "causal groups", "alibi", "everything"),
    "no_mask": ("causal", "window", *MASKED, "causal groups"),
    "no_mask:causal": ("causal window", "everything"),
    "no_mask:window": ("causal window", "everything"),
    "mask_after_softmax": ("causal", "window", *MASKED),
    "mask_added_as_01:allowed": ("causal wide", "window", *MASKED),
    "mask_added_as_01:forbidden": ("causal", "causal window", *MASKED),
    "mask_added_as_01:filled": ("causal", "masked"),
    "mask_inverted": ("causal", "window", *MASKED),
    "mask_inverted:triangle": ("causal", "causal groups"),
    "causal_top_left": ("causal wide", "causal groups", "causal window", "everything"),
    "causal_bottom_right": ALIGNED,
    "strict_causal": ("causal", "causal wide", "rope", "everything"),
    "strict_causal:one more": ("causal", "causal groups"),
    "softmax_over_queries": FREE,
    "softmax_over_queries:heads": ("plain heads", "plain wide"),
    "unnormalised": FREE,
    "unnormalised:plain": FREE,
    "no_softmax": FREE,
    "uniform_weights": FREE,
    "uniform_weights:all": ("causal wide", "window", "masked"),
    "argmax_weights": FREE,
    "zeros": (*FREE, "everything"),
    "returned_v": FREE,
    "heads_tiled": ("causal groups", "masked groups", "scaled"),
    "heads_swapped": ("plain heads", "causal groups", "plain wide"),
    "heads_swapped:rolled": ("plain heads", "causal groups"),
    "heads_swapped:kv": ("plain heads", "causal groups"),
    "heads_merged_wrong": ("plain heads", "causal groups", "plain wide"),
    "heads_merged_wrong:back": ("plain heads", "causal groups", "plain wide"),
    "heads_merged_wrong:inputs": ("plain heads", "causal groups"),
    "transposed": ("rope", "plain", "plain wide"),
    "transposed:weights": ("plain", "causal"),
    "transposed:k": ("plain", "plain wide"),
    "transposed:scores": ("plain", "rope"),
    "rope_other_pairing": ROPES,
    "rope_other_pairing:mixed": ("rope", "rope heads"),
    "rope_missing": (*ROPES, "everything"),
    "rope_missing:q": ROPES,
    "rope_missing:k": ROPES,
    "rope_positions_off_by_one": (*ROPES, "everything"),
    "rope_positions_off_by_one:-1": ROPES,
    "rope_on_v": ("rope", "rope wide", "rope long"),
    "softcap_missing": ("softcap", "softcap groups", "softcap window"),
    "softcap_after_mask": ("softcap", "softcap groups", "softcap window"),
    "window_off_by_one:left-1": ("window", "causal window", "window wide"),
    "window_off_by_one:left+1": ("window", "causal window", "window wide", "everything"),
    "window_off_by_one:right-1": ("window", "window wide"),
    "window_off_by_one:right+1": ("window", "window wide"),
    "alibi_missing": ("alibi", "alibi causal", "alibi long"),
    "alibi_sign": ("alibi", "alibi causal", "alibi long"),
    "alibi_sign:distance": ("alibi",),
    "sink_missing": ("sinks", "sinks groups", "sinks heads", "everything"),
    "sink_double": ("sinks", "sinks groups", "sinks heads"),
    "lse_base2": FREE,
    "lse_without_max": FREE,
    "online_no_rescale:16": BLOCKS,
    "online_no_rescale:8": BLOCKS,
    "online_no_rescale:16 out": BLOCKS,
    "last_block_dropped:16": BLOCKS,
    "last_block_dropped:1": ("plain", "plain wide"),
    "last_block_dropped:8": BLOCKS,
    "block_mean:16": BLOCKS,
    "block_mean:8": ("plain", "causal long"),
}
LSE = ("lse_base2", "lse_without_max")


def problem_of(spec: str, answer: tuple[str, ...] = ("out",), **fields: Any) -> Problem:
    sizes, attention = SPECS[spec]
    case = {"mask": "boolean"} if spec in MASKED else {}
    return ask(SHAPES[sizes], attention, answer=answer, case=case, **fields)


def computed(problem: Problem, spec: str, mistake: str = "", dtype: type = np.float64) -> dict[str, Any]:
    with np.errstate(all="ignore"):
        return {"case 0": Student(inputs(problem), SPECS[spec][1], mistake, dtype).answers()}


def test_every_code_is_made_on_three_specs_at_least() -> None:
    of_traces = {*trace_mistakes.CODES, "low_precision"}
    places: dict[str, set[str]] = {code: set() for code in CODES if code not in of_traces}
    for mistake, specs in MISTAKES.items():
        places[mistake.split(":")[0]] |= set(specs)
    assert all(len(specs) >= 3 for specs in places.values())
    assert HINTS.keys() == set(CODES)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("spec", SPECS)
def test_the_right_computation_is_accepted(spec: str, dtype: type) -> None:
    problem = problem_of(spec, ("out", "lse", "weights", "scores", "masked_scores"))
    found = judged(problem, computed(problem, spec, dtype=dtype), np.dtype(dtype).name)
    assert (found.verdict, found.score, found.notes) == ("accepted", 1.0, ())
    assert found.hypotheses == ()


@pytest.mark.parametrize(("mistake", "spec"), [(m, s) for m, specs in MISTAKES.items() for s in specs])
def test_a_mistake_is_called_by_its_name(mistake: str, spec: str) -> None:
    code = mistake.split(":", maxsplit=1)[0]
    problem = problem_of(spec, ("lse",) if code in LSE else ("out",))
    for dtype in (np.float64, np.float32):
        found = judged(problem, computed(problem, spec, mistake, dtype), np.dtype(dtype).name)
        assert found.verdict == "wrong_answer"
        assert found.score == 0
        assert found.hypotheses, f"{mistake} on {spec} is not recognised: {found.tests[0]['output']}"
        assert found.hypotheses[0]["code"] == code, (mistake, spec, found.hypotheses)
        assert found.hypotheses[0]["residual"] < 1e-3
        assert HINTS[code] in found.tests[0]["output"]
