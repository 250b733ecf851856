"""Which tiles of keys each tile of queries visits: counted, drawn, and stepped through as the kernel does."""

from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import numpy as np
from django.http import QueryDict
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from kernels.counts import ITEM_BYTES
from kernels.flash.schedule import FULL, MASKED, SKIPPED
from kernels.flash.walk import Walk, finish_time
from kernels.integers import ceil_div
from kernels.spec import RunSpec
from lab import units
from lab.microscope.steps import kind_name, span
from lab.runs.choice import index

DRAWN = 64  # cells of the picture, at most, each way; of larger grids a cell stands for several tiles
ROWS = 64  # of the table
MOST_TILES = 1 << 20  # of one head
MOST_PAIRS = 1 << 24  # of one head, where a mask must be made to know who sees whom
MOST_PROGRAMS = 1 << 16  # whose order is played through
MULTIPROCESSORS = 108  # of an A100, where nobody says how many programs run at a time
MOST_PLACES = 4096
SIZE = 560  # of the picture, about, in its own units
LEFT, TOP = 44, 38


class Address:
    """The query string of this page, and of others like it."""

    def __init__(self, query: QueryDict) -> None:
        self.query = query

    def but(self, *names: str) -> list[tuple[str, str]]:
        return [(name, str(value)) for name, value in self.query.items() if name not in names]

    def to(self, **changes: int) -> str:
        return "?" + urlencode([*self.but(*changes), *changes.items()])


@dataclass(frozen=True)
class Cells:
    """The picture's cells: blocks of down × across tiles, each with how many of a kind it stands for."""

    down: int
    across: int
    tiles: np.ndarray  # [rows, columns]: tiles there are
    masked: np.ndarray
    full: np.ndarray

    @classmethod
    def of(cls, kinds: np.ndarray) -> "Cells":
        down, across = (max(1, -(-size // DRAWN)) for size in kinds.shape)

        def counted(which: np.ndarray) -> np.ndarray:
            rows = np.add.reduceat(which.astype(np.int64), range(0, which.shape[0], down), axis=0)
            return np.asarray(np.add.reduceat(rows, range(0, which.shape[1], across), axis=1))

        return cls(
            down, across, counted(np.ones(kinds.shape)), counted(kinds == MASKED), counted(kinds == FULL)
        )

    @property
    def is_reduced(self) -> bool:
        return self.down > 1 or self.across > 1


def step_of(query: QueryDict, found: Walk) -> int:
    """Which visit is looked at; from the query string, never out of range. All of them are over unless it
    says which."""
    return index(query.get("step", str(found.visited - 1)), found.visited)


@dataclass(frozen=True)
class Sizes:
    """What a walk does not say of itself."""

    width: int  # of a key and a value together
    item_bytes: int
    heads: int  # of all batch rows together

    @classmethod
    def of(cls, spec: RunSpec) -> "Sizes":
        return cls(spec.head_dim + spec.v_head_dim, ITEM_BYTES[spec.dtype], spec.batch * spec.num_heads)


def needs_mask(spec: RunSpec) -> bool:
    """Whether a mask of all pairs must be made to know who sees whom."""
    return spec.attention.pattern is not None or "attn_mask" in spec.inputs


def too_large(spec: RunSpec, block_m: int, block_n: int) -> str:
    """Why a page does not count these tiles, and what would do; "" where it does."""
    tiles, pairs = ceil_div(spec.q_len, block_m) * ceil_div(spec.kv_len, block_n), spec.q_len * spec.kv_len
    if tiles > MOST_TILES:
        return _(
            "{queries} queries and {keys} keys are {tiles} tiles of {m} × {n}, and a page counts up to "
            "{most}: choose larger tiles."
        ).format(
            queries=units.whole(spec.q_len),
            keys=units.whole(spec.kv_len),
            tiles=units.whole(tiles),
            m=block_m,
            n=block_n,
            most=units.whole(MOST_TILES),
        )
    if needs_mask(spec) and pairs > MOST_PAIRS:
        return _(
            "With a mask or a pattern every pair is looked at: {pairs} of them, and a page looks at up to "
            "{most}. Choose shorter lengths, 4,096 by 4,096 for example."
        ).format(pairs=units.whole(pairs), most=units.whole(MOST_PAIRS))
    return ""


def weight(spec: RunSpec, block_m: int, block_n: int) -> int:
    """Numbers that are looked at, about."""
    tiles = ceil_div(spec.q_len, block_m) * ceil_div(spec.kv_len, block_n)
    return 4 * tiles + (spec.q_len * spec.kv_len if needs_mask(spec) else spec.q_len + spec.kv_len)


def section(found: Walk, sizes: Sizes, query: QueryDict) -> dict[str, Any]:
    """What the page shows of one head."""
    if not found.kinds.size:
        return {"is_empty": True}
    step, address = step_of(query, found), Address(query)
    visits = found.visits
    cells = Cells.of(found.kinds)
    return {
        "step": step,
        "first": address.to(step=0),
        "previous": address.to(step=step - 1) if step else "",
        "next": address.to(step=step + 1) if step < found.visited - 1 else "",
        "kept": address.but("step"),
        "kept_at_once": address.but("at_once"),
        "last": found.visited - 1,
        "visited": found.visited,
        "here": here(found, visits, step) if len(visits) else None,
        "svg": svg(found, cells, visits[: step + 1]),
        "is_reduced": cells.is_reduced,
        "down": cells.down,
        "across": cells.across,
        "counts": counts(found),
        "looks_everywhere": bool(found.visited) and not found.count(FULL),
        "costs": costs(found, sizes),
        "balance": balance(found, query, sizes.heads),
        "table": table(found, cells),
        "block_m": found.block_m,
        "block_n": found.block_n,
    }


def here(found: Walk, visits: np.ndarray, step: int) -> dict[str, Any]:
    """The visit that is looked at, in words."""
    i, j = (int(x) for x in visits[step])
    kind = int(found.kinds[i, j])
    words = {
        "number": units.whole(step + 1),
        "of": units.whole(len(visits)),
        "program": i,
        "queries": span(i * found.block_m, min((i + 1) * found.block_m, found.n)),
        "tile": j,
        "keys": span(j * found.block_n, min((j + 1) * found.block_n, found.m)),
    }
    why = {
        MASKED: _("Some pairs may be forbidden, so each is looked at."),
        FULL: _("Every query sees every key, so no mask is looked at."),
    }[kind]
    sentence = _(
        "Visit {number} of {of}: program {program} (queries {queries}) takes in tile {tile} (keys {keys})."
    )
    return {"sentence": f"{sentence.format(**words)} {why}", "kind": kind_name(kind), "row": i, "column": j}


def counts(found: Walk) -> list[tuple[int, str, str, str, str]]:
    """(kind, its name, tiles, share, what it means)."""
    meanings = {
        FULL: _("computed without a look at the mask"),
        MASKED: _("computed, and each pair looked at"),
        SKIPPED: _("never loaded"),
    }
    return [
        (
            kind,
            kind_name(kind),
            units.whole(found.count(kind)),
            units.percent(round(found.count(kind) / found.kinds.size, 4)),
            meaning,
        )
        for kind, meaning in meanings.items()
    ]


def costs(found: Walk, sizes: Sizes) -> dict[str, Any]:
    """FLOPs and bytes of one head, and of all."""
    width, item, heads = sizes.width, sizes.item_bytes, sizes.heads
    flops, needed = 2 * width * found.pairs_computed, 2 * width * found.pairs
    whole = 2 * width * found.kinds.size * found.block_m * found.block_n
    loaded, once = item * width * found.keys_loaded, item * width * found.m
    own = item * width * found.n
    return {
        "rows": [
            (_("pairs that may see each other"), units.whole(found.pairs), ""),
            (
                _("pairs computed, in whole tiles"),
                units.whole(found.pairs_computed),
                _("{share} of them are needed").format(share=share(found.pairs, found.pairs_computed)),
            ),
            (
                _("FLOPs"),
                units.count(flops),
                _("{share} of what all tiles would be; {needed} would do").format(
                    share=share(flops, whole), needed=units.count(needed)
                ),
            ),
            (
                _("K and V read"),
                units.size(loaded),
                _("each row {times} times on average").format(
                    times=units.significant(loaded / once if once else 0.0)
                ),
            ),
            (_("Q read, O written"), units.size(own), _("once each")),
            (
                _("FLOP per byte"),
                units.significant(flops / (loaded + own) if loaded + own else 0.0),
                _("if every tile is read from memory; a cache may help"),
            ),
        ],
        "heads": heads,
        "all_flops": units.count(flops * heads),
        "all_bytes": units.size((loaded + own) * heads),
    }


def share(part: float, of: float) -> str:
    return units.percent(round(part / of, 4)) if of else "–"


def balance(found: Walk, query: QueryDict, heads: int) -> dict[str, Any]:
    """How evenly the work falls on programs, and how long the last one makes the others wait."""
    work = found.work
    longest, mean = int(work.max()), float(work.mean())
    places = index(query.get("at_once", str(MULTIPROCESSORS)), MOST_PLACES + 1) or 1
    shown: dict[str, Any] = {
        "programs": units.whole(len(work)),
        "all_programs": units.whole(len(work) * heads),
        "longest": units.whole(longest),
        "shortest": units.whole(int(work.min())),
        "mean": units.significant(mean),
        "idle": share(longest - mean, longest),
        "is_even": longest == work.min(),
        "at_once": places,
        "most_places": MOST_PLACES,
        "is_played": 0 < len(work) * heads <= MOST_PROGRAMS,
    }
    if shown["is_played"] and longest:
        # Heads are the first axis of the grid, so all heads of a tile of queries start before the next tile.
        launched = np.repeat(work, heads)
        total = int(launched.sum())
        ideal = max(longest, -(-total // places))
        orders = {
            _("as launched, first queries first"): launched,
            _("last queries first"): launched[::-1],
            _("longest first"): np.sort(launched)[::-1],
        }
        ends = {name: finish_time(order.tolist(), places) for name, order in orders.items()}
        shown |= {
            "ideal": units.whole(ideal),
            "orders": [(name, units.whole(end), share(total, end * places)) for name, end in ends.items()],
        }
    return shown


def table(found: Walk, cells: Cells) -> dict[str, Any]:
    """A row for each tile of queries, or for each row of the picture."""
    rows = []
    for at, row in enumerate(range(0, len(found.kinds), cells.down)):
        part = found.kinds[row : row + cells.down]
        seen = np.flatnonzero(part.any(axis=0))
        rows.append(
            {
                "tiles": span(row, row + len(part)),
                "queries": span(row * found.block_m, min((row + len(part)) * found.block_m, found.n)),
                "counts": [int(np.count_nonzero(part == kind)) for kind in (FULL, MASKED, SKIPPED)],
                "visited": int(cells.full[at].sum() + cells.masked[at].sum()),
                "range": span(int(seen[0]), int(seen[-1]) + 1) if len(seen) else _("none"),
            }
        )
    return {"rows": rows[:ROWS]}


# --- The picture ----------------------------------------------------------------------------------


def svg(found: Walk, cells: Cells, done: np.ndarray) -> SafeString:
    """The grid; what is not visited yet is pale, and the visit that is looked at has a frame."""
    rows, columns = cells.tiles.shape
    side = max(6, min(36, SIZE // max(rows, columns)))
    total = (LEFT + columns * side + 2, TOP + rows * side + 2)
    reached = np.zeros(cells.tiles.shape, np.bool_)
    reached[done[:, 0] // cells.down, done[:, 1] // cells.across] = True
    label = _(
        "{rows} tiles of queries down, {columns} tiles of keys across: {full} full, {masked} masked, "
        "{skipped} skipped."
    ).format(
        rows=found.kinds.shape[0],
        columns=found.kinds.shape[1],
        full=found.count(FULL),
        masked=found.count(MASKED),
        skipped=found.count(SKIPPED),
    )
    head = (
        '<svg class="tile-grid" viewBox="0 0 {0} {1}" width="{0}" height="{1}" role="img" '
        'aria-labelledby="tiles-title tiles-desc"><title id="tiles-title">{2}</title>'
        '<desc id="tiles-desc">{3}</desc>{4}{5}{6}</svg>'
    )
    return format_html(
        head,
        *total,
        _("Tiles of the attention matrix"),
        label,
        axes(rows, columns, side, cells),
        SafeString("".join(drawn(found, cells, reached, side))),
        frame(done, cells, side),
    )


def drawn(found: Walk, cells: Cells, reached: np.ndarray, side: int) -> list[str]:
    """A <rect> for each cell: made of numbers and a few words of ours."""
    words = {kind: kind_name(kind) for kind in (SKIPPED, MASKED, FULL)}
    parts = []
    for (i, j), there in np.ndenumerate(cells.tiles):
        full, masked = int(cells.full[i, j]), int(cells.masked[i, j])
        kind = SKIPPED if not full + masked else FULL if full == there else MASKED
        pale = "" if kind == SKIPPED or reached[i, j] else " todo"
        opacity = f' fill-opacity="{0.25 + 0.75 * (full + masked) / there:.2f}"' if cells.is_reduced else ""
        rows = span(i * cells.down * found.block_m, min((i + 1) * cells.down * found.block_m, found.n))
        keys = span(j * cells.across * found.block_n, min((j + 1) * cells.across * found.block_n, found.m))
        said = (
            f"{full} {words[FULL]}, {masked} {words[MASKED]}, {there - full - masked} {words[SKIPPED]}"
            if cells.is_reduced
            else words[kind]
        )
        x, y = LEFT + j * side, TOP + i * side
        parts.append(
            f'<rect class="tile tile-{kind}{pale}" x="{x}" y="{y}" width="{side}" height="{side}"{opacity}>'
            f"<title>{rows} × {keys}: {said}</title></rect>"
        )
        if kind == MASKED and not cells.is_reduced:
            parts.append(f'<path class="tile-slash" d="M{x + 2} {y + side - 2}L{x + side - 2} {y + 2}"/>')
    return parts


def frame(done: np.ndarray, cells: Cells, side: int) -> SafeString:
    """Around the visit that is looked at."""
    if not len(done):
        return SafeString("")
    i, j = done[-1] // (cells.down, cells.across)
    return format_html(
        '<rect class="tile-now" x="{}" y="{}" width="{}" height="{}"/>',
        LEFT + int(j) * side,
        TOP + int(i) * side,
        side,
        side,
    )


def axes(rows: int, columns: int, side: int, cells: Cells) -> SafeString:
    """Names, and the number of every so many tiles."""
    every = max(1, 24 // side) if side < 24 else 1
    every = max(every, -(-max(rows, columns) // 16))
    parts = [
        format_html('<text class="axis" x="{}" y="10">{}</text>', LEFT, _("tile of keys →")),
        format_html('<text class="axis" x="0" y="{}">{}</text>', TOP - 6, _("queries ↓")),
    ]
    parts += [
        format_html(
            '<text class="tick" text-anchor="middle" x="{}" y="{}">{}</text>',
            LEFT + j * side + side / 2,
            TOP - 4,
            j * cells.across,
        )
        for j in range(0, columns, every)
        if j or columns == 1
    ]
    parts += [
        format_html(
            '<text class="tick" text-anchor="end" x="{}" y="{}">{}</text>',
            LEFT - 6,
            TOP + i * side + side / 2 + 4,
            i * cells.down,
        )
        for i in range(0, rows, every)
    ]
    return SafeString("".join(parts))
