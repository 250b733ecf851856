"""What training takes: about six operations to a parameter and token, and sixteen bytes to a parameter.

A forward pass multiplies each parameter with each token and adds, which are two operations; the gradient by
the inputs is as much again, and so is that by the parameters: 6·N·D for N parameters and D tokens (Kaplan et
al. 2020, *Scaling Laws for Neural Language Models*, arXiv 2001.08361, §2.1). Attention's own n² is left out;
of experts, those that a token meets count.

With Adam in mixed precision a parameter and its gradient are kept in 16 bits, and in 32 bits a copy of the
parameter, the mean of its gradients and that of their squares: 2 + 2 + 4 + 4 + 4 bytes (Rajbhandari et al.
2020, *ZeRO: Memory Optimizations Toward Training Trillion Parameter Models*, SC20, §3.1). Experts count
whether a token meets them or not; what the backward pass keeps of the forward one comes on top.
"""

from __future__ import annotations

from kernels.sizing.gpus import Gpu

FLOPS_TO_A_PARAMETER_AND_TOKEN = 6
BYTES_TO_A_PARAMETER = 16


def training_flops(params: int, tokens: int) -> int:
    """6·N·D."""
    return FLOPS_TO_A_PARAMETER_AND_TOKEN * params * tokens


def gpu_hours(flops: float, gpu: Gpu, *, utilisation: float) -> float:
    """Hours of one ``gpu`` that reaches a share ``utilisation`` of its 16-bit peak, or of as many as there
    are, each its part."""
    return flops / (utilisation * gpu.tflops_16bit * 1e12) / 3600


def training_bytes(params: int) -> int:
    """Of parameters, gradients and the states of Adam, in mixed precision."""
    return BYTES_TO_A_PARAMETER * params
