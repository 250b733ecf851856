"""The lab's form: text fields in, the body of `POST /api/v1/runs` out, problems back to their fields.

The form validates nothing about attention: `kernels.spec.parse_run` does. A module for each step: what a form
holds at first (`state`), which fields it has (`offering`), the body that it makes of them (`reading`), where
problems belong (`placing`). Here is what templates ask of it, and its link.
"""

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from django.urls import reverse

from kernels.spec.families import PLAIN
from lab.form import given, grid, offers, options
from lab.form.groups import Group, Item, groups
from lab.form.offers import ARRAYS
from lab.form.placing import PlacingForm
from lab.form.state import DEFAULTS, of_link

MAX_LINK = 2_000  # characters of a link that every browser, server and chat passes on unharmed


class LabForm(PlacingForm):
    """Bound to whatever state there is (defaults, a link, a fork, a submission); never invalid by itself."""

    @classmethod
    def from_link(cls, query: Mapping[str, Any]) -> "LabForm":
        """The form that a link describes."""
        return cls(of_link(query))

    # --- What the templates ask -----------------------------------------------------------------------

    @property
    def wrong_fields(self) -> list[Any]:
        return [self[name] for name in self.fields if self[name].errors]

    @property
    def problem_count(self) -> int:
        return sum(len(messages) for messages in self.errors.values())

    @property
    def groups(self) -> list[Group]:
        """The folds of settings and of arrays."""
        known = [setting.name for setting in self.settings]
        folded = [*known, *(["past_len"] if "past_len" in self.fields else [])]
        beside = [] if self.family is not PLAIN else self.arrays
        if self.family is not PLAIN:
            beside = [name for name in self.arrays if name not in self.family.axes]
        return groups(folded, beside, self.item, self.has_something)

    @property
    def family_items(self) -> list[Item]:
        """The arrays that stand in the place of q, k and v."""
        return [self.item(name) for name in self.arrays if name in self.family.axes]

    @property
    def shape_items(self) -> list[Any]:
        """The fields for their shape."""
        return [self[name] for name in (*self.shape_names, "seed", "distribution", "layout")]

    @property
    def is_plain(self) -> bool:
        return self.family is PLAIN

    def item(self, name: str) -> Item:
        if name in self.arrays:
            return Item(self[given.how(name)], self[given.box(name)])
        return Item(self[name])

    def has_something(self, *names: str) -> bool:
        """Whether any of these settings and arrays is not as it usually is, or is wrong."""
        arrays = [name for name in names if name in self.arrays]
        controls = [control(name) for name in arrays for control in (given.how, given.box)]
        return self.differs(*(name for name in names if name not in self.arrays), *controls)

    @property
    def shape_is_unusual(self) -> bool:
        return self.differs("batch", "kv_heads", "kv_len", "v_head_dim", "layout")

    @property
    def settings_are_unusual(self) -> bool:
        return self.differs("dtype", "device", "warmup", "iters")

    @property
    def results_are_unusual(self) -> bool:
        return self.differs("returns")

    @property
    def options_are_worth_a_look(self) -> bool:
        """Whether they are unusual, or those of an engine that somebody chose."""
        controls = map(options.control, self.engine_chosen.options)
        return self.engine_chosen.name != DEFAULTS["engine"] or self.differs(*controls)

    @property
    def option_fields(self) -> list[Any]:
        return [self[options.control(name)] for name in self.engine_chosen.options]

    @property
    def option_names(self) -> str:
        return ", ".join(self.engine_chosen.options)

    @property
    def results(self) -> list[dict[str, Any]]:
        """Each result's box, and what it means."""
        return [{"box": box, "meaning": offers.result_meaning(box.data["value"])} for box in self["returns"]]

    @property
    def results_chosen(self) -> str:
        return ", ".join(map(offers.result_name, self.state.getlist("returns")))

    @property
    def grid(self) -> list[dict[str, Any]]:
        """Q, K and V as boxes."""
        rows = self.grid_rows
        return [
            {"name": name, "field": self[f"grid_{name}"], "rows": grid.cells(name, rows[name])}
            for name in ARRAYS
        ]

    @property
    def grid_sizes(self) -> list[Any]:
        """The fields for the size of the grid, which say what is shown."""
        for name, count in grid.sizes(self.grid_rows).items():
            self.state[name] = count
        return [self[name] for name in grid.SIZES]

    @property
    def names_are_unusual(self) -> bool:
        return self.differs("q_name", "k_name", "v_name")

    def differs(self, *names: str) -> bool:
        """Whether any of these fields is not at its default, or is wrong: then its group is shown open."""
        return any(
            name in self.fields and (self.has_error(name) or not self.is_usual(name)) for name in names
        )

    # --- Links ----------------------------------------------------------------------------------------

    def address(self) -> str | None:
        """The address that opens the form as it is; None when it would be too long, or holds a file."""
        query = self.query()
        if self.uses_files or len(query) > MAX_LINK:
            return None
        return reverse("lab:home") + (f"?{query}" if query else "")

    def query(self) -> str:
        """The query string of this configuration: what differs from the defaults, and nothing hidden."""
        hidden = {
            "upload",
            *grid.SIZES,
            *(f"grid_{name}" for name in ARRAYS),
            *self.fields_of_other_sources(),
        }
        pairs = [
            (name, value)
            for name in self.fields
            if name not in hidden and not self.is_usual(name)
            for value in self.state.getlist(name)
        ]
        return urlencode(pairs)

    def fields_of_other_sources(self) -> set[str]:
        shape = {"distribution", "layout", *self.shape_names}
        by_source = {
            "matrices": set(ARRAYS),
            "grid": set(ARRAYS),
            "seed": shape | {"seed"},
            "upload": {f"{name}_name" for name in ARRAYS},
            "latents": shape | {"seed"},
            "scan": shape | {"seed"},
        }
        own = by_source.get(self.source_chosen, set())
        if any(self.text(given.how(name)) == "seed" for name in self.arrays):
            own = own | {"seed"}
        boxes = {given.box(name) for name in self.arrays if self.text(given.how(name)) in ("", "seed")}
        return (set().union(*by_source.values()) - own) | boxes
