"""Rotary position embedding: the frequencies, the angles and the rotation (numpy, float64 inside).

Pair i of the d/2 pairs of rotated dimensions of a query or key at position p turns by the angle p·ωᵢ:

    (a, b)  →  (a·cos pωᵢ − b·sin pωᵢ,  a·sin pωᵢ + b·cos pωᵢ),      ωᵢ = θ^(−2i/d),   i = 0 … d/2 − 1

(Su et al. 2021, *RoFormer*, arXiv 2104.09864, §3.2.2 and eq. 34). Turning both by their positions makes q·k a
function of the difference of the positions alone: ⟨R_m q, R_n k⟩ = qᵀ R_(n−m) k. Which dimensions form pair i
is a convention on which trained weights depend:

* ``interleaved`` (RoFormer, GPT-J): dimensions 2i and 2i + 1;
* ``half`` (GPT-NeoX, Llama in Hugging Face): dimensions i and i + d/2.

To read texts longer than those of the training, the frequencies are changed. With the factor s, the original
length L and λᵢ = 2π/ωᵢ, the wavelength of pair i in tokens:

* ``linear``: ωᵢ/s, which is as much as positions divided by s (Chen et al. 2023, *Position Interpolation*,
  arXiv 2306.15595, §2.3).
* ``ntk``: θ′ = θ·s^(d/(d−2)): the slowest pair turns s times slower, the fastest as before (bloc97's
  "NTK-aware" interpolation; Definition 1 in Peng et al. 2023, *YaRN*, arXiv 2309.00071).
* ``dynamic``: ``ntk`` with the factor s·n/L − (s − 1) where the length n in use exceeds L; nothing changes
  up to L (emozilla's "Dynamic NTK"; "Dynamic Scaling" in the YaRN paper).
* ``yarn``: (1 − γᵢ)·ωᵢ/s + γᵢ·ωᵢ. Pairs that turn more than β_fast times within L are kept (γ = 1), those
  that turn less than β_slow times are interpolated (γ = 0). The paper's ramp between the two is linear in
  L/λᵢ (Definition 2); deployed models, and this code, have it linear in the index i, from the index
  d·ln(L/(2πβ)) / (2 ln θ) of β_fast to that of β_slow, both rounded outwards unless ``truncate`` is false and
  then kept within 0 and d − 1. cos and sin are multiplied by the attention factor 0.1·ln s + 1 (Definition
  3), which is √(1/t) for the paper's temperature t. With both ``mscale`` m and ``mscale_all_dim`` a, it is
  (0.1·m·ln s + 1) / (0.1·a·ln s + 1), as in DeepSeek-V2; those models put the rest into ``scale``.
* ``llama3``: (1 − γᵢ)·ωᵢ/s + γᵢ·ωᵢ with γᵢ = (L/λᵢ − low)/(high − low), kept within 0 and 1: a ramp in L/λᵢ
  between ``low_freq_factor`` and ``high_freq_factor`` (``apply_scaling`` in Meta's code of Llama 3.1).
* ``longrope``: ωᵢ/fᵢ with one factor per pair, found by search: ``short_factor`` up to the length L,
  ``long_factor`` beyond; attention factor √(1 + ln s / ln L), 1 for s ≤ 1 (Ding et al. 2024, *LongRoPE*,
  arXiv 2402.13753, and Microsoft's code of Phi-3). s is ``factor``, else ``max_position_embeddings`` / L.

Field names are those of Hugging Face's configs. L is ``original_max_position_embeddings``, else
``max_position_embeddings``. ``kernels/spec/rope.py`` refuses the values for which these formulas have no
answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from kernels.arrays import Array
from kernels.spec.model import Rope
from kernels.spec.rope import BETA_FAST, BETA_SLOW, EXTENDED, ORIGINAL, Scaling, field

# -- angles --------------------------------------------------------------------------------------------------


def frequencies(rope: Rope, dim: int, length: int) -> tuple[Array, float]:
    """ωᵢ [dim/2] float64 in radians per token, and the attention factor, which multiplies cos and sin.

    ``length``: the number of positions in use, which is what ``dynamic`` and ``longrope`` depend on.
    """
    if rope.scaling is None:
        return _powers(rope.theta, dim), 1.0
    return _SCALINGS[rope.scaling["type"]](rope.scaling, rope.theta, dim, length)


def cos_sin(rope: Rope, dim: int, positions: Array, length: int | None = None) -> tuple[Array, Array]:
    """cos and sin of positions [b or 1, len]: each [b or 1, len, dim/2] float64, attention factor included.

    ``length``: the number of positions in use; by default the largest of ``positions`` and one more. Where q
    and k have different positions, give both the same length: they must turn with the same frequencies. A
    key that was rotated earlier keeps the frequencies of that time, in every cache.
    """
    if length is None:
        length = int(positions.max(initial=-1)) + 1
    omega, factor = frequencies(rope, dim, length)
    angles = positions.astype(np.float64)[..., None] * omega
    return factor * np.cos(angles), factor * np.sin(angles)


def rotate(x: Array, cos: Array, sin: Array, *, style: str, dim_offset: int) -> Array:
    """Turn the pairs of x [b, h, len, d] by the angles of :func:`cos_sin`, [b or 1, len, pairs].

    Rotates ``2·pairs`` dimensions from ``dim_offset``; the others, and the dtype of x, are kept.
    """
    first, second = _pair_slices(cos.shape[-1], style, dim_offset)
    a, b = (x[..., part].astype(np.float64) for part in (first, second))
    cos, sin = cos[:, None], sin[:, None]
    rotated = x.copy()
    # A float16 near its limit may turn beyond it; a gradient may be so already, and padding may be anything.
    with np.errstate(over="ignore", invalid="ignore"):
        rotated[..., first] = a * cos - b * sin
        rotated[..., second] = a * sin + b * cos
    return rotated


def _pair_slices(pairs: int, style: str, start: int) -> tuple[slice, slice]:
    """Where the first and the second members of the pairs are."""
    end = start + 2 * pairs
    if style == "interleaved":
        return slice(start, end, 2), slice(start + 1, end, 2)
    return slice(start, start + pairs), slice(start + pairs, end)


# -- scalings: (scaling, theta, dim, length) -> (frequencies, attention factor); formulas at the top ---------


def _powers(theta: float, dim: int) -> Array:
    """θ^(−2i/d)."""
    return np.asarray(np.float64(theta) ** (-np.arange(0, dim, 2) / dim))


def _linear(scaling: Scaling, theta: float, dim: int, length: int) -> tuple[Array, float]:
    return _powers(theta, dim) / scaling["factor"], 1.0


def _ntk(scaling: Scaling, theta: float, dim: int, length: int) -> tuple[Array, float]:
    return _powers(stretched_base(theta, scaling["factor"], dim), dim), 1.0


def _dynamic(scaling: Scaling, theta: float, dim: int, length: int) -> tuple[Array, float]:
    original, s = _original_length(scaling), scaling["factor"]
    factor = s * max(length, original) / original - (s - 1)
    return _powers(stretched_base(theta, factor, dim), dim), 1.0


def stretched_base(theta: float, factor: float, dim: int) -> float:
    """θ·s^(d/(d−2)): the base with which the slowest pair turns s times slower."""
    # A single pair has frequency 1 whatever the base, and the exponent has no value.
    return float(theta * factor ** (dim / (dim - 2))) if dim > 2 else theta


def _yarn(scaling: Scaling, theta: float, dim: int, length: int) -> tuple[Array, float]:
    fast, slow = field(scaling, "beta_fast", BETA_FAST), field(scaling, "beta_slow", BETA_SLOW)
    low, high = (rotation_index(turns, theta, dim, _original_length(scaling)) for turns in (fast, slow))
    if field(scaling, "truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001  # a step instead of a ramp
    # Where the limits have crossed (an original length below one turn, a tiny theta) deployed code gives the
    # nearest end of the ramp to all pairs; so does this.
    interpolated = np.clip((np.arange(dim // 2) - low) / (high - low), 0.0, 1.0)
    return _blend(_powers(theta, dim), scaling["factor"], 1.0 - interpolated), _yarn_attention_factor(scaling)


def rotation_index(turns: float, theta: float, dim: int, original: int) -> float:
    """The (fractional) index i of the pair that turns ``turns`` times within the original length."""
    return dim * math.log(original / (2 * math.pi * turns)) / (2 * math.log(theta))


def _yarn_attention_factor(scaling: Scaling) -> float:
    given = scaling.get("attention_factor")
    if given is not None:
        return float(given)

    def temperature(mscale: float) -> float:
        return 0.1 * mscale * math.log(scaling["factor"]) + 1.0

    mscale, mscale_all_dim = scaling.get("mscale"), scaling.get("mscale_all_dim")
    if mscale and mscale_all_dim:  # deployed code wants both, and takes 0 as absent
        return temperature(mscale) / temperature(mscale_all_dim)
    return temperature(1.0)


def _llama3(scaling: Scaling, theta: float, dim: int, length: int) -> tuple[Array, float]:
    omega = _powers(theta, dim)
    turns = scaling[ORIGINAL] * omega / (2 * math.pi)  # L/λ
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    return _blend(omega, scaling["factor"], np.clip((turns - low) / (high - low), 0.0, 1.0)), 1.0


def _longrope(scaling: Scaling, theta: float, dim: int, length: int) -> tuple[Array, float]:
    original = _original_length(scaling)
    divisors = np.array(scaling["long_factor" if length > original else "short_factor"], dtype=np.float64)
    given = scaling.get("attention_factor")
    factor = field(scaling, "factor", field(scaling, EXTENDED, original) / original)
    own = math.sqrt(1 + math.log(max(factor, 1.0)) / math.log(original))
    return _powers(theta, dim) / divisors, own if given is None else float(given)


def _blend(omega: Array, factor: float, kept: Array) -> Array:
    """(1 − γ)·ω/s + γ·ω."""
    return np.asarray((1.0 - kept) * omega / factor + kept * omega)


def _original_length(scaling: Scaling) -> int:
    return int(field(scaling, ORIGINAL, scaling.get(EXTENDED)))


_SCALINGS: dict[str, Callable[[Scaling, float, int, int], tuple[Array, float]]] = {
    "linear": _linear,
    "ntk": _ntk,
    "dynamic": _dynamic,
    "yarn": _yarn,
    "llama3": _llama3,
    "longrope": _longrope,
}
