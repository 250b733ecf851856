"""What somebody has used, and how much is left."""

from datetime import timedelta
from typing import Any

from django.db.models import Count, Q
from django.utils import timezone
from django.utils.translation import gettext as _

from lab import units
from workers import quotas
from workers.grading.models import Submission
from workers.models import Run


def counts(owner: str) -> list[tuple[str, ...]]:
    """(what, how many in a day, how many in 30 days)."""
    runs = _lately(Run.objects.filter(owner=owner), "created_at")
    submissions = _lately(Submission.objects.filter(assignment__owner=owner), "created_at")
    return [
        (_("runs"), *map(units.whole, runs)),
        (_("submissions to your assignments"), *map(units.whole, submissions)),
    ]


def _lately(rows: Any, moment: str) -> tuple[int, int]:
    now = timezone.now()
    day, month = (Q(**{f"{moment}__gte": now - timedelta(days=days)}) for days in (1, 30))
    found = rows.filter(month).aggregate(day=Count("pk", filter=day), month=Count("pk"))
    return found["day"], found["month"]


def left(owner: str) -> list[dict[str, Any]]:
    """Of each quota of a minute: its limit and what is left of it (None: Redis does not say)."""
    names = {
        "requests": _("requests about grading"),
        "submissions": _("submissions"),
        "computing": _("seconds of the web server’s processor"),
    }
    found = []
    for name, label in names.items():
        quota = (
            quotas.computing(anonymous=False)
            if name == "computing"
            else quotas.grading(name, anonymous=False)
        )
        standing = quotas.standing(quota, owner)
        found.append(
            {
                "label": label,
                "limit": units.whole(int(quota.limit)),
                "left": units.whole(standing.remaining) if standing else None,
            }
        )
    return found
