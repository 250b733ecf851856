"""The program of the page on attention in code: what is shown is run by PyTorch beside what the figure
computes, however it is repaired and with every input."""

import json
import math
import re
import textwrap
from collections.abc import Iterator
from html import unescape
from itertools import combinations
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from django.test import RequestFactory
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from concepts.facts import FACTS
from concepts.figures import Links
from concepts.figures.listings import program as text_of
from concepts.figures.sdpa_in_code import CASES, FIGURE, met_by, outcome, program, right
from concepts.pages import book
from kernels.engines.reference import reference
from kernels.snippet import REPAIRS
from kernels.spec import parse_run
from lab.form.views import form_of_link

LINKS = Links("/page/", "/fragment/", "/lab/")
EVERY = frozenset(REPAIRS)
EVERY_CASE = pytest.mark.parametrize("name", CASES)


def states(name: str) -> Iterator[frozenset[str]]:
    """Every way to repair what this input meets, with the rest repaired or not; and each repair by itself."""
    met = met_by(name)
    for count in range(len(met) + 1):
        for some in map(frozenset, combinations(sorted(met), count)):
            yield from (some, some | (EVERY - met))
    yield from (frozenset({one}) for one in EVERY - met)


def run_by_torch(name: str, repaired: frozenset[str]) -> np.ndarray:
    """What the shown program gives; dropout drops what the figure's draw says."""
    call = CASES[name].call

    def dropout(weights: torch.Tensor, p: float, training: bool = True) -> torch.Tensor:
        if not training or call.kept is None:
            return weights
        return weights * torch.tensor(call.kept) / (1 - p)

    space = {"torch": torch, "F": SimpleNamespace(dropout=dropout)}
    exec(text_of(program(repaired)), space)
    mask = None if call.mask is None else torch.tensor(call.mask)
    q, k, v = (torch.tensor(array) for array in (call.q, call.k, call.v))
    out = space["attention"](q, k, v, mask, causal=call.is_causal, p=call.dropout)
    return np.asarray(out.double()).reshape(right(name).shape)


@EVERY_CASE
def test_the_program_does_what_the_figure_says(name: str) -> None:
    for repaired in states(name):
        told = outcome(name, repaired)
        if told.found is None:
            with pytest.raises(RuntimeError) as stop:
                run_by_torch(name, repaired)
            assert str(stop.value) == told.stopped
        else:
            np.testing.assert_allclose(run_by_torch(name, repaired), told.found, atol=1e-3)


@EVERY_CASE
def test_repaired_it_is_what_pytorch_gives(name: str) -> None:
    """By `scaled_dot_product_attention` with a mask made by hand, no dropout, and keys repeated for heads."""
    case = CASES[name]
    call = case.call
    n, m = call.q.shape[1], call.k.shape[1]
    mask = torch.zeros(n, m, dtype=torch.double)
    if call.mask is not None:
        given = torch.tensor(call.mask)
        mask = mask.masked_fill(~given, -torch.inf) if given.dtype == torch.bool else given.double()
    if call.is_causal:
        mask = mask + torch.tensor(
            [[0.0 if j - (m - n) <= i else -torch.inf for j in range(m)] for i in range(n)]
        )
    q, k, v = (torch.tensor(array).double()[None] for array in (call.q, call.k, call.v))
    expected = scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
    np.testing.assert_allclose(right(name), expected.reshape(right(name).shape), atol=1e-12)
    assert outcome(name, EVERY).is_right


@EVERY_CASE
def test_the_ten_lines_of_the_page_are_right(name: str) -> None:
    """As they stand there, with booleans and a bias kept apart; dropout is none of theirs."""
    html = "".join(piece for piece in book("en").pages["sdpa-in-code"].pieces if isinstance(piece, str))
    [shown] = re.findall(r"<pre[^>]*><code>(def attention.*?)</code>", html, re.DOTALL)
    lines = unescape(shown).strip().splitlines()
    assert len(lines) == 11  # and the line that names it
    space: dict[str, Any] = {"torch": torch}
    exec(unescape(shown), space)
    call = CASES[name].call
    rest: dict[str, torch.Tensor] = {}
    if call.mask is not None:
        mask = torch.tensor(call.mask)
        is_rule = mask.dtype == torch.bool or bool(mask.isinf().any())
        rest = {"seen": mask if mask.dtype == torch.bool else mask == 0} if is_rule else {"bias": mask}
    q, k, v = (torch.tensor(array) for array in (call.q, call.k, call.v))
    out = space["attention"](q, k, v, causal=call.is_causal, **rest)
    assert out.dtype == q.dtype
    np.testing.assert_allclose(out.double().reshape(right(name).shape), right(name), atol=1e-3)


@EVERY_CASE
def test_an_input_needs_just_the_repairs_that_it_meets(name: str) -> None:
    met = met_by(name)
    assert outcome(name, met).is_right
    for one in met:
        assert not outcome(name, met - {one}).is_right


@EVERY_CASE
def test_the_lab_gets_the_whole_input_and_gives_what_is_right(name: str, db: None) -> None:
    values = FIGURE.data({"case": name})["values"]
    form, _notes = form_of_link(RequestFactory().get("/en/lab/", FIGURE.lab(values)))
    body = form.body()
    assert (body["engine"], body.get("dtype", "float32")) == ("flash", CASES[name].call.q.dtype.name)
    parsed = parse_run({**body, "engine": "reference"})
    shape = parsed.spec.canonical_shape
    arrays = {key: np.reshape(array, shape(key)) for key, array in parsed.arrays.items() if key in "qkv"}
    found = reference(parsed.spec, parsed.arrays | arrays, ("out",))["out"]
    np.testing.assert_allclose(found.reshape(right(name).shape), right(name), atol=1e-3)


def test_every_mistake_is_met_by_an_input_and_two_inputs_meet_none() -> None:
    assert frozenset().union(*map(met_by, CASES)) == EVERY
    assert [name for name in CASES if not met_by(name)] == ["plain", "causal"]


def test_one_repair_uncovers_the_next_mistake() -> None:
    """New tokens: an error, then the wrong corner without one. A bias: lost, then twice as large."""
    assert outcome("cache", frozenset()).stopped.startswith("The size of tensor a (5) must match")
    silent = outcome("cache", frozenset({"shape"}))
    assert not silent.stopped
    assert silent.found is not None
    assert silent.found[0].tolist() == [1, 0, 0, 0, 0]
    lost, twice = (outcome("bias", frozenset(done)).found for done in ([], ["keep"]))
    assert lost is not None
    assert twice is not None
    np.testing.assert_allclose(lost, outcome("causal", EVERY).found, atol=1e-6)
    assert twice[3, 3] > right("bias")[3, 3] > lost[3, 3]


def test_lines_are_marked_where_the_input_meets_a_mistake_and_where_one_was_mended() -> None:
    html = FIGURE.render({"case": "cache", "shape": "1", "groups": "1"}, LINKS)
    assert html.count('class="line wrong"') == 1
    assert html.count('class="line mended"') == 1
    assert "torch.full((n, m), -torch.inf, device=q.device).triu(1)" in html
    assert "of 10 weights are wrong" in html
    done = FIGURE.render(dict.fromkeys(REPAIRS, "1") | {"case": "cache"}, LINKS)
    assert 'class="line wrong"' not in done
    assert "Of 11 inputs 11 come out right" in done


def test_the_numbers_have_the_program_and_no_number_where_there_is_none() -> None:
    blind = FIGURE.data({"case": "blind"})
    assert blind["found"][1] == [None] * 4
    assert blind["met"] == ["empty"]
    stopped = FIGURE.data({"case": "half"})
    assert (stopped["found"], stopped["error"]) == (None, "expected scalar type Float but found Half")
    json.dumps(stopped)


# -- what the page says --------------------------------------------------------------------------------------


def fact(name: str) -> float:
    return float(FACTS[f"snippet-{name}"].text.replace(",", ""))


def test_what_is_said_of_the_inputs_is_what_the_program_gives() -> None:
    assert (fact("inputs"), fact("right"), fact("most")) == (11, 2, 2)
    leak = run_by_torch("padding", frozenset())[1, 3:].sum()
    assert fact("padding-leak") == pytest.approx(leak, abs=0.006)
    for name, repaired in (("lost", frozenset()), ("twice", frozenset({"keep"})), ("right", EVERY)):
        own = run_by_torch("bias", repaired)[3, 3]
        assert fact(f"bias-{name}") == pytest.approx(own, abs=6e-4), name
    dropped = run_by_torch("dropout", frozenset())
    assert fact("dropped") == (dropped == 0).sum()
    sums = ", ".join(f"{x:.2f}" for x in dropped.sum(axis=1))
    assert FACTS["snippet-dropout-sums"].text == f"({sums})"


def test_booleans_that_are_added() -> None:
    weights = torch.softmax(torch.zeros(5) + torch.tensor([True, True, True, False, False]), -1)
    assert fact("added-real") == pytest.approx(weights[0].item(), abs=6e-4)
    assert fact("added-padding") == pytest.approx(weights[4].item(), abs=6e-4)
    assert fact("added-leak") == pytest.approx(100 * weights[3:].sum().item(), abs=0.5)
    assert fact("added-sum") == pytest.approx(10.1548, abs=6e-4)


def test_what_is_said_of_float16_and_bfloat16() -> None:
    half, brain = torch.float16, torch.bfloat16
    assert fact("half-largest") == torch.finfo(half).max
    q = torch.tensor([[256.0, 0.3]], dtype=half)
    assert torch.isinf(q @ q.mT)
    assert fact("large-product") == 256 * 256
    assert fact("large-scaled") == round(256 * 256 / 2**0.5)
    at, grain = fact("large-scaled"), fact("large-grain")
    near = torch.tensor([at - grain / 3, at, at + grain / 3, at + grain], dtype=half)
    assert len(near.unique()) == 2
    assert torch.tensor(-1e9, dtype=half) == -torch.inf
    with pytest.raises(RuntimeError, match="without overflow"):
        torch.zeros(2, dtype=half).masked_fill(torch.tensor([True, False]), -1e9)
    lowest = torch.tensor([torch.finfo(half).min] * 2, dtype=half)
    assert torch.isinf(lowest + torch.tensor([-15.9, -16.0], dtype=half)).tolist() == [False, True]
    far = torch.tensor(-1e9, dtype=brain)
    after = torch.nextafter(far, torch.tensor(0.0, dtype=brain))
    assert fact("bfloat-grain") == (after.double() - far.double()).item()
    assert (far + 100 == far).item()


def documented() -> Any:
    """The program that PyTorch's documentation shows for its function."""
    lines = str(scaled_dot_product_attention.__doc__).splitlines()
    first = next(
        n for n, line in enumerate(lines) if line.strip().startswith("def scaled_dot_product_attention")
    )
    last = next(n for n in range(first, len(lines)) if lines[n].strip().startswith("return "))
    space = {"torch": torch, "math": math}
    exec(textwrap.dedent("\n".join(lines[first : last + 1])), space)
    return space["scaled_dot_product_attention"]


def test_what_is_said_of_the_documented_program_and_of_the_function() -> None:
    """If this fails after an update of PyTorch, the table on the page is out of date."""
    program, function = documented(), scaled_dot_product_attention
    q, k, v = (torch.randn(1, 2, 4, 8) for _ in range(3))
    torch.testing.assert_close(program(q, k, v), function(q, k, v))
    blind = torch.ones(4, 4, dtype=torch.bool)
    blind[1] = False
    assert program(q, k, v, blind)[0, 0, 1].isnan().all()
    assert (function(q, k, v, blind)[0, 0, 1] == 0).all()
    large = torch.full((1, 1, 3, 64), 40.0, dtype=torch.float16)
    assert program(large, large, large).isnan().all()
    assert function(large, large, large).unique().tolist() == [40]
    seen = torch.ones(4, 4, dtype=torch.bool)
    seen[:, 1] = False
    with pytest.raises(AssertionError):
        program(q, k, v, seen, is_causal=True)
    both = function(q, k, v, seen, is_causal=True)
    torch.testing.assert_close(both, function(q, k, v, seen & torch.ones(4, 4, dtype=torch.bool).tril()))
    with sdpa_kernel(SDPBackend.MATH), pytest.raises(RuntimeError, match="should not be set when is_causal"):
        function(q, k, v, seen, is_causal=True)
    four = torch.randn(1, 4, 4, 8)
    for one in (program, function):
        with pytest.raises(RuntimeError, match="must match"):
            one(four, k, v)
        torch.testing.assert_close(
            one(four, k, v, enable_gqa=True),
            function(four, k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)),
        )
        few = one(q[:, :, :2], k, v, is_causal=True)
        torch.testing.assert_close(few[:, :, 0], v[:, :, 0])  # the first query sees the first key alone
        with torch.no_grad():
            assert not torch.allclose(one(q, k, v, dropout_p=0.5), function(q, k, v))
