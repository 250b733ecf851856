"""Start-up checks: the time limits nest, or nothing starts."""

import ipaddress
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, register

POOL_CHECK_SECONDS = 5  # how often a Celery worker looks for dead children, should it miss their end


def limits() -> list[tuple[str, float]]:
    """The time limits of the service in seconds, each of which must be below the next."""
    budget = max(settings.RUN_BUDGET_ANONYMOUS, settings.RUN_BUDGET_TOKEN)
    return [
        ("run budget", budget),
        ("soft limit", budget + settings.RUN_SOFT_LIMIT_MARGIN),
        ("hard limit", budget + settings.RUN_HARD_LIMIT_MARGIN),
        ("visibility timeout", settings.VISIBILITY_TIMEOUT),
        ("run maximum age", settings.RUN_MAX_AGE),
    ]


def grading_limits() -> list[tuple[str, float]]:
    """The same of the graders."""
    most = settings.GRADE_BUDGET + settings.GRADE_TURN
    return [
        ("turn of an assignment", settings.GRADE_TURN),
        ("grading budget", settings.GRADE_BUDGET),
        ("soft limit of grading", most + settings.GRADE_SOFT_LIMIT_MARGIN),
        ("hard limit of grading", most + settings.GRADE_HARD_LIMIT_MARGIN),
        ("visibility timeout", settings.VISIBILITY_TIMEOUT),
        ("age at which a submission is given up", settings.GRADE_MAX_AGE),
    ]


def detections() -> list[tuple[str, float]]:
    """A child that died is settled by its own worker, before the reaper takes both for lost."""
    return [
        ("interval at which a worker looks for dead children", POOL_CHECK_SECONDS),
        ("heartbeat timeout", settings.HEARTBEAT_TIMEOUT),
    ]


def heartbeats() -> list[tuple[str, float]]:
    """The intervals that decide when a silent worker is given up, each below the next."""
    return [
        ("heartbeat interval", settings.HEARTBEAT_SECONDS),
        ("heartbeat timeout", settings.HEARTBEAT_TIMEOUT),
        ("run maximum age", settings.RUN_MAX_AGE),
    ]


@register()
def limits_nest(app_configs: Sequence[Any] | None, **kwargs: object) -> list[CheckMessage]:
    return [
        Error(
            f"The {inner} ({inner_seconds} s) must be below the {outer} ({outer_seconds} s).",
            hint="Change the ATTENTION_LAB_* variables that set them.",
            id="workers.E001",
        )
        for chain in (limits(), grading_limits(), detections(), heartbeats())
        for (inner, inner_seconds), (outer, outer_seconds) in pairwise(chain)
        if inner_seconds >= outer_seconds
    ]


@register()
def webhook_networks_are_networks(app_configs: Sequence[Any] | None, **kwargs: object) -> list[CheckMessage]:
    wrong: list[CheckMessage] = []
    for network in settings.WEBHOOK_NETWORKS:
        try:
            ipaddress.ip_network(network)
        except ValueError as error:
            wrong.append(Error(f"ATTENTION_LAB_WEBHOOK_NETWORKS: {error}", id="workers.E002"))
    return wrong
