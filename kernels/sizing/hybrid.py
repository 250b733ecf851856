"""Stacks of attention and of layers with a state: what grows with a sequence beside what does not.

    cache   layers of attention · tokens · KV heads · (d_k + d_v) · bytes of a number
    state   layers with a state · (numbers that recur + numbers that a convolution slides over) · their bytes

A hybrid pays for each token in its few layers of attention alone: Jamba, one of whose 8 layers is attention,
an eighth (Lieber et al. 2024, *Jamba: A Hybrid Transformer-Mamba Language Model*, arXiv 2403.19887). It still
pays: the cache passes the state after some hundred tokens and goes on growing.

So does time. To make a token, attention looks at the n tokens of its cache, O(n d) operations; a state space
at its state, O(d N), and linear attention O(d_k d_v) to a head, however long the sequence is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from kernels.sizing.inverse import MAX_LEN, largest
from kernels.sizing.kv_cache import state_parts, token_bytes, tokens_kept
from kernels.sizing.layers import Attention, LinearAttention, Mamba, Mamba2
from kernels.sizing.memory import Workload
from kernels.sizing.roofline import mixer_flops
from kernels.sizing.storage import CacheFormat

StateMixer = Mamba | Mamba2 | LinearAttention
FEWEST_PLOTTED, MOST_PLOTTED = 2**10, 2**30  # tokens


@dataclass(frozen=True)
class Hybrid:
    """A stack: layers of ``attention``, some of them with a ``window`` of tokens, and layers with a state.

    ``state_item`` and ``conv_item`` are the bytes of a number that recurs and of one that a convolution
    slides over. All sizes below are of one sequence.
    """

    num_layers: int
    attention_layers: int
    windowed_layers: int  # of these
    window: int
    attention: Attention  # without a window
    state: StateMixer
    cache: CacheFormat
    state_item: int
    conv_item: int

    @property
    def state_layers(self) -> int:
        """The others."""
        return self.num_layers - self.attention_layers

    @property
    def windowed(self) -> Attention:
        """The mixer of layers with a window."""
        return replace(self.attention, window=self.window)

    @property
    def layer_token_bytes(self) -> int:
        """Of one token in one layer of attention."""
        return token_bytes(self.attention, self.cache)

    @property
    def layer_state_bytes(self) -> int:
        """Of one layer with a state."""
        recurrent, convolved = state_parts(self.state)
        return recurrent * self.state_item + convolved * self.conv_item

    @property
    def state_bytes(self) -> int:
        """Whatever the length."""
        return self.state_layers * self.layer_state_bytes

    def cache_bytes(self, length: int) -> int:
        """After so many tokens; a window keeps no more than it holds."""
        full = (self.attention_layers - self.windowed_layers) * tokens_kept(self.attention, length, 0)
        windowed = self.windowed_layers * tokens_kept(self.windowed, length, 0)
        return (full + windowed) * self.layer_token_bytes

    def all_attention_bytes(self, length: int) -> int:
        """Of a stack as deep whose layers are all attention, without windows."""
        return self.num_layers * length * self.layer_token_bytes

    def break_even(self) -> int | None:
        """The shortest sequence whose cache is larger than the state; None: none of up to ``MAX_LEN``."""
        smaller = largest(lambda length: self.cache_bytes(length) <= self.state_bytes, MAX_LEN)
        return smaller + 1 if smaller < MAX_LEN else None

    def layer_break_even(self) -> int:
        """The same of one layer of each kind."""
        return self.layer_state_bytes // self.layer_token_bytes + 1

    def flops(self, mixer: Attention | StateMixer, length: int, q_len: int | None = 1) -> int:
        """Operations of one layer beside its projections: to make the last of ``length`` tokens, or, with
        None, to take in all of them."""
        return mixer_flops(mixer, Workload(length, q_len=q_len))

    def flops_break_even(self) -> int:
        """From how many tokens on attention computes more for the next one than a layer with a state."""
        return self.flops(self.state, 1) // self.flops(self.attention, 1) + 1

    def lengths(self, length: int) -> list[int]:
        """Powers of two to draw all this at: beyond ``length`` and where cache and state cross."""
        shown = min(MOST_PLOTTED, max(FEWEST_PLOTTED, length, 2 * (self.break_even() or 0)))
        return [2**power for power in range((shown - 1).bit_length() + 1)]
