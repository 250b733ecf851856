"""Start-up check: requests that wait or compute leave threads for the others, or nothing starts."""

from collections.abc import Sequence
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, register


@register()
def threads_are_left(app_configs: Sequence[Any] | None, **kwargs: object) -> list[CheckMessage]:
    waiting, computing, threads = settings.MAX_WAITERS, settings.MAX_COMPUTING, settings.WEB_THREADS
    if waiting >= 0 and computing >= 1 and waiting + computing < threads:
        return []
    return [
        Error(
            f"MAX_WAITERS ({waiting}) must be at least 0, MAX_COMPUTING ({computing}) at least 1, and both "
            f"together below WEB_THREADS ({threads}).",
            hint="Change ATTENTION_LAB_MAX_WAITERS, ATTENTION_LAB_MAX_COMPUTING or ATTENTION_LAB_WEB_THREADS",
            id="api.E001",
        )
    ]
