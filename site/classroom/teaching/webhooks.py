"""Who is told of verdicts, and what became of each delivery."""

import json
from collections.abc import Mapping
from typing import Any

from django import forms
from django.contrib import messages
from django.db.models.fields.json import KeyTextTransform
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as lazy
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from api.errors import Problem
from api.grading import authoring, bodies
from classroom import once, people
from classroom.bodyform import BodyForm
from classroom.teaching.mine import as_id
from kernels.spec import SpecError
from workers.grading import webhooks as deliveries
from workers.grading.models import Assignment, Delivery, WebhookEndpoint

SHOWN = 50
EVENTS = (
    (deliveries.GRADED, lazy("a submission is graded")),
    (deliveries.ERROR, lazy("a submission could not be graded, through our fault")),
    (deliveries.REGRADED, lazy("submissions were judged again")),
)
LOOKS = {"pending": "queued", "delivered": "succeeded", "failed": "failed"}
STATES = {
    "pending": lazy("to be tried"),
    "delivered": lazy("delivered"),
    "failed": lazy("given up"),
}


class WebhookForm(BodyForm):
    url = forms.CharField(
        label=lazy("Address"), help_text=lazy("https://…, of a host that is public, without redirects.")
    )
    events = forms.MultipleChoiceField(
        label=lazy("Told when"),
        choices=EVENTS,
        widget=forms.CheckboxSelectMultiple,
        initial=list(deliveries.EVENTS),
    )
    assignment = forms.ChoiceField(required=False, label=lazy("Of"))

    POINTERS: Mapping[str, str] = {name: f"/{name}" for name in ("url", "events", "assignment")}

    def __init__(self, owner: str, data: Any = None) -> None:
        super().__init__(data)
        given = Assignment.objects.filter(owner=owner)
        found = given.values_list("id", "title", KeyTextTransform("title", "problem_version__body"))
        titles = [(pk, title or problem_title) for pk, title, problem_title in found]
        self.fields["assignment"].choices = [("", _("all assignments")), *titles]  # type: ignore[attr-defined]

    def body(self) -> dict[str, Any]:
        return {
            "url": self.text("url"),
            "events": self.cleaned_data["events"],
            "assignment": self.text("assignment") or None,
        }


@people.signed_in
@require_http_methods(["GET", "HEAD", "POST"])
def webhooks(request: HttpRequest) -> HttpResponse:
    owner = people.owner(request)
    form = WebhookForm(owner, request.POST if request.method == "POST" else None)
    new, status = None, 200
    if request.method == "POST" and form.is_valid():
        new, status = _register(request, owner, form)
        if new is None and status == 302:
            return redirect("classroom:webhooks")
    context = {
        "form": WebhookForm(owner) if new else form,
        "form_key": once.new_key(),
        "new": new,
        "endpoints": WebhookEndpoint.objects.filter(owner=owner).select_related(
            "assignment__problem_version"
        ),
    }
    return render(request, "classroom/teaching/webhooks.html", context, status=422 if form.errors else status)


def _register(
    request: HttpRequest, owner: str, form: WebhookForm
) -> tuple[tuple[WebhookEndpoint, str] | None, int]:
    """A new endpoint with its secret, and the status of the answer."""
    try:
        body = bodies.webhook(form.body())
        if not once.is_first(request):
            messages.warning(request, _("That form made its webhook already."))
            return None, 302
        made = authoring.register_webhook(owner, body)
        return (made, deliveries.secret_of(made)), 201
    except SpecError as error:
        form.place(error.problems)
    except Problem as error:
        form.add_error(None, error.detail)
    return None, 422


def _find(request: HttpRequest, webhook_id: str) -> WebhookEndpoint:
    mine = WebhookEndpoint.objects.filter(owner=people.owner(request))
    return get_object_or_404(mine, pk=as_id(webhook_id))


@people.signed_in
@require_safe
def webhook(request: HttpRequest, webhook_id: str) -> HttpResponse:
    """The delivery log."""
    endpoint = _find(request, webhook_id)
    found = [_row(delivery) for delivery in endpoint.deliveries.all()[:SHOWN]]
    return render(request, "classroom/teaching/webhook.html", {"endpoint": endpoint, "deliveries": found})


def _row(delivery: Delivery) -> dict[str, Any]:
    payload = json.loads(delivery.payload)
    return {
        "row": delivery,
        "look": LOOKS[delivery.status],
        "words": STATES[delivery.status],
        "about": payload.get("data", {}).get("user_ref", ""),
        "payload": json.dumps(payload, indent=1, ensure_ascii=False),
        "log": delivery.log,
    }


@people.signed_in
@require_POST
def delete(request: HttpRequest, webhook_id: str) -> HttpResponse:
    _find(request, webhook_id).delete()
    messages.success(request, _("That address is told no more."))
    return redirect("classroom:webhooks")


@people.signed_in
@require_POST
def replay(request: HttpRequest, webhook_id: str, delivery_id: str) -> HttpResponse:
    endpoint = _find(request, webhook_id)
    deliveries.replay(get_object_or_404(endpoint.deliveries, pk=as_id(delivery_id)))
    messages.success(request, _("It is sent again within a few seconds, under the same webhook-id."))
    return redirect("classroom:webhook", webhook_id=endpoint.id)
