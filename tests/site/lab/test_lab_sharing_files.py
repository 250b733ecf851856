"""The forms of a run: whatever is downloaded has the numbers of the run, bit for bit."""

import csv
import io
import json
import re

import numpy as np
import pytest
import safetensors.numpy
from django.test import Client

from api.runs import tables
from kernels.arrays import round_to_dtype
from kernels.spec import parse_run
from kernels.spec.results import RESULTS
from kernels.spec.run import INPUTS
from workers import artifacts, runs

pytestmark = pytest.mark.django_db
# What a text may lose: signs of zero, the smallest and the largest, thirds, what is no number.
ODD = [0.0, -0.0, 1 / 3, -1e-7, 5e-324, 6e-8, 65504.0, 3e38, 0.1, np.inf, -np.inf, np.nan]


@pytest.fixture
def made(db):
    """`made(results, inputs=…)`: a finished run with these arrays, whatever they are."""

    def made(results, *, dtype="float32", shape=(2, 3, 4, 2), inputs=None, **body):
        sent = {name: {"seed": 1, "shape": list(shape)} for name in "qkv"}
        parsed = parse_run({"engine": "reference", "dtype": dtype, "inputs": sent, **body})
        run = runs.submit(parsed, owner=body.get("owner", ""), caller="somebody", budget_seconds=30)
        claimed = runs.claim(run.id)
        rounded = {name: round_to_dtype(np.ones(shape), dtype) for name in "qkv"}
        inputs = {**rounded, **(inputs or {})}
        assert runs.finish(
            claimed,
            inputs=inputs,
            results=results,
            input_info={
                name: {"shape": list(a.shape), "dtype": dtype, "sha256": "0"} for name, a in inputs.items()
            },
            result={"numerics": {"max_abs_err": 0.0}},
            environment={"device": "cpu"},
        )
        return runs.get(run.id)

    return made


def odd(dtype, shape=(2, 3, 4, 2)):
    """An array full of numbers that are easily lost, rounded to a dtype."""
    return round_to_dtype(np.resize(np.array(ODD), shape), dtype)


def same_bits(one, other):
    """Also of zeros and of what is no number."""
    return (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())


def body(address):
    response = Client().get(address)
    assert response.status_code == 200, response.content
    return b"".join(response) if response.streaming else response.content


def page(run, name):
    return body(f"/en/lab/runs/{run.id}/files/{name}")


def rest(run, name):
    return body(f"/api/v1/runs/{run.id}/artifacts/{name}")


WAYS = pytest.mark.parametrize("get", [page, rest])
DTYPES = pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])


def long(text, dtype, shape):
    """A table with a line for each number, read as a stranger would: where it is, and the number."""
    header, *lines = csv.reader(io.StringIO(text.decode()))
    assert header[-1] == "value"
    array = np.zeros(shape, dtype)
    for *at, value in lines:
        array[tuple(map(int, at))] = float(value)
    assert len(lines) == array.size
    return header[:-1], array


@DTYPES
@WAYS
def test_every_form_has_the_same_bits(made, get, dtype):
    out = odd(dtype)
    lse = out[..., 0].astype(np.float64 if dtype == "float64" else np.float32)
    run = made({"out": out, "lse": lse}, dtype=dtype)

    assert same_bits(np.load(io.BytesIO(get(run, "out.npy"))), out)
    for name in ("run.npz", "result.npz"):
        assert same_bits(np.load(io.BytesIO(get(run, name)))["out"], out)
    for name in ("run.safetensors", "result.safetensors"):
        assert same_bits(safetensors.numpy.load(get(run, name))["out"], out)
    axes, values = long(get(run, "out.csv"), out.dtype, out.shape)
    assert axes == ["batch", "head", "row", "column"]
    assert same_bits(values, out)
    axes, values = long(get(run, "lse.csv"), lse.dtype, lse.shape)
    assert axes == ["batch", "head", "row"]
    assert same_bits(values, lse)


@DTYPES
def test_a_number_of_a_table_is_exact_in_float64_too(made, dtype):
    run = made({"out": odd(dtype)}, dtype=dtype)
    _axes, values = long(page(run, "out.csv"), np.float64, (2, 3, 4, 2))
    assert same_bits(values, odd(dtype).astype(np.float64))


@WAYS
def test_one_head_is_the_matrix_alone(made, get):
    out = odd("float32")
    run = made({"out": out})
    text = get(run, "out.csv?batch=1&head=2").decode()
    assert same_bits(np.loadtxt(io.StringIO(text), delimiter=",", dtype=np.float32), out[1, 2])


def test_masks_and_integers_are_tables_too(made):
    mask = np.array([[True, False, True, False]] * 4)
    run = made({"out": odd("float32")}, inputs={"attn_mask": mask, "kv_lens": np.array([4, 3])})
    assert page(run, "attn_mask.csv?head=0").decode().split() == ["1,0,1,0"] * 4
    assert page(run, "kv_lens.csv").decode().split() == ["batch,value", "0,4", "1,3"]


def test_packed_heads_are_told_apart(made):
    sent = {name: {"seed": 1, "shape": [1, 3, 4]} for name in "qkv"}
    packed = np.arange(12, dtype=np.float32).reshape(1, 3, 4)
    run = made({"out": packed}, shape=(1, 3, 4), attention={"num_heads": 2})
    assert sent["q"]["shape"] == [1, 3, 4]
    _axes, values = long(page(run, "out.csv"), np.float32, (1, 2, 3, 2))
    assert same_bits(values, np.ascontiguousarray(packed.reshape(1, 3, 2, 2).swapaxes(1, 2)))


def test_what_is_empty_is_a_file_without_numbers(made):
    empty = np.zeros((2, 3, 0, 2), np.float32)
    run = made({"out": empty})
    assert page(run, "out.csv").decode().split() == ["batch,head,row,column,value"]
    assert page(run, "out.csv?head=0") == b""
    assert same_bits(np.load(io.BytesIO(page(run, "run.npz")))["out"], empty)
    assert same_bits(safetensors.numpy.load(page(run, "run.safetensors"))["out"], empty)


def test_a_whole_run_says_what_its_arrays_are_and_nobodys_name(made, tmp_path):
    run = made({"out": odd("bfloat16")}, dtype="bfloat16", attention={"is_causal": True})
    path = tmp_path / "run.safetensors"
    path.write_bytes(body(f"/en/lab/runs/{run.id}.safetensors"))
    with safetensors.safe_open(path, framework="numpy") as file:
        told = json.loads(file.metadata()["run"])
        assert set(file.keys()) == {"q", "k", "v", "out"}
    whole = np.load(io.BytesIO(body(f"/en/lab/runs/{run.id}.npz")), allow_pickle=False)
    assert json.loads(str(whole["run"])) == told
    assert same_bits(whole["q"], round_to_dtype(np.ones((2, 3, 4, 2)), "bfloat16"))
    assert told["id"] == run.id
    assert told["spec"]["attention"]["is_causal"]
    assert told["environment"] == {"device": "cpu"}
    assert "somebody" not in json.dumps(told)


def test_no_input_hides_a_result():
    assert not {*INPUTS, artifacts.WHOLE} & set(RESULTS)


@WAYS
@pytest.mark.parametrize("query", ["head=3", "batch=2", "head=-1", "head=x", "batch=1&head=99999999999"])
def test_a_head_that_is_not_there_is_told(made, get, query):
    run = made({"out": odd("float32")})
    base = f"/en/lab/runs/{run.id}/files" if get is page else f"/api/v1/runs/{run.id}/artifacts"
    response = Client().get(f"{base}/out.csv?{query}")
    assert response.status_code == 422
    assert "head" in response.content.decode() or "batch" in response.content.decode()


@WAYS
def test_a_table_is_bounded_and_says_what_to_do(made, get, monkeypatch):
    monkeypatch.setattr(tables, "MOST", 10)
    run = made({"out": odd("float32")})
    base = f"/en/lab/runs/{run.id}/files" if get is page else f"/api/v1/runs/{run.id}/artifacts"
    response = Client().get(f"{base}/out.csv")
    assert response.status_code == 422
    assert "?batch=0&head=0" in response.content.decode()
    assert get(run, "out.csv?head=0")


def test_a_table_is_written_in_pieces(made, monkeypatch):
    monkeypatch.setattr(tables, "PIECE", 5)
    out = odd("float32")
    run = made({"out": out})
    _axes, values = long(page(run, "out.csv"), np.float32, out.shape)
    assert same_bits(values, out)
    assert len(page(run, "out.csv?head=1").split()) == 4


def test_every_file_that_a_run_names_is_there(made):
    from api.runs import downloads

    run = made({"out": odd("float32")})
    named = Client().get(f"/api/v1/runs/{run.id}").json()["artifacts"]
    assert list(named) == downloads.names(run)
    for address in named.values():
        assert body(address)


def test_every_download_of_the_page_is_a_file_with_a_name_of_its_own(made):
    run = made({"out": odd("float32")})
    html = Client().get(f"/en/lab/runs/{run.id}/").content.decode()
    addresses = re.findall(r'<a href="([^"]+)" download', html)
    folder = f"/en/lab/runs/{run.id}/files/"
    assert {address for address in addresses if not address.startswith(folder)} == {
        f"/en/lab/runs/{run.id}.{form}" for form in ("npz", "safetensors")
    }
    names = {address.removeprefix(folder) for address in addresses if address.startswith(folder)}
    assert {"out.npy", "out.csv", "q.csv", "result.npz", "inputs.safetensors"} <= names
    for address in addresses:
        response = Client().get(address)
        assert response.status_code == 200
        name = address.rpartition("/")[2]
        saved_as = name if name.startswith(run.id) else f"{run.id}-{name}"
        assert response["Content-Disposition"] == f'attachment; filename="{saved_as}"'
    assert f"/en/lab/runs/{run.id}.json" in html
    for name in ("secret.npy", "secret.csv", "run.csv", ".csv"):
        assert Client().get(f"{folder}{name}").status_code == 404
