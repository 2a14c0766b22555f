"""Collectives through a switch that reduces and copies (NVLS): each channel is one workgroup, each GPU one head.

The data is cut into as many heads as there are GPUs. A chunk of every head is copied into a buffer that all GPUs map.
The owner of a head loads the sum of all GPUs' copies through the switch, and its store of the sum is copied to all GPUs
by the switch, where it is copied into the result. A reduce-scatter ends with the sum, an all-gather begins with the
store. The scheme and its constants are those of NCCL (public sources: device/all_reduce.h, enqueue.cc,
transport/nvls.cc; buffers that are not registered).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from weft.engine.program import Buffer, ChunkLoad, ChunkRule, ChunkStore, Kernel, Phase, RemoteMap, Wait
from weft.graph.choice import LibraryAlgorithm
from weft.hardware import Gpu
from weft.kernels.channels import ALIGNMENT, ChannelMove, ChannelTiling

FLAG = 32
"""Bytes that tell the other GPUs that a chunk is ready: one access."""


@dataclass(frozen=True)
class SwitchCollective:
    """A collective of `bytes_` (the whole buffer) over `ranks` GPUs through the switch.

    `collective` is "all_reduce", "reduce_scatter" or "all_gather". A workgroup works on three chunks at once: it copies
    one into the buffer, has the switch reduce or copy the one before, and copies the one before that into the result.
    After each turn it waits for the other GPUs.
    """

    collective: str
    bytes_: int
    ranks: int
    tiling: ChannelTiling
    algorithm: ClassVar[LibraryAlgorithm] = "nvls"

    @property
    def turns(self) -> int:
        """Chunks of a channel's part of a head."""
        return -(-self._lane // self.tiling.chunk)

    @property
    def chunk(self) -> int:
        """Bytes of a chunk of one head, all of one size."""
        each = -(-self._lane // self.turns)
        return -(-each // ALIGNMENT) * ALIGNMENT

    @property
    def share(self) -> int:
        """One GPU's head [bytes], rounded up to whole chunks."""
        return self.chunk * self.turns * self.tiling.channels

    @property
    def _lane(self) -> int:
        """A channel's part of a head, before it is rounded up [bytes]."""
        return -(-self.bytes_ // (self.ranks * self.tiling.channels))

    @property
    def _stages(self) -> tuple[str, ...]:
        """What happens to a chunk, one stage a turn."""
        first = () if self.collective == "all_gather" else ("scatter",)
        last = () if self.collective == "reduce_scatter" else ("gather",)
        return (*first, "switch", *last)

    def buffers(self) -> tuple[Buffer, ...]:
        """Return a GPU's data and result, the buffers that all GPUs map, and the flags that GPUs send each other."""
        channels, turn = self.tiling.channels, self.chunk * self.ranks
        whole, fifo = self.share * self.ranks, turn * self.tiling.depth * channels
        inputs = self.share if self.collective == "all_gather" else whole
        outputs = self.share if self.collective == "reduce_scatter" else whole
        return (
            Buffer("data", ((inputs,),)),
            Buffer("collected", ((outputs,),)),
            Buffer("staged", ((fifo,),)),
            Buffer("copied", ((fifo,),), (self._to_all("copied", "all_gather", self.chunk),)),
            Buffer("ready", ((FLAG * self.ranks * channels,),), (self._to_all("ready", self._flags, FLAG),), channels),
        )

    @property
    def _flags(self) -> str:
        """The operator that flags count as."""
        return "all_gather" if self.collective == "all_gather" else "reduce_scatter"

    def _to_all(self, buffer: str, operator: str, stride: int) -> ChunkRule:
        return ChunkRule(remote=RemoteMap(buffer, 0, False, operator, 0, members=self.ranks, member_stride=stride))

    def kernel(self, gpu: Gpu, name: str | None = None, earlier: int = 0) -> Kernel:
        """Return the kernel; `earlier` counts kernels that used the same buffers before it."""
        return self.tiling.kernel(name or self.collective, tuple(self._phases(earlier)))

    def _phases(self, earlier: int) -> Iterator[Phase]:
        """Turn after turn: the stages of up to three chunks, then a flag to all GPUs."""
        stages = self._stages
        turns = self.turns + len(stages) - 1
        flag = ChunkStore("ready", 0, self._flags, FLAG, row_stride=FLAG * self.ranks)
        for turn in range(turns):
            flags = earlier * (turns - 1) + turn
            wait = Wait("ready", 0, bytes=flags * FLAG * self.ranks) if turn else None
            now = [(stage, turn - n) for n, stage in enumerate(stages) if 0 <= turn - n < self.turns]
            loads, stores = zip(*(self._stage(*each) for each in now), strict=True)
            delay = self.tiling.sync if turn else self.tiling.start
            yield self._one.phase(list(loads), list(stores), wait, delay)
            if turn < turns - 1:
                yield Phase(1, 1, 0, stores=(flag,))

    @property
    def _one(self) -> ChannelMove:
        """The loop over a chunk of one head."""
        return self.tiling.move(self.chunk, self.tiling.in_flight // (self.tiling.slots * self.ranks))

    def _stage(self, stage: str, number: int) -> tuple[ChunkLoad, ChunkStore]:
        """Return what a workgroup loads and stores for one stage of a chunk; it copies all heads, and owns one."""
        one, n = self._one, self.ranks
        every = ChannelMove(self.tiling, one.data * n, one.piece * n)
        slot, turn = number % self.tiling.depth * self.chunk * n, self.chunk * n
        fifo = turn * self.tiling.depth
        if stage == "scatter":
            load = every.access(ChunkLoad, "data", 0, "reduce_scatter", turn * self.turns, number * turn)
            return load, every.access(ChunkStore, "staged", 0, "reduce_scatter", fifo, slot)
        if stage == "gather":
            load = every.access(ChunkLoad, "copied", 0, "all_gather", fifo, slot)
            return load, every.access(ChunkStore, "collected", 0, "all_gather", turn * self.turns, number * turn)
        lane, own = self.chunk * self.turns, number * self.chunk
        if self.collective == "all_gather":
            load = one.access(ChunkLoad, "data", 0, "all_gather", lane, own)
        else:
            load = one.access(ChunkLoad, "staged", 0, "reduce_scatter", fifo, slot)
            load = replace(load, members=n, member_stride=self.chunk)
        if self.collective == "reduce_scatter":
            return load, one.access(ChunkStore, "collected", 0, "reduce_scatter", lane, own)
        return load, one.access(ChunkStore, "copied", 0, "all_gather", fifo, slot)
