"""The ways out of a run's page: its link, the frame for other pages, drawings, commands that repeat it."""

import contextlib
import html
import io
import json
import re
import shlex
import sys
import types
from xml.etree import ElementTree

import numpy as np
import pytest
from django.test import Client

from api.runs.sharing import share_key
from kernels.spec import parse_run
from lab.sharing import drawings
from workers import release, runs
from workers.models import Run

pytestmark = pytest.mark.django_db
SVG = "{http://www.w3.org/2000/svg}"
PRIVATE = ("token:1", "somebody")


def address(run, rest=""):
    return f"/en/lab/runs/{run.id}/{rest}"


def policy(response):
    """{directive: sources} of the answer's content security policy."""
    lines = (line.split() for line in response["Content-Security-Policy"].split(";"))
    return {name: sources for name, *sources in filter(None, lines)}


def snippet(page, name):
    found = re.search(rf'<code id="{name}">(.*?)</code>', page, re.DOTALL)
    return html.unescape(found[1]) if found else None


# --- The link -------------------------------------------------------------------------------------


def test_a_shared_link_shows_the_same_to_a_clean_browser(submit, finish):
    owned = finish(submit(owner="token:1"))
    other = finish(submit(owner="token:1"))
    keyed = address(owned, f"?key={share_key(owned)}")
    page = Client().get(keyed).content.decode()
    again = Client(REMOTE_ADDR="198.51.100.9").get(keyed).content.decode()
    token = re.compile(r'name="csrfmiddlewaretoken" value="\w+"')
    assert token.sub("", page) == token.sub("", again)
    assert f"http://testserver{keyed}" in html.unescape(page)
    assert "carries its key" in page
    for text in (*PRIVATE, other.id):
        assert text not in page
    assert Client().get(address(owned)).status_code == 404
    for rest in ("embed/", "weights.svg"):
        assert Client().get(address(owned, rest)).status_code == 404
        assert Client().get(address(owned, f"{rest}?key={share_key(owned)}")).status_code == 200
        assert Client().get(address(owned, f"{rest}?key={share_key(other)}")).status_code == 404


def test_every_address_of_a_shared_page_carries_the_key(submit, finish):
    owned = finish(submit(owner="token:1"))
    page = html.unescape(Client().get(address(owned, f"?key={share_key(owned)}")).content.decode())
    found = re.findall(rf'(?:http://testserver)?/en/lab/runs/{owned.id}[./][^"\'\s<]*', page)
    assert len(found) > 20
    for one in found:
        if "look/" not in one and "cancel" not in one:  # to these the script or the form adds it
            assert f"key={share_key(owned)}" in one, one


def test_a_run_is_cited_with_what_computed_it(submit, finish):
    run = finish(submit())
    Run.objects.filter(pk=run.id).update(environment={**run.environment, **release.release()})
    cited = snippet(Client().get(address(run)).content.decode(), "citation")
    for part in (run.id, "Flash", "3 queries", "float32", f"http://testserver{address(run)}"):
        assert part in cited
    assert release.release()["version"] in cited
    assert f"{run.finished_at:%Y-%m-%d}" in cited


def test_the_release_is_what_the_project_says(settings, monkeypatch):
    release.release.cache_clear()
    settings.COMMIT = "c0ffee"
    found = release.release()
    release.release.cache_clear()
    assert found["commit"] == "c0ffee"
    assert f'version = "{found["version"]}"' in (settings.ROOT / "pyproject.toml").read_text()


# --- The frame ------------------------------------------------------------------------------------


def test_only_the_embedded_page_may_be_framed(submit, finish):
    run = finish(submit())
    framed = Client().get(address(run, "embed/"))
    assert policy(framed)["frame-ancestors"] == ["*"]
    assert policy(framed)["script-src"] == ["'self'"]
    assert "X-Frame-Options" not in framed
    for rest in ("", "weights.svg"):
        other = Client().get(address(run, rest))
        assert policy(other)["frame-ancestors"] == ["'none'"]
        assert other["X-Frame-Options"] == "DENY"


def test_the_embedded_page_has_verdict_and_matrices_and_remembers_nobody(submit, finish):
    run = finish(submit())
    response = Client().get(address(run, "embed/"))
    page = response.content.decode()
    assert not response.cookies
    assert "within the bound of 2.5e−6" in page
    assert page.count("<svg") == 2
    assert f'href="http://testserver{address(run)}" target="_blank"' in page
    assert "<script" not in page
    assert "<form" not in page
    assert 'data-theme="dark"' in Client().get(address(run, "embed/?theme=dark")).content.decode()
    assert "data-theme" not in Client().get(address(run, 'embed/?theme="x')).content.decode()


def test_the_frame_of_a_run_that_is_gone_says_so():
    response = Client().get("/en/lab/runs/nothing/embed/")
    assert response.status_code == 404
    assert "There is no such run" in response.content.decode()
    assert policy(response)["frame-ancestors"] == ["*"]


def test_the_markup_of_the_frame_is_a_frame_with_a_title(submit, finish):
    run = finish(submit())
    frame = ElementTree.fromstring(
        snippet(Client().get(address(run)).content.decode(), "frame").replace('loading="lazy"', "")
    )
    assert frame.tag == "iframe"
    assert Client().get(frame.get("src")).status_code == 200
    assert "3 queries" in frame.get("title")
    assert (frame.get("width"), frame.get("height")) == ("640", "480")


# --- Drawings -------------------------------------------------------------------------------------


def test_matrices_that_a_run_did_not_return_are_drawn_in_float64(submit, finish, seeded):
    run = finish(submit(inputs=seeded(1, 2, 5, 4), returns=["out"], attention={"is_causal": True}))
    q, k = (
        np.load(io.BytesIO(Client().get(address(run, f"files/{name}.npy")).content))[0, 1].astype(float)
        for name in "qk"
    )
    scores = q @ k.T / 2
    drawn = ElementTree.fromstring(Client().get(address(run, "scores.svg?head=1")).content)
    titles = [title.text.rpartition(": ")[2].replace("−", "-") for title in drawn.iter(f"{SVG}title")]
    assert np.allclose(np.array(titles, float).reshape(5, 5), scores, atol=5.1e-5)
    masked = ElementTree.fromstring(Client().get(address(run, "masked_scores.svg")).content)
    assert sum("−∞" in title.text for title in masked.iter(f"{SVG}title")) == 10
    error = Client().get(address(run, "error.svg"))
    assert error.status_code == 200
    assert "dimension →" in error.content.decode()


@pytest.mark.parametrize("name", [*drawings.NAMES[:4], "out", "error"])
def test_a_drawing_needs_no_other_file_and_knows_dark_pages(submit, finish, name):
    response = Client().get(address(finish(submit()), f"{name}.svg"))
    text = response.content.decode()
    root = ElementTree.fromstring(text)
    assert all(cell.get("fill").startswith("#") for cell in root.iter(f"{SVG}rect"))
    assert "@media (prefers-color-scheme:dark)" in root.find(f"{SVG}style").text
    assert "href" not in text
    rules = policy(response)
    assert rules["default-src"] == ["'none'"]
    assert not any("unsafe" in source for source in rules["style-src"])


def test_every_drawing_that_a_page_names_is_there(submit, finish):
    run = finish(submit())
    page = Client().get(address(run)).content.decode()
    named = re.findall(rf'href="({address(run)}\w+\.svg[^"]*)"', page)
    assert {"weights", "scores", "out", "error"} <= {re.search(r"(\w+)\.svg", one)[1] for one in named}
    for one in named:
        assert Client().get(html.unescape(one)).status_code == 200
    assert Client().get(address(run, "secret.svg")).status_code == 404


# --- Commands -------------------------------------------------------------------------------------


def sent_by_curl(command):
    words = shlex.split(command)
    assert words[:3] == ["curl", "-X", "POST"]
    return json.loads(words[words.index("-d") + 1])


class Requests(types.ModuleType):
    """The package requests, as far as a snippet uses it, on Django's own client."""

    def __init__(self):
        super().__init__("requests")
        self.client, self.posted = Client(), []

    def answered(self, response):
        response.raise_for_status = lambda: response.status_code < 400 or pytest.fail(response.content)
        return response

    def get(self, url, **_options):
        return self.answered(self.client.get(url))

    def post(self, url, json=None, files=None, headers=None, timeout=None):
        assert timeout
        if files:
            (name, content) = files["file"]
            file = io.BytesIO(content)
            file.name = name
            return self.answered(self.client.post(url, {"file": file}))
        self.posted.append(json)
        response = self.answered(self.client.post(url, json, content_type="application/json"))
        document = {**response.json(), "status": "succeeded"}  # nobody computes it here
        response.json = lambda: document
        return response


def run_requests(program, monkeypatch):
    """(the body that it posted, the run that came of it)"""
    stand_in = Requests()
    monkeypatch.setitem(sys.modules, "requests", stand_in)
    with contextlib.redirect_stdout(io.StringIO()) as said:
        exec(compile(program, "snippet.py", "exec"), {})
    run_id = re.search(r"/runs/(\w+)/", said.getvalue())[1]
    return stand_in.posted[-1], runs.get(run_id)


BODIES = {
    "by hand": {},
    "options": {
        "options": {"block_m": 16},
        "dtype": "bfloat16",
        "attention": {"is_causal": True, "window": [2, None]},
    },
    "infinities": {"attention": {"sinks": ["-inf"]}},
    "a mask": {"inputs": {**{n: [[1, 0.1]] * 3 for n in "qkv"}, "attn_mask": [[True, False, True]] * 3}},
    "seeded": {"inputs": {n: {"seed": 3, "shape": [1, 2, 8, 4], "distribution": "peaked"} for n in "qkv"}},
    "many numbers": {"inputs": {n: np.linspace(0, 1, 800).reshape(100, 8).tolist() for n in "qkv"}},
    "ragged, many numbers": {
        "inputs": {
            **{n: np.linspace(0, 1, 800).reshape(2, 1, 100, 4).tolist() for n in "qkv"},
            "kv_lens": [7, 100],
        }
    },
}


@pytest.mark.parametrize("case", BODIES)
def test_the_commands_of_a_page_ask_for_the_same_run(submit, finish, monkeypatch, case):
    asked = {"returns": ["out", "lse"], **BODIES[case]}
    run = finish(submit(**asked))
    page = Client().get(address(run)).content.decode()
    posted, again = run_requests(snippet(page, "requests"), monkeypatch)
    for name, given in run.spec["inputs"].items():
        other = again.spec["inputs"][name]
        assert (other["shape"], other.get("seed")) == (given["shape"], given.get("seed"))
    assert {**again.spec, "inputs": 0} == {**run.spec, "inputs": 0}
    command = snippet(page, "curl")
    if "many" in case:
        assert command.startswith("UPLOAD=$(curl -s http://testserver/en/lab/runs/")
        command = command.split("\ncurl -X", 1)[1].join(["curl -X", ""])
        sent = sent_by_curl(command.replace("'\"$UPLOAD\"'", "ID"))
        assert sent["inputs"]["q"] == {"upload": "ID", "name": "q"}
        assert {**sent, "inputs": 0} == {**posted, "inputs": 0}
    else:
        assert sent_by_curl(command) == posted
        parse_run(posted)


def test_what_is_no_softmax_attention_says_that_it_has_no_short_program(submit, seeded):
    run = submit(engine="linear", inputs=seeded(1, 2, 8, 4), returns=["out"])
    runs.cancel(run.id)
    page = Client().get(address(run)).content.decode()
    assert snippet(page, "torch") is None
    assert "does not fit into a short program" in page
    assert snippet(page, "curl")
