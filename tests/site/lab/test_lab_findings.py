"""What a run's page shows of what was found: figures by their descriptions, and arrays of every kind."""

import html
import re

import numpy as np
import pytest
from django.test import Client

from kernels.registry import ENGINES
from kernels.spec import parse_run
from kernels.spec.results import RESULTS, TRACE
from lab import arrays, units
from lab.form import offers
from lab.runs import findings
from workers import runs

pytestmark = pytest.mark.django_db


@pytest.fixture
def show(submit):
    """The page of a run of [1, heads, 4, 2] that found these figures and results."""

    def show(query="", *, results=None, heads=1, kv_heads=1, **result):
        shapes = {"q": [1, heads, 4, 2], "k": [1, kv_heads, 4, 2], "v": [1, kv_heads, 4, 2]}
        inputs = {name: {"seed": 1, "shape": shape} for name, shape in shapes.items()}
        run = runs.claim(submit(engine=result.pop("engine", "reference"), inputs=inputs, returns=("out",)).id)
        given = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
        info = {name: {"shape": shape, "dtype": "float32", "sha256": "…"} for name, shape in shapes.items()}
        out = {"out": np.full((1, heads, 4, 2), 0.25)}
        assert runs.finish(
            run,
            inputs=given,
            results={**out, **(results or {})},
            input_info=info,
            result=result,
            environment={},
        )
        response = Client(REMOTE_ADDR="203.0.113.7").get(f"/en/lab/runs/{run.id}/{query}")
        assert response.status_code == 200
        return html.unescape(response.content.decode())

    return show


def section(page, name):
    found = re.search(rf'<section id="{name}">.*?</section>', page, re.DOTALL)
    return found[0] if found else ""


def text(markup):
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", markup)).strip()


def table(page, label):
    """The rows of the table in a region, as text, its head first."""
    region = re.search(rf'role="region" aria-label="{label}">(.*?)</div>', page, re.DOTALL)[1]
    return [
        [text(cell) for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row)]
        for row in re.findall(r"<tr>(.*?)</tr>", region, re.DOTALL)
    ]


# --- Figures ----------------------------------------------------------------------------------------


def figure(name, value, description=""):
    return findings.figure(name, value, description)


@pytest.mark.parametrize(
    ("name", "value", "description", "label", "written"),
    [
        ("state_bytes", 4608, "what remains", "state", "4.50 KiB"),
        ("bytes", 12, "", "bytes", "12 bytes"),
        ("break_even_tokens", 12345, "the shortest text", "break even tokens", "12,345"),
        ("balance", -3, "", "balance", "−3"),
        ("mean_kept_weight", 0.848699, "mean share of the exact weights", "mean kept weight", "84.87 %"),
        ("kept", 1.0, "the share that is kept", "kept", "100 %"),
        ("kept", 1e-6, "the fraction that is kept", "kept", "0.000100 %"),
        ("gain", 1.5, "share of what it was", "gain", "1.500"),  # more than the whole is no percentage
        ("rel_err", 1.234e-7, "relative", "rel err", "1.234e−7"),
        ("budget", None, "the most tokens; null: no limit", "budget", "no limit"),
        ("ranks", None, "means of all heads", "ranks", "–"),
        ("is_exact", True, "", "is exact", "yes"),
        ("nothing", [], "", "nothing", "none"),
        ("overflowed", "inf", "", "overflowed", "inf"),
        ("share", 0.5, "", "share", "50 %"),
    ],
)
def test_a_figure_is_written_as_its_name_and_description_say(name, value, description, label, written):
    found = figure(name, value, description)
    assert (found.label, found.text) == (label, written)
    assert "null:" not in found.meaning


def test_objects_are_shown_within_and_rows_in_the_order_of_the_description():
    # PostgreSQL keeps the fields of an object in an order of its own.
    found = figure("ranks", {"softmax_rank": 3, "rank": 2.5}, "rank of the weights, and softmax rank")
    assert [(part.label, part.text) for part in found.parts] == [("rank", "2.500"), ("softmax rank", "3")]
    rows = [{"low": 0.5, "share": 0.25, "features": 4, "cache_bytes": 2048}, {"features": 16, "low": None}]
    found = figure("spread", rows, "by features the low end, a share, and the bytes of the cache")
    assert found.columns == ["features", "low", "share", "cache"]
    assert found.rows == [("", ["4", "0.5000", "25 %", "2.00 KiB"]), ("", ["16", "–", "–", "–"])]


def test_objects_of_objects_are_a_table_with_a_row_for_each(show):
    costs = {"moving": {"error": 0.5, "variance": 2.0}, "none": {"error": 1.25, "variance": None}}
    page = show(findings={"baselines": costs})
    assert table(page, "baselines") == [
        ["", "error", "variance"], ["moving", "0.5000", "2.000"], ["none", "1.250", "–"]
    ]  # fmt: skip
    assert '<th scope="row">moving</th>' in page


def test_long_lists_are_cut_and_lead_to_all_of_it(show):
    page = show(findings={"counts": list(range(100)), "rows": [{"n": i} for i in range(40)], "few": [1, 2]})
    found = text(section(page, "found"))
    assert "0, 1, 2" in found
    assert "15, …" in found
    assert "100 in all; the others are in the JSON" in found
    assert len(table(page, "rows")) == 1 + findings.MAX_ROWS
    assert "40 in all" in found
    assert "2 in all" not in found
    address = re.search(r'in the <a href="([^"]+)">JSON', section(page, "found"))[1]
    assert Client().get(address).json()["result"]["findings"]["counts"] == list(range(100))


def test_the_card_has_what_the_registry_says_of_each_figure(show):
    described = ENGINES["performer"].findings
    page = show(
        engine="performer",
        findings={
            "ranks": {"rank": 4.0, "effective_rank": 2.5},
            "state_bytes": 64,
            "error_by_features": [{"features": 4, "median": 0.5}],
            "undeclared": 7,
        },
    )
    found = section(page, "found")
    labels = re.findall(r"<dt>([^<]+?) ?<", found)
    assert labels == ["state", "ranks", "rank", "effective rank", "error by features", "undeclared"]
    assert described["state_bytes"] in text(found)
    assert table(page, "error by features") == [["features", "median"], ["4", "0.5000"]]


def test_without_findings_there_is_no_card(show):
    assert "What it found" not in show(findings={})
    assert "What it found" not in show()


def test_what_an_engine_found_is_never_read_as_markup(show):
    page = show(findings={"<b>": "<script>alert(1)</script>", "rows": [{"<i>": "<u>"}]})
    raw = re.findall(r"<(?:b|i|u|script)>", section(page, "found"))
    assert raw == ["<b>", "<script>", "<i>", "<u>"]  # once unescaped: they were text


def test_a_sparse_run_is_compared_with_the_same_without_its_pattern(show):
    page = text(show(comparison={"with": "softmax without pattern and window", "rel_err": 0.25}))
    assert "relative error of the whole output 0.25" in page
    assert "compared with the same attention without them" in page
    assert "something other than softmax" not in page


def test_float64_is_a_yardstick_and_says_so(show):
    numerics = {"max_abs_err": 0.0, "bound": 0.0, "within_bound": True, "nan_count": 0}
    page = show(numerics=numerics)
    assert "Computed in float64, by which other engines are measured." in page
    assert "Error against float64" not in page
    assert "Largest error 0, within" in show(engine="linear", numerics=numerics)


# --- Arrays -----------------------------------------------------------------------------------------


def test_every_result_of_the_contract_has_its_place():
    shown = set(RESULTS) - set(TRACE)
    assert {*arrays.MAPS, *arrays.COLUMNS, *arrays.TABLES} == shown
    assert all(offers.result_name(name) != name or name in {"out"} for name in shown if "_" in name)


def held_of(page):
    """{(query, key): (what is said, what is drawn)} of the held tokens."""
    figure = re.search(r'data-map="held".*?</figure>', page, re.DOTALL)[0]
    cells = re.findall(r'aria-label="query (\d), key (\d): (yes|no)"[^>]*>(.)</a>', figure)
    return {(int(i), int(j)): (word, dot) for i, j, word, dot in cells}


def test_booleans_are_dots_in_the_map_and_words_for_those_who_do_not_see_it(show):
    held = np.tril(np.ones((1, 2, 4, 4), bool))
    held[0, 1] = False
    page = show("?from=run&head=0", results={"held": held}, heads=2, kv_heads=2)
    assert held_of(page) == {
        (i, j): ("yes", "●") if j <= i else ("no", "·") for i in range(4) for j in range(4)
    }
    other = show("?from=run&head=1", results={"held": held}, heads=2, kv_heads=2)
    assert set(held_of(other).values()) == {("no", "·")}


def test_large_maps_of_booleans_say_what_a_pixel_stands_for(monkeypatch):
    from lab.runs import maps, panels

    monkeypatch.setattr(maps, "PIXELS", 64)
    values = np.zeros((130, 130), bool)
    values[129, 0] = True
    found = maps.whole("held", "seq", values)
    assert (found.levels == maps.TOP).sum() == 1
    assert found.levels[43, 0] == maps.TOP
    assert "whether any of those that it stands for is a yes" in panels.reduction(found)
    assert panels.table(found)["rows"][-1][1][0] == "yes"


def test_query_heads_show_what_is_of_the_key_head_that_they_share(show):
    held = np.zeros((1, 2, 4, 4), bool)
    held[0, 1] = True
    for head, word in ((0, "no"), (1, "no"), (2, "yes"), (3, "yes")):
        page = show(f"?from=run&head={head}", results={"held": held}, heads=4, kv_heads=2)
        assert {said for said, _dot in held_of(page).values()} == {word}


def test_numbers_of_each_query_stand_beside_its_output(show):
    chosen = np.array([[[3, 0, 12, -1]]])
    page = show(results={"chosen": chosen, "recall": np.array([[[1.0, 0.5, 0.25, 0.0]]])})
    rows = table(page, "Output")
    assert rows[0] == ["query", "recall", "chosen key", "0", "1"]
    assert [row[:3] for row in rows[1:]] == [
        ["0", "1.0000", "3"], ["1", "0.5000", "0"], ["2", "0.2500", "12"], ["3", "0", "−1"]
    ]  # fmt: skip
    assert rows[1][3:] == ["0.2500", "0.2500"]


def test_integers_are_integers_and_a_table_of_their_own(show):
    buckets = np.array([[[[0, 7], [3, 1], [15, 2], [4, 4]]]])
    results = {
        "q_buckets": buckets,
        "state": np.full((1, 1, 2, 2), 0.5),
        "normaliser": np.array([[[1.5, 2.5]]]),
    }
    page = show("?table=q_buckets", results=results)
    assert table(page, "Buckets of the queries") == [
        ["query", "0", "1"], ["0", "0", "7"], ["1", "3", "1"], ["2", "15", "2"], ["3", "4", "4"]
    ]  # fmt: skip
    assert "a row for each query, a column for each round" in page
    choices = re.search(r'<nav class="picker" aria-label="Table"[^>]*>(.*?)</nav>', page, re.DOTALL)[1]
    assert re.findall(r">([^<]+)</a>", choices) == ["Output", "State", "Normaliser", "Buckets of the queries"]
    assert 'href="?table=state#look"' in choices
    normaliser = show("?table=normaliser", results=results)
    assert table(normaliser, "Normaliser")[1:] == [["0", "1.5000"], ["1", "2.5000"]]


def test_pages_of_a_cache_have_no_table_of_their_gradients():
    inputs = {name: {"seed": 1, "shape": [2, 16, 1, 8]} for name in "kv"}
    body = {
        "engine": "paged",
        "inputs": {"q": {"seed": 1, "shape": [1, 1, 4, 8]}, "block_table": [[0, 1]], **inputs},
    }
    spec = parse_run(body).spec
    assert arrays.tables({"out", "dk", "dv"}, spec) == ["out"]


@pytest.mark.parametrize(
    ("share", "text"), [(0, "0 %"), (1, "100 %"), (0.5, "50 %"), (0.33333, "33.33 %"), (0.0004, "0.0400 %")]
)
def test_percentages(share, text):
    assert units.percent(share) == text
