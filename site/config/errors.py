"""What a request gets when no view answers it: a problem document under /api/, else a page."""

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from api import errors as api


def _page(request: HttpRequest, status: int) -> HttpResponse:
    return render(request, f"{status}.html", status=status)


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    return api.handler400(request, exception) if api.is_api(request) else _page(request, 400)


def forbidden(request: HttpRequest, exception: Exception) -> HttpResponse:
    return api.handler403(request, exception) if api.is_api(request) else _page(request, 403)


def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    return api.handler404(request, exception) if api.is_api(request) else _page(request, 404)


def server_error(request: HttpRequest) -> HttpResponse:
    return api.handler500(request) if api.is_api(request) else _page(request, 500)
