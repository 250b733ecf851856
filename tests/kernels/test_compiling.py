"""The flash kernel compiled for GPUs that are not there.

In a process of its own: this one interprets kernels, and the two cannot share a process.
"""

import dataclasses
import hashlib
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from kernels import compiling
from kernels.compiling import CannotCompileError, compile_spec, read_assembler
from kernels.machine_code import count_instructions, places
from kernels.spec import parse_run
from kernels.targets import TARGETS
from kernels.tuning import KERNELS, Key, table
from tests.support.compiled import DTYPES, OTHERS, PAGE, cases, page

ALL = os.environ.get("ATTENTION_LAB_ALL_COMPILES") == "1"  # a quarter of an hour

COMPILE = """
import json, sys
from kernels.compiling import compile_spec
from kernels.spec import parse_run
body, targets = json.loads(sys.argv[1])
spec = parse_run(body).spec
print(json.dumps({
    t: {k.kernel: {**k.to_dict(), "texts": dict(k.texts)} for k in compile_spec(spec, t)} for t in targets
}))
"""


# A launch through Triton's own path, stopped where it would touch the GPU, beside what we compile.
LAUNCH = """
import importlib, json, re, sys
from collections import defaultdict
import torch
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction
from kernels.compiling import compile_spec, without_folders
from kernels.flash.rotation import rotator
from kernels.operands import operands
from kernels.registry import ENGINES
from kernels.spec import parse_run

class Absent:
    get_current_device = get_current_stream = lambda self, *_: 0
    get_current_target = lambda self: GPUTarget("cuda", int(target.removeprefix("sm_")), 32)

def warmed_up(self, *args, grid, **kwargs):
    self.device_caches.clear()  # the last one was for another GPU
    launched[self.__name__].append(run(self, *args, grid=grid, **kwargs | {"warmup": True}))

driver.set_active(Absent())
run, JITFunction.run = JITFunction.run, warmed_up
found = []
for body, target in json.loads(sys.argv[1]):
    spec, launched, matched = parse_run(body).spec, defaultdict(list), defaultdict(set)
    arrays = {name: torch.zeros(spec.canonical_shape(name)).numpy() for name in spec.inputs}
    if spec.attention.rope is None:
        importlib.import_module(ENGINES[spec.engine].module).prepare(spec, arrays, "meta").compute()
    else:  # turned before anything else, in memory that is there
        operands(spec, arrays, dtype="float32", rotate=rotator("cpu"))
    for ours in compile_spec(spec, target):
        name, ptx = re.sub(r"_\\d$", "", ours.kernel), ours.texts["ptx"]
        if launched[name]:
            texts = [without_folders(one.asm["ptx"]) for one in launched[name]]
            same = {number for number, text in enumerate(texts) if text == ptx}
            found.append({"kernel": ours.kernel, "same": bool(same),
                          "ptx": ptx, "fits": ours.fits, "counts": ours.instructions})
            matched[name] |= same
    for name, theirs in launched.items():  # all of what is launched is among what we compile
        assert len(matched[name]) == len(theirs), name
print(json.dumps(found))
"""


# Lines of kernels/tuned.csv compiled again, from every example of what they are for; of some the texts, too.
LINES = """
import dataclasses, json, sys
from kernels.tuning import Key, table
from tests.support.tune import compiled, examples, line
keys, read = ([Key(*key) for key in some] for some in json.loads(sys.argv[1]))
found = []
for key in keys:
    tiling = table()[key].tiling
    every = [compiled(key, spec, tiling) for spec in examples(key)]
    examined = [{**one.to_dict(), "texts": dict(one.texts)} for one in every] if key in read else []
    found.append({"line": dataclasses.asdict(line(key, tiling, every)), "examples": examined})
print(json.dumps(found))
"""
# Rows of docs/compiled.md that are not in that table, compiled again.
ROWS = """
import json, sys
from tests.support.compiled import rows
print(json.dumps([row for one in json.loads(sys.argv[1]) for row in rows(*one)]))
"""


def body(dtype="float16", length=1024, head_dim=64, **more):
    seeded = {"seed": 1, "shape": [1, 2, length, head_dim], "distribution": "normal"}
    return {
        "engine": "flash",
        "dtype": dtype,
        "inputs": {"q": seeded, "k": seeded, "v": seeded},
        "attention": {"is_causal": True},
        "options": {"block_m": 64, "block_n": 32},  # small tiles compile fast
        **more,
    }


def compiled(request_body, targets):
    """The engine's main kernel, by target."""
    found = printed_by(COMPILE, [request_body, targets])
    return {target: kernels["flash_forward"] for target, kernels in found.items()}


def printed_by(code, argument):
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    # What a copy of these files elsewhere left in Triton's own cache names its own folder in the PTX.
    with tempfile.TemporaryDirectory() as folder:
        said = subprocess.run(
            [sys.executable, "-c", code, json.dumps(argument)],
            env={**env, "PYTHONPATH": os.pathsep.join(sys.path), "TRITON_CACHE_DIR": folder},
            capture_output=True,
            text=True,
            check=False,
        )
    assert said.returncode == 0, said.stderr
    return json.loads(said.stdout)


@pytest.fixture(scope="module")
def half():
    return compiled(body(), ["sm_80", "sm_90", "sm_100", "sm_120"])


@pytest.mark.parametrize(
    ("target", "tensor_cores"),
    [("sm_80", "mma"), ("sm_90", "wgmma"), ("sm_100", "tcgen05"), ("sm_120", "mma")],
)
def test_each_generation_uses_its_own_tensor_core_instruction(half, target, tensor_cores):
    counts = half[target]["instructions"]
    assert {kind for kind in ("mma", "wgmma", "tcgen05") if counts[kind]} == {tensor_cores}
    assert counts["exp"] > 0


def test_alignment_reaches_the_compiler(half):
    # Without it sm_80 gets no asynchronous copies at all, and every figure would mislead.
    assert half["sm_80"]["instructions"]["cp_async"] > 0


def test_only_the_generation_with_tensor_memory_uses_it(half):
    assert {target for target, found in half.items() if found["tmem_bytes"]} == {"sm_100"}


@pytest.mark.parametrize("target", ["sm_80", "sm_90", "sm_100", "sm_120"])
def test_what_is_reported_is_what_the_texts_say(half, target):
    found = half[target]
    assert found["fits"]
    assert 0 < found["registers"] <= 255
    assert 0 < found["shared_bytes"] <= found["shared_limit_bytes"]
    assert 0 < found["occupancy"] <= 1
    assert f".target sm_{target.removeprefix('sm_')}" in found["texts"]["ptx"]
    assert re.search(r"tt\.dot", found["texts"]["ttir"])
    for text in found["texts"].values():  # says nothing of the machine that compiled it
        assert not re.findall(r'"/[^"]*\.py"', text)


@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
def test_instructions_are_traced_to_the_lines_that_they_came_of(half, target):
    found = half[target]
    lines = {(one["file"], one["line"]): one["instructions"] for one in found["source_lines"]}
    for kind in ("mma", "wgmma", "exp", "total"):
        assert sum(counts.get(kind, 0) for counts in lines.values()) == found["instructions"][kind], kind
    root = Path(compiling.__file__).parent.parent
    assert {file for file, _ in lines} == {"triton/language/standard.py", *found["sources"]}
    ours = {place: counts for place, counts in lines.items() if place[0] in found["sources"]}
    for (file, line), counts in ours.items():
        text = (root / file).read_text().splitlines()[line - 1]
        if counts.get("mma"):
            assert "tl.dot" in text, (file, line, text)
        if counts.get("exp"):
            assert "exp" in text, (file, line, text)
    # Products of a warpgroup are also in loops, where the compiler has them wait for one another.
    assert any(counts.get("mma" if target == "sm_80" else "wgmma") for counts in ours.values())
    assert found["sources"] == {
        file: hashlib.sha256((root / file).read_bytes()).hexdigest()
        for file, _ in lines
        if file.startswith("kernels/")
    }


def test_ptx_says_of_each_line_where_it_comes_from(half):
    ptx = half["sm_80"]["texts"]["ptx"]
    found = {
        place for place, line in zip(places(ptx, "ptx"), ptx.split("\n"), strict=True) if "mma.sync" in line
    }
    assert {file for file, _ in found} <= {"kernels/flash/kernel.py", "kernels/flash/logits.py"}
    assert len(found) == 2  # QKᵀ and PV
    assert places(ptx, "ptx")[0] is None


@pytest.mark.parametrize("target", ["sm_80", "sm_90", "sm_100", "sm_120"])
def test_what_each_resource_leaves_room_for_is_told(half, target):
    found = half[target]
    assert (
        min(found["block_limits"].values())
        == found["blocks_per_sm"]
        == found["block_limits"][found["limited_by"]]
    )
    assert ("tmem" in found["block_limits"]) == (target == "sm_100")


def parameters(ptx):
    return len(re.findall(r"^\s*\.param ", ptx.split(".visible .entry")[1].split(")")[0], re.MULTILINE))


def test_the_kernel_compiled_is_the_one_launched():
    def of(q_len, heads, dim, **more):
        q, k = ({"seed": 1, "shape": [1, h, n, dim]} for h, n in ((heads, q_len), (2, 96)))
        return body(**{"inputs": {"q": q, "k": k, "v": k}, "options": {"block_m": 16, "block_n": 32}} | more)

    rope = {"rope": {"style": "half", "dim": 16}}
    dout = {name: {"seed": 1, "shape": [1, 2, 33, 16]} for name in ("q", "k", "v", "dout")}
    cases = [
        (of(96, 2, 64, dtype="bfloat16", options={"block_m": 64, "block_n": 32}), "sm_90"),
        (of(1, 2, 59), "sm_80"),  # decoding: one query, an odd width
        (of(33, 4, 16), "sm_80"),  # grouped heads, nothing that 16 divides
        (of(33, 2, 16, **{"return": ["out", "scores"]}), "sm_80"),  # no pointers to what weights take
        (of(33, 2, 16, attention=rope), "sm_80"),
        (of(33, 2, 16, inputs=dout, **{"return": ["dq", "dk", "dv"]}), "sm_80"),
        (of(96, 2, 64, options={}), "sm_120"),  # the tiles, warps and stages of the table
    ]
    found = printed_by(LAUNCH, cases)
    assert [case["kernel"] for case in found] == [
        *["flash_forward"] * 4, "flash_scores", "rotate_rows", "rotate_rows_2",
        "flash_forward", "row_deltas", "flash_backward_keys", "flash_backward_queries", "flash_forward",
    ]  # fmt: skip
    assert [case["kernel"] for case in found if not (case["same"] and case["fits"])] == []
    half, decoding, grouped, plain = found[:4]
    assert half["counts"]["wgmma"]
    # An argument that is 1 is a constant and no parameter: group, and in decoding q_len.
    assert parameters(plain["ptx"]) == parameters(grouped["ptx"]) - 1
    assert parameters(decoding["ptx"]) == parameters(grouped["ptx"]) - 2


@pytest.mark.parametrize("kv_dtype", ["int8", "fp8_e4m3"])
def test_codes_are_decoded_in_registers_that_there_are(kv_dtype):
    # With the tiles of the table for numbers of 16 bits, fp8_e4m3 spilled 112 KiB for each thread.
    found = compiled(body(head_dim=128, options={"kv_dtype": kv_dtype}), ["sm_80"])["sm_80"]
    assert found["spills_bytes"] == 0


def test_float32_behind_a_mask_is_not_rounded_to_tf32():
    # Triton 3.7 does so on sm_100 to 64 rows and more, where 8-bit numbers are in the past of a factor.
    masked = body("float32", head_dim=32, attention={"pattern": {"type": "chunked", "size": 64}})
    counts = compiled(masked, ["sm_100"])["sm_100"]["instructions"]
    assert [counts[kind] for kind in ("mma", "wgmma", "tcgen05")] == [0, 0, 0]


def test_larger_tiles_need_more_shared_memory(half):
    large = compiled(body(options={"block_m": 64, "block_n": 64}), ["sm_90"])["sm_90"]
    assert large["shared_bytes"] > half["sm_90"]["shared_bytes"]


def test_a_process_that_interprets_says_that_it_cannot_compile():
    with pytest.raises(CannotCompileError, match="TRITON_INTERPRET"):
        compile_spec(parse_run(body()).spec, "sm_90")


def test_instructions_are_told_apart():
    sass = """
        /*0000*/                   LDG.E.128 R4, [R2.64] ;
        /*0010*/              @!P0 LDGSTS.E.BYPASS.128 [R9], [R2.64] ;
        /*0020*/              @UP1 HMMA.16816.F32 R4, R8, R12, R4 ;
        /*0030*/                   HGMMA.64x64x16.F32 R24, gdesc[UR8] ;
        /*0040*/                   MUFU.EX2 R5, R5 ;
        /*0050*/                   MUFU.RCP R5, R5 ;
        /*0060*/                   LDSM.16.M88.4 R8, [R7] ;
    """
    counts = {kind: count for kind, count in count_instructions(sass).items() if count}
    assert counts == {
        "ld_global": 1, "cp_async": 1, "mma": 1, "wgmma": 1, "exp": 1, "ld_shared": 1, "total": 7,
    }  # fmt: skip


def test_the_assembler_is_read_right():
    said = (
        "ptxas info    : Function properties for flash_forward\n"
        "    72 bytes stack frame, 100 bytes spill stores, 124 bytes spill loads\n"
        "ptxas info    : Used 255 registers, used 1 barriers, 72 bytes cumulative stack size\n"
    )
    assert read_assembler(said) == (255, 72, 224)


# -- the tables ----------------------------------------------------------------------------------------------

REQUIRED = [
    Key("flash_forward", target, "float16", dim, kind)
    for target, dim, kind in itertools.product(("sm_80", "sm_90"), (64, 128), ("none", "causal"))
]
SAMPLE = [
    Key("flash_forward", "sm_90", "float32", 128, "causal"),
    Key("flash_forward", "sm_120", "float16", 128, "arithmetic"),
    Key("flash_forward", "sm_80", "float16", 64, "coded"),
    Key("flash_scores", "sm_100", "float16", 64, "any"),
    Key("flash_backward_keys", "sm_80", "float16", 64, "any"),
    Key("decode_split", "sm_90", "float16", 128, "arithmetic"),
]
STALE = "stale: make compiled"
# In float32 a thread holds whole rows of both factors: with 256 numbers to a row no tile is small enough.
SPILLING = {
    ("flash_forward", "float32", 256, "paged"),
    ("flash_forward", "float32", 256, "coded"),
    ("flash_scores", "float32", 256, "any"),
    ("decode_split", "float32", 256, "any"),
}


def test_every_configuration_is_in_the_table_without_a_spill():
    shipped = set()
    for kernel, kinds in KERNELS.items():
        dims = (64, 128, 256, 512) if kernel == "latent_attention" else (64, 128, 256)
        shipped |= {Key(kernel, *one) for one in itertools.product(TARGETS, DTYPES, dims, kinds)}
    plain = itertools.product(TARGETS, DTYPES, (16, 32), ("none", "causal", "arithmetic", "matrix"))
    shipped |= {Key("flash_forward", *one) for one in plain}
    assert set(table()) == shipped
    for line in table().values():
        if (line.kernel, line.dtype, line.dim, line.kind) not in SPILLING:
            assert (line.stack_bytes, line.spills_bytes) == (0, 0), line
        assert line.blocks_per_sm >= 1, line
        on_cores = line.mma + line.wgmma + line.tcgen05 > 0
        assert on_cores == (line.dtype == "float16"), line  # TF32 is no float32


def multiplied(text, operation):
    return re.findall(rf"^.*= {re.escape(operation)} .*$", text, re.MULTILINE)


@pytest.fixture(scope="module")
def again():
    """The lines that matter most, and some others, compiled again."""
    keys = list(table()) if ALL else [*REQUIRED, *SAMPLE]
    return dict(zip(keys, printed_by(LINES, [keys, REQUIRED]), strict=True))


def test_the_table_is_not_stale(again):
    for key, found in again.items():
        assert found["line"] == dataclasses.asdict(table()[key]), STALE


@pytest.mark.parametrize("key", REQUIRED, ids=str)
def test_both_products_use_tensor_cores_and_nothing_spills(again, key):
    (found,) = again[key]["examples"]
    assert (found["stack_bytes"], found["spills_bytes"]) == (0, 0)
    assert 0 < found["shared_bytes"] <= found["shared_limit_bytes"]
    assert found["fits"]
    counts, texts = found["instructions"], found["texts"]
    products = multiplied(texts["ttir"], "tt.dot")
    assert len(products) in (2, 4)  # two for each of the loops
    if key.target == "sm_90":
        assert counts["wgmma"] >= len(products)
        assert len(multiplied(texts["ttgir"], "ttng.warp_group_dot")) >= len(products)
        assert not multiplied(texts["ttgir"], "tt.dot")
    else:
        on_cores = multiplied(texts["ttgir"], "tt.dot")
        assert counts["mma"] >= len(on_cores) >= len(products)
        assert all("#mma>" in line for line in on_cores)


def test_bfloat16_compiles_to_the_figures_of_float16():
    tiling = table()[REQUIRED[-1]].tiling
    found = compiled(body("bfloat16", head_dim=128, options={}), ["sm_90"])["sm_90"]
    line = table()[REQUIRED[-1]]
    assert (found["num_warps"], found["num_stages"]) == tiling[2:]
    for figure in ("registers", "stack_bytes", "spills_bytes", "shared_bytes", "blocks_per_sm"):
        assert found[figure] == getattr(line, figure), figure


def test_the_page_is_not_stale():
    text = PAGE.read_text()
    others = text.splitlines()[text.splitlines().index(OTHERS.strip().splitlines()[0]) :]
    others = [row for row in others if row.startswith("| ") and not row.startswith(("|  |", "| --- |"))]
    assert page(others) == text, STALE
    every = list(itertools.product(cases(), DTYPES))
    rows = printed_by(ROWS, every if ALL else [("gradients, 128", "float16")])
    assert rows
    assert [row for row in rows if row not in others] == [], STALE
