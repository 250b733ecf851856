"""What who teaches does, over REST and on pages alike: from a body to a row, or to what is wrong with it.

Every function takes a body as `api.grading.bodies` reads it, and raises SpecError with pointers into it, or a
Problem.
"""

from django.db import transaction
from django.utils import timezone

from api.errors import Problem
from api.grading import bodies
from kernels.spec import FieldProblem, SpecError
from workers.grading import assignments, judging, lateness, regrades
from workers.grading import problems as rows
from workers.grading.assignments import Phase
from workers.grading.models import Assignment, ProblemVersion, Regrade, WebhookEndpoint

MAX_ENDPOINTS = 20
CHANGEABLE = (*bodies.DATES, "title", "feedback", "grades_published_at")  # of an assignment


def assign(owner: str, new: bodies.NewAssignment) -> Assignment:
    """Give a published problem to students."""
    problem = rows.find(new.problem, owner)
    if problem is None:
        detail = f"there is no problem {new.problem!r}; GET /api/v1/problems lists those that you may use"
        raise SpecError([FieldProblem("/problem", "not-found", detail)])
    version = problem.versions.filter(published_at__isnull=False)
    if new.version is not None:
        version = version.filter(number=new.version)
    found = version.first()
    if found is None:
        pointer = "/problem" if new.version is None else "/problem_version"
        detail = f"publish it first: POST /api/v1/problems/{problem.slug}/publish"
        raise SpecError([FieldProblem(pointer, "not-published", detail)])
    points = judging.problem_of(found).max_score
    fields = {**new.fields, "total_points": new.fields["total_points"] or points}
    if not fields["total_points"]:
        detail = "the cases of this problem have no points; say total_points"
        raise SpecError([FieldProblem("/total_points", "required", detail)])
    return assignments.create(owner, found, **fields)


def change(row: Assignment, body: object) -> None:
    """Change what of an assignment can change.

    What is asked is held against the row as it is then, not as it was read: of two changes at once each may
    be right by itself, and both together not.
    """
    with transaction.atomic():
        held = Assignment.objects.select_for_update(no_key=True).get(pk=row.pk)
        changes = bodies.assignment_change(body, {name: getattr(held, name) for name in CHANGEABLE})
        was_closed = assignments.phase(held, timezone.now()) == Phase.CLOSED
        due_date = held.due_date
        for name, value in changes.items():
            setattr(held, name, value)
        if was_closed and assignments.phase(held, timezone.now()) != Phase.CLOSED:
            raise Problem(409, "The seed of this assignment is known by now; make a new assignment instead.")
        if changes:
            held.save(update_fields=list(changes))
        if held.due_date != due_date:
            lateness.reckon_anew(held)
    row.refresh_from_db(fields=CHANGEABLE)


def version_to_regrade_by(assignment: Assignment, new: bodies.NewRegrade) -> ProblemVersion:
    """The version that a regrade names, or the assignment's."""
    if new.version is None:
        return assignment.problem_version
    published = assignment.problem_version.problem.versions.filter(published_at__isnull=False)
    version = published.filter(number=new.version).first()
    if version is None:
        detail = f"the problem has no published version {new.version}"
        raise SpecError([FieldProblem("/problem_version", "not-found", detail)])
    return version


def regrade(assignment: Assignment, new: bodies.NewRegrade, version: ProblemVersion) -> Regrade:
    """Queue it."""
    return regrades.start(assignment, version, scope=new.scope, policy=new.policy, dry_run=new.dry_run)


def register_webhook(owner: str, new: bodies.NewWebhook) -> WebhookEndpoint:
    """Tell an address of events from now on."""
    if WebhookEndpoint.objects.filter(owner=owner).count() >= MAX_ENDPOINTS:
        raise Problem(409, f"You have {MAX_ENDPOINTS} webhooks already; delete one first.")
    if new.assignment and not Assignment.objects.filter(pk=new.assignment, owner=owner).exists():
        detail = f"you have no assignment {new.assignment!r}"
        raise SpecError([FieldProblem("/assignment", "not-found", detail)])
    return WebhookEndpoint.objects.create(
        owner=owner, url=new.url, events=new.events, assignment_id=new.assignment
    )
