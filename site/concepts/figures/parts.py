"""The parts that figures are built of, each a function from data to HTML."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING

from django.utils.html import escape, format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe

if TYPE_CHECKING:
    from concepts.figures.numbers import MatrixInput

EMPTY = mark_safe("")
NUMBER = '<td class="num">{}</td>'
COMMA = mark_safe("<mo>,</mo>")


@cache
def symbol(letter: str, *indices: int) -> SafeString:
    """A letter with its indices, set like the formulas of the text."""
    if not indices:
        return format_html("<math><mi>{}</mi></math>", letter)
    numbers = format_html_join(COMMA, "<mn>{}</mn>", ((index,) for index in indices))
    return format_html("<math><msub><mi>{}</mi><mrow>{}</mrow></msub></math>", letter, numbers)


def head(letter: str, number: int, words: str) -> SafeString:
    """The head of a row or column: a symbol to look at, words to listen to."""
    return format_html(
        '<span aria-hidden="true">{}</span><span class="visually-hidden">{} {}</span>',
        symbol(letter, number),
        words,
        number,
    )


def table(
    caption: str,
    rows: Sequence[Sequence[SafeString]],
    row_heads: Sequence[SafeString],
    column_heads: Sequence[SafeString],
    foot: Sequence[SafeString] = (),
) -> SafeString:
    """A matrix as a table. Every item of `rows` is a whole <td>."""
    head = format_html(
        "<thead><tr><td></td>{}</tr></thead>",
        format_html_join("", '<th scope="col">{}</th>', ((text,) for text in column_heads)),
    )
    body = format_html_join(
        "",
        '<tr><th scope="row">{}</th>{}</tr>',
        ((name, join(cells)) for name, cells in zip(row_heads, rows, strict=True)),
    )
    return format_html(
        '<div class="matrix-scroll"><table class="matrix"><caption class="visually-hidden">{}</caption>{}'
        "<tbody>{}</tbody>{}</table></div>",
        caption,
        head,
        body,
        format_html("<tfoot><tr>{}</tr></tfoot>", join(foot)) if foot else EMPTY,
    )


def listing(
    caption: str, heads: Sequence[str], rows: Sequence[Sequence[str]], foot: Sequence[str] = ()
) -> SafeString:
    """A table of figures: the first cell of a row is its head; what is HTML already (a bar) stands as it is,
    numbers are aligned at their end."""

    def row(cells: Sequence[str]) -> SafeString:
        return format_html(
            '<tr><th scope="row">{}</th>{}</tr>',
            cells[0],
            join([format_html("<td>{}</td>" if is_html(cell) else NUMBER, cell) for cell in cells[1:]]),
        )

    titles = ((mark_safe('th scope="col"'), "th", text) if text else ("td", "td", "") for text in heads)
    return format_html(
        '<div class="matrix-scroll"><table class="listing"><caption>{}</caption><thead><tr>{}</tr></thead>'
        "<tbody>{}</tbody>{}</table></div>",
        caption,
        format_html_join("", "<{0}>{2}</{1}>", titles),
        join([row(cells) for cells in rows]),
        format_html("<tfoot>{}</tfoot>", row(foot)) if foot else EMPTY,
    )


def is_html(cell: str) -> bool:
    return isinstance(cell, SafeString)


def join(items: Sequence[SafeString]) -> SafeString:
    return mark_safe("".join(items))  # noqa: S308  (made of safe strings)


def carried(pairs: Sequence[tuple[str, str]]) -> SafeString:
    """What a form carries along of the rest of its page."""
    return format_html_join("", '<input type="hidden" name="{}" value="{}" data-carried>', pairs)


def cell(
    text: str,
    *,
    i: int | None = None,
    j: int | None = None,
    heat: str = "",
    lit: bool = False,
    href: str = "",
    label: str = "",
    extra: str = "",
) -> SafeString:
    """A <td>. `i` and `j` tie it to the cells of the other matrices with the same indices."""
    classes = " ".join(filter(None, (heat, "lit" if lit else "", extra)))
    attributes = f' class="{classes}"' if classes else ""
    attributes += f' data-i="{i:d}"' if i else ""
    attributes += f' data-j="{j:d}"' if j else ""
    content = escape(text)
    if href:
        chosen = ' aria-current="true"' if lit else ""
        content = mark_safe(  # noqa: S308  (escaped here; a page has too many cells for format_html)
            f'<a href="{escape(href)}" aria-label="{escape(label)}"{chosen}>{content}</a>'
        )
    return mark_safe(f"<td{attributes}>{content}</td>")  # noqa: S308


def input_matrix(
    matrix: "MatrixInput",
    *,
    prefix: str,
    row_head: Callable[[int], SafeString],
    coordinate: str,
    label: Callable[[int, int], str],
    caption: str,
    lit_row: int,
    column_heads: Sequence[str] = (),
) -> SafeString:
    """A matrix of number inputs, with the messages of its bad cells below it.

    `coordinate` says whether a row of this matrix is an `i` (a query) or a `j` (a key) of the shared cell.
    Without `column_heads` columns are numbered.
    """
    rows = []
    for i, texts in enumerate(matrix.texts, 1):
        cells = []
        for j, text in enumerate(texts, 1):
            key = f"{matrix.name}{i}{j}"
            name = f"{prefix}-{key}"
            cells.append(
                format_html(
                    '<td data-{}="{}"{}><label class="visually-hidden" for="{}">{}</label>'
                    '<input type="number" step="any" min="-1000" max="1000"'
                    ' inputmode="decimal" autocomplete="off" required'
                    ' id="{}" name="{}" value="{}" aria-describedby="{}-{}-problems"{}></td>',
                    coordinate,
                    i,
                    mark_safe(' class="lit"') if i == lit_row else "",
                    name,
                    label(i, j),
                    name,
                    key,
                    text,
                    prefix,
                    matrix.name,
                    mark_safe(' aria-invalid="true"') if key in matrix.problems else "",
                )
            )
        rows.append(cells)
    heads = [row_head(i) for i in range(1, len(matrix.texts) + 1)]
    numbered = range(1, len(matrix.texts[0]) + 1)
    return table(caption, rows, heads, [format_html("{}", text) for text in column_heads or numbered])


def problems(
    matrix: "MatrixInput", *, prefix: str, label: Callable[[int, int], str], oob: bool = False
) -> SafeString:
    """The messages of a matrix; `oob` makes htmx put them in their place beside the inputs."""
    lines = []
    for key, message in matrix.problems.items():
        where = label(int(key[-2]), int(key[-1])) + ": " if key else ""
        lines.append((f"{prefix}-{key}" if key else "", where, message))
    return format_html(
        '<div id="{}-{}-problems" class="problems"{}>{}</div>',
        prefix,
        matrix.name,
        mark_safe(' hx-swap-oob="true"') if oob else "",
        format_html_join("", '<p class="error" data-error-for="{}">{}{}</p>', lines),
    )


def drawing(
    width: float, height: float, label: str, drawn: SafeString, *, font: str = "sans-serif", size: int = 13
) -> SafeString:
    """A picture as a file of its own, on white: what is drawn has its colours in it."""
    return format_html(
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {0} {1}" width="{0}" height="{1}"'
        ' font-family="{4}" font-size="{5}" role="img"><title>{2}</title>'
        '<rect width="{0}" height="{1}" fill="#ffffff"/>{3}</svg>',
        f"{width:g}",
        f"{height:g}",
        label,
        drawn,
        font,
        size,
    )


def bar(share: float, *, css: str = "w") -> SafeString:
    """A bar that fills `share` (0 to 1) of its track."""
    return format_html(
        '<svg class="share {}" viewBox="0 0 100 12" preserveAspectRatio="none" aria-hidden="true">'
        '<rect class="track" width="100" height="12"/><rect class="fill" width="{}" height="12"/></svg>',
        css,
        f"{100 * min(max(share, 0.0), 1.0):.2f}",
    )
