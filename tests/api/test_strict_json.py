"""JSON with one meaning: what is taken, what is refused, and what the refusal says."""

import contextlib
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from api.strict_json import Malformed, loads

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=20,
)


@given(VALUES)
@settings(max_examples=200, deadline=None)
def test_what_a_writer_writes_is_read_back(value):
    text = json.dumps(value, ensure_ascii=False)
    try:
        data = text.encode()
    except UnicodeEncodeError:
        return  # half a surrogate pair: no UTF-8 document can hold it
    value = json.loads(text)
    if "\0" in json.dumps(value) or "\\u0000" in json.dumps(value):
        with pytest.raises(Malformed):
            loads(data)
    else:
        assert loads(data) == value


@given(st.binary(max_size=60) | st.text(alphabet='[]{}",:\\u0d8 1eNaIf', max_size=60).map(str.encode))
@settings(max_examples=500, deadline=None)
def test_nothing_but_malformed_is_ever_raised(data):
    with contextlib.suppress(Malformed):
        loads(data)


@pytest.mark.parametrize(
    ("data", "code", "says"),
    [
        (b"", "empty-body", "empty"),
        (b"  \n", "empty-body", "empty"),
        (b'{"a": 1', "malformed-json", "character 7"),
        (b'{"a": 1}\n{}', "malformed-json", "line 2, column 1"),
        (b"{'a': 1}", "malformed-json", "character 1"),
        (b'{"a": "\xff"}', "not-utf-8", "Byte 7 (0xff)"),
        (b"[NaN]", "bare-non-finite", '"nan"'),
        (b"[Infinity]", "bare-non-finite", '"inf"'),
        (b"[-Infinity]", "bare-non-finite", '"-inf"'),
        (b"[" + b"9" * 5000 + b"]", "number-too-long", "character 1 has 5,000 digits, and at most 4,300"),
        (b'{"a\\"": "' + b"1" * 5000 + b'", "b": -' + b"9" * 4301 + b"}", "number-too-long", "4,301 digits"),
        (b'"\\ud800"', "unusable-character", "surrogate"),
        (b'{"\\u0000": 1}', "unusable-character", "NUL"),
    ],
)
def test_refusals_say_what_and_where(data, code, says):
    with pytest.raises(Malformed) as caught:
        loads(data)
    assert caught.value.code == code
    assert says in caught.value.detail
    assert "sys." not in caught.value.detail


@pytest.mark.parametrize(
    ("data", "pointer"),
    [
        (b'{"engine": 1, "engine": 1}', "/engine"),
        (b'{"inputs": {"a/b": [0, {"k~": 1, "k~": 2}]}}', "/inputs/a~1b/1/k~0"),
    ],
)
def test_a_repeated_key_is_named_with_its_place(data, pointer):
    with pytest.raises(Malformed, match="more than once") as caught:
        loads(data)
    assert caught.value.code == "repeated-key"
    assert caught.value.pointer == pointer


@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}")])
def test_depth_64_is_read_and_65_is_not(opening, closing):
    assert loads(opening * 64 + b"1" + closing * 64) is not None
    with pytest.raises(Malformed) as caught:
        loads(opening * 65 + b"1" + closing * 65)
    assert caught.value.code == "too-deep"


@pytest.mark.parametrize("text", ["[" * 100, "]" * 100, '\\"[[[' * 40, "\\\\", '\\\\\\"' + "{" * 80])
def test_brackets_in_strings_are_no_depth(text):
    """Neither do they add depth, nor do they hide it."""
    string = b'"' + text.encode() + b'"'
    flat = b"[" + b",".join([string, b"[]"] * 40) + b"]"
    assert len(loads(flat)) == 80
    with pytest.raises(Malformed) as caught:
        loads(b"[" + string + b"," + b"[" * 64 + b"]" * 64 + b"]")
    assert caught.value.code == "too-deep"


@pytest.mark.parametrize("before", [b"0." + b"0" * 5000, b"1" * 5000 + b".5", b"1e-" + b"0" * 5000 + b"1"])
def test_the_digits_of_floats_are_not_those_of_an_integer(before):
    assert len(loads(b"[" + before + b"]")) == 1
    with pytest.raises(Malformed, match=f"character {len(before) + 2} has 4,400 digits"):
        loads(b"[" + before + b"," + b"7" * 4400 + b"]")


def test_huge_integers_are_safe():
    assert loads(b"1" + b"0" * 400) == 10**400


@pytest.mark.parametrize(
    "data",
    [
        b"[" * 8_000_000,
        b"[" * 65 + b'"' * 8_000_000,
        b"{}," * 2_500_000,
        b"[" + b'"a\\"",' * 1_000_000,
        b"[" + b"[]," * 1_000_000 + b"[]]",
    ],
    ids=["deep", "quotes", "objects", "escapes", "lists"],
)
def test_a_body_made_to_hurt_is_refused(data):
    with pytest.raises(Malformed):
        loads(data)
