"""The page on the Transformer: its walk against PyTorch, its stacks, its family, its bill."""

import re
from typing import Any

import numpy as np
import pytest
import torch
from django.test import Client
from torch import nn

from concepts.facts import FACTS
from concepts.figures import Links, registry
from concepts.figures import walk as walked
from concepts.figures.depth import FIGURE as DEPTH
from concepts.figures.family import HIGH, MEMBERS, WIDE, tree
from concepts.figures.projections import WIDTH, embedded
from concepts.figures.transformer import FIGURE as WALK
from kernels.blocks import EPSILON, Network, Projections
from kernels.sizing.original import ORIGINALS, counted_flops, params, timed_flops

LINKS = Links("/page/", "/fragment/", "/lab/")
FAMILY, BILL = registry()["family"], registry()["bill"]


def values(**state: str) -> dict[str, Any]:
    found: dict[str, Any] = WALK.data(state)["values"]
    return found


def fact(name: str) -> float:
    return float(FACTS[name].text.replace(",", "").replace("−", "-"))


# -- the walk ------------------------------------------------------------------------------------------------


def parameter(array: np.ndarray) -> nn.Parameter:
    return nn.Parameter(torch.tensor(array, dtype=torch.float64))


def fill(module: nn.MultiheadAttention, given: Projections) -> None:
    module.in_proj_weight = parameter(np.concatenate([given.q.T, given.k.T, given.v.T]))
    module.out_proj.weight = parameter(given.o.T)
    nn.init.zeros_(module.in_proj_bias)
    nn.init.zeros_(module.out_proj.bias)


def feed(module: nn.Module, given: Network) -> None:
    module.linear1.weight, module.linear1.bias = parameter(given.w1.T), parameter(given.b1)
    module.linear2.weight, module.linear2.bias = parameter(given.w2.T), parameter(given.b2)


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_the_walk_is_that_of_pytorchs_transformer(norm: str) -> None:
    """Two whole stacks of a layer each, from the same numbers."""
    shape = {
        "layer_norm_eps": EPSILON,
        "batch_first": True,
        "norm_first": norm == "pre",
        "dtype": torch.float64,
    }
    encoder = nn.TransformerEncoderLayer(WIDTH, walked.HEADS, walked.WIDER, 0.0, **shape)
    decoder = nn.TransformerDecoderLayer(WIDTH, walked.HEADS, walked.WIDER, 0.0, **shape)
    fill(encoder.self_attn, walked.READER)
    fill(decoder.self_attn, walked.WRITER)
    fill(decoder.multihead_attn, walked.ACROSS)
    feed(encoder, walked.NETWORKS[0])
    feed(decoder, walked.NETWORKS[1])

    def last(x: torch.Tensor) -> torch.Tensor:
        return nn.functional.layer_norm(x, (WIDTH,), eps=EPSILON) if norm == "pre" else x

    state = values(norm=norm)
    read, written = state["text"], ("[START]", *state["written"])
    mask = nn.Transformer.generate_square_subsequent_mask(len(written), dtype=torch.float64)
    with torch.no_grad():
        memory = last(encoder(torch.tensor(walked.entering(read))[None]))
        made = last(decoder(torch.tensor(walked.entering(written))[None], memory, tgt_mask=mask))[0]
        table = torch.tensor(embedded(walked.vocabulary(state)))
        chances = torch.softmax(made[-1] @ table.T, dim=-1).numpy()
    places = walked.walk(state)
    np.testing.assert_allclose(places[-1].vector, chances, atol=1e-12)
    end = [place for place in places if place.stack == "encoder"][-1]
    np.testing.assert_allclose(end.out, memory[0].numpy(), atol=1e-12)


def test_the_order_of_the_blocks() -> None:
    def order(norm: str) -> list[str]:
        return [f"{place.stack[0]} {place.part} {place.kind}" for place in walked.walk(values(norm=norm))]

    assert order("post") == [
        "e in in", "e self sub", "e self add", "e self norm", "e ffn sub", "e ffn add", "e ffn norm",
        "d in in", "d self sub", "d self add", "d self norm", "d cross sub", "d cross add", "d cross norm",
        "d ffn sub", "d ffn add", "d ffn norm", "d out out",
    ]  # fmt: skip
    assert order("pre")[1:4] == ["e self norm", "e self sub", "e self add"]
    assert order("pre")[7] == "e final norm"
    assert len(order("pre")) == 20


def test_a_step_says_what_it_does() -> None:
    assert "Step 12 of 18, decoder: “trinkt” asks" in WALK.sentence(values())
    assert "Step 1 of 18, encoder: “drinks” becomes four numbers" in WALK.sentence(values(step="1"))
    assert "sublayer made is added to what went around it" in WALK.sentence(values(step="3"))
    assert "no other word is looked at" in WALK.sentence(values(step="5"))
    assert "Step 18 of 18, decoder: every word at hand" in WALK.sentence(values(step="20"))
    assert WALK.sentence(values(step="14", norm="pre")).startswith("Step 14 of 20, decoder: “trinkt” asks")


def test_no_word_of_the_decoder_sees_a_later_one() -> None:
    few = [place for place in walked.walk(values(written="sie")) if place.stack == "decoder"]
    many = [place for place in walked.walk(values(written="sie trinkt tee")) if place.stack == "decoder"]
    for one, other in zip(few[:-1], many[:-1], strict=True):
        np.testing.assert_allclose(one.out[:2], other.out[:2], atol=1e-12)


def test_every_step_is_drawn_and_a_link(client: Client) -> None:
    for state in ({}, {"norm": "pre"}):
        html = WALK.view(values(**state), LINKS)
        count = len(walked.walk(values(**state)))
        linked = set(re.findall(r"step=(\d+)", html))
        assert linked == set(map(str, range(1, count + 1))) - {"12"}  # the usual step is in no address
    html = client.get("/en/concepts/transformer/?step=20&norm=pre&text=a&place=4").content.decode()
    assert "Step 20 of 20" in html


def test_the_lab_gets_the_attention_that_is_lit() -> None:
    across = dict(WALK.lab(values()))
    assert "causal" not in across
    assert dict(WALK.lab(values(step="9")))["causal"] == "on"
    first = dict(WALK.lab(values(step="1")))
    assert first == dict(WALK.lab(values(step="4")))
    assert first != across


# -- the text ------------------------------------------------------------------------------------------------


def test_numbers_of_the_worked_example() -> None:
    places = {(one.stack, one.part, one.kind): one for one in walked.walk(values())}
    entered, made = places["encoder", "in", "in"].vector, places["encoder", "self", "sub"].vector
    added = entered + made
    normed = (added - added.mean()) / added.std()
    for name, vector in (("around", entered), ("made", made), ("added", added), ("normed", normed)):
        shown = [float(x.replace("−", "-")) for x in re.findall(r"[−\d.]+", FACTS[f"walk-{name}"].text)]
        np.testing.assert_allclose(shown, vector, atol=0.006)
    assert fact("walk-mean") == pytest.approx(added.mean(), abs=0.006)
    assert fact("walk-deviation") == pytest.approx(added.std(), abs=0.006)
    assert fact("walk-cross-drinks") == 0.39
    assert fact("walk-cross-tea") == 0.90


def layer(width: int, wide: int, attentions: int) -> int:
    """Parameters: four matrices of attention without biases, a network with them, a norm to each."""
    return attentions * 4 * width**2 + 2 * width * wide + wide + width + (attentions + 1) * 2 * width


def test_parameters_of_the_original_by_hand() -> None:
    encoder, decoder = layer(512, 2048, 1), layer(512, 2048, 2)
    assert fact("original-encoder-layer") == encoder
    assert fact("original-decoder-layer") == decoder
    assert fact("original-base") == params(ORIGINALS["base"]) == 6 * (encoder + decoder) + 37_000 * 512
    big = 6 * (layer(1024, 4096, 1) + layer(1024, 4096, 2)) + 37_000 * 1024
    assert fact("original-big-millions") == pytest.approx(big / 1e6, abs=0.06)
    assert fact("original-attention-weights") == 4 * 512**2
    assert fact("original-network-weights") == pytest.approx(2 * 512 * 2048, rel=0.002)
    assert fact("original-base-rows") == pytest.approx((65e6 - 6 * (encoder + decoder)) / 512e3, abs=0.06)


def test_what_training_took() -> None:
    assert timed_flops(8, 12, 9.5) == pytest.approx(3.3e18, rel=0.01)
    assert timed_flops(8, 84, 9.5) == pytest.approx(2.3e19, rel=0.01)
    assert fact("original-base-rate") == pytest.approx(3.3e18 / (8 * 12 * 3600) / 1e12, abs=0.06)
    assert fact("original-big-rate") == pytest.approx(2.3e19 / (8 * 84 * 3600) / 1e12, abs=0.06)
    assert (fact("original-base-gpu-hours"), fact("original-big-gpu-hours")) == (96, 672)
    assert counted_flops(ORIGINALS["big"]) < 2.3e19
    for name, size in (("base", 3.3e18), ("big", 2.3e19)):
        share = 100 * counted_flops(ORIGINALS[name]) / size
        assert fact(f"original-{name}-share") == pytest.approx(share, abs=0.6)


def test_the_bill_of_both_models() -> None:
    assert "96" in BILL.render({}, LINKS)
    assert "672" in BILL.render({"run": "big", "hours": "84"}, LINKS)


def test_depth_as_the_text_has_it() -> None:
    assert fact("depth-pre-deep") > 1.7 * fact("depth-pre-six")
    assert fact("depth-pre-deep-slope") < 0.6 * fact("depth-pre-six-slope")
    assert fact("depth-post-deep-slope") > 5 * fact("depth-pre-deep-slope")
    said = DEPTH.sentence(DEPTH.data({})["values"])
    assert "After 24 layers the stream has size 1.00 with post-LN" in said.replace("size 1 ", "size 1.00 ")


def test_the_family_is_told_apart_by_the_stacks_that_are_kept() -> None:
    kept = {name: one.kept for name, one in MEMBERS.items()}
    assert kept == {
        "transformer": "both", "t5": "both", "bert": "encoder", "gpt": "decoder", "gpt2": "decoder",
        "gpt3": "decoder", "palm": "decoder", "llama": "decoder", "gemini": "decoder",
    }  # fmt: skip
    html = FAMILY.render({}, LINKS)
    for one in MEMBERS.values():
        assert one.title in html


def test_every_model_hangs_from_the_first_and_none_from_another() -> None:
    drawn = tree("gemini", dict.fromkeys(MEMBERS, ""))
    boxes = {block.text: block for block in drawn.blocks if block.kind != "note"}
    first = boxes.pop("Transformer, 2017")
    assert len(drawn.wires) == len(boxes) == len(MEMBERS) - 1
    for wire, box in zip(drawn.wires, boxes.values(), strict=True):
        x, y = (float(number) for number in re.match(r"M([\d.]+) ([\d.]+)", wire.path).groups())
        assert first.x <= x <= first.x + WIDE
        assert first.y <= y <= first.y + HIGH
        assert wire.end in ((box.x, box.middle[1]), (box.middle[0], box.y))
