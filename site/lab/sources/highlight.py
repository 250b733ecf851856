"""Python source as HTML, a string for each line: what is a comment, a text, a keyword, a number, and what is
defined. By Python's own tokenizer, so that nothing more is needed at run time."""

import io
import keyword
import tokenize

from django.utils.html import escape
from django.utils.safestring import SafeString

KINDS = {tokenize.COMMENT: "comment", tokenize.STRING: "string", tokenize.NUMBER: "number"}
DEFINING = ("def", "class")
Span = tuple[int, int, str]  # from a column to another, and what is there


def lines(source: str) -> list[SafeString]:
    """Each line of a module as HTML. Raises tokenize.TokenError or SyntaxError where it is none."""
    texts = source.splitlines()
    spans: list[list[Span]] = [[] for _ in texts]
    before = ""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        kind = kind_of(token, before)
        if token.type in (tokenize.NAME, tokenize.OP):
            before = token.string
        if not kind:
            continue
        (first, start), (last, end) = token.start, token.end
        for number in range(first, last + 1):
            left = start if number == first else 0
            right = end if number == last else len(texts[number - 1])
            spans[number - 1].append((left, right, kind))
    return [marked(text, found) for text, found in zip(texts, spans, strict=True)]


def kind_of(token: tokenize.TokenInfo, before: str) -> str:
    if token.type in KINDS:
        return KINDS[token.type]
    if token.type == tokenize.NAME:
        if before in DEFINING:
            return "defined"
        return "keyword" if keyword.iskeyword(token.string) else ""
    return "decorator" if token.type == tokenize.OP and token.string == "@" else ""


def marked(text: str, spans: list[Span]) -> SafeString:
    """The parts of a line between the spans as they are, those in them with a class."""
    parts, at = [], 0
    for start, end, kind in spans:
        if end > start:
            parts += [escape(text[at:start]), f'<span class="code-{kind}">{escape(text[start:end])}</span>']
            at = end
    return SafeString("".join([*parts, escape(text[at:])]))  # escaped piece by piece
