"""Which fields stand together: five things are seen at once, the rest is folded until it says something."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from django.utils.html import strip_tags
from django.utils.translation import gettext_lazy as _

# (id of the fold, its title, settings in it, arrays in it, prefixes of settings that come with a choice)
GROUPS: tuple[tuple[str, Any, tuple[str, ...], tuple[str, ...], str], ...] = (
    (
        "masks",
        _("Masks"),
        ("alignment", "window_left", "window_right", "pattern", "q_positions", "kv_positions"),
        ("attn_mask", "q_lens", "kv_lens"),
        "pattern_",
    ),
    ("scores", _("Scores"), ("scale", "softcap", "alibi_slopes", "sinks"), (), ""),
    (
        "rope",
        _("Rotary positions"),
        ("rope", "rope_theta", "rope_dim", "rope_dim_offset", "rope_positions", "rope_scaling"),
        (),
        "scaling_",
    ),
    ("others", _("Cache and other inputs"), ("past_len", "num_heads", "num_kv_heads"), ("*",), ""),
)
AFTER = {"pattern_": "pattern", "scaling_": "rope_scaling"}  # which choice such fields follow


@dataclass(frozen=True)
class Item:
    """A control by itself; or an array, with where it comes from and its numbers."""

    control: Any
    box: Any = None

    @property
    def template(self) -> str:
        return "lab/form/given.html" if self.box else "lab/parts/field.html"


@dataclass(frozen=True)
class Group:
    """A fold. names: what it says of itself while it is shut."""

    id: str
    title: Any
    items: list[Item] = field(default_factory=list)
    is_open: bool = False

    @property
    def names(self) -> str:
        return ", ".join(strip_tags(str(item.control.label)) for item in self.items)


def groups(
    settings: list[str], arrays: list[str], item: Callable[[str], Item], differs: Callable[..., bool]
) -> list[Group]:
    """The folds that have something in them. `settings` and `arrays`: what the form has of each, in order;
    `item` shows one of them, `differs` says whether any of some names is not at its default."""
    found, named = [], {name for _id, _title, _settings, names, _prefix in GROUPS for name in names}
    for id_, title, names, of_arrays, prefix in GROUPS:
        own = [name for name in names if name in settings]
        if prefix:
            at = own.index(AFTER[prefix]) + 1 if AFTER[prefix] in own else len(own)
            own[at:at] = [name for name in settings if name.startswith(prefix)]
        beside = [name for name in arrays if name in of_arrays or ("*" in of_arrays and name not in named)]
        shown = [*own, *beside]
        if shown:
            found.append(Group(id_, title, [item(name) for name in shown], differs(*shown)))
    return found
