"""Many heads: how the columns of queries, keys and values are dealt out among heads, what each head makes of
them, how their outputs are put together, and what becomes of it without the transpose; and what heads cost.

The layer is eight numbers wide. Words and matrices are drawn as those of `projections`, one decimal each.
"""

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
from django.utils.html import format_html
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from concepts.figures import Links, grids, parts
from concepts.figures.controls import Choice, Number, Switch, Words
from concepts.figures.explorable import Explorable, Values
from concepts.figures.numbers import show, show_power
from concepts.figures.projections import drawn
from concepts.figures.projections import heads as word_heads
from concepts.figures.projections import numbers as column_heads
from concepts.figures.scales import ink, sequential
from concepts.maths import to_mathml
from kernels.engines.reference import attend
from kernels.mistakes import merge_heads, split_heads
from kernels.sizing.layers import Attention
from kernels.sizing.models import read_model

WIDTH = 8
TEXT = ("she", "gave", "him", "tea")
SPLITS = (
    ("right", gettext_lazy("reshape, then transpose")),
    ("split", gettext_lazy("reshape alone, merged correctly")),
    ("both", gettext_lazy("reshape alone, both ways")),
)
W_Q, W_K, W_V, W_O = (drawn(f"heads/{name}", WIDTH, WIDTH, size=0.45) for name in "qkvo")
NOTHING = 1e-9  # a difference that is rounding


@dataclass(frozen=True)
class Layer:
    """n words, h heads of d numbers each."""

    q: np.ndarray  # (h, n, d), as are k and v
    k: np.ndarray
    v: np.ndarray
    scores: np.ndarray  # (h, n, n), divided by √d
    weights: np.ndarray  # (h, n, n)
    parts: np.ndarray  # (h, n, d): the output of each head
    joined: np.ndarray  # (n, 8): the heads side by side
    out: np.ndarray  # (n, 8): times W^O


def embedded(words: tuple[str, ...]) -> np.ndarray:
    """A row of eight numbers for each word."""
    return np.stack([drawn(f"word/{word.lower()}", WIDTH) for word in words])


def layer(x: np.ndarray, heads: int, split: str = "right", *, is_causal: bool = False) -> Layer:
    """x [n, 8] through attention of that many heads; `split` is one of SPLITS."""
    dealt = None if split == "right" else "not_transposed"
    q, k, v = (split_heads(x @ matrix, heads, dealt) for matrix in (W_Q, W_K, W_V))
    allowed = np.tri(len(x), dtype=bool) if is_causal else True
    scale = (WIDTH // heads) ** -0.5
    found = [attend(*one, scale=scale, allowed=allowed) for one in zip(q, k, v, strict=True)]
    scores, weights, outs = (np.stack([one[name] for one in found]) for name in ("scores", "weights", "out"))
    joined = merge_heads(outs, "not_transposed" if split == "both" else None)
    return Layer(q, k, v, scores, weights, outs, joined, joined @ W_O)


def reach(x: np.ndarray, heads: int, split: str = "right", *, is_causal: bool = False) -> np.ndarray:
    """bool [n, n]: whether the output of word i changes when word j does, found by changing it."""
    usual = layer(x, heads, split, is_causal=is_causal).out
    columns = []
    for word in range(len(x)):
        other = x.copy()
        other[word] += drawn("other", WIDTH)
        changed = layer(other, heads, split, is_causal=is_causal).out - usual
        columns.append(np.abs(changed).max(axis=1) > NOTHING)
    return np.stack(columns, axis=1)


def held(words: int, heads: int, split: str) -> np.ndarray:
    """int [heads, n, 2]: which word, and which of its h pieces, each row of each head is made of."""
    pieces = np.stack(np.divmod(np.arange(words * heads), heads), axis=1)  # in the order of memory
    if split == "right":
        return pieces.reshape(words, heads, 2).transpose(1, 0, 2)
    return pieces.reshape(heads, words, 2)


class Heads(Explorable):
    name = "heads"
    title = gettext_lazy("The figure: eight columns, dealt out among heads")
    controls = (
        Words("text", gettext_lazy("Words"), TEXT, most=5, longest=8),
        Choice("heads", gettext_lazy("Heads"), "2", (("1", "1"), ("2", "2"), ("4", "4"))),
        Switch("causal", gettext_lazy("Causal: no word sees a later one"), False),
        Choice("split", gettext_lazy("Split into heads by"), "right", SPLITS),
    )

    # --- What follows from the values ----------------------------------------------------------

    def done(self, values: Values, split: str = "") -> Layer:
        """`split`: another one than the chosen."""
        chosen = split or values["split"]
        return layer(embedded(values["text"]), int(values["heads"]), chosen, is_causal=values["causal"])

    def reached(self, values: Values, split: str = "") -> np.ndarray:
        chosen = split or values["split"]
        return reach(embedded(values["text"]), int(values["heads"]), chosen, is_causal=values["causal"])

    def changes(self, values: Values) -> np.ndarray:
        """By how much the output of each word differs from the right one, at most: (n,)."""
        return np.asarray(np.abs(self.done(values).out - self.done(values, "right").out).max(axis=1))

    def labels(self, values: Values) -> list[list[str]]:
        """What the rows of each head are made of, in words."""
        text, count = values["text"], int(values["heads"])
        rows = held(len(text), count, values["split"]).tolist()
        if values["split"] == "right" or count == 1:
            return [[text[word] for word, _piece in row] for row in rows]
        return [[f"{text[word]} {columns_of(piece, count)}" for word, piece in row] for row in rows]

    # --- What is shown -------------------------------------------------------------------------

    def view(self, values: Values, links: Links) -> SafeString:
        done, labels = self.done(values), self.labels(values)
        title = _("Weights of head %(head)d")
        weights = [
            grids.panel(
                title % {"head": head},
                grids.weights(title % {"head": head}, matrix, word_heads(row), word_heads(row)),
                self.note(values, head),
            )
            for head, (matrix, row) in enumerate(zip(done.weights, labels, strict=True), 1)
        ]
        folds = [self.fold(values, done, labels[head], head) for head in range(len(labels))]
        return format_html(
            '{}<div class="outputs">{}</div>{}',
            grids.panels(*weights, self.reach_panel(values)),
            parts.join(folds),
            grids.panels(*self.together(values, done)),
        )

    def together(self, values: Values, done: Layer) -> list[SafeString]:
        """What the heads make together."""
        text, columns = word_heads(values["text"]), column_heads(WIDTH)
        if values["split"] == "both":
            note = _("read off in the order in which the numbers lie")
        else:
            note = _("columns %(columns)s are the output of head 1")
            note %= {"columns": columns_of(0, int(values["heads"]))}
        return [
            grids.panel(
                format_html("{} {}", name, to_mathml(latex)),
                grids.scores(name, np.round(array, 1), text, columns, digits=1),
                remark,
            )
            for name, latex, array, remark in (
                (_("Heads side by side"), "Z", done.joined, note),
                (_("Output"), "ZW^O", done.out, _("each of its numbers is mixed from all heads")),
            )
        ]

    def note(self, values: Values, head: int) -> str:
        columns = columns_of(head - 1, int(values["heads"]))
        if values["split"] == "right" or values["heads"] == "1":
            return _("of columns %(columns)s of every word") % {"columns": columns}
        return _("its last row is taken for “%(word)s”") % {"word": values["text"][-1]}

    def fold(self, values: Values, done: Layer, labels: list[str], head: int) -> SafeString:
        """All that one head computes."""
        rows, width = word_heads(labels), column_heads(done.q.shape[2])
        dot = to_mathml(rf"Q_{head + 1}K_{head + 1}^{{\top}}/\sqrt{{{done.q.shape[2]}}}")
        matrices: list[tuple[str, str | SafeString, np.ndarray, list[SafeString]]] = [
            (_("Queries"), _("Queries"), done.q[head], width),
            (_("Keys"), _("Keys"), done.k[head], width),
            (_("Scores"), format_html("{} {}", _("Scores"), dot), done.scores[head], rows),
            (_("Values"), _("Values"), done.v[head], width),
            (_("Output of the head"), _("Output of the head"), done.parts[head], width),
        ]
        panels = [
            grids.panel(
                title,
                grids.scores(f"{name}, {_('head')} {head + 1}", np.round(array, 2), rows, columns, digits=2),
            )
            for name, title, array, columns in matrices
        ]
        return format_html(
            '<details class="fold"{}><summary>{}</summary>{}</details>',
            mark_safe(" open") if head == 0 else "",
            _("Head %(head)d, from its columns to its output") % {"head": head + 1},
            grids.panels(*panels),
        )

    def reach_panel(self, values: Values) -> SafeString:
        """Which word reaches which output, with what should not be so marked."""
        found, right = self.reached(values), self.reached(values, "right")
        rows = [
            [reach_cell(bool(is_seen), bool(should)) for is_seen, should in zip(*both, strict=True)]
            for both in zip(found, right, strict=True)
        ]
        text, caption = word_heads(values["text"]), _("Which word reaches which output")
        table = grids.framed(parts.table(caption, rows, text, text), caption)
        note = _("a row for each output, a column for each word that is changed; ! marks what is wrong")
        return grids.panel(caption, table, note)

    def sentence(self, values: Values) -> str:
        count, text = int(values["heads"]), values["text"]
        if values["split"] == "right" or count == 1:
            return self.told_of_favourites(values)
        found, right = self.reached(values), self.reached(values, "right")
        told = [
            _("No error is raised, and every shape is right; but head 1 holds %(rows)s.")
            % {"rows": ", ".join(self.labels(values)[0])}
        ]
        leaks = np.argwhere(found & ~right)
        if len(leaks):
            i, j = leaks[0].tolist()
            leak = _("The output of “%(word)s” now depends on “%(later)s”, a later word.")
            told.append(leak % {"word": text[i], "later": text[j]})
        lost = np.argwhere(right & ~found)
        if len(lost):
            i, j = lost[0].tolist()
            miss = _("The output of “%(word)s” no longer depends on “%(other)s”.")
            told.append(miss % {"word": text[i], "other": text[j]})
        if not len(leaks) and not len(lost):
            change = _("Outputs are off by up to %(change)s.")
            told.append(change % {"change": show(float(self.changes(values).max()), 2)})
        return " ".join(told)

    def told_of_favourites(self, values: Values) -> str:
        """What the heads say to the last word."""
        text, weights = values["text"], self.done(values, "right").weights[:, -1]
        each = ngettext(
            "%(heads)d head has all %(columns)d columns.",
            "Each of %(heads)d heads has %(columns)d columns and weights of its own.",
            len(weights),
        ) % {"heads": len(weights), "columns": WIDTH // len(weights)}
        favourites = [
            _("head %(head)d most to “%(word)s”, %(weight)s")
            % {"head": head, "word": text[int(row.argmax())], "weight": show(float(row.max()), 2)}
            for head, row in enumerate(weights, 1)
        ]
        last = _("For “%(word)s”: %(favourites)s.") % {"word": text[-1], "favourites": "; ".join(favourites)}
        return f"{each} {last}"

    def numbers(self, values: Values) -> dict[str, Any]:
        done = self.done(values)
        found = {name: getattr(done, name).tolist() for name in ("q", "k", "v", "weights", "parts", "out")}
        return {**found, "reach": self.reached(values).tolist(), "holds": self.labels(values)}

    def picture(self, values: Values) -> str:
        tables = [
            (_("Head %(head)d") % {"head": head}, grids.shaded(matrix))
            for head, matrix in enumerate(self.done(values).weights, 1)
        ]
        return grids.picture(self.sentence(values), tables)

    def lab(self, values: Values) -> list[tuple[str, str]]:
        done = self.done(values)
        arrays = [(name, json.dumps(np.round(getattr(done, name), 4).tolist())) for name in ("q", "k", "v")]
        causal = [("causal", "on")] if values["causal"] else []
        return [("engine", "flash"), *arrays, *causal]


def columns_of(piece: int, heads: int) -> str:
    """The columns of a head, or of a piece of a word, as from 5 to 8."""
    width = WIDTH // heads
    return f"{piece * width + 1}–{(piece + 1) * width}"


def reach_cell(is_seen: bool, should: bool) -> SafeString:
    text = (_("yes") if is_seen else _("no")) + ("" if is_seen == should else " !")
    css = ("open" if is_seen else "shut") + ("" if is_seen == should else " painted")
    return format_html('<td class="{}">{}</td>', css, text)


# -- what heads cost -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cost:
    """Of attention over `tokens`, a layer `width` wide."""

    heads: int
    each: float  # numbers in a query of one head
    parameters: int  # of the four projections, without biases
    products: int  # multiply-adds, of projections, scores and averages
    scores: int  # and exponentials


def cost(width: int, heads: int, tokens: int) -> Cost:
    """With d_k = d_v = width / heads, no mask."""
    projections, pairs = 4 * width * width, tokens * tokens
    return Cost(heads, width / heads, projections, tokens * projections + 2 * pairs * width, heads * pairs)


@dataclass(frozen=True)
class HeadsOf:
    """What a model does."""

    width: int
    heads: int
    each: int

    @property
    def together(self) -> int:
        """Columns of all heads."""
        return self.heads * self.each


def heads_of(slug: str) -> HeadsOf:
    model = read_model(slug).model
    mixers = [mixer for one in model.layers or model.encoder for mixer in one.mixers]
    first = next(mixer for mixer in mixers if isinstance(mixer, Attention))
    return HeadsOf(model.hidden, first.heads, first.head_dim)


class Budget(Explorable):
    name = "budget"
    title = gettext_lazy("The figure: the same width for more heads")
    controls = (
        Number("width", gettext_lazy("Numbers for a token, d_model"), 512, 64, 16384, is_log=True),
        Number("count", gettext_lazy("Heads, h"), 8, 1, 128, is_log=True),
        Number("tokens", gettext_lazy("Tokens, n"), 1024, 1, 131072, is_log=True),
    )

    def costs(self, values: Values) -> list[Cost]:
        """With one head, as chosen, and with twice and four times as many."""
        counts = sorted({1, values["count"], 2 * values["count"], 4 * values["count"]})
        return [cost(values["width"], heads, values["tokens"]) for heads in counts]

    def view(self, values: Values, links: Links) -> SafeString:
        rows = [
            (
                show(one.heads),
                show(one.each, 1),
                *(show_power(count) for count in (one.parameters, one.products, one.scores)),
            )
            for one in self.costs(values)
        ]
        heads = (
            _("heads"),
            _("numbers each"),
            _("parameters"),
            _("multiply-adds"),
            _("scores"),
        )
        caption = _("One layer, by number of heads")
        return grids.framed(parts.listing(caption, heads, rows), caption)

    def sentence(self, values: Values) -> str:
        one, chosen = cost(values["width"], 1, 1), cost(values["width"], values["count"], values["tokens"])
        words = {"heads": chosen.heads, "each": show(chosen.each, 1), "all": show(one.each)}
        if values["width"] % values["count"]:
            told = _("%(all)s is no multiple of %(heads)d: a head cannot have %(each)s numbers.")
        elif values["count"] == 1:
            told = _("One head of %(all)s numbers. More heads share these numbers out.")
        else:
            told = _(
                "%(heads)d heads of %(each)s numbers: the same parameters and multiply-adds as one head of"
                " %(all)s, and %(heads)d times as many scores to exponentiate."
            )
        return told % words

    def numbers(self, values: Values) -> dict[str, Any]:
        return {"costs": [vars(one) for one in self.costs(values)]}

    def picture(self, values: Values) -> str:
        white = sequential(0)
        rows = [
            [(text, white.hex, ink(white).hex) for text in (str(one.heads), show(one.each, 1))]
            for one in self.costs(values)
        ]
        return grids.picture(self.sentence(values), [(_("heads, numbers each"), rows)])

    def lab(self, values: Values) -> list[tuple[str, str]]:
        return []


FIGURES = (Heads(), Budget())
