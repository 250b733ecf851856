"""What a cache takes, to the byte, against figures worked out by hand from the published configs."""

import pytest

from kernels.sizing.hf_config import read_config
from kernels.sizing.kv_cache import kv_cache, total_bytes
from kernels.sizing.models import models, read_model
from kernels.sizing.storage import cache_format
from tests.kernels.sizing import configs

KIB, MIB, GIB = 2**10, 2**20, 2**30
HALF = cache_format("float16")

# KiB per token in 16 bits, every layer keeping every token.
PER_TOKEN = {
    "gpt2": 36, "gpt2-medium": 96, "gpt2-large": 180, "gpt2-xl": 300, "gpt3": 4608,
    "t5-base": 36, "t5-11b": 1536,
    "llama-7b": 512, "llama-65b": 2560, "llama-2-7b": 512, "llama-2-13b": 800, "llama-2-70b": 320,
    "llama-3-8b": 128, "llama-3-70b": 320, "llama-3.1-405b": 504,
    "mistral-7b-v0.1": 128, "mixtral-8x7b": 128, "mixtral-8x22b": 224,
    "falcon-7b": 8, "falcon-40b": 120, "falcon-180b": 160,
    "qwen2.5-7b": 56, "qwen2.5-72b": 320, "qwen3-8b": 144, "qwen3-32b": 256,
    "qwen3-30b-a3b": 96, "qwen3-235b-a22b": 188,
    "gemma-2-9b": 336, "gemma-2-27b": 368, "gemma-3-4b": 136, "gemma-3-27b": 496,
    "deepseek-v2": 67.5, "deepseek-v3": 68.625, "gpt-oss-20b": 48, "gpt-oss-120b": 72,
    "bloom": 3920, "mpt-7b": 512, "mpt-30b": 1344, "jamba-v0.1": 16,
}  # fmt: skip


def cache_of(config, length, **more):
    return kv_cache(read_config(config).model, HALF, length, **more)


@pytest.mark.parametrize(("slug", "kib"), PER_TOKEN.items())
def test_bytes_of_a_token(slug, kib):
    cached = kv_cache(read_model(slug).model, HALF, 1000)
    assert cached.bytes_per_token == kib * KIB


@pytest.mark.parametrize("slug", models())
def test_what_is_unwindowed_is_every_token_of_every_layer(slug):
    model = read_model(slug).model
    cached = kv_cache(model, HALF, 1000, batch=3)
    across = 2 if model.encoder else 0
    expected = 3 * 1000 * cached.bytes_per_token
    assert kv_cache(model, HALF, 1000, 3, encoder_len=0).bytes_unwindowed == expected
    assert kv_cache(model, HALF, 1000, 3, encoder_len=500).bytes_unwindowed == expected * (1 + across / 4)


def test_llama_2_70b_in_all_three_ways():
    """The table that made grouped heads famous: 10 GiB, 1.25 GiB, 160 MiB at 4,096 tokens."""
    for kv_heads, expected in ((64, 10 * GIB), (8, 5 * GIB // 4), (1, 160 * MIB)):
        config = {**configs.LLAMA_2_70B, "num_key_value_heads": kv_heads}
        assert cache_of(config, 4096).bytes == expected
    without = {k: v for k, v in configs.LLAMA_2_70B.items() if k != "num_key_value_heads"}
    assert cache_of(without, 4096).bytes_per_token == 2560 * KIB  # nothing said: every head its own


def test_llama_3_at_three_lengths():
    model = read_model("llama-3-70b").model
    sizes = [kv_cache(model, HALF, length).bytes for length in (4096, 32768, 131072)]
    assert sizes == [5 * GIB // 4, 10 * GIB, 40 * GIB]
    assert kv_cache(read_model("llama-3-8b").model, HALF, 4096).bytes == 536_870_912


def test_mistral_with_its_window_and_without():
    """v0.1 keeps 4,096 tokens however long it gets; v0.2 says null and keeps them all."""
    windowed = cache_of(configs.MISTRAL_7B, 32768)
    assert windowed.bytes == 512 * MIB
    assert windowed.bytes_unwindowed == 4 * GIB
    assert windowed.bytes_per_next_token == 0
    assert windowed.layers[0].window == windowed.layers[0].tokens == 4096
    assert cache_of(configs.MISTRAL_7B, 4096).bytes == 512 * MIB
    assert cache_of({**configs.MISTRAL_7B, "sliding_window": None}, 32768).bytes == 4 * GIB


def test_falcon_and_the_multi_query_trap():
    """multi_query is true in all of them; it counts in 7B alone, where num_kv_heads says 71."""
    for config, kv_heads in ((configs.FALCON_7B, 1), (configs.FALCON_180B, 8), (configs.FALCON_40B_OLD, 8)):
        cached = cache_of(config, 2048)
        assert {layer.kv_heads for layer in cached.layers} == {kv_heads}
    assert cache_of(configs.FALCON_7B, 1).bytes == 8 * KIB
    assert cache_of(configs.FALCON_180B, 1).bytes == 160 * KIB
    assert cache_of(configs.FALCON_40B_OLD, 1).bytes == 120 * KIB


def test_gemma_2_alternates():
    cached = kv_cache(read_model("gemma-2-27b").model, HALF, 8192)
    assert [layer.window for layer in cached.layers[:4]] == [4096, None, 4096, None]
    assert cached.bytes == 23 * 8 * KIB * (4096 + 8192)
    assert kv_cache(read_model("gemma-2-9b").model, HALF, 8192).bytes == 21 * 8 * KIB * (4096 + 8192)


def test_gemma_3_keeps_a_window_in_five_layers_of_six():
    """62 GiB at 128K if all were full; 10 of 62 are, and the others keep 1,024 tokens: 10.4 GiB."""
    cached = cache_of(configs.GEMMA_3_27B, 131072)
    assert [index for index, layer in enumerate(cached.layers) if layer.window is None] == list(
        range(5, 62, 6)
    )
    assert cached.bytes_unwindowed == 62 * GIB
    assert cached.bytes == 8 * KIB * (10 * 131072 + 52 * 1024) == 11_173_625_856
    small = cache_of(configs.GEMMA_3_4B, 131072)  # heads, widths and pattern are those of its class
    assert small.bytes == 4 * KIB * (5 * 131072 + 29 * 1024)


def test_a_latent_is_shared_by_all_heads():
    cached = cache_of(configs.DEEPSEEK_V3, 1000)
    assert cached.bytes_per_token == 61 * (512 + 64) * 2 == 70_272  # 68.6 KiB, which is 70 KB
    assert {(layer.kind, layer.kv_heads, layer.head_dim) for layer in cached.layers} == {("mla", 1, 576)}


def test_an_index_has_a_key_of_its_own_for_each_token():
    """DeepSeek-V3.2 looks for 2,048 tokens to attend to; what it looks through is cached as well."""
    sparse = {**configs.DEEPSEEK_V3, "index_topk": 2048, "index_head_dim": 128, "index_n_heads": 64}
    assert cache_of(sparse, 10**5).bytes == 61 * (512 + 64 + 128) * 2 * 10**5


def test_heads_may_be_wider_where_everything_is_seen():
    """Gemma 4: in one layer of six, heads of another width, and fewer of them where keys serve as values."""
    config = {
        **configs.GEMMA_3_27B["text_config"],
        "model_type": "gemma4_text",
        "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 10 + ["sliding_attention"] * 2,
        "global_head_dim": 512,
    }
    full = [layer for layer in cache_of(config, 1).layers if layer.window is None]
    assert {(layer.kv_heads, layer.head_dim, layer.v_head_dim) for layer in full} == {(16, 512, 512)}
    fewer = {**config, "attention_k_eq_v": True, "num_global_key_value_heads": 4}
    assert cache_of(fewer, 1).bytes == 10 * 2 * 4 * 512 * 2 + 52 * 8 * KIB


def test_gpt_oss_alternates_with_a_window_of_128():
    cached = cache_of(configs.GPT_OSS_20B, 131072)
    assert cached.bytes == 12 * 2 * KIB * (131072 + 128)
    assert cached.bytes_per_next_token == 24 * KIB


def test_a_hybrid_keeps_keys_in_few_layers_and_states_in_the_others():
    """Jamba at 256K: 4 GiB in 4 layers, 32 GiB if all 32 were attention; the states never grow."""
    cached = cache_of(configs.JAMBA, 262144)
    assert cached.bytes == 4 * GIB
    assert [layer.layer for layer in cached.layers if layer.bytes] == [4, 12, 20, 28]
    assert cached.bytes * len(cached.layers) // 4 == 32 * GIB
    assert cached.state_bytes == 28 * 8192 * (16 + 4) * 2
    assert cache_of(configs.JAMBA, 1).state_bytes == cached.state_bytes


def test_layers_that_are_an_mlp_alone_keep_nothing():
    cached = cache_of(configs.NEMOTRON_H_8B, 1)
    assert cached.bytes == 4 * 2 * 8 * 128 * 2
    kinds = [layer.kind for layer in cached.layers]
    assert kinds.count("mamba2") == configs.NEMOTRON_H_8B["hybrid_override_pattern"].count("M")
    assert len(kinds) == 28


def test_states_alone_have_no_cache():
    cached = kv_cache(read_model("mamba-2.8b").model, HALF, 10**6, batch=2)
    assert cached.bytes == cached.bytes_per_token == 0
    assert cached.state_bytes == 2 * 64 * 5120 * (16 + 4) * 2


def test_lightning_and_delta_layers_keep_a_matrix():
    lightning = cache_of(configs.MINIMAX_TEXT_01, 1)
    assert lightning.bytes == 10 * 2 * 8 * 128 * 2
    assert lightning.state_bytes == 70 * 64 * 128 * 128 * 2
    delta = kv_cache(read_model("qwen3-next-80b-a3b").model, HALF, 1)
    assert delta.bytes == 12 * 2 * 2 * 256 * 2
    assert delta.state_bytes == 36 * (32 * 128 * 128 + (2 * 16 * 128 + 32 * 128) * 4) * 2


def test_a_decoder_also_keeps_what_the_encoder_read():
    cached = cache_of(configs.T5_BASE, 100, encoder_len=512)
    own, across = 12 * 2 * 768 * 2 * 100, 12 * 2 * 768 * 2 * 512
    assert cached.bytes == own + across
    assert cached.bytes_per_token == 36 * KIB  # one more token of the decoder
    assert [layer.kind for layer in cached.layers[:2]] == ["full_attention", "cross_attention"]


def test_an_encoder_keeps_nothing():
    cached = kv_cache(read_model("bert-base").model, HALF, 512)
    assert cached.bytes == cached.bytes_per_token == 0
    assert cached.layers[0].kind == "bidirectional_attention"


def test_layers_that_read_an_earlier_cache_keep_none():
    config = {**configs.LLAMA_2_70B, "num_kv_shared_layers": 20}
    cached = cache_of(config, 10)
    assert [bool(layer.bytes) for layer in cached.layers] == [True] * 60 + [False] * 20


@pytest.mark.parametrize(
    ("dtype", "scale", "vector"),
    [
        ("float32", "per_token_head", 512),
        ("bfloat16", "per_token_head", 256),
        ("fp8_e4m3", "per_tensor", 128),
        ("int8", "per_token_head", 128 + 4),
        ("int4", "per_tensor", 64),
        ("int4", "per_token_head", 64 + 4),
    ],
)
def test_quantised_caches_keep_their_scales(dtype, scale, vector):
    model = read_model("llama-3-8b").model
    assert kv_cache(model, cache_format(dtype, scale), 10).bytes == 32 * 8 * 2 * vector * 10


def test_heads_are_shared_out_whole_and_latents_are_on_every_gpu():
    grouped, latent = read_model("llama-3-70b").model, read_model("deepseek-v3").model
    whole = total_bytes(grouped, HALF, 1000, 1)
    assert [whole / total_bytes(grouped, HALF, 1000, 1, gpus=n) for n in (2, 8, 16, 64)] == [2, 8, 8, 8]
    assert total_bytes(latent, HALF, 1000, 1, gpus=8) == total_bytes(latent, HALF, 1000, 1)


def test_what_cannot_be_cut_evenly_is_rounded_up():
    states = read_model("mamba-2.8b").model  # 64 layers of 5,120 × 20 numbers
    assert total_bytes(states, HALF, 1, 1, gpus=3) == 64 * 2 * 34_134
    odd = read_config({"num_hidden_layers": 1, "num_attention_heads": 1, "head_dim": 7}).model
    assert kv_cache(odd, cache_format("int4", "per_tensor"), 1).bytes == 2 * 4


def test_vllm_s_sequence_of_llama_13b():
    """The vLLM announcement says up to 1.7 GB for one sequence; at 2,048 tokens it is 1.68 GB."""
    size = kv_cache(read_model("llama-2-13b").model, HALF, 2048).bytes
    assert size == 800 * KIB * 2048
    assert round(size / 1e9, 2) == 1.68
