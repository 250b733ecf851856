"""Run attention by any score on tensors: memory, tiles, launches."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import numpy as np
import torch

from kernels.engines import version_of
from kernels.engines.tensors import TORCH_DTYPES
from kernels.flash.device import launch
from kernels.flash.interpreter import INTERPRETED
from kernels.flash.logits import Terms
from kernels.mla.launch import KERNEL_VERSION as PROJECT_VERSION
from kernels.scoring.arguments import Bound, written
from kernels.scoring.inputs import Scoring
from kernels.tuning import Tiling

KERNEL_VERSION = version_of(Path(__file__).parent, ("pairs.py", "windows.py", "kernel.py"), PROJECT_VERSION)


def attend(
    given: Scoring, masks: Terms, tiling: Tiling, wanted: Collection[str] = ("out", "lse")
) -> dict[str, torch.Tensor]:
    """What ``arguments.written`` lists: out of the dtype of q, centres float64, the rest float32.

    ``given``: contiguous tensors of one dtype, none bfloat16 in the interpreter. ``masks``: see
    ``kernels.flash.arguments.terms``, for ``tiling``.
    """
    dtype = str(given.q.dtype).removeprefix("torch.")
    at = {"q": given.q, "k": given.k, "v": given.v, **given.parameters}
    made = {
        name: torch.empty(one.shape, dtype=TORCH_DTYPES[one.dtype or dtype], device=given.q.device)
        for name, one in written(given, wanted).items()
    }
    bound = Bound(given, at | made, masks, tiling, dtype, wanted, interpreted=INTERPRETED)
    # In the interpreter: of exponentials, where tanh is 1; of numbers beyond float32, which a run reports.
    with np.errstate(over="ignore", invalid="ignore"):
        for one in bound.launches():
            launch(*one)
    return made
