"""What a layer costs a text of n tokens: the part that grows with n², and the part that grows with n.

Operations are two to a multiply-add, of one sequence in one forward pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import comb

from kernels.sizing.layers import Layer
from kernels.sizing.memory import Workload
from kernels.sizing.roofline import mixer_flops
from kernels.sizing.weights import Matrix, layer_arrays

MLP_WIDTH = 4  # hidden numbers to one of the model, in the layer that formulas are written for


@dataclass(frozen=True)
class LayerCost:
    """Operations: of products of queries and keys and of weights and values; of the projections to queries,
    keys, values and back; of the feed-forward block."""

    pairs: int
    projections: int
    mlp: int

    @property
    def linear(self) -> int:
        """All that grows with n alone."""
        return self.projections + self.mlp

    @property
    def total(self) -> int:
        return self.pairs + self.linear

    @property
    def share(self) -> float:
        """Of the pairs in the whole."""
        return self.pairs / self.total


def textbook_cost(n: int, d: int, *, is_causal: bool = False) -> LayerCost:
    """A layer of width d: 4n²d + 8nd² + 16nd², whatever its heads. Causal: n(n+1)/2 pairs, and no others."""
    pairs = n * (n + 1) // 2 if is_causal else n * n
    return LayerCost(4 * pairs * d, 8 * n * d * d, 2 * 2 * MLP_WIDTH * n * d * d)


def writing_cost(prompt: int, written: int, d: int, *, has_cache: bool) -> LayerCost:
    """A causal layer of width d while ``written`` tokens follow a prompt, a pass for each: of the whole text
    so far or, with a cache, of what is new in it. The last token is written and read by nobody.

    With a cache the passes add up to one over the whole text.
    """
    last = prompt + written - 1
    if has_cache:
        return textbook_cost(last, d, is_causal=True)
    tokens = (prompt + last) * written // 2
    pairs = comb(last + 2, 3) - comb(prompt + 1, 3)  # n(n+1)/2, summed over all lengths
    return LayerCost(4 * pairs * d, 8 * tokens * d * d, 2 * 2 * MLP_WIDTH * tokens * d * d)


def layer_cost(layer: Layer, hidden: int, n: int) -> LayerCost:
    """A layer of a model as it is: its heads, its feed-forward block, pairs that its mask lets through."""
    load = Workload(length=n, q_len=None)
    found = {"attention": 0, "mlp": 0}
    for array in layer_arrays(layer, hidden):
        if isinstance(array, Matrix):
            part = "attention" if array.part == "attention" else "mlp"
            found[part] += 2 * n * array.outputs * array.inputs * array.used
    pairs = sum(mixer_flops(mixer, load) for mixer in layer.mixers)
    return LayerCost(pairs, found["attention"], found["mlp"])


def crossing(one_token: LayerCost, *, is_causal: bool = False) -> float:
    """The length at which pairs cost as much as all the rest, from what a text of one token costs."""
    ratio = one_token.linear / one_token.pairs
    return 2 * ratio - 1 if is_causal else ratio


def score_bytes(n: int, heads: int = 1, item: int = 2) -> int:
    """Of the scores of all pairs, as a program keeps them that keeps them."""
    return heads * n * n * item
