"""Multi-head latent attention: what its inputs mean, and that both forms of the engine compute it."""

from typing import Any

import numpy as np
import pytest
import torch

from kernels.arrays import to_jsonable
from kernels.execute import execute
from kernels.spec import SpecError, parse_run
from kernels.spec.latent import MLA_INPUTS, axes_of
from tests.kernels.cases import canonical, compute

SIZES = {"batch": 2, "heads": 3, "q_len": 5, "kv_len": 9, "d_c": 12, "d_nope": 6, "d_rope": 4, "d_v": 7}


def request(engine: str = "mla", rank: int = 4, seed: int = 0, **fields: Any) -> dict[str, Any]:
    """The body of a run; ``fields`` that are sizes replace those of SIZES, ``inputs`` are added."""
    sizes = SIZES | {name: fields.pop(name) for name in tuple(fields) if name in SIZES}
    inputs = {
        name: {"seed": seed, "shape": [sizes[axis] for axis in axes_of(name, rank)]} for name in MLA_INPUTS
    } | fields.pop("inputs", {})
    return {"engine": engine, "inputs": inputs, "return": ["out", "lse"], **fields}


def refused(body: dict[str, Any]) -> dict[str, str]:
    with pytest.raises(SpecError) as caught:
        parse_run(body)
    return {problem.pointer: problem.detail for problem in caught.value.problems}


# -- what the inputs mean ------------------------------------------------------------------------------------


def as_deepseek_does(arrays: dict[str, np.ndarray]) -> torch.Tensor:
    """The attention of DeepSeek-V2 as its own code has it: one matrix ``kv_b_proj`` makes the keys and values
    of all heads from the latents, and the rotated key is expanded to all heads."""
    given = {name: torch.from_numpy(array).double() for name, array in arrays.items()}
    (_, heads, rank, nope), v_dim = given["w_uk"].shape, given["w_uv"].shape[3]
    kv_b_proj = torch.cat([given["w_uk"][0].mT, given["w_uv"][0].mT], 1).reshape(-1, rank)
    latents = given["c_kv"][:, 0]
    made = torch.nn.functional.linear(latents, kv_b_proj).unflatten(2, (heads, nope + v_dim)).transpose(1, 2)
    k_nope, v = made.split([nope, v_dim], dim=3)
    k = torch.cat([k_nope, given["k_rope"].expand(-1, heads, -1, -1)], 3)
    q = torch.cat([given["q_nope"], given["q_rope"]], 3)
    mask = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril(k.shape[2] - q.shape[2])
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, mask)


@pytest.mark.parametrize("engine", ["reference", "eager", "sdpa"])
def test_the_inputs_mean_what_they_mean_to_deepseek(engine: str) -> None:
    body = request(engine, attention={"is_causal": True}, **{"return": ["out"]})
    spec, arrays = canonical(body)
    np.testing.assert_allclose(compute(spec, arrays)["out"], as_deepseek_does(arrays), atol=1e-4, rtol=1e-4)
    assert spec.scale == (SIZES["d_nope"] + SIZES["d_rope"]) ** -0.5


@pytest.mark.parametrize("engine", ["reference", "eager"])
@pytest.mark.parametrize("style", ["interleaved", "half"])
def test_rope_turns_the_parts_that_carry_the_position_and_no_others(engine: str, style: str) -> None:
    """As complex numbers: pair i of position p is multiplied by exp(√−1 · p · θ^(−2i/d))."""
    rope = {"style": style, "theta": 50.0}
    spec, arrays = canonical(request(engine, attention={"rope": rope}))
    got = compute(spec, arrays)
    turned = dict(arrays)
    half = SIZES["d_rope"] // 2
    for name, first in (("q_rope", SIZES["kv_len"] - SIZES["q_len"]), ("k_rope", 0)):
        x = arrays[name].astype(np.float64)
        pairs = x.reshape(*x.shape[:3], half, 2) if style == "interleaved" else np.stack(np.split(x, 2, 3), 4)
        positions = first + np.arange(x.shape[2])
        angles = positions[:, None] * 50.0 ** (-np.arange(half) / half)
        numbers = (pairs[..., 0] + 1j * pairs[..., 1]) * np.exp(1j * angles)
        both = np.stack([numbers.real, numbers.imag], 4 if style == "interleaved" else 3)
        turned[name] = both.reshape(x.shape)
    plain, _ = canonical(request(engine))
    expected = compute(plain, turned)
    np.testing.assert_allclose(got["out"], expected["out"], atol=1e-5)
    assert np.abs(got["out"] - compute(plain, arrays)["out"]).max() > 0.1


@pytest.mark.parametrize("rank", [2, 3, 4])
def test_axes_that_are_left_out_are_left_out_everywhere(rank: int) -> None:
    sizes = SIZES | {"batch": 1} | ({"heads": 1} if rank == 2 else {})
    spec, arrays = canonical(request("reference", rank, **sizes))
    got = compute(spec, arrays)
    whole, _ = canonical(request("reference", **sizes))
    np.testing.assert_array_equal(got["out"], compute(whole, arrays)["out"])
    outcome = execute(spec, {})
    shape = tuple(
        sizes[axis]
        for axis in ("batch", "heads", "q_len", "d_v")
        if axis in axes_of("q_nope", rank) or axis == "d_v"
    )
    assert outcome.arrays["out"].shape == shape
    assert outcome.arrays["lse"].shape == shape[:-1]
    assert outcome.inputs["c_kv"].shape == spec.inputs["c_kv"].shape
    assert parse_run(request("reference", rank, **sizes)).spec == type(spec).from_dict(spec.to_dict())


# -- what is refused -----------------------------------------------------------------------------------------

THREE = {"seed": 1, "shape": [2, 3, 4]}


@pytest.mark.parametrize(
    ("changed", "pointer", "says"),
    [
        ({"c_kv": {"seed": 1, "shape": [9, 12]}}, "/inputs/c_kv", "of rank 4 it is [batch, kv_len, d_c]"),
        ({"q_nope": {"seed": 1, "shape": [5]}}, "/inputs/q_nope", "[q_len, d_nope], [heads, q_len, d_nope]"),
        ({"k_rope": {"seed": 1, "shape": [2, 9, 6]}}, "/inputs/k_rope", "d_rope 6 but q_rope has d_rope 4"),
        ({"k_rope": {"seed": 1, "shape": [2, 8, 4]}}, "/inputs/k_rope", "kv_len 8 but c_kv has kv_len 9"),
        ({"w_uk": {"seed": 1, "shape": [3, 11, 6]}}, "/inputs/w_uk", "d_c 11 but c_kv has d_c 12"),
        ({"w_uk": {"seed": 1, "shape": [3, 12, 7]}}, "/inputs/w_uk", "d_nope 7 but q_nope has d_nope 6"),
        ({"w_uv": {"seed": 1, "shape": [4, 12, 7]}}, "/inputs/w_uv", "heads 4 but q_nope has heads 3"),
        ({"c_kv": {"seed": 1, "shape": [1, 9, 12]}}, "/inputs/c_kv", "batch 1 but q_nope has batch 2"),
        ({"w_uv": None}, "/inputs/w_uv", "w_uv is required"),
        ({"q": THREE}, "/inputs/q", "both; leave q out"),
        ({"past_key": THREE}, "/inputs/past_key", "the past included; leave past_key out"),
        ({"block_table": [[0]]}, "/inputs/block_table", "leave block_table out"),
        ({"dout": THREE}, "/inputs/dout", "gradients are those of q, k and v"),
        ({"kv_lens": [9]}, "/inputs/kv_lens", "1 entries but the batch is 2"),
        ({"kv_lens": [9, 10]}, "/inputs/kv_lens/1", "10 exceeds the 9"),
        ({"attn_mask": [[True], [True]]}, "/inputs/attn_mask", "[2, 3, 5, 9]"),
    ],
)  # fmt: skip
def test_inputs_that_do_not_fit(changed: dict[str, Any], pointer: str, says: str) -> None:
    assert says in refused(request("reference", inputs=changed))[pointer]


@pytest.mark.parametrize(
    ("fields", "pointer", "says"),
    [
        ({"attention": {"num_heads": 3}}, "/attention/num_heads", "say their heads themselves"),
        ({"return": ["dq"]}, "/return/0", "a gradient of q, k and v"),
        ({"return": ["out", "present_key"]}, "/return/1", "the cache is c_kv and k_rope"),
        ({"attention": {"rope": {"style": "half", "dim": 6}}}, "/attention/rope/dim", "d_rope of 4"),
        ({"attention": {"sinks": [0.0]}}, "/attention/sinks", "1 entries for 3 heads"),
        ({"attention": {"q_positions": [0, 1]}}, "/attention/q_positions", "2 entries for 5 queries"),
        ({"heads": 2**12, "kv_len": 2**12}, "/inputs/c_kv", "lower the heads or kv_len"),
    ],
)
def test_attention_that_does_not_fit(fields: dict[str, Any], pointer: str, says: str) -> None:
    assert says in refused(request("reference", **fields))[pointer]


def test_plain_inputs_and_latents_are_told_apart_by_name() -> None:
    three = {"seed": 1, "shape": [3, 4]}
    assert "flash does not support multi-head latent attention" in refused(request("flash"))["/inputs/q_nope"]
    assert "mla" not in refused({"engine": "flash", "inputs": {"q": three, "k": three}})["/inputs/v"]


def test_numbers_are_judged_where_they_are_read() -> None:
    c_kv = np.ones((2, 9, 12))
    c_kv[1, 4:] = np.nan
    body = request("reference", inputs={"c_kv": to_jsonable(c_kv), "kv_lens": [9, 4]})
    spec, arrays = canonical(body)
    assert np.isfinite(compute(spec, arrays)["out"]).all()
    body["inputs"]["kv_lens"] = [9, 5]
    assert "nan at index [1, 4, 0]" in refused(body)["/inputs/c_kv"]
    large = request("reference", dtype="float16", inputs={"w_uk": np.full((3, 12, 6), 1e5).tolist()})
    assert "beyond float16" in refused(large)["/inputs/w_uk"]
