"""Which kernels PyTorch may run: on a CPU against PyTorch itself, on GPUs case by case as its source says."""

from itertools import product

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from kernels.sdpa_backends import (
    BACKENDS,
    CUDNN,
    DEVICES,
    DTYPES,
    EFFICIENT,
    FLASH,
    MASKS,
    MATH,
    PACKAGES,
    Call,
    chosen,
    order,
    package_refusals,
    refusals,
)

YES_NO = (True, False)


def tensors(call: Call):
    keys = 6 if call.is_square else 9
    q, k, v = (
        torch.randn(1, 2, count, call.dim, dtype=getattr(torch, call.dtype)).requires_grad_(call.is_training)
        for count in (6, keys, keys)
    )
    more = {"is_causal": call.mask == "causal", "dropout_p": 0.1 if call.has_dropout else 0.0}
    if call.mask == "mask":
        more["attn_mask"] = torch.ones(6, keys, dtype=torch.bool)
    return (q, k, v), more


@pytest.mark.filterwarnings("ignore::UserWarning")  # PyTorch's reasons
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_on_a_cpu_pytorch_chooses_the_same(dtype: str, mask: str) -> None:
    for dim, *rest in product((5, 64), YES_NO, YES_NO, YES_NO):
        call = Call(DEVICES["cpu"], dtype, dim, mask, *rest)
        given, more = tensors(call)
        assert SDPBackend(torch._fused_sdp_choice(*given, **more)).name == chosen(call), call
        for one in (FLASH, MATH):
            with sdpa_kernel(getattr(SDPBackend, one)):
                if chosen(call, (one,)) is None:
                    with pytest.raises(RuntimeError, match="No available kernel"):
                        scaled_dot_product_attention(*given, **more)
                else:
                    scaled_dot_product_attention(*given, **more)


@pytest.mark.parametrize("one", [CUDNN, EFFICIENT])
def test_backends_of_gpus_alone_are_an_error_on_a_cpu(one: str) -> None:
    call = Call(DEVICES["cpu"], "float32")
    given, more = tensors(call)
    assert chosen(call, (one,)) is None
    with sdpa_kernel(getattr(SDPBackend, one)), pytest.raises(RuntimeError):
        scaled_dot_product_attention(*given, **more)


def test_the_old_switch_warns_and_leaves_the_others_on() -> None:
    with pytest.warns(FutureWarning, match="sdpa_kernel"):
        switch = torch.backends.cuda.sdp_kernel(enable_flash=True)
    with switch:
        assert torch.backends.cuda.math_sdp_enabled()
        assert torch.backends.cuda.mem_efficient_sdp_enabled()


def test_the_usual_order_is_that_of_pytorch() -> None:
    priority = [SDPBackend(one).name for one in torch._C._get_sdp_priority_order()]
    assert tuple(one for one in priority if one in BACKENDS) == order(DEVICES["a100"])


def call(device: str, *rest: object, **more: object) -> Call:
    return Call(DEVICES[device], *rest, **more)


@pytest.mark.parametrize(
    ("made", "runs", "why_not_flash"),
    [
        (call("a100", "bfloat16", 128, "causal"), FLASH, []),
        (call("a100", "float32"), EFFICIENT, ["half"]),
        (call("a100", "float16", 64, "mask"), EFFICIENT, ["mask"]),
        (call("a100", "float16", 64, "causal", is_square=False), EFFICIENT, ["square"]),
        (call("a100", "float16", 256), FLASH, []),
        (call("a100", "float16", 264), EFFICIENT, ["256"]),
        (call("a100", "float16", 257), MATH, ["256"]),
        (call("a100", "float16", 5), FLASH, []),
        (call("a100", "float32", 5), MATH, ["half"]),
        (call("a100", "float32", 12), EFFICIENT, ["half"]),
        (call("v100", "float16"), EFFICIENT, ["ampere"]),
        (call("v100", "float32", 5), EFFICIENT, ["ampere", "half"]),
        (call("t4", "bfloat16"), MATH, ["ampere", "bfloat16"]),
        (call("rtx-4090", "float16", 256, is_training=True), FLASH, []),
        (call("rtx-4090", "float16", 208, is_training=True), EFFICIENT, ["training"]),
        (call("rtx-4090", "float16", 256, is_training=True, has_dropout=True), EFFICIENT, ["training"]),
        (call("rtx-4090", "float16", 192, is_training=True, has_dropout=True), FLASH, []),
        (call("rtx-3090", "float16", 208), FLASH, []),
        (call("rtx-5090", "float16", 208, is_training=True), EFFICIENT, ["training"]),
        (call("a100", "float16", 208, is_training=True), FLASH, []),
        (call("h100", "float16"), CUDNN, []),
        (call("h100", "float16", 64, "mask"), CUDNN, ["mask"]),
        (call("h100", "float16", 160), FLASH, []),
        (call("h100", "float16", has_dropout=True), FLASH, []),
        (call("b200", "bfloat16"), CUDNN, []),
    ],
    ids=str,
)  # fmt: skip
def test_on_a_gpu(made: Call, runs: str, why_not_flash: list[str]) -> None:
    assert chosen(made) == runs
    assert refusals(FLASH, made) == why_not_flash
    assert (chosen(made, (FLASH,)) is None) == bool(why_not_flash)
    assert refusals(MATH, made) == []


def test_packages_are_for_what_their_readme_says() -> None:
    def could(made: Call) -> list[str]:
        return [one.title for one in PACKAGES if not package_refusals(one, made)]

    assert could(call("a100", "bfloat16", 256)) == ["flash-attn 2"]
    assert could(call("a100", "bfloat16", 264)) == []
    assert could(call("h100")) == ["flash-attn 2", "FlashAttention-3", "flash-attn-4"]
    assert could(call("b200")) == ["flash-attn-4"]
    for refused in (call("h100", "float32"), call("h100", mask="mask"), call("v100"), call("cpu")):
        assert could(refused) == []
