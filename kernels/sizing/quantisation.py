"""What a config says of how its weights are stored: its ``quantization_config``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kernels.sizing.fields import ConfigFields
from kernels.sizing.storage import LINEAR_PARTS, WEIGHT_FORMATS, WeightFormat
from kernels.spec.problems import one_of, show
from kernels.spec.reader import is_integer

METHODS = ("gptq", "awq", "fp8", "mxfp4", "compressed-tensors", "bitsandbytes")


def read_quantisation(fields: ConfigFields) -> WeightFormat | None:
    """The format of the weights, or None where the config says nothing that is understood (noted)."""
    found, given = fields.find("quantization_config")
    if given is None:
        return None
    if not isinstance(given, dict):
        fields.wrong_type(found, "an object", given)
        return None
    stored = _format(given)
    if stored is None:
        fields.notes.append(
            f"quantization_config names {show(given.get('quant_method'))}; understood are {one_of(METHODS)}. "
            "Say weights_dtype to have the weights counted as they are stored."
        )
    return stored


def _format(given: dict[str, Any]) -> WeightFormat | None:
    stored = None
    match given.get("quant_method"):
        case "gptq" | "awq":
            stored = _groups(given)
        case "fp8":
            stored = _blocks(given)
        case "mxfp4":
            left = given.get("modules_to_not_convert")
            stored = replace(WEIGHT_FORMATS["mxfp4"], parts=_parts_without(left))
        case "compressed-tensors":
            stored = _compressed(given)
        case "bitsandbytes" if given.get("load_in_4bit") is True:
            stored = WEIGHT_FORMATS["nf4"]
        case "bitsandbytes" if given.get("load_in_8bit") is True:
            stored = WEIGHT_FORMATS["int8"]
    return stored


def _blocks(given: dict[str, Any]) -> WeightFormat:
    """DeepSeek's: a float32 scale for each block of rows and columns."""
    block = given.get("weight_block_size")
    if isinstance(block, list) and len(block) == 2 and all(is_integer(n) and n > 0 for n in block):
        return replace(WEIGHT_FORMATS["fp8_e4m3"], rows=block[0], columns=block[1])
    return WEIGHT_FORMATS["fp8_e4m3"]


def _groups(given: dict[str, Any]) -> WeightFormat | None:
    """GPTQ and AWQ: ``bits`` for each number, and in each group a 16-bit scale and a zero point as wide."""
    bits, group = given.get("bits"), given.get("group_size", 128)
    if not isinstance(bits, int) or not isinstance(group, int) or not 2 <= bits <= 8 or group < -1:
        return None
    return WeightFormat(f"int{bits}", bits, 16 + bits, columns=max(group, 0), parts=LINEAR_PARTS)


def _compressed(given: dict[str, Any]) -> WeightFormat | None:
    """vLLM's: groups of layers, each with the bits of its weights and how they share a 16-bit scale."""
    groups = given.get("config_groups")
    first = next(iter(groups.values()), None) if isinstance(groups, dict) else None
    weights = first.get("weights") if isinstance(first, dict) else None
    if not isinstance(weights, dict):
        return None
    bits, group, strategy = weights.get("num_bits"), weights.get("group_size"), weights.get("strategy")
    if not isinstance(bits, int) or not 2 <= bits <= 8 or strategy not in ("tensor", "channel", "group"):
        return None
    columns = group if strategy == "group" and isinstance(group, int) and group > 0 else 0
    zero_bits = 0 if weights.get("symmetric", True) else bits
    name = f"{'fp' if weights.get('type') == 'float' else 'int'}{bits}"
    return WeightFormat(
        name,
        bits,
        16 + zero_bits,
        rows=0 if strategy == "tensor" else 1,
        columns=columns,
        parts=_parts_without(given.get("ignore")),
    )


def _parts_without(left: object) -> frozenset[str]:
    """The parts of the model that are quantised, by the names of the modules that are left as they were."""
    names = " ".join(name for name in left if isinstance(name, str)) if isinstance(left, list) else ""
    return LINEAR_PARTS - {"attention"} if "attn" in names else LINEAR_PARTS
