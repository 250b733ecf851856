"""The processes of `make run` under supervisord: its configuration, and what it says of them.

supervisord starts, restarts and stops; `config.embedded` watches it and talks to the person.
"""

import http.client
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import xmlrpc.client
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from supervisor.states import ProcessStates
from supervisor.xmlrpc import SupervisorTransport

LOG_BYTES = "5MB"
LOG_BACKUPS = 3


@dataclass(frozen=True)
class Program:
    name: str
    argv: list[str]
    group: str  # groups stop one after the other, from the last to the first
    stop_seconds: int  # how long it may take to finish its work before it is killed


@dataclass(frozen=True)
class State:
    """One process as supervisord sees it; `pid` is 0 while it does not run."""

    name: str
    pid: int
    code: int
    reason: str

    @property
    def because(self) -> str:
        return f" ({self.reason})" if self.reason else ""

    @property
    def failed(self) -> bool:
        """It died so soon after its start, several times, that supervisord gave it up."""
        return bool(self.code == ProcessStates.FATAL)


def configuration(programs: list[Program], *, control: Path, log_dir: Path, run_dir: Path) -> str:
    """The text of supervisord.conf."""
    sections: list[tuple[str, Mapping[str, object]]] = [
        ("unix_http_server", {"file": control, "chmod": "0600"}),
        (
            "supervisord",
            {
                "nodaemon": "true",
                "silent": "true",
                "pidfile": run_dir / "supervisord.pid",
                "logfile": log_dir / "supervisor.log",
                "logfile_maxbytes": LOG_BYTES,
                "logfile_backups": LOG_BACKUPS,
                # Root is somebody's only account in a container; supervisord wants it said.
                **({"user": "root"} if os.geteuid() == 0 else {}),
            },
        ),
        ("rpcinterface:supervisor", {
            "supervisor.rpcinterface_factory": "supervisor.rpcinterface:make_main_rpcinterface",
        }),
    ]  # fmt: skip
    for program in programs:
        sections.append((f"program:{program.name}", _program(program, log_dir)))
    for priority, group in enumerate(dict.fromkeys(program.group for program in programs), start=1):
        members = ",".join(program.name for program in programs if program.group == group)
        sections.append((f"group:{group}", {"programs": members, "priority": priority}))
    return "\n".join(_section(title, options) for title, options in sections)


def _program(program: Program, log_dir: Path) -> dict[str, object]:
    return {
        "command": shlex.join([*tether(), *program.argv]),
        "autorestart": "true",
        "startsecs": 1,
        "startretries": 2,  # waits of 1 and 2 s; then config.embedded takes over
        "stopsignal": "TERM",
        # A worker's children must survive the TERM that asks it to finish its run ...
        "stopasgroup": "false",
        # ... and must not survive the worker when it had to be killed.
        "killasgroup": "true",
        "stopwaitsecs": program.stop_seconds,
        "redirect_stderr": "true",
        "stdout_logfile": log_dir / f"{program.name}.log",
        "stdout_logfile_maxbytes": LOG_BYTES,
        "stdout_logfile_backups": LOG_BACKUPS,
    }


def _section(title: str, options: Mapping[str, object]) -> str:
    lines = [f"{key}={str(value).replace('%', '%%')}" for key, value in options.items()]
    return "\n".join([f"[{title}]", *lines, ""])


def tether() -> list[str]:
    """A prefix that has Linux send TERM to the process when its parent dies, however it dies."""
    setpriv = shutil.which("setpriv") if sys.platform == "linux" else None
    if setpriv is None or "--pdeathsig" not in _help(setpriv):
        return []
    return [setpriv, "--pdeathsig", "TERM", "--"]


def _help(command: str) -> str:
    # BusyBox has a setpriv too, with fewer options.
    return subprocess.run([command, "--help"], capture_output=True, text=True, check=False).stdout


class Supervisor:
    """A running supervisord."""

    def __init__(self, conf: Path, control: Path, env: Mapping[str, str], *, keep_open: int) -> None:
        """Start it. `keep_open`: the descriptor of the lock, held for as long as it lives."""
        self._process = subprocess.Popen(
            [*tether(), sys.executable, "-m", "supervisor.supervisord", "--configuration", str(conf)],
            env=dict(env),
            stdin=subprocess.DEVNULL,
            pass_fds=[keep_open],
            # Its own session: Ctrl-C in a terminal reaches config.embedded alone, which passes on
            # one clean stop.
            start_new_session=True,
        )
        self._transport = SupervisorTransport(None, None, f"unix://{control}")
        self._rpc: Any = xmlrpc.client.ServerProxy("http://localhost", transport=self._transport).supervisor
        self._seen: dict[str, int] = {}

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def states(self) -> list[State]:
        """Every process; empty while supervisord itself does not answer."""
        found = self._ask("getAllProcessInfo") or []
        states = [State(info["name"], info["pid"], info["state"], info["spawnerr"].lower()) for info in found]
        self._seen.update({state.name: state.pid for state in states if state.pid})
        return states

    def start(self, name: str) -> None:
        """Try again a process that was given up; what happens next is in `states`."""
        for info in self._ask("getAllProcessInfo") or []:
            if info["name"] == name:
                self._ask("startProcess", f"{info['group']}:{name}", False)

    def _ask(self, method: str, *arguments: object) -> Any:
        """supervisord's answer, or None when it has none to give."""
        try:
            return getattr(self._rpc, method)(*arguments)
        except (OSError, http.client.HTTPException, xmlrpc.client.Error):
            return None
        finally:
            self._transport.close()  # a connection that failed half-way cannot be used again

    def stop(self) -> None:
        """Ask for one clean stop of everything; `wait` for it."""
        with suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End every process now, with its children."""
        self.states()
        for pid in self._seen.values():
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)

    def wait(self, seconds: float) -> bool:
        """Whether supervisord ended within `seconds`."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        return not self.alive


def port_is_free(host: str, port: int) -> bool:
    """Whether a server could listen there now (connections that linger do not count)."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host.strip("[]"), port))
        except OSError:
            return False
    return True


def tail(path: Path, lines: int = 12) -> str:
    """The last lines of a log, indented to be read on the console."""
    try:
        text = path.read_bytes()[-16_384:].decode(errors="replace")
    except OSError:
        return "    (no log)"
    return "\n".join(f"    {line}" for line in text.splitlines()[-lines:])
