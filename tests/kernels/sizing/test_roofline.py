"""Bounds on time, against the arithmetic of textbooks and data sheets."""

from dataclasses import replace

import pytest

from kernels.sizing.gpus import find_gpu, gpus
from kernels.sizing.hf_config import read_config
from kernels.sizing.memory import Workload, memory
from kernels.sizing.models import models, read_model
from kernels.sizing.roofline import bound, decode, flops, prefill, traffic_of, visible_pairs
from kernels.sizing.storage import cache_format, weight_format
from kernels.sizing.weights import weigh
from tests.kernels.sizing import configs

A100 = find_gpu("a100-80-sxm")


def llama_70b(kv_heads):
    return read_config({**configs.LLAMA_2_70B, "num_key_value_heads": kv_heads}).model


def test_reading_the_cache_of_llama_2_70b():
    """At 2.04 TB/s: 5.3 ms for 64 key/value heads, .66 ms for 8; weights take 67.7 ms whichever it is."""
    for kv_heads, milliseconds in ((64, 5.3), (8, 0.66)):
        step = traffic_of(llama_70b(kv_heads), Workload(4096))
        assert f"{step['cache_read'] / A100.bandwidth * 1e3:.2g}" == f"{milliseconds:.2g}"
    model = llama_70b(8)
    assert round(memory(model, Workload(4096)).weights / A100.bandwidth * 1e3, 1) == 67.7
    # A step reads one row of the embedding instead of the table, so it is a little less.
    step = bound(model, Workload(4096), A100)
    table = 32000 * 8192 * 2
    assert step.traffic["weights"] == weigh(model).bytes - table + 8192 * 2
    assert step.bound == "memory"
    assert step.seconds == pytest.approx(
        (step.traffic["weights"] + step.traffic["cache_read"]) / 2.039e12, rel=1e-5
    )


def test_a_batch_reads_the_weights_once():
    model = llama_70b(8)
    one, many = (bound(model, Workload(4096, batch=batch), A100) for batch in (1, 16))
    assert many.traffic["weights"] == pytest.approx(one.traffic["weights"], rel=1e-4)
    assert many.traffic["cache_read"] == 16 * one.traffic["cache_read"]
    assert many.flops == 16 * one.flops
    # Large enough, arithmetic is the bound: some 153 FLOP to a byte, two to a 16-bit weight.
    assert bound(model, Workload(1, batch=100), A100).bound == "memory"
    assert bound(model, Workload(1, batch=200), A100).bound == "compute"


def encoder(hidden, heads=8):
    """One layer as textbooks have it: multi-head attention and an MLP four times as wide."""
    return read_config(
        {
            "model_type": "bert", "hidden_size": hidden, "num_attention_heads": heads, "num_hidden_layers": 1,
            "intermediate_size": 4 * hidden, "vocab_size": 10, "max_position_embeddings": 10,
        }
    ).model  # fmt: skip


@pytest.mark.parametrize(("n", "d"), [(512, 512), (1024, 64), (3072, 512)])
def test_attention_costs_4n2d_and_projections_24nd2(n, d):
    """They are equal at n = 6d."""
    assert flops(encoder(d), Workload(n, q_len=None)) == 4 * n * n * d + 24 * n * d * d
    assert (4 * n * n * d == 24 * n * d * d) == (n == 6 * d)


def test_two_operations_to_a_parameter_and_token():
    """2·P of a step without its embedding, and what it takes to look at the cache."""
    model = read_model("llama-3-8b").model
    weights = weigh(model)
    matrices = weights.params - weights.part_params["embedding"] - weights.part_params["norms"]
    attended = 4 * 32 * 32 * 128 * 1000
    assert flops(model, Workload(1000)) == 2 * matrices + attended


def test_a_state_is_updated_and_read_and_its_convolution_slides():
    model = read_model("mamba-2.8b").model
    projections = 2 * 5120 * 2560 + (160 + 2 * 16) * 5120 + 5120 * 160 + 2560 * 5120
    state = 6 * 5120 * 16 + 2 * 5120 * 4
    assert flops(model, Workload(1000)) == 64 * (2 * projections + state) + 2 * 2560 * 50280
    assert traffic_of(model, Workload(1000))["states"] == 2 * 64 * 5120 * (16 + 4) * 2  # there and back


def pairs_by_hand(length, queries, window, is_chunked):
    def sees(query, key):
        if window is None:
            return True
        return query // window == key // window if is_chunked else query - key < window

    return sum(sees(query, key) for query in range(length - queries, length) for key in range(query + 1))


@pytest.mark.parametrize("is_chunked", [False, True])
@pytest.mark.parametrize("window", [None, 1, 5, 12, 40])
@pytest.mark.parametrize(("length", "queries"), [(12, 12), (12, 1), (12, 5), (1, 1), (30, 7)])
def test_pairs_that_see_each_other(length, queries, window, is_chunked):
    mixer = replace(read_model("llama-3-8b").model.layers[0].mixers[0], window=window, is_chunked=is_chunked)
    by_hand = pairs_by_hand(length, queries, window, is_chunked)
    assert visible_pairs(mixer, Workload(length, q_len=queries)) == by_hand


@pytest.mark.parametrize("slug", models())
def test_a_prompt_in_parts_costs_what_it_costs_at_once(slug):
    """Tokens one by one cost as much arithmetic as together, but for the head (and what an encoder reads)."""
    model = replace(read_model(slug).model, has_head=False, vocab=0, encoder=())
    if slug.startswith(("bert", "deepseek", "t5")):
        return  # no tokens one by one; another form for one token; keys of another sequence
    together = flops(model, Workload(7, q_len=None))
    assert sum(flops(model, Workload(n, q_len=1)) for n in range(1, 8)) == together


def test_latents_are_absorbed_for_one_token_and_expanded_for_a_prompt():
    model = read_model("deepseek-v3").model
    attended = flops(model, Workload(2000)) - flops(model, Workload(1000))
    assert attended == 61 * 2 * 128 * (2 * 512 + 64) * 1000
    prompt = flops(model, Workload(2, q_len=None, all_logits=True)) - 2 * flops(model, Workload(1))
    assert prompt == 61 * 2 * 128 * (128 + 64 + 128)  # one pair more than two lone tokens have


def test_an_index_looks_through_everything_to_attend_to_little():
    config = {**configs.DEEPSEEK_V3, "index_topk": 2048, "index_head_dim": 128, "index_n_heads": 64}
    model = read_config(config).model
    far, near = (traffic_of(model, Workload(length))["cache_read"] for length in (100_000, 2048))
    assert far - near == 61 * 128 * 2 * (100_000 - 2048)
    ten = traffic_of(model, Workload(100_000, q_len=10))["cache_read"]  # each finds 2,048 of its own
    assert ten - far == 61 * (512 + 64) * 2 * 9 * 2048
    attended = flops(model, Workload(100_000)) - flops(model, Workload(50_000))
    assert attended == 61 * 2 * 64 * 128 * 50_000
    assert near == traffic_of(read_config(configs.DEEPSEEK_V3).model, Workload(2048))["cache_read"] + (
        61 * 128 * 2 * 2048
    )


def test_experts_are_read_as_they_are_chosen():
    model = read_model("mixtral-8x7b").model
    one = traffic_of(model, Workload(10))["weights"]
    many = traffic_of(model, Workload(10, batch=1000))["weights"]
    weights = weigh(model)
    assert one == pytest.approx(2 * weights.active_params - 2 * 32000 * 4096 + 2 * 4096)
    assert many == pytest.approx(2 * (weights.params - 32000 * 4096) + 1000 * 2 * 4096)
    two = traffic_of(model, Workload(10, batch=2))["weights"]
    assert (two - one) / (many - one) == pytest.approx((0.75 * 0.25 * 8) / 6, rel=1e-3)  # 2, 3.5 … 8 of 8


def test_quantised_weights_and_caches_are_read_faster():
    model = read_model("llama-3-8b").model
    plain = bound(model, Workload(8192, batch=8), A100)
    small = bound(
        model, Workload(8192, batch=8, cache=cache_format("int8"), weights=weight_format("int4")), A100
    )
    assert small.traffic["cache_read"] == plain.traffic["cache_read"] * (128 + 4) / 256
    assert small.seconds < plain.seconds / 1.9


def test_eight_bit_tensor_cores_are_used_when_asked_for():
    prompt, h100 = prefill(Workload(4096)), find_gpu("h100-sxm")
    model = read_model("llama-3-8b").model
    assert bound(model, prompt, h100, 16).compute_seconds / bound(model, prompt, h100, 8).compute_seconds == (
        pytest.approx(1979 / 989)
    )
    with pytest.raises(ValueError, match="A100"):
        bound(model, prompt, A100, 8)


def test_gpus_share_the_work():
    model = llama_70b(8)
    alone, shared = (bound(model, decode(Workload(4096, gpus=n)), A100) for n in (1, 8))
    assert alone.compute_seconds == pytest.approx(8 * shared.compute_seconds)
    assert alone.memory_seconds == pytest.approx(8 * shared.memory_seconds, rel=1e-6)


def test_the_ridges_of_the_table():
    ridges = {
        "v100-sxm2-32": 139, "a100-40": 201, "a100-80-sxm": 153, "h100-sxm": 295, "h200": 206, "b200": 281,
        "rtx-4090": 164, "l4": 403,
    }  # fmt: skip
    assert {slug: round(gpus()[slug].ridge) for slug in ridges} == ridges


def test_a_decoder_makes_the_encoder_s_keys_once():
    """T5-base, by hand: after the first step neither the encoder nor its keys and values are made again."""
    model, d = read_model("t5-base").model, 768
    own = 12 * (4 * d * d + 2 * d * d + 2 * d * 3072)  # self, cross without its K and V, MLP
    attended = 12 * 4 * 12 * 64 * (10 + 512)
    later = Workload(10, encoder_len=512)
    assert flops(model, later) == 2 * (own + 32128 * d) + attended
    assert traffic_of(model, later)["weights"] == pytest.approx(2 * (own + 32128 * d), rel=1e-3)
    assert traffic_of(model, later)["cache_written"] == 36 * 1024
    first = traffic_of(model, prefill(later))
    assert first["cache_written"] == first["cache_read"] == 36 * 1024 * (10 + 512)
    assert first["weights"] == pytest.approx(2 * weigh(model).params, rel=1e-3)
    encoder = 12 * (4 * d * d + 2 * d * 3072) * 2 * 512 + 12 * 4 * d * 512 * 512
    keys = 12 * 2 * d * d * 2 * 512
    prompt = 2 * (own * 10 + 32128 * d) + 12 * 4 * d * (55 + 10 * 512)
    assert flops(model, prefill(later)) == encoder + keys + prompt


def test_an_encoder_is_read_with_the_prompt_alone():
    model = read_model("t5-base").model
    first, later = (
        flops(model, Workload(10, q_len=None, encoder_len=512)),
        flops(model, Workload(10, encoder_len=512)),
    )
    assert first > 2 * 512 * 12 * 12 * 768 * 768 > later
