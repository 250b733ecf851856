"""What the client sends and reads as arrays, against numpy and torch."""

import array
import base64
import io
import json
import math

import numpy as np
import pytest
import torch

from classroom.client import attention_lab

VALUES = np.random.default_rng(5).normal(size=(2, 3, 4))


def sent(value):
    """What the lab would read, by way of JSON without NaN."""
    found = json.loads(json.dumps(attention_lab.to_json(value), allow_nan=False))
    dtype = "<i2" if found["dtype"] == "bfloat16" else np.dtype(found["dtype"]).newbyteorder("<")
    return found["dtype"], np.frombuffer(base64.b64decode(found["b64"]), dtype).reshape(found["shape"])


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int32", "int64", "bool"])
@pytest.mark.parametrize("order", ["C", "F", "strided", "big-endian"])
def test_arrays_keep_dtype_and_order(dtype, order):
    given = (VALUES * 10).astype(dtype)
    given = {"C": given, "F": np.asfortranarray(given), "strided": given[:, ::-1, ::2]}.get(
        order, given.astype(np.dtype(dtype).newbyteorder(">"))
    )
    name, found = sent(given)
    assert name == dtype
    np.testing.assert_array_equal(found, given)


@pytest.mark.parametrize(
    ("dtype", "wider"), [("uint8", "int64"), ("int16", "int64"), ("longdouble", "float64")]
)
def test_other_dtypes_are_widened(dtype, wider):
    given = np.arange(6).astype(dtype)
    name, found = sent(given)
    assert name == wider
    np.testing.assert_array_equal(found, given)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64, torch.int64, torch.bool])
def test_tensors_go_as_they_are(dtype):
    given = torch.tensor(VALUES).to(dtype).transpose(0, 2)
    name, found = sent(given.requires_grad_() if dtype.is_floating_point else given)
    assert name == str(dtype).removeprefix("torch.")
    np.testing.assert_array_equal(found, given.detach().numpy())


def test_tensors_of_bfloat16_go_as_they_are():
    given = torch.tensor(VALUES).bfloat16().transpose(0, 2)
    name, found = sent(given)
    assert name == "bfloat16"
    back = torch.from_numpy(found.copy()).view(torch.bfloat16)
    assert torch.equal(back, given)


class Foreign:
    """An array of some library that nobody here has heard of."""

    def __array__(self):
        return VALUES.astype("float32")


def test_whatever_can_be_an_array_is_one():
    assert sent(Foreign())[0] == "float32"
    name, found = sent(array.array("d", [1.5, 2.5]))
    assert (name, found.tolist()) == ("float64", [1.5, 2.5])
    assert sent(memoryview(VALUES.astype("float32")))[1].shape == VALUES.shape


def test_lists_stay_lists_and_what_is_not_finite_becomes_a_word():
    given = [[1, math.inf, np.float32(2)], (np.nan, -np.inf, 0.5), np.array([1.0, np.inf, 2.0])]
    expected = [[1, "inf", 2.0], ["nan", "-inf", 0.5], [1.0, "inf", 2.0]]
    assert attention_lab.to_json({"a": given}) == {"a": expected}
    assert attention_lab.to_json({"seed": np.int64(7), "flag": np.True_}) == {"seed": 7, "flag": True}


@pytest.mark.parametrize("value", [np.ones(2, complex), {1, 2}, b"abc", object()])
def test_what_is_no_array_of_numbers_is_told(value):
    with pytest.raises(TypeError):
        attention_lab.to_json({"out": value})


def npy(value):
    buffer = io.BytesIO()
    np.save(buffer, value)
    return buffer.getvalue()


@pytest.mark.parametrize(
    "given",
    [
        VALUES,
        VALUES.T.astype("float16"),
        np.asfortranarray(VALUES.astype("float32")),
        np.arange(5),
        VALUES > 0,
        np.zeros((2, 0, 3)),
        np.array(2.5),
    ],
)
def test_files_of_numpy_are_read_without_it(given):
    raw, dtype, shape = attention_lab._read_npy(npy(given))
    np.testing.assert_array_equal(np.frombuffer(raw, dtype).reshape(shape), given)
    assert attention_lab._lists_of_npy(npy(given)) == given.tolist()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"PK\x03\x04",
        b"\x93NUMPY\x01\x00",
        npy(VALUES)[:-1],
        npy(np.array(["a"])),
        npy(VALUES.astype(">f8")),
        npy(VALUES).replace(b"(2, 3, 4)", b"(2, 9, 4)"),
    ],
)
def test_other_files_are_told(content):
    with pytest.raises(ValueError, match="npy"):
        attention_lab._lists_of_npy(content)


def test_answers_are_read_from_npz_and_json(tmp_path):
    file = tmp_path / "answers.npz"
    np.savez(file, **{"a/out": VALUES, "b/c/lse": VALUES[0].astype("float32")})
    found = attention_lab.read_answers(file)["answers"]
    assert {case: list(named) for case, named in found.items()} == {"a": ["out"], "b/c": ["lse"]}
    np.testing.assert_array_equal(sent_back(found["a"]["out"]), VALUES)
    np.savez(file, out=VALUES)
    assert list(attention_lab.read_answers(file)["answers"]) == ["out"], "of a single case"
    file = tmp_path / "answers.json"
    file.write_text('{"a": {"out": [1]}}')
    assert attention_lab.read_answers(file) == {"answers": {"a": {"out": [1]}}}
    file.write_text('{"attempt": 2, "answers": {"a": {"out": [1]}}}')
    assert attention_lab.read_answers(file)["attempt"] == 2


def sent_back(packed):
    return np.frombuffer(base64.b64decode(packed["b64"]), packed["dtype"]).reshape(packed["shape"])


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 no zip", b'{"a": ', b"[1]", b"\xff\xfe"])
@pytest.mark.parametrize("name", ["answers.npz", "answers.json"])
def test_files_that_hold_no_answers_are_told(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=r"npz|json"):
        attention_lab.read_answers(tmp_path / name)


def test_functions_get_what_they_take():
    inputs = {"cases": {"a": {"q": [[1.0]], "attention": {"scale": None}}}}
    assert attention_lab.solve(lambda q: q, inputs) == {"a": {"out": [[1.0]]}}
    found = attention_lab.solve(lambda q, attention: {"x": (q, attention)}, inputs, array=np.asarray)
    q, attention = found["a"]["x"]
    assert isinstance(q, np.ndarray)
    assert attention == {"scale": None}
    assert set(attention_lab.solve(lambda **named: named, inputs)["a"]) == {"q", "attention"}
