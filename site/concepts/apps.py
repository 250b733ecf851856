import sys

from django.apps import AppConfig


class ConceptsConfig(AppConfig):
    name = "concepts"

    def ready(self) -> None:
        """Load the book where pages are served: a mistake in it stops the start, not a reader."""
        served_here = "celery" not in sys.argv[0] and not (
            len(sys.argv) > 1 and sys.argv[1] in QUICK_COMMANDS
        )
        if served_here:
            from concepts.pages import book

            book("en")


QUICK_COMMANDS = {
    "migrate",
    "makemigrations",
    "collectstatic",
    "token",
    "build_fonts",
    "build_heat_scales",
    "shell",
}
