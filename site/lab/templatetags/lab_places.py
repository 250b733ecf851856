"""Where one can go in the lab, for every page of it."""

from typing import Any

from django import template
from django.urls import reverse
from django.utils.translation import gettext_lazy as _

register = template.Library()

PLACES = (
    ("lab:home", _("New run")),
    ("lab:presets", _("Presets")),
    ("lab:new_sweep", _("Sweep a range")),
    ("lab:compare", _("Compare runs")),
    ("lab:conventions", _("Which convention is it?")),
    ("lab:tiles", _("Tiles")),
    ("lab:compiled", _("Compiled kernels")),
    ("lab:kernels", _("Sources")),
    ("lab:history", _("History")),
)


@register.inclusion_tag("lab/parts/places.html", takes_context=True)
def places(context: template.Context) -> dict[str, Any]:
    """The address of each, its name, and whether it is the page that is shown."""
    path = context["request"].path
    named = ((reverse(view), name) for view, name in PLACES)
    return {"places": [(address, name, address == path) for address, name in named]}
