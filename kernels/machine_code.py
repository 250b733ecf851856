"""Reading what a kernel was compiled to: which instructions stand in it, and which source line each came of.

The compiler writes where code comes from into PTX (``.loc``) and machine code (``//## File``). What a helper
was inlined into is not known of machine code: an instruction belongs to the line of the helper itself.
Text only: no torch, no triton.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

# Machine instructions (SASS) by what they do, as patterns over the opcode.
INSTRUCTIONS = {
    "mma": r"[HIDQO]MMA",
    "wgmma": r"[HIQ]GMMA",
    "tcgen05": r"UTC\w*MMA",
    "ld_global": r"LDG",
    "st_global": r"STG",
    "cp_async": r"LDGSTS",
    "tma_load": r"UTMALDG|UBLKCP",
    "ld_shared": r"LDS|LDSM",
    "st_shared": r"STS|STSM",
    "spill_load": r"LDL",
    "spill_store": r"STL",
    "ffma": r"FFMA2?",
    "exp": r"MUFU\.EX2",
    "shuffle": r"SHFL",
    "barrier": r"BAR|SYNCS",
    "branch": r"BRA",
}
PATTERNS = {kind: re.compile(rf"(?:{pattern})(?:\.|$)") for kind, pattern in INSTRUCTIONS.items()}
OPCODE = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\d\s+)?([A-Z][A-Z0-9_.]*)")
IN_SASS = re.compile(r'^\s*//## File "([^"]+)", line (\d+)')
IN_PTX = re.compile(r"^\s*\.loc\s+(\d+)\s+(\d+)")
PTX_FILE = re.compile(r'^\s*\.file\s+(\d+)\s+"([^"]+)"', re.MULTILINE)
REGISTER = re.compile(r"%([a-z]+)\d+")
LABEL = re.compile(r"\$L__BB\d+_\d+")
ROOT = Path(__file__).parent.parent
OURS = re.compile(r"kernels/(?:[a-z_0-9]+/)*[a-z_0-9]+\.py")


class Place(NamedTuple):
    """A line of a source file: kernels/flash/kernel.py, or a file of Triton's own."""

    file: str
    line: int


@dataclass(frozen=True)
class SourceLine:
    """What of the machine code came of one source line."""

    file: str
    line: int
    instructions: dict[str, int]  # by kind, those that there are; and "total"

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return {"file": self.file, "line": self.line, "instructions": self.instructions}


def count_instructions(sass: str) -> dict[str, int]:
    """How often each kind of INSTRUCTIONS stands in the code (not how often it runs)."""
    return _by_kind(opcode for _, opcode in _opcodes(sass))


def source_lines(sass: str) -> list[SourceLine]:
    """The machine code by source line, in the order of files and lines."""
    found: dict[Place, list[str]] = {}
    for place, opcode in _opcodes(sass):
        if place is not None:
            found.setdefault(place, []).append(opcode)
    return [
        SourceLine(*place, {kind: count for kind, count in _by_kind(found[place]).items() if count})
        for place in sorted(found)
    ]


def places(text: str, stage: str) -> list[Place | None]:
    """Where each line of PTX or machine code ("ptx", "sass") comes from, as far as it says so."""
    files = dict(PTX_FILE.findall(text))
    found: list[Place | None] = []
    now = None
    for line in text.split("\n"):
        if stage == "sass" and (match := IN_SASS.match(line)):
            now = Place(match[1], int(match[2]))
        elif stage == "ptx" and (match := IN_PTX.match(line)):
            now = Place(files[match[1]], int(match[2])) if match[1] in files else None
        found.append(now)
    return found


def skeleton(ptx: str) -> list[str]:
    """PTX to be compared with other PTX: without comments, line numbers and debugging sections, and without
    the numbers of registers and labels, which shift as soon as anything is added."""
    found = []
    for line in ptx.split("\n"):
        if line.lstrip().startswith((".file", ".section\t.debug")):
            break
        bare = line.split("//")[0].rstrip()
        if bare and not bare.lstrip().startswith((".loc", "$L__tmp", "$L__func", ".reg")):
            found.append(LABEL.sub("$L", REGISTER.sub(r"%\1", bare)))
    return found


def digests(files: Iterable[str]) -> dict[str, str]:
    """SHA-256 of those files that are ours, as they are now."""
    return {
        file: hashlib.sha256(source).hexdigest()
        for file in sorted(set(files))
        if (source := source_of(file)) is not None
    }


def source_of(file: str) -> bytes | None:
    """The content of a file of this package, by its path from the root; None where it is none."""
    path = ROOT / file
    return path.read_bytes() if OURS.fullmatch(file) and path.is_file() else None


def _opcodes(sass: str) -> Iterator[tuple[Place | None, str]]:
    for place, line in zip(places(sass, "sass"), sass.split("\n"), strict=True):
        if match := OPCODE.match(line):
            yield place, match[1]


def _by_kind(opcodes: Iterable[str]) -> dict[str, int]:
    counts = Counter(opcodes)
    kinds = {
        kind: sum(count for opcode, count in counts.items() if pattern.match(opcode))
        for kind, pattern in PATTERNS.items()
    }
    return {**kinds, "total": counts.total()}
