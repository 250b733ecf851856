"""What may be asked of speculative decoding, and its answer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from kernels.serving import goodness, speculative
from kernels.serving.bodies.reading import Answer, logged, read_body, read_list, read_seed
from kernels.serving.draws import Draws
from kernels.serving.events import EventLog
from kernels.serving.speculative import Generated
from kernels.spec.problems import MALFORMED, TOO_LARGE, join, show
from kernels.spec.reader import ObjectReader, is_number, to_float

LIMITS = {
    "vocabulary": 128,
    "positions": 5_000,
    "probabilities": 65_536,  # of a table
    "tokens": 5_000,  # of all sequences together
    "gamma": 16,
}
TOLERANCE = 1e-6  # of the sum of probabilities, which are then normalised
FIELDS = ("target", "draft", "gamma", "tokens", "sequences", "draft_cost", "seed")
EXAMPLE: dict[str, Any] = {
    "target": [0.5, 0.3, 0.2],
    "draft": [0.2, 0.3, 0.5],
    "gamma": 3,
    "tokens": 200,
    "draft_cost": 0.1,
    "seed": 1,
}

Rows = list[list[float]]


def simulate(body: object) -> Answer:
    """Answer ``POST /api/v1/simulations/speculative``. Raises :class:`kernels.spec.SpecError`."""
    reader = read_body(body, FIELDS)
    target, draft = _table(reader, "target"), _table(reader, "draft")
    gamma = reader.integer("gamma", 4, 0, LIMITS["gamma"])
    cost = reader.number("draft_cost", 0.1, 0.0, 1e6)
    sequences = reader.integer("sequences", 1, 1, LIMITS["tokens"])
    seed = read_seed(reader)
    reader.problems.raise_if_any()
    tokens = _tokens(reader, target, draft, sequences)
    reader.problems.raise_if_any()
    given = {"gamma": gamma, "draft_cost": cost, "tokens": tokens, "sequences": sequences, "seed": seed}
    is_constant = len(target) == len(draft) == 1
    rows, drafted = (table * tokens if len(table) == 1 else table[:tokens] for table in (target, draft))
    answer = logged(
        lambda log: _run(rows, drafted, given, is_constant=is_constant, log=log),
        "ask for fewer tokens or sequences",
    )
    return {**given, **answer}


def _run(
    target: Rows, draft: Rows, given: dict[str, Any], *, is_constant: bool, log: EventLog
) -> dict[str, Any]:
    gamma, cost, draws = given["gamma"], given["draft_cost"], Draws(given["seed"])
    written = [
        speculative.generate(target, draft, gamma, draws, log=log, sequence=number)
        for number in range(given["sequences"])
    ]
    lengths = range(LIMITS["gamma"] + 1)
    if is_constant:
        alphas = [speculative.acceptance(target[0], draft[0])] * len(target)
        speedups = [speculative.expected_speedup(alphas[0], length, cost) for length in lengths]
    else:
        alphas = [speculative.acceptance(p, q) for p, q in zip(target, draft, strict=True)]
        speedups = [len(target) / speculative.expected_time(alphas, length, cost) for length in lengths]
    return {
        "summary": {
            "alpha": alphas[0] if is_constant else math.fsum(alphas) / len(alphas),
            "expected": _expected(alphas, gamma, cost),
            "closed_form": _closed_form(alphas[0], gamma, cost) if is_constant else None,
            "measured": _measured(written, cost),
            "best_gamma": speculative.best_length(lambda length: speedups[length], LIMITS["gamma"]),
        },
        "speedup_by_gamma": speedups,
        "alpha": alphas[:1] if is_constant else alphas,
        "distribution": _distribution(target, draft, written, is_constant=is_constant),
        "tokens_written": [each.tokens for each in written],
    }


def _expected(alphas: list[float], gamma: int, cost: float) -> dict[str, float]:
    """Exactly, for sequences of this length: at the end less is drafted."""
    tokens, runs = len(alphas), speculative.expected_time(alphas, gamma, 0.0)
    speedup = tokens / speculative.expected_time(alphas, gamma, cost)
    return {"runs": runs, "tokens_per_run": tokens / runs, "speedup": speedup}


def _closed_form(alpha: float, gamma: int, cost: float) -> dict[str, float]:
    """For a sequence without end."""
    tokens = speculative.expected_tokens(alpha, gamma)
    return {"tokens_per_run": tokens, "speedup": speculative.expected_speedup(alpha, gamma, cost)}


def _measured(written: list[Generated], cost: float) -> dict[str, float | int | None]:
    tokens, runs = sum(len(each.tokens) for each in written), sum(each.runs for each in written)
    drafted, examined, accepted = (
        sum(getattr(each, name) for each in written) for name in ("drafted", "examined", "accepted")
    )
    return {
        "runs": runs,
        "drafted": drafted,
        "examined": examined,
        "accepted": accepted,
        "alpha": accepted / examined if examined else None,
        "tokens_per_run": tokens / runs,
        "speedup": tokens / (runs + cost * drafted),
    }


def _distribution(
    target: Rows, draft: Rows, written: list[Generated], *, is_constant: bool
) -> dict[str, Any]:
    """What was written beside what the target alone would write. Of constant distributions all positions
    are counted together; of tables each by itself."""
    by_position = [[each.tokens[position] for each in written] for position in range(len(target))]
    if is_constant:
        target, draft = target[:1], draft[:1]
        by_position = [[token for tokens in by_position for token in tokens]]
    counts = [[tokens.count(token) for token in range(len(target[0]))] for tokens in by_position]
    fits = [goodness.chi_square(*each) for each in zip(counts, target, strict=True)]
    statistic, degrees = math.fsum(fit.statistic for fit in fits), sum(fit.degrees for fit in fits)
    p_value = goodness.upper_tail(statistic, degrees) if degrees else None
    pairs = list(zip(target, draft, strict=True))
    return {
        "target": target,
        "draft": draft,
        "residual": [speculative.residual(p, q) for p, q in pairs],
        "produced": [speculative.produced(p, q) for p, q in pairs],
        "counts": counts,
        "chi_square": asdict(goodness.Fit(statistic, degrees, p_value)),
    }


def _tokens(reader: ObjectReader, target: Rows, draft: Rows, sequences: int) -> int:
    """How long a sequence is: as asked for, or as long as the tables."""
    if len(target[0]) != len(draft[0]):
        detail = (
            f"target has {len(target[0])} probabilities and draft {len(draft[0])}; both need one for each "
            "token of the same vocabulary"
        )
        reader.problems.add(reader.at("draft"), "shape-mismatch", detail)
    rows = {len(table) for table in (target, draft)} - {1}
    if len(rows) > 1:
        detail = (
            f"target has {len(target)} positions and draft {len(draft)}; give both as many, or one for all"
        )
        reader.problems.add(reader.at("draft"), "shape-mismatch", detail)
        return 1
    longest = min(rows, default=LIMITS["positions"])
    tokens = reader.integer("tokens", min(longest, 100) if not rows else longest, 1, longest)
    if tokens * sequences > LIMITS["tokens"]:
        detail = (
            f"tokens × sequences is {tokens * sequences:,}; at most {LIMITS['tokens']:,} are drawn: lower one"
        )
        reader.problems.add(reader.at("sequences"), "too-large", detail, TOO_LARGE)
    return tokens


def _table(reader: ObjectReader, name: str) -> Rows:
    """A distribution, or one for each position; [[1.0]] when there is a problem."""
    value = reader.fields.get(name)
    is_table = isinstance(value, list) and bool(value) and isinstance(value[0], list)
    limit = LIMITS["positions"] if is_table else LIMITS["vocabulary"]
    found = read_list(reader, name, limit, "distributions" if is_table else "probabilities")
    if not found:
        return [[1.0]]
    if not is_table:
        row = _distribution_of(found, reader.at(name), reader)
        return [row] if row else [[1.0]]
    width = len(found[0])
    if width * len(found) > LIMITS["probabilities"]:
        most = LIMITS["probabilities"]
        detail = (
            f"{name} has {len(found):,} × {width} probabilities; at most {most:,} are accepted: send fewer"
        )
        reader.problems.add(reader.at(name), "too-large", detail, TOO_LARGE)
        return [[1.0]]
    rows = []
    for index, row in enumerate(found):
        pointer = join(reader.at(name), index)
        if not isinstance(row, list) or len(row) != width:
            detail = f"a distribution has as many probabilities as the first ({width}), unlike {show(row)}"
            reader.problems.add(pointer, "shape-mismatch", detail)
        elif not (read := _distribution_of(row, pointer, reader)):
            continue
        else:
            rows.append(read)
    return rows or [[1.0]]


def _distribution_of(row: Sequence[object], pointer: str, reader: ObjectReader) -> list[float]:
    """Probabilities, normalised exactly; empty when there is a problem."""
    problems = reader.problems
    if not 1 <= len(row) <= LIMITS["vocabulary"]:
        detail = f"a distribution has 1 to {LIMITS['vocabulary']} probabilities, not {len(row)}"
        problems.add(pointer, "too-large" if row else "empty", detail, TOO_LARGE if row else 422)
        return []
    for index, value in enumerate(row):
        if not is_number(value):
            detail = f"a probability is a number, not {show(value)}"
            problems.add(join(pointer, index), "wrong-type", detail, MALFORMED)
            return []
        if not 0 <= to_float(value) <= 1:
            detail = f"a probability is between 0 and 1, unlike {show(value)}"
            problems.add(join(pointer, index), "out-of-range", detail)
            return []
    numbers = [to_float(value) for value in row]
    total = math.fsum(numbers)
    if abs(total - 1) > TOLERANCE:
        detail = f"the probabilities sum to {total:.6g}; divide each by that, so that the sum is 1"
        problems.add(pointer, "not-normalised", detail)
        return []
    return [number / total for number in numbers]
