"""Words in, three projections, attention out: of one text with itself, or of one text with another.

Every word has four numbers of its own, drawn from its letters; they say nothing about where it stands. The
three matrices are fixed. All have one decimal, so that the arithmetic can be followed by hand.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from concepts.figures import Links, grids, parts
from concepts.figures.controls import Choice, Words
from concepts.figures.explorable import Explorable, Values
from concepts.figures.numbers import show, to_json
from concepts.maths import to_mathml
from kernels.arrays import generate
from kernels.engines.reference import attend

WIDTH, KEY_WIDTH, VALUE_WIDTH = 4, 3, 2  # d of the model, of keys and queries, of values
EXACT = 9  # decimals beyond which a difference is rounding
TEXT = ("the", "dog", "bit", "the", "man")
OTHER = ("le", "chien", "mordit", "l'homme")
KINDS = (
    ("self", gettext_lazy("self-attention")),
    ("causal", gettext_lazy("self-attention, causal")),
    ("cross", gettext_lazy("cross-attention")),
)
ORDERS = (
    ("typed", gettext_lazy("as it is")),
    ("reversed", gettext_lazy("backwards")),
    ("sorted", gettext_lazy("by the alphabet")),
)


def drawn(name: str, *shape: int, size: float = 1.0) -> np.ndarray:
    """Numbers with one decimal and this standard deviation that depend on the name alone."""
    return np.round(size * generate(f"projections/{name}", 0, shape, "normal", "float64"), 1) + 0.0


W_Q, W_K = (drawn(name, WIDTH, KEY_WIDTH, size=0.6) for name in "qk")
W_V = drawn("v", WIDTH, VALUE_WIDTH, size=0.6)


def embedded(words: tuple[str, ...]) -> np.ndarray:
    """A row of four numbers for each word; large letters count as small ones."""
    return np.stack([drawn(f"word/{word.lower()}", WIDTH) for word in words])


@dataclass(frozen=True)
class Steps:
    """From embeddings to outputs; n queries, m keys."""

    x: np.ndarray  # (n, 4) what the queries are made of
    source: np.ndarray  # (m, 4) what keys and values are made of
    q: np.ndarray  # (n, 3)
    k: np.ndarray  # (m, 3)
    v: np.ndarray  # (m, 2)
    weights: np.ndarray  # (n, m)
    out: np.ndarray  # (n, 2)


def steps(text: tuple[str, ...], source: tuple[str, ...], *, is_causal: bool = False) -> Steps:
    x, other = embedded(text), embedded(source)
    q, k, v = x @ W_Q, other @ W_K, other @ W_V
    allowed = np.tri(len(q), len(k), dtype=bool) if is_causal else True
    found = attend(q, k, v, scale=KEY_WIDTH**-0.5, allowed=allowed)
    return Steps(x, other, q, k, v, found["weights"], found["out"])


def ordered(words: tuple[str, ...], order: str) -> list[int]:
    """Which word comes where."""
    places = list(range(len(words)))
    if order == "reversed":
        return places[::-1]
    return sorted(places, key=lambda place: words[place].lower()) if order == "sorted" else places


class Projections(Explorable):
    name = "projections"
    title = gettext_lazy("The figure: words, projected and attended to")
    controls = (
        Words("text", gettext_lazy("Words"), TEXT, most=6),
        Choice("kind", gettext_lazy("What attends to what"), "self", KINDS),
        Words("other", gettext_lazy("For cross-attention, keys and values from"), OTHER, most=6),
        Choice("order", gettext_lazy("The same words, read"), "reversed", ORDERS),
    )

    # --- What follows from the values ----------------------------------------------------------

    def source(self, values: Values) -> tuple[str, ...]:
        """The words of keys and values."""
        return tuple(values["other"] if values["kind"] == "cross" else values["text"])

    def done(self, values: Values) -> Steps:
        return steps(values["text"], self.source(values), is_causal=values["kind"] == "causal")

    def moved(self, values: Values) -> np.ndarray:
        """The output of each word when all are read in the other order, as (n, 2) in the order as typed."""
        text, source = values["text"], self.source(values)
        places = ordered(text, values["order"])
        others = ordered(source, values["order"])
        found = steps(
            tuple(text[place] for place in places),
            tuple(source[place] for place in others),
            is_causal=values["kind"] == "causal",
        )
        return np.asarray(found.out[np.argsort(places)])

    def differences(self, values: Values) -> np.ndarray:
        """By how much the output of each word changed, at most: (n,)."""
        changed = np.abs(self.moved(values) - self.done(values).out).max(axis=1)
        return np.asarray(np.round(changed, EXACT))

    # --- What is shown -------------------------------------------------------------------------

    def view(self, values: Values, links: Links) -> SafeString:
        done, text, source = self.done(values), heads(values["text"]), heads(self.source(values))
        is_cross = values["kind"] == "cross"
        x, e = ("X", "E") if is_cross else ("X", "X")

        def matrix(name: str, latex: str, array: np.ndarray, rows: list[SafeString], note: str) -> SafeString:
            formula = to_mathml(latex)
            table = grids.scores(name, array, rows, numbers(array.shape[1]), digits=1)
            return grids.panel(format_html("{} {}", name, formula), table, note)

        tables = [
            matrix(_("Words"), "X", done.x, text, _("a row of four numbers for each word")),
            *([matrix(_("Other words"), "E", done.source, source, _("likewise"))] if is_cross else []),
            matrix(_("Queries"), f"Q={x}W^Q", done.q, text, _("what each word looks for")),
            matrix(_("Keys"), f"K={e}W^K", done.k, source, _("what each word is found by")),
            matrix(_("Values"), f"V={e}W^V", done.v, source, _("what each word hands over")),
            grids.panel(
                _("Weights"),
                grids.weights(_("Weights"), done.weights, text, source),
                _("softmax of Q·Kᵀ/√3, each row by itself"),
            ),
        ]
        return format_html('{}<div class="outputs">{}</div>', grids.panels(*tables), self.outputs(values))

    def outputs(self, values: Values) -> SafeString:
        """The output of each word, as typed and in the other order."""
        now, then, changed = self.done(values).out, self.moved(values), self.differences(values)
        rows = [
            (word, pair(before), pair(after), show(float(change), 2))
            for word, before, after, change in zip(values["text"], now, then, changed, strict=True)
        ]
        read = str(dict(ORDERS)[values["order"]])
        caption = _("Output of each word: two numbers")
        return parts.listing(caption, (_("word"), _("as typed"), read, _("change")), rows)

    def sentence(self, values: Values) -> str:
        changed = self.differences(values)
        read = {"order": dict(ORDERS)[values["order"]]}
        if values["order"] == "typed":
            return _("Choose another order, and see which outputs change.")
        if not changed.any():
            return _("Read %(order)s, every word keeps its output: the rows move, their numbers stay.") % read
        first = int(changed.argmax())
        told = _("Read %(order)s, “%(word)s” gets another output, by %(change)s: it sees other words now.")
        return told % {**read, "word": values["text"][first], "change": show(float(changed[first]), 3)}

    def numbers(self, values: Values) -> dict[str, Any]:
        done = self.done(values)
        found = {name: getattr(done, name).tolist() for name in ("q", "k", "v", "weights", "out")}
        return {**found, "out_in_order": self.moved(values).tolist()}

    def picture(self, values: Values) -> str:
        weights = grids.shaded(self.done(values).weights)
        return grids.picture(self.sentence(values), [(_("Weights"), weights)])

    def lab(self, values: Values) -> list[tuple[str, str]]:
        done = self.done(values)
        arrays = [(name, to_json(np.round(getattr(done, name), 4).tolist())) for name in ("q", "k", "v")]
        causal = [("causal", "on")] if values["kind"] == "causal" else []
        return [("engine", "flash"), *arrays, *causal]


def heads(words: Sequence[str]) -> list[SafeString]:
    return [format_html("{}", word) for word in words]


def numbers(count: int) -> list[SafeString]:
    return [format_html("{}", number) for number in range(1, count + 1)]


def pair(row: np.ndarray) -> str:
    return f"({', '.join(show(float(x), 2) for x in row)})"


FIGURE = Projections()
