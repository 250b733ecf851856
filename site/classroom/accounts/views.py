"""Signing in and out, making an account, and the tokens of one."""

from collections.abc import Callable
from functools import wraps
from typing import Any

from django.conf import settings
from django.contrib import messages
from django.contrib.auth import login, logout, update_session_auth_hash
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods, require_POST

from api.models import ApiToken
from classroom import once, people
from classroom.accounts import throttle, usage
from classroom.accounts.forms import PasswordForm, SignInForm, SignUpForm, TokenForm
from classroom.accounts.throttle import NotNow

MAX_TOKENS = 100

View = Callable[..., HttpResponse]


def of_passwords(view: View) -> View:
    """A form with secrets in it: kept nowhere, shown in no report, and refused when it comes too often
    or nothing counts how often."""

    @wraps(view)
    def guarded(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        try:
            return view(request, *args, **kwargs)
        except NotNow as refusal:
            context = {"refusal": refusal}
            response = render(request, "classroom/account/not_now.html", context, status=refusal.status)
            response["Retry-After"] = str(refusal.retry_after)
            return response

    methods = require_http_methods(["GET", "HEAD", "POST"])
    return methods(sensitive_post_parameters()(never_cache(guarded)))


# --- In and out ------------------------------------------------------------------------------


@of_passwords
def sign_in(request: HttpRequest) -> HttpResponse:
    if request.user.is_authenticated:
        return redirect(_onward(request))
    form = SignInForm(request, data=request.POST or None)
    if request.method == "POST" and form.is_valid():
        login(request, form.get_user())
        return redirect(_onward(request))
    return _entrance(request, "classroom/account/sign_in.html", form)


@of_passwords
def sign_up(request: HttpRequest) -> HttpResponse:
    if request.user.is_authenticated:
        return redirect(_onward(request))
    form = SignUpForm(request.POST or None)
    if request.method == "POST" and settings.OPEN_SIGNUP and form.is_valid():
        throttle.sign_up(request)
        login(request, form.save())
        messages.success(request, _("Your account is made, and you are signed in."))
        return redirect(_onward(request))
    return _entrance(request, "classroom/account/sign_up.html", form)


def _entrance(request: HttpRequest, template: str, form: Any) -> HttpResponse:
    context = {"form": form, "next": request.POST.get("next", request.GET.get("next", ""))}
    is_closed = template.endswith("sign_up.html") and not settings.OPEN_SIGNUP
    status = 403 if is_closed else 422 if form.errors else 200
    return render(request, template, {**context, "open_signup": settings.OPEN_SIGNUP}, status=status)


def _onward(request: HttpRequest) -> str:
    """Where somebody wanted to go when they were asked to sign in: a page of ours."""
    wanted = request.POST.get("next", request.GET.get("next", ""))
    is_ours = url_has_allowed_host_and_scheme(wanted, {request.get_host()}, request.is_secure())
    return wanted if is_ours else settings.LOGIN_REDIRECT_URL


@never_cache
@require_POST
def sign_out(request: HttpRequest) -> HttpResponse:
    logout(request)
    messages.success(request, _("You are signed out."))
    return redirect(settings.LOGOUT_REDIRECT_URL)


@of_passwords
@people.signed_in
def password(request: HttpRequest) -> HttpResponse:
    form = PasswordForm(request, request.POST or None)
    if request.method == "POST" and form.is_valid():
        update_session_auth_hash(request, form.save())  # this browser stays in, all others are out
        messages.success(request, _("The password is changed. Other browsers are signed out."))
        return redirect("classroom:tokens")
    status = 422 if form.errors else 200
    return render(request, "classroom/account/password.html", {"form": form}, status=status)


# --- Tokens ----------------------------------------------------------------------------------


@people.signed_in
@require_http_methods(["GET", "HEAD", "POST"])
def tokens(request: HttpRequest) -> HttpResponse:
    """The tokens of an account. A new one is shown in the answer that makes it, and never again."""
    if request.method != "POST":
        return _tokens_page(request, TokenForm())
    form = TokenForm(request.POST)
    if not form.is_valid():
        return _tokens_page(request, form, status=422)
    if ApiToken.objects.filter(user=people.user_of(request), revoked_at=None).count() >= MAX_TOKENS:
        sentence = _("You have {count} tokens already: revoke some first.")
        form.add_error(None, sentence.format(count=MAX_TOKENS))
        return _tokens_page(request, form, status=409)
    if not once.is_first(request):
        messages.warning(request, _("That form made its token already, and it was shown that once."))
        return redirect("classroom:tokens")
    token, text = ApiToken.issue(
        form.cleaned_data["name"],
        form.expires_at(),
        user=people.user_of(request),
        scopes=form.cleaned_data["scopes"],
    )
    return _tokens_page(request, TokenForm(), new=(token, text), status=201)


def _tokens_page(
    request: HttpRequest, form: TokenForm, *, new: tuple[ApiToken, str] | None = None, status: int = 200
) -> HttpResponse:
    owner = people.owner(request)
    rows = ApiToken.objects.filter(user=people.user_of(request)).select_related("assignment")
    context = {
        "form": form,
        "form_key": once.new_key(),
        "new": new,
        "tokens": [(row, _state(row)) for row in rows.order_by("-created_at", "-pk")[: 2 * MAX_TOKENS]],
        "counts": usage.counts(owner),
        "left": usage.left(owner),
    }
    return render(request, "classroom/account/tokens.html", context, status=status)


def _state(token: ApiToken) -> str:
    if token.revoked_at:
        return "revoked"
    return "valid" if token.in_force() else "expired"


@people.signed_in
@require_POST
def revoke(request: HttpRequest, token_id: int) -> HttpResponse:
    token = get_object_or_404(ApiToken, pk=token_id, user=people.user_of(request))
    if token.revoked_at is None:
        token.revoked_at = timezone.now()
        token.save(update_fields=["revoked_at"])
    messages.success(request, _("The token “{name}” is revoked.").format(name=token.name))
    return redirect("classroom:tokens")
