"""The page of debates: a training bill and two measures of one curve, by sums made here."""

from typing import Any

import numpy as np
import pytest

from concepts.facts import FACTS
from concepts.figures.debates import FIGURES

TRAINING, EMERGENCE = FIGURES


def bill(**state: str) -> dict[str, Any]:
    found: dict[str, Any] = TRAINING.data(state)
    return found


def fact(name: str) -> float:
    return float(FACTS[f"debates-{name}"].text)


def test_gpt_3_as_its_paper_has_it() -> None:
    # Brown et al. 2020, table D.1: 3.14e23 operations for 174.6 billion parameters and 300 billion tokens.
    assert bill()["flops"] == pytest.approx(3.14e23, rel=0.005)
    hours = 6 * 175e9 * 300e9 / (0.4 * 312e12) / 3600
    assert bill()["gpu_hours"] == pytest.approx(hours)
    assert (fact("hours"), fact("days"), fact("cost")) == (0.7, round(hours / 1024 / 24), 1.4)


def test_the_bill_follows_its_controls() -> None:
    usual = bill()
    assert bill(price="4")["dollars"] == 2 * usual["dollars"]
    assert bill(count="2048")["days"] == usual["days"] / 2
    assert bill(share="80")["gpu_hours"] == usual["gpu_hours"] / 2
    assert bill(gpu="h100-sxm")["gpu_hours"] == pytest.approx(usual["gpu_hours"] * 312 / 989)
    assert bill(n="350")["flops"] == 2 * usual["flops"]


@pytest.mark.parametrize("k", [1, 5, 20, 100])
def test_an_answer_is_right_if_all_of_its_tokens_are(k: int) -> None:
    data = EMERGENCE.data({"k": str(k)})
    tokens, answers = np.array(data["token"]), np.array(data["answer"])
    np.testing.assert_allclose(answers, np.prod([tokens] * k, axis=0), rtol=1e-12)
    assert tokens[np.array(data["size"]) == 0] == 0.5
    assert (np.diff(tokens) > 0).all()


def test_numbers_of_the_text() -> None:
    def tokens(scale: float) -> float:
        return 1 / (1 + np.exp(-0.9 * scale))

    assert fact("half-answers") == pytest.approx(100 * 0.5**20, rel=0.06)
    assert fact("more-tokens") == round(100 * tokens(2))
    assert fact("more-answers") == round(100 * tokens(2) ** 20)
    assert fact("most-tokens") == round(100 * tokens(4))
    assert fact("most-answers") == round(100 * tokens(4) ** 20)


def test_the_sentence_tells_the_two_measures_apart() -> None:
    said, alone = (EMERGENCE.sentence({"k": k}).replace("\u00a0", " ") for k in (20, 1))
    assert said.startswith(
        "Where 50 % of the tokens are right, less than 0.01 % of whole answers are (k = 20)"
    )
    assert alone.startswith("Where 50 % of the tokens are right, 50 % of whole answers are (k = 1)")
