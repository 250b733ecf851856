"""Write static/css/heat.css from concepts.figures.scales."""

from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand

from concepts.figures import scales


class Command(BaseCommand):
    help = "Rebuild the heat-map colour classes (static/css/heat.css)."

    def handle(self, *args: Any, **options: Any) -> None:
        (settings.ROOT / "static" / "css" / "heat.css").write_text(scales.stylesheet())
