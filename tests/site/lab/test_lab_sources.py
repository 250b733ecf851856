"""Kernels on pages: all of their source, in its order, beside words that are about code that is there."""

import ast
import html
import re
from dataclasses import replace
from pathlib import Path

import pytest
from django.test import Client

from kernels.registry import ENGINES
from kernels.spec import parse_run
from lab.sources import highlight, model, numbers
from lab.sources.kernels import KERNELS
from lab.sources.model import AnchorError, File, Note

FILES = {file.path: file for kernel in KERNELS.values() for file in kernel.files}
CODE = '''"""What it is."""


@decorated
def first(a):
    """One."""
    b = a + 1  # <one> & "more"
    return b


def second(a):
    return first(a) + 0x1F
'''


def plain(markup):
    return html.unescape(re.sub(r"<[^>]+>", "", markup))


def notes(*anchors):
    return tuple(Note(anchor, f"about {anchor}", "…") for anchor in anchors)


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.setattr(model, "ROOT", tmp_path)
    (tmp_path / "code.py").write_text(CODE)
    return lambda *anchors: File("code.py", notes(*anchors))


# --- Every anchor, every file -----------------------------------------------------------------------


@pytest.mark.parametrize("path", FILES)
def test_a_page_has_all_of_the_file_and_its_notes_are_about_what_is_there(path):
    parts = model.parts(FILES[path])
    source = Path(path).read_text()
    lines = source.splitlines()
    for part in parts:
        code = plain(part.code).split("\n")
        assert code == lines[part.first - 1 : part.last], part.id
        named = part.note.anchor.partition(": ")[0]
        if named:
            node = next(one for one in ast.parse(source).body if getattr(one, "name", "") == named)
            assert node.lineno - 2 <= part.first <= node.end_lineno, "it begins where the code does"
    shown = {number for part in parts for number in range(part.first, part.last + 1)}
    assert not [line for number, line in enumerate(lines, 1) if number not in shown and line.strip()]


def test_every_note_says_something_of_its_own():
    said = [str(note.text) for file in FILES.values() for note in file.notes]
    assert len(set(said)) == len(said)
    assert all(len(text) > 30 and text.endswith(".") for text in said)


@pytest.mark.parametrize(
    ("anchors", "problem"),
    [
        (("", "third"), "'third' is defined 0 times"),
        (("", "first: c = a"), "'c = a' is in 0 lines of first"),
        (("", "first: b"), "'b' is in 2 lines of first"),
        (("", "second", "first"), "not in the order of the code"),
        (("", "first", "first"), "each with a line of its own"),
        (("first",), "nothing is said of its beginning"),
    ],
)
def test_a_note_about_code_that_is_not_there_is_found(file, anchors, problem):
    with pytest.raises(AnchorError, match=re.escape(problem)):
        model.parts(file(*anchors))


def test_a_file_is_cut_at_its_anchors(file):
    found = model.parts(file("", "first", "first: return b", "second"))
    assert [(part.first, part.last) for part in found] == [(1, 1), (4, 7), (8, 8), (11, 12)]
    assert plain(found[1].code).startswith("@decorated\ndef first(a):")
    assert found[1].numbers == "4\n5\n6\n7"


def test_what_is_code_and_what_is_not_can_be_told_apart():
    lines = highlight.lines(CODE)
    assert [plain(line) for line in lines] == CODE.splitlines()
    assert lines[0] == '<span class="code-string">&quot;&quot;&quot;What it is.&quot;&quot;&quot;</span>'
    assert '<span class="code-keyword">def</span> <span class="code-defined">first</span>(a):' in lines
    assert lines[6].endswith('<span class="code-comment"># &lt;one&gt; &amp; &quot;more&quot;</span>')
    assert '<span class="code-number">0x1F</span>' in lines[-1]


# --- The pages --------------------------------------------------------------------------------------


@pytest.mark.parametrize("slug", KERNELS)
def test_a_kernel_has_a_page_that_anybody_may_keep(slug):
    response = Client().get(f"/en/lab/kernels/{slug}/")
    assert response.status_code == 200
    assert "public" in response["Cache-Control"]
    assert "max-age=3600" in response["Cache-Control"]
    assert not response.cookies
    shown = response.content.decode()
    for file in KERNELS[slug].files:
        assert file.path in shown
        assert shown.count('class="source-part"') >= len(file.notes)
    assert len(re.findall(r'\bid="([^"]+)"', shown)) == len(set(re.findall(r'\bid="([^"]+)"', shown)))


def test_all_kernels_are_listed():
    shown = Client().get("/en/lab/kernels/").content.decode()
    assert set(re.findall(r'href="/en/lab/kernels/([^/"]+)/"', shown)) == set(KERNELS)
    assert Client().get("/en/lab/kernels/nosuch/").status_code == 404


def test_the_numbers_of_a_run_are_in_the_address():
    query = "?BLOCK_M=512&BLOCK_N=<b>&D=64&SECRET=1&STEPS=" + "9" * 30
    shown = Client().get(f"/en/lab/kernels/flash/{query}").content.decode()
    names = re.findall(r"<dt><code>(\w+)</code></dt><dd>(\d+)</dd>", shown)
    assert names == [("BLOCK_M", "512"), ("D", "64")]
    assert "In your run" not in Client().get("/en/lab/kernels/flash/").content.decode()


# --- From a run to its kernel -----------------------------------------------------------------------


def spec_of(engine, **more):
    seeded = {"seed": 1, "shape": [1, 4, 20, 8]}
    return parse_run({"engine": engine, "inputs": dict.fromkeys("qkv", seeded), **more}).spec


def test_every_engine_of_ours_leads_to_a_kernel():
    for name, engine in ENGINES.items():
        if engine.is_triton and engine.takes == ("q", "k", "v"):
            assert numbers.kernel_of(replace(spec_of("reference"), engine=name)) in KERNELS, name
    assert numbers.kernel_of(spec_of("eager")) is None


@pytest.mark.django_db
def test_a_run_leads_to_its_kernel_with_its_own_tiles(submit, finish, seeded):
    run = finish(submit(inputs=seeded(1, 4, 20, 8), options={"block_m": 16, "block_n": 32}))
    shown = html.unescape(Client().get(f"/en/lab/runs/{run.id}/").content.decode())
    section = re.search(r'<section id="kernel">.*?</section>', shown, re.DOTALL)[0]
    address = re.search(r'href="(/en/lab/kernels/flash/\?[^"]+)"', section)[1]
    page = Client().get(address).content.decode()
    found = dict(re.findall(r"<dt><code>(\w+)</code></dt><dd>(\d+)</dd>", page))
    # 4 heads in two tiles of 16 queries; 20 keys in one tile of 32; 8 numbers, padded to 16.
    assert found == {
        "BLOCK_M": "16", "BLOCK_N": "32", "D": "8", "DV": "8", "BLOCK_D": "16", "BLOCK_DV": "16",
        "PROGRAMS": "8", "STEPS": "1",
    }  # fmt: skip
    assert "As it was launched in the interpreter" in section


@pytest.mark.django_db
def test_a_run_of_no_kernel_of_ours_has_no_such_section(submit, finish):
    run = finish(submit(engine="eager"))
    assert 'id="kernel"' not in Client().get(f"/en/lab/runs/{run.id}/").content.decode()


@pytest.mark.parametrize(
    ("environment", "target"),
    [
        ({"device": "cpu"}, None),
        ({"device": "cuda", "gpu_name": "NVIDIA H200"}, "sm_90"),
        ({"device": "cuda", "gpu_name": "NVIDIA A100-SXM4-80GB"}, "sm_80"),
        ({"device": "cuda", "gpu_name": "Tesla T4"}, ""),
    ],
)
def test_tiles_are_those_of_where_it_ran(environment, target):
    class Run:
        pass

    run = Run()
    run.environment = environment
    assert numbers.target_of(run) == target
    found = dict(numbers.launched(run, spec_of("flash")))
    assert bool(found) == (target != "")
