"""Which fields the lab's form has: they follow from the engine's entry in the registry and from the spec.

Settings (`settings`), options (`options`), results and sources (`offers`), and arrays beside q, k and v or in
their place (`given`). What is not offered and yet filled in stays, so that there is a place to say what is
wrong with it.
"""

from functools import cached_property
from typing import Any

from django import forms
from django.http import QueryDict
from django.utils.html import format_html
from django.utils.translation import gettext_lazy as _

from kernels.arrays import DISTRIBUTIONS
from kernels.spec.families import PLAIN
from lab.form import fields, given, grid, offers, options, settings
from lab.form.help import CONCEPTS_OF_INPUTS, Words, of_option
from lab.form.offers import ARRAYS
from lab.form.state import engine_of, settle, usual_state

SHAPE_FIELDS = ("batch", "heads", "kv_heads", "q_len", "kv_len", "head_dim", "v_head_dim")
DISTRIBUTION_NAMES = {
    "normal": _("normal: mean 0, variance 1"),
    "uniform": _("uniform on [−1, 1)"),
    "peaked": _("peaked: a few keys carry each row"),
}
LAYOUTS = (
    ("", _("[batch, heads, length, dimension]")),
    ("heads", _("[heads, length, dimension]")),
    ("plain", _("[length, dimension]")),
    ("packed", _("packed: [batch, length, heads · dimension]")),
)


class OfferingForm(forms.Form):
    """Bound to whatever state there is; never invalid by itself."""

    use_required_attribute = False

    def __init__(self, state: QueryDict) -> None:
        self.engine_chosen = engine_of(state)
        self.usual = usual_state(self.engine_chosen, state)
        self.has_other_sources = settle(state, self.engine_chosen, self.usual)
        super().__init__(state, auto_id="lab-%s")
        self.state = state
        self.sent: list[Any] = []  # the uploads that the state names, once they have been looked up
        self.settings: list[settings.Setting] = []
        self.arrays: list[str] = []
        if self.source_chosen == "grid":
            grid.absorb(state)
        self.offer_settings()
        self.offer_inputs()
        self.offer_options()
        self.is_valid()  # fills the (empty) error lists, so that errors can be added

    def offer_settings(self) -> None:
        """The settings that the engine heeds, and those that are filled in."""
        engine = self.engine_chosen
        limits = {"dtype": engine.dtypes, "device": ("auto", *engine.devices)}
        for setting in settings.chosen(self.state):
            name = setting.name
            needs_rope = name in settings.NEEDS_ROPE or name.startswith("scaling_")
            suits = setting.suits(engine) and (not needs_rope or bool(self.text("rope")))
            if name == "causal" and engine.is_always_causal:
                suits = False
            if not suits and self.is_usual(name):
                continue
            self.settings.append(setting)
            if name == "engine":
                titles = [(known, one.title) for known, one in offers.every_engine().items()]
                self.fields[name] = fields.choice(name, titles)
                continue
            made = self.fields[name] = fields.setting(setting, self.text(name))
            if name in limits and isinstance(made.widget, forms.Select):
                allowed = (*limits[name], self.text(name))
                made.widget.choices = [one for one in made.widget.choices if one[0] in allowed]

    def offer_inputs(self) -> None:
        """The sources, their fields, and the arrays beside q, k and v."""
        known = offers.sources(self.engine_chosen)
        self.fields["source"] = fields.sources([(source, offers.SOURCES[source]) for source in known])
        if self.source_chosen not in known:
            self.fields["source"].widget.choices.append((self.source_chosen, self.source_chosen))
        for name in ARRAYS:
            self.fields[name] = fields.area(name)
            self.fields[f"grid_{name}"] = fields.area(f"grid_{name}")
            self.fields[f"{name}_name"] = fields.text(f"{name}_name")
        for name in grid.SIZES:
            sizes = [(str(count), str(count)) for count in range(1, grid.MOST + 1)]
            self.fields[name] = fields.choice(name, sizes, brings=True)
        for name in ("seed", *self.shape_names):
            self.fields[name] = fields.number(name)
        self.fields["distribution"] = fields.choice("distribution", distributions(self.text("distribution")))
        self.fields["layout"] = fields.choice("layout", LAYOUTS[: 4 if self.family is PLAIN else 3])
        self.fields["upload"] = fields.field("upload", forms.MultipleHiddenInput())
        described = self.engine_chosen.describe()["inputs_schema"]["properties"]
        for name in given.offered(self.engine_chosen, self.family):
            is_required = name in self.arrays_required
            if given.is_parameter(name) and not is_required and not self.text(given.box(name)):
                continue
            self.arrays.append(name)
            ways = given.ways(name, is_required=is_required)
            named = [(way, given.WAYS[way]) for way in ways]
            label = format_html("<code>{}</code>", name)
            said = Words(label, described[name]["description"], CONCEPTS_OF_INPUTS.get(name, ""))
            self.fields[given.how(name)] = fields.field(given.how(name), forms.Select(choices=named), said)
            numbers = Words(format_html("<code>{}</code>: {}", name, _("its numbers")))
            self.fields[given.box(name)] = fields.area(given.box(name), numbers, rows=3)
        if {"past_key", "past_value"} & set(self.arrays):
            self.fields["past_len"] = fields.number("past_len")

    def offer_options(self) -> None:
        engine = self.engine_chosen
        for name, schema in engine.options.items():
            control = options.control(name)
            made = options.field(name, schema, self.text(control))
            if name in engine.taken_by:
                made.widget.attrs |= fields.BRINGS
            self.fields[control] = fields.linked(made, of_option(engine.name, name))
        named = [(name, offers.result_name(name)) for name in offers.results(engine)]
        self.fields["returns"] = fields.results(named)

    @cached_property
    def family(self) -> Any:
        """The inputs that belong together: q, k and v, or others in their place."""
        return offers.family(self.source_chosen)

    @cached_property
    def arrays_required(self) -> set[str]:
        """What cannot be left out, q, k and v aside."""
        return given.required(self.engine_chosen, self.family, self.inputs_taken) - set(ARRAYS)

    @property
    def inputs_taken(self) -> tuple[str, ...]:
        """What the engine cannot do without, as its options are."""
        return self.engine_chosen.inputs_taken(options.chosen(self.engine_chosen.options, self.state))

    @property
    def shape_names(self) -> list[str]:
        """The fields for the lengths of axes."""
        if self.family is PLAIN:
            return list(SHAPE_FIELDS)
        axes = dict.fromkeys(axis for name in self.family.axes for axis in self.family.axes[name])
        return list(dict.fromkeys(given.AXIS_FIELDS.get(axis, axis) for axis in axes))

    # --- What is in them ------------------------------------------------------------------------------

    def text(self, name: str) -> str:
        return str(self.state.get(name, "")).strip()

    @property
    def source_chosen(self) -> str:
        return self.text("source") or str(self.usual["source"])

    def is_usual(self, name: str) -> bool:
        if name not in self.state:
            return True
        usual = [text for text in self.usual.getlist(name) if text]
        return [text for text in self.state.getlist(name) if text] == usual


def distributions(chosen: str) -> list[tuple[str, Any]]:
    named: list[tuple[str, Any]] = [(name, DISTRIBUTION_NAMES[name]) for name in DISTRIBUTIONS]
    return named if chosen in dict(named) else [*named, (chosen, chosen)]
