"""Tiles on a GPU: what is launched is what is judged, defaults always pass, a named remedy works."""

import importlib
import itertools
import re
from typing import Any

import pytest

from kernels.compiling import StandIn, without_data
from kernels.flash.tiles import BACKWARD, choose_tiling
from kernels.registry import ENGINES
from kernels.spec import RunSpec, parse_run
from kernels.targets import TARGETS
from kernels.tiles import tile_problems, tilings
from kernels.tuning import table

DIMS = (1, 16, 59, 64, 128, 129, 256)


def seeded(*shape: int) -> dict[str, Any]:
    return {"seed": 1, "shape": list(shape)}


def tiled(
    dtype: str = "float16",
    dim: int = 128,
    *,
    v_dim: int | None = None,
    length: int = 1024,
    q_len: int | None = None,
    engine: str = "flash",
    returns: tuple[str, ...] = ("out",),
    **options: Any,
) -> RunSpec:
    q_len, v_dim = q_len or length, v_dim or dim
    inputs = {"q": seeded(1, 4, q_len, dim), "k": seeded(1, 2, length, dim), "v": seeded(1, 2, length, v_dim)}
    if "dq" in returns:
        inputs["dout"] = seeded(1, 4, q_len, v_dim)
    body = {"engine": engine, "dtype": dtype, "inputs": inputs, "options": options, "return": list(returns)}
    return parse_run(body).spec


def latent(dtype: str = "float16", latent_dim: int = 512, q_len: int = 1024, **options: Any) -> RunSpec:
    inputs = {
        "q_nope": seeded(1, 16, q_len, 128), "q_rope": seeded(1, 16, q_len, 64),
        "c_kv": seeded(1, 1024, latent_dim), "k_rope": seeded(1, 1024, 64),
        "w_uk": seeded(16, latent_dim, 128), "w_uv": seeded(16, latent_dim, 128),
    }  # fmt: skip
    return parse_run({"engine": "mla", "dtype": dtype, "inputs": inputs, "options": options}).spec


ALL = ("out", "weights", "dq", "dk", "dv")
LAUNCHES = {
    "flash": tiled(returns=ALL),
    "flash, few": tiled(q_len=20, length=40, returns=ALL),
    "flash, asked": tiled(returns=ALL, block_m=32, block_n=128),
    "flash, codes": tiled(returns=("out", "weights"), kv_dtype="fp8_e4m3"),
    "flash, float32": tiled("float32", returns=ALL),
    "flash, warps": tiled(num_warps=16, num_stages=1),
    "decode": tiled(engine="decode", q_len=3),
    "decode, asked": tiled(engine="decode", q_len=3, block_n=16, num_splits=4),
    "paged, few": tiled(engine="paged", q_len=1, kv_dtype="int8"),
    "paged": tiled(engine="paged", block_n=16),
    "mla, absorbed": latent(form="absorbed"),
    "mla, absorbed, asked": latent(form="absorbed", block_m=16, block_n=64),
    "mla, expanded": latent(form="expanded", block_n=32),
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", LAUNCHES)
def test_the_tiles_that_are_judged_are_those_that_are_launched(name: str, target: str) -> None:
    spec = LAUNCHES[name]
    kernels_of = importlib.import_module(ENGINES[spec.engine].module).kernels_of
    judged = tilings(spec, target)
    given = {name: given for name, _, given in kernels_of(spec, without_data(spec), StandIn(target))}
    assert {name for name, arguments in given.items() if "BLOCK_N" in arguments} == set(judged)
    for kernel, tiling in judged.items():
        arguments = given[kernel]
        names = ("BLOCK_M", "BLOCK_N", "num_warps", "num_stages")
        assert tuple(arguments[name] for name in names) == tiling, kernel


def test_warps_and_stages_are_as_asked_for_and_judged_so() -> None:
    usual = tilings(tiled(), "sm_90")["flash_forward"]
    asked = tilings(tiled(num_warps=16, num_stages=1), "sm_90")["flash_forward"]
    assert asked == usual._replace(num_warps=16, num_stages=1)
    (problem,) = tile_problems(tiled("float32", block_m=64, block_n=64, num_warps=1), ["sm_90"])
    assert "float32 multiply-adds" in problem.detail


def test_the_table_shows_both_backward_kernels_in_the_tiles_that_they_share() -> None:
    keys, queries = ([key for key in table() if key.kernel == kernel] for kernel in BACKWARD)
    assert len(keys) == len(queries) > 0
    for key in keys:
        assert table()[key._replace(kernel=BACKWARD[1])].tiling == table()[key].tiling, key


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("dim", DIMS)
def test_default_tiles_are_always_compiled(dtype: str, dim: int) -> None:
    for v_dim, length in itertools.product((1, 64, 256), (1, 100, 4096)):
        for engine, q_len, returns in (
            ("flash", None, ALL), ("decode", 1, ("out",)), ("paged", 1, ("out",)), ("paged", 20, ("out",)),
        ):  # fmt: skip
            sizes = {"v_dim": v_dim, "length": length, "q_len": q_len}
            assert not tile_problems(tiled(dtype, dim, **sizes, engine=engine, returns=returns), TARGETS)
        for kv_dtype, engine in itertools.product(("int8", "fp8_e5m2"), ("flash", "decode")):
            spec = tiled(dtype, dim, v_dim=v_dim, length=length, q_len=1, engine=engine, kv_dtype=kv_dtype)
            assert not tile_problems(spec, TARGETS)
    for latent_dim, form in itertools.product((1, 64, 512), ("absorbed", "expanded")):
        assert not tile_problems(latent(dtype, latent_dim, form=form), TARGETS)


@pytest.mark.parametrize(
    ("dtype", "dim", "tile", "target", "named"),
    [
        # 256 · (128 + 128) · 4 bytes. Compiled for more than 140 s.
        ("float32", 128, (256, 128), "sm_80", "256 KiB of registers, and a multiprocessor has 192 KiB"),
        # 128 · 64 · (128 + 128) / (8 · 32): 45 s
        ("float32", 128, (128, 64), "sm_90", "8,192 float32 multiply-adds"),
        # 256 · (128 + 64) · 4 bytes, 256 · 128 · 2 bytes of weights; with every term 30 s
        ("float16", 64, (256, 128), "sm_90", "256 KiB of registers"),
        # 32 · (1024 + 16) · 4 bytes, 32 · 1024 · 2 bytes of weights in each of 4 warps; with every term 36 s
        ("float16", 16, (32, 1024), "sm_80", "386 KiB of registers"),
        # (16 + 256 + 256) · 256 · 2 bytes
        ("bfloat16", 256, (16, 256), "sm_80", "264 KiB of shared memory, and a multiprocessor has 163 KiB"),
    ],
)
def test_a_tile_beyond_the_machine_is_refused_before_it_is_compiled(
    dtype: str, dim: int, tile: tuple[int, int], target: str, named: str
) -> None:
    (problem,) = tile_problems(tiled(dtype, dim, block_m=tile[0], block_n=tile[1]), [target])
    assert problem.pointer == "/options/block_m"
    assert named in problem.detail
    assert f"flash_forward in tiles of {tile[0]} × {tile[1]} for {target}" in problem.detail
    found = re.search(r"block_m (\d+) with block_n (\d+)", problem.detail)
    assert found
    m, n = map(int, found.groups())
    assert not tile_problems(tiled(dtype, dim, block_m=m, block_n=n), [target])
    for larger in ((2 * m, n), (m, 2 * n)):
        if larger[0] <= tile[0] and larger[1] <= tile[1]:
            assert tile_problems(tiled(dtype, dim, block_m=larger[0], block_n=larger[1]), [target])


@pytest.mark.parametrize("engine", ["decode", "paged"])
def test_a_tile_that_only_the_flash_kernel_could_not_hold_is_compiled(engine: str) -> None:
    # 16 rows, whatever the queries: 16 · (512 + 64) numbers in registers. Of flash, 128 · (512 + 64).
    few = tiled(dim=64, q_len=4, engine=engine, block_n=512)
    assert not tile_problems(few, ["sm_90"])
    (problem,) = tile_problems(tiled(dim=64, block_n=512), ["sm_90"])
    assert problem.pointer == "/options/block_n"
    (problem,) = tile_problems(tiled(dim=64, q_len=4, engine=engine, block_n=1024), ["sm_90"])
    assert "decode_split in tiles of 16 × 1024 for sm_90" in problem.detail
    assert problem.detail.endswith("The largest that fits is block_n 512.")


def test_every_kernel_is_judged() -> None:
    # Scores alone: 256 · 128 numbers fit, and beside sums of 256 · 128 they do not.
    asked = {"block_m": 256, "block_n": 128}
    (problem,) = tile_problems(tiled(dim=64, returns=("out", "weights"), **asked), ["sm_90"])
    assert problem.detail.startswith("flash_forward")
    # (128 + 128) · (512 + 64) numbers of latents in shared memory
    (problem,) = tile_problems(latent(form="absorbed", block_m=128, block_n=64), ["sm_90"])
    assert problem.detail.startswith("latent_attention")
    (problem,) = tile_problems(latent(form="expanded", block_m=256, block_n=128), ["sm_90"])
    assert problem.detail.startswith("flash_forward")


def test_gradients_have_tiles_of_their_own_whatever_is_asked_for() -> None:
    # They are the smaller ones, so that they never stand in the way of a forward pass that fits.
    for target in TARGETS:
        default = choose_tiling(tiled(returns=ALL), target, "flash_backward_keys")
        asked = choose_tiling(tiled(returns=ALL, block_m=128, block_n=64), target, "flash_backward_keys")
        assert asked == default
        small = choose_tiling(tiled(returns=ALL, block_m=16, block_n=16), target, "flash_backward_keys")
        assert small[:2] == (16, 16)


def test_only_the_targets_too_small_for_a_tile_are_named() -> None:
    spec = tiled("float16", 128, block_m=64, block_n=256)
    assert not tile_problems(tiled("float16", 128, block_m=128, block_n=64), TARGETS)
    named = [problem.detail.split(":")[0] for problem in tile_problems(spec, TARGETS)]
    assert named == ["flash_forward in tiles of 64 × 256 for sm_120"]
