"""What is in memory at once, against figures worked out by hand."""

from dataclasses import replace

import pytest

from kernels.sizing.hf_config import read_config
from kernels.sizing.memory import Workload, memory, per_gpu_bytes, per_gpu_parts
from kernels.sizing.models import read_model
from kernels.sizing.storage import cache_format, weight_format

GIB = 2**30
LLAMA_8B = read_model("llama-3-8b").model


def test_llama_3_8b_at_4096_tokens():
    """Often said to be "16 + .5 = 16.5 GB": 14.96 + .5 = 15.46 GiB, which is 16.6 GB."""
    needed = memory(LLAMA_8B, Workload(4096))
    assert needed.weights == 8_030_261_248 * 2
    assert round(needed.weights / GIB, 2) == 14.96
    assert needed.cache == GIB // 2
    assert round((needed.weights + needed.cache) / GIB, 2) == 15.46
    assert round(needed.total / 1e9, 1) == 16.6


def test_logits_of_every_token_of_a_prompt():
    prompt = Workload(4096, q_len=None)
    assert memory(LLAMA_8B, prompt).logits == 128256 * 4
    assert memory(LLAMA_8B, replace(prompt, all_logits=True)).logits == 4096 * 128256 * 4
    assert round(4096 * 128256 * 4 / GIB, 2) == 1.96


def test_scores_of_attention_that_is_not_fused():
    """32 MiB to a head at 4,096 tokens in 16 bits, for scores and again for weights."""
    prompt = Workload(4096, q_len=None, has_scores=True)
    assert memory(LLAMA_8B, prompt).scores == 32 * 2 * 32 * 2**20
    assert memory(LLAMA_8B, Workload(4096, q_len=None)).scores == 0


def test_activations_of_the_widest_layer():
    """A gated MLP of 14,336 is wider than 32 + 8 heads of keys and values of 128: two of it are alive."""
    per_token = (2 * 4096 + 2 * 14336) * 2
    assert memory(LLAMA_8B, Workload(4096)).activations == per_token
    assert memory(LLAMA_8B, Workload(4096, batch=3, q_len=100)).activations == 300 * per_token
    assert memory(LLAMA_8B, Workload(50, q_len=100)).activations == 50 * per_token
    assert memory(LLAMA_8B, Workload(4096, cache=cache_format("float32"))).activations == 2 * per_token


def test_states_and_encoders_are_counted():
    jamba = memory(read_model("jamba-v0.1").model, Workload(1000, batch=2))
    assert jamba.states == 2 * 28 * 8192 * 20 * 2
    t5 = memory(read_model("t5-base").model, Workload(1, encoder_len=512))
    assert t5.cache == 36 * 2**10 * 513
    assert t5.activations == 512 * (2 * 768 + 4 * 768) * 2  # the encoder's step is the larger


def test_the_total_is_the_sum_and_one_gpu_holds_it():
    load = Workload(1000, batch=4, q_len=10, all_logits=True, has_scores=True, overhead_bytes=123)
    needed = memory(LLAMA_8B, load)
    parts = (needed.weights, needed.cache, needed.states, needed.activations, needed.logits, needed.scores)
    assert needed.total == sum(parts) + 123 == needed.per_gpu


def test_gpus_share_heads_widths_and_vocabulary():
    load = Workload(1000, batch=4)
    alone, shared = memory(LLAMA_8B, load), memory(LLAMA_8B, replace(load, gpus=4))
    assert shared.total == alone.total
    residual = 4 * 2 * 4096 * 2  # is on each
    assert shared.per_gpu == (alone.total - residual) // 4 + residual
    more = per_gpu_bytes(LLAMA_8B, replace(load, gpus=16))  # of 8 key/value heads each has one
    assert more - 4 * 1000 * 32 * 2 * 128 * 2 < alone.total // 16


@pytest.mark.parametrize("dtype", ["int4", "fp8_e4m3", "mxfp4"])
def test_quantised_weights_take_less(dtype):
    stored = replace(Workload(4096), weights=weight_format(dtype))
    assert memory(LLAMA_8B, stored).weights < memory(LLAMA_8B, Workload(4096)).weights * 0.6


def test_a_model_with_nothing_but_a_cache_can_be_sized():
    model = read_config({"num_hidden_layers": 4, "num_attention_heads": 4, "head_dim": 16}).model
    assert memory(model, Workload(10)).cache == 4 * 2 * 4 * 16 * 2 * 10


@pytest.mark.parametrize("gpus", [1, 3, 8])
def test_the_parts_of_a_gpu_are_those_of_all_by_their_number(gpus):
    load = Workload(1000, batch=3, q_len=None, all_logits=True, has_scores=True, gpus=gpus, overhead_bytes=77)
    parts, whole = per_gpu_parts(LLAMA_8B, load), memory(LLAMA_8B, load)
    assert sum(parts.values()) == per_gpu_bytes(LLAMA_8B, load) == whole.per_gpu
    assert parts["overhead"] == 77
    assert abs(parts["weights"] - whole.weights / gpus) <= 1
    assert abs(parts["logits"] - whole.logits / gpus) <= 1
    if gpus != 3:  # of whose heads one GPU has more
        assert (parts["cache"], parts["scores"]) == (whole.cache / gpus, whole.scores / gpus)
