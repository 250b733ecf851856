"""Engines: each module has ``prepare(spec, arrays, device) -> Prepared``.

``arrays`` are numpy, canonical ``[batch, heads, len, dim]`` and already rounded to the spec's dtype
(bfloat16 as float32 holding bfloat16 values). ``prepare`` moves them to where they are computed on;
``compute`` is the part that is timed; ``collect`` brings its results back as numpy, canonical again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


class CannotRunError(RuntimeError):
    """This process or machine cannot run what was asked for; the message says what is missing."""


@dataclass(frozen=True)
class Prepared:
    """One computation, ready to be run any number of times."""

    compute: Callable[[], Mapping[str, Any]]
    collect: Callable[[Mapping[str, Any]], dict[str, Array]]
    notes: tuple[str, ...] = ()
