"""The Celery application. Start a worker with `celery -A workers worker -Q <queue>`.

The queue carries ids and nothing else; results live in the rows (no result backend). The
settings below answer, one by one, the ways in which Celery on Redis loses or repeats work.
"""

import os

from celery import Celery
from django.conf import settings
from kombu import Exchange, Queue

from workers.broker import PREFIX, celery_url
from workers.transport import use_for_redis

RUN_TASK = "workers.run"
GRADE_QUEUE = "grade"
GRADE_TASK, CHECK_TASK, REGRADE_TASK = "workers.grade", "workers.check", "workers.regrade"

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")

use_for_redis()
app = Celery("attention_lab")
app.conf.update(
    broker_url=celery_url(settings.REDIS_URL),
    broker_connection_retry_on_startup=True,
    broker_connection_max_retries=None,
    broker_channel_error_retry=True,  # a Redis that refuses (out of memory) is one to come back to
    broker_transport_options={
        # A delivery that no worker acknowledged goes out again after this long: above every time
        # limit, or a long run would be started twice.
        "visibility_timeout": settings.VISIBILITY_TIMEOUT,
        "global_keyprefix": PREFIX,
        "socket_timeout": 5,
        "socket_connect_timeout": 2,
        "socket_keepalive": True,
    },
    # A publish must never hold up a web request for long; the reaper sends again what was lost.
    task_publish_retry_policy={"max_retries": 1, "interval_start": 0.1, "interval_max": 0.2},
    result_backend=None,
    task_ignore_result=True,
    task_serializer="json",
    accept_content=["json"],
    # Without an exchange and a key of its own, each queue would get what is meant for the default one.
    task_queues=[
        Queue(name, Exchange(name), routing_key=name)
        for name in ("cpu", "gpu", "compile", GRADE_QUEUE, "maintenance")
    ],
    task_default_queue="maintenance",  # beat's tasks; runs name their queue
    task_create_missing_queues=False,
    # Acknowledge after the work, take one at a time: a killed worker's run is delivered again.
    task_acks_late=True,
    worker_prefetch_multiplier=1,
    # A child that dies has its run marked by workers.tasks (signal task_failure); redelivering
    # would only feed the same input to the next child.
    task_reject_on_worker_lost=False,
    worker_soft_shutdown_timeout=5.0,
    worker_max_tasks_per_child=500,
    worker_proc_alive_timeout=60.0,
    worker_cancel_long_running_tasks_on_connection_loss=False,
    worker_hijack_root_logger=False,
    worker_send_task_events=False,
    timezone="UTC",
    beat_schedule={
        "reap": {"task": "workers.reap", "schedule": settings.REAPER_SECONDS},
        "deliver": {"task": "workers.deliver", "schedule": settings.REAPER_SECONDS},
        "expire": {"task": "workers.expire", "schedule": 3600},
    },
)
app.autodiscover_tasks(["workers", "workers.grading"])
