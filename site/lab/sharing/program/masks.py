"""Which key a query may see: conditions on `i` and `j`, one to a line."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from kernels.patterns import bigbird_layout
from kernels.spec.patterns import blocks_of
from lab.sharing.program.facts import Facts, Lines, is_by_row, typed
from lab.sharing.program.places import ROW, tokens, with_suffix

Pattern = Mapping[str, Any]


def functions(facts: Facts) -> Lines:
    pattern = facts.spec.attention.pattern
    if pattern is None or pattern["type"] != "neighborhood":
        return []
    size, dilation = pattern["kernel_size"], pattern.get("dilation") or 1
    count = f"(length - 1 - at % {dilation}) // {dilation} + 1" if dilation > 1 else "length"
    return [
        "",
        "",
        "def near(at, other, length):",
        f'    """Whether `other` is among the {size} nearest to `at`; at an edge they are moved inwards."""',
        *([f"    alike = at % {dilation} == other % {dilation}"] if dilation > 1 else []),
        f"    count = {count}",
        f"    first = (at // {dilation} - {size // 2}).clamp(min=0)",
        f"    first = torch.minimum(first, torch.as_tensor(count - {size}))",
        f"    step = other // {dilation} - first",
        f"    return {'alike & ' if dilation > 1 else ''}(step >= 0) & (step < {size})",
    ]


def allowed(facts: Facts) -> Lines:
    """Lines that make `allowed`; none where every query sees every key."""
    lines: Lines = []
    for comment, before, condition in conditions(facts):
        joined = f"allowed & {condition}" if lines else bare(condition)
        lines += [f"# {comment}", *before, f"allowed = {joined}"]
    return lines


def bare(condition: str) -> str:
    """Without brackets around the whole of it."""
    inner = condition[1:-1]
    is_wrapped = condition.startswith("(") and condition.endswith(")")
    depth = lowest = 0
    for sign in inner:
        depth += (sign in "([") - (sign in ")]")
        lowest = min(lowest, depth)
    return inner if is_wrapped and lowest == 0 else condition


def conditions(facts: Facts) -> list[tuple[str, Lines, str]]:
    """(comment, lines before it, condition) of everything that masks."""
    spec, attention = facts.spec, facts.spec.attention
    found: list[tuple[str, Lines, str]] = []
    if attention.is_causal:
        found.append(("Causal: no query sees a key behind it.", [], "(j <= i)"))
    left, right = attention.window
    if left is not None or right is not None:
        sides = [f"(j >= i - {left})"] * (left is not None) + [f"(j <= i + {right})"] * (right is not None)
        found.append(("A window around the query.", [], " & ".join(sides)))
    if attention.pattern is not None and spec.kv_len:
        found.append(of_pattern(facts, attention.pattern))
    if "attn_mask" in spec.inputs and spec.inputs["attn_mask"].dtype == "bool":
        found.append(("What the mask lets through.", [], "attn_mask"))
    if "kv_lens" in facts.lengths:
        within = f"(torch.arange({spec.kv_len}) < kv_lens[:, None]){ROW}"
        found.append(("Keys beyond the length of their row are padding.", [], within))
    return found


def of_pattern(facts: Facts, pattern: Pattern) -> tuple[str, Lines, str]:
    lines, t, c = tokens(facts)
    comment, before, condition = PATTERNS[pattern["type"]](pattern, facts, t, c)
    return comment, [*lines, *before], condition


def on_axis(facts: Facts) -> bool:
    at = facts.tokens()
    return bool(((at >= 0) & (at < facts.spec.kv_len)).all())


def within(facts: Facts, condition: str, t: str) -> str:
    """`condition` of what is on the axis of the keys alone; said only where a query is not."""
    return condition if on_axis(facts) else f"{condition} & ({t} >= 0) & ({t} < {facts.spec.kv_len})"


# -- patterns: (pattern, facts, query, key) -> (comment, lines, condition) ---------------------------


def prefix(pattern: Pattern, facts: Facts, t: str, c: str) -> tuple[str, Lines, str]:
    length = pattern["len"]
    return (
        f"The first {length} see one another, the rest is causal.",
        [],
        f"(({c} < {length}) | ({c} <= {t}))",
    )


def document(pattern: Pattern, facts: Facts, t: str, c: str) -> tuple[str, Lines, str]:
    ids, m, comment = pattern["ids"], facts.spec.kv_len, "Only within the same document."
    at = t if on_axis(facts) else f"{t}.clamp(0, {m - 1})"
    if not is_by_row(ids):
        return comment, typed("ids", list(ids)), within(facts, f"(ids[{at}] == ids)", t)
    lines = [
        *typed("ids", [list(row) for row in ids]),
        f"own = ids[torch.arange({len(ids)})[:, None], {at}.reshape(-1, {facts.spec.q_len})]",
    ]
    return comment, lines, within(facts, "(own[:, None, :, None] == ids[:, None, None, :])", t)


def chunked(pattern: Pattern, facts: Facts, t: str, c: str) -> tuple[str, Lines, str]:
    size = pattern["size"]
    return f"Only within the same chunk of {size}.", [], f"({c} // {size} == {t} // {size})"


def dilated(pattern: Pattern, facts: Facts, t: str, c: str) -> tuple[str, Lines, str]:
    stride, reach = pattern["stride"], min(pattern["window"] * pattern["stride"], 2**62)
    condition = f"(({c} - {t}) % {stride} == 0) & (({c} - {t}).abs() <= {reach})"
    return f"Every {stride} tokens, {pattern['window']} times on either side.", [], condition


def longformer(pattern: Pattern, facts: Facts, t: str, c: str) -> tuple[str, Lines, str]:
    near = f"(({c} - {t}).abs() <= {pattern['window'] // 2})"
    if not pattern["global"]:
        return "Tokens nearby.", [], near
    condition = f"({near} | torch.isin({c}, chosen) | torch.isin({t}, chosen))"
    comment = "Tokens nearby, and some that see all and are seen by all."
    return comment, typed("chosen", list(pattern["global"])), condition


def bigbird(pattern: Pattern, facts: Facts, t: str, c: str) -> tuple[str, Lines, str]:
    block = pattern["block"]
    at = facts.tokens() // block
    first, last = int(at.min(initial=0)), int(at.max(initial=0))
    rows = np.arange(first, last + 1)
    layout = bigbird_layout(pattern, rows, blocks_of(facts.spec.kv_len, block)).astype(int)
    row = f"{t} // {block}" + (f" - {first}" if first > 0 else f" + {-first}" if first else "")
    comment = f"Blocks of {block}: near ones, global ones, and those that were drawn for each row."
    return comment, with_suffix(typed("layout", layout), ".bool()"), f"layout[{row}, {c} // {block}]"


def block(pattern: Pattern, facts: Facts, t: str, c: str) -> tuple[str, Lines, str]:
    size, layout = pattern["size"], np.array(pattern["layout"], dtype=int)
    lines = with_suffix(typed("layout", layout.reshape(len(pattern["layout"]), -1)), ".bool()")
    comment = f"Blocks of {size} that the layout lets through."
    if len(layout) != blocks_of(facts.spec.kv_len, size):  # a row for each block of queries
        return comment, lines, f"layout[torch.arange({facts.spec.q_len})[:, None] // {size}, {c} // {size}]"
    at = t if on_axis(facts) else f"{t}.clamp(0, {facts.spec.kv_len - 1})"
    return comment, lines, within(facts, f"layout[{at} // {size}, {c} // {size}]", t)


def neighborhood(pattern: Pattern, facts: Facts, t: str, c: str) -> tuple[str, Lines, str]:
    m, width = facts.spec.kv_len, pattern["width"]
    rows = f"near({t} // {width}, {c} // {width}, {m // width})"
    columns = f"near({t} % {width}, {c} % {width}, {min(width, m)})"
    return f"Pixels nearby, in rows of {width}.", [], within(facts, f"{rows} & {columns}", t)


PATTERNS: dict[str, Callable[[Pattern, Facts, str, str], tuple[str, Lines, str]]] = {
    "prefix": prefix,
    "document": document,
    "chunked": chunked,
    "dilated": dilated,
    "longformer": longformer,
    "bigbird": bigbird,
    "block": block,
    "neighborhood": neighborhood,
}


def may_be_empty(facts: Facts) -> bool:
    """Whether a query may see no key at all; then its softmax is 0/0, and its output 0 by convention."""
    spec, attention = facts.spec, facts.spec.attention
    if attention.sinks is not None and all(math.isfinite(sink) for sink in attention.sinks):
        return False
    is_square_enough = attention.causal_alignment == "top_left" or spec.q_len <= spec.kv_len
    only_causal = (
        attention.pattern is None
        and attention.window == (None, None)
        and "attn_mask" not in spec.inputs
        and not facts.lengths
        and facts.is_plain
    )
    return not (only_causal and (not attention.is_causal or is_square_enough))
