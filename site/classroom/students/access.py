"""A student at an assignment: known by a signed key in the address, and by nothing else.

The key is the one that REST takes (`api.grading.keys`). Whoever has a token that hands in gets the key of the
student they name; from then on the address is all there is.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any
from urllib.parse import urlencode

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.cache import never_cache

from api.callers import caller_of
from api.grading import keys
from api.grading.access import access_of
from api.grading.keys import Student
from api.models import ApiToken
from workers.grading.models import USER_REF_LENGTH, Assignment, ProblemVersion
from workers.models import ID_ALPHABET


@dataclass(frozen=True)
class Desk:
    """Where one student works on one assignment."""

    assignment: Assignment
    student: Student

    @property
    def user_ref(self) -> str:
        return self.student.user_ref

    @property
    def key(self) -> str:
        return self.student.key

    @property
    def holder(self) -> str:
        return self.student.holder

    def address(self, name: str = "hand-in", **where: Any) -> str:
        """Of a page of this student's."""
        path = reverse(f"classroom:{name}", kwargs={"assignment_id": self.assignment.id, **where})
        return f"{path}?{urlencode({'key': self.key})}"

    def download(self, form: str, **more: str) -> str:
        """Of the inputs, as REST gives them."""
        where = {"assignment_id": self.assignment.id, "user_ref": self.user_ref}
        query = urlencode({"key": self.key, "format": form, **more})
        return f"{reverse('api:variant', kwargs=where)}?{query}"


def find(assignment_id: str) -> Assignment | None:
    if not set(assignment_id) <= set(ID_ALPHABET):  # PostgreSQL does not even look for some characters
        return None
    rows = Assignment.objects.select_related("problem_version__problem").defer(ProblemVersion.BODY_OF)
    return rows.filter(pk=assignment_id).first()


def desk_of(request: HttpRequest, assignment_id: str) -> Desk:
    """Whose key the address has. Http404: nobody's, or for something else."""
    student = keys.read(request.GET.get("key", ""))
    assignment = find(assignment_id) if student and student.assignment == assignment_id else None
    if student is None or assignment is None:
        raise Http404
    keys.used(student)
    return Desk(assignment, student)


def by_token(request: HttpRequest, assignment_id: str, text: str, user_ref: str) -> Desk | None:
    """Where somebody with a token that hands in may work for a student."""
    token = ApiToken.verify(text.strip())
    assignment = find(assignment_id) if token else None
    if token is None or assignment is None or access_of(caller_of(request, token), None, assignment) is None:
        return None
    token.touch()
    return Desk(assignment, *keys.make(assignment.id, [user_ref]))


def is_user_ref(text: str) -> bool:
    return 0 < len(text) <= USER_REF_LENGTH and text.isprintable() and bool(text.strip())


def at_desk(view: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
    """Give a view the desk instead of an id, or answer with a page that says why there is none."""

    @wraps(view)
    def with_desk(request: HttpRequest, assignment_id: str, **kwargs: Any) -> HttpResponse:
        try:
            return view(request, desk_of(request, assignment_id), **kwargs)
        except Http404:
            return render(request, "classroom/student/missing.html", status=404)

    return never_cache(with_desk)
