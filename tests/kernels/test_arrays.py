"""Seeded inputs: the documented recipe, written again here from the documentation alone."""

import hashlib
import json
import statistics

import numpy as np
import pytest
import torch

from kernels.arrays import (
    DISTRIBUTIONS,
    bfloat16_to_float32,
    float32_to_bfloat16,
    generate,
    round_to_dtype,
    sha256,
    to_jsonable,
)


def words(name: str, seed: int, count: int) -> list[int]:
    """64-bit words of Philox4x64-10 in plain Python integers (Salmon et al. 2011), counter from 0 + 1."""
    mask = 2**64 - 1
    key = [seed, int.from_bytes(hashlib.sha256(b"attention-lab/v1/" + name.encode()).digest()[:8], "little")]
    out: list[int] = []
    block = 1  # numpy increments its counter before the first block
    while len(out) < count:
        c, k = [block, 0, 0, 0], list(key)
        for _ in range(10):
            high0, low0 = divmod(0xD2E7470EE14C6C93 * c[0], 2**64)
            high1, low1 = divmod(0xCA5A826395121157 * c[2], 2**64)
            c = [high1 ^ c[1] ^ k[0], low1, high0 ^ c[3] ^ k[1], low0]
            k = [(k[0] + 0x9E3779B97F4A7C15) & mask, (k[1] + 0xBB67AE8584CAA73B) & mask]
        out += c
        block += 1
    return out[:count]


def test_uniform_is_the_documented_recipe_bit_for_bit() -> None:
    expected = [(w >> 11) * 2.0**-52 - 1.0 for w in words("q", 123, 30)]
    assert generate("q", 123, (5, 6), "uniform", "float64").ravel().tolist() == expected


def test_normal_and_peaked_are_the_inverse_normal_of_the_words() -> None:
    inverse = statistics.NormalDist().inv_cdf
    expected = np.array([inverse(((w >> 12) + 0.5) * 2.0**-52) for w in words("k", 2**63 - 1, 4000)])
    made = generate("k", 2**63 - 1, (4000,), "normal", "float64")
    np.testing.assert_allclose(made, expected, rtol=2e-15)
    np.testing.assert_array_equal(generate("k", 2**63 - 1, (4000,), "peaked", "float64"), 3.0 * made)


@pytest.mark.parametrize(
    ("distribution", "digest"),
    [
        ("normal", "c2520df8f6f84af7cde49668c89355513bc0be703f305c23e246c78f52c8fcf4"),
        ("uniform", "6de3862cebf65ab6c85f10cd51bd174d2cf3b726c6005fa650b5521b921cb3b4"),
        ("peaked", "038516c21a73702bda4cc0d1d2bd4ede725eff40e3bab6978a4cfa0f1043f0e6"),
    ],
)
def test_the_stream_never_changes(distribution: str, digest: str) -> None:
    assert sha256(generate("v", 7, (3, 1000), distribution, "float32")) == digest


def test_normal_has_the_moments_and_tails_of_a_normal() -> None:
    x = generate("q", 5, (200_000,), "normal", "float64")
    assert abs(x.mean()) < 0.01
    assert abs(x.std() - 1) < 0.01
    assert abs((np.abs(x) > 3).mean() - 0.0027) < 0.0005
    assert np.isfinite(x).all()


def test_names_and_seeds_give_independent_streams() -> None:
    draws = {
        (name, seed): generate(name, seed, (1000,), "normal", "float64")
        for name in ("q", "k")
        for seed in (0, 1)
    }
    values = list(draws.values())
    for i, a in enumerate(values):
        for b in values[i + 1 :]:
            assert abs(np.corrcoef(a, b)[0, 1]) < 0.15


def test_peaked_rows_are_dominated_by_few_keys_and_flat_ones_are_not() -> None:
    def top_four(distribution: str) -> float:
        q, k = (generate(n, 11, (256, 64), distribution, "float64") for n in ("q", "k"))
        weights = np.exp(q @ k.T / 8 - (q @ k.T / 8).max(1, keepdims=True))
        weights /= weights.sum(1, keepdims=True)
        return float(np.sort(weights, axis=1)[:, -4:].sum(1).mean())

    assert top_four("peaked") > 0.85
    assert top_four("normal") < 0.25


@pytest.mark.parametrize("shape", [(0,), (3, 0, 2), ()])
def test_empty_and_scalar_shapes(shape: tuple[int, ...]) -> None:
    assert generate("q", 1, shape, "normal", "float32").shape == shape


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="distribution"):
        generate("q", 1, (2,), "gaussian", "float32")
    with pytest.raises(ValueError, match="seed"):
        generate("q", 2**63, (2,), "normal", "float32")
    with pytest.raises(ValueError, match="round"):
        generate("q", 1, (2,), "normal", "int8")


def test_bfloat16_rounding_is_torchs() -> None:
    rng = np.random.default_rng()
    x = rng.standard_normal(50_000).astype(np.float32) * 10.0 ** rng.integers(-38, 38, 50_000).astype(
        np.float32
    )
    x = np.concatenate([x, np.float32([0.0, -0.0, np.inf, -np.inf, 1.00390625, 1.01171875, 3.4e38])])
    expected = torch.from_numpy(x).bfloat16()
    np.testing.assert_array_equal(round_to_dtype(x, "bfloat16"), expected.float().numpy())
    np.testing.assert_array_equal(float32_to_bfloat16(x), expected.view(torch.int16).numpy().view(np.uint16))
    assert np.isnan(bfloat16_to_float32(float32_to_bfloat16(np.float32([np.nan])))).all()


def test_float16_rounding_is_to_nearest_even() -> None:
    # 2049 lies halfway between 2048 and 2050, 2051 between 2050 and 2052
    assert round_to_dtype(np.array([2049.0, 2051.0]), "float16").tolist() == [2048.0, 2052.0]


def test_digests_are_of_the_little_endian_bytes() -> None:
    x = np.arange(6, dtype=">f4").reshape(2, 3)
    assert sha256(x) == hashlib.sha256(np.arange(6, dtype="<f4").tobytes()).hexdigest()
    assert sha256(x.T) != sha256(x)
    assert sha256(np.float32([1.0]), "bfloat16") == hashlib.sha256(b"\x80\x3f").hexdigest()


def test_json_has_strings_for_what_json_cannot_say() -> None:
    made = to_jsonable(np.array([[1.5, np.inf], [-np.inf, np.nan]], dtype=np.float32))
    assert made == [[1.5, "inf"], ["-inf", "nan"]]
    json.dumps(made, allow_nan=False)
    assert to_jsonable(np.array([True, False])) == [True, False]
    assert to_jsonable(np.zeros((2, 0))) == [[], []]


def test_every_distribution_is_listed() -> None:
    assert DISTRIBUTIONS == ("normal", "uniform", "peaked")
