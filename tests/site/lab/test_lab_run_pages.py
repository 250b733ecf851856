"""The page of a run, in every state: what it says, what it offers, and who may see it."""

import html
import json
import re
import threading
from dataclasses import replace
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest
from django.test import Client

from api.runs.sharing import share_key
from kernels.registry import ENGINES
from workers import artifacts, events, runs
from workers.models import Run, Status

pytestmark = pytest.mark.django_db


@pytest.fixture
def client():
    return Client(REMOTE_ADDR="203.0.113.7")


def page(client, run, query="", status=200):
    response = client.get(f"/en/lab/runs/{run.id}/{query}")
    assert response.status_code == status
    return html.unescape(response.content.decode())


def text(markup):
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", markup))


def ended(submit, status, **error):
    run = runs.claim(submit().id)
    assert runs.fail(
        run, status, runs.problem("Out of luck", "It stopped.", fault=error.get("fault", "user"))
    )
    return runs.get(run.id)


# --- While it is not done -------------------------------------------------------------------------


def test_a_queued_run_says_how_many_are_ahead_and_can_be_canceled(client, submit):
    submit(), submit()
    shown = page(client, submit())
    assert "2 runs are ahead of this one" in text(shown)
    assert 'action="/en/lab/runs/' in shown
    assert "csrfmiddlewaretoken" in shown


def test_a_running_run_says_how_long_and_of_what(client, submit):
    run = runs.claim(submit().id)
    shown = page(client, run)
    assert "A worker is computing it" in shown
    assert "of 30 s allowed" in text(shown)
    assert re.search(r'data-elapsed="\d+"', shown)


@pytest.mark.parametrize("claimed", [False, True])
def test_an_unfinished_page_renews_itself_with_and_without_javascript(client, submit, claimed):
    run = submit()
    if claimed:
        runs.claim(run.id)
    shown = page(client, run)
    assert f'hx-get="/en/lab/runs/{run.id}/live/?seen={"running" if claimed else "queued"}"' in shown
    assert '<noscript><meta http-equiv="refresh" content="2"></noscript>' in shown
    assert 'role="status"' in shown


def test_a_finished_page_never_renews_itself(client, submit, finish):
    ends = [finish(submit()), ended(submit, Status.FAILED), ended(submit, Status.TIMED_OUT)]
    ends.append(runs.cancel(submit().id))
    for run in ends:
        for shown in (page(client, run), client.get(f"/en/lab/runs/{run.id}/live/").content.decode()):
            region = re.search(r'<div id="run"[^>]*>', shown).group()
            assert "hx-trigger" not in region
            assert "http-equiv" not in shown
            assert "data-elapsed" not in shown


def test_the_live_part_answers_at_once_when_something_has_changed(client, submit, finish, monkeypatch):
    run = submit()
    monkeypatch.setattr(events, "wait", lambda run, *_args, **_options: finish(run) and run.refresh_from_db())
    shown = client.get(f"/en/lab/runs/{run.id}/live/?seen=queued").content.decode()
    assert "<title>Run" in shown
    assert "succeeded" in shown
    assert 'id="run-announcement" hx-swap-oob' in shown
    assert "<html" not in shown


def test_the_live_part_is_silent_when_nothing_has_changed(client, submit, monkeypatch):
    run = submit()
    monkeypatch.setattr(events, "wait", lambda *_args, **_options: None)
    shown = client.get(f"/en/lab/runs/{run.id}/live/?seen=queued").content.decode()
    assert "run-announcement" not in shown
    assert 'hx-trigger="load, every 15s"' in shown


def test_pages_that_wait_leave_threads_for_others(client, submit, monkeypatch):
    """Pages and requests of the API share one number of waiters, below the threads of the process."""
    from api import preferences

    run = submit()
    monkeypatch.setattr(events, "wait", lambda *_args, **_options: pytest.fail("it waited"))
    monkeypatch.setattr(preferences, "_waiting", threading.BoundedSemaphore(1))
    with preferences._waiting:
        shown = client.get(f"/en/lab/runs/{run.id}/live/").content.decode()
    assert 'hx-trigger="load delay:2s, every 15s"' in shown


def test_a_page_that_shows_an_old_status_does_not_wait(client, submit, monkeypatch):
    run = submit()
    runs.claim(run.id)
    monkeypatch.setattr(events, "wait", lambda *_args, **_options: pytest.fail("it waited"))
    shown = client.get(f"/en/lab/runs/{run.id}/live/?seen=queued").content.decode()
    assert "A worker is computing it" in shown
    assert 'hx-trigger="load, every 15s"' in shown


def test_cancel_ends_the_run_and_comes_back_to_its_page(client, submit):
    run = submit()
    assert client.get(f"/en/lab/runs/{run.id}/cancel/").status_code == 405
    response = client.post(f"/en/lab/runs/{run.id}/cancel/")
    assert response.headers["Location"] == f"/en/lab/runs/{run.id}/"
    assert runs.get(run.id).status == Status.CANCELED
    assert client.post(f"/en/lab/runs/{run.id}/cancel/").status_code == 302


def test_cancel_needs_the_csrf_token(submit):
    run = submit()
    assert Client(enforce_csrf_checks=True).post(f"/en/lab/runs/{run.id}/cancel/").status_code == 403


# --- When it is done ------------------------------------------------------------------------------


def test_the_result_of_the_worked_example(client, submit, finish):
    shown = page(client, finish(submit()))
    table = re.search(r'aria-label="Output">(.*?)</table>', shown, re.DOTALL)[1]
    rows = re.findall(r'<tr><th scope="row">\d</th>(.*?)</tr>', table)
    cells = [re.findall(r">([^<]+)</td>", row) for row in rows]
    assert cells == [
        ["1.6206", "1.2033", "1.1978"],
        ["1.6206", "1.0000", "1.6044"],
        ["2.1004", "1.2552", "1.5035"],
    ]
    assert "Largest error 1.2e−7, within the bound of 2.5e−6" in shown


def test_beyond_the_bound_is_said_plainly(client, submit, finish):
    numerics = {"max_abs_err": 0.5, "bound": 1e-6, "within_bound": False, "nan_count": 2}
    shown = text(page(client, finish(submit(), numerics=numerics)))
    assert "Largest error 0.50, beyond the bound of 1.0e−6" in shown
    assert "2 numbers are NaN" in shown


def test_time_in_the_interpreter_is_never_shown_as_speed(client, submit, finish):
    shown = page(client, finish(submit()))
    assert "Interpreter: not a speed" in shown
    for number in ("988", "987", "0.98", "median"):
        assert number not in text(shown), number


def test_a_time_comes_with_n_median_spread_device_and_method(client, submit, finish):
    timing = {
        "method": "wall",
        "representative": True,
        "warmup": 1,
        "samples_ns": [100_000, *[120_000] * 6],
        "median_ns": 120_000,
        "p10_ns": 110_000,
        "p90_ns": 150_000,
    }
    shown = text(page(client, finish(submit(engine="eager"), timing=timing)))
    for part in ("120 µs", "7 runs", "fastest 100 µs", "110 µs – 150 µs", "device cpu", "method wall"):
        assert part in shown, part


def test_memory_predicted_beside_measured_with_its_method(client, submit, finish):
    shown = text(page(client, finish(submit())))
    assert "predicted 4.00 MiB inputs, results" in shown
    assert "measured peak 3.00 MiB tracemalloc" in shown
    assert "measured by predicted 0.750 ×" in shown


def test_traffic_counted_beside_that_of_a_model_and_the_least(client, submit, finish):
    run = finish(submit(returns=("out", "lse")))
    shown = text(page(client, run))
    assert "least possible 144 bytes" in shown
    # q and k and v of 3 × 2 float32, read once, for one tile of queries; the output and its LSE.
    assert "read 2.00 KiB 72 bytes" in shown
    assert "written 512 bytes 36 bytes" in shown
    assert "together 2.50 KiB 108 bytes" in shown
    assert "by the least possible 17.8 × 0.750 ×" in shown
    traffic = {"bytes_read": 72, "bytes_written": 36, "method": "model"}
    alone = text(page(client, finish(submit(), traffic=traffic)))
    assert "read 72 bytes written" in alone
    assert "Nothing counts the bytes" in alone


def test_every_figure_says_what_it_means(client, submit, finish):
    timing = {"method": "wall", "representative": True, "warmup": 1, "samples_ns": [1000], "median_ns": 1000,
              "p10_ns": 1000, "p90_ns": 1000}  # fmt: skip
    measured = re.search(
        r'id="measured".*?</section>', page(client, finish(submit(), timing=timing)), re.DOTALL
    )
    terms = re.findall(r"<dt>([^<]+)</dt><dd>[^<]*</dd>(<dd class=\"meaning\">)?", measured[0])
    assert len(terms) > 12
    assert [name for name, meaning in terms if not meaning] == ["device"]


def test_missing_figures_leave_out_their_card_only(client, submit, finish):
    shown = page(
        client, finish(submit(), timing=None, memory=None, traffic=None, cost=None, numerics={}, notes=[])
    )
    assert "Measured" in shown
    assert "Interpreter" not in shown
    assert "1.2033" in shown


def test_pickers_choose_batch_and_head(client, submit, finish, seeded):
    run = finish(submit(inputs=seeded(2, 3, 4, 8), returns=("out", "weights")))
    weights = artifacts.load_results(run)["weights"]
    for batch, head in ((0, 0), (1, 2)):
        shown = page(client, run, f"?batch={batch}&head={head}")
        figure = re.search(r'data-map="weights".*?</figure>', shown, re.DOTALL)[0]
        printed = re.findall(r"query \d, key \d: ([\d.]+)", figure)
        assert np.allclose([float(x) for x in printed], weights[batch, head].ravel(), atol=5.1e-5)
        for name, chosen in (("batch", batch), ("head", head)):
            picker = re.search(rf'data-picker="{name}">.*?</nav>', shown, re.DOTALL)[0]
            assert re.findall(r'aria-current="true"[^>]*>(\d)<', picker) == [str(chosen)]


@pytest.mark.parametrize(
    "query", ["?head=99", "?head=-1", "?head=x", "?batch=1e9", "?map=secrets", "?head=" + "9" * 40]
)
def test_a_slice_that_is_not_there_is_the_nearest_that_is(client, submit, finish, seeded, query):
    run = finish(submit(inputs=seeded(1, 2, 3, 4)))
    page(client, run, query)


def test_the_roofs_of_the_chosen_gpus_keep_what_else_was_chosen(client, submit, finish, seeded):
    run = finish(submit(inputs=seeded(1, 2, 8, 4)))
    shown = page(client, run, "?head=1&gpu=l4")
    assert "L4: bound by memory" in text(shown)
    assert "H100 SXM:" not in text(shown)
    roof = shown[shown.index('id="roofline"') :]
    # An address of its own: to that of the page, with its gpu, what is chosen next would only be added.
    assert re.search(rf'class="gpu-choice"[^>]* hx-get="/en/lab/runs/{run.pk}/"', roof)
    assert '<input type="hidden" name="head" value="1">' in roof
    head_0 = next(link for link in re.findall(r'href="(\?[^"#]+)', shown) if "head=0" in link)
    assert parse_qs(head_0[1:])["gpu"] == ["l4"]


def test_very_many_heads_get_a_number_box(client, submit, finish, seeded):
    shown = page(client, finish(submit(inputs=seeded(1, 40, 2, 4))), "?head=7")
    assert re.search(r'<input type="number" id="pick-head" name="head" value="7" min="0" max="39">', shown)


def test_long_tables_are_cut_and_say_so(client, submit, finish, seeded):
    run = finish(submit(inputs=seeded(1, 1, 100, 4)))
    assert "The first 32 × 4 of 100 × 4 numbers" in text(page(client, run))


def test_empty_results_have_a_page_too(client, submit, finish):
    empty = {"b64": "", "dtype": "float32", "shape": [0, 2]}
    inputs = {"q": empty, "k": [[1, 0]], "v": [[1, 0]]}
    assert "Empty: there are no queries" in page(client, finish(submit(inputs=inputs)))


@pytest.mark.parametrize("shape", [[0, 2, 3, 2], [2, 0, 3, 2]])
def test_no_batch_or_no_heads_have_a_page_too(client, submit, finish, shape):
    inputs = {name: {"b64": "", "dtype": "float32", "shape": shape} for name in "qkv"}
    run = finish(submit(inputs=inputs))
    assert "There is no head to look at" in page(client, run)
    assert client.get(f"/en/lab/runs/{run.id}/weights.svg").status_code == 404


def test_a_run_of_latents_has_a_page_and_can_be_edited(client, submit):
    shapes = {"q_nope": [2, 1, 3], "q_rope": [2, 1, 2], "c_kv": [4, 5], "k_rope": [4, 2],
              "w_uk": [2, 5, 3], "w_uv": [2, 5, 3]}  # fmt: skip
    inputs = {name: {"seed": 1, "shape": shape} for name, shape in shapes.items()}
    claimed = runs.claim(submit(engine="mla", inputs=inputs, returns=("out",)).id)
    arrays = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    info = {name: {"shape": shape, "dtype": "float32", "sha256": "…"} for name, shape in shapes.items()}
    results = {"out": np.full((2, 1, 3), 0.25, np.float32)}
    assert runs.finish(claimed, inputs=arrays, results=results, input_info=info, result={}, environment={})
    shown = text(page(client, runs.get(claimed.id)))
    assert "2 heads, 1 query, 4 keys, dimension 5, value dimension 3" in shown
    assert "0.25" in shown
    assert "w_uk" in shown
    assert "Edit and run again" in shown
    edit = html.unescape(client.get("/en/lab/", {"from": claimed.id}).content.decode())
    assert "2 heads, 1 query, 4 keys, dimension 5, value dimension 3" in edit


def test_what_is_not_softmax_attention_is_shown_beside_it(client, submit, finish):
    run = finish(submit(engine="linear", options={"form": "parallel"}, returns=("out",)))
    assert "Against exact attention" not in page(client, run)  # nothing was compared yet
    run.result["comparison"] = {"with": "softmax", "rel_err": 0.25, "max_abs_err": 0.5, "max_rel_err": "inf"}
    run.save()
    shown = text(page(client, run))
    assert "Against exact attention" in shown
    assert "relative error of the whole output 0.25" in shown
    assert "largest relative error inf" in shown


def test_masked_cells_are_hatched_and_named(client, submit, finish):
    run = finish(submit(returns=("out",), attention={"is_causal": True}))
    shown = page(client, run)
    figure = re.search(r'data-map="masked_scores".*?</figure>', shown, re.DOTALL)[0]
    assert figure.count('class="cell-masked"') == 3
    assert "query 0, key 2: −∞" in figure
    assert "Hatched: masked" in figure


def test_provenance_inputs_and_notes(client, submit, finish):
    run = finish(submit(attention={"scale": 0.5}))
    shown = page(client, run)
    assert run.input_info["q"]["sha256"] in shown
    assert "scale = 0.5" in shown.replace("\xa0", " ")
    assert "2.13.0" in shown
    assert "scores were rebuilt by a second kernel" in shown
    assert shown.count("sent with the request") == 3  # over REST nobody types


def test_a_download_is_sent_as_it_is(client, submit, finish, seeded):
    """Random numbers do not compress: trying to would only cost time."""
    run = finish(submit(inputs=seeded(1, 2, 64, 64)))
    for address in (f"/en/lab/runs/{run.id}/files/out.npy", f"/api/v1/runs/{run.id}/artifacts/out.npy"):
        response = client.get(address, headers={"Accept-Encoding": "gzip"})
        assert response.status_code == 200
        assert "Content-Encoding" not in response
        assert response["X-Content-Type-Options"] == "nosniff"


def test_a_run_whose_files_are_gone_still_has_its_page(client, submit, finish, monkeypatch):
    monkeypatch.setattr(artifacts, "INLINE_BYTES", 0)
    run = finish(submit())
    artifacts.delete(run.id)
    shown = page(client, run)
    assert "The stored arrays of this run are gone" in shown
    assert "2.5e−6" in shown
    for gone in ("weights.svg", "files/out.npy", "files/result.npz"):
        assert client.get(f"/en/lab/runs/{run.id}/{gone}").status_code == 404, gone


def test_a_page_reads_only_the_arrays_that_it_shows(client, submit, finish, seeded, monkeypatch):
    returns = ("out", "lse", "weights", "scores", "masked_scores")
    run = finish(submit(inputs=seeded(2, 3, 4, 2), returns=returns))
    read = []
    whole, part = artifacts.load_results, artifacts.load_part

    def load_results(run, names):
        found = whole(run, names)
        read.append(set(found))
        return found

    def load_part(run, name, *index):
        read.append((name, *index))
        return part(run, name, *index)

    monkeypatch.setattr(artifacts, "load_results", load_results)
    monkeypatch.setattr(artifacts, "load_part", load_part)
    page(client, run, "?batch=1&head=2")
    assert read == [{"out", "lse"}, ("out", 1, 2)], "the table, and the output that the error is of"
    client.get(f"/en/lab/runs/{run.id}/weights.svg?batch=1&head=2")
    assert read[2:] == [("weights", 1, 2)]


def test_json_and_svg_forms(client, submit, finish):
    run = finish(submit())
    document = client.get(f"/en/lab/runs/{run.id}.json")
    assert document.json() == client.get(f"/api/v1/runs/{run.id}").json()
    svg = client.get(f"/en/lab/runs/{run.id}/weights.svg")
    assert svg.headers["Content-Type"] == "image/svg+xml"
    assert svg.content.count(b"<rect") == 9
    assert client.get(f"/en/lab/runs/{run.id}/entropy.svg").status_code == 404


# --- When it did not work out ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "fault", "says"),
    [
        (Status.FAILED, "platform", "This was our fault"),
        (Status.FAILED, "user", "This came of the request"),
        (Status.TIMED_OUT, "user", "Change it and run it again"),
    ],
)
def test_a_failure_says_what_happened_whose_fault_and_what_to_do(client, submit, status, fault, says):
    shown = text(page(client, ended(submit, status, fault=fault)))
    assert "Out of luck It stopped." in shown
    assert says in shown
    assert "Edit and run again" in shown


def test_a_canceled_run_says_so(client, submit):
    assert "canceled the run before it had a result" in page(client, runs.cancel(submit().id))


# --- Again ----------------------------------------------------------------------------------------


def edit(client, shown):
    """The form that “Edit and run again” opens."""
    return client.get(re.search(r'href="(/en/lab/\?[^"]*from=[^"]+)"', shown).group(1))


def body_in(response):
    command = re.search(r'<code id="curl">(.*?)</code>', response.content.decode(), re.DOTALL)
    return json.loads(html.unescape(command.group(1)).split("-d '", 1)[1].rstrip("'"))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {
            "dtype": "float16",
            "attention": {"is_causal": True, "causal_alignment": "top_left", "scale": -0.25},
        },
        {"options": {"block_m": 16, "block_n": 64}, "timing": {"warmup": 0, "iters": 2}, "returns": ["out"]},
        {"engine": "reference", "inputs": {"q": [[[0.1, 1e-9]]], "k": [[[1, 2]]], "v": [[[3]]]}},
        {
            "engine": "linear",
            "options": {"feature_map": "identity", "normalise": False, "chunk_size": 32},
            "returns": ["out", "state"],
        },
        {
            "engine": "performer",
            "options": {"num_features": 8, "features_seed": 3, "orthogonal": False},
            "returns": ["out"],
        },
        {"engine": "paged", "options": {"page_size": 4, "kv_dtype": "int8"}, "returns": ["out", "lse"]},
    ],
)
def test_editing_a_run_starts_from_its_configuration(client, submit, changes):
    run = runs.cancel(submit(**changes).id)
    shown = page(client, run)
    again = edit(client, shown)
    assert body_in(again) == json.loads(
        re.search(r'<code id="curl">(.*?)</code>', shown, re.DOTALL).group(1).split("-d '", 1)[1].rstrip("'")
    )


def test_editing_keeps_a_seed_a_seed(client, submit, seeded):
    inputs = seeded(2, 4, 300, 16, kv_heads=2, seed=99)
    run = runs.cancel(submit(inputs=inputs).id)
    assert body_in(edit(client, page(client, run)))["inputs"] == inputs


def test_large_matrices_are_not_carried_over_and_the_page_says_why(client, submit):
    rows = np.random.default_rng().normal(size=(64, 64)).tolist()
    run = runs.cancel(submit(inputs={"q": rows, "k": rows, "v": rows}).id)
    shown = page(client, run)
    assert "no files to take them from" in shown
    assert "too large for text boxes (more than 4,096 numbers)" in edit(client, shown).content.decode()


def test_what_the_form_cannot_say_is_not_dropped_in_silence(client, submit, monkeypatch):
    """A run may outlive an option of its engine."""
    run = runs.cancel(submit(options={"block_m": 16, "block_n": 32}).id)
    left = {name: schema for name, schema in ENGINES["flash"].options.items() if name != "block_n"}
    monkeypatch.setitem(ENGINES, "flash", replace(ENGINES["flash"], options=left))
    note = html.unescape(edit(client, page(client, run)).content.decode())
    assert "also sets block_n, which this form has no field for" in note


def test_a_run_names_the_options_that_are_not_at_their_default(client, submit):
    shown = page(client, submit(engine="linear", options={"form": "parallel"}, returns=("out",)))
    assert re.findall(r"<code>(\w+)\xa0=\xa0([^<]+)</code>", shown) == [("form", '"parallel"')]


# --- Who may see it -------------------------------------------------------------------------------


def test_an_unknown_run_is_a_friendly_404(client):
    response = client.get("/en/lab/runs/nosuchrun/")
    assert response.status_code == 404
    assert b"There is no such run" in response.content


@pytest.mark.parametrize("run_id", ["abc%00", "%00", "a" * 400, "%E2%80%AE", "'", "ABC", "%F0%9F%98%80"])
def test_an_address_that_no_run_can_have_is_never_looked_up(client, monkeypatch, run_id):
    """PostgreSQL refuses some characters: that would be an error of ours."""
    found = runs.get

    def get(run_id):
        assert re.fullmatch("[0-9a-z]*", run_id), "it was looked up"
        return found(run_id)

    monkeypatch.setattr(runs, "get", get)
    for address in ("", "live/", "weights.svg", "files/out.npy"):
        assert client.get(f"/en/lab/runs/{run_id}/{address}").status_code == 404, address
    assert client.get(f"/en/lab/runs/{run_id}.json").status_code == 404
    assert client.get(f"/en/lab/?from={run_id}").status_code == 404


def test_a_compilation_has_no_page(client, submit):
    run = submit()
    Run.objects.filter(pk=run.pk).update(kind="compile")
    assert client.get(f"/en/lab/runs/{run.id}/").status_code == 404


def test_an_owned_run_opens_with_its_key_only(client, submit, finish):
    run = finish(submit(owner="token:1"))
    key = share_key(run)
    wrong = ("y" if key[0] == "x" else "x") + key[1:]
    addresses = ["", "live/", "files/out.npy", "weights.svg"]
    for address in [f"/en/lab/runs/{run.id}/{name}" for name in addresses] + [f"/en/lab/runs/{run.id}.json"]:
        assert client.get(address).status_code == 404
        assert client.get(address, {"key": wrong}).status_code == 404
        assert client.get(address, {"key": key}).status_code == 200
    assert client.get("/en/lab/", {"from": run.id}).status_code == 404
    assert client.get("/en/lab/", {"from": run.id, "key": key}).status_code == 200


def test_the_json_of_a_shared_page_names_files_that_open(client, submit, finish, seeded):
    run = finish(submit(owner="token:1", inputs=seeded(1, 2, 260, 4)))
    document = client.get(f"/en/lab/runs/{run.id}.json", {"key": share_key(run)}).json()
    for address in [*document["artifacts"].values(), document["result"]["weights"]["artifact"]]:
        assert client.get(address).status_code == 200, address


def test_every_link_of_a_shared_page_carries_the_key(client, submit, finish, seeded):
    run = finish(submit(owner="token:1", inputs=seeded(1, 3, 4, 4)))
    shown = page(client, run, f"?key={share_key(run)}")
    links = [link for link in re.findall(r'href="([^"#]+)', shown) if run.id in link or link.startswith("?")]
    assert len(links) > 10
    for link in links:
        assert parse_qs(urlsplit(link).query)["key"] == [share_key(run)], link


def test_a_shared_link_is_for_reading(client, submit):
    run = submit(owner="token:1")
    assert "Cancel" not in page(client, run, f"?key={share_key(run)}")
    assert client.post(f"/en/lab/runs/{run.id}/cancel/?key={share_key(run)}").status_code == 404
    assert Run.objects.get().status == Status.QUEUED


# --- The cost of a page ---------------------------------------------------------------------------


def test_queries_of_each_page(client, submit, finish, django_assert_max_num_queries):
    waiting, done = submit(), finish(submit())
    for path, most in (("/en/lab/", 0), (f"/en/lab/runs/{waiting.id}/", 2), (f"/en/lab/runs/{done.id}/", 1)):
        client.get(path)  # what a process does once
        with django_assert_max_num_queries(most):
            client.get(path)


def test_pages_have_no_inline_style_or_script(client, submit, finish, seeded):
    addresses = [
        "/en/lab/",
        f"/en/lab/runs/{finish(submit(inputs=seeded(1, 2, 70, 4))).id}/",
        f"/en/lab/runs/{submit().id}/",
    ]
    for address in addresses:
        markup = client.get(address).content.decode()
        assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?![^>]*\ssrc=)", markup)


def lit_rows(shown, label):
    """Which rows of a table are lit."""
    table = re.search(rf'aria-label="{label}">(.*?)</table>', shown, re.DOTALL)[1]
    return re.findall(r'<tr class="lit" aria-current="true"><th scope="row">(\d+)</th>', table)


def test_a_link_can_light_the_row_of_a_query(client, submit, finish, seeded):
    run = finish(submit(inputs=seeded(1, 2, 6, 4)))
    shown = page(client, run, "?head=1&row=4")
    assert lit_rows(shown, "Output") == lit_rows(shown, "Row by row") == ["4"]
    assert "Query 4 and key 0" in text(shown)
    assert "row=4" in re.search(r'href="(\?[^"]*head=0)', shown)[1]


def test_the_tables_show_the_lit_row_however_far_down_it_is(client, submit, finish, seeded):
    run = finish(submit(inputs=seeded(1, 1, 100, 4)))
    shown = page(client, run, "?row=90")
    assert lit_rows(shown, "Output") == lit_rows(shown, "Row by row") == ["90"]
    for nonsense in ("x", "-1", "1e9", "9" * 30, "100"):
        assert client.get(f"/en/lab/runs/{run.id}/?row={nonsense}&col={nonsense}").status_code == 200


def test_a_row_stays_lit_while_the_page_waits(client, submit):
    shown = client.get(f"/en/lab/runs/{submit().id}/?head=0&row=2").content.decode()
    assert "row=2" in re.search(r'hx-get="([^"]+)"', shown)[1]
