"""Numbers of the page on shrinking the cache."""

from functools import partial
from typing import Any

import numpy as np

from concepts.facts import fact
from concepts.facts.kv_cache import token_of
from concepts.figures.kv_bits import CHANNELS, FIGURES, FP8, FP8_BITS, SIXTEEN, TOKENS
from concepts.figures.kv_keep import FIGURE, ways
from kernels.group_quantise import bits_a_number
from kernels.sizing.storage import GIB

FOUR, BITS = FIGURES
LENGTH = 131_072  # tokens
KIB = 2**10


# -- by hand -------------------------------------------------------------------------------------------------

EXAMPLES = {"hand": FOUR.controls[0].usual, "outlier": [[*FOUR.controls[0].usual[0][:3], 5.5]]}


def _hand(name: str, wanted: str) -> Any:
    values = FOUR.usual | {"x": EXAMPLES[name]}
    found, row = FOUR.numbers(values), np.array(EXAMPLES[name][0])
    if wanted == "codes":
        return tuple(str(code) for code in found["codes"])
    back = np.round(found["restored"], 3) + 0.0
    if wanted == "back":
        return tuple(back.tolist())
    if wanted == "shares":
        return tuple((np.round((row - found["least"]) / found["step"], 2) + 0.0).tolist())
    return found["step"] if wanted == "step" else float(np.abs(back - row).max())


fact("kvc-hand-shares", ".2f")(partial(_hand, "hand", "shares"))
fact("kvc-hand-worst", ".1f")(partial(_hand, "hand", "worst"))
for _example in EXAMPLES:
    fact(f"kvc-{_example}-codes")(partial(_hand, _example, "codes"))
    for _wanted in ("step", "back"):
        fact(f"kvc-{_example}-{_wanted}", ".1f")(partial(_hand, _example, _wanted))


# -- bytes ---------------------------------------------------------------------------------------------------


@fact("kvc-sixteen", ",")
def sixteen() -> int:
    """Bytes of the small cache in 16 bits: keys and values."""
    return 2 * TOKENS * CHANNELS * SIXTEEN // 8


@fact("kvc-bytes", ",")
def in_four_bits() -> int:
    return int(BITS.numbers(BITS.usual)["bytes"])


WAYS: dict[str, float] = {
    "16": SIXTEEN,
    "fp8": FP8_BITS - FP8_BITS % 1,  # a scale for a whole tensor is nothing to a number
    **{
        f"{bits}-{group}": bits_a_number(bits, group) for bits, group in ((8, 32), (4, 32), (4, 128), (2, 32))
    },
}


def _kib(bits: float) -> float:
    """Of a token of Llama 3 8B."""
    return token_of("llama-3-8b") / SIXTEEN * bits / KIB


def _gib(bits: float) -> float:
    return _kib(bits) * KIB * LENGTH / GIB


def _times(bits: float) -> float:
    return SIXTEEN / bits


for _name, _bits in WAYS.items():
    fact(f"kvc-bits-{_name}", ".3g")(partial(float, _bits))
    fact(f"kvc-kib-{_name}", ".3g")(partial(_kib, _bits))
    fact(f"kvc-gib-{_name}", ".3g")(partial(_gib, _bits))


for _name in ("fp8", "4-32", "2-32"):
    fact(f"kvc-times-{_name}", ".2g")(partial(_times, WAYS[_name]))


@fact("kvc-both", ".1f")
def both() -> float:
    """A quarter of the heads, and 4 bits in groups of 32."""
    return 4 * _times(WAYS["4-32"])


# -- errors, in percent --------------------------------------------------------------------------------------


def _error(rounded: str = "both", **changed: str) -> float:
    return float(100 * BITS.numbers(BITS.usual | changed)["errors"][rounded])


fact("kvc-kivi", ".1f")(_error)
fact("kvc-other", ".0f")(partial(_error, keys="token", values="channel"))
fact("kvc-keys-channel", ".1f")(partial(_error, "keys"))
fact("kvc-keys-token", ".0f")(partial(_error, "keys", keys="token"))
fact("kvc-values-token", ".1f")(partial(_error, "values"))
fact("kvc-values-channel", ".0f")(partial(_error, "values", values="channel"))
fact("kvc-fp8", ".1f")(partial(_error, bits=FP8))
fact("kvc-8", ".1f")(partial(_error, bits="8"))


# -- eviction, in percent ------------------------------------------------------------------------------------


def _kept(asks: str) -> dict[str, Any]:
    values = FIGURE.usual | {"asks": asks}
    return ways(asks, values["budget"], values["sinks"], int(values["pool"]))


def _lost(asks: str, way: str) -> float:
    found = _kept(asks)
    return float(100 * found[way].error(found["full"]))


SAID = {"code": ("window", "sinks", "h2o", "snap"), "dog": ("snap",), "near": ("window", "sinks")}
for _asks, _said in SAID.items():
    for _way in _said:
        fact(f"kvc-{_asks}-{_way}", ".0f")(partial(_lost, _asks, _way))


@fact("kvc-near-sink", ".0f")
def near_sink() -> float:
    """The weight of the first token for a query that wants nothing far away."""
    return float(100 * _kept("near")["full"].weights[0])
