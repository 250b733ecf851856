"""Figures about models and GPUs that papers, model cards and articles print; where an article is wrong, what
is right."""

import re
from collections import Counter
from dataclasses import replace

import pytest

from kernels.sizing.gpus import find_gpu, gpus
from kernels.sizing.hf_config import read_config
from kernels.sizing.kv_cache import kv_cache
from kernels.sizing.layers import Attention, LinearAttention, Mamba
from kernels.sizing.memory import Workload
from kernels.sizing.models import models, read_model
from kernels.sizing.roofline import bound, decode, flops, prefill, traffic_of
from kernels.sizing.storage import cache_format
from kernels.sizing.training import gpu_hours, training_bytes, training_flops
from kernels.sizing.weights import weigh

KIB, MIB, GIB = 2**10, 2**20, 2**30

# -- caches, from the fields that decide them and no name ----------------------------------------------------


def fields(layers, heads, kv_heads, head_dim, **more):
    return {
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        **more,
    }


ALTERNATING = ["sliding_attention", "full_attention"]
FALCON = {"multi_query": True, "new_decoder_architecture": True}
CACHES = {  # fields, tokens, KiB of a token in every layer, bytes of all
    "Llama-2-70B, if every head had its own keys": (fields(80, 64, 64, 128), 4096, 2560, 10 * GIB),
    "Llama-2-70B as it is": (fields(80, 64, 8, 128), 4096, 320, 1_342_177_280),
    "Llama-2-70B, if all heads shared one": (fields(80, 64, 1, 128), 4096, 40, 160 * MIB),
    "Llama-3-8B": (fields(32, 32, 8, 128), 4096, 128, 536_870_912),
    "Llama-3-70B": (fields(80, 64, 8, 128), 131_072, 320, 40 * GIB),
    "Mistral-7B with its window": (fields(32, 32, 8, 128, sliding_window=4096), 32_768, 128, 512 * MIB),
    "Mistral-7B without": (fields(32, 32, 8, 128, sliding_window=None), 32_768, 128, 4 * GIB),
    "Falcon-7B": (
        {"n_layer": 32, "n_head": 71, "hidden_size": 4544, "multi_query": True}, 2048, 8, 16 * MIB,
    ),
    "Falcon-180B": (
        {"n_layer": 80, "n_head": 232, "hidden_size": 14848, "n_head_kv": 8, **FALCON}, 2048, 160, 320 * MIB,
    ),
    "Gemma-2-9B": (
        fields(42, 16, 8, 256, sliding_window=4096, layer_types=ALTERNATING * 21), 8192, 336, 2_113_929_216,
    ),
    "Gemma-2-27B": (
        fields(46, 32, 16, 128, sliding_window=4096, layer_types=ALTERNATING * 23), 8192, 368, 2_315_255_808,
    ),
    "Gemma-3-4B": (
        fields(34, 8, 4, 256, sliding_window=1024, sliding_window_pattern=6), 131_072, 136, 2_805_989_376,
    ),
    "Gemma-3-27B": (
        fields(62, 32, 16, 128, sliding_window=1024, sliding_window_pattern=6), 131_072, 496, 11_173_625_856,
    ),
    "DeepSeek-V3": (
        {"num_hidden_layers": 61, "kv_lora_rank": 512, "qk_rope_head_dim": 64}, 1000, 68.625, 70_272_000,
    ),
    "gpt-oss-20b": (
        fields(24, 64, 8, 64, sliding_window=128, layer_types=ALTERNATING * 12), 131_072, 48, 3_224_371_200,
    ),
    "gpt-oss-120b": (
        fields(36, 64, 8, 64, sliding_window=128, layer_types=ALTERNATING * 18), 131_072, 72, 4_836_556_800,
    ),
    "Qwen3-8B": (fields(36, 32, 8, 128), 40_960, 144, 6_039_797_760),
    "Qwen3-32B": (fields(64, 64, 8, 128), 40_960, 256, 10 * GIB),
    "Qwen3-30B-A3B": (fields(48, 32, 4, 128), 40_960, 96, 4_026_531_840),
    "Qwen3-235B-A22B": (fields(94, 64, 4, 128), 40_960, 188, 7_885_291_520),
    "Jamba": (
        fields(32, 32, 8, 128, hidden_size=4096, attn_layer_period=8, attn_layer_offset=4, mamba_d_state=16,
               mamba_d_conv=4, mamba_expand=2), 262_144, 16, 4 * GIB,
    ),
    "T5-base": (
        {"num_layers": 12, "num_decoder_layers": 12, "num_heads": 12, "d_kv": 64, "d_model": 768,
         "is_encoder_decoder": True}, 512, 36, 18 * MIB,
    ),
    "GPT-2": ({"n_layer": 12, "n_head": 12, "n_embd": 768}, 1024, 36, 36 * MIB),
}  # fmt: skip


@pytest.mark.parametrize(("config", "tokens", "kib", "size"), CACHES.values(), ids=CACHES)
def test_a_cache_to_the_byte_from_its_fields_alone(config, tokens, kib, size):
    cached = kv_cache(read_config(config).model, cache_format("float16"), tokens)
    assert cached.bytes_per_token == kib * KIB
    assert cached.bytes == size


@pytest.mark.parametrize(
    ("slug", "tokens", "printed"),
    [
        ("llama-3-70b", 4096, "1.25"), ("llama-3-70b", 32_768, "10.00"), ("llama-3-70b", 131_072, "40.00"),
        ("llama-3-8b", 4096, "0.50"), ("gemma-3-27b", 131_072, "10.41"), ("jamba-v0.1", 262_144, "4.00"),
    ],
)  # fmt: skip
def test_gib_of_caches_as_they_are_printed(slug, tokens, printed):
    cached = kv_cache(read_model(slug).model, cache_format("float16"), tokens)
    assert f"{cached.bytes / GIB:.2f}" == printed


# -- layers --------------------------------------------------------------------------------------------------


def kinds(slug):
    return Counter(mixer.kind for layer in read_model(slug).model.layers for mixer in layer.mixers)


@pytest.mark.parametrize(
    ("slug", "few", "many", "ratio"),
    [
        ("jamba-v0.1", "full_attention", "mamba", 7),
        ("qwen3-next-80b-a3b", "full_attention", "linear_attention", 3),
        ("gemma-2-9b", "full_attention", "sliding_attention", 1),
        ("gpt-oss-120b", "full_attention", "sliding_attention", 1),
    ],
)
def test_layers_of_two_kinds_in_the_ratio_that_is_printed(slug, few, many, ratio):
    found = kinds(slug)
    assert set(found) == {few, many}
    assert found[many] == ratio * found[few]


def test_gemma_3_has_five_layers_with_a_window_to_each_without():
    found = kinds("gemma-3-27b")
    assert (
        found["sliding_attention"] // found["full_attention"] == 5
    )  # 52 and 10: the last five have no full one
    assert found == {"sliding_attention": 52, "full_attention": 10}


@pytest.mark.parametrize(
    ("slug", "window"),
    [
        ("mistral-7b-v0.1", 4096), ("gemma-2-9b", 4096), ("gemma-2-27b", 4096), ("gemma-3-4b", 1024),
        ("gemma-3-27b", 1024), ("gpt-oss-20b", 128), ("gpt-oss-120b", 128), ("mistral-7b-v0.2", None),
        ("mixtral-8x7b", None),
    ],
)  # fmt: skip
def test_windows(slug, window):
    found = {mixer.window for layer in read_model(slug).model.layers for mixer in layer.mixers}
    assert found - {None} == ({window} if window else set())


@pytest.mark.parametrize("slug", ["t5-base", "t5-11b"])
def test_an_encoder_has_as_many_layers_as_its_decoder(slug):
    model = read_model(slug).model
    assert len(model.encoder) == len(model.layers) == {"t5-base": 12, "t5-11b": 24}[slug]
    assert models()[slug].config["relative_attention_num_buckets"] == 32


@pytest.mark.parametrize(
    ("slug", "kv_heads"),
    [
        ("llama-7b", 32),  # said to be multi-query attention, and is not
        ("llama-2-7b", 32), ("llama-2-13b", 40), ("llama-2-70b", 8),  # grouped in the largest alone
        ("falcon-7b", 1), ("gemma-2b", 1),  # multi-query from the start
        ("falcon-180b", 8),  # said to be multi-query attention, and is not
        ("llama-3-8b", 8), ("llama-3-70b", 8), ("mistral-7b-v0.1", 8),
    ],
)  # fmt: skip
def test_key_value_heads_of_models_that_are_often_got_wrong(slug, kv_heads):
    found = [mixer for layer in read_model(slug).model.layers for mixer in layer.mixers]
    assert {mixer.kv_heads for mixer in found} == {kv_heads}


def test_heads_share_the_width_of_the_model():
    """512 / 8 = 64 in the Transformer of 2017, 12,288 / 96 = 128 in GPT-3."""
    base = {"hidden_size": 512, "num_attention_heads": 8, "num_hidden_layers": 6}
    assert {layer.mixers[0].head_dim for layer in read_config(base).model.layers} == {64}
    attention = read_model("gpt3").model.layers[0].mixers[0]
    assert attention.heads == 96
    assert attention.head_dim == 128
    assert attention.heads * attention.head_dim == read_model("gpt3").model.hidden == 12_288


def test_states_of_jamba_and_of_qwen3_next():
    mamba = next(
        m for layer in read_model("jamba-v0.1").model.layers for m in layer.mixers if m.kind == "mamba"
    )
    assert isinstance(mamba, Mamba)
    assert mamba.state == 16
    mixers = [m for layer in read_model("qwen3-next-80b-a3b").model.layers for m in layer.mixers]
    assert sum(isinstance(m, LinearAttention) for m in mixers) == 36
    assert sum(isinstance(m, Attention) for m in mixers) == 12


# -- what the table says of positions, scales and caps: read by people, and by what computes attention -------

ROTARY_BASES = {
    1e4: "llama-7b llama-65b llama-2-7b llama-2-13b llama-2-70b mistral-7b-v0.1 falcon-7b falcon-40b "
    "falcon-180b gemma-2-9b gemma-2-27b deepseek-v2 deepseek-v3",
    5e5: "llama-3-8b llama-3-70b llama-3.1-8b llama-3.1-70b llama-3.1-405b",
    1e6: "mistral-7b-v0.2 mixtral-8x7b mixtral-8x22b qwen2.5-7b qwen2.5-72b qwen3-8b qwen3-32b "
    "qwen3-30b-a3b qwen3-235b-a22b gemma-3-4b gemma-3-27b",
    1.5e5: "gpt-oss-20b gpt-oss-120b",
    None: "bert-base bert-large gpt2 gpt2-medium gpt2-large gpt2-xl gpt3 t5-base t5-11b bloom mpt-7b mpt-30b "
    "jamba-v0.1",
}


@pytest.mark.parametrize(
    ("slug", "theta"), [(slug, theta) for theta, slugs in ROTARY_BASES.items() for slug in slugs.split()]
)
def test_the_base_of_rotary_positions(slug, theta):
    assert models()[slug].config.get("rope_theta") == theta


@pytest.mark.parametrize(
    ("slug", "said"),
    [
        ("gemma-2-9b", {"query_pre_attn_scalar": 256}),
        ("gemma-2-9b", {"attn_logit_softcapping": 50, "final_logit_softcapping": 30}),
        ("gemma-2-27b", {"query_pre_attn_scalar": 144}),
        ("gemma-2-27b", {"attn_logit_softcapping": 50, "final_logit_softcapping": 30}),
        ("gemma-3-4b", {"rope_local_base_freq": 10_000, "attn_logit_softcapping": None}),
        ("gemma-3-27b", {"query_pre_attn_scalar": 168, "attn_logit_softcapping": None}),
        ("mpt-7b", {"attn_config": {"alibi": True, "alibi_bias_max": 8, "attn_type": "multihead_attention"}}),
    ],
)
def test_scales_caps_and_biases(slug, said):
    assert {name: models()[slug].config.get(name) for name in said} == said


@pytest.mark.parametrize(
    ("slug", "said"),
    [
        ("llama-3.1-405b", {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4,
                            "original_max_position_embeddings": 8192}),
        ("deepseek-v2", {"rope_type": "yarn", "factor": 40, "original_max_position_embeddings": 4096}),
        ("deepseek-v3", {"rope_type": "yarn", "factor": 40, "original_max_position_embeddings": 4096}),
        ("gpt-oss-20b", {"rope_type": "yarn", "factor": 32, "original_max_position_embeddings": 4096}),
        ("gpt-oss-120b", {"rope_type": "yarn", "factor": 32, "original_max_position_embeddings": 4096}),
    ],
)  # fmt: skip
def test_how_positions_are_stretched(slug, said):
    config = models()[slug].config
    assert {name: config["rope_scaling"].get(name) for name in said} == said
    if said["rope_type"] == "yarn":  # to the context that is printed, or a little beyond it
        reach = said["factor"] * said["original_max_position_embeddings"]
        assert reach == config["max_position_embeddings"]


# -- parameters ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("slug", "printed"),
    [
        # Without the embedding, in which a token is looked up: as their authors count.
        ("gpt-oss-20b", "3.61"), ("gpt-oss-120b", "5.13"),  # arXiv:2508.10925, table 1
        ("deepseek-v3", "36.6"),  # README_WEIGHTS.md beside the weights; rounded, the 37B of its title
        ("deepseek-v2", "21"),
    ],
)  # fmt: skip
def test_what_a_token_is_multiplied_with(slug, printed):
    digits = len(printed.partition(".")[2])
    assert f"{weigh(read_model(slug).model).multiplied_params / 1e9:.{digits}f}" == printed


@pytest.mark.parametrize(
    ("slug", "printed"), [("mixtral-8x7b", "12.9"), ("qwen3-235b-a22b", "22"), ("jamba-v0.1", "12")]
)
def test_what_a_token_meets_its_embedding_included(slug, printed):
    digits = len(printed.partition(".")[2])
    assert f"{weigh(read_model(slug).model).active_params / 1e9:.{digits}f}" == printed


def test_of_a_tied_embedding_the_head_counts_and_positions_do_not():
    """GPT-2: everything but its 1,024 learned positions multiplies a token."""
    weights = weigh(read_model("gpt2").model)
    assert weights.multiplied_params == weights.params - 1024 * 768


def test_biases_of_experts_that_a_token_does_not_use_are_not_active():
    config = dict(models()["gpt-oss-20b"].config)
    all_used = weigh(read_config({**config, "num_experts_per_tok": 32}).model)
    assert all_used.active_params == all_used.params
    few = weigh(read_config(config).model)
    expert = 3 * 2880 * 2880 + 3 * 2880  # matrices and biases
    assert few.params - few.active_params == 24 * (32 - 4) * expert


def test_one_token_reads_what_it_is_multiplied_with_and_a_row_of_the_table():
    """Of experts the matrices and the biases of those that it uses."""
    model = read_model("gpt-oss-20b").model
    read = traffic_of(model, decode(Workload(10)))["weights"]
    assert read == pytest.approx(2 * weigh(model).multiplied_params + 2 * 2880, rel=1e-12)


@pytest.mark.parametrize("slug", models())
def test_parameters_are_as_many_as_their_authors_say(slug):
    """To 4%: "Llama 2 7B" has 6.74 billion."""
    number, unit = re.match(r"([\d.]+)([MB])", models()[slug].published_params).groups()
    published = float(number) * {"M": 1e6, "B": 1e9}[unit]
    assert weigh(read_model(slug).model).params == pytest.approx(published, rel=0.04)


def test_weights_of_llama_2_70b_do_not_fit_a_card_of_80_gb():
    size = weigh(read_model("llama-2-70b").model).bytes
    assert size == 137_953_296_384
    assert f"{size / 1e9:.0f}" == "138"
    assert size > find_gpu("a100-80-sxm").memory_bytes


# -- operations ----------------------------------------------------------------------------------------------


def test_twice_the_tokens_are_four_times_the_attention_and_not_four_times_the_work():
    """At n = 6d attention is half of a layer: twice as long takes three times as much, not four."""
    d = 64
    layer = read_config(
        {
            "model_type": "bert", "hidden_size": d, "num_attention_heads": 8, "num_hidden_layers": 1,
            "intermediate_size": 4 * d, "vocab_size": 10, "max_position_embeddings": 10,
        }
    ).model  # fmt: skip
    n = 6 * d
    assert flops(layer, Workload(n, q_len=None)) == 2 * 24 * n * d * d
    assert flops(layer, Workload(2 * n, q_len=None)) / flops(layer, Workload(n, q_len=None)) == 3
    short, long = n // 64, 64 * n
    assert flops(layer, Workload(2 * short, q_len=None)) / flops(layer, Workload(short, q_len=None)) < 2.05
    assert flops(layer, Workload(2 * long, q_len=None)) / flops(layer, Workload(long, q_len=None)) > 3.95


def test_training_gpt_3():
    """Brown et al. 2020, table D.1: 3.14e23 operations for 300 billion tokens; some .7 million hours of an
    A100 at 40%."""
    spent = training_flops(weigh(read_model("gpt3").model).params, 300_000_000_000)
    assert f"{spent:.2e}" == "3.14e+23"
    assert f"{gpu_hours(spent, find_gpu('a100-40'), utilisation=0.4) / 1e6:.1f}" == "0.7"


def test_training_takes_sixteen_bytes_to_a_parameter():
    """Rajbhandari et al. 2020, §3.1: 24 GB for the 1.5 billion of GPT-2, in 16 bits a weight of 3 GB."""
    assert training_bytes(1_500_000_000) == 24 * 10**9


def test_a_prompt_is_bound_by_arithmetic_and_decoding_by_memory():
    """That attention is memory-bound is right of decoding, and of attention that is not fused."""
    model, gpu = read_model("llama-3-8b").model, find_gpu("a100-80-sxm")
    assert bound(model, prefill(Workload(4096)), gpu).bound == "compute"
    assert bound(model, decode(Workload(4096)), gpu).bound == "memory"


# -- GPUs ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("slug", "tflops", "bits", "percent"),
    [
        ("a100-80-sxm", 230, 16, 73.7),  # FlashAttention-2
        ("h100-sxm", 740, 16, 74.8),  # FlashAttention-3, first version
        ("h100-sxm", 840, 16, 84.9),  # as published: 85%
        ("h100-sxm", 1200, 8, 60.6),
        ("h100-sxm", 1300, 8, 65.7),
        ("b200", 1605, 16, 71.3),  # FlashAttention-4
        ("b200", 1613, 16, 71.7),
    ],
)
def test_shares_of_the_peak_that_kernels_reached(slug, tflops, bits, percent):
    assert round(100 * find_gpu(slug).utilisation(tflops * 1e12, bits), 1) == percent


def test_a_share_of_a_peak_that_there_is_not():
    with pytest.raises(ValueError, match="V100 SXM2 16 GB has no figure for 8-bit arithmetic"):
        find_gpu("v100-sxm2-16").utilisation(1e12, 8)


def test_memory_on_the_chip_of_an_a100():
    """108 multiprocessors of 192 KiB: "about 20 MB"."""
    assert find_gpu("a100-40").shared_bytes == 20.25 * MIB


def test_memory_that_is_sold_and_memory_that_is_there():
    assert (gpus()["b200"].memory_gb, gpus()["b200"].physical_gb) == (180, 192)
    assert [gpus()[slug].memory_gb for slug in ("v100-sxm2-16", "v100-sxm2-32", "a100-40")] == [16, 32, 40]


def test_the_figures_of_an_own_gpu_need_no_chip():
    assert replace(find_gpu("l4"), sms=None).shared_bytes is None
