"""A compilation, from request to machine code, by the compile worker itself."""

import pytest

pytestmark = pytest.mark.slow
SMALL = {"block_m": 32, "block_n": 32}


def seeded(*shape):
    return {"seed": 1, "shape": list(shape)}


def compiled(lab, **body):
    answer = lab.request("POST", "/api/v1/compiles", {"dtype": "float16", **body}, prefer="wait=60")
    document = answer.json()
    assert (answer.status, document["status"]) == (200, "succeeded"), document
    return document


def text(lab, document, name):
    return lab.get(f"/api/v1/compiles/{document['id']}/artifacts/{name}").body


def test_the_compile_worker_answers_with_registers_and_ptx(sqlite_lab):
    inputs = dict.fromkeys(("q", "k", "v"), seeded(1, 2, 128, 32))
    body = {"engine": "flash", "inputs": inputs, "options": SMALL, "return": ["out", "weights"]}
    document = compiled(sqlite_lab, **body, targets=["sm_80", "sm_90"])
    for target, arch in (("sm_80", b".target sm_80"), ("sm_90", b".target sm_90a")):
        main = document["result"]["targets"][target]
        (scores,) = main["others"]
        assert (main["kernel"], scores["kernel"]) == ("flash_forward", "flash_scores")
        assert 0 < main["registers"] <= 255
        assert 0 < scores["registers"] <= 255
        for name, entry in (
            (f"{target}.ptx", b"flash_forward"),
            (f"{target}.flash_scores.ptx", b"flash_scores"),
        ):
            ptx = text(sqlite_lab, document, name)
            assert arch in ptx
            assert b".entry " + entry in ptx
    again = compiled(sqlite_lab, **body, targets=["sm_90"])
    assert again["result"]["targets"]["sm_90"] == document["result"]["targets"]["sm_90"]


PLAIN = {"q": seeded(1, 2, 1, 32), **dict.fromkeys(("k", "v"), seeded(1, 2, 64, 32))}
LATENT = {
    "q_nope": seeded(1, 2, 1, 16), "q_rope": seeded(1, 2, 1, 16), "c_kv": seeded(1, 64, 32),
    "k_rope": seeded(1, 64, 16), "w_uk": seeded(2, 32, 16), "w_uv": seeded(2, 32, 16),
}  # fmt: skip


@pytest.mark.parametrize(
    ("engine", "inputs", "kernels"),
    [
        ("decode", PLAIN, {"decode_split", "merge_splits"}),
        ("paged", PLAIN, {"decode_split", "merge_splits"}),
        ("mla", LATENT, {"latent_attention", "absorb", "release"}),
    ],
)
def test_every_engine_of_ours_is_compiled(sqlite_lab, engine, inputs, kernels):
    document = compiled(sqlite_lab, engine=engine, inputs=inputs, targets=["sm_90"])
    main = document["result"]["targets"]["sm_90"]
    assert {main["kernel"], *(other["kernel"] for other in main["others"])} == kernels
    assert main["fits"]
