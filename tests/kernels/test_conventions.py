"""Numbers from elsewhere: the convention that gave them is named, and what cannot be told apart is said."""

import numpy as np
import pytest

from kernels import conventions, flips
from kernels.arrays import generate, round_to_dtype
from kernels.spec import parse_run

HEADS, KV, N, M, D = 4, 2, 3, 5, 8


def asked(attention, n=N, m=M, kv=KV, seed=2):
    shapes = {"q": (1, HEADS, n, D), "k": (1, kv, m, D), "v": (1, kv, m, D)}
    inputs = {name: {"seed": seed, "shape": list(s), "distribution": "normal"} for name, s in shapes.items()}
    spec = parse_run({"engine": "flash", "inputs": inputs, "attention": attention}).spec
    return spec, {name: generate(name, seed, s, "normal", "float32") for name, s in shapes.items()}


def elsewhere(inputs, *, shift=0, causal=True, scale=D**-0.5, tiled=False, pairs=None, mask=None):
    """Somebody else's dozen lines, in float32: query i sees keys up to i + shift."""
    q, k, v = (inputs[name][0] for name in "qkv")
    n, m = q.shape[1], k.shape[1]
    out = np.zeros((HEADS, n, v.shape[2]), np.float32)
    for h in range(HEADS):
        g = h % len(k) if tiled else h * len(k) // HEADS
        rows, keys = q[h], k[g]
        if pairs:
            rows, keys = turn(rows, np.arange(n) + shift, pairs), turn(keys, np.arange(m), pairs)
        scores = rows @ keys.T * np.float32(scale)
        if causal:
            scores[np.arange(m)[None] > np.arange(n)[:, None] + shift] = -np.inf
        if mask is not None:
            scores[:, ~mask] = -np.inf
        with np.errstate(invalid="ignore"):
            weights = np.exp(scores - scores.max(1, keepdims=True))
        out[h] = weights / weights.sum(1, keepdims=True) @ v[g]
    return out[None].astype(np.float64)


def turn(x, positions, pairs):
    out, d = x.copy(), x.shape[1]
    for p in range(d // 2):
        a, b = (p, p + d // 2) if pairs == "half" else (2 * p, 2 * p + 1)
        angle = (positions * 10_000.0 ** (-2 * p / d)).astype(np.float32)
        out[:, a] = x[:, a] * np.cos(angle) - x[:, b] * np.sin(angle)
        out[:, b] = x[:, a] * np.sin(angle) + x[:, b] * np.cos(angle)
    return out


def attended(inputs, seen):
    """Softmax over the keys that are seen, a query at a time."""
    q, k, v = (inputs[name][0].astype(np.float64) for name in "qkv")
    out = np.zeros((HEADS, q.shape[1], v.shape[2]))
    for h in range(HEADS):
        keys, values = k[h * len(k) // HEADS], v[h * len(v) // HEADS]
        for i, row in enumerate(seen):
            weights = np.exp(keys[row] @ q[h, i] * D**-0.5)
            out[h, i] = weights @ values[row] / weights.sum()
    return out[None]


def found(answer):
    return [[one.name for one in group] for group in answer.groups]


HALVES = {"is_causal": True, "rope": {"style": "half"}}
CASES = [
    ({"is_causal": True}, {"shift": 2}, "equal"),
    ({"is_causal": True}, {"shift": 0}, "causal_alignment.top_left"),
    ({"is_causal": True, "causal_alignment": "top_left"}, {"shift": 2}, "causal_alignment.bottom_right"),
    ({"is_causal": True}, {"causal": False}, "causal.off"),
    ({}, {"shift": 2}, "causal.on"),
    ({"is_causal": True}, {"shift": 2, "tiled": True}, "heads.interleaved"),
    ({"is_causal": True}, {"shift": 2, "scale": 1.0}, "scale.none"),
    (HALVES, {"shift": 2, "pairs": "half"}, "equal"),
    (HALVES, {"shift": 2, "pairs": "neighbours"}, "rope_pairing.interleaved"),
    (HALVES, {"shift": 2}, "rope.off"),
    ({"is_causal": True}, {"shift": 1}, "strict_causal"),
    ({"is_causal": True}, {"shift": 2, "scale": 1 / D}, "scale_by_d"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("attention", "did", "name"), CASES, ids=[f"{case[2]}-{i}" for i, case in enumerate(CASES)]
)
@pytest.mark.parametrize("decimals", [None, 4])
def test_the_convention_is_named_and_no_other(attention, did, name, decimals):
    spec, inputs = asked(attention)
    out, resolution = elsewhere(inputs, **did), 0.0
    if decimals:
        out, resolution = np.round(out, decimals), 0.5 * 10.0**-decimals
    answer = conventions.judge(spec, inputs, out, "float32", resolution)
    assert answer.is_equal == (name == "equal")
    if name != "equal":
        assert len(found(answer)) == 1
        assert all(each.split("/")[0] == name for each in found(answer)[0]), found(answer)
        assert answer.base.excess > 1


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_the_rounding_of_a_number_format_is_no_other_convention(dtype):
    spec, inputs = asked({"is_causal": True})
    for shift, name in ((2, None), (0, "causal_alignment.top_left")):
        out = round_to_dtype(elsewhere(inputs, shift=shift), dtype).astype(np.float64)
        answer = conventions.judge(spec, inputs, out, dtype)
        assert answer.is_equal == (name is None)
        assert name is None or found(answer) == [[name]]
        assert not conventions.judge(spec, inputs, out, "float64").is_equal


def test_two_changes_at_once_are_named_together():
    spec, inputs = asked({"is_causal": True, "rope": {"style": "half"}})
    answer = conventions.judge(spec, inputs, elsewhere(inputs, pairs="neighbours", shift=0), "float32")
    assert found(answer) == [["causal_alignment.top_left+rope_pairing.interleaved"]]


@pytest.mark.parametrize("first", [0, 2], ids=["top left", "bottom right"])
@pytest.mark.parametrize("left", [1, 2])
def test_a_window_that_nobody_mentioned_is_named_with_its_size_and_corner(first, left):
    """What is asked for is causal attention alone; what is masked is written here as a loop."""
    spec, inputs = asked({"is_causal": True}, n=4, m=6)
    seen = [[first + i - left <= j <= first + i for j in range(6)] for i in range(4)]
    corner = "top_left" if first == 0 else "bottom_right"
    answer = conventions.judge(spec, inputs, attended(inputs, seen), "float32")
    assert found(answer) == [[f"reach.{left}_{corner}"]]


@pytest.mark.parametrize("first", [-1, 1, 2])
def test_a_diagonal_from_neither_corner_is_named(first):
    spec, inputs = asked({"is_causal": True}, m=7)
    answer = conventions.judge(spec, inputs, elsewhere(inputs, shift=first), "float32")
    assert found(answer) == [[f"diagonal.{first}"]]


def test_reaches_are_runs_of_their_own_and_recognised():
    spec, _inputs = asked({"is_causal": True})
    for flip in flips.reaches(spec):
        assert flips.find(spec, flip.name) is not None
        assert flips.between(spec, flip.spec) is not None
    assert not list(flips.reaches(asked({"is_causal": True, "q_positions": 1})[0]))


def test_inputs_that_cannot_tell_are_said_to_be():
    """With as many queries as keys both alignments are one."""
    spec, inputs = asked({"is_causal": True}, n=5, m=5)
    answer = conventions.judge(spec, inputs, elsewhere(inputs), "float32")
    assert answer.is_equal
    assert "causal_alignment" in [flip.kind for flip in answer.not_told_apart]
    spec, inputs = asked({"is_causal": True})
    answer = conventions.judge(spec, inputs, elsewhere(inputs, shift=2), "float32")
    assert "causal_alignment" not in [flip.kind for flip in answer.not_told_apart]


def test_two_that_give_the_same_numbers_are_both_named():
    """One query at the end of the window: a window of one key more and none at all are the same."""
    spec, inputs = asked({"window": [1, None], "is_causal": True}, n=3, m=3)
    answer = conventions.judge(spec, inputs, elsewhere(inputs), "float32")
    (group,) = found(answer)
    assert {"window.left_more", "pattern.full"} <= set(group)


def test_digits_that_are_too_few_leave_several():
    spec, inputs = asked({"is_causal": True, "softcap": 60.0})
    out = conventions.judge(spec, inputs, np.zeros((1, HEADS, N, D)), "float32").base.out
    answer = conventions.judge(spec, inputs, np.round(out, 1) + 0.04, "float32", 0.2)
    assert answer.is_equal
    off = conventions.judge(spec, inputs, np.round(out, 1) + 7.0, "float32", 0.05)
    assert not off.found
    assert len(off.nearest) == conventions.NEAREST
    assert [one.error for one in off.nearest] == sorted(one.error for one in off.nearest)


def test_rows_that_see_no_key_may_hold_anything():
    spec, inputs = asked({"is_causal": True}, n=5, m=3)
    out = elsewhere(inputs, shift=-2)
    out[:, :, :2] = np.nan
    assert conventions.judge(spec, inputs, out, "float32").is_equal


def test_numbers_that_are_none_fit_nothing():
    spec, inputs = asked({"is_causal": True})
    answer = conventions.judge(spec, inputs, np.full((1, HEADS, N, D), np.nan), "float32")
    assert not answer.is_equal
    assert not answer.found


def test_what_can_be_judged():
    spec, _inputs = asked({})
    assert conventions.can_judge(spec)
    linear = parse_run(
        {"engine": "linear", "inputs": {name: {"seed": 1, "shape": [1, 1, 4, 4]} for name in "qkv"}}
    ).spec
    assert not conventions.can_judge(linear)
