"""The vectorised computation against the reference, which computes one head of one student at a time."""

import math
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings

from kernels.engines.reference import reference
from kernels.execute import materialise
from kernels.grading.case import canonical_case
from kernels.grading.pipeline import as_answers, attend, resolve
from kernels.layout import to_canonical
from kernels.spec import SpecError, parse_run
from kernels.spec.results import GRADIENTS, MATRICES
from tests.kernels.cases import Case, cases

WANTED = ("out", "lse", *MATRICES, *GRADIENTS)
SETTINGS = settings(suppress_health_check=list(HealthCheck), phases=[Phase.generate], max_examples=300)


def close(got: np.ndarray, expected: np.ndarray, name: str, exponent: float) -> None:
    """Within 1e-12 of the largest number; a weight moves with the rounding of its logit, 2⁻⁵³ of its size."""
    finite = np.abs(expected[np.isfinite(expected)])
    largest = float(finite.max(initial=0.0)) or 1.0
    assert got.shape == expected.shape, name
    with np.errstate(invalid="ignore"):
        apart = np.where(got == expected, 0.0, np.abs(got - expected))
    assert not np.isnan(got).any(), name
    assert apart.max(initial=0.0) <= 1e-12 * largest * max(1.0, exponent / 1e3), name


@SETTINGS
@given(cases(gradients=True))
def test_it_is_the_reference_whatever_the_spec(case: Case) -> None:
    body = {**case.body, "engine": "reference", "return": list(WANTED)}
    try:
        parsed = parse_run(body, load_upload=lambda _, name: case.uploads[name])
    except SpecError:
        return
    spec, arrays = parsed.spec, materialise(parsed.spec, parsed.arrays)
    canonical = {name: to_canonical(spec, name, array) for name, array in arrays.items()}
    wanted = tuple(name for name in WANTED if not (spec.is_paged and name in GRADIENTS))
    expected = reference(spec, canonical, wanted)
    run, given_arrays = canonical_case(spec, arrays)
    stacked = {name: array[None] for name, array in given_arrays.items()}
    setting = resolve(run, stacked)
    got = as_answers(setting, attend(setting, gradients=True))
    scores = np.abs(expected["masked_scores"])
    exponent = float(scores[np.isfinite(scores)].max(initial=1.0))
    for name in wanted:
        close(got[name][0], expected[name], name, exponent)


@pytest.mark.parametrize("rows", [(0,), (2, 0), (4, 1, 3)])
def test_some_rows_are_the_rows_of_all(rows: tuple[int, ...]) -> None:
    rng = np.random.default_rng(sum(rows))
    heads = {"q": 4, "k": 2, "v": 2, "dout": 4}
    inputs = {name: rng.standard_normal((2, count, 5, 4)).tolist() for name, count in heads.items()}
    attention = {
        "is_causal": True, "rope": {"style": "half"}, "alibi_slopes": "auto", "softcap": 3.0,
        "window": [3, None], "sinks": [0.1, 0.2, 0.3, 0.4], "pattern": {"type": "chunked", "size": 3},
    }  # fmt: skip
    inputs |= {"q_lens": [5, 4], "kv_lens": [4, 5], "attn_mask": (rng.random((2, 1, 5, 5)) < 0.8).tolist()}
    body = {"engine": "reference", "inputs": inputs, "attention": attention, "return": ["out", "dq"]}
    parsed = parse_run(body)
    spec, arrays = canonical_case(parsed.spec, materialise(parsed.spec, parsed.arrays))
    setting = resolve(spec, {name: array[None] for name, array in arrays.items()})
    all_rows = as_answers(setting, attend(setting, gradients=True))
    some = setting.at(rows)
    few = as_answers(some, attend(some, gradients=True))
    for name in ("out", "lse", *MATRICES, "mask", "dq"):
        whole = all_rows[name]
        expected = whole[..., list(rows)] if name == "lse" else whole[..., list(rows), :]
        np.testing.assert_allclose(few[name], expected, rtol=1e-13, atol=1e-13, err_msg=name)


def test_a_sink_far_above_every_score_does_not_overflow() -> None:
    body = {
        "engine": "reference",
        "inputs": {name: {"seed": 4, "shape": [1, 2, 5, 4]} for name in ("q", "k", "v")},
        "attention": {"is_causal": True, "sinks": [5e3, -5e3]},
    }
    parsed = parse_run(body)
    spec, arrays = parsed.spec, materialise(parsed.spec, parsed.arrays)
    got = attend(resolve(spec, {name: array[None] for name, array in arrays.items()}))
    for name, expected in reference(spec, arrays, ("out", "lse", "weights")).items():
        np.testing.assert_allclose(got[name][0], expected, rtol=1e-12, atol=1e-12)
    assert (got["lse"][0, 0, 0] == 5e3).all()


def test_grading_needs_neither_torch_nor_django() -> None:
    modules = "kernels.grading.judge, kernels.grading.mutants"
    code = f"import sys, {modules}; assert not {{'torch', 'triton', 'django'}} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_students_do_not_mix() -> None:
    """Three students together are each as alone, to the bit."""
    rng = np.random.default_rng(1)
    body = {
        "engine": "reference",
        "inputs": {name: {"seed": 0, "shape": [1, 2, 6, 4]} for name in ("q", "k", "v")},
        "attention": {"is_causal": True},
    }
    spec = parse_run(body).spec
    arrays = {name: rng.standard_normal((3, 1, 2, 6, 4)) for name in ("q", "k", "v")}
    together = attend(resolve(spec, arrays))
    for student in range(3):
        alone = attend(resolve(spec, {name: array[student : student + 1] for name, array in arrays.items()}))
        for name, array in alone.items():
            np.testing.assert_array_equal(together[name][student], array[0])
    chosen = attend(resolve(spec, arrays).of(np.array([2, 0])))
    np.testing.assert_array_equal(chosen["out"], together["out"][[2, 0]])
    assert math.isclose(together["weights"].sum(), 3 * 2 * 6)
