"""The inputs of multi-head latent attention (MLA): which there are, and whether their shapes fit together.

    q_nope [batch, heads, q_len, d_nope]     q_rope [batch, heads, q_len, d_rope]
    c_kv   [batch, kv_len, d_c]              k_rope [batch, kv_len, d_rope]        the cache, for all heads
    w_uk   [heads, d_c, d_nope]              w_uv   [heads, d_c, d_v]

They stand for q, k and v of ordinary attention, with as many key heads as query heads:

    q = [q_nope ; q_rope]      k = [c_kv · w_uk ; k_rope]      v = c_kv · w_uv

An axis that is left out is left out everywhere: without ``batch`` q_nope has rank 3 and c_kv rank 2; without
``heads`` too, q_nope and w_uk have rank 2. DeepSeek's checkpoints keep both weights in one matrix,
``kv_b_proj.weight`` [heads · (d_nope + d_v), d_c]: reshaped to [heads, d_nope + d_v, d_c] and its last two
axes exchanged, its first d_nope columns are w_uk and the others w_uv.
"""

from __future__ import annotations

from collections.abc import Collection

from kernels.spec.model import RunSpec
from kernels.spec.problems import TOO_LARGE, Problems, all_of, join, one_of
from kernels.spec.results import GRADIENTS, PRESENT

AXES = {
    "q_nope": ("batch", "heads", "q_len", "d_nope"),
    "q_rope": ("batch", "heads", "q_len", "d_rope"),
    "c_kv": ("batch", "kv_len", "d_c"),
    "k_rope": ("batch", "kv_len", "d_rope"),
    "w_uk": ("heads", "d_c", "d_nope"),
    "w_uv": ("heads", "d_c", "d_v"),
}
MLA_INPUTS = tuple(AXES)
_ALL = all_of(MLA_INPUTS)
_PLAIN = "send these three instead of MLA inputs, to another engine than mla"
PLAIN_INPUTS = ("q", "k", "v")
REPLACED = (*PLAIN_INPUTS, "past_key", "past_value", "block_table", "dout")  # what MLA inputs cannot go with


def required_inputs(engine: str, given: Collection[str]) -> tuple[str, ...]:
    """What a run cannot do without: q, k and v, or for engine mla, and beside any of them, MLA's inputs."""
    is_latent = engine == "mla" or not set(MLA_INPUTS).isdisjoint(given)
    return MLA_INPUTS if is_latent else PLAIN_INPUTS


def check_company(engine: str, given: Collection[str], problems: Problems) -> None:
    """Refuse inputs that say the same as MLA's in another way."""
    if required_inputs(engine, given) != MLA_INPUTS:
        return
    for name in REPLACED:
        if name in given:
            if name == "dout":
                detail = f"gradients are those of q, k and v; leave dout out, or {_PLAIN}"
            elif name not in PLAIN_INPUTS:
                detail = f"the cache of MLA is c_kv and k_rope, the past included; leave {name} out"
            elif engine == "mla":
                detail = f"engine mla takes {_ALL} in the place of q, k and v; leave {name} out"
            else:
                detail = f"q, k and v, or in their place {_ALL}: not both; leave {name} out"
            problems.add(join("/inputs", name), "unsupported", detail)


def check_latents(spec: RunSpec, most: int, problems: Problems) -> bool:
    """Note every disagreement between the shapes of MLA's inputs; whether there was none."""
    before = len(problems.found)
    if spec.attention.num_heads is not None:
        detail = "num_heads means packed q, k and v; MLA inputs say their heads themselves: leave it out"
        problems.add("/attention/num_heads", "unsupported", detail)
    for index, name in enumerate(spec.returns):
        if name in PRESENT:
            detail = (
                f"{name} is what k and v become; with MLA the cache is c_kv and k_rope as they were sent: "
                "leave it out"
            )
            problems.add(join("/return", index), "unsupported", detail)
        elif name in GRADIENTS:
            detail = f"{name} is a gradient of q, k and v; leave it out, or {_PLAIN}"
            problems.add(join("/return", index), "unsupported", detail)
    if _ranks_are_right(spec, problems):
        _check_axes(spec, problems)
    if len(problems.found) == before:
        _check_expanded(spec, most, problems)
    return len(problems.found) == before


def axes_of(name: str, rank: int) -> tuple[str, ...]:
    """The axes of an input where q_nope has this rank."""
    left_out = ("batch", "heads")[: 4 - rank]
    return tuple(axis for axis in AXES[name] if axis not in left_out)


def _ranks_are_right(spec: RunSpec, problems: Problems) -> bool:
    before = len(problems.found)
    shape = list(spec.inputs["q_nope"].shape)
    if spec.rank not in (2, 3, 4):
        layouts = one_of(f"[{', '.join(axes_of('q_nope', rank))}]" for rank in (2, 3, 4))
        detail = f"q_nope has rank {spec.rank}, shape {shape}; it must be {layouts}"
        problems.add("/inputs/q_nope", "wrong-rank", detail)
        return False
    for name in MLA_INPUTS:
        axes, shape = axes_of(name, spec.rank), list(spec.inputs[name].shape)
        if len(shape) != len(axes):
            detail = (
                f"{name} has rank {len(shape)}, shape {shape}; beside q_nope of rank {spec.rank} it is "
                f"[{', '.join(axes)}]"
            )
            problems.add(join("/inputs", name), "wrong-rank", detail)
    return len(problems.found) == before


def _check_axes(spec: RunSpec, problems: Problems) -> None:
    """Every axis is as long as where it first occurs."""
    first: dict[str, tuple[str, int]] = {}
    for name in MLA_INPUTS:
        axes = axes_of(name, spec.rank)
        for axis, length in zip(axes, spec.inputs[name].shape, strict=True):
            where, wanted = first.setdefault(axis, (name, length))
            if length != wanted:
                detail = (
                    f"{name} [{', '.join(axes)}] = {list(spec.inputs[name].shape)} has {axis} {length} but "
                    f"{where} has {axis} {wanted}; make them equal"
                )
                problems.add(join("/inputs", name), "shape-mismatch", detail)


def _check_expanded(spec: RunSpec, most: int, problems: Problems) -> None:
    """A few latents and many heads make many keys, which the float64 reference holds."""
    elements = spec.batch * spec.num_heads * spec.kv_len * max(spec.head_dim, spec.v_head_dim)
    if elements > most:
        detail = (
            f"the keys of {spec.num_heads:,} heads for {spec.batch:,} × {spec.kv_len:,} latents are "
            f"{elements:,} numbers; at most {most:,} are accepted: lower the heads or kv_len"
        )
        problems.add("/inputs/c_kv", "too-large", detail, TOO_LARGE)
