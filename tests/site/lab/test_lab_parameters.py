"""Scores and windows with learnt parameters: each drawn unless somebody gives it."""

import html
import json
import re

import numpy as np
import pytest

from kernels.execute import execute
from kernels.spec import parse_run
from tests.site.lab.test_lab_form import ESTIMATE, HOME, PASTED, SEEDED, body_of

pytestmark = pytest.mark.django_db

RETURNS = {"returns": ["out", "weights"]}
PREDICTED = {"engine": "scoring", "option_span": "predictive", "option_half_width": "4", **RETURNS}


def test_what_the_options_need_is_drawn_from_the_seed():
    """One for all heads: where queries have no heads, without an axis of them."""
    inputs = body_of(SEEDED | PREDICTED)["inputs"]
    made = {name: given for name, given in inputs.items() if name not in ("q", "k", "v")}
    dim = inputs["q"]["shape"][3]
    assert {name: given["shape"] for name, given in made.items()} == {
        "w_q": [1, 16, dim], "w_k": [1, 16, dim], "v_a": [1, 16], "w_p": [1, 16, dim], "v_p": [1, 16],
    }  # fmt: skip
    assert {given["seed"] for given in made.values()} == {11}
    pasted = body_of(PASTED | PREDICTED | {"option_score": "general"})["inputs"]
    assert pasted["w_general"]["shape"] == [2, 2]
    assert pasted["w_p"]["shape"] == [16, 2]
    assert not {"w_q", "v_a"} & set(pasted)
    assert set(body_of(PASTED | RETURNS | {"engine": "scoring", "option_score": "dot"})["inputs"]) == set(
        "qkv"
    )


@pytest.mark.parametrize("score", ["additive", "dot", "scaled_dot", "general", "concat", "cosine"])
def test_every_score_runs_from_the_form(score):
    body = json.loads(json.dumps(body_of(PASTED | PREDICTED | {"option_score": score})))
    parsed = parse_run(body)
    found = execute(parsed.spec, parsed.arrays)
    assert found.numerics["within_bound"]
    assert np.shape(found.arrays["weights"]) == (3, 3)


def test_the_parameters_of_an_option_come_with_it_and_no_others(client):
    page = client.get(HOME, {"engine": "scoring", "option_score": "concat"}).content.decode()
    assert set(re.findall(r'name="how_(w_\w+|v_a)"', page)) == {"w_concat", "v_a"}
    assert re.search(r'name="how_w_concat".*?value="seed" selected', page, re.DOTALL)
    assert "how_w_concat" not in client.get(HOME, {"engine": "flash"}).content.decode()


def test_parameters_can_be_given_and_filled():
    asked = PASTED | RETURNS | {"engine": "scoring", "option_score": "general", "how_w_general": "text"}
    assert body_of(asked | {"in_w_general": "1 0\n0 2"})["inputs"]["w_general"] == [[1, 0], [0, 2]]
    filled = body_of(asked | {"how_w_general": "fill", "in_w_general": "0.5"})
    assert filled["inputs"]["w_general"] == [[0.5, 0.5], [0.5, 0.5]]


def test_nothing_is_drawn_and_nothing_said_twice_where_something_is_wrong(client):
    for wrong in ({"seed": "x"}, {"head_dim": "many"}):
        body = body_of(SEEDED | PREDICTED | wrong)
        assert set(body["inputs"]) == set("qkv")
    answer = html.unescape(client.post(ESTIMATE, SEEDED | PREDICTED | {"head_dim": "300"}).content.decode())
    assert "head dim of 300" in answer
