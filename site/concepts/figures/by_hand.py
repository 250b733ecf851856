"""Attention by hand: three small matrices that the reader owns, and every step from them to the output."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import urlencode

import numpy as np
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext as _

from concepts.figures import Links, parts
from concepts.figures.numbers import MAX_ROWS, MatrixInput, Rows, read_matrix, show, to_json
from concepts.figures.scales import ink, score_class, sequential, weight_class
from concepts.maths import to_mathml

QUERIES: Rows = [[1, 0], [0, 1], [1, 1]]
KEYS: Rows = [[1, 0], [0, 1], [1, 1]]
VALUES: Rows = [[1, 0], [0, 2], [2, 2]]
CELL = (3, 1)
PREFIX = "by-hand"
LETTERS = {"q": "Q", "k": "K", "v": "V"}


@dataclass(frozen=True)
class Steps:
    """Every intermediate of softmax(QKᵀ/√d)V in float64. i counts queries, j counts keys.

    These are the steps of the pencil. The reference engine goes through the log-sum-exp instead, keeps
    neither the powers nor their sums, and agrees to rounding (a test holds the two together).
    """

    scores: np.ndarray  # (n_q, n_k)  QKᵀ
    scaled: np.ndarray  # (n_q, n_k)  QKᵀ/√d
    largest: np.ndarray  # (n_q,)     row maximum of `scaled`
    powers: np.ndarray  # (n_q, n_k)  exp(scaled − largest)
    sums: np.ndarray  # (n_q,)        row sums of `powers`
    weights: np.ndarray  # (n_q, n_k)
    out: np.ndarray  # (n_q, d_v)


def steps(q: Rows, k: Rows, v: Rows) -> Steps:
    queries, keys, values = (np.array(rows, dtype=np.float64) for rows in (q, k, v))
    scores = queries @ keys.T
    scaled = scores / np.sqrt(queries.shape[1])
    largest = scaled.max(axis=1)
    powers = np.exp(scaled - largest[:, None])
    sums = powers.sum(axis=1)
    weights = powers / sums[:, None]
    return Steps(scores, scaled, largest, powers, sums, weights, weights @ values)


@dataclass
class State:
    """A query string, read: the three matrices and the chosen cell (from 1)."""

    q: MatrixInput
    k: MatrixInput
    v: MatrixInput
    cell: tuple[int, int]

    @property
    def matrices(self) -> tuple[MatrixInput, MatrixInput, MatrixInput]:
        return self.q, self.k, self.v

    @property
    def good(self) -> bool:
        return not any(matrix.problems for matrix in self.matrices)

    def query(self, cell: tuple[int, int] | None = None, **changed: Rows) -> str:
        """The canonical query string of this state, or of this state with some of it changed."""
        items = []
        for matrix, usual in zip(self.matrices, (QUERIES, KEYS, VALUES), strict=True):
            rows = changed.get(matrix.name, matrix.rows)
            if rows != usual and (matrix.name in changed or not matrix.problems):
                items.append((matrix.name, to_json(rows)))
        if (cell or self.cell) != CELL:
            items.append(("cell", "{},{}".format(*(cell or self.cell))))
        return urlencode(items, safe="[],")


def read(params: Mapping[str, str]) -> State:
    q, k, v = (
        read_matrix(name, params, usual) for name, usual in (("q", QUERIES), ("k", KEYS), ("v", VALUES))
    )
    if not any(matrix.problems for matrix in (q, k, v)):
        if len(q.rows[0]) != len(k.rows[0]):
            k.problems[""] = _(
                "A row of K has %(k)d numbers and a row of Q has %(q)d: a query can only be multiplied"
                " with a key of its own length."
            ) % {"k": len(k.rows[0]), "q": len(q.rows[0])}
        if len(k.rows) != len(v.rows):
            v.problems[""] = _("K has %(k)d rows and V has %(v)d: every key needs its value.") % {
                "k": len(k.rows),
                "v": len(v.rows),
            }
    return State(q, k, v, _read_cell(params.get("cell", ""), len(q.texts), len(k.texts)))


def _read_cell(text: str, rows: int, columns: int) -> tuple[int, int]:
    first, _comma, second = text.partition(",")
    if first.isdecimal() and second.isdecimal() and len(text) < 6:
        i, j = int(first), int(second)
        if 1 <= i <= rows and 1 <= j <= columns:
            return i, j
    return min(CELL[0], rows), min(CELL[1], columns)


def _var(letter: str) -> Callable[..., SafeString]:
    return lambda *indices: parts.symbol(letter, *indices)


q_, k_, s_, t_, e_, w_, z_ = (_var(letter) for letter in "qkstewz")


def _head(letter: str, words: str, number: int) -> SafeString:
    return parts.head(letter, number, words)


def _signed(value: float, digits: int = 4) -> str:
    """A number as a factor: negative ones in parentheses."""
    text = show(value, digits)
    return f"({text})" if value < 0 else text


class ByHand:
    name = "by-hand"
    parts = frozenset({"", "run"})

    # --- What a page asks for ------------------------------------------------------------------

    def render(self, params: Mapping[str, str], links: Links, part: str = "") -> str:
        state = read(params)
        if part == "run":
            return self._run(state, links)
        return format_html(
            '<form class="by-hand" id="by-hand" method="get" action="{}#by-hand" novalidate data-cells'
            ' hx-get="{}" hx-trigger="input delay:180ms, submit" hx-target="#by-hand-steps"'
            ' hx-swap="outerHTML" hx-sync="this:replace" aria-labelledby="by-hand-title">'
            '<h2 class="visually-hidden" id="by-hand-title">{}</h2>{}{}</form>',
            links.page,
            links.fragment,
            _("The figure: every step, with your numbers"),
            self._inputs(state, links),
            self._steps(state, links),
        )

    def fragment(self, params: Mapping[str, str], links: Links) -> str:
        state = read(params)
        return parts.join(
            [
                self._steps(state, links),
                *(
                    parts.problems(matrix, prefix=PREFIX, label=_label(matrix.name), oob=True)
                    for matrix in state.matrices
                ),
                format_html(
                    '<p class="figure-status" id="by-hand-status" hx-swap-oob="innerHTML">{}</p>',
                    _summary(state),
                ),
                self._row_links(state, links, oob=True),
                self._run(state, links, oob=True),
            ]
        )

    def query(self, params: Mapping[str, str]) -> str:
        return read(params).query()

    def data(self, params: Mapping[str, str]) -> dict[str, Any]:
        state = read(params)
        inputs = {matrix.name: matrix.rows if not matrix.problems else None for matrix in state.matrices}
        if not state.good:
            problems = [
                {"field": key or matrix.name, "detail": message}
                for matrix in state.matrices
                for key, message in matrix.problems.items()
            ]
            return {"figure": self.name, "inputs": inputs, "problems": problems}
        done = steps(state.q.rows, state.k.rows, state.v.rows)
        return {
            "figure": self.name,
            "inputs": inputs,
            "cell": list(state.cell),
            "scores": done.scores.tolist(),
            "scaled": done.scaled.tolist(),
            "exp": done.powers.tolist(),
            "row_sums": done.sums.tolist(),
            "weights": done.weights.tolist(),
            "column_sums": done.weights.sum(axis=0).tolist(),
            "out": done.out.tolist(),
        }

    def svg(self, params: Mapping[str, str]) -> str:
        """The weights as a heat map."""
        state = read(params)
        weights = steps(state.q.rows, state.k.rows, state.v.rows).weights if state.good else np.zeros((0, 0))
        boxes = []
        for (i, j), weight in np.ndenumerate(weights):
            color = sequential(round(20 * float(weight)))
            boxes.append(
                (30 + 74 * j, 30 + 44 * i, color.hex, 66 + 74 * j, 57 + 44 * i, ink(color).hex, show(weight))
            )
        rows, columns = weights.shape
        return format_html(
            '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {} {}" font-family="system-ui, sans-serif"'
            ' font-size="15" text-anchor="middle"><title>{}</title>{}{}{}</svg>',
            30 + 74 * columns,
            30 + 44 * rows,
            _summary(state),
            format_html_join(
                "",
                '<rect x="{}" y="{}" width="72" height="42" fill="{}"/>'
                '<text x="{}" y="{}" fill="{}">{}</text>',
                boxes,
            ),
            format_html_join(
                "", '<text x="{}" y="20">k{}</text>', ((66 + 74 * j, j + 1) for j in range(columns))
            ),
            format_html_join(
                "", '<text x="14" y="{}">q{}</text>', ((57 + 44 * i, i + 1) for i in range(rows))
            ),
        )

    # --- Its pieces ----------------------------------------------------------------------------

    def _inputs(self, state: State, links: Links) -> SafeString:
        i, j = state.cell
        panels = []
        for matrix, noun, coordinate, row, words in (
            (state.q, _("query"), "i", i, _("what is sought")),
            (state.k, _("key"), "j", j, _("what is offered")),
            (state.v, _("value"), "j", j, _("what is handed over")),
        ):
            label = _label(matrix.name)
            panels.append(
                format_html(
                    '<div class="panel" id="by-hand-{0}" data-sym="{0}"><h3 class="{0}">'
                    '<a href="#sym-{0}" aria-label="{5}">{1}</a> <span class="panel-note">{2}</span></h3>'
                    "{3}{4}</div>",
                    matrix.name,
                    to_mathml(LETTERS[matrix.name]),
                    words,
                    parts.input_matrix(
                        matrix,
                        prefix=PREFIX,
                        row_head=partial(_head, matrix.name, noun),
                        coordinate=coordinate,
                        label=label,
                        caption=_("Matrix %(name)s") % {"name": LETTERS[matrix.name]},
                        lit_row=row,
                    ),
                    parts.problems(matrix, prefix=PREFIX, label=label),
                    _("%(title)s, in the list of symbols") % {"title": LETTERS[matrix.name]},
                )
            )
        return format_html(
            '{}<div class="by-hand-inputs">{}</div><div class="figure-controls">'
            '<input type="hidden" name="cell" value="{},{}" data-cell-input>'
            '<button class="button button-small without-js">{}</button>{}</div>'
            '<p class="figure-status" id="by-hand-status" role="status">{}</p>',
            parts.carried(links.others),
            parts.join(panels),
            i,
            j,
            _("Compute"),
            self._row_links(state, links),
            _summary(state),
        )

    def _row_links(self, state: State, links: Links, oob: bool = False) -> SafeString:
        """Links that add or take away a row; each is an address like any other."""
        found: list[tuple[str, str]] = []
        if state.good:
            q, k, v = state.q.rows, state.k.rows, state.v.rows

            def link(words: str, **changed: Rows) -> None:
                query = state.query(
                    cell=_read_cell("", len(changed.get("q", q)), len(changed.get("k", k))), **changed
                )
                found.append((links.address(query, "by-hand"), words))

            if len(q) < MAX_ROWS:
                link(_("Add a query"), q=[*q, [0.0] * len(q[0])])
            if len(q) > 1:
                link(_("Remove a query"), q=q[:-1])
            if len(k) < MAX_ROWS:
                link(_("Add a key and its value"), k=[*k, [0.0] * len(k[0])], v=[*v, [0.0] * len(v[0])])
            if len(k) > 1:
                link(_("Remove a key"), k=k[:-1], v=v[:-1])
        found.append((links.address("", "by-hand"), _("Start again")))
        return format_html(
            '<span class="control-links" id="by-hand-rows"{}>{}</span>',
            mark_safe(' hx-swap-oob="true"') if oob else "",
            format_html_join(" ", '<a href="{}">{}</a>', found),
        )

    def _steps(self, state: State, links: Links) -> SafeString:
        if not state.good:
            return format_html(
                '<div class="by-hand-steps" id="by-hand-steps"><p class="callout callout-bad">{}</p></div>',
                _("The steps return as soon as every number above can be read."),
            )
        done = steps(state.q.rows, state.k.rows, state.v.rows)
        view = _View(state, done, links)
        return format_html(
            '<div class="by-hand-steps" id="by-hand-steps">{}</div>',
            parts.join([view.scores(), view.scaled(), view.powers(), view.weights(), view.out()]),
        )

    def _run(self, state: State, links: Links, oob: bool = False) -> SafeString:
        inputs = [(matrix.name, to_json(matrix.rows)) for matrix in state.matrices] if state.good else []
        query = urlencode([("engine", "flash"), *inputs], safe="[],")
        return format_html(
            '<p class="buttons" id="by-hand-run"{}><a class="button" href="{}?{}">{}</a></p>',
            mark_safe(' hx-swap-oob="true"') if oob else "",
            links.lab,
            query,
            _("Run these numbers on a worker"),
        )


def _label(name: str) -> Callable[[int, int], str]:
    return lambda i, j: _("%(name)s row %(i)d, column %(j)d") % {"name": LETTERS[name], "i": i, "j": j}


def _summary(state: State) -> str:
    if not state.good:
        return _("Some numbers cannot be read: see the messages beside them.")
    done = steps(state.q.rows, state.k.rows, state.v.rows)
    i, j = state.cell
    return _("Query %(i)d gives key %(j)d the weight %(weight)s, and its output is (%(out)s).") % {
        "i": i,
        "j": j,
        "weight": show(done.weights[i - 1, j - 1]),
        "out": ", ".join(show(x) for x in done.out[i - 1]),
    }


class _View:
    """The five panels after the inputs, each a matrix and the arithmetic of its chosen cell."""

    def __init__(self, state: State, done: Steps, links: Links) -> None:
        self.state, self.done = state, done
        self.i, self.j = state.cell
        self.n_q, self.n_k = done.scores.shape
        self.query_heads = [_head("q", _("query"), i) for i in range(1, self.n_q + 1)]
        self.key_heads = [_head("k", _("key"), j) for j in range(1, self.n_k + 1)]
        self.hrefs = {
            (i, j): links.address(state.query(cell=(i, j)), "by-hand")
            for i in range(1, self.n_q + 1)
            for j in range(1, self.n_k + 1)
        }

    def panel(
        self,
        part: str,
        number: int,
        title: str,
        latex: str,
        *,
        matrix: SafeString,
        lines: SafeString,
        note: str,
    ) -> SafeString:
        return format_html(
            '<section class="panel step" id="by-hand-{0}" data-sym="{0}"><h3>'
            '<span class="step-number">{1}</span> {2}'
            ' <a class="panel-formula" href="#sym-{0}" aria-label="{3}">{4}</a></h3>{5}'
            '<div class="lines">{6}</div><p class="panel-note">{7}</p></section>',
            part,
            number,
            title,
            _("%(title)s, in the list of symbols") % {"title": title},
            to_mathml(latex),
            matrix,
            lines,
            note,
        )

    def grid(
        self,
        caption: str,
        values: np.ndarray,
        heat: Callable[[float], str],
        tail: tuple[str, list[SafeString]] | None = None,
        foot: tuple[SafeString, ...] = (),
    ) -> SafeString:
        rows = []
        for i in range(1, self.n_q + 1):
            row = []
            for j in range(1, self.n_k + 1):
                value = float(values[i - 1, j - 1])
                text = show(value)
                row.append(
                    parts.cell(
                        text,
                        i=i,
                        j=j,
                        heat=heat(value),
                        lit=(i, j) == (self.i, self.j),
                        href=self.hrefs[i, j],
                        label=_("%(text)s, query %(i)d, key %(j)d") % {"text": text, "i": i, "j": j},
                    )
                )
            if tail:
                row.append(tail[1][i - 1])
            rows.append(row)
        heads = [*self.key_heads, *([format_html("{}", tail[0])] if tail else [])]
        return parts.table(caption, rows, self.query_heads, heads, foot)

    def lines(self, write: Callable[[int, int], SafeString]) -> SafeString:
        """The arithmetic of every cell, all hidden but the chosen one's, so that moving costs no request."""
        return format_html_join(
            "",
            '<p data-for="{},{}"{}>{}</p>',
            (
                (i, j, "" if (i, j) == (self.i, self.j) else mark_safe(" hidden"), write(i, j))
                for i in range(1, self.n_q + 1)
                for j in range(1, self.n_k + 1)
            ),
        )

    def row_lines(self, write: Callable[[int], SafeString]) -> SafeString:
        return format_html_join(
            "",
            '<p data-for="{},*"{}>{}</p>',
            ((i, "" if i == self.i else mark_safe(" hidden"), write(i)) for i in range(1, self.n_q + 1)),
        )

    def scores(self) -> SafeString:
        q, k, done = self.state.q.rows, self.state.k.rows, self.done
        largest = float(np.abs(done.scores).max())

        def write(i: int, j: int) -> SafeString:
            products = " + ".join(
                f"{_signed(a)}·{_signed(b)}" for a, b in zip(q[i - 1], k[j - 1], strict=True)
            )
            return format_html(
                "{} = {}·{} = {} = <b>{}</b>",
                s_(i, j),
                q_(i),
                k_(j),
                products,
                show(done.scores[i - 1, j - 1]),
            )

        return self.panel(
            "s",
            1,
            _("Scores"),
            r"S=QK^{\top}",
            matrix=self.grid(_("Scores"), done.scores, lambda x: score_class(x, largest)),
            lines=self.lines(write),
            note=_("One dot product for each pair: how well query i matches key j."),
        )

    def scaled(self) -> SafeString:
        done = self.done
        largest = float(np.abs(done.scores).max())
        root = show(float(np.sqrt(len(self.state.q.rows[0]))))

        def write(i: int, j: int) -> SafeString:
            return format_html(
                "{} = {} / {} = <b>{}</b>",
                t_(i, j),
                show(done.scores[i - 1, j - 1]),
                root,
                show(done.scaled[i - 1, j - 1]),
            )

        return self.panel(
            "t",
            2,
            _("Scaled"),
            r"T=S/\sqrt{d}",
            matrix=self.grid(_("Scaled scores"), done.scaled, lambda x: score_class(x, largest)),
            lines=self.lines(write),
            note=_("Divided by √d = %(root)s, so that longer vectors do not mean sharper weights.")
            % {"root": root},
        )

    def powers(self) -> SafeString:
        done = self.done

        def write(i: int, j: int) -> SafeString:
            return format_html(
                "{} = <i>e</i><sup>{} − {}</sup> = <b>{}</b>",
                e_(i, j),
                show(done.scaled[i - 1, j - 1]),
                _signed(done.largest[i - 1]),
                show(done.powers[i - 1, j - 1]),
            )

        def write_sum(i: int) -> SafeString:
            return format_html(
                "{} {} = {} = <b>{}</b>",
                _("row"),
                i,
                " + ".join(show(x) for x in done.powers[i - 1]),
                show(done.sums[i - 1]),
            )

        tail = [
            parts.cell(show(total), i=i, extra="sum" + (" lit" if i == self.i else ""))
            for i, total in enumerate(done.sums, 1)
        ]
        return self.panel(
            "e",
            3,
            _("Exponentials"),
            r"E=e^{T-m}",
            matrix=self.grid(_("Exponentials"), done.powers, weight_class, (_("sum"), tail)),
            lines=parts.join([self.lines(write), self.row_lines(write_sum)]),
            note=_(
                "The largest entry m of the row is subtracted first: no weight changes, and none overflows."
            ),
        )

    def weights(self) -> SafeString:
        done = self.done

        def write(i: int, j: int) -> SafeString:
            return format_html(
                "{} = {} / {} = <b>{}</b>",
                w_(i, j),
                show(done.powers[i - 1, j - 1]),
                show(done.sums[i - 1]),
                show(done.weights[i - 1, j - 1]),
            )

        tail = [
            parts.cell(show(round(total, 12)), i=i, extra="sum" + (" lit" if i == self.i else ""))
            for i, total in enumerate(done.weights.sum(axis=1), 1)
        ]
        columns = done.weights.sum(axis=0)
        foot = (
            format_html('<th scope="row">{}</th>', _("sum")),
            *(
                parts.cell(show(total), j=j, extra="sum" + (" lit" if j == self.j else ""))
                for j, total in enumerate(columns, 1)
            ),
            mark_safe('<td class="blank"></td>'),
        )
        return self.panel(
            "w",
            4,
            _("Weights"),
            r"W=E/\text{row sum}",
            matrix=self.grid(_("Weights"), done.weights, weight_class, (_("sum"), tail), foot),
            lines=self.lines(write),
            note=_("Every row sums to 1. Columns need not: their sums say how much each key is used in all."),
        )

    def out(self) -> SafeString:
        done, v = self.done, self.state.v.rows
        largest = float(np.abs(done.out).max())
        rows = [
            [
                parts.cell(show(float(x)), i=i, heat=score_class(float(x), largest), lit=i == self.i)
                for x in done.out[i - 1]
            ]
            for i in range(1, self.n_q + 1)
        ]
        heads = [_head("z", _("output"), i) for i in range(1, self.n_q + 1)]
        columns = [format_html("{}", j) for j in range(1, len(v[0]) + 1)]

        def write(i: int) -> SafeString:
            terms = " + ".join(
                f"{show(weight)}·({', '.join(show(x) for x in row)})"
                for weight, row in zip(done.weights[i - 1], v, strict=True)
            )
            return format_html(
                "{} = {} = <b>({})</b>", z_(i), terms, ", ".join(show(x) for x in done.out[i - 1])
            )

        return self.panel(
            "z",
            5,
            _("Output"),
            "Z=WV",
            matrix=parts.table(_("Output"), rows, heads, columns),
            lines=self.row_lines(write),
            note=_("Each output row is the average of the rows of V, in the proportions of that row of W."),
        )


FIGURE = ByHand()
