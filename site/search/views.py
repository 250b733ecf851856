"""The page of a search, and the part of it that changes as one types."""

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.cache import patch_cache_control, patch_vary_headers
from django.utils.translation import get_language
from django.views.decorators.http import require_safe

from classroom import people
from search import finding


@require_safe
def page(request: HttpRequest) -> HttpResponse:
    typed = finding.clean(request.GET.get("q", ""))
    kind = request.GET.get("kind", "")
    kind = kind if kind in finding.KINDS else ""
    owner = people.owner(request) if request.user.is_authenticated else ""
    results = finding.find(typed, get_language() or "en", owner, kind) if typed else finding.Results("")
    is_part = bool(request.headers.get("HX-Request"))
    context = {"results": results, "examples": finding.EXAMPLES, "kind": kind, "is_part": is_part}
    answer = render(request, "search/results.html" if is_part else "search/page.html", context)
    patch_vary_headers(answer, ["HX-Request"])
    if owner:
        patch_cache_control(answer, private=True, no_store=True)
    return answer


@require_safe
def anywhere(request: HttpRequest) -> HttpResponse:
    """/search?q=…, as browsers and people write it, in their language."""
    query = request.GET.urlencode()
    return redirect(f"{reverse('search:page')}?{query}" if query else reverse("search:page"))
