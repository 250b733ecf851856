"""Who is asking for a page of the classroom."""

from collections.abc import Callable
from functools import wraps
from typing import Any, cast

from django.contrib.auth.decorators import login_required
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.views.decorators.cache import never_cache

from api.callers import Caller, caller_of
from api.models import SCOPES, owner_of

View = Callable[..., HttpResponse]


def user_of(request: HttpRequest) -> User:
    """The user of a view that is for signed-in people only."""
    return cast(User, request.user)


def owner(request: HttpRequest) -> str:
    """As rows have it: whose they are."""
    return owner_of(user_of(request).pk)


def caller(request: HttpRequest) -> Caller:
    """A signed-in user as the caller of what REST does too; anybody else is anonymous, as ever."""
    anonymous = caller_of(request)
    if not request.user.is_authenticated:
        return anonymous
    return Caller(owner(request), anonymous.address, frozenset(SCOPES))


def signed_in(view: View) -> View:
    """For who has an account; others are asked to sign in, and come back. What is private is kept nowhere."""

    @wraps(view)
    def private(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        return view(request, *args, **kwargs)

    return never_cache(login_required(private))
