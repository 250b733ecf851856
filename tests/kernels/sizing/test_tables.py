"""The tables of models and GPUs, against the figures that the concept pages quote."""

import pytest

from kernels.sizing.gpus import find_gpu, gpus
from kernels.sizing.hf_config import read_config
from kernels.sizing.layers import Attention, Experts, LatentAttention
from kernels.sizing.models import find_model, models, read_model
from kernels.spec import SpecError

# layers, width, query heads, key/value heads, head width, vocabulary, context
SHAPES = {
    "bert-base": (12, 768, 12, 12, 64, 30522, 512),
    "bert-large": (24, 1024, 16, 16, 64, 30522, 512),
    "gpt2": (12, 768, 12, 12, 64, 50257, 1024),
    "gpt2-medium": (24, 1024, 16, 16, 64, 50257, 1024),
    "gpt2-large": (36, 1280, 20, 20, 64, 50257, 1024),
    "gpt2-xl": (48, 1600, 25, 25, 64, 50257, 1024),
    "gpt3": (96, 12288, 96, 96, 128, 50257, 2048),
    "t5-base": (12, 768, 12, 12, 64, 32128, 512),
    "t5-11b": (24, 1024, 128, 128, 128, 32128, 512),
    "llama-7b": (32, 4096, 32, 32, 128, 32000, 2048),
    "llama-65b": (80, 8192, 64, 64, 128, 32000, 2048),
    "llama-2-7b": (32, 4096, 32, 32, 128, 32000, 4096),
    "llama-2-13b": (40, 5120, 40, 40, 128, 32000, 4096),
    "llama-2-70b": (80, 8192, 64, 8, 128, 32000, 4096),
    "llama-3-8b": (32, 4096, 32, 8, 128, 128256, 8192),
    "llama-3-70b": (80, 8192, 64, 8, 128, 128256, 8192),
    "llama-3.1-8b": (32, 4096, 32, 8, 128, 128256, 131072),
    "llama-3.1-70b": (80, 8192, 64, 8, 128, 128256, 131072),
    "llama-3.1-405b": (126, 16384, 128, 8, 128, 128256, 131072),
    "mistral-7b-v0.1": (32, 4096, 32, 8, 128, 32000, 32768),
    "mistral-7b-v0.2": (32, 4096, 32, 8, 128, 32000, 32768),
    "mixtral-8x7b": (32, 4096, 32, 8, 128, 32000, 32768),
    "mixtral-8x22b": (56, 6144, 48, 8, 128, 32768, 65536),
    "falcon-7b": (32, 4544, 71, 1, 64, 65024, 2048),
    "falcon-40b": (60, 8192, 128, 8, 64, 65024, 2048),
    "falcon-180b": (80, 14848, 232, 8, 64, 65024, 2048),
    "qwen2.5-7b": (28, 3584, 28, 4, 128, 152064, 131072),
    "qwen2.5-72b": (80, 8192, 64, 8, 128, 152064, 131072),
    "qwen3-8b": (36, 4096, 32, 8, 128, 151936, 40960),
    "qwen3-32b": (64, 5120, 64, 8, 128, 151936, 40960),
    "qwen3-30b-a3b": (48, 2048, 32, 4, 128, 151936, 40960),
    "qwen3-235b-a22b": (94, 4096, 64, 4, 128, 151936, 40960),
    "qwen3-next-80b-a3b": (48, 2048, 16, 2, 256, 151936, 262144),
    "gemma-2b": (18, 2048, 8, 1, 256, 256000, 8192),
    "gemma-2-9b": (42, 3584, 16, 8, 256, 256000, 8192),
    "gemma-2-27b": (46, 4608, 32, 16, 128, 256000, 8192),
    "gemma-3-4b": (34, 2560, 8, 4, 256, 262144, 131072),
    "gemma-3-27b": (62, 5376, 32, 16, 128, 262144, 131072),
    "gpt-oss-20b": (24, 2880, 64, 8, 64, 201088, 131072),
    "gpt-oss-120b": (36, 2880, 64, 8, 64, 201088, 131072),
    "bloom": (70, 14336, 112, 112, 128, 250880, 2048),
    "mpt-7b": (32, 4096, 32, 32, 128, 50432, 2048),
    "mpt-30b": (48, 7168, 64, 64, 112, 50432, 8192),
    "jamba-v0.1": (32, 4096, 32, 8, 128, 65536, 262144),
}


@pytest.mark.parametrize(("slug", "shape"), SHAPES.items())
def test_shapes(slug, shape):
    model = read_model(slug).model
    mixers = [mixer for layer in model.layers for mixer in layer.mixers if isinstance(mixer, Attention)]
    assert {(m.heads, m.kv_heads, m.head_dim) for m in mixers} == {shape[2:5]}
    assert (len(model.layers), model.hidden, model.vocab, model.context) == (*shape[:2], *shape[5:])


@pytest.mark.parametrize(
    ("slug", "shape"), [("deepseek-v2", (60, 5120, 102400)), ("deepseek-v3", (61, 7168, 129280))]
)
def test_shapes_of_latents(slug, shape):
    model = read_model(slug).model
    assert (len(model.layers), model.hidden, model.vocab, model.context) == (*shape, 163840)
    assert {mixer for layer in model.layers for mixer in layer.mixers} == {
        LatentAttention(128, 512, 64, 128, 128, q_rank=1536)
    }


# What is special about the layers of a model; of the others nothing is.
TRAITS = {
    "bert-base": "bias, bidirectional", "bert-large": "bias, bidirectional",
    "gpt2": "bias", "gpt2-medium": "bias", "gpt2-large": "bias", "gpt2-xl": "bias", "gpt3": "bias",
    "bloom": "bias", "t5-base": "bidirectional, cross", "t5-11b": "bidirectional, cross",
    "mistral-7b-v0.1": "window 4096", "mixtral-8x7b": "2 of 8", "mixtral-8x22b": "2 of 8",
    "qwen2.5-7b": "bias", "qwen2.5-72b": "bias", "qwen3-8b": "norm of q and k",
    "qwen3-32b": "norm of q and k",
    "qwen3-30b-a3b": "8 of 128, norm of q and k", "qwen3-235b-a22b": "8 of 128, norm of q and k",
    "qwen3-next-80b-a3b": "10 of 512, norm of q and k", "gemma-2-9b": "window 4096",
    "gemma-2-27b": "window 4096",
    "gemma-3-4b": "norm of q and k, window 1024", "gemma-3-27b": "norm of q and k, window 1024",
    "gpt-oss-20b": "4 of 32, bias, sinks, window 128", "gpt-oss-120b": "4 of 128, bias, sinks, window 128",
    "deepseek-v2": "6 of 160", "deepseek-v3": "8 of 256", "jamba-v0.1": "2 of 16",
}  # fmt: skip


def traits(slug):
    found = set()
    for layer in read_model(slug).model.layers or read_model(slug).model.encoder:
        if isinstance(layer.mlp, Experts):
            found.add(f"{layer.mlp.active} of {layer.mlp.count}")
        for mixer in layer.mixers:
            if isinstance(mixer, Attention):
                named = {
                    "bidirectional": not mixer.is_causal, "cross": mixer.is_cross, "bias": mixer.qkv_bias,
                    "norm of q and k": mixer.qk_norm, "sinks": mixer.sinks == mixer.heads,
                    f"window {mixer.window}": mixer.window,
                }  # fmt: skip
                found |= {name for name, is_so in named.items() if is_so}
    return ", ".join(sorted(found))


@pytest.mark.parametrize("slug", models())
def test_what_is_special_about_layers(slug):
    assert traits(slug) == TRAITS.get(slug, "")


def test_every_row_is_held_to_figures():
    without_heads = {"deepseek-v2", "deepseek-v3", "mamba-2.8b"}
    assert models().keys() == SHAPES.keys() | without_heads
    assert gpus().keys() == GPUS.keys()


def test_every_row_has_a_source_and_is_understood():
    for slug, model in models().items():
        read = read_model(slug)
        assert len(model.source) > 10, slug
        assert read.is_known, slug
        assert read.unknown == (), slug
        assert read.missing == (), slug
        assert read.model == read_config(model.config).model


def test_names_are_nobody_else_s():
    names = [name for model in models().values() for name in (model.slug, *model.aliases)]
    assert len(names) == len(set(names))
    assert find_model("Jamba").slug == "jamba-v0.1"
    assert find_model("deepseek R1").slug == "deepseek-v3"


@pytest.mark.parametrize("name", ["", "gpt-5", "llama", "x" * 10_000])
def test_a_name_that_is_not_there_is_answered_with_what_is_near(name):
    with pytest.raises(SpecError, match="config"):
        find_model(name)


def test_windows_reach_as_far_as_is_said():
    """ "131K" of Mistral: 32 layers of 4,096 tokens, the most that could pass through them."""
    assert sum(layer.mixers[0].window for layer in read_model("mistral-7b-v0.1").model.layers) == 131_072


# GB, GB/s, TFLOP/s in 16 and 8 bits, KB of shared memory and the most of it, SMs, MB of L2
GPUS = {
    "v100-sxm2-16": (16, 900, 125, None, 128, 96, 80, 6),
    "v100-sxm2-32": (32, 900, 125, None, 128, 96, 80, 6),
    "a100-40": (40, 1555, 312, None, 192, 164, 108, 40),
    "a100-80-sxm": (80, 2039, 312, None, 192, 164, 108, 40),
    "h100-sxm": (80, 3350, 989, 1979, 256, 228, 132, 50),
    "h200": (141, 4800, 989, 1979, 256, 228, 132, 50),
    "b200": (180, 8000, 2250, 4500, 256, 228, 148, 126),
    "rtx-4090": (24, 1008, 165, 330, 128, 100, 128, 72),
    "l4": (24, 300, 121, 242, 128, 100, 58, 48),
}


@pytest.mark.parametrize(("slug", "figures"), GPUS.items())
def test_figures_of_gpus(slug, figures):
    gpu = gpus()[slug]
    assert (
        gpu.memory_gb, gpu.bandwidth_gb_s, gpu.tflops_16bit, gpu.tflops_8bit,
        gpu.shared_kb_per_sm, gpu.max_shared_kb, gpu.sms, gpu.l2_mb,
    ) == figures  # fmt: skip
    assert gpu.memory_bytes == gpu.memory_gb * 10**9
    assert gpu.source
    assert find_gpu(slug.upper()) is gpu
