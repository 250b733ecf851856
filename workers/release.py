"""Which release of the product computes: its version, and the commit where that is known."""

import subprocess
import tomllib
from functools import cache

from django.conf import settings

SECONDS = 5


@cache
def release() -> dict[str, str | None]:
    """Of this process's code, as a run's environment has it."""
    project = tomllib.loads((settings.ROOT / "pyproject.toml").read_text())["project"]
    return {"version": project["version"], "commit": settings.COMMIT or _commit()}


def _commit() -> str | None:
    """Of the checkout that is run from, marked where it was changed; None where there is none."""
    command = (
        "git",
        "-C",
        str(settings.ROOT),
        "describe",
        "--always",
        "--dirty",
        "--abbrev=40",
        "--exclude=*",
    )
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip() or None
