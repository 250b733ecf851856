"""Compile kernels for a GPU that is not there, and say what became of them.

Triton needs no device to compile: it lowers to PTX itself, and the NVIDIA assembler that it ships turns that
into machine code. What can be read off the result is exact: registers, spills, shared memory, how many blocks
fit on a multiprocessor, which instructions were chosen. How fast it runs is not among it.

A process that interprets kernels (TRITON_INTERPRET=1) cannot compile them, so this has a worker of its own.
"""

from __future__ import annotations

import hashlib
import importlib
import io
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend
from triton.runtime.errors import PTXASError
from triton.runtime.jit import MockTensor, create_function_from_signature

from kernels.arrays import Array
from kernels.compiled_cache import CompiledCache
from kernels.engines import CannotRunError, Kernels
from kernels.engines.tensors import TORCH_DTYPES
from kernels.flash.interpreter import INTERPRETED
from kernels.machine_code import count_instructions, digests, source_lines
from kernels.registry import ENGINES
from kernels.spec.model import RunSpec
from kernels.spec.values import HEADED, INTEGERS
from kernels.targets import TARGETS, WARP_SIZE, block_limits, resident_blocks
from kernels.tiles import advising

TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
TEXTS = ("ttir", "ttgir", "llir", "ptx", "sass")
DTYPES = ("float32", "float16", "bfloat16")
TMEM_COLUMN_BYTES = 128 * 4


class CannotCompileError(Exception):
    """The kernel has no form for this target; the message says why and what would do."""


@dataclass(frozen=True)
class Compiled:
    """One kernel, compiled for one target. `texts`: the stages of the compilation, by name."""

    target: str
    gpu: str
    kernel: str
    registers: int  # per thread
    stack_bytes: int  # per thread
    spills_bytes: int  # stores and loads together, per thread
    shared_bytes: int  # per block
    shared_limit_bytes: int
    tmem_bytes: int  # tensor memory, per block (sm_100)
    num_warps: int
    num_stages: int
    blocks_per_sm: int
    block_limits: dict[str, int]  # blocks that each resource of a multiprocessor leaves room for
    limited_by: str  # the least of them: "registers" | "shared" | "warps" | "blocks" | "tmem"
    occupancy: float  # resident warps over the most that the multiprocessor can hold
    fits: bool
    instructions: dict[str, int]
    source_lines: list[dict[str, Any]]  # {file, line, instructions}: what of the machine code came of a line
    sources: dict[str, str]  # SHA-256 of each file of ours that is among them
    texts: Mapping[str, str]

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready, without the texts."""
        return {name: value for name, value in asdict(self).items() if name != "texts"}


def environment(spec: RunSpec) -> dict[str, Any]:
    """What a compilation depends on beside its spec: JSON-ready."""
    version = importlib.import_module(ENGINES[spec.engine].module).KERNEL_VERSION
    return {"device": "none", "triton": triton.__version__, "kernel_version": version}


def compile_spec(spec: RunSpec, target: str, cache: CompiledCache | None = None) -> list[Compiled]:
    """Every kernel that running `spec` on `target` (a key of TARGETS) launches, the engine's main one first.

    Only shapes are known here. Data can make a run launch others: a float mask with −∞ in it adds a look at
    which tiles it forbids, and float16 whose products might be beyond it is computed in float32.

    What is in `cache` is not compiled again. Raises CannotCompileError for a dtype or an engine without a GPU
    form, for a grid larger than CUDA has, where the assembler gives up, and in a process that interprets
    kernels.
    """
    if INTERPRETED:
        raise CannotCompileError(
            "this process interprets kernels (TRITON_INTERPRET=1) and cannot compile them"
        )
    if spec.dtype not in DTYPES:
        raise CannotCompileError(f"dtype {spec.dtype} has no GPU kernel; use {', '.join(DTYPES)}")
    engine = importlib.import_module(ENGINES[spec.engine].module)
    if not hasattr(engine, "kernels_of"):
        raise CannotCompileError(f"engine {spec.engine} has no kernels of ours to compile")
    try:
        with advising(spec.engine):
            launched = list(engine.kernels_of(spec, without_data(spec), StandIn(target)))
    except CannotRunError as error:
        raise CannotCompileError(str(error)) from error
    return [compile_kernel(*one, target, cache) for one in distinct(launched, target)]


def distinct(launched: Kernels, target: str) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """Without those that compile to the same as an earlier one of the same name, as where queries and keys
    are turned alike; a name that is left more than once is numbered."""
    gpu, seen, names = _gpu(target), set(), Counter[str]()
    for name, kernel, arguments in launched:
        key = _key(name, *_source(kernel, arguments, gpu), arguments, gpu)
        if key not in seen:
            seen.add(key)
            names[name] += 1
            yield name if names[name] == 1 else f"{name}_{names[name]}", kernel, arguments


@dataclass(frozen=True)
class StandIn:
    """A `kernels.engines.Place`: of each array only the dtype matters, and that it is aligned."""

    target: str

    def __call__(self, array: Array, dtype: str | None = None) -> Any:
        return MockTensor(TORCH_DTYPES[dtype] if dtype else getattr(torch, array.dtype.name))


def without_data(spec: RunSpec) -> dict[str, Array]:
    """Every input of `spec` in its canonical shape, of the dtype that a run has it in, none of which take
    memory: all zeros, but a block table that names no page."""
    given: dict[str, Array] = {}
    for name, described in spec.inputs.items():
        dtype = "int64" if name in INTEGERS else "float32" if name in HEADED else described.dtype
        shape = spec.canonical_shape(name) if name in HEADED else described.shape
        given[name] = np.broadcast_to(np.array(-1 if name == "block_table" else 0, dtype), shape)
    return given


def compile_kernel(
    name: str, kernel: Any, arguments: Mapping[str, Any], target: str, cache: CompiledCache | None = None
) -> Compiled:
    """`kernel` as a launch with `arguments` would have it compiled for `target`."""
    gpu = _gpu(target)
    source, options = _source(kernel, arguments, gpu)
    key = _key(name, source, options, arguments, gpu)
    known = cache.get(key) if cache else None
    if known is not None and known.keys() == {field.name for field in fields(Compiled)}:
        return Compiled(**known)
    compiled = _described(name, target, *_compile(source, options, gpu))
    if cache:
        cache.put(key, asdict(compiled))
    return compiled


def _gpu(target: str) -> GPUTarget:
    return GPUTarget("cuda", TARGETS[target].capability, WARP_SIZE)


def _source(kernel: Any, arguments: Mapping[str, Any], target: GPUTarget) -> tuple[ASTSource, dict[str, Any]]:
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


def _key(
    name: str, source: ASTSource, options: Mapping[str, Any], arguments: Mapping[str, Any], gpu: GPUTarget
) -> str:
    """A digest of all that decides what is compiled and what is said of it: the kernel with every helper it
    calls, types, constants, alignments, options, Triton with its assembler, and the code of this module."""
    backend = make_backend(gpu)
    here = Path(__file__)
    described = "".join(
        here.with_name(file).read_text() for file in ("compiling.py", "machine_code.py", "targets.py")
    )
    parts = (
        name,
        source.hash(),
        _field_names(arguments),
        backend.parse_options(dict(options)).hash(),
        backend.hash(),
        triton.__version__,
        described,
    )
    return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()


def _field_names(value: Any) -> Any:
    """The names by which a kernel reads what it is given: they are part of no type."""
    if isinstance(value, Mapping):
        return {name: _field_names(item) for name, item in value.items()}
    if isinstance(value, tuple):
        return {name: _field_names(getattr(value, name)) for name in getattr(value, "_fields", ())}
    return None


def _compile(source: ASTSource, options: Mapping[str, Any], gpu: GPUTarget) -> tuple[Any, str]:
    """(Triton's CompiledKernel, what the assembler said). Triton's own cache, which is never emptied, is a
    folder that is forgotten."""
    said = io.StringIO()
    knobs = triton.knobs
    with tempfile.TemporaryDirectory() as folder, knobs.cache.scope(), knobs.nvidia.scope():
        knobs.cache.dir, knobs.nvidia.dump_ptxas_log = folder, True
        try:
            with redirect_stdout(said):
                built = triton.compile(source, target=gpu, options=dict(options))
        except PTXASError as error:
            raise CannotCompileError(
                "the assembler gave this configuration up; use smaller tiles or a smaller head dim"
            ) from error
    return built, said.getvalue()


def _described(name: str, target: str, built: Any, said: str) -> Compiled:
    multiprocessor = TARGETS[target]
    registers, stack, spills = read_assembler(said)
    sass = _disassemble(built.asm["cubin"])
    shared, warps = int(built.metadata.shared), int(built.metadata.num_warps)
    columns = int(getattr(built.metadata, "tmem_size", 0) or 0)
    takes = (multiprocessor, registers, shared, warps, columns)
    blocks, limited_by = resident_blocks(*takes)
    lines = source_lines(sass)
    return Compiled(
        target=target,
        gpu=multiprocessor.title,
        kernel=name,
        registers=registers,
        stack_bytes=stack,
        spills_bytes=spills,
        shared_bytes=shared,
        shared_limit_bytes=multiprocessor.shared_bytes_per_block,
        tmem_bytes=columns * TMEM_COLUMN_BYTES,
        num_warps=warps,
        num_stages=int(built.metadata.num_stages),
        blocks_per_sm=blocks,
        block_limits=block_limits(*takes),
        limited_by=limited_by,
        occupancy=blocks * warps / multiprocessor.max_warps,
        fits=blocks > 0,
        instructions=count_instructions(sass),
        source_lines=[line.to_dict() for line in lines],
        sources=digests(line.file for line in lines),
        texts={
            **{text: without_folders(str(built.asm[text])) for text in TEXTS if text != "sass"},
            "sass": sass,
        },
    )


def read_assembler(said: str) -> tuple[int, int, int]:
    """(registers, bytes of stack, spilled bytes) per thread from the assembler's verbose output."""
    registers = re.search(r"Used (\d+) registers", said)
    stack = re.search(r"(\d+) bytes stack frame", said)
    if registers is None or stack is None:
        raise ValueError(f"the assembler did not say how many registers it used: {said[:200]!r}")
    spills = re.findall(r"(\d+) bytes spill (?:stores|loads)", said)
    return int(registers[1]), int(stack[1]), sum(map(int, spills))


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
    return without_folders(said)


def without_folders(text: str) -> str:
    """Where this machine keeps the sources is nobody's business: kernels/flash/kernel.py, and likewise
    triton/language/standard.py."""
    for package in (Path(triton.__file__).parent, Path(__file__).parent):  # the inner one first
        text = text.replace(f"{package.parent}/", "")
    return text
