"""Ways to score how well a key matches a query: what each makes of the same query and keys, as a picture of
the plane in which the keys lie; and what each costs. `kernels.scoring` computes both.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from concepts.figures import Links, fields, lineplot, parts
from concepts.figures.controls import Choice, Matrix, Number
from concepts.figures.explorable import Explorable, Values
from concepts.figures.fields import Field, Mark
from concepts.figures.lineplot import Axis, Series
from concepts.figures.numbers import Rows, show, show_power, to_json
from kernels.scoring.attention import softmax
from kernels.scoring.costs import Cost, Sizes, cost
from kernels.scoring.functions import score

QUERY: Rows = [[2.0, 1.0]]
KEYS: Rows = [[1.5, 1.0], [3.0, -1.0], [-1.0, 2.0], [-2.0, -1.0]]
GENERAL: Rows = [[0.0, 1.0], [1.0, 0.0]]
# Of the network that additive scores are: hidden numbers are tanh(W_q q + W_k k), of which v makes a score.
W_Q = np.array([[1.0, 0.0], [0.0, 1.0]])
W_K = np.array([[1.0, 1.0], [1.0, -1.0]])
V_A = np.array([3.0, -2.0])
NAMES = {
    "dot": gettext_lazy("dot product"),
    "scaled_dot": gettext_lazy("scaled dot product"),
    "cosine": gettext_lazy("cosine"),
    "general": gettext_lazy("general"),
    "additive": gettext_lazy("additive"),
    "concat": gettext_lazy("concat"),
}


def parameters(name: str, general: Rows) -> dict[str, np.ndarray]:
    """What a score has learned, one head each. W of concat is that of additive side by side."""
    return {
        "general": {"w": np.array([general])},
        "additive": {"w_q": W_Q[None], "w_k": W_K[None], "v_a": V_A[None]},
        "concat": {"w": np.concatenate([W_Q, W_K], axis=1)[None], "v_a": V_A[None]},
    }.get(name, {})


def scored(name: str, keys: np.ndarray, values: Values) -> np.ndarray:
    """The scores of keys (n, 2) for the query of the figure: (n,)."""
    q = np.array(values["q"])[None, None]
    found = score(name, q, keys[None, None], parameters(name, values["w"]), beta=values["beta"])[0, 0, 0]
    return np.asarray(found)


def keys_of(values: Values) -> np.ndarray:
    """(4, 2): the first as long as it has been made."""
    keys = np.array(values["k"])
    keys[0] *= values["stretch"]
    return keys


class Matches(Explorable):
    name = "matches"
    title = gettext_lazy("The figure: one query, four keys, six ways to score them")
    controls = (
        Choice("score", gettext_lazy("Score"), "dot", tuple(NAMES.items())),
        Matrix(
            "q",
            gettext_lazy("Query"),
            QUERY,
            row_head=lambda i: parts.head("q", i, _("query")),
            coordinate="i",
        ),
        Matrix("k", gettext_lazy("Keys"), KEYS, row_head=lambda j: parts.head("k", j, _("key"))),
        Matrix("w", gettext_lazy("W of general"), GENERAL, row_head=lambda i: parts.head("W", i, _("row"))),
        Number("stretch", gettext_lazy("Make key 1 longer, times"), 1, 0.1, 5, 0.1),
        Number("beta", gettext_lazy("Factor β of the cosine"), 1, 0, 20, 0.1),
    )

    def view(self, values: Values, links: Links) -> SafeString:
        return format_html(
            '<div class="split"><div>{}</div><div>{}</div></div>{}',
            fields.svg(self.field(values), self.sentence(values)),
            self.chosen(values),
            self.all_of_them(values),
        )

    def field(self, values: Values) -> Field:
        """The plane of keys with the scores of the chosen kind."""
        query, keys = np.array(values["q"])[0], keys_of(values)
        reach = max(4.0, 1.15 * float(np.abs([query, *keys]).max()))
        marks = [Mark(x, y, _("key %(j)d") % {"j": j}) for j, (x, y) in enumerate(keys.tolist(), 1)]

        def of(points: np.ndarray) -> np.ndarray:
            return scored(values["score"], points, values)

        return Field(of, reach, Mark(float(query[0]), float(query[1]), _("query")), marks)

    def chosen(self, values: Values) -> SafeString:
        """The scores and weights of the chosen kind."""
        scores = scored(values["score"], keys_of(values), values)
        rows = [
            (parts.head("k", j, _("key")), written(s), parts.bar(weight), show(weight, 3))
            for j, (s, weight) in enumerate(zip(scores, softmax(scores).tolist(), strict=True), 1)
        ]
        caption = _("%(score)s, and the softmax of it") % {"score": str(NAMES[values["score"]]).capitalize()}
        return parts.listing(caption, (_("key"), _("score"), "", _("weight")), rows)

    def all_of_them(self, values: Values) -> SafeString:
        """Every kind of score beside the others."""
        found = every_score(values)
        rows = [
            (str(NAMES[name]), *map(written, scores), parts.head("k", best(scores), _("key")))
            for name, scores in found.items()
        ]
        heads = (_("score"), *(parts.head("k", j, _("key")) for j in range(1, len(KEYS) + 1)), _("best"))
        told = _("Additive and concat: the largest difference is %(most)s.") % {
            "most": show_power(apart(found), 2)
        }
        return format_html(
            '{}<p class="panel-note">{}</p>', parts.listing(_("All scores of these keys"), heads, rows), told
        )

    def sentence(self, values: Values) -> str:
        keys = keys_of(values)
        scores = scored(values["score"], keys, values)
        first = best(scores)
        return _(
            "By %(score)s the best match is key %(key)d, with %(s)s; it gets %(weight)s of the weight."
        ) % {
            "score": NAMES[values["score"]],
            "key": first,
            "s": show(float(scores[first - 1]), 3),
            "weight": show(float(softmax(scores)[first - 1]), 3),
        }

    def numbers(self, values: Values) -> dict[str, Any]:
        found = every_score(values)
        return {
            "scores": {name: scores.tolist() for name, scores in found.items()},
            "weights": softmax(found[values["score"]]).tolist(),
            "additive_and_concat_apart": apart(found),
        }

    def picture(self, values: Values) -> str:
        return fields.document(self.field(values), self.sentence(values))

    def lab(self, values: Values) -> list[tuple[str, str]]:
        weights_as_output = np.eye(len(KEYS)).tolist()
        beta = [("option_beta", f"{values['beta']:g}")] if values["score"] == "cosine" else []
        return [
            ("engine", "scoring"),
            ("option_score", values["score"]),
            *beta,
            ("q", to_json(values["q"])),
            ("k", to_json(keys_of(values).tolist())),
            ("v", to_json(weights_as_output)),
        ]


def written(value: float) -> str:
    """A score for a table; what only rounding keeps from 0 is 0."""
    return show(round(float(value), 9), 3)


def every_score(values: Values) -> dict[str, np.ndarray]:
    keys = keys_of(values)
    return {name: scored(name, keys, values) for name in NAMES}


def apart(found: dict[str, np.ndarray]) -> float:
    """How far the two ways to write additive scores are from one another, at most."""
    return float(np.abs(found["additive"] - found["concat"]).max())


def best(scores: np.ndarray) -> int:
    """The number of the key with the largest score."""
    return int(scores.argmax()) + 1


# -- what they cost ------------------------------------------------------------------------------------------

LENGTHS = (64, 256, 1024, 4096, 16384, 65536)


def costs(tokens: int, width: int, hidden: int) -> dict[str, Cost]:
    """Of one head: as many queries as keys."""
    sizes = Sizes(1, 1, tokens, tokens, width, width, hidden)
    return {name: cost(name, sizes) for name in NAMES}


class Costs(Explorable):
    name = "costs"
    title = gettext_lazy("The figure: what the scores of one head cost")
    controls = (
        Number("tokens", gettext_lazy("Queries, and keys"), 1024, 1, 65_536, is_log=True),
        Number("width", gettext_lazy("Numbers in each, d"), 64, 1, 256, is_log=True),
        Number("hidden", gettext_lazy("Hidden numbers of additive, a"), 64, 1, 256, is_log=True),
    )

    def found(self, values: Values) -> dict[str, Cost]:
        return costs(values["tokens"], values["width"], values["hidden"])

    def view(self, values: Values, links: Links) -> SafeString:
        found = self.found(values)
        least = found["dot"].multiply_adds
        most = max(one.multiply_adds for one in found.values())
        rows = [
            (
                str(NAMES[name]),
                parts.bar(one.multiply_adds / most),
                show_power(one.multiply_adds / least, 3),
                f"{100 * one.in_products / one.multiply_adds:.0f} %",
                show_power(one.functions, 3),
            )
            for name, one in found.items()
        ]
        heads = (
            _("score"),
            "",
            _("multiply-adds, dot product = 1"),
            _("of these in matrix products"),
            _("tanh or roots"),
        )
        return parts.listing(_("What all scores of one head take"), heads, rows)

    def sentence(self, values: Values) -> str:
        found = self.found(values)
        dot, additive = found["dot"], found["additive"]
        return _(
            "Additive scores take %(times)s times the multiply-adds of dot products, and %(tanh)s evaluations"
            " of tanh on top; only %(share)s %% of their multiply-adds are matrix products."
        ) % {
            "times": show_power(additive.multiply_adds / dot.multiply_adds, 3),
            "tanh": f"{additive.functions:,}",
            "share": show(round(100 * additive.in_products / additive.multiply_adds, 1), 1),
        }

    def numbers(self, values: Values) -> dict[str, Any]:
        return {"costs": {name: one._asdict() for name, one in self.found(values).items()}}

    def picture(self, values: Values) -> str:
        def line(name: str) -> Series:
            points = [(n, costs(n, values["width"], values["hidden"])[name].multiply_adds) for n in LENGTHS]
            return Series(str(NAMES[name]), points)

        write: Callable[[float], str] = show_power
        x, y = Axis(_("queries, and keys"), write, is_log=True), Axis(_("multiply-adds"), write, is_log=True)
        return lineplot.document([line(name) for name in NAMES], x, y, self.sentence(values))


FIGURES = (Matches(), Costs())
