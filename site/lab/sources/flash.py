"""The flash kernel, explained."""

from django.utils.translation import gettext_lazy as _

from lab.sources.model import File, Kernel, Note

TILES = {
    "BLOCK_M": _("queries in a tile: one program computes so many rows of the output"),
    "BLOCK_N": _("keys in a tile: so many are taken in at each step of the loop"),
    "D": _("numbers in a query and in a key"),
    "DV": _("numbers in a value"),
    "BLOCK_D": _("D, padded to a power of two: Triton has no other tiles"),
    "BLOCK_DV": _("DV, padded in the same way"),
}

SOFTMAX = File(
    "kernels/flash/softmax.py",
    (
        Note(
            "",
            _("Three numbers instead of a row"),
            _(
                "A softmax needs the largest logit and the sum of all exponentials before it can give any "
                "weight. The online softmax does without a second pass: it keeps the largest logit so far "
                "(m), the sum of exponentials so far (l), and the weighted sum of values so far (O), all of "
                "them relative to m."
            ),
        ),
        Note(
            "start",
            _("Before the first key"),
            _(
                "m = −∞, l = 0 and O = 0 say that nothing was seen. A sink is one more key whose value is "
                "zero: it is there from the beginning, so m is its logit and l is exp(0) = 1."
            ),
        ),
        Note(
            "finite",
            _("What −∞ − (−∞) would do"),
            _(
                "A row that may see no key has m = −∞, and −∞ − (−∞) is NaN, which would spread over the "
                "whole row. Subtracting 0 in its place gives exp(−∞) = 0, which is the truth: no weight."
            ),
        ),
        Note(
            "shrink",
            _("The rescaling factor"),
            _(
                "When a new tile raises the maximum, everything summed before was relative to the old one. "
                "exp(old − new) ≤ 1 brings it to the new: nothing can overflow, whatever the logits are."
            ),
        ),
        Note(
            "step",
            _("One tile taken in"),
            _(
                "The heart of it. New maximum; exponentials of the tile relative to it, none above 1; the "
                "old sum shrunk, the new exponentials added. The caller shrinks O by the same factor. After "
                "the last tile the three numbers are what two passes over the whole row would have given."
            ),
        ),
        Note(
            "finish",
            _("One division at the end"),
            _(
                "O / l is the output: FlashAttention-2 divides once here, and not after each tile. m + ln l "
                "is the log-sum-exp. Whoever knows it can compute any weight again as exp(s − LSE), which is "
                "what the backward pass does."
            ),
        ),
    ),
)

LOGITS = File(
    "kernels/flash/logits.py",
    (
        Note(
            "",
            _("From a dot product to a logit"),
            _(
                "In this order, on which results depend: scale, softcap, ALiBi, an additive mask, −∞ where "
                "forbidden. What a call does not use is None, known when the kernel is compiled, and costs "
                "nothing."
            ),
        ),
        Note(
            "extent",
            _("Ragged batches"),
            _(
                "Every row of a batch has its own lengths. What lies beyond them is never read, so it may be "
                "NaN."
            ),
        ),
        Note(
            "describe_queries",
            _("Where each query stands"),
            _(
                "Causal masking and windows compare positions, not indices. The offset says which position "
                "query 0 has: this one number makes the difference between both causal alignments, and a "
                "past."
            ),
        ),
        Note(
            "tanh",
            _("A tanh that keeps its digits"),
            _(
                "Near 0 the usual formula subtracts two numbers that are almost equal; a short series does "
                "not."
            ),
        ),
        Note(
            "scores",
            _("The first matrix product"),
            _(
                "Q times K transposed, for one tile, in float32 whatever the inputs are. ieee forbids TF32, "
                "which would cut ten bits off a float32 factor. Multiplied by the scale here, before any "
                "maximum."
            ),
        ),
        Note(
            "logits",
            _("Everything that shifts or forbids"),
            _(
                "MASKED is known at compile time: of tiles in which every pair is allowed there is a version "
                "without any comparison."
            ),
        ),
        Note(
            "visible",
            _("Which pairs are allowed"),
            _(
                "Comparisons of positions, and a load of the mask where one was given. No matrix is ever "
                "made of it."
            ),
        ),
        Note(
            "key_bounds",
            _("Tiles that are never loaded"),
            _(
                "Under a causal mask half of all tiles are empty. Their bounds are arithmetic, so the loop "
                "starts and ends where keys can be seen; from n_from to n_full every pair is allowed."
            ),
        ),
        Note(
            "query_bounds",
            _("The mirror image"),
            _("The backward pass for keys walks over queries; here are its bounds."),
        ),
    ),
)

MEMORY = File(
    "kernels/flash/memory.py",
    (
        Note(
            "",
            _("Arrays as pointers and strides"),
            _(
                "One kernel serves contiguous arrays, transposed ones, shared heads (a stride of 0) and "
                "caches in pages, because it never assumes where a row lies."
            ),
        ),
        Note(
            "row_starts",
            _("Where a row begins"),
            _(
                "Products of index and stride pass 2³¹ in long sequences, so they are taken in 64 bits. Of a "
                "cache in pages the table is asked first: which page, then which row of it."
            ),
        ),
        Note(
            "load_rows",
            _("A tile from memory"),
            _(
                "What lies outside is read as 0: a length need not divide a tile. The zeros are no nicety: a "
                "weight of 0 times a NaN that was never written is NaN."
            ),
        ),
        Note("store_rows", _("And back"), _("Rounded to the type of the output; padding is not written.")),
    ),
)

FLASH = Kernel(
    "flash",
    _("FlashAttention, forward"),
    _(
        "Attention without the matrix of weights: keys and values stream past a tile of queries that stays "
        "on chip, and three numbers a row remember what was seen."
    ),
    (
        File(
            "kernels/flash/kernel.py",
            (
                Note(
                    "",
                    _("What it computes"),
                    _(
                        "Softmax attention, exactly: nothing is approximated. The saving is in memory "
                        "traffic. Scores and weights exist for one tile at a time, on chip, and never go to "
                        "memory."
                    ),
                ),
                Note(
                    "attend_tile",
                    _("One step of the loop"),
                    _(
                        "A tile of keys comes in: scores, logits, the online softmax, then a tile of values "
                        "is weighted and added. Flash, decode and paged all run this function."
                    ),
                ),
                Note(
                    "attend_tile: b_s = times_scales",
                    _("Scores"),
                    _(
                        "BLOCK_M × BLOCK_N numbers in registers. The scale of a quantised key goes on the "
                        "score."
                    ),
                ),
                Note(
                    "attend_tile: b_v = load_values",
                    _("Weights times values"),
                    _(
                        "The second matrix product. The weights are rounded to the type of the values, which "
                        "tensor cores ask for; the sum stays in float32, and is shrunk by the factor of this "
                        "step."
                    ),
                ),
                Note(
                    "flash_forward",
                    _("One program, one tile of queries"),
                    _(
                        "The grid has a program for each head of each batch row and each tile of queries: "
                        "they need nothing of one another, so a GPU runs them in any order."
                    ),
                ),
                Note(
                    "flash_forward: i_kv_head = i_head // group",
                    _("Grouped heads"),
                    _(
                        "Several query heads may share a key head (GQA, MQA). Here that is one division; no "
                        "key is copied."
                    ),
                ),
                Note(
                    "flash_forward: b_q = load_rows",
                    _("Queries are read once"),
                    _(
                        "They stay in registers while all keys stream past: FlashAttention-2's order of the "
                        "two loops."
                    ),
                ),
                Note(
                    "flash_forward: n_from, n_full, n_to =",
                    _("Two loops instead of one"),
                    _(
                        "First the tiles in which every pair is allowed, without a mask; then those on the "
                        "edge. Tiles beyond are skipped: causal attention does about half the work."
                    ),
                ),
                Note(
                    "flash_forward: m, l, b_o = forget_padding",
                    _("The end of the row"),
                    _("Divide once, write the output and the log-sum-exp. That is all that goes to memory."),
                ),
            ),
        ),
        SOFTMAX,
        LOGITS,
        MEMORY,
    ),
    {
        **TILES,
        "PROGRAMS": _("programs: batch rows × heads × tiles of queries"),
        "STEPS": _("tiles of keys, of which a program visits those that it may see"),
    },
    concept="flash-attention",
)
