"""Engines, health, and the document that describes the API: that it is true."""

import io
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from django.core.management import call_command

from api.runs.examples import EXAMPLES
from kernels.registry import ENGINES
from tests.api.helpers import BODY, assert_problem, fail, finish, validator
from workers import health

pytestmark = pytest.mark.django_db
ROOT = Path(__file__).resolve().parents[2]


def test_engines_and_the_limits_in_force(api, settings):
    settings.RUN_BUDGET_ANONYMOUS = 17
    catalog = api.get("/engines").json()
    assert [engine["name"] for engine in catalog["engines"]] == list(ENGINES)
    assert catalog["limits"]["body_bytes"] == 32 * 1024**2
    assert catalog["limits"]["json_depth"] == 64
    assert catalog["limits"]["run_seconds"]["anonymous"] == 17


def test_the_index_leads_to_everything_else(client, api):
    assert client.get("/api/v1", follow=True).redirect_chain == [("/api/v1/", 301)]
    for name, address in api.get("/").json().items():
        answer = client.get(address)
        expected = {"compiles": 405, "uploads": 405, "grade": 405, "assignments": 401, "webhooks": 401}
        assert answer.status_code in (expected.get(name, 200), 503), address


def test_alive_means_no_question_asked(api, django_assert_num_queries):
    with django_assert_num_queries(0):
        assert api.get("/healthz").json() == {"status": "ok"}


@pytest.mark.parametrize(("ready", "status"), [(True, 200), (False, 503)])
def test_ready_means_all_of_it(api, monkeypatch, caplog, ready, status):
    state = {"ready": ready, "database": True, "broker": True, "queues": {"cpu": ready}}
    monkeypatch.setattr(health, "check", lambda: state)
    answer = api.get("/readyz")
    assert answer.status_code == status
    assert answer.json().items() >= state.items()
    assert answer.has_header("Retry-After") is not ready
    if not ready:
        assert_problem(answer, 503, says="cpu worker")
    assert not caplog.records  # not being ready yet is no error


# --- The document ----------------------------------------------------------------------------


def test_it_is_valid_without_a_warning():
    out = io.StringIO()
    call_command("spectacular", "--validate", "--fail-on-warn", stdout=out)
    assert "/api/v1/runs" in yaml.safe_load(out.getvalue())["paths"]


def test_it_comes_as_json_and_as_yaml(api, document):
    assert api.get("/schema/", accept="application/vnd.oai.openapi").content.startswith(b"openapi: 3.0")
    assert document["openapi"].startswith("3.0")


def test_every_reference_leads_somewhere(document):
    names = set(re.findall(r"#/components/schemas/(\w+)", str(document)))
    assert names <= set(document["components"]["schemas"])
    assert {"Run", "RunRequest", "Problem", "Array", "Upload"} <= names


def test_every_address_and_every_error_is_described(document):
    assert set(document["paths"]) >= {
        "/api/v1/runs",
        "/api/v1/runs/{run_id}",
        "/api/v1/runs/{run_id}/artifacts/{name}",
        "/api/v1/uploads",
        "/api/v1/engines",
        "/api/v1/healthz",
        "/api/v1/readyz",
    }
    post = document["paths"]["/api/v1/runs"]["post"]
    assert {"200", "202", "400", "401", "409", "413", "415", "422", "429", "503"} == set(post["responses"])
    assert {"Prefer", "Idempotency-Key"} <= {parameter["name"] for parameter in post["parameters"]}
    assert {"token": []} in post["security"]
    assert {} in post["security"]
    for status, answer in post["responses"].items():
        media = "application/json" if status < "300" else "application/problem+json"
        assert list(answer["content"]) == [media]
    for path in document["paths"].values():
        for operation in path.values():
            assert operation["summary"]
            assert operation["description"]


def test_answers_are_as_described(api, alice, document):
    run = validator(document, "Run")
    run_id = alice.post("/runs", BODY).json()["id"]
    run.validate(alice.get(f"/runs/{run_id}").json())
    finish(run_id)
    run.validate(alice.get(f"/runs/{run_id}").json())
    failed = alice.post("/runs", BODY).json()["id"]
    fail(failed)
    run.validate(alice.get(f"/runs/{failed}").json())
    validator(document, "RunPage").validate(alice.get("/runs").json())
    validator(document, "Catalog").validate(api.get("/engines").json())
    validator(document, "Liveness").validate(api.get("/healthz").json())
    validator(document, "Index").validate(api.get("/").json())
    for answer in (
        api.post("/runs", {}),
        api.get("/nothing"),
        api.request("PUT", "/runs"),
        api.post("/runs", b"{"),
    ):
        validator(document, "Problem").validate(answer.json())


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"return": ["out", "lse", "weights"], "timing": {"warmup": 0, "iters": 1}},
        {
            "attention": {
                "scale": None,
                "window": [None, None],
                "rope": None,
                "pattern": None,
                "q_positions": None,
            }
        },
        {
            "attention": {
                "window": [3, None],
                "q_positions": [[0, 1]],
                "alibi_slopes": "auto",
                "sinks": [0.5, "-inf"],
            }
        },
        {"attention": {"rope": {"style": "half", "scaling": {"type": "linear", "factor": 2}}}},
        {"attention": {"pattern": {"type": "chunked", "size": 4}}},
        {"attention": {"pattern": {"type": "neighborhood", "width": 8, "kernel_size": 3}}},
        {"options": {"block_m": 64, "kv_dtype": None, "kv_scale": "per_tensor"}},
        {"inputs": {**BODY["inputs"], "attn_mask": [[True, False]], "q_lens": [3]}},
        {"inputs": {**BODY["inputs"], "q": {"seed": 2**63 - 1, "shape": [1, 2, 3]}}},
        {"inputs": {**BODY["inputs"], "q": [[["inf", "-inf", "nan", 1]]]}},
        {"inputs": {**BODY["inputs"], "q": {"b64": "AAAA", "dtype": "float32", "shape": [0]}}},
        {"inputs": {**BODY["inputs"], "q": {"upload": "x", "name": "q"}}},
    ],
)
def test_bodies_of_the_contract_fit_the_description(document, change):
    validator(document, "RunRequest").validate({**BODY, **change})


@pytest.mark.parametrize(
    "change",
    [
        {"atention": {}},
        {"dtype": "float99"},
        {"inputs": {"q": "x"}},
        {"inputs": {"Q": [[1]]}},
        {"inputs": {"q": {"seed": 1}}},
        {"attention": {"is_casual": True}},
        {"attention": {"rope": {"theta": 1}}},
        {"attention": {"pattern": {"type": "chunked"}}},
        {"attention": {"pattern": {"type": "chunked", "size": 0}}},
        {"timing": {"iters": 0}},
        {"return": ["nothing"]},
    ],
)
def test_what_the_parser_refuses_the_description_refuses_too(api, document, change):
    body = {**BODY, **change}
    assert not validator(document, "RunRequest").is_valid(body)
    assert api.post("/runs", body).status_code in (400, 422)


def test_every_field_of_a_pattern_is_described(document):
    null, *variants = document["components"]["schemas"]["Attention"]["properties"]["pattern"]["anyOf"]
    assert null == {"enum": [None]}
    assert {variant["title"] for variant in variants} >= {"longformer", "bigbird", "neighborhood"}
    for variant in variants:
        for name, field in variant["properties"].items():
            assert name == "type" or field["description"].endswith(".")


def test_the_examples_of_the_document_run(api, document):
    content = document["paths"]["/api/v1/runs"]["post"]["requestBody"]["content"]["application/json"]
    engines = [example["value"]["engine"] for example in content["examples"].values()]
    assert engines == [example.value["engine"] for example in EXAMPLES]
    for example in content["examples"].values():
        assert api.post("/runs", example["value"]).status_code == 202


def test_the_docs_need_nothing_from_elsewhere_and_no_inline_script(api):
    answer = api.get("/docs/", accept="text/html")
    assert answer.status_code == 200
    page = answer.content.decode()
    assert "<style" not in page
    assert re.findall(r"<script(?![^>]* src=)", page) == []
    links = re.findall(r'(?:src|href)="([^"]+)"', page)
    assert links
    assert all(link.startswith("/") for link in links)
    assert "'unsafe-inline'" not in answer["Content-Security-Policy"]
    assert "csrf" not in page.lower()
    script = api.get("/docs/?script=", accept="*/*")
    assert script["Content-Type"].startswith("application/javascript")
    assert b"/api/v1/schema/" in script.content


def test_the_web_process_does_without_torch():
    code = (
        "import sys, django; sys.path[:0] = ['.', 'site']; django.setup(); import api.urls;"
        "from kernels.registry import ENGINES, pricing_of, rules_of;"
        "[(rules_of(name), pricing_of(name)) for name in ENGINES];"
        "sys.exit(' '.join({'torch', 'triton'} & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
