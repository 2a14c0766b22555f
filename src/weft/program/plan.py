"""Workgroup scripts: what every workgroup of a kernel does, without saying where its stores go."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from weft.engine import layout as y


class Extent(IntEnum):
    """What the bytes of a load are per: the whole, a row of the workgroup's tile, or a column of it."""

    ONE = y.EXTENT_ONE
    ROWS = y.EXTENT_ROWS
    COLUMNS = y.EXTENT_COLUMNS


@dataclass(frozen=True)
class Load:
    """A load of one iteration: address = chunk base + row, column and step strides [bytes] times their index.

    It moves `unit_bytes` per unit of `extent` (`last_unit_bytes` in the last iteration), never past the chunk's end, as
    traffic of `operator`. `offset` [bytes] shifts the base. With position None it reads the buffer as a whole, whose
    chunks lie in a row. Workgroups of so many neighbouring rows or columns of tiles may fetch it together, a part each
    (clusters).
    """

    buffer: str
    position: int | None
    unit_bytes: int
    last_unit_bytes: int
    operator: str
    extent: Extent = Extent.ONE
    row_stride: int = 0
    column_stride: int = 0
    step_stride: int = 0
    cached: bool = False
    offset: int = 0
    shared_by_rows: int = 1
    shared_by_columns: int = 1


@dataclass(frozen=True)
class Store:
    """A store of one iteration into a buffer: into the workgroup's own tile if the kernel's work is tiled
    (then
    `position` is its chunk's), else `unit_bytes` (`last_unit_bytes` in the last iteration, 0: the same) at `offset` +
    `row_stride` times the workgroup + `step_stride` times the iteration [bytes].
    """

    buffer: str
    operator: str
    position: int = 0
    unit_bytes: int = 0
    step_stride: int = 0
    last_unit_bytes: int = 0
    row_stride: int = 0
    offset: int = 0


@dataclass(frozen=True)
class Wait:
    """Begin only when a chunk is complete (fully received or reduced), or, if `sent`, when DMA has sent it on.

    With `bytes`, that many must have come instead of the whole chunk: into the workgroup's own lane, if the
    buffer has lanes. With position None it is the chunk that the workgroup's work names as its lane.
    """

    buffer: str
    position: int | None
    sent: bool = False
    bytes: int | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Phase:
    """A software-pipelined loop: `slots` iterations in flight, `cycles` of a compute unit each, in order.

    With `shared`, iteration i belongs to workgroup i modulo the number of workgroups. Where `iterations` is
    None, there are as many as cover the chunk of the first load. An iteration may store a second time (`also`).
    `delay_fs` [fs] passes between the end of the wait and the first iteration.
    """

    iterations: int | None
    slots: int
    cycles: float
    loads: tuple[Load, ...] = ()
    store: Store | None = None
    wait: Wait | None = None
    shared: bool = False
    also: Store | None = None
    delay_fs: int = 0


@dataclass(frozen=True)
class Command:
    """DMA commands handed over as one: an engine sends chunks, (buffer, position) each, in order by their address map.

    They are ready `after_fs` [fs] after its kernel's launch and wait for their `engine` (None: whichever is idle).
    """

    chunks: tuple[tuple[str, int], ...]
    after_fs: int = 0
    engine: int | None = None


@dataclass(frozen=True)
class Kernel:
    """A kernel: how many workgroups, what each needs of a compute unit, and the script that all of them run.

    A `tiled` kernel computes the plan's tiles, or those in the rows `part` (first, one past the last). A kernel without
    workgroups has DMA engines carry out `copies`. With `completion_fs` the host drives them: there is no launch on the
    GPU, and the kernel is over so long after the last byte has left [fs]; None: they are launched as kernels are.
    Where workgroups run scripts of their own, `phases` holds these one behind the other, all of one length (`scripts`
    pads them), and `script_of` says which one each workgroup runs; of a tiled kernel it names the scripts, and the
    work says which one a tile's workgroup runs.
    """

    name: str
    workgroups: int
    threads: int
    registers: int
    lds: int
    phases: tuple[Phase, ...]
    tiled: bool = False
    part: tuple[int, int] | None = None
    copies: tuple[Command, ...] = ()
    completion_fs: int | None = None
    script_of: tuple[int, ...] = ()

    @property
    def script_length(self) -> int:
        """Phases of one script."""
        return len(self.phases) // (max(self.script_of, default=0) + 1)


def scripts(*each: tuple[Phase, ...]) -> tuple[Phase, ...]:
    """Several scripts one behind the other, the shorter ones padded with phases that do nothing."""
    longest = max(len(script) for script in each)
    return tuple(phase for script in each for phase in (*script, *[Phase(0, 1, 0)] * (longest - len(script))))


class Mode(IntEnum):
    """What a store does: replace or add (near-memory update), here or at another GPU."""

    LOCAL_STORE = y.LOCAL_STORE
    LOCAL_UPDATE = y.LOCAL_UPDATE
    REMOTE_STORE = y.REMOTE_STORE
    REMOTE_UPDATE = y.REMOTE_UPDATE


@dataclass(frozen=True)
class RemoteMap:
    """Stores into the chunk go to a chunk of the GPU `distance` ranks away instead, downwards around the group.

    They are striped over all links of the GPU, or with `direct` take those to that GPU alone, where a fabric has some.
    The receiver counts them as traffic of `operator`.
    """

    buffer: str
    position: int
    update: bool
    operator: str
    distance: int = 1
    direct: bool = False


@dataclass(frozen=True)
class DmaMap:
    """When every element of a block has had its updates, or a copy's command is ready, an engine sends the block to the
    GPU `distance` ranks away; `distance` and `direct` as in `RemoteMap`.

    `also` names a second receiver, (position, distance), of the same bytes. With `source`, the chunk is read in the
    memory of the GPU that many ranks away, and the rest is meant as seen from there. Reads and what they make at the
    receiver count as traffic of `operator`.
    """

    buffer: str
    position: int
    update: bool
    operator: str
    distance: int = 1
    direct: bool = False
    also: tuple[int, int] | None = None
    source: int = 0


@dataclass(frozen=True)
class ChunkRule:
    """One chunk's entry of the address map; the default is an ordinary cached local store."""

    update: bool = False
    cached: bool = False
    updates_per_element: int = 0
    remote: RemoteMap | None = None
    dma: DmaMap | None = None

    @property
    def way(self) -> RemoteMap | DmaMap | None:
        """What says where stores or commands go; None where they stay."""
        return self.remote if self.remote is not None else self.dma

    @property
    def mode(self) -> Mode:
        """The engine's code for what a store into the chunk does."""
        if self.remote is not None:
            return Mode.REMOTE_UPDATE if self.remote.update else Mode.REMOTE_STORE
        return Mode.LOCAL_UPDATE if self.update else Mode.LOCAL_STORE


CACHED_STORE = ChunkRule(cached=True)
PLAIN_STORE = ChunkRule()


Work = npt.NDArray[np.int64]
"""One row per workgroup: row, column, rows, columns, chunk position, offset in the chunk, bytes, tile number, lane."""


@dataclass(frozen=True)
class Buffer:
    """A buffer in chunks: `sizes[g][p]` bytes at GPU g and position p, each chunk with its rule.

    With `lanes`, what arrives is counted for every workgroup of the sending kernel on its own. With `within`, the
    chunks are other names of that chunk (buffer, position), so that it can be sent to several GPUs.
    """

    name: str
    sizes: tuple[tuple[int, ...], ...]
    rules: tuple[ChunkRule, ...] = ()
    lanes: int = 0
    within: tuple[str, int] | None = None

    def rule(self, position: int) -> ChunkRule:
        """The rule of a chunk; ordinary uncached stores where none is given."""
        return self.rules[position] if self.rules else PLAIN_STORE


@dataclass(frozen=True)
class PlacedKernel:
    """A kernel in a plan: what it follows (the ends of the kernels in the rows `after`, and chunks), its priority, and
    whether its results are released to other readers.

    Of kernels that wait for compute units, the higher priority is served first, then the earlier launch; those that run
    stay. The host launches it `delay_fs` [fs] after it might, as one thread launches streams one after another. It is a
    kernel of iteration `iteration` of the graph's node `operator`, in `stream` (for traces: order is in `after`).
    """

    kernel: Kernel
    after: tuple[int, ...] = ()
    after_chunks: tuple[Wait, ...] = ()
    priority: int = 0
    release: bool = False
    monitor: bool = False
    compute_units: tuple[int, ...] | None = None
    delay_fs: int = 0
    stream: int = 0
    operator: str = ""
    iteration: int = 0


@dataclass(frozen=True)
class Plan:
    """Everything that one run does, for every simulated GPU.

    `work[g]` are the output tiles of GPU g in run order (empty if nothing is tiled); `block_tiles` of them make one
    DMA command; `wavefronts` is the number of wavefront tiles in a tile.
    """

    kernels: tuple[PlacedKernel, ...]
    buffers: tuple[Buffer, ...]
    work: tuple[Work, ...]
    wavefronts: int = 4
    block_tiles: int = 1
    tile_buffer: str = "output"


def renamed(kernel: Kernel, prefix: str) -> Kernel:
    """A kernel with `prefix` before the name of every buffer that it works on, so that a plan can hold several."""
    phases = (
        replace(
            phase,
            loads=tuple(_named(load, prefix) for load in phase.loads),
            store=_named(phase.store, prefix),
            also=_named(phase.also, prefix),
            wait=_named(phase.wait, prefix),
        )
        for phase in kernel.phases
    )
    copies = (replace(c, chunks=tuple((prefix + buffer, at) for buffer, at in c.chunks)) for c in kernel.copies)
    return replace(kernel, phases=tuple(phases), copies=tuple(copies))


def renamed_buffer(buffer: Buffer, prefix: str) -> Buffer:
    """A buffer with `prefix` before its name, and before those that its address map leads to."""
    within = buffer.within and (prefix + buffer.within[0], buffer.within[1])
    rules = (replace(r, remote=_named(r.remote, prefix), dma=_named(r.dma, prefix)) for r in buffer.rules)
    return replace(buffer, name=prefix + buffer.name, within=within, rules=tuple(rules))


def _named(part: Any, prefix: str) -> Any:
    """A part of a script or an address map with `prefix` before the name of its buffer; None stays None."""
    return part and replace(part, buffer=prefix + part.buffer)
