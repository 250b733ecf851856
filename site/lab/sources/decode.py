"""The decode kernels, explained."""

from django.utils.translation import gettext_lazy as _

from lab.sources.flash import TILES
from lab.sources.model import File, Kernel, Note

DECODE = Kernel(
    "decode",
    _("Split-KV decoding"),
    _(
        "One query, many keys: reading the cache is all the work. The keys are cut into splits, so that many "
        "programs read at once, and their unfinished softmaxes are merged."
    ),
    (
        File(
            "kernels/decode/kernel.py",
            (
                Note(
                    "",
                    _("Why not the flash kernel"),
                    _(
                        "With one query a head there is one tile of queries, so the flash kernel would start "
                        "one program a head and leave most of a GPU idle. Here the keys are shared out."
                    ),
                ),
                Note(
                    "pack_rows",
                    _("A tile full of heads"),
                    _(
                        "All query heads that share a key head become rows of one tile: each key is read "
                        "once for all of them, and the matrix units have more than one row to work on."
                    ),
                ),
                Note(
                    "split_bounds",
                    _("Shares in whole tiles"),
                    _(
                        "Multiplied before it is divided: the shares differ by one tile at most, and none is "
                        "lost."
                    ),
                ),
                Note(
                    "decode_split",
                    _("One split"),
                    _("One program has a key head, a share of its keys, and a tile of rows."),
                ),
                Note(
                    "decode_split: m, l, b_o = start",
                    _("The sink belongs to one"),
                    _(
                        "A sink is a key. Were it in every split, merging would count it as often as there "
                        "are splits."
                    ),
                ),
                Note(
                    "decode_split: n_from, n_full, n_to =",
                    _("Split what can be seen"),
                    _(
                        "A window over a long cache leaves few keys; they are shared among all splits, not "
                        "the cache."
                    ),
                ),
                Note(
                    "decode_split: o_state =",
                    _("An unfinished softmax"),
                    _(
                        "(m, l, O) is written as it is, in float32 and not divided: that is what can be "
                        "merged."
                    ),
                ),
            ),
        ),
        File(
            "kernels/decode/merge.py",
            (
                Note(
                    "",
                    _("An algebra of states"),
                    _(
                        "Two states of disjoint keys merge into that of their union, in any order and "
                        "grouping. The empty state changes nothing. The online softmax is merging with a "
                        "state of one tile."
                    ),
                ),
                Note(
                    "merge",
                    _("Two into one"),
                    _("Both shrink to the larger maximum, then sums add up. None of the factors is above 1."),
                ),
                Note("merge_all", _("Many at once"), _("The same for all splits of a tile.")),
                Note(
                    "load_states",
                    _("States that are not there"),
                    _("Read as empty ones, which merging ignores."),
                ),
                Note(
                    "merge_splits",
                    _("The second kernel"),
                    _("Few numbers, read once; the division by l comes here, at the very end."),
                ),
            ),
        ),
    ),
    {
        **TILES,
        "BLOCK_M": _("rows in a tile: heads that share a key head, times their queries"),
    },
    concept="decode-bandwidth",
)
