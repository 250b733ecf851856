"""Tiles without a visible pair are not read: predicted from the mask, and counted in the kernel."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.flash.interpreter import counted_traffic
from kernels.sparse.density import visible_pairs
from kernels.sparse.masks import mask_of, visible
from kernels.sparse.tiles import Tiles, count_tiles, kernel_bytes, pairs_by_tile
from tests.kernels.cases import compute, make

PATTERNS: dict[str, dict[str, Any] | None] = {
    "chunked": {"type": "chunked", "size": 24},
    "document": {"type": "document", "ids": [0] * 50 + [1] * 10 + [2] * 40},
    "dilated": {"type": "dilated", "window": 2, "stride": 3},
    "longformer": {"type": "longformer", "window": 8, "global": [0]},
    "bigbird": {"type": "bigbird", "window": 1, "global": 1, "random": 1, "seed": 5, "block": 16},
    "block": {"type": "block", "size": 50, "layout": [[1, 0], [0, 1]]},
    "neighborhood": {"type": "neighborhood", "width": 10, "kernel_size": 3},
    "prefix": {"type": "prefix", "len": 20},
    "none": None,
}


@settings(max_examples=100, deadline=None)
@given(
    st.integers(0, 40), st.integers(0, 40), st.sampled_from([1, 3, 16]), st.sampled_from([2, 16, 64]),
    st.sampled_from([0.0, 0.02, 0.5, 1.0]),
)  # fmt: skip
def test_tiles_are_those_that_one_finds_by_looking(
    n: int, m: int, block_m: int, block_n: int, share: float
) -> None:
    mask = np.random.default_rng(n + 41 * m).random((n, m)) < share
    starts = [(i, j) for i in range(0, n, block_m) for j in range(0, m, block_n)]
    tiles = [mask[i : i + block_m, j : j + block_n] for i, j in starts]
    wanted = Tiles(len(tiles), sum(tile.any() for tile in tiles), sum(tile.all() for tile in tiles))
    assert count_tiles(mask, block_m, block_n) == wanted
    found = pairs_by_tile(mask, block_m, block_n)
    assert found.shape == (-(-n // block_m), -(-m // block_n))
    assert found.ravel().tolist() == [tile.sum() for tile in tiles]


@pytest.mark.parametrize("tiles", [(16, 16), (32, 16), (16, 64)])
@pytest.mark.parametrize(
    "sides", [{}, {"is_causal": True}, {"window": [20, 5]}, {"window": [9, None], "is_causal": True}]
)
@pytest.mark.parametrize("name", PATTERNS)
def test_the_kernel_reads_what_the_mask_predicts(
    name: str, sides: dict[str, Any], tiles: tuple[int, int]
) -> None:
    n, d, e, heads = 100, 16, 8, 2
    block_m, block_n = tiles
    spec, arrays = make(
        "flash", (1, heads, 1, n, n, d), v_dim=e, attention={"pattern": PATTERNS[name], **sides},
        options={"block_m": block_m, "block_n": block_n},
    )  # fmt: skip
    with counted_traffic() as traffic:
        out = compute(spec, arrays)["out"]
    np.testing.assert_allclose(out, compute(replace(spec, engine="reference"), arrays)["out"], atol=1e-5)
    widths = {"head_dim": d, "v_head_dim": e, "item_bytes": 4}
    alone = replace(spec, attention=replace(spec.attention, pattern=None))
    found = kernel_bytes(
        (n, n), *tiles, **widths,
        sides=visible(alone)[0, 0] if sides else None,
        pattern=mask_of(PATTERNS[name], n) if PATTERNS[name] else None,
    )  # fmt: skip
    assert traffic.bytes_read == heads * found.bytes
    needed = count_tiles(visible(spec)[0, 0], block_m, block_n)
    assert needed.visited <= found.visited <= needed.all


def test_bytes_fall_with_the_density_where_what_is_forbidden_comes_in_tiles() -> None:
    """At 1,024 tokens in tiles of 64: blocks save what they forbid, narrow gaps save nothing."""
    widths = {"head_dim": 64, "v_head_dim": 64, "item_bytes": 2}

    def read(mask: np.ndarray) -> int:
        return kernel_bytes(mask.shape, 64, 64, pattern=mask, **widths).bytes

    def share(pattern: dict[str, Any]) -> float:
        return read(mask_of(pattern, 1024)) / read(np.ones((1024, 1024), bool))

    def density(pattern: dict[str, Any]) -> float:
        return visible_pairs(pattern, 1024) / 1024**2

    queries = 0.06  # which are read once in any case
    for pattern in (
        {"type": "chunked", "size": 64},
        {"type": "bigbird", "window": 1, "global": 0, "random": 2, "seed": 1, "block": 64},
    ):
        assert density(pattern) <= share(pattern) <= density(pattern) + queries
    gaps = {"type": "dilated", "window": 20, "stride": 50}
    assert density(gaps) < 0.03
    assert share(gaps) > 0.95
    scattered = {"type": "bigbird", "window": 1, "global": 0, "random": 30, "seed": 1, "block": 1}
    assert density(scattered) < 0.04
    assert share(scattered) == 1
