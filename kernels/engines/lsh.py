"""Engine ``lsh``: attention within the buckets of Reformer's hash, in float64 (numpy); and what that finds of
the best keys (``kernels.sparse.lsh``, with the papers)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from kernels.arrays import Array
from kernels.engines import Checkpoint, Prepared
from kernels.engines.figures import mean
from kernels.registry import option
from kernels.sparse.lsh import Hashed, lsh_attention, rotations
from kernels.sparse.lsh_pricing import hash_multiply_adds
from kernels.sparse.masks import visible
from kernels.spec.model import RunSpec


def prepare(spec: RunSpec, arrays: Mapping[str, Array], device: str) -> Prepared:
    """q, k and v in float64, who may see whom, and the directions of the hash."""
    del device  # numpy computes on the host
    q, k, v = (arrays[name].astype(np.float64) for name in "qkv")
    rounds, buckets, top = (int(option(spec, name)) for name in ("rounds", "buckets", "top"))
    turned = rotations(rounds, spec.num_kv_heads, spec.head_dim, buckets, option(spec, "hash_seed"))
    allowed = visible(spec)
    if "attn_mask" in arrays:
        allowed = allowed & arrays["attn_mask"]

    def compute() -> Mapping[str, Any]:
        with np.errstate(over="ignore", invalid="ignore"):  # logits of huge numbers
            found = lsh_attention(
                q, k, v, turned, scale=spec.scale, top=top, allowed=allowed,
                keep_weights="weights" in spec.returns,
            )  # fmt: skip
        return {"hashed": found}

    def findings(raw: Mapping[str, Any], checkpoint: Checkpoint) -> dict[str, Any]:
        return _findings(spec, raw["hashed"], checkpoint)

    return Prepared(compute, _results, findings=findings)


def _results(raw: Mapping[str, Any]) -> dict[str, Array]:
    found: Hashed = raw["hashed"]
    results = {
        "out": found.out,
        "recall": found.recall,
        "kept_weight": found.weight,
        "q_buckets": found.q_buckets,
        "k_buckets": found.k_buckets,
    }
    return results if found.weights is None else {**results, "weights": found.weights}


def _findings(spec: RunSpec, found: Hashed, checkpoint: Checkpoint) -> dict[str, Any]:
    looking = found.wanted > 0
    occupied, largest = _occupied(found.k_buckets, checkpoint)
    pairs = found.allowed_pairs
    return {
        "mean_recall": mean(found.recall[looking]),
        "mean_kept_weight": mean(found.weight[looking]),
        "pairs": pairs,
        "scored_pairs": found.seen_pairs,
        "density": found.seen_pairs / pairs if pairs else None,
        "score_multiply_adds": pairs * spec.head_dim,
        "scored_multiply_adds": found.seen_pairs * spec.head_dim,
        "hash_multiply_adds": hash_multiply_adds(spec),
        "mean_occupied_buckets": mean(occupied),
        "largest_bucket": largest,
    }


def _occupied(k_buckets: Array, checkpoint: Checkpoint) -> tuple[Array, int]:
    """How many buckets hold a key, of each round of each head of all rows, and how many keys the fullest
    holds. One at a time: the buckets of all together may be more than there is memory."""
    batch, heads, m, rounds = k_buckets.shape
    occupied, largest = np.zeros((batch, heads, rounds if m else 0), dtype=np.int64), 0
    for b, h in np.ndindex(batch, heads):
        checkpoint()
        for r in range(occupied.shape[2]):
            sizes = np.bincount(k_buckets[b, h, :, r])
            occupied[b, h, r], largest = np.count_nonzero(sizes), max(largest, int(sizes.max()))
    return occupied, largest
