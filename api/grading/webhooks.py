"""/api/v1/webhooks: who is told of verdicts, and what became of each delivery."""

from django.http import Http404
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from api import idempotency, parsers
from api.grading import authoring, bodies, representation, schema
from api.grading.access import GradingView
from api.grading.assignments import CURSOR
from api.models import AUTHOR
from api.openapi import problems
from api.pagination import newest_first
from workers.grading import webhooks
from workers.grading.models import Delivery, WebhookEndpoint

TAGS = ["webhooks"]


class WebhookView(GradingView):
    """What the views of webhooks share: they are for who teaches."""

    def initial(self, request: Request, *args: object, **kwargs: object) -> None:
        super().initial(request, *args, **kwargs)
        self.require(AUTHOR)

    def find(self, webhook_id: str) -> WebhookEndpoint:
        row = WebhookEndpoint.objects.filter(pk=webhook_id, owner=self.caller.owner).first()
        if row is None:
            raise Http404
        return row

    def find_delivery(self, webhook_id: str, delivery_id: str) -> Delivery:
        row = self.find(webhook_id).deliveries.filter(pk=delivery_id).first()
        if row is None:
            raise Http404
        return row


class WebhooksView(WebhookView):
    @extend_schema(
        operation_id="list_webhooks",
        summary="My webhooks",
        description="The newest first.",
        tags=TAGS,
        parameters=CURSOR,
        responses={200: schema.WebhookPage, **problems(400, 401, 403, 429)},
    )
    def get(self, request: Request) -> Response:
        mine = WebhookEndpoint.objects.filter(owner=self.caller.owner)
        return newest_first(self, mine, representation.webhook)

    @extend_schema(
        operation_id="register_webhook",
        summary="Be told of verdicts",
        description=(
            "As the Standard Webhooks say: a POST with `webhook-id`, `webhook-timestamp` and "
            "`webhook-signature` (`v1,` and the HMAC-SHA256 of `id.timestamp.body`). Any answer other than "
            "2xx, a redirect among them, is tried again for about three days. The address must be public."
        ),
        tags=TAGS,
        request={"application/json": schema.WebhookRequest},
        responses={201: schema.NewWebhook, **problems(400, 401, 403, 409, 413, 415, 422, 429, 503)},
    )
    def post(self, request: Request) -> Response:
        body = parsers.json_body(request)
        key = self.checked_key(parsers.body_digest(request))
        new = bodies.webhook(body)
        row, replayed = idempotency.once(
            key, self._again, lambda: authoring.register_webhook(self.caller.owner, new)
        )
        document = {**representation.webhook(row), "secret": webhooks.secret_of(row)}
        return Response(document, status=201, headers=idempotency.REPLAYED if replayed else None)

    def _again(self, webhook_id: str) -> WebhookEndpoint | None:
        return WebhookEndpoint.objects.filter(pk=webhook_id).first()


class WebhookDetailView(WebhookView):
    @extend_schema(
        operation_id="get_webhook",
        summary="A webhook",
        description="Without its secret, which was shown once.",
        tags=TAGS,
        responses={200: schema.Webhook, **problems(401, 403, 404, 429)},
    )
    def get(self, request: Request, webhook_id: str) -> Response:
        return Response(representation.webhook(self.find(webhook_id)))

    @extend_schema(
        operation_id="delete_webhook",
        summary="Be told no more",
        description="Its deliveries, those still to come among them, are forgotten.",
        tags=TAGS,
        responses={204: None, **problems(401, 403, 404, 429)},
    )
    def delete(self, request: Request, webhook_id: str) -> Response:
        self.find(webhook_id).delete()
        return Response(status=204)


class DeliveriesView(WebhookView):
    @extend_schema(
        operation_id="list_deliveries",
        summary="Deliveries of a webhook",
        description="The newest first, with every try; kept for 30 days.",
        tags=TAGS,
        parameters=CURSOR,
        responses={200: schema.DeliveryPage, **problems(400, 401, 403, 404, 429)},
    )
    def get(self, request: Request, webhook_id: str) -> Response:
        return newest_first(self, self.find(webhook_id).deliveries.all(), representation.delivery)


class ReplayView(WebhookView):
    @extend_schema(
        operation_id="replay_delivery",
        summary="Deliver again",
        description="At once and under the same `webhook-id`, whatever became of it before.",
        tags=TAGS,
        request=None,
        responses={202: schema.Delivery, **problems(400, 401, 403, 404, 409, 422, 429, 503)},
    )
    def post(self, request: Request, webhook_id: str, delivery_id: str) -> Response:
        row = self.find_delivery(webhook_id, delivery_id)
        key = self.checked_key(f"replay {delivery_id}")
        replayed = key is not None and idempotency.find(key) is not None
        if not replayed:
            webhooks.replay(row)
            if key:
                idempotency.note(key)
        headers = idempotency.REPLAYED if replayed else None
        return Response(representation.delivery(row), status=202, headers=headers)
