"""Our rotary embedding kernel in the interpreter, against the float64 formula and complex numbers."""

import numpy as np
import pytest
import torch

from kernels.flash.rotation import rotator
from kernels.rope import cos_sin
from kernels.rope import rotate as exact
from kernels.spec.model import Rope
from tests.kernels.cases import compute, make


@pytest.mark.parametrize("style", ["interleaved", "half"])
@pytest.mark.parametrize(("dim", "rotated", "dim_offset"), [(8, 8, 0), (59, 32, 0), (40, 12, 7), (2, 2, 0)])
def test_pairs_turn_and_the_rest_stays(style: str, dim: int, rotated: int, dim_offset: int) -> None:
    x = np.random.default_rng(1).standard_normal((2, 3, 37, dim)).astype(np.float32)
    positions = np.stack([np.arange(37), np.arange(37)[::-1] + 1000])
    cos, sin = cos_sin(Rope(style), rotated, positions)
    got = rotator("cpu")(x, cos, sin, style=style, dim_offset=dim_offset)
    np.testing.assert_allclose(got, exact(x, cos, sin, style=style, dim_offset=dim_offset), rtol=0, atol=2e-6)
    beside = np.r_[0:dim_offset, dim_offset + rotated : dim]
    np.testing.assert_array_equal(got[..., beside], x[..., beside])


def test_one_angle_for_all_batch_rows_is_a_complex_product() -> None:
    x = np.random.default_rng(2).standard_normal((3, 2, 5, 16)).astype(np.float32)
    cos, sin = cos_sin(Rope("interleaved"), 16, np.arange(5)[None, :])
    turned = torch.view_as_complex(torch.from_numpy(x).unflatten(-1, (8, 2))) * torch.from_numpy(
        (cos + 1j * sin)[:, None].astype(np.complex64)
    )
    got = rotator("cpu")(x, cos, sin, style="interleaved", dim_offset=0)
    np.testing.assert_allclose(got, torch.view_as_real(turned).flatten(-2).numpy(), atol=1e-6)


@pytest.mark.parametrize("shape", [(1, 1, 0, 8), (0, 2, 3, 8)])
def test_nothing_to_turn(shape: tuple[int, ...]) -> None:
    cos, sin = cos_sin(Rope("half"), 8, np.arange(shape[2])[None, :])
    assert rotator("cpu")(np.zeros(shape, np.float32), cos, sin, style="half", dim_offset=0).shape == shape


def test_the_flash_engine_turns_its_queries_and_keys_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from kernels.engines.reference import reference
    from kernels.flash import launch

    calls = []
    made = launch.rotator

    def watched(device: str):  # type: ignore[no-untyped-def]
        calls.append(device)
        return made(device)

    monkeypatch.setattr(launch, "rotator", watched)
    spec, arrays = make(
        "flash", (2, 4, 2, 9, 33, 16), attention={"rope": {"style": "half"}, "is_causal": True},
        **{"return": ["out", "present_key"]},
    )  # fmt: skip
    got, expected = compute(spec, arrays), reference(spec, arrays, ("out", "present_key"))
    assert calls == ["cpu"]
    for name in expected:
        np.testing.assert_allclose(got[name], expected[name], atol=2e-6, err_msg=name)
