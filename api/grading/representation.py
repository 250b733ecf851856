"""The rows of grading as the JSON documents of the contract (submissions: see `feedback`)."""

import json
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from django.http import HttpRequest
from django.urls import reverse
from django.utils import timezone

from workers.grading import assignments
from workers.grading import problems as rows
from workers.grading.models import (
    COURSE,
    Assignment,
    Check,
    Delivery,
    Incident,
    ProblemVersion,
    Regrade,
    StudentKey,
    WebhookEndpoint,
    WorkStatus,
)


def problems(versions: Sequence[ProblemVersion], owner: str, *, full: bool) -> list[dict[str, Any]]:
    """Each with its problem; `owner` is who asks ("": nobody). In lists (not `full`) explicit inputs are left
    out: they may be a million numbers each."""
    visible = rows.versions_visible_to(owner).filter(problem__in={version.problem_id for version in versions})
    numbers = defaultdict(list)
    for problem_id, number in visible.order_by("-number").values_list("problem_id", "number"):
        numbers[problem_id].append(number)
    done = Check.objects.filter(version__in=versions, status=WorkStatus.DONE)
    matrices = dict(done.values_list("version_id", "result"))
    return [
        _problem(version, owner, numbers[version.problem_id], matrices.get(version.pk), full)
        for version in versions
    ]


def _problem(
    version: ProblemVersion,
    owner: str,
    numbers: Sequence[int],
    matrix: dict[str, Any] | None,
    full: bool,
) -> dict[str, Any]:
    """The solution is for who wrote it, and of the course for everybody."""
    row = version.problem
    is_mine = bool(owner) and row.owner == owner
    body = dict(version.body)
    if not is_mine and row.owner != COURSE:
        body["solution"] = ""
    if not full:
        body["cases"] = [
            {name: value for name, value in case.items() if name != "inputs"} for case in body["cases"]
        ]
    return {
        "id": row.id,
        **body,
        "version": version.number,
        "versions": list(numbers),
        "is_mine": is_mine,
        "created_at": version.created_at,
        "published_at": version.published_at,
        "mutants": matrix,
    }


def assignment(row: Assignment) -> dict[str, Any]:
    version = row.problem_version
    limit = {"count": row.limit_count, "window_s": row.limit_window_s} if row.limit_count else None
    return {
        "id": row.id,
        "problem": version.problem.slug,
        "problem_version": version.number,
        "title": row.title,
        "release_date": row.release_date,
        "due_date": row.due_date,
        "late_due_date": row.late_due_date,
        "late_policy": row.late_policy,
        "total_points": row.total_points,
        "submission_limit": limit,
        "score_policy": row.score_policy,
        "feedback": row.feedback,
        "phase": assignments.phase(row, timezone.now()).value,
        "created_at": row.created_at,
        "grades_published_at": row.grades_published_at,
        "seed_commitment_sha256": row.seed_commitment_sha256,
        "seed": assignments.revealed_seed(row),
    }


def regrade(row: Regrade) -> dict[str, Any]:
    result = row.result or {}
    return {
        "id": row.id,
        "assignment": row.assignment_id,
        "status": row.status,
        "scope": row.scope,
        "policy": row.policy,
        "dry_run": row.dry_run,
        "problem_version": row.problem_version.number,
        "created_at": row.created_at,
        "finished_at": row.finished_at,
        "judged": result.get("judged"),
        "changed": result.get("changed"),
        "differences": result.get("differences", []),
        "error": row.error,
    }


def student_key(row: StudentKey) -> dict[str, Any]:
    return {"user_ref": row.user_ref, "created_at": row.created_at, "last_used_at": row.last_used_at}


def incident(row: Incident) -> dict[str, Any]:
    """With the submissions that were fetched with it: others may be somebody else's."""
    return {
        "id": row.id,
        "kind": row.kind,
        "detail": row.detail,
        "created_at": row.created_at,
        "submissions": [
            {"id": each.id, "user_ref": each.user_ref, "status": each.status}
            for each in row.submissions.all()
        ],
    }


def webhook(row: WebhookEndpoint) -> dict[str, Any]:
    return {
        "id": row.id,
        "url": row.url,
        "events": row.events,
        "assignment": row.assignment_id,
        "created_at": row.created_at,
        "disabled_at": row.disabled_at,
    }


def delivery(row: Delivery) -> dict[str, Any]:
    return {
        "id": row.id,
        "event": row.event,
        "status": row.status,
        "created_at": row.created_at,
        "next_try_at": row.next_try_at,
        "payload": json.loads(row.payload),
        "tries": row.log,
    }


def address(request: HttpRequest, route: str, **kwargs: str) -> str:
    return request.build_absolute_uri(reverse(f"api:{route}", kwargs=kwargs))
