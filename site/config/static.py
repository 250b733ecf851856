"""Collect the static files, when one has changed since the last time (`python -m config.static`)."""

import fcntl
import hashlib
import json
import os
import sys
from pathlib import Path

import django

# The browsable API is switched off; its pages' scripts would only take time to compress.
NOT_SERVED = ["rest_framework"]


def build() -> bool:
    """Bring STATIC_ROOT up to date; whether there was anything to do. Needs Django to be set up."""
    from django.conf import settings
    from django.contrib.staticfiles.finders import get_finders
    from django.core.management import call_command

    root = Path(settings.STATIC_ROOT)
    root.mkdir(parents=True, exist_ok=True)
    sources = [
        (path, Path(storage.path(path)).stat())
        for finder in get_finders()
        for path, storage in finder.list(NOT_SERVED)
    ]
    listing = json.dumps(sorted((path, info.st_size, info.st_mtime_ns) for path, info in sources))
    digest = hashlib.sha256(listing.encode()).hexdigest()
    stamp = root / ".built-from"
    with (root / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if stamp.exists() and stamp.read_text() == digest:
            return False
        sys.stdout.write("Building the static files\n")
        sys.stdout.flush()
        call_command("collectstatic", interactive=False, verbosity=0, ignore_patterns=NOT_SERVED)
        stamp.write_text(digest)
        return True


if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    django.setup()
    build()
