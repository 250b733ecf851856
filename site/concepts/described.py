"""What a page says of itself to programs: schema.org's LearningResource as JSON-LD.

It stands in a <script> whose type is no script: browsers run nothing of it, and the policy against inline
scripts lets it be.
"""

import json
from html import unescape
from typing import Any

from django.urls import reverse
from django.utils.html import strip_tags
from django.utils.safestring import SafeString

from concepts.lists import TEX
from concepts.pages import Book, Page, Source
from concepts.paths import WORDS_A_MINUTE

IN_HTML = {ord("<"): "\\u003C", ord(">"): "\\u003E", ord("&"): "\\u0026"}  # nothing of it ends the element


def script(page: Page, shelf: Book, origin: str) -> SafeString:
    """The content of the element."""
    return SafeString(json.dumps(resource(page, shelf, origin), ensure_ascii=False).translate(IN_HTML))


def resource(page: Page, shelf: Book, origin: str) -> dict[str, Any]:
    terms = [_plain(term.name) for term in shelf.glossary if term.entry.slug == page.slug]
    return {
        "@context": "https://schema.org",
        "@type": "LearningResource",
        "name": page.title,
        "description": page.summary,
        "url": _address(origin, page.slug),
        "inLanguage": shelf.language,
        "isAccessibleForFree": True,
        "learningResourceType": "interactive explanation" if page.figures else "reference",
        "interactivityType": "mixed" if page.figures or page.asks else "expositive",
        "timeRequired": f"PT{max(1, round(page.words / WORDS_A_MINUTE))}M",
        "isPartOf": {"@type": "Book", "name": "Attention Lab", "url": origin + reverse("concepts:home")},
        "teaches": terms or [page.title],
        "competencyRequired": [entry.title for entry in page.prerequisites],
        "citation": [_work(source) for source in page.sources],
    }


def _address(origin: str, slug: str) -> str:
    return origin + reverse("concepts:concept", args=[slug])


def _plain(html: str) -> str:
    return unescape(strip_tags(TEX.sub("", html)))


def _work(source: Source) -> dict[str, Any]:
    return {
        "@type": "CreativeWork",
        "name": source.title,
        "creditText": source.authors,
        "datePublished": str(source.year),
        "url": source.url,
    }
