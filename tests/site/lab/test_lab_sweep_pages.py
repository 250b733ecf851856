"""The page of a sweep: how it gets on, its plots and their tables, and who may see it."""

import html
import json
import math
import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from django.contrib.auth import get_user_model
from django.test import Client

from api.callers import Caller
from api.models import owner_of
from api.sweeps.sharing import share_key
from api.sweeps.submission import submit_sweep_body
from kernels.sweeps.points import MAX_POINTS
from lab.sweeps.form import SweepForm
from workers import events, quotas, runs, sweeps
from workers.models import Run, Status, Sweep

pytestmark = pytest.mark.django_db

TIMED = {"method": "wall", "representative": True, "warmup": 1, "samples_ns": [1, 1, 1]}


@pytest.fixture
def client():
    return Client(REMOTE_ADDR="203.0.113.7")


@pytest.fixture(autouse=True)
def _commit(monkeypatch):
    """Each request here is its own transaction to its client."""
    monkeypatch.setattr("workers.sweeps.transaction.on_commit", lambda function, **_: function())
    monkeypatch.setattr(quotas, "refund", lambda *_: None)


def body(vary=None, **more):
    inputs = {name: {"seed": 1, "shape": [1, 1, 8, 4]} for name in "qkv"}
    return {"engine": "eager", "inputs": inputs, "vary": vary or {"len": [8, 16, 32]}, **more}


@pytest.fixture
def make(db):
    """A sweep, queued."""

    def make(vary=None, owner="", **more):
        return submit_sweep_body(body(vary, **more), caller=Caller(owner, "somebody"))[0]

    return make


@pytest.fixture
def work(finish):
    """Points computed: bytes are 100·n², operations 3·n³, of flash n of each."""

    def work(sweep, only=None, **changes):
        for run in sweeps.points(sweep)[slice(only)]:
            n = sweep.values[run.position].get("len", 8)
            power = 1 if run.engine == "flash" else 2
            finish(
                run,
                memory={"peak_bytes": 100 * n**power, "predicted_bytes": 200 * n**power, "method": "m"},
                cost={"flops": 3 * n**3, "bytes_min": 8 * n, "arithmetic_intensity": 1},
                traffic={"bytes_read": 64 * n, "bytes_written": 64 * n, "method": "interpreter"},
                **changes,
            )
        return sweep

    return work


def fail(run, status=Status.FAILED, detail="No memory was left."):
    assert runs.fail(runs.claim(run.id), status, runs.problem("Out of memory", detail, fault="user"))


def page(client, sweep, query="", status=200):
    response = client.get(f"/en/lab/sweeps/{sweep.id}/{query}")
    assert response.status_code == status
    return html.unescape(response.content.decode())


def text(markup):
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", re.sub(r"</?(span|strong)[^>]*>", "", markup)))


def part(markup, quantity):
    found = re.search(rf'<section class="sweep-plot" id="plot-{quantity}">.*?</section>', markup, re.DOTALL)
    return found and found.group()


def table(markup, quantity):
    """[head, rows] of the table behind a plot."""
    found = re.search(r"<table.*?</table>", part(markup, quantity), re.DOTALL).group()
    return [
        [text(cell).strip() for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL)]
        for row in re.findall(r"<tr>(.*?)</tr>", found, re.DOTALL)
    ]


def marks(markup, quantity):
    """(series, x, y, title) of every mark of a plot."""
    pattern = (
        r'class="mark series-(\d)[^"]*" transform="translate\(([\d.]+) ([\d.]+)\)" d="[^"]*"><title>([^<]*)<'
    )
    return [(int(s), float(x), float(y), t) for s, x, y, t in re.findall(pattern, part(markup, quantity))]


# --- While it goes on -----------------------------------------------------------------------------


def test_the_bar_says_how_many_points_have_ended_what_runs_and_what_comes_next(client, make, work):
    sweep = work(make(), only=1)
    runs.claim(sweeps.points(sweep)[1].id)
    shown = page(client, sweep)
    assert re.search(r'<progress value="1" max="3"', shown)
    said = text(shown)
    assert "1 of 3 points have ended" in said
    assert "Running: length 16." in said
    assert "Next: length 32." in said
    assert "1 succeeded, 1 waiting" in said


def test_a_sweep_behind_another_says_how_many_runs_come_first(client, make, submit):
    first, second = make(), make({"len": [4, 5]})
    submit()
    assert "3 runs of others are ahead of it" in text(page(client, second))
    assert "ahead of it" not in text(page(client, first))


def test_partial_results_are_drawn_and_the_page_renews_itself_with_and_without_javascript(client, make, work):
    sweep = work(make(), only=2)
    shown = page(client, sweep)
    assert len(marks(shown, "memory")) == 2
    assert 'hx-get="/en/lab/sweeps/' in shown
    assert "/live/?seen=2-0" in shown
    assert '<noscript><meta http-equiv="refresh" content="3"></noscript>' in shown
    assert 'id="sweep-announcement" role="status"' in shown
    ended = page(client, work_rest(work, sweep))
    assert 'hx-trigger="load' not in ended
    assert "http-equiv" not in ended


def work_rest(work, sweep):
    for run in sweeps.points(sweep):
        if not run.is_terminal:
            fail(run)
    return sweep


def test_a_page_without_results_says_so(client, make):
    shown = page(client, make())
    assert "nothing to plot until the first point has succeeded" in shown
    assert "queued" in text(shown)


def test_the_live_part_answers_at_once_when_there_is_news(client, make, work, monkeypatch):
    sweep = work(make(), only=1)
    monkeypatch.setattr(events, "wait", lambda *_args, **_options: pytest.fail("it waited"))
    shown = client.get(f"/en/lab/sweeps/{sweep.id}/live/?seen=0-1&x=len").content.decode()
    assert "<html" not in shown
    assert 'id="sweep-figures" hx-swap-oob="true"' in shown
    assert "1 of 3 points have ended." in re.search(r'<p id="sweep-announcement".*?</p>', shown).group()
    assert "seen=1-0" in shown
    assert "x=len" in shown


def test_the_live_part_waits_for_the_point_that_is_under_way(client, make, work, monkeypatch):
    sweep = make()
    waited = []

    def wait(run, *_args, **_options):
        waited.append(run.position)
        work(sweep, only=1)
        run.refresh_from_db()

    monkeypatch.setattr(events, "wait", wait)
    shown = client.get(f"/en/lab/sweeps/{sweep.id}/live/?seen=0-0").content.decode()
    assert waited == [0]
    assert "seen=1-0" in shown


def test_the_live_part_is_silent_without_news(client, make, monkeypatch):
    sweep = make()
    monkeypatch.setattr(events, "wait", lambda *_args, **_options: None)
    shown = client.get(f"/en/lab/sweeps/{sweep.id}/live/?seen=0-0").content.decode()
    assert "sweep-announcement" not in shown
    assert "sweep-figures" not in shown
    assert "1 of 3" not in shown


def test_canceling_ends_what_has_not_ended_and_keeps_the_rest(client, make, work):
    sweep = work(make(), only=1)
    shown = page(client, sweep)
    address = re.search(r'action="([^"]+/cancel/)"', shown)[1]
    assert client.get(address).status_code == 405
    response = client.post(address)
    assert response["Location"] == f"/en/lab/sweeps/{sweep.id}/"
    shown = page(client, sweep)
    assert "1 succeeded, 2 canceled" in text(shown)
    assert 'data-status="canceled"' in shown
    assert len(marks(shown, "memory")) == 1
    assert "/cancel/" not in shown
    assert client.post(address).status_code == 302


def test_canceling_needs_the_csrf_token(make):
    sweep = make()
    assert Client(enforce_csrf_checks=True).post(f"/en/lab/sweeps/{sweep.id}/cancel/").status_code == 403


# --- Plots ----------------------------------------------------------------------------------------


def test_each_quantity_has_a_plot_and_the_table_behind_it(client, make, work):
    shown = page(client, work(make({"len": [8, 16, 32], "engine": ["eager", "flash"]})))
    assert re.findall(r'id="plot-(\w+)"', shown) == ["memory", "traffic", "flops", "error"]
    assert table(shown, "memory") == [
        ["length", "eager", "eager, predicted", "flash", "flash, predicted"],
        ["8", "6.25 KiB", "12.5 KiB", "800 bytes", "1.56 KiB"],
        ["16", "25.0 KiB", "50.0 KiB", "1.56 KiB", "3.12 KiB"],
        ["32", "100 KiB", "200 KiB", "3.12 KiB", "6.25 KiB"],
    ]
    assert table(shown, "flops")[-1] == ["32", "98.3 thousand FLOP", "98.3 thousand FLOP"]


def test_a_quadratic_is_a_line_twice_as_steep_as_a_linear_one(client, make, work):
    shown = page(client, work(make({"len": [8, 16, 32], "engine": ["eager", "flash"]})))
    lines = {number: [(x, y) for s, x, y, _t in marks(shown, "memory") if s == number] for number in (1, 2)}
    slopes = {n: (at[0][1] - at[-1][1]) / (at[-1][0] - at[0][0]) for n, at in lines.items()}
    assert slopes[1] == pytest.approx(2 * slopes[2], rel=0.01)
    assert len({x for x, _y in lines[1]}) == 3
    assert lines[1][1][0] - lines[1][0][0] == pytest.approx(lines[1][2][0] - lines[1][1][0], abs=0.2)


def test_growth_is_said_with_how_sure_it_is(client, make, work):
    shown = text(part(page(client, work(make({"len": [8, 16, 32], "engine": ["eager", "flash"]}))), "memory"))
    assert "eager grows as the power 2.00 ± less than 0.01 of length (3 points)" in shown
    assert "flash grows as the power 1.00 ± less than 0.01 of length (3 points)" in shown


def test_how_sure_agrees_with_numpy(client, make, finish):
    sweep, sizes = make({"len": [8, 16, 32, 64]}), [900, 5000, 9000, 60_000]
    for run, size in zip(sweeps.points(sweep), sizes, strict=True):
        finish(run, memory={"peak_bytes": size, "predicted_bytes": size, "method": "m"})
    (slope, _), covariance = np.polyfit(np.log([8, 16, 32, 64]), np.log(sizes), 1, cov=True)
    said = re.search(r"power ([\d.]+) ± ([\d.]+) of", text(part(page(client, sweep), "memory")))
    assert float(said[1]) == pytest.approx(slope, abs=0.005)
    assert float(said[2]) == pytest.approx(math.sqrt(covariance[0, 0]), abs=0.005)


def test_two_points_make_no_law(client, make, work):
    shown = text(part(page(client, work(make(), only=2)), "memory"))
    assert "two points lie on a power law whatever they are" in shown
    assert "±" not in shown


def test_an_interpreters_time_is_no_speed_and_the_page_says_why(client, make, work):
    shown = page(client, work(make()))
    assert part(shown, "time") is None
    assert "There is no plot of time" in shown
    assert "988 ms" not in shown
    assert "987" not in text(shown)


def test_a_time_that_is_a_speed_is_drawn_with_how_it_was_taken(client, make, finish):
    sweep = make({"len": [8, 16], "engine": ["eager", "flash"]})
    for run in sweeps.points(sweep):
        if run.engine == "eager":
            finish(run, timing={**TIMED, "median_ns": 1000 * run.position + 2000})
        else:
            finish(run)
    shown = page(client, sweep)
    assert [row[1:] for row in table(shown, "time")[1:]] == [
        [f"{a:.2f} µs", "–", "3", "–", "–", "–"] for a in times(sweep)
    ]
    assert 'class="span' not in part(shown, "time"), "how far times spread is not known"
    assert "Median of 3 timed runs after 1 to warm up." in text(part(shown, "time"))
    assert "2 of 4 points ran in Triton’s interpreter" in shown


def test_how_far_times_spread_is_drawn_and_written_beside_the_median(client, make, finish):
    sweep = make({"len": [8, 16]})
    for run in sweeps.points(sweep):
        samples = [at * 1000 * (run.position + 1) for at in range(1, 12)]  # 1, 2, … 11: p10 is 2, p90 is 10
        p10, median, p90 = np.percentile(samples, [10, 50, 90]).tolist()
        finish(
            run, timing={**TIMED, "samples_ns": samples, "median_ns": median, "p10_ns": p10, "p90_ns": p90}
        )
    time = part(page(client, sweep), "time")
    assert table(time, "time")[0][1:] == ["Time", "10 % to 90 %", "timed runs"]
    assert [row[1:] for row in table(time, "time")[1:]] == [
        ["6.00 µs", "2.00 µs – 10.0 µs", "11"],
        ["12.0 µs", "4.00 µs – 20.0 µs", "11"],
    ]
    assert "<title>length 8: 6.00 µs (2.00 µs – 10.0 µs)</title>" in time
    assert "Bars reach from" in text(time)
    bars = re.findall(r'class="span series-1" d="M[\d.]+ ([\d.]+)V([\d.]+)', time)
    marks = re.findall(r'class="mark series-1" transform="translate\([\d.]+ ([\d.]+)', time)
    assert len(bars) == len(marks) == 2
    (low, high), middle = map(float, bars[0]), float(marks[0])
    # On a logarithm: ln 3 below the median, ln 10/6 above it.
    assert (low - middle) / (middle - high) == pytest.approx(math.log(3) / math.log(10 / 6), rel=0.01)


def times(sweep):
    return [(1000 * run.position + 2000) / 1000 for run in sweeps.points(sweep) if run.engine == "eager"]


def test_points_lead_to_their_runs_from_the_plot_and_from_the_table(client, make, work):
    sweep = work(make())
    shown = page(client, sweep)
    for run in sweeps.points(sweep):
        address = f'href="http://testserver/en/lab/runs/{run.id}/"'
        assert address in re.search(r"<svg.*?</svg>", part(shown, "memory"), re.DOTALL).group()
        assert address in re.search(r"<table.*?</table>", part(shown, "memory"), re.DOTALL).group()
    assert 'role="group" aria-label="Peak memory against length"' in shown


def test_a_point_that_failed_says_so_in_place(client, make, work):
    sweep = work(make(), only=1)
    _first, second, third = sweeps.points(sweep)
    fail(second), fail(third, Status.TIMED_OUT, "It took too long.")
    shown = page(client, sweep)
    assert [row[1] for row in table(shown, "memory")[1:]] == [
        "800 bytes" and "6.25 KiB",
        "failed",
        "timed out",
    ]
    plot = part(shown, "memory")
    assert re.findall(r'class="absent"[^>]*><title>([^<]*)<', plot) == [
        "length 16: failed",
        "length 32: timed out",
    ]
    points = text(re.search(r'<section id="points">.*?</section>', shown, re.DOTALL).group())
    assert "length 16 failed No memory was left." in points
    assert "1 succeeded, 1 failed, 1 ran out of time" in text(shown)


def test_a_sweep_of_which_all_points_failed_has_a_page(client, make):
    sweep = make()
    for run in sweeps.points(sweep):
        fail(run)
    shown = page(client, sweep)
    assert "No point has succeeded" in shown
    assert "No memory was left." in shown


def test_points_whose_runs_were_deleted_are_told_and_the_others_stay(client, make, work):
    sweep = work(make())
    Run.objects.filter(sweep=sweep, position=1).delete()
    shown = page(client, sweep)
    assert "3 of 3 points have ended" in text(shown)
    assert "1 past its keeping time" in text(shown)
    assert [row[1] for row in table(shown, "memory")[1:]] == ["6.25 KiB", "deleted", "100 KiB"]


def test_figures_that_are_no_numbers_are_no_fault(client, make, finish):
    sweep = make()
    odd = iter(({"max_abs_err": "nan", "bound": "inf"}, {"max_abs_err": 0.0, "bound": 1e-6}, None))
    for run in sweeps.points(sweep):
        finish(run, numerics=next(odd), memory=None, timing=None, traffic={}, cost={"flops": 0})
    shown = page(client, sweep)
    assert "1 value is 0, which a logarithm has no place for" in shown
    assert [row[1] for row in table(shown, "error")[1:]] == ["NaN", "0", "–"]


# --- The choice -----------------------------------------------------------------------------------


def test_what_is_plotted_against_what_is_in_the_address(client, make, work):
    sweep = work(make({"len": [8, 16, 32], "engine": ["eager", "flash"]}))
    shown = page(client, sweep, "?x=engine&y=linear&line=length+8&line=length+32")
    assert {t.partition(":")[0] for _s, _x, _y, t in marks(shown, "flops")} == {
        "length 8, eager", "length 8, flash", "length 32, eager", "length 32, flash",
    }  # fmt: skip
    head, *rows = table(shown, "memory")
    assert head[0] == "engine"
    assert [row[0] for row in rows] == ["eager", "flash"]
    assert "length 16" in head, "the table has all lines"
    assert 'class="line series' not in part(shown, "flops"), "nothing is between two engines"
    assert "grows as" not in part(shown, "memory")
    assert "Hollow: predicted." in text(part(shown, "memory"))
    assert '<option value="linear" selected>' in shown


@pytest.mark.parametrize(
    "query", ["?x=nothing&y=cubic&line=nobody", "?x=%00&line=%00", "?line=" + "x" * 3000]
)
def test_what_is_not_there_is_as_if_it_were_not_asked_for(client, make, work, query):
    sweep = work(make({"len": [8, 16, 32], "engine": ["eager", "flash"]}))
    assert marks(page(client, sweep, query), "memory") == marks(page(client, sweep), "memory")


def test_windows_stand_at_the_keys_that_a_query_sees(client, make, work):
    sweep = work(make({"attention/window": [[7, 0], [3, 0], [1, 2]]}))
    assert [row[0] for row in table(page(client, sweep), "memory")[1:]] == ["4", "8"]
    unbounded = work(make({"attention/window": [[None, None], [3, 0]]}))
    assert [row[0] for row in table(page(client, unbounded), "memory")[1:]] == ["none", "[3, 0]"]


@pytest.mark.parametrize("vary", [
    {"attention/softcap": [0, 1.5, 30]}, {"attention/is_causal": [False, True]}, {"seed": [1, 2]},
    {"timing": [{"warmup": 0, "iters": 1}, {"warmup": 0, "iters": 2}]}, {"len": [8]}, {"dtype": ["float32"]},
    {"attention/pattern": [None, {"type": "prefix", "len": 3}]}, {"attention/scale": [-1, 0, 1]},
    {"len": [0, 4]}, {"distribution": ["normal", "peaked"], "num_heads": [1, 2]},
])  # fmt: skip
def test_whatever_varies_has_a_page(client, make, work, vary):
    sweep = work(make(vary))
    shown = page(client, sweep)
    assert f"{len(sweep.values)} of {len(sweep.values)} points have ended" in text(shown)
    assert len(table(shown, "traffic")) >= 2
    for field in vary:
        assert client.get(f"/en/lab/sweeps/{sweep.id}/", {"x": field, "y": "linear"}).status_code == 200


def test_more_lines_than_can_be_told_apart_are_chosen_from(client, make, work):
    sweep = work(make({"len": [8, 16], "seed": list(range(8))}))
    shown = page(client, sweep)
    assert {s for s, *_rest in marks(shown, "traffic")} == {1, 2, 3, 4, 5, 6}
    assert "At most 6 are drawn at once" in shown
    assert len(table(shown, "flops")[0]) == 9
    last = page(client, sweep, "?line=seed+7")
    assert {t.partition(":")[0] for *_at, t in marks(last, "traffic")} == {
        "length 8, seed 7",
        "length 16, seed 7",
    }


# --- Files ----------------------------------------------------------------------------------------


def test_a_plot_is_a_file_with_colours_of_its_own(client, make, work):
    sweep = work(make({"len": [8, 16, 32], "engine": ["eager", "flash"]}))
    address = re.search(r'href="([^"]+memory\.svg[^"]*)"', page(client, sweep, "?y=linear"))[1]
    assert "y=linear" in address
    response = client.get(address)
    assert response["Content-Type"] == "image/svg+xml"
    drawn = response.content.decode()
    ET.fromstring(drawn)
    assert "class=" not in drawn
    assert "href" not in drawn
    assert 'fill="#5f2d94"' in drawn
    assert "dashed: predicted" in drawn
    assert client.get(f"/en/lab/sweeps/{sweep.id}/time.svg").status_code == 404
    assert client.get(f"/en/lab/sweeps/{sweep.id}/nothing.svg").status_code == 404


def test_json_and_csv_are_those_of_rest(client, make, work):
    sweep = work(make())
    rest = Client(REMOTE_ADDR="203.0.113.7").get(f"/api/v1/sweeps/{sweep.id}").json()
    assert client.get(f"/en/lab/sweeps/{sweep.id}.json").json() == rest
    assert rest["url"] == f"http://testserver/en/lab/sweeps/{sweep.id}/"
    answer = client.get(f"/en/lab/sweeps/{sweep.id}.csv")
    assert answer["Content-Type"].startswith("text/csv")
    assert answer.content.decode().splitlines()[1].startswith("8,")


# --- Sharing --------------------------------------------------------------------------------------


def test_a_sweep_of_an_owner_opens_with_its_key_alone(client, make, work):
    sweep = work(make(owner="token:1"))
    key = share_key(sweep)
    other = share_key(make(owner="token:1"))
    for path in ("/", "/live/", "/memory.svg", ".json", ".csv"):
        assert client.get(f"/en/lab/sweeps/{sweep.id}{path}").status_code == 404
        assert client.get(f"/en/lab/sweeps/{sweep.id}{path}?key={other}").status_code == 404
        assert client.get(f"/en/lab/sweeps/{sweep.id}{path}?key={key}").status_code == 200
    shown = page(client, sweep, f"?key={key}")
    assert f"/en/lab/sweeps/{sweep.id}/?key={key}" in shown
    links = re.findall(rf'href="(/[^"]*{sweep.id}[^"]*)"', shown)
    assert links
    assert all(f"key={key}" in link for link in links)
    for link in re.findall(r'href="http://testserver(/en/lab/runs/[^"]+)"', shown)[:2]:
        assert client.get(link).status_code == 200


def test_a_shared_link_is_for_reading_and_its_owner_may_cancel(client, make):
    user = get_user_model().objects.create_user("ada", password="x")
    sweep = make(owner=owner_of(user.pk))
    address = f"/en/lab/sweeps/{sweep.id}/cancel/?key={share_key(sweep)}"
    assert "Cancel what has not ended" not in page(client, sweep, f"?key={share_key(sweep)}")
    assert client.post(address).status_code == 404
    client.force_login(user)
    assert "Cancel what has not ended" in page(client, sweep, f"?key={share_key(sweep)}")
    assert client.post(address).status_code == 302
    assert {run.status for run in sweeps.points(sweep)} == {Status.CANCELED}


@pytest.mark.parametrize("sweep_id", ["nothing", "2" * 22, "\x00", "x'"])
def test_what_is_no_sweep_is_not_there(client, db, sweep_id):
    response = client.get(f"/en/lab/sweeps/{sweep_id}/")
    assert response.status_code == 404


def test_editing_opens_the_form_that_makes_the_same_sweep(client, make):
    asked = body(
        {
            "len": [8, 16],
            "engine": ["eager", "flash"],
            "attention/window": [[3, 0], [None, None]],
            "attention/softcap": [0, 2],
        },
        dtype="float16",
        attention={"is_causal": True, "scale": 0.5},
        timing={"warmup": 0, "iters": 2},
    )
    sweep = submit_sweep_body(asked, caller=Caller("", "somebody"))[0]
    edit = re.search(r'href="(/en/lab/sweeps/new/\?[^"]+)"', page(client, sweep))[1]
    form = SweepForm(client.get(edit).wsgi_request.GET)
    made = form.body()
    assert made["vary"] == asked["vary"]
    assert {name: made[name] for name in ("dtype", "attention", "timing")} == {
        name: asked[name] for name in ("dtype", "attention", "timing")
    }
    assert [made["inputs"][name]["shape"] for name in "qkv"] == [[1, 1, 8, 4]] * 3


@pytest.mark.parametrize("more", [
    {"return": ["out", "lse"]},
    {"vary": {"attention/softcap": [1, 2], "attention/pattern": [None, {"type": "prefix", "len": 3}]}},
])  # fmt: skip
def test_what_the_form_has_no_field_for_is_left_to_the_command(client, make, more):
    shown = page(client, make(**more))
    assert "/sweeps/new/?" not in shown
    assert "use the command" in shown


def test_the_command_repeats_the_sweep(client, make):
    sweep = make({"len": [8, 16], "engine": ["eager", "lsh"]}, attention={"softcap": 2}, skip_refused=True)
    shown = page(client, sweep)
    asked = json.loads(re.search(r"-d '(\{.*?\n\})'", shown, re.DOTALL)[1])
    again = submit_sweep_body(asked, caller=Caller("", "somebody"))[0]
    assert (again.vary, again.values, len(again.refused)) == (sweep.vary, sweep.values, len(sweep.refused))
    assert "left out" in text(shown)


def test_numbers_that_were_sent_are_to_be_uploaded_again(client, make):
    numbers = {name: [[1, 0], [0, 1]] for name in "qkv"}
    shown = page(client, make({"engine": ["eager", "flash"]}, inputs=numbers))
    assert '{"upload": "UPLOAD_ID", "name": "q"}' in shown


def test_points_of_different_machines_are_told(client, make, work):
    sweep = work(make())
    assert "different environments" not in page(client, sweep)
    Run.objects.filter(sweep=sweep, position=1).update(environment={"device": "cuda", "gpu_name": "A100"})
    shown = page(client, sweep)
    assert "The points ran in 2 different environments" in shown
    assert "A100" in shown


# --- The largest ----------------------------------------------------------------------------------


def test_the_largest_sweep_is_one_query_for_its_points_and_a_light_page(
    client, make, work, django_assert_num_queries
):
    sweep = work(make({"len": list(range(8, 8 + MAX_POINTS // 8)), "seed": list(range(8))}))
    with django_assert_num_queries(2):  # the sweep, its points
        shown = client.get(f"/en/lab/sweeps/{sweep.id}/", headers={"accept-encoding": "gzip"})
    assert len(shown.content) < 40 * 1024, "of the 150 KB of a page, fonts and styles take most"


def test_names_are_text_and_never_markup(client, make, work):
    sweep = make({"len": [8, 16]})
    Sweep.objects.filter(pk=sweep.pk).update(
        vary={"<script>": ["<b>", "</svg>"]},
        values=[{"<script>": "<b>"}, {"<script>": "</svg>"}],
    )
    response = client.get(f"/en/lab/sweeps/{work(sweep).id}/")
    assert b"<script>:" not in response.content
    assert b"<b>" not in response.content
