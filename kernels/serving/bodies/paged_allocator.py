"""What may be asked of the paged allocator, and its answer."""

from __future__ import annotations

from typing import Any

from kernels.serving import paging
from kernels.serving.bodies.reading import (
    Answer,
    item_pointer,
    logged,
    one_source,
    read_body,
    read_list,
    read_name,
    read_range,
    read_seed,
    required,
)
from kernels.serving.paging import Operation, Workload
from kernels.spec.problems import TOO_LARGE, Problems, show
from kernels.spec.reader import ObjectReader

LIMITS = {
    "operations": 2_000,
    "sequences": 64,  # at once
    "tokens": 200_000,  # written by all operations together
    "num_blocks": 4_096,
    "block_size": 1_024,
    "max_len": 2**20,
}
FIELDS = ("num_blocks", "block_size", "max_len", "operations", "workload")
FIELDS_OF_OPERATION = {
    "allocate": ("op", "sequence", "tokens"),
    "append": ("op", "sequence", "tokens"),
    "fork": ("op", "sequence", "from", "tokens"),
    "free": ("op", "sequence"),
}
EXAMPLE: dict[str, Any] = {
    "num_blocks": 8,
    "block_size": 4,
    "max_len": 16,
    "operations": [
        {"op": "allocate", "sequence": "a", "tokens": 6},
        {"op": "fork", "sequence": "b", "from": "a"},
        {"op": "append", "sequence": "a"},
        {"op": "append", "sequence": "b", "tokens": 3},
        {"op": "free", "sequence": "a"},
    ],
}


def simulate(body: object) -> Answer:
    """Answer ``POST /api/v1/simulations/paged-allocator``. Raises :class:`kernels.spec.SpecError`."""
    reader = read_body(body, FIELDS)
    num_blocks = reader.integer("num_blocks", 64, 1, LIMITS["num_blocks"])
    block_size = reader.integer("block_size", 16, 1, LIMITS["block_size"])
    max_len = reader.integer_or_null("max_len", 1, LIMITS["max_len"])
    operations = _operations(reader)
    _check_tokens(operations, reader)
    reader.problems.raise_if_any()
    longest = max(paging.longest(operations).values())
    if max_len is not None and longest > max_len:
        detail = (
            f"a sequence reaches {longest:,} tokens, more than max_len ({max_len:,}): raise it or append less"
        )
        reader.problems.add("/max_len", "out-of-range", detail)
        reader.problems.raise_if_any()
    given = {"num_blocks": num_blocks, "block_size": block_size, "max_len": max_len or max(1, longest)}
    answer = logged(
        lambda log: paging.compare(operations, **given, log=log), "send fewer operations, or of fewer tokens"
    )
    return {**given, **answer}


def _check_tokens(operations: list[Operation], reader: ObjectReader) -> None:
    tokens = sum(each.tokens for each in operations if each.op != "fork")
    if tokens > LIMITS["tokens"]:
        detail = (
            f"the operations write {tokens:,} tokens; at most {LIMITS['tokens']:,} are simulated: fewer or "
            "shorter sequences"
        )
        where = "operations" if reader.has("operations") else "workload"
        reader.problems.add(reader.at(where), "too-large", detail, TOO_LARGE)


def _operations(reader: ObjectReader) -> list[Operation]:
    source = one_source(reader, ("operations", "workload"))
    if source == "workload":
        return _from_workload(reader)
    if not source:
        return []
    operations: list[Operation] = []
    alive: dict[str, int] = {}  # length of each sequence, if everything finds room
    for index, item in enumerate(read_list(reader, "operations", LIMITS["operations"], "operations")):
        operation = _operation(item, item_pointer(reader, "operations", index), reader.problems, alive)
        if operation is not None:
            operations.append(operation)
    return operations


def _operation(item: object, pointer: str, problems: Problems, alive: dict[str, int]) -> Operation | None:
    """One operation, if it is right; ``alive`` is brought up to date."""
    op = item.get("op") if isinstance(item, dict) else None
    allowed = FIELDS_OF_OPERATION.get(op, ()) if isinstance(op, str) else ()
    reader = ObjectReader(item, pointer, problems, allowed or FIELDS_OF_OPERATION["fork"])
    if not isinstance(item, dict):
        return None
    reader.choice("op", "", paging.OPERATIONS)
    sequence = read_name(reader, "sequence")
    parent = read_name(reader, "from") if op == "fork" else ""
    if not allowed or problems.under("/operations"):
        return None  # after a mistake it is not known which sequences are there
    if op in ("allocate", "fork"):
        _check_new(reader, sequence, alive)
    else:
        _check_alive(reader, "sequence", sequence, alive)
    if parent:
        _check_alive(reader, "from", parent, alive)
    tokens = _tokens(reader, str(op), alive.get(parent, 0))
    if problems.under(pointer):
        return None
    if op == "free":
        del alive[sequence]
    else:
        alive[sequence] = alive.get(sequence, 0) + tokens
    return Operation(str(op), sequence, tokens, parent)


def _tokens(reader: ObjectReader, op: str, parent_length: int) -> int:
    if op == "free":
        return 0
    if op == "fork":
        return reader.integer("tokens", parent_length, 0, parent_length)
    if op == "allocate" and "tokens" not in reader.fields:
        required(reader, "tokens", "how many it begins with; 0 for none")
    return reader.integer("tokens", 1, 0, LIMITS["max_len"])


def _check_new(reader: ObjectReader, name: str, alive: dict[str, int]) -> None:
    if name in alive:
        detail = f"there is a sequence {show(name)} already; free it first or choose another name"
        reader.problems.add(reader.at("sequence"), "already-there", detail)
    elif len(alive) >= LIMITS["sequences"]:
        detail = f"{len(alive)} sequences are there, the most that are simulated at once; free one first"
        reader.problems.add(reader.at("sequence"), "too-large", detail, TOO_LARGE)


def _check_alive(reader: ObjectReader, field: str, name: str, alive: dict[str, int]) -> None:
    if name not in alive:
        detail = f"there is no sequence {show(name)} at this point; allocate it first"
        reader.problems.add(reader.at(field), "not-there", detail)


def _from_workload(body: ObjectReader) -> list[Operation]:
    names = ("seed", "requests", "running", "samples", "prompt_len", "output_len")
    reader = ObjectReader(body.fields["workload"], "/workload", body.problems, names)
    sequences = LIMITS["sequences"]
    workload = Workload(
        requests=reader.integer("requests", 8, 1, LIMITS["operations"]),
        running=reader.integer("running", 4, 1, sequences),
        samples=reader.integer("samples", 1, 1, sequences),
        prompt_len=read_range(reader, "prompt_len", (8, 64), 1, LIMITS["max_len"]),
        output_len=read_range(reader, "output_len", (1, 64), 1, LIMITS["operations"]),
        seed=read_seed(reader),
    )
    if workload.running * workload.samples > sequences:
        detail = (
            f"running × samples is {workload.running * workload.samples}; at most {sequences} sequences are "
            "simulated at once: lower one of them"
        )
        body.problems.add("/workload/running", "too-large", detail, TOO_LARGE)
    if body.problems.found:
        return []
    count = sum(2 * workload.samples + sum(outputs) for _, outputs in workload.lengths())
    if count > LIMITS["operations"]:
        detail = (
            f"the workload takes {count:,} operations (one for each token of output); at most "
            f"{LIMITS['operations']:,} are simulated: fewer requests or samples, or shorter outputs"
        )
        body.problems.add("/workload/requests", "too-large", detail, TOO_LARGE)
        return []
    return workload.operations()
