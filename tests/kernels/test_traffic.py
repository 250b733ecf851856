"""Bytes that are modelled where nothing counts them, against those that Triton's interpreter counts in the
same tiles."""

from typing import Any

import pytest

from kernels.counts import input_bytes, result_bytes
from kernels.execute import execute
from kernels.linear import launch as linear_launch
from kernels.linear import tiling as linear_tiling
from kernels.recurrent_traffic import kernel_traffic
from kernels.scan import tiling as scan_tiling
from kernels.spec import RunSpec, parse_run
from kernels.traffic import modelled_traffic

N, M, H, KV, D, E = 48, 80, 4, 2, 16, 32
TILES = {"block_m": 16, "block_n": 16}  # on a GPU no other are chosen then, forward or backward
OFFSET = 4  # bytes: where query 0 stands, which every program of a window reads


def seeded(*shape: int) -> dict[str, Any]:
    return {"seed": 1, "shape": list(shape)}


def request(engine: str, n: int = N, **fields: Any) -> dict[str, Any]:
    inputs = {"q": seeded(1, H, n, D), "k": seeded(1, KV, M, D), "v": seeded(1, KV, M, E)}
    return {"engine": engine, "options": TILES, "timing": {"warmup": 0, "iters": 1}, **fields,
            "inputs": inputs | fields.get("inputs", {})}  # fmt: skip


DOUT = {"dout": seeded(1, H, N, E)}
FORWARD: dict[str, dict[str, Any]] = {
    "plain": {},
    "lse alone": {"return": ["lse"]},
    "uneven": {"n": 37},
    "matrices": {"return": ["out", "scores", "weights"]},
    "codes": {"options": TILES | {"kv_dtype": "int8"}},
    "float mask": {"inputs": {"attn_mask": seeded(N, M)}},
    "causal": {"attention": {"is_causal": True}},
    "window": {"attention": {"window": [20, 3]}},
}
BACKWARD: dict[str, dict[str, Any]] = {
    "all gradients": {"return": ["out", "dq", "dk", "dv"]},
    "queries alone": {"return": ["dq"]},
    "keys alone": {"return": ["dk", "lse"]},
    "causal": {"return": ["dq", "dk", "dv"], "attention": {"is_causal": True}},
    "window": {"return": ["dq", "dk", "dv"], "attention": {"window": [20, 3]}},
}


def counted(body: dict[str, Any]) -> tuple[RunSpec, dict[str, Any]]:
    parsed = parse_run(body)
    traffic = execute(parsed.spec, parsed.arrays).traffic
    assert traffic["method"] == "interpreter"
    return parsed.spec, traffic


@pytest.mark.parametrize("kind", [*FORWARD, *(f"backward: {kind}" for kind in BACKWARD)])
def test_what_flash_moves_is_what_the_interpreter_counts(kind: str) -> None:
    back = kind.startswith("backward: ")
    fields = BACKWARD[kind.removeprefix("backward: ")] | {"inputs": DOUT} if back else FORWARD[kind]
    spec, traffic = counted(request("flash", **fields))
    model = modelled_traffic(spec)
    assert model["bytes_written"] == traffic["bytes_written"]
    programs = H * 3 * (3 if back else 1) + (KV * 5 if back else 0)
    positioned = spec.attention.sides != (None, None)
    assert traffic["bytes_read"] - model["bytes_read"] == (programs * OFFSET if positioned else 0)


@pytest.mark.parametrize("window", [[None, None], [20, 0]])
def test_decode_reads_what_anyone_sees_once_for_all_heads_that_share_it(window: list[int | None]) -> None:
    n = 3
    body = request("decode", n, attention={"window": window}, options={"block_n": 16, "num_splits": 2})
    spec, traffic = counted(body)
    model = modelled_traffic(spec)
    states = 2 * n * H * (E + 2) * 4  # of two splits, written and read once more
    queries = n * H * D * 4  # of the second split
    positioned = window[0] is not None
    assert traffic["bytes_written"] == model["bytes_written"] + states
    assert traffic["bytes_read"] == model["bytes_read"] + states + queries + positioned * 2 * KV * OFFSET
    if positioned:  # the last 23 keys lie in two tiles of 16
        assert model["bytes_read"] == n * H * D * 4 + KV * 32 * (D + E) * 4


@pytest.mark.parametrize(("engine", "warmup", "says"), [("flash", 0, 1), ("flash", 1, 0), ("eager", 0, 0)])
def test_a_sample_that_includes_counting_says_so(engine: str, warmup: int, says: int) -> None:
    given = {"q": seeded(3, 4), "k": seeded(3, 4), "v": seeded(3, 4)}
    parsed = parse_run({"engine": engine, "inputs": given, "timing": {"warmup": warmup, "iters": 2}})
    outcome = execute(parsed.spec, parsed.arrays)
    assert len(outcome.timing["samples_ns"]) == 2
    assert sum("first sample includes" in note for note in outcome.notes) == says


@pytest.mark.parametrize("returns", [["out"], ["out", "lse"]])
@pytest.mark.parametrize("form", ["absorbed", "expanded"])
def test_what_latent_attention_writes_is_what_the_interpreter_counts(form: str, returns: list[str]) -> None:
    inputs = {
        "q_nope": seeded(2, 3, 20, 6), "q_rope": seeded(2, 3, 20, 4), "c_kv": seeded(2, 37, 24),
        "k_rope": seeded(2, 37, 4), "w_uk": seeded(3, 24, 6), "w_uv": seeded(3, 24, 7),
    }  # fmt: skip
    spec, traffic = counted({"engine": "mla", "inputs": inputs, "options": {"form": form}, "return": returns})
    assert modelled_traffic(spec)["bytes_written"] == traffic["bytes_written"]


# -- engines with a state: 5 tiles of tokens of 16, 2 of columns ---------------------------------------------

TOKENS = {"q": seeded(2, 4, 75, 12), "k": seeded(2, 2, 75, 12), "v": seeded(2, 2, 75, 20)}
DECAY, BETA = {"log_decay": seeded(2, 2, 75)}, {"beta": seeded(2, 2, 75)}
SUMS = {"initial_state": seeded(2, 2, 12, 20), "initial_normaliser": seeded(2, 2, 12)}
SCANNED = {
    "x": seeded(2, 4, 75, 20), "delta": seeded(2, 4, 75, 20), "a": seeded(4, 20, 12),
    "b": seeded(2, 2, 75, 12), "c": seeded(2, 2, 75, 12),
}  # fmt: skip
ONE_RATE = {"delta": seeded(2, 4, 75, 1), "a": seeded(4, 1, 1)}
BEFORE = {"initial_state": seeded(2, 4, 20, 12), "d_skip": seeded(4, 20)}
OF_LINEAR, OF_SCAN = ("chunked", "recurrent", "parallel"), ("chunked", "recurrent", "scan")
RECURRENT = [
    *(("linear", form, more, {"is_causal": True}) for form in OF_LINEAR for more in ({}, DECAY, SUMS)),
    *(("linear", form, {}, {}) for form in OF_LINEAR),
    *(("linear", form, BETA | more, {"is_causal": True}) for form in OF_LINEAR[:2] for more in ({}, DECAY)),
    *(("scan", form, more, {}) for form in OF_SCAN for more in ({}, BEFORE, ONE_RATE)),
    *(("scan", "quadratic", ONE_RATE | more, {}) for more in ({}, BEFORE)),
]


@pytest.mark.parametrize(("engine", "form", "more", "attention"), RECURRENT)
@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
def test_what_engines_with_a_state_move_is_what_the_interpreter_counts(
    engine: str, form: str, more: dict[str, Any], attention: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one model, whose tiles are those of the GPU or, here, of the interpreter."""
    narrow = linear_tiling.Tiling(16, 16, 16, "ieee")
    for module in (linear_tiling, linear_launch):
        monkeypatch.setattr(module, "choose_tiling", lambda *_, **__: narrow)
    monkeypatch.setattr(scan_tiling, "INTERPRETED_NUMBERS", 2048)
    inputs = (TOKENS if engine == "linear" else SCANNED) | more
    options = {"form": form} | ({"feature_map": "identity"} if "beta" in more else {})
    body = {"engine": engine, "inputs": inputs, "attention": attention, "options": options}
    spec, traffic = counted(body | {"timing": {"warmup": 0, "iters": 1}})
    model = kernel_traffic(spec, interpreted=True)
    assert (model.read, model.written) == (traffic["bytes_read"], traffic["bytes_written"])
    if form == "quadratic":  # what its inputs are made of, and its output, are moved by torch
        return
    on_a_gpu = kernel_traffic(spec, interpreted=False)
    modelled = modelled_traffic(spec)
    assert (modelled["bytes_read"], modelled["bytes_written"]) == (on_a_gpu.read, on_a_gpu.written)


def test_a_scan_over_all_pairs_also_makes_what_they_are_of() -> None:
    """Every input once; values Δ x and decays Δ a in float32, written and read; outputs, written twice."""
    body = {
        "engine": "scan",
        "dtype": "float16",
        "inputs": SCANNED | ONE_RATE,
        "options": {"form": "quadratic"},
    }
    spec = parse_run(body).spec
    model, kernel = modelled_traffic(spec), kernel_traffic(spec, interpreted=False)
    numbers = 2 * 4 * 75 * 20
    assert model["bytes_written"] == kernel.written + 4 * (numbers + 2 * 4 * 75) + 2 * numbers
    given = sum(input_bytes(spec, name) for name in spec.inputs)
    assert model["bytes_read"] == kernel.read + given + 4 * numbers
    assert kernel.written == 4 * numbers
    assert result_bytes(spec, "out") == 2 * numbers


@pytest.mark.parametrize(("dtype", "item"), [("float16", 4), ("float64", 8)])
def test_a_performer_writes_its_features_and_reads_them_again(dtype: str, item: int) -> None:
    """Of 4 query heads, each with keys of its own; in float32, but for float64."""
    body = {"engine": "performer", "dtype": dtype, "inputs": TOKENS, "options": {"num_features": 10}}
    spec = parse_run(body).spec
    features = 2 * 4 * (75 + 75) * 10 * item
    model = modelled_traffic(spec)
    assert model["bytes_read"] == sum(input_bytes(spec, name) for name in spec.inputs) + features
    assert model["bytes_written"] == result_bytes(spec, "out") + features
