"""What a spec asks of the engines whose memory is a state: their options, and what contradicts itself.

No torch: the web process checks and prices runs.
"""

from __future__ import annotations

from collections.abc import Iterator

from kernels import registry
from kernels.integers import next_power_of_two
from kernels.spec.model import RunSpec
from kernels.spec.problems import FieldProblem, join
from kernels.spec.results import STATES

LEAST_TRIALS = 6  # of which the smallest and the largest hold the median with 95 %
MAX_SCANNED = 2**16  # numbers of the states of all tokens, which a parallel prefix holds at once
ALL_PAIRS = ("parallel", "quadratic")  # forms that make no state
MAX_RANKED = 2**20  # weights of all heads together, which are taken apart for their rank
MAX_DUAL_STATES = 256  # as wide as keys of linear attention may be


def is_normalised(spec: RunSpec) -> bool:
    """Whether outputs are divided by the sums of their weights."""
    asked = registry.option(spec, "normalise")
    return "beta" not in spec.inputs if asked is None else bool(asked)


def is_dual(spec: RunSpec) -> bool:
    """Whether a scan is computed as linear attention over all pairs."""
    return spec.engine == "scan" and bool(registry.option(spec, "form") == "quadratic")


def chunk_of_scan(spec: RunSpec) -> int | None:
    """Tokens to a chunk; None: what suits. One chunk of all tokens is a scan, and chunks of one token are a
    recurrence."""
    form = registry.option(spec, "form")
    if form == "recurrent":
        return 1
    if form == "scan":
        return next_power_of_two(max(1, spec.q_len))
    chunk: int | None = registry.option(spec, "chunk_size")
    return chunk


def is_ranked(spec: RunSpec) -> bool:
    """Whether the weights of all heads are taken apart: not by a state that came from before, nor where they
    are too many."""
    return "initial_state" not in spec.inputs and 0 < weights(spec) <= MAX_RANKED


def weights(spec: RunSpec) -> int:
    """Of all heads together."""
    return spec.batch * spec.num_heads * spec.q_len * spec.kv_len


def problems(spec: RunSpec) -> Iterator[FieldProblem]:
    """Why a spec of linear, performer or scan cannot be computed."""
    if not spec.num_heads:
        detail = f"there are no heads, and engine {spec.engine} needs one at least"
        yield FieldProblem(join("/inputs", spec.family.first), "heads", detail)
    if spec.attention.is_causal and spec.q_len != spec.kv_len:
        detail = (
            f"with is_causal each query reads what the tokens up to it left behind: q has length "
            f"{spec.q_len} and k {spec.kv_len}; make them equal, or set is_causal to false"
        )
        yield FieldProblem("/inputs/q", "shape-mismatch", detail)
    yield from {"linear": _of_linear, "performer": _of_performer, "scan": _of_scan}[spec.engine](spec)


def _of_linear(spec: RunSpec) -> Iterator[FieldProblem]:
    for name in ("log_decay", "beta"):
        if name in spec.inputs and not spec.attention.is_causal:
            detail = f"{name} orders the tokens: set is_causal to true, or leave {name} out"
            yield FieldProblem("/attention/is_causal", "needs", detail)
    normalised, form = is_normalised(spec), registry.option(spec, "form")
    if "beta" in spec.inputs and normalised:
        detail = "what the delta rule writes has no sum of weights: leave normalise or beta out"
        yield FieldProblem("/options/normalise", "unsupported", detail)
    if "beta" in spec.inputs and form == "parallel":
        detail = "form parallel cannot follow the delta rule, which beta asks for; use chunked or recurrent"
        yield FieldProblem("/options/form", "unsupported", detail)
    if form == "parallel":
        yield from _stateless(spec, "chunked or recurrent")
    for index, name in enumerate(spec.returns):
        if name == "normaliser" and not normalised and form != "parallel":
            detail = "outputs are not divided by a normaliser here: leave it out, or set normalise to true"
            yield FieldProblem(join("/return", index), "unsupported", detail)
    yield from _start_problems(spec, normalised)
    yield from _chunk_problems(spec)


def _stateless(spec: RunSpec, others: str) -> Iterator[FieldProblem]:
    """Results that a form over all pairs does not make."""
    for index, name in enumerate(spec.returns):
        if name in STATES:
            detail = f"form {registry.option(spec, 'form')} makes no {name}; use form {others}"
            yield FieldProblem(join("/return", index), "unsupported", detail)


def _start_problems(spec: RunSpec, normalised: bool) -> Iterator[FieldProblem]:
    """A state to start from has a normaliser where, and only where, outputs are normalised."""
    pair = ("initial_state", "initial_normaliser")
    if normalised:
        for name, other in (pair, pair[::-1]):
            if name in spec.inputs and other not in spec.inputs:
                detail = f"{name} was sent without {other}, and outputs are normalised: send both"
                yield FieldProblem(join("/inputs", other), "needs", detail)
    elif "initial_normaliser" in spec.inputs:
        detail = "outputs are not normalised here: leave initial_normaliser out, or set normalise to true"
        yield FieldProblem("/inputs/initial_normaliser", "unsupported", detail)


def _chunk_problems(spec: RunSpec) -> Iterator[FieldProblem]:
    form = registry.option(spec, "form")
    if registry.option(spec, "chunk_size") is not None and form != "chunked":
        detail = f"chunk_size is for form chunked, and form is {form}: leave it out"
        yield FieldProblem("/options/chunk_size", "unsupported", detail)


def _of_performer(spec: RunSpec) -> Iterator[FieldProblem]:
    trials = registry.option(spec, "trials")
    if 0 < trials < LEAST_TRIALS:
        detail = (
            f"{trials} trials cannot say where a median lies with 95 % confidence: send {LEAST_TRIALS} or "
            "more, or 0 for none"
        )
        yield FieldProblem("/options/trials", "out-of-range", detail)
    if not spec.head_dim:
        detail = "q and k have no dimensions, and directions are drawn among these; send one at least"
        yield FieldProblem("/inputs/q", "out-of-range", detail)


def _of_scan(spec: RunSpec) -> Iterator[FieldProblem]:
    yield from _chunk_problems(spec)
    if is_dual(spec):
        yield from _stateless(spec, "chunked, recurrent or scan")
        yield from _without_dual(spec)
    held = next_power_of_two(spec.q_len) * next_power_of_two(spec.head_dim)
    if registry.option(spec, "form") == "scan" and held > MAX_SCANNED:
        detail = (
            f"one scan over {spec.q_len:,} tokens with {spec.head_dim:,} states holds {held:,} numbers at "
            f"once, and at most {MAX_SCANNED:,} are: use form chunked"
        )
        yield FieldProblem("/options/form", "too-large", detail)


def _without_dual(spec: RunSpec) -> Iterator[FieldProblem]:
    """Why a scan is no masked attention that form quadratic could compute."""
    steps, (channels, states) = spec.canonical_shape("delta")[3], spec.canonical_shape("a")[2:]
    if (steps, channels, states) != (1, 1, 1):
        detail = (
            "only a scan with one step and one rate to a head has a quadratic form (Mamba-2): delta has "
            f"{steps} to a head and a {channels} × {states}; send delta [.., len, 1] and a [heads, 1, 1], or "
            "use form chunked, recurrent or scan"
        )
        yield FieldProblem("/options/form", "unsupported", detail)
    if spec.head_dim > MAX_DUAL_STATES:
        detail = (
            f"form quadratic takes up to {MAX_DUAL_STATES} states, and there are {spec.head_dim:,}: use form "
            "chunked, recurrent or scan"
        )
        yield FieldProblem("/options/form", "too-large", detail)
