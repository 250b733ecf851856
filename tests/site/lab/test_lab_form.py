"""The form: what it submits is a REST body, what is wrong lands beside its field, what was typed stays."""

import html
import json
import re
import shlex

import numpy as np
import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.urls import reverse

from kernels.registry import ENGINES
from workers.models import Run

pytestmark = pytest.mark.django_db

HOME, ESTIMATE = "/en/lab/", "/en/lab/estimate/"
PASTED = {
    "engine": "flash",
    "dtype": "float32",
    "source": "matrices",
    "q": "1 0\n0 1\n1 1",
    "k": "[[1, 0], [0, 1], [1, 1]]",
    "v": "tensor([[1., 0.], [0., 2.], [2., 2.]])",
    "returns": ["out", "lse", "weights"],
    "alignment": "bottom_right",
    "warmup": "1",
    "iters": "5",
}
SEEDED = {
    "engine": "flash",
    "dtype": "float16",
    "source": "seed",
    "seed": "11",
    "distribution": "peaked",
    "batch": "2",
    "heads": "8",
    "kv_heads": "2",
    "q_len": "16",
    "kv_len": "48",
    "head_dim": "32",
    "v_head_dim": "24",
    "returns": ["out"],
    "causal": "on",
    "alignment": "top_left",
    "scale": "0.5",
    "option_block_m": "16",
    "option_block_n": "32",
    "warmup": "0",
    "iters": "3",
}


@pytest.fixture
def client():
    return Client(REMOTE_ADDR="203.0.113.7")


def body_of(data):
    from lab.form.forms import LabForm
    from lab.form.state import to_query

    return LabForm(to_query(data)).body()


def errors_by_field(response):
    """{id of the control: messages beside it}, from the page itself."""
    found = {}
    for name, block in re.findall(
        r'<div id="lab-(\w+)_error">(.*?)</div>', response.content.decode(), re.DOTALL
    ):
        found[name] = [html.unescape(text) for text in re.findall(r'class="error">([^<]*)', block)]
    return found


def value_of(response, name):
    page = response.content.decode()
    area = re.search(rf'<textarea name="{name}"[^>]*>\n?(.*?)</textarea>', page, re.DOTALL)
    if area:
        return html.unescape(area.group(1))
    box = re.search(rf'<input [^>]*name="{name}"[^>]*>', page)
    if box:
        value = re.search(r'value="([^"]*)"', box.group())
        return html.unescape(value.group(1)) if value else ""
    select = re.search(rf'<select name="{name}".*?</select>', page, re.DOTALL).group()
    return re.search(r'<option value="([^"]*)" selected', select).group(1)


# --- Form to body ---------------------------------------------------------------------------------


def test_pasted_matrices_become_a_short_body():
    assert body_of(PASTED) == {
        "engine": "flash",
        "return": ["out", "lse", "weights"],
        "inputs": {
            "q": [[1, 0], [0, 1], [1, 1]],
            "k": [[1, 0], [0, 1], [1, 1]],
            "v": [[1.0, 0.0], [0.0, 2.0], [2.0, 2.0]],
        },
    }


def test_every_field_has_its_place_in_the_body():
    seeded = {"seed": 11, "distribution": "peaked"}
    assert body_of(SEEDED) == {
        "engine": "flash",
        "dtype": "float16",
        "attention": {"is_causal": True, "causal_alignment": "top_left", "scale": 0.5},
        "options": {"block_m": 16, "block_n": 32},
        "timing": {"warmup": 0, "iters": 3},
        "inputs": {
            "q": {**seeded, "shape": [2, 8, 16, 32]},
            "k": {**seeded, "shape": [2, 2, 48, 32]},
            "v": {**seeded, "shape": [2, 2, 48, 24]},
        },
    }


def test_every_engine_is_offered(client):
    select = re.search(r'<select name="engine".*?</select>', client.get(HOME).content.decode(), re.DOTALL)[0]
    assert set(re.findall(r'<option value="(\w+)"', select)) == set(ENGINES)


def test_the_body_is_what_the_spec_validator_takes():
    from kernels.spec import parse_run

    spec = parse_run(body_of(SEEDED)).spec
    assert (spec.batch, spec.num_heads, spec.num_kv_heads, spec.q_len, spec.kv_len) == (2, 8, 2, 16, 48)
    assert (spec.head_dim, spec.v_head_dim, spec.scale, spec.timing.iters) == (32, 24, 0.5, 3)


def test_empty_twins_follow_their_field():
    data = SEEDED | {"kv_heads": "", "kv_len": "", "v_head_dim": " "}
    shapes = [array["shape"] for array in body_of(data)["inputs"].values()]
    assert shapes == [[2, 8, 16, 32]] * 3


@pytest.mark.parametrize("text", ["abc", "1_000", "0x10", "1e5000", "९", "--1", "1" * 60])
def test_what_is_no_number_is_passed_on_as_it_is(text):
    from lab.form.texts import literal

    assert literal(text) == text


# --- Submitting -----------------------------------------------------------------------------------


def test_a_submission_is_queued_and_leads_to_its_page(client, sent, django_capture_on_commit_callbacks):
    with django_capture_on_commit_callbacks(execute=True):
        response = client.post(HOME, PASTED)
    run = Run.objects.get()
    assert response.status_code == 302
    assert response.headers["Location"] == reverse("lab:run", kwargs={"run_id": run.id})
    assert sent == [run.id]
    assert run.spec["inputs"]["q"] == {"shape": [3, 2], "dtype": "float64", "source": "inline"}
    assert (run.owner, run.budget_seconds) == ("", 30)


def test_errors_land_beside_their_fields_and_nothing_typed_is_lost(client):
    data = PASTED | {"q": "[[1, 0],\n [0, x]]", "iters": "many", "option_block_m": "17"}
    response = client.post(HOME, data)
    assert response.status_code == 422
    errors = errors_by_field(response)
    assert errors["q"] == ["Line 2, column 6: “x” is not a number."]
    assert "many" in errors["iters"][0]
    assert "power of two" in errors["option_block_m"][0]
    assert set(errors) == {"q", "iters", "option_block_m"}
    for name in ("q", "k", "v", "iters", "option_block_m"):
        assert value_of(response, name).strip() == data[name]
    assert not Run.objects.exists()


def test_a_wrong_control_says_so_to_assistive_technology(client):
    page = client.post(HOME, PASTED | {"k": "1 2 3"}).content.decode()
    control = re.search(r'<textarea name="k"[^>]*>', page).group()
    assert 'aria-invalid="true"' in control
    assert 'aria-describedby="lab-k_helptext lab-k_error"' in control
    assert 'href="#lab-k"' in page


@pytest.mark.parametrize(
    ("changes", "field", "says"),
    [
        ({"heads": "8", "kv_heads": "3"}, "kv_heads", "not a multiple"),
        ({"q_len": "100000", "batch": "64"}, "q_len", "elements"),
        ({"q_len": "4096", "heads": "64", "iters": "1000"}, "source", "16,777,216"),
        ({"q_len": "4096", "kv_len": "4096", "iters": "1000"}, "q_len", "allowed"),
        ({"head_dim": "-1"}, "head_dim", "-1"),
        ({"seed": "-5"}, "seed", "between 0"),
        ({"distribution": "flat"}, "distribution", "peaked"),
        ({"engine": "flush"}, "engine", "flush"),
        ({"dtype": "float64"}, "dtype", "float64"),
        ({"returns": []}, "returns", ""),
        ({"scale": "big"}, "scale", "big"),
    ],
)
def test_each_mistake_has_its_place(client, changes, field, says):
    response = client.post(HOME, SEEDED | changes)
    assert response.status_code == 422
    assert field in (errors := errors_by_field(response)), errors
    assert says in " ".join(errors[field])


def test_a_mistake_inside_a_matrix_names_its_indices(client):
    response = client.post(HOME, PASTED | {"q": "1 0\n0 nan\n1 1"})
    assert "[1, 1]" in errors_by_field(response)["q"][0]


@pytest.mark.parametrize(
    ("query", "folds"),
    [
        ("", set()),
        ("?scale=2", {"group-scores"}),
        ("?window_left=4", {"group-masks"}),
        ("?rope=half", {"group-rope"}),
        ("?how_dout=seed&returns=dq", {"group-others", "results"}),
        ("?in_attn_mask=0", {"group-masks"}),
        ("?returns=out", {"results"}),
        ("?option_block_m=64", {"options"}),
        ("?dtype=float16", {"settings"}),
        ("?engine=linear", {"options"}),
        ("?seed=1&kv_len=3", {"shape"}),
    ],
)
def test_a_fold_with_an_unusual_value_is_open_and_no_other(client, query, folds):
    assert open_folds(client.get(HOME + query)) == folds


def open_folds(response):
    return set(re.findall(r'<details class="fold" id="lab-([\w-]+)" open>', response.content.decode()))


def test_a_fold_with_a_mistake_is_open(client):
    assert open_folds(client.post(HOME, PASTED | {"iters": "x"})) == {"settings"}
    assert open_folds(client.post(HOME, PASTED | {"sinks": "1, oops"})) == {"group-scores"}


def test_five_things_are_seen_at_first(client):
    """Source, matrices, engine, causal, and the button: everything else is in a fold that is shut."""
    page = client.get(HOME).content.decode()
    form = page[page.index('<form class="lab-form"') : page.index('class="lab-side"')]
    form = re.sub(r'<div class="panel-(?:grid|seed|upload)">.*?(?=<div class="panel-|</fieldset>)', "", form,
                  flags=re.DOTALL)  # fmt: skip
    form = re.sub(r"<details.*?</details>", "", form, flags=re.DOTALL)
    controls = re.findall(r'<(?:input|select|textarea) [^>]*?name="(\w+)"', form)
    hidden = {"csrfmiddlewaretoken", "shown_for", "shown_source"}
    assert set(controls) - hidden == {"source", "q", "k", "v", "engine", "causal"}


def test_check_says_what_it_would_cost_and_submits_nothing(client):
    response = client.post(HOME, PASTED | {"check": "1"})
    assert response.status_code == 200
    assert "3 queries, 3 keys" in response.content.decode()
    assert not Run.objects.exists()


def test_without_the_csrf_token_nothing_is_submitted():
    client = Client(enforce_csrf_checks=True)
    assert client.post(HOME, PASTED).status_code == 403
    assert client.post(ESTIMATE, PASTED).status_code == 403
    page = client.get(HOME).content.decode()
    token = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', page).group(1)
    assert client.post(HOME, PASTED | {"csrfmiddlewaretoken": token}).status_code == 302


def test_a_body_that_is_too_long_is_refused_before_it_is_read(client, settings):
    settings.MAX_BODY_BYTES = 1000
    response = client.post(HOME, PASTED | {"q": "1 2\n" * 1000})
    assert response.status_code == 413
    assert b"too large" in response.content


@pytest.mark.parametrize(
    ("error", "status", "says"),
    [("quota", 429, "Try again in 7 s"), ("full", 503, "send this form again in 30 s")],
)
def test_refusals_for_now_keep_the_form_and_say_when(client, monkeypatch, error, status, says):
    from workers import quotas, runs

    def refuse(*_args, **_kwargs):
        if error == "quota":
            raise quotas.QuotaExceeded(quotas.Quota("runs", "runs", 120, 60), 7)
        raise runs.QueueFull(retry_after=30)

    monkeypatch.setattr(
        quotas if error == "quota" else runs, "charge" if error == "quota" else "prepare", refuse
    )
    response = client.post(HOME, PASTED)
    assert response.status_code == status
    assert response.headers["Retry-After"] == ("7" if error == "quota" else "30")
    assert says in html.unescape(response.content.decode())
    assert value_of(response, "q").strip() == PASTED["q"]


# --- Uploads --------------------------------------------------------------------------------------


def npz(**arrays):
    import io

    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return SimpleUploadedFile("arrays.npz", buffer.getvalue())


def npy(name, array):
    import io

    buffer = io.BytesIO()
    np.save(buffer, array)
    return SimpleUploadedFile(f"{name}.npy", buffer.getvalue())


UPLOAD = {
    "engine": "flash",
    "dtype": "float32",
    "source": "upload",
    "returns": ["out"],
    "warmup": "1",
    "iters": "5",
}


def test_one_archive_with_q_k_and_v(client):
    rng = np.random.default_rng()
    arrays = {name: rng.normal(size=(4, 8)).astype(np.float32) for name in "qkv"}
    response = client.post(HOME, UPLOAD | {"files": npz(**arrays)})
    assert response.status_code == 302, errors_by_field(response)
    spec = Run.objects.get().spec
    assert spec["inputs"]["v"] == {"shape": [4, 8], "dtype": "float32", "source": "upload"}


def test_three_files_that_are_named_by_their_stems(client):
    files = [npy(name, np.ones((3, 2))) for name in "qkv"]
    assert client.post(HOME, UPLOAD | {"files": files}).status_code == 302


def test_what_an_uploaded_array_has_beyond_the_format_is_said_of_that_array(client):
    arrays = {name: np.ones((3, 2)) for name in "qkv"}
    arrays["v"][1, 0] = 7e4
    response = client.post(HOME, UPLOAD | {"files": npz(**arrays), "dtype": "float16"})
    assert response.status_code == 422
    said = re.sub(r"<[^>]+>", "", response.content.decode())
    assert "Array for V: 70000 at index [1, 0] is beyond float16" in said


def test_a_wrong_name_keeps_the_file_and_can_be_put_right(client):
    names = {"rows": np.ones((3, 2)), "k": np.ones((3, 2)), "v": np.ones((3, 2))}
    response = client.post(HOME, UPLOAD | {"files": npz(**names)})
    assert response.status_code == 422
    assert "rows" in errors_by_field(response)["q_name"][0]
    page = response.content.decode()
    assert "rows 3 × 2 float64" in page
    kept = re.search(r'name="upload" value="(\w+)"', page).group(1)
    assert client.post(HOME, UPLOAD | {"upload": kept, "q_name": "rows"}).status_code == 302


def test_a_pickled_or_missing_file_is_an_error_beside_the_field(client):
    pickled = npy("q", np.array([{"a": 1}], dtype=object))
    for data in (UPLOAD | {"files": pickled}, UPLOAD):
        response = client.post(HOME, data)
        assert response.status_code in (400, 422)
        assert errors_by_field(response)["upload"][0]
    assert not Run.objects.exists()


# --- Links and the live part ----------------------------------------------------------------------


def test_the_worked_example_is_there_at_once(client):
    page = client.get(HOME).content.decode()
    assert "[[1, 0],\n [0, 1],\n [1, 1]]" in page
    assert "3 queries, 3 keys" in page


def test_a_link_fills_in_the_form(client):
    response = client.get(
        HOME,
        {
            "q": "[[9,0],[0,1]]",
            "k": "[[1,0]]",
            "v": "[[2,2]]",
            "engine": "reference",
            "causal": "1",
            "scale": "0.5",
        },
    )
    assert value_of(response, "q") == "[[9,0],[0,1]]"
    assert value_of(response, "engine") == "reference"
    assert value_of(response, "scale") == "0.5"
    assert re.search(r'name="causal"[^>]*checked', response.content.decode())
    assert "2 queries, 1 key" in response.content.decode()


def test_a_link_with_a_seed_chooses_the_seed(client):
    response = client.get(HOME, {"seed": "3", "q_len": "8"})
    assert re.search(r'value="seed"[^>]*checked', response.content.decode())
    assert "8 queries, 8 keys" in response.content.decode()


@pytest.mark.parametrize(
    "query", [{"q": "[[" * 50}, {"engine": "<script>"}, {"source": "x"}, {"from": "nobody"}]
)
def test_a_broken_link_is_a_page_that_says_so(client, query):
    response = client.get(HOME, query)
    assert response.status_code == (404 if "from" in query else 200)
    assert b"<script>" not in response.content.replace(b"<script src=", b"")


@pytest.mark.parametrize("data", [PASTED, SEEDED])
def test_the_link_of_a_configuration_opens_the_same_configuration(client, data):
    from lab.form.forms import LabForm
    from lab.form.state import to_query

    page = client.post(ESTIMATE, data).content.decode()
    link = html.unescape(re.search(r'href="http://testserver(/en/lab/[^"]*)"', page).group(1))
    query = client.get(link).wsgi_request.GET
    assert LabForm.from_link(query).body() == LabForm(to_query(data)).body()


def test_the_live_part_says_what_it_costs_or_what_is_wrong(client):
    good = client.post(ESTIMATE, SEEDED).content.decode()
    assert "8 heads (2 for keys and values), 16 queries, 48 keys" in good
    assert "of 30 s" in good
    bad = html.unescape(client.post(ESTIMATE, SEEDED | {"kv_heads": "3"}).content.decode())
    assert "not a multiple" in bad
    assert 'href="#lab-kv_heads"' in bad
    assert not Run.objects.exists()


def test_the_curl_command_sends_the_same_body(client):
    page = client.post(ESTIMATE, PASTED).content.decode()
    words = shlex.split(html.unescape(re.search(r'<code id="curl">(.*?)</code>', page, re.DOTALL).group(1)))
    assert words[:4] == ["curl", "-X", "POST", "http://testserver/api/v1/runs"]
    sent = json.loads(words[words.index("-d") + 1])
    assert sent == body_of(PASTED)
    answer = client.post("/api/v1/runs", json.dumps(sent), content_type="application/json")
    assert answer.status_code == 202, answer.content


@pytest.mark.parametrize("engine", ENGINES)
def test_a_link_that_names_an_engine_alone_asks_for_nothing_that_it_lacks(client, engine):
    shown = client.get("/en/lab/", {"engine": engine}).content.decode()
    assert "It fits" in shown
    assert f'value="{engine}" selected' in shown
