"""The course that comes with the product: its problems can be understood, solved, and not got round.

The wrong answers here are those of the worked solution with a line of it changed, as a student might have it.
"""

import functools
import inspect
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from django.core.management import call_command

from concepts.markup import Context, render
from concepts.pages import book
from kernels.grading.answers import Answer, Answers
from kernels.grading.cases import make_inputs, seeds_of_number
from kernels.grading.judge import Attempt, judge
from kernels.grading.model import Case, Problem
from kernels.grading.mutants import matrix
from kernels.grading.problem import parse_problem
from kernels.grading.report import Judgement
from workers.management.commands.load_problems import read

COURSE = Path(__file__).parents[3] / "site" / "classroom" / "course" / "en"
SLUGS = sorted(path.stem for path in COURSE.glob("*.md"))
STUDENTS = range(5)
CODE = re.compile(r"```python\n(.*?)```", re.DOTALL)
EVERY_PROBLEM = pytest.mark.parametrize("slug", SLUGS)

Arrays = Mapping[str, np.ndarray]
Solve = Callable[..., Arrays]
Changes = tuple[tuple[str, str], ...]  # what stands in the worked solution, and what a student has there

NO_SCALE = (" / q.shape[-1] ** 0.5", "")
BY_D = (" / q.shape[-1] ** 0.5", " / q.shape[-1]")
BY_MODEL = (" / q.shape[-1] ** 0.5", " / (4 * q.shape[-1]) ** 0.5")
OTHER_AXIS = ("axis=-1", "axis=-2")
NOT_DIVIDED = ("exponentials / exponentials.sum(axis=-1, keepdims=True)", "exponentials")
HARD = (
    "np.exp(scores - scores.max(axis=-1, keepdims=True))",
    "1.0 * (scores == scores.max(-1, keepdims=True))",
)
NO_MAX = ("(largest + np.log(total))", "np.log(total)")
TILED = (
    ("np.repeat(k, group, axis=1)", "np.tile(k, (1, group, 1, 1))"),
    ("np.repeat(v, group, axis=1)", "np.tile(v, (1, group, 1, 1))"),
)
IN_HALF = ("scale * (q @ np.swapaxes(k, -1, -2))", "(scale * (q @ np.swapaxes(k, -1, -2))).astype('float16')")
PRODUCTS_IN_HALF = ("(q @ np.swapaxes(k, -1, -2))", "(q @ np.swapaxes(k, -1, -2)).astype('float16')")
CAP_LAST = ("np.where(mask, softcapped, -np.inf)", "cap * np.tanh(np.where(mask, scores, -np.inf) / cap)")
CAUSAL = ('if attention["is_causal"]:', "if False:")
NO_COPY = ("self.references[table[-1]] > 1", "False")

# The commonest mistakes at each problem, and what the student is to be told; None: that it is wrong.
MISTAKES: dict[str, list[tuple[str | None, Changes]]] = {
    "weighted-average": [
        ("softmax_over_queries", (OTHER_AXIS,)),
        ("unnormalised", (NOT_DIVIDED,)),
        ("argmax_weights", (HARD,)),
    ],
    "by-hand": [
        ("no_scale", (NO_SCALE,)),
        ("scale_by_d", (BY_D,)),
        ("softmax_over_queries", (OTHER_AXIS,)),
    ],
    "root-d": [("no_scale", (NO_SCALE,)), ("scale_by_d", (BY_D,)), ("scale_by_sqrt_d_model", (BY_MODEL,))],
    "softmax-lse": [
        ("lse_without_max", (NO_MAX,)),
        ("lse_base2", (("(largest + np.log(total))", "((largest + np.log(total)) / 0.6931471805599453)"),)),
        (None, (("largest = scores.max(axis=-1, keepdims=True)", "largest = 0"),)),
    ],
    "causal-mask": [
        ("no_mask", (("np.where(mask, scores, -np.inf)", "scores"),)),
        ("strict_causal", (("dtype=bool))", "dtype=bool), -1)"),)),
        (
            "mask_after_softmax",
            (("np.where(mask, scores, -np.inf)", "scores"), ("weights @ v", "(weights * mask) @ v"),
             ('"weights": weights', '"weights": weights * mask')),
        ),
    ],
    "causal-alignment": [
        ("causal_top_left", (('m - n if attention["causal_alignment"] == "bottom_right" else 0', "0"),)),
        ("causal_bottom_right", (('if attention["causal_alignment"] == "bottom_right" else 0', ""),)),
        ("no_mask", (("np.where(mask, q", "np.where(True, q"),)),
    ],
    "given-masks": [
        ("mask_inverted", (("np.where(attn_mask,", "np.where(~attn_mask,"),)),
        ("mask_added_as_01", (("np.where(attn_mask, scores, -np.inf)", "scores + attn_mask"),)),
        ("no_mask", (("kv_lens is not None", "False"),)),
    ],
    "sliding-window": [
        ("window_off_by_one", (("distance >= -left", "distance > -left"),)),
        ("no_mask", (("(distance >= -left)", "(distance == distance)"), ("distance <= right", "True"))),
        ("causal_top_left", (("np.arange(n) + m - n", "np.arange(n)"),)),
    ],
    "split-heads": [
        (
            "heads_merged_wrong",
            (("x.reshape(batch, length, HEADS, width // HEADS).swapaxes(1, 2)",
              "x.reshape(batch, HEADS, length, width // HEADS)"),),
        ),
        ("heads_merged_wrong", (("x.swapaxes(1, 2).reshape(", "x.reshape("),)),
        ("scale_by_sqrt_d_model", (BY_MODEL,)),
    ],
    "grouped-query": [
        ("heads_tiled", TILED),
        ("no_scale", (NO_SCALE,)),
        ("softmax_over_queries", (OTHER_AXIS,)),
    ],
    "rope": [
        ("rope_other_pairing", (('style == "half"', 'style != "half"'),)),
        ("rope_on_v", (("    scores =", "    v = turn(v, np.arange(m), style, theta)\n    scores ="),)),
        ("rope_positions_off_by_one", (("np.arange(n) + m - n", "np.arange(n) + m - n + 1"),)),
    ],
    "alibi": [
        ("alibi_missing", (("q.shape[-1] ** 0.5 + bias", "q.shape[-1] ** 0.5"),)),
        ("alibi_sign", (("slopes[:, None, None] * distance", "-slopes[:, None, None] * distance"),)),
        (None, (("slopes[:, None, None] * distance", "slopes[:, None, None] * np.arange(m)"),)),
    ],
    "softcap": [
        ("softcap_missing", (("cap * np.tanh(scores / cap)", "scores"),)),
        ("softcap_after_mask", (CAP_LAST,)),
        ("no_mask", (("np.where(mask, softcapped, -np.inf)", "softcapped"),)),
    ],
    "attention-sink": [
        ("sink_missing", ((" + np.exp(sinks - largest)", ""),)),
        ("sink_double", (("np.exp(sinks - largest)", "2 * np.exp(sinks - largest)"),)),
        (None, (("[:, None, None]", "[:, None, None] / q.shape[-1] ** 0.5"),)),
    ],
    "online-softmax": [
        ("online_no_rescale", (("a * old", "a"), ("o * old", "o"))),
        ("last_block_dropped", (("range(0, k.shape[-2], BLOCK)", "range(0, k.shape[-2] - BLOCK, BLOCK)"),)),
        ("lse_without_max", (("(m + np.log(a))", "np.log(a)"),)),
    ],
    "half-precision": [
        ("low_precision", (IN_HALF,)),
        (None, (PRODUCTS_IN_HALF,)),
        ("no_scale", (("scale * (q", "(q"),)),
    ],
    "gradients": [
        ("no_scale", (("scale * (dscores", "(dscores"), ("scale * (np", "(np"))),
        ("no_mask", (CAUSAL,)),
        (None, (("dweights - delta", "dweights"),)),
    ],
    "kv-cache-step": [
        ("rope_positions_off_by_one", (("positions = past +", "positions = past - 1 +"),)),
        ("rope_positions_off_by_one", (("positions = past +", "positions ="),)),
        ("causal_top_left", (("dtype=bool), past)", "dtype=bool))"),)),
        ("heads_tiled", TILED),
    ],
    "paged-decoding": [
        ("no_mask", (("[: kv_lens[b]]", ""),)),
        ("last_block_dropped", (("[: kv_lens[b]]", "[: (kv_lens[b] - 1) // len(k[0]) * len(k[0])]"),)),
        (None, (("pages[block_table[b]]", "pages[np.sort(block_table[b])]"),)),
    ],
    "block-tables": [
        ("copy_missing", (NO_COPY,)),
        ("block_order", (("reversed(cache.tables.pop(sequence))", "cache.tables.pop(sequence)"),)),
        ("block_order", (("self.free.pop()", "self.free.pop(self.free.index(min(self.free)))"),)),
    ],
    "speculative": [
        ("residual_missing", (("np.maximum(p - q, 0)", "p"),)),
        ("accepted_without_ratio", (("uniforms[run, i] < p[token] / q[token]", "p[token] > q[token]"),)),
        ("bonus_missing", (('side="right"', 'side="right") * (kept < gamma) - (kept == gamma'),)),
    ],
}  # fmt: skip


@functools.cache
def problem_of(slug: str) -> Problem:
    return parse_problem(read(COURSE / f"{slug}.md"))


def solve_of(code: str) -> Solve:
    """The function that the worked solution defines."""
    names: dict[str, Any] = {}
    exec(code, names)
    solve: Solve = names["solve"]
    return solve


def code_of(problem: Problem) -> str:
    found = CODE.search(problem.solution)
    assert found
    return found[1]


def inputs_of(problem: Problem, case: Case, seed: int, dtype: str) -> dict[str, Any]:
    """What a student has, in the dtype of their program."""
    given = make_inputs(problem, case, seed)
    return {name: x.astype(dtype) if x.dtype.kind == "f" else x for name, x in given.items()}


def handed_in(problem: Problem, solve: Solve, number: int, dtype: str) -> Attempt:
    """What one student hands in who runs `solve` on their inputs."""
    seeds = seeds_of_number(problem, number)
    wants_attention = "attention" in inspect.signature(solve).parameters
    answers: dict[str, dict[str, Answer]] = {}
    for case in problem.cases:
        given = inputs_of(problem, case, seeds[case.name], dtype)
        if wants_attention and case.run is not None:
            given["attention"] = case.run.to_dict()["attention"]
        with np.errstate(all="ignore"):
            made = {name: np.asarray(array) for name, array in solve(**given).items()}
        answers[case.name] = {name: Answer(array, str(array.dtype)) for name, array in made.items()}
    return Attempt(seeds, Answers(answers))


def graded(problem: Problem, solve: Solve, dtype: str = "float64") -> list[Judgement]:
    """The judgements of a few students who all wrote `solve`."""
    return judge(problem, [handed_in(problem, solve, number, dtype) for number in STUDENTS])


def test_the_contents_list_every_problem_once() -> None:
    parts = yaml.safe_load((COURSE / "contents.yaml").read_text())
    listed = [slug for part in parts for slug in part["problems"]]
    assert sorted(listed) == SLUGS
    concepts = {entry.slug for part in book("en").parts for entry in part.entries}
    assert {slug for part in parts for about in part["problems"].values() for slug in about} <= concepts


@EVERY_PROBLEM
def test_a_problem_has_what_a_student_needs(slug: str) -> None:
    problem = problem_of(slug)
    assert problem.slug == slug
    assert problem.max_score == 10
    assert 2 <= len(problem.hints) <= 4
    assert any(case.visibility == "visible" for case in problem.cases)
    for part in ("### What goes wrong", "### Sources"):
        assert part in problem.solution
    if slug != "by-hand":  # which is the same for everybody, and printed on a page
        own = [case for case in problem.cases if case.is_drawn and case.seed_scope == "student"]
        assert {case.visibility for case in own} == {"visible", "hidden"}
        assert sum(case.points for case in own) >= 6


@EVERY_PROBLEM
def test_the_statement_names_all_that_is_given_and_asked(slug: str) -> None:
    problem = problem_of(slug)
    named = set(re.findall(r"`([^`]+)`", problem.statement))
    given = {name for case in problem.cases for name in make_inputs(problem, case, 1)}
    if "attention" in inspect.signature(solve_of(code_of(problem))).parameters:
        given.add("attention")
    assert given | {part.name for part in problem.answers} <= named


@EVERY_PROBLEM
def test_its_text_becomes_a_page(slug: str) -> None:
    problem = problem_of(slug)
    for text in (problem.statement, *problem.hints, problem.solution):
        pieces, _ = render(text, Context(slug, 1, {}, frozenset(), {}, {}, ()))
        assert "$" not in "".join(map(str, pieces))


@EVERY_PROBLEM
def test_no_mistake_of_the_table_passes(slug: str) -> None:
    found = matrix(problem_of(slug))
    assert found.problems == ()
    assert found.killed == found.total > 0


@EVERY_PROBLEM
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_the_worked_solution_is_right(slug: str, dtype: str) -> None:
    problem = problem_of(slug)
    found = graded(problem, solve_of(code_of(problem)), dtype)
    if dtype == "float16" and slug == "half-precision":  # which is about that
        assert {(each.verdict, each.reason) for each in found} == {("wrong_answer", "non_finite")}
        return
    assert {each.verdict for each in found} == {"accepted"}
    low = dtype == "float16" and problem.kind == "attention"
    assert all(("low_precision" in each.notes) == low for each in found)
    if problem.kind == "attention":
        dtypes = {test["extra_data"]["numerics"]["dtype"] for test in found[0].tests} - {"int64"}
        assert dtypes == {dtype if low else "float32"}  # nothing in it widens the numbers, or all would pass


@EVERY_PROBLEM
@pytest.mark.parametrize("value", [0.0, 1.0, 0.25])
def test_a_constant_is_wrong(slug: str, value: float) -> None:
    problem = problem_of(slug)
    solve = solve_of(code_of(problem))

    @functools.wraps(solve)
    def fill(**given: Any) -> Arrays:
        return {name: np.full_like(array, value) for name, array in solve(**given).items()}

    for found in graded(problem, fill):
        assert found.verdict == "wrong_answer"
        assert found.score < 4


@pytest.mark.parametrize(
    ("slug", "code", "changes"), [(slug, *each) for slug, mistakes in MISTAKES.items() for each in mistakes]
)
def test_a_common_mistake_is_named(slug: str, code: str | None, changes: Changes) -> None:
    problem = problem_of(slug)
    text = code_of(problem)
    for right, wrong in changes:
        assert right in text
        text = text.replace(right, wrong)
    for found in graded(problem, solve_of(text)):
        assert found.verdict == "wrong_answer"
        assert found.score < found.max_score
        if code is not None:
            assert found.hypotheses[0]["code"] == code


def test_every_problem_has_its_mistakes() -> None:
    assert sorted(MISTAKES) == SLUGS
    assert all(len(mistakes) >= 3 for mistakes in MISTAKES.values())


def test_the_numbers_of_the_hand_computation_are_those_that_come_out() -> None:
    problem = problem_of("by-hand")
    given = inputs_of(problem, problem.cases[0], 0, "float64")
    answers = solve_of(code_of(problem))(**given)
    shown = [f"{x:.4f}".lstrip("0") for name in ("weights", "out") for x in answers[name].ravel()]
    assert all(number in problem.solution for number in shown)
    for changes, row in ((NO_SCALE, 2), (BY_D, 2)):
        weights = solve_of(code_of(problem).replace(*changes))(**given)["weights"][row]
        assert all(f"{x:.4f}".lstrip("0") in problem.solution for x in weights)


@pytest.mark.django_db
def test_loading_the_course_again_changes_nothing() -> None:
    from workers.grading.models import ProblemVersion

    call_command("load_problems", verbosity=0)
    first = list(ProblemVersion.objects.values_list("pk", "published_at").order_by("pk"))
    assert len(first) == len(SLUGS)
    assert all(published for _, published in first)
    call_command("load_problems", verbosity=0)
    assert list(ProblemVersion.objects.values_list("pk", "published_at").order_by("pk")) == first
