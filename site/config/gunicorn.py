"""How the web process is served (see `gunicorn --config python:config.gunicorn`).

A request that waits for its run (`Prefer: wait`) holds a thread and nothing else, hence many
threads in few processes. The application is loaded once and shared by fork.
"""

import os
from pathlib import Path

bind = f"{os.environ.get('ATTENTION_LAB_HOST', '127.0.0.1')}:{os.environ.get('PORT', '8000')}"
worker_class = "gthread"
workers = int(os.environ.get("ATTENTION_LAB_WEB_PROCESSES", "2"))
threads = int(os.environ.get("ATTENTION_LAB_WEB_THREADS", "32"))
preload_app = True
keepalive = 5
timeout = 60
graceful_timeout = 10
# The heartbeat file of each process: in memory, so that a busy disk does not look like a hang.
worker_tmp_dir = "/dev/shm" if Path("/dev/shm").is_dir() else None  # noqa: S108
control_socket_disable = True  # nothing is written outside the data folder
