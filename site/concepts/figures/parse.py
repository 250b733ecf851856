"""Do the weights of a head make a tree? Each word points to the word to which it gives most weight."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from concepts.figures import Links, arcs, parts
from concepts.figures.controls import Choice, Words
from concepts.figures.explorable import Explorable, Values
from concepts.figures.multi_head import embedded, layer
from concepts.figures.numbers import show

HEADS = 4
TEXT = ("the", "old", "owl", "saw", "a", "mouse")


def loops(targets: Sequence[int]) -> list[list[int]]:
    """The rounds that one comes to by following the arrows, each from its first word on. A word that points
    to itself is a round of one: a root. There is always a round."""
    found: dict[int, list[int]] = {}
    for start in range(len(targets)):
        seen = [start]
        while targets[seen[-1]] not in seen:
            seen.append(targets[seen[-1]])
        ring = seen[seen.index(targets[seen[-1]]) :]
        first = ring.index(min(ring))
        found[min(ring)] = ring[first:] + ring[:first]
    return [found[first] for first in sorted(found)]


def is_tree(targets: Sequence[int]) -> bool:
    """Whether all arrows lead to one word, which points to itself: its root."""
    return [len(ring) for ring in loops(targets)] == [1]


class Parse(Explorable):
    name = "parse"
    title = gettext_lazy("The figure: where each word looks most")
    controls = (
        Words("line", gettext_lazy("Words"), TEXT, most=6, longest=8),
        Choice("which", gettext_lazy("Head"), "1", tuple((str(n), str(n)) for n in range(1, HEADS + 1))),
    )

    def weights(self, values: Values) -> np.ndarray:
        found = layer(embedded(values["line"]), HEADS).weights
        return np.asarray(found[int(values["which"]) - 1])

    def targets(self, values: Values) -> list[int]:
        return [int(target) for target in self.weights(values).argmax(axis=1)]

    def astray(self, values: Values) -> set[int]:
        """Words on a round of two or more."""
        return {word for ring in loops(self.targets(values)) if len(ring) > 1 for word in ring}

    def view(self, values: Values, links: Links) -> SafeString:
        drawing = arcs.svg(values["line"], self.targets(values), self.astray(values), self.sentence(values))
        return format_html('<div class="split"><div>{}</div>{}</div>', drawing, self.table(values))

    def table(self, values: Values) -> SafeString:
        words, weights = values["line"], self.weights(values)
        rows = [
            (words[i], words[j], show(float(weights[i, j]), 2), show(float(1 - weights[i, j]), 2))
            for i, j in enumerate(self.targets(values))
        ]
        heads = (_("word"), _("looks most at"), _("weight"), _("left for the others"))
        aligned = [(one, format_html("{}", other), *rest) for one, other, *rest in rows]
        return parts.listing(_("The largest weight of each row"), heads, aligned)

    def sentence(self, values: Values) -> str:
        words, found = values["line"], loops(self.targets(values))
        if is_tree(self.targets(values)):
            told = _("Head %(head)s makes a tree here, with “%(root)s” as its root.")
            return told % {"head": values["which"], "root": words[found[0][0]]}
        ring = next((ring for ring in found if len(ring) > 1), None)
        if ring:
            told = _("Head %(head)s makes no tree: %(words)s point round in a circle.")
            return told % {"head": values["which"], "words": quoted(words, ring)}
        told = _("Head %(head)s makes no tree: %(words)s look most at themselves, and a tree has one root.")
        return told % {"head": values["which"], "words": quoted(words, [ring[0] for ring in found])}

    def numbers(self, values: Values) -> dict[str, Any]:
        targets = self.targets(values)
        return {"weights": self.weights(values).tolist(), "targets": targets, "is_tree": is_tree(targets)}

    def picture(self, values: Values) -> str:
        return arcs.document(values["line"], self.targets(values), self.astray(values), self.sentence(values))


def quoted(words: Sequence[str], chosen: Sequence[int]) -> str:
    return _(" and ").join(f"“{words[number]}”" for number in chosen)


FIGURES = (Parse(),)
