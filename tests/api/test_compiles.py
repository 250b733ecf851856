"""Compilations over REST: a row like a run's, of another kind."""

import pytest

from tests.api.helpers import BODY, assert_problem, validator
from workers import runs

pytestmark = pytest.mark.django_db(transaction=True)

REQUEST = {**BODY, "dtype": "float16", "targets": ["sm_80", "sm_90"]}


def submit(caller, **changes):
    answer = caller.post("/compiles", {**REQUEST, **changes})
    assert answer.status_code == 202, answer.content
    return answer.json()


def finish(run_id):
    run = runs.claim(run_id)
    assert runs.finish_compile(
        run, texts={"sm_90.ptx": ".target sm_90a"}, result={"targets": {"sm_90": {"registers": 230}}},
        environment={"triton": "3"},
    )  # fmt: skip


def test_it_is_queued_for_the_compile_worker(api, sent):
    document = submit(api)
    assert sent == [document["id"]]
    assert runs.get(document["id"]).queue == "compile"
    assert document["targets"] == ["sm_80", "sm_90"]


def test_engines_beyond_softmax_are_compiled_where_they_have_kernels(api):
    assert submit(api, engine="linear", options={"form": "recurrent"})["engine"] == "linear"
    refused = api.post("/compiles", {**REQUEST, "engine": "performer"})
    assert_problem(refused, 422, pointer="/engine", says="linear, scan")


def test_its_end_shows_figures_and_texts(api):
    run_id = submit(api)["id"]
    finish(run_id)
    document = api.get(f"/compiles/{run_id}").json()
    assert document["result"] == {"targets": {"sm_90": {"registers": 230}}}
    assert list(document["artifacts"]) == ["sm_90.ptx"]
    text = api.get(f"/compiles/{run_id}/artifacts/sm_90.ptx")
    assert text.content == b".target sm_90a"
    assert text["Content-Type"] == "text/plain; charset=utf-8"
    assert_problem(api.get(f"/compiles/{run_id}/artifacts/sm_80.ptx"), 404, says="sm_90.ptx")


def test_runs_and_compiles_do_not_answer_for_each_other(alice):
    compile_id, run_id = submit(alice)["id"], alice.post("/runs", BODY).json()["id"]
    assert_problem(alice.get(f"/runs/{compile_id}"), 404)
    assert_problem(alice.get(f"/compiles/{run_id}"), 404)
    assert_problem(alice.delete(f"/compiles/{run_id}"), 404)
    assert [run["id"] for run in alice.get("/runs").json()["results"]] == [run_id]


def test_another_token_sees_nothing(alice, bob):
    run_id = submit(alice)["id"]
    assert_problem(bob.get(f"/compiles/{run_id}"), 404)
    assert_problem(bob.delete(f"/compiles/{run_id}"), 404)


@pytest.mark.parametrize(
    ("changes", "status", "pointer"),
    [
        ({"targets": ["sm_70"]}, 422, "/targets/0"),
        ({"targets": [70]}, 400, "/targets/0"),
        ({"targets": []}, 400, "/targets"),
        ({"targets": None}, 400, "/targets"),
        ({"engine": "eager", "dtype": "float32"}, 422, "/engine"),
        ({"target": ["sm_90"]}, 400, "/target"),
    ],
)
def test_a_bad_request_names_the_field_and_queues_nothing(api, sent, changes, status, pointer):
    assert_problem(api.post("/compiles", {**REQUEST, **changes}), status, pointer=pointer)
    assert sent == []


def test_without_a_compile_worker_it_says_so(api, settings):
    settings.QUEUES = ["cpu"]
    assert_problem(api.post("/compiles", REQUEST), 422, pointer="/targets", says="no compile worker")


def test_the_same_key_compiles_once(api, sent):
    first = api.post("/compiles", REQUEST, idempotency_key="one")
    again = api.post("/compiles", REQUEST, idempotency_key="one")
    assert first.json()["id"] == again.json()["id"]
    assert len(sent) == 1


FIGURES = {
    "target": "sm_90", "gpu": "H100, H200", "kernel": "flash_forward", "registers": 107, "stack_bytes": 0,
    "spills_bytes": 0, "shared_bytes": 65536, "shared_limit_bytes": 232448, "tmem_bytes": 0, "num_warps": 8,
    "num_stages": 3, "blocks_per_sm": 2, "limited_by": "registers", "occupancy": 0.25, "fits": True,
    "block_limits": {"blocks": 32, "warps": 8, "registers": 2, "shared": 3}, "instructions": {"total": 3},
    "source_lines": [
        {"file": "kernels/flash/kernel.py", "line": 58, "instructions": {"wgmma": 2, "total": 3}},
    ],
    "sources": {"kernels/flash/kernel.py": "ab" * 32},
}  # fmt: skip


def test_the_answer_is_as_the_document_describes_it(api, document):
    described = document["components"]["schemas"]["CompiledKernel"]["properties"]
    assert {"block_limits", "source_lines", "sources"} <= set(described)
    run_id = submit(api)["id"]
    result = {"targets": {"sm_90": {**FIGURES, "others": [{**FIGURES, "kernel": "flash_scores"}]}}}
    assert runs.finish_compile(runs.claim(run_id), texts={}, result=result, environment={"triton": "3"})
    answer = api.get(f"/compiles/{run_id}").json()
    assert answer["result"] == result
    assert not list(validator(document, "Compile").iter_errors(answer))
    answer["result"]["targets"]["sm_90"]["source_lines"][0]["line"] = "58"
    assert list(validator(document, "Compile").iter_errors(answer))


def test_warps_and_stages_may_be_asked_for(api):
    asked = submit(api, options={"num_warps": 8, "num_stages": 2})["spec"]["options"]
    assert (asked["num_warps"], asked["num_stages"]) == (8, 2)
    assert_problem(
        api.post("/compiles", {**REQUEST, "options": {"num_warps": 3}}), 422, pointer="/options/num_warps"
    )
    assert_problem(
        api.post("/compiles", {**REQUEST, "options": {"num_stages": 9}}), 422, pointer="/options/num_stages"
    )
