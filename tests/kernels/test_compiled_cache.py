"""What was compiled is kept by its content, in files that many processes share."""

import json
import multiprocessing
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kernels.compiled_cache import DRAFT_SECONDS, CompiledCache

RECORD = {"registers": 168, "texts": {"ptx": "π" * 1000}}


def test_what_was_put_is_found(tmp_path):
    cache = CompiledCache(tmp_path / "made")
    assert cache.get("a") is None
    cache.put("a", RECORD)
    assert CompiledCache(tmp_path / "made").get("a") == RECORD
    assert cache.get("b") is None


@pytest.mark.parametrize("content", [b"", b"{}", b"\x1f\x8b" + bytes(20)])
def test_a_damaged_file_is_as_good_as_none_and_is_replaced(tmp_path, content):
    cache = CompiledCache(tmp_path)
    cache.put("a", RECORD)
    (file,) = tmp_path.iterdir()
    file.write_bytes(content)
    assert cache.get("a") is None
    cache.put("a", RECORD)
    assert cache.get("a") == RECORD


def test_a_file_that_was_cut_off_is_as_good_as_none(tmp_path):
    cache = CompiledCache(tmp_path)
    cache.put("a", RECORD)
    (file,) = tmp_path.iterdir()
    whole = file.read_bytes()
    for length in range(len(whole)):
        file.write_bytes(whole[:length])
        assert cache.get("a") is None


def noise(key: str) -> dict[str, str]:
    return {"key": key, "text": random.Random(key).randbytes(4000).hex()}


def test_the_least_recently_used_make_room(tmp_path):
    cache = CompiledCache(tmp_path, max_bytes=30_000)  # six of them
    for number in range(20):
        cache.put(str(number), noise(str(number)))
        time.sleep(0.01)  # a clock tick between the times of two files
        assert cache.get("0") == noise("0")  # used again and again
        assert sum(file.stat().st_size for file in tmp_path.iterdir()) <= 30_000
    assert cache.get("19") is not None
    assert cache.get("18") is not None
    assert [number for number in range(1, 14) if cache.get(str(number)) is not None] == []


def test_drafts_of_the_dead_are_removed_and_those_of_the_living_are_not(tmp_path):
    old, new = tmp_path / ".draft-old", tmp_path / ".draft-new"
    for draft in (old, new):
        draft.write_bytes(b"half of it")
    then = time.time() - DRAFT_SECONDS - 1
    os.utime(old, (then, then))
    CompiledCache(tmp_path).put("a", RECORD)
    assert not old.exists()
    assert new.exists()


def test_a_folder_that_cannot_be_written_costs_only_time(tmp_path):
    (tmp_path / "file").write_text("in the way")
    cache = CompiledCache(tmp_path / "file")
    cache.put("a", RECORD)
    assert cache.get("a") is None


def hammer(folder: Path, seed: int) -> None:
    cache, rng = CompiledCache(folder, max_bytes=20_000), random.Random(seed)
    for _ in range(60):
        key = str(rng.randrange(8))
        if rng.random() < 0.5:
            cache.put(key, noise(key))
        found = cache.get(key)
        assert found is None or found == noise(key)


def test_many_processes_never_see_half_a_record(tmp_path):
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=hammer, args=(tmp_path, seed)) for seed in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0] * 4
    assert not list(tmp_path.glob(".draft-*"))


# -- compiling with it: in a process that does not interpret ------------------------------------------------

TWICE = """
import json, sys
from pathlib import Path
import triton
from kernels.compiled_cache import CompiledCache
from kernels.compiling import compile_spec
from kernels.spec import parse_run

spec, cache = parse_run(json.loads(sys.argv[1])).spec, CompiledCache(Path(sys.argv[2]))
first = compile_spec(spec, "sm_90", cache)
triton.compile = None  # and cannot be called
assert compile_spec(spec, "sm_90", cache) == first
print(len(first))
"""
KEYS = """
import dataclasses, json, sys
from kernels.compiling import Compiled, compile_spec
from kernels.spec import parse_run

class Keys:
    def get(self, key):
        seen.append(key)
        return {field.name: None for field in dataclasses.fields(Compiled)}  # as if it were there

found = []
for body, target in json.loads(sys.argv[1]):
    seen = []
    compile_spec(parse_run(body).spec, target, Keys())
    found.append(seen)
print(json.dumps(found))
"""


def body(length=256, heads=(2, 2), dim=32, dtype="float16", **more):
    q, k = ({"seed": 1, "shape": [1, h, length, dim]} for h in heads)
    return {"engine": "flash", "dtype": dtype, "inputs": {"q": q, "k": k, "v": k}, **more}


def printed_by(code, *arguments):
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    said = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**env, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert said.returncode == 0, said.stderr
    return json.loads(said.stdout)


def test_the_same_kernel_is_not_compiled_twice(tmp_path):
    asked = body(**{"return": ["out", "weights"], "options": {"block_m": 16, "block_n": 16}})
    assert printed_by(TWICE, json.dumps(asked), str(tmp_path)) == 2
    assert len(list(tmp_path.iterdir())) == 2


def test_the_key_is_what_matters_to_the_compiler_and_nothing_else():
    causal = {"attention": {"is_causal": True}}
    cases = {
        "itself": (body(), "sm_90"),
        "again": (body(), "sm_90"),
        "a longer sequence": (body(512), "sm_90"),
        "another scale": (body(attention={"scale": 0.3}), "sm_90"),
        "another target": (body(), "sm_80"),
        "another dtype": (body(dtype="bfloat16"), "sm_90"),
        "another width": (body(dim=64), "sm_90"),
        "grouped heads": (body(heads=(4, 2)), "sm_90"),
        "a length that 16 does not divide": (body(250), "sm_90"),
        "other tiles": (body(options={"block_n": 16}), "sm_90"),
        "a mask": (body(**causal), "sm_90"),
        "another mask": (body(attention={"window": [3, 0]}), "sm_90"),
    }
    keys = dict(zip(cases, printed_by(KEYS, json.dumps(list(cases.values()))), strict=True))
    same = ("itself", "again", "a longer sequence", "another scale")
    assert len({tuple(keys[name]) for name in same}) == 1
    assert len({tuple(found) for found in keys.values()}) == len(cases) - len(same) + 1
