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
# that of an H100.
LAUNCHED = """
import importlib, json, sys
from types import SimpleNamespace
import numpy as np, torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction
from kernels.compiling import StandIn, _source, without_data
from kernels.decode.launch import COMPILED_FOR
from kernels.registry import ENGINES
from kernels.spec import parse_run

GPU = GPUTarget("cuda", 90, 32)

class Absent:
    get_current_device = get_current_stream = lambda self, *_: 0
    get_current_target = lambda self: GPU

def recorded(self, *args, grid, warmup, **kwargs):
    launched.append((self, kwargs))

def specialised(kernel, arguments):
    source, options = _source(kernel, arguments, GPU)
    return kernel.__name__, source.hash(), options.get("num_warps"), options.get("num_stages")

driver.set_active(Absent())
torch.cuda.get_device_properties = lambda _: SimpleNamespace(multi_processor_count=COMPILED_FOR)
JITFunction.run = recorded
found = []
for body in json.loads(sys.argv[1]):
    spec, launched = parse_run(body).spec, []
    engine, nothing = importlib.import_module(ENGINES[spec.engine].module), without_data(spec)
    engine.prepare(spec, {name: np.array(array) for name, array in nothing.items()}, "meta").compute()
    compiled = engine.kernels_of(spec, nothing, StandIn("sm_90"))
    ran = sorted(specialised(*one) for one in launched)
    said = sorted(specialised(kernel, arguments) for _, kernel, arguments in compiled)
    found.append({"kernels": [name for name, *_ in said], "ran": ran, "said": said})
print(json.dumps(found))
"""


def seeded(*shape: int) -> dict[str, Any]:
    return {"seed": 1, "shape": list(shape)}


def run(engine: str, n: int, inputs: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    """Grouped heads, keys wider than values, nothing that 16 divides but the widths of keys."""
    given = {"q": seeded(2, 4, n, 32), "k": seeded(2, 2, 77, 32), "v": seeded(2, 2, 77, 24), **(inputs or {})}
    return {"engine": engine, "dtype": "float16", "inputs": given, **fields}


PAST = {"past_key": seeded(2, 2, 40, 32), "past_value": seeded(2, 2, 40, 24)}
PER_TOKEN, PER_TENSOR = {"kv_dtype": "int8"}, {"kv_dtype": "fp8_e5m2", "kv_scale": "per_tensor"}
TERMS = {"window": [5, 3], "alibi_slopes": "auto", "softcap": 3.0, "sinks": [0.0] * 4}
LATENTS = {
    "q_nope": seeded(2, 3, 5, 16), "q_rope": seeded(2, 3, 5, 8), "c_kv": seeded(2, 33, 32),
    "k_rope": seeded(2, 33, 8), "w_uk": seeded(3, 32, 16), "w_uv": seeded(3, 32, 24),
}  # fmt: skip
SPLIT, EXPANDED = ["decode_split", "merge_splits"], {"form": "expanded"}
CASES = [
    (run("flash", 33, attention=TERMS), ["flash_forward"]),
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
]


@pytest.fixture(scope="module")
def found() -> list[dict[str, Any]]:
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    said = subprocess.run(
        [sys.executable, "-c", LAUNCHED, json.dumps([body for body, _ in CASES])],
        env={**env, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert said.returncode == 0, said.stderr
    return json.loads(said.stdout)


@pytest.mark.parametrize("number", range(len(CASES)))
def test_every_kernel_is_compiled_as_it_is_launched(found: list[dict[str, Any]], number: int) -> None:
    one = found[number]
    assert one["kernels"] == CASES[number][1]
    assert one["ran"] == one["said"]
