"""What depth does to a stack of encoder layers before training: the size of what flows up, and of the
gradients that come down (after Xiong et al. 2020, *On Layer Normalization in the Transformer Architecture*).

Matrices are normal numbers whose variance is 2 / (rows + columns), biases are 0, tokens are normal numbers.
The loss is the cross-entropy of random targets among as many words as a token has numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kernels.arrays import Array, generate
from kernels.blocks import Attended, Fed, Network, Projections, Step, deviation, encoder_layer, layer_norm
from kernels.engines.reference import differentiate
from kernels.mistakes import merge_heads, split_heads
from kernels.scoring.attention import softmax

TOKENS, WIDTH, HEADS, WIDER = 16, 32, 4, 4


@dataclass(frozen=True)
class Layer:
    itself: Projections
    network: Network


@dataclass(frozen=True)
class Depth:
    """Of each of L layers."""

    sizes: Array  # [L + 1]: root mean square of the stream that enters, and of what leaves the last
    gradients: Array  # [L]: length of the gradient of the network's second matrix


def drawn(name: str, seed: int, rows: int, columns: int) -> Array:
    size = (2.0 / (rows + columns)) ** 0.5
    return np.asarray(size * generate(f"depth/{name}", seed, (rows, columns), "normal", "float64"))


def layers_of(count: int, seed: int) -> list[Layer]:
    wide = WIDER * WIDTH
    return [
        Layer(
            Projections(*(drawn(f"{number}/{letter}", seed, WIDTH, WIDTH) for letter in "qkvo")),
            Network(
                drawn(f"{number}/w1", seed, WIDTH, wide),
                np.zeros(wide),
                drawn(f"{number}/w2", seed, wide, WIDTH),
                np.zeros(WIDTH),
            ),
        )
        for number in range(count)
    ]


def through(layers: int, seed: int, *, norm_first: bool) -> Depth:
    """Up through the layers, and down again. A pre-LN stack has one more norm at its end."""
    stack = layers_of(layers, seed)
    x = generate("depth/tokens", seed, (TOKENS, WIDTH), "normal", "float64")
    sizes, walks = [size(x)], []
    for one in stack:
        steps = encoder_layer(x, one.itself, one.network, heads=HEADS, norm_first=norm_first)
        x = steps[-1].out
        walks.append(steps)
        sizes.append(size(x))
    last = layer_norm(x) if norm_first else x
    down = loss_gradient(last, seed)
    if norm_first:
        down = norm_gradient(x, down)
    gradients = []
    for one, steps in zip(reversed(stack), reversed(walks), strict=True):
        down, second = layer_gradient(one, steps, down, norm_first=norm_first)
        gradients.append(float(np.linalg.norm(second)))
    return Depth(np.array(sizes), np.array(gradients[::-1]))


def size(x: Array) -> float:
    return float(np.sqrt(np.square(x).mean()))


def loss_gradient(x: Array, seed: int) -> Array:
    """Of the mean loss of all tokens, with respect to x [n, d]."""
    words = WIDTH**-0.5 * generate("depth/words", seed, (WIDTH, WIDTH), "normal", "float64")
    wanted = generate("depth/wanted", seed, (TOKENS, WIDTH), "normal", "float64").argmax(axis=1)
    chances = softmax(x @ words)
    chances[np.arange(TOKENS), wanted] -= 1.0
    return np.asarray(chances @ words.T / TOKENS)


def norm_gradient(x: Array, down: Array) -> Array:
    """Through a LayerNorm that x [n, d] enters: what is left is across the ones and across the output."""
    out = layer_norm(x)
    along = down.mean(axis=-1, keepdims=True) + out * (down * out).mean(axis=-1, keepdims=True)
    return np.asarray((down - along) / deviation(x))


def layer_gradient(one: Layer, steps: list[Step], down: Array, *, norm_first: bool) -> tuple[Array, Array]:
    """From the gradient [n, d] of what leaves a layer to that of what enters, and to that of w2 [f, d]."""
    second = np.zeros(0)
    for three in (steps[3:], steps[:3]):
        norm = three[0] if norm_first else three[2]
        found = next(step.found for step in three if step.kind == "sub")
        into = down if norm_first else norm_gradient(norm.before, down)
        if isinstance(found, Fed):
            second = found.hidden.T @ into
            back = ((into @ one.network.w2.T) * (found.before > 0)) @ one.network.w1.T
        elif isinstance(found, Attended):
            back = attention_gradient(found, one.itself, into)
        else:
            raise TypeError("a sublayer is attention or a network")
        down = into + (norm_gradient(norm.before, back) if norm_first else back)
    return down, second


def attention_gradient(found: Attended, given: Projections, down: Array) -> Array:
    """Through self-attention without a mask: down [n, d] to the gradient of its input [n, d]."""
    scale = found.q.shape[-1] ** -0.5
    each = [
        differentiate({"weights": weights}, q, k, v, part, scale=scale, softcap=0.0)
        for weights, q, k, v, part in zip(
            found.weights, found.q, found.k, found.v, split_heads(down @ given.o.T, HEADS), strict=True
        )
    ]
    q, k, v = (merge_heads(np.stack([one[f"d{name}"] for one in each])) for name in "qkv")
    return np.asarray(q @ given.q.T + k @ given.k.T + v @ given.v.T)
