"""Parsing a request: what is accepted, and what each mistake is told."""

# ruff: noqa: E501 - a table of mistakes reads best with one on a line

import base64
import contextlib
import json
import tracemalloc
from typing import Any

import numpy as np
import pytest

from kernels.spec import RunSpec, SpecError, parse_run

Q = [[1, 0], [0, 1], [1, 1]]


def body(engine: str = "reference", inputs: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    return {"engine": engine, "inputs": {"q": Q, "k": Q, "v": Q} | (inputs or {}), **fields}


def b64(array: np.ndarray, **fields: Any) -> dict[str, Any]:
    dtype = str(array.dtype)
    return {
        "b64": base64.b64encode(array.tobytes()).decode(),
        "dtype": dtype,
        "shape": list(array.shape),
    } | fields


def seeded(*shape: int, **fields: Any) -> dict[str, Any]:
    return {"seed": 1, "shape": list(shape)} | fields


def qkv(q: Any, k: Any = None, v: Any = None) -> dict[str, Any]:
    return {"q": q, "k": q if k is None else k, "v": (q if k is None else k) if v is None else v}


def problems(given: object, **options: Any) -> dict[str, tuple[int, str, str]]:
    with pytest.raises(SpecError) as caught:
        parse_run(given, **options)
    return {p.pointer: (p.status, p.code, p.detail) for p in caught.value.problems}


# -- what is accepted ------------------------------------------------------------------------------------------


def test_defaults_are_the_contracts() -> None:
    parsed = parse_run(body("flash"))
    spec = parsed.spec
    assert (spec.device, spec.dtype, spec.returns) == ("auto", "float32", ("out",))
    assert (spec.timing.warmup, spec.timing.iters) == (1, 5)
    assert spec.attention.causal_alignment == "bottom_right"
    assert spec.attention.window == (None, None)
    assert spec.inputs["q"].shape == (3, 2)
    assert spec.inputs["q"].dtype == "float64"
    assert parsed.arrays["q"].tolist() == Q
    assert spec.scale == pytest.approx(0.5**0.5)


@pytest.mark.parametrize(
    ("inputs", "attention", "sizes"),
    [
        (qkv(seeded(3, 2), seeded(5, 2), seeded(5, 4)), {}, (1, 1, 1, 3, 5, 2, 4)),
        (qkv(seeded(6, 3, 2), seeded(2, 5, 2), seeded(2, 5, 4)), {}, (1, 6, 2, 3, 5, 2, 4)),
        (qkv(seeded(7, 6, 3, 2), seeded(7, 2, 5, 2), seeded(7, 2, 5, 4)), {}, (7, 6, 2, 3, 5, 2, 4)),
        (
            qkv(seeded(7, 3, 12), seeded(7, 5, 4), seeded(7, 5, 8)),
            {"num_heads": 6, "num_kv_heads": 2},
            (7, 6, 2, 3, 5, 2, 4),
        ),
        (qkv(seeded(7, 3, 12), seeded(7, 5, 12)), {"num_heads": 4}, (7, 4, 4, 3, 5, 3, 3)),
        (qkv(seeded(0, 2), seeded(5, 2)), {}, (1, 1, 1, 0, 5, 2, 2)),
        (qkv(seeded(2, 0, 3, 4)), {}, (2, 0, 0, 3, 3, 4, 4)),
    ],
)
def test_every_rank_has_one_canonical_reading(inputs: Any, attention: Any, sizes: tuple[int, ...]) -> None:
    s = parse_run(body(inputs=inputs, attention=attention)).spec
    assert (s.batch, s.num_heads, s.num_kv_heads, s.q_len, s.kv_len, s.head_dim, s.v_head_dim) == sizes


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int32", "int64"])
def test_base64_of_every_dtype(dtype: str) -> None:
    array = np.arange(6).reshape(3, 2).astype(dtype)
    parsed = parse_run(body(inputs={"q": b64(array)}))
    np.testing.assert_array_equal(parsed.arrays["q"], array)
    assert parsed.spec.inputs["q"].dtype == dtype


def test_base64_bfloat16_and_empty() -> None:
    raw = base64.b64encode(np.array([0x3F80, 0xC000], dtype="<u2").tobytes()).decode()
    parsed = parse_run(body(inputs=qkv({"b64": raw, "dtype": "bfloat16", "shape": [1, 2]}), dtype="bfloat16"))
    assert parsed.arrays["q"].tolist() == [[1.0, -2.0]]
    empty = {"b64": "", "dtype": "float32", "shape": [0, 2]}
    assert parse_run(body(inputs={"q": empty})).spec.q_len == 0


def test_masks_take_booleans_and_infinities_as_strings() -> None:
    parsed = parse_run(body(inputs={"attn_mask": [["-inf", 0, 1.5]]}))
    assert parsed.arrays["attn_mask"].tolist() == [[-np.inf, 0.0, 1.5]]
    parsed = parse_run(body(inputs={"attn_mask": [[True, False, True]]}))
    assert parsed.arrays["attn_mask"].dtype == np.bool_


def test_uploads_come_through_the_callback() -> None:
    stored = np.ones((3, 2), dtype=np.float32)
    parsed = parse_run(
        body(inputs={"q": {"upload": "u1", "name": "q"}}),
        load_upload=lambda u, n: {("u1", "q"): stored}[u, n],
    )
    assert parsed.spec.inputs["q"].source == "upload"
    assert parsed.arrays["q"] is stored

    def missing(upload: str, name: str) -> np.ndarray:
        raise KeyError(f"upload {upload} has no member {name}")

    found = problems(body(inputs={"q": {"upload": "u1", "name": "x"}}), load_upload=missing)
    assert found["/inputs/q"] == (422, "not-found", "upload u1 has no member x")


def test_an_upload_of_bfloat16_is_known_for_what_it_is() -> None:
    bits = np.full((3, 2), 0x3FC0, np.uint16)
    parsed = parse_run(body(inputs={"q": {"upload": "u", "name": "q"}}), load_upload=lambda *_: bits)
    assert parsed.spec.inputs["q"].dtype == "bfloat16"
    assert parsed.arrays["q"].tolist() == [[1.5, 1.5]] * 3


def test_the_normalised_spec_survives_json() -> None:
    spec = parse_run(
        body(
            inputs=qkv(seeded(2, 4, 3, 8, distribution="peaked"), seeded(2, 2, 3, 8))
            | {"attn_mask": [[True] * 3]},
            attention={
                "scale": -0.5,
                "is_causal": True,
                "causal_alignment": "top_left",
                "q_positions": [[0, 1, 2], [5, 6, 7]],
                "kv_positions": 3,
                "window": [4, None],
                "softcap": 30,
                "alibi_slopes": [0.5, 0.25, 0.1, 0],
                "sinks": [0, "-inf", 1.5, -2],
            },
            timing={"warmup": 0, "iters": 1},
            **{"return": ["lse", "out"]},
        )
    ).spec
    assert RunSpec.from_dict(json.loads(json.dumps(spec.to_dict(), allow_nan=False))) == spec
    assert spec.to_dict()["return"] == ["lse", "out"]
    assert spec.to_dict()["inputs"]["q"] == {
        "shape": [2, 4, 3, 8],
        "dtype": "float32",
        "source": "seed",
        "seed": 1,
        "distribution": "peaked",
    }


# -- mistakes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "pointer", "status", "words"),
    [
        (body(inputs={"q": [[1, 2], [3]]}), "/inputs/q/1", 400, "1 entries but the first has 2"),
        (body(inputs={"q": [[[1, 2]], [[3, 4], [5, 6]]]}), "/inputs/q/1", 400, "2 entries"),
        (body(inputs={"q": [[1, 2], [3, [4]]]}), "/inputs/q/1/1", 400, "mixed"),
        (body(inputs={"q": [1, 2]}), "/inputs/q", 422, "rank 1"),
        (body(inputs={"q": [[[[[1, 2]]]]]}), "/inputs/q", 422, "rank 5"),
        (body(inputs={"q": 3}), "/inputs/q", 400, "nested lists"),
        (body(inputs={"q": [[1, 2, 3]]}), "/inputs/k", 422, "dim 2 but q has dim 3"),
        (body(inputs={"v": [[1, 2]]}), "/inputs/v", 422, "length 1 but k has length 3"),
        (body(inputs={"q": [Q]}), "/inputs/k", 422, "rank 2 but q has rank 3"),
        (body(inputs=qkv(seeded(6, 3, 4), seeded(4, 3, 4))), "/inputs/k", 422, "6 heads, not a multiple of the 4"),
        (body(inputs=qkv(seeded(2, 3, 10)), attention={"num_heads": 3}), "/attention/num_heads", 422, "10 wide"),
        (body(attention={"num_heads": 2}), "/inputs/q", 422, "leave num_heads out"),
        (body(inputs={"q": [[1, "nan"]]}), "/inputs/q", 422, "nan at index [0, 1]"),
        (body(inputs={"v": [[1, 2], [3, "-inf"], [0, 0]]}), "/inputs/v", 422, "-inf at index [1, 1]"),
        (body(inputs={"q": [[1, float("nan")]]}), "/inputs/q", 422, "nan at index [0, 1]"),
        (body(inputs={"q": b64(np.float16([[1, np.inf]]))}), "/inputs/q", 422, "inf at index [0, 1]"),
        (body(inputs={"attn_mask": b64(np.float16([[0, np.inf, 0]]))}), "/inputs/attn_mask", 422, "inf at index"),
        (body(inputs={"q": [[1, True]]}), "/inputs/q/0/1", 422, "true among numbers"),
        (body(inputs={"q": [[True, True]]}), "/inputs/q", 422, "booleans"),
        (body(inputs={"q": [[1, None]]}), "/inputs/q/0/1", 400, "null is not a number"),
        (body(inputs={"q": [[1, "2"]]}), "/inputs/q/0/1", 400, '"2" is not a number'),
        (body(inputs={"q": [[1, 10**400]]}), "/inputs/q/0/1", 422, "beyond the range"),
        (body(inputs={"q": [[1, 1e6]]}, dtype="float16"), "/inputs/q", 422, "largest value is 65504"),
        (body(inputs={"q": seeded(1, 1000, 1000, 1000)}), "/inputs/q/shape", 413, "1,000,000,000 elements"),
        (body(inputs={"q": seeded(3, -2)}), "/inputs/q/shape/1", 422, "not -2"),
        (body(inputs={"q": seeded(3, 2.0)}), "/inputs/q/shape/1", 400, "integer"),
        (body(inputs={"q": seeded(3, True)}), "/inputs/q/shape/1", 400, "integer"),
        (body(inputs={"q": {"seed": 2**63, "shape": [3, 2]}}), "/inputs/q/seed", 422, "between 0 and"),
        (body(inputs={"q": seeded(3, 2, distribution="flat")}), "/inputs/q/distribution", 422, "normal, uniform or"),
        (body(inputs={"q": {"shape": [3, 2]}}), "/inputs/q", 400, "exactly one of b64, seed, upload"),
        (body(inputs={"q": {"seed": 1, "b64": "", "shape": [3, 2]}}), "/inputs/q", 400, "exactly one"),
        (body(inputs={"q": seeded(3, 2, dtype="float32")}), "/inputs/q/dtype", 400, "unknown field dtype"),
        (body(inputs={"q": b64(np.zeros((3, 2)), shape=[3, 3])}), "/inputs/q/b64", 400, "72 bytes"),
        (body(inputs={"q": b64(np.zeros((3, 2)), b64="AA_=")}), "/inputs/q/b64", 400, "URL-safe"),
        (body(inputs={"q": b64(np.zeros((3, 2)), dtype="complex64")}), "/inputs/q/dtype", 422, "complex64"),
        (body(inputs={"q": {"upload": "x", "name": "q"}}), "/inputs/q", 422, "uploads are not accepted"),
        (body(inputs={"attn_mask": [[0, "nan", 0]]}), "/inputs/attn_mask", 422, "nan at index [0, 1]"),
        (body(inputs={"attn_mask": [[0, "inf", 0]]}), "/inputs/attn_mask", 422, "inf at index [0, 1]"),
        (body(inputs={"attn_mask": [[0, 3.41e38, 0]]}), "/inputs/attn_mask", 422, "3.41e+38 at index [0, 1]"),
        (body(inputs={"attn_mask": [[0, 0, -1e39]]}), "/inputs/attn_mask", 422, 'to forbid a key write "-inf"'),
        (body(inputs={"attn_mask": [[0, 1]]}), "/inputs/attn_mask", 422, "does not broadcast"),
        (body(inputs={"attn_mask": b64(np.ones((1, 3), "int64"))}), "/inputs/attn_mask", 422, "send bool"),
        (body(inputs={"p": Q}), "/inputs/p", 400, "unknown field p"),
        (body("flsh"), "/engine", 422, "did you mean flash?"),
        (body("xyz"), "/engine", 422, "use one of reference, eager"),
        (body("performr"), "/engine", 422, "did you mean performer?"),
        (body(7), "/engine", 400, "not 7"),  # type: ignore[arg-type]
        (body(tming={}), "/tming", 400, "did you mean timing?"),
        (body(attention={"is_casual": True}), "/attention/is_casual", 400, "did you mean is_causal?"),
        (body(attention={"is_causal": 1}), "/attention/is_causal", 400, "true or false"),
        (body(attention={"scale": "1"}), "/attention/scale", 400, "a number"),
        (body(attention={"scale": float("inf")}), "/attention/scale", 422, "not inf"),
        (body(attention={"window": [1]}), "/attention/window", 400, "[left, right]"),
        (body(attention={"window": [-1, 0]}), "/attention/window/0", 422, "null for unbounded"),
        (body(attention={"softcap": -1}), "/attention/softcap", 422, "not -1"),
        (body(attention={"alibi_slopes": [1, 2]}), "/attention/alibi_slopes", 422, "2 entries for 1 heads"),
        (body(attention={"sinks": [1, 2]}), "/attention/sinks", 422, "2 entries for 1 heads"),
        (body(attention={"q_positions": [0, 1]}), "/attention/q_positions", 422, "2 entries for 3 queries"),
        (body(attention={"q_positions": [0, 1, 2.5]}), "/attention/q_positions/2", 400, "integer"),
        (body(attention={"q_positions": [[0, 1, 2], 5]}), "/attention/q_positions/1", 400, "here is 5"),
        (body(attention={"kv_positions": [5, [0, 1, 2]]}), "/attention/kv_positions/1", 400, "a list of 3"),
        (body(attention={"alibi_slopes": [[1.0], 2.0]}), "/attention/alibi_slopes/1", 400, "here is 2.0"),
        (body(attention={"pattern": {"type": "stripes"}}), "/attention/pattern/type", 422, "stripes"),
        (body(attention={"rope": {"style": "half", "scaling": {"type": "yarn"}}}), "/attention/rope/scaling/factor",
         400, "yarn needs factor"),
        (body(attention={"rope": {}}), "/attention/rope/style", 400, "interleaved"),
        (body(options={"block_m": 48}, engine="flash"), "/options/block_m", 422, "32 or 64"),
        (body(options={"block_m": 8}, engine="flash"), "/options/block_m", 422, "between 16 and 1024"),
        (body(timing={"iters": 0}), "/timing/iters", 422, "not 0"),
        (body(timing={"iters": 2.0}), "/timing/iters", 400, "integer"),
        (body(**{"return": []}), "/return", 400, "list"),
        (body(**{"return": ["outt"]}), "/return/0", 422, "did you mean out?"),
        (body(inputs={"past_key": Q}), "/inputs/past_value", 422, "send both"),
        (body(inputs={"q_lens": [1, 2]}), "/inputs/q_lens", 422, "batch is 1"),
        (body(inputs={"q_lens": [4]}), "/inputs/q_lens/0", 422, "exceeds the 3"),
        (body(dtype="float8"), "/dtype", 422, "float8"),
        ({"engine": "flash"}, "/inputs", 400, "required"),
        ({"inputs": qkv(Q)}, "/engine", 400, "required"),
        ([], "", 400, "object"),
    ],
)  # fmt: skip
def test_a_mistake_is_located_and_explained(given: object, pointer: str, status: int, words: str) -> None:
    found = problems(given)
    assert pointer in found, found
    assert found[pointer][0] == status
    assert words in found[pointer][2]


def test_all_mistakes_are_reported_at_once_and_the_worst_decides() -> None:
    with pytest.raises(SpecError) as caught:
        parse_run(body("nope", {"q": [[1], [2, 3]]}, dtype="x", extra=1, attention={"softcap": "a"}))
    pointers = {p.pointer for p in caught.value.problems}
    assert {"/engine", "/inputs/q/1", "/dtype", "/extra", "/attention/softcap"} <= pointers
    assert caught.value.status == 400


def test_a_flood_of_mistakes_is_cut_short() -> None:
    with pytest.raises(SpecError) as caught:
        parse_run(body() | {f"field{i}": i for i in range(10_000)})
    assert len(caught.value.problems) < 50
    assert "further problems" in caught.value.problems[-1].detail


@pytest.mark.parametrize(
    "inputs",
    [
        {"q": {"seed": 1, "shape": [10, 10, 10**7, 1]}},
        {"q": {"b64": "AAAA", "dtype": "float64", "shape": [10**9, 1]}},
        {"q": {"b64": "AAAA", "dtype": "float64", "shape": [10**6, 16]}},
        {"q": [[1, 2], [3]], "k": {"seed": 1, "shape": [2**20, 8]}},
    ],
)
def test_bad_input_allocates_nothing_of_the_size_it_claims(inputs: dict[str, Any]) -> None:
    peaks = []
    for _ in range(5):  # the least of them: other threads of this process may hold memory at the same time
        tracemalloc.start()
        try:
            problems(body(inputs=inputs))
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    assert min(peaks) < 2**20


def test_inputs_are_limited_together_too() -> None:
    found = problems(body(inputs=qkv(seeded(100, 2))), max_elements=500)
    assert found["/inputs"][0] == 413
    assert problems(body(inputs={"q": [[1, 2]] * 300}), max_elements=500)["/inputs/q"][0] == 413


@pytest.mark.parametrize(
    ("inputs", "pointer", "named"),
    [
        (qkv(seeded(1, 0), seeded(2**31 - 1, 0)), "/inputs/k/shape", "2147483647"),
        (qkv(seeded(2**31 - 1, 0), seeded(0, 0)), "/inputs/q/shape", "2147483647"),
        (qkv(seeded(0, 10**5000)), "/inputs/q/shape", "an integer of 16610 bits"),
        (qkv(seeded(2**20, 2**20, 0)), "/inputs/q", "1,099,511,627,776 rows"),
        (qkv(seeded(2, 2**12, 2**12, 0)), "/inputs/k", "33,554,432 rows"),
        (qkv(seeded(2**20, 2**20, 0, 1)), "/inputs/q", "1,099,511,627,776 rows"),
    ],
)
def test_an_axis_of_zero_hides_no_other(inputs: dict[str, Any], pointer: str, named: str) -> None:
    found = problems(body(inputs=inputs, attention={"is_causal": True, "q_positions": [0]}))
    status, code, detail = found[pointer]
    assert (status, code) == (413, "too-large")
    assert named in detail
    assert "at most 16,777,216" in detail


def test_packed_heads_without_a_length_are_limited() -> None:
    given = body(inputs=qkv(seeded(2**24, 0, 65_536)), attention={"num_heads": 65_536})
    assert "1,099,511,627,776 rows" in problems(given)["/inputs/q"][2]


def test_an_upload_without_elements_has_no_unlimited_axis() -> None:
    given = body(inputs={"q": {"upload": "u", "name": "q"}})
    found = problems(given, load_upload=lambda *_: np.zeros((2**31, 0)))
    assert found["/inputs/q"][:2] == (413, "too-large")


def test_ragged_batches_may_hold_nan_beyond_their_lengths() -> None:
    q = np.zeros((2, 1, 3, 2))
    q[1, 0, 2] = np.nan
    given = body(inputs=qkv(b64(q)) | {"q_lens": [3, 2], "kv_lens": [3, 2]})
    parse_run(given)
    given["inputs"]["q_lens"] = [3, 3]
    assert "nan at index [1, 0, 2, 0]" in problems(given)["/inputs/q"][2]


def test_a_past_comes_first_and_may_hold_nan_beyond_kv_lens_too() -> None:
    past, fresh = np.zeros((2, 1, 3, 2)), np.zeros((2, 1, 2, 2))
    past[1, 0, 1:], fresh[1], fresh[0, 0, 1] = np.nan, np.nan, np.nan
    given = body(
        inputs=qkv(seeded(2, 1, 2, 2), b64(fresh)) | {"past_key": b64(past), "past_value": b64(past)}
    )
    given["inputs"]["kv_lens"] = [4, 1]
    parse_run(given)
    given["inputs"]["kv_lens"] = [5, 1]
    assert "nan at index [0, 0, 1, 0]" in problems(given)["/inputs/k"][2]
    given["inputs"]["kv_lens"] = [4, 2]
    assert "nan at index [1, 0, 1, 0]" in problems(given)["/inputs/past_key"][2]


def test_pages_may_hold_nan_where_no_row_reads() -> None:
    pages = np.zeros((4, 2, 1, 2))
    pages[0], pages[3, 1] = np.nan, np.nan  # page 0 is unused; the second slot of page 3 lies beyond kv_lens
    inputs = {"q": seeded(2, 1, 1, 2), "k": b64(pages), "v": b64(pages)}
    inputs |= {"block_table": [[1, 3], [2, -1]], "kv_lens": [3, 2]}
    parse_run(body(inputs=inputs))
    assert "nan at index [3, 1, 0, 0]" in problems(body(inputs=inputs | {"kv_lens": [4, 2]}))["/inputs/k"][2]
    found = problems(body(inputs=inputs | {"kv_lens": [3, 3]}))["/inputs/block_table"]
    assert "block -1 (unused) at index [1, 1]" in found[2]
    assert "row 1 has 3 tokens" in found[2]
    inputs.pop("kv_lens")
    assert "without kv_lens all are read" in problems(body(inputs=inputs))["/inputs/block_table"][2]


def test_a_small_table_cannot_name_a_great_many_tokens() -> None:
    pages = seeded(1, 2**14, 1, 16)
    table = {"b64": base64.b64encode(bytes(8 * 2**12)).decode(), "dtype": "int64", "shape": [1, 2**12]}
    found = problems(body(inputs={"q": seeded(1, 1, 1, 16), "k": pages, "v": pages, "block_table": table}))
    assert found["/inputs/block_table"][:2] == (413, "too-large")


PAGES = {"k": seeded(2, 3, 1, 2), "v": seeded(2, 3, 1, 2), "block_table": [[0]]}


@pytest.mark.parametrize(
    ("inputs", "attention", "pointer", "words"),
    [
        ({"block_table": seeded(1, 1)}, {}, "/inputs/block_table", "not a seed"),
        ({"block_table": [[2]]}, {}, "/inputs/block_table", "there are 2"),
        ({"block_table": [[0.5]]}, {}, "/inputs/block_table", "integers"),
        ({"block_table": [[0], [1]]}, {}, "/inputs/block_table", "2 rows but q has batch 1"),
        ({"past_key": Q, "past_value": Q}, {}, "/inputs/past_key", "holds the past itself"),
        ({"q": seeded(1, 3, 4)}, {"num_heads": 2, "num_kv_heads": 2}, "/attention/num_kv_heads", "pages of k have 1"),
    ],
)  # fmt: skip
def test_mistakes_about_pages(inputs: Any, attention: Any, pointer: str, words: str) -> None:
    assert words in problems(body(inputs=PAGES | inputs, attention=attention))[pointer][2]


def test_packed_queries_may_read_pages() -> None:
    spec = parse_run(body(inputs=PAGES | {"q": seeded(1, 3, 8)}, attention={"num_heads": 4})).spec
    assert (spec.num_heads, spec.num_kv_heads, spec.head_dim, spec.kv_len) == (4, 1, 2, 3)


# Where a number goes, what a message calls it, its limits as they are written, and as numbers.
RANGES: dict[str, tuple[str, str, float, float]] = {
    "/attention/scale": ("scale", "-3.4e+38 and 3.4e+38", -3.4e38, 3.4e38),
    "/attention/softcap": ("softcap", "1.2e-38 and 3.4e+38 (or 0: no softcap)", 1.2e-38, 3.4e38),
    "/attention/window/0": ("a side of window", "0 and 2^53, or null for unbounded", 0, 2**53),
    "/attention/q_positions": ("q_positions", "-2^53 and 2^53", -(2**53), 2**53),
    "/attention/kv_positions/2": ("a position in kv_positions", "-2^53 and 2^53", -(2**53), 2**53),
    "/attention/alibi_slopes/0": ("a slope", "-3.4e+38 and 3.4e+38", -3.4e38, 3.4e38),
    "/attention/sinks/0": ("a sink", '-3.4e+38 and 3.4e+38 (or "-inf": no sink)', -3.4e38, 3.4e38),
    "/attention/rope/theta": ("theta", "1e-06 and 1e+18", 1e-6, 1e18),
    "/options/num_splits": ("num_splits", "1 and 1024", 1, 1024),
    "/options/page_size": ("page_size", "1 and 65536", 1, 65_536),
    "/timing/warmup": ("warmup", "0 and 100", 0, 100),
    "/timing/iters": ("iters", "1 and 1000", 1, 1000),
}


def with_number(pointer: str, value: float) -> dict[str, Any]:
    """A request that says so; beside it stands what the shapes ask for."""
    section, field, *rest = pointer[1:].split("/")
    if rest == ["theta"]:
        given: Any = {"style": "half", "theta": value}
    elif rest:
        given = {"window": [value, None], "kv_positions": [0, 0, value]}.get(field, [value])
    else:
        given = value
    return body(engine="paged", **{section: {field: given}})


@pytest.mark.parametrize("pointer", RANGES)
def test_a_number_out_of_range_is_refused_with_limits_that_hold(pointer: str) -> None:
    name, limits, low, high = RANGES[pointer]
    for value in (low, high):
        parse_run(with_number(pointer, value))
    step = 1 if isinstance(high, int) else 1e-3 * high
    huge = 10**400
    for value, shown in ((low - step, None), (high + step, None), (huge, "an integer of 1329 bits")):
        status, code, detail = problems(with_number(pointer, value))[pointer]
        assert (status, code) == (422, "out-of-range")
        assert detail.startswith(f"{name} must be between {limits}")
        assert detail.endswith(f"not {shown or repr(value)}")


def test_a_softcap_of_zero_is_none() -> None:
    assert parse_run(body(attention={"softcap": 0})).spec.attention.softcap == 0.0
    assert parse_run(body(attention={"softcap": -0.0})).spec.attention.softcap == 0.0


def test_values_of_rope_and_patterns_are_checked() -> None:
    rope = {"style": "half", "scaling": {"type": "linear", "factor": -1}}
    pattern = {"type": "chunked", "size": 0}
    found = problems(body(attention={"rope": rope, "pattern": pattern}))
    assert {"/attention/rope/scaling/factor", "/attention/pattern/size"} <= found.keys()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("given", [np.float16("inf"), np.float32(3e38), np.longdouble("1e4000")])
def test_what_is_beyond_the_dtype_is_a_problem_and_no_warning(given: np.floating[Any]) -> None:
    request = body(inputs={"q": {"upload": "u", "name": "q"}}, dtype="float16")
    assert problems(request, load_upload=lambda *_: np.full((3, 2), given))["/inputs/q"][0] == 422


@pytest.mark.parametrize(
    ("value", "dtype", "remedy"),
    [
        (7e4, "float16", "bfloat16 and float32 reach 3.4e38"),
        (1e39, "float16", "scale it down"),
        (1e39, "float32", "scale it down"),
    ],
)
def test_what_is_beyond_the_dtype_is_told_what_would_take_it(value: float, dtype: str, remedy: str) -> None:
    found = problems(body(inputs={"v": [[value, 0], [0, 2], [2, 2]]}, dtype=dtype))
    assert found["/inputs/v"][1] == "too-large-number"
    assert f"{value:g} at index [0, 0] is beyond {dtype}" in found["/inputs/v"][2]
    assert remedy in found["/inputs/v"][2]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("given", ["1e4000", "-1e4000"])
def test_a_mask_beyond_float64_is_a_problem_and_no_warning(given: str) -> None:
    request = body(inputs={"attn_mask": {"upload": "u", "name": "mask"}})
    found = problems(request, load_upload=lambda *_: np.full((3, 3), np.longdouble(given)))
    assert found["/inputs/attn_mask"][:2] == (422, "too-large-number")


def test_text_that_cannot_be_encoded_is_escaped() -> None:
    with pytest.raises(SpecError) as caught:
        parse_run(body("\ud800") | {"\udfff/~": 1})
    for problem in caught.value.problems:
        (problem.pointer + problem.detail).encode()
    assert any("~1~0" in p.pointer for p in caught.value.problems)


@pytest.mark.parametrize("name", ["past_key", "past_value", "dout", "attn_mask", "block_table", "q_lens"])
@pytest.mark.parametrize(
    "value",
    [
        [1],
        [],
        [True],
        [[1, 2]],
        [[[[1.0]]]],
        {"seed": 1, "shape": [4]},
        {"b64": "", "dtype": "float32", "shape": [0]},
    ],
)
def test_an_input_of_any_rank_is_accepted_or_refused_but_never_breaks(name, value):
    three = [[1, 0], [0, 1], [1, 1]]
    body = {"engine": "reference", "inputs": {"q": three, "k": three, "v": three, name: value}}
    with contextlib.suppress(SpecError):
        parse_run(body)
