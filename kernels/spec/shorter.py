"""The same computation on shorter sequences: what could run in the place of one that is too much."""

from __future__ import annotations

from dataclasses import replace

from kernels.spec.families import PLAIN, PLAIN_INPUTS
from kernels.spec.model import Attention, Positions, RunSpec


def shortened(spec: RunSpec, part: int, whole: int) -> RunSpec:
    """``spec`` with q_len and kv_len multiplied by ``part`` / ``whole``, rounded down but not to 0.

    A past and the fresh keys are shortened alike; of a list of positions the beginning is kept. The table of
    a cache in pages becomes shorter, by whole pages, and the pages themselves stay.
    """

    def scaled(length: int) -> int:
        return max(min(length, 1), length * part // whole)

    q_len, kv_len = scaled(spec.q_len), scaled(spec.kv_len)
    axes = {"q_len": q_len, "kv_len": kv_len, "len": q_len}
    lengths = dict.fromkeys(("q", "dout"), q_len)
    if spec.is_paged:
        page = spec.inputs["k"].shape[1]
        blocks = max(1, kv_len // page) if kv_len else 0
        kv_len = blocks * page
    elif spec.family is PLAIN:
        fresh = scaled(spec.canonical_shape("k")[2])
        lengths |= dict.fromkeys(("k", "v"), fresh) | dict.fromkeys(
            ("past_key", "past_value"), kv_len - fresh
        )
    shapes = {name: given.shape for name, given in spec.inputs.items()}
    named = [name for name in spec.family.axes if name in shapes and name not in PLAIN_INPUTS]
    for name in named:
        own = spec.family.axes_of(name, 4 if spec.is_packed else spec.rank)
        shapes[name] = tuple(axes.get(axis, length) for axis, length in zip(own, shapes[name], strict=True))
    for name in lengths.keys() & shapes.keys():
        shapes[name] = (*shapes[name][:-2], lengths[name], shapes[name][-1])
    if spec.is_paged:
        shapes["block_table"] = (spec.batch, blocks)
    if "attn_mask" in shapes:
        shapes["attn_mask"] = _mask_shape(spec, q_len, kv_len)
    inputs = {name: replace(given, shape=shapes[name]) for name, given in spec.inputs.items()}
    return replace(spec, inputs=inputs, attention=_positioned(spec.attention, q_len, kv_len))


def _mask_shape(spec: RunSpec, q_len: int, kv_len: int) -> tuple[int, ...]:
    """An axis of length 1 that is broadcast stays one."""
    shape = list(spec.inputs["attn_mask"].shape)
    for axis, before, after in ((-2, spec.q_len, q_len), (-1, spec.kv_len, kv_len)):
        if len(shape) >= -axis and shape[axis] == before:
            shape[axis] = after
    return tuple(shape)


def _positioned(attention: Attention, q_len: int, kv_len: int) -> Attention:
    rope = attention.rope
    return replace(
        attention,
        q_positions=_first(attention.q_positions, q_len),
        kv_positions=_first(attention.kv_positions, kv_len),
        rope=rope and replace(rope, positions=_first(rope.positions, q_len)),
    )


def _first(given: Positions, length: int) -> Positions:
    """So many of a list of positions, or of each list."""
    if not isinstance(given, tuple):
        return given
    if given and isinstance(given[0], tuple):
        return tuple(row[:length] for row in given if isinstance(row, tuple))
    return tuple(position for position in given[:length] if isinstance(position, int))
