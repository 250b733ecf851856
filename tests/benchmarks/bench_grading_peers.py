"""What grading one submission takes, beside two other ways to grade the same problem, all in one run.

The problem is causal attention in five cases (64 queries and keys, 32 wide); three in ten students are wrong.

- Here: a batch of 1,000 sent over REST, from the request to the answer with every verdict, by 1,000.
- nbgrader: `nbgrader autograde` of a notebook with a cell for the student's function and a graded cell for
  each case, which draws its inputs, computes the reference and asserts that the two are close. One command
  for several students, by their number, so that its start is shared.
- As Gradescope's autograders do it: one pytest process for each submission, which loads the student's
  module, runs the same five tests and writes results.json.

nbgrader lives in a virtual environment of its own, made on the first run (minutes, and a package index) and
kept in the temporary folder. The rounds alternate and the least of each counts, so that a machine that is
busy for a while treats all alike.
"""

import json
import os
import sqlite3
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

import numpy as np
import pytest

from tests.benchmarks.bench_grading import BATCH, Course

NBGRADER = ("nbgrader==0.9.6", "ipykernel==7.4.0", f"numpy=={np.__version__}")
ENVIRONMENT = Path(tempfile.gettempdir()) / f"attention-lab-{'-'.join(NBGRADER).replace('==', '-')}"
ROUNDS, CASES = 3, 5
NOTEBOOKS, PROCESSES = 4, 8  # submissions in a round
FASTER_THAN_NBGRADER, FASTER_THAN_PYTEST = 100, 20

# As bare as an autograder's: without what this project's tests are plugged in with.
PYTEST = (
    sys.executable,
    "-m",
    "pytest",
    "-q",
    "-c",
    os.devnull,
    "--rootdir",
    ".",
    "-p",
    "no:django",
    "-p",
    "no:xdist",
)

STUDENT = """\
import numpy as np

def attention(q, k, v):
    scores = np.where(np.tri(len(q), len(k), dtype=bool), {scale} * (q @ k.T), -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ v
"""
RIGHT, WRONG = STUDENT.format(scale="q.shape[-1] ** -0.5"), STUDENT.format(scale="1.0")
REFERENCE = f"""\
import numpy as np

def case(number):
    generator = np.random.default_rng(number)
    return [generator.standard_normal((64, 32)).astype(np.float32) for _ in "qkv"]

{STUDENT.format(scale="q.shape[-1] ** -0.5").replace("def attention", "def reference")}
def check(attention, number):
    np.testing.assert_allclose(attention(*case(number)), reference(*case(number)), rtol=1e-4, atol=1e-5)
"""
TESTS = """\
import importlib.util, os
import pytest
from reference import check

spec = importlib.util.spec_from_file_location("submission", os.environ["SUBMISSION"])
submission = importlib.util.module_from_spec(spec)
spec.loader.exec_module(submission)

@pytest.mark.parametrize("number", range(5))
def test_case(number):
    check(submission.attention, number)
"""
REPORT = """\
import json
results = []

def pytest_runtest_logreport(report):
    if report.when == "call":
        results.append({"name": report.nodeid, "score": float(report.passed), "max_score": 1.0,
                        "output": report.longreprtext})

def pytest_sessionfinish():
    with open("results.json", "w") as file:
        json.dump({"tests": results}, file)
"""


def is_wrong(student: int) -> bool:
    return student % 10 < 3


class Notebooks:
    """A course of nbgrader with one assignment."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        if not (ENVIRONMENT / "ready").exists():
            venv.create(ENVIRONMENT, with_pip=True, clear=True)
            subprocess.run([ENVIRONMENT / "bin" / "pip", "install", "-q", *NBGRADER], check=True)
            (ENVIRONMENT / "ready").touch()
        (folder / "nbgrader_config.py").write_text(
            "c = get_config()\nc.CourseDirectory.course_id = 'course'\n"
        )
        self.write("source", "")
        self.nbgrader("generate_assignment", "attention")

    def write(self, where: str, solution: str) -> None:
        cells = [self.cell("attention", solution or "# your function", solution=True)]
        cells += [
            self.cell(f"case{n}", f"{REFERENCE}\ncheck(attention, {n})", points=1) for n in range(CASES)
        ]
        kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
        notebook = {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
        path = self.folder / where / "attention" / "attention.ipynb"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(notebook))

    @staticmethod
    def cell(name: str, source: str, *, solution: bool = False, points: int | None = None) -> object:
        about = {"grade": points is not None, "solution": solution, "locked": not solution, "task": False}
        told = {**about, "grade_id": name, "schema_version": 3, "cell_type": "code"}
        if points is not None:
            told["points"] = points
        return {
            "cell_type": "code", "id": name, "metadata": {"nbgrader": told}, "source": source,
            "outputs": [], "execution_count": None,
        }  # fmt: skip

    def nbgrader(self, *arguments: str) -> None:
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        path = f"{ENVIRONMENT / 'bin'}{os.pathsep}{kept['PATH']}"  # nbgrader starts alembic by its name
        subprocess.run(
            [ENVIRONMENT / "bin" / "nbgrader", *arguments],
            cwd=self.folder,
            env={**kept, "PATH": path, "HOME": str(self.folder)},
            check=True,
            capture_output=True,
        )

    def seconds_each(self, students: range) -> float:
        for student in students:
            self.write(f"submitted/s{student}", WRONG if is_wrong(student) else RIGHT)
        began = time.perf_counter()
        self.nbgrader("autograde", "attention")  # those that were not graded before
        took = time.perf_counter() - began
        with sqlite3.connect(self.folder / "gradebook.db") as gradebook:
            (points,) = gradebook.execute("SELECT sum(auto_score) FROM grade").fetchone()
        assert points == CASES * sum(not is_wrong(student) for student in range(students.stop))
        return took / len(students)


class Processes:
    """A pytest process for each submission."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name, text in (("reference", REFERENCE), ("test_attention", TESTS), ("conftest", REPORT)):
            (folder / f"{name}.py").write_text(text)

    def seconds_each(self, students: range) -> float:
        took = 0.0
        for student in students:
            path = self.folder / f"s{student}.py"
            path.write_text(WRONG if is_wrong(student) else RIGHT)
            began = time.perf_counter()
            subprocess.run(
                [*PYTEST, "test_attention.py"],
                cwd=self.folder,
                env={**os.environ, "SUBMISSION": str(path)},
                check=False,  # a wrong answer is a failed test
                capture_output=True,
            )
            took += time.perf_counter() - began
            results = json.loads((self.folder / "results.json").read_text())["tests"]
            assert [result["score"] for result in results] == CASES * [float(not is_wrong(student))]
        return took / len(students)


@pytest.fixture(scope="module")
def course(sqlite_lab):
    return Course(sqlite_lab, "peers")


def test_a_submission_in_a_batch_beside_nbgrader_and_a_process_each(course, tmp_path):
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "processes").mkdir()
    notebooks, processes = Notebooks(tmp_path / "notebooks"), Processes(tmp_path / "processes")
    ours, nbgrader, pytests = [], [], []
    for round_ in range(ROUNDS):
        ours.append(course.hand_in_batch()[0] / 1000 / BATCH)
        nbgrader.append(notebooks.seconds_each(range(round_ * NOTEBOOKS, (round_ + 1) * NOTEBOOKS)))
        pytests.append(processes.seconds_each(range(round_ * PROCESSES, (round_ + 1) * PROCESSES)))
    one, notebook, process = min(ours), min(nbgrader), min(pytests)
    print(f"\na submission in a batch {1000 * one:.1f} ms")
    print(f"nbgrader autograde {1000 * notebook:.0f} ms: {notebook / one:.0f} times as long")
    print(f"a pytest process {1000 * process:.0f} ms: {process / one:.0f} times as long")
    assert notebook / one >= FASTER_THAN_NBGRADER
    assert process / one >= FASTER_THAN_PYTEST
