"""Change one thing: every flip makes the run it says, shows exactly the cells that an independent computation
finds changed, and says why."""

import hashlib
import html
import math
import re

import numpy as np
import pytest
from django.test import Client

from api.runs.sharing import share_key
from kernels import flips
from kernels.arrays import generate, round_to_dtype
from kernels.spec import RunSpec
from lab.compare import looks, words
from lab.runs import closeups
from workers import artifacts, quotas, runs
from workers.models import Run

pytestmark = pytest.mark.django_db

B, H, KV, N, M, D = 1, 4, 2, 5, 8, 4


@pytest.fixture
def client():
    return Client(REMOTE_ADDR="203.0.113.7")


@pytest.fixture(autouse=True)
def _forgotten():
    closeups.latest.found.clear()
    looks._kept.found.clear()


@pytest.fixture
def carry_out():
    """Compute a queued run as a worker does, with its own engine."""
    from kernels.execute import execute

    def carry_out(run):
        claimed = runs.claim(run.id)
        outcome = execute(*runs.load(claimed))
        assert runs.finish(
            claimed,
            inputs=outcome.inputs,
            results=outcome.arrays,
            input_info=outcome.input_info,
            result={"numerics": outcome.numerics, "timing": outcome.timing, "memory": outcome.memory},
            environment=outcome.environment,
        )
        return runs.get(run.id)

    return carry_out


def drawn(seed=11):
    shapes = {"q": (B, H, N, D), "k": (B, KV, M, D), "v": (B, KV, M, D)}
    return {
        name: {"seed": seed, "shape": list(shape), "distribution": "normal"} for name, shape in shapes.items()
    }


def flip(client, run, name, status=302, key=""):
    response = client.post("/en/lab/compare/flip/", {"run": run.id, "flip": name, "key": key})
    assert response.status_code == status, response.content.decode()
    return response


def flipped(client, run, name):
    """(the new run, the address of the comparison)"""
    address = flip(client, run, name)["Location"]
    new = re.search(r"runs=(\w+)(?:%2C|,)(\w+)", address)
    assert new[1] == run.id
    return runs.get(new[2]), address


def page(client, address):
    response = client.get(address)
    assert response.status_code == 200
    return html.unescape(response.content.decode())


def text(markup):
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", markup))


def counts(shown):
    """The cells of each matrix that the page says have changed."""
    table = re.search(r'<table class="table counts">.*?</table>', shown, re.DOTALL)[0]
    rows = re.findall(r"<tbody>|<tr>(.*?)</tr>", table, re.DOTALL)
    found = [re.search(r">([\d,]+) of ([\d,]+)<", row) for row in rows if " of " in row]
    return dict(
        zip(
            ("scores", "masked_scores", "weights", "out"),
            ([int(x) for x in m.groups()] for m in found),
            strict=True,
        )
    )


# --- Attention once more, by its equations alone --------------------------------------------------


def turned(x, positions, style, theta=10_000.0):
    """RoPE of x [len, d], written out pair by pair."""
    d, out = x.shape[1], x.copy()
    for p in range(d // 2):
        a, b = (p, p + d // 2) if style == "half" else (2 * p, 2 * p + 1)
        angle = positions * theta ** (-2 * p / d)
        out[:, a] = x[:, a] * np.cos(angle) - x[:, b] * np.sin(angle)
        out[:, b] = x[:, a] * np.sin(angle) + x[:, b] * np.cos(angle)
    return out


def plain(body, head, sent=None, tiled=False):
    """The four matrices of one head, of a body of the contract; no code of ours but what draws the inputs."""
    attention, dtype = body.get("attention", {}), body.get("dtype", "float32")
    q, k, v = (
        round_to_dtype(
            (sent or {}).get(name, generate(name, 11, tuple(drawn()[name]["shape"]), "normal", "float64")),
            dtype,
        ).astype(np.float64)
        for name in "qkv"
    )
    kv = head % KV if tiled else head // (H // KV)
    q, k, v = q[0, head], k[0, kv], v[0, kv]
    m, n = len(k), len(q)
    away = 0 if attention.get("causal_alignment") == "top_left" else m - n
    at_q, at_k = np.arange(n) + away, np.arange(m)
    if rope := attention.get("rope"):
        q, k = turned(q, at_q, rope["style"]), turned(k, at_k, rope["style"])
    scale = attention.get("scale")
    scores = q @ k.T * (1 / math.sqrt(D) if scale is None else scale)
    distance = at_k[None] - at_q[:, None]
    cap = attention.get("softcap", 0)
    masked = cap * np.tanh(scores / cap) if cap else scores.copy()
    slopes = attention.get("alibi_slopes")
    if slopes is not None:
        masked = masked + (2.0 ** (-8 * (head + 1) / H) if slopes == "auto" else slopes[head]) * distance
    left, right = attention.get("window", (None, None))
    allowed = np.ones((n, m), bool)
    if attention.get("is_causal"):
        allowed &= distance <= 0
    if left is not None:
        allowed &= distance >= -left
    if right is not None:
        allowed &= distance <= right
    if "mask" in body:
        allowed &= body["mask"]
    if "kv_len" in body:
        allowed &= at_k[None] < body["kv_len"]
    masked[~allowed] = -np.inf
    sink = attention["sinks"][head] if attention.get("sinks") else -np.inf
    exponentials = np.exp(masked)
    total = exponentials.sum(1, keepdims=True) + np.exp(sink)
    weights = np.divide(exponentials, total, out=np.zeros_like(masked), where=total > 0)
    return {"scores": scores, "masked_scores": masked, "weights": weights, "out": weights @ v}


def expected(first, second):
    found = {}
    for name in first:
        a, b = first[name], second[name]
        scale = np.maximum(*(np.where(np.isfinite(x), abs(x), 0).max(1, keepdims=True) for x in (a, b)))
        with np.errstate(invalid="ignore"):
            same = (a == b) | (abs(a - b) <= 1e-11 * scale)
        found[name] = [int(np.count_nonzero(~same)), a.size]
    return found


EVERYTHING = {
    "is_causal": True,
    "rope": {"style": "half"},
    "window": [4, None],
    "softcap": 3.0,
    "alibi_slopes": "auto",
    "sinks": [0.5, -1.0, 0.0, 1.0],
}
CAUSAL = {"is_causal": True}
BIGBIRD = {"type": "bigbird", "window": 3, "global": 1, "random": 1, "seed": 0, "block": 1}
FLIPS = [
    # item 9 of what readers ask for
    (CAUSAL, "causal_alignment.top_left", {"causal_alignment": "top_left"},
     "query i stands at position i + 3"),
    ({**CAUSAL, "causal_alignment": "top_left"}, "causal_alignment.bottom_right",
     {"causal_alignment": "bottom_right"}, "gains the 3 keys"),
    (EVERYTHING, "causal_alignment.top_left", {"causal_alignment": "top_left"}, "loses the 3 keys"),
    ({"rope": {"style": "half"}}, "rope_pairing.interleaved", {"rope": {"style": "interleaved"}},
     "i with i + 2"),
    (EVERYTHING, "rope_pairing.interleaved", {"rope": {"style": "interleaved"}}, "same position"),
    (CAUSAL, "padding.mask", {"is_causal": False}, "the last 2 of 8"),
    # and the others
    (CAUSAL, "causal.off", {"is_causal": False}, "sees the keys after its own position"),
    ({}, "causal.on", {"is_causal": True}, "of 40 pairs"),
    (EVERYTHING, "rope.off", {"rope": None}, "no longer depends on how far apart"),
    (EVERYTHING, "window.left_more", {"window": [5, None]},
     "the key 5 positions before it comes into view"),
    (EVERYTHING, "window.left_less", {"window": [3, None]},
     "the key 4 positions before it goes out of view"),
    ({"window": [2, 1]}, "window.right_more", {"window": [2, 2]},
     "the key 2 positions after it comes into view"),
    ({"window": [2, 1]}, "window.right_less", {"window": [2, 0]},
     "the key 1 positions after it goes out of view"),
    ({}, "scale.none", {"scale": 1.0}, "by the factor 2.00"),
    ({"scale": 0.25}, "scale.root", {"scale": None}, "by the factor 2.00"),
    (EVERYTHING, "softcap.off", {"softcap": 0.0}, "with c = 3.00"),
    ({}, "softcap.on", {"softcap": 5.0}, "with c = 5.00"),
    (EVERYTHING, "sink.off", {"sinks": None}, "the row sums to 1"),
    ({}, "sink.on", {"sinks": [0.0] * H}, "sums to less than 1"),
    ({}, "alibi.on", {"alibi_slopes": "auto"}, "the first slope is 0.250"),
    (EVERYTHING, "alibi.off", {"alibi_slopes": None}, "distance no longer counts"),
    (EVERYTHING, "alibi.steeper", {"alibi_slopes": [2 * 2.0**-e for e in (2, 4, 6, 8)]},
     "2 times as steep"),
    (EVERYTHING, "alibi.sign", {"alibi_slopes": [-(2.0**-e) for e in (2, 4, 6, 8)]}, "a popular mistake"),
    (EVERYTHING, "pattern.full", {"window": [None, None]}, "every query sees all keys"),
    (CAUSAL, "pattern.window", {"window": [1, 0]}, "1 keys before and 0 after"),
]  # fmt: skip


@pytest.mark.parametrize("head", [0, 3])
@pytest.mark.parametrize("case", FLIPS, ids=[f"{each[1]}-{i}" for i, each in enumerate(FLIPS)])
def test_a_flip_shows_the_cells_that_change_and_why(client, submit, carry_out, case, head):
    attention, name, changes, because = case
    run = carry_out(submit(engine="reference", inputs=drawn(), attention=attention, returns=("out",)))
    new, address = flipped(client, run, name)
    carry_out(new)
    shown = page(client, f"{address}&head={head}")
    before, after = {"attention": attention}, {"attention": {**attention, **changes}}
    if name == "padding.mask":
        after["mask"] = np.arange(M)[None] < 6
    found = expected(plain(before, head), plain(after, head))
    assert counts(shown) == found
    assert found["weights"][0], "a flip that changes nothing teaches nothing"
    assert because in text(shown)
    assert "The inputs are the same" in shown or name == "padding.mask"


@pytest.mark.parametrize("head", range(H))
def test_interleaved_heads_change_those_that_read_another_key_head(client, submit, carry_out, head):
    run = carry_out(submit(engine="reference", inputs=drawn(), attention=CAUSAL, returns=("out",)))
    new, address = flipped(client, run, "heads.interleaved")
    shown = page(client, f"{(carry_out(new), address)[1]}&head={head}")
    body = {"attention": CAUSAL}
    assert counts(shown) == expected(plain(body, head), plain(body, head, tiled=True))
    assert bool(counts(shown)["weights"][0]) == (head in (1, 2))
    assert "differ for query heads 1, 2," in text(shown)


def bigbird_sees(row, column):
    """BIGBIRD pair by pair, blocks of one token, as the documentation of the pattern has it."""

    def near_or_global(column):
        return abs(column - row) <= 1 or column < 1 or row < 1

    if near_or_global(column):
        return True
    tag = int.from_bytes(hashlib.sha256(b"attention-lab/v1/bigbird").digest()[:8], "little")
    key = np.array([BIGBIRD["seed"], tag], np.uint64)
    words = np.random.Philox(key=key, counter=np.array([0, row, 0, 0], np.uint64)).random_raw(M)
    return column == min((each for each in range(M) if not near_or_global(each)), key=words.__getitem__)


def test_bigbird_masks_what_its_blocks_leave_out(client, submit, carry_out):
    run = carry_out(submit(engine="reference", inputs=drawn(), returns=("out",)))
    new, address = flipped(client, run, "pattern.bigbird")
    spec = RunSpec.from_dict(carry_out(new).spec)
    assert spec.attention.pattern == BIGBIRD
    seen = np.array([[bigbird_sees(i + M - N, j) for j in range(M)] for i in range(N)])
    assert 0 < np.count_nonzero(~seen) < seen.size
    found = expected(plain({}, 0), plain({"mask": seen}, 0))
    shown = page(client, address)
    assert counts(shown) == found
    assert f"A alone sees {np.count_nonzero(~seen)} and B alone sees 0" in text(shown)


def test_gradients_of_pages_are_no_rows_of_tokens_to_compare(client, submit, carry_out):
    def numbers(*shape):
        return np.random.default_rng(3).normal(size=shape).round(2).tolist()

    inputs = {"q": numbers(1, 2, 3, 4), "k": numbers(3, 2, 2, 4), "v": numbers(3, 2, 2, 4)}
    inputs |= {"block_table": [[2, 0]], "dout": numbers(1, 2, 3, 4)}
    run = carry_out(submit(engine="eager", inputs=inputs, returns=("out", "dq", "dk")))
    new, address = flipped(client, run, "scale.none")
    shown = page(client, (carry_out(new), address)[1])
    returned = re.search(r'id="returned-title".*?</table>', shown, re.DOTALL)[0]
    assert "Gradient of q" in returned
    assert "Gradient of k" not in returned


@pytest.mark.parametrize("is_causal", [False, True])
def test_a_padding_mask_that_is_taken_for_a_causal_one(client, submit, carry_out, is_causal):
    inputs = {**drawn(), "kv_lens": [6]}
    attention = {"is_causal": is_causal}
    run = carry_out(submit(engine="reference", inputs=inputs, attention=attention, returns=("out",)))
    new, address = flipped(client, run, "padding.seen" if is_causal else "padding.causal")
    shown = page(client, (carry_out(new), address)[1])
    before = plain({"attention": attention, "kv_len": 6}, 0)
    if is_causal:  # its last query stands at the last real key
        distance = np.arange(M)[None] - (np.arange(N) + 6 - N)[:, None]
        before = plain({"kv_len": 6, "mask": distance <= 0}, 0)
    after = plain({"attention": CAUSAL}, 0)
    found = expected(before, after)
    assert counts(shown)["weights"] == found["weights"]
    assert counts(shown)["masked_scores"] == found["masked_scores"]
    assert counts(shown)["out"] == found["out"]
    assert "the padding" in text(shown)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_number_format_moves_every_cell_and_masks_none(client, submit, carry_out, dtype):
    run = carry_out(submit(engine="eager", inputs=drawn(), attention=CAUSAL, returns=("out",)))
    new, address = flipped(client, run, f"dtype.{dtype}")
    shown = page(client, (carry_out(new), address)[1])
    before, after = ({"attention": CAUSAL, "dtype": each} for each in ("float32", dtype))
    assert counts(shown) == expected(plain(before, 0), plain(after, 0))
    said = text(shown)
    assert "Both see the same pairs" in said
    assert "the same as sent, rounded to" in said
    assert "Where the error comes from" in said
    assert re.search(r"(A|B) is off most at query \d, dimension \d, by", said)
    assert all(part in said for part in ("rounding of q and k", "rounding of v"))


def test_the_run_that_is_off_most_says_where_and_why(client, submit, carry_out):
    """Values near 300 in one dimension: float16 has a number every 0.25 there."""
    rng = np.random.default_rng(8)
    sent = {name: rng.normal(size=(1, 1, 6, 8)) for name in "qkv"}
    sent["v"][..., 3] = 300 + 10 * rng.normal(size=6)
    run = carry_out(submit(engine="eager", dtype="float16", inputs={n: x.tolist() for n, x in sent.items()}))
    here = page(client, f"/en/lab/runs/{run.id}/")
    button = re.search(r'<button[^>]*form="flips"[^>]*value="([\w.]+)"', here)
    assert button[1] == "dtype.float32"
    assert "q, k and v were rounded to float16 first, which is not counted here" in text(here)
    assert 'id="flips"' in here
    new, address = flipped(client, run, button[1])
    said = text(page(client, (carry_out(new), address)[1]))
    errors = artifacts.load_result(run, "out").astype(np.float64) - exact(sent)
    row, column = np.unravel_index(np.abs(errors[0, 0]).argmax(), errors.shape[2:])
    assert column == 3
    found = re.search(
        r"A is off most at query (\d+), dimension (\d+), by (\S+): (.*?)\. Where the error comes from", said
    )
    assert (int(found[1]), int(found[2])) == (row, column)
    assert number(found[3]) == pytest.approx(errors[0, 0, row, column], rel=0.05)
    parts = [number(part.split()[-1]) for part in found[4].split(", ")]
    assert len(parts) == 4
    assert sum(parts) == pytest.approx(errors[0, 0, row, column], rel=0.1)
    assert [abs(part) for part in parts] == sorted(map(abs, parts), reverse=True)
    assert re.search(r"Values reach 3\d\d in this dimension, \d+ times as much as in a typical one", said)
    assert "numbers of float16 are 0.25 apart, and rounding moves each by up to 0.125." in said
    assert said.count("Values reach") == 1, "once, of all the cells that are listed"
    assert "can be beyond" in said


def exact(sent):
    """Attention by its equations alone, [batch, heads, n, e]."""
    scores = sent["q"] @ sent["k"].swapaxes(-1, -2) / math.sqrt(sent["q"].shape[-1])
    weights = np.exp(scores)
    return weights / weights.sum(axis=-1, keepdims=True) @ sent["v"]


def number(shown):
    return float(shown.replace("−", "-"))


@pytest.mark.parametrize(("engine", "dtype"), [("eager", "float32"), ("linear", "float16")])
def test_float32_is_not_offered_where_it_would_tell_nothing(client, submit, carry_out, engine, dtype):
    run = carry_out(submit(engine=engine, dtype=dtype, returns=("out",)))
    assert 'form="flips"' not in page(client, f"/en/lab/runs/{run.id}/")


def test_another_engine_of_the_same_attention_changes_nothing_in_float64(client, submit, carry_out):
    run = carry_out(submit(engine="eager", inputs=drawn(), attention=CAUSAL, returns=("out", "lse")))
    new, address = flipped(client, run, "engine.reference")
    shown = page(client, (carry_out(new), address)[1])
    assert all(changed == 0 for changed, _cells in counts(shown).values())
    assert "in another order of sums" in text(shown)
    row = re.search(r'<th scope="row">Output</th>.*?</tr>', shown, re.DOTALL)[0]
    assert "0 of 20" in text(row), "beyond rounding"


@pytest.mark.parametrize("other", ["linear", "performer", "lsh", "cache"])
def test_engines_that_have_no_scores_are_compared_by_their_outputs(client, submit, carry_out, other):
    shape = {"seed": 5, "shape": [1, 2, 6, 8], "distribution": "normal"}
    run = carry_out(submit(engine="eager", inputs=dict.fromkeys("qkv", shape), returns=("out",)))
    new, address = flipped(client, run, f"engine.{other}")
    new = carry_out(new)
    shown = page(client, f"{address}&head=1")
    both = [artifacts.load_result(each, "out")[0, 1].astype(np.float64) for each in (run, new)]
    assert "so outputs are compared" in text(shown)
    assert 'data-map="returned.out"' in shown
    assert 'data-map="weights"' not in shown
    row = re.search(r'<th scope="row">Output</th>(.*?)</tr>', shown, re.DOTALL)[1]
    largest = float(re.search(r">([\d.]+)<", row)[1])
    assert largest == pytest.approx(abs(both[1] - both[0]).max(), rel=5e-3)


# --- What is offered, and to whom -----------------------------------------------------------------


def test_the_page_of_a_run_offers_what_applies_and_says_what_would_tell_nothing(
    client, submit, finish, seeded
):
    run = finish(submit(inputs=seeded(1, 1, 6, 4), attention=CAUSAL))
    shown = page(client, f"/en/lab/runs/{run.id}/")
    offered = re.findall(r'name="flip" value="([\w.]+)"', shown[shown.index('id="change"') :])
    assert offered == [each.name for each in flips.flips(RunSpec.from_dict(run.spec)) if not each.idle]
    assert "causal_alignment.top_left" not in offered
    assert "There are as many queries as keys (6), so that both alignments are the same mask" in text(shown)
    assert {"causal.off", "scale.none", "dtype.float16", "engine.eager"} <= set(offered)
    assert "rope_pairing.half" not in offered


def test_every_flip_has_words():
    everything = {**EVERYTHING, "pattern": None}
    for attention in ({}, CAUSAL, everything, {"scale": 2.0, "window": [1, 1]}):
        from kernels.spec import parse_run

        spec = parse_run({"engine": "reference", "inputs": drawn(), "attention": attention}).spec
        for each in flips.flips(spec):
            assert words.title(each)
            assert words.idle(each, spec) if each.idle else words.why(words.Change(each, spec))
            assert each.kind in words.APART or each.is_numeric


def test_no_flip_is_made_that_does_not_apply(client, submit, finish):
    run = finish(submit())
    for name in ("rope_pairing.half", "causal_alignment.top_left", "nonsense", ""):
        assert "does not apply" in flip(client, run, name, 422).content.decode()
    assert Run.objects.count() == 1
    assert client.get("/en/lab/compare/flip/").status_code == 405
    assert Client(enforce_csrf_checks=True).post("/en/lab/compare/flip/").status_code == 403


def test_a_flip_takes_the_numbers_that_were_typed(client, submit, finish):
    run = finish(submit())
    new, _address = flipped(client, run, "causal.on")
    assert new.spec["attention"]["is_causal"] is True
    assert {given["source"] for given in new.spec["inputs"].values()} == {"inline"}
    sent = [artifacts.load_submitted(each) for each in (run, new)]
    assert all(np.array_equal(sent[0][name], sent[1][name]) for name in "qkv")
    assert new.spec["return"] == run.spec["return"]


def test_a_flip_takes_what_was_uploaded_from_the_run_itself(client, submit, finish):
    from kernels.spec import parse_run

    array = (
        np.linspace(-1, 1, 2 * 40 * 64).reshape(1, 2, 40, 64).astype(np.float32)
    )  # more than a text box holds
    body = {"engine": "flash", "inputs": {name: {"upload": "a", "name": name} for name in "qkv"}}
    parsed = parse_run(body, load_upload=lambda _id, _name: array)
    run = finish(runs.submit(parsed, owner="", caller="somebody", budget_seconds=30))
    new, _address = flipped(client, run, "causal.on")
    assert np.array_equal(artifacts.load_submitted(new)["k"], array)
    assert new.spec["inputs"]["k"]["source"] == "upload"


def test_inputs_that_are_gone_are_said_to_be(client, submit, finish, monkeypatch):
    monkeypatch.setattr(artifacts, "INLINE_BYTES", 0)
    run = finish(submit())
    artifacts.delete(run.id)
    assert "The inputs of this run are gone" in flip(client, run, "causal.on", 409).content.decode()


def test_a_flip_of_somebody_elses_run_needs_the_key_and_is_nobodys(client, submit, finish):
    run = finish(submit(owner="alice"))
    flip(client, run, "causal.on", 404)
    flip(client, run, "causal.on", 404, key="wrong")
    response = flip(client, run, "causal.on", key=share_key(run))
    assert f"key.{run.id}={share_key(run)}" in response["Location"]
    new = Run.objects.exclude(pk=run.id).get()
    assert new.owner == ""
    assert client.get(response["Location"]).status_code == 200
    assert client.get(f"/en/lab/compare/?runs={run.id},{new.id}").status_code == 404
    shown = page(client, f"/en/lab/runs/{run.id}/?key={share_key(run)}")
    assert f'name="key" value="{share_key(run)}"' in shown


def test_a_quota_that_is_used_up_is_said_and_nothing_is_made(client, submit, finish, monkeypatch):
    run = finish(submit())

    def used_up(*_args, **_options):
        raise quotas.QuotaExceeded(quotas.computing(anonymous=True), 9)

    monkeypatch.setattr(runs, "submit", used_up)
    response = flip(client, run, "causal.on", 429)
    assert response["Retry-After"] == "9"
    assert "Back to the run" in response.content.decode()


def test_what_a_flip_made_is_remembered_by_the_browser(client, submit, finish):
    from lab.sharing import history

    response = flip(client, finish(submit()), "causal.on")
    assert history.COOKIE in response.cookies
