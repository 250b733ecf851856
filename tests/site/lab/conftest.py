"""The lab without a broker: what would be sent to it is recorded, and runs are finished by hand."""

import math

import numpy as np
import pytest

# The project's own modules are imported in the fixtures: this file is read before Django is set up.

THREE_BY_TWO = {"q": [[1, 0], [0, 1], [1, 1]], "k": [[1, 0], [0, 1], [1, 1]], "v": [[1, 0], [0, 2], [2, 2]]}


@pytest.fixture(autouse=True)
def _no_broker(sent, charged):
    """Whatever a test submits stays here, and costs nothing."""


@pytest.fixture
def submit(db):
    """A queued run of the worked example, or of what the keywords change in it."""
    from kernels.spec import parse_run
    from workers import runs

    def submit(*, owner="", inputs=THREE_BY_TWO, returns=("out", "lse", "weights"), **body):
        parsed = parse_run({"engine": "flash", "inputs": inputs, "return": list(returns), **body})
        return runs.submit(parsed, owner=owner, caller="somebody", budget_seconds=30)

    return submit


NUMERICS = {
    "reference": "float64",
    "max_abs_err": 1.25e-7,
    "max_rel_err": 2e-7,
    "rmse": 4e-8,
    "bound": 2.5e-6,
    "within_bound": True,
    "nan_count": 0,
}
INTERPRETER = {
    "method": "interpreter",
    "representative": False,
    "warmup": 1,
    "samples_ns": [987_654_321] * 5,
    "median_ns": 987_654_321,
    "p10_ns": 987_654_321,
    "p90_ns": 987_654_321,
}


@pytest.fixture
def finish():
    """Finish a queued run as a worker would: results by plain numpy, figures as given."""
    from kernels import arrays
    from kernels.spec import RunSpec
    from workers import artifacts, runs

    def attend(spec, inputs):
        q, k, v = (
            np.asarray(inputs[name], dtype=np.float64).reshape(spec.canonical_shape(name)) for name in "qkv"
        )
        group = spec.num_heads // max(spec.num_kv_heads, 1)
        k, v = (np.repeat(array, group, axis=1) for array in (k, v))
        scores = spec.scale * q @ k.swapaxes(-1, -2)
        masked = scores.copy()
        if spec.attention.is_causal:
            masked[..., np.triu(np.ones(masked.shape[-2:], bool), 1 + spec.kv_len - spec.q_len)] = -np.inf
        lse = np.log(np.exp(masked).sum(-1))
        weights = np.exp(masked - lse[..., None])
        found = {
            "out": weights @ v,
            "lse": lse,
            "weights": weights,
            "scores": scores,
            "masked_scores": masked,
        }
        rank = spec.rank
        return {
            name: found[name].astype(np.float32).reshape(found[name].shape[4 - rank :])
            for name in spec.returns
        }

    def finish(run, **changes):
        spec = RunSpec.from_dict(run.spec)
        stored = artifacts.load_submitted(run)
        inputs = {
            name: stored[name].astype(np.float32)
            if name in stored
            else arrays.generate(name, given.seed, given.shape, given.distribution, "float32")
            for name, given in spec.inputs.items()
        }
        claimed = runs.claim(run.id)
        result = {
            "numerics": NUMERICS,
            "timing": INTERPRETER,
            "memory": {"peak_bytes": 3 * 2**20, "method": "tracemalloc", "predicted_bytes": 4 * 2**20},
            "traffic": {"bytes_read": 2048, "bytes_written": 512, "method": "interpreter"},
            "cost": {"flops": 72, "bytes_min": 144, "arithmetic_intensity": 0.5},
            "notes": ["scores were rebuilt by a second kernel"],
            **changes,
        }
        assert runs.finish(
            claimed,
            inputs=inputs,
            results=attend(spec, inputs),
            input_info={
                name: {"shape": list(array.shape), "dtype": "float32", "sha256": arrays.sha256(array)}
                for name, array in inputs.items()
            },
            result=result,
            environment={"device": "cpu", "torch": "2.13.0", "triton": "3.7.1", "interpreter": True},
        )
        return runs.get(run.id)

    return finish


@pytest.fixture
def seeded():
    """Seeded inputs of a [batch, heads, length, dim] shape."""

    def seeded(batch, heads, length, dim, *, kv_heads=None, seed=7):
        shapes = {"q": heads, "k": kv_heads or heads, "v": kv_heads or heads}
        return {
            name: {"seed": seed, "shape": [batch, count, length, dim], "distribution": "normal"}
            for name, count in shapes.items()
        }

    return seeded


def close(text, value):
    """Whether a number printed for people (with a true minus) is this value to its last digit."""
    return math.isclose(float(text.replace("−", "-")), value, abs_tol=5.1e-5)
