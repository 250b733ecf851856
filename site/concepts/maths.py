"""LaTeX to MathML, on the server."""

import re
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from functools import lru_cache

from django.utils.safestring import SafeString
from latex2mathml.converter import convert_to_element

# latex2mathml writes what it does not know through to the page; a reader must never see it.
RAW = re.compile(r"\\[A-Za-z]*")
# Its own characters are references in the text of elements; what \text holds is as it was written.
REFERENCE = re.compile(r"&amp;(#x[0-9A-Fa-f]+;)")
IDENTIFIER = re.compile(r"<mi([^>]*)>([^<]+)</mi>")
# Not in MathML Core; browsers that implement the standard ignore them or complain.
NAMED_SPACE = re.compile(r'<mspace width="negative\w+" ?/>')
# ∞ and ⊤ are no operations, and the name of a function stands close to its bracket.
OPENS = r"(?:<mrow>)?<mo[^>]*>(?:&#x00028;|&#x0007B;|[\[(])</mo>"
NAME = re.compile(rf"<mo>((?:[A-Za-z]+(?=</mo>{OPENS}))|&#x0221E;|&#x022A4;)</mo>")
# Without a bracket it keeps a little room: ln 2.
BARE_NAME = re.compile(
    r"(?<!<msub>)(?<!<msup>)(?<!<msubsup>)(<mi>[a-z]{2,}</mi>)(?=<m(?:i|n|sub|sup|subsup|frac|row><mi)>)"
)
# Nor does a minus ask for it that nothing stands before: after a bracket, a comma or a relation.
FIRST_MINUS = re.compile(r"(<mo[^>]*>(?:&#x(?:00028|0007B|0002C|0003D|02208);|\[)</mo>)<mo>(&#x02212;)</mo>")
# Browsers make room for the widest sign that a root could have; in a line of text that is a gap behind it.
ROOT_OF_ONE = re.compile(r"<msqrt><mrow>(<(m[in])>[^<]*</\2>)</mrow></msqrt>")
SIGN_AND_ONE = r'<mrow><mo form="prefix" stretchy="false" lspace="0em" rspace="0em">√</mo>\1</mrow>'


# How many children these elements need: with another number the browser shows an error in their place.
CHILDREN = {
    "mfrac": 2,
    "mroot": 2,
    "msub": 2,
    "msup": 2,
    "munder": 2,
    "mover": 2,
    "msubsup": 3,
    "munderover": 3,
}


class MathsError(ValueError):
    """A formula that cannot be turned into clean MathML."""


@lru_cache(maxsize=4096)  # formulas of problems come from anybody
def _convert(latex: str, display: bool) -> str:
    try:
        root = convert_to_element(latex, display="block" if display else "inline")
        mathml = REFERENCE.sub(r"&\1", ET.tostring(root, encoding="unicode"))
        ET.fromstring(mathml)  # noqa: S314  (no entities; a reference to no character is an error)
    except Exception as error:  # latex2mathml raises a zoo of its own, and IndexError besides
        raise MathsError(f"formula ${latex}$: {type(error).__name__} {error}") from error
    if raw := RAW.search(mathml):
        raise MathsError(f"formula ${latex}$: {raw[0]} is not a command that becomes MathML")
    for element in root.iter():
        if "style" in element.attrib:
            raise MathsError(f"formula ${latex}$: it needs an inline style, which the page's policy forbids")
        if len(element) != CHILDREN.get(element.tag, len(element)):
            raise MathsError(f"formula ${latex}$: an argument is missing ({element.tag})")
    mathml = NAMED_SPACE.sub("", mathml)
    mathml = NAME.sub(r'<mi mathvariant="normal">\1</mi>', mathml)
    mathml = BARE_NAME.sub(r'\1<mspace width="0.167em" />', mathml)
    mathml = FIRST_MINUS.sub(r'\1<mo form="prefix">\2</mo>', mathml)
    return mathml if display else ROOT_OF_ONE.sub(SIGN_AND_ONE, mathml)


def to_mathml(latex: str, *, display: bool = False, symbols: Mapping[str, str] | None = None) -> SafeString:
    """MathML of `latex`; each identifier in `symbols` is tied to the figure's part of that name."""
    mathml = _convert(latex.strip(), display)
    if not symbols:
        return SafeString(mathml)

    def tie(match: re.Match[str]) -> str:
        part = symbols.get(match[2])
        if part is None:
            return match[0]
        return f'<mi{match[1]} class="sym {part}" data-sym="{part}">{match[2]}</mi>'

    return SafeString(IDENTIFIER.sub(tie, mathml))
