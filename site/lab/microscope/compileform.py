"""The form of a compilation: a configuration of a kernel and, to compare, another that differs in places."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import urlencode

from django import forms
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from kernels.limits import MAX_BLOCK, MIN_BLOCK
from kernels.registry import ENGINES
from kernels.spec import FieldProblem
from kernels.spec.families import PLAIN_INPUTS
from kernels.targets import TARGETS
from lab.form.fields import choice_field, number_field
from workers.models import Run

OTHER = "b_"  # prefix of the fields of the configuration that is compared
# Engines whose kernels are compiled from shapes of q, k and v alone.
COMPILED = [name for name, engine in ENGINES.items() if engine.is_triton and engine.takes == PLAIN_INPUTS]
DTYPES = ("float16", "bfloat16", "float32")
POWERS = [1 << power for power in range(MIN_BLOCK.bit_length() - 1, MAX_BLOCK.bit_length())]
OPTIONS = ("block_m", "block_n", "num_warps", "num_stages")
USUAL = {
    "engine": "flash",
    "dtype": "float16",
    "target": "sm_80",
    "head_dim": "64",
    "heads": "8",
    "q_len": "1024",
    "kv_len": "",
    "mask": "causal",
    **dict.fromkeys(OPTIONS, ""),
}
MASKS: dict[str, tuple[Any, dict[str, Any]]] = {
    "none": (gettext_lazy("none: every query sees every key"), {}),
    "causal": (gettext_lazy("causal"), {"is_causal": True}),
    "window": (gettext_lazy("causal, window of 256"), {"is_causal": True, "window": [256, None]}),
    "pattern": (gettext_lazy("a pattern: chunks of 256"), {"pattern": {"type": "chunked", "size": 256}}),
}
POINTERS = {
    "engine": "/engine",
    "dtype": "/dtype",
    "target": "/targets",
    "mask": "/attention",
    **{name: f"/options/{name}" for name in OPTIONS},
    "kv_len": "/inputs/k",
    "q_len": "/inputs",
}
PRESETS: list[tuple[Any, dict[str, str]]] = [
    (gettext_lazy("causal or not"), {"mask": "none", "b_mask": "causal"}),
    (gettext_lazy("float16 or float32"), {"b_dtype": "float32"}),
    (gettext_lazy("dimension 64 or 128"), {"b_head_dim": "128"}),
    (gettext_lazy("A100 or H100"), {"b_target": "sm_90"}),
    (gettext_lazy("H100 or B200"), {"target": "sm_90", "b_target": "sm_100"}),
    (gettext_lazy("4 warps or 8"), {"num_warps": "4", "b_num_warps": "8", "block_m": "64", "block_n": "64"}),
    (
        gettext_lazy("small tiles or large"),
        {"block_m": "32", "block_n": "32", "b_block_m": "128", "b_block_n": "64"},
    ),
]


def engine_choices() -> list[tuple[str, str]]:
    return [(name, ENGINES[name].title) for name in COMPILED]


def target_choices() -> list[tuple[str, str]]:
    return [(name, f"{name} ({sm.title})") for name, sm in TARGETS.items()]


def options_of(values: Iterable[Any], empty: Any) -> list[tuple[str, Any]]:
    return [("", empty), *((str(value), str(value)) for value in values)]


class CompileForm(forms.Form):
    """Bound to a query string or to what was submitted; what it leaves out has its default."""

    use_required_attribute = False

    engine = choice_field(gettext_lazy("Engine"), engine_choices)
    target = choice_field(gettext_lazy("GPU"), target_choices)
    dtype = choice_field(gettext_lazy("Number format"), [(name, name) for name in DTYPES])
    head_dim = number_field(gettext_lazy("Head dimension"))
    mask = choice_field(gettext_lazy("Mask"), [(name, title) for name, (title, _of) in MASKS.items()])
    q_len = number_field(gettext_lazy("Queries"))
    kv_len = number_field(gettext_lazy("Keys"), gettext_lazy("Empty: as many as queries."))
    heads = number_field(gettext_lazy("Heads"))
    block_m = choice_field(gettext_lazy("Queries to a tile"), lambda: options_of(POWERS, _("as shipped")))
    block_n = choice_field(gettext_lazy("Keys to a tile"), lambda: options_of(POWERS, _("as shipped")))
    num_warps = choice_field(gettext_lazy("Warps"), lambda: options_of((1, 2, 4, 8, 16), _("as shipped")))
    num_stages = choice_field(gettext_lazy("Stages"), lambda: options_of(range(1, 6), _("as shipped")))

    def __init__(self, query: Mapping[str, Any]) -> None:
        self.state = {name: str(query.get(name, usual)) for name, usual in USUAL.items()}
        self.other = {
            name: str(query[OTHER + name]) for name in USUAL if str(query.get(OTHER + name, "")).strip()
        }
        super().__init__(self.state, auto_id="compile-%s")
        self.is_valid()

    def bodies(self) -> list[dict[str, Any]]:
        """Of `POST /api/v1/compiles`: one, or two to be compared. Problems end up in the form."""
        states = [self.state] + ([self.state | self.other] if self.other else [])
        return [self.body(state) for state in states]

    def body(self, state: Mapping[str, str]) -> dict[str, Any]:
        q_len, dim = (
            self.whole(state, name, 1, most) for name, most in (("q_len", 2**20), ("head_dim", 512))
        )
        heads = self.whole(state, "heads", 1, 128)
        kv_len = self.whole(state, "kv_len", 1, 2**20) if state["kv_len"].strip() else q_len
        shapes = {"q": q_len, "k": kv_len, "v": kv_len}
        if state["engine"] not in COMPILED:
            self.add_error("engine", _("There is no such engine here; use one of the list."))
        if state["mask"] not in MASKS:
            self.add_error("mask", _("There is no such mask here; use one of the list."))
        return {
            "engine": state["engine"],
            "dtype": state["dtype"],
            "inputs": {
                name: {"seed": 0, "shape": [1, heads, length, dim]} for name, length in shapes.items()
            },
            "attention": MASKS.get(state["mask"], ("", {}))[1],
            "options": {name: literal(state[name]) for name in OPTIONS if state[name].strip()},
            "targets": [state["target"]],
        }

    def whole(self, state: Mapping[str, str], name: str, low: int, high: int) -> int:
        text = state[name].strip()
        if text.isascii() and text.isdigit() and len(text) < 10 and low <= int(text) <= high:
            return int(text)
        problem = _("“{text}” is no whole number from {low:,} to {high:,}.")
        self.add_error(name, problem.format(text=text[:20], low=low, high=high))
        return low

    def place(self, problems: Iterable[FieldProblem]) -> None:
        for problem in problems:
            names = [name for name, pointer in POINTERS.items() if problem.pointer.startswith(pointer)]
            self.add_error(names[0] if names else None, problem.detail)

    @property
    def others(self) -> Iterator[dict[str, Any]]:
        """The fields of the other configuration: each may be as in the first."""
        for name, field in self.fields.items():
            choices = getattr(field.widget, "choices", None)
            yield {
                "name": OTHER + name,
                "id": f"compile-{OTHER}{name}",
                "label": field.label,
                "value": self.other.get(name, ""),
                "choices": [(value, label) for value, label in choices if value] if choices else None,
            }

    @property
    def wrong_fields(self) -> list[forms.BoundField]:
        return [field for field in self if field.errors]

    def address(self) -> str:
        """The query string of this state."""
        return address_of(self.state | {OTHER + name: value for name, value in self.other.items()})


def literal(text: str) -> Any:
    """A number where it is one; else as typed, for whoever reads it to say what is wrong."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else text[:40]


def presets() -> list[tuple[Any, str]]:
    return [(name, "?" + urlencode(state)) for name, state in PRESETS]


def state_of(spec: Mapping[str, Any], targets: Iterable[str]) -> dict[str, str]:
    """The form's state that describes a compilation, as far as it has fields for it."""
    shape, keys = (
        spec["inputs"][name]["shape"] if name in spec["inputs"] else [8, 1024, 64] for name in "qk"
    )
    found = {
        "engine": spec["engine"],
        "dtype": spec["dtype"] if spec["dtype"] in DTYPES else USUAL["dtype"],
        "target": next(iter(targets), USUAL["target"]),
        "head_dim": str(shape[-1]),
        "heads": str(shape[-3] if len(shape) > 2 else 1),
        "q_len": str(shape[-2]),
        "kv_len": "" if keys[-2] == shape[-2] else str(keys[-2]),
        "mask": mask_of(spec["attention"]),
    }
    return found | {name: str(spec["options"].get(name) or "") for name in OPTIONS}


def query_of_run(run: Run) -> str:
    """The query string of the form for the kernel of a run; "" where the form has no such engine."""
    return address_of(state_of(run.spec, ())) if run.engine in COMPILED else ""


def mask_of(attention: Mapping[str, Any]) -> str:
    """The nearest of MASKS."""
    if attention.get("pattern"):
        return "pattern"
    if any(side is not None for side in attention.get("window") or ()):
        return "window"
    return "causal" if attention.get("is_causal") else "none"


def address_of(state: Mapping[str, str]) -> str:
    """The query string of a state, without what is as it would be anyway."""
    return "?" + urlencode({name: value for name, value in state.items() if value != USUAL.get(name, "")})
