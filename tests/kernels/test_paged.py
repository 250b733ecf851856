"""Caches in pages, through the interpreter: the same answer as in a row, and every slot left alone but one's
own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import scaled_dot_product_attention

from kernels.engines.reference import reference
from kernels.flash.device import Memory
from kernels.flash.interpreter import counted_traffic
from kernels.operands import gather_pages, operands
from kernels.paged import launch
from kernels.paged.append import append_rows
from kernels.paged.launch import append_launch, page_rows
from kernels.paged.tables import Fresh, hand_out, make_cache, put_in_pages
from kernels.rope import rotate
from kernels.spec import SpecError
from tests.kernels.cases import Case, cases, compute, make
from tests.kernels.error_bounds import error_bounds

RESULTS = ("out", "lse", "present_key", "present_value")
Arrays = dict[str, np.ndarray]


@pytest.fixture(autouse=True)
def poisoned_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the kernels are given to write to holds NaN."""
    monkeypatch.setattr(torch, "empty", lambda shape, **how: torch.full(shape, torch.nan, **how))


def check(spec: Any, arrays: Arrays) -> Arrays:
    """Every result within what rounding alone can do."""
    got, expected, bounds = (
        compute(spec, arrays),
        reference(spec, arrays, RESULTS),
        error_bounds(spec, arrays),
    )
    for name in {"out", *spec.returns}:
        assert got[name].shape == expected[name].shape
        error = np.zeros(got[name].shape)
        np.subtract(got[name], expected[name], out=error, where=got[name] != expected[name])
        error = np.nan_to_num(np.abs(error), nan=np.inf)
        assert error.max(initial=0.0) <= bounds[name], (name, error.max(), bounds[name])
    return got


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng().standard_normal(shape).astype(np.float32)


def sent(array: np.ndarray) -> Any:
    return array.tolist()


# -- the same as in a row ------------------------------------------------------------------------------------


@settings(max_examples=80, deadline=None)
@given(
    cases(
        "paged", q_lens=st.sampled_from([1, 1, 3, 16, 17, 20]), kv_lens=st.sampled_from([0, 1, 17, 40, 70])
    ),
    st.sampled_from([1, 2, 3, 7, 16, 100]),
    st.sampled_from([None, 1, 2, 5, 1024]),
    st.sampled_from([None, 16]),
)
def test_any_spec_is_the_same_for_every_page_size_and_number_of_splits(
    case: Case, page_size: int, num_splits: int | None, block_n: int | None
) -> None:
    """Pages that were sent, pages of a contiguous cache, pages with a past and tokens appended to it."""
    options = {
        "page_size": None if "block_table" in case.uploads else page_size,
        "num_splits": None if case.uploads["q"].shape[-2] > 16 else num_splits,
        "block_n": block_n,
    }
    check(*case.on("paged", options=options, **{"return": list(RESULTS)}))


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("q_len", [2, 40])
def test_pages_change_no_bit(q_len: int, dtype: str) -> None:
    """Same tiles, same splits, same order of sums: only addresses differ."""
    fields = {"dtype": dtype, "attention": {"is_causal": True}, "seed": 4, "return": ["out", "lse"]}
    splits = {} if q_len > 16 else {"num_splits": 3}
    engine = "flash" if q_len > 16 else "decode"
    in_a_row = compute(*make(engine, (2, 4, 2, q_len, 77, 24), options={"block_n": 16, **splits}, **fields))
    for size in (1, 5, 16, 1000):
        options = {"block_n": 16, "page_size": size, **splits}
        in_pages = compute(*make("paged", (2, 4, 2, q_len, 77, 24), options=options, **fields))
        for name in ("out", "lse"):
            np.testing.assert_array_equal(in_pages[name], in_a_row[name])


@pytest.mark.parametrize("num_splits", [1, 2, 3, 4, 5, 8])
@pytest.mark.parametrize("page_size", [1, 3, 16, 24])
def test_every_number_of_splits_with_every_page_size(page_size: int, num_splits: int) -> None:
    """Trap: splits that begin within a page, end within one, or have none at all."""
    options = {"page_size": page_size, "num_splits": num_splits, "block_n": 16}
    inputs = {"kv_lens": [70, 1, 0]}
    got = check(
        *make("paged", (3, 2, 1, 1, 70, 8), options=options, inputs=inputs, **{"return": ["out", "lse"]})
    )
    assert np.isneginf(got["lse"][2]).all()


@pytest.mark.parametrize("q_len", [3, 30])
def test_torch_says_the_same_of_pages_that_were_sent(q_len: int) -> None:
    k, v = normal(2, 2, 24, 8), normal(2, 2, 24, 6)
    table = np.array([[5, 0, 3], [1, 6, 2]])
    pages = {name: np.full((7, 8, 2, x.shape[3]), np.nan, np.float32) for name, x in (("k", k), ("v", v))}
    for b, block in np.ndindex(2, 3):
        for name, x in (("k", k), ("v", v)):
            pages[name][table[b, block]] = x[b, :, 8 * block : 8 * (block + 1)].transpose(1, 0, 2)
    pages["k"][4], pages["v"][4] = 0.0, 0.0  # a page that no row names
    inputs = {name: sent(page) for name, page in pages.items()} | {"block_table": sent(table)}
    spec, arrays = make("paged", (2, 4, 2, q_len, 24, 8), inputs=inputs)
    expected = scaled_dot_product_attention(
        *(torch.from_numpy(x) for x in (arrays["q"], k, v)), enable_gqa=True
    )
    np.testing.assert_allclose(compute(spec, arrays)["out"], expected.numpy(), rtol=1e-4, atol=1e-5)


def test_rows_that_share_a_prefix_name_the_same_pages() -> None:
    """Three sequences of 8 + 3, 8 + 1 and 8 tokens over one prefix of two pages, with last pages of their
    own."""
    k, v = normal(5, 4, 1, 8), normal(5, 4, 1, 8)
    table = [[3, 0, 1], [3, 0, 4], [3, 0, -1]]
    k[1, 3:], v[1, 3:], k[4, 1:], v[4, 1:], k[2], v[2] = [np.nan] * 6  # unwritten tails, a page of nobody
    inputs = {"kv_lens": [11, 9, 8], "block_table": table}
    uploads = {"q": normal(3, 2, 1, 8), "k": k, "v": v}
    inputs |= {name: {"upload": "test", "name": name} for name in uploads}
    case = Case({"inputs": inputs, "attention": {"is_causal": True}}, uploads)
    for options in ({"num_splits": 1}, {"num_splits": 2, "block_n": 16}):
        got = check(*case.on("paged", options=options, **{"return": list(RESULTS)}))
        np.testing.assert_array_equal(got["present_key"][0, :, :8], got["present_key"][1, :, :8])


@pytest.mark.parametrize("q_len", [1, 5, 20])
def test_a_past_and_new_tokens_are_what_they_are_together(q_len: int) -> None:
    """Cached or not: keys 0 … 33 in a past and the rest appended equals all of them at once."""
    fields = {"attention": {"is_causal": True}, "return": list(RESULTS)}
    spec, arrays = make("paged", (2, 4, 2, q_len, q_len + 34, 8), **fields)
    at_once = check(spec, arrays)
    inputs = {
        "k": sent(arrays["k"][:, :, 34:]), "v": sent(arrays["v"][:, :, 34:]),
        "past_key": sent(arrays["k"][:, :, :34]), "past_value": sent(arrays["v"][:, :, :34]),
    }  # fmt: skip
    for size in (1, 4, 16, 34, 100):
        cached = check(
            *make("paged", (2, 4, 2, q_len, 0, 8), inputs=inputs, options={"page_size": size}, **fields)
        )
        for name in RESULTS:
            np.testing.assert_array_equal(cached[name], at_once[name])


# -- how sequences get their pages ---------------------------------------------------------------------------


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 40), min_size=1, max_size=5), st.integers(1, 50))
def test_each_block_gets_a_page_of_its_own_and_the_pages_hold_the_rows(lens: list[int], size: int) -> None:
    longest = max(lens)
    table = hand_out(np.array(lens), -(-longest // size), size)
    counts = [-(-n // size) for n in lens]
    assert sorted(table[table >= 0].tolist()) == list(range(sum(counts)))
    assert [(row >= 0).sum() for row in table] == counts
    assert all((row[:count] >= 0).all() for row, count in zip(table, counts, strict=True))
    array = normal(len(lens), 2, longest, 3)
    pages = put_in_pages(array, table, np.array(lens), size)
    back = gather_pages(pages, table.astype(np.int64))
    for b, n in enumerate(lens):
        np.testing.assert_array_equal(back[b, :, :n], array[b, :, :n])
    assert np.isfinite(pages).sum() == 6 * sum(lens)  # all else is NaN


def test_pages_are_handed_out_in_no_order_of_memory() -> None:
    (table,) = hand_out(np.array([64]), 64, 1)
    assert (np.diff(table) != 1).sum() > 48
    assert sorted(table) == list(range(64))


def test_a_page_is_no_larger_than_the_longest_sequence() -> None:
    spec, arrays = make("paged", (2, 1, 1, 1, 10, 4), options={"page_size": 65_536})
    cache = make_cache(spec, arrays, operands(spec, arrays, dtype=np.float32))
    assert cache.k.shape == (2, 10, 1, 4)


def test_pages_that_were_sent_are_read_where_they_lie() -> None:
    """No copy in a row is made of them: they may be named so often that it would not fit."""
    inputs = {"k": sent(normal(3, 4, 1, 8)), "v": sent(normal(3, 4, 1, 8)), "block_table": [[2, 0, 1, 2]]}
    spec, arrays = make("paged", (1, 2, 1, 1, 0, 8), inputs=inputs)
    problem = launch.unpaged_operands(spec, arrays, rotate)
    cache = make_cache(spec, arrays, problem)
    assert cache.k is arrays["k"]
    assert cache.v is arrays["v"]
    assert problem.k.shape == (1, 1, 16, 8)
    assert problem.k.strides == (0, 0, 0, 0)
    check(spec, arrays)


# -- appending -----------------------------------------------------------------------------------------------

BORDER, SENTINEL = 64, 12345.0


def fenced(pages: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """(memory, pages in the middle of it): borders on both sides that nobody may touch."""
    memory = torch.full((pages.size + 2 * BORDER,), SENTINEL)
    inner = memory[BORDER : BORDER + pages.size]
    inner.copy_(torch.from_numpy(pages).flatten())
    return memory, inner


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 7),
    st.lists(st.tuples(st.integers(0, 12), st.integers(0, 6)), min_size=1, max_size=3),
    st.integers(1, 2),
    st.sampled_from([(1, 1), (3, 5), (16, 8), (8, 0)]),
    st.sampled_from([None, 2]),
)
def test_new_rows_go_to_their_slots_and_nothing_else_is_written(
    size: int, sequences: list[tuple[int, int]], heads: int, dims: tuple[int, int], block: int | None
) -> None:
    """Row b has first tokens and gets count more; against the plain loop in numpy, sentinels all around."""
    batch, new = len(sequences), 6
    first, count = (np.array(x, np.int32) for x in zip(*sequences, strict=True))
    blocks = max(-(-(first + count) // size))
    table = hand_out(first + count, blocks, size)
    pages = [np.full((batch * blocks + 1, size, heads, dim), SENTINEL, np.float32) for dim in dims]
    fresh = Fresh(normal(batch, heads, new, dims[0]), normal(batch, heads, new, dims[1]), first, count)
    for b, n in enumerate(count):
        fresh.k[b, :, n:], fresh.v[b, :, n:] = np.nan, np.nan  # padding
    expected = [page.copy() for page in pages]
    for b in range(batch):
        for i in range(count[b]):
            page, slot = table[b, (first[b] + i) // size], (first[b] + i) % size
            for target, source in zip(expected, (fresh.k, fresh.v), strict=True):
                target[page, slot] = source[b, :, i]

    (k_memory, k), (v_memory, v) = (fenced(page) for page in pages)
    place = Memory("cpu")
    keys, values = (
        page_rows(inner, page.shape, place(table), table.shape)
        for inner, page in zip((k, v), pages, strict=True)
    )
    launched = append_launch(fresh, keys, values, place, "float32").arguments
    launched["BLOCK_T"] = block or launched["BLOCK_T"]
    for _ in range(2):  # once more changes nothing
        append_rows[(batch * heads, -(-new // launched["BLOCK_T"]))](**launched)
        for memory, inner, right in ((k_memory, k, expected[0]), (v_memory, v, expected[1])):
            np.testing.assert_array_equal(inner.numpy().reshape(right.shape), right)
            assert (memory[:BORDER] == SENTINEL).all()
            assert (memory[BORDER + right.size :] == SENTINEL).all()


def test_appended_keys_are_rotated_to_their_positions() -> None:
    """A cache keeps what attention multiplies: the past as it came, new keys turned."""
    rope = {"style": "half", "theta": 100.0}
    inputs = {
        "past_key": {"seed": 3, "shape": [1, 1, 9, 8]},
        "past_value": {"seed": 3, "shape": [1, 1, 9, 8]},
    }
    spec, arrays = make("paged", (1, 1, 1, 2, 2, 8), inputs=inputs, options={"page_size": 4},
                        attention={"rope": rope, "is_causal": True}, **{"return": list(RESULTS)})  # fmt: skip
    got = check(spec, arrays)
    np.testing.assert_array_equal(got["present_key"][:, :, :9], arrays["past_key"])
    angle = np.arange(9, 11)[:, None] * 100.0 ** (-np.arange(4) / 4)
    x, y = arrays["k"][0, 0, :, :4], arrays["k"][0, 0, :, 4:]
    turned = np.concatenate([x * np.cos(angle) - y * np.sin(angle), x * np.sin(angle) + y * np.cos(angle)], 1)
    np.testing.assert_allclose(got["present_key"][0, 0, 9:], turned, atol=1e-6)


def test_a_shared_page_of_rotated_keys_is_another_key_at_each_position() -> None:
    """One page named as the first block of a row and as the second of another."""
    inputs = {"k": sent(normal(2, 4, 1, 8)), "v": sent(normal(2, 4, 1, 8)), "block_table": [[0, 1], [1, 0]]}
    check(*make("paged", (2, 2, 1, 1, 0, 8), inputs=inputs, attention={"rope": {"style": "interleaved"}},
                **{"return": list(RESULTS)}))  # fmt: skip


# -- what is read --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("splits", [1, 4])
@pytest.mark.parametrize("page_size", [1, 8])
def test_each_key_is_read_once_for_its_group_and_each_row_asks_the_table(page_size: int, splits: int) -> None:
    batch, heads, kv_heads, n, m, d, e = 2, 6, 2, 2, 64, 16, 8
    spec, arrays = make("paged", (batch, heads, kv_heads, n, m, d), v_dim=e,
                        options={"page_size": page_size, "num_splits": splits, "block_n": 16})  # fmt: skip
    prepared = launch.prepare(spec, arrays, "cpu")
    with counted_traffic() as traffic:
        prepared.compute()
    count = batch * heads * n
    states = splits * count * (e + 2)
    keys = batch * kv_heads * m
    assert traffic.bytes_read == 4 * (keys * (d + e) + 2 * keys + splits * count * d + states)
    assert traffic.bytes_written == 4 * (states + count * (e + 1))


def test_appending_writes_the_new_rows_alone() -> None:
    past = {
        "past_key": {"seed": 1, "shape": [2, 2, 50, 16]},
        "past_value": {"seed": 1, "shape": [2, 2, 50, 16]},
    }
    spec, arrays = make("paged", (2, 4, 2, 3, 3, 16), inputs=past, options={"page_size": 8, "num_splits": 1})
    prepared = launch.prepare(spec, arrays, "cpu")
    with counted_traffic() as traffic:
        prepared.compute()
    count = 2 * 4 * 3
    assert traffic.bytes_written == 4 * (2 * 2 * 3 * 32 + count * (16 + 2) + count * (16 + 1))


# -- the contract --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("q_len", "fields", "says"),
    [
        (
            17,
            {"options": {"num_splits": 2}},
            "num_splits is for up to 16 queries and q_len is 17; leave it out",
        ),
        (1, {"return": ["weights"]}, "the result weights; reference, eager or flash can"),
        (1, {"options": {"block_m": 16}}, "the option block_m"),
        (1, {"options": {"page_size": 0}}, "page_size"),
        (1, {"options": {"page_size": 65_537}}, "65536"),
    ],
)
def test_what_it_cannot_do_is_refused_by_name(q_len: int, fields: dict[str, Any], says: str) -> None:
    with pytest.raises(SpecError) as refused:
        make("paged", (1, 2, 1, q_len, 40, 8), **fields)
    assert any(says in problem.detail for problem in refused.value.problems), refused.value.problems


def test_pages_of_another_size_than_asked_for_are_refused() -> None:
    inputs = {"k": sent(normal(1, 4, 1, 8)), "v": sent(normal(1, 4, 1, 8)), "block_table": [[0]]}
    with pytest.raises(SpecError, match="page_size is 8 but the pages of k hold 4"):
        make("paged", (1, 1, 1, 1, 0, 8), inputs=inputs, options={"page_size": 8})
