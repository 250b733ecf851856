"""The form of the tile schedule without a run: a query string, read as a run's body is."""

import json
from collections.abc import Iterable
from typing import Any
from urllib.parse import urlencode

import numpy as np
from django import forms
from django.http import QueryDict
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from kernels.spec import FieldProblem, RunSpec, SpecError, parse_run
from lab.form.fields import choice_field, number_field, text_field
from lab.form.settings import ALIGNMENTS

USUAL = {
    "q_len": "512",
    "kv_len": "",
    "head_dim": "64",
    "heads": "16",
    "dtype": "float16",
    "alignment": "bottom_right",
    "left": "",
    "right": "",
    "pattern": "",
    "q_used": "",
    "kv_used": "",
    "block_m": "64",
    "block_n": "64",
}
MAX_PATTERN = 20_000  # characters
POINTERS = {
    "q_len": "/inputs/q",
    "kv_len": "/inputs/k",
    "left": "/attention/window",
    "pattern": "/attention/pattern",
    "q_used": "/inputs/q_lens",
    "kv_used": "/inputs/kv_lens",
    "block_m": "/options/block_m",
    "block_n": "/options/block_n",
    "dtype": "/dtype",
}
PRESETS: list[tuple[Any, dict[str, str]]] = [
    (gettext_lazy("everyone sees everyone"), {}),
    (gettext_lazy("causal"), {"causal": "1"}),
    (gettext_lazy("causal, 128 queries after 512 keys"), {"causal": "1", "q_len": "128", "kv_len": "512"}),
    (
        gettext_lazy("the same, aligned top left"),
        {"causal": "1", "q_len": "128", "kv_len": "512", "alignment": "top_left"},
    ),
    (gettext_lazy("sliding window of 128"), {"causal": "1", "left": "128"}),
    (
        gettext_lazy("chunks of 128"),
        {"causal": "1", "pattern": '{"type":"chunked","size":128}'},
    ),
    (
        gettext_lazy("Longformer"),
        {"pattern": '{"type":"longformer","window":128,"global":[0]}'},
    ),
    (
        gettext_lazy("BigBird"),
        {"pattern": '{"type":"bigbird","window":3,"global":1,"random":2,"seed":1,"block":32}'},
    ),
    (
        gettext_lazy("a stride of 2: gaps that save nothing"),
        {"pattern": '{"type":"dilated","window":64,"stride":2}'},
    ),
    (gettext_lazy("padding: 300 of 512 keys"), {"kv_used": "300"}),
]


class TilesForm(forms.Form):
    """Bound to a query string; what it leaves out has its default."""

    use_required_attribute = False

    q_len = number_field(gettext_lazy("Queries"))
    kv_len = number_field(gettext_lazy("Keys"), gettext_lazy("Empty: as many as queries."))
    block_m = number_field(gettext_lazy("Queries to a tile"))
    block_n = number_field(gettext_lazy("Keys to a tile"))
    causal = forms.BooleanField(required=False, label=gettext_lazy("Causal: no query sees a later key"))
    alignment = choice_field(gettext_lazy("Causal alignment"), ALIGNMENTS)
    left = number_field(gettext_lazy("Window, keys before"), gettext_lazy("Empty: unbounded."))
    right = number_field(gettext_lazy("Window, keys after"), gettext_lazy("Empty: unbounded."))
    pattern = text_field(
        gettext_lazy("Pattern, as in the REST API"),
        gettext_lazy('JSON, such as {"type": "chunked", "size": 128}.'),
        spellcheck="false",
        autocomplete="off",
    )
    q_used = number_field(gettext_lazy("Queries that are no padding"), gettext_lazy("Empty: all."))
    kv_used = number_field(gettext_lazy("Keys that are no padding"), gettext_lazy("Empty: all."))
    head_dim = number_field(gettext_lazy("Head dimension"))
    heads = number_field(gettext_lazy("Heads, of all batch rows together"))
    dtype = choice_field(
        gettext_lazy("Number format"), [(name, name) for name in ("float16", "bfloat16", "float32")]
    )

    def __init__(self, query: QueryDict) -> None:
        state = {name: query.get(name, usual) for name, usual in USUAL.items()}
        state |= {"causal": query.get("causal", "")}
        super().__init__(state, auto_id="tiles-%s")
        self.state = state
        self.is_valid()

    def whole(self, name: str, low: int, high: int) -> int | None:
        """The number of a box, None where it is empty; one that is none stays there with its problem."""
        text = self.state[name].strip()
        if not text:
            return None
        if text.isascii() and text.isdigit() and len(text) < 10 and low <= int(text) <= high:
            return int(text)
        problem = _("“{text}” is no whole number from {low:,} to {high:,}.")
        self.add_error(name, problem.format(text=text[:20], low=low, high=high))
        return None

    def body(self) -> dict[str, Any]:
        """The body of a run with these shapes; problems end up in the form."""
        q_len = self.needed("q_len", 1, 2**17)
        kv_len = self.whole("kv_len", 1, 2**17) or q_len
        dim = self.needed("head_dim", 1, 256)
        inputs: dict[str, Any] = {
            name: {"seed": 0, "shape": [1, 1, length, 1]}
            for name, length in (("q", q_len), ("k", kv_len), ("v", kv_len))
        }
        lengths = {
            "q_lens": self.whole("q_used", 0, q_len),
            "kv_lens": self.whole("kv_used", 0, kv_len),
        }
        self.used = {name: np.array([length]) for name, length in lengths.items() if length is not None}
        inputs |= {name: length.tolist() for name, length in self.used.items()}
        self.dim = dim
        self.head_count = self.needed("heads", 1, 2**16)
        attention: dict[str, Any] = {
            "is_causal": bool(self.state["causal"]),
            "causal_alignment": self.state["alignment"],
            "window": [self.whole("left", 0, 2**17), self.whole("right", 0, 2**17)],
        }
        if self.state["pattern"].strip():
            attention["pattern"] = self.read_pattern()
        return {
            "engine": "flash",
            "dtype": self.state["dtype"],
            "inputs": inputs,
            "attention": attention,
            "options": {name: self.needed(name, 1, 2**17) for name in ("block_m", "block_n")},
        }

    def needed(self, name: str, low: int, high: int) -> int:
        """`whole`, of a box whose default stands in for what is empty or wrong."""
        return self.whole(name, low, high) or int(USUAL[name])

    def read_pattern(self) -> Any:
        text, advice = self.state["pattern"], _('write an object such as {"type": "chunked", "size": 128}.')
        if len(text) > MAX_PATTERN:
            problem = _("{count:,} characters, and up to {most:,} are read: ").format(
                count=len(text), most=MAX_PATTERN
            )
            self.add_error("pattern", problem + advice)
            return None
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            self.add_error("pattern", _("This is no JSON: ") + advice)
            return None

    def spec(self) -> RunSpec | None:
        """None where something is wrong, which the form then says."""
        body = self.body()
        if self.errors:
            return None
        try:
            return parse_run(body).spec
        except SpecError as error:
            self.place(error.problems)
            return None

    def place(self, problems: Iterable[FieldProblem]) -> None:
        for problem in problems:
            names = [name for name, pointer in POINTERS.items() if problem.pointer.startswith(pointer)]
            self.add_error(names[0] if names else None, problem.detail)

    @property
    def is_unusual(self) -> bool:
        """Whether something is said in the fields that are folded."""
        folded = ("alignment", "pattern", "q_used", "kv_used", "head_dim", "heads", "dtype")
        return any(self.state[name] != USUAL[name] for name in folded)

    @property
    def wrong_fields(self) -> list[forms.BoundField]:
        return [field for field in self if field.errors]


def presets() -> list[tuple[Any, str]]:
    return [(name, "?" + urlencode(state)) for name, state in PRESETS]
