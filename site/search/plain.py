"""HTML of our own pages as the text that is read, with formulas in a line: QKᵀ/√d."""

import re
import xml.etree.ElementTree as ET
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from html.parser import HTMLParser

MATH = re.compile(r"<math\b.*?</math>", re.DOTALL)
SPACED = set("=≈≤≥<>+−→←↦∈≠∼⇒") | {"-"}
INVISIBLE = re.compile("[\u2061-\u2064\u200b\u00ad]")
RAISED = str.maketrans("0123456789⊤T−-′", "⁰¹²³⁴⁵⁶⁷⁸⁹ᵀᵀ⁻⁻′")
SINGLE = re.compile(r"√?[\w.,∞ᵀ′⁰¹²³⁴⁵⁶⁷⁸⁹]+|−[\w∞]+")
SIGN = re.compile(r"(^|[(,=≤≥<>∈→] ?) ?([−+]) ")  # of a number, and not between two
BLOCKS = frozenset({
    "p", "li", "dt", "dd", "td", "th", "tr", "div", "figcaption", "pre", "summary", "ul", "ol", "dl", "table",
})  # fmt: skip
# What is not read on: a term's meaning stands in the glossary, and an answer is for who asks for it.
SKIPPED = {"term-means"}
FOLDED = {"question"}
CLAIM, CLAIMED = "wrong", "wrong-claim"  # what is often said and wrong opens by itself


@dataclass
class Passage:
    """What stands under a heading, or is said of a claim; the first of a page may have no heading."""

    anchor: str = ""
    heading: str = ""
    is_claim: bool = False
    parts: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return " ".join("".join(self.parts).split())


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.passages = [Passage()]
        self.section = self.passages[0]
        self.in_heading = False
        self.skipped: list[str] = []  # the open elements from the one that is skipped

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        classes = set(given.get("class", "").split())
        if self.skipped or classes & SKIPPED or (tag == "details" and classes & FOLDED):
            self.skipped.append(tag)
        elif tag in ("h2", "h3") and given.get("id"):
            self.passages.append(Passage(given["id"]))
            self.in_heading = True
        elif CLAIM in classes and given.get("id"):
            self.section = self.passages[-1]
            self.passages.append(Passage(given["id"], is_claim=True))
        elif CLAIMED in classes:
            self.in_heading = self.passages[-1].is_claim
        elif tag in BLOCKS:
            self.passages[-1].parts.append(" ")

    def handle_endtag(self, tag: str) -> None:
        if self.skipped:
            if tag in self.skipped:
                del self.skipped[len(self.skipped) - 1 - self.skipped[::-1].index(tag) :]
        elif tag == "aside" and self.passages[-1].is_claim:
            self.passages.append(Passage(self.section.anchor, self.section.heading))  # and on under it
        elif tag in ("h2", "h3", "p") and self.in_heading:
            self.in_heading = False
        elif tag in BLOCKS:
            self.passages[-1].parts.append(" ")

    def handle_data(self, data: str) -> None:
        if self.skipped:
            return
        if self.in_heading:
            self.passages[-1].heading += data
        else:
            self.passages[-1].parts.append(data)


def passages(html: str) -> list[Passage]:
    """The text under each heading that has an anchor, in order."""
    reader = _Reader()
    reader.feed(MATH.sub(lambda match: escape(formula(match[0])), html))
    reader.close()
    seen: set[str] = set()
    found = []
    for each in reader.passages:
        if each.text or (each.heading and each.anchor not in seen):
            found.append(each)
            seen.add(each.anchor)
    return found


def text(html: str) -> str:
    """All of it."""
    return " ".join(" ".join(filter(None, (each.heading, each.text))) for each in passages(html))


def formula(mathml: str) -> str:
    """In a line, as one would type it."""
    try:
        root = ET.fromstring(mathml)  # noqa: S314  (made by us, without entities)
    except ET.ParseError:
        return " ".join(re.sub(r"<[^>]+>", " ", mathml).split())
    return _signs(re.sub(r" +", " ", _line(root)).strip())


def _signs(line: str) -> str:
    return SIGN.sub(r"\1\2", line)


def _line(element: ET.Element) -> str:
    tag = element.tag.rpartition("}")[2]
    children = list(element)
    if not children:
        return _leaf(tag, INVISIBLE.sub("", element.text or ""))
    return _arranged(tag, [_line(child) for child in children])


def _leaf(tag: str, said: str) -> str:
    said = said.strip()
    if tag == "mspace":
        return " "
    if tag == "mo" and said in SPACED:
        return f" {said} "
    return f"{said} " if tag == "mo" and said in (",", ";") else said


def _arranged(tag: str, lines: Sequence[str]) -> str:
    arrange = ARRANGED.get(tag)
    return arrange(*lines) if arrange else "".join(lines)


ARRANGED: Mapping[str, Callable[..., str]] = {
    "mfrac": lambda top, bottom: f"{_wrapped(top)}/{_wrapped(bottom)}",
    "msqrt": lambda *under: f"√{_wrapped(''.join(under))}",
    "mroot": lambda under, degree: f"{_raised(degree)}√{_wrapped(under)}",
    "msub": lambda base, low: f"{base}_{_wrapped(low)}",
    "munder": lambda base, low: f"{base}_{_wrapped(low)}",
    "msup": lambda base, high: f"{base}{_raised(high)}",
    "mover": lambda base, _accent: base,
    "msubsup": lambda base, low, high: f"{base}_{_wrapped(low)}{_raised(high)}",
    "munderover": lambda base, low, high: f"{base}_{_wrapped(low)}{_raised(high)}",
    "mtr": lambda *cells: " ".join(cells),
    "mtable": lambda *rows: "; ".join(rows),
}


def _raised(line: str) -> str:
    line = _signs(line.strip())
    if line and all(ord(letter) in RAISED for letter in line):
        return line.translate(RAISED)
    return f"^{_wrapped(line)}"


def _wrapped(line: str) -> str:
    line = _signs(line.strip())
    return line if SINGLE.fullmatch(line) else f"({line})"
