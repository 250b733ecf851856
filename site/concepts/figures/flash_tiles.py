"""Attention in tiles, a visit at a time: which tile is on chip, what is held of its queries after it, what
was read and written; by `kernels.flash`."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from concepts.figures import Links, grids, parts, tilegrid
from concepts.figures.controls import Number, Switch
from concepts.figures.explorable import Explorable, Values
from concepts.figures.numbers import show, to_json
from concepts.figures.online_softmax import LAB_TILE, finite, written
from concepts.figures.scales import score_class
from concepts.figures.tilegrid import TileGrid
from kernels.arrays import generate
from kernels.engines.reference import attend
from kernels.flash.accesses import standard_transfers
from kernels.flash.moves import Move, moves, totals
from kernels.flash.online import Tile, one_pass
from kernels.flash.schedule import MASKED, SKIPPED, deciding
from kernels.flash.walk import Walk, walk
from kernels.integers import ceil_div
from kernels.spec import parse_run
from kernels.spec.results import TRACE

WIDTH = 2  # of a query, a key, a value
SCALE = WIDTH**-0.5
MOST, BLOCKS = 24, (4, 16)  # so that no more than 36 tiles have to be stepped through
NUMBERED = 8  # rows and columns of a tile whose scores are written down
WORDS = {
    "Q read": gettext_lazy("Q read"),
    "K, V read": gettext_lazy("K and V read"),
    "scores": gettext_lazy("scores and weights, out and in"),
    "O written": gettext_lazy("O written"),
    "LSE written": gettext_lazy("log-sum-exp written"),
}
HELD = {"m, l": gettext_lazy("m and ℓ"), "S": gettext_lazy("scores, then weights")}
MOST_SPREAD = 6  # tiles, which are then all of a size that the kernel has


@dataclass(frozen=True)
class Run:
    """One head, and how it is walked over."""

    q: np.ndarray  # [n, 2], as k and v
    k: np.ndarray
    v: np.ndarray
    masked: np.ndarray  # [n, n] scores, −∞ where forbidden
    exact: np.ndarray  # [n, 2] float64
    walk: Walk
    moves: list[Move]

    def states(self, query: int) -> list[Tile]:
        """After every tile of keys, the skipped ones too, in float32."""
        return one_pass(self.masked[query], self.v, self.walk.block_n, dtype="float32")


@lru_cache(maxsize=32)
def run(n: int, block_m: int, block_n: int, is_causal: bool, seed: int) -> Run:
    q, k, v = (generate(name, seed, (n, WIDTH), "normal", "float64").round(1) + 0.0 for name in "qkv")
    inputs = {name: {"seed": 1, "shape": [1, 1, n, WIDTH]} for name in "qkv"}
    spec = parse_run({"engine": "flash", "inputs": inputs, "attention": {"is_causal": is_causal}}).spec
    found = walk(deciding(spec, {}), (block_m, block_n), 0, 0)
    allowed = np.tri(n, dtype=bool) if is_causal else np.ones((n, n), dtype=bool)
    made = attend(q, k, v, scale=SCALE, allowed=allowed)
    return Run(q, k, v, made["masked_scores"], made["out"], found, moves(found, WIDTH, WIDTH))


class Tiles(Explorable):
    name = "tiles"
    title = gettext_lazy("The figure: attention in tiles, step by step")
    controls = (
        Number("at", gettext_lazy("Steps done"), 8, 0, (MOST // BLOCKS[0]) ** 2),
        Number("n", gettext_lazy("Tokens, n"), 16, BLOCKS[0], MOST),
        Number("bm", gettext_lazy("Queries to a tile, block_m"), 4, *BLOCKS),
        Number("bn", gettext_lazy("Keys to a tile, block_n"), 4, *BLOCKS),
        Switch("causal", gettext_lazy("Causal: no query sees a later key"), True),
        Number("seed", gettext_lazy("Numbers, drawn anew"), 1, 1, 99),
    )

    def run(self, values: Values) -> Run:
        return run(values["n"], values["bm"], values["bn"], values["causal"], values["seed"])

    def at(self, values: Values, found: Run) -> int:
        """How many visits are done: no more than there are."""
        return int(min(values["at"], len(found.moves)))

    def here(self, values: Values, found: Run) -> Move | None:
        """The latest visit; None before any."""
        at = self.at(values, found)
        return found.moves[at - 1] if at else None

    # --- The view ------------------------------------------------------------------------------

    def view(self, values: Values, links: Links) -> SafeString:
        found = self.run(values)
        here = self.here(values, found)
        return format_html(
            '{}<div class="split"><div>{}{}</div><div>{}{}</div></div>{}',
            self.steps(values, links, found),
            tilegrid.svg(self.grid(values, found), self.sentence(values)),
            tilegrid.legend(),
            self.traffic(values, found),
            on_chip(here) if here else parts.EMPTY,
            format_html('<div class="outputs">{}</div>', self.held(found, here)) if here else parts.EMPTY,
        )

    def steps(self, values: Values, links: Links, found: Run) -> SafeString:
        """A step on and a step back, without scripts."""
        at, most = self.at(values, found), len(found.moves)
        places = ((0, _("Start")), (at - 1, _("A step back")), (at + 1, _("The next step")), (most, _("End")))
        links_ = [
            format_html('<a href="{}">{}</a> ', self.address(links, values, at=place), name)
            for place, name in places
            if 0 <= place <= most and place != at
        ]
        return format_html('<p class="figure-links">{}</p>', parts.join(links_))

    def grid(self, values: Values, found: Run) -> TileGrid:
        at, here = self.at(values, found), self.here(values, found)
        states = [["skipped" if kind == SKIPPED else "todo" for kind in row] for row in found.walk.kinds]
        for number, one in enumerate(found.moves[:at], 1):
            states[one.tile[0]][one.tile[1]] = "now" if number == at else "done"
        scores = found.masked[slice_of(here.rows), slice_of(here.keys)] if here else None
        return TileGrid(
            n=found.walk.n,
            m=found.walk.m,
            block_m=found.walk.block_m,
            block_n=found.walk.block_n,
            states=states,
            written=sum(one.is_last for one in found.moves[:at]),
            tile=here.tile if here else None,
            scores=scores,
        )

    def traffic(self, values: Values, found: Run) -> SafeString:
        at = self.at(values, found)
        step, so_far, whole = (
            totals(some) for some in (found.moves[max(at - 1, 0) : at], found.moves[:at], found.moves)
        )
        standard = one_by_one(found.walk.n)
        rows = [
            (
                str(WORDS[name]),
                *(f"{counted.get(name, 0):,}" for counted in (step, so_far, whole, standard)),
            )
            for name in WORDS
        ]
        sums = (f"{sum(counted.values()):,}" for counted in (step, so_far, whole, standard))
        heads = (_("numbers"), _("this step"), _("so far"), _("all steps"), _("one by one"))
        caption = _("Between memory and chip")
        return grids.framed(parts.listing(caption, heads, rows, (_("together"), *sums)), caption)

    def held(self, found: Run, here: Move) -> SafeString:
        """The scores of the tile, and what is held of its queries after it."""
        count, start = len(here.keys), here.keys.start
        is_small = max(len(here.rows), count) <= NUMBERED
        scores = found.masked[slice_of(here.rows), slice_of(here.keys)]
        largest = float(np.abs(scores[np.isfinite(scores)]).max(initial=0.0))
        rows = []
        for query in here.rows:
            tile = found.states(query)[here.tile[1]]
            cells = [score(value, largest) for value in scores[query - here.rows.start]] if is_small else []
            rows.append([*cells, *(parts.cell(text) for text in numbers_of(tile))])
        heads = [parts.head("k", start + j, _("key")) for j in range(1, count + 1)] if is_small else []
        names = ("m", _("factor"), "ℓ", "O", "O ∕ ℓ")
        caption = (
            _("Scores of the tile, and what is held of its queries after it")
            if is_small
            else _("What is held of the queries after this tile")
        )
        table = parts.table(
            caption,
            rows,
            [parts.head("q", query + 1, _("query")) for query in here.rows],
            [*heads, *(format_html("{}", name) for name in names)],
        )
        return format_html('<p class="panel-note">{}</p>{}', caption, grids.framed(table, caption))

    # --- What it says --------------------------------------------------------------------------

    def sentence(self, values: Values) -> str:
        found = self.run(values)
        at, here, most = self.at(values, found), self.here(values, found), len(found.moves)
        moved, standard = sum(totals(found.moves).values()), sum(one_by_one(found.walk.n).values())
        skipped = found.walk.count(SKIPPED)
        words = {
            "at": at,
            "of": most,
            "moved": f"{moved:,}",
            "standard": f"{standard:,}",
            "skipped": ngettext("%(n)d tile is skipped.", "%(n)d tiles are skipped.", skipped)
            % {"n": skipped}
            if skipped
            else _("No tile is skipped."),
        }
        if here is None:
            return _("Nothing is read yet: %(of)d tiles are to come. %(skipped)s") % words
        words |= {
            "queries": span(here.rows),
            "keys": span(here.keys),
            "read": here.moved["Q read"] + here.moved["K, V read"],
            "written": here.moved["O written"] + here.moved["LSE written"],
        }
        if at == most:
            return (
                _(
                    "Step %(at)d of %(of)d, the last: %(moved)s numbers were moved; one operation after"
                    " another moves %(standard)s. %(skipped)s"
                )
                % words
            )
        step = _("Step %(at)d of %(of)d: queries %(queries)s meet keys %(keys)s.") % words
        moved_now = (
            _("%(read)d numbers are read, %(written)d written.")
            if here.is_last
            else _("%(read)d numbers are read, none is written.")
        ) % words
        looks = (
            _("Some pairs are masked.")
            if here.kind == MASKED and values["causal"]
            else _("No pair is masked.")
        )
        return f"{step} {moved_now} {looks}"

    def numbers(self, values: Values) -> dict[str, Any]:
        found = self.run(values)
        here = self.here(values, found)
        return {
            "step": self.at(values, found),
            "steps": len(found.moves),
            "skipped": found.walk.count(SKIPPED),
            "tile": None if here is None else {"queries": ends(here.rows), "keys": ends(here.keys)},
            "held": {}
            if here is None
            else {str(query + 1): state(found, query, here) for query in here.rows},
            "moved": totals(found.moves[: self.at(values, found)]),
            "moved_in_all": totals(found.moves),
            "one_by_one": one_by_one(found.walk.n),
            "exact": found.exact.tolist(),
        }

    def picture(self, values: Values) -> str:
        return tilegrid.document(self.grid(values, self.run(values)), self.sentence(values))

    def lab(self, values: Values) -> list[tuple[str, str]]:
        """These numbers, in these tiles, with a trace of what the kernel holds. Its tiles have 16 rows at
        least: smaller ones each fill one of those, with masked keys and idle queries, where that leaves the
        order of queries and keys as it is."""
        found = self.run(values)
        return [("engine", "flash"), *fields(found, is_causal=values["causal"]), *kept()]


def kept() -> Iterator[tuple[str, str]]:
    for name in ("out", "lse", *TRACE):
        yield "returns", name


def fields(found: Run, *, is_causal: bool) -> Iterator[tuple[str, str]]:
    block_m, block_n, n = found.walk.block_m, found.walk.block_n, found.walk.n
    count = max(ceil_div(n, block_m), ceil_div(n, block_n))
    is_spread = (
        (block_m, block_n) != (LAB_TILE, LAB_TILE)
        and count <= MOST_SPREAD
        and (block_m == block_n or not is_causal)
    )
    arrays = {"q": (found.q, block_m), "k": (found.k, block_n), "v": (found.v, block_n)}
    for name, (array, block) in arrays.items():
        yield name, to_json((spread(array, block) if is_spread else array).tolist())
    if is_spread:
        seen = spread(np.ones((n, 1)), block_n)[:, 0] > 0
        yield "how_attn_mask", "text"
        yield "in_attn_mask", json.dumps([seen.tolist()], separators=(",", ":"))
    if is_causal:
        yield "causal", "on"
    yield "option_block_m", str(LAB_TILE)
    yield "option_block_n", str(LAB_TILE)


def spread(rows: np.ndarray, block: int) -> np.ndarray:
    """Each tile of `block` rows at the beginning of one of the kernel's, zeros behind it."""
    count = ceil_div(len(rows), block)
    found = np.zeros((count * LAB_TILE, rows.shape[1]))
    for number in range(count):
        part = rows[number * block : (number + 1) * block]
        found[number * LAB_TILE : number * LAB_TILE + len(part)] = part
    return found


def one_by_one(n: int) -> dict[str, int]:
    """Numbers that one operation after another moves, by the names of what tiles move."""
    moved = standard_transfers(n, WIDTH, item=1)
    apart = {"Q read": n * WIDTH, "K, V read": 2 * n * WIDTH, "O written": n * WIDTH, "LSE written": 0}
    return apart | {"scores": sum(moved.values()) - sum(apart.values())}


def on_chip(here: Move) -> SafeString:
    rows = [(str(HELD.get(name, name)), str(count)) for name, count in here.held.items()]
    caption = _("On chip during this step")
    together = (_("together"), str(sum(here.held.values())))
    return grids.framed(parts.listing(caption, ("", _("numbers")), rows, together), caption)


def score(value: float, largest: float) -> SafeString:
    if value == -np.inf:
        return parts.cell(grids.SHUT, extra="shut")
    return parts.cell(show(float(value), 2), heat=score_class(float(value), largest))


def numbers_of(tile: Tile) -> list[str]:
    after = tile.after
    return [
        written(after.m, 2),
        written(tile.rescale, 3),
        written(after.l, 3),
        pair(after.o),
        pair(after.out),
    ]


def pair(vector: np.ndarray) -> str:
    return f"({', '.join(written(float(x), 2) for x in vector)})"


def state(found: Run, query: int, here: Move) -> Mapping[str, Any]:
    after = found.states(query)[here.tile[1]].after
    return {"m": finite(after.m), "l": finite(after.l), "o": after.o.astype(float).tolist()}


def slice_of(some: range) -> slice:
    return slice(some.start, some.stop)


def span(some: range) -> str:
    return str(some.stop) if len(some) == 1 else f"{some.start + 1}–{some.stop}"


def ends(some: range) -> list[int]:
    return [some.start + 1, some.stop]


FIGURE = Tiles()
