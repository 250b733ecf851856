"""Files over REST: sent once, used by name, gone after a day."""

import datetime
import io

import numpy as np
import pytest
from django.core.files.storage import default_storage
from django.core.management import call_command
from django.utils import timezone

from api.models import Upload
from api.uploads import store
from tests.api.helpers import assert_problem
from tests.api.test_arrayfiles import WHOLE, Bomb, npy, npz
from workers import artifacts
from workers.models import Run

pytestmark = pytest.mark.django_db

QKV = {
    "q": np.array([[1, 0], [0, 1]], np.float32),
    "k": np.array([[1, 0], [0, 1]], np.float32),
    "v": np.array([[1, 2], [3, 4]], np.float32),
}


def run_of(upload_id, names="qkv"):
    inputs = {mine: {"upload": upload_id, "name": name} for mine, name in zip("qkv", names, strict=True)}
    return {"engine": "eager", "inputs": inputs}


def stored():
    return default_storage.listdir("uploads")[1] if default_storage.exists("uploads") else []


def test_a_file_becomes_the_inputs_of_a_run(api):
    answer = api.upload(npz(**QKV), "mine.npz")
    assert answer.status_code == 201
    upload = answer.json()
    assert upload["arrays"] == [{"name": name, "shape": [2, 2], "dtype": "float32"} for name in "qkv"]
    expires = datetime.datetime.fromisoformat(upload["expires_at"])
    assert abs(expires - timezone.now() - datetime.timedelta(hours=24)).total_seconds() < 60
    answer = api.post("/runs", run_of(upload["id"]))
    assert answer.status_code == 202
    assert answer.json()["inputs"]["v"] == {"shape": [2, 2], "dtype": "float32", "source": "upload"}
    submitted = artifacts.load_submitted(Run.objects.get())
    assert submitted["v"].tolist() == [[1, 2], [3, 4]]


def test_a_lone_npy_is_named_by_its_stem(api):
    assert api.upload(npy(QKV["q"]), "my query.npy").json()["arrays"][0]["name"] == "my query"


def test_the_content_decides_not_the_name(api):
    assert api.upload(npy(QKV["q"]), "weights.safetensors").json()["arrays"][0]["name"] == "weights"


@pytest.mark.parametrize(
    ("content", "status", "code"),
    [
        (npy(np.array([Bomb()], object)), 422, "pickle"),
        (WHOLE["npy"][:-1], 400, "truncated"),
        (WHOLE["npz"][:-30], 400, "truncated"),
        (b"hello", 422, "unknown-format"),
        (b"", 422, "unknown-format"),
    ],
    ids=["pickle", "npy cut", "npz cut", "text", "empty"],
)
def test_what_cannot_be_used_is_explained_and_not_kept(api, content, status, code):
    problem = assert_problem(api.upload(content), status, pointer="/file", code=code)
    assert problem["detail"].startswith("file: ")
    assert (Upload.objects.count(), stored()) == (0, [])


def test_one_part_called_file(api):
    post = api.client.post
    for parts in ({}, {"other": io.BytesIO(b"x")}, {"file": "text"}):
        assert_problem(post("/api/v1/uploads", parts), 400, pointer="/file", says="`file`")
    both = {"file": [io.BytesIO(npy(QKV["q"])), io.BytesIO(npy(QKV["q"]))]}
    assert_problem(post("/api/v1/uploads", both), 400, pointer="/file")
    extra = {"file": io.BytesIO(npy(QKV["q"])), "comment": "x"}
    assert_problem(post("/api/v1/uploads", extra), 400, pointer="/file", says="comment")
    assert stored() == []


@pytest.mark.parametrize("boundary", ["", "; boundary=x"])
def test_a_broken_multipart_body_is_400(api, boundary):
    answer = api.post("/uploads", b"--y\r\nnonsense", content_type=f"multipart/form-data{boundary}")
    assert_problem(answer, 400)


def test_a_missing_member_names_those_that_are_there(api):
    upload_id = api.upload(npz(**QKV), "mine.npz").json()["id"]
    answer = api.post("/runs", run_of(upload_id, "qkw"))
    assert_problem(answer, 422, pointer="/inputs/v", code="not-found", says=["'w'", "q, k, v"])


@pytest.mark.parametrize("upload_id", ["nosuch", "../../etc/passwd", "a" * 5000, "\u212a"])
def test_an_unknown_upload_says_what_to_do(api, upload_id):
    answer = api.post("/runs", run_of(upload_id))
    assert_problem(answer, 422, pointer="/inputs/q", code="not-found", says="POST /api/v1/uploads")


def test_after_a_day_it_is_gone(api):
    upload_id = api.upload(npz(**QKV), "mine.npz").json()["id"]
    Upload.objects.update(expires_at=timezone.now())
    assert_problem(api.post("/runs", run_of(upload_id)), 422, pointer="/inputs/q", code="not-found")
    assert stored() == [upload_id]
    other = api.upload(npz(**QKV), "mine.npz").json()["id"]  # each upload clears what is over
    assert stored() == [other]
    Upload.objects.update(expires_at=timezone.now())
    call_command("expire_uploads", stdout=io.StringIO())
    assert (Upload.objects.count(), stored()) == (0, [])


def test_a_file_that_vanished_is_an_explained_error(api):
    upload_id = api.upload(npz(**QKV), "mine.npz").json()["id"]
    default_storage.delete(f"uploads/{upload_id}")
    assert_problem(
        api.post("/runs", run_of(upload_id)), 422, pointer="/inputs/q", says="can no longer be read"
    )


def test_a_file_kept_on_disk_while_it_came_in_is_read_too(api, settings):
    settings.FILE_UPLOAD_MAX_MEMORY_SIZE = 10
    assert api.upload(npz(**QKV), "mine.npz").status_code == 201


def test_without_a_token_an_address_keeps_a_limited_amount(api, alice, monkeypatch):
    content = npz(**QKV)
    monkeypatch.setattr(store, "ANONYMOUS_BYTES", len(content) + 10)
    assert api.upload(content).status_code == 201
    answer = api.upload(content)
    assert_problem(answer, 429, says="token")
    assert 86_000 < int(answer["Retry-After"]) <= 86_400
    assert len(stored()) == 1
    assert alice.upload(content).status_code == 201


def test_sent_again_with_its_key_it_is_the_same_upload(api):
    first = api.upload(npz(**QKV), **{"idempotency-key": "u1"})
    again = api.upload(npz(**QKV), **{"idempotency-key": "u1"})  # the boundary of the body differs
    assert (first.status_code, again.status_code) == (201, 201)
    assert again.json() == first.json()
    assert again["Idempotent-Replayed"] == "true"
    assert "Idempotent-Replayed" not in first
    assert len(stored()) == 1
    assert_problem(api.upload(npy(QKV["q"]), **{"idempotency-key": "u1"}), 422)


def test_a_refused_file_gives_its_key_back(api):
    assert_problem(api.upload(b"hello", **{"idempotency-key": "u2"}), 422)
    assert api.upload(npy(QKV["q"]), **{"idempotency-key": "u2"}).status_code == 201


def test_uploads_of_a_token_are_its_own(alice, bob, api):
    upload_id = alice.upload(npz(**QKV)).json()["id"]
    assert alice.post("/runs", run_of(upload_id)).status_code == 202
    for other in (bob, api):
        assert_problem(other.post("/runs", run_of(upload_id)), 422, pointer="/inputs/q", code="not-found")
    anonymous = api.upload(npz(**QKV)).json()["id"]
    assert bob.post("/runs", run_of(anonymous)).status_code == 202
