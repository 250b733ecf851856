"""The page docs/compiled.md: what every kernel, in the tiles that it is shipped with, compiles to.

make compiled        writes kernels/tuned.csv anew, and then this page of it
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

from kernels.compiling import Compiled, StandIn, compile_kernel, distinct, without_data
from kernels.registry import ENGINES
from kernels.spec import parse_run
from kernels.targets import TARGETS
from kernels.tuning import KINDS, Key, Tuned, table
from tests.support.tune import CACHE

PAGE = Path(__file__).parents[2] / "docs" / "compiled.md"
LENGTH = 1024

HEADER = """\
# What the kernels compile to

Compiled for GPUs that need not be there. All of it is exact, and none of it is a time. A cell reads

    128 × 64, 8w 3s: 110 r, 64 K, 2 b

queries × keys to a tile, warps of a block and stages of loads in flight, as a run is launched that asks for
none; then registers of a thread, KiB of shared memory of a block, and how many blocks one multiprocessor
holds. The products of float16 and bfloat16, which compile to the same figures, are tensor-core instructions,
on sm_90 those of a warpgroup (wgmma) where a tile has the 64 queries that it takes; those of float32 are
none, for they are not rounded to TF32.

`make compiled` writes this page and `kernels/tuned.csv`, which has the whole figures; the rule by which tiles
are chosen is in `kernels/tuning.py`. A test compiles a part of both again, or all with
`ATTENTION_LAB_ALL_COMPILES=1`.
"""
IN_SHORT = """
## In short

float16.
"""
WHOLE = """
## Every line of the table

Of all that is compiled for a line, its figures are those of what takes most. The width is that of a key or
a value, whichever is larger, or of a latent, padded to a power of two; where there is no line for 16 and 32,
the one for 64 is taken. The kinds:
"""
OTHERS = """
## The other kernels

With 1024 keys, in their own tiles; registers, shared memory and blocks as above.
"""
# kernel, width, kind
SHORT = [
    *(("flash_forward", dim, kind) for dim in (64, 128) for kind in ("none", "causal", "matrix")),
    ("flash_forward", 128, "paged"), ("flash_forward", 128, "coded"), ("flash_scores", 128, "any"),
    ("flash_backward_keys", 128, "any"), ("flash_backward_queries", 128, "any"),
    ("decode_split", 128, "arithmetic"), ("decode_split", 128, "any"), ("latent_attention", 512, "any"),
]  # fmt: skip


def page(others: list[str]) -> str:
    """The whole page; ``others``: the rows of the kernels that are not in the table."""
    lines = list(table().values())
    short = [_row(f"{kernel}, {dim}, {kind}", kernel, "float16", dim, kind) for kernel, dim, kind in SHORT]
    whole = [
        _row(f"{kernel}, {dtype}, {dim}, {kind}", kernel, dtype, dim, kind)
        for kernel, dtype, dim, kind in dict.fromkeys((o.kernel, o.dtype, o.dim, o.kind) for o in lines)
    ]
    kinds = [f"- *{kind}*: {meaning}" for kind, meaning in KINDS.items()]
    parts = [HEADER, _spilling(lines), IN_SHORT, *_heading(), *short, WHOLE, *kinds]
    parts += [*_heading(), *whole, OTHERS, *_heading(), *others]
    return "\n".join(part.rstrip("\n") for part in parts) + "\n"


def _spilling(lines: list[Tuned]) -> str:
    """What the table has spills in."""
    found = [one for one in lines if one.spills_bytes or one.stack_bytes]
    if not found:
        return "\nNo kernel in the table spills a register or uses stack.\n"
    named = [f"- {', '.join(map(str, one.key))}: {one.spills_bytes} bytes" for one in found]
    said = f"{len(found)} of the {len(lines)} lines of the table spill registers, in any tile:"
    return "\n".join(["", said, "", *named])


def _heading() -> list[str]:
    return ["", _cells("", *TARGETS), _cells(*["---"] * (1 + len(TARGETS)))]


def _row(what: str, kernel: str, dtype: str, dim: int, kind: str) -> str:
    return _cells(what, *(_cell(table()[Key(kernel, target, dtype, dim, kind)]) for target in TARGETS))


def _cell(one: Tuned) -> str:
    return f"{one.block_m} × {one.block_n}, {one.num_warps}w {one.num_stages}s: {_figures(one)}"


def _figures(one: Tuned | Compiled) -> str:
    spills = f", {one.spills_bytes} B spilled" if one.spills_bytes else ""
    return f"{one.registers} r, {one.shared_bytes / 1024:.3g} K, {one.blocks_per_sm} b{spills}"


def _cells(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


# -- what is not in the table --------------------------------------------------------------------------------


def seeded(*shape: int) -> dict[str, Any]:
    return {"seed": 1, "shape": list(shape)}


LEARNT: dict[str, dict[str, Any]] = {
    "dot": {},
    "cosine": {},
    "general": {"w_general": seeded(2, 128, 128)},
    "additive": {"w_q": seeded(2, 64, 128), "w_k": seeded(2, 64, 128), "v_a": seeded(2, 64)},
    "concat": {"w_concat": seeded(2, 64, 256), "v_a": seeded(2, 64)},
}


def scored(score: str, span: str = "global") -> dict[str, Any]:
    """Attention by a score of LEARNT."""
    keys = seeded(1, 2, LENGTH, 128)
    inputs = {"q": keys, "k": keys, "v": keys, **LEARNT[score]}
    if span == "predictive":
        inputs |= {"w_p": seeded(2, 64, 128), "v_p": seeded(2, 64)}
    return {"engine": "scoring", "inputs": inputs, "options": {"score": score, "span": span}}


def cases() -> dict[str, tuple[dict[str, Any], tuple[str, ...]]]:
    """What a row says → (request, kernels that are shown)."""
    keys, query = seeded(1, 2, LENGTH, 128), seeded(1, 8, 1, 128)
    token = {"k": seeded(1, 2, 1, 128), "v": seeded(1, 2, 1, 128)}
    latent = {
        "q_nope": seeded(1, 16, 1, 128), "q_rope": seeded(1, 16, 1, 64),
        "c_kv": seeded(1, LENGTH, 512), "k_rope": seeded(1, LENGTH, 64),
        "w_uk": seeded(16, 512, 128), "w_uv": seeded(16, 512, 128),
    }  # fmt: skip
    flash = {"engine": "flash", "inputs": {"q": keys, "k": keys, "v": keys}}
    mla, mla_kernels = {"engine": "mla", "inputs": latent}, {
        "absorbed": ("absorb", "release"), "expanded": ("expand_keys", "expand_values", "share_rope"),
    }  # fmt: skip
    return {
        "RoPE, 128": (flash | {"attention": {"rope": {"style": "half"}}}, ("rotate_rows",)),
        "gradients, 128": (
            flash | {"inputs": flash["inputs"] | {"dout": keys}, "return": ["dq", "dk", "dv"]},
            ("row_deltas",),
        ),
        "one query, 128": (
            {"engine": "decode", "inputs": {"q": query, "k": keys, "v": keys}}, ("merge_splits",),
        ),
        "one token, pages of 16, 128": (
            {"engine": "paged", "inputs": {"q": query, **token, "past_key": keys, "past_value": keys}},
            ("append_rows",),
        ),
        **{f"{score} scores, 128": (scored(score), ("scored_forward",)) for score in LEARNT},
        "predicted windows, 128": (scored("dot", "predictive"), ("predict_centres", "scored_forward")),
        **{
            f"MLA {form}, 512 + 64": (mla | {"options": {"form": form}}, shown)
            for form, shown in mla_kernels.items()
        },
    }  # fmt: skip


DTYPES = ("float16", "float32")


def rows(what: str, dtype: str) -> list[str]:
    """Those of one of ``cases``."""
    body, shown = cases()[what]
    spec = parse_run({**body, "dtype": dtype}).spec
    kernels_of = importlib.import_module(ENGINES[spec.engine].module).kernels_of
    found: dict[str, list[str]] = {name: [] for name in shown}
    for target in TARGETS:
        launched = distinct(kernels_of(spec, without_data(spec), StandIn(target)), target)
        for name, kernel, arguments in launched:
            if name in shown:
                found[name].append(_figures(compile_kernel(name, kernel, arguments, target, CACHE)))
    return [_cells(f"{name}, {dtype}, {what}", *figures) for name, figures in found.items()]


def main() -> None:
    PAGE.write_text(page([row for what in cases() for dtype in DTYPES for row in rows(what, dtype)]))


if __name__ == "__main__":
    sys.exit(main())
