"""The pages of students."""

from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from api import preferences
from api.callers import caller_of
from api.grading import feedback
from api.runs.submission import submit_body
from classroom import statements, words
from classroom.students import inputs, opening, verdicts
from classroom.students.access import Desk, at_desk, by_token, is_user_ref
from classroom.students.handing import HandInForm
from kernels.spec import SpecError
from lab.bodies import bounded
from workers import limits, quotas, runs
from workers.grading import answers, assignments, judging, scoring, submissions
from workers.grading.assignments import Phase
from workers.grading.models import COURSE, ProblemVersion, State, Submission
from workers.models import ID_ALPHABET

WAIT_SECONDS = 10
SHOWN = 50  # submissions, of a history


# --- The door --------------------------------------------------------------------------------


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def entrance(request: HttpRequest, assignment_id: str) -> HttpResponse:
    """For who has a token that hands in: say for whom. Tells nobody which assignments there are."""
    user_ref = request.POST.get("user_ref", "").strip()
    context = {"user_ref": user_ref, "assignment_id": assignment_id}
    if request.method != "POST":
        return render(request, "classroom/student/entrance.html", context)
    try:
        quotas.take(quotas.grading("requests", anonymous=True), caller_of(request).scope)
    except quotas.QuotaExceeded as error:
        return _later(
            render(request, "classroom/student/entrance.html", {**context, "error": error.detail}), error
        )
    if not is_user_ref(user_ref):
        context["wrong_user_ref"] = _("Your name in this course has 1 to 128 printable characters.")
    elif desk := by_token(request, assignment_id, request.POST.get("token", ""), user_ref):
        return redirect(desk.address())
    else:
        context["wrong_token"] = _(
            "This token does not open this assignment: it may be mistyped, expired or revoked."
        )
    return render(request, "classroom/student/entrance.html", context, status=422)


def _later(response: HttpResponse, error: Any) -> HttpResponse:
    response.status_code = 429
    response["Retry-After"] = str(error.retry_after)
    return response


# --- The desk --------------------------------------------------------------------------------


@bounded
@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def hand_in(request: HttpRequest, assignment_id: str) -> HttpResponse:
    """The statement, the inputs and the form; POST hands in."""
    if "key" not in request.GET:
        return entrance(request, assignment_id)
    return _hand_in(request, assignment_id)


@at_desk
def _hand_in(request: HttpRequest, desk: Desk) -> HttpResponse:
    arrived = timezone.now()
    problem = judging.problem_of(desk.assignment.problem_version)
    if request.method != "POST":
        return _desk_page(request, desk, HandInForm(problem))
    form = HandInForm(problem, request)
    entered, status, retry_after = _enter(request, desk, form, arrived)
    if entered is not None:
        return redirect(desk.address("submission", submission_id=entered.id))
    response = _desk_page(request, desk, form, status=status)
    if retry_after:
        response["Retry-After"] = str(retry_after)
    return response


def _enter(
    request: HttpRequest, desk: Desk, form: HandInForm, arrived: datetime
) -> tuple[Submission | None, int, int | None]:
    """The submission that the form made; without one, a status that says why, and when to try again."""
    read = form.read()
    if read is None:
        return None, 422, None
    content = answers.pack(read)
    number = request.POST.get("attempt", "")
    draft = submissions.Draft(
        desk.user_ref,
        content,
        answers.fingerprint(desk.user_ref, content),
        submitted_at=arrived,
        number=int(number) if number.isascii() and number.isdigit() and len(number) < 9 else None,
    )
    try:
        quotas.take(quotas.grading("submissions", anonymous=True), desk.holder)
        (entered,) = submissions.record(desk.assignment.id, [draft])
    except quotas.QuotaExceeded as error:
        form.add_error(None, error.detail)
        return None, 429, error.retry_after
    except runs.QueueFull as error:
        form.add_error(
            None, _("Too many submissions are waiting. Nothing is lost: send this form again soon.")
        )
        return None, 503, error.retry_after
    if isinstance(entered, Submission):
        return entered, 302, None
    form.add_error(None, refusal(entered))
    if isinstance(entered, submissions.OverLimit):
        return None, 429, entered.retry_after
    return None, 409, None


def refusal(entered: submissions.Refusal) -> str:
    if isinstance(entered, submissions.StaleInputs):
        return _("These are answers to earlier inputs: you have handed in since. Below are the new ones.")
    return str(entered)


def _desk_page(request: HttpRequest, desk: Desk, form: HandInForm, *, status: int = 200) -> HttpResponse:
    context = {"desk": desk, "form": form, **desk_context(desk)}
    return render(request, "classroom/student/desk.html", context, status=status)


def desk_context(desk: Desk) -> dict[str, Any]:
    now, assignment = timezone.now(), desk.assignment
    version = assignment.problem_version
    problem, phase = judging.problem_of(version), assignments.phase(assignment, now)
    tries = assignments.tries(assignment, desk.user_ref, now)
    number = assignments.next_number(assignment, desk.user_ref)
    is_out = phase != Phase.UNRELEASED
    deduction = scoring.deduction(assignment, now)
    return {
        "assignment": assignment,
        "title": assignment.title or problem.title,
        "problem_title": problem.title if assignment.title else "",
        "phase": phase.name.lower(),
        "is_late_now": bool(assignment.due_date and now > assignment.due_date and phase == Phase.OPEN),
        "deduction_now": round(100 * deduction),
        "tries": tries,
        "number": number,
        "total": words.points(assignment.total_points),
        "may_hand_in": phase == Phase.OPEN and tries.left != 0,
        "statement": statements.to_html(problem.statement) if is_out else "",
        "hints": [statements.to_html(hint) for hint in problem.hints] if is_out else [],
        "solution": statements.to_html(problem.solution)
        if problem.solution and phase == Phase.CLOSED and version.problem.owner == COURSE
        else "",
        "cases": inputs.cases_of(desk, problem, number) if is_out else [],
        "dtype": problem.dtype if problem.kind == "attention" else "",
        "history": history(desk),
        "downloads": [(form, desk.download(form)) for form in ("npz", "safetensors", "json")],
        "pull": seed_page(desk),
    }


def seed_page(desk: Desk) -> dict[str, Any]:
    return {
        "commitment": desk.assignment.seed_commitment_sha256,
        "seed": assignments.revealed_seed(desk.assignment),
    }


def history(desk: Desk) -> list[dict[str, Any]]:
    """The student's submissions, the latest first."""
    mine = desk.assignment.submissions.filter(user_ref=desk.user_ref)
    rows = list(mine.select_related("problem_version").defer(ProblemVersion.BODY_OF)[:SHOWN])
    documents = feedback.represent_all(desk.assignment, rows, as_staff=False)
    return [
        {**verdicts.summary(row, document), "address": desk.address("submission", submission_id=row.id)}
        for row, document in zip(rows, documents, strict=True)
    ]


# --- A submission ----------------------------------------------------------------------------


def of_submission(view: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
    """Give a view the student's own submission."""

    def with_submission(request: HttpRequest, desk: Desk, submission_id: str, **kwargs: Any) -> HttpResponse:
        rows = desk.assignment.submissions.select_related("problem_version")
        known = set(submission_id) <= set(ID_ALPHABET)
        found = rows.filter(pk=submission_id, user_ref=desk.user_ref).first() if known else None
        if found is None:
            raise Http404
        found.assignment = desk.assignment
        return view(request, desk, found, **kwargs)

    return at_desk(with_submission)


@require_safe
@of_submission
def submission(request: HttpRequest, desk: Desk, row: Submission) -> HttpResponse:
    return render(request, "classroom/student/submission.html", _submission_context(desk, row))


@require_safe
@of_submission
def live(request: HttpRequest, desk: Desk, row: Submission) -> HttpResponse:
    """The changing part of the page, once it has changed (or after a while, unchanged)."""
    seen = request.GET.get("seen", row.status)
    waited = row.status != seen or preferences.wait_for(row, WAIT_SECONDS, for_any_change=True)
    context = {**_submission_context(desk, row), "is_new": row.status != seen, "pause": not waited}
    return render(request, "classroom/student/live.html", context)


@require_POST
@of_submission
def take_back(request: HttpRequest, desk: Desk, row: Submission) -> HttpResponse:
    with suppress(runs.AlreadyFinished):  # its page says so
        submissions.cancel(row.id)
    return redirect(desk.address("submission", submission_id=row.id))


@require_POST
@of_submission
def open_in_lab(request: HttpRequest, desk: Desk, row: Submission) -> HttpResponse:
    """Run a case that failed in the lab, and go there with its worst row lit."""
    problem = judging.problem_of(row.problem_version)
    shown = verdicts.page(row, problem)
    body, place = opening.of_test(shown["tests"], request.POST.get("case", ""), problem, row)
    return to_lab(request, body, place)


def to_lab(request: HttpRequest, body: dict[str, Any], place: str) -> HttpResponse:
    """Submit a run, and go to its page."""
    try:
        run = submit_body(body, caller=caller_of(request)).run
    except (SpecError, limits.Refused) as error:
        return _no_run(request, str(error))
    except quotas.QuotaExceeded as error:
        return _later(_no_run(request, error.detail), error)
    except runs.QueueFull as error:
        return _later(_no_run(request, _("Too many runs are waiting.")), error)
    address = reverse("lab:run", kwargs={"run_id": run.id})
    return redirect(f"{address}?{place}" if place else address)


def _no_run(request: HttpRequest, reason: str) -> HttpResponse:
    return render(request, "classroom/student/no_run.html", {"reason": reason}, status=422)


def _submission_context(desk: Desk, row: Submission) -> dict[str, Any]:
    problem = judging.problem_of(row.problem_version)
    tries = assignments.tries(desk.assignment, desk.user_ref, timezone.now())
    return {
        "desk": desk,
        "assignment": desk.assignment,
        "title": desk.assignment.title or problem.title,
        "submission": row,
        "shown": verdicts.page(row, problem),
        "tries": tries,
        "is_open": assignments.phase(desk.assignment, timezone.now()) == Phase.OPEN,
        "may_take_back": row.status in (State.QUEUED, State.GRADING),
        "links": {
            "desk": desk.address(),
            "live": f"{desk.address('submission-live', submission_id=row.id)}&seen={row.status}",
            "take_back": desk.address("submission-take-back", submission_id=row.id),
            "lab": desk.address("submission-lab", submission_id=row.id),
        },
        "announcement": words.state(row.status, row.verdict),
    }
