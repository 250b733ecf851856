"""Where queries and keys stand: `i` is a column of positions, `j` a row."""

from typing import Any

import numpy as np

from lab.sharing.program.facts import Facts, Lines, counted, is_by_row, typed

COLUMN, ROW = "[:, None, :, None]", "[:, None, None, :]"  # of [batch, length] beside [batch, heads, n, m]


def places(facts: Facts) -> Lines:
    if not facts.needs_positions and not shares_tokens(facts):
        return []
    return [*queries(facts), *keys(facts)]


def shares_tokens(facts: Facts) -> bool:
    """Whether a pattern, which is about places, is said in positions, since they are the same."""
    return facts.spec.attention.pattern is not None and facts.is_plain


def queries(facts: Facts) -> Lines:
    spec, attention, lens = facts.spec, facts.spec.attention, facts.lengths
    n, m = spec.q_len, spec.kv_len
    if not facts.is_plain:
        return column("i", facts.query_positions(), attention.q_positions)
    if attention.causal_alignment == "top_left":
        comment = said(n != m, "# The first query stands at the first key.")
        return [*comment, f"i = torch.arange({n})[:, None]"]
    if lens:
        of_keys, of_queries = ("kv_lens" if "kv_lens" in lens else m), ("q_lens" if "q_lens" in lens else n)
        return [
            "# In each row of the batch the last query stands at the last key.",
            f"i = (torch.arange({n}) + ({of_keys} - {of_queries})[:, None]){COLUMN}",
        ]
    shift = f" + {m - n}" if m > n else f" - {n - m}" if n > m else ""
    ramp = f"(torch.arange({n}){shift})" if shift else f"torch.arange({n})"
    return [*said(n != m, "# The last query stands at the last key."), f"i = {ramp}[:, None]"]


def keys(facts: Facts) -> Lines:
    return row("j", facts.key_positions(), facts.spec.attention.kv_positions)


def tokens(facts: Facts) -> tuple[Lines, str, str]:
    """(lines, query, key): the names of a column and of a row with places on the axis of the keys."""
    if facts.is_plain:
        return [], "i", "j"
    lines = ["# The place of each query, and of each key, on the axis of the keys."]
    return [*lines, *column("t", facts.tokens()), f"c = torch.arange({facts.spec.kv_len})"], "t", "c"


def column(name: str, values: np.ndarray, given: Any = None) -> Lines:
    """values: [batch or 1, length]"""
    if len(values) == 1 and not is_by_row(given):
        return with_suffix(vector(name, values, given), "[:, None]")
    return with_suffix(typed(name, values), COLUMN)


def row(name: str, values: np.ndarray, given: Any = None) -> Lines:
    if len(values) == 1 and not is_by_row(given):
        return vector(name, values, given)
    return with_suffix(typed(name, values), ROW)


def vector(name: str, values: np.ndarray, given: Any) -> Lines:
    """Counted where that says it; as it was written where it is a list."""
    found = counted(values)
    if found is None or isinstance(given, list | tuple):
        return typed(name, values[0])
    first, count = found
    ends = f"{first}, {first + count}" if first else f"{count}"
    return [f"{name} = torch.arange({ends})"]


def with_suffix(lines: Lines, suffix: str) -> Lines:
    return [*lines[:-1], lines[-1] + suffix]


def said(is_worth_it: bool, comment: str) -> Lines:
    return [comment] if is_worth_it else []
