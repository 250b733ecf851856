"""What a run may return, by name. Data only."""

MATRICES = ("scores", "softcapped_scores", "masked_scores", "weights")  # [batch, heads, q_len, kv_len] each
PRESENT = {"present_key": "k", "present_value": "v"}  # what became of which input, the past in front
GRADIENTS = {"dq": "q", "dk": "k", "dv": "v"}  # with respect to which input
STATES = ("state", "normaliser")  # of a recurrence, after the last token
RESULTS = ("out", "lse", *MATRICES, *PRESENT, *GRADIENTS, *STATES)
