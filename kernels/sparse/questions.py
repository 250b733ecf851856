"""From a body of JSON to a question about a stack of sparse layers. Everything wrong is told at once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kernels.sparse.density import Sides
from kernels.spec.attention import parse_attention, parse_options
from kernels.spec.model import Attention, InputSpec, RunSpec
from kernels.spec.patterns import blocks_of, pattern_problems
from kernels.spec.problems import MALFORMED, TOO_LARGE, FieldProblem, Problems, join
from kernels.spec.reader import ObjectReader

MAX_LEN = 2**20
MAX_LAYERS = 256
MAX_HEAD_DIM = 1024
MAX_LISTED = 2**18  # numbers in the lists of all patterns
MAX_DRAWN = 2**22  # words from which the random blocks of all patterns are drawn
DEFAULT_BLOCK = 64
ITEM_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4}

SEEING = ("pattern", "window", "is_causal")
OF_EQUALS = (*SEEING, "num_layers")  # what says all of layers that are the same
TILES = ("block_m", "block_n")
FIELDS = ("len", *OF_EQUALS, "layers", "token", *TILES, "head_dim", "v_head_dim", "dtype")
OF_LAYER = (*SEEING, "repeat")


@dataclass(frozen=True)
class Seeing:
    """Whom the tokens of a layer see."""

    pattern: Mapping[str, Any] | None = None
    window: Sides = (None, None)
    is_causal: bool = False
    pointer: str = ""  # where the body says so

    @property
    def sides(self) -> Sides:
        """Tokens before and after that causality and the window let through; None: all of them."""
        return Attention(window=self.window, is_causal=self.is_causal).sides

    def among(self, length: int) -> Seeing:
        """The same for so many tokens, said as simply as can be: no window where it holds them all."""
        left, right = (None if side is None or side >= length - 1 else side for side in self.sides)
        is_causal = self.sides[1] == 0
        return Seeing(self.pattern, (left, None if is_causal else right), is_causal, self.pointer)


@dataclass(frozen=True)
class PatternQuestion:
    """What is asked, validated: self-attention over ``length`` tokens, in layers of which number l sees what
    ``kinds[order[l]]`` says; all kinds are different."""

    length: int
    kinds: tuple[Seeing, ...]
    order: tuple[int, ...]
    token: int
    block_m: int
    block_n: int
    head_dim: int
    v_head_dim: int
    dtype: str


def parse_pattern_question(body: object) -> PatternQuestion:
    """The question in the body of an estimate. Raises SpecError."""
    problems = Problems()
    reader = ObjectReader(body, "", problems, FIELDS)
    if not isinstance(body, dict):
        problems.raise_if_any()
    if not reader.has("len"):
        detail = f"say how many tokens there are: len, from 1 to {MAX_LEN:,}"
        problems.add(reader.at("len"), "required", detail, MALFORMED)
    length = reader.integer("len", 1, 1, MAX_LEN)
    head_dim = reader.integer("head_dim", 128, 1, MAX_HEAD_DIM)
    v_head_dim = reader.integer_or_null("v_head_dim", 1, MAX_HEAD_DIM) or head_dim
    dtype = reader.choice("dtype", "float16", tuple(ITEM_BYTES))
    block_m, block_n = _tiles(reader)
    layers = _layers(reader, None if problems.under(reader.at("len")) else length)
    problems.raise_if_any()
    kinds, order = _distinct(layers)
    _check_draws(kinds, length, problems)
    problems.raise_if_any()
    token = reader.integer_or_null("token", 0, length - 1)
    problems.raise_if_any()
    if token is None:
        token = _usual_token(kinds, length)
    return PatternQuestion(length, kinds, order, token, block_m, block_n, head_dim, v_head_dim, dtype)


def never_ahead(kinds: tuple[Seeing, ...]) -> bool:
    """Whether causality or a window says of every layer that no token sees one after it."""
    return all(kind.sides[1] == 0 for kind in kinds)


def _usual_token(kinds: tuple[Seeing, ...], length: int) -> int:
    """Whose cone is shown: the last, where tokens see backwards alone; else one in the middle."""
    return length - 1 if never_ahead(kinds) else length // 2


def _tiles(reader: ObjectReader) -> tuple[int, int]:
    """As a run has them among its options."""
    found = Problems()
    options = parse_options({name: reader.fields.get(name) for name in TILES}, "", {}, found)
    _take_over(found.found, "/options", "", reader.problems)
    return options.block_m or DEFAULT_BLOCK, options.block_n or DEFAULT_BLOCK


def _layers(reader: ObjectReader, length: int | None) -> list[Seeing]:
    """Each layer, the lowest first."""
    if not reader.has("layers"):
        count = reader.integer("num_layers", 1, 1, MAX_LAYERS)
        return [_seeing(reader, length, _Listed())] * count
    for name in OF_EQUALS:
        if reader.has(name):
            detail = f"layers say it, each for itself: leave {name} out, or leave layers out"
            reader.problems.add(reader.at(name), "contradiction", detail, MALFORMED)
    items = reader.fields["layers"]
    if not isinstance(items, list):
        reader.wrong_type("layers", "a list of objects with pattern, window, is_causal and repeat")
    elif not items:
        reader.problems.add(reader.at("layers"), "empty", "layers is empty; describe at least one")
    elif len(items) > MAX_LAYERS:
        _too_many(reader, len(items))
    else:
        return _of_items(reader, items, length)
    return []


def _of_items(reader: ObjectReader, items: list[Any], length: int | None) -> list[Seeing]:
    layers: list[Seeing] = []
    listed = _Listed()
    for index, item in enumerate(items):
        layer = ObjectReader(item, join(reader.at("layers"), index), reader.problems, OF_LAYER)
        layers += [_seeing(layer, length, listed)] * layer.integer("repeat", 1, 1, MAX_LAYERS)
    if len(layers) > MAX_LAYERS:
        _too_many(reader, len(layers))
    return layers


def _too_many(reader: ObjectReader, count: int) -> None:
    detail = f"layers describes {count:,}; at most {MAX_LAYERS} are followed: describe fewer, or repeat less"
    reader.problems.add(reader.at("layers"), "too-large", detail, TOO_LARGE)


@dataclass
class _Listed:
    """How many numbers the lists of patterns hold, those of layers before included."""

    count: int = 0

    def is_too_much(self, pattern: object) -> bool:
        """Whether it is, with those of ``pattern``; their numbers are not looked at."""
        for value in pattern.values() if isinstance(pattern, dict) else ():
            rows = value if isinstance(value, list) else []
            self.count += len(rows)
            if self.count > MAX_LISTED:
                return True
            self.count += sum(len(row) for row in rows if isinstance(row, list))
        return self.count > MAX_LISTED


def _seeing(reader: ObjectReader, length: int | None, listed: _Listed) -> Seeing:
    """What a run says among its ``attention``; checked against ``length`` where that is known."""
    given = {name: reader.fields[name] for name in SEEING if name in reader.fields}
    if listed.is_too_much(given.get("pattern")):
        detail = (
            f"with this pattern, there are {listed.count:,} numbers in lists; at most {MAX_LISTED:,} are "
            "read: shorten it, or describe it by a pattern without a list"
        )
        reader.problems.add(reader.at("pattern"), "too-large", detail, TOO_LARGE)
        return Seeing()
    found = Problems()
    attention = parse_attention(given, found)
    if not found.found and length is not None:
        shape = InputSpec((1, 1, length, 1), "float32", "seed")
        found.found += pattern_problems(RunSpec("", dict.fromkeys("qkv", shape), attention=attention))
    _take_over(found.found, "/attention", reader.pointer, reader.problems)
    return Seeing(attention.pattern, attention.window, attention.is_causal, reader.pointer)


def _take_over(found: list[FieldProblem], old: str, new: str, problems: Problems) -> None:
    """Problems of a body that has at ``old`` what this one has at ``new``."""
    for problem in found:
        problems.add(new + problem.pointer.removeprefix(old), problem.code, problem.detail, problem.status)


def _distinct(layers: list[Seeing]) -> tuple[tuple[Seeing, ...], tuple[int, ...]]:
    """Layers that see the same, once; and which of these each layer is."""
    described = {id(layer): layer for layer in layers}
    names = {name: json.dumps([each.pattern, each.sides], sort_keys=True) for name, each in described.items()}
    kinds = {names[name]: each for name, each in reversed(described.items())}
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names.values()))}
    return tuple(kinds[name] for name in numbers), tuple(numbers[names[id(layer)]] for layer in layers)


def _check_draws(kinds: tuple[Seeing, ...], length: int, problems: Problems) -> None:
    """The blocks that a bigbird sees are decided pair by pair."""
    drawn = 0
    for kind in kinds:
        if kind.pattern is None or kind.pattern["type"] != "bigbird":
            continue
        blocks = blocks_of(length, kind.pattern["block"])
        drawn += blocks * blocks
        if drawn > MAX_DRAWN:
            detail = (
                f"{length:,} tokens are {blocks:,} blocks here, and of all such layers {drawn:,} pairs of "
                f"blocks are decided by a draw; at most {MAX_DRAWN:,} are drawn: make block larger"
            )
            problems.add(join(kind.pointer, "pattern", "block"), "too-large", detail, TOO_LARGE)
            return
