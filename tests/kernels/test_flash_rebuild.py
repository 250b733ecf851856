"""The backward pass of one query, against torch's derivatives."""

import numpy as np
import pytest
import torch

from kernels.flash.rebuild import MISTAKES, nudged, rebuild


def given(seed: int):
    rng = np.random.default_rng(seed)
    return rng.normal(size=6), rng.normal(size=(6, 3)), rng.normal(size=3)


@pytest.mark.parametrize("seed", range(4))
def test_slopes_are_those_of_torch(seed: int) -> None:
    s, v, dout = given(seed)
    scores, values = (torch.tensor(x, requires_grad=True) for x in (s, v))
    out = torch.softmax(scores, 0) @ values
    out.backward(torch.tensor(dout))
    found = rebuild(s, v, dout)
    assert found.out == pytest.approx(out.detach().numpy())
    assert found.kept == pytest.approx(torch.logsumexp(scores, 0).item())
    assert found.p == pytest.approx(torch.softmax(scores, 0).detach().numpy())
    assert found.ds == pytest.approx(scores.grad.numpy())
    assert found.dv == pytest.approx(values.grad.numpy())
    assert found.ds.sum() == pytest.approx(0)
    assert nudged(s, v, dout) == pytest.approx(found.ds, abs=1e-6)


def test_mistakes_show() -> None:
    s, v, dout = given(5)
    right = rebuild(s, v, dout)
    for mistake in MISTAKES:
        assert not np.allclose(rebuild(s, v, dout, mistake).ds, right.ds)
    assert rebuild(s, v, dout, "sum").p == pytest.approx(right.p * np.exp(s - s.max()).sum())
    assert rebuild(s, v, dout, "delta").ds == pytest.approx(right.p * right.dp)
    with pytest.raises(ValueError, match="mistake must be"):
        rebuild(s, v, dout, "none")
