"""The GPUs that a kernel can be compiled for, and how much of a kernel fits on one of their multiprocessors.

Arithmetic only: no torch, no triton.
"""

from __future__ import annotations

from dataclasses import dataclass

from kernels.spec.problems import MALFORMED, NOT_COMPUTABLE, FieldProblem, SpecError, one_of, show

WARP_SIZE = 32
REGISTER_UNIT = 256  # registers are handed to a warp in units of 256
REGISTER_LIMIT = 65_536  # per multiprocessor, on every target below


@dataclass(frozen=True)
class Multiprocessor:
    """What one streaming multiprocessor offers (CUDA C++ Programming Guide, "Compute Capabilities")."""

    capability: int
    title: str
    count: int  # how many the GPU that is named has: of the RTX 50 series the 5090
    max_warps: int
    max_blocks: int
    shared_bytes: int  # of the multiprocessor
    shared_bytes_per_block: int  # the most one block may ask for
    tmem_columns: int = 0  # of tensor memory; a column is 128 words
    reserved_bytes_per_block: int = 1024


TARGETS = {
    "sm_80": Multiprocessor(80, "A100", 108, 64, 32, 164 * 1024, 163 * 1024),
    "sm_90": Multiprocessor(90, "H100, H200", 132, 64, 32, 228 * 1024, 227 * 1024),
    "sm_100": Multiprocessor(100, "B200", 148, 64, 32, 228 * 1024, 227 * 1024, tmem_columns=512),
    "sm_120": Multiprocessor(120, "RTX 50 series", 170, 48, 24, 100 * 1024, 99 * 1024),
}


def parse_targets(value: object) -> tuple[str, ...]:
    """The `targets` of a compile request: some of TARGETS, each once. Raises SpecError."""
    if not isinstance(value, list) or not value:
        detail = f"targets must be a list with at least one of {one_of(TARGETS)}"
        raise SpecError([FieldProblem("/targets", "type", detail, MALFORMED)])
    problems = [
        FieldProblem(
            f"/targets/{index}",
            "unknown-target",
            f"there is no target {show(name)}; use some of {one_of(TARGETS)}",
            NOT_COMPUTABLE if isinstance(name, str) else MALFORMED,
        )
        for index, name in enumerate(value)
        if not isinstance(name, str) or name not in TARGETS
    ]
    if problems:
        raise SpecError(problems)
    return tuple(dict.fromkeys(value))


def nearest(capability: int) -> str:
    """The target whose tables suit a GPU of any compute capability, 89 for 8.9.

    The generation decides, and within it the shared memory: that of 8.6 and 8.9 (RTX 30 and 40 series, L4) is
    as small as that of sm_120, whose tensor cores are also programmed alike.
    """
    if capability < 90:
        return "sm_80" if capability == 80 else "sm_120"
    return "sm_90" if capability < 100 else "sm_100" if capability < 120 else "sm_120"


def block_limits(
    sm: Multiprocessor, registers: int, shared_bytes: int, num_warps: int, tmem_columns: int = 0
) -> dict[str, int]:
    """How many blocks of a kernel each resource of a multiprocessor leaves room for; the least is how many
    fit.

    ``registers`` per thread, ``shared_bytes``, ``num_warps`` and ``tmem_columns`` per block. The arithmetic
    of NVIDIA's occupancy calculator: registers are given to warps in units of 256, and each block takes 1 KiB
    of shared memory for the system. Tensor memory is given out in powers of two of columns, 32 or more.
    """
    found = {
        "blocks": sm.max_blocks,
        "warps": sm.max_warps // num_warps,
        "registers": REGISTER_LIMIT // registers_per_warp(registers) // num_warps,
        "shared": sm.shared_bytes // (shared_bytes + sm.reserved_bytes_per_block),
    }
    if shared_bytes > sm.shared_bytes_per_block:
        found["shared"] = 0
    if tmem_columns:
        found["tmem"] = sm.tmem_columns // max(32, 1 << (tmem_columns - 1).bit_length())
    return found


def registers_per_warp(registers: int) -> int:
    """What a warp is given, whose threads take so many each."""
    return -(-registers * WARP_SIZE // REGISTER_UNIT) * REGISTER_UNIT


def resident_blocks(
    sm: Multiprocessor, registers: int, shared_bytes: int, num_warps: int, tmem_columns: int = 0
) -> tuple[int, str]:
    """How many blocks of a kernel fit on a multiprocessor at once, and what stops one more; the arguments are
    those of ``block_limits``."""
    bounds = block_limits(sm, registers, shared_bytes, num_warps, tmem_columns)
    tightest = min(bounds, key=lambda name: bounds[name])
    return bounds[tightest], tightest
