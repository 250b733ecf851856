"""Attention by other scores, explained."""

from django.utils.translation import gettext_lazy as _

from lab.sources.model import File, Kernel, Note

SCORING = Kernel(
    "scoring",
    _("Attention by any score"),
    _(
        "The loop of the flash kernel, with a score that is a function of query and key, not only their "
        "product."
    ),
    (
        File(
            "kernels/scoring/kernel.py",
            (
                Note(
                    "",
                    _("One loop, many scores"),
                    _(
                        "Nothing in the online softmax asks where a score comes from: it is the same code as "
                        "flash."
                    ),
                ),
                Note(
                    "window_bounds", _("Local attention"), _("Tiles that no window reaches are not loaded.")
                ),
                Note(
                    "attend_tile",
                    _("One tile taken in"),
                    _(
                        "Two softmaxes at once where the share of the window is asked for: over it, and over "
                        "all keys."
                    ),
                ),
                Note(
                    "attend_tile: b_p = fall_off",
                    _("Outside the denominator"),
                    _("The Gaussian multiplies weights after the softmax, so they sum to less than 1."),
                ),
                Note(
                    "scored_forward",
                    _("One tile of queries"),
                    _("The same grid and loops as the flash kernel."),
                ),
                Note(
                    "scored_matrices",
                    _("The matrices, where asked for"),
                    _("Tile by tile, from the maximum and the sum that the forward pass kept."),
                ),
            ),
        ),
    ),
    concept="scoring",
)
