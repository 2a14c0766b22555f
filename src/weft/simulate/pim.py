"""Processing in memory on one channel, beside the requests of a kernel of the GPU: both meet command by command."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from weft import hardware
from weft.core.errors import SimulationError, check_whole
from weft.core.units import FS_PER_S, to_fs
from weft.engine import layout as y
from weft.engine.layout import PIM_BEGIN, PIM_END, PIM_TOGETHER
from weft.engine.program.plan import PimStream
from weft.engine.replay import (
    SERVED_COLUMNS,
    SERVED_DONE,
    SERVED_SENT,
    SERVED_USED,
    STAND_COLUMNS,
    TRACE_COLUMNS,
    TRACE_STREAM,
)
from weft.engine.replay import meet as replay
from weft.engine.state import Tables, allocate, grow
from weft.hardware import Gpu
from weft.hardware.pim import Pim
from weft.kernels.pim import MemoryWork
from weft.overlaps.arbiters import ROUND_ROBIN
from weft.overlaps.lower.pim import take_delays
from weft.simulate.channel import IntArray, Requests, channel_tables, one_channel

_NOTHING = Requests(*(np.zeros(0, dtype=np.int64) for _ in range(5)))
"""No requests: the channel is left to the commands."""
IDLE = PimStream.of("nothing", 1, ())
"""No commands: the channel is left to the GPU."""


@dataclass(frozen=True, eq=False)
class ChannelRun:
    """Requests and commands that met on one channel: when each was sent, served and used, or given [fs].

    `sent`, `done` and `used` are of the requests, in their order; `begin` and `end` of the runs of commands.
    """

    pim: Pim
    requests: Requests
    stream: PimStream
    sent: IntArray
    done: IntArray
    used: IntArray
    begin: IntArray
    end: IntArray

    @property
    def seconds(self) -> float:
        """When the kernel has used its last data [s]; 0 without requests."""
        return float(self.used.max(initial=0) / FS_PER_S)

    @property
    def pim_seconds(self) -> float:
        """When the last command has ended [s]; 0 without commands."""
        return float(self.end.max(initial=0) / FS_PER_S)

    @property
    def busy(self) -> float:
        """Share of the time until the last command in which groups of commands hold the channel."""
        first = np.flatnonzero(np.concatenate(([True], self.stream.runs[:-1, PIM_TOGETHER] == 0)))
        last = np.flatnonzero(self.stream.runs[:, PIM_TOGETHER] == 0)
        return float((self.end[last] - self.begin[first]).sum() / max(self.end.max(initial=0), 1))

    @property
    def banks(self) -> IntArray:
        """The bank of each request, as the engine's channel maps addresses."""
        row = self.requests.address // max(self.pim.channel.row_bytes, int(self.requests.bytes.max(initial=0)))
        return (row + row // self.pim.channel.banks * 3) % self.pim.channel.banks

    @property
    def gain(self) -> float:
        """Bytes that the units read and wrote in their banks over what the interface could have moved meanwhile."""
        words = self.stream.count("read", "write") * self.pim.together
        return words * self.pim.units.word_bytes / (self.pim_seconds * self.pim.channel.bandwidth)


def meet(
    stream: PimStream,
    pim: Pim,
    requests: Requests = _NOTHING,
    gpu: Gpu | str = "mi210",
    window: int = 64,
    every: float = 0.0,
    patience: float = 0.0,
) -> ChannelRun:
    """Run a stream of commands and the requests of a kernel on one channel of `pim`, in the engine's DRAM.

    `requests.at` says when the kernel would use each datum if all came in time; it has at most `window` requests in
    flight, and what it waits for delays all that follow. A group of commands is due every `every` [s] (0: when the one
    before has ended) and gives way to queued requests for at most `patience` [s]. Of the GPU, the path to memory, its
    queue and bank groups count. Raises InputError for a window of no request.
    """
    check_whole("window", window, 1, 64)
    work = MemoryWork(stream, pim, every, patience)
    source = np.zeros((len(requests.at), TRACE_COLUMNS), dtype=np.int64)
    source[:, : TRACE_STREAM + 3] = np.stack(requests, axis=1)
    served = np.full((len(source), SERVED_COLUMNS), y.NONE, dtype=np.int64)
    machine = allocate(tables(work, hardware.gpu(gpu)), 1 << 40)
    while machine.request.shape[0] < len(source) + 1:
        machine = grow(machine, y.GROW_REQUESTS)
    begun = np.zeros(STAND_COLUMNS, dtype=np.int64)
    status = replay(machine, source, served, begun, ROUND_ROBIN.compiled, window)
    if status != y.FINISHED:
        raise SimulationError("requests and commands on one channel did not all end; report this with the two streams")
    sent, done, used = (served[:, column] for column in (SERVED_SENT, SERVED_DONE, SERVED_USED))
    log = machine.pim_log[0]
    return ChannelRun(pim, requests, stream, sent, done, used, log[:, PIM_BEGIN], log[:, PIM_END])


def tables(work: MemoryWork, gpu: Gpu) -> Tables:
    """The engine's tables of one channel with the commands, banks and delays of `work`, and all else of the GPU."""
    made, pim = channel_tables(one_channel(gpu), "banks"), work.pim
    take_delays(made.gpu, pim, gpu.memory.read_efficiency)
    made.gpu[0, [y.GPU_PIM_EVERY, y.GPU_PIM_PATIENCE]] = to_fs(work.every), to_fs(work.patience)
    made.shape[[y.SIZE_BANKS, y.SIZE_ROW, y.SIZE_BURST]] = (
        pim.channel.banks,
        pim.channel.row_bytes,
        pim.units.word_bytes,
    )
    return made._replace(pim=work.stream.runs)
