"""The figure of GPT and BERT, against PyTorch's attention, exchanged words, and masks written out by hand."""

import json
import re
from itertools import product

import numpy as np
import pytest
import torch
from django.test import Client
from torch.nn.functional import layer_norm, scaled_dot_product_attention, softmax

from concepts.facts import FACTS
from concepts.figures.gpt_bert import END, FIGURE, KINDS, MASK, START, run
from concepts.figures.multi_head import W_K, W_O, W_Q, W_V, embedded
from concepts.figures.projections import drawn

KEYS = [kind for kind, _words in KINDS]
FOUR = "one two three four"


def values(**state: str) -> dict:
    return FIGURE.data(state)["values"]


def attention(x: torch.Tensor, source: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    x, source = layer_norm(x, (8,)), layer_norm(source, (8,))
    q, k, v = ((rows @ torch.tensor(w))[None] for rows, w in ((x, W_Q), (source, W_K), (source, W_V)))
    return scaled_dot_product_attention(q, k, v, attn_mask=mask)[0] @ torch.tensor(W_O)


# -- the model -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["gpt", "bert", "prefix", "leak"])
def test_a_stack_is_two_layers_of_attention_on_normalised_vectors(kind: str) -> None:
    given = FIGURE.task(values(kind=kind))
    x, mask = torch.tensor(embedded(given.reads)), torch.tensor(given.allowed)
    for _layer in range(2):
        x = x + attention(x, x, mask)
    np.testing.assert_allclose(run(given).out, layer_norm(x, (8,)).numpy(), atol=1e-12)


def test_a_decoder_looks_at_itself_and_then_at_what_the_encoder_has_made() -> None:
    given = FIGURE.task(values(kind="t5"))
    assert given.reads == ("the", "bank", "of", START, "the", "river")
    read, written = (torch.tensor(embedded(words)) for words in (given.reads[:3], given.reads[3:]))
    everything, causal = torch.ones(3, 3, dtype=torch.bool), torch.ones(3, 3, dtype=torch.bool).tril()
    for _layer in range(2):
        read = read + attention(read, read, everything)
    for _layer in range(2):
        written = written + attention(written, written, causal)
        written = written + attention(written, read, everything)
    expected = layer_norm(torch.cat([read, written]), (8,))
    np.testing.assert_allclose(run(given).out, expected.numpy(), atol=1e-12)


def test_probabilities_are_a_softmax_over_the_words_at_hand() -> None:
    state = values(text="Sea the sea", into="wave")
    assert FIGURE.vocabulary(state) == ("sea", "the", "wave", END)
    columns = np.stack([drawn(f"guess/{word}", 8, size=0.3) for word in FIGURE.vocabulary(state)], axis=1)
    expected = softmax(torch.tensor(FIGURE.done(state).out @ columns), dim=1).numpy()
    assert FIGURE.chances(state) == pytest.approx([expected[0, 1], expected[1, 0], expected[2, 3]])


# -- who sees whom, and what is asked ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "rows", "predicts"),
    [
        ("gpt", "1000 1100 1110 1111", ["two", "three", "four", END]),
        ("leak", "1111 1111 1111 1111", ["two", "three", "four", END]),
        ("bert", "1111 1111 1111 1111", ["", "", "three", ""]),
        ("prefix", "1100 1100 1110 1111", ["", "three", "four", END]),
        ("t5", "11000 11000 11100 11110 11111", ["", "", "three", "four", END]),
    ],
)
def test_masks_and_targets_are_as_drawn_by_hand(kind: str, rows: str, predicts: list[str]) -> None:
    state = values(text=FOUR, kind=kind, prefix="2", hidden="3")
    given = FIGURE.task(state)
    assert given.allowed.astype(int).tolist() == [[int(cell) for cell in row] for row in rows.split()]
    assert FIGURE.targets(state) == predicts
    assert given.predictions == sum(map(bool, predicts))


@pytest.mark.parametrize("kind", KEYS)
@pytest.mark.parametrize("text", ["word", "a b", "the bank of the river bank"])
def test_no_prediction_depends_on_its_target_except_where_it_is_wrong(kind: str, text: str) -> None:
    """Each word is exchanged, and each output compared, with no help from the figure."""
    for hidden, prefix in product("16", "16"):
        state = values(kind=kind, text=text, hidden=hidden, prefix=prefix)
        words, given = state["text"], FIGURE.task(state)
        expected = []
        for position, place in enumerate(given.asked):
            other = list(words)
            if place is not None and place < len(words):
                other[place] = "something-else"
            changed = run(FIGURE.task({**state, "text": tuple(other)})).out
            expected.append(not np.allclose(changed[position], run(given).out[position], atol=1e-9))
        assert FIGURE.seen(state) == expected
        assert any(expected) == (kind == "leak" and len(words) > 1)


def test_a_hidden_word_moves_nothing_unless_it_is_left_in_its_place() -> None:
    for stead, read in (("mask", MASK), ("random", "apple"), ("kept", "bank")):
        state = values(kind="bert", place="2", stead=stead)
        assert FIGURE.task(state).reads[1] == read
        assert FIGURE.moved(state).any() == (stead == "kept")
        assert FIGURE.seen(state) == [False, stead == "kept", False, False, False]


@pytest.mark.parametrize("place", range(1, 6))
def test_a_changed_word_moves_what_may_see_it(place: int) -> None:
    moved = {kind: (FIGURE.moved(values(kind=kind, place=str(place))) > 0).tolist() for kind in KEYS}
    assert moved["gpt"] == [position >= place for position in range(1, 6)]
    assert moved["leak"] == [True] * 5
    assert moved["bert"] == [place != 2] * 5
    assert moved["prefix"] == ([True] * 5 if place <= 3 else moved["gpt"])
    assert moved["t5"] == ([True] * 6 if place <= 3 else [False, *moved["gpt"]])


def test_a_place_beyond_the_sentence_is_its_last() -> None:
    state = values(text="a b", place="6", hidden="6", prefix="6", kind="bert")
    assert FIGURE.changed(state) == ("a", "money")
    assert FIGURE.task(state).reads == ("a", MASK)
    assert FIGURE.targets({**state, "kind": "prefix"}) == ["", END]


def test_one_word_stands_for_one_word() -> None:
    problem = FIGURE.data({"into": "two words"})["problems"][0]
    assert problem["field"] == "into"
    assert problem["detail"].startswith("1 word of at most 12 letters fits")


# -- what is shown -------------------------------------------------------------------------------------------


def test_what_is_seen_is_said() -> None:
    assert FIGURE.sentence(values()) == (
        "One pass makes 5 predictions. Change “river” into “money”, and 1 of 5 outputs changes; the rest stay"
        " exactly as they are."
    )
    assert FIGURE.sentence(values(kind="bert", place="2")) == (
        "One pass makes 1 prediction. Change “bank” into “money”, and no output changes: the word is hidden."
    )
    assert FIGURE.sentence(values(kind="leak")) == (
        "One pass makes 5 predictions. 4 positions see the word that they have to predict."
        " Change “river” into “money”, and every output changes."
    )
    assert "1 position sees the word" in FIGURE.sentence(values(kind="bert", stead="kept"))
    assert FIGURE.sentence(values(into="River")).endswith("see which outputs change.")


def test_shut_pairs_are_dashes_and_targets_stand_at_their_positions(client: Client) -> None:
    html = client.get("/en/concepts/gpt-and-bert/").content.decode()
    view = html.partition('id="objectives-view"')[2].partition('class="outputs"')[0]
    assert view.count('<td class="shut">–</td>') == 10
    assert '<th scope="row">river → [END]</th>' in view
    wrong = client.get("/en/concepts/gpt-and-bert/", {"kind": "leak"}).content.decode()
    assert wrong.count("(seen!)") == 4
    assert re.search(r'aria-current="true">wrong</a>', wrong)


def test_the_sentence_under_each_mask_is_counted(client: Client) -> None:
    html = client.get("/en/concepts/gpt-and-bert/").content.decode()
    table = html.partition("The sentence under each mask")[2].partition("</table>")[0]
    found = re.findall(r'<td class="num">([^<]+)</td>', table)
    assert found == [
        "15", "5", "1 of 5", "25", "1", "5 of 5", "18", "3", "1 of 5",
        "24", "3", "1 of 6", "25", "5", "5 of 5",
    ]  # fmt: skip
    assert table.count('fill-opacity="0.85"') == 15 + 25 + 18 + 24 + 25


def test_the_lab_gets_the_mask_that_is_shown() -> None:
    gpt, bert, prefix, t5 = (dict(FIGURE.lab(values(kind=kind))) for kind in KEYS[:4])
    assert gpt["causal"] == "on"
    assert not {"causal", "in_attn_mask"} & (bert.keys() | t5.keys())
    assert json.loads(prefix["in_attn_mask"])[0] == [True, True, True, False, False]
    assert np.shape(json.loads(t5["q"])) == np.shape(json.loads(t5["k"])) == (3, 8)
    two = dict(FIGURE.lab(values(kind="t5", prefix="2")))
    assert (np.shape(json.loads(two["q"])), np.shape(json.loads(two["k"]))) == ((4, 8), (2, 8))
    q = layer_norm(torch.tensor(embedded(("the", "bank", "of", "the", "river"))), (8,)) @ torch.tensor(W_Q)
    np.testing.assert_allclose(json.loads(gpt["q"]), q.numpy(), atol=6e-5)


def test_words_are_shown_as_words(client: Client) -> None:
    html = client.get("/en/concepts/gpt-and-bert/", {"text": "<i> & é", "into": "<u>"}).content.decode()
    assert "&lt;i&gt;" in html
    assert "<i> &" not in html
    assert "<u>" not in html


def test_facts_of_the_page() -> None:
    texts = {
        "open-gpt": "15", "open-prefix": "18", "predictions-prefix": "3",
        "chances": "(0.028, 0.088, 0.484, 0.155, 0.270)", "losses": "(3.57, 2.43, 0.73, 1.86, 1.31)",
        "loss": "9.89", "product": "0.000051", "even": "1.79",
        "chosen": "76.8", "masked": "61.4", "otherwise": "7.7",
    }  # fmt: skip
    assert {name: FACTS[f"objectives-{name}"].text for name in texts} == texts
    assert -np.log(0.000051) == pytest.approx(9.89, abs=0.02)
    assert np.log(6) == pytest.approx(1.79, abs=5e-3)
    assert -np.log([0.028, 0.088, 0.484, 0.155, 0.270]) == pytest.approx(
        [3.57, 2.43, 0.73, 1.86, 1.31], abs=0.02
    )
