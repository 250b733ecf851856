"""Linear recurrences and the selective scan, explained."""

from django.utils.translation import gettext_lazy as _

from lab.sources.model import File, Kernel, Note

LINEAR = Kernel(
    "linear",
    _("Linear attention, in three forms"),
    _(
        "Without the softmax, the sum over keys can be kept as a matrix of fixed size. The same numbers can "
        "be computed token by token, chunk by chunk, or all at once."
    ),
    (
        File(
            "kernels/linear/steps.py",
            (
                Note(
                    "",
                    _("Token by token"),
                    _("The state is all that is remembered: its size does not grow with the text."),
                ),
                Note(
                    "token_steps",
                    _("A state that stays on chip"),
                    _("Read once before the first token, written once after the last."),
                ),
                Note(
                    "token_steps: for t in range(length)",
                    _("Forget, correct, add, read"),
                    _(
                        "The state decays; the delta rule takes away what the key retrieves already; the "
                        "outer product of key and value is added; the query reads."
                    ),
                ),
            ),
        ),
        File(
            "kernels/linear/chunks.py",
            (
                Note(
                    "",
                    _("Chunk by chunk"),
                    _(
                        "Within a chunk everything is matrix products, which a GPU is made for; between "
                        "chunks there is the state. Linear in the length, and parallel enough."
                    ),
                ),
                Note(
                    "missing",
                    _("The delta rule within a chunk"),
                    _(
                        "Each value minus what earlier keys of the chunk retrieve: a triangular system, row "
                        "by row."
                    ),
                ),
                Note(
                    "chunk_states",
                    _("First kernel: states"),
                    _("Walks from chunk to chunk, and leaves the state that each of them finds."),
                ),
                Note(
                    "chunk_outputs",
                    _("Second kernel: outputs"),
                    _("With their states at hand, chunks need nothing of one another: all of them at once."),
                ),
                Note(
                    "chunk_outputs: b_p = tl.dot(b_q",
                    _("Inside, and from before"),
                    _("A masked product for the tokens of the chunk, and the state for all before them."),
                ),
            ),
        ),
        File(
            "kernels/linear/quadratic.py",
            (
                Note(
                    "",
                    _("All at once"),
                    _(
                        "The loop of FlashAttention without maximum and sum: quadratic, and fast for short "
                        "texts."
                    ),
                ),
                Note("add_keys", _("One tile of keys"), _("Products and decays; no exponential of a score.")),
                Note(
                    "quadratic",
                    _("Backwards through the keys"),
                    _(
                        "So that decays multiply up tile by tile, and are never divided: a quotient would "
                        "overflow."
                    ),
                ),
            ),
        ),
    ),
    concept="linear-attention",
)

SCAN = Kernel(
    "scan",
    _("The selective scan"),
    _(
        "A linear recurrence whose decay each token chooses (Mamba), as a parallel prefix over chunks of "
        "tokens."
    ),
    (
        File(
            "kernels/scan/kernel.py",
            (
                Note(
                    "",
                    _("A state that is never in memory"),
                    _(
                        "It is larger than any input; kept on chip it costs no traffic. That is what makes "
                        "it fast."
                    ),
                ),
                Note(
                    "after",
                    _("Steps compose"),
                    _(
                        "Two steps h → a h + b make one of the same kind. Composition is associative: hence "
                        "a prefix."
                    ),
                ),
                Note(
                    "load_rates",
                    _("Rates and step sizes"),
                    _("Padding has rate 0 and step 0: it changes nothing."),
                ),
                Note(
                    "scan_chunks",
                    _("Chunk by chunk"),
                    _(
                        "All prefixes of a chunk in one associative scan, then the state is carried to the "
                        "next."
                    ),
                ),
                Note(
                    "scan_chunks: b_decay = tl.exp",
                    _("From a step to its numbers"),
                    _("exp(Δ A) is how much of the state stays, Δ B x what comes in."),
                ),
                Note("scan_steps", _("Token by token"), _("What decoding does, one token at a time.")),
            ),
        ),
    ),
    concept="state-space",
)
