import sys

from django.apps import AppConfig

# Commands that show no page and should not wait for one.
QUICK_COMMANDS = {"migrate", "makemigrations", "collectstatic", "token", "build_fonts", "build_heat_scales"}


class ConceptsConfig(AppConfig):
    name = "concepts"

    def ready(self) -> None:
        """Load the book where pages are served: a mistake in it stops the start, not a reader."""
        command = sys.argv[1] if len(sys.argv) > 1 else ""
        if "celery" not in sys.argv[0] and command not in QUICK_COMMANDS:
            from django.conf import settings

            from concepts.changes import changes
            from concepts.pages import book
            from concepts.paths import trails

            for code, _name in settings.LANGUAGES:
                book(code)
                trails(code)
                changes(code)
