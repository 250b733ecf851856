"""What every test relies on: settings that touch nothing of the checkout's own data, and real servers.

`pytest --database postgres` runs the tests that use Django's database on a PostgreSQL of their own. With `-n`
each of pytest-xdist's processes has a folder, a Redis and a PostgreSQL of its own.
"""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from tests.support.deployment import Lab, sqlite_url
from tests.support.services import PostgresCluster, RedisServer

# A short path: it carries unix sockets. Set before anything reads the settings.
DATA_DIR = Path(tempfile.mkdtemp(prefix="lab-tests-"))
REDIS = RedisServer(DATA_DIR)
OURS = {
    "DJANGO_SETTINGS_MODULE": "config.settings",
    "ATTENTION_LAB_DATA_DIR": str(DATA_DIR),
    "ATTENTION_LAB_REDIS_URL": REDIS.url,
    "TRITON_INTERPRET": "1",  # decided when triton is first imported
}
POSTGRES: list[PostgresCluster] = []


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--database", choices=("sqlite", "postgres"), default="sqlite",
                     help="what the tests of this process use through Django")  # fmt: skip


def pytest_configure(config: pytest.Config) -> None:
    one_of_several = hasattr(config, "workerinput")
    if config.getoption("tx") and not one_of_several:
        return  # pytest-xdist's first process only hands out tests
    if one_of_several:
        # Processes whose numpy and torch each take all cores wait for one another.
        os.environ.update(OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1")
    for name in [name for name in os.environ if name.startswith("ATTENTION_LAB_")]:
        del os.environ[name]
    os.environ.update(OURS)
    if config.getoption("--database") == "postgres":
        POSTGRES.append(PostgresCluster().start())
        os.environ["ATTENTION_LAB_DATABASE_URL"] = POSTGRES[0].create("django")

    # The same examples in every run, so that what lands does not depend on luck; HYPOTHESIS_PROFILE=search
    # looks for new ones.
    hypothesis.settings.register_profile("same", derandomize=True, deadline=None)
    hypothesis.settings.register_profile("search", deadline=None)
    hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))

    from django.conf import settings

    if settings.configured:
        raise pytest.UsageError("Unset DJANGO_SETTINGS_MODULE: the tests set their own, and later.")
    # Pages are rendered without collectstatic: plain names instead of hashed ones.
    settings.STORAGES["staticfiles"] = {
        "BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"
    }  # fmt: skip
    settings.STATIC_ROOT = str(DATA_DIR / "static-built")  # there, whether or not anything was built
    (DATA_DIR / "static-built").mkdir()
    if config.getoption("--database") == "sqlite":
        # A file, as in production: an in-memory database is shared between threads without WAL.
        settings.DATABASES["default"]["TEST"] = {"NAME": str(DATA_DIR / "test.sqlite3")}
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """On PostgreSQL, whatever does not use Django's database would only repeat itself."""
    if config.getoption("--database") == "postgres":
        others = [item for item in items if not uses_database(item)]
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if uses_database(item)]


def uses_database(item: pytest.Item) -> bool:
    fixtures = getattr(item, "fixturenames", ())
    return "db" in fixtures or "transactional_db" in fixtures or bool(item.get_closest_marker("django_db"))


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish() -> None:
    put_away()  # here already: what pytest-xdist's processes do later is cut off after seconds


def pytest_unconfigure() -> None:
    put_away()


def put_away() -> None:
    for cluster in POSTGRES:
        cluster.stop()
    shutil.rmtree(DATA_DIR, ignore_errors=True)


@pytest.fixture
def own_files(settings: Any, tmp_path: Path) -> None:
    """Stored files go to a folder of this test."""
    settings.STORAGES = {
        **settings.STORAGES,
        "default": {
            "BACKEND": "django.core.files.storage.FileSystemStorage",
            "OPTIONS": {"location": tmp_path},
        },
    }


@pytest.fixture
def sent(own_files: None, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ids of the runs sent to the broker, in order; nothing else of Redis is there."""
    from workers import events, runs

    ids: list[str] = []
    monkeypatch.setattr(runs.app, "send_task", lambda _name, args, **_options: ids.append(args[0]))
    monkeypatch.setattr(events, "announce_all", lambda *_: None)
    return ids


@pytest.fixture
def charged(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, float]]:
    """What anonymous callers were charged: (digest of the address, seconds)."""
    from workers import quotas

    charges: list[tuple[str, float]] = []
    monkeypatch.setattr(quotas, "charge", lambda caller, seconds, _runs=1: charges.append((caller, seconds)))
    monkeypatch.setattr(quotas, "refund", lambda caller, seconds, _runs=1: charges.remove((caller, seconds)))
    return charges


@pytest.fixture(scope="session")
def _redis() -> Iterator[RedisServer]:
    yield REDIS.start()
    REDIS.stop()


@pytest.fixture
def redis_server(_redis: RedisServer) -> RedisServer:
    """A real Redis, empty, at the address that the settings name."""
    if not _redis.answers():
        _redis.start()
    _redis.client.flushall()
    return _redis


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresCluster]:
    """A real PostgreSQL; `postgres.create(name)` makes a database and says its address."""
    cluster = PostgresCluster()
    yield cluster.start()
    cluster.stop()


@pytest.fixture(scope="session")
def sqlite_lab() -> Iterator[Lab]:
    """The whole product on SQLite, for tests that only read it or submit runs (see also `lab`)."""
    folder = Path(tempfile.mkdtemp(prefix="lab-sqlite-"))
    deployment = Lab(folder, sqlite_url(folder), ("cpu", "compile", "grade", "maintenance"))
    try:
        yield deployment.up()
    finally:
        deployment.down()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def postgres_lab(postgres: PostgresCluster) -> Iterator[Lab]:
    """The whole product on PostgreSQL."""
    folder = Path(tempfile.mkdtemp(prefix="lab-on-postgres-"))
    deployment = Lab(folder, postgres.create("lab"), ("cpu", "grade", "maintenance"))
    try:
        yield deployment.up()
    finally:
        deployment.down()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(params=["sqlite", "postgres"])
def lab(request: pytest.FixtureRequest) -> Lab:
    """The product on each database in turn, whole again whatever an earlier test killed."""
    deployment: Lab = request.getfixturevalue(f"{request.param}_lab")
    deployment.heal()
    return deployment
