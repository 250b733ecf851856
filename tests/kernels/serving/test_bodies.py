"""Whatever a body holds, it is answered or its mistakes are named; nothing else is ever raised."""

import copy
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.simulators import SIMULATORS
from kernels.spec import SpecError
from tests.support.spoiling import spoiled

DRAWN = {
    "paged-allocator": {"workload": {"requests": 3, "samples": 2, "prompt_len": [1, 9], "output_len": 3}},
    "batching": {
        "trace": {"requests": 4, "rate": 2, "output_len": [1, 3]},
        "cost": {"fixed": 1, "per_token": 1},
    },
    "speculative": {
        "target": [[0.5, 0.5], [1, 0]],
        "draft": [[0, 1], [0.5, 0.5]],
        "gamma": 2,
        "sequences": 3,
    },
    "recall": {"task": "copy", "symbols": [0, 2, 1, 2], "d_k": 2},
    "prefix-cache": {"capacity": 50, "conversations": {"conversations": 2, "systems": 1, "system_len": 3}},
}
BODIES = [(name, body) for name, each in SIMULATORS.items() for body in (each.example, DRAWN[name])]
ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 40),
    st.sampled_from([2**63, 10**400, 1e308, 1e-320, -0.0, 0.5, 10**6]),
    st.sampled_from(["", "a", "inf", "=1", "\x00", "x" * 99, "append", "static", "ä"]),
    st.lists(st.one_of(st.integers(-1, 9), st.none(), st.lists(st.integers(0, 1), max_size=2)), max_size=4),
    st.dictionaries(st.sampled_from(["op", "seed", "x/~"]), st.integers(), max_size=2),
)


@given(spoiled(BODIES, ODD, ["x/~", "tokens", "seed", "requests"]))
def test_a_spoiled_body_is_answered_or_its_mistakes_are_named(case):
    name, body = case
    try:
        answer = SIMULATORS[name].simulate(body)
    except SpecError as error:
        for problem in error.problems:
            assert 0 < len(problem.detail) < 400
            assert problem.status in (400, 413, 422)
            assert problem.pointer == "" or problem.pointer.startswith("/")
    else:
        json.dumps(answer, allow_nan=False)


@pytest.mark.parametrize(("name", "body"), BODIES)
def test_the_body_is_not_changed(name, body):
    before = copy.deepcopy(body)
    SIMULATORS[name].simulate(body)
    assert body == before


@pytest.mark.parametrize("lengths", [10**400, [1, -(10**400)]], ids=["alone", "in a pair"])
def test_a_number_that_is_no_length_is_described_and_not_repeated(lengths):
    with pytest.raises(SpecError) as caught:
        SIMULATORS["paged-allocator"].simulate({"workload": {"prompt_len": lengths}})
    (problem,) = caught.value.problems
    assert problem.pointer == "/workload/prompt_len"
    assert "an integer of 1329 bits" in problem.detail
    assert len(problem.detail) < 200
