"""Numbers of the page on shared keys and values."""

from concepts.facts import fact
from concepts.figures.sharing import FIGURES, GIB, HEADS, KIB, cached, largest, outputs
from kernels.sizing.layers import Attention, LatentAttention
from kernels.sizing.models import read_model

GROUPS = FIGURES[0]
LENGTH = 4096


def _latent(slug: str) -> LatentAttention:
    mixer = read_model(slug).model.layers[0].mixers[0]
    if not isinstance(mixer, LatentAttention):
        raise TypeError(f"{slug} has no latents")
    return mixer


V2 = _latent("deepseek-v2")


@fact("sharing-mha", ",.0f")
def mha() -> float:
    return cached("llama-2-70b").mha / KIB


@fact("sharing-gqa", ",.0f")
def gqa() -> float:
    return cached("llama-2-70b").mine / KIB


@fact("sharing-mqa", ",.0f")
def mqa() -> float:
    return cached("llama-2-70b").mqa / KIB


@fact("sharing-mha-all", ".0f")
def mha_all() -> float:
    return cached("llama-2-70b").mha * LENGTH / GIB


@fact("sharing-gqa-all", ".2f")
def gqa_all() -> float:
    return cached("llama-2-70b").mine * LENGTH / GIB


@fact("sharing-error", ".2f")
def error() -> float:
    """The largest in an output when two groups are tiled."""
    return max(largest(outputs(2, "tiled") - outputs(2)))


@fact("sharing-pooling-groups", ".2f")
def pooling_to_four() -> float:
    return max(largest(outputs(4) - outputs(HEADS)))


@fact("sharing-pooling-one", ".2f")
def pooling_to_one() -> float:
    return max(largest(outputs(1) - outputs(HEADS)))


@fact("sharing-falcon-heads", "d")
def falcon_heads() -> int:
    return cached("falcon-180b").heads


@fact("sharing-falcon-kv", "d")
def falcon_kv() -> int:
    return cached("falcon-180b").kv_heads


@fact("sharing-falcon-size", ".0f")
def falcon_size() -> float:
    return cached("falcon-180b").mine / KIB


@fact("sharing-falcon-mqa", ".0f")
def falcon_mqa() -> float:
    return cached("falcon-180b").mqa / KIB


@fact("sharing-latent", "d")
def latent() -> int:
    return V2.kv_rank


@fact("sharing-rope", "d")
def rope() -> int:
    return V2.rope_dim


@fact("sharing-latent-all", "d")
def latent_all() -> int:
    return V2.kv_rank + V2.rope_dim


@fact("sharing-expanded", ",")
def expanded() -> int:
    """Numbers of a token in one layer, if its keys and values were kept."""
    return V2.heads * (V2.nope_dim + V2.rope_dim + V2.v_head_dim)


@fact("sharing-times", ".0f")
def times() -> float:
    return float(expanded() / latent_all())


@fact("sharing-equal", ".2f")
def equal() -> float:
    """Heads of keys and values, 128 wide, that take as much."""
    return float(latent_all() / (2 * V2.v_head_dim))


@fact("sharing-llama-7b", ".0f")
def llama_7b() -> float:
    return cached("llama-7b").mine / KIB


@fact("sharing-usual", "d")
def usual_heads() -> int:
    """Heads of keys and values that models of several sizes have in common."""
    slugs = ("mistral-7b-v0.1", "llama-3-8b", "llama-3-70b", "llama-3.1-405b")
    mixers = [mixer for slug in slugs for layer in read_model(slug).model.layers for mixer in layer.mixers]
    [found] = {mixer.kv_heads for mixer in mixers if isinstance(mixer, Attention)}
    return found
