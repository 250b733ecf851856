"""Whatever JSON comes, parsing answers with a spec or a SpecError, and a spec survives its own JSON."""

import json
import sys
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernels.estimate import estimate
from kernels.registry import ENGINES, declared
from kernels.spec import RunSpec, SpecError, parse_run
from kernels.spec.attention import ATTENTION_FIELDS
from kernels.spec.declared import SHARED
from kernels.spec.results import RESULTS
from kernels.spec.run import BODY_FIELDS, INPUTS
from tests.kernels.cases import Case, cases

NAMES = sorted(
    {*BODY_FIELDS, *INPUTS, *RESULTS, *ATTENTION_FIELDS, *SHARED, *declared(), "b64", "seed", "shape", "type"}
)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.integers(-2, 20)
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(
        ["flash", "reference", "float16", "inf", "nan", "auto", "half", "yarn", "AAAA", *RESULTS]
    )
)
KEYS = st.sampled_from(NAMES) | st.text(max_size=4)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=5),
    max_leaves=25,
)
SETTINGS = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))


def parse(body: object) -> RunSpec | None:
    try:
        return parse_run(body).spec
    except SpecError as error:
        refused = error
    assert refused.problems
    assert refused.status in (400, 413, 422)
    json.dumps([[p.pointer, p.detail] for p in refused.problems], ensure_ascii=False).encode()
    return None


@SETTINGS
@given(JSON)
def test_arbitrary_json_never_crashes(body: object) -> None:
    parse(body)


@SETTINGS
@given(
    st.fixed_dictionaries(
        {"engine": st.sampled_from(["flash", "reference"])},
        optional={name: JSON for name in BODY_FIELDS if name != "engine"},
    )
)
def test_arbitrary_fields_never_crash(body: object) -> None:
    parse(body)


@SETTINGS
@given(
    st.dictionaries(st.sampled_from(ATTENTION_FIELDS), JSON), st.dictionaries(st.sampled_from(INPUTS), JSON)
)
def test_arbitrary_attention_and_inputs_never_crash(
    attention: dict[str, Any], inputs: dict[str, Any]
) -> None:
    parse(
        {"engine": "reference", "inputs": {"q": [[1.0]], "k": [[1.0]], "v": [[1.0]]}, "attention": attention}
    )
    parse({"engine": "reference", "inputs": {"q": [[1.0]], "k": [[1.0]], "v": [[1.0]]} | inputs})


@st.composite
def valid_bodies(draw: st.DrawFn) -> dict[str, Any]:
    sizes = st.integers(0, 6)
    batch, kv_heads, group, q_len, kv_len = (draw(sizes) for _ in range(5))
    d, e = draw(sizes), draw(sizes)
    heads = kv_heads * group

    def seeded(*shape: int) -> dict[str, Any]:
        return {
            "seed": draw(st.integers(0, 2**63 - 1)),
            "shape": list(shape),
            "distribution": draw(st.sampled_from(["normal", "uniform", "peaked"])),
        }

    integers = st.integers(-9, 9)
    side = st.none() | st.integers(0, 9)
    attention = {
        "scale": draw(st.none() | st.floats(-1e3, 1e3)),
        "is_causal": draw(st.booleans()),
        "causal_alignment": draw(st.sampled_from(["bottom_right", "top_left"])),
        "q_positions": draw(st.none() | integers | st.lists(integers, min_size=q_len, max_size=q_len)),
        "kv_positions": draw(st.none() | integers | st.lists(integers, min_size=kv_len, max_size=kv_len)),
        "window": [draw(side), draw(side)],
        "softcap": draw(st.just(0.0) | st.floats(1.2e-38, 100)),
        "alibi_slopes": draw(st.none() | st.just("auto")),
        "sinks": draw(
            st.none() | st.lists(st.just("-inf") | st.floats(-9, 9), min_size=heads, max_size=heads)
        ),
    }
    return {
        "engine": draw(st.sampled_from(["reference", "eager"])),
        "dtype": draw(st.sampled_from(["float32", "float16", "bfloat16", "float64"])),
        "inputs": {
            "q": seeded(batch, heads, q_len, d),
            "k": seeded(batch, kv_heads, kv_len, d),
            "v": seeded(batch, kv_heads, kv_len, e),
        },
        "attention": attention,
        "return": draw(st.lists(st.sampled_from(["out", "lse", "scores", "weights"]), min_size=1)),
        "timing": {"warmup": draw(st.integers(0, 3)), "iters": draw(st.integers(1, 5))},
    }


@SETTINGS
@given(valid_bodies())
def test_a_valid_spec_survives_its_own_json_and_can_be_estimated(body: dict[str, Any]) -> None:
    spec = parse_run(body).spec
    assert RunSpec.from_dict(json.loads(json.dumps(spec.to_dict(), allow_nan=False))) == spec
    cost = estimate(spec)
    pairs = spec.batch * spec.num_heads * spec.q_len * spec.kv_len
    assert 0 <= cost.flops <= 2 * pairs * (spec.head_dim + spec.v_head_dim)
    assert 0 < cost.predicted_seconds < sys.float_info.max
    json.dumps(cost.to_dict(), allow_nan=False)


@SETTINGS
@given(cases(gradients=True))
def test_every_feature_survives_its_own_json_and_can_be_estimated(case: Case) -> None:
    spec, _ = case.on("reference", **{"return": sorted(ENGINES["reference"].returns)})
    assert RunSpec.from_dict(json.loads(json.dumps(spec.to_dict(), allow_nan=False))) == spec
    json.dumps(estimate(spec).to_dict(), allow_nan=False)
