"""How students reach an assignment: a link to each, or a token that hands in for any of them."""

import datetime
from typing import Any

from django import forms
from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as lazy
from django.views.decorators.http import require_http_methods, require_POST

from api.grading import bodies, keys, reports
from api.models import ApiToken
from classroom import once, people
from classroom.accounts.forms import LIFETIMES
from classroom.students.access import Desk, is_user_ref
from classroom.teaching.mine import assignment_view
from classroom.teaching.views import head
from workers.grading.models import Assignment

MAX_TOKENS = 50
SHOWN_KEYS = 1_000


class LinksForm(forms.Form):
    user_refs = forms.CharField(
        label=lazy("Students"),
        help_text=lazy("One to a line, as you call them elsewhere: a number, a short name. Up to 1,000."),
        widget=forms.Textarea(attrs={"rows": "6", "spellcheck": "false", "autocomplete": "off"}),
    )

    def clean_user_refs(self) -> list[str]:
        lines = [line.strip() for line in self.cleaned_data["user_refs"].splitlines()]
        found = list(dict.fromkeys(line for line in lines if line))
        if len(found) > bodies.MAX_KEYS:
            sentence = _("{count} students; at most {most} at a time.")
            raise forms.ValidationError(sentence.format(count=len(found), most=bodies.MAX_KEYS))
        for user_ref in found:
            if not is_user_ref(user_ref):
                sentence = _("“{user_ref}” has more than 128 characters, or some that cannot be printed.")
                raise forms.ValidationError(sentence.format(user_ref=user_ref[:40]))
        return found


class HarnessForm(forms.Form):
    name = forms.CharField(label=lazy("Name"), max_length=100, help_text=lazy("What will hold it."))
    lifetime = forms.ChoiceField(label=lazy("Valid for"), choices=LIFETIMES, initial="90", required=False)


@assignment_view
@require_http_methods(["GET", "HEAD", "POST"])
def links(request: HttpRequest, row: Assignment) -> HttpResponse:
    """Links for the students that are named; with `csv`, as a file."""
    if request.method != "POST":
        return _page(request, row)
    form = LinksForm(request.POST)
    found: list[dict[str, str]] = []
    if form.is_valid():
        found = [
            {"user_ref": student.user_ref, "link": request.build_absolute_uri(Desk(row, student).address())}
            for student in keys.make(row.id, form.cleaned_data["user_refs"])
        ]
        if "csv" in request.POST:
            headers = {"Content-Disposition": f'attachment; filename="{row.id}-links.csv"'}
            text = reports.to_csv(("user_ref", "link"), found)
            return HttpResponse(text, content_type="text/csv; charset=utf-8", headers=headers)
    return _page(request, row, form=form, found=found)


@assignment_view
@require_POST
def revoke_link(request: HttpRequest, row: Assignment) -> HttpResponse:
    """A student's link opens nothing any more; the next one that is made does."""
    user_ref = request.POST.get("user_ref", "")
    if not is_user_ref(user_ref):
        raise Http404
    keys.revoke(row.id, user_ref)
    sentence = _("The link of “{user_ref}” opens nothing any more. Show the links to have a new one.")
    messages.success(request, sentence.format(user_ref=user_ref))
    return redirect("classroom:ways-in", assignment_id=row.id)


@assignment_view
@require_POST
def make_token(request: HttpRequest, row: Assignment) -> HttpResponse:
    """A token for this assignment alone, shown in the answer that makes it."""
    form = HarnessForm(request.POST)
    if not form.is_valid():
        return _page(request, row, harness=form)
    if row.tokens.filter(revoked_at=None).count() >= MAX_TOKENS:
        form.add_error(None, _("There are {count} tokens already: revoke some.").format(count=MAX_TOKENS))
        return _page(request, row, harness=form)
    if not once.is_first(request):
        messages.warning(request, _("That form made its token already, and it was shown that once."))
        return redirect("classroom:ways-in", assignment_id=row.id)
    days = form.cleaned_data["lifetime"]
    expires_at = timezone.now() + datetime.timedelta(days=int(days)) if days else None
    user = people.user_of(request)
    new = ApiToken.issue(form.cleaned_data["name"], expires_at, user=user, assignment=row)
    return _page(request, row, new=new)


def _page(
    request: HttpRequest,
    row: Assignment,
    *,
    form: LinksForm | None = None,
    harness: HarnessForm | None = None,
    found: list[dict[str, str]] | None = None,
    new: tuple[ApiToken, str] | None = None,
) -> HttpResponse:
    known = row.submissions.order_by("user_ref").values_list("user_ref", flat=True).distinct()
    tokens = row.tokens.order_by("-created_at", "-pk")
    context: dict[str, Any] = {
        **head(row),
        "form": form or LinksForm(initial={"user_refs": "\n".join(known[:100])}),
        "harness": harness or HarnessForm(auto_id="harness_%s"),
        "found": found or [],
        "keys": row.keys.all()[:SHOWN_KEYS],
        "new": new,
        "form_key": once.new_key(),
        "tokens": [(token, token.in_force()) for token in tokens],
        "entrance": request.build_absolute_uri(reverse("classroom:hand-in", args=[row.id])),
    }
    is_wrong = bool((form and form.errors) or (harness and harness.errors))
    status = 422 if is_wrong else 201 if new else 200
    return render(request, "classroom/teaching/ways_in.html", context, status=status)
