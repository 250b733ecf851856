"""Hybrid stacks against the same stacks read from published configs, and against arithmetic by hand."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.linear.inputs import Recurrence
from kernels.linear.recurrence import chunked
from kernels.scan.recurrence import recurrent
from kernels.sizing.hf_config import read_config
from kernels.sizing.hybrid_questions import parse_hybrid_question
from kernels.sizing.kv_cache import kv_cache
from kernels.sizing.models import read_model
from kernels.sizing.storage import cache_format
from tests.kernels.scan.test_scan import selective
from tests.kernels.sizing import configs

KIB, MIB, GIB = 2**10, 2**20, 2**30
JAMBA = {
    "num_layers": 32,
    "attention_every": 8,
    "attention": {"num_heads": 32, "num_kv_heads": 8, "head_dim": 128},
    "state": {"kind": "mamba", "d_inner": 8192, "d_state": 16, "d_conv": 4},
    "len": 2**18,
}


def stack_of(**body):
    return parse_hybrid_question({**JAMBA, **body}).stack


def test_jamba_from_its_fields_alone():
    """One of eight layers is attention: 16 KiB a token, 4 GiB at 256K; were all 32, 32 GiB."""
    jamba = stack_of()
    assert (jamba.attention_layers, jamba.state_layers) == (4, 28)
    assert jamba.cache_bytes(1) == 16 * KIB
    assert jamba.cache_bytes(2**18) == 4 * GIB
    assert jamba.all_attention_bytes(2**18) == 32 * GIB
    assert stack_of(attention_every=None, attention_layers=4) == jamba
    assert stack_of(num_layers=31).attention_layers == 3  # the 8th, the 16th and the 24th


def test_a_hybrid_is_what_its_published_config_is():
    config = read_config(configs.JAMBA).model
    for length in (0, 1, 1000, 2**18):
        cached = kv_cache(config, cache_format("float16"), length)
        assert stack_of().cache_bytes(length) == cached.bytes
        assert stack_of().state_bytes == cached.state_bytes
    mamba = kv_cache(read_model("mamba-2.8b").model, cache_format("float16"), 9)
    alone = stack_of(
        num_layers=64, attention_every=None, attention_layers=0, state={"kind": "mamba", "d_inner": 5120}
    )
    assert alone.state_bytes == mamba.state_bytes
    assert alone.cache_bytes(10**9) == 0
    assert alone.break_even() is None


def test_the_state_in_float32_and_where_the_cache_passes_it():
    """28 layers of 8,192 channels and 16 numbers: 14 MiB in float32, which 896 tokens of 16 KiB take too."""
    state = {"kind": "mamba", "d_inner": 8192, "d_conv": 0, "dtype": "float32"}
    jamba = stack_of(state=state)
    assert jamba.state_bytes == 14 * MIB == jamba.cache_bytes(896)
    assert jamba.break_even() == 897
    assert jamba.layer_break_even() == 8192 * 16 * 4 // (4 * KIB) + 1 == 129
    narrow = stack_of(state={**state, "d_conv": 4, "conv_dtype": "float16"})
    assert narrow.state_bytes == 14 * MIB + 28 * 8192 * 4 * 2


def test_states_are_as_large_as_the_arrays_that_are_kept():
    given = selective(batch=1, heads=3, groups=3, p=5, states=7)
    for state in (
        {"kind": "mamba", "d_inner": 15, "d_state": 7, "d_conv": 0},
        {"kind": "mamba2", "num_heads": 3, "head_dim": 5, "num_groups": 3, "d_state": 7, "d_conv": 0},
    ):
        assert stack_of(state=state).layer_state_bytes == recurrent(given).state.nbytes // 8 * 2
    q, v = np.ones((1, 3, 4, 5)), np.ones((1, 3, 4, 7))
    kept = chunked(Recurrence(q, q, v), chunk=4).state.s
    linear = stack_of(state={"kind": "linear", "num_heads": 3, "d_k": 5, "d_v": 7, "dtype": "float32"})
    assert linear.layer_state_bytes == kept.nbytes // 2


@pytest.mark.parametrize(
    ("state", "numbers"),
    [
        ({"kind": "mamba", "d_inner": 10}, 10 * 16 + 10 * 4),
        ({"kind": "mamba2", "num_heads": 80}, 80 * 64 * 128 + (80 * 64 + 2 * 128) * 4),
        (
            {"kind": "mamba2", "num_heads": 8, "num_groups": 2, "d_state": 10, "d_conv": 3},
            8 * 64 * 10 + (8 * 64 + 2 * 20) * 3,
        ),
        ({"kind": "linear", "num_heads": 4, "d_k": 6, "d_v": 5}, 4 * 6 * 5),
        ({"kind": "linear", "num_heads": 4, "d_k": 6, "d_v": 5, "d_conv": 4}, 4 * (6 * 5 + (2 * 6 + 5) * 4)),
    ],
)  # fmt: skip
def test_numbers_in_a_state(state, numbers):
    assert stack_of(state=state).layer_state_bytes == 2 * numbers


def test_windows_keep_what_they_hold_and_may_never_pass_the_state():
    body = {"attention_every": None, "attention_layers": 4, "windowed_layers": 4, "window": 100}
    windowed = stack_of(**body)
    assert windowed.cache_bytes(99) == 99 * 16 * KIB
    assert windowed.cache_bytes(10**6) == 100 * 16 * KIB
    assert windowed.break_even() is None
    half = stack_of(**{**body, "windowed_layers": 2})
    assert half.cache_bytes(1000) == (1000 + 100) * 8 * KIB
    assert half.flops(half.windowed, 1000) == half.flops(half.attention, 100)


@st.composite
def stacks(draw):
    layers = draw(st.integers(1, 40))
    attention = draw(st.integers(0, layers))
    windowed = draw(st.integers(0, attention))
    return stack_of(
        num_layers=layers,
        attention_every=None,
        attention_layers=attention,
        windowed_layers=windowed,
        window=draw(st.integers(1, 9000)) if windowed else None,
        attention={"num_kv_heads": draw(st.integers(1, 8)), "head_dim": draw(st.integers(1, 64))},
        state={"kind": "mamba", "d_inner": draw(st.integers(1, 500))},
    )


@settings(max_examples=80, deadline=None)
@given(stacks())
def test_the_cache_passes_the_state_where_it_is_said(stack):
    found = stack.break_even()
    if found is None:
        assert stack.cache_bytes(10**9) <= stack.state_bytes
    else:
        assert stack.cache_bytes(found - 1) <= stack.state_bytes < stack.cache_bytes(found)
        assert stack.lengths(0)[-1] >= found
    layer = stack.layer_break_even()
    assert (layer - 1) * stack.layer_token_bytes <= stack.layer_state_bytes < layer * stack.layer_token_bytes
    more = stack.flops_break_even()
    assert stack.flops(stack.attention, more - 1) <= stack.flops(stack.state, more)
    assert stack.flops(stack.attention, more) > stack.flops(stack.state, more)


def test_what_a_token_and_a_prompt_take():
    """4 d n for a token of attention, whatever is cached; 6 d N and the convolution for one of a state."""
    jamba = stack_of()
    assert jamba.flops(jamba.attention, 1000) == 4 * 4096 * 1000
    assert jamba.flops(jamba.state, 1000) == jamba.flops(jamba.state, 7) == 6 * 8192 * 16 + 2 * 8192 * 4
    assert jamba.flops(jamba.attention, 1000, None) == 4 * 4096 * 1000 * 1001 // 2
    assert jamba.flops(jamba.state, 1000, None) == 1000 * jamba.flops(jamba.state, 1)


def test_lengths_to_draw_are_powers_of_two_beyond_what_is_asked():
    assert stack_of().lengths(2**18) == [2**power for power in range(19)]
    assert stack_of().lengths(2**18 + 1)[-1] == 2**19
    assert stack_of().lengths(1)[-1] == 2048  # cache and state cross at 561
    assert stack_of().lengths(10**9)[-1] == 2**30
