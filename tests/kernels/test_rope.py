"""RoPE against closed forms, complex numbers in torch, ONNX's evaluator and the formulas of deployed models."""

# ruff: noqa: E501, PLR0917 - a table of mistakes reads best with one on a line; hypothesis gives by position

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.operands import input_gradient
from kernels.rope import cos_sin, frequencies, rotate
from kernels.spec import Attention, InputSpec, Rope, RunSpec
from kernels.spec.rope import rope_problems, rotated_dim

STYLES = ("interleaved", "half")


def scaled(kind: str, theta: float = 10000.0, **fields: Any) -> Rope:
    return Rope("half", theta=theta, scaling={"type": kind, **fields})


def at(position: int, x: np.ndarray, rope: Rope, dim: int) -> np.ndarray:
    """A vector [d], turned to a position."""
    cos, sin = cos_sin(rope, dim, np.array([[position]]))
    turned = rotate(x[None, None, None], cos, sin, style=rope.style, dim_offset=rope.dim_offset)
    return turned[0, 0, 0]


# -- the rotation --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("style", STYLES)
def test_a_pair_turns_by_position_times_frequency(style: str) -> None:
    """d = 4, θ = 10000: pair 0 turns by 1 rad per token, pair 1 by 1/100."""
    rope = Rope(style)
    first, second = ([1, 0, 0, 0], [0, 0, 1, 0]) if style == "interleaved" else ([1, 0, 0, 0], [0, 1, 0, 0])
    expected = {"interleaved": ([0, 1], [2, 3]), "half": ([0, 2], [1, 3])}[style]
    for pair, (vector, angle) in enumerate(((first, 3.0), (second, 0.03))):
        turned = at(3, np.array(vector, dtype=float), rope, 4)
        np.testing.assert_allclose(turned[expected[pair]], [math.cos(angle), math.sin(angle)], rtol=1e-15)
        assert np.count_nonzero(turned) == 2


def test_interleaved_is_torchs_complex_multiplication() -> None:
    x = np.random.default_rng().normal(size=(2, 3, 5, 16)) * 3
    positions = np.array([[0, 1, 2, 3, 4], [7, 1000, 3, 131071, 5]])
    cos, sin = cos_sin(Rope("interleaved", theta=500.0), 16, positions)
    omega = 500.0 ** (-torch.arange(8, dtype=torch.float64) / 8)
    angles = torch.tensor(positions)[:, None, :, None] * omega
    z = torch.view_as_complex(torch.tensor(x).reshape(2, 3, 5, 8, 2)) * torch.polar(
        torch.ones_like(angles), angles
    )
    expected = torch.view_as_real(z).reshape(2, 3, 5, 16).numpy()
    np.testing.assert_allclose(
        rotate(x, cos, sin, style="interleaved", dim_offset=0), expected, atol=1e-10, rtol=1e-10
    )


def test_half_is_x_cos_plus_rotate_half_x_sin() -> None:
    """The form of Hugging Face's Llama: cos and sin repeated over both halves, (−x₂, x₁) beside (x₁, x₂)."""
    x = torch.randn(1, 2, 7, 10, dtype=torch.float64)
    cos, sin = cos_sin(Rope("half"), 10, np.arange(7)[None])
    cos2, sin2 = (torch.tensor(np.concatenate([part, part], axis=-1))[:, None] for part in (cos, sin))
    swapped = torch.cat([-x[..., 5:], x[..., :5]], dim=-1)
    ours = rotate(x.numpy(), cos, sin, style="half", dim_offset=0)
    np.testing.assert_allclose(ours, x * cos2 + swapped * sin2, rtol=1e-14)


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("dim", [None, 8])
def test_onnx_rotary_embedding_23_agrees(style: str, dim: int | None) -> None:
    pytest.importorskip("onnx")
    from onnx import TensorProto, helper
    from onnx.reference import ReferenceEvaluator

    rng, rope = np.random.default_rng(), Rope(style, dim=dim)
    x = rng.normal(size=(2, 3, 6, 20)).astype(np.float32)
    positions = rng.integers(0, 50, size=(2, 6))
    width = rotated_dim(rope, 20)
    cos_cache, sin_cache = (part[0] for part in cos_sin(rope, width, np.arange(50)[None]))
    node = helper.make_node(
        "RotaryEmbedding",
        ["x", "cos", "sin", "positions"],
        ["y"],
        interleaved=int(style == "interleaved"),
        rotary_embedding_dim=dim or 0,
    )
    shapes = {"x": TensorProto.FLOAT, "cos": TensorProto.FLOAT, "sin": TensorProto.FLOAT}
    graph = helper.make_graph(
        [node],
        "rope",
        [
            helper.make_tensor_value_info(name, dtype, None)
            for name, dtype in (shapes | {"positions": TensorProto.INT64}).items()
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)])
    feeds = {
        "x": x,
        "cos": cos_cache.astype(np.float32),
        "sin": sin_cache.astype(np.float32),
        "positions": positions,
    }
    (expected,) = ReferenceEvaluator(model).run(None, feeds)
    cos, sin = cos_sin(rope, width, positions)
    np.testing.assert_allclose(rotate(x, cos, sin, style=style, dim_offset=0), expected, atol=2e-6)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(STYLES),
    st.integers(1, 20),
    st.integers(-(10**5), 10**5),
    st.integers(-(10**5), 10**5),
    st.integers(-(10**5), 10**5),
    st.integers(0, 2**32),
)
def test_scores_depend_on_the_distance_alone_and_norms_are_kept(
    style: str, pairs: int, m: int, n: int, shift: int, seed: int
) -> None:
    q, k = np.random.default_rng(seed).normal(size=(2, 2 * pairs)) * 3
    rope = Rope(style)
    here = at(m, q, rope, 2 * pairs) @ at(n, k, rope, 2 * pairs)
    there = at(m + shift, q, rope, 2 * pairs) @ at(n + shift, k, rope, 2 * pairs)
    # q and k relative to a key at position 0
    relative = at(m - n, q, rope, 2 * pairs) @ k
    size = float(np.linalg.norm(q) * np.linalg.norm(k))
    assert abs(here - there) <= 1e-10 * size
    assert abs(here - relative) <= 1e-10 * size
    assert np.linalg.norm(at(m, q, rope, 2 * pairs)) == pytest.approx(np.linalg.norm(q), rel=1e-14)


def test_the_styles_are_one_under_a_permutation() -> None:
    x = np.random.default_rng().normal(size=(2, 2, 4, 12))
    cos, sin = cos_sin(Rope("half"), 12, np.arange(4)[None])
    order = np.arange(12).reshape(2, 6).T.ravel()  # 0 6 1 7 …: the halves, interleaved
    half = rotate(x, cos, sin, style="half", dim_offset=0)
    interleaved = rotate(x[..., order], cos, sin, style="interleaved", dim_offset=0)
    np.testing.assert_array_equal(half[..., order], interleaved)
    assert not np.allclose(half, rotate(x, cos, sin, style="interleaved", dim_offset=0))


@pytest.mark.parametrize("style", STYLES)
def test_partial_rotation_touches_its_dimensions_alone(style: str) -> None:
    x = np.random.default_rng().normal(size=(1, 2, 3, 14))
    rope = Rope(style, dim=6, dim_offset=5)
    cos, sin = cos_sin(rope, rotated_dim(rope, 14), np.array([[4, 2, 9]]))
    turned = rotate(x, cos, sin, style=style, dim_offset=5)
    np.testing.assert_array_equal(turned[..., :5], x[..., :5])
    np.testing.assert_array_equal(turned[..., 11:], x[..., 11:])
    alone = rotate(x[..., 5:11], cos, sin, style=style, dim_offset=0)
    np.testing.assert_array_equal(turned[..., 5:11], alone)
    assert not np.allclose(turned[..., 5:11], x[..., 5:11])


def test_positions_may_differ_by_batch_row() -> None:
    x = np.random.default_rng().normal(size=(2, 1, 3, 8))
    positions = np.array([[5, 6, 7], [0, 0, 100]])
    cos, sin = cos_sin(Rope("half"), 8, positions)
    turned = rotate(x, cos, sin, style="half", dim_offset=0)
    for b, i in np.ndindex(2, 3):
        expected = at(int(positions[b, i]), x[b, 0, i], Rope("half"), 8)
        np.testing.assert_allclose(turned[b, 0, i], expected, rtol=1e-14)
    np.testing.assert_array_equal(turned[1, 0, :2], x[1, 0, :2])  # position 0 turns nothing


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("beyond", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("style", ["interleaved", "half"])
def test_what_is_not_finite_spoils_its_pair_alone_and_is_no_warning(style: str, beyond: float) -> None:
    """Padding may be anything, and a gradient beyond float32 is turned back like any other."""
    x = np.random.default_rng(1).standard_normal((1, 2, 3, 4)).astype(np.float32)
    cos, sin = cos_sin(Rope(style, theta=100.0), 4, np.arange(3)[None])
    expected = rotate(x, cos, sin, style=style, dim_offset=0)
    pair = [0, 1] if style == "interleaved" else [0, 2]
    spoiled = x.copy()
    spoiled[0, 0, 1, pair] = beyond
    got = rotate(spoiled, cos, sin, style=style, dim_offset=0)
    assert not np.isfinite(got[0, 0, 1, pair]).any()
    got[0, 0, 1, pair] = expected[0, 0, 1, pair]
    np.testing.assert_array_equal(got, expected)


@pytest.mark.filterwarnings("error")
def test_pages_whose_gradients_overflow_are_no_warning() -> None:
    """Two rows read one page; of their gradients one is ∞ and the other −∞, in a pair of dimensions."""
    inputs = {
        "q": InputSpec((2, 1, 1, 2), "float32", "inline"),
        **dict.fromkeys("kv", InputSpec((1, 1, 1, 2), "float32", "inline")),
        "block_table": InputSpec((2, 1), "int64", "inline"),
    }
    spec = RunSpec("reference", inputs, attention=Attention(rope=Rope("half")))
    arrays = {"k": np.zeros((1, 1, 1, 2), np.float32), "block_table": np.zeros((2, 1), np.int64)}
    gradient = np.array([[np.inf, np.inf], [-np.inf, -np.inf]], np.float32).reshape(2, 1, 1, 2)
    assert np.isnan(input_gradient(spec, arrays, "k", gradient)).all()


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("style", STYLES)
def test_the_dtype_is_kept_and_the_input_untouched(style: str, dtype: str) -> None:
    x = np.random.default_rng().normal(size=(1, 1, 4, 6)).astype(dtype)
    before = x.copy()
    cos, sin = cos_sin(Rope(style), 6, np.arange(4)[None])
    turned = rotate(x, cos, sin, style=style, dim_offset=0)
    exact = rotate(x.astype(np.float64), cos, sin, style=style, dim_offset=0)
    assert turned.dtype == x.dtype
    np.testing.assert_array_equal(turned, exact.astype(dtype))  # computed in float64, rounded once
    np.testing.assert_array_equal(x, before)


@pytest.mark.parametrize(
    ("batch", "heads", "length", "dim"), [(0, 1, 2, 4), (1, 0, 2, 4), (1, 1, 0, 4), (1, 1, 2, 0)]
)
def test_empty_axes(batch: int, heads: int, length: int, dim: int) -> None:
    x = np.zeros((batch, heads, length, dim))
    cos, sin = cos_sin(
        scaled("dynamic", factor=2.0, original_max_position_embeddings=1), dim, np.zeros((1, length), int)
    )
    assert rotate(x, cos, sin, style="half", dim_offset=0).shape == x.shape


# -- frequencies ---------------------------------------------------------------------------------------------


def plain(theta: float, dim: int) -> list[float]:
    return [theta ** (-2 * i / dim) for i in range(dim // 2)]


@pytest.mark.parametrize("dim", [2, 8, 64, 128])
@pytest.mark.parametrize("theta", [10000.0, 500000.0, 0.5])
def test_unscaled_frequencies(dim: int, theta: float) -> None:
    omega, factor = frequencies(Rope("half", theta=theta), dim, 1)
    np.testing.assert_allclose(omega, plain(theta, dim), rtol=1e-14)
    assert factor == 1.0


def test_linear_is_division_of_positions() -> None:
    stretched = cos_sin(scaled("linear", factor=4.0), 16, np.arange(0, 400, 4)[None])
    for ours, expected in zip(stretched, cos_sin(Rope("half"), 16, np.arange(100)[None]), strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-12, atol=1e-12)


def test_ntk_changes_the_base_to_82685() -> None:
    """s = 8, d = 128; the fastest pair is kept and the slowest is divided by s."""
    omega, factor = frequencies(scaled("ntk", factor=8.0), 128, 1)
    assert round(omega[1] ** -64) == 82_685
    unscaled = plain(10000.0, 128)
    assert omega[0] == 1.0
    assert unscaled[-1] / omega[-1] == pytest.approx(8.0, rel=1e-12)
    assert factor == 1.0


@pytest.mark.parametrize("kind", ["ntk", "dynamic"])
def test_a_single_pair_has_no_base_to_change(kind: str) -> None:
    omega, _ = frequencies(scaled(kind, factor=8.0, original_max_position_embeddings=4), 2, 1000)
    np.testing.assert_array_equal(omega, [1.0])


def test_dynamic_is_ntk_with_a_factor_that_grows_with_the_length() -> None:
    rope = scaled("dynamic", factor=2.0, original_max_position_embeddings=1000)
    for length in (0, 1, 1000):
        np.testing.assert_allclose(frequencies(rope, 64, length)[0], plain(10000.0, 64), rtol=1e-14)
    # n = 4L: 2·4 − 1 = 7
    expected, _ = frequencies(scaled("ntk", factor=7.0), 64, 1)
    np.testing.assert_allclose(frequencies(rope, 64, 4000)[0], expected, rtol=1e-13)
    # the length of cos_sin is the largest position and one more, unless it is told
    by_position = cos_sin(rope, 64, np.array([[3999]]))
    told = cos_sin(rope, 64, np.array([[3999]]), length=4000)
    np.testing.assert_array_equal(by_position, told)
    assert not np.allclose(by_position, cos_sin(rope, 64, np.array([[3999]]), length=8000))


@pytest.mark.parametrize("name", ["original_max_position_embeddings", "max_position_embeddings"])
def test_either_name_of_the_original_length_will_do(name: str) -> None:
    for kind, extra in (
        ("dynamic", {}),
        ("yarn", {}),
        ("longrope", {"short_factor": [1, 2], "long_factor": [3, 4]}),
    ):
        rope = scaled(kind, factor=4.0, **{name: 64}, **extra)
        both = scaled(
            kind, factor=4.0, original_max_position_embeddings=64, max_position_embeddings=256, **extra
        )
        np.testing.assert_array_equal(frequencies(rope, 4, 100)[0], frequencies(both, 4, 100)[0])


def yarn_of_deployed_models(
    theta: float,
    dim: int,
    factor: float,
    length: int,
    fast: float = 32,
    slow: float = 1,
    truncate: bool = True,
) -> list[float]:
    """Pair by pair, as Hugging Face's YaRN has it: interpolated (ω/s) right of the ramp, kept left of it."""
    ends = [dim / 2 * math.log(length / (2 * math.pi * turns), theta) for turns in (fast, slow)]
    if truncate:
        ends = [math.floor(ends[0]), math.ceil(ends[1])]
    low, high = max(ends[0], 0), min(ends[1], dim - 1)
    expected = []
    for i, omega in enumerate(plain(theta, dim)):
        if i <= low:
            ramp = 0.0
        elif i >= high:
            ramp = 1.0
        else:
            ramp = (i - low) / (high - low)
        expected.append(omega * (ramp / factor + 1 - ramp))
    return expected


@pytest.mark.parametrize(
    ("theta", "dim", "fields"),
    [
        (10000.0, 128, {"factor": 32.0, "original_max_position_embeddings": 4096}),  # Llama 2
        (10000.0, 64, {"factor": 40.0, "original_max_position_embeddings": 4096, "mscale": 0.707,
                       "mscale_all_dim": 0.707}),  # DeepSeek-V2
        (150000.0, 64, {"factor": 32.0, "original_max_position_embeddings": 4096, "truncate": False}),  # gpt-oss
        (1e6, 128, {"factor": 4.0, "original_max_position_embeddings": 32768}),  # Qwen 2.5
        (10000.0, 8, {"factor": 2.0, "original_max_position_embeddings": 64, "beta_fast": 4, "beta_slow": 0.5}),
        (10000.0, 2, {"factor": 2.0, "original_max_position_embeddings": 64}),
        (10000.0, 8, {"factor": 2.0, "original_max_position_embeddings": 4}),  # a ramp of width 0
    ],
)  # fmt: skip
def test_yarn_is_that_of_deployed_models(theta: float, dim: int, fields: dict[str, Any]) -> None:
    omega, _ = frequencies(scaled("yarn", theta, **fields), dim, 1)
    expected = yarn_of_deployed_models(
        theta,
        dim,
        fields["factor"],
        fields["original_max_position_embeddings"],
        fields.get("beta_fast", 32),
        fields.get("beta_slow", 1),
        fields.get("truncate", True),
    )
    np.testing.assert_allclose(omega, expected, rtol=1e-12)


def test_yarns_ramp_for_llama_2_is_from_dimension_21_to_45() -> None:
    """d = 128, L = 4096: the pairs that turn 32 times and once have the indices 20.9 and 45.0."""
    omega, _ = frequencies(
        scaled("yarn", factor=16.0, original_max_position_embeddings=4096, truncate=False), 128, 1
    )
    unscaled = np.array(plain(10000.0, 128))
    np.testing.assert_allclose(omega[:21], unscaled[:21], rtol=1e-14)
    np.testing.assert_allclose(omega[46:], unscaled[46:] / 16, rtol=1e-14)
    inside = (omega / unscaled)[21:46]
    assert (np.diff(inside) < 0).all()
    # linear in the index, reaching 1 at 20.9 and 1/16 at 45.0
    slope, start = np.polyfit(np.arange(21, 45), inside[:24], 1)
    assert (1 - start) / slope == pytest.approx(20.9, abs=0.05)
    assert (1 / 16 - start) / slope == pytest.approx(45.0, abs=0.05)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"factor": 16.0}, 1.2772588722239781),  # 0.1·ln 16 + 1
        ({"factor": 1.0}, 1.0),
        ({"factor": 16.0, "attention_factor": 0.5}, 0.5),
        ({"factor": 40.0, "mscale": 0.707, "mscale_all_dim": 0.707}, 1.0),
        ({"factor": 40.0, "mscale": 1.0, "mscale_all_dim": 0.5}, 1.3688879454113936 / 1.1844439727056968),
        ({"factor": 40.0, "mscale": 2.0}, 1.3688879454113936),  # one alone is not used
        ({"factor": 40.0, "mscale": 2.0, "mscale_all_dim": 0}, 1.3688879454113936),
    ],
)
def test_yarns_attention_factor(fields: dict[str, Any], expected: float) -> None:
    rope = scaled("yarn", original_max_position_embeddings=4096, **fields)
    assert frequencies(rope, 64, 1)[1] == pytest.approx(expected, rel=1e-14)
    cos, sin = cos_sin(rope, 64, np.array([[0, 17]]))
    np.testing.assert_allclose(np.hypot(cos, sin), expected, rtol=1e-14)  # it multiplies both


def test_llama_3_1_by_wavelength() -> None:
    """Up to 2048 tokens kept, above 8192 divided by 8, between them linear in 8192/λ from 4 to 1."""
    omega, factor = frequencies(
        scaled("llama3", 500000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
               original_max_position_embeddings=8192), 128, 1,
    )  # fmt: skip
    kinds = set()
    for new, old in zip(omega, plain(500000.0, 128), strict=True):
        wavelength = 2 * math.pi / old
        if wavelength < 2048:
            expected, kind = old, "kept"
        elif wavelength > 8192:
            expected, kind = old / 8, "divided"
        else:
            smooth = (8192 / wavelength - 1) / 3
            expected, kind = (1 - smooth) * old / 8 + smooth * old, "between"
        kinds.add(kind)
        assert new == pytest.approx(expected, rel=1e-13)
    assert kinds == {"kept", "divided", "between"}
    assert factor == 1.0


def test_longrope_chooses_its_factors_by_length() -> None:
    short, long = [1.0, 1.5, 2.0, 3.0], [1.0, 4.0, 16.0, 64.0]
    rope = scaled(
        "longrope", short_factor=short, long_factor=long,
        original_max_position_embeddings=4096, max_position_embeddings=131072,
    )  # fmt: skip
    omega, factor = frequencies(rope, 8, 4096)
    np.testing.assert_allclose(omega, np.array(plain(10000.0, 8)) / short, rtol=1e-14)
    np.testing.assert_allclose(frequencies(rope, 8, 4097)[0], np.array(plain(10000.0, 8)) / long, rtol=1e-14)
    assert factor == pytest.approx(
        1.1902380714238083, rel=1e-14
    )  # Phi-3 128k: √(1 + ln 32 / ln 4096) = √(17/12)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"factor": 32.0}, math.sqrt(17 / 12)),
        ({"factor": 32.0, "max_position_embeddings": 8192}, math.sqrt(17 / 12)),  # an explicit factor wins
        ({"max_position_embeddings": 4096}, 1.0),
        ({"factor": 0.5}, 1.0),
        ({"attention_factor": 1.25}, 1.25),
        ({"attention_factor": 1.25, "factor": 32.0}, 1.25),
    ],
)
def test_longropes_attention_factor(fields: dict[str, Any], expected: float) -> None:
    rope = scaled(
        "longrope", short_factor=[1], long_factor=[2], original_max_position_embeddings=4096, **fields
    )
    assert frequencies(rope, 2, 10)[1] == pytest.approx(expected, rel=1e-14)
    assert not rope_problems(spec_of(rope, head_dim=2))


@pytest.mark.parametrize("kind", ["linear", "ntk", "yarn", "llama3"])
def test_a_factor_of_one_changes_nothing(kind: str) -> None:
    fields: dict[str, Any] = {"factor": 1.0, "original_max_position_embeddings": 64}
    fields |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0} if kind == "llama3" else {}
    omega, factor = frequencies(scaled(kind, **fields), 32, 640)
    np.testing.assert_allclose(omega, plain(10000.0, 32), rtol=1e-14)
    assert factor == 1.0


# -- mistakes ------------------------------------------------------------------------------------------------


def spec_of(rope: Rope | None, head_dim: int = 8) -> RunSpec:
    given = InputSpec((3, head_dim), "float32", "seed", 0, "normal")
    return RunSpec("reference", {"q": given, "k": given, "v": given}, attention=Attention(rope=rope))


YARN = {"factor": 2.0, "original_max_position_embeddings": 64}
LLAMA3 = YARN | {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
LONGROPE = YARN | {"short_factor": [1.0] * 4, "long_factor": [2, 2.5, 3, 4]}


@pytest.mark.parametrize(
    ("rope", "pointer", "words"),
    [
        (scaled("linear", factor=0), "/factor", ["factor of linear", "1e-06", "not 0", "new length"]),
        (scaled("linear", factor=-2.0), "/factor", ["not -2.0"]),
        (scaled("ntk", factor=1e300), "/factor", ["1e+12", "not 1e+300"]),
        (scaled("ntk", factor=10**400), "/factor", ["1e+12", "bits"]),
        (scaled("dynamic", factor=0.5, original_max_position_embeddings=8), "/factor", ["between 1 and"]),
        (scaled("dynamic", factor=2), "/original_max_position_embeddings", ["dynamic needs", "give it"]),
        (scaled("dynamic", factor=2, max_position_embeddings=0), "/max_position_embeddings", ["between 1 and", "not 0"]),
        (scaled("yarn", factor=2), "/original_max_position_embeddings", ["yarn needs"]),
        (scaled("yarn", **YARN | {"factor": 0.9}), "/factor", ["between 1 and", "not 0.9"]),
        (scaled("yarn", **YARN | {"original_max_position_embeddings": -1}), "/original_max_position_embeddings",
         ["9,007,199,254,740,992", "not -1"]),
        (scaled("yarn", **YARN, attention_factor=0), "/attention_factor", ["not 0", "leave it out"]),
        (scaled("yarn", **YARN, beta_fast=0), "/beta_fast", ["not 0", "32"]),
        (scaled("yarn", **YARN, beta_fast=2, beta_slow=3), "/beta_fast", ["(2)", "(3)", "32 and 1"]),
        (scaled("yarn", **YARN, beta_slow=33), "/beta_slow", ["(32)", "(33)"]),
        (scaled("yarn", **YARN, mscale=-1), "/mscale", ["between 0 and", "not -1"]),
        (scaled("yarn", 1.0, **YARN), "theta", ["above 1", "not 1.0", "10000"]),
        (scaled("llama3", **LLAMA3 | {"low_freq_factor": 4.0}), "/high_freq_factor", ["(4)", "above", "4 and 1"]),
        (scaled("llama3", **LLAMA3 | {"low_freq_factor": 0}), "/low_freq_factor", ["not 0"]),
        (scaled("longrope", **LONGROPE | {"short_factor": [1] * 3}), "/short_factor", ["3 factors for 4 pairs", "dim/2"]),
        (scaled("longrope", **LONGROPE | {"long_factor": [1] * 8}), "/long_factor", ["8 factors for 4 pairs"]),
        (scaled("longrope", **LONGROPE | {"long_factor": [1, 1, 0, -1]}), "/long_factor/2", ["not 0"]),
        (scaled("longrope", **LONGROPE | {"long_factor": [1, 1, [2], 1]}), "/long_factor/2", ["a list of 1"]),
        (scaled("longrope", **LONGROPE | {"long_factor": [1, 1, 1, 10**400]}), "/long_factor/3", ["bits"]),
        (scaled("longrope", **LONGROPE | {"long_factor": [math.inf, 1, 1, 1]}), "/long_factor/0", ["inf"]),
        (scaled("longrope", **LONGROPE | {"original_max_position_embeddings": 1}),
         "/original_max_position_embeddings", ["between 2 and"]),
        (scaled("longrope", **LONGROPE | {"factor": None}), "/factor", ["longrope needs factor"]),
    ],
)  # fmt: skip
def test_a_mistake_is_located_and_explained(rope: Rope, pointer: str, words: list[str]) -> None:
    (found,) = rope_problems(spec_of(rope))
    assert found.pointer == (
        "/attention/rope/theta" if pointer == "theta" else "/attention/rope/scaling" + pointer
    )
    assert found.status == 422
    assert all(word in found.detail for word in words), found.detail


@pytest.mark.parametrize(
    "rope",
    [
        None,
        Rope("half"),
        scaled("linear", factor=0.5),
        scaled("ntk", factor=8),
        scaled("dynamic", factor=1, max_position_embeddings=1),
        scaled("yarn", **YARN, attention_factor=None, beta_fast=None, truncate=None, mscale=0),
        scaled("yarn", **YARN, beta_fast=1, beta_slow=1),
        scaled("llama3", **LLAMA3),
        scaled("longrope", **LONGROPE),
        Rope(
            "half", dim=2, scaling={"type": "longrope", **LONGROPE, "short_factor": [1], "long_factor": [1]}
        ),
        Rope(
            "half",
            dim_offset=6,
            scaling={"type": "longrope", **LONGROPE, "short_factor": [1], "long_factor": [1]},
        ),
    ],
)
def test_what_is_accepted_can_be_computed(rope: Rope | None) -> None:
    assert rope_problems(spec_of(rope)) == []
    if rope is not None:
        for length in (0, 1, 2**53):
            omega, factor = frequencies(rope, rotated_dim(rope, 8), length)
            assert np.isfinite(omega).all()
            assert math.isfinite(factor)


def test_wrong_types_are_left_to_the_reader() -> None:
    """The parser has already said so; the checker must not fall over them."""
    for kind in ("linear", "ntk", "dynamic", "yarn", "llama3", "longrope"):
        for value in ("x", True, [], {}, math.inf, math.nan):
            fields = dict.fromkeys([*YARN, *LLAMA3, *LONGROPE, "beta_fast", "beta_slow", "mscale"], value)
            rope_problems(spec_of(scaled(kind, **fields)))
    assert rope_problems(spec_of(Rope("half", scaling={}))) == []


EDGES = st.sampled_from([1e-6, 1.0, 1.5, 1e12])
LENGTHS = st.sampled_from([1, 2, 7, 4096, 2**53])


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(["linear", "ntk", "dynamic", "yarn", "llama3", "longrope"]),
    st.sampled_from([1e-6, 1.0, 1.0000000000000002, 10.0, 1e4, 1e18]),
    st.sampled_from([2, 4, 64]),
    st.fixed_dictionaries(
        {"factor": EDGES, "original_max_position_embeddings": LENGTHS},
        optional={
            "attention_factor": EDGES,
            "beta_fast": EDGES,
            "beta_slow": EDGES,
            "mscale": EDGES,
            "mscale_all_dim": EDGES,
            "truncate": st.booleans(),
            "max_position_embeddings": LENGTHS,
        },
    ),
    LENGTHS,
    EDGES,
    EDGES,
)
def test_nothing_that_is_accepted_leaves_float64(
    kind: str, theta: float, dim: int, fields: dict[str, Any], length: int, low: float, high: float
) -> None:
    extra: dict[str, Any] = {"low_freq_factor": low, "high_freq_factor": high}
    extra |= {"short_factor": [low] * (dim // 2), "long_factor": [high] * (dim // 2)}
    rope = scaled(kind, theta, **fields, **extra)
    if rope_problems(spec_of(rope, head_dim=dim)):
        return
    cos, sin = cos_sin(rope, dim, np.array([[0, 1, length - 1]]), length)
    assert np.isfinite(cos).all()
    assert np.isfinite(sin).all()
