"""The page on FlashAttention: its figures against the kernels and torch, and the numbers in its text."""

import math
import re
from collections.abc import Mapping

import numpy as np
import pytest
import torch
from django.test import RequestFactory

from concepts.facts import FACTS
from concepts.figures import Links
from concepts.figures.explorable import Explorable
from concepts.figures.flash_backward import FIGURE as BACKWARD
from concepts.figures.flash_bits import FIGURE as BITS
from concepts.figures.flash_choice import FIGURE as BACKENDS
from concepts.figures.flash_choice import REASONS
from concepts.figures.flash_speeds import FIGURE as UTILISATION
from concepts.figures.flash_speeds import REPORTED
from concepts.figures.flash_tiles import FIGURE as TILES
from concepts.figures.flash_tiles import fields, run
from concepts.figures.tilegrid import LEFT, SIDE, TOP, TileGrid, svg
from concepts.pages import book
from kernels.execute import execute
from kernels.sdpa_backends import BACKENDS as NAMES
from kernels.sdpa_backends import DEVICES, DTYPES, MASKS
from kernels.spec import parse_run
from kernels.spec.model import ParsedRun
from lab.form.views import form_of_link

LINKS = Links("/page/", "/fragment/", "/lab/")
BLOCK = 16  # rows of the kernel's smallest tile


def fact(name: str) -> float:
    return float(FACTS[f"flash-{name}"].text.replace(",", "").replace("−", "-"))


def sent(figure: Explorable, **state: str) -> ParsedRun:
    """What the lab makes of a figure's state."""
    found: dict[str, list[str]] = {}
    for name, value in figure.lab(figure.data(state)["values"]):
        found.setdefault(name, []).append(value)
    form, _notes = form_of_link(RequestFactory().get("/en/lab/", found))
    return parse_run(form.body())


# -- tiles ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"causal": "0", "bm": "6", "bn": "5"},
        {"n": "24", "bm": "16", "bn": "16"},
        {"n": "10", "seed": "7"},
    ],
    ids=str,
)
def test_the_kernel_holds_what_the_figure_shows(state: dict[str, str], db: None) -> None:
    """Every state of every step, in the run that the page leads to: queries and keys there stand in tiles of
    16, each of the figure's at the beginning of one."""
    parsed = sent(TILES, **state)
    found = execute(parsed.spec, parsed.arrays).arrays
    values = TILES.data(state)["values"]
    for step in range(1, TILES.data(state)["steps"] + 1):
        told = TILES.data({**state, "at": str(step)})
        query_tile, key_tile = (
            (told["tile"][axis][0] - 1) // values[name] for axis, name in (("queries", "bm"), ("keys", "bn"))
        )
        for query, held in told["held"].items():
            row = query_tile * BLOCK + (int(query) - 1) % values["bm"]
            at = (0, 0, row, key_tile) if found["trace_max"].ndim == 4 else (row, key_tile)
            assert found["trace_max"][at] == pytest.approx(-math.inf if held["m"] is None else held["m"])
            assert found["trace_sum"][at] == pytest.approx(held["l"], rel=1e-6)
            assert found["trace_out"][at].tolist() == pytest.approx(held["o"], rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("causal", ["0", "1"])
@pytest.mark.parametrize(("n", "bm", "bn"), [(16, 4, 4), (13, 5, 4), (24, 16, 7)])
def test_after_its_last_tile_a_query_has_what_torch_gives(n: int, bm: int, bn: int, causal: str) -> None:
    state = {"n": str(n), "bm": str(bm), "bn": str(bn), "causal": causal}
    made = run(n, bm, bn, causal == "1", 1)
    q, k, v = (torch.tensor(x)[None] for x in (made.q, made.k, made.v))
    exact = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal == "1")[0]
    assert np.array(TILES.data(state)["exact"]) == pytest.approx(exact.numpy())
    last: dict[str, Mapping] = {}
    for step in range(1, TILES.data(state)["steps"] + 1):
        last |= TILES.data({**state, "at": str(step)})["held"]
    assert len(last) == n
    for query, held in last.items():
        assert np.array(held["o"]) / held["l"] == pytest.approx(exact[int(query) - 1].numpy(), abs=1e-6)


def test_traffic_is_counted_as_by_hand() -> None:
    """16 queries and keys of two numbers in tiles of 4: ten tiles below the diagonal or on it."""
    told = TILES.data({"at": "99"})
    assert told["problems"][0]["field"] == "at"
    told = TILES.data({"at": "10"})
    assert told["moved"] == told["moved_in_all"] == {
        "Q read": 32, "K, V read": 10 * 4 * 4, "O written": 32, "LSE written": 16,
    }  # fmt: skip
    assert sum(told["one_by_one"].values()) == 4 * 16 * 2 + 4 * 16 * 16
    assert told["one_by_one"]["scores"] == 4 * 16 * 16
    assert (told["steps"], told["skipped"]) == (10, 6)
    whole = TILES.data({"causal": "0"})
    assert (whole["steps"], whole["skipped"], whole["moved_in_all"]["K, V read"]) == (16, 0, 256)
    assert TILES.data({"causal": "0", "bm": "8"})["moved_in_all"]["K, V read"] == 128


@pytest.mark.parametrize(
    ("state", "says"),
    [
        ({}, "Step 8 of 10: queries 13–16 meet keys 5–8. 16 numbers are read, none is written. No pair is"),
        ({"at": "0"}, "Nothing is read yet: 10 tiles are to come. 6 tiles are skipped."),
        ({"at": "1"}, "24 numbers are read, 12 written. Some pairs are masked."),
        ({"at": "10"}, "the last: 240 numbers were moved; one operation after another moves 1,152."),
        ({"at": "16", "causal": "0"}, "No tile is skipped."),
        ({"n": "9", "at": "6"}, "3 tiles are skipped."),
    ],
    ids=str,
)
def test_what_is_said_of_a_step(state: dict[str, str], says: str) -> None:
    assert says in TILES.render(state, LINKS)


def test_steps_are_links_within_bounds() -> None:
    def links(at: int) -> list[str]:
        return re.findall(r'<a href="[^"]*?(?:at=(\d+))?#tiles">', TILES.render({"at": str(at)}, LINKS))

    assert links(3) == ["0", "2", "4", "10"]
    assert links(0) == ["1", "10"]
    assert links(10) == ["0", "9"]
    assert links(9) == ["0", "", "10", "10"]  # step 8 is where the page opens


def test_a_masked_pair_is_shut_and_large_tiles_are_not_written_out() -> None:
    assert TILES.render({"at": "10"}, LINKS).count('class="shut"') == 2 * 6  # in the picture and in the table
    assert "Scores of the tile" not in TILES.render({"n": "24", "bm": "16", "bn": "16", "at": "1"}, LINKS)


def test_the_picture_has_a_tile_where_it_belongs() -> None:
    states = [["done", "skipped"], ["now", "todo"]]
    grid = TileGrid(8, 8, 4, 4, states, 1, (1, 0), np.array([[1.0, -np.inf], [0.5, -1.0]]))
    drawn = svg(grid, "a picture")
    assert f'class="now" x="{LEFT:.2f}" y="{TOP + SIDE / 2:.2f}" width="{SIDE / 2:.2f}"' in drawn
    assert f'class="skipped" x="{LEFT + SIDE / 2:.2f}" y="{TOP:.2f}"' in drawn
    assert [drawn.count(f'class="{name}"') for name in ("near", "written", "shut")] == [5, 2, 1]
    assert (drawn.count(">✓<"), drawn.count(">–<")) == (1, 1)


def test_small_tiles_fill_those_of_the_kernel_where_the_address_has_room() -> None:
    def rows(**state: str) -> int:
        pairs = dict(TILES.lab(TILES.data(state)["values"]))
        return pairs["q"].count("[") - 1

    assert rows() == 4 * BLOCK
    assert rows(n="24") == 6 * BLOCK
    assert rows(n="24", bm="16", bn="16") == 24
    assert rows(bm="8") == 16  # with a causal mask tiles must be as wide as high
    assert rows(bm="8", causal="0") == 2 * BLOCK
    made = run(24, 4, 4, True, 1)
    assert len(str(dict(fields(made, is_causal=True)))) < 3500


# -- the way back --------------------------------------------------------------------------------------------


def test_slopes_are_those_of_torch_and_of_the_kernel(db: None) -> None:
    state = {"r": "[[2,1],[-1,4],[0.5,-3]]", "up": "2.5"}
    s = torch.tensor([2, -1, 0.5], dtype=torch.double, requires_grad=True)
    v = torch.tensor([1, 4, -3], dtype=torch.double, requires_grad=True)
    (2.5 * torch.softmax(s, 0) @ v).backward()
    told = BACKWARD.data(state)
    assert told["is_right"]
    assert told["ds"] == pytest.approx(s.grad.tolist())
    assert told["dv"] == pytest.approx(v.grad.tolist())
    parsed = sent(BACKWARD, **state)
    found = execute(parsed.spec, parsed.arrays).arrays
    assert np.ravel(found["dk"]).tolist() == pytest.approx(told["ds"], rel=1e-5)
    assert np.ravel(found["dv"]).tolist() == pytest.approx(told["dv"], rel=1e-5)
    assert np.ravel(found["lse"])[0] == pytest.approx(told["kept"], rel=1e-6)


@pytest.mark.parametrize(
    ("state", "is_right", "says"),
    [
        (
            {},
            True,
            "Rebuilt weights add up to 1; the slopes of the scores, −0.3425, 0.2237, 0.1187, are as tried",
        ),
        ({"lost": "delta"}, False, "0.6652, 0.3601, 0.4895, are wrong"),
        ({"lost": "sum"}, False, "Rebuilt weights add up to 1.5032"),
        ({"lost": "delta", "r": "[[2,0],[0,0],[1,0]]"}, True, "are as tried out"),
        ({"lost": "sum", "r": "[[1000,1],[-1000,2],[0,3]]"}, True, "are as tried out"),
        ({"up": "0"}, True, "0, 0, 0, are as tried out"),
    ],
    ids=str,
)
def test_a_mistake_in_the_way_back_is_found(state: dict[str, str], is_right: bool, says: str) -> None:
    assert says in BACKWARD.render(state, LINKS)
    assert BACKWARD.data(state)["is_right"] == is_right


# -- bits ----------------------------------------------------------------------------------------------------


def test_few_bits_are_equal_and_all_are_near() -> None:
    for dtype, apart in (("float32", 1e-6), ("float16", 2e-3), ("bfloat16", 2e-2)):
        for beside in ("plain", "tiles"):
            told = BITS.data({"format": dtype, "beside": beside})
            assert 0 < told["equal"] < 0.95
            assert 0 < told["largest"] < apart
            assert max(told["first_error"], told["second_error"]) < apart


def test_the_same_tiles_have_the_same_bits() -> None:
    told = BITS.data({"block": "16", "beside": "tiles"})
    assert (told["equal"], told["largest"]) == (1, 0)
    assert "all numbers of the output have the same bits" in BITS.render(
        {"block": "16", "beside": "tiles"}, LINKS
    )


def test_a_library_agrees_with_itself_no_better() -> None:
    """The claim itself, of torch on this machine: two backends, other bits, nearly equal."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 4, 256, 64) for _name in "qkv")
    results = []
    for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.MATH):
        with sdpa_kernel(backend):
            results.append(torch.nn.functional.scaled_dot_product_attention(q, k, v))
    assert (results[0] == results[1]).float().mean() < 0.9
    assert torch.allclose(*results, atol=1e-5)


# -- speeds --------------------------------------------------------------------------------------------------


def test_speeds_are_cited_as_the_page_cites_them() -> None:
    cited = {source.short for source in book("en").pages["flash-attention"].sources}
    assert {one.source for one in REPORTED} <= cited


def test_shares_of_the_peak_are_those_of_the_papers() -> None:
    told = {(one["title"], one["gpu"]): one for one in UTILISATION.data({})["reported"]}
    assert told["FlashAttention-2", "a100-80-sxm"]["share"][1] == pytest.approx(230 / 312)
    assert told["FlashAttention-3, FP16", "h100-sxm"]["share"][1] == pytest.approx(740 / 989)
    assert told["FlashAttention-3, BF16", "h100-sxm"]["share"][1] == pytest.approx(840 / 989)
    assert told["FlashAttention-3, FP8", "h100-sxm"]["share"][1] == pytest.approx(1300 / 1979)
    assert told["FlashAttention-4, BF16", "b200"]["share"][1] == pytest.approx(1613 / 2250)
    assert told["FlashAttention", "a100-80-sxm"]["tflops"] == pytest.approx((78, 124.8))
    html = UTILISATION.render({}, LINKS)
    for shown in ("25–40 %", "73.7 %", "35 %", "74.8 %", "84.9 %", "60.6 %", "65.7 %", "71.7 %", "1,613"):
        assert f">{shown}<" in html
    assert "FlashAttention-3, BF16 on H100 SXM, 84.9 % of its peak in 16 bits" in html
    assert "FlashAttention-4" not in UTILISATION.render({"on": "h100-sxm"}, LINKS)


# -- which kernel --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "says"),
    [
        ({}, "On A100 PyTorch runs FLASH_ATTENTION."),
        (
            {"dtype": "float32"},
            "runs EFFICIENT_ATTENTION. Why not FLASH_ATTENTION: takes float16 and bfloat16 alone.",
        ),
        ({"dtype": "float32", "enabled": "old"}, "runs EFFICIENT_ATTENTION."),
        ({"dtype": "float32", "enabled": "flash"}, "raises an error"),
        ({"mask": "mask"}, "Why not FLASH_ATTENTION: takes no mask tensor."),
        ({"square": "0"}, "is_causal only with as many queries as keys"),
        ({"dim": "257"}, "runs MATH. Why not FLASH_ATTENTION: heads of 256 numbers at most."),
        ({"device": "v100", "dtype": "float16"}, "needs an Ampere GPU or a newer one"),
        ({"device": "h100"}, "runs CUDNN_ATTENTION; FLASH_ATTENTION could compute this too."),
        ({"device": "h100", "enabled": "flash"}, "On H100 PyTorch runs FLASH_ATTENTION."),
        ({"device": "cpu", "dtype": "float32"}, "On CPU PyTorch runs FLASH_ATTENTION."),
    ],
    ids=str,
)
def test_what_is_said_of_a_call(state: dict[str, str], says: str) -> None:
    assert says in BACKENDS.render(state, LINKS)


def test_every_reason_has_words_and_every_backend_a_row() -> None:
    told = set()
    for device in DEVICES:
        for dtype in DTYPES:
            for mask in MASKS:
                for more in ({}, {"dim": "250", "train": "1", "drop": "1"}, {"dim": "511", "square": "0"}):
                    state = {"device": device, "dtype": dtype, "mask": mask, **more}
                    html = BACKENDS.render(state, LINKS)
                    assert all(f'<th scope="row">{name}</th>' in html for name in NAMES)
                    data = BACKENDS.data(state)
                    for some in (data["refusals"], data["packages"]):
                        told |= {reason for reasons in some.values() for reason in reasons}
    assert told == REASONS.keys()


def test_the_program_is_what_was_chosen() -> None:
    def program(**state: str) -> str:
        html = BACKENDS.render(state, LINKS).partition("<code>")[2].partition("</code>")[0]
        return re.sub(r"<[^>]+>", "", html)

    assert "out = F.scaled_dot_product_attention(q, k, v, is_causal=True)" in program()
    assert "with" not in program()
    only = program(enabled="flash", mask="mask", drop="1")
    assert "from torch.nn.attention import SDPBackend, sdpa_kernel" in only
    assert "with sdpa_kernel(SDPBackend.FLASH_ATTENTION):" in only
    assert "attn_mask=mask, dropout_p=0.1)" in only
    assert "sdp_kernel(enable_flash=True):  # FutureWarning" in program(enabled="old")


# -- what the page says --------------------------------------------------------------------------------------


def test_figures_of_the_text() -> None:
    assert (fact("steps"), fact("skipped"), fact("moved"), fact("one-by-one")) == (10, 6, 240, 1152)
    assert fact("scores") == 256
    assert (fact("matrix"), fact("kept")) == (4096**2 * 2 / 2**20, 4096 * 4 / 2**10)
    assert (fact("passes-64"), fact("passes-128")) == (64, 32)
    scores = torch.tensor([2.0, 0, 1], dtype=torch.double)
    p = torch.softmax(scores, 0)
    out = (p @ torch.tensor([1.0, 4, 2], dtype=torch.double)).item()
    assert fact("lse") == pytest.approx(torch.logsumexp(scores, 0).item(), abs=1e-4)
    assert FACTS["flash-p"].text == f"({', '.join(f'{x:.4f}' for x in p.tolist())})"
    assert fact("delta") == pytest.approx(out, abs=1e-4)
    for key, value in enumerate((1, 4, 2), 1):
        assert fact(f"ds{key}") == pytest.approx(p[key - 1].item() * (value - out), abs=1e-4)
    assert fact("measured-faster") == pytest.approx(41.7 / 7.3, abs=0.05)
    assert fact("share-fa3") == 85


def test_bits_of_the_text_are_those_of_the_figure() -> None:
    for dtype, power in (("float32", 1e7), ("bfloat16", 1e3)):
        told = BITS.data({"format": dtype})
        assert fact(f"equal-{dtype}") == round(100 * told["equal"])
        assert fact(f"apart-{dtype}") == pytest.approx(told["largest"] * power, abs=0.05)
    assert fact("error-first") > fact("error-second") > 0
