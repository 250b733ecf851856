"""How fast the engines are on this GPU, beside torch and beside what this GPU can do.

    python -m tests.benchmarks.gpu               under five minutes; a table at the end
    python -m tests.benchmarks.gpu --rehearse    tiny shapes on the CPU: whether this script works, no figures

Each figure is the median of ITERS calls between CUDA events, the second-level cache emptied before each
(``kernels.measure.timed``). FLOPs are 4·B·H·N·M·D, halved if causal, 2.5 times as many backward; bytes are K
and V once. The ceilings are measured in the same run: a copy of memory, and a product of large matrices.
Exits with 1 where a threshold of ours is missed.
"""

from __future__ import annotations

import argparse
import importlib
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

WARMUP, ITERS = 3, 15
MIN_OF_SDPA, MIN_OF_COPY = 0.9, 0.8
BUDGET_SECONDS = 270.0  # what has not begun by then is left out, and named

# batch, heads, kv_heads, q_len, kv_len, head dim
FORWARD = [
    (4, 32, 32, 4096, 4096, 64),
    (4, 32, 32, 4096, 4096, 128),
    (1, 32, 32, 16384, 16384, 128),
    (4, 32, 8, 1024, 1024, 128),
]
DECODE = [(1, 32, 8, 1, 32768, 128), (16, 32, 8, 1, 32768, 128), (64, 32, 8, 1, 4096, 128)]
LATENT = (8, 128, 1, 32768, 512, 128, 64, 128)  # batch, heads, q_len, kv_len, d_c, d_nope, d_rope, d_v


@dataclass(frozen=True)
class Row:
    """One line of the table: seconds of the median call, and what it did in them."""

    what: str
    who: str
    seconds: float | None  # None: it could not, and `note` says why
    flops: float = 0.0
    bytes: float = 0.0
    note: str = ""


class Bench:
    """Rows as they come; `device` is cuda, or cpu in a rehearsal."""

    def __init__(self, device: str) -> None:
        self.device, self.rows, self.started = device, list[Row](), time.monotonic()

    def add(
        self,
        what: str,
        who: str,
        prepare: Callable[[], Callable[[], Any]],
        flops: float = 0.0,
        size: float = 0.0,
    ) -> float | None:
        """Time what ``prepare`` makes ready; the row, and its seconds."""
        import torch

        from kernels.measure import timed

        if time.monotonic() - self.started > BUDGET_SECONDS:
            self.rows.append(Row(what, who, None, note="left out: no time"))
            return None
        warmup, iters = (WARMUP, ITERS) if self.device == "cuda" else (0, 1)
        try:
            call = prepare()
            for _ in range(warmup):
                call()
            seconds = statistics.median(timed(call, self.device)[1] for _ in range(iters)) / 1e9
        except Exception as error:  # one engine that fails leaves the others their figures
            text = " ".join(str(error).split())[:90]
            self.rows.append(Row(what, who, None, note=f"{type(error).__name__}: {text}"))
            return None
        finally:
            if self.device == "cuda":
                torch.cuda.empty_cache()
        self.rows.append(Row(what, who, seconds, flops, size))
        return seconds


def inputs_of(shape: tuple[int, ...]) -> dict[str, np.ndarray]:
    """q, k and v, canonical: a million normal numbers over and over, which is quick to make."""
    batch, heads, kv_heads, n, m, d = shape
    return {
        name: repeated((batch, of, length, d))
        for name, of, length in (("q", heads, n), ("k", kv_heads, m), ("v", kv_heads, m))
    }


def repeated(shape: tuple[int, ...], scale: float = 1.0) -> np.ndarray:
    numbers = np.random.default_rng(0).standard_normal(2**20, dtype=np.float32) * np.float32(scale)
    return np.resize(numbers.astype(np.float16).astype(np.float32), shape)


def engine(
    name: str,
    arrays: dict[str, np.ndarray],
    device: str,
    *,
    causal: bool = False,
    returns: tuple[str, ...] = ("out",),
    **options: Any,
) -> Callable[[], Any]:
    """One of our engines on ``arrays``, ready to be called; larger than a request may be."""
    from kernels.layout import to_canonical
    from kernels.registry import ENGINES
    from kernels.spec.model import Attention, InputSpec, Options, RunSpec

    spec = RunSpec(
        name,
        {key: InputSpec(array.shape, "float16", "inline") for key, array in arrays.items()},
        dtype="float16",
        attention=Attention(is_causal=causal),
        returns=returns,
        options=Options(**options),
    )
    canonical = {key: to_canonical(spec, key, array) for key, array in arrays.items()}
    return importlib.import_module(ENGINES[name].module).prepare(spec, canonical, device).compute


def torch_calls(arrays: dict[str, np.ndarray], device: str, *, causal: bool) -> dict[str, Callable[[], Any]]:
    """torch's own attention, by name, each made ready when it is called."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention
    from torch.nn.functional import scaled_dot_product_attention as attend

    q, k, v = (torch.from_numpy(arrays[name]).to(device, torch.float16) for name in "qkv")
    grouped = q.shape[1] != k.shape[1]

    def sdpa(backend: Any) -> Callable[[], Any]:
        def call() -> Any:
            with sdpa_kernel(backend):
                return attend(q, k, v, is_causal=causal, enable_gqa=grouped)

        return call

    def flex() -> Callable[[], Any]:
        mask = None
        if causal:
            seen = lambda b, h, i, j: i >= j  # noqa: E731
            mask = create_block_mask(seen, None, None, q.shape[2], k.shape[2], device=device)
        compiled = torch.compile(flex_attention) if device == "cuda" else flex_attention
        return lambda: compiled(q, k, v, block_mask=mask, enable_gqa=grouped)

    return {
        "SDPA, flash": lambda: sdpa(SDPBackend.FLASH_ATTENTION),
        "SDPA, cuDNN": lambda: sdpa(SDPBackend.CUDNN_ATTENTION),
        "FlexAttention": flex,
    }


def ceilings(bench: Bench, scale: int) -> tuple[float | None, float | None]:
    """(bytes per second of a copy, FLOP per second of a float16 product), measured."""
    import torch

    count = 2**30 // scale
    source = torch.empty(count, dtype=torch.uint8, device=bench.device)
    target = torch.empty_like(source)
    copied = bench.add("ceiling", "copy of memory", lambda: lambda: target.copy_(source), size=2.0 * count)
    side = 8192 // scale**0.5 // 16 * 16
    a, b = (torch.randn(int(side), int(side), device=bench.device, dtype=torch.float16) for _ in range(2))
    product = bench.add("ceiling", "torch.mm, float16", lambda: lambda: a @ b, flops=2.0 * side**3)
    return (2.0 * count / copied if copied else None), (2.0 * side**3 / product if product else None)


def forward(bench: Bench, shape: tuple[int, ...], checks: dict[str, bool]) -> None:
    batch, heads, _, n, m, d = shape
    arrays = inputs_of(shape)
    for causal in (True, False):
        what = f"{'causal' if causal else 'full'} {batch}·{heads}·{n}·{d}"
        flops = 4.0 * batch * heads * n * m * d / (2 if causal else 1)
        ours = bench.add(
            what,
            "flash (ours)",
            lambda c=causal: engine("flash", arrays, bench.device, causal=c),
            flops,
        )
        theirs = {
            who: bench.add(what, who, prepare, flops)
            for who, prepare in torch_calls(arrays, bench.device, causal=causal).items()
        }
        best = theirs["SDPA, flash"]
        if ours and best and causal and shape in FORWARD[:2]:
            checks[f"{what}: flash reaches {best / ours:.0%} of SDPA's, {MIN_OF_SDPA:.0%} wanted"] = (
                best / ours >= MIN_OF_SDPA
            )


def backward(bench: Bench, shape: tuple[int, ...]) -> None:
    batch, heads, _, n, m, d = shape
    arrays = inputs_of(shape) | {"dout": repeated((batch, heads, n, d))}
    flops = 3.5 * 4.0 * batch * heads * n * m * d / 2
    fields: dict[str, Any] = {"causal": True, "returns": ("out", "dq", "dk", "dv")}
    what = f"causal, both passes {batch}·{heads}·{n}·{d}"
    for name in ("flash", "sdpa"):
        bench.add(what, name, lambda n=name: engine(n, arrays, bench.device, **fields), flops)


def decode(bench: Bench, shape: tuple[int, ...], copy: float | None, checks: dict[str, bool]) -> None:
    batch, heads, kv_heads, _, m, d = shape
    arrays, size = inputs_of(shape), 2.0 * 2 * batch * kv_heads * m * d
    what = f"decode {batch}·{heads}/{kv_heads}·{m}·{d}"
    ours = bench.add(what, "decode (ours)", lambda: engine("decode", arrays, bench.device), size=size)
    bench.add(
        what,
        "paged (ours)",
        lambda: engine("paged", arrays, bench.device, page_size=16),
        size=size,
    )
    codes = {"kv_dtype": "int8", "kv_scale": "per_token_head"}
    bench.add(
        what,
        "decode, int8 (ours)",
        lambda: engine("decode", arrays, bench.device, **codes),
        size=size / 2,
    )
    for who, prepare in torch_calls(arrays, bench.device, causal=False).items():
        bench.add(what, who, prepare, size=size)
    if ours and copy and m == DECODE[0][4]:
        share = size / ours / copy
        checks[f"{what}: {share:.0%} of the copy's bandwidth, {MIN_OF_COPY:.0%} wanted"] = (
            share >= MIN_OF_COPY
        )


def latent(bench: Bench, scale: int) -> None:
    batch, heads, n, m, latents, nope, rope, e = LATENT
    batch, m = max(1, batch // scale), m // scale
    arrays = {
        "q_nope": repeated((batch, heads, n, nope)),
        "q_rope": repeated((batch, heads, n, rope)),
        "c_kv": repeated((batch, m, latents)),
        "k_rope": repeated((batch, m, rope)),
        "w_uk": repeated((heads, latents, nope), latents**-0.5),
        "w_uv": repeated((heads, latents, e), latents**-0.5),
    }
    what = f"MLA decode {batch}·{heads}·{m}·{latents}+{rope}"
    flops = 2.0 * batch * heads * n * m * (2 * latents + rope)
    prepare = partial(engine, "mla", arrays, bench.device, more={"form": "absorbed"})
    bench.add(what, "absorbed (ours)", prepare, flops, 2.0 * batch * m * (latents + rope))


def report(bench: Bench, copy: float | None, product: float | None) -> None:
    """The table; without figures in a rehearsal, where they would mean nothing."""
    print(f"{'':<36} {'':<22} {'ms':>9} {'TFLOP/s':>9} {'of mm':>6} {'GB/s':>7} {'of copy':>8}")
    for row in bench.rows:
        if row.seconds is None:
            print(f"{row.what:<36} {row.who:<22} {row.note}")
        elif bench.device != "cuda":
            print(f"{row.what:<36} {row.who:<22} ran")
        else:
            rate, speed = row.flops / row.seconds, row.bytes / row.seconds
            figures = f"{rate / 1e12:9.1f} {rate / product:6.0%}" if rate and product else " " * 16
            figures += f" {speed / 1e9:7.0f} {speed / copy:8.0%}" if speed and copy else ""
            print(f"{row.what:<36} {row.who:<22} {1e3 * row.seconds:9.3f} {figures}")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rehearse", action="store_true")
    rehearse = parser.parse_args().rehearse
    if rehearse:
        os.environ["TRITON_INTERPRET"] = "1"
    import torch
    import triton

    if not torch.cuda.is_available() and not rehearse:
        print("no GPU here: nothing was measured")
        return 0
    bench, checks, scale = Bench("cpu" if rehearse else "cuda"), dict[str, bool](), 256 if rehearse else 1
    copy, product = ceilings(bench, scale)
    for shape in FORWARD[:2]:
        forward(bench, shrunk(shape, scale), checks)
    for shape in DECODE:
        decode(bench, shrunk(shape, scale), copy, checks)
    latent(bench, scale)
    backward(bench, shrunk(FORWARD[1], scale))
    for shape in FORWARD[2:]:
        forward(bench, shrunk(shape, scale), checks)
    name = torch.cuda.get_device_name() if not rehearse else "a rehearsal on the CPU"
    print(f"\n{name}; torch {torch.__version__}, CUDA {torch.version.cuda}, triton {triton.__version__}")
    print(f"medians of {ITERS} calls, {time.monotonic() - bench.started:.0f} s in all\n")
    report(bench, copy, product)
    for text, holds in checks.items():
        print(f"{'ok  ' if holds else 'FAIL'} {text}")
    return 0 if all(checks.values()) else 1


def shrunk(shape: tuple[int, ...], scale: int) -> tuple[int, ...]:
    """The shape, or one of the same kind that the interpreter can do."""
    if scale == 1:
        return shape
    _, heads, kv_heads, n, m, _ = shape
    return (1, heads // kv_heads * 2, 2, max(1, n // scale), max(1, m // scale), 16)


if __name__ == "__main__":
    sys.exit(main())
