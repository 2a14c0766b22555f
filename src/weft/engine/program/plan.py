"""Plans: workgroup scripts, DMA commands, and buffers whose address map decides where stores go."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from weft.engine import layout as y
from weft.engine.layout import (
    PIM_COLUMNS,
    PIM_COMPUTE,
    PIM_COUNT,
    PIM_GAP,
    PIM_KIND,
    PIM_TOGETHER,
    READ,
    UPDATE,
    WRITE,
)


@dataclass(frozen=True)
class ChunkAccess:
    """Bytes of a chunk that one iteration of a workgroup loads or stores, as traffic of `operator`.

    The address is the chunk's base + `offset` + `row_stride` times the workgroup's row + `column_stride` times its
    column + `step_stride` times the iteration [bytes]; by default (None) iterations follow each other without gaps. An
    iteration moves `unit_bytes`, the last one `last_unit_bytes` (0: as many).
    """

    buffer: str
    position: int | None
    operator: str
    unit_bytes: int = 0
    last_unit_bytes: int = 0
    row_stride: int = 0
    step_stride: int | None = None
    offset: int = 0
    column_stride: int = 0


@dataclass(frozen=True)
class ChunkLoad(ChunkAccess):
    """A load, clipped at the chunk's end; with position None it covers all chunks of the buffer in sequence.

    `unit_bytes` count per unit of `extent`: one (`EXTENT_ONE` of `engine.layout`), the rows or the columns of the
    workgroup's tile. The workgroups of `shared_by_rows` or `shared_by_columns` neighbouring tiles fetch the bytes
    together, a part each (clusters). With `members` the switch fetches the bytes from that many GPUs and returns the
    sum: at the GPU d ranks below, from `member_stride` times d further on [bytes]. With a `distance` they come from the
    memory of the GPU that many ranks below, over the links to it alone if `direct` and the fabric has any; the cache
    keeps those of a `cached` load as if they lay in the chunk `window` of the GPU's own buffer, and a switch with a
    table merges the requests of as many `readers`, where nothing writes these bytes meanwhile.
    """

    extent: int = y.EXTENT_ONE
    cached: bool = False
    shared_by_rows: int = 1
    shared_by_columns: int = 1
    members: int = 0
    member_stride: int = 0
    distance: int = 0
    direct: bool = False
    window: int = 0
    readers: int = 1


@dataclass(frozen=True)
class ChunkStore(ChunkAccess):
    """A store; a workgroup whose tile has a chunk stores all of it, at the tile's place in the buffer.

    That of a tile without one (WORK_REGION is NONE in `Work`) stores what the access says, wherever it says.
    """


@dataclass(frozen=True)
class Wait:
    """Wait until a chunk is complete (fully received or reduced) or, if `sent`, until DMA engines have sent it.

    With `bytes`, until that many have arrived: in the workgroup's own lane if the buffer has lanes. With position None,
    for the chunk whose position is the workgroup's lane.
    """

    buffer: str
    position: int | None
    sent: bool = False
    bytes: int | None = field(default=None, compare=False)


@dataclass(frozen=True)
class Phase:
    """A software-pipelined loop: `slots` iterations in flight, `cycles` of a compute unit each, in order.

    With `shared`, iteration i belongs to workgroup i modulo the number of workgroups. Where `iterations` is None, there
    are as many as cover the chunk of the first load. `delay_fs` [fs] passes between the end of the wait and the first
    iteration. The first iterations of a `staged` loop load one after another, each when its compute unit's port has
    sent the loads before it; of others all at once.
    """

    iterations: int | None
    slots: int
    cycles: float
    loads: tuple[ChunkLoad, ...] = ()
    stores: tuple[ChunkStore, ...] = ()
    wait: Wait | None = None
    shared: bool = False
    delay_fs: int = 0
    staged: bool = False


@dataclass(frozen=True)
class DmaCommand:
    """DMA commands enqueued together: an engine sends `chunks`, (buffer, position) each, as the address map says.

    They are ready `after_fs` [fs] after the kernel's launch and wait for their `engine` (None: any idle one).
    """

    chunks: tuple[tuple[str, int], ...]
    after_fs: int = 0
    engine: int | None = None


@dataclass(frozen=True)
class Kernel:
    """A kernel: its workgroups, their resources (`registers` and `lds` in bytes), and their script.

    A `tiled` kernel computes the plan's tiles, or those in the rows `part` (first, one past the last). A kernel without
    workgroups lets DMA engines execute `copies`. With `completion_fs` [fs] the host enqueues the copies itself: there
    is no launch on the GPU, and the kernel ends that long after the last byte has left. If workgroups run different
    scripts, `phases` holds the scripts one after another, all of one length (`scripts` pads them), and `script_of` has
    the script of each workgroup; in a tiled kernel it lists the scripts, and `Work` has the script of each tile. With
    `in_step` its workgroups are dispatched stage by stage, as many at once as the compute units hold. Where GPUs run
    different scripts, `by_gpu` has those of each, all as long as `phases`, which are the first one's. A place whose
    stores went to a peer is free `acknowledge_fs` [fs] after the link has sent them, or `acknowledge_busy_fs` while a
    tiled kernel runs on the GPU (None: the same). While workgroups of a kernel that `exchanges` data with other GPUs
    are placed, tiled kernels compute at `corun_clock` times the share of their rate that the GPU then reaches;
    otherwise at `clock` times the GPU's clock. Workgroups are dealt round robin to `shaders` shader engines of each
    partition that has compute units for them, whether or not these have room (1: to any compute unit with room), and at
    most `grid` run at once (0: as many as fit).
    """

    name: str
    workgroups: int
    threads: int
    registers: int
    lds: int
    phases: tuple[Phase, ...]
    tiled: bool = False
    part: tuple[int, int] | None = None
    copies: tuple[DmaCommand, ...] = ()
    completion_fs: int | None = None
    script_of: tuple[int, ...] = ()
    in_step: bool = False
    by_gpu: tuple[tuple[Phase, ...], ...] = ()
    acknowledge_fs: int = 0
    acknowledge_busy_fs: int | None = None
    exchanges: bool = False
    clock: float = 1.0
    corun_clock: float = 1.0
    shaders: int = 1
    grid: int = 0

    def on(self, gpu: int) -> tuple[Phase, ...]:
        """The scripts that a GPU runs."""
        return self.by_gpu[gpu] if self.by_gpu else self.phases

    @property
    def every_phase(self) -> tuple[Phase, ...]:
        """The phases of all scripts of all GPUs."""
        return tuple(phase for each in self.by_gpu for phase in each) or self.phases

    @property
    def script_length(self) -> int:
        """Phases of one script."""
        return len(self.phases) // (max(self.script_of, default=0) + 1)


def scripts(*each: tuple[Phase, ...]) -> tuple[Phase, ...]:
    """Concatenate scripts; shorter ones are padded with empty phases."""
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
    """Redirects stores into the chunk to a chunk of the GPU `distance` ranks below, around the group.

    With `within`, ranks are counted around so many neighbouring GPUs: those of a node.
    They are striped over all links of the GPU or, if `direct`, take the links to that GPU alone, if the fabric has any.
    The receiver counts them as traffic of `operator`, as updates if `update`. With `members` the switch copies them to
    that many GPUs, the sender included: at the GPU d ranks below, to `member_stride` times d further on [bytes]. With
    `summed` the switch adds up what that many GPUs store to one place, and sends it the sum.
    """

    buffer: str
    position: int
    update: bool
    operator: str
    distance: int = 1
    direct: bool = False
    members: int = 0
    member_stride: int = 0
    summed: int = 0
    within: int = 0


@dataclass(frozen=True)
class DmaMap(RemoteMap):
    """A DMA engine sends the block to a GPU: when all its elements are updated, or when a copy's command is ready.

    `also` names a second receiver of the same bytes, (position, distance). With `source`, the engine reads the chunk in
    the memory of the GPU that many ranks below, and the other fields are relative to that GPU. The tiles of the chunk
    are dealt to `engines` in turn (empty: any idle engine takes the next one).
    """

    also: tuple[int, int] | None = None
    source: int = 0
    engines: tuple[int, ...] = ()


@dataclass(frozen=True)
class ChunkRule:
    """One chunk's entry of the address map; the default is an ordinary uncached local store.

    With `counted` the GPU's own stores count like those that arrive, for those who wait for bytes.
    """

    update: bool = False
    cached: bool = False
    updates_per_element: int = 0
    counted: bool = False
    remote: RemoteMap | None = None
    dma: DmaMap | None = None

    @property
    def route(self) -> RemoteMap | None:
        """The map of stores or DMA commands to another GPU; None if they are local."""
        return self.remote or self.dma

    @property
    def mode(self) -> Mode:
        """The engine's code for what a store into the chunk does."""
        if self.remote is not None:
            return Mode.REMOTE_UPDATE if self.remote.update else Mode.REMOTE_STORE
        return Mode.LOCAL_UPDATE if self.update else Mode.LOCAL_STORE


CACHED_STORE = ChunkRule(cached=True)
PLAIN_STORE = ChunkRule()


Work = npt.NDArray[np.int64]
"""One row per workgroup: row, column, rows, columns, chunk position, offset in the chunk, bytes, tile number, lane.

Tiles without a chunk of "output" (NONE) are numbered after those with one.
"""


@dataclass(frozen=True)
class Buffer:
    """A buffer in chunks: `sizes[g][p]` bytes on GPU g at position p, or `sizes[0][p]` on every GPU; `rules[p]` each.

    With `lanes`, arriving bytes are counted per workgroup of the sending kernel. With `within`, the chunks are other
    names of that chunk (buffer, position), so that it can be sent to several GPUs; each begins as far into it as
    `offsets[g][p]` say, or `offsets[0][p]` on every GPU [bytes] (none: at its start).
    """

    name: str
    sizes: tuple[tuple[int, ...], ...]
    rules: tuple[ChunkRule, ...] = ()
    lanes: int = 0
    within: tuple[str, int] | None = None
    offsets: tuple[tuple[int, ...], ...] = ()

    def rule(self, position: int) -> ChunkRule:
        """The rule of a chunk; ordinary uncached stores without one."""
        return self.rules[position] if self.rules else PLAIN_STORE


@dataclass(frozen=True)
class PlacedKernel:
    """A kernel in a plan: it starts after the kernels in the rows `after` have ended, and after chunks.

    Of kernels that wait for compute units, the higher priority is served first, then the earlier launch; nothing is
    preempted. `delay_fs` [fs] delays its launch, because one host thread launches all streams. With `release` its end
    writes dirty cache lines back, so that others can read them; with `monitor` its first stage sets the arbiter's
    threshold. It runs iteration `iteration` of the graph's node `operator`, in `stream` (for traces). With `gpus` only
    those run it. A kernel `aside` holds up no later one of its stream.
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
    gpus: tuple[int, ...] | None = None
    aside: bool = False


@dataclass(frozen=True)
class Plan:
    """Everything that one run does, on every simulated GPU.

    `work[g]` are the tiles of GPU g in run order, or `work[0]` those of every GPU; they fill the buffer "output" (empty
    if nothing is tiled). `wavefronts` is the number of wavefront tiles in a tile.
    """

    kernels: tuple[PlacedKernel, ...]
    buffers: tuple[Buffer, ...]
    work: tuple[Work, ...]
    wavefronts: int = 4


def renamed(kernel: Kernel, prefix: str) -> Kernel:
    """A kernel with `prefix` before the name of every buffer that it uses, so that a plan can hold several."""
    copies = (replace(c, chunks=tuple((prefix + buffer, at) for buffer, at in c.chunks)) for c in kernel.copies)
    by_gpu = tuple(_phases_named(phases, prefix) for phases in kernel.by_gpu)
    return replace(kernel, phases=_phases_named(kernel.phases, prefix), copies=tuple(copies), by_gpu=by_gpu)


def _phases_named(phases: tuple[Phase, ...], prefix: str) -> tuple[Phase, ...]:
    return tuple(
        replace(
            phase,
            loads=tuple(_named(load, prefix) for load in phase.loads),
            stores=tuple(_named(store, prefix) for store in phase.stores),
            wait=_named(phase.wait, prefix),
        )
        for phase in phases
    )


def renamed_aside(placed: PlacedKernel, prefix: str) -> PlacedKernel:
    """A kernel that waits for chunks, with `prefix` before the names of its buffers and of theirs."""
    waits = tuple(_named(wait, prefix) for wait in placed.after_chunks)
    return replace(placed, kernel=renamed(placed.kernel, prefix), after_chunks=waits)


def renamed_buffer(buffer: Buffer, prefix: str) -> Buffer:
    """A buffer with `prefix` before its name and before the names in its address map."""
    within = buffer.within and (prefix + buffer.within[0], buffer.within[1])
    rules = (replace(r, remote=_named(r.remote, prefix), dma=_named(r.dma, prefix)) for r in buffer.rules)
    return replace(buffer, name=prefix + buffer.name, within=within, rules=tuple(rules))


def _named(part: Any, prefix: str) -> Any:
    """A part of a script or address map with `prefix` before the name of its buffer; None stays None."""
    return part and replace(part, buffer=prefix + part.buffer)


KINDS = {"compute": PIM_COMPUTE, "read": READ, "write": WRITE, "update": UPDATE}
"""What a command does, by name: computes in registers, reads a word of every open row, writes one, or adds to one."""


@dataclass(frozen=True, eq=False)
class PimStream:
    """Runs of commands for all units of a channel, a row of `runs` each (columns: `weft.engine.layout`, PIM_*).

    `words` is the number of words of the tensor that each unit works through, `title` what is done to them. Runs up to
    a barrier belong together: no request of the GPU comes between them.
    """

    title: str
    words: int
    runs: npt.NDArray[np.int64]

    @classmethod
    def of(cls, title: str, words: int, runs: Iterable[tuple[int, ...]]) -> PimStream:
        """A stream of runs, given as tuples of the columns."""
        return cls(title, words, np.array(list(runs), dtype=np.int64).reshape(-1, PIM_COLUMNS))

    def count(self, *kinds: str) -> int:
        """Number of commands of some kinds (none given: of all)."""
        counts = self.runs[:, PIM_COUNT]
        wanted = [KINDS[kind] for kind in kinds]
        return int(counts[np.isin(self.runs[:, PIM_KIND], wanted)].sum() if kinds else counts.sum())

    @property
    def commands_per_word(self) -> float:
        """Commands for each word of the tensor: c of JIT-Q's cost."""
        return self.count() / self.words

    @property
    def busy_fs(self) -> int:
        """Time that the commands take where no row is opened [fs]."""
        return int((self.runs[:, PIM_COUNT] * self.runs[:, PIM_GAP]).sum())

    @property
    def blocks(self) -> int:
        """Number of groups of runs that end in a barrier."""
        return int((self.runs[:, PIM_TOGETHER] == 0).sum())
