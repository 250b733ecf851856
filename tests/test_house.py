"""The house rules that no linter knows."""

import re
import subprocess
from pathlib import Path

from config import procfile
from tests.support import lock

ROOT = Path(__file__).resolve().parents[1]
MAKEFILE = (ROOT / "Makefile").read_text()


def tracked() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return [ROOT / name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]


def test_site_is_a_source_folder_and_not_dropped_by_gitignore():
    assert not (ROOT / "site" / "__init__.py").exists()
    assert ROOT / "site" / "config" / "settings.py" in tracked()


def test_the_locks_fit_pyproject():
    assert lock.problems() == []


def test_a_lock_that_does_not_fit_is_noticed(monkeypatch):
    pins = lock.pins

    def older(path):
        return {**pins(path), "django": lock.Version("4.2.1")} if path == lock.RUNTIME else pins(path)

    monkeypatch.setattr(lock, "pins", older)
    assert any("4.2.1" in problem and "django" in problem for problem in lock.problems())


def test_every_command_that_the_documents_name_is_in_the_makefile():
    targets = set(re.findall(r"^([a-z-]+):", MAKEFILE, re.MULTILINE))
    for name in ("README.md", "CONTRIBUTING.md", "ARCHITECTURE.md"):
        text = (ROOT / name).read_text()
        blocks = re.findall(r"```\w*\n(.*?)```", text, re.DOTALL)
        inline = re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
        lines = [line for block in blocks for line in block.splitlines()] + inline
        goals = re.compile(r"(?:[A-Z_]+=\S+ )*make (?:-s )?([a-z-]+(?: [a-z-]+)*)")
        named = {goal for line in lines if (found := goals.match(line)) for goal in found[1].split()}
        assert named <= targets, f"{name}: {named - targets}"
    readme = (ROOT / "README.md").read_text()
    assert {"run", "test", "token"} <= set(re.findall(r"make (?:-s )?([a-z]+)", readme))


def test_the_readme_is_one_screen():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 60


def test_every_target_says_what_it_does():
    phony = re.search(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE).group(1).split()
    for target in phony:
        assert re.search(rf"^{target}:.*## \S", MAKEFILE, re.MULTILINE), target


def test_the_procfile_has_a_process_for_every_queue(settings):
    assert {"web", "gpu", *map(procfile.process_of, settings.QUEUES)} == set(procfile.commands())


def test_nothing_at_the_top_without_a_reason():
    architecture = (ROOT / "ARCHITECTURE.md").read_text()
    for top in sorted({path.relative_to(ROOT).parts[0] for path in tracked()}):
        documented = top in architecture or top.startswith(".") or top.endswith(".md")
        assert documented, f"{top} is not explained in ARCHITECTURE.md"
