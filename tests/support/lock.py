"""The lock files: `write` makes them from pyproject.toml, `check` says whether they still fit it.

    python -m tests.support.lock write|check

requirements.lock is what runs; requirements-dev.lock what tests and linters need on top. PyTorch is
pinned by its public version alone and what it needs for CUDA is left out, so that one lock serves the
CPU and the CUDA builds: whichever is installed first satisfies it.
"""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[2]
RUNTIME = ROOT / "requirements.lock"
DEV = ROOT / "requirements-dev.lock"
LEFT_OUT = re.compile(r"^(nvidia-|cuda-|pip(==|$))")  # CUDA's parts, and the installer itself


def wanted() -> dict[Path, list[Requirement]]:
    """What pyproject.toml asks each lock file to hold."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    return {
        RUNTIME: [Requirement(text) for text in project["project"]["dependencies"]],
        DEV: [Requirement(text) for text in project["dependency-groups"]["dev"]],
    }


def pins(path: Path) -> dict[str, Version]:
    """{package: version} of a lock file."""
    lines = (line.partition("#")[0].strip() for line in path.read_text().splitlines())
    found = (Requirement(line) for line in lines if line)
    return {
        canonicalize_name(pin.name): Version(next(iter(pin.specifier)).version) for pin in found
    }  # fmt: skip


def problems() -> list[str]:
    """Each way in which the lock files do not fit pyproject.toml or one another."""
    runtime, dev = pins(RUNTIME), pins(DEV)
    found = [
        f"{name}: {runtime[name]} in {RUNTIME.name}, {dev[name]} in {DEV.name}"
        for name in sorted(runtime.keys() & dev.keys())
        if runtime[name] != dev[name]
    ]
    for path, requirements in wanted().items():
        locked = {**runtime, **pins(path)}
        for requirement in requirements:
            version = locked.get(canonicalize_name(requirement.name))
            if version is None:
                found.append(f"{requirement.name} is not in {path.name}")
            elif not requirement.specifier.contains(version, prereleases=True):
                found.append(f"{requirement} does not allow the {version} of {path.name}")
    for name, version in {**runtime, **dev}.items():
        if version.local or LEFT_OUT.match(name):
            found.append(f"{name}=={version} belongs to one build of PyTorch, not in a lock")
    return found


def write() -> None:
    """Resolve anew, keeping what is already pinned where pyproject.toml still allows it."""
    runtime, dev = wanted().values()
    locked = compile_lock(runtime, RUNTIME)
    RUNTIME.write_text(header("Runs the product.") + locked)
    both = compile_lock([*runtime, *dev], DEV, RUNTIME)
    names = set(pins(RUNTIME))
    extra = [line for line in both.splitlines() if line.partition("==")[0] not in names]
    DEV.write_text(header("Tests and linters, on top of requirements.lock.") + "\n".join(extra) + "\n")


def header(purpose: str) -> str:
    return f"# {purpose} Written by `make lock` from pyproject.toml; do not edit.\n"


def compile_lock(requirements: list[Requirement], output: Path, *constraints: Path) -> str:
    """pip-compile's answer, one package a line with the packages that asked for it."""
    previous = output.read_text() if output.exists() else ""
    work = ROOT / ".cache"
    work.mkdir(exist_ok=True)
    source, target = work / "pyproject.in", work / output.name
    source.write_text("\n".join(map(str, [*requirements, *(f"-c {path}" for path in constraints)])) + "\n")
    target.write_text(previous)
    subprocess.run(
        [sys.executable, "-m", "piptools", "compile", "--quiet", "--no-header", "--strip-extras",
         "--allow-unsafe", "--no-emit-index-url", "--no-emit-find-links", "--no-emit-trusted-host",
         "--annotation-style", "line", "--output-file", target, source],
        check=True,
    )  # fmt: skip
    kept = []
    for line in target.read_text().splitlines():
        pin, _, why = line.partition("#")
        asked = [name for name in why.strip().removeprefix("via ").split(", ") if not name.startswith("-c ")]
        names = ", ".join("pyproject.toml" if name.startswith("-r ") else name for name in asked)
        if "==" in pin and not LEFT_OUT.match(pin):
            # "+cpu" and the like name one build; the public version is satisfied by all of them.
            kept.append(f"{re.sub(r'[+][a-z0-9.]+', '', pin).strip():<40}# via {names}")
    return "\n".join(kept) + "\n"


def main(arguments: list[str]) -> int:
    if arguments == ["write"]:
        write()
    elif arguments != ["check"]:
        print(__doc__)
        return 2
    found = problems()
    print("\n".join(found) if found else "Every range of pyproject.toml is met by the lock files.")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
