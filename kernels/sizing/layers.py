"""What a model is made of, layer by layer: only what decides bytes and operations.

Descriptions alone. What they keep per token is :mod:`kernels.sizing.kv_cache`'s business, what they weigh
:mod:`kernels.sizing.weights`', what they compute :mod:`kernels.sizing.roofline`'s. Widths are numbers of
elements, windows and lengths are tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Attention:
    """Softmax attention: a key and a value for each of ``kv_heads`` and each token that it may still see."""

    heads: int
    kv_heads: int
    head_dim: int
    v_head_dim: int
    window: int | None = None  # tokens that a query sees, itself included; None: all of them
    is_chunked: bool = False  # the window does not slide: it starts anew every `window` tokens
    is_causal: bool = True  # an encoder's attention is not, and keeps nothing
    is_cross: bool = False  # keys and values come from the encoder
    reuses_cache: bool = False  # reads the cache of an earlier layer and keeps none of its own
    qkv_bias: bool = False
    out_bias: bool = False
    has_output_gate: bool = False  # as many outputs again as queries
    qk_norm: int = 0  # numbers in the norms of q and k
    sinks: int = 0  # learned logits, one to a head

    @property
    def kind(self) -> str:
        """In the words that configs use for layer types."""
        if self.is_cross:
            return "cross_attention"
        if not self.is_causal:
            return "bidirectional_attention"
        if self.window is None:
            return "full_attention"
        return "chunked_attention" if self.is_chunked else "sliding_attention"


@dataclass(frozen=True)
class LatentAttention:
    """MLA: one latent of ``kv_rank`` and one rotated key of ``rope_dim`` for each token, for all heads.

    With an index (``index_heads`` queries and one key of ``index_dim``, which is cached too) each query
    attends to the ``index_top`` tokens alone that the index finds for it.
    """

    heads: int
    kv_rank: int
    rope_dim: int
    nope_dim: int
    v_head_dim: int
    q_rank: int | None = None  # None: queries are projected in one step
    has_bias: bool = False
    index_heads: int = 0
    index_dim: int = 0
    index_top: int | None = None
    kind = "mla"


@dataclass(frozen=True)
class Mamba:
    """A selective state space of the first kind: a state of ``inner`` × ``state``, whatever the length."""

    inner: int
    state: int
    kernel: int
    dt_rank: int
    conv_bias: bool = True
    proj_bias: bool = False
    has_inner_norms: bool = False  # Jamba norms dt, B and C
    kind = "mamba"


@dataclass(frozen=True)
class Mamba2:
    """Its dual form: ``heads`` states of ``head_dim`` × ``state``; B and C shared by ``groups`` of heads."""

    heads: int
    head_dim: int
    groups: int
    state: int
    kernel: int
    conv_bias: bool = True
    proj_bias: bool = False
    kind = "mamba2"


@dataclass(frozen=True)
class LinearAttention:
    """Attention without a softmax: ``value_heads`` states of ``key_dim`` × ``value_dim``.

    ``kernel`` is the width of a short convolution over q, k and v (0: none), as the delta-rule layers have.
    """

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    kernel: int = 0
    kind = "linear_attention"


Mixer = Attention | LatentAttention | Mamba | Mamba2 | LinearAttention


@dataclass(frozen=True)
class Mlp:
    """Two matrices, or three where a gate multiplies."""

    width: int
    is_gated: bool = True
    has_bias: bool = False


@dataclass(frozen=True)
class Experts:
    """``count`` MLPs of which each token uses ``active``, beside ``shared`` ones that every token uses."""

    count: int
    active: int
    expert: Mlp
    shared: Mlp | None = None
    router_bias: bool = False
    has_shared_gate: bool = False


@dataclass(frozen=True)
class Layer:
    """Mixers (two where a decoder also looks at an encoder), then an MLP, with their norms."""

    mixers: tuple[Mixer, ...]
    mlp: Mlp | Experts | None
    norms: int = 0  # numbers in the layer's norms


@dataclass(frozen=True)
class Model:
    """All of it. ``extras`` are arrays that no layer owns: name and number of elements."""

    hidden: int
    vocab: int
    layers: tuple[Layer, ...]
    encoder: tuple[Layer, ...] = ()
    is_tied: bool = False  # the head is the embedding once more
    has_head: bool = True
    embedding_dim: int = 0  # where it differs from `hidden`
    extras: tuple[tuple[str, int], ...] = ()
    context: int | None = None  # tokens that the model was made for

    def with_mixers(self, change: Callable[[Mixer], Mixer]) -> Model:
        """The same model with other mixers in its layers (those of an encoder stay)."""
        layers = (replace(layer, mixers=tuple(map(change, layer.mixers))) for layer in self.layers)
        return replace(self, layers=tuple(layers))

    @property
    def attention_heads(self) -> tuple[int, ...]:
        """The numbers of query heads that occur."""
        found = {
            mixer.heads
            for layer in (*self.layers, *self.encoder)
            for mixer in layer.mixers
            if isinstance(mixer, Attention | LatentAttention)
        }
        return tuple(sorted(found))
