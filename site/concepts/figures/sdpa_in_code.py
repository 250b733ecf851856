"""A dozen lines of attention that circulate, their nine mistakes, and eleven inputs to try them with.

What is shown is a program for PyTorch, which the web process never imports: `kernels.snippet` does what it
does, and a test runs every state of the program beside it. The values are the rows of the unit matrix, so
what comes out are the weights.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from django.utils.functional import Promise
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from concepts.figures import Links, grids, listings, parts
from concepts.figures.controls import Menu, Switch
from concepts.figures.explorable import Explorable, Values
from concepts.figures.listings import Line
from concepts.figures.masks import KEYS, QUERIES
from concepts.figures.numbers import to_json
from kernels.engines.reference import attend
from kernels.snippet import REPAIRS, Call, Stopped, attention

NEAR = {"float32": 1e-5, "float16": 2e-3}  # how far apart weights may be that are called equal


@dataclass(frozen=True)
class Repair:
    """What its box says, and what is wrong while it is not ticked."""

    label: Promise
    mistake: Promise


WORDS: Mapping[str, Repair] = {
    "keep": Repair(
        gettext_lazy("Keep the mask that came along"),
        gettext_lazy("The causal mask takes the place of the mask that came along."),
    ),
    "once": Repair(
        gettext_lazy("Add the mask once"),
        gettext_lazy("The mask is added here and once more below. Twice −∞ is −∞; twice a bias is not."),
    ),
    "boolean": Repair(
        gettext_lazy("Make 0 and −∞ of booleans"),
        gettext_lazy("A mask of booleans is added as 1 and 0. It shuts nothing."),
    ),
    "shape": Repair(
        gettext_lazy("A mask of n × m"),
        gettext_lazy("The causal mask is n × n, and there are m keys."),
    ),
    "corner": Repair(
        gettext_lazy("Let the last query see all"),
        gettext_lazy("The causal mask starts at the top left: the first query stands at the first key."),
    ),
    "empty": Repair(
        gettext_lazy("0 for a row that sees nothing"),
        gettext_lazy("A row of −∞ alone becomes NaN."),
    ),
    "precise": Repair(
        gettext_lazy("Scores in float32"),
        gettext_lazy("Scores have the type of q, which need not hold them nor go with a float32 mask."),
    ),
    "groups": Repair(
        gettext_lazy("Keys for neighbouring heads"),
        gettext_lazy("Heads take keys in turn, 1 2 1 2. They were trained as neighbours, 1 1 2 2."),
    ),
    "training": Repair(
        gettext_lazy("Dropout in training alone"),
        gettext_lazy("F.dropout drops unless it is told that this is no training."),
    ),
}


# --- The program --------------------------------------------------------------------------------------------


def program(repaired: Collection[str], met: Collection[str] = ()) -> list[Line]:
    """Its lines with some of the mistakes repaired. Those that are `met` and not repaired are marked."""

    def line(text: str, *about: str) -> Line:
        if any(name in met and name not in repaired for name in about):
            return Line(text, "wrong")
        return Line(text, "mended" if any(name in repaired for name in about) else "")

    def either(name: str, text: str, mended: str) -> Line:
        return line(mended if name in repaired else text, name)

    later = "        later = torch.full((n, {}), -torch.inf, device=q.device).triu({})"
    wide, first = "m" if "shape" in repaired else "n", "1 + m - n" if "corner" in repaired else "1"
    once, boolean, empty = (name in repaired for name in ("once", "boolean", "empty"))
    return [
        Line("def attention(q, k, v, mask=None, causal=False, p=0.0, training=False):"),
        Line("    n, m, share = q.shape[1], k.shape[1], len(q) // len(k)"),
        either(
            "groups",
            "    k, v = k.repeat(share, 1, 1), v.repeat(share, 1, 1)",
            "    k, v = k.repeat_interleave(share, 0), v.repeat_interleave(share, 0)",
        ),
        either(
            "precise",
            "    scores = q @ k.mT / q.shape[-1] ** 0.5",
            "    scores = q.float() @ k.float().mT / q.shape[-1] ** 0.5",
        ),
        *[
            line("    if mask is not None and mask.dtype == torch.bool:", "boolean"),
            line("        mask = torch.where(mask, 0.0, -torch.inf)", "boolean"),
        ]
        * boolean,
        Line("    if causal:"),
        line(later.format(wide, first), "shape", "corner"),
        either("keep", "        mask = later", "        mask = later if mask is None else mask + later"),
        *[line("        scores = scores + mask", "once")] * (not once),
        Line("    if mask is not None:"),
        line("        scores = scores + mask", *["once"] * once, *["boolean"] * (not boolean)),
        line("    weights = scores.softmax(-1)", *["empty"] * (not empty)),
        *[
            line(
                "    weights = weights.masked_fill(scores.amax(-1, keepdim=True) == -torch.inf, 0.0)", "empty"
            )
        ]
        * empty,
        either(
            "training",
            "    weights = F.dropout(weights, p)",
            "    weights = F.dropout(weights, p, training)",
        ),
        either("precise", "    return weights @ v", "    return weights.to(v.dtype) @ v"),
    ]


# --- What it is tried with ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """An input: its name, the call, and what is right as a mask of booleans and numbers to add."""

    label: Promise
    call: Call
    allowed: np.ndarray | bool = True
    bias: np.ndarray | float = 0.0


def given(queries: np.ndarray, keys: np.ndarray, dtype: str = "float32") -> Call:
    """One head of them, in the precision of the case."""
    q, k, v = (array[None].astype(dtype) for array in (queries, keys, np.eye(len(keys))))
    return Call(q, k, v)


def cases() -> dict[str, Case]:
    n = 4
    square, before = given(QUERIES[:n], KEYS[:n]), np.tri(n, dtype=bool)
    real = np.tile(np.arange(5) < 3, (n, 1))
    texts = np.kron(np.eye(2), np.ones((2, 2))).astype(bool)
    slope = 0.5 * (np.arange(n) - np.arange(n)[:, None]).astype("float32")
    blind = np.zeros((n, n), "float32")
    blind[1] = -np.inf
    heads = Call(
        QUERIES[:n, None].astype("float32"),
        KEYS.reshape(2, n, 2).astype("float32"),
        np.tile(np.eye(n, dtype="float32"), (2, 1, 1)),
    )
    wide = [np.concatenate([np.full((n, 1), 256.0), array[:n, 1:]], axis=1) for array in (QUERIES, KEYS)]
    kept = np.random.default_rng(3).random((1, n, n)) > 0.5
    return {
        "plain": Case(gettext_lazy("no mask"), square),
        "causal": Case(gettext_lazy("causal"), replace(square, is_causal=True), before),
        "padding": Case(
            gettext_lazy("padding, as booleans"), replace(given(QUERIES[:n], KEYS[:5]), mask=real), real
        ),
        "texts": Case(
            gettext_lazy("two texts in a row, causal"),
            replace(square, mask=texts, is_causal=True),
            texts & before,
        ),
        "bias": Case(
            gettext_lazy("a bias by distance, causal"),
            replace(square, mask=slope, is_causal=True),
            before,
            slope,
        ),
        "cache": Case(
            gettext_lazy("two new tokens and a cache, causal"),
            replace(given(QUERIES[:2], KEYS[:5]), is_causal=True),
            np.tri(2, 5, 3, dtype=bool),
        ),
        "blind": Case(
            gettext_lazy("a query that sees nothing"), replace(square, mask=blind), np.isfinite(blind)
        ),
        "half": Case(
            gettext_lazy("float16, causal"),
            replace(given(QUERIES[:n], KEYS[:n], "float16"), is_causal=True),
            before,
        ),
        "large": Case(gettext_lazy("float16, large numbers"), given(wide[0], wide[1], "float16")),
        "heads": Case(gettext_lazy("4 heads, 2 of keys"), heads),
        "dropout": Case(gettext_lazy("dropout, in evaluation"), replace(square, dropout=0.5, kept=kept)),
    }


CASES = cases()


@dataclass(frozen=True)
class Outcome:
    """What the program gives for a case, [rows, keys], or the error that stops it; and what is right."""

    found: np.ndarray | None
    stopped: str
    right: np.ndarray
    differs: np.ndarray

    @property
    def is_right(self) -> bool:
        return not self.differs.any()


@cache
def right(name: str) -> np.ndarray:
    """By the reference engine in float64, [rows, keys]: a row for each query, or for each head of one."""
    case = CASES[name]
    call, scale = case.call, case.call.q.shape[-1] ** -0.5
    share = len(call.q) // len(call.k)
    wide = [array.astype("float64") for array in (call.q, call.k, call.v)]
    return np.concatenate(
        [
            attend(
                wide[0][h],
                wide[1][h // share],
                wide[2][h // share],
                scale=scale,
                allowed=case.allowed,
                bias=case.bias,
            )["out"]
            for h in range(len(call.q))
        ]
    )


@cache
def outcome(name: str, repaired: frozenset[str]) -> Outcome:
    expected, call = right(name), CASES[name].call
    try:
        found = attention(call, repaired)[0].reshape(expected.shape).astype("float64")
    except Stopped as stop:
        return Outcome(None, str(stop), expected, np.ones_like(expected, dtype=bool))
    near = np.isclose(found, expected, rtol=0, atol=NEAR[call.q.dtype.name])
    return Outcome(found, "", expected, ~near)


@cache
def met_by(name: str) -> frozenset[str]:
    """The mistakes that this input meets: each alone would spoil it."""
    every = frozenset(REPAIRS)
    return frozenset(one for one in REPAIRS if not outcome(name, every - {one}).is_right)


# --- The figure ---------------------------------------------------------------------------------------------


class Snippet(Explorable):
    name = "snippet"
    title = gettext_lazy("The figure: a program, inputs to try it with, and repairs")
    controls = (
        Menu("case", gettext_lazy("Input"), "padding", [(name, one.label) for name, one in CASES.items()]),
        *(Switch(name, WORDS[name].label, False) for name in REPAIRS),
    )

    def repaired(self, values: Values) -> frozenset[str]:
        return frozenset(name for name in REPAIRS if values[name])

    def outcome(self, values: Values) -> Outcome:
        return outcome(values["case"], self.repaired(values))

    def left(self, values: Values) -> list[str]:
        """Mistakes that this input still meets."""
        met = met_by(values["case"]) - self.repaired(values)
        return [name for name in REPAIRS if name in met]

    def view(self, values: Values, links: Links) -> SafeString:
        lines = program(self.repaired(values), met_by(values["case"]))
        return format_html(
            "{}{}{}{}{}",
            listings.listing(_("The program"), lines),
            self.notes(values),
            self.matrices(values),
            self.tried(values, links),
            self.all_or_nothing(values, links),
        )

    def notes(self, values: Values) -> SafeString:
        left = self.left(values)
        if not left:
            return parts.EMPTY
        notes = ((WORDS[name].label, WORDS[name].mistake) for name in left)
        return format_html(
            '<dl class="listing-notes">{}</dl>',
            format_html_join("", "<div><dt>{}</dt><dd>{}</dd></div>", notes),
        )

    def matrices(self, values: Values) -> SafeString:
        done = self.outcome(values)
        heads = self.row_heads(values), grids.key_heads(done.right.shape[1])
        gives, ought = _("What the program gives"), _("What is right")
        if done.found is None:
            stops = format_html('<p class="error">RuntimeError: {}</p>', done.stopped)
            mine = grids.panel(gives, stops)
        else:
            table = grids.weights(gives, done.found, *heads, outlined=done.differs)
            note = "" if done.is_right else _("Framed: not as it should be.")
            mine = grids.panel(gives, table, note)
        return grids.panels(mine, grids.panel(ought, grids.weights(ought, done.right, *heads)))

    def row_heads(self, values: Values) -> list[SafeString]:
        """A row is a query, or a head where there is one query."""
        if values["case"] == "heads":
            return [format_html(_("head {}"), number) for number in range(1, 5)]
        return grids.query_heads(len(right(values["case"])))

    def tried(self, values: Values, links: Links) -> SafeString:
        """Every input, and what comes of it now."""
        repaired = self.repaired(values)
        rows = []
        for name, one in CASES.items():
            link = format_html('<a href="{}">{}</a>', self.address(links, values, case=name), one.label)
            rows.append((link, in_short(outcome(name, repaired)), str(len(met_by(name) - repaired))))
        heads = (_("input"), _("weights"), _("repairs missing"))
        return parts.listing(_("The same program, tried with each of them"), heads, rows)

    def all_or_nothing(self, values: Values, links: Links) -> SafeString:
        every, none = (dict.fromkeys(REPAIRS, ticked) for ticked in (True, False))
        return format_html(
            '<p class="figure-links"><a href="{}">{}</a> <a href="{}">{}</a></p>',
            self.address(links, values, **every),
            _("Repair everything"),
            self.address(links, values, **none),
            _("As it was found"),
        )

    def sentence(self, values: Values) -> str:
        done, repaired = self.outcome(values), self.repaired(values)
        label = str(CASES[values["case"]].label)
        good = sum(outcome(name, repaired).is_right for name in CASES)
        return _("%(case)s: %(told)s. Of %(all)d inputs %(good)d come out right.") % {
            "case": label[:1].upper() + label[1:],
            "told": told(done),
            "good": good,
            "all": len(CASES),
        }

    def numbers(self, values: Values) -> dict[str, Any]:
        done = self.outcome(values)
        found = [] if done.found is None else done.found.tolist()
        return {
            "program": listings.program(program(self.repaired(values))),
            "right": done.right.tolist(),
            "found": [[None if np.isnan(x) else x for x in row] for row in found] or None,
            "error": done.stopped or None,
            "met": self.left(values),
        }

    def picture(self, values: Values) -> str:
        return listings.picture(self.sentence(values), program(self.repaired(values), met_by(values["case"])))

    def lab(self, values: Values) -> list[tuple[str, str]]:
        """The case, for an engine that gets it right."""
        case = CASES[values["case"]]
        call = case.call
        pairs = [("engine", "flash"), ("dtype", call.q.dtype.name)]
        for name, array in (("q", call.q), ("k", call.k), ("v", call.v)):
            rounded = np.round(array.astype("float64"), 4)  # as it was typed
            pairs.append((name, written(rounded[0] if len(call.q) == 1 else rounded[None])))
        if call.is_causal:
            pairs += [("causal", "on"), ("alignment", "bottom_right")]
        if call.mask is None:
            return pairs
        mask = np.isfinite(call.mask) if np.isinf(call.mask).any() else call.mask  # JSON knows no −∞
        return [*pairs, ("how_attn_mask", "text"), ("in_attn_mask", written(mask))]


def written(array: np.ndarray) -> str:
    """A matrix as the lab's fields have it, whole numbers bare."""
    if array.ndim == 2 and array.dtype != bool:
        return to_json(array.tolist())
    return json.dumps(array.tolist(), separators=(",", ":"))


def told(done: Outcome) -> str:
    if done.stopped:
        return _("it stops with an error")
    if done.is_right:
        return _("right")
    count = int(done.differs.sum())
    return _("%(count)d of %(all)d weights are wrong") % {"count": count, "all": done.differs.size}


def in_short(done: Outcome) -> str:
    if done.stopped:
        return _("none: an error")
    if done.is_right:
        return _("right")
    return _("%(count)d of %(all)d wrong") % {"count": int(done.differs.sum()), "all": done.differs.size}


FIGURE = Snippet()
