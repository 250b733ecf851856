"""What is said of a stack of sparse layers that nobody runs, against masks and paths followed one by one."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.sparse import figures
from kernels.sparse.figures import PatternFigures, pattern_figures
from kernels.sparse.masks import mask_of
from kernels.sparse.questions import MAX_LEN, parse_pattern_question
from kernels.sparse.receptive import receptive_fields
from kernels.sparse.tiles import count_tiles, kernel_bytes
from tests.kernels.test_patterns import patterns

WINDOW = st.none() | st.lists(st.none() | st.integers(0, 30), min_size=2, max_size=2)


def figures_of(**body: Any) -> PatternFigures:
    return pattern_figures(parse_pattern_question(body))


@st.composite
def stacks(draw: st.DrawFn) -> dict[str, Any]:
    n = draw(st.integers(1, 24) | st.sampled_from([30, 36, 49]))
    shape = patterns(n, n).filter(lambda p: p["type"] != "block" or len(p["layout"]) == -(-n // p["size"]))
    layer = st.fixed_dictionaries(
        {
            "pattern": st.none() | shape,
            "window": WINDOW,
            "is_causal": st.booleans(),
            "repeat": st.integers(1, 2),
        }
    )
    return {
        "len": n,
        "layers": draw(st.lists(layer, min_size=1, max_size=3)),
        "token": draw(st.integers(0, n - 1)),
    }


def masks_of(body: dict[str, Any]) -> list[np.ndarray]:
    return [
        mask_of(
            each["pattern"],
            body["len"],
            window=tuple(each["window"] or (None, None)),
            is_causal=each["is_causal"],
        )
        for each in body["layers"]
        for _ in range(each["repeat"])
    ]


@settings(max_examples=150, deadline=None)
@given(stacks())
def test_figures_are_those_of_the_masks(body: dict[str, Any]) -> None:
    asked, found, masks = parse_pattern_question(body), figures_of(**body), masks_of(body)
    n, token = body["len"], body["token"]
    assert len(asked.order) == len(masks)
    for kind, mask in zip(asked.order, masks, strict=True):
        layer = found.layers[kind]
        assert layer.pairs == np.count_nonzero(mask)
        assert layer.tiles == count_tiles(mask, 64, 64)
        assert layer.visited is not None
        assert layer.visited >= layer.tiles.visited
    is_causal = all(each["is_causal"] or (each["window"] or [0, 1])[1] == 0 for each in body["layers"])
    assert found.stack.possible_pairs == (n * (n + 1) // 2 if is_causal else n * n)
    assert found.stack.fields is not None
    assert found.stack.cone is not None
    for heard, said in zip(receptive_fields(masks), found.stack.fields, strict=True):
        tokens = np.flatnonzero(heard[token])
        assert said == (np.count_nonzero(heard), token - tokens[0], tokens[-1] - token)
    lowest = [t for first, last in found.stack.cone[-1] for t in range(first, last + 1)]
    assert lowest == np.flatnonzero(list(receptive_fields(masks))[-1][token]).tolist()
    assert found.stack.cone[0] == [(token, token)]


@settings(max_examples=60, deadline=None)
@given(stacks())
def test_closed_forms_are_those_of_the_masks(body: dict[str, Any]) -> None:
    """What is answered of lengths whose masks are not made."""
    counted = figures_of(**body)
    patched = pytest.MonkeyPatch()
    with patched.context() as patch:
        patch.setattr(figures, "MAX_PAIRS", 0)
        found = figures_of(**body)
    for exact, said in zip(counted.layers, found.layers, strict=True):
        assert said.tiles is None
        assert said.pairs == (None if said.closed_form is None else exact.pairs)
    assert found.stack.fields is None
    assert found.stack.reach == counted.stack.reach
    assert any("left out" in note for note in found.notes)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 40), WINDOW, st.booleans())
def test_layers_of_windows_until_all_is_heard(n: int, window: list[Any] | None, is_causal: bool) -> None:
    found = figures_of(len=n, window=window, is_causal=is_causal, num_layers=1)
    mask = mask_of(None, n, window=tuple(window or (None, None)), is_causal=is_causal)
    fields = [np.count_nonzero(heard) for heard in receptive_fields([mask] * 41)]
    needed = [number for number, pairs in enumerate(fields, 1) if pairs == found.stack.possible_pairs]
    assert found.stack.layers_to_hear_all == (needed[0] if needed else None)


def test_windows_that_hold_everything_or_are_causality_leave_closed_forms() -> None:
    chunks = {"type": "chunked", "size": 5}
    for window in ([11, 11], [None, 2**53], [11, 0], [None, 0]):
        (layer,) = figures_of(len=12, pattern=chunks, window=window).layers
        assert layer.closed_form is not None
        assert layer.pairs == np.count_nonzero(mask_of(chunks, 12, window=tuple(window)))
    for window in ([10, 11], [11, 10], [10, 0]):
        assert figures_of(len=12, pattern=chunks, window=window).layers[0].closed_form is None
    (layer,) = figures_of(len=MAX_LEN, window=[MAX_LEN - 2, 0]).layers
    assert layer.pairs == MAX_LEN * (MAX_LEN + 1) // 2 - 1


def test_mistral_s_reach_is_a_bound_for_any_length() -> None:
    found = figures_of(len=2**17, window=[4096, 0], num_layers=32)
    assert found.stack.reach == (131_072, 0, False)
    assert found.stack.layers_to_hear_all == 32
    assert found.layers[0].pairs == 2**17 + 4096 * (2**18 - 4097) // 2
    assert found.layers[0].tiles is None


def test_dilated_layers_with_strides_of_their_own() -> None:
    def stack(strides: list[int], **more: Any) -> PatternFigures:
        layers = [
            {"pattern": {"type": "dilated", "window": 1, "stride": stride}, "is_causal": True}
            for stride in strides
        ]
        return figures_of(len=128, layers=layers, **more)

    growing = stack([1, 2, 4, 8, 16, 32, 64])
    assert growing.stack.reach == (127, 0, False)
    assert growing.stack.gap_free_strides == [1, 2, 4, 8, 16, 32, 64]
    assert growing.stack.layers_to_hear_all == 7
    assert growing.stack.fields is not None
    assert [field.before for field in growing.stack.fields] == [1, 3, 7, 15, 31, 63, 127]
    assert growing.stack.cone is not None
    assert growing.stack.cone[1] == [(63, 63), (127, 127)]  # the top layer has the widest stride
    assert growing.stack.cone[-1] == [(0, 127)]
    same = stack([4] * 7)
    assert same.stack.reach == (28, 0, True)
    assert same.stack.layers_to_hear_all is None
    assert "Pairs that are never heard, however many such layers there are: 6,144." in same.notes


def test_equal_layers_are_followed_beyond_the_stack() -> None:
    found = figures_of(len=25, pattern={"type": "neighborhood", "width": 5, "kernel_size": 3})
    assert found.stack.layers_to_hear_all == 3
    assert found.stack.fields is not None
    assert len(found.stack.fields) == 1
    assert figures_of(len=25, pattern={"type": "chunked", "size": 12}).stack.layers_to_hear_all is None


def test_different_layers_are_answered_once_in_the_order_in_which_they_come() -> None:
    local, whole = {"window": [3, 0]}, {"is_causal": True}
    asked = parse_pattern_question(
        {
            "len": 20,
            "layers": [local, {**local, "repeat": 2}, whole, {"window": [3, None], "is_causal": True}],
        }
    )
    assert [kind.sides for kind in asked.kinds] == [(3, 0), (None, 0)]
    assert asked.order == (0, 0, 0, 1, 0)
    assert asked.token == 19
    assert parse_pattern_question({"len": 20}).token == 10


def test_bytes_are_those_of_the_kernel_whatever_the_strips() -> None:
    n, window = 700, (200, 50)
    pattern = {"type": "longformer", "window": 64, "global": [0, 300]}
    found = figures_of(
        len=n, pattern=pattern, window=list(window), block_m=32, head_dim=24, v_head_dim=8, dtype="float32"
    )
    widths = {"head_dim": 24, "v_head_dim": 8, "item_bytes": 4}
    kernel = kernel_bytes(
        (n, n), 32, 64, sides=mask_of(None, n, window=window), pattern=mask_of(pattern, n), **widths
    )
    assert (found.layers[0].visited, found.layers[0].bytes_read) == kernel
    assert found.full.bytes_read == kernel_bytes((n, n), 32, 64, **widths).bytes
    assert found.full.tiles == (22 * 11,) * 3
    assert found.full.pairs == n * n


def test_what_would_take_too_long_is_left_out_and_said() -> None:
    whole = figures_of(len=MAX_LEN, is_causal=True, block_m=16, block_n=16)
    assert whole.layers[0].pairs == 2**19 * (2**20 + 1)
    assert whole.full.tiles is not None
    assert whole.full.tiles.all == 2**32
    assert "4,096 tokens" in whole.notes[0]
    dense = figures_of(len=4096, layers=[{"window": [511, 0]}, {"is_causal": True}, {"window": [510, 0]}])
    assert dense.notes[0].startswith("What takes a mask is left out")
    slow = figures_of(len=4096, layers=[{"window": [511, 0]}, {"is_causal": True}])
    assert slow.stack.fields is not None
    assert len(slow.stack.fields) == 1
    assert "the first 1 of 2 layers" in slow.notes[0]
    assert slow.stack.layers_to_hear_all is None
    deep = figures_of(len=4096, pattern={"type": "chunked", "size": 64}, num_layers=65)
    assert deep.stack.cone is None
    assert "65 layers of 4,096 tokens" in deep.notes[0]
    holes = figures_of(len=4096, pattern={"type": "dilated", "window": 99, "stride": 7}, num_layers=64)
    assert holes.stack.cone is None
    assert "runs of tokens" in holes.notes[0]
