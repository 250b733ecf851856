"""What part of all pairs is looked at, against the scores that the reference did not forbid."""

import numpy as np
import pytest

from kernels.execute import execute
from kernels.sparse import share as counting
from kernels.spec import parse_run


def body(batch=2, heads=2, queries=5, keys=7, inputs=None, **attention):
    shapes = {"q": [batch, heads, queries, 4], "k": [batch, heads, keys, 4], "v": [batch, heads, keys, 4]}
    seeded = {name: {"seed": 3, "shape": shape, "distribution": "normal"} for name, shape in shapes.items()}
    return {
        "engine": "reference",
        "inputs": {**seeded, **(inputs or {})},
        "attention": attention,
        "return": ["masked_scores"],
    }


RNG = np.random.default_rng(4)
BOOLEANS = (RNG.random((2, 1, 5, 7)) < 0.5).tolist()
OF_HEADS = (RNG.random((2, 5, 7)) < 0.5).tolist()
ADDED = [[0.5, "-inf", 0, 0, 1, "-inf", 0]]


@pytest.mark.parametrize(
    "asked",
    [
        body(),
        body(is_causal=True),
        body(is_causal=True, causal_alignment="top_left"),
        body(window=[2, 1]),
        body(pattern={"type": "chunked", "size": 3}),
        body(pattern={"type": "document", "ids": [0, 0, 1, 1, 1, 2, 2]}, is_causal=True),
        body(inputs={"attn_mask": BOOLEANS}),
        body(inputs={"attn_mask": OF_HEADS}, is_causal=True),
        body(inputs={"attn_mask": ADDED}),
        body(inputs={"kv_lens": [3, 7]}, is_causal=True),
        body(inputs={"q_lens": [5, 2], "kv_lens": [4, 6]}),
        body(q_positions=[0, 2, 4, 6, 8], is_causal=True),
    ],
)
def test_pairs_are_those_whose_score_is_not_forbidden(asked):
    parsed = parse_run(asked)
    scores = np.asarray(execute(parsed.spec, parsed.arrays).arrays["masked_scores"])
    found = counting.share(parsed.spec, parsed.arrays)
    assert found.is_exact
    assert (found.pairs, found.total) == (int((~np.isneginf(scores)).sum()), scores.size)


def test_what_is_too_much_to_look_at_is_an_upper_bound(monkeypatch):
    monkeypatch.setattr(counting, "MAX_COUNTED", 10)
    parsed = parse_run(body(pattern={"type": "chunked", "size": 3}, is_causal=True))
    found = counting.share(parsed.spec, parsed.arrays)
    assert not found.is_exact
    assert found.pairs >= 2 * 2 * 9


def test_no_pairs_are_no_share():
    parsed = parse_run(body(keys=0, inputs={"kv_lens": [0, 0]}))
    assert counting.share(parsed.spec, parsed.arrays).total == 0


def test_masks_of_heads_and_of_rows_are_counted_as_large_as_they_are_together(monkeypatch):
    parsed = parse_run(body(batch=4, inputs={"attn_mask": OF_HEADS, "kv_lens": [3, 7, 5, 6]}))
    monkeypatch.setattr(counting, "MAX_COUNTED", 4 * 2 * 5 * 7)
    assert counting.share(parsed.spec, parsed.arrays).is_exact
    monkeypatch.setattr(counting, "MAX_COUNTED", 4 * 2 * 5 * 7 - 1)
    assert not counting.share(parsed.spec, parsed.arrays).is_exact
