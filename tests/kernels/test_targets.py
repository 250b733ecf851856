"""What fits on a multiprocessor, against figures worked out by hand from NVIDIA's rules."""

import pytest

from kernels.spec import SpecError
from kernels.targets import TARGETS, block_limits, nearest, parse_targets, resident_blocks

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


# CUDA C++ Programming Guide, "Technical Specifications per Compute Capability": 8.0, 9.0, 10.0, 12.0.
PUBLISHED = {
    "sm_80": {"warps": 64, "blocks": 32, "shared": 164, "a_block": 163},
    "sm_90": {"warps": 64, "blocks": 32, "shared": 228, "a_block": 227},
    "sm_100": {"warps": 64, "blocks": 32, "shared": 228, "a_block": 227},
    "sm_120": {"warps": 48, "blocks": 24, "shared": 100, "a_block": 99},
}


@pytest.mark.parametrize("target", PUBLISHED)
@pytest.mark.parametrize("registers", [16, 33, 64, 107, 168, 255])
@pytest.mark.parametrize("warps", [1, 4, 8])
def test_each_resource_by_itself(target, registers, warps):
    sm = PUBLISHED[target]
    # of 65,536 registers, a warp takes 32 times as many as a thread, in whole units of 256
    units = 65_536 // 256 // ((registers * 32 + 255) // 256)
    assert block_limits(TARGETS[target], registers, 20 * KIB, warps) == {
        "blocks": sm["blocks"],
        "warps": sm["warps"] // warps,
        "registers": units // warps,
        "shared": sm["shared"] // 21,  # with the KiB that the system takes
    }
    assert block_limits(TARGETS[target], registers, sm["a_block"] * KIB + 1, warps)["shared"] == 0


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


@pytest.mark.parametrize(
    ("name", "status"),
    [("sm_70", 422), ("SM_90", 422), (90, 400), (None, 400), (["sm_90"], 400), ("\ud800", 422)],
)
def test_an_unknown_target_is_named_with_those_that_are_known(name, status):
    with pytest.raises(SpecError) as error:
        parse_targets(["sm_90", name])
    (problem,) = error.value.problems
    assert (problem.pointer, problem.status) == ("/targets/1", status)
    assert problem.detail.endswith("use some of sm_80, sm_90, sm_100 or sm_120")
    problem.detail.encode()
