"""The reader's pages. No view here touches the database."""

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import parse_qsl, urlencode

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.cache import patch_vary_headers
from django.utils.safestring import mark_safe
from django.utils.translation import get_language
from django.views.decorators.cache import cache_control
from django.views.decorators.http import require_safe

from classroom.checks import embed
from concepts import asks, described, lists, paths, whole
from concepts.asks import Ask
from concepts.card import picture
from concepts.changes import changes
from concepts.figures import Figure, Links, registry
from concepts.markup import Check, Listing, Piece
from concepts.pages import Page, current_book

FIGURES = registry()
CACHED_QUERY = 500  # characters; longer states are rendered each time
# What XML may not hold, so that a picture with it would not open, and what turns the text around it about.
UNSHOWABLE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ufffe\uffff]")


def origin_of(request: HttpRequest) -> str:
    """The scheme and host of this site, as the reader has called it."""
    return request.build_absolute_uri("/").rstrip("/")


def links_of(figure: str, page: Page | None, state: Mapping[str, str], origin: str) -> Links:
    """Where `figure` lives: on a concept page, or on the home page."""
    if page is None:
        home, lab = reverse("concepts:home"), reverse("lab:home")
        return Links(home, reverse("concepts:home-figure", args=[figure, "html"]), lab, origin=origin)
    return Links(
        reverse("concepts:concept", args=[page.slug]),
        reverse("concepts:figure", args=[page.slug, figure, "html"]),
        reverse("lab:home"),
        others=carried(page, state, but=figure),
        has_run=figure in page.runs,
        origin=origin,
    )


def carried(page: Page, state: Mapping[str, str], *, but: str) -> tuple[tuple[str, str], ...]:
    """The path that one is on, and the states of a page's figures and questions but one: what that one's form
    must carry along."""
    trail = paths.trail_of(state, page, get_language() or "en")
    way = ((paths.PARAMETER, trail.slug),) if trail else ()
    pairs = [pair for name in sorted(page.figures - {but}) for pair in parse_qsl(FIGURES[name].query(state))]
    return (*way, *pairs, *(pair for ask in page.asks if ask.field != but for pair in asks.query(ask, state)))


def state_of(request: HttpRequest) -> dict[str, str]:
    """The query string as a plain mapping (the last value of a repeated name), of what can be shown."""
    return {key: UNSHOWABLE.sub("", str(value)) for key, value in request.GET.items()}


@require_safe
def home(request: HttpRequest) -> HttpResponse:
    figure = render_figure("compass", "", state_of(request), None, origin_of(request))
    shelf = current_book()
    context = {"book": shelf, "figure": figure, "trails": paths.trails(shelf.language).values()}
    return render(request, "concepts/home.html", context)


@require_safe
def paths_page(request: HttpRequest) -> HttpResponse:
    trails = paths.trails(current_book().language).values()
    return render(request, "concepts/paths.html", {"trails": trails})


@require_safe
def path_page(request: HttpRequest, slug: str) -> HttpResponse:
    try:
        trail = paths.trails(current_book().language)[slug]
    except KeyError:
        raise Http404(slug) from None
    return render(request, "concepts/path.html", {"trail": trail})


@require_safe
def changes_page(request: HttpRequest) -> HttpResponse:
    return render(request, "concepts/changes.html", {"changes": changes(current_book().language)})


@require_safe
@cache_control(public=True, max_age=86_400)
def card(request: HttpRequest) -> HttpResponse:
    return HttpResponse(picture(), content_type="image/png")


@require_safe
def whole_book(request: HttpRequest) -> HttpResponse:
    found = whole.sections(current_book().language)
    return render(request, "concepts/whole/page.html", {"sections": found})


@require_safe
def concept(request: HttpRequest, slug: str) -> HttpResponse:
    page = _page(slug)
    state = state_of(request)
    shelf = current_book()
    trail = paths.trail_of(state, page, shelf.language)
    body = "".join(_place(request, piece, state, page) for piece in page.pieces)
    words = paths.along(body, trail) if trail else body
    context = {
        "page": page,
        "part": shelf.parts[page.part - 1],
        "way": paths.place(trail, slug) if trail else None,
        "body": mark_safe(words),  # noqa: S308  (our own Markdown, with HTML off, and escaped figures)
        "canonical": reverse("concepts:concept", args=[slug]),
        "described": described.script(page, shelf, origin_of(request)),
    }
    return render(request, "concepts/concept.html", context)


def _page(slug: str) -> Page:
    try:
        return current_book().pages[slug]
    except KeyError:
        raise Http404(slug) from None


def _place(request: HttpRequest, piece: Piece, state: Mapping[str, str], page: Page) -> str:
    if isinstance(piece, str):
        return piece
    home = reverse("concepts:concept", args=[page.slug])
    if isinstance(piece, Ask):
        return asks.render(piece, state, home, carried(page, state, but=piece.field))
    if isinstance(piece, Listing):
        return lists.render(piece.name, current_book(), state, home, carried(page, state, but=""))
    if isinstance(piece, Check):
        return embed.render(request, piece.slug, piece.case, home, carried(page, state, but=""))
    return render_figure(piece.figure, piece.part, state, page, origin_of(request))


def render_figure(name: str, part: str, state: Mapping[str, str], page: Page | None, origin: str) -> str:
    """The part of a figure; kept for the states that are asked for most, since it depends on nothing else."""
    items = tuple(state.items())
    language = get_language() or ""
    if sum(len(key) + len(value) for key, value in items) > CACHED_QUERY:
        return FIGURES[name].render(state, links_of(name, page, state, origin), part)
    return _rendered(name, part, items, slug=page and page.slug, origin=origin, language=language)


@lru_cache(maxsize=128)
def _rendered(
    name: str, part: str, items: tuple[tuple[str, str], ...], *, slug: str | None, origin: str, language: str
) -> str:
    state = dict(items)
    return FIGURES[name].render(state, links_of(name, _page(slug) if slug else None, state, origin), part)


@require_safe
def figure(request: HttpRequest, name: str, form: str, slug: str | None = None) -> HttpResponse:
    """One figure as a fragment (for htmx), as JSON, or as a picture."""
    page = _page(slug) if slug else None
    owned = page.figures if page else {"compass"}
    if name not in owned:
        raise Http404(name)
    answer = FORMS[form](request, FIGURES[name], links_of(name, page, state_of(request), origin_of(request)))
    patch_vary_headers(answer, ["HX-Request"])
    return answer


def _fragment(request: HttpRequest, figure: Figure, links: Links) -> HttpResponse:
    state = state_of(request)
    query = "&".join(filter(None, (figure.query(state), urlencode(links.others, safe="[],"))))
    address = f"{links.page}?{query}" if query else links.page
    if not request.headers.get("HX-Request"):
        # Someone opened the fragment itself: show them the page around it.
        return redirect(f"{links.page}?{urlencode(state)}" if state else links.page)
    return HttpResponse(figure.fragment(state, links), headers={"HX-Replace-Url": address})


def _json(request: HttpRequest, figure: Figure, links: Links) -> HttpResponse:
    data: dict[str, Any] = figure.data(state_of(request))
    status = 422 if "problems" in data else 200
    return HttpResponse(json.dumps(data, allow_nan=False), status=status, content_type="application/json")


def _svg(request: HttpRequest, figure: Figure, links: Links) -> HttpResponse:
    return HttpResponse(figure.svg(state_of(request)), content_type="image/svg+xml; charset=utf-8")


FORMS = {"html": _fragment, "json": _json, "svg": _svg}
