"""Which runs an address compares: `runs=<a>,<b>`, and `key.<id>=` for each that belongs to somebody."""

from dataclasses import dataclass
from urllib.parse import parse_qs, urlencode, urlsplit

from django.http import Http404, HttpRequest, QueryDict
from django.urls import reverse

from lab.opening import find_by
from lab.runs.choice import index
from workers.models import Run

MOST = 4
FIELD, KEY = "runs", "key."
ASKED = ("with", "batch", "head", "row", "col")  # what is looked at
BOX = "run"  # a field of the form in which addresses of runs are pasted


@dataclass(frozen=True)
class Chosen:
    """Up to four runs; the first is what the others are held against."""

    runs: tuple[Run, ...]
    keys: dict[str, str]  # by the ids of those that need one

    @property
    def query(self) -> list[tuple[str, str]]:
        """What says so in an address."""
        ids = ",".join(run.id for run in self.runs)
        return [(FIELD, ids), *((f"{KEY}{run_id}", key) for run_id, key in self.keys.items())]

    @property
    def first(self) -> Run:
        return self.runs[0]

    @property
    def others(self) -> tuple[Run, ...]:
        return self.runs[1:]

    def second(self, query: QueryDict) -> Run | None:
        """The other run that is looked at closely."""
        return self.others[index(query.get("with", ""), len(self.others))] if self.others else None

    def address(self, name: str = "lab:compare", **more: object) -> str:
        kwargs = {"map_name": more.pop("map_name")} if "map_name" in more else None
        return f"{reverse(name, kwargs=kwargs)}?{urlencode([*self.query, *more.items()])}"

    def page_of(self, run: Run) -> str:
        """The page of one of them."""
        key = self.keys.get(run.id)
        address = reverse("lab:run", kwargs={"run_id": run.id})
        return f"{address}?{urlencode({'key': key})}" if key else address

    def with_run(self, run: Run) -> "Chosen":
        return Chosen((*self.runs, run)[:MOST], self.keys)


def read(request: HttpRequest) -> Chosen:
    """The runs of the query string. Http404 where one of them is not there, or not for this address."""
    ids = [part for part in request.GET.get(FIELD, "").split(",") if part][:MOST]
    shared = request.GET.get("key", "")  # of the page that this one was reached from
    keys = {run_id: request.GET.get(f"{KEY}{run_id}", "") or shared for run_id in ids}
    found = tuple(find_by(run_id, keys[run_id]) for run_id in dict.fromkeys(ids))
    if not found:
        raise Http404
    return Chosen(found, {run.id: keys[run.id] for run in found if run.owner})


def of_run(run: Run, key: str) -> Chosen:
    return Chosen((run,), {run.id: key} if run.owner else {})


def of_boxes(texts: list[str]) -> list[tuple[str, str]]:
    """What an address of runs says, from addresses of their pages (or bare ids) that somebody pasted."""
    named = [one for text in texts[:MOST] if (one := _named(text.strip()[:500]))]
    keys = [(f"{KEY}{run_id}", key) for run_id, key in named if key]
    return [(FIELD, ",".join(run_id for run_id, _key in named)), *keys] if named else []


def _named(text: str) -> tuple[str, str] | None:
    """The id and the key in an address; of what is no address the text itself, which is no run either."""
    try:
        parts = urlsplit(text)
    except ValueError:  # http://[
        return text, ""
    words = [word for word in parts.path.split("/") if word]
    if not words:
        return None
    run_id = words[words.index("runs") + 1] if "runs" in words[:-1] else words[-1]
    return run_id, parse_qs(parts.query).get("key", [""])[0]
