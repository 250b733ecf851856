"""A kernel's source beside its explanation: which files, cut where, with which words.

A note is anchored to code by name: `flash_forward`, a function or class of the file; or `flash_forward: m, l
=`, the one line of it that has this text. The code from there to the next anchor stands beside the note, so
that all of a file is on the page, in its order. A test finds an anchor that is no longer there.
"""

import ast
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from django.utils.safestring import SafeString

from lab.sources import highlight

ROOT = Path(__file__).resolve().parents[3]
Text = Any  # a string that may be translated later


class AnchorError(LookupError):
    """A note is about code that is not there, or not there once."""


@dataclass(frozen=True)
class Note:
    """What is said of the code from an anchor on; the empty one is the beginning of the file."""

    anchor: str
    title: Text
    text: Text


@dataclass(frozen=True)
class File:
    """A file of `kernels/`, by its path from the root of the project."""

    path: str
    notes: tuple[Note, ...]

    def read(self) -> str:
        return (ROOT / self.path).read_text(encoding="utf-8")


@dataclass(frozen=True)
class Kernel:
    """One page. `constants`: what the names of compile-time numbers mean, for those of a run."""

    slug: str
    title: Text
    lede: Text
    files: tuple[File, ...]
    constants: dict[str, Text] = field(default_factory=dict)
    concept: str = ""  # the page of the book that explains the idea


@dataclass(frozen=True)
class Part:
    """Lines of a file, from `first` on, and the note that they stand beside."""

    note: Note
    first: int
    code: SafeString
    id: str

    @property
    def numbers(self) -> str:
        """Of its lines, one below the other."""
        return "\n".join(map(str, range(self.first, self.last + 1)))

    @property
    def last(self) -> int:
        return self.first + self.code.count("\n")


@cache
def parts(file: File) -> tuple[Part, ...]:
    """The whole file, cut at its anchors. Raises AnchorError."""
    source = file.read()
    shown = highlight.lines(source)
    starts = [(line_of(note.anchor, source), note) for note in file.notes]
    if [line for line, _note in starts] != sorted({line for line, _note in starts}):
        raise AnchorError(f"{file.path}: notes are not in the order of the code, each with a line of its own")
    if not starts or starts[0][0] != 1:
        raise AnchorError(f"{file.path}: nothing is said of its beginning")
    ends = [line for line, _note in starts[1:]] + [len(shown) + 1]
    stem = Path(file.path).stem
    return tuple(
        Part(note, first, joined(shown[first - 1 : end - 1]), f"{stem}-{first}")
        for (first, note), end in zip(starts, ends, strict=True)
    )


def joined(lines: Sequence[SafeString]) -> SafeString:
    """Without the empty lines at the end."""
    return SafeString("\n".join(lines).rstrip("\n"))  # each is safe


def line_of(anchor: str, source: str) -> int:
    """The number of the line, from 1, that an anchor names. Raises AnchorError."""
    if not anchor:
        return 1
    name, _colon, text = anchor.partition(": ")
    found = [node for node in ast.parse(source).body if getattr(node, "name", None) == name]
    if len(found) != 1:
        raise AnchorError(f"{name!r} is defined {len(found)} times")
    node = found[0]
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    first = min([node.lineno, *(decorator.lineno for decorator in decorators)])
    if not text:
        return first
    lines = source.splitlines()
    there = [number for number in range(first, (node.end_lineno or first) + 1) if text in lines[number - 1]]
    if len(there) != 1:
        raise AnchorError(f"{text!r} is in {len(there)} lines of {name}")
    return there[0]
