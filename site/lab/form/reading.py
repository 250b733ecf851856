"""From the texts of the lab's form to the body of `POST /api/v1/runs`.

A number box that holds no number is passed on as it is, so that there is one place that says what is wrong
with it. Only pasted numbers are read here (by `lab.matrices`), because only the form knows their lines and
columns.
"""

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

from kernels.spec.families import PLAIN
from lab import matrices
from lab.form import given, grid, options, settings, texts
from lab.form.offering import OfferingForm
from lab.form.offers import ARRAYS
from lab.form.settings import get, put
from lab.form.state import DEFAULTS
from lab.form.texts import literal

REQUIRED_IN_BODY = ("engine",)
BODY_DEFAULTS = {"returns": ["out"]}  # where REST's default is not the form's
DEFAULT_VALUES = {
    setting.name: setting.read(DEFAULTS[setting.name])
    for setting in settings.SETTINGS
    if setting.name in DEFAULTS
}


class ReadingForm(OfferingForm):
    """Knows what it would submit. What cannot be read is an error of its field."""

    @property
    def uploads(self) -> list[str]:
        """Ids of the files that were sent, in order."""
        return [upload for upload in self.state.getlist("upload") if upload]

    def know_uploads(self, found: Iterable[Any]) -> None:
        """Remember what the uploaded files (api.models.Upload) hold; ids that were not found are dropped."""
        self.sent = list(found)
        self.state.setlist("upload", [upload.id for upload in self.sent])
        self._name_what_was_sent()

    def _name_what_was_sent(self) -> None:
        """Nobody said what q, k and v are called, and no array is called so: then query is q, where no other
        name begins with that letter."""
        sent = dict.fromkeys(held["name"] for file in self.sent for held in file.arrays)
        for array in ARRAYS:
            alike = [name for name in sent if name[:1].lower() == array]
            if self.text(f"{array}_name") in ("", array) and array not in sent and len(alike) == 1:
                self.state[f"{array}_name"] = alike[0]

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

    @cached_property
    def grid_rows(self) -> dict[str, grid.Rows]:
        return grid.shown(self.state, DEFAULTS)

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
