"""What the concept pages speak of, each as a small run."""

from django.utils.translation import gettext_lazy as _

from lab.form.presets import Preset, drawn, pasted

THREE = "[[1,0],[0,1],[1,1]]"
VALUES = "[[1,0],[0,2],[2,2]]"

EXAMPLES = (
    Preset(
        "by-hand",
        _("By hand, three tokens"),
        _("Small enough to compute with a pencil; every box can be changed."),
        pasted(THREE, THREE, VALUES, source="grid"),
    ),
    Preset(
        "causal",
        _("Causal self-attention"),
        _("The upper triangle of the weights is empty, and its first row has one 1."),
        pasted(THREE, THREE, VALUES, source="grid", causal="on"),
    ),
    Preset(
        "cross",
        _("Cross-attention"),
        _("Two queries look at four keys: the output has a row for each query."),
        pasted("[[1,0],[0,1]]", "[[1,0],[0,1],[1,1],[2,0]]", "[[1,0,0],[0,1,0],[0,0,1],[1,1,1]]",
               source="grid"),
    ),
    Preset(
        "heads",
        _("Eight heads"),
        _("The same number of parameters looks in eight ways at once."),
        drawn(32, 8, heads="8", distribution="peaked"),
    ),
    Preset(
        "sqrt-dk",
        _("Without 1/√d"),
        _("With scale 1 and 64 dimensions the softmax is nearly hard; with 1/√d it is not."),
        drawn(16, 64, heads="1", scale="1"),
    ),
    Preset(
        "prefix",
        _("A prefix that all see"),
        _("Causal but for the first six tokens, which see one another too."),
        drawn(16, 8, heads="1", pattern="prefix", pattern_len="6"),
    ),
    Preset(
        "documents",
        _("Three documents in a row"),
        _("Packed into one sequence, and blind to one another."),
        drawn(12, 8, heads="1", causal="on", pattern="document", pattern_ids="[0,0,0,0,0,1,1,1,1,2,2,2]"),
    ),
    Preset(
        "window",
        _("A sliding window"),
        _("Four tokens back and itself: the cost grows with the length, not with its square."),
        drawn(32, 16, heads="1", causal="on", window_left="4"),
    ),
    Preset(
        "longformer",
        _("Window and global tokens"),
        _("Longformer: token 0 sees all, and all see it."),
        drawn(32, 16, heads="1", pattern="longformer", pattern_window="6", pattern_global="[0]"),
    ),
    Preset(
        "bigbird",
        _("Random blocks"),
        _("BigBird: a window of blocks, the first block, and one block at random."),
        drawn(32, 16, heads="1", pattern="bigbird", pattern_window="1", pattern_block="4"),
    ),
    Preset(
        "rope",
        _("Rotary positions"),
        _("The score depends on the distance of two tokens, not on where they are."),
        drawn(16, 16, heads="1", rope="half", causal="on", returns=["out", "scores", "weights"]),
    ),
    Preset(
        "alibi",
        _("A penalty for distance"),
        _("ALiBi: each head has a slope of its own, and the first one looks the least far."),
        drawn(24, 16, heads="4", causal="on", alibi_slopes="auto"),
    ),
    Preset(
        "yarn",
        _("A context stretched fourfold"),
        _("YaRN: slow pairs of RoPE are stretched, fast ones are left."),
        drawn(32, 64, heads="1", rope="half", rope_scaling="yarn", scaling_factor="4",
              scaling_original_max_position_embeddings="8"),
    ),
    Preset(
        "decode",
        _("One step of decoding"),
        _("One new query, 128 keys in the cache: memory decides, not arithmetic."),
        drawn(1, 32, engine="decode", heads="8", kv_heads="2", how_past_key="seed", how_past_value="seed",
              past_len="127"),
    ),
    Preset(
        "paged",
        _("A cache in pages"),
        _("The same keys, 16 to a page, in a shuffled order."),
        drawn(4, 32, engine="paged", kv_len="60", option_page_size="16"),
    ),
    Preset(
        "gqa",
        _("Grouped heads"),
        _("Eight query heads, two key heads: a quarter of the cache."),
        drawn(32, 16, heads="8", kv_heads="2", causal="on"),
    ),
    Preset(
        "mla",
        _("Latent attention"),
        _("MLA: one latent for each token, from which all heads make their keys and values."),
        {"engine": "mla", "heads": "8", "q_len": "16", "causal": "on"},
    ),
    Preset(
        "quantised",
        _("A cache of 8 bits"),
        _("The error is against the numbers before they were rounded to codes."),
        drawn(1, 32, engine="decode", option_kv_dtype="int8", kv_len="64"),
    ),
    Preset(
        "gradients",
        _("Forward and backward"),
        _("Gradients of Q, K and V, from one of the output that is drawn."),
        drawn(16, 16, heads="2", causal="on", how_dout="seed", returns=["out", "dq", "dk", "dv"]),
    ),
    Preset(
        "linear",
        _("Linear attention"),
        _("A state of fixed size in the place of a cache."),
        drawn(32, 16, engine="linear", heads="2", causal="on", returns=["out", "state"]),
    ),
    Preset(
        "performer",
        _("Random features"),
        _("Performer: how far 64 of them are from exact attention."),
        drawn(32, 16, engine="performer", heads="2", option_num_features="64", option_trials="6"),
    ),
    Preset(
        "scan",
        _("A selective scan"),
        _("Mamba's recurrence, with the weights of its dual beside it."),
        {"engine": "scan", "heads": "2", "q_len": "16"},
    ),
    Preset(
        "reformer",
        _("Hashed buckets"),
        _("Reformer: how many of the best keys fall into the bucket of a query."),
        drawn(48, 16, engine="lsh", heads="1", distribution="peaked",
              returns=["out", "weights", "recall", "q_buckets", "k_buckets"]),
    ),
    Preset(
        "additive",
        _("Additive scores"),
        _("Bahdanau's scores, whose parameters are drawn from the seed."),
        drawn(12, 8, engine="scoring", heads="1"),
    ),
    Preset(
        "hard",
        _("Hard attention"),
        _("One key is drawn for each query; the mean of many draws is soft attention."),
        drawn(12, 8, engine="hard", heads="1", option_draws="64", returns=["out", "weights", "chosen"]),
    ),
    Preset(
        "streaming",
        _("An endless text"),
        _("StreamingLLM: eight tokens and four sinks are kept, all others forgotten."),
        drawn(48, 16, engine="cache", heads="1", option_budget="12", option_sinks="4",
              returns=["out", "weights", "held", "row_error"]),
    ),
)  # fmt: skip
