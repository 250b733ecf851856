"""How a pasted config is read: what is said of it, and what is refused with which words."""

import json

import pytest

from kernels.sizing.families import FAMILIES
from kernels.sizing.hf_config import read_config
from kernels.sizing.kv_cache import kv_cache
from kernels.sizing.layers import Experts
from kernels.sizing.storage import cache_format
from kernels.sizing.weights import weigh
from kernels.spec import SpecError
from tests.kernels.sizing import configs

PLAIN = {
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "vocab_size": 100,
}
MAMBA_2 = {
    "model_type": "mamba2", "hidden_size": 64, "num_hidden_layers": 4, "num_heads": 4, "head_dim": 32,
    "state_size": 128, "vocab_size": 100,
}  # fmt: skip


def windows(config):
    return [mixer.window for layer in read_config(config).model.layers for mixer in layer.mixers]


def problems(config):
    with pytest.raises(SpecError) as refused:
        read_config(config)
    return {problem.pointer: problem for problem in refused.value.problems}


# --- The account -----------------------------------------------------------------------------


def test_every_field_is_either_understood_or_ignored():
    for name, config in vars(configs).items():
        if not name.isupper() or name == "COMMON":
            continue
        read = read_config(config)
        said = {*read.understood, *read.ignored}
        assert set(config) <= {path.split(".")[0] for path in said}, name
        assert not set(read.understood) & set(read.ignored), name
        assert set(read.unknown) <= set(read.ignored), name


def test_ignored_fields_that_decide_nothing_are_told_from_those_never_heard_of():
    read = read_config({**configs.LLAMA_2_70B, "quantum_heads": 4})
    assert {"rope_scaling", "torch_dtype", "bos_token_id"} <= set(read.ignored)
    assert read.unknown == ("quantum_heads",)
    assert "num_key_value_heads" in read.understood


def test_published_configs_hold_nothing_unheard_of():
    for name, config in vars(configs).items():
        if name.isupper() and name != "COMMON":
            assert read_config(config).unknown == (), name


def test_nested_fields_are_named_with_their_path():
    read = read_config(configs.GEMMA_3_27B)
    assert {"text_config.hidden_size", "text_config.sliding_window"} <= set(read.understood)
    assert {"vision_config", "text_config.query_pre_attn_scalar"} <= set(read.ignored)
    mpt = {
        "model_type": "mpt", "d_model": 64, "n_layers": 2, "n_heads": 4, "vocab_size": 10,
        "attn_config": {"attn_type": "grouped_query_attention", "kv_n_heads": 2, "alibi": True},
    }  # fmt: skip
    read = read_config(mpt)
    assert {"attn_config.kv_n_heads", "attn_config.attn_type"} <= set(read.understood)
    assert "attn_config.alibi" in read.ignored
    assert read.model.layers[0].mixers[0].kv_heads == 2


def test_what_is_assumed_is_said_with_its_reason():
    said = {entry.field: entry for entry in read_config(configs.GEMMA_3_4B).assumed}
    assert said["text_config.num_key_value_heads"].value == 4
    assert "model type" in said["text_config.num_key_value_heads"].why
    said = {entry.field: entry for entry in read_config(configs.GPT2).assumed}
    assert said["intermediate_size"].value == 3072
    assert said["num_key_value_heads"].value == 12


def test_a_stranger_is_read_by_its_fields_and_told_so():
    config = {**PLAIN, "model_type": "llama_from_next_year", "sliding_window": 8, "eigen_rank": 3}
    read = read_config(config)
    assert not read.is_known
    assert "llama_from_next_year" in read.notes[0]
    assert read.unknown == ("eigen_rank",)
    assert kv_cache(read.model, cache_format("float16"), 100).bytes == 4 * 8 * 2 * 2 * 16 * 2
    assert any("sliding_window" in note for note in read.notes[1:])
    assert "no model_type" in read_config(PLAIN).notes[0]


def test_what_only_weights_need_may_be_missing_until_they_are_asked_for():
    read = read_config({"num_hidden_layers": 4, "num_attention_heads": 4, "head_dim": 16})
    assert kv_cache(read.model, cache_format("float16"), 10).bytes == 4 * 2 * 4 * 16 * 2 * 10
    assert {p.pointer for p in read.missing} == {
        "/config/hidden_size", "/config/intermediate_size", "/config/vocab_size",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("config", "per_token"),
    [
        ({"num_hidden_layers": 80, "num_key_value_heads": 8, "head_dim": 128}, 320 * 1024),
        ({"num_hidden_layers": 61, "kv_lora_rank": 512, "qk_rope_head_dim": 64}, 70_272),
        ({**PLAIN, "num_local_experts": 4}, 4 * 2 * 2 * 16 * 2),
        ({"n_layer": 12, "n_head": 12, "n_embd": 768}, 36 * 1024),
    ],
)
def test_as_few_fields_as_decide_a_cache(config, per_token):
    read = read_config(config)
    assert kv_cache(read.model, cache_format("float16"), 1).bytes_per_token == per_token
    assert read.missing


def test_names_of_other_families_mean_the_same():
    other = {"n_embd": 64, "n_layer": 4, "n_head": 4, "n_kv_heads": 2, "ffn_dim": 96, "n_vocab": 100}
    assert read_config(other).model == read_config(PLAIN).model


@pytest.mark.parametrize("model_type", FAMILIES)
def test_each_family_can_be_read_from_plain_fields(model_type):
    """Whatever its traits, sizes come from fields: the same for each."""
    states = {
        "state_size": 8, "conv_kernel": 4, "mamba_num_heads": 4, "mamba_head_dim": 32,
        "attn_layer_indices": [1],
    }  # fmt: skip
    config = {
        **PLAIN, **states, "model_type": model_type, "head_dim": 16, "num_heads": 4, "num_layers": 4,
        "encoder_layers": 4, "decoder_layers": 4, "encoder_attention_heads": 4, "ffn_dim": 96,
        "decoder_attention_heads": 4, "encoder_ffn_dim": 96, "decoder_ffn_dim": 96, "num_kv_heads": 2,
        "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8,
        "linear_value_head_dim": 8, "linear_conv_kernel_dim": 4, "num_experts_per_tok": 2, "expand": 2,
    }  # fmt: skip
    read = read_config(config)
    assert read.is_known
    assert len(read.model.layers) == 4
    assert weigh(read.model).params > 0


# --- Which layer is what ---------------------------------------------------------------------


def test_windows_as_each_family_says_them():
    window = {**PLAIN, "sliding_window": 8}
    assert windows(window) == [8] * 4
    assert windows({**window, "use_sliding_window": False}) == [None] * 4
    assert windows({**window, "use_sliding_window": True, "max_window_layers": 3}) == [None] * 3 + [8]
    assert windows({**window, "sliding_window_pattern": 2}) == [8, None, 8, None]
    assert windows({**window, "layer_types": ["full_attention", "sliding_attention"] * 2}) == [None, 8] * 2
    assert windows({**window, "sliding_window": None, "model_type": "mistral"}) == [None] * 4
    assert windows({**PLAIN, "model_type": "mistral"}) == [4096] * 4  # what its class has
    neo = {**PLAIN, "attention_types": [[["global", "local"], 2]], "window_size": 256}
    assert windows(neo) == [None, 256] * 2
    chunks = {**PLAIN, "attention_chunk_size": 32, "no_rope_layers": []}
    assert windows(chunks) == [32, 32, 32, None]
    assert windows({**chunks, "no_rope_layers": [0, 1, 1, 1]}) == [None, 32, 32, 32]
    assert windows(configs.QWEN_2_5_7B) == [None] * 28


def test_chunks_keep_at_most_a_chunk():
    model = read_config({**PLAIN, "attention_chunk_size": 32}).model
    cached = kv_cache(model, cache_format("float16"), 1000)
    assert [layer.kind for layer in cached.layers] == ["chunked_attention"] * 3 + ["full_attention"]
    assert [layer.tokens for layer in cached.layers] == [32, 32, 32, 1000]


def test_one_key_value_head_unless_the_config_says_more():
    few = {**PLAIN, "model_type": "gpt_bigcode"}
    assert read_config(few).model.layers[0].mixers[0].kv_heads == 2
    del few["num_key_value_heads"]
    assert read_config(few).model.layers[0].mixers[0].kv_heads == 1


def test_falcons_key_value_heads_that_mean_nothing_are_said_to():
    falcon = {**PLAIN, "model_type": "falcon", "num_kv_heads": 2}
    del falcon["num_key_value_heads"]
    old, new = read_config(falcon), read_config({**falcon, "new_decoder_architecture": True})
    assert [read.model.layers[0].mixers[0].kv_heads for read in (old, new)] == [1, 2]
    assert any("num_kv_heads is 2 and means nothing here" in note for note in old.notes)
    assert any("multi_query is true and means nothing here" in note for note in new.notes)


@pytest.mark.parametrize(
    ("config", "lost"),
    [
        ({**PLAIN, "model_type": "llama4_text", "attention_chunk_size": 8192}, "attention_chunk_size"),
        (MAMBA_2, "state_size"),
        (configs.MINIMAX_TEXT_01, "attn_type_list"),
    ],
)
def test_what_published_models_of_a_type_have_is_assumed_and_said(config, lost):
    there = read_config(config)
    assumed = read_config({name: value for name, value in config.items() if name != lost})
    assert assumed.model == there.model
    assert len(assumed.assumed) > len(there.assumed)


def test_experts_are_where_each_family_says():
    def routed(**more):
        read = read_config({**PLAIN, "num_experts": 4, "num_experts_per_tok": 2, **more})
        return [index for index, layer in enumerate(read.model.layers) if isinstance(layer.mlp, Experts)]

    assert routed() == [0, 1, 2, 3]
    assert routed(num_experts=1) == []
    assert routed(first_k_dense_replace=1) == [1, 2, 3]
    assert routed(first_k_dense_replace=1, moe_layer_freq=2) == [2]
    assert routed(decoder_sparse_step=3) == [2]
    assert routed(decoder_sparse_step=2, mlp_only_layers=[1]) == [3]
    assert routed(expert_layer_period=2, expert_layer_offset=1) == [1, 3]
    assert routed(interleave_moe_layer_step=4) == [3]
    assert routed(hybrid_override_pattern="*E-E") == [1, 3]


# --- What is refused -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "pointer", "code", "words"),
    [
        ({"num_key_value_heads": 3}, "num_key_value_heads", "contradiction", ["3", "4", "1, 2, 4"]),
        ({"num_attention_heads": 6}, "hidden_size", "contradiction", ["64", "6", "head_dim"]),
        ({"num_hidden_layers": None}, "num_hidden_layers", "required", ["n_layer", "cannot be guessed"]),
        ({"num_hidden_layers": -4}, "num_hidden_layers", "out-of-range", ["-4", "1"]),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers", "out-of-range", ["1,024"]),
        ({"hidden_size": "64"}, "hidden_size", "wrong-type", ['"64"', "integer"]),
        ({"hidden_size": True}, "hidden_size", "wrong-type", ["true"]),
        ({"hidden_size": 64.0}, "hidden_size", "wrong-type", ["64.0"]),
        ({"n_embd": 128}, "n_embd", "contradiction", ["128", "64", "hidden_size"]),
        ({"multi_query": True}, "num_key_value_heads", "contradiction", ["2", "multi_query"]),
        ({"multi_query": 1}, "multi_query", "wrong-type", ["true or false"]),
        ({"sliding_window": -1}, "sliding_window", "out-of-range", ["-1"]),
        ({"layer_types": ["full_attention"] * 3}, "layer_types", "contradiction", ["3", "4"]),
        ({"layer_types": ["full_attention", "conv"] * 2}, "layer_types/1", "unsupported", ["conv", "mamba"]),
        ({"layer_types": ["sliding_attention"] * 4}, "sliding_window", "required", ["sliding_window"]),
        ({"layer_types": "full"}, "layer_types", "wrong-type", ["list"]),
        ({"layer_types": ["linear_attention"] * 4}, "linear_num_value_heads", "required", []),
        ({"attn_type_list": [0, 1, 2, 1]}, "attn_type_list/2", "out-of-range", ["2"]),
        (
            {"attn_layer_period": 4, "attn_layer_offset": 4, "state_size": 8},
            "attn_layer_offset",
            "contradiction",
            ["4"],
        ),
        (
            {"attn_layer_indices": [0, 9], "state_size": 8},
            "attn_layer_indices",
            "contradiction",
            ["9", "0 to 3"],
        ),
        ({"attention_types": [[["global"], 3]]}, "attention_types", "contradiction", ["3", "4"]),
        ({"attention_types": [["global", 10**9]]}, "attention_types", "wrong-type", []),
        ({"hybrid_override_pattern": "M*X-"}, "hybrid_override_pattern", "contradiction", ["X"]),
        ({"hybrid_override_pattern": "M*"}, "hybrid_override_pattern", "contradiction", ["2", "4"]),
        ({"num_kv_shared_layers": 4}, "num_kv_shared_layers", "contradiction", ["4"]),
        ({"num_local_experts": 4, "num_experts_per_tok": 5}, "num_experts_per_tok", "contradiction", ["5"]),
        ({"kv_lora_rank": 16}, "qk_rope_head_dim", "required", []),
        ({"qk_rope_head_dim": 8}, "kv_lora_rank", "required", ["qk_rope_head_dim", "latents", "add it"]),
        ({"kv_lora_rank": None, "q_lora_rank": 24}, "kv_lora_rank", "required", ["q_lora_rank"]),
        ({"mamba_d_state": 16}, "layer_types", "required", ["mamba_d_state", "attn_layer_indices"]),
        (
            {"linear_num_value_heads": 4, "sliding_window": 8},
            "layer_types",
            "required",
            ["linear_num_value_heads", "full_attention_interval"],
        ),
        ({"indexer_types": ["full", "shared"]}, "indexer_types", "unsupported", ["share"]),
        ({"add_cross_attention": True}, "add_cross_attention", "unsupported", ["encoder"]),
        ({"quantization_config": 4}, "quantization_config", "wrong-type", ["object"]),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings", "wrong-type", ["true or false"]),
        ({"model_type": 3}, "model_type", "wrong-type", ["string"]),
    ],
)  # fmt: skip
def test_what_cannot_be_is_explained(change, pointer, code, words):
    found = problems({**PLAIN, **change})
    assert f"/config/{pointer}" in found, list(found)
    problem = found[f"/config/{pointer}"]
    assert problem.code == code
    for word in words:
        assert word in problem.detail
    assert len(found) == 1 or change == {"kv_lora_rank": 16}, list(found)


def test_everything_wrong_is_told_at_once():
    found = problems(
        {"hidden_size": -1, "num_attention_heads": "x", "vocab_size": 0, "intermediate_size": []}
    )
    assert set(found) == {
        f"/config/{name}"
        for name in (
            "hidden_size", "num_attention_heads", "vocab_size", "intermediate_size", "num_hidden_layers"
        )
    }  # fmt: skip


def test_a_misspelt_field_is_suspected():
    config = {**PLAIN, "num_hiden_layers": 4}
    del config["num_hidden_layers"]
    assert "did you mean num_hiden_layers" in problems(config)["/config/num_hidden_layers"].detail


def test_a_field_that_is_null_is_not_taken_for_a_misspelt_one():
    config = {**PLAIN, "layer_types": ["sliding_attention"] * 4, "sliding_window": None}
    assert "did you mean" not in problems(config)["/config/sliding_window"].detail


def test_pointers_lead_into_the_nested_config():
    config = json.loads(json.dumps(configs.GEMMA_3_27B))
    config["text_config"]["num_key_value_heads"] = 5
    assert set(problems(config)) == {"/config/text_config/num_key_value_heads"}


@pytest.mark.parametrize("config", [None, [], "llama", 3, True])
def test_a_config_is_an_object(config):
    assert problems(config)["/config"].code == "wrong-type"


def test_a_config_has_bounds():
    many = {f"field{index}": index for index in range(1001)}
    assert problems(many)["/config"].code == "too-large"
    assert problems({"text_config": many})["/config"].code == "too-large"


@pytest.mark.parametrize(
    ("given", "name", "bits"),
    [
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, "int4", 4),
        ({"quant_method": "awq", "bits": 4, "group_size": -1}, "int4", 4),
        ({"quant_method": "gptq", "bits": 3, "group_size": 64}, "int3", 3),
        ({"quant_method": "fp8"}, "fp8_e4m3", 8),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "nf4", 4),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {
                    "group_0": {
                        "weights": {"num_bits": 4, "type": "int", "group_size": 32, "strategy": "group"}
                    }
                },
            },
            "int4",
            4,
        ),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, "int8", 8),
    ],
)
def test_how_the_config_says_its_weights_are_stored(given, name, bits):
    stored = read_config({**PLAIN, "quantization_config": given}).stored
    assert (stored.name, stored.bits) == (name, bits)


def test_gptq_keeps_a_scale_and_a_zero_point_to_each_group():
    given = {"quant_method": "gptq", "bits": 4, "group_size": 64}
    stored = read_config({**PLAIN, "quantization_config": given}).stored
    assert stored.matrix(8, 128) == 8 * 64 + 8 * 2 * (16 + 4) // 8


def test_one_scale_for_a_tensor_for_a_row_or_for_a_group():
    def stored(**weights):
        given = {"config_groups": {"0": {"weights": weights}}, "quant_method": "compressed-tensors"}
        return read_config({**PLAIN, "quantization_config": {**given, "ignore": ["re:.*self_attn.*"]}}).stored

    assert stored(num_bits=8, type="float", strategy="tensor").matrix(10, 64) == 640 + 2
    assert stored(num_bits=8, type="float", strategy="channel").matrix(10, 64) == 640 + 20
    assert stored(num_bits=4, strategy="group", group_size=32).matrix(10, 64) == 320 + 40
    assert stored(num_bits=4, strategy="group", group_size=32, symmetric=False).matrix(10, 64) == 320 + 50
    assert "attention" not in stored(num_bits=4, strategy="channel").parts
    assert stored(num_bits=4, strategy="by-star-sign") is None


@pytest.mark.parametrize(
    "given",
    [{"quant_method": "from-next-year"}, {}, {"quant_method": "gptq", "bits": "4"}, {"quant_method": "gptq"}],
)
def test_a_quantisation_that_is_not_understood_is_said_to_be(given):
    read = read_config({**PLAIN, "quantization_config": given})
    assert read.stored is None
    assert any("weights_dtype" in note for note in read.notes)
