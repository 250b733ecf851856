"""A close look at a head shows what the reference computes of all heads at once."""

import math

import numpy as np
import pytest
from hypothesis import given as for_all
from hypothesis import settings
from hypothesis import strategies as st

from kernels import closeup
from kernels.engines.reference import reference
from kernels.execute import materialise
from kernels.operands import operands
from kernels.spec import parse_run
from kernels.spec.results import MATRICES
from tests.kernels.cases import Case, cases, make

ALL = ("out", "lse", *MATRICES)


def heads_of(case: Case):
    spec, arrays = case.on("reference")
    given = operands(spec, arrays, dtype=np.float64)
    whole = reference(spec, arrays, ALL)
    for b in range(given.q.shape[0]):
        for h in range(given.q.shape[1]):
            yield closeup.one_head(given, b, h), {name: array[b, h] for name, array in whole.items()}


@settings(max_examples=60, deadline=None)
@for_all(case=cases(), limit=st.sampled_from([2, 3, 1000]))
def test_pictures_are_of_what_the_reference_computes(case: Case, limit: int) -> None:
    for head, whole in heads_of(case):
        n, m = head.q.shape[2], head.k.shape[2]
        seen = closeup.pictures(head, limit)
        np.testing.assert_array_equal(seen.out, whole["out"][:n])
        np.testing.assert_array_equal(seen.lse, whole["lse"][:n])
        for name in MATRICES:
            source = whole[name][:n, :m]
            assert seen.matrices[name].shape == (
                math.ceil(n / seen.row_block),
                math.ceil(m / seen.column_block),
            )
            for i, row in enumerate(seen.matrices[name]):
                strip = source[i * seen.row_block : (i + 1) * seen.row_block]
                blocks = [strip[:, j : j + seen.column_block].max() for j in range(0, m, seen.column_block)]
                assert row.tolist() == blocks


@settings(max_examples=60, deadline=None)
@for_all(case=cases(), data=st.data())
def test_the_steps_of_a_cell_lead_to_its_weight(case: Case, data: st.DataObject) -> None:
    for head, whole in heads_of(case):
        n, m = head.q.shape[2], head.k.shape[2]
        if not n or not m:
            continue
        i, j = data.draw(st.integers(0, n - 1)), data.draw(st.integers(0, m - 1))
        cell = closeup.cell(head, i, j)
        assert cell.score == pytest.approx(cell.scale * math.fsum(cell.q * cell.k), rel=1e-12, abs=1e-12)
        capped = cell.softcap * math.tanh(cell.score / cell.softcap) if cell.softcap else cell.score
        assert cell.softcapped == pytest.approx(capped, rel=1e-12)
        shifted = capped + cell.alibi + cell.bias
        if cell.is_allowed and math.isfinite(shifted):
            assert cell.masked == pytest.approx(shifted, rel=1e-9, abs=1e-9)
        if not cell.is_allowed:
            assert cell.masked == -math.inf
        for name, value in (("scores", cell.score), ("masked_scores", cell.masked), ("weights", cell.weight)):
            np.testing.assert_allclose(value, whole[name][i, j], rtol=1e-12)
        if cell.total:
            assert cell.weight == pytest.approx(cell.exponential / cell.total, rel=1e-12, abs=1e-300)
            assert cell.lse == pytest.approx(
                math.log(cell.total) + max(cell.largest, -1e308), rel=1e-12, abs=1e-12
            )
        else:
            assert (cell.weight, cell.lse) == (0.0, -math.inf)
        np.testing.assert_allclose(cell.out, whole["out"][i], rtol=1e-12, atol=1e-300)


@settings(max_examples=40, deadline=None)
@for_all(case=cases())
def test_a_head_alone_is_the_same_head_and_holds_no_other(case: Case) -> None:
    for head, whole in heads_of(case):
        alone = closeup.alone(head)
        np.testing.assert_array_equal(closeup.pictures(alone, 1000).out, whole["out"][: head.q.shape[2]])
        for name in ("q", "k", "v", "mask", "bias"):
            array = getattr(alone, name)
            if array is None:
                continue
            assert not np.shares_memory(array, getattr(head, name)) or not array.size
            root = array
            while root.base is not None:
                root = root.base
            assert root.size <= array.size, name


def test_strips_are_whole_blocks_and_small(monkeypatch) -> None:
    monkeypatch.setattr(closeup, "STRIP", 40)
    spec, arrays = make("reference", (1, 1, 1, 23, 7, 4), attention={"is_causal": True})
    head = closeup.one_head(operands(spec, arrays, dtype=np.float64), 0, 0)
    tall = [(start, len(part.q)) for start, part in closeup.strips(head, 3)]
    assert tall == [(start, min(3, 23 - start)) for start in range(0, 23, 3)]
    whole = reference(spec, arrays, ("weights",))["weights"][0, 0]
    seen = closeup.pictures(head, 8)
    np.testing.assert_array_equal(
        seen.matrices["weights"], np.maximum.reduceat(whole, range(0, 23, 3), axis=0)
    )


def test_entropy_of_rows() -> None:
    weights = np.array([[0.25] * 4, [1, 0, 0, 0], [0.5, 0.5, 0, 0], [0, 0, 0, 0]])
    np.testing.assert_allclose(closeup.entropy(weights), [math.log(4), 0, math.log(2), 0])


def test_the_inputs_of_a_run_may_have_any_rank() -> None:
    values = np.arange(24.0).reshape(1, 6, 4) / 24
    body = {
        "engine": "flash",
        "inputs": {name: values.tolist() for name in "qkv"},
        "attention": {"num_heads": 2, "is_causal": True},
    }
    parsed = parse_run(body)
    given = closeup.look(parsed.spec, materialise(parsed.spec, parsed.arrays))
    head = closeup.one_head(given, 0, 1)
    np.testing.assert_allclose(head.q[0, 0], values[0, :, 2:], rtol=1e-7)
    assert closeup.cell(head, 0, 1).is_allowed is False
    for wrong in ((0, 2), (1, 0), (-1, 0)):
        with pytest.raises(IndexError):
            closeup.one_head(given, *wrong)
    with pytest.raises(IndexError):
        closeup.cell(head, 6, 0)
