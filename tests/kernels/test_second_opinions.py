"""The reference against torch's SDPA and FlexAttention (eager, float64) on specs that nobody thought of.

What may be seen and what is added is written here once more, pair by pair, from the words of the contract; of
ours, only the parser is used. Patterns have tests of their own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np
import torch
from hypothesis import HealthCheck, given, settings
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention import flex_attention as flex
from torch.nn.functional import scaled_dot_product_attention

from kernels.engines.reference import reference
from tests.kernels.cases import Arrays, Case, cases

SETTINGS = settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
GRADIENTS = ("dq", "dk", "dv")


@dataclass
class Plain:
    """One attention problem without any convenience: torch float64, positions and lengths as lists."""

    q: torch.Tensor  # [b, h, n, d]
    k: torch.Tensor  # [b, h, m, d], a head for each query head
    v: torch.Tensor  # [b, h, m, e]
    scale: float
    allowed: torch.Tensor  # [b, h, n, m] bool
    bias: torch.Tensor  # [b, h, n, m], ALiBi and the additive mask
    softcap: float
    sinks: torch.Tensor | None  # [h]
    q_lens: list[int]
    kv_lens: list[int]


def plain(case: Case, arrays: Arrays) -> Plain:
    """The canonical arrays of a case, its conveniences worked out pair by pair."""
    attention, inputs = case.body["attention"], case.body["inputs"]
    q, (batch, heads, n, d) = arrays["q"], arrays["q"].shape
    k, v = (contiguous(arrays, name) for name in ("k", "v"))
    past, m = (arrays["past_key"].shape[2] if "past_key" in arrays else 0), k.shape[2]
    q_lens, kv_lens = inputs.get("q_lens", [n] * batch), inputs.get("kv_lens", [m] * batch)
    places = [placed(attention, b, (n, m), (q_lens[b], kv_lens[b])) for b in range(batch)]
    if rope := attention.get("rope"):
        own = rope["positions"]  # of the first query and of the first fresh key
        q, k = q.copy(), k.copy()
        for b, (q_at, k_at) in enumerate(places):
            turn(q[b], range(own, own + n) if own is not None else q_at, rope)
            turn(k[b, :, past:], range(own, own + m - past) if own is not None else k_at[past:], rope)
    allowed, bias = np.ones((batch, heads, n, m), dtype=bool), np.zeros((batch, heads, n, m))
    if "attn_mask" in arrays and arrays["attn_mask"].dtype == bool:
        allowed &= arrays["attn_mask"]
    elif "attn_mask" in arrays:
        bias += arrays["attn_mask"]
    left, right = attention.get("window", [None, None])
    for b, (q_at, k_at) in enumerate(places):
        for i in range(n):
            for j in range(m):
                after = k_at[j] - q_at[i]
                if (
                    (attention.get("is_causal") and after > 0)
                    or (left is not None and -after > left)
                    or (right is not None and after > right)
                    or i >= q_lens[b]
                    or j >= kv_lens[b]
                ):
                    allowed[b, :, i, j] = False
                for h in range(heads):
                    bias[b, h, i, j] += slope(attention.get("alibi_slopes"), b, h, heads) * after
    k, v = (np.repeat(x, heads // x.shape[1], axis=1) for x in (k, v))
    scale = attention.get("scale")
    sinks = attention.get("sinks")
    return Plain(
        *(torch.from_numpy(np.nan_to_num(x)).double() for x in (q, k, v)),
        scale=1 / math.sqrt(d) if scale is None else scale,
        allowed=torch.from_numpy(allowed),
        bias=torch.from_numpy(bias),
        softcap=attention.get("softcap", 0.0),
        sinks=None if sinks is None else torch.tensor([float(s) for s in sinks], dtype=torch.float64),
        q_lens=q_lens,
        kv_lens=kv_lens,
    )


def contiguous(arrays: Arrays, name: str) -> np.ndarray:
    """Pages token by token, or the past and what is fresh."""
    if "block_table" not in arrays:
        past = f"past_{'key' if name == 'k' else 'value'}"
        return np.concatenate([arrays[past], arrays[name]], axis=2) if past in arrays else arrays[name]
    pages, table = arrays[name], arrays["block_table"]
    size = pages.shape[1]
    rows = [[pages[row[t // size], t % size] for t in range(len(row) * size)] for row in table]
    shape = (len(table), table.shape[1] * size, *pages.shape[2:])
    return np.array(rows, dtype=pages.dtype).reshape(shape).transpose(0, 2, 1, 3)


def placed(
    attention: dict[str, Any], b: int, sizes: tuple[int, int], lens: tuple[int, int]
) -> tuple[list[int], list[int]]:
    """Positions of the queries and of the keys of row b, padding included."""
    (n, m), (q_len, kv_len) = sizes, lens

    def listed(given: Any, length: int) -> list[int]:
        if isinstance(given, int):
            return list(range(given, given + length))
        return list(given[b]) if given and isinstance(given[0], list) else list(given)

    given_k, given_q = attention.get("kv_positions"), attention.get("q_positions")
    keys = listed(0 if given_k is None else given_k, m)
    if given_q is not None:
        return listed(given_q, n), keys
    if attention["causal_alignment"] == "top_left":
        return list(range(n)), keys
    return list(range(kv_len - q_len, kv_len - q_len + n)), keys


def slope(given: Any, b: int, h: int, heads: int) -> float:
    if given is None:
        return 0.0
    if given == "auto":
        power = 2 ** math.floor(math.log2(heads))
        exponent = 8 * (h + 1) / power if h < power else 4 * (2 * (h - power) + 1) / power
        return float(np.float32(2.0**-exponent))
    return float(np.float32(given[b][h] if isinstance(given[0], list) else given[h]))


def turn(x: np.ndarray, positions: Any, rope: dict[str, Any]) -> None:
    """Rotary embedding of x [h, len, d] in place, as a complex multiplication."""
    dim, start = rope["dim"] or x.shape[2], rope["dim_offset"]
    part = x[:, :, start : start + dim].astype(np.float64)
    half = dim // 2
    first, second = (
        (part[..., :half], part[..., half:]) if rope["style"] == "half" else (part[..., ::2], part[..., 1::2])
    )
    omega = rope["theta"] ** (-2 * np.arange(half) / dim)
    turned = (first + 1j * second) * np.exp(1j * np.array(list(positions), dtype=float)[:, None] * omega)
    if rope["style"] == "half":
        x[:, :, start : start + dim] = np.concatenate([turned.real, turned.imag], axis=-1)
    else:
        x[:, :, start : start + dim] = np.stack([turned.real, turned.imag], axis=-1).reshape(part.shape)


def with_sinks(out: torch.Tensor, lse: torch.Tensor, sinks: torch.Tensor | None) -> tuple[torch.Tensor, ...]:
    """A sink takes its share of the denominator afterwards: out shrinks by σ(lse − sink)."""
    if sinks is None:
        return out, lse
    together = torch.logaddexp(lse, sinks[:, None].expand(lse.shape))
    share = torch.exp(lse - together.masked_fill(together == -math.inf, 0.0))
    return out * share[..., None], together


def check(name: str, got: np.ndarray, right: torch.Tensor, problem: Plain) -> None:
    """Equal to nine digits, and what a score loses beside a mask of −10⁹ in float64. (Beside the smallest
    float32 it loses everything, on both sides alike.)"""
    expected = right.detach().numpy()
    size = np.abs(expected[np.isfinite(expected)]).max(initial=1.0)
    beside = problem.bias[problem.bias.abs() < 1e12].abs()
    tolerance = 1e-9 + 8 * 2.0**-52 * (float(beside.max()) if beside.numel() else 0.0)
    np.testing.assert_allclose(got, expected, rtol=1e-9, atol=tolerance * size, err_msg=name)


def within(problem: Plain, out: torch.Tensor) -> torch.Tensor:
    """With zeros where a row sees nothing or is padding."""
    seen = (problem.allowed & (problem.bias > -math.inf)).any(-1)
    return torch.where(seen[..., None], out, 0.0)


def without_scalings(case: Case) -> Case:
    """RoPE as it was invented; its scalings are tested elsewhere."""
    if "rope" in case.body["attention"]:
        case.body["attention"]["rope"] |= {"scaling": None}
    return case


@SETTINGS
@given(cases(without=("pattern", "softcap"), gradients=True).map(without_scalings))
def test_sdpa_says_the_same(case: Case) -> None:
    """Out and gradients: of q, and of v through the sum over a group and over shared pages."""
    spec, arrays = case.on("reference", dtype="float64", **{"return": ["out", "dq", "dk", "dv"]})
    problem = plain(case, arrays)
    got = reference(spec, arrays, ("out", *GRADIENTS))
    mask = problem.bias.masked_fill(~problem.allowed, -math.inf)
    leaves = [x.requires_grad_() for x in (problem.q, problem.k, problem.v)]
    q, k, v = leaves
    if problem.sinks is not None:  # one more key, of zeros, whose score the mask says
        k, v = (torch.nn.functional.pad(x, (0, 0, 0, 1)) for x in (k, v))
        mask = torch.cat([mask, problem.sinks[:, None, None].expand(*mask.shape[:3], 1)], 3)
    # Not torch's fused kernel: its gradient rebuilds the weights from an LSE, in which ln Σ is lost beside a
    # mask of −10³⁸.
    with sdpa_kernel(SDPBackend.MATH):
        out = within(problem, scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=problem.scale))
    check("out", got["out"], out, problem)
    if "rope" in case.body["attention"]:
        return
    dout = torch.from_numpy(np.nan_to_num(arrays["dout"])).double()
    dq, dk, dv = torch.autograd.grad(out, leaves, dout)
    check("dq", got["dq"], dq, problem)
    if "block_table" in arrays:  # how pages are summed has a test of its own
        np.testing.assert_allclose(got["dv"].sum(), dv.sum(), rtol=1e-6, atol=1e-6)
        return
    past = arrays["past_key"].shape[2] if "past_key" in arrays else 0
    for name, grad in (("dk", dk), ("dv", dv)):
        heads = got[name].shape[1]
        summed = grad.unflatten(1, (heads, -1)).sum(2) if heads else grad
        check(name, got[name], summed[:, :, past:], problem)


@SETTINGS
@given(cases(without=("pattern",)).map(without_scalings))
def test_flex_attention_says_the_same(case: Case) -> None:
    """Out and LSE, softcaps included."""
    spec, arrays = case.on("reference", dtype="float64")
    problem = plain(case, arrays)
    got = reference(spec, arrays, ("out", "lse"))
    if 0 in (*problem.q.shape, *problem.k.shape):
        assert not got["out"].any()
        return

    def score_mod(score: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        if problem.softcap:
            score = problem.softcap * torch.tanh(score / problem.softcap)
        return torch.where(problem.allowed[b, h, i, j], score + problem.bias[b, h, i, j], -math.inf)

    with mock.patch.object(flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", new=True):
        out, aux = flex.flex_attention(
            problem.q,
            problem.k,
            problem.v,
            score_mod=score_mod,
            scale=problem.scale,
            return_aux=flex.AuxRequest(lse=True),
        )
    out = within(problem, out)
    seen = (problem.allowed & (problem.bias > -math.inf)).any(-1)
    out, lse = with_sinks(out, torch.where(seen, aux.lse, -math.inf), problem.sinks)
    for b, length in enumerate(problem.q_lens):
        lse[b, :, length:] = -math.inf
    check("out", got["out"], out, problem)
    check("lse", got["lse"], lse, problem)
