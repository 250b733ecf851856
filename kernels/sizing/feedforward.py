"""From fields to the MLP of each layer: dense, or experts with or without shared ones."""

from __future__ import annotations

from dataclasses import replace

from kernels.sizing.families import Family
from kernels.sizing.fields import MAX_LAYERS, MAX_WIDTH, ConfigFields
from kernels.sizing.kinds import EXPERTS, MLP, STATE
from kernels.sizing.layers import Experts, Mlp
from kernels.sizing.mixers import flag
from kernels.spec.reader import is_number

MAX_EXPERTS = 65_536


def read_mlps(
    fields: ConfigFields, family: Family, hidden: int, kinds: tuple[str, ...]
) -> tuple[Mlp | Experts | None, ...]:
    """What follows the mixer in each layer. A width that is missing is noted as such."""
    count = fields.integer_or_none("experts", low=0, high=MAX_EXPERTS) or 0
    if {MLP, EXPERTS} & set(kinds):  # each layer is one or the other: most are followed by nothing
        routed = [kind == EXPERTS for kind in kinds]
        has_mlp = [kind in (MLP, EXPERTS) for kind in kinds]
    else:
        routed = _placement(fields, len(kinds)) if count > 1 else [False] * len(kinds)
        has_mlp = [not _is_mamba(fields, family, kinds)] * len(kinds)
    needs = {is_routed for is_routed, has in zip(routed, has_mlp, strict=True) if has}
    sparse = _experts(fields, family, hidden, count) if True in needs else None
    name = "dense_width" if fields.has("dense_width") else "width"
    plain = dense(fields, family, hidden, name) if False in needs else None
    return tuple(
        (sparse if is_routed else plain) if has else None
        for is_routed, has in zip(routed, has_mlp, strict=True)
    )


def _is_mamba(fields: ConfigFields, family: Family, kinds: tuple[str, ...]) -> bool:
    """Mamba's layers have no MLP; what their config calls intermediate_size is the width of the mixer."""
    return set(kinds) == {STATE} and (family.mixer.startswith("mamba") or not fields.has("width"))


def dense(fields: ConfigFields, family: Family, hidden: int, name: str = "width") -> Mlp | None:
    """The MLP that every token goes through; None, noted, where no field says how wide it is."""
    width = _width(fields, family, hidden, name)
    return _mlp(fields, family, width) if width else None


def _mlp(fields: ConfigFields, family: Family, width: int) -> Mlp:
    is_gated = family.is_gated
    if family.mlp_kind == "t5":
        is_gated = fields.word("feed_forward_proj", "relu").startswith("gated")
    return Mlp(width, is_gated, flag(fields, family.mlp_bias))


def _width(fields: ConfigFields, family: Family, hidden: int, name: str) -> int | None:
    given = fields.integer_or_none(name, high=16 * MAX_WIDTH)
    if given is not None:
        return given
    ratio = fields.find("expansion_ratio")[1]
    if is_number(ratio) and 0 < ratio <= 1024:
        return int(ratio * hidden)
    if family.mlp_ratio:
        fields.assume(name, family.mlp_ratio * hidden, f"{family.mlp_ratio} times the width of the model")
        return family.mlp_ratio * hidden
    fields.require(name, fields.missing)
    return None


def _experts(fields: ConfigFields, family: Family, hidden: int, count: int) -> Experts | None:
    width = fields.integer_or_none("expert_width") or _width(fields, family, hidden, "width")
    if not count:
        fields.require("experts", fields.missing)
    active = fields.integer_for_weights("active", high=MAX_EXPERTS)
    if active > count > 0:
        fields.contradiction("active", f"each token uses {active} experts, of which there are {count}")
    if width is None:
        return None
    expert = _mlp(fields, family, width)
    shared = fields.integer_or_none("shared", low=0, high=MAX_EXPERTS) or 0
    apart = fields.integer_or_none("shared_width", low=0)
    wide = apart or (shared or family.has_shared_expert) * width
    return Experts(
        count=count,
        active=active,
        expert=expert,
        shared=replace(expert, width=wide) if wide else None,
        router_bias=family.router_bias,
        has_shared_gate=bool(apart) and fields.find("shared_width")[0] == "shared_expert_intermediate_size",
    )


def _placement(fields: ConfigFields, count: int) -> list[bool]:
    """Which layers have experts: everywhere, unless one of the known fields says otherwise."""
    layers = range(count)
    if fields.has("expert_layer_period"):
        period = fields.integer("expert_layer_period", high=MAX_LAYERS)
        offset = fields.integer("expert_layer_offset", low=0, high=MAX_LAYERS, default=0, why="not said")
        return [index % period == offset for index in layers]
    if fields.has("interleave_moe_layer_step"):
        step = fields.integer("interleave_moe_layer_step", high=MAX_LAYERS)
        return [(index + 1) % step == 0 for index in layers]
    first = fields.integer_or_none("first_k_dense_replace", low=0, high=MAX_LAYERS) or 0
    every = fields.integer_or_none("moe_layer_freq", high=MAX_LAYERS) or 1
    step = fields.integer_or_none("decoder_sparse_step", high=MAX_LAYERS) or 1
    without = fields.indices("mlp_only_layers") or frozenset()
    return [
        index >= first and index % every == 0 and (index + 1) % step == 0 and index not in without
        for index in layers
    ]
