"""The Python client against a server that says what the test wants: when it tries again, when it gives up,
and what it tells no one."""

import ast
import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from classroom.client import attention_lab
from classroom.recipes import CLIENT

LIMIT = {
    "type": "urn:attention-lab:problem:submission-limit",
    "title": "The student has no submission left",
    "detail": "Nothing was recorded.",
}
WRONG = {
    "type": "urn:attention-lab:problem:not-computable",
    "title": "The request can be read but not computed",
    "detail": "two",
    "errors": [
        {"pointer": "/answers/a/out", "code": "ragged", "detail": "rows of 3 and 4"},
        {"pointer": "/seed", "code": "wrong-type", "detail": "an integer"},
    ],
}


class Script:
    """Answers in the order in which they are given; the last again and again."""

    def __init__(self):
        self.answers, self.seen = [], []
        script = self

        class Handler(BaseHTTPRequestHandler):
            def handle_any(self):
                length = int(self.headers.get("Content-Length") or 0)
                seen = {name.lower(): value for name, value in self.headers.items()}
                script.seen.append((self.path, seen, self.rfile.read(length)))
                status, document, headers = script.answers[min(len(script.seen), len(script.answers)) - 1]
                if status is None:
                    self.connection.close()
                    return
                body = document if isinstance(document, bytes) else json.dumps(document).encode()
                self.send_response(status)
                for name, value in {"Content-Length": str(len(body)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_POST = handle_any  # noqa: N815

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def says(self, *answers):
        self.answers = [(status, document, headers) for status, document, headers in answers]
        self.seen.clear()


@pytest.fixture(scope="module")
def _script():
    script = Script()
    yield script
    script.server.shutdown()


@pytest.fixture
def script(_script):
    return _script


def lab(script, patience=5.0, **options):
    return attention_lab.AttentionLab(script.url, patience=patience, **options)


def test_it_is_one_file_of_the_standard_library_that_python_3_9_reads():
    tree = ast.parse(CLIENT.read_text(), feature_version=(3, 9))
    named = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            named |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            named.add(node.module.split(".")[0])
    assert named - sys.stdlib_module_names == {"numpy"}, "which it does without, where there is none"


@pytest.mark.parametrize("status", [429, 502, 503, 504, None])
def test_what_may_pass_is_tried_again_with_the_same_key(script, status):
    script.says((status, {}, {"Retry-After": "0"}), (status, {}, {"Retry-After": "0"}), (200, {"a": 1}, {}))
    assert lab(script).post("/grade", {"answers": {}}) == {"a": 1}
    keys = {headers["idempotency-key"] for _, headers, _ in script.seen}
    assert (len(script.seen), len(keys)) == (3, 1)
    assert len({body for _, _, body in script.seen}) == 1
    lab(script).post("/grade", {})
    assert script.seen[-1][1]["idempotency-key"] not in keys, "another request has another key"


def test_a_request_that_is_still_being_carried_out_is_asked_for_again(script):
    document = {"type": "urn:attention-lab:problem:idempotency-in-flight", "title": "still in progress"}
    script.says((409, document, {"Retry-After": "0"}), (200, {}, {}))
    assert lab(script).post("/grade", {}) == {}


@pytest.mark.parametrize("date", [False, True])
def test_it_waits_as_long_as_it_is_told_to(script, date):
    at = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(time.time() + 2)) if date else "1"
    script.says((503, {}, {"Retry-After": at}), (200, {}, {}))
    began = time.monotonic()
    lab(script).get("/problems")
    assert time.monotonic() - began > 0.9


def test_it_does_not_wait_longer_than_it_has_patience(script):
    script.says((429, LIMIT, {"Retry-After": "86400"}))
    with pytest.raises(attention_lab.Refused) as caught:
        lab(script).get("/problems")
    assert (caught.value.kind, len(script.seen)) == ("submission-limit", 1)
    assert "Nothing was recorded." in str(caught.value)
    script.says((503, {}, {}))
    with pytest.raises(attention_lab.Outage):
        lab(script, patience=1.5).get("/problems")
    assert 2 <= len(script.seen) <= 6


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        ((422, WRONG, {}), attention_lab.Refused),
        ((404, b"<html>nothing</html>", {}), attention_lab.Refused),
        ((500, b"<html>broken</html>", {}), attention_lab.Outage),
        ((200, b"<html>sign in to this network</html>", {}), attention_lab.Outage),
    ],
)
def test_what_will_not_pass_is_told_at_once(script, answer, kind):
    script.says(answer)
    with pytest.raises(kind) as caught:
        lab(script).post("/grade", {})
    assert len(script.seen) == 1
    assert "<html>" not in str(caught.value)


def test_an_error_says_which_fields_and_why(script):
    script.says((422, WRONG, {}))
    with pytest.raises(attention_lab.Refused) as caught:
        lab(script).grade("p", {"a": {"out": [[1]]}})
    assert str(caught.value).splitlines() == [
        "422 The request can be read but not computed",
        "  /answers/a/out: rows of 3 and 4",
        "  /seed: an integer",
    ]
    assert [each["code"] for each in caught.value.errors] == ["ragged", "wrong-type"]


def test_nobody_there_is_an_outage_and_no_verdict():
    with pytest.raises(attention_lab.Outage, match="does not answer") as caught:
        attention_lab.AttentionLab("http://127.0.0.1:9", patience=0.3).grade("p", {})
    assert caught.value.status is None


def test_a_redirect_does_not_carry_the_token_away(script):
    script.says((302, b"", {"Location": "http://localhost:1/elsewhere"}))
    for ask in (lambda one: one.get("/problems"), lambda one: one.post("/grade", {})):
        with pytest.raises(attention_lab.Refused, match="http://localhost:1/elsewhere"):
            ask(lab(script, token="al_secret"))
    assert [headers["authorization"] for _, headers, _ in script.seen] == ["Bearer al_secret"] * 2


def test_an_array_elsewhere_is_fetched_from_the_lab_only(script):
    far = {"artifact": "http://somewhere.example/api/v1/x?format=npy&array=a%2Fq", "shape": [1]}
    script.says((200, {"cases": {"a": {"q": far}}}, {}), (404, {"title": "x"}, {}))
    with pytest.raises(attention_lab.Refused):
        lab(script, token="al_secret").inputs("p")
    assert script.seen[1][0] == "/api/v1/x?format=npy&array=a%2Fq"


def test_a_submission_that_is_not_graded_in_time_has_no_verdict(script):
    script.says((200, {"id": "s", "status": "queued"}, {}))
    began = time.monotonic()
    with pytest.raises(attention_lab.Outage, match="still queued"):
        lab(script).wait("s", 1.2)
    assert time.monotonic() - began < 10
    assert script.seen[0][1]["prefer"] == "wait=1"


@pytest.mark.parametrize(("fault", "kind"), [("platform", "Outage"), (None, "Refused")])
def test_a_submission_without_a_verdict_is_no_verdict(script, fault, kind):
    document = {"id": "s", "status": "error" if fault else "canceled", "fault": fault, "tests": []}
    script.says((200, {**document, "error": {"detail": "The grader was lost."} if fault else None}, {}))
    with pytest.raises(getattr(attention_lab, kind), match="Submission s is"):
        lab(script).submit({}, "a", "ada")


def test_large_batches_are_sent_in_parts_and_answered_in_order(script, monkeypatch):
    monkeypatch.setattr(attention_lab, "MOST_IN_BATCH", 2)
    monkeypatch.setattr(attention_lab, "MOST_BYTES", 2_000)
    parts = [["a"], ["b", "c"], ["d"]]
    script.says(*[(200, {"results": [{"id": name} for name in part]}, {}) for part in parts])
    long = {"x": {"out": [1.0] * 500}}
    given = [{"user_ref": "a", "answers": long}, *({"user_ref": name, "answers": {}} for name in "bcd")]
    found = lab(script).submit_batch(given, "one", wait=0)
    assert [each["id"] for each in found] == list("abcd")
    sent = [[each["user_ref"] for each in json.loads(body)["submissions"]] for _, _, body in script.seen]
    assert sent == parts


@pytest.mark.parametrize("url", ["", "lab.example", "ftp://lab.example", "https://"])
def test_an_address_that_is_none_is_told(url, monkeypatch):
    monkeypatch.delenv("ATTENTION_LAB_URL", raising=False)
    with pytest.raises(ValueError, match="address"):
        attention_lab.AttentionLab(url)


def test_a_link_that_was_cut_short_is_told():
    with pytest.raises(ValueError, match="copy it again"):
        attention_lab.AttentionLab("https://lab.example/en/hand-in/abc/?key=WyJh")


@pytest.mark.parametrize(
    "url", ["https://lab.example/", "https://lab.example/api/v1/", "https://lab.example"]
)
def test_the_address_may_be_that_of_the_site_or_of_the_api(url):
    found = attention_lab.AttentionLab(url)
    assert (found.origin, found.base) == ("https://lab.example", "/api/v1")


def test_a_lab_may_lie_below_a_path():
    assert attention_lab.AttentionLab("https://example.org/lab/").base == "/lab/api/v1"
