"""The matrices of a head side by side, and the arithmetic of the cell that all of them show."""

import html
import io
import re
import struct
import threading
import zlib

import numpy as np
import pytest
from django.test import Client

from api import pure
from api.runs.sharing import share_key
from lab import png
from lab.runs import closeups, maps, stored
from workers import artifacts

pytestmark = pytest.mark.django_db

HAND = {
    "scores": [[0.7071, 0, 0.7071], [0, 0.7071, 0.7071], [0.7071, 0.7071, 1.4142]],
    "weights": [[0.4011, 0.1978, 0.4011], [0.1978, 0.4011, 0.4011], [0.2483, 0.2483, 0.5035]],
}


@pytest.fixture
def client():
    return Client(REMOTE_ADDR="203.0.113.7")


@pytest.fixture(autouse=True)
def _forgotten():
    for kept in (closeups.latest, closeups.latest_parts, stored.latest):
        kept.found.clear()


def page(client, run, query="", status=200):
    response = client.get(f"/en/lab/runs/{run.id}/{query}")
    assert response.status_code == status
    return html.unescape(response.content.decode())


def text(markup):
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", markup))


def cell(client, run, query="", status=200):
    response = client.get(f"/en/lab/runs/{run.id}/cell/{query}")
    assert response.status_code == status
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", html.unescape(response.content.decode())))


def matrix(shown, name):
    """The numbers of a small matrix."""
    figure = re.search(rf'data-map="{name}".*?</figure>', shown, re.DOTALL)[0]
    rows = re.findall(r'<tr><th scope="row">\d+</th>(.*?)</tr>', figure)
    return [re.findall(r">([^<>]+)</(?:a|td)>", row) for row in rows]


def decoded(content):
    """(pixels, palette, alpha) of a PNG, by its specification and nothing of ours."""
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    stream, chunks = io.BytesIO(content[8:]), {}
    while head := stream.read(8):
        length, kind = struct.unpack(">I4s", head)
        chunks[kind] = stream.read(length)
        assert struct.unpack(">I", stream.read(4))[0] == zlib.crc32(kind + chunks[kind])
    width, height, bits, color = struct.unpack(">IIBB", chunks[b"IHDR"][:10])
    assert (bits, color) == (8, 3)
    lines = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(height, width + 1)
    assert not lines[:, 0].any()
    palette = np.frombuffer(chunks[b"PLTE"], np.uint8).reshape(-1, 3)
    return lines[:, 1:], palette, chunks[b"tRNS"]


def test_the_worked_example_side_by_side_whatever_the_engine_returned(client, submit, finish):
    shown = page(client, finish(submit(returns=("out",))))
    for name, numbers in HAND.items():
        written = [[float(text) for text in row] for row in matrix(shown, name)]
        assert np.allclose(written, numbers, atol=5.1e-5), name
    assert [row[0] for row in matrix(shown, "out")] == ["1.2033", "1.0000", "1.2552"]


def test_the_arithmetic_of_a_cell(client, submit, finish):
    said = cell(client, finish(submit()), "?row=2&col=1")
    for step in (
        "query · key 1.0000 × 0 + 1.0000 × 1.0000 1.0000",
        "score 0.707107 × 1.0000 0.7071 ",
        "exponential exp(0.7071 − 1.4142) 0.4931",
        "weight 0.4931 ∕ 1.9861 0.2483",
        "adds to the output 0.2483 × [0, 2.0000] [0, 0.4965]",
        "output of this query the sum over all keys [1.2552, 1.5035]",
    ):
        assert step in said, said


def test_a_masked_cell_says_why(client, submit, finish, seeded):
    run = finish(submit(inputs=seeded(1, 1, 6, 4), attention={"is_causal": True}))
    said = cell(client, run, "?row=1&col=4")
    assert "causal: the key’s position 4 is after the query’s 1" in said
    assert "masked score" in said
    assert "−∞" in said
    assert "keys it sees 2" in said


def test_the_chosen_cell_is_in_the_address_and_lit_everywhere(client, submit, finish):
    shown = page(client, finish(submit()), "?row=1&col=2")
    lit = re.findall(r'data-map="(\w+)"|<td class="[^"]*lit[^"]*" data-i="2"(?: data-j="(\d)")?', shown)
    columns = {}
    for name, column in lit:
        if name:
            last = name
        else:
            columns.setdefault(last, []).append(column)
    assert columns["scores"] == columns["weights"] == ["3"]
    assert len(columns["out"]) == 2
    assert "Query 1 and key 2" in re.sub(r"\s+", " ", shown)


@pytest.mark.parametrize("query", ["?row=99&col=99", "?row=-1&col=x", "?row=²", "?row=" + "9" * 40])
def test_a_cell_that_is_not_there_is_one_that_is(client, submit, finish, query):
    assert re.search(r"Query [02] and key [02]", cell(client, finish(submit()), query))


def test_large_matrices_are_pictures_in_the_colours_of_the_theme(client, submit, finish, seeded):
    run = finish(
        submit(inputs=seeded(1, 2, 40, 8), attention={"is_causal": True}, returns=("out", "weights"))
    )
    shown = page(client, run, "?head=1")
    assert shown.count('<img class="only-light"') == shown.count('<img class="only-dark"') == 5
    weights = artifacts.load_results(run)["weights"][0, 1]
    for theme in ("light", "dark"):
        response = client.get(f"/en/lab/runs/{run.id}/maps/weights.png?head=1&theme={theme}")
        assert response["Content-Type"] == "image/png"
        assert "immutable" in response["Cache-Control"]
        assert "private" in response["Cache-Control"]
        pixels, palette, _ = decoded(response.content)
        expected = np.rint(weights / weights.max() * maps.TOP)
        assert np.abs(pixels.astype(int) - expected).max() <= 1
        bright = palette[: maps.TOP + 1].sum(axis=1)
        assert (bright[0] > bright[-1]) == (theme == "light")


def test_a_picture_that_is_the_same_is_sent_once(client, submit, finish, seeded):
    for attention, pictures in (({}, 1), ({"is_causal": True}, 2)):
        shown = page(client, finish(submit(inputs=seeded(1, 1, 12, 4), attention=attention)))
        light = re.findall(r'<img class="only-light" src="([^"]+(?:scores)\.png[^"]*)"', shown)
        assert len(light) == 2
        assert len(set(light)) == pictures


def test_masked_pixels_are_seen_through(client, submit, finish, seeded):
    run = finish(submit(inputs=seeded(1, 1, 12, 4), attention={"is_causal": True}))
    pixels, _, alpha = decoded(client.get(f"/en/lab/runs/{run.id}/maps/masked_scores.png").content)
    assert np.array_equal(pixels == maps.MASKED, np.triu(np.ones((12, 12), bool), 1))
    assert [number for number, opacity in enumerate(alpha) if not opacity] == [maps.MASKED]


def test_every_peak_of_what_does_not_fit_stays_visible(monkeypatch):
    monkeypatch.setattr(maps, "PIXELS", 7)
    values = np.zeros((50, 23))
    values[31, 17], values[3, 4] = -1.0, 0.5
    one = maps.whole("error", "div", values)
    assert one.levels.shape == (7, 6)
    assert (one.levels == 0).sum() == 1  # the lowest of the scale: largest in size, and negative
    assert one.is_reduced
    assert (one.table.min(), one.table.max()) == (-1.0, 0.5)
    weights = maps.whole("weights", "seq", np.abs(values))
    assert (weights.levels == maps.TOP).sum() == 1


def test_a_large_picture_begins_small(client, submit, finish, seeded):
    run = finish(submit(inputs=seeded(1, 1, 288, 4), attention={"is_causal": True}))
    shown = page(client, run)
    first, full = re.search(r'src="([^"]*maps/scores.png[^"]*)" data-full="([^"]*)"', shown).groups()
    small, large = (decoded(client.get(html.unescape(address)).content)[0] for address in (first, full))
    assert large.shape == (288, 288)
    assert small.shape == (96, 96)
    assert np.array_equal(small, large.reshape(96, 3, 96, 3).max(axis=(1, 3)))
    assert f'<a class="no-js only-light" href="{full}">The picture in full</a>' in shown


@pytest.mark.parametrize("name", ["error", "scores"])
def test_a_small_picture_loses_no_peak_and_shows_what_is_masked_throughout(name):
    values = np.random.default_rng(3).uniform(-1, 1, (192, 288))
    values[:3, :5] = -np.inf  # one block of 2 × 3, and parts of others
    values[100, 200], values[7, 8] = np.nan, -2.0
    one = maps.drawn(name, "div", values, values.shape)
    small = one.preview().levels
    assert small.shape == (96, 96)
    for i, j in np.ndindex(small.shape):
        block = one.levels[2 * i : 2 * i + 2, 3 * j : 3 * j + 3].astype(int)
        seen = block[block != maps.MASKED]
        if maps.NOT_A_NUMBER in block:
            assert small[i, j] == maps.NOT_A_NUMBER
        elif not seen.size:
            assert small[i, j] == maps.MASKED
        elif name == "scores":
            assert small[i, j] == seen.max()
        else:
            assert small[i, j] in seen
            assert abs(small[i, j] - maps.TOP / 2) == np.abs(seen - maps.TOP / 2).max()


def test_the_error_of_what_was_returned_is_a_map_of_its_own(client, submit, finish, monkeypatch):
    run = finish(submit())
    results = artifacts.load_results(run)
    wrong = results["out"].copy()
    wrong[2, 1] += 0.25
    original = artifacts.load_part
    monkeypatch.setattr(
        artifacts, "load_part", lambda run, name, *at: wrong if name == "out" else original(run, name, *at)
    )
    errors = matrix(page(client, run, "?row=2"), "error")
    assert float(errors[2][1]) == pytest.approx(0.25, abs=1e-4)
    assert "error of the output what the engine returned, minus this" in (said := cell(client, run, "?row=2"))
    assert re.search(r"minus this \[[^,]+, 0\.2500\]", said)


def test_a_run_of_somebody_else_shows_neither_cells_nor_pictures(client, submit, finish):
    run = finish(submit(owner="alice"))
    for address in (f"/en/lab/runs/{run.id}/cell/", f"/en/lab/runs/{run.id}/maps/weights.png"):
        assert client.get(address).status_code == 404
        assert client.get(f"{address}?key={share_key(run)}").status_code == 200
    shown = page(client, run, f"?key={share_key(run)}")
    assert f"key={share_key(run)}" in re.search(r'data-cell-address="([^"]+)"', shown)[1]


def test_what_is_too_large_for_a_page_shows_what_was_returned_and_says_why(
    client, submit, finish, monkeypatch
):
    run = finish(submit(returns=("out", "weights")))
    monkeypatch.setattr(closeups, "MOST", 3 * 3 * 4 - 1)
    shown = page(client, run)
    assert "takes 36 multiply-adds in float64, and a page computes at most 35" in text(shown)
    assert re.findall(r'data-map="(\w+)"', shown) == ["weights", "out"]
    assert [[float(number) for number in row] for row in matrix(shown, "weights")] == HAND["weights"]
    assert "Not here, because the run did not return them: scores, masked scores." in text(shown)
    assert "This engine can return scores, masked scores: ask for them" in text(shown)
    said = cell(client, run, "?row=2&col=2")
    assert "weights as the engine returned it 0.5035" in said
    assert "output as the engine returned it [1.2552, 1.5035]" in said


def test_an_engine_that_is_not_softmax_shows_what_it_returned(client, submit, finish):
    shown = page(client, finish(submit(engine="linear", returns=("out",))))
    assert "This engine computes linear attention, not softmax attention" in text(shown)
    assert re.findall(r'data-map="(\w+)"', shown) == ["out"]
    assert "Not here, because" not in shown


def test_inputs_that_are_gone_leave_what_was_measured(client, submit, finish, monkeypatch):
    monkeypatch.setattr(artifacts, "INLINE_BYTES", 0)
    run = finish(submit())
    artifacts.delete(run.id)
    for part in ("cell/", "maps/weights.png"):
        assert client.get(f"/en/lab/runs/{run.id}/{part}").status_code == 404, part
    shown = text(page(client, run))
    assert "The stored inputs of this run are gone" in shown
    assert "The stored arrays of this run are gone" in shown


def test_the_old_address_of_the_close_look_leads_to_the_page_with_all_that_it_said(client, submit, finish):
    run = finish(submit())
    response = client.get(f"/en/lab/runs/{run.id}/closeup/?head=0&row=2&col=1")
    assert (response.status_code, response["Location"]) == (
        301,
        f"/en/lab/runs/{run.id}/?head=0&row=2&col=1#look",
    )
    assert client.get(f"/en/lab/runs/{'x' * 22}/closeup/").status_code == 404


# --- Computed, and returned -----------------------------------------------------------------------


def test_what_was_returned_is_in_the_same_places(client, submit, finish, monkeypatch):
    run = finish(submit(returns=("out", "weights", "lse")))
    wrong = {**artifacts.load_results(run)}
    wrong["weights"] = np.full((3, 3), 0.125, np.float32)
    monkeypatch.setattr(artifacts, "load_part", lambda run, name, *index: wrong[name])
    assert matrix(page(client, run), "weights")[0][0] == "0.4011"
    shown = page(client, run, "?from=run&row=1")
    assert matrix(shown, "weights")[0] == ["0.1250"] * 3
    assert "Computed again in float64" not in shown
    assert 'name="from" value="run"' in shown
    assert "entropy 0.7798 nats" in text(shown)  # three times −⅛ ln ⅛
    assert "weights as the engine returned it 0.1250" in cell(client, run, "?from=run&row=1&col=1")


def test_one_head_of_what_was_returned_is_read_and_nothing_else(client, submit, finish, seeded):
    run = finish(submit(inputs=seeded(2, 3, 5, 4), returns=("out", "weights")))
    whole = artifacts.load_results(run)["weights"]
    for batch, head in ((0, 1), (1, 2)):
        shown = page(client, run, f"?from=run&batch={batch}&head={head}&row=0&col=0")
        label = re.findall(r'aria-label="query \d, key \d: ([^"]+)"', shown)
        assert np.allclose([float(number) for number in label], whole[batch, head].ravel(), atol=5.1e-5)


def test_a_large_look_at_what_was_returned_is_charged(client, submit, finish, monkeypatch):
    run = finish(submit(returns=("out", "weights")))
    monkeypatch.setattr(pure, "_places", threading.BoundedSemaphore(1))
    with pure.place():
        assert "as the engine returned it" in cell(client, run, "?from=run&row=1&col=1")
        stored.latest.found.clear()
        monkeypatch.setattr(stored, "FREE", 3 * 3 + 3 * 2 - 1)
        assert "Try again in a second" in text(page(client, run, "?from=run"))
    assert matrix(page(client, run, "?from=run"), "weights")


# --- Near and far ---------------------------------------------------------------------------------


def test_a_part_is_the_square_around_the_cell_number_by_number(client, submit, finish, seeded):
    run = finish(submit(inputs=seeded(1, 2, 40, 12), returns=("out", "weights")))
    weights = artifacts.load_results(run)["weights"][0, 1]
    for source in ("", "&from=run"):
        shown = page(client, run, f"?head=1&zoom=8&row=37&col=10{source}")
        figure = re.search(r'data-map="weights".*?</figure>', shown, re.DOTALL)[0]
        found = re.findall(r'aria-label="query (\d+), key (\d+): ([^"]+)"', figure)
        assert [(int(i), int(j)) for i, j, _ in found] == [
            (i, j) for i in range(32, 40) for j in range(8, 16)
        ]
        values = [float(value) for *_, value in found]
        assert np.allclose(values, weights[32:40, 8:16].ravel(), atol=5.1e-5)
        lit = re.search(r'<td class="[^"]*lit[^"]*" data-i="38" data-j="11"', figure)
        assert lit, "the cell that the square is around"
        links = re.findall(r'href="\?([^"#]+)#look" aria-label="query 32', figure)
        assert all("zoom=8" in link and "head=1" in link for link in links)


def test_pictures_of_a_part_are_its_numbers(client, submit, finish, seeded):
    run = finish(submit(inputs=seeded(1, 1, 100, 4), returns=("out", "weights")))
    shown = page(client, run, "?zoom=64&row=70&col=3")
    address = re.search(r'data-map="weights".*?<img class="only-light" src="([^"]+)"', shown, re.DOTALL)[1]
    assert "zoom=64&row=64&col=0" in address, "the same for every cell of the square"
    near, _, _ = decoded(client.get(address).content)
    assert near.shape == (36, 64)
    square = artifacts.load_results(run)["weights"][0, 0, 64:, :64]
    assert np.abs(near - np.rint(square / square.max() * maps.TOP)).max() <= 1
    out, _, _ = decoded(client.get(f"/en/lab/runs/{run.id}/maps/out.png?zoom=64&row=70").content)
    assert out.shape == (36, 4)


@pytest.mark.parametrize("zoom", ["7", "-8", "x", "1e9", ""])
def test_only_sides_that_there_are_are_zoomed_to(client, submit, finish, seeded, zoom):
    run = finish(submit(inputs=seeded(1, 1, 20, 4)))
    shown = page(client, run, f"?zoom={zoom}")
    assert 'data-side="0"' in shown
    current = re.search(r'data-picker="zoom">.*?aria-current="true"[^>]*>([^<]+)<', shown, re.DOTALL)[1]
    assert current == "all 20 × 20"


def test_small_matrices_have_nothing_to_zoom(client, submit, finish):
    assert 'data-picker="zoom"' not in page(client, finish(submit()))


def test_a_reduced_picture_says_so(client, submit, finish, seeded, monkeypatch):
    monkeypatch.setattr(maps, "PIXELS", 16)
    shown = text(page(client, finish(submit(inputs=seeded(1, 1, 40, 4)))))
    assert "40 × 40 numbers do not fit: each pixel is the largest of those that it stands for" in shown
    assert "40 × 4 numbers do not fit: each pixel is the one of largest size" in shown


# --- What takes long ------------------------------------------------------------------------------


def test_what_takes_long_comes_after_the_page(client, submit, finish, seeded, monkeypatch):
    monkeypatch.setattr(closeups, "AT_ONCE", 0)
    run = finish(submit(inputs=seeded(1, 2, 12, 4)))
    shown = page(client, run, "?head=1&row=3")
    assert "data-map" not in shown
    region = re.search(r'<section class="look" id="look"[^>]*>', shown)[0]
    assert 'hx-trigger="load"' in region
    later = client.get(re.search(r'hx-get="([^"]+)"', region)[1])
    assert "data-map" in later.content.decode()
    assert "<html" not in later.content.decode()
    assert "Query 3 and key 0" in re.sub(r"\s+", " ", later.content.decode())
    assert "data-map" in page(client, run, "?head=1"), "it is there by now"
    closeups.latest.found.clear()
    link = re.search(r'<a class="no-js" href="([^"#]+)', shown)[1]
    assert "data-map" in page(client, run, link), "without JavaScript"


def test_the_part_that_changes_says_what_the_address_is_then(client, submit, finish, seeded):
    run = finish(submit(inputs=seeded(1, 2, 12, 4)))
    answer = client.get(f"/en/lab/runs/{run.id}/look/?head=1&row=2")
    assert answer["HX-Push-Url"] == f"/en/lab/runs/{run.id}/?head=1&row=2"
    here = {"HX-Current-URL": f"http://testserver/en/lab/runs/{run.id}/?head=1&row=2"}
    assert "HX-Push-Url" not in client.get(f"/en/lab/runs/{run.id}/look/?head=1&row=2", headers=here)


def test_what_is_not_there_is_not_found(client, submit, finish):
    run = finish(submit())
    assert client.get(f"/en/lab/runs/{run.id}/maps/secrets.png").status_code == 404
    queued = submit()
    assert client.get(f"/en/lab/runs/{queued.id}/cell/").status_code == 404


def test_a_run_without_queries_has_empty_matrices(client, submit, finish):
    inputs = {
        "q": {"seed": 1, "shape": [0, 4]},
        "k": {"seed": 1, "shape": [3, 4]},
        "v": {"seed": 1, "shape": [3, 4]},
    }
    shown = page(client, finish(submit(inputs=inputs)))
    assert "Empty: there are no queries" in shown
    assert 'id="cell"' not in shown


def test_a_large_head_is_charged_and_refused_when_used_up(client, submit, finish, seeded, monkeypatch):
    from workers import quotas

    monkeypatch.setattr(closeups, "FREE", 0)
    run = finish(submit(inputs=seeded(1, 1, 12, 4)))

    def used_up(quota, scope, *rest):
        raise quotas.QuotaExceeded(quota, 7)

    monkeypatch.setattr(quotas, "enter", used_up)
    response = client.get(f"/en/lab/runs/{run.id}/maps/weights.png")
    assert response.status_code == 503
    assert response["Retry-After"] == "7"
    shown = page(client, run)
    assert "Try again in 7 s" in text(shown)
    assert 'hx-trigger="load delay:7s"' in shown
    assert "Measured" in shown, "the rest of the page"


def test_a_small_head_of_many_is_charged_for_the_inputs_of_all(client, submit, finish, seeded, monkeypatch):
    from workers import quotas

    entered = []
    monkeypatch.setattr(quotas, "enter", lambda *given: entered.append(given) or False)
    one, many = (finish(submit(inputs=seeded(1, heads, 4, 4))) for heads in (1, 16))
    monkeypatch.setattr(closeups, "FREE", 4 * 4 * (4 + 4) + 3 * 4 * 4)
    page(client, one)
    assert not entered
    page(client, many)
    client.get(f"/en/lab/runs/{many.id}/scores.svg")
    assert len(entered) == 2


def test_choices_keep_one_another(client, submit, finish, seeded):
    run = finish(submit(inputs=seeded(1, 2, 12, 4)))
    shown = page(client, run, "?head=1&row=3&zoom=8&gpu=l4")
    assert "Query 3 and key 0" in re.sub(r"\s+", " ", shown)
    head_0 = next(address for address in re.findall(r'href="\?([^"#]+)', shown) if "head=0" in address)
    assert {"row=3", "zoom=8", "gpu=l4"} <= set(head_0.split("&"))


def test_a_head_is_computed_once_for_all_its_pictures(client, submit, finish, seeded, monkeypatch):
    run, count = finish(submit(inputs=seeded(1, 2, 12, 4))), []
    original = closeups._look
    monkeypatch.setattr(closeups, "_look", lambda of: count.append(of.head) or original(of))
    page(client, run)
    for name in ("scores", "weights", "out"):
        client.get(f"/en/lab/runs/{run.id}/maps/{name}.png")
    cell(client, run, "?row=3&col=1")
    assert count == [0]
    page(client, run, "?head=1")
    assert count == [0, 1]


def test_a_picture_needs_a_pixel():
    with pytest.raises(ValueError, match="0 × 3"):
        png.encode(np.zeros((3, 0), np.uint8), [(0, 0, 0)], 0)
