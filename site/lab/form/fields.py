"""Controls of the form, each with its words: what a name or a setting becomes in Django's terms."""

from collections.abc import Iterable
from typing import Any, TypeVar

from django import forms
from django.utils.html import format_html

from lab.form import help as words
from lab.form.help import WORDS, Words
from lab.form.settings import Setting

QUIET = {"autocomplete": "off", "spellcheck": "false", "autocapitalize": "off"}
BRINGS = {"data-brings": ""}  # choosing another value brings other fields
Made = TypeVar("Made", bound=forms.Field)


def text_field(label: Any, help_text: Any = "", **attrs: str) -> forms.CharField:
    return forms.CharField(
        required=False, label=label, help_text=help_text, widget=forms.TextInput(attrs=attrs)
    )


def number_field(label: Any, help_text: Any = "", **attrs: str) -> forms.CharField:
    """A box for a number. Its text is not judged here."""
    return text_field(label, help_text, inputmode="numeric", autocomplete="off", **attrs)


def choice_field(
    label: Any, choices: Any, help_text: Any = "", widget: Any = forms.Select
) -> forms.CharField:
    return forms.CharField(required=False, label=label, help_text=help_text, widget=widget(choices=choices))


def field(
    name: str, widget: forms.Widget, said: Words | None = None, *, strip: bool = True
) -> forms.CharField:
    """A control that holds a text, whatever it is: a spec judges it, not the form."""
    said = said or WORDS[name]
    made = forms.CharField(required=False, strip=strip, label=said.label, help_text=said.help, widget=widget)
    return linked(made, said.concept)


def linked(made: Made, concept: str) -> Made:
    """The same control, which knows the page of its concept where that is written."""
    vars(made)["concept"] = words.concept(concept)
    return made


def number(name: str) -> forms.CharField:
    """A box for a number. Its text is not judged here."""
    return field(name, forms.TextInput({"inputmode": "decimal", **QUIET}))


def text(name: str) -> forms.CharField:
    return field(name, forms.TextInput(QUIET))


def area(name: str, said: Words | None = None, rows: int = 4) -> forms.CharField:
    """A box for rows of numbers."""
    return field(name, forms.Textarea({"rows": str(rows), **QUIET}), said, strip=False)


def choice(name: str, choices: Iterable[tuple[str, Any]], *, brings: bool = False) -> forms.CharField:
    return field(name, forms.Select(BRINGS if brings else {}, choices=list(choices)))


def setting(given: Setting, chosen: str) -> forms.Field:
    """The control of a setting; a choice that it does not have stays there, to be put right."""
    if given.is_check:
        said = WORDS[given.name]
        made = forms.BooleanField(required=False, label=said.label, help_text=said.help)
        return linked(made, said.concept)
    said = WORDS.get(given.name) or of_kind(given)
    if not given.choices:
        is_list = given.read.__name__ in ("listed", "number_or_list")
        attrs = QUIET if is_list else {"inputmode": "decimal", **QUIET}
        return field(given.name, forms.TextInput(attrs), said)
    named = list(given.choices)
    if chosen not in dict(named):
        named.append((chosen, chosen))
    return field(given.name, forms.Select(BRINGS if given.brings else {}, choices=named), said)


def of_kind(given: Setting) -> Words:
    """The words of a field of a pattern or of a scaling: its own name, and what the spec says of it."""
    label = format_html("<code>{}</code>", given.pointer.rpartition("/")[2])
    is_pattern = given.pointer.startswith("/attention/pattern")
    return Words(label, given.words, "sparse" if is_pattern else "long-context")


def results(choices: list[tuple[str, str]]) -> forms.CharField:
    return field("returns", forms.CheckboxSelectMultiple(choices=choices))


def sources(choices: list[tuple[str, Any]]) -> forms.CharField:
    return field("source", forms.RadioSelect(BRINGS, choices=choices))
