"""The pages of problems: written, checked, published, and kept version by version."""

from typing import Any

from django.contrib import messages
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils.translation import gettext as _
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from api import computing, preferences, strict_json
from classroom import people, statements, words
from classroom.authoring import mutants
from classroom.authoring.editor import Editor, pretty
from classroom.students.inputs import case_pages
from kernels.grading.cases import seeds_of_number
from kernels.grading.model import Problem as Asked
from lab.bodies import bounded
from workers.grading import judging
from workers.grading import problems as rows
from workers.grading.models import Check, Problem, ProblemVersion, WorkStatus

PUBLISH_SECONDS = 15
LIVE_SECONDS = 10


# --- The editor ------------------------------------------------------------------------------


@bounded
@people.signed_in
@require_http_methods(["GET", "HEAD", "POST"])
def new(request: HttpRequest) -> HttpResponse:
    if request.method != "POST":
        return _editor_page(request, Editor.blank(), None)
    return _edited(request, None)


@bounded
@people.signed_in
@require_http_methods(["GET", "HEAD", "POST"])
def edit(request: HttpRequest, slug: str) -> HttpResponse:
    """What is saved is another version; with `apply`, a suggestion of the mutant table is filled in."""
    row = _mine(request, slug)
    if request.method == "POST":
        return _edited(request, row)
    version = _version(request, row)
    body = version.body
    suggestion = request.GET.get("apply", "")
    check = Check.objects.filter(version=version, status=WorkStatus.DONE).first()
    suggested = (check.result or {}).get("suggestions", []) if check else []
    if suggestion.isascii() and suggestion.isdigit() and int(suggestion) < len(suggested):
        body = mutants.changed(body, suggested[int(suggestion)]["change"] or {})
    return _editor_page(request, Editor.of_body(body), row)


def _edited(request: HttpRequest, row: Problem | None) -> HttpResponse:
    """What a button of the editor does."""
    action = request.POST.get("act", "check")
    editor, wrong_json = _posted(request, row)
    if wrong_json:
        text = request.POST.get("body", "")
        return _editor_page(request, editor, row, status=422, text=text, wrong_json=wrong_json)
    if action in ("form", "json", "show") or action.startswith(("add-", "copy-", "drop-")):
        return _editor_page(request, editor.after(action), row, as_json=action == "json")
    problem = _read(request, editor)
    if row is None and problem and rows_of(request).filter(slug=problem.slug).exists():
        editor.main.note("slug", _("You have a problem of this name: edit that one, or choose another name."))
        problem = None
    if action == "save" and problem:
        version, is_new = rows.save(people.owner(request), problem)
        if not is_new:
            messages.warning(request, _("Nothing had changed: this very version was there already."))
        return redirect(f"{_address(version.problem)}?version={version.number}")
    as_json = request.POST.get("view") == "json"
    status = 200 if problem else 422
    summary = problem and _summary(problem)
    return _editor_page(request, editor, row, status=status, as_json=as_json, checked=True, problem=summary)


def _posted(request: HttpRequest, row: Problem | None) -> tuple[Editor, str]:
    """The editor as it was sent, and what is wrong with its JSON."""
    state = request.POST.copy()
    if state.get("view") != "json":
        if row:
            state["slug"] = row.slug
        return Editor(state), ""
    try:
        body = strict_json.loads(state.get("body", "").encode("utf-8", "replace"))
        if not isinstance(body, dict):
            return Editor.blank(), _("A problem is a JSON object.")
        editor = Editor.of_body({**body, "slug": row.slug} if row else body)
    except strict_json.Malformed as error:
        return Editor.blank(), error.detail
    except (AttributeError, KeyError, TypeError, ValueError):
        return Editor.blank(), _("It does not have the form of a problem: see the API’s documentation.")
    return editor, ""


@bounded
@people.signed_in
@require_POST
def preview(request: HttpRequest) -> HttpResponse:
    """What the problem looks like, and what is wrong with it, brought up to date while somebody writes."""
    editor, wrong_json = _posted(request, None)
    problem = None if wrong_json else _read(request, editor)
    context = {
        "editor": editor,
        "wrong_json": wrong_json,
        "problem": problem and _summary(problem),
        "statement": statements.to_html(editor.main.long_text("statement")),
        "is_live": True,
    }
    return render(request, "classroom/authoring/preview.html", context)


def _read(request: HttpRequest, editor: Editor) -> Asked | None:
    """The problem, if the web process may read it now, and nothing is wrong with it."""
    try:
        with computing.computing(people.caller(request)):
            return editor.read()
    except computing.Busy as error:
        editor.main.note(None, error.detail)
        return None


def _editor_page(
    request: HttpRequest,
    editor: Editor,
    row: Problem | None,
    *,
    status: int = 200,
    as_json: bool = False,
    **more: Any,
) -> HttpResponse:
    context = {
        "editor": editor,
        "row": row,
        "as_json": as_json or "text" in more,
        "text": more.pop("text", None) or (pretty(editor.body()) if as_json else ""),
        "statement": statements.to_html(editor.main.long_text("statement")),
        "action": reverse("classroom:problem-edit", args=[row.slug])
        if row
        else reverse("classroom:problem-new"),
        **more,
    }
    return render(request, "classroom/authoring/editor.html", context, status=status)


def _editor_address(row: Problem | None) -> str:
    return reverse("classroom:problem-edit", args=[row.slug]) if row else reverse("classroom:problem-new")


def _summary(problem: Asked) -> dict[str, Any]:
    """A problem that can be read, in a few words."""
    return {
        "title": problem.title,
        "points": words.points(problem.max_score),
        "answers": [part.name for part in problem.answers],
        "cases": [
            {
                "title": words.case_name(case.name),
                "points": words.points(case.points),
                "visibility": words.VISIBILITIES[case.visibility],
            }
            for case in problem.cases
        ],
    }


# --- A problem -------------------------------------------------------------------------------


def rows_of(request: HttpRequest) -> "QuerySet[Problem]":
    return Problem.objects.filter(owner=people.owner(request))


def _mine(request: HttpRequest, slug: str) -> Problem:
    return get_object_or_404(rows_of(request), slug=slug)


def _version(request: HttpRequest, row: Problem) -> ProblemVersion:
    """That which the address names, or the latest."""
    wanted = request.GET.get("version", "")
    versions = row.versions.select_related("problem")
    if not wanted:
        return versions[0]
    if not (wanted.isascii() and wanted.isdigit() and len(wanted) < 10):
        raise Http404
    return get_object_or_404(versions, number=int(wanted))


def _address(row: Problem) -> str:
    return reverse("classroom:problem-mine", args=[row.slug])


@require_safe
@people.signed_in
def problem(request: HttpRequest, slug: str) -> HttpResponse:
    version = _version(request, _mine(request, slug))
    return render(request, "classroom/authoring/problem.html", _problem_context(version))


@require_safe
@people.signed_in
def live(request: HttpRequest, slug: str) -> HttpResponse:
    """The mutant table, once it is there."""
    version = _version(request, _mine(request, slug))
    check = get_object_or_404(Check, version=version)
    waited = preferences.wait_for(check, LIVE_SECONDS)
    context = {**_problem_context(version), "pause": not waited, "is_live": True}
    return render(request, "classroom/authoring/check.html", context)


@require_POST
@people.signed_in
def publish(request: HttpRequest, slug: str) -> HttpResponse:
    """Have the mutant table computed, and publish where nothing speaks against it."""
    version = _version(request, _mine(request, slug))
    check = rows.check_of(version)
    preferences.wait_for(check, PUBLISH_SECONDS)
    if check.status == WorkStatus.DONE:
        try:
            rows.publish(version, check.result or {})
            messages.success(request, _("Version {number} is published.").format(number=version.number))
        except rows.Survivors:
            messages.error(request, _("It was not published: the table below says why."))
    return redirect(f"{_address(version.problem)}?version={version.number}#mutants")


def _problem_context(version: ProblemVersion) -> dict[str, Any]:
    asked = judging.problem_of(version)
    check = Check.objects.filter(version=version).first()
    where = f"?version={version.number}"
    slug = version.problem.slug
    return {
        "row": version.problem,
        "version": version,
        "title": asked.title,
        "versions": version.problem.versions.values("number", "published_at", "created_at"),
        "statement": statements.to_html(asked.statement, below=2),
        "hints": [statements.to_html(hint, below=2) for hint in asked.hints],
        "solution": statements.to_html(asked.solution, below=2) if asked.solution else "",
        "summary": _summary(asked),
        "cases": case_pages(asked, seeds_of_number(asked, 0)),
        "check": check,
        "mutants": mutants.table(check.result) if check and check.status == WorkStatus.DONE else None,
        "links": {
            "edit": reverse("classroom:problem-edit", args=[slug]) + where,
            "publish": reverse("classroom:problem-publish", args=[slug]) + where,
            "live": reverse("classroom:problem-live", args=[slug]) + where,
        },
    }
