"""The page of a sweep: opened as that of a run is, by its id alone or with a signature (api.runs.sharing)."""

from django.conf import settings
from django.core.signing import Signer
from django.http import HttpRequest
from django.urls import reverse
from django.utils.crypto import constant_time_compare

from workers.models import Sweep

signer = Signer(salt="api.sweeps.sharing")


def page_url(sweep: Sweep, request: HttpRequest) -> str:
    """The absolute address of the page, which opens for whoever has it."""
    query = f"?key={share_key(sweep)}" if sweep.owner else ""
    return request.build_absolute_uri(reverse(settings.SWEEP_PAGE, kwargs={"sweep_id": sweep.id}) + query)


def share_key(sweep: Sweep) -> str:
    return signer.signature(sweep.id)


def may_open(sweep: Sweep, key: str) -> bool:
    """Whether `key` (the query parameter of that name, "" when absent) opens the page of `sweep`."""
    return not sweep.owner or constant_time_compare(key, share_key(sweep))
