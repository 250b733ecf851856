"""The page on what came before attention: slopes as differences, alignments that add up."""

import math

import numpy as np
import pytest

from concepts.facts import FACTS
from concepts.figures import Links, registry
from concepts.figures.before_attention import MATCH, SOURCE, STATE, TARGET, alignment, slopes
from kernels.arrays import generate

LINKS = Links("/page/", "/fragment/", "/lab/")


def last_state(first: np.ndarray, tokens: int, gain: float) -> np.ndarray:
    """The recurrence once more, from its first state on."""
    turn, _rest = np.linalg.qr(generate("before/turn", 1, (STATE, STATE), "normal", "float64"))
    inputs = 0.5 * generate("before/inputs", 1, (200, STATE), "normal", "float64")
    state = first
    for token in inputs[1:tokens]:
        state = np.tanh(gain * (turn @ state) + token)
    return state


@pytest.mark.parametrize("gain", [0.7, 1.0, 2.0])
def test_slopes_are_those_of_the_recurrence(gain: float) -> None:
    tokens, step = 6, 1e-6
    first = np.tanh(0.5 * generate("before/inputs", 1, (200, STATE), "normal", "float64")[0])
    columns = [
        (last_state(first + step * e, tokens, gain) - last_state(first - step * e, tokens, gain)) / (2 * step)
        for e in np.eye(STATE)
    ]
    found = slopes(tokens, gain)
    assert len(found) == tokens
    assert found[0] == 1
    assert found[-1] == pytest.approx(math.sqrt(np.square(columns).sum() / STATE), rel=1e-6)


@pytest.mark.parametrize(("gain", "tokens"), [(0.1, 200), (3.0, 200), (1.0, 2)])
def test_the_extremes_can_be_drawn(gain: float, tokens: int) -> None:
    figure = registry()["paths"]
    state = {"gain": str(gain), "tokens": str(tokens)}
    assert "nan" not in figure.render(state, LINKS)
    assert np.isfinite(figure.data(state)["slopes"]).all()


@pytest.mark.parametrize(("causal", "pairs"), [("0", "2,500"), ("1", "1,275")])
def test_a_causal_layer_has_half_of_the_pairs(causal: str, pairs: str) -> None:
    html = registry()["paths"].render({"causal": causal}, LINKS)
    assert f'<td class="num">{pairs}</td>' in html


def test_rows_or_columns_add_up_as_was_chosen() -> None:
    rows, columns = (alignment(4.0, by).shown for by in ("rows", "columns"))
    np.testing.assert_allclose(rows.sum(axis=1), 1)
    np.testing.assert_allclose(columns.sum(axis=0), 1)
    assert not np.allclose(rows.sum(axis=0), 1)
    powers = np.exp(4.0 * MATCH)
    np.testing.assert_allclose(rows, powers / powers.sum(axis=1, keepdims=True))
    np.testing.assert_allclose(columns, rows / rows.sum(axis=0))


def test_each_word_looks_most_at_its_translation() -> None:
    pairs = {TARGET[i]: SOURCE[int(j)] for i, j in enumerate(alignment(4.0, "rows").weights.argmax(axis=1))}
    assert pairs == {
        "la": "the", "zone": "Area", "économique": "Economic", "européenne": "European", "fut": "was",
        "convenue": "agreed",
    }  # fmt: skip


def test_a_cell_is_read_both_ways() -> None:
    html = registry()["translation"].render({"cell": "1,4"}, LINKS)
    weights = alignment(4.0, "rows").weights
    share = weights[0, 3] / weights[:, 3].sum()
    assert (
        f'<p data-for="1,4">“la” gives “Area” {weights[0, 3]:.3f} of its attention.'
        f" That is {share:.3f} of all that “Area” gets.</p>"
    ) in html


@pytest.mark.parametrize(
    ("name", "text"),
    {
        "left": "0.95", "equal": "0.02", "half": "0.50", "two": "80", "vector": "1,000", "bits": "14.9",
        "vocabulary": "30,000", "words": "1,075", "ten": "0.107", "fifty": "0.000014",
        "fifty-times": "1,401", "la-area": "0.27", "area": "1.27",
    }.items(),
)  # fmt: skip
def test_facts(name: str, text: str) -> None:
    assert FACTS[f"before-{name}"].text == text
