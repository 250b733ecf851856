"""Engine ``lsh``, from a request to its result: beside loops written out, torch, and the exact attention."""

from __future__ import annotations

import math
import tracemalloc
from typing import Any

import numpy as np
import pytest

from kernels.arrays import generate
from kernels.estimate import estimate
from kernels.execute import execute
from kernels.patterns import pattern_mask
from kernels.registry import ENGINES
from kernels.spec import parse_run
from tests.kernels.double_engines import (
    Body,
    assert_compared_with,
    everything,
    for_heads,
    made,
    refusals,
    request,
    run,
    sdpa,
    seeded,
)

ALL = {"return": everything("lsh")}
CAUSAL = {"is_causal": True}


def lsh(*, attention: Body | None = None, **fields: Any) -> Body:
    """A request with some options, named as such."""
    options = {name: fields.pop(name) for name in ("rounds", "buckets", "hash_seed", "top") if name in fields}
    return request("lsh", options=options, attention=attention or {}, **fields)


def buckets(body: Body, name: str) -> np.ndarray:
    """[b, h, len, rounds], by hand: the axis that is nearest, of those of the head's key."""
    options = {"rounds": 4, "buckets": 8, "hash_seed": 0, **body["options"]}
    x, kv_heads = made(body, name), made(body, "k").shape[1]
    shape = (options["rounds"], kv_heads, x.shape[3], options["buckets"] // 2)
    axes = generate("lsh", options["hash_seed"], shape, "normal", "float64")
    found = np.zeros((*x.shape[:3], options["rounds"]), dtype=int)
    for b, h, i, r in np.ndindex(found.shape):
        columns = axes[r, h * kv_heads // x.shape[1]].T
        found[b, h, i, r] = np.argmax([c @ x[b, h, i] for c in (*columns, *-columns)])
    return found


def check(body: Body, allowed: np.ndarray, *, top: int = 8, scale: float | None = None) -> None:
    """Every result and finding, from the buckets on, query by query."""
    outcome = run({**body, **ALL})
    found, figures = outcome.arrays, outcome.findings
    q, k, v = (made(body, name) for name in "qkv")
    k, v = for_heads(k, q.shape[1]), for_heads(v, q.shape[1])
    of_q, of_k = buckets(body, "q"), buckets(body, "k")
    np.testing.assert_array_equal(found["q_buckets"], of_q)
    np.testing.assert_array_equal(found["k_buckets"], of_k)
    assert found["q_buckets"].dtype.kind == found["k_buckets"].dtype.kind == "i"
    recalls, kept, pairs = [], [], 0
    allowed = np.broadcast_to(allowed, (*q.shape[:3], k.shape[2]))
    for at in np.ndindex(q.shape[:3]):
        b, h, _ = at
        may = np.flatnonzero(allowed[at])
        meet = [j for j in may if (of_q[at] == of_k[b, h * of_k.shape[1] // q.shape[1], j]).any()]
        logits = k[b, h] @ q[at] * (1 / math.sqrt(q.shape[3]) if scale is None else scale)
        exponentials = np.exp(logits - logits.max())
        weights = np.zeros(k.shape[2])
        weights[meet] = exponentials[meet] / (exponentials[meet].sum() or 1)
        np.testing.assert_allclose(found["weights"][at], weights, atol=1e-12)
        np.testing.assert_allclose(found["out"][at], weights @ v[b, h], atol=1e-12)
        pairs += len(meet)
        if not len(may):
            assert found["recall"][at] == found["kept_weight"][at] == 0
            continue
        best = sorted(may, key=lambda j: -logits[j])[:top]
        recalls.append(len(set(best) & set(meet)) / len(best))
        kept.append(exponentials[meet].sum() / exponentials[may].sum())
        assert found["recall"][at] == pytest.approx(recalls[-1])
        assert found["kept_weight"][at] == pytest.approx(kept[-1])
    assert figures["mean_recall"] == pytest.approx(np.mean(recalls))
    assert figures["mean_kept_weight"] == pytest.approx(np.mean(kept))
    assert figures["pairs"] == allowed.sum()
    assert figures["scored_pairs"] == pairs
    assert figures["density"] == pairs / allowed.sum()
    assert figures["score_multiply_adds"] == allowed.sum() * q.shape[3]
    assert figures["scored_multiply_adds"] == pairs * q.shape[3]
    rounds, count = of_q.shape[3], body["options"].get("buckets", 8)
    tokens = math.prod(q.shape[:3]) + math.prod(of_k.shape[:3])
    assert figures["hash_multiply_adds"] == tokens * q.shape[3] * rounds * count // 2
    sizes = [
        np.unique(of_k[b, h, :, r], return_counts=True)[1] for b, h, r in np.ndindex(*of_k.shape[:2], rounds)
    ]
    assert figures["largest_bucket"] == max(size.max() for size in sizes)
    assert figures["mean_occupied_buckets"] == pytest.approx(np.mean([len(size) for size in sizes]))


LOWER = np.tril(np.ones((21, 21), bool))
MASK = (np.arange(21 * 21).reshape(21, 21) % 3 > 0) & (np.arange(21) != 4)[:, None]  # a row that sees nothing
BIGBIRD = {"type": "bigbird", "window": 1, "global": 1, "random": 1, "seed": 3, "block": 2}


@pytest.mark.parametrize("dtype", ENGINES["lsh"].dtypes)
@pytest.mark.parametrize(
    ("body", "allowed", "aside"),
    [
        (lsh(), np.ones((21, 21), bool), {}),
        (lsh(rounds=1, buckets=2, hash_seed=7, top=1), np.ones((21, 21), bool), {"top": 1}),
        (lsh(rounds=2, buckets=14, top=99, attention=CAUSAL), LOWER, {"top": 99}),
        (lsh(attention={"scale": -0.7}), np.ones((21, 21), bool), {"scale": -0.7}),
        (lsh(attention={"window": [3, 1]}), np.tril(np.triu(np.ones((21, 21), bool), -3), 1), {}),
        (lsh(kv_len=30, attention=CAUSAL), np.tril(np.ones((21, 30), bool), 9), {}),
        (lsh(kv_len=30, attention={**CAUSAL, "causal_alignment": "top_left"}),
         np.tril(np.ones((21, 30), bool)), {}),
        (lsh(attention={**CAUSAL, "q_positions": 4, "kv_positions": list(range(20, -1, -1))}),
         np.arange(20, -1, -1) <= 4 + np.arange(21)[:, None], {}),
        (lsh(inputs={"attn_mask": MASK.tolist()}, attention=CAUSAL), MASK & LOWER, {}),
        (lsh(heads=4, kv_heads=1, v_dim=1, distribution="peaked"), np.ones((21, 21), bool), {}),
    ],
)  # fmt: skip
def test_each_row_is_attention_over_the_keys_of_its_buckets(
    body: Body, allowed: np.ndarray, aside: Any, dtype: str
) -> None:
    body = {**body, "dtype": dtype}
    check(body, allowed, **aside)
    if "scale" not in aside and allowed.any(axis=1).all():
        exact = sdpa(body, np.broadcast_to(allowed, (1, 1, *allowed.shape)))
        assert_compared_with(run(body), exact)


def test_a_pattern_forbids_pairs_before_anything_is_looked_for() -> None:
    body = lsh(attention={"pattern": BIGBIRD})
    allowed = pattern_mask(parse_run(body).spec)
    assert allowed is not None
    assert 0.1 < allowed.mean() < 0.9
    check(body, allowed)
    assert_compared_with(run(body), sdpa(body, np.broadcast_to(allowed, (2, 4, 21, 21))))


def test_a_mask_of_each_head_is_its_own() -> None:
    mask = generate("mask", 3, (2, 4, 21, 21), "uniform", "float32") > 0
    mask[..., 0] = True
    body = lsh(inputs={"attn_mask": mask.tolist()})
    check(body, mask)
    assert_compared_with(run(body), sdpa(body, mask))


@pytest.mark.parametrize("seed", range(3))
def test_with_enough_rounds_everything_is_found(seed: int) -> None:
    """Two vectors whose angle is θ share one of two buckets in one of r rounds with 1 − (θ/π)^r."""
    found = [
        run(lsh(buckets=2, rounds=rounds, hash_seed=seed, attention=CAUSAL)) for rounds in (1, 4, 16, 64)
    ]
    for name in ("mean_recall", "mean_kept_weight", "scored_pairs"):
        assert [x.findings[name] for x in found] == sorted(x.findings[name] for x in found)
    assert found[0].findings["mean_recall"] < 0.95
    assert found[-1].findings["mean_recall"] > 0.999
    errors = [outcome.comparison["rel_err"] for outcome in found if outcome.comparison]
    assert errors[-1] < 0.01 < errors[0]


def test_keys_that_are_directions_of_queries_are_found_and_others_are_missed() -> None:
    """What the hash is made for, and what it is not: a long key at a large angle."""
    q = generate("q", 1, (1, 1, 64, 16), "normal", "float64")
    directions = q / np.linalg.norm(q, axis=-1, keepdims=True)
    fixed = {"q": (8 * q).tolist(), "k": directions.tolist(), "v": seeded(1, 1, 64, 4)}
    reformer = run(lsh(inputs=fixed, top=1, attention=CAUSAL))
    assert reformer.findings["mean_recall"] == 1  # each query is its own best key
    assert reformer.findings["mean_kept_weight"] > 0.95
    long = directions.copy()
    long[0, 0, 3] = 100 * generate("k", 9, (16,), "normal", "float64")
    missed = run(lsh(inputs={**fixed, "k": long.tolist()}, top=1, rounds=1, buckets=32, **ALL))
    looked_for = (8 * q[0, 0] @ long[0, 0].T).argmax(axis=1) == 3
    assert looked_for.mean() > 0.3
    assert missed.arrays["recall"][0, 0, looked_for].mean() < 0.3


def test_packed_inputs_and_fewer_axes_are_the_same_computation() -> None:
    body = lsh(batch=1, **ALL)
    found = run(body).arrays
    packed = {name: made(body, name).swapaxes(1, 2).reshape(1, 21, -1).tolist() for name in "qkv"}
    other = run({**body, "inputs": packed, "attention": {"num_heads": 4, "num_kv_heads": 2}}).arrays
    np.testing.assert_allclose(other.pop("out"), found["out"].swapaxes(1, 2).reshape(1, 21, -1), atol=1e-12)
    for name, array in other.items():
        np.testing.assert_allclose(array, found[name], atol=1e-12)
    alone = run({**body, "inputs": {name: made(body, name)[0, 0].tolist() for name in "qkv"}}).arrays
    assert {name: array.shape for name, array in alone.items()} == {
        "out": (21, 5), "weights": (21, 21), "recall": (21,), "kept_weight": (21,), "q_buckets": (21, 4),
        "k_buckets": (21, 4),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("body", "pointer", "status", "says"),
    [
        (lsh(buckets=7), "/options/buckets", 422, "send an even number, 6 or 8, not 7"),
        (lsh(buckets=0), "/options/buckets", 422, "between 2 and 4,096, not 0"),
        (lsh(rounds=65), "/options/rounds", 422, "between 1 and 64, not 65"),
        (lsh(rounds=64, buckets=4096, dim=32), "/options/buckets", 413,
         "64 rounds with 4,096 buckets draw 8,388,608 random numbers"),
        (lsh(top=0), "/options/top", 422, "between 1 and"),
        (lsh(hash_seed=-1), "/options/hash_seed", 422, "between 0 and"),
        (lsh(hash_seed="a"), "/options/hash_seed", 400, "an integer"),
        (lsh(inputs={"attn_mask": [[0.5] * 21]}), "/inputs/attn_mask", 422, "send a mask of booleans"),
        (lsh(inputs={"attn_mask": seeded(21, 21)}), "/inputs/attn_mask", 422, "send a mask of booleans"),
        (lsh(attention={"rope": {"style": "half"}}), "/attention/rope", 422, "rotary"),
        (lsh(attention={"softcap": 3}), "/attention/softcap", 422, "logit softcapping"),
        (lsh(inputs={"q_lens": [3, 4]}), "/inputs/q_lens", 422, "ragged"),
        (lsh(**{"return": ["held"]}), "/return/0", 422, "the result held; "),
        ({**lsh(), "options": {"policy": "full"}}, "/options/policy", 422, "leave it out"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_named(body: Body, pointer: str, status: int, says: str) -> None:
    found = refusals(body)[pointer]
    assert found[0] == status
    assert says in found[1]


@pytest.mark.parametrize(
    "sizes",
    [
        {"q_len": 0, "kv_len": 0}, {"q_len": 0, "kv_len": 3}, {"q_len": 3, "kv_len": 0}, {"batch": 0},
        {"heads": 0}, {"heads": 0, "kv_heads": 0}, {"dim": 0}, {"v_dim": 0}, {"q_len": 1},
    ],
)  # fmt: skip
def test_empty_axes_are_legal(sizes: Any) -> None:
    body = lsh(**sizes, **ALL)
    outcome = run(body)
    assert outcome.arrays["out"].shape == (*body["inputs"]["q"]["shape"][:3], body["inputs"]["v"]["shape"][3])
    if not outcome.findings["pairs"]:
        assert outcome.findings["density"] is None
        assert outcome.findings["mean_recall"] is None
        assert not outcome.arrays["out"].any()
    if "dim" in sizes:  # all in one bucket
        assert outcome.findings["mean_recall"] == 1


def test_numbers_that_overflow_are_reported_and_no_error() -> None:
    huge = {name: [[1e200, 1], [1, 1]] for name in "qkv"}
    assert run(lsh(inputs=huge, dtype="float64", **ALL)).numerics["within_bound"] is False


def test_more_costs_more() -> None:
    def cost(**fields: Any) -> float:
        return estimate(parse_run(lsh(q_len=256, **fields)).spec).predicted_seconds

    assert cost() < cost(rounds=8) < cost(rounds=64)
    assert cost() < cost(buckets=512)
    assert cost(batch=1) < cost(batch=2)
    flops = run(lsh(attention=CAUSAL)).cost["flops"]
    assert flops == 2 * (2 * 21 * (4 + 2) * 6 * 4 * 4 + 8 * 21 * 11 * (6 + 5))


def test_what_is_found_of_many_heads_takes_no_more_memory_than_was_priced() -> None:
    """They have more buckets together than there are keys and queries by far."""
    sizes = {"batch": 500, "heads": 1, "kv_heads": 1, "q_len": 1, "kv_len": 1, "dim": 2, "v_dim": 2}
    body = lsh(**sizes, rounds=4, buckets=4096)
    parsed = parse_run(body)
    tracemalloc.start()  # which takes memory too, so that what the run measured of itself says nothing here
    try:
        found = execute(parsed.spec, parsed.arrays).findings
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found["mean_occupied_buckets"] == found["largest_bucket"] == 1
    assert peak < estimate(parsed.spec).predicted_bytes
