"""Numbers in prose that the tests of single pages leave out, worked out again by other means, or typed."""

import math
import re

import numpy as np
import pytest

from concepts.facts import FACTS

GB, GIB = 10**9, 2**30


def numbers(name: str) -> list[float]:
    """As the page says them."""
    text = FACTS[name].text.replace("−", "-")
    parts = text.strip("()").split(", ") if text.startswith("(") else [text]
    return [float(part.replace(",", "")) for part in parts]


def number(name: str) -> float:
    [only] = numbers(name)
    return only


def step(name: str) -> float:
    """The place of its last digit: 0.01 of “16.60”."""
    return 10.0 ** -len(re.sub(r"^[^.]*\.?", "", FACTS[name].text))


def agrees(name: str, value: float) -> None:
    assert number(name) == pytest.approx(value, abs=0.51 * step(name)), name


# -- a query among five keys ---------------------------------------------------------------------------------

KEYS, VALUES = [-2, -1, 0, 1, 2], [1, 3, 2, 5, 4]


def near(query: float, sharpness: float, keys: list[int] = KEYS) -> list[float]:
    """Weights by how near each key is: those of −β (q − k)²/2."""
    powers = [math.exp(-sharpness * (query - key) ** 2 / 2) for key in keys]
    return [power / sum(powers) for power in powers]


def test_averages_of_five_values() -> None:
    weights = near(0.5, 2)
    agrees("average-usual-query", 0.5)
    agrees("average-usual-weight", weights[2])
    assert weights[2] == pytest.approx(weights[3])
    agrees("average-usual-out", sum(w * v for w, v in zip(weights, VALUES, strict=True)))
    agrees("average-mean", 15 / 5)
    agrees("average-sharp-weight", max(near(0.75, 20)))
    agrees("average-far-query", 3)
    agrees("average-twin-before", near(1, 2)[3])
    agrees("average-twin-after", 2 * near(1, 2, [*KEYS, 1])[3])


# -- penalties for distance ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "slope"), [("first", 1 / 2), ("last", 1 / 256)])
def test_one_key_leads_and_stands_eight_tokens_away(name: str, slope: float) -> None:
    """Twelve keys, the query at the last; all score 0 but the one, which scores 2."""
    from concepts.figures.alibi import FIGURES

    values = FIGURES[1].data({})["values"]
    place, lead = values["query"] - values["far"], values["lead"]
    assert (place, lead) == (8, 2)
    powers = [math.exp(lead * (back == place) - slope * back) for back in range(values["query"])]
    agrees(f"alibi-row-{name}", powers[place] / sum(powers))


# -- heads ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("slug", "shape"),
    {
        "bert-base": ("768", "12", "64"), "bert-large": ("1,024", "16", "64"),
        "llama-7b": ("4,096", "32", "128"), "llama-65b": ("8,192", "64", "128"),
        "gpt3": ("12,288", "96", "128"),
    }.items(),
)  # fmt: skip
def test_heads_of_models(slug: str, shape: tuple[str, str, str]) -> None:
    assert tuple(FACTS[f"heads-{slug}-{what}"].text for what in ("width", "heads", "each")) == shape


def test_the_row_that_is_worked_through_is_one_row() -> None:
    """From the numbers as they are shown, whose last digits are rounded."""
    query, key = numbers("heads-tea-query"), numbers("heads-she-key")
    assert number("heads-tea-she-score") == pytest.approx(np.dot(query, key) / 2, abs=0.02)
    row = numbers("heads-tea-row")
    assert sum(row) == pytest.approx(1, abs=0.002)
    assert number("heads-tea-she") == pytest.approx(max(row), abs=0.006)
    assert FACTS["heads-tea-she"].text == "0.68"
    assert FACTS["heads-tea-him"].text == "0.43"
    assert FACTS["heads-tea-first"].text == "(1.15, −0.04, −0.05, −0.27)"
    assert FACTS["heads-tea-second"].text == "(0.45, −0.35, 0.24, 0.47)"


# -- weights of few bits -------------------------------------------------------------------------------------


def stored(shape: tuple[int, ...]) -> tuple[float, float, float, float]:
    """Parameters, and bytes in 16, 8 and 4 bits: with a scale of 32 bits to a row in 8 bits, and one of 16
    with a zero point of 4 to 128 numbers in 4. Both tables and the norms stay at 16 bits."""
    layers, width, keys, hidden, vocabulary, experts = shape
    router = width * experts if experts > 1 else 0
    matrices = layers * (2 * width * width + 2 * width * keys + 3 * experts * width * hidden + router)
    rows = layers * (2 * width + 2 * keys + experts * (2 * hidden + width) + (experts if router else 0))
    rest = 2 * vocabulary * width + (2 * layers + 1) * width
    return (
        matrices + rest,
        2 * (matrices + rest),
        matrices + 4 * rows + 2 * rest,
        matrices * (4 + 20 / 128) / 8 + 2 * rest,
    )


SHAPES = {
    "8b": (32, 4096, 1024, 14336, 128256, 1),
    "70b": (80, 8192, 1024, 28672, 32000, 1),
    "405b": (126, 16384, 1024, 53248, 128256, 1),
    "mixtral": (32, 4096, 1024, 14336, 32000, 8),
}


@pytest.mark.parametrize(("name", "shape"), SHAPES.items())
def test_weights_of_fewer_bits(name: str, shape: tuple[int, ...]) -> None:
    params, *sizes = stored(shape)
    agrees(f"fit-{name}-params", params / 1e9)
    for bits, size in zip((16, 8, 4), sizes, strict=True):
        agrees(f"fit-{name}-{bits}", size / GB)


def test_what_follows_from_weights_of_few_bits() -> None:
    _, half, _, quarter = stored(SHAPES["70b"])
    agrees("fit-int4-70b-percent", 100 * quarter / half)
    _, half, _, quarter = stored(SHAPES["8b"])
    cache = 2 * 32 * 8 * 128 * 2 * 4096
    agrees("fit-sum-bytes", half + cache)
    aside = 1343 * 2**20  # in use on a V100 before anything was loaded
    agrees("fit-aside", aside / GB)
    agrees("fit-logits-mb", 4 * 128256 / 1e6)
    agrees("fit-int4-group", 128)
    agrees("fit-int4-all-percent", 100 * (quarter + cache + aside) / (half + cache + aside))
    assert number("fit-longest-int4") == pytest.approx((24 * GB - quarter - aside) * 4096 / cache, rel=1e-3)
    agrees("fit-cache-64-int4", 64 * cache * (4 + 32 / 128) / 16 / GB)


def test_texts_that_two_cards_hold_beside_llama_2_70b() -> None:
    left = 2 * (80 * GB - 1343 * 2**20) - stored(SHAPES["70b"])[1]
    agrees("fit-two-real", left // (320 * 1024 * 4096))


def test_reading_by_hand() -> None:
    """Llama 3 8B without its table of embeddings, and 8,192 tokens of cache."""
    agrees("bw-hand-weights", 2 * (8_030_261_248 - 128256 * 4096) / GB)
    agrees("bw-hand-cache", 8192 * 131072 / GB)


@pytest.mark.parametrize(
    ("name", "bits"),
    [
        ("16", 16),
        ("8-32", 8 + 32 / 32),
        ("fp8", 8),
        ("4-32", 4 + 32 / 32),
        ("4-128", 4 + 32 / 128),
        ("2-32", 3),
    ],
)
def test_a_cache_in_fewer_bits(name: str, bits: float) -> None:
    """Of Llama 3 8B, 65,536 numbers to a token. A group has a scale and a zero point of 16 bits each."""
    agrees(f"kvc-bits-{name}", bits)
    agrees(f"kvc-kib-{name}", 65_536 * bits / 8 / 2**10)
    agrees(f"kvc-gib-{name}", 65_536 * bits / 8 * 131_072 / GIB)


# -- what was drawn at random --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text"),
    {
        "masks-row-two-scores": "(1.19, 0.57, −0.43, 1.90, 1.39)", "memory-run": "512",
        "sharing-error": "0.63", "sharing-pooling-groups": "1.97", "sharing-pooling-one": "2.66",
        "sqrt-raw-deviation": "8.36", "sqrt-raw-largest": "0.76", "sqrt-scaled-largest": "0.12",
    }.items(),
)  # fmt: skip
def test_facts_of_draws(name: str, text: str) -> None:
    assert FACTS[name].text == text


def test_few_unscaled_rows_are_as_sure_as_the_quoted_pair() -> None:
    """Of 64 keys with 64 numbers each: fewer than two in a thousand, in draws that nobody else makes."""
    draw = np.random.default_rng(20)
    sets = [
        np.einsum("nd,nkd->nk", draw.standard_normal((500, 64)), draw.standard_normal((500, 64, 64)))
        for _ in range(40)
    ]
    scores = np.concatenate(sets)
    largest = 1 / np.exp(scores - scores.max(axis=1, keepdims=True)).sum(axis=1)
    assert 0 < np.mean(largest > 0.9999999) < 0.002
    assert number("sqrt-many-largest") == pytest.approx(largest.mean(), abs=0.01)
    assert number("sqrt-many-sure") == pytest.approx(100 * np.mean(largest > 0.99), abs=1)
