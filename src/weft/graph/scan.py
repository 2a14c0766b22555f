"""Layers with a state of constant size: linear attention and state-space models, in chunks or token by token."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple, cast, get_args

import numpy as np

from weft.core.errors import InputError, check_name
from weft.core.fields import check_fields
from weft.graph.op import Gradients, Op, Tensor, check_dtype, check_sizes, plain, width

Rule = Literal["mamba", "mamba2", "lightning", "gated_delta", "kimi_delta"]
"""How a token changes the state: a decay of each element (Mamba), of each head (Mamba-2; lightning attention with a
fixed one), or a decay with the delta rule, of each head (gated DeltaNet) or each key element (Kimi delta attention)."""
STATE_DTYPE = "fp32"
"""Number format of states: that of the kernels' sums, and of SGLang's and Hugging Face's caches; vLLM's default is that
of the model."""
_TILE = 64
"""Rows and columns of a tile of the chunked kernels [assumed; 16 to 128, which Triton's autotuning chooses from]."""
_SCANNED = 2048
"""Tokens that a workgroup of Mamba's kernel scans at once (state-spaces/mamba, csrc/selective_scan)."""
_DELTA = ("gated_delta", "kimi_delta")


class ScanStage(NamedTuple):
    """One kernel of a scan: floating-point operations, bytes read and written, workgroups, and steps in sequence."""

    name: str
    flops: Any
    read: Any
    written: Any
    workgroups: Any
    steps: Any = 1


@dataclass(frozen=True)
class Scan(Op):
    """A recurrence with a state of `state` x `head` elements in each of `heads` heads, on `batch` sequences of `steps`.

    `head` are the elements of a value and `state` those of a key; `groups` heads of queries and keys (of Mamba: B and
    C) serve all heads (0: each has its own). With `chunk` tokens a chunk is multiplied as matrices and only its last
    state passes on; without (0), one kernel goes from token to token. A scan that is `stateful` starts from a state in
    memory and stores it, as inference does. Mamba's has `heads` channels of one element, and no chunked form: its
    kernel works on vector units. The `gradient` is the backward pass, which recomputes the states.

    Algorithms: Mamba (arXiv:2312.00752), Mamba-2 (arXiv:2405.21060, section 6; state-spaces/mamba ssd_combined.py),
    gated DeltaNet (arXiv:2412.06464, section 3; fla-org/flash-linear-attention, ops/gated_delta_rule), lightning
    attention (arXiv:2401.04658, 2501.08313), Kimi delta attention (arXiv:2510.26692). Raises InputError for sizes that
    do not fit, UnknownNameError for an unknown rule or dtype.

    >>> Scan("mamba2", batch=1, steps=8192, heads=128, head=64, state=128, groups=8, chunk=128).flops
    49392123904
    """

    kind: ClassVar[str] = "scan"

    rule: Rule
    batch: int
    steps: int
    heads: int
    head: int
    state: int
    groups: int = 0
    chunk: int = 0
    dtype: str = "bf16"
    stateful: bool = False
    gradient: bool = False

    def __post_init__(self) -> None:
        check_name("rule of a scan", self.rule, get_args(Rule))
        least = dict.fromkeys(("batch", "steps", "heads", "head", "state"), 1)
        check_sizes(self, "{} of a scan", {**least, "groups": 0, "chunk": 0})
        check_fields(self, sizes=False)
        check_dtype(self.dtype)
        heads, groups = np.broadcast_arrays(self.heads, self.groups)
        odd = (groups > 0) & (heads % np.maximum(groups, 1) != 0)
        if np.any(odd):
            raise InputError(f"groups is {groups[odd][0]:g}; it must divide the {heads[odd][0]:g} heads of the scan")
        if self.gradient and self.stateful:
            raise InputError("a stateful scan is one of inference, which has no gradient; leave one of them out")

    @property
    def tokens(self) -> int:
        """Tokens of all sequences."""
        return self.batch * self.steps

    @property
    def key_heads(self) -> int:
        """Heads of queries and keys."""
        return cast(int, plain(np.where(np.greater(self.groups, 0), self.groups, self.heads)))

    @property
    def states(self) -> Tensor:
        """The states of all sequences."""
        return Tensor((self.batch, self.heads, self.state, self.head), STATE_DTYPE, "state")

    @property
    def _inputs(self) -> tuple[Tensor, ...]:
        """Values, queries and keys, and what decides decay and update."""
        tokens = self.batch, self.steps
        values, keys = (
            Tensor((*tokens, self.heads, self.head), self.dtype),
            Tensor((*tokens, self.key_heads, self.state), self.dtype),
        )
        each = Tensor((*tokens, self.heads), self.dtype)
        gates: tuple[Tensor, ...] = {
            "mamba": (each,),
            "mamba2": (each,),
            "lightning": (),
            "gated_delta": (each, each),
            "kimi_delta": (each, Tensor((*tokens, self.heads, self.state), self.dtype)),
        }[self.rule]
        return values, keys, keys, *gates

    @property
    def _output(self) -> Tensor:
        return self._inputs[0]

    @property
    def reads(self) -> tuple[Tensor, ...]:
        """Values, queries, keys and gates, and the states they meet; for the gradient what was saved, and its own."""
        if self.gradient:
            return (*self.saved, self._output)
        return (*self._inputs, self.states) if self.stateful else self._inputs

    @property
    def writes(self) -> tuple[Tensor, ...]:
        """An output like the values, and the states behind the tokens; or the gradients of all inputs.

        Token by token, the state behind each token is stored: which draft tokens are accepted is known only later.
        """
        if self.gradient:
            return self._inputs
        if not self.stateful:
            return (self._output,)
        kept = self.states if self._chunked else replace(self.states, shape=(self.steps, *self.states.shape))
        return self._output, kept

    @property
    def saved(self) -> tuple[Tensor, ...]:
        """Its inputs; also sums of decays in fp32, and of the delta rule the inverses within chunks."""
        own: list[Tensor] = []
        tokens = self.batch, self.steps, self.heads
        if self.rule in ("mamba2", "gated_delta"):
            own.append(Tensor(tokens, "fp32"))
        if self.rule == "kimi_delta":
            own.append(Tensor((*tokens, self.state), "fp32"))
        if self.rule in _DELTA and self._chunked:
            own.append(Tensor((*tokens, self.chunk), self.dtype))
        return (*self._inputs, *own)

    @property
    def backward(self) -> Gradients:
        """Its gradient; a scan token by token is trained in chunks of one tile."""
        return Gradients((replace(self, gradient=True, stateful=False, chunk=self.chunk if self._chunked else _TILE),))

    @property
    def _chunked(self) -> bool:
        return self.rule != "mamba" and bool(np.all(np.greater(self.chunk, 0)))

    @property
    def flops(self) -> int:
        """FLOPs of the matrix products of all kernels; token by token, those of each update and read of the state."""
        return cast(int, plain(sum(stage.flops for stage in self.stages)))

    @property
    def matrix_dtype(self) -> str | None:
        """The dtype of the operands of chunks; None where vector units go from token to token."""
        return self.dtype if self._chunked else None

    @property
    def stages(self) -> tuple[ScanStage, ...]:
        """The kernels of the scan in their order."""
        if not self._chunked:
            return (self._recurrent,)
        forward = {stage.name: stage for stage in self._chunks}
        if not self.gradient:
            return tuple(forward.values())
        again = tuple(stage for name, stage in forward.items() if name in _AGAIN[self.rule])
        return (*again, *(_gradient(stage) for stage in reversed(forward.values())))

    @property
    def _recurrent(self) -> ScanStage:
        """One kernel that goes from token to token: 5 operations on each element of the state, 7 with the delta rule.

        Decay, update and product with the query; the delta rule also reads what the key finds. Of Mamba, each element
        has a decay of its own, an exponential: 8 operations. Its gradient does all twice, and the forward pass again.
        """
        each = 8 if self.rule == "mamba" else 7 if self.rule in _DELTA else 5
        flops = each * self.tokens * self.heads * self.state * self.head * (3 if self.gradient else 1)
        read, written = (sum(tensor.bytes for tensor in side) for side in (self.reads, self.writes))
        groups, steps = self.batch * self.heads * np.ceil(self.head / _TILE), self.steps
        if self.rule == "mamba":
            # a workgroup scans a part of a channel's tokens at once, one element of the state after the other
            groups = self.batch * np.ceil(self.heads / np.where(np.greater(self.steps, 1), 1, _TILE))
            steps = np.ceil(self.steps / _SCANNED) * self.state
        return ScanStage("recurrence", flops, read, written, groups, steps)

    @property
    def _chunks(self) -> Iterator[ScanStage]:
        """The kernels of the chunked forward pass; a last chunk that is not full is computed in full."""
        heads, head, state, shared = self.heads, self.head, self.state, self.key_heads
        chunk = np.minimum(self.chunk, self.steps)
        chunks = -(-self.steps // chunk)
        tokens, count = self.batch * chunks * chunk, self.batch * chunks
        own, wide = width(self.dtype), width(STATE_DTYPE)
        values, keys = tokens * heads * head * own, tokens * shared * state * own
        gate = tokens * heads * wide * (state if self.rule == "kimi_delta" else 1)
        stored = self.states.bytes if self.stateful else 0
        over_chunk, over_state = 2 * tokens * chunk * heads, 2 * tokens * heads * state * head
        tiles, blocks = -(-chunk // _TILE), -(-head // _TILE)
        states = count * heads * state * head * wide
        if self.rule != "lightning":
            yield ScanStage("decays", 0, gate, gate, count * heads)
        if self.rule in _DELTA:
            square, keyed = tokens * heads * chunk, tokens * heads * state * own
            states = states / wide * own
            yield ScanStage("gram", over_chunk * state, keys + gate, square * wide, count * heads)
            yield ScanStage("inverse", square * chunk // 3, square * wide, square * own, count * heads)
            made = ("transform", over_chunk * (state + head), keys + values + gate + square * own, keyed + values)
            yield ScanStage(*made, count * heads)
            passed = 2 * over_state, keys + keyed + values + gate + stored, states + values + stored
            yield ScanStage("states", *passed, self.batch * heads * blocks, chunks)
            read = 2 * keys + values + gate + states
            yield ScanStage("output", over_state + over_chunk * (state + head), read, values, count * heads * blocks)
            return
        made_of = values + keys + gate
        yield ScanStage("states", over_state, made_of, states, count * heads * blocks * -(-state // _TILE))
        pass_on = self.batch * heads * state * -(-head // _TILE)
        yield ScanStage("pass", 0, states + stored, states + stored, -(-pass_on // 4), chunks)
        if self.rule == "lightning":
            # halves of whole tiles above the diagonal are left out
            inside = over_chunk * (state + head) * (tiles + 1) / (2 * tiles)
            yield ScanStage("chunks", inside, 2 * keys + values, values, count * heads * tiles)
            yield ScanStage("output", over_state, keys + states + values, values, count * heads * tiles)
            return
        scores = tokens * shared * chunk * wide
        yield ScanStage("scores", 2 * tokens * chunk * shared * state, 2 * keys, scores, count * shared * tiles**2)
        inside = over_chunk * head * (tiles + 1) / (2 * tiles) + over_state
        read = scores + values + keys + gate + states
        yield ScanStage("output", inside, read, values, count * heads * tiles * blocks)

    def __str__(self) -> str:
        how = f"chunks of {self.chunk}" if self._chunked else "token by token"
        what = f"{self.batch} x {self.steps} tokens, {self.heads} heads of {self.state} x {self.head}, {how}"
        return f"{self.rule} scan of {what}{', gradient' if self.gradient else ''}"


_AGAIN = {
    "mamba2": ("states", "pass", "scores"),
    "lightning": ("states", "pass"),
    "gated_delta": ("transform", "states"),
    "kimi_delta": ("transform", "states"),
}
"""Kernels of the forward pass that the backward pass runs again, as nothing keeps what they made."""


def _gradient(stage: ScanStage) -> ScanStage:
    """Return the gradient of a kernel: two products for each of its own; it reads and writes what the kernel did."""
    read = stage.read + 2 * stage.written
    return stage._replace(name=f"{stage.name}_gradient", flops=2 * stage.flops, read=read, written=stage.read)
