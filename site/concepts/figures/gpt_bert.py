"""One sentence under four masks: which words each position sees, what it has to predict, and which outputs a
changed word moves.

The model has learned nothing: words and matrices are those of `multi_head`, with one head of eight numbers.
It is two layers of attention deep, each on normalised vectors and added to what goes in, and knows no places.
It predicts one of the words at hand.
"""

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from concepts.figures import Links, grids, parts
from concepts.figures.controls import Choice, Number, Words
from concepts.figures.explorable import Explorable, Values
from concepts.figures.multi_head import W_K, W_O, W_Q, W_V, WIDTH, embedded
from concepts.figures.numbers import show
from concepts.figures.projections import EXACT, drawn
from concepts.figures.projections import heads as word_heads
from kernels.engines.reference import attend
from kernels.scoring.attention import softmax

MOST, LAYERS = 6, 2
TEXT, INTO, PLACE = ("the", "bank", "of", "the", "river"), ("money",), 5
MASK, START, END = "[MASK]", "[START]", "[END]"
RANDOM = "apple"  # what stands for a word drawn at random
WITNESSES = ("another", "different")  # words that a target is exchanged for, to see who sees it
KINDS = (
    ("gpt", gettext_lazy("GPT: causal, the next word")),
    ("bert", gettext_lazy("BERT: no mask, a hidden word")),
    ("prefix", gettext_lazy("Prefix LM: a prefix in full, then causal")),
    ("t5", gettext_lazy("T5: encoder and decoder")),
    ("leak", gettext_lazy("Wrong: no mask, the next word")),
)
NAMES = {
    "gpt": gettext_lazy("GPT"),
    "bert": gettext_lazy("BERT"),
    "prefix": gettext_lazy("prefix LM"),
    "t5": gettext_lazy("T5"),
    "leak": gettext_lazy("wrong"),
}
STEADS = (
    ("mask", gettext_lazy("[MASK] (80 %)")),
    ("random", gettext_lazy("a random word (10 %)")),
    ("kept", gettext_lazy("the word itself (10 %)")),
)


@dataclass(frozen=True)
class Task:
    """What a model reads and what is asked of it."""

    reads: tuple[str, ...]  # a word for each position; an encoder's positions come first
    #: for each position which word of the sentence it must predict, from 0; None: nothing is asked there
    asked: tuple[int | None, ...]
    allowed: np.ndarray  # bool [positions, positions]
    encoder: int = 0  # how many positions are an encoder's

    @property
    def predictions(self) -> int:
        return sum(place is not None for place in self.asked)


@dataclass(frozen=True)
class Look:
    """One attention of n queries to m keys."""

    q: np.ndarray  # (n, 8)
    k: np.ndarray  # (m, 8)
    v: np.ndarray  # (m, 8)
    allowed: np.ndarray  # bool (n, m)
    weights: np.ndarray  # (n, m)
    out: np.ndarray  # (n, 8)


@dataclass(frozen=True)
class Pass:
    """The sentence once through the model."""

    looks: tuple[Look, ...]  # of the first layer: one, or encoder, decoder, decoder at encoder
    out: np.ndarray  # (positions, 8), normalised


def task(values: Values, text: tuple[str, ...]) -> Task:
    """`text` is the sentence, which need not be the one that was typed."""
    count = len(text)
    known, kind = min(values["prefix"], count), values["kind"]
    following, causal = tuple(range(1, count + 1)), np.tri(count, dtype=bool)
    everything = np.ones_like(causal)
    if kind == "bert":
        hidden = min(values["hidden"], count) - 1
        stead = {"mask": MASK, "random": RANDOM, "kept": text[hidden]}[values["stead"]]
        reads = (*text[:hidden], stead, *text[hidden + 1 :])
        return Task(reads, tuple(n if n == hidden else None for n in range(count)), everything)
    if kind == "prefix":
        asked = (*(None for _position in range(known - 1)), *following[known - 1 :])
        return Task(text, asked, causal | (np.arange(count) < known))
    if kind == "t5":
        reads = (*text[:known], START, *text[known:])
        asked = (*(None for _position in range(known)), *range(known, count + 1))
        return Task(reads, asked, np.tri(count + 1, dtype=bool) | (np.arange(count + 1) < known), known)
    return Task(text, following, everything if kind == "leak" else causal)


def normed(x: np.ndarray) -> np.ndarray:
    """LayerNorm of each row, without parameters."""
    centred = x - x.mean(axis=-1, keepdims=True)
    return np.asarray(centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-5))


def look(x: np.ndarray, source: np.ndarray, allowed: np.ndarray) -> Look:
    """Queries of x [n, 8], keys and values of source [m, 8]."""
    asking, known = normed(x), normed(source)
    q, k, v = asking @ W_Q, known @ W_K, known @ W_V
    found = attend(q, k, v, scale=WIDTH**-0.5, allowed=allowed)
    return Look(q, k, v, allowed, found["weights"], found["out"] @ W_O)


def run(given: Task) -> Pass:
    """Through all layers. A decoder looks at what the encoder has made in the end."""
    x, split = embedded(given.reads), given.encoder
    first: list[Look] = []
    if split:
        known, looks = stacked(x[:split], given.allowed[:split, :split])
        first.append(looks)
        written = x[split:]
        for layer in range(LAYERS):
            itself = look(written, written, given.allowed[split:, split:])
            written = written + itself.out
            across = look(written, known, given.allowed[split:, :split])
            written = written + across.out
            first += [itself, across] if layer == 0 else []
        return Pass(tuple(first), normed(np.concatenate([known, written])))
    out, looks = stacked(x, given.allowed)
    return Pass((looks,), normed(out))


def stacked(x: np.ndarray, allowed: np.ndarray) -> tuple[np.ndarray, Look]:
    """Self-attention through all layers: what comes out, and the first of them."""
    first = look(x, x, allowed)
    x = x + first.out
    for _layer in range(1, LAYERS):
        x = x + look(x, x, allowed).out
    return x, first


def guesses(out: np.ndarray, words: tuple[str, ...]) -> np.ndarray:
    """The probability of each of `words` at each position: (positions, words)."""
    columns = np.stack([drawn(f"guess/{word}", WIDTH, size=0.3) for word in words], axis=1)
    return np.asarray(softmax(out @ columns))


def replaced(text: tuple[str, ...], place: int, word: str) -> tuple[str, ...]:
    return (*text[:place], word, *text[place + 1 :])


class Objectives(Explorable):
    name = "objectives"
    title = gettext_lazy("The figure: one sentence, four masks")
    controls = (
        Words("text", gettext_lazy("Sentence"), TEXT, most=MOST),
        Choice("kind", gettext_lazy("Mask and task"), "gpt", KINDS),
        Number("place", gettext_lazy("Change word number"), PLACE, 1, MOST),
        Words("into", gettext_lazy("Into"), INTO, most=1),
        Number("hidden", gettext_lazy("BERT is asked for word number"), 2, 1, MOST),
        Choice("stead", gettext_lazy("There it reads"), "mask", STEADS),
        Number("prefix", gettext_lazy("Words of the prefix, or of T5’s encoder"), 3, 1, MOST),
    )

    # --- What follows from the values ----------------------------------------------------------

    def task(self, values: Values) -> Task:
        return task(values, values["text"])

    def done(self, values: Values) -> Pass:
        return run(self.task(values))

    def changed(self, values: Values) -> tuple[str, ...]:
        """The sentence with the one word changed."""
        place = min(values["place"], len(values["text"])) - 1
        return replaced(values["text"], place, values["into"][0])

    def moved(self, values: Values, text: tuple[str, ...] | None = None) -> np.ndarray:
        """By how much each output differs from that of another sentence, at most: (positions,)."""
        other = run(task(values, text or self.changed(values)))
        return np.asarray(np.round(np.abs(other.out - self.done(values).out).max(axis=1), EXACT))

    def seen(self, values: Values) -> list[bool]:
        """Of each position, whether its output depends on the word that it must predict."""
        text, found = values["text"], []
        for position, place in enumerate(self.task(values).asked):
            if place is None or place == len(text):
                found.append(False)
                continue
            witness = next(word for word in WITNESSES if word != text[place].lower())
            found.append(bool(self.moved(values, replaced(text, place, witness))[position]))
        return found

    def vocabulary(self, values: Values) -> tuple[str, ...]:
        """The words at hand, each once."""
        words = (*values["text"], *values["into"])
        return (*sorted({word.lower() for word in words}), END)

    def targets(self, values: Values) -> list[str]:
        """What each position must predict; empty where nothing is asked."""
        text = (*values["text"], END)
        return ["" if place is None else text[place] for place in self.task(values).asked]

    def chances(self, values: Values) -> list[float | None]:
        """The probability that each position gives to what it must predict."""
        words = self.vocabulary(values)
        found = guesses(self.done(values).out, words)
        return [
            float(row[words.index(target if target == END else target.lower())]) if target else None
            for row, target in zip(found, self.targets(values), strict=True)
        ]

    # --- What is shown -------------------------------------------------------------------------

    def view(self, values: Values, links: Links) -> SafeString:
        panels = [
            grids.panel(
                title,
                grids.weights(
                    title,
                    one.weights,
                    word_heads(rows),
                    word_heads(columns),
                    has_sums=False,
                    allowed=one.allowed,
                ),
                note,
            )
            for (title, rows, columns, note), one in zip(
                self.names(values), self.done(values).looks, strict=True
            )
        ]
        weights, positions = grids.panels(*panels), self.positions(values)
        is_wide = len(panels) > 1
        return format_html(
            '{}<div class="outputs">{}</div>',
            format_html(
                '{}<div class="outputs">{}</div>' if is_wide else '<div class="split">{}{}</div>',
                weights,
                positions,
            ),
            self.overview(values, links),
        )

    def names(self, values: Values) -> list[tuple[str, list[str], list[str], str]]:
        """Of each attention that is shown: its name, its rows, its columns, and a remark."""
        given = self.task(values)
        rows = [
            f"{word} → {target}" if target else word
            for word, target in zip(given.reads, self.targets(values), strict=True)
        ]
        reads, split = list(given.reads), given.encoder
        if not split:
            note = _("a row for each position; → what it must predict; – must not be seen")
            return [(_("Weights of the first layer"), rows, reads, note)]
        return [
            (_("Encoder"), rows[:split], reads[:split], _("every word sees every word")),
            (_("Decoder, at itself"), rows[split:], reads[split:], _("causal; → what must be predicted")),
            (_("Decoder, at the encoder"), rows[split:], reads[:split], _("cross-attention, all open")),
        ]

    def positions(self, values: Values) -> SafeString:
        """What each position reads, predicts and loses, and whether the change reaches it."""
        rows: list[tuple[str | SafeString, ...]] = []
        total = 0.0
        for read, target, chance, is_seen, change in zip(
            self.task(values).reads,
            self.targets(values),
            self.chances(values),
            self.seen(values),
            self.moved(values),
            strict=True,
        ):
            loss = 0.0 if chance is None else -float(np.log(chance))
            total += loss
            rows.append(
                (
                    read,
                    (target or "–") + (_(" (seen!)") if is_seen else ""),
                    "–" if chance is None else show(chance, 3),
                    "–" if chance is None else show(loss, 3),
                    show(float(change), 3) if change else _("stays"),
                )
            )
        heads = (_("reads"), _("predicts"), _("p"), _("−log\u00a0p"), _("output changes by"))
        caption = _("Each position, and what “%(old)s” → “%(new)s” does to its output") % self.swap(values)
        foot = (_("loss"), "", "", show(total, 3), "")
        return grids.framed(parts.listing(caption, heads, rows, foot), caption)

    def overview(self, values: Values, links: Links) -> SafeString:
        """The sentence under every mask."""
        rows = []
        for kind, name in NAMES.items():
            one = {**values, "kind": kind}
            given, moved = self.task(one), self.moved(one)
            link = format_html(
                '<a href="{}"{}>{}</a>',
                self.address(links, values, kind=kind),
                SafeString(' aria-current="true"') if kind == values["kind"] else "",
                name,
            )
            rows.append(
                (
                    link,
                    grids.icon(given.allowed),
                    str(int(given.allowed.sum())),
                    str(given.predictions),
                    _("%(some)d of %(all)d") % {"some": int((moved > 0).sum()), "all": len(moved)},
                )
            )
        heads = (_("mask and task"), _("mask"), _("open pairs"), _("predictions"), _("outputs that change"))
        caption = _("The sentence under each mask; a link chooses it")
        return grids.framed(parts.listing(caption, heads, rows), caption)

    def swap(self, values: Values) -> dict[str, str]:
        text = values["text"]
        return {"old": text[min(values["place"], len(text)) - 1], "new": values["into"][0]}

    def sentence(self, values: Values) -> str:
        given, seen = self.task(values), sum(self.seen(values))
        told = ngettext(
            "One pass makes %(count)d prediction.", "One pass makes %(count)d predictions.", given.predictions
        ) % {"count": given.predictions}
        if seen:
            leak = ngettext(
                "%(seen)d position sees the word that it has to predict.",
                "%(seen)d positions see the word that they have to predict.",
                seen,
            )
            told += " " + leak % {"seen": seen}
        return f"{told} {self.told_of_change(values)}"

    def told_of_change(self, values: Values) -> str:
        moved = self.moved(values)
        count, words = int((moved > 0).sum()), self.swap(values)
        if words["old"].lower() == words["new"].lower():
            return _("Change a word into another one, and see which outputs change.")
        if count == len(moved):
            told = _("Change “%(old)s” into “%(new)s”, and every output changes.")
        elif count:
            told = ngettext(
                "Change “%(old)s” into “%(new)s”, and %(count)d of %(all)d outputs changes; the rest stay"
                " exactly as they are.",
                "Change “%(old)s” into “%(new)s”, and %(count)d of %(all)d outputs change; the rest stay"
                " exactly as they are.",
                count,
            )
        else:
            told = _("Change “%(old)s” into “%(new)s”, and no output changes: the word is hidden.")
        return told % {**words, "count": count, "all": len(moved)}

    def numbers(self, values: Values) -> dict[str, Any]:
        given, done = self.task(values), self.done(values)
        return {
            "reads": given.reads,
            "predicts": self.targets(values),
            "sees_target": self.seen(values),
            "probabilities": self.chances(values),
            "moves_by": self.moved(values).tolist(),
            "allowed": given.allowed.tolist(),
            "weights": [one.weights.tolist() for one in done.looks],
        }

    def picture(self, values: Values) -> str:
        tables = [
            (name[0], grids.shaded(one.weights, allowed=one.allowed))
            for name, one in zip(self.names(values), self.done(values).looks, strict=True)
        ]
        return grids.picture(self.sentence(values), tables)

    def lab(self, values: Values) -> list[tuple[str, str]]:
        """The last attention that is shown: that of the first layer, or the decoder's at the encoder."""
        one = self.done(values).looks[-1]
        arrays = [(name, json.dumps(np.round(getattr(one, name), 4).tolist())) for name in ("q", "k", "v")]
        pairs = [("engine", "flash"), *arrays]
        if one.allowed.all():
            return pairs
        if np.array_equal(one.allowed, np.tri(*one.allowed.shape, dtype=bool)):
            return [*pairs, ("causal", "on")]
        mask = json.dumps(one.allowed.tolist(), separators=(",", ":"))
        return [*pairs, ("how_attn_mask", "text"), ("in_attn_mask", mask)]


FIGURE = Objectives()
