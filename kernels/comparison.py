"""Beside exact attention: how far what computes something else, or leaves pairs out, is from softmax."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from kernels.arrays import Array
from kernels.engines.reference import attend, reference
from kernels.numerics import errors
from kernels.recurrent import is_causal
from kernels.spec.model import RunSpec


def compare_with_softmax(
    spec: RunSpec, arrays: Mapping[str, Array], out: Array, checkpoint: Callable[[], None]
) -> dict[str, Any] | None:
    """The ``comparison`` of a run: errors of ``out`` [b, h, n, e] against softmax attention in float64, on
    the same q, k and v, or what stands for them, with the same scale and causality.

    None where a state came from before: nobody knows of which keys.
    """
    if "initial_state" in spec.inputs:
        return None
    return distance("softmax", out, softmax_out(spec, arrays, checkpoint))


def compare_with_dense(
    spec: RunSpec, arrays: Mapping[str, Array], out: Array, checkpoint: Callable[[], None]
) -> dict[str, Any] | None:
    """The ``comparison`` of softmax attention with a pattern or a window: errors of ``out`` against the same
    attention, in float64, without either. None where there is neither."""
    if not spec.attention.is_sparse:
        return None
    attention = replace(spec.attention, pattern=None, window=(None, None))
    dense = replace(spec, attention=attention, returns=("out",))
    exact = reference(dense, arrays, ("out",), checkpoint)
    return distance("softmax without pattern and window", out, exact["out"])


def distance(what: str, out: Array, exact: Array) -> dict[str, Any]:
    """Errors of ``out`` against ``exact``, and ``rel_err``: ‖out − exact‖ / ‖exact‖, Frobenius."""
    found = errors(out, exact)
    size = float(np.linalg.norm(exact))
    with np.errstate(invalid="ignore", over="ignore"):
        apart = float(np.linalg.norm(out.astype(np.float64) - exact))
    relative = apart / size if size else 0.0 if apart == 0.0 else np.inf
    return {
        "with": what,
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
