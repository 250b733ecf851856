"""Compile a kernel for a GPU that is not there, and say what became of it.

Triton needs no device to compile: it lowers to PTX itself, and the NVIDIA assembler that it ships turns that
into machine code. What can be read off the result is exact: registers, spills, shared memory, how many blocks
fit on a multiprocessor, which instructions were chosen. How fast it runs is not among it.

A process that interprets kernels (TRITON_INTERPRET=1) cannot compile them, so this has a worker of its own.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend
from triton.runtime.interpreter import InterpretedFunction
from triton.runtime.jit import MockTensor, create_function_from_signature

from kernels.engines.tensors import TORCH_DTYPES
from kernels.flash import gradients
from kernels.flash.arguments import rows, shared_arguments, terms
from kernels.flash.kernel import flash_forward
from kernels.flash.launch import KERNEL_VERSION, MATRIX_ARGUMENTS
from kernels.flash.scores import flash_scores
from kernels.flash.tiles import backward_tiles, choose_tiles, padded_dim
from kernels.operands import operands
from kernels.spec.model import RunSpec
from kernels.spec.values import ROUNDED
from kernels.targets import TARGETS, WARP_SIZE, resident_blocks

TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
TEXTS = ("ttir", "ttgir", "llir", "ptx", "sass")
DTYPES = ("float32", "float16", "bfloat16")
KERNELS = {"flash_forward": flash_forward, "flash_scores": flash_scores, **gradients.KERNELS}


class CannotCompileError(Exception):
    """The kernel has no form for this target; the message says why and what would do."""


# Machine instructions (SASS) by what they do, as patterns over the opcode.
INSTRUCTIONS = {
    "mma": r"[HIDQO]MMA",
    "wgmma": r"[HIQ]GMMA",
    "tcgen05": r"UTC\w*MMA",
    "ld_global": r"LDG",
    "st_global": r"STG",
    "cp_async": r"LDGSTS",
    "tma_load": r"UTMALDG|UBLKCP",
    "ld_shared": r"LDS|LDSM",
    "st_shared": r"STS|STSM",
    "spill_load": r"LDL",
    "spill_store": r"STL",
    "ffma": r"FFMA2?",
    "exp": r"MUFU\.EX2",
    "shuffle": r"SHFL",
    "barrier": r"BAR|SYNCS",
    "branch": r"BRA",
}


@dataclass(frozen=True)
class Compiled:
    """One kernel, compiled for one target. `texts`: the stages of the compilation, by name."""

    target: str
    gpu: str
    kernel: str
    registers: int  # per thread
    spills_bytes: int  # stores and loads together, per thread
    shared_bytes: int  # per block
    shared_limit_bytes: int
    tmem_bytes: int  # tensor memory, per block (sm_100)
    num_warps: int
    num_stages: int
    blocks_per_sm: int
    limited_by: str  # "registers" | "shared" | "warps" | "blocks"
    occupancy: float  # resident warps over the most that the multiprocessor can hold
    fits: bool
    instructions: dict[str, int]
    texts: Mapping[str, str]

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready, without the texts."""
        return {name: value for name, value in asdict(self).items() if name != "texts"}


def environment() -> dict[str, Any]:
    """What a compilation depends on beside its spec: JSON-ready."""
    return {"device": "none", "triton": triton.__version__, "kernel_version": KERNEL_VERSION}


def compile_flash(spec: RunSpec, target: str, kernel: str = "flash_forward") -> Compiled:
    """A flash kernel (a key of KERNELS) as it would be launched for `spec` on `target` (a key of TARGETS).

    Raises CannotCompileError for a dtype without a GPU form, and in a process that interprets kernels.
    """
    if isinstance(flash_forward, InterpretedFunction):
        raise CannotCompileError(
            "this process interprets kernels (TRITON_INTERPRET=1) and cannot compile them"
        )
    if spec.dtype not in DTYPES:
        raise CannotCompileError(f"dtype {spec.dtype} has no GPU kernel; use {', '.join(DTYPES)}")
    multiprocessor = TARGETS[target]
    gpu = GPUTarget("cuda", multiprocessor.capability, WARP_SIZE)
    source, options = _source(KERNELS[kernel], _arguments(spec, kernel), gpu)
    built = triton.compile(source, target=gpu, options=options)
    assembled = _assemble(built.asm["ptx"], multiprocessor.capability)
    sass = _disassemble(assembled.cubin)
    shared, warps = int(built.metadata.shared), int(built.metadata.num_warps)
    blocks, limited_by = resident_blocks(multiprocessor, assembled.registers, shared, warps)
    return Compiled(
        target=target,
        gpu=multiprocessor.title,
        kernel=kernel,
        registers=assembled.registers,
        spills_bytes=assembled.spills_bytes,
        shared_bytes=shared,
        shared_limit_bytes=multiprocessor.shared_bytes_per_block,
        tmem_bytes=4 * 128 * int(getattr(built.metadata, "tmem_size", 0) or 0),  # columns of 128 words
        num_warps=warps,
        num_stages=int(built.metadata.num_stages),
        blocks_per_sm=blocks,
        limited_by=limited_by,
        occupancy=blocks * warps / multiprocessor.max_warps,
        fits=blocks > 0,
        instructions=count_instructions(sass),
        texts={**{name: str(built.asm[name]) for name in TEXTS if name != "sass"}, "sass": sass},
    )


def _source(
    kernel: Any, arguments: Mapping[str, object], target: GPUTarget
) -> tuple[ASTSource, dict[str, Any]]:
    """The kernel with the types, constants and alignments of a launch with `arguments`, and the options.

    What Triton's JITFunction.run does, step by step, so that the kernel compiled is the one launched: an
    integer equal to 1 (`group` without grouped heads, `q_len` in decoding) becomes a constant, and what 16
    divides is known to be aligned. Without that the compiler must assume the worst: scalar loads, no
    asynchronous copies.
    """
    backend = make_backend(target)
    bind = create_function_from_signature(kernel.signature, kernel.params, backend)
    bound, specialization, options = bind(**arguments)
    options, signature, constants, attributes = kernel._pack_args(
        backend, options, bound, specialization, options
    )
    return ASTSource(kernel, signature, constants, attributes), vars(options)


def _arguments(spec: RunSpec, kernel: str) -> dict[str, object]:
    """What the launch of `spec` passes to a kernel, with stand-ins of the same dtypes for the arrays."""
    given = operands(spec, _without_data(spec), dtype=np.float32)
    tiles = (backward_tiles if kernel in gradients.KERNELS else choose_tiles)(spec, interpreted=False)
    bound = terms(given, tiles, lambda array: MockTensor(getattr(torch, array.dtype.name)))
    inputs, full = MockTensor(TORCH_DTYPES[spec.dtype]), MockTensor(torch.float32)
    if kernel in gradients.KERNELS:
        pointers = dict.fromkeys(gradients.POINTERS, inputs) | {"lse": full, "dots": full}
        shapes = given.q.shape, given.k.shape, given.v.shape
        return gradients.kernel_arguments(pointers, shapes, bound, tiles)[kernel]
    shared = shared_arguments(given.q.shape, given.k.shape, bound, tiles)
    q_rows, k_rows, v_rows = (rows(inputs, array.shape) for array in (given.q, given.k, given.v))
    if kernel == "flash_forward":
        out_rows = rows(inputs, (*given.q.shape[:3], spec.v_head_dim))
        own = {"Q": q_rows, "K": k_rows, "V": v_rows, "O": out_rows, "p_lse": full}
        return {**own, **shared, "DV": spec.v_head_dim, "BLOCK_DV": padded_dim(spec.v_head_dim)}
    targets = {
        argument: full if name in spec.returns else None for name, argument in MATRIX_ARGUMENTS.items()
    }
    return {"Q": q_rows, "K": k_rows, "p_lse": full, **targets, **shared}


def _without_data(spec: RunSpec) -> dict[str, Any]:
    """Every input of `spec` in its shape, all zeros, none of which take memory."""
    given: dict[str, Any] = {}
    for name, described in spec.inputs.items():
        dtype = described.dtype if name not in ROUNDED else "float32"
        shape = spec.canonical_shape(name) if name in ROUNDED else described.shape
        given[name] = np.broadcast_to(np.zeros((), dtype=dtype), shape)
    return given


@dataclass(frozen=True)
class Assembled:
    cubin: bytes
    registers: int
    spills_bytes: int


def _assemble(ptx: str, capability: int) -> Assembled:
    """PTX to machine code with Triton's own flags, keeping what the assembler says about it."""
    assembler = TOOLS / ("ptxas-blackwell" if capability >= 100 else "ptxas")
    arch = f"sm_{capability}{'a' if capability >= 90 else ''}"
    with tempfile.TemporaryDirectory() as folder:
        source, binary = Path(folder, "kernel.ptx"), Path(folder, "kernel.cubin")
        source.write_text(ptx)
        said = subprocess.run(
            [
                assembler,
                "-lineinfo",
                "-v",
                "--regAllocOptLevel=2",
                f"--gpu-name={arch}",
                source,
                "-o",
                binary,
            ],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stderr
        return Assembled(binary.read_bytes(), *read_assembler(said))


def read_assembler(said: str) -> tuple[int, int]:
    """(registers per thread, spilled bytes per thread) from the assembler's verbose output."""
    registers = re.search(r"Used (\d+) registers", said)
    spills = re.findall(r"(\d+) bytes spill (?:stores|loads)", said)
    if registers is None:
        raise ValueError(f"the assembler did not say how many registers it used: {said[:200]!r}")
    return int(registers[1]), sum(map(int, spills))


def _disassemble(cubin: bytes) -> str:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        said = subprocess.run(
            [TOOLS / "nvdisasm", "--print-code", "--print-line-info", file.name],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout
    # The assembler's view of its own build folder is nobody's business.
    return re.sub(r'File "[^"]*/(\w+\.py)"', r'File "\1"', said)


def count_instructions(sass: str) -> dict[str, int]:
    """How often each kind of INSTRUCTIONS stands in the code (not how often it runs)."""
    opcodes = Counter(
        re.findall(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\d\s+)?([A-Z][A-Z0-9_.]*)", sass, re.MULTILINE)
    )
    patterns = {kind: re.compile(rf"(?:{pattern})(?:\.|$)") for kind, pattern in INSTRUCTIONS.items()}
    counts = {
        kind: sum(count for opcode, count in opcodes.items() if pattern.match(opcode))
        for kind, pattern in patterns.items()
    }
    return {**counts, "total": opcodes.total()}
