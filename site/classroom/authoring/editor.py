"""The problem editor: a state of fields, the body that they make, and what is wrong with it.

The state is what a form sends, flat; `of_body` makes the state of an existing problem, so that a form can be
filled in with anything that JSON can say, and nothing is lost on the way there and back.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from django.http import QueryDict
from django.utils.translation import gettext as _

from classroom.authoring.fields import (
    ATTENTION,
    SHAPES,
    USUAL_SHAPES,
    CaseFields,
    HintFields,
    ProblemFields,
)
from kernels.grading.model import Problem
from kernels.grading.problem import MAX_CASES, MAX_HINTS, parse_problem
from kernels.spec import FieldProblem, SpecError
from lab.form.fork import tidy
from lab.form.state import to_query


class Editor:
    """The form of one problem."""

    def __init__(self, state: QueryDict) -> None:
        self.state = state
        self.main = ProblemFields(state)
        kind = self.main.asked_kind
        self.hints = [HintFields(state, prefix=f"hint-{i}") for i in range(_count(state, "hints", MAX_HINTS))]
        self.cases = [CaseFields(state, i, kind) for i in range(_count(state, "cases", MAX_CASES))]

    @classmethod
    def blank(cls) -> "Editor":
        """A problem to begin with: one result, one case."""
        return cls.of_body({"answer": [{"name": "out", "points": 1}], "cases": [usual_case(ATTENTION, 0)]})

    @classmethod
    def of_body(cls, body: Mapping[str, Any]) -> "Editor":
        return cls(to_query(dict(state_of(body))))

    # --- To the body --------------------------------------------------------------------------------------

    def body(self) -> dict[str, Any]:
        """As `POST /api/v1/problems` takes it."""
        hints = [hint.long_text("hint") for hint in self.hints]
        return {
            **self.main.body(),
            "hints": [hint for hint in hints if hint.strip()],
            "cases": [case.body() for case in self.cases],
        }

    def read(self) -> Problem | None:
        """The problem; None where something is wrong, which the fields then say."""
        body = self.body()
        try:
            problem = parse_problem(body)
        except SpecError as error:
            self.place(error.problems)
            return None
        return None if self.has_errors else problem  # a box with JSON that is none was left out

    def place(self, problems: Iterable[FieldProblem]) -> None:
        for problem in problems:
            parts = problem.pointer.strip("/").split("/")
            index = int(parts[1]) if len(parts) > 1 and parts[1].isdigit() else -1
            if parts[0] == "cases" and 0 <= index < len(self.cases):
                self.cases[index].place_one(parts[2:], problem.detail)
            elif parts[0] == "hints" and 0 <= index < len(self.hints):
                self.hints[index].note("hint", problem.detail)
            else:
                self.main.place_one(problem.pointer, problem.detail)

    # --- What the templates ask ---------------------------------------------------------------------------

    @property
    def forms(self) -> list[Any]:
        return [self.main, *self.hints, *self.cases]

    @property
    def has_errors(self) -> bool:
        return any(form.errors for form in self.forms)

    @property
    def problems(self) -> list[dict[str, str]]:
        """Everything that is wrong, with where it is."""
        return list(self._problems())

    def _problems(self) -> Iterator[dict[str, str]]:
        for form in self.forms:
            where = _("Case {number}").format(number=form.number) if isinstance(form, CaseFields) else ""
            for detail in form.non_field_errors():
                yield {"href": "", "label": where, "detail": str(detail)}
            for field in form.visible_fields():
                label = f"{where}, {field.label}" if where else str(field.label)
                for detail in field.errors:
                    yield {"href": f"#{field.auto_id}", "label": label, "detail": str(detail)}

    # --- Buttons ------------------------------------------------------------------------------------------

    def after(self, action: str) -> "Editor":
        """The editor as a button leaves it: add-hint, add-case, copy-case-2, drop-case-2, drop-hint-0; as it
        is for whatever else. What was typed stays as it was typed."""
        verb, _dash, what = action.partition("-")
        name, _dash, index = what.partition("-")
        if name not in MOST:
            return self
        items = _items(self.state, name, len(self.hints if name == "hint" else self.cases))
        place = int(index) if index.isdigit() and len(index) < 4 else -1
        if verb == "add" and len(items) < MOST[name]:
            items.append(self._new(name, len(items)))
        elif verb == "copy" and 0 <= place < len(items) < MOST[name]:
            copy = dict(items[place])
            copy["name"] = [f"{text}-2" for text in copy.get("name", [])]
            items.insert(place + 1, copy)
        elif verb == "drop" and 0 <= place < len(items):
            del items[place]
        else:
            return self
        return Editor(_with_items(self.state, name, items))

    def _new(self, name: str, index: int) -> dict[str, list[str]]:
        if name == "hint":
            return {"hint": [""]}
        kind = self.main.asked_kind
        return {field: [text] for field, text in _case_state(usual_case(kind, index), kind)}


MOST = {"hint": MAX_HINTS, "case": MAX_CASES}


def _items(state: QueryDict, name: str, count: int) -> list[dict[str, list[str]]]:
    """The fields of each hint or case, without their number."""
    found: list[dict[str, list[str]]] = [{} for _ in range(count)]
    for key in state:
        prefix, _dash, rest = key.partition("-")
        index, _dash, field = rest.partition("-")
        if prefix == name and index.isdigit() and len(index) < 4 and int(index) < count and field:
            found[int(index)][field] = state.getlist(key)
    return found


def _with_items(state: QueryDict, name: str, items: list[dict[str, list[str]]]) -> QueryDict:
    changed = QueryDict(mutable=True)
    for key in state:
        if not key.startswith(f"{name}-"):
            changed.setlist(key, state.getlist(key))
    changed[f"{name}s"] = str(len(items))
    for index, item in enumerate(items):
        for field, texts in item.items():
            changed.setlist(f"{name}-{index}-{field}", texts)
    return changed


def _count(state: QueryDict, name: str, most: int) -> int:
    text = state.get(name, "")
    return min(int(text), most) if text.isascii() and text.isdigit() and len(text) < 4 else 0


def usual_case(kind: str, index: int) -> dict[str, Any]:
    shape = {axis: int(size) for axis, size in USUAL_SHAPES[kind].items()}
    return {"name": f"case-{index + 1}" if index else "small", "points": 1, "shape": shape}


# --- From a body to a state ---------------------------------------------------------------------------------


def state_of(body: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Every field that a body fills in."""
    kind = body.get("kind") or ATTENTION
    spec = body.get("spec") or {}
    yield from ((name, str(body.get(name, ""))) for name in ("slug", "title", "statement", "solution"))
    yield "kind", kind
    yield "dtype", spec.get("dtype", "float32")
    attention = dict(spec.get("attention") or {})
    if attention.pop("is_causal", False) is True:
        yield "is_causal", "on"
    yield "causal_alignment", attention.pop("causal_alignment", "bottom_right")
    yield "scale", _text(attention.pop("scale", None))
    yield "attention", pretty(attention) if attention else ""
    parts = [{"name": sent} if isinstance(sent, str) else sent for sent in body.get("answer") or []]
    yield "order", ",".join(part["name"] for part in parts)
    for part in parts:
        yield f"ask-{part['name']}", "on"
        yield f"points-{part['name']}", _text(part.get("points", 1))
    yield from _tolerance_state(body.get("tolerance") or {})
    yield "properties", list(body.get("properties") or [])
    hints, cases = body.get("hints") or [], body.get("cases") or []
    yield "hints", str(len(hints))
    yield from ((f"hint-{i}-hint", hint) for i, hint in enumerate(hints))
    yield "cases", str(len(cases))
    for i, case in enumerate(cases):
        yield from ((f"case-{i}-{name}", value) for name, value in _case_state(case, kind))


def _tolerance_state(tolerance: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield "policy", tolerance.get("policy", "error_bound")
    yield "max_mismatch_ratio", _text(tolerance.get("max_mismatch_ratio") or None)
    yield "least_dtype", tolerance.get("least_dtype") or ""
    for dtype, given in (tolerance.get("per_dtype") or {}).items():
        yield from ((f"{name}-{dtype}", _text(given.get(name))) for name in ("atol", "rtol"))


def _case_state(case: Mapping[str, Any], kind: str) -> Iterator[tuple[str, str]]:
    yield "name", str(case.get("name", ""))
    yield from ((name, _text(case.get(name))) for name in ("points", "seed"))
    yield from (
        (name, str(case.get(name) or default))
        for name, default in (
            ("visibility", "visible"), ("seed_scope", "student"), ("distribution", "peaked"), ("mask", ""),
        )
    )  # fmt: skip
    shape = case.get("shape") or {}
    yield from ((axis, _text(shape.get(axis))) for axis in SHAPES[kind])
    for name in ("attention", "inputs", "operations"):
        if case.get(name):
            yield name, pretty(case[name])


def _text(value: Any) -> str:
    """A number as a person types it; None as nothing."""
    return "" if value is None else str(tidy(value))


def pretty(value: Any, indent: int = 0) -> str:
    """JSON for people: objects over several lines, lists of numbers on one."""
    inner = " " * (indent + 2)
    if isinstance(value, dict) and value:
        items = [
            f"{json.dumps(name, ensure_ascii=False)}: {pretty(item, indent + 2)}"
            for name, item in value.items()
        ]
        short = "{" + ", ".join(items) + "}"
        if len(short) + indent <= 100 and "\n" not in short:
            return short
        return "{\n" + ",\n".join(inner + item for item in items) + "\n" + " " * indent + "}"
    if isinstance(value, list) and value:
        items = [pretty(item, indent + 2) for item in value]
        short = "[" + ", ".join(items) + "]"
        if len(short) + indent <= 100 and "\n" not in short:
            return short
        return "[\n" + ",\n".join(inner + item for item in items) + "\n" + " " * indent + "]"
    return _quoted(tidy(value))


def _quoted(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
