"""What must hold of every model, found by inputs that nobody thought of."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from kernels.sizing.gpus import Gpu
from kernels.sizing.hf_config import read_config
from kernels.sizing.inverse import longest, most_sequences
from kernels.sizing.kv_cache import kv_cache, total_bytes
from kernels.sizing.memory import Workload, memory, per_gpu_bytes
from kernels.sizing.models import models, read_model
from kernels.sizing.roofline import bound
from kernels.sizing.storage import CACHE_DTYPES, WEIGHT_DTYPES, cache_format, weight_format
from kernels.sizing.weights import weigh
from kernels.spec import SpecError

known = st.sampled_from([read_model(slug).model for slug in models()])
formats = st.builds(
    cache_format, st.sampled_from(CACHE_DTYPES), st.sampled_from(["per_token_head", "per_tensor"])
)
lengths = st.integers(0, 300_000)
small = st.integers(1, 40)


@st.composite
def configs(draw):
    """Decoders of every kind that fields can describe, all of them possible."""
    kv_heads, groups, count = draw(small), draw(st.integers(1, 8)), draw(st.integers(1, 12))
    config = {
        "hidden_size": draw(small) * 8,
        "num_hidden_layers": count,
        "num_attention_heads": kv_heads * groups,
        "num_key_value_heads": kv_heads,
        "head_dim": draw(small),
        "intermediate_size": draw(small),
        "vocab_size": draw(small),
    }
    if draw(st.booleans()):
        config["sliding_window"] = draw(st.integers(1, 500))
        if draw(st.booleans()):
            words = st.sampled_from(["full_attention", "sliding_attention"])
            config["layer_types"] = draw(st.lists(words, min_size=count, max_size=count))
    if draw(st.booleans()):
        experts = draw(st.integers(2, 8))
        config |= {"num_experts": experts, "num_experts_per_tok": draw(st.integers(1, experts))}
    return config


@given(known, formats, lengths, st.integers(1, 64), lengths)
def test_bytes_add_up_over_layers_and_are_linear_in_the_batch(model, stored, length, batch, encoder_len):
    one = kv_cache(model, stored, length, 1, encoder_len)
    many = kv_cache(model, stored, length, batch, encoder_len)
    assert many.bytes == batch * one.bytes == sum(layer.bytes for layer in many.layers)
    assert many.state_bytes == batch * one.state_bytes == sum(layer.state_bytes for layer in many.layers)
    whole = total_bytes(model, stored, length, batch, encoder_len=encoder_len)
    assert whole == many.bytes + many.state_bytes


@given(known, formats, lengths)
def test_a_window_never_adds_and_a_token_never_frees(model, stored, length):
    now, then = kv_cache(model, stored, length), kv_cache(model, stored, length + 1)
    assert now.bytes <= now.bytes_unwindowed
    assert then.bytes - now.bytes == now.bytes_per_next_token
    assert 0 <= now.bytes_per_next_token <= now.bytes_per_token


@given(configs(), lengths)
def test_the_first_layers_and_the_last_make_the_whole(config, length):
    stored = cache_format("float16")
    model = read_config(config).model
    for cut in range(len(model.layers)):
        parts = (replace(model, layers=model.layers[:cut]), replace(model, layers=model.layers[cut:]))
        assert sum(kv_cache(part, stored, length).bytes for part in parts) == (
            kv_cache(model, stored, length).bytes
        )


@given(configs(), st.integers(1, 10**6))
def test_taking_a_window_away_never_takes_less(config, length):
    without = {name: value for name, value in config.items() if name not in ("sliding_window", "layer_types")}
    stored = cache_format("float16")
    windowed, full = (kv_cache(read_config(c).model, stored, length) for c in (config, without))
    assert windowed.bytes <= full.bytes == windowed.bytes_unwindowed


@given(st.one_of(known, configs().map(lambda c: read_config(c).model)), st.data())
def test_what_is_found_fits_and_one_more_does_not(model, data):
    heads = [n for n in (1, 2, 4) if all(h % n == 0 for h in model.attention_heads)]
    load = Workload(
        length=data.draw(st.integers(1, 5000)),
        batch=data.draw(st.integers(1, 8)),
        q_len=data.draw(st.sampled_from([None, 1, 17])),
        cache=data.draw(formats),
        weights=weight_format(data.draw(st.sampled_from(WEIGHT_DTYPES))),
        gpus=data.draw(st.sampled_from(heads)),
        all_logits=data.draw(st.booleans()),
        has_scores=data.draw(st.booleans()),
    )
    budget = per_gpu_bytes(model, load)
    length, batch = longest(model, load, budget, 10**5), most_sequences(model, load, budget, 10**5)
    assert length >= load.length
    assert batch >= load.batch
    for name, found in (("length", length), ("batch", batch)):
        assert per_gpu_bytes(model, replace(load, **{name: found})) <= budget
        if found < 10**5:
            assert per_gpu_bytes(model, replace(load, **{name: found + 1})) > budget


@given(known, st.sampled_from(WEIGHT_DTYPES), st.integers(1, 512))
def test_parts_add_up_and_fewer_bits_never_weigh_more(model, dtype, group):
    weights = weigh(model, weight_format(dtype))
    assert sum(weights.parts.values()) == weights.bytes
    assert sum(weights.part_params.values()) == weights.params >= weights.active_params > 0
    finer = weigh(model, weight_format("int4", group))
    assert finer.bytes >= weigh(model, weight_format("int4", 2 * group)).bytes


@given(known, lengths.filter(bool), st.integers(1, 256), st.floats(1e-3, 1e6), st.floats(1e-3, 1e6))
def test_the_bound_is_the_longer_of_the_two(model, length, batch, bandwidth, tera):
    gpu = Gpu("", "any", 1.0, bandwidth, tera, None)
    step = bound(model, Workload(length, batch=batch), gpu)
    assert step.seconds == max(step.compute_seconds, step.memory_seconds) > 0
    assert step.seconds == (step.compute_seconds if step.bound == "compute" else step.memory_seconds)
    assert step.flops > 0
    assert all(size >= 0 for size in step.traffic.values())
    total = memory(model, Workload(length, batch=batch))
    assert (
        step.traffic["weights"] <= total.weights + batch * model.hidden * 2 + 2 * model.vocab * model.hidden
    )


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
field_names = st.sampled_from(
    sorted(
        {
            "model_type", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
            "head_dim", "intermediate_size", "vocab_size", "sliding_window", "layer_types", "text_config",
            "attn_layer_period", "attn_layer_offset", "kv_lora_rank", "num_experts", "num_experts_per_tok",
            "quantization_config", "attention_types", "attn_config", "no_rope_layers", "state_size",
            "hybrid_override_pattern", "is_encoder_decoder", "attn_type_list", "attn_layer_indices",
            "mlp_only_layers", "expansion_ratio", "attention_chunk_size", "mamba_dt_rank", "expand",
        }
    )
)  # fmt: skip


@given(st.dictionaries(field_names, json_values | st.integers(0, 64), max_size=12), configs())
def test_nonsense_is_explained_and_never_an_error_of_ours(nonsense, base):
    for config in (nonsense, {**base, **nonsense}):
        for problem in refusals(config):
            assert problem.detail
            assert problem.pointer.startswith("/config")


def refusals(config):
    """What is said against a config; one that is accepted must have an answer."""
    try:
        read = read_config(config)
    except SpecError as refused:
        return refused.problems
    kv_cache(read.model, cache_format("float16"), 100)
    weigh(read.model)
    return ()
