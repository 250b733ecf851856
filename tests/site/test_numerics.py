"""Numerical traps: each shown by a number that is held against one worked out here, with a page, a source and
runs that the lab takes."""

import math
import re
from urllib.parse import parse_qs

import pytest

from concepts.facts import FACTS
from concepts.figures import Links
from concepts.figures.numerics import FIGURE, KINDS, ROWS, Trap
from concepts.pages import book, sources
from kernels.spec import parse_run
from kernels.traps import TRAPS

LINKS = Links("/page/", "/fragment/", "/lab/")
EVERY_TRAP = pytest.mark.parametrize("trap", ROWS, ids=lambda trap: trap.name)
NAN, INF = math.nan, math.inf
E = math.e


def test_there_are_twenty_seven_and_a_row_of_each() -> None:
    assert len(ROWS) == 27
    assert [row.name for row in ROWS] == list(TRAPS)
    assert {row.kind for row in ROWS} <= KINDS.keys()
    assert FACTS["numerics-traps"].text == "27"


@pytest.mark.parametrize(
    ("name", "wrong", "right"),
    [
        ("masked_row", NAN, 0),
        ("empty_tile", NAN, (1 + 3) / 2),
        ("sentinel", 0, 1 + 1 / E),
        ("alignment", 2, 4),
        ("window", 5, 4),
        ("softcap_mask", 1 / (1 + E ** (2 * math.tanh(0.5) + 2)), 0),
        ("tanh", NAN, 1),
        # 2 tanh(2 log₂ e) and 2 log₂ e tanh 2, as powers of two beside 1.
        ("softcap_base", 1 / (1 + 2 ** (-2 * math.tanh(2 / math.log(2)))),
         1 / (1 + E ** (-2 * math.tanh(2)))),
        ("softcap_alibi", -2 * math.tanh(1.5), 2 * math.tanh(0.5) - 4),
        # Two heads have slopes 2⁻⁴ and 2⁻⁸; shifting by 7 · slope shifts the sum.
        ("alibi_anchor", math.log(sum(E ** (j / 16) for j in range(8))),
         math.log(sum(E ** (j / 16) for j in range(8))) - 7 / 16),
        ("gqa_order", 1, 0),
        ("rope_pairs", 0, math.sin(1)),
        ("lse_base", 1.584963, 1.098612),
        ("fp16_overflow", INF, 640_000),
        ("padded_scale", 1 / 8, 0.158114),
        ("empty_merge", NAN, 0),
        ("nan_tail", NAN, 2),
        ("int32_offset", -(2**31), 2**31),
        ("odd_dim", 64, 40),
        ("ragged_tile", 128, 113),
        ("narrow_dot", 3, 16),
        ("sink_once", 64 / (64 + 4 * E**3), 64 / (64 + E**3)),
        ("int8_store", 200 - 256, 127),
        ("fp8_scale", 448, 1000),
        ("splits_pages", NAN, 1),
        ("negative_division", 0, -1),
        ("streamed_positions", 31, 7),
    ],
)  # fmt: skip
def test_a_mistake_gives_what_it_gives(name: str, wrong: float, right: float) -> None:
    found = TRAPS[name]()
    assert found.wrong == pytest.approx(wrong, nan_ok=True, abs=1e-6)
    assert found.right == pytest.approx(right, abs=1e-6)


@EVERY_TRAP
def test_the_lab_runs_what_is_right_without_a_complaint(trap: Trap) -> None:
    from lab.form.forms import LabForm

    links = re.findall(r'href="/lab/\?([^"]+)"', FIGURE.head(trap, LINKS))
    assert len(links) == len(trap.runs) > 0
    for link in links:
        state = parse_qs(link.replace("&amp;", "&"))
        fields = {name: value if len(value) > 1 else value[0] for name, value in state.items()}
        form = LabForm.from_link(fields)
        assert not form.errors
        assert parse_run(form.body()).spec


@EVERY_TRAP
def test_a_trap_has_its_page_and_its_source(trap: Trap) -> None:
    assert trap.page in {entry.slug for part in book("en").parts for entry in part.entries}
    head = FIGURE.head(trap, LINKS)
    assert (f"/concepts/{trap.page}/" in head) == (trap.page in book("en").pages)
    if trap.source:
        assert trap.source in sources()
        assert f"#ref-{trap.source}" in head
        assert trap.source in {one.key for one in book("en").pages["numerics"].sources}


def names(**state: str) -> set[str]:
    return {row["name"] for row in FIGURE.data(state)["rows"]}


def test_rows_are_of_a_kind_or_have_words() -> None:
    assert names(of="rounding") == {"A store that wraps", "fp8 without a scale"}
    assert names(find="1,023") == {"Lengths that no tile divides"}
    assert names(find="nan") == {"Memory that was never written"} | {
        str(row.title) for row in ROWS if math.isnan(row.outcome.wrong)
    }
    kinds = [row["kind"] for row in FIGURE.data({"sort": "kind"})["rows"]]
    assert kinds == sorted(kinds)
    assert len(set(kinds)) == len(KINDS)


def test_what_is_no_number_is_said_in_words() -> None:
    rows = {row["name"]: row for row in FIGURE.data({})["rows"]}
    assert rows["A row that sees nothing"]["gives"] == "NaN"
    assert rows["Scores in float16"]["gives"] == "∞"
    assert rows["A store that wraps"]["gives"] == -56
    html = FIGURE.view(FIGURE.data({})["values"], LINKS)
    assert "−2,147,483,648" in html
    picture = FIGURE.svg({})
    assert picture.count("NaN") == sum(math.isnan(row.outcome.wrong) for row in ROWS)


def test_numbers_of_the_text() -> None:
    assert FACTS["numerics-capped"].text == f"{2 * math.tanh(0.5):.4f}"
    assert FACTS["numerics-gap"].text == "2.9242"
    assert FACTS["numerics-leak"].text == f"{1 / (1 + E**2.924234):.4f}" == "0.0510"
    forbidden = 1000 * E ** (-2 - 2 * math.tanh(0.5))
    assert FACTS["numerics-thousand"].text == f"{forbidden / (1 + forbidden):.3f}"
    assert FACTS["numerics-wrapped"].text == "−2,147,483,648"
    assert (FACTS["numerics-natural"].text, FACTS["numerics-base"].text) == ("1.099", "1.585")
    assert FACTS["numerics-int8"].text == "−56"
    assert FACTS["numerics-loud"].text == "7"
    assert FACTS["numerics-silent"].text == "20"
