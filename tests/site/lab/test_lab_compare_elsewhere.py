"""Numbers from elsewhere: pasted or uploaded, and the convention that gave them is named."""

import html
import io
import re
from urllib.parse import urljoin

import numpy as np
import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client

from api.runs.sharing import share_key
from lab.compare import elsewhere, questions
from workers import artifacts, quotas, runs
from workers.models import Run

pytestmark = pytest.mark.django_db


@pytest.fixture
def client():
    return Client(REMOTE_ADDR="203.0.113.7")


@pytest.fixture
def asked(submit, finish):
    """The finished run of a question."""

    def asked(slug):
        body = questions.BY_SLUG[slug].body
        body.pop("return"), body.pop("engine")
        return finish(submit(returns=("out",), **body))

    return asked


def text(markup):
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", html.unescape(markup)))


def answer(client, run, out="", status=200, *, file=None, dtype="float32", key=""):
    query = f"&key.{run.id}={key}" if key else ""
    data = {"out": out, "dtype": dtype, **({"file": file} if file else {})}
    response = client.post(f"/en/lab/compare/elsewhere/?runs={run.id}{query}", data)
    assert response.status_code == status, text(response.content.decode())
    return text(response.content.decode())


def theirs(run, shift, back=99):
    """Somebody else's causal attention, in float32: query i sees key i + shift and ``back`` before."""
    q, k, v = (artifacts.load_inputs(run)[name][0, 0] for name in "qkv")
    scores = q @ k.T / np.float32(np.sqrt(q.shape[1]))
    away = np.arange(len(k))[None] - np.arange(len(q))[:, None] - shift
    scores[(away > 0) | (away < -back)] = -np.inf
    weights = np.exp(scores - scores.max(1, keepdims=True))
    return weights / weights.sum(1, keepdims=True) @ v


@pytest.mark.parametrize(
    ("shift", "said"),
    [
        (2, "It is this run’s convention"),
        (0, "It is another convention Causal alignment: top left"),
        (9, "Causal mask: off"),
    ],
)
@pytest.mark.parametrize(
    "written",
    [
        str,
        repr,
        lambda x: str(x.tolist()),
        lambda x: "\n".join(",".join(f"{n:.4f}" for n in row) for row in x),
    ],
)
def test_which_causal_alignment_it_is(client, asked, shift, said, written):
    run = asked("causal-alignment")
    shown = answer(client, run, written(theirs(run, shift)))
    assert said in shown, shown
    assert "No convention" not in shown


def test_it_says_how_far_off_this_run_is_and_offers_the_flip(client, asked):
    run = asked("causal-alignment")
    right, wrong = theirs(run, 2), theirs(run, 0)
    response = client.post(
        f"/en/lab/compare/elsewhere/?runs={run.id}", {"out": str(wrong.tolist()), "dtype": "float32"}
    )
    shown = response.content.decode()
    far = float(re.search(r"This run itself is off by ([\d.]+)", text(shown))[1].rstrip("."))
    assert far == pytest.approx(abs(right - wrong).max(), rel=5e-3)
    assert 'name="flip" value="causal_alignment.top_left"' in shown
    assert "3 queries and 5 keys" in text(shown)


def test_numbers_of_the_run_itself_are_named_and_the_others_ruled_out(client, asked):
    """Who asks which corner it is learns it from an answer that agrees too, and can see the other one."""
    run = asked("causal-alignment")
    right, wrong = theirs(run, 2), theirs(run, 0)
    data = {"out": str(right.tolist()), "dtype": "float32"}
    markup = client.post(f"/en/lab/compare/elsewhere/?runs={run.id}", data).content.decode()
    shown = text(markup)
    assert "Causal alignment: bottom right" in shown
    assert "Causal mask: on" in shown
    row = re.search(r"top left: the first query at the first key ([\d.]+) Run it", shown)
    assert float(row[1]) == pytest.approx(abs(right - wrong).max(), rel=5e-3)
    assert 'name="flip" value="causal_alignment.top_left"' in markup


def test_what_the_digits_do_not_tell_apart_is_not_ruled_out(client, submit, finish):
    """Two conventions that differ by 1e-4 of numbers with three decimals."""
    q, k, v = [[1.0, 0.0]], [[1.0, 0.0], [1.0, 0.0]], [[1.0, 0.0], [1.0002, 0.0]]
    run = finish(submit(inputs={"q": q, "k": k, "v": v}, attention={"is_causal": True}))
    shown = answer(client, run, "1.000 0.000")
    assert "so they are not ruled out: Causal alignment: top left" in shown
    assert "Causal alignment: bottom right" not in shown


@pytest.mark.parametrize(("first", "corner"), [(0, "top left"), (2, "bottom right")])
def test_a_window_that_nobody_mentioned_is_named_and_can_be_run(client, asked, first, corner):
    run = asked("causal-alignment")
    shown = answer(client, run, str(theirs(run, first, back=1).tolist()))
    assert f"Window: 2 keys with the query’s own, {corner}" in shown
    markup = client.post(
        f"/en/lab/compare/elsewhere/?runs={run.id}",
        {"out": str(theirs(run, first, back=1).tolist()), "dtype": "float32"},
    ).content.decode()
    flip = re.search(r'name="flip" value="([^"]+)"', markup)[1]
    response = client.post("/en/lab/compare/flip/", {"run": run.id, "flip": flip})
    assert response.status_code == 302
    new = Run.objects.exclude(id=run.id).get()
    assert new.spec["attention"]["window"] == [1, None]
    assert new.spec["attention"]["causal_alignment"] == corner.replace(" ", "_")
    title = text(client.get(response["Location"]).content.decode())
    assert f"Window: 2 keys with the query’s own, {corner}" in title


def test_a_diagonal_from_neither_corner_says_where_it_lies(client, submit, finish, seeded):
    inputs = seeded(1, 1, 7, 4)
    inputs["q"] = inputs["q"] | {"shape": [1, 1, 3, 4]}
    run = finish(submit(inputs=inputs, attention={"is_causal": True}))
    shown = answer(client, run, str(theirs(run, 1).tolist()))
    assert "Causal diagonal: query i sees keys up to i + 1" in shown
    assert "Bottom right, it would be up to i + 4, and top left up to i" in shown


def test_with_as_many_queries_as_keys_both_alignments_are_named(client, submit, finish, seeded):
    run = finish(submit(inputs=seeded(1, 1, 5, 4), attention={"is_causal": True}))
    shown = answer(client, run, str(theirs(run, 0).tolist()))
    assert "It is this run’s convention" in shown
    assert "so they are not ruled out: Causal alignment: top left" in shown
    assert "Causal alignment: bottom right" not in shown
    assert "use fewer queries than keys: q_len ≠ kv_len" in shown


def test_what_nothing_explains_names_the_nearest(client, asked):
    run = asked("causal-alignment")
    shown = answer(client, run, str((theirs(run, 0) + 0.01).tolist()))
    assert "No convention that we know gives these numbers" in shown
    assert re.search(r"The nearest reading largest error allowed .*top left[^0-9]+0\.0100", shown)


def test_a_file_of_their_own_precision(client, asked):
    run = asked("causal-alignment")
    for dtype, name in (("float32", "out.npy"), ("float16", "anything.npy")):
        content = io.BytesIO()
        np.save(content, theirs(run, 0).astype(dtype))
        file = SimpleUploadedFile(name, content.getvalue())
        assert "Causal alignment: top left" in answer(client, run, file=file, dtype=dtype)
    content = io.BytesIO()
    np.savez(content, other=np.zeros(3), out=theirs(run, 2)[None, None])
    assert "this run’s convention" in answer(
        client, run, file=SimpleUploadedFile("x.npz", content.getvalue())
    )


@pytest.mark.parametrize("side_by_side", [False, True])
def test_heads_after_queries_are_read_as_such(client, submit, finish, seeded, side_by_side):
    """[batch, queries, heads, dimensions], as flash-attention and Transformers return it."""
    inputs = seeded(1, 2, 5, 4)
    inputs["q"] = inputs["q"] | {"shape": [1, 2, 3, 4]}
    run = finish(submit(inputs=inputs, attention={"is_causal": True}))
    q, k, v = (artifacts.load_inputs(run)[name] for name in "qkv")
    scores = np.einsum("bhid,bhjd->bhij", q, k) / 2
    scores[..., np.arange(5)[None] > np.arange(3)[:, None]] = -np.inf
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    out = np.einsum("bhij,bhje->bihe", weights / weights.sum(-1, keepdims=True), v)
    out = out.reshape(1, 3, 8) if side_by_side else out
    assert "another convention Causal alignment: top left" in answer(client, run, file=npz(out=out))


def npz(**arrays):
    content = io.BytesIO()
    np.savez(content, **arrays)
    return SimpleUploadedFile("x.npz", content.getvalue())


@pytest.mark.parametrize(
    ("out", "said"),
    [
        ("", "Paste the output, or choose a file."),
        ("1 2 3\n4 5", "Line 2, column 1"),
        ("1 2 3\n4 5 6", "out: its shape is 2 × 3; this run's output is 1 × 1 × 3 × 4"),
        ("abc", "is not a number"),
        ("[[1, 2, ...]]", "print"),
    ],
)
def test_what_cannot_be_read_says_why(client, asked, out, said):
    assert said in answer(client, asked("causal-alignment"), out, 422)


def test_files_that_cannot_be_read_say_why(client, asked, monkeypatch):
    run = asked("causal-alignment")
    assert "none is called out" in answer(client, run, status=422, file=npz(a=np.zeros(2), b=np.zeros(2)))
    assert "file:" in answer(client, run, status=422, file=SimpleUploadedFile("x.npy", b"nonsense"))
    monkeypatch.setattr(elsewhere, "MAX_NUMBERS", 5)
    assert "more than the 5 that are compared" in answer(client, run, status=422, file=npz(out=np.zeros(12)))
    assert "more than the 5 that are compared" in answer(client, run, "1 2 3 4 5 6", 422)
    monkeypatch.setattr(elsewhere, "MAX_FILE", 10)
    assert "send the output of one small run" in answer(client, run, status=422, file=npz(out=np.zeros(12)))


@pytest.mark.parametrize(
    ("out", "resolution", "decimals"),
    [
        ("[[0.1234, 1.0]]", 0.5e-4, 4),
        ("tensor([[0.1234, 1.0000]])", 0.5e-4, 4),
        ("1 2 3", 0.0, None),
        ("0.123456789", 0.0, None),
        ("1. 2.", 0.0, None),
    ],
)
def test_how_precisely_a_printed_number_is_known(out, resolution, decimals):
    sent = elsewhere.read(out, None)
    assert sent.resolution == pytest.approx(resolution)
    assert sent.decimals == decimals


def test_numbers_with_exponents_are_known_to_their_own_last_digit():
    sent = elsewhere.read("[[1.2346e-01, 4.0000e+02]]", None)
    assert np.allclose(sent.resolution, [[0.5e-5, 0.5e-2]])


def test_what_is_no_softmax_attention_or_too_large_is_not_judged(client, submit, finish, seeded, monkeypatch):
    from kernels import conventions

    linear = finish(submit(engine="linear", inputs=seeded(1, 1, 4, 4), returns=("out",)))
    shown = client.get(f"/en/lab/compare/elsewhere/?runs={linear.id}").content.decode()
    assert "is something else" in text(shown)
    assert "<textarea" not in shown
    run = finish(submit())
    monkeypatch.setattr(conventions, "MOST", 10)
    assert "too large for trying every convention" in answer(client, run, "1 2\n3 4\n5 6", 422)


def test_it_is_charged_and_refused_when_used_up(client, asked, monkeypatch):
    run = asked("causal-alignment")

    def used_up(quota, scope, *rest):
        raise quotas.QuotaExceeded(quota, 7)

    monkeypatch.setattr(quotas, "enter", used_up)
    assert "Try again in 7 s" in answer(client, run, str(theirs(run, 0).tolist()), 503)


def test_inputs_are_there_as_code_that_gives_them_back(client, asked):
    run = asked("causal-alignment")
    shown = html.unescape(
        client.get(f"/en/lab/compare/elsewhere/?runs={run.id}&about=causal-alignment").content.decode()
    )
    code = re.search(r'<code id="inputs">(.*?)</code>', shown, re.DOTALL)[1]
    found = {}
    exec(code, found)
    for name, array in artifacts.load_inputs(run).items():
        assert np.array_equal(found[name], array.reshape(found[name].shape))
        assert found[name].dtype == np.float32
    assert "Which causal alignment does this model use?" in shown


def test_somebody_who_knows_only_the_question_finds_the_way(client, finish):
    home = client.get("/en/lab/").content.decode()
    assert "Which causal alignment does this model use?" in home
    link = re.search(r'href="([^"]+)">Which causal alignment', home)[1]
    shown = client.get(link).content.decode()
    assert all(str(question.question) in html.unescape(shown) for question in questions.QUESTIONS)
    response = client.post(link, {"question": "causal-alignment"})
    run = finish(Run.objects.get())
    shown = html.unescape(client.get(response["Location"]).content.decode())
    assert "Paste what comes back" in shown
    assert "Causal alignment: top left" in answer(client, run, str(theirs(run, 0).tolist()))


@pytest.mark.parametrize("page", ["/en/", "/en/lab/", "/en/lab/compare/", "/en/concepts/masks/"])
def test_the_questions_are_found_from_where_they_arise(client, page):
    shown = client.get(page).content.decode()
    links = {
        urljoin(page, html.unescape(link)).partition("#")[0] for link in re.findall(r'href="([^"]+)"', shown)
    }
    assert "/en/lab/compare/conventions/" in links


def test_the_way_with_inputs_of_ones_own(client, asked):
    """The lab opens as the page says, and a run's page has the link before anything that is long."""
    page = client.get("/en/lab/compare/conventions/").content.decode()
    upload = html.unescape(re.search(r'href="([^"]+)">upload files', page)[1])
    form = client.get(upload).content.decode()
    assert re.search(r'<input[^>]*value="upload"[^>]*checked', form)
    assert re.search(r'<input[^>]*name="causal"[^>]*checked', form)
    run = asked("causal-alignment")
    shown = client.get(f"/en/lab/runs/{run.id}/").content.decode()
    link = re.search(r'href="([^"]+)">Compare with numbers from elsewhere', shown)
    assert link.start() < shown.index("<h2")
    assert 'name="out"' in client.get(html.unescape(link[1])).content.decode()


def test_every_question_is_a_run_that_can_be_judged(client, submit):
    for question in questions.QUESTIONS:
        response = client.post("/en/lab/compare/conventions/", {"question": question.slug})
        assert response.status_code == 302
        shown = client.get(response["Location"]).content.decode()
        assert "The form appears here by itself" in shown
        assert 'http-equiv="refresh"' in shown
    assert client.post("/en/lab/compare/conventions/", {"question": "other"}).status_code == 404


def test_no_more_questions_than_there_is_room_for(client, monkeypatch):
    def full(*_args, **_options):
        raise runs.QueueFull(5)

    monkeypatch.setattr(runs, "prepare", full)
    response = client.post("/en/lab/compare/conventions/", {"question": "scale"})
    assert (response.status_code, response["Retry-After"]) == (503, "5")
    assert "Try again in 5 s" in response.content.decode()


def test_a_shared_run_needs_its_key(client, submit, finish):
    run = finish(submit(owner="alice"))
    answer(client, run, "1 2\n3 4\n5 6", 404)
    answer(client, run, "1 2\n3 4\n5 6", 200, key=share_key(run))
