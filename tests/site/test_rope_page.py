"""The page on rotary positions: what its figures compute, the programs that it shows, and its numbers."""

import cmath
import math
import re
from typing import Any

import numpy as np
import pytest
import torch
from django.test import RequestFactory

from concepts.facts import FACTS
from concepts.figures import Links
from concepts.figures.rope import FIGURES, KEY, PROGRAMS, QUERY, largest_error, whole
from concepts.pages import CONTENT
from kernels.engines.reference import reference
from kernels.rope import cos_sin
from kernels.spec import parse_run
from kernels.spec.model import Rope
from lab.form.views import form_of_link

LINKS = Links("/page/", "/fragment/", "/lab/")
ROTATION, TURNS, ROUNDING = FIGURES
PAGE = (CONTENT / "en" / "rope.md").read_text(encoding="utf-8")
NEIGHBOURS, HALVES = [(0, 1), (2, 3)], [(0, 2), (1, 3)]


def fact(name: str) -> float:
    return float(FACTS[f"rope-{name}"].text.replace(",", "").replace("−", "-"))


def by_complex_numbers(
    x: list[float], position: int, base: float, pairs: list[tuple[int, int]]
) -> list[float]:
    """Each pair as x + iy, times e^(i·angle)."""
    turned = list(x)
    for number, (a, b) in enumerate(pairs):
        z = complex(x[a], x[b]) * cmath.exp(1j * position * base ** (-2 * number / 4))
        turned[a], turned[b] = z.real, z.imag
    return turned


# -- the rotation --------------------------------------------------------------------------------------------


OF_QUERY_AND_KEY = {
    "interleaved": (NEIGHBOURS, NEIGHBOURS),
    "half": (HALVES, HALVES),
    "apart": (NEIGHBOURS, HALVES),
}


@pytest.mark.parametrize("program", OF_QUERY_AND_KEY)
@pytest.mark.parametrize(("m", "n", "move", "base"), [(5, 3, 8, 100), (0, 40, 0, 10_000), (77, 77, 40, 3)])
def test_a_pair_is_a_complex_number_that_is_turned(
    program: str, m: int, n: int, move: int, base: int
) -> None:
    of_query, of_key = OF_QUERY_AND_KEY[program]
    state = {"m": m, "n": n, "move": move, "base": base, "pairs": program}
    found = ROTATION.data({name: str(value) for name, value in state.items()})
    query = by_complex_numbers(QUERY[0], m + move, base, of_query)
    key = by_complex_numbers(KEY[0], n + move, base, of_key)
    np.testing.assert_allclose(found["query"], query, atol=1e-12)
    np.testing.assert_allclose(found["key"], key, atol=1e-12)
    assert found["score"] == pytest.approx(np.dot(query, key), abs=1e-9)
    away = [
        np.dot(
            by_complex_numbers(QUERY[0], m, base, of_query), by_complex_numbers(KEY[0], n + by, base, of_key)
        )
        for by in range(41)
    ]
    np.testing.assert_allclose(found["scores_key_moved"], away, atol=1e-9)


def test_what_is_cut_as_neighbours_and_joined_as_halves_is_the_snippet() -> None:
    def snippet(x: torch.Tensor, position: int) -> torch.Tensor:
        angles = position * 100.0 ** (-torch.arange(0, 4, 2, dtype=torch.double) / 4)
        cos, sin = (part.repeat_interleave(2) for part in (angles.cos(), angles.sin()))
        return x * cos + torch.cat([-x[1::2], x[::2]]) * sin

    found = ROTATION.data({"pairs": "mixed"})
    query, key = torch.tensor(QUERY[0]).double(), torch.tensor(KEY[0]).double()
    np.testing.assert_allclose(found["query"], snippet(query, 13), atol=1e-7)
    expected = [(snippet(query, 5 + by) @ snippet(key, 3 + by)).item() for by in range(41)]
    np.testing.assert_allclose(found["scores_moved_together"], expected, atol=1e-6)


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_sentence_says_whether_the_score_stays(program: str) -> None:
    scores = ROTATION.data({"pairs": program})["scores_moved_together"]
    html = ROTATION.render({"pairs": program}, LINKS)
    stays = program in ("interleaved", "half")
    assert (max(scores) - min(scores) < 1e-9) is stays
    assert ("wherever both are moved together" in html) is stays
    assert ("they swing from" in html) is not stays


def test_the_table_adds_up_to_the_score() -> None:
    html = ROTATION.render({"m": "9", "n": "2", "move": "0"}, LINKS)
    rows = re.findall(r'<tr><th scope="row">\d</th>(.*?)</tr>', html)
    numbers = [[float(x.replace("−", "-")) for x in re.findall(r">([−\d.]+)<", row)] for row in rows]
    assert len(numbers) == 4
    assert sum(a * b for a, b, _product in numbers) == pytest.approx(sum(row[2] for row in numbers), abs=1e-3)
    assert sum(row[2] for row in numbers) == pytest.approx(
        ROTATION.data({"m": "9", "n": "2", "move": "0"})["score"], abs=3e-4
    )


def test_hands_of_a_dial_are_drawn_where_the_vectors_are() -> None:
    """Both planes: the angle of each tip, its length beside the others, and a path through the tip."""
    state = {"m": "4", "n": "1", "move": "3"}
    html, found = ROTATION.render(state, LINKS), ROTATION.data(state)
    drawn = re.findall(
        r'<g class="hand (.)"><path class="path" d="M(.*?)"/>.*?transform="translate\(([\d.]+) ([\d.]+)\)"',
        html,
    )
    assert [name for name, *_rest in drawn] == ["k", "q", "k", "q"]
    for pair, hands in enumerate((drawn[:2], drawn[2:])):
        scales = []
        for name, path, x, y in hands:
            vector = np.array(found["key" if name == "k" else "query"][2 * pair : 2 * pair + 2])
            tip = np.array([float(x) - 120, 120 - float(y)])
            scales.append(np.linalg.norm(tip) / np.linalg.norm(vector))
            np.testing.assert_allclose(tip / scales[-1], vector, atol=0.02)
            points = np.array([[float(n) for n in point.split()] for point in path.split("L")])
            assert np.hypot(*(points - [float(x), float(y)]).T).min() < 4
        assert scales[0] == pytest.approx(scales[1], rel=0.02)


@pytest.mark.parametrize("pairs", ["interleaved", "half"])
def test_the_lab_gives_the_score_of_the_figure_and_it_stays_when_all_are_moved(pairs: str, db: None) -> None:
    def scores(move: str) -> np.ndarray:
        values = ROTATION.data({"pairs": pairs, "move": move, "m": "6", "n": "1"})["values"]
        form, notes = form_of_link(RequestFactory().get("/en/lab/", ROTATION.lab(values)))
        assert not notes
        body = form.body()
        assert body["return"] == ["out", "scores", "weights"]
        parsed = parse_run({**body, "engine": "reference"})
        shape = parsed.spec.canonical_shape
        arrays = {key: np.reshape(array, shape(key)) for key, array in parsed.arrays.items() if key in "qkv"}
        return reference(parsed.spec, parsed.arrays | arrays, ("scores",))["scores"].ravel()

    found = scores("8")
    assert len(found) == 4
    np.testing.assert_allclose(found, scores("31"), atol=1e-5)
    for step, score in enumerate(found):
        expected = ROTATION.data({"pairs": pairs, "m": "6", "n": str(1 + step)})["score"]
        assert score == pytest.approx(expected, abs=1e-5)


# -- wavelengths ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "base", "length"), [(64, 10_000, 4096), (64, 500_000, 8192), (1, 7, 16)])
def test_a_pair_comes_round_after_its_wavelength(count: int, base: float, length: int) -> None:
    found = TURNS.data({"count": str(count), "b": str(base), "length": str(length)})
    expected = [2 * math.pi * base ** (2 * i / (2 * count)) for i in range(count)]
    np.testing.assert_allclose(found["tokens_per_turn"], expected, rtol=1e-12)
    assert found["unfinished"] == sum(wave > length for wave in expected)


# -- few bits ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "place"), [("float32", 131_072), ("float16", 2049), ("bfloat16", 1001)])
def test_errors_are_those_of_a_program_in_that_precision(dtype: str, place: int) -> None:
    """Positions, frequencies and angles as torch rounds them; turned as complex numbers."""
    from kernels.arrays import generate

    kind = getattr(torch, dtype)
    omega = 10_000.0 ** (-torch.arange(0, 64, 2, dtype=torch.double) / 64)
    q, k = (torch.tensor(generate(name, 0, (16, 64), "normal", "float64")) for name in "qk")

    def complexes(x: torch.Tensor) -> torch.Tensor:
        x = x / x.norm(dim=-1, keepdim=True)
        return torch.complex(x[:, :32], x[:, 32:])

    def score(position: int, kind: torch.dtype) -> torch.Tensor:
        at = [torch.tensor([p], dtype=kind) * omega.to(kind) for p in (position + 2, position)]
        turns = [torch.polar(torch.ones(32, dtype=torch.double), angle.double()) for angle in at]
        return ((complexes(q) * turns[0]) * (complexes(k) * turns[1]).conj()).real.sum(-1)

    expected = max(
        (score(p, kind) - score(p, torch.double)).abs().max().item() for p in range(place, place + 8)
    )
    assert largest_error(place, 2, dtype) == pytest.approx(expected, rel=1e-6)


def test_a_format_that_does_not_reach_has_no_error_and_says_so() -> None:
    found = ROUNDING.data({"place": "131072"})
    assert found["float16"] == {"positions": [None, None], "largest_error": None}
    assert found["bfloat16"]["positions"] == [131_072, 131_072]
    assert "∞" in ROUNDING.render({"place": "131072"}, LINKS)
    assert whole(math.nan) == "–"


def test_the_sentence_says_what_bfloat16_has() -> None:
    assert "become 1,000 and 1,004: their distance is 4 instead of 2" in ROUNDING.render({}, LINKS)
    assert "bfloat16 has both positions, 100 and 102" in ROUNDING.render({"place": "100"}, LINKS)


# -- what the page says --------------------------------------------------------------------------------------


def programs() -> dict[str, Any]:
    """Those that the page shows."""
    space: dict[str, Any] = {"torch": torch}
    found = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert found
    exec(found[1], space)
    return space


@pytest.mark.parametrize("style", ["half", "interleaved"])
def test_the_shown_programs_are_rope(style: str) -> None:
    from kernels.rope import rotate

    x, positions = torch.randn(5, 12, dtype=torch.double), np.arange(3, 8)[None]
    cos, sin = cos_sin(Rope(style), 12, positions)
    shown = programs()[style](x, torch.tensor(cos[0]), torch.tensor(sin[0]))
    expected = rotate(x.numpy()[None, None], cos, sin, style=style, dim_offset=0)[0, 0]
    np.testing.assert_allclose(shown, expected, atol=1e-12)


def test_reordered_rows_make_one_pairing_of_the_other() -> None:
    """As the conversion of Llama reorders the rows of a matrix of one head: pairs of rows to two halves."""
    w_q, w_k, x = (torch.randn(8, 6), torch.randn(8, 6), torch.randn(5, 6))
    cos, sin = (
        torch.tensor(part[0], dtype=torch.float32) for part in cos_sin(Rope("half"), 8, np.arange(5)[None])
    )

    def scores(turn: Any, w_q: torch.Tensor, w_k: torch.Tensor) -> torch.Tensor:
        return turn(x @ w_q.T, cos, sin) @ turn(x @ w_k.T, cos, sin).T

    def permuted(w: torch.Tensor) -> torch.Tensor:
        return w.view(1, 4, 2, 6).transpose(1, 2).reshape(8, 6)

    shown = programs()
    published = scores(shown["interleaved"], w_q, w_k)
    torch.testing.assert_close(scores(shown["half"], permuted(w_q), permuted(w_k)), published)
    assert (scores(shown["half"], w_q, w_k) - published).abs().max() > 0.1


def test_the_example_by_hand() -> None:
    for name, angle in (("q", 2), ("k", 1), ("far-q", 12), ("far-k", 11)):
        expected = f"({math.cos(angle):.4f}, {math.sin(angle):.4f})".replace("-", "−")
        assert FACTS[f"rope-hand-{name}"].text == expected
    assert fact("hand-score") == fact("hand-far-score") == pytest.approx(math.cos(1), abs=5e-5)


def test_what_is_said_of_the_figure_as_it_opens() -> None:
    found = ROTATION.data({})
    assert fact("score") == pytest.approx(found["score"], abs=6e-4)
    assert fact("key-low") == pytest.approx(min(found["scores_key_moved"]), abs=6e-3)
    assert fact("key-high") == pytest.approx(max(found["scores_key_moved"]), abs=6e-3)
    mixed = [ROTATION.data({"pairs": "mixed", "move": str(by)})["key"] for by in range(41)]
    lengths = [math.hypot(*key) / math.hypot(*KEY[0]) for key in mixed]
    assert fact("mixed-short") == pytest.approx(min(lengths), abs=6e-3)
    assert fact("mixed-long") == pytest.approx(max(lengths), abs=6e-3)
    assert fact("mixed-short") < 0.9
    assert fact("mixed-long") > 1.1


def test_what_is_said_of_llama() -> None:
    """Heads of 128; bases and lengths as published."""
    for base, length, slowest, unturned in (
        (1e4, 4096, "slowest", "unturned"),
        (5e5, 8192, "slowest-llama3", "unturned-llama3"),
    ):
        waves = [2 * math.pi * base ** (i / 64) for i in range(64)]
        assert fact(slowest) == round(waves[-1])
        assert fact(unturned) == sum(wave > length for wave in waves)
    assert fact("fastest") == pytest.approx(2 * math.pi, abs=5e-3)


def test_what_is_said_of_few_bits() -> None:
    assert fact("bfloat16-key") == torch.tensor(1001.0).bfloat16().item()
    assert fact("bfloat16-query") == torch.tensor(1003.0).bfloat16().item()
    assert fact("float16-key") == torch.tensor(2049.0).half().item()
    assert torch.finfo(torch.half).max == 65_504
    positions = torch.arange(130_072, 131_072)
    omega = 10_000.0 ** (-torch.arange(0, 64, 2, dtype=torch.double) / 64)
    rounded = torch.outer(positions.float(), omega.float()).double()
    error = (rounded - torch.outer(positions.double(), omega)).abs().max().item()
    assert fact("float32-angle") == pytest.approx(error, abs=6e-4)
