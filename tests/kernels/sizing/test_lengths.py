"""What layers cost as texts grow, counted product by product."""

import numpy as np
import pytest

from kernels.sizing.lengths import crossing, layer_cost, score_bytes, textbook_cost
from kernels.sizing.memory import Workload
from kernels.sizing.models import read_model
from kernels.sizing.roofline import flops


def counted(n: int, d: int, heads: int, is_causal: bool) -> tuple[int, int, int]:
    """Multiply-adds of a layer, one loop for each product; times two."""
    width = d // heads
    pairs = sum(width + width for _head in range(heads) for i in range(n) for j in range(n)
                if j <= i or not is_causal)  # fmt: skip
    projections = sum(d * d for _token in range(n) for _matrix in range(4))
    mlp = sum(d * 4 * d for _token in range(n) for _matrix in range(2))
    return 2 * pairs, 2 * projections, 2 * mlp


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize(("n", "d", "heads"), [(1, 4, 1), (6, 2, 2), (12, 2, 1), (7, 12, 3)])
def test_a_layer_of_the_textbook_is_the_sum_of_its_products(n, d, heads, is_causal):
    cost = textbook_cost(n, d, is_causal=is_causal)
    assert (cost.pairs, cost.projections, cost.mlp) == counted(n, d, heads, is_causal)
    assert cost.share == cost.pairs / (cost.pairs + cost.projections + cost.mlp)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("d", [2, 768, 4096])
def test_where_lines_cross_half_of_it_is_pairs(d, is_causal):
    at = round(crossing(textbook_cost(1, d), is_causal=is_causal))
    assert at == (12 * d - 1 if is_causal else 6 * d)
    assert textbook_cost(at, d, is_causal=is_causal).share == 0.5
    assert textbook_cost(at - 1, d, is_causal=is_causal).share < 0.5


@pytest.mark.parametrize(("slug", "n"), [("gpt2", 1024), ("llama-3-8b", 8192), ("llama-3.1-405b", 4096)])
def test_layers_of_a_model_make_up_all_that_it_computes_but_its_head(slug, n):
    model = read_model(slug).model
    whole = flops(model, Workload(length=n, q_len=None, all_logits=True))
    head = whole - sum(layer_cost(layer, model.hidden, n).total for layer in model.layers)
    vocabulary = {"gpt2": 50257, "llama-3-8b": 128256, "llama-3.1-405b": 128256}[slug]
    assert head == 2 * n * vocabulary * model.hidden


def test_a_causal_layer_of_a_model_by_hand():
    """GPT-2 small is the textbook's layer: width 768, an MLP of 3072."""
    model = read_model("gpt2").model
    assert layer_cost(model.layers[0], model.hidden, 1024) == textbook_cost(1024, 768, is_causal=True)


def test_scores_are_as_large_as_an_array_of_them():
    assert score_bytes(64, 3) == np.zeros((3, 64, 64), np.float16).nbytes
    assert score_bytes(4096) == 32 * 1024**2
