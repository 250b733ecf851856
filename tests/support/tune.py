"""Find the tiles of ``kernels/tuned.csv`` by compiling, and write the table anew.

    make compiled                            after a kernel was edited: new figures, and new tiles only where
                                             the old ones are no longer acceptable; then the page of it
    python -m tests.support.tune --search    all tiles anew, by the rule in kernels/tuning.py (an hour)

``--only sm_90,float16`` keeps every line that lacks one of these words as it is. What was compiled before is
kept in ``.cache/compiled``.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import itertools
import os
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from operator import itemgetter
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from kernels.compiled_cache import CompiledCache
from kernels.compiling import Compiled, StandIn, compile_kernel, without_data
from kernels.flash.tiles import BACKWARD
from kernels.registry import ENGINES
from kernels.spec import RunSpec, parse_run
from kernels.spec.results import GRADIENTS, MATRICES
from kernels.targets import TARGETS, WARP_SIZE
from kernels.tiles import excess, needs
from kernels.tuning import KERNELS, PLAIN, Key, Tiling, Tuned, table, widths, write_table

CACHE = CompiledCache(Path(".cache/compiled"), max_bytes=2 * 2**30)
DTYPES = ("float16", "float32")
LENGTH = 256
MAX_STEPS = 1024  # float32 multiply-adds of a thread: of tiles with more, compiling takes too long
MAX_NUMBERS = 96  # that the tiles of a program may ask each of its threads to hold; half of it in float32
MAX_SPILLS = 64  # bytes; where there are more, nothing else that is wrong with a tile matters
RESULTS = {"flash_scores": MATRICES, **dict.fromkeys(BACKWARD, tuple(GRADIENTS))}
# Which (kernel, kind) are launched in the same tiles: with and without a causal mask, both backward kernels.
TOGETHER = [
    [("flash_forward", "none"), ("flash_forward", "causal")],
    [(kernel, "any") for kernel in BACKWARD],
]
ALIKE = TOGETHER + [
    [(kernel, kind)]
    for kernel, kinds in KERNELS.items()
    for kind in kinds
    if not any((kernel, kind) in names for names in TOGETHER)
]


class Example(NamedTuple):
    """One request of a kind, as far as it is not the same for all."""

    attention: Mapping[str, Any] = MappingProxyType({})
    inputs: Mapping[str, Any] = MappingProxyType({})
    engine: str | None = None  # None: that of the kernel
    options: Mapping[str, Any] = MappingProxyType({})
    length: int = LENGTH
    kv_heads: int = 4  # of 4


CAUSAL = {"is_causal": True}
SLOPES, SINKS = [0.5, 0.25, 0.125, 0.0625], [0.0, 1.0, 2.0, 3.0]
ARITHMETIC = CAUSAL | {"window": [256, 0], "softcap": 30.0, "alibi_slopes": SLOPES, "sinks": SINKS}
LISTED = CAUSAL | {"q_positions": list(range(0, 2 * LENGTH, 2)), "softcap": 30.0, "alibi_slopes": SLOPES}
LENGTHS = {"q_lens": [LENGTH], "kv_lens": [LENGTH]}
MASK = {"pattern": {"type": "chunked", "size": 64}}
BIAS = {"attn_mask": {"seed": 1, "shape": [1, 4, LENGTH, LENGTH]}}
EVERY = Example(ARITHMETIC | MASK, LENGTHS | BIAS, kv_heads=2)
PAGED, E4M3 = "paged", {"kv_dtype": "fp8_e4m3"}  # the dearest to decode; each token with its scale
MOST = Example(ARITHMETIC, LENGTHS, kv_heads=2)
EXAMPLES: dict[tuple[str, str], tuple[Example, ...]] = {
    ("flash_forward", "none"): (Example(),),
    ("flash_forward", "causal"): (Example(CAUSAL),),
    ("flash_forward", "arithmetic"): (MOST, Example(LISTED)),
    ("flash_forward", "matrix"): (EVERY, Example(MASK, length=LENGTH - 1)),  # rows that start anywhere
    ("flash_forward", "paged"): (EVERY._replace(engine=PAGED),),
    ("flash_forward", "coded"): (EVERY._replace(options=E4M3, engine=PAGED),),
    ("flash_scores", "any"): (EVERY._replace(options=E4M3),),
    **dict.fromkeys(((kernel, "any") for kernel in BACKWARD), (EVERY,)),
    ("decode_split", "arithmetic"): (MOST, MOST._replace(engine=PAGED)),
    ("decode_split", "any"): (EVERY._replace(options=E4M3, engine=PAGED),),
    ("latent_attention", "any"): (EVERY,),
}


def request(key: Key, example: Example) -> dict[str, Any]:
    """A request for the kernel of a line. A few queries of it are the decode kernels'."""
    kernel, _, dtype, dim, _ = key
    length, queries = example.length, 16 if kernel == "decode_split" else example.length
    inputs = dict(example.inputs)
    if kernel == "decode_split":
        few = {"q_lens": [queries], "attn_mask": {"seed": 1, "shape": [1, 4, queries, length]}}
        inputs |= {name: few[name] for name in few if name in inputs}

    def seeded(*shape: int) -> dict[str, Any]:
        return {"seed": 1, "shape": list(shape)}

    if kernel == "latent_attention":
        inputs |= {
            "q_nope": seeded(1, 4, length, 128), "q_rope": seeded(1, 4, length, 64),
            "c_kv": seeded(1, length, dim), "k_rope": seeded(1, length, 64),
            "w_uk": seeded(4, dim, 128), "w_uv": seeded(4, dim, 128),
        }  # fmt: skip
        engine, options = "mla", {"form": "absorbed"}
    else:
        keys = seeded(1, example.kv_heads, length, dim)
        inputs |= {"q": seeded(1, 4, queries, dim), "k": keys, "v": keys}
        engine = example.engine or ("decode" if kernel == "decode_split" else "flash")
        options = example.options
    if kernel in BACKWARD:
        inputs["dout"] = seeded(1, 4, queries, dim)
    return {
        "engine": engine, "dtype": dtype, "inputs": inputs, "options": dict(options),
        "attention": dict(example.attention), "return": ["out", *RESULTS.get(kernel, ())],
    }  # fmt: skip


def examples(key: Key) -> list[RunSpec]:
    """The specs whose kernel a line is for."""
    return [parse_run(request(key, one)).spec for one in EXAMPLES[key.kernel, key.kind]]


def compiled(key: Key, spec: RunSpec, tiling: Tiling) -> Compiled:
    """The kernel of a line, for one of its examples, in these tiles."""
    engine = importlib.import_module(ENGINES[spec.engine].module)
    launched = engine.kernels_of(spec, without_data(spec), StandIn(key.target))
    ((function, arguments),) = (call for name, *call in launched if name == key.kernel)
    sizes = {"BLOCK_M": tiling.block_m, "BLOCK_N": tiling.block_n}
    options = {"num_warps": tiling.num_warps, "num_stages": tiling.num_stages}
    return compile_kernel(key.kernel, function, arguments | sizes | options, key.target, CACHE)


def problems(key: Key, tiling: Tiling, found: Compiled) -> list[str]:
    """Why a compiled kernel is not acceptable."""
    counts = found.instructions
    has = {
        "stack": found.stack_bytes > 0,
        "spills": found.spills_bytes > 0,
        "more shared memory or registers than there are": not found.fits,
    }
    if key.dtype == "float32":
        has["products rounded to TF32"] = any(counts[kind] for kind in ("mma", "wgmma", "tcgen05"))
    else:
        own = {"sm_80": "mma", "sm_90": "wgmma", "sm_100": "tcgen05", "sm_120": "mma"}[key.target]
        narrow = tiling.block_m < 64  # a warpgroup multiplies 64 rows
        has["no tensor-core products"] = not (counts[own] or (narrow and counts["mma"]))
    return [problem for problem, there in has.items() if there]


def line(key: Key, tiling: Tiling, found: list[Compiled]) -> Tuned:
    """With the figures of the example that takes most."""
    most = max(found, key=lambda one: (one.spills_bytes, one.stack_bytes, one.registers))
    counts = {kind: most.instructions[kind] for kind in ("mma", "wgmma", "tcgen05")}
    names = {field.name for field in dataclasses.fields(Tuned)}
    figures = {name: value for name, value in most.to_dict().items() if name in names}
    figures |= {**key._asdict(), **tiling._asdict(), **counts, "occupancy": round(most.occupancy, 4)}
    return Tuned(**figures)


def order(kernel: str, block_m: int, block_n: int, *, warps: int = 64, blocks: int = 2) -> tuple[int, ...]:
    """The first points of the rule in kernels/tuning.py, larger is better; without warps and blocks, the best
    that these tiles can reach."""
    if kernel == "decode_split":
        return warps >= 8, min(block_n, 64), block_m, blocks >= 2, block_n
    return warps >= 8, min(block_n, 32), block_m, min(block_n, 64), blocks >= 2, block_n


def rank(kernel: str, tiling: Tiling, found: list[Compiled]) -> tuple[int, ...]:
    """The whole rule."""
    blocks = min(one.blocks_per_sm for one in found)
    warps, registers = blocks * tiling.num_warps, max(one.registers for one in found)
    first = order(kernel, tiling.block_m, tiling.block_n, warps=warps, blocks=blocks)
    return *first, warps, tiling.num_stages, -registers


def candidates(key: Key, spec: RunSpec) -> Iterator[list[Tiling]]:
    """Tiles, the best by ``order`` first, each in the warps and stages that are tried: all of them for the
    plain forward pass, else what leaves a thread room for all that is not scores and sums."""
    is_full, is_decoding = key.dtype == "float32", key.kernel == "decode_split"
    stages = (1,) if key.kernel == "flash_scores" else (3, 2) if is_plain(key) or is_decoding else (2,)
    sizes = list(itertools.product((64, 32, 16) if is_decoding else (128, 64, 32, 16), (128, 64, 32, 16)))
    for m, n in sorted(sizes, key=lambda tile: order(key.kernel, *tile), reverse=True):
        if n > 64 and not is_plain(key):
            continue
        warps = []
        for count in (4, 8):
            needed, threads = needs(key.kernel, spec, Tiling(m, n, count)), WARP_SIZE * count
            roomy = needed.registers <= (MAX_NUMBERS // 2 if is_full else MAX_NUMBERS) * threads
            steps = (MAX_STEPS if is_plain(key) else MAX_STEPS // 2) * threads
            soon = not is_full or needed.multiplies <= steps or (m, n) == (16, 16)
            if soon and (roomy or is_plain(key)):
                warps.append(count)
        if warps and excess(key.kernel, spec, key.target, Tiling(m, n, warps[-1])) is None:
            order_of_warps = warps[::-1] if is_plain(key) else warps
            yield [Tiling(m, n, *more) for more in itertools.product(order_of_warps, stages)]


def is_plain(key: Key) -> bool:
    """Of the forward pass over keys and values in a row."""
    return key.kernel == "flash_forward" and key.kind in PLAIN


def search(keys: list[Key], spilled: list[Tiling]) -> list[Tuned]:
    """The best candidate that is acceptable for all of ``keys``, which are launched alike; if there is none,
    the one that spills least. Tiles that hold as much as one of ``spilled``, which grows, are not tried."""
    kernel = keys[0].kernel
    acceptable, spilling = list[tuple[tuple[int, ...], list[Tuned]]](), list[tuple[int, list[Tuned]]]()
    for tilings in candidates(keys[0], examples(keys[0])[0]):
        if acceptable and max(acceptable, key=itemgetter(0))[0] >= order(kernel, *tilings[0][:2]):
            break
        enough: set[int] = set()  # warps with which fewer stages would make no more blocks fit
        for tiling in tilings:
            if tiling.num_warps in enough or any(_holds(tiling, other) for other in spilled):
                continue
            found, lines, wrong = tried(keys, tiling)
            if not (wrong or is_plain(keys[0])):
                return lines
            if not wrong:
                acceptable.append((rank(kernel, tiling, found), lines))
                if all(one.limited_by != "shared" for one in found):
                    enough.add(tiling.num_warps)
            elif set(wrong) <= {"stack", "spills"}:
                size = sum(one.spills_bytes + one.stack_bytes for one in lines)
                spilling.append((size, lines))
                hopeless = size > MAX_SPILLS or not is_plain(keys[0])
                spilled.append(tiling._replace(num_stages=1) if hopeless else tiling)
    if acceptable:
        return max(acceptable, key=itemgetter(0))[1]
    if not spilling:  # all of them spilled earlier, for others
        return tried(keys, tilings[-1])[1]
    return min(spilling, key=itemgetter(0))[1]


def _holds(tiling: Tiling, other: Tiling) -> bool:
    """Whether each thread has at least as much to hold as in ``other``."""
    larger = tiling.block_m >= other.block_m and tiling.block_n >= other.block_n
    return larger and tiling.num_warps <= other.num_warps and tiling.num_stages >= other.num_stages


def tried(keys: list[Key], tiling: Tiling) -> tuple[list[Compiled], list[Tuned], list[str]]:
    """What was compiled, the lines of the table, and what is wrong with them."""
    everything, lines, wrong = list[Compiled](), list[Tuned](), list[str]()
    for key in keys:
        found = []
        for spec in examples(key):
            one = compiled(key, spec, tiling)
            found.append(one)
            wrong += [problem for problem in problems(key, tiling, one) if problem not in wrong]
            if one.spills_bytes > MAX_SPILLS:
                break  # nobody wants to know more
        everything += found
        lines.append(line(key, tiling, found))
    return everything, lines, wrong


def refreshed(old: list[Tuned], spilled: list[Tiling]) -> list[Tuned]:
    """The same tiles with their figures of today, or others where they are no longer acceptable."""
    keys, tilings = [one.key for one in old], {one.tiling for one in old}
    if len(tilings) == 1:
        _, lines, wrong = tried(keys, tilings.pop())
        spills, spilled_before = ([one.spills_bytes for one in some] for some in (lines, old))
        if not wrong or (set(wrong) <= {"stack", "spills"} and spills == spilled_before):
            return lines
        print(*keys, "no longer acceptable:", *wrong, flush=True)
    return search(keys, spilled)


def chains() -> Iterator[list[list[Key]]]:
    """What is launched alike, in lists: what spills early in a list is not tried again in it. Rows get wider
    in it, and but for the plain forward pass targets vary."""
    for names, dtype in itertools.product(ALIKE, DTYPES):
        every = [
            [Key(kernel, target, dtype, width, kind) for kernel, kind in names]
            for width, target in itertools.product(widths(*names[0]), TARGETS)
        ]
        if not is_plain(every[0][0]):
            yield every
        else:
            yield from ([keys for keys in every if keys[0].target == target] for target in TARGETS)


def settled(chain: list[list[Key]], *, search_all: bool) -> list[Tuned]:
    """The lines of a chain."""
    spilled, lines = list[Tiling](), list[Tuned]()
    for keys in chain:
        old = [table()[key] for key in keys if key in table()]
        lines += search(keys, spilled) if search_all or len(old) < len(keys) else refreshed(old, spilled)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--search", action="store_true")
    parser.add_argument("--only", default="")
    asked = parser.parse_args()
    words = {word for word in asked.only.split(",") if word}
    every = [key for chain in chains() for keys in chain for key in keys]
    chosen = [
        chain for chain in chains() if any(words <= set(map(str, key)) for keys in chain for key in keys)
    ]
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for lines in pool.map(partial(settled, search_all=asked.search), chosen):
            for one in lines:
                if one != table().get(one.key):
                    found = f"{one.registers} registers, {one.spills_bytes} bytes spilled"
                    print(*one.key, *one.tiling, found, flush=True)
                    table()[one.key] = one
            write_table(table()[key] for key in every if key in table())


if __name__ == "__main__":
    sys.exit(main())
