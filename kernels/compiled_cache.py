"""What was compiled before, kept in files by a digest of everything it depends on.

Any number of processes may read and write one folder: a file appears under its name only when it is whole,
and whoever writes the same name writes the same content. No torch, no triton.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import tempfile
import time
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

MAX_BYTES = 256 * 2**20  # of a folder; an entry with its texts takes about 0.1 MB
DRAFT = ".draft-"
DRAFT_SECONDS = 3600.0  # an older draft was left by a process that died


class CompiledCache:
    """Records (JSON objects) in a folder, the least recently used removed when they are too many bytes."""

    def __init__(self, folder: Path, max_bytes: int = MAX_BYTES) -> None:
        self.folder, self.max_bytes = folder, max_bytes

    def get(self, key: str) -> dict[str, Any] | None:
        """The record; None where there is none, or where its file cannot be read."""
        path = self._path(key)
        try:
            record: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
        except (OSError, EOFError, ValueError, zlib.error):
            return None
        with contextlib.suppress(OSError):
            os.utime(path)  # used now
        return record

    def put(self, key: str, record: Mapping[str, Any]) -> None:
        """Keep a record. One that cannot be written is compiled again some day, and nothing else is lost."""
        with contextlib.suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True)
            descriptor, draft = tempfile.mkstemp(prefix=DRAFT, dir=self.folder)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(gzip.compress(json.dumps(record).encode(), compresslevel=6))
                os.replace(draft, self._path(key))
            except BaseException:
                os.unlink(draft)
                raise
            self._make_room()

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}.json.gz"

    def _make_room(self) -> None:
        """Remove the least recently used entries, and drafts that nobody will finish."""
        entries: list[tuple[float, int, str]] = []
        for entry in os.scandir(self.folder):
            with contextlib.suppress(FileNotFoundError):  # removed by another process meanwhile
                found = entry.stat()
                if not entry.name.startswith(DRAFT):
                    entries.append((found.st_mtime, found.st_size, entry.path))
                elif found.st_mtime < time.time() - DRAFT_SECONDS:
                    os.unlink(entry.path)
        excess = sum(size for _, size, _ in entries) - self.max_bytes
        for _, size, path in sorted(entries):
            if excess <= 0:
                return
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            excess -= size
