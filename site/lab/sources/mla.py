"""Latent attention, explained."""

from django.utils.translation import gettext_lazy as _

from lab.sources.model import File, Kernel, Note

MLA = Kernel(
    "mla",
    _("Multi-head latent attention, absorbed"),
    _(
        "One latent vector per token is the key and the value of every head at once, after two matrices have "
        "changed sides."
    ),
    (
        File(
            "kernels/mla/kernel.py",
            (
                Note(
                    "",
                    _("Brackets that may be moved"),
                    _(
                        "q · (c W) = (q Wᵀ) · c. So the matrix that would make a key of every cached latent "
                        "is multiplied into the query instead, once; that for values is applied to the sum."
                    ),
                ),
                Note(
                    "latent_tile",
                    _("Key and value in one load"),
                    _(
                        "The tile of latents is multiplied with the queries, and then weighted as values: "
                        "read once."
                    ),
                ),
                Note(
                    "latent_tile: b_s = tl.dot(b_q_rope",
                    _("Two parts of a score"),
                    _(
                        "What carries the position cannot be absorbed; it is a second, small product in the "
                        "same sum."
                    ),
                ),
                Note(
                    "wanted_by_any",
                    _("Patterns"),
                    _("A tile of keys is visited when any row of the tile of queries may see any of it."),
                ),
                Note(
                    "latent_attention",
                    _("Rows are pairs of query and head"),
                    _(
                        "All heads read the same cache, so they fill a tile together, even with one query "
                        "each."
                    ),
                ),
                Note(
                    "project",
                    _("The products on either side"),
                    _("An ordinary tiled matrix product, of each head with its own matrix."),
                ),
                Note(
                    "share_columns",
                    _("For the expanded form"),
                    _(
                        "The part with the position is copied to the keys of every head, where they are made "
                        "after all."
                    ),
                ),
            ),
        ),
    ),
    {
        "BLOCK_M": _("pairs of query and head in a tile"),
        "BLOCK_N": _("latents in a tile: so many are taken in at each step of the loop"),
    },
    concept="mqa-gqa-mla",
)
