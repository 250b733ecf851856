"""Uploaded files: kept as they came for a day, read array by array when a run asks for them."""

import datetime
import hashlib
from collections.abc import Callable
from typing import IO, Any, cast

import numpy as np
from django.conf import settings
from django.core.files.storage import default_storage
from django.core.files.uploadedfile import UploadedFile
from django.db import DatabaseError
from django.db.models import Min, Sum
from django.utils import timezone

from api.callers import Caller
from api.errors import Problem
from api.models import Upload
from api.uploads import arrayfiles
from kernels.spec import FieldProblem

KEPT = datetime.timedelta(hours=24)
ANONYMOUS_BYTES = settings.ANONYMOUS_UPLOAD_BYTES
EXPIRE_AT_ONCE = 50
REMEDY = "send the file (again) to POST /api/v1/uploads; uploads are kept for 24 hours"


def bad_file(error: arrayfiles.BadFile) -> Problem:
    """The problem of a file that cannot be used; its part of the form is called `file`."""
    field = FieldProblem("/file", error.code, error.detail, error.status)
    return Problem(error.status, f"file: {error.detail}", errors=[field])


def save(file: "UploadedFile[Any]", caller: Caller) -> Upload:
    """Check every array of `file` and keep it. Raises Problem, having kept nothing."""
    try:
        content = cast(IO[bytes], file.file)
        members = arrayfiles.index(content, file.name or "")
        for member in members:  # one at a time: damage shows only when all is read
            arrayfiles.read(content, member)
    except arrayfiles.BadFile as error:
        raise bad_file(error) from error
    expire(EXPIRE_AT_ONCE)
    size = file.size or 0
    if caller.is_anonymous:
        _check_quota(caller, size)
    now = timezone.now()
    upload = Upload(
        owner=caller.owner,
        caller=caller.address,
        file_name=(file.name or "")[:255],
        size=size,
        arrays=[{"name": m.name, "shape": list(m.shape), "dtype": m.dtype} for m in members],
        created_at=now,
        expires_at=now + KEPT,
    )
    file.seek(0)
    default_storage.save(upload.path, file)
    try:
        upload.save(force_insert=True)
    except DatabaseError:
        default_storage.delete(upload.path)
        raise
    return upload


def fingerprint(file: "UploadedFile[Any]") -> str:
    """A digest of name and content (the body itself holds a boundary, new on every attempt)."""
    digest = hashlib.sha256((file.name or "").encode() + b"\0")
    for chunk in file.chunks():
        digest.update(chunk)
    return digest.hexdigest()


def loader(caller: Caller) -> Callable[[str, str], np.ndarray[Any, Any]]:
    """For kernels.spec.parse_run: the array `name` of an upload that the caller may use, or KeyError(why)."""
    found: dict[str, Upload] = {}

    def load(upload_id: str, name: str) -> np.ndarray[Any, Any]:
        upload = found.get(upload_id) or find(upload_id, caller)
        if upload is None:
            raise KeyError(f"there is no upload {upload_id[:40]!r}; {REMEDY}")
        found[upload_id] = upload
        names = [array["name"] for array in upload.arrays]
        if name not in names:
            raise KeyError(f"upload {upload_id} has no array {name[:40]!r}; it has {', '.join(names)}"[:500])
        try:
            with default_storage.open(upload.path) as file:
                content = cast(IO[bytes], file.file)
                members = {member.name: member for member in arrayfiles.index(content, upload.file_name)}
                return arrayfiles.read(content, members[name])
        except (OSError, arrayfiles.BadFile, KeyError) as error:
            raise KeyError(f"upload {upload_id} can no longer be read; {REMEDY}") from error

    return load


def find(upload_id: str, caller: Caller) -> Upload | None:
    if not (upload_id.isascii() and upload_id.isalnum()):
        return None
    upload = Upload.objects.filter(pk=upload_id, expires_at__gt=timezone.now()).first()
    return upload if upload and caller.may_see(upload.owner) else None


def expire(at_most: int = 10_000) -> int:
    """Delete uploads whose time is over, file first; returns how many."""
    gone = list(Upload.objects.filter(expires_at__lte=timezone.now()).order_by("expires_at")[:at_most])
    for upload in gone:
        default_storage.delete(upload.path)
    if gone:
        Upload.objects.filter(pk__in=[upload.pk for upload in gone]).delete()
    return len(gone)


def _check_quota(caller: Caller, size: int) -> None:
    now = timezone.now()
    kept = Upload.objects.filter(caller=caller.address, owner="", expires_at__gt=now).aggregate(
        bytes=Sum("size"), first=Min("expires_at")
    )
    if (kept["bytes"] or 0) + size > ANONYMOUS_BYTES:
        seconds = max(1, int((kept["first"] - now).total_seconds())) if kept["first"] else 60
        raise Problem(
            429,
            f"Without a token an address may keep {ANONYMOUS_BYTES // 1024**2} MiB of uploads; "
            "use those that are there, wait until they expire, or send a token.",
            kind="quota-exceeded",
            headers={"Retry-After": str(seconds)},
        )
