"""The page of a run: for an anonymous run its id is the key, else the link carries a signature."""

from django.conf import settings
from django.core.signing import Signer
from django.http import HttpRequest
from django.urls import reverse
from django.utils.crypto import constant_time_compare

from workers.models import Run

signer = Signer(salt="api.runs.sharing")


def page_url(run: Run, request: HttpRequest) -> str:
    """The absolute address of the page, which opens for whoever has it."""
    query = f"?key={share_key(run)}" if run.owner else ""
    return request.build_absolute_uri(reverse(settings.RUN_PAGE, kwargs={"run_id": run.id}) + query)


def share_key(run: Run) -> str:
    return signer.signature(run.id)


def may_open(run: Run, key: str) -> bool:
    """Whether `key` (the query parameter of that name, "" when absent) opens the page of `run`."""
    return not run.owner or constant_time_compare(key, share_key(run))
