"""As the product's settings where that matters for speed (SQLite in WAL mode), and bare otherwise."""

import os

DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ["PEER_DATABASE"],
        "CONN_MAX_AGE": 60,
        "OPTIONS": {
            "transaction_mode": "IMMEDIATE",
            "timeout": 20,
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
        },
    }
}
INSTALLED_APPS = ["tests.benchmarks.peer"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
ROOT_URLCONF = "tests.benchmarks.peer.web"
ALLOWED_HOSTS = ["*"]
SECRET_KEY = "benchmark"
USE_TZ = True
