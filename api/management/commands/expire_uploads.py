"""`manage.py expire_uploads`: delete what is past its day. Every upload also clears some old ones."""

from typing import Any

from django.core.management.base import BaseCommand

from api import housekeeping


class Command(BaseCommand):
    help = "Delete uploads and idempotency keys whose time is over."

    def handle(self, *args: Any, **options: Any) -> None:
        uploads, keys = housekeeping.expire()
        self.stdout.write(f"{uploads} uploads, {keys} idempotency keys deleted")
