"""The form in which a student hands in: files, JSON, or every answer in a box of its own.

What can be read becomes the body of `POST …/submissions`; how an answer is judged is for the grader. Only
what is no array at all is refused here, and costs nothing.
"""

import math
from collections.abc import Iterable, Iterator
from typing import IO, Any, cast

import numpy as np
from django import forms
from django.core.files.uploadedfile import UploadedFile
from django.http import HttpRequest
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as lazy

from api import strict_json
from api.uploads import arrayfiles
from kernels.grading.answers import Answers, read_answers
from kernels.grading.model import Problem
from kernels.grading.shapes import sent_shape
from kernels.spec import FieldProblem, SpecError
from kernels.spec.problems import all_of
from lab import matrices

FILES, BOXES, JSON = "files", "boxes", "json"
WAYS = ((BOXES, lazy("In boxes")), (FILES, lazy("A file")), (JSON, lazy("JSON")))
MOST_BOXES = 40
FEW_NUMBERS = 2_048  # that one would paste
SEPARATORS = "/.-_ "  # between the names of a case and an answer, in a file

Part = tuple[str, str]  # the names of a case and of an answer


class HandInForm(forms.Form):
    """Bound or not, it has a box for every answer of every case, unless there are too many."""

    use_required_attribute = False

    way = forms.ChoiceField(label=lazy("How to hand in"), choices=WAYS, widget=forms.RadioSelect)
    json = forms.CharField(
        required=False,
        strip=False,
        label=lazy("Answers as JSON"),
        widget=forms.Textarea(attrs={"rows": "8", "spellcheck": "false", "autocomplete": "off"}),
    )

    def __init__(self, problem: Problem, request: HttpRequest | None = None) -> None:
        self.problem = problem
        self.sent: list[UploadedFile[Any]] = list(request.FILES.getlist("files")) if request else []
        self.arrays: dict[str, np.ndarray[Any, Any]] = {}
        self.parts = {
            f"box-{i}-{j}": (case.name, part.name)
            for i, case in enumerate(problem.cases)
            for j, part in enumerate(problem.answers)
        }
        self.has_boxes = len(self.parts) <= MOST_BOXES
        usual = BOXES if self.has_boxes and numbers_of(problem) <= FEW_NUMBERS else FILES
        super().__init__(request.POST if request else None, auto_id="hand-in-%s", initial={"way": usual})
        if not self.has_boxes:
            cast(forms.ChoiceField, self.fields["way"]).choices = [way for way in WAYS if way[0] != BOXES]
        for name, (_case, answer) in self.parts.items() if self.has_boxes else ():
            self.fields[name] = forms.CharField(
                required=False,
                strip=False,
                label=answer,
                widget=forms.Textarea(
                    attrs={"rows": "3", "spellcheck": "false", "autocomplete": "off", "autocapitalize": "off"}
                ),
            )

    # --- What the template asks -----------------------------------------------------------------------

    @property
    def boxes(self) -> list[tuple[str, list[Any]]]:
        """By case."""
        by_case: dict[str, list[Any]] = {}
        for name, (case, _answer) in self.parts.items() if self.has_boxes else ():
            by_case.setdefault(case, []).append(self[name])
        return list(by_case.items())

    @property
    def names(self) -> list[str]:
        """What arrays in a file are to be called."""
        return list(self.names_in_files())

    @property
    def example(self) -> str:
        """How the JSON begins."""
        case, answer = next(iter(self.parts.values()))
        return f'{{"{case}": {{"{answer}": [[…]]}}}}'

    # --- Reading --------------------------------------------------------------------------------------

    def read(self) -> Answers | None:
        """The answers; None where something is wrong, which the form then says."""
        if not self.is_valid():
            return None
        way = self.cleaned_data["way"]
        body = {FILES: self.of_files, JSON: self.of_json, BOXES: self.of_boxes}[way]()
        if self.errors:
            return None
        if not body:
            self.add_error(self.place_of(way), _("Nothing is there to hand in yet."))
            return None
        try:
            answers = read_answers(self.problem, body, "/answers", self.load)
        except SpecError as error:
            self.place(error.problems, way)
            return None
        if not any(answers.by_case.values()):
            names = all_of(self.names[:8])
            self.add_error(
                self.place_of(way), _("None of it is asked for. Names are {names}.").format(names=names)
            )
            return None
        return answers

    def of_boxes(self) -> dict[str, Any]:
        body: dict[str, Any] = {}
        for name, (case, answer) in self.parts.items():
            text = self.cleaned_data.get(name, "")
            if not text.strip():
                continue
            try:
                body.setdefault(case, {})[answer] = matrices.parse(text)
            except matrices.MatrixError as error:
                self.add_error(name, str(error))
        return body

    def of_json(self) -> Any:
        text = self.cleaned_data["json"]
        if not text.strip():
            return {}
        try:
            found = strict_json.loads(text.encode("utf-8", "replace"))
        except strict_json.Malformed as error:
            self.add_error("json", error.detail)
            return None
        if isinstance(found, list) and len(self.parts) == 1:
            case, answer = next(iter(self.parts.values()))
            return {case: {answer: found}}
        return found

    def of_files(self) -> dict[str, Any]:
        body: dict[str, Any] = {}
        known = self.names_in_files()
        for number, file in enumerate(self.sent):
            try:
                for member, content in _members(file):
                    part = known.get(member.name)
                    if part is None:
                        body.setdefault(member.name, {})  # said in a note, should the rest be of use
                        continue
                    self.arrays[f"{number}/{member.name}"] = arrayfiles.read(content, member)
                    case, answer = part
                    body.setdefault(case, {})[answer] = {"upload": "file", "name": f"{number}/{member.name}"}
            except arrayfiles.BadFile as error:
                self.add_error(None, f"{file.name}: {error.detail}")
        return body

    def names_in_files(self) -> dict[str, Part]:
        """{name of an array in a file: the case and answer that it is}; the first of a part is the usual."""
        found: dict[str, Part] = {}
        for case, answer in self.parts.values():
            if len(self.problem.cases) == 1:
                found.setdefault(answer, (case, answer))
            elif len(self.problem.answers) == 1:
                found.setdefault(case, (case, answer))
        for separator in SEPARATORS:
            for case, answer in self.parts.values():
                found.setdefault(f"{case}{separator}{answer}", (case, answer))
        return found

    def load(self, _upload: str, name: str) -> np.ndarray[Any, Any]:
        return self.arrays[name]

    # --- Problems -------------------------------------------------------------------------------------

    def place(self, problems: Iterable[FieldProblem], way: str) -> None:
        """Put each problem beside the box it came from, or on top."""
        names = {f"/answers/{case}/{answer}": name for name, (case, answer) in self.parts.items()}
        for problem in problems:
            name = next((names[at] for at in names if _is_at(problem.pointer, at)), None)
            if way == BOXES and name:
                self.add_error(name, problem.detail)
            else:
                where = problem.pointer.removeprefix("/answers/")
                self.add_error(self.place_of(way), f"{where}: {problem.detail}" if where else problem.detail)

    def place_of(self, way: str) -> str | None:
        return "json" if way == JSON else None


def _is_at(pointer: str, at: str) -> bool:
    return pointer == at or pointer.startswith(at + "/")


def _members(file: "UploadedFile[Any]") -> Iterator[tuple[arrayfiles.Member, IO[bytes]]]:
    content = cast(IO[bytes], file.file)
    for member in arrayfiles.index(content, file.name or ""):
        yield member, content


def numbers_of(problem: Problem) -> int:
    """How many are asked for in all, where the shapes say."""
    return sum(
        math.prod(sent_shape(part.name, case.run, case.spec))
        for case in problem.cases
        for part in problem.answers
        if case.run is not None and case.spec is not None
    )
