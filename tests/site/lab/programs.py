"""Configurations for the programs that a run's page shows: every feature of a spec at least once.

`CASES` maps a name to a body of POST /api/v1/runs; what is not said is as in `BASE`.
"""

import math
from typing import Any

import numpy as np

NAN = math.nan


def typed(*shape: int, seed: int = 0) -> Any:
    """Numbers that a person might paste."""
    drawn = np.random.default_rng([seed, *shape]).normal(size=shape)
    return np.round(drawn, 2).tolist()


def seeded(
    q: tuple[int, ...], k: tuple[int, ...] | None = None, v: tuple[int, ...] | None = None, **more: Any
) -> Any:
    shapes = {"q": q, "k": k or q, "v": v or k or q}
    given = {"seed": 7, "distribution": "normal", **more}
    return {name: {**given, "shape": list(shape)} for name, shape in shapes.items()}


def pasted(q: tuple[int, ...], k: tuple[int, ...] | None = None, v: tuple[int, ...] | None = None) -> Any:
    shapes = {"q": q, "k": k or q, "v": v or k or q}
    return {name: typed(*shape, seed=ord(name)) for name, shape in shapes.items()}


def attention(inputs: Any, engine: str = "eager", **asked: Any) -> dict[str, Any]:
    """asked: fields of `attention`, but for those of the body itself."""
    body = {name: asked.pop(name) for name in ("dtype", "options") if name in asked}
    returns = asked.pop("returns", ["out", "lse", "weights"])
    return {"engine": engine, "inputs": inputs, "attention": asked, "return": returns, **body,
            "timing": {"warmup": 0, "iters": 1}}  # fmt: skip


FOUR = (2, 2, 6, 4)
GROUPS = {"q": (2, 4, 5, 8), "k": (2, 2, 7, 8)}
LONG = (1, 1, 64, 8)
ROPE = {"style": "half", "theta": 10000.0}
YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}


def padded(values: Any, lens: list[int]) -> Any:
    """[batch, heads, length, dim] with NaN beyond the lengths, as strings of the contract."""
    found = np.array(values, dtype=object)
    for b, length in enumerate(lens):
        found[b, :, length:] = "nan"
    return found.tolist()


RAGGED = pasted(FOUR)
RAGGED |= {
    "q": padded(RAGGED["q"], [4, 6]),
    "k": padded(RAGGED["k"], [5, 2]),
    "v": padded(RAGGED["v"], [5, 2]),
}
RAGGED |= {"q_lens": [4, 6], "kv_lens": [5, 2]}
PAST = {**pasted(FOUR), "past_key": typed(2, 2, 3, 4, seed=5), "past_value": typed(2, 2, 3, 4, seed=6)}
PAGES = {
    "q": typed(2, 4, 3, 4, seed=1), "k": typed(5, 2, 2, 4, seed=2), "v": typed(5, 2, 2, 4, seed=3),
    "block_table": [[3, 0, -1], [1, 4, 2]], "kv_lens": [3, 6],
}  # fmt: skip
LATENT = {
    "q_nope": (3, 5, 4), "q_rope": (3, 5, 2), "c_kv": (5, 6), "k_rope": (5, 2),
    "w_uk": (3, 6, 4), "w_uv": (3, 6, 4),
}  # fmt: skip


def latents(batch: int | None = None) -> Any:
    shapes = {
        name: shape if batch is None or name in ("w_uk", "w_uv") else (batch, *shape)
        for name, shape in LATENT.items()
    }
    return {name: {"seed": 3, "shape": list(shape)} for name, shape in shapes.items()}


CASES: dict[str, dict[str, Any]] = {
    # Where the numbers come from, and what they are rounded to.
    "by hand": attention(pasted((3, 2))),
    "heads without a batch": attention(pasted((3, 4, 2))),
    "one number": attention(pasted((1, 1))),
    "normal": attention(seeded(FOUR)),
    "uniform": attention(seeded(FOUR, distribution="uniform")),
    "peaked": attention(seeded(FOUR, distribution="peaked")),
    "two distributions": attention(
        {**seeded(FOUR), "v": {"seed": 1, "shape": list(FOUR), "distribution": "uniform"}}
    ),
    "float16": attention(seeded(FOUR), dtype="float16"),
    "float16, pasted": attention(pasted(FOUR), dtype="float16"),
    "bfloat16": attention(seeded(FOUR), dtype="bfloat16"),
    "bfloat16, pasted": attention(pasted(FOUR), dtype="bfloat16"),
    "float64": attention(seeded(FOUR), dtype="float64"),
    "float64, uniform": attention(seeded(FOUR, distribution="uniform"), dtype="float64"),
    "float64, pasted": attention(pasted(FOUR), dtype="float64"),
    "too many to be typed": attention(pasted((1, 2, 16, 8))),
    "some typed, some seeded": attention({**seeded((3, 2)), "q": typed(3, 2)}),
    "reference": attention(pasted((3, 2)), "reference"),
    "reference, float16": attention(pasted((3, 2)), "reference", dtype="float16"),
    "sdpa": attention(seeded(FOUR), "sdpa", is_causal=True, returns=["out"]),
    "flash": attention(seeded(FOUR), "flash", is_causal=True),
    "flash, bfloat16": attention(seeded(FOUR), "flash", is_causal=True, dtype="bfloat16"),
    "decode": attention(seeded((1, 4, 1, 8), (1, 2, 9, 8)), "decode", is_causal=True, returns=["out", "lse"]),
    # Shapes.
    "grouped heads": attention(seeded(GROUPS["q"], GROUPS["k"])),
    "wide values": attention(seeded((2, 5, 4), (2, 5, 4), (2, 5, 3))),
    "no keys": attention(
        {name: {"seed": 1, "shape": [2, n, 4]} for name, n in (("q", 3), ("k", 0), ("v", 0))}
    ),
    "no queries": attention(
        {name: {"seed": 1, "shape": [2, n, 4]} for name, n in (("q", 0), ("k", 3), ("v", 3))}
    ),
    "no batch": attention({name: {"seed": 1, "shape": [0, 2, 3, 4]} for name in "qkv"}, is_causal=True),
    "packed": attention(seeded((2, 5, 12)), num_heads=3, is_causal=True),
    "packed, grouped": attention(seeded((2, 5, 16), (2, 6, 8)), num_heads=4, num_kv_heads=2),
    # Scores.
    "scale": attention(pasted((4, 3)), scale=0.25),
    "scale 0": attention(pasted((4, 3)), scale=0.0),
    "negative scale": attention(pasted((4, 3)), scale=-1.5, is_causal=True),
    "softcap": attention(seeded((2, 8, 4), distribution="peaked"), softcap=5.0),
    "ALiBi": attention(seeded((1, 8, 6, 4)), alibi_slopes="auto", is_causal=True),
    "ALiBi, six heads": attention(seeded((6, 5, 4)), alibi_slopes="auto"),
    "ALiBi, own slopes": attention(seeded((2, 5, 4)), alibi_slopes=[0.3, -0.7]),
    "ALiBi, slopes by row": attention(seeded((2, 2, 5, 4)), alibi_slopes=[[0.3, 0.1], [1.0, 0.0]]),
    "ALiBi of one head": attention(pasted((4, 3)), alibi_slopes="auto"),
    "added mask": attention({**pasted((3, 2)), "attn_mask": [[0.1, -2, 3], [0, 0, 0.5], [1, "-inf", 0]]}),
    "added mask of heads": attention({**pasted((4, 3)), "attn_mask": [[typed(4, 4)]]}),
    "seeded mask": attention({**seeded(FOUR), "attn_mask": {"seed": 2, "shape": [2, 1, 6, 6]}}),
    # Masks.
    "causal": attention(pasted((4, 3)), is_causal=True),
    "causal, more keys": attention(seeded((2, 3, 4), (2, 5, 4)), is_causal=True),
    "causal, top left": attention(seeded((2, 3, 4), (2, 5, 4)), is_causal=True, causal_alignment="top_left"),
    "causal, more queries": attention(seeded((2, 5, 4), (2, 3, 4)), is_causal=True),
    "window": attention(seeded((2, 8, 4)), window=[2, 1]),
    "window to the left": attention(seeded((2, 8, 4)), window=[2, None], is_causal=True),
    "window that misses": attention(seeded((2, 8, 4), (2, 3, 4)), window=[1, 0]),
    "mask": attention({**pasted((3, 2)), "attn_mask": [[True, False, True], [False] * 3, [True] * 3]}),
    "mask of a head": attention(
        {**seeded((2, 3, 4)), "attn_mask": [[[True, False, True]], [[True, True, False]]]}
    ),
    "first position": attention(seeded((2, 3, 4), (2, 5, 4)), q_positions=1, kv_positions=2, is_causal=True),
    "positions": attention(
        seeded((2, 3, 4), (2, 5, 4)), q_positions=[4, 0, 9], kv_positions=[0, 1, 3, 5, 9], is_causal=True
    ),
    "positions of keys": attention(
        seeded((2, 3, 4), (2, 5, 4)), kv_positions=[0, 1, 3, 5, 9], is_causal=True
    ),
    "positions by row": attention(
        seeded(FOUR),
        q_positions=[[0, 1, 2, 3, 4, 5], [5, 4, 3, 2, 1, 0]],
        kv_positions=[[0, 2, 4, 6, 8, 9], [0, 1, 2, 3, 4, 5]],
        is_causal=True,
        rope=ROPE,
    ),
    # Ragged, past, pages.
    "ragged": attention(RAGGED, returns=["out", "lse", "weights"]),
    "ragged, causal": attention(RAGGED, is_causal=True, rope=ROPE),
    "ragged, top left": attention(RAGGED, is_causal=True, causal_alignment="top_left"),
    "ragged keys": attention({**seeded(FOUR), "kv_lens": [3, 6]}, is_causal=True, alibi_slopes="auto"),
    "ragged queries": attention({**seeded(FOUR), "q_lens": [0, 5]}, window=[1, 1]),
    "ragged, positions of keys": attention(
        {**seeded(FOUR), "kv_lens": [3, 6]}, kv_positions=[0, 2, 3, 5, 7, 9], is_causal=True
    ),
    "past": attention(PAST, is_causal=True),
    "past, rotated": attention(PAST, is_causal=True, rope=ROPE),
    "past of a matrix": attention(
        {**pasted((3, 2)), "past_key": typed(2, 2), "past_value": typed(2, 2, seed=3)},
        is_causal=True,
        rope=ROPE,
    ),
    "pages": attention(PAGES, "paged", is_causal=True, returns=["out", "lse"]),
    "pages, rotated": attention(PAGES, "paged", is_causal=True, rope=ROPE, returns=["out"]),
    "int8 cache": attention(seeded(FOUR), options={"kv_dtype": "int8"}, is_causal=True),
    # RoPE.
    "RoPE, half": attention(seeded((2, 5, 8)), rope=ROPE),
    "RoPE, interleaved": attention(
        seeded((2, 5, 8)), rope={"style": "interleaved", "theta": 500.0}, is_causal=True
    ),
    "RoPE, some dimensions": attention(seeded((2, 5, 8)), rope={**ROPE, "dim": 4, "dim_offset": 2}),
    "RoPE, interleaved, some": attention(
        seeded((2, 5, 8)), rope={"style": "interleaved", "dim": 4, "dim_offset": 4}
    ),
    "RoPE, own positions": attention(seeded((2, 5, 8)), rope={**ROPE, "positions": [0, 0, 3, 1, 7]}),
    "RoPE, first position": attention(seeded((2, 5, 8)), rope={**ROPE, "positions": 11}),
    "RoPE, positions by row": attention(
        seeded((2, 1, 3, 4)), rope={**ROPE, "positions": [[0, 1, 2], [5, 3, 4]]}
    ),
    "RoPE, linear": attention(seeded(LONG), rope={**ROPE, "scaling": {"type": "linear", "factor": 4.0}}),
    "RoPE, NTK": attention(seeded(LONG), rope={**ROPE, "scaling": {"type": "ntk", "factor": 4.0}}),
    "RoPE, dynamic": attention(
        seeded(LONG),
        rope={**ROPE, "scaling": {"type": "dynamic", "factor": 4.0, "original_max_position_embeddings": 32}},
    ),
    "RoPE, dynamic, two dimensions": attention(
        seeded((1, 40, 2)),
        rope={**ROPE, "scaling": {"type": "dynamic", "factor": 4.0, "original_max_position_embeddings": 32}},
    ),
    "RoPE, dynamic, ragged": attention(
        {**seeded((2, 1, 40, 4)), "kv_lens": [36, 20]},
        rope={**ROPE, "scaling": {"type": "dynamic", "factor": 4.0, "original_max_position_embeddings": 32}},
    ),
    "RoPE, YaRN": attention(seeded(LONG), rope={**ROPE, "scaling": YARN}),
    "RoPE, YaRN, not truncated": attention(
        seeded(LONG), rope={**ROPE, "scaling": {**YARN, "truncate": False, "attention_factor": 1.25}}
    ),
    "RoPE, YaRN, a step": attention(seeded((1, 6, 2)), rope={**ROPE, "scaling": YARN}),
    "RoPE, Llama 3": attention(
        seeded(LONG),
        rope={
            **ROPE,
            "scaling": {
                "type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 32,
            },
        },
    ),
    "RoPE, LongRoPE": attention(
        seeded(LONG),
        rope={
            **ROPE,
            "scaling": {
                "type": "longrope",
                "short_factor": [1.0, 1.5, 2.0, 3.0],
                "long_factor": [2.0, 3.0, 4.0, 8.0],
                "factor": 4.0,
                "original_max_position_embeddings": 32,
            },
        },
    ),
    # Sinks.
    "sinks": attention(seeded((2, 5, 4)), sinks=[0.5, "-inf"]),
    "sinks and nothing else": attention({**pasted((3, 2)), "attn_mask": [[False] * 3] * 3}, sinks=[1.0]),
    "no sink, no key": attention({**pasted((3, 2)), "attn_mask": [[False] * 3] * 3}, sinks=["-inf"]),
    # Patterns.
    "prefix": attention(seeded((2, 8, 4)), pattern={"type": "prefix", "len": 3}),
    "documents": attention(
        seeded((2, 6, 4)), pattern={"type": "document", "ids": [0, 0, 1, 1, 1, 2]}, is_causal=True
    ),
    "documents by row": attention(
        seeded(FOUR), pattern={"type": "document", "ids": [[0, 0, 1, 1, 1, 2], [0, 1, 1, 1, 1, 1]]}
    ),
    "documents by row, ragged": attention(
        {**seeded(FOUR), "kv_lens": [3, 6]},
        pattern={"type": "document", "ids": [[0, 0, 1, 1, 1, 2], [0, 1, 1, 1, 1, 1]]},
    ),
    "documents, queries beyond": attention(
        seeded((2, 4, 4), (2, 6, 4)), q_positions=4, pattern={"type": "document", "ids": [0, 0, 1, 1, 1, 2]}
    ),
    "chunks": attention(seeded((2, 9, 4)), pattern={"type": "chunked", "size": 4}, is_causal=True),
    "chunks of a past": attention(
        seeded((2, 3, 4), (2, 9, 4)), pattern={"type": "chunked", "size": 4}, is_causal=True
    ),
    "chunks with positions": attention(
        seeded((2, 3, 4), (2, 9, 4)), q_positions=[2, 5, 8], pattern={"type": "chunked", "size": 4}
    ),
    "dilated": attention(seeded((2, 12, 4)), pattern={"type": "dilated", "window": 2, "stride": 3}),
    "longformer": attention(
        seeded((2, 12, 4)), pattern={"type": "longformer", "window": 4, "global": [0, 7]}
    ),
    "longformer without globals": attention(
        seeded((2, 12, 4)), pattern={"type": "longformer", "window": 4, "global": []}
    ),
    "bigbird": attention(
        seeded((2, 24, 4)),
        pattern={"type": "bigbird", "window": 3, "global": 1, "random": 1, "seed": 5, "block": 4},
    ),
    "blocks": attention(
        seeded((2, 8, 4)), pattern={"type": "block", "size": 3, "layout": [[1, 0, 0], [1, 1, 0], [0, 1, 1]]}
    ),
    "blocks of queries": attention(
        seeded((2, 4, 4), (2, 8, 4)), pattern={"type": "block", "size": 4, "layout": [[1, 0]]}
    ),
    "neighbours": attention(
        seeded((2, 20, 4)), pattern={"type": "neighborhood", "width": 5, "kernel_size": 3}
    ),
    "neighbours, dilated": attention(
        seeded((1, 49, 4)), pattern={"type": "neighborhood", "width": 7, "kernel_size": 3, "dilation": 2}
    ),
    # Gradients.
    "gradients": attention(
        {**pasted((3, 2)), "dout": typed(3, 2, seed=9)}, is_causal=True, returns=["out", "dq", "dk", "dv"]
    ),
    "gradients of shared heads": attention(
        {**seeded(GROUPS["q"], GROUPS["k"]), "dout": {"seed": 4, "shape": [2, 4, 5, 8]}},
        rope=ROPE,
        softcap=3.0,
        returns=["out", "lse", "dq", "dk", "dv"],
    ),
    "gradients, ragged": attention(
        {**RAGGED, "dout": padded(typed(*FOUR, seed=8), [4, 6])},
        is_causal=True,
        returns=["out", "dq", "dk", "dv"],
    ),
    "gradients, packed": attention(
        {**seeded((2, 5, 12)), "dout": {"seed": 4, "shape": [2, 5, 12]}},
        num_heads=3,
        window=[1, 0],
        returns=["out", "dq", "dk", "dv"],
    ),
    # MLA.
    "MLA": attention(latents(), "mla", is_causal=True, returns=["out", "lse"]),
    "MLA, rotated": attention(latents(2), "eager", is_causal=True, rope={"style": "interleaved"}),
    "MLA, ragged": attention(
        {**latents(2), "kv_lens": [3, 5], "q_lens": [2, 5]}, "eager", is_causal=True, rope=ROPE
    ),
    # Everything at once.
    "all together": attention(
        {**seeded(GROUPS["q"], GROUPS["k"]), "attn_mask": typed(5, 7)},
        scale=0.7,
        softcap=4.0,
        alibi_slopes="auto",
        window=[4, None],
        is_causal=True,
        sinks=[0.1, 0.2, 0.3, "-inf"],
        rope={**ROPE, "dim": 4},
        pattern={"type": "prefix", "len": 2},
    ),
}
