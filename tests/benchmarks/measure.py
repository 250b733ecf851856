"""Figures as the benchmarks print them."""

import http.client
import json
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any


class Connection:
    """One kept-alive connection, timed."""

    def __init__(self, port: int) -> None:
        self._http = http.client.HTTPConnection("127.0.0.1", port, timeout=60)

    def ask(self, method: str, path: str, body: object = None, **headers: str) -> tuple[float, Any]:
        """(milliseconds, body) of a request that must succeed."""
        data = None if body is None else json.dumps(body).encode()
        sent = {"Content-Type": "application/json", **headers} if data else headers
        took, status, content = self.send(method, path, data, sent)
        assert status == 200, (status, content[:500])
        return took, content

    def send(
        self, method: str, path: str, data: bytes | None, headers: Mapping[str, str]
    ) -> tuple[float, int, bytes]:
        """(milliseconds, status, body) of any request."""
        started = time.perf_counter()
        self._http.request(method, path, data, headers)
        answer = self._http.getresponse()
        content = answer.read()
        return 1000 * (time.perf_counter() - started), answer.status, content


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def p95(values: Sequence[float]) -> float:
    return statistics.quantiles(values, n=20)[-1]


def line(name: str, values: Sequence[float]) -> str:
    return f"{name:<44} median {median(values):8.2f} ms   p95 {p95(values):8.2f} ms   n {len(values)}"
