"""The tables of models and of accelerators: sorted, narrowed, each row with a source and a way on.

Their numbers are held against those that the sources print."""

import re
from typing import Any
from urllib.parse import parse_qsl

import pytest
from django.test import Client

from concepts.facts import FACTS
from concepts.figures import Links, gpu_table, model_table
from concepts.figures.controls import MAX_FIND
from concepts.figures.tables import Table
from kernels.sizing.gpus import gpus
from kernels.sizing.models import models

LINKS = Links("/page/", "/fragment/", "/lab/")
MODELS, GPUS = model_table.FIGURE, gpu_table.FIGURE
TABLES: tuple[Table[Any], ...] = (MODELS, GPUS)


def rows(table: Table[Any], **state: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = table.data(state)["rows"]
    return found


def row(table: Table[Any], name: str, **state: str) -> dict[str, Any]:
    return next(one for one in rows(table, **state) if one["name"] == name)


def text_of(html: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", html))


# -- what the rows say ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("GPT-2 XL", (1.558, 300, 25, 25, "learned")),
        ("GPT-3 175B", (174.6, 4608, 96, 96, "learned")),
        ("T5-base", (0.223, 36, 12, 12, "relative, 32 buckets")),
        ("LLaMA 65B", (65.3, 2560, 64, 64, "RoPE, base 10,000")),
        ("Llama 2 70B", (69.0, 320, 64, 8, "RoPE, base 10,000")),
        ("Llama 3.1 405B", (405.9, 504, 128, 8, "RoPE, base 500,000, Llama 3 ×8")),
        ("Falcon 7B", (6.9, 8, 71, 1, "RoPE, base 10,000")),
        ("Falcon 180B", (178.6, 160, 232, 8, "RoPE, base 10,000")),
        ("Gemma 3 27B", (27.0, 496, 32, 16, "RoPE, base 1,000,000, PI ×8")),
        ("gpt-oss 20B", (20.9, 48, 64, 8, "RoPE, base 150,000, YaRN ×32")),
        ("DeepSeek-V3", (671, 68.625, 128, None, "RoPE, base 10,000, YaRN ×40")),
        ("BLOOM 176B", (176.2, 3920, 112, 112, "ALiBi")),
        ("MPT 7B", (6.65, 512, 32, 32, "ALiBi")),
        ("Jamba v0.1", (52, 16, 32, 8, "none")),
        ("Mamba 2.8B", (2.77, 0, None, None, "none")),
    ],
)
def test_a_model_is_as_published(name: str, expected: tuple[Any, ...]) -> None:
    params, kib, *fields = expected
    found = row(MODELS, name)
    assert found["params"] / 1e9 == pytest.approx(params, rel=0.01)
    assert found["token"] == kib * 1024
    assert [found["heads"], found["kv"], found["positions"]] == fields


def test_layers_are_counted_by_kind() -> None:
    assert row(MODELS, "Gemma 3 27B")["kinds"] == "52 window of 1,024, 10 full"
    assert row(MODELS, "DeepSeek-V3")["kinds"] == "61 latent (512 + 64)"
    assert row(MODELS, "Jamba v0.1")["kinds"] == "28 Mamba, 4 full"
    assert row(MODELS, "T5-base")["kinds"] == "12 full, 12 cross"
    assert row(MODELS, "BERT-base")["kinds"] == "12 both ways"
    assert row(MODELS, "Qwen3-Next 80B-A3B")["kinds"] == "36 linear, 12 full"


def test_the_cache_follows_the_length_and_the_bits() -> None:
    assert row(MODELS, "Llama 3 70B", n="131072")["cache"] == 40 * 2**30
    assert row(MODELS, "Llama 3 70B", n="131072", cached="int4")["cache"] < 11 * 2**30
    windowed = row(MODELS, "Gemma 3 27B", n="131072")["cache"]
    assert windowed == 2 * 16 * 128 * 2 * (10 * 131_072 + 52 * 1024)


def test_an_accelerator_is_as_its_source_prints_it() -> None:
    a100 = row(GPUS, "A100 80 GB SXM")
    assert (a100["memory"], a100["bandwidth"], a100["tf16"], a100["tf8"]) == (80, 2039, 312, None)
    assert a100["ridge"] == pytest.approx(312e3 / 2039)
    assert a100["chip"] == 108 * 192 / 1024
    assert row(GPUS, "L4")["tf16"] == 121  # 242 is with sparse matrices


def test_a_token_takes_as_long_as_what_it_reads() -> None:
    # 8,030,261,248 parameters but for the table of embeddings, of which a row is read; half a GiB of cache.
    read = 2 * (8_030_261_248 - 128_256 * 4096) + 2**29
    assert row(GPUS, "L4")["token"] == pytest.approx(1e3 * read / 300e9, rel=0.001)
    assert row(GPUS, "L4", model="llama-3-70b")["token"] is None  # does not fit
    assert row(GPUS, "L4", weights="int4")["token"] < row(GPUS, "L4")["token"] / 2


# -- sources, and ways on ------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_every_row_has_its_source_and_there_is_a_row_of_each(table: Table[Any]) -> None:
    found = rows(table)
    assert len(found) == len(models() if table is MODELS else gpus())
    assert all(one["source"] for one in found)


def test_every_model_leads_to_the_estimator_and_to_the_lab(client: Client) -> None:
    html = MODELS.view(MODELS.data({})["values"], LINKS)
    for slug in models():
        assert re.search(rf'href="[^"]*/concepts/inference-memory/\?model={re.escape(slug)}#fit"', html)
    runs = [link.replace("&amp;", "&") for link in re.findall(r'href="/lab/\?([^"]*)"', html)]
    assert len(runs) == len(models())
    assert dict(parse_qsl(runs[0]))["engine"] == "decode"
    assert {dict(parse_qsl(run))["engine"] for run in runs} == {"decode", "flash", "mla", "scan"}
    page = client.get("/en/concepts/inference-memory/?model=gpt2-xl&cards=8").content.decode()
    assert "GPT-2 XL cannot be shared by 8 cards" in page


def test_every_accelerator_leads_to_what_fits_on_it() -> None:
    html = GPUS.view(GPUS.data({})["values"], LINKS)
    for slug in gpus():
        assert f'/concepts/inference-memory/?gpu={slug}#fit"' in html


# -- sorting and finding -------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
@pytest.mark.parametrize("down", ["0", "1"])
def test_every_column_sorts_and_what_is_not_there_comes_last(table: Table[Any], down: str) -> None:
    for column in table.columns:
        keys = [one[column.name] for one in rows(table, sort=column.name, down=down)]
        there = [key for key in keys if key is not None]
        assert keys == there + [None] * (len(keys) - len(there)), column.name
        if there and isinstance(there[0], str):
            there = [key.casefold() for key in there]
        assert there == sorted(there, reverse=down == "1"), column.name


def test_the_head_of_a_column_sorts_by_it_and_then_the_other_way() -> None:
    html = GPUS.view(GPUS.data({"sort": "memory"})["values"], LINKS)
    assert 'href="/page/?sort=bandwidth#gpus"' in html
    assert 'aria-sort="ascending"><a href="/page/?sort=memory&amp;down=1#gpus"' in html
    html = GPUS.view(GPUS.data({"sort": "memory", "down": "1"})["values"], LINKS)
    assert 'aria-sort="descending"><a href="/page/?sort=memory#gpus"' in html


def test_as_it_stands_is_the_order_of_the_table() -> None:
    titles = [model.title for model in models().values()]
    assert [one["name"] for one in rows(MODELS, sort="given", down="0")] == titles
    assert [one["name"] for one in rows(MODELS, sort="given", down="1")] == titles[::-1]


def test_rows_are_found_by_words_of_any_cell() -> None:
    assert {one["name"] for one in rows(MODELS, find="falcon")} == {"Falcon 7B", "Falcon 40B", "Falcon 180B"}
    assert {one["name"] for one in rows(MODELS, find="ALIBI  mpt")} == {"MPT 7B", "MPT 30B"}
    assert {one["name"] for one in rows(MODELS, find="latent")} == {"DeepSeek-V2", "DeepSeek-V3"}
    assert {one["name"] for one in rows(GPUS, find="bfloat16")} == {"V100 SXM2 16 GB", "V100 SXM2 32 GB"}


@pytest.mark.parametrize("words", ["no such model", "\x00", "%", "<script>", "(" * 59, "é" * 300])
def test_words_that_no_row_has(words: str) -> None:
    html = MODELS.render({"find": words}, LINKS)
    assert "No row has these words." in html
    assert "<script>" not in html
    assert "0 rows." in html
    assert "<svg" in MODELS.svg({"find": words})
    if len(words) > MAX_FIND:
        assert f"At most {MAX_FIND} letters" in html


def test_the_sentence_says_the_ends() -> None:
    opened = MODELS.sentence(MODELS.data({})["values"])
    assert opened == "47 rows, by cache of a token (KiB): from GPT-3 175B (4,608) to Mamba 2.8B (0)."
    assert GPUS.sentence(GPUS.data({"sort": "memory"})["values"]).startswith(
        "9 rows, by memory (GB): from V100"
    )


def test_a_picture_has_a_bar_for_each_row_of_the_column_that_it_is_sorted_by() -> None:
    svg = GPUS.svg({"sort": "bandwidth", "down": "1"})
    bars = [float(width) for width in re.findall(r'<rect x="[^"]*" y="[^"]*" width="([\d.]+)"', svg)]
    known = [one["bandwidth"] for one in rows(GPUS, sort="bandwidth", down="1")]
    assert bars == pytest.approx([320 * value / known[0] for value in known], abs=0.06)
    assert ">bandwidth (GB/s)</text>" in svg
    drawn = re.findall(r'text-anchor="end"[^>]*>([^<]+)<', MODELS.svg({}))
    assert drawn == [one["name"] for one in rows(MODELS)]


# -- the text ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    {
        # A layer of Llama 3 8B by the shapes in arXiv:2407.21783, table 3.
        "projections": 2 * 4096 * 4096 + 2 * 4096 * 1024, "mlp": 3 * 4096 * 14_336, "norms": 2 * 4096,
        "tables": 2 * 128_256 * 4096, "params": 8_030_261_248, "llama-2-70b-params": 68.98,
        "t5-11b-params": 11.31, "mixtral-params": 46.70, "mixtral-active": 12.88, "gemma-all": 62,
        "gemma": 10.4, "jamba-all": 32, "jamba": 4, "a100-ridge": 153, "h100-ridge": 295, "l4-ridge": 403,
        "a100-chip": 20.25,
        "a100-share": 80e9 / (108 * 192 * 1024), "a100-all-ms": 80e3 / 2039, "compute-times": 989 / 312,
        "bandwidth-times": 3350 / 2039, "gib": 80e9 / 2**30, "block-q": 32, "block-kv": 32, "block-sum": 64,
        "block-two": 96, "block-256": 128, "a100-shared": 164, "4090-shared": 100, "a100-sms": 108,
        "gpt3-token": 4608, "llama-70b-token": 320, "falcon-180b-token": 160, "a100-token": 7.6,
        "l4-token": 52,
    }.items(),
)  # fmt: skip
def test_numbers_of_the_text(name: str, value: float) -> None:
    assert float(FACTS[f"tables-{name}"].text.replace(",", "")) == pytest.approx(value, rel=0.006)


def test_a_layer_of_the_table_adds_up_to_the_whole() -> None:
    layer = sum(
        int(FACTS[f"tables-{part}"].text.replace(",", "")) for part in ("projections", "mlp", "norms")
    )
    assert FACTS["tables-layer"].text == f"{layer:,}"
    assert 32 * layer + 2 * 128_256 * 4096 + 4096 == 8_030_261_248
