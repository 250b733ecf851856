"""Where kernels run, on a GPU or in Triton's interpreter: the memory there, and how a kernel is launched."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from triton.runtime import driver
from triton.runtime.errors import OutOfResources

from kernels.arrays import Array
from kernels.engines import CannotRunError, TilesError
from kernels.engines.tensors import to_tensor
from kernels.flash.interpreter import INTERPRETED, patched_once
from kernels.flash.tiles import BACKWARD, INTERPRETER_BLOCK
from kernels.integers import ceil_div, next_power_of_two
from kernels.spec.model import RunSpec
from kernels.targets import nearest

# Programs along each axis of a grid (CUDA C++ Programming Guide, "Compute Capabilities").
GRID_LIMITS = (2**31 - 1, 2**16 - 1, 2**16 - 1)
# Which option says how many rows a program has along each of them.
TILED_BY: tuple[tuple[str, ...], ...] = ((), ("block_m",), ("block_n",))
FIXED = ("row_deltas", *BACKWARD)  # whose tiles no option makes larger


@dataclass(frozen=True)
class Memory:
    """A ``kernels.engines.Place``: the memory of ``device``, "cpu" or "cuda"."""

    device: str

    @property
    def target(self) -> str | None:
        """The key of ``kernels.targets.TARGETS`` that suits the current GPU; None in the interpreter."""
        return None if INTERPRETED else nearest(int(driver.active.get_current_target().arch))

    def __call__(self, array: Array, dtype: str | None = None) -> torch.Tensor:
        return to_tensor(array, self.device, dtype)


def multiprocessors(device: str) -> int | None:
    """How many the GPU has; None in the interpreter."""
    if INTERPRETED or device == "cpu":
        return None
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def require_triton(device: str, engine: str) -> None:
    """Raises CannotRunError where no kernel can run."""
    if device == "cpu" and not INTERPRETED:
        raise CannotRunError(
            f"the {engine} engine needs a CUDA GPU, or a process started with TRITON_INTERPRET=1 so that "
            "Triton's interpreter runs the kernel on the CPU"
        )


def working_dtype(spec: RunSpec) -> tuple[str, tuple[str, ...]]:
    """What the kernels compute on, and what must be said about it."""
    if INTERPRETED and spec.dtype == "bfloat16":
        return "float32", (
            "bfloat16 under the interpreter: inputs rounded to bfloat16, computed in float32, out "
            "rounded back",
        )
    return spec.dtype, ()


class Launch(NamedTuple):
    """A kernel with all that it is given."""

    name: str
    kernel: Any
    arguments: dict[str, Any]
    grid: tuple[int, ...]


def launch(name: str, kernel: Any, arguments: Mapping[str, Any], grid: tuple[int, ...]) -> None:
    """Run ``kernel`` once for every place of ``grid``; not at all where an axis has none.

    Raises TilesError where the GPU cannot hold the tiles, or has no grid so large.
    """
    if 0 in grid:
        return
    if INTERPRETED:
        with patched_once():
            kernel[grid](**arguments)
        return
    check_grid(name, grid)
    try:
        kernel[grid](**arguments)
    except OutOfResources as error:
        why = f"the tiles of {name} do not fit this GPU ({error})"
        raise TilesError(why, "smaller", ("block_m", "block_n", "chunk_size")) from error


def compilable(launches: Iterable[Launch]) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """As ``kernels_of`` yields them, without grids. Raises TilesError as ``launch`` does."""
    for one in launches:
        check_grid(one.name, one.grid)
        yield one[:3]


def check_grid(name: str, grid: tuple[int, ...]) -> None:
    """Raises TilesError where a grid is beyond those of CUDA."""
    for axis, (programs, most) in enumerate(zip(grid, GRID_LIMITS, strict=False)):
        if programs > most:
            why = (
                f"{name} takes {programs:,} programs along axis {axis} of its grid, and CUDA has at most "
                f"{most:,} there"
            )
            raise TilesError(why, "larger", () if name in FIXED else TILED_BY[axis])


def rows_of_a_program(length: int, block: int, *, interpreted: bool) -> int:
    """Of a kernel that reads and writes each row once: ``block``, a power of two, or as many more as keep the
    programs for ``length`` rows within an axis of a grid that is not the first; in the interpreter all that
    there are, as far as Triton's largest tile goes."""
    if interpreted:
        return min(INTERPRETER_BLOCK, next_power_of_two(length))
    return max(block, next_power_of_two(ceil_div(length, GRID_LIMITS[1])))
