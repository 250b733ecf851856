"""A draft changes how fast tokens come, never which: by algebra, by enumeration, and by 10⁵ draws."""

from collections import Counter
from fractions import Fraction
from itertools import product

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kernels.serving import speculative
from kernels.serving.bodies import speculative as asked
from kernels.serving.draws import Draws, cumulated
from kernels.serving.events import EventLog
from kernels.serving.goodness import chi_square
from kernels.serving.speculative import (
    acceptance,
    best_length,
    expected_speedup,
    expected_time,
    expected_tokens,
    generate,
    produced,
    residual,
)

P, Q = [0.5, 0.3, 0.2], [0.1, 0.3, 0.6]
PEAKED, FLAT = [0.001, 0.98, 0.004, 0.0, 0.015], [0.2] * 5


@st.composite
def pairs(draw):
    """Two distributions over one vocabulary, peaked and flat, with zeros."""
    size = draw(st.integers(1, 8))
    weights = st.lists(st.sampled_from([0.0, 1e-9, 0.01, 1.0, 1.0, 50.0]), min_size=size, max_size=size)
    both = draw(weights), draw(weights)
    assume(all(map(sum, both)))
    return tuple([weight / sum(weights) for weight in weights] for weights in both)


@given(pairs())
def test_accepted_or_replaced_a_token_has_the_targets_law(pair):
    p, q = pair
    assert produced(p, q) == pytest.approx(p, abs=1e-12)
    assert sum(residual(p, q)) == pytest.approx(1, abs=1e-12)
    total_variation = sum(abs(a - b) for a, b in zip(p, q, strict=True)) / 2
    assert acceptance(p, q) == pytest.approx(1 - total_variation, abs=1e-12)


def drawn(p, q, tokens, gamma=4, seed=1):
    return generate([p] * tokens, [q] * tokens, gamma, Draws(seed))


@pytest.mark.parametrize(("p", "q"), [(P, Q), (PEAKED, FLAT), (FLAT, PEAKED)])
def test_a_hundred_thousand_tokens_are_distributed_as_the_target_says(p, q):
    """FLAT from PEAKED has tokens that the draft never proposes: only the residual brings them."""
    tokens = drawn(p, q, 100_000).tokens
    fit = chi_square([tokens.count(token) for token in range(len(p))], p)
    assert fit.degrees >= 2
    assert fit.p_value > 0.01


def test_that_test_sees_a_replacement_from_the_target_instead_of_the_residual(monkeypatch):
    """The common mistake, p instead of max(0, p − q): what was drafted then follows min(p, q) + (1 − α)·p;
    only the token after a draft accepted whole, α⁴ of (1 − α⁵)/(1 − α) in a run, is still right."""
    monkeypatch.setattr(speculative, "residual", lambda p, q: p)
    tokens = drawn(P, Q, 100_000).tokens
    counts = [tokens.count(token) for token in range(3)]
    assert chi_square(counts, P).p_value < 1e-12
    right = 0.6**4 / expected_tokens(0.6, 4)
    mixed = [right * p + (1 - right) * (min(p, q) + 0.4 * p) for p, q in zip(P, Q, strict=True)]
    assert chi_square(counts, mixed).p_value > 0.01


def test_tokens_of_a_run_do_not_depend_on_one_another():
    """Pairs of neighbours, within runs and across them, against the product of what the target says."""
    tokens = drawn(P, Q, 100_000, gamma=3, seed=5).tokens
    counts = Counter(zip(tokens[::2], tokens[1::2], strict=True))
    cells = list(product(range(3), repeat=2))
    assert chi_square([counts[cell] for cell in cells], [P[a] * P[b] for a, b in cells]).p_value > 0.01


def test_every_position_of_a_table_has_its_own_distribution():
    target = [[*P, 0.0], [0.0, 0.98, 0.005, 0.015], [0.25] * 4]
    draft = [[0.25] * 4, [0.7, 0.1, 0.1, 0.1], [0.0, 0.0, 0.5, 0.5]]
    draws = Draws(11)
    written = [generate(target, draft, 2, draws).tokens for _ in range(30_000)]
    for position, p in enumerate(target):
        counts = Counter(tokens[position] for tokens in written)
        assert chi_square([counts[token] for token in range(4)], p).p_value > 0.01


@pytest.mark.parametrize("gamma", [0, 1, 4, 9])
def test_tokens_of_a_run_are_as_many_as_the_closed_form_says(gamma):
    alpha = acceptance(P, Q)
    assert alpha == pytest.approx(0.6)
    wanted = sum(
        alpha**i for i in range(gamma + 1)
    )  # the first, and each later one if all before it are kept
    assert expected_tokens(alpha, gamma) == pytest.approx(wanted)
    done = drawn(P, Q, 60_000, gamma)
    assert len(done.tokens) / done.runs == pytest.approx(wanted, rel=0.02)
    if gamma:
        assert done.accepted / done.examined == pytest.approx(alpha, abs=0.01)


def test_a_perfect_draft_and_a_useless_one():
    perfect = drawn(P, P, 1000, gamma=4)
    assert perfect.runs == 200
    assert perfect.accepted == perfect.drafted == 800
    assert expected_tokens(1.0, 4) == 5
    useless = drawn([1.0, 0.0], [0.0, 1.0], 50, gamma=4)
    assert useless.runs == 50
    assert set(useless.tokens) == {0}
    assert expected_tokens(0.0, 4) == 1


def enumerated(alphas, gamma, cost):
    """Mean time of a sequence in exact arithmetic: every outcome of every run, weighed."""
    if not alphas:
        return Fraction(0)
    count = min(gamma, len(alphas) - 1)
    total = 1 + cost * count
    for kept in range(count + 1):
        chance = Fraction(1)
        for alpha in alphas[:kept]:
            chance *= alpha
        if kept < count:
            chance *= 1 - alphas[kept]
        total += chance * enumerated(alphas[kept + 1 :], gamma, cost)
    return total


@given(st.lists(st.fractions(0, 1, max_denominator=9), max_size=7), st.integers(0, 4))
def test_the_mean_time_is_that_of_all_outcomes(alphas, gamma):
    cost = Fraction(1, 7)
    assert expected_time([float(a) for a in alphas], gamma, 1 / 7) == pytest.approx(
        float(enumerated(alphas, gamma, cost)), rel=1e-12
    )


def test_a_long_sequence_approaches_the_closed_form():
    alphas = [0.7] * 4000
    assert 4000 / expected_time(alphas, 3, 0.0) == pytest.approx(expected_tokens(0.7, 3), rel=1e-3)
    assert 4000 / expected_time(alphas, 3, 0.2) == pytest.approx(expected_speedup(0.7, 3, 0.2), rel=1e-3)


def test_the_measured_speedup_is_the_expected_one():
    done = drawn(P, Q, 60_000, gamma=2)
    time = done.runs + 0.15 * done.drafted
    assert 60_000 / time == pytest.approx(expected_speedup(0.6, 2, 0.15), rel=0.02)


@given(st.floats(0, 1), st.floats(0, 2))
def test_the_best_length_is_worth_more_than_all_others(alpha, cost):
    best = best_length(lambda gamma: expected_speedup(alpha, gamma, cost), 16)
    everything = [expected_speedup(alpha, gamma, cost) for gamma in range(17)]
    assert everything[best] == max(everything) >= 1
    assert best == 0 or all(each < everything[best] for each in everything[:best])
    if cost > alpha + 1e-9:
        assert best == 0  # the first drafted token costs c and is worth α


def test_the_log_is_enough_to_check_every_decision():
    log = EventLog()
    done = generate([P] * 40, [Q] * 40, 3, Draws(2), log=log)
    written = []
    for event in log.events:
        token, position = event.details["token"], event.ids["position"]
        if event.kind in ("accept", "reject"):
            assert event.details["ratio"] == min(1, P[token] / Q[token])
            assert (event.details["u"] < event.details["ratio"]) == (event.kind == "accept")
        if event.kind != "reject":
            assert position == len(written)
            written.append(token)
    assert written == done.tokens
    assert sum(event.kind in ("replace", "follow") for event in log.events) == done.runs


def test_the_order_of_draws_is_the_one_documented():
    """Guesses first, then one u for each until the first rejection, then the token in its place."""
    draws, u = Draws(9), Draws(9)
    tokens = generate([P] * 3, [Q] * 3, 2, draws).tokens
    guesses = [u.index(cumulated(Q)), u.index(cumulated(Q))]
    written = []
    for guess in guesses:
        if u.uniform() >= P[guess] / Q[guess]:
            written.append(u.index(cumulated(residual(P, Q))))
            break
        written.append(guess)
    assert tokens[: len(written)] == written


def test_the_answer_counts_all_sequences_and_uses_the_tables_as_they_are():
    table = [P, Q, P]
    answer = asked.simulate({"target": table, "draft": Q, "sequences": 500, "gamma": 2, "seed": 3})
    assert answer["tokens"] == 3
    assert answer["summary"]["closed_form"] is None
    assert answer["alpha"] == pytest.approx([0.6, 1.0, 0.6])
    assert [sum(counts) for counts in answer["distribution"]["counts"]] == [500] * 3
    assert answer["distribution"]["chi_square"]["degrees"] == 6
    assert answer["distribution"]["chi_square"]["p_value"] > 0.001
    assert answer["summary"]["measured"]["runs"] == pytest.approx(
        500 * answer["summary"]["expected"]["runs"], rel=0.05
    )
    best = answer["summary"]["best_gamma"]
    assert answer["speedup_by_gamma"][best] == max(answer["speedup_by_gamma"])
