"""Start-up check: requests that wait leave threads for the others, or nothing starts."""

from collections.abc import Sequence
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, register


@register()
def waiting_leaves_threads(app_configs: Sequence[Any] | None, **kwargs: object) -> list[CheckMessage]:
    if 0 <= settings.MAX_WAITERS < settings.WEB_THREADS:
        return []
    return [
        Error(
            f"MAX_WAITERS ({settings.MAX_WAITERS}) must be at least 0 and below "
            f"WEB_THREADS ({settings.WEB_THREADS}).",
            hint="Change ATTENTION_LAB_MAX_WAITERS or ATTENTION_LAB_WEB_THREADS.",
            id="api.E001",
        )
    ]
