"""Find the tiles of ``kernels/tuned.csv`` by compiling, and write the table anew.

    python -m tests.support.tune             figures of the tiles that the table has (after editing a kernel)
    python -m tests.support.tune --search    tiles as well, by the rule in kernels/tuning.py (an hour or two)

``--only sm_90,float16`` keeps every line that lacks one of these words as it is. What was compiled before is
kept in ``.cache/compiled``.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kernels.compiled_cache import CompiledCache
from kernels.compiling import CannotCompileError, Compiled, StandIn, _without_data, compile_kernel
from kernels.flash.launch import kernels_of
from kernels.spec import parse_run
from kernels.targets import TARGETS
from kernels.tuning import TERMS, Tiling, Tuned, table, write_table

CACHE = CompiledCache(Path(".cache/compiled"), max_bytes=2 * 2**30)
DIMS = (16, 32, 64, 128, 256)
DTYPES = ("float16", "bfloat16", "float32")
KERNELS = ("flash_forward", "flash_scores")
LENGTH = 1024
# Every kind of logit in each class; the figures of a line are those of the first.
ARITHMETIC = {
    "is_causal": True, "window": [256, 0], "softcap": 30.0, "alibi_slopes": [0.5, 0.25], "sinks": [0.0, 1.0],
}  # fmt: skip
LISTED = {"is_causal": True, "q_positions": list(range(0, 2 * LENGTH, 2)), "softcap": 30.0}
KINDS: dict[str, tuple[tuple[dict[str, Any], dict[str, Any]], ...]] = {  # (attention, inputs)
    "none": (({}, {}),),
    "causal": (({"is_causal": True}, {}),),
    "arithmetic": (
        (ARITHMETIC, {"q_lens": [LENGTH], "kv_lens": [LENGTH]}),
        ({**LISTED, "alibi_slopes": [0.5, 0.25]}, {}),
    ),
    "matrix": (
        (
            ARITHMETIC | {"pattern": {"type": "chunked", "size": 64}},
            {
                "q_lens": [LENGTH],
                "kv_lens": [LENGTH],
                "attn_mask": {"seed": 1, "shape": [1, 2, LENGTH, LENGTH]},
            },
        ),
        ({}, {"attn_mask": {"seed": 1, "shape": [1, 2, LENGTH, LENGTH]}}),
        ({"pattern": {"type": "chunked", "size": 64}}, {}),
    ),
}
MATRICES = ["out", "scores", "softcapped_scores", "masked_scores", "weights"]
Key = tuple[str, str, str, int, str]  # as Tuned.key


def compiled(key: Key, tiling: Tiling) -> Iterator[Compiled]:
    """A kernel in these tiles, once for each kind of logit in its class."""
    kernel, target, dtype, dim, terms = key
    for attention, inputs in KINDS[terms]:
        seeded = {"seed": 1, "shape": [1, 2, LENGTH, dim]}
        body = {"engine": "flash", "dtype": dtype, "attention": attention, "return": ["out"]}
        body["inputs"] = {**dict.fromkeys(("q", "k", "v"), seeded), **inputs}
        if kernel == "flash_scores":
            body["return"] = MATRICES
        spec = parse_run(body).spec
        launched = {name: call for name, *call in kernels_of(spec, _without_data(spec), StandIn(target))}
        function, arguments = launched[kernel]
        sizes = {"BLOCK_M": tiling.block_m, "BLOCK_N": tiling.block_n}
        options = {"num_warps": tiling.num_warps, "num_stages": tiling.num_stages}
        yield compile_kernel(kernel, function, arguments | sizes | options, target, CACHE)


def problems(key: Key, tiling: Tiling, found: Compiled) -> list[str]:
    """Why a compiled kernel is not acceptable."""
    counts = found.instructions
    has = {
        "stack": found.stack_bytes > 0,
        "spills": found.spills_bytes > 0,
        "more shared memory or registers than there are": not found.fits,
    }
    if key[2] != "float32":
        own = {"sm_80": "mma", "sm_90": "wgmma", "sm_100": "tcgen05", "sm_120": "mma"}[key[1]]
        narrow = tiling.block_m < 64  # a warpgroup multiplies 64 rows
        has["no tensor-core products"] = not (counts[own] or (narrow and counts["mma"]))
    return [problem for problem, there in has.items() if there]


def line(key: Key, tiling: Tiling, found: Compiled) -> Tuned:
    counts = {kind: found.instructions[kind] for kind in ("mma", "wgmma", "tcgen05")}
    names = {field.name for field in dataclasses.fields(Tuned)}
    figures = {name: value for name, value in found.to_dict().items() if name in names}
    figures |= {
        "kernel": key[0],
        "dtype": key[2],
        "dim": key[3],
        "terms": key[4],
        **tiling._asdict(),
        **counts,
    }
    return Tuned(**figures | {"occupancy": round(found.occupancy, 4)})


def rank(tiling: Tiling, found: list[Compiled]) -> tuple[Any, ...]:
    """The rule of kernels/tuning.py: larger is better."""
    blocks = min(one.blocks_per_sm for one in found)
    warps, registers = blocks * found[0].num_warps, max(one.registers for one in found)
    return (warps >= 8, tiling.block_m, blocks >= 2, tiling.block_n, warps, tiling.num_stages, -registers)


def candidates(key: Key) -> Iterator[tuple[tuple[int, int], list[Tiling]]]:
    """Tiles from the most to the least wanted, each with its warps and stages."""
    kernel, _, dtype, dim, _ = key
    is_full = dtype == "float32"
    blocks_m = (64, 32, 16) if is_full else (128, 64, 32, 16)
    blocks_n = (64, 32, 16) if is_full or dim > 128 else (128, 64, 32, 16)
    stages = (2, 1) if is_full else (3, 2)
    if kernel == "flash_scores":
        stages = (1,)  # there is no loop to overlap
    for block_m, block_n in itertools.product(blocks_m, blocks_n):
        # Products of float32 are written out one by one, and those of a loop must be few to be compiled soon.
        unrolled = [block_m * block_n * 2 * dim // (32 * warps) if is_full else 0 for warps in (8, 4)]
        yield (
            (block_m, block_n),
            [
                Tiling(block_m, block_n, warps, depth)
                for (warps, products), depth in itertools.product(zip((8, 4), unrolled, strict=True), stages)
                if products <= 1024
            ],
        )


def search(key: Key) -> Tuned:
    """The best acceptable candidate. Stops where no later one can be better."""
    best: tuple[tuple[Any, ...], Tuned] | None = None
    for (block_m, _), tilings in candidates(key):
        if best and best[0][0] and best[1].block_m > block_m:
            break
        enough: dict[int, int] = {}  # warps → stages: with fewer, no more blocks would fit
        spilled: set[int] = set()  # with so many warps; with fewer, threads have more to hold
        for tiling in tilings:
            warps, stages = tiling.num_warps, tiling.num_stages
            if stages < enough.get(warps, 0) or any(more > warps for more in spilled):
                continue
            found, wrong = [], []
            for one in compiled(key, tiling):
                found.append(one)
                wrong = problems(key, tiling, one)
                if wrong:
                    break
            if {"stack", "spills"} & set(wrong):
                spilled.add(warps)
            elif not wrong:
                spilled.discard(warps)
                if all(one.limited_by != "shared" for one in found):
                    enough[warps] = stages
                ranked = rank(tiling, found), line(key, tiling, found[0])
                best = max(best or ranked, ranked, key=lambda pair: pair[0])
        if best and best[0][0] and best[0][2]:
            break
    if best is None:
        raise SystemExit(f"{key}: nothing is acceptable")
    return best[1]


def refreshed(old: Tuned) -> Tuned:
    return line(old.key, old.tiling, next(compiled(old.key, old.tiling)))


def keys() -> list[Key]:
    return list(itertools.product(KERNELS, TARGETS, DTYPES, DIMS, TERMS))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--search", action="store_true")
    parser.add_argument("--only", default="")
    asked = parser.parse_args()
    words = [word for word in asked.only.split(",") if word]
    for key in keys():
        old = table().get(key)
        if any(word not in map(str, key) for word in words) and old is not None:
            continue
        try:
            new = search(key) if asked.search or old is None else refreshed(old)
        except CannotCompileError as error:
            raise SystemExit(f"{key}: {error}") from error
        if new != old:
            print(*key, *new.tiling, f"{new.registers} registers", f"{new.occupancy:.1%}", flush=True)
            table()[key] = new
            write_table([table()[one] for one in keys() if one in table()])


if __name__ == "__main__":
    sys.exit(main())
