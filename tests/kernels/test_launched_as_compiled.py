"""For every engine with kernels of ours: what it launches on a GPU is what it says to a compiler it launches.

``test_compiling.py`` compares machine code, for a few runs of flash. Here nothing is compiled: of each launch
the types, constants and alignments that Triton would compile for are compared, with no GPU in reach.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

# Launches are recorded in the place of being run; memory is torch's device "meta", which is in the place of
# that of a GPU, and where it is read holds zeros.
LAUNCHED = """
import importlib, json, sys
from types import SimpleNamespace
import numpy as np, torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction
from kernels.compiling import StandIn, _source, distinct, without_data
from kernels.registry import ENGINES
from kernels.spec import parse_run
from kernels.targets import TARGETS

class Absent:
    get_current_device = get_current_stream = lambda self, *_: 0
    get_current_target = lambda self: gpu

def recorded(self, *args, grid, warmup, **kwargs):
    launched.append((self, kwargs))

def specialised(kernel, arguments):
    source, options = _source(kernel, arguments, gpu)
    return kernel.__name__, source.hash(), options.get("num_warps"), options.get("num_stages")

driver.set_active(Absent())
torch.cuda.get_device_properties = lambda _: SimpleNamespace(multi_processor_count=SMS[target])
torch.Tensor.cpu = lambda self: torch.zeros(self.shape, dtype=self.dtype)
JITFunction.run = recorded
SMS = {"sm_80": 108, "sm_90": 132}  # of an A100, of an H100
found = []
for body, target, forbidden in json.load(sys.stdin):
    gpu = GPUTarget("cuda", TARGETS[target].capability, 32)
    spec, launched = parse_run(body).spec, []
    engine, nothing = importlib.import_module(ENGINES[spec.engine].module), without_data(spec)
    arrays = {name: np.array(array) for name, array in nothing.items()}
    if forbidden:
        arrays["attn_mask"][:] = -np.inf
    engine.prepare(spec, arrays, "meta").compute()
    compiled = list(engine.kernels_of(spec, nothing, StandIn(target)))
    ran = sorted(specialised(*one) for one in launched)
    said = sorted(specialised(kernel, arguments) for _, kernel, arguments in compiled)
    maps = [given["T"].block_mask is not None for _, given in launched if "T" in given]
    shown = [name for name, *_ in distinct(compiled, target)]
    kernels = [name for name, *_ in said]
    found.append({"kernels": kernels, "ran": ran, "said": said, "shown": shown, "maps": maps})
print(json.dumps(found))
"""


def seeded(*shape: int) -> dict[str, Any]:
    return {"seed": 1, "shape": list(shape)}


def run(engine: str, n: int, inputs: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    """Grouped heads, keys wider than values, nothing that 16 divides but the widths of keys."""
    given = {"q": seeded(2, 4, n, 32), "k": seeded(2, 2, 77, 32), "v": seeded(2, 2, 77, 24), **(inputs or {})}
    return {"engine": engine, "dtype": "float16", "inputs": given, **fields}


def in_pages(**fields: Any) -> dict[str, Any]:
    """11 pages of 7 tokens for each row, named as a client names them: in nested lists."""
    pages = {"k": seeded(22, 7, 2, 32), "v": seeded(22, 7, 2, 24)}
    table = [list(range(11)), list(range(11, 22))]
    return run("paged", 3, pages | {"block_table": table, "kv_lens": [77, 5]}, **fields)


ROPE = {"rope": {"style": "half"}}
MASK = [[True] * 77] * 33
BIAS = {"attn_mask": seeded(33, 77)}
RAGGED = {"q_lens": [33, 1], "kv_lens": [77, 0]}
TURNED = ["rotate_rows", "rotate_rows"]
# 63 splits on 108 multiprocessors, 79 on 132.
LONG = {"q": seeded(3, 4, 1, 32), "k": seeded(3, 1, 40000, 32), "v": seeded(3, 1, 40000, 32)}
PAST = {"past_key": seeded(2, 2, 40, 32), "past_value": seeded(2, 2, 40, 24)}
PER_TOKEN, PER_TENSOR = {"kv_dtype": "int8"}, {"kv_dtype": "fp8_e5m2", "kv_scale": "per_tensor"}
TERMS = {"window": [5, 3], "alibi_slopes": "auto", "softcap": 3.0, "sinks": [0.0] * 4}
LATENTS = {
    "q_nope": seeded(2, 3, 5, 16), "q_rope": seeded(2, 3, 5, 8), "c_kv": seeded(2, 33, 32),
    "k_rope": seeded(2, 33, 8), "w_uk": seeded(3, 32, 16), "w_uv": seeded(3, 32, 24),
}  # fmt: skip
LINEAR = {
    "chunked": ["chunk_outputs", "chunk_states"], "recurrent": ["token_steps"], "parallel": ["quadratic"]
}  # fmt: skip
STATE = {"initial_state": seeded(2, 2, 32, 24)}


def linear(form: str, inputs: dict[str, Any] | None = None, **options: Any) -> dict[str, Any]:
    fields = {"attention": {"is_causal": True}, "options": {"form": form, **options}}
    return run("linear", 77, inputs, **fields)


def scan(form: str, inputs: dict[str, Any] | None = None) -> dict[str, Any]:
    given = {
        "x": seeded(2, 4, 77, 24), "b": seeded(2, 2, 77, 16), "c": seeded(2, 2, 77, 16),
        "delta": seeded(2, 4, 77, 1), "a": seeded(4, 1, 1),
    }  # fmt: skip
    return {"engine": "scan", "dtype": "float16", "inputs": given | (inputs or {}), "options": {"form": form}}


def scoring(
    score: str, span: str = "global", inputs: dict[str, Any] | None = None, **fields: Any
) -> dict[str, Any]:
    options = {"score": score, "span": span}
    return run("scoring", 33, LEARNT[score] | LEARNT[span] | (inputs or {}), options=options, **fields)


LEARNT: dict[str, dict[str, Any]] = {
    "additive": {"w_q": seeded(4, 6, 32), "w_k": seeded(4, 6, 32), "v_a": seeded(4, 6)},
    "concat": {"w_concat": seeded(1, 6, 64), "v_a": seeded(1, 6)},
    "general": {"w_general": seeded(4, 32, 32)}, "cosine": {}, "dot": {}, "global": {}, "monotonic": {},
    "predictive": {"w_p": seeded(4, 5, 32), "v_p": seeded(4, 5)},
}  # fmt: skip
TARGETS = ["sm_80", "sm_90"]
SPLIT, EXPANDED = ["decode_split", "merge_splits"], {"form": "expanded"}
CASES = [
    (run("flash", 33, attention=TERMS), ["flash_forward"]),
    (run("flash", 33, attention=ROPE), ["flash_forward", *TURNED]),
    (run("flash", 33, {"attn_mask": MASK}), ["flash_forward"]),
    (run("flash", 33, BIAS, **{"return": ["scores"]}), ["flash_forward", "flash_scores"]),
    (run("flash", 33, RAGGED, attention={"is_causal": True}), ["flash_forward"]),
    (run("flash", 33, attention={"pattern": {"type": "chunked", "size": 8}}), ["flash_forward"]),
    (run("flash", 33, options=PER_TOKEN), ["flash_forward"]),
    (run("flash", 33, options=PER_TENSOR), ["flash_forward"]),
    (run("flash", 33, **{"return": ["out", "scores"]}), ["flash_forward", "flash_scores"]),
    (run("flash", 33, **{"return": ["out", "weights"]}), ["flash_forward", "flash_scores"]),
    (
        run("flash", 33, {"dout": seeded(2, 4, 33, 24)}, **{"return": ["dq", "dv"]}),
        ["flash_backward_keys", "flash_backward_queries", "flash_forward", "row_deltas"],
    ),
    (
        run("flash", 33, {"dout": seeded(2, 4, 33, 24)}, **{"return": ["dq"]}),
        ["flash_backward_queries", "flash_forward", "row_deltas"],
    ),
    (run("decode", 1), SPLIT),
    (run("decode", 7, attention=TERMS, options=PER_TOKEN), SPLIT),
    (run("decode", 7, options={**PER_TENSOR, "num_splits": 3}), SPLIT),
    (run("decode", 7, attention=ROPE), [*SPLIT, *TURNED]),
    (run("decode", 1, LONG, options={"block_n": 128}), SPLIT),
    (in_pages(), SPLIT),
    (in_pages(attention=ROPE), [*SPLIT, *TURNED]),
    (in_pages(options=PER_TOKEN), SPLIT),
    (run("paged", 1), SPLIT),
    (run("paged", 20), ["flash_forward"]),
    (run("paged", 1, PAST, options={"page_size": 5}), ["append_rows", *SPLIT]),
    (run("paged", 20, PAST, options=PER_TOKEN), ["append_rows", "append_rows", "flash_forward"]),
    (run("paged", 3, PAST, options=PER_TENSOR), ["append_rows", *SPLIT]),
    ({"engine": "mla", "dtype": "float16", "inputs": LATENTS}, ["latent_attention", "project", "project"]),
    (
        {"engine": "mla", "dtype": "bfloat16", "inputs": LATENTS, "options": EXPANDED},
        ["flash_forward", "project", "project", "share_columns"],
    ),
    *((linear(form), kernels) for form, kernels in LINEAR.items()),
    (linear("chunked", {"beta": seeded(2, 2, 77), "log_decay": seeded(2, 2, 77), **STATE},
            feature_map="identity"), LINEAR["chunked"]),
    (linear("chunked", chunk_size=16), LINEAR["chunked"]),
    (scan("chunked"), ["scan_chunks"]),
    (scan("recurrent"), ["scan_steps"]),
    (scan("scan", {"initial_state": seeded(2, 4, 24, 16), "d_skip": seeded(4, 24)}), ["scan_chunks"]),
    (scan("quadratic"), ["quadratic"]),
    (scan("quadratic", {"initial_state": seeded(2, 4, 24, 16), "d_skip": seeded(4, 24)}), ["quadratic"]),
    (scoring("additive"), ["project", "project", "scored_forward"]),
    (scoring("additive", inputs={"w_k": seeded(1, 6, 32)}), ["project", "project", "scored_forward"]),
    (scoring("concat", "monotonic", attention={"is_causal": True}), ["scored_forward"]),
    (scoring("general", **{"return": ["weights"]}), ["project", "scored_forward", "scored_matrices"]),
    (scoring("cosine", inputs={"attn_mask": MASK}, **{"return": ["out", "scores"]}),
     ["scored_forward", "scored_matrices"]),
    (scoring("dot", "predictive", **{"return": ["out", "kept_weight", "centres"]}),
     ["predict_centres", "scored_forward"]),
]  # fmt: skip


def compare(cases: list[tuple[dict[str, Any], str, bool]]) -> list[dict[str, Any]]:
    """Of each (body, target, whether a float mask forbids everything) what ran and what was said to run."""
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    said = subprocess.run(
        [sys.executable, "-c", LAUNCHED],
        input=json.dumps(cases),
        env={**env, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert said.returncode == 0, said.stderr
    return json.loads(said.stdout)


@pytest.fixture(scope="module")
def found() -> list[dict[str, Any]]:
    return compare([(body, target, False) for body, _ in CASES for target in TARGETS])


@pytest.mark.parametrize("number", range(len(CASES)))
@pytest.mark.parametrize("target", TARGETS)
def test_every_kernel_is_compiled_as_it_is_launched(
    found: list[dict[str, Any]], number: int, target: str
) -> None:
    one = found[number * len(TARGETS) + TARGETS.index(target)]
    assert one["kernels"] == CASES[number][1]
    assert one["ran"] == one["said"]


def test_of_kernels_that_are_the_same_one_is_shown_and_others_are_numbered() -> None:
    """RoPE turns queries and keys: alike, or, with a number of keys that 16 divides, not. To a quantised
    cache codes and scales are appended."""
    more = {"k": seeded(2, 2, 96, 32), "v": seeded(2, 2, 96, 24)}
    bodies = (
        run("flash", 33, attention=ROPE),
        run("flash", 33, more, attention=ROPE),
        run("paged", 20, PAST, options=PER_TOKEN),
        {"engine": "mla", "dtype": "float16", "inputs": LATENTS, "options": EXPANDED},
    )
    assert [one["shown"] for one in compare([(body, "sm_90", False) for body in bodies])] == [
        ["flash_forward", "rotate_rows"],
        ["flash_forward", "rotate_rows", "rotate_rows_2"],
        ["flash_forward", "append_rows", "append_rows_2"],
        ["flash_forward", "expand_keys", "expand_values", "share_rope"],
    ]


def test_what_a_float_mask_forbids_is_not_known_to_a_compilation() -> None:
    """As ``compile_spec`` says: beside −∞ a launch also looks up which tiles it can leave out."""
    some, none = compare([(run("flash", 33, BIAS), "sm_90", forbidden) for forbidden in (False, True)])
    assert (some["maps"], none["maps"]) == ([False], [True])
    assert some["said"] == none["said"] == some["ran"] != none["ran"]
