"""What a teacher sees: everything of theirs at a glance, an assignment, a student in it, a submission."""

from typing import Any
from urllib.parse import urlencode

from django.db.models import Count, Prefetch, QuerySet
from django.db.models.fields.json import KT, KeyTextTransform
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods, require_POST, require_safe
from rest_framework.renderers import JSONRenderer

from api.errors import Problem
from api.grading import authoring, bodies, feedback, keys, reports
from api.grading.grades import COLUMNS, grade_rows
from classroom import people, words
from classroom.checks import library
from classroom.students import opening, verdicts
from classroom.students.access import Desk, is_user_ref
from classroom.students.views import to_lab
from classroom.teaching import figures, standing
from classroom.teaching.forms import AssignmentForm, ChangeForm
from classroom.teaching.mine import as_id, assignment_view
from kernels.spec import SpecError
from workers.grading import assignments, judging
from workers.grading.models import (
    COURSE,
    Assignment,
    Check,
    Incident,
    ProblemVersion,
    Submission,
    WorkStatus,
)

SHOWN_STUDENTS = 1_000
SHOWN_INCIDENTS = 20
SORTS = ("user_ref", "score", "submitted_at", "submissions")


# --- Everything ------------------------------------------------------------------------------


@require_safe
@people.signed_in
def home(request: HttpRequest) -> HttpResponse:
    owner = people.owner(request)
    given = Assignment.objects.filter(owner=owner).annotate(
        students=Count("submissions__user_ref", distinct=True),
        handed_in=Count("submissions"),
        problem_title=KeyTextTransform("title", "problem_version__body"),
    )
    course = problem_rows(ProblemVersion.objects.filter(problem__owner=COURSE, published_at__isnull=False))
    context = {
        "assignments": [assignment_row(row) for row in given],
        "problems": problem_rows(ProblemVersion.objects.filter(problem__owner=owner)),
        "course": sorted(course, key=lambda row: library.place(row["slug"])),
    }
    return render(request, "classroom/teaching/home.html", context)


def assignment_row(row: Any) -> dict[str, Any]:
    phase = assignments.phase(row, timezone.now()).name.lower()
    return {
        "row": row,
        "title": row.title or row.problem_title,
        "phase": phase,
        "phase_words": words.PHASES[phase],
        "students": row.students,
        "handed_in": row.handed_in,
    }


def problem_rows(versions: "QuerySet[ProblemVersion]") -> list[dict[str, Any]]:
    """The latest version of each problem, as far as a list shows it: a body may hold a million numbers."""
    found = versions.select_related("problem").defer("body").annotate(title=KT("body__title"))
    latest: dict[str, Any] = {}
    for version in found.order_by("problem__slug", "-number"):
        latest.setdefault(version.problem_id, version)
    done = Check.objects.filter(version__in=latest.values(), status=WorkStatus.DONE)
    killed = KT("result__killed"), KT("result__total")
    matrices = {pk: pair for pk, *pair in done.values_list("version_id", *killed)}
    return [
        {
            "slug": version.problem.slug,
            "title": version.title,
            "number": version.number,
            "is_published": version.published_at is not None,
            "mutants": matrices.get(version.pk),
            "id": version.problem_id,
        }
        for version in latest.values()
    ]


# --- To give a problem to students -----------------------------------------------------------


@people.signed_in
@require_http_methods(["GET", "HEAD", "POST"])
def assign(request: HttpRequest) -> HttpResponse:
    owner = people.owner(request)
    choices = assignable(owner)
    if request.method != "POST":
        form = AssignmentForm(choices, initial={"problem": request.GET.get("problem", "")})
        return render(request, "classroom/teaching/assign.html", {"form": form})
    form = AssignmentForm(choices, request.POST)
    if form.is_valid():
        try:
            made = authoring.assign(owner, bodies.assignment(form.body()))
            return redirect("classroom:assignment", assignment_id=made.id)
        except SpecError as error:
            form.place(error.problems)
    return render(request, "classroom/teaching/assign.html", {"form": form}, status=422)


def assignable(owner: str) -> list[Any]:
    """The published problems that one may give, by whose they are."""
    published = ProblemVersion.objects.filter(published_at__isnull=False, problem__owner__in=(owner, COURSE))
    rows = published.order_by("problem__slug", "-number")
    found: dict[str, dict[str, str]] = {owner: {}, COURSE: {}}
    for whose, problem_id, title in rows.values_list("problem__owner", "problem_id", KT("body__title")):
        found[whose].setdefault(problem_id, title)
    groups = ((_("Yours"), found[owner]), (_("The course"), found[COURSE]))
    return [(name, list(titles.items())) for name, titles in groups if titles]


@assignment_view
@require_http_methods(["GET", "HEAD", "POST"])
def settings(request: HttpRequest, row: Assignment) -> HttpResponse:
    form = ChangeForm(request.POST) if request.method == "POST" else ChangeForm.of(row)
    if request.method == "POST" and form.is_valid():
        try:
            authoring.change(row, form.body())
            return redirect("classroom:assignment", assignment_id=row.id)
        except SpecError as error:
            form.place(error.problems)
        except Problem as error:
            form.add_error(None, error.detail)
        row.refresh_from_db()
    context = {"form": form, **head(row)}
    status = 422 if form.errors else 200
    return render(request, "classroom/teaching/settings.html", context, status=status)


@assignment_view
@require_POST
def publish_grades(request: HttpRequest, row: Assignment) -> HttpResponse:
    """Show, or hide again, what is hidden until grades are published."""
    authoring.change(row, {"grades_published": request.POST.get("published") == "yes"})
    return redirect("classroom:assignment-settings", assignment_id=row.id)


# --- An assignment ---------------------------------------------------------------------------


def head(row: Assignment) -> dict[str, Any]:
    """What every page of an assignment begins with."""
    now = timezone.now()
    phase = assignments.phase(row, now).name.lower()
    version = row.problem_version
    return {
        "assignment": row,
        "title": row.title or judging.problem_of(version).title,
        "version": version,
        "problem": version.problem,
        "phase": phase,
        "phase_words": words.PHASES[phase],
        "total": words.points(row.total_points),
    }


@require_safe
@assignment_view
def dashboard(request: HttpRequest, row: Assignment) -> HttpResponse:
    grades = grade_rows(row)
    counts = standing.counts(row, grades)
    bins = standing.distribution(grades, row.total_points)
    parts = standing.progress(grades)
    context = {
        **head(row),
        "counts": counts,
        "bins": bins,
        "histogram": figures.histogram(bins, _("How the scores spread; a table follows.")),
        "parts": parts,
        "shares": figures.shares(parts, _("How far the students are; a table follows.")),
        "mistakes": standing.mistakes(row),
        "incidents": incidents(row),
        **students(request, row, grades),
        "seed": assignments.revealed_seed(row),
    }
    return render(request, "classroom/teaching/dashboard.html", context)


def students(request: HttpRequest, row: Assignment, grades: list[dict[str, Any]]) -> dict[str, Any]:
    """The table of students: found by a part of their name, sorted as asked."""
    wanted, sort = request.GET.get("find", "").strip(), request.GET.get("sort", "")
    sort = sort if sort in SORTS else SORTS[0]
    found = [grade for grade in grades if wanted.casefold() in grade["user_ref"].casefold()]
    if sort == "score":
        found.sort(key=lambda grade: -1.0 if grade["score"] is None else grade["score"], reverse=True)
    elif sort != "user_ref":
        found.sort(key=lambda grade: grade[sort], reverse=True)
    return {
        "find": wanted,
        "sorts": [
            {"name": name, "href": "?" + urlencode({"find": wanted, "sort": name}), "current": name == sort}
            for name in SORTS
        ],
        "found": len(found),
        "grades": [
            {
                **grade,
                "points": words.points(grade["score"]),
                "words": words.state(grade["status"], grade["verdict"]),
                "look": words.look(grade["status"], grade["verdict"]),
                "address": student_address(row, grade["user_ref"]),
            }
            for grade in found[:SHOWN_STUDENTS]
        ],
    }


def student_address(row: Assignment, user_ref: str) -> str:
    address = reverse("classroom:assignment-student", kwargs={"assignment_id": row.id})
    return f"{address}?{urlencode({'user_ref': user_ref})}"


def incidents(row: Assignment) -> list[Incident]:
    """What failed on our side, with this assignment's submissions that it touched."""
    touching = Incident.submissions.through.objects.filter(submission__assignment=row)
    mine = Submission.objects.filter(assignment=row).only("user_ref", "status", "number", "assignment_id")
    found = Incident.objects.filter(pk__in=touching.values("incident"))
    return list(found.prefetch_related(Prefetch("submissions", mine))[:SHOWN_INCIDENTS])


@require_safe
@assignment_view
def grades_file(request: HttpRequest, row: Assignment, form: str) -> HttpResponse:
    """What GET …/grades gives."""
    found = grade_rows(row)
    name = f"{row.id}-grades-{timezone.now():%Y-%m-%d}.{form}"
    headers: dict[str, Any] = {"Content-Disposition": f'attachment; filename="{name}"'}
    if form == "csv":
        text = reports.to_csv(COLUMNS, found)
        return HttpResponse(text, content_type="text/csv; charset=utf-8", headers=headers)
    document = {"assignment": row.id, "score_policy": row.score_policy, "results": found}
    return HttpResponse(JSONRenderer().render(document), content_type="application/json", headers=headers)


@require_safe
@assignment_view
def student(request: HttpRequest, row: Assignment) -> HttpResponse:
    """All that one student handed in."""
    user_ref = request.GET.get("user_ref", "")
    if not is_user_ref(user_ref):
        raise Http404
    theirs = row.submissions.filter(user_ref=user_ref)
    history = list(theirs.select_related("problem_version").defer(ProblemVersion.BODY_OF))
    found = []
    for each, document in zip(history, feedback.represent_all(row, history, as_staff=True), strict=True):
        codes = standing.best_codes((each.result or {}).get("hypotheses") or [])
        found.append(
            {
                **verdicts.summary(each, document),
                "mistakes": [words.mistake(code) for code in sorted(codes)],
                "external_id": each.external_id,
                "regraded": len(each.earlier),
            }
        )
    context = {
        **head(row),
        "user_ref": user_ref,
        "history": found,
        "desk": request.build_absolute_uri(Desk(row, *keys.of(row.id, [user_ref])).address()),
        "tries": assignments.tries(row, user_ref, timezone.now()),
    }
    return render(request, "classroom/teaching/student.html", context)


def find_submission(row: Assignment, submission_id: str) -> Submission:
    found = get_object_or_404(row.submissions.select_related("problem_version"), pk=as_id(submission_id))
    found.assignment = row
    return found


@require_safe
@assignment_view
def submission(request: HttpRequest, row: Assignment, submission_id: str) -> HttpResponse:
    found = find_submission(row, submission_id)
    problem = judging.problem_of(found.problem_version)
    context = {
        **head(row),
        "submission": found,
        "shown": verdicts.page(found, problem, as_staff=True),
        "student_address": student_address(row, found.user_ref),
        "incidents": found.incidents.all(),
        "links": {
            "lab": reverse(
                "classroom:assignment-lab", kwargs={"assignment_id": row.id, "submission_id": found.id}
            )
        },
    }
    return render(request, "classroom/teaching/submission.html", context)


@require_POST
@assignment_view
def open_in_lab(request: HttpRequest, row: Assignment, submission_id: str) -> HttpResponse:
    """A case that failed, hidden or not, on the student's inputs."""
    found = find_submission(row, submission_id)
    problem = judging.problem_of(found.problem_version)
    shown = verdicts.page(found, problem, as_staff=True)
    body, place = opening.of_test(shown["tests"], request.POST.get("case", ""), problem, found)
    return to_lab(request, body, place)
