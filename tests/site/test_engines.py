"""What each engine supports: as engines declare it, held against what they accept and the cases of ONNX."""

import re
from urllib.parse import parse_qs

import pytest
from django.test import Client

from concepts.facts import FACTS
from concepts.figures import Links, conformance
from concepts.figures.engines import FIGURE
from kernels.registry import ENGINES, FEATURES
from kernels.spec import SpecError, parse_run

LINKS = Links("/page/", "/fragment/", "/lab/")
EVERY_ENGINE = pytest.mark.parametrize("engine", ENGINES.values(), ids=lambda engine: engine.name)


def rows(**state: str) -> dict[str, dict[str, object]]:
    return {row["name"]: row for row in FIGURE.data(state)["rows"]}


def test_a_row_says_what_the_interface_says(client: Client) -> None:
    told = client.get("/api/v1/engines").json()["engines"]
    assert [one["name"] for one in told] == list(rows())
    for one in told:
        row = rows()[one["name"]]
        assert {name for name in FEATURES if row[f"can-{name}"]} == one["features"].keys()
        assert row["count"] == len(one["features"])
        assert row["dtypes"] == ", ".join(one["dtypes"])
        assert (row["dim"], row["queries"]) == (one["max_head_dim"], one["max_q_len"])


@EVERY_ENGINE
def test_the_lab_runs_an_engine_without_a_complaint(engine) -> None:
    from lab.form.forms import LabForm

    head = FIGURE.head(engine, LINKS)
    [link] = re.findall(r'href="/lab/\?([^"]+)"', head)
    state = parse_qs(link.replace("&amp;", "&"))
    form = LabForm.from_link({name: value if len(value) > 1 else value[0] for name, value in state.items()})
    assert not form.errors
    assert parse_run(form.body()).spec.engine == engine.name


def test_our_kernels_lead_to_their_source(client: Client) -> None:
    for engine in ENGINES.values():
        found = re.findall(r'href="([^"]*/kernels/[^"]*)"', FIGURE.head(engine, LINKS))
        assert bool(found) == engine.is_triton
        for address in found:
            assert client.get(address).status_code == 200


@pytest.mark.parametrize("engine", ["reference", "eager", "sdpa", "flash", "decode", "paged"])
def test_what_the_table_denies_is_refused_and_what_it_grants_is_not(engine: str) -> None:
    """Softcapping, as a request has it."""
    inputs = {name: [[1.0, 0.0], [0.0, 1.0]] for name in "qkv"}
    body = {"engine": engine, "inputs": inputs, "attention": {"softcap": 2.0}}
    if rows()[engine]["can-softcap"]:
        assert parse_run(body).spec.engine == engine
    else:
        with pytest.raises(SpecError, match="does not support logit softcapping"):
            parse_run(body)


def test_engines_are_found_by_what_they_can_do() -> None:
    assert rows(needs="gradients").keys() == {"reference", "eager", "sdpa", "flash", "hard"}
    assert rows(needs="delta_rule").keys() == {"linear"}
    assert rows(find="reformer").keys() == {"lsh"}
    assert rows(find="block tables").keys() == {"paged"}
    assert "alibi" not in {name for name in rows(find="alibi") if name == "scan"}
    assert rows(find="alibi slopes").keys() == rows(needs="alibi").keys()


def test_cases_of_onnx_are_counted_as_their_table_sums_them() -> None:
    sums = conformance.PAGE.read_text().splitlines()[-1]
    counts = [int(count) for count in re.findall(r"\*\*(\d+) of 93\*\*", sums)]
    assert [conformance.passes(engine) for engine in conformance.engines()] == counts
    assert [rows()[engine]["onnx"] for engine in conformance.engines()] == counts
    assert rows()["mla"]["onnx"] is None
    assert len(conformance.cases()) == 93


def test_a_case_is_found_by_its_words_and_by_what_is_refused() -> None:
    table = conformance.FIGURE
    refused = table.data({})["rows"]
    assert len(refused) == int(FACTS["onnx-refused"].text)
    assert all(row["sdpa"].startswith("refused") or row["decode"].startswith("refused") for row in refused)
    assert len(table.data({"case-show": "all"})["rows"]) == 93
    softcap = {row["name"] for row in table.data({"case-find": "neginf mask"})["rows"]}
    assert softcap == {"4d_softcap_neginf_mask", "4d_softcap_neginf_mask_poison"}


@pytest.mark.parametrize(
    ("name", "value"),
    {
        "engines-count": 14, "engines-softmax": 7, "engines-triton": 7, "engines-features": 26,
        "engines-everywhere": 2, "engines-softcap": 6, "engines-softcap-gradients": 3,
        "engines-softcap-gradients-pages": 2, "engines-widest": 256, "engines-queries": 16, "onnx-cases": 93,
        "onnx-engines": 6, "onnx-complete": 3, "onnx-sdpa": 67, "onnx-decode": 75, "onnx-refused": 26,
        "onnx-wrong": 0,
    }.items(),
)  # fmt: skip
def test_numbers_of_the_text(name: str, value: int) -> None:
    assert FACTS[name].text == str(value)


def test_the_answer_of_a_question_is_that_of_the_table() -> None:
    assert len([row for row in rows(needs="paged").values() if row["can-softcap"]]) == 3
