"""What belongs to whoever is signed in; of others' things there are none."""

from collections.abc import Callable
from functools import wraps
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404

from classroom import people
from workers.grading.models import Assignment, ProblemVersion
from workers.models import ID_ALPHABET

View = Callable[..., HttpResponse]


def assignment_view(view: View) -> View:
    """Give a view the teacher's own assignment instead of its id."""

    @wraps(view)
    def with_assignment(request: HttpRequest, assignment_id: str, **kwargs: Any) -> HttpResponse:
        mine = Assignment.objects.filter(owner=people.owner(request))
        rows = mine.select_related("problem_version__problem").defer(ProblemVersion.BODY_OF)
        return view(request, get_object_or_404(rows, pk=as_id(assignment_id)), **kwargs)

    return people.signed_in(with_assignment)


def as_id(text: str) -> str:
    """An id, or nothing that is one: PostgreSQL does not even look for some characters."""
    return text if set(text) <= set(ID_ALPHABET) else ""
