"""Problems and their versions: written once, checked for what they let pass, published."""

import hashlib
import json
from collections.abc import Callable, Sequence
from typing import Any

from django.db import transaction
from django.db.models import Exists, OuterRef, Q, QuerySet, Subquery
from django.utils import timezone

from kernels.grading.model import Problem as Asked
from kernels.grading.mutants import matrix as compute
from workers.grading import judging, sending, work
from workers.grading.models import COURSE, Check, Problem, ProblemVersion, WorkStatus


class Survivors(Exception):
    """The problem cannot be published: its cases let wrong answers pass, or fail right ones."""

    def __init__(self, matrix: dict[str, Any]) -> None:
        self.matrix = matrix
        super().__init__(" ".join(matrix["problems"]))


def save(owner: str, problem: Asked) -> tuple[ProblemVersion, bool]:
    """The version with this content, and whether it is new."""
    body = problem.to_dict()
    digest = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
    with transaction.atomic():
        row, _ = Problem.objects.get_or_create(owner=owner, slug=problem.slug)
        row = Problem.objects.select_for_update().get(pk=row.pk)
        latest = row.versions.first()
        if latest and latest.fingerprint == digest:
            return latest, False
        number = latest.number + 1 if latest else 1
        return row.versions.create(number=number, body=body, fingerprint=digest), True


def visible_to(owner: str) -> "QuerySet[Problem]":
    """Published problems, and those of `owner` ("": of nobody)."""
    published = Exists(ProblemVersion.objects.filter(problem=OuterRef("pk"), published_at__isnull=False))
    return Problem.objects.filter(Q(published) | Q(owner=owner) if owner else Q(published))


def versions_visible_to(owner: str) -> "QuerySet[ProblemVersion]":
    """Drafts are their author's alone."""
    published = Q(published_at__isnull=False)
    return ProblemVersion.objects.filter(published | Q(problem__owner=owner) if owner else published)


def latest_of(problems: Sequence[Problem], owner: str) -> list[ProblemVersion]:
    """The latest version of each that `owner` may see, in their order."""
    visible = versions_visible_to(owner).filter(problem=OuterRef("pk")).order_by("-number")
    with_latest = Problem.objects.filter(pk__in=[problem.pk for problem in problems]).annotate(
        latest=Subquery(visible.values("pk")[:1])
    )
    latest = dict(with_latest.values_list("pk", "latest"))
    versions = ProblemVersion.objects.select_related("problem").in_bulk(
        [pk for pk in latest.values() if pk is not None]
    )
    return [versions[pk] for problem in problems if (pk := latest.get(problem.pk)) is not None]


def find(name: str, owner: str) -> Problem | None:
    """The problem of that slug (or id) that `owner` means: their own, else the product's, else whose it was
    first."""
    found = list(visible_to(owner).filter(Q(slug=name) | Q(pk=name)))
    own = {owner: 0, COURSE: 1}
    found.sort(key=lambda problem: (own.get(problem.owner, 2), problem.created_at, problem.id))
    return found[0] if found else None


def version_of(problem: Problem, owner: str, number: int | None = None) -> ProblemVersion | None:
    """The version of that number, or the latest, of those that `owner` may see."""
    versions = versions_visible_to(owner).filter(problem=problem).select_related("problem")
    return (versions.filter(number=number) if number is not None else versions).first()


def check_of(version: ProblemVersion) -> Check:
    """The mutant matrix of a version: there, or on its way. What ended in an error is tried again."""
    row, new = Check.objects.get_or_create(version=version)
    if new:
        transaction.on_commit(lambda: sending.send_work(row), robust=True)
    elif row.status == WorkStatus.ERROR:
        work.again(row)
    return row


def compute_matrix(check: Check, no_more_interruptions: Callable[[], None]) -> None:
    """What a grader does of a Check."""
    matrix = compute(judging.problem_of(check.version)).to_dict()
    no_more_interruptions()
    if work.finish(check, matrix):
        work.announce(check)


def matrix_of(version: ProblemVersion) -> dict[str, Any] | None:
    """The matrix, if it has been computed."""
    return (
        Check.objects.filter(version=version, status=WorkStatus.DONE).values_list("result", flat=True).first()
    )


def keep_matrix(version: ProblemVersion, matrix: dict[str, Any]) -> None:
    """Store a matrix that was computed without a grader."""
    done = {"status": WorkStatus.DONE, "result": matrix, "finished_at": timezone.now(), "error": None}
    Check.objects.update_or_create(version=version, defaults=done)


def publish(version: ProblemVersion, matrix: dict[str, Any]) -> None:
    """Let everybody see it. Raises Survivors."""
    if not matrix["publishable"]:
        raise Survivors(matrix)
    ProblemVersion.objects.filter(pk=version.pk, published_at__isnull=True).update(
        published_at=timezone.now(), least_dtype=matrix.get("least_dtype") or ""
    )
    version.refresh_from_db(fields=["published_at", "least_dtype"])
