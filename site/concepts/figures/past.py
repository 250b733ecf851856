"""When kept keys and values stay right: two layers over a few words, before something happens to the text and
after it, and what became of the keys and values of the words that stayed.

The layers have four numbers to a word, one decimal each, and add what they find to what they are given.
"""

from typing import Any

import numpy as np
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from concepts.figures import Links, grids, parts
from concepts.figures.controls import Choice, Switch
from concepts.figures.explorable import Explorable, Values
from concepts.figures.masks import MOST, Rules, allowed_by
from concepts.figures.numbers import show
from concepts.figures.projections import WIDTH, drawn, embedded
from concepts.figures.projections import heads as word_heads
from concepts.figures.scales import ink, sequential
from kernels.engines.reference import attend
from kernels.rope import cos_sin, rotate
from kernels.spec.model import Rope

TEXT: tuple[str, ...] = ("she", "gave", "him", "tea", "and")
NEXT, OTHER = "left", "he"
WINDOW = 2
LAYERS = [[drawn(f"past/{name}{layer}", WIDTH, WIDTH, size=0.6) for name in "qkv"] for layer in (1, 2)]
ROPE = Rope("interleaved")
EXACT = 1e-9  # a difference that is rounding


def rotated(x: np.ndarray) -> np.ndarray:
    """x [n, 4], each row by its place in the text."""
    cos, sin = cos_sin(ROPE, WIDTH, np.arange(len(x))[None])
    return np.asarray(rotate(x[None, None], cos, sin, style=ROPE.style, dim_offset=0)[0, 0])


def kept(words: tuple[str, ...], mask: str, *, has_rope: bool) -> np.ndarray:
    """Keys and values of both layers, as they would be kept: [4, n, 4]."""
    rules = Rules(is_causal=mask != "all", window=WINDOW if mask == "window" else MOST)
    x, found = embedded(words), []
    for w_q, w_k, w_v in LAYERS:
        q, k, v = x @ w_q, x @ w_k, x @ w_v
        if has_rope:
            q, k = rotated(q), rotated(k)
        found += [k, v]
        allowed = allowed_by(len(words), len(words), rules)
        x = x + attend(q, k, v, scale=WIDTH**-0.5, allowed=allowed)["out"]
    return np.stack(found)


def changes(event: str, mask: str, *, has_rope: bool) -> tuple[tuple[str, ...], np.ndarray]:
    """The words that stay, and by how much their keys and values change at most: [words, 4]."""
    before = kept(TEXT, mask, has_rope=has_rope)
    if event == "append":
        after, stay = kept((*TEXT, NEXT), mask, has_rope=has_rope)[:, : len(TEXT)], TEXT
    elif event == "first":
        before, stay = before[:, 1:], TEXT[1:]
        after = kept((OTHER, *TEXT[1:]), mask, has_rope=has_rope)[:, 1:]
    else:
        before, stay = before[:, 1:], TEXT[1:]
        after = kept(TEXT[1:], mask, has_rope=has_rope)
    return stay, np.abs(after - before).max(axis=2).T


class Past(Explorable):
    name = "past"
    title = gettext_lazy("The figure: what becomes of kept keys and values")
    controls = (
        Choice(
            "event",
            gettext_lazy("What happens to “she gave him tea and”"),
            "append",
            (
                ("append", gettext_lazy("“left” is added")),
                ("first", gettext_lazy("“she” becomes “he”")),
                ("drop", gettext_lazy("“she” is cut off")),
            ),
        ),
        Choice(
            "mask",
            gettext_lazy("A word sees"),
            "all",
            (
                ("causal", gettext_lazy("no later word")),
                ("window", gettext_lazy("itself and the word before")),
                ("all", gettext_lazy("every word")),
            ),
        ),
        Switch("rope", gettext_lazy("Keys are rotated by their position (RoPE) before they are kept"), True),
    )

    def found(self, values: Values) -> tuple[tuple[str, ...], np.ndarray]:
        return changes(values["event"], values["mask"], has_rope=values["rope"])

    def columns(self) -> list[str]:
        return [_("key, layer 1"), _("value, layer 1"), _("key, layer 2"), _("value, layer 2")]

    def view(self, values: Values, links: Links) -> SafeString:
        words, found = self.found(values)
        rows = [
            [
                parts.cell(show(x, 2), extra="painted") if x > EXACT else parts.cell("0", extra="shut")
                for x in row
            ]
            for row in found.tolist()
        ]
        heads = [SafeString(name) for name in self.columns()]
        caption = _("By how much they change at most; what is wrong now is framed")
        table = grids.framed(parts.table(caption, rows, word_heads(words), heads), caption)
        return grids.panels(grids.panel(caption, table))

    def sentence(self, values: Values) -> str:
        words, found = self.found(values)
        wrong = [name for name, x in zip(self.columns(), found.max(axis=0), strict=True) if x > EXACT]
        if not wrong:
            return _(
                "No key and no value of the %(count)d words before changes, in either layer: what is kept"
                " stays right, and the new word’s are appended."
            ) % {"count": len(words)}
        hit = sum(bool(row.max() > EXACT) for row in found)
        told = _(
            "For %(hit)d of the %(count)d words that stay, what was kept is wrong for the new text:"
            " %(wrong)s."
        )
        return told % {"hit": hit, "count": len(words), "wrong": "; ".join(wrong)}

    def numbers(self, values: Values) -> dict[str, Any]:
        words, found = self.found(values)
        return {"words": list(words), "changes": found.tolist()}

    def picture(self, values: Values) -> str:
        words, found = self.found(values)
        white = sequential(0)
        rows = [
            [(text, white.hex, ink(white).hex) for text in (word[:5], *(show(x, 2) for x in row))]
            for word, row in zip(words, found.tolist(), strict=True)
        ]
        return grids.picture(self.sentence(values), [(_("changes"), rows)])


FIGURE = Past()
