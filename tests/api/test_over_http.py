"""What only a real server can show: bodies on a socket, requests at the same moment, a worker's answer."""

import http.client
import json
import socket
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tests.api.helpers import BODY, validator

pytestmark = pytest.mark.slow

MEBIBYTE = 1024**2


def send(lab, head, pieces):
    """Send a request by hand; (status, headers, body) of the answer, which may come early."""
    with socket.create_connection(("127.0.0.1", lab.port), timeout=30) as connection:
        connection.sendall(head.encode())
        for piece in pieces:
            connection.sendall(piece)
        answer = http.client.HTTPResponse(connection)
        answer.begin()
        return answer.status, answer.headers, answer.read()


def head(*lines):
    return "\r\n".join(["POST /api/v1/runs HTTP/1.1", "Host: 127.0.0.1", *lines, "", ""])


@pytest.mark.parametrize("connection", ["keep-alive", "close"])
def test_who_sends_too_much_gets_to_read_why(sqlite_lab, connection):
    size = 33 * MEBIBYTE
    request = head("Content-Type: application/json", f"Content-Length: {size}", f"Connection: {connection}")
    status, headers, body = send(sqlite_lab, request, [b" " * MEBIBYTE] * 33)
    assert status == 413
    assert headers["Content-Type"] == "application/problem+json"
    assert "32 MiB" in json.loads(body)["detail"]


def chunks(data, size):
    for start in range(0, len(data), size):
        piece = data[start : start + size]
        yield b"%x\r\n%b\r\n" % (len(piece), piece)
    yield b"0\r\n\r\n"


def test_a_body_in_chunks_is_a_body(sqlite_lab):
    request = head("Content-Type: application/json", "Transfer-Encoding: chunked")
    status, headers, body = send(sqlite_lab, request, chunks(json.dumps(BODY).encode(), 50))
    assert status == 202
    assert headers["Location"].endswith(json.loads(body)["id"])


def test_chunks_without_end_are_cut_off(sqlite_lab):
    request = head("Content-Type: application/json", "Transfer-Encoding: chunked")
    status, _, body = send(sqlite_lab, request, chunks(b" " * (33 * MEBIBYTE), MEBIBYTE))
    assert status == 413
    assert json.loads(body)["status"] == 413


def test_a_foreign_host_name_is_a_problem_too(sqlite_lab):
    answer = sqlite_lab.get("/api/v1/engines", host="evil.example")
    assert answer.status == 400
    assert answer.headers["Content-Type"] == "application/problem+json"


def test_one_key_sent_by_many_at_once_makes_one_run(lab):
    """On SQLite and on PostgreSQL the constraint decides, and every caller learns of the one run."""

    def post(_):
        return lab.post_run(BODY, idempotency_key=f"burst-{lab.port}")

    with ThreadPoolExecutor(12) as callers:
        answers = list(callers.map(post, range(12)))
    assert {answer.status for answer in answers} == {202}
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert sum("Idempotent-Replayed" not in answer.headers for answer in answers) == 1
    assert lab.sql("SELECT count(*) FROM api_idempotencykey WHERE key = %s", f"burst-{lab.port}") == [(1,)]


def test_the_worked_example_in_one_call(lab):
    body = {**BODY, "return": ["out", "lse", "weights"]}
    answer = lab.post_run(body, wait=30)
    assert answer.status == 200
    assert answer.headers["Preference-Applied"] == "wait=30"
    run = answer.json()
    assert run["status"] == "succeeded"
    out = [[1.2033, 1.1978], [1.0000, 1.6044], [1.2552, 1.5035]]
    np.testing.assert_allclose(run["result"]["out"], out, atol=5e-5)
    np.testing.assert_allclose(np.sum(run["result"]["weights"], axis=-1), 1, atol=1e-6)
    assert run["result"]["numerics"]["within_bound"] is True
    assert run["result"]["timing"]["method"] == "interpreter"
    assert run["result"]["timing"]["representative"] is False
    # A tiny run in a process that is warm may need no new page: 0 is an answer.
    assert set(run["result"]["memory"]) == {"peak_bytes", "method", "predicted_bytes"}
    assert len(run["inputs"]["q"]["sha256"]) == 64
    files = lab.get(f"/api/v1/runs/{run['id']}/artifacts/out.npy")
    assert files.status == 200


def test_answers_of_a_worker_are_as_described(sqlite_lab):
    document = sqlite_lab.get("/api/v1/schema/").json()
    run = sqlite_lab.post_run(
        {**BODY, "return": ["out", "lse", "scores", "masked_scores", "weights"]}, wait=30
    )
    validator(document, "Run").validate(run.json())


def test_latent_attention_in_both_forms(sqlite_lab):
    shapes = {
        "q_nope": [2, 1, 6], "q_rope": [2, 1, 4], "c_kv": [9, 12], "k_rope": [9, 4], "w_uk": [2, 12, 6],
        "w_uv": [2, 12, 7],
    }  # fmt: skip
    inputs = {name: {"seed": 5, "shape": shape} for name, shape in shapes.items()}
    body = {"engine": "mla", "inputs": inputs, "attention": {"is_causal": True}, "return": ["out", "lse"]}
    outs = []
    for form in ("absorbed", "expanded"):
        run = sqlite_lab.post_run({**body, "options": {"form": form}}, wait=60).json()
        assert run["status"] == "succeeded", run["error"]
        assert run["result"]["numerics"]["within_bound"] is True
        assert run["result"]["numerics"]["arrays"]["lse"]["within_bound"] is True
        assert any(note.startswith(f"Form {form}") for note in run["result"]["notes"])
        assert set(run["inputs"]) == set(shapes)
        assert run["spec"]["options"]["form"] == form
        outs.append(np.array(run["result"]["out"]))
    assert outs[0].shape == (2, 1, 7)
    np.testing.assert_allclose(outs[0], outs[1], rtol=1e-5, atol=1e-5)
    latents = sqlite_lab.get(f"/api/v1/runs/{run['id']}/artifacts/c_kv.npy")
    assert latents.status == 200
    refused = sqlite_lab.post_run({**body, "inputs": {**inputs, "k_rope": {"seed": 5, "shape": [8, 4]}}})
    assert refused.status == 422
    assert refused.json()["errors"][0]["pointer"] == "/inputs/k_rope"
    (engine,) = (
        engine for engine in sqlite_lab.get("/api/v1/engines").json()["engines"] if engine["name"] == "mla"
    )
    assert engine["inputs"][:6] == list(shapes)
    assert engine["inputs_schema"]["anyOf"] == [{"required": list(shapes)}]
    assert engine["options"]["properties"]["form"]["enum"] == [None, "expanded", "absorbed"]
