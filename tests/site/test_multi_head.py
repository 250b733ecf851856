"""The figures of many heads, against PyTorch's own layer, graph theory by hand, and the counts of papers."""

import json
import re
from itertools import product

import numpy as np
import pytest
import torch
from django.test import Client

from concepts.facts import FACTS
from concepts.figures.multi_head import (
    FIGURES,
    TEXT,
    W_K,
    W_O,
    W_Q,
    W_V,
    cost,
    embedded,
    heads_of,
    layer,
    reach,
)
from concepts.figures.parse import FIGURES as PARSES
from concepts.figures.parse import is_tree, loops
from concepts.pages import book

HEADS, BUDGET = FIGURES
PARSE = PARSES[0]


def values(figure, **state: str) -> dict:
    return figure.data(state)["values"]


# -- the layer -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("heads", [1, 2, 4])
def test_it_is_the_multi_head_attention_of_pytorch(heads: int, is_causal: bool) -> None:
    theirs = torch.nn.MultiheadAttention(8, heads, bias=False, batch_first=True, dtype=torch.float64)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.tensor(np.concatenate([W_Q, W_K, W_V], axis=1).T))
        theirs.out_proj.weight.copy_(torch.tensor(W_O.T))
    x = torch.tensor(embedded(TEXT))[None]
    mask = torch.ones(4, 4, dtype=torch.bool).triu(1) if is_causal else None
    out, weights = theirs(x, x, x, attn_mask=mask, average_attn_weights=False)
    ours = layer(embedded(TEXT), heads, is_causal=is_causal)
    np.testing.assert_allclose(ours.out, out[0].detach().numpy(), atol=1e-13)
    np.testing.assert_allclose(ours.weights, weights[0].detach().numpy(), atol=1e-13)


def test_heads_side_by_side_times_a_matrix_are_a_sum_over_heads() -> None:
    found = layer(embedded(TEXT), 4)
    blocks = W_O.reshape(4, 2, 8)
    total = sum(part @ block for part, block in zip(found.parts, blocks, strict=True))
    np.testing.assert_allclose(found.out, total, atol=1e-14)


def test_the_right_split_lets_a_word_reach_what_the_mask_lets_it_reach() -> None:
    x = embedded(TEXT)
    for heads in (1, 2, 4):
        assert reach(x, heads).all()
        assert np.array_equal(reach(x, heads, is_causal=True), np.tri(4, dtype=bool))


def test_without_both_transposes_the_text_falls_into_pieces() -> None:
    x = embedded(TEXT)
    halves = np.kron(np.eye(2, dtype=bool), np.ones((2, 2), dtype=bool))
    assert np.array_equal(reach(x, 2, "both"), halves)
    assert np.array_equal(reach(x, 4, "both"), np.eye(4, dtype=bool))


def test_without_one_transpose_the_future_leaks() -> None:
    seen = reach(embedded(TEXT), 2, "split", is_causal=True)
    assert seen[0, 2]
    assert (seen & ~np.tri(4, dtype=bool)).sum() == 3
    assert np.array_equal(reach(embedded(TEXT), 1, "split", is_causal=True), np.tri(4, dtype=bool))


# -- the figure ----------------------------------------------------------------------------------------------


def test_what_the_rows_of_a_head_are_made_of_is_said_as_it_is() -> None:
    assert HEADS.labels(values(HEADS)) == [list(TEXT)] * 2
    split = HEADS.labels(values(HEADS, split="split"))
    assert split == [
        ["she 1–4", "she 5–8", "gave 1–4", "gave 5–8"],
        ["him 1–4", "him 5–8", "tea 1–4", "tea 5–8"],
    ]
    x, found = embedded(TEXT), layer(embedded(TEXT), 2, "split")
    np.testing.assert_allclose(found.q[0, 1], (x @ W_Q)[0, 4:])
    five = HEADS.labels(values(HEADS, split="both", text="a b c d e"))
    assert five[0] == ["a 1–4", "a 5–8", "b 1–4", "b 5–8", "c 1–4"]


@pytest.mark.parametrize(
    ("state", "says"),
    [
        ({}, "For “tea”: head 1 most to “she”, 0.68; head 2 most to “him”, 0.43."),
        ({"heads": "1", "split": "both"}, "1 head has all 8 columns."),
        (
            {"split": "split"},
            "head 1 holds she 1–4, she 5–8, gave 1–4, gave 5–8. Outputs are off by up to 1.21.",
        ),
        ({"split": "split", "causal": "1"}, "The output of “she” now depends on “him”, a later word."),
        ({"split": "both"}, "The output of “she” no longer depends on “him”."),
    ],
)
def test_what_is_seen_is_said(state: dict[str, str], says: str) -> None:
    assert says in HEADS.sentence(values(HEADS, **state))


def test_errors_of_reach_are_marked_by_a_sign_and_not_by_colour_alone() -> None:
    from concepts.figures import Links

    links = Links("/page/", "/fragment/", "/lab/")
    assert "!</td>" not in HEADS.view(values(HEADS), links)
    assert HEADS.view(values(HEADS, split="both"), links).count("no !</td>") == 8
    assert HEADS.view(values(HEADS, split="split", causal="1"), links).count("yes !</td>") == 3


def test_the_lab_gets_the_heads_as_they_are_split() -> None:
    fields = dict(HEADS.lab(values(HEADS, split="split", causal="1")))
    found = layer(embedded(TEXT), 2, "split")
    for name in ("q", "k", "v"):
        np.testing.assert_allclose(json.loads(fields[name]), getattr(found, name), atol=5e-5)
    assert fields["causal"] == "on"


# -- what heads cost -----------------------------------------------------------------------------------------


def test_parameters_are_those_of_the_layer_of_pytorch() -> None:
    theirs = torch.nn.MultiheadAttention(512, 8, bias=False)
    expected = sum(one.numel() for one in theirs.parameters())
    assert {cost(512, heads, 1024).parameters for heads in (1, 8, 32)} == {expected}


def test_only_scores_grow_with_heads() -> None:
    one, eight = cost(512, 1, 1024), cost(512, 8, 1024)
    assert eight.products == one.products == 4 * 1024 * 512**2 + 8 * (1024 * 1024 * 64) * 2
    assert eight.scores == 8 * one.scores == 8 * 1024**2


@pytest.mark.parametrize(
    ("slug", "shape"),
    {
        "bert-base": (768, 12, 64), "bert-large": (1024, 16, 64), "gpt3": (12288, 96, 128),
        "llama-7b": (4096, 32, 128), "llama-65b": (8192, 64, 128), "t5-11b": (1024, 128, 128),
        "qwen3-32b": (5120, 64, 128), "gpt-oss-120b": (2880, 64, 64),
    }.items(),
)  # fmt: skip
def test_heads_of_models(slug: str, shape: tuple[int, int, int]) -> None:
    found = heads_of(slug)
    assert (found.width, found.heads, found.each) == shape
    assert (found.together == found.width) == (slug not in ("t5-11b", "qwen3-32b", "gpt-oss-120b"))


def test_names_of_models_set_the_figure_to_their_heads() -> None:
    html = "".join(piece for piece in book("en").pages["multi-head"].pieces if isinstance(piece, str))
    found = re.findall(r'href="\?width=(\d+)&amp;count=(\d+)#budget">([^<]+)</a></td>\s*<td>([\d,]+)', html)
    slugs = {"BERT-base": "bert-base", "BERT-large": "bert-large", "LLaMA-7B": "llama-7b",
             "LLaMA-65B": "llama-65b", "GPT-3": "gpt3"}  # fmt: skip
    assert [name for _width, _count, name, _shown in found] == list(slugs)
    for width, count, name, shown in found:
        one = heads_of(slugs[name])
        assert (int(width), int(count), shown) == (one.width, one.heads, f"{one.width:,}")


def test_a_width_that_heads_do_not_divide_is_named() -> None:
    assert "512 is no multiple of 12" in BUDGET.sentence(values(BUDGET, count="12"))
    assert "One head of 512 numbers" in BUDGET.sentence(values(BUDGET, count="1"))


# -- trees ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_there_are_as_many_trees_as_cayley_counted(count: int) -> None:
    ways = list(product(range(count), repeat=count))
    assert sum(map(is_tree, ways)) == count ** (count - 1)


def test_rounds_are_found_where_they_are() -> None:
    assert loops([0, 0, 1]) == [[0]]
    assert loops([1, 2, 0, 3, 0]) == [[0, 1, 2], [3]]
    assert loops([1, 0, 3, 2]) == [[0, 1], [2, 3]]


def test_the_verdict_is_of_the_largest_weights() -> None:
    for which in "1234":
        state = values(PARSE, which=which)
        targets = PARSE.weights(state).argmax(axis=1).tolist()
        assert PARSE.targets(state) == targets
        assert (" a tree here" in PARSE.sentence(state)) == is_tree(targets)
    assert "“the” and “a” point round in a circle" in PARSE.sentence(values(PARSE))
    assert "“the” and “owl” look most at themselves" in PARSE.sentence(values(PARSE, which="2"))


# -- the page ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text"),
    {
        "heads-unreached": "8", "heads-parameters": "1,048,576", "heads-products": "2,147,483,648",
        "heads-scores-one": "1,048,576", "heads-scores-eight": "8,388,608",
        "heads-tree-all": "3,125", "heads-tree-count": "625",
        "heads-t5-together": "16,384", "heads-t5-width": "1,024",
        "heads-qwen-together": "8,192", "heads-qwen-width": "5,120",
    }.items(),
)  # fmt: skip
def test_facts(name: str, text: str) -> None:
    assert FACTS[name].text == text


def test_what_the_page_claims_of_the_example(client: Client) -> None:
    found = layer(embedded(TEXT), 2)
    tea = TEXT.index("tea")
    assert [TEXT[row[tea].argmax()] for row in found.weights] == ["she", "him"]
    page = client.get("/en/concepts/multi-head/").content.decode()
    for number in ("24.9", "25.5", "25.8", "25.4", "86.8", "94.3", "65.1", "34.5", "26.3", "0.15"):
        assert number in page
