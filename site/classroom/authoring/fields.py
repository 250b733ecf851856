"""The fields of the problem editor: what a problem is, one hint, one case.

Every field is text (or a choice), never required, and judged by nobody here: `kernels.grading.parse_problem`
reads the body that they make. What a field has no words for (rope, sinks, explicit inputs …) is JSON.
"""

from collections.abc import Mapping
from typing import Any

from django import forms
from django.http import QueryDict
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as lazy

from api import strict_json
from classroom import words
from classroom.bodyform import BodyForm, number
from kernels.arrays import DISTRIBUTIONS
from kernels.grading import traces
from kernels.grading.case import ANSWERS, MASKS, SEED_SCOPES, SHAPE, VISIBILITIES
from kernels.grading.problem import KINDS, POLICIES, PROPERTIES
from kernels.spec.run import DTYPES
from lab.form.offering import DISTRIBUTION_NAMES
from lab.form.offers import result_name
from lab.form.settings import ALIGNMENTS
from lab.form.texts import literal

ATTENTION = KINDS[0]
KIND_NAMES: Mapping[str, Any] = {
    "attention": lazy("attention: arrays from Q, K and V"),
    "paging": lazy("paging: a KV cache in blocks, operation by operation"),
    "speculative": lazy("speculative: drafts accepted or replaced"),
}
POLICY_NAMES: Mapping[str, Any] = {
    "error_bound": lazy("as far as rounding takes a right computation"),
    "allclose": lazy("atol + rtol · |right|, as below"),
}
SCOPE_NAMES: Mapping[str, Any] = {
    "student": lazy("each student: the same at every try"),
    "submission": lazy("each student and try"),
    "fixed": lazy("everybody: the same"),
}
MASK_NAMES: Mapping[str, Any] = {
    "": lazy("none"),
    "boolean": lazy("a boolean mask is drawn too"),
    "float": lazy("an additive mask is drawn too"),
}
PLAIN_SETTINGS = ("is_causal", "causal_alignment", "scale")  # that have fields of their own
SHAPES: Mapping[str, tuple[str, ...]] = {
    "attention": tuple(SHAPE),
    "paging": tuple(traces.PAGING_LIMITS),
    "speculative": tuple(traces.SPECULATIVE_LIMITS),
}
# What a new case begins with: heads, and more keys than queries, so that most mistakes show.
USUAL_SHAPES: Mapping[str, dict[str, str]] = {
    "attention": {"num_heads": "2", "q_len": "5", "kv_len": "7", "head_dim": "4"},
    "paging": {"num_blocks": "16", "block_size": "4", "sequences": "4", "steps": "12"},
    "speculative": {"runs": "8", "gamma": "3", "vocabulary": "5"},
}


def answers_of(kind: str) -> tuple[str, ...]:
    return ANSWERS if kind == ATTENTION else traces.ANSWERS[kind]


def choice(label: Any, names: Mapping[str, Any], **more: Any) -> forms.ChoiceField:
    return forms.ChoiceField(required=False, label=label, choices=list(names.items()), **more)


def prose(label: Any, rows: int, help_text: Any = "") -> forms.CharField:
    widget = forms.Textarea(attrs={"rows": str(rows), "class": "prose-box"})
    return forms.CharField(required=False, strip=False, label=label, help_text=help_text, widget=widget)


def json_field(label: Any, help_text: Any = "", rows: int = 3) -> forms.CharField:
    attrs = {"rows": str(rows), "spellcheck": "false", "autocomplete": "off", "autocapitalize": "off"}
    return forms.CharField(
        required=False, strip=False, label=label, help_text=help_text, widget=forms.Textarea(attrs=attrs)
    )


class Fields(BodyForm):
    """A form that is always bound, and never invalid by itself."""

    def __init__(self, state: Any, **more: Any) -> None:
        super().__init__(state, auto_id="problem-%s", **more)
        self.is_valid()

    def text(self, name: str) -> str:
        """As it was typed, whether or not it is among the choices: who reads the body says so."""
        return str(self.data.get(self.add_prefix(name), "")).strip()

    def long_text(self, name: str) -> str:
        return str(self.data.get(self.add_prefix(name), "")).replace("\r\n", "\n")

    def json(self, name: str) -> Any:
        """The JSON of a box; None where it is empty, or is none, which is noted."""
        text = self.text(name)
        if not text:
            return None
        try:
            return strict_json.loads(text.encode("utf-8", "replace"))
        except strict_json.Malformed as error:
            self.add_error(name, error.detail)
            return None

    def note(self, name: str | None, detail: str) -> None:
        """Add an error; on top where there is no such field."""
        self.add_error(name if name in self.fields else None, detail)


class ProblemFields(Fields):
    slug = forms.CharField(
        required=False,
        label=lazy("Name in addresses"),
        help_text=lazy("Lower-case letters, digits and -: causal-attention."),
        widget=forms.TextInput(attrs={"spellcheck": "false", "autocomplete": "off", "autocapitalize": "off"}),
    )
    title = forms.CharField(required=False, label=lazy("Title"))
    kind = choice(lazy("Kind"), KIND_NAMES)
    statement = prose(lazy("Statement"), 10, lazy("Markdown, with LaTeX between dollars."))
    solution = prose(lazy("Worked solution"), 6, lazy("Markdown. Students do not see it."))
    dtype = choice(
        lazy("Number format"),
        {name: name for name in DTYPES},
        help_text=lazy("Of the inputs; and of answers that come as plain numbers."),
    )
    is_causal = forms.BooleanField(required=False, label=lazy("Causal: no query sees a later key"))
    causal_alignment = choice(lazy("Causal alignment"), dict(ALIGNMENTS))
    scale = number(lazy("Scale"), lazy("Empty: 1/√d."), inputmode="decimal")
    attention = json_field(
        lazy("Other settings"),
        lazy('JSON, as runs have it: {"rope": {"style": "half"}, "window": [3, 0]}'),
    )
    policy = choice(lazy("How far an answer may be off"), POLICY_NAMES)
    max_mismatch_ratio = number(
        lazy("Share of numbers that may be off"), lazy("0 to 0.5. Empty: none."), inputmode="decimal"
    )
    least_dtype = choice(
        lazy("Least number format"),
        {"": lazy("any"), **{name: name for name in DTYPES}},
        help_text=lazy("What is less precise is wrong, and told so."),
    )
    properties = forms.MultipleChoiceField(
        required=False,
        label=lazy("Checked besides, by cases that are made from the first"),
        choices=[(name, words.PROPERTIES[name]) for name in PROPERTIES],
        widget=forms.CheckboxSelectMultiple,
    )

    def __init__(self, state: QueryDict) -> None:
        self.state = state
        kind = str(state.get("kind", ""))
        self.asked_kind = kind if kind in KINDS else ATTENTION
        super().__init__(state)

    def get_asked(self) -> list[dict[str, Any]]:
        """Each result that can be asked for, its box and its points; first those of `order`, as there."""
        known = answers_of(self.asked_kind)
        first = [name for name in str(self.data.get("order", "")).split(",") if name in known]
        return [
            {
                "name": name,
                "meaning": result_name(name) if self.asked_kind == ATTENTION else "",
                "is_asked": f"ask-{name}" in self.data,
                "points": self.data.get(f"points-{name}", "1"),
            }
            for name in dict.fromkeys([*first, *known])
        ]

    @property
    def tolerances(self) -> list[dict[str, str]]:
        return [
            {"dtype": name, **{kind: self.data.get(f"{kind}-{name}", "") for kind in ("atol", "rtol")}}
            for name in DTYPES
        ]

    def body(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            **{name: self.text(name) for name in ("slug", "title")},
            **{name: self.long_text(name) for name in ("statement", "solution")},
            "kind": self.text("kind") or ATTENTION,
            "answer": [
                {"name": each["name"], "points": literal(each["points"].strip()) if each["points"] else 1}
                for each in self.get_asked()
                if each["is_asked"]
            ],
            "tolerance": self.tolerance(),
            "properties": self.state.getlist("properties"),
        }
        if self.asked_kind == ATTENTION:
            found["spec"] = {"dtype": self.text("dtype") or "float32", "attention": self.settings()}
        return found

    def settings(self) -> Any:
        """The attention of all cases."""
        more = self.json("attention")
        if more is not None and not isinstance(more, dict):
            return more  # which is then said to be no object
        plain: dict[str, Any] = {"is_causal": True} if self.data.get("is_causal") else {}
        if self.text("causal_alignment") not in ("", ALIGNMENTS[0][0]):
            plain["causal_alignment"] = self.text("causal_alignment")
        if self.text("scale"):
            plain["scale"] = literal(self.text("scale"))
        return {**plain, **(more or {})}

    def tolerance(self) -> dict[str, Any]:
        per_dtype = {
            each["dtype"]: {
                name: literal(each[name].strip()) for name in ("atol", "rtol") if each[name].strip()
            }
            for each in self.tolerances
        }
        found: dict[str, Any] = {"policy": self.text("policy") or POLICIES[0]}
        if any(per_dtype.values()):
            found["per_dtype"] = {name: given for name, given in per_dtype.items() if given}
        if self.text("max_mismatch_ratio"):
            found["max_mismatch_ratio"] = literal(self.text("max_mismatch_ratio"))
        if self.text("least_dtype"):
            found["least_dtype"] = self.text("least_dtype")
        return found

    def place_one(self, pointer: str, detail: str) -> None:
        match pointer.strip("/").split("/"):
            case ["spec", "attention", name, *rest] if name not in PLAIN_SETTINGS:
                self.note("attention", f"{'.'.join([name, *rest])}: {detail}")
            case ["spec", "attention", name, *_] | ["spec", name, *_]:
                self.note(name, detail)
            case ["tolerance", "per_dtype", *rest]:
                self.note("policy", f"{' '.join(rest)}: {detail}" if rest else detail)
            case ["tolerance", name, *_]:
                self.note(name, detail)
            case ["answer", *_]:
                self.note(None, _("What is asked for: {detail}").format(detail=detail))
            case [name, *_] if name in self.fields:
                self.note(name, detail)
            case _:
                self.note(None, f"{pointer}: {detail}" if pointer else detail)


class HintFields(Fields):
    hint = prose(lazy("Hint"), 3)


class CaseFields(Fields):
    name = forms.CharField(required=False, label=lazy("Name"))
    points = number(lazy("Points"), inputmode="decimal")
    visibility = choice(lazy("Its result is"), {name: words.VISIBILITIES[name] for name in VISIBILITIES})
    seed_scope = choice(lazy("Inputs are drawn for"), {name: SCOPE_NAMES[name] for name in SEED_SCOPES})
    seed = number(lazy("Seed"), lazy("Of what is the same for everybody; empty: drawn."))
    distribution = choice(
        lazy("Distribution"),
        {name: DISTRIBUTION_NAMES[name] for name in ("peaked", *(d for d in DISTRIBUTIONS if d != "peaked"))},
    )
    mask = choice(lazy("Mask"), {name: MASK_NAMES[name] for name in ("", *MASKS)})
    attention = json_field(
        lazy("Its own settings"), lazy('JSON: what is different in this case, {"is_causal": true}')
    )
    inputs = json_field(
        lazy("Inputs that are given"),
        lazy('JSON, instead of drawn ones, the same for everybody: {"q": [[1, 0], [0, 1]], …}'),
    )
    operations = json_field(
        lazy("Operations"), lazy('JSON, instead of drawn ones: [{"op": "allocate", "sequence": 0, …}]')
    )

    def __init__(self, state: Any, index: int, kind: str) -> None:
        self.kind, self.index = kind, index
        super().__init__(state, prefix=f"case-{index}")
        for axis in SHAPES[kind]:
            self.fields[axis] = number(axis)
        self.is_valid()

    @property
    def number(self) -> int:
        return self.index + 1

    @property
    def axes(self) -> list[Any]:
        return [self[axis] for axis in SHAPES[self.kind]]

    @property
    def has_more(self) -> bool:
        """Whether something rare is filled in."""
        return any(self.text(name) for name in ("attention", "inputs", "operations", "seed"))

    def body(self) -> dict[str, Any]:
        found: dict[str, Any] = {"name": self.text("name")}
        for name in ("points", "seed"):
            if self.text(name):
                found[name] = literal(self.text(name))
        for name in ("visibility", "seed_scope"):
            if self.text(name):
                found[name] = self.text(name)
        shape = {axis: literal(self.text(axis)) for axis in SHAPES[self.kind] if self.text(axis)}
        if shape:
            found["shape"] = shape
        boxes = ("attention", "inputs") if self.kind == ATTENTION else ("operations",)
        if self.kind == ATTENTION:
            found |= {name: self.text(name) for name in ("distribution", "mask") if self.text(name)}
        if self.kind != "speculative":
            found |= {name: value for name in boxes if (value := self.json(name)) is not None}
        return found

    def place_one(self, parts: list[str], detail: str) -> None:
        match parts:
            case ["shape", axis, *_] if axis in self.fields:
                self.note(axis, detail)
            case ["shape"]:
                self.note(SHAPES[self.kind][0], detail)
            case ["attention" | "inputs" | "operations" as name, *rest]:
                self.note(name, f"{'.'.join(rest)}: {detail}" if rest else detail)
            case [name, *_] if name in self.fields:
                self.note(name, detail)
            case _:
                self.note(None, detail)
