"""Real servers for the tests: a Redis and a PostgreSQL of their own, in a temporary folder."""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import redis

from config.embedded import find_redis
from config.supervision import tether


def wait_until(condition: Callable[[], object], seconds: float, what: str, step: float = 0.05) -> None:
    """AssertionError naming `what` when `condition` does not hold within `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(step)


class RedisServer:
    """redis-server on a unix socket, configured as in production: AOF, noeviction."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.socket = folder / "redis.sock"
        self.url = f"unix://{self.socket}"
        self.client = redis.Redis(unix_socket_path=str(self.socket), decode_responses=True)
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> "RedisServer":
        with (self.folder / "redis.log").open("ab") as log:
            self.process = subprocess.Popen(
                [*tether(), find_redis(), "--port", "0", "--unixsocket", self.socket, "--dir", self.folder,
                 "--appendonly", "yes", "--save", "", "--maxmemory-policy", "noeviction"],
                stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        wait_until(self.answers, 10, "Redis answers")
        return self

    def answers(self) -> bool:
        try:
            return bool(self.client.ping())
        except redis.RedisError:
            return False

    def stop(self, number: int = signal.SIGTERM) -> None:
        if self.process and self.process.poll() is None:
            self.process.send_signal(number)
            self.process.wait(10)


class PostgresCluster:
    """A throw-away PostgreSQL that listens on a socket in its own folder and syncs nothing to disk."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="lab-postgres-"))
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> "PostgresCluster":
        bin_dir, prefix = postgres_programs(), self._as_somebody()
        data = self.folder / "data"
        subprocess.run(
            [*prefix, bin_dir / "initdb", "--pgdata", data, "--username", "lab", "--auth", "trust",
             "--encoding", "UTF8", "--locale", "C", "--no-sync"],
            check=True, stdout=subprocess.DEVNULL, cwd=self.folder,
        )  # fmt: skip
        with (self.folder / "log").open("wb") as log:
            self.process = subprocess.Popen(
                [*tether(), *prefix, bin_dir / "postgres", "-D", data, "-k", self.folder,
                 "-c", "listen_addresses=", "-c", "fsync=off", "-c", "synchronous_commit=off",
                 "-c", "full_page_writes=off", "-c", "max_connections=200"],
                stdout=log, stderr=log, cwd=self.folder, start_new_session=True,
            )  # fmt: skip
        ready = [bin_dir / "pg_isready", "--quiet", "-h", self.folder, "-U", "lab"]
        wait_until(lambda: subprocess.run(ready, check=False).returncode == 0, 30, "PostgreSQL answers", 0.1)
        return self

    def create(self, name: str) -> str:
        """The address of a new, empty database."""
        run = [postgres_programs() / "createdb", "-h", self.folder, "-U", "lab", name]
        subprocess.run(run, check=True)
        return f"postgres://lab@{quote(str(self.folder), safe='')}/{name}"

    def stop(self) -> None:
        if self.process and self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)  # PostgreSQL's "fast" shutdown
            self.process.wait(30)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _as_somebody(self) -> list[str]:
        """PostgreSQL refuses to run as root: then as the account that its package makes."""
        if os.geteuid() != 0:
            return []
        user = pwd.getpwnam("postgres")
        os.chown(self.folder, user.pw_uid, user.pw_gid)
        return ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups", "--"]


def postgres_programs() -> Path:
    """The folder with initdb and postgres: the newest of Debian's, else the PATH's."""
    debian = sorted(
        Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: float(path.parts[-3])
    )  # fmt: skip
    found = debian[-1] if debian else shutil.which("initdb")
    assert found, "These tests need PostgreSQL's server programs (Debian: apt-get install postgresql)."
    return Path(found).resolve().parent
