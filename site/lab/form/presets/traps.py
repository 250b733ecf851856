"""Where implementations go wrong, each as a run that shows the right answer."""

from django.utils.translation import gettext_lazy as _

from lab.form.presets import Preset, drawn, pasted

THREE = "[[1,0],[0,1],[1,1]]"
VALUES = "[[1,0],[0,2],[2,2]]"
ALL = ["out", "lse", "scores", "masked_scores", "weights"]

FLOAT16 = Preset(
    "fp16-outlier",
    _("One large dimension in float16"),
    _(
        "Values near 300 stand 0.25 apart in float16. Put float32 beside the run, and it says what comes of "
        "which rounding."
    ),
    pasted(
        "[[0.7,-1.3],[1.9,0.4],[-0.6,2.2]]",
        "[[1.1,0.3],[-0.8,1.7],[0.2,-1.4]]",
        "[[0.31,301.7,-1.24,0.52],[-0.87,296.4,0.66,1.35],[0.12,311.9,0.48,-0.93]]",
        dtype="float16",
        returns=ALL,
    ),
)

TRAPS = (
    Preset(
        "masked-row",
        _("A row that may see nothing"),
        _("Output 0, log-sum-exp −∞: neither NaN nor the mean of all values."),
        pasted(THREE, THREE, VALUES, how_attn_mask="text", returns=ALL,
               in_attn_mask="[[true,true,true],[false,false,false],[true,false,true]]"),
    ),
    Preset(
        "masked-tile",
        _("A whole tile of −∞ before the first key"),
        _("The running maximum is −∞ after it: −∞ − (−∞) must not become NaN, nor the sum 0."),
        drawn(16, 16, heads="1", kv_len="48", option_block_n="16", option_block_m="16", q_positions="40",
              window_left="4", causal="on"),
    ),
    Preset(
        "sentinel",
        _("Logits below any “large negative number”"),
        _("All are near −2,000,000; a kernel that masks with −10,000 loses the allowed keys."),
        pasted("[[-1000,0],[0,-1000]]", "[[2000,2000],[2000,2001]]", "[[1,0],[0,1]]", causal="on", scale="1",
               returns=ALL),
    ),
    Preset(
        "bottom-right",
        _("Causal, two queries and four keys: bottom right"),
        _("The last query sees every key, as in a decoder with a cache."),
        pasted("[[1,0],[0,1]]", "[[1,0],[0,1],[1,1],[2,0]]", "[[1,0],[0,1],[1,1],[2,2]]", causal="on",
               returns=ALL),
    ),
    Preset(
        "top-left",
        _("The same, top left"),
        _("The first query sees the first key alone, as in torch's is_causal."),
        pasted("[[1,0],[0,1]]", "[[1,0],[0,1],[1,1],[2,0]]", "[[1,0],[0,1],[1,1],[2,2]]", causal="on",
               alignment="top_left", returns=ALL),
    ),
    Preset(
        "more-queries",
        _("Causal, four queries and two keys"),
        _("Bottom right, the first two queries see nothing: output 0."),
        pasted("[[1,0],[0,1],[1,1],[2,0]]", "[[1,0],[0,1]]", "[[1,0],[0,1]]", causal="on", returns=ALL),
    ),
    Preset(
        "window-of-one",
        _("A window of one token back"),
        _("Inclusive and beside itself: two keys a row, not one."),
        pasted("[[1,0],[0,1],[1,1],[2,0]]", "[[1,0],[0,1],[1,1],[2,0]]", "[[1,0],[0,1],[1,1],[2,2]]",
               causal="on", window_left="1", returns=ALL),
    ),
    Preset(
        "softcap-mask",
        _("Softcap and a mask"),
        _("The cap comes first: a capped −∞ would be −2, and the future visible."),
        drawn(8, 8, heads="1", causal="on", softcap="2", distribution="peaked", returns=ALL),
    ),
    Preset(
        "softcap-large",
        _("Softcap of logits beyond 88"),
        _("tanh made of two exponentials is ∞/∞ there."),
        pasted("[[300,0],[0,-300]]", "[[300,0],[0,300]]", "[[1,0],[0,1]]", softcap="30",
               returns=[*ALL, "softcapped_scores"]),
    ),
    Preset(
        "softcap-alibi",
        _("Softcap and ALiBi"),
        _("First the cap, then the bias, then the mask."),
        drawn(8, 8, heads="2", causal="on", softcap="1.5", alibi_slopes="auto",
              returns=[*ALL, "softcapped_scores"]),
    ),
    Preset(
        "alibi-anchor",
        _("ALiBi counts from the query"),
        _("Counted from key 0 the output is the same, but the log-sum-exp is not."),
        drawn(8, 8, heads="2", causal="on", alibi_slopes="auto", returns=ALL),
    ),
    Preset(
        "gqa-order",
        _("Which query heads share a key head"),
        _("Consecutive ones: 0 and 1, then 2 and 3. Tiling the keys pairs 0 with 2."),
        drawn(8, 8, heads="4", kv_heads="2", distribution="peaked"),
    ),
    Preset(
        "rope-half",
        _("RoPE by halves"),
        _("Llama: dimension 0 turns with dimension d/2."),
        pasted("[[1,0,0,0],[1,0,0,0]]", "[[1,0,0,0],[1,0,0,0]]", "[[1,0],[0,1]]", rope="half",
               returns=[*ALL, "present_key"]),
    ),
    Preset(
        "rope-interleaved",
        _("RoPE by neighbours"),
        _("GPT-J: dimension 0 turns with dimension 1. The same numbers, other keys."),
        pasted("[[1,0,0,0],[1,0,0,0]]", "[[1,0,0,0],[1,0,0,0]]", "[[1,0],[0,1]]", rope="interleaved",
               returns=[*ALL, "present_key"]),
    ),
    Preset(
        "lse-base",
        _("The base of the log-sum-exp"),
        _("Three equal logits of 0: ln 3 = 1.0986, where base 2 would say 1.585."),
        pasted("[[0,0]]", THREE, VALUES, returns=ALL),
    ),
    Preset(
        "fp16-overflow",
        _("Huge logits in float16"),
        _("q·k is 640,000, and float16 ends at 65,504: scores have to be float32."),
        pasted("[[800,0],[0,800]]", "[[800,0],[0,800]]", "[[1,0],[0,1]]", dtype="float16", returns=ALL),
    ),
    FLOAT16,
    Preset(
        "scale-zero",
        _("Scale 0"),
        _("A legal input: every key has the same weight."),
        pasted(THREE, THREE, VALUES, scale="0", returns=ALL),
    ),
    Preset(
        "scale-negative",
        _("A negative scale"),
        _("Who takes the maximum before the scale takes the wrong end of the row."),
        pasted("[[60,0],[0,60]]", "[[60,0],[0,60]]", "[[1,0],[0,1]]", scale="-1", returns=ALL),
    ),
    Preset(
        "no-keys",
        _("No keys at all"),
        _("Three queries, none to look at: output 0, log-sum-exp −∞."),
        drawn(3, 4, heads="1", kv_len="0"),
    ),
    Preset(
        "nan-tail",
        _("NaN behind the end of the cache"),
        _("Two keys count, the third was never written: 0 · NaN must not get into the output."),
        pasted(THREE, "[[1,0],[0,1],[nan,nan]]", "[[1,0],[0,2],[nan,nan]]", in_kv_lens="2",
               returns=["out", "lse"]),
    ),
    Preset(
        "odd-dim",
        _("A head dimension of 40"),
        _("Not a power of two: it is padded, and the scale is that of 40."),
        drawn(16, 40, heads="2"),
    ),
    Preset(
        "odd-lengths",
        _("97 queries, 113 keys"),
        _("No tile fits, on either side."),
        drawn(97, 16, heads="1", kv_len="113", option_block_m="32", option_block_n="32"),
    ),
    Preset(
        "tiny-dim",
        _("A head dimension of 3"),
        _("Matrix units multiply nothing narrower than 16: it has to be padded."),
        drawn(8, 3, heads="2"),
    ),
    Preset(
        "sinks",
        _("A sink, and keys cut into splits"),
        _("Counted once, not once for each of the four splits; the weights sum to less than 1."),
        drawn(1, 16, engine="decode", heads="2", kv_len="64", sinks="1, 2", option_num_splits="4"),
    ),
    Preset(
        "int8",
        _("int8, where rounding wraps"),
        _("The largest number of each token becomes 127; 128 would be −128."),
        drawn(1, 16, engine="decode", heads="2", kv_len="32", option_kv_dtype="int8", distribution="peaked"),
    ),
    Preset(
        "fp8",
        _("fp8, where scales belong outside"),
        _("The scale of the keys goes into that of the softmax, that of the values into the output."),
        drawn(1, 16, engine="decode", heads="2", kv_len="32", option_kv_dtype="fp8_e4m3"),
    ),
    Preset(
        "splits-pages",
        _("Splits of a cache in pages"),
        _("Five splits of seven pages, the last one not full."),
        drawn(1, 16, engine="paged", heads="4", kv_heads="2", kv_len="107", option_num_splits="5",
              option_page_size="16"),
    ),
    Preset(
        "positions-text",
        _("Streaming, positions in the text"),
        _("The distance to the sinks grows without end: further than any that was trained."),
        drawn(32, 16, engine="cache", heads="1", rope="half", option_budget="8",
              option_cache_positions="text", returns=["out", "weights", "held", "row_error"]),
    ),
    Preset(
        "positions-cache",
        _("Streaming, positions in the cache"),
        _("The same text, counted by place in the cache: distances stay small."),
        drawn(32, 16, engine="cache", heads="1", rope="half", option_budget="8",
              option_cache_positions="cache", returns=["out", "weights", "held", "row_error"]),
    ),
    Preset(
        "additive-mask",
        _("A mask of 0 and 1 as numbers"),
        _("Numbers are added to the scores: 0 forbids nothing. Forbidding takes false, or −∞."),
        pasted(THREE, THREE, VALUES, in_attn_mask="[[1,0,0],[1,1,0],[1,1,1]]", returns=ALL),
    ),
)  # fmt: skip
