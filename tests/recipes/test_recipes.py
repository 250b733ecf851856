"""The recipes, each carried out as its reader would, with what the running product serves."""

import base64
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

from classroom import recipes
from classroom.client import attention_lab

pytestmark = pytest.mark.slow

PROBLEM = "root-d"
# What a student writes; without numpy, which not every Python has.
SOLUTION = """
import math


def softmax(row):
    exponentials = [math.exp(number - max(row)) for number in row]
    return [number / sum(exponentials) for number in exponentials]


def head(q, k, v):
    scores = [[sum(a * b for a, b in zip(x, y)) / math.sqrt(len(x)) for y in k] for x in q]
    weights = [softmax(row) for row in scores]
    out = [[sum(w * x for w, x in zip(row, column)) for column in zip(*v)] for row in weights]
    return scores, weights, out


def solve(q, k, v):
    print("solving")
    heads = [[head(*each) for each in zip(*row)] for row in zip(q, k, v)]
    return {name: [[each[i] for each in row] for row in heads] for i, name in enumerate(NAMES)}


NAMES = ("scores", "weights", "out")
"""
WRONG = SOLUTION.replace(" / math.sqrt(len(x))", "")
NOWHERE = "http://127.0.0.1:9"
IMPATIENT = {"ATTENTION_LAB_PATIENCE": "0.5", "ATTENTION_LAB_WAIT": "2"}
POINTS = 10


@pytest.fixture(scope="module")
def server(sqlite_lab):
    sqlite_lab.heal()
    return sqlite_lab


@pytest.fixture(scope="module")
def teacher(server):
    return attention_lab.AttentionLab(server.url, server.token("recipes"))


@pytest.fixture
def assign(teacher):
    """A new assignment: its id."""

    def assign(**fields):
        return teacher.post("/assignments", {"problem": PROBLEM, **fields})["id"]

    return assign


@pytest.fixture
def assignment(assign):
    return assign()


def fetched(server, path, folder):
    """A file that the site serves, saved."""
    answer = server.get(f"/client/{path}")
    assert answer.status == 200, path
    file = folder / Path(path).name
    file.write_bytes(answer.body)
    file.chmod(0o755)
    return file


def environment(**more):
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ATTENTION_LAB_")}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**kept, "PATH": path, "PYTHONPATH": "", **more}


def ran(command, folder, **env):
    return subprocess.run(
        command, cwd=folder, env=environment(**env), capture_output=True, text=True, timeout=120, check=False
    )


def blocks(server, name, language):
    """The code in a recipe, with the address of the running lab."""
    text = (recipes.FOLDER / f"{name}.md").read_text().replace(recipes.EXAMPLE, server.url)
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def documents(text):
    """JSON documents that were printed one after the other."""
    decoder, found = json.JSONDecoder(), []
    while text.strip().startswith("{"):
        document, end = decoder.raw_decode(text.strip())
        found.append(document)
        text = text.strip()[end:]
    return found, text.strip()


# --- Python ----------------------------------------------------------------------------------


def test_python_in_a_program_and_in_a_shell(server, tmp_path):
    (tmp_path / "solution.py").write_text(SOLUTION)
    fetch, commands = blocks(server, "python", "bash")
    done = ran(["bash", "-euo", "pipefail", "-c", fetch], tmp_path)
    assert done.returncode == 0, done.stderr
    (program,) = blocks(server, "python", "python")
    done = ran([sys.executable, "-c", program], tmp_path)
    assert done.stdout.startswith(f"accepted: {POINTS} of {POINTS} points"), done
    done = ran(["bash", "-euo", "pipefail", "-c", commands], tmp_path)
    assert done.stdout.startswith(f"accepted: {POINTS} of {POINTS} points"), done
    (tmp_path / "solution.py").write_text(WRONG)
    done = ran(["bash", "-euo", "pipefail", "-c", commands], tmp_path)
    assert done.returncode == 1
    assert "without the factor" in done.stdout


def test_the_command_says_what_happened_by_how_it_ends(server, tmp_path):
    client = fetched(server, "attention_lab.py", tmp_path)
    (tmp_path / "answers.json").write_text("{}")

    def grade(problem, url=server.url, file="answers.json"):
        command = [sys.executable, client, "grade", problem, file]
        return ran(command, tmp_path, ATTENTION_LAB_URL=url, **IMPATIENT)

    assert grade(PROBLEM).returncode == 1
    refused = grade("nothing-like-it")
    assert refused.returncode == 2
    assert "/problem: there is no such problem" in refused.stderr
    assert grade(PROBLEM, file="missing.json").returncode == 2
    nobody = grade(PROBLEM, NOWHERE)
    assert (nobody.returncode, nobody.stdout) == (3, "")
    assert nobody.stderr.startswith("No verdict:")


def test_a_batch_is_graded_and_each_refusal_told(teacher, assign):
    assignment = assign(submission_limit={"count": 1})
    module = {}
    exec(SOLUTION, module)

    def handed_in(user_ref, name):
        answers = attention_lab.solve(module["solve"], teacher.variant(assignment, user_ref))
        return {"user_ref": user_ref, "external_id": name, "answers": answers}

    found = teacher.submit_batch(
        [handed_in("ada", "1"), handed_in("ada", "2"), handed_in("eve", "3")], assignment, wait=60
    )
    assert [each["status"] for each in found] == ["graded", "refused", "graded"]
    assert [each.accepted for each in found] == [True, False, True]
    assert "may hand in 1 submissions" in found[1]["error"]["detail"]
    assert teacher.results(found[0])["score"] == POINTS


def test_inputs_too_large_for_lists_come_too(teacher):
    case = {"name": "long", "shape": {"q_len": 300, "kv_len": 8, "head_dim": 256}}
    body = {"slug": "long-inputs", "title": "L", "answer": [{"name": "out"}], "cases": [case]}
    teacher.post("/problems", body)
    document = teacher.get("/problems/long-inputs/inputs", seed=3)
    assert "artifact" in document["cases"]["long"]["q"]
    inputs = teacher.inputs("long-inputs", seed=3, array=np.asarray)["cases"]["long"]
    assert inputs["q"].shape == (1, 1, 300, 256)
    scores = inputs["q"] @ np.swapaxes(inputs["k"], -1, -2) / 16
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    out = (weights / weights.sum(-1, keepdims=True)) @ inputs["v"]
    assert teacher.grade("long-inputs", {"long": {"out": out.astype("float32")}}, seed=3).accepted


def test_a_run(server):
    lab = attention_lab.AttentionLab(server.url)
    q, k = np.eye(2, dtype="float32"), [[1, 0], [0, 1]]
    run = lab.run("reference", {"q": q, "k": k, "v": k}, returns=["out", "lse"], array=np.asarray)
    weights = np.exp(np.eye(2) / np.sqrt(2))
    weights /= weights.sum(-1, keepdims=True)
    np.testing.assert_allclose(run["result"]["out"], weights, atol=1e-6)
    with pytest.raises(attention_lab.Refused, match="/inputs/v") as caught:
        lab.run("reference", {"q": q, "k": k, "v": [[1, 2]]})
    assert caught.value.status == 422


# --- Gradescope ------------------------------------------------------------------------------

OF_GRADESCOPE = {
    "score", "execution_time", "output", "output_format", "visibility", "stdout_visibility", "extra_data",
    "tests", "leaderboard", "test_output_format", "test_name_format",
}  # fmt: skip
OF_A_TEST = {
    "score", "max_score", "status", "name", "name_format", "number", "output", "output_format", "tags",
    "visibility", "extra_data",
}  # fmt: skip


def python_for_anybody():
    """A Python that who has no rights may run as well, as Gradescope's is."""
    rights = {"user": "nobody", "group": "nogroup"} if os.geteuid() == 0 else {}
    for python in (sys.executable, "/usr/bin/python3", "/usr/local/bin/python3"):
        try:
            if subprocess.run([python, "-c", ""], check=False, **rights).returncode == 0:
                return python
        except OSError:
            continue
    raise AssertionError("No Python here can be run by the user nobody.")


class Autograder:
    """A container of Gradescope's: /autograder somewhere else, and the files of the zip in place."""

    def __init__(self, server, root, assignment, token):
        self.server, self.root = server, root
        (root / "results").mkdir()
        (root / "source").mkdir()
        (root / "bin").mkdir()
        for name in recipes.names_of("gradescope"):
            fetched(server, f"recipes/gradescope/{name}", root / "source")
        self.settings = json.loads((root / "source/attention-lab.json").read_text())
        self.settings |= {"assignment": assignment, "token": token}
        self.configure()
        self.program("python3", f'exec {shlex.quote(python_for_anybody())} "$@"')
        self.program("apt-get", f'echo "$@" >> {root}/apt-get.log')
        self.results = root / "results/results.json"

    def program(self, name, text):
        file = self.root / "bin" / name
        file.write_text(f"#!/bin/sh\n{text}\n")
        file.chmod(0o755)

    def configure(self, **changes):
        text = json.dumps({**self.settings, **changes})
        (self.root / "source/attention-lab.json").write_text(text)

    def execute(self, name, **env):
        path = f"{self.root}/bin{os.pathsep}{os.environ['PATH']}"
        return ran([self.root / name], self.root, AUTOGRADER_ROOT=str(self.root), PATH=path, **env)

    def submit(self, number, files, earlier=(), **env):
        """What Gradescope does when ada hands in; the results, or None."""
        folder = self.root / "submission"
        subprocess.run(["rm", "-rf", folder], check=True)
        folder.mkdir()
        for name, content in files.items():
            (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
        return self.again(number, earlier, **env)

    def again(self, number, earlier=(), **env):
        users = [{"email": "ada@example.edu", "id": 7, "name": "Ada"}]
        metadata = {"id": number, "users": users, "previous_submissions": list(earlier)}
        (self.root / "submission_metadata.json").write_text(json.dumps(metadata))
        self.done = self.execute("source/run_autograder", **env)
        if not self.results.exists():
            assert self.done.returncode != 0
            return None
        assert self.done.returncode == 0, self.done.stderr
        results = json.loads(self.results.read_text())
        assert set(results) <= OF_GRADESCOPE
        for test in results.get("tests", []):
            assert set(test) <= OF_A_TEST
            assert 0 <= test.get("score", 0) <= test["max_score"]
        return results


@pytest.fixture
def autograder(server, teacher, assign, tmp_path):
    def autograder(**fields):
        assignment = assign(**fields)
        token = teacher.post(f"/assignments/{assignment}/tokens", {"name": "gradescope"})["token"]
        made = Autograder(server, tmp_path, assignment, token)
        done = made.execute("source/setup.sh")
        assert done.returncode == 0, done.stderr
        return made

    return autograder


def submissions(teacher, autograder):
    return teacher.get(f"/assignments/{autograder.settings['assignment']}/submissions")["results"]


def test_gradescope_runs_the_function_and_reports_every_case(teacher, autograder):
    ada = autograder()
    log = ada.root / "apt-get.log"
    assert not log.exists() or "python3-numpy" in log.read_text(), "only what is missing is installed"
    results = ada.submit(1, {"solution.py": SOLUTION})
    assert results["score"] == POINTS
    assert results["output"].startswith("accepted")
    assert "solving" in results["output"], "what the program printed is shown, and spoils nothing"
    by_name = {test["name"]: test for test in results["tests"]}
    assert by_name["yours: out"]["status"] == "passed"
    assert by_name["odd-width: out"]["visibility"] == "hidden"
    assert "score" not in by_name["odd-width: out"]
    (handed_in,) = submissions(teacher, ada)
    assert handed_in["user_ref"] == "ada@example.edu"

    ada.again(1)
    assert len(submissions(teacher, ada)) == 1, "run again it is the same submission"
    results = ada.submit(2, {"solution.py": WRONG})
    assert results["score"] < POINTS / 2
    failed = [test for test in results["tests"] if test.get("status") == "failed"]
    assert any("without the factor" in test["output"] for test in failed)
    assert len(submissions(teacher, ada)) == 2


def test_gradescope_takes_arrays_and_knows_students_by_another_field(teacher, autograder):
    ada = autograder()
    ada.configure(user_ref="id")
    variant = teacher.variant(ada.settings["assignment"], "7", array=np.asarray)
    module = {}
    exec(SOLUTION, module)
    answers = {
        f"{case}/{name}": np.array(value, "float32")
        for case, named in attention_lab.solve(module["solve"], variant).items()
        for name, value in named.items()
    }
    np.savez(ada.root / "answers.npz", **answers)
    assert ada.submit(3, {"answers.npz": (ada.root / "answers.npz").read_bytes()})["score"] == POINTS
    (handed_in,) = submissions(teacher, ada)
    assert handed_in["user_ref"] == "7"


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({}, "Hand in solution.py"),
        ({"answers.json": '{"yours": '}, "answers.json cannot be read"),
        ({"answers.npz": b"PK\x03\x04"}, "answers.npz cannot be read"),
        ({"answers.json": '{"yours": 3}'}, "/answers/yours"),
        ({"solution.py": "def solve(q, k, v):\n    raise RuntimeError('off by one')"}, "off by one"),
        ({"solution.py": "print('hello'"}, "SyntaxError"),
        ({"solution.py": "def other(): pass"}, "no function solve"),
        ({"solution.py": "import sys; sys.exit(0)"}, "no answers"),
    ],
)
def test_gradescope_tells_students_what_cannot_be_graded(teacher, autograder, files, said):
    ada = autograder()
    results = ada.submit(1, files)
    assert results["score"] == 0
    assert said in results["output"]
    assert submissions(teacher, ada) == [], "and it uses up no try"


def test_gradescope_gives_a_program_neither_the_token_nor_the_results(autograder):
    if os.geteuid() != 0:
        pytest.skip("who runs as somebody has no rights to give up; Gradescope runs as root")
    ada = autograder()
    thief = f"""
import os, pathlib
ROOT = pathlib.Path({str(ada.root)!r})
for path in (ROOT / "source/attention-lab.json", pathlib.Path("link"), f"/proc/{{os.getppid()}}/environ"):
    try:
        print("READ", pathlib.Path(path).read_bytes())
    except OSError as error:
        print(error)
try:
    (ROOT / "results/results.json").write_text('{{"score": 1000}}')
except OSError as error:
    print(error)
print("ENV", dict(os.environ))
{SOLUTION}"""
    folder = ada.root / "submission"
    ada.submit(1, {"solution.py": thief})
    (folder / "link").symlink_to(ada.root / "source/attention-lab.json")
    results = ada.again(2)
    assert results["score"] == POINTS
    assert "READ" not in results["output"]
    assert ada.settings["token"] not in results["output"]
    assert results["output"].count("Permission denied") == 4
    (folder / "solution.py").unlink()
    (folder / "answers.json").symlink_to(ada.root / "source/attention-lab.json")
    assert ada.again(3)["output"].startswith("Hand in solution.py")


def test_gradescope_has_no_results_when_there_is_no_verdict(server, teacher, autograder):
    """Neither a pass nor a zero: the lab away, its grader away, a token revoked."""
    ada = autograder(submission_limit={"count": 1})
    ada.results.write_text('{"score": 10}')
    ada.configure(url=NOWHERE)
    assert ada.submit(1, {"solution.py": SOLUTION}, **IMPATIENT) is None
    assert "does not answer" in ada.done.stderr
    ada.configure(token="al_nobody")
    assert ada.again(1) is None
    ada.configure()
    server.kill("grader")
    try:
        assert ada.again(1, **IMPATIENT) is None
    finally:
        server.heal()
    assert "still queued" in ada.done.stderr
    assert ada.again(1)["score"] == POINTS, "the same try, graded after all"
    assert len(submissions(teacher, ada)) == 1
    earlier = [{"results": json.loads(ada.results.read_text())}]
    results = ada.submit(2, {"solution.py": WRONG}, earlier)
    assert results["score"] == POINTS, "over the limit nothing changes"
    assert "may hand in 1 submissions" in results["output"]
    assert ada.submit(3, {"solution.py": WRONG}) is None


# --- GitHub Classroom ------------------------------------------------------------------------


class Runner:
    """The steps of the workflow, as a runner of GitHub's carries them out."""

    def __init__(self, server, folder):
        text = fetched(server, "recipes/github-classroom/classroom.yml", folder).read_text()
        (job,) = yaml.safe_load(text)["jobs"].values()
        self.steps, self.folder = job["steps"], folder

    def push(self, **env):
        """What the reporter gets; None: a step before it failed."""
        outputs = {}
        for step in self.steps:
            if "run" not in step:
                continue
            file = self.folder / "output"
            file.write_text("")
            script = self.folder / "step.sh"
            script.write_text(step["run"])
            more = {"GITHUB_OUTPUT": str(file), "GITHUB_SHA": "a1b2c3", **env}
            self.done = ran(["bash", "-e", script], self.folder, **more)
            named = dict(line.split("=", 1) for line in file.read_text().splitlines())
            outputs |= {f"steps.{step.get('id')}.outputs.{name}": value for name, value in named.items()}
            if self.done.returncode:
                return None
        (reporter,) = [step for step in self.steps if "reporter" in step.get("uses", "")]
        found = {}
        for runner in reporter["with"]["runners"].split(","):
            expression = reporter["env"][f"{runner.upper()}_RESULTS"]
            encoded = outputs[re.fullmatch(r"\$\{\{ (\S+) \}\}", expression)[1]]
            found[runner] = json.loads(base64.b64decode(encoded))
        (result,) = found.values()
        return result


def test_github_classroom_hands_in_and_reports_points(server, teacher, assignment, tmp_path):
    runner = Runner(server, tmp_path)
    key = teacher.post(f"/assignments/{assignment}/keys", {"user_refs": ["ada lovelace"]})["keys"][0]["key"]
    link = f"{server.url}/en/hand-in/{assignment}/?key={key}"
    (tmp_path / "attention-lab-link.txt").write_text(f"{link}\n")
    (tmp_path / "solution.py").write_text(SOLUTION)
    result = runner.push()
    assert result, runner.done
    assert (result["status"], result["max_score"], result["tests"][0]["score"]) == ("pass", POINTS, POINTS)
    runner.push()
    rows = teacher.get(f"/assignments/{assignment}/submissions")["results"]
    assert [row["user_ref"] for row in rows] == ["ada lovelace"], "pushed twice, handed in once"
    (tmp_path / "solution.py").write_text(WRONG)
    result = runner.push()
    assert (result["status"], len(result["tests"])) == ("fail", 1)
    assert 0 <= result["tests"][0]["score"] < POINTS / 2
    assert "without the factor" in result["tests"][0]["message"]


def test_github_classroom_reports_nothing_when_there_is_no_verdict(server, assignment, teacher, tmp_path):
    runner = Runner(server, tmp_path)
    key = teacher.post(f"/assignments/{assignment}/keys", {"user_refs": ["ada"]})["keys"][0]["key"]
    (tmp_path / "solution.py").write_text(SOLUTION)
    (tmp_path / "attention-lab-link.txt").write_text(f"{NOWHERE}/en/hand-in/{assignment}/?key={key}")
    assert runner.push(**IMPATIENT) is None
    assert "No verdict" in runner.done.stderr
    (tmp_path / "attention-lab-link.txt").write_text(f"{server.url}/en/hand-in/{assignment}/?key={key[:-3]}")
    assert runner.push(**IMPATIENT) is None


# --- Notebooks -------------------------------------------------------------------------------

NOTEBOOK = """
import ast, sys
student, cell = (open(name).read() for name in sys.argv[1:])
tree = ast.parse(cell)
names = {}
exec(student, names)
names["attention"] = names.pop("solve")
exec(compile(ast.Module(tree.body[:-1], []), "cell", "exec"), names)
print("Out:", repr(eval(compile(ast.Expression(tree.body[-1].value), "cell", "eval"), names)))
"""


@pytest.fixture
def notebook(server, tmp_path):
    """`notebook(cell, solution)`: what a notebook shows whose student wrote that, or how its kernel ended."""
    fetched(server, "attention_lab.py", tmp_path)

    def notebook(name, solution, url=server.url):
        cell = fetched(server, f"recipes/notebook/{name}", tmp_path)
        cell.write_text(cell.read_text().replace(server.url, url))
        (tmp_path / "student.py").write_text(solution)
        done = ran([sys.executable, "-c", NOTEBOOK, "student.py", name], tmp_path, **IMPATIENT)
        out = re.search(r"^Out: (.*)$", done.stdout, re.MULTILINE)
        return out[1] if out else done

    return notebook


def test_nbgrader_gets_points_as_a_number(notebook):
    assert float(notebook("nbgrader_cell.py", SOLUTION)) == 5
    partly = SOLUTION.replace('"out")', '"other")')
    assert 0 < float(notebook("nbgrader_cell.py", partly)) < 5
    assert float(notebook("nbgrader_cell.py", WRONG)) < 2.5


def test_nbgrader_gets_nothing_when_there_is_no_verdict(notebook):
    done = notebook("nbgrader_cell.py", SOLUTION, NOWHERE)
    assert (done.returncode, "does not answer" in done.stdout) == (1, True)
    assert "Traceback" not in done.stderr


@pytest.fixture
def otter(tmp_path):
    """`otter(grading)`: what the cell asks of Otter, when a student checks or when it grades."""

    def otter(grading):
        (tmp_path / "otter.py").write_text(f"class Notebook:\n    _grading_mode = {grading}\n")

    return otter


@pytest.mark.parametrize("grading", [False, True])
def test_otter_gets_true_or_what_is_wrong(notebook, otter, grading):
    otter(grading)
    assert notebook("otter_cell.py", SOLUTION) == "True"
    assert notebook("otter_cell.py", WRONG) == "None"


def test_otter_gets_no_result_when_there_is_no_verdict(notebook, otter):
    """A doctest ends with a result whatever is raised in it, but for a KeyboardInterrupt."""
    otter(grading=False)
    checked = notebook("otter_cell.py", SOLUTION, NOWHERE)
    assert "KeyboardInterrupt: no verdict, and nothing is lost" in checked.stderr
    otter(grading=True)
    graded = notebook("otter_cell.py", SOLUTION, NOWHERE)
    assert (graded.returncode, "Traceback" in graded.stderr) == (1, False)
    assert "No verdict: " in graded.stderr


def test_the_otter_cell_is_one_that_otter_can_take_apart():
    """It makes a doctest of it: a line that is not indented begins a statement."""
    lines = (recipes.FOLDER / "notebook" / "otter_cell.py").read_text().splitlines()
    assert not [line for line in lines if line.startswith(("except", "else", "elif", "finally"))]


# --- curl ------------------------------------------------------------------------------------


def test_curl(server, teacher, tmp_path):
    script = "\n".join(blocks(server, "curl", "bash"))
    done = ran(
        ["bash", "-euo", "pipefail", "-c", script], tmp_path, ATTENTION_LAB_TOKEN=server.token("by curl")
    )
    assert done.returncode == 0, done.stderr
    (inputs, verdict, variant, results), grades = documents(done.stdout)
    assert inputs["cases"]["by-hand"]["q"][0] == [1, 0]
    assert (verdict["verdict"], verdict["score"]) == ("accepted", POINTS)
    assert variant["user_ref"] == "ada"
    submission = json.loads((tmp_path / "submission.json").read_text())
    assert submission["status"] == "graded"
    assert 0 < results["score"] == submission["score"] < POINTS, "only out was handed in"
    assert grades.splitlines()[1].startswith(f"ada,{submission['score']}")


def test_nothing_of_the_recipes_is_left_out_here():
    """Who adds a recipe adds its test."""
    text = Path(__file__).read_text()
    for slug in recipes.RECIPES:
        assert slug in text or slug == "notebook"
        for name in recipes.names_of(slug):
            assert name in text, name
