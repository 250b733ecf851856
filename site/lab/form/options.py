"""Options that an engine declares by JSON Schema, as controls of the form: a schema in, a field out.

A control holds text, a body holds JSON: `text_of` and `value_of` lead from one to the other. What is no value
of a schema is passed on as it was typed, since `kernels.spec.parse_run` says what is wrong with it.
"""

from collections.abc import Mapping
from typing import Any

from django import forms
from django.utils.html import format_html
from django.utils.translation import gettext as _

from kernels.spec.declared import accepts
from lab.form import texts
from lab.form.descriptions import explained

Schema = Mapping[str, Any]

MAX_CHOICE = 30  # characters; what is longer does not fit in a select
literal, text_of = texts.literal, texts.text_of  # as of everything else in the form
PREFIX = "option_"  # of a control's name: an option may be called as another field of the form


def control(name: str) -> str:
    """The name of an option's control, in the form and in links."""
    return PREFIX + name


def field(name: str, schema: Schema, chosen: str) -> forms.CharField:
    """The control of an option; a text that is none of its choices stays there, to be put right."""
    text, null = explained(schema.get("description", ""))
    label = format_html("<code>{}</code>", name)
    values = choices(schema)
    if values is None:
        if accepts(schema, None):
            text = _("{meaning} Empty: {null}.").format(meaning=text, null=null or "null")
        return forms.CharField(required=False, label=label, help_text=text, widget=box(schema))
    if len(null) > MAX_CHOICE:
        null, text = _("automatic"), _("{meaning} Automatic: {null}.").format(meaning=text, null=null)
    named = [(text_of(value), choice_name(schema, value, null)) for value in values]
    if chosen not in dict(named):
        named.append((chosen, chosen))
    return forms.CharField(required=False, label=label, help_text=text, widget=forms.Select(choices=named))


def box(schema: Schema) -> forms.Widget:
    """A box for a number within its limits, or for a text."""
    kinds = types(schema)
    if not {"integer", "number"} & set(kinds):
        return forms.TextInput(attrs={"autocomplete": "off", "spellcheck": "false"})
    limits = {"min": schema.get("minimum"), "max": schema.get("maximum")}
    attrs = {name: value for name, value in limits.items() if value is not None}
    step = "any" if "number" in kinds else 1
    return forms.NumberInput(attrs={**attrs, "step": step, "autocomplete": "off"})


def choices(schema: Schema) -> list[Any] | None:
    """The values to choose from, where they can be listed."""
    if "enum" in schema:
        return list(schema["enum"])
    kinds = types(schema)
    if set(kinds) <= {"boolean", "null"}:
        return [*([None] if "null" in kinds else []), True, False]
    return None


def choice_name(schema: Schema, value: Any, null: str) -> str:
    """What a choice is called; the default says that it is one."""
    if value is None and null:
        return null
    words = {"": "null", "true": _("yes"), "false": _("no")}
    name = text_of(value)
    name = words[name] if value is None or isinstance(value, bool) else name
    return _("{choice} (default)").format(choice=name) if value == schema["default"] else name


def types(schema: Schema) -> list[str]:
    given = schema.get("type", "string")
    return [given] if isinstance(given, str) else list(given)


def value_of(schema: Schema, text: str) -> Any:
    """The value that a control holds. An empty box of something that cannot be null: its default."""
    text = text.strip()
    listed = choices(schema)
    if listed is not None:
        return next((value for value in listed if text_of(value) == text), literal(text))
    if not text:
        return None if accepts(schema, None) else schema["default"]
    return literal(text) if {"integer", "number"} & set(types(schema)) else text


def chosen(schemas: Mapping[str, Schema], state: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a form's state that are not at their default, for the body of a run."""
    found = {
        name: value_of(schema, str(state.get(control(name), text_of(schema["default"]))))
        for name, schema in schemas.items()
    }
    return {name: value for name, value in found.items() if value != schemas[name]["default"]}
