"""Files of arrays from strangers: what is read exactly, and what is refused without harm."""

import contextlib
import io
import json
import pickle
import struct
import tracemalloc
import zipfile

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from safetensors.numpy import save as save_safetensors

from api.uploads.arrayfiles import MAX_EXPANDED_BYTES, BadFile, index, read
from kernels.arrays import float32_to_bfloat16

DTYPES = ["float16", "float32", "float64", "int32", "int64", "bool"]
ARRAYS = st.sampled_from(DTYPES).flatmap(
    lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4))
)


def npy(array, **options):
    buffer = io.BytesIO()
    np.lib.format.write_array(buffer, array, **options)
    return buffer.getvalue()


def npz(save=np.savez, **arrays):
    buffer = io.BytesIO()
    save(buffer, **arrays)
    return buffer.getvalue()


def tensors(header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def load(content, name="q.npy"):
    file = io.BytesIO(content)
    return {member.name: read(file, member) for member in index(file, name)}


def refused(content, name="q.npy"):
    with pytest.raises(BadFile) as caught:
        load(content, name)
    assert caught.value.detail
    return caught.value


def same(left, right):
    return left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes()


@given(ARRAYS)
@settings(max_examples=60, deadline=None)
def test_every_format_gives_back_the_bytes(array):
    (read_back,) = load(npy(array), "my q.v2.npy").values()
    assert same(read_back, array)
    assert list(load(npy(array), "my q.v2.npy")) == ["my q.v2"]
    for content in (npz(q=array, k=array), npz(np.savez_compressed, q=array, k=array)):
        assert all(same(one, array) for one in load(content).values())
        assert set(load(content)) == {"q", "k"}
    contiguous = np.ascontiguousarray(array).reshape(array.shape)
    assert same(load(save_safetensors({"a/b": contiguous}))["a/b"], array)


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_every_version_of_npy(version):
    array = np.arange(6.0).reshape(2, 3)
    assert same(load(npy(array, version=version))["q"], array)


def test_fortran_order_and_big_endian_are_turned_around():
    array = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    assert same(load(npy(np.asfortranarray(array)))["q"], array)
    assert same(load(npy(array.astype(">f4")))["q"], array)
    assert same(load(npz(q=np.asfortranarray(array.astype(">f4"))))["q"], array)


def test_bfloat16_keeps_its_bits():
    array = np.array([1.0, -2.5, np.inf, 3e38], np.float32)
    bits = float32_to_bfloat16(array)
    content = tensors({"q": {"dtype": "BF16", "shape": [4], "data_offsets": [0, 8]}}, bits.tobytes())
    (member,) = index(io.BytesIO(content), "x")
    assert member.dtype == "bfloat16"
    loaded = load(content)["q"]
    assert loaded.dtype == np.uint16
    assert loaded.tolist() == bits.tolist()


# --- Pickles ---------------------------------------------------------------------------------


class Bomb:
    def __reduce__(self):
        return (pytest.fail, ("a pickle was executed",))


@pytest.mark.parametrize(
    "content",
    [
        npy(np.array([Bomb()], object)),
        npz(q=np.array([Bomb()], object)),
        pickle.dumps(Bomb()),
        pickle.dumps(Bomb(), protocol=2),
        npy(np.array([1, None], object)),
    ],
    ids=["npy", "npz", "pickle", "old pickle", "objects"],
)
def test_nothing_is_ever_unpickled(content):
    error = refused(content)
    assert (error.code, error.status) == ("pickle", 422)
    assert "never read" in error.detail
    assert "save" in error.detail


def test_a_pickle_of_the_first_protocol_is_no_array_file():
    assert refused(pickle.dumps(Bomb(), protocol=0)).code == "unknown-format"


# --- Damage ----------------------------------------------------------------------------------

WHOLE = {
    "npy": npy(np.arange(12.0).reshape(3, 4)),
    "npz": npz(q=np.arange(12.0), k=np.ones((2, 2), np.float32)),
    "compressed": npz(np.savez_compressed, q=np.arange(50.0), k=np.zeros(50)),
    "safetensors": save_safetensors({"q": np.arange(12.0), "k": np.ones((2, 2), np.float32)}),
}


@pytest.mark.parametrize("kind", WHOLE)
def test_no_piece_of_a_file_passes_for_the_file(kind):
    content = WHOLE[kind]
    load(content)
    for length in range(len(content)):
        refused(content[:length])


def test_a_truncated_file_says_so():
    error = refused(WHOLE["npy"][:-1])
    assert (error.code, error.status) == ("truncated", 400)
    assert "96 bytes of data announced, 95 there" in error.detail
    assert "whole file" in error.detail


def test_bytes_too_many_are_noticed():
    assert refused(WHOLE["npy"] + b"x").code == "trailing-data"
    assert refused(WHOLE["safetensors"] + b"x").code == "trailing-data"


@given(st.sampled_from(sorted(WHOLE)), st.data())
@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_damaged_file_is_read_or_refused_and_nothing_else(kind, data):
    content = bytearray(WHOLE[kind])
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(BadFile):
        load(bytes(content))


@given(st.binary(max_size=200))
@settings(max_examples=300, deadline=None)
def test_noise_is_refused(noise):
    for start in (b"", b"\x93NUMPY", b"\x93NUMPY\x01\x00", b"PK\x03\x04", struct.pack("<Q", 20) + b"{"):
        with pytest.raises(BadFile):
            load(start + noise)


def test_a_flipped_bit_in_an_archive_is_found_by_its_checksum():
    content = bytearray(npz(q=np.zeros(1000)))
    content[4000] ^= 1
    assert refused(bytes(content)).code == "damaged"


# --- Claims that are larger than the file ----------------------------------------------------


def header(shape, descr="<f8"):
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


def zip_of(name, content, compression=zipfile.ZIP_DEFLATED):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        archive.writestr(name, content)
    return buffer.getvalue()


CLAIMS = {
    "npy of 8 TB": header((1_000_000, 1_000_000)),
    "npy beyond 64 bits": header((2**40, 2**40)),
    "npz of 8 TB": zip_of("q.npy", header((1_000_000, 1_000_000))),
    "npy header of 4 GB": b"\x93NUMPY\x02\x00" + struct.pack("<I", 2**32 - 1) + b"{",
    "safetensors header of 16 EB": struct.pack("<Q", 2**64 - 1) + b"{}",
    "safetensors of 8 TB": tensors(
        {"q": {"dtype": "F64", "shape": [10**12], "data_offsets": [0, 8 * 10**12]}}
    ),
    "zip bomb": zip_of("q.npy", header((MAX_EXPANDED_BYTES // 8 + 1,)) + bytes(MAX_EXPANDED_BYTES + 8)),
}


@pytest.mark.parametrize("claim", CLAIMS)
def test_nothing_is_allocated_for_a_claim(claim):
    tracemalloc.start()
    try:
        refused(CLAIMS[claim])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2 * 1024**2


def test_a_zip_bomb_is_413_and_names_the_limit():
    error = refused(CLAIMS["zip bomb"])
    assert (error.code, error.status) == ("too-large", 413)
    assert "128 MiB" in error.detail


def test_too_many_members():
    content = npz(**{f"a{i}": np.zeros(1) for i in range(65)})
    error = refused(content)
    assert (error.code, error.status) == ("too-many-arrays", 413)
    many = {f"a{i}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for i in range(65)}
    assert refused(tensors(many)).code == "too-many-arrays"


def test_a_huge_table_of_contents_is_not_even_read():
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for number in range(20_000):
            archive.writestr(f"{number}.npy", b"")
    content = buffer.getvalue()
    tracemalloc.start()
    try:
        assert refused(content).status == 413
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < len(content) + 1024**2


# --- What we do not take ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "dtype", ["int8", "uint8", "int16", "uint32", "uint64", "complex64", "S4", "U4", "M8[s]", "f4,f4"]
)
def test_other_dtypes_are_named(dtype):
    error = refused(npy(np.zeros(2, dtype)))
    assert (error.code, error.status) == ("bad-dtype", 422)
    assert "float32" in error.detail


@pytest.mark.parametrize(
    ("entries", "code"),
    [
        ({"q": {"dtype": "I8", "shape": [1], "data_offsets": [0, 1]}}, "bad-dtype"),
        ({"q": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}, "bad-header"),
        ({"q": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}, "bad-header"),
        ({"q": {"dtype": "F32", "shape": [1.0], "data_offsets": [0, 4]}}, "bad-header"),
        ({"q": {"dtype": "F32", "shape": [True], "data_offsets": [0, 4]}}, "bad-header"),
        ({"q": {"dtype": "F32", "shape": [1], "data_offsets": [4, 0]}}, "bad-header"),
        ({"q": {"dtype": "F32", "shape": [1]}}, "bad-header"),
        ({"q": []}, "bad-header"),
        (
            {
                "q": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
                "k": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
            },
            "bad-header",
        ),
        ({"q": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}}, "bad-header"),
        ({}, "empty"),
        (b'{"q": 1, "q": 2}', "bad-header"),
        (b"{" * 200, "bad-header"),
    ],
)
def test_safetensors_headers_that_lie(entries, code):
    assert refused(tensors(entries, bytes(8) if entries else b"")).code == code


def test_archives_hold_arrays_only():
    assert refused(zip_of("readme.txt", b"hello")).code == "not-npy"
    assert refused(zip_of("q.npy", b"hello")).code == "not-npy"
    assert refused(zip_of("q.npy", npy(np.zeros(2)), zipfile.ZIP_LZMA)).code == "bad-archive"
    assert refused(zip_of("a\nb.npy", npy(np.zeros(2)))).code == "bad-name"
    assert refused(npz()).code == "empty"


def test_a_bool_is_0_or_1():
    assert refused(npy(np.zeros(3, np.bool_))[:-3] + b"\x00\x02\x01").code == "bad-bool"
