"""The API without a broker: what would be sent to it is recorded, and quotas are not counted."""

import json

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client

# The project's own modules are imported in the fixtures: this file is read before Django is set up.


@pytest.fixture(autouse=True)
def _no_broker(sent, settings):
    """Whatever a test submits stays here, and a Redis that another test left running refuses nobody."""
    settings.ANONYMOUS_COMPUTING_SECONDS_PER_MINUTE = settings.TOKEN_COMPUTING_SECONDS_PER_MINUTE = 1e6


class Api:
    """One caller; JSON in, Django's response out."""

    def __init__(self, token="", address="203.0.113.7"):
        self.client = Client(raise_request_exception=False, REMOTE_ADDR=address)
        self.token = token

    def request(self, method, path, body=None, content_type="application/json", **headers):
        if self.token:
            headers.setdefault("authorization", f"Bearer {self.token}")
        data = body if isinstance(body, bytes | str) else b"" if body is None else json.dumps(body)
        return self.client.generic(method, f"/api/v1{path}", data, content_type, headers=headers)

    def get(self, path, **headers):
        return self.request("GET", path, **headers)

    def post(self, path, body=None, **headers):
        return self.request("POST", path, body, **headers)

    def delete(self, path, **headers):
        return self.request("DELETE", path, **headers)

    def upload(self, content, name="q.npy", **headers):
        if self.token:
            headers.setdefault("authorization", f"Bearer {self.token}")
        return self.client.post(
            "/api/v1/uploads", {"file": SimpleUploadedFile(name, content)}, headers=headers
        )


def with_token(name):
    from api.models import ApiToken

    return Api(ApiToken.issue(name)[1])


@pytest.fixture
def api(charged):
    """Somebody without a token."""
    return Api()


@pytest.fixture
def alice(db):
    return with_token("alice")


@pytest.fixture
def bob(db):
    return with_token("bob")


@pytest.fixture
def document(api):
    """The OpenAPI document."""
    answer = api.get("/schema/")
    assert answer.status_code == 200
    return answer.json()
