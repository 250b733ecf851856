"""Softmax in one pass: what is held after each tile of keys, with mistakes to be switched on; by
`kernels.flash.online`."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from concepts.figures import Links, grids, parts
from concepts.figures.controls import Choice, Matrix, Number
from concepts.figures.explorable import Explorable, Values
from concepts.figures.numbers import Rows, show, show_power, to_json
from kernels.flash.online import MISTAKES, Tile, one_pass, state_of
from kernels.flash.steps import State
from kernels.spec.results import TRACE

KEYS = 8
ROWS: Rows = [[1, 8], [0, 6], [3, 2], [1, 4], [2, 3], [0, 7], [5, 1], [4, 0]]  # score and value of each key
NEAR = {"float32": 1e-5, "float16": 4e-3}  # relative to the largest value: how far off is still called equal
RIGHT = "right"
WORDS = {
    "out": gettext_lazy("O is not rescaled"),
    "sum": gettext_lazy("ℓ is not rescaled"),
    "both": gettext_lazy("neither is rescaled"),
    "zero": gettext_lazy("m starts at 0"),
    "infinite": gettext_lazy("−∞ − (−∞) is computed"),
    "plain": gettext_lazy("nothing is subtracted"),
}
LAB_TILE = 16  # keys, of the smallest tile that the kernel has


@dataclass(frozen=True)
class Row:
    """What the figure shows: the pass, and what is right."""

    scores: np.ndarray  # [8], −∞ where masked
    values: np.ndarray  # [8]
    tiles: list[Tile]  # O is [1 + 8]: the sum of values, and what each key counts in it
    should: list[State]  # after each tile, float64
    exact: float  # softmax over all keys at once, float64
    near: float

    @property
    def result(self) -> float:
        return average(self.tiles[-1].after)

    @property
    def error(self) -> float:
        return abs(self.result - self.exact)

    @property
    def is_right(self) -> bool:
        return bool(self.error <= self.near)

    def at(self, keys: int) -> int:
        """Which tile has the key of that number, from 1; −1 before any."""
        return next((n for n, tile in enumerate(self.tiles) if keys <= tile.end), 0) if keys else -1


def row(values: Values) -> Row:
    given = {name: values[name] for name in ("tile", "masked", "shift", "format", "way")}
    return _row(to_json(values["s"]), **given)


@lru_cache(maxsize=64)
def _row(typed: str, *, tile: int, masked: int, shift: float, format: str, way: str) -> Row:
    table = np.array(json.loads(typed), dtype=np.float64)
    scores = np.where(np.arange(KEYS) < masked, -np.inf, table[:, 0] + shift)
    columns = np.column_stack([table[:, 1], np.eye(KEYS)])
    tiles = one_pass(scores, columns, tile, dtype=format, mistake=None if way == RIGHT else way)
    should = [state_of(scores[: one.end], columns[: one.end]) for one in tiles]
    near = NEAR[format] * max(1.0, float(np.abs(table[:, 1]).max()))
    return Row(scores, table[:, 1], tiles, should, float(should[-1].out[0]), near)


class Online(Explorable):
    name = "online"
    title = gettext_lazy("The figure: what is held after each tile of keys")
    controls = (
        Matrix(
            "s",
            gettext_lazy("Keys of one query"),
            ROWS,
            row_head=lambda i: parts.head("k", i, _("key")),
            columns=(gettext_lazy("score"), gettext_lazy("value")),
        ),
        Number("tile", gettext_lazy("Keys to a tile"), 2, 1, KEYS),
        Number("shift", gettext_lazy("Add to all scores"), 0, -1000, 1000),
        Number("masked", gettext_lazy("Masked keys, from the first"), 0, 0, KEYS),
        Choice(
            "format", gettext_lazy("Numbers"), "float32", [(name, name) for name in ("float32", "float16")]
        ),
        Choice(
            "way",
            gettext_lazy("What is done wrong"),
            RIGHT,
            [(RIGHT, gettext_lazy("nothing")), *((name, WORDS[name]) for name in MISTAKES)],
        ),
        Number("at", gettext_lazy("Keys read"), 4, 0, KEYS),
    )

    def view(self, values: Values, links: Links) -> SafeString:
        found = row(values)
        return format_html(
            '<div class="split"><div>{}{}</div><div>{}{}</div></div>',
            self.states(values, links, found),
            verdict(found),
            self.keys(values, found),
            self.arithmetic(values, found),
        )

    def states(self, values: Values, links: Links, found: Row) -> SafeString:
        """After each tile; the one that is looked at is lit."""
        held = [
            (_("start"), 0, "", "", found.tiles[0].before),
            *(
                (_("tile %(n)d") % {"n": n}, tile.end, span(tile), written(tile.rescale), tile.after)
                for n, tile in enumerate(found.tiles, 1)
            ),
        ]
        here = found.at(values["at"]) + 1
        rows = [
            [parts.cell(text, lit=n == here) for text in (keys, factor, *numbers_of(state))]
            for n, (_name, _end, keys, factor, state) in enumerate(held)
        ]
        names = [
            format_html('<a href="{}">{}</a>', self.address(links, values, at=end), name)
            for name, end, *_rest in held
        ]
        caption = _("What is held after each tile")
        heads = [format_html("{}", head) for head in (_("keys"), _("factor"), "m", "ℓ", "O", "O ∕ ℓ")]
        return grids.framed(parts.table(caption, rows, names, heads), caption)

    def keys(self, values: Values, found: Row) -> SafeString:
        """What each key counts in O by now, and what it should."""
        here = found.at(values["at"])
        first, end, held, should = 0, 0, np.zeros(KEYS), np.zeros(KEYS)
        if here >= 0:
            tile = found.tiles[here]
            first, end = tile.first, tile.end
            held, should = tile.after.o[1:].astype(np.float64), found.should[here].o[1:]
        is_wrong = ~np.isclose(held, should, rtol=1e-2, atol=1e-3)
        lines = [(_("counts in O"), held, is_wrong)]
        if is_wrong.any():
            lines.append((_("should count"), should, np.zeros(KEYS, dtype=bool)))
        rows = [
            [
                parts.cell(written(float(score), 2), lit=first <= j < end)
                for j, score in enumerate(found.scores)
            ]
        ]
        rows += [
            [
                parts.cell(
                    written(float(share), 3) if j < end else "·",
                    heat=grids.heat_of(float(share)) if j < end else "",
                    extra="painted" if wrong else "",
                )
                for j, (share, wrong) in enumerate(zip(shares, marks.tolist(), strict=True))
            ]
            for _name, shares, marks in lines
        ]
        caption = _("How often each key counts in O after this tile")
        names = [_("score"), *(name for name, _shares, _marks in lines)]
        table = parts.table(caption, rows, [format_html("{}", name) for name in names], grids.key_heads(KEYS))
        return format_html('<div class="counts">{}</div>', grids.framed(table, caption))

    def arithmetic(self, values: Values, found: Row) -> SafeString:
        here = found.at(values["at"])
        if here < 0:
            return parts.EMPTY
        caption = _("The arithmetic of tile %(n)d") % {"n": here + 1}
        lines = [*spelt(found, here, values["way"])]
        return format_html(
            '<div class="outputs">{}</div>',
            grids.framed(parts.listing(caption, ("", "", ""), lines), caption),
        )

    def sentence(self, values: Values) -> str:
        found = row(values)
        words = {
            "moved": moved(found, found.at(values["at"]), values["way"]),
            "result": written(found.result),
            "exact": written(found.exact),
        }
        if not np.isfinite(found.scores).any() and found.is_right:
            return _("Every key is masked: nothing is summed, and the output is 0.")
        if found.is_right:
            return _("%(moved)s In the end O ∕ ℓ = %(result)s, the softmax average of all keys.") % words
        return _("%(moved)s In the end O ∕ ℓ = %(result)s; right is %(exact)s.") % words

    def numbers(self, values: Values) -> dict[str, Any]:
        found = row(values)
        return {
            "states": [
                {
                    "keys": [tile.first + 1, tile.end],
                    "m": finite(tile.after.m),
                    "l": finite(tile.after.l),
                    "o": finite(float(tile.after.o[0])),
                    "factor": finite(tile.rescale),
                }
                for tile in found.tiles
            ],
            "result": finite(found.result),
            "exact": finite(found.exact),
            "is_right": found.is_right,
        }

    def picture(self, values: Values) -> str:
        heads = [_("keys"), "m", "ℓ", "O", "O ∕ ℓ"]
        lines = [[span(tile), *numbers_of(tile.after)] for tile in row(values).tiles]
        return drawn(self.sentence(values), _("After each tile"), [heads, *lines])

    def lab(self, values: Values) -> list[tuple[str, str]]:
        """Each tile of the figure in one of the kernel's, with a trace of what the kernel holds."""
        found = row(values)
        table = np.column_stack([found.scores, found.values])
        return [
            ("engine", "flash"),
            *spread(table, [(tile.first, tile.end) for tile in found.tiles]),
            ("option_block_m", str(LAB_TILE)),
            ("option_block_n", str(LAB_TILE)),
            *(("returns", name) for name in ("out", "lse", *TRACE)),
        ]


def spread(table: np.ndarray, stretches: list[tuple[int, int]]) -> list[tuple[str, str]]:
    """Fields of the lab for scores and values [8, 2]: each stretch of keys in a tile of the kernel, which is
    filled up with masked keys."""
    count = LAB_TILE * len(stretches)
    given, seen = np.zeros((count, 2)), np.zeros(count, dtype=bool)
    for number, (first, end) in enumerate(stretches):
        places = slice(LAB_TILE * number, LAB_TILE * number + end - first)
        given[places], seen[places] = table[first:end], np.isfinite(table[first:end, 0])
    given[~seen] = 0
    return [
        ("q", "[[1]]"),
        ("k", to_json(given[:, :1].tolist())),
        ("v", to_json(given[:, 1:].tolist())),
        ("scale", "1"),
        ("how_attn_mask", "text"),
        ("in_attn_mask", json.dumps([seen.tolist()], separators=(",", ":"))),
    ]


def average(held: State) -> float:
    """O ∕ ℓ, of the values; NaN where both are infinite."""
    with np.errstate(invalid="ignore"):
        return float(held.out[0])


def span(tile: Tile) -> str:
    """3–4, the keys of a tile as they are counted."""
    return str(tile.end) if tile.end - tile.first == 1 else f"{tile.first + 1}–{tile.end}"


def written(value: float, digits: int = 4) -> str:
    if np.isnan(value):
        return grids.NOT_A_NUMBER
    if np.isinf(value):
        return "∞" if value > 0 else "−∞"
    return show(float(value), digits)


def numbers_of(held: State) -> list[str]:
    """m, ℓ, O and O ∕ ℓ."""
    return [written(number) for number in (held.m, held.l, float(held.o[0]), average(held))]


def finite(value: float) -> float | None:
    """What JSON can say of it."""
    return float(value) if np.isfinite(value) else None


def drawn(title: str, name: str, rows: list[list[str]]) -> str:
    """A table as a picture."""
    return grids.picture(title, [(name, [[(text, "#ffffff", "#000000") for text in line] for line in rows])])


def moved(found: Row, here: int, way: str) -> str:
    """What a tile did to the maximum, in a sentence."""
    if here < 0:
        return _("No key was read yet.")
    tile = found.tiles[here]
    words = {
        "n": here + 1,
        "old": written(tile.before.m),
        "m": written(tile.after.m),
        "factor": written(tile.rescale),
    }
    if not np.isfinite(tile.largest):
        return _("Every key of tile %(n)d is masked.") % words
    if way == "plain":
        return _("Nothing is subtracted in tile %(n)d.") % words
    if tile.after.m == tile.before.m:
        return _("Tile %(n)d has no score above m = %(m)s: nothing before it is rescaled.") % words
    if not np.isfinite(tile.before.m):
        return _("Tile %(n)d has the first keys: m becomes %(m)s.") % words
    return (
        _("Tile %(n)d raises m from %(old)s to %(m)s: what is before it has to be multiplied by %(factor)s.")
        % words
    )


def spelt(found: Row, here: int, way: str) -> Iterator[tuple[str, SafeString, str]]:
    """The lines that lead from one state to the next."""
    tile = found.tiles[here]
    before, after, seen = tile.before, tile.after, found.scores[tile.first : tile.end]
    taken = "0" if way == "plain" or (np.isneginf(after.m) and way != "infinite") else written(after.m)
    powers = [format_html("exp({} − {})", written(float(s)), bracketed(taken)) for s in seen]
    sums = format_html_join(" + ", "{}", ((power,) for power in powers))
    products = format_html_join(
        " + ",
        "{} · {}",
        ((power, bracketed(written(float(found.values[j])))) for j, power in enumerate(powers, tile.first)),
    )
    kept = {"out": ("O",), "sum": ("ℓ",), "both": ("O", "ℓ"), "plain": ("O", "ℓ")}.get(way, ())
    if way != "plain":
        yield "m", format_html("max({}, {})", written(before.m), written(tile.largest)), written(after.m)
        raised = format_html("exp({} − {})", written(before.m), bracketed(taken))
        yield _("factor"), raised, written(tile.rescale)
    for name, held, terms, result in (
        ("ℓ", before.l, sums, after.l),
        ("O", float(before.o[0]), products, float(after.o[0])),
    ):
        times = parts.EMPTY if name in kept else format_html(" · {}", written(tile.rescale))
        yield name, format_html("{}{} + {}", written(held), times, terms), written(result)


def bracketed(text: str) -> str:
    """In brackets, if it has a sign."""
    return f"({text})" if text.startswith("−") else text


def verdict(found: Row) -> SafeString:
    """The result beside what is right."""
    if found.is_right:
        words = _("✓ Softmax over all keys at once gives the same, %(exact)s; they differ by %(error)s.")
    else:
        words = _("✗ Softmax over all keys at once gives %(exact)s.")
    told = words % {"exact": written(found.exact), "error": show_power(found.error, 1)}
    return format_html(
        '<p class="outputs lines">{} = <strong>{}</strong>. {}</p>', "O ∕ ℓ", written(found.result), told
    )


FIGURE = Online()
