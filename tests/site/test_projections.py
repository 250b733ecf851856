"""The figure of self-attention and cross-attention, against PyTorch's own layers of it."""

import json
from itertools import permutations

import numpy as np
import pytest
import torch
from django.test import Client
from torch.nn.functional import scaled_dot_product_attention

from concepts.facts import FACTS
from concepts.figures.projections import FIGURE, OTHER, TEXT, W_K, W_Q, W_V, embedded, steps


def values(**state: str) -> dict:
    return FIGURE.data(state)["values"]


@pytest.mark.parametrize(("source", "is_causal"), [(TEXT, False), (TEXT, True), (OTHER, False)])
def test_it_is_attention_of_what_the_projections_give(source: tuple[str, ...], is_causal: bool) -> None:
    x, e = (torch.tensor(embedded(words)) for words in (TEXT, source))
    q, k, v = (rows @ torch.tensor(w) for rows, w in ((x, W_Q), (e, W_K), (e, W_V)))
    expected = scaled_dot_product_attention(q[None], k[None], v[None], is_causal=is_causal)[0]
    np.testing.assert_allclose(steps(TEXT, source, is_causal=is_causal).out, expected.numpy(), atol=1e-14)


def test_a_word_has_the_same_numbers_wherever_it_stands_and_however_it_is_written() -> None:
    rows = embedded(("the", "dog", "The"))
    assert np.array_equal(rows[0], rows[2])
    assert not np.array_equal(rows[0], rows[1])
    np.testing.assert_array_equal(rows, np.round(rows, 1))


def test_outputs_go_along_with_their_words_in_every_order() -> None:
    usual = steps(TEXT, TEXT).out
    for order in permutations(range(len(TEXT))):
        words = tuple(TEXT[place] for place in order)
        np.testing.assert_allclose(steps(words, words).out, usual[list(order)], atol=1e-12)
    np.testing.assert_allclose(steps(TEXT, OTHER).out, steps(TEXT, OTHER[::-1]).out, atol=1e-12)


def test_a_causal_text_depends_on_which_words_came_before_and_not_on_their_order() -> None:
    usual = steps(TEXT, TEXT, is_causal=True).out
    words = (*TEXT[3::-1], TEXT[4])
    np.testing.assert_allclose(steps(words, words, is_causal=True).out[4], usual[4], atol=1e-12)
    assert not np.allclose(steps(words, words, is_causal=True).out[:4], usual[:4])


@pytest.mark.parametrize("order", ["typed", "reversed", "sorted"])
def test_the_table_compares_each_word_with_itself(order: str) -> None:
    for kind in ("self", "cross"):
        assert not FIGURE.differences(values(kind=kind, order=order)).any()
    changed = FIGURE.differences(values(kind="causal", order=order))
    assert changed.any() == (order != "typed")
    words = sorted(TEXT) if order == "sorted" else TEXT[::-1] if order == "reversed" else TEXT
    found = steps(tuple(words), tuple(words), is_causal=True).out
    moved = FIGURE.moved(values(kind="causal", order=order))
    np.testing.assert_allclose(moved[TEXT.index("bit")], found[words.index("bit")], atol=1e-12)


def test_what_is_seen_is_said() -> None:
    assert FIGURE.sentence(values()).startswith("Read backwards, every word keeps its output")
    assert "“bit” gets another output, by 0.525" in FIGURE.sentence(values(kind="causal"))
    assert FIGURE.sentence(values(order="typed")) == "Choose another order, and see which outputs change."


def test_the_lab_gets_the_projected_words() -> None:
    fields = dict(FIGURE.lab(values(kind="cross")))
    found = steps(TEXT, OTHER)
    for name in ("q", "k", "v"):
        np.testing.assert_allclose(json.loads(fields[name]), getattr(found, name), atol=5e-5)
    assert "causal" not in fields
    assert dict(FIGURE.lab(values(kind="causal")))["causal"] == "on"


def test_what_the_page_claims_of_the_example(client: Client) -> None:
    found = steps(TEXT, TEXT)
    bit = TEXT.index("bit")
    assert found.weights[bit].argmax() == TEXT.index("dog")
    assert found.weights[bit, bit] < found.weights[bit, TEXT.index("dog")]
    assert np.array_equal(found.out[0], found.out[3])
    html = client.get("/en/concepts/self-and-cross/?text=the+man+bit+the+dog").content.decode()
    for word in TEXT:
        cells = f'<th scope="row">{word}</th><td class="num">'
        usual = ", ".join(f"{x:.2f}".replace("-", "−") for x in found.out[TEXT.index(word)])
        assert f"{cells}({usual})" in html


def test_words_are_shown_as_words(client: Client) -> None:
    html = client.get("/en/concepts/self-and-cross/", {"text": "<i> & é"}).content.decode()
    assert "&lt;i&gt;" in html
    assert "<i> &" not in html


def test_facts_of_the_page() -> None:
    texts = {
        "bit-x": "(0.6, −0.3, −1.4, 0.0)", "bit-q": "(1.29, 1.51, 0.36)", "dog-k": "(0.08, 0.82, −0.42)",
        "bit-dog-score": "0.687", "dog-bit-score": "−0.133", "bit-dog": "0.398", "bit-man": "0.308",
        "the": "(1.15, 1.52)", "causal-change": "0.525", "merged-rank": "3", "cross-weights": "20",
    }  # fmt: skip
    assert {name: FACTS[f"projections-{name}"].text for name in texts} == texts
    q, k = np.array([1.29, 1.51, 0.36]), np.array([0.08, 0.82, -0.42])
    assert q @ k / 3**0.5 == pytest.approx(0.687, abs=5e-3)
