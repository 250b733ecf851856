"""What the tests of engines that compute in float64 share: requests, their numbers, runs, and refusals."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch

from kernels.arrays import generate
from kernels.estimate import estimate
from kernels.execute import Outcome, execute
from kernels.registry import ENGINES
from kernels.spec import RunSpec, SpecError, parse_run
from kernels.spec.results import RESULTS

Body = dict[str, Any]


def seeded(*shape: int, distribution: str = "normal", seed: int = 5) -> Body:
    return {"seed": seed, "shape": list(shape), "distribution": distribution}


def request(
    engine: str,
    *,
    batch: int = 2,
    heads: int = 4,
    kv_heads: int = 2,
    q_len: int = 21,
    kv_len: int | None = None,
    dim: int = 6,
    v_dim: int = 5,
    distribution: str = "normal",
    inputs: Body | None = None,
    **fields: Any,
) -> Body:
    kv_len = q_len if kv_len is None else kv_len
    given = {
        "q": seeded(batch, heads, q_len, dim, distribution=distribution),
        "k": seeded(batch, kv_heads, kv_len, dim, distribution=distribution),
        "v": seeded(batch, kv_heads, kv_len, v_dim),
    }
    timing = {"warmup": 0, "iters": 1}
    return {"engine": engine, "inputs": given | (inputs or {}), "timing": timing, **fields}


def everything(engine: str) -> list[str]:
    """Every result that needs nothing more."""
    return sorted((name for name in ENGINES[engine].returns if "dscores" not in name), key=RESULTS.index)


def made(body: Body, name: str) -> np.ndarray:
    """The numbers of an input, as the run has them, in float64."""
    given, dtype = body["inputs"][name], body.get("dtype", "float32")
    if isinstance(given, dict):
        return generate(
            name, given["seed"], tuple(given["shape"]), given["distribution"], dtype
        ).astype(np.float64)  # fmt: skip
    return np.array(given, np.float64)


def for_heads(x: np.ndarray, heads: int) -> np.ndarray:
    return np.repeat(x, heads // x.shape[1], axis=1)


def run(body: Body) -> Outcome:
    """Its result: in float64, of the declared shapes and findings, all of which JSON can say; within what was
    foreseen."""
    parsed = parse_run(json.loads(json.dumps(body)))
    assert RunSpec.from_dict(json.loads(json.dumps(parsed.spec.to_dict()))) == parsed.spec
    again = parse_run({**json.loads(json.dumps(body)), "options": parsed.spec.to_dict()["options"]})
    assert again.spec == parsed.spec  # what a run says of itself can be sent again
    outcome = execute(parsed.spec, parsed.arrays)
    assert outcome.findings.keys() <= ENGINES[body["engine"]].findings.keys()
    for part in ("findings", "numerics", "comparison", "traffic", "cost"):
        json.dumps(getattr(outcome, part), allow_nan=False)
    assert outcome.memory["peak_bytes"] <= outcome.memory["predicted_bytes"]
    assert outcome.memory["predicted_bytes"] <= estimate(parsed.spec).predicted_bytes
    return outcome


def refusals(body: Body) -> dict[str, tuple[int, str]]:
    """Pointer → (status, detail)."""
    with pytest.raises(SpecError) as caught:
        parse_run(body)
    return {problem.pointer: (problem.status, problem.detail) for problem in caught.value.problems}


def sdpa(body: Body, mask: np.ndarray | None = None, *, is_causal: bool = False) -> np.ndarray:
    """Exact attention by torch, in float64."""
    q, k, v = (made(body, name) for name in "qkv")
    k, v = (for_heads(x, q.shape[1]) for x in (k, v))
    found = torch.nn.functional.scaled_dot_product_attention(
        *(torch.from_numpy(x) for x in (q, k, v)),
        attn_mask=None if mask is None else torch.from_numpy(np.array(mask)),
        is_causal=is_causal,
    )
    return found.numpy()


def assert_compared_with(outcome: Outcome, exact: np.ndarray) -> None:
    """The comparison of a run is with this output."""
    error, found = np.abs(outcome.arrays["out"] - exact), outcome.comparison
    assert found is not None
    assert found["with"] == "softmax"
    assert found["max_abs_err"] == pytest.approx(error.max(), rel=1e-9, abs=1e-12)
    assert found["rmse"] == pytest.approx(np.sqrt(np.square(error).mean()), rel=1e-9, abs=1e-12)
    wanted = np.linalg.norm(error) / np.linalg.norm(exact)
    assert found["rel_err"] == pytest.approx(wanted, rel=1e-9, abs=1e-12)
