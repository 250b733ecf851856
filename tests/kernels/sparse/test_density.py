"""Counts against the masks, pair by pair; and at lengths whose masks nobody makes."""

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.sparse.density import MAX_BLOCKS, closed_form, visible_pairs, window_pairs
from kernels.sparse.masks import mask_of, visible
from kernels.spec import RunSpec
from tests.kernels.cases import Case, cases, compute
from tests.kernels.test_patterns import patterns

LENGTHS = st.integers(0, 26) | st.sampled_from([30, 36, 49])
BIGBIRD = {"type": "bigbird", "window": 3, "global": 2, "random": 3, "seed": 1, "block": 64}


def is_of_queries(pattern: dict[str, Any], n: int) -> bool:
    return pattern["type"] == "block" and len(pattern["layout"]) != -(-n // pattern["size"])


@settings(max_examples=400, deadline=None)
@given(LENGTHS.flatmap(lambda n: st.tuples(st.just(n), patterns(n, n))), st.booleans())
def test_every_count_is_that_of_the_mask(case: tuple[int, dict[str, Any]], is_causal: bool) -> None:
    n, pattern = case
    if is_of_queries(pattern, n):
        return
    mask = mask_of(pattern, n, is_causal=is_causal)
    assert visible_pairs(pattern, n, is_causal=is_causal) == np.count_nonzero(mask)


@pytest.mark.parametrize(("is_causal", "pairs"), [(False, 25), (True, 15)])
def test_without_a_pattern_all_is_seen(is_causal: bool, pairs: int) -> None:
    assert visible_pairs(None, 5, is_causal=is_causal) == pairs
    assert np.count_nonzero(mask_of(None, 5, is_causal=is_causal)) == pairs


SIDE = st.none() | st.integers(0, 40)


@given(st.integers(0, 30), st.tuples(SIDE, SIDE), st.booleans())
def test_a_window_has_as_many_pairs_as_its_mask(n: int, window: tuple[Any, Any], is_causal: bool) -> None:
    mask = mask_of(None, n, window=window, is_causal=is_causal)
    assert window_pairs(window, n, is_causal=is_causal) == np.count_nonzero(mask)


def evaluated(form: str, **letters: int) -> float:
    """A formula as it is written for readers, worked out: what is said of its letters is left out."""
    python = form.partition(",")[0].replace("both", "B")
    for written, meant in {"²": "**2", "−": "-", "·": "*"}.items():
        python = python.replace(written, meant)
    python = re.sub(r"(?<=[\dA-Za-z)])(?=[A-Za-z(])", "*", python)
    return float(eval(python, {"__builtins__": {}}, letters))


@pytest.mark.parametrize("is_causal", [False, True])
def test_formulas_that_are_shown_give_the_counts(is_causal: bool) -> None:
    n = 60
    shown: list[tuple[dict[str, Any] | None, tuple[Any, Any], dict[str, int]]] = [
        (None, (None, None), {}),
        (None, (7, 4), {"l": 7, "r": 4}),
        ({"type": "prefix", "len": 9}, (None, None), {"p": 9}),
        ({"type": "dilated", "window": 4, "stride": 20}, (None, None), {"s": 20, "K": 3}),
        ({"type": "longformer", "window": 7, "global": []}, (None, None), {"w": 3, "g": 0, "B": 0}),
        ({"type": "longformer", "window": 4, "global": [0, 30]}, (None, None), {"w": 2, "g": 2, "B": 14}),
        ({"type": "neighborhood", "width": 10, "kernel_size": 3}, (None, None), {"k": 3}),
    ]
    for pattern, window, letters in shown:
        form = closed_form(pattern, window, is_causal=is_causal)
        assert form is not None
        pairs = np.count_nonzero(mask_of(pattern, n, window=window, is_causal=is_causal))
        assert evaluated(form, n=n, **letters) == pairs, (pattern, form)
    assert closed_form({"type": "chunked", "size": 3}, (1, 1)) is None


def test_windows_and_bands_grow_linearly_and_prefixes_quadratically() -> None:
    linear = [
        {"type": "longformer", "window": 512, "global": [0, 1]},
        {"type": "dilated", "window": 256, "stride": 4},
        {"type": "chunked", "size": 8192},
        BIGBIRD,
        {"type": "neighborhood", "width": 256, "kernel_size": 7},
    ]
    for pattern in linear:
        assert visible_pairs(pattern, 2**17) / visible_pairs(pattern, 2**16) == pytest.approx(2, rel=0.02)
    prefix = {"type": "prefix", "len": 100}
    assert visible_pairs(prefix, 2**17) / visible_pairs(prefix, 2**16) == pytest.approx(4, rel=0.01)


def test_a_longformer_of_the_paper_by_hand() -> None:
    """4,096 tokens, 256 on either side, one global: the band, and of its row and column what it lacks."""
    n, w = 4096, 256
    band = n * (2 * w + 1) - w * (w + 1)
    pattern = {"type": "longformer", "window": 512, "global": [0]}
    assert visible_pairs(pattern, n) == band + 2 * (n - 1 - w)
    assert visible_pairs(pattern, n) / n**2 == pytest.approx(0.12178, abs=1e-5)


def test_bigbird_away_from_the_edges_sees_window_global_and_random_blocks() -> None:
    blocks, (w, g, r) = 2000, (3, 2, 3)
    rows_of_globals = g * blocks
    beside_globals = (w - 1) + g + r  # block 2 has one of its window among the global ones
    interior = (blocks - g - 2) * (w + g + r)
    last = (w - 1) + g + r
    found = visible_pairs(BIGBIRD, 64 * blocks)
    assert found == 64 * 64 * (rows_of_globals + beside_globals + interior + last)


def test_what_cannot_be_counted_says_why() -> None:
    with pytest.raises(ValueError, match=f"at most {MAX_BLOCKS}"):
        visible_pairs(BIGBIRD | {"block": 1}, MAX_BLOCKS + 1)
    with pytest.raises(ValueError, match="differ by batch row"):
        visible_pairs({"type": "document", "ids": [[0, 0], [0, 1]]}, 2)
    with pytest.raises(ValueError, match="not of self-attention"):
        visible_pairs({"type": "block", "size": 1, "layout": [[1, 0]]}, 2)


SEEN = (
    "attn_mask",
    "ragged",
    "alibi",
    "softcap",
    "scale",
    "sinks",
    "gqa",
    "v_head_dim",
    "rope",
    "packed",
    "paged",
)


@settings(max_examples=100, deadline=None)
@given(cases("reference", without=SEEN))
def test_visible_is_what_the_reference_does_not_forbid(case: Case) -> None:
    spec, arrays = case.on("reference", **{"return": ["masked_scores"]})
    assert isinstance(spec, RunSpec)
    seen = ~np.isneginf(compute(spec, arrays)["masked_scores"])
    np.testing.assert_array_equal(seen, np.broadcast_to(visible(spec), seen.shape))
