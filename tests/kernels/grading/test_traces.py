"""Block tables and drafts: answers of integers, against serving written again in a few lines."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kernels.grading.answers import read_answers
from kernels.grading.cases import make_inputs
from kernels.grading.hypotheses import CODES, HINTS
from kernels.grading.judge import Attempt, judge
from kernels.grading.mutants import matrix
from kernels.grading.problem import parse_problem
from kernels.grading.trace_mistakes import READINGS
from tests.kernels.grading.asking import seeds

PAGING = ("block_table", "lens", "slots", "free_blocks", "references", "copies")
SPECULATIVE = ("accepted", "tokens", "counts")


def traced(kind: str, shape: dict[str, int], answer: tuple[str, ...], **case: Any) -> Any:
    return parse_problem(
        {"slug": "t", "title": "T", "kind": kind, "answer": list(answer),
         "cases": [{"name": "a", "points": 3, "shape": shape, **case}]}
    )  # fmt: skip


class Books:
    """Lists of blocks and a count for each; with a mistake, as a student may make it."""

    def __init__(self, num_blocks: int, size: int, mistake: str) -> None:
        self.size, self.mistake = size, mistake
        self.free, self.held, self.shared = list(range(num_blocks))[::-1], [0] * num_blocks, set()
        self.tables, self.lens, self.slots, self.copies = {}, {}, [], []
        if mistake == "highest":
            self.free.reverse()

    def take(self) -> int:
        if self.mistake == "sorted":
            self.free.sort(reverse=True)
        block = self.free.pop(self.free.index(min(self.free)) if self.mistake == "lowest" else -1)
        self.held[block] = 1
        self.shared.discard(block)
        return block

    def drop(self, block: int) -> None:
        self.held[block] -= 1
        if self.held[block] == 0:
            self.free.insert(0 if self.mistake == "oldest" else len(self.free), block)

    def append(self, name: int, tokens: int) -> None:
        table, size, old = self.tables[name], self.size, self.lens[name]
        blocks = (old + tokens) // size + 1 if self.mistake == "early" else -(-(old + tokens) // size)
        is_shared = old % size and (
            table[-1] in self.shared if self.mistake == "was shared" else self.held[table[-1]] > 1
        )
        copies = tokens and is_shared and self.mistake != "no copy"
        taken = [self.take() for _ in range(blocks - len(table) + bool(copies))]
        if copies:
            self.copies.append((table[-1], taken[0]))
            self.drop(table.pop())
        table += taken
        self.slots += [table[i // size] * size + i % size for i in range(old, old + tokens)]
        self.lens[name] += tokens

    def fork(self, name: int, tokens: int, parent: int) -> None:
        blocks = tokens // self.size + 1 if self.mistake == "one more" else -(-tokens // self.size)
        table = self.tables[name] = self.tables[parent][:blocks]
        self.lens[name] = tokens
        for block in table:
            self.held[block] += self.mistake != "no forks"
            self.shared.add(block)
        for place in range(len(table)):
            is_open = place == len(table) - 1 and tokens % self.size
            if self.mistake == "copy all" or (self.mistake == "copy at fork" and is_open):
                self.drop(table[place])
                self.copies.append((table[place], self.free[-1]))
                table[place] = self.take()

    def end(self, name: int) -> None:
        self.lens.pop(name)
        for block in self.tables.pop(name)[:: 1 if self.mistake == "first to last" else -1]:
            if self.mistake.startswith("free all"):
                self.held[block] -= self.mistake == "free all"
                self.free.append(block)
            else:
                self.drop(block)


def paged(operations: np.ndarray, num_blocks: int, size: int, mistake: str = "") -> dict[str, np.ndarray]:
    """Every answer."""
    books = Books(num_blocks, size, mistake)
    for op, name, tokens, parent in operations.tolist():
        if op == 0:
            books.tables[name], books.lens[name] = [], 0
        if op in (0, 1):
            books.append(name, tokens)
        elif op == 2:
            books.fork(name, tokens, parent)
        else:
            books.end(name)
    count = 1 + int(operations[:, 1].max())
    lens = [books.lens.get(name, 0) for name in range(count)]
    rows = [books.tables.get(name, []) for name in range(count)]
    width = max(map(len, rows))
    if mistake == "whole blocks":
        rows = [row[: length // size] for row, length in zip(rows, lens, strict=True)]
    if mistake == "backwards":
        rows = [row[::-1] for row in rows]
    more, slot = mistake in ("from 1", "all from 1"), {"from 1": size, "all from 1": 1}.get(mistake, 0)
    return {
        "block_table": np.array([[x + more for x in row] + [-1] * (width - len(row)) for row in rows]),
        "lens": np.array(lens),
        "slots": np.array(books.slots) + slot,
        "free_blocks": np.array(books.free[::-1]) + more,
        "references": np.array(books.held),
        "copies": np.array(books.copies).reshape(-1, 2) + more,
    }


def verdict(problem: Any, user: str, given: dict[str, Any]) -> Any:
    answers = read_answers(problem, {"a": given})
    return judge(problem, [Attempt(seeds(problem, user), answers)])[0]


@pytest.mark.parametrize("user", ["ada", "grace", "alan", "emmy"])
def test_block_tables(user: str) -> None:
    problem = traced("paging", {"num_blocks": 24, "block_size": 4, "sequences": 5, "steps": 30}, PAGING)
    given = make_inputs(problem, problem.cases[0], seeds(problem, user)["a"])
    assert given["operations"].shape[1] == 4
    assert given["memory"].tolist() == [24, 4]
    right = {name: x.tolist() for name, x in paged(given["operations"], 24, 4).items()}
    found = verdict(problem, user, right)
    assert (found.verdict, found.score, found.max_score) == ("accepted", 3.0, 3.0)
    wrong = {**right, "slots": [right["slots"][0] + 1, *right["slots"][1:]]}
    found = verdict(problem, user, wrong)
    assert (found.verdict, found.reason) == ("wrong_answer", "numeric_mismatch")
    assert found.score == pytest.approx(2.5)
    assert "the first is at token 0: yours is 1, right is 0" in found.tests[2]["output"]
    assert found.numerics["worst"][0]["index"] == {"token": 0}
    assert verdict(problem, "somebody else", right).verdict == "wrong_answer"


def test_an_authors_own_operations() -> None:
    operations = [
        {"op": "allocate", "sequence": 0, "tokens": 5},
        {"op": "fork", "sequence": 1, "parent": 0, "tokens": 5},
        {"op": "append", "sequence": 1, "tokens": 1}, {"op": "free", "sequence": 0},
    ]  # fmt: skip
    problem = traced(
        "paging", {"num_blocks": 6, "block_size": 4}, ("block_table", "copies"), operations=operations
    )
    right = {"block_table": [[-1, -1], [0, 2]], "copies": [[1, 2]]}
    assert verdict(problem, "ada", right).verdict == "accepted"
    padded = {"block_table": [[-1, -1, -1], [0, 2, -1]], "copies": [[1, 2]]}
    assert verdict(problem, "ada", padded).verdict == "accepted"
    for table in (
        [[-1, -1], [0, 1]],
        [[0, 1], [0, 2]],
        [[-1, -1, -1], [0, 2, 3]],
        [[0, 2]],
        [0, 2],
        [[0.5, 2]],
    ):
        assert verdict(problem, "ada", {**right, "block_table": table}).verdict == "wrong_answer"
    assert parse_problem(problem.to_dict()) == problem


def speculated(given: dict[str, np.ndarray], mistake: str = "") -> dict[str, np.ndarray]:
    """Token by token, by the paper; with a mistake, as a student may make it."""
    runs, gamma = given["drafted"].shape
    accepted, tokens = np.full((runs, gamma), -1), np.full((runs, gamma + 1), -1)
    for run in range(runs):
        kept = 0
        for place in range(gamma):
            token = given["drafted"][run, place]
            p, q = given["target"][run, place, token], given["draft"][run, place, token]
            u = given["uniforms"][run, place]
            if mistake == "no ratio":
                accepted[run, place] = p >= q
            elif mistake == "inverted":
                accepted[run, place] = u < q / p
            else:
                accepted[run, place] = u < p / q or mistake == "always"
            if not accepted[run, place]:
                break
            tokens[run, place], kept = token, kept + 1
        law = given["target"][run, kept].astype(np.float32)
        if kept < gamma and mistake != "from p":
            law = np.maximum(law - given["draft"][run, kept].astype(np.float32), 0)
        which = {"same u": kept, "next u": min(kept + 1, gamma)}.get(mistake, gamma)
        total = 1 if mistake.startswith("not divided") else law.sum()
        u = given["uniforms"][run, which]
        found = int(np.searchsorted(np.cumsum(law / total), u, side="right"))
        if found == len(law) and mistake != "not divided":
            found = 0 if mistake == "not divided, first" else found - 1
        if kept < gamma or mistake != "no bonus":
            tokens[run, kept] = found
    if mistake == "looks on":
        rows, places = np.indices((runs, gamma))
        p, q = (given[name][rows, places, given["drafted"]] for name in ("target", "draft"))
        accepted = (given["uniforms"][:, :gamma] < p / q).astype(int)
    return {"accepted": accepted, "tokens": tokens, "counts": (tokens >= 0).sum(1)}


@pytest.mark.parametrize("user", ["ada", "grace", "alan"])
def test_drafts_accepted_and_replaced(user: str) -> None:
    """Computed in float32, which decides everything alike."""
    problem = traced("speculative", {"runs": 20, "gamma": 4, "vocabulary": 7}, SPECULATIVE)
    given = make_inputs(problem, problem.cases[0], seeds(problem, user)["a"])
    np.testing.assert_allclose(given["target"].sum(-1), 1)
    right = {name: x.tolist() for name, x in speculated(given).items()}
    assert {tuple(set(row)) for row in right["accepted"]} != {(1,)}
    assert verdict(problem, user, right).verdict == "accepted"
    right["counts"][3] += 1
    found = verdict(problem, user, right)
    assert found.reason == "numeric_mismatch"
    assert found.numerics["worst"][0]["index"] == {"run": 3}


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ([[1.5]], "dtype_mismatch"), ([["nan"]], "non_finite"), ([1], "shape_mismatch"),
        ([[True, 2]], "dtype_mismatch"), ([[1], [2, 3]], "shape_mismatch"), (None, "shape_mismatch"),
        ([[10**400]], "non_finite"),
    ],
)  # fmt: skip
def test_odd_answers(value: Any, reason: str) -> None:
    problem = traced("speculative", {"runs": 2, "gamma": 2, "vocabulary": 3}, SPECULATIVE)
    given = make_inputs(problem, problem.cases[0], seeds(problem)["a"])
    right = {name: x.tolist() for name, x in speculated(given).items()}
    found = verdict(problem, "ada", {**right, "accepted": value})
    assert (found.verdict, found.reason) == ("wrong_answer", reason)


LARGE = {
    "paging": {"num_blocks": 320, "block_size": 4, "sequences": 40, "steps": 192},
    "speculative": {"runs": 24, "gamma": 3, "vocabulary": 5},
}
ANSWERS = {"paging": PAGING, "speculative": SPECULATIVE}
# As it is written above, and as it is called.
MISTAKES = {
    "paging": {
        "whole blocks": "last_block_dropped", "early": "block_off_by_one/early",
        "from 1": "block_off_by_one/from-one", "all from 1": "block_off_by_one/all-from-one",
        "one more": "block_off_by_one/fork", "oldest": "block_order/oldest", "lowest": "block_order/lowest",
        "sorted": "block_order/sorted",
        "highest": "block_order/highest", "first to last": "block_order/freed",
        "backwards": "block_order/table", "no copy": "copy_missing", "copy at fork": "copy_needless/fork",
        "copy all": "copy_needless/all", "was shared": "copy_needless/held",
        "free all": "freed_while_shared", "free all, counts kept": "freed_while_shared/kept",
        "no forks": "freed_while_shared/fork",
    },
    "speculative": {
        "always": "draft_always_accepted", "no ratio": "accepted_without_ratio",
        "inverted": "ratio_inverted", "looks on": "examined_on", "from p": "residual_missing",
        "not divided": "residual_not_normalised/outside", "not divided, last": "residual_not_normalised/last",
        "not divided, first": "residual_not_normalised/first", "same u": "other_uniform/same",
        "next u": "other_uniform/next", "no bonus": "bonus_missing",
    },
}  # fmt: skip


def answered(kind: str, given: dict[str, np.ndarray], mistake: str = "") -> dict[str, np.ndarray]:
    if kind == "speculative":
        return speculated(given, mistake)
    return paged(given["operations"], *given["memory"].tolist(), mistake)


def test_every_reading_is_made_by_hand() -> None:
    for kind, readings in READINGS.items():
        assert {reading.name for reading in readings} == {"zeros", *MISTAKES[kind].values()}


@pytest.mark.parametrize(("kind", "mistake"), [(kind, each) for kind in MISTAKES for each in MISTAKES[kind]])
def test_a_mistake_is_called_by_its_name(kind: str, mistake: str) -> None:
    problem = traced(kind, LARGE[kind], ANSWERS[kind])
    code = MISTAKES[kind][mistake].partition("/")[0]
    for user in ("ada", "grace", "alan"):
        given = make_inputs(problem, problem.cases[0], seeds(problem, user)["a"])
        wrong = {name: x.tolist() for name, x in answered(kind, given, mistake).items()}
        if wrong == {name: x.tolist() for name, x in answered(kind, given).items()}:
            continue
        found = verdict(problem, user, wrong)
        assert found.verdict == "wrong_answer"
        assert [each["code"] for each in found.hypotheses][:1] == [code], (user, found.hypotheses)
        told = [test["output"] for test in found.tests if test["extra_data"]["hypotheses"]]
        assert all(HINTS[code] in output and "Your answer is what one gets if" in output for output in told)


@pytest.mark.parametrize("kind", MISTAKES)
def test_what_is_no_known_mistake_is_called_none(kind: str) -> None:
    problem = traced(kind, LARGE[kind], ANSWERS[kind])
    given = make_inputs(problem, problem.cases[0], seeds(problem)["a"])
    for name in ANSWERS[kind]:
        wrong = {each: x.copy() for each, x in answered(kind, given).items()}
        wrong[name].flat[wrong[name].size // 2] += 1
        found = verdict(problem, "ada", {each: x.tolist() for each, x in wrong.items()})
        assert (found.verdict, found.hypotheses) == ("wrong_answer", ())


@pytest.mark.parametrize("kind", MISTAKES)
def test_cases_with_enough_in_them_tell_every_mistake(kind: str) -> None:
    problem = traced(kind, LARGE[kind], ANSWERS[kind])
    found = matrix(problem)
    assert found.is_publishable, found.problems
    assert (
        found.killed == found.total == len({name.partition("/")[0] for name in MISTAKES[kind].values()}) + 1
    )
    assert [row.code for row in found.rows] == list(CODES)


def test_cases_with_little_in_them_are_refused_with_a_remedy() -> None:
    problem = traced("speculative", {"runs": 2, "gamma": 2, "vocabulary": 3}, SPECULATIVE)
    found = matrix(problem)
    assert not found.is_publishable
    survivors = {row.code for row in found.rows if row.survives}
    assert "bonus_missing" in survivors
    assert {each["code"] for each in found.suggestions} == survivors
    change = next(each["change"] for each in found.suggestions if each["code"] == "bonus_missing")
    more = {**problem.to_dict()["cases"][0], **change, "name": "more"}
    mended = parse_problem({**problem.to_dict(), "cases": [*problem.to_dict()["cases"], more]})
    assert not next(row for row in matrix(mended).rows if row.code == "bonus_missing").survives


def test_a_mistake_that_changes_nothing_asked_for_need_not_be_told() -> None:
    found = matrix(traced("speculative", LARGE["speculative"], ("counts",)))
    assert found.is_publishable
    rows = {row.code: row for row in found.rows}
    assert (rows["residual_missing"].relevant, rows["residual_missing"].coincides) == (False, True)
    assert rows["bonus_missing"].relevant
