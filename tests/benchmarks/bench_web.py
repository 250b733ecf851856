"""The web process: starts fast, serves pages fast, and never loads PyTorch."""

import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from config import procfile
from tests.benchmarks.measure import Connection, line, median
from tests.support.deployment import ROOT, Client, base_env, free_port
from tests.support.services import wait_until

PAGE = "/en/concepts/by-hand/"


class Web(Client):
    def __init__(self, env: dict[str, str]) -> None:
        super().__init__(free_port())
        self.started = time.perf_counter()
        self.process = subprocess.Popen(
            procfile.argv("web"), env={**env, "PORT": str(self.port)}, cwd=ROOT,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def alive(self) -> bool:
        try:
            return self.get("/api/v1/healthz", timeout=5).status == 200
        except OSError:
            return False


def stop(web: Web) -> None:
    web.process.terminate()
    web.process.wait(20)


def test_the_web_starts_within_two_seconds(sqlite_lab):
    times = []
    for _ in range(7):
        web = Web(sqlite_lab.env)
        wait_until(web.alive, 20, "the web answers", 0.01)
        times.append(1000 * (time.perf_counter() - web.started))
        stop(web)
    print("\n" + line("web: start to first answer", times))
    assert median(times) <= 2000


def test_a_concept_page_takes_fifteen_milliseconds(sqlite_lab):
    connection = Connection(sqlite_lab.port)
    for path in ("/en/", PAGE, f"{PAGE}?v=1"):
        for _ in range(20):
            connection.ask("GET", path)
        times = [connection.ask("GET", path)[0] for _ in range(300)]
        print("\n" + line(f"web: GET {path}", times))
        assert median(times) <= 15, path


def test_the_web_never_loads_torch(sqlite_lab):
    """After pages, a run, its page and the catalog: no library of PyTorch or Triton is mapped."""
    body = {"engine": "flash", "inputs": {name: [[1, 0], [0, 1]] for name in "qkv"}}
    run = sqlite_lab.post_run(body, wait=30).json()
    for path in ("/en/", PAGE, "/en/lab/", run["url"].removeprefix(sqlite_lab.url), "/api/v1/engines"):
        assert sqlite_lab.get(path).status == 200, path
    web = sqlite_lab.process("web")
    for process in (web, *web.children(recursive=True)):
        maps = Path(f"/proc/{process.pid}/maps").read_text()
        assert "torch" not in maps, process
        assert "triton" not in maps, process


@pytest.mark.parametrize("module", ["config.wsgi", "config.embedded", "workers.celery"])
def test_importing_the_parents_of_workers_stays_light(module):
    code = f"import sys, {module}; sys.exit(any(name in sys.modules for name in ('torch', 'triton')))"
    folder = Path(tempfile.mkdtemp(prefix="lab-import-"))
    env = base_env(folder)
    done = subprocess.run([ROOT / ".venv/bin/python", "-c", code], env=env, cwd=ROOT, check=False)
    assert done.returncode == 0, module
