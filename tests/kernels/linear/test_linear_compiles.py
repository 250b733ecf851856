"""The kernels of linear recurrences, compiled for GPUs that are not there."""

import pytest

from tests.kernels.test_compiling import printed_by

COMPILE = """
import json, sys
import numpy as np
from kernels.compiling import StandIn, compile_kernel
from kernels.linear.arguments import Bound
from kernels.linear.tiling import choose_tiling
from kernels.linear.inputs import Recurrence

def zeros(*shape):
    return np.broadcast_to(np.zeros((), np.float32), shape)

def described(dtype, target, form, gated, fields):
    d = 64
    given = Recurrence(
        zeros(2, 4, 256, d), zeros(2, 2, 256, d), zeros(2, 2, 256, d),
        zeros(2, 2, 256, 1) if gated else None, zeros(2, 2, 256, 1) if gated == "delta" else None, **fields,
    )
    place = StandIn(target)
    number, full = place(zeros(1), dtype), place(zeros(1), "float32")
    tiling = choose_tiling(given.sizes, dtype, chunk=None, interpreted=False)
    at = dict.fromkeys(("q", "k", "v", "out"), number) | {"log_decay": full, "beta": full, "start_s": full}
    at |= {"start_z": full} if given.normalised else {}
    made = {name: full for name in Bound(given, {}, tiling).written(form)}
    for launch in Bound(given, {**made, **at}, tiling).launches(form):
        found = compile_kernel(launch.name, launch.kernel, launch.arguments, target)
        yield {"kernel": found.kernel, "fits": found.fits, "spills": found.spills_bytes, **found.instructions}

print(json.dumps([list(described(*case)) for case in json.loads(sys.argv[1])]))
"""
ELU = {"features": "elu", "normalised": True}


@pytest.fixture(scope="module", params=[("sm_80", "bfloat16"), ("sm_90", "float32")], ids="-".join)
def found(request):
    """(dtype, {form: its kernels}), of decays with the delta rule where the form can, else of elu + 1."""
    target, dtype = request.param
    forms = (("chunked", "delta", {}), ("parallel", "decay", ELU), ("recurrent", "delta", {}))
    made = printed_by(COMPILE, [(dtype, target, *form) for form in forms])
    return dtype, {form: kernels for (form, _, _), kernels in zip(forms, made, strict=True)}


def test_every_kernel_fits_and_hardly_spills(found):
    kernels = [kernel for made in found[1].values() for kernel in made]
    assert {kernel["kernel"] for kernel in kernels} == {
        "chunk_states", "chunk_outputs", "quadratic", "token_steps"
    }  # fmt: skip
    for kernel in kernels:
        assert kernel["fits"]
        assert kernel["spills"] <= 64, kernel


def test_tensor_cores_multiply_where_inputs_have_16_bits(found):
    dtype, forms = found
    for form, kernels in forms.items():
        for kernel in kernels:
            multiplied = kernel["mma"] + kernel["wgmma"] > 0
            assert multiplied == (dtype == "bfloat16" and form != "recurrent"), kernel
