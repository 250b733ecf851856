"""HTML of a page as a part of one that holds the whole book: nothing to operate, and names of its own.

Forms become blocks, inputs the numbers in them, controls go. Ids get the page's name before them, and links
to pages of the book lead to their places in it. Headings go down by two levels.
"""

import re
from collections.abc import Collection
from html import escape
from html.parser import HTMLParser
from urllib.parse import urljoin

VOID = frozenset(
    {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}
)
LEFT_OUT = frozenset({"button", "label", "select", "textarea", "script"})
LEFT_OUT_CLASSES = frozenset(
    {"controls", "control-links", "without-js", "with-js", "find", "problems", "term-means", "no-print"}
)
NAMES = frozenset({"for", "headers", "aria-labelledby", "aria-controls", "aria-details"})
OPERATED = re.compile(r"hx-|data-|on|aria-(live|describedby|current|pressed|selected)|action$|method$")
ROLES = frozenset({"status", "alert", "search"})  # of what changes, or is filled in
SCROLLED = frozenset({"div", "pre", "figure"})  # which the keyboard must reach, as it scrolls
PAGE = re.compile(r"(?:\.\./|/[a-z-]+/concepts/)([a-z0-9-]+)/(?:#(.*))?")
DOWN = 2
LAST = 6


def still(html: str, slug: str, home: str, slugs: Collection[str]) -> str:
    """`html` of the page `slug`, whose address is `home`; `slugs` are the pages of the book."""
    parser = _Still(slug, home, slugs)
    parser.feed(html)
    parser.close()
    return "".join(parser.written)


def anchor(slug: str, name: str = "") -> str:
    """The id of a page, or of something on it."""
    return f"{slug}--{name}" if name else slug


class _Still(HTMLParser):
    def __init__(self, slug: str, home: str, slugs: Collection[str]) -> None:
        super().__init__(convert_charrefs=False)
        self.slug, self.home, self.slugs = slug, home, slugs
        self.written: list[str] = []
        self.depth = 0  # of elements inside one that is left out

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        if self.depth or self._is_left_out(tag, found):
            self.depth += tag not in VOID
        elif tag == "input":
            if found.get("type", "text") in ("text", "number"):
                self.written.append(escape(found.get("value", "")))
        else:
            self.written.append(self._opened(self._renamed(tag), found))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if not self.depth:
            opened = self._opened(tag, {name: value or "" for name, value in attrs})
            self.written.append(f"{opened[:-1]}/>")

    def handle_endtag(self, tag: str) -> None:
        if self.depth:
            self.depth -= tag not in VOID
        elif tag not in VOID:
            self.written.append(f"</{self._renamed(tag)}>")

    def handle_data(self, data: str) -> None:
        if not self.depth:
            self.written.append(data)

    def handle_entityref(self, name: str) -> None:
        self.handle_data(f"&{name};")

    def handle_charref(self, name: str) -> None:
        self.handle_data(f"&#{name};")

    def _is_left_out(self, tag: str, attrs: dict[str, str]) -> bool:
        return tag in LEFT_OUT or bool(LEFT_OUT_CLASSES & set(attrs.get("class", "").split()))

    def _renamed(self, tag: str) -> str:
        if tag == "form":
            return "div"
        if len(tag) == 2 and tag[0] == "h" and tag[1].isdigit():
            return f"h{min(int(tag[1]) + DOWN, LAST)}"
        return tag

    def _opened(self, tag: str, attrs: dict[str, str]) -> str:
        kept = [
            f' {name}="{escape(self._value(name, value))}"'
            for name, value in attrs.items()
            if self._is_kept(tag, name, value)
        ]
        return f"<{tag}{''.join(kept)}>"

    def _is_kept(self, tag: str, name: str, value: str) -> bool:
        if name == "role":
            return value not in ROLES
        if name == "tabindex":
            return tag in SCROLLED
        return not OPERATED.match(name)

    def _value(self, name: str, value: str) -> str:
        if name == "id":
            return anchor(self.slug, value)
        if name in NAMES:
            return " ".join(anchor(self.slug, one) for one in value.split())
        return self._address(value) if name == "href" else re.sub(r"url\(#", f"url(#{self.slug}--", value)

    def _address(self, value: str) -> str:
        if value.startswith("#ref-"):
            return f"#{anchor('references', value[1:])}"
        if value.startswith("#"):
            return f"#{anchor(self.slug, value[1:])}"
        if value.startswith("?"):
            return self.home + value
        if (found := PAGE.fullmatch(value)) and found[1] in self.slugs:
            return f"#{anchor(found[1], found[2] or '')}"
        return urljoin(self.home, value)
