"""One head of a run."""

from dataclasses import dataclass

import numpy as np

from kernels.registry import ENGINES, SOFTMAX
from kernels.spec import RunSpec
from lab import arrays
from workers import artifacts
from workers.models import Run

HeadKey = tuple[str, int, int, int]  # run, attempt, batch row, head


@dataclass(frozen=True)
class Head:
    """Which query head of which batch row of a run."""

    run: Run
    spec: RunSpec
    batch: int
    head: int

    @property
    def key(self) -> HeadKey:
        """What it is kept by: a finished attempt never changes."""
        return self.run.id, self.run.attempt, self.batch, self.head

    @property
    def is_there(self) -> bool:
        return bool(self.spec.batch * self.spec.num_heads)

    @property
    def is_softmax(self) -> bool:
        engine = ENGINES.get(self.run.engine)
        return engine is not None and engine.computes == SOFTMAX

    def returned(self, name: str) -> np.ndarray | None:
        """What the engine returned by that name, [rows, columns] (of what is flat: [rows]), as it was stored;
        None where it did not, or the file is gone. Other heads are not read, unless rows hold all of them."""
        info = self.run.array_info.get(name)
        if info is None or not self.is_there:
            return None
        if name == "out" and self.spec.is_packed:
            whole = artifacts.load_result(self.run, name)
            return None if whole is None else arrays.one(whole, name, self.spec, self.batch, self.head)
        leading = info["shape"][: -1 if name in arrays.FLAT else -2]
        # Query heads that share a key head share what is of a key head.
        shared = [self.head * heads // self.spec.num_heads for heads in leading[-1:]]
        return artifacts.load_part(self.run, name, *([self.batch] if len(leading) > 1 else []), *shared)
