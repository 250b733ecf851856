"""The page on the quadratic cost: its meter, and the figures in its text."""

import re

import pytest

from concepts.facts import FACTS
from concepts.figures import Links
from concepts.figures.quadratic import FIGURE, in_bytes

LINKS = Links("/page/", "/fragment/", "/lab/")


def fact(name: str) -> float:
    return float(FACTS[f"quadratic-{name}"].text.replace(",", ""))


@pytest.mark.parametrize(("count", "text"), [(1, "1 B"), (1023, "1023 B"), (1024, "1 KiB"),
                                             (32 * 2**20, "32 MiB"), (1.5 * 2**30, "1.5 GiB")])  # fmt: skip
def test_bytes_are_in_the_largest_unit_that_fits(count: float, text: str) -> None:
    assert in_bytes(count) == text


def test_the_meter_counts_as_the_page_says() -> None:
    found = FIGURE.data({"n": "1000", "d": "128", "heads": "4"})
    n, d = 1000, 128
    assert found["operations"] == {
        "pairs": 4 * n * n * d,
        "projections": 8 * n * d * d,
        "mlp": 16 * n * d * d,
    }
    assert found["share_of_pairs"] == pytest.approx(n / (n + 6 * d))
    assert found["crossing"] == 6 * d
    assert found["score_bytes"] == 4 * n * n * 2
    masked = FIGURE.data({"n": "1000", "d": "128", "causal": "1"})
    assert masked["operations"]["pairs"] == 2 * n * (n + 1) * d
    assert masked["crossing"] == 12 * d - 1


def test_heads_change_the_memory_and_not_the_operations() -> None:
    few, many = (FIGURE.data({"heads": heads}) for heads in ("1", "128"))
    assert few["operations"] == many["operations"]
    assert many["score_bytes"] == 128 * few["score_bytes"]


def test_the_sentence_says_what_a_longer_text_costs() -> None:
    html = FIGURE.render({"n": "512"}, LINKS)
    told = re.search(r"twice the tokens cost ([\d.]+) times", html)
    assert told
    assert float(told[1]) == pytest.approx((1024 / 512) * (1024 + 24576) / (512 + 24576), abs=0.006)


def test_the_lab_gets_what_it_can_run() -> None:
    def fields(**state: str) -> dict[str, str]:
        return dict(FIGURE.lab(FIGURE.data(state)["values"]))

    assert fields(n="1048576")["q_len"] == "1024"
    assert fields(n="300", causal="1") == {
        "engine": "eager", "source": "seed", "batch": "1", "heads": "1", "q_len": "300", "head_dim": "64",
        "seed": "1", "causal": "on",
    }  # fmt: skip


def test_figures_of_the_text() -> None:
    assert fact("bytes") == 32
    assert fact("bytes-layer") == 1
    assert fact("scores") == 4096**2
    assert fact("share") == pytest.approx(100 / 7, abs=0.05)
    assert fact("double") == pytest.approx(64 / 28, abs=0.005)
    assert fact("far") == pytest.approx((24 * 64 + 4 * 64**2) / (24 * 32 + 4 * 32**2), abs=0.005)
    assert fact("crossing") == 6 * 4096
    assert [fact(f"hand-{part}") for part in ("pairs", "projections", "mlp")] == [288, 192, 384]


def layer(width: int, n: int, kv: int, mlp: int, *, gated: bool, causal: bool = True) -> float:
    """Per cent of pairs in a layer, from a model's published shape."""
    pairs = 4 * width * (n * (n + 1) / 2 if causal else n * n)
    rest = 2 * n * (2 * width**2 + 2 * width * kv + (3 if gated else 2) * width * mlp)
    return 100 * pairs / (pairs + rest)


def test_shares_in_models_follow_from_their_published_shapes() -> None:
    expected = {
        "bert": layer(768, 512, 768, 3072, gated=False, causal=False),
        "gpt2": layer(768, 1024, 768, 3072, gated=False),
        "llama2": layer(4096, 4096, 4096, 11008, gated=True),
        "llama3": layer(4096, 8192, 1024, 14336, gated=True),
        "llama31": layer(4096, 131_072, 1024, 14336, gated=True),
        "405b": layer(16384, 131_072, 1024, 53248, gated=True),
    }
    for name, share in expected.items():
        assert fact(f"share-{name}") == pytest.approx(share, abs=0.06), name


def test_what_is_kept_and_cached() -> None:
    assert fact("kept-llama2") == 32 * 32 * 32 / 1024  # layers, heads, MiB of each
    assert fact("kept-flash") == 32 * 32 * 4096 * 4 / 2**20
    assert fact("cache-token") == 128  # of concepts' table of models
    assert fact("cache-full") == 16
