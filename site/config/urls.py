"""Every address of the product. Pages carry their language (/en/…); the REST API does not."""

from django.conf import settings
from django.conf.urls.i18n import i18n_patterns
from django.contrib.sitemaps.views import sitemap
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import include, path, reverse
from django.views.decorators.http import require_safe

from concepts.api import ConceptsView
from concepts.views import card
from config.sitemap import Pages
from search.views import anywhere

PRIVATE = ("lab/runs", "lab/history", "account", "classroom", "hand-in")


@require_safe
def root(request: HttpRequest) -> HttpResponse:
    return redirect("concepts:home")


@require_safe
def robots(request: HttpRequest) -> HttpResponse:
    """Pages are for everyone; other people's work is not for search engines."""
    lines = [
        "User-agent: *",
        "Disallow: /api/",
        *(f"Disallow: /{code}/{place}/" for code, _ in settings.LANGUAGES for place in PRIVATE),
        f"Sitemap: {request.build_absolute_uri(reverse('sitemap'))}",
    ]
    return HttpResponse("\n".join(lines) + "\n", content_type="text/plain")


urlpatterns = [
    path("", root, name="root"),
    path("robots.txt", robots),
    path("sitemap.xml", sitemap, {"sitemaps": {"pages": Pages}}, name="sitemap"),
    path("card.png", card, name="card"),
    path("search", anywhere, name="search"),
    path("api/v1/concepts", ConceptsView.as_view(), name="concepts_list"),
    path("api/v1/", include("api.urls")),
    path("client/", include("classroom.recipes")),
    *i18n_patterns(
        path("lab/", include("lab.urls")),
        path("search/", include("search.urls")),
        path("", include("classroom.urls")),
        path("", include("concepts.urls")),
    ),
]

handler400 = "config.errors.bad_request"
handler403 = "config.errors.forbidden"
handler404 = "config.errors.not_found"
handler500 = "config.errors.server_error"
