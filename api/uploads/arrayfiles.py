"""Reading `.npy`, `.npz` and `.safetensors` from strangers.

Every size is read from a header and checked before anything of that size is allocated; nothing is
ever unpickled. `index` finds the arrays of a file, `read` loads one; both raise only `BadFile`.
The kind of file is told by its first bytes, never by its name. Knows nothing of HTTP or Django.
"""

import io
import math
import struct
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import PurePath
from typing import IO, Any

import numpy as np

from api import strict_json

MAX_MEMBERS = 64
MAX_EXPANDED_BYTES = 128 * 1024**2  # of all arrays of one file together, once decompressed
MAX_NPY_HEADER = 10_000
MAX_SAFETENSORS_HEADER = 1024**2
MAX_ZIP_DIRECTORY = 256 * 1024
MAX_NAME = 200
MAX_RANK = 8

NPY_MAGIC = b"\x93NUMPY"
ZIP_MAGICS = (b"PK\x03\x04", b"PK\x05\x06")
PICKLE_MAGICS = tuple(b"\x80" + bytes([protocol]) for protocol in range(2, 6))
END_OF_DIRECTORY, ZIP64_LOCATOR = b"PK\x05\x06", b"PK\x06\x07"

# The names of the contract for numpy's (kind, itemsize), and for those of safetensors.
NUMPY_DTYPES = {
    ("f", 2): "float16",
    ("f", 4): "float32",
    ("f", 8): "float64",
    ("i", 4): "int32",
    ("i", 8): "int64",
    ("b", 1): "bool",
}
SAFETENSORS_DTYPES = {
    "F16": ("float16", "<f2"),
    "BF16": ("bfloat16", "<u2"),
    "F32": ("float32", "<f4"),
    "F64": ("float64", "<f8"),
    "I32": ("int32", "<i4"),
    "I64": ("int64", "<i8"),
    "BOOL": ("bool", "|b1"),
}
USABLE = "float16, bfloat16 (safetensors), float32, float64, int32, int64 and bool"


class BadFile(ValueError):
    """The file cannot be used: `status` 400 (damaged), 413 (too large) or 422 (holds what we do not take)."""

    def __init__(self, code: str, detail: str, status: int = 400) -> None:
        super().__init__(detail)
        self.code, self.detail, self.status = code, detail, status


@dataclass(frozen=True)
class Member:
    """One array of a file: what it is, and where its bytes lie."""

    name: str
    shape: tuple[int, ...]
    dtype: str  # as the contract names it
    stored: str  # numpy's dtype string, with byte order
    fortran: bool
    offset: int  # of the data, from the start of the file or of the archive's member
    archived_as: str | None = None  # the member's name in the zip archive

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * np.dtype(self.stored).itemsize


def index(file: IO[bytes], file_name: str) -> list[Member]:
    """The arrays of `file`; a lone `.npy` is named by the stem of `file_name`. Reads headers only."""
    with _nothing_else_escapes():
        size = file.seek(0, io.SEEK_END)
        file.seek(0)
        start = file.read(8)
        if start.startswith(NPY_MAGIC):
            members = [_npy(file, size, _stem(file_name))]
        elif start.startswith(ZIP_MAGICS):
            members = _npz(file, size)
        elif start.startswith(PICKLE_MAGICS):
            raise BadFile(
                "pickle",
                "this is a pickle, which is never read because it can run code; "
                "save the arrays with numpy.save, numpy.savez or safetensors",
                422,
            )
        else:
            members = _safetensors(file, size)
        _check_names(members)
    return members


def read(file: IO[bytes], member: Member) -> np.ndarray[Any, Any]:
    """The array itself, C-ordered in native byte order; of bfloat16 its bits, as uint16."""
    with _nothing_else_escapes():
        if member.archived_as is None:
            file.seek(member.offset)
            data = file.read(member.nbytes)
        else:
            with zipfile.ZipFile(file) as archive, archive.open(member.archived_as) as stream:
                stream.read(member.offset)
                # One byte more than there should be, so that zipfile reaches the end and checks the CRC.
                data = stream.read(member.nbytes + 1)
        if len(data) != member.nbytes:
            raise _truncated(member.name, member.nbytes, len(data))
        array = np.frombuffer(data, member.stored)
        if member.dtype == "bool" and array.size and array.view(np.uint8).max() > 1:
            raise BadFile("bad-bool", f"array {member.name!r} is bool but holds bytes other than 0 and 1")
        array = array.reshape(member.shape, order="F" if member.fortran else "C")
        return np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("=")).reshape(member.shape)


# --- .npy ------------------------------------------------------------------------------------


def _npy(stream: IO[bytes], size: int, name: str, archived_as: str | None = None) -> Member:
    """The member at the start of `stream`, which is `size` bytes long in all."""
    if archived_as is None:
        stream.seek(0)
    shape, fortran, stored, offset = _npy_header(stream, name)
    dtype = NUMPY_DTYPES.get((stored.kind, stored.itemsize))
    if stored.hasobject:
        raise BadFile(
            "pickle",
            f"array {name!r} has dtype object, which is pickled and never read; "
            "save it as numbers: numpy.save(file, array.astype('float32'), allow_pickle=False)",
            422,
        )
    if dtype is None or stored.names is not None or stored.subdtype is not None:
        raise _bad_dtype(name, str(stored))
    member = Member(name, shape, dtype, stored.str, fortran, offset, archived_as)
    _check_shape(name, shape)
    if offset + member.nbytes > MAX_EXPANDED_BYTES:
        raise _too_large(f"array {name!r} of shape {list(shape)}", member.nbytes)
    if offset + member.nbytes != size:
        raise _truncated(name, member.nbytes, size - offset)
    return member


def _npy_header(stream: Any, name: str) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    start = stream.read(8)
    if not start.startswith(NPY_MAGIC) or len(start) < 8:
        raise BadFile("not-npy", f"member {name!r} is not a .npy file; an .npz holds .npy files only")
    version = (start[6], start[7])
    formats = {(1, 0): "<H", (2, 0): "<I", (3, 0): "<I"}
    if version not in formats:
        raise BadFile(
            "not-npy", f"array {name!r} has .npy version {version[0]}.{version[1]}; 1.0 to 3.0 are read"
        )
    length_field = stream.read(struct.calcsize(formats[version]))
    (length,) = struct.unpack(formats[version], length_field)
    if length > MAX_NPY_HEADER:
        raise BadFile(
            "bad-header", f"the header of array {name!r} claims {length:,} bytes; that is no plain array"
        )
    header = stream.read(length)
    if len(header) != length:
        raise BadFile("truncated", f"the file ends within the header of array {name!r}; send the whole file")
    # Version 3 only adds UTF-8 field names, and arrays with fields are refused anyway.
    parse = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    try:
        shape, fortran, dtype = parse(io.BytesIO(length_field + header), max_header_size=MAX_NPY_HEADER)
    except Exception as error:  # whatever a literal can provoke: SyntaxError, TokenError, TypeError …
        raise BadFile("bad-header", f"the header of array {name!r} cannot be read; save it anew") from error
    return shape, fortran, dtype, 8 + len(length_field) + length


# --- .npz ------------------------------------------------------------------------------------


def _npz(file: IO[bytes], size: int) -> list[Member]:
    _check_directory(file, size)
    with zipfile.ZipFile(file) as archive:
        infos = archive.infolist()
        if len(infos) > MAX_MEMBERS:
            raise _too_many(len(infos))
        expanded = sum(info.file_size for info in infos)
        if expanded > MAX_EXPANDED_BYTES:
            raise _too_large("the archive", expanded)
        members = []
        for info in infos:
            if not info.filename.endswith(".npy"):
                raise BadFile(
                    "not-npy", f"{info.filename!r} is not a .npy file; an .npz holds .npy files only"
                )
            if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED) or info.flag_bits & 1:
                raise BadFile(
                    "bad-archive",
                    f"{info.filename!r} is encrypted or packed in an unusual way; "
                    "save with numpy.savez or numpy.savez_compressed",
                    422,
                )
            with archive.open(info) as stream:
                name = info.filename.removesuffix(".npy")
                members.append(_npy(stream, info.file_size, name, info.filename))
    return members


def _check_directory(file: IO[bytes], size: int) -> None:
    """Refuse a huge table of contents before zipfile makes an object of each of its entries."""
    tail_length = min(size, 22 + 65_535 + 20)
    file.seek(size - tail_length)
    tail = file.read(tail_length)
    at = tail.rfind(END_OF_DIRECTORY)
    if at < 0 or len(tail) - at < 22:
        raise BadFile("truncated", "the archive has no table of contents at its end; send the whole file")
    entries, directory = struct.unpack("<H I", tail[at + 10 : at + 16])
    if (
        entries > MAX_MEMBERS
        or directory > MAX_ZIP_DIRECTORY
        or tail[max(0, at - 20) :].startswith(ZIP64_LOCATOR)
    ):
        raise _too_many(entries)
    file.seek(0)


# --- .safetensors ----------------------------------------------------------------------------


def _safetensors(file: IO[bytes], size: int) -> list[Member]:
    file.seek(0)
    start = file.read(9)
    if len(start) < 9 or start[8:] != b"{":
        raise BadFile("unknown-format", "this is neither .npy, .npz nor .safetensors; send one of these", 422)
    (length,) = struct.unpack("<Q", start[:8])
    if length > MAX_SAFETENSORS_HEADER:
        raise BadFile(
            "bad-header", f"the header claims {length:,} bytes; {MAX_SAFETENSORS_HEADER:,} are read"
        )
    if 8 + length > size:
        raise BadFile(
            "truncated", f"the header claims {length:,} bytes but the file has {size:,}; send all of it"
        )
    file.seek(8)
    try:
        header = strict_json.loads(file.read(length))
    except strict_json.Malformed as error:
        raise BadFile("bad-header", f"the safetensors header is not JSON: {error.detail}") from error
    header.pop("__metadata__", None)
    if len(header) > MAX_MEMBERS:
        raise _too_many(len(header))
    members = [_tensor(name, entry, 8 + length) for name, entry in header.items()]
    members.sort(key=lambda member: (member.offset, member.nbytes))
    expected = 8 + length
    for member in members:
        if member.offset != expected:
            raise BadFile("bad-header", f"tensor {member.name!r} overlaps another one or leaves a gap")
        expected += member.nbytes
    if expected != size:
        raise _truncated("all tensors", expected - 8 - length, size - 8 - length)
    if expected - 8 - length > MAX_EXPANDED_BYTES:
        raise _too_large("the file", expected)
    return members


def _tensor(name: str, entry: Any, base: int) -> Member:
    malformed = BadFile(
        "bad-header", f"the safetensors entry of {name[:MAX_NAME]!r} is malformed; save it anew"
    )
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise malformed
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not (
        isinstance(dtype, str) and _whole_numbers(shape) and _whole_numbers(offsets) and len(offsets) == 2
    ):
        raise malformed
    if dtype not in SAFETENSORS_DTYPES:
        raise _bad_dtype(name, dtype)
    _check_shape(name, tuple(shape))
    ours, stored = SAFETENSORS_DTYPES[dtype]
    member = Member(name, tuple(shape), ours, stored, False, base + offsets[0])
    if offsets[1] - offsets[0] != member.nbytes:
        raise malformed
    return member


def _whole_numbers(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)


# --- Common ----------------------------------------------------------------------------------


def _stem(file_name: str) -> str:
    stem = PurePath(file_name).stem
    return stem if _is_name(stem) else "array"


def _is_name(name: str) -> bool:
    return 0 < len(name) <= MAX_NAME and name.isprintable()


def _check_names(members: list[Member]) -> None:
    names = [member.name for member in members]
    if not names:
        raise BadFile("empty", "the file holds no array", 422)
    for name in names:
        if not _is_name(name):
            raise BadFile(
                "bad-name", f"array names have 1 to {MAX_NAME} printable characters, unlike {name[:50]!r}"
            )
        if names.count(name) > 1:
            raise BadFile(
                "repeated-name", f"the name {name!r} occurs more than once; rename one of the arrays"
            )


def _check_shape(name: str, shape: tuple[int, ...]) -> None:
    if len(shape) > MAX_RANK or any(axis < 0 for axis in shape):
        raise BadFile("bad-shape", f"array {name!r} has the impossible or unusable shape {list(shape)[:12]}")


@contextmanager
def _nothing_else_escapes() -> Iterator[None]:
    """Parsers of binary files fail in many ways on a damaged one; to the caller they are all the same."""
    try:
        yield
    except BadFile:
        raise
    except Exception as error:
        detail = f"the file is damaged ({type(error).__name__}: {str(error)[:100]}); save and send it anew"
        raise BadFile("damaged", detail) from error


def _truncated(name: str, wanted: int, present: int) -> BadFile:
    if present < wanted:
        detail = f"{name}: {wanted:,} bytes of data announced, {max(present, 0):,} there; send the whole file"
        return BadFile("truncated", detail)
    return BadFile(
        "trailing-data", f"{name}: {wanted:,} bytes of data announced, {present:,} there; save it anew"
    )


def _too_large(what: str, size: int) -> BadFile:
    limit = f"{MAX_EXPANDED_BYTES:,} bytes ({MAX_EXPANDED_BYTES // 1024**2} MiB)"
    return BadFile(
        "too-large", f"{what} unpacks to {size:,} bytes; the limit is {limit}: send smaller arrays", 413
    )


def _too_many(count: int) -> BadFile:
    return BadFile("too-many-arrays", f"the file lists {count:,} arrays; at most {MAX_MEMBERS} are read", 413)


def _bad_dtype(name: str, dtype: str) -> BadFile:
    detail = f"array {name!r} has dtype {dtype[:60]}; usable are {USABLE}: convert it before saving"
    return BadFile("bad-dtype", detail, 422)
