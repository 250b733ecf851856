"""Addresses of one head of a run: of its page, its pictures, and its cells."""

from urllib.parse import urlencode

from django.http import HttpRequest
from django.urls import reverse

from lab.runs.choice import Choice, kept
from lab.runs.maps import Map, Picture, pictures
from workers.models import Run


class Links:
    """They keep the share key, and what else was chosen."""

    def __init__(self, run: Run, request: HttpRequest, choice: Choice) -> None:
        self.run, self.request, self.choice = run, request, choice
        key = request.GET.get("key", "")
        self.keyed = [("key", key)] if key else []
        self.head = [("batch", str(choice.batch)), ("head", str(choice.head))]

    def to(self, name: str, *more: tuple[str, str], **kwargs: str) -> str:
        address = reverse(f"lab:{name}", kwargs={"run_id": self.run.id, **kwargs})
        query = urlencode([*self.keyed, *self.head, *self.source, *more])
        return f"{address}?{query}"

    def bare(self, name: str) -> str:
        """Without what follows the question mark."""
        return reverse(f"lab:{name}", kwargs={"run_id": self.run.id})

    @property
    def source(self) -> list[tuple[str, str]]:
        return [("from", self.choice.source)] if self.choice.source else []

    @property
    def kept(self) -> list[tuple[str, str]]:
        """Whatever was chosen but the cell."""
        return [(name, value) for name, value in kept(self.request.GET) if name not in ("row", "col")]

    def cell(self, query: int, key: int) -> str:
        return "?" + urlencode([*self.kept, ("row", str(query)), ("col", str(key))]) + "#look"

    def pictures(self, one: Map) -> list[Picture]:
        """The same addresses for all cells of a part."""
        at = self.choice.part
        part = [("zoom", str(at.side)), ("row", str(at.top)), ("col", str(at.left))] if at.side else []

        def address(*more: tuple[str, str]) -> str:
            return self.to("picture", *part, *more, map_name=one.name)

        return pictures(one, address)
