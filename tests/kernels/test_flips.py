"""One convention changed: which flips apply, that each is one change, and that the way back is found."""

from dataclasses import asdict, replace

import numpy as np
import pytest

from kernels import flips
from kernels.flips import NOTHING_FORBIDDEN, SAME_LENGTHS
from kernels.spec import parse_run

KINDS = {
    "is_causal": True,
    "rope": {"style": "half"},
    "window": [2, 1],
    "softcap": 3.0,
    "alibi_slopes": "auto",
    "sinks": [0.0, 1.0, 0.0, 1.0],
}


def spec_of(engine="reference", q_len=5, kv_len=8, attention=None, **more):
    def drawn(heads, length):
        return {"seed": 1, "shape": [1, heads, length, 8], "distribution": "normal"}

    inputs = {"q": drawn(4, q_len), "k": drawn(2, kv_len), "v": drawn(2, kv_len), **more}
    return parse_run({"engine": engine, "inputs": inputs, "attention": attention or {}}).spec


def names(spec):
    return {flip.name for flip in flips.flips(spec) if not flip.idle}


def test_only_what_applies_is_offered():
    plain = names(spec_of())
    assert not {name for name in plain if name.startswith(("causal_alignment", "rope", "window", "padding"))}
    assert {"causal.on", "softcap.on", "sink.on", "alibi.on", "scale.none", "heads.interleaved"} <= plain
    full = names(spec_of(attention=KINDS))
    assert {"causal_alignment.top_left", "rope_pairing.interleaved", "causal.off", "padding.mask"} <= full
    assert {"window.left_more", "window.left_less", "softcap.off", "sink.off", "alibi.sign"} <= full
    assert "window.right_more" not in full, "the causal mask forbids it anyway"


def test_what_the_engine_does_not_take_is_not_offered():
    assert "sink.on" in names(spec_of("flash"))
    plain = spec_of("flash", kv_len=5).inputs["q"]
    linear = replace(spec_of("flash", kv_len=5), engine="linear", inputs=dict.fromkeys("qkv", plain))
    assert names(linear)
    assert not {"sink.on", "softcap.on", "alibi.on", "pattern.window"} & names(linear)


def test_what_would_change_nothing_says_so():
    square = {flip.name: flip.idle for flip in flips.flips(spec_of(q_len=8, attention={"is_causal": True}))}
    assert square["causal_alignment.top_left"] == SAME_LENGTHS
    last = {flip.name: flip.idle for flip in flips.flips(spec_of(q_len=1))}
    assert last["causal.on"] == NOTHING_FORBIDDEN
    ragged = spec_of(q_len=8, attention={"is_causal": True}, kv_lens=[5])
    assert "causal_alignment.top_left" in names(ragged)


@pytest.mark.parametrize("attention", [{}, {"is_causal": True}, KINDS], ids=["plain", "causal", "all"])
def test_each_flip_is_one_change_and_is_recognised(attention):
    spec = spec_of(attention=attention)
    for flip in flips.flips(spec):
        if flip.idle:
            continue
        assert flips.between(spec, flip.spec) == flip, flip.name
        before, after = asdict(spec.attention), asdict(flip.spec.attention)
        changed = [name for name in before if before[name] != after[name]]
        assert len(changed) <= (2 if flip.kind == "pattern" else 1), flip.name
        others = [
            spec.dtype != flip.spec.dtype,
            spec.engine != flip.spec.engine,
            spec.inputs != flip.spec.inputs,
        ]
        assert len(changed) + sum(others) >= 1
    assert flips.between(spec, spec) is None
    assert flips.between(spec, replace(spec, dtype="float16", engine="eager")) is None


def test_a_flip_of_the_flip_leads_back():
    spec = spec_of(attention=KINDS)
    for kind in ("causal_alignment", "rope_pairing", "causal"):
        there = next(flip for flip in flips.flips(spec) if flip.kind == kind)
        back = [flip.spec.attention for flip in flips.flips(there.spec) if flip.kind == kind]
        assert spec.attention in back, kind


def test_interleaved_heads_are_tiled():
    spec = spec_of()
    k = np.arange(2 * 8 * 8.0).reshape(1, 2, 8, 8)
    replaced = flips.find(spec, "heads.interleaved").replaced({"k": k, "v": -k})
    assert replaced["k"].shape == (1, 4, 8, 8)
    for head in range(4):
        assert np.array_equal(replaced["k"][0, head], k[0, head % 2])
        assert np.array_equal(replaced["v"][0, head], -k[0, head % 2])


def test_the_padding_that_stands_for_a_causal_mask():
    flip = flips.find(spec_of(attention={"is_causal": True}), "padding.mask")
    assert flip.replaced({})["attn_mask"].tolist() == [[True] * 6 + [False] * 2]
    assert not flip.spec.attention.is_causal


def test_a_run_may_outlive_its_engine():
    assert flips.flips(replace(spec_of(), engine="of-last-year")) == []


def test_every_engine_has_flips_or_none_and_says_so_without_failing():
    mla = {"q_nope": (4, 3, 8), "q_rope": (4, 3, 4), "c_kv": (5, 6), "k_rope": (5, 4), "w_uk": (4, 6, 8),
           "w_uv": (4, 6, 8)}  # fmt: skip
    scan = {"x": (2, 5, 4), "b": (2, 5, 3), "c": (2, 5, 3), "delta": (2, 5, 4), "a": (2, 4, 3)}
    for engine, shapes in (("mla", mla), ("scan", scan)):
        inputs = {name: {"seed": 1, "shape": list(shape)} for name, shape in shapes.items()}
        if engine == "scan":
            inputs["a"] = (-np.ones(shapes["a"])).tolist()
            inputs["delta"] = np.ones(shapes["delta"]).tolist()
        spec = parse_run({"engine": engine, "inputs": inputs}).spec
        for flip in flips.flips(spec):
            assert flip.idle or flips.takes(flip.spec)


def test_nothing_is_found_by_a_name_that_does_not_apply():
    assert flips.find(spec_of(), "rope.off") is None
    assert flips.find(spec_of(q_len=1), "causal.on") is None, "it would change nothing"
