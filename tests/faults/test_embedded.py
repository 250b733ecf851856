"""`make run` as a person meets it: starts, says so, survives deaths, stops clean, comes back."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.support.deployment import QUICK, ROOT, Client, base_env, free_port
from tests.support.services import wait_until

pytestmark = pytest.mark.slow

RUN = {"engine": "reference", "inputs": {"q": [[1, 0]], "k": [[1, 0], [0, 1]], "v": [[1, 2], [3, 4]]}}
PROCESSES = ("redis", "cpu", "compile", "grader", "maintenance", "web")


class Embedded(Client):
    """One `python -m config.embedded` and what it wrote to its terminal."""

    def __init__(self, data_dir: Path, port: int | None = None) -> None:
        super().__init__(port or free_port())
        self.data_dir = data_dir
        self.console = Path(tempfile.mkstemp(prefix="lab-console-")[1])
        with self.console.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "config.embedded"],
                env=base_env(data_dir, **QUICK, PORT=str(self.port)),
                cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
            )  # fmt: skip

    @property
    def said(self) -> str:
        return self.console.read_text()

    def up(self) -> "Embedded":
        wait_until(lambda: f"is at {self.url}" in self.said or self.process.poll() is not None, 180, "ready")
        assert self.process.poll() is None, self.said
        return self

    def ended(self, seconds: float = 60) -> int:
        return self.process.wait(seconds)

    def family(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def supervisord(self) -> psutil.Process:
        return psutil.Process(self.process.pid).children()[0]

    def child(self, name: str) -> psutil.Process | None:
        """The process that supervisord runs under this name."""
        marks = {"redis": "redis-server", "web": "config.gunicorn"}
        mark = marks.get(name, f"{name}@%h")
        for child in self.supervisord().children():
            with suppress(psutil.Error):  # gone, or a zombie, between two looks
                if mark in " ".join(child.cmdline()) and child.status() != psutil.STATUS_ZOMBIE:
                    return child
        return None

    def end(self) -> None:
        if self.process.poll() is None:
            family = self.family()
            self.process.terminate()
            self.ended()
            for child in family:
                if child.is_running():
                    child.kill()
        self.console.unlink(missing_ok=True)


@pytest.fixture(scope="module")
def data_dir() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="lab-embedded-"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def start(data_dir: Path) -> Iterator[type]:
    """Start one; the data folder is the same for all tests of this file, the processes are not."""
    started: list[Embedded] = []

    def begin(folder: Path = data_dir, port: int | None = None) -> Embedded:
        started.append(Embedded(folder, port))
        return started[-1]

    yield begin
    for one in started:
        one.end()


def gone(processes: list[psutil.Process], seconds: float) -> None:
    def left() -> list[psutil.Process]:
        return [p for p in processes if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]

    deadline = time.monotonic() + seconds
    while left() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not left(), [(p.pid, p.cmdline()) for p in left()]


def test_ctrl_c_leaves_no_orphan_and_a_second_start_finds_its_data(start):
    first = start().up()
    answer = first.post_run(RUN, wait=60)
    assert answer.status == 200, answer
    run_id = answer.json()["id"]
    family = first.family()
    assert {name: first.child(name) is not None for name in PROCESSES} == dict.fromkeys(PROCESSES, True)

    os.killpg(first.process.pid, signal.SIGINT)  # as a terminal does: to the whole foreground group
    assert first.ended() == 0, first.said
    gone(family, 1)
    assert "Traceback" not in first.said

    second = start().up()
    found = second.run(run_id)
    assert (found["status"], found["result"]["out"]) == ("succeeded", answer.json()["result"]["out"])
    assert second.post_run(RUN, wait=60).status == 200


def test_whatever_dies_is_back_within_five_seconds(start):
    service = start().up()
    for name in PROCESSES:
        victim = service.child(name)
        assert victim is not None, name
        below = victim.children(recursive=True)
        victim.kill()
        wait_until(lambda n=name, v=victim: (c := service.child(n)) and c.pid != v.pid, 5, f"{name} is back")
        gone(below, 20)  # a web process answers first whom it serves
    wait_until(service.ready, 30, "ready again")
    assert service.post_run(RUN, wait=60).status == 200
    for name in PROCESSES:
        assert re.search(rf"{name} ended unexpectedly", service.said), service.said


def test_a_second_start_on_the_same_data_says_that_it_is_running(start):
    first = start().up()
    second = start()
    assert second.ended(20) == 1
    assert "already running" in second.said
    assert first.url in second.said
    assert first.ready()


def test_a_port_in_use_is_said_before_anything_starts(start, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused = start(tmp_path / "new", port)
        assert refused.ended(20) == 1
    assert f"port {port}" in refused.said
    assert f"PORT={port + 1} make run" in refused.said
    assert not (tmp_path / "new" / "attention-lab.sqlite3").exists()


def test_a_bad_setting_names_itself(start, data_dir, monkeypatch):
    monkeypatch.setitem(QUICK, "ATTENTION_LAB_REAPER_SECONDS", "soon")
    refused = start()
    assert refused.ended(20) == 1
    assert "ATTENTION_LAB_REAPER_SECONDS='soon'" in refused.said
    assert "Traceback" not in refused.said


def test_a_deep_data_folder_still_gets_its_sockets(start, tmp_path):
    deep = tmp_path / ("a-folder-with-a-long-name-" * 5) / "data"
    service = start(deep).up()
    assert service.post_run(RUN, wait=60).status == 200


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can tie a process to its parent")
@pytest.mark.parametrize("victim", ["make run itself", "supervisord"])
def test_a_killed_parent_takes_everything_with_it(start, victim):
    service = start().up()
    family = service.family()
    if victim == "supervisord":
        service.supervisord().kill()
    else:
        service.process.kill()
    gone(family, 30)
    service.ended()
    start().up()  # nothing is left in the way
