"""Patterns against their definitions, token by token, and against counts known in closed form."""

# ruff: noqa: E501, PLR0911, PLR0917 - a table of mistakes reads best with one on a line; hypothesis gives by position

import hashlib
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.patterns import pattern_mask, query_index
from kernels.spec import Attention, InputSpec, RunSpec
from kernels.spec.patterns import PATTERNS, pattern_problems


def spec_of(
    pattern: dict[str, Any] | None, n: int, m: int, *, batch: int = 1, past: int = 0, **attention: Any
) -> RunSpec:
    """n queries and m keys, of which ``past`` are cached."""

    def described(length: int) -> InputSpec:
        return InputSpec((batch, 2, length, 4), "float32", "seed", 0, "normal")

    inputs = {"q": described(n), "k": described(m - past), "v": described(m - past)}
    if past:
        inputs |= {"past_key": described(past), "past_value": described(past)}
    return RunSpec("reference", inputs, attention=Attention(pattern=pattern, **attention))


def mask_of(pattern: dict[str, Any], n: int, m: int, **fields: Any) -> np.ndarray:
    """[n, m] of a pattern that is the same for every batch row."""
    spec = spec_of(pattern, n, m, **fields)
    assert pattern_problems(spec) == []
    mask = pattern_mask(spec)
    assert mask is not None
    assert mask.dtype == np.bool_
    assert mask.shape == (1, 1, n, m)
    return mask[0, 0]


# -- definitions, one pair of tokens at a time ---------------------------------------------------------------


def philox(key: list[int], counter: list[int]) -> list[int]:
    """One block of Philox4x64-10 (Salmon et al. 2011), in integers."""
    (k0, k1), (x0, x1, x2, x3), word = key, counter, 2**64
    for _ in range(10):
        a, b = 0xD2E7470EE14C6C93 * x0, 0xCA5A826395121157 * x2
        x0, x1, x2, x3 = (b // word) ^ x1 ^ k0, b % word, (a // word) ^ x3 ^ k1, a % word
        k0, k1 = (k0 + 0x9E3779B97F4A7C15) % word, (k1 + 0xBB67AE8584CAA73B) % word
    return [x0, x1, x2, x3]


def random_blocks(p: dict[str, Any], row: int, blocks: int) -> set[int]:
    """The recipe of the module, from the words upwards."""
    tag = int.from_bytes(hashlib.sha256(b"attention-lab/v1/bigbird").digest()[:8], "little")
    words = [word for i in range(1, blocks // 4 + 2) for word in philox([p["seed"], tag], [i, row, 0, 0])]
    if not 0 <= row < blocks:
        return set()
    seen = {
        c for c in range(blocks) if abs(c - row) <= p["window"] // 2 or c < p["global"] or row < p["global"]
    }
    return set(sorted(set(range(blocks)) - seen, key=lambda c: words[c])[: p["random"]])


def sees(p: dict[str, Any], i: int, t: int, j: int, n: int, m: int) -> bool:
    match p["type"]:
        case "prefix":
            return j < p["len"] or j <= t
        case "document":
            return 0 <= t < m and p["ids"][t] == p["ids"][j]
        case "chunked":
            return t // p["size"] == j // p["size"]
        case "dilated":
            return (j - t) in {k * p["stride"] for k in range(-p["window"], p["window"] + 1)}
        case "longformer":
            return abs(t - j) <= p["window"] // 2 or t in p["global"] or j in p["global"]
        case "bigbird":
            r, c = t // p["block"], j // p["block"]
            near = abs(r - c) <= p["window"] // 2
            is_global = c < p["global"] or 0 <= r < p["global"]
            return near or is_global or c in random_blocks(p, r, -(-m // p["block"]))
        case "block":
            row = t // p["size"] if len(p["layout"]) == -(-m // p["size"]) else i // p["size"]
            return 0 <= row < len(p["layout"]) and p["layout"][row][j // p["size"]] == 1
        case "neighborhood":
            width = p["width"]
            rows, columns = nearest(p, t // width, m // width), nearest(p, t % width, width)
            return 0 <= t < m and j // width in rows and j % width in columns
    raise AssertionError(p)


def nearest(p: dict[str, Any], at: int, length: int) -> list[int]:
    """Of a line of pixels."""
    alike = [x for x in range(length) if (x - at) % (p.get("dilation") or 1) == 0]
    return sorted(alike, key=lambda x: abs(x - at))[: p["kernel_size"]]


def by_definition(p: dict[str, Any], n: int, m: int, first: int) -> np.ndarray:
    """Query i is token ``first`` + i."""
    pairs = [[sees(p, i, first + i, j, n, m) for j in range(m)] for i in range(n)]
    return np.array(pairs, dtype=np.bool_).reshape(n, m)


def patterns(n: int, m: int) -> st.SearchStrategy[dict[str, Any]]:
    small = st.integers(1, 6)

    def layouts(size: int) -> st.SearchStrategy[dict[str, Any]]:
        columns = -(-m // size)
        row = st.lists(st.integers(0, 1), min_size=columns, max_size=columns)
        return st.sampled_from([columns, -(-n // size)]).flatmap(
            lambda rows: st.fixed_dictionaries(
                {
                    "type": st.just("block"),
                    "size": st.just(size),
                    "layout": st.lists(row, min_size=rows, max_size=rows),
                }
            )
        )

    def images(width: int) -> st.SearchStrategy[dict[str, Any]]:
        sizes = [
            (size, dilation)
            for size in (1, 3, 5)
            for dilation in (None, 1, 2, 3)
            if not m or size * (dilation or 1) <= min(width, m // width)
        ]
        return st.sampled_from(sizes).map(
            lambda found: (
                {"type": "neighborhood", "width": width, "kernel_size": found[0]}
                | ({} if found == (1, None) else {"dilation": found[1]})
            )
        )

    token = st.lists(st.integers(0, m - 1), max_size=4) if m else st.just([])
    widths = [width for width in range(1, max(m, 1) + 1) if m % width == 0]
    return st.one_of(
        st.fixed_dictionaries({"type": st.just("prefix"), "len": st.integers(0, 25)}),
        st.fixed_dictionaries(
            {"type": st.just("document"), "ids": st.lists(st.integers(-1, 2), min_size=m, max_size=m)}
        ),
        st.fixed_dictionaries({"type": st.just("chunked"), "size": small}),
        st.fixed_dictionaries({"type": st.just("dilated"), "window": st.integers(0, 5), "stride": small}),
        st.fixed_dictionaries({"type": st.just("longformer"), "window": st.integers(0, 7), "global": token}),
        st.fixed_dictionaries(
            {
                "type": st.just("bigbird"),
                "window": st.integers(1, 5),
                "global": st.integers(0, 2),
                "random": st.integers(0, 4),
                "seed": st.integers(0, 2**63 - 1),
                "block": st.integers(1, 4),
            }
        ),
        small.flatmap(layouts),
        st.sampled_from(widths).flatmap(images),
    )


SIZES = st.tuples(st.integers(0, 20), st.integers(0, 20) | st.sampled_from([24, 25, 30, 36]))
CASES = SIZES.flatmap(lambda size: st.tuples(st.just(size), patterns(*size)))


@settings(max_examples=300, deadline=None)
@given(CASES, st.sampled_from(["bottom_right", "top_left"]))
def test_every_pattern_is_its_definition(
    case: tuple[tuple[int, int], dict[str, Any]], alignment: str
) -> None:
    (n, m), pattern = case
    first = m - n if alignment == "bottom_right" else 0
    mask = mask_of(pattern, n, m, causal_alignment=alignment)
    np.testing.assert_array_equal(mask, by_definition(pattern, n, m, first))


@settings(max_examples=100, deadline=None)
@given(CASES, st.integers(-5, 25), st.sampled_from([None, 0, 3, -100]))
def test_q_positions_place_the_queries(
    case: tuple[tuple[int, int], dict[str, Any]], first: int, kv_start: int | None
) -> None:
    (n, m), pattern = case
    expected = by_definition(pattern, n, m, first)
    start = first + (kv_start or 0)
    for q_positions in (start, tuple(range(start, start + n)), (tuple(range(start, start + n)),)):
        if q_positions in ((), ((),)):
            continue
        mask = mask_of(pattern, n, m, q_positions=q_positions, kv_positions=kv_start)
        np.testing.assert_array_equal(mask, expected)
    if m:
        listed = tuple(range(kv_start or 0, (kv_start or 0) + m))
        mask = mask_of(pattern, n, m, q_positions=start, kv_positions=listed)
        np.testing.assert_array_equal(mask, expected)


@settings(max_examples=100, deadline=None)
@given(
    (st.integers(1, 20) | st.just(30)).flatmap(
        lambda m: st.tuples(st.just(m), st.integers(1, m), patterns(m, m))
    )
)
def test_decoding_over_a_past_gives_the_rows_of_the_full_computation(
    case: tuple[int, int, dict[str, Any]],
) -> None:
    m, n, pattern = case
    full = mask_of(pattern, m, m)
    decoded = mask_of(pattern, n, m, past=m - n) if n < m else full
    np.testing.assert_array_equal(decoded, full[m - n :])
    # one query somewhere in the middle of an external cache
    np.testing.assert_array_equal(mask_of(pattern, 1, m, q_positions=n - 1), full[n - 1 : n])


# -- one look at each ----------------------------------------------------------------------------------------


def picture(mask: np.ndarray) -> list[str]:
    return ["".join("x" if seen else "." for seen in row) for row in mask]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ({"type": "prefix", "len": 3}, ["xxx..", "xxx..", "xxx..", "xxxx.", "xxxxx"]),
        ({"type": "document", "ids": [7, 7, 0, 0, 7]}, ["xx..x", "xx..x", "..xx.", "..xx.", "xx..x"]),
        ({"type": "chunked", "size": 2}, ["xx...", "xx...", "..xx.", "..xx.", "....x"]),
        ({"type": "dilated", "window": 1, "stride": 2}, ["x.x..", ".x.x.", "x.x.x", ".x.x.", "..x.x"]),
        ({"type": "longformer", "window": 2, "global": [0]}, ["xxxxx", "xxx..", "xxxx.", "x.xxx", "x..xx"]),
        ({"type": "bigbird", "window": 1, "global": 1, "random": 0, "seed": 1, "block": 2},
         ["xxxxx", "xxxxx", "xxxx.", "xxxx.", "xx..x"]),
        ({"type": "block", "size": 2, "layout": [[1, 0, 1], [0, 0, 0], [1, 1, 0]]},
         ["xx..x", "xx..x", ".....", ".....", "xxxx."]),
        ({"type": "neighborhood", "width": 5, "kernel_size": 1}, ["x....", ".x...", "..x..", "...x.", "....x"]),
    ],
)  # fmt: skip
def test_pictures(pattern: dict[str, Any], expected: list[str]) -> None:
    assert picture(mask_of(pattern, 5, 5)) == expected


def test_no_pattern_no_mask() -> None:
    assert pattern_mask(spec_of(None, 3, 3)) is None


def test_a_layout_that_is_not_square_has_rows_of_queries() -> None:
    pattern = {"type": "block", "size": 2, "layout": [[1, 0, 0], [0, 0, 1]]}
    assert picture(mask_of(pattern, 3, 6)) == ["xx....", "xx....", "....xx"]


def test_documents_may_differ_by_batch_row() -> None:
    spec = spec_of({"type": "document", "ids": [[0, 0, 1], [0, 1, 1]]}, 2, 3, batch=2)
    assert pattern_problems(spec) == []
    mask = pattern_mask(spec)
    assert mask is not None
    assert mask.shape == (2, 1, 2, 3)
    assert [picture(row[0]) for row in mask] == [["xx.", "..x"], [".xx", ".xx"]]


# -- places --------------------------------------------------------------------------------------------------


def test_ragged_rows_are_placed_by_their_lengths() -> None:
    pattern = {"type": "chunked", "size": 3}
    q_lens, kv_lens = np.array([2, 4, 0]), np.array([7, 4, 9])
    mask = pattern_mask(spec_of(pattern, 4, 9, batch=3), q_lens, kv_lens)
    assert mask is not None
    assert mask.shape == (3, 1, 4, 9)
    for b, (n, m) in enumerate(zip(q_lens, kv_lens, strict=True)):
        np.testing.assert_array_equal(mask[b, 0, :n, :m], mask_of(pattern, int(n), int(m)))


def test_positions_with_gaps_name_the_last_key_not_after_the_query() -> None:
    """Four sinks and a recent window: the cache holds positions 0–3 and 100–103."""
    keys = (0, 1, 2, 3, 100, 101, 102, 103)
    spec = spec_of(None, 5, 8, q_positions=(-2, 2, 50, 102, 105), kv_positions=keys)
    assert query_index(spec).tolist() == [[-2, 2, 3, 6, 9]]


def test_positions_that_start_again_fall_back_on_alignment() -> None:
    """Two packed documents, each from position 0: no position tells a key, the order of tokens does."""
    restarting = (0, 1, 2, 0, 1)
    full = spec_of(None, 5, 5, q_positions=restarting, kv_positions=restarting)
    assert query_index(full).tolist() == [[0, 1, 2, 3, 4]]
    decoded = spec_of(None, 1, 5, past=4, q_positions=1, kv_positions=restarting)
    assert query_index(decoded).tolist() == [[4]]
    shared = spec_of(None, 1, 4, q_positions=0, kv_positions=(0, 0, 1, 1))
    assert query_index(shared).tolist() == [[3]]


def test_each_batch_row_has_its_own_places() -> None:
    spec = spec_of(
        None, 2, 3, batch=2, q_positions=((0, 1), (11, 12)), kv_positions=((0, 1, 2), (10, 11, 12))
    )
    assert query_index(spec).tolist() == [[0, 1], [1, 2]]
    # padding beyond the lengths may be anything: here it would look like a restart
    spec = spec_of(None, 1, 4, batch=2, q_positions=((0,), (7,)), kv_positions=((0, 1, 0, 0), (5, 6, 7, 8)))
    assert query_index(spec, kv_lens=np.array([2, 4])).tolist() == [[0], [2]]


def test_an_empty_batch_has_no_places() -> None:
    lens = np.zeros(0, dtype=np.int64)
    spec = spec_of({"type": "chunked", "size": 2}, 2, 3, batch=0, q_positions=(0, 1), kv_positions=(0, 1, 2))
    mask = pattern_mask(spec, lens, lens)
    assert mask is not None
    assert mask.shape == (0, 1, 2, 3)


def test_the_largest_numbers_do_not_overflow() -> None:
    far = 2**53
    spec = spec_of(
        {"type": "dilated", "window": far, "stride": far}, 1, 3, q_positions=far, kv_positions=-far
    )
    mask = pattern_mask(spec)
    assert mask is not None
    assert picture(mask[0, 0]) == ["x.."]  # 2·2^53 is two strides away
    for pattern in (
        {"type": "prefix", "len": far},
        {"type": "longformer", "window": far, "global": []},
        {"type": "bigbird", "window": far, "global": far, "random": far, "seed": 2**63 - 1, "block": far},
    ):
        assert mask_of(pattern, 3, 3).all()
    assert mask_of({"type": "chunked", "size": far}, 3, 3).all()


# -- BigBird -------------------------------------------------------------------------------------------------


def test_philox_as_written_here_is_numpys() -> None:
    words = np.random.Philox(key=[5, 7], counter=[0, 3, 0, 0]).random_raw(8).tolist()
    assert words == philox([5, 7], [1, 3, 0, 0]) + philox([5, 7], [2, 3, 0, 0])


def test_rows_see_window_global_and_random_blocks_and_no_others() -> None:
    """Away from the edges exactly w + g + r blocks, so that the whole is linear in the length."""
    pattern = {"type": "bigbird", "window": 3, "global": 2, "random": 4, "seed": 9, "block": 5}
    blocks = mask_of(pattern, 200, 200)[::5, ::5]
    np.testing.assert_array_equal(
        mask_of(pattern, 200, 200), np.kron(blocks, np.ones((5, 5), dtype=np.bool_))
    )
    assert set(blocks[3:-1].sum(axis=1).tolist()) == {3 + 2 + 4}
    assert blocks[:2].all()
    assert blocks[:, :2].all()


def test_random_blocks_are_reproducible_differ_by_seed_and_are_uniform() -> None:
    pattern = {"type": "bigbird", "window": 1, "global": 0, "random": 2, "block": 1}
    first = mask_of(pattern | {"seed": 3}, 12, 12)
    np.testing.assert_array_equal(first, mask_of(pattern | {"seed": 3}, 12, 12))
    assert (first != mask_of(pattern | {"seed": 4}, 12, 12)).any()
    counts: Counter[int] = Counter()
    for seed in range(600):
        counts.update(np.flatnonzero(mask_of(pattern | {"seed": seed}, 12, 12)[5]).tolist())
    assert counts.pop(5) == 600
    # 1200 draws over 11 blocks: 109 each, standard deviation below 10; six of them
    assert len(counts) == 11
    assert all(abs(count - 1200 / 11) < 60 for count in counts.values()), counts


def test_fewer_blocks_than_are_to_be_drawn() -> None:
    assert mask_of(
        {"type": "bigbird", "window": 1, "global": 0, "random": 9, "seed": 0, "block": 2}, 7, 7
    ).all()


# -- neighborhoods -------------------------------------------------------------------------------------------


def test_a_square_is_moved_inwards_at_the_edges() -> None:
    pattern = {"type": "neighborhood", "width": 5, "kernel_size": 3}
    mask = mask_of(pattern, 20, 20)
    corner, middle = (picture(mask[token].reshape(4, 5)) for token in (0, 13))
    assert corner == ["xxx..", "xxx..", "xxx..", "....."]
    assert middle == [".....", "..xxx", "..xxx", "..xxx"]
    dilated = mask_of(pattern | {"width": 6, "dilation": 2}, 36, 36)
    assert picture(dilated[8].reshape(6, 6)) == ["......", "x.x.x.", "......", "x.x.x.", "......", "x.x.x."]
    assert set(mask.sum(axis=1).tolist()) == set(dilated.sum(axis=1).tolist()) == {9}


# -- pairs ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "n", "visible"),
    [
        ({"type": "prefix", "len": 0}, 64, 64 * 65 // 2),
        ({"type": "prefix", "len": 10}, 64, 64 * 65 // 2 + 10 * 9 // 2),
        ({"type": "chunked", "size": 8}, 60, 7 * 64 + 16),
        ({"type": "document", "ids": [0] * 10 + [1] * 20 + [2] * 30}, 60, 100 + 400 + 900),
        ({"type": "dilated", "window": 3, "stride": 1}, 64, 64 * 7 - 3 * 4),  # a band: n(2w+1) − w(w+1)
        ({"type": "longformer", "window": 6, "global": []}, 64, 64 * 7 - 3 * 4),
        ({"type": "longformer", "window": 0, "global": [0, 5]}, 64, 64 + 2 * 2 * 63 - 2),
    ],
)
def test_as_many_pairs_are_seen_as_can_be_counted(pattern: dict[str, Any], n: int, visible: int) -> None:
    assert np.count_nonzero(mask_of(pattern, n, n)) == visible


# -- mistakes ------------------------------------------------------------------------------------------------

BIGBIRD = {"type": "bigbird", "window": 3, "global": 1, "random": 1, "seed": 0, "block": 2}
BLOCK = {"type": "block", "size": 2, "layout": [[1, 0, 0], [0, 1, 0], [0, 0, 1]]}


@pytest.mark.parametrize(
    ("pattern", "pointer", "status", "words"),
    [
        ({"type": "prefix", "len": -1}, "/len", 422, ["len of prefix", "between 0 and", "not -1", "causal"]),
        ({"type": "prefix", "len": 10**30}, "/len", 422, ["9,007,199,254,740,992", "bits"]),
        ({"type": "chunked", "size": 0}, "/size", 422, ["between 1 and", "not 0", "tokens of a chunk"]),
        ({"type": "dilated", "window": -1, "stride": 1}, "/window", 422, ["not -1"]),
        ({"type": "dilated", "window": 1, "stride": 0}, "/stride", 422, ["not 0", "no gaps"]),
        ({"type": "longformer", "window": -2, "global": []}, "/window", 422, ["not -2"]),
        ({"type": "longformer", "window": 2, "global": [0, 5]}, "/global/1", 422, ["token 5 of 5", "from 0"]),
        ({"type": "longformer", "window": 2, "global": [-1]}, "/global/0", 422, ["token -1 of 5"]),
        ({"type": "longformer", "window": 2, "global": [1.0]}, "/global/0", 400, ["integer index", "1.0"]),
        ({"type": "longformer", "window": 2, "global": [[1]]}, "/global/0", 400, ["integer index", "a list of 1"]),
        (BIGBIRD | {"window": 0}, "/window", 422, ["between 1", "own one"]),
        (BIGBIRD | {"global": -1}, "/global", 422, ["0 for none"]),
        (BIGBIRD | {"random": -1}, "/random", 422, ["0 for none"]),
        (BIGBIRD | {"seed": 2**63}, "/seed", 422, ["9,223,372,036,854,775,807"]),
        (BIGBIRD | {"block": 0}, "/block", 422, ["tokens of a block"]),
        ({"type": "document", "ids": [1, 2, 3]}, "/ids", 422, ["3 entries for 5 keys", "one document id"]),
        ({"type": "document", "ids": []}, "/ids", 422, ["0 entries for 5 keys"]),
        ({"type": "document", "ids": [[1] * 5]}, "/ids", 422, ["1 lists but the batch is 2"]),
        ({"type": "document", "ids": [[1] * 5, 7]}, "/ids/1", 400, ["here is 7", "send a list for each"]),
        ({"type": "document", "ids": [[1] * 5, [1] * 4]}, "/ids/1", 422, ["4 entries"]),
        ({"type": "document", "ids": [[1] * 5, [1, 1, 1, 1, 1.5]]}, "/ids/1/4", 400, ["1.5"]),
        ({"type": "document", "ids": [1, 2, 3, [4], 5]}, "/ids/3", 400, ["a list of 1"]),
        ({"type": "document", "ids": [1, 2, 3, 4, 10**30]}, "/ids/4", 422, ["2^53"]),
        (BLOCK | {"size": 0}, "/size", 422, ["not 0"]),
        (BLOCK | {"layout": [1, 0, 0]}, "/layout/0", 400, ["list of rows", "not 1"]),
        (BLOCK | {"layout": [[1, 0, 0], [1, 0], [1, 0, 0]]}, "/layout/1", 422, ["2 entries", "5 keys", "3 blocks"]),
        (BLOCK | {"layout": [[1, 0, 0], [1, 0, 2], [1, 0, 0]]}, "/layout/1/2", 422, ["never 2"]),
        (BLOCK | {"layout": [[1, 0, 0], [1, 0, 0.5], [1, 0, 0]]}, "/layout/1/2", 422, ["never 0.5"]),
        (BLOCK | {"layout": [[1, 0, 0], [1, 0, [1]], [1, 0, 0]]}, "/layout/1/2", 422, ["a list of 1"]),
        ({"type": "neighborhood", "width": 2, "kernel_size": 1}, "/width", 422, ["5 keys", "rows of 2"]),
        ({"type": "neighborhood", "width": 1, "kernel_size": 2}, "/kernel_size", 422, ["odd", "1 or 3, not 2"]),
        ({"type": "neighborhood", "width": 5, "kernel_size": 3}, "/kernel_size", 422, ["is 3", "1 rows of 5; at most 1"]),
        ({"type": "neighborhood", "width": 0, "kernel_size": 1}, "/width", 422, ["pixels of a row"]),
        ({"type": "neighborhood", "width": 1, "kernel_size": 1, "dilation": 0}, "/dilation", 422, ["no gaps"]),
        (BLOCK | {"layout": [[1, 0, 0]]}, "/layout", 422, ["1 rows", "3 (the blocks of 5 keys", "or 2 (the blocks of 4 queries)"]),
    ],
)  # fmt: skip
def test_a_mistake_is_located_and_explained(
    pattern: dict[str, Any], pointer: str, status: int, words: list[str]
) -> None:
    (found,) = pattern_problems(spec_of(pattern, 4, 5, batch=2))
    assert found.pointer == "/attention/pattern" + pointer
    assert found.status == status
    assert all(word in found.detail for word in words), found.detail


FIELDS = tuple(dict.fromkeys(name for fields in PATTERNS.values() for name in fields))


def test_wrong_types_are_left_to_the_reader() -> None:
    """The parser has already said so; the checker must not fall over them."""
    for kind in (*PATTERNS, "stripes"):
        for value in ("x", True, None, {}, 1.5, [[]], [], 3):
            pattern_problems(spec_of({"type": kind} | dict.fromkeys(FIELDS, value), 3, 3))
            pattern_problems(
                spec_of({"type": kind} | dict.fromkeys(FIELDS, 3) | {"layout": value, "ids": value}, 3, 3)
            )
        assert pattern_problems(spec_of({"type": kind}, 3, 3)) == []


VALUES = st.one_of(st.integers(-1, 7), st.sampled_from([2**53, 2**63 - 1, 10**30]))
LISTS = st.lists(st.integers(-1, 6) | st.lists(st.integers(0, 2), max_size=4), max_size=6)


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(list(PATTERNS)),
    SIZES,
    st.fixed_dictionaries(
        dict.fromkeys((name for name in FIELDS if name not in ("ids", "layout", "global")), VALUES)
    ),
    LISTS,
    VALUES,
    st.sampled_from([None, 0, -(2**53), 2**53]),
)
def test_what_is_accepted_can_be_computed(
    kind: str, size: tuple[int, int], numbers: dict[str, int], items: list[Any], count: int, first: int | None
) -> None:
    pattern = {
        "type": kind,
        **numbers,
        "ids": items,
        "layout": items,
        "global": count if kind == "bigbird" else items,
    }
    spec = spec_of(pattern, *size, q_positions=first)
    if pattern_problems(spec):
        return
    mask = pattern_mask(spec)
    assert mask is not None
    assert mask.shape == (1, 1, *size)
