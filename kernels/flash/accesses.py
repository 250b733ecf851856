"""How much attention moves between a GPU's memory and its chip, in the terms of the theorem. Arithmetic only.

Attention one operation after another writes the scores S, reads them, writes the weights P and reads them:
four times n² numbers for each head, beside which Q, K, V and O, 4·n·d, are few (Dao 2023, *FlashAttention-2*,
arXiv 2307.08691, §2.2). With M numbers of fast memory on chip, d ≤ M ≤ n·d,

    one after another    Θ(n·d + n²)             tiles    Θ(n²·d² / M)

accesses are enough, and no exact attention does with fewer for every such M (Dao et al. 2022,
*FlashAttention*, arXiv 2205.14135, Theorem 2 and Proposition 3). The theorem is about growth, so the
functions here have every constant 1: their ratio, M/d², says how a saving moves with d and M, and not what
one workload saves. What a kernel moves is counted (``kernels/flash/interpreter.py``) or modelled
(``kernels/traffic.py``).
"""

from __future__ import annotations

from kernels.integers import ceil_div

TRANSFERS = ("S written", "S read", "P written", "P read")


def matrix_bytes(n: int, *, item: int = 2) -> int:
    """Of the scores of one head, or of its weights."""
    return n * n * item


def matrix_traffic(n: int, *, item: int = 2) -> int:
    """Bytes of all transfers of both matrices of one head."""
    return len(TRANSFERS) * matrix_bytes(n, item=item)


def standard_accesses(n: int, d: int) -> int:
    """n·d + n²: numbers, of one head."""
    return n * d + n * n


def tiled_accesses(n: int, d: int, on_chip: int) -> float:
    """n²·d²/M: numbers, of one head. ValueError where M is not within d … n·d, which the theorem is about."""
    if not d <= on_chip <= n * d:
        raise ValueError(f"the theorem is about {d} to {n * d} numbers on chip (d to n·d), not {on_chip}")
    return n * n * d * d / on_chip


def saving(d: int, chip_bytes: int, *, item: int = 2) -> float:
    """M/d²: by what n² is divided, with ``chip_bytes`` for the tiles of a multiprocessor."""
    return chip_bytes / item / (d * d)


def tile_rows(d: int, on_chip: float) -> int:
    """Rows of a tile where tiles of Q, K, V and O, all as high, share ``on_chip`` numbers: M/(4·d)."""
    return max(int(on_chip // (4 * d)), 1)


def standard_transfers(n: int, d: int, *, item: int = 2) -> dict[str, int]:
    """Bytes of one head by what is moved, if each operation reads its operands and writes its result."""
    once = {"Q, K, V read": 3 * n * d * item}
    return once | dict.fromkeys(TRANSFERS, matrix_bytes(n, item=item)) | {"O written": n * d * item}


def tiled_transfers(n: int, d: int, rows: int, *, item: int = 2) -> dict[str, int]:
    """Likewise, if K and V stream past one tile of ``rows`` queries after another, and no score leaves the
    chip. A row's LSE is a float32."""
    passes = ceil_div(n, rows)
    return {
        "Q, K, V read": 3 * n * d * item,
        "K, V read again": (passes - 1) * 2 * n * d * item,
        "O written": n * d * item,
        "LSE written": 4 * n,
    }


def flops(n: int, d: int) -> int:
    """Of both products, two for each multiply-add."""
    return 4 * n * n * d
