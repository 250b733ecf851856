"""What `make gpu-check` runs, rehearsed where there is no GPU: the scripts work, and say what they lack."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(torch.cuda.is_available(), reason="with a GPU `make gpu-check` is no rehearsal"),
]
ROOT = Path(__file__).resolve().parents[2]


def said(module: str, *arguments: str) -> str:
    env = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("module", ["tests.gpu.check", "tests.benchmarks.gpu"])
def test_without_a_gpu_it_says_so(module: str) -> None:
    assert said(module).startswith("no GPU here: ")


def test_every_engine_is_right_in_the_rehearsal() -> None:
    printed = said("tests.gpu.check", "--rehearse")
    rows = [line.split() for line in printed.splitlines()[1:]]
    right = {name: int(right) for name, right, *_ in rows}
    assert min(right[way] for way in ("eager", "sdpa", "flash", "decode", "mla-absorbed")) > 0
    assert all(int(wrong) == 0 for _, _, wrong, *_ in rows)


def test_every_line_of_the_benchmark_can_be_measured() -> None:
    lines = said("tests.benchmarks.gpu", "--rehearse").splitlines()
    ours = [line for line in lines if "(ours)" in line]
    assert len(ours) > 10
    assert all(line.endswith("ran") for line in ours), ours
