"""Beside exact attention: how far what computes something else, or leaves pairs out, is from softmax."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from kernels.arrays import Array, largest_norm
from kernels.engines.reference import reference
from kernels.numerics import errors
from kernels.registry import is_causal
from kernels.spec.families import PLAIN
from kernels.spec.model import RunSpec


def compare_with_softmax(
    spec: RunSpec, arrays: Mapping[str, Array], out: Array, checkpoint: Callable[[], None]
) -> dict[str, Any] | None:
    """The ``comparison`` of a run: errors of ``out`` [b, h, n, e] against softmax attention in float64, on
    the same q, k and v, or what stands for them, with the same scale, causality, masks and positions.

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
    with np.errstate(invalid="ignore", over="ignore"):
        apart, size = (largest_norm(x.reshape(1, -1)) for x in (out.astype(np.float64) - exact, exact))
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
    softmax = replace(spec, attention=replace(spec.attention, is_causal=is_causal(spec)))
    if spec.family is not PLAIN:
        arrays = {**arrays, **{name: _for_all_heads(spec, arrays, name) for name in "qkv"}}
    return reference(softmax, arrays, ("out",), checkpoint)["out"]


def _for_all_heads(spec: RunSpec, arrays: Mapping[str, Array], name: str) -> Array:
    """What stands for q, k or v, one for each head: of a scan, values are not shared where keys are."""
    given = arrays[spec.family.decides[name]]
    return np.repeat(given, spec.num_heads // given.shape[1], axis=1) if given.shape[1] else given
