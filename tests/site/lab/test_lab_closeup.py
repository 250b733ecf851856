"""The matrices of a head side by side, and the arithmetic of the cell that all of them show."""

import html
import io
import re
import struct
import zlib

import numpy as np
import pytest
from django.test import Client

from api.runs.sharing import share_key
from lab import png
from lab.runs import closeups
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
    closeups._kept.found.clear()


def page(client, run, query="", status=200):
    response = client.get(f"/en/lab/runs/{run.id}/closeup/{query}")
    assert response.status_code == status
    return html.unescape(response.content.decode())


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
        expected = np.rint(weights / weights.max() * closeups.TOP)
        assert np.abs(pixels.astype(int) - expected).max() <= 1
        bright = palette[: closeups.TOP + 1].sum(axis=1)
        assert (bright[0] > bright[-1]) == (theme == "light")


def test_masked_pixels_are_seen_through(client, submit, finish, seeded):
    run = finish(submit(inputs=seeded(1, 1, 12, 4), attention={"is_causal": True}))
    pixels, _, alpha = decoded(client.get(f"/en/lab/runs/{run.id}/maps/masked_scores.png").content)
    assert np.array_equal(pixels == closeups.MASKED, np.triu(np.ones((12, 12), bool), 1))
    assert [number for number, opacity in enumerate(alpha) if not opacity] == [closeups.MASKED]


def test_every_peak_of_what_does_not_fit_stays_visible(monkeypatch):
    monkeypatch.setattr(closeups, "PIXELS", 7)
    values = np.zeros((50, 23))
    values[31, 17] = 1.0
    one = closeups.picture("error", "seq", *closeups._reduced(values))
    assert one.levels.shape == (7, 6)
    assert (one.levels == closeups.TOP).sum() == 1
    assert one.is_reduced
    assert one.table.max() == 1.0


def test_the_error_of_what_was_returned_is_a_map_of_its_own(client, submit, finish, monkeypatch):
    run = finish(submit())
    results = artifacts.load_results(run)
    wrong = results["out"].copy()
    wrong[2, 1] += 0.25
    original = artifacts.load_result
    monkeypatch.setattr(
        artifacts, "load_result", lambda run, name: wrong if name == "out" else original(run, name)
    )
    errors = matrix(page(client, run, "?row=2"), "error")
    assert float(errors[2][1]) == pytest.approx(0.25, abs=1e-4)
    assert "error of the output the largest of this query 0.2500" in cell(client, run, "?row=2")


def test_a_run_of_somebody_else_shows_neither_cells_nor_pictures(client, submit, finish):
    run = finish(submit(owner="alice"))
    for address in (f"/en/lab/runs/{run.id}/cell/", f"/en/lab/runs/{run.id}/maps/weights.png"):
        assert client.get(address).status_code == 404
        assert client.get(f"{address}?key={share_key(run)}").status_code == 200
    shown = page(client, run, f"?key={share_key(run)}")
    assert f"key={share_key(run)}" in re.search(r'data-cell-address="([^"]+)"', shown)[1]


def test_what_is_too_large_for_a_page_is_not_looked_at(client, submit, finish, monkeypatch):
    run = finish(submit())
    monkeypatch.setattr(closeups, "MOST", 3 * 3 * 4 - 1)
    assert client.get(f"/en/lab/runs/{run.id}/closeup/").status_code == 404
    assert "/closeup/" not in client.get(f"/en/lab/runs/{run.id}/").content.decode()


def test_inputs_that_are_gone_are_not_found(client, submit, finish, monkeypatch):
    monkeypatch.setattr(artifacts, "INLINE_BYTES", 0)
    run = finish(submit())
    artifacts.delete(run.id)
    for part in ("closeup/", "cell/", "maps/weights.png"):
        assert client.get(f"/en/lab/runs/{run.id}/{part}").status_code == 404, part


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
    assert "Try again in 7 s" in page(client, run, status=503)


def test_the_page_of_a_run_leads_to_the_same_head(client, submit, finish, seeded):
    run = finish(submit(inputs=seeded(1, 2, 12, 4)))
    shown = html.unescape(client.get(f"/en/lab/runs/{run.id}/?head=1&row=3").content.decode())
    link = re.search(r'href="([^"]+/closeup/[^"]*)"', shown)[1]
    look = html.unescape(client.get(link).content.decode())
    assert "Query 3 and key 0" in look
    assert 'name="head" value="1"' in look
    head_0 = next(address for address in re.findall(r'href="(\?[^"#]+)', look) if "head=0" in address)
    assert "row=3" in head_0


def test_a_head_is_computed_once_for_all_its_pictures(client, submit, finish, seeded, monkeypatch):
    run, count = finish(submit(inputs=seeded(1, 2, 12, 4))), []
    original = closeups._look
    monkeypatch.setattr(closeups, "_look", lambda *rest: count.append(rest[-1]) or original(*rest))
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
