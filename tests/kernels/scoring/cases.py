"""Attention by scores for the tests of its kernels: inputs, runs in the interpreter, float64."""

from dataclasses import replace

import numpy as np
import torch

from kernels.arrays import generate, round_to_dtype
from kernels.engines.tensors import to_numpy, to_tensor
from kernels.flash.arguments import terms
from kernels.flash.device import Memory
from kernels.operands import Operands
from kernels.scoring import bounds, launch
from kernels.scoring.attention import softmax, summed
from kernels.scoring.functions import score
from kernels.scoring.inputs import SCORE_INPUTS, SPAN_INPUTS, Scoring
from kernels.scoring.local import local_attention, monotonic_centres, predicted_centres
from kernels.tuning import Tiling

TILES = Tiling(16, 32)
SCORES, SPANS = tuple(SCORE_INPUTS), tuple(SPAN_INPUTS)
FUNCTION_NAMES = {"w_general": "w", "w_concat": "w"}  # what functions.py calls them
SIZES = {"b": 2, "h": 2, "h_kv": 1, "n": 21, "m": 37, "d": 20, "e": 12, "a": 5, "p": 3}
FACTORS = {"scaled_dot": 0.25, "cosine": 3.0}
WORKING = {"float32": "float32", "float16": "float16", "bfloat16": "float32"}  # in the interpreter


def case(
    name="additive", span="global", *, seed=0, shared=False, dtype="float32", distribution="normal",
    times=1.0, half_width=6.0, **sizes,
) -> Scoring:  # fmt: skip
    """float32 arrays of numbers of ``dtype``; q, k and v are ``times`` as large, parameters as small as in a
    layer that has just been made."""
    s = SIZES | sizes
    heads = 1 if shared else s["h"]
    shapes = {
        "w_q": (heads, s["a"], s["d"]), "w_k": (heads, s["a"], s["d"]), "v_a": (heads, s["a"]),
        "w_general": (heads, s["d"], s["d"]), "w_concat": (heads, s["a"], 2 * s["d"]),
        "w_p": (heads, s["p"], s["d"]), "v_p": (heads, s["p"]),
    }  # fmt: skip

    def made(what, shape, factor, kind="normal"):
        return round_to_dtype(factor * generate(what, seed, shape, kind, "float64"), dtype).astype(np.float32)

    parameters = {
        each: made(each, shapes[each], max(shapes[each][-1], 1) ** -0.5 if each[0] == "w" else 1.0)
        for each in (*SCORE_INPUTS[name], *SPAN_INPUTS[span])
    }
    return Scoring(
        name,
        made("q", (s["b"], s["h"], s["n"], s["d"]), times, distribution),
        made("k", (s["b"], s["h_kv"], s["m"], s["d"]), times, distribution),
        made("v", (s["b"], s["h_kv"], s["m"], s["e"]), times),
        parameters,
        FACTORS.get(name, 1.0),
        span,
        half_width,
    )


def masks(given: Scoring, *, causal=False, mask=None, bias=None) -> Operands:
    """What may be seen; causal with the last query at the last key."""
    n, m = given.q.shape[2], given.k.shape[2]
    return Operands(
        q=given.q, k=given.k, v=given.v, scale=1.0, softcap=0.0, left=None, right=0 if causal else None,
        q_positions=np.arange(n)[None] + m - n, kv_positions=np.arange(m)[None], slopes=None, sinks=None,
        mask=mask, bias=bias, q_lens=None, kv_lens=None,
    )  # fmt: skip


def allowed_pairs(given: Scoring, *, causal=False, mask=None) -> np.ndarray:
    """[b, h, n, m]."""
    (b, h, n, _), m = given.q.shape, given.k.shape[2]
    allowed = np.ones((b, h, n, m), bool) if mask is None else np.broadcast_to(mask, (b, h, n, m))
    return allowed & (np.arange(m) <= np.arange(n)[:, None] + m - n) if causal else allowed


def computed(
    given: Scoring, *, dtype="float32", tiles=TILES, wanted=None, **forbidden
) -> dict[str, np.ndarray]:
    """By the kernels."""
    working = WORKING[dtype]
    place = Memory("cpu")
    tensors = replace(
        given,
        **{name: to_tensor(getattr(given, name), "cpu", working) for name in "qkv"},
        parameters={name: to_tensor(array, "cpu", working) for name, array in given.parameters.items()},
    )
    if wanted is None:
        wanted = ("out", "lse", "scores", "weights", *(("kept_weight",) if given.span != "global" else ()))
    found = launch.attend(tensors, terms(masks(given, **forbidden), tiles, place), tiles, wanted)
    if dtype == "bfloat16":
        found["out"] = found["out"].to(torch.bfloat16)
    return to_numpy(found)


def by_formula(given: Scoring, *, bias=0.0, **forbidden) -> dict[str, np.ndarray]:
    """In float64, by the functions that have no kernels."""
    q, k, v = (x.astype(np.float64) for x in (given.q, given.k, given.v))
    parameters = {name: x.astype(np.float64) for name, x in given.parameters.items()}
    of_score = {FUNCTION_NAMES.get(name, name): parameters[name] for name in SCORE_INPUTS[given.score]}
    scores = score(given.score, q, k, of_score, beta=given.factor)
    if given.score == "scaled_dot":
        scores *= given.factor * np.sqrt(q.shape[3])
    logits, allowed = scores + bias, allowed_pairs(given, **forbidden)
    if given.span == "global":
        weights = softmax(logits, allowed)
        return {"scores": scores, "weights": weights, "out": summed(weights, v)}
    if given.span == "monotonic":
        centres = monotonic_centres(q.shape[2])
    else:
        centres = predicted_centres(q, parameters["w_p"], parameters["v_p"], k.shape[2])
    found = local_attention(
        logits, v, centres, given.half_width, gaussian=given.span == "predictive", allowed=allowed
    )
    centres = np.broadcast_to(centres, scores.shape[:3])
    return {
        "scores": scores, "weights": found.weights, "out": found.out, "kept_weight": found.inside,
        "centres": centres,
    }  # fmt: skip


def with_bounds(given: Scoring, dtype="float32", *, bias=None, **forbidden):
    """(results, bounds) in float64, [b, h, …] each, as the engine has them."""
    allowed = allowed_pairs(given, **forbidden)
    found = {}
    for b, h in np.ndindex(given.q.shape[:2]):
        head = bounds.head_of(given, b, h)
        added = 0.0 if bias is None else np.broadcast_to(bias, allowed.shape)[b, h].astype(np.float64)
        one = bounds.attend(head, bounds.scores(head, dtype), dtype=dtype, bias=added, allowed=allowed[b, h])
        for name, array in one.results.items():
            results, off = found.setdefault(name, ([], []))
            results.append(array)
            off.append(one.bounds[name])
    lead = given.q.shape[:2]

    def stacked(arrays):
        return np.stack(arrays).reshape(*lead, *arrays[0].shape)

    return {n: stacked(r) for n, (r, _) in found.items()}, {n: stacked(o) for n, (_, o) in found.items()}


def assert_within(found, given: Scoring, dtype="float32", **forbidden) -> None:
    wanted, off = with_bounds(given, dtype, **forbidden)
    for name in wanted.keys() & found.keys():
        assert found[name].shape == wanted[name].shape, name
        with np.errstate(invalid="ignore"):
            error = np.where(found[name] == wanted[name], 0.0, np.abs(found[name] - wanted[name]))
        assert not np.isnan(error).any(), name
        assert (error <= off[name]).all(), (name, float((error - off[name]).max()))
