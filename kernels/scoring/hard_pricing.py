"""What a run of engine ``hard`` takes on a CPU worker: see ``kernels.estimate``, which asks.

Seconds of one core, measured and then raised to two or three times.
"""

from __future__ import annotations

from kernels.positions import visible_pairs
from kernels.registry import option
from kernels.scoring.hard import BASELINES
from kernels.scoring.hard_rules import drawn
from kernels.spec.model import RunSpec
from kernels.spec.results import DRAWN

CALL, HEAD, ROW = 5e-3, 4e-4, 3e-5
PAIR, MULTIPLY, KEY = 8e-8, 3e-10, 3e-7  # a score, a multiply-add, a key that is drawn
ESTIMATED_PAIR, ESTIMATED_KEY = 2.5e-7, 3.5e-7  # with one baseline
DRAWING = 2.5e-7  # a random number
PAIR_BYTES, KEY_BYTES, HELD_BYTES = 140.0, 80.0, 16.0  # of a head; of all that is drawn, throughout
DRAW_BYTES = 48.0  # of a draw, however many queries there are
GENERATED_BYTES = 48.0  # of a random number, before the first call


def flops(spec: RunSpec) -> int:
    """Of one call: scores, and the mean of what was drawn; with gradients the rewards of all keys."""
    width = spec.head_dim + spec.v_head_dim * (2 if _estimates(spec) else 1)
    return 2 * visible_pairs(spec) * width


def more_traffic(spec: RunSpec) -> tuple[int, int]:
    """The scores and the weights, each written and read once more, and the keys that are drawn."""
    matrix = 8 * spec.batch * spec.num_heads * spec.q_len * spec.kv_len
    return 2 * matrix + 8 * drawn(spec), 2 * matrix + 8 * drawn(spec)


def engine_seconds(spec: RunSpec) -> float:
    """One call."""
    return CALL + _weighed(spec) + _drawn(spec) + (_estimated(spec) if _estimates(spec) else 0.0)


def reference_seconds(spec: RunSpec) -> float:
    """The random numbers, and after the last call all baselines side by side."""
    seconds = DRAWING * drawn(spec) + _weighed(spec)
    return seconds + (len(BASELINES) * _estimated(spec) if "dout" in spec.inputs else 0.0)


def engine_bytes(spec: RunSpec) -> float:
    """What is held at once beside inputs and results: random numbers, the keys drawn, and one head."""
    heads = max(1, spec.batch * spec.num_heads)
    head = PAIR_BYTES * spec.q_len * spec.kv_len + KEY_BYTES * drawn(spec) / heads
    most = max(head + 2.0 * spec.batch * spec.q_len * spec.kv_len, GENERATED_BYTES * drawn(spec))
    return HELD_BYTES * drawn(spec) + DRAW_BYTES * int(option(spec, "draws")) + most


def reference_bytes(spec: RunSpec) -> float:
    """As much: a head at a time."""
    return engine_bytes(spec)


def _estimates(spec: RunSpec) -> bool:
    return any(name in spec.returns for name in DRAWN)


def _weighed(spec: RunSpec) -> float:
    """Scores, weights and their sums with values."""
    heads = spec.batch * spec.num_heads
    width = spec.head_dim + 3 * spec.v_head_dim
    return HEAD * heads + heads * spec.q_len * spec.kv_len * (PAIR + MULTIPLY * width)


def _drawn(spec: RunSpec) -> float:
    """Keys found for random numbers, and counted."""
    return ROW * spec.batch * spec.num_heads * spec.q_len + KEY * drawn(spec)


def _estimated(spec: RunSpec) -> float:
    """The gradient and its variance, with one baseline."""
    heads = spec.batch * spec.num_heads
    pairs = heads * spec.q_len * spec.kv_len
    return HEAD * heads + ESTIMATED_PAIR * pairs + ESTIMATED_KEY * drawn(spec)
