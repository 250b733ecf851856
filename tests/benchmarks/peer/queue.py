"""The Celery side: read the row, double its number, write it, wake whoever waits."""

import os

import django
import redis
from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.benchmarks.peer.settings")
SOCKET = os.environ["PEER_REDIS"]
app = Celery("peer", broker=f"redis+socket://{SOCKET}")
app.conf.update(task_ignore_result=True, task_acks_late=True, worker_prefetch_multiplier=1)
wake = redis.Redis(unix_socket_path=SOCKET)
django.setup()


@app.task
def double(job_id: int) -> None:
    from tests.benchmarks.peer.models import Job

    job = Job.objects.get(pk=job_id)
    job.answer = 2 * job.question
    job.save(update_fields=["answer"])
    wake.lpush(f"done:{job_id}", 1)
