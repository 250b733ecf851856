"""The form of a sweep: fields with one value or several in, the body of `POST /api/v1/sweeps` out.

Its state is a query string, that of the lab's form with more values. It judges nothing about attention: with
the first value of every field the lab's form makes the body of a run, and what is wrong with that, or with a
point, comes from `kernels` with a pointer that leads back to a field.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any
from urllib.parse import parse_qsl, urlencode

from django.http import QueryDict
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from api.callers import Caller
from api.sweeps.submission import Examined, examine
from kernels.registry import Engine
from kernels.spec import FieldProblem, SpecError, parse_run
from kernels.spec.problems import MAX_SHOWN
from kernels.sweeps.points import MAX_POINTS
from lab.form import given, options
from lab.form.forms import MAX_LINK, LabForm
from lab.form.offering import SHAPE_FIELDS
from lab.form.offers import ARRAYS
from lab.form.state import DEFAULTS, SHOWN_FOR, engine_of, usual_state
from lab.sweeps import fields, ranges
from lab.sweeps.fields import Field, Filled
from workers import limits, sweeps

OTHER = Field("other", "", gettext_lazy("Any other field"), is_own=True)
OTHER_VALUES = "other_values"
SKIP = "skip_refused"
INSTEAD_OF = "instead_of"  # the input that the lab's form had, where it was no seed
BOXES = {"on": "yes", "true": "yes", "false": "no"}  # what links of the lab's form have for our boxes
# Where a sweep is not as a run: its many points are each timed fewer times.
USUAL = {"warmup": "1", "iters": "3", "causal": "no"}


class SweepForm:
    """Bound to whatever state there is; never invalid by itself."""

    def __init__(self, state: QueryDict) -> None:
        self.state = state
        self.engine = first_engine(state.getlist("engine"))
        self.usual = usual_state(self.engine)
        self.fields = {one.name: self.filled(one) for one in fields.known(self.engine)}
        self.fields[OTHER.name] = self.other = self.filled_other()
        self.problems: list[str] = []  # of no field
        self.base = LabForm.from_link(self.base_state())
        self.examined: Examined | None = None

    @classmethod
    def from_lab(cls, state: QueryDict) -> "SweepForm":
        """With the state of the lab's form. Inputs are drawn from a seed: of matrices the shapes stay."""
        lab = LabForm.from_link(state)
        dropped = {"source", "returns", *ARRAYS, *(f"{name}_name" for name in ARRAYS)}
        pairs = dict(pair for pair in parse_qsl(lab.query()) if pair[0] not in dropped)
        if lab.source_chosen != "seed":
            pairs |= shape_of(lab)
            pairs[INSTEAD_OF] = lab.source_chosen
        return cls(QueryDict(urlencode(pairs)))

    # --- Reading --------------------------------------------------------------------------------------

    def usual_of(self, one: Field) -> str:
        """What a field holds when nobody says otherwise."""
        text = USUAL.get(one.name, str(self.usual.get(one.name, "")))
        if one.choices is None:
            return text
        return BOXES.get(text, text) or fields.NULL

    def filled(self, one: Field) -> Filled:
        """A field as the state has it; what it leaves out has its default."""
        given = [text.strip() for text in self.state.getlist(one.name)]
        if one.choices is None:
            filled = Filled(one, [", ".join(filter(None, given)) if given else self.usual_of(one)])
        else:
            ticked = list(dict.fromkeys(BOXES.get(text, text) for text in given if text))
            filled = Filled(one, ticked[: MAX_POINTS + 1] or [self.usual_of(one)])
        try:
            if one.choices is None:
                filled.values = ranges.parse(filled.text, one.read)
            else:
                filled.values = [one.read(text) for text in filled.texts]
        except ranges.ValuesError as error:
            filled.errors.append(str(error))
        return filled

    def filled_other(self) -> Filled:
        """The field that is given by its path, with a JSON list of values."""
        path, text = (self.state.get(name, "").strip() for name in (OTHER.name, OTHER_VALUES))
        filled = Filled(Field(OTHER.name, path, OTHER.label, is_own=True), [path, text])
        if len(path) + len(text) > ranges.MAX_TEXT:
            filled.texts = ["", ""]
            filled.errors.append(
                _("A path and its values are at most {limit:,} characters.").format(limit=ranges.MAX_TEXT)
            )
        elif path and not text:
            filled.errors.append(_("Its values are missing: a JSON list, as [0.5, 1, 2]."))
        elif text and not path:
            filled.errors.append(_("Which field is it? Its path in the body of a run, as attention/softcap."))
        elif path:
            filled.values = self.read_list(filled, text)
        return filled

    @staticmethod
    def read_list(filled: Filled, text: str) -> list[Any]:
        try:
            values = json.loads(text, parse_constant=lambda name: name)
        except (ValueError, RecursionError):
            values = None
        if not isinstance(values, list) or not values:
            shown = text[:MAX_SHOWN]
            filled.errors.append(_("“{text}” is no JSON list of values, as [0.5, 1, 2].").format(text=shown))
            return []
        return values

    def base_state(self) -> QueryDict:
        """The state of the lab's form, with the first value of each field."""
        ours = {*self.fields, OTHER_VALUES, SKIP, INSTEAD_OF, "source", "returns", "upload", *ARRAYS}
        state = QueryDict(mutable=True)
        for name in self.state:
            if name not in ours:
                state.setlist(name, self.state.getlist(name))
        for name, filled in self.fields.items():
            if filled.values and not filled.field.is_own:
                state[name] = options.text_of(filled.values[0])
            elif not filled.errors and not filled.field.is_own:
                state[name] = ""
        state["source"] = "seed"
        if state["causal"] != "true":  # a box of the lab's form
            del state["causal"]
        return state

    # --- The body -------------------------------------------------------------------------------------

    @property
    def skips(self) -> bool:
        return bool(self.state.get(SKIP))

    @property
    def varied(self) -> list[Filled]:
        return [filled for filled in self.fields.values() if filled.is_varied]

    def varies(self, filled: Filled) -> str:
        """What it is called in `vary`. A length alone is that of queries and keys."""
        if filled.field.name == "q_len" and self.fields["kv_len"].values:
            return "q_len"
        return filled.field.varies

    def body(self) -> dict[str, Any]:
        """The body of `POST /api/v1/sweeps`. Of every point the output is asked for: a matrix that is
        returned as well would be among what is measured."""
        body = self.base.body()
        body.pop("return", None)
        body["vary"] = {self.varies(filled): filled.values for filled in self.varied}
        return body | {SKIP: True} if self.skips else body

    def examine(self, caller: Caller) -> None:
        """Check and price every point, or the one where nothing varies; what is wrong is at its field."""
        names = [self.varies(filled) for filled in self.varied if filled is not self.other]
        if self.other.text in names:
            self.other.errors.append(_("{name} has a field of its own.").format(name=self.other.text))
        if self.is_wrong:
            return
        if not self.varied:
            self.check_base(caller)
            return
        try:
            self.examined = examine(self.body(), caller)
            if not self.examined.points:
                self.check_base(caller)
            if not self.is_wrong:
                self.place(self.examined.problems())
            sweeps.refuse_too_much(self.examined.points, caller.owner)
        except (SpecError, limits.Refused) as error:
            self.place(error.problems)

    def check_base(self, caller: Caller) -> None:
        """What is wrong with a field that does not vary is told there, and not of everything that does."""
        try:
            spec = parse_run(self.base.body()).spec
            if not self.varied:
                limits.admit(spec, caller.budget_seconds)
        except (SpecError, limits.Refused) as error:
            places = ((problem, self.field_for(problem.pointer)) for problem in error.problems)
            self.place(
                problem
                for problem, filled in places
                if not self.varied or (filled is not None and not filled.is_varied)
            )

    # --- Problems back to fields ----------------------------------------------------------------------

    def place(self, problems: Iterable[FieldProblem]) -> None:
        """Put each problem at the field that it came from; what has none goes on top."""
        for problem in problems:
            filled = self.field_for(problem.pointer)
            kept = self.problems if filled is None else filled.errors
            if problem.detail not in kept:
                kept.append(problem.detail)

    def field_for(self, pointer: str) -> Filled | None:
        head = pointer.removeprefix("/vary/").partition("/")[0]
        name = head.replace("~1", "/").replace("~0", "~")
        if pointer.startswith("/vary/"):
            return next((filled for filled in self.varied if self.varies(filled) == name), None)
        return self.fields.get(self.base.field_for(pointer) or "")

    @property
    def is_wrong(self) -> bool:
        return bool(self.problems or self.wrong_fields)

    @property
    def wrong_fields(self) -> list[Filled]:
        return [filled for filled in self.fields.values() if filled.errors]

    @property
    def problem_count(self) -> int:
        return len(self.problems) + sum(len(filled.errors) for filled in self.wrong_fields)

    # --- What the templates ask -----------------------------------------------------------------------

    @property
    def options(self) -> list[Filled]:
        return [filled for name, filled in self.fields.items() if name.startswith(fields.OPTION)]

    @property
    def options_are_open(self) -> bool:
        return any(filled.is_varied or filled.errors for filled in self.options)

    @property
    def more_is_open(self) -> bool:
        names = ("scale", "seed", "distribution", "warmup", "iters", OTHER.name)
        return any(self.fields[name].is_varied or self.fields[name].errors for name in names)

    @property
    def other_values(self) -> str:
        return self.other.texts[1]

    @property
    def instead_of(self) -> str:
        return str(self.state.get(INSTEAD_OF, ""))

    @property
    def carried(self) -> list[tuple[str, str]]:
        """What the lab's form said that has no field here."""
        gone = {*self.fields, "source", "returns", SHOWN_FOR}
        return [pair for pair in parse_qsl(self.base.query()) if pair[0] not in gone]

    # --- Links ----------------------------------------------------------------------------------------

    def query(self) -> str:
        """The query string of this sweep: what differs from the defaults."""
        pairs = self.carried
        for name, filled in self.fields.items():
            usual = self.usual_of(filled.field)
            if filled.field.choices is not None:
                pairs += [(name, text) for text in filled.texts if filled.texts != [usual]]
            elif filled.text != usual:
                pairs.append((name, filled.text))
        pairs += [(OTHER_VALUES, self.other_values)] if self.other_values else []
        pairs += [(SKIP, "1")] if self.skips else []
        pairs += [(INSTEAD_OF, self.instead_of)] if self.instead_of in ("matrices", "upload") else []
        return urlencode(pairs)

    def address(self) -> str | None:
        """The address that opens the form as it is; None when it would be too long."""
        query = self.query()
        if len(query) > MAX_LINK:
            return None
        return reverse("lab:new_sweep") + (f"?{query}" if query else "")


def first_engine(names: Sequence[str]) -> Engine:
    """Whose options the form has: of the engine that was chosen first."""
    return engine_of({"engine": names[0] if names else ""})


def shape_of(lab: LabForm) -> dict[str, str]:
    """The shapes of the matrices in the lab's form, as fields of a seed; none for those that it opens with,
    nor where they cannot be read."""
    if lab.source_chosen != "matrices" or all(lab.state.get(name) == DEFAULTS[name] for name in ARRAYS):
        return {}
    inputs = lab.inputs()
    shapes = [given.shape_of(inputs.get(name)) for name in ARRAYS]
    q, k, v = ([1] * (4 - len(shape)) + shape if shape else [] for shape in shapes)
    if not all(len(shape) == 4 for shape in (q, k, v)):
        return {}
    batch, heads, q_len, head_dim = q
    values = (batch, heads, k[1], q_len, k[2], head_dim, v[3])
    same = {"kv_heads": heads, "kv_len": q_len, "v_head_dim": head_dim}
    return {
        name: str(value) for name, value in zip(SHAPE_FIELDS, values, strict=True) if value != same.get(name)
    }
