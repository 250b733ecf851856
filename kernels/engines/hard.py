"""Engine ``hard``: one key drawn for each query instead of a weighted sum, in float64 (numpy); and what that
does to the gradient, with several baselines (``kernels.scoring.hard``, with the papers)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from kernels.arrays import Array
from kernels.engines import Checkpoint, Prepared
from kernels.engines.figures import mean
from kernels.registry import option
from kernels.scoring.attention import softmax
from kernels.scoring.hard import (
    BASELINES,
    drawn_keys,
    linear_rewards,
    output_variance,
    reinforce,
    shares,
    uniform_numbers,
)
from kernels.sparse.masks import visible
from kernels.spec.model import RunSpec
from kernels.spec.results import DRAWN


class _Head(NamedTuple):
    """One head of one batch row, softly."""

    at: tuple[int, int]
    weights: Array  # [n, m]
    v: Array  # [m, e]
    rewards: Array | None  # [n, m], where there is a dout


def prepare(spec: RunSpec, arrays: Mapping[str, Array], device: str) -> Prepared:
    """The inputs in float64, who may see whom, and the random numbers."""
    del device  # numpy computes on the host
    draws, baseline = int(option(spec, "draws")), str(option(spec, "baseline"))
    rows = (spec.batch, spec.num_heads, spec.q_len)
    uniform = uniform_numbers(draws, rows, option(spec, "draws_seed"))

    def heads() -> Iterator[_Head]:
        return _heads(spec, arrays)

    @np.errstate(over="ignore", invalid="ignore")  # logits of huge numbers
    def compute() -> Mapping[str, Any]:
        matrices = [name for name in ("weights", *DRAWN) if name in spec.returns]
        results = {name: np.zeros((*rows, spec.kv_len)) for name in matrices}
        results["out"] = np.zeros((*rows, spec.v_head_dim))
        chosen = np.zeros(uniform.shape, dtype=np.int64)
        for head in heads():
            where = (slice(None), *head.at)
            chosen[where] = drawn_keys(head.weights, uniform[where])
            known = np.isfinite(head.weights.sum(axis=1, keepdims=True))
            results["out"][head.at] = np.where(known, shares(chosen[where], spec.kv_len) @ head.v, np.nan)
            found = {"weights": head.weights}
            if head.rewards is not None and not results.keys().isdisjoint(DRAWN):
                gradient = reinforce(head.weights, head.rewards, chosen[where], baseline)
                found |= zip(DRAWN, (gradient.exact, gradient.estimate, gradient.variance), strict=True)
            for name in matrices:
                results[name][head.at] = found[name]
        return {**results, "drawn": chosen}

    def collect(raw: Mapping[str, Any]) -> dict[str, Array]:
        return {**{name: found for name, found in raw.items() if name != "drawn"}, "chosen": raw["drawn"][0]}

    def findings(raw: Mapping[str, Any], checkpoint: Checkpoint) -> dict[str, Any]:
        return _findings(heads, raw["drawn"], checkpoint, has_rewards="dout" in arrays)

    return Prepared(compute, collect, findings=findings)


def _heads(spec: RunSpec, arrays: Mapping[str, Array]) -> Iterator[_Head]:
    """Each in turn, so that matrices of one are held at once."""
    allowed = visible(spec)
    for b, h in np.ndindex(spec.batch, spec.num_heads if spec.q_len else 0):
        kv = h * spec.num_kv_heads // spec.num_heads
        q, k, v = (arrays[name][b, at].astype(np.float64) for name, at in (("q", h), ("k", kv), ("v", kv)))
        weights = softmax(spec.scale * (q @ k.T), allowed[b % len(allowed), 0])
        rewards = linear_rewards(arrays["dout"][b, h].astype(np.float64), v) if "dout" in arrays else None
        yield _Head((b, h), weights, v, rewards)


class _Sums:
    """Of one baseline, over all numbers of the gradient."""

    def __init__(self) -> None:
        self.variance = self.measured = self.squared_error = 0.0

    def described(self, draws: int) -> dict[str, Any]:
        return {
            "variance": self.variance,
            "measured_variance": self.measured if draws > 1 else None,
            "error": math.sqrt(self.squared_error),
            "standard_error": math.sqrt(self.variance / draws),
        }


@np.errstate(over="ignore", invalid="ignore")
def _findings(
    heads: Callable[[], Iterator[_Head]], drawn: Array, checkpoint: Checkpoint, *, has_rewards: bool
) -> dict[str, Any]:
    """How outputs and gradients vary, in closed form and as they did."""
    draws, closed, measured = len(drawn), [], []
    sums, squared_norm = {name: _Sums() for name in BASELINES}, 0.0
    for head in heads():
        checkpoint()
        chosen = drawn[(slice(None), *head.at)]
        closed.append(output_variance(head.weights, head.v))
        if draws > 1:
            varied = output_variance(shares(chosen, len(head.v)), head.v)
            measured.append(varied * draws / (draws - 1))
        if head.rewards is None:
            continue
        for name, sum_ in sums.items():
            found = reinforce(head.weights, head.rewards, chosen, name)
            sum_.variance += float(found.variance.sum())
            sum_.measured += float(found.measured_variance.sum())
            sum_.squared_error += float(np.square(found.estimate - found.exact).sum())
        squared_norm += float(np.square(found.exact).sum())
    return {
        "output_variance": mean(np.array(closed)),
        "measured_output_variance": mean(np.array(measured)),
        "gradient_norm": math.sqrt(squared_norm) if has_rewards else None,
        "baselines": {name: sum_.described(draws) for name, sum_ in sums.items()} if has_rewards else None,
    }
