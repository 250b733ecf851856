"""What somebody has who is signed in: their problems, drafts too. Read anew each time, and for them alone."""

from django.db.models import OuterRef, Subquery
from django.db.models.fields.json import KeyTextTransform
from django.urls import reverse

from search.documents import MINE, Document
from search.index import Index
from workers.grading.models import Problem, ProblemVersion

MOST = 200  # the newest; who has more finds the others in the classroom


def index(owner: str, language: str) -> Index:
    title = KeyTextTransform("title", "body")  # a body itself may hold a million numbers
    newest = ProblemVersion.objects.filter(problem=OuterRef("pk")).order_by("-number").annotate(title=title)
    rows = (
        Problem.objects.filter(owner=owner)
        .annotate(title=Subquery(newest.values("title")[:1]))
        .order_by("-created_at", "id")
        .values_list("slug", "title")[:MOST]
    )
    return Index(language, [_document(slug, title or slug) for slug, title in rows])


def _document(slug: str, title: str) -> Document:
    return Document(MINE, reverse("classroom:problem-mine", args=[slug]), title, (slug,), said=slug)
