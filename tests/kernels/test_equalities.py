"""What must be equal in attention, on every engine that can say both sides of the equation.

Nothing here says what the right answer is (``test_traps.py`` does); these are properties of random problems.
Two results agree if they differ by no more than rounding alone explains, each by its own bound
(``kernels/numerics.py``); where the same operations are done in the same order, they are equal bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st

from kernels.layout import from_canonical
from kernels.spec.results import GRADIENTS
from tests.kernels.cases import Arrays, canonical, compute
from tests.kernels.error_bounds import error_bounds
from tests.kernels.ways import REFERENCE, Problem, Way, latent_cases, ways

EXAMPLES = 8  # of each way
SETTINGS = settings(
    deadline=None, derandomize=True, suppress_health_check=list(HealthCheck), phases=[Phase.generate]
)
pytestmark = pytest.mark.filterwarnings("ignore:(invalid value|overflow|divide by zero):RuntimeWarning")
Answer = tuple[Arrays, dict[str, float]]  # results and how far each may be from the truth


def on_each(*features: str) -> Callable[[Any], Any]:
    """Run a test on every engine that can do this."""
    return pytest.mark.parametrize("way", ways(*features, one_each=True), ids=lambda way: way.name)


def for_all(**strategies: Any) -> Callable[[Any], Any]:
    """A few examples of each, always the same."""
    return lambda test: settings(SETTINGS, max_examples=EXAMPLES)(given(**strategies)(test))


def answer(way: Way, problem: Problem, returns: Sequence[str] = ("out", "lse")) -> Answer:
    """What a way says to a problem."""
    asked = [name for name in returns if name in way.returns]
    spec, arrays = way.request(problem, asked)
    bounds = error_bounds(spec, arrays, gradients=any(name in GRADIENTS for name in asked))
    results = compute(spec, arrays)
    return {name: results[name] for name in asked}, bounds


def agree(one: Answer, other: Answer) -> None:
    """Both sides have the same results, as far as rounding lets them."""
    assert one[0].keys() == other[0].keys()
    for name, result in one[0].items():
        allowed = one[1][name] + other[1][name]
        # The bound of the reference is 0: its results are the yardstick, in float64.
        np.testing.assert_allclose(result, other[0][name], rtol=1e-12, atol=allowed + 1e-12, err_msg=name)


def identical(one: Arrays, other: Arrays) -> None:
    assert one.keys() == other.keys()
    for name, result in one.items():
        np.testing.assert_array_equal(result, other[name], err_msg=name)


@st.composite
def problems(
    draw: st.DrawFn,
    way: Way,
    *,
    n: Sequence[int] = (1, 2, 5, 9),
    m: Sequence[int] = (1, 3, 17, 40),
    batch: Sequence[int] = (1, 1, 2),
    heads_of: Sequence[tuple[int, int]] = ((1, 1), (2, 1), (2, 2), (3, 1)),
    fixed: dict[str, Any] | None = None,
    without: Sequence[str] = (),
) -> Problem:
    """Whatever the way can do of masks and terms, but for ``without``; ``fixed`` fields of attention.

    Hypothesis only draws the seed: of few examples its own choices are the simplest ones, which are the same
    every time.
    """
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    some = lambda among: among[rng.integers(len(among))]  # noqa: E731
    size, queries, keys = some(batch), some(n), some(m)
    heads, kv_heads = some(heads_of)
    d, e, spread = some([3, 8]), some([1, 8]), some([1.0, 3.0])
    normal = lambda *shape: (rng.standard_normal(shape) * spread).astype(np.float32)  # noqa: E731

    def uses(feature: str) -> bool:
        return feature not in without and way.can([feature]) and some([False, True])

    attention: dict[str, Any] = {"causal_alignment": some(["bottom_right", "top_left"])}
    if uses("causal"):
        attention["is_causal"] = True
    if uses("window"):
        attention["window"] = [some([None, 0, 2, 7, 12]), some([None, 0, 1, 5])]
    if uses("softcap"):
        attention["softcap"] = 3.0
    if uses("scale"):
        attention["scale"] = some([0.4, -0.4])
    if uses("alibi"):
        attention["alibi_slopes"] = (rng.standard_normal(heads) / 4).tolist()
    if uses("sinks"):
        attention["sinks"] = normal(heads).tolist()
    if uses("position_offset"):
        attention["q_positions"] = int(rng.integers(-2, keys + 1))
    inputs: dict[str, Any] = {}
    if uses("attn_mask"):
        allowed = rng.random((queries, keys)) < 0.7
        inputs["attn_mask"] = some([allowed, np.where(allowed, normal(queries, keys), -np.inf)])
    if uses("ragged"):
        inputs["kv_lens"] = rng.integers(0, keys + 1, size)
    return Problem(
        normal(size, heads, queries, d), normal(size, kv_heads, keys, d), normal(size, kv_heads, keys, e),
        attention | (fixed or {}), inputs,
    )  # fmt: skip


# -- how a problem is cut up ---------------------------------------------------------------------------------

BLOCKS = st.sampled_from([None, 16, 32, 64])


@pytest.mark.parametrize(
    "way",
    [way for way in ways(one_each=True) if set(way.options) & {"block_m", "block_n"}],
    ids=lambda way: way.name,
)
def test_tile_sizes_do_not_matter(way: Way) -> None:
    """Gradients included."""
    gradients = GRADIENTS if way.can(["gradients"]) else ()
    n = (9, 35) if way.can([], q_len=35) else (5, 15)

    @for_all(problem=problems(way, n=n), blocks=st.tuples(BLOCKS, BLOCKS), other=st.tuples(BLOCKS, BLOCKS))
    def check(problem: Problem, blocks: Any, other: Any) -> None:
        assume(blocks != other)
        if gradients:
            dout = np.random.default_rng(1).standard_normal((*problem.q.shape[:3], problem.v.shape[3]))
            problem = replace(problem, inputs={**problem.inputs, "dout": dout})
        answers = []
        for block_m, block_n in (blocks, other):
            cut = {
                name: size
                for name, size in (("block_m", block_m), ("block_n", block_n))
                if name in way.options
            }
            cut_up = replace(way, options=way.options | cut)
            answers.append(answer(cut_up, problem, ("out", "lse", *gradients)))
        agree(*answers)

    check()


@pytest.mark.parametrize(
    "way", [way for way in ways(one_each=True) if "num_splits" in way.options], ids=lambda way: way.name
)
def test_the_number_of_splits_does_not_matter(way: Way) -> None:
    @for_all(
        problem=problems(way, m=(1, 17, 40, 90)),
        splits=st.tuples(*[st.integers(1, 9) | st.none() | st.just(1024)] * 2),
    )
    def check(problem: Problem, splits: Any) -> None:
        agree(
            *(
                answer(replace(way, options=way.options | {"num_splits": number}), problem)
                for number in splits
            )
        )

    check()


@pytest.mark.parametrize("way", ways("paged", one_each=True), ids=lambda way: way.name)
def test_page_sizes_do_not_matter_nor_do_pages(way: Way) -> None:
    row, paged = replace(way, page=None), replace(way, page=1)

    @for_all(problem=problems(paged), sizes=st.tuples(st.integers(1, 5), st.integers(1, 50)))
    def check(problem: Problem, sizes: Any) -> None:
        one, other = (answer(replace(way, page=size), problem) for size in sizes)
        agree(one, other)
        agree(one, answer(row, problem))

    check()


@pytest.mark.parametrize("way", ways("past", one_each=True, past=True), ids=lambda way: way.name)
def test_a_past_is_as_good_as_keys_sent_whole(way: Way) -> None:
    @for_all(problem=problems(way), part=st.floats(0, 1))
    def check(problem: Problem, part: float) -> None:
        whole = answer(way, problem)
        agree(whole, answer(way, replace(problem, past=round(part * problem.k.shape[2]))))

    check()


@on_each("causal")
def test_tokens_decoded_one_by_one_are_the_rows_of_the_whole(way: Way) -> None:
    """Each query alone over the keys that there were by then."""
    fixed = {"is_causal": True, "causal_alignment": "bottom_right"}

    @for_all(problem=problems(way, n=(4,), m=(4, 19), fixed=fixed, without=["ragged", "position_offset"]))
    def check(problem: Problem) -> None:
        fixed_window = problem.attention.get("window")
        attention = problem.attention | ({"window": [fixed_window[0], None]} if fixed_window else {})
        problem = replace(problem, attention=attention)
        whole, bounds = answer(way, problem)
        for i in range(4):
            there = problem.k.shape[2] - 3 + i
            mask = problem.inputs.get("attn_mask")
            token = replace(
                problem, q=problem.q[:, :, i : i + 1], k=problem.k[:, :, :there], v=problem.v[:, :, :there],
                inputs={} if mask is None else {"attn_mask": mask[i : i + 1, :there]},
            )  # fmt: skip
            agree(answer(way, token), ({name: x[:, :, i : i + 1] for name, x in whole.items()}, bounds))

    check()


def test_mla_expanded_and_absorbed_are_the_same() -> None:
    """Latents of any width, in both forms, and ordinary attention of the keys that are made from them."""
    forms = [way for way in ways() if way.latent]
    engines = sorted({way.engine for way in forms} | {"eager"})
    assert len(engines) > 1 or not forms

    @settings(SETTINGS, max_examples=5 * EXAMPLES)
    @given(latent_cases())
    def check(case: Any) -> None:
        answers = []
        for engine, options in [("eager", {}), *((way.engine, way.options) for way in forms)]:
            spec, arrays = case.on(engine, options=options, **{"return": ["out", "lse"]})
            results = compute(spec, arrays)
            answers.append(({name: results[name] for name in spec.returns}, error_bounds(spec, arrays)))
        for other in answers[1:]:
            agree(answers[0], other)

    check()


# -- symmetries ----------------------------------------------------------------------------------------------


@on_each("positions", "attn_mask")
def test_the_order_of_keys_does_not_matter(way: Way) -> None:
    """With their positions, and the columns of the mask, they may come in any order."""

    @for_all(problem=problems(way, n=(9,), m=(17, 17, 40), without=["ragged"]), seed=st.integers(0, 2**32))
    def check(problem: Problem, seed: int) -> None:
        n, m = problem.q.shape[2], problem.k.shape[2]
        order = np.random.default_rng(seed).permutation(m)
        queries = (np.arange(n) + m - n).tolist()
        mask = problem.inputs.get("attn_mask")

        def with_keys(where: np.ndarray) -> Problem:
            return replace(
                problem, k=problem.k[:, :, where], v=problem.v[:, :, where],
                attention={**problem.attention, "q_positions": queries, "kv_positions": where.tolist()},
                inputs={} if mask is None else {"attn_mask": mask[:, where]},
            )  # fmt: skip

        agree(answer(way, with_keys(np.arange(m))), answer(way, with_keys(order)))

    check()


@on_each()
def test_values_of_one_give_one_where_a_key_is_seen(way: Way) -> None:
    """Weights sum to 1; with a sink to 1 less what the sink takes; without a key, to 0."""

    @for_all(problem=problems(way))
    def check(problem: Problem) -> None:
        ones = replace(problem, v=np.ones_like(problem.v))
        got, bounds = answer(way, ones)
        lse = got.get("lse", REFERENCE.compute(ones, ("lse",))["lse"])
        sinks = np.array(problem.attention.get("sinks", [-np.inf] * problem.q.shape[1]))[:, None]
        taken = np.exp(sinks - np.where(np.isneginf(lse), np.inf, lse))
        seen = np.where(np.isneginf(lse), 0.0, 1.0 - taken)
        # The LSE has an error of its own, and so has the share of the sink.
        allowed = 1e-6 + bounds["out"] + (2 * bounds.get("lse", 0.0) if "sinks" in problem.attention else 0.0)
        np.testing.assert_allclose(
            got["out"], np.broadcast_to(seen[..., None], got["out"].shape), rtol=0, atol=allowed
        )
        assert (got["out"][taken > 1e-4] < 1.0).all()

    check()


@on_each("causal")
def test_future_keys_cannot_matter(way: Way) -> None:
    """Not by a bit, whatever they are; and their own gradients are 0."""
    gradients = GRADIENTS if way.can(["gradients"]) and "dq" in way.returns else ()

    @for_all(
        problem=problems(way, m=(3, 17, 40), fixed={"is_causal": True, "causal_alignment": "top_left"}),
        seed=st.integers(0, 2**32),
    )
    def check(problem: Problem, seed: int) -> None:
        last = problem.attention.get("q_positions", 0) + problem.q.shape[2] - 1
        there = max(last + 1, 0)
        rng = np.random.default_rng(seed)
        inputs = problem.inputs
        if gradients:
            inputs = inputs | {"dout": rng.standard_normal((*problem.q.shape[:3], problem.v.shape[3]))}
        changed = {"k": problem.k.copy(), "v": problem.v.copy()}
        for array in changed.values():
            array[:, :, there:] = rng.standard_normal(array[:, :, there:].shape) * 300
        one, other = (
            way.compute(replace(problem, inputs=inputs, **keys), ("out", "lse", *gradients))
            for keys in ({}, changed)
        )
        identical(one, other)
        for name in {"dk", "dv"} & one.keys():
            assert not one[name][:, :, there:].any()

    check()


@on_each("scale")
def test_what_the_queries_gain_the_scale_may_lose(way: Way) -> None:
    """a · q with the scale / a, a a power of two: bit for bit where it is scores that are scaled."""

    @for_all(problem=problems(way), factor=st.sampled_from([2.0, 0.125, -4.0]))
    def check(problem: Problem, factor: float) -> None:
        scaled = replace(
            problem, q=problem.q * np.float32(factor),
            attention={**problem.attention, "scale": problem.scale / factor},
        )  # fmt: skip
        stated = replace(problem, attention={**problem.attention, "scale": problem.scale})
        one, other = answer(way, stated), answer(way, scaled)
        if way.is_triton:
            identical(one[0], other[0])
        agree(one, other)

    check()


@on_each("attn_mask")
def test_a_constant_added_to_a_row_of_the_bias_shifts_the_lse_alone(way: Way) -> None:
    @for_all(problem=problems(way, without=["attn_mask", "sinks"]), seed=st.integers(0, 2**32))
    def check(problem: Problem, seed: int) -> None:
        rng = np.random.default_rng(seed)
        n, m = problem.q.shape[2], problem.k.shape[2]
        # Multiples of 1/64: float32 holds them and their sums.
        bias = np.where(rng.random((n, m)) < 0.8, np.rint(rng.standard_normal((n, m)) * 64) / 64, -np.inf)
        by = rng.integers(-40, 40, (n, 1)) / 4.0
        one, bounds = answer(way, replace(problem, inputs={**problem.inputs, "attn_mask": bias}))
        more, wider = answer(way, replace(problem, inputs={**problem.inputs, "attn_mask": bias + by}))
        if "lse" in one:
            one["lse"] = one["lse"] + by[:, 0]
        agree((one, bounds), (more, wider))

    check()


@on_each()
def test_rows_of_a_batch_know_nothing_of_each_other(way: Way) -> None:
    """Alone each gives what it gives in company: bit for bit on our kernels and the reference. (torch may
    choose another product for another batch, and our MLA kernels project the rows of a batch together.)"""

    @for_all(problem=problems(way, batch=(3,), n=(1, 5)))
    def check(problem: Problem) -> None:
        together, bounds = answer(way, problem)
        for b in range(3):
            lens = {name: x[b : b + 1] if name == "kv_lens" else x for name, x in problem.inputs.items()}
            alone, own = answer(
                way,
                Problem(*(x[b : b + 1] for x in (problem.q, problem.k, problem.v)), problem.attention, lens),
            )
            mine = {name: x[b : b + 1] for name, x in together.items()}
            if way.engine == "reference" or (way.is_triton and not way.latent):
                identical(alone, mine)
            agree((alone, own), (mine, bounds))

    check()


@on_each("gqa")
def test_grouped_heads_are_heads_repeated(way: Way) -> None:
    """Gradients too: those of a key head are the sum of its group's."""
    gradients = GRADIENTS if way.can(["gradients"]) and "dq" in way.returns else ()

    @for_all(problem=problems(way, n=(1, 4), heads_of=((4, 2), (4, 2), (3, 1))))
    def check(problem: Problem) -> None:
        heads, kv_heads = problem.q.shape[1], problem.k.shape[1]
        group = heads // kv_heads
        if gradients:
            dout = np.random.default_rng(2).standard_normal((*problem.q.shape[:3], problem.v.shape[3]))
            problem = replace(problem, inputs={**problem.inputs, "dout": dout})
        each = replace(problem, k=np.repeat(problem.k, group, 1), v=np.repeat(problem.v, group, 1))
        returns = ("out", "lse", *gradients)
        repeated, bounds = answer(way, each, returns)
        for name in {"dk", "dv"} & repeated.keys():
            batch, _, *rest = repeated[name].shape
            repeated[name] = repeated[name].reshape(batch, kv_heads, group, *rest).sum(2)
            bounds[name] *= group
        agree(answer(way, problem, returns), (repeated, bounds))

    check()


@on_each("packed")
def test_packed_is_another_spelling_of_rank_four(way: Way) -> None:
    """[batch, len, heads · dim]: the same bits, in that order."""
    pack = lambda x: x.transpose(0, 2, 1, 3).reshape(x.shape[0], x.shape[2], -1)  # noqa: E731

    @for_all(problem=problems(way))
    def check(problem: Problem) -> None:
        if way.page or way.latent:
            return
        whole = way.compute(problem, ("out",))
        heads = {"num_heads": problem.q.shape[1], "num_kv_heads": problem.k.shape[1]}
        uploads = {name: pack(getattr(problem, name)) for name in ("q", "k", "v")}
        uploads |= {name: x for name, x in problem.inputs.items() if name != "kv_lens"}
        lens = {name: x.tolist() for name, x in problem.inputs.items() if name == "kv_lens"}
        spec, arrays = canonical(
            {
                "engine": way.engine, "options": way.options, "attention": problem.attention | heads,
                "inputs": lens | {name: {"upload": "test", "name": name} for name in uploads},
            },
            uploads,
        )  # fmt: skip
        got = from_canonical(spec, "out", compute(spec, arrays)["out"])
        np.testing.assert_array_equal(got, pack(whole["out"]))

    check()
