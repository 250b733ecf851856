"""Every page that is for everybody, in each language, for search engines."""

from collections.abc import Iterator

from django.contrib.sitemaps import Sitemap
from django.urls import reverse
from django.utils.translation import get_language

from classroom.checks import library
from concepts.pages import book
from concepts.paths import trails
from lab.sources.kernels import KERNELS
from lab.templatetags.lab_places import PLACES

PRIVATE_PLACES = {"lab:history"}  # what is somebody's own
OTHERS = ("classroom:problems", "classroom:recipes")


class Pages(Sitemap):  # type: ignore[type-arg]
    """The same pages in each language; search engines are told of the others."""

    i18n = True
    alternates = True

    def items(self) -> list[tuple[str, tuple[str, ...]]]:
        return list(addresses(get_language() or "en"))

    def location(self, item: tuple[str, tuple[str, ...]]) -> str:
        name, arguments = item
        return reverse(name, args=arguments)


def addresses(language: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Names of addresses with their arguments."""
    for name in ("home", "paths", "changes", "whole"):
        yield f"concepts:{name}", ()
    for slug in book(language).pages:
        yield "concepts:concept", (slug,)
    for slug in trails(language):
        yield "concepts:path", (slug,)
    for name, _words in PLACES:
        if name not in PRIVATE_PLACES:
            yield name, ()
    for slug in KERNELS:
        yield "lab:kernel", (slug,)
    for name in OTHERS:
        yield name, ()
    for part in library.parts():
        for slug in part.slugs:
            yield "classroom:problem", (slug,)
