"""A compilation, from request to machine code, by the compile worker itself."""

import pytest

pytestmark = pytest.mark.slow


def test_the_compile_worker_answers_with_registers_and_ptx(sqlite_lab):
    seeded = {"seed": 1, "shape": [1, 2, 128, 32]}
    request = {
        "engine": "flash",
        "dtype": "float16",
        "inputs": {"q": seeded, "k": seeded, "v": seeded},
        "options": {"block_m": 32, "block_n": 32},
        "targets": ["sm_90"],
    }
    answer = sqlite_lab.request("POST", "/api/v1/compiles", request, prefer="wait=60")
    document = answer.json()
    assert (answer.status, document["status"]) == (200, "succeeded"), document
    assert 0 < document["result"]["targets"]["sm_90"]["registers"] <= 255
    text = sqlite_lab.get(f"/api/v1/compiles/{document['id']}/artifacts/sm_90.ptx")
    assert b".target sm_90a" in text.body
