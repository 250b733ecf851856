"""The book over REST: which concepts have a page, what each covers, what it builds on.

It stands here and not in `api/`, since that floor knows nothing of the pages above it.
"""

from typing import Any

from django.urls import reverse
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from api.openapi import closed, component, described, problems
from api.views import ApiView
from concepts.pages import Page, Source, current_book

SLUGS = {"type": "array", "items": {"type": "string"}}
ConceptSource = component(
    "ConceptSource",
    closed(
        {
            "key": described("string", "Its anchor on the page: `#ref-` and this."),
            "authors": {"type": "string"},
            "title": {"type": "string"},
            "venue": {"type": "string"},
            "year": {"type": "integer"},
            "url": {"type": "string", "format": "uri"},
        },
        required=("key", "authors", "title", "venue", "year", "url"),
    ),
)
Concept = component(
    "Concept",
    closed(
        {
            "slug": {"type": "string"},
            "title": {"type": "string"},
            "url": {"type": "string", "format": "uri"},
            "part": described("integer", "The part of the book, from 1."),
            "covers": {**SLUGS, "description": "Ids of the list of everything that the book teaches."},
            "prerequisites": {**SLUGS, "description": "Slugs; some may not have a page yet."},
            "next": {**SLUGS, "description": "Slugs; some may not have a page yet."},
            "sources": {"type": "array", "items": {"$ref": "#/components/schemas/ConceptSource"}},
        },
        required=("slug", "title", "url", "part", "covers", "prerequisites", "next", "sources"),
    ),
    ConceptSource,
)
Concepts = component(
    "Concepts",
    closed(
        {"concepts": {"type": "array", "items": {"$ref": "#/components/schemas/Concept"}}},
        required=("concepts",),
    ),
    Concept,
)


class ConceptsView(ApiView):
    @extend_schema(
        operation_id="list_concepts",
        summary="The pages of the book",
        description="In reading order: what each covers, what it builds on, where to go on, its sources.",
        tags=["catalog"],
        responses={200: Concepts, **problems(401)},
    )
    def get(self, request: Request) -> Response:
        pages = current_book().pages.values()
        return Response({"concepts": [described_page(page, request) for page in pages]})


def described_page(page: Page, request: Request) -> dict[str, Any]:
    return {
        "slug": page.slug,
        "title": page.title,
        "url": request.build_absolute_uri(reverse("concepts:concept", args=[page.slug])),
        "part": page.part,
        "covers": page.covers,
        "prerequisites": [entry.slug for entry in page.prerequisites],
        "next": [entry.slug for entry in page.next],
        "sources": [described_source(source) for source in page.sources],
    }


def described_source(source: Source) -> dict[str, Any]:
    names = ("key", "authors", "title", "venue", "year", "url")
    return {name: getattr(source, name) for name in names}
