"""The page on what a model needs in memory: its figure against REST and against sums made here, its facts
against the shapes that models' authors publish."""

import json
import re
import shlex
from typing import Any

import pytest
from django.test import Client

from concepts.facts import FACTS
from concepts.figures import Links, stacks
from concepts.figures.fit import EXAMPLES, FIGURE, MOST_CARDS, amount, answer, percent, question
from kernels.sizing.models import models

LINKS = Links("/page/", "/fragment/", "/lab/", origin="https://lab.example")
GB, GIB = 10**9, 2**30
LLAMA_3_8B = 8_030_261_248  # parameters, as transformers counts them
USUAL: dict[str, str] = {}
STATES: tuple[dict[str, str], ...] = (
    USUAL,
    {"batch": "64", "cache": "fp8_e4m3"},
    {"model": "llama-2-70b", "gpu": "a100-80-sxm", "cards": "2", "weights": "int4", "n": "30000"},
    {"model": "gpt-oss-120b", "gpu": "h100-sxm", "weights": "own", "step": "all", "aside": "3.5"},
    {"model": "deepseek-v3", "gpu": "h200", "cards": "8", "weights": "own", "cache": "int4"},
    {"model": "jamba-v0.1", "gpu": "l4", "cards": "4", "step": "prompt", "weights": "int8"},
)


def fact(name: str) -> float:
    return float(FACTS[f"fit-{name}"].text.replace(",", ""))


def values(**state: str) -> dict[str, Any]:
    found: dict[str, Any] = FIGURE.data(state)["values"]
    return found


def commands(html: str) -> list[tuple[str, dict[str, Any]]]:
    """The addresses and bodies that the figure offers to be copied, as a shell would read them."""
    listing = re.search(r'<pre class="listing-code".*?</pre>', html, re.DOTALL)
    assert listing
    text = re.sub(r"<[^>]+>", "", listing[0]).replace("&#x27;", "'").replace("&quot;", '"')
    words = [shlex.split(one.replace("\\\n", " ")) for one in text.split("curl")[1:]]
    return [(one[one.index("-s") + 1], json.loads(one[one.index("-d") + 1])) for one in words]


@pytest.mark.parametrize("state", STATES, ids=lambda state: state.get("model", "llama-3-8b"))
def test_what_is_copied_asks_rest_what_the_figure_shows(
    state: dict[str, str], client: Client, db: None
) -> None:
    shown = FIGURE.data(state)
    asked = commands(FIGURE.view(shown["values"], LINKS))
    assert [address for address, _body in asked] == [
        "https://lab.example/api/v1/estimates/memory",
        "https://lab.example/api/v1/estimates/fit",
    ]
    memory, fit = (
        client.post(address.removeprefix(LINKS.origin), body, content_type="application/json").json()
        for address, body in asked
    )
    assert memory["per_gpu_bytes"] == shown["needed"] == sum(shown["bytes"].values())
    assert memory["fits"] is shown["fits"]
    assert memory["free_bytes"] == shown["card"] - shown["needed"]
    assert fit["len"] == shown["longest"]


def test_llama_3_8b_by_hand() -> None:
    found = FIGURE.data(USUAL)
    cache = 2 * 32 * 8 * 128 * 2 * 4096
    assert found["bytes"]["weights"] == 2 * LLAMA_3_8B
    assert found["bytes"]["cache"] == cache == GIB // 2
    assert found["bytes"]["logits"] == 128_256 * 4
    assert found["bytes"]["activations"] == 2 * (2 * 4096 + 2 * 14336)
    assert found["bytes"]["overhead"] == 1_400_000_000
    assert found["needed"] == 2 * LLAMA_3_8B + cache + 128_256 * 4 + 73_728 + 1_400_000_000
    free = 24 * GB - (found["needed"] - cache)
    assert found["longest"] == free // 131_072
    assert found["most_texts"] == (24 * GB - 2 * LLAMA_3_8B - 1_400_000_000) // (cache + 513_024 + 73_728)


def test_a_card_of_several_has_its_share_and_what_is_set_aside_whole() -> None:
    one, four = (FIGURE.data({"cards": cards})["bytes"] for cards in ("1", "4"))
    assert four["weights"] == pytest.approx(one["weights"] / 4, abs=1)
    assert four["cache"] == one["cache"] / 4
    assert four["overhead"] == one["overhead"]


@pytest.mark.parametrize(
    ("state", "verdict"),
    [
        (USUAL, "needs 18.00 GB (16.76 GiB), and the card has 24 GB: it fits, 6.00 GB are left, and up to"
                " 49,887 tokens would fit."),
        ({"batch": "64"}, "27.86 GB are missing; up to 775 tokens each would fit."),
        ({"model": "llama-2-70b", "gpu": "a100-80-sxm"}, "60.70 GB are missing, and no length fits."),
        ({"model": "llama-2-70b", "gpu": "a100-80-sxm", "cards": "2"},
         "on each of 2 cards, which have 80 GB: it fits, 8.95 GB are left"),
    ],
)  # fmt: skip
def test_the_verdict_is_said(state: dict[str, str], verdict: str) -> None:
    assert verdict in FIGURE.sentence(values(**state))


def test_the_question_is_turned_round() -> None:
    html = FIGURE.view(values(), LINKS)
    text = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", html))
    assert "the longest text 49,887 the model was made for 8,192 the most texts of 4,096 tokens 12" in text
    big = re.sub(r"<[^>]+>", " ", FIGURE.view(values(model="llama-3.1-405b"), LINKS))
    assert re.search(rf"RTX 4090\s+24\s+more than {MOST_CARDS}", big)
    assert re.search(r"H200\s+141\s+8", big)
    assert "the longest of each of 64 texts" in FIGURE.view(values(batch="64"), LINKS)


def test_examples_show_both_and_lead_to_themselves() -> None:
    usual = FIGURE.usual
    fits = [answer({**usual, **changed}).left >= 0 for changed in EXAMPLES]
    assert fits == [True, False, True, False, True, True, False, False, True, True]
    html = FIGURE.view(values(model="mixtral-8x7b", step="all"), LINKS)
    for changed in EXAMPLES:
        address = FIGURE.address(LINKS, {**usual, **changed}).replace("&", "&amp;")
        assert f'href="{address}"' in html


def test_every_choice_of_every_model_is_a_question() -> None:
    for slug in models():
        for state in ({"model": slug}, {"model": slug, "step": "all", "weights": "own", "cache": "int4"}):
            assert FIGURE.data(state)["needed"] > 0
    assert "weights_dtype" not in question(values(weights="own"))


def test_cards_that_cannot_share_a_model_are_refused_in_words() -> None:
    data = FIGURE.data({"model": "gpt2-xl", "cards": "8"})  # 25 heads
    assert data["problems"][0]["field"] == "cards"
    assert "GPT-2 XL cannot be shared by 8 cards" in data["problems"][0]["detail"]
    assert "shows 1" in data["problems"][0]["detail"]
    assert "shows 4" in FIGURE.data({"model": "gpt2-large", "cards": "8"})["problems"][0]["detail"]  # 20
    assert "on each of 4 cards" in FIGURE.render({"model": "gpt2-large", "cards": "8"}, LINKS)


def test_the_lab_gets_the_cache_of_a_layer() -> None:
    assert dict(FIGURE.lab(values())) == {
        "source": "seed", "seed": "1", "batch": "1", "dtype": "float16", "engine": "decode", "heads": "32",
        "kv_heads": "8", "q_len": "1", "kv_len": "4096", "head_dim": "128",
    }  # fmt: skip
    assert dict(FIGURE.lab(values(n="1000000")))["kv_len"] == "4096"
    assert dict(FIGURE.lab(values(cache="fp8_e4m3")))["option_kv_dtype"] == "fp8_e4m3"


@pytest.mark.parametrize("slug", models())
def test_the_lab_would_run_it(slug: str) -> None:
    from django.conf import settings

    from kernels.spec import parse_run
    from lab.form.forms import LabForm
    from workers import limits

    form = LabForm.from_link(dict(FIGURE.lab(values(model=slug))))
    assert not form.errors
    spec = parse_run(form.body()).spec
    cost = limits.admit(spec, settings.RUN_BUDGET_ANONYMOUS)
    if slug == "llama-3-8b":  # keys and values of one of 32 layers; then a query, an output
        assert cost.bytes_min == pytest.approx(2**29 / 32, rel=0.002)


def test_small_amounts_are_not_nothing() -> None:
    assert amount(0.0049) == "<\u202f0.01"
    assert amount(32) == "32.00"
    assert amount(0) == "0.00"
    assert percent(0.0004) == "<\u202f0.1\u202f%"
    assert percent(0.75) == "75\u202f%"


# -- the bar -------------------------------------------------------------------------------------------------


def pieces(html: str) -> list[float]:
    return [float(width) for width in re.findall(r'<rect class="piece [^>]*width="([\d.]+)"', html)]


def test_a_bar_is_as_long_as_its_parts_and_its_frame_as_its_limit() -> None:
    room = stacks.WIDTH - 2 * stacks.EDGE
    html = stacks.svg(stacks.Stack([30, 10, 0], 80, "above", "below"), "label")
    assert pieces(html) == pytest.approx([room * 30 / 80 - 1, room * 10 / 80 - 1], abs=0.1)
    assert f'class="limit" x="4" y="30" width="{room:.1f}"' in html
    assert 'class="end"' in html
    over = stacks.svg(stacks.Stack([30, 90], 60, "above", "below"), "label")
    assert f'class="limit" x="4" y="30" width="{room / 2:.1f}"' in over
    assert 'class="end passed"' in over
    assert sum(pieces(over)) == pytest.approx(room - 2, abs=0.1)


def test_a_piece_has_its_number_where_there_is_room() -> None:
    html = stacks.svg(stacks.Stack([90, 1, 9], 100, "", ""), "label")
    assert re.findall(r'class="number"[^>]*>(\d)<', html) == ["1", "3"]


# -- the text ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    {
        "params": LLAMA_3_8B, "weights-bytes": 16_060_522_496, "weights": 16.06, "weights-gib": 14.96,
        "cache-bytes": 536_870_912, "cache": 0.54, "cache-gib": 0.5, "sum": 16.60, "sum-gib": 15.46,
        "token": 131_072, "layer-mib": 16, "context": 8192, "step-kib": 72, "prompt": 0.30,
        "logits-all": 2.10, "logits-all-gib": 1.96, "longest": 49_887, "longest-64": 775, "needed": 18.00,
        "cache-64": 34.4, "cache-64-llama2": 137.4, "cache-512": 4.3, "missing-64": 27.9, "saved-int4": 10.3,
        "mixtral-params": 46.70, "mixtral-active": 12.88, "mixtral-16": 93.41, "mixtral-active-gb": 25.76,
        "70b-params": 68.98, "70b-16": 137.95, "two-left": 22.0, "two-gqa": 16, "two-mha": 2,
        "405b-params": 405.85, "gemma-16": 5.01, "tables": 2.10, "tables-percent": 13,
        "int4-bits": 4.16, "training-bytes": 16, "training": 128.5, "training-times": 8, "gib-percent": 7.4,
        "4090-shown": 25.76, "v100-before": 1.4,
    }.items(),
)  # fmt: skip
def test_facts(name: str, value: float) -> None:
    assert fact(name) == value


def test_four_bits_from_the_shape_of_llama_3_8b() -> None:
    width, mlp, kv, layers, vocab = 4096, 14336, 1024, 32, 128_256
    matrices = layers * (2 * width * width + 2 * width * kv + 3 * width * mlp)
    tables, norms = 2 * vocab * width, (2 * layers + 1) * width
    assert matrices + tables + norms == LLAMA_3_8B
    stored = matrices * (4 + 20 / 128) / 8 + 2 * (tables + norms)
    assert fact("8b-4") == pytest.approx(stored / GB, abs=0.005)
    assert fact("int4-mean") == pytest.approx(8 * stored / LLAMA_3_8B, abs=0.005)
    assert fact("int4-percent") == round(100 * stored / (2 * LLAMA_3_8B))


def test_an_untied_gemma_has_its_table_twice() -> None:
    assert fact("gemma-untied") - fact("gemma-16") == pytest.approx(2 * 256_000 * 2048 / GB, abs=0.011)
