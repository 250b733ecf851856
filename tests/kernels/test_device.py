"""Launching: how large a grid may be, what is not launched at all, and what a GPU's refusal becomes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from triton.runtime.errors import OutOfResources

from kernels import compiling
from kernels.compiling import CannotCompileError, StandIn, compile_spec
from kernels.engines import CannotRunError
from kernels.flash import device
from kernels.flash.arguments import Shapes
from kernels.flash.device import Launch, check_grid, launch
from kernels.flash.gradients import backward_launches
from kernels.flash.logits import Terms
from kernels.flash.rotation import rotation
from kernels.flash.softmax import Kept
from kernels.mla.arguments import LatentShapes, expanded_launches
from kernels.paged.launch import append_launch, page_rows
from kernels.paged.tables import Fresh
from kernels.registry import ENGINES
from kernels.spec import MAX_ELEMENTS, parse_run
from kernels.tiles import advising

SECOND, FIRST = 65_535, 2_147_483_647  # as NVIDIA has them for every GPU since compute capability 3.0


class Kernel:
    """Counts how often it is launched."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error, self.grids = error, []

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def run(**_: Any) -> None:
            if self.error is not None:
                raise self.error
            self.grids.append(grid)

        return run


@pytest.fixture
def on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "INTERPRETED", False)


@pytest.mark.parametrize("grid", [(FIRST,), (FIRST, SECOND, SECOND), (1, 1), (SECOND + 1, 1, 1)])
def test_a_grid_that_cuda_takes(grid: tuple[int, ...]) -> None:
    check_grid("any", grid)


@pytest.mark.parametrize(
    ("grid", "axis", "programs", "most"),
    [
        ((FIRST + 1,), 0, "2,147,483,648", "2,147,483,647"),
        ((8, SECOND + 1), 1, "65,536", "65,535"),
        ((8, SECOND, 70_000), 2, "70,000", "65,535"),
    ],
)
def test_a_grid_beyond_cuda_is_refused_by_its_numbers(
    on_a_gpu: None, grid: tuple[int, ...], axis: int, programs: str, most: str
) -> None:
    kernel = Kernel()
    with pytest.raises(CannotRunError) as refusal:
        launch("flash_forward", kernel, {}, grid)
    said = str(refusal.value)
    assert said.startswith(f"flash_forward takes {programs} programs along axis {axis} of its grid")
    assert f"at most {most} there" in said
    assert kernel.grids == []


@pytest.mark.parametrize(
    ("engine", "options", "length", "advice"),
    [
        ("flash", {"block_m": 16}, 16 * (SECOND + 1), "ask for a larger block_m, or send shorter sequences"),
        ("mla", {"block_m": 16}, 16 * (SECOND + 1), "ask for a larger block_m, or send shorter sequences"),
        ("paged", {}, 128 * (SECOND + 1), "send shorter sequences"),
    ],
)
def test_what_no_grid_can_hold_is_not_compiled_either(
    engine: str, options: dict[str, Any], length: int, advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is advised is what the engine can be asked for."""
    monkeypatch.setattr(compiling, "INTERPRETED", False)
    monkeypatch.setattr(compiling, "compile_kernel", lambda name, *_: pytest.fail(f"compiled {name}"))
    shapes = {
        "flash": dict.fromkeys(("q", "k", "v"), (1, 1, length, 1)),
        "paged": {"q": (1, 1, length, 1), **dict.fromkeys(("k", "v"), (1, 1, 1, 1))},
        "mla": {
            "q_nope": [1, 1, length, 1], "q_rope": [1, 1, length, 2], "c_kv": [1, 1, 1], "k_rope": [1, 1, 2],
            "w_uk": [1, 1, 1], "w_uv": [1, 1, 1],
        },
    }  # fmt: skip
    inputs = {name: {"seed": 1, "shape": list(shape)} for name, shape in shapes[engine].items()}
    body = {"engine": engine, "dtype": "float16", "inputs": inputs, "options": options}
    with pytest.raises(
        CannotCompileError, match=rf"programs along axis 1 .* at most 65,535 there: {advice}$"
    ):
        compile_spec(parse_run(body).spec, "sm_90")


def test_the_interpreter_has_no_limit() -> None:
    kernel = Kernel()
    launch("flash_forward", kernel, {}, (1, SECOND + 1))
    assert kernel.grids == [(1, SECOND + 1)]


@pytest.mark.parametrize("grid", [(0, 4), (3, 0), (2, 2, 0)])
def test_nothing_is_launched_for_no_program(on_a_gpu: None, grid: tuple[int, ...]) -> None:
    kernel = Kernel()
    launch("flash_forward", kernel, {}, grid)
    assert kernel.grids == []


@pytest.mark.parametrize("engine", [name for name, engine in ENGINES.items() if engine.is_triton])
def test_tiles_that_do_not_fit_are_refused_in_words(on_a_gpu: None, engine: str) -> None:
    kernel = Kernel(OutOfResources(300_000, 232_448, "shared memory"))
    known = sorted({"block_m", "block_n", "chunk_size"} & ENGINES[engine].options.keys())
    remedy = f"ask for a smaller {' or '.join(known)}" if known else "send fewer dimensions"
    with (
        pytest.raises(CannotRunError, match=rf"do not fit this GPU .*shared memory.*: {remedy}$"),
        advising(engine),
    ):
        launch("flash_forward", kernel, {}, (1,))


# -- grids that never go beyond ------------------------------------------------------------------------------

ROWS = (
    1,
    31,
    32,
    33,
    100_000,
    32 * SECOND,
    32 * SECOND + 1,
    64 * SECOND + 1,
    MAX_ELEMENTS // 2,
    MAX_ELEMENTS,
)


def nothing(*shape: int) -> np.ndarray:
    """Zeros without memory."""
    return np.broadcast_to(np.float32(0), shape)


def covers(one: Launch, axis: int, block: str, length: int) -> None:
    """The grid is CUDA's, every row has a program, and there is none for rows that are not there."""
    check_grid(one.name, one.grid)
    rows = one.arguments[block]
    assert rows == 1 << int(math.log2(rows))
    assert (one.grid[axis] - 1) * rows < length <= one.grid[axis] * rows


@pytest.mark.parametrize("length", ROWS)
def test_the_longest_rotation_fits_a_grid(length: int) -> None:
    pointers = (torch.empty(0),) * 4
    one = rotation(pointers, (2, 3, length, 2), (1, length, 1), "sm_90", style="half", dim_offset=0)
    covers(one, 1, "BLOCK_M", length)
    assert one.grid[0] == 6
    assert one.arguments["BLOCK_M"] == 32 or length > 32 * SECOND


@pytest.mark.parametrize("length", ROWS)
@pytest.mark.parametrize("dim", [1, 64, 256])
def test_the_longest_append_fits_a_grid(length: int, dim: int) -> None:
    lens = np.zeros(1, np.int32)
    pages = page_rows(torch.empty(0), (1, 16, 1, dim), torch.empty(0), (1, 1))
    fresh = Fresh(nothing(1, 1, length, dim), nothing(1, 1, length, dim), lens, lens)
    covers(append_launch(fresh, pages, pages, StandIn("sm_90"), "float16"), 1, "BLOCK_T", length)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("length", ROWS)
def test_the_longest_projection_fits_a_grid(length: int, dtype: str) -> None:
    shapes = LatentShapes(
        q_nope=(1, 2, 1, 1), q_rope=(1, 2, 1, 1), c_kv=(1, 1, length, 1), k_rope=(1, 1, length, 1),
        w_uk=(1, 2, 1, 1), w_uv=(1, 2, 1, 1),
    )  # fmt: skip
    at = dict.fromkeys(("c_kv", "k_rope", "w_uk", "w_uv", "keys", "values"), torch.empty(0))
    for one in expanded_launches(shapes, at, dtype=dtype, interpreted=False):
        covers(one, 1, "BLOCK_M", length)


def test_gradients_of_more_keys_than_a_grid_has_tiles_are_refused() -> None:
    """What no block makes fit is refused by the name of its kernel."""
    length = 32 * SECOND + 1
    shapes = Shapes((1, 1, 1, 1), (1, 1, length, 1), (1, 1, length, 1))
    names = ("q", "k", "v", "out", "dout", "delta", "dq", "dk", "dv")
    nowhere = torch.empty(0)
    pointers, kept = dict.fromkeys(names, nowhere), Kept(nowhere, nowhere)
    found = {one.name: one for one in backward_launches(pointers, kept, shapes, Terms(scale=1.0), (32, 32))}
    check_grid("flash_backward_queries", found["flash_backward_queries"].grid)
    with (
        pytest.raises(
            CannotRunError,
            match=r"flash_backward_keys takes 65,536 programs along axis 1 .* there: send shorter",
        ),
        advising("flash"),
    ):
        check_grid("flash_backward_keys", found["flash_backward_keys"].grid)
