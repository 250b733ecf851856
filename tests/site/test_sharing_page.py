"""Shared keys and values: groups against PyTorch's, bytes against what models' cards and papers give."""

import json

import numpy as np
import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from concepts.facts import FACTS
from concepts.figures import Links
from concepts.figures.sharing import FIGURES, KIB, SLUGS, K, Q, V, cached, largest, outputs, pooled, read_by

GROUPS, STORED = FIGURES
LINKS = Links("/page/", "/fragment/", "/lab/")


def values(figure, **state: str) -> dict:
    return figure.data(state)["values"]


@pytest.mark.parametrize("groups", [1, 2, 4, 8])
def test_outputs_are_those_of_grouped_attention_in_pytorch(groups: int) -> None:
    k, v = (torch.tensor(x.reshape(groups, 8 // groups, 4, 4).mean(1))[None] for x in (K, V))
    theirs = scaled_dot_product_attention(torch.tensor(Q)[None], k, v, enable_gqa=True)[0]
    np.testing.assert_allclose(outputs(groups), theirs.numpy(), atol=1e-13)
    times = 8 // groups
    tiled = scaled_dot_product_attention(
        torch.tensor(Q)[None], k.repeat(1, times, 1, 1), v.repeat(1, times, 1, 1)
    )[0]
    np.testing.assert_allclose(outputs(groups, "tiled"), tiled.numpy(), atol=1e-13)


def test_who_reads_whom() -> None:
    assert read_by(2) == [0, 0, 0, 0, 1, 1, 1, 1]
    assert read_by(2, "tiled") == [0, 1, 0, 1, 0, 1, 0, 1]
    assert read_by(4) == [i * 4 // 8 for i in range(8)]
    assert read_by(1) == read_by(1, "tiled") == [0] * 8
    assert read_by(8) == read_by(8, "tiled") == list(range(8))


def test_the_bug_is_marked_on_the_heads_that_it_hits_and_on_no_other() -> None:
    state = values(GROUPS, expand="tiled")
    view = GROUPS.view(state, LINKS)
    assert view.count("stroke-dasharray") == view.count(" ! (kv") == 4
    assert "query heads 2, 4, 5, 7 read the wrong group" in GROUPS.sentence(state)
    assert [error > 0 for error in GROUPS.errors(state)] == [i in (1, 3, 4, 6) for i in range(8)]
    right = GROUPS.view(values(GROUPS), LINKS)
    assert "stroke-dasharray" not in right
    assert " ! " not in right
    for kv in ("1", "8"):
        assert "a test of this case finds no bug" in GROUPS.sentence(values(GROUPS, expand="tiled", kv=kv))


def test_pooling_is_exact_where_heads_are_alike() -> None:
    alike = np.repeat(K[:2], 4, axis=0)
    np.testing.assert_allclose(pooled(alike, 2), K[:2])
    assert largest(outputs(8) - outputs(8)) == [0.0] * 8


def test_the_lab_gets_groups_and_not_copies() -> None:
    fields = dict(GROUPS.lab(values(GROUPS)))
    shapes = {name: np.shape(json.loads(fields[name])) for name in ("q", "k", "v")}
    assert shapes == {"q": (8, 4, 4), "k": (2, 4, 4), "v": (2, 4, 4)}
    np.testing.assert_allclose(json.loads(fields["k"])[1], K[4:].mean(0), atol=5e-5)


@pytest.mark.parametrize(
    ("slug", "heads", "kv_heads", "kind", "size"),
    [
        ("llama-7b", 32, 32, "MHA", 512), ("llama-2-70b", 64, 8, "GQA", 320),
        ("llama-3-8b", 32, 8, "GQA", 128),
        ("llama-3-70b", 64, 8, "GQA", 320), ("mistral-7b-v0.2", 32, 8, "GQA", 128),
        ("falcon-7b", 71, 1, "MQA", 8), ("falcon-180b", 232, 8, "GQA", 160), ("gemma-2b", 8, 1, "MQA", 18),
        ("deepseek-v2", 128, 0, "MLA", 67.5), ("deepseek-v3", 128, 0, "MLA", 68.625),
    ],
)  # fmt: skip
def test_what_models_keep(slug: str, heads: int, kv_heads: int, kind: str, size: float) -> None:
    one = cached(slug)
    assert (one.heads, one.kv_heads, one.kind, one.mine / KIB) == (heads, kv_heads, kind, size)
    assert slug in SLUGS


def test_other_ways_are_by_the_formula() -> None:
    llama = cached("llama-2-70b")
    assert llama.mha == 2 * 80 * 64 * 128 * 2
    assert llama.grouped(8) == llama.mine == 2 * 80 * 8 * 128 * 2
    assert llama.mqa == 2 * 80 * 128 * 2
    assert cached("deepseek-v2").mha == 60 * 128 * (128 + 64 + 128) * 2


def test_what_is_stored_is_said() -> None:
    told = STORED.sentence(values(STORED, length="131072"))
    assert told.startswith("Llama 2 70B keeps 320 KiB of each token, 8 times less than MHA would: 40 GiB")
    assert "is MHA: 512 KiB" in STORED.sentence(values(STORED, model="llama-7b"))


@pytest.mark.parametrize(
    ("name", "text"),
    {
        "mha": "2,560", "gqa": "320", "mqa": "40", "mha-all": "10", "gqa-all": "1.25",
        "falcon-heads": "232", "falcon-kv": "8", "falcon-size": "160", "falcon-mqa": "20",
        "latent": "512", "rope": "64", "latent-all": "576", "expanded": "40,960", "times": "71",
        "equal": "2.25", "llama-7b": "512", "usual": "8",
    }.items(),
)  # fmt: skip
def test_facts(name: str, text: str) -> None:
    assert FACTS[f"sharing-{name}"].text == text
