"""Execution plans of MSCCL++: collectives as data, a list of steps for every workgroup of every rank.

A step copies, adds up or sends chunks of a rank's input, output or scratch buffer, or signals another rank or waits for
it over a channel. A chunk's size follows from the size of the collective.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import lcm
from typing import Literal, cast

from weft.graph import Collective, ExecutionPlanKernel, Graph, KernelChoice, Node
from weft.graph.choice import CollectivePlan

BufferName = Literal["input", "output", "scratch"]
LEAST_ALIGNMENT = 16
"""Buffers are cut at multiples of this [bytes], unless the plan says otherwise: an access of a thread."""


@dataclass(frozen=True)
class BufferPart:
    """`size` chunks of a rank's buffer from chunk `index` on; at rank None, of all ranks, through the switch.

    With `packets`, every packet carries a flag, so that its reader needs no signal.
    """

    rank: int | None
    buffer: BufferName
    index: int
    size: int
    packets: bool = False


@dataclass(frozen=True)
class Channel:
    """A way to signal the rank `peer`: number `number` of its kind ("memory" or "port") between the two."""

    kind: str
    peer: int
    number: int


@dataclass(frozen=True)
class PlanMove:
    """The sum of all sources (one: a copy) goes to every target."""

    sources: tuple[BufferPart, ...]
    targets: tuple[BufferPart, ...]


@dataclass(frozen=True)
class PlanStep:
    """One step of a workgroup, named as in the file.

    The workgroup waits for `waits`, makes `moves` (by a `port`: DMA engines make them) and then signals `signals`;
    `flushes` waits until what was sent by ports has left. Of a step that `share` = (k, n) gives to n workgroups, it is
    the k-th part. Workgroups of a rank wait for each other at a `barrier` (its number, and how many come), and count
    semaphores. The steps `inner` of a pipeline take `unit` bytes of `chunks` chunks in turn.
    """

    name: str
    waits: tuple[Channel, ...] = ()
    moves: tuple[PlanMove, ...] = ()
    port: bool = False
    signals: tuple[Channel, ...] = ()
    flushes: tuple[Channel, ...] = ()
    share: tuple[int, int] = (0, 1)
    barrier: tuple[int, int] | None = None
    acquires: tuple[int, ...] = ()
    releases: tuple[int, ...] = ()
    inner: tuple[PlanStep, ...] = ()
    unit: int = 0
    chunks: int = 0


@dataclass(frozen=True)
class Chunks:
    """The chunks of a rank's buffers; by the older layout in `groups`, each cut evenly."""

    input: int
    output: int
    scratch: int
    groups: int = 0

    def of(self, buffer: BufferName) -> int:
        """Return the chunks of a buffer; an output without chunks of its own is the input, in place."""
        return int(getattr(self, buffer)) or (self.input or self.output if buffer != "scratch" else 0)


@dataclass(frozen=True)
class ExecutionPlan(CollectivePlan):
    """A collective as a plan: `steps[r][w]` are those of workgroup w of rank r, in order.

    `chunks[r]` and `semaphores[r]` (initial values) are those of rank r. With `packets` (protocol LL) data in the
    scratch buffer has flags. Workgroups have `threads` threads; buffers are cut at multiples of `alignment` bytes.
    `sizes` are the least and the most bytes that it is for. In a `trusted` plan no signal need order the accesses of
    different workgroups to the same bytes.
    """

    name: str
    collective: str
    chunks: tuple[Chunks, ...]
    steps: tuple[tuple[tuple[PlanStep, ...], ...], ...]
    semaphores: tuple[tuple[int, ...], ...] = ()
    packets: bool = False
    in_place: bool = False
    reuse: bool = False
    double: bool = False
    threads: int = 1024
    alignment: int = LEAST_ALIGNMENT
    sizes: tuple[int, int] = (0, 1 << 62)
    trusted: bool = False

    @property
    def ranks(self) -> int:
        """Number of GPUs that the plan is for."""
        return len(self.steps)

    @property
    def workgroups(self) -> int:
        """Most workgroups of a rank."""
        return max(map(len, self.steps))

    def _every_step(self) -> Iterator[PlanStep]:
        return (step for rank in self.steps for block in rank for outer in block for step in (outer, *outer.inner))

    @property
    def through_switch(self) -> bool:
        """Whether a step adds up or copies in the switch."""
        moves = (move for step in self._every_step() for move in step.moves)
        return any(part.rank is None for move in moves for part in (*move.sources, *move.targets))

    @property
    def pipelined(self) -> bool:
        """Whether the number of steps depends on the size."""
        return any(step.inner for step in self._every_step())

    @property
    def least_even(self) -> int:
        """The least size that all chunks and shares divide [bytes]."""
        counts = (count for one in self.chunks for count in (one.input, one.output, one.groups) if count)
        return self.alignment * self.ranks * lcm(*counts) * lcm(*(step.share[1] for step in self._every_step()))

    def choice(self) -> KernelChoice:
        """Return the choice of this plan as the kernel of a collective."""
        return KernelChoice(ExecutionPlanKernel(self))

    def op(self, bytes_: str | int, dtype: str = "fp16") -> Collective:
        """Return the collective of `bytes_` that the plan carries out, as an operator."""
        return Collective(self.collective, cast(int, bytes_), self.ranks, dtype)

    def graph(self, bytes_: str | int, dtype: str = "fp16") -> Graph:
        """Return a graph of the collective of `bytes_` (whole buffer) alone, to be simulated."""
        op = self.op(bytes_, dtype)
        return Graph((Node(op, op.name, stream="communication", choice=self.choice()),), op.ranks, str(op))


def step_words(rank: int, workgroup: int, index: str | int, name: str) -> str:
    """Return a step as messages name it."""
    return f"step {index} ('{name}') of threadblock {workgroup} on rank {rank}"
