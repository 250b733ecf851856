"""Read a Hugging Face ``config.json`` that anybody may have pasted: by any of the names that a field goes by,
keeping account of what was understood, what was assumed in its place, and what was ignored.

A reader never raises. What is missing or wrong is noted and a harmless value returned, so that one answer
names all of it. A field has a path: ``hidden_size``, ``attn_config.kv_n_heads``, ``text_config.hidden_size``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kernels.sizing.names import HARMLESS, NAMES, NESTED_MODELS, OUTER
from kernels.spec.problems import MALFORMED, Problems, join, nearest, one_of, printable, show
from kernels.spec.reader import is_integer

MAX_FIELDS = 1_000
MAX_WIDTH = 2**20  # of a vector; the largest models have a sixtieth of it
MAX_VOCAB = 2**24
MAX_LAYERS = 1_024
OF_THE_TYPE = "what this model type has unless its config says otherwise"


@dataclass(frozen=True)
class Assumption:
    """A value that the config does not say, and why this one."""

    field: str
    value: int | bool | str
    why: str


@dataclass
class ConfigFields:
    """The fields of one config at ``pointer``; ``defaults`` are those of its model type, by our names."""

    config: Mapping[str, Any]
    pointer: str
    problems: Problems
    defaults: Mapping[str, int | bool | str] = field(default_factory=dict)
    is_known: bool = True  # whether the model type is

    def __post_init__(self) -> None:
        """Find the language model where the config describes several."""
        self.understood: dict[str, None] = {}  # paths, in the order of reading
        self.assumed: dict[Assumption, None] = {}
        self.missing = Problems()  # what the weights need and the cache does not
        self.notes: list[str] = []
        self.inside = next((name for name in NESTED_MODELS if isinstance(self.config.get(name), dict)), "")
        self.scope: Mapping[str, Any] = self.config[self.inside] if self.inside else self.config

    # --- Looking ---------------------------------------------------------------------------------

    def names(self, name: str) -> tuple[str, ...]:
        """What configs call the field that we call ``name``; itself if we have no name of our own."""
        return NAMES.get(name, (name,))

    def at(self, path: str) -> str:
        """Pointer of a field."""
        return join(self.pointer, *path.split("."))

    def path(self, name: str) -> str:
        """Where a field is, or the first place where it would be looked for."""
        found = self.find(name)[0]
        if found:
            return found
        return f"{self.inside}.{self.names(name)[0]}" if self.inside else self.names(name)[0]

    def has(self, name: str) -> bool:
        """Whether a field has a value: its own, or that of its model type."""
        found, value = self.find(name)
        return value is not None or (not found and name in self.defaults)

    def says_null(self, name: str) -> bool:
        """Whether a field is there and null, which is more than not being there."""
        found, value = self.find(name)
        return bool(found) and value is None

    def find(self, name: str) -> tuple[str, Any]:
        """Path and value of a field under whichever of its names it has; ``("", None)`` if it is not there.

        Two names with two values contradict each other, which is noted.
        """
        there = [place for known in self.names(name) for place in self._places(known)]
        self.understood.update(dict.fromkeys(path for path, _ in there))
        said = [(path, value) for path, value in there if value is not None]
        if not said:
            return there[0] if there else ("", None)
        first, value = said[0]
        for other, contrary in said[1:]:
            if contrary != value and not self.problems.under(self.at(other)):
                detail = (
                    f"{other} says {show(contrary)} and {first} says {show(value)}, but both name one thing: "
                    "leave one of them out"
                )
                self.problems.add(self.at(other), "contradiction", detail)
        return first, value

    def _places(self, name: str) -> list[tuple[str, Any]]:
        *parents, last = name.split(".")
        inner: Any = self.scope
        for parent in parents:
            inner = inner.get(parent) if isinstance(inner, Mapping) else None
        if isinstance(inner, Mapping) and last in inner:
            return [(f"{self.inside}.{name}" if self.inside else name, inner[last])]
        return [(name, self.config[name])] if self.inside and name in OUTER and name in self.config else []

    # --- Reading ---------------------------------------------------------------------------------

    def integer(
        self, name: str, *, low: int = 1, high: int = MAX_WIDTH, default: int | None = None, why: str = ""
    ) -> int:
        """A whole number that must be there, unless there is a default for it; ``low`` where it is wrong."""
        value = self.integer_or_none(name, low=low, high=high)
        if value is not None:
            return value
        if self.problems.under(self.at(self.path(name))):
            return low
        if default is not None:
            self.assume(name, default, why)
            return default
        self.require(name, self.problems)
        return low

    def integer_or_none(self, name: str, *, low: int = 1, high: int = MAX_WIDTH) -> int | None:
        """A whole number within its limits; that of the model type where there is none; else None."""
        path, value = self.find(name)
        if not path and name in self.defaults:
            self.assume(name, self.defaults[name], OF_THE_TYPE)
            return int(self.defaults[name])
        if value is None or self.problems.under(self.at(path)):
            return None
        if not is_integer(value):
            self.wrong_type(path, "an integer", value)
            return None
        if not low <= value <= high:
            detail = f"{path} must be between {low:,} and {high:,}, not {show(value)}"
            self.problems.add(self.at(path), "out-of-range", detail)
            return None
        return int(value)

    def integer_for_weights(self, name: str, *, high: int = MAX_WIDTH) -> int:
        """A whole number that a cache can do without; 1, noted as missing, where it is not there."""
        value = self.integer_or_none(name, high=high)
        if value is None:
            self.require(name, self.missing)
        return value or 1

    def boolean(self, name: str, default: bool) -> bool:
        """True or false; null is the default."""
        path, value = self.find(name)
        if not path:
            return bool(self.defaults.get(name, default))
        if value is None or isinstance(value, bool):
            return default if value is None else value
        self.wrong_type(path, "true or false", value)
        return default

    def word(self, name: str, default: str = "") -> str:
        """A string; null is the default."""
        path, value = self.find(name)
        if value is None or isinstance(value, str):
            return default if value is None else value
        self.wrong_type(path, "a string", value)
        return default

    def entries(self, name: str, count: int | None = None) -> list[Any] | None:
        """A list with ``count`` entries, one to a layer; None if it is not there or empty."""
        path, value = self.find(name)
        if value is None or value == []:
            return None
        if not isinstance(value, list):
            self.wrong_type(path, "a list", value)
            return None
        if count is not None and len(value) != count:
            detail = (
                f"{path} has {len(value)} entries, but {self.path('layers')} says {count} layers: one of the "
                "two is wrong"
            )
            self.problems.add(self.at(path), "contradiction", detail)
            return None
        return value

    def indices(self, name: str) -> frozenset[int] | None:
        """A list of whole numbers as a set; None if it is not there or empty."""
        listed = self.entries(name)
        for index, item in enumerate(listed or ()):
            if not is_integer(item):
                self.wrong_type(f"{self.path(name)}.{index}", "an integer", item)
                return None
        return None if listed is None else frozenset(listed)

    # --- Account ---------------------------------------------------------------------------------

    def assume(self, name: str, value: int | bool | str, why: str) -> None:
        """Say that a value which is not in the config was taken to be this one."""
        self.assumed[Assumption(self.path(name), value, why)] = None

    def wrong_type(self, path: str, wanted: str, value: object) -> None:
        """Say that a field cannot be read."""
        if not self.problems.under(self.at(path)):
            detail = f"{path} must be {wanted}, not {show(value)}"
            self.problems.add(self.at(path), "wrong-type", detail, MALFORMED)

    def require(self, name: str, problems: Problems) -> None:
        """Say that a field is missing that cannot be done without."""
        first, *others = self.names(name)
        also = f" (or {one_of(others)})" if others else ""
        near = nearest(first, [str(key) for key in self.scope if key not in self.names(name)])
        hint = f"; {near}" if near.startswith("did you mean") else ""
        detail = f"the config does not say {first}{also}, which cannot be guessed: add it{hint}"
        if not problems.under(self.at(self.path(name))):
            problems.add(self.at(self.path(name)), "required", detail)

    def contradiction(self, name: str, detail: str) -> None:
        """Say that a field cannot be true together with another."""
        pointer = self.at(self.path(name))
        if not self.problems.under(pointer):
            self.problems.add(pointer, "contradiction", detail)

    def ignored(self) -> list[str]:
        """Paths of all fields that had no part in the answer."""
        opened = {path.rpartition(".")[0] for path in self.understood if "." in path}

        def leaves(fields: Mapping[str, Any], prefix: str) -> list[str]:
            found = []
            for key, value in fields.items():
                path = prefix + key
                if path in opened and isinstance(value, Mapping):
                    found += leaves(value, path + ".")
                elif path not in self.understood:
                    found.append(path)
            return found

        return [printable(path[:200]) for path in leaves(self.config, "")]

    def unknown(self, ignored: Sequence[str]) -> list[str]:
        """Those of the ignored fields that might matter for all we know."""
        ours = {known.rsplit(".", 1)[-1] for names in NAMES.values() for known in names}
        return [path for path in ignored if path.rsplit(".", 1)[-1] not in HARMLESS | ours]
