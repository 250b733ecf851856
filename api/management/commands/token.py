"""`manage.py token NAME`: make a bearer token and print it, once."""

import datetime
from typing import Any

from django.contrib.auth import get_user_model
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone

from api.models import SCOPES, ApiToken
from workers.grading.models import Assignment


class Command(BaseCommand):
    help = "Make a token for the API and print it as the last line. It cannot be shown again."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name", help="whom or what the token is for")
        parser.add_argument(
            "--expires-days", type=int, metavar="N", help="refuse it after N days (default: never)"
        )
        parser.add_argument(
            "--scope", action="append", choices=SCOPES, dest="scopes", help="what it may do (default: all)"
        )
        parser.add_argument("--user", metavar="NAME", help="act for this user (default: for itself)")
        parser.add_argument("--assignment", metavar="ID", help="only hand in answers to this assignment")

    def handle(self, *args: Any, **options: Any) -> None:
        name, days = options["name"].strip(), options["expires_days"]
        if not 0 < len(name) <= 100:
            raise CommandError("The name must have 1 to 100 characters.")
        if days is not None and not 0 < days <= 36_500:
            raise CommandError("--expires-days must be between 1 and 36500.")
        expires_at = timezone.now() + datetime.timedelta(days=days) if days else None
        user = self._find(get_user_model().objects, "username", options["user"])
        assignment = self._find(Assignment.objects, "pk", options["assignment"])
        token, text = ApiToken.issue(
            name, expires_at, user=user, scopes=options["scopes"] or SCOPES, assignment=assignment
        )
        until = f"until {expires_at:%Y-%m-%d}" if expires_at else "until revoked"
        self.stderr.write(f"Token for {token.name}, valid {until}. Keep it: it is not stored in the clear.")
        self.stdout.write(text)

    def _find(self, rows: Any, field: str, wanted: str | None) -> Any:
        found = rows.filter(**{field: wanted}).first() if wanted is not None else None
        if wanted is not None and found is None:
            raise CommandError(f"There is no {rows.model._meta.verbose_name} {wanted!r}.")
        return found
