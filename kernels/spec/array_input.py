"""Turn one ARRAY of the contract into data: nested lists, base64, a seed, or a member of an upload.

Lists are converted with numpy first; only when that fails are they searched for the offending place, so that
a million numbers take a fraction of a second and a mistake among them is still located exactly. Sizes are
checked before anything is decoded or allocated.
"""

from __future__ import annotations

import base64
import binascii
import itertools
import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from kernels.arrays import DISTRIBUTIONS, Array, bfloat16_to_float32
from kernels.limits import MAX_SEED
from kernels.spec.model import InputSpec
from kernels.spec.problems import (
    MALFORMED,
    NOT_COMPUTABLE,
    TOO_LARGE,
    Problems,
    join,
    nearest,
    one_of,
    printable,
    show,
)
from kernels.spec.reader import ObjectReader, is_integer, is_number, to_float

# (upload, name) → its array; uint16 are the bits of bfloat16, as in base64.
LoadUpload = Callable[[str, str], Array]

MAX_RANK = 8  # nothing in the contract has more than 4; deeper nesting is refused without being walked

BASE64_DTYPES = {
    "float16": "<f2",
    "bfloat16": "<u2",
    "float32": "<f4",
    "float64": "<f8",
    "int32": "<i4",
    "int64": "<i8",
    "bool": "|b1",
}
NON_FINITE = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}
FORMS = {
    "b64": ("b64", "dtype", "shape"),
    "seed": ("seed", "shape", "distribution"),
    "upload": ("upload", "name"),
}


class ArrayParser:
    """Parses ARRAYs, noting every mistake in ``problems``."""

    def __init__(self, problems: Problems, load_upload: LoadUpload | None, max_elements: int) -> None:
        self.problems, self.load_upload, self.max_elements = problems, load_upload, max_elements

    def parse(self, value: object, pointer: str, seed_dtype: str) -> tuple[InputSpec, Array | None] | None:
        """The description and, unless seeded, the data of an ARRAY; None where a problem was noted."""
        if isinstance(value, list):
            data = self._nested_list(value, pointer)
            return None if data is None else _described(data, "inline")
        if not isinstance(value, dict):
            detail = f"an array must be nested lists or an object with b64, seed or upload, not {show(value)}"
            self.problems.add(pointer, "wrong-type", detail, MALFORMED)
            return None
        forms = [form for form in FORMS if form in value]
        if len(forms) != 1:
            given = (
                f"it has {one_of(forms)}" if forms else f"it has {one_of([show(k) for k in list(value)[:5]])}"
            )
            detail = f"an array object has exactly one of b64, seed, upload; {given}"
            if not forms and value:
                detail += f"; {nearest(str(next(iter(value))), FORMS)}"
            self.problems.add(pointer, "wrong-type", detail, MALFORMED)
            return None
        before = len(self.problems.found) + self.problems.dropped
        reader = ObjectReader(value, pointer, self.problems, FORMS[forms[0]])
        read = {"b64": self._base64, "seed": self._seeded, "upload": self._uploaded}[forms[0]]
        parsed = read(reader, seed_dtype)
        return parsed if len(self.problems.found) + self.problems.dropped == before else None

    # -- nested lists --------------------------------------------------------------------------------------

    def _nested_list(self, value: list[Any], pointer: str) -> Array | None:
        """Flatten level by level; every level must hold lists of one length, the last one numbers."""
        shape, level = [len(value)], value
        while level and any(type(item) is list for item in level):
            if len(shape) >= MAX_RANK:
                detail = f"lists are nested more than {MAX_RANK} deep; arrays have rank 2, 3 or 4"
                self.problems.add(pointer, "wrong-rank", detail)
                return None
            if {type(item) for item in level} != {list} or len({len(item) for item in level}) != 1:
                self._explain_ragged(level, shape, pointer)
                return None
            shape.append(len(level[0]))
            if not self._size_is_right(shape, pointer):
                return None
            level = list(itertools.chain.from_iterable(level))
        return self._leaves(level, tuple(shape), pointer)

    def _leaves(self, leaves: list[Any], shape: tuple[int, ...], pointer: str) -> Array | None:
        """The innermost values as a float64 or bool array."""
        types = set(map(type, leaves))
        if types == {bool}:
            return np.array(leaves, dtype=np.bool_).reshape(shape)
        if types <= {int, float}:
            try:
                return np.array(leaves, dtype=np.float64).reshape(shape)
            except OverflowError:
                self._explain_leaf(leaves, shape, pointer, "too-large-number", _beyond_float64)
                return None
        if types <= {int, float, str} and all(type(x) is not str or x in NON_FINITE for x in leaves):
            try:
                numbers = [NON_FINITE[x] if type(x) is str else x for x in leaves]
                return np.array(numbers, dtype=np.float64).reshape(shape)
            except OverflowError:
                self._explain_leaf(leaves, shape, pointer, "too-large-number", _beyond_float64)
                return None
        if bool in types and types <= {int, float, bool}:
            self._explain_leaf(leaves, shape, pointer, "boolean", lambda x: isinstance(x, bool))
        else:
            self._explain_leaf(leaves, shape, pointer, "not-a-number", _not_a_number)
        return None

    def _explain_ragged(self, level: list[Any], shape: list[int], pointer: str) -> None:
        """Point at the first row whose kind or length differs from the first one's."""
        first = level[0]
        for number, item in enumerate(level):
            if type(item) is type(first) and (type(item) is not list or len(item) == len(first)):
                continue
            where = join(pointer, *_unravel(number, shape))
            if type(item) is list and type(first) is list:
                detail = (
                    f"this row has {len(item)} entries but the first has {len(first)}; make all rows equal"
                )
            else:
                detail = f"rows and numbers are mixed: {show(item)} where the first entry is {show(first)}"
            self.problems.add(where, "ragged", detail, MALFORMED)
            return

    def _explain_leaf(
        self, leaves: list[Any], shape: tuple[int, ...], pointer: str, code: str, wrong: Callable[[Any], bool]
    ) -> None:
        """Point at the first innermost value that is wrong."""
        number = next(i for i, leaf in enumerate(leaves) if wrong(leaf))
        where, leaf = join(pointer, *_unravel(number, list(shape))), leaves[number]
        if code == "boolean":
            self.problems.add(where, code, f"{show(leaf)} among numbers; send 1 or 0, or booleans throughout")
        elif code == "too-large-number":
            detail = f"{show(leaf)} is beyond the range of a 64-bit float, which ends at 1.8e308"
            self.problems.add(where, code, detail)
        else:
            detail = f'{show(leaf)} is not a number (non-finite ones are written "inf", "-inf", "nan")'
            self.problems.add(where, code, detail, MALFORMED)

    # -- base64 --------------------------------------------------------------------------------------------

    def _base64(self, reader: ObjectReader, _: str) -> tuple[InputSpec, Array] | None:
        text, dtype = reader.fields["b64"], reader.fields.get("dtype")
        shape = self._shape(reader)
        if not isinstance(text, str):
            reader.wrong_type("b64", "a base64 string")
            return None
        if not isinstance(dtype, str) or dtype not in BASE64_DTYPES:
            code, status = (
                ("not-a-choice", NOT_COMPUTABLE) if isinstance(dtype, str) else ("wrong-type", MALFORMED)
            )
            detail = f"dtype must be {one_of(BASE64_DTYPES)}, not {show(dtype)}"
            self.problems.add(reader.at("dtype"), code, detail, status)
            return None
        if shape is None:
            return None
        stored = np.dtype(BASE64_DTYPES[dtype])
        raw = self._decode(text, math.prod(shape) * stored.itemsize, f"{list(shape)} of {dtype}", reader)
        if raw is None:
            return None
        data: Array = np.frombuffer(raw, dtype=stored).reshape(shape)
        if dtype == "bool" and data.size and int(data.view(np.uint8).max()) > 1:
            detail = "a bool is one byte 0 or 1; other values are there"
            self.problems.add(reader.at("b64"), "bad-base64", detail, MALFORMED)
            return None
        if dtype == "bfloat16":
            data = bfloat16_to_float32(data)
        return InputSpec(shape, dtype, "inline"), data

    def _decode(self, text: str, size: int, meaning: str, reader: ObjectReader) -> bytes | None:
        """Decode base64 of exactly ``size`` bytes; the length is judged before anything is decoded."""
        pointer = reader.at("b64")
        wanted = 4 * ((size + 2) // 3)
        stray = re.search(r"[^A-Za-z0-9+/=]", text)
        if stray is not None:
            hint = " (the URL-safe alphabet is not used here)" if stray.group() in "-_" else ""
            found = f"{show(stray.group())} at character {stray.start()} is not base64{hint}"
            self.problems.add(pointer, "bad-base64", found, MALFORMED)
            return None
        if len(text) != wanted:
            detail = (
                f"shape {meaning} is {size} bytes, {wanted} base64 characters with padding; {len(text)} came"
            )
            self.problems.add(pointer, "wrong-length", detail, MALFORMED)
            return None
        try:
            raw = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError) as error:
            self.problems.add(pointer, "bad-base64", f"not valid base64: {error}", MALFORMED)
            return None
        if len(raw) != size:
            detail = f"shape {meaning} is {size} bytes; {len(raw)} were decoded"
            self.problems.add(pointer, "wrong-length", detail, MALFORMED)
            return None
        return raw

    def _shape(self, reader: ObjectReader) -> tuple[int, ...] | None:
        """The ``shape`` field: a short list of axis lengths whose product is within the limit."""
        shape = reader.fields.get("shape")
        pointer = reader.at("shape")
        if not isinstance(shape, list):
            detail = f"shape must be a list of axis lengths, not {show(shape)}"
            self.problems.add(pointer, "wrong-type", detail, MALFORMED)
            return None
        if len(shape) > MAX_RANK:
            self.problems.add(
                pointer, "wrong-rank", f"shape has {len(shape)} axes; arrays have rank 2, 3 or 4"
            )
            return None
        for axis, length in enumerate(shape):
            if not is_integer(length):
                detail = f"an axis length must be an integer, not {show(length)}"
                self.problems.add(join(pointer, axis), "wrong-type", detail, MALFORMED)
                return None
            if length < 0:
                detail = f"an axis length must be 0 or more, not {show(length)}"
                self.problems.add(join(pointer, axis), "out-of-range", detail)
                return None
        return tuple(shape) if self._size_is_right(shape, pointer) else None

    def _size_is_right(self, shape: list[int], pointer: str) -> bool:
        """Whether the elements are within the limit, and each axis too: beside an axis of 0 any length has
        no elements, yet positions and row sums would be made for it."""
        longest = max(shape, default=0)
        if longest > self.max_elements:
            has = f"the shape has an axis of {show(longest)}"
        elif math.prod(shape) > self.max_elements:
            has = f"shape {shape} has {math.prod(shape):,} elements"
        else:
            return True
        detail = f"{has}; at most {self.max_elements:,} are accepted: shorten an axis"
        self.problems.add(pointer, "too-large", detail, TOO_LARGE)
        return False

    # -- seeds and uploads ---------------------------------------------------------------------------------

    def _seeded(self, reader: ObjectReader, seed_dtype: str) -> tuple[InputSpec, None] | None:
        seed = reader.integer("seed", 0, 0, MAX_SEED)
        distribution = reader.choice("distribution", "normal", DISTRIBUTIONS)
        shape = self._shape(reader)
        return None if shape is None else (InputSpec(shape, seed_dtype, "seed", seed, distribution), None)

    def _uploaded(self, reader: ObjectReader, _: str) -> tuple[InputSpec, Array] | None:
        upload, member = reader.fields["upload"], reader.fields.get("name")
        if not isinstance(upload, str) or not isinstance(member, str):
            field = "name" if isinstance(upload, str) else "upload"
            detail = f"{field} must be a string, not {show(reader.fields.get(field))}"
            self.problems.add(reader.at(field), "wrong-type", detail, MALFORMED)
            return None
        if self.load_upload is None:
            self.problems.add(
                reader.pointer, "unsupported", "uploads are not accepted here; send the numbers"
            )
            return None
        try:
            data = self.load_upload(upload, member)
        except KeyError as error:
            detail = printable(str(error.args[0])) if error.args else "no such upload"
            self.problems.add(reader.pointer, "not-found", detail)
            return None
        if data.dtype.kind not in "fiub":
            detail = f"dtype {data.dtype} cannot be used; store float, integer or bool numbers"
            self.problems.add(reader.pointer, "bad-dtype", detail)
            return None
        if not self._size_is_right(list(data.shape), reader.pointer):
            return None
        return _described(data, "upload")


def _described(data: Array, source: str) -> tuple[InputSpec, Array]:
    if data.dtype == np.uint16:
        return InputSpec(tuple(data.shape), "bfloat16", source), bfloat16_to_float32(data)
    return InputSpec(tuple(data.shape), str(data.dtype.newbyteorder("=")), source), data


def _unravel(number: int, shape: list[int]) -> list[int]:
    """Indices, outermost first, of the ``number``-th entry in C order."""
    indices = []
    for length in reversed(shape):
        number, index = divmod(number, length)
        indices.append(index)
    return indices[::-1]


def _beyond_float64(leaf: Any) -> bool:
    return isinstance(leaf, int) and math.isinf(to_float(leaf))


def _not_a_number(leaf: Any) -> bool:
    return not is_number(leaf) and not (isinstance(leaf, str) and leaf in NON_FINITE)
