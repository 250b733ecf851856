"""Shared by the kernel tests: specs in one line, and inputs that hide no bug (peaked, never flat)."""

from typing import Any

import numpy as np

from kernels.execute import materialise
from kernels.layout import to_canonical
from kernels.registry import ENGINES
from kernels.spec import RunSpec, parse_run


def make(
    engine: str,
    shape: tuple[int, int, int, int, int, int],
    *,
    v_dim: int | None = None,
    seed: int = 0,
    distribution: str = "normal",
    inputs: dict[str, Any] | None = None,
    **fields: Any,
) -> tuple[RunSpec, dict[str, np.ndarray]]:
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
    parsed = parse_run(body)
    made = materialise(parsed.spec, parsed.arrays)
    return parsed.spec, {name: to_canonical(parsed.spec, name, array) for name, array in made.items()}


def compute(spec: RunSpec, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Run the spec's engine once on canonical arrays."""
    import importlib

    prepared = importlib.import_module(ENGINES[spec.engine].module).prepare(spec, arrays, "cpu")
    return prepared.collect(prepared.compute())
