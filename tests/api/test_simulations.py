"""Simulators over HTTP: answered at once, the same every time, as JSON or as CSV."""

import csv
import io
import time

import pytest

from kernels.simulators import SIMULATORS
from tests.api.helpers import assert_problem, validator

pytestmark = pytest.mark.django_db

COST = {"fixed": 0.02, "per_token": 0.0001}
SEEDED = {
    "paged-allocator": {"workload": {"seed": 3, "samples": 2}, "num_blocks": 40},
    "batching": {
        "trace": {"seed": 3, "rate": 5},
        "policies": ["static", "continuous", "chunked"],
        "cost": COST,
    },
    "speculative": {"target": [[0.5, 0.5], [1, 0]], "draft": [0.25, 0.75], "sequences": 20, "seed": 3},
    "prefix-cache": {"conversations": {"seed": 3}, "capacity": 300},
    "recall": {"task": "copy", "tokens": 40, "vocabulary": 5, "seed": 3},
}
LARGEST = {
    "paged-allocator": {
        "num_blocks": 4096,
        "block_size": 1,
        "workload": {"requests": 64, "running": 64, "prompt_len": [500, 3000], "output_len": [25, 28]},
    },
    "batching": {
        "trace": {"requests": 330, "rate": 1e6, "prompt_len": 1000, "output_len": 15},
        "policies": ["static", "continuous", "chunked"],
        "max_batch": 256,
        "cost": COST,
    },
    "speculative": {"target": [1 / 128] * 128, "draft": [1] + [0] * 127, "gamma": 16, "tokens": 5000},
    "prefix-cache": {
        "capacity": 5000,
        "conversations": {"conversations": 500, "turns": 1, "systems": 500, "system_len": 65},
    },
    "recall": {
        "task": "recall",
        "pairs": 1024,
        "d_k": 64,
        "vocabulary": 64,
        "sweep": {"counts": [512, *range(1, 32)]},
    },
}


def simulate(api, name, body, query="", **headers):
    return api.post(f"/simulations/{name}{query}", body, **headers)


def described(document, name, kind):
    """What checks against the schema of a simulator's Request or Answer."""
    return validator(document, "".join(word.capitalize() for word in name.split("-")) + kind)


def test_the_list_leads_to_each_with_an_example_that_works(api, document):
    found = api.get("/simulations").json()["simulations"]
    assert [each["name"] for each in found] == list(SIMULATORS)
    for each in found:
        assert each["limits"]["events"] == 20_000
        answer = api.post(each["url"].partition("/api/v1")[2], each["example"])
        assert answer.status_code == 200
        assert answer.json()["events"]


@pytest.mark.parametrize("name", SIMULATORS)
@pytest.mark.parametrize("bodies", [SEEDED, {name: each.example for name, each in SIMULATORS.items()}])
def test_answers_are_as_described_and_the_same_every_time(api, alice, document, name, bodies):
    body = bodies[name]
    described(document, name, "Request").validate(body)
    answer = simulate(api, name, body)
    assert answer.status_code == 200
    described(document, name, "Answer").validate(answer.json())
    assert simulate(alice, name, body).content == answer.content


@pytest.mark.parametrize("name", SIMULATORS)
def test_another_seed_is_another_simulation(api, name):
    def with_seed(seed):
        inner = next((key for key in ("workload", "trace", "conversations") if key in SEEDED[name]), None)
        body = SEEDED[name]
        changed = {**body, inner: {**body[inner], "seed": seed}} if inner else {**body, "seed": seed}
        return simulate(api, name, changed).json()["events"]

    assert with_seed(1) != with_seed(2)
    assert with_seed(2**63 - 1)


@pytest.mark.parametrize("name", SIMULATORS)
def test_the_events_are_a_file_for_a_spreadsheet(api, name):
    events = simulate(api, name, SEEDED[name]).json()["events"]
    answer = simulate(api, name, SEEDED[name], "?format=csv")
    assert answer["Content-Type"] == "text/csv; charset=utf-8"
    assert answer["Content-Disposition"] == f'attachment; filename="{name}-events.csv"'
    rows = list(csv.DictReader(io.StringIO(answer.content.decode(), newline="")))
    assert [row["kind"] for row in rows] == [event["kind"] for event in events]
    for row, event in zip(rows, events, strict=True):
        assert float(row["time"]) == event["time"]
        assert all(row[name] == str(value) for name, value in event["ids"].items())
    assert simulate(api, name, SEEDED[name], accept="text/csv").content == answer.content


@pytest.mark.parametrize("name", SIMULATORS)
def test_the_largest_that_is_accepted_is_answered_soon(api, name):
    """A web thread computes it, so it must be short; and the answer is bounded as well."""
    start = time.process_time()
    answer = simulate(api, name, LARGEST[name])
    assert answer.status_code == 200, answer.content[:300]
    assert time.process_time() - start < 3
    assert len(answer.content) < 8 * 2**20


# --- What is refused -------------------------------------------------------------------------


def allocate(*names, **more):
    return [{"op": "allocate", "sequence": name, "tokens": 2, **more} for name in names]


def paged(*operations, **more):
    return "paged-allocator", {"operations": list(operations), **more}


def batching(*requests, **more):
    return "batching", {"requests": list(requests), "cost": COST, **more}


ONE = {"prompt_len": 3, "output_len": 2}

WRONG = {
    "unknown field": (
        "paged-allocator",
        {"workload": {}, "block_sise": 4},
        400,
        "/block_sise",
        ["block_size"],
    ),
    "unknown inner field": (*batching({**ONE, "promt_len": 3}), 400, "/requests/0/promt_len", ["prompt_len"]),
    "no object": ("batching", [1], 400, "", ["object"]),
    "neither of two": ("prefix-cache", {}, 400, "/requests", ["conversations", "neither"]),
    "both of two": (*batching(ONE, trace={}), 400, "/requests", ["both"]),
    "no block": ("paged-allocator", {"workload": {}, "num_blocks": 0}, 422, "/num_blocks", ["1", "4096"]),
    "no such operation": (
        *paged({"op": "grow", "sequence": "a"}),
        422,
        "/operations/0/op",
        ["allocate", "grow"],
    ),
    "an operation without a name": (*paged({"op": "free"}), 400, "/operations/0/sequence", ["required"]),
    "beginning with nobody knows how much": (
        *paged({"op": "allocate", "sequence": "a"}),
        400,
        "/operations/0/tokens",
        ["required"],
    ),
    "a field of another operation": (
        *paged({"op": "free", "sequence": "a", "tokens": 1}),
        400,
        "/operations/0/tokens",
        ["unknown field"],
    ),
    "not there": (
        *paged({"op": "append", "sequence": "a"}),
        422,
        "/operations/0/sequence",
        ['"a"', "allocate"],
    ),
    "freed before": (
        *paged(*allocate("a"), *[{"op": "free", "sequence": "a"}] * 2),
        422,
        "/operations/2/sequence",
        ["no sequence"],
    ),
    "there already": (*paged(*allocate("a", "a")), 422, "/operations/1/sequence", ["already"]),
    "forked from nobody": (
        *paged({"op": "fork", "sequence": "b", "from": "z"}),
        422,
        "/operations/0/from",
        ['"z"'],
    ),
    "forked beyond its parent": (
        *paged(*allocate("a"), {"op": "fork", "sequence": "b", "from": "a", "tokens": 3}),
        422,
        "/operations/1/tokens",
        ["between 0 and 2"],
    ),
    "a name like a formula": (*paged(*allocate("=1+1")), 422, "/operations/0/sequence", ["letters"]),
    "longer than max_len": (*paged(*allocate("a"), max_len=1), 422, "/max_len", ["2 tokens", "raise it"]),
    "too many at once": (
        *paged(*allocate(*map(str, range(65)))),
        413,
        "/operations/64/sequence",
        ["64", "free one"],
    ),
    "too many operations": (*paged(*allocate("a") * 2001), 413, "/operations", ["2,001", "2,000"]),
    "too many tokens": (*paged(*allocate("a", tokens=200_001)), 413, "/operations", ["200,001", "200,000"]),
    "too long a workload": (
        "paged-allocator",
        {"workload": {"requests": 100, "output_len": [100, 100]}},
        413,
        "/workload/requests",
        ["10,200", "2,000"],
    ),
    "a range turned round": (
        "batching",
        {"trace": {"prompt_len": [5, 2]}, "cost": COST},
        422,
        "/trace/prompt_len",
        ["[5, 2]", "least"],
    ),
    "no requests": (*batching(), 422, "/requests", ["empty"]),
    "a request without a length": (*batching({"prompt_len": 1}), 400, "/requests/0/output_len", ["required"]),
    "nothing to produce": (*batching({**ONE, "output_len": 0}), 422, "/requests/0/output_len", ["1"]),
    "earlier than the beginning": (*batching({**ONE, "arrival": -1}), 422, "/requests/0/arrival", ["-1"]),
    "one name for two": (*batching({**ONE, "name": "1"}, ONE), 422, "/requests/1/name", ['"1"']),
    "too much output": (
        *batching({"prompt_len": 1, "output_len": 3000}, {**ONE, "output_len": 2001}),
        413,
        "/requests",
        ["5,001", "5,000"],
    ),
    "never fits the cache": (
        *batching(ONE, kv_capacity=3),
        422,
        "/requests/0",
        ["4 tokens", "kv_capacity is 3"],
    ),
    "no cost": ("batching", {"requests": [ONE]}, 400, "/cost", ["required", "per_token"]),
    "no time at all": (*batching(ONE, cost={"per_context_token": 1}), 422, "/cost", ["take time"]),
    "no such policy": (
        *batching(ONE, policies=["contnuous"]),
        422,
        "/policies/0",
        ["did you mean continuous"],
    ),
    "a policy twice": (*batching(ONE, policies=["static", "static"]), 422, "/policies/1", ["twice"]),
    "a policy that is no word": (*batching(ONE, policies=[["static"]]), 400, "/policies/0", ["a list of 1"]),
    "a budget below the batch": (
        *batching(ONE, policies=["chunked"], max_batch=9, token_budget=8),
        422,
        "/token_budget",
        ["max_batch (9)"],
    ),
    "too many events": (
        *batching({"prompt_len": 30_000, "output_len": 1}, policies=["chunked"], max_batch=1, token_budget=1),
        422,
        "",
        ["20,000 events", "token_budget"],
    ),
    "no sum of one": ("speculative", {"target": [0.5, 0.4], "draft": [1, 0]}, 422, "/target", ["0.9"]),
    "a negative probability": (
        "speculative",
        {"target": [1.5, -0.5], "draft": [1, 0]},
        422,
        "/target/0",
        ["1.5"],
    ),
    "no number": ("speculative", {"target": [True, 0], "draft": [1, 0]}, 400, "/target/0", ["true"]),
    "an infinite one": ("speculative", {"target": ["inf", 0], "draft": [1, 0]}, 400, "/target/0", ["inf"]),
    "another vocabulary": ("speculative", {"target": [0.5, 0.5], "draft": [1]}, 422, "/draft", ["2", "1"]),
    "another number of positions": (
        "speculative",
        {"target": [[1], [1]], "draft": [[1], [1], [1]]},
        422,
        "/draft",
        ["2 positions", "3"],
    ),
    "a ragged table": ("speculative", {"target": [[1, 0], [1]], "draft": [1, 0]}, 422, "/target/1", ["2"]),
    "an empty row": ("speculative", {"target": [[]], "draft": [1]}, 422, "/target/0", ["1 to 128"]),
    "more tokens than the table": (
        "speculative",
        {"target": [[1], [1]], "draft": [1], "tokens": 3},
        422,
        "/tokens",
        ["between 1 and 2"],
    ),
    "too many draws": (
        "speculative",
        {"target": [1], "draft": [1], "tokens": 100, "sequences": 51},
        413,
        "/sequences",
        ["5,100"],
    ),
    "too long a draft": ("speculative", {"target": [1], "draft": [1], "gamma": 17}, 422, "/gamma", ["16"]),
    "too large a vocabulary": (
        "speculative",
        {"target": [0] * 129, "draft": [1]},
        413,
        "/target",
        ["129", "128"],
    ),
    "nothing to look up": ("prefix-cache", {"requests": [[]]}, 422, "/requests/0", ["at least one token"]),
    "no prompt": ("prefix-cache", {"requests": [{"output": [1]}]}, 400, "/requests/0/prompt", ["required"]),
    "a token that is none": ("prefix-cache", {"requests": [[1, 2.5]]}, 400, "/requests/0/1", ["2.5"]),
    "a negative token": ("prefix-cache", {"requests": [[-1]]}, 422, "/requests/0/0", ["-1"]),
    "too long a word": ("prefix-cache", {"requests": [["x" * 33]]}, 422, "/requests/0/0", ["32"]),
    "too long a prompt": ("prefix-cache", {"requests": [[1] * 50_001]}, 413, "/requests/0", ["50,001"]),
    "too many tokens together": (
        "prefix-cache",
        {"requests": [[1] * 30_000] * 2},
        413,
        "/requests",
        ["60,000", "50,000"],
    ),
    "too much said": (
        "prefix-cache",
        {"conversations": {"conversations": 5, "turns": 100, "message_len": 50}},
        413,
        "/conversations",
        ["50,000"],
    ),
    "far too much said": (
        "prefix-cache",
        {"conversations": {"conversations": 500, "turns": 1, "message_len": [1, 50_000]}},
        413,
        "/conversations",
        ["50,000"],
    ),
    "a seed beyond the last": (
        "prefix-cache",
        {"conversations": {"seed": 2**63}},
        422,
        "/conversations/seed",
        [str(2**63 - 1)],
    ),
    "no task": ("recall", {"pairs": 3}, 400, "/task", ["recall", "copy"]),
    "no such task": ("recall", {"task": "sort"}, 422, "/task", ["sort"]),
    "no pairs": ("recall", {"task": "recall", "pairs": 0}, 422, "/pairs", ["between 1 and 1024", "0"]),
    "too many pairs": ("recall", {"task": "recall", "pairs": 1025}, 422, "/pairs", ["1024"]),
    "tokens of pairs": ("recall", {"task": "recall", "tokens": 3}, 400, "/tokens", ["counts pairs"]),
    "pairs of tokens": ("recall", {"task": "copy", "pairs": 3}, 400, "/pairs", ["counts tokens"]),
    "an odd circle": ("recall", {"task": "copy", "d_k": 7}, 422, "/d_k", ["even", "7", "8 would do"]),
    "two keys that cannot differ": (
        "recall",
        {"task": "recall", "pairs": 3, "d_k": 1},
        422,
        "/d_k",
        ["3 keys", "d_k is 1", "raise d_k"],
    ),
    "two of a sweep that cannot differ": (
        "recall",
        {"task": "recall", "pairs": 1, "d_k": 1, "sweep": {"counts": [1, 3]}},
        422,
        "/sweep/counts/1",
        ["3 keys"],
    ),
    "all different pairs": ("recall", {"task": "recall", "vocabulary": None}, 400, "/vocabulary", ["null"]),
    "keys alone": ("recall", {"task": "recall", "keys": [[1]]}, 400, "/symbols", ["go together"]),
    "symbols alone": ("recall", {"task": "recall", "symbols": [1]}, 400, "/keys", ["go together"]),
    "keys of a copy": (
        "recall",
        {"task": "copy", "keys": [[1, 0]], "symbols": [1]},
        422,
        "/keys",
        ["positions"],
    ),
    "own and drawn": (
        "recall",
        {"task": "recall", "keys": [[1]], "symbols": [0], "seed": 3},
        400,
        "/seed",
        ["leave seed out"],
    ),
    "own and dimensions": (
        "recall",
        {"task": "recall", "keys": [[1]], "symbols": [0], "d_k": 1},
        400,
        "/d_k",
        ["leave d_k out"],
    ),
    "own and a sweep": (
        "recall",
        {"task": "copy", "symbols": [0], "sweep": {"counts": [1]}},
        400,
        "/sweep",
        ["leave sweep out"],
    ),
    "more symbols than keys": (
        "recall",
        {"task": "recall", "keys": [[1]], "symbols": [0, 1]},
        422,
        "/symbols",
        ["1 keys and 2 symbols"],
    ),
    "ragged keys": (
        "recall",
        {"task": "recall", "keys": [[1, 0], [1]], "symbols": [0, 1]},
        422,
        "/keys/1",
        ["as the first (2)"],
    ),
    "a key without direction": (
        "recall",
        {"task": "recall", "keys": [[1, 0], [0, 0]], "symbols": [0, 1]},
        422,
        "/keys/1",
        ["zeros"],
    ),
    "the same key twice": (
        "recall",
        {"task": "recall", "keys": [[1, 0], [0, 1], [3, 0]], "symbols": [0, 1, 2]},
        422,
        "/keys/2",
        ["key 0", "direction"],
    ),
    "a key that is none": ("recall", {"task": "recall", "keys": [1], "symbols": [0]}, 400, "/keys/0", ["1"]),
    "no number in a key": (
        "recall",
        {"task": "recall", "keys": [[1, "nan"]], "symbols": [0]},
        400,
        "/keys/0/1",
        ["nan"],
    ),
    "a huge number in a key": (
        "recall",
        {"task": "recall", "keys": [[10**400, 1]], "symbols": [0]},
        422,
        "/keys/0/0",
        ["1e+38"],
    ),
    "too many numbers": (
        "recall",
        {"task": "recall", "keys": [[1] * 200] * 400, "symbols": [0] * 400},
        413,
        "/keys",
        ["400 × 200", "65,536"],
    ),
    "a symbol beyond the vocabulary": (
        "recall",
        {"task": "copy", "symbols": [3, 1], "vocabulary": 3},
        422,
        "/vocabulary",
        ["symbol 3", "at least 4", "not of 3"],
    ),
    "a symbol that is a word": ("recall", {"task": "copy", "symbols": ["a"]}, 400, "/symbols/0", ['"a"']),
    "a negative symbol": ("recall", {"task": "copy", "symbols": [0, -1]}, 422, "/symbols/1", ["-1", "1023"]),
    "a sweep of nothing": (
        "recall",
        {"task": "copy", "sweep": {"counts": []}},
        422,
        "/sweep/counts",
        ["at least one"],
    ),
    "a sweep too wide": (
        "recall",
        {"task": "copy", "sweep": {"counts": [1] * 33}},
        413,
        "/sweep/counts",
        ["33", "32"],
    ),
    "a sweep too dear": (
        "recall",
        {"task": "recall", "pairs": 1, "d_k": 256, "vocabulary": 1024, "sweep": {"counts": [1024]}},
        413,
        "/sweep/counts",
        ["2,013,791,616", "400,000,000"],
    ),
    "too dear": (
        "recall",
        {"task": "copy", "tokens": 1024, "d_k": 256, "vocabulary": None},
        413,
        "/tokens",
        ["fewer"],
    ),
    "a sweep of fractions": (
        "recall",
        {"task": "copy", "sweep": {"counts": [1.5]}},
        400,
        "/sweep/counts/0",
        ["1.5"],
    ),
    "a sweep that is a list": ("recall", {"task": "copy", "sweep": [1]}, 400, "/sweep", ["object"]),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_named_with_its_value_and_a_remedy(api, case):
    name, body, status, pointer, says = WRONG[case]
    assert_problem(simulate(api, name, body), status, pointer=pointer, says=says)


def test_all_mistakes_are_named_at_once(api):
    body = {"requests": [{**ONE, "arrival": "x"}, {}], "max_batch": 0, "cost": {}, "polices": []}
    problem = assert_problem(simulate(api, "batching", body), 400)
    assert {error["pointer"] for error in problem["errors"]} == {
        "/polices",
        "/requests/0/arrival",
        "/requests/1/prompt_len",
        "/requests/1/output_len",
        "/max_batch",
        "/cost",
    }


def test_a_mistake_among_operations_is_not_followed_by_others_that_it_caused(api):
    name, body = paged(*allocate("=a"), {"op": "append", "sequence": "a"}, {"op": "free", "sequenze": "a"})
    problem = assert_problem(simulate(api, name, body), 400)
    assert [error["pointer"] for error in problem["errors"]] == [
        "/operations/0/sequence",
        "/operations/2/sequenze",
        "/operations/2/sequence",
    ]


@pytest.mark.parametrize("name", SIMULATORS)
def test_only_json_is_taken_and_only_json_and_csv_are_given(api, name):
    assert_problem(simulate(api, name, b"{"), 400)
    assert_problem(simulate(api, name, None), 400, says="empty")
    assert_problem(api.request("POST", f"/simulations/{name}", "a=b", content_type="text/plain"), 415)
    assert_problem(simulate(api, name, SEEDED[name], "?format=xml"), 400, says=['"xml"', "json or csv"])
    assert_problem(simulate(api, name, SEEDED[name], accept="image/png"), 406)
    assert_problem(api.get(f"/simulations/{name}"), 405, says="POST")
    assert_problem(simulate(api, name, {}, "?format=csv"), 400)


def test_nothing_is_stored_or_charged(api, charged, django_assert_num_queries):
    with django_assert_num_queries(0):
        for name, body in SEEDED.items():
            assert simulate(api, name, body).status_code == 200
    assert charged == []
