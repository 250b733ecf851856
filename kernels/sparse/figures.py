"""What a stack of sparse layers amounts to: pairs, tiles, bytes, and how far it hears. Nothing is run.

Closed forms are for any length. What takes a mask is left out, with a note that says why, where the masks of
all different layers would hold more than ``MAX_PAIRS`` pairs; fields of a stack, layer by layer, where they
take more than ``MAX_STEPS`` (``receptive.steps``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import takewhile
from typing import NamedTuple

import numpy as np

from kernels.arrays import Array
from kernels.integers import ceil_div
from kernels.sparse import receptive
from kernels.sparse.density import closed_form, visible_pairs, window_pairs
from kernels.sparse.masks import mask_of
from kernels.sparse.questions import ITEM_BYTES, PatternQuestion, Seeing, never_ahead
from kernels.sparse.tiles import Tiles, count_tiles, full_bytes, kernel_bytes

MAX_PAIRS = 2**25
MAX_STEPS = 2**28
MAX_CONE = 2**18  # layers · tokens
MAX_RUNS = 16_384  # of consecutive tokens, in all levels of a cone
MAX_EQUAL_LAYERS = 1024  # that are tried until all is heard
STRIP = 256  # rows of a mask that are made at once, where tiles are no taller

Runs = list[tuple[int, int]]


@dataclass
class LayerFigures:
    """Of one head of a layer. None: not counted."""

    pairs: int | None
    closed_form: str | None
    tiles: Tiles | None = None
    visited: int | None = None  # tiles that the kernel loads; see ``tiles.kernel_bytes``
    bytes_read: int | None = None


class Field(NamedTuple):
    """What is heard after some layers: pairs in all, and of one token how far before and after."""

    pairs: int
    before: int
    after: int


class Reach(NamedTuple):
    """In closed form, far from both ends. None: to the end."""

    before: int | None
    after: int | None
    has_gaps: bool


@dataclass
class StackFigures:
    """Of all layers together. None: not computed, or not so for any number of layers."""

    possible_pairs: int  # that causality leaves, if it does in every layer
    fields: list[Field] | None = None
    cone: list[Runs] | None = None  # from the output of the last layer down to the input
    layers_to_hear_all: int | None = None
    reach: Reach | None = None
    gap_free_strides: list[int] | None = None


@dataclass
class PatternFigures:
    """The answer: of each kind of layer, of the stack, of attention to all; and why something is missing."""

    layers: list[LayerFigures]
    stack: StackFigures
    full: LayerFigures
    notes: list[str] = field(default_factory=list)


def pattern_figures(asked: PatternQuestion) -> PatternFigures:
    """All of it."""
    found = PatternFigures(
        [_counted(kind, asked.length) for kind in asked.kinds], _closed_stack(asked), _full(asked)
    )
    pairs = len(asked.kinds) * asked.length**2
    if pairs > MAX_PAIRS or asked.length > receptive.MAX_TOKENS:
        found.notes.append(_too_long(asked, pairs))
        return found
    masks = [_look(kind, asked, layer) for kind, layer in zip(asked.kinds, found.layers, strict=True)]
    found.stack.cone = _cone(asked, masks, found.notes)
    _hear(asked, masks, found)
    return found


def _too_long(asked: PatternQuestion, pairs: int) -> str:
    return (
        f"What takes a mask is left out: masks are made of up to {receptive.MAX_TOKENS:,} tokens and, of all "
        f"different layers together, up to {MAX_PAIRS:,} pairs; here they would be of {asked.length:,} "
        f"tokens and {pairs:,} pairs."
    )


# -- single layers -------------------------------------------------------------------------------------------


def _counted(kind: Seeing, length: int) -> LayerFigures:
    """The pairs in closed form."""
    plain = kind.among(length)
    form = closed_form(plain.pattern, plain.window, is_causal=plain.is_causal)
    if form is None:
        return LayerFigures(None, None)
    if plain.pattern is None:
        return LayerFigures(window_pairs(plain.window, length, is_causal=plain.is_causal), form)
    return LayerFigures(visible_pairs(plain.pattern, length, is_causal=plain.is_causal), form)


def _full(asked: PatternQuestion) -> LayerFigures:
    """Everyone sees everyone: all tiles are visited, and no mask is read."""
    layer = _counted(Seeing(), asked.length)
    rows, columns = ceil_div(asked.length, asked.block_m), ceil_div(asked.length, asked.block_n)
    layer.visited = rows * columns
    layer.tiles = Tiles(layer.visited, layer.visited, layer.visited)
    layer.bytes_read = full_bytes(
        asked.length, asked.block_m, head_dim=asked.head_dim, v_head_dim=asked.v_head_dim,
        item_bytes=ITEM_BYTES[asked.dtype],
    )  # fmt: skip
    return layer


def _look(kind: Seeing, asked: PatternQuestion, layer: LayerFigures) -> Array:
    """The mask of a layer; what it says is noted in ``layer``."""
    length, tall = asked.length, max(STRIP, asked.block_m)
    mask = np.empty((length, length), dtype=np.bool_)
    tiles, read, visited = Tiles(0, 0, 0), 0, 0
    for first in range(0, length, tall):
        rows = range(first, min(first + tall, length))
        sides = pattern = None
        if kind.sides != (None, None):
            sides = mask_of(None, length, is_causal=kind.is_causal, window=kind.window, rows=rows)
        if kind.pattern is not None:
            pattern = mask_of(kind.pattern, length, rows=rows)
        seen = mask[rows.start : rows.stop]
        seen[:] = True
        for part in (sides, pattern):
            if part is not None:
                seen &= part
        counted = count_tiles(seen, asked.block_m, asked.block_n)
        tiles = Tiles(*map(sum, zip(tiles, counted, strict=True)))
        kernel = kernel_bytes(
            seen.shape, asked.block_m, asked.block_n, head_dim=asked.head_dim, v_head_dim=asked.v_head_dim,
            item_bytes=ITEM_BYTES[asked.dtype], sides=sides, pattern=pattern,
        )  # fmt: skip
        read, visited = read + kernel.bytes, visited + kernel.visited
    layer.pairs = int(np.count_nonzero(mask))
    layer.tiles, layer.visited, layer.bytes_read = tiles, visited, read
    return mask


# -- stacks --------------------------------------------------------------------------------------------------


def _closed_stack(asked: PatternQuestion) -> StackFigures:
    """What is known of a stack without a mask."""
    length = asked.length
    is_causal = never_ahead(asked.kinds)
    stack = StackFigures(length * (length + 1) // 2 if is_causal else length * length)
    combs = [receptive.comb_of(kind.pattern, kind.sides) for kind in asked.kinds]
    known = [comb for comb in combs if comb is not None]
    if len(known) < len(combs):
        return stack
    layers = [known[number] for number in asked.order]
    before, after = receptive.stack_reach(layers)
    stack.reach = Reach(before, after, receptive.combs_have_gaps(layers))
    stack.gap_free_strides = _gap_free_strides(known, len(layers), length)
    if len(known) == 1 and known[0].stride == 1:
        stack.layers_to_hear_all = _layers_of_windows(known[0], length)
    return stack


def _gap_free_strides(combs: list[receptive.Comb], layers: int, length: int) -> list[int] | None:
    """The largest, below ``length``, for as many steps as all of these combs take; None where they differ."""
    (before, after), *others = {(comb.before, comb.after) for comb in combs}
    if others or not before or after not in (0, before):
        return None
    strides = receptive.growing_strides(layers, before, is_causal=after == 0)
    return list(takewhile(lambda stride: stride < length, strides))


def _layers_of_windows(comb: receptive.Comb, length: int) -> int | None:
    """As many as the longest way takes, from one end to the other."""
    sides = (comb.before,) if comb.after == 0 else (comb.before, comb.after)
    if length == 1:
        return 1
    if 0 in sides:
        return None
    return max(1 if side is None else ceil_div(length - 1, side) for side in sides)


def _hear(asked: PatternQuestion, masks: list[Array], found: PatternFigures) -> None:
    """What is heard after each layer, and after how many all of it."""
    stack, layers = found.stack, len(asked.order)
    is_known, are_equal = stack.layers_to_hear_all is not None, len(masks) == 1
    order = asked.order if is_known or not are_equal else (0,) * max(layers, MAX_EQUAL_LAYERS)
    fields, end = _follow(order, masks, asked.token, stack.possible_pairs)
    if end is End.ALL:
        stack.layers_to_hear_all = len(fields)
    if end in (End.ALL, End.FIXED):
        fields += [fields[-1]] * (layers - len(fields))
    if len(fields) < layers:
        found.notes.append(
            f"Fields are given for the first {len(fields)} of {layers} layers: more would take over "
            f"{MAX_STEPS:,} steps. Fewer tokens or sparser layers take fewer."
        )
    elif end is not End.ALL and not is_known:
        found.notes.append(_unheard(end, len(fields), stack.possible_pairs - fields[-1].pairs))
    stack.fields = fields[:layers]


class End(Enum):
    """Why fields are not followed any further."""

    ALL = "all is heard"
    FIXED = "another such layer changes nothing"
    WORK = "it would take too long"
    TOP = "there are no more layers"


def _follow(order: Sequence[int], masks: list[Array], token: int, possible: int) -> tuple[list[Field], End]:
    """Fields of layers in this order, until there is nothing more to find."""
    fields: list[Field] = []
    costs, work = [receptive.steps(mask) for mask in masks], 0
    heard_by_layer = receptive.receptive_fields(masks[kind] for kind in order)
    for number, kind in enumerate(order):
        work += costs[kind] if number else 0
        if work > MAX_STEPS:
            return fields, End.WORK
        heard = next(heard_by_layer)
        tokens = np.flatnonzero(heard[token])
        pairs = int(np.count_nonzero(heard))
        fields.append(Field(pairs, token - int(tokens[0]), int(tokens[-1]) - token))
        if pairs == possible:
            return fields, End.ALL
        if len(masks) == 1 and number and pairs == fields[-2].pairs:
            return fields, End.FIXED
    return fields, End.TOP


def _unheard(end: End, layers: int, pairs: int) -> str:
    if end is End.FIXED:
        return f"Pairs that are never heard, however many such layers there are: {pairs:,}."
    return f"Pairs that are still unheard after layer {layers}: {pairs:,}. No more were tried: {end.value}."


def _cone(asked: PatternQuestion, masks: list[Array], notes: list[str]) -> list[Runs] | None:
    """Of the token that was chosen, as runs of consecutive tokens."""
    layers = len(asked.order)
    if layers * asked.length > MAX_CONE:
        notes.append(
            f"The cone is left out: {layers} layers of {asked.length:,} tokens are more than {MAX_CONE:,} "
            "places. Ask for fewer of one."
        )
        return None
    levels = receptive.cone([masks[kind] for kind in asked.order], asked.token)
    runs = [_runs(level) for level in levels]
    if (count := sum(map(len, runs))) > MAX_RUNS:
        notes.append(
            f"The cone is left out: it has {count:,} runs of tokens, and at most {MAX_RUNS:,} are listed. "
            "Ask for fewer layers or tokens."
        )
        return None
    return runs


def _runs(level: Array) -> Runs:
    """First and last token of each run of those that are in it: of bool [n]."""
    steps = np.diff(level.astype(np.int8), prepend=0, append=0)
    firsts, ends = np.flatnonzero(steps == 1), np.flatnonzero(steps == -1)
    return list(zip(firsts.tolist(), (ends - 1).tolist(), strict=True))
