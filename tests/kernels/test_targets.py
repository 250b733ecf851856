"""What fits on a multiprocessor, against figures worked out by hand from NVIDIA's rules."""

import re

import pytest

from kernels.flash.tiles import choose_tiling, tile_problems
from kernels.spec import SpecError, parse_run
from kernels.targets import TARGETS, nearest, parse_targets, resident_blocks

KIB = 1024


@pytest.mark.parametrize(
    ("target", "block", "expected"),
    [
        # 255 registers · 32 threads = 8160, rounded up to 8192 a warp: 8 warps in 65,536, 2 blocks of 4
        ("sm_80", (255, 48 * KIB, 4), (2, "registers")),
        ("sm_80", (128, 32 * KIB, 4), (4, "registers")),
        # 129 · 32 = 4128 rounds up to 4352: 15 warps, 3 blocks of 4
        ("sm_80", (129, 32 * KIB, 4), (3, "registers")),
        # 48 + 1 KiB in 164 KiB: 3
        ("sm_80", (64, 48 * KIB, 4), (3, "shared")),
        ("sm_90", (64, 48 * KIB, 4), (4, "shared")),
        ("sm_120", (64, 48 * KIB, 4), (2, "shared")),
        ("sm_90", (32, 0, 1), (32, "blocks")),
        ("sm_90", (32, 0, 4), (16, "warps")),
        ("sm_120", (32, 0, 4), (12, "warps")),
        # one byte more than a block may have
        ("sm_80", (64, 163 * KIB, 4), (1, "shared")),
        ("sm_80", (64, 163 * KIB + 1, 4), (0, "shared")),
        ("sm_120", (64, 99 * KIB, 4), (1, "shared")),
        ("sm_120", (64, 99 * KIB + 1, 4), (0, "shared")),
        # 160 columns of tensor memory are given out as 256 of 512; 8 as 32
        ("sm_100", (64, 16 * KIB, 4, 160), (2, "tmem")),
        ("sm_100", (64, 16 * KIB, 4, 256), (2, "tmem")),
        ("sm_100", (64, 16 * KIB, 4, 257), (1, "tmem")),
        ("sm_100", (32, 0, 1, 8), (16, "tmem")),
    ],
)
def test_resident_blocks(target, block, expected):
    assert resident_blocks(TARGETS[target], *block) == expected


@pytest.mark.parametrize(
    ("capability", "target"),
    [(75, "sm_120"), (80, "sm_80"), (86, "sm_120"), (89, "sm_120"), (90, "sm_90"), (100, "sm_100"),
     (103, "sm_100"), (120, "sm_120"), (121, "sm_120")],
)  # fmt: skip
def test_a_gpu_gets_the_tables_of_the_target_it_is_most_like(capability, target):
    assert nearest(capability) == target


def test_targets_are_kept_in_order_and_once():
    assert parse_targets(["sm_90", "sm_80", "sm_90"]) == ("sm_90", "sm_80")


@pytest.mark.parametrize("value", [None, "sm_90", [], {}, 90])
def test_targets_must_be_a_list_with_something_in_it(value):
    with pytest.raises(SpecError, match="at least one of sm_80, sm_90, sm_100 or sm_120"):
        parse_targets(value)


@pytest.mark.parametrize("name", ["sm_70", "SM_90", 90, None, ["sm_90"], "\ud800"])
def test_an_unknown_target_is_named_with_those_that_are_known(name):
    with pytest.raises(SpecError) as error:
        parse_targets(["sm_90", name])
    (problem,) = error.value.problems
    assert problem.pointer == "/targets/1"
    assert "sm_80, sm_90, sm_100 or sm_120" in problem.detail
    problem.detail.encode()


def tiled(dtype="float16", dim=128, v_dim=None, length=1024, **options):
    shapes = {"q": dim, "k": dim, "v": v_dim or dim}
    inputs = {name: {"seed": 1, "shape": [1, 2, length, width]} for name, width in shapes.items()}
    return parse_run({"engine": "flash", "dtype": dtype, "inputs": inputs, "options": options}).spec


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("dim", [1, 16, 59, 64, 128, 129, 256])
def test_default_tiles_are_always_compiled(dtype, dim):
    for v_dim in (1, 64, 256):
        for length in (1, 100, 4096):
            assert not tile_problems(tiled(dtype, dim, v_dim, length), TARGETS)


@pytest.mark.parametrize(
    ("dtype", "dim", "tile", "target", "named"),
    [
        # Compiled for more than 140 s.
        ("float32", 128, (256, 128), "sm_80", "256 KiB of registers, and a multiprocessor has 160 KiB"),
        # 64 · 64 · (128 + 128) / 128 threads = 8192: 45 s
        ("float32", 128, (64, 64), "sm_90", "8,192 float32 multiply-adds"),
        # 256 · (256 + 64) · 4 bytes
        ("float16", 64, (256, 256), "sm_80", "320 KiB of registers"),
        # 256 · (128 + 64) · 4 bytes; with every term 30 s
        ("float16", 64, (256, 128), "sm_90", "192 KiB of registers"),
        # (16 + 1024 + 1024) · 64 · 2 bytes
        ("bfloat16", 64, (16, 1024), "sm_80", "258 KiB of shared memory, and a multiprocessor has 163 KiB"),
    ],
)
def test_a_tile_beyond_the_machine_is_refused_before_it_is_compiled(dtype, dim, tile, target, named):
    (problem,) = tile_problems(tiled(dtype, dim, block_m=tile[0], block_n=tile[1]), [target])
    assert problem.pointer == "/options/block_m"
    assert named in problem.detail
    assert f"tiles of {tile[0]} × {tile[1]} for {target}" in problem.detail
    m, n = map(int, re.search(r"block_m (\d+) with block_n (\d+)", problem.detail).groups())
    assert not tile_problems(tiled(dtype, dim, block_m=m, block_n=n), [target])
    for larger in ((2 * m, n), (m, 2 * n)):
        if larger[0] <= tile[0] and larger[1] <= tile[1]:
            assert tile_problems(tiled(dtype, dim, block_m=larger[0], block_n=larger[1]), [target])


def test_a_tile_of_a_quantised_cache_has_few_keys_unless_more_are_asked_for():
    for target in TARGETS:
        assert choose_tiling(tiled(kv_dtype="int8"), target).block_n == 32
        assert choose_tiling(tiled(kv_dtype="int8", block_n=64), target).block_n == 64
    assert choose_tiling(tiled(kv_dtype="int8"), None) == choose_tiling(tiled(), None)


def test_only_the_targets_too_small_for_a_tile_are_named():
    spec = tiled("float16", 128, block_m=64, block_n=256)
    assert not tile_problems(tiled("float16", 128, block_m=128, block_n=64), TARGETS)
    assert [p.detail.split(":")[0] for p in tile_problems(spec, TARGETS)] == ["tiles of 64 × 256 for sm_120"]
