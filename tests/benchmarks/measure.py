"""Figures as the benchmarks print them."""

import http.client
import json
import statistics
import time
from collections.abc import Sequence
from typing import Any


class Connection:
    """One kept-alive connection, timed."""

    def __init__(self, port: int) -> None:
        self._http = http.client.HTTPConnection("127.0.0.1", port, timeout=60)

    def ask(self, method: str, path: str, body: object = None, **headers: str) -> tuple[float, Any]:
        """(milliseconds, body) of a request that must succeed."""
        data = None if body is None else json.dumps(body).encode()
        sent = {"Content-Type": "application/json", **headers} if data else headers
        started = time.perf_counter()
        self._http.request(method, path, data, sent)
        answer = self._http.getresponse()
        content = answer.read()
        took = 1000 * (time.perf_counter() - started)
        assert answer.status == 200, (answer.status, content[:500])
        return took, content


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def p95(values: Sequence[float]) -> float:
    return statistics.quantiles(values, n=20)[-1]


def line(name: str, values: Sequence[float]) -> str:
    return f"{name:<44} median {median(values):8.2f} ms   p95 {p95(values):8.2f} ms   n {len(values)}"
