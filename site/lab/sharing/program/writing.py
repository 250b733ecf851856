"""The program, from top to bottom."""

import math
from typing import Any

from kernels.spec.results import GRADIENTS
from lab.sharing.program import inputs, masks, places, rotation
from lab.sharing.program.facts import Facts, Lines, is_by_row, typed
from lab.sharing.program.literals import literal
from lab.sharing.program.places import with_suffix

LEAVES = "leaves = [x.requires_grad_() for x in (q, k, v)]"
COMPARED = ("out", "lse", "weights", *GRADIENTS)  # what a program computes of what a run may return


def program(facts: Facts) -> str:
    """The text of a program that computes the run again. Raises Unsayable."""
    facts.check()
    body = [
        *block([*inputs.opening(facts), *inputs.inputs(facts), *watched(facts)]),
        *block(places.places(facts)),
        *block(arranged(facts)),
        *block(scored(facts)),
        *block(masked(facts)),
        *block(averaged(facts)),
        *block(returned(facts)),
        *block(compared(facts)),
    ]
    functions = [
        *inputs.rounding(facts),
        *inputs.drawing(facts),
        *rotation.function(facts),
        *masks.functions(facts),
    ]
    text = "\n".join([*functions, "", *body])
    return "\n".join([*heading(facts), *imports(text), text]).rstrip() + "\n"


def block(lines: Lines) -> Lines:
    """With an empty line before it."""
    return ["", *lines] if lines else []


def heading(facts: Facts) -> Lines:
    return [f'"""{facts.title}', "", f"{facts.address}", '"""', ""]


def imports(text: str) -> Lines:
    """What the text uses, in order."""
    standard = [f"import {name}" for name in ("hashlib", "math") if f"{name}." in text]
    more = {"from pathlib import Path": "Path(", "from statistics import NormalDist": "NormalDist("}
    standard += [line for line, sign in more.items() if sign in text]
    return [*standard, *([""] if standard else []), "import numpy as np", "import torch"]


def watched(facts: Facts) -> Lines:
    """For gradients torch has to watch what is done with the inputs."""
    return [LEAVES] if facts.spec.differentiates and not facts.spec.is_packed else []


# -- q, k and v ------------------------------------------------------------------------------------


def arranged(facts: Facts) -> Lines:
    """To q [batch, heads, n, d], k and v [batch, heads, m, …], or without the axes in front."""
    spec = facts.spec
    lines = latents(facts) if spec.is_latent else plain(facts)
    groups = spec.num_heads // spec.num_kv_heads if spec.num_kv_heads else 1
    if groups > 1 and not spec.is_latent:
        lines += [
            f"# Each key head is shared by {groups} query heads.",
            f"k, v = k.repeat_interleave({groups}, -3), v.repeat_interleave({groups}, -3)",
        ]
    return lines


def plain(facts: Facts) -> Lines:
    spec = facts.spec
    lines: Lines = []
    if spec.is_packed:
        lines += ["# Heads out of the last axis: to [batch, heads, length, dim]."]
        for name, heads in (("q", spec.num_heads), ("k", spec.num_kv_heads), ("v", spec.num_kv_heads)):
            if not (spec.is_paged and name != "q"):
                lines.append(f"{name} = {name}.unflatten(-1, ({heads}, -1)).transpose(1, 2)")
        if spec.differentiates:  # gradients are not packed
            lines.append(LEAVES)
    if spec.is_paged:
        lines += [
            "# Put the pages of each row side by side: [batch, kv_heads, tokens, dim].",
            "table = block_table.clamp(min=0)  # −1 is no page, and beyond what is read",
            "k, v = (x[table].flatten(1, 2).transpose(1, 2) for x in (k, v))",
        ]
    if facts.lifts:
        which = "q" if spec.is_paged else "q, k, v"
        added = "[None, None]" if spec.rank == 2 else "[None]"
        lines.append("# With axes for batch and heads.")
        lines.append(f"q = q{added}" if spec.is_paged else f"{which} = (x{added} for x in (q, k, v))")
    lines += without_padding(facts, "q_lens", "q")
    lines += rotation.turning(facts)
    if facts.past:
        lift = ("[None, None]" if spec.rank == 2 else "[None]") if facts.lifts else ""
        lines += [
            "# The past comes first" + (", and was rotated when it came." if spec.attention.rope else "."),
            f"k, v = torch.cat([past_key{lift}, k], -2), torch.cat([past_value{lift}, v], -2)",
        ]
    return [*lines, *without_padding(facts, "kv_lens", "k", "v")]


def without_padding(facts: Facts, lens: str, *names: str) -> Lines:
    """Padding may be anything, and 0 times NaN is NaN."""
    if lens not in facts.lengths:
        return []
    length = facts.spec.q_len if lens == "q_lens" else facts.spec.kv_len
    filled = [f"{name}.masked_fill({beyond(length, lens)}, 0)" for name in names]
    if len(names) > 1:
        both = ", ".join(names)
        filled = [f"(x.masked_fill({beyond(length, lens)}, 0) for x in ({both}))"]
    return ["# Padding may be anything: 0 in its place.", f"{', '.join(names)} = {filled[0]}"]


def beyond(length: int, lens: str) -> str:
    return f"(torch.arange({length}) >= {lens}[:, None])[:, None, :, None]"


def latents(facts: Facts) -> Lines:
    """MLA: keys and values of every head from latents that all share."""
    spec = facts.spec
    lines: Lines = []
    if facts.lifts:
        every = "[None]" if spec.rank == 3 else "[None, None]"
        heads = "" if spec.rank == 3 else "[None]"
        lines += [
            "# With axes for batch and heads.",
            f"q_nope, q_rope = q_nope{every}, q_rope{every}",
            "c_kv, k_rope = c_kv[None], k_rope[None]",
            *([f"w_uk, w_uv = w_uk{heads}, w_uv{heads}"] if heads else []),
        ]
    if facts.rank == 4:
        lines.append("c_kv, k_rope = c_kv[:, None], k_rope[:, None]  # one for all heads")
    lines += without_padding(facts, "q_lens", "q_nope", "q_rope")
    lines += without_padding(facts, "kv_lens", "c_kv", "k_rope")
    lines += rotation.turning(facts)
    lines.append("# Keys and values of each head from the latents, and the rotated part that all share.")
    lines.append("k, v = c_kv @ w_uk, c_kv @ w_uv")
    shared = "k_rope.expand(*k.shape[:-1], -1)" if facts.rank > 2 else "k_rope"
    lines.append(f"q, k = torch.cat([q_nope, q_rope], -1), torch.cat([k, {shared}], -1)")
    return lines


# -- scores ----------------------------------------------------------------------------------------


def scored(facts: Facts) -> Lines:
    """Everything that is added to a score."""
    spec, attention = facts.spec, facts.spec.attention
    if attention.scale is not None:
        scaled = f" * {attention.scale!r}"
    else:
        scaled = f" / math.sqrt({spec.head_dim})" if spec.head_dim > 1 else ""
    lines = [f"scores = q @ k.mT{scaled}"]
    if attention.softcap:
        cap = literal(attention.softcap)
        lines += ["# Softcapped: no score leaves this range.", f"scores = {cap} * torch.tanh(scores / {cap})"]
    if attention.alibi_slopes is not None:
        lines += ["# ALiBi: the further a key is, the less it counts.", *slopes(facts)]
        spread = "[:, :, None, None]" if is_by_row(attention.alibi_slopes) else "[:, None, None]"
        lines.append(f"scores = scores + slopes{spread} * (j - i)")
    if "attn_mask" in spec.inputs and spec.inputs["attn_mask"].dtype != "bool":
        lines += ["# A mask of numbers is added.", "scores = scores + attn_mask"]
    return lines


def slopes(facts: Facts) -> Lines:
    """In float32, as every engine has them."""
    given, heads = facts.spec.attention.alibi_slopes, facts.spec.num_heads
    if given != "auto":
        values: Any = [list(row) if isinstance(row, tuple) else row for row in given or ()]
        return with_suffix(typed("slopes", values, ", dtype=torch.float32"), ".double()")
    below = 1 << max(heads.bit_length() - 1, 0)
    made = f"[2 ** (-8 * h / {below}) for h in range(1, {below + 1})]"
    if heads > below:  # every second slope of twice as many heads
        made += f" + [2 ** (-8 * h / {2 * below}) for h in range(1, {2 * (heads - below) + 1}, 2)]"
    return [f"slopes = torch.tensor({made}).double()"]


def masked(facts: Facts) -> Lines:
    lines = masks.allowed(facts)
    return [*lines, "scores = scores.masked_fill(~allowed, -math.inf)"] if lines else []


# -- softmax and the mean --------------------------------------------------------------------------


def averaged(facts: Facts) -> Lines:
    attention = facts.spec.attention
    lines: Lines = []
    logits = "scores"
    if attention.sinks is not None:
        lines += [
            "# A sink takes a share of the softmax, and has no value.",
            *with_suffix(typed("sinks", list(attention.sinks), ", dtype=torch.float32"), ".double()"),
            "column = sinks[:, None, None].expand(*scores.shape[:-1], 1)",
            "logits = torch.cat([scores, column], -1)",
        ]
        logits = "logits"
    if masks.may_be_empty(facts):
        lines += [
            "# A query that sees no key has no weights, and an output of 0.",
            f"blind = ({logits} == -math.inf).all(-1, keepdim=True)",
            f"weights = torch.softmax({logits}.masked_fill(blind, 0), -1).masked_fill(blind, 0)",
        ]
    else:
        lines.append(f"weights = torch.softmax({logits}, -1)")
    if attention.sinks is not None:
        lines.append("weights = weights[..., :-1]")
    lines.append("out = weights @ v")
    if "lse" in facts.spec.returns:
        lines.append(f"lse = torch.logsumexp({logits}, -1)")
    return [*lines, *unpadded(facts)]


def unpadded(facts: Facts) -> Lines:
    """Results of queries that are padding."""
    if "q_lens" not in facts.lengths:
        return []
    returns = facts.spec.returns
    lines = [
        "# Queries beyond the length of their row are padding.",
        f"padding = {beyond(facts.spec.q_len, 'q_lens')}",
        "out = out.masked_fill(padding, 0)",
    ]
    if "weights" in returns:
        lines.append("weights = weights.masked_fill(padding, 0)")
    if "lse" in returns:
        lines.append("lse = lse.masked_fill(padding[..., 0], -math.inf)")
    return lines


def returned(facts: Facts) -> Lines:
    """With the axes of the inputs; and the gradients."""
    spec = facts.spec
    made = [name for name in ("out", "lse", "weights") if name == "out" or name in spec.returns]
    lines: Lines = []
    if spec.is_packed:
        lines.append("out = out.transpose(1, 2).flatten(2)  # packed again")
    elif facts.lifts:
        first = "0, 0" if spec.rank == 2 else "0"
        lines += [f"{name} = {name}[{first}]" for name in made]
    if spec.differentiates:
        lines.append("dq, dk, dv = torch.autograd.grad(out, leaves, dout)")
        lines += [f"{name} = {name}.detach()" for name in made]
    return [*lines, "print(out)"]


# -- the run's own numbers -------------------------------------------------------------------------


def compared(facts: Facts) -> Lines:
    """How far they are, where the file of the run lies beside the program."""
    names = [name for name in COMPARED if name in facts.spec.returns and numbers_in(facts, name)]
    if not facts.numerics or not names:
        return []
    lines: Lines = []
    if facts.spec.options.kv_dtype:
        lines += [
            f"# The run kept its keys and values as {facts.spec.options.kv_dtype}; here they are whole,",
            "# so what that costs is part of the difference.",
        ]
    comparison = loop(facts, names)
    if inputs.reads(facts):
        return [*lines, "# How far the run's own numbers are.", *comparison]
    return [
        *lines,
        "# How far the run's own numbers are, if they lie beside this program:",
        f"# curl -o {facts.file} '{facts.file_address}'",
        f'if Path("{facts.file}").exists():',
        f'    run = np.load("{facts.file}")',
        *(f"    {line}" for line in comparison),
    ]


def loop(facts: Facts, names: list[str]) -> Lines:
    """Over the results that both have, with the bound of each where there is one."""
    bounds = {name: bound_of(facts, name) for name in names}
    is_bounded = all(bound is not None for bound in bounds.values())
    rows = [
        f'("{name}", {name}, {bound:.2g})' if is_bounded else f'("{name}", {name})'
        for name, bound in bounds.items()
    ]
    told = ", of at most {bound:.2g} by rounding alone" if is_bounded else ""
    return [
        f"for name, mine{', bound' if is_bounded else ''} in [{', '.join(rows)}]:",
        "    theirs = torch.tensor(run[name]).double()",
        "    off = torch.where(mine == theirs, 0, mine - theirs).abs().max()",
        f'    print(f"{{name}}: largest difference {{off:.2g}}{told}")',
    ]


def numbers_in(facts: Facts, name: str) -> int:
    spec = facts.spec
    n, m, d, e = spec.q_len, spec.kv_len, spec.head_dim, spec.v_head_dim
    sizes = {"out": n * e, "lse": n, "weights": n * m, "dq": n * d, "dk": m * d, "dv": m * e}
    return spec.batch * spec.num_heads * sizes[name]


def bound_of(facts: Facts, name: str) -> float | None:
    """How far rounding may have taken the run's numbers from those of the program; None where both are in
    float64, and nobody bounded it."""
    numerics = facts.numerics if name == "out" else (facts.numerics.get("arrays") or {}).get(name, {})
    bound = numerics.get("bound")
    if not isinstance(bound, int | float) or not bound or not math.isfinite(bound):
        return None
    return 2 * bound if facts.spec.dtype == "float64" else float(bound)
