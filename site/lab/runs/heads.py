"""One head of a run."""

from dataclasses import dataclass

from kernels.registry import ENGINES, SOFTMAX
from kernels.spec import RunSpec
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
