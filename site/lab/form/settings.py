"""The fields of the form that are settings: where each goes in the body of a run, and what its text means.

A pattern and a scaling of RoPE have the fields that `kernels.spec` says for their type, so that a type which
is added there has its fields here. To add a setting: an entry, its words in `help`, its group in `groups`.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from django.utils.translation import gettext_lazy as _

from kernels.registry import Engine
from kernels.spec.kinds import BOOLEAN, LIST, Field
from kernels.spec.patterns import PATTERNS
from kernels.spec.rope import ROPE_SCALINGS
from lab.form.texts import listed, literal, number_or_list

Read = Callable[[str], Any]
Choices = tuple[tuple[str, Any], ...]

ALIGNMENTS: Choices = (
    ("bottom_right", _("bottom right: the last query sees every key")),
    ("top_left", _("top left: the first query sees the first key")),
)
DTYPES: Choices = tuple((name, name) for name in ("float32", "float16", "bfloat16", "float64"))
DEVICES: Choices = (("auto", _("automatic")), ("cpu", "CPU"), ("cuda", "CUDA"))
PATTERN_NAMES = {
    "prefix": _("prefix: all see the first tokens"),
    "document": _("document: only one's own document"),
    "chunked": _("chunked: only one's own chunk"),
    "dilated": _("dilated: a window with gaps"),
    "longformer": _("longformer: a window, and tokens that see all"),
    "bigbird": _("bigbird: a window, first and random blocks"),
    "block": _("block: a layout of blocks"),
    "neighborhood": _("neighborhood: pixels near in an image"),
}
SCALING_NAMES = {
    "linear": _("linear: positions divided by a factor"),
    "ntk": _("ntk: a larger base"),
    "dynamic": _("dynamic: ntk by the length of the text"),
    "yarn": _("yarn: slow pairs stretched, fast ones kept"),
    "llama3": _("llama3: as Llama 3.1"),
    "longrope": _("longrope: a factor for each pair"),
}
# What a type begins with, where its fields ask for something that does not depend on the inputs.
BEGINNINGS = {
    "pattern": {
        "prefix": {"len": "1"},
        "chunked": {"size": "16"},
        "dilated": {"window": "2", "stride": "2"},
        "longformer": {"window": "4", "global": "0"},
        "bigbird": {"window": "3", "global": "1", "random": "1", "seed": "0", "block": "16"},
    },
    "scaling": {
        **{kind: {"factor": "2"} for kind in ("linear", "ntk")},
        "dynamic": {"factor": "2", "original_max_position_embeddings": "2048"},
        "yarn": {"factor": "4", "original_max_position_embeddings": "4096"},
        "llama3": {"factor": "8", "low_freq_factor": "1", "high_freq_factor": "4",
                   "original_max_position_embeddings": "8192"},
    },
}  # fmt: skip
PAIRINGS: Choices = (
    ("", _("none")),
    ("half", _("halves: d with d + dim/2")),
    ("interleaved", _("neighbours: 2d with 2d + 1")),
)


def kinds(names: Mapping[str, Any], known: Mapping[str, Any]) -> Choices:
    """The types that the spec knows, by their names here where they have one."""
    return (("", _("none")), *((kind, names.get(kind, kind)) for kind in known))


@dataclass(frozen=True)
class Setting:
    """A control, and the field of the body that it sets."""

    name: str
    pointer: str
    read: Read = literal
    features: tuple[str, ...] = ()  # of which an engine must have one
    choices: Choices = ()
    is_check: bool = False
    brings: bool = False  # whether other fields come and go with what is chosen
    words: str = ""  # its help, where the spec has it

    def suits(self, engine: Engine) -> bool:
        return not self.features or not engine.features.isdisjoint(self.features)


def of_rope(name: str, **more: Any) -> Setting:
    return Setting(f"rope_{name}", f"/attention/rope/{name}", features=("rope",), **more)


SETTINGS: tuple[Setting, ...] = (
    Setting("engine", "/engine"),
    Setting("device", "/device", choices=DEVICES),
    Setting("dtype", "/dtype", choices=DTYPES),
    Setting("causal", "/attention/is_causal", features=("causal",), is_check=True),
    Setting("alignment", "/attention/causal_alignment", features=("causal",), choices=ALIGNMENTS),
    Setting("window_left", "/attention/window/0", features=("window",)),
    Setting("window_right", "/attention/window/1", features=("window",)),
    Setting(
        "pattern", "/attention/pattern/type", features=("pattern",), choices=kinds(PATTERN_NAMES, PATTERNS),
        brings=True,
    ),
    Setting("q_positions", "/attention/q_positions", number_or_list, ("positions", "position_offset")),
    Setting("kv_positions", "/attention/kv_positions", number_or_list, ("positions", "position_offset")),
    Setting("scale", "/attention/scale", features=("scale",)),
    Setting("softcap", "/attention/softcap", features=("softcap",)),
    Setting("alibi_slopes", "/attention/alibi_slopes", listed, ("alibi",)),
    Setting("sinks", "/attention/sinks", listed, ("sinks",)),
    Setting("rope", "/attention/rope/style", features=("rope",), choices=PAIRINGS, brings=True),
    of_rope("theta"),
    of_rope("dim"),
    of_rope("dim_offset"),
    of_rope("positions", read=number_or_list),
    Setting(
        "rope_scaling", "/attention/rope/scaling/type", features=("rope",),
        choices=kinds(SCALING_NAMES, ROPE_SCALINGS), brings=True,
    ),
    Setting("num_heads", "/attention/num_heads", features=("packed",)),
    Setting("num_kv_heads", "/attention/num_kv_heads", features=("packed",)),
    Setting("warmup", "/timing/warmup"),
    Setting("iters", "/timing/iters"),
)  # fmt: skip
# Where the value of each goes in the body, where it is one: not those of a window, rope and pattern.
POINTERS = {setting.name: setting.pointer for setting in SETTINGS if setting.pointer.count("/") < 3}
NEEDS_ROPE = ("rope_theta", "rope_dim", "rope_dim_offset", "rope_positions", "rope_scaling")


def chosen(state: Mapping[str, Any]) -> Iterator[Setting]:
    """All settings of a form in some state: those that always are, and those of a chosen type."""
    yield from SETTINGS
    yield from of_type("pattern", PATTERNS, str(state.get("pattern", "")), "/attention/pattern")
    yield from of_type(
        "scaling", ROPE_SCALINGS, str(state.get("rope_scaling", "")), "/attention/rope/scaling"
    )


def beginnings(state: Mapping[str, Any]) -> dict[str, str]:
    """What the fields of the chosen types hold at first."""
    return {
        f"{prefix}_{name}": text
        for prefix, control in (("pattern", "pattern"), ("scaling", "rope_scaling"))
        for name, text in BEGINNINGS[prefix].get(str(state.get(control, "")), {}).items()
    }


def of_type(
    prefix: str, known: Mapping[str, Mapping[str, Field]], kind: str, pointer: str
) -> Iterator[Setting]:
    """The settings of an object whose type decides its fields."""
    for name, field in known.get(kind, {}).items():
        yield Setting(
            f"{prefix}_{name}",
            f"{pointer}/{name}",
            features=("pattern" if prefix == "pattern" else "rope",),
            read=of_boolean if field.wanted == BOOLEAN else listed if field.wanted == LIST else literal,
            choices=(("", "–"), ("true", _("yes")), ("false", _("no"))) if field.wanted == BOOLEAN else (),
            words=described(field),
        )


def described(field: Field) -> str:
    """What the spec says of a field, as a sentence."""
    text = field.meaning.removeprefix("it ")
    return text[:1].upper() + text[1:] + ("" if field.is_required else " " + str(_("(optional)"))) + "."


def of_boolean(text: str) -> Any:
    return {"": None, "true": True, "false": False}.get(text, text)


def put(body: dict[str, Any], pointer: str, value: Any) -> None:
    """Set a value in nested objects, making those that are missing; a number in a pointer is a place in a
    pair."""
    *parents, last = pointer.strip("/").split("/")
    if last.isdigit():
        place: Any = body
        for parent in parents[:-1]:
            place = place.setdefault(parent, {})
        place.setdefault(parents[-1], [None, None])[int(last)] = value
        return
    for parent in parents:
        body = body.setdefault(parent, {})
    body[last] = value


def get(body: Any, pointer: str) -> Any:
    """The value at a pointer; None where there is none."""
    for part in pointer.strip("/").split("/"):
        if isinstance(body, list):
            body = body[int(part)] if part.isdigit() and int(part) < len(body) else None
        else:
            body = body.get(part) if isinstance(body, Mapping) else None
    return body
