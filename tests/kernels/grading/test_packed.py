"""Students who are given heads side by side, [batch, len, heads·dim], get the numbers that are graded."""

import numpy as np

from kernels.grading.cases import drawn_inputs, make_inputs
from kernels.grading.problem import parse_problem

SHAPE = {
    "batch": 2,
    "num_heads": 4,
    "num_kv_heads": 2,
    "q_len": 5,
    "kv_len": 7,
    "head_dim": 6,
    "v_head_dim": 3,
}


def test_drawn_inputs_are_packed_where_the_problem_says_how_many_heads() -> None:
    problem = parse_problem(
        {
            "slug": "packed",
            "title": "Packed",
            "spec": {"attention": {"num_heads": 4, "num_kv_heads": 2}},
            "answer": ["out"],
            "cases": [{"name": "one", "shape": SHAPE}],
            "properties": ["value_of_ones"],
        }
    )
    case = problem.case("one")
    given, graded = make_inputs(problem, case, 7), drawn_inputs(case, [3, 7])
    assert {name: array.shape for name, array in given.items()} == {
        "q": (2, 5, 24),
        "k": (2, 7, 12),
        "v": (2, 7, 6),
    }
    for name, heads in (("q", 4), ("k", 2), ("v", 2)):
        width = given[name].shape[-1] // heads
        for head in range(heads):
            side = given[name][..., head * width : (head + 1) * width]
            np.testing.assert_array_equal(side, graded[name][1][:, head])
    ones = make_inputs(problem, problem.case("one.value_of_ones"), 7)["v"]
    assert ones.shape == (2, 7, 6)
    assert (ones == 1).all()
