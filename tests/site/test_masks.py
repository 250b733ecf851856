"""The figures of the page on masks, held against the engine that the lab runs; and what the page says of
libraries, against PyTorch."""

import json
import warnings
from itertools import product
from urllib.parse import parse_qsl

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from concepts.facts import FACTS
from concepts.figures import Links
from concepts.figures.controls import Cells
from concepts.figures.masks import ALIGNMENT, CORNERS, FIGURE, KEYS, QUERIES, Rules, allowed_by
from kernels.engines.reference import reference
from kernels.spec import parse_run

LINKS = Links("/page/", "/fragment/", "/lab/")


def run(queries: int, keys: int, attention: dict, **inputs: object) -> dict[str, np.ndarray]:
    """What the reference engine makes of the figure's queries and keys."""
    given = {"q": QUERIES[:queries].tolist(), "k": KEYS[:keys].tolist(), "v": np.eye(keys).tolist()}
    return computed(given | inputs, attention)


def computed(inputs: dict[str, object], attention: dict) -> dict[str, np.ndarray]:
    body = {"engine": "reference", "dtype": "float64", "inputs": inputs, "attention": attention}
    parsed = parse_run(body)
    shape = parsed.spec.canonical_shape
    arrays = {name: np.reshape(array, shape(name)) for name, array in parsed.arrays.items() if array.ndim > 1}
    found = reference(parsed.spec, parsed.arrays | arrays, ("out", "masked_scores"))
    return {name: array[0, 0] for name, array in found.items()}


def values(**state: str) -> dict:
    return FIGURE.data(state)["values"]


@pytest.mark.parametrize("corner", CORNERS)
@pytest.mark.parametrize(("queries", "keys"), [(5, 5), (2, 5), (5, 2), (1, 8), (8, 3)])
def test_masks_are_those_of_the_engines(queries: int, keys: int, corner: str) -> None:
    for causal, window in product((True, False), (1, 2, 4, 8)):
        attention = {
            "is_causal": causal, "causal_alignment": corner, "window": [window - 1, window - 1],
        }  # fmt: skip
        found = np.isfinite(run(queries, keys, attention)["masked_scores"])
        expected = allowed_by(queries, keys, Rules(causal, window), corner)
        if window == 8:  # without a limit in the figure
            found = np.isfinite(run(queries, keys, attention | {"window": [None, None]})["masked_scores"])
        np.testing.assert_array_equal(found, expected)


def test_padding_is_what_key_lengths_are() -> None:
    given = run(5, 5, {}, kv_lens=[3])["masked_scores"]
    np.testing.assert_array_equal(np.isfinite(given), allowed_by(5, 5, Rules(real=3)))


@pytest.mark.parametrize("state", [{}, {"flip": "11.23.54"}, {"rule": "all", "real": "2"}, {"keys": "2"}])
def test_the_weights_are_what_the_lab_gives_for_its_link(state: dict[str, str]) -> None:
    """The lab's fields as a body; the values are the unit matrix, so the output is the weights."""
    fields = dict(FIGURE.lab(values(**state)))
    inputs = {name: json.loads(fields[name]) for name in ("q", "k", "v")}
    if "in_attn_mask" in fields:
        inputs["attn_mask"] = json.loads(fields["in_attn_mask"])
    attention = {"is_causal": fields.get("causal") == "on"}
    np.testing.assert_allclose(FIGURE.data(state)["weights"], computed(inputs, attention)["out"], atol=1e-15)


def test_a_cell_is_a_link_that_turns_it_over_and_back() -> None:
    html = FIGURE.render({"queries": "2", "keys": "3"}, LINKS)
    assert 'aria-label="query 1 may not see key 3"' in html  # of 3 tokens it is the second
    address = html.partition('id="masks-cell-13" href="')[2].partition('"')[0].replace("&amp;", "&")
    state = dict(parse_qsl(address.partition("?")[2].partition("#")[0]))
    assert state == {"queries": "2", "keys": "3", "flip": "13"}
    before, after = (np.array(FIGURE.data(one)["allowed"]) for one in ({**state, "flip": ""}, state))
    assert np.argwhere(before != after).tolist() == [[0, 2]]
    again = FIGURE.render(state, LINKS)
    assert 'id="masks-cell-13" href="/page/?queries=2&amp;keys=3#masks"' in again
    assert "Wipe off the paint" in again
    assert "Wipe off the paint" not in html


def test_paint_outside_the_grid_waits_until_the_grid_is_larger() -> None:
    state = {"flip": "55", "keys": "3", "queries": "3"}
    assert np.array_equal(FIGURE.data(state)["allowed"], np.tri(3))
    assert not FIGURE.data({"flip": "55"})["allowed"][4][4]


@pytest.mark.parametrize("text", ["1", "10", "123", "12,13", "12.", "99", "12.91", "²²"])
def test_what_names_no_cell_is_told_so(text: str) -> None:
    reading = Cells("flip", "Painted", most=8).read({"flip": text})
    assert reading.value == ()
    assert "names no cells such as 23.41" in reading.problems[""]


def test_each_wrong_way_is_told_where_it_shows_and_only_there() -> None:
    def told(**state: str) -> str:
        return FIGURE.sentence(values(**state))

    assert told() == "15 of 25 pairs are open. With 0 after softmax row 1 adds up to 0.15."
    assert "query 2 gives 0.27 to key 4" in told(instead="added")
    assert "Query 1 sees no key: its weights are 0." in told(flip="11")
    assert "row 1: NaN" in told(flip="11", instead="plain")
    assert "query 1 averages over every key" in told(flip="11", instead="finite")
    assert "shut a whole row" in told(instead="plain")
    assert "makes no difference" in told(rule="all")
    averaged = FIGURE.data({"flip": "11", "instead": "finite"})["instead"][0]
    np.testing.assert_allclose(averaged, 0.2, rtol=1e-6)


def test_corners_differ_in_what_the_last_query_sees() -> None:
    def told(rows: int, columns: int) -> str:
        return ALIGNMENT.sentence({"rows": rows, "columns": columns})

    assert told(2, 5).endswith("sees 2 of 5 keys; from the bottom right, 5.")
    assert told(1, 6).endswith("sees 1 of 6 keys; from the bottom right, 6.")
    assert "same mask" in told(4, 4)
    assert "first 3 queries see no key" in told(5, 2)


def test_facts_of_the_page() -> None:
    texts = {
        "open": "15", "first-sum": "0.15", "first-of-three": "0.22", "row-two": "(0.65, 0.35)",
        "row-two-powers": "(1.000, 0.537)", "added-leak": "0.27", "lost-gap": "104",
        "grain": "64", "share": "50.01", "wide-bottom": "13",
    }  # fmt: skip
    assert {name: FACTS[f"masks-{name}"].text for name in texts} == texts
    gap = np.float32(104)
    assert np.exp(-gap) == 0
    assert np.exp(-gap + np.float32(1)) > 0


# -- what is said of libraries -------------------------------------------------------------------------------


def test_torch_counts_from_the_top_left() -> None:
    q, k, v = torch.zeros(1, 1, 2, 4), torch.zeros(1, 1, 5, 4), torch.eye(5)[None, None]
    seen = scaled_dot_product_attention(q, k, v, is_causal=True)[0, 0] > 0
    assert np.array_equal(seen.numpy(), ALIGNMENT.data({})["top_left"])
    one = scaled_dot_product_attention(q[:, :, :1], k, v, is_causal=True)[0, 0, 0]
    assert one.tolist() == [1, 0, 0, 0, 0]


def test_who_gives_nan_for_a_row_that_sees_nothing() -> None:
    x, shut = torch.randn(1, 3, 8), torch.tensor([[False] * 3, [True] * 3, [False] * 3])
    assert torch.full((1, 3), -torch.inf).softmax(-1).isnan().all()
    layer = nn.MultiheadAttention(8, 2, batch_first=True)  # where True is left out
    assert layer(x, x, x, attn_mask=shut)[0][0, 1].isnan().all()
    assert not layer(x, x, x, attn_mask=shut, need_weights=False)[0].isnan().any()
    out = scaled_dot_product_attention(x, x, x, attn_mask=~shut)  # where True takes part
    assert (out[0, 1] == 0).all()
    assert (out[0, 0] != 0).all()


def test_minus_a_thousand_million_is_infinite_in_float16() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert np.isneginf(np.float16(-1e9))
