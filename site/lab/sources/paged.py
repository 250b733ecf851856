"""Caches in pages, explained."""

from django.utils.translation import gettext_lazy as _

from lab.sources.flash import MEMORY
from lab.sources.model import File, Kernel, Note

PAGED = Kernel(
    "paged",
    _("A cache in pages"),
    _(
        "Keys and values of a sequence need not lie in one piece: a table says which page of memory has "
        "which tokens. The attention kernels stay the same; what changes is where a row begins."
    ),
    (
        File(
            "kernels/paged/append.py",
            (
                Note(
                    "",
                    _("Position, page, slot"),
                    _(
                        "Token at position p lies in page table[p // page_size], at slot p % page_size. That "
                        "is the page table of an operating system, for tokens."
                    ),
                ),
                Note(
                    "append_rows",
                    _("New tokens go to their pages"),
                    _(
                        "A program has a tile of new tokens of one head. Keys come rotated: RoPE is applied "
                        "once, before."
                    ),
                ),
                Note(
                    "append_rows: store_rows(K",
                    _("Written through the table"),
                    _(
                        "The same function that loads through the table stores through it. Padding asks for "
                        "no page."
                    ),
                ),
            ),
        ),
        MEMORY,
    ),
    concept="paged-attention",
)
