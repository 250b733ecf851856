"""What the settings promise to whoever runs the product, each tried in a process of its own."""

import http.server
import os
import subprocess
import sys
import threading

import pytest

from tests.support.deployment import ROOT, base_env


def run(code, folder, **changes):
    env = base_env(folder, **changes)
    return subprocess.run(
        [sys.executable, "-c", code], env=env, cwd=ROOT, capture_output=True, text=True, check=False
    )


ASK = """
import django; django.setup()
from django.conf import settings
settings.STORAGES["staticfiles"]["BACKEND"] = "django.contrib.staticfiles.storage.StaticFilesStorage"
from django.test import Client
for host, path in (("127.0.0.1:8000", "/api/v1/healthz"), ("localhost", "/api/v1/healthz"),
                   ("lab.example", "/api/v1/healthz"), ("lab.example", "/api/v1/engines"),
                   ("other.example", "/api/v1/healthz")):
    print(Client().get(path, headers={"Host": host}).status_code)
"""


def test_health_is_told_from_inside_whatever_is_set(tmp_path):
    done = run(ASK, tmp_path, ATTENTION_LAB_HTTPS="1", ATTENTION_LAB_ALLOWED_HOSTS="lab.example")
    assert done.stdout.split() == ["200", "200", "200", "301", "400"], done.stderr


def test_readiness_is_exempt_from_the_redirect_too(settings, client):
    import re

    exempt = settings.SECURE_REDIRECT_EXEMPT
    assert any(re.search(pattern, "api/v1/readyz") for pattern in exempt)
    assert not any(re.search(pattern, "en/lab/") for pattern in exempt)


def test_make_run_asks_for_readiness_by_a_name_that_is_always_allowed():
    from config.embedded import Deployment

    hosts = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            hosts.append(self.headers.get_all("Host"))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.handle_request)
    thread.start()
    deployment = Deployment.__new__(Deployment)
    deployment.url = f"http://localhost:{server.server_port}"
    assert deployment._answers()
    thread.join()
    server.server_close()
    assert hosts == [["127.0.0.1"]]


THREADS = (
    "from config import gunicorn, settings; "
    "print(gunicorn.threads, settings.MAX_WAITERS, settings.MAX_COMPUTING); import config.wsgi"
)


@pytest.mark.parametrize(
    ("threads", "said"), [("", "32 24 6"), ("12", "12 4 3"), ("4", "4 0 1"), ("2", "2 0 1")]
)
def test_one_setting_says_how_many_threads_there_are(tmp_path, threads, said):
    changes = {"ATTENTION_LAB_WEB_THREADS": threads} if threads else {}
    done = run(THREADS, tmp_path, **changes)
    assert done.stdout.strip() == said, done.stderr


def test_a_bad_number_of_threads_or_processes_names_itself(tmp_path):
    for name in ("ATTENTION_LAB_WEB_THREADS", "ATTENTION_LAB_WEB_PROCESSES", "PORT"):
        assert f"{name}='many' is not a whole number" in run(THREADS, tmp_path, **{name: "many"}).stderr


@pytest.mark.parametrize(
    ("waiters", "computing", "starts"),
    [
        ("25", "6", True),
        ("0", "31", True),
        ("26", "6", False),
        ("0", "32", False),
        ("-1", "6", False),
        ("0", "0", False),
    ],
)
def test_the_web_process_does_not_start_when_those_that_hold_threads_could_take_every_one(
    tmp_path, waiters, computing, starts
):
    limits = {"ATTENTION_LAB_MAX_WAITERS": waiters, "ATTENTION_LAB_MAX_COMPUTING": computing}
    done = run("import config.wsgi", tmp_path, **limits)
    assert (done.returncode == 0) == starts, done.stderr
    assert ("ATTENTION_LAB_MAX_WAITERS" in done.stderr) == (not starts)
    assert ("ATTENTION_LAB_MAX_COMPUTING" in done.stderr) == (not starts)


# --- The key that `make run` makes ----------------------------------------------------------------


@pytest.fixture
def module(tmp_path, monkeypatch):
    """The settings module itself, with an empty data folder."""
    from config import settings

    monkeypatch.setattr(settings, "DATA_DIR", tmp_path / "data")
    return settings


def test_the_key_is_made_once_and_is_ours_alone(module):
    key = module.embedded_secret()
    assert len(key) > 50
    assert module.embedded_secret() == key
    assert os.listdir(module.DATA_DIR) == ["secret-key"]
    assert (module.DATA_DIR / "secret-key").stat().st_mode & 0o777 == 0o600


def test_a_start_that_dies_leaves_no_half_a_key(module, monkeypatch):
    def die(_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(module.secrets, "token_urlsafe", die)
        with pytest.raises(KeyboardInterrupt):
            module.embedded_secret()
    assert os.listdir(module.DATA_DIR) == []
    assert module.embedded_secret()


def test_of_two_processes_that_start_at_once_both_use_the_first_key(module, monkeypatch):
    def too_late(_):
        (module.DATA_DIR / "secret-key").write_text("the key of the other process")
        return "mine"

    monkeypatch.setattr(module.secrets, "token_urlsafe", too_late)
    assert module.embedded_secret() == "the key of the other process"
