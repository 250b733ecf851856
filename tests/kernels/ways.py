"""Every way in which this project computes attention: an engine, its options, and how it is given its keys.

A test states a problem once, as plain q, k and v, and asks all ways that can express it. An engine that is
not in the registry yet takes part from the day it is; a new engine is one more line in WAYS.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st

from kernels.limits import MAX_DECODE_LEN
from kernels.registry import ENGINES
from kernels.spec import RunSpec
from kernels.spec.families import MLA, MLA_INPUTS
from kernels.spec.results import GRADIENTS, MATRICES
from tests.kernels.cases import Arrays, Case, canonical, compute


@dataclass(frozen=True)
class Problem:
    """q [b, h, n, d], k [b, h_kv, m, d], v [b, h_kv, m, e], and what else a request may say. The first
    ``past`` keys and values come from a cache."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    attention: dict[str, Any] = field(default_factory=dict)
    inputs: dict[str, Any] = field(default_factory=dict)  # attn_mask, q_lens, kv_lens, dout
    dtype: str = "float32"
    past: int = 0

    @property
    def scale(self) -> float:
        """As asked for, else 1/√d."""
        given = self.attention.get("scale")
        return float(self.q.shape[3] ** -0.5 if given is None else given)


@dataclass(frozen=True)
class Way:
    """``page``: keys and values come in shuffled pages of so many tokens, as ``block_table`` names them.
    ``latent``: as the inputs of MLA."""

    name: str
    engine: str
    options: dict[str, Any] = field(default_factory=dict)
    page: int | None = None
    latent: bool = False

    @property
    def is_triton(self) -> bool:
        return ENGINES[self.engine].is_triton

    @property
    def returns(self) -> frozenset[str]:
        """What it can be asked for."""
        returns = ENGINES[self.engine].returns
        return returns - set(GRADIENTS) if self.latent or self.page else returns

    def can(self, features: Sequence[str], *, dtype: str = "float32", q_len: int = 1) -> bool:
        """Whether the registry has an engine that declares all of this."""
        engine = ENGINES.get(self.engine)
        if engine is None:
            return False
        needed = {*features, *(["paged", "ragged"] if self.page else []), *(["mla"] if self.latent else [])}
        if self.latent:  # latents hold the keys of all heads, and so are the past
            needed -= {"gqa", "v_head_dim", "past"}
            if needed & {"rope", "gradients"}:
                return False
        if self.page:  # pages hold the past, and a last page that is not full is one of a ragged batch
            needed -= {"past"}
            if needed & {"positions", "pattern", "gradients"}:
                return False
        return (
            needed <= engine.features
            and self.options.keys() <= engine.options.keys()
            and dtype in engine.dtypes
            and (engine.max_q_len is None or q_len <= engine.max_q_len)
            and (q_len <= MAX_DECODE_LEN or "num_splits" not in self.options)
        )

    def request(self, problem: Problem, returns: Sequence[str] = ("out",)) -> tuple[RunSpec, Arrays]:
        """(spec, canonical arrays)."""
        up, attention = dict(problem.inputs), dict(problem.attention)
        if self.latent:
            up |= as_latents(problem)
            attention["scale"] = problem.scale
        elif self.page:
            up |= {"q": problem.q, **as_pages(problem, self.page)}
        else:
            keys, values = (np.split(x, [problem.past], 2) for x in (problem.k, problem.v))
            up |= {"q": problem.q, "k": keys[1], "v": values[1]}
            if problem.past:
                up |= {"past_key": keys[0], "past_value": values[0]}
        lengths = {name: np.asarray(up.pop(name)).tolist() for name in ("q_lens", "kv_lens") if name in up}
        uploads = {name: np.asarray(array) for name, array in up.items()}
        body = {
            "engine": self.engine,
            "dtype": problem.dtype,
            "inputs": lengths | {name: {"upload": "test", "name": name} for name in uploads},
            "attention": attention,
            "return": list(returns),
            "options": self.options,
        }
        return canonical(body, uploads)

    def compute(self, problem: Problem, returns: Sequence[str] = ("out",)) -> Arrays:
        """Those of ``returns`` that this way has."""
        asked = [name for name in returns if name in self.returns]
        results = compute(*self.request(problem, asked or ["out"]))
        m = problem.k.shape[2]  # the rest of a last page is not the problem's
        return {name: results[name][..., :m] if name in MATRICES else results[name] for name in asked}


TILES = {"block_m": 16, "block_n": 16}  # the smallest: most tiles, most seams
WAYS = (
    Way("reference-pages", "reference", page=3),
    Way("reference", "reference"),
    Way("eager", "eager"),
    Way("sdpa", "sdpa"),
    Way("flash-one-tile", "flash"),
    Way("flash", "flash", TILES),
    Way("decode", "decode"),
    Way("decode-3-splits", "decode", {"num_splits": 3, "block_n": 16}),
    Way("paged-of-its-own", "paged", {"page_size": 5}),
    Way("paged-1", "paged", page=1),
    Way("paged-16", "paged", {"num_splits": 2, "block_n": 16}, page=16),
    Way("paged-3", "paged", {"num_splits": 3, "block_n": 16}, page=3),
    Way("mla-expanded", "mla", {"form": "expanded", **TILES}, latent=True),
    Way("mla-absorbed", "mla", {"form": "absorbed", **TILES}, latent=True),
)
REFERENCE = next(way for way in WAYS if way.name == "reference")


def ways(
    *features: str,
    dtype: str = "float32",
    q_len: int = 1,
    returns: Sequence[str] = (),
    triton: bool = False,
    past: bool = False,
    one_each: bool = False,
) -> list[Way]:
    """Those that can do all of it; with ``returns`` only such as return these, with ``past`` those that are
    given it apart from the fresh keys. ``one_each``: of several that differ in how they are cut up the last,
    which has the most seams."""
    found = [
        way
        for way in WAYS
        if way.can(features, dtype=dtype, q_len=q_len)
        and set(returns) <= way.returns
        and (way.is_triton or not triton)
        and not (past and (way.page or way.latent))
    ]
    return list({(way.engine, way.options.get("form")): way for way in found}.values()) if one_each else found


def quantised_ways(
    kv_dtype: str, kv_scale: str, *features: str, q_len: int = 1, triton: bool = False
) -> list[Way]:
    """Those with a cache of codes that is made from plain keys and values."""
    options = {"kv_dtype": kv_dtype, "kv_scale": kv_scale}
    found = [
        replace(way, options=way.options | options) for way in WAYS if way.page is None and not way.latent
    ]
    able = [way for way in found if way.can([*features, "kv_dtype"], q_len=q_len)]
    return [way for way in able if way.is_triton or not triton]


def on_ways(*features: str, **wanted: Any) -> Callable[[Any], Any]:
    """Run a test on each of ``ways``."""
    return pytest.mark.parametrize("way", ways(*features, **wanted), ids=lambda way: way.name)


def as_pages(problem: Problem, size: int) -> Arrays:
    """k and v as pages in random order, the table that finds them, and the lengths. What no token lies in is
    NaN: a page that nobody names, and the rest of every last page."""
    batch, kv_heads, m, _ = problem.k.shape
    blocks = -(-m // size)
    order = np.random.default_rng(size).permutation(batch * blocks + 1)[: batch * blocks]
    table = order.reshape(batch, blocks)
    made: Arrays = {"block_table": table}
    for name, given in (("k", problem.k), ("v", problem.v)):
        width = given.shape[3]
        pages = np.full((batch * blocks + 1, size, kv_heads, width), np.nan, np.float32)
        padded = np.full((batch, blocks * size, kv_heads, width), np.nan, np.float32)
        padded[:, :m] = given.transpose(0, 2, 1, 3)
        pages[table] = padded.reshape(batch, blocks, size, kv_heads, width)
        made[name] = pages
    if "kv_lens" not in problem.inputs:
        made["kv_lens"] = np.full(batch, m)
    mask = problem.inputs.get("attn_mask")
    if mask is not None and np.ndim(mask) and mask.shape[-1] == m != 1:
        more = [(0, 0)] * (mask.ndim - 1) + [(0, blocks * size - m)]
        made["attn_mask"] = np.pad(mask, more, constant_values=True if mask.dtype == bool else 0.0)
    return made


def as_latents(problem: Problem) -> Arrays:
    """MLA inputs that mean the same: the latent of a token is all of its keys and values one after another,
    and w_uk and w_uv pick those of one head. Products with 0 and 1 lose nothing."""
    (batch, heads, n, d), (_, kv_heads, m, e) = problem.q.shape, problem.v.shape
    width = d + e
    both = np.concatenate([problem.k, problem.v], 3).transpose(0, 2, 1, 3)
    w_uk, w_uv = np.zeros((heads, kv_heads * width, d)), np.zeros((heads, kv_heads * width, e))
    for head in range(heads):
        first = head // (heads // kv_heads) * width
        w_uk[head, first : first + d] = np.eye(d)
        w_uv[head, first + d : first + width] = np.eye(e)
    return {
        "q_nope": problem.q,
        "q_rope": np.zeros((batch, heads, n, 2)),
        "c_kv": both.reshape(batch, m, kv_heads * width),
        "k_rope": np.zeros((batch, m, 2)),
        "w_uk": w_uk,
        "w_uv": w_uv,
    }


# -- specs that nobody thought of ----------------------------------------------------------------------------

LENGTHS = st.sampled_from([0, 1, 2, 5, 16, 17, 33])  # around a tile, and around two
KEY_LENGTHS = st.sampled_from([0, 1, 5, 16, 17, 33, 70])


@st.composite
def latent_cases(draw: st.DrawFn) -> Case:
    """Like ``cases.cases``, of the inputs of MLA; NaN beyond the lengths."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    sizes = {
        "batch": draw(st.sampled_from([1, 2])), "heads": draw(st.sampled_from([1, 3])),
        "q_len": draw(LENGTHS), "kv_len": draw(KEY_LENGTHS), "d_c": draw(st.sampled_from([0, 1, 7, 17])),
        "d_nope": draw(st.sampled_from([0, 1, 5])), "d_rope": draw(st.sampled_from([0, 2, 6])),
        "d_v": draw(st.sampled_from([0, 1, 18])),
    }  # fmt: skip
    batch, heads, n, m = (sizes[name] for name in ("batch", "heads", "q_len", "kv_len"))
    up = {name: rng.standard_normal([sizes[axis] for axis in MLA.axes_of(name, 4)]) for name in MLA_INPUTS}
    inputs: dict[str, Any] = {}
    if draw(st.booleans()):
        inputs = {name: rng.integers(0, size + 1, batch) for name, size in (("q_lens", n), ("kv_lens", m))}
        for b in range(batch):
            for name in ("q_nope", "q_rope"):
                up[name][b, :, inputs["q_lens"][b] :] = np.nan
            for name in ("c_kv", "k_rope"):
                up[name][b, inputs["kv_lens"][b] :] = np.nan
        inputs = {name: lens.tolist() for name, lens in inputs.items()}
    if draw(st.booleans()):
        shape = [size if draw(st.booleans()) else 1 for size in (batch, heads, n, m)]
        allowed = rng.random(shape) < draw(st.sampled_from([0.1, 0.7]))
        up["attn_mask"] = allowed if draw(st.booleans()) else np.where(allowed, 0.5, -np.inf)
    side = st.none() | st.integers(0, 20)
    attention = {
        "is_causal": draw(st.booleans()),
        "causal_alignment": draw(st.sampled_from(["bottom_right", "top_left"])),
        "window": draw(st.sampled_from([None, [draw(side), draw(side)]])),
        "softcap": draw(st.sampled_from([0.0, 2.0])),
        "scale": draw(st.sampled_from([None, -0.5])),
        "pattern": draw(st.sampled_from([None, {"type": "chunked", "size": 5}])),
        "sinks": [0.5] * heads if draw(st.booleans()) else None,
        "alibi_slopes": draw(st.sampled_from([None, "auto"])),
        "q_positions": draw(st.sampled_from([None, -3, list(range(0, 2 * n, 2))])),
        "rope": draw(st.sampled_from([None, {"style": "half"}])) if sizes["d_rope"] else None,
    }
    inputs |= {name: {"upload": "test", "name": name} for name in up}
    return Case({"inputs": inputs, "attention": attention}, up)
