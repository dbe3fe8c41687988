"""`Memory`: what DeltaNet, Gated DeltaNet, fast-weight programmers and GLA have in common.

The input is projected to queries, keys and values of N heads, which a short causal convolution may
mix over time. Each head keeps an associative memory S (V, K), written by keys and values and read
by queries; what is read is normalised, gated if the core has a gate, and projected to H outputs.
A core says which features of keys and queries it takes, and how S changes.

The power is that of all synapses which transmit a signal: the trained projections, as in any linear
layer; the convolution; and S, whose efficacies s_ij see the query, q_j^2 |s_ij|. Writing to S costs
nothing, the reading of the delta rule included, as the Hebbian update of an STPN costs nothing.

Parameters of layer k: `weight_lk` (R, I), rows: queries and keys (N K' each), values (N V), then
what the core adds; `conv_lk` (N (2 K' + V), L); `norm_weight_lk` (V); `weight_out_lk` (H, N V) and
`bias_lk` (H). Cells go without the suffix.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Annotated, ClassVar, NoReturn, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional, init

from stpn.nn import checks
from stpn.nn.base import Parameters, Recurrence, Shapes
from stpn.nn.state import MemoryState
from stpn.ops.aten import zero_past_the_ends
from stpn.ops.convolution import causal_convolution
from stpn.ops.power import static_power

Heads: TypeAlias = Annotated[int, "memories side by side"]
HeadSize: TypeAlias = Annotated[
    int | None, "entries of a key and of a value; None: hidden_size / heads, rounded up"
]
Taps: TypeAlias = Annotated[
    int, "steps that the short convolution sees, this one included; 1: none"
]

EPS = 1e-6


class Memory(Recurrence):
    """Base of the cores above."""

    state_type = MemoryState
    recurrent = False

    activated: ClassVar[bool] = False
    """Whether queries, keys and values go through a SiLU."""
    normalised: ClassVar[bool] = True
    """Whether what a head reads is normalised (RMSNorm)."""
    gated: ClassVar[bool] = False
    """Whether a SiLU gate of the input multiplies what is read."""

    rule: ClassVar[Callable[..., tuple[Tensor, Tensor, Tensor | None]]]
    """The recurrence of `stpn.ops` by which the memories change and are read."""

    def configure(self, *, heads: Heads = 2, head_size: HeadSize = None, conv: Taps = 1) -> None:
        self.heads = checks.positive_int("heads", heads)
        if head_size is None:
            head_size = max(2, -(-self.hidden_size // self.heads))
        self.head_size = checks.positive_int("head_size", head_size)
        if self.head_size < 2:  # of length 1, a single number says nothing but its sign
            raise ValueError(f"head_size: expected at least 2, got {head_size}")
        self.conv = checks.positive_int("conv", conv)

    # What a core says.

    @property
    def key_size(self) -> int:
        """K, entries of a key as the memory sees it."""
        return self.head_size

    def further_rows(self) -> int:
        """Rows of the input projection beside queries, keys, values and the output gate."""
        raise NotImplementedError

    def further_shapes(self) -> dict[str, tuple[int, ...]]:
        """Parameters of its own."""
        return {}

    def operands(
        self,
        q: Tensor,  # (B, T, N, head_size)
        k: Tensor,  # (B, T, N, head_size)
        v: Tensor,  # (B, T, N, V)
        further: Tensor,  # (B, T, further_rows)
        p: Parameters,
    ) -> tuple[Tensor | None, ...]:
        """What `rule` takes before the state: features of queries and keys, values, and how much
        is written and forgotten."""
        raise NotImplementedError

    def further_power(self, further: Tensor, p: Parameters) -> Tensor | float:
        """Power (B, T) of synapses of the core's own, beside the input projection and S."""
        return 0.0

    # What all have.

    def unless_frozen(self, x: Tensor) -> Tensor:
        """x, or zeros while the memories are to stay as they are."""
        return torch.zeros_like(x) if self.freezes else x

    @property
    def _channels(self) -> int:
        """Of queries, keys and values together."""
        return 3 * self.heads * self.head_size

    @property
    def _values(self) -> int:
        return self.heads * self.head_size

    def state_shapes(self, input_size: int) -> tuple[tuple[int, ...], ...]:
        memory = (self.heads, self.head_size, self.key_size)
        return memory, (self.conv - 1, self._channels)

    def parameter_shapes(self, input_size: int) -> Shapes:
        rows = self._channels + self._values * self.gated + self.further_rows()
        return {
            "weight": (rows, input_size),
            "conv": (self._channels, self.conv) if self.conv > 1 else None,
            **self.further_shapes(),
            "norm_weight": (self.head_size,) if self.normalised else None,
            "weight_out": (self.hidden_size, self._values),
            "bias": (self.hidden_size,) if self.has_bias else None,
        }

    def init_parameters(self, p: Parameters, input_size: int) -> None:
        for name, fan_in in (
            ("weight", input_size), ("conv", self.conv),
            ("weight_out", self._values), ("bias", self._values),
        ):  # fmt: skip
            if p[name] is not None:
                k = 1 / math.sqrt(fan_in)
                init.uniform_(p[name], -k, k)
        if self.normalised:
            init.ones_(p["norm_weight"])

    def run(
        self,
        x: Tensor,
        state: MemoryState,
        p: Parameters,
        reset: Tensor | None,
        lengths: Tensor | None,
        power_weight: Tensor | None,
    ) -> tuple[Tensor, MemoryState, Tensor | None]:
        metered = power_weight is not None
        sizes = [self._channels, self._values * self.gated, self.further_rows()]
        qkv, gate, further = functional.linear(x, p["weight"]).split(sizes, -1)
        window, spent = state.window.clone(), []
        if self.conv > 1:
            see = partial(causal_convolution, reset=reset, lengths=lengths)
            if metered:
                spent.append(see(qkv.square(), window.square(), p["conv"].abs())[0].sum(-1))
            qkv, window = see(qkv, window, p["conv"])
        qkv = functional.silu(qkv) if self.activated else qkv
        q, k, v = qkv.unflatten(-1, (3, self.heads, self.head_size)).unbind(2)
        operands = self.operands(q, k, v, further, p)
        o, s, read = self.rule(*operands, state.s, reset=reset, lengths=lengths, power=metered)
        if self.normalised:
            o = o * torch.rsqrt(o.square().mean(-1, keepdim=True) + EPS) * p["norm_weight"]
        o = o.flatten(-2)  # (B, T, N V)
        o = o * functional.silu(gate) if self.gated else o
        y = zero_past_the_ends(functional.linear(o, p["weight_out"], p["bias"]), lengths)
        power = None
        if metered and read is not None:
            power = static_power(x, p["weight"], power_weight) + static_power(o, p["weight_out"])
            for part in (read, self.further_power(further, p), *spent):
                power = power + part
            power = zero_past_the_ends(power.unsqueeze(-1), lengths).squeeze(-1)
        return y, MemoryState(s, window), power

    def synapses(self, state: MemoryState, p: Parameters) -> NoReturn:
        raise TypeError(
            f"{type(self).__name__} has no single matrix of efficacies to trace: its memory sees "
            "queries, its projections see the input"
        )

    def count_synapses(self, input_size: int) -> int:
        convolution = self._channels * self.conv if self.conv > 1 else 0
        memory = self.heads * self.head_size * self.key_size
        return super().count_synapses(input_size) + convolution + memory


def normalised_length(x: Tensor) -> Tensor:
    """x (..., K) with a Euclidean length of 1."""
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + EPS)
