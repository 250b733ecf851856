"""The lab's form: text fields in, the body of `POST /api/v1/runs` out, problems back to their fields.

The form validates nothing about attention: `kernels.spec.parse_run` does, and names each mistake by a
JSON pointer, which `LabForm.place` maps to the field that it came from. A number box that holds no
number is passed on as it is, so that there is one place that says what is wrong with it. Only a pasted
matrix is read here (by `lab.matrices`), because only the form knows its lines and columns.

What depends on the engine follows from its entry in the registry: its options become fields (`lab.options`),
and of results, number formats, devices and kinds of attention those are offered that it has (`lab.offers`).

To add a field: declare it, give it a pointer in POINTERS, and name it in the template.
"""

from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import urlencode

from django import forms
from django.http import QueryDict
from django.urls import reverse
from django.utils.translation import gettext_lazy as _

from kernels.arrays import DISTRIBUTIONS
from kernels.registry import Engine
from kernels.spec import FieldProblem
from kernels.spec.declared import accepts
from lab import matrices
from lab.form import offers, options, parameters
from lab.form.offers import ARRAYS
from lab.form.options import literal

SHAPE_FIELDS = ("batch", "heads", "kv_heads", "q_len", "kv_len", "head_dim", "v_head_dim")
MAX_LINK = 2_000  # characters of a link that every browser, server and chat passes on unharmed

SOURCES = (
    ("matrices", _("Paste matrices")),
    ("seed", _("Random, from a seed")),
    ("upload", _("Upload a file")),
)
DTYPES = (
    ("float32", "float32"),
    ("float16", "float16"),
    ("bfloat16", "bfloat16"),
    ("float64", "float64"),
)
DISTRIBUTION_NAMES = {
    "normal": _("normal: mean 0, variance 1"),
    "uniform": _("uniform on [−1, 1)"),
    "peaked": _("peaked: a few keys carry each row"),
}
ALIGNMENTS = (
    ("bottom_right", _("bottom right: the last query sees every key")),
    ("top_left", _("top left: the first query sees the first key")),
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
    "q_name": "q",
    "k_name": "k",
    "v_name": "v",
    "alignment": "bottom_right",
    "warmup": "1",
    "iters": "5",
}

# Where each field's value goes in the body. Inputs are apart: they depend on the source.
POINTERS = {
    "engine": "/engine",
    "device": "/device",
    "dtype": "/dtype",
    "causal": "/attention/is_causal",
    "alignment": "/attention/causal_alignment",
    "scale": "/attention/scale",
    "returns": "/return",
    "warmup": "/timing/warmup",
    "iters": "/timing/iters",
}
REQUIRED_IN_BODY = {"engine", "returns"}
BODY_DEFAULTS = {"returns": ["out"]}  # where REST's default is not the form's
SHOWN_FOR = "shown_for"  # the engine whose fields a page had, which need not be the one that was then chosen
# What links of before called some options.
FORMER_NAMES = {"block_m": options.control("block_m"), "block_n": options.control("block_n")}


def text_field(label: Any, help_text: Any = "", **attrs: str) -> forms.CharField:
    return forms.CharField(
        required=False, label=label, help_text=help_text, widget=forms.TextInput(attrs=attrs)
    )


def number_field(label: Any, help_text: Any = "", **attrs: str) -> forms.CharField:
    """A box for a number. Its text is not judged here: `parse_run` does that."""
    return text_field(label, help_text, inputmode="numeric", autocomplete="off", **attrs)


def choice_field(
    label: Any, choices: Any, help_text: Any = "", widget: Any = forms.Select
) -> forms.CharField:
    return forms.CharField(required=False, label=label, help_text=help_text, widget=widget(choices=choices))


def matrix_field(name: str) -> forms.CharField:
    attrs = {"rows": "4", "spellcheck": "false", "autocomplete": "off", "autocapitalize": "off"}
    return forms.CharField(
        required=False, strip=False, label=name.upper(), widget=forms.Textarea(attrs=attrs)
    )


def engine_choices() -> list[tuple[str, str]]:
    return [(name, engine.title) for name, engine in offers.engines().items()]


class LabForm(forms.Form):
    """Bound to whatever state there is (defaults, a link, a fork, a submission); never invalid by itself."""

    use_required_attribute = False

    engine = choice_field(_("Engine"), engine_choices)
    dtype = choice_field(
        _("Number format"),
        DTYPES,
        _("Q, K and V are rounded to it; the reference starts from the rounded values."),
    )
    device = choice_field(_("Device"), (("auto", _("automatic")), ("cpu", "CPU"), ("cuda", "CUDA")))

    source = choice_field(_("Input"), SOURCES, widget=forms.RadioSelect)
    q = matrix_field("q")
    k = matrix_field("k")
    v = matrix_field("v")

    seed = number_field(_("Seed"), _("The same seed gives the same numbers on every machine."))
    distribution = choice_field(
        _("Distribution"), [(name, DISTRIBUTION_NAMES[name]) for name in DISTRIBUTIONS]
    )
    batch = number_field(_("Batch"))
    heads = number_field(_("Query heads"))
    kv_heads = number_field(_("Key/value heads"), _("Empty: as many as query heads."))
    q_len = number_field(_("Queries"))
    kv_len = number_field(_("Keys"), _("Empty: as many as queries."))
    head_dim = number_field(_("Head dimension"))
    v_head_dim = number_field(_("Value dimension"), _("Empty: the head dimension."))

    upload = forms.CharField(required=False, widget=forms.MultipleHiddenInput)
    q_name = text_field(_("Q is called"), spellcheck="false", autocapitalize="off")
    k_name = text_field(_("K is called"), spellcheck="false", autocapitalize="off")
    v_name = text_field(_("V is called"), spellcheck="false", autocapitalize="off")

    causal = forms.BooleanField(required=False, label=_("Causal: no query sees a later key"))
    alignment = choice_field(
        _("Causal alignment"), ALIGNMENTS, _("Matters only when queries and keys differ in number.")
    )
    scale = text_field(_("Scale"), _("Empty: 1/√d."), inputmode="decimal", autocomplete="off")
    returns = choice_field(_("Results to return"), (), widget=forms.CheckboxSelectMultiple)
    warmup = number_field(_("Warm-up runs"))
    iters = number_field(_("Timed runs"))

    def __init__(self, state: QueryDict) -> None:
        self.engine_chosen = engine_of(state)
        self.usual = usual_state(self.engine_chosen)
        settle(state, self.engine_chosen, self.usual)
        super().__init__(state, auto_id="lab-%s")
        self.state = state
        self.sent: list[Any] = []  # the uploads that the state names, once they have been looked up
        self.offer()
        self.is_valid()  # fills the (empty) error lists, so that errors can be added

    def offer(self) -> None:
        """Bring the fields in line with what the engine has; what it lacks stays where it is filled in, so
        that there is a place to say so."""
        engine = self.engine_chosen
        for name, schema in engine.options.items():
            control = options.control(name)
            self.fields[control] = options.field(name, schema, self.text(control))
        results = [(name, offers.result_name(name)) for name in offers.results(engine)]
        self.fields["returns"].widget.choices = results
        for name, offered in (("dtype", engine.dtypes), ("device", ("auto", *engine.devices))):
            widget = self.fields[name].widget
            widget.choices = [one for one in widget.choices if one[0] in (*offered, self.text(name))]
        for name in offers.without_effect(engine):
            if self.is_usual(name):
                del self.fields[name]

    # --- Where a state comes from ---------------------------------------------------------------------

    @classmethod
    def from_link(cls, query: Mapping[str, Any]) -> "LabForm":
        """The form that a link describes. What it leaves out has its default."""
        given = query if isinstance(query, QueryDict) else to_query(query)
        state = usual_state(engine_of(given))
        for name in given:
            state.setlist(FORMER_NAMES.get(name, name), given.getlist(name))
        if "source" not in given and "seed" in given and not set(ARRAYS) & set(given):
            state["source"] = "seed"
        return cls(state)

    # --- To the body ----------------------------------------------------------------------------------

    @property
    def uploads(self) -> list[str]:
        """Ids of the files that were sent, in order."""
        return [upload for upload in self.state.getlist("upload") if upload]

    def replace_uploads(self, ids: list[str]) -> None:
        self.state.setlist("upload", ids)

    def know_uploads(self, found: Iterable[Any]) -> None:
        """Remember what the uploaded files (api.models.Upload) hold; ids that were not found are dropped."""
        self.sent = list(found)
        self.replace_uploads([upload.id for upload in self.sent])

    def text(self, name: str) -> str:
        return str(self.state.get(name, "")).strip()

    @property
    def source_chosen(self) -> str:
        return self.text("source") or "matrices"

    def body(self) -> dict[str, Any]:
        """The body of `POST /api/v1/runs`. Unreadable matrices are left out and noted as errors."""
        body: dict[str, Any] = {}
        for name, pointer in POINTERS.items():
            value = self.value_of(name) if name in self.fields else None
            if name in REQUIRED_IN_BODY or value not in (None, literal(DEFAULTS.get(name, ""))):
                put(body, pointer, value)
        if chosen := options.chosen(self.engine_chosen.options, self.state):
            body["options"] = chosen
        if body["return"] == BODY_DEFAULTS["returns"]:
            del body["return"]
        put(body, "/inputs", self.inputs())
        return body

    def value_of(self, name: str) -> Any:
        if name == "causal":
            return True if self.state.get(name) else None
        if name == "returns":
            return [value for value in self.state.getlist(name) if value]
        return literal(self.text(name))

    def inputs(self) -> dict[str, Any]:
        read = {"seed": self.seeded_inputs, "upload": self.uploaded_inputs}
        inputs = read.get(self.source_chosen, self.pasted_inputs)()
        seed = literal(self.text("seed") or DEFAULTS["seed"])
        return inputs | parameters.drawn(self.inputs_taken, self.shape_of_queries(inputs), seed)

    @property
    def inputs_taken(self) -> tuple[str, ...]:
        """What the engine cannot do without, as its options are."""
        return self.engine_chosen.inputs_taken(options.chosen(self.engine_chosen.options, self.state))

    def shape_of_queries(self, inputs: Mapping[str, Any]) -> list[int] | None:
        """None where they are not there, or cannot be read."""
        given = inputs.get("q")
        if self.source_chosen != "upload" or given is None:
            return parameters.shape_of(given)
        held = (array for file in self.sent if file.id == given["upload"] for array in file.arrays)
        return next((parameters.shape_of(array) for array in held if array["name"] == given["name"]), None)

    def pasted_inputs(self) -> dict[str, Any]:
        inputs = {}
        for name in ARRAYS:
            try:
                inputs[name] = matrices.parse(self.state.get(name, ""))
            except matrices.MatrixError as error:
                self.add_error(name, str(error))
        return inputs

    def seeded_inputs(self) -> dict[str, Any]:
        seed, distribution = literal(self.text("seed")), self.text("distribution")
        return {
            name: {
                "seed": seed,
                "shape": [literal(self.text(field)) for field in self.shape_fields(name)],
                "distribution": distribution,
            }
            for name in ARRAYS
        }

    def shape_fields(self, array: str) -> tuple[str, str, str, str]:
        """The fields of an array's batch, heads, length and dimension; an empty one leaves it to its twin."""
        heads = "kv_heads" if array != "q" and self.text("kv_heads") else "heads"
        length = "kv_len" if array != "q" and self.text("kv_len") else "q_len"
        dim = "v_head_dim" if array == "v" and self.text("v_head_dim") else "head_dim"
        return ("batch", heads, length, dim)

    def uploaded_inputs(self) -> dict[str, Any]:
        """References into the uploaded files: the first file that has an array of that name."""
        inputs = {}
        for array in ARRAYS:
            name = self.text(f"{array}_name") or array
            having = [file.id for file in self.sent if name in {held["name"] for held in file.arrays}]
            if self.uploads:
                inputs[array] = {"upload": (having or self.uploads)[0], "name": name}
        return inputs

    # --- Problems back to fields ----------------------------------------------------------------------

    def place(self, problems: Iterable[FieldProblem]) -> None:
        """Put each problem beside the field that it came from; what has no field goes on top."""
        for problem in problems:
            name = self.field_for(problem.pointer)
            if name in ARRAYS and self.has_error(name):
                continue  # the text could not be read, so the array is missing: one complaint is enough
            where = problem.pointer if name is None else inner_path(name, problem.pointer)
            self.add_error(name, f"{where}: {problem.detail}" if where else problem.detail)

    def field_for(self, pointer: str) -> str | None:
        """The field of the longest known prefix of a pointer."""
        known = {target: name for name, target in POINTERS.items() if name in self.fields}
        known |= {f"/options/{name}": options.control(name) for name in self.engine_chosen.options}
        known |= {**self.input_pointers(), "/inputs": "source"}
        while pointer and pointer not in known:
            pointer = pointer.rpartition("/")[0]
        return known.get(pointer)

    def input_pointers(self) -> dict[str, str]:
        if self.source_chosen == "upload":
            return {f"/inputs/{name}": f"{name}_name" for name in ARRAYS}
        if self.source_chosen != "seed":
            return {f"/inputs/{name}": name for name in ARRAYS}
        pointers = {"/inputs/q": "q_len", "/inputs/k": "kv_heads", "/inputs/v": "v_head_dim"}
        for name in ARRAYS:
            pointers |= {f"/inputs/{name}/seed": "seed", f"/inputs/{name}/distribution": "distribution"}
            axes = enumerate(self.shape_fields(name))
            pointers |= {f"/inputs/{name}/shape/{axis}": field for axis, field in axes}
        return pointers

    # --- What the templates ask -----------------------------------------------------------------------

    @property
    def wrong_fields(self) -> list[Any]:
        return [self[name] for name in self.fields if self[name].errors]

    @property
    def problem_count(self) -> int:
        return sum(len(messages) for messages in self.errors.values())

    @property
    def shape_is_unusual(self) -> bool:
        return self.differs("batch", "kv_heads", "kv_len", "v_head_dim")

    @property
    def settings_are_unusual(self) -> bool:
        return self.differs("alignment", "scale", "device", "warmup", "iters")

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
    def drawn_inputs(self) -> str:
        """Which of them the form makes by itself."""
        return ", ".join(name for name in self.inputs_taken if name not in ARRAYS)

    @property
    def other_inputs(self) -> list[offers.Input]:
        return offers.other_inputs(self.engine_chosen)

    @property
    def names_are_unusual(self) -> bool:
        return self.differs("q_name", "k_name", "v_name")

    def differs(self, *names: str) -> bool:
        """Whether any of these fields is not at its default, or is wrong: then its group is shown open."""
        return any(
            name in self.fields and (self.has_error(name) or not self.is_usual(name)) for name in names
        )

    def is_usual(self, name: str) -> bool:
        usual = [text for text in self.usual.getlist(name) if text]
        return [text for text in self.state.getlist(name) if text] == usual

    # --- Links ----------------------------------------------------------------------------------------

    def address(self) -> str | None:
        """The address that opens the form as it is; None when it would be too long, or holds a file."""
        query = self.query()
        if self.source_chosen == "upload" or len(query) > MAX_LINK:
            return None
        return reverse("lab:home") + (f"?{query}" if query else "")

    def query(self) -> str:
        """The query string of this configuration: what differs from the defaults, and nothing hidden."""
        hidden = {"upload", "csrfmiddlewaretoken"} | self.fields_of_other_sources()
        pairs = [
            (name, value)
            for name in self.fields
            if name not in hidden and not self.is_usual(name)
            for value in self.state.getlist(name)
        ]
        return urlencode(pairs)

    def fields_of_other_sources(self) -> set[str]:
        by_source = {
            "matrices": set(ARRAYS),
            "seed": {"seed", "distribution", *SHAPE_FIELDS},
            "upload": {f"{name}_name" for name in ARRAYS},
        }
        return set().union(*(fields for source, fields in by_source.items() if source != self.source_chosen))


def to_query(values: Mapping[str, Any]) -> QueryDict:
    query = QueryDict(mutable=True)
    for name, value in values.items():
        query.setlist(name, value if isinstance(value, list) else [value])
    return query


def engine_of(state: Mapping[str, Any]) -> Engine:
    """The engine whose fields the form has: the one that was chosen, where there is such."""
    known = offers.engines()
    return known.get(str(state.get("engine", "")), known[DEFAULTS["engine"]])


def usual_state(engine: Engine) -> QueryDict:
    """Every field of the form at its default."""
    state = to_query(DEFAULTS)
    state.setlist("returns", offers.usual_returns(engine))
    for name, schema in engine.options.items():
        state[options.control(name)] = options.text_of(schema["default"])
    return state


def settle(state: QueryDict, engine: Engine, usual: QueryDict) -> None:
    """Make a state, perhaps of a page that had the fields of another engine, one of this engine: of results
    it keeps those that the engine has, and of the other's options those that it takes as they are."""
    before = offers.engines().get(str(state.get(SHOWN_FOR, "")))
    given = [name for name in state.getlist("returns") if name]
    kept = [name for name in given if name in offers.results(engine)]
    had_the_usual = before is not None and set(given) == set(offers.usual_returns(before))
    if given and (had_the_usual or not kept):
        kept = usual.getlist("returns")
    state.setlist("returns", kept)
    for name, schema in engine.options.items():
        control = options.control(name)
        value = options.value_of(schema, str(state.get(control, "")))
        is_of_another = before not in (None, engine) and not accepts(schema, value)
        if control not in state or is_of_another:
            state.setlist(control, usual.getlist(control))
    state[SHOWN_FOR] = engine.name


def put(body: dict[str, Any], pointer: str, value: Any) -> None:
    """Set a value in nested objects, making those that are missing."""
    *parents, last = pointer.strip("/").split("/")
    for parent in parents:
        body = body.setdefault(parent, {})
    body[last] = value


def inner_path(name: str, pointer: str) -> str:
    """For a mistake inside a pasted matrix, its indices: /inputs/q/2/0 -> q[2][0]."""
    prefix = f"/inputs/{name}/"
    if name not in ARRAYS or not pointer.startswith(prefix):
        return ""
    return name + "".join(f"[{index}]" for index in pointer[len(prefix) :].split("/"))
