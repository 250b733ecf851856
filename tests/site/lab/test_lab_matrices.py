"""Every way in which people paste numbers, and what each broken one is told."""

from contextlib import suppress

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lab.matrices import MatrixError, parse, to_text


def array(text):
    """What was read, as float64 (the strings for non-finite numbers included)."""
    return np.array(parse(text), dtype=object).astype(np.float64)


EXPECTED = [[1.0, 0.0], [-0.5, 2e-3], [3.0, 4.0]]


@pytest.mark.parametrize(
    "text",
    [
        "[[1, 0], [-0.5, 2e-3], [3, 4]]",
        "[[1,0],[-0.5,0.002],[3,4],]",
        "((1, 0), (-.5, 2E-3), (3., 4))",
        "1 0\n-0.5 2e-3\n3 4",
        "1,0\n-0.5,2e-3\n3,4\n",
        "1, 0,\n-0.5, 2e-3,\n3, 4,",
        "1;0\n-0.5;2e-3\n3;4",
        "1\t0\r\n-0.5\t2e-3\r\n3\t4\r\n",
        "# x y\n1 0\n-0.5 2e-3 # a comment\n3 4",
        "[1, 0]\n[-0.5, 2e-3]\n[3, 4]",
        "[1 0]\n[-0.5 2e-3]\n[3 4]",
        "q = np.array([[1, 0], [-0.5, 2e-3], [3, 4]], dtype=np.float32)",
        "torch.tensor([[1, 0], [-0.5, 2e-3], [3, 4]], device='cuda:0', grad_fn=<MulBackward0>)",
        "Parameter containing:\ntensor([[1, 0], [-0.5, 2e-3], [3, 4]], requires_grad=True)",
        "[[1, 0], [\u22120.5, 2e\u22123], [3, 4]]",
    ],
)
def test_spellings_of_one_matrix(text):
    assert array(text).tolist() == EXPECTED


@pytest.mark.parametrize("shape", [(4, 3), (2, 4, 3), (2, 2, 4, 3), (1, 1), (3, 40)])
@pytest.mark.parametrize("scale", [1.0, 1e-7, 1e9])
def test_numpy_printouts(shape, scale):
    values = np.random.default_rng().normal(size=shape) * scale
    with np.printoptions(threshold=100_000):
        for text in (str(values), repr(values), repr(values.astype(np.float16) if scale == 1.0 else values)):
            assert np.allclose(array(text), values, rtol=2e-3, atol=2e-3 * scale)


@pytest.mark.parametrize("shape", [(4, 3), (2, 4, 3), (2, 2, 4, 3), (3, 40)])
@pytest.mark.parametrize("scale", [1.0, 1e-7, 1e9])
def test_torch_printouts(shape, scale):
    values = torch.randn(shape, dtype=torch.float64) * scale
    for tensor in (values, values.requires_grad_(), values * 1.0):
        assert np.allclose(array(str(tensor)), values.detach().numpy(), rtol=2e-3, atol=2e-3 * scale)


def test_non_finite_numbers_keep_the_spelling_of_the_rest_body():
    text = str(torch.tensor([[float("-inf"), float("nan")], [float("inf"), 1.0]]))
    assert parse(text) == [["-inf", "nan"], ["inf", 1.0]]
    assert parse("[[-Infinity, NaN, +inf]]") == [["-inf", "nan", "inf"]]
    assert parse('[["-inf", 1]]') == [["-inf", 1]]
    assert parse(str(np.array([[-np.inf, np.nan]]))) == [["-inf", "nan"]]


def test_a_blank_line_starts_the_next_head():
    assert parse("1 2\n3 4\n\n5 6\n7 8\n\n") == [[[1, 2], [3, 4]], [[5, 6], [7, 8]]]


def test_whole_numbers_stay_whole():
    assert parse("1 -2") == [[1, -2]]
    assert all(type(x) is int for x in parse("1 -2")[0])


@pytest.mark.parametrize(
    ("text", "line", "column", "says"),
    [
        ("", 1, 1, "nothing to read"),
        ("   \n ", 1, 1, "nothing to read"),
        ("[[1, 2],\n [3]]", 2, 2, "this row has 1 number; the first row has 2"),
        ("1 2\n3 4\n5", 3, 1, "this row has 1 number; the first row has 2"),
        ("[[1, 2],\n [3, 4", 2, 2, "never closed"),
        ("[[1, 2]]]", 1, 9, "closes nothing"),
        ("[[1, 2)]", 1, 7, "closed by"),
        ("[[1,, 2]]", 1, 5, "a number is missing"),
        ("[[, 2]]", 1, 3, "a number is missing"),
        ("1,,2", 1, 3, "an empty cell"),
        (",1", 1, 1, "an empty cell"),
        ("1,5;2,5", 1, 2, "decimal point"),
        ("[[1; 2]]", 1, 4, "use a comma"),
        ("a,b\n1,2", 1, 1, "“a” is not a number"),
        ("[[1, x2]]", 1, 6, "“x2” is not a number"),
        ("[[1.2.3]]", 1, 3, "is not a number"),
        ("[[1-2]]", 1, 3, "is not a number"),
        ("[[True, 1]]", 1, 3, "write 1 or 0"),
        ("[[null]]", 1, 3, "is not a number"),
        ("[[1+2j]]", 1, 3, "complex"),
        ("[[1e999]]", 1, 3, "largest float64"),
        ("[1, [2]]", 1, 5, "a list among plain numbers"),
        ("[[1], 2]", 1, 7, "a plain number among lists"),
        ("[[[1, 2], [3, 4]],\n [[1, 2]]]", 2, 2, "this part is 1 × 2; the first one is 2 × 2"),
        ("1 2\n\n1 2 3", 3, 1, "1 × 3; the first one is 1 × 2"),
        ("1 [2]", 1, 3, "brackets or none"),
        ("[" * 5_000, 1, 17, "nested deeper"),
        ("# nothing", 1, 1, "only comments"),
        ("tensor([[1, 2]]", 1, 1, ""),
        ("[[1, 2]] and more", 1, 10, "is not a number"),
    ],
)
def test_what_is_wrong_and_where(text, line, column, says):
    if not says:  # a call whose last bracket was not copied is still a whole matrix
        assert parse(text) == [[1, 2]]
        return
    with pytest.raises(MatrixError) as error:
        parse(text)
    assert (error.value.line, error.value.column) == (line, column)
    assert says in str(error.value)
    assert str(error.value).startswith(f"Line {line}, column {column}: ")


@pytest.mark.parametrize(
    "printed", [str(np.zeros((200, 200))), str(torch.zeros(2000, 3)), "[[1, …]]", "[[1,...,2]]"]
)
def test_shortened_printouts_are_refused_with_the_remedy(printed):
    with pytest.raises(MatrixError, match=r"left out.*set_printoptions"):
        parse(printed)


LONG = 900_000


@pytest.mark.parametrize(
    "text",
    [
        "1" * LONG + "x",
        "1" * LONG,
        "[[" + "1" * LONG + "x]]",
        "[[1." + "1" * LONG + "x]]",
        "[[1e" + "1" * LONG + "x]]",
        "array([[1]]" + " " * LONG + "x",
        "array([[1]])" + " " * LONG + "x",
        "array([[1]]" + ", a=1" * (LONG // 5) + "x",
        "array([[1]], a=" + "b" * LONG + "!",
    ],
    ids=lambda text: f"{text[:18]}…{text[-2:]}",
)
def test_reading_a_long_text_takes_time_in_proportion_to_it(text):
    """A pattern that goes back and forth would need hours for these: the test would not come back."""
    with pytest.raises(MatrixError) as error:
        parse(text)
    assert len(str(error.value)) < 200


def test_spaces_around_the_end_of_a_printout_do_not_count():
    assert parse("array([[1]]" + " " * 5_000 + ", dtype=int8 , ) ; " + "\n" * 5_000) == [[1]]


def test_a_text_too_long_for_a_text_box_is_sent_to_the_upload():
    with pytest.raises(MatrixError, match="upload a file"):
        parse("1 " * 600_000)


@given(
    st.lists(
        st.lists(st.floats(allow_nan=False) | st.integers(-(10**15), 10**15), min_size=3, max_size=3),
        min_size=1,
        max_size=4,
    )
)
def test_what_is_written_is_read_back_exactly(rows):
    finite = [["inf" if x == np.inf else "-inf" if x == -np.inf else x for x in row] for row in rows]
    assert parse(to_text(finite)) == finite


@given(st.text(alphabet="[](), ;\n\t0123456789.eE+-infa#'\"=…−", max_size=60))
def test_no_text_does_more_than_raise_a_matrix_error(text):
    with suppress(MatrixError):
        rows = parse(text)
        assert isinstance(rows, list)
        assert rows or text.strip().startswith(("[", "("))
