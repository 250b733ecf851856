"""`Idempotency-Key` on every POST of grading."""

import pytest

from api.urls import urlpatterns
from tests.api.grading.conftest import BODY
from tests.api.helpers import assert_problem
from workers.grading.models import Delivery

pytestmark = pytest.mark.django_db(transaction=True)

POSTS = [
    str(route.pattern)
    for route in urlpatterns
    if hasattr(getattr(route.callback, "cls", None), "post")
    and str(route.pattern).partition("/")[0] in ("problems", "assignments", "webhooks")
]
BODIES = {
    "problems": {**BODY, "slug": "another"},
    "problems/<slug:slug>/publish": None,
    "assignments": {"problem": "plain"},
    "assignments/<slug:assignment_id>/tokens": {"name": "x"},
    "assignments/<slug:assignment_id>/keys": {"user_refs": ["ada"]},
    "assignments/<slug:assignment_id>/submissions": {"user_ref": "ada", "answers": {}},
    "assignments/<slug:assignment_id>/submissions:batch": {
        "submissions": [{"user_ref": "ada", "answers": {}}]
    },
    "assignments/<slug:assignment_id>/regrades": {},
    "webhooks": {"url": "https://8.8.8.8/"},
    "webhooks/<slug:webhook_id>/deliveries/<slug:delivery_id>/replay": None,
}


@pytest.fixture
def places(teacher, graded):
    """What the addresses are about."""
    hook = teacher.api.post("/webhooks", {"url": "https://8.8.8.8/"}).json()["id"]
    assignment = teacher.assign()
    graded(assignment)
    return {
        "<slug:slug>": "plain",
        "<slug:assignment_id>": assignment["id"],
        "<slug:webhook_id>": hook,
        "<slug:delivery_id>": Delivery.objects.get().pk,
    }


def test_every_post_of_grading_is_tried():
    assert set(POSTS) == set(BODIES)


@pytest.mark.parametrize("path", POSTS)
def test_every_post_honours_a_key(teacher, places, path):
    address = path
    for name, value in places.items():
        address = address.replace(name, value)

    def send(key, body=BODIES[path]):
        return teacher.api.post(f"/{address}", body, **{"idempotency-key": key})

    first, again = send("k1"), send("k1")
    assert first.status_code in {200, 201, 202}, first.content[:300]
    assert "Idempotent-Replayed" not in first
    if path.endswith("/tokens"):  # a token is shown once
        assert_problem(again, 409, says="once")
    else:
        assert (again.status_code, again["Idempotent-Replayed"]) == (first.status_code, "true")
        assert again.json() == first.json()
    elsewhere = teacher.api.post("/estimates/kv-cache", {}, **{"idempotency-key": "k1"})
    assert_problem(elsewhere, 422, says="new key")
    if BODIES[path] is not None:
        another = {**BODIES[path], "more": 1}
        assert_problem(send("k1", another), 422, says="new key")
    for key in ("x" * 256, "ünïcode"):
        assert_problem(send(key), 400, says="Idempotency-Key")
