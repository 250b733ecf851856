"""Quantised keys and values: the formats against torch's, the bound on an element, the decoder of the kernels
through the interpreter and through the compiler, and what quantising does to attention."""

import json
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from kernels.arrays import generate
from kernels.flash.codes import decode, decode_as
from kernels.quantise import (
    KV_DTYPES,
    LARGEST_CODE,
    Quantised,
    decode_fp8,
    dequantise,
    element_error,
    encode_fp8,
    quantise,
)

Array = np.ndarray[Any, np.dtype[Any]]
TORCH = {"int8": torch.int8, "fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2}
FP8 = ("fp8_e4m3", "fp8_e5m2")
BYTES = np.arange(256, dtype=np.uint8)
# What a format can express without losing digits: largest code over smallest code with all its digits.
RANGE = {"int8": 127.0, "fp8_e4m3": 448.0 * 2.0**6, "fp8_e5m2": 57344.0 * 2.0**14}


def codes_of(kv_dtype: str) -> Array:
    """All 256 codes."""
    return BYTES.view(np.int8) if kv_dtype == "int8" else BYTES


def torch_numbers(codes: Array, kv_dtype: str) -> Array:
    return torch.from_numpy(codes.copy()).view(TORCH[kv_dtype]).to(torch.float32).numpy()


# The formats


@pytest.mark.parametrize("kv_dtype", FP8)
def test_every_code_is_the_number_torch_says(kv_dtype: str) -> None:
    expected = torch_numbers(BYTES, kv_dtype)
    got = decode_fp8(BYTES, kv_dtype)
    np.testing.assert_array_equal(got, expected)
    numbers = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(got[numbers]), np.signbit(expected[numbers]))


@pytest.mark.parametrize(
    ("kv_dtype", "code", "number"),
    [
        ("fp8_e4m3", 0x01, 2.0**-9),
        ("fp8_e4m3", 0x07, 7 * 2.0**-9),
        ("fp8_e4m3", 0x08, 2.0**-6),
        ("fp8_e4m3", 0x38, 1.0),
        ("fp8_e4m3", 0xFE, -448.0),
        ("fp8_e5m2", 0x01, 2.0**-16),
        ("fp8_e5m2", 0x04, 2.0**-14),
        ("fp8_e5m2", 0x3D, 1.25),
        ("fp8_e5m2", 0x7B, 57344.0),
    ],
)
def test_numbers_that_the_specification_tabulates(kv_dtype: str, code: int, number: float) -> None:
    assert decode_fp8(np.array([code], np.uint8), kv_dtype)[0] == number
    assert encode_fp8(np.array([number]), kv_dtype)[0] == code


def nearest_by_torch(x: Array, kv_dtype: str) -> Array:
    """torch's codes of float32 numbers, which are first brought into the range of the format."""
    top = LARGEST_CODE[kv_dtype]
    return torch.from_numpy(np.clip(x, -top, top)).to(TORCH[kv_dtype]).view(torch.uint8).numpy()


def hard_numbers(kv_dtype: str) -> Array:
    """float32: every number of the format, every tie between two neighbours, and what lies beside them."""
    numbers = np.unique(np.abs(torch_numbers(BYTES, kv_dtype)))
    numbers = numbers[np.isfinite(numbers)]
    ties = (numbers[1:] + numbers[:-1]) / 2
    exact = np.concatenate([numbers, ties, [2 * numbers[-1]]]).astype(np.float32)
    beside = [np.nextafter(exact, np.float32(side)) for side in (-np.inf, np.inf)]
    points = np.concatenate([exact, *beside])
    return np.concatenate([points, -points])


@pytest.mark.parametrize("kv_dtype", FP8)
def test_encoding_rounds_every_boundary_and_tie_as_torch_does(kv_dtype: str) -> None:
    x = hard_numbers(kv_dtype)
    np.testing.assert_array_equal(encode_fp8(x, kv_dtype), nearest_by_torch(x, kv_dtype))


@pytest.mark.parametrize("kv_dtype", FP8)
def test_encoding_rounds_random_floats_as_torch_does(kv_dtype: str) -> None:
    rng = np.random.default_rng()
    top = LARGEST_CODE[kv_dtype]
    patterns = rng.integers(0, 2**32, 200_000, dtype=np.uint32).view(np.float32)
    in_range = (rng.choice([-1, 1], 200_000) * top * 2.0 ** rng.uniform(-34, 0, 200_000)).astype(np.float32)
    for x in (patterns[np.isfinite(patterns)], in_range):
        np.testing.assert_array_equal(encode_fp8(x, kv_dtype), nearest_by_torch(x, kv_dtype))


@pytest.mark.parametrize("kv_dtype", FP8)
def test_encoding_saturates_and_keeps_nan(kv_dtype: str) -> None:
    top = LARGEST_CODE[kv_dtype]
    beyond = np.array([np.inf, -np.inf, 3.4e38, -1e9, top * 1.0001])
    np.testing.assert_array_equal(
        decode_fp8(encode_fp8(beyond, kv_dtype), kv_dtype), [top, -top, top, -top, top]
    )
    assert np.isnan(decode_fp8(encode_fp8(np.array([np.nan, -np.nan]), kv_dtype), kv_dtype)).all()


@pytest.mark.parametrize("kv_dtype", FP8)
def test_a_number_of_the_format_comes_back_as_its_own_code(kv_dtype: str) -> None:
    finite = BYTES[np.isfinite(torch_numbers(BYTES, kv_dtype))]
    np.testing.assert_array_equal(encode_fp8(decode_fp8(finite, kv_dtype), kv_dtype), finite)


# Quantising


@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
@pytest.mark.parametrize("kv_scale", ["per_tensor", "per_token_head"])
def test_shapes_types_and_scales(kv_dtype: str, kv_scale: str) -> None:
    x = generate("k", 3, (2, 3, 5, 7), "peaked", "float32")
    got = quantise(x, kv_dtype, kv_scale)
    assert got.codes.shape == x.shape
    assert got.codes.dtype == (np.int8 if kv_dtype == "int8" else np.uint8)
    assert got.scale.dtype == np.float32
    largest = np.abs(x).max(axis=-1) if kv_scale == "per_token_head" else np.abs(x).max()
    assert got.scale.shape == (() if kv_scale == "per_tensor" else (2, 3, 5))
    top = LARGEST_CODE[kv_dtype]
    np.testing.assert_array_equal(got.scale, (largest.astype(np.float64) / top).astype(np.float32))
    # The largest element of a block uses the largest code, and no code lies beyond it.
    numbers = np.abs(dequantise(Quantised(got.codes, np.ones_like(got.scale), kv_dtype), "float64"))
    assert (numbers.max(axis=-1) == top).all() if kv_scale == "per_token_head" else numbers.max() == top


@pytest.mark.parametrize("kv_scale", ["per_tensor", "per_token_head"])
def test_int8_codes_by_hand(kv_scale: str) -> None:
    x = np.array([[[[127.0, -126.5, 125.5, 0.5, 1.5, -2.5, 2.51, 0.0]]]], np.float32)
    got = quantise(x, "int8", kv_scale)
    assert got.scale.ravel().tolist() == [1.0]
    assert got.codes[0, 0, 0].tolist() == [127, -126, 126, 0, 2, -2, 3, 0]


def test_fp8_codes_are_those_of_torch_for_the_scaled_array() -> None:
    x = generate("k", 5, (1, 2, 40, 16), "normal", "float32")
    x[0, 0, 0, 0] = 448.0  # with this maximum the scale is a power of two and x / scale exact in float32
    got = quantise(x, "fp8_e4m3", "per_tensor")
    assert got.scale == 1.0
    np.testing.assert_array_equal(got.codes, nearest_by_torch(x, "fp8_e4m3"))


@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
@pytest.mark.parametrize("kv_scale", ["per_tensor", "per_token_head"])
@pytest.mark.parametrize("shape", [(0, 2, 3, 4), (2, 0, 3, 4), (2, 2, 0, 4), (2, 2, 3, 0), (1, 1, 2, 3)])
def test_empty_and_zero_blocks_have_scale_one(
    kv_dtype: str, kv_scale: str, shape: tuple[int, int, int, int]
) -> None:
    got = quantise(np.zeros(shape, np.float32), kv_dtype, kv_scale)
    assert (got.scale == 1.0).all()
    assert not got.codes.any()
    assert dequantise(got, "float32").shape == shape


@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
@pytest.mark.parametrize("kv_scale", ["per_tensor", "per_token_head"])
def test_what_lies_beyond_a_sequence_is_never_read(kv_dtype: str, kv_scale: str) -> None:
    x = generate("v", 8, (3, 2, 6, 4), "normal", "float32")
    lens = np.array([6, 2, 0])
    clean, dirty = x.copy(), x.copy()
    for b, length in enumerate(lens):
        clean[b, :, length:], dirty[b, :, length:] = 0.0, np.nan
        dirty[b, :, length + 1 :] = 1e30
    got, expected = quantise(dirty, kv_dtype, kv_scale, lens), quantise(clean, kv_dtype, kv_scale)
    np.testing.assert_array_equal(got.codes, expected.codes)
    np.testing.assert_array_equal(got.scale, expected.scale)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
def test_what_is_not_finite_is_refused(kv_dtype: str, value: float) -> None:
    x = np.ones((1, 1, 2, 2), np.float32)
    x[0, 0, 1, 0] = value
    for kv_scale in ("per_tensor", "per_token_head"):
        with pytest.raises(ValueError, match="leave the range of float32"):
            quantise(x, kv_dtype, kv_scale)


def test_names_that_do_not_exist_are_refused() -> None:
    x = np.ones((1, 1, 1, 1))
    with pytest.raises(ValueError, match="fp8_e4m3"):
        quantise(x, "fp8", "per_tensor")
    with pytest.raises(ValueError, match="per_token_head"):
        quantise(x, "int8", "per_channel")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_dequantised_numbers_are_rounded_once(dtype: str) -> None:
    x = generate("k", 2, (2, 1, 9, 8), "normal", "float32")
    got = quantise(x, "fp8_e5m2", "per_token_head")
    exact = dequantise(got, "float64")
    rounded = torch.from_numpy(exact).to(getattr(torch, dtype)).to(torch.float64).numpy()
    np.testing.assert_array_equal(dequantise(got, dtype).astype(np.float64), rounded)


# How far an element can be off


def worst(x: Array, kv_dtype: str) -> float:
    """The largest error of an element as a fraction of the largest magnitude; x is one block."""
    x = x.astype(np.float64).reshape(1, 1, 1, -1)
    error = np.abs(dequantise(quantise(x, kv_dtype, "per_token_head"), "float64") - x)
    return float(error.max() / np.abs(x).max())


BLOCKS = hnp.arrays(
    np.float32,
    st.integers(1, 40),
    elements=st.floats(-(2.0**60), 2.0**60, width=32)
    | st.floats(-1.0, 1.0, width=32)
    | st.sampled_from([126.5, 127.0, 432.0, 448.0, 53248.0, 57344.0]),
)


@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
def test_no_element_is_off_by_more_than_the_bound(kv_dtype: str) -> None:
    @settings(max_examples=300, deadline=None)
    @given(BLOCKS)
    def holds(x: Array) -> None:
        if np.abs(x).max() >= LARGEST_CODE[kv_dtype] * 2.0**-126:
            assert worst(x, kv_dtype) <= element_error(kv_dtype)

    holds()
    rng = np.random.default_rng()
    for x in (rng.normal(size=(500, 64)), rng.uniform(-1, 1, (500, 64)), rng.standard_cauchy((500, 64))):
        assert max(worst(block, kv_dtype) for block in x) <= element_error(kv_dtype)


@pytest.mark.parametrize(
    ("kv_dtype", "tie", "fraction"),
    [("int8", 126.5, 1 / 254), ("fp8_e4m3", 432.0, 1 / 28), ("fp8_e5m2", 53248.0, 1 / 14)],
)
def test_the_bound_is_reached_where_a_tie_lies_below_the_largest_code(
    kv_dtype: str, tie: float, fraction: float
) -> None:
    top = LARGEST_CODE[kv_dtype]
    assert worst(np.array([top, tie]), kv_dtype) == fraction
    assert fraction < element_error(kv_dtype) < fraction * (1 + 1e-7)
    # The rounding of the scale adds its part: just above 1 float32 numbers are 2⁻²³ apart, and the scale
    # of a maximum that is slightly more than halfway to the next is that next one.
    scale = 1.0 + 2.0**-23
    largest = top * (1.0 + 2.0**-24 + 2.0**-40)
    reached = worst(np.array([largest, tie * scale]), kv_dtype)
    assert fraction * (1 + 2.0**-25) < reached <= element_error(kv_dtype)


@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
@pytest.mark.parametrize("exponent", [-149, -140, -126, -120])
def test_tiny_numbers_are_off_by_no_more_than_the_smallest_scale_allows(kv_dtype: str, exponent: int) -> None:
    x = (np.random.default_rng().uniform(-1, 1, (1, 1, 4, 64)) * 2.0**exponent).astype(np.float32)
    got = quantise(x, kv_dtype, "per_token_head")
    error = np.abs(dequantise(got, "float64") - x.astype(np.float64)).max()
    largest = max(float(np.abs(x).max()), LARGEST_CODE[kv_dtype] * 2.0**-126)
    assert error <= element_error(kv_dtype) * largest


# The kernels' decoder


@triton.jit
def _decoded(p_codes, p_numbers, FORMAT: tl.constexpr) -> None:  # noqa: N803
    o = tl.arange(0, 256)
    tl.store(p_numbers + o, decode(tl.load(p_codes + o), FORMAT).to(p_numbers.dtype.element_ty))


@triton.jit
def _product(  # noqa: PLR0917
    p_q, p_codes, p_out, n_rows,
    FORMAT: tl.constexpr, N: tl.constexpr, D: tl.constexpr,  # noqa: N803
) -> None:  # fmt: skip
    """q times decoded keys, as an attention kernel does it: keys beyond n_rows are masked."""
    o_n, o_d = tl.arange(0, N), tl.arange(0, D)
    b_q = tl.load(p_q + o_n[:, None] * D + o_d[None, :])
    b_codes = tl.load(p_codes + o_n[:, None] * D + o_d[None, :], mask=o_n[:, None] < n_rows, other=0)
    b_k = decode_as(b_codes, FORMAT, b_q.dtype)
    b_out = tl.dot(b_q, tl.trans(b_k), input_precision="ieee")
    tl.store(p_out + o_n[:, None] * N + o_n[None, :], b_out)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
def test_a_kernel_decodes_every_code(kv_dtype: str, dtype: torch.dtype) -> None:
    codes = codes_of(kv_dtype)
    numbers = torch.full((256,), 7.0, dtype=dtype)
    _decoded[(1,)](torch.from_numpy(codes.copy()), numbers, kv_dtype)
    got, expected = numbers.to(torch.float32).numpy(), torch_numbers(codes, kv_dtype)
    np.testing.assert_array_equal(got, expected)
    finite = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(got[finite]), np.signbit(expected[finite]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
def test_a_kernel_multiplies_by_decoded_keys(kv_dtype: str, dtype: torch.dtype) -> None:
    n, d, rows = 32, 16, 19
    q = torch.from_numpy(generate("q", 1, (n, d), "normal", "float32")).to(dtype)
    keys = quantise(generate("k", 1, (1, 1, n, d), "normal", "float32"), kv_dtype, "per_token_head")
    out = torch.empty((n, n), dtype=torch.float32)
    _product[(1,)](q, torch.from_numpy(keys.codes), out, rows, kv_dtype, n, d)
    numbers = dequantise(Quantised(keys.codes, np.ones_like(keys.scale), kv_dtype), "float64")[0, 0]
    numbers[rows:] = 0.0
    expected = q.to(torch.float64).numpy() @ numbers.T
    error = np.abs(q.to(torch.float64).numpy()) @ np.abs(numbers).T * d * 2.0**-24
    assert (np.abs(out.numpy() - expected) <= error).all()


COMPILE = """
import json, re, sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from tests.kernels.test_quantise import _product

found = {}
for target, kv_dtype, dtype in json.loads(sys.argv[1]):
    codes = "*i8" if kv_dtype == "int8" else "*u8"
    signature = {"p_q": "*" + dtype, "p_codes": codes, "p_out": "*fp32", "n_rows": "i32"}
    constants = {"FORMAT": kv_dtype, "N": 64, "D": 16 if dtype == "fp32" else 64}
    signature |= dict.fromkeys(constants, "constexpr")
    attributes = {(i,): [["tt.divisibility", 16]] for i in range(3)}
    source = ASTSource(_product, signature, constants, attributes)
    gpu = GPUTarget("cuda", int(target.removeprefix("sm_")), 32)
    ptx = triton.compile(source, target=gpu, options={"num_warps": 4}).asm["ptx"]
    found[f"{target} {kv_dtype} {dtype}"] = {
        "products": sorted(set(re.findall(r"wgmma.mma_async|mma.sync|tcgen05.mma|fma.rn.f32", ptx))),
        "tf32": "tf32" in ptx,
        "half": sorted(set(re.findall(r"mul[.a-z]*[.]f16(?:x2)?", ptx))),
    }
print(json.dumps(found))
"""
TENSOR_CORES = {
    "sm_80": "mma.sync",
    "sm_90": "wgmma.mma_async",
    "sm_100": "tcgen05.mma",
    "sm_120": "mma.sync",
}


def test_the_decoder_compiles_for_every_target() -> None:
    kernels = [(target, kv_dtype, "fp16") for target in TENSOR_CORES for kv_dtype in KV_DTYPES]
    kernels += [(target, "fp8_e4m3", dtype) for target in TENSOR_CORES for dtype in ("bf16", "fp32")]
    # In a process of its own: this one interprets kernels, and the two cannot share a process.
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    said = subprocess.run(
        [sys.executable, "-c", COMPILE, json.dumps(kernels)],
        env={**env, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert said.returncode == 0, said.stderr
    found = json.loads(said.stdout)
    for target, kv_dtype, dtype in kernels:
        kernel = found[f"{target} {kv_dtype} {dtype}"]
        # Tensor cores for 16 bits; for float32 none, for on sm_100 they would compute in TF32.
        assert kernel["products"] == ["fma.rn.f32" if dtype == "fp32" else TENSOR_CORES[target]], kernel
        assert not kernel["tf32"]
        # The subnormals of e4m3 pass through those of float16, which must not be flushed to 0.
        assert set(kernel["half"]) <= {"mul.f16", "mul.f16x2"}
        assert bool(kernel["half"]) == (kv_dtype == "fp8_e4m3")


# What becomes of attention


def attention(q: Array, k: Array, v: Array) -> Array:
    """Causal softmax attention of [n, d] arrays in float64, by its definition."""
    scores = np.where(np.tri(len(q), len(k)) == 1, q @ k.T / np.sqrt(q.shape[1]), -np.inf)
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=1, keepdims=True) @ v)


def made(seed: int, distribution: str) -> tuple[Array, Array, Array]:
    q, k, v = (generate(name, seed, (48, 64), distribution, "float64") for name in "qkv")
    return q, k, v


def through(x: Array, kv_dtype: str, kv_scale: str) -> Array:
    return np.asarray(dequantise(quantise(x[None, None], kv_dtype, kv_scale), "float64")[0, 0])


def attention_errors(arrays: tuple[Array, Array, Array], kv_dtype: str, kv_scale: str) -> Array:
    """What quantised keys and values change, [n, d]."""
    q, k, v = arrays
    return attention(q, through(k, kv_dtype, kv_scale), through(v, kv_dtype, kv_scale)) - attention(q, k, v)


def rms(x: Array) -> float:
    return float(np.sqrt(np.mean(x**2)))


@pytest.mark.parametrize("distribution", ["normal", "peaked"])
@pytest.mark.parametrize("kv_scale", ["per_tensor", "per_token_head"])
def test_without_outliers_more_digits_are_better(distribution: str, kv_scale: str) -> None:
    # Near the maximum int8 has seven digits, e4m3 four and e5m2 three.
    for seed in range(5):
        arrays = made(seed, distribution)
        int8, e4m3, e5m2 = (rms(attention_errors(arrays, kv_dtype, kv_scale)) for kv_dtype in KV_DTYPES)
        assert int8 < e4m3 < e5m2


@pytest.mark.parametrize("distribution", ["normal", "peaked"])
def test_a_scale_per_token_is_better_for_int8_even_without_outliers(distribution: str) -> None:
    # Each token's own maximum is at most that of all, so that its steps are at most as wide.
    for seed in range(5):
        arrays = made(seed, distribution)
        per_token = rms(attention_errors(arrays, "int8", "per_token_head"))
        assert per_token < rms(attention_errors(arrays, "int8", "per_tensor"))


@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
def test_an_outlying_token_spoils_the_others_only_where_it_shares_their_scale(kv_dtype: str) -> None:
    for seed in range(5):
        q, k, v = made(seed, "normal")
        calm = attention_errors((q, k, v), kv_dtype, "per_token_head")[:-1]
        # The last token, which causality keeps from every other query, is large.
        k[-1] *= RANGE[kv_dtype]
        v[-1] *= RANGE[kv_dtype]
        q[-1] = 0.0
        apart = attention_errors((q, k, v), kv_dtype, "per_token_head")[:-1]
        shared = attention_errors((q, k, v), kv_dtype, "per_tensor")[:-1]
        np.testing.assert_array_equal(apart, calm)
        assert rms(apart) < rms(shared)


@pytest.mark.parametrize(
    ("outlier", "best_first"),
    [
        # Beyond the range of int8 only: of the two others the one with more digits is better.
        (RANGE["int8"] * 4.0, ("fp8_e4m3", "fp8_e5m2", "int8")),
        # Beyond that of e4m3 too: what is left of its numbers are subnormals, and then zeros.
        (RANGE["fp8_e4m3"] * 16.0, ("fp8_e5m2", "fp8_e4m3", "int8")),
    ],
)
def test_where_a_scale_is_shared_with_an_outlier_range_comes_before_digits(
    outlier: float, best_first: tuple[str, ...]
) -> None:
    for seed in range(5):
        q, k, v = made(seed, "normal")
        q[-1], k[-1], v[-1] = 0.0, outlier, outlier
        errors = [rms(attention_errors((q, k, v), kv_dtype, "per_tensor")[:-1]) for kv_dtype in best_first]
        assert errors == sorted(errors)
        assert len(set(errors)) == 3


@pytest.mark.parametrize("kv_scale", ["per_tensor", "per_token_head"])
@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
@pytest.mark.parametrize("size", [0.02, 0.3, 1.0])
def test_the_error_of_an_element_bounds_that_of_attention(size: float, kv_dtype: str, kv_scale: str) -> None:
    # A logit moves by at most Δ = ‖q‖ · √d·ε·max|k| / √d (Cauchy and Schwarz), each weight then by a factor
    # within e^(±2Δ), and the output by Σ|Δw|·|v| + Σ w·|Δv|.
    for seed in range(5):
        q, k, v = (size * x for x in made(seed, "normal"))
        epsilon = element_error(kv_dtype)
        logit = np.linalg.norm(q, axis=1).max() * epsilon * np.abs(k).max()
        bound = (np.expm1(2 * logit) + epsilon) * np.abs(v).max()
        assert np.abs(attention_errors((q, k, v), kv_dtype, kv_scale)).max() <= bound
