"""From a run back to the form: every accepted body goes through it and comes out as it was."""

import json
from dataclasses import fields

import numpy as np
import pytest
from django.test import Client

from kernels import registry
from kernels.registry import ENGINES
from kernels.spec import RunSpec, parse_run
from kernels.spec.model import Attention, Options, Rope, Timing
from kernels.spec.patterns import PATTERNS
from kernels.spec.results import RESULTS
from kernels.spec.rope import ROPE_SCALINGS
from kernels.spec.run import BODY_FIELDS, INPUTS

pytestmark = pytest.mark.django_db


def seed(*shape, seed=7, distribution="normal"):
    return {"seed": seed, "shape": list(shape), "distribution": distribution}


def plain(heads=2, length=8, dim=4, **more):
    return {name: seed(1, heads, length, dim) for name in "qkv"} | more


def attention(**given):
    return {"engine": "reference", "inputs": plain(), "attention": given}


THREE = [[1, 0], [0, 1], [1, 1]]
LATENTS = {
    "q_nope": seed(1, 4, 6, 8), "q_rope": seed(1, 4, 6, 4), "c_kv": seed(1, 9, 16), "k_rope": seed(1, 9, 4),
    "w_uk": seed(4, 16, 8), "w_uv": seed(4, 16, 5),
}  # fmt: skip
SCAN = {
    "x": seed(2, 3, 5, 4), "b": seed(2, 1, 5, 6), "c": seed(2, 1, 5, 6),
    "delta": np.full((2, 3, 5, 1), 0.25).tolist(), "a": [[[-1.0]], [[-2.0]], [[-0.5]]],
}  # fmt: skip
SINKS = {"q": seed(4, 1, 8), "k": seed(2, 40, 8), "v": seed(2, 40, 8)}
PATTERN_EXAMPLES = {
    "prefix": {"len": 3},
    "document": {"ids": [0, 0, 0, 1, 1, 1, 2, 2]},
    "chunked": {"size": 3},
    "dilated": {"window": 1, "stride": 2},
    "longformer": {"window": 2, "global": [0, 5]},
    "bigbird": {"window": 1, "global": 1, "random": 1, "seed": 5, "block": 2},
    "block": {"size": 4, "layout": [[1, 0], [1, 1]]},
    "neighborhood": {"width": 4, "kernel_size": 1, "dilation": 1},
}
LENGTHS = {"original_max_position_embeddings": 16, "max_position_embeddings": 64}
SCALING_EXAMPLES = {
    "linear": {"factor": 2.5},
    "ntk": {"factor": 2},
    "dynamic": {"factor": 4.0, "max_position_embeddings": 64},  # and not the other
    "dynamic again": {"factor": 4.0, **LENGTHS},
    "yarn": {"factor": 4.0, **LENGTHS, "attention_factor": 1.1, "beta_fast": 16.0, "beta_slow": 2.0,
             "mscale": 0.7, "mscale_all_dim": 0.7, "truncate": False},
    "llama3": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
               "original_max_position_embeddings": 8192},
    "longrope": {"short_factor": [1.0, 2.0], "long_factor": [3.0, 4.5], "factor": 4.0,
                 "attention_factor": 1.2, **LENGTHS},
}  # fmt: skip

BODIES = {
    "worked": {"engine": "flash", "inputs": dict.fromkeys("qkv", THREE)},
    "everything": {
        "engine": "flash", "device": "cpu", "dtype": "float16", "inputs": plain(kv_lens=[5], q_lens=[7]),
        "return": ["out", "lse", "scores", "softcapped_scores", "masked_scores", "weights", "present_key"],
        "attention": {"scale": 0.25, "is_causal": True, "causal_alignment": "top_left", "window": [3, 1],
                      "softcap": 2.5, "alibi_slopes": "auto", "sinks": [0.5, "-inf"]},
        "options": {"block_m": 16, "block_n": 32, "num_warps": 4, "num_stages": 3},
        "timing": {"warmup": 0, "iters": 2},
    },
    "one side of a window": attention(window=[None, 2]),
    "positions": attention(q_positions=3, kv_positions=[0, 1, 2, 3, 4, 5, 6, 9]),
    "positions by row": attention(q_positions=[[7, 6, 5, 4, 3, 2, 1, 0]], is_causal=True),
    "slopes": attention(alibi_slopes=[0.5, 0.25]),
    "slopes by row": attention(alibi_slopes=[[0.5, 0.25]]),
    "negative scale": attention(scale=-1e-3),
    "rope": attention(
        rope={"style": "interleaved", "theta": 500000.0, "dim": 2, "dim_offset": 2, "positions": 5}),
    "rope positions": attention(rope={"style": "half", "positions": [3, 1, 2, 0, 4, 5, 6, 7]}),
    "ranks 2": {"engine": "flash", "inputs": {name: seed(6, 4) for name in "qkv"}},
    "ranks 3": {"engine": "flash", "inputs": {"q": seed(4, 6, 8), "k": seed(2, 9, 8), "v": seed(2, 9, 3)}},
    "packed": {"engine": "flash", "inputs": {name: seed(2, 6, 8) for name in "qkv"},
               "attention": {"num_heads": 4}},
    "packed groups": {"engine": "flash", "attention": {"num_heads": 4, "num_kv_heads": 2},
                      "inputs": {"q": seed(2, 6, 16), "k": seed(2, 6, 8), "v": seed(2, 6, 4)}},
    "packed numbers": {"engine": "flash", "attention": {"num_heads": 2},
                       "inputs": {name: [[[1, 2, 3, 4], [5, 6, 7, 8]]] for name in "qkv"}},
    "two seeds": {"engine": "flash", "inputs": plain(k=seed(1, 2, 8, 4, seed=8))},
    "two distributions": {"engine": "flash", "inputs": plain(k=seed(1, 2, 8, 4, distribution="peaked"))},
    "seeds and numbers": {"engine": "flash", "inputs": {"q": THREE, "k": seed(5, 2), "v": seed(5, 2)}},
    "no keys": {"engine": "flash", "inputs": {"q": seed(3, 2), "k": seed(0, 2), "v": seed(0, 2)}},
    "no rows": {"engine": "flash", "inputs": {
        "q": THREE, **{name: {"b64": "", "dtype": "float32", "shape": [0, 2]} for name in "kv"}}},
    "boolean mask": {"engine": "reference", "inputs": {
        **dict.fromkeys("qkv", THREE),
        "attn_mask": [[True, False, False], [True, True, False], [False] * 3]}},
    "additive mask": {"engine": "reference", "inputs": {
        **dict.fromkeys("qkv", THREE), "attn_mask": [[0.5, "-inf", 0], [0, 0, "-inf"], [0, 0, 0]]}},
    "drawn mask": {"engine": "reference", "inputs": plain(attn_mask=seed(8, 8))},
    "drawn mask of heads": {"engine": "reference", "inputs": plain(attn_mask=seed(1, 2, 8, 8, seed=3))},
    "past": {"engine": "decode", "return": ["out", "present_key", "present_value"],
             "inputs": {"q": seed(2, 1, 4), "k": seed(1, 1, 4), "v": seed(1, 1, 4),
                        "past_key": seed(1, 12, 4), "past_value": seed(1, 12, 4)}},
    "past of another seed": {"engine": "flash", "inputs": plain(
        past_key=seed(1, 2, 3, 4, seed=9), past_value=seed(1, 2, 3, 4, seed=9))},
    "gradients": {"engine": "flash", "inputs": plain(dout=seed(1, 2, 8, 4)),
                  "return": ["out", "dq", "dk", "dv"]},
    "packed gradients": {"engine": "flash", "return": ["dq"], "attention": {"num_heads": 2},
                         "inputs": {name: seed(1, 4, 6) for name in ("q", "k", "v", "dout")}},
    "traced": {"engine": "flash", "inputs": plain(), "return": ["out", "trace_max", "trace_sum", "trace_out",
                                                                "trace_rescale", "trace_tiles"]},
    "split": {"engine": "decode", "inputs": SINKS, "attention": {"sinks": [0.0, 1.0, -2.5, "-inf"]},
              "options": {"num_splits": 4, "block_n": 16, "kv_dtype": "int8", "kv_scale": "per_tensor"}},
    "paged": {"engine": "paged", "options": {"page_size": 16, "kv_dtype": "fp8_e4m3"}, "inputs": SINKS},
    "block table": {"engine": "paged", "inputs": {
        "q": seed(1, 2, 1, 4), "k": seed(5, 2, 2, 4), "v": seed(5, 2, 2, 4), "block_table": [[4, 0, 2]],
        "kv_lens": [5]}},
    "latents": {"engine": "mla", "inputs": LATENTS, "options": {"form": "absorbed"}},
    "latents elsewhere": {"engine": "reference", "inputs": LATENTS, "attention": {"rope": {"style": "half"}}},
    "latents, rank 2": {"engine": "mla", "inputs": {
        "q_nope": seed(6, 8), "q_rope": seed(6, 4), "c_kv": seed(9, 16), "k_rope": seed(9, 4),
        "w_uk": seed(16, 8), "w_uv": seed(16, 5)}},
    "latents and a mask": {"engine": "mla", "inputs": LATENTS | {"attn_mask": seed(6, 9)}},
    "scan": {"engine": "scan", "inputs": SCAN, "return": ["out", "state"]},
    "scan with all": {"engine": "scan", "options": {"form": "recurrent"}, "inputs": SCAN | {
        "d_skip": [[0.5, 1, 0, 2]] * 3, "initial_state": seed(2, 3, 4, 6)}},
    "gated": {"engine": "linear", "attention": {"is_causal": True}, "options": {"normalise": False},
              "inputs": plain(
        log_decay=np.full((1, 2, 8), -0.125).tolist(), beta=[[[0.5] * 8, [0.25] * 8]],
        initial_state=seed(1, 2, 4, 4))},
    "normalised": {"engine": "linear", "return": ["out", "state", "normaliser"], "inputs": plain(
        initial_state=seed(1, 2, 4, 4), initial_normaliser=seed(1, 2, 4))},
    "performer": {"engine": "performer", "inputs": plain(),
                  "options": {"num_features": 8, "features_seed": 3, "orthogonal": False, "trials": 6}},
    "additive": {"engine": "scoring", "return": ["out", "centres", "kept_weight"], "inputs": plain(
        w_q=seed(1, 16, 4), w_k=seed(1, 16, 4), v_a=seed(1, 16), w_p=seed(2, 5, 4, seed=2), v_p=seed(2, 5)),
        "options": {"span": "predictive", "half_width": 2.5}},
    "cosine": {"engine": "scoring", "inputs": plain(), "options": {"score": "cosine", "beta": 2.5}},
    "chunks": {"engine": "linear", "inputs": plain(),
               "options": {"feature_map": "identity", "chunk_size": 16, "normalise": False}},
    "heavy hitters": {"engine": "cache", "inputs": plain(),
                      "options": {"policy": "heavy_hitters", "budget": 5, "recent": 2}},
    "general": {"engine": "scoring", "options": {"score": "general"}, "inputs": {
        **dict.fromkeys("qkv", THREE), "w_general": [[1, 0.5], [0, 1]]}},
    "concat": {"engine": "scoring", "options": {"score": "concat"}, "inputs": plain(
        w_concat=seed(1, 16, 8), v_a=seed(1, 16))},
    "forgetful": {"engine": "cache", "inputs": plain(), "return": ["out", "held", "row_error"],
                  "attention": {"rope": {"style": "half"}},
                  "options": {"policy": "streaming", "budget": 4, "sinks": 1, "cache_positions": "text"}},
    "hashed": {"engine": "lsh", "inputs": plain(), "return": ["out", "recall", "q_buckets", "k_buckets"],
               "options": {"rounds": 2, "buckets": 4, "hash_seed": 1, "top": 2}},
    "hard": {"engine": "hard", "inputs": plain(dout=seed(1, 2, 8, 4)),
             "return": ["out", "chosen", "dscores", "dscores_estimate", "dscores_variance"],
             "options": {"draws": 4, "draws_seed": 2, "baseline": "optimal"}},
    **{f"pattern {kind}": attention(pattern={"type": kind, **given})
       for kind, given in PATTERN_EXAMPLES.items()},
    **{f"scaling {kind}": attention(rope={"style": "half", "scaling": {"type": kind.split()[0], **given}})
       for kind, given in SCALING_EXAMPLES.items()},
}  # fmt: skip


def same(one, other):
    """Whether two bodies ask for the same: the spec, and every number that is sent."""
    a, b = parse_run(one), parse_run(other)

    def described(spec):
        spec = spec.to_dict()
        spec["return"] = sorted(spec["return"])  # a page has them in an order of its own
        for given in spec["inputs"].values():
            given["dtype"] = "bool" if given["dtype"] == "bool" else ""  # typed numbers are all alike
        return spec

    assert described(a.spec) == described(b.spec)
    assert a.arrays.keys() == b.arrays.keys()
    for name, array in a.arrays.items():
        assert np.array_equal(array, b.arrays[name], equal_nan=array.dtype.kind == "f"), name
    return True


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_a_run_comes_back_as_the_body_that_it_was(submit, body):
    from lab.form import fork
    from lab.form.forms import LabForm

    run = submit(**{**body, "returns": body.get("return", ["out"]), "return": body.get("return", ["out"])})
    state, notes = fork.state_of(run)
    assert notes == []
    form = LabForm.from_link(state)
    again = json.loads(json.dumps(form.body()))
    assert not form.errors
    assert same(body, again)
    # And what the page sends, which names every field that it shows, is that again.
    sent = page_state(Client().get(f"/en/lab/?from={run.id}").content.decode())
    assert same(body, LabForm(sent).body())
    if form.address():
        link = Client().get(form.address()).wsgi_request.GET
        assert same(body, LabForm.from_link(link).body())


def page_state(page):
    """What a browser would send of the form on a page."""
    from html.parser import HTMLParser

    from django.http import QueryDict

    state = QueryDict(mutable=True)

    class Reader(HTMLParser):
        area = select = None
        inside = False

        def handle_starttag(self, tag, attrs):
            given = dict(attrs)
            self.inside |= given.get("id") == "lab-form"
            if not self.inside:
                return
            if tag == "input" and given.get("type") in ("checkbox", "radio"):
                if "checked" in given:
                    state.appendlist(given["name"], given.get("value", "on"))
            elif tag == "input" and given.get("type") != "file":
                state.appendlist(given["name"], given.get("value", ""))
            elif tag == "textarea":
                self.area, self.text = given["name"], ""
            elif tag == "select":
                self.select, self.first, self.chosen = given["name"], None, None
            elif tag == "option" and self.select:
                self.first = given["value"] if self.first is None else self.first
                self.chosen = given["value"] if "selected" in given else self.chosen

        def handle_data(self, data):
            if self.area:
                self.text += data

        def handle_endtag(self, tag):
            if tag == "textarea" and self.area:
                state.appendlist(self.area, self.text.removeprefix("\n"))
                self.area = None
            if tag == "select" and self.select:
                state.appendlist(self.select, self.first if self.chosen is None else self.chosen)
                self.select = None
            if tag == "form":
                self.inside = False

    Reader().feed(page)
    return state


def test_arrays_that_are_too_large_for_boxes_are_said_to_be(submit):
    from lab.form import fork

    big = np.zeros((100, 64)).tolist()
    state, notes = fork.state_of(submit(inputs=dict.fromkeys("qkv", big)))
    assert state["source"] == "upload"
    assert "inputs.npz" in notes[0]


# --- Nothing of the spec is missing -----------------------------------------------------------------

# Fields of a request that have no control, and why. None has none today.
WITHOUT_A_CONTROL: dict[str, str] = {}


def every_pointer():
    """Where a request may say something, by the spec and the registry."""
    yield from (
        f"/{name}" for name in BODY_FIELDS if name not in ("inputs", "attention", "options", "timing")
    )
    yield from (f"/inputs/{name}" for name in INPUTS)
    yield from (
        f"/attention/{field.name}" for field in fields(Attention) if field.name not in ("rope", "pattern")
    )
    yield from (f"/attention/rope/{field.name}" for field in fields(Rope) if field.name != "scaling")
    for pointer, kinds in (("/attention/pattern", PATTERNS), ("/attention/rope/scaling", ROPE_SCALINGS)):
        yield f"{pointer}/type"
        yield from (f"{pointer}/{kind}/{name}" for kind, known in kinds.items() for name in known)
    yield from (f"/timing/{field.name}" for field in fields(Timing))
    yield from (f"/options/{field.name}" for field in fields(Options) if field.name != "more")
    yield from (f"/options/{name}" for name in registry.declared())
    yield from (f"/return/{name}" for name in RESULTS)


def controls():
    """Every pointer for which a form has a control, in some state of it."""
    from lab.form import offers
    from lab.form.forms import LabForm

    found = set()
    for engine in ENGINES.values():
        states = [{"source": source} for source in offers.sources(engine)]
        states += [{"pattern": kind} for kind in PATTERNS]
        states += [{"rope": "half", "rope_scaling": kind} for kind in ROPE_SCALINGS]
        if "score" in engine.options:
            states += [{"option_span": "predictive", "option_score": score} for score in
                       engine.options["score"]["enum"]]  # fmt: skip
        for state in states:
            form = LabForm.from_link({"engine": engine.name, **state})
            for setting in form.settings:
                kind = state.get("pattern") or state.get("rope_scaling")
                name = setting.name
                at = setting.pointer.removesuffix("/0").removesuffix("/1")
                if name.startswith(("pattern_", "scaling_")):
                    at = f"{at.rpartition('/')[0]}/{kind}/{at.rpartition('/')[2]}"
                found.add(at)
            found |= {f"/inputs/{name}" for name in form.arrays}
            found |= {f"/inputs/{name}" for name in "qkv" if form.is_plain and name in form.fields}
            found |= {
                f"/options/{name.removeprefix('option_')}" for name in form.fields if name[:7] == "option_"
            }
            found |= {f"/return/{value}" for value, _name in form.fields["returns"].widget.choices}
            found.add("/return")
    return found


def test_every_field_of_the_spec_has_a_control_or_a_reason():
    missing = set(every_pointer()) - controls() - set(WITHOUT_A_CONTROL)
    assert not missing, f"no control of the form, and no reason: {sorted(missing)}"


def test_the_sample_says_something_of_every_field():
    """A field that the spec grows has to come into the sample too."""
    said = set()

    def walk(pointer, value):
        said.add(pointer)
        if isinstance(value, dict) and not pointer.startswith("/inputs/"):
            for name, item in value.items():
                kind = f"/{value['type']}" if "type" in value and name != "type" else ""
                walk(f"{pointer}{kind}/{name}", item)
        if pointer == "/return":
            said.update(f"/return/{name}" for name in value)

    for body in BODIES.values():
        walk("", body)
    assert set(every_pointer()) - said == set()


def test_the_spec_is_what_the_walk_knows():
    """A part of a request that is new would be walked past."""
    assert set(RunSpec("flash", {}).to_dict()) == {
        "engine", "device", "dtype", "inputs", "attention", "return", "options", "timing",
    }  # fmt: skip


# --- Words and concepts -----------------------------------------------------------------------------


def test_every_field_has_help_and_a_concept_that_is_in_the_contents():
    from concepts.pages import book
    from lab.form import help as words
    from lab.form import offers
    from lab.form.forms import LabForm

    listed = {entry.slug for part in book("en").parts for entry in part.entries}
    used = {one.concept for one in words.WORDS.values()}
    used |= set(words.CONCEPTS_OF_INPUTS.values()) | set(words.CONCEPTS_OF_OPTIONS.values())
    used |= set(words.CONCEPTS_OF_ENGINES.values())
    assert used - {""} <= listed
    for engine in ENGINES.values():
        for source in offers.sources(engine):
            form = LabForm.from_link({"engine": engine.name, "source": source, "rope": "half"})
            silent = {name for name, field in form.fields.items() if not field.help_text}
            assert {name for name in silent if not name.startswith("in_")} <= {"causal"}


def test_a_field_links_to_its_concept_once_that_is_written(monkeypatch):
    from lab.form import help as words

    page = Client().get("/en/lab/?source=grid").content.decode()
    assert 'href="/en/concepts/by-hand/"' in page[page.index('id="lab-form"') :]

    def with_pages(**pages):
        monkeypatch.setattr(words, "current_book", lambda: type("Book", (), {"pages": pages}))
        return Client().get("/en/lab/").content.decode()

    assert "/en/concepts/rope/" not in with_pages()
    page = with_pages(rope=type("Page", (), {"title": "Turning pairs"}))
    assert 'href="/en/concepts/rope/" aria-label="More: Turning pairs">More</a>' in page
