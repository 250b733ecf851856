"""What ``GET /engines`` shows, and that engines keep their declared promises."""

import importlib
import json

import numpy as np
import pytest

from kernels.engines.reference import reference
from kernels.registry import ENGINES, FEATURES, SOFTMAX
from kernels.spec.families import PLAIN_INPUTS
from kernels.spec.results import TRACE
from tests.kernels.cases import compute, make


@pytest.mark.parametrize("engine", ENGINES)
def test_descriptions_are_json_and_complete(engine: str) -> None:
    described = json.loads(json.dumps(ENGINES[engine].describe()))
    assert described["name"] == engine
    assert described["summary"]
    assert set(described["features"]) <= set(FEATURES)
    assert "out" in described["returns"]
    assert set(described["inputs"]) == set(described["inputs_schema"]["properties"])
    assert callable(importlib.import_module(ENGINES[engine].module).prepare)


@pytest.mark.parametrize(
    "engine", [name for name, it in ENGINES.items() if it.takes == PLAIN_INPUTS and it.computes == SOFTMAX]
)
def test_every_declared_result_and_dtype_is_delivered(engine: str) -> None:
    declared = ENGINES[engine]
    for dtype in declared.dtypes:
        inputs = {"dout": {"seed": 1, "shape": [1, 2, 5, 4]}} if "gradients" in declared.features else {}
        spec, arrays = make(
            engine, (1, 2, 1, 5, 6, 4), dtype=dtype, inputs=inputs, **{"return": sorted(declared.returns)}
        )
        in_float64 = declared.returns.difference(TRACE)  # of a trace see test_trace.py
        got, expected = compute(spec, arrays), reference(spec, arrays, tuple(in_float64))
        assert declared.returns <= got.keys()
        for name in in_float64:
            np.testing.assert_allclose(got[name].astype(float), expected[name], atol=0.03, rtol=0.03)


def test_the_engines_of_the_contract_are_there() -> None:
    assert list(ENGINES) == [
        "reference", "eager", "sdpa", "flash", "decode", "paged", "mla", "linear", "performer", "scan",
        "scoring", "cache", "lsh", "hard",
    ]  # fmt: skip
    assert ENGINES["sdpa"].returns == {"out", "present_key", "present_value", "dq", "dk", "dv"}
    assert ENGINES["flash"].max_head_dim == 256
