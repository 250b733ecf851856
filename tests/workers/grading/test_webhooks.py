"""Webhooks against a receiver that listens, fails, hangs and redirects."""

import base64
import hashlib
import hmac
import http.server
import json
import socket
import threading
import time
from datetime import timedelta

import pytest
from django.utils import timezone

from workers.grading import outgoing, webhooks
from workers.grading.models import Delivery, WebhookEndpoint

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("redis_server")]


class Receiver(http.server.ThreadingHTTPServer):
    """Answers with `answer`, or does what it says; remembers what came."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.answer = 200
        self.received = []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self):
        return f"http://localhost:{self.server_port}/hook?course=1"


class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.received.append((self.path, dict(self.headers), body))
        if self.server.answer == "hang":
            time.sleep(30)
        elif self.server.answer == "drip":
            for _ in range(300):
                self.wfile.write(b"X")
                time.sleep(0.1)
        elif self.server.answer == "redirect":
            self.send_response(302)
            self.send_header("Location", f"http://localhost:{self.server.server_port}/elsewhere")
            self.end_headers()
        else:
            self.send_response(self.server.answer)
            self.end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture
def receiver(settings, monkeypatch):
    settings.WEBHOOK_NETWORKS = ["127.0.0.0/8", "::1/128"]
    monkeypatch.setattr(outgoing, "TOTAL_SECONDS", 1.0)
    server = Receiver()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def room(classroom):
    return classroom()


def register(room, receiver, **fields):
    fields = {"url": receiver.url, "events": list(webhooks.EVENTS), "owner": room.assignment.owner, **fields}
    return WebhookEndpoint.objects.create(**fields)


def due_again():
    """As if the time had come."""
    pending = Delivery.objects.filter(next_try_at__isnull=False)
    return pending.update(next_try_at=timezone.now() - timedelta(seconds=1))


# --- Being told ------------------------------------------------------------------------------


def test_a_verdict_is_told_and_signed_so_that_the_receiver_can_check(room, receiver):
    endpoint = register(room, receiver)
    submission = room.submit("ada", external_id="x1")
    room.grade()
    assert webhooks.deliver() == {"delivered": 1}
    ((path, headers, body),) = receiver.received
    headers = {name.lower(): value for name, value in headers.items()}
    assert (path, headers["host"]) == ("/hook?course=1", f"localhost:{receiver.server_port}")
    said = json.loads(body)
    assert said["type"] == "submission.graded"
    assert said["data"].items() >= {
        "submission": submission.id, "external_id": "x1", "user_ref": "ada", "verdict": "accepted",
        "score": 4.0,
    }.items()  # fmt: skip
    secret = webhooks.secret_of(endpoint)
    assert secret.startswith("whsec_")
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    mac = hmac.new(base64.b64decode(secret.removeprefix("whsec_")), signed, hashlib.sha256).digest()
    assert headers["webhook-signature"] == f"v1,{base64.b64encode(mac).decode()}"
    assert abs(int(headers["webhook-timestamp"]) - time.time()) < 30


def test_the_signature_is_that_of_the_standards_own_example():
    """The test vector of the Standard Webhooks specification."""
    key = base64.b64decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    signed = webhooks.signature(key, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, '{"test": 2432232314}')
    assert signed == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_only_who_asked_is_told(room, classroom, receiver):
    register(room, receiver, owner="token:2")
    register(room, receiver, events=["submission.error"])
    register(room, receiver, disabled_at=timezone.now())
    other = classroom()
    register(room, receiver, assignment=other.assignment)
    room.submit()
    room.grade()
    assert Delivery.objects.count() == 0


def test_an_error_of_ours_is_told_too(room, receiver, long_ago):
    from workers.grading import incidents

    register(room, receiver)
    room.submit()
    for _ in range(2):
        room.age(room.claim().submissions[0], heartbeat_at=long_ago)
        incidents.reap()
    (delivery,) = Delivery.objects.all()
    assert (delivery.event, json.loads(delivery.payload)["data"]["score"]) == ("submission.error", None)


def test_an_oddity_of_one_receiver_does_not_end_the_round_of_all(room, receiver, monkeypatch):
    register(room, receiver)
    register(room, receiver, url=receiver.url.replace("course=1", "odd"))
    post = webhooks.outgoing.post

    def odd(url, *sent):
        if "odd" in url:
            raise ZeroDivisionError
        return post(url, *sent)

    monkeypatch.setattr(webhooks.outgoing, "post", odd)
    room.submit()
    room.grade()
    assert webhooks.deliver() == {"delivered": 1, "pending": 1}
    pending = Delivery.objects.get(status="pending")
    assert (pending.tries, pending.log[0]["status"]) == (1, None)
    assert pending.log[0]["error"] == "The try failed on our side."


# --- Failure 14: delivery lost ---------------------------------------------------------------


@pytest.fixture
def one(room, receiver):
    """One delivery that is due."""
    register(room, receiver)
    room.submit()
    room.grade()
    return Delivery.objects.get()


@pytest.mark.parametrize("answer", [500, 404, 301, 199, "redirect", "hang", "drip"])
def test_failure_14_delivery_lost_whatever_is_not_2xx_is_tried_again(one, receiver, answer):
    receiver.answer = answer
    began = time.monotonic()
    assert webhooks.deliver() == {"pending": 1}
    assert time.monotonic() - began < 10, "who hangs or drips is cut off"
    one.refresh_from_db()
    assert (one.status, one.tries, len(one.log)) == ("pending", 1, 1)
    assert one.next_try_at > timezone.now()
    assert [path for path, _, _ in receiver.received] == ["/hook?course=1"], "nothing is redirected"
    receiver.answer = 204
    assert webhooks.deliver() == {}, "not before its time"
    due_again()
    assert webhooks.deliver() == {"delivered": 1}
    one.refresh_from_db()
    assert (one.status, one.next_try_at, [entry["status"] for entry in one.log][-1]) == (
        "delivered",
        None,
        204,
    )
    ids = {headers["webhook-id"] for _, headers, _ in receiver.received}
    assert ids == {one.id}, "the same id at every try"


def test_a_receiver_that_is_not_there_is_tried_for_days_and_then_no_more(one, receiver):
    receiver.shutdown()
    receiver.server_close()
    waits = []
    while due_again():
        webhooks.deliver()
        one.refresh_from_db()
        if one.next_try_at:
            waits.append((one.next_try_at - timezone.now()).total_seconds())
    assert (one.status, one.tries) == ("failed", len(webhooks.RETRIES) + 1)
    assert sum(waits) > 2 * 86_400
    for wait, wanted in zip(waits, webhooks.RETRIES, strict=True):
        assert 0.75 * wanted < wait < 1.25 * wanted
    assert all(entry["error"] for entry in one.log)


def test_a_failed_delivery_can_be_replayed(one, receiver):
    receiver.answer = 500
    webhooks.deliver()
    Delivery.objects.update(status="failed", next_try_at=None, tries=len(webhooks.RETRIES) + 1)
    webhooks.replay(one)
    assert webhooks.deliver() == {"pending": 1}, "from the beginning: there are tries again"
    receiver.answer = 200
    due_again()
    assert webhooks.deliver() == {"delivered": 1}
    assert len(receiver.received) == 3


def test_who_is_gone_is_told_no_more(one, room, receiver):
    receiver.answer = 410
    assert webhooks.deliver() == {"failed": 1}
    room.submit("bob")
    room.grade()
    assert Delivery.objects.count() == 1


def test_one_that_hangs_does_not_hold_up_the_others(room, settings, receiver, monkeypatch):
    slow = Receiver()
    slow.answer = "hang"
    register(room, slow)
    register(room, receiver)
    for n in range(12):
        room.submit(f"s{n}")
    room.grade()
    monkeypatch.setattr(webhooks, "ROUND_SECONDS", 3.0)
    webhooks.deliver()
    assert len(receiver.received) >= 8
    slow.shutdown()
    slow.server_close()


def test_however_much_is_due_to_one_the_others_are_told_at_once(room, receiver):
    hoarder = register(room, receiver, url="http://localhost:1/nobody-listens")
    payload, long_due = "{}", timezone.now() - timedelta(hours=1)
    Delivery.objects.bulk_create(
        Delivery(endpoint=hoarder, event=webhooks.GRADED, payload=payload, next_try_at=long_due)
        for _ in range(100)
    )
    register(room, receiver)
    room.submit()
    room.grade()
    taken = webhooks._take()
    assert len(taken) <= webhooks.AT_ONCE
    assert {delivery.endpoint.url for delivery in taken} == {hoarder.url, receiver.url}


def test_a_try_that_died_on_the_way_is_made_again(one, receiver):
    assert len(webhooks._take()) == 1  # and then the process is killed
    assert webhooks._take() == []
    due_again()
    assert webhooks.deliver() == {"delivered": 1}


def test_one_process_at_a_time_delivers(one, receiver):
    from workers.broker import PREFIX, connection

    connection().set(f"{PREFIX}delivering", 1)
    assert webhooks.deliver() == {}
    connection().delete(f"{PREFIX}delivering")
    assert webhooks.deliver() == {"delivered": 1}


def test_old_deliveries_are_forgotten(one):
    Delivery.objects.update(created_at=timezone.now() - timedelta(days=31))
    assert webhooks.expire() == 0, "this one is still to be delivered"
    Delivery.objects.update(status="failed", next_try_at=None)
    assert webhooks.expire() == 1


# --- Where nothing is sent -------------------------------------------------------------------


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.100.100.200", "0.0.0.0",
        "168.63.129.16", "224.0.0.1", "255.255.255.255", "localhost", "[::1]", "[::]", "[fe80::1]",
        "[fd00:ec2::254]", "[::ffff:127.0.0.1]", "[64:ff9b::7f00:1]", "[2002:7f00:1::]", "[ff02::1]",
        "2130706433", "0x7f.1", "127.1",
    ],
)  # fmt: skip
def test_nothing_private_is_ever_reached(host):
    try:
        target = outgoing.target_of(f"http://{host}:8080/")
        addresses = outgoing.addresses_of(target)
    except (outgoing.BadAddress, outgoing.Unreachable):
        return
    pytest.fail(f"{host} would be reached at {addresses}")


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("ftp://example.org/", "bad-url"),
        ("http://", "bad-url"),
        ("http://user:secret@example.org/", "bad-url"),
        ("http://example.org:22/", "bad-port"),
        ("http://example.org:99999/", "bad-url"),
        ("http://exämple.org/", "bad-url"),
        ("http://example.org/\r\nHost: x", "bad-url"),
        ("http://[::1/", "bad-url"),
        ("javascript:alert(1)", "bad-url"),
        ("https://example.org/" + "x" * 2000, "bad-url"),
    ],
)
def test_odd_urls_are_refused(url, code):
    with pytest.raises(outgoing.BadAddress) as refused:
        outgoing.target_of(url)
    assert refused.value.code == code


def test_public_addresses_are_reached():
    for host in ("8.8.8.8", "[2606:4700:4700::1111]"):
        assert outgoing.addresses_of(outgoing.target_of(f"https://{host}/"))


def test_a_name_that_has_one_private_address_among_others_is_refused(monkeypatch):
    found = [(0, 0, 0, "", ("8.8.8.8", 80)), (0, 0, 0, "", ("10.0.0.1", 80))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    with pytest.raises(outgoing.BadAddress, match=r"10\.0\.0\.1"):
        outgoing.addresses_of(outgoing.target_of("http://sly.example/"))


def test_the_name_is_asked_once_and_the_answer_is_where_it_goes(receiver, settings, monkeypatch):
    """A name that answers differently a moment later leads nowhere else."""
    settings.WEBHOOK_NETWORKS = ["127.0.0.0/8"]
    asked = []

    def look_up(host, port, **_):
        asked.append(host)
        address = "127.0.0.1" if len(asked) == 1 else "10.0.0.1"
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]

    real = socket.getaddrinfo
    monkeypatch.setattr(
        socket,
        "getaddrinfo",
        lambda host, *a, **k: (look_up if host == "rebind.example" else real)(host, *a, **k),
    )
    status = outgoing.post(f"http://rebind.example:{receiver.server_port}/", b"{}", {})
    assert (status, asked) == (200, ["rebind.example"])


def test_a_private_address_in_a_row_is_not_reached_either(one, receiver, settings):
    """The check is made at each try, not only when somebody registers."""
    settings.WEBHOOK_NETWORKS = []
    assert webhooks.deliver() == {"pending": 1}
    one.refresh_from_db()
    assert "not a public address" in one.log[0]["error"]
    assert receiver.received == []
