"""Addresses that lead nowhere public, exchanges that end, and whose turn it is."""

import socket
import time
from datetime import timedelta

import pytest
from django.utils import timezone

from workers.grading import outgoing, webhooks
from workers.grading.models import Delivery, WebhookEndpoint


@pytest.mark.parametrize(
    "host",
    [
        "[::127.0.0.1]", "[::7f00:1]", "[::ffff:0:127.0.0.1]", "[fec0::1]", "[64:ff9b:1::7f00:1]",
        "[4000::1]", "[5f00::1]", "[e000::1]", "[100:0:0:1::1]",
    ],
)  # fmt: skip
def test_what_is_not_routed_in_public_is_not_reached(host):
    with pytest.raises(outgoing.BadAddress, match="not a public address"):
        outgoing.addresses_of(outgoing.target_of(f"http://{host}/"))


@pytest.mark.parametrize("host", ["..", "a..b", "x" * 64 + ".org"])
def test_what_no_host_can_be_called_is_said_at_once(host):
    with pytest.raises(outgoing.BadAddress, match="no name that a host can have"):
        outgoing.addresses_of(outgoing.target_of(f"http://{host}/"))


def test_a_name_with_many_addresses_at_which_nobody_answers_ends_at_the_deadline(monkeypatch):
    """Each takes seconds to fail."""
    found = [(0, 0, 0, "", (f"8.8.8.{n}", 80)) for n in range(100)]
    asked = []

    def hang(address, _timeout):
        asked.append(address)
        time.sleep(0.2)
        raise TimeoutError("timed out")

    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    monkeypatch.setattr(socket, "create_connection", hang)
    monkeypatch.setattr(outgoing, "TOTAL_SECONDS", 0.5)
    with pytest.raises(outgoing.Unreachable, match=r"no answer in 0.5 s"):
        outgoing.post("http://example.org/", b"{}", {})
    assert 1 < len(asked) < 10


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("owners", [1, 10])
def test_no_crowd_of_endpoints_keeps_the_others_waiting(owners):
    """Twenty endpoints of somebody, or one each of many, at all of which much is due for long."""
    now = timezone.now()

    def due(owner, many, since):
        endpoint = WebhookEndpoint.objects.create(owner=owner, url="https://8.8.8.8/")
        Delivery.objects.bulk_create(
            Delivery(endpoint=endpoint, event=webhooks.GRADED, payload="{}", next_try_at=since)
            for _ in range(many)
        )

    for n in range(20):
        due(f"hoarder {n % owners}", 50, now - timedelta(hours=1))
    due("bob", 2, now)
    for _round in range(40):  # by lot: that bob is not among them once in forty has a chance of 1 in 10^30
        if any(each.endpoint.owner == "bob" for each in webhooks._take()):
            return
    pytest.fail("bob is told nothing")
