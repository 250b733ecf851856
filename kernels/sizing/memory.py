"""What has to be in memory at once to run a model: weights, cache, states, activations, logits.

Weights, cache and logits are exact. Activations are a model of what is alive in the widest layer while a step
is computed: the residual stream and its normalised copy, and either what attention reads and writes or the
hidden layer of the MLP. What a framework, its allocator and the CUDA context take besides is not in here; say
``overhead_bytes`` to set something aside for them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from kernels.integers import ceil_div
from kernels.sizing.kv_cache import kv_cache, total_bytes
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
from kernels.sizing.storage import SIXTEEN, CacheFormat, WeightFormat, cache_format
from kernels.sizing.weights import weigh

HALF_CACHE = cache_format("float16")
LOGIT_BYTES = 4  # logits are float32 wherever they are sampled from


@dataclass(frozen=True)
class Workload:
    """What is asked of a model: ``batch`` sequences of ``length`` tokens, some of them in the current step.

    ``gpus`` share heads, widths and vocabulary (tensor parallelism). ``all_logits``: of every token of the
    step rather than of the last. ``has_scores``: attention keeps scores and weights of one layer, as it does
    where it is not fused.
    """

    length: int
    batch: int = 1
    q_len: int | None = 1  # tokens of each sequence that the step computes; None: all, as in a prefill
    encoder_len: int | None = None  # tokens that an encoder has read; None: as many
    cache: CacheFormat = HALF_CACHE
    weights: WeightFormat = SIXTEEN
    gpus: int = 1
    all_logits: bool = False
    has_scores: bool = False
    overhead_bytes: int = 0

    @property
    def queries(self) -> int:
        """Tokens of each sequence that the step computes."""
        return self.length if self.q_len is None else min(self.q_len, self.length)

    @property
    def encoded(self) -> int:
        """Tokens of each sequence that an encoder has read, if there is one."""
        return self.length if self.encoder_len is None else self.encoder_len

    @property
    def logit_rows(self) -> int:
        """Tokens whose logits are computed, of all sequences."""
        return self.batch * (self.queries if self.all_logits else min(1, self.queries))

    @property
    def activation_bytes(self) -> int:
        """Of one number: 4 where weights or cache are float32, else 2."""
        return 4 if "float32" in (self.weights.name, self.cache.name) else 2


@dataclass(frozen=True)
class Memory:
    """Bytes of each part, of all GPUs together; ``per_gpu`` is what the fullest of them holds."""

    weights: int
    cache: int
    states: int
    activations: int
    logits: int
    scores: int
    overhead: int
    per_gpu: int

    @property
    def total(self) -> int:
        """The sum of the parts: what one GPU would hold."""
        return (
            self.weights
            + self.cache
            + self.states
            + self.activations
            + self.logits
            + self.scores
            + self.overhead
        )


def memory(model: Model, load: Workload) -> Memory:
    """What running ``load`` on ``model`` keeps in memory."""
    cached = kv_cache(model, load.cache, load.length, load.batch, load.encoded)
    return Memory(
        weights=weight_bytes(model, load.weights),
        cache=cached.bytes,
        states=cached.state_bytes,
        activations=_activations(model, load, 1),
        logits=_logits(model, load),
        scores=_scores(model, load, 1),
        overhead=load.overhead_bytes,
        per_gpu=per_gpu_bytes(model, load),
    )


def per_gpu_bytes(model: Model, load: Workload) -> int:
    """What the fullest of ``load.gpus`` holds: heads are shared out whole, a latent is on every GPU."""
    return sum(per_gpu_parts(model, load).values())


def per_gpu_parts(model: Model, load: Workload) -> dict[str, int]:
    """The same by part, which are called as those of ``Memory``; states are counted to the cache."""
    logits = _logits(model, load)
    mine = ceil_div(logits, load.gpus)
    return {
        "weights": ceil_div(weight_bytes(model, load.weights) + logits, load.gpus) - mine,
        "cache": total_bytes(
            model, load.cache, load.length, load.batch, encoder_len=load.encoded, gpus=load.gpus
        ),
        "activations": _activations(model, load, load.gpus),
        "logits": mine,
        "scores": _scores(model, load, load.gpus),
        "overhead": load.overhead_bytes,
    }


@lru_cache(maxsize=64)
def weight_bytes(model: Model, stored: WeightFormat) -> int:
    """Bytes of all weights; kept, since a search asks for them again and again."""
    return weigh(model, stored).bytes


def _activations(model: Model, load: Workload, gpus: int) -> int:
    tokens = load.batch * max(load.queries, load.encoded if model.encoder else 0)
    return tokens * (2 * model.hidden + ceil_div(_widest(model), gpus)) * load.activation_bytes


@lru_cache(maxsize=64)
def _widest(model: Model) -> int:
    """Numbers to a token in the widest layer, beside the residual stream."""
    return max((_alive(layer) for layer in {*model.layers, *model.encoder}), default=0)


def _alive(layer: Layer) -> int:
    match layer.mlp:
        case Mlp(width=width, is_gated=is_gated):
            hidden = (1 + is_gated) * width
        case Experts(active=active, expert=expert, shared=shared):
            hidden = (1 + expert.is_gated) * (active * expert.width + (shared.width if shared else 0))
        case None:
            hidden = 0
    return max([hidden, *(_mixer_width(mixer) for mixer in layer.mixers)])


def _mixer_width(mixer: Mixer) -> int:
    """What goes into a mixer and comes out of it."""
    match mixer:
        case Attention(heads=heads, kv_heads=kv_heads):
            return (heads + kv_heads) * (mixer.head_dim + mixer.v_head_dim)
        case LatentAttention(heads=heads):
            return heads * 2 * (mixer.nope_dim + mixer.rope_dim + mixer.v_head_dim)
        case Mamba(inner=inner):
            return 3 * inner
        case Mamba2():
            return 3 * mixer.heads * mixer.head_dim + 2 * mixer.groups * mixer.state
        case LinearAttention():
            return 2 * mixer.key_heads * mixer.key_dim + 3 * mixer.value_heads * mixer.value_dim


def _logits(model: Model, load: Workload) -> int:
    if not model.has_head:
        return 0
    return load.logit_rows * model.vocab * LOGIT_BYTES


def _scores(model: Model, load: Workload, gpus: int) -> int:
    """Scores and weights of one layer, for attention that writes them down."""
    heads = max(model.attention_heads, default=0) if load.has_scores else 0
    matrix = ceil_div(heads, gpus) * load.queries * load.length
    return 2 * load.batch * matrix * load.activation_bytes
