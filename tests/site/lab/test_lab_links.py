"""Every page of the product leads only to addresses that answer."""

from html.parser import HTMLParser
from urllib.parse import urldefrag, urljoin

import pytest
from django.core.management import call_command
from django.test import Client
from django.urls import reverse

from concepts.pages import book

pytestmark = pytest.mark.django_db
DOCS = "/api/v1/docs/"


class Links(HTMLParser):
    """Where a page leads (`hrefs`), and the places in it (`ids`)."""

    def __init__(self, response):
        super().__init__()
        self.hrefs, self.ids = set(), set()
        self.feed(response.content.decode())

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        if tag == "a" and "href" in found:
            self.hrefs.add(found["href"])
        if "id" in found:
            self.ids.add(found["id"])


def broken(client, address):
    """The links of the page at `address` that lead nowhere."""
    response = client.get(address)
    assert response.status_code == 200, address
    return [href for href in Links(response).hrefs if not leads_somewhere(client, urljoin(address, href))]


def leads_somewhere(client, address):
    target, fragment = urldefrag(address)
    if not target.startswith("/"):  # somebody else's page
        return True
    answer = client.get(target, follow=True)
    if answer.status_code != 200:
        return False
    return not fragment or fragment in (operations(client) if target == DOCS else Links(answer).ids)


def operations(client):
    """The places that the documentation of the API makes in the browser: /tag/operation."""
    paths = client.get(reverse("api:schema")).json()["paths"].values()
    return {
        f"/{tag}/{found['operationId']}" for path in paths for found in path.values() for tag in found["tags"]
    }


@pytest.mark.parametrize(
    "address",
    [
        "/en/", "/en/lab/", "/en/problems/", "/en/problems/by-hand/",
        *(f"/en/concepts/{slug}/" for slug in book("en").pages),
    ],
)  # fmt: skip
def test_every_link_of_a_page_leads_somewhere(address):
    assert broken(Client(), address) == []


def test_every_link_of_a_problem_leads_somewhere():
    call_command("load_problems", verbosity=0)
    assert broken(Client(), "/en/problems/rope/") == []


def test_every_link_of_a_run_leads_somewhere(submit, finish, seeded):
    from api.runs.sharing import share_key

    assert broken(Client(), f"/en/lab/runs/{submit().id}/") == []
    assert broken(Client(), f"/en/lab/runs/{finish(submit(inputs=seeded(2, 3, 4, 8))).id}/") == []
    owned = finish(submit(owner="token:1"))
    assert broken(Client(), f"/en/lab/runs/{owned.id}/?key={share_key(owned)}") == []
