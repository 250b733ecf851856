"""Shrinking the cache: errors against PyTorch and its float8, bytes counted, who is evicted against loops."""

import math
import re
from urllib.parse import urlencode

import numpy as np
import pytest
import torch
from django.http import QueryDict
from torch.nn.functional import scaled_dot_product_attention

from concepts.facts import FACTS
from concepts.figures import Links
from concepts.figures.kv_bits import CHANNELS, FAR, FIGURES, TOKENS, cache_of
from concepts.figures.kv_keep import AFTER, FIGURE, PROMPT, SCALE, SEEN, text_of
from kernels.execute import execute
from kernels.spec import parse_run
from lab.form.forms import LabForm

FOUR, BITS = FIGURES
LINKS = Links("/page/", "/fragment/", "/lab/")
WINDOW, SINKS, H2O, SNAP = "window", "sinks", "h2o", "snap"


def values(figure, **state: str) -> dict:
    return figure.data(state)["values"]


# -- four numbers --------------------------------------------------------------------------------------------


def test_the_worked_example_is_what_the_figure_shows() -> None:
    found = FOUR.data({})
    assert found["codes"] == [0, 1, 2, 3]
    np.testing.assert_allclose(found["restored"], [-0.8, -0.1, 0.6, 1.3], atol=2e-3)
    rows = re.findall(r"<tr><th.*?</tr>", FOUR.view(values(FOUR), LINKS))[1:]
    shown = [re.sub(r"<[^>]+>", " ", row).split() for row in rows]
    assert [row[-2:] for row in shown] == [
        ["−0.80", "0"],
        ["−0.10", "−0.20"],
        ["0.60", "0.30"],
        ["1.30", "0"],
    ]
    assert [row[1] for row in shown] == ["0", "1.29", "1.57", "3"]
    assert "8 bits of codes and 32 for step and least number. The worst of the four is off by 0.30." in (
        FOUR.sentence(values(FOUR))
    )


def test_an_outlier_takes_from_its_neighbours_and_more_bits_give_back() -> None:
    state = {"x": "[[-0.8,0.1,0.3,5.5]]"}
    assert FOUR.data(state)["codes"] == [0, 0, 1, 3]
    assert "off by 1." in FOUR.sentence(values(FOUR, **state))
    assert "off by 0.01." in FOUR.sentence(values(FOUR, **state, width="8"))
    alike = FOUR.data({"x": "[[2,2,2,2]]"})
    assert (alike["step"], alike["restored"]) == (0, [2, 2, 2, 2])


# -- error against bytes -------------------------------------------------------------------------------------


def rounded(x: np.ndarray, bits: int, group: int, axis: int) -> torch.Tensor:
    """By PyTorch, in groups along an axis; scales and least numbers in 16 bits."""
    t = torch.tensor(x if axis == 1 else x.T).reshape(-1, group)
    least, most = t.amin(1, keepdim=True), t.amax(1, keepdim=True)
    step = ((most - least) / (2**bits - 1)).half().double()
    floor = least.half().double()
    back = floor + step * ((t - floor) / step).round().clamp(0, 2**bits - 1)
    return back.reshape(32, 32) if axis == 1 else back.reshape(32, 32).T


def off(k: torch.Tensor, v: torch.Tensor, exact: tuple[np.ndarray, ...]) -> float:
    q, *both = map(torch.tensor, exact)
    full = scaled_dot_product_attention(q[None], *(x[None] for x in both))[0]
    mine = scaled_dot_product_attention(q[None], k[None], v[None])[0]
    return float(((mine - full).norm(dim=1) / full.norm(dim=1)).mean())


@pytest.mark.parametrize("bits", ["8", "4", "2"])
@pytest.mark.parametrize("group", ["8", "16", "32"])
@pytest.mark.parametrize(("keys", "rows"), [("channel", "token"), ("token", "channel"), ("token", "token")])
def test_the_errors_are_those_of_pytorch(bits: str, group: str, keys: str, rows: str) -> None:
    state = {"bits": bits, "group": group, "keys": keys, "values": rows, "far": "7", "spread": "3"}
    found = BITS.data(state)["errors"]
    q, k, v = cache_of(7, 3)
    axes = {"channel": 0, "token": 1}
    kept = [rounded(x, int(bits), int(group), axes[axis]) for x, axis in ((k, keys), (v, rows))]
    plain = [torch.tensor(x) for x in (k, v)]
    assert found["both"] == pytest.approx(off(*kept, (q, k, v)), rel=1e-9)
    assert found["keys"] == pytest.approx(off(kept[0], plain[1], (q, k, v)), rel=1e-9)
    assert found["values"] == pytest.approx(off(plain[0], kept[1], (q, k, v)), rel=1e-9)


def test_fp8_is_that_of_pytorch() -> None:
    """One scale, so that the largest number is 448."""
    q, k, v = cache_of(10, 8)
    kept = []
    for x in (k, v):
        scale = np.float64(np.float32(np.abs(x).max() / 448))
        kept.append(torch.tensor(x / scale).to(torch.float8_e4m3fn).double() * scale)
    assert BITS.data({"bits": "fp8"})["errors"]["both"] == pytest.approx(off(*kept, (q, k, v)), rel=0.02)


@pytest.mark.parametrize(
    ("bits", "group", "size"),
    [
        ("4", "32", 2048 // 2 + 64 * 4), ("4", "8", 2048 // 2 + 256 * 4), ("2", "32", 2048 // 4 + 64 * 4),
        ("8", "16", 2048 + 128 * 4), ("fp8", "32", 2048 + 2 * 4),
    ],
)  # fmt: skip
def test_bytes_are_codes_and_scales(bits: str, group: str, size: int) -> None:
    state = {"bits": bits, "group": group}
    assert BITS.data(state)["bytes"] == size
    assert f">{size:,}</td>" in BITS.view(values(BITS, **state), LINKS)


def test_channels_that_all_keys_share_change_no_weight_and_no_error_per_channel() -> None:
    q, near, _v = cache_of(0, 8)
    _q, far, _v = cache_of(25, 8)
    moved = np.flatnonzero(np.abs(far - near).max(axis=0))
    assert moved.tolist() == list(FAR)
    scores = [torch.tensor(q @ k.T / math.sqrt(CHANNELS)).softmax(-1).numpy() for k in (near, far)]
    np.testing.assert_allclose(*scores, atol=1e-12)
    errors = {
        (keys, far): BITS.data({"keys": keys, "far": far})["errors"]["keys"]
        for keys in ("channel", "token")
        for far in ("0", "10", "25")
    }
    assert errors["channel", "25"] < 1.3 * errors["channel", "0"]
    assert errors["token", "25"] > 2 * errors["token", "10"] > 8 * errors["token", "0"]


def test_without_outliers_the_layouts_are_nearly_one() -> None:
    plain = {"far": "0", "spread": "1"}
    series, _x, _y = BITS.plot(values(BITS, **plain))
    at_four = [dict(one.points)[5.0] for one in series[:4]]
    assert max(at_four) < 1.3 * min(at_four)
    series, _x, _y = BITS.plot(values(BITS))
    at_four = [dict(one.points)[5.0] for one in series[:4]]
    assert max(at_four) > 4 * min(at_four)
    assert min(at_four) == at_four[0]


def test_the_plot_marks_what_is_set() -> None:
    for state in ({}, {"bits": "2", "keys": "token"}, {"bits": "fp8"}):
        series, _x, _y = BITS.plot(values(BITS, **state))
        found = BITS.data(state)
        assert series[-1].points == [(found["bits"], found["errors"]["both"])]
    told = BITS.sentence(values(BITS))
    assert told.startswith("4 bits with a scale to 32 numbers are 5 bits a number, 3.2 times fewer than 16;")
    assert "8.03 bits a number" in BITS.sentence(values(BITS, bits="fp8"))


@pytest.mark.parametrize(
    ("bits", "dtype", "scale"), [("4", "int8", "per_token_head"), ("fp8", "fp8_e4m3", "per_tensor")]
)
def test_the_lab_steps_from_a_cache_of_eight_bits(bits: str, dtype: str, scale: str) -> None:
    form = LabForm.from_link(QueryDict(urlencode(BITS.lab(values(BITS, bits=bits)))))
    body = form.body()
    assert not form.errors
    assert body["engine"] == "decode"
    assert body["options"]["kv_dtype"] == dtype
    assert body["options"].get("kv_scale", "per_token_head") == scale


# -- who is evicted ------------------------------------------------------------------------------------------


def heavy(q: np.ndarray, k: np.ndarray, budget: int) -> list[int]:
    """H2O by hand: one in, the one with the least sum out unless it is new, then the query looks."""
    held: list[int] = []
    sums: dict[int, float] = {}
    for t in range(len(q)):
        held.append(t)
        sums[t] = 0.0
        if len(held) > budget:
            old = held[: -(budget // 2)]
            held.remove(min(old, key=lambda token: sums[token]))
        weights = torch.tensor(q[t] @ k[held].T * SCALE).softmax(-1).tolist()
        for token, weight in zip(held, weights, strict=True):
            sums[token] += weight
    return held


@pytest.mark.parametrize("asks", list(AFTER))
@pytest.mark.parametrize("budget", [6, 10, 15])
@pytest.mark.parametrize("sinks", [0, 1, 4])
def test_who_stays(asks: str, budget: int, sinks: int) -> None:
    text, found = text_of(asks), FIGURE.data({"asks": asks, "budget": str(budget), "sinks": str(sinks)})
    n = len(text.words)
    assert found["full"]["places"] == list(range(n))
    assert found[WINDOW]["places"] == list(range(n - budget, n))
    assert found[SINKS]["places"] == [*range(sinks), *range(n - budget + sinks, n)]
    assert found[H2O]["places"] == heavy(text.q, text.k, budget)
    prompt = len(PROMPT)
    scores = torch.tensor(text.q[:prompt] @ text.k[:prompt].T * SCALE)
    weights = scores.masked_fill(torch.ones(prompt, prompt).triu(1).bool(), -math.inf).softmax(-1)
    chosen = weights[-SEEN:, :-SEEN].sum(0).topk(budget - SEEN).indices.sort().values.tolist()
    assert found[SNAP]["places"] == [*chosen, *range(prompt - SEEN, n)]


@pytest.mark.parametrize("asks", list(AFTER))
def test_what_is_lost_is_what_was_looked_at(asks: str) -> None:
    """o − full = (1 − p)(o − mean of what went), and errors by PyTorch."""
    text, found = text_of(asks), FIGURE.data({"asks": asks})
    q, k, v = (torch.tensor(x)[None] for x in (text.q[-1:], text.k, text.v))
    full = scaled_dot_product_attention(q, k, v)[0, 0]
    exact = torch.tensor(found["full"]["weights"], dtype=torch.float64)
    for way in (WINDOW, SINKS, H2O, SNAP):
        places = found[way]["places"]
        out = scaled_dot_product_attention(q, k[:, places], v[:, places])[0, 0]
        assert found[way]["error"] == pytest.approx(float((out - full).norm() / full.norm()), rel=1e-9)
        gone = [place for place in range(len(text.words)) if place not in places]
        p, mean = found[way]["share"], exact[gone] @ v[0, gone] / exact[gone].sum()
        assert p == pytest.approx(1 - float(exact[gone].sum()))
        np.testing.assert_allclose(out - full, (1 - p) * (out - mean), atol=1e-12)


def test_the_story_of_the_page() -> None:
    """The question is heard by SnapKV alone; the second one by nobody; the sink matters to the rest."""
    code, dog, near = (FIGURE.data({"asks": asks}) for asks in ("code", "dog", "near"))
    wanted = {name: PROMPT.index(word) for name, word in (("code", "4719"), ("dog", "Rex"))}
    assert [way for way in (WINDOW, SINKS, H2O, SNAP) if wanted["code"] in code[way]["places"]] == [SNAP]
    assert not any(wanted["dog"] in dog[way]["places"] for way in (WINDOW, SINKS, H2O, SNAP))
    assert code[SNAP]["error"] < 0.2
    assert min(dog[way]["error"] for way in (WINDOW, SINKS, H2O, SNAP)) > 0.9
    assert near[SINKS]["error"] < 0.05
    assert near[WINDOW]["error"] > 0.9
    told = FIGURE.sentence(values(FIGURE))
    assert "gives “4719” the most weight, 41\u202f%" in told
    assert "Kept, with the error of the output: SnapKV (11.1\u202f%). Evicted: window (120\u202f%)" in told
    assert "output: none. Evicted" in FIGURE.sentence(values(FIGURE, asks="dog"))


def test_all_of_the_prompt_is_kept_where_there_is_room() -> None:
    found = FIGURE.data({"budget": "21"})
    assert found[SNAP]["error"] == 0
    assert len(found[SNAP]["places"]) == len(PROMPT) + 1


def test_votes_of_neighbours_carry() -> None:
    near = [place for place in FIGURE.data({"pool": "3"})[SNAP]["places"] if place < len(PROMPT) - SEEN]
    at = PROMPT.index("4719")
    assert {at - 1, at, at + 1} <= set(near)


def test_the_grid_shows_who_went_and_frames_what_is_wanted() -> None:
    view = FIGURE.view(values(FIGURE), LINKS)
    words, budget = len(PROMPT) + 1, 10
    assert view.count(">–<") == 3 * (words - budget) + words - budget - 1
    assert re.findall(r'painted">(\d+)<', view) == ["41", "45"]


@pytest.mark.parametrize("asks", list(AFTER))
def test_the_run_keeps_whom_the_figure_keeps(asks: str) -> None:
    state = values(FIGURE, asks=asks, budget="12")
    form = LabForm.from_link(QueryDict(urlencode(FIGURE.lab(state))))
    body = form.body()
    assert not form.errors
    parsed = parse_run(body)
    found, mine = execute(parsed.spec, parsed.arrays).arrays, FIGURE.numbers(state)[H2O]
    assert np.flatnonzero(found["held"][-1]).tolist() == mine["places"]
    assert float(found["kept_weight"][-1]) == pytest.approx(mine["share"], abs=2e-3)
    assert float(found["row_error"][-1]) == pytest.approx(mine["error"], rel=2e-2)


# -- facts ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "text"),
    {
        "hand-step": "0.7", "hand-shares": "(0.00, 1.29, 1.57, 3.00)", "hand-codes": "(0, 1, 2, 3)",
        "hand-back": "(−0.8, −0.1, 0.6, 1.3)", "hand-worst": "0.3", "outlier-step": "2.1",
        "outlier-codes": "(0, 0, 1, 3)", "outlier-back": "(−0.8, −0.8, 1.3, 5.5)", "sixteen": "4,096",
        "bytes": "1,280", "bits-4-32": "5", "bits-4-128": "4.25", "bits-2-32": "3", "bits-fp8": "8",
        "kib-16": "128", "kib-4-32": "40", "kib-8-32": "72", "kib-fp8": "64", "gib-16": "16", "gib-4-32": "5",
        "gib-4-128": "4.25", "gib-2-32": "3", "times-4-32": "3.2", "times-2-32": "5.3", "times-fp8": "2",
        "both": "12.8",
    }.items(),
)  # fmt: skip
def test_facts(name: str, text: str) -> None:
    assert FACTS[f"kvc-{name}"].text == text


@pytest.mark.parametrize(
    ("name", "rounds", "state"),
    [
        ("kivi", "both", {}), ("other", "both", {"keys": "token", "values": "channel"}),
        ("keys-channel", "keys", {}), ("keys-token", "keys", {"keys": "token"}),
        ("values-token", "values", {}), ("values-channel", "values", {"values": "channel"}),
        ("fp8", "both", {"bits": "fp8"}), ("8", "both", {"bits": "8"}),
    ],
)  # fmt: skip
def test_facts_of_errors(name: str, rounds: str, state: dict[str, str]) -> None:
    found = 100 * BITS.data(state)["errors"][rounds]
    assert float(FACTS[f"kvc-{name}"].text) == pytest.approx(found, abs=0.51 if found > 10 else 0.051)


@pytest.mark.parametrize(
    "name", ["code-window", "code-sinks", "code-h2o", "code-snap", "dog-snap", "near-window", "near-sinks"]
)
def test_facts_of_eviction(name: str) -> None:
    asks, way = name.split("-")
    assert float(FACTS[f"kvc-{name}"].text) == pytest.approx(
        100 * FIGURE.data({"asks": asks})[way]["error"], abs=0.51
    )


def test_the_sink_has_half_of_the_weights() -> None:
    assert (
        FACTS["kvc-near-sink"].text
        == f"{100 * FIGURE.data({'asks': 'near'})['full']['weights'][0]:.0f}"
        == "50"
    )
    assert (TOKENS, CHANNELS) == (32, 32)
