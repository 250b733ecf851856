"""Inputs whose axes have names: which there are, and whether their shapes fit together.

Ordinary attention takes q, k and v, and beside them what linear recurrences know, and the parameters of
scores and windows that are learnt (PLAIN; of these an axis of heads may be 1, for all). Other families stand
in the place of q, k and v, and say of what these are made. Multi-head latent attention (MLA):

    q_nope [batch, heads, q_len, d_nope]     q_rope [batch, heads, q_len, d_rope]
    c_kv   [batch, kv_len, d_c]              k_rope [batch, kv_len, d_rope]        the cache, for all heads
    w_uk   [heads, d_c, d_nope]              w_uv   [heads, d_c, d_v]

    q = [q_nope ; q_rope]      k = [c_kv · w_uk ; k_rope]      v = c_kv · w_uv

DeepSeek's checkpoints keep both weights in one matrix, ``kv_b_proj.weight`` [heads · (d_nope + d_v), d_c]:
reshaped to [heads, d_nope + d_v, d_c] and its last two axes exchanged, its first d_nope columns are w_uk and
the others w_uv.

A selective scan (SCAN), Mamba's and Mamba-2's, is dual to attention with c for q, b for k and x for v:

    x [batch, heads, len, channels]          b, c [batch, groups, len, states]
    delta [batch, heads, len, channels]      a [heads, channels, states]            1 where all share a number
    d_skip [heads, channels]                 initial_state [batch, heads, channels, states]

An axis that is left out is left out everywhere: without ``batch`` q_nope has rank 3 and c_kv rank 2; without
heads too, q_nope and w_uk have rank 2.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kernels.spec.problems import TOO_LARGE, Problems, all_of, join, one_of
from kernels.spec.results import DRAWN, GRADIENTS, PRESENT

if TYPE_CHECKING:
    from kernels.spec.model import RunSpec

Axes = tuple[str, ...]
Shape4 = tuple[int, int, int, int]

HEADS = ("heads", "kv_heads", "groups")
ANYWHERE = ("attn_mask", "q_lens", "kv_lens")  # inputs that go with every family


@dataclass(frozen=True)
class Family:
    """Inputs that belong together. The axes of the first are those by whose number the rank is known."""

    name: str  # as it reads in "… say their heads themselves"
    axes: Mapping[str, Axes]
    optional: Axes = ()
    full: Axes = ()  # float32 whatever the dtype of the run, as masks are
    shared: Mapping[str, Axes] = field(default_factory=dict)  # axes of an input that may be 1
    # Of q, k and v as they are made, each axis a sum of others; and the input that decides each.
    made: Mapping[str, tuple[Axes, ...]] = field(default_factory=dict)
    decides: Mapping[str, str] = field(default_factory=lambda: {name: name for name in "qkv"})
    cache: str = ""  # what is cached, as it reads in "the cache is …"

    @property
    def first(self) -> str:
        """The input by which the rank is known."""
        return next(iter(self.axes))

    @property
    def required(self) -> tuple[str, ...]:
        """What a run cannot do without."""
        return tuple(name for name in self.axes if name not in self.optional)

    def axes_of(self, name: str, rank: int) -> Axes:
        """The axes of an input where the first one has this rank."""
        left_out = {4: (), 3: ("batch",)}.get(rank, ("batch", *HEADS))
        return tuple(axis for axis in self.axes[name] if axis not in left_out)

    def lengths(self, shapes: Mapping[str, Collection[int]]) -> dict[str, int]:
        """Axis → length where it first occurs; 1 where it is left out."""
        rank = len(shapes[self.first])
        found: dict[str, int] = {}
        for name in self.axes:
            if name in shapes:
                for axis, length in zip(self.axes_of(name, rank), shapes[name], strict=True):
                    found.setdefault(axis, length)
        return {axis: found.get(axis, 1) for axes in self.axes.values() for axis in axes}

    def made_shape(self, name: str, shapes: Mapping[str, Collection[int]]) -> Shape4:
        """``[batch, heads, len, dim]`` of q, k or v."""
        lengths = self.lengths(shapes)
        batch, heads, length, dim = (sum(lengths[part] for part in parts) for parts in self.made[name])
        return batch, heads, length, dim

    def canonical_shape(self, name: str, shape: tuple[int, ...], rank: int) -> Shape4:
        """``[batch, heads, ·, ·]`` of an input, with axes of 1 for those that it lacks."""
        named = list(zip(self.axes_of(name, rank), shape, strict=True))
        heads = next((length for axis, length in named if axis in HEADS), 1)
        batch = next((length for axis, length in named if axis == "batch"), 1)
        rows, columns = (*(length for axis, length in named if axis not in ("batch", *HEADS)), 1, 1)[:2]
        return batch, heads, rows, columns


RECURRENT = ("log_decay", "beta", "initial_state", "initial_normaliser")
PARAMETERS = ("w_q", "w_k", "v_a", "w_general", "w_concat", "w_p", "v_p")  # of scores and of windows
PLAIN = Family(
    name="q, k and v",
    axes={
        "q": ("batch", "heads", "q_len", "head_dim"),
        "k": ("batch", "kv_heads", "kv_len", "head_dim"),
        "v": ("batch", "kv_heads", "kv_len", "v_head_dim"),
        "log_decay": ("batch", "kv_heads", "kv_len"),
        "beta": ("batch", "kv_heads", "kv_len"),
        "initial_state": ("batch", "kv_heads", "head_dim", "v_head_dim"),
        "initial_normaliser": ("batch", "kv_heads", "head_dim"),
        "w_q": ("heads", "hidden", "head_dim"),
        "w_k": ("heads", "hidden", "head_dim"),
        "v_a": ("heads", "hidden"),
        "w_general": ("heads", "head_dim", "head_dim"),
        "w_concat": ("heads", "hidden", "2·head_dim"),
        "w_p": ("heads", "hidden of w_p", "head_dim"),
        "v_p": ("heads", "hidden of w_p"),
    },
    optional=(*RECURRENT, *PARAMETERS),
    full=RECURRENT,
    shared=dict.fromkeys(PARAMETERS, ("heads",)),
)
MLA = Family(
    name="MLA inputs",
    axes={
        "q_nope": ("batch", "heads", "q_len", "d_nope"),
        "q_rope": ("batch", "heads", "q_len", "d_rope"),
        "c_kv": ("batch", "kv_len", "d_c"),
        "k_rope": ("batch", "kv_len", "d_rope"),
        "w_uk": ("heads", "d_c", "d_nope"),
        "w_uv": ("heads", "d_c", "d_v"),
    },
    made={
        "q": (("batch",), ("heads",), ("q_len",), ("d_nope", "d_rope")),
        "k": (("batch",), ("heads",), ("kv_len",), ("d_nope", "d_rope")),
        "v": (("batch",), ("heads",), ("kv_len",), ("d_v",)),
    },
    decides={"q": "q_nope", "k": "c_kv", "v": "w_uv"},
    cache="c_kv and k_rope",
)
SCAN = Family(
    name="the inputs of a scan",
    axes={
        "x": ("batch", "heads", "len", "channels"),
        "b": ("batch", "groups", "len", "states"),
        "c": ("batch", "groups", "len", "states"),
        "delta": ("batch", "heads", "len", "channels"),
        "a": ("heads", "channels", "states"),
        "d_skip": ("heads", "channels"),
        "initial_state": ("batch", "heads", "channels", "states"),
    },
    optional=("d_skip", "initial_state"),
    full=("delta", "a", "d_skip", "initial_state"),
    shared={"delta": ("channels",), "a": ("channels", "states")},
    made={
        "q": (("batch",), ("heads",), ("len",), ("states",)),
        "k": (("batch",), ("groups",), ("len",), ("states",)),
        "v": (("batch",), ("heads",), ("len",), ("channels",)),
    },
    decides={"q": "c", "k": "b", "v": "x"},
    cache="its state",
)
REPLACING = (MLA, SCAN)  # families in the place of q, k and v
FAMILIES = (PLAIN, *REPLACING)
BESIDE = PLAIN.optional  # what only some engines know, beside q, k and v
NAMED = tuple(name for family in FAMILIES for name in family.axes)
FULL = tuple(name for family in FAMILIES for name in family.full)
PLAIN_INPUTS, MLA_INPUTS, SCAN_INPUTS = (family.required for family in FAMILIES)


def family_of(given: Iterable[str], takes: tuple[str, ...] = PLAIN_INPUTS) -> Family:
    """The family of some inputs, for an engine that takes these: the other one where there is a choice."""
    own = set(given).difference(PLAIN.axes)
    return next(
        (family for family in REPLACING if takes == family.required or not own.isdisjoint(family.axes)), PLAIN
    )


def check_company(family: Family, engine: str | None, given: Iterable[str], problems: Problems) -> None:
    """Refuse inputs that say in another way what those of a family say. ``engine``: the one that
    was asked for, where it takes no other."""
    if family is PLAIN:
        return
    every = all_of(family.required)
    for name in given:
        if name in (*family.axes, *ANYWHERE):
            continue
        if name == "dout":
            detail = f"gradients are those of q, k and v; leave dout out, or {_plainly(family)}"
        elif name in ("past_key", "past_value", "block_table"):
            detail = f"the cache is {family.cache}, the past included; leave {name} out"
        elif engine:
            detail = f"engine {engine} takes {every} in the place of q, k and v; leave {name} out"
        else:
            detail = f"q, k and v, or in their place {every}: not both; leave {name} out"
        problems.add(join("/inputs", name), "unsupported", detail)


def check_family(spec: RunSpec, most: int, problems: Problems) -> None:
    """Note every disagreement between the shapes of the inputs of a family other than PLAIN."""
    before, family = len(problems.found), spec.family
    if spec.attention.num_heads is not None:
        detail = f"num_heads means packed q, k and v; {family.name} say their heads themselves: leave it out"
        problems.add("/attention/num_heads", "unsupported", detail)
    for index, name in enumerate(spec.returns):
        if name in PRESENT:
            detail = (
                f"{name} is what k and v become; the cache is {family.cache} as they were sent: leave it out"
            )
            problems.add(join("/return", index), "unsupported", detail)
        elif name in (*GRADIENTS, *DRAWN):
            detail = f"{name} is a gradient of q, k and v; leave it out, or {_plainly(family)}"
            problems.add(join("/return", index), "unsupported", detail)
    if _ranks_are_right(spec, problems):
        _check_axes(spec, problems)
    if len(problems.found) == before:
        _check_made(spec, most, problems)


def check_beside(spec: RunSpec, problems: Problems) -> None:
    """Note what goes with q, k and v and has not the shape that they ask for."""
    if spec.family is not PLAIN:
        return
    lengths = {
        "batch": spec.batch, "heads": spec.num_heads, "kv_heads": spec.num_kv_heads, "kv_len": spec.kv_len,
        "head_dim": spec.head_dim, "2·head_dim": 2 * spec.head_dim, "v_head_dim": spec.v_head_dim,
    }  # fmt: skip
    for name in BESIDE:
        if name in spec.inputs:
            axes = PLAIN.axes_of(name, 4 if spec.is_packed else spec.rank)
            shape = list(spec.inputs[name].shape)
            if not _fits(shape, axes, lengths, PLAIN.shared.get(name, ())):
                wanted = ", ".join(str(lengths.get(axis, "any")) for axis in axes)
                detail = f"{name} has shape {shape}; with these inputs it is [{', '.join(axes)}] = [{wanted}]"
                problems.add(join("/inputs", name), "shape-mismatch", detail)


def _fits(shape: list[int], axes: Axes, lengths: dict[str, int], shared: Axes) -> bool:
    """Whether axes are as long as ``lengths`` say, or 1 where they may be shared. An axis that is new there
    is noted, once all others are right."""
    if len(shape) != len(axes):
        return False
    named = list(zip(axes, shape, strict=True))
    if any(
        length != lengths.get(axis, length) and (length, axis in shared) != (1, True)
        for axis, length in named
    ):
        return False
    for axis, length in named:
        lengths.setdefault(axis, length)
    return True


def _plainly(family: Family) -> str:
    return f"send these three instead of {family.name}, to another engine"


def _ranks_are_right(spec: RunSpec, problems: Problems) -> bool:
    before, family = len(problems.found), spec.family
    shape = list(spec.inputs[family.first].shape)
    ranks = range(2, len(family.axes[family.first]) + 1)
    if spec.rank not in ranks:
        layouts = one_of(f"[{', '.join(family.axes_of(family.first, rank))}]" for rank in ranks)
        detail = f"{family.first} has rank {spec.rank}, shape {shape}; it must be {layouts}"
        problems.add(join("/inputs", family.first), "wrong-rank", detail)
        return False
    for name in family.axes:
        if name not in spec.inputs:
            continue
        axes, shape = family.axes_of(name, spec.rank), list(spec.inputs[name].shape)
        if len(shape) != len(axes):
            detail = (
                f"{name} has rank {len(shape)}, shape {shape}; beside {family.first} of rank {spec.rank} it "
                f"is [{', '.join(axes)}]"
            )
            problems.add(join("/inputs", name), "wrong-rank", detail)
    return len(problems.found) == before


def _check_axes(spec: RunSpec, problems: Problems) -> None:
    """Every axis is as long as where it first occurs."""
    first: dict[str, tuple[str, int]] = {}
    for name in (name for name in spec.family.axes if name in spec.inputs):
        axes = spec.family.axes_of(name, spec.rank)
        for axis, length in zip(axes, spec.inputs[name].shape, strict=True):
            where, wanted = first.setdefault(axis, (name, length))
            if length != wanted and not (length == 1 and axis in spec.family.shared.get(name, ())):
                detail = (
                    f"{name} [{', '.join(axes)}] = {list(spec.inputs[name].shape)} has {axis} {length} but "
                    f"{where} has {axis} {wanted}; make them equal"
                )
                problems.add(join("/inputs", name), "shape-mismatch", detail)


def _check_made(spec: RunSpec, most: int, problems: Problems) -> None:
    """Heads that share a key are whole groups; and a few inputs and many heads make many keys, which the
    float64 reference holds."""
    groups = spec.num_kv_heads
    if spec.num_heads % groups if groups else spec.num_heads:
        detail = f"there are {spec.num_heads} heads, not a multiple of the {groups} groups that share a key"
        problems.add(join("/inputs", spec.family.decides["k"]), "heads", detail)
    elements = spec.batch * spec.num_heads * spec.kv_len * max(spec.head_dim, spec.v_head_dim)
    if elements > most:
        detail = (
            f"the keys of {spec.num_heads:,} heads for {spec.batch:,} × {spec.kv_len:,} tokens are "
            f"{elements:,} numbers; at most {most:,} are accepted: lower the heads or kv_len"
        )
        problems.add(join("/inputs", spec.family.decides["k"]), "too-large", detail, TOO_LARGE)
