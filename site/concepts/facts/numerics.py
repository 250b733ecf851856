"""Numbers of the page on numerical traps, from what shows them."""

import math

from concepts.facts import fact
from concepts.figures.numerics import ROWS, shown
from kernels.traps import TRAPS, cap


@fact("numerics-traps")
def traps() -> int:
    return len(ROWS)


@fact("numerics-silent")
def silent() -> int:
    """Those whose example is a number like any other."""
    return sum(math.isfinite(row.outcome.wrong) for row in ROWS)


@fact("numerics-loud")
def loud() -> int:
    return sum(not math.isfinite(row.outcome.wrong) for row in ROWS)


@fact("numerics-capped", ".4f")
def capped() -> float:
    return cap(1.0)


@fact("numerics-gap", ".4f")
def gap() -> float:
    """Between a capped score of 1 and a capped −∞."""
    return cap(1.0) + 2


@fact("numerics-leak", ".4f")
def leak() -> float:
    return TRAPS["softcap_mask"]().wrong


@fact("numerics-thousand", ".3f")
def thousand() -> float:
    """What a thousand forbidden keys get together."""
    weight = TRAPS["softcap_mask"]().wrong
    one = weight / (1 - weight)  # beside the weight of the key that may be seen
    return 1000 * one / (1 + 1000 * one)


@fact("numerics-wrapped", ",")
def wrapped() -> int:
    return int(TRAPS["int32_offset"]().wrong)


@fact("numerics-base")
def base() -> str:
    return shown(TRAPS["lse_base"]().wrong)


@fact("numerics-natural")
def natural() -> str:
    return shown(TRAPS["lse_base"]().right)


@fact("numerics-int8")
def int8() -> str:
    return shown(TRAPS["int8_store"]().wrong)
