"""Bytes that the kernels of linear attention and of a selective scan read and write, as they load and store
them tile by tile; and what a performer's features take. No torch.

A program has all columns of keys and some of values (channels of a scan). So keys, queries and decays are
read once for each program beside another, values and outputs once; a state that a chunk finds is written once
and read by every query head of its own. Without a state keys stream past each tile of queries, the later
tiles fewer where they are causal.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from kernels.counts import ITEM_BYTES, input_bytes, result_bytes
from kernels.integers import ceil_div
from kernels.linear import inputs as linear
from kernels.linear import tiling as linear_tiling
from kernels.recurrent import ALL_PAIRS, chunk_of_scan, is_dual, is_normalised
from kernels.registry import option
from kernels.scan import inputs as scan
from kernels.scan import tiling as scan_tiling
from kernels.spec.model import RunSpec

FULL = 4  # bytes of a float32: states, decays, rates, steps


@dataclass(frozen=True)
class Traffic:
    """Bytes."""

    read: int
    written: int

    def __add__(self, other: Traffic) -> Traffic:
        """Of both."""
        return Traffic(self.read + other.read, self.written + other.written)


def more_traffic(spec: RunSpec) -> tuple[int, int]:
    """What is moved beyond each input read once and each result written once."""
    if spec.engine == "performer":
        features = _features(spec)
        return features.read, features.written
    moved = kernel_traffic(spec, interpreted=False)
    if is_dual(spec):
        moved += _made_for_dual(spec)
    once = sum(input_bytes(spec, name) for name in spec.inputs)
    return moved.read - once, moved.written - sum(result_bytes(spec, name) for name in spec.returns)


def kernel_traffic(spec: RunSpec, *, interpreted: bool) -> Traffic:
    """Of one call's kernels, in the tiles of a GPU or of the interpreter."""
    if spec.engine == "scan" and not is_dual(spec):
        return _scanned(spec, interpreted=interpreted)
    walked = _Linear.of(spec, interpreted=interpreted)
    form = option(spec, "form")
    if form in ALL_PAIRS:
        return walked.all_pairs()
    if form == "recurrent":
        return walked.steps() + (Traffic(0, 0) if walked.causal else walked.outputs())
    return walked.states() + walked.outputs()


@dataclass(frozen=True)
class _Linear:
    """The kernels of ``kernels/linear``."""

    sizes: linear.Sizes
    tiling: linear_tiling.Tiling
    item: int  # bytes of a number of q, k, v and out
    causal: bool
    normalised: bool
    starts: bool  # from a state
    decays: bool
    corrects: bool  # by the delta rule

    @classmethod
    def of(cls, spec: RunSpec, *, interpreted: bool) -> _Linear:
        if is_dual(spec):
            spec, kv_heads, chunk = replace(spec, dtype="float32"), spec.num_heads, None
        else:
            kv_heads, chunk = spec.num_kv_heads, option(spec, "chunk_size")
        sizes = linear.Sizes(
            spec.batch, spec.num_heads, kv_heads, spec.q_len, spec.kv_len, spec.head_dim, spec.v_head_dim
        )
        return cls(
            sizes,
            linear_tiling.choose_tiling(sizes, spec.dtype, chunk=chunk, interpreted=interpreted),
            ITEM_BYTES[spec.dtype],
            causal=spec.attention.is_causal or is_dual(spec),
            normalised=not is_dual(spec) and is_normalised(spec),
            starts="initial_state" in spec.inputs,
            decays="log_decay" in spec.inputs or is_dual(spec),
            corrects="beta" in spec.inputs,
        )

    @property
    def columns(self) -> int:
        """Programs beside each other."""
        return ceil_div(self.sizes.e, self.tiling.block_e)

    @property
    def state_read(self) -> int:
        """A state and its normaliser, by all columns."""
        return FULL * self.sizes.d * (self.sizes.e + self.normalised * self.columns)

    @property
    def state_written(self) -> int:
        """Of which the first column writes the normaliser."""
        return FULL * self.sizes.d * (self.sizes.e + self.normalised)

    def keys(self, values: int | None = None) -> int:
        """Bytes to a token: its key, its value, its decay. ``values``: bytes of a number of a value."""
        key = self.columns * (self.sizes.d * self.item + FULL * self.decays)
        return key + self.sizes.e * (self.item if values is None else values)

    def walk(self) -> Traffic:
        """Of what a program reads that carries a state over all tokens, and leaves it behind."""
        rows = self.sizes.batch * self.sizes.state_heads
        token = self.keys() + FULL * self.columns * self.corrects
        read = self.sizes.kv_len * token + self.starts * self.state_read
        return Traffic(rows * read, rows * self.state_written)

    def states(self) -> Traffic:
        """``chunk_states``: also what each chunk finds, and what the delta rule writes."""
        rows, tokens = self.sizes.batch * self.sizes.state_heads, self.sizes.kv_len
        found = ceil_div(tokens, self.tiling.block_t) * self.state_written if self.causal else 0
        kept = FULL * self.sizes.e * tokens if self.corrects else 0
        return self.walk() + Traffic(0, rows * (found + kept))

    def steps(self) -> Traffic:
        """``token_steps``: causal queries are read on the way."""
        return self.walk() + (self.queries() if self.causal else Traffic(0, 0))

    def queries(self) -> Traffic:
        """Queries by all columns, and outputs."""
        rows = self.sizes.batch * self.sizes.heads * self.sizes.q_len * self.item
        return Traffic(rows * self.columns * self.sizes.d, rows * self.sizes.e)

    def outputs(self) -> Traffic:
        """``chunk_outputs``: a state to each tile of queries, and causal the keys of its own tokens."""
        heads = self.sizes.batch * self.sizes.heads
        read = ceil_div(self.sizes.q_len, self.tiling.block_t) * self.state_read
        if self.causal:
            read += self.sizes.kv_len * self.keys(FULL if self.corrects else None)
        return self.queries() + Traffic(heads * read, 0)

    def all_pairs(self) -> Traffic:
        """``quadratic``."""
        n, block = self.sizes.q_len, self.tiling.block_t
        tiles, last = ceil_div(n, block), self.sizes.kv_len
        loads = sum(min((tile + 1) * block, last) if self.causal else last for tile in range(tiles))
        read = loads * self.keys() + tiles * self.starts * self.state_read
        return self.queries() + Traffic(self.sizes.batch * self.sizes.heads * read, 0)


def _made_for_dual(spec: RunSpec) -> Traffic:
    """Every input once, of which Δ x and Δ a are made; and y of outputs in float32."""
    numbers = spec.batch * spec.num_heads * spec.q_len * spec.v_head_dim
    decays = spec.batch * spec.num_heads * spec.q_len
    read = sum(input_bytes(spec, name) for name in spec.inputs) + FULL * numbers
    return Traffic(read, FULL * (numbers + decays) + numbers * ITEM_BYTES[spec.dtype])


def _scanned(spec: RunSpec, *, interpreted: bool) -> Traffic:
    """The kernels of ``kernels/scan``: some channels of a head to a program, which reads b and c for itself,
    and ``d_skip`` with every chunk."""
    n, p, states = spec.q_len, spec.v_head_dim, spec.head_dim
    heads, item = spec.batch * spec.num_heads, ITEM_BYTES[spec.dtype]
    sizes = scan.Sizes(spec.batch, spec.num_heads, n, p, states)
    tiling = scan_tiling.choose_tiling(sizes, chunk=chunk_of_scan(spec), interpreted=interpreted)
    programs = ceil_div(p, tiling.block_p)
    steps = p if spec.canonical_shape("delta")[3] != 1 else programs
    token = (p + 2 * programs * states) * item + steps * FULL
    skips = ceil_div(n, tiling.block_t) if "d_skip" in spec.inputs else 0
    state = FULL * p * states
    read = n * token + skips * p * FULL + state * (1 + ("initial_state" in spec.inputs))  # and the rates
    return Traffic(heads * read, heads * (n * p * item + state))


def _features(spec: RunSpec) -> Traffic:
    """Of queries, and of keys once more for each query head that reads them: written, and read again."""
    item = 8 if spec.dtype == "float64" else FULL
    tokens = spec.batch * spec.num_heads * (spec.q_len + spec.kv_len)
    features = tokens * int(option(spec, "num_features")) * item
    return Traffic(features, features)
