"""The Procfile: the one place that says how each process is started.

`make run`, the tests and docker-compose.yml (checked by a test) all use its lines, each through
`sh -c "exec …"` so that variables expand and signals reach the process itself.
"""

import re
from pathlib import Path

PATH = Path(__file__).resolve().parents[2] / "Procfile"


def commands(path: Path = PATH) -> dict[str, str]:
    """{process: shell command} in the order of the file; ValueError names a line that is neither."""
    found: dict[str, str] = {}
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        name, colon, command = line.partition(":")
        if not colon or not name.isidentifier() or not command.strip():
            raise ValueError(f"{path}:{number}: expected 'name: command', found {line!r}")
        found[name] = command.strip()
    return found


def argv(name: str) -> list[str]:
    """What to execute for `name`; KeyError when the Procfile does not have it."""
    return ["/bin/sh", "-c", f"exec {commands()[name]}"]


def process_of(queue: str) -> str:
    """The process that serves `queue`; KeyError when none does."""
    for name, command in commands().items():
        if re.search(rf"--queues {re.escape(queue)}\s", command):
            return name
    raise KeyError(queue)
