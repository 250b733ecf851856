"""Markdown of a concept page to HTML with places for its figures.

On top of CommonMark, tables and typographic quotes:

* `$…$` and `$$…$$` are LaTeX and become MathML;
* `{fact:name}` is a computed number (see concepts.facts);
* `[[slug]]` and `[[slug|text]]` link to a concept, or name it where it is not written yet;
* `[[~term]]` and `[[~term|text]]` mark a term of the glossary where a page uses it first;
* `[@key]` cites a source that the page's front matter lists;
* `::: figure name [part]` … `:::` places a figure with its caption;
* `::: symbols` … `:::` lists the page's symbols, tied to the figure;
* `::: list name` … `:::` is a listing of the whole book: its terms, its sources (see concepts.lists);
* `::: check slug [case]` … `:::` is a case of a problem of the course, to be filled in and checked;
* a fenced block ```` ```ask name ```` holds a question that is judged (see concepts.asks);
* `::: question …` folds an answer, `::: wrong …` holds a misconception, `::: note` sets a paragraph apart.

Whatever cannot be resolved is a ContentError with file and line.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from django.utils.html import escape, format_html
from django.utils.safestring import mark_safe
from django.utils.translation import gettext as _
from markdown_it import MarkdownIt
from markdown_it.rules_inline import StateInline
from markdown_it.token import Token
from mdit_py_plugins.anchors import anchors_plugin
from mdit_py_plugins.container import container_plugin
from mdit_py_plugins.dollarmath import dollarmath_plugin

from concepts import asks
from concepts.asks import Ask, AskError
from concepts.errors import ContentError
from concepts.facts import FACTS
from concepts.maths import MathsError, to_mathml

FACT = re.compile(r"\{fact:([a-z0-9-]+)\}")
LINK = re.compile(r"\[\[([a-z0-9-]+)(?:\|([^\]\n]+))?\]\]")
TERM = re.compile(r"\[\[~([a-z0-9-]+)(?:\|([^\]\n]+))?\]\]")
CLOSES = re.compile(r"[.,;:?!)’”]+")
# A space between a number and its unit.
UNIT = re.compile(r"(?<=\d) (?=(?:%|[KMGT]i?B(?:/s)?|T?FLOP(?:/s)?|TF/s|GFLOP|[mµn]?s|W)(?![\w-]))")
CITE = re.compile(r"\[@([a-z0-9-]+)\]")
ENDS = {
    "figure": "</figcaption></figure>\n",
    "symbols": "",
    "check": "",
    "list": "",
    "question": "</details>\n",
}
ASK_NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
CONTAINERS = ("figure", "symbols", "check", "list", "question", "wrong", "note")
LISTS = ("citation", "glossary", "limits", "misconceptions", "references")
MAX_ANCHOR = 6  # words of a claim that make its anchor


@dataclass(frozen=True)
class Slot:
    """A place for a part of a figure between two stretches of HTML."""

    figure: str
    part: str


@dataclass(frozen=True)
class Check:
    """A place for a case of a problem, to be filled in."""

    slug: str
    case: str


@dataclass(frozen=True)
class Listing:
    """A place for what the whole book has."""

    name: str


Piece = str | Slot | Check | Listing | Ask


@dataclass(frozen=True)
class Symbol:
    tex: str  # as it stands in formulas: W
    part: str  # the part of the figure that it names: w
    meaning: str
    letters: tuple[str, ...] = ()  # other identifiers of the same thing: w, in w_ij


@dataclass(frozen=True)
class Term:
    """A term of the glossary. Its words may hold maths."""

    slug: str
    term: str
    means: str
    page: str  # slug of the concept that explains it
    also: str = ""  # how else it is called


@dataclass(frozen=True)
class Heading:
    id: str
    text: str


@dataclass
class Context:
    """What a page may refer to, and the collector of what it does refer to."""

    file: str
    first_line: int  # of the body in the file, from 1
    titles: Mapping[str, str]  # slug → title of every concept in the table of contents
    written: frozenset[str]  # slugs that have a page
    sources: Mapping[str, Mapping[str, Any]]
    figures: Mapping[str, frozenset[str]]  # name → parts
    symbols: Sequence[Symbol]
    figure_id: str = ""
    terms: Mapping[str, Term] = field(default_factory=dict)
    can_check: Callable[[str, str], bool] = lambda _slug, _case: False
    used: dict[str, set[str]] = field(
        default_factory=lambda: {"facts": set(), "links": set(), "sources": set(), "terms": set()}
    )
    asks: dict[str, Ask] = field(default_factory=dict)
    claims: set[str] = field(default_factory=set)  # anchors of what is wrong

    def error(self, line: int | None, message: str) -> ContentError:
        return ContentError(self.file, self.first_line + (line or 0), message)


def render(text: str, context: Context) -> tuple[list[Piece], list[Heading]]:
    """The body as stretches of HTML and slots, and its headings of the second level."""
    md = _parser()
    env: dict[str, Any] = {"context": context}
    tokens = md.parse(_with_facts(text, context), env)
    _resolve(tokens, context)
    _read_asks(tokens, context, env)
    html = md.renderer.render(tokens, md.options, env)
    headings = [
        Heading(str(token.attrGet("id")), "".join(child.content for child in tokens[n + 1].children or []))
        for n, token in enumerate(tokens)
        if token.type == "heading_open" and token.tag == "h2"
    ]
    return _split(html, context), headings


def _with_facts(text: str, context: Context) -> str:
    lines = []
    for number, line in enumerate(text.split("\n")):

        def value(match: re.Match[str], number: int = number) -> str:
            if match[1] not in FACTS:
                raise context.error(number, f"no fact is called {match[1]}")
            context.used["facts"].add(match[1])
            return FACTS[match[1]].text

        lines.append(FACT.sub(value, line))
    return "\n".join(lines)


def _parser() -> MarkdownIt:
    md = MarkdownIt("commonmark", {"typographer": True, "html": False})
    md.enable(["table", "replacements", "smartquotes"])
    md.use(anchors_plugin, min_level=2, max_level=3)
    md.use(dollarmath_plugin, allow_space=False, double_inline=False)
    for name in CONTAINERS:
        md.use(container_plugin, name)
        for end in ("open", "close"):
            md.add_render_rule(f"container_{name}_{end}", _container)
    md.inline.ruler.before("link", "concept_link", _inline_rule(LINK, "concept_link"))
    md.inline.ruler.before("link", "term", _inline_rule(TERM, "term"))
    md.inline.ruler.before("link", "cite", _inline_rule(CITE, "cite"))
    for kind in ("concept_link", "term", "cite", "math_inline", "math_block", "ask"):
        md.add_render_rule(kind, _ready)
    md.add_render_rule("fence", _program)
    md.add_render_rule("table_open", lambda *_: '<div class="table-wrap"><table class="table">\n')
    md.add_render_rule("table_close", lambda *_: "</table></div>\n")
    return md


def _inline_rule(pattern: re.Pattern[str], kind: str) -> Any:
    def rule(state: StateInline, silent: bool) -> bool:
        match = pattern.match(state.src, state.pos)
        if not match:
            return False
        if not silent:
            token = state.push(kind, "", 0)
            token.meta = {"groups": match.groups()}
        state.pos = match.end()
        return True

    return rule


def _ready(renderer: Any, tokens: Sequence[Token], index: int, options: Any, env: Any) -> str:
    return str(tokens[index].meta["html"])


def _program(renderer: Any, tokens: Sequence[Token], index: int, options: Any, env: Any) -> str:
    """Lines that scroll in their own box where they are too wide, by keyboard as well."""
    return f'<pre tabindex="0"><code>{escape(tokens[index].content)}</code></pre>\n'


def _resolve(tokens: Sequence[Token], context: Context) -> None:
    """Give every token of ours its HTML, here where the line is known."""
    parts = {letter: symbol.part for symbol in context.symbols for letter in (symbol.tex, *symbol.letters)}
    for token in tokens:
        line = token.map[0] if token.map else None
        for item in [token, *(token.children or [])]:
            if item.type in ("math_inline", "math_block"):
                try:
                    mathml = to_mathml(item.content, display=item.type == "math_block", symbols=parts)
                except MathsError as error:
                    raise context.error(line, str(error)) from error
                item.meta["html"] = mathml + ("\n" if item.type == "math_block" else "")
            elif item.type == "concept_link":
                slug, words = item.meta["groups"]
                item.meta["html"] = _concept_link(slug, words, line, context)
            elif item.type == "term":
                slug, words = item.meta["groups"]
                item.meta["html"] = _term(slug, words, line, context)
            elif item.type == "cite":
                item.meta["html"] = _cite(item.meta["groups"][0], line, context)
            elif item.type.startswith("container_") and item.type.endswith("_open"):
                _check_container(item, line, context)
        _keep_together(token.children or [])


def _keep_together(items: Sequence[Token]) -> None:
    """A browser may break a line after any formula, even before the comma that follows; and before a unit."""
    for formula, after in pairwise(items):
        if formula.type == "math_inline" and after.type == "text" and (sign := CLOSES.match(after.content)):
            formula.meta["html"] = f'<span class="unbroken">{formula.meta["html"]}{sign[0]}</span>'
            after.content = after.content[len(sign[0]) :]
    for item in items:
        if item.type == "text":
            item.content = UNIT.sub("\u00a0", item.content)


def _read_asks(tokens: Sequence[Token], context: Context, env: Any) -> None:
    for token in tokens:
        kind, _space, name = token.info.strip().partition(" ")
        if token.type != "fence" or kind != "ask":
            continue
        line = token.map[0] if token.map else None
        if not ASK_NAME.fullmatch(name) or name in context.asks:
            raise context.error(line, f"```ask needs a name of its own, not “{name}”")
        try:
            context.asks[name] = asks.read(name, token.content, lambda text: _inline(text, env))
        except AskError as error:
            raise context.error(line, str(error)) from error
        token.type, token.meta = "ask", {"html": f"\x00ask:{name}\x00"}


def _concept_link(slug: str, text: str | None, line: int | None, context: Context) -> str:
    if slug not in context.titles:
        raise context.error(line, f"[[{slug}]] is not in the table of contents")
    context.used["links"].add(slug)
    words = mark_safe(_inline(text, {"context": context})) if text else context.titles[slug]  # noqa: S308
    if slug in context.written:
        return format_html('<a href="../{}/">{}</a>', slug, words)
    return format_html('<span class="coming" title="{}">{}</span>', _("This page is being written"), words)


def _term(slug: str, text: str | None, line: int | None, context: Context) -> str:
    """Its meaning is there for who points at it, and is what a screen reader describes the link with."""
    term = context.terms.get(slug)
    if term is None:
        raise context.error(line, f"[[~{slug}]] is not in the glossary")
    if slug in context.used["terms"]:
        raise context.error(line, f"[[~{slug}]] is marked on this page already")
    context.used["terms"].add(slug)
    env = {"context": context}
    return format_html(
        '<span class="term"><a href="../glossary/#term-{0}" aria-describedby="means-{0}">{1}</a>'
        '<span class="term-means" role="tooltip" id="means-{0}">{2}</span></span>',
        slug,
        mark_safe(_inline(text or term.term, env)),  # noqa: S308
        mark_safe(_inline(term.means, env)),  # noqa: S308
    )


def plain(words: str) -> str:
    """Words with maths, as HTML, where no page is around them."""
    nowhere = Context("glossary.yaml", 1, {}, frozenset(), {}, {}, ())
    return _inline(words, {"context": nowhere})


def _cite(key: str, line: int | None, context: Context) -> str:
    if key not in context.sources:
        raise context.error(line, f"[@{key}] is not among the page's sources")
    context.used["sources"].add(key)
    return format_html('<a class="cite" href="#ref-{}">{}</a>', key, context.sources[key]["short"])


def _check_container(token: Token, line: int | None, context: Context) -> None:
    kind, _space, argument = token.info.strip().partition(" ")
    token.meta = {"context": context, "argument": argument.strip()}
    if kind == "figure":
        name, _space, part = argument.strip().partition(" ")
        if name not in context.figures or part not in context.figures[name]:
            raise context.error(line, f"there is no figure “{argument.strip()}”")
    elif kind == "check":
        slug, _space, case = argument.strip().partition(" ")
        if not context.can_check(slug, case):
            raise context.error(line, f"“{argument.strip()}” is no problem that can be filled in")
    elif kind == "list" and argument.strip() not in LISTS:
        raise context.error(line, f"there is no list “{argument.strip()}”, only {' and '.join(LISTS)}")
    elif kind in ("question", "wrong") and not argument.strip():
        raise context.error(line, f"::: {kind} needs its words on the same line")


def _container(renderer: Any, tokens: Sequence[Token], index: int, options: Any, env: Any) -> str:
    token = tokens[index]
    kind = token.type.removeprefix("container_").rpartition("_")[0]
    if token.nesting < 0:
        return ENDS.get(kind, "</aside>\n")
    argument = str(token.meta["argument"])
    words = str(_inline(argument, env))
    html = '<aside class="callout">\n'
    if kind == "figure":
        name, _space, part = argument.partition(" ")
        css = "figure figure-part" if part else "figure"
        html = f'<figure class="{css}">\x00{name} {part}\x00<figcaption>'
    elif kind == "check":
        html = f"\x00check:{argument}\x00"
    elif kind == "list":
        html = f"\x00list:{argument}\x00"
    elif kind == "symbols":
        html = _symbols(env["context"])
    elif kind == "question":
        html = f'<details class="fold question"><summary>{words}</summary>\n'
    elif kind == "wrong":
        anchor = _anchor(words, env["context"])
        html = f'<aside class="callout callout-warn wrong" id="{anchor}"><p class="wrong-claim">{words}</p>\n'
    return html


def _anchor(words: str, context: Context) -> str:
    """Of a claim: its first words, which no other claim of the page has."""
    plain_words = re.sub(r"<math.*?</math>|<[^>]+>", " ", words, flags=re.DOTALL).lower()
    anchor = "-".join(["wrong", *re.findall(r"[a-z0-9]+", plain_words)[:MAX_ANCHOR]])
    while anchor in context.claims:
        anchor += "-too"
    context.claims.add(anchor)
    return anchor


def _inline(text: str, env: dict[str, Any]) -> str:
    """A directive's own words, which may hold maths, facts and links."""
    md = _parser()
    tokens = md.parseInline(text, env)
    _resolve(tokens, env["context"])
    return str(md.renderer.render(tokens, md.options, env))


def _symbols(context: Context) -> str:
    items = [
        format_html('<div id="sym-{0}" data-sym="{0}"><dt>', symbol.part)
        + to_mathml(symbol.tex, symbols={symbol.tex: symbol.part})
        + format_html(
            '</dt><dd><a href="#{}-{}">{}</a></dd></div>', context.figure_id, symbol.part, symbol.meaning
        )
        for symbol in context.symbols
    ]
    return '<dl class="symbols">' + "".join(items) + "</dl>\n"


def _split(html: str, context: Context) -> list[Piece]:
    pieces: list[Piece] = []
    for n, piece in enumerate(html.split("\x00")):
        if n % 2:
            name, _space, part = piece.partition(" ")
            kind, _colon, slug = name.rpartition(":")
            if kind == "ask":
                pieces.append(context.asks[slug])
            elif kind == "list":
                pieces.append(Listing(slug))
            else:
                pieces.append(Check(slug, part) if kind == "check" else Slot(name, part))
        else:
            pieces.append(piece)
    return pieces
