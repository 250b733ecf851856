"""The cache of keys and values: steps against PyTorch, counts against loops, bytes against known models."""

import itertools
import json
import re
from urllib.parse import urlencode

import numpy as np
import pytest
import torch
from django.http import QueryDict
from django.test import Client
from torch.nn.functional import scaled_dot_product_attention

from concepts.facts import FACTS
from concepts.figures import Links
from concepts.figures.kv_cache import FIGURES, KIB, SLUGS, TEXT, anew, cached, fields_of
from concepts.figures.past import EXACT, FIGURE, LAYERS, changes, kept, rotated
from concepts.figures.past import TEXT as PAST_TEXT
from concepts.figures.projections import W_K, W_Q, W_V, embedded
from kernels.execute import execute
from kernels.sizing.kv_cache import kv_cache
from kernels.sizing.lengths import textbook_cost, writing_cost
from kernels.sizing.models import read_model
from kernels.sizing.storage import cache_format
from kernels.spec import parse_run
from lab.form.forms import LabForm

STEP, WRITING, CALCULATOR = FIGURES
LINKS = Links("/page/", "/fragment/", "/lab/")


def values(figure, **state: str) -> dict:
    return figure.data(state)["values"]


# -- a step --------------------------------------------------------------------------------------------------


def test_both_ways_give_the_causal_attention_of_pytorch() -> None:
    q, k, v = (torch.tensor(embedded(TEXT) @ matrix) for matrix in (W_Q, W_K, W_V))
    theirs = scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)[0].numpy()
    for way in (anew, cached):
        np.testing.assert_allclose(np.stack([one.out for one in way(TEXT)]), theirs, atol=1e-13)


def test_what_a_step_computes_is_counted() -> None:
    for t, (without, mine) in enumerate(zip(anew(TEXT), cached(TEXT), strict=True), 1):
        assert (without.projected, without.scores, without.kept) == (t, sum(range(1, t + 1)), 0)
        assert (mine.projected, mine.scores, mine.kept) == (1, t, t * (3 + 2))


def test_the_grids_show_what_is_computed_again_and_what_is_kept() -> None:
    view = STEP.view(values(STEP, step="4"), LINKS)
    without, mine = re.findall(r"<table class=\"matrix\">.*?</table>", view, re.DOTALL)
    assert (without.count("again"), without.count(">new<"), without.count("kept")) == (3 + 6, 5, 0)
    assert (mine.count("again"), mine.count(">new<"), mine.count("kept")) == (0, 5, 3)
    assert mine.count(">–<") == 6


def test_steps_lead_back_and_on_and_stop_at_the_ends() -> None:
    def moves(step: str) -> list[str]:
        return re.findall(r'href="[^"]*?(step=\d+|)#step"', STEP.view(values(STEP, step=step), LINKS))

    assert moves("4") == ["step=3", ""]  # the fifth is where the page opens
    assert moves("1") == ["step=2"]
    assert moves("6") == [""]
    assert STEP.at(values(STEP, step="8")) == len(TEXT)
    told = STEP.sentence(values(STEP, text="one two", step="8"))
    assert "Step 2, “two”: 3 scores without a cache, 2 with one; in all steps 4 and 3." in told


def test_the_lab_gets_one_query_and_the_past(client: Client, db: None) -> None:
    fields = dict(STEP.lab(values(STEP)))
    shapes = [np.shape(json.loads(fields[name])) for name in ("q", "k", "v", "in_past_key", "in_past_value")]
    assert shapes == [(1, 3), (1, 3), (1, 2), (4, 3), (4, 2)]
    assert fields["engine"] == "decode"
    page = client.get(f"/en/lab/?{urlencode(STEP.lab(values(STEP)))}").content.decode()
    assert fields["in_past_key"] in page.replace("&quot;", '"')
    assert 'class="error"' not in page
    first = [name for name, _value in STEP.lab(values(STEP, step="1"))]
    assert not any("past" in name for name in first)


@pytest.mark.parametrize("step", ["1", "5"])
def test_the_run_computes_the_step_and_hands_back_the_next_cache(step: str) -> None:
    state = values(STEP, step=step)
    form = LabForm.from_link(QueryDict(urlencode(STEP.lab(state))))
    body = form.body()
    assert not form.errors
    assert body["engine"] == "decode"
    parsed = parse_run({**body, "engine": "reference"})  # the same run, without a kernel
    found = execute(parsed.spec, parsed.arrays).arrays
    np.testing.assert_allclose(found["out"][0], STEP.ways(state)[1][-1].out, atol=1e-3)
    x = embedded(TEXT[: int(step)])
    np.testing.assert_allclose(found["present_key"], x @ W_K, atol=1e-4)
    np.testing.assert_allclose(found["present_value"], x @ W_V, atol=1e-4)


# -- when it stays right -------------------------------------------------------------------------------------


def in_torch(words: tuple[str, ...], *, has_rope: bool) -> list[torch.Tensor]:
    """Keys and values of both layers under a causal mask, by PyTorch and complex numbers."""

    def turn(x: torch.Tensor) -> torch.Tensor:
        pairs = torch.view_as_complex(x.reshape(-1, 2, 2))
        angles = torch.arange(len(x))[:, None] * torch.tensor([1.0, 10_000**-0.5], dtype=torch.float64)
        return torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)).reshape(-1, 4)

    x, found = torch.tensor(embedded(words)), []
    for matrices in LAYERS:
        q, k, v = (x @ torch.tensor(matrix) for matrix in matrices)
        if has_rope:
            q, k = turn(q), turn(k)
        found += [k, v]
        x = x + scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)[0]
    return found


@pytest.mark.parametrize("has_rope", [True, False])
def test_two_layers_are_those_of_pytorch(has_rope: bool) -> None:
    theirs = torch.stack(in_torch(PAST_TEXT, has_rope=has_rope)).numpy()
    np.testing.assert_allclose(kept(PAST_TEXT, "causal", has_rope=has_rope), theirs, atol=1e-12)


def hit(event: str, mask: str, *, has_rope: bool) -> list[str]:
    """Of each word that stays, which of its four entries change: 1 or 0."""
    _words, found = changes(event, mask, has_rope=has_rope)
    return ["".join("1" if x > EXACT else "0" for x in row) for row in found.tolist()]


def test_appending_changes_nothing_under_a_causal_mask() -> None:
    for mask, has_rope in itertools.product(("causal", "window"), (True, False)):
        assert hit("append", mask, has_rope=has_rope) == ["0000"] * 5
    assert "No key and no value of the 5 words before changes" in FIGURE.sentence(
        values(FIGURE, mask="causal")
    )


def test_appending_without_a_mask_changes_all_but_the_first_layer() -> None:
    assert hit("append", "all", has_rope=True) == ["0011"] * 5
    told = FIGURE.sentence(values(FIGURE))
    assert told.startswith("For 5 of the 5 words that stay")
    assert told.endswith("key, layer 2; value, layer 2.")


def test_a_changed_beginning_reaches_as_far_as_the_mask_lets_it() -> None:
    assert hit("first", "causal", has_rope=True) == ["0011"] * 4
    assert hit("first", "window", has_rope=True) == ["0011", "0000", "0000", "0000"]


def test_a_shift_turns_the_keys_of_every_layer_and_no_value_by_itself() -> None:
    assert [one[:2] for one in hit("drop", "causal", has_rope=True)] == ["10"] * 4
    assert [one[:2] for one in hit("drop", "causal", has_rope=False)] == ["00"] * 4
    assert hit("drop", "window", has_rope=True)[1:] == ["1010"] * 3
    assert hit("drop", "window", has_rope=False) == ["0011", "0000", "0000", "0000"]


def test_a_rotated_key_serves_every_later_query() -> None:
    q, k = embedded(("dog",)), embedded(("man",))
    rows = rotated(np.concatenate([k, *([q] * 4)]))  # a key at 0, the query at 1 to 4
    shifted = rotated(np.concatenate([q, k, *([q] * 4)]))  # both a place later
    np.testing.assert_allclose(rows[1:] @ rows[0], shifted[2:] @ shifted[1], atol=1e-13)


def test_what_changes_is_framed() -> None:
    assert "painted" not in FIGURE.view(values(FIGURE, mask="causal"), LINKS)
    assert FIGURE.view(values(FIGURE, event="first", mask="causal"), LINKS).count("painted") == 8


# -- in sum --------------------------------------------------------------------------------------------------


def looped(prompt: int, written: int, d: int) -> tuple[int, int]:
    """Operations without a cache and with one, pass by pass: 24d² a token, 4d a pair."""
    without = mine = 0
    for step, length in enumerate(range(prompt, prompt + written)):
        without += 24 * d * d * length + 4 * d * (length * (length + 1) // 2)
        new = 24 * d * d + 4 * d * length
        mine += new if step else 24 * d * d * length + 4 * d * (length * (length + 1) // 2)
    return without, mine


@pytest.mark.parametrize(("prompt", "written", "d"), [(1, 1, 8), (1, 6, 3), (7, 5, 64), (300, 40, 16)])
def test_writing_costs_what_its_passes_cost(prompt: int, written: int, d: int) -> None:
    found = tuple(writing_cost(prompt, written, d, has_cache=way).total for way in (False, True))
    assert found == looped(prompt, written, d)
    assert found[1] == textbook_cost(prompt + written - 1, d, is_causal=True).total


def test_the_figure_adds_up_and_says_so() -> None:
    state = {"prompt": "100", "new": "20", "d": "64"}
    without, mine = looped(100, 20, 64)
    assert WRITING.data(state)["operations"] == {"without": without, "with": mine}
    assert f"{without / mine:.1f} times the operations" in WRITING.sentence(values(WRITING, **state))
    last = WRITING.last(values(WRITING, **state), has_cache=True)
    assert last == 24 * 64 * 64 + 4 * 64 * 119
    one = values(WRITING, new="1")
    assert "costs the same either way" in WRITING.sentence(one)
    assert WRITING.last(one, has_cache=True) == WRITING.last(one, has_cache=False)


# -- bytes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("slug", "layers", "kv", "width", "kib"),
    [
        ("gpt2", 12, 12, 64, 36), ("llama-2-7b", 32, 32, 128, 512), ("llama-2-13b", 40, 40, 128, 800),
        ("llama-2-70b", 80, 8, 128, 320), ("llama-3-8b", 32, 8, 128, 128), ("llama-3-70b", 80, 8, 128, 320),
        ("llama-3.1-405b", 126, 8, 128, 504), ("mistral-7b-v0.2", 32, 8, 128, 128),
        ("qwen3-8b", 36, 8, 128, 144), ("falcon-7b", 32, 1, 64, 8),
    ],
)  # fmt: skip
def test_fields_and_bytes_of_models(slug: str, layers: int, kv: int, width: int, kib: int) -> None:
    one = fields_of(slug)
    assert (one.layers, one.kv, one.width) == (layers, kv, width)
    state = {"layers": str(layers), "kv": str(kv), "width": str(width), "length": "3000", "batch": "2"}
    found = CALCULATOR.data(state)
    assert found["bytes_per_token"] == kib * KIB
    assert found["bytes"] == kv_cache(read_model(slug).model, cache_format("float16"), 3000, 2).bytes


def test_only_models_whose_layers_are_alike_are_offered() -> None:
    assert len(SLUGS) == 10
    for slug in ("gemma-2-9b", "deepseek-v2", "mistral-7b-v0.1"):
        with pytest.raises(ValueError, match="do not all keep the same"):
            fields_of(slug)


@pytest.mark.parametrize(
    ("bits", "size"),
    [("32", 2 * 128 * 4), ("16", 2 * 128 * 2), ("8", 2 * (128 + 4)), ("4", 2 * (64 + 4))],
)
def test_fewer_bits_come_with_scales(bits: str, size: int) -> None:
    state = {"layers": "1", "kv": "1", "width": "128", "bits": bits}
    assert CALCULATOR.data(state)["bytes_per_token"] == size


def test_the_calculator_says_what_the_page_says() -> None:
    def told(**state: str) -> str:
        return CALCULATOR.sentence(values(CALCULATOR, **state))

    assert told() == "320 KiB per token; 4,096 tokens take 1.25 GiB."
    assert told(kv="64") == "2,560 KiB per token; 4,096 tokens take 10 GiB."
    assert told(kv="1") == "40 KiB per token; 4,096 tokens take 160 MiB."
    assert told(batch="16", length="131072").endswith("131,072 tokens in each of 16 sequences take 640 GiB.")
    rows = CALCULATOR.chain(values(CALCULATOR))
    made = re.findall(r'<td class="num">([\d.]+ [KMG]?i?B)</td>', rows)
    assert made == ["256 B", "512 B", "4 KiB", "320 KiB", "1.25 GiB", "1.25 GiB"]


def test_a_link_of_a_model_sets_its_fields() -> None:
    view = CALCULATOR.view(values(CALCULATOR, length="8192"), LINKS)
    assert "?layers=126&amp;length=8192#kvbytes" in view


@pytest.mark.parametrize(
    ("name", "text"),
    {
        "step-without": "15", "step-with": "5", "step-kept": "25", "sum-with": "500,500",
        "sum-without": "167,167,000", "sum-ratio": "334", "llama2-mha": "2,560", "llama2-gqa": "320",
        "llama2-mqa": "40", "llama2-mha-all": "10", "llama2-gqa-all": "1.25", "llama2-mqa-mib": "160",
        "8b": "128", "8b-bytes": "131,072", "8b-4k": "0.5", "8b-32k": "4", "8b-128k": "16", "70b": "320",
        "70b-4k": "1.25", "70b-32k": "10", "70b-128k": "40", "llama2-weights": "138", "fit-mha": "2",
        "fit-gqa": "16", "if-weights": "160",
    }.items(),
)  # fmt: skip
def test_facts(name: str, text: str) -> None:
    assert FACTS[f"kv-{name}"].text == text


def test_the_fact_of_what_changes_without_a_mask() -> None:
    before, after = (kept(words, "all", has_rope=True) for words in (PAST_TEXT, (*PAST_TEXT, "left")))
    assert float(FACTS["kv-changed-far"].text) == pytest.approx(np.abs(after[:, :5] - before).max(), abs=5e-3)
