"""Runs beside each other: what differs, whether inputs are the same, what each measured, one cell in both."""

import html
import re
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest
from django.test import Client

from api.runs.sharing import share_key
from kernels.differences import NEITHER
from lab.compare import looks
from lab.runs import closeups, maps
from tests.site.lab.test_lab_runs_look import decoded
from workers import artifacts, events, quotas, runs
from workers.models import Status

pytestmark = pytest.mark.django_db

CAUSAL = {"is_causal": True}


@pytest.fixture
def client():
    return Client(REMOTE_ADDR="203.0.113.7")


@pytest.fixture(autouse=True)
def _forgotten():
    closeups.latest.found.clear()
    looks._kept.found.clear()


def address(*chosen, query="", part=""):
    return f"/en/lab/compare/{part}?runs={','.join(run.id for run in chosen)}{query}"


def page(client, *chosen, query="", part="", status=200):
    response = client.get(address(*chosen, query=query, part=part))
    assert response.status_code == status
    return html.unescape(response.content.decode())


def text(markup):
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", markup))


def row(shown, name):
    """The cells of the row of a table that begins so."""
    found = re.search(rf"<tr><th[^>]*>{re.escape(name)}.*?</tr>", shown, re.DOTALL)[0]
    return [text(cell).strip() for cell in re.findall(r"<td[^>]*>(.*?)</td>", found, re.DOTALL)]


def matrix(shown, name):
    figure = re.search(rf'data-map="{re.escape(name)}".*?</figure>', shown, re.DOTALL)[0]
    rows = re.findall(r'<tr><th scope="row">\d+</th>(.*?)</tr>', figure)
    return [re.findall(r">([^<>]+)</(?:a|td)>", each) for each in rows]


# --- Side by side ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("seed", "heading"), [(7, "Causal mask: on"), (8, "Runs beside each other")])
def test_runs_that_have_not_begun_differ_in_one_thing_only_if_their_seeds_agree(
    client, submit, seed, heading
):
    def inputs(seed):
        return {
            name: {"seed": seed, "shape": [1, 1, 4, 8], "distribution": "normal"} for name in ("q", "k", "v")
        }

    first, second = submit(inputs=inputs(7)), submit(inputs=inputs(seed), attention=CAUSAL)
    shown = page(client, first, second)
    assert text(re.search(r"<h1.*?</h1>", shown, re.DOTALL)[0]).strip() == heading


def test_what_differs_is_named_and_what_is_the_same_is_not(client, submit, finish, seeded):
    inputs = seeded(1, 2, 6, 4)
    one = finish(submit(inputs=inputs, attention=CAUSAL))
    other = finish(submit(inputs=inputs, attention={"is_causal": True, "softcap": 3.0}, dtype="float16"))
    shown = page(client, one, other)
    assert row(shown, "softcap") == ["0.0", "3.0"]
    assert row(shown, "number format") == ["float32", "float16"]
    table = re.search(r'id="fields-title".*?</table>', shown, re.DOTALL)[0]
    assert "is_causal" not in table
    assert "engine" not in table


def test_the_same_asked_for_twice_differs_in_nothing(client, submit, finish):
    one, other = finish(submit()), finish(submit())
    shown = text(page(client, one, other))
    assert "Nothing: they were asked for the same." in shown
    assert "The inputs are the same." in shown
    assert "In float64, all 9 weights are the same." in shown
    assert "No difference at all." in shown


def test_other_inputs_are_said_to_be_others(client, submit, finish, seeded):
    one, other = finish(submit(inputs=seeded(1, 1, 5, 4))), finish(submit(inputs=seeded(1, 1, 5, 4, seed=8)))
    shown = page(client, one, other)
    assert "The inputs are not the same:" in text(shown)
    assert row(shown, "<code>q</code>")[1] == "other numbers"
    digest = one.input_info["q"]["sha256"][:12]
    assert digest in row(shown, "<code>q</code>")[2]
    assert text(shown).count("weights of 25 changed") == 1


def test_other_shapes_have_no_cells_in_common(client, submit, finish, seeded):
    one, other = finish(submit(inputs=seeded(1, 1, 5, 4))), finish(submit(inputs=seeded(1, 1, 7, 4)))
    shown = text(page(client, one, other))
    assert "The runs have 5 and 7 queries: their matrices have no cells in common" in shown
    assert "another shape: 1 × 1 × 7 × 4" in shown
    assert "largest error against float64" in shown


def test_heads_that_one_run_lacks(client, submit, finish, seeded):
    one, other = finish(submit(inputs=seeded(1, 4, 5, 4))), finish(submit(inputs=seeded(1, 2, 5, 4)))
    assert "The second run has no head 3 in batch row 0" in text(page(client, one, other, query="&head=3"))
    shown = text(page(client, one, other, query="&head=3"))
    assert "What both engines returned" not in shown, "there is no other head 3"
    # Head 1 is drawn alike in both.
    assert "all 25 weights are the same" in text(page(client, one, other, query="&head=1"))


def test_figures_stand_beside_each_other_and_interpreters_have_no_speed(client, submit, finish):
    speed = {
        "timing": {"method": "wall", "representative": True, "samples_ns": [2_000_000] * 3, "warmup": 1,
                   "median_ns": 2_000_000, "p10_ns": 1, "p90_ns": 3}
    }  # fmt: skip
    one, other = finish(submit()), finish(submit(), **speed)
    shown = page(client, one, other)
    assert row(shown, "time, median") == ["interpreter: not a speed", "2.00 ms (cpu)"]
    assert row(shown, "peak memory, measured") == ["3.00 MiB", "3.00 MiB"]
    assert row(shown, "largest error against float64") == ["1.2e−7", "1.2e−7"]
    assert row(shown, "bytes read") == ["2.00 KiB (interpreter)"] * 2


def test_up_to_four_runs_and_which_is_looked_at(client, submit, finish, seeded):
    inputs = seeded(1, 1, 4, 4)
    many = [finish(submit(inputs=inputs, attention={"softcap": float(cap)})) for cap in (1, 2, 3, 4, 5)]
    shown = page(client, *many, query="&with=2")
    assert row(shown, "softcap") == ["1.0", "2.0", "3.0", "4.0"], "four at most"
    assert "Cell by cell: D less A" in text(shown)
    links = [html.unescape(each) for each in re.findall(r'href="(\?[^"]*with=1[^"]*)"', shown)]
    assert parse_qs(urlsplit(links[0]).query)["runs"] == [",".join(run.id for run in many[:4])]


def test_what_the_third_run_alone_sees_has_its_letter(client, submit, finish):
    one, middle, other = (finish(submit(attention={"is_causal": on})) for on in (True, True, False))
    shown = page(client, one, middle, other, query="&with=1")
    assert matrix(shown, "kinds") == [["≠", "C", "C"], ["≠", "≠", "C"], ["=", "=", "="]]
    assert matrix(shown, "masked_scores")[0] == ["0", "C", "C"]
    said = text(shown)
    assert "A alone sees 0 and C alone sees 3" in said
    assert "C seen by C alone" in said
    assert "C alone (orange, C) sees" in said


def test_of_the_third_run_errors_are_said_by_its_letter(client, submit, finish, seeded, monkeypatch):
    dtypes, inputs = ("float32", "float32", "bfloat16"), seeded(1, 1, 5, 4)
    one, middle, other = (finish(submit(inputs=inputs, dtype=dtype)) for dtype in dtypes)
    original = artifacts.load_part
    monkeypatch.setattr(
        artifacts, "load_part", lambda run, *at: original(run, *at) + np.float32(0.5 * (run.id == other.id))
    )
    said = text(page(client, one, middle, other, query="&with=1"))
    assert "C is off most at query" in said
    assert "Where C is off most" in said


def test_a_run_that_failed_is_shown_with_its_reason(client, submit, finish):
    failed = runs.claim(submit().id)
    assert runs.fail(failed, Status.FAILED, runs.problem("Out of luck", "It stopped.", fault="user"))
    shown = page(client, finish(submit()), runs.get(failed.id))
    assert "Out of luck: It stopped." in text(shown)
    assert 'id="matrices"' not in shown


# --- Cell by cell ---------------------------------------------------------------------------------


def test_small_matrices_are_differences_with_their_signs(client, submit, finish):
    one, other = finish(submit()), finish(submit(attention=CAUSAL))
    shown = page(client, one, other)
    assert matrix(shown, "kinds") == [["≠", "A", "A"], ["≠", "≠", "A"], ["=", "=", "="]]
    assert matrix(shown, "masked_scores") == [["0", "A", "A"], ["0", "0", "A"], ["0", "0", "0"]]
    # 1 − 0.4011, and e^0 / (e^0 + e^0.7071) − 0.1978, by hand
    assert matrix(shown, "weights") == [
        ["+0.599", "−0.198", "−0.401"], ["+0.132", "+0.269", "−0.401"], ["0", "0", "0"],
    ]  # fmt: skip
    said = text(shown)
    assert "Of 9 pairs of a query and a key, A alone sees 3 and B alone sees 0." in said
    assert "6 weights of 9 changed (66.67 %), in 2 of 3 queries; by 0.599 at most." in said
    assert row(shown, "weights")[0] == "6 of 9"


def test_the_largest_are_links_to_their_arithmetic(client, submit, finish):
    shown = page(client, finish(submit()), finish(submit(attention=CAUSAL)))
    link = re.search(
        r'<a href="([^"]+)">query 0, key 0</a></th><td class="num">([^<]+)</td><td class="num">([^<]+)', shown
    )
    assert (link[2], link[3]) == ("0.4011", "1.0000")
    assert "row=0&col=0" in link[1]
    assert client.get(link[1].partition("#")[0]).status_code == 200


def test_one_cell_in_both(client, submit, finish):
    one, other = finish(submit()), finish(submit(attention=CAUSAL))
    shown = text(page(client, one, other, part="cell/", query="&row=1&col=2"))
    assert "Query 1 and key 2" in shown
    assert "the query may see this key; nothing is added = 0.7071" in shown
    assert "causal: the key’s position 2 is after the query’s 1 = −∞" in shown
    assert "weight ≠ differs 1.0000 ∕ 2.4931 = 0.4011 0 ∕" in shown
    assert "score 0.707107 × 1.0000 = 0.7071 0.707107 × 1.0000 = 0.7071" in shown, "no mark: it is the same"


def test_the_cell_that_changed_most_is_lit_at_first_and_another_by_its_address(client, submit, finish):
    one, other = finish(submit()), finish(submit(attention=CAUSAL))
    assert "Query 0 and key 0" in text(page(client, one, other))
    assert "Query 2 and key 1" in text(page(client, one, other, query="&row=2&col=1"))
    assert "Query 2 and key 2" in text(page(client, one, other, query="&row=99&col=99"))


def test_large_maps_are_pictures(client, submit, finish, seeded):
    inputs = seeded(1, 2, 12, 4)
    one, other = finish(submit(inputs=inputs)), finish(submit(inputs=inputs, attention=CAUSAL))
    shown = page(client, one, other, query="&head=1")
    pictures = re.findall(r'<img class="only-light" src="([^"]+)"', shown)
    names = [re.search(r"maps/([\w.]+).png", picture)[1] for picture in pictures]
    matrices = ["kinds", "scores", "masked_scores", "weights", "out"]
    assert names == [*matrices, "returned.out", "returned.weights"]  # LSE is no matrix
    weights = [artifacts.load_results(run)["weights"][0, 1].astype(float) for run in (one, other)]
    apart = weights[1] - weights[0]
    for theme in ("light", "dark"):
        response = client.get(address(one, other, part="maps/weights.png", query=f"&head=1&theme={theme}"))
        assert response["Content-Type"] == "image/png"
        assert "immutable" in response["Cache-Control"]
        pixels, palette, _alpha = decoded(response.content)
        drawn = (apart / abs(apart).max() + 1) * maps.TOP / 2
        assert np.abs(pixels - drawn).max() <= 1
        middle = palette[maps.TOP // 2].astype(int)
        assert (middle.sum() > 3 * 128) == (theme == "light"), "nothing is the colour of the page"
    pixels, _, alpha = decoded(client.get(address(one, other, part="maps/kinds.png")).content)
    assert set(np.unique(pixels)) <= {0, 1, 2, 3, 4}
    assert np.array_equal(pixels == 3, np.triu(np.ones((12, 12), bool), 1))
    assert [number for number, opacity in enumerate(alpha) if not opacity] == [NEITHER]


def test_what_both_returned_is_held_against_both_bounds(client, submit, finish, monkeypatch):
    one, other = finish(submit()), finish(submit())
    original = artifacts.load_part

    def changed(run, name, *index):
        found = original(run, name, *index)
        is_wrong = run.id == other.id and name == "out"
        return found + np.array([[0.5, 0, 0]], np.float32).T if is_wrong else found

    monkeypatch.setattr(artifacts, "load_part", changed)
    shown = page(client, one, other)
    assert row(shown, "Output") == ["0.500", "5.00e−6", "2 of 6"]


def test_a_head_is_compared_once_for_all_its_pictures(client, submit, finish, seeded, monkeypatch):
    inputs, count = seeded(1, 2, 12, 4), []
    one, other = finish(submit(inputs=inputs)), finish(submit(inputs=inputs, attention=CAUSAL))
    original = looks._look
    monkeypatch.setattr(looks, "_look", lambda *rest: count.append(rest[-1]) or original(*rest))
    page(client, one, other)
    for name in ("scores", "weights", "kinds"):
        client.get(address(one, other, part=f"maps/{name}.png"))
    page(client, one, other, part="cell/", query="&row=3&col=1")
    assert count == [0]


def test_what_costs_much_is_charged_and_refused_when_used_up(client, submit, finish, monkeypatch):
    one, other = finish(submit()), finish(submit(attention=CAUSAL))
    monkeypatch.setattr(looks, "FREE", 0)

    def used_up(quota, scope, *rest):
        raise quotas.QuotaExceeded(quota, 7)

    monkeypatch.setattr(quotas, "enter", used_up)
    response = client.get(address(one, other))
    assert (response.status_code, response["Retry-After"]) == (503, "7")
    shown = text(html.unescape(response.content.decode()))
    assert "Try again in 7 s" in shown
    assert "What differs" in shown, "the rest of the page is there"
    assert client.get(address(one, other, part="maps/weights.png")).status_code == 503


def test_what_is_too_large_is_not_computed_again(client, submit, finish, monkeypatch):
    monkeypatch.setattr(looks, "MOST", 1)
    shown = page(client, finish(submit()), finish(submit(attention=CAUSAL)))
    assert "too large to be computed again" in text(shown)
    assert 'data-map="returned.out"' in shown


def test_inputs_that_are_gone_leave_what_was_measured(client, submit, finish, monkeypatch):
    monkeypatch.setattr(artifacts, "INLINE_BYTES", 0)
    one, other = finish(submit()), finish(submit(attention=CAUSAL))
    artifacts.delete(one.id)
    shown = text(page(client, one, other))
    assert "The stored inputs of one of the runs are gone" in shown
    assert "largest error against float64" in shown


def test_runs_without_queries(client, submit, finish):
    inputs = {name: {"seed": 1, "shape": [0 if name == "q" else 3, 4]} for name in "qkv"}
    one, other = finish(submit(inputs=inputs)), finish(submit(inputs=inputs, attention={"softcap": 2.0}))
    assert "all 0 weights are the same" in text(page(client, one, other))
    assert client.get(address(one, other, part="cell/")).status_code == 404
    assert client.get(address(one, other, part="maps/weights.png")).status_code == 404


# --- While they are not done, and who may look ----------------------------------------------------


def test_it_waits_for_both_with_and_without_javascript(client, submit, finish, monkeypatch):
    one, other = finish(submit()), submit(attention=CAUSAL)
    shown = page(client, one, other)
    assert '<noscript><meta http-equiv="refresh" content="2"></noscript>' in shown
    assert "seen=succeeded%2Cqueued" in shown
    assert "1 of 2 runs are done." in shown
    assert 'id="matrices"' not in shown
    monkeypatch.setattr(events, "wait", lambda run, *_args, **_options: finish(run) and run.refresh_from_db())
    live = page(client, one, other, part="live/", query="&seen=succeeded,queued")
    assert 'id="matrices"' in live
    assert "All runs are done" in live
    assert "hx-trigger" not in re.search(r'<div id="compare"[^>]*>', live)[0]
    done = page(client, one, runs.get(other.id))
    assert "http-equiv" not in done


def test_a_shared_run_is_compared_with_its_key_alone(client, submit, finish):
    mine, theirs = finish(submit()), finish(submit(owner="alice", attention=CAUSAL))
    page(client, mine, theirs, status=404)
    page(client, mine, theirs, query=f"&key.{mine.id}={share_key(theirs)}", status=404)
    key = f"&key.{theirs.id}={share_key(theirs)}"
    shown = page(client, mine, theirs, query=key)
    for link in re.findall(r'data-cell-address="([^"]+)"', shown):
        assert client.get(link).status_code == 200
    for part in ("cell/", "live/", "maps/weights.png"):
        assert client.get(address(mine, theirs, part=part)).status_code == 404
        assert client.get(address(mine, theirs, part=part, query=key)).status_code == 200
    assert f"/en/lab/runs/{theirs.id}/?key={share_key(theirs)}" in shown


@pytest.mark.parametrize("ids", ["nothing", "a,b", "%00", "²", ",,,", "x" * 5000])
def test_what_is_not_there_is_not_found(client, ids):
    response = client.get(f"/en/lab/compare/?runs={ids}")
    assert response.status_code == 404
    assert "There is no such run" in response.content.decode()


def test_maps_that_are_not_there(client, submit, finish):
    one, other = finish(submit()), finish(submit())
    assert client.get(address(one, other, part="maps/secrets.png")).status_code == 404
    assert client.get(address(one, part="maps/weights.png")).status_code == 404
    assert client.get(address(one, submit(), part="cell/")).status_code == 404


def test_one_run_alone_leads_to_what_can_be_changed_in_it(client, submit, finish):
    run = finish(submit())
    assert client.get(address(run))["Location"] == f"/en/lab/runs/{run.id}/#change"
    assert 'id="change"' in client.get(f"/en/lab/runs/{run.id}/").content.decode()


def test_addresses_of_pages_are_pasted(client, submit, finish):
    one, other = finish(submit()), finish(submit(owner="alice"))
    assert "Address of the first run" in client.get("/en/lab/compare/").content.decode()
    pasted = {"run": [f"http://testserver/en/lab/runs/{one.id}/?head=2",
                      f" /de/lab/runs/{other.id}/?key={share_key(other)}#downloads ", ""]}  # fmt: skip
    response = client.get("/en/lab/compare/", pasted)
    query = parse_qs(urlsplit(response["Location"]).query)
    assert query == {"runs": [f"{one.id},{other.id}"], f"key.{other.id}": [share_key(other)]}
    assert client.get(response["Location"]).status_code == 200
    bare = client.get("/en/lab/compare/", {"run": [one.id, one.id]})
    assert bare["Location"].endswith(f"runs={one.id}%2C{one.id}")


@pytest.mark.parametrize("nonsense", ["http://[", "//[::1", "[::", "/runs/"])
def test_what_is_no_address_is_no_run(client, nonsense):
    response = client.get("/en/lab/compare/", {"run": nonsense}, follow=True)
    assert response.status_code == 404
    assert "There is no such run" in response.content.decode()
