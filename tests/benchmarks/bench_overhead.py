"""What the service adds to a tiny run over REST, against a peer that does the least such a service can.

Both run at the same time on the same machine with their own web, worker, SQLite and Redis, and are asked in
turn, so that whatever else the machine does hits both.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.benchmarks.measure import Connection, line, median, p95
from tests.support.deployment import ROOT, free_port
from tests.support.services import RedisServer, wait_until

ROUNDS = 300
BODY = {
    "engine": "eager",
    "inputs": {"q": [[1, 0], [0, 1], [1, 1]], "k": [[1, 0], [0, 1], [1, 1]], "v": [[1, 0], [0, 2], [2, 2]]},
    "timing": {"warmup": 0, "iters": 1},
}


@pytest.fixture(scope="module")
def peer() -> Iterator[int]:
    """The port of the running peer."""
    folder, port, bin_dir = (
        Path(tempfile.mkdtemp(prefix="lab-peer-")),
        free_port(),
        Path(sys.executable).parent,
    )
    redis = RedisServer(folder).start()
    env = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PEER_DATABASE": str(folder / "peer.sqlite3"),
        "PEER_REDIS": str(redis.socket),
        "DJANGO_SETTINGS_MODULE": "tests.benchmarks.peer.settings",
    }
    create = "import django; django.setup(); from django.db import connection as c; "
    create += "from tests.benchmarks.peer.models import Job\nwith c.schema_editor() as e: e.create_model(Job)"
    subprocess.run([sys.executable, "-c", create], env=env, cwd=ROOT, check=True)
    commands = [
        [bin_dir / "gunicorn", "tests.benchmarks.peer.web", "--bind", f"127.0.0.1:{port}", "--workers", "2",
         "--worker-class", "gthread", "--threads", "32", "--preload", "--keep-alive", "30",
         "--no-control-socket"],
        [bin_dir / "celery", "-A", "tests.benchmarks.peer.queue", "worker", "--concurrency", "2",
         "--without-gossip", "--without-mingle"],
    ]  # fmt: skip
    with (folder / "log").open("wb") as log:
        started = [subprocess.Popen(c, env=env, cwd=ROOT, stdout=log, stderr=log) for c in commands]
    try:
        wait_until(lambda: answers(port), 30, f"the peer answers\n{folder}/log", 0.2)
        yield port
    finally:
        for process in started:
            process.terminate()
        for process in started:
            process.wait(20)
        redis.stop()
        shutil.rmtree(folder, ignore_errors=True)


def answers(port: int) -> bool:
    try:
        return bool(Connection(port).ask("POST", "/jobs", {"question": 1})[1])
    except OSError:
        return False


def test_the_overhead_of_a_tiny_run_is_at_most_twice_the_peers(sqlite_lab, peer):
    lab, bare = Connection(sqlite_lab.port), Connection(peer)
    totals, computations, peers = [], [], []
    for number in range(ROUNDS + 30):
        total, content = lab.ask("POST", "/api/v1/runs", BODY, Prefer="wait=30")
        other, _ = bare.ask("POST", "/jobs", {"question": number})
        if number >= 30:  # both are warm now
            totals.append(total)
            peers.append(other)
            computations.append(_computation(content))
        time.sleep(0.005)
    overhead = [total - spent for total, spent in zip(totals, computations, strict=True)]

    print()
    print(line("tiny run over REST, total", totals))
    print(line("  computation in the worker", computations))
    print(line("  overhead (total - computation)", overhead))
    print(line("bare-bones peer", peers))
    print(f"ratio of medians {median(overhead) / median(peers):.2f}, of p95 {p95(overhead) / p95(peers):.2f}")
    assert median(overhead) <= 2 * median(peers)


def _computation(content: bytes) -> float:
    """Milliseconds that the worker spent on the run's arithmetic."""
    run = json.loads(content)
    assert run["status"] == "succeeded", run
    return float(run["result"]["timing"]["worker_ns"] / 1e6)


def test_many_at_once(sqlite_lab):
    """Runs a second with sixteen clients: printed, not judged."""
    from concurrent.futures import ThreadPoolExecutor

    def client(_: int) -> list[float]:
        connection = Connection(sqlite_lab.port)
        return [connection.ask("POST", "/api/v1/runs", BODY, Prefer="wait=30")[0] for _ in range(20)]

    started = time.perf_counter()
    with ThreadPoolExecutor(16) as pool:
        times = [took for taken in pool.map(client, range(16)) for took in taken]
    elapsed = time.perf_counter() - started
    print("\n" + line("16 clients, tiny runs", times) + f"   {len(times) / elapsed:.0f} runs/s")
