"""`manage.py load_problems`: bring the problems of the course that comes with the product up to date.

Each is a Markdown file: front matter with the problem (as POST /api/v1/problems takes it, but for what the
text says), then its statement and, under headings of that name, `## Hints` (a list) and `## Solution`. What
is unchanged is left alone; a changed file is a new version. It is published when no wrong answer survives it.
"""

import re
from pathlib import Path
from typing import Any

import yaml
from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

FRONT = re.compile(r"\A---\n(.*?\n)---\n(.*)\Z", re.DOTALL)
SECTION = re.compile(r"^## (Hints|Solution)[ \t]*\n", re.MULTILINE)
HINT = re.compile(r"^(?:[-*]|\d+\.)[ \t]+", re.MULTILINE)


class Command(BaseCommand):
    help = "Load the course's problems from its Markdown files; as often as you like."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("folder", nargs="?", type=Path, default=settings.COURSE_DIR)

    def handle(self, *args: Any, **options: Any) -> None:
        files = sorted(options["folder"].glob("*.md"))
        new = sum(self._load(path, options["verbosity"]) for path in files)
        if options["verbosity"]:
            self.stdout.write(f"{len(files)} problems, {new} new or changed")

    def _load(self, path: Path, verbosity: int) -> bool:
        from kernels.grading.mutants import matrix
        from kernels.grading.problem import parse_problem
        from kernels.spec import SpecError
        from workers.grading import problems
        from workers.grading.models import COURSE

        try:
            problem = parse_problem(read(path))
        except (SpecError, ValueError, yaml.YAMLError) as error:
            raise CommandError(f"{path}: {error}") from error
        version, is_new = problems.save(COURSE, problem)
        table = problems.matrix_of(version)
        if table is None:
            table = matrix(problem).to_dict()
            problems.keep_matrix(version, table)
        try:
            problems.publish(version, table)
        except problems.Survivors as error:
            raise CommandError(f"{path}: {error}") from error
        if is_new and verbosity:
            self.stdout.write(f"{version}")
        return is_new


def read(path: Path) -> dict[str, Any]:
    """The body of a problem that a file describes. ValueError: it has no front matter."""
    found = FRONT.match(path.read_text())
    if not found:
        raise ValueError("the file must begin with front matter between two lines of ---")
    body = yaml.safe_load(found[1])
    if not isinstance(body, dict):
        raise ValueError("the front matter must be a mapping")
    statement, *sections = SECTION.split(found[2])
    said = {"slug": path.stem, "statement": statement.strip()}
    for name, text in zip(sections[::2], sections[1::2], strict=True):
        if name == "Hints":
            said["hints"] = [hint.strip() for hint in HINT.split(text) if hint.strip()]
        else:
            said["solution"] = text.strip()
    return {**said, **body}
