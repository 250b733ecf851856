from typing import Any

from django import template

from search.finding import EXAMPLES, Results

register = template.Library()


@register.inclusion_tag("search/box.html")
def search_box() -> dict[str, Any]:
    """The search that is to be opened on any page, before anything was typed."""
    return {"results": Results(""), "examples": EXAMPLES}
