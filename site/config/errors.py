"""What a request gets when no view answers it: problem+json under /api/, a page that helps elsewhere."""

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render

API = "/api/"


def _answer(request: HttpRequest, status: int, title: str, detail: str) -> HttpResponse:
    if request.path.startswith(API):
        problem = {"type": "about:blank", "title": title, "status": status, "detail": detail}
        return JsonResponse(problem, status=status, content_type="application/problem+json")
    return render(request, f"{status}.html", status=status)


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    return _answer(request, 400, "Bad request", "The request could not be understood.")


def forbidden(request: HttpRequest, exception: Exception) -> HttpResponse:
    return _answer(request, 403, "Forbidden", "You may not do this.")


def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    return _answer(request, 404, "Not found", f"Nothing is at {request.path}.")


def server_error(request: HttpRequest) -> HttpResponse:
    return _answer(request, 500, "Server error", "The error is ours and has been logged. Try again in a moment.")
