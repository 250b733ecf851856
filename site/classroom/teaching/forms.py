"""Forms of an assignment: text fields in, the body of REST out, problems back to their fields.

They judge nothing: `api.grading.bodies` does, and names each mistake by a pointer. Times are typed in UTC.
"""

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from django import forms
from django.http import QueryDict
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as lazy

from classroom.bodyform import BodyForm, number
from lab.form.texts import literal
from workers.grading.assignments import FEEDBACK_SITUATIONS, FULL, NOTHING, SCORES, VERDICT
from workers.grading.models import Assignment, RegradePolicy, RegradeScope, ScorePolicy

DATES = ("release_date", "due_date", "late_due_date")
LEVELS = (
    (FULL, lazy("everything: scores, figures, what went wrong")),
    (SCORES, lazy("the score of each case, no details")),
    (VERDICT, lazy("the verdict and the score alone")),
    (NOTHING, lazy("nothing yet")),
)
WINDOWS = (
    ("", lazy("in all")),
    ("3600", lazy("in any hour")),
    ("86400", lazy("in any day")),
    ("604800", lazy("in any week")),
)
LATE = (
    ("none", lazy("costs nothing")),
    ("fixed", lazy("costs a share of the points, once")),
    ("per_day", lazy("costs a share of the points for each day begun")),
)
COUNTS = ((ScorePolicy.BEST, lazy("the best submission")), (ScorePolicy.LAST, lazy("the last submission")))


class When(forms.DateTimeInput):
    input_type = "datetime-local"

    def __init__(self) -> None:
        super().__init__(format="%Y-%m-%dT%H:%M")


def when(label: Any, help_text: Any = "") -> forms.CharField:
    return forms.CharField(required=False, label=label, help_text=help_text, widget=When())


def level(label: Any, default: str = FULL) -> forms.ChoiceField:
    return forms.ChoiceField(required=False, label=label, choices=LEVELS, initial=default)


class ChangeForm(BodyForm):
    """What of an assignment can change."""

    title = forms.CharField(
        required=False, label=lazy("Title"), help_text=lazy("Empty: the title of the problem.")
    )
    release_date = when(lazy("Opens"), lazy("UTC. Before it nobody sees inputs. Empty: at once."))
    due_date = when(lazy("Due"), lazy("UTC. Empty: it never closes, and its seed stays secret."))
    late_due_date = when(lazy("Late until"), lazy("UTC. Empty: nothing is taken after it is due."))
    normal = level(lazy("While they can hand in, students read"))
    past_limit = level(lazy("After their last try"))
    after_due = level(lazy("After the last due date"))

    POINTERS: Mapping[str, str] = {
        "title": "/title",
        **{name: f"/{name}" for name in DATES},
        **{name: f"/feedback/{name}" for name in FEEDBACK_SITUATIONS},
    }

    @classmethod
    def of(cls, assignment: Assignment) -> "ChangeForm":
        """Filled in as it is."""
        dates = {
            name: moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M")
            for name in DATES
            if (moment := getattr(assignment, name)) is not None
        }
        return cls(initial={"title": assignment.title, **dates, **assignment.feedback})

    def body(self) -> dict[str, Any]:
        feedback = {name: self.text(name) or FULL for name in FEEDBACK_SITUATIONS if name in self.fields}
        return {
            "title": self.text("title") or None,
            **{name: self.moment(name) for name in DATES},
            "feedback": feedback,
        }


class AssignmentForm(ChangeForm):
    """A new one."""

    problem = forms.ChoiceField(label=lazy("Problem"))
    problem_version = number(lazy("Version"), lazy("Empty: the latest that is published."))
    late_type = forms.ChoiceField(required=False, label=lazy("Lateness"), choices=LATE, initial="none")
    late_percent = number(lazy("That share, in percent"))
    total_points = number(lazy("Points"), lazy("Empty: those of the problem’s cases."), inputmode="decimal")
    limit_count = number(lazy("Tries"), lazy("Empty: as many as one likes."))
    limit_window = forms.ChoiceField(required=False, label=lazy("Counted"), choices=WINDOWS)
    score_policy = forms.ChoiceField(required=False, label=lazy("What counts"), choices=COUNTS)

    POINTERS: Mapping[str, str] = {
        **ChangeForm.POINTERS,
        "problem": "/problem",
        "problem_version": "/problem_version",
        "late_type": "/late_policy/type",
        "late_percent": "/late_policy/fraction",
        "total_points": "/total_points",
        "limit_count": "/submission_limit/count",
        "limit_window": "/submission_limit/window_s",
        "score_policy": "/score_policy",
    }

    def __init__(self, problems: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["problem"].choices = problems  # type: ignore[attr-defined]

    def clean_late_percent(self) -> str:
        """Judged here, because percent are this form's own."""
        percent = self.text("late_percent")
        share = _share(percent)
        if isinstance(share, int | float) and not 0 <= share <= 1:
            detail = _("It must be between 0 and 100, not {percent}.").format(percent=percent)
            raise forms.ValidationError(detail)
        return percent

    def body(self) -> dict[str, Any]:
        kind = self.text("late_type") or "none"
        late = {"type": kind, "fraction": _share(self.text("late_percent"))} if kind != "none" else None
        limit = {
            "count": literal(self.text("limit_count")),
            "window_s": literal(self.text("limit_window")),
        }
        return {
            **super().body(),
            "problem": self.text("problem"),
            "problem_version": literal(self.text("problem_version")),
            "late_policy": late,
            "total_points": literal(self.text("total_points")),
            "submission_limit": limit if self.text("limit_count") else None,
            "score_policy": self.text("score_policy") or ScorePolicy.BEST,
        }


def _share(percent: str) -> Any:
    """20 -> 0.2; what is no number is passed on, to be said so."""
    value = literal(percent.removesuffix("%").strip())
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value / 100 if is_number and math.isfinite(value) else value


class RegradeForm(BodyForm):
    scope = forms.ChoiceField(
        label=lazy("Judge again"),
        choices=(
            (RegradeScope.ALL, lazy("all submissions")),
            (RegradeScope.BEST, lazy("each student’s best")),
            (RegradeScope.LATEST, lazy("each student’s last")),
        ),
    )
    policy = forms.ChoiceField(
        label=lazy("New scores"),
        choices=(
            (RegradePolicy.REPLACE, lazy("replace the old ones")),
            (RegradePolicy.MAX, lazy("replace lower ones: nobody loses points")),
        ),
    )
    problem_version = forms.ChoiceField(required=False, label=lazy("By the problem’s version"))

    POINTERS: Mapping[str, str] = {name: f"/{name}" for name in ("scope", "policy", "problem_version")}

    def __init__(self, assignment: Assignment, data: QueryDict | None = None) -> None:
        super().__init__(data, initial={"problem_version": str(assignment.problem_version.number)})
        published = assignment.problem_version.problem.versions.filter(published_at__isnull=False)
        current = assignment.problem_version.number
        names = {current: _("{number}, the assignment’s now").format(number=current)}
        self.fields["problem_version"].choices = [  # type: ignore[attr-defined]
            (str(found), names.get(found, str(found))) for found in published.values_list("number", flat=True)
        ]

    def body(self, *, dry_run: bool) -> dict[str, Any]:
        return {
            "scope": self.text("scope"),
            "policy": self.text("policy"),
            "problem_version": literal(self.text("problem_version")),
            "dry_run": dry_run,
        }


def utc(moment: datetime | None) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC") if moment else ""
