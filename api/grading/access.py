"""Who may do what with an assignment.

Its owner (a token with the scope `author`) teaches: everything. A token with the scope `submit`, of the owner
or for this assignment alone, hands in for any student and reads what a student reads. A student's key
(`?key=`) does so for that student. To everybody else the assignment does not exist.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NoReturn

from django.http import Http404
from rest_framework.exceptions import NotAuthenticated
from rest_framework.request import Request
from rest_framework.response import Response

from api import idempotency, pure
from api.callers import Caller
from api.errors import Problem
from api.grading import bodies, keys
from api.grading.keys import Student
from api.models import AUTHOR, SUBMIT
from api.views import ApiView
from kernels.spec.problems import Problems
from workers import quotas
from workers.grading.models import USER_REF_LENGTH, Assignment, ProblemVersion, Submission

ANYBODY = None  # as `user_ref`
FEW_NUMBERS = 2**18  # of inputs: some 20 ms


@dataclass(frozen=True)
class Access:
    """To one assignment: as staff, or for a student (ANYBODY: each of them)."""

    assignment: Assignment
    is_staff: bool
    user_ref: str | None = ANYBODY

    def may_act_for(self, user_ref: str) -> bool:
        return self.user_ref is ANYBODY or self.user_ref == user_ref

    def require_staff(self) -> None:
        if not self.is_staff:
            raise Problem(403, "Only who teaches this may do that: it needs the owner's token.")

    def require(self, user_ref: str) -> None:
        """A student has nothing of another's."""
        if not self.may_act_for(user_ref):
            raise Problem(403, f"The key is another student's; it acts for {self.user_ref!r}.")


def access_of(caller: Caller, student: Student | None, assignment: Assignment) -> Access | None:
    """None: for this caller there is no such assignment."""
    if assignment.owner == caller.owner and AUTHOR in caller.scopes:
        return Access(assignment, is_staff=True)
    if SUBMIT in caller.scopes and (
        caller.assignment == assignment.id if caller.assignment else assignment.owner == caller.owner
    ):
        return Access(assignment, is_staff=False)
    if student and student.assignment == assignment.id:
        keys.used(student)
        return Access(assignment, is_staff=False, user_ref=student.user_ref)
    return None


def checked_user_ref(text: str) -> str:
    """A student's name from an address. Raises a Problem for one that nobody can have."""
    found = Problems()
    if not bodies.check_text(found, "", "user_ref", text, USER_REF_LENGTH):
        raise Problem(400, f"{found.found[0].detail}.")
    return text


class GradingView(ApiView):
    """What the views of grading share: how often they may be asked, and by whom."""

    quota_name = "requests"
    standing: quotas.Standing | None = None  # set once the request is counted

    def initial(self, request: Request, *args: object, **kwargs: object) -> None:
        super().initial(request, *args, **kwargs)
        if self.quota_name == "requests" or request.method != "POST":
            self.count("requests")

    def count(self, name: str, amount: int = 1) -> None:
        """Charge the caller's quota. Raises QuotaExceeded, charging nothing."""
        quota = quotas.grading(name, anonymous=self.caller.is_anonymous)
        self.standing = quotas.take(quota, self.holder, amount)

    @property
    def holder(self) -> str:
        """Whose quotas and Idempotency-Keys these are: a class shares an address, and nothing else."""
        return self.student.holder if self.caller.is_anonymous and self.student else self.caller.scope

    @cached_property
    def student(self) -> Student | None:
        """Whose key the address has."""
        return keys.read(self.key) if self.key else None

    def idempotency_key(self, fingerprint: str) -> idempotency.Key | None:
        key = super().idempotency_key(fingerprint)
        return replace(key, scope=self.holder) if key else None

    @contextmanager
    def computing(self, numbers: int) -> Iterator[None]:
        """While so many numbers are made for this request. Many take a place and the caller's time, as
        whatever else the web process computes."""
        if numbers <= FEW_NUMBERS:
            yield
            return
        quota = quotas.computing(anonymous=self.caller.is_anonymous)
        counted = quotas.enter(quota, self.caller.scope)
        began = time.thread_time()
        try:
            with pure.place():
                yield
        finally:
            if counted:
                quotas.spend(quota, self.caller.scope, time.thread_time() - began)

    def finalize_response(
        self, request: Request, response: Response, *args: object, **kwargs: object
    ) -> Response:
        response = super().finalize_response(request, response, *args, **kwargs)
        if self.standing and "RateLimit" not in response:
            quota = self.standing.quota
            policy = f'"{quota.name}";q={int(quota.limit)};w={quota.window_seconds}'
            response["RateLimit-Policy"] = policy
            response["RateLimit"] = f'"{quota.name}";r={self.standing.remaining};t={self.standing.seconds}'
        return response

    def checked_key(self, fingerprint: str) -> idempotency.Key | None:
        """The request's Idempotency-Key. A Problem, before anything else is said of the body, when it came
        before with another one."""
        key = self.idempotency_key(fingerprint)
        if key:
            idempotency.find(key)
        return key

    @property
    def key(self) -> str:
        return str(self.request.query_params.get("key", ""))

    def may_see(self, assignment: Assignment) -> Access:
        """Raises Http404, or asks for credentials where there are none at all."""
        access = access_of(self.caller, self.student, assignment)
        if access is None:
            self._turn_away()
        return access

    def find_assignment(self, assignment_id: str) -> Access:
        rows = Assignment.objects.select_related("problem_version__problem").defer(ProblemVersion.BODY_OF)
        assignment = rows.filter(pk=assignment_id).first()
        if assignment is None:
            self._turn_away()
        return self.may_see(assignment)

    def find_submission(self, submission_id: str) -> tuple[Submission, Access]:
        rows = Submission.objects.select_related("assignment__problem_version", "problem_version").defer(
            ProblemVersion.BODY_OF, f"assignment__{ProblemVersion.BODY_OF}"
        )
        submission = rows.filter(pk=submission_id).first()
        if submission is None:
            self._turn_away()
        access = self.may_see(submission.assignment)
        if not access.may_act_for(submission.user_ref):
            raise Http404
        return submission, access

    def _turn_away(self) -> NoReturn:
        """The same answer whether or not there is such a thing."""
        if self.caller.is_anonymous and not self.key:
            raise NotAuthenticated("This needs a token, or a student's key (`?key=`).")
        raise Http404
