"""Shared by the kernel tests: specs in one line, specs that nobody thought of, and inputs that hide no bug
(peaked as well as flat, NaN wherever nothing may be read)."""

from __future__ import annotations

import importlib
from collections.abc import Collection
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from kernels.engines.eager import allowed_and_bias, attend
from kernels.engines.tensors import TORCH_DTYPES, as_inputs, to_numpy, to_tensor
from kernels.execute import materialise
from kernels.layout import to_canonical
from kernels.operands import operands, without_padding, zero_beyond
from kernels.registry import ENGINES, FEATURES
from kernels.spec import RunSpec, parse_run
from kernels.spec.results import GRADIENTS

Arrays = dict[str, np.ndarray]


def make(
    engine: str,
    shape: tuple[int, int, int, int, int, int],
    *,
    v_dim: int | None = None,
    seed: int = 0,
    distribution: str = "normal",
    inputs: dict[str, Any] | None = None,
    **fields: Any,
) -> tuple[RunSpec, Arrays]:
    """(spec, canonical rounded arrays) for (batch, heads, kv_heads, q_len, kv_len, dim)."""
    batch, heads, kv_heads, q_len, kv_len, dim = shape

    def seeded(*axes: int) -> dict[str, Any]:
        return {"seed": seed, "shape": list(axes), "distribution": distribution}

    body = {
        "engine": engine,
        "inputs": {
            "q": seeded(batch, heads, q_len, dim),
            "k": seeded(batch, kv_heads, kv_len, dim),
            "v": seeded(batch, kv_heads, kv_len, dim if v_dim is None else v_dim),
        }
        | (inputs or {}),
        **fields,
    }
    return canonical(body)


def canonical(body: dict[str, Any], uploads: Arrays | None = None) -> tuple[RunSpec, Arrays]:
    """(spec, canonical rounded arrays) of a request; ``{"upload": "test", "name": n}`` is ``uploads[n]``."""
    parsed = parse_run(body, load_upload=lambda _, name: (uploads or {})[name])
    made = materialise(parsed.spec, parsed.arrays)
    return parsed.spec, {name: to_canonical(parsed.spec, name, array) for name, array in made.items()}


def compute(spec: RunSpec, arrays: Arrays) -> Arrays:
    """Run the spec's engine once on canonical arrays."""
    prepared = importlib.import_module(ENGINES[spec.engine].module).prepare(spec, arrays, "cpu")
    return prepared.collect(prepared.compute())


def torch_in_low_precision(spec: RunSpec, arrays: Arrays) -> Arrays:
    """The yardstick of flash-attention's tests: torch, operation by operation, every intermediate rounded to
    the dtype of the spec. A kernel's error should be at most twice the error of this."""
    given = without_padding(operands(spec, arrays, dtype=np.float64))
    dtype = TORCH_DTYPES[spec.dtype]
    leaves = [to_tensor(x, "cpu", spec.dtype).requires_grad_() for x in (given.q, given.k, given.v)]
    allowed, bias = allowed_and_bias(given, "cpu", dtype)
    sinks = None if given.sinks is None else to_tensor(given.sinks, "cpu").to(dtype)[:, None, None]
    found = attend(*leaves, scale=given.scale, softcap=given.softcap, allowed=allowed, bias=bias, sinks=sinks)
    if "dout" in arrays:
        dout = to_tensor(zero_beyond(arrays["dout"], given.q_lens), "cpu", spec.dtype)
        found |= dict(zip(GRADIENTS, torch.autograd.grad(found["out"], leaves, dout), strict=True))
    return as_inputs(spec, arrays, given, to_numpy({name: x.detach() for name, x in found.items()}))


# -- specs that nobody thought of ----------------------------------------------------------------------------


class Case:
    """A request without an engine, and the arrays it uploads. (No dataclass: a failure would print them.)"""

    def __init__(self, body: dict[str, Any], uploads: Arrays) -> None:
        self.body, self.uploads = body, uploads

    def __repr__(self) -> str:
        shapes = {name: array.shape for name, array in self.uploads.items()}
        lengths = {name: x for name, x in self.body["inputs"].items() if name.endswith("lens")}
        return f"Case({self.body['attention']}, {shapes}, {lengths})"

    def on(self, engine: str, **fields: Any) -> tuple[RunSpec, Arrays]:
        """(spec, canonical rounded arrays)."""
        return canonical({**self.body, "engine": engine, **fields}, self.uploads)


SIZES = st.sampled_from([0, 1, 2, 3, 5, 8, 17])
ROPE_SCALINGS: tuple[dict[str, Any] | None, ...] = (
    None,
    {"type": "linear", "factor": 3.0},
    {"type": "ntk", "factor": 4.0},
    {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
    {"type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 8},
)


@st.composite
def cases(
    draw: st.DrawFn,
    engine: str = "reference",
    *,
    gradients: bool = False,
    extreme: bool = False,
    q_lens: st.SearchStrategy[int] = SIZES,
    kv_lens: st.SearchStrategy[int] = SIZES,
    without: Collection[str] = (),
) -> Case:
    """Everything that ``engine`` declares, in any combination, ``without`` some features; ``extreme``: large
    and tiny numbers too.

    With ``gradients`` a dout comes along. What lies beyond the lengths, and pages that no row names, is NaN.
    """
    able = ENGINES[engine].features - set(without)
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    uses = {name: name in able and draw(st.integers(0, 2)) == 2 for name in FEATURES}
    batch, kv_heads = draw(st.sampled_from([1, 1, 2, 3])), draw(st.sampled_from([1, 2]))
    heads = kv_heads * (draw(st.sampled_from([1, 2, 3])) if uses["gqa"] else 1)
    n, m = draw(q_lens), draw(kv_lens)
    d = draw(st.sampled_from([2, 4, 6, 10, 16]))
    e = draw(st.sampled_from([1, 3, 8])) if uses["v_head_dim"] else d
    spread = draw(st.sampled_from([1.0, 3.0, 1e-3, 1e4, 1e15] if extreme else [1.0, 3.0]))
    normal = lambda *shape: (rng.standard_normal(shape) * spread).astype(np.float32)  # noqa: E731

    storage = "paged" if uses["paged"] else "past" if uses["past"] else "plain"
    up = {"q": normal(batch, heads, n, d)}
    if storage == "paged":
        page = draw(st.sampled_from([1, 2, 3, 8]))
        blocks = -(-m // page)
        m = blocks * page
        up |= {
            "k": normal(batch * blocks + 1, page, kv_heads, d),
            "v": normal(batch * blocks + 1, page, kv_heads, e),
        }
        up["block_table"] = rng.integers(0, batch * blocks + 1, (batch, blocks))
    else:
        past = min(draw(kv_lens), m) if storage == "past" else 0
        up |= {"k": normal(batch, kv_heads, m - past, d), "v": normal(batch, kv_heads, m - past, e)}
        if storage == "past":
            up |= {
                "past_key": normal(batch, kv_heads, past, d),
                "past_value": normal(batch, kv_heads, past, e),
            }
    if gradients:
        up["dout"] = normal(batch, heads, n, e)
    inputs: dict[str, Any] = {}
    if uses["ragged"]:
        inputs |= {
            "q_lens": rng.integers(0, n + 1, batch).tolist(),
            "kv_lens": rng.integers(0, m + 1, batch).tolist(),
        }
        _poison(up, inputs, page if storage == "paged" else 0)
    if uses["attn_mask"]:
        up["attn_mask"] = _mask(draw, rng, (batch, heads, n, m))
    attention = _attention(draw, rng, uses, (batch, heads, n, m, d), extreme)
    if uses["packed"]:
        attention |= {"num_heads": heads} | ({} if storage == "paged" else {"num_kv_heads": kv_heads})
        for name in ("q", "dout") if storage == "paged" else ("q", "k", "v", "dout"):
            if name in up:
                width = up[name].shape[1] * up[name].shape[3]
                up[name] = up[name].transpose(0, 2, 1, 3).reshape(batch, up[name].shape[2], width)
    inputs |= {name: {"upload": "test", "name": name} for name in up}
    return Case({"inputs": inputs, "attention": attention}, up)


def _poison(up: Arrays, inputs: dict[str, Any], page: int) -> None:
    """NaN beyond the lengths; −1 in the table there."""
    for b, (q_len, kv_len) in enumerate(zip(inputs["q_lens"], inputs["kv_lens"], strict=True)):
        for name in {"q", "dout"} & up.keys():
            up[name][b, :, q_len:] = np.nan
        if page:
            up["block_table"][b, -(-kv_len // page) :] = -1
            continue
        past = up["past_key"].shape[2] if "past_key" in up else 0
        for name in {"past_key", "past_value"} & up.keys():
            up[name][b, :, kv_len:] = np.nan
        for name in ("k", "v"):
            up[name][b, :, max(kv_len - past, 0) :] = np.nan
    if page:
        read = np.zeros(up["k"].shape[:2], dtype=bool)
        for row, kv_len in zip(up["block_table"], inputs["kv_lens"], strict=True):
            for token in range(kv_len):
                read[row[token // page], token % page] = True
        up["k"][~read], up["v"][~read] = np.nan, np.nan


def _mask(draw: st.DrawFn, rng: np.random.Generator, full: tuple[int, int, int, int]) -> np.ndarray:
    """Boolean or float, of any rank that broadcasts."""
    shape = [size if draw(st.booleans()) else 1 for size in full][4 - draw(st.integers(1, 4)) :]
    allowed = rng.random(shape) < draw(st.sampled_from([0.9, 0.5, 0.1]))
    if draw(st.booleans()):
        return allowed
    forbidden = draw(st.sampled_from([-np.inf, -np.inf, -1e9, np.finfo(np.float32).min]))
    return np.where(allowed, rng.standard_normal(shape), forbidden).astype(np.float32)


def _attention(
    draw: st.DrawFn, rng: np.random.Generator, uses: dict[str, bool], sizes: tuple[int, ...], extreme: bool
) -> dict[str, Any]:
    batch, heads, n, m, d = sizes
    found: dict[str, Any] = {"causal_alignment": draw(st.sampled_from(["bottom_right", "top_left"]))}
    if uses["scale"]:
        found["scale"] = draw(
            st.sampled_from([0.3, -0.5, 0.0, 2.0, *([1e-30, -1e20, 1e-42] if extreme else [])])
        )
    if uses["causal"]:
        found["is_causal"] = True
    if uses["window"]:
        side = st.none() | st.integers(0, 6)
        found["window"] = [draw(side), draw(side)]
    if uses["softcap"]:
        found["softcap"] = draw(st.sampled_from([0.5, 2.0, 30.0, *([1e-30, 1e30] if extreme else [])]))
    if uses["alibi"]:
        slopes = rng.standard_normal((batch, heads)) * draw(
            st.sampled_from([0.3, *([1e30] if extreme else [])])
        )
        found["alibi_slopes"] = draw(st.sampled_from(["auto", slopes.tolist(), slopes[0].tolist()]))
    if uses["sinks"]:
        found["sinks"] = [draw(st.sampled_from(["-inf", 0.0, 3.0, -2.0])) for _ in range(heads)]
    if uses["position_offset"]:
        found |= {"q_positions": draw(st.integers(-3, m + 3)), "kv_positions": draw(st.integers(-3, 3))}
    elif uses["positions"]:
        found |= {
            "q_positions": rng.integers(-2, m + 3, (batch, n)).tolist() if n else [],
            "kv_positions": np.cumsum(rng.integers(0, 3, m)).tolist(),
        }
    if uses["pattern"]:
        found["pattern"] = draw(
            st.sampled_from(
                [
                    {"type": "chunked", "size": 3},
                    {"type": "prefix", "len": min(2, m)},
                    {"type": "dilated", "window": 2, "stride": 2},
                ]
            )
        )
    if uses["rope"]:
        dim = draw(st.sampled_from([None, 2, d]))
        found["rope"] = {
            "style": draw(st.sampled_from(["interleaved", "half"])),
            "theta": 100.0,
            "dim": dim,
            "dim_offset": 0 if dim != 2 else draw(st.sampled_from([0, d - 2])),
            "positions": draw(st.sampled_from([None, None, 5])),
            "scaling": draw(st.sampled_from(ROPE_SCALINGS)) if (dim or d) > 2 else None,
        }
    return found
