"""The kernels of attention by scores, compiled for GPUs that are not there."""

import pytest

from tests.kernels.test_compiling import printed_by

COMPILE = """
import json, sys
from kernels.compiling import compile_spec
from kernels.spec import parse_run
bodies, target = json.loads(sys.argv[1])
made = [compile_spec(parse_run(body).spec, target) for body in bodies]
print(json.dumps([
    {one.kernel: {**one.to_dict(), "double": "f64" in one.texts["ptx"]} for one in each} for each in made
]))
"""
TENSOR_CORES = ("mma", "wgmma", "tcgen05")


def seeded(*shape):
    return {"seed": 1, "shape": list(shape)}


def body(dtype, score, **fields):
    """All at once: a mask, causality, and a window whose share is asked for."""
    d, parameters = 128, {"w_p": seeded(4, 32, 128), "v_p": seeded(4, 32)}
    parameters |= {
        "additive": {"w_q": seeded(4, 32, d), "w_k": seeded(4, 32, d), "v_a": seeded(4, 32)},
        "concat": {"w_concat": seeded(1, 32, 2 * d), "v_a": seeded(1, 32)},
        "general": {"w_general": seeded(4, d, d)},
    }[score]
    return {
        "engine": "scoring", "dtype": dtype,
        "inputs": {"q": seeded(1, 4, 256, d), "k": seeded(1, 2, 256, d), "v": seeded(1, 2, 256, d),
                   "attn_mask": seeded(256, 256), **parameters},
        "attention": {"is_causal": True}, "options": {"score": score, "span": "predictive"},
        "return": ["out", "weights", "kept_weight"], **fields,
    }  # fmt: skip


SCORES = {"bfloat16": ("general", "additive"), "float32": ("concat",)}  # the others take a minute


@pytest.fixture(scope="module", params=[("sm_90", "bfloat16"), ("sm_80", "float32")], ids="-".join)
def found(request):
    """(dtype, score → its kernels)."""
    target, dtype = request.param
    made = printed_by(COMPILE, [[body(dtype, score) for score in SCORES[dtype]], target])
    return dtype, dict(zip(SCORES[dtype], made, strict=True))


def test_every_kernel_fits_and_hardly_spills(found):
    for score, kernels in found[1].items():
        assert {"scored_forward", "scored_matrices", "predict_centres"} <= kernels.keys()
        for name, kernel in kernels.items():
            assert kernel["fits"], (score, name)
            assert kernel["spills_bytes"] <= 16, (score, name)


def test_tensor_cores_multiply_what_is_a_product_and_float32_never(found):
    """Values always; scores where they are products; never those of additive and concat."""
    dtype, by_score = found
    counts = {
        (score, name): sum(kernel["instructions"][kind] for kind in TENSOR_CORES)
        for score, kernels in by_score.items()
        for name, kernel in kernels.items()
    }
    if dtype == "float32":
        assert not any(counts.values())
        return
    for score in by_score:
        assert counts[score, "scored_forward"] > 0
    assert counts["general", "scored_matrices"] > 0 == counts["additive", "scored_matrices"]
    assert counts["general", "scored_forward"] > counts["additive", "scored_forward"]


def test_centres_are_predicted_in_float64(found):
    for kernels in found[1].values():
        assert kernels["predict_centres"]["double"]
