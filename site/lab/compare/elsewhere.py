"""An output that was computed elsewhere: read, held against a run, and its convention named."""

import math
import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from django import forms
from django.core.files.uploadedfile import UploadedFile
from django.http import HttpRequest
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from api.callers import caller_of
from api.computing import computing
from api.uploads import arrayfiles
from kernels import conventions, flips
from kernels.conventions import Answer, Candidate
from kernels.layout import to_canonical
from kernels.spec import RunSpec
from lab import matrices, units
from lab.compare import words
from workers import artifacts
from workers.models import Run

MAX_FILE = 16 << 20
MAX_NUMBERS = 1 << 20
DTYPES = ("float32", "float16", "bfloat16", "float64")
NUMBER = re.compile(r"(?<![\w.])[-+−]?\d+\.(\d*)(?:[eE]([-+−]?\d+))?")
EXACT = 8  # decimals from which on a printed number is as good as a float32


class Problem(ValueError):
    """What is wrong with what was sent, in words."""


class Form(forms.Form):
    """What somebody else's code gave."""

    out = forms.CharField(
        label=gettext_lazy("Its output"),
        required=False,
        strip=False,
        widget=forms.Textarea(attrs={"rows": 8, "spellcheck": "false", "autocapitalize": "off"}),
        help_text=gettext_lazy(
            "What NumPy or PyTorch prints, JSON, CSV, or rows of numbers; all of the output, of all heads."
        ),
    )
    file = forms.FileField(
        label=gettext_lazy("or a file"),
        required=False,
        widget=forms.ClearableFileInput(attrs={"accept": ".npy,.npz,.safetensors"}),
        help_text=gettext_lazy("One .npy, or an .npz or .safetensors with an array called out."),
    )
    dtype = forms.ChoiceField(
        label=gettext_lazy("Computed in"),
        choices=[(name, name) for name in DTYPES],
        help_text=gettext_lazy("How precise that code is: rounding in it is no other convention."),
    )


@dataclass(frozen=True)
class Sent:
    """An output, and how precisely it is known."""

    values: np.ndarray
    resolution: np.ndarray | float = 0.0
    decimals: int | None = None


def read(text: str, file: "UploadedFile[Any] | None") -> Sent:
    """The numbers of a text or of a file. Raises Problem."""
    if file is not None:
        return Sent(_of_file(file))
    try:
        nested = matrices.parse(text)
    except matrices.MatrixError as error:
        raise Problem(str(error)) from None
    values = np.array(nested, dtype=np.float64)
    if values.size > MAX_NUMBERS:
        raise Problem(_too_many(values.size))
    resolution, decimals = printed(text, values)
    return Sent(values, resolution, decimals)


def _of_file(file: "UploadedFile[Any]") -> np.ndarray:
    if (file.size or 0) > MAX_FILE:
        raise Problem(_("file: it has more than {limit} MiB; send the output of one small run.").format(
            limit=MAX_FILE >> 20
        ))  # fmt: skip
    content: Any = file.file
    try:
        members = arrayfiles.index(content, file.name or "")
        named = [member for member in members if member.name == "out"]
        if len(members) > 1 and not named:
            raise Problem(
                _("file: it has the arrays {names}, and none is called out.").format(
                    names=words.shown(", ".join(member.name for member in members))
                )
            )
        chosen = (named or members)[0]
        if math.prod(chosen.shape) > MAX_NUMBERS:
            raise Problem(_too_many(math.prod(chosen.shape)))
        values = arrayfiles.read(content, chosen)
    except arrayfiles.BadFile as error:
        raise Problem(_("file: {detail}").format(detail=error.detail)) from None
    if values.dtype.kind not in "fiu":
        raise Problem(_("file: dtype {dtype} holds no numbers to compare.").format(dtype=values.dtype))
    if values.dtype == np.uint16:  # bfloat16
        return (values.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return values.astype(np.float64)


def _too_many(count: int) -> str:
    return _(
        "out: {count} numbers are more than the {limit} that are compared; take fewer heads or a shorter "
        "text."
    ).format(count=units.whole(count), limit=units.whole(MAX_NUMBERS))


def printed(text: str, values: np.ndarray) -> tuple[np.ndarray | float, int | None]:
    """How far a printed number may be from what was computed: half of its last digit. Whole numbers alone are
    taken as exact, and so are eight decimals and more: they say all that a float32 has."""
    found = [(len(match[1]), match[2]) for match in NUMBER.finditer(text)]
    decimals = max((digits for digits, _exponent in found), default=0)
    if not 0 < decimals < EXACT:
        return 0.0, None
    half = 0.5 * 10.0**-decimals * (1 + 1e-9)
    if not any(exponent for _digits, exponent in found):
        return half, decimals
    sizes = np.abs(values)
    powers = np.floor(np.log10(np.where((sizes > 0) & np.isfinite(sizes), sizes, 1.0)))
    return half * 10.0**powers, decimals


def shaped(values: np.ndarray, spec: RunSpec) -> np.ndarray:
    """[batch, heads, queries, dimensions] of an output as it was sent: so, or with the heads after the
    queries, as flash-attention and Transformers return it, or side by side in a row; axes of 1 left out or
    not. Raises Problem."""
    b, h, n, e = wanted = (spec.batch, spec.num_heads, spec.q_len, spec.v_head_dim)
    sent = squeezed(values.shape)
    if sent == squeezed(wanted):
        return values.reshape(wanted)
    if sent in (squeezed((b, n, h, e)), squeezed((b, n, h * e))):
        return np.ascontiguousarray(values.reshape(b, n, h, e).swapaxes(1, 2))
    detail = _(
        "out: its shape is {shape}; this run's output is {wanted}: batch, heads, queries, dimensions (axes "
        "of 1 may be left out, and heads may come after the queries)."
    )
    raise Problem(detail.format(shape=times(values.shape), wanted=times(wanted)))


def squeezed(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(size for size in shape if size != 1)


def times(shape: tuple[int, ...]) -> str:
    return " × ".join(units.whole(size) for size in shape) or "1"


# --- The answer -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Verdict:
    """What is said of an output."""

    answer: Answer
    spec: RunSpec
    decimals: int | None = None
    extra: dict[str, Any] = field(default_factory=dict)


def judge(run: Run, sent: Sent, dtype: str, request: HttpRequest) -> Verdict:
    """Held against the run and every candidate; charged to the caller. Raises Problem or Busy."""
    spec = RunSpec.from_dict(run.spec)
    why_not = unable(run, spec)
    if why_not:
        raise Problem(why_not)
    values = shaped(sent.values, spec)
    resolution = sent.resolution
    if isinstance(resolution, np.ndarray):
        resolution = shaped(resolution, spec)
    inputs = artifacts.load_inputs(run)
    if not inputs:
        raise Problem(_("The stored inputs of this run are gone: run it again."))
    with computing(caller_of(request)):
        return Verdict(conventions.judge(spec, inputs, values, dtype, resolution), spec, sent.decimals)


def unable(run: Run, spec: RunSpec) -> str:
    """Why no output can be held against this run; "" where one can."""
    if not conventions.can_judge(spec):
        return _(
            "Numbers from elsewhere are compared with softmax attention of q, k and v; engine {engine} on "
            "these inputs is something else."
        ).format(engine=run.engine)
    if conventions.work(spec) > conventions.MOST:
        return _(
            "This run is too large for trying every convention: it takes {work} multiply-adds, and {limit} "
            "is the limit. Use fewer heads or shorter texts; conventions show in small inputs as well."
        ).format(work=units.count(conventions.work(spec)), limit=units.count(conventions.MOST))
    return ""


def shown(verdict: Verdict) -> dict[str, Any]:
    """For the template."""
    answer, spec = verdict.answer, verdict.spec
    groups = [[candidate(one, spec) for one in group] for group in answer.groups]
    kinds = [flip.kind for one in answer.found for flip in one.flips]
    return {
        "is_equal": answer.is_equal,
        "base": candidate(answer.base, spec),
        "groups": groups,
        "is_sure": len(answer.found) == 1,
        "has_twins": any(len(group) > 1 for group in groups),
        "is_too_near": len(groups) > 1,
        "nearest": [candidate(one, spec) for one in answer.nearest],
        "settled": settled(answer, spec),
        "ruled_out": [candidate(one, spec) for one in answer.ruled_out],
        "twins": [words.title(flip) for flip in answer.not_told_apart] if answer.is_equal else [],
        "twins_apart": words.apart([flip.kind for flip in answer.not_told_apart]) if answer.is_equal else [],
        "apart": words.apart(kinds) if len(answer.found) > 1 else [],
        "tried": units.whole(answer.tried),
        "decimals": verdict.decimals,
    }


def settled(answer: Answer, spec: RunSpec) -> list[str]:
    """What the run is, where it is the answer: each setting of which these inputs rule the others out."""
    open_kinds = {flip.kind for flip in answer.not_told_apart}
    kinds = dict.fromkeys(one.flips[0].kind for one in answer.ruled_out)
    known = [(words.GROUPS[kind], words.now(kind, spec)) for kind in kinds if kind not in open_kinds]
    return [f"{name}: {now}" for name, now in known if now]


def candidate(one: Candidate, spec: RunSpec) -> dict[str, str]:
    return {
        "title": titled(one),
        "why": words.why(words.Change(one.flips[0], spec)) if len(one.flips) == 1 else "",
        "error": "0" if not one.error else units.significant(one.error),
        "allowed": units.significant(float(one.allowed.max(initial=0.0))),
        "flip": one.flips[0].name if len(one.flips) == 1 and flips.find(spec, one.flips[0].name) else "",
    }


def titled(one: Candidate) -> str:
    if one.mistake:
        return _("A mistake that is often made: {says}").format(says=one.says)
    return " + ".join(words.title(flip) for flip in one.flips) or _("This run as it is")


# --- What to compute on ---------------------------------------------------------------------------


def inputs_as_code(run: Run) -> str:
    """The inputs of a small run as NumPy, to be copied into somebody's program; "" where they are many."""
    spec = RunSpec.from_dict(run.spec)
    if sum(given.elements for given in spec.inputs.values()) > 600:
        return ""
    inputs = artifacts.load_inputs(run)
    lines = ["import numpy as np", ""]
    for name in spec.inputs:
        if name not in inputs:
            return ""
        array = inputs[name]
        shape = to_canonical(spec, name, array).shape if name in ("q", "k", "v") else array.shape
        if array.dtype.kind == "f" and array.dtype != np.float64:
            array = array.astype(np.float32)
        numbers = ", ".join(str(value) for value in array.ravel())  # as short as they can be read back
        lines.append(f"{name} = np.array([{numbers}], dtype=np.{array.dtype}).reshape{tuple(shape)}")
    return "\n".join(lines)
