"""docker-compose.yml and Dockerfile: what they promise, checked without a Docker engine.

The commands are the Procfile's, and those are run for real on PostgreSQL by the `postgres_lab` tests.
"""

import re
import socket
import subprocess
from pathlib import Path

import pytest
import yaml

from config import procfile

ROOT = Path(__file__).resolve().parents[1]
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES = COMPOSE["services"]
WORKERS = ("cpu", "compile", "gpu", "grader", "maintenance")
OURS = ("web", *WORKERS, "migrate")
DOCKERFILE = (ROOT / "Dockerfile").read_text()


def seconds(duration: str) -> int:
    amount, unit = re.fullmatch(r"(\d+)([sm])", duration).groups()
    return int(amount) * {"s": 1, "m": 60}[unit]


def words(service: dict) -> str:
    return " ".join(service["command"]).replace("$$", "$")


def test_the_services_are_those_of_the_design():
    assert set(SERVICES) == {*OURS, "database", "redis"}


@pytest.mark.parametrize("name", procfile.commands())
def test_each_command_is_the_procfiles(name):
    command = [part.replace("$$", "$") for part in SERVICES[name]["command"]]
    assert command == ["sh", "-c", f"exec {procfile.commands()[name]}"]


def test_each_service_runs_with_as_little_as_possible():
    for name, service in SERVICES.items():
        assert service["user"].split(":")[0] not in {"0", "root"}, name
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert "no-new-privileges:true" in service["security_opt"], name
        assert not service.get("privileged"), name


def test_each_long_running_service_has_a_health_check_and_time_to_stop():
    for name in set(SERVICES) - {"migrate"}:
        check = SERVICES[name]["healthcheck"]
        assert check["test"][0] in {"CMD", "CMD-SHELL"}, name
        assert seconds(check["timeout"]) <= seconds(check["interval"]), name
        assert seconds(SERVICES[name]["stop_grace_period"]) >= 30, name
        assert SERVICES[name]["restart"] == "unless-stopped", name


def test_a_worker_may_finish_its_run_before_it_is_killed(settings):
    budget = max(settings.RUN_BUDGET_TOKEN, settings.RUN_BUDGET_ANONYMOUS)
    for name in ("cpu", "compile", "gpu"):
        assert seconds(SERVICES[name]["stop_grace_period"]) > budget + settings.RUN_HARD_LIMIT_MARGIN, name
    longest = settings.GRADE_BUDGET + settings.GRADE_TURN + settings.GRADE_HARD_LIMIT_MARGIN
    assert seconds(SERVICES["grader"]["stop_grace_period"]) > longest


def test_only_a_machine_with_a_gpu_starts_the_gpu_worker():
    assert SERVICES["gpu"]["profiles"] == ["gpu"]
    assert [name for name, service in SERVICES.items() if "profiles" in service] == ["gpu"]
    assert "gpu" in SERVICES["gpu"]["environment"]["ATTENTION_LAB_QUEUES"].split(":-")[1]
    assert SERVICES["gpu"]["deploy"]["resources"]["reservations"]["devices"][0]["driver"] == "nvidia"
    assert "gpu" not in SERVICES["web"]["environment"]["ATTENTION_LAB_QUEUES"]


def test_redis_keeps_what_it_is_given():
    command = words(SERVICES["redis"])
    assert "--appendonly yes" in command
    assert "--maxmemory-policy noeviction" in command
    assert SERVICES["redis"]["volumes"] == ["redis:/data"]


def test_nothing_starts_before_what_it_needs():
    for name in (*WORKERS, "web"):
        assert SERVICES[name]["depends_on"] == {
            "migrate": {"condition": "service_completed_successfully"},
            "redis": {"condition": "service_healthy"},
        }, name
    assert SERVICES["migrate"]["depends_on"] == {"database": {"condition": "service_healthy"}}


def test_results_are_shared_between_web_and_workers():
    for name in (*WORKERS, "web"):
        assert "artifacts:/data" in SERVICES[name]["volumes"], name
    assert re.search(r"ATTENTION_LAB_DATA_DIR=/data\b", DOCKERFILE)


def test_only_the_web_can_be_reached_from_outside():
    assert [name for name, service in SERVICES.items() if "ports" in service] == ["web"]
    assert COMPOSE["networks"]["inside"] == {"internal": True}


def test_secrets_come_from_files_and_are_in_neither_file():
    for name, service in SERVICES.items():
        for variable, value in service.get("environment", {}).items():
            if re.search(r"SECRET|PASSWORD|DATABASE_URL", variable):
                assert variable.endswith("_FILE"), (name, variable)
                assert Path(str(value)).name in service["secrets"], (name, variable)
    assert all("file" in secret for secret in COMPOSE["secrets"].values())
    assert not re.search(r"^(ENV|ARG)\b.*(SECRET|PASSWORD|TOKEN)", DOCKERFILE, re.MULTILINE)
    assert "secrets" not in (ROOT / ".dockerignore").read_text()


def test_each_setting_of_the_compose_file_exists():
    source = "".join(path.read_text() for path in (ROOT / "site" / "config").glob("*.py"))
    source += (ROOT / "Procfile").read_text()
    for name in OURS:
        for variable in SERVICES[name]["environment"]:
            assert variable.removesuffix("_FILE") in source, variable


def test_every_setting_can_be_given_to_the_services():
    source = "".join(path.read_text() for path in (ROOT / "site" / "config").glob("*.py"))
    source += (ROOT / "Procfile").read_text()
    known = set(re.findall(r"ATTENTION_LAB_[A-Z_]+[A-Z]", source))
    the_images = set(re.findall(r"(ATTENTION_LAB_\w+)=", DOCKERFILE))
    of_make_run = {"ATTENTION_LAB_STOP_SECONDS"}
    passed = {name.removesuffix("_FILE") for service in OURS for name in SERVICES[service]["environment"]}
    assert known - passed == (the_images | of_make_run) - passed


def test_the_image_installs_the_lock_and_does_not_run_as_root():
    assert "-r requirements.lock" in DOCKERFILE
    users = re.findall(r"^USER (\S+)", DOCKERFILE, re.MULTILINE)
    assert users == [SERVICES["web"]["user"]]
    assert DOCKERFILE.index("COPY . .") < DOCKERFILE.index("USER ")
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert "*" in ignored
    for needed in (
        "api",
        "kernels",
        "site",
        "static",
        "templates",
        "workers",
        "manage.py",
        "requirements.lock",
    ):
        assert f"!{needed}" in ignored, needed


@pytest.mark.slow
@pytest.mark.parametrize("name", ["web", "cpu", "grader", "maintenance"])
def test_the_health_checks_pass_on_the_running_product(postgres_lab, name):
    kind, *command = [part.replace("$$", "$") for part in SERVICES[name]["healthcheck"]["test"]]
    command = ["/bin/sh", "-c", *command] if kind == "CMD-SHELL" else command
    env = {**postgres_lab.env, "HOSTNAME": socket.gethostname()}
    done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_children_of_the_cpu_worker_leave_each_other_their_cores() -> None:
    """One child for each core: products of numpy in as many threads again would be many times slower."""
    cpu = next(line for line in (ROOT / "Procfile").read_text().splitlines() if line.startswith("cpu:"))
    assert "OPENBLAS_NUM_THREADS=${OPENBLAS_NUM_THREADS:-1}" in cpu
