"""Reading settings from the environment, loudly: a bad value stops the start and names itself."""

import os
from pathlib import Path

from django.core.exceptions import ImproperlyConfigured

TRUE = {"1", "true", "yes", "on"}
FALSE = {"0", "false", "no", "off", ""}


def text(name: str, default: str = "") -> str:
    """`NAME`, or the content of the file that `NAME_FILE` points at (container secrets)."""
    path = os.environ.get(f"{name}_FILE")
    if path is None:
        return os.environ.get(name, default)
    try:
        return Path(path).read_text().strip()
    except OSError as error:
        raise ImproperlyConfigured(f"{name}_FILE={path}: {error.strerror}") from error


def integer(name: str, default: int) -> int:
    value = text(name, str(default))
    try:
        return int(value)
    except ValueError:
        raise ImproperlyConfigured(f"{name}={value!r} is not a whole number") from None


def flag(name: str, default: bool) -> bool:
    value = text(name, str(int(default))).lower()
    if value not in TRUE | FALSE:
        raise ImproperlyConfigured(f"{name}={value!r} is neither 1 nor 0")
    return value in TRUE


def words(name: str, default: str) -> list[str]:
    return [word.strip() for word in text(name, default).split(",") if word.strip()]
