"""Which kernels ``torch.nn.functional.scaled_dot_product_attention`` may run for a call, and which it does:
the rules of PyTorch's dispatcher for dense inputs on a CPU and on NVIDIA GPUs. Arithmetic only: no torch.

PyTorch asks its backends in an order, and the first that can compute the call does. The rules are in
``aten/src/ATen/native/transformers/cuda/sdp_utils.cpp`` and ``…/sdp_utils_cpp.cpp`` of pytorch/pytorch (main
of 2026), as far as they concern shape, dtype, mask, training and device; on a CPU they are tried out against
PyTorch itself. The cuDNN that is assumed is one newer than 9.15.1, whose heads end at 128: newer ones go
to 256 on Hopper and on Blackwell of the data centre.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

CUDNN, FLASH, EFFICIENT, MATH = "CUDNN_ATTENTION", "FLASH_ATTENTION", "EFFICIENT_ATTENTION", "MATH"
BACKENDS = (CUDNN, FLASH, EFFICIENT, MATH)
CPU = (0, 0)  # the compute capability of none
HALF = ("float16", "bfloat16")
DTYPES = ("float32", *HALF)
MASKS = ("none", "causal", "mask")


@dataclass(frozen=True)
class Device:
    """``capability``: that of an NVIDIA GPU, major and minor; CPU for none."""

    title: str
    family: str
    capability: tuple[int, int]

    @property
    def is_cpu(self) -> bool:
        return self.capability == CPU


DEVICES = {
    "cpu": Device("CPU", "", CPU),
    "v100": Device("V100", "Volta", (7, 0)),
    "t4": Device("T4", "Turing", (7, 5)),
    "a100": Device("A100", "Ampere", (8, 0)),
    "rtx-3090": Device("RTX 3090", "Ampere", (8, 6)),
    "rtx-4090": Device("RTX 4090", "Ada", (8, 9)),
    "h100": Device("H100", "Hopper", (9, 0)),
    "b200": Device("B200", "Blackwell", (10, 0)),
    "rtx-5090": Device("RTX 5090", "Blackwell", (12, 0)),
}


@dataclass(frozen=True)
class Call:
    """One call, of rank 4, whose q, k and v have heads of ``dim`` numbers."""

    device: Device
    dtype: str = "float16"
    dim: int = 64
    mask: str = "none"  # of MASKS: is_causal, or a tensor
    is_square: bool = True  # as many queries as keys
    is_training: bool = False  # a gradient is asked for
    has_dropout: bool = False  # of 0.1

    @property
    def is_half(self) -> bool:
        return self.dtype in HALF


def refusals(backend: str, call: Call) -> list[str]:
    """The names of the rules by which a backend refuses a call; none if it can compute it."""
    return list((_ON_CPU if call.device.is_cpu else _ON_GPU)[backend](call))


def order(device: Device) -> tuple[str, ...]:
    """In which they are asked."""
    if device.is_cpu:
        return (FLASH, MATH)
    if device.capability[0] in (9, 10):
        return (CUDNN, FLASH, EFFICIENT, MATH)
    return (FLASH, EFFICIENT, MATH, CUDNN)


def chosen(call: Call, enabled: tuple[str, ...] = BACKENDS) -> str | None:
    """The first of those enabled that can; None where PyTorch raises an error instead."""
    return next((one for one in order(call.device) if one in enabled and not refusals(one, call)), None)


def _nothing(call: Call) -> Iterator[str]:
    yield from ()


def _no_such(call: Call) -> Iterator[str]:
    yield "device"


def _cpu_flash(call: Call) -> Iterator[str]:
    if call.has_dropout:
        yield "dropout"


def _cudnn(call: Call) -> Iterator[str]:
    if call.device.capability < (8, 0):
        yield "ampere"
    if not call.is_half:
        yield "half"
    elif call.dtype == "bfloat16" and call.device.capability < (8, 0):
        yield "bfloat16"
    if call.dim > 128:
        yield "128"
    if call.dim % 8:
        yield "multiple of 8"
    if call.has_dropout:
        yield "sixteenths"


def _flash(call: Call) -> Iterator[str]:
    capability = call.device.capability
    if capability < (8, 0):
        yield "ampere"
    if not call.is_half:
        yield "half"
    elif call.dtype == "bfloat16" and capability < (8, 0):
        yield "bfloat16"
    if call.dim > 256:
        yield "256"
    if call.mask == "mask":
        yield "mask"
    if call.mask == "causal" and not call.is_square:
        yield "square"
    is_small = (8, 6) <= capability <= (8, 9) or capability[0] == 12
    if call.is_training and is_small and 192 < call.dim <= 256 and (call.has_dropout or call.dim <= 224):
        yield "training"


def _efficient(call: Call) -> Iterator[str]:
    if call.dtype == "bfloat16" and call.device.capability < (8, 0):
        yield "bfloat16"
    if call.dim % alignment(call):
        yield f"multiple of {alignment(call)}"


def alignment(call: Call) -> int:
    """Of what a head's width must be a multiple: 16 bytes where tensor cores compute."""
    if call.is_half:
        return 8
    return 4 if call.device.capability >= (8, 0) else 1


Rule = Callable[[Call], Iterator[str]]
_ON_GPU: dict[str, Rule] = {CUDNN: _cudnn, FLASH: _flash, EFFICIENT: _efficient, MATH: _nothing}
_ON_CPU: dict[str, Rule] = {CUDNN: _no_such, FLASH: _cpu_flash, EFFICIENT: _no_such, MATH: _nothing}


# -- the packages that bring the kernels themselves ----------------------------------------------------------


@dataclass(frozen=True)
class Package:
    """A release of FlashAttention, as its README describes it (Dao-AILab/flash-attention)."""

    title: str
    families: tuple[str, ...]
    dtypes: tuple[str, ...] = HALF
    most: int = 256


PACKAGES = (
    Package("flash-attn 2", ("Ampere", "Ada", "Hopper")),
    Package("FlashAttention-3", ("Hopper",)),
    Package("flash-attn-4", ("Hopper", "Blackwell")),
)


def package_refusals(package: Package, call: Call) -> list[str]:
    """Likewise. The README of the newer two says nothing of widths: theirs is not asked."""
    found = []
    if call.device.family not in package.families:
        found.append("family")
    if call.dtype not in package.dtypes:
        found.append("half")
    if package is PACKAGES[0] and call.dim > package.most:
        found.append("256")
    if call.mask == "mask":
        found.append("mask")
    return found
