"""From every page of the lab a visitor finds the others."""

import html
import re

import pytest
from django.test import Client

pytestmark = pytest.mark.django_db

PLACES = {
    "New run": "/en/lab/",
    "Presets": "/en/lab/presets/",
    "Sweep a range": "/en/lab/sweeps/new/",
    "Compare runs": "/en/lab/compare/",
    "Which convention is it?": "/en/lab/compare/conventions/",
    "Tiles": "/en/lab/tiles/",
    "Compiled kernels": "/en/lab/compiled/",
    "Sources": "/en/lab/kernels/",
    "History": "/en/lab/history/",
}


@pytest.fixture
def client():
    return Client(REMOTE_ADDR="203.0.113.7")


def places(response):
    """Address and whether it is here, by name."""
    nav = re.search(r'<nav class="lab-places".*?</nav>', response.content.decode(), re.DOTALL)[0]
    links = re.findall(r'<a href="([^"]+)"( aria-current="page")?>([^<]+)</a>', nav)
    return {html.unescape(name): (address, bool(here)) for address, here, name in links}


@pytest.mark.parametrize("here", PLACES.values())
def test_each_leads_to_all_and_says_where_one_is(client, here):
    response = client.get(here)
    assert response.status_code == 200
    assert places(response) == {name: (address, address == here) for name, address in PLACES.items()}


def test_pages_of_a_run_and_those_that_are_not_there_lead_there_too(client, submit, finish):
    run = finish(submit())
    of_run = (f"runs/{run.id}/", f"runs/{run.id}/steps/", f"compare/elsewhere/?runs={run.id}")
    for address in (*of_run, "runs/x/", "sweeps/x/", "kernels/flash/"):
        found = places(client.get(f"/en/lab/{address}"))
        assert list(found) == list(PLACES)
        assert not any(here for _address, here in found.values())


def test_what_is_not_there_is_called_what_it_is(client):
    for address, name, start in (
        ("runs/x/", "run", "/en/lab/"),
        ("sweeps/x/", "sweep", "/en/lab/sweeps/new/"),
    ):
        response = client.get(f"/en/lab/{address}")
        assert response.status_code == 404
        shown = response.content.decode()
        assert f"<h1>There is no such {name}</h1>" in shown
        assert f'<a class="button" href="{start}">Start a {name}</a>' in shown


def test_the_page_of_a_run_says_which_release_computed_it(client, submit, finish):
    from workers.models import Run

    run = finish(submit())
    address = f"/en/lab/runs/{run.id}/"
    assert 'id="release"' not in client.get(address).content.decode()
    Run.objects.filter(pk=run.id).update(
        environment=run.environment | {"version": "1.4.0", "commit": "0c6d847"}
    )
    shown = client.get(address).content.decode()
    assert '<p id="release">Computed by Attention Lab 1.4.0, commit 0c6d847.</p>' in shown
    assert "<dt>commit</dt>" not in shown
    Run.objects.filter(pk=run.id).update(environment=run.environment | {"version": "1.4.0", "commit": None})
    assert "of which commit is not known" in client.get(address).content.decode()
