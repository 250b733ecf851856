"""The forms of an account."""

import datetime
from typing import Any

from django import forms
from django.contrib.auth.forms import AuthenticationForm, PasswordChangeForm, UserCreationForm
from django.http import HttpRequest
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from api.models import AUTHOR, RUNS, SUBMIT
from classroom import people
from classroom.accounts import throttle

SCOPE_NAMES = (
    (RUNS, _("runs: compute in the lab over REST")),
    (AUTHOR, _("author: problems, assignments, grades")),
    (SUBMIT, _("submit: hand in for any student")),
)
LIFETIMES = (
    ("30", _("30 days")),
    ("90", _("90 days")),
    ("365", _("a year")),
    ("", _("until revoked")),
)

PASSWORD_RULES = _("At least 8 characters, not digits alone, and nothing common.")


class SignInForm(AuthenticationForm):
    """A wrong password and an unknown name look the same; neither can be tried often."""

    request: HttpRequest

    def clean(self) -> dict[str, Any]:
        name = self.cleaned_data.get("username", "")
        throttle.try_to_sign_in(self.request, name)
        cleaned: dict[str, Any] = super().clean()
        throttle.signed_in(self.request, name)
        return cleaned


class SignUpForm(UserCreationForm):  # type: ignore[type-arg]  # Django has it without
    """A name and a password: nobody is asked for more."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["username"].help_text = _("Up to 150 letters, digits and @ . + - _")
        self.fields["password1"].help_text = PASSWORD_RULES
        self.fields["password2"].help_text = ""


class PasswordForm(PasswordChangeForm):
    """The old password can be tried no more often than at signing in: a page left open is no way around."""

    def __init__(self, request: HttpRequest, *args: Any, **kwargs: Any) -> None:
        self.request = request
        super().__init__(people.user_of(request), *args, **kwargs)
        self.fields["new_password1"].help_text = PASSWORD_RULES

    def clean_old_password(self) -> str:
        throttle.try_to_sign_in(self.request, self.user.get_username())
        password: str = super().clean_old_password()
        throttle.signed_in(self.request, self.user.get_username())
        return password


class TokenForm(forms.Form):
    name = forms.CharField(
        label=_("Name"), max_length=100, help_text=_("What will hold it: a script, a course, a machine.")
    )
    scopes = forms.MultipleChoiceField(
        label=_("What it may do"),
        choices=SCOPE_NAMES,
        widget=forms.CheckboxSelectMultiple,
        initial=[RUNS, AUTHOR, SUBMIT],
    )
    lifetime = forms.ChoiceField(label=_("Valid for"), choices=LIFETIMES, initial="90", required=False)

    def expires_at(self) -> datetime.datetime | None:
        days = self.cleaned_data["lifetime"]
        return timezone.now() + datetime.timedelta(days=int(days)) if days else None
