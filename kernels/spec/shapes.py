"""Do the shapes of one request fit together? Checked on descriptions alone, before any data are made."""

from __future__ import annotations

from kernels.spec.families import PLAIN, check_beside, check_family
from kernels.spec.model import Positions, RunSpec
from kernels.spec.problems import TOO_LARGE, Problems, join
from kernels.spec.rope import rotated_dim

RANKS = (2, 3, 4)
LAYOUTS = "[len, dim], [heads, len, dim] or [batch, heads, len, dim]"


def check_shapes(spec: RunSpec, problems: Problems, max_elements: int) -> None:
    """Note every disagreement between the shapes of the inputs and of the lists in ``attention``, and more
    rows than ``max_elements``."""
    before = len(problems.found)
    if spec.family is not PLAIN:
        check_family(spec, max_elements, problems)
    elif _ranks_are_right(spec, problems) and _packing_is_right(spec, problems):
        _check_qkv(spec, max_elements, problems)
    if len(problems.found) > before:
        return
    _check_rows(spec, max_elements, problems)
    if len(problems.found) > before:
        return
    check_beside(spec, problems)
    _check_past(spec, problems)
    _check_lengths(spec, problems)
    _check_mask(spec, problems)
    _check_dout(spec, problems)
    _check_attention_lists(spec, problems)


def _shape(spec: RunSpec, name: str) -> list[int]:
    return list(spec.inputs[name].shape)


def _ranks_are_right(spec: RunSpec, problems: Problems) -> bool:
    """Rank 2, 3 or 4, the same for q, k and v; pages and packed inputs have one possible rank."""
    before = len(problems.found)
    for name in ("q", "k", "v"):
        shape = _shape(spec, name)
        if spec.is_paged and name != "q":
            if len(shape) != 4:
                detail = f"with a block_table, {name} is [num_blocks, page_size, kv_heads, dim], not {shape}"
                problems.add(join("/inputs", name), "wrong-rank", detail)
        elif spec.is_packed and len(shape) != 3:
            detail = (
                f"num_heads means packed [batch, len, heads·dim], but {name} {shape} has rank {len(shape)}; "
                "leave num_heads out"
            )
            problems.add(join("/inputs", name), "wrong-rank", detail)
        elif len(shape) not in RANKS:
            detail = f"{name} has rank {len(shape)}, shape {shape}; it must be {LAYOUTS}"
            problems.add(join("/inputs", name), "wrong-rank", detail)
        elif len(shape) != spec.rank and spec.rank in RANKS:
            detail = f"{name} has rank {len(shape)} but q has rank {spec.rank}; send all three alike"
            problems.add(join("/inputs", name), "wrong-rank", detail)
    for name in ("past_key", "past_value"):
        if name in spec.inputs and len(spec.inputs[name].shape) not in RANKS:
            shape = _shape(spec, name)
            detail = f"{name} has rank {len(shape)}, shape {shape}; it must be {LAYOUTS}"
            problems.add(join("/inputs", name), "wrong-rank", detail)
    if spec.is_paged and len(_shape(spec, "block_table")) != 2:
        detail = f"block_table is [batch, max_blocks], not {_shape(spec, 'block_table')}"
        problems.add("/inputs/block_table", "wrong-rank", detail)
    return len(problems.found) == before


def _packing_is_right(spec: RunSpec, problems: Problems) -> bool:
    """Packed widths are a multiple of their head counts; pages have their own."""
    if not spec.is_packed:
        return True
    before = len(problems.found)
    given = spec.attention.num_kv_heads
    if spec.is_paged and given not in (None, spec.num_kv_heads):
        detail = f"num_kv_heads is {given} but the pages of k have {spec.num_kv_heads}; leave it out"
        problems.add("/attention/num_kv_heads", "heads", detail)
    packed = (("q", "num_heads"), ("k", "num_kv_heads"), ("v", "num_kv_heads"))
    for name, field in packed[:1] if spec.is_paged else packed:
        heads = spec.num_heads if name == "q" else spec.num_kv_heads
        width = spec.inputs[name].shape[2]
        if width % heads:
            detail = f"{name} is {width} wide, which {heads} heads do not divide"
            problems.add(join("/attention", field), "heads", detail)
    return len(problems.found) == before


def _check_qkv(spec: RunSpec, most: int, problems: Problems) -> None:
    q, k, v = (spec.canonical_shape(name) for name in ("q", "k", "v"))
    if spec.is_paged:
        if k[:3] != v[:3]:
            detail = (
                f"v pages {_shape(spec, 'v')} must match k pages {_shape(spec, 'k')} but for the last axis"
            )
            problems.add("/inputs/v", "shape-mismatch", detail)
        if spec.inputs["block_table"].shape[0] != q[0]:
            detail = f"block_table has {spec.inputs['block_table'].shape[0]} rows but q has batch {q[0]}"
            problems.add("/inputs/block_table", "shape-mismatch", detail)
        if spec.options.page_size not in (None, k[1]):
            detail = f"page_size is {spec.options.page_size} but the pages of k hold {k[1]}"
            problems.add("/options/page_size", "shape-mismatch", detail)
        _check_gathered(spec, most, problems)
    else:
        for name, shape in (("k", k), ("v", v)):
            if shape[0] != q[0]:
                detail = f"{name} has batch {shape[0]} but q has batch {q[0]}"
                problems.add(join("/inputs", name), "shape-mismatch", detail)
        if k[1] != v[1]:
            detail = f"v has {v[1]} heads but k has {k[1]}; they must have the same number"
            problems.add("/inputs/v", "shape-mismatch", detail)
        if k[2] != v[2]:
            detail = f"v has length {v[2]} but k has length {k[2]}; every key needs its value"
            problems.add("/inputs/v", "shape-mismatch", detail)
    if q[3] != k[3]:
        detail = f"k has dim {k[3]} but q has dim {q[3]}; q·k needs the same dim"
        problems.add("/inputs/k", "shape-mismatch", detail)
    heads, kv_heads = spec.num_heads, spec.num_kv_heads
    if (kv_heads == 0 and heads != 0) or (kv_heads and heads % kv_heads):
        detail = f"q has {heads} heads, not a multiple of the {kv_heads} heads of k and v"
        problems.add("/attention/num_kv_heads" if spec.is_packed else "/inputs/k", "heads", detail)


def _check_gathered(spec: RunSpec, most: int, problems: Problems) -> None:
    """Pages are shared, but the reference puts them in a row: a small table can name them many times."""
    rows = spec.batch * max(spec.num_kv_heads, 1) * spec.kv_len
    elements = rows * max(spec.head_dim, spec.v_head_dim, 1)
    if elements > most:
        detail = (
            f"the block_table names {spec.kv_len:,} tokens for each of {spec.batch:,} rows, {elements:,} "
            f"numbers in all; at most {most:,} are accepted: shorten the table"
        )
        problems.add("/inputs/block_table", "too-large", detail, TOO_LARGE)


def _check_rows(spec: RunSpec, most: int, problems: Problems) -> None:
    """Rows of q and of k cost memory and time even where a dim of 0 leaves them without elements: every row
    has a sum and a maximum. Heads count even where a length of 0 leaves them without rows."""
    for name, heads, length in (("q", spec.num_heads, spec.q_len), ("k", spec.num_kv_heads, spec.kv_len)):
        if spec.is_paged and name == "k":
            continue  # their own check has what is held
        rows = spec.batch * heads * max(length, 1)
        if rows > most:
            detail = (
                f"{name} has {rows:,} rows (batch {spec.batch:,} × {heads:,} heads × length {length:,}); at "
                f"most {most:,} are accepted: lower the batch, the heads or the length"
            )
            pointer = join("/inputs", spec.family.decides[name])
            problems.add(pointer, "too-large", detail, TOO_LARGE)


def _check_past(spec: RunSpec, problems: Problems) -> None:
    names = [name for name in ("past_key", "past_value") if name in spec.inputs]
    if len(names) == 1:
        missing = "past_value" if names == ["past_key"] else "past_key"
        problems.add(join("/inputs", missing), "needs", f"{names[0]} was sent without {missing}; send both")
        return
    if not names:
        return
    if spec.is_paged:
        detail = (
            "a paged cache holds the past itself: send its pages in k and v, without past_key and past_value"
        )
        problems.add("/inputs/past_key", "shape-mismatch", detail)
        return
    batch, kv_heads, past = spec.batch, spec.num_kv_heads, spec.inputs["past_key"].shape[-2:-1]
    rank = 4 if spec.is_packed else spec.rank
    for name, dim in (("past_key", spec.head_dim), ("past_value", spec.v_head_dim)):
        wanted = [batch, kv_heads, *past, dim][-rank:]
        if _shape(spec, name) != wanted:
            detail = f"{name} has shape {_shape(spec, name)}; with these inputs it must be {wanted}"
            problems.add(join("/inputs", name), "shape-mismatch", detail)


def _check_lengths(spec: RunSpec, problems: Problems) -> None:
    for name in ("q_lens", "kv_lens"):
        if name in spec.inputs and spec.inputs[name].shape != (spec.batch,):
            detail = f"{name} has {spec.inputs[name].shape[0]} entries but the batch is {spec.batch}"
            problems.add(join("/inputs", name), "shape-mismatch", detail)


def _check_mask(spec: RunSpec, problems: Problems) -> None:
    if "attn_mask" not in spec.inputs or problems.under("/inputs"):
        return
    shape = _shape(spec, "attn_mask")
    full = [spec.batch, spec.num_heads, spec.q_len, spec.kv_len]
    fits = len(shape) <= 4 and all(
        have in (1, want) for have, want in zip(reversed(shape), reversed(full), strict=False)
    )
    if not fits:
        detail = f"attn_mask {shape} does not broadcast to [batch, heads, q_len, kv_len] = {full}"
        problems.add("/inputs/attn_mask", "shape-mismatch", detail)


def _check_dout(spec: RunSpec, problems: Problems) -> None:
    if "dout" in spec.inputs:
        shape = _shape(spec, "q")
        shape[-1] = spec.v_head_dim * (spec.num_heads if spec.is_packed else 1)
        if _shape(spec, "dout") != shape:
            detail = f"dout has shape {_shape(spec, 'dout')} but out has shape {shape}"
            problems.add("/inputs/dout", "shape-mismatch", detail)


def _check_attention_lists(spec: RunSpec, problems: Problems) -> None:
    """Positions, slopes and sinks have one entry per token or head, or one list per batch row."""
    attention = spec.attention
    _check_list(attention.q_positions, "q_positions", spec.q_len, "queries", spec.batch, problems=problems)
    _check_list(attention.kv_positions, "kv_positions", spec.kv_len, "keys", spec.batch, problems=problems)
    if not isinstance(attention.alibi_slopes, str):
        _check_list(
            attention.alibi_slopes, "alibi_slopes", spec.num_heads, "heads", spec.batch, problems=problems
        )
    _check_list(attention.sinks, "sinks", spec.num_heads, "heads", spec.batch, problems=problems)
    rope = attention.rope
    if rope is None:
        return
    fresh = spec.canonical_shape("k")[2] if not spec.is_paged else spec.kv_len
    if rope.positions is not None and not isinstance(rope.positions, int) and spec.q_len != fresh:
        detail = f"a list of RoPE positions needs q ({spec.q_len}) and the fresh k ({fresh}) equally long"
        problems.add("/attention/rope/positions", "shape-mismatch", detail)
    else:
        _check_list(rope.positions, "rope/positions", spec.q_len, "queries", spec.batch, problems=problems)
    width = rotated_dim(rope, spec.rope_head_dim)
    if width < 0 or rope.dim_offset + width > spec.rope_head_dim or width % 2:
        what = "d_rope" if spec.is_latent else "a head dim"
        detail = (
            f"RoPE rotates pairs: {width} dimensions from {rope.dim_offset} do not fit {what} of "
            f"{spec.rope_head_dim}; give an even dim"
        )
        problems.add("/attention/rope/dim", "out-of-range", detail)


def _check_list(
    given: Positions | tuple[float, ...] | tuple[tuple[float, ...], ...],
    name: str,
    length: int,
    what: str,
    batch: int,
    *,
    problems: Problems,
) -> None:
    if given is None or isinstance(given, int):
        return
    pointer = f"/attention/{name}"
    rows = [row for row in given if isinstance(row, tuple)]
    if not rows:
        if len(given) != length:
            problems.add(pointer, "shape-mismatch", f"{name} has {len(given)} entries for {length} {what}")
        return
    if len(rows) != batch:
        detail = f"{name} has {len(rows)} lists but the batch is {batch}"
        problems.add(pointer, "shape-mismatch", detail)
    for number, row in enumerate(rows):
        if len(row) != length:
            detail = f"{name} has {len(row)} entries for {length} {what}"
            problems.add(join(pointer, number), "shape-mismatch", detail)
            return
