"""What became of a kernel: resources, occupancy, instructions, and the source lines that they came of."""

from collections.abc import Mapping
from typing import Any

from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from concepts.figures import parts
from kernels.machine_code import INSTRUCTIONS, digests, source_of
from kernels.targets import (
    REGISTER_LIMIT,
    REGISTER_UNIT,
    TARGETS,
    WARP_SIZE,
    block_limits,
    registers_per_warp,
)
from lab import units

LINES = 16  # of the source, those that most instructions came of
MOST_REGISTERS = 255  # of a thread, on every target
TMEM_COLUMN_BYTES = 512
KIB = 1024

KINDS: dict[str, Any] = {
    "mma": gettext_lazy("tensor cores: a product of a warp (HMMA)"),
    "wgmma": gettext_lazy("tensor cores: a product of four warps (WGMMA)"),
    "tcgen05": gettext_lazy("tensor cores: a product into tensor memory (UTCMMA)"),
    "ffma": gettext_lazy("multiply-adds in float32, one by one"),
    "exp": gettext_lazy("exponentials (MUFU.EX2)"),
    "ld_global": gettext_lazy("loads from memory"),
    "cp_async": gettext_lazy("asynchronous copies to shared memory"),
    "tma_load": gettext_lazy("copies by the tensor memory accelerator"),
    "st_global": gettext_lazy("stores to memory"),
    "ld_shared": gettext_lazy("loads from shared memory"),
    "st_shared": gettext_lazy("stores to shared memory"),
    "spill_load": gettext_lazy("loads of spilled registers"),
    "spill_store": gettext_lazy("stores of spilled registers"),
    "shuffle": gettext_lazy("exchanges between threads of a warp"),
    "barrier": gettext_lazy("barriers"),
    "branch": gettext_lazy("branches"),
    "other": gettext_lazy("everything else: addresses, masks, conversions, moves"),
}
LIMITS: dict[str, Any] = {
    "registers": gettext_lazy("registers"),
    "shared": gettext_lazy("shared memory"),
    "warps": gettext_lazy("warps"),
    "blocks": gettext_lazy("blocks"),
    "tmem": gettext_lazy("tensor memory"),
}


def section(figures: Mapping[str, Any]) -> dict[str, Any]:
    """What the page shows of one kernel."""
    return {
        "figures": figures,
        "resources": resources(figures),
        "occupancy": occupancy(figures),
        "verdict": verdict(figures),
        "mix": mix(figures["instructions"]),
        "total": units.whole(figures["instructions"]["total"]),
        "lines": source_lines(figures),
    }


def resources(figures: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """(what, how much, of how much)."""
    rows = [
        (
            _("registers of a thread"),
            str(figures["registers"]),
            _("of {most} at most").format(most=MOST_REGISTERS),
        ),
        (
            _("shared memory of a block"),
            units.size(figures["shared_bytes"]),
            _("of {most} at most").format(most=units.size(figures["shared_limit_bytes"])),
        ),
        (
            _("spilled, by a thread"),
            units.size(figures["spills_bytes"]),
            _("none: everything stays in registers")
            if not figures["spills_bytes"]
            else _("to local memory, which lies in the GPU’s memory"),
        ),
        (
            _("warps of a block"),
            str(figures["num_warps"]),
            _("{threads} threads").format(threads=figures["num_warps"] * WARP_SIZE),
        ),
        (_("stages of loads in flight"), str(figures["num_stages"]), ""),
    ]
    if figures.get("tmem_bytes"):
        rows.insert(2, (_("tensor memory of a block"), units.size(figures["tmem_bytes"]), ""))
    return rows


def occupancy(figures: Mapping[str, Any]) -> dict[str, Any]:
    """How many blocks each resource of a multiprocessor leaves room for, with the arithmetic."""
    sm, warps = TARGETS[figures["target"]], figures["num_warps"]
    shared, columns = figures["shared_bytes"], figures.get("tmem_bytes", 0) // TMEM_COLUMN_BYTES
    limits = block_limits(sm, figures["registers"], shared, warps, columns)
    least = min(limits.values())
    per_warp = registers_per_warp(figures["registers"])
    formulas = {
        "registers": _(
            "⌈{registers} × {threads} ∕ {unit}⌉ × {unit} = {per_warp} for a warp; "
            "⌊⌊{all} ∕ {per_warp}⌋ ∕ {warps} warps⌋"
        ).format(
            registers=figures["registers"],
            threads=WARP_SIZE,
            unit=REGISTER_UNIT,
            per_warp=units.whole(per_warp),
            all=units.whole(REGISTER_LIMIT),
            warps=warps,
        ),
        "shared": _("⌊{all} KiB ∕ ({own} + {reserved} KiB for the system)⌋").format(
            all=sm.shared_bytes // KIB,
            own=units.size(shared),
            reserved=sm.reserved_bytes_per_block // KIB,
        ),
        "warps": f"⌊{sm.max_warps} ∕ {warps}⌋",
        "blocks": _("{most} at most").format(most=sm.max_blocks),
        "tmem": _("⌊{all} columns ∕ {own}, in powers of two⌋").format(all=sm.tmem_columns, own=columns),
    }
    return {
        "rows": [
            (str(LIMITS[name]), formulas[name], count, count == least) for name, count in limits.items()
        ],
        "blocks": least,
        "warps": least * warps,
        "most_warps": sm.max_warps,
        "share": units.percent(round(least * warps / sm.max_warps, 4)),
        "binding": ", ".join(str(LIMITS[name]) for name, count in limits.items() if count == least),
        "formula": f"{least} × {warps} ∕ {sm.max_warps}",
    }


def verdict(figures: Mapping[str, Any]) -> str:
    """In a sentence."""
    found = occupancy(figures)
    if not figures["fits"]:
        return _("No block fits on a multiprocessor of this GPU: this kernel cannot be launched.")
    return _(
        "A multiprocessor holds {blocks} of its blocks at a time, {warps} of {most} warps: occupancy "
        "{share}. What stops one more: {binding}."
    ).format(
        blocks=found["blocks"],
        warps=found["warps"],
        most=found["most_warps"],
        share=found["share"],
        binding=found["binding"],
    )


def mix(counts: Mapping[str, int]) -> list[dict[str, Any]]:
    """Every kind that there is, with its share of all instructions as a bar."""
    return [
        {
            "kind": kind,
            "meaning": KINDS[kind],
            "count": units.whole(count),
            "share": units.percent(round(count / max(counts["total"], 1), 4)),
            "bar": parts.bar(count / max(counts["total"], 1)),
        }
        for kind, count in with_other(counts).items()
        if count
    ]


def with_other(counts: Mapping[str, int]) -> dict[str, int]:
    """By kind in the order of KINDS, and what is none of them."""
    named = {kind: counts.get(kind, 0) for kind in KINDS if kind in INSTRUCTIONS}
    return named | {"other": counts["total"] - sum(named.values())}


# --- Source lines ---------------------------------------------------------------------------------


def source_lines(figures: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The lines that most machine code came of."""
    found = sorted(figures.get("source_lines", []), key=lambda one: -one["instructions"]["total"])
    return [
        {
            "file": one["file"],
            "line": one["line"],
            "at": f"{one['file']}:{one['line']}",
            "text": source_text(figures, one["file"], one["line"]),
            "total": one["instructions"]["total"],
            "kinds": ", ".join(
                f"{count} {kind}" for kind, count in one["instructions"].items() if kind != "total"
            ),
        }
        for one in found[:LINES]
    ]


def source_text(figures: Mapping[str, Any], file: str, line: int) -> str:
    """A source line as it was compiled; "" where it is not ours, or has changed."""
    lines = source(figures, file)
    return lines[line - 1].strip() if lines and 0 < line <= len(lines) else ""


def source(figures: Mapping[str, Any], file: str) -> list[str] | None:
    """The lines of a file, if it is ours and still what was compiled."""
    wanted = figures.get("sources", {}).get(file)
    if wanted is None or digests([file]).get(file) != wanted:
        return None
    content = source_of(file)
    return None if content is None else content.decode().split("\n")
