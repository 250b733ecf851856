"""One block of the walk, for the word that is followed: `told` in words, `inside` in numbers."""

from collections.abc import Sequence

import numpy as np
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from concepts.figures import grids, parts
from concepts.figures.explorable import Values
from concepts.figures.numbers import show
from concepts.figures.projections import WIDTH, embedded
from concepts.figures.projections import heads as word_heads
from concepts.figures.projections import numbers as column_heads
from concepts.figures.walk import HEADS, Place, name_of, size, vocabulary
from concepts.maths import to_mathml
from kernels.blocks import Attended, Fed, deviation

DIGITS = 2


def told(place: Place, values: Values) -> str:
    word, found = place.words[place.row], place.step.found if place.step else None
    if isinstance(found, Attended):
        return told_of_attention(place, found)
    if isinstance(found, Fed):
        kept = int((found.hidden[place.row] > 0).sum())
        words = _(
            "“%(word)s” by itself, no other word is looked at: its four numbers become eight, the ReLU leaves"
            " %(kept)d above 0, and these become four again."
        )
        return words % {"word": word, "kept": kept}
    if place.kind == "in":
        words = _("“%(word)s” becomes four numbers: twice its embedding, and the vector of position %(at)d.")
        return words % {"word": word, "at": place.row}
    if place.kind == "out":
        best = int(place.vector.argmax())
        words = _("every word at hand gets a probability; “%(word)s” gets most, %(chance)s.")
        return words % {"word": vocabulary(values)[best], "chance": show(float(place.vector[best]), DIGITS)}
    before = place.step.before[place.row] if place.step else place.vector
    if place.kind == "add":
        words = _(
            "what the sublayer made is added to what went around it; the size goes from %(a)s to %(b)s."
        )
        return words % {"a": show(size(before), DIGITS), "b": show(size(place.vector), DIGITS)}
    words = _("of four numbers their mean, %(mean)s, is taken away, and the rest divided by %(by)s.")
    return words % {
        "mean": show(float(before.mean()), DIGITS),
        "by": show(float(deviation(before)[0]), DIGITS),
    }


def told_of_attention(place: Place, found: Attended) -> str:
    best = found.weights[:, place.row]
    heads = _("head 1 gives most to “%(one)s”, %(a)s; head 2 to “%(two)s”, %(b)s.") % {
        "one": place.source[int(best[0].argmax())],
        "a": show(float(best[0].max()), DIGITS),
        "two": place.source[int(best[1].argmax())],
        "b": show(float(best[1].max()), DIGITS),
    }
    words = _("“%(word)s” looks at all words of its text: ")
    if place.part == "cross":
        words = _("“%(word)s” asks, and what the encoder made answers: ")
    elif place.stack == "decoder":
        words = _("“%(word)s” looks at itself and what was written before it: ")
    return words % {"word": place.words[place.row]} + heads


def inside(place: Place, values: Values) -> SafeString:
    """What is computed in the block, for the word that is followed."""
    word, found = place.words[place.row], place.step.found if place.step else None
    if isinstance(found, Attended):
        return inside_attention(place, found)
    if isinstance(found, Fed):
        return inside_network(place, found)
    if place.kind == "in":
        own = WIDTH**0.5 * embedded((word,))[0]
        return rows_panel(
            name_of(place),
            r"x=\sqrt{d}\,e+p",
            [(_("twice e"), own), (_("position"), place.vector - own), (_("sum"), place.vector)],
        )
    if place.kind == "out":
        return inside_output(place, values)
    if place.step is None:
        raise TypeError("an addition or a norm is a step of a layer")
    before = place.step.before[place.row]
    if place.kind == "add":
        made = place.vector - before
        return rows_panel(
            name_of(place),
            r"x+\operatorname{Sub}",
            [(_("around"), before), (_("sublayer"), made), (_("sum"), place.vector)],
        )
    less = before - before.mean()
    return rows_panel(
        name_of(place),
        r"\frac{x-\mu}{\sigma}",
        [(_("in"), before), (_("less mean"), less), (_("out"), place.vector)],
    )


def rows_panel(title: str, latex: str, rows: Sequence[tuple[str, np.ndarray]]) -> SafeString:
    """Vectors of equal length below each other."""
    names = [format_html("{}", name) for name, _vector in rows]
    array = np.round(np.stack([vector for _name, vector in rows]), DIGITS) + 0.0
    table = grids.scores(title, array, names, column_heads(array.shape[1]), digits=DIGITS)
    return grids.panel(format_html("{} {}", title, to_mathml(latex)), table)


def inside_attention(place: Place, found: Attended) -> SafeString:
    heads = [_("head %(head)d") % {"head": head} for head in range(1, HEADS + 1)]
    names = word_heads(heads)
    weights = grids.panel(
        _("Weights"),
        grids.weights(
            _("Weights"), found.weights[:, place.row], names, word_heads(place.source), allowed=allowed(place)
        ),
        _("of the word’s query with each key, over √2, then softmax"),
    )
    pair = [
        rows_panel(title, latex, [(head, array[number, place.row]) for number, head in enumerate(heads)])
        for title, latex, array in (
            (_("Queries"), "xW^Q", found.q),
            (_("Averages"), r"\sum\alpha v", found.parts),
        )
    ]
    out = rows_panel(_("Side by side, and out"), "zW^O", [(_("z"), found.parts[:, place.row].ravel()),
                                                           (_("out"), place.vector)])  # fmt: skip
    return grids.panels(pair[0], weights, pair[1], out)


def allowed(place: Place) -> np.ndarray:
    """Which keys the followed word may see, for each head."""
    count = len(place.source)
    is_masked = (place.stack, place.part) == ("decoder", "self")
    seen = np.arange(count) <= place.row if is_masked else np.ones(count, dtype=bool)
    return np.stack([seen] * HEADS)


def inside_network(place: Place, found: Fed) -> SafeString:
    first = rows_panel(
        _("Eight numbers"),
        r"\max(0,xW_1+b_1)",
        [(_("before"), found.before[place.row]), (_("ReLU"), found.hidden[place.row])],
    )
    return parts.join([first, rows_panel(_("Four again"), "hW_2+b_2", [(_("out"), place.vector)])])


def inside_output(place: Place, values: Values) -> SafeString:
    rows = [
        (word, parts.bar(chance), show(chance, DIGITS))
        for word, chance in zip(vocabulary(values), place.vector.tolist(), strict=True)
    ]
    caption = _("The next word: softmax of the vector times each embedding")
    return parts.listing(caption, (_("word"), "", _("probability")), rows)
