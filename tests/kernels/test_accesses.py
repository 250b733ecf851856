"""Accesses as the theorem counts them, and as this project counts them otherwise."""

import pytest

from kernels.execute import execute
from kernels.flash.accesses import (
    matrix_bytes,
    matrix_traffic,
    saving,
    standard_accesses,
    standard_transfers,
    tile_rows,
    tiled_accesses,
    tiled_transfers,
)
from kernels.spec import InputSpec, RunSpec, parse_run
from kernels.traffic import modelled_traffic

MIB = 2**20


def test_the_matrices_of_4096_tokens():
    """16.8 million scores of a head, 32 MiB in 16 bits; written and read twice, not moved three times: 128
    MiB."""
    assert matrix_bytes(4096, item=1) == 16_777_216
    assert matrix_bytes(4096) == 32 * MIB
    assert matrix_traffic(4096) == 128 * MIB


@pytest.mark.parametrize(("n", "d"), [(4096, 64), (1000, 40)])
def test_the_model_of_eager_attention_moves_as_much(n, d):
    """It keeps its matrices in float32; q, k, v and out come on top."""
    inputs = {name: InputSpec((1, 1, n, d), "float32", "inline") for name in "qkv"}
    spec = RunSpec("eager", inputs)
    found = modelled_traffic(spec)
    assert found["bytes_read"] + found["bytes_written"] == matrix_traffic(n, item=4) + 4 * n * d * 4


@pytest.mark.parametrize(("d", "times"), [(64, 12.5), (128, 3.1)])
def test_100_kb_on_chip_save_a_factor_that_falls_with_the_square_of_the_width(d, times):
    """So "a ninth of the traffic", which one workload with d = 64 had, is not a rule."""
    assert round(saving(d, 100 * 1024), 1) == times


@pytest.mark.parametrize("d", [64, 128])
def test_the_saving_is_the_ratio_of_the_theorem_for_long_texts(d):
    on_chip, n = 100 * 1024 // 2, 10**7
    ratio = standard_accesses(n, d) / tiled_accesses(n, d, on_chip)
    assert ratio == pytest.approx(saving(d, 100 * 1024), rel=1e-4)


def test_more_memory_on_chip_means_fewer_accesses_down_to_reading_everything_once():
    n, d = 1024, 64
    assert tiled_accesses(n, d, 2 * d) == tiled_accesses(n, d, d) / 2
    assert tiled_accesses(n, d, n * d) == n * d
    assert tiled_accesses(n, d, d) == n * n * d


@pytest.mark.parametrize("on_chip", [63, 1024 * 64 + 1])
def test_of_other_sizes_the_theorem_says_nothing(on_chip):
    with pytest.raises(ValueError, match=f"64 to 65536 numbers on chip.*not {on_chip}"):
        tiled_accesses(1024, 64, on_chip)


# -- transfer by transfer ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "d"), [(4096, 64), (1000, 40)])
def test_one_operation_after_another_moves_what_is_modelled_of_eager(n, d):
    inputs = {name: InputSpec((1, 1, n, d), "float32", "inline") for name in "qkv"}
    found = modelled_traffic(RunSpec("eager", inputs))
    moved = standard_transfers(n, d, item=4)
    read = sum(count for name, count in moved.items() if name.endswith("read"))
    assert (found["bytes_read"], found["bytes_written"]) == (read, sum(moved.values()) - read)


@pytest.mark.parametrize(("n", "rows"), [(48, 16), (70, 16), (70, 32), (64, 64)])
def test_tiles_move_what_the_interpreter_counts(n, rows):
    """All that the kernel loads and stores, whole and partial tiles."""
    seeded = {"seed": 1, "shape": [1, 1, n, 16]}
    parsed = parse_run(
        {
            "engine": "flash",
            "inputs": dict.fromkeys("qkv", seeded),
            "options": {"block_m": rows, "block_n": 16},
            "timing": {"warmup": 0, "iters": 1},
        }
    )
    found = execute(parsed.spec, parsed.arrays).traffic
    assert found["method"] == "interpreter"
    moved = tiled_transfers(n, 16, rows, item=4)
    read = moved["Q, K, V read"] + moved["K, V read again"]
    assert (found["bytes_read"], found["bytes_written"]) == (read, sum(moved.values()) - read)


def test_tiles_of_everything_fill_the_chip():
    assert tile_rows(64, 51_200) == 200
    assert 4 * 64 * tile_rows(64, 51_200) == 51_200
    assert tile_rows(64, 10) == 1


@pytest.mark.parametrize("d", [32, 64, 128])
def test_tiles_move_eight_times_what_the_theorem_has_without_constants(d):
    """8·n²d²/M, beside which Q and O once are few."""
    n, on_chip = 2**18, 65_536
    moved = sum(tiled_transfers(n, d, tile_rows(d, on_chip), item=1).values())
    assert moved == pytest.approx(8 * tiled_accesses(n, d, on_chip), rel=1e-2)
