"""What this browser submitted without an account: ids in a signed cookie, newest first, and nowhere else."""

from dataclasses import dataclass
from typing import Literal, TypeVar

from django.conf import settings
from django.http import HttpRequest, HttpResponse

from workers.models import ID_ALPHABET

COOKIE = "lab_history"
SALT = "lab.sharing.history"
MOST = 50  # entries; older ones are forgotten, so that the cookie stays below 2 KB
MAX_ID = 32

Kind = Literal["run", "sweep"]
LETTERS: dict[Kind, str] = {"run": "r", "sweep": "s"}
KINDS: dict[str, Kind] = {letter: kind for kind, letter in LETTERS.items()}
Response = TypeVar("Response", bound=HttpResponse)


@dataclass(frozen=True)
class Entry:
    kind: Kind
    id: str

    @property
    def word(self) -> str:
        """As the cookie has it."""
        return LETTERS[self.kind] + self.id


def remember(response: Response, request: HttpRequest, kind: Kind, row_id: str) -> Response:
    """`response`, with a cookie in which the run or sweep is the newest that this browser submitted."""
    newest = Entry(kind, row_id)
    return write(response, [newest, *(entry for entry in entries(request) if entry != newest)])


def forget(response: Response, request: HttpRequest, gone: Entry) -> Response:
    """`response`, with a cookie from which the run or sweep is gone."""
    return write(response, [entry for entry in entries(request) if entry != gone])


def forget_all(response: Response) -> Response:
    response.delete_cookie(COOKIE, samesite="Lax")
    return response


def entries(request: HttpRequest) -> list[Entry]:
    """Newest first. A cookie that is too old, or that we did not write, says nothing."""
    text = request.get_signed_cookie(COOKIE, default="", salt=SALT, max_age=seconds_kept())
    return [entry for word in (text or "").split(".") if (entry := parse(word))][:MOST]


def parse(word: str) -> Entry | None:
    kind, row_id = KINDS.get(word[:1]), word[1:]
    is_id = 0 < len(row_id) <= MAX_ID and set(row_id) <= set(ID_ALPHABET)
    return Entry(kind, row_id) if kind and is_id else None


def write(response: Response, kept: list[Entry]) -> Response:
    if not kept:
        return forget_all(response)
    response.set_signed_cookie(
        COOKIE,
        ".".join(entry.word for entry in kept[:MOST]),
        salt=SALT,
        max_age=seconds_kept(),
        httponly=True,
        samesite="Lax",
        secure=settings.HTTPS,
    )
    return response


def seconds_kept() -> int:
    """As long as what was submitted without an account is kept."""
    return settings.RETENTION_DAYS_ANONYMOUS * 24 * 3600
