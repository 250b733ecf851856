"""Beside exact attention: how far an engine that computes something else is from softmax."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from kernels.arrays import Array
from kernels.engines.reference import attend
from kernels.numerics import errors
from kernels.recurrent import is_causal
from kernels.spec.model import RunSpec


def compare_with_softmax(
    spec: RunSpec, arrays: Mapping[str, Array], out: Array, checkpoint: Callable[[], None]
) -> dict[str, Any] | None:
    """The ``comparison`` of a run: errors of ``out`` [b, h, n, e] against softmax attention in float64, on
    the same q, k and v, or what stands for them, with the same scale and causality.

    ``rel_err`` is ‖out − exact‖ / ‖exact‖, Frobenius. None where a state came from before: nobody knows of
    which keys.
    """
    if "initial_state" in spec.inputs:
        return None
    exact = softmax_out(spec, arrays, checkpoint)
    found = errors(out, exact)
    size = float(np.linalg.norm(exact))
    with np.errstate(invalid="ignore", over="ignore"):
        distance = float(np.linalg.norm(out.astype(np.float64) - exact))
    relative = distance / size if size else 0.0 if distance == 0.0 else np.inf
    return {
        "with": "softmax",
        "max_abs_err": found["max_abs_err"],
        "max_rel_err": found["max_rel_err"],
        "rmse": found["rmse"],
        "rel_err": relative if np.isfinite(relative) else "inf",
    }


def softmax_out(spec: RunSpec, arrays: Mapping[str, Array], checkpoint: Callable[[], None]) -> Array:
    """[b, h, n, e] float64; ``checkpoint`` is called between heads."""
    q, k, v = (arrays[name].astype(np.float64) for name in map(spec.family.decides.__getitem__, "qkv"))
    heads = spec.num_heads
    out = np.zeros((spec.batch, heads, spec.q_len, spec.v_head_dim))
    allowed = np.tri(spec.q_len, spec.kv_len, dtype=bool) if is_causal(spec) else True
    for b, h in np.ndindex(out.shape[:2]):
        checkpoint()
        one = (x[b, h * x.shape[1] // heads] for x in (q, k, v))
        out[b, h] = attend(*one, scale=spec.scale, allowed=allowed)["out"]
    return out
