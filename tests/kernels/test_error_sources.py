"""Errors by where they arise: the parts add up, none exceeds its bound, and what is planted is found."""

import numpy as np
import pytest

from kernels import closeup, error_sources
from kernels.arrays import generate, round_to_dtype
from kernels.error_sources import PARTS, as_sent, split
from kernels.spec import parse_run

N, M, D = 7, 9, 8
ATTENTION = [
    {},
    {"is_causal": True, "rope": {"style": "half"}, "softcap": 4.0},
    {"sinks": [0.5, 2.0], "alibi_slopes": "auto", "window": [3, 3]},
    {"rope": {"style": "interleaved", "scaling": {"type": "yarn", "factor": 4.0,
     "original_max_position_embeddings": 8}}},
]  # fmt: skip


def both(dtype, attention=None, distribution="normal", seed=1, inputs=None):
    """(spec, operands as sent, operands as rounded) of head 1."""
    shapes = {"q": (1, 2, N, D), "k": (1, 2, M, D), "v": (1, 2, M, D)}
    drawn = {
        name: {"seed": seed, "shape": list(shape), "distribution": distribution}
        for name, shape in shapes.items()
    }
    body = {"engine": "eager", "dtype": dtype, "attention": attention or {}}
    parsed = parse_run({**body, "inputs": inputs or drawn})
    rounded = {
        name: round_to_dtype(parsed.arrays[name], dtype)
        if name in parsed.arrays
        else generate(name, seed, given.shape, distribution, dtype)
        for name, given in parsed.spec.inputs.items()
    }
    sent = as_sent(parsed.spec, parsed.arrays, rounded)
    heads = (closeup.one_head(closeup.look(parsed.spec, each), 0, 1) for each in (sent, rounded))
    return parsed.spec, *heads


def softmax_out(head):
    """The output of a head, by the reference of the close look."""
    return np.concatenate([rows.results["out"] for _start, rows in closeup.strips(head)])


@pytest.mark.parametrize("attention", ATTENTION)
@pytest.mark.parametrize("distribution", ["normal", "peaked", "uniform"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("seed", range(4))
def test_the_parts_are_within_their_bounds(dtype, distribution, attention, seed):
    spec, exact, rounded = both(dtype, attention, distribution, seed)
    returned = round_to_dtype(softmax_out(rounded), dtype)
    found = split(spec, exact, rounded, returned)
    bounds = error_sources._strip(
        spec,
        error_sources.Bounds(spec, rounded, None),
        *(closeup.rows(x, 0, N) for x in (exact, rounded)),
        returned,
    )
    for name in PARTS:
        assert (np.abs(bounds[name]) <= bounds[f"{name} bound"]).all(), name
        assert found.parts[name].largest <= found.parts[name].bound
    assert found.parts["computation"].largest == 0.0, "it is the nearest number that there is"
    assert found.parts["qk"].largest > 0.0
    assert found.parts["v"].largest > 0.0


def test_the_parts_add_up_to_the_error_itself():
    spec, exact, rounded = both("float16", ATTENTION[1])
    returned = round_to_dtype(softmax_out(rounded) + 3e-3, "float16")
    found = split(spec, exact, rounded, returned)
    errors = returned.astype(np.float64) - softmax_out(exact)
    for cell in found.worst:
        assert sum(cell.parts.values()) == pytest.approx(errors[cell.row, cell.column], abs=1e-15)
    assert found.total.largest == np.abs(errors).max()
    assert found.parts["computation"].largest == pytest.approx(3e-3, abs=1e-3)
    assert max(found.parts, key=lambda name: found.parts[name].largest) in ("computation", "qk", "v")


def attend(q, k, v):
    """Attention by its equations alone: [.., n, d] and so on."""
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(D)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True) @ v


@pytest.mark.parametrize(("coarse", "part", "other"), [("qk", "qk", "v"), ("v", "v", "qk")])
def test_what_rounding_q_and_k_does_is_told_from_what_rounding_v_does(coarse, part, other):
    """Of inputs that float16 keeps, but for some."""
    rng = np.random.default_rng(2)
    sent = {name: rng.normal(size=(1, 2, size, D)) for name, size in (("q", N), ("k", M), ("v", M))}
    for name in set("qkv") - set(coarse):
        sent[name] = sent[name].astype(np.float16).astype(np.float64)
    spec, exact, rounded = both("float16", inputs={name: x.tolist() for name, x in sent.items()})
    found = split(spec, exact, rounded, softmax_out(rounded)).parts
    kept = {name: x.astype(np.float16).astype(np.float64)[0, 1] for name, x in sent.items()}
    off = attend(**kept) - attend(**{name: x[0, 1] for name, x in sent.items()})
    assert found[part].largest == pytest.approx(np.abs(off).max(), rel=1e-9)
    assert found[other].largest == 0.0


def test_the_bound_of_inputs_is_no_larger_than_it_has_to_be():
    """Within some fifty times of what random roundings do: a bound of everything would say nothing."""
    spec, exact, rounded = both("bfloat16", {})
    found = split(spec, exact, rounded, softmax_out(rounded)).parts
    assert found["qk"].bound < 60 * found["qk"].largest
    assert found["v"].bound < 6 * found["v"].largest


def test_a_tighter_bound_would_be_broken(monkeypatch):
    """Inputs at half an ulp, all of whose errors point one way."""
    u = 2.0**-8
    ones = np.full((1, 1, 3, D), 1.0 + u * 0.999)
    inputs = {"q": ones.tolist(), "k": ones.tolist(), "v": ones.tolist()}
    parsed = parse_run({"engine": "eager", "dtype": "bfloat16", "inputs": inputs})
    rounded = {name: round_to_dtype(array, "bfloat16") for name, array in parsed.arrays.items()}
    heads = [
        closeup.one_head(closeup.look(parsed.spec, each), 0, 0)
        for each in (as_sent(parsed.spec, parsed.arrays, rounded), rounded)
    ]
    found = split(parsed.spec, *heads, softmax_out(heads[1])).parts["v"]
    assert 0.9 * u < found.largest <= found.bound < 1.1 * u


def planted(value, key, dimension):
    """Inputs whose query 2 of head 1 is near 0 but for one cell."""
    rng = np.random.default_rng(3)
    arrays = {name: rng.normal(size=(1, 2, size, D)) for name, size in (("q", N), ("k", M), ("v", M))}
    arrays["q"][0, 1, 2], arrays["k"][0, 1, key] = 0.0, 0.0
    arrays["q"][0, 1, 2, dimension], arrays["k"][0, 1, key, dimension] = value, value
    return {name: array.tolist() for name, array in arrays.items()}


def test_a_large_logit_is_what_is_special():
    spec, exact, rounded = both("float16", inputs=planted(300.03, 4, 1))
    found = split(spec, exact, rounded, round_to_dtype(softmax_out(rounded), "float16"))
    cell = next(cell for cell in found.worst if cell.row == 2)
    assert cell.largest_logit == pytest.approx(300.03**2 / np.sqrt(D), rel=1e-3)
    assert cell.largest_score == pytest.approx(300.03**2, rel=1e-3)
    assert error_sources.overflows(cell, "float16")
    assert not error_sources.overflows(cell, "bfloat16")
    assert cell.vanished == M - 1


def test_cancellation_is_what_is_special():
    rng = np.random.default_rng(5)
    arrays = {name: rng.normal(size=(1, 2, size, D)) for name, size in (("q", N), ("k", M), ("v", M))}
    arrays["q"][:] = 0.0  # all weights alike
    arrays["v"][0, 1, :, 3] -= arrays["v"][0, 1, :, 3].mean() - 1e-3
    arrays["v"][0, 1, 0, 3] += 40.0
    arrays["v"][0, 1, 1, 3] -= 40.0
    spec, exact, rounded = both("float16", inputs={name: array.tolist() for name, array in arrays.items()})
    found = split(spec, exact, rounded, round_to_dtype(softmax_out(rounded), "float16"))
    sizes = np.abs(arrays["v"][0, 1, :, 3]).mean()
    assert found.worst[0].column == 3
    assert found.worst[0].cancellation == pytest.approx(sizes / 1e-3, rel=1e-6)


def test_a_dimension_of_large_values_is_what_is_special():
    rng = np.random.default_rng(4)
    arrays = {name: rng.normal(size=(1, 2, size, D)) for name, size in (("q", N), ("k", M), ("v", M))}
    arrays["v"][..., 5] += 300.0
    spec, exact, rounded = both("float16", inputs={name: array.tolist() for name, array in arrays.items()})
    found = split(spec, exact, rounded, round_to_dtype(softmax_out(rounded), "float16"))
    largest = np.abs(arrays["v"][0, 1]).max(axis=0)
    for cell in found.worst:
        assert cell.column == 5
        assert cell.largest_value == largest[5]
        assert cell.outlier == pytest.approx(largest[5] / np.median(largest), rel=1e-12)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("value", [0.0, 1e-9, 6e-5, 1.0, -1.99, 2.0, 296.7, 60000.0])
def test_neighbours_are_as_far_apart_as_numpy_says(dtype, value):
    kind = np.dtype(dtype).type
    assert error_sources.spacing(float(kind(value)), dtype) == abs(float(np.spacing(kind(value))))


def test_subnormal_inputs_and_overflowing_outputs_are_counted():
    inputs = planted(1.0, 4, 1)
    inputs["v"][0][1][0][0] = 2.0**-16
    spec, exact, rounded = both("float16", inputs=inputs)
    returned = softmax_out(rounded)
    returned[2, 0] = np.inf
    found = split(spec, exact, rounded, returned)
    assert found.overflowed == 1
    assert (found.worst[0].row, found.worst[0].column) == (2, 0)
    assert found.worst[0].subnormal == 1


def test_nothing_is_off_where_there_is_nothing():
    inputs = {name: {"seed": 1, "shape": [2, 0 if name == "q" else M, D]} for name in "qkv"}
    spec = parse_run({"engine": "eager", "inputs": inputs}).spec
    made = {name: np.zeros(given.shape) for name, given in spec.inputs.items()}
    empty = closeup.one_head(closeup.look(spec, made), 0, 1)
    assert split(spec, empty, empty, np.zeros((0, D))).total.largest == 0.0
