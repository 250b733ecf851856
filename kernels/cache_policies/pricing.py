"""What a run of engine ``cache`` takes on a CPU worker: see ``kernels.estimate``, which asks.

Seconds of one core, measured and then raised to two or three times. A token is a step of numpy, and what
dominates is how many there are until texts are long.
"""

from __future__ import annotations

from dataclasses import replace

from kernels.cache_policies.policies import CACHE, Policy
from kernels.cache_policies.rules import policy_of
from kernels.cache_policies.storage import Storage
from kernels.counts import input_bytes
from kernels.registry import option
from kernels.spec.model import RunSpec

CALL, STEP, HEAD, PAIR, MULTIPLY = 5e-3, 5e-4, 2e-5, 4e-8, 3e-10  # HEAD: a key head in a step
RELATED = 1e-7  # a number of the outputs, whose rows are set against the exact ones
GATHERED, TURNED, WEIGHED = (
    1.6e-8,
    9e-9,
    3e-8,
)  # a number that is picked from the cache, turned; a weight kept
COPIED_BYTES, RESULT_BYTES, STEP_BYTES = 32.0, 32.0, 64.0


def storage_of(spec: RunSpec) -> Storage:
    """How a spec keeps keys and values."""
    return Storage(spec.dtype, spec.options.kv_dtype, spec.options.kv_scale)


def positions_of(spec: RunSpec, policy: Policy) -> str:
    """What RoPE counts: "text" or "cache"."""
    return option(spec, "cache_positions") or policy.positions


def tokens_read(spec: RunSpec) -> int:
    """Σ over the steps of the tokens that a head holds."""
    steps, most = spec.q_len, policy_of(spec).budget
    full = steps if most is None else min(steps, most)
    return full * (full + 1) // 2 + (steps - full) * full


def flops(spec: RunSpec) -> int:
    """Of one call: by what the policy holds, and by a full cache beside it."""
    read = tokens_read(spec) + spec.q_len * (spec.q_len + 1) // 2
    return 2 * spec.batch * spec.num_heads * read * (spec.head_dim + spec.v_head_dim)


def more_traffic(spec: RunSpec) -> tuple[int, int]:
    """Of the cache of the policy, as a server would have it: each token comes in as numbers of the dtype, is
    written once, and what is held is read at each step."""
    policy, heads = policy_of(spec), spec.batch * spec.num_kv_heads
    token = storage_of(spec).token_bytes(spec.head_dim, spec.v_head_dim) + policy.mass_bytes
    plain = replace(spec, options=replace(spec.options, kv_dtype=None))
    more = sum(input_bytes(plain, name) - input_bytes(spec, name) for name in "kv")
    return heads * tokens_read(spec) * token + more, heads * spec.q_len * token


def engine_seconds(spec: RunSpec) -> float:
    """One call."""
    heads, kv_heads = spec.batch * spec.num_heads, spec.batch * spec.num_kv_heads
    width, pairs = spec.head_dim + spec.v_head_dim, heads * spec.q_len * (spec.q_len + 1)
    policy, weights = policy_of(spec), heads * spec.q_len * spec.kv_len * ("weights" in spec.returns)
    most = spec.q_len if policy.budget is None else min(policy.budget, spec.q_len)
    gathered = kv_heads * (spec.q_len - most) * most * width  # before the first is evicted there is no need
    seconds = spec.q_len * (STEP + HEAD * kv_heads) + pairs * (PAIR + MULTIPLY * width)
    seconds += GATHERED * gathered + WEIGHED * weights + RELATED * heads * spec.q_len * spec.v_head_dim
    if spec.attention.rope is not None and positions_of(spec, policy) == CACHE:
        keys, queries = kv_heads * tokens_read(spec), heads * spec.q_len
        seconds += TURNED * (keys + queries) * spec.head_dim
    return CALL + seconds


def reference_seconds(spec: RunSpec) -> float:
    """Nothing: results are their own yardstick."""
    return 0.0


def engine_bytes(spec: RunSpec) -> float:
    """What the engine holds at once beside inputs and results: copies of the inputs, both outputs, which
    tokens are held, and a step."""
    heads, kv_heads = spec.batch * spec.num_heads, spec.batch * spec.num_kv_heads
    keys = kv_heads * spec.kv_len * (spec.head_dim + spec.v_head_dim)
    outputs = heads * spec.q_len * (spec.v_head_dim + 4)
    copied = COPIED_BYTES * (keys + heads * spec.q_len * spec.head_dim)
    return copied + RESULT_BYTES * outputs + STEP_BYTES * heads * spec.kv_len + kv_heads * spec.q_len**2


def reference_bytes(spec: RunSpec) -> float:
    """Nothing."""
    return 0.0
