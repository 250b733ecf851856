"""Bytes that are modelled where nothing counts them, against those that Triton's interpreter counts in the
same tiles."""

from typing import Any

import pytest

from kernels.execute import execute
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
