"""Engine ``cache``: a text read token by token through a cache that forgets, in float64 (numpy).

At each step the key and the value of a token come in, a policy evicts, and the query looks at what is held,
beside a full cache in which nothing is lost (``kernels.cache_policies``, with the papers).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from kernels.arrays import Array
from kernels.cache_policies.pricing import positions_of, storage_of
from kernels.cache_policies.rules import policy_of
from kernels.cache_policies.stream import Streamed, stream
from kernels.engines import Checkpoint, Prepared
from kernels.engines.figures import largest, mean
from kernels.spec.model import RunSpec


def prepare(spec: RunSpec, arrays: Mapping[str, Array], device: str) -> Prepared:
    """The policy, and q, k and v in float64."""
    del device  # numpy computes on the host
    q, k, v = (arrays[name].astype(np.float64) for name in "qkv")
    policy = policy_of(spec)

    def compute() -> Mapping[str, Any]:
        with np.errstate(over="ignore", invalid="ignore"):  # logits of huge numbers
            found = stream(
                q, k, v, policy, storage_of(spec), scale=spec.scale, rope=spec.attention.rope,
                positions=positions_of(spec, policy), keep_weights="weights" in spec.returns,
            )  # fmt: skip
        return {"streamed": found}

    def findings(raw: Mapping[str, Any], checkpoint: Checkpoint) -> dict[str, Any]:
        return _findings(raw["streamed"], policy.budget)

    return Prepared(compute, _results, findings=findings)


def _results(raw: Mapping[str, Any]) -> dict[str, Array]:
    found: Streamed = raw["streamed"]
    results = {"out": found.out, "held": found.held, "kept_weight": found.weight, "row_error": found.error}
    return results if found.weights is None else {**results, "weights": found.weights}


def _findings(found: Streamed, budget: int | None) -> dict[str, Any]:
    return {
        "budget": budget,
        "tokens_held": int(found.held[0, 0, -1].sum()) if found.held.size else 0,
        "cache_bytes": int(found.bytes.max(initial=0)),
        "full_cache_bytes": int(found.full_bytes.max(initial=0)),
        "mean_row_error": mean(found.error),
        "worst_row_error": largest(found.error),
        "mean_kept_weight": mean(found.weight),
    }
