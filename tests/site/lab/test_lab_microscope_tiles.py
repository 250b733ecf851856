"""The tile schedule as a page, against tiles read off the whole mask here."""

import html
import re

import numpy as np
import pytest
from django.test import Client

from api.runs.sharing import share_key
from workers import quotas

pytestmark = pytest.mark.django_db


@pytest.fixture
def client():
    return Client(REMOTE_ADDR="203.0.113.7")


def page(client, query="", status=200, address="/en/lab/tiles/"):
    response = client.get(address + query)
    assert response.status_code == status
    return html.unescape(response.content.decode())


def text(markup):
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", markup))


def rows(shown, caption):
    """{head of the row: its cells} of the table with this caption."""
    table = re.search(rf"<caption[^>]*>{re.escape(caption)}</caption>.*?</table>", shown, re.DOTALL)[0]
    found = {}
    for row in re.findall(r"<tr[^>]*>(.*?)</tr>", table, re.DOTALL):
        head, *rest = [
            text(cell).strip() for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL)
        ]
        found[head] = rest
    return found


def counted(shown):
    return {
        name: int(cells[0].replace(",", "")) for name, cells in rows(shown, KINDS).items() if name != "kind"
    }


KINDS = "How many tiles of each kind"
COSTS = "Pairs, FLOPs and bytes of one head"


def visible(q_len, kv_len, *, causal=False, top_left=False, left=None, kv_used=None, chunk=None):
    """Who sees whom, by the words of the contract."""
    queries = np.arange(q_len)[:, None] + (0 if top_left else (kv_used or kv_len) - q_len)
    keys = np.arange(kv_len)[None, :]
    seen = np.ones((q_len, kv_len), bool)
    if causal:
        seen &= keys <= queries
    if left is not None:
        seen &= keys >= queries - left
    if kv_used is not None:
        seen &= keys < kv_used
    if chunk:
        seen &= keys // chunk == queries // chunk
    return seen


def tiled(seen, block_m, block_n):
    """[rows, columns]: pairs seen in each tile, and whether it is a whole one."""
    n, m = seen.shape
    padded = np.zeros((-(-n // block_m) * block_m, -(-m // block_n) * block_n), int)
    padded[:n, :m] = seen
    return padded.reshape(-1, block_m, padded.shape[1] // block_n, block_n).sum((1, 3))


CASES = {
    "everyone": ("?q_len=100", {"q_len": 100, "kv_len": 100}),
    "causal": ("?q_len=100&causal=1", {"q_len": 100, "kv_len": 100, "causal": True}),
    "bottom right": ("?q_len=60&kv_len=200&causal=1", {"q_len": 60, "kv_len": 200, "causal": True}),
    "top left": (
        "?q_len=60&kv_len=200&causal=1&alignment=top_left",
        {"q_len": 60, "kv_len": 200, "causal": True, "top_left": True},
    ),
    "window": ("?q_len=300&causal=1&left=50", {"q_len": 300, "kv_len": 300, "causal": True, "left": 50}),
    "padding": ("?q_len=100&kv_used=40", {"q_len": 100, "kv_len": 100, "kv_used": 40}),
    "chunked": (
        '?q_len=300&causal=1&pattern={"type":"chunked","size":100}',
        {"q_len": 300, "kv_len": 300, "causal": True, "chunk": 100},
    ),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("block", [(16, 16), (32, 64)])
def test_tiles_are_those_of_the_mask(client, name, block):
    query, who = CASES[name]
    seen = visible(**who)
    pairs = tiled(seen, *block)
    shown = page(client, f"{query}&block_m={block[0]}&block_n={block[1]}&heads=1&head_dim=32")
    found = counted(shown)
    assert found["skipped"] == (pairs == 0).sum()
    assert found["masked"] + found["full"] == (pairs > 0).sum()
    if name not in ("window", "chunked"):  # whose kernel looks at every tile
        most = block[0] * block[1] if who["q_len"] % block[0] == 0 else None
        assert found["full"] <= (pairs > 0).sum()
        if most:
            assert found["full"] == (pairs == most).sum()
    else:
        assert found["full"] == 0
        assert "also at those that could do without" in shown
    costs = rows(shown, COSTS)
    assert int(costs["pairs that may see each other"][0].replace(",", "")) == seen.sum()
    assert (
        int(costs["pairs computed, in whole tiles"][0].replace(",", ""))
        == (pairs > 0).sum() * block[0] * block[1]
    )


def test_each_row_of_the_table_is_a_tile_of_queries(client):
    pairs = tiled(visible(100, 100, causal=True), 16, 16)
    found = rows(
        page(client, "?q_len=100&causal=1&block_m=16&block_n=16"), "What each tile of queries visits"
    )
    for i, row in enumerate(pairs):
        cells = found[str(i)]
        assert cells[4] == str((row > 0).sum())
        assert cells[3] == str((row == 0).sum())
        assert cells[0] == f"{16 * i}–{min(16 * i + 16, 100) - 1}"


def test_bytes_and_flops_are_those_of_the_tiles(client):
    shown = page(client, "?q_len=64&causal=1&block_m=16&block_n=16&head_dim=32&dtype=float32&heads=3")
    costs = rows(shown, COSTS)
    # 10 of 16 tiles; 2 · 256 pairs · 64 numbers each; 10 · 16 rows of K and V of 32 floats each
    assert costs["FLOPs"][0] == "328 thousand"
    assert costs["K and V read"][0] == "40.0 KiB"
    assert costs["Q read, O written"][0] == "16.0 KiB"
    assert "3 heads in all, if they are alike: 983 thousand FLOPs, 168 KiB" in text(shown)


def test_the_picture_has_a_cell_for_each_tile_and_says_what_it_is(client):
    shown = page(client, "?q_len=64&causal=1&block_m=16&block_n=16")
    grid = re.search(r'<svg class="tile-grid".*?</svg>', shown, re.DOTALL)[0]
    kinds = [int(kind) for kind in re.findall(r'<rect class="tile tile-(\d)', grid)]
    assert np.array(kinds).reshape(4, 4).tolist() == [[1, 0, 0, 0], [2, 1, 0, 0], [2, 2, 1, 0], [2, 2, 2, 1]]
    assert "<title>16–31 × 0–15: full</title>" in grid
    assert "4 tiles of queries down, 4 tiles of keys across: 6 full, 4 masked, 6 skipped." in grid


def test_steps_follow_the_kernel_and_each_has_an_address(client):
    shown = page(client, "?q_len=64&causal=1&block_m=16&block_n=16&step=4")
    assert "Visit 5 of 10: program 2 (queries 32–47) takes in tile 1 (keys 16–31)" in text(shown)
    assert shown.count(" todo") == 5 + 1  # and in the legend
    assert 'rel="next" href="?q_len=64&causal=1&block_m=16&block_n=16&step=5#visit"' in shown
    last = page(client, "?q_len=64&causal=1&block_m=16&block_n=16")
    assert "Visit 10 of 10" in text(last)
    assert 'rel="next"' not in last


@pytest.mark.parametrize("step", ["999", "-1", "x", "²", "9" * 40])
def test_a_step_that_is_not_there_is_one_that_is(client, step):
    assert re.search(
        r"Visit \d+ of 10", text(page(client, f"?q_len=64&causal=1&block_m=16&block_n=16&step={step}"))
    )


def test_a_large_grid_is_drawn_in_blocks_that_say_so_and_counted_exactly(client):
    shown = page(client, "?q_len=4096&causal=1&block_m=16&block_n=16")
    assert counted(shown)["skipped"] == 256 * 255 // 2
    grid = re.search(r'<svg class="tile-grid".*?</svg>', shown, re.DOTALL)[0]
    assert len(re.findall('<rect class="tile ', grid)) == 64 * 64
    assert "<title>0–63 × 0–63: 6 full, 4 masked, 6 skipped</title>" in grid
    assert "up to 4 × 4 tiles" in text(shown)


def test_the_work_of_programs_is_spread_as_causality_leaves_it(client):
    shown = page(client, "?q_len=64&causal=1&block_m=16&block_n=16&heads=1&at_once=2")
    assert "The 4 programs of a head visit 1 to 4 tiles, 2.50 on average." in text(shown)
    assert "37.5 % of their time together is waiting" in text(shown)
    found = rows(shown, "When the last program ends, by the order in which they start")
    assert [cells[0] for cells in found.values()][1:] == ["6", "5", "5"]
    assert "nobody waits for anybody" in page(client, "?q_len=64&block_m=16&block_n=16")


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("?q_len=banana", "“banana” is no whole number from 1 to 131,072"),
        ("?q_len=999999999", "is no whole number"),
        ("?block_m=24", "24"),
        ("?block_n=7", "7"),
        ("?pattern=nonsense", "This is no JSON"),
        ("?pattern=" + "[" * 9000, "This is no JSON"),
        ('?pattern={"type":"spiral"}', "spiral"),
        ("?pattern=" + "[" * 30000, "30,000 characters, and up to 20,000"),
        ("?q_len=131072&block_m=16&block_n=16", "choose larger tiles"),
        ('?q_len=8192&pattern={"type":"chunked","size":9}', "Choose shorter lengths"),
        ("?dtype=float12", "float12"),
        ("?kv_used=900", "is no whole number from 0 to 512"),
        ("?alignment=middle", "middle"),
    ],
)
def test_what_is_wrong_is_said(client, query, says):
    assert says in page(client, query, status=422)


def test_a_length_of_padding_may_have_spaces_around_it_or_be_spaces(client):
    spaced, plain = (page(client, query) for query in ("?q_used=%20&kv_used=%20300%20", "?kv_used=300"))
    drawn = re.compile(r'<svg class="tile-grid".*?</svg>', re.DOTALL)
    assert drawn.search(spaced)[0] == drawn.search(plain)[0] != drawn.search(page(client))[0]


def test_every_example_is_drawn(client):
    addresses = re.search(r'<nav class="presets".*?</nav>', page(client), re.DOTALL)[0]
    for address in re.findall(r'href="([^"]+)"', addresses):
        assert 'class="tile-grid"' in page(client, html.unescape(address)), address


def test_what_is_dear_is_charged_and_refused_when_used_up(client, monkeypatch):
    def used_up(quota, scope, *rest):
        raise quotas.QuotaExceeded(quota, 7)

    monkeypatch.setattr(quotas, "enter", used_up)
    assert "Visit" in page(client)
    response = client.get("/en/lab/tiles/?q_len=16384&block_m=16&block_n=32")
    assert response.status_code == 503
    assert response["Retry-After"] == "7"


# --- Of a run -------------------------------------------------------------------------------------


def of_run(client, run, query="", status=200):
    return page(client, query, status, f"/en/lab/runs/{run.id}/tiles/")


def test_of_a_run_they_are_those_of_its_mask(client, submit, finish):
    mask = np.random.default_rng(2).random((50, 60)) < 0.01
    inputs = {
        name: {"seed": 1, "shape": [1, 1, length, 4]} for name, length in (("q", 50), ("k", 60), ("v", 60))
    }
    run = finish(
        submit(
            inputs={**inputs, "attn_mask": [[0 if may else "-inf" for may in row] for row in mask]},
            returns=("out",),
        )
    )
    found = counted(of_run(client, run))
    assert found["skipped"] == (tiled(mask, 16, 16) == 0).sum()
    assert found["skipped"] > 0


def test_of_a_run_in_tiles_of_any_size_before_it_is_done(client, submit, seeded):
    run = submit(inputs=seeded(1, 2, 100, 4), attention={"is_causal": True})
    shown = of_run(client, run, "?block_m=32&block_n=64&head=1")
    assert counted(shown)["skipped"] == (tiled(visible(100, 100, causal=True), 32, 64) == 0).sum()
    assert '<option value="32" selected>' in shown
    assert 'name="head" value="1"' in shown
    assert counted(of_run(client, run, "?block_m=33&block_n=x")) == counted(of_run(client, run))


def test_a_run_without_such_tiles_says_so(client, submit):
    assert "There is no schedule to show" in of_run(client, submit(engine="linear", returns=("out",)))


def test_a_run_of_somebody_else_opens_with_its_key_alone(client, submit):
    run = submit(owner="alice")
    assert client.get(f"/en/lab/runs/{run.id}/tiles/").status_code == 404
    shown = of_run(client, run, f"?key={share_key(run)}")
    assert f'name="key" value="{share_key(run)}"' in shown


def test_steps_and_tiles_of_a_run_lead_to_each_other(client, submit, finish):
    run = finish(submit())
    shown = client.get(f"/en/lab/runs/{run.id}/steps/").content.decode()
    assert f"/en/lab/runs/{run.id}/tiles/" in shown
    assert f"/en/lab/runs/{run.id}/steps/" in of_run(client, run)
