"""The page on memory, fast and slow: its figures, and the numbers in its text."""

import re
import xml.etree.ElementTree as ET

import pytest

from concepts.facts import FACTS
from concepts.figures import Links
from concepts.figures.memory_hierarchy import FIGURES
from concepts.figures.pyramid import NARROWEST, WIDEST, Level, outline
from kernels.sizing.gpus import gpus

TRAFFIC, LEVELS, ACCESSES = FIGURES
LINKS = Links("/page/", "/fragment/", "/lab/")
MIB = 2**20


def fact(name: str) -> float:
    return float(FACTS[f"memory-{name}"].text.replace(",", ""))


# -- what is moved -------------------------------------------------------------------------------------------


def test_the_figure_counts_as_the_page_says() -> None:
    """By hand: tiles of 200 rows pass 21 times over 1 MiB of keys and values."""
    told = TRAFFIC.data({})
    n, d = 4096, 64
    assert told["rows"] == 200
    assert told["flops"] == 4 * n * n * d
    standard, tiled = told["standard"], told["tiled"]
    assert sum(standard["bytes"].values()) == 4 * n * n * 2 + 4 * n * d * 2
    assert sum(tiled["bytes"].values()) == 21 * 2 * n * d * 2 + 2 * n * d * 2 + 4 * n
    assert standard["memory_seconds"] == pytest.approx(130 * MIB / 2039e9)
    assert standard["compute_seconds"] == pytest.approx(4 * n * n * d / 312e12)
    assert tiled["intensity"] == pytest.approx(4 * n * n * d / sum(tiled["bytes"].values()))


@pytest.mark.parametrize(
    ("state", "says"),
    [
        ({}, "128 MiB are scores and weights: 5.9 times the 22.0 MiB that tiles move."),
        ({}, "The first waits for memory, the second for arithmetic."),
        ({"d": "128"}, "1.6 times the 84.0 MiB that tiles move."),
        ({"d": "128"}, "The first waits for memory, the second for memory."),
        ({"gpu": "h100-sxm"}, "the second for memory."),
        ({"gpu": "h100-sxm", "cached": "1"}, "the second for arithmetic."),
        ({"kb": "8"}, "In tiles of 16 queries"),
        ({"n": "64"}, "In tiles of 64 queries"),
    ],
)  # fmt: skip
def test_what_is_said_of_what_is_moved(state: dict[str, str], says: str) -> None:
    assert says in TRAFFIC.render(state, LINKS)


def test_a_cache_spares_the_second_reading_where_keys_and_values_fit() -> None:
    def again(**state: str) -> int:
        return int(TRAFFIC.data(state)["tiled"]["bytes"]["K, V read again"])

    assert again(cached="1") == 0
    assert again() == 20 * 2 * 4096 * 64 * 2
    fits, does_not = str(40 * MIB // 1024), str(40 * MIB // 1024 + 1)  # of 1,024 bytes in K and V
    assert (again(n=fits, d="256", cached="1") == 0, again(n=does_not, d="256", cached="1") == 0) == (
        True,
        False,
    )


def test_the_lab_gets_tiles_that_the_kernel_has() -> None:
    def fields(**state: str) -> dict[str, str]:
        return dict(TRAFFIC.lab(TRAFFIC.data(state)["values"]))

    assert fields() == {
        "engine": "flash", "source": "seed", "batch": "1", "heads": "1", "q_len": "512", "head_dim": "64",
        "seed": "1", "option_block_m": "128", "option_block_n": "128",
    }  # fmt: skip
    assert fields(n="300", d="256", kb="8")["option_block_m"] == "16"
    assert fields(n="300", d="16", kb="256")["option_block_m"] == "256"


# -- levels --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("slug", ["v100-sxm2-32", "a100-80-sxm", "h100-sxm", "b200", "rtx-4090", "l4"])
def test_levels_of_a_gpu_are_those_of_the_table(slug: str) -> None:
    gpu, levels = gpus()[slug], LEVELS.data({"chip": slug})["levels"]
    sizes = list(levels.values())
    assert sizes[0] * (gpu.sms or 0) == sizes[1]
    assert sizes[3] == gpu.memory_gb * 1e9
    html = LEVELS.render({"chip": slug}, LINKS)
    assert f"{gpu.sms} × {gpu.shared_kb_per_sm} KB" in html
    assert f"{gpu.bandwidth_gb_s:,.0f} GB/s" in html


def test_scores_of_4096_tokens_do_not_fit_on_all_multiprocessors_together() -> None:
    html = LEVELS.render({}, LINKS)
    assert "together have 20.25 MiB on chip" in html
    held = re.findall(r"<td class=\"num\">(yes|no)</td>", html)
    assert held == ["no", "no", "yes", "yes"]
    assert re.findall(r">(yes|no)<", LEVELS.render({"tokens": "300"}, LINKS)) == ["yes"] * 4


def test_a_level_is_as_wide_as_the_logarithm_of_its_size() -> None:
    def width(share: float) -> float:
        left, right = re.findall(r"L(\d+) \d+H(\d+)z", outline(1, share))[0]
        return float(left) - float(right)

    assert width(0) == pytest.approx(NARROWEST, abs=1)
    assert width(1) == pytest.approx(WIDEST, abs=1)
    assert width(0.5) == pytest.approx((NARROWEST + WIDEST) / 2, abs=1)
    ET.fromstring(LEVELS.svg({}))
    assert Level(1, ("a", "b")).texts == ("a", "b")


# -- the theorem ---------------------------------------------------------------------------------------------


def test_accesses_are_those_of_the_theorem() -> None:
    told = ACCESSES.data({})
    n, d, m = 4096, 64, 51_200
    assert told["standard"] == n * d + n * n
    assert told["theorem"] == pytest.approx(n * n * d * d / m)
    assert told["counted"] == 21 * 2 * n * d + 2 * n * d
    assert (
        "M/d² is 12.5; counted, one operation after another moves 5.9 times what tiles move"
        in ACCESSES.render({}, LINKS)
    )


def test_where_everything_fits_it_is_moved_once() -> None:
    told = ACCESSES.data({"room": "33554432", "length": "1000", "width": "32"})
    assert told["counted"] == 4 * 1000 * 32
    assert told["theorem"] == 1000 * 32
    assert ACCESSES.data({"room": "64", "width": "256"})["theorem"] == 4096**2 * 256  # M is d at least


# -- what the page says --------------------------------------------------------------------------------------


def test_figures_of_the_text() -> None:
    assert fact("scores") == 4096**2
    assert (fact("matrix"), fact("four"), fact("once")) == (32, 128, 2)
    assert fact("on-chip") == 108 * 192 / 1024
    assert (fact("standard"), fact("tiled")) == (130, 22)
    assert fact("standard-moving") == round(130 * MIB / 2039e9 * 1e6)
    assert fact("tiled-moving") == round((22 * MIB + 4 * 4096) / 2039e9 * 1e6)
    assert fact("computing") == round(4 * 4096**2 * 64 / 312e12 * 1e6)
    assert fact("standard-intensity") == round(4 * 4096**2 * 64 / (130 * MIB))
    assert fact("tiled-intensity") == round(4 * 4096**2 * 64 / (22 * MIB + 4 * 4096))
    assert [fact(f"ridge-{name}") for name in ("v100", "a100", "h100")] == [139, 153, 295]
    assert fact("fit") == 313  # 313² numbers of two bytes in 192 KB, 314² no longer
    assert 313**2 * 2 <= 192 * 1024 < 314**2 * 2


def test_savings_of_the_text() -> None:
    assert (fact("saving-64"), fact("saving-128")) == (12.5, 3.1)
    assert (fact("rows"), fact("passes")) == (200, 21)
    assert fact("less") == pytest.approx(130 / 22, abs=0.06)
    d128 = (41 * 2 * 4096 * 128 * 2 + 2 * 4096 * 128 * 2 + 4 * 4096) / MIB
    assert fact("less-128") == pytest.approx((128 + 4) / d128, abs=0.06)
    assert (fact("hand-standard"), fact("hand-tiled")) == (48 + 256 + 16, 16 + 64 + 16)
    assert fact("measured-less") == pytest.approx(40.3 / 4.4, abs=0.06)
    assert fact("measured-more") == round(100 * (75.2 - 66.6) / 66.6)
