"""How the web process is served (see `gunicorn --config python:config.gunicorn`).

A request that waits for its run (`Prefer: wait`, and a run's page) keeps a thread and that thread's database
connection and takes no processor time, hence many threads in few processes. The database must allow a
connection to each thread of each process. The application is loaded once and shared by fork.
"""

import signal
from pathlib import Path
from typing import Any

from config import env, settings
from workers.processes import follow_parent

bind = f"{env.text('ATTENTION_LAB_HOST', '127.0.0.1')}:{env.integer('PORT', 8000)}"
worker_class = "gthread"
workers = env.integer("ATTENTION_LAB_WEB_PROCESSES", 2)
threads = settings.WEB_THREADS
preload_app = True
keepalive = 5
timeout = 60
graceful_timeout = 10
# The heartbeat file of each process: in memory, so that a busy disk does not look like a hang.
worker_tmp_dir = "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108
control_socket_disable = True  # nothing is written outside the data folder


def post_fork(arbiter: Any, worker: Any) -> None:
    """A killed arbiter takes its workers along: they would go on accepting requests for a second, then
    drop those that they have."""
    follow_parent(signal.SIGTERM)


def post_worker_init(worker: Any) -> None:
    """Make what searches need before somebody searches; here, where Django has been set up."""
    from search.finding import warm

    warm()
