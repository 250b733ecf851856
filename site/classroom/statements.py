"""Markdown that anybody with an account may write, as HTML that cannot do anything.

CommonMark with tables, and LaTeX between dollars. There is no HTML in it, no picture from elsewhere, no link
but to http(s) and mail; a formula is converted, and kept only as far as it is MathML that we know. What
cannot be converted stands there as it was written.
"""

import xml.etree.ElementTree as ET
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Any

from django.utils.html import format_html
from django.utils.safestring import SafeString
from markdown_it import MarkdownIt
from markdown_it.token import Token
from mdit_py_plugins.dollarmath import dollarmath_plugin

from concepts.maths import MathsError, to_mathml

MAX_FORMULA = 1_000  # characters; a longer one takes long to convert
MATHML = "http://www.w3.org/1998/Math/MathML"
ELEMENTS = frozenset(
    {
        "math", "mrow", "mi", "mn", "mo", "mtext", "mspace", "mfrac", "msqrt", "mroot", "msub", "msup",
        "msubsup", "munder", "mover", "munderover", "mtable", "mtr", "mtd", "mstyle", "mpadded", "mphantom",
    }
)  # fmt: skip
ATTRIBUTES = frozenset(
    {
        "display", "displaystyle", "scriptlevel", "mathvariant", "stretchy", "fence", "separator",
        "symmetric", "lspace", "rspace", "minsize", "maxsize", "accent", "accentunder", "linethickness",
        "columnalign", "rowspacing", "columnspacing", "width", "height", "depth", "form", "movablelimits",
        "largeop",
    }
)  # fmt: skip


@lru_cache(maxsize=256)
def to_html(text: str, below: int = 1) -> SafeString:
    """Its headings, whatever their levels, begin one below that of the page's, and leave none out."""
    env: dict[str, Any] = {}
    md = _parser()
    tokens = md.parse(text, env)
    levels = sorted({token.tag for token in tokens if token.type == "heading_open"})
    for token in tokens:
        if token.type in ("heading_open", "heading_close"):
            token.tag = f"h{min(6, below + 1 + levels.index(token.tag))}"
    return SafeString(md.renderer.render(tokens, md.options, env))  # of escaped text and the elements above


@cache
def _parser() -> MarkdownIt:
    md = MarkdownIt("commonmark", {"typographer": True, "html": False})
    md.enable(["table", "replacements", "smartquotes"])
    md.disable(["image", "html_block", "html_inline"])
    md.use(dollarmath_plugin, allow_space=False, double_inline=True)
    for kind in ("math_inline", "math_inline_double", "math_block"):
        md.add_render_rule(kind, _formula)
    # What is wider than its box is scrolled, by keyboard too.
    md.add_render_rule(
        "table_open", lambda *_: '<div class="table-wrap" tabindex="0"><table class="table">\n'
    )
    for kind in ("th_open", "th_close"):
        md.add_render_rule(kind, _header_cell)
    md.add_render_rule("table_close", lambda *_: "</table></div>\n")
    md.add_render_rule("link_open", _link)
    md.add_render_rule("fence", _fence)
    return md


def _formula(_renderer: Any, tokens: Sequence[Token], index: int, _options: Any, _env: Any) -> str:
    token = tokens[index]
    display = token.type != "math_inline"
    source = token.content.strip()
    try:
        return mathml(source, display=display)
    except MathsError:
        return str(format_html("<code>{}</code>", f"$${source}$$" if display else f"${source}$"))


def mathml(source: str, *, display: bool = False) -> str:
    """MathML of somebody's LaTeX, taken apart and put together from what is known to be harmless."""
    if len(source) > MAX_FORMULA:
        raise MathsError("the formula is too long")
    root = ET.fromstring(to_mathml(source, display=display))  # noqa: S314  (of the converter, well-formed)
    for element in root.iter():
        namespace, _brace, name = element.tag.rpartition("}")
        if name not in ELEMENTS or namespace not in ("", f"{{{MATHML}"):
            raise MathsError(f"<{name}> is not shown")
        element.tag = name
        for attribute in set(element.attrib) - ATTRIBUTES:
            del element.attrib[attribute]
    if display:
        root.set("tabindex", "0")
    return ET.tostring(root, encoding="unicode")


def _link(renderer: Any, tokens: Sequence[Token], index: int, options: Any, env: Any) -> str:
    token = tokens[index]
    target = str(token.attrGet("href") or "")
    if not target.startswith(("http://", "https://", "mailto:", "/", "#", "?")) or target.startswith("//"):
        token.attrSet("href", "#")
    token.attrSet("rel", "noopener nofollow ugc")
    return str(renderer.renderToken(tokens, index, options, env))


def _fence(renderer: Any, tokens: Sequence[Token], index: int, options: Any, env: Any) -> str:
    """Code that is wider than its box is scrolled, by keyboard too."""
    return str(renderer.fence(tokens, index, options, env)).replace("<pre>", '<pre tabindex="0">', 1)


def _header_cell(renderer: Any, tokens: Sequence[Token], index: int, options: Any, env: Any) -> str:
    """A header that says nothing is none."""
    token = tokens[index]
    words = tokens[index + (1 if token.nesting > 0 else -1)].content
    if not words.strip():
        token.tag = "td"
    return str(renderer.renderToken(tokens, index, options, env))
