"""What a stack of layers hears of, against paths followed one by one."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.sparse.masks import mask_of
from kernels.sparse.receptive import (
    MAX_TOKENS,
    Comb,
    comb_of,
    combs_have_gaps,
    cone,
    growing_strides,
    receptive_fields,
    stack_reach,
)


def heard_by(masks: list[np.ndarray], token: int) -> set[int]:
    """Followed from layer to layer, the last one first."""
    found = {token}
    for mask in reversed(masks):
        found |= {j for i in found for j in range(len(mask)) if mask[i, j]}
    return found


def dilated(strides: list[int], window: int, n: int, *, is_causal: bool = False) -> list[np.ndarray]:
    return [
        mask_of({"type": "dilated", "window": window, "stride": s}, n, is_causal=is_causal) for s in strides
    ]


def combs(strides: list[int], window: int, *, is_causal: bool = False) -> list[Comb]:
    """The same in closed form."""
    return [Comb(window, 0 if is_causal else window, stride) for stride in strides]


def last(masks: list[np.ndarray]) -> np.ndarray:
    return list(receptive_fields(masks))[-1]


def layers_to_hear_all(mask: np.ndarray, limit: int) -> int | None:
    fields = enumerate(receptive_fields([mask] * limit), start=1)
    return next((number for number, heard in fields if heard.all()), None)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 14), st.integers(1, 4), st.floats(0, 0.4), st.integers(0, 999))
def test_products_of_masks_are_paths(n: int, layers: int, share: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    masks = [rng.random((n, n)) < share for _ in range(layers)]
    fields = list(receptive_fields(masks))
    for number in range(1, layers + 1):
        for token in range(n):
            assert set(np.flatnonzero(fields[number - 1][token])) == heard_by(masks[:number], token)
    for token in (0, n - 1):
        levels = cone(masks, token)
        assert [set(np.flatnonzero(level)) for level in levels] == [
            heard_by(masks[layers - below :], token) if below else {token} for below in range(layers + 1)
        ]
        np.testing.assert_array_equal(levels[-1], fields[-1][token])


@pytest.mark.parametrize("layers", [1, 2, 5])
@pytest.mark.parametrize("window", [0, 1, 3])
def test_windows_reach_layers_times_window(layers: int, window: int) -> None:
    n, reach = 41, layers * window
    assert stack_reach([Comb(window, 0)] * layers) == (reach, 0)
    both = last([mask_of(None, n, window=(window, window))] * layers)
    assert np.flatnonzero(both[20]).tolist() == list(range(20 - reach, 20 + reach + 1))
    causal = last([mask_of(None, n, is_causal=True, window=(window, 0))] * layers)
    assert np.flatnonzero(causal[40]).tolist() == list(range(40 - reach, 41))
    # an upper bound: near an end there is less
    assert np.flatnonzero(causal[2]).tolist() == list(range(max(2 - reach, 0), 3))


def test_mistral_7b_reaches_its_131_thousand_tokens() -> None:
    """32 layers, each with a window of 4,096 (Jiang et al. 2023, §2): a bound."""
    assert stack_reach([Comb(4096, 0)] * 32) == (131_072, 0)


@settings(max_examples=80, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=3), st.integers(1, 2), st.booleans())
def test_dilated_layers_reach_the_sum_of_their_strides_and_may_have_gaps(
    strides: list[int], window: int, is_causal: bool
) -> None:
    reach = window * sum(strides)
    layers = combs(strides, window, is_causal=is_causal)
    assert stack_reach(layers) == (reach, 0 if is_causal else reach)
    n, middle = 2 * reach + 1, reach
    heard = np.flatnonzero(last(dilated(strides, window, n, is_causal=is_causal))[middle])
    assert heard.min() == 0
    assert heard.max() == (middle if is_causal else 2 * reach)
    everything = heard.max() - heard.min() + 1
    assert combs_have_gaps(layers) == (len(heard) < everything)


def test_growing_strides_make_the_cost_logarithmic_and_equal_ones_do_not() -> None:
    assert growing_strides(4, 1, is_causal=True) == [1, 2, 4, 8]
    assert growing_strides(3, 1) == [1, 3, 9]
    n = 128
    doubling = last(dilated(growing_strides(7, 1, is_causal=True), 1, n, is_causal=True))
    assert doubling[127].all()  # 2⁷ tokens after 7 layers that see two each
    same = last(dilated([4] * 7, 1, n, is_causal=True))
    assert np.flatnonzero(same[127]).tolist() == list(range(127 - 28, 128, 4))
    assert combs_have_gaps(combs([4] * 7, 1))
    longest = growing_strides(4, 2)
    assert not combs_have_gaps(combs(longest, 2))
    assert combs_have_gaps(combs([*longest[:-1], longest[-1] + 1], 2))


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(1, 7)), min_size=1, max_size=3
    ),
)  # fmt: skip
def test_layers_of_any_steps_reach_their_sum_and_may_have_gaps(layers: list[tuple[int, int, int]]) -> None:
    described = [Comb(*layer) for layer in layers]
    before, after = stack_reach(described)
    assert before is not None
    assert after is not None
    heard = {0}
    for b, a, stride in layers:
        heard = {i + k * stride for i in heard for k in range(-b, a + 1)}
    assert (min(heard), max(heard)) == (-before, after)
    assert combs_have_gaps(described) == (len(heard) < before + after + 1)


def test_what_patterns_and_windows_are_as_steps() -> None:
    dilated = {"type": "dilated", "window": 3, "stride": 5}
    assert comb_of(dilated, (None, None)) == Comb(3, 3, 5)
    assert comb_of(dilated, (11, 0)) == Comb(2, 0, 5)
    assert comb_of(None, (7, None)) == Comb(7, None)
    assert comb_of({"type": "longformer", "window": 9, "global": []}, (None, 2)) == Comb(4, 2)
    assert comb_of({"type": "longformer", "window": 9, "global": [1]}, (None, None)) is None
    assert comb_of({"type": "chunked", "size": 9}, (None, None)) is None
    assert stack_reach([Comb(2, 0, 5), Comb(None, 0)]) == (None, 0)
    assert not combs_have_gaps([Comb(2, 0, 5), Comb(None, 0)])


@pytest.mark.parametrize(
    ("pattern", "layers"),
    [
        ({"type": "longformer", "window": 2, "global": [5]}, 2),
        ({"type": "longformer", "window": 4, "global": []}, 12),
        ({"type": "bigbird", "window": 1, "global": 1, "random": 0, "seed": 0, "block": 5}, 2),
        ({"type": "neighborhood", "width": 5, "kernel_size": 3}, 3),  # an edge sees 2 inwards
        ({"type": "chunked", "size": 12}, None),
        ({"type": "chunked", "size": 25}, 1),
    ],
)  # fmt: skip
def test_layers_until_all_is_heard(pattern: dict[str, Any], layers: int | None) -> None:
    assert layers_to_hear_all(mask_of(pattern, 25), limit=20) == layers


def test_random_blocks_shorten_paths() -> None:
    plain = {"type": "bigbird", "window": 3, "global": 0, "random": 0, "seed": 3, "block": 1}
    without = layers_to_hear_all(mask_of(plain, 200), limit=300)
    with_random = layers_to_hear_all(mask_of(plain | {"random": 2}, 200), limit=300)
    assert without == 199
    assert with_random is not None
    assert with_random < 10


def test_a_token_keeps_what_it_has() -> None:
    """By the residual connection, also where the mask forbids it its own key."""
    nothing = np.zeros((3, 3), bool)
    np.testing.assert_array_equal(last([nothing, nothing]), np.eye(3, dtype=bool))


def test_mistakes_are_explained() -> None:
    with pytest.raises(ValueError, match="square and of one size"):
        list(receptive_fields([np.ones((2, 3), bool)]))
    with pytest.raises(ValueError, match="square and of one size"):
        list(receptive_fields([np.ones((2, 2), bool), np.ones((3, 3), bool)]))
    with pytest.raises(ValueError, match=f"more than the {MAX_TOKENS}"):
        cone([np.broadcast_to(np.True_, (MAX_TOKENS + 1,) * 2)], 0)
