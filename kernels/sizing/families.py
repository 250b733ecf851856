"""What a model type implies and its config need not say: biases, norms, gates, and values left out.

One row per ``model_type``, read off the classes of the same name in Hugging Face transformers 5.24 (their
defaults, and which ``Linear`` has a bias). Sizes are never in here, but for the few that published configs
leave out. A model type without a row is read by its fields alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

Flag = bool | tuple[str, bool]  # known, or a field of the config and what it is if left out


@dataclass(frozen=True)
class Family:
    """The traits of one model type; the defaults are those of Llama."""

    norm: int = 1  # numbers to a feature: 1 for RMS norms and bare ones, 2 with a bias
    norms: int = 2  # to a layer
    qkv_bias: Flag = ("attention_bias", False)
    out_bias: Flag = ("attention_bias", False)
    mlp_bias: Flag = ("mlp_bias", False)
    is_gated: bool = True
    qk_norm: str = ""  # "head": one norm for all heads; "all": as wide as all of them
    qk_norm_if: str = ""  # the field that turns it on, if there is one
    is_tied: bool = False
    mlp_ratio: int | None = None  # width of the MLP over that of the model, where no field says it
    positions: int | None = None  # learned ones: how many rows more than the context
    embedding_norm: bool = False
    head_bias: bool = False
    final_norm: bool = True
    router_bias: bool = False
    has_sinks: bool = False
    has_shared_expert: bool = False  # as wide as the others, though no field says so
    is_encoder: bool = False
    mlp_kind: str = ""  # "t5": gated if feed_forward_proj says so
    mixer: str = ""  # of layers that are not attention: "mamba", "mamba2", "lightning", "delta"
    defaults: Mapping[str, int | bool | str] = field(default_factory=dict)


LLAMA = Family()
QWEN = replace(LLAMA, mlp_bias=False, qk_norm="head", defaults={"use_sliding_window": False})
BARE = Family(qkv_bias=False, out_bias=False, mlp_bias=False)
BIASED = Family(norm=2, is_gated=False, qkv_bias=True, out_bias=True, mlp_bias=True)
GPT2 = replace(BIASED, is_tied=True, mlp_ratio=4, positions=0)
BERT = replace(BIASED, positions=0, embedding_norm=True, final_norm=False, is_encoder=True)
T5 = replace(
    BARE,
    is_tied=True,
    mlp_kind="t5",
    defaults={"is_encoder_decoder": True, "relative_attention_num_buckets": 32},
)
GEMMA2 = Family(
    mlp_bias=False, norms=4, is_tied=True, defaults={"head_dim": 256, "window": 4096, "pattern": 2}
)
GEMMA3 = replace(
    GEMMA2,
    qk_norm="head",
    defaults={
        "heads": 8,
        "kv_heads": 4,
        "head_dim": 256,
        "vocab": 262_208,
        "window": 4096,
        "pattern": 6,
    },
)


def _biased_if(name: str, default: bool, family: Family) -> Family:
    """Biases everywhere or nowhere, as one field says."""
    flag = (name, default)
    return replace(family, qkv_bias=flag, out_bias=flag, mlp_bias=flag)


FALCON = replace(
    _biased_if("bias", False, BIASED),
    is_tied=True,
    mlp_ratio=4,
    defaults={"new_decoder_architecture": False, "multi_query": True, "parallel_attn": True},
)
FAMILIES: dict[str, Family] = {
    "llama": LLAMA,
    "granite": LLAMA,
    "granitemoe": LLAMA,
    "helium": LLAMA,
    "arcee": replace(LLAMA, is_gated=False),
    "nemotron": replace(LLAMA, norm=2, is_gated=False),
    "olmo": replace(LLAMA, norm=0),
    "smollm3": replace(LLAMA, is_tied=True),
    "mistral": replace(BARE, defaults={"window": 4096}),
    "ministral": BARE,
    "ministral3": BARE,
    "mixtral": BARE,
    "minimax_m2": replace(BARE, qk_norm="all"),
    "phi3": BARE,
    "qwen2": replace(BARE, qkv_bias=True, defaults={"use_sliding_window": False}),
    "qwen2_vl_text": replace(BARE, qkv_bias=True, defaults={"use_sliding_window": False}),
    "qwen2_5_vl_text": replace(BARE, qkv_bias=True, defaults={"use_sliding_window": False}),
    "qwen2_moe": replace(BARE, qkv_bias=("qkv_bias", True), defaults={"use_sliding_window": False}),
    "qwen3": QWEN,
    "qwen3_moe": QWEN,
    "qwen3_vl_text": QWEN,
    "hunyuan_v1_dense": replace(LLAMA, mlp_bias=False, qk_norm="head"),
    "dots1": replace(LLAMA, mlp_bias=False, qk_norm="head"),
    "qwen3_next": replace(
        QWEN, mixer="delta", defaults={"full_attention_interval": 4, "linear_conv_kernel_dim": 4}
    ),
    "qwen3_5_text": replace(QWEN, mixer="delta", defaults={"linear_conv_kernel_dim": 4}),
    "qwen3_5_moe_text": replace(QWEN, mixer="delta", defaults={"linear_conv_kernel_dim": 4}),
    "llama4_text": replace(
        LLAMA, mlp_bias=False, has_shared_expert=True, defaults={"active": 1, "attention_chunk_size": 8192}
    ),
    "glm4_moe": replace(BARE, qkv_bias=("attention_bias", False), qk_norm="head", qk_norm_if="use_qk_norm"),
    "gemma": Family(mlp_bias=False, is_tied=True, defaults={"head_dim": 256}),
    "gemma2": GEMMA2,
    "gemma3_text": GEMMA3,
    "gemma3": GEMMA3,
    "olmo2": Family(mlp_bias=False, qk_norm="all"),
    "olmo3": Family(mlp_bias=False, qk_norm="all", defaults={"window": 4096, "pattern": 4}),
    "olmoe": Family(mlp_bias=False, qk_norm="all"),
    "exaone4": Family(mlp_bias=False, qk_norm="head", defaults={"window": 4096, "pattern": 4}),
    "seed_oss": replace(LLAMA, qkv_bias=("attention_bias", True), out_bias=("attention_out_bias", False)),
    "cohere": Family(mlp_bias=False, norms=1, qk_norm="all", qk_norm_if="use_qk_norm", is_tied=True),
    "cohere2": Family(mlp_bias=False, norms=1, is_tied=True, defaults={"window": 4096, "pattern": 4}),
    "glm": replace(BARE, qkv_bias=("attention_bias", True)),
    "glm4": replace(BARE, qkv_bias=("attention_bias", True), norms=4),
    "stablelm": replace(BARE, norm=2, qkv_bias=("use_qkv_bias", False)),
    "starcoder2": _biased_if("use_bias", True, replace(BIASED, is_tied=True)),
    "gpt_oss": Family(
        qkv_bias=("attention_bias", True),
        out_bias=("attention_bias", True),
        mlp_bias=True,
        router_bias=True,
        has_sinks=True,
        defaults={"window": 128, "pattern": 2, "head_dim": 64},
    ),
    "deepseek_v2": replace(LLAMA, mlp_bias=False),
    "deepseek_v3": replace(LLAMA, mlp_bias=False),
    "deepseek_v32": replace(LLAMA, mlp_bias=False),
    "kimi_k2": replace(LLAMA, mlp_bias=False),
    "minimax": replace(BARE, mixer="lightning", defaults={"attn_layer_period": 2, "attn_layer_offset": 0}),
    "minimax_text_01": replace(
        BARE, mixer="lightning", defaults={"attn_layer_period": 8, "attn_layer_offset": 7}
    ),
    "falcon": FALCON,
    "RefinedWeb": replace(FALCON, defaults={"new_decoder_architecture": True}),
    "RefinedWebModel": FALCON,
    "gpt2": GPT2,
    "gpt_bigcode": replace(GPT2, defaults={"multi_query": True}),
    "gpt_neo": replace(GPT2, qkv_bias=False, defaults={"window": 256}),
    "gptj": replace(BIASED, norms=1, qkv_bias=False, out_bias=False, mlp_ratio=4, head_bias=True),
    "gpt_neox": replace(BIASED, qkv_bias=("attention_bias", True), out_bias=("attention_bias", True)),
    "bloom": replace(BIASED, is_tied=True, mlp_ratio=4, embedding_norm=True),
    "mpt": replace(BARE, is_gated=False, is_tied=True, mlp_ratio=4),
    "opt": _biased_if("enable_bias", True, replace(BIASED, is_tied=True, positions=2)),
    "phi": replace(BIASED, norms=1, head_bias=True),
    "t5": T5,
    "mt5": T5,
    "bart": replace(
        GPT2,
        mlp_ratio=None,
        positions=2,
        embedding_norm=True,
        final_norm=False,
        defaults={"is_encoder_decoder": True},
    ),
    "bert": BERT,
    "roberta": BERT,
    "jamba": replace(
        BARE,
        mixer="mamba",
        defaults={
            "attn_layer_period": 8,
            "attn_layer_offset": 4,
            "expert_layer_period": 2,
            "expert_layer_offset": 1,
            "experts": 16,
            "active": 2,
            "state": 16,
        },
    ),
    "mamba": replace(BARE, norms=1, is_tied=True, mixer="mamba", defaults={"state": 16}),
    "mamba2": replace(BARE, norms=1, mixer="mamba2", defaults={"state": 128}),
    "nemotron_h": replace(BARE, norms=1, is_gated=False, mixer="mamba2"),
    "bamba": replace(LLAMA, mixer="mamba2"),
    "granitemoehybrid": replace(LLAMA, mlp_bias=False, mixer="mamba2"),
}
