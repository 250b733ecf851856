"""Multi-head latent attention: what its inputs mean, and that both forms of the engine compute it."""

import re
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.arrays import generate, to_jsonable
from kernels.engines.reference import reference
from kernels.estimate import estimate
from kernels.execute import execute
from kernels.flash.interpreter import counted_traffic
from kernels.flash.logits import Terms
from kernels.mla import launch
from kernels.mla.forms import chosen_form, multiply_adds
from kernels.spec import FieldProblem, InputSpec, RunSpec, SpecError, parse_run
from kernels.spec.families import MLA, MLA_INPUTS
from kernels.targets import TARGETS
from kernels.tiles import tile_problems
from tests.kernels.cases import Arrays, canonical, compute
from tests.kernels.error_bounds import error_bounds
from tests.kernels.fences import fences, poisoned_memory
from tests.kernels.test_compiling import COMPILE, printed_by

SIZES = {"batch": 2, "heads": 3, "q_len": 5, "kv_len": 9, "d_c": 12, "d_nope": 6, "d_rope": 4, "d_v": 7}


def request(engine: str = "mla", rank: int = 4, seed: int = 0, **fields: Any) -> dict[str, Any]:
    """The body of a run; ``fields`` that are sizes replace those of SIZES, ``inputs`` are added."""
    sizes = SIZES | {name: fields.pop(name) for name in tuple(fields) if name in SIZES}
    inputs = {
        name: {"seed": seed, "shape": [sizes[axis] for axis in MLA.axes_of(name, rank)]}
        for name in MLA_INPUTS
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
        if axis in MLA.axes_of("q_nope", rank) or axis == "d_v"
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
        ({"kv_lens": [9, 10]}, "/inputs/kv_lens/1", "10 of row 1, which exceeds the 9"),
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


# -- the engine ----------------------------------------------------------------------------------------------

FORMS = ("absorbed", "expanded")
SMALL = {"block_m": 16, "block_n": 16}


def check(body: dict[str, Any], uploads: Arrays | None = None, *, watched: bool = False) -> dict[str, Arrays]:
    """Both forms, as far from the reference as rounding explains. Memory is full of NaN until a kernel writes
    to it; ``watched``: none reads or writes beside its arguments."""
    found = {}
    for form in FORMS:
        spec, arrays = canonical(body | {"options": body.get("options", {}) | {"form": form}}, uploads)
        with fences() if watched else nullcontext(), poisoned_memory():
            found[form] = compute(spec, arrays)
        expected, bounds = reference(spec, arrays, ("out", "lse")), error_bounds(spec, arrays)
        for name, values in expected.items():
            np.testing.assert_allclose(found[form][name], values, rtol=0, atol=bounds[name], err_msg=form)
            assert found[form][name].shape == values.shape
        assert found[form]["out"].dtype == (np.float16 if spec.dtype == "float16" else np.float32)
    return found


def near(found: dict[str, Arrays], tolerance: float) -> None:
    """The two forms, as near to each other as two orders of the same sums should be."""
    for name, values in found["absorbed"].items():
        np.testing.assert_allclose(
            values, found["expanded"][name], rtol=tolerance, atol=tolerance, err_msg=name
        )


@st.composite
def bodies(draw: st.DrawFn) -> tuple[dict[str, Any], Arrays]:
    """Requests with masks of every kind, in any combination; NaN wherever nothing may be read."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    sizes = {
        "batch": draw(st.sampled_from([1, 2])), "heads": draw(st.sampled_from([1, 3, 5])),
        "q_len": draw(st.sampled_from([0, 1, 2, 7, 19])), "kv_len": draw(st.sampled_from([0, 1, 9, 16, 37])),
        "d_c": draw(st.sampled_from([1, 16, 40])), "d_nope": draw(st.sampled_from([0, 3, 16])),
        "d_rope": draw(st.sampled_from([2, 4, 20])), "d_v": draw(st.sampled_from([0, 1, 17])),
    }  # fmt: skip
    batch, heads, n, m = (sizes[name] for name in ("batch", "heads", "q_len", "kv_len"))
    uploads = {
        name: rng.standard_normal([sizes[axis] for axis in MLA.axes_of(name, 4)])
        / max(sizes["d_c"], 1) ** (name[0] == "w")
        for name in MLA_INPUTS
    }
    inputs: dict[str, Any] = {}
    if draw(st.booleans()):
        inputs = {
            "q_lens": rng.integers(0, n + 1, batch).tolist(),
            "kv_lens": rng.integers(0, m + 1, batch).tolist(),
        }
        for b in range(batch):
            for name in ("q_nope", "q_rope"):
                uploads[name][b, :, inputs["q_lens"][b] :] = np.nan
            for name in ("c_kv", "k_rope"):
                uploads[name][b, inputs["kv_lens"][b] :] = np.nan
    if draw(st.booleans()):
        shape = [size if draw(st.booleans()) else 1 for size in (batch, heads, n, m)]
        allowed = rng.random(shape) < draw(st.sampled_from([0.1, 0.6]))
        uploads["attn_mask"] = (
            allowed if draw(st.booleans()) else np.where(allowed, rng.random(shape), -np.inf)
        )
    attention = {
        "is_causal": draw(st.booleans()),
        "causal_alignment": draw(st.sampled_from(["bottom_right", "top_left"])),
        "window": [draw(st.none() | st.integers(0, 6)) for _ in range(2)],
        "softcap": draw(st.sampled_from([0.0, 2.0])),
        "scale": draw(st.sampled_from([None, -0.7, 0.0])),
        "sinks": draw(st.none() | st.just([draw(st.sampled_from(["-inf", 0.0, 2.0])) for _ in range(heads)])),
        "alibi_slopes": draw(st.sampled_from([None, "auto"])),
        "pattern": draw(st.sampled_from([None, {"type": "chunked", "size": 4}])),
        "rope": draw(st.sampled_from([None, {"style": "half"}, {"style": "interleaved", "dim": 2}])),
        "q_positions": draw(
            st.sampled_from([None, 3, rng.integers(-2, m + 3, (batch, n)).tolist() if n else []])
        ),
    }
    inputs |= {name: {"upload": "test", "name": name} for name in uploads}
    options = draw(st.sampled_from([SMALL, {"block_m": 64, "block_n": 32}, {}]))
    return {"engine": "mla", "inputs": inputs, "attention": attention, "options": options,
            "return": ["out", "lse"]}, uploads  # fmt: skip


RAGGED = {"q_lens": [40, 0, 17], "kv_lens": [23, 45, 45]}
BLOCKS = np.kron(np.eye(5), np.ones((8, 9))).astype(bool)  # query 8i … 8i + 7 sees key 9i … 9i + 8
LISTS = {"q_positions": list(range(80, 0, -2)), "kv_positions": list(range(0, 135, 3))}


@pytest.mark.parametrize(
    ("attention", "inputs"),
    [
        ({}, {}),
        ({"is_causal": True}, {}),
        ({"is_causal": True, "causal_alignment": "top_left", "sinks": [0.0, "-inf", 3.0]}, {}),
        ({"is_causal": True, "window": [9, None]}, RAGGED),
        ({"window": [4, 6], "softcap": 3.0}, {}),
        ({"is_causal": True, "alibi_slopes": "auto", "sinks": [0.0, 1.0, 2.0]}, RAGGED),
        ({}, {"attn_mask": BLOCKS.tolist()}),
        ({}, {"attn_mask": np.stack([BLOCKS, ~BLOCKS, np.roll(BLOCKS, 9, 1)]).tolist()}),
        ({}, {"attn_mask": to_jsonable(np.where(BLOCKS, 0.5, -np.inf))}),
        ({"is_causal": True, "window": [20, None], **LISTS}, {}),
        ({"is_causal": True, "rope": {"style": "half"}}, RAGGED),
    ],
)
def test_every_term_of_a_logit(attention: dict[str, Any], inputs: dict[str, Any]) -> None:
    """At lengths of several tiles, the last of which is never full; three heads to a query, so that tiles of
    16 pairs begin and end within one."""
    sizes = {"batch": 3, "heads": 3, "q_len": 40, "kv_len": 45, "d_c": 20}
    near(check(request(attention=attention, inputs=inputs, options=SMALL, **sizes)), 5e-5)


@settings(max_examples=25, deadline=None)
@given(bodies())
def test_both_forms_compute_the_same_as_the_reference(made: tuple[dict[str, Any], Arrays]) -> None:
    near(check(*made, watched=True), 5e-5)


@pytest.mark.parametrize("form", FORMS)
def test_deepseeks_own_equations(form: str) -> None:
    spec, arrays = canonical(
        request(attention={"is_causal": True}, options={"form": form}, **{"return": ["out"]})
    )
    np.testing.assert_allclose(compute(spec, arrays)["out"], as_deepseek_does(arrays), atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_the_sizes_of_deepseek(dtype: str) -> None:
    sizes = {"heads": 4, "q_len": 2, "kv_len": 70, "d_c": 512, "d_nope": 128, "d_rope": 64, "d_v": 128}
    weights = {  # such that keys and values are of the size of latents
        name: (generate(name, 1, (4, 512, 128), "normal", "float32") / 512**0.5).tolist()
        for name in ("w_uk", "w_uv")
    }
    scaling = {"type": "yarn", "factor": 40.0, "original_max_position_embeddings": 4096}
    attention = {"is_causal": True, "rope": {"style": "interleaved", "scaling": scaling}}
    found = check(request(inputs=weights, dtype=dtype, attention=attention, batch=1, **sizes))
    # 2⁻¹¹ of keys near 1, over 192 dimensions; of bfloat16 only the result is rounded in the interpreter.
    near(found, {"float32": 1e-5, "float16": 4e-3, "bfloat16": 1e-2}[dtype])


def test_products_beyond_float16() -> None:
    """64 · 30² · 2 = 115,200, while float16 ends at 65,504; the logits are of ordinary size."""
    c_kv, w_uk = np.full((2, 9, 12), 100.0), np.full((3, 12, 6), 90.0)
    body = request(
        dtype="float16", inputs={"c_kv": c_kv.tolist(), "w_uk": w_uk.tolist()}, attention={"scale": 1e-6}
    )
    check(body)
    spec, arrays = canonical(body)
    notes = launch.prepare(spec, arrays, "cpu").notes
    assert any("beyond float16" in note for note in notes)


def test_few_queries_are_absorbed_and_many_expanded() -> None:
    """At the sizes of DeepSeek-V2, the smallest q_len from which expanding takes fewer products is 171."""
    sizes = {"batch": 1, "heads": 2, "kv_len": 2**20, "d_c": 512, "d_nope": 128, "d_rope": 64, "d_v": 128}
    inputs = {
        name: InputSpec(
            tuple((sizes | {"q_len": 1})[axis] for axis in MLA.axes_of(name, 4)), "float32", "seed", 1
        )
        for name in MLA_INPUTS
    }

    def chosen(q_len: int) -> str:
        longer = {
            name: replace(inputs[name], shape=(1, 2, q_len, inputs[name].shape[3]))
            for name in ("q_nope", "q_rope")
        }
        return chosen_form(RunSpec("mla", inputs | longer))

    assert [chosen(q_len) for q_len in (1, 16, 170, 171, 4096)] == ["absorbed"] * 3 + ["expanded"] * 2
    spec, arrays = canonical(request(q_len=1))
    notes = launch.prepare(spec, arrays, "cpu").notes
    assert any(note.startswith("Form absorbed, chosen") for note in notes)


# Of 4 keys: 8 pairs · 5 + 4 keys · 12 = 88 expanded; 8 pairs · 7 + 2 queries · 12 = 80 absorbed.
@pytest.mark.parametrize(
    ("kv_len", "form", "says"),
    [
        (4, None, "absorbed, chosen since it takes the fewer: 80 multiply-adds, where expanded takes 88"),
        (4, "expanded", "expanded, as asked for: 88 multiply-adds, where absorbed takes 80"),
        (
            3,
            None,
            "absorbed, chosen since it makes no keys and values: 66 multiply-adds, as many as expanded",
        ),
        (3, "expanded", "expanded, as asked for: 66 multiply-adds, as many as absorbed"),
    ],
)
def test_a_result_says_why_it_has_its_form(kv_len: int, form: str | None, says: str) -> None:
    sizes = {"batch": 1, "heads": 1, "q_len": 2, "d_c": 3, "d_nope": 2, "d_rope": 1, "d_v": 2}
    spec, arrays = canonical(request(**sizes, kv_len=kv_len, options={"form": form} if form else {}))
    (note,) = launch.prepare(spec, arrays, "cpu").notes
    assert note.startswith(f"Form {says}")


def traffic_of_absorbed(heads: int, batch: int, q_len: int, kv_len: int, block_m: int) -> int:
    """Bytes read, without those of the products with weights on either side (each input once)."""
    sizes = SIZES | {"heads": heads, "batch": batch, "q_len": q_len, "kv_len": kv_len, "d_c": 24, "d_rope": 6}
    _, arrays = canonical(request(**sizes))
    inputs = {name: torch.from_numpy(arrays[name]) for name in MLA_INPUTS}
    with counted_traffic() as traffic:
        launch.absorbed(inputs, Terms(scale=0.1), tiles=(block_m, 16))
    pairs = batch * heads * q_len
    products = pairs * (6 + 24) + heads * 24 * (6 + 7)
    assert traffic.bytes_written == 4 * pairs * (24 + (24 + 1) + 7)
    return traffic.bytes_read - 4 * products


@pytest.mark.parametrize("heads", [1, 8, 16, 64])
@pytest.mark.parametrize(("batch", "kv_len"), [(1, 70), (3, 33)])
def test_a_decoded_token_reads_each_latent_once(heads: int, batch: int, kv_len: int) -> None:
    """Once as key and value of all heads: (d_c + d_rope) numbers for each token of the cache, whatever the
    number of heads, and as many for each query."""
    read = traffic_of_absorbed(heads, batch, 1, kv_len, max(16, heads))
    assert read == 4 * (24 + 6) * batch * (kv_len + heads)


@pytest.mark.parametrize(("heads", "q_len"), [(5, 7), (48, 3), (16, 4)])
def test_latents_are_read_once_for_each_tile_of_pairs(heads: int, q_len: int) -> None:
    tiles = -(-heads * q_len // 32)
    assert traffic_of_absorbed(heads, 2, q_len, 50, 32) == 4 * (24 + 6) * 2 * (tiles * 50 + heads * q_len)


def bytes_read(body: dict[str, Any]) -> int:
    prepared = launch.prepare(*canonical(body), "cpu")
    with counted_traffic() as traffic:
        prepared.compute()
    return traffic.bytes_read


@pytest.mark.parametrize(("batch", "heads", "q_len", "kv_len"), [(1, 1, 1, 9), (2, 5, 40, 70)])
def test_expanding_is_part_of_the_traffic(batch: int, heads: int, q_len: int, kv_len: int) -> None:
    """Whole keys are written, k_rope to those of every head, and values, before output and LSE."""
    sizes = {"batch": batch, "heads": heads, "q_len": q_len, "kv_len": kv_len}
    prepared = launch.prepare(*canonical(request(options=SMALL | {"form": "expanded"}, **sizes)), "cpu")
    with counted_traffic() as traffic:
        prepared.compute()
    made, result = kv_len * ((6 + 4) + 7), q_len * (7 + 1)
    assert traffic.bytes_written == 4 * batch * heads * (made + result)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("window", "visited"), [([None, None], 10), ([16, None], 7)])
def test_tiles_beyond_what_queries_see_are_not_read(
    form: str, window: list[int | None], visited: int
) -> None:
    """Four tiles of queries against four of keys: of 16, causality needs 10, a window as wide as a tile 7."""
    sizes = {"batch": 1, "heads": 1, "q_len": 64, "kv_len": 64, "d_c": 32}
    options = SMALL | {"form": form}
    seen = bytes_read(request(attention={"is_causal": True, "window": window}, options=options, **sizes))
    per_key = 32 + 4 if form == "absorbed" else 6 + 4 + 7
    offsets = 4 * 4  # each tile of queries reads where it stands
    assert bytes_read(request(options=options, **sizes)) - seen + offsets == 4 * (16 - visited) * 16 * per_key


@pytest.mark.parametrize("form", FORMS)
def test_tiles_that_a_mask_forbids_are_not_read(form: str) -> None:
    """Of three tiles of keys the middle one is allowed; 15 pairs of query and head are one tile or three."""
    read = []
    for first, last in ((0, 48), (16, 32)):
        allowed = np.zeros((1, 1, 5, 48), bool)
        allowed[..., first:last] = True
        inputs = {"attn_mask": allowed.tolist()}
        read.append(bytes_read(request(kv_len=48, inputs=inputs, options=SMALL | {"form": form})))
    tile = 16 * (12 + 4) if form == "absorbed" else 3 * 16 * (6 + 4 + 7)
    mask = 15 * 16
    assert read[0] - read[1] == 2 * 2 * (4 * tile + mask)


def test_padding_has_no_sink() -> None:
    """As the kernel leaves it: no output, and an LSE of −∞ although every head has a sink."""
    _, arrays = canonical(request())
    inputs = {name: torch.from_numpy(arrays[name]) for name in MLA_INPUTS}
    bound = Terms(scale=0.3, p_sinks=torch.zeros(3), p_q_lens=torch.tensor([5, 2], dtype=torch.int32))
    got = launch.absorbed(inputs, bound, tiles=(16, 16))
    assert torch.isfinite(got["lse"][0]).all()
    assert torch.isneginf(got["lse"][1, :, 2:]).all()
    assert not got["out"][1, :, 2:].any()


def test_a_run_of_the_engine_in_full() -> None:
    parsed = parse_run(request(rank=3, batch=1, q_len=1, timing={"warmup": 0, "iters": 1}))
    execute(parsed.spec, parsed.arrays)  # the first of a process takes memory that none after it does
    outcome = execute(parsed.spec, parsed.arrays)
    assert outcome.arrays["out"].shape == (3, 1, 7)
    assert outcome.numerics["within_bound"]
    assert outcome.numerics["arrays"]["lse"]["within_bound"]
    assert outcome.cost["flops"] == 2 * multiply_adds(parsed.spec, "absorbed")
    assert outcome.traffic["method"] == "interpreter"
    assert outcome.environment["kernel_version"] == launch.KERNEL_VERSION
    assert outcome.input_info["w_uk"]["shape"] == [3, 12, 6]
    assert set(outcome.inputs) == set(MLA_INPUTS)
    assert (
        0 < outcome.memory["peak_bytes"] <= outcome.memory["predicted_bytes"]
        or outcome.memory["peak_bytes"] == 0
    )


@pytest.mark.parametrize(
    ("sizes", "pointer", "says"),
    [
        ({"d_c": 513}, "/inputs/c_kv", "its limit is 512); reference or eager can"),
        ({"d_nope": 253}, "/inputs/q_nope", "257 (its limit is 256); reference or eager can"),
        ({"d_v": 257}, "/inputs/w_uv", "a head dim of 257"),
        ({"dtype": "float64"}, "/dtype", "reference or eager can"),
        ({"return": ["weights"]}, "/return/0", "reference or eager can"),
        ({"options": {"num_splits": 2}}, "/options/num_splits", "does not support the option num_splits"),
        ({"inputs": {"k": THREE}}, "/inputs/k", "mla takes q_nope, q_rope, c_kv, k_rope, w_uk and w_uv"),
    ],
)  # fmt: skip
def test_what_the_engine_cannot_do(sizes: dict[str, Any], pointer: str, says: str) -> None:
    assert says in refused(request(**sizes))[pointer]


def test_other_engines_have_no_form() -> None:
    assert "mla can" in refused(request("eager", options={"form": "absorbed"}))["/options/form"]


DEEPSEEK = {"heads": 64, "kv_len": 64, "d_c": 512, "d_nope": 128, "d_rope": 64, "d_v": 128, "batch": 1}


def test_decoding_compiles_to_tensor_cores_without_spills() -> None:
    body = request(dtype="float16", q_len=1, attention={"is_causal": True}, **DEEPSEEK)
    for kernels in printed_by(COMPILE, [body, ["sm_80", "sm_90"]]).values():
        assert list(kernels) == ["latent_attention", "absorb", "release"]
        for made in kernels.values():
            assert made["fits"]
            assert made["spills_bytes"] == made["stack_bytes"] == 0
            assert made["instructions"]["mma"] > 0
            assert made["instructions"]["cp_async"] > 0


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_tiles_that_no_multiprocessor_holds_are_refused_with_the_largest_that_fits(dtype: str) -> None:
    def problems(targets: Iterable[str], **options: Any) -> list[FieldProblem]:
        spec = parse_run(request(dtype=dtype, options=options, **DEEPSEEK)).spec
        return tile_problems(spec, targets)

    assert not problems(TARGETS, form="absorbed")
    assert not problems(TARGETS, form="expanded")
    for target in TARGETS:
        (found,) = problems([target], form="absorbed", block_m=128, block_n=64)
        assert found.pointer == "/options/block_m"
        largest = re.search(r"largest that fits is block_m (\d+) with block_n (\d+)", found.detail)
        assert largest
        fitting = dict(zip(("block_m", "block_n"), map(int, largest.groups()), strict=True))
        assert not problems([target], form="absorbed", **fitting)


def test_more_work_is_predicted_to_cost_more() -> None:
    def seconds(**sizes: Any) -> float:
        return estimate(parse_run(request(**sizes)).spec).predicted_seconds

    assert seconds(kv_len=900) < seconds(kv_len=4000) < seconds(kv_len=4000, heads=32)
    assert seconds(engine="reference", kv_len=4000) < seconds(engine="reference", kv_len=4000, d_c=500)
    assert estimate(parse_run(request(heads=64, kv_len=4000)).spec).predicted_bytes > 8 * 2 * 64 * 4000 * (
        10 + 7
    )
