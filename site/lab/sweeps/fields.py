"""The fields of a sweep's form, and what each varies.

Those that the lab's form has as well have its names, so that its link is a sweep of one point: a field with
one value sets it, a field with several varies it.
"""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from django.utils.translation import gettext_lazy as _

from kernels.arrays import DISTRIBUTIONS
from kernels.registry import Engine
from lab.form import offers, options
from lab.form.offering import DISTRIBUTION_NAMES
from lab.form.options import literal
from lab.form.settings import DTYPES
from lab.sweeps import ranges

OPTION = options.PREFIX
NULL = "null"  # of a box; an empty one could not be ticked


@dataclass(frozen=True)
class Field:
    """`varies`: its name in `vary` of the REST body. `choices`: (value, words) of boxes to tick; None: a text
    of values. `is_own`: the lab's form has none such, so that one value is a sweep's as well."""

    name: str
    varies: str
    label: Any
    help: Any = ""
    choices: tuple[tuple[str, Any], ...] | None = None
    read: Callable[[str], Any] = literal
    is_own: bool = False


@dataclass
class Filled:
    """A field and what is in it."""

    field: Field
    texts: list[str]  # of the boxes that are ticked, or the one text
    values: list[Any] = dataclasses.field(default_factory=list)
    errors: list[str] = dataclasses.field(default_factory=list)

    @property
    def text(self) -> str:
        return self.texts[0] if self.texts else ""

    @property
    def is_varied(self) -> bool:
        return len(self.values) > 1 or (self.field.is_own and bool(self.values))

    @property
    def auto_id(self) -> str:
        return f"sweep-{self.field.name}"

    @property
    def boxes(self) -> list[tuple[str, Any, bool]]:
        """What can be ticked, and what was though it is none of it: to be put right."""
        known = dict(self.field.choices or ())
        return [(value, words, value in self.texts) for value, words in known.items()] + [
            (text, text, True) for text in self.texts if text not in known
        ]

    @property
    def found(self) -> str:
        """The values, for whoever wrote a range."""
        return ", ".join(map(ranges.text_of, self.values))


def yes_or_no(word: str) -> Any:
    return {"yes": True, "no": False}.get(word, word)


def option_value(schema: Mapping[str, Any], word: str) -> Any:
    """What a word or a box says of an option; "true" is what links of the lab's form have for yes."""
    if word in (NULL, "none"):
        return None
    return options.value_of(schema, {"yes": "true", "no": "false"}.get(word, word))


LENGTHS = (
    Field("q_len", "len", _("Length"), _("Of the queries; and of the keys, unless theirs is given.")),
    Field("kv_len", "kv_len", _("Keys"), _("Empty: as many as queries.")),
)
HEADS = (
    Field("heads", "num_heads", _("Query heads")),
    Field("kv_heads", "num_kv_heads", _("Key/value heads"), _("Empty: as many as query heads.")),
    Field("head_dim", "head_dim", _("Head dimension")),
    Field("v_head_dim", "v_head_dim", _("Value dimension"), _("Empty: the head dimension.")),
    Field("batch", "batch", _("Batch")),
)
WINDOW = Field(
    "vary_window",
    "attention/window",
    _("Window"),
    _("63: that many keys before each query, and its own. 63:15: some after it too. none: all keys."),
    read=ranges.window,
    is_own=True,
)
CAUSAL = Field(
    "causal",
    "attention/is_causal",
    _("Causal"),
    choices=(("no", _("no")), ("yes", _("yes"))),
    read=yes_or_no,
)
SCALE = Field("scale", "attention/scale", _("Scale"), _("Empty: 1/√d."))
SEED = Field("seed", "seed", _("Seed"), _("Several: the same with other numbers."))
DTYPE = Field("dtype", "dtype", _("Number format"), choices=DTYPES, read=str)
DISTRIBUTION = Field(
    "distribution",
    "distribution",
    _("Distribution"),
    choices=tuple((name, DISTRIBUTION_NAMES[name]) for name in DISTRIBUTIONS),
    read=str,
)
WARMUP = Field("warmup", "timing/warmup", _("Warm-up runs"))
ITERS = Field("iters", "timing/iters", _("Timed runs"))


def engine_field() -> Field:
    choices = tuple((name, engine.title) for name, engine in offers.engines().items())
    return Field("engine", "engine", _("Engine"), choices=choices, read=str)


def option_fields(engine: Engine) -> tuple[Field, ...]:
    """Of what an engine declares: boxes where it lists the values, else a text."""
    return tuple(option_field(name, schema) for name, schema in engine.options.items())


def option_field(name: str, schema: Mapping[str, Any]) -> Field:
    made = options.field(name, schema, options.text_of(schema["default"]))
    listed = options.choices(schema)
    return Field(
        options.control(name),
        f"options/{name}",
        made.label,
        made.help_text,
        # An empty box is no tick: what is null is called so in boxes.
        None if listed is None else tuple((box_text(value), box_text(value)) for value in listed),
        partial(option_value, schema),
    )


def box_text(value: Any) -> str:
    """A value as its box has it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return NULL if value is None else str(value)


def known(engine: Engine) -> tuple[Field, ...]:
    """All fields, with the options of an engine."""
    return (
        *LENGTHS, *HEADS, engine_field(), DTYPE, WINDOW, CAUSAL, SCALE, SEED, DISTRIBUTION, WARMUP, ITERS,
        *option_fields(engine),
    )  # fmt: skip
