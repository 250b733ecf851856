"""How programs come in: the Python client, and recipes for what teachers use already.

The recipes are docs/recipes: a text each, and files beside it that are to be copied. Here they name this lab
instead of an example, so that they work as they are. What is copied has addresses without a language.
"""

import hashlib
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from django.conf import settings
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import path, reverse
from django.utils.safestring import SafeString
from django.views.decorators.http import require_safe

from classroom import statements

CLIENT = Path(__file__).parent / "client" / "attention_lab.py"
FOLDER = settings.ROOT / "docs" / "recipes"
RECIPES = ("python", "gradescope", "github-classroom", "notebook", "curl")
EXAMPLE = "https://attention-lab.example"


@dataclass(frozen=True)
class Client:
    content: bytes
    version: str
    sha256: str  # hex


@dataclass(frozen=True)
class File:
    """To be copied."""

    name: str
    text: str
    address: str


@dataclass(frozen=True)
class Recipe:
    slug: str
    title: str
    text: SafeString
    files: list[File]


@cache
def client() -> Client:
    content = CLIENT.read_bytes()
    version = re.search(rb'^__version__ = "([^"]+)"', content, re.MULTILINE)
    return Client(content, version[1].decode() if version else "", hashlib.sha256(content).hexdigest())


@require_safe
def client_file(request: HttpRequest) -> HttpResponse:
    found = client()
    headers = {
        "Cache-Control": "no-cache",
        "ETag": f'"{found.sha256}"',
        "X-Checksum-Sha256": found.sha256,
        "X-Client-Version": found.version,
    }
    return HttpResponse(found.content, content_type="text/x-python; charset=utf-8", headers=headers)


@require_safe
def client_checksum(request: HttpRequest) -> HttpResponse:
    """As `sha256sum --check` reads it."""
    return HttpResponse(f"{client().sha256}  {CLIENT.name}\n", content_type="text/plain; charset=utf-8")


@require_safe
def recipe_file(request: HttpRequest, slug: str, name: str) -> HttpResponse:
    if slug not in RECIPES or name not in names_of(slug):
        raise Http404
    headers = {"Content-Disposition": f'attachment; filename="{name}"', "Cache-Control": "no-cache"}
    text = here(request, (FOLDER / slug / name).read_text())
    return HttpResponse(text, content_type="text/plain; charset=utf-8", headers=headers)


@require_safe
def page(request: HttpRequest) -> HttpResponse:
    context = {
        "client": client(),
        "client_address": request.build_absolute_uri(reverse("client:client")),
        "recipes": [recipe(request, slug) for slug in RECIPES],
    }
    return render(request, "classroom/recipes.html", context)


def recipe(request: HttpRequest, slug: str) -> Recipe:
    title, text = read(slug)
    files = [
        File(
            name,
            here(request, (FOLDER / slug / name).read_text()),
            reverse("client:recipe", kwargs={"slug": slug, "name": name}),
        )
        for name in names_of(slug)
    ]
    return Recipe(slug, title, statements.to_html(here(request, text)), files)


def read(slug: str) -> tuple[str, str]:
    """Its title, and its text for no lab in particular."""
    title, _, text = (FOLDER / f"{slug}.md").read_text().partition("\n")
    return title.removeprefix("# "), text


def names_of(slug: str) -> list[str]:
    """The files of a recipe."""
    return sorted(each.name for each in (FOLDER / slug).glob("*") if each.is_file())


def here(request: HttpRequest, text: str) -> str:
    """`text` with the address of this lab in the place of the example."""
    return text.replace(EXAMPLE, request.build_absolute_uri("/").rstrip("/"))


app_name = "client"
urlpatterns = [
    path("attention_lab.py", client_file, name="client"),
    path("attention_lab.py.sha256", client_checksum, name="checksum"),
    path("recipes/<slug:slug>/<str:name>", recipe_file, name="recipe"),
]
