"""What a form may send: a refusal names what was too much, and how much is read."""

import html
import io
import re

import pytest
from django.test import Client, override_settings

pytestmark = pytest.mark.django_db

FORMS = [
    "/en/lab/",
    "/en/lab/estimate/",
    "/en/lab/sweeps/new/check/",
    "/en/lab/compiled/",
    "/en/lab/compare/conventions/",
]


@pytest.fixture
def client():
    return Client(REMOTE_ADDR="203.0.113.7")


def told(response):
    assert response.status_code == 413
    return re.sub(r"\s+", " ", html.unescape(re.sub("<[^>]+>", "", response.content.decode())))


@pytest.mark.parametrize("address", FORMS)
@pytest.mark.parametrize("field", ["dtype", "q"])
def test_a_field_that_no_page_could_show_again_is_refused(client, address, field):
    response = client.post(address, {field: "1 " * 1_000_001})
    assert f"The field {field} holds 2,000,002 characters, and at most 2,000,000 are read" in told(response)
    assert len(response.content) < 50_000


def test_a_text_that_is_a_little_too_long_stays_in_the_form(client):
    response = client.post("/en/lab/", {"engine": "flash", "source": "matrices", "q": "1 " * 500_001})
    assert response.status_code == 422
    assert "more than a text box holds (1,000,000): upload a file" in response.content.decode()


@pytest.mark.parametrize("address", FORMS)
def test_too_many_fields_are_counted(client, address):
    with override_settings(DATA_UPLOAD_MAX_NUMBER_FIELDS=3):
        response = client.post(address, {f"field{number}": "1" for number in range(5)})
    assert "More than 3 fields were sent" in told(response)


def test_too_many_files_are_counted(client):
    with override_settings(DATA_UPLOAD_MAX_NUMBER_FILES=2):
        files = [io.BytesIO(b"x") for _ in range(3)]
        response = client.post("/en/lab/", {"source": "upload", "files": files})
    assert "More than 2 files were sent at once" in told(response)
