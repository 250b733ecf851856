"""What part of all pairs of query and key a run looks at: counted from its masks, without its numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from kernels.arrays import Array
from kernels.positions import visible_pairs
from kernels.registry import is_causal
from kernels.sparse.masks import visible
from kernels.spec.model import RunSpec

MAX_COUNTED = 2**20  # pairs of a mask that are looked at one by one


@dataclass(frozen=True)
class Share:
    """pairs of total, over all batch rows and heads; not exact: at most so many."""

    pairs: int
    total: int
    is_exact: bool


def share(spec: RunSpec, arrays: Mapping[str, Array]) -> Share:
    """How many pairs causality, windows, patterns, lengths and an ``attn_mask`` let through.

    ``arrays``: those that came with the request. A mask that is drawn forbids nothing. Beyond
    ``MAX_COUNTED`` pairs of a mask only what has a closed form is counted, which is an upper bound.
    """
    heads = spec.batch * spec.num_heads
    total = heads * spec.q_len * spec.kv_len
    is_plain = spec.attention.pattern is None and {"attn_mask", "q_lens", "kv_lens"}.isdisjoint(arrays)
    if is_plain or total == 0:
        return Share(visible_pairs(spec), total, is_exact=True)
    mask = arrays.get("attn_mask")
    alike = 1 if _is_by_head(mask) else spec.num_heads  # heads with the same mask
    if total // alike > MAX_COUNTED:
        return Share(visible_pairs(spec), total, is_exact=False)
    return Share(_counted(spec, arrays, mask) * alike, total, is_exact=True)


def _is_by_head(mask: Array | None) -> bool:
    return mask is not None and mask.ndim >= 3 and mask.shape[-3] > 1


def _counted(spec: RunSpec, arrays: Mapping[str, Array], mask: Array | None) -> int:
    """Pairs in all batch rows, of one head where all have the same mask."""
    q_lens, kv_lens = arrays.get("q_lens"), arrays.get("kv_lens")
    seen = visible(_causal(spec), q_lens, kv_lens)  # [b or 1, 1, n, m]
    if q_lens is not None:
        seen = seen & (np.arange(spec.q_len)[:, None] < q_lens[:, None, None, None])
    if kv_lens is not None:
        seen = seen & (np.arange(spec.kv_len) < kv_lens[:, None, None, None])
    if mask is not None:
        allowed = mask if mask.dtype == np.bool_ else ~np.isneginf(mask)
        seen = seen & allowed.reshape((1,) * (4 - mask.ndim) + mask.shape)
    return int(np.count_nonzero(seen)) * (spec.batch // int(seen.shape[0]))


def _causal(spec: RunSpec) -> RunSpec:
    """The spec as its engine reads it: some are causal whatever is asked."""
    return replace(spec, attention=replace(spec.attention, is_causal=is_causal(spec)))
