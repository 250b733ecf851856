"""Where numbers come from: boxes of a grid, arrays beside Q, K and V, files that are sent at once."""

import html
import re

import numpy as np
import pytest
from django.test import Client

from kernels.spec import parse_run
from tests.site.lab.test_lab_form import (
    ESTIMATE,
    HOME,
    PASTED,
    SEEDED,
    body_of,
    errors_by_field,
    npy,
    npz,
    value_of,
)
from tests.site.lab.test_lab_form_fork import page_state
from workers.models import Run

pytestmark = pytest.mark.django_db
INPUTS = "/en/lab/inputs/"


@pytest.fixture
def client():
    return Client(REMOTE_ADDR="203.0.113.7")


def boxes(page):
    """{matrix: rows of texts}, as the page shows them."""
    found = {}
    for tag in re.findall(r'<input [^>]*name="cell_[^>]*>', page):
        matrix, row, column = re.search(r'name="cell_(\w)_(\d)_(\d)"', tag).groups()
        rows = found.setdefault(matrix, {})
        rows.setdefault(int(row), {})[int(column)] = html.unescape(re.search(r'value="([^"]*)"', tag)[1])
    return {name: [list(row.values()) for row in rows.values()] for name, rows in found.items()}


def grid_page(client, **query):
    return client.get(HOME, {"source": "grid", **query}).content.decode()


# --- The grid ---------------------------------------------------------------------------------------


def test_a_link_shows_its_matrices_in_boxes(client):
    page = grid_page(client, q="[[1,2,3]]", k="[[4,5,6],[7,8,9]]", v="[[1],[2.5]]")
    assert boxes(page) == {
        "q": [["1", "2", "3"]],
        "k": [["4", "5", "6"], ["7", "8", "9"]],
        "v": [["1"], ["2.5"]],
    }
    assert 'aria-label="K, row 2, column 3"' in page
    assert "1 query, 2 keys, dimension 3" in html.unescape(page)


def test_what_is_typed_into_boxes_is_run_and_is_in_the_link(client):
    sent = page_state(grid_page(client))
    sent["cell_q_0_1"] = "-2.5"
    assert body_of_state(sent)["inputs"]["q"] == [[1, -2.5], [0, 1], [1, 1]]
    link = html.unescape(re.search(r'href="http://testserver(/en/lab/\?[^"]*)"', live(client, sent))[1])
    assert boxes(client.get(link).content.decode())["q"][0] == ["1", "-2.5"]
    assert client.post(HOME, sent.dict() | {"returns": ["out"]}).status_code == 302
    assert Run.objects.get().spec["inputs"]["q"] == {"shape": [3, 2], "dtype": "float64", "source": "inline"}


def test_half_a_character_has_no_box(client):
    page = client.get(HOME, dict.fromkeys("qkv", r'[["\ud800", 1]]') | {"source": "grid"})
    assert page.status_code == 200
    assert 'name="cell_q_0_0"' in page.content.decode()


def test_a_size_that_is_chosen_while_the_grid_is_on_its_way_counts(client):
    """The first request gave way to the second, which comes from a page that still pastes."""
    sent = page_state(client.get(HOME, {"q": "[[5,6],[7,8],[9,1]]"}).content.decode())
    sent["source"], sent["grid_q_len"], sent["grid_v_dim"] = "grid", "2", "3"
    page = client.post(INPUTS, sent).content.decode()
    assert boxes(page)["q"] == [["5", "6"], ["7", "8"]]
    assert boxes(page)["v"] == [["1", "0", "0"], ["0", "2", "0"], ["2", "2", "0"]]


def body_of_state(state):
    from lab.form.forms import LabForm

    return LabForm(state).body()


def live(client, state):
    return client.post(ESTIMATE, dict(state.lists())).content.decode()


def test_another_size_keeps_the_numbers_and_fills_with_zeros(client):
    sent = page_state(grid_page(client)).dict()
    sent |= {"grid_q_len": "4", "grid_dim": "1", "grid_v_dim": "3", "grid_kv_len": "2", "show": "inputs"}
    answer = client.post(HOME, sent)
    assert answer.status_code == 302
    assert boxes(client.get(answer.headers["Location"]).content.decode()) == {
        "q": [["1"], ["0"], ["1"], ["0"]],
        "k": [["1"], ["0"]],
        "v": [["1", "0", "0"], ["0", "2", "0"]],
    }
    with_script = client.post(INPUTS, sent).content.decode()
    assert [len(rows) for rows in boxes(with_script).values()] == [4, 2, 2]


def test_boxes_without_numbers_are_said_and_kept(client):
    sent = page_state(grid_page(client)).dict() | {"cell_q_0_1": "", "cell_k_2_0": "two", "cell_v_1_1": "0,5"}
    answer = client.post(HOME, sent)
    assert answer.status_code == 422
    errors = errors_by_field(answer)
    assert "row 1, column 2 is empty" in errors["grid_q"][0]
    assert "k[2][0]" in errors["grid_k"][0]
    assert "two" in errors["grid_k"][0]
    page = answer.content.decode()
    assert boxes(page)["k"][2] == ["two", "1"]
    assert boxes(page)["v"][1] == ["0", "0,5"]
    wrong = re.findall(r'name="(cell_[^"]*)"[^>]*aria-invalid', page)
    assert set(wrong) == {"cell_q_0_1", "cell_k_2_0", "cell_v_1_1"}
    assert "#lab-grid_k" in page
    assert 'id="lab-grid_k"' in page


def test_numbers_go_from_the_boxes_to_the_texts_and_back(client):
    """With JavaScript, choosing another source asks for its fields."""
    typed = page_state(grid_page(client)).dict() | {"cell_q_0_0": "9", "source": "matrices"}
    page = client.post(INPUTS, typed).content.decode()
    assert re.search(r'<textarea name="q"[^>]*>\s*\[\[9, 0\]', page)
    pasted = page_state(client.get(HOME).content.decode()).dict() | {"q": "5 6\n7 8", "source": "grid"}
    assert boxes(client.post(INPUTS, pasted).content.decode())["q"] == [["5", "6"], ["7", "8"]]


def test_what_is_too_large_for_boxes_stays_pasted(client):
    wide = "[" + ",".join("[1,2,3,4,5,6,7]" for _ in range(3)) + "]"
    page = grid_page(client, q=wide, k=wide, v=wide)
    assert [len(rows[0]) for rows in boxes(page).values()] == [2, 2, 2]


# --- Arrays beside Q, K and V -----------------------------------------------------------------------


def test_arrays_are_drawn_in_the_shape_that_the_others_ask_for():
    asked = SEEDED | {"engine": "flash", "how_dout": "seed", "how_past_key": "seed", "how_past_value": "seed",
                      "past_len": "5", "how_attn_mask": "seed", "alignment": "bottom_right"}  # fmt: skip
    inputs = body_of(asked)["inputs"]
    assert inputs["dout"]["shape"] == [2, 8, 16, 24]
    assert inputs["past_key"]["shape"] == [2, 2, 5, 32]
    assert inputs["past_value"]["shape"] == [2, 2, 5, 24]
    assert inputs["attn_mask"]["shape"] == [16, 53]
    assert parse_run(body_of(asked | {"returns": ["dq"]})).spec.kv_len == 53


def test_packed_rows_have_their_heads_side_by_side():
    asked = SEEDED | {"layout": "packed", "how_dout": "seed"}
    body = body_of(asked)
    assert body["inputs"]["q"]["shape"] == [2, 16, 256]
    assert body["inputs"]["v"]["shape"] == [2, 48, 48]
    assert body["attention"]["num_heads"] == 8
    assert body["attention"]["num_kv_heads"] == 2
    spec = parse_run(body).spec
    assert (spec.num_heads, spec.num_kv_heads, spec.head_dim, spec.v_head_dim) == (8, 2, 32, 24)


def test_masks_take_true_and_false():
    asked = PASTED | {"in_attn_mask": "tensor([[True, False, True]])", "how_attn_mask": "text"}
    assert body_of(asked)["inputs"]["attn_mask"] == [[True, False, True]]
    assert body_of(asked | {"in_attn_mask": "0 -inf 1"})["inputs"]["attn_mask"] == [[0, "-inf", 1]]


@pytest.mark.parametrize(
    ("changes", "field", "says"),
    [
        ({"how_attn_mask": "text", "in_attn_mask": "1 0"}, "in_attn_mask", "does not broadcast"),
        ({"how_attn_mask": "text", "in_attn_mask": "1 maybe"}, "in_attn_mask", "“maybe” is not a number"),
        ({"how_dout": "file"}, "in_dout", "no file has been sent yet"),
        ({"how_dout": "fill", "in_dout": "x"}, "in_dout", "“x” is not a number"),
        ({"returns": ["dq"]}, "how_dout", "dq need dout, of the shape of out"),
        ({"how_past_key": "seed"}, "how_past_value", "send both"),
        ({"how_kv_lens": "text", "in_kv_lens": "9"}, "in_kv_lens", "exceeds the 3"),
        ({"window_left": "-1"}, "window_left", "between 0"),
        ({"window_right": "many"}, "window_right", "many"),
        ({"softcap": "-3"}, "softcap", "no softcap"),
        ({"sinks": "1 2 3"}, "sinks", "3 entries for 1 heads"),
        ({"alibi_slopes": "steep"}, "alibi_slopes", "steep"),
        ({"q_positions": "0, 1"}, "q_positions", "2 entries for 3 queries"),
        ({"q_positions": "0, one"}, "q_positions", "“one” is not a number"),
        ({"rope": "half", "rope_dim": "3"}, "rope_dim", "even"),
        ({"rope": "half", "rope_scaling": "yarn", "scaling_factor": "0"}, "scaling_factor", "between"),
        ({"pattern": "dilated", "pattern_stride": "0", "pattern_window": "1"}, "pattern_stride", "distance"),
        ({"pattern": "document", "pattern_ids": "0 0"}, "pattern_ids", "2 entries for 3 keys"),
        ({"num_heads": "2"}, "q", "leave num_heads out"),
        ({"q": '{"seed": 1, "shape": [3, 5]}'}, "k", "dim"),
        ({"q": '{"seed": 1'}, "q", "no JSON object"),
        ({"q": '{"seed": %s, "shape": [3, 2]}' % ("1" * 5_000)}, "q", "5,000 digits"),
        ({"k": '{"seed": %s' % ('{"a":' * 30_000)}, "k", "more than 64 levels deep"),
        ({"v": '{"seed": 1, "seed": 2, "shape": [3, 2]}'}, "v", "occurs more than once"),
        ({"q": '{"seed": NaN, "shape": [3, 2]}'}, "q", "NaN is not JSON"),
        ({"q": '{"upload": "\\ud800", "name": "q"}'}, "q", "half a surrogate pair"),
    ],
)
def test_what_contradicts_is_explained_where_it_is(client, changes, field, says):
    response = client.post(HOME, PASTED | changes)
    assert response.status_code == 422
    errors = errors_by_field(response)
    assert field in errors, errors
    assert says in " ".join(errors[field])


def test_what_another_engine_lacks_stays_and_says_which_has_it(client):
    response = client.post(HOME, PASTED | {"engine": "linear", "returns": ["out"], "softcap": "2"})
    assert "engine linear does not support logit softcapping" in errors_by_field(response)["softcap"][0]
    assert value_of(response, "softcap") == "2"


@pytest.mark.parametrize("many", ["1000000000000", "9" * 39])
def test_no_number_everywhere_takes_no_memory(client, many):
    """An axis of 0 makes no array small: lists of it would have all the lists that the other axes say."""
    scan = {"engine": "scan", "source": "scan", "returns": ["out"], "shown_for": "scan", "seed": "7"}
    shape = {"batch": "1", "len": many, "q_len": many, "channels": "0", "states": "4", "layout": "plain"}
    filled = {f"how_{name}": "fill" for name in ("x", "delta", "a")} | {
        "in_x": "1",
        "in_delta": "1",
        "in_a": "-1",
    }
    drawn = {"how_b": "seed", "how_c": "seed", "distribution": "normal"}
    response = client.post(HOME, scan | shape | filled | drawn)
    assert response.status_code == 422
    told = " ".join(message for messages in errors_by_field(response).values() for message in messages)
    assert "at most 16,777,216 are accepted: shorten an axis" in told


def test_filling_an_empty_past_is_a_past_without_tokens(client, sent):
    asked = {"how_past_key": "fill", "in_past_key": "1", "how_past_value": "fill", "in_past_value": "1"}
    assert client.post(HOME, PASTED | asked | {"past_len": "0"}).status_code == 302
    assert Run.objects.get().spec["inputs"]["past_key"]["shape"] == [0, 2]


def test_filling_is_bounded():
    asked = SEEDED | {"how_dout": "fill", "in_dout": "1", "q_len": "4096"}
    from lab.form.forms import LabForm
    from lab.form.state import to_query

    form = LabForm(to_query(asked))
    form.body()
    assert "draw it instead" in form.errors["in_dout"][0]


# --- In the place of Q, K and V ---------------------------------------------------------------------


def test_latents_and_scans_are_drawn_by_their_axes():
    mla = body_of({"engine": "mla", "source": "latents", "seed": "3", "distribution": "normal", "batch": "2",
                   "heads": "4", "q_len": "3", "kv_len": "9", "d_nope": "8", "d_rope": "4", "d_c": "16",
                   "d_v": "6", "returns": ["out"]})  # fmt: skip
    spec = parse_run(mla).spec
    assert spec.inputs["c_kv"].shape == (2, 9, 16)
    assert spec.inputs["w_uv"].shape == (4, 16, 6)
    scan = body_of({"engine": "scan", "source": "scan", "seed": "3", "distribution": "normal", "batch": "1",
                    "heads": "2", "kv_heads": "1", "q_len": "5", "channels": "4", "states": "3",
                    "returns": ["out"]})  # fmt: skip
    assert scan["inputs"]["delta"] == np.full((1, 2, 5, 1), 0.1).tolist()
    assert scan["inputs"]["a"] == np.full((2, 1, 1), -1).tolist()
    assert parse_run(scan).spec.inputs["b"].shape == (1, 1, 5, 3)


def test_a_wrong_length_is_said_at_its_field(client):
    response = client.post(HOME, {"engine": "mla", "source": "latents", "d_c": "wide", "heads": "4",
                                  "q_len": "8", "d_nope": "8", "d_rope": "4", "d_v": "8",
                                  "batch": "1", "seed": "1", "distribution": "normal"})  # fmt: skip
    assert "wide" in errors_by_field(response)["d_c"][0]


def test_choosing_such_an_engine_brings_its_inputs_and_going_back_brings_q_k_and_v(client):
    there = client.post("/en/lab/engine/", PASTED | {"engine": "mla", "shown_for": "flash"}).content.decode()
    assert 'hx-swap-oob="innerHTML:#lab-inputs"' in there
    assert 'name="how_c_kv"' in there
    sent = page_state(client.get(HOME, {"engine": "mla"}).content.decode()).dict() | {"engine": "flash"}
    back = client.post("/en/lab/engine/", sent).content.decode()
    assert re.search(r'<textarea name="q"[^>]*>\s*\[\[1, 0\]', back)  # what a form begins with
    same = client.post(
        "/en/lab/engine/", PASTED | {"engine": "decode", "shown_for": "flash"}
    ).content.decode()
    assert 'hx-swap-oob="innerHTML:#lab-inputs"' not in same


# --- Files, as soon as they are there ---------------------------------------------------------------


def test_a_file_goes_up_at_once_and_says_what_it_holds(client):
    arrays = {"q": np.ones((4, 8)), "k": np.ones((5, 8)), "v": np.ones((5, 3), np.float32)}
    answer = client.post(INPUTS, {**PASTED, "source": "upload", "files": npz(**arrays)})
    page = answer.content.decode()
    assert "q 4 × 8 float64" in page
    assert "v 5 × 3 float32" in page
    assert 'role="status"' in page
    assert answer.headers["HX-Trigger-After-Settle"] == "lab-inputs"
    sent = {**PASTED, "source": "upload", "upload": re.search(r'name="upload" value="(\w+)"', page)[1]}
    assert "4 queries, 5 keys" in client.post(ESTIMATE, sent).content.decode()
    assert not Run.objects.exists()


def test_names_that_are_longer_than_a_letter_are_understood(client):
    """query.npy, keys.npy and V.npy; but of two that could be k neither is taken."""
    sizes = {"query": 4, "keys": 5, "V": 5}
    files = [npy(name, np.ones((rows, 2))) for name, rows in sizes.items()]
    page = client.post(INPUTS, {**PASTED, "source": "upload", "files": files}).content.decode()
    named = {array: re.search(rf'name="{array}_name"[^>]*value="(\w+)"', page)[1] for array in "qkv"}
    assert named == {"q": "query", "k": "keys", "v": "V"}
    sent = {**PASTED, "source": "upload", "upload": re.findall(r'name="upload" value="(\w+)"', page)}
    assert "4 queries, 5 keys" in client.post(ESTIMATE, sent).content.decode()
    files = [npy(name, np.ones((rows, 2))) for name, rows in {**sizes, "kept": 7}.items()]
    page = client.post(INPUTS, {**PASTED, "source": "upload", "files": files}).content.decode()
    assert not re.search(r'name="k_name"[^>]*value="(keys|kept)"', page)


def test_files_one_after_another_are_all_kept(client):
    kept = []
    for name in ("q", "k", "v", "q"):
        rows = 3 if len(kept) < 3 else 6
        page = client.post(INPUTS, {**PASTED, "source": "upload", "upload": kept,
                                    "files": npy(name, np.ones((rows, 2)))}).content.decode()  # fmt: skip
        kept = re.findall(r'name="upload" value="(\w+)"', page)
    assert len(kept) == 3  # the second q.npy in the place of the first
    assert (
        "6 queries, 3 keys"
        in client.post(ESTIMATE, {**PASTED, "source": "upload", "upload": kept}).content.decode()
    )


def test_an_array_beside_others_may_come_from_a_file(client):
    page = client.post(INPUTS, {**PASTED, "source": "matrices", "files": npz(mask=np.eye(3, dtype=bool))})
    kept = re.search(r'name="upload" value="(\w+)"', page.content.decode())[1]
    sent = {**PASTED, "upload": kept, "how_attn_mask": "file", "in_attn_mask": "mask"}
    assert client.post(HOME, sent).status_code == 302
    assert Run.objects.get().spec["inputs"]["attn_mask"]["source"] == "upload"
    assert client.post(ESTIMATE, sent).headers["HX-Replace-Url"] == HOME  # a link could not hold the file


def test_a_bad_file_is_an_error_at_once_and_the_others_stay(client):
    page = client.post(INPUTS, {**PASTED, "source": "upload", "files": npy("q", np.ones((3, 2)))})
    kept = re.search(r'name="upload" value="(\w+)"', page.content.decode())[1]
    pickled = npy("k", np.array([{"a": 1}], dtype=object))
    page = client.post(
        INPUTS, {**PASTED, "source": "upload", "upload": kept, "files": pickled}
    ).content.decode()
    assert 'id="lab-upload_error"' in page
    assert "q 3 × 2" in page


@pytest.mark.parametrize("address", [INPUTS, HOME], ids=["with htmx", "without"])
def test_a_file_is_removed_and_the_others_stay(client, address):
    files = [npy(name, np.ones((3, 2))) for name in ("q", "k", "v")]
    sent = {**PASTED, "source": "upload"}
    page = client.post(INPUTS, {**sent, "files": files}).content.decode()
    buttons = dict(re.findall(r'name="drop" value="(\w+)"[^>]*aria-label="Remove (\w\.npy)"', page))
    assert sorted(buttons.values()) == ["k.npy", "q.npy", "v.npy"]
    drop = next(upload for upload, name in buttons.items() if name == "k.npy")
    response = client.post(address, {**sent, "upload": list(buttons), "drop": drop})
    assert response.status_code == 200
    page = response.content.decode()
    left = re.findall(r'name="drop" value="(\w+)"', page)
    assert left == [upload for upload in buttons if upload != drop]
    assert drop not in page
    assert not Run.objects.exists()


def test_a_bad_file_does_not_take_along_those_that_came_with_it(client):
    pickled = npy("k", np.array([{"a": 1}], dtype=object))
    files = [npy("q", np.ones((3, 2))), pickled, npy("v", np.ones((4, 2)))]
    page = client.post(INPUTS, {**PASTED, "source": "upload", "files": files}).content.decode()
    assert "k.npy: array 'k' has dtype object" in html.unescape(page)
    assert "q 3 × 2" in page
    assert "v 4 × 2" in page


# --- What is shown before it runs -------------------------------------------------------------------


def test_the_shapes_and_the_share_of_pairs_are_shown(client):
    page = html.unescape(client.post(ESTIMATE, SEEDED | {"causal": "on"}).content.decode())
    shown = dict(re.findall(r"<dt><code>(\w+)</code>.*?</dt><dd>([^<]+)</dd>", page, re.DOTALL))
    assert shown == {
        "q": "2 × 8 × 16 × 32",
        "k": "2 × 2 × 48 × 32",
        "v": "2 × 2 × 48 × 24",
        "out": "2 × 8 × 16 × 24",
    }
    # Top left: query i sees i + 1 keys, in 2 × 8 heads.
    assert f"{2 * 8 * 16 * 17 // 2:,} of {2 * 8 * 16 * 48:,}" in page
    assert "17.71 %" in page
