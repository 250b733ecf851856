"""Rotary positions: a query and a key that turn, how slowly the slowest pair turns, and what few bits make of
an angle. The rotation is that of `kernels.rope`, programs that are wrong are those of `kernels.mistakes`.
"""

from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from concepts.figures import Links, dials, lineplot, parts
from concepts.figures.controls import Choice, Matrix, Number
from concepts.figures.dials import Dial, Hand
from concepts.figures.explorable import Explorable, Values
from concepts.figures.lineplot import Axis, Series
from concepts.figures.numbers import Rows, show, show_power, to_json
from concepts.figures.plotted import Plot, Plotted
from concepts.figures.quadratic import tokens
from kernels.arrays import generate, round_to_dtype
from kernels.mistakes import mixed_rope, rounded_angles
from kernels.rope import cos_sin, frequencies, rotate
from kernels.spec.model import Rope

# -- a query and a key that turn -----------------------------------------------------------------------------

WIDTH = 4
MOVES = np.arange(41)  # by how much both are moved, in the plot
PATH = np.linspace(0, MOVES[-1], 241)
QUERY: Rows = [[1.0, 0.5, 1.5, -0.5]]
KEY: Rows = [[1.2, -0.4, 0.8, 1.0]]
SAME = 1e-9  # what differs by no more differs by rounding
COPIES = 4  # of the key, in the lab


@dataclass(frozen=True)
class Program:
    """How the pairs of a query and of a key are chosen, and the planes in which a dial shows them."""

    query: str
    key: str
    planes: tuple[tuple[int, int], ...]


NEIGHBOURS, HALVES = ((0, 1), (2, 3)), ((0, 2), (1, 3))
PROGRAMS = {
    "interleaved": Program("interleaved", "interleaved", NEIGHBOURS),
    "half": Program("half", "half", HALVES),
    "apart": Program("interleaved", "half", NEIGHBOURS),
    "mixed": Program("mixed", "mixed", HALVES),
}


def turned(x: Rows, positions: np.ndarray, base: float, style: str) -> np.ndarray:
    """The vector at each position: (positions, 4)."""
    rows = np.repeat(np.array(x), len(positions), axis=0)
    if style == "mixed":
        return mixed_rope(rows, positions, theta=base)
    cos, sin = cos_sin(Rope(style, theta=base), WIDTH, positions[None])
    return np.asarray(rotate(rows[None, None], cos, sin, style=style, dim_offset=0)[0, 0])


def named(letter: str, words: str) -> SafeString:
    """The head of a row that has no number."""
    return format_html(
        '<span aria-hidden="true">{}</span><span class="visually-hidden">{}</span>',
        parts.symbol(letter),
        words,
    )


class Rotation(Explorable):
    name = "rotation"
    title = gettext_lazy("The figure: a query and a key that turn")
    controls = (
        Number("m", gettext_lazy("Position of the query, m"), 5, 0, 100),
        Number("n", gettext_lazy("Position of the key, n"), 3, 0, 100),
        Number("move", gettext_lazy("Move both by"), 8, 0, int(MOVES[-1])),
        Number("base", gettext_lazy("Base, b"), 100, 1, 1e6, is_log=True),
        Choice(
            "pairs",
            gettext_lazy("Pairs are"),
            "interleaved",
            (
                ("interleaved", gettext_lazy("neighbours (GPT-J)")),
                ("half", gettext_lazy("halves (GPT-NeoX)")),
                ("apart", gettext_lazy("wrong: neighbours in q, halves in k")),
                ("mixed", gettext_lazy("wrong: cut as neighbours, joined as halves")),
            ),
        ),
        Matrix("q", gettext_lazy("Query"), QUERY, row_head=lambda _i: named("q", _("query")), coordinate="i"),
        Matrix("k", gettext_lazy("Key"), KEY, row_head=lambda _i: named("k", _("key"))),
    )

    def program(self, values: Values) -> Program:
        return PROGRAMS[values["pairs"]]

    def queries(self, values: Values, moves: np.ndarray) -> np.ndarray:
        """The query at m and further on: (moves, 4)."""
        return turned(values["q"], values["m"] + moves, values["base"], self.program(values).query)

    def keys(self, values: Values, moves: np.ndarray) -> np.ndarray:
        return turned(values["k"], values["n"] + moves, values["base"], self.program(values).key)

    def scores(self, values: Values) -> np.ndarray:
        """Where both are moved, (moves,), without the noise of rounding."""
        found = (self.queries(values, MOVES) * self.keys(values, MOVES)).sum(axis=1)
        return np.asarray(np.round(found, 10)) + 0.0

    def apart(self, values: Values) -> np.ndarray:
        """Where only the key is moved."""
        found = self.keys(values, MOVES) @ self.queries(values, np.zeros(1))[0]
        return np.asarray(np.round(found, 10)) + 0.0

    def here(self, values: Values) -> tuple[np.ndarray, np.ndarray]:
        """Query and key where they have been moved to, (4,) each."""
        move = np.array([values["move"]])
        return self.queries(values, move)[0], self.keys(values, move)[0]

    def view(self, values: Values, links: Links) -> SafeString:
        drawn = lineplot.svg(*self.plot(values), self.sentence(values))
        return format_html(
            '<div class="dials">{}</div><div class="split"><div>{}{}</div>{}</div>',
            parts.join(
                [self.dial(values, plane, number) for number, plane in enumerate(self.planes(values))]
            ),
            drawn,
            lineplot.legend(self.plot(values)[0]),
            self.table(values),
        )

    def planes(self, values: Values) -> tuple[tuple[int, int], ...]:
        return self.program(values).planes

    def dial(self, values: Values, plane: tuple[int, int], number: int) -> SafeString:
        """Both vectors in one of the two planes."""
        at = list(plane)
        query, key = self.here(values)
        hands = [
            Hand("k", "k", np.array(values["k"])[0, at], key[at], self.keys(values, PATH)[:, at]),
            Hand("q", "q", np.array(values["q"])[0, at], query[at], self.queries(values, PATH)[:, at]),
        ]
        reach = max(float(np.abs(hand.path).max()) for hand in hands)
        reach = max(reach, *(float(np.linalg.norm(np.stack([h.now, h.before]), axis=1).max()) for h in hands))
        first, second = (n + 1 for n in plane)
        product = show(float(query[at] @ key[at]), 3)
        words = _("Numbers %(first)d and %(second)d of query and key; their products add up to %(product)s")
        label = words % {"first": first, "second": second, "product": product}
        picture = dials.svg(Dial(hands, str(first), str(second), reach), label)
        note = self.turning(values, number) + " " + _("Here q·k is %(product)s.") % {"product": product}
        return format_html(
            '<section class="panel"><h3>{}</h3>{}<p class="panel-note">{}</p></section>',
            _("Numbers %(first)d and %(second)d") % {"first": first, "second": second},
            picture,
            note,
        )

    def turning(self, values: Values, number: int) -> str:
        """How both vectors turn in a plane, if they turn."""
        if values["pairs"] == "apart":
            return _("The query turns; the key has partners in the other plane.")
        if values["pairs"] == "mixed":
            return _("Neither turns: each number is mixed with one that is not its partner.")
        omega = frequencies(Rope("half", theta=values["base"]), WIDTH, 1)[0][number]
        return _("Both turn by %(turn)s radians per position.") % {"turn": show_power(float(omega))}

    def plot(self, values: Values) -> Plot:
        scores, moves = self.scores(values).tolist(), MOVES.tolist()
        series = [
            Series(_("both moved"), [*zip(moves, scores, strict=True)], has_marks=False),
            Series(
                _("the key alone moved"),
                [*zip(moves, self.apart(values).tolist(), strict=True)],
                has_marks=False,
            ),
            Series(_("here"), [(values["move"], scores[values["move"]])], is_joined=False),
        ]
        x = Axis(_("moved by"), partial(show, digits=0))
        return series, x, Axis(_("score q·k"), partial(show, digits=2))

    def table(self, values: Values) -> SafeString:
        query, key = self.here(values)
        rows = [
            (str(number), *(show(float(x), 4) for x in (a, b, a * b)))
            for number, (a, b) in enumerate(zip(query, key, strict=True), 1)
        ]
        lengths = [show(float(np.linalg.norm(x)), 4) for x in (query, key)]
        rows.append((_("length"), *lengths, "–"))
        caption = _("Turned, the query at %(m)s and the key at %(n)s") % {
            name: f"{values[name] + values['move']:,}" for name in ("m", "n")
        }
        foot = (_("q·k"), "", "", show(self.score(values), 4))
        return parts.listing(caption, (_("number"), _("query"), _("key"), _("product")), rows, foot)

    def score(self, values: Values) -> float:
        return float(self.scores(values)[values["move"]])

    def sentence(self, values: Values) -> str:
        scores = self.scores(values)
        words = {
            "m": f"{values['m'] + values['move']:,}",
            "n": f"{values['n'] + values['move']:,}",
            "apart": show(values["m"] - values["n"], 0),
            "score": show(self.score(values), 4),
            "low": show(float(scores.min()), 2),
            "high": show(float(scores.max()), 2),
        }
        if np.ptp(scores) <= SAME:
            told = _(
                "The query at %(m)s and the key at %(n)s score %(score)s, and so they do wherever both are"
                " moved together: their distance stays %(apart)s."
            )
        else:
            told = _(
                "The query at %(m)s and the key at %(n)s score %(score)s; moved together they swing from"
                " %(low)s to %(high)s, although their distance stays %(apart)s."
            )
        return told % words

    def numbers(self, values: Values) -> dict[str, Any]:
        query, key = self.here(values)
        return {
            "query": query.tolist(),
            "key": key.tolist(),
            "score": self.score(values),
            "scores_moved_together": self.scores(values).tolist(),
            "scores_key_moved": self.apart(values).tolist(),
        }

    def picture(self, values: Values) -> str:
        return lineplot.document(*self.plot(values), self.sentence(values))

    def lab(self, values: Values) -> list[tuple[str, str]]:
        """The query, and the key at four positions in a row; values such that the output is the weights."""
        style = values["pairs"] if values["pairs"] in ("interleaved", "half") else "interleaved"
        return [
            ("engine", "flash"),
            ("q", to_json(values["q"])),
            ("k", to_json(values["k"] * COPIES)),
            ("v", to_json(np.eye(COPIES).tolist())),
            ("q_positions", str(values["m"] + values["move"])),
            ("kv_positions", str(values["n"] + values["move"])),
            ("rope", style),
            ("rope_theta", f"{values['base']:.12g}"),
            ("scale", "1"),
            *(("returns", name) for name in ("out", "scores", "weights")),
        ]


# -- how slowly the slowest pair turns -----------------------------------------------------------------------


def wavelengths(pairs: int, base: float) -> np.ndarray:
    """In how many tokens each pair turns once, (pairs,)."""
    return np.asarray(2 * np.pi / frequencies(Rope("half", theta=base), 2 * pairs, 1)[0])


class Turns(Plotted):
    name = "turns"
    title = gettext_lazy("The figure: how many tokens a pair takes for one turn")
    controls = (
        Number("count", gettext_lazy("Pairs in a head, d/2"), 64, 1, 256),
        Number("b", gettext_lazy("Base, b"), 10_000, 1, 1e8, is_log=True),
        Number("length", gettext_lazy("Tokens of a text"), 4096, 16, 1_048_576, is_log=True),
    )

    def found(self, values: Values) -> np.ndarray:
        return wavelengths(values["count"], values["b"])

    def unfinished(self, values: Values) -> int:
        """How many pairs do not turn once within the text."""
        return int((self.found(values) > values["length"]).sum())

    def plot(self, values: Values) -> Plot:
        found = self.found(values).tolist()
        text = [(0, values["length"]), (len(found) - 1, values["length"])]
        series = [
            Series(_("one turn"), [*enumerate(found)], has_marks=len(found) < 20),
            Series(_("the text"), text[: len(found)], has_marks=False, is_dashed=True),
        ]
        x = Axis(_("pair, from 0"), partial(show, digits=0))
        return series, x, Axis(_("tokens"), partial(show_power, digits=3), is_log=True)

    def table(self, values: Values) -> SafeString:
        found = self.found(values)
        last = len(found) - 1
        rows = [
            (
                str(pair),
                show_power(float(2 * np.pi / found[pair])),
                show(float(found[pair]), 1),
                show(float(values["length"] / found[pair]), 2),
            )
            for pair in sorted({round(part * last / 4) for part in range(5)})
        ]
        heads = (_("pair"), _("radians per token"), _("tokens per turn"), _("turns in the text"))
        return parts.listing(_("Some of the pairs"), heads, rows)

    def sentence(self, values: Values) -> str:
        found = self.found(values)
        return _(
            "The fastest pair turns once in %(fast)s tokens, the slowest once in %(slow)s; %(slower)d of"
            " %(count)d do not turn once within %(length)s tokens."
        ) % {
            "fast": show(float(found[0]), 2),
            "slow": show_long(float(found[-1])),
            "slower": self.unfinished(values),
            "count": len(found),
            "length": f"{values['length']:,}",
        }

    def numbers(self, values: Values) -> dict[str, Any]:
        return {"tokens_per_turn": self.found(values).tolist(), "unfinished": self.unfinished(values)}


def show_long(value: float) -> str:
    """A number of tokens, whole where it is large."""
    return f"{value:,.0f}" if 1000 <= value < 1e7 else show_power(value)


# -- what few bits make of an angle --------------------------------------------------------------------------

FORMATS = ("float32", "float16", "bfloat16")
HEAD_DIM, DRAWS, NEAR = 64, 16, 8
FURTHEST = 131_072
PLACES = np.unique(np.geomspace(8, FURTHEST, 36).astype(int))


@lru_cache(maxsize=512)
def largest_error(place: int, apart: int, dtype: str) -> float:
    """By how much a score is off at most, of 16 random pairs of unit vectors with keys at this position and
    the seven after it; nan where the format does not reach."""
    places = place + np.arange(NEAR)
    q, k = (unit(generate(name, 0, (DRAWS, HEAD_DIM), "normal", "float64")) for name in "qk")

    def scores(dtype: str) -> np.ndarray:
        with np.errstate(invalid="ignore"):
            query, key = (
                at_angles(x, rounded_angles(at, HEAD_DIM, dtype))
                for x, at in ((q, places + apart), (k, places))
            )
            return np.asarray((query * key).sum(axis=-1))

    return float(np.abs(scores(dtype) - scores("float64")).max())


def unit(x: np.ndarray) -> np.ndarray:
    return np.asarray(x / np.linalg.norm(x, axis=-1, keepdims=True))


def at_angles(x: np.ndarray, angles: np.ndarray) -> np.ndarray:
    """x [n, d], each turned by each row of angles [m, d/2]: [n, m, d]."""
    rows = np.repeat(x[:, None], len(angles), axis=1)[None]
    turned = rotate(rows, np.cos(angles)[None], np.sin(angles)[None], style="half", dim_offset=0)
    return np.asarray(turned[0])


class Rounding(Plotted):
    name = "rounding"
    title = gettext_lazy("The figure: what few bits make of a position")
    controls = (
        Number("place", gettext_lazy("Position of the key"), 1001, 0, FURTHEST),
        Number("apart", gettext_lazy("Distance of the query"), 2, 0, 1024),
    )

    def plot(self, values: Values) -> Plot:
        apart = values["apart"]
        series = [
            Series(
                name,
                [(int(place), largest_error(int(place), apart, name)) for place in PLACES],
                has_marks=False,
            )
            for name in FORMATS
        ]
        x = Axis(_("position of the key (1K is 1,024)"), tokens, is_log=True, base=2)
        return (
            series,
            x,
            Axis(_("error of a score, of at most 1"), partial(show_power, digits=1), is_log=True),
        )

    def rounded(self, values: Values, dtype: str) -> tuple[float, float]:
        """The positions of key and query as the format has them."""
        places = np.array([values["place"], values["place"] + values["apart"]], dtype=np.float64)
        key, query = round_to_dtype(places, dtype).astype(np.float64).tolist()
        return key, query

    def table(self, values: Values) -> SafeString:
        rows = []
        for name in FORMATS:
            key, query = self.rounded(values, name)
            error = largest_error(values["place"], values["apart"], name)
            texts = [whole(x) for x in (key, query, query - key)]
            rows.append((name, *texts, show_power(error) if np.isfinite(error) else "–"))
        heads = ("", _("key at"), _("query at"), _("distance"), _("largest error"))
        return parts.listing(_("As each format has them"), heads, rows)

    def sentence(self, values: Values) -> str:
        key, query = self.rounded(values, "bfloat16")
        words = {
            "key": f"{values['place']:,}",
            "query": f"{values['place'] + values['apart']:,}",
            "key_rounded": whole(key),
            "query_rounded": whole(query),
            "found": whole(query - key),
            "apart": values["apart"],
        }
        if (key, query) == (values["place"], values["place"] + values["apart"]):
            return _("bfloat16 has both positions, %(key)s and %(query)s.") % words
        told = _(
            "In bfloat16 the positions %(key)s and %(query)s become %(key_rounded)s and %(query_rounded)s:"
            " their distance is %(found)s instead of %(apart)s."
        )
        return told % words

    def numbers(self, values: Values) -> dict[str, Any]:
        found = {}
        for name in FORMATS:
            error = largest_error(values["place"], values["apart"], name)
            places = [x if np.isfinite(x) else None for x in self.rounded(values, name)]
            found[name] = {"positions": places, "largest_error": error if np.isfinite(error) else None}
        return found


def whole(value: float) -> str:
    """A position; a format that ends below it has none."""
    return f"{value:,.0f}".replace("-", "−") if np.isfinite(value) else "∞" if value > 0 else "–"


FIGURES = (Rotation(), Turns(), Rounding())
