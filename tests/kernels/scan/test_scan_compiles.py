"""The kernels of the selective scan, compiled for GPUs that are not there."""

import pytest

from tests.kernels.test_compiling import printed_by

COMPILE = """
import json, sys
import numpy as np
from kernels.compiling import StandIn, compile_kernel
from kernels.scan.inputs import SelectiveScan
from kernels.scan.launch import scan_launch
from kernels.scan.tiling import choose_tiling

def zeros(*shape):
    return np.broadcast_to(np.zeros((), np.float32), shape)

def described(kernel, heads, p, states, shared):
    width, rates = (1, (heads, 1, 1)) if shared else (p, (heads, p, states))
    token = zeros(2, 1, 256, states)
    given = SelectiveScan(
        zeros(2, heads, 256, p), zeros(2, heads, 256, width), zeros(*rates), token, token, zeros(heads, p)
    )
    place = StandIn(target)
    at = dict.fromkeys(("x", "b", "c", "y"), place(zeros(1), "bfloat16"))
    at |= dict.fromkeys(("delta", "a", "skip", "start", "last"), place(zeros(1), "float32"))
    tiling = choose_tiling(given.sizes, chunk=None, interpreted=False)
    launch = scan_launch(kernel, given, at, tiling)
    found = compile_kernel(launch.name, launch.kernel, launch.arguments, target)
    return {"fits": found.fits, "spills": found.spills_bytes}

target, cases = json.loads(sys.argv[1])
print(json.dumps([described(*case) for case in cases]))
"""
MAMBA, MAMBA_2 = (1, 5120, 16, False), (8, 64, 128, True)


@pytest.mark.parametrize(("target", "sizes"), [("sm_80", MAMBA), ("sm_90", MAMBA_2)])
def test_both_kernels_fit_and_do_not_spill(target, sizes):
    for found in printed_by(
        COMPILE, [target, [(kernel, *sizes) for kernel in ("scan_chunks", "scan_steps")]]
    ):
        assert found == {"fits": True, "spills": 0}
