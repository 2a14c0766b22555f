"""The layer of a model that has a state of constant size in place of keys and values: its sizes, and what follows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from weft.graph import DTYPE_BYTES
from weft.graph.scan import STATE_DTYPE, Rule

_CONV_DTYPE = "bf16"
"""Number format of the tokens that a short convolution still needs, that of activations."""


class LowRank(NamedTuple):
    """A small GEMM beside the first projection: its name, rows and columns of its weight, what it reads, parameters."""

    name: str
    rows: int
    columns: int
    reads: str
    sums: bool
    parameters: int


@dataclass(frozen=True)
class LinearMixer:
    """Linear attention or a state-space layer (`Scan`) with `heads` heads of `state` x `head` elements.

    `groups` heads of queries and keys (of Mamba-2: B and C) serve all heads. A convolution looks at `conv` tokens (0:
    there is none). `rank` is that of Mamba's step sizes, or of the decays and gates of Kimi delta attention. Training
    and prefill multiply chunks of `chunk` tokens.
    """

    rule: Rule
    heads: int
    head: int
    state: int
    groups: int
    conv: int = 0
    rank: int = 0
    chunk: int = 0

    @property
    def inner(self) -> int:
        """Elements that all heads return together."""
        return self.heads * self.head

    @property
    def channels(self) -> int:
        """Channels of the convolution: values, queries and keys; of Mamba values alone."""
        keys = 0 if self.rule == "mamba" else 2 * self.groups * self.state
        return self.inner + keys if self.conv else 0

    @property
    def projected(self) -> int:
        """Columns of the first GEMM: values, queries, keys, the gate of the output, and what decides decay and update.

        Kimi delta attention has the small halves of its decays and gates here, and no other gate.
        """
        keys = 0 if self.rule == "mamba" else 2 * self.groups * self.state
        more = {
            "mamba": self.inner, "mamba2": self.inner + self.heads, "lightning": self.inner,
            "gated_delta": self.inner + 2 * self.heads, "kimi_delta": self.heads + 2 * self.rank,
        }  # fmt: skip
        return self.inner + keys + more[self.rule]

    @property
    def low_rank(self) -> tuple[LowRank, ...]:
        """The small GEMMs, in their order; Mamba's first one reads the convolution's output, and ranks add up sums."""
        rank, inner, keys = self.rank, self.inner, self.heads * self.state
        if self.rule == "mamba":
            narrow = rank + 2 * self.state
            return (
                LowRank("step_in", inner, narrow, "linear_conv", True, inner * narrow),
                LowRank("step_up", rank, inner, "step_in", False, (rank + 1) * inner),
            )
        if self.rule == "kimi_delta":
            return (
                LowRank("decay_up", rank, keys, "linear_in", False, rank * keys),
                LowRank("gate_up", rank, inner, "linear_in", False, rank * inner),
            )
        return ()

    @property
    def reads(self) -> tuple[str, ...]:
        """The operators whose outputs the scan reads, first what it reads most of."""
        convolved = ("linear_conv",) if self.conv else ()
        return *convolved, *({"mamba": ("step_up", "step_in"), "kimi_delta": ("decay_up", "linear_in")}).get(
            self.rule, ("linear_in",)
        )

    @property
    def scan_parameters(self) -> int:
        """Parameters of the scan: decays, step sizes, and of state-space models a weight past the state."""
        each = {
            "mamba": self.state + 1, "mamba2": 3, "lightning": 0, "gated_delta": 2, "kimi_delta": 1 + self.state,
        }  # fmt: skip
        return self.heads * each[self.rule]

    @property
    def conv_parameters(self) -> int:
        """Weights of the convolution; those of state-space models have a bias."""
        return self.channels * (self.conv + (self.rule in ("mamba", "mamba2")))

    @property
    def normed(self) -> int:
        """Elements of a row that the norm behind the scan normalises: a head, a group, or all; 0: none (Mamba)."""
        return {"mamba": 0, "mamba2": self.inner // self.groups, "lightning": self.inner}.get(self.rule, self.head)

    @property
    def norm_parameters(self) -> int:
        """Scales of that norm, one set for all heads with a delta rule; of Mamba those of steps, B and C (as Jamba)."""
        small = {"mamba": self.rank + 2 * self.state, "gated_delta": self.head, "kimi_delta": self.head}
        return small.get(self.rule, self.inner)

    def state_bytes(self, ranks: int) -> int:
        """Return the bytes that a sequence holds in one layer, of any length, on the fullest of `ranks` ranks.

        The state of each head, and the tokens that the convolution still needs.
        """
        heads, groups = -(-self.heads // ranks), -(-self.groups // ranks)
        states = heads * self.head * self.state * DTYPE_BYTES[STATE_DTYPE]
        keys = 0 if self.rule == "mamba" else 2 * groups * self.state
        waiting = (heads * self.head + keys) * max(self.conv - 1, 0)
        return states + waiting * DTYPE_BYTES[_CONV_DTYPE]
