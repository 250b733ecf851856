"""Cursor pages: `{next, previous, results}`, newest first."""

from collections.abc import Callable
from datetime import UTC
from typing import Any

from django.db.models import QuerySet
from django.utils.dateparse import parse_datetime
from rest_framework.exceptions import NotFound
from rest_framework.pagination import Cursor, CursorPagination
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from api.errors import Problem


class NewestFirst(CursorPagination):
    ordering = ("-created_at", "id")
    page_size = 20
    max_page_size = 100
    page_size_query_param = "limit"

    def decode_cursor(self, request: Request) -> Cursor | None:
        """The cursor of the URL; one that we did not make is a 400 rather than a surprise in the query."""
        unknown = Problem(400, "The cursor is not one of ours; follow `next` and `previous` as they are.")
        try:
            cursor = super().decode_cursor(request)
        except NotFound:
            raise unknown from None
        if cursor is not None and cursor.position is not None and not _is_moment(str(cursor.position)):
            raise unknown
        return cursor


def _is_moment(text: str) -> bool:
    """Whether it is one that a database can look for, as ours are: with an offset, in the calendar."""
    try:
        found = parse_datetime(text)
        return found is not None and found.tzinfo is not None and bool(found.astimezone(UTC))
    except (ValueError, OverflowError):
        return False


def newest_first(view: APIView, rows: QuerySet[Any], represent: Callable[[Any], Any]) -> Response:
    """The page of `rows` that the request asks for."""
    pages = NewestFirst()
    page = pages.paginate_queryset(rows, view.request, view=view) or []
    return pages.get_paginated_response([represent(row) for row in page])
