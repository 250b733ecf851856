"""The questions the other way round: what is found fits, and one more does not."""

from dataclasses import replace

import pytest

from kernels.sizing.gpus import find_gpu, gpus
from kernels.sizing.hf_config import read_config
from kernels.sizing.inverse import MAX_LEN, divides, largest, longest, most_sequences, which_fit
from kernels.sizing.kv_cache import kv_cache
from kernels.sizing.memory import Workload, per_gpu_bytes
from kernels.sizing.models import read_model
from kernels.sizing.storage import cache_format
from tests.kernels.sizing import configs

A100 = find_gpu("a100-80-sxm")


def test_two_a100_hold_llama_2_70b_with_16_sequences():
    """160 GB less 138 GB of weights leave some 22 GB: 16 sequences of 1.25 GiB; of 10 GiB it would be 2.

    (It would be none: with 64 key/value heads the projections are 19 GB larger.)
    """
    model = read_model("llama-2-70b").model
    assert most_sequences(model, Workload(4096, gpus=2), A100.memory_bytes) == 16
    assert most_sequences(model, Workload(4096), A100.memory_bytes) == 0
    left = 2 * A100.memory_bytes - per_gpu_bytes(model, Workload(0))
    assert round(left / 1e9) == 22
    many = read_config({**configs.LLAMA_2_70B, "num_key_value_heads": 64}).model
    assert left // kv_cache(many, cache_format("float16"), 4096).bytes == 2
    assert most_sequences(many, Workload(4096, gpus=2), A100.memory_bytes) == 0


def test_llama_3_8b_fits_a_4090_with_room_to_spare():
    load, budget = Workload(4096), find_gpu("rtx-4090").memory_bytes
    model = read_model("llama-3-8b").model
    assert per_gpu_bytes(model, load) < budget
    left = budget - per_gpu_bytes(model, replace(load, length=1)) + 128 * 1024
    assert longest(model, load, budget) == left // (128 * 1024)


def test_a_state_is_as_large_for_every_length():
    model = read_model("mamba-2.8b").model
    assert longest(model, Workload(1), A100.memory_bytes) == MAX_LEN


def test_a_window_gives_room_for_more():
    windowed, full = read_model("mistral-7b-v0.1").model, read_model("mistral-7b-v0.2").model
    budget = 16 * 10**9
    assert longest(windowed, Workload(1), budget) == MAX_LEN
    assert longest(full, Workload(1), budget) < 20_000


def test_which_gpus_fit():
    found = {fit.gpu.slug: fit.count for fit in which_fit(read_model("llama-3-70b").model, Workload(8192))}
    assert set(found) == set(gpus())
    assert found["a100-80-sxm"] == 2
    assert found["b200"] == 1
    assert found["l4"] == 8
    assert found["v100-sxm2-16"] == 16


def test_what_each_gpu_holds_is_said_of_as_many_as_are_needed():
    model, load = read_model("llama-3-70b").model, Workload(8192)
    for fit in which_fit(model, load):
        held = per_gpu_bytes(model, replace(load, gpus=fit.count))
        assert fit.per_gpu == held <= fit.gpu.memory_bytes
        if fit.count > 1:
            assert per_gpu_bytes(model, replace(load, gpus=fit.count // 2)) > fit.gpu.memory_bytes


def test_heads_that_cannot_be_shared_stay_on_one_gpu():
    model = read_model("falcon-7b").model  # 71 heads
    assert divides(model, 71)
    assert not divides(model, 2)
    found = {fit.gpu.slug: fit.count for fit in which_fit(model, Workload(2048))}
    assert found["v100-sxm2-16"] == 1
    assert set(found.values()) == {1}
    big = read_config({**configs.FALCON_7B, "num_hidden_layers": 320}).model
    assert {fit.count for fit in which_fit(big, Workload(1))} == {None, 1}


@pytest.mark.parametrize("limit", [0, 1, 2, 7, 1000])
def test_the_largest_is_found_wherever_it_is(limit):
    for edge in {0, 1, 2, limit // 2, limit - 1, limit, limit + 5}:
        assert largest(lambda n, edge=edge: n <= edge, limit) == max(0, min(edge, limit))
