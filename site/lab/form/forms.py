"""The lab's form: text fields in, the body of `POST /api/v1/runs` out, problems back to their fields.

The form validates nothing about attention: `kernels.spec.parse_run` does, and names each mistake by a
JSON pointer, which `LabForm.place` maps to the field that it came from. A number box that holds no
number is passed on as it is, so that there is one place that says what is wrong with it. Only pasted
numbers are read here (by `lab.matrices`), because only the form knows their lines and columns.

What the form has follows from the engine's entry in the registry and from what the spec says: settings
(`settings`), options (`options`), results, sources (`offers`), and arrays beside q, k and v or in their place
(`given`). What is not offered and yet filled in stays, so that there is a place to say what is wrong with it.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any
from urllib.parse import urlencode

from django import forms
from django.http import QueryDict
from django.urls import reverse
from django.utils.html import format_html
from django.utils.translation import gettext_lazy as _

from kernels.arrays import DISTRIBUTIONS
from kernels.registry import Engine
from kernels.spec import FieldProblem
from kernels.spec.declared import accepts
from kernels.spec.families import PLAIN
from lab import matrices
from lab.form import fields, given, grid, offers, options, settings, texts
from lab.form.groups import Group, Item, groups
from lab.form.help import CONCEPTS_OF_INPUTS, Words, of_option
from lab.form.offers import ARRAYS
from lab.form.settings import get, put
from lab.form.texts import literal

SHAPE_FIELDS = ("batch", "heads", "kv_heads", "q_len", "kv_len", "head_dim", "v_head_dim")
MAX_LINK = 2_000  # characters of a link that every browser, server and chat passes on unharmed

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

DEFAULTS: dict[str, Any] = {
    "engine": "flash",
    "dtype": "float32",
    "device": "auto",
    "source": "matrices",
    "q": "[[1, 0],\n [0, 1],\n [1, 1]]",
    "k": "[[1, 0],\n [0, 1],\n [1, 1]]",
    "v": "[[1, 0],\n [0, 2],\n [2, 2]]",
    "seed": "7",
    "distribution": "normal",
    "batch": "1",
    "heads": "4",
    "q_len": "64",
    "head_dim": "32",
    "past_len": "16",
    "d_nope": "32",
    "d_rope": "16",
    "d_c": "64",
    "d_v": "32",
    "channels": "32",
    "states": "16",
    "q_name": "q",
    "k_name": "k",
    "v_name": "v",
    "alignment": "bottom_right",
    "warmup": "1",
    "iters": "5",
}
# Where the value of each field goes in the body, where it is one: not those of a window, rope and pattern.
POINTERS = {setting.name: setting.pointer for setting in settings.SETTINGS if setting.pointer.count("/") < 3}
POINTERS["returns"] = "/return"
DTYPES = settings.DTYPES
REQUIRED_IN_BODY = ("engine",)
BODY_DEFAULTS = {"returns": ["out"]}  # where REST's default is not the form's
SHOWN_FOR = "shown_for"  # the engine whose fields a page had, which need not be the one that was then chosen
SHOWN_SOURCE = "shown_source"  # likewise
# What links of before called some options.
FORMER_NAMES = {"block_m": options.control("block_m"), "block_n": options.control("block_n")}


class LabForm(forms.Form):
    """Bound to whatever state there is (defaults, a link, a fork, a submission); never invalid by itself."""

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

    # --- What it has ----------------------------------------------------------------------------------

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
    def shape_names(self) -> list[str]:
        """The fields for the lengths of axes."""
        if self.family is PLAIN:
            return list(SHAPE_FIELDS)
        axes = dict.fromkeys(axis for name in self.family.axes for axis in self.family.axes[name])
        return list(dict.fromkeys(given.AXIS_FIELDS.get(axis, axis) for axis in axes))

    # --- Where a state comes from ---------------------------------------------------------------------

    @classmethod
    def from_link(cls, query: Mapping[str, Any]) -> "LabForm":
        """The form that a link describes. What it leaves out has its default."""
        asked = query if isinstance(query, QueryDict) else to_query(query)
        state = asked.copy()
        if "source" not in asked and "seed" in asked and not set(ARRAYS) & set(asked):
            state["source"] = "seed"
        for name in asked:
            if name in FORMER_NAMES:
                state.setlist(FORMER_NAMES[name], asked.getlist(name))
            if name.startswith("in_") and given.how(name[3:]) not in asked:
                state[given.how(name[3:])] = "text"
        engine = engine_of(state)
        for name, values in usual_state(engine, state).lists():
            if name not in state:
                state.setlist(name, values)
        return cls(state)

    # --- To the body ----------------------------------------------------------------------------------

    @property
    def uploads(self) -> list[str]:
        """Ids of the files that were sent, in order."""
        return [upload for upload in self.state.getlist("upload") if upload]

    def know_uploads(self, found: Iterable[Any]) -> None:
        """Remember what the uploaded files (api.models.Upload) hold; ids that were not found are dropped."""
        self.sent = list(found)
        self.state.setlist("upload", [upload.id for upload in self.sent])

    def text(self, name: str) -> str:
        return str(self.state.get(name, "")).strip()

    @property
    def source_chosen(self) -> str:
        return self.text("source") or str(self.usual["source"])

    @property
    def uses_files(self) -> bool:
        """Whether anything is taken from a file."""
        return self.source_chosen == "upload" or any(
            self.text(given.how(name)) == "file" for name in self.arrays
        )

    def body(self) -> dict[str, Any]:
        """The body of `POST /api/v1/runs`. What cannot be read is left out and noted as an error."""
        body: dict[str, Any] = {}
        for setting in self.settings:
            value = self.value_of(setting)
            if setting.name in REQUIRED_IN_BODY or value not in (None, DEFAULT_VALUES.get(setting.name)):
                put(body, setting.pointer, value)
        if chosen := options.chosen(self.engine_chosen.options, self.state):
            body["options"] = chosen
        returns = [value for value in self.state.getlist("returns") if value]
        if returns != BODY_DEFAULTS["returns"]:
            body["return"] = returns
        self.say_how_it_is_packed(body)
        put(body, "/inputs", self.inputs(body))
        return body

    def value_of(self, setting: settings.Setting) -> Any:
        if setting.is_check:
            return True if self.state.get(setting.name) else None
        text = self.text(setting.name)
        try:
            return setting.read(text) if text else None
        except matrices.MatrixError as error:
            self.add_error(setting.name, str(error))
            return None

    def say_how_it_is_packed(self, body: dict[str, Any]) -> None:
        """Rows that are drawn with all heads side by side have as many as the fields of the shape say."""
        if self.source_chosen != "seed" or self.text("layout") != "packed":
            return
        for pointer, field in (("num_heads", "heads"), ("num_kv_heads", "kv_heads")):
            if self.text(field) and not self.text(pointer):
                put(body, f"/attention/{pointer}", literal(self.text(field)))

    @property
    def inputs_taken(self) -> tuple[str, ...]:
        """What the engine cannot do without, as its options are."""
        return self.engine_chosen.inputs_taken(options.chosen(self.engine_chosen.options, self.state))

    # --- Inputs ---------------------------------------------------------------------------------------

    def inputs(self, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Of what the body says of heads, where they are packed."""
        read = {"seed": self.seeded_inputs, "upload": self.uploaded_inputs, "grid": self.typed_inputs}
        is_plain = self.family is PLAIN
        inputs = read.get(self.source_chosen, self.pasted_inputs)() if is_plain else {}
        for name in sorted(self.arrays, key=lambda name: name != "past_key"):  # others depend on its length
            around = self.surroundings(body or {}, inputs)
            if (array := self.array(name, around)) is not None:
                inputs[name] = array
        return inputs

    def array(self, name: str, around: given.Surroundings) -> Any:
        way, text = self.text(given.how(name)), self.state.get(given.box(name), "")
        if way not in given.ways(name, is_required=name in self.arrays_required):
            way = given.usual(name)[given.how(name)] if name in self.arrays_required else ""
        try:
            return given.read(name, way, text.strip(), around, self.held_by)
        except matrices.MatrixError as error:
            self.add_error(given.box(name), str(error) if way == "text" else error.detail)
            return None

    def surroundings(self, body: Mapping[str, Any], inputs: Mapping[str, Any]) -> given.Surroundings:
        """What arrays that are drawn depend on."""
        past, seed = (literal(self.text(name) or DEFAULTS[name]) for name in ("past_len", "seed"))
        if self.family is PLAIN:
            heads = (get(body, "/attention/num_heads"), get(body, "/attention/num_kv_heads"))
            shapes = {name: self.shape_of(inputs.get(name)) for name in ARRAYS}
            return given.plain_surroundings(inputs, shapes, heads, past=past, seed=seed)
        lengths = {
            axis: literal(self.text(self.field_of_axis(axis)))
            for name in self.family.axes
            for axis in self.family.axes[name]
        }
        lengths["all_kv_len"] = lengths.get("kv_len", lengths.get("len"))
        rank = given.RANKS.get(self.text("layout"), 4)
        return given.Surroundings(self.family, lengths, rank, past, seed, self.text("distribution"))

    def field_of_axis(self, axis: str) -> str:
        """The field that has the length of an axis; an empty one leaves it to its twin."""
        field, twin = given.AXIS_FIELDS.get(axis, axis), given.TWINS.get(axis)
        return twin if twin and not self.text(field) else field

    def shape_of(self, array: Any) -> list[int] | None:
        """None where it is not there, or cannot be read."""
        if not isinstance(array, Mapping) or "upload" not in array:
            return given.shape_of(array)
        held = (one for file in self.sent if file.id == array["upload"] for one in file.arrays)
        return next((given.shape_of(one) for one in held if one["name"] == array["name"]), None)

    def pasted_inputs(self) -> dict[str, Any]:
        inputs = {}
        for name in ARRAYS:
            try:
                inputs[name] = texts.array(self.state.get(name, ""))
            except matrices.MatrixError as error:
                self.add_error(name, str(error))
        return inputs

    def typed_inputs(self) -> dict[str, Any]:
        inputs = {}
        for name, rows in self.grid_rows.items():
            try:
                inputs[name] = grid.values(rows)
            except matrices.MatrixError as error:
                self.add_error(f"grid_{name}", error.detail)
        return inputs

    def seeded_inputs(self) -> dict[str, Any]:
        seed, distribution = literal(self.text("seed")), self.text("distribution")
        return {
            name: {"seed": seed, "shape": self.seeded_shape(name), "distribution": distribution}
            for name in ARRAYS
        }

    def seeded_shape(self, name: str) -> list[Any]:
        shape = [literal(self.text(field)) for field in self.shape_fields(name)]
        layout = self.text("layout")
        if layout == "packed":
            batch, heads, length, dim = shape
            is_known = type(heads) is int and type(dim) is int
            return [batch, length, heads * dim if is_known else dim]
        return shape[4 - given.RANKS.get(layout, 4) :]

    def shape_fields(self, array: str) -> tuple[str, str, str, str]:
        """The fields of an array's batch, heads, length and dimension; an empty one leaves it to its twin."""
        heads = "kv_heads" if array != "q" and self.text("kv_heads") else "heads"
        length = "kv_len" if array != "q" and self.text("kv_len") else "q_len"
        dim = "v_head_dim" if array == "v" and self.text("v_head_dim") else "head_dim"
        return ("batch", heads, length, dim)

    def uploaded_inputs(self) -> dict[str, Any]:
        """References into the uploaded files."""
        inputs = {}
        for array in ARRAYS:
            name = self.text(f"{array}_name") or array
            if upload := self.held_by(name):
                inputs[array] = {"upload": upload, "name": name}
        return inputs

    def held_by(self, name: str) -> str | None:
        """The first file that has an array of that name; else the first, which is asked in vain."""
        having = [file.id for file in self.sent if name in {held["name"] for held in file.arrays}]
        return next(iter(having or self.uploads), None)

    # --- Problems back to fields ----------------------------------------------------------------------

    def place(self, problems: Iterable[FieldProblem]) -> None:
        """Put each problem beside the field that it came from; what has no field goes on top."""
        unread = {pointer for pointer, name in self.input_pointers().items() if self.has_error(name)}
        for problem in problems:
            if problem.pointer in unread:
                continue  # the text could not be read, so the array is missing: one complaint is enough
            name = self.field_for(problem.pointer)
            where = problem.pointer if name is None else inner_path(problem.pointer)
            self.add_error(name, f"{where}: {problem.detail}" if where else problem.detail)

    def field_for(self, pointer: str) -> str | None:
        """The field of the longest known prefix of a pointer."""
        known = {
            "/return": "returns", "/inputs": "source", "/attention/window": "window_left",
            "/attention/rope": "rope", "/attention/pattern": "pattern",
            "/attention/rope/scaling": "rope_scaling",
        }  # fmt: skip
        known |= {setting.pointer: setting.name for setting in self.settings}
        known |= {f"/options/{name}": options.control(name) for name in self.engine_chosen.options}
        known |= self.input_pointers()
        if self.source_chosen == "seed" and self.text("layout") == "packed":
            known |= {
                f"/attention/{pointer}": field
                for pointer, field in (("num_heads", "heads"), ("num_kv_heads", "kv_heads"))
                if not self.text(pointer)
            }
        while pointer and known.get(pointer) not in self.fields:
            pointer = pointer.rpartition("/")[0]
        return known.get(pointer)

    def input_pointers(self) -> dict[str, str]:
        """Where what is wrong with an input is said."""
        pointers = dict(self.pointers_of_arrays())
        named = {"upload": "{}_name", "grid": "grid_{}", "matrices": "{}"}.get(self.source_chosen)
        if named:
            return pointers | {f"/inputs/{name}": named.format(name) for name in ARRAYS}
        if self.source_chosen != "seed":
            return pointers
        pointers |= {"/inputs/q": "q_len", "/inputs/k": "kv_heads", "/inputs/v": "v_head_dim"}
        for name in ARRAYS:
            pointers |= {f"/inputs/{name}/seed": "seed", f"/inputs/{name}/distribution": "distribution"}
            all_fields = self.shape_fields(name)
            layout = self.text("layout")
            shown = (
                (all_fields[0], all_fields[2], all_fields[3])
                if layout == "packed"
                else all_fields[4 - given.RANKS.get(layout, 4) :]
            )
            pointers |= {f"/inputs/{name}/shape/{axis}": field for axis, field in enumerate(shown)}
        return pointers

    def pointers_of_arrays(self) -> Iterator[tuple[str, str]]:
        for name in self.arrays:
            way, pointer = self.text(given.how(name)), f"/inputs/{name}"
            yield pointer, given.how(name) if way in ("", "seed") else given.box(name)
            if way == "seed" and self.family is not PLAIN:
                yield f"{pointer}/seed", "seed"
                yield f"{pointer}/distribution", "distribution"
                axes = self.surroundings({}, {}).axes(name) or []
                for place, axis in enumerate(axes):
                    yield f"{pointer}/shape/{place}", self.field_of_axis(axis)

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

    @cached_property
    def grid_rows(self) -> dict[str, grid.Rows]:
        return grid.shown(self.state, DEFAULTS)

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

    def is_usual(self, name: str) -> bool:
        if name not in self.state:
            return True
        usual = [text for text in self.usual.getlist(name) if text]
        return [text for text in self.state.getlist(name) if text] == usual

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


DEFAULT_VALUES = {
    setting.name: setting.read(DEFAULTS[setting.name])
    for setting in settings.SETTINGS
    if setting.name in DEFAULTS
}


def distributions(chosen: str) -> list[tuple[str, Any]]:
    named: list[tuple[str, Any]] = [(name, DISTRIBUTION_NAMES[name]) for name in DISTRIBUTIONS]
    return named if chosen in dict(named) else [*named, (chosen, chosen)]


def to_query(values: Mapping[str, Any]) -> QueryDict:
    query = QueryDict(mutable=True)
    for name, value in values.items():
        query.setlist(name, value if isinstance(value, list) else [value])
    return query


def engine_of(state: Mapping[str, Any]) -> Engine:
    """The engine whose fields the form has: the one that was chosen, where there is such."""
    known = offers.every_engine()
    return known.get(str(state.get("engine", "")), known[DEFAULTS["engine"]])


def usual_state(engine: Engine, state: Mapping[str, Any] | None = None) -> QueryDict:
    """Every field of the form at its default, for the source and the options that a state has chosen."""
    state = state or {}
    usual = to_query(DEFAULTS)
    sources = offers.sources(engine)
    if usual["source"] not in sources:
        usual["source"] = sources[0]
    usual.setlist("returns", offers.usual_returns(engine))
    for name, schema in engine.options.items():
        usual[options.control(name)] = texts.text_of(schema["default"])
    for name, text in settings.beginnings(state).items():
        usual[name] = text
    chosen = {**usual.dict(), **{name: state[name] for name in state if name.startswith(options.PREFIX)}}
    taken = engine.inputs_taken(options.chosen(engine.options, chosen))
    source = str(state.get("source") or "")
    family = offers.family(source if source in sources else str(usual["source"]))
    for name in given.required(engine, family, taken) - set(ARRAYS):
        for control, text in given.usual(name).items():
            usual[control] = text
    return usual


def settle(state: QueryDict, engine: Engine, usual: QueryDict) -> bool:
    """Make a state, perhaps of a page that had the fields of another engine, one of this engine: of results
    it keeps those that the engine has, of the other's options those that it takes as they are, and the source
    where the engine has it. True where the page had other sources."""
    before = offers.every_engine().get(str(state.get(SHOWN_FOR, "")))
    asked = [name for name in state.getlist("returns") if name]
    kept = [name for name in asked if name in offers.results(engine)]
    had_the_usual = before is not None and set(asked) == set(offers.usual_returns(before))
    if asked and (had_the_usual or not kept):
        kept = usual.getlist("returns")
    state.setlist("returns", kept)
    for name, schema in engine.options.items():
        control = options.control(name)
        value = options.value_of(schema, str(state.get(control, "")))
        is_of_another = before not in (None, engine) and not accepts(schema, value)
        if control not in state or is_of_another:
            state.setlist(control, usual.getlist(control))
    for name in usual:
        if name not in state and name.startswith(("how_", "in_", "pattern_", "scaling_")):
            state.setlist(name, usual.getlist(name))
    state[SHOWN_FOR] = engine.name
    known = offers.sources(engine)
    if state.get("source") not in known and (before is not None or state.get("source") in offers.SOURCES):
        state.setlist("source", usual.getlist("source"))
    shown, source = str(state.get(SHOWN_SOURCE, "")), str(state.get("source", ""))
    if shown and offers.family(shown) is not offers.family(source):  # the page had no fields for these inputs
        for name in usual:
            if name not in state:
                state.setlist(name, usual.getlist(name))
    return before is not None and offers.sources(before) != known


def inner_path(pointer: str) -> str:
    """For a mistake inside an array, its indices: /inputs/q/2/0 -> q[2][0]."""
    _empty, top, *path = [*pointer.split("/"), ""]
    indices = [part for part in path[1:] if part]
    if top != "inputs" or not indices or not all(part.isdigit() for part in indices):
        return ""
    return path[0] + "".join(f"[{index}]" for index in indices)
