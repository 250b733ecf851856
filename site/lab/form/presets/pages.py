"""The page of presets: examples, traps, and the shapes of models."""

from collections.abc import Iterator

from lab.form.presets import Preset
from lab.form.presets.examples import EXAMPLES
from lab.form.presets.models import shapes
from lab.form.presets.traps import TRAPS


def every() -> Iterator[Preset]:
    """All of them."""
    yield from EXAMPLES
    yield from TRAPS
    yield from (shape.preset for shape in shapes())
