"""What the API's tests share: a body that is right, and ways to state that an answer is as described, or a
problem."""

import re

import numpy as np
from openapi_schema_validator import OAS30Validator
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT4

from workers import runs
from workers.models import Status

BODY = {
    "engine": "flash",
    "inputs": {
        "q": [[1, 0], [0, 1], [1, 1]],
        "k": [[1, 0], [0, 1], [1, 1]],
        "v": [[1, 0], [0, 2], [2, 2]],
    },
}


def described_path(route):
    """The address of a route as the OpenAPI document writes it."""
    return "/api/v1/" + re.sub(r"<\w+:(\w+)>", r"{\1}", str(route.pattern))


def validator(document, name):
    """What checks against the schema ``name`` of the OpenAPI document."""
    registry = Registry().with_resource("urn:api", Resource(contents=document, specification=DRAFT4))
    return OAS30Validator({"$ref": f"urn:api#/components/schemas/{name}"}, registry=registry)


def changed(path, value):
    """BODY with one field set; `path` is an RFC 6901 pointer."""
    body = {**BODY, "inputs": dict(BODY["inputs"])}
    *parents, last = path.lstrip("/").split("/")
    inner = body
    for name in parents:
        inner[name] = dict(inner.get(name, {}))
        inner = inner[name]
    inner[last] = value
    return body


def assert_problem(answer, status, *, pointer=None, code=None, says=()):
    """The answer is a complete problem document; returns it."""
    assert answer.status_code == status, answer.content[:500]
    assert answer["Content-Type"] == "application/problem+json"
    problem = answer.json()
    assert {"type", "title", "status", "detail", "instance"} <= set(problem)
    assert problem["status"] == status
    assert problem["title"]
    assert problem["detail"]
    text = problem["detail"] + " ".join(error["detail"] for error in problem.get("errors", []))
    if pointer is not None:
        found = [error for error in problem["errors"] if error["pointer"] == pointer]
        assert found, problem["errors"]
        if code:
            assert code in [error["code"] for error in found]
    for words in [says] if isinstance(says, str) else says:
        assert words in text, (words, text)
    return problem


def finish(run_id, results=None, **more):
    """Do what a worker does, without computing anything."""
    run = runs.claim(run_id)
    results = {"out": np.array([[1.5, -2.0]], np.float32)} if results is None else results
    assert runs.finish(
        run,
        inputs={"q": np.ones((1, 2), np.float32)},
        results=results,
        input_info={"q": {"shape": [3, 2], "dtype": "float32", "sha256": "ab" * 32}},
        result=more.pop("result", {"numerics": {"max_abs_err": 1e-7}, "timing": {"method": "interpreter"}}),
        environment={"device": "cpu", "interpreter": True},
    )
    return runs.get(run_id)


def compute(run_id):
    """Do what a worker does, computing included."""
    from kernels.execute import execute

    run = runs.claim(run_id)
    spec, arrays = runs.load(run)
    done = execute(spec, arrays)
    assert runs.finish(
        run,
        inputs=done.inputs,
        results=done.arrays,
        input_info=done.input_info,
        result={
            "numerics": done.numerics,
            "comparison": done.comparison,
            "findings": done.findings,
            "timing": done.timing,
            "memory": done.memory,
            "traffic": done.traffic,
            "cost": done.cost,
            "notes": done.notes,
        },
        environment=done.environment,
    )
    return runs.get(run_id)


def fail(run_id):
    run = runs.claim(run_id)
    assert runs.fail(run, Status.FAILED, runs.problem("Worker lost", "It died.", fault="platform"))
