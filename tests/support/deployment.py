"""The product running for real: the Procfile's own commands on a database and a Redis of their own."""

import http.client
import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import psycopg

from config import procfile
from config.supervision import tail, tether
from tests.support.services import RedisServer, wait_until

ROOT = Path(__file__).resolve().parents[2]
TERMINAL = {"succeeded", "failed", "timed_out", "canceled"}

# A dead worker is found out in seconds here, and the quotas of one address are not in the way.
QUICK = {
    "ATTENTION_LAB_HEARTBEAT_SECONDS": "1",
    "ATTENTION_LAB_HEARTBEAT_TIMEOUT": "8",
    "ATTENTION_LAB_REAPER_SECONDS": "1",
    "ATTENTION_LAB_ANONYMOUS_RUNS_PER_MINUTE": "100000",
    "ATTENTION_LAB_ANONYMOUS_SECONDS_PER_HOUR": "1000000",
    "ATTENTION_LAB_ANONYMOUS_COMPUTING_SECONDS_PER_MINUTE": "100000",
    "ATTENTION_LAB_CPU_CONCURRENCY": "2",
    # Somebody else may be using this machine too.
    "ATTENTION_LAB_RUN_BUDGET_ANONYMOUS": "120",
}
PREPARE = """
import django; django.setup()
from django.core.management import call_command; from config import static
call_command("migrate", interactive=False, verbosity=0)
call_command("load_problems", verbosity=0)
static.build()
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def base_env(data_dir: Path, **changes: str) -> dict[str, str]:
    """The environment of a deployment: ours without the settings of the tests' own process."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("ATTENTION_LAB_")}
    return {
        **kept,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'site'}",
        "PYTHONUNBUFFERED": "1",
        "DJANGO_SETTINGS_MODULE": "config.settings",
        "ATTENTION_LAB_DATA_DIR": str(data_dir),
        **changes,
    }


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class Client:
    """Just enough HTTP: one connection a request, JSON in and out."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}"

    def request(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        token: str = "",
        timeout: float = 70,
        **headers: str,
    ) -> Answer:
        """`headers` as keywords: `prefer="wait=5"`, `idempotency_key="x"`."""
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if token:
            sent["Authorization"] = f"Bearer {token}"
        if body is not None:
            sent["Content-Type"] = "application/json"
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            data = None if body is None else json.dumps(body).encode()
            connection.request(method, path, data, sent)
            answer = connection.getresponse()
            return Answer(answer.status, answer.headers, answer.read())
        finally:
            connection.close()

    def get(self, path: str, **options: Any) -> Answer:
        return self.request("GET", path, **options)

    def ready(self) -> bool:
        try:
            return self.get("/api/v1/readyz", timeout=5).status == 200
        except (OSError, http.client.HTTPException):
            return False

    def post_run(self, body: object, *, wait: int = 0, **options: Any) -> Answer:
        """POST /runs; with `wait`, the request itself waits that many seconds for the end."""
        prefer = {"prefer": f"wait={wait}"} if wait else {}
        return self.request("POST", "/api/v1/runs", body, **prefer, **options)

    def run(self, run_id: str, **options: Any) -> Any:
        answer = self.get(f"/api/v1/runs/{run_id}", **options)
        assert answer.status == 200, answer
        return answer.json()

    def finished(self, run_id: str, seconds: float = 60, **options: Any) -> Any:
        """The run once it is terminal, as the API tells it."""
        wait_until(
            lambda: self.run(run_id, **options)["status"] in TERMINAL, seconds, f"run {run_id} ends", 0.2
        )
        return self.run(run_id, **options)

    def running(self, run_id: str, seconds: float = 30) -> None:
        """Wait until a worker has claimed the run."""
        wait_until(lambda: self.run(run_id)["status"] == "running", seconds, f"run {run_id} starts")


class Lab(Client):
    """Web and workers as processes of their own, each killable; Redis beside them."""

    def __init__(self, folder: Path, database_url: str, queues: tuple[str, ...], **env: str) -> None:
        super().__init__(free_port())
        self.folder = folder
        self.database_url = database_url
        self.processes = ("web", *map(procfile.process_of, queues))
        self.redis = RedisServer(folder)
        self.env = base_env(
            folder,
            **QUICK,
            PORT=str(self.port),
            ATTENTION_LAB_DATABASE_URL=database_url,
            ATTENTION_LAB_REDIS_URL=self.redis.url,
            ATTENTION_LAB_QUEUES=",".join(queues),
            **env,
        )
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def up(self) -> "Lab":
        """Start everything; returns when /readyz says so."""
        subprocess.run([sys.executable, "-c", PREPARE], env=self.env, cwd=ROOT, check=True)
        self.heal()
        return self

    def heal(self) -> None:
        """Start what a test before this one killed, and wait until the whole is ready."""
        if not self.redis.answers():
            self.redis.start()
        for name in self.processes:
            if not self.alive(name):
                self.start(name)
        try:
            wait_until(self.ready, 180, "/readyz answers 200", 0.1)  # where two cores have more to do
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.logs()}") from None

    def finished(self, run_id: str, seconds: float = 60, **options: Any) -> Any:
        try:
            return super().finished(run_id, seconds, **options)
        except AssertionError as error:
            state = f"status {self.run(run_id)['status']}, {self._queues()}"
            raise AssertionError(f"{error}\n{state}\n{self.logs()}") from None

    def start(self, name: str) -> None:
        with self._log(name).open("ab") as log:
            self._running[name] = subprocess.Popen(
                [*tether(), *procfile.argv(name)],
                env=self.env, cwd=ROOT, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                start_new_session=True,
            )  # fmt: skip

    def alive(self, name: str) -> bool:
        process = self._running.get(name)
        return process is not None and process.poll() is None

    def process(self, name: str) -> psutil.Process:
        return psutil.Process(self._running[name].pid)

    def children(self, name: str) -> list[psutil.Process]:
        """The pool processes of a worker, that is those that carry out runs."""
        return self.process(name).children(recursive=True)

    def kill(self, name: str, number: int = signal.SIGKILL) -> None:
        """Signal the process and all its children at once, as a machine that fails would."""
        with suppress(ProcessLookupError):
            os.killpg(self._running[name].pid, number)
        if number == signal.SIGKILL:
            self._running[name].wait(10)

    def pause(self, name: str) -> None:
        """Freeze a process with its children (they hold what they hold, and do nothing)."""
        self.kill(name, signal.SIGSTOP)

    def resume(self, name: str) -> None:
        self.kill(name, signal.SIGCONT)

    def terminate(self, name: str, seconds: float = 60) -> float:
        """Ask one process to stop as a supervisor does; the seconds that it took."""
        started = time.monotonic()
        self._running[name].terminate()
        self._running[name].wait(seconds)
        return time.monotonic() - started

    def down(self) -> None:
        for name in self._running:
            self.kill(name, signal.SIGCONT)
            self._running[name].terminate()
        deadline = time.monotonic() + 20
        for name, process in self._running.items():
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.1, deadline - time.monotonic()))
            self.kill(name)
        self.redis.stop()

    def _queues(self) -> str:
        if not self.redis.answers():
            return f"Redis gone (exit status {self.redis.process and self.redis.process.poll()})"
        keys = self.redis.client.scan_iter("*", _type="list")
        return f"queues { ({key: self.redis.client.llen(key) for key in keys}) }"

    def logs(self) -> str:
        """The last lines of every process."""
        names = ("redis", *self.processes)
        return "\n".join(f"--- {name}\n{tail(self._log(name), 30)}" for name in names)

    def log(self, name: str) -> str:
        return self._log(name).read_text(errors="replace")

    def manage(self, *arguments: str) -> str:
        """What a management command prints."""
        done = subprocess.run(
            [sys.executable, "manage.py", *arguments],
            env=self.env, cwd=ROOT, capture_output=True, text=True, check=True,
        )  # fmt: skip
        return done.stdout

    def token(self, name: str) -> str:
        return self.manage("token", name).splitlines()[-1]

    def sql(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        """Look into, or tamper with, the database behind the product's back; `%s` placeholders."""
        if self.database_url.startswith("sqlite"):
            with sqlite3.connect(urlsplit(self.database_url).path[1:], timeout=20) as connection:
                return connection.execute(query.replace("%s", "?"), values).fetchall()
        with psycopg.connect(self.database_url, autocommit=True) as connection:
            cursor = connection.execute(query, values)
            return cursor.fetchall() if cursor.description else []

    def _log(self, name: str) -> Path:
        return self.folder / f"{name}.log"


def sqlite_url(folder: Path) -> str:
    return f"sqlite:///{folder / 'lab.sqlite3'}"
