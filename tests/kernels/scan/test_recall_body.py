"""The simulator of recall: figures, events and sizes are those of the memories that it asks."""

import math

import numpy as np
import pytest

from kernels.scan.recall import (
    attention_recall,
    copied_fraction,
    copy_pairs,
    expected_accuracy,
    linear_recall,
    recall_pairs,
)
from kernels.scan.recall_body import simulate
from kernels.spec import SpecError


def answers(answer, name):
    return [event["details"][name] for event in answer["events"]]


def test_every_pair_is_asked_and_every_answer_is_a_memorys():
    answer = simulate({"task": "recall", "pairs": 90, "d_k": 16, "vocabulary": 8, "seed": 5})
    pairs = recall_pairs(90, d_k=16, vocabulary=8, seed=5)
    memories = answer["summary"]["memories"]
    assert [event["ids"]["pair"] for event in answer["events"]] == list(range(90))
    assert answers(answer, "symbol") == pairs.symbols.tolist() == answers(answer, "attention")
    for name, found in (
        ("attention", attention_recall(pairs)),
        ("linear", linear_recall(pairs)),
        ("delta", linear_recall(pairs, delta=True)),
    ):
        assert answers(answer, f"{name}_right") == found.right.tolist()
        right = [said == symbol for said, symbol in zip(answers(answer, name), pairs.symbols, strict=True)]
        assert right == found.right.tolist()
        assert memories[name] == {"accuracy": found.accuracy, "squared_error": found.squared_error}


def test_what_is_expected_has_a_closed_form_for_random_keys_alone():
    def expected(**body):
        return simulate(body)["summary"]["expected_accuracy"]

    assert expected(task="recall", pairs=64, d_k=16) == expected_accuracy(64, d_k=16, vocabulary=32)
    assert expected(task="recall", pairs=16, d_k=16) == 1.0
    assert expected(task="copy", tokens=16, d_k=16) == 1.0
    assert expected(task="copy", tokens=17, d_k=16) is None
    assert expected(task="recall", keys=[[1, 0], [0, 1]], symbols=[0, 1]) is None


def test_a_sweep_is_the_same_asked_many_times():
    body = {"task": "recall", "d_k": 8, "vocabulary": 6, "seed": 2}
    swept = simulate({**body, "sweep": {"counts": [5, 40, 8]}})["sweep"]
    assert swept["counts"] == [5, 40, 8]
    for index, count in enumerate(swept["counts"]):
        alone = simulate({**body, "pairs": count})["summary"]
        for name, memory in alone["memories"].items():
            assert swept[name][index] == memory["accuracy"]
        assert swept["delta_squared_error"][index] == alone["memories"]["delta"]["squared_error"]
        for name in ("expected_accuracy", "least_squared_error", "copied_fraction"):
            assert swept[name][index] == alone[name]
    assert simulate(body)["sweep"] is None


def test_a_copy_of_different_symbols_is_as_far_off_as_linear_algebra_says():
    answer = simulate({"task": "copy", "tokens": 40, "d_k": 16, "vocabulary": None})
    assert answer["vocabulary"] == 40
    assert answers(answer, "symbol") == list(range(40))
    summary = answer["summary"]
    assert summary["least_squared_error"] == 24 / 40
    assert summary["memories"]["linear"]["squared_error"] == pytest.approx(24 / 40)
    assert summary["memories"]["attention"]["accuracy"] == 1.0


def test_a_text_of_ones_own_is_copied():
    text = [7, 3, 3, 0, 5]
    answer = simulate({"task": "copy", "symbols": text, "d_k": 4})
    assert answers(answer, "symbol") == answers(answer, "attention") == text
    assert (answer["pairs"], answer["vocabulary"], answer["seed"]) == (5, 8, None)
    assert simulate({"task": "copy", "symbols": text, "vocabulary": 20})["vocabulary"] == 20
    keys = copy_pairs(5, d_k=4, vocabulary=8).keys
    by_keys = simulate({"task": "recall", "keys": keys.tolist(), "symbols": text})
    assert answers(by_keys, "linear") == answers(answer, "linear")


def test_of_keys_of_ones_own_the_direction_counts():
    keys = np.array([[3.0, 1.0, 0.0], [0.0, 2.0, 1.0], [1.0, 0.0, 5.0]])
    large, small = (
        simulate({"task": "recall", "keys": (keys * by).tolist(), "symbols": [0, 1, 2]})
        for by in (1e30, 1e-300)
    )
    assert large == small
    assert large["d_k"] == 3
    # Σ k vᵀ asked for key i gives the products of i with all keys, the symbols being all different
    unit = keys / np.linalg.norm(keys, axis=1, keepdims=True)
    assert answers(large, "linear") == (unit @ unit.T).argmax(1).tolist() == [0, 1, 2]


@pytest.mark.parametrize(("dtype", "item"), [("float32", 4), ("float16", 2), ("bfloat16", 2)])
def test_a_state_beside_a_cache(dtype, item):
    """A state has d_k · V numbers, a pair in a cache d_k + V; what b bits can copy is 2^b of V^N."""
    summary = simulate({"task": "copy", "tokens": 300, "d_k": 2, "vocabulary": 2, "dtype": dtype})["summary"]
    assert summary["state"] == {"numbers": 4, "bits": 32 * item, "bytes": 4 * item}
    assert summary["kv_cache"] == {"bytes": 300 * 4 * item, "bytes_per_pair": 4 * item}
    assert summary["break_even_pairs"] == 2
    assert summary["needed_bits"] == 300.0
    assert summary["copied_fraction"] == 2.0 ** (32 * item - 300)
    assert summary["copied_fraction"] == copied_fraction(32 * item, tokens=300, vocabulary=2)
    assert math.isclose(summary["sharpness"], (math.log(300) + 1) / (1 - math.cos(2 * math.pi / 300)))


def test_what_takes_too_long_names_what_is_too_many():
    for body, pointer in (
        ({"task": "recall", "pairs": 1024, "d_k": 256}, "/pairs"),
        ({"task": "copy", "symbols": list(range(1024))}, "/symbols"),
        ({"task": "copy", "d_k": 256, "sweep": {"counts": [1024]}}, "/sweep/counts"),
    ):
        with pytest.raises(SpecError) as caught:
            simulate(body)
        assert [problem.pointer for problem in caught.value.problems] == [pointer]
        assert "at most 400,000,000" in caught.value.problems[0].detail
