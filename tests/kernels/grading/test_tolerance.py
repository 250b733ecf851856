"""Right answers in every precision are accepted, however they are computed; mistakes in none are."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from kernels.bounds import Bounds
from kernels.engines.reference import heads
from kernels.grading.cases import drawn_inputs
from kernels.grading.model import Problem, held_to_least
from kernels.grading.mutants import matrix
from kernels.grading.pipeline import attend, resolve
from kernels.grading.tolerance import allowed_errors, held_to
from kernels.operands import operands
from tests.kernels.grading.asking import Arrays, ask, inputs, judged, shape
from tests.kernels.grading.test_hypotheses import LSE, MISTAKES, SPECS, computed, problem_of

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
ALL = ("out", "lse", "weights", "scores", "masked_scores")
USERS = ("ada", "grace", "alan")


def in_torch(given: Arrays, attention: dict[str, Any], dtype: str, style: int) -> Arrays:
    """Operation by operation, all in one dtype, as a student writes it; scaled in one of three ways."""
    q, k, v = (torch.tensor(given[name]).to(DTYPES[dtype]) for name in ("q", "k", "v"))
    (heads_, n, d), m = q.shape[1:], k.shape[-2]
    first = m - n if attention.get("causal_alignment", "bottom_right") == "bottom_right" else 0
    queries, keys = torch.arange(n) + first, torch.arange(m)
    if attention.get("rope"):
        q, k = (turned(x, at, attention["rope"]) for x, at in ((q, queries), (k, keys)))
    k, v = (x.repeat_interleave(heads_ // k.shape[1], 1) for x in (k, v))
    scale = attention.get("scale", 1 / math.sqrt(d))
    scores = [(q @ k.mT) * scale, (q * scale) @ k.mT, (q * scale**0.5) @ (k * scale**0.5).mT][style]
    logits = scores
    if attention.get("softcap"):
        logits = torch.tanh(logits / attention["softcap"]) * attention["softcap"]
    distance = keys[None] - queries[:, None]
    slopes = attention.get("alibi_slopes")
    if slopes is not None:
        slopes = [2.0 ** (-8 * (h + 1) / heads_) for h in range(heads_)] if slopes == "auto" else slopes
        logits = logits + (torch.tensor(slopes)[:, None, None] * distance).to(logits.dtype)
    left, right = attention.get("window", (None, None))
    seen = torch.ones(n, m, dtype=torch.bool)
    for side in ([0] if attention.get("is_causal") else []) + ([right] if right is not None else []):
        seen = seen & (distance <= side)
    if left is not None:
        seen = seen & (distance >= -left)
    if "attn_mask" in given:
        seen = seen & torch.tensor(given["attn_mask"])
    masked = logits.masked_fill(~seen, -torch.inf)
    full = masked
    if attention.get("sinks"):
        sinks = torch.tensor(attention["sinks"]).to(masked.dtype)[:, None, None]
        full = torch.cat([masked, sinks.expand(*masked.shape[:-1], 1)], -1)
    weights = torch.softmax(full, -1)[..., :m]
    found = {
        "out": weights @ v, "weights": weights, "lse": torch.logsumexp(full, -1), "scores": scores,
        "masked_scores": masked,
    }  # fmt: skip
    return {name: x.float().numpy() for name, x in found.items()}


def turned(x: torch.Tensor, positions: torch.Tensor, rope: dict[str, Any]) -> torch.Tensor:
    """RoPE as models have it: angles in float32, cos and sin in the dtype of x."""
    d = x.shape[-1]
    frequencies = 1.0 / (rope.get("theta", 10000.0) ** (torch.arange(0, d, 2).float() / d))
    angles = positions.float()[:, None] * frequencies
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    if rope["style"] == "half":
        one, other = x[..., : d // 2], x[..., d // 2 :]
        return torch.cat([one * cos - other * sin, other * cos + one * sin], -1)
    one, other = x[..., 0::2], x[..., 1::2]
    return torch.stack([one * cos - other * sin, one * sin + other * cos], -1).flatten(-2)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("spec", SPECS)
def test_what_students_compute_in_torch_is_accepted(spec: str, dtype: str) -> None:
    problem, attention = problem_of(spec, ALL), SPECS[spec][1]
    for style, user in enumerate(USERS):
        given = in_torch(inputs(problem, user=user), attention, dtype, style)
        found = judged(problem, {"case 0": given}, dtype, user)
        failed = [(test["name"], test["output"]) for test in found.tests if test["status"] == "failed"]
        assert not failed, (user, style)
        assert max(test["extra_data"]["severity"] for test in found.tests) < 0.8
        assert (found.notes == ("low_precision",)) == (dtype != "float32")


def test_no_mistake_hides_in_low_precision() -> None:
    """Wrong answers that are handed in as float16 or bfloat16 are wrong, and named, unless the mistake moves
    fewer numbers, or by less, than the rounding of a right computation. Of those the mutant matrix tells, and
    it holds answers to a dtype in which those that students make most are wrong."""
    hidden, misnamed, count = [], [], 0
    for mistake, specs in MISTAKES.items():
        code = mistake.split(":")[0]
        for spec in specs[:3]:
            problem = problem_of(spec, ("lse",) if code in LSE else ("out",))
            given = computed(problem, spec, mistake)
            for dtype in ("float16", "bfloat16"):
                with np.errstate(over="ignore"):
                    found = judged(problem, given, dtype)
                count += 1
                if found.verdict == "accepted":
                    hidden.append((mistake, spec, dtype, found.numerics["max_abs_err"]))
                elif not found.hypotheses or found.hypotheses[0]["code"] != code:
                    misnamed.append((mistake, spec, dtype))
    assert not misnamed
    assert len(hidden) <= count // 40
    assert all(error < 0.05 for *_, error in hidden)
    passing = []
    for mistake, spec, dtype, _ in hidden:
        problem = problem_of(spec)
        table = matrix(problem)
        told = next(row for row in table.rows if row.code == mistake.split(":")[0])
        assert told.unnoticed or table.least_dtype, (mistake, spec)
        if table.least_dtype:
            held = held_to_least(problem, table.least_dtype)
            if judged(held, computed(problem, spec, mistake), dtype).verdict == "accepted":
                passing.append((mistake, spec))
    assert len(passing) <= 1, "by bad luck: the matrix knows three students, not this one"


@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients_of_autograd_are_accepted(dtype: str) -> None:
    for sizes, attention in (
        (shape(2, 1, 24, 24, 16), {"is_causal": True}), (shape(1, 1, 8, 20, 8, e=4), {"softcap": 6.0}),
        (shape(2, 2, 16, 16, 8), {"rope": {"style": "half"}, "is_causal": True}),
    ):  # fmt: skip
        problem = ask(sizes, attention, answer=("dq", "dk", "dv"))
        for user in USERS:
            given = inputs(problem, user=user)
            found = judged(problem, {"case 0": autograd(given, attention, dtype)}, dtype, user)
            assert found.verdict == "accepted", [test["output"] for test in found.tests]


def autograd(given: Arrays, attention: dict[str, Any], dtype: str) -> Arrays:
    leaves = [torch.tensor(given[name]).to(DTYPES[dtype]).requires_grad_() for name in ("q", "k", "v")]
    q, k, v = leaves
    n, m = q.shape[-2], k.shape[-2]
    if attention.get("rope"):
        q, k = (turned(x, torch.arange(n), attention["rope"]) for x in (q, k))
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    if attention.get("softcap"):
        scores = torch.tanh(scores / attention["softcap"]) * attention["softcap"]
    if attention.get("is_causal"):
        scores = scores.masked_fill(~torch.ones(n, m, dtype=torch.bool).tril(m - n), -torch.inf)
    found = torch.autograd.grad(
        torch.softmax(scores, -1) @ v, leaves, torch.tensor(given["dout"]).to(DTYPES[dtype])
    )
    return {name: x.float().numpy() for name, x in zip(("dq", "dk", "dv"), found, strict=True)}


def test_in_float32_it_is_the_bound_of_a_run() -> None:
    problem = problem_of("causal groups", ALL)
    spec, arrays = problem.cases[0].spec, drawn_inputs(problem.cases[0], [5])
    setting = resolve(spec, arrays)
    ours = allowed_errors(setting, attend(setting), "float32", ALL)
    single = {name: array[0] for name, array in arrays.items()}
    given = operands(spec, single, dtype=np.float64)
    bounds = Bounds(replace(spec, returns=ALL, engine="eager"), given, None)
    for head in heads(given):
        bounds.observe(head)
    for name, bound in bounds.found(single).items():
        if name in ours:
            assert bound == pytest.approx(ours[name].max(), rel=0.01), name


def test_which_dtype_an_answer_is_held_to() -> None:
    assert held_to("float64", "float32", None) == "float32"
    assert held_to("float16", "float32", None) == "float16"
    assert held_to("float16", "bfloat16", None) == "bfloat16"
    assert held_to("int64", "float16", None) == "float16"
    assert held_to("bool", "float32", None) == "float32"
    assert held_to("bfloat16", "float32", "float16") == "float16"
    assert held_to("float32", "float64", "float32") == "float32"


def test_the_reference_error_is_shown_beside_what_is_allowed() -> None:
    problem: Problem = ask(shape(1, 1, 32, 32, 16), {"is_causal": True})
    given = inputs(problem)
    for dtype in DTYPES:
        found = judged(problem, {"case 0": in_torch(given, {"is_causal": True}, dtype, 0)}, dtype).numerics
        assert 0.05 < found["max_abs_err"] / found["reference_err"] < 20
        assert found["reference_err"] < found["atol"]
