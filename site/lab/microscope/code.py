"""The stages of a compilation as text: numbered, searched, each line with the source line that it came of."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from django.http import QueryDict

from kernels.machine_code import Place, places
from lab.microscope import compiled, compiles
from lab.runs import choice as choices
from workers.models import Run

STAGES = ("ptx", "sass", "ttgir", "ttir", "llir")
WITH_PLACES = ("ptx", "sass")
SHOWN = 240  # lines at a time
MOST_FOUND = 240
WIDEST = 400  # characters of a line
AROUND = 9  # source lines before and after the one that is looked at


@dataclass(frozen=True)
class Choice:
    """What the address asks for."""

    target: str
    kernel: str
    stage: str
    find: str
    first: int  # the first line that is shown, from 1
    at: str  # a source line: kernels/flash/kernel.py:59

    @classmethod
    def read(cls, query: QueryDict) -> "Choice":
        return cls(
            target=query.get("target", ""),
            kernel=query.get("kernel", ""),
            stage=choices.one_of(query.get("stage", ""), list(STAGES)),
            find=query.get("find", "")[:80],
            first=max(1, choices.index(query.get("from", "1"), 10**8)),
            at=query.get("at", "")[:120],
        )


class Link:
    """The address of a compilation's code, with some of it changed."""

    def __init__(self, choice: Choice, key: str) -> None:
        self.kept = {
            "key": key,
            "target": choice.target,
            "kernel": choice.kernel,
            "stage": choice.stage,
            "find": choice.find,
            "from": str(choice.first) if choice.first > 1 else "",
            "at": choice.at,
        }

    def to(self, **changes: str) -> str:
        state = self.kept | {name.rstrip("_"): value for name, value in changes.items()}
        return "?" + urlencode({name: value for name, value in state.items() if value})


def section(run: Run, figures: Mapping[str, Any], choice: Choice, key: str) -> dict[str, Any] | None:
    """A part of a text, and of the source; None where the text is gone."""
    text = compiles.text(run, figures, choice.stage)
    if text is None:
        return None
    link = Link(choice, key)
    lines = text.split("\n")
    whence = places(text, choice.stage)
    found = search(lines, whence, choice.find) if choice.find else None
    first = min(choice.first, max(1, len(lines)))
    shown = (
        found[:MOST_FOUND]
        if found is not None
        else list(range(first - 1, min(first - 1 + SHOWN, len(lines))))
    )
    at = choice.at or next(
        (name_of(place) for n in shown if (place := whence[n]) and "kernels/" in place.file), ""
    )
    return {
        "stages": [(stage, link.to(stage=stage, from_=""), stage == choice.stage) for stage in STAGES],
        "rows": [row(n, lines[n], whence[n], link, at) for n in shown],
        "count": len(lines),
        "found": None if found is None else len(found),
        "is_cut": found is not None and len(found) > MOST_FOUND,
        "most": MOST_FOUND,
        "first": first,
        "last": shown[-1] + 1 if shown else 0,
        "previous": link.to(from_=str(max(1, first - SHOWN))) if found is None and first > 1 else "",
        "next": link.to(from_=str(first + SHOWN)) if found is None and first - 1 + SHOWN < len(lines) else "",
        "all": link.to(find=""),
        "has_places": choice.stage in WITH_PLACES,
        "source": source(figures, at, link),
        "kept": [
            (name, value) for name, value in link.kept.items() if value and name not in ("find", "from")
        ],
    }


def search(lines: list[str], whence: list[Place | None], wanted: str) -> list[int]:
    """The lines that hold a text, or that came of a source line written kernel.py:59."""
    low = wanted.lower()
    return [
        n
        for n, (line, place) in enumerate(zip(lines, whence, strict=True))
        if low in line.lower() or (place is not None and name_of(place).lower().endswith(low))
    ]


def name_of(place: Place) -> str:
    return f"{place.file}:{place.line}"


def row(n: int, line: str, place: Place | None, link: Link, at: str) -> dict[str, Any]:
    is_ours = place is not None and place.file.startswith("kernels/")
    return {
        "number": n + 1,
        "href": link.to(find="", from_=str(max(1, n + 1 - SHOWN // 4))),
        "text": line if len(line) <= WIDEST else line[:WIDEST] + " …",
        "place": "" if place is None else f"{place.file.rpartition('/')[2]}:{place.line}",
        "place_href": link.to(at=name_of(place)) if place is not None and is_ours else "",
        "is_lit": place is not None and name_of(place) == at,
    }


def source(figures: Mapping[str, Any], at: str, link: Link) -> dict[str, Any] | None:
    """The source around a line; None where no line is asked for."""
    file, colon, number = at.rpartition(":")
    if not colon or not number.isascii() or not number.isdigit() or len(number) > 6:
        return None
    lines, line = compiled.source(figures, file), int(number)
    if lines is None or not 0 < line <= len(lines):
        return {"file": file, "line": line, "is_gone": True}
    counts = {
        one["line"]: one["instructions"]["total"]
        for one in figures.get("source_lines", [])
        if one["file"] == file
    }
    first = max(1, line - AROUND)
    return {
        "file": file,
        "line": line,
        "only": link.to(find=f"{file.rpartition('/')[2]}:{line}", from_=""),
        "rows": [
            {
                "number": n,
                "href": link.to(at=f"{file}:{n}"),
                "text": lines[n - 1],
                "count": counts.get(n, 0),
                "is_lit": n == line,
            }
            for n in range(first, min(line + AROUND, len(lines)) + 1)
        ],
    }
