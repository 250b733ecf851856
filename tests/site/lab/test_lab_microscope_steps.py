"""The online softmax of a real trace, tile by tile, against one written out in numpy here."""

import html
import re

import numpy as np
import pytest
from django.test import Client

from api.runs.sharing import share_key
from kernels.execute import execute
from kernels.spec.results import TRACE
from lab.microscope import steps, tracing, views
from tests.site.lab.conftest import close
from workers import artifacts, limits, quotas, runs
from workers.models import Run

pytestmark = pytest.mark.django_db
SMALL = {"block_m": 16, "block_n": 16}


@pytest.fixture
def client():
    return Client(REMOTE_ADDR="203.0.113.7")


@pytest.fixture
def compute():
    """Carry out a queued run as a worker does: by the engine itself."""

    def compute(run):
        claimed = runs.claim(run.id)
        done = execute(*runs.load(claimed))
        assert runs.finish(
            claimed, inputs=done.inputs, results=done.arrays, input_info=done.input_info,
            result={"numerics": done.numerics}, environment=done.environment,
        )  # fmt: skip
        return runs.get(run.id)

    return compute


@pytest.fixture
def traced(submit, compute):
    """A traced run of q, k and v with so many heads, queries, keys and dimensions, in tiles of 16."""

    def traced(heads=1, queries=40, keys=56, dim=4, *, inputs=None, owner="", **body):
        shape = {"q": [1, heads, queries, dim], "k": [1, heads, keys, dim], "v": [1, heads, keys, dim]}
        seeded = {name: {"seed": 5, "shape": s, "distribution": "peaked"} for name, s in shape.items()}
        body = {"options": SMALL, "timing": {"warmup": 0, "iters": 1}} | body
        return compute(
            submit(inputs={**seeded, **(inputs or {})}, returns=("out", "lse", *TRACE), owner=owner, **body)
        )

    return traced


def page(client, run, query="", status=200):
    response = client.get(f"/en/lab/runs/{run.id}/steps/{query}")
    assert response.status_code == status
    return html.unescape(response.content.decode())


def text(markup):
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", markup))


def cells(shown, caption):
    """{head of the row: its cells} of the table with this caption."""
    table = re.search(rf"<caption[^>]*>{re.escape(caption)}</caption>.*?</table>", shown, re.DOTALL)[0]
    found = {}
    for row in re.findall(r"<tr[^>]*>(.*?)</tr>", table, re.DOTALL):
        head, *rest = [
            text(cell).strip() for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL)
        ]
        found[head] = rest
    return found


STATE = "The running values before and after this tile, beside the exact softmax over the keys so far"
TILES = "What the kernel holds after each tile"


def online(run, row, head=0, *, causal=True, block=16):
    """(m, factor, ℓ, O) after each tile, by the recurrence and nothing of ours."""
    q, k, v = (artifacts.load_inputs(run)[name].astype(np.float64)[0, head] for name in "qkv")
    logits = k @ q[row] / np.sqrt(q.shape[1])
    if causal:
        logits[row + len(k) - len(q) + 1 :] = -np.inf
    m, total, out, found = -np.inf, 0.0, np.zeros(v.shape[1]), []
    for begin in range(0, len(k), block):
        s = logits[begin : begin + block]
        new = max(m, s.max())
        factor = np.exp(m - new) if np.isfinite(s.max()) else 1.0
        p = np.exp(s - new)
        m, total, out = new, total * factor + p.sum(), out * factor + p @ v[begin : begin + block]
        found.append((m, factor, total, out))
    return found


def test_every_tile_shows_what_the_recurrence_says(client, traced):
    run = traced(attention={"is_causal": True})
    row = 20  # sees keys 0 … 36: three tiles, the third in part, the fourth skipped
    expected = online(run, row)
    for tile, (m, factor, total, out) in enumerate(expected):
        shown = page(client, run, f"?row={row}&tile={tile}")
        state = cells(shown, STATE)
        for name, value in (("m", m), ("ℓ", total), ("m + ln ℓ", m + np.log(total))):
            assert close(state[name][1], value), (tile, name)
            assert close(state[name][2], value), (tile, name)
            assert float(state[name][3].replace("−", "-")) < 1e-5
        assert np.allclose(numbers(state["O ∕ ℓ"][1]), out / total, atol=1e-4)
        assert close(cells(shown, TILES)[str(tile)][3], factor)
    assert [cells(shown, TILES)[str(tile)][1] for tile in range(4)] == ["full", "full", "masked", "skipped"]


def numbers(written):
    return [float(part) for part in written.strip("[]").replace("−", "-").split(", ")]


def test_a_larger_score_says_by_what_all_before_shrinks(client, traced):
    run = traced(attention={"is_causal": False})
    rises = []
    for row in range(0, 40, 3):
        states = online(run, row, causal=False)
        rises += [(row, tile) for tile in range(1, 4) if states[tile][0] > states[tile - 1][0]]
    row, tile = rises[0]
    states = online(run, row, causal=False)
    said = text(page(client, run, f"?row={row}&tile={tile}"))
    found = re.search(
        r"m rises from (\S+) to (\S+), and everything so far is multiplied by "
        r"exp\(m_old − m_new\) = ([\d.e−]+)\. ",
        said,
    )
    assert found, said
    for written, value in zip(
        found.groups(), (states[tile - 1][0], states[tile][0], states[tile][1]), strict=True
    ):
        assert close(written, value)
    staying = next(
        (row, tile) for row in range(40) for states in [online(run, row, causal=False)]
        for tile in range(1, 4) if states[tile][0] == states[tile - 1][0]
    )  # fmt: skip
    assert "m stays, the factor is 1" in text(page(client, run, "?row={}&tile={}".format(*staying)))


def test_the_arithmetic_is_substituted_line_by_line(client, traced):
    run = traced(attention={"is_causal": False})
    (m0, _, l0, _), (m1, factor, l1, o1), *_ = online(run, 7, causal=False)
    lines = cells(page(client, run, "?row=7&tile=1"), "The arithmetic of this tile")
    steps, value = lines["ℓ"]
    old, times, added = (float(x.replace("−", "-")) for x in re.split(r" × | \+ ", steps))
    assert np.allclose([old, times, added, float(value)], [l0, factor, l1 - l0 * factor, l1], atol=1e-4)
    steps, value = lines["m"]
    assert close(value, m1)
    assert close(re.search(r"max\((\S+),", steps)[1], m0)
    assert np.allclose(numbers(lines["O"][1]), o1, atol=1e-4)
    assert np.allclose(numbers(lines["O ∕ ℓ"][1]), o1 / l1, atol=1e-4)


def test_a_skipped_tile_and_a_masked_one_say_why(client, traced):
    run = traced(attention={"is_causal": True})
    assert "Tile 3 is skipped" in text(page(client, run, "?row=0&tile=3"))
    # Query 0 sees keys 0 … 16; its tile of queries sees up to 31, so tile 1 is taken: all but one key masked.
    shown = page(client, run, "?row=0&tile=1")
    assert shown.count('class="cell-masked">−∞') == 15
    windowed = traced(queries=56, attention={"window": [3, 0]})
    # Query 31 sees keys 28 … 31; query 16, of the same tile, sees keys 13 … 16.
    assert "may see no key of tile 0; others of its tile do" in text(page(client, windowed, "?row=31&tile=0"))


def test_the_end_is_the_lse_that_the_run_returned(client, traced):
    run = traced(attention={"is_causal": True})
    lse = float(artifacts.load_results(run)["lse"][0, 0, 20])
    said = text(page(client, run, "?row=20&tile=3"))
    written = re.search(r"LSE = m \+ ln ℓ = \S+ \+ ln \S+ = (\S+) ; the run returned (\S+) ✓ equal", said)
    assert written, said
    assert close(written[1], lse)
    assert close(written[2], lse)


def test_a_wrong_lse_is_called_wrong(client, traced, monkeypatch):
    run = traced()
    original = artifacts.load_part
    monkeypatch.setattr(
        artifacts, "load_part",
        lambda run, name, *at: original(run, name, *at) + (0.5 if name == "lse" else 0),
    )  # fmt: skip
    assert "not equal" in text(page(client, run))


def test_a_sink_is_there_before_any_key(client, traced):
    run = traced(attention={"sinks": [1.5], "is_causal": True})
    state = cells(page(client, run, "?row=3&tile=0"), STATE)
    assert close(state["m"][0], 1.5)
    assert close(state["ℓ"][0], 1.0)


def test_each_step_has_an_address_and_leads_to_its_neighbours(client, traced):
    run = traced(heads=2)
    shown = page(client, run, "?head=1&row=5&tile=1")
    assert re.search(r'rel="prev" href="\?batch=0&head=1&row=5&tile=0#step"', shown)
    assert re.search(r'rel="next" href="\?batch=0&head=1&row=5&tile=2#step"', shown)
    assert 'href="?batch=0&head=0&row=5&tile=1#steps"' in shown
    assert 'rel="prev"' not in page(client, run, "?row=5&tile=0")
    assert 'rel="next"' not in page(client, run, "?row=5&tile=3")


@pytest.mark.parametrize(
    "query", ["?row=99&tile=99", "?row=-1&tile=x", "?tile=²", "?head=7&batch=9", "?row=" + "9" * 40]
)
def test_a_place_that_is_not_there_is_one_that_is(client, traced, query):
    assert re.search(r"Query \d+ after tile [03]", text(page(client, traced(), query)))


def test_plots_mark_the_current_tile_and_a_table_has_the_numbers(client, traced):
    run = traced()
    shown = page(client, run, "?row=5&tile=2")
    assert shown.count('<svg class="lineplot"') == 2
    assert shown.count("<title>tile 2: 2, ") == 2
    expected = online(run, 5, causal=False)
    for tile, (m, _, total, _) in enumerate(expected):
        row = cells(shown, TILES)[str(tile)]
        assert close(row[2], m)
        assert close(row[4], total)


def test_inputs_of_every_rank_are_found(client, submit, compute):
    q = np.random.default_rng(3).normal(size=(40, 4)).round(2)
    body = {"options": SMALL, "timing": {"warmup": 0, "iters": 1}}
    flat = compute(submit(inputs=dict.fromkeys("qkv", q.tolist()), returns=("out", "lse", *TRACE), **body))
    packed = compute(
        submit(
            inputs=dict.fromkeys("qkv", np.concatenate([q, q], 1)[None].tolist()),
            returns=("out", "lse", *TRACE),
            attention={"num_heads": 2},
            **body,
        )
    )
    expected = cells(page(client, flat, "?row=9&tile=1"), STATE)
    assert cells(page(client, packed, "?row=9&tile=1&head=1"), STATE) == expected


def test_padding_is_no_query(client, traced):
    run = traced(inputs={"q_lens": [30], "kv_lens": [20]})
    assert "padding" in text(page(client, run, "?row=35"))
    said = text(page(client, run, "?row=29&tile=2"))
    assert "keys none" in said


# --- A run without a trace ------------------------------------------------------------------------


def test_a_run_without_a_trace_offers_one_and_the_new_run_is_the_same_attention(
    client, submit, finish, compute, seeded
):
    run = finish(submit(inputs=seeded(1, 2, 40, 4), attention={"is_causal": True}))
    shown = page(client, run, "?head=1&row=9")
    assert "Trace this run" in shown
    action = re.search(r'action="([^"]+/trace/[^"]*)"', shown)[1]
    response = client.post(action)
    assert response.status_code == 302
    assert response["Location"].endswith("/steps/?head=1&row=9")
    new = Run.objects.exclude(pk=run.id).get()
    assert new.engine == "flash"
    assert new.spec["attention"] == run.spec["attention"]
    assert new.spec["inputs"] == run.spec["inputs"]
    assert {*TRACE, "lse", "out"} == set(new.spec["return"])
    waiting = page(client, new)
    assert "It is next" in waiting
    assert '<meta http-equiv="refresh" content="2">' in waiting
    done = compute(new)
    assert "Query 9 after tile 0" in text(page(client, done, "?head=1&row=9"))
    assert np.allclose(artifacts.load_results(done)["out"], artifacts.load_results(run)["out"], atol=1e-5)


def test_typed_numbers_are_traced_too(client, submit, finish, compute):
    run = finish(submit(engine="reference", dtype="float64"))
    shown = page(client, run)
    assert "engine flash in the place of reference" in shown
    assert "float32 in the place of float64" in shown
    client.post(f"/en/lab/runs/{run.id}/trace/")
    done = compute(Run.objects.exclude(pk=run.id).get())
    state = cells(page(client, done, "?row=2"), STATE)
    assert close(state["m"][1], 2 / np.sqrt(2))
    assert state["O ∕ ℓ"][1] == "[1.2552, 1.5035]"


def test_what_cannot_be_traced_says_why_and_what_to_do(client, submit, finish, monkeypatch, seeded):
    linear = submit(engine="linear", returns=("out",))
    assert "no online softmax to watch" in page(client, finish_any(linear))
    run = finish(submit(inputs=seeded(1, 2, 40, 4)))

    def refuse(spec, budget):
        from kernels.spec import FieldProblem

        raise limits.Refused([FieldProblem("/inputs/q", "too-slow", "Lengths up to 7 fit.")])

    monkeypatch.setattr(limits, "admit", refuse)
    shown = page(client, run)
    assert "Lengths up to 7 fit." in shown
    assert "Trace this run" not in shown
    refused = client.post(f"/en/lab/runs/{run.id}/trace/")
    assert refused.status_code == 422
    assert Run.objects.count() == 2


def finish_any(run):
    claimed = runs.claim(run.id)
    out = np.zeros((3, 2), np.float32)
    assert runs.finish(claimed, inputs={}, results={"out": out}, input_info={}, result={}, environment={})
    return runs.get(run.id)


def test_long_runs_get_tiles_so_large_that_they_are_not_too_many(submit, seeded):
    from api.callers import Caller
    from kernels.spec import RunSpec

    caller = Caller("", "somebody")
    for length, least in ((64, 16), (600, 16), (1025, 32), (4096, 64)):
        run = submit(inputs=seeded(1, 1, length, 8), returns=("out",))
        spec = RunSpec.from_dict(run.spec)
        offer = tracing.offer(run, spec, caller)
        assert offer.spec is not None
        assert offer.spec.options.block_n >= least
        assert -(-length // steps.tile_size(offer.spec)) <= tracing.MOST_TILES


def test_too_many_requests_say_when_to_come_again(client, submit, finish, monkeypatch):
    run = finish(submit())

    def used_up(*_):
        raise quotas.QuotaExceeded(quotas.computing(anonymous=True), 7)

    monkeypatch.setattr(tracing, "submit", used_up)
    response = client.post(f"/en/lab/runs/{run.id}/trace/")
    assert response.status_code == 429
    assert response["Retry-After"] == "7"
    assert 'role="alert"' in response.content.decode()


def test_a_run_of_somebody_else_opens_with_its_key_alone(client, traced):
    run = traced(owner="alice")
    assert client.get(f"/en/lab/runs/{run.id}/steps/").status_code == 404
    assert client.post(f"/en/lab/runs/{run.id}/trace/").status_code == 404
    key = share_key(run)
    shown = page(client, run, f"?key={key}&tile=1")
    assert f'href="?key={key}&batch=0&head=0&row=39&tile=2#step"' in shown


def test_the_page_of_a_run_leads_here(client, submit, finish):
    run = finish(submit())
    shown = client.get(f"/en/lab/runs/{run.id}/?row=1").content.decode()
    assert f'href="/en/lab/runs/{run.id}/steps/?row=1"' in shown


def test_what_is_empty_or_gone_is_no_error(client, submit, compute, traced, monkeypatch):
    empty = {
        name: {"seed": 1, "shape": shape} for name, shape in (("q", [0, 4]), ("k", [3, 4]), ("v", [3, 4]))
    }
    run = compute(submit(inputs=empty, returns=("out", "lse", *TRACE)))
    assert "nothing to step through" in page(client, run)
    monkeypatch.setattr(artifacts, "INLINE_BYTES", 0)
    gone = traced()
    artifacts.delete(gone.id)
    assert "are gone" in page(client, gone)


def test_a_mask_of_many_pairs_is_charged(client, traced, monkeypatch):
    entered = []
    monkeypatch.setattr(quotas, "enter", lambda *given: entered.append(given) or False)
    plain, patterned = traced(), traced(attention={"pattern": {"type": "chunked", "size": 8}})
    monkeypatch.setattr(views, "FREE", 40 * 40)
    page(client, plain)
    assert not entered
    page(client, patterned)
    assert len(entered) == 1
