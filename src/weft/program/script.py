"""Workgroup scripts: what every workgroup of a kernel does, without saying where its stores go."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

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
