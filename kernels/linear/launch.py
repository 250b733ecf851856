"""Run a linear recurrence on tensors, in any of its three forms."""

from __future__ import annotations

from pathlib import Path

import torch

from kernels.engines import version_of
from kernels.flash.device import launch
from kernels.flash.interpreter import INTERPRETED
from kernels.linear.arguments import Bound
from kernels.linear.inputs import Recurrence, Result, State
from kernels.linear.tiling import choose_tiling

KERNEL_VERSION = version_of(Path(__file__).parent, ("tiles.py", "chunks.py", "steps.py", "quadratic.py"))
ARRAYS = ("q", "k", "v", "log_decay", "beta")


def chunked(given: Recurrence, state: State | None = None, *, chunk: int | None = None) -> Result:
    """``recurrence.chunked`` on tensors: out has the dtype of q, the state is float32.

    ``chunk``: a power of two; None: what suits. Raises ValueError for a chunk that no tile can have, and for
    decays by row.
    """
    out, after = _run("chunked", given, state, chunk)
    assert after is not None  # noqa: S101 - for the types: only parallel makes none
    return Result(out, after)


def parallel(given: Recurrence, state: State | None = None) -> torch.Tensor:
    """The outputs of ``recurrence.parallel`` on tensors, in the dtype of q; this form makes no state.

    Raises ValueError for the delta rule and for decays by row.
    """
    return _run("parallel", given, state, None)[0]


def recurrent(given: Recurrence, state: State | None = None) -> Result:
    """``recurrence.recurrent`` on tensors: out has the dtype of q, the state is float32."""
    out, after = _run("recurrent", given, state, None)
    assert after is not None  # noqa: S101 - for the types: only parallel makes none
    return Result(out, after)


def _run(
    form: str, given: Recurrence, state: State | None, chunk: int | None
) -> tuple[torch.Tensor, State | None]:
    given.check_state(state)
    at = {name: readable(getattr(given, name)) for name in ARRAYS if getattr(given, name) is not None}
    if state is not None:
        at["start_s"] = state.s.float().contiguous()
        if state.z is not None:
            at["start_z"] = state.z.float().contiguous()
    dtype = str(given.q.dtype).removeprefix("torch.")
    bound = Bound(given, at, choose_tiling(given.sizes, dtype, chunk=chunk, interpreted=INTERPRETED))
    for name, shape in bound.written(form).items():
        kept = at["q"].dtype if name == "out" else torch.float32
        at[name] = torch.empty(shape, dtype=kept, device=given.q.device)
    for one in bound.launches(form):
        launch(*one)
    out = at["out"].to(given.q.dtype)
    if "s" not in at:
        return out, None
    z = at["z"][:, :, 0] if given.normalised else None
    return out, State(at["s"], z)


def readable(tensor: torch.Tensor) -> torch.Tensor:
    """Contiguous, and float32 in the place of the bfloat16 that Triton's interpreter misreads."""
    if INTERPRETED and tensor.dtype == torch.bfloat16:
        tensor = tensor.float()
    return tensor.contiguous()
