"""The arrays of a run: in the row when they are small, else as files in Django's default storage.

    runs/<id>/submitted.safetensors     what the caller sent (absent when everything is seeded)
    runs/<id>/inputs-<n>.safetensors    what the engine saw on attempt n, after rounding
    runs/<id>/result-<n>.safetensors    what it returned on attempt n
    runs/<id>/texts-<n>.zip             the stages of a compilation, on attempt n

One file per kind and attempt: a worker that was given up for dead cannot touch what its successor
wrote, and the row's `attempt` says which file counts. What is small has the same content in a field
of the row instead: writing its files took longer than computing it. `.npy`, `.npz` and what holds a whole
run are made when asked for.
"""

import io
import json
import logging
import struct
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import IO, Any

import numpy as np
from django.core.files.base import ContentFile
from django.core.files.storage import default_storage
from safetensors import numpy as safetensors

from workers.models import Kind, Run

log = logging.getLogger(__name__)

Arrays = dict[str, np.ndarray]

BINARY = "application/octet-stream"
TEXT = "text/plain; charset=utf-8"
WHOLE = "run"  # the file with inputs, results and what they are
INLINE_BYTES = 16 * 1024
INLINE_FIELDS = ("submitted_inline", "inputs_inline", "result_inline")  # for lists to leave out
# safetensors' names for the dtypes that are ever stored
DTYPES = {
    "BOOL": np.dtype(bool),
    "U8": np.dtype("u1"),
    "U16": np.dtype("<u2"),
    "I32": np.dtype("<i4"),
    "I64": np.dtype("<i8"),
    "F16": np.dtype("<f2"),
    "F32": np.dtype("<f4"),
    "F64": np.dtype("<f8"),
}


def _folder(run_id: str) -> str:
    return f"runs/{run_id}"


def _path(run: Run, kind: str) -> str:
    suffix = "" if kind == "submitted" else f"-{run.attempt}"
    extension = "zip" if kind == "texts" else "safetensors"
    return f"{_folder(run.id)}/{kind}{suffix}.{extension}"


def _inline_or_saved(run: Run, kind: str, arrays: Mapping[str, np.ndarray]) -> bytes | None:
    """The arrays as bytes for the row; None when they are large and went to a file instead."""
    content = safetensors.save({name: np.asarray(array, order="C") for name, array in arrays.items()})
    if len(content) <= INLINE_BYTES:
        return bytes(content)
    _save(_path(run, kind), content)
    return None


def _save(path: str, content: bytes) -> None:
    saved = default_storage.save(path, ContentFile(content))
    if saved != path:  # the storage never overwrites: the name was taken by a repeated delivery
        default_storage.delete(saved)
        raise FileExistsError(path)


def _load(run: Run, kind: str, names: Iterable[str] | None = None) -> Arrays:
    """The arrays of a kind, or `names` alone; none when there is no such file."""
    try:
        file = _open(run, kind)
    except FileNotFoundError:
        return {}
    with file:
        if names is None:
            return safetensors.load(bytes(file.read()))
        header = _header(file)
        return {name: _one(file, header[name]) for name in names if name in header}


def _open(run: Run, kind: str) -> IO[bytes]:
    """The stored content of a kind; FileNotFoundError when there is none."""
    inline = getattr(run, f"{kind}_inline", None)
    if inline is not None:
        return io.BytesIO(inline)
    return default_storage.open(_path(run, kind))


def _read(run: Run, kind: str) -> bytes:
    with _open(run, kind) as file:
        return bytes(file.read())


def _header(file: IO[bytes]) -> dict[str, dict[str, Any]]:
    """{name: {dtype, shape, begin, end}} of a safetensors file: 8 bytes of length, then JSON."""
    (length,) = struct.unpack("<Q", file.read(8))
    described = json.loads(file.read(length))
    described.pop("__metadata__", None)
    for entry in described.values():
        entry["begin"], entry["end"] = (8 + length + offset for offset in entry["data_offsets"])
    return dict(described)


def _one(file: IO[bytes], entry: Mapping[str, Any]) -> np.ndarray:
    file.seek(entry["begin"])
    data = bytearray(file.read(entry["end"] - entry["begin"]))
    return np.frombuffer(data, DTYPES[entry["dtype"]]).reshape(entry["shape"])


def save_submitted(run: Run, arrays: Mapping[str, np.ndarray]) -> None:
    """Keep what was sent: in a file, or on `run`, which is still to be saved."""
    if arrays:
        run.submitted_inline = _inline_or_saved(run, "submitted", arrays)


def save_outcome(
    run: Run, inputs: Mapping[str, np.ndarray], results: Mapping[str, np.ndarray]
) -> dict[str, bytes | None]:
    """Keep what a run saw and returned; the fields of the row that are part of it."""
    return {
        "inputs_inline": _inline_or_saved(run, "inputs", inputs),
        "result_inline": _inline_or_saved(run, "result", results),
    }


def save_texts(run: Run, texts: Mapping[str, str]) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in texts.items():
            archive.writestr(name, text)
    _save(_path(run, "texts"), buffer.getvalue())


def load_submitted(run: Run) -> Arrays:
    return _load(run, "submitted")


def load_inputs(run: Run) -> Arrays:
    """What the engine saw, as sent but rounded; none when they are gone."""
    return _load(run, "inputs")


def load_results(run: Run, names: Iterable[str] | None = None) -> Arrays:
    """The results of a run, or those `names` alone: the others are not read from the file."""
    return _load(run, "result", names)


def load_result(run: Run, name: str) -> np.ndarray | None:
    """One result; None when the run has no such array or its file is gone."""
    return load_results(run, [name]).get(name)


def load_array(run: Run, name: str) -> np.ndarray | None:
    """One result, or else one input; None when the run has no such array or its file is gone."""
    return _load(run, "result" if name in run.array_info else "inputs", [name]).get(name)


def load_part(run: Run, name: str, *index: int) -> np.ndarray | None:
    """What a result holds at these indices of its first axes; the rest of it is not read. None as for
    `load_result`; IndexError where it has no such part."""
    try:
        file = _open(run, "result")
    except FileNotFoundError:
        return None
    with file:
        entry = _header(file).get(name)
        return None if entry is None else _one(file, _part(entry, index))


def _part(entry: Mapping[str, Any], index: Sequence[int]) -> dict[str, Any]:
    """Where in the file a part of an array is: it is contiguous."""
    shape, begin, size = entry["shape"], entry["begin"], entry["end"] - entry["begin"]
    for at, length in zip(index, shape, strict=False):
        if not 0 <= at < length:
            raise IndexError(f"no index {at} in an axis of {length}")
        size //= length
        begin += at * size
    return {**entry, "shape": shape[len(index) :], "begin": begin, "end": begin + size}


def names(run: Run) -> list[str]:
    """The names under which `open_artifact` answers for this run."""
    if run.kind == Kind.COMPILE:
        return list(run.array_info)
    arrays = [*run.array_info, *run.input_info]
    bundles = [f"{stem}.{form}" for stem in ("result", "inputs", WHOLE) for form in ("npz", "safetensors")]
    return [*(f"{name}.npy" for name in arrays), *bundles] if run.array_info else []


def open_artifact(run: Run, name: str) -> tuple[bytes, str]:
    """The content and media type of one artifact; KeyError(name) when the run has no such file."""
    if name not in names(run):
        raise KeyError(name)
    try:
        return _content(run, name), TEXT if run.kind == Kind.COMPILE else BINARY
    except FileNotFoundError:
        log.exception("run %s: the file behind %s is gone", run.id, name)
        raise KeyError(name) from None


def _content(run: Run, name: str) -> bytes:
    stem, _dot, extension = name.rpartition(".")
    if run.kind == Kind.COMPILE:
        with zipfile.ZipFile(io.BytesIO(_read(run, "texts"))) as archive:
            return archive.read(name)
    if stem == WHOLE:
        return _whole(run, extension)
    if extension == "safetensors":
        return _read(run, stem)
    buffer = io.BytesIO()
    if extension == "npz":
        np.savez(buffer, **safetensors.load(_read(run, stem)))  # type: ignore[arg-type]
    else:
        found = load_array(run, stem)
        if found is None:
            raise FileNotFoundError(name)
        np.save(buffer, found, allow_pickle=False)
    return buffer.getvalue()


def _whole(run: Run, extension: str) -> bytes:
    """Inputs and results by their names, and `describe` as JSON: in the metadata of safetensors, as a string
    among the arrays of an npz. No input has the name of a result."""
    arrays = {
        name: a for kind in ("inputs", "result") for name, a in safetensors.load(_read(run, kind)).items()
    }
    text = json.dumps(describe(run))
    if extension == "safetensors":
        return bytes(safetensors.save(arrays, metadata={WHOLE: text}))
    buffer = io.BytesIO()
    np.savez(buffer, **arrays, **{WHOLE: np.array(text)})  # type: ignore[arg-type]
    return buffer.getvalue()


def describe(run: Run) -> dict[str, Any]:
    """What the arrays of a run are and come from; nothing of whoever submitted it."""
    return {
        "id": run.id,
        "spec": run.spec,
        "inputs": run.input_info,
        "environment": run.environment,
        "created_at": run.created_at.isoformat(),
        "finished_at": run.finished_at and run.finished_at.isoformat(),
        **(run.result or {}),
    }


def delete(run_id: str) -> None:
    """Remove every file of a run; what is gone already is fine."""
    folder = _folder(run_id)
    try:
        _folders, files = default_storage.listdir(folder)
    except FileNotFoundError:
        return
    for file in files:
        default_storage.delete(f"{folder}/{file}")
    default_storage.delete(folder)


def stored_run_ids() -> list[str]:
    try:
        return list(default_storage.listdir("runs")[0])
    except FileNotFoundError:
        return []


def last_written(run_id: str) -> datetime | None:
    """When a file of the run was last written; None when there is none."""
    folder = _folder(run_id)
    files = default_storage.listdir(folder)[1]
    return max((default_storage.get_modified_time(f"{folder}/{file}") for file in files), default=None)
