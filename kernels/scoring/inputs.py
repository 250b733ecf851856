"""Attention by a score, as it is asked for: arrays, and what else each score and each span takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kernels.registry import ENGINES

# The inputs of a run that each score, and each span, is made with.
SCORE_INPUTS, SPAN_INPUTS = (ENGINES["scoring"].taken_by[option] for option in ("score", "span"))


@dataclass(frozen=True)
class Scoring:
    """b batch, h query heads, n queries, m keys, d and e widths of keys and of values, a and p hidden numbers
    of a score and of a centre; numpy or tensors. Parameters are one for all heads, or one for each."""

    score: str  # of SCORE_INPUTS
    q: Any  # [b, h, n, d]
    k: Any  # [b, h_kv, m, d]
    v: Any  # [b, h_kv, m, e]
    # w_q, w_k [1 or h, a, d], v_a [1 or h, a], w_general [1 or h, d, d], w_concat [1 or h, a, 2d],
    # w_p [1 or h, p, d], v_p [1 or h, p]: those that the score and the span take
    parameters: Mapping[str, Any]
    factor: float = 1.0  # of a product; β of a cosine
    span: str = "global"  # of SPAN_INPUTS
    half_width: float = 10.0  # D of a window, a number of float32

    @property
    def group(self) -> int:
        """Consecutive query heads that share a key head."""
        return self.q.shape[1] // self.k.shape[1] if self.k.shape[1] else 1

    @property
    def hidden(self) -> int:
        """Numbers of a pair between its vectors and its score; 0 where there are none."""
        return int(self.parameters["v_a"].shape[1]) if "v_a" in self.parameters else 0
