"""The shape of an answer: what it should be, what means the same, and what is right but for it."""

from __future__ import annotations

import numpy as np

from kernels.arrays import Array
from kernels.grading.case import answer_shape
from kernels.grading.fits import Finding
from kernels.layout import from_canonical
from kernels.spec.model import RunSpec
from kernels.spec.results import GRADIENTS

NEARLY = 1e-2  # how far numbers of another shape may be off, beside the largest


def sent_shape(name: str, run: RunSpec, spec: RunSpec) -> tuple[int, ...]:
    """The shape that an answer should have: the rank of the inputs, packed where they are."""
    shape = answer_shape(spec, name)
    canonical = np.broadcast_to(np.float32(0), shape)
    if name in GRADIENTS and run.is_packed:
        return tuple(run.inputs[GRADIENTS[name]].shape)
    if run.is_paged and name in ("dk", "dv"):
        return shape
    return tuple(from_canonical(run, name, canonical).shape)


def fitted(array: Array, name: str, run: RunSpec, spec: RunSpec) -> Array | None:
    """An answer as [batch, heads, …], None where its shape is another; axes of 1 in front do not matter."""
    shape = answer_shape(spec, name)
    if _bare(array.shape) == _bare(shape):
        return array.reshape(shape)
    if run.is_packed and name in ("out", *GRADIENTS) and array.shape == sent_shape(name, run, spec):
        batch, heads, length, width = shape
        return array.reshape(batch, length, heads, width).transpose(0, 2, 1, 3)
    return None


def _bare(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Without axes of 1 in front."""
    first = next((axis for axis, length in enumerate(shape) if length != 1), len(shape))
    return shape[first:]


def misshapen(array: Array, right: Array, name: str) -> list[Finding]:
    """What an answer of another shape is, if it has the right numbers."""
    if array.dtype == np.bool_ or array.size != right.size or not array.size:
        return []
    forms = [("transposed", "the last two axes are swapped", np.swapaxes(right, -1, -2))]
    if right.ndim == 4:
        forms.append(("heads_merged_wrong", "heads and length are swapped", np.swapaxes(right, 1, 2)))
    for code, says, form in forms:
        if _bare(form.shape) != _bare(array.shape) or name == "lse":
            continue
        with np.errstate(invalid="ignore", over="ignore"):
            error = np.where(array.reshape(form.shape) == form, 0.0, np.abs(array.reshape(form.shape) - form))
        largest = float(np.abs(right[np.isfinite(right)]).max(initial=0.0)) or 1.0
        residual = float(error.max()) / largest
        if residual < NEARLY:
            return [Finding(code, code, says, residual, (name,))]
    return []


def is_reshaped(array: Array, right: Array) -> bool:
    """Whether an answer has the right numbers in one of the orders that programs have: heads before length,
    or packed, [batch, len, heads·dim]."""
    if array.dtype == np.bool_ or array.size != right.size or not array.size:
        return False
    orders = [right] if right.ndim < 4 else [right, np.swapaxes(right, 1, 2)]
    size = float(np.abs(right[np.isfinite(right)]).max(initial=0.0)) or 1.0
    with np.errstate(invalid="ignore", over="ignore"):
        return any(
            bool((np.nan_to_num(np.abs(array.ravel() - order.ravel()), nan=np.inf) < NEARLY * size).all())
            for order in orders
        )


def as_mask(array: Array, spec: RunSpec) -> Array | tuple[str, str]:
    """Booleans [batch, heads, n, m], from fewer axes and from 0 and 1 too; else the reason and a sentence."""
    shape = answer_shape(spec, "mask")
    if array.dtype != np.bool_:
        if not bool(np.isin(array, (0, 1)).all()):
            sentence = "mask holds other numbers than 0 and 1; true means that a key may be seen."
            return ("dtype_mismatch", sentence)
        array = array.astype(np.bool_)
    if 2 <= array.ndim <= 4 and array.shape[-2:] == shape[-2:]:
        apart = zip(reversed(array.shape), reversed(shape), strict=False)
        if all(have in (1, want) for have, want in apart):
            return np.broadcast_to(array, shape)
    sentence = f"mask has shape {list(array.shape)}; it should have shape {list(shape)}."
    return ("shape_mismatch", sentence)
