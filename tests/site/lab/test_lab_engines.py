"""What the form offers for each engine follows from the registry: options, results, kinds of attention."""

import html
import json
import re
from dataclasses import replace
from urllib.parse import parse_qs, urlsplit

import pytest
from django.test import Client

from kernels.registry import ENGINES
from kernels.spec.results import RESULTS
from tests.site.lab.test_lab_form import ESTIMATE, HOME, PASTED, body_of, errors_by_field, value_of
from workers.models import Run

pytestmark = pytest.mark.django_db

ENGINE = "/en/lab/engine/"


@pytest.fixture
def client():
    return Client(REMOTE_ADDR="203.0.113.7")


@pytest.fixture
def invented(monkeypatch):
    """An engine that nobody has written yet, with every kind of option that a schema can say."""
    declared = {
        "level": {"description": "How far. Null: to the end.", "type": ["integer", "null"], "minimum": 1,
                  "maximum": 9, "default": None},
        "rate": {"description": "How fast.", "type": "number", "minimum": 0, "maximum": 2.5, "default": 0.5},
        "careful": {"description": "With care.", "type": "boolean", "default": True},
        "twice": {"description": "Again (null: if it helps).", "type": ["boolean", "null"], "default": True},
        "shade": {"description": "A word.", "type": "string", "default": "blue"},
        "scale": {"description": "Called as a field of the form.", "enum": [None, 1, 2], "default": 2},
    }  # fmt: skip
    engine = replace(
        ENGINES["performer"],
        name="invented",
        title="An invention",
        options=declared,
        features=frozenset({"decay", "state"}),
        returns=frozenset({"out", "recall"}),
        dtypes=("float64",),
        devices=("cpu",),
        computes="inventions",
        rules=None,
        pricing="tests.site.lab.free",
    )
    monkeypatch.setitem(ENGINES, "invented", engine)
    return {"engine": "invented", "dtype": "float64", **{key: PASTED[key] for key in "qkv"}}


def page_of(client, address, **query):
    response = client.get(address, query)
    assert response.status_code == 200
    return response.content.decode()


def control(page, name):
    """The tag of a control; of a select, everything in it."""
    return re.search(rf'<select name="{name}".*?</select>|<input [^>]*name="{name}"[^>]*>', page, re.DOTALL)[
        0
    ]


def attribute(tag, name):
    found = re.search(rf'\s{name}="([^"]*)"', tag)
    return html.unescape(found[1]) if found else None


def ticks(page):
    """{result: whether it is ticked}."""
    boxes = re.findall(r'<input type="checkbox" name="returns"[^>]*>', page)
    return {attribute(box, "value"): " checked" in box for box in boxes}


# --- Options ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
def test_every_option_of_every_engine_has_a_control_at_its_default(client, engine):
    described = {one["name"]: one for one in client.get("/api/v1/engines").json()["engines"]}[engine]
    page = page_of(client, HOME, engine=engine)
    shown = set(re.findall(r'<(?:select|input) [^>]*\bname="option_(\w+)"', page))
    assert shown == set(described["options"]["properties"])
    for name, schema in described["options"]["properties"].items():
        tag, default = control(page, f"option_{name}"), schema["default"]
        text = "" if default is None else str(default).lower()
        if tag.startswith("<select"):
            assert re.search(r'<option value="([^"]*)" selected', tag)[1] == text
        else:
            assert attribute(tag, "value") in (text, None)
        assert f'<label for="lab-option_{name}">' in page
        help_text = re.search(rf'id="lab-option_{name}_helptext">([^<]+)', page)[1]
        assert re.match(r"[^;.(]+", html.unescape(help_text))[0] in schema["description"]
        assert attribute(tag, "aria-describedby") == f"lab-option_{name}_helptext"
    assert "options" not in body_of({**PASTED, "engine": engine})


def test_each_kind_of_schema_has_its_kind_of_control(client, invented):
    page = page_of(client, HOME, **invented)
    level = control(page, "option_level")
    assert [attribute(level, name) for name in ("type", "min", "max", "step")] == ["number", "1", "9", "1"]
    assert "How far. Empty: to the end." in page
    rate = control(page, "option_rate")
    assert [attribute(rate, name) for name in ("type", "max", "step", "value")] == [
        "number",
        "2.5",
        "any",
        "0.5",
    ]

    def choices(name):
        return re.findall(r'<option value="([^"]*)"(?: selected)?>([^<]*)<', control(page, f"option_{name}"))

    assert choices("careful") == [("true", "yes (default)"), ("false", "no")]
    assert choices("twice") == [("", "if it helps"), ("true", "yes (default)"), ("false", "no")]
    assert choices("scale") == [("", "null"), ("1", "1"), ("2", "2 (default)")]
    assert attribute(control(page, "option_shade"), "type") == "text"


@pytest.mark.parametrize(
    ("name", "text", "sent"),
    [
        ("level", "3", 3),
        ("level", "", None),
        ("rate", "2", 2),
        ("rate", "1e-1", 0.1),
        ("rate", "", None),  # it cannot be null: an empty box is the default
        ("careful", "false", False),
        ("careful", "true", None),
        ("twice", "", "null"),
        ("shade", "7", "7"),
        ("scale", "1", 1),
        ("scale", "", "null"),
        ("scale", "2", None),
    ],
)
def test_what_differs_from_the_default_is_sent_with_its_type(client, invented, name, text, sent):
    """sent: the value; None: nothing is."""
    from kernels.spec import parse_run

    body = body_of({**invented, "source": "matrices", f"option_{name}": text, "returns": "out"})
    expected = {} if sent is None else {"options": {name: None if sent == "null" else sent}}
    assert {key: value for key, value in body.items() if key == "options"} == expected
    assert json.dumps(body.get("options", {})) == json.dumps(expected.get("options", {}))  # 1 is not true
    assert parse_run(body)
    page = page_of(client, HOME, **invented, returns="out", **{f"option_{name}": text})
    link = html.unescape(re.search(r'href="http://testserver(/en/lab/\?[^"]*)"', page)[1])
    from lab.form.forms import LabForm

    assert LabForm.from_link(client.get(link).wsgi_request.GET).body() == body


def test_a_mistake_in_an_option_lands_beside_it_and_stays_there(client, invented):
    wrong = {"option_level": "12", "option_scale": "5", "option_careful": "perhaps"}
    response = client.post(HOME, {**PASTED, **invented, **wrong})
    assert response.status_code == 422
    errors = errors_by_field(response)
    assert set(errors) == set(wrong)
    assert "between 1 and 9" in errors["option_level"][0]
    assert {name: value_of(response, name) for name in wrong} == wrong
    tag = control(response.content.decode(), "option_level")
    assert attribute(tag, "aria-invalid") == "true"
    assert attribute(tag, "aria-describedby") == "lab-option_level_helptext lab-option_level_error"
    live = client.post(ESTIMATE, {**PASTED, **invented, **wrong}).content.decode()
    assert 'href="#lab-option_level"' in live


def test_what_two_options_say_together_lands_beside_one(client):
    response = client.post(HOME, PASTED | {"option_kv_scale": "per_tensor"})
    assert "or ask for a kv_dtype too" in errors_by_field(response)["option_kv_scale"][0]


def test_options_of_other_engines_are_not_sent():
    body = body_of({**PASTED, "engine": "linear", "option_block_m": "64", "option_form": "parallel"})
    assert body["options"] == {"form": "parallel"}


def test_links_of_before_still_set_their_tiles(client):
    response = client.get(HOME, {"block_m": "64", "block_n": "32"})
    assert value_of(response, "option_block_m") == "64"
    assert value_of(response, "option_block_n") == "32"


# --- Another engine ---------------------------------------------------------------------------------


def test_without_javascript_a_button_leads_to_the_fields_of_the_engine(client):
    filled = {**PASTED, "engine": "linear", "shown_for": "flash", "option_block_m": "64", "causal": "on"}
    response = client.post(HOME, filled | {"show": "1"})
    assert response.status_code == 302
    address = urlsplit(response.headers["Location"])
    assert address.fragment == "lab-engine"
    query = parse_qs(address.query)
    assert (query["engine"], query["causal"], query["q"]) == (["linear"], ["on"], [PASTED["q"]])
    assert not [name for name in query if name.startswith("option_")]
    assert 'name="option_feature_map"' in client.get(response.headers["Location"]).content.decode()
    assert not Run.objects.exists()


def test_a_form_that_no_link_can_hold_is_shown_where_it_is(client):
    long = "1 2\n" * 1000
    response = client.post(HOME, PASTED | {"engine": "linear", "show": "1", "q": long, "k": long, "v": long})
    assert response.status_code == 200
    assert 'name="option_feature_map"' in response.content.decode()
    assert value_of(response, "q") == long.rstrip("\n") + "\n"


def test_with_javascript_the_fields_come_alone_and_are_announced(client):
    page = client.post(ENGINE, {**PASTED, "engine": "linear", "shown_for": "flash"}).content.decode()
    assert "<html" not in page
    assert 'name="option_feature_map"' in page
    assert 'name="option_block_m"' not in page
    assert '<input type="hidden" name="shown_for" value="linear">' in page
    status = re.search(r'id="engine-status" role="status" hx-swap-oob="innerHTML">([^<]*)', page)[1]
    assert "Linear attention" in status
    assert "feature_map, normalise, form, chunk_size" in status


def test_options_that_both_engines_have_keep_what_the_other_takes_too(client, invented, monkeypatch):
    other = {**ENGINES["invented"].options, "level": {**ENGINES["invented"].options["level"], "maximum": 4}}
    monkeypatch.setitem(ENGINES, "another", replace(ENGINES["invented"], name="another", options=other))
    filled = {**PASTED, **invented, "engine": "another", "shown_for": "invented", "option_rate": "1.5"}
    for level, kept in (("3", "3"), ("8", "")):
        response = client.post(ENGINE, filled | {"option_level": level})
        assert value_of(response, "option_rate") == "1.5"
        assert value_of(response, "option_level") == kept
    assert value_of(client.get(HOME, filled | {"option_level": "8", "shown_for": ""}), "option_level") == "8"


def test_the_address_follows_what_is_typed(client):
    address = client.post(ESTIMATE, {**PASTED, "engine": "linear", "option_form": "parallel"})[
        "HX-Replace-Url"
    ]
    assert address.startswith("/en/lab/?")
    assert 'value="parallel" selected' in client.get(address).content.decode()
    assert client.post(ESTIMATE, {**PASTED, "source": "upload"})["HX-Replace-Url"] == "/en/lab/"


# --- Results ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
def test_only_results_that_the_engine_has_are_offered_each_with_its_meaning(client, engine):
    page = page_of(client, HOME, engine=engine)
    offered = ticks(page)
    assert set(offered) == set(ENGINES[engine].returns)
    assert {name for name, ticked in offered.items() if ticked} == set(offered) & {"out", "lse", "weights"}
    assert page.count('<span class="meaning">') == len(offered)


def test_every_result_of_the_contract_has_a_name_and_a_meaning():
    from lab.form import offers

    assert set(offers.MEANINGS) == set(RESULTS)


def test_a_result_that_the_engine_lacks_is_neither_sent_nor_shown(client):
    asked = {**PASTED, "engine": "linear", "returns": ["out", "weights", "state"], "causal": "on"}
    assert body_of(asked)["return"] == ["out", "state"]
    assert body_of(asked | {"returns": ["weights"]}).get("return", ["out"]) == ["out"]
    page = client.post(ESTIMATE, asked).content.decode()
    assert "weights" not in html.unescape(re.search(r'<code id="curl">(.*?)</code>', page, re.DOTALL)[1])


def test_the_usual_results_become_those_of_the_other_engine(client):
    there = client.post(ENGINE, {**PASTED, "engine": "linear", "shown_for": "flash"}).content.decode()
    assert [name for name, ticked in ticks(there).items() if ticked] == ["out"]
    back = client.post(ENGINE, {**PASTED, "returns": ["out"], "shown_for": "linear"}).content.decode()
    assert [name for name, ticked in ticks(back).items() if ticked] == ["out", "lse", "weights"]
    own = client.post(ENGINE, {**PASTED, "returns": ["scores"], "shown_for": "reference"}).content.decode()
    assert [name for name, ticked in ticks(own).items() if ticked] == ["scores"]


# --- What else an engine has or lacks ---------------------------------------------------------------


def test_attention_that_the_engine_lacks_is_not_offered(client, invented):
    page = page_of(client, HOME, **invented)
    assert not re.search('name="(causal|alignment|scale)"', page)
    assert re.findall(r'<option value="(\w+)"', control(page, "dtype")) == ["float64"]
    assert re.findall(r'<option value="(\w+)"', control(page, "device")) == ["auto", "cpu"]


def test_an_engine_that_is_always_causal_says_so_instead_of_asking(client, invented, monkeypatch):
    always = replace(ENGINES["invented"], is_always_causal=True, features=frozenset({"causal"}))
    monkeypatch.setitem(ENGINES, "invented", always)
    page = page_of(client, HOME, **invented)
    assert "Causal, always" in page
    assert 'name="causal"' not in page
    assert 'name="alignment"' in page
    assert body_of({**PASTED, **invented, "causal": "on"})["attention"] == {"is_causal": True}


def test_attention_that_is_filled_in_and_the_engine_lacks_stays_and_is_explained(client, invented):
    filled = {"causal": "on", "scale": "0.5", "dtype": "float16"}
    response = client.post(HOME, {**PASTED, **invented, **filled})
    errors = errors_by_field(response)
    assert set(errors) == {"causal", "scale", "dtype"}
    assert "engine invented does not support" in errors["causal"][0]
    assert value_of(response, "dtype") == "float16"


@pytest.mark.parametrize("engine", ENGINES)
def test_every_other_input_has_a_control_with_its_shape(client, engine):
    described = {one["name"]: one for one in client.get("/api/v1/engines").json()["engines"]}[engine]
    schemas = described["inputs_schema"]["properties"]
    shown = {}
    for query in (
        {"engine": engine},
        {"engine": engine, "source": "latents"},
        PREDICTED | {"engine": engine},
    ):
        page = page_of(client, HOME, **query)
        shown |= {
            name: html.unescape(text)
            for name, text in re.findall(r'id="lab-how_(\w+)_helptext">([^<]+)', page)
        }
    shown |= {name: schemas[name]["description"] for name in "qkv" if f'<textarea name="{name}"' in page}
    only_for_scores = {"w_k", "v_a", "w_q", "w_general", "w_concat"} & set(schemas)  # one set at a time
    assert {name: text.strip() for name, text in shown.items()} == {
        name: schema["description"]
        for name, schema in schemas.items()
        if name in shown or name not in only_for_scores
    }


PREDICTED = {"option_span": "predictive", "option_score": "general"}
