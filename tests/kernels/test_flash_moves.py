"""What visits of the flash kernel move: against the theorem's counts, and against the kernel itself."""

import pytest

from kernels.execute import execute
from kernels.flash.accesses import tiled_transfers
from kernels.flash.moves import moves, totals
from kernels.flash.schedule import deciding
from kernels.flash.walk import walk
from kernels.spec import parse_run

D = 4


def body(n: int, *, is_causal: bool, **options: int) -> dict[str, object]:
    return {
        "engine": "flash", "dtype": "float32", "options": options, "return": ["out", "lse"],
        "inputs": {name: {"seed": 1, "shape": [1, 1, n, D]} for name in "qkv"},
        "attention": {"is_causal": is_causal},
    }  # fmt: skip


def found(n: int, blocks: tuple[int, int], *, is_causal: bool):
    spec = parse_run(body(n, is_causal=is_causal)).spec
    return moves(walk(deciding(spec, {}), blocks, 0, 0), D, D)


@pytest.mark.parametrize(("n", "blocks"), [(12, (4, 4)), (13, (4, 3)), (16, (5, 7)), (7, (8, 2))])
def test_without_a_mask_as_much_moves_as_the_model_counts(n: int, blocks: tuple[int, int]) -> None:
    modelled = tiled_transfers(n, D, blocks[0], item=1)
    moved = totals(found(n, blocks, is_causal=False))
    assert moved.pop("LSE written") == n
    assert sum(moved.values()) == sum(modelled.values()) - modelled["LSE written"]
    assert moved["Q read"] == moved["O written"] == n * D


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("n", [48, 40])
def test_the_kernel_loads_and_stores_what_is_counted(n: int, is_causal: bool) -> None:
    done = execute(parse_run(body(n, is_causal=is_causal, block_m=16, block_n=16)).spec, {})
    moved = totals(found(n, (16, 16), is_causal=is_causal))
    offsets = 3 * is_causal  # with a mask each of the three programs reads where its queries stand
    assert done.traffic["bytes_read"] == 4 * (moved["Q read"] + moved["K, V read"] + offsets)
    assert done.traffic["bytes_written"] == 4 * (moved["O written"] + moved["LSE written"])


def test_a_program_reads_its_queries_once_and_writes_at_its_end() -> None:
    steps = found(12, (4, 4), is_causal=True)
    assert [one.tile for one in steps] == [(0, 0), (1, 0), (1, 1), (2, 0), (2, 1), (2, 2)]
    assert [one.moved["Q read"] for one in steps] == [16, 16, 0, 16, 0, 0]
    assert [one.moved["O written"] for one in steps] == [16, 0, 16, 0, 0, 16]
    assert [one.moved["LSE written"] for one in steps] == [4, 0, 4, 0, 0, 4]
    assert all(one.moved["K, V read"] == 32 for one in steps)
    assert steps[4].held == {"Q": 16, "K": 16, "V": 16, "S": 16, "m, l": 8, "O": 16}
