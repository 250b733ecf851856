"""Every registered engine on a GPU, against float64.

    python -m tests.gpu.check                 minutes, most of them compiling
    python -m tests.gpu.check --rehearse      a few cases in Triton's interpreter, where there is no GPU

Problems and ways as in the kernel tests: each way of giving an engine its keys that can express a problem
computes it, and every result must lie within the bound that rounding allows. Exits with 1 when one does not.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from tests.kernels.ways import Problem, Way

SHAPES = (  # batch, heads, kv_heads, q_len, kv_len, head dim, v head dim, dtype
    (2, 4, 2, 257, 515, 64, 64, "float16"),
    (1, 2, 1, 1024, 1024, 128, 128, "bfloat16"),
    (2, 4, 4, 37, 53, 20, 12, "float32"),
    (2, 8, 2, 5, 700, 128, 128, "float16"),
    (3, 8, 1, 1, 1000, 64, 64, "bfloat16"),
    (1, 2, 2, 200, 130, 256, 256, "float16"),
)
Terms = tuple[dict[str, Any], dict[str, Any]]  # attention, inputs


def terms(rng: np.random.Generator, batch: int, heads: int, n: int, m: int) -> dict[str, Terms]:
    """Everything that a logit can be made of, and no rows that see nothing but those that should."""
    lens = {"q_lens": rng.integers(0, n + 1, batch), "kv_lens": rng.integers(0, m + 1, batch)}
    allowed = rng.random((batch, 1, n, m)) < 0.3
    bias = rng.standard_normal((heads, n, m)).astype(np.float32)
    return {
        "plain": ({}, {}),
        "causal": ({"is_causal": True}, {}),
        "causal, top left": ({"is_causal": True, "causal_alignment": "top_left"}, {}),
        "window": ({"window": [20, 9]}, {}),
        "softcap": ({"softcap": 2.0, "is_causal": True}, {}),
        "ALiBi": ({"alibi_slopes": "auto", "is_causal": True}, {}),
        "RoPE": ({"rope": {"style": "half"}, "is_causal": True}, {}),
        "sinks": ({"sinks": [0.5] * heads, "is_causal": True}, {}),
        "negative scale": ({"scale": -0.3}, {}),
        "positions": ({"q_positions": np.cumsum(rng.integers(1, 3, n)).tolist(), "is_causal": True}, {}),
        "mask": ({}, {"attn_mask": allowed}),
        "bias": ({"is_causal": True}, {"attn_mask": bias}),
        "bias that forbids": ({}, {"attn_mask": np.where(allowed, 0.5, -np.inf).astype(np.float32)}),
        "pattern": ({"pattern": {"type": "chunked", "size": 24}}, {}),
        "ragged": ({"is_causal": True}, lens),
        "most of them": (
            {
                "is_causal": True, "window": [100, 0], "softcap": 5.0, "alibi_slopes": "auto",
                "sinks": [0.0] * heads,
            },
            {**lens, "attn_mask": bias},
        ),
    }  # fmt: skip


def problems(*, few: bool) -> Iterator[tuple[str, Problem]]:
    """Each term on every second of SHAPES, so that each meets several dtypes and widths."""
    from tests.kernels.ways import Problem

    longest = (17, 33) if few else (10**6, 10**6)
    for turn, (batch, heads, kv_heads, q_len, kv_len, d, e, dtype) in enumerate(SHAPES):
        n, m = min(q_len, longest[0]), min(kv_len, longest[1])
        rng = np.random.default_rng(turn)
        q, k, v = (
            rng.standard_normal(shape).astype(np.float32) * 1.5
            for shape in ((batch, heads, n, d), (batch, kv_heads, m, d), (batch, kv_heads, m, e))
        )
        for number, (name, (attention, inputs)) in enumerate(terms(rng, batch, heads, n, m).items()):
            if (number + turn) % (16 if few else 2) == 0:
                more = {"dout": rng.standard_normal((batch, heads, n, e)).astype(np.float32)}
                where = f"{name}, {dtype} {batch}·{heads}/{kv_heads}·{n}·{m}·{d}/{e}"
                yield where, Problem(q, k, v, attention, {**inputs, **more}, dtype)


def judged(way: Way, problem: Problem, device: str) -> list[str] | None:
    """The results that are not within their bound; None where the way cannot express the problem."""
    from kernels.engines.reference import reference
    from kernels.numerics import compare
    from kernels.registry import ENGINES
    from kernels.spec import SpecError
    from kernels.spec.results import GRADIENTS
    from tests.kernels.error_bounds import error_bounds

    returns = [name for name in ("out", "lse", "weights", *GRADIENTS) if name in way.returns]
    inputs = dict(problem.inputs)
    if not set(GRADIENTS) & set(returns):
        del inputs["dout"]
    try:
        plain = type(problem)(
            problem.q, problem.k, problem.v, problem.attention, inputs, problem.dtype, problem.past
        )
        spec, arrays = way.request(plain, returns)
    except SpecError:
        return None
    prepared = importlib.import_module(ENGINES[way.engine].module).prepare(spec, arrays, device)
    got = prepared.collect(prepared.compute())
    gradients = bool(set(GRADIENTS) & set(returns))
    expected, bounds = reference(spec, arrays, spec.returns), error_bounds(spec, arrays, gradients=gradients)
    found = compare(spec, got, expected, bounds)
    wrong = {"out": found, **found["arrays"]}
    return [
        f"{name}: error {of['max_abs_err']}, bound {of['bound']}"
        for name, of in wrong.items()
        if not of["within_bound"]
    ]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rehearse", action="store_true")
    rehearse = parser.parse_args().rehearse
    if rehearse:
        os.environ["TRITON_INTERPRET"] = "1"
    import torch

    if not torch.cuda.is_available() and not rehearse:
        print("no GPU here: no engine was checked on one")
        return 0
    device = "cpu" if rehearse else "cuda"
    from kernels.registry import ENGINES
    from tests.kernels.ways import WAYS

    counts: dict[str, Counter[str]] = defaultdict(Counter)
    asked = [way for way in WAYS if way.engine in ENGINES and device in ENGINES[way.engine].devices]
    for where, problem in problems(few=rehearse):
        for way in asked:
            wrong = judged(way, problem, device)
            counts[way.name]["refused" if wrong is None else "wrong" if wrong else "right"] += 1
            for text in wrong or ():
                print(f"WRONG {way.name}: {where}: {text}", flush=True)
    print(f"{'way':<20} {'right':>6} {'wrong':>6} {'refused':>8}   {_device(device)}")
    for name, count in counts.items():
        print(f"{name:<20} {count['right']:>6} {count['wrong']:>6} {count['refused']:>8}")
    return 1 if any(count["wrong"] for count in counts.values()) else 0


def _device(device: str) -> str:
    import torch

    return torch.cuda.get_device_name() if device == "cuda" else "Triton's interpreter: says nothing of a GPU"


if __name__ == "__main__":
    sys.exit(main())
