"""Request bodies of grading, read strictly; every mistake is named by its pointer."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from django.utils import timezone
from django.utils.dateparse import parse_datetime

from kernels.spec.problems import MALFORMED, TOO_LARGE, Problems, join, show
from kernels.spec.reader import ObjectReader
from workers.grading import outgoing, webhooks
from workers.grading.assignments import FEEDBACK_LEVELS, FEEDBACK_SITUATIONS, FULL
from workers.grading.models import USER_REF_LENGTH, RegradePolicy, RegradeScope, ScorePolicy
from workers.grading.scoring import LATE_POLICIES, NO_POLICY

MAX_TITLE = 200
MAX_POINTS = 20_000  # of an assignment: 20 cases of 1000
MAX_COUNT = 10_000
MAX_WINDOW = 366 * 86_400
MAX_BATCH = 1_000
MAX_KEYS = 1_000
DATES = ("release_date", "due_date", "late_due_date")


@dataclass(frozen=True)
class NewAssignment:
    """`fields` are the row's."""

    problem: str
    version: int | None
    fields: dict[str, Any]


def assignment(body: object) -> NewAssignment:
    """The body of POST /assignments. Raises SpecError."""
    problems = Problems()
    allowed = (
        "problem", "problem_version", "title", *DATES, "late_policy", "total_points", "submission_limit",
        "score_policy", "feedback",
    )  # fmt: skip
    reader = ObjectReader(body, "", problems, allowed)
    count, window = _limit(reader)
    fields = {
        "title": text(reader, "title", MAX_TITLE, required=False) or "",
        **{name: when(reader, name) for name in DATES},
        "late_policy": _late_policy(reader),
        "total_points": reader.number_or_null("total_points", 1e-6, MAX_POINTS),
        "limit_count": count,
        "limit_window_s": window,
        "score_policy": reader.choice("score_policy", ScorePolicy.BEST, ScorePolicy.values),
        "feedback": _feedback(reader),
    }
    _check_dates(reader, fields)
    new = NewAssignment(
        text(reader, "problem", 64) or "", reader.integer_or_null("problem_version", 1, 2**31 - 1), fields
    )
    problems.raise_if_any()
    return new


def assignment_change(body: object, now: Mapping[str, Any]) -> dict[str, Any]:
    """The body of PATCH: the fields that it changes; `now`: the dates and the feedback as they are. Raises
    SpecError."""
    problems = Problems()
    reader = ObjectReader(body, "", problems, ("title", *DATES, "feedback", "grades_published"))
    changed: dict[str, Any] = {}
    if "title" in reader.fields:
        changed["title"] = text(reader, "title", MAX_TITLE, required=False) or ""
    changed |= {name: when(reader, name) for name in DATES if name in reader.fields}
    if "feedback" in reader.fields:
        changed["feedback"] = _feedback(reader, now["feedback"])
    if "grades_published" in reader.fields:
        published = reader.boolean("grades_published", False)
        changed["grades_published_at"] = timezone.now() if published else None
    _check_dates(reader, {**now, **changed})
    problems.raise_if_any()
    return changed


def _check_dates(reader: ObjectReader, dates: Mapping[str, Any]) -> None:
    """Each not before the one before it."""
    release, due, late = (dates[name] for name in DATES)
    if late and not due:
        detail = "late_due_date goes with due_date: until when a submission is not late"
        reader.problems.add("/due_date", "needs", detail)
    for earlier, later, name in ((release, due, "due_date"), (due, late, "late_due_date")):
        if earlier and later and later < earlier:
            detail = f"{name} ({later.isoformat()}) must not be before {earlier.isoformat()}"
            reader.problems.add(f"/{name}", "out-of-range", detail)


def _limit(outer: ObjectReader) -> tuple[int | None, int | None]:
    if not outer.has("submission_limit"):
        return None, None
    reader = ObjectReader(
        outer.fields["submission_limit"], "/submission_limit", outer.problems, ("count", "window_s")
    )
    return reader.integer("count", 1, 1, MAX_COUNT), reader.integer_or_null("window_s", 1, MAX_WINDOW)


def _late_policy(outer: ObjectReader) -> dict[str, Any]:
    if not outer.has("late_policy"):
        return NO_POLICY
    reader = ObjectReader(outer.fields["late_policy"], "/late_policy", outer.problems, ("type", "fraction"))
    kind = reader.choice("type", "none", LATE_POLICIES)
    if kind == "none":
        return NO_POLICY
    return {"type": kind, "fraction": reader.number("fraction", 0.0, 0.0, 1.0)}


def _feedback(outer: ObjectReader, now: Mapping[str, str] | None = None) -> dict[str, str]:
    """By situation; one that is not named stays as it is `now`."""
    default = dict.fromkeys(FEEDBACK_SITUATIONS, FULL)
    if not outer.has("feedback"):
        return default
    default |= now or {}
    reader = ObjectReader(outer.fields["feedback"], "/feedback", outer.problems, FEEDBACK_SITUATIONS)
    return {name: reader.choice(name, level, FEEDBACK_LEVELS) for name, level in default.items()}


# --- Submissions -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Handed:
    """One submission of a body: who, what, when. `pointer` is where it is."""

    user_ref: str
    external_id: str | None
    submitted_at: datetime | None
    attempt: int | None
    answers: object
    pointer: str


def submission(body: object, pointer: str, problems: Problems, *, is_staff: bool) -> Handed:
    """One submission; what is wrong is noted. `submitted_at` is for who hands in for others."""
    allowed = ("user_ref", "external_id", "answers", "attempt", *(("submitted_at",) if is_staff else ()))
    reader = ObjectReader(body, pointer, problems, allowed)
    if isinstance(body, dict) and "answers" not in body:
        detail = 'answers is required: {"<case>": {"out": ARRAY}}'
        problems.add(reader.at("answers"), "required", detail, MALFORMED)
    at = when(reader, "submitted_at") if is_staff else None
    if at and at > timezone.now():
        problems.add(reader.at("submitted_at"), "out-of-range", "submitted_at must not be in the future")
    return Handed(
        text(reader, "user_ref", USER_REF_LENGTH) or "",
        text(reader, "external_id", USER_REF_LENGTH, required=False),
        at,
        reader.integer_or_null("attempt", 1, 2**31 - 1),
        reader.fields.get("answers"),
        reader.at("answers"),
    )


def batch(body: object) -> list[object]:
    """The submissions of a batch, still to be read. Raises SpecError."""
    problems = Problems()
    reader = ObjectReader(body, "", problems, ("submissions",))
    found = reader.fields.get("submissions")
    if isinstance(found, list) and len(found) > MAX_BATCH:
        detail = f"{len(found):,} submissions; a batch holds at most {MAX_BATCH:,}: send several"
        problems.add("/submissions", "too-large", detail, TOO_LARGE)
    elif isinstance(body, dict) and not isinstance(found, list):
        detail = f"submissions must be a list of submissions, not {show(found)}"
        problems.add("/submissions", "required" if found is None else "wrong-type", detail, MALFORMED)
    problems.raise_if_any()
    assert isinstance(found, list)  # noqa: S101 (for the type checker: anything else was raised)
    return found


# --- The rest --------------------------------------------------------------------------------


@dataclass(frozen=True)
class NewRegrade:
    scope: str
    policy: str
    dry_run: bool
    version: int | None


def regrade(body: object) -> NewRegrade:
    problems = Problems()
    reader = ObjectReader(body, "", problems, ("scope", "policy", "dry_run", "problem_version"))
    new = NewRegrade(
        reader.choice("scope", RegradeScope.ALL, RegradeScope.values),
        reader.choice("policy", RegradePolicy.REPLACE, RegradePolicy.values),
        reader.boolean("dry_run", False),
        reader.integer_or_null("problem_version", 1, 2**31 - 1),
    )
    problems.raise_if_any()
    return new


@dataclass(frozen=True)
class NewWebhook:
    url: str
    events: list[str]
    assignment: str | None


def webhook(body: object) -> NewWebhook:
    """Raises SpecError; of an address that is known not to be public, too."""
    problems = Problems()
    reader = ObjectReader(body, "", problems, ("url", "events", "assignment"))
    url = text(reader, "url", outgoing.MAX_URL)
    if url is not None:
        try:
            outgoing.addresses_of(outgoing.target_of(url))
        except outgoing.BadAddress as error:
            problems.add("/url", error.code, error.detail)
        except outgoing.Unreachable:
            pass  # it may be there when there is something to tell
    events = reader.fields.get("events")
    if events is None:
        events = list(webhooks.EVENTS)
    elif not isinstance(events, list):
        reader.wrong_type("events", "a list of names of events")
        events = []
    elif not events:
        detail = f"events must name at least one of {', '.join(webhooks.EVENTS)}"
        problems.add("/events", "out-of-range", detail)
    for index, event in enumerate(events):
        if problems.is_full:
            break
        if event not in webhooks.EVENTS:
            detail = f"{show(event)} is no event; there are {', '.join(webhooks.EVENTS)}"
            problems.add(join("/events", index), "not-a-choice", detail)
    assignment_id = text(reader, "assignment", 32, required=False)
    problems.raise_if_any()
    return NewWebhook(url or "", list(dict.fromkeys(events)), assignment_id)


@dataclass(frozen=True)
class NewToken:
    name: str
    expires_days: int | None


def token(body: object) -> NewToken:
    problems = Problems()
    reader = ObjectReader(body, "", problems, ("name", "expires_days"))
    new = NewToken(text(reader, "name", 100) or "", reader.integer_or_null("expires_days", 1, 36_500))
    problems.raise_if_any()
    return new


def user_refs(body: object) -> list[str]:
    """The students whose keys are asked for."""
    problems = Problems()
    reader = ObjectReader(body, "", problems, ("user_refs",))
    found = reader.fields.get("user_refs")
    if not isinstance(found, list):
        problems.add("/user_refs", "required", "user_refs must be a list of strings", MALFORMED)
        found = []
    elif len(found) > MAX_KEYS:
        detail = f"{len(found):,} students; at most {MAX_KEYS:,} at a time"
        problems.add("/user_refs", "too-large", detail, TOO_LARGE)
        found = []
    for index, user_ref in enumerate(found):
        check_text(problems, join("/user_refs", index), "a user_ref", user_ref, USER_REF_LENGTH)
    problems.raise_if_any()
    return found


def text(reader: ObjectReader, name: str, longest: int, *, required: bool = True) -> str | None:
    """A string of printable characters; None where it is absent, or was found wrong."""
    value = reader.fields.get(name)
    if value is None:
        if required and not _is_no_object(reader):
            reader.problems.add(reader.at(name), "required", f"{name} is required, a string", MALFORMED)
        return None
    return value if check_text(reader.problems, reader.at(name), name, value, longest) else None


def _is_no_object(reader: ObjectReader) -> bool:
    """Whether that was found, which says it all."""
    return any(
        (found.pointer, found.code) == (reader.pointer, "wrong-type") for found in reader.problems.found
    )


def check_text(problems: Problems, pointer: str, name: str, value: object, longest: int) -> bool:
    if not isinstance(value, str):
        problems.add(pointer, "wrong-type", f"{name} must be a string, not {show(value)}", MALFORMED)
    elif not 0 < len(value) <= longest or not value.isprintable() or not value.strip():
        detail = f"{name} must be 1 to {longest} printable characters, not {show(value)}"
        problems.add(pointer, "out-of-range", detail)
    else:
        return True
    return False


def when(reader: ObjectReader, name: str) -> datetime | None:
    """A moment as RFC 3339 writes it, with its offset; or null."""
    value = reader.fields.get(name)
    if value is None:
        return None
    if not isinstance(value, str):
        reader.wrong_type(name, 'a moment such as "2026-05-01T12:00:00Z", or null')
        return None
    try:
        found = parse_datetime(value)
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        detail = f'{name} must be a moment with its offset, such as "2026-05-01T12:00:00Z", not {show(value)}'
        reader.problems.add(reader.at(name), "out-of-range", detail, MALFORMED)
        return None
    try:
        return found.astimezone(UTC)
    except OverflowError:
        reader.problems.add(reader.at(name), "out-of-range", f"{name} is beyond the calendar: {show(value)}")
        return None
