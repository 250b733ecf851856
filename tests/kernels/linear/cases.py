"""Recurrences of every kind, from a seed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from kernels.arrays import generate, round_to_dtype
from kernels.linear.inputs import Recurrence, State

# name: what makes the recurrence one of its kind; decay "one" or "row", beta and the rest as in Recurrence
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "elu": {"features": "elu", "normalised": True},
    "elu, not causal": {"features": "elu", "normalised": True, "causal": False},
    "decay": {"decay": "one"},
    "elu, decay": {"features": "elu", "normalised": True, "decay": "one"},
    "delta": {"beta": True},
    "gated delta": {"decay": "one", "beta": True},
    "decay by row": {"decay": "row"},
    "gated delta by row": {"decay": "row", "beta": True},
}
TENSORS = ("q", "k", "v", "log_decay", "beta")
ROUNDED = ("q", "k", "v")


def recurrence(
    seed: int = 0,
    *,
    batch: int = 2,
    heads: tuple[int, int, int] = (2, 2, 2),
    n: int = 9,
    d: int = 5,
    e: int = 4,
    decay: str | None = None,
    beta: bool = False,
    dtype: str = "float32",
    **fields: Any,
) -> Recurrence:
    """Heads of q, of k, and of v with decays and rates. Inputs are of ``dtype``, in float64 arrays. Keys of
    the delta rule have length 1, as those of its models."""

    def made(name: str, heads: int, width: int) -> np.ndarray:
        return generate(f"linear/{name}", seed, (batch, heads, n, width), "normal", "float64")

    k = made("k", heads[1], d)
    given: dict[str, Any] = {"q": made("q", heads[0], d), "k": k, "v": made("v", heads[2], e), **fields}
    if beta:
        given["beta"] = 1 / (1 + np.exp(-made("beta", heads[2], 1)))
        given["k"] = k / np.linalg.norm(k, axis=-1, keepdims=True)
    if decay:
        # Slow enough for tokens to be seen from some chunks later.
        given["log_decay"] = -np.abs(made("decay", heads[2], d if decay == "row" else 1)) / 16
    rounded = {
        name: round_to_dtype(given[name], dtype if name in ROUNDED else "float32").astype(np.float64)
        for name in TENSORS
        if name in given
    }
    return Recurrence(**{**given, **rounded})


def some_state(given: Recurrence, seed: int = 0) -> State:
    """One that tokens could have left behind."""
    sizes = given.sizes
    shape = (sizes.batch, sizes.state_heads, sizes.d, sizes.e)
    s = generate("linear/s", seed, shape, "normal", "float32").astype(np.float64)
    z = np.abs(generate("linear/z", seed, shape[:3], "normal", "float32")).astype(np.float64)
    return State(s, z if given.normalised else None)


def on_device(given: Recurrence, dtype: torch.dtype = torch.float32) -> Recurrence:
    """As tensors: q, k and v of ``dtype``, decays and rates float32."""
    arrays = {name: getattr(given, name) for name in TENSORS}
    tensors = {
        name: torch.from_numpy(array).to(dtype if name in ROUNDED else torch.float32)
        for name, array in arrays.items()
        if array is not None
    }
    return replace(given, **tensors)


def state_on_device(state: State) -> State:
    return State(*(None if x is None else torch.from_numpy(x).float() for x in state))
