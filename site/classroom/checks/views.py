"""The course for everybody: its problems, and answers checked without an account. Nothing is kept."""

from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.cache import patch_vary_headers
from django.utils.translation import gettext as _
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_http_methods, require_safe

from api import computing
from api.callers import caller_of
from api.grading import feedback
from api.grading.one_call import MOST_PAIRS
from classroom import statements, words
from classroom.authoring import mutants
from classroom.checks import embed, library
from classroom.students import verdicts
from classroom.students.handing import HandInForm
from classroom.students.inputs import case_page
from kernels.grading.cases import make_inputs, seeds_of_number
from kernels.grading.model import Problem
from kernels.limits import MAX_SEED
from lab.bodies import too_large
from workers.grading import judging
from workers.grading.models import COURSE, Check, WorkStatus


def find(slug: str) -> Problem:
    try:
        return library.problem(slug)
    except KeyError:
        raise Http404(slug) from None


@require_safe
def problems(request: HttpRequest) -> HttpResponse:
    """What there is to try."""
    parts = [(part, [problem_row(library.problem(slug)) for slug in part.slugs]) for part in library.parts()]
    return render(request, "classroom/checks/problems.html", {"parts": parts})


def problem_row(asked: Problem) -> dict[str, Any]:
    return {
        "slug": asked.slug,
        "title": asked.title,
        "answers": [part.name for part in asked.answers],
        "cases": len([case for case in asked.cases if case.made_by is None]),
    }


@csrf_exempt  # nothing is kept and nobody is signed in: there is nothing to forge
@require_http_methods(["GET", "HEAD", "POST"])
def problem(request: HttpRequest, slug: str) -> HttpResponse:
    """Statement, inputs of a seed, a form to check answers to them; hints, solution, mutant table."""
    asked = find(slug)
    if too_large(request):
        return render(request, "lab/refused.html", {"limit": 32}, status=413)
    seed = _seed(request)
    form, shown, status = None, None, 200
    if not _is_exercise(asked):
        form = HandInForm(asked, request if request.method == "POST" else None)
        if request.method == "POST":
            shown, status = _checked(request, asked, seed, form)
    context = {
        "asked": asked,
        "seed": seed,
        "here": f"{request.path}?seed={seed}#check",
        "other_seed": (seed + 1) % (MAX_SEED + 1),
        "is_drawn": any(case.is_drawn and case.seed is None for case in asked.cases),
        "statement": statements.to_html(asked.statement),
        "hints": [statements.to_html(hint) for hint in asked.hints],
        "solution": statements.to_html(asked.solution, below=2),
        "cases": _cases(asked, seed),
        "exercise": None if form else embed.render(request, slug, "", request.path),
        "form": form,
        "shown": shown,
        "mutants": mutants.table(_matrix(slug)),
        "inputs": f"{reverse('api:problem_inputs', args=[slug])}?seed={seed}",
    }
    return render(request, "classroom/checks/problem.html", context, status=status)


def _is_exercise(asked: Problem) -> bool:
    """Whether all of it can be filled in, cell by cell."""
    return len(asked.cases) == 1 and library.can_be_filled_in(asked.slug, "")


def _seed(request: HttpRequest) -> int:
    text = request.GET.get("seed", "0")
    if not (text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= MAX_SEED):
        raise Http404
    return int(text)


def _cases(asked: Problem, seed: int) -> list[dict[str, Any]]:
    seeds = seeds_of_number(asked, seed)
    address = reverse("api:problem_inputs", args=[asked.slug])

    def download(form: str, array: str) -> str:
        return f"{address}?seed={seed}&format={form}&array={array}"

    return [
        case_page(asked, case, make_inputs(asked, case, seeds[case.name]), download) for case in asked.cases
    ]


def _checked(
    request: HttpRequest, asked: Problem, seed: int, form: HandInForm
) -> tuple[dict[str, Any] | None, int]:
    """What the grader says of the answers in the form, and the status of the page."""
    answers = form.read()
    if answers is None:
        return None, 422
    if sum(judging.pairs_of(asked)) > MOST_PAIRS:
        form.add_error(None, _("This problem is too large to be graded at once; an assignment can have it."))
        return None, 422
    try:
        with computing.computing(caller_of(request)):
            result = judging.judge_once(asked, seeds_of_number(asked, seed), answers)
    except computing.Busy as error:
        form.add_error(None, error.detail)
        return None, 429
    document = feedback.judgement(result, feedback.READER)
    return {
        **verdicts.judged(document, asked),
        "look": words.look("graded", document["verdict"]),
        "points": words.points(document["score"]),
        "max_points": words.points(document["max_score"]),
    }, 200


def _matrix(slug: str) -> dict[str, Any] | None:
    """Of the version that is published; None where none is."""
    done = Check.objects.filter(status=WorkStatus.DONE, version__published_at__isnull=False)
    mine = done.filter(version__problem__owner=COURSE, version__problem__slug=slug)
    check = mine.order_by("-version__number").first()
    return check.result if check else None


@require_safe
def check(request: HttpRequest, slug: str) -> HttpResponse:
    """The part that htmx puts in the place of an exercise; to a browser, the page of its problem."""
    find(slug)
    page = reverse("classroom:problem", args=[slug])
    if not request.headers.get("HX-Request"):
        return redirect(f"{page}?{request.GET.urlencode()}#check-{slug}")
    try:
        found = embed.render(request, slug, request.GET.get("case", ""), page, is_fragment=True)
    except (KeyError, ValueError):
        raise Http404 from None
    response = HttpResponse(found)
    patch_vary_headers(response, ["HX-Request"])
    return response
