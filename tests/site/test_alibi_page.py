"""The page on a penalty for distance: its figures, what the lab makes of them, the numbers of its text."""

import json
import math
import re

import numpy as np
import pytest

from concepts.facts import FACTS
from concepts.figures import Links
from concepts.figures.alibi import FIGURES, FORMS, fraction
from kernels.engines.reference import reference
from kernels.execute import materialise
from kernels.positions import automatic_slopes
from kernels.spec import parse_run
from lab.form.forms import LabForm

PENALTY, ROW = FIGURES
LINKS = Links("/page/", "/fragment/", "/lab/")


def fact(name: str) -> str:
    return FACTS[f"alibi-{name}"].text


def numbers(name: str) -> list[float]:
    return [
        float(one) for one in re.findall(r"−?[\d.,]+\d|−?\d", fact(name).replace("−", "-").replace("(", ""))
    ]


def computed(pairs: list[tuple[str, str]]) -> np.ndarray:
    """What the reference engine makes of a link to the lab: [heads, queries, numbers]."""
    form = LabForm.from_link(dict(pairs))
    body = form.body()
    assert not form.errors
    parsed = parse_run({**body, "engine": "reference"})
    shape = parsed.spec.canonical_shape
    arrays = {name: x.reshape(shape(name)) for name, x in materialise(parsed.spec, parsed.arrays).items()}
    return reference(parsed.spec, arrays, ("out",))["out"][0]


# -- a slope for each head -----------------------------------------------------------------------------------


def test_the_figure_opens_with_the_slopes_of_the_paper() -> None:
    found = PENALTY.data({})
    assert found["slopes"] == [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256]
    table = re.sub(r"<[^>]+>", " ", str(PENALTY.table(found["values"])))
    assert re.search(r"\b8\s+1/256\s+1,179\s+13\.5", table)
    assert re.search(r"\b1\s+1/2\s+10\s", table)


@pytest.mark.parametrize("slope", range(8))
def test_windows_and_what_lies_beyond_are_those_of_a_row_of_weights(slope: int) -> None:
    found = PENALTY.data({"tokens": "100"})
    weights = np.exp(-found["slopes"][slope] * np.arange(20_000))
    weights /= weights.sum()
    window = found["windows"][slope]
    assert weights[:window].sum() >= 0.99 > weights[: window - 1].sum()
    assert found["beyond"][slope] == pytest.approx(weights[100:].sum())


def test_a_head_that_is_not_there_is_the_last_one() -> None:
    values = PENALTY.data({"heads": "4", "which": "60"})["values"]
    assert "Head 4, of slope 1/256," in PENALTY.sentence(values)


def test_the_table_has_the_chosen_head_and_the_first_and_the_last() -> None:
    listed = PENALTY.listed(PENALTY.data({"heads": "112", "which": "70"})["values"])
    assert {1, 70, 112} <= {number for number, _slope in listed}
    assert len(listed) <= 9
    assert all(slope == automatic_slopes(112)[number - 1] for number, slope in listed)


@pytest.mark.parametrize(("slope", "text"), [(0.5, "1/2"), (2**-8, "1/256"), (2**-0.5, "0.7071")])
def test_a_slope_is_a_fraction_where_it_can_be(slope: float, text: str) -> None:
    assert fraction(slope) == text


@pytest.mark.parametrize("heads", ["8", "12", "112"])
def test_the_lab_gets_the_slopes_of_the_table(heads: str) -> None:
    values = PENALTY.data({"heads": heads, "tokens": "16"})["values"]
    form = LabForm.from_link(dict(PENALTY.lab(values)))
    body = form.body()
    assert not form.errors
    assert body["attention"]["alibi_slopes"] == [slope for _number, slope in PENALTY.listed(values)]
    assert parse_run(body).spec.attention.is_causal


# -- one row -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("query", ["1", "5", "10"])
@pytest.mark.parametrize("form", [name for name, _words in FORMS])
def test_the_lab_computes_the_weights_that_are_shown(form: str, query: str) -> None:
    found = ROW.data({"form": form, "query": query, "far": "4", "lead": "1.5"})
    out = computed(ROW.lab(found["values"]))
    np.testing.assert_allclose(out[:, 0], found["weights"], atol=1e-12)


def test_weights_of_a_row_are_written_out() -> None:
    """Head 3, m = 1/8: key 2 leads by 2, the query is the last of ten."""
    found = ROW.data({})
    powers = [math.exp((2.0 if key == 2 else 0.0) - (10 - key) / 8) for key in range(1, 11)]
    assert found["weights"][2] == pytest.approx([power / sum(powers) for power in powers])


def test_both_sides_are_alike_and_halves_look_one_way() -> None:
    both = np.array(ROW.data({"form": "symmetric", "query": "5", "lead": "0"})["weights"])
    np.testing.assert_allclose(both[:, 3], both[:, 5])
    halves = np.array(ROW.data({"form": "halves", "query": "5", "lead": "0"})["weights"])
    assert (halves[:4, 5:] == 0).all()
    assert (halves[4:, :4] == 0).all()
    np.testing.assert_allclose(halves[:4, 3] / halves[:4, 4], halves[4:, 5] / halves[4:, 4])


def test_the_sentence_says_who_sees_what() -> None:
    def told(**state: str) -> str:
        return ROW.sentence(ROW.data(state)["values"])

    assert "Key 2 leads by 2 and stands 8 from query 10: head 1 gives it 0.051" in told()
    assert told(query="3", far="7") == "Key 7 comes after query 3: no head may see it."
    assert "What comes later gains" in told(form="signed", query="5")
    assert "gains" not in told(form="signed", query="10")


def test_what_is_masked_stands_as_minus_infinity_and_as_null() -> None:
    found = ROW.data({"query": "1"})
    assert json.loads(json.dumps(found))["added"][0] == [0.0, *[None] * 9]
    assert ROW.render({"query": "1"}, LINKS).count("−∞") == 8 * 9


# -- the text ------------------------------------------------------------------------------------------------


def test_the_row_by_hand() -> None:
    powers = [math.exp(-0.25 * back) for back in (4, 3, 2, 1, 0)]
    assert fact("hand-biases") == "(−1.00, −0.75, −0.50, −0.25, 0.00)"
    assert numbers("hand-powers") == pytest.approx(powers, abs=5e-5)
    assert numbers("hand-sum") == pytest.approx([sum(powers)], abs=5e-5)
    assert numbers("hand-weights") == pytest.approx([one / sum(powers) for one in powers], abs=5e-5)


def test_figures_of_the_text() -> None:
    assert numbers("twelve") == pytest.approx([2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5], abs=5e-5)
    assert fact("window-first") == str(math.ceil(2 * math.log(100))) == "10"
    assert fact("window-last") == fact("bloom-window") == f"{math.ceil(256 * math.log(100)):,}" == "1,179"
    assert fact("story") == f"{math.ceil(65536 * math.log(100)):,}"
    assert fact("beyond-512") == f"{100 * math.exp(-2):.1f}"
    assert fact("beyond-1024") == f"{100 * math.exp(-4):.1f}"
    assert (fact("reach-first"), fact("reach-last")) == ("20", "2,560")
    assert (fact("bloom"), fact("bloom-tokens")) == ("112", "2,048")
    assert fact("learned") == f"{1024 * 768:,}"
    assert fact("buckets") == str(32 * 12)


def test_keys_that_bfloat16_tells_apart() -> None:
    import torch

    products = (torch.arange(1984, 2048) * 0.5).to(torch.bfloat16)
    assert fact("bf16") == str(len(products.unique()))
    near = (torch.arange(64) * 0.5).to(torch.bfloat16)
    assert len(near.unique()) == 64
