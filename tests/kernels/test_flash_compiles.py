"""The kernels compile for real GPUs with the tiles chosen for them. No GPU is needed, and none is claimed.

In a process of its own: Triton cannot interpret and compile in the same one.
"""

import json
import os
import subprocess
import sys

CODE = """
import json
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from kernels.flash.kernel import flash_forward
from kernels.flash.scores import flash_scores
from kernels.flash.tiles import default_tiles, padded_dim

def build(kernel, cc, dtype, dim, **special):
    block_m, block_n = default_tiles(special.get("q_len", 1024), 1024, dim, dtype, interpreted=False)
    known = {"D": dim, "DV": dim, "BLOCK_D": padded_dim(dim), "BLOCK_DV": padded_dim(dim), "BLOCK_M": block_m,
             "BLOCK_N": block_n, "CAUSAL": True, "SCORES": True, "MASKED": False, "WEIGHTS": True, **special}
    names = kernel.arg_names
    pointer = {"float16": "*fp16", "float32": "*fp32", "bfloat16": "*bf16"}[dtype]
    types = {n: pointer for n in ("p_q", "p_k", "p_v", "p_o")} | {"scale": "fp32"}
    usual = {n: "*fp32" if n[:2] == "p_" else "i32" for n in names}
    signature = {n: "constexpr" if n in known else types.get(n, usual[n]) for n in names}
    constants = {(i,): known[n] for i, n in enumerate(names) if n in known}
    aligned = {(i,): [["tt.divisibility", 16]] for i, n in enumerate(names) if n.startswith("p_")}
    built = compile(ASTSource(kernel, signature, constants, aligned), target=GPUTarget("cuda", cc, 32),
                    options={"num_warps": 4})
    return built.metadata.shared, built.asm["ptx"]

shared, ptx = build(flash_forward, 90, "bfloat16", 64)
one, _ = build(flash_forward, 80, "float16", 59, q_len=1, group=1)
scores, _ = build(flash_scores, 80, "float16", 64)
print(json.dumps({"shared": [shared, one, scores], "wgmma": "wgmma" in ptx}))
"""


def test_the_kernels_compile_for_gpus_that_are_not_here() -> None:
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"} | {"PYTHONPATH": "."}
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, env=env, check=False)
    # Triton reads a kernel's source from its file, so only the driver above is passed as text.
    assert done.returncode == 0, done.stderr[-2000:]
    built = json.loads(done.stdout.splitlines()[-1])
    assert built["wgmma"]
    assert max(built["shared"]) <= 99 * 1024  # the smallest limit among sm_80 … sm_120
