"""Answers as bytes, to be kept in a row: a safetensors file of their arrays, with the rest in its metadata.

Written here rather than by the library so that the same answers, in whatever order they came, are the same
bytes: their digest tells whether two submissions are one.
"""

import hashlib
import json
import struct
from typing import Any

import numpy as np

from kernels.grading.answers import Answers
from workers.artifacts import DTYPES

# Uploads may have integers that runs never store.
ALL_DTYPES = {
    **DTYPES,
    "I8": np.dtype("i1"),
    "I16": np.dtype("<i2"),
    "U32": np.dtype("<u4"),
    "U64": np.dtype("<u8"),
}
NAMES = {dtype: name for name, dtype in ALL_DTYPES.items()}


def pack(answers: Answers) -> bytes:
    in_order = {case: dict(sorted(named.items())) for case, named in sorted(answers.by_case.items())}
    described, arrays = Answers(in_order, answers.notes).to_parts()
    header: dict[str, Any] = {"__metadata__": {"answers": json.dumps(described)}}
    parts, at = [], 0
    for name, array in arrays.items():
        data, dtype = _data(array)
        header[name] = {
            "dtype": dtype,
            "shape": list(array.shape),
            "data_offsets": [at, at + len(data)],
        }
        parts.append(data)
        at += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return b"".join((struct.pack("<Q", len(text)), text, *parts))


def unpack(content: bytes) -> Answers:
    (length,) = struct.unpack_from("<Q", content)
    header = json.loads(content[8 : 8 + length])
    described = json.loads(header.pop("__metadata__")["answers"])
    return Answers.from_parts(
        described, {name: _array(content, 8 + length, entry) for name, entry in header.items()}
    )


def fingerprint(user_ref: str, content: bytes) -> str:
    """What tells the same submission, sent again, from another one."""
    return hashlib.sha256(user_ref.encode() + b"\0" + content).hexdigest()


def _data(array: np.ndarray[Any, Any]) -> tuple[bytes, str]:
    """The elements, little-endian, in C order, and what safetensors call their dtype."""
    little = array.dtype.newbyteorder("<")
    if little not in NAMES:  # a float wider than 64 bits
        little = np.dtype("<f8")
    return np.asarray(array, little, order="C").tobytes(), NAMES[little]


def _array(content: bytes, start: int, entry: dict[str, Any]) -> np.ndarray[Any, Any]:
    begin, end = (start + offset for offset in entry["data_offsets"])
    dtype = ALL_DTYPES[entry["dtype"]]
    return np.frombuffer(content, dtype, (end - begin) // dtype.itemsize, begin).reshape(entry["shape"])
