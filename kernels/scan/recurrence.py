"""The selective scan of Mamba in numpy, double precision: four ways to compute the same thing.

A channel of x drives a state of N numbers, each of which decays at a rate of its own:

    h′(t) = A h(t) + B x(t),    y(t) = C·h(t) + D x(t)        (A diagonal)

Sampled in steps of Δ it becomes a recurrence whose step, input and readout are *selected* by the token,

    h_t = exp(Δ_t A) h_{t−1} + Δ_t B_t x_t                    y_t = C_t·h_t + D x_t

The decay is that of a zero-order hold, exact for an x that is constant during the step. The input is Euler's,
Δ B, where the hold has (exp(ΔA) − 1) A⁻¹ B: the two agree to first order in ΔA, and this is what the deployed
models compute, whatever their papers' equation 4 says. A large Δ_t forgets the state and takes the token; a
small one passes the token by: Δ is a gate.

*Recurrent*: token by token. *Scan*: a pair (a, b) stands for the step h ↦ a h + b, and steps compose,

    (a₂, b₂) after (a₁, b₁) = (a₂ a₁, a₂ b₁ + b₂),

which is associative; so all prefixes can be had in 2 log₂ n rounds of independent compositions. *Chunked*: a
scan within each chunk, the state carried from one to the next. *Quadratic*: the sums written out; where a
head has one rate and one Δ that is masked attention without a softmax (``duality.py``).

Gu and Dao 2023, *Mamba: Linear-Time Sequence Modeling with Selective State Spaces*, COLM 2024; Blelloch 1990,
*Prefix Sums and Their Applications*; Dao and Gu 2024, *Transformers are SSMs*, ICML.
"""

from __future__ import annotations

import numpy as np

from kernels.arrays import Array
from kernels.linear.recurrence import between, spread
from kernels.scan.inputs import Scanned, SelectiveScan


def recurrent(given: SelectiveScan, state: Array | None = None) -> Scanned:
    """Token by token; ``state`` is what came before. Results are float64."""
    decay, into = steps(given)
    h = start(given, state)
    visited = np.empty_like(into)
    for t in range(given.sizes.length):
        h = decay[:, :, t] * h + into[:, :, t]
        visited[:, :, t] = h
    return _read(given, visited, h)


def scan(given: SelectiveScan, state: Array | None = None) -> Scanned:
    """By composing steps, in the order of Blelloch's tree."""
    return chunked(given, state, chunk=max(1, given.sizes.length))


def chunked(given: SelectiveScan, state: Array | None = None, *, chunk: int) -> Scanned:
    """A scan of ``chunk`` tokens at a time."""
    decay, into = steps(given)
    h = start(given, state)
    visited = [into[:, :, :0]]
    for first in range(0, given.sizes.length, chunk):
        part = slice(first, first + chunk)
        product, total = prefixes(decay[:, :, part], into[:, :, part])
        visited.append(product * h[:, :, None] + total)
        h = visited[-1][:, :, -1]
    return _read(given, np.concatenate(visited, 2), h)


def quadratic(given: SelectiveScan, state: Array | None = None) -> Scanned:
    """h_t = Σ_{j ≤ t} exp(Σ_{j < i ≤ t} Δ_i A) Δ_j B_j x_j, written out."""
    _, into = steps(given)
    batch, heads, n, p, states = given.sizes
    exponents = _exponents(given).reshape(batch, heads, n, p * states)
    decays = between(exponents).reshape(batch, heads, n, n, p, states)
    visited = np.einsum("bhtjpn,bhjpn->bhtpn", decays, into)
    visited += np.exp(exponents.cumsum(2)).reshape(into.shape) * start(given, state)[:, :, None]
    return _read(given, visited, visited[:, :, -1] if n else start(given, state))


def steps(given: SelectiveScan) -> tuple[Array, Array]:
    """(exp(Δ A), Δ B x) of every token: [b, h, n, p, N]."""
    x, delta, b = (spread(array, given.sizes.heads) for array in (given.x, given.delta, given.b))
    return np.exp(_exponents(given)), (delta * x)[..., None] * b[..., None, :]


def prefixes(decay: Array, into: Array) -> tuple[Array, Array]:
    """The composition of all steps up to each token, itself included; axis 2 counts tokens.

    Neighbours are composed, the half as many steps are scanned, and the tokens between are one more step
    each.
    """
    n = decay.shape[2]
    if n == 1:
        return decay, into
    even, odd, later = slice(0, n - n % 2, 2), slice(1, n, 2), slice(2, n, 2)
    at_odd = prefixes(*compose(decay[:, :, even], into[:, :, even], decay[:, :, odd], into[:, :, odd]))
    before_later = [array[:, :, : (n - 1) // 2] for array in at_odd]
    at_later = compose(before_later[0], before_later[1], decay[:, :, later], into[:, :, later])
    product, total = np.empty_like(decay), np.empty_like(into)
    for made, given, odds, laters in zip((product, total), (decay, into), at_odd, at_later, strict=True):
        made[:, :, 0], made[:, :, odd], made[:, :, later] = given[:, :, 0], odds, laters
    return product, total


def compose(a_1: Array, b_1: Array, a_2: Array, b_2: Array) -> tuple[Array, Array]:
    """The step (a₂, b₂) after the step (a₁, b₁)."""
    return a_2 * a_1, a_2 * b_1 + b_2


def start(given: SelectiveScan, state: Array | None) -> Array:
    """[b, h, p, N] float64. Raises ValueError for the state of another scan."""
    given.check_state(state)
    batch, heads, _, p, states = given.sizes
    return np.zeros((batch, heads, p, states)) if state is None else np.asarray(state, np.float64)


def _exponents(given: SelectiveScan) -> Array:
    """Δ A: [b, h, n, p, N]."""
    batch, heads, n, p, states = given.sizes
    delta = np.asarray(given.delta, np.float64)[..., None]
    made = delta * np.asarray(given.a, np.float64)[:, None]
    return np.broadcast_to(made, (batch, heads, n, p, states))


def _read(given: SelectiveScan, visited: Array, h: Array) -> Scanned:
    """y of all states [b, h, n, p, N] that were visited."""
    y = np.einsum("bhtpn,bhtn->bhtp", visited, spread(given.c, given.sizes.heads))
    if given.skip is not None:
        y = y + np.asarray(given.skip, np.float64)[:, None] * np.asarray(given.x, np.float64)
    return Scanned(y, h)
