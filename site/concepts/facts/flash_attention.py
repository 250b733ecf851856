"""Numbers of the page on FlashAttention."""

from functools import partial

from concepts.facts import fact
from concepts.figures.flash_backward import FIGURE as BACKWARD
from concepts.figures.flash_bits import FIGURE as BITS
from concepts.figures.flash_tiles import FIGURE as TILES
from kernels.flash.accesses import matrix_bytes
from kernels.flash.rebuild import Rebuilt
from kernels.flash.schedule import SKIPPED
from kernels.sizing.gpus import gpus

TOKENS = 4096
MIB = 1024**2

# -- tiles ---------------------------------------------------------------------------------------------------


def opened(**changed: object) -> dict[str, object]:
    return TILES.usual | changed


@fact("flash-steps", "d")
def steps() -> int:
    return len(TILES.run(opened()).moves)


@fact("flash-skipped", "d")
def skipped() -> int:
    return TILES.run(opened()).walk.count(SKIPPED)


@fact("flash-moved", "d")
def moved() -> int:
    """Numbers."""
    return sum(TILES.numbers(opened())["moved_in_all"].values())


@fact("flash-one-by-one", ",d")
def one_by_one() -> int:
    return sum(TILES.numbers(opened())["one_by_one"].values())


@fact("flash-scores", "d")
def scores() -> int:
    return int(TILES.run(opened()).walk.n ** 2)


@fact("flash-matrix", ".0f")
def matrix() -> float:
    """MiB of the weights of a head, in 16 bits."""
    return matrix_bytes(TOKENS) / MIB


@fact("flash-kept", ".0f")
def kept() -> float:
    """KiB of the log-sum-exp of a head, in float32."""
    return TOKENS * 4 / 1024


def passes(rows: int) -> int:
    return TOKENS // rows


for rows in (64, 128):
    fact(f"flash-passes-{rows}", "d")(partial(passes, rows))

# -- backward, by hand ---------------------------------------------------------------------------------------


def by_hand() -> Rebuilt:
    return BACKWARD.rebuilt(BACKWARD.usual)


@fact("flash-lse", ".4f")
def lse() -> float:
    return by_hand().kept


@fact("flash-p", ".4f")
def p() -> tuple[float, ...]:
    return tuple(by_hand().p.tolist())


@fact("flash-delta", ".4f")
def delta() -> float:
    return by_hand().delta


def slope(key: int) -> float:
    return float(by_hand().ds[key - 1])


for key in (1, 2, 3):
    fact(f"flash-ds{key}", ".4f")(partial(slope, key))

# -- bits ----------------------------------------------------------------------------------------------------


def bits(what: str, **changed: object) -> float:
    found = BITS.found(BITS.usual | changed)
    return float(getattr(found, what))


def times(factor: float, what: str, **changed: object) -> float:
    return factor * bits(what, **changed)


for dtype, power in (("float32", 7), ("bfloat16", 3)):
    fact(f"flash-equal-{dtype}", ".0f")(partial(times, 100, "equal", format=dtype))  # per cent
    fact(f"flash-apart-{dtype}", ".1f")(partial(times, 10.0**power, "largest", format=dtype))
for which in ("first", "second"):  # thousandths
    fact(f"flash-error-{which}", ".1f")(partial(times, 1e3, f"{which}_error", format="bfloat16"))

# -- what was measured (Dao et al. 2022, figure 2; the rest is among the facts of memory) --------------------

MILLISECONDS = (41.7, 7.3)  # standard, FlashAttention; GPT-2 medium, 1,024 tokens, forward and backward, A100


@fact("flash-measured-faster", ".1f")
def measured_faster() -> float:
    before, after = MILLISECONDS
    return before / after


@fact("flash-share-fa3", ".0f")
def share_fa3() -> float:
    """Per cent of an H100, as published."""
    return 100 * 840 / gpus()["h100-sxm"].tflops_16bit
