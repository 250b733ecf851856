"""What may be asked of the recall simulator, and its answer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kernels.arrays import Array
from kernels.scan import recall
from kernels.scan.recall import Pairs, Recall
from kernels.serving.bodies.reading import (
    Answer,
    item_pointer,
    logged,
    read_body,
    read_list,
    read_seed,
    required,
)
from kernels.serving.events import EventLog
from kernels.sizing.kv_cache import state_numbers, token_bytes
from kernels.sizing.layers import Attention, LinearAttention
from kernels.sizing.storage import CACHE_BITS, cache_format
from kernels.spec.problems import MALFORMED, TOO_LARGE, FieldProblem, SpecError, join, show
from kernels.spec.reader import ObjectReader, is_integer, is_number, to_float

LIMITS = {
    "pairs": 1024,
    "d_k": 256,
    "vocabulary": 1024,
    "numbers": 2**16,  # in keys of one's own
    "counts": 32,  # of a sweep
    "products": 400_000_000,  # sweep included: N² (d_k + V + 128) + 2 N d_k V for N pairs
}
TASKS = ("recall", "copy")
MEMORIES = ("attention", "linear", "delta")
DTYPES = ("float32", "float16", "bfloat16")
COUNTED = {"recall": "pairs", "copy": "tokens"}  # what a task calls those that are to be remembered
DEFAULT_COUNT, DEFAULT_D_K, DEFAULT_VOCABULARY = 64, 16, 32
FIELDS = ("task", *COUNTED.values(), "d_k", "vocabulary", "seed", "keys", "symbols", "dtype", "sweep")
LARGEST = 1e38  # of a number in keys of one's own
EXAMPLE: dict[str, Any] = {
    "task": "recall",
    "pairs": 64,
    "d_k": 16,
    "vocabulary": 32,
    "seed": 1,
    "sweep": {"counts": [8, 16, 32, 64, 128, 256]},
}

Memories = dict[str, Recall]


@dataclass(frozen=True)
class Asked:
    """What is to be remembered: ``count`` pairs, drawn but for the ``keys`` [N, d_k] and ``symbols`` [N] that
    were sent. A ``vocabulary`` of None: all symbols are different."""

    task: str
    count: int
    d_k: int
    vocabulary: int | None
    seed: int = 0
    keys: Array | None = None
    symbols: Array | None = None

    def pairs(self, count: int) -> Pairs:
        """So many of them."""
        if self.task == "copy":
            drawn = recall.copy_pairs(count, d_k=self.d_k, seed=self.seed, vocabulary=self.vocabulary)
        elif self.keys is not None and self.symbols is not None:
            return Pairs(self.keys, self.symbols, self.vocabulary or 1)
        else:
            symbols = self.symbols_of(count)
            drawn = recall.recall_pairs(count, d_k=self.d_k, vocabulary=symbols, seed=self.seed)
        return drawn if self.symbols is None else Pairs(drawn.keys, self.symbols, drawn.vocabulary)

    def symbols_of(self, count: int) -> int:
        """How many different symbols there are."""
        return count if self.vocabulary is None else self.vocabulary

    def expected(self, count: int) -> float | None:
        """Accuracy of the linear state, where keys are orthonormal or random."""
        if self.keys is None and count <= self.d_k:
            return 1.0
        if self.keys is not None or self.task == "copy":
            return None
        return recall.expected_accuracy(count, d_k=self.d_k, vocabulary=self.symbols_of(count))


def simulate(body: object) -> Answer:
    """Answer ``POST /api/v1/simulations/recall``. Raises :class:`kernels.spec.SpecError`."""
    reader = read_body(body, FIELDS)
    if "task" not in reader.fields:
        required(reader, "task", "recall (of pairs, by their keys) or copy (a sequence, by its positions)")
    task = reader.choice("task", TASKS[0], TASKS)
    dtype = reader.choice("dtype", DTYPES[0], DTYPES)
    asked = _asked(reader, task)
    counts = _sweep(reader, asked) if reader.has("sweep") else []
    reader.problems.raise_if_any()
    _check_products(reader, asked, counts)
    reader.problems.raise_if_any()
    item = CACHE_BITS[dtype] // 8
    pairs, memories = _remembered(asked, asked.count, reader.at("d_k"))
    sweep = _curves(asked, counts, item, join(reader.at("sweep"), "counts")) if counts else None
    shown = {
        "task": task,
        "pairs": asked.count,
        "d_k": asked.d_k,
        "vocabulary": pairs.vocabulary,
        "seed": None if asked.symbols is not None else asked.seed,
        "dtype": dtype,
    }
    summary = {**_summary(asked, pairs, memories), **_sizes(asked, asked.count, dtype)}
    answer = logged(lambda log: _ask(pairs, memories, log), "ask for fewer pairs")
    return {**shown, "summary": summary, "sweep": sweep, **answer}


# -- the answer ----------------------------------------------------------------------------------------------


def _remembered(asked: Asked, count: int, pointer: str) -> tuple[Pairs, Memories]:
    """Pairs, and what each memory makes of them. Raises SpecError where two keys are the same."""
    pairs = asked.pairs(count)
    try:
        found = (
            recall.attention_recall(pairs),
            recall.linear_recall(pairs),
            recall.linear_recall(pairs, delta=True),
        )
    except ValueError:
        detail = (
            f"of {count:,} keys two are the same to nine digits where d_k is {asked.d_k}, so that nothing "
            "tells their values apart: raise d_k, lower the count, or draw with another seed"
        )
        raise SpecError([FieldProblem(pointer, "not-distinct", detail)]) from None
    return pairs, dict(zip(MEMORIES, found, strict=True))


def _summary(asked: Asked, pairs: Pairs, memories: Memories) -> Answer:
    return {
        "memories": {
            name: {"accuracy": each.accuracy, "squared_error": each.squared_error}
            for name, each in memories.items()
        },
        "expected_accuracy": asked.expected(len(pairs.symbols)),
        "least_squared_error": recall.least_squared_error(pairs.symbols, asked.d_k),
        "sharpness": recall.sharpness(pairs.keys),
    }


def _sizes(asked: Asked, count: int, dtype: str) -> Answer:
    """A state beside a cache of the same numbers, and how many sequences it tells apart."""
    vocabulary, item = asked.symbols_of(count), CACHE_BITS[dtype] // 8
    numbers = state_numbers(LinearAttention(1, 1, asked.d_k, vocabulary))
    per_pair = token_bytes(Attention(1, 1, asked.d_k, vocabulary), cache_format(dtype))
    return {
        "state": {"numbers": numbers, "bits": 8 * item * numbers, "bytes": item * numbers},
        "kv_cache": {"bytes": per_pair * count, "bytes_per_pair": per_pair},
        "break_even_pairs": item * numbers // per_pair + 1,
        "needed_bits": count * math.log2(vocabulary),
        "copied_fraction": _copied(asked, count, item),
    }


def _copied(asked: Asked, count: int, item: int) -> float:
    vocabulary = asked.symbols_of(count)
    return recall.copied_fraction(8 * item * asked.d_k * vocabulary, tokens=count, vocabulary=vocabulary)


def _ask(pairs: Pairs, memories: Memories, log: EventLog) -> Answer:
    """Each pair is asked for once, in the order of writing."""
    for index, symbol in enumerate(pairs.symbols.tolist()):
        answers = {name: int(each.answers[index]) for name, each in memories.items()}
        right = {f"{name}_right": bool(each.right[index]) for name, each in memories.items()}
        log.add(index, "asked", {"pair": index}, symbol=symbol, **answers, **right)
    return {}


def _curves(asked: Asked, counts: Sequence[int], item: int, pointer: str) -> Answer:
    """The same for each count, one list for each figure."""
    rows = []
    for index, count in enumerate(counts):
        pairs, memories = _remembered(asked, count, join(pointer, index))
        rows.append(
            {
                "counts": count,
                **{name: each.accuracy for name, each in memories.items()},
                "expected_accuracy": asked.expected(count),
                **{f"{name}_squared_error": memories[name].squared_error for name in ("linear", "delta")},
                "least_squared_error": recall.least_squared_error(pairs.symbols, asked.d_k),
                "copied_fraction": _copied(asked, count, item),
            }
        )
    return {name: [row[name] for row in rows] for name in rows[0]}


# -- the body ------------------------------------------------------------------------------------------------


def _asked(reader: ObjectReader, task: str) -> Asked:
    own = [name for name in ("keys", "symbols") if reader.has(name)]
    for name in own:
        _contradicted(reader, [*COUNTED.values(), "seed"], f"{name} are your own and need none")
        if task == "copy" and name == "keys":
            detail = "copying has positions for keys: leave keys out, or say task recall"
            reader.problems.add(reader.at("keys"), "contradiction", detail)
    if own == ["keys"] or (own == ["symbols"] and task == "recall"):
        missing = "symbols" if own == ["keys"] else "keys"
        required(reader, missing, "keys and symbols go together, one of each to a pair")
    other = COUNTED[next(each for each in TASKS if each != task)]
    _contradicted(reader, [other], f"task {task} counts {COUNTED[task]}")
    if own:
        return _own(reader, task)
    count = reader.integer(COUNTED[task], DEFAULT_COUNT, 1, LIMITS["pairs"])
    is_different = task == "copy" and "vocabulary" in reader.fields and not reader.has("vocabulary")
    vocabulary = None if is_different else _vocabulary(reader, DEFAULT_VOCABULARY)
    return Asked(task, count, _d_k(reader, task), vocabulary, read_seed(reader))


def _own(reader: ObjectReader, task: str) -> Asked:
    """Pairs or a sequence of the reader's own."""
    symbols = _symbols(reader)
    needed = max(symbols, default=0) + 1
    vocabulary = _vocabulary(reader, needed)
    if vocabulary < needed:
        detail = (
            f"symbol {needed - 1} is one of at least {needed}, not of {vocabulary}: raise it, or leave it out"
        )
        reader.problems.add(reader.at("vocabulary"), "out-of-range", detail)
    chosen = np.array(symbols, dtype=np.int64)
    if task == "copy":
        return Asked(task, len(symbols), _d_k(reader, task), vocabulary, symbols=chosen)
    _contradicted(reader, ["d_k"], "keys say how many dimensions they have")
    keys = _keys(reader)
    if len(keys) != len(symbols) and keys and symbols:
        detail = f"there are {len(keys)} keys and {len(symbols)} symbols; a pair has one of each"
        reader.problems.add(reader.at("symbols"), "shape-mismatch", detail)
    lengths = np.array(keys or [[1.0]])
    lengths /= np.abs(lengths).max(axis=1, keepdims=True)  # lest squares overflow
    unit = lengths / np.linalg.norm(lengths, axis=1, keepdims=True)
    _check_distinct(reader, unit)
    return Asked(task, len(keys), unit.shape[1], vocabulary, keys=unit, symbols=chosen)


def _d_k(reader: ObjectReader, task: str) -> int:
    d_k = reader.integer("d_k", DEFAULT_D_K, 1, LIMITS["d_k"])
    if task == "copy" and d_k % 2:
        detail = f"d_k must be even, a sine and a cosine for each frequency, not {d_k}; {d_k + 1} would do"
        reader.problems.add(reader.at("d_k"), "out-of-range", detail)
    return d_k


def _vocabulary(reader: ObjectReader, default: int) -> int:
    return reader.integer("vocabulary", default, 1, LIMITS["vocabulary"])


def _contradicted(reader: ObjectReader, names: Sequence[str], why: str) -> None:
    for name in names:
        if reader.has(name) and not reader.problems.under(reader.at(name)):
            reader.problems.add(reader.at(name), "contradiction", f"{why}: leave {name} out", MALFORMED)


def _symbols(reader: ObjectReader) -> list[int]:
    """Empty when there is a problem."""
    if not reader.has("symbols"):
        return []
    found = read_list(reader, "symbols", LIMITS["pairs"], "symbols")
    for index, symbol in enumerate(found):
        if not is_integer(symbol):
            detail = f"a symbol is an integer, its number in the vocabulary, not {show(symbol)}"
            reader.problems.add(item_pointer(reader, "symbols", index), "wrong-type", detail, MALFORMED)
            return []
        if not 0 <= symbol < LIMITS["vocabulary"]:
            most = LIMITS["vocabulary"] - 1
            detail = f"a symbol is between 0 and {most}, unlike {show(symbol)}: number them from 0"
            reader.problems.add(item_pointer(reader, "symbols", index), "out-of-range", detail)
            return []
    return found


def _keys(reader: ObjectReader) -> list[list[float]]:
    """Rows of one width, none of them 0; empty when there is a problem."""
    if not reader.has("keys"):
        return []
    rows = read_list(reader, "keys", LIMITS["pairs"], "keys")
    width = len(rows[0]) if rows and isinstance(rows[0], list) else 0
    if len(rows) * width > LIMITS["numbers"]:
        detail = (
            f"keys has {len(rows):,} × {width:,} numbers; at most {LIMITS['numbers']:,} are accepted: send "
            "fewer keys, or shorter ones"
        )
        reader.problems.add(reader.at("keys"), "too-large", detail, TOO_LARGE)
        return []
    keys = [_key(row, width, item_pointer(reader, "keys", index), reader) for index, row in enumerate(rows)]
    return keys if all(keys) else []


def _key(row: object, width: int, pointer: str, reader: ObjectReader) -> list[float]:
    problems = reader.problems
    if not isinstance(row, list):
        problems.add(pointer, "wrong-type", f"a key is a list of numbers, not {show(row)}", MALFORMED)
        return []
    if len(row) != width or not 1 <= width <= LIMITS["d_k"]:
        detail = f"a key has 1 to {LIMITS['d_k']} numbers, as many as the first ({width}), unlike {show(row)}"
        problems.add(pointer, "shape-mismatch", detail)
        return []
    for index, number in enumerate(row):
        if not is_number(number):
            detail = f"a key holds numbers, not {show(number)}"
            problems.add(join(pointer, index), "wrong-type", detail, MALFORMED)
            return []
        if not abs(to_float(number)) <= LARGEST:
            detail = (
                f"a number of a key is between ±{LARGEST:g}, unlike {show(number)}: divide all by the largest"
            )
            problems.add(join(pointer, index), "out-of-range", detail)
            return []
    if not any(row):
        detail = "a key of zeros has no direction; give it one number that is not 0"
        problems.add(pointer, "out-of-range", detail)
        return []
    return [float(number) for number in row]


def _check_distinct(reader: ObjectReader, keys: Array) -> None:
    """That no two keys [N, d_k] point the same way."""
    if reader.problems.found:
        return
    same = np.argwhere(np.triu(keys @ keys.T > 1 - recall.LEAST_GAP, 1))
    if len(same):
        first, second = same[0].tolist()
        detail = (
            f"this key points the same way as key {first} (only directions count), so that nothing can tell "
            "their values apart: change one of them"
        )
        reader.problems.add(item_pointer(reader, "keys", second), "not-distinct", detail)


def _sweep(body: ObjectReader, asked: Asked) -> list[int]:
    """The counts that are to be compared; none when there is a problem."""
    reader = ObjectReader(body.fields["sweep"], body.at("sweep"), body.problems, ("counts",))
    if asked.symbols is not None:
        _contradicted(body, ["sweep"], "a sweep draws others, and these are your own")
    if body.problems.under(reader.pointer):
        return []
    counts = read_list(reader, "counts", LIMITS["counts"], "numbers of pairs")
    for index, count in enumerate(counts):
        pointer = item_pointer(reader, "counts", index)
        if not is_integer(count):
            detail = f"a count is an integer, not {show(count)}"
            body.problems.add(pointer, "wrong-type", detail, MALFORMED)
        elif not 1 <= count <= LIMITS["pairs"]:
            detail = f"a count is between 1 and {LIMITS['pairs']:,}, unlike {show(count)}"
            body.problems.add(pointer, "out-of-range", detail)
    return counts


def _check_products(reader: ObjectReader, asked: Asked, counts: Sequence[int]) -> None:
    """That it is soon computed."""
    products = sum(_products(asked, count) for count in (asked.count, *counts))
    if products > LIMITS["products"]:
        detail = (
            f"this takes {products:,} products (for N pairs, N² (d_k + V + 128) + 2 N d_k V); at most "
            f"{LIMITS['products']:,} are computed: fewer pairs, dimensions or symbols"
        )
        drawn = join(reader.at("sweep"), "counts") if counts else reader.at(COUNTED[asked.task])
        where = drawn if asked.symbols is None else reader.at("symbols")
        reader.problems.add(where, "too-large", detail, TOO_LARGE)


def _products(asked: Asked, count: int) -> int:
    """Of numbers; a weight of a softmax takes as long as 128 of them."""
    d_k, vocabulary = asked.d_k, asked.symbols_of(count)
    return count * count * (d_k + vocabulary + 128) + 2 * count * d_k * vocabulary
