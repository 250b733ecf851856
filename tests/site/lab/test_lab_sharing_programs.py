"""The torch program of a run's page: run on its own, it says the numbers of the run."""

import contextlib
import io
import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from django.test import RequestFactory
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from kernels.bounds import Bounds
from kernels.engines.reference import reference
from kernels.execute import execute, materialise
from kernels.layout import from_canonical, to_canonical
from kernels.operands import operands
from kernels.patterns import _PATTERNS
from kernels.registry import ENGINES, FEATURES, SOFTMAX
from kernels.rope import _SCALINGS
from kernels.spec import RunSpec, parse_run
from lab.sharing.program import Facts, Unsayable, program
from lab.sharing.reproduce import torch_program
from tests.kernels.cases import cases
from tests.site.lab.programs import CASES
from workers import artifacts, runs
from workers.models import Run

pytestmark = pytest.mark.django_db

# Runs each program in a folder of its own, in one process, as `python program.py` would.
HARNESS = """
import contextlib, io, json, os, pathlib, runpy, sys, traceback, warnings
warnings.simplefilter("error")
import numpy as np
for folder in sys.argv[1:]:
    os.chdir(folder)
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said):
            found = runpy.run_path("program.py")
        results = {n: found[n].detach() for n in ("out", "lse", "weights", "dq", "dk", "dv") if n in found}
        (whole,) = (np.load(path) for path in pathlib.Path().glob("*.npz"))
        for name, given in json.loads(str(whole["run"]))["spec"]["inputs"].items():
            draw = found.get("draw") or found.get(f"draw_{given.get('distribution')}")
            if draw and given["source"] == "seed":
                results[f"drawn_{name}"] = found["tensor"](draw(name, tuple(given["shape"]), given["seed"]))
        np.savez("found.npz", **results)
    except BaseException:
        said.write(traceback.format_exc())
    pathlib.Path("said.txt").write_text(said.getvalue())
"""


def computed(body):
    """The run of a body, by its engine."""
    parsed = parse_run(body)
    run = runs.submit(parsed, owner="", caller="somebody", budget_seconds=30)
    claimed = runs.claim(run.id)
    outcome = execute(parsed.spec, parsed.arrays)
    assert runs.finish(
        claimed,
        inputs=outcome.inputs,
        results=outcome.arrays,
        input_info=outcome.input_info,
        result={"numerics": outcome.numerics},
        environment=outcome.environment,
    )
    return runs.get(run.id)


def program_of(run):
    text, why = torch_program(run, RunSpec.from_dict(run.spec), RequestFactory().get("/"))
    assert text, why
    return text


@pytest.fixture(scope="module")
def told(django_db_setup, django_db_blocker, tmp_path_factory):
    """{case: (run, what its program printed, what it computed)}"""
    root = tmp_path_factory.mktemp("programs")
    folders, found = {}, {}
    with django_db_blocker.unblock(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs.app, "send_task", lambda *_, **__: None)
        patch.setattr("workers.events.announce_all", lambda *_: None)
        patch.setattr("workers.quotas.charge", lambda *_: None)
        for number, (name, body) in enumerate(CASES.items()):
            run = computed(body)
            folders[name] = root / str(number)
            folders[name].mkdir()
            (folders[name] / "program.py").write_text(program_of(run))
            (folders[name] / f"{run.id}.npz").write_bytes(artifacts.open_artifact(run, "run.npz")[0])
            found[name] = run
            Run.objects.filter(pk=run.id).delete()
    subprocess.run([sys.executable, "-c", HARNESS, *map(str, folders.values())], check=True, timeout=300)
    return {
        name: (
            run,
            (folders[name] / "said.txt").read_text(),
            folders[name] / "found.npz",
            (folders[name] / f"{run.id}.npz"),
        )
        for name, run in found.items()
    }


def difference(ours, theirs):
    """The largest; infinities that agree are none."""
    with np.errstate(invalid="ignore"):
        return float(np.abs(np.where(ours == theirs, 0, ours - theirs)).max(initial=0.0))


def double(spec, canonical):
    """The results of a spec in float64, and how far rounding may take each."""
    resolved = operands(spec, canonical, dtype=np.float64)
    bounds = Bounds(replace(spec, dtype="float64"), resolved, canonical.get("dout"))
    found = reference(spec, canonical, spec.returns, observe=bounds.observe, given=resolved)
    return found, bounds.found(canonical) | bounds.largest


@pytest.mark.parametrize("case", CASES)
def test_a_program_computes_what_the_run_returned(told, case):
    run, said, found, file = told[case]
    assert found.exists(), said
    spec = RunSpec.from_dict(run.spec)
    whole, made = np.load(file), np.load(found)
    numerics = run.result["numerics"]
    arrays = {"out": numerics, **numerics["arrays"]}
    for name in spec.returns:
        theirs, ours = whole[name].astype(np.float64), made[name]
        assert ours.shape == theirs.shape, name
        off = difference(ours, theirs)
        bound = arrays[name]["bound"] * (2 if spec.dtype == "float64" else 1)
        if ENGINES[run.engine].is_double:
            canonical = {name: to_canonical(spec, name, whole[name]) for name in spec.inputs}
            bound = 2 * double(spec, canonical)[1][name]
        assert off <= bound, f"{name}: {off} > {bound}\n{said}"
        if theirs.size:
            assert f"{name}: largest difference {off:.2g}" in said
        if theirs.size and not ENGINES[run.engine].is_double:
            assert f"of at most {bound:.2g} by rounding alone" in said
    assert "tensor(" in said  # the output itself


@pytest.mark.parametrize(
    "case", [name for name in CASES if "draw" in name or "seed" in str(CASES[name]["inputs"])]
)
def test_what_is_drawn_again_has_the_same_bits(told, case):
    run, said, found, file = told[case]
    whole, made = np.load(file), np.load(found)
    drawn = [name.removeprefix("drawn_") for name in made.files if name.startswith("drawn_")]
    is_double = run.spec["dtype"] == "float64" and "uniform" not in str(run.spec["inputs"])
    assert bool(drawn) != is_double, said
    for name in drawn:
        assert np.array_equal(made[f"drawn_{name}"], whole[name].astype(np.float64)), name


# --- What the cases cover -------------------------------------------------------------------------


def test_every_feature_of_a_spec_is_among_the_cases():
    bodies = [json.dumps(body) for body in CASES.values()]
    said = " ".join(bodies)
    for kind in (*_PATTERNS, *_SCALINGS):
        assert f'"type": "{kind}"' in said, kind
    features = {
        "scale": '"scale"',
        "causal": '"is_causal"',
        "position_offset": '"q_positions": 1',
        "positions": '"q_positions": [',
        "window": '"window"',
        "softcap": '"softcap"',
        "attn_mask": '"attn_mask"',
        "alibi": '"alibi_slopes"',
        "rope": '"rope"',
        "sinks": '"sinks"',
        "pattern": '"pattern"',
        "gqa": '"num_kv_heads"',
        "v_head_dim": '"v"',
        "packed": '"num_heads"',
        "ragged": '"q_lens"',
        "past": '"past_key"',
        "paged": '"block_table"',
        "kv_dtype": '"kv_dtype"',
        "gradients": '"dout"',
        "mla": '"c_kv"',
    }
    softmax = set().union(*(engine.features for engine in ENGINES.values() if engine.computes == SOFTMAX))
    assert softmax <= set(features), softmax - set(features)
    assert set(features) <= set(FEATURES)
    for feature, sign in features.items():
        assert sign in said, feature


# --- Specs that nobody thought of -----------------------------------------------------------------


@given(st.data())
@settings(max_examples=30, deadline=None, phases=[Phase.generate])
@pytest.mark.parametrize("way", ["forwards", "backwards", "pages"])
def test_whatever_is_asked_the_program_computes_it(tmp_path_factory, way, data):
    engine = "paged" if way == "pages" else "eager"
    case = data.draw(cases(engine, gradients=way == "backwards", without=["mla"]))
    returns = ["out", "dq", "dk", "dv"] if way == "backwards" else ["out", "lse"]
    options = {"kv_dtype": None}
    body = {"engine": engine, "return": returns, **case.body, "options": options}
    parsed = parse_run(body, load_upload=lambda _, name: case.uploads[name])
    spec = parsed.spec
    inputs = materialise(spec, parsed.arrays)
    canonical = {name: to_canonical(spec, name, array) for name, array in inputs.items()}
    expected, bounds = double(spec, canonical)

    file = tmp_path_factory.mktemp("run") / "run.npz"
    np.savez(file, **inputs)
    typed = {name: array for name, array in parsed.arrays.items() if data.draw(st.booleans())}
    lengths = {name: parsed.arrays[name] for name in ("q_lens", "kv_lens") if name in inputs}
    facts = Facts(spec, typed, lengths, "title", "address", str(file), "file address", {})
    try:
        text = program(facts)
    except Unsayable:
        return
    scope = {}
    with contextlib.redirect_stdout(io.StringIO()):
        exec(compile(text, "program.py", "exec"), scope)
    for name in returns:
        ours, theirs = scope[name].detach().numpy(), from_canonical(spec, name, expected[name])
        assert ours.shape == theirs.shape, text
        off = difference(ours, theirs)
        assert off <= 2 * bounds[name], f"{name}: {off} > {bounds[name]}\n{text}"
