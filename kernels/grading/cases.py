"""Whose numbers are whose: the seed of a case, and the inputs that are drawn from it.

The seed of a case is the first eight bytes, big-endian and without the top bit, of HMAC-SHA256 with the
assignment's secret as key and, as message, the JSON list [scope, user, attempt, case] with ``,`` between its
items and every character beyond ASCII escaped; what the scope does not depend on is null. Whoever has the
secret, which is published once the last due date has passed, can compute every seed again.

The inputs follow from the seed as those of any run do (``kernels.arrays.generate``, by the names ``q``,
``k``, ``v``, ``dout``), as ``[batch, heads, len, dim]`` also where they are packed afterwards. A drawn mask
is made of two arrays: a query may see a key where ``attn_mask`` drawn uniformly is at least −0.4, and the key
⌊i·kv_len/q_len⌋ for query i anyway; a float mask has −inf elsewhere and numbers drawn normally as
``attn_mask/float`` there. What the property ``future_keys_do_not_matter`` changes is the last key and its
value: they are those of ``k/other`` and ``v/other``.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Sequence

import numpy as np

from kernels.arrays import Array, generate_many
from kernels.grading.model import Case, Problem
from kernels.layout import PACKED, packed
from kernels.limits import MAX_SEED
from kernels.spec.values import ROUNDED

SEEN = -0.4  # of uniform numbers on [−1, 1): 70 % of a mask


def case_seed(secret: bytes, *, scope: str, user_ref: str, attempt: int, case: str) -> int:
    """The seed of a case, 0 … 2⁶³−1, for this student and this attempt, as far as its scope depends on
    them."""
    user = user_ref if scope in ("student", "submission") else None
    message = json.dumps(
        [scope, user, attempt if scope == "submission" else None, case], separators=(",", ":")
    )
    digest = hmac.new(secret, message.encode(), hashlib.sha256).digest()
    return int.from_bytes(digest[:8], "big") & MAX_SEED


def attempt_seeds(problem: Problem, secret: bytes, *, user_ref: str, attempt: int) -> dict[str, int]:
    """The seed of every case for one attempt of a student. A case that says its seed keeps it."""
    return {
        case.name: case.seed
        if case.seed is not None
        else case_seed(secret, scope=case.seed_scope, user_ref=user_ref, attempt=attempt, case=case.seed_name)
        for case in problem.cases
    }


def seed_of_number(seed: int, case: str) -> int:
    """The seed of a case where one number stands for the student and the attempt."""
    return case_seed(str(seed).encode(), scope="fixed", user_ref="", attempt=0, case=case)


def seeds_of_number(problem: Problem, seed: int) -> dict[str, int]:
    """The seed of every case from one number. A case that says its seed keeps it."""
    return {
        case.name: case.seed if case.seed is not None else seed_of_number(seed, case.seed_name)
        for case in problem.cases
    }


def make_inputs(problem: Problem, case: Case, seed: int) -> dict[str, Array]:
    """The inputs of a case as the student gets them: drawn ones ``[batch, heads, len, dim]``, or
    ``[batch, len, heads·dim]`` where they are packed, explicit ones as the author gave them, all rounded to
    the dtype of the problem (bfloat16: float32 that holds its values). For the other kinds, what
    ``kernels.grading.traces`` says."""
    del problem  # the case has all of it
    if case.trace is not None:
        return case.trace.inputs(seed)
    drawn = {name: made[0] for name, made in drawn_inputs(case, [seed]).items()}
    if case.run is not None and case.run.is_packed:
        drawn = {name: packed(array) if name in PACKED else array for name, array in drawn.items()}
    return {**case.given, **drawn}


def drawn_inputs(case: Case, seeds: Sequence[int]) -> dict[str, Array]:
    """Those inputs of a case that are drawn, canonical, for each of ``seeds``: [seeds, …]."""
    if case.run is None or case.spec is None:
        return {}
    made: dict[str, Array] = {}
    for name, given in case.spec.inputs.items():
        if given.source != "seed":
            continue
        if name == "attn_mask" and case.mask is not None:
            made[name] = _mask(case.mask, seeds, given.shape)
            continue
        dtype = case.run.dtype if name in ROUNDED else "float32"
        made[name] = generate_many(name, seeds, given.shape, given.distribution or "normal", dtype)
    if case.made_by == "value_of_ones":
        made["v"] = np.ones_like(made["v"])
    elif case.made_by == "future_keys_do_not_matter":
        for name in ("k", "v"):
            made[name] = _with_other_last(name, made[name], case, seeds)
    return made


def _mask(kind: str, seeds: Sequence[int], shape: tuple[int, ...]) -> Array:
    """[seeds, batch, 1, n, m], bool or float32."""
    seen = generate_many("attn_mask", seeds, shape, "uniform", "float64") >= SEEN
    n, m = shape[-2:]
    if m:
        seen[..., np.arange(n), np.arange(n) * m // n] = True
    if kind == "boolean":
        return np.asarray(seen)
    added = generate_many("attn_mask/float", seeds, shape, "normal", "float32")
    return np.where(seen, added, np.float32(-np.inf))


def _with_other_last(name: str, array: Array, case: Case, seeds: Sequence[int]) -> Array:
    """k or v [seeds, batch, heads, m, dim] with another last row."""
    shape = (*array.shape[1:-2], 1, array.shape[-1])
    dtype = case.run.dtype if case.run is not None else "float32"
    other = generate_many(f"{name}/other", seeds, shape, case.distribution, dtype)
    return np.concatenate([array[..., :-1, :], other], axis=-2)
