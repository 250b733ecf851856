"""What is refused, and why: where a spec asks its engine for more than the registry says it can.

Whatever a spec asks of an engine is a demand. An engine takes the spec when it meets all of them, and only
such engines are recommended: with the engine exchanged and nothing else changed, the spec is accepted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from kernels import registry
from kernels.limits import MAX_DECODE_LEN
from kernels.spec.declared import accepts
from kernels.spec.families import PLAIN
from kernels.spec.model import Options, RunSpec
from kernels.spec.problems import FieldProblem, all_of, join, one_of
from kernels.spec.results import DRAWN, GRADIENTS, TRACE

# Those that are no feature of their own: kv_dtype is one, and kv_scale goes with it.
OPTIONS = ("block_m", "block_n", "num_splits", "page_size")


class Demand(NamedTuple):
    """Something that a spec asks of an engine."""

    pointer: str
    what: str  # as it reads after "does not support"
    aside: str  # which value asks for it, or how much the engine of the spec could do
    met_by: frozenset[str]  # the engines that can

    @property
    def is_option(self) -> bool:
        """Whether it says how to compute, and can be left out without changing what is computed."""
        return self.pointer.startswith("/options/")


def refused(spec: RunSpec) -> list[FieldProblem]:
    """Everything that the engine of a spec cannot do, each with what to do about it, and what none can."""
    contradictions = list(_contradictions(spec))
    settled = {problem.pointer for problem in contradictions}
    demands = [demand for demand in _demands(spec) if demand.pointer not in settled]
    proviso = ", once the rest of the request is right" if contradictions else ""
    problems = []
    for demand in demands:
        if spec.engine not in demand.met_by:
            what = f"{demand.what} ({demand.aside})" if demand.aside else demand.what
            detail = f"engine {spec.engine} does not support {what}; {_remedy(demand, demands, proviso)}"
            problems.append(FieldProblem(demand.pointer, "unsupported", detail))
    return problems + contradictions


def _remedy(demand: Demand, demands: Sequence[Demand], proviso: str) -> str:
    """The engines that meet all demands; where there are none, what keeps those back that meet this one."""
    unmet = {
        name: [other for other in demands if name not in other.met_by]
        for name in registry.ENGINES
        if name in demand.met_by
    }
    if not unmet:
        return "no engine can yet"
    nearest = min(unmet.values(), key=_distance)
    able = f"{one_of(name for name, lacks in unmet.items() if lacks == nearest)} can{proviso}"
    if not nearest:
        return able
    lacking = list(dict.fromkeys(other.what for other in nearest))
    conflict = f"no one engine does it together with {all_of(lacking)}"
    if demand.is_option:
        return f"{conflict}: leave it out"
    return f"{conflict}; without {'it' if len(lacking) == 1 else 'them'} {able}"


def _distance(unmet: Sequence[Demand]) -> tuple[int, int]:
    """How much would have to be changed for an engine; options are the easiest to do without."""
    return sum(not demand.is_option for demand in unmet), len(unmet)


def _contradictions(spec: RunSpec) -> Iterator[FieldProblem]:
    """What no engine takes, whichever it is asked of."""
    rules = registry.rules_of(spec.engine)
    if rules is not None:
        yield from rules.problems(spec)
    options, gradients = spec.options, [name for name in spec.returns if name in (*GRADIENTS, *DRAWN)]
    if gradients and "dout" not in spec.inputs:
        yield FieldProblem("/inputs/dout", "needs", f"{', '.join(gradients)} need dout, of the shape of out")
    if spec.is_traced and spec.device == "cuda":
        traces = ", ".join(name for name in spec.returns if name in TRACE)
        detail = (
            f"a kernel cannot be watched on a GPU, only in Triton's interpreter on a CPU: ask for device cpu "
            f"or auto, or leave {traces} out"
        )
        yield FieldProblem("/device", "unsupported", detail)
    if options.num_splits is not None and spec.q_len > MAX_DECODE_LEN:
        detail = f"num_splits is for up to {MAX_DECODE_LEN} queries and q_len is {spec.q_len}; leave it out"
        yield FieldProblem("/options/num_splits", "unsupported", detail)
    if options.kv_dtype is None:
        if options.kv_scale != Options().kv_scale:
            detail = "kv_scale says how a quantised cache is scaled: leave it out, or ask for a kv_dtype too"
            yield FieldProblem("/options/kv_scale", "needs", detail)
    elif spec.is_latent:
        detail = "MLA caches latents, which no engine quantises: leave kv_dtype out"
        yield FieldProblem("/options/kv_dtype", "unsupported", detail)
    elif gradients or "dout" in spec.inputs:
        detail = (
            "rounding to codes has no useful gradient, and caches are for inference: leave kv_dtype out, or "
            "dout and the gradients"
        )
        yield FieldProblem("/options/kv_dtype", "unsupported", detail)


def _demands(spec: RunSpec) -> Iterator[Demand]:
    """Everything that a spec asks of an engine."""
    computes, engines = registry.ENGINES[spec.engine].computes, registry.ENGINES.items()
    yield Demand(
        "/engine", computes, "", frozenset(name for name, engine in engines if engine.computes == computes)
    )
    if spec.family is PLAIN:
        plain = frozenset(
            name
            for name, engine in engines
            if engine.family is PLAIN
            # Its own rules say what is missing; another one is no remedy then.
            and (name == spec.engine or spec.inputs.keys() >= set(engine.inputs_taken(spec.options.more)))
        )
        yield Demand("/inputs/q", "plain q, k and v", "", plain)
    for feature, pointer, given in features_asked(spec):
        yield Demand(pointer, registry.FEATURES[feature], given, _listing("features", feature))
    for index, name in enumerate(spec.returns):
        yield Demand(join("/return", index), f"the result {name}", "", _listing("returns", name))
    for name in OPTIONS:
        if getattr(spec.options, name) is not None:
            yield Demand(join("/options", name), f"the option {name}", "", _listing("options", name))
    for name, value in spec.options.more.items():
        able = (engine for engine, schema in registry.declared()[name].items() if accepts(schema, value))
        yield Demand(join("/options", name), f"the option {name}", "", frozenset(able))
    yield Demand("/dtype", f"dtype {spec.dtype}", "", _listing("dtypes", spec.dtype))
    if spec.device != "auto":
        yield Demand("/device", f"device {spec.device}", "", _listing("devices", spec.device))
    yield from _sizes(spec)


def _listing(declared: str, name: str) -> frozenset[str]:
    """The engines that declare ``name`` among their features, results, options, dtypes or devices."""
    engines = registry.ENGINES.values()
    return frozenset(engine.name for engine in engines if name in getattr(engine, declared))


def _sizes(spec: RunSpec) -> Iterator[Demand]:
    """What some engines can do up to a limit only."""
    decides = spec.family.decides
    sizes = [
        ("max_q_len", decides["q"], "q_len", spec.q_len),
        ("max_head_dim", decides["q"], "head dim", spec.head_dim),
        ("max_head_dim", decides["v"], "head dim", spec.v_head_dim),
    ]
    if spec.is_latent:
        sizes.append(("max_latent_dim", "c_kv", "latent dim", spec.inputs["c_kv"].shape[-1]))
    for limit, given, what, size in sizes:
        most = {name: getattr(engine, limit) for name, engine in registry.ENGINES.items()}
        met_by = frozenset(name for name, most_here in most.items() if most_here is None or size <= most_here)
        aside = f"its limit is {most[spec.engine]}"
        yield Demand(join("/inputs", given), f"a {what} of {size}", aside, met_by)


def features_asked(spec: RunSpec) -> Iterator[tuple[str, str, str]]:  # noqa: PLR0912 - one line per feature
    """The features a spec needs: (feature, pointer to what asks for it, its name or value)."""
    attention, inputs = spec.attention, spec.inputs
    if attention.scale is not None:
        yield "scale", "/attention/scale", "scale"
    if attention.is_causal:
        yield "causal", "/attention/is_causal", "is_causal"
    for name in ("q_positions", "kv_positions"):
        given = getattr(attention, name)
        if given is not None:
            feature = "position_offset" if isinstance(given, int) else "positions"
            yield feature, f"/attention/{name}", name
    if attention.window != (None, None):
        yield "window", "/attention/window", "window"
    if attention.softcap:
        yield "softcap", "/attention/softcap", "softcap"
    for name, feature in (
        ("alibi_slopes", "alibi"),
        ("rope", "rope"),
        ("sinks", "sinks"),
        ("pattern", "pattern"),
    ):
        if getattr(attention, name) is not None:
            yield feature, f"/attention/{name}", name
    if spec.is_packed:
        yield "packed", "/attention/num_heads", "num_heads"
    if spec.options.kv_dtype is not None and not spec.is_latent:  # of latents, no engine has it
        yield "kv_dtype", "/options/kv_dtype", spec.options.kv_dtype
    if spec.num_kv_heads != spec.num_heads:
        yield (
            "gqa",
            join("/inputs", spec.family.decides["k"]),
            f"{spec.num_heads} query heads, {spec.num_kv_heads} key heads",
        )
    if spec.v_head_dim != spec.head_dim:
        yield (
            "v_head_dim",
            join("/inputs", spec.family.decides["v"]),
            f"{spec.v_head_dim} beside {spec.head_dim}",
        )
    for name, feature in registry.INPUT_FEATURES.items():
        if name in inputs:
            yield feature, f"/inputs/{name}", name
