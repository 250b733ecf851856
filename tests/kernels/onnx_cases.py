"""ONNX's own conformance cases for its Attention operator (opsets 23 to 25), as requests of ours.

``onnx.backend.test.case.node`` generates them with ONNX's reference evaluator: an outside opinion on masks,
causality, windows, softcaps, pasts, padded caches and fully masked rows. The ``_expanded`` twins test the
same numbers as graphs of primitive operators and are left out.
"""

from __future__ import annotations

import functools
import importlib
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

# What qk_matmul_output_mode says the fourth output is.
MODES = {0: "scores", 1: "softcapped_scores", 2: "masked_scores", 3: "weights"}
INPUTS = ("q", "k", "v", "attn_mask", "past_key", "past_value", "kv_lens")
OUTPUTS = ("out", "present_key", "present_value", "matrix")
ROUNDOFF = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
UNBOUNDED = -1


@dataclass(frozen=True)
class OnnxCase:
    """One case: a request without an engine, what it uploads, and what ONNX says comes out."""

    name: str
    dtype: str
    body: dict[str, Any]
    uploads: dict[str, np.ndarray]
    expected: dict[str, np.ndarray]


@functools.cache
def onnx_cases() -> dict[str, OnnxCase]:
    """{name without ``test_attention_``: case}."""
    translated = map(_translate, generated("test_attention_"))
    return {case.name: case for case in translated}


def generated(prefix: str) -> list[Any]:
    """ONNX's cases of such names."""
    return [case for case in _all() if case.name.startswith(prefix) and not case.name.endswith("_expanded")]


@functools.cache
def _all() -> list[Any]:
    """Those of these two operators: the others' (pooling in plain Python) take seconds of each process."""
    from onnx.backend.test.case import node

    with warnings.catch_warnings():  # its generators divide by zero on purpose
        warnings.simplefilter("ignore")
        for operator in ("attention", "linear_attention"):
            importlib.import_module(f"{node.__name__}.{operator}")
    return list(node._NodeTestCases)


def _translate(case: Any) -> OnnxCase:
    (node,), (arrays, results) = case.model.graph.node, case.data_sets[0]
    attributes = {a.name: a.f if a.type == a.FLOAT else a.i for a in node.attribute}
    named = [name for name, wire in zip(INPUTS, node.input, strict=False) if wire]
    dtype = str(arrays[0].dtype)
    uploads = {
        name: array if array.dtype == np.bool_ else array.astype(np.float32)
        for name, array in zip(named, arrays, strict=True)
        if name != "kv_lens"
    }
    inputs: dict[str, Any] = {name: {"upload": "test", "name": name} for name in uploads}
    if "kv_lens" in named:
        inputs["kv_lens"] = arrays[named.index("kv_lens")].tolist()
    if "attn_mask" in uploads:
        past = uploads["past_key"].shape[2] if "past_key" in uploads else 0
        uploads["attn_mask"] = _padded(uploads["attn_mask"], past + uploads["k"].shape[-2])
    outputs = [name for name, wire in zip(OUTPUTS, node.output, strict=False) if wire]
    expected = dict(zip(outputs, (result.astype(np.float64) for result in results), strict=True))
    if "matrix" in expected:
        expected[MODES[attributes.get("qk_matmul_output_mode", 0)]] = expected.pop("matrix")
    body = {"dtype": dtype, "inputs": inputs, "attention": _attention(attributes, uploads, named)}
    return OnnxCase(
        case.name.removeprefix("test_attention_"),
        dtype,
        {**body, "return": list(expected)},
        uploads,
        expected,
    )


def _attention(
    attributes: dict[str, Any], uploads: dict[str, np.ndarray], named: list[str]
) -> dict[str, Any]:
    window = [attributes.get(f"{side}_window_size", UNBOUNDED) for side in ("left", "right")]
    found: dict[str, Any] = {
        "is_causal": bool(attributes.get("is_causal", 0)),
        "scale": attributes.get("scale"),
        "softcap": attributes.get("softcap", 0.0),
        "window": [None if side == UNBOUNDED else side for side in window],
    }
    if "kv_lens" not in named:
        # Query 0 stands behind the past. With an external cache the last query stands at its last key, which
        # is the default.
        found["q_positions"] = uploads["past_key"].shape[2] if "past_key" in uploads else 0
    if "q_num_heads" in attributes:
        found |= {"num_heads": attributes["q_num_heads"], "num_kv_heads": attributes["kv_num_heads"]}
    return found


def _padded(mask: np.ndarray, kv_len: int) -> np.ndarray:
    """A mask shorter than the keys forbids the rest."""
    width = [(0, 0)] * (mask.ndim - 1) + [(0, max(kv_len - mask.shape[-1], 0) if mask.shape[-1] != 1 else 0)]
    return np.pad(mask, width, constant_values=False if mask.dtype == np.bool_ else -np.inf)
