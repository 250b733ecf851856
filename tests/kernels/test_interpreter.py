"""Triton's interpreter as we run it computes what it computes by itself, bit for bit."""

from contextlib import nullcontext

import numpy as np
import pytest
import triton.language as tl
from triton.runtime import interpreter

from kernels.flash import device
from kernels.flash.interpreter import patched_once
from tests.kernels.cases import compute, make

PATCHED = [
    (interpreter, "_patch_lang"),
    (interpreter, "_get_np_dtype"),
    (interpreter.interpreter_builder, "options"),
    (interpreter.InterpreterBuilder, "create_splat"),
    (interpreter.InterpreterBuilder, "create_select"),
    (interpreter.InterpreterBuilder, "create_masked_load"),
    (interpreter.InterpreterBuilder, "create_masked_store"),
    (tl.core.block_type, "__init__"),
    (tl.core.tensor, "__init__"),
]
ARITHMETIC = {
    "is_causal": True,
    "window": [9, 0],
    "softcap": 3.0,
    "alibi_slopes": [0.5, 0.25],
    "sinks": [0.0, 1.0],
}


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("attention", [{}, ARITHMETIC, {"rope": {"style": "interleaved"}}])
def test_what_is_remembered_changes_no_bit(monkeypatch, dtype, attention):
    returns = ["out", "lse", "weights", "dq", "dk", "dv"]
    dout = {"dout": {"seed": 3, "shape": [1, 2, 37, 20]}}
    spec, arrays = make(
        "flash", (1, 2, 1, 37, 53, 20), dtype=dtype, inputs=dout, attention=attention,
        options={"block_m": 16, "block_n": 32}, **{"return": returns},
    )  # fmt: skip
    ours = compute(spec, arrays)
    monkeypatch.setattr(device, "patched_once", nullcontext)
    plain = compute(spec, arrays)
    for name in returns:
        assert np.isfinite(ours[name]).all()
        np.testing.assert_array_equal(ours[name], plain[name], err_msg=name)


def test_after_a_launch_the_interpreter_is_as_it_was():
    def now():
        return [getattr(owner, name) for owner, name in PATCHED]

    before = now()
    with patched_once():
        during = now()
    assert all(was is not then for was, then in zip(before, during, strict=True))
    assert now() == before
