"""The first figure: known digits, the reader's own numbers, and every way to get them wrong."""

import json
import re
import xml.etree.ElementTree as ET
from urllib.parse import parse_qsl

import numpy as np
import pytest
from django.http import QueryDict

from concepts.figures import Links
from concepts.figures.by_hand import FIGURE, KEYS, QUERIES, VALUES, read, steps
from kernels.engines.reference import attend

LINKS = Links("/en/concepts/by-hand/", "/fragment", "/en/lab/")
PAGE = "/en/concepts/by-hand/"


def text_of(html: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", "", html))


def test_the_worked_example_has_the_digits_of_the_paper_and_pencil_version() -> None:
    done = steps(QUERIES, KEYS, VALUES)
    assert done.scores.tolist() == [[1, 0, 1], [0, 1, 1], [1, 1, 2]]
    assert np.round(done.weights, 4).tolist() == [
        [0.4011, 0.1978, 0.4011],
        [0.1978, 0.4011, 0.4011],
        [0.2483, 0.2483, 0.5035],
    ]
    assert np.round(done.out, 4).tolist() == [[1.2033, 1.1978], [1.0, 1.6044], [1.2552, 1.5035]]
    assert np.round(done.weights.sum(axis=0), 4).tolist() == [0.8471, 0.8471, 1.3057]


def test_steps_agree_with_the_textbook_formula_on_peaked_and_flat_numbers() -> None:
    random = np.random.default_rng()
    for scale in (0.01, 1.0, 30.0):
        q, k, v = (scale * random.standard_normal(shape) for shape in ((4, 3), (5, 3), (5, 2)))
        done = steps(q.tolist(), k.tolist(), v.tolist())
        powers = np.exp((q @ k.T / np.sqrt(3)).astype(np.longdouble))
        weights = powers / powers.sum(axis=1, keepdims=True)
        np.testing.assert_allclose(done.weights, weights.astype(float), rtol=1e-10, atol=1e-300)
        np.testing.assert_allclose(done.out, (weights @ v).astype(float), rtol=1e-8, atol=1e-12)
        np.testing.assert_allclose(done.weights.sum(axis=1), 1, rtol=1e-14)


def test_steps_agree_with_the_reference_engine() -> None:
    random = np.random.default_rng()
    q, k, v = (4 * random.standard_normal(shape) for shape in ((3, 4), (5, 4), (5, 2)))
    done = steps(q.tolist(), k.tolist(), v.tolist())
    reference = attend(q, k, v, scale=0.5)
    for ours, theirs in (("scaled", "scores"), ("weights", "weights"), ("out", "out")):
        np.testing.assert_allclose(getattr(done, ours), reference[theirs], rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(done.largest + np.log(done.sums), reference["lse"], rtol=1e-13)


def test_the_largest_numbers_that_are_allowed_do_not_overflow() -> None:
    done = steps([[1000.0] * 4], [[1000.0] * 4, [-1000.0] * 4], [[1.0], [2.0]])
    assert done.weights.tolist() == [[1.0, 0.0]]


def test_every_number_can_be_changed_one_parameter_each() -> None:
    form = {f"{name}{i}{j}": "1" for name in "qkv" for i in (1, 2, 3) for j in (1, 2)}
    state = read({**form, "q11": "-2.5", "v32": "1e2"})
    assert state.q.rows[0] == [-2.5, 1]
    assert state.v.rows[2] == [1, 100]
    assert state.good


@pytest.mark.parametrize(
    "query",
    [
        "",
        "cell=1,2",
        "q=[[0.1,2],[3,-4]]",
        "q=[[1]]&k=[[2],[3]]&v=[[1,2,3,4],[5,6,7,8]]&cell=1,2",
        "v=[[1e-7,0],[0,2],[2,2]]",
    ],
)
def test_a_state_survives_the_way_through_its_address(query: str) -> None:
    once = read(dict(parse_qsl(query)))
    again = read(dict(parse_qsl(once.query())))
    assert once.good
    assert (again.q.rows, again.k.rows, again.v.rows, again.cell) == (
        once.q.rows,
        once.k.rows,
        once.v.rows,
        once.cell,
    )
    assert again.query() == once.query()


def test_the_state_that_the_page_opens_with_needs_no_query() -> None:
    form = {f"{name}{i + 1}{j + 1}": str(x) for name, rows in (("q", QUERIES), ("k", KEYS), ("v", VALUES))
            for i, row in enumerate(rows) for j, x in enumerate(row)}  # fmt: skip
    assert FIGURE.query({}) == FIGURE.query(form) == FIGURE.query({**form, "cell": "3,1"}) == ""


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"q11": "", "q12": "0"}, "Q row 1, column 1: This is empty"),
        ({"q11": "NaN", "q12": "0"}, "“NaN” is not a number"),
        ({"q11": "1e308", "q12": "0"}, "1e308 is too large: numbers here run from −1000 to 1000"),
        ({"q11": "-inf", "q12": "0"}, "-inf is too large"),
        ({"q11": "one", "q12": "0"}, "“one” is not a number"),
        ({"q11": "1_0", "q12": "0"}, "is not a number"),
        ({"q11": "<script>alert(1)</script>", "q12": "0"}, "&lt;script&gt;"),
        ({"q11": "9" * 5000, "q12": "0"}, "is not a number"),
        ({"q11": "1", "q13": "0"}, "Q row 1, column 2: This is empty"),
        ({"q99": "1"}, "not a list of 1 to 5 rows"),
        ({"q": "[[1,0],[0]]"}, "not a list of 1 to 5 rows"),
        ({"q": "[]"}, "not a list of 1 to 5 rows"),
        ({"q": "[[[1]]]"}, "not a list of 1 to 5 rows"),
        ({"q": "[" * 3000}, "not a list of 1 to 5 rows"),
        ({"q": "[[" + "1," * 5000 + "1]]"}, "not a list of 1 to 5 rows"),
        ({"q": '[["1",true]]'}, "not a list of 1 to 5 rows"),
        ({"q": "hello"}, "not a list of 1 to 5 rows"),
        ({"q": "[[NaN,0]]"}, "“NaN” is not a number"),
        ({"q": "[[1e400,0]]"}, "1e400 is too large"),
        ({"q": "[[1,2,3]]"}, "A row of K has 2 numbers and a row of Q has 3"),
        ({"v": "[[1,2]]"}, "K has 3 rows and V has 1"),
    ],
)
def test_bad_input_gets_a_message_beside_its_field_and_no_result(
    params: dict[str, str], message: str, client
) -> None:
    response = client.get(PAGE, params)
    html = response.content.decode()
    assert response.status_code == 200
    assert message in html
    assert "The steps return as soon as every number above can be read." in html
    assert "<script>alert" not in html
    data = client.get(PAGE + "figure/by-hand.json", params)
    assert data.status_code == 422
    assert data.json()["problems"]


def test_a_bad_field_is_marked_described_and_keeps_what_was_typed(client) -> None:
    html = client.get(PAGE, {"q11": "1e308", "q12": "0"}).content.decode()
    field = re.search(r'<input[^>]*id="by-hand-q11"[^>]*>', html)
    assert field
    assert 'aria-invalid="true"' in field[0]
    assert 'value="1e308"' in field[0]
    described = re.search(r'aria-describedby="([^"]+)"', field[0])
    assert described
    assert f'id="{described[1]}"' in html


@pytest.mark.parametrize("cell", ["", "0,1", "9,9", "a,b", "1", "١,٢", "1,1,1", "-1,2", "1" * 50])
def test_a_cell_that_is_not_there_falls_back_to_one_that_is(cell: str) -> None:
    i, j = read({"cell": cell}).cell
    assert 1 <= i <= 3
    assert 1 <= j <= 3


def test_the_arithmetic_of_the_chosen_cell_uses_the_readers_numbers() -> None:
    html = FIGURE.render({"q": "[[2,-3],[0,1]]", "cell": "1,3"}, LINKS)
    shown = [text_of(line) for line in re.findall(r'<p data-for="1,3">(.*?)</p>', html)]
    assert "= 2·1 + (−3)·1 = −1" in shown[0]
    assert "= −1 / 1.4142 = −0.7071" in shown[1]
    assert "e−0.7071 − 1.4142 = 0.1199" in shown[2]
    done = steps([[2, -3], [0, 1]], KEYS, VALUES)
    assert f"= {done.weights[0, 2]:.4f}" in shown[3]


def test_one_cell_is_lit_in_every_matrix() -> None:
    html = FIGURE.render({"cell": "2,3"}, LINKS)
    for part in "stew":
        panel = re.search(rf'id="by-hand-{part}".*?</section>', html, re.DOTALL)
        assert panel
        lit = re.findall(r'<td class="[^"]*\blit\b[^"]*" data-i="(\d)" data-j="(\d)"', panel[0])
        assert lit == [("2", "3")]
        assert panel[0].count('aria-current="true"') == 1
    inputs = re.findall(r'<td data-([ij])="(\d)" class="lit"', html)
    assert set(inputs) == {("i", "2"), ("j", "3")}


def test_every_cell_has_a_link_that_chooses_it_without_script(client) -> None:
    html = client.get(PAGE).content.decode()
    hrefs = set(re.findall(r'<td[^>]*><a href="([^"]+)"', html))
    assert len(hrefs) == 9
    for href in hrefs:
        address = href.replace("&amp;", "&").split("#")[0]
        cell = dict(parse_qsl(address.partition("?")[2])).get("cell", "3,1")
        i, j = cell.split(",")
        again = client.get(address).content.decode()
        assert f'data-for="{cell}">' in again
        assert re.search(
            rf'<td class="[^"]*lit" data-i="{i}" data-j="{j}"><a [^>]*aria-current="true"', again
        )


def test_the_lab_is_given_the_same_numbers() -> None:
    html = FIGURE.render({"q": "[[0.5,2]]"}, LINKS, "run")
    href = re.search(r'href="([^"]+)"', html)
    assert href
    path, _, query = href[1].replace("&amp;", "&").partition("?")
    assert path == LINKS.lab
    sent = QueryDict(query)
    assert sent["engine"] == "flash"
    assert json.loads(sent["q"]) == [[0.5, 2]]
    assert json.loads(sent["k"]) == KEYS
    assert json.loads(sent["v"]) == VALUES


def test_the_fragment_replaces_results_messages_and_address(client) -> None:
    response = client.get(
        PAGE + "figure/by-hand.html", {"q": "[[3,0],[0,1],[1,1]]"}, headers={"HX-Request": "true"}
    )
    html = response.content.decode()
    assert response["HX-Replace-Url"] == PAGE + "?q=[[3,0],[0,1],[1,1]]"
    assert html.startswith('<div class="by-hand-steps" id="by-hand-steps">')
    assert set(re.findall(r'id="([^"]+)"[^>]*hx-swap-oob', html)) == {
        "by-hand-q-problems", "by-hand-k-problems", "by-hand-v-problems",
        "by-hand-status", "by-hand-rows", "by-hand-run",
    }  # fmt: skip
    assert "<input" not in html, "an input that is being typed into must not be replaced"


def test_the_fragment_opened_on_its_own_leads_to_the_page(client) -> None:
    response = client.get(PAGE + "figure/by-hand.html?cell=1,1")
    assert response.status_code == 302
    assert response["Location"] == PAGE + "?cell=1%2C1"


def test_the_figure_as_data_and_as_a_picture(client) -> None:
    data = client.get(PAGE + "figure/by-hand.json").json()
    assert np.round(data["out"], 4).tolist() == [[1.2033, 1.1978], [1.0, 1.6044], [1.2552, 1.5035]]
    response = client.get(PAGE + "figure/by-hand.svg?q=[[1,0]]")
    picture = ET.fromstring(response.content)
    assert response["Content-Type"].startswith("image/svg+xml")
    assert len(picture.findall("{http://www.w3.org/2000/svg}rect")) == 3
    assert client.get(PAGE + "figure/by-hand.svg?q=x").status_code == 200


def test_rows_can_be_added_and_removed_by_link(client) -> None:
    html = client.get(PAGE).content.decode()
    links = {
        words: href.replace("&amp;", "&")
        for href, words in re.findall(r'<a href="([^"]+)">([^<]+)</a>', html)
    }
    more = client.get(links["Add a key and its value"].split("#")[0]).content.decode()
    assert 'name="k42"' in more
    assert 'name="v42"' in more
    assert 'id="by-hand-w"' in more
    fewer = client.get(links["Remove a query"].split("#")[0]).content.decode()
    assert 'name="q31"' not in fewer
    assert 'id="by-hand-w"' in fewer
