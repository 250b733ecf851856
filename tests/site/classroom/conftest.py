"""People at their browsers: a teacher who is signed in, and anybody."""

import pytest
from django.test import Client

# The project's own modules are imported in the fixtures: this file is read before Django is set up.

PASSWORD = "correct horse 9"


@pytest.fixture
def account(db):
    """`account("grace")`: a new account of that name."""
    from django.contrib.auth import get_user_model

    def account(name="grace"):
        return get_user_model().objects.create_user(name, password=PASSWORD)

    return account


@pytest.fixture
def at(account):
    """`at("grace")`: the browser of that teacher, signed in."""
    from django.contrib.auth import get_user_model

    def at(name="grace"):
        client = Client()
        found = get_user_model().objects.filter(username=name).first()
        client.force_login(found or account(name))
        return client

    return at


@pytest.fixture
def teacher(at):
    return at("grace")
