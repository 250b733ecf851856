"""The form of a sweep: what is typed, what it would cost, and what is said of every mistake, at its field."""

import html
import json
import re
from urllib.parse import urlencode

import pytest
from django.http import QueryDict
from django.test import Client

from api.callers import Caller
from api.pure import place
from kernels.sweeps.points import MAX_POINTS
from lab.sweeps import ranges
from lab.sweeps.form import SweepForm
from workers.models import Run, Sweep

pytestmark = pytest.mark.django_db

NEW = "/en/lab/sweeps/new/"


@pytest.fixture
def client():
    return Client(REMOTE_ADDR="203.0.113.7")


@pytest.fixture(autouse=True)
def _commit(monkeypatch):
    """Each request here is its own transaction to its client."""
    monkeypatch.setattr("workers.sweeps.transaction.on_commit", lambda function, **_: function())


def shown(client, query="", status=200):
    response = client.get(f"{NEW}?{urlencode(query, doseq=True) if isinstance(query, dict) else query}")
    assert response.status_code == status
    return html.unescape(response.content.decode())


def text(markup):
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", markup))


def side(markup):
    """What is said of cost, or of what is wrong."""
    return text(re.search(r'<div id="sweep-preview".*?</aside>', markup, re.DOTALL).group())


def said_at(markup, field):
    return text(re.search(rf'<div id="sweep-{field}-error".*?</div>', markup, re.DOTALL).group()).strip()


def form(**state):
    query = QueryDict(mutable=True)
    for name, value in state.items():
        query.setlist(name, value if isinstance(value, list) else [value])
    return SweepForm(query)


# --- Values ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("typed", "values"),
    [
        ("", []),
        ("64", [64]),
        ("64, 128 256;512", [64, 128, 256, 512]),
        ("64..1024", [64, 128, 256, 512, 1024]),
        ("64..1000", [64, 128, 256, 512]),
        ("64 … 256", [64, 128, 256]),
        ("0..48 +16", [0, 16, 32, 48]),
        ("8..512 * 4", [8, 32, 128, 512]),
        ("1, 4..16, 100", [1, 4, 8, 16, 100]),
        ("7..7", [7]),
        ("0.5, 1e-3", [0.5, 0.001]),
        ("nan", ["nan"]),
        ("-3", [-3]),
        ("64..", ["64.."]),
    ],
)
def test_lists_and_ranges_are_read(typed, values):
    assert ranges.parse(typed) == values


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        ("1..1000000 +1", "1,000,000 values; a sweep has at most 64 points"),
        ("0..999999999999999 +1", "1,000,000,000,000,000 values"),
        (",".join(map(str, range(MAX_POINTS + 1))), "65 values"),
        ("1024..64", "goes down: write 64..1024"),
        ("0..64", "never ends"),
        ("1..64 *1", "never ends"),
        ("1..64 +0", "never ends"),
        ("1," * 10**6, "2,000,000 characters"),
    ],
)
def test_what_is_too_much_or_never_ends_is_refused_at_once(typed, says):
    with pytest.raises(ranges.ValuesError, match=re.escape(says)):
        ranges.parse(typed)


def test_windows_are_typed_as_the_keys_before_a_query():
    typed = "63, 63:15, none, 7:"
    values = ranges.parse(typed, ranges.window)
    assert values == [[63, 0], [63, 15], [None, None], [7, None]]
    assert ", ".join(map(ranges.text_of, values)) == typed


# --- The form -------------------------------------------------------------------------------------


def test_a_field_with_several_values_varies_and_one_with_one_sets():
    body = form(q_len="64..256", heads="2", engine=["eager", "flash"], causal="yes").body()
    assert body["vary"] == {"len": [64, 128, 256], "engine": ["eager", "flash"]}
    assert body["inputs"]["k"]["shape"] == [1, 2, 64, 32]
    assert body["attention"] == {"is_causal": True}
    assert "return" not in body, "a matrix that is returned would be among the memory that is measured"


def test_queries_vary_alone_where_keys_have_a_length_of_their_own():
    assert form(q_len="1, 2", kv_len="64").body()["vary"] == {"q_len": [1, 2]}
    assert form(q_len="2", kv_len="64..128").body()["vary"] == {"kv_len": [64, 128]}


def test_every_field_reaches_the_body():
    vary = form(
        kv_heads="1,2", head_dim="16,32", v_head_dim="8,16", batch="1,2", vary_window="15",
        causal=["no", "yes"], scale="0.1,1", seed="1,2",
        distribution=["normal", "peaked"], dtype=["float32", "float16"],
        iters="1,2", option_block_m=["null", "32"], other="attention/softcap", other_values="[0, 30]",
    ).body()["vary"]  # fmt: skip
    assert vary == {
        "num_kv_heads": [1, 2], "head_dim": [16, 32], "v_head_dim": [8, 16], "batch": [1, 2],
        "attention/window": [[15, 0]], "attention/is_causal": [False, True], "attention/scale": [0.1, 1],
        "seed": [1, 2], "distribution": ["normal", "peaked"], "dtype": ["float32", "float16"],
        "timing/iters": [1, 2], "options/block_m": [None, 32], "attention/softcap": [0, 30],
    }  # fmt: skip


@pytest.mark.parametrize("state", [
    {"q_len": "64..256", "engine": ["eager", "flash"], "heads": "2"},
    {"vary_window": "15, none", "causal": "yes", "option_block_m": ["null", "32"]},
    {"engine": "linear", "option_normalise": ["yes", "no"], "q_len": "8, 16"},
    {"other": "attention/softcap", "other_values": "[1, 2.5]", "skip_refused": "1", "scale": "0, -1"},
    {"engine": "decode", "kv_heads": "1..8", "heads": "8", "q_len": "1", "kv_len": "64"},
    {"alignment": "top_left", "q_len": "8, 16", "device": "cpu"},
])  # fmt: skip
def test_the_address_of_a_form_opens_the_same_form(state):
    first = form(**state)
    again = SweepForm(QueryDict(first.query()))
    assert again.body() == first.body()
    assert again.query() == first.query()


def test_the_points_and_what_each_costs_are_there_before_anything_is_submitted(client):
    page = shown(client, {"q_len": "64..256", "engine": ["eager", "flash"]})
    assert "6 points" in side(page)
    assert re.search(r"length 256, flash [\d.]+ m?s [\d.]+ MiB", side(page))
    assert "3 values: 64, 128, 256" in said_at(page, "q_len")
    body = json.loads(re.search(r"-d '(\{.*?\n\})'", page, re.DOTALL)[1])
    assert body["vary"] == {"len": [64, 128, 256], "engine": ["eager", "flash"]}
    assert (Sweep.objects.count(), Run.objects.count()) == (0, 0)


def test_costs_are_those_of_the_runs(client, submit):
    """Against `runs.submit`, which admits each run by itself."""
    asked = form(q_len="64..256")
    asked.examine(Caller("", "somebody"))
    for point in asked.examined.points:
        inputs = {name: {"seed": 7, "shape": [1, 4, point.values["len"], 32]} for name in "qkv"}
        run = submit(inputs=inputs, returns=["out"], timing={"warmup": 1, "iters": 3})
        assert point.cost.predicted_seconds == pytest.approx(run.predicted_seconds)


@pytest.mark.parametrize(
    ("query", "field", "says"),
    [
        ({"q_len": "a"}, "q_len", "“a”|\"a\""),
        ({"q_len": "64, nan"}, "q_len", "an integer, not \"nan\""),
        ({"q_len": "64, -5"}, "q_len", "between 0 and"),
        ({"q_len": "64, 64"}, "q_len", "has 64 already"),
        ({"q_len": "1..1000000 +1"}, "q_len", "at most 64 points"),
        ({"q_len": "64, 9999999999999999999"}, "q_len", "between 0 and"),
        ({"q_len": "64, 1.5"}, "q_len", "an integer, not 1.5"),
        ({"q_len": ""}, "q_len", "null"),
        ({"q_len": "8, 16", "heads": "x"}, "heads", '"x"'),
        ({"q_len": "64, 8192", "heads": "32"}, "q_len", "lengths up to|elements"),
        ({"kv_heads": "1, 3"}, "kv_heads", "num_kv_heads 3: q has 4 heads"),
        ({"engine": "flsh"}, "engine", "did you mean flash"),
        ({"engine": ["flash", "flsh"]}, "engine", "did you mean flash"),
        ({"dtype": ["float32", "float99"]}, "dtype", "float99"),
        ({"vary_window": "x"}, "vary_window", "“x” is no window"),
        ({"vary_window": "-1"}, "vary_window", "between 0 and"),
        ({"scale": "1, oops"}, "scale", "oops"),
        ({"other": "len", "other_values": "[1, 2]", "q_len": "3,4"}, "other", "a field of its own"),
        ({"other": "attention/softcap", "other_values": "[1,"}, "other", "no JSON list"),
        ({"other": "attention/softcap", "other_values": "[" * 1900}, "other", "no JSON list"),
        ({"other": "attention/softcap", "other_values": "[NaN]"}, "other", "NaN"),
        ({"other": "attention/softcap"}, "other", "values are missing"),
        ({"other_values": "[1]"}, "other", "Which field"),
        ({"other": "attention/sofcap", "other_values": "[1, 2]"}, "other", "did you mean softcap"),
        ({"option_block_m": ["32", "33"]}, "option_block_m", "33"),
        ({"warmup": "-1, 1"}, "warmup", "warmup"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_at_its_field(client, query, field, says):
    page = shown(client, query)
    assert re.search(says, said_at(page, field)), said_at(page, field)
    assert "Before it can run" in side(page)
    assert client.post(NEW, query).status_code == 422
    assert Sweep.objects.count() == 0


def test_more_points_than_a_sweep_has_are_told_on_top(client):
    page = shown(client, {"q_len": "1..32 +1", "head_dim": "8..16 +4", "dtype": ["float32", "float16"]})
    assert "192 points; a sweep has at most 64" in side(page)


@pytest.mark.parametrize("odd", ["\0", "x" * 3000, "٣", "1e999", "[[[", "1.."])
def test_nothing_that_is_typed_is_a_fault_of_ours(client, odd):
    names = ("q_len", "engine", "causal", "vary_window", "other", "other_values", "seed", "option_block_m",
             "shown_for", "instead_of", "source", "q", "alignment")  # fmt: skip
    for name in names:
        assert client.get(NEW, {name: odd, "kv_heads": "1, 2"}).status_code == 200
        assert client.post(NEW, {name: odd}).status_code == 422
    assert client.post(f"{NEW}check/", dict.fromkeys(names, odd)).status_code == 200


def test_points_that_are_refused_are_shown_and_can_be_left_out(client):
    query = {
        "q_len": "16, 64",
        "engine": ["eager", "lsh"],
        "other": "attention/softcap",
        "other_values": "[2]",
    }
    page = shown(client, query)
    assert "Refused." in side(page)
    assert "lsh" in said_at(page, "engine") or "lsh" in said_at(page, "other")
    page = shown(client, {**query, "skip_refused": "1"})
    assert "2 points" in side(page)
    assert "Left out 2" in side(page)
    response = client.post(NEW, {**query, "skip_refused": "1"})
    assert response.status_code == 302
    assert [len(Sweep.objects.get().values), len(Sweep.objects.get().refused)] == [2, 2]


def test_an_engine_that_lacks_what_is_set_can_be_left_out_though_it_comes_first(client):
    query = {"engine": ["lsh", "eager"], "scale": "0.5", "q_len": "16", "other": "attention/softcap",
             "other_values": "[2]", "skip_refused": "1"}  # fmt: skip
    assert "1 point " in side(shown(client, query))


def test_a_submitted_form_becomes_a_sweep_and_leads_to_its_page(client, sent):
    response = client.post(NEW, {"q_len": "8, 16", "heads": "1", "engine": ["eager", "flash"]})
    sweep = Sweep.objects.get()
    assert response["Location"] == f"/en/lab/sweeps/{sweep.id}/"
    assert sweep.vary == {"len": [8, 16], "engine": ["eager", "flash"]}
    assert len(sent) == 1


def test_what_is_too_much_for_a_day_is_told_before_it_is_submitted(client, settings):
    settings.ANONYMOUS_RUNS_PER_MINUTE = 3
    page = shown(client, {"q_len": "8, 16, 32, 64"})
    assert "4 runs together" in side(page)


def test_over_quota_the_form_keeps_what_was_typed(client, monkeypatch):
    from workers import quotas

    def refuse(*_):
        raise quotas.QuotaExceeded(quotas.quotas()[0], 17)

    monkeypatch.setattr(quotas, "charge", refuse)
    response = client.post(NEW, {"q_len": "8, 16"})
    assert (response.status_code, response["Retry-After"]) == (429, "17")
    assert 'value="8, 16"' in response.content.decode()
    assert Run.objects.count() == 0


def test_checking_is_charged_and_bounded_as_estimates_are(client, monkeypatch):
    import threading

    from api import pure

    monkeypatch.setattr(pure, "_places", threading.BoundedSemaphore(1))
    with place():
        response = client.post(NEW, {"q_len": "8, 16"})
    assert (response.status_code, response["Retry-After"]) == (503, "1")
    assert "Try again" in response.content.decode()


def test_nothing_varies_yet(client):
    assert "Nothing varies yet" in side(shown(client))
    response = client.post(NEW, {"q_len": "8"})
    assert response.status_code == 422
    assert "give a field several values" in response.content.decode()


def test_a_form_that_is_too_long_is_refused_before_it_is_read(client, settings):
    settings.MAX_BODY_BYTES = 1000
    assert client.post(NEW, {"q_len": "1," * 1000}).status_code == 413


def test_submitting_needs_the_csrf_token():
    assert Client(enforce_csrf_checks=True).post(NEW, {"q_len": "8, 16"}).status_code == 403


# --- While it is typed ----------------------------------------------------------------------------


def test_typing_brings_the_points_and_every_field_up_to_date(client):
    response = client.post(f"{NEW}check/", {"q_len": "8..32", "heads": "x", "shown_for": "flash"})
    answer = html.unescape(response.content.decode())
    assert "<html" not in answer
    assert response["HX-Replace-Url"] == f"{NEW}?q_len=8..32&heads=x"
    assert '"x"' in said_at(answer, "heads")
    assert (
        'id="sweep-kv_len-error" class="sweep-said" data-said-of="sweep-kv_len" hx-swap-oob="true"' in answer
    )
    assert 'id="sweep-options"' not in answer


def test_another_engine_brings_its_options(client):
    answer = client.post(f"{NEW}check/", {"engine": "linear", "shown_for": "flash"}).content.decode()
    assert 'id="sweep-options" hx-swap-oob="innerHTML"' in answer
    assert 'name="option_feature_map"' in answer


# --- From the lab's form --------------------------------------------------------------------------


def test_the_labs_form_leads_here_with_its_configuration(client):
    page = client.get("/en/lab/").content.decode()
    assert f'formaction="{NEW}"' in page
    state = {"source": "seed", "engine": "flash", "heads": "8", "kv_heads": "2", "q_len": "256",
             "head_dim": "64", "seed": "3", "causal": "on", "batch": "1", "distribution": "normal",
             "dtype": "float16", "warmup": "1", "iters": "5", "check": "1"}  # fmt: skip
    response = client.post(NEW, state)
    assert response.status_code == 302
    body = SweepForm(QueryDict(response["Location"].partition("?")[2])).body()
    assert body["inputs"]["k"] == {"seed": 3, "shape": [1, 2, 256, 64], "distribution": "normal"}
    assert (body["dtype"], body["attention"]) == ("float16", {"is_causal": True})


def test_of_matrices_the_shapes_stay_and_the_page_says_why(client):
    matrices = {"q": "1 2\n3 4\n5 6", "k": "1 2\n3 4", "v": "1 2 3\n4 5 6"}
    response = client.post(NEW, {"source": "matrices", **matrices, "check": "1"})
    page = client.get(response["Location"]).content.decode()
    assert "which cannot vary" in page
    body = SweepForm(QueryDict(response["Location"].partition("?")[2])).body()
    assert [body["inputs"][name]["shape"] for name in "qkv"] == [[1, 1, 3, 2], [1, 1, 2, 2], [1, 1, 2, 3]]
    assert client.post(NEW, {"source": "matrices", "q": "oops", "check": "1"}).status_code == 302


def test_what_the_labs_form_says_beyond_these_fields_stays(client):
    query = "engine=flash&alignment=top_left&q_len=8,16&causal=on"
    body = SweepForm(QueryDict(query)).body()
    assert body["attention"] == {"is_causal": True, "causal_alignment": "top_left"}
    assert 'name="alignment" value="top_left"' in shown(client, query)


def test_every_ready_made_sweep_can_be_run(client):
    ready = re.findall(rf'href="{NEW}\?([^"]+)"', client.get("/en/lab/").content.decode())
    assert len(ready) >= 5
    for query in map(html.unescape, ready):
        points = re.search(r"(\d+) points", side(shown(client, query)))
        assert points, query
        assert int(points[1]) >= 4
