"""The GPUs that are known by name: ``gpus.csv``, with a source to each row.

Memory is what is sold, taken as 10⁹ bytes to the gigabyte: drivers show up to 7% more, of which they keep
some for themselves. TFLOP/s are of dense matrices with float32 accumulation, whatever sparse figures are
printed.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from kernels.sizing.storage import GB
from kernels.spec.problems import NOT_COMPUTABLE, FieldProblem, SpecError, nearest, show

TABLE = Path(__file__).with_name("gpus.csv")


@dataclass(frozen=True)
class Gpu:
    """One GPU; figures that a caller gave for one of their own have no slug and no source."""

    slug: str
    title: str
    memory_gb: float
    bandwidth_gb_s: float
    tflops_16bit: float
    tflops_8bit: float | None
    physical_gb: float | None = None
    sms: int | None = None
    shared_kb_per_sm: int | None = None
    max_shared_kb: int | None = None
    l2_mb: float | None = None
    source: str = ""
    note: str = ""

    @property
    def memory_bytes(self) -> int:
        """What a model may take, before anything is set aside."""
        return round(self.memory_gb * GB)

    @property
    def bandwidth(self) -> float:
        """Bytes per second."""
        return self.bandwidth_gb_s * GB

    def peak(self, bits: int) -> float | None:
        """Operations per second in 16 or 8 bits; None where it has no tensor cores for them."""
        tera = self.tflops_8bit if bits == 8 else self.tflops_16bit
        return None if tera is None else tera * 1e12

    @property
    def ridge(self) -> float:
        """FLOP per byte from which 16-bit arithmetic is the bound and no longer memory."""
        return self.tflops_16bit * 1e12 / self.bandwidth

    def attainable(self, intensity: float) -> float:
        """16-bit operations per second that memory can feed, or the peak: the roofline at ``intensity`` FLOP
        to a byte."""
        return min(self.tflops_16bit * 1e12, intensity * self.bandwidth)

    @property
    def shared_bytes(self) -> int | None:
        """On-chip memory of all multiprocessors: shared memory and the cache that it is cut from."""
        if self.sms is None or self.shared_kb_per_sm is None:
            return None
        return self.sms * self.shared_kb_per_sm * 1024

    def utilisation(self, flops_per_second: float, bits: int = 16) -> float:
        """Of what it can do at most. ValueError where it has no tensor cores for so many bits."""
        peak = self.peak(bits)
        if peak is None:
            raise ValueError(f"{self.title} has no figure for {bits}-bit arithmetic")
        return flops_per_second / peak


@cache
def gpus() -> dict[str, Gpu]:
    """The whole table by slug, in its order."""
    with TABLE.open(encoding="utf-8", newline="") as lines:
        return {row["slug"]: _row(row) for row in csv.DictReader(lines)}


def find_gpu(name: str, pointer: str = "/gpu") -> Gpu:
    """The GPU of that name. Raises SpecError naming the nearest."""
    found = gpus().get(name.lower())
    if found is not None:
        return found
    detail = (
        f"gpu {show(name)} is not in the table ({nearest(name, gpus())}); send the figures of any other as "
        "memory_gb, bandwidth_gb_s and tflops_16bit"
    )
    raise SpecError([FieldProblem(pointer, "unknown-gpu", detail, NOT_COMPUTABLE)])


def _row(row: dict[str, str]) -> Gpu:
    return Gpu(
        slug=row["slug"],
        title=row["title"],
        memory_gb=float(row["memory_gb"]),
        physical_gb=float(row["physical_gb"]),
        bandwidth_gb_s=float(row["bandwidth_gb_s"]),
        tflops_16bit=float(row["tflops_16bit"]),
        tflops_8bit=float(row["tflops_8bit"]) if row["tflops_8bit"] else None,
        sms=int(row["sms"]),
        shared_kb_per_sm=int(row["shared_kb_per_sm"]),
        max_shared_kb=int(row["max_shared_kb"]),
        l2_mb=float(row["l2_mb"]),
        source=row["source"],
        note=row["note"],
    )
