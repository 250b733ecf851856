"""Judging again: dry first, with what would change for whom."""

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_safe

from api import preferences
from api.grading import authoring, bodies
from classroom import words
from classroom.teaching.forms import RegradeForm
from classroom.teaching.mine import as_id, assignment_view
from classroom.teaching.views import head, student_address
from kernels.spec import SpecError
from workers.grading.models import Assignment, ProblemVersion, Regrade

WAIT_SECONDS = 10
SHOWN = 50


@assignment_view
@require_http_methods(["GET", "HEAD", "POST"])
def regrades(request: HttpRequest, row: Assignment) -> HttpResponse:
    """The form and what was done before; POST with `try` is dry, with `carry_out` it is not."""
    form = RegradeForm(row, request.POST if request.method == "POST" else None)
    if request.method == "POST" and form.is_valid():
        try:
            new = bodies.regrade(form.body(dry_run="carry_out" not in request.POST))
            made = authoring.regrade(row, new, authoring.version_to_regrade_by(row, new))
            return redirect("classroom:regrade", assignment_id=row.id, regrade_id=made.id)
        except SpecError as error:
            form.place(error.problems)
    done = row.regrades.select_related("problem_version").defer("result", ProblemVersion.BODY_OF)
    context = {**head(row), "form": form, "regrades": done[:SHOWN]}
    return render(request, "classroom/teaching/regrades.html", context, status=422 if form.errors else 200)


@require_safe
@assignment_view
def regrade(request: HttpRequest, row: Assignment, regrade_id: str) -> HttpResponse:
    return render(request, "classroom/teaching/regrade.html", _context(row, _find(row, regrade_id)))


@require_safe
@assignment_view
def live(request: HttpRequest, row: Assignment, regrade_id: str) -> HttpResponse:
    found = _find(row, regrade_id)
    waited = preferences.wait_for(found, WAIT_SECONDS, for_any_change=True)
    context = {**_context(row, found), "pause": not waited, "is_live": True}
    return render(request, "classroom/teaching/regrade_result.html", context)


def _find(row: Assignment, regrade_id: str) -> Regrade:
    return get_object_or_404(row.regrades.select_related("problem_version"), pk=as_id(regrade_id))


def _context(row: Assignment, found: Regrade) -> dict[str, Any]:
    result = found.result or {}
    where = {"assignment_id": row.id, "regrade_id": found.id}
    return {
        **head(row),
        "regrade": found,
        "judged": result.get("judged", 0),
        "changed": result.get("changed", 0),
        "differences": [_difference(row, each) for each in result.get("differences", [])],
        "live": reverse("classroom:regrade-live", kwargs=where),
    }


def _difference(row: Assignment, each: dict[str, Any]) -> dict[str, Any]:
    """What changes for one student."""
    before, after = each["before"], each["after"]
    return {
        "user_ref": each["user_ref"],
        "address": student_address(row, each["user_ref"]),
        "before": words.points(before),
        "after": words.points(after),
        "direction": "up" if (after or 0) > (before or 0) else "down" if (after or 0) < (before or 0) else "",
        "submissions": [
            {
                "id": one["id"],
                **{when: _outcome(one[when]) for when in ("before", "after")},
            }
            for one in each["submissions"]
        ],
    }


def _outcome(found: dict[str, Any]) -> str:
    return f"{words.state('graded', found['verdict'])}, {words.points(found['score'])}"
