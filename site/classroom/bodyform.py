"""Forms that make the body of a REST request: text fields in, problems back to the fields they came from.

They judge nothing: whoever reads the body does, and names each mistake by a pointer into it. So what cannot
be right is passed on as it was typed.
"""

import re
from collections.abc import Iterable, Mapping
from datetime import UTC
from typing import Any

from django import forms
from django.utils.dateparse import parse_datetime

from kernels.spec import FieldProblem


def number(label: Any, help_text: Any = "", **attrs: str) -> forms.CharField:
    widget = forms.TextInput(attrs={"inputmode": "numeric", "autocomplete": "off", **attrs})
    return forms.CharField(required=False, label=label, help_text=help_text, widget=widget)


class BodyForm(forms.Form):
    """A form whose fields make a body; `POINTERS` says where in it each is."""

    use_required_attribute = False
    POINTERS: Mapping[str, str] = {}

    def text(self, name: str) -> str:
        return str(self.cleaned_data.get(name) or "").strip()

    def moment(self, name: str) -> str | None:
        """As RFC 3339 writes it; what is no moment is passed on, to be said so."""
        text = self.text(name)
        try:
            found = parse_datetime(text)
        except ValueError:
            found = None
        if found is None:
            return text or None
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).isoformat()

    def place(self, problems: Iterable[FieldProblem]) -> None:
        """Put each problem beside its field, or on top."""
        by_pointer = {pointer: name for name, pointer in self.POINTERS.items() if name in self.fields}
        for problem in problems:
            pointer = problem.pointer
            while pointer and pointer not in by_pointer:
                pointer = pointer.rpartition("/")[0]
            self.add_error(by_pointer.get(pointer), self._in_words(problem.detail))

    def _in_words(self, detail: str) -> str:
        """What REST calls a field, as the form calls it: the word that begins a detail, and any with a _."""
        labels = {
            pointer.rpartition("/")[2]: str(self.fields[name].label)
            for name, pointer in self.POINTERS.items()
            if name in self.fields
        }

        def label(found: re.Match[str]) -> str:
            return f"“{labels[found[0]]}”" if found[0] in labels else found[0]

        return re.sub(r"^[a-z]+\b|\b[a-z]+(?:_[a-z]+)+\b", label, detail)
