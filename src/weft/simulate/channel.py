"""Memory requests replayed on one channel of a GPU, with nothing else on the machine."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from weft.core.errors import SimulationError
from weft.core.options import Memory, RunOptions
from weft.core.units import format_rate
from weft.engine import layout as y
from weft.engine.replay import TRACE_COLUMNS, TRACE_STREAM, replay
from weft.engine.state import Tables
from weft.hardware import Gpu, System
from weft.overlaps.arbiters import ROUND_ROBIN, ArbiterPolicy
from weft.overlaps.lower.machine import default_request_bytes, machine_tables
from weft.simulate.result.unfinished import starvation

IntArray = npt.NDArray[np.int64]


class Requests(NamedTuple):
    """Requests in the order of arrival: `at` [fs], `kind` (0 read, 1 write, 2 update), `stream` (0 compute,
    1 communication), `address` within the channel and `bytes`, one entry of each array a request.
    """

    at: IntArray
    kind: IntArray
    stream: IntArray
    address: IntArray
    bytes: IntArray

    def cut(self, piece: int) -> tuple[Requests, IntArray]:
        """The requests in pieces of at most `piece` bytes that arrive together, and the request of each piece."""
        pieces = -(-self.bytes // piece)
        of = np.repeat(np.arange(len(self.at)), pieces)
        offset = (np.arange(len(of)) - np.repeat(np.cumsum(pieces) - pieces, pieces)) * piece
        at, kind, stream, address, bytes_ = (column[of] for column in self)
        return Requests(at, kind, stream, address + offset, np.minimum(bytes_ - offset, piece)), of


def one_channel(gpu: Gpu) -> Gpu:
    """Return the GPU with only one of its memory channels."""
    each = format_rate(gpu.memory.bandwidth / gpu.memory.channels)
    return gpu.replace({"memory.channels": 1, "memory.bandwidth": each, "memory_cache.capacity": "0 B"})


def replay_requests(
    requests: Requests, gpu: Gpu, arbiter: ArbiterPolicy = ROUND_ROBIN, memory: Memory = "banks"
) -> IntArray:
    """Return when the last data of each request has passed the bus of the GPU's one channel [fs].

    The path behind the channel (`memory.latency`) is left out, and the stream in front of it has no end. Raises
    SimulationError if the arbiter never serves a stream.
    """
    trace = np.zeros((len(requests.at), TRACE_COLUMNS), dtype=np.int64)
    trace[:, : TRACE_STREAM + 3] = np.stack(requests, axis=1)
    status, done, machine = replay(channel_tables(gpu, memory), arbiter.compiled, trace)
    if status == y.STARVED:
        raise SimulationError(starvation(machine, arbiter.name))
    return done


def channel_tables(gpu: Gpu, memory: Memory) -> Tables:
    """Return the engine's tables of a GPU without kernels."""
    options = RunOptions(request_bytes=min(default_request_bytes(gpu), gpu.memory.interleave), memory=memory)
    rows, shape, wired = machine_tables(System(gpu=gpu, gpus=2), 1, options, 1)
    shape[y.SIZE_GPUS] = shape[y.SIZE_REGIONS] = shape[y.SIZE_WAVEFRONTS] = shape[y.SIZE_BLOCK_TILES] = 1
    shape[y.SIZE_CAUSES], shape[y.SIZE_COMPUTE_CAUSE] = y.KINDS, 0

    def empty(*dims: int) -> npt.NDArray[np.int64]:
        return np.zeros(dims, dtype=np.int64)

    return Tables(
        shape=shape, gpu=rows, kernel=empty(1, 0, y.KERNEL_COLUMNS), successor=empty(1),
        phase=empty(1, 1, y.PHASE_COLUMNS), access=empty(1, 1, y.ACCESS_COLUMNS), work=empty(1, 0, y.WORK_FIELDS),
        region=empty(1, 1, y.REGION_COLUMNS), tile=empty(1, 1, y.TILE_COLUMNS),
        unit_mask=empty(1, 0, int(shape[y.SIZE_CUS])), link=wired.link, route=wired.route,
    )  # fmt: skip
