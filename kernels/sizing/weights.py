"""What a model's parameters are and what they weigh, matrix by matrix.

Every array is listed: its part of the model, its shape, how many like it are stored and how many of them one
token uses. Parameters, bytes in any format and multiply-adds per token all follow from the list.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from kernels.sizing.layers import (
    Attention,
    Experts,
    LatentAttention,
    Layer,
    LinearAttention,
    Mamba,
    Mamba2,
    Mixer,
    Mlp,
    Model,
)
from kernels.sizing.storage import SIXTEEN, WeightFormat


@dataclass(frozen=True)
class Matrix:
    """``copies`` matrices of ``outputs`` × ``inputs``, ``used`` of which multiply each token."""

    part: str
    outputs: int
    inputs: int
    copies: int = 1
    used: int = 1
    of_encoder: bool = False  # multiplies what an encoder made, once, and no token of the decoder

    @property
    def numel(self) -> int:
        """Numbers in all copies."""
        return self.outputs * self.inputs * self.copies


@dataclass(frozen=True)
class Vector:
    """``copies`` times ``size`` numbers that are never quantised: norms, biases, convolutions, decay rates;
    each token meets ``used`` of the copies."""

    part: str
    size: int
    copies: int = 1
    used: int = 1

    @property
    def numel(self) -> int:
        """Numbers in all copies."""
        return self.size * self.copies


Array = Matrix | Vector


@dataclass(frozen=True)
class Weights:
    """What the parameters amount to."""

    params: int
    active_params: int  # without the experts that a token does not use
    multiplied_params: int  # of these, what a token is computed with: not the table that it is looked up in
    bytes: int
    parts: dict[str, int]  # bytes of each part
    part_params: dict[str, int]


def weigh(model: Model, stored: WeightFormat = SIXTEEN) -> Weights:
    """Parameters and bytes of ``model`` when its matrices are kept as ``stored``."""
    params: Counter[str] = Counter()
    size: Counter[str] = Counter()
    active = multiplied = 0
    for array, times in arrays(model).items():
        params[array.part] += array.numel * times
        size[array.part] += array_bytes(array, stored) * times
        active += _active(array) * times
        multiplied += _multiplied(array) * times
    return Weights(params.total(), active, multiplied, size.total(), _nonzero(size), _nonzero(params))


def array_bytes(array: Array, stored: WeightFormat) -> int:
    """Bytes of one entry of the list, all copies."""
    return array.copies * copy_bytes(array, stored)


def copy_bytes(array: Array, stored: WeightFormat) -> int:
    """Bytes of one copy."""
    if isinstance(array, Vector):
        return array.size * max(16, stored.bits) // 8
    kept = stored if stored.keeps(array.part) else SIXTEEN
    return kept.matrix(array.outputs, array.inputs)


def arrays(model: Model) -> Counter[Array]:
    """Every array of the model, and how often one like it occurs."""
    found: Counter[Array] = Counter()
    for layer, times in Counter((*model.layers, *model.encoder)).items():
        for array in layer_arrays(layer, model.hidden):
            found[array] += times
    width = model.embedding_dim or model.hidden
    found[Matrix("embedding", width, model.vocab, used=0)] += 1
    if width != model.hidden:
        found[Matrix("embedding", model.hidden, width)] += 2  # into the layers and out of them
    if model.has_head:
        found[Matrix("head", model.vocab, width, copies=0 if model.is_tied else 1)] += 1
    for name, size in model.extras:
        found[Vector(name, size)] += 1
    return Counter({array: times for array, times in found.items() if array.numel or _is_used(array)})


def layer_arrays(layer: Layer, hidden: int) -> Iterator[Array]:
    """The arrays of one layer."""
    for mixer in layer.mixers:
        yield from mixer_arrays(mixer, hidden)
    match layer.mlp:
        case Mlp():
            yield from _mlp(layer.mlp, hidden, "mlp")
        case Experts():
            yield from _experts(layer.mlp, hidden)
    yield Vector("norms", layer.norms)


def mixer_arrays(mixer: Mixer, hidden: int) -> Iterator[Array]:
    """The arrays of one mixer."""
    match mixer:
        case Attention():
            return _attention(mixer, hidden)
        case LatentAttention():
            return _latent(mixer, hidden)
        case Mamba():
            return _mamba(mixer, hidden)
        case Mamba2():
            return _mamba2(mixer, hidden)
        case LinearAttention():
            return _linear(mixer, hidden) if mixer.kernel == 0 else _delta(mixer, hidden)


def _attention(a: Attention, hidden: int) -> Iterator[Array]:
    q, k, v = a.heads * a.head_dim, a.kv_heads * a.head_dim, a.kv_heads * a.v_head_dim
    if a.has_output_gate:
        q *= 2
    if a.reuses_cache:
        k = v = 0
    # One by one: a quantised matrix has its scales to itself.
    yield Matrix("attention", q, hidden)
    yield from (Matrix("attention", width, hidden, of_encoder=a.is_cross) for width in (k, v))
    yield Matrix("attention", hidden, a.heads * a.v_head_dim)
    biases = (q + k + v if a.qkv_bias else 0) + (hidden if a.out_bias else 0)
    yield Vector("biases", biases)
    yield Vector("norms", a.qk_norm)
    yield Vector("sinks", a.sinks)


def _latent(a: LatentAttention, hidden: int) -> Iterator[Array]:
    queries = a.heads * (a.nope_dim + a.rope_dim)
    if a.q_rank is None:
        yield Matrix("attention", queries, hidden)
    else:
        yield Matrix("attention", a.q_rank, hidden)
        yield Matrix("attention", queries, a.q_rank)
        yield Vector("norms", a.q_rank)
    yield Matrix("attention", a.kv_rank + a.rope_dim, hidden)
    yield Matrix("attention", a.heads * (a.nope_dim + a.v_head_dim), a.kv_rank)
    yield Matrix("attention", hidden, a.heads * a.v_head_dim)
    yield Vector("norms", a.kv_rank)
    yield Matrix("attention", a.index_heads * a.index_dim, a.q_rank or hidden)
    yield Matrix("attention", a.index_dim, hidden)
    yield Matrix("attention", a.index_heads, hidden)
    yield Vector("norms", 2 * a.index_dim)
    biases = (a.q_rank or 0) + a.kv_rank + a.rope_dim + hidden
    yield Vector("biases", biases if a.has_bias else 0)


def _mamba(m: Mamba, hidden: int) -> Iterator[Array]:
    yield Matrix("state", 2 * m.inner, hidden)
    yield Matrix("state", m.dt_rank + 2 * m.state, m.inner)
    yield Matrix("state", m.inner, m.dt_rank)
    yield Matrix("state", hidden, m.inner)
    # The decay of each state, the skip, the bias of dt, the convolution.
    yield Vector("state", m.inner * (m.state + 2 + m.kernel + m.conv_bias))
    yield Vector("biases", (2 * m.inner + hidden) if m.proj_bias else 0)
    yield Vector("norms", (m.dt_rank + 2 * m.state) if m.has_inner_norms else 0)


def _mamba2(m: Mamba2, hidden: int) -> Iterator[Array]:
    inner, convolved = m.heads * m.head_dim, m.heads * m.head_dim + 2 * m.groups * m.state
    yield Matrix("state", inner + convolved + m.heads, hidden)
    yield Matrix("state", hidden, inner)
    yield Vector("state", 3 * m.heads + convolved * (m.kernel + m.conv_bias))
    yield Vector("biases", (inner + convolved + m.heads + hidden) if m.proj_bias else 0)
    yield Vector("norms", inner)


def _linear(a: LinearAttention, hidden: int) -> Iterator[Array]:
    """Lightning attention: q, k, v, a gate of the output and its norm."""
    values = a.value_heads * a.value_dim
    yield Matrix("attention", 2 * a.key_heads * a.key_dim + values, hidden)
    yield Matrix("attention", values, hidden)
    yield Matrix("attention", hidden, values)
    yield Vector("norms", values)


def _delta(a: LinearAttention, hidden: int) -> Iterator[Array]:
    """Gated delta rule: q, k, v, a gate z; the step β and the decay α of each value head; a convolution."""
    keys, values = a.key_heads * a.key_dim, a.value_heads * a.value_dim
    yield Matrix("attention", 2 * keys + 2 * values, hidden)
    yield Matrix("attention", 2 * a.value_heads, hidden)
    yield Matrix("attention", hidden, values)
    yield Vector("attention", (2 * keys + values) * a.kernel + 2 * a.value_heads)
    yield Vector("norms", a.value_dim)


def _mlp(mlp: Mlp, hidden: int, part: str, copies: int = 1, used: int = 1) -> Iterator[Array]:
    matrices = 1 + mlp.is_gated
    for _ in range(matrices):
        yield Matrix(part, mlp.width, hidden, copies, used)
    yield Matrix(part, hidden, mlp.width, copies, used)
    yield Vector("biases", matrices * mlp.width + hidden if mlp.has_bias else 0, copies, used)


def _experts(experts: Experts, hidden: int) -> Iterator[Array]:
    yield from _mlp(experts.expert, hidden, "experts", experts.count, experts.active)
    if experts.shared is not None:
        yield from _mlp(experts.shared, hidden, "mlp")
    yield Matrix("router", experts.count, hidden)
    yield Matrix("router", 1 if experts.has_shared_gate else 0, hidden)
    yield Vector("biases", experts.count if experts.router_bias else 0)


def _active(array: Array) -> int:
    """Parameters that one token meets; of what there are several copies, as many as it uses."""
    return array.numel // array.copies * array.used if array.copies > 1 else array.numel


def _multiplied(array: Array) -> int:
    """Parameters that one token is computed with: the head counts even where it is the embedding once more,
    and rows that are looked up do not."""
    if isinstance(array, Matrix):
        return array.outputs * array.inputs * array.used
    return 0 if array.part == "positions" else array.size * array.used


def _is_used(array: Array) -> bool:
    return isinstance(array, Matrix) and array.used * array.outputs * array.inputs > 0


def _nonzero(counts: Counter[str]) -> dict[str, int]:
    return {name: count for name, count in counts.items() if count}
