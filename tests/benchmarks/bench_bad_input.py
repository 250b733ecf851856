"""A refusal comes at once: nothing is allocated, queued or computed before it."""

import io
import json

import numpy as np
import pytest

from tests.api.test_bad_input import CASES
from tests.benchmarks.measure import Connection, line, median

JSON = "application/json"


def npy(array: np.ndarray) -> bytes:
    target = io.BytesIO()
    np.save(target, array, allow_pickle=True)
    return target.getvalue()


REQUESTS = {
    **{name: ("/api/v1/runs", json.dumps(body).encode(), JSON) for name, (body, *_) in CASES.items()},
    "not JSON": ("/api/v1/runs", b'{"engine": flash}', JSON),
    "a pickled .npy": ("/api/v1/uploads", npy(np.array([{}], dtype=object)), "application/octet-stream"),
    "a truncated .npy": ("/api/v1/uploads", npy(np.ones((64, 64)))[:999], "application/octet-stream"),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_a_refusal_takes_less_than_a_hundred_milliseconds(sqlite_lab, name):
    path, body, content_type = REQUESTS[name]
    connection = Connection(sqlite_lab.port)
    times = []
    for _ in range(20):
        took, status, content = connection.send("POST", path, body, {"Content-Type": content_type})
        assert 400 <= status < 500, (status, content)
        times.append(took)
    print("\n" + line(f"refused: {name}"[:44], times))
    assert median(times) <= 100
