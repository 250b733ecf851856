"""What a run may return, by name. Data only."""

MATRICES = ("scores", "softcapped_scores", "masked_scores", "weights")  # [batch, heads, q_len, kv_len] each
PRESENT = {"present_key": "k", "present_value": "v"}  # what became of which input, the past in front
GRADIENTS = {"dq": "q", "dk": "k", "dv": "v"}  # with respect to which input
STATES = ("state", "normaliser")  # of a recurrence, after the last token
# Of each query: where its window lies, what of the exact weights it sees, how many of the best keys, how far
# its output is from exact attention, and which key was drawn.
ROWS = ("centres", "kept_weight", "recall", "row_error", "chosen")
# The gradient by the scores: exact, estimated by draws, and the variance of one draw.
DRAWN = ("dscores", "dscores_estimate", "dscores_variance")
BUCKETS = {"q_buckets": "q", "k_buckets": "k"}  # of each token of which input, in every round of hashing
HELD = "held"  # which tokens a cache holds when each query comes, of every key head
# What the flash kernel holds of each query after each tile of keys, [batch, heads, q_len, key tiles], the
# last [..., v_head_dim]: whether it took the tile, the running maximum, the running sum, by what all before
# shrank, and the sum of weighted values that is not yet divided.
TRACE = ("trace_tiles", "trace_max", "trace_sum", "trace_rescale", "trace_out")
RESULTS = (
    "out", "lse", *MATRICES, *PRESENT, *GRADIENTS, *STATES, *ROWS, *DRAWN, *BUCKETS, HELD, *TRACE,
)  # fmt: skip
