"""Configurations to begin with: each is an ordinary link that opens without complaint, and small ones run."""

import html
import json
import re
from urllib.parse import urlsplit

import numpy as np
import pytest
from django.http import QueryDict
from django.test import Client

from kernels.execute import execute
from kernels.sizing.models import models
from kernels.spec import parse_run

pytestmark = pytest.mark.django_db


def presets():
    from lab.form.presets.examples import EXAMPLES
    from lab.form.presets.traps import TRAPS

    return {preset.name: preset for preset in (*EXAMPLES, *TRAPS)}


@pytest.fixture(scope="module")
def small():
    return presets()


@pytest.fixture
def run(small):
    """The results of a preset by its name, as a worker would compute them."""

    def run(name):
        from lab.form.forms import LabForm

        link = Client().get(small[name].address)
        body = json.loads(json.dumps(LabForm.from_link(link.wsgi_request.GET).body()))
        parsed = parse_run(body)
        return execute(parsed.spec, parsed.arrays)

    return run


def links(page):
    return [html.unescape(link) for link in re.findall(r'href="(/en/lab/\?[^"]+)"', page)]


def test_every_link_of_the_page_opens_a_form_without_a_complaint():
    """Those of models, which are many, in the form itself; the others as pages."""
    from django.conf import settings

    from lab.form.forms import LabForm
    from workers import limits

    client = Client()
    own = {preset.address for preset in presets().values()}
    found = set(links(client.get("/en/lab/presets/").content.decode()))
    assert own <= found
    assert len(found - own) > len(models()) / 2  # some models have the same layer
    for link in found:
        if link in own:
            text = client.get(link).content.decode()
            assert "It fits" in text, link
            assert 'class="error"' not in text, link
        else:
            form = LabForm.from_link(QueryDict(urlsplit(link).query))
            assert limits.admit(parse_run(form.body()).spec, settings.RUN_BUDGET_ANONYMOUS)
            assert not form.errors


def test_no_two_examples_are_the_same():
    addresses = [preset.address for preset in presets().values()]
    assert len(addresses) == len(set(addresses))


def test_the_form_leads_to_them():
    assert 'href="/en/lab/presets/"' in Client().get("/en/lab/").content.decode()


def test_every_small_one_runs_and_is_right(run, small):
    for name in small:
        found = run(name)
        assert found.numerics["within_bound"], name
        assert np.isfinite(np.asarray(found.arrays["out"])).all(), name


# What the sentences beside the links promise, from the definitions.


def test_a_masked_row_is_zero(run):
    found = run("masked-row").arrays
    assert np.array_equal(np.asarray(found["out"])[1], [0, 0])
    assert np.isneginf(np.asarray(found["lse"])[1])


def test_the_two_alignments_differ_as_they_say(run):
    right, left = (np.asarray(run(name).arrays["weights"]) for name in ("bottom-right", "top-left"))
    assert np.array_equal(right > 0, [[1, 1, 1, 0], [1, 1, 1, 1]])
    assert np.array_equal(left > 0, [[1, 0, 0, 0], [1, 1, 0, 0]])
    more = run("more-queries").arrays
    assert np.array_equal(np.asarray(more["weights"]) > 0, [[0, 0], [0, 0], [1, 0], [1, 1]])


def test_a_window_of_one_back_is_two_keys(run):
    weights = np.asarray(run("window-of-one").arrays["weights"])
    assert np.array_equal(weights > 0, [[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]])


def test_the_log_sum_exp_is_natural(run):
    assert np.allclose(run("lse-base").arrays["lse"], np.log(3), atol=1e-6)


def test_huge_logits_in_float16_stay_finite(run):
    found = run("fp16-overflow").arrays
    assert float(np.max(found["scores"])) == pytest.approx(640_000 / np.sqrt(2), rel=1e-6)
    assert np.array_equal(found["weights"], np.eye(2))


def test_the_pairings_turn_other_numbers(run):
    half, neighbours = (
        np.asarray(run(f"rope-{name}").arrays["present_key"])[1] for name in ("half", "interleaved")
    )
    cos, sin = np.cos(1), np.sin(1)  # position 1, the fastest pair
    assert np.allclose(half, [cos, 0, sin, 0], atol=1e-6)
    assert np.allclose(neighbours, [cos, sin, 0, 0], atol=1e-6)


def test_a_mask_of_numbers_forbids_nothing(run):
    assert (np.asarray(run("additive-mask").arrays["weights"]) > 0).all()


# --- Models -----------------------------------------------------------------------------------------


def test_a_model_has_the_shape_of_its_config():
    from lab.form.forms import LabForm
    from lab.form.presets.models import shapes

    def spec(slug, kind):
        shape = next(shape for shape in shapes() if shape.model.slug == slug and shape.mixer.kind == kind)
        return shape, parse_run(LabForm.from_link(shape.preset.state).body()).spec

    shape, llama = spec("llama-3.1-8b", "full_attention")
    config = models()["llama-3.1-8b"].config
    assert (llama.num_heads, llama.num_kv_heads, llama.head_dim) == (32, 8, 128)
    assert llama.attention.rope.theta == config["rope_theta"]
    assert llama.attention.rope.scaling["factor"] == config["rope_scaling"]["factor"]
    assert llama.attention.is_causal

    shape, gemma = spec("gemma-2-9b", "sliding_attention")
    assert gemma.attention.softcap == 50.0
    assert gemma.scale == pytest.approx(256**-0.5)
    assert shape.changed == f"window 4,096 → {shape.length // 8}"
    assert gemma.attention.window == (shape.length // 8 - 1, None)  # it counts itself

    _shape, oss = spec("gpt-oss-20b", "sliding_attention")
    assert oss.attention.window == (127, None)
    assert len(oss.attention.sinks) == oss.num_heads == 64

    _shape, bert = spec("bert-base", "bidirectional_attention")
    assert not bert.attention.is_causal

    _shape, mpt = spec("mpt-7b", "full_attention")
    assert mpt.attention.alibi_slopes == "auto"

    shape, deepseek = spec("deepseek-v3", "mla")
    assert deepseek.inputs["c_kv"].shape[-1] == 512
    assert shape.changed == f"{deepseek.num_heads} of 128 heads"


def test_every_model_with_attention_is_there():
    from lab.form.presets.models import shapes

    without = {"mamba-2.8b"}
    assert {shape.model.slug for shape in shapes()} == set(models()) - without
