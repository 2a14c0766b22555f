"""Build the engine's integer tables from a plan: names become rows, chunks get addresses, waits get counters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from weft.core.errors import InputError
from weft.engine import layout as y
from weft.engine.program.plan import (
    Buffer,
    ChunkAccess,
    ChunkLoad,
    DmaMap,
    Kernel,
    Phase,
    PlacedKernel,
    Plan,
    RemoteMap,
    Wait,
)
from weft.engine.state import NO_COMMANDS, Table, Tables

ALIGNMENT = 1 << 21
"""Buffers start on multiples of a large page [bytes]."""
CHUNK_ALIGNMENT = 1 << 12
"""Chunks start on multiples of a page, and of the request size where that is larger [bytes]."""

SYSTEM = ("tracker", "earlier")
"""Operators of every machine: the tracker, and work before the run (`engine.layout`, OPERATOR_*)."""


def below(gpu: int, distance: int, group: int) -> int:
    """The GPU `distance` ranks below `gpu` around its group of `group` consecutive GPUs."""
    return gpu - gpu % group + (gpu - distance) % group


class Wiring(NamedTuple):
    """The links of the simulated GPUs, `link[k, :]`, their names, and all routes over them, `route[p, :]`.

    `first` is the first row of each route, by (GPU, distance, direct). A distance counts ranks downwards around the
    group; `direct` routes take the links to that GPU alone. `switch[g]` are the first rows of the routes from GPU g to
    a switch that reduces or merges and back (NONE: there is none). `group` is the number of consecutive GPUs that form
    a group (0: all of them form one); if more than are simulated, these represent it.
    """

    link: Table
    names: tuple[str, ...]
    route: Table
    first: Mapping[tuple[int, int, bool], int]
    switch: Table
    group: int = 0

    @property
    def peers(self) -> int:
        """The number of GPUs of the system, however few of them are simulated."""
        return 1 + max((distance for _, distance, _ in self.first), default=0)

    def hops(self, gpu: int, distance: int, direct: bool) -> Table:
        """The rows of a route: links, each with the latency from its end to the next one or to the receiver [fs].

        Raises InputError for a GPU out of range.
        """
        if (gpu, distance, direct) not in self.first:
            raise InputError(
                f"the plan sends to a GPU {distance} ranks away from GPU {gpu}, which does not exist; choose a system "
                "with as many GPUs as the plan has ranks"
            )
        rows = self.route[self.first[gpu, distance, direct] :]
        return rows[: int((rows[:, y.ROUTE_LINK] == y.NONE).argmax())]


class Hardware(NamedTuple):
    """The simulated GPUs, `gpu[g, :]`, shared sizes as named in `engine.layout`, and the wiring."""

    gpu: Table
    shape: Table
    wiring: Wiring


@dataclass(frozen=True)
class Program:
    """The integer tables of a run, and the names of their rows.

    Traffic of `operators[i]` has the causes `i * KINDS` + READ, WRITE or UPDATE (`engine.layout`).
    """

    tables: Tables
    kernel_names: tuple[str, ...]
    regions: tuple[tuple[str, int], ...]
    link_names: tuple[str, ...]
    operators: tuple[str, ...]
    plan: Plan

    def region(self, buffer: str, position: int) -> int:
        """The row of a chunk."""
        return self.regions.index((buffer, position))

    def cause(self, operator: str, kind: int) -> int:
        """The index of the traffic of one kind of an operator."""
        return self.operators.index(operator) * y.KINDS + kind


def build(plan: Plan, hardware: Hardware, pim: Table = NO_COMMANDS) -> Program:
    """Lower a plan onto simulated GPUs, beside whose work the memory channels carry out the commands `pim[k, :]`.

    Raises InputError where the plan sends to a GPU that they have no route to.
    """
    return _TableBuilder(plan, hardware, pim).program()


class _TableBuilder:
    """The tables of a plan under construction; chunks have a `row`, operators and awaited chunks a number."""

    def __init__(self, plan: Plan, hardware: Hardware, pim: Table) -> None:
        self.plan, self.gpu, self.wiring, self.pim = plan, hardware.gpu, hardware.wiring, pim
        self.gpus, self.shape = len(hardware.gpu), hardware.shape.copy()
        self.buffers = {buffer.name: buffer for buffer in plan.buffers}
        chunks = ((buffer.name, p) for buffer in plan.buffers for p in range(len(buffer.sizes[0])))
        self.row = {chunk: row for row, chunk in enumerate(chunks)}
        # Operators whose data the address map sends, or that load from other GPUs, communicate; the others are compute.
        routes = (rule.route for buffer in plan.buffers for rule in buffer.rules)
        phases = [phase for placed in plan.kernels for phase in placed.kernel.every_phase]
        pulled = (load.operator for phase in phases for load in phase.loads if load.distance)
        communicating = dict.fromkeys((*SYSTEM, *(route.operator for route in routes if route is not None), *pulled))
        accesses = (access for phase in phases for access in (*phase.loads, *phase.stores))
        names = dict.fromkeys((*communicating, *(access.operator for access in accesses)))
        self.operator = {name: number for number, name in enumerate(names)}
        self.shape[y.SIZE_CAUSES] = len(names) * y.KINDS
        self.shape[y.SIZE_COMPUTE_CAUSE] = len(communicating) * y.KINDS
        self.counter: dict[Wait, int] = {}
        self.counters = 0
        self.works: list[Table] = [_of_gpu(plan.work, g) for g in range(self.gpus)] if plan.work else []
        self.most_tiles = max(map(len, self.works), default=0)
        copied = sum(len(copy.chunks) for placed in plan.kernels for copy in placed.kernel.copies)
        self.region = np.zeros((self.gpus, len(self.row), y.REGION_COLUMNS), dtype=np.int64)
        self.tile = np.zeros((self.gpus, max(self.most_tiles + copied, 1), y.TILE_COLUMNS), dtype=np.int64)
        self.phases: list[list[list[int]]] = [[] for _ in range(self.gpus)]
        self.accesses: list[list[list[int]]] = [[] for _ in range(self.gpus)]

    def program(self) -> Program:
        self._number_counters()
        for g in range(self.gpus):
            self._place_chunks(g)
        kernel, work = self._kernels()
        successor, classes = self._order(kernel)
        self._add_tiles()
        self._add_copies(kernel)
        sizes = {
            y.SIZE_GPUS: self.gpus,
            y.SIZE_KERNELS: kernel.shape[1],
            y.SIZE_REGIONS: len(self.row),
            y.SIZE_TILES: self.tile.shape[1] if self.tile.any() else 0,
            y.SIZE_WAVEFRONTS: self.plan.wavefronts,
            y.SIZE_BLOCK_TILES: 1,
            y.SIZE_COUNTERS: self.counters,
            y.SIZE_CLASSES: classes,
            y.SIZE_SHADERS: max((placed.kernel.shaders for placed in self.plan.kernels), default=1),
        }
        self.shape[list(sizes)] = list(sizes.values())
        tables = Tables(
            shape=self.shape,
            gpu=self.gpu,
            kernel=kernel,
            successor=successor,
            phase=_stack(self.phases, y.PHASE_COLUMNS),
            access=_stack(self.accesses, y.ACCESS_COLUMNS),
            work=work,
            region=self.region,
            tile=self.tile,
            unit_mask=self._masks(),
            link=self.wiring.link,
            route=self.wiring.route,
            pim=self.pim,
        )
        names = tuple(placed.kernel.name for placed in self.plan.kernels)
        return Program(tables, names, tuple(self.row), self.wiring.names, tuple(self.operator), self.plan)

    def _number_counters(self) -> None:
        """Number the counters: one per awaited chunk; chunks that a kernel awaits together share one."""
        groups: list[tuple[Wait, ...]] = []
        for placed in self.plan.kernels:
            groups.append(placed.after_chunks)
            for wait in (phase.wait for phase in placed.kernel.every_phase if phase.wait is not None):
                chunks = range(len(self.buffers[wait.buffer].sizes[0])) if wait.position is None else ()
                groups += [(Wait(wait.buffer, position),) for position in chunks] or [(wait,)]
        for group in dict.fromkeys(groups):
            number = self.counters
            for wait in group:
                if len(group) > 1 and wait in self.counter:
                    raise ValueError(f"{wait} is awaited alone and together with others")
                if self.counter.setdefault(wait, number) == number:
                    self.counters = number + max(self.buffers[wait.buffer].lanes, 1)

    # -- chunks and tiles

    def _place_chunks(self, g: int) -> None:
        """Rows of all chunks of a GPU, laid out one after another in its memory."""
        grain = max(CHUNK_ALIGNMENT, int(self.shape[y.SIZE_REQUEST]))
        address = 0
        for buffer in self.plan.buffers:
            for position, size in enumerate(_of_gpu(buffer.sizes, g)):
                base = address
                if buffer.within is not None:
                    base = int(self.region[g, self.row[buffer.within], y.REGION_BASE])
                    base += _of_gpu(buffer.offsets, g)[position] if buffer.offsets else 0
                else:
                    address += -(-size // grain) * grain
                self.region[g, self.row[buffer.name, position]] = self._chunk(g, buffer, position, size, base)
            address = -(-address // ALIGNMENT) * ALIGNMENT

    def _chunk(self, g: int, buffer: Buffer, position: int, size: int, base: int) -> list[int]:
        rule = buffer.rule(position)
        row = {
            y.REGION_BASE: base,
            y.REGION_SIZE: size,
            y.REGION_MODE: rule.mode,
            y.REGION_CACHED: int(rule.cached),
            y.REGION_COUNTER: self.counter.get(Wait(buffer.name, position), y.NONE),
            y.REGION_SENT_COUNTER: self.counter.get(Wait(buffer.name, position, sent=True), y.NONE),
            y.REGION_TRACKED: y.NONE if rule.counted else rule.updates_per_element,
            y.REGION_FIRST_TILE: 0,
            y.REGION_TILES: 0,
            y.REGION_LANED: int(buffer.lanes > 0),
            y.REGION_SOURCE: g,
            y.REGION_SOURCE_LATENCY: 0,
            y.REGION_MEMBERS: 0,
        }
        if rule.route is not None and rule.route.members:
            row |= self._multicast(g, rule.route)
        elif rule.route is not None:
            row[y.REGION_TARGET], row[y.REGION_ROUTE] = self._to(
                g, rule.route.distance, rule.route.direct, rule.route.within
            )
            if rule.route.summed:
                self._check_one_group()
                row[y.REGION_ROUTE] = int(self.gpu[g, y.GPU_UP])
                row[y.REGION_MEMBERS], row[y.REGION_MEMBER_STRIDE] = rule.route.summed, y.NONE
        if rule.remote is not None:
            row[y.REGION_TO_REGION] = self.row[rule.remote.buffer, rule.remote.position]
            row[y.REGION_REMOTE_CAUSE] = self._sent(rule.remote)
        if rule.dma is not None:
            row |= self._command(g, rule.dma)
        return _filled(y.REGION_COLUMNS, row)

    def _multicast(self, g: int, route: RemoteMap) -> dict[int, int]:
        """Columns of a chunk whose stores the switch copies to all members."""
        self._check_one_group()
        return {
            y.REGION_TARGET: g,
            y.REGION_ROUTE: int(self.gpu[g, y.GPU_UP]),
            y.REGION_MEMBERS: route.members,
            y.REGION_MEMBER_STRIDE: route.member_stride,
        }

    def _check_one_group(self) -> None:
        if self.wiring.group:
            raise InputError(
                f"a switch that adds joins the {self.gpus} GPUs of a run, but groups have {self.wiring.group}; choose "
                "a system with as many GPUs as a group, or kernels that do not add in the switch"
            )

    def _command(self, g: int, dma: DmaMap) -> dict[int, int]:
        """Columns of the DMA command of a chunk."""
        row = {
            y.REGION_DMA_MODE: y.REMOTE_UPDATE if dma.update else y.REMOTE_STORE,
            y.REGION_DMA_REGION: self.row[dma.buffer, dma.position],
            y.REGION_DMA_CAUSE: self.operator[dma.operator] * y.KINDS + y.READ,
            y.REGION_DMA_REMOTE_CAUSE: self._sent(dma),
        }
        if dma.source:
            row[y.REGION_SOURCE], _ = self._to(g, dma.source, dma.direct)
            row[y.REGION_SOURCE_LATENCY] = int(self.wiring.hops(g, dma.source, dma.direct)[:, y.ROUTE_LATENCY].sum())
        if dma.also is not None:
            position, distance = dma.also
            row[y.REGION_ALSO_REGION] = self.row[dma.buffer, position]
            row[y.REGION_ALSO_TARGET], row[y.REGION_ALSO_ROUTE] = self._to(g, distance, dma.direct)
        return row

    def _to(self, g: int, distance: int, direct: bool, within: int = 0) -> tuple[int, int]:
        """The GPU `distance` ranks below GPU `g`, or the one that represents it, and the first row of the route.

        With `within`, ranks are counted around a node of so many GPUs.
        """
        if within:
            distance = (g - below(g, distance, within)) % self.wiring.peers
        self.wiring.hops(g, distance, direct)
        return below(g, distance, self.wiring.group or self.gpus) % self.gpus, self.wiring.first[g, distance, direct]

    def _sent(self, route: RemoteMap) -> int:
        """The cause that traffic has at the receiver."""
        return self.operator[route.operator] * y.KINDS + (y.UPDATE if route.update else y.WRITE)

    def _add_tiles(self) -> None:
        """Add the rows of the output tiles, and record in the chunks' rows which tiles they hold."""
        for g, tiles in enumerate(map(tiles_of, self.works)):
            work = tiles[tiles[:, y.WORK_REGION] >= 0]  # those without a chunk have the highest numbers
            first, tile = self.row["output", 0], self.tile[g, : len(work)]
            tile[:, y.TILE_REGION] = first + work[:, y.WORK_REGION]
            tile[:, y.TILE_OFFSET], tile[:, y.TILE_BYTES] = work[:, y.WORK_OFFSET], work[:, y.WORK_BYTES]
            positions, starts, counts = np.unique(work[:, y.WORK_REGION], return_index=True, return_counts=True)
            self.region[g, first + positions, y.REGION_FIRST_TILE] = starts
            self.region[g, first + positions, y.REGION_TILES] = counts
            for position, start, count in zip(positions.tolist(), starts.tolist(), counts.tolist(), strict=True):
                dma = self.buffers["output"].rule(position).dma
                if dma is not None and dma.engines:
                    tile[start : start + count, y.TILE_ENGINE] = 1 + np.resize(dma.engines, count)

    def _add_copies(self, kernel: Table) -> None:
        """Add rows for copies after the tiles, one per chunk, and record them in the kernels' rows."""
        tile, region, t = self.tile, self.region, self.most_tiles
        for k, placed in enumerate(self.plan.kernels):
            kernel[:, k, y.KERNEL_FIRST_COPY] = t
            for copy in placed.kernel.copies:
                tile[:, t, y.TILE_ROWS], tile[:, t, y.TILE_AFTER] = len(copy.chunks), copy.after_fs
                tile[:, t, y.TILE_ENGINE] = 0 if copy.engine is None else copy.engine + 1
                for chunk in copy.chunks:
                    row = self.row[chunk]
                    tile[:, t, y.TILE_REGION], tile[:, t, y.TILE_COPY] = row, k + 1
                    tile[:, t, y.TILE_BYTES] = region[:, row, y.REGION_SIZE]
                    region[:, row, y.REGION_FIRST_TILE], region[:, row, y.REGION_TILES] = t, 1
                    t += 1

    # -- kernels

    def _kernels(self) -> tuple[Table, Table]:
        """Fill the rows of all kernels, and the work of their workgroups."""
        kernels = self.plan.kernels
        table = np.zeros((self.gpus, len(kernels), y.KERNEL_COLUMNS), dtype=np.int64)
        works = []
        for g in range(self.gpus):
            work = [self._work(g, placed.kernel) for placed in kernels]
            for k, placed in enumerate(kernels):
                table[g, k] = self._kernel(g, placed)
                for phase in placed.kernel.on(g):
                    self._add_phase(g, phase)
            lengths = [len(part) for part in work]
            table[g, :, y.KERNEL_FIRST_WORK] = np.cumsum(lengths) - lengths
            works.append(np.concatenate(work))
        return table, np.stack(works)

    def _work(self, g: int, kernel: Kernel) -> Table:
        if kernel.tiled:
            return self.works[g] if kernel.part is None else self.works[g][slice(*kernel.part)]
        work = np.zeros((kernel.workgroups, y.WORK_FIELDS), dtype=np.int64)
        work[:, y.WORK_ROW] = work[:, y.WORK_LANE] = np.arange(kernel.workgroups)
        work[:, y.WORK_REGION] = y.NONE
        work[:, y.WORK_SCRIPT] = kernel.script_of or 0
        return work

    def _kernel(self, g: int, placed: PlacedKernel) -> list[int]:
        kernel, after = placed.kernel, placed.after_chunks
        launch = 0 if kernel.completion_fs is not None else int(self.gpu[g, y.GPU_LAUNCH])
        if placed.gpus is not None and g not in placed.gpus:
            row = {y.KERNEL_PREDECESSORS: len(placed.after), y.KERNEL_AFTER_COUNTER: y.NONE, y.KERNEL_SHADERS: 1}
            return _filled(y.KERNEL_COLUMNS, row, rest=0)
        row = {
            y.KERNEL_FIRST_PHASE: len(self.phases[g]),
            y.KERNEL_WORKGROUPS: kernel.workgroups,
            y.KERNEL_PHASES: kernel.script_length,
            y.KERNEL_COPIES: len(kernel.copies),
            y.KERNEL_THREADS: kernel.threads,
            y.KERNEL_REGISTERS: kernel.registers,
            y.KERNEL_LDS: kernel.lds,
            y.KERNEL_PRIORITY: placed.priority,
            y.KERNEL_PREDECESSORS: len(placed.after),
            y.KERNEL_AFTER_COUNTER: self.counter[after[0]] if after else y.NONE,
            y.KERNEL_AFTER_VALUE: sum(self._awaited(g, wait)[1] for wait in after),
            y.KERNEL_LAUNCH: placed.delay_fs + launch,
            y.KERNEL_COMPLETION: kernel.completion_fs or 0,
            y.KERNEL_RELEASE: int(placed.release),
            y.KERNEL_MONITOR: int(placed.monitor),
            y.KERNEL_STAGE: self._stage(g, placed) if kernel.in_step else 0,
            y.KERNEL_ACKNOWLEDGE: kernel.acknowledge_fs,
            y.KERNEL_ACKNOWLEDGE_BUSY: (
                kernel.acknowledge_fs if kernel.acknowledge_busy_fs is None else kernel.acknowledge_busy_fs
            ),
            y.KERNEL_TILED: int(kernel.tiled),
            y.KERNEL_EXCHANGES: int(kernel.exchanges),
            y.KERNEL_SHADERS: kernel.shaders,
            y.KERNEL_GRID: kernel.grid,
            y.KERNEL_CYCLE: round(self.gpu[g, y.GPU_CYCLE] / kernel.clock),
            y.KERNEL_CORUN_CYCLE: round(self.gpu[g, y.GPU_CORUN_CYCLE] / kernel.corun_clock),
        }
        return _filled(y.KERNEL_COLUMNS, row, rest=0)

    def _stage(self, g: int, placed: PlacedKernel) -> int:
        """How many workgroups of a kernel its compute units hold at once."""
        row, kernel = self.gpu[g], placed.kernel
        each = min(
            row[y.GPU_WORKGROUPS],
            row[y.GPU_THREADS] // kernel.threads,
            row[y.GPU_REGISTERS] // kernel.registers,
            row[y.GPU_LDS] // max(kernel.lds, 1),
        )
        units = row[y.GPU_CUS] if placed.compute_units is None else len(placed.compute_units)
        return int(each * units)

    def _awaited(self, g: int, wait: Wait) -> tuple[int, int]:
        """The counter of a wait, and the value that it must reach [bytes]."""
        position = wait.position or 0
        whole = int(self.region[g, self.row[wait.buffer, position], y.REGION_SIZE])
        return self.counter[Wait(wait.buffer, position, wait.sent)], whole if wait.bytes is None else wait.bytes

    def _add_phase(self, g: int, phase: Phase) -> None:
        """Add a row of a script, and the rows of its loads and stores."""
        iterations, accesses = phase.iterations, self.accesses[g]
        if iterations is None:
            _, size = self._extent(g, phase.loads[0])
            iterations = -(-size // phase.loads[0].unit_bytes)
        row = {
            y.PHASE_ITERATIONS: iterations,
            y.PHASE_SHARED: int(phase.shared),
            y.PHASE_SLOTS: phase.slots,
            y.PHASE_CYCLES: round(phase.cycles * 1000),
            y.PHASE_DELAY: phase.delay_fs,
            y.PHASE_STAGED: int(phase.staged),
            y.PHASE_FIRST_LOAD: len(accesses),
            y.PHASE_LOADS: len(phase.loads),
            y.PHASE_STORES: len(phase.stores),
        }
        if phase.stores:
            row[y.PHASE_STORE] = len(accesses) + len(phase.loads)
        if phase.wait is not None:
            row[y.PHASE_LANED] = int(phase.wait.position is None or self.buffers[phase.wait.buffer].lanes > 0)
            row[y.PHASE_WAIT_COUNTER], row[y.PHASE_WAIT_VALUE] = self._awaited(g, phase.wait)
        self.phases[g].append(_filled(y.PHASE_COLUMNS, row))
        accesses += [self._access(g, access) for access in (*phase.loads, *phase.stores)]

    def _extent(self, g: int, access: ChunkAccess) -> tuple[int, int]:
        """Address and size of the accessed chunk or buffer [bytes]."""
        first = last = self.row[access.buffer, access.position or 0]
        if access.position is None:
            last += len(self.buffers[access.buffer].sizes[0]) - 1
        base = int(self.region[g, first, y.REGION_BASE])
        return base, int(self.region[g, last, [y.REGION_BASE, y.REGION_SIZE]].sum()) - base

    def _access(self, g: int, access: ChunkAccess) -> list[int]:
        """The row of a load, whose base is an address, or of a store, whose base is an offset in its region."""
        base, size = self._extent(g, access)
        row = {
            y.ACCESS_ROW_STRIDE: access.row_stride,
            y.ACCESS_STEP_STRIDE: access.unit_bytes if access.step_stride is None else access.step_stride,
            y.ACCESS_UNIT: access.unit_bytes,
            y.ACCESS_LAST_UNIT: access.last_unit_bytes or access.unit_bytes,
            y.ACCESS_COLUMN_STRIDE: access.column_stride,
            y.ACCESS_OPERATOR: self.operator[access.operator],
        }
        if isinstance(access, ChunkLoad):
            rows, columns = access.shared_by_rows, access.shared_by_columns
            row |= {
                y.ACCESS_BASE: base + access.offset,
                y.ACCESS_LIMIT: size - access.offset,
                y.ACCESS_EXTENT: access.extent,
                y.ACCESS_CACHED: int(access.cached),
                y.ACCESS_SHARE: rows if rows > 1 else -columns if columns > 1 else 1,
                y.ACCESS_REGION: y.NONE,
            }
            if access.distance:
                row |= self._from_afar(g, access)
            elif access.members:
                self._check_one_group()
                row[y.ACCESS_BASE], row[y.ACCESS_REGION] = access.offset, self.row[access.buffer, access.position or 0]
                row[y.ACCESS_MEMBERS], row[y.ACCESS_MEMBER_STRIDE] = access.members, access.member_stride
        else:
            region = self.row[access.buffer, access.position or 0]
            row |= {y.ACCESS_BASE: access.offset, y.ACCESS_LIMIT: size, y.ACCESS_REGION: region}
        return _filled(y.ACCESS_COLUMNS, row, rest=0)

    def _from_afar(self, g: int, load: ChunkLoad) -> dict[int, int]:
        """Columns of a load from another GPU's memory."""
        source, _ = self._to(g, load.distance, load.direct)
        back = -load.distance % self.wiring.peers
        base, size = self._extent(source, load)
        seen = self._extent(g, replace(load, position=load.window))[0] if load.cached else base
        return {
            y.ACCESS_BASE: seen + load.offset,
            y.ACCESS_LIMIT: size - load.offset,
            y.ACCESS_MEMBERS: -load.readers,
            y.ACCESS_MEMBER_STRIDE: base - seen,
            y.ACCESS_SOURCE: source,
            y.ACCESS_ROUTE: self._to(source, back, load.direct)[1],
            y.ACCESS_ASKING: int(self.wiring.hops(g, load.distance, load.direct)[:, y.ROUTE_LATENCY].sum()),
        }

    # -- order and place

    def _order(self, kernel: Table) -> tuple[Table, int]:
        """The successors of all kernels, and the number of classes; writes their columns into `kernel`.

        The dispatcher considers only the first waiting kernel of a class.
        """
        number: dict[tuple[object, ...], int] = {}
        for k, placed in enumerate(self.plan.kernels):
            needs = (placed.kernel.threads, placed.kernel.registers, placed.kernel.lds)
            of = (*needs, placed.priority, placed.compute_units)
            kernel[:, k, y.KERNEL_CLASS] = number.setdefault(of, len(number))
        after = [(before, k) for k, placed in enumerate(self.plan.kernels) for before in placed.after]
        before, follows = np.array(sorted(after), dtype=np.int64).reshape(-1, 2).T
        kernels = np.arange(len(self.plan.kernels))
        kernel[:, :, y.KERNEL_FIRST_SUCCESSOR] = np.searchsorted(before, kernels)
        kernel[:, :, y.KERNEL_SUCCESSORS] = np.bincount(before, minlength=len(kernels))
        return np.ascontiguousarray(follows), len(number)

    def _masks(self) -> Table:
        """The compute units that each kernel may use; InputError for an empty mask and for units out of range."""
        fewest = int(self.gpu[:, y.GPU_CUS].min())
        mask = np.ones((self.gpus, len(self.plan.kernels), int(self.shape[y.SIZE_CUS])), dtype=np.int64)
        for k, placed in enumerate(self.plan.kernels):
            if (units := placed.compute_units) is None:
                continue
            shown = f"the mask of kernel '{placed.kernel.name}'"
            if not units:
                raise InputError(f"{shown} leaves it no compute unit; give it at least one of {fewest}")
            if min(units) < 0 or max(units) >= fewest:
                raise InputError(
                    f"{shown} names compute unit {min(units) if min(units) < 0 else max(units)}; the GPU has {fewest}, "
                    f"counted from 0 to {fewest - 1}"
                )
            mask[:, k, :] = 0
            mask[:, k, list(units)] = 1
        return mask


def tiles_of(work: Table) -> Table:
    """The output tiles of workgroups in the order of their numbers, each once however many workgroups compute it."""
    _, first = np.unique(work[:, y.WORK_TILE], return_index=True)
    found: Table = work[first]
    return found


def _of_gpu(rows: tuple[Any, ...], g: int) -> Any:
    """The row of GPU g: its own, that of its rank in a group, or the only one if one holds for all GPUs."""
    return rows[g % len(rows)]


def _filled(columns: int, values: Mapping[int, int], rest: int = y.NONE) -> list[int]:
    """A row with the given values by column, and `rest` elsewhere."""
    row = [rest] * columns
    for column, value in values.items():
        row[column] = value
    return row


def _stack(rows: list[list[list[int]]], columns: int) -> Table:
    """The rows of all GPUs in one table, padded to equal length and to at least one row."""
    table = np.zeros((len(rows), max(1, *map(len, rows)), columns), dtype=np.int64)
    for g, each in enumerate(rows):
        table[g, : len(each)] = np.array(each, dtype=np.int64).reshape(-1, columns)
    return table
