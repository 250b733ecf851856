"""Figures: pure functions from a query string to HTML (and, where it makes sense, SVG and JSON).

A figure's state is the query string and nothing else, so that it can be linked, cached, tested, printed, and
used without JavaScript. A figure module defines one object with the attributes of `Figure`, listed in
`registry`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import urlencode


class Figure(Protocol):
    name: str
    #: parts that a page may place with `::: figure name part`; "" is the figure itself
    parts: frozenset[str]

    def render(self, params: Mapping[str, str], links: "Links", part: str = "") -> str:
        """The part as HTML; never raises, whatever the query string holds."""
        ...

    def fragment(self, params: Mapping[str, str], links: "Links") -> str:
        """What htmx swaps in when an input of the figure changes."""
        ...

    def query(self, params: Mapping[str, str]) -> str:
        """The canonical query string of this state ("" for the state that the page opens with)."""
        ...

    def data(self, params: Mapping[str, str]) -> dict[str, Any]:
        """The figure's numbers, JSON-ready."""
        ...

    def svg(self, params: Mapping[str, str]) -> str:
        """The figure as a picture that stands alone."""
        ...


@dataclass(frozen=True)
class Links:
    """Where a figure lives: the page that shows it, the fragment that refreshes it, and the lab; `origin` is
    the scheme and host that they are under, for commands that are copied."""

    page: str
    fragment: str
    lab: str
    #: parameters of what else has a state on the page, which a link or a form must carry along
    others: tuple[tuple[str, str], ...] = ()
    #: whether the page also has the part that leads to the lab
    has_run: bool = True
    origin: str = ""

    def address(self, query: str, anchor: str) -> str:
        """The page with the figure in another state, and all else on it as it is."""
        whole = "&".join(filter(None, (urlencode(self.others, safe="[],"), query)))
        return f"{self.page}?{whole}#{anchor}" if whole else f"{self.page}#{anchor}"


def registry() -> dict[str, Figure]:
    from concepts.figures import (
        alibi,
        average,
        before_attention,
        by_hand,
        compass,
        conformance,
        debates,
        decode_bandwidth,
        depth,
        engines,
        family,
        fit,
        flash_backward,
        flash_bits,
        flash_choice,
        flash_speeds,
        flash_tiles,
        gpt_bert,
        gpu_table,
        kv_bits,
        kv_cache,
        kv_keep,
        long_context,
        masks,
        memory_hierarchy,
        model_table,
        multi_head,
        numerics,
        online_merge,
        online_softmax,
        parse,
        past,
        positions,
        projections,
        quadratic,
        rope,
        scoring,
        sdpa_in_code,
        sharing,
        soft_hard_local,
        sqrt_dk,
        timeline,
        transformer,
    )

    figures = (
        *alibi.FIGURES,
        average.FIGURE,
        *before_attention.FIGURES,
        by_hand.FIGURE,
        compass.FIGURE,
        *debates.FIGURES,
        depth.FIGURE,
        *family.FIGURES,
        conformance.FIGURE,
        engines.FIGURE,
        fit.FIGURE,
        flash_backward.FIGURE,
        flash_bits.FIGURE,
        flash_choice.FIGURE,
        flash_speeds.FIGURE,
        flash_tiles.FIGURE,
        gpt_bert.FIGURE,
        gpu_table.FIGURE,
        *decode_bandwidth.FIGURES,
        *kv_bits.FIGURES,
        *kv_cache.FIGURES,
        kv_keep.FIGURE,
        *long_context.FIGURES,
        masks.FIGURE,
        masks.ALIGNMENT,
        *memory_hierarchy.FIGURES,
        model_table.FIGURE,
        *multi_head.FIGURES,
        numerics.FIGURE,
        online_merge.FIGURE,
        online_softmax.FIGURE,
        *parse.FIGURES,
        *positions.FIGURES,
        past.FIGURE,
        projections.FIGURE,
        quadratic.FIGURE,
        *rope.FIGURES,
        *scoring.FIGURES,
        sdpa_in_code.FIGURE,
        *sharing.FIGURES,
        *soft_hard_local.FIGURES,
        *sqrt_dk.FIGURES,
        timeline.FIGURE,
        transformer.FIGURE,
    )
    found: dict[str, Figure] = {figure.name: figure for figure in figures}
    if len(found) < len(figures):
        raise ValueError("two figures have one name")
    return found
