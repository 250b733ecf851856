"""Arrays beside Q, K and V, or in their place: not sent, drawn from the seed, filled, typed, or in a file.

What is drawn or filled has the shape that the other inputs ask for. An axis that all may share is 1 then: one
set of parameters for all heads, one step size for all channels. Other shapes can be typed as the REST API has
them: `{"seed": 7, "shape": [1, 4, 64], "distribution": "normal"}`.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from kernels.registry import Engine
from kernels.spec.families import PARAMETERS, PLAIN, REPLACING, Family
from lab import matrices
from lab.form import texts

HIDDEN = 16  # hidden numbers of scores and windows, whose count is nobody's but theirs
MAX_FILLED = 65_536  # numbers that are written out because one of them is meant for all
WAYS = {
    "": gettext_lazy("not sent"),
    "seed": gettext_lazy("drawn from the seed"),
    "fill": gettext_lazy("one number everywhere"),
    "text": gettext_lazy("typed or pasted"),
    "file": gettext_lazy("from an uploaded file"),
}
LENGTHS = ("q_lens", "kv_lens")
WAYS_OF = {
    **dict.fromkeys(LENGTHS, ("", "text")),
    "block_table": ("", "text", "file"),
    "attn_mask": ("", "text", "seed", "file"),
}
# Numbers drawn around 0 would make the state of a scan grow: steps and rates are filled at first.
FILLED = {"delta": "0.1", "a": "-1"}
# The field that has the length of an axis; an axis that is not here has a field of its name.
AXIS_FIELDS = {"len": "q_len", "groups": "kv_heads"}
TWINS = {"kv_len": "q_len", "kv_heads": "heads", "groups": "heads"}  # whose length an empty one has
RANKS = {"": 4, "heads": 3, "plain": 2, "packed": 3}  # of Q by the layout that was chosen


def how(name: str) -> str:
    """The control that says where an array comes from."""
    return f"how_{name}"


def box(name: str) -> str:
    """The control with its numbers, its number, or its name in a file."""
    return f"in_{name}"


def offered(engine: Engine, family: Family) -> list[str]:
    """The arrays that an engine takes beside q, k and v, or in their place."""
    known = engine.describe()["inputs_schema"]["properties"]
    elsewhere = {name for other in (PLAIN, *REPLACING) if other is not family for name in other.axes}
    beside = [name for name in known if name not in elsewhere - set(family.axes)]
    return [name for name in beside if not (family is PLAIN and name in PLAIN.required)]


def required(engine: Engine, family: Family, taken: tuple[str, ...]) -> set[str]:
    """What of these a run cannot do without."""
    return set(family.required) | (set(taken) if engine.takes == family.required else set())


def ways(name: str, *, is_required: bool) -> tuple[str, ...]:
    """How an array may come."""
    return tuple(way for way in WAYS_OF.get(name, tuple(WAYS)) if way or not is_required)


def usual(name: str) -> dict[str, str]:
    """The controls of an array that cannot be left out, unless somebody says otherwise."""
    filled = FILLED.get(name)
    return {how(name): "fill" if filled else "seed", box(name): filled or ""}


@dataclass(frozen=True)
class Surroundings:
    """What an array depends on. lengths: of each axis, as far as known; a text where somebody typed one."""

    family: Family
    lengths: Mapping[str, Any]
    rank: int  # of the first array of the family
    past: Any
    seed: Any
    distribution: str
    is_packed: bool = False

    def axes(self, name: str) -> list[str] | None:
        """The axes of an array, in order; 1 for an axis that all share. None: it has none that are known."""
        beside = {
            "past_key": ["batch", "kv_heads", "past", "head_dim"],
            "past_value": ["batch", "kv_heads", "past", "v_head_dim"],
            "dout": ["batch", "heads", "q_len", "v_head_dim"],
            "attn_mask": ["q_len", "all_kv_len"],
        }.get(name)
        if name == "attn_mask":
            return beside
        if beside:
            return (
                ["batch", "q_len", "width"]
                if self.is_packed and name == "dout"
                else beside[-self.full_rank :]
            )
        if name not in self.family.axes:
            return None
        shared = self.family.shared.get(name, ())
        return ["1" if axis in shared else axis for axis in self.family.axes_of(name, self.full_rank)]

    @property
    def full_rank(self) -> int:
        return 4 if self.is_packed else self.rank

    def length(self, axis: str) -> Any:
        if axis == "1":
            return 1
        if axis == "past":
            return self.past
        if axis.startswith("hidden"):
            return HIDDEN
        return self.lengths.get(axis)

    def shape(self, name: str) -> list[Any] | None:
        """The shape of an array that is drawn; None where it cannot be known."""
        axes = self.axes(name)
        found = [self.length(axis) for axis in axes or ()]
        return found if found and None not in found else None

    def drawn(self, name: str) -> dict[str, Any] | None:
        """The ARRAY of the contract; None where its shape or the seed is unknown: then something else has to
        be put right."""
        shape = self.shape(name)
        is_plain = self.family is PLAIN
        if shape is None or (is_plain and (type(self.seed) is not int or not self.lengths)):
            return None
        distribution = "normal" if is_plain else self.distribution
        return {"seed": self.seed, "shape": shape, "distribution": distribution}

    def filled(self, name: str, text: str) -> Any:
        """One number everywhere: lists, or an object where there is none, since lists cannot say how long the
        other axes are. None where the shape is unknown. Raises MatrixError."""
        shape = self.shape(name)
        if shape is None or not all(type(size) is int and size >= 0 for size in shape):
            return None
        count = math.prod(shape)
        if count > MAX_FILLED:
            detail = _(
                "{shape} are {count:,} numbers, and at most {limit:,} are written out: draw it instead."
            )
            said = detail.format(shape=matrices.times(tuple(shape)), count=count, limit=MAX_FILLED)
            raise matrices.MatrixError(said, text, 0)
        value = texts.literal(text)
        if not isinstance(value, int | float):
            raise matrices.MatrixError(_("“{text}” is not a number.").format(text=text[:24]), text, 0)
        if not count:
            return {"b64": "", "dtype": "float32", "shape": shape}
        return np.full(shape, value, dtype=object).tolist()


def read(name: str, way: str, text: str, around: Surroundings, held_by: Callable[[str], str | None]) -> Any:
    """The ARRAY that the controls of a name say, None for none. `held_by`: the upload that has an array of
    some name. Raises MatrixError."""
    if way == "seed":
        return around.drawn(name)
    if way == "fill":
        return around.filled(name, text)
    if way == "file":
        upload = held_by(text or name)
        if upload is None:
            detail = _("no file has been sent yet: choose “Upload a file” above, then come back here.")
            raise matrices.MatrixError(detail, text, 0)
        return {"upload": upload, "name": text or name}
    if way != "text":
        return None
    if name in LENGTHS:
        return texts.listed(text) if text else None
    return texts.array(text, booleans=name == "attn_mask")


def plain_surroundings(
    inputs: Mapping[str, Any],
    shapes: Mapping[str, list[int] | None],
    heads: tuple[Any, Any],
    *,
    past: Any,
    seed: Any,
) -> Surroundings:
    """Of q, k and v as they are given. heads: num_heads and num_kv_heads, of packed rows."""
    lengths: dict[str, Any] = {}
    rank = len(shapes.get("q") or ())
    packed = type(heads[0]) is int and heads[0] > 0
    canonical = {
        name: as_four(shape, heads[0 if name == "q" else 1] or heads[0], is_packed=packed)
        for name, shape in shapes.items()
        if shape
    }
    axes = {
        "q": ("batch", "heads", "q_len", "head_dim"),
        "k": ("batch", "kv_heads", "kv_len", "head_dim"),
        "v": ("batch", "kv_heads", "kv_len", "v_head_dim"),
    }
    for name, sizes in canonical.items():
        for axis, size in zip(axes[name], sizes, strict=True):
            lengths.setdefault(axis, size)
    if "head_dim" in lengths:
        lengths["2·head_dim"] = 2 * lengths["head_dim"]
    if "heads" in lengths and "v_head_dim" in lengths:
        lengths["width"] = lengths["heads"] * lengths["v_head_dim"]
    if "kv_len" in lengths:
        given = shape_of(inputs.get("past_key"))
        lengths["all_kv_len"] = lengths["kv_len"] + (given[-2] if given and len(given) > 1 else 0)
    known = rank if 2 <= rank <= 4 else 0
    return Surroundings(PLAIN, lengths if known else {}, known or 4, past, seed, "normal", packed)


def as_four(shape: list[int], heads: Any, *, is_packed: bool) -> tuple[int, int, int, int]:
    """[batch, heads, length, dimension] of an array as it was sent."""
    if is_packed and len(shape) == 3 and type(heads) is int and heads > 0:
        return shape[0], heads, shape[1], shape[2] // heads
    padded = [1] * (4 - len(shape)) + list(shape)
    return padded[0], padded[1], padded[2], padded[3]


def shape_of(array: Any) -> list[int] | None:
    """Of an ARRAY of the contract; None where it is none, or in a file."""
    if isinstance(array, Mapping):
        shape = array.get("shape")
        return shape if isinstance(shape, list) and all(type(size) is int for size in shape) else None
    shape = []
    while isinstance(array, list):
        shape.append(len(array))
        array = array[0] if array else None
    return shape if 1 <= len(shape) <= 4 else None


def is_parameter(name: str) -> bool:
    return name in PARAMETERS
