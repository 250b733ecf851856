"""Layers of the Transformer block by block, and what depth does to a stack, against PyTorch's own layers and
its gradients in float64."""

import numpy as np
import pytest
import torch
from torch import nn

from kernels import depth
from kernels.blocks import EPSILON, Network, Projections, decoder_layer, encoder_layer, layer_norm

WIDTH, WIDER, HEADS = 8, 20, 2
ORDERS = pytest.mark.parametrize("norm_first", [False, True], ids=["post-LN", "pre-LN"])


def drawn(rng: np.random.Generator) -> tuple[Projections, Projections, Network]:
    def matrix(*shape: int) -> np.ndarray:
        return rng.normal(size=shape)

    itself, across = (Projections(*(matrix(WIDTH, WIDTH) for _ in "qkvo")) for _ in range(2))
    return itself, across, Network(matrix(WIDTH, WIDER), matrix(WIDER), matrix(WIDER, WIDTH), matrix(WIDTH))


def as_torch(array: np.ndarray) -> nn.Parameter:
    return nn.Parameter(torch.tensor(array, dtype=torch.float64))


def fill_attention(module: nn.MultiheadAttention, given: Projections) -> None:
    module.in_proj_weight = as_torch(np.concatenate([given.q.T, given.k.T, given.v.T]))
    module.out_proj.weight = as_torch(given.o.T)
    for bias in (module.in_proj_bias, module.out_proj.bias):
        nn.init.zeros_(bias)


def fill_network(module: nn.Module, given: Network) -> None:
    module.linear1.weight, module.linear1.bias = as_torch(given.w1.T), as_torch(given.b1)
    module.linear2.weight, module.linear2.bias = as_torch(given.w2.T), as_torch(given.b2)


@ORDERS
def test_an_encoder_layer_is_that_of_pytorch(norm_first: bool) -> None:
    rng = np.random.default_rng(1)
    itself, _across, network = drawn(rng)
    x = rng.normal(size=(5, WIDTH))
    theirs = nn.TransformerEncoderLayer(
        WIDTH, HEADS, WIDER, 0.0, layer_norm_eps=EPSILON, batch_first=True, norm_first=norm_first,
        dtype=torch.float64,
    )  # fmt: skip
    fill_attention(theirs.self_attn, itself)
    fill_network(theirs, network)
    with torch.no_grad():
        expected = theirs(torch.tensor(x)[None])[0].numpy()
    steps = encoder_layer(x, itself, network, heads=HEADS, norm_first=norm_first)
    np.testing.assert_allclose(steps[-1].out, expected, atol=1e-12)
    order = [step.kind for step in steps]
    assert order == 2 * (["norm", "sub", "add"] if norm_first else ["sub", "add", "norm"])


@ORDERS
def test_a_decoder_layer_is_that_of_pytorch(norm_first: bool) -> None:
    rng = np.random.default_rng(2)
    itself, across, network = drawn(rng)
    x, memory = rng.normal(size=(4, WIDTH)), rng.normal(size=(6, WIDTH))
    theirs = nn.TransformerDecoderLayer(
        WIDTH, HEADS, WIDER, 0.0, layer_norm_eps=EPSILON, batch_first=True, norm_first=norm_first,
        dtype=torch.float64,
    )  # fmt: skip
    fill_attention(theirs.self_attn, itself)
    fill_attention(theirs.multihead_attn, across)
    fill_network(theirs, network)
    mask = nn.Transformer.generate_square_subsequent_mask(4, dtype=torch.float64)
    with torch.no_grad():
        expected = theirs(torch.tensor(x)[None], torch.tensor(memory)[None], tgt_mask=mask)[0].numpy()
    steps = decoder_layer(x, memory, itself, across, network, heads=HEADS, norm_first=norm_first)
    np.testing.assert_allclose(steps[-1].out, expected, atol=1e-12)
    assert list(dict.fromkeys(step.part for step in steps)) == ["self", "cross", "ffn"]


def test_a_norm_sees_one_token_alone() -> None:
    x = np.random.default_rng(3).normal(size=(3, WIDTH))
    changed = x.copy()
    changed[2] += 5 * np.arange(WIDTH)
    np.testing.assert_array_equal(layer_norm(x)[:2], layer_norm(changed)[:2])
    np.testing.assert_allclose(layer_norm(x).mean(axis=1), 0, atol=1e-12)


@ORDERS
def test_slopes_and_sizes_of_a_stack_are_those_of_pytorch(norm_first: bool) -> None:
    layers, seed = 3, 7
    found = depth.through(layers, seed, norm_first=norm_first)
    width, heads = depth.WIDTH, depth.HEADS
    stack = []
    for one in depth.layers_of(layers, seed):
        theirs = nn.TransformerEncoderLayer(
            width, heads, depth.WIDER * width, 0.0, layer_norm_eps=EPSILON, batch_first=True,
            norm_first=norm_first, dtype=torch.float64,
        )  # fmt: skip
        fill_attention(theirs.self_attn, one.itself)
        fill_network(theirs, one.network)
        stack.append(theirs)
    x = torch.tensor(depth.generate("depth/tokens", seed, (depth.TOKENS, width), "normal", "float64"))[None]
    sizes = [float(x.square().mean().sqrt())]
    for theirs in stack:
        x = theirs(x)
        sizes.append(float(x.detach().square().mean().sqrt()))
    if norm_first:
        x = nn.functional.layer_norm(x, (width,), eps=EPSILON)
    words = width**-0.5 * depth.generate("depth/words", seed, (width, width), "normal", "float64")
    wanted = depth.generate("depth/wanted", seed, (depth.TOKENS, width), "normal", "float64").argmax(axis=1)
    nn.functional.cross_entropy((x @ torch.tensor(words))[0], torch.tensor(wanted)).backward()
    slopes = [float(theirs.linear2.weight.grad.norm()) for theirs in stack]
    np.testing.assert_allclose(found.sizes, sizes, rtol=1e-10)
    np.testing.assert_allclose(found.gradients, slopes, rtol=1e-8)


def test_pre_ln_grows_about_like_the_root_of_depth_and_its_slopes_shrink() -> None:
    few, many = ([depth.through(layers, draw, norm_first=True) for draw in range(1, 9)] for layers in (6, 24))
    growth = np.mean([np.log(b.sizes[-1] / a.sizes[-1]) for a, b in zip(few, many, strict=True)]) / np.log(4)
    shrinkage = np.mean([np.log(a.gradients[-1] / b.gradients[-1]) for a, b in zip(few, many, strict=True)])
    assert growth == pytest.approx(0.6, abs=0.1)
    assert shrinkage / np.log(4) == pytest.approx(0.6, abs=0.15)
    post = depth.through(48, 1, norm_first=False)
    np.testing.assert_allclose(post.sizes[1:], 1, atol=1e-4)
