"""What each field of the form is called, what it does in one line, and which concept page tells more.

The one table of it: a page that is not written yet is not linked, and lights up here as soon as it is. What
the kernels declare by themselves (options of engines, fields of patterns and of RoPE scalings, shapes of
inputs) keeps its description from there; here is only which concept it belongs to.
"""

from dataclasses import dataclass
from typing import Any

from django.urls import reverse
from django.utils.translation import gettext_lazy as _

from concepts.pages import current_book


@dataclass(frozen=True)
class Words:
    """A field's label, its line of help, and the slug of its concept."""

    label: Any
    help: Any = ""
    concept: str = ""


@dataclass(frozen=True)
class Concept:
    """A page that exists."""

    title: str
    url: str


WORDS: dict[str, Words] = {
    "engine": Words(_("Engine"), _("Who computes it."), "engines"),
    "source": Words(_("Input"), _("Where Q, K and V come from.")),
    "dtype": Words(
        _("Number format"),
        _(
            "Q, K and V are rounded to it; the reference starts from the rounded values. The page of the run "
            "tells what that costs."
        ),
        "numerics",
    ),
    "device": Words(_("Device"), _("Automatic: a GPU where there is one."), "about"),
    # Q, K and V
    "q": Words("Q", _("A row for each query."), "weighted-average"),
    "k": Words("K", _("A row for each key."), "weighted-average"),
    "v": Words("V", _("A row for each key: what it has to give."), "weighted-average"),
    "grid_q": Words("Q", _("A row for each query."), "weighted-average"),
    "grid_k": Words("K", _("A row for each key."), "weighted-average"),
    "grid_v": Words("V", _("A row for each key: what it has to give."), "weighted-average"),
    "grid_q_len": Words(_("Queries"), _("Rows of Q."), "by-hand"),
    "grid_kv_len": Words(_("Keys"), _("Rows of K and of V."), "by-hand"),
    "grid_dim": Words(_("Dimension"), _("Columns of Q and of K."), "by-hand"),
    "grid_v_dim": Words(_("Value dimension"), _("Columns of V."), "by-hand"),
    "seed": Words(_("Seed"), _("The same seed gives the same numbers on every machine."), "numerics"),
    "distribution": Words(_("Distribution"), _("How the numbers are spread."), "sqrt-dk"),
    "batch": Words(_("Batch"), _("Sequences that do not see each other."), "masks"),
    "heads": Words(_("Query heads"), _("Attentions side by side."), "multi-head"),
    "kv_heads": Words(
        _("Key/value heads"),
        _("Empty: as many as query heads. Fewer: consecutive query heads share one."),
        "mqa-gqa-mla",
    ),
    "q_len": Words(_("Queries"), _("Tokens that look."), "self-and-cross"),
    "kv_len": Words(_("Keys"), _("Empty: as many as queries."), "self-and-cross"),
    "head_dim": Words(_("Head dimension"), _("Numbers in a query and in a key."), "sqrt-dk"),
    "v_head_dim": Words(_("Value dimension"), _("Empty: the head dimension."), "multi-head"),
    "layout": Words(_("Axes"), _("How the arrays lie in memory."), "multi-head"),
    "d_nope": Words("d_nope", _("Numbers of a query without a position, in each head."), "mqa-gqa-mla"),
    "d_rope": Words("d_rope", _("Numbers of a query and of the key that carry the position."), "mqa-gqa-mla"),
    "d_c": Words("d_c", _("Numbers of a latent, which is all that is cached."), "mqa-gqa-mla"),
    "d_v": Words("d_v", _("Numbers of a value, in each head."), "mqa-gqa-mla"),
    "channels": Words(_("Channels"), _("Numbers that a token brings to each head."), "state-space"),
    "states": Words(_("States"), _("Numbers that each channel remembers."), "state-space"),
    "upload": Words(_("Files"), _("What was sent already."), ""),
    "q_name": Words(_("Array for Q"), _("Its name in the file."), ""),
    "k_name": Words(_("Array for K"), _("Its name in the file."), ""),
    "v_name": Words(_("Array for V"), _("Its name in the file."), ""),
    # Masks
    "causal": Words(_("Causal: no query sees a later key"), "", "masks"),
    "alignment": Words(
        _("Causal alignment"),
        _("Where the diagonal lies: matters when queries and keys differ in number."),
        "masks",
    ),
    "window_left": Words(
        _("Window back"),
        _("How many positions back a query sees, itself not counted. Empty: all."),
        "sparse",
    ),
    "window_right": Words(_("Window ahead"), _("How many positions ahead. Empty: all."), "sparse"),
    "pattern": Words(_("Pattern"), _("A sparse mask, on top of the others."), "sparse"),
    "q_positions": Words(
        _("Positions of queries"),
        _("The first one, or a list. Empty: by the alignment."),
        "positions",
    ),
    "kv_positions": Words(_("Positions of keys"), _("The first one, or a list. Empty: from 0."), "positions"),
    # Scores
    "scale": Words(_("Scale"), _("What q·k is multiplied by. Empty: 1/√d."), "sqrt-dk"),
    "softcap": Words(
        _("Softcap"),
        _("c in c·tanh(score/c), before masks: keeps scores within ±c. Empty: none."),
        "numerics",
    ),
    "alibi_slopes": Words(
        _("ALiBi slopes"),
        _("auto, or a slope for each head: a penalty for distance. Empty: none."),
        "alibi",
    ),
    "sinks": Words(
        _("Sinks"),
        _("A logit for each head that takes weight and gives nothing. Empty: none."),
        "streaming-sinks",
    ),
    # Rotary positions
    "rope": Words(
        _("Pairing"),
        _("Which numbers turn together: halves (Llama) or neighbours (GPT-J)."),
        "rope",
    ),
    "rope_theta": Words(_("Base θ"), _("The slowest pair turns about 1/θ a token. Empty: 10,000."), "rope"),
    "rope_dim": Words(_("Dimensions turned"), _("An even number. Empty: all."), "rope"),
    "rope_dim_offset": Words(_("First dimension turned"), _("Empty: 0."), "rope"),
    "rope_positions": Words(
        _("Positions for RoPE alone"), _("The first one, or a list. Empty: those of the masks."), "rope"
    ),
    "rope_scaling": Words(
        _("Scaling"), _("How longer texts than in training are fitted in."), "long-context"
    ),
    # Packed rows
    "num_heads": Words(
        _("Heads in a row"),
        _("For rows that hold all heads side by side: how many. Empty: heads have an axis."),
        "multi-head",
    ),
    "num_kv_heads": Words(_("Key/value heads in a row"), _("Empty: as many as heads."), "mqa-gqa-mla"),
    # Beside Q, K and V
    "past_len": Words(_("Length of the past"), _("Tokens in the cache, where it is drawn."), "kv-cache"),
    "returns": Words(_("Results to return"), _("What comes back."), "weighted-average"),
    "warmup": Words(_("Warm-up runs"), _("Untimed, before the others."), "memory-hierarchy"),
    "iters": Words(_("Timed runs"), _("The median of them is shown."), "memory-hierarchy"),
}

CONCEPTS_OF_INPUTS = {
    "attn_mask": "masks",
    "q_lens": "masks",
    "kv_lens": "masks",
    "past_key": "kv-cache",
    "past_value": "kv-cache",
    "block_table": "paged-attention",
    "dout": "flash-attention",
    **dict.fromkeys(("q_nope", "q_rope", "c_kv", "k_rope", "w_uk", "w_uv"), "mqa-gqa-mla"),
    **dict.fromkeys(("log_decay", "beta", "initial_state", "initial_normaliser"), "linear-attention"),
    **dict.fromkeys(("x", "b", "c", "delta", "a", "d_skip"), "state-space"),
    **dict.fromkeys(("w_q", "w_k", "v_a", "w_general", "w_concat"), "scoring"),
    **dict.fromkeys(("w_p", "v_p"), "soft-hard-local"),
}
CONCEPTS_OF_OPTIONS = {
    "block_m": "flash-attention",
    "block_n": "flash-attention",
    "num_splits": "decode-bandwidth",
    "page_size": "paged-attention",
    "kv_dtype": "kv-compression",
    "kv_scale": "kv-compression",
}
# Of an engine's other options: what the engine itself is about.
CONCEPTS_OF_ENGINES = {
    "mla": "mqa-gqa-mla",
    "linear": "linear-attention",
    "performer": "performer",
    "scan": "state-space",
    "scoring": "scoring",
    "cache": "streaming-sinks",
    "lsh": "reformer",
    "hard": "soft-hard-local",
}


def concept(slug: str) -> Concept | None:
    """The page of a concept, where it is written."""
    page = current_book().pages.get(slug) if slug else None
    return Concept(page.title, reverse("concepts:concept", args=[slug])) if page else None


def of_option(engine: str, name: str) -> str:
    """The concept that an option of an engine belongs to."""
    return CONCEPTS_OF_OPTIONS.get(name) or CONCEPTS_OF_ENGINES.get(engine, "engines")
