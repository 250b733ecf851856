"""The web side, with its WSGI application."""

import json

from django.core.wsgi import get_wsgi_application
from django.db import transaction
from django.http import HttpRequest, JsonResponse
from django.urls import path

from tests.benchmarks.peer.queue import double, wake


def jobs(request: HttpRequest) -> JsonResponse:
    from tests.benchmarks.peer.models import Job

    with transaction.atomic():
        job = Job.objects.create(question=json.loads(request.body)["question"])
        transaction.on_commit(lambda: double.delay(job.pk))
    wake.blpop([f"done:{job.pk}"], timeout=30)
    job.refresh_from_db()
    return JsonResponse({"id": job.pk, "answer": job.answer})


urlpatterns = [path("jobs", jobs)]
application = get_wsgi_application()
