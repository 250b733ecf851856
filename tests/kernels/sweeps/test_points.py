"""From the body of a sweep to the bodies of its runs, and what is said of those that are wrong."""

import pytest

from kernels.spec import SpecError, parse_run
from kernels.spec.problems import FieldProblem
from kernels.sweeps.points import MAX_POINTS, blame, parse_sweep


def seeded(*shape, names="qkv"):
    return {name: {"seed": 1, "shape": list(shape)} for name in names}


def body(vary, inputs=None, **more):
    return {"engine": "reference", "inputs": inputs or seeded(2, 4, 16, 8), "vary": vary, **more}


def alike(shape):
    return {"q": shape, "k": shape, "v": shape}


def shapes(vary, inputs=None, **more):
    """The shapes of the inputs of each point, all of which are runs that can be parsed."""
    points = parse_sweep(body(vary, inputs, **more)).points
    specs = [parse_run(point.body).spec for point in points]
    return [{name: list(given.shape) for name, given in spec.inputs.items()} for spec in specs]


def problems(asked):
    with pytest.raises(SpecError) as caught:
        parse_sweep(asked)
    return {problem.pointer: problem for problem in caught.value.problems}


def test_every_combination_is_a_point():
    points = parse_sweep(body({"len": [8, 16], "engine": ["eager", "flash", "sdpa"]})).points
    assert [(p.values["len"], p.values["engine"]) for p in points] == [
        (n, e) for n in (8, 16) for e in ("eager", "flash", "sdpa")
    ]
    assert [p.body["engine"] for p in points[:3]] == ["eager", "flash", "sdpa"]
    assert all("vary" not in p.body for p in points)


def test_a_length_is_that_of_every_input_that_has_the_axis():
    assert shapes({"len": [8]}) == [alike([2, 4, 8, 8])]
    assert shapes({"q_len": [8]}) == [{"q": [2, 4, 8, 8], "k": [2, 4, 16, 8], "v": [2, 4, 16, 8]}]
    assert shapes({"kv_len": [8]}) == [{"q": [2, 4, 16, 8], "k": [2, 4, 8, 8], "v": [2, 4, 8, 8]}]
    assert shapes({"batch": [3]}) == [alike([3, 4, 16, 8])]


def test_what_the_body_has_equal_stays_equal_unless_it_varies_itself():
    assert shapes({"num_heads": [6]}) == [alike([2, 6, 16, 8])]
    assert shapes({"head_dim": [4]}) == [alike([2, 4, 16, 4])]
    assert shapes({"num_heads": [6], "num_kv_heads": [2]})[0]["k"] == [2, 2, 16, 8]
    grouped = {**seeded(2, 4, 16, 8), **seeded(2, 2, 16, 8, names="kv")}
    assert shapes({"num_heads": [8]}, grouped) == [
        {"q": [2, 8, 16, 8], "k": [2, 2, 16, 8], "v": [2, 2, 16, 8]}
    ]


@pytest.mark.parametrize("rank", [2, 3, 4])
def test_axes_are_found_at_every_rank(rank):
    shape = (2, 4, 16, 8)[-rank:]
    past = {name: {"seed": 1, "shape": list(shape)} for name in ("past_key", "past_value", "dout")}
    made = shapes({"past_len": [3], "q_len": [5]}, {**seeded(*shape), **past}, **{"return": ["out"]})[0]
    assert made["past_key"][-2:] == [3, 8]
    assert made["dout"][-2:] == made["q"][-2:] == [5, 8]
    assert made["k"][-2:] == [16, 8]


def test_packed_inputs_vary_in_length():
    packed = {"attention": {"num_heads": 4}}
    assert shapes({"len": [8]}, seeded(2, 16, 32), **packed) == [alike([2, 8, 32])]
    assert (
        "axes of their own"
        in problems(body({"head_dim": [8]}, seeded(2, 16, 32), **packed))["/vary/head_dim"].detail
    )


def test_latents_scans_and_learnt_scores_have_axes_of_their_own():
    latent = {
        **seeded(4, 6, 8, names=["q_nope"]), **seeded(4, 6, 4, names=["q_rope"]),
        **seeded(6, 16, names=["c_kv"]), **seeded(6, 4, names=["k_rope"]),
        **seeded(4, 16, 8, names=["w_uk", "w_uv"]),
    }  # fmt: skip
    made = shapes({"len": [10], "d_c": [32]}, latent, engine="mla")[0]
    assert (made["q_rope"], made["c_kv"], made["w_uv"]) == ([4, 10, 4], [10, 32], [4, 32, 8])
    scan = {
        **seeded(2, 8, 4, names=["x", "delta"]), **seeded(2, 8, 3, names="bc"), **seeded(2, 4, 3, names="a")
    }  # fmt: skip
    made = shapes({"len": [5], "states": [7]}, scan, engine="scan")[0]
    assert (made["x"], made["b"], made["a"]) == ([2, 5, 4], [2, 5, 7], [2, 4, 7])
    learnt = {**seeded(2, 16, 8), **seeded(1, 16, 16, names=["w_concat"]), **seeded(1, 16, names=["v_a"])}
    options = {"score": "concat"}
    made = shapes({"head_dim": [4], "num_heads": [4]}, learnt, engine="scoring", options=options)[0]
    assert (made["w_concat"], made["v_a"]) == ([1, 16, 8], [1, 16])


def test_fields_vary_by_their_path_and_leave_the_rest():
    asked = body({"attention/softcap": [0, 5.0], "dtype": ["float16"]}, attention={"is_causal": True})
    specs = [parse_run(point.body).spec for point in parse_sweep(asked).points]
    assert [(s.attention.softcap, s.attention.is_causal, s.dtype) for s in specs] == [
        (0, True, "float16"), (5, True, "float16"),
    ]  # fmt: skip
    assert asked["attention"] == {"is_causal": True}
    rope = parse_sweep(body({"attention/rope/theta": [1e4]}, attention={"rope": {"style": "half"}})).points[0]
    assert parse_run(rope.body).spec.attention.rope.theta == 1e4
    peaked = parse_sweep(body({"distribution": ["peaked"], "seed": [7]})).points[0].body["inputs"]
    assert {(given["distribution"], given["seed"]) for given in peaked.values()} == {("peaked", 7)}


@pytest.mark.parametrize(
    ("asked", "pointer", "says"),
    [
        ([], "", "object"),
        ({"engine": "flash", "inputs": {}}, "/vary", "required"),
        (body({}), "/vary", "required"),
        (body([]), "/vary", "required"),
        (body({"lenn": [1]}), "/vary/lenn", "did you mean len"),
        (body({"attention/": [1]}), "/vary/attention~1", "unknown"),
        (body({"len": 5}), "/vary/len", "a list"),
        (body({"len": []}), "/vary/len", "a list"),
        (body({"len": [8, "x"]}), "/vary/len/1", '"x"'),
        (body({"len": [8, True]}), "/vary/len/1", "true"),
        (body({"len": [8, -1]}), "/vary/len/1", "-1"),
        (body({"len": [8, 10**30]}), "/vary/len/1", "between"),
        (body({"len": [8, 8]}), "/vary/len/1", "already"),
        (body({"engine": ["flash", "eager", "flash"]}), "/vary/engine/2", "already"),
        (body({"len": [8], "q_len": [8]}), "/vary/q_len", "together"),
        (body({"attention": [{}], "attention/softcap": [1]}), "/vary/attention~1softcap", "as a whole"),
        (body({"len": list(range(MAX_POINTS + 1))}), "/vary", f"at most {MAX_POINTS}"),
        (body({f"attention/{n}": [1] for n in range(17)}), "/vary", "17 fields"),
        (body({"len": list(range(9)), "batch": list(range(9))}), "/vary", "81 points"),
        (body({"d_c": [1]}), "/vary/d_c", "no input has an axis d_c"),
        (body({"len": [8]}, {**seeded(16, 8), "k": [[1, 2]]}), "/inputs/k", '{"seed": 1'),
        (body({"seed": [8]}, {name: [[1.0]] for name in "qkv"}), "/vary/seed", "made from a seed"),
        (body({"skip_refused": [1]}, skip_refused="yes"), "/skip_refused", "true or false"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_with_its_place(asked, pointer, says):
    found = problems(asked)
    assert pointer in found, found
    assert says in found[pointer].detail


def test_numbers_that_are_sent_count_once_for_each_point():
    sent = {**seeded(512, 512), "v": [[0.5] * 512] * 512}
    assert len(parse_sweep(body({"engine": ["flash", "eager"]}, sent)).points) == 2
    found = problems(body({"seed": list(range(40))}, sent))[""]
    assert (found.status, "by seed" in found.detail) == (413, True)


# --- Whose fault it is ----------------------------------------------------------------------------


def told(vary, wrong, pointer):
    """The pointers of what is told when the points with some values have one problem."""
    request = parse_sweep(body(vary))
    found = {
        index: [FieldProblem(pointer, "code", "detail")]
        for index, point in enumerate(request.points)
        if wrong(**point.values)
    }
    return blame(request, found)


def test_a_problem_is_told_once_of_the_value_that_has_it():
    vary = {"len": [8, 16, 32], "engine": ["eager", "flash"]}
    (problem,) = told(vary, lambda len, engine: len == 32, "/inputs/q")
    assert (problem.pointer, problem.detail) == ("/vary/len/2", "len 32: detail")
    (problem,) = told(vary, lambda len, engine: engine == "flash", "/attention/softcap")
    assert (problem.pointer, problem.detail) == ("/vary/engine/1", 'engine "flash": detail')


def test_a_problem_of_one_combination_names_its_values():
    vary = {"engine": ["eager", "flash"], "len": [8, 16, 32]}
    (problem,) = told(vary, lambda len, engine: engine == "eager" and len == 32, "/inputs/q")
    assert (problem.pointer, problem.detail) == ("/vary/len/2", 'engine "eager", len 32: detail')


def test_a_problem_that_no_value_has_a_part_in_is_the_bodys():
    vary = {"len": [8, 16], "engine": ["eager", "flash"]}
    (problem,) = told(vary, lambda len, engine: True, "/attention/window")
    assert (problem.pointer, problem.detail) == ("/attention/window", "detail")


def test_a_value_that_is_wrong_alone_is_named_although_every_point_has_it():
    assert [problem.pointer for problem in told({"engine": ["x"]}, lambda engine: True, "/engine")] == [
        "/vary/engine/0"
    ]


def test_very_many_problems_are_counted():
    vary = {"len": list(range(8)), "engine": [f"e{i}" for i in range(8)]}
    found = told(vary, lambda len, engine: (len + int(engine[1:])) % 7, "/inputs/q")
    assert len(found) == 33
    assert "not listed" in found[-1].detail
