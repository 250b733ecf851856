"""Which tokens a small cache keeps, and what that does to the next output; by `kernels.cache_policies`.

One head reads a prompt of 21 words, a question at its end. Its queries and keys are made by hand, eight
numbers each: one for the sink at the beginning, one for full stops, two for what can be asked, two that turn
with the place, so that near words match better, and two that are drawn. Values have four numbers: one for
each of the two answers, two that are drawn; that of the first token is 0.
"""

import json
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from concepts.figures import Links, grids, parts
from concepts.figures.controls import Choice, Number
from concepts.figures.explorable import Explorable, Values
from concepts.figures.kv_bits import percent
from concepts.figures.numbers import show
from concepts.figures.projections import drawn
from concepts.figures.projections import heads as word_heads
from kernels.cache_policies.policies import HeavyHitters, Policy, Sliding, Streaming
from kernels.cache_policies.stream import stream
from kernels.cache_policies.votes import elected
from kernels.engines.reference import attend

FIRST = "⟨s⟩"
PROMPT = (
    FIRST, "my", "door", "code", "is", "4719", ".", "my", "dog", "is", "Rex", ".", "it", "was", "late", ".",
    "what", "is", "my", "code", "?",
)  # fmt: skip
SEEN = 5  # the question: the queries that vote
AFTER = {"code": ("it’s",), "dog": ("and", "my", "dog", "?"), "near": ("so",)}
WIDTH, VALUE_WIDTH = 8, 4
SINK, STOP, CODE, DOG, COS, SIN, REST = range(7)
TURN = np.pi / 36  # of a place: half a turn is longer than the text
SCALE = WIDTH**-0.5


@dataclass(frozen=True)
class Text:
    """Words and what the head makes of them: q, k [n, 8], v [n, 4]."""

    words: tuple[str, ...]
    q: np.ndarray
    k: np.ndarray
    v: np.ndarray


def text_of(asks: str) -> Text:
    """The prompt and what is written after it; the last query wants what is asked."""
    words = PROMPT + AFTER[asks]
    places = np.arange(len(words)) * TURN
    q, k, v = (
        np.zeros((len(words), WIDTH)),
        np.zeros((len(words), WIDTH)),
        np.zeros((len(words), VALUE_WIDTH)),
    )
    near = np.stack([np.cos(places), np.sin(places)], axis=1)
    q[:, [COS, SIN]], k[:, [COS, SIN]] = 4 * near, near
    q[:, SINK], q[:, STOP] = 3.5, 1.5
    for i, word in enumerate(words):
        q[i, REST:] = drawn(f"kv-keep/q/{word.lower()}", 2)
        k[i, REST:] = drawn(f"kv-keep/k/{word.lower()}", 2, size=0.5)
        v[i, 2:] = 1.0 + drawn(f"kv-keep/v/{word.lower()}", 2, size=0.5)
    k[0, SINK], v[0] = 3.5, 0.0
    k[[i for i, word in enumerate(words) if word == "."], STOP] = 3.0
    for word, axis in (("4719", CODE), ("Rex", DOG)):
        at = words.index(word)
        k[at, axis], v[at] = 3.0, 3.0 * np.eye(VALUE_WIDTH)[axis - CODE]
    q[len(PROMPT) - SEEN : len(PROMPT), CODE] = 4.0
    if asks == "code":
        q[-1, CODE] = 4.0
    elif asks == "dog":
        q[len(PROMPT) :, DOG] = 4.0
    else:
        q[-1, [SINK, STOP, COS, SIN]] *= [2.8, 0.0, 6.0, 6.0]
    return Text(words, *(np.round(x, 1) + 0.0 for x in (q, k, v)))


@dataclass(frozen=True)
class Kept:
    """What one way has left for the last query: the places, their weights, and the output."""

    places: list[int]
    weights: np.ndarray
    out: np.ndarray

    def share(self, exact: "Kept") -> float:
        """Of the weights of the full cache, what falls on the places that stayed."""
        return float(exact.weights[self.places].sum())

    def error(self, exact: "Kept") -> float:
        return float(np.linalg.norm(self.out - exact.out) / np.linalg.norm(exact.out))


def last_query(text: Text, places: list[int]) -> Kept:
    found = attend(text.q[-1:], text.k[places], text.v[places], scale=SCALE)
    return Kept(places, found["weights"][0], found["out"][0])


def streamed(text: Text, policy: Policy) -> Kept:
    """Read token by token, so that a policy that counts weights counts its own."""
    q, k, v = (x[None, None] for x in (text.q, text.k, text.v))
    held = stream(q, k, v, policy, positions="text").held[0, 0, -1]
    return last_query(text, np.flatnonzero(held).tolist())


def voted(text: Text, budget: int, pool: int) -> Kept:
    """The prompt is read whole and cut once; what comes after it is added."""
    count = len(PROMPT)
    q, k = (x[None, None, :count] for x in (text.q, text.k))
    chosen = elected(q, k, SEEN, budget, pool)[0, 0].tolist()
    return last_query(text, [*chosen, *range(count, len(text.words))])


@lru_cache(maxsize=256)
def ways(asks: str, budget: int, sinks: int, pool: int) -> dict[str, Kept]:
    """Of each way to choose, by its name."""
    text = text_of(asks)
    return {
        "full": last_query(text, list(range(len(text.words)))),
        "window": streamed(text, Sliding(budget)),
        "sinks": streamed(text, Streaming(budget - sinks, sinks)),
        "h2o": streamed(text, HeavyHitters(budget)),
        "snap": voted(text, budget, pool),
    }


class Evict(Explorable):
    name = "evict"
    title = gettext_lazy("The figure: which tokens stay, and what the output loses")
    controls = (
        Choice(
            "asks",
            gettext_lazy("The next query wants"),
            "code",
            (
                ("code", gettext_lazy("the code, which the prompt asks for")),
                ("dog", gettext_lazy("the dog, asked for afterwards")),
                ("near", gettext_lazy("nothing far away")),
            ),
        ),
        Number("budget", gettext_lazy("Tokens kept, of the 21 of the prompt"), 10, SEEN + 1, len(PROMPT)),
        Number("sinks", gettext_lazy("First tokens that stay (sinks)"), 4, 0, 5),
        Choice("pool", gettext_lazy("Votes are averaged over"), "1", (("1", "1"), ("3", "3"), ("5", "5"))),
    )

    def names(self) -> dict[str, str]:
        return {
            "full": _("all"),
            "window": _("window"),
            "sinks": _("sinks and window"),
            "h2o": "H2O",
            "snap": "SnapKV",
        }

    def ways(self, values: Values) -> dict[str, Kept]:
        return ways(values["asks"], values["budget"], values["sinks"], int(values["pool"]))

    def view(self, values: Values, links: Links) -> SafeString:
        ways = self.ways(values)
        return format_html('<div class="split">{}{}</div>', self.grid(values, ways), self.table(values, ways))

    def grid(self, values: Values, ways: dict[str, Kept]) -> SafeString:
        """A row for each word: its weight with each way, or that it is gone."""
        words = text_of(values["asks"]).words
        wanted = int(np.argmax(ways["full"].weights))
        gone, rows = parts.cell("–", extra="shut"), []
        for place in range(len(words)):
            row = []
            for kept in ways.values():
                if place not in kept.places:
                    row.append(gone)
                    continue
                weight = float(kept.weights[kept.places.index(place)])
                mark = "painted" if place == wanted else ""
                row.append(parts.cell(show(round(100 * weight), 0), heat=grids.heat_of(weight), extra=mark))
            rows.append(row)
        heads = [format_html("{}", name) for name in self.names().values()]
        caption = _("Weights of the next query, in %; – is evicted; the row that it wants most is framed")
        table = grids.framed(parts.table(caption, rows, word_heads(words), heads), caption)
        return format_html('<div>{}<p class="panel-note">{}</p></div>', table, caption)

    def table(self, values: Values, ways: dict[str, Kept]) -> SafeString:
        exact = ways["full"]
        rows = [
            (name, str(len(kept.places)), percent(kept.share(exact)), percent(round(kept.error(exact), 9)))
            for name, kept in zip(self.names().values(), ways.values(), strict=True)
        ]
        caption = _("What is left for the next query")
        heads = (_("kept by"), _("tokens"), _("of the weights"), _("error of the output"))
        return grids.framed(parts.listing(caption, heads, rows), caption)

    def sentence(self, values: Values) -> str:
        others, words = self.ways(values), text_of(values["asks"]).words
        exact, names = others["full"], self.names()
        others = {name: way for name, way in others.items() if name != "full"}
        wanted = int(np.argmax(exact.weights))

        def listed(chosen: dict[str, Kept]) -> str:
            each = (f"{names[name]} ({percent(round(way.error(exact), 9))})" for name, way in chosen.items())
            return ", ".join(each) or _("none")

        return _(
            "The next query gives “%(word)s” the most weight, %(share)s. Kept, with the error of the output:"
            " %(has)s. Evicted: %(lacks)s."
        ) % {
            "word": words[wanted],
            "share": percent(round(float(exact.weights[wanted]), 2)),
            "has": listed({name: way for name, way in others.items() if wanted in way.places}),
            "lacks": listed({name: way for name, way in others.items() if wanted not in way.places}),
        }

    def numbers(self, values: Values) -> dict[str, Any]:
        ways = self.ways(values)
        exact = ways["full"]
        return {
            name: {
                "places": kept.places,
                "weights": kept.weights.tolist(),
                "share": kept.share(exact),
                "error": kept.error(exact),
            }
            for name, kept in ways.items()
        }

    def picture(self, values: Values) -> str:
        words, ways = text_of(values["asks"]).words, self.ways(values)
        held = np.array([[place in kept.places for kept in ways.values()] for place in range(len(words))])
        weights = np.zeros(held.shape)
        for column, kept in enumerate(ways.values()):
            weights[kept.places, column] = kept.weights
        return grids.picture(self.sentence(values), [(_("weights"), grids.shaded(weights, 2, held))])

    def lab(self, values: Values) -> list[tuple[str, str]]:
        """The whole text through the lab's forgetful cache, with the policy of heavy hitters."""
        text = text_of(values["asks"])
        return [
            ("engine", "cache"),
            *((name, json.dumps(x.tolist())) for name, x in (("q", text.q), ("k", text.k), ("v", text.v))),
            ("option_policy", "heavy_hitters"),
            ("option_budget", str(values["budget"])),
            *(("returns", name) for name in ("out", "weights", "held", "kept_weight", "row_error")),
        ]


FIGURE = Evict()
