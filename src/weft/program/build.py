"""What a plan's GPUs are joined by, in integers: the rows of links, and the routes over them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from weft.engine import layout as y
from weft.engine.state import Table, Tables
from weft.errors import InputError
from weft.program.plan import Buffer, ChunkRule, DmaMap, Kernel, Load, Phase, PlacedKernel, Plan, RemoteMap, Store, Wait


class Hop(NamedTuple):
    """A link of a route, by its row, and the latency from its end to the next link or the receiver [fs]."""

    link: int
    latency: int


class Wiring(NamedTuple):
    """The links of the simulated GPUs, `link[k, :]`, their names, and the routes by (GPU, distance, direct).

    A distance counts ranks away around the group, downwards; `direct` routes take the links to that GPU alone.
    """

    link: Table
    names: tuple[str, ...]
    routes: Mapping[tuple[int, int, bool], tuple[Hop, ...]]


class Hardware(NamedTuple):
    """The simulated GPUs, `gpu[g, :]`, the sizes that they share, as `engine.layout` names them, and their wiring."""

    gpu: Table
    shape: Table
    wiring: Wiring


ALIGNMENT = 1 << 21
"""Buffers start on multiples of a large page [bytes]."""
CHUNK_ALIGNMENT = 1 << 12
"""Chunks start on multiples of a page, and of the request size where that is larger [bytes]."""

SYSTEM = ("tracker", "earlier")
"""Operators of every machine: the tracker, and work before the run (`engine.layout`, OPERATOR_*)."""


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
        """The cause of an operator's traffic of a kind."""
        return self.operators.index(operator) * y.KINDS + kind


def build(plan: Plan, hardware: Hardware) -> Program:
    """Lower a plan onto simulated GPUs; InputError where it sends to a GPU that they have no route to."""
    return _Builder(plan, hardware).program()


class _Builder:
    def __init__(self, plan: Plan, hardware: Hardware) -> None:
        self.plan = plan
        self.gpus = hardware.gpu.shape[0]
        self.gpu = hardware.gpu
        self.shape = hardware.shape.copy()
        self.wires = _Wires(hardware.wiring, self.gpus)
        self.buffers = {buffer.name: buffer for buffer in plan.buffers}
        self.regions = tuple((b.name, p) for b in plan.buffers for p in range(len(b.sizes[0])))
        self.row = {name: row for row, name in enumerate(self.regions)}
        communicating = _communicating(plan)
        names = dict.fromkeys((*SYSTEM, *communicating, *_accessing(plan)))
        self.operator = {name: number for number, name in enumerate(names)}
        self.shape[y.SIZE_CAUSES] = len(names) * y.KINDS
        self.shape[y.SIZE_COMPUTE_CAUSE] = (len(SYSTEM) + len(communicating)) * y.KINDS
        self.counter: dict[Wait, int] = {}
        self.counters = 0
        self.phases: list[list[list[int]]] = [[] for _ in range(self.gpus)]
        self.accesses: list[list[list[int]]] = [[] for _ in range(self.gpus)]

    def program(self) -> Program:
        self._number_counters()
        region = self._region_table()
        kernel, work = self._kernel_table(region)
        tile = self._tile_table(region)
        self._fill_shape(kernel, tile)
        tables = Tables(
            shape=self.shape,
            gpu=self.gpu,
            kernel=kernel,
            successor=self._successors(kernel),
            phase=_stack(self.phases, y.PHASE_COLUMNS),
            access=_stack(self.accesses, y.ACCESS_COLUMNS),
            work=work,
            region=region,
            tile=tile,
            unit_mask=self._masks(),
            link=self.wires.link,
            route=self.wires.table(),
        )
        self._number_classes(kernel)
        names = tuple(placed.kernel.name for placed in self.plan.kernels)
        return Program(tables, names, self.regions, self.wires.names, tuple(self.operator), self.plan)

    def _number_counters(self) -> None:
        """A counter per chunk that is awaited; chunks that a kernel awaits together share one."""
        for placed in self.plan.kernels:
            groups = [(phase.wait,) for phase in placed.kernel.phases if phase.wait is not None]
            for group in (placed.after_chunks, *groups):
                number = self.counters
                if group and group[0].position is None:
                    self._number_chunks(group[0].buffer)
                    continue
                for wait in group:
                    if len(group) > 1 and wait in self.counter:
                        raise ValueError(f"{wait} is awaited alone and together with others")
                    if self.counter.setdefault(wait, number) == number:
                        self.counters = number + max(self.buffers[wait.buffer].lanes, 1)

    def _number_chunks(self, buffer: str) -> None:
        """Counters in a row for the chunks of a buffer of which every workgroup awaits its own."""
        for position in range(len(self.buffers[buffer].sizes[0])):
            if self.counter.setdefault(Wait(buffer, position), self.counters) == self.counters:
                self.counters += 1

    # -- regions
    # ---------------------------------------------------------------------------------------------------

    def _region_table(self) -> Table:
        table = np.zeros((self.gpus, len(self.regions), y.REGION_COLUMNS), dtype=np.int64)
        grain = max(CHUNK_ALIGNMENT, int(self.shape[y.SIZE_REQUEST]))
        for g in range(self.gpus):
            address = 0
            for buffer in self.plan.buffers:
                for position, size in enumerate(buffer.sizes[g]):
                    row = self.row[buffer.name, position]
                    if buffer.within is not None:
                        base = int(table[g, self.row[buffer.within], y.REGION_BASE])
                        table[g, row] = self._region_row(g, buffer, position, size, base)
                        continue
                    table[g, row] = self._region_row(g, buffer, position, size, address)
                    address += -(-size // grain) * grain
                address = -(-address // ALIGNMENT) * ALIGNMENT
        return table

    def _region_row(self, g: int, buffer: Buffer, position: int, size: int, address: int) -> list[int]:
        rule = buffer.rule(position)
        row = [y.NONE] * y.REGION_COLUMNS
        row[y.REGION_BASE], row[y.REGION_SIZE] = address, size
        row[y.REGION_MODE], row[y.REGION_CACHED] = int(rule.mode), int(rule.cached)
        row[y.REGION_COUNTER] = self.counter.get(Wait(buffer.name, position), y.NONE)
        row[y.REGION_SENT_COUNTER] = self.counter.get(Wait(buffer.name, position, sent=True), y.NONE)
        row[y.REGION_TRACKED] = rule.updates_per_element
        row[y.REGION_FIRST_TILE] = row[y.REGION_TILES] = 0
        row[y.REGION_LANED] = int(buffer.lanes > 0)
        row[y.REGION_SOURCE], row[y.REGION_SOURCE_LATENCY] = g, 0
        if rule.way is not None:
            way = rule.way
            row[y.REGION_TARGET], row[y.REGION_ROUTE] = self.wires.to(g, way.distance, way.direct)
        self._link_rule(g, row, rule)
        return row

    def _link_rule(self, g: int, row: list[int], rule: ChunkRule) -> None:
        if rule.remote is not None:
            row[y.REGION_TO_REGION] = self.row[rule.remote.buffer, rule.remote.position]
            row[y.REGION_REMOTE_CAUSE] = self._sent(rule.remote)
        if rule.dma is not None:
            row[y.REGION_DMA_MODE] = y.REMOTE_UPDATE if rule.dma.update else y.REMOTE_STORE
            row[y.REGION_DMA_REGION] = self.row[rule.dma.buffer, rule.dma.position]
            row[y.REGION_DMA_CAUSE] = self.operator[rule.dma.operator] * y.KINDS + y.READ
            row[y.REGION_DMA_REMOTE_CAUSE] = self._sent(rule.dma)
            self._receivers(g, row, rule.dma)

    def _sent(self, way: RemoteMap | DmaMap) -> int:
        """The cause of traffic at the receiver."""
        return self.operator[way.operator] * y.KINDS + (y.UPDATE if way.update else y.WRITE)

    def _receivers(self, g: int, row: list[int], dma: DmaMap) -> None:
        if dma.source:
            row[y.REGION_SOURCE] = self.wires.target(g, dma.source)
            row[y.REGION_SOURCE_LATENCY] = self.wires.latency(g, dma.source, dma.direct)
        if dma.also is not None:
            position, distance = dma.also
            row[y.REGION_ALSO_REGION] = self.row[dma.buffer, position]
            row[y.REGION_ALSO_TARGET], row[y.REGION_ALSO_ROUTE] = self.wires.to(g, distance, dma.direct)

    # -- tiles and work
    # --------------------------------------------------------------------------------------------

    def _tile_table(self, region: Table) -> Table:
        most = self._most_tiles()
        copies = [chunk for chunks in map(_chunks, self.plan.kernels) for chunk in chunks]
        table = np.zeros((self.gpus, max(most + len(copies), 1), y.TILE_COLUMNS), dtype=np.int64)
        self._add_copies(table, region)
        if most == 0:
            return table
        first = self.row[self.plan.tile_buffer, 0]
        for g, work in enumerate(self.plan.work):
            table[g, : len(work), y.TILE_REGION] = first + work[:, y.WORK_REGION]
            table[g, : len(work), y.TILE_OFFSET] = work[:, y.WORK_OFFSET]
            table[g, : len(work), y.TILE_BYTES] = work[:, y.WORK_BYTES]
            positions, starts, counts = np.unique(work[:, y.WORK_REGION], return_index=True, return_counts=True)
            region[g, first + positions, y.REGION_FIRST_TILE] = starts
            region[g, first + positions, y.REGION_TILES] = counts
        return table

    def _most_tiles(self) -> int:
        return max((len(work) for work in self.plan.work), default=0)

    def _add_copies(self, table: Table, region: Table) -> None:
        """Rows behind the tiles for every copy, one per chunk; a chunk is its tile."""
        tile = self._most_tiles()
        for k, placed in enumerate(self.plan.kernels):
            for copy in placed.kernel.copies:
                table[:, tile, y.TILE_ROWS], table[:, tile, y.TILE_AFTER] = len(copy.chunks), copy.after_fs
                table[:, tile, y.TILE_ENGINE] = 0 if copy.engine is None else copy.engine + 1
                for chunk in copy.chunks:
                    row = self.row[chunk]
                    table[:, tile, y.TILE_REGION], table[:, tile, y.TILE_COPY] = row, k + 1
                    table[:, tile, y.TILE_BYTES] = region[:, row, y.REGION_SIZE]
                    region[:, row, y.REGION_FIRST_TILE], region[:, row, y.REGION_TILES] = tile, 1
                    tile += 1

    def _kernel_table(self, region: Table) -> tuple[Table, Table]:
        kernels = self.plan.kernels
        table = np.zeros((self.gpus, len(kernels), y.KERNEL_COLUMNS), dtype=np.int64)
        rows: list[list[Table]] = [[] for _ in range(self.gpus)]
        for g in range(self.gpus):
            first_work, first_copy = 0, self._most_tiles()
            for k, placed in enumerate(kernels):
                kernel = placed.kernel
                first_phase = len(self.phases[g])
                for phase in kernel.phases:
                    self._add_phase(g, phase, region)
                work = self._work_of(g, kernel)
                rows[g].append(work)
                table[g, k] = self._kernel_row(g, k, first_work, first_phase, region)
                table[g, k, y.KERNEL_FIRST_COPY], table[g, k, y.KERNEL_COPIES] = (
                    first_copy,
                    len(kernel.copies),
                )
                first_work += len(work)
                first_copy += len(_chunks(placed))
        return table, np.stack([np.concatenate(r) for r in rows]) if kernels else np.zeros(
            (self.gpus, 0, y.WORK_FIELDS), dtype=np.int64
        )

    def _number_classes(self, kernel: Table) -> None:
        """Number the classes of kernels of which the dispatcher can place the first alone."""
        number: dict[tuple[object, ...], int] = {}
        for k, placed in enumerate(self.plan.kernels):
            needs = (placed.kernel.threads, placed.kernel.registers, placed.kernel.lds)
            of = (*needs, placed.priority, placed.compute_units)
            kernel[:, k, y.KERNEL_CLASS] = number.setdefault(of, len(number))
        self.shape[y.SIZE_CLASSES] = len(number)

    def _successors(self, kernel: Table) -> Table:
        """The kernels that wait for each kernel's end, one kernel's behind the other's; `kernel` says where."""
        after = [(before, k) for k, placed in enumerate(self.plan.kernels) for before in placed.after]
        before, follows = np.array(sorted(after), dtype=np.int64).reshape(-1, 2).T
        kernels = np.arange(len(self.plan.kernels))
        kernel[:, :, y.KERNEL_FIRST_SUCCESSOR] = np.searchsorted(before, kernels)
        kernel[:, :, y.KERNEL_SUCCESSORS] = np.bincount(before, minlength=len(kernels))
        return np.ascontiguousarray(follows)

    def _work_of(self, g: int, kernel: Kernel) -> Table:
        if kernel.tiled:
            return self.plan.work[g] if kernel.part is None else self.plan.work[g][slice(*kernel.part)]
        work = np.zeros((kernel.workgroups, y.WORK_FIELDS), dtype=np.int64)
        work[:, y.WORK_ROW] = work[:, y.WORK_LANE] = np.arange(kernel.workgroups)
        work[:, y.WORK_REGION] = y.NONE
        work[:, y.WORK_SCRIPT] = kernel.script_of or 0
        return work

    def _kernel_row(self, g: int, k: int, first_work: int, first_phase: int, region: Table) -> list[int]:
        placed = self.plan.kernels[k]
        kernel = placed.kernel
        row = [0] * y.KERNEL_COLUMNS
        row[y.KERNEL_WORKGROUPS], row[y.KERNEL_FIRST_WORK] = kernel.workgroups, first_work
        row[y.KERNEL_FIRST_PHASE], row[y.KERNEL_PHASES] = first_phase, kernel.script_length
        row[y.KERNEL_THREADS], row[y.KERNEL_REGISTERS], row[y.KERNEL_LDS] = (
            kernel.threads,
            kernel.registers,
            kernel.lds,
        )
        row[y.KERNEL_PRIORITY] = placed.priority
        row[y.KERNEL_PREDECESSORS] = len(placed.after)
        row[y.KERNEL_AFTER_COUNTER] = y.NONE
        if placed.after_chunks:
            row[y.KERNEL_AFTER_COUNTER] = self.counter[placed.after_chunks[0]]
            row[y.KERNEL_AFTER_VALUE] = sum(self._counter(g, wait, region)[1] for wait in placed.after_chunks)
        driven = kernel.completion_fs is not None
        row[y.KERNEL_LAUNCH] = placed.delay_fs + (0 if driven else int(self.gpu[g, y.GPU_LAUNCH]))
        row[y.KERNEL_COMPLETION] = kernel.completion_fs or 0
        row[y.KERNEL_RELEASE], row[y.KERNEL_MONITOR] = int(placed.release), int(placed.monitor)
        return row

    def _counter(self, g: int, wait: Wait, region: Table) -> tuple[int, int]:
        first = wait if wait.position is not None else Wait(wait.buffer, 0)
        size = (
            region[g, self.row[wait.buffer, first.position or 0], y.REGION_SIZE] if wait.bytes is None else wait.bytes
        )
        return self.counter[first], int(size)

    # -- scripts
    # ---------------------------------------------------------------------------------------------------

    def _add_phase(self, g: int, phase: Phase, region: Table) -> None:
        row = [y.NONE] * y.PHASE_COLUMNS
        row[y.PHASE_ITERATIONS] = self._iterations(g, phase, region)
        row[y.PHASE_SHARED], row[y.PHASE_SLOTS] = int(phase.shared), phase.slots
        row[y.PHASE_FIRST_LOAD], row[y.PHASE_LOADS] = len(self.accesses[g]), len(phase.loads)
        row[y.PHASE_CYCLES] = round(phase.cycles * 1000)
        self.accesses[g] += [self._load_row(g, load, region) for load in phase.loads]
        stores = [store for store in (phase.store, phase.also) if store is not None]
        row[y.PHASE_STORES], row[y.PHASE_DELAY] = len(stores), phase.delay_fs
        if phase.wait is not None:
            row[y.PHASE_LANED] = int(phase.wait.position is None or self.buffers[phase.wait.buffer].lanes > 0)
        if stores:
            row[y.PHASE_STORE] = len(self.accesses[g])
            self.accesses[g] += [self._store_row(g, store, region) for store in stores]
        if phase.wait is not None:
            row[y.PHASE_WAIT_COUNTER], row[y.PHASE_WAIT_VALUE] = self._counter(g, phase.wait, region)
        self.phases[g].append(row)

    def _iterations(self, g: int, phase: Phase, region: Table) -> int:
        if phase.iterations is not None:
            return phase.iterations
        load = phase.loads[0]
        return -(-self._extent(g, load.buffer, load.position, region)[1] // load.unit_bytes)

    def _extent(self, g: int, buffer: str, position: int | None, region: Table) -> tuple[int, int]:
        """Address and size of a chunk, or of a whole buffer [bytes]."""
        first = last = region[g, self.row[buffer, position or 0]]
        if position is None:
            last = region[g, self.row[buffer, len(self.buffers[buffer].sizes[g]) - 1]]
        return int(first[y.REGION_BASE]), int(last[y.REGION_BASE] + last[y.REGION_SIZE] - first[y.REGION_BASE])

    def _load_row(self, g: int, load: Load, region: Table) -> list[int]:
        base, size = self._extent(g, load.buffer, load.position, region)
        row = [y.NONE] * y.ACCESS_COLUMNS
        row[y.ACCESS_BASE], row[y.ACCESS_LIMIT] = base + load.offset, size - load.offset
        row[y.ACCESS_ROW_STRIDE], row[y.ACCESS_COLUMN_STRIDE] = load.row_stride, load.column_stride
        row[y.ACCESS_STEP_STRIDE], row[y.ACCESS_EXTENT] = load.step_stride, int(load.extent)
        row[y.ACCESS_UNIT], row[y.ACCESS_LAST_UNIT] = load.unit_bytes, load.last_unit_bytes
        row[y.ACCESS_CACHED], row[y.ACCESS_OPERATOR] = int(load.cached), self.operator[load.operator]
        rows, columns = load.shared_by_rows, load.shared_by_columns
        row[y.ACCESS_SHARE] = rows if rows > 1 else -columns if columns > 1 else 1
        return row

    def _store_row(self, g: int, store: Store, region: Table) -> list[int]:
        first = self.row[store.buffer, store.position]
        row = [0] * y.ACCESS_COLUMNS
        row[y.ACCESS_BASE], row[y.ACCESS_LIMIT] = store.offset, int(region[g, first, y.REGION_SIZE])
        row[y.ACCESS_ROW_STRIDE], row[y.ACCESS_STEP_STRIDE] = store.row_stride, store.step_stride
        row[y.ACCESS_UNIT], row[y.ACCESS_LAST_UNIT] = (
            store.unit_bytes,
            store.last_unit_bytes or store.unit_bytes,
        )
        row[y.ACCESS_OPERATOR], row[y.ACCESS_REGION] = self.operator[store.operator], first
        return row

    # -- shape
    # -----------------------------------------------------------------------------------------------------

    def _fill_shape(self, kernel: Table, tile: Table) -> None:
        s = self.shape
        s[y.SIZE_GPUS], s[y.SIZE_KERNELS], s[y.SIZE_REGIONS] = self.gpus, kernel.shape[1], len(self.regions)
        s[y.SIZE_TILES] = tile.shape[1] if tile.any() else 0
        s[y.SIZE_WAVEFRONTS], s[y.SIZE_BLOCK_TILES] = self.plan.wavefronts, self.plan.block_tiles
        s[y.SIZE_COUNTERS] = self.counters

    def _masks(self) -> Table:
        units = int(self.shape[y.SIZE_CUS])
        mask = np.ones((self.gpus, len(self.plan.kernels), units), dtype=np.int64)
        for k, placed in enumerate(self.plan.kernels):
            if placed.compute_units is not None:
                self._check_mask(placed)
                mask[:, k, :] = 0
                mask[:, k, list(placed.compute_units)] = 1
        return mask

    def _check_mask(self, placed: PlacedKernel) -> None:
        units, fewest = placed.compute_units or (), int(self.gpu[:, y.GPU_CUS].min())
        shown = f"the mask of kernel '{placed.kernel.name}'"
        if not units:
            raise InputError(f"{shown} leaves it no compute unit; give it at least one of {fewest}")
        if min(units) < 0 or max(units) >= fewest:
            raise InputError(
                f"{shown} names compute unit {min(units) if min(units) < 0 else max(units)}; the GPU has {fewest}, "
                f"counted from 0 to {fewest - 1}"
            )


def _communicating(plan: Plan) -> list[str]:
    """The operators on whose behalf the address map sends, in order: they communicate, the others compute."""
    ways = (rule.way for buffer in plan.buffers for rule in buffer.rules)
    return list(dict.fromkeys(way.operator for way in ways if way is not None))


def _accessing(plan: Plan) -> Iterator[str]:
    """The operators of all loads and stores."""
    for placed in plan.kernels:
        for phase in placed.kernel.phases:
            for access in (*phase.loads, phase.store, phase.also):
                if access is not None:
                    yield access.operator


class _Wires:
    """The routes that a plan uses, in one table; each is written once."""

    def __init__(self, wiring: Wiring, gpus: int) -> None:
        self.link, self.names, self.gpus = wiring.link, wiring.names, gpus
        self.routes = wiring.routes
        self.first: dict[tuple[int, int, bool], int] = {}
        self.rows: list[tuple[int, int]] = []

    def target(self, g: int, distance: int) -> int:
        """The GPU `distance` ranks away from GPU `g`; where one stands for all, itself."""
        return (g - distance) % self.gpus

    def to(self, g: int, distance: int, direct: bool) -> tuple[int, int]:
        """The GPU `distance` ranks away from GPU `g`, and the first row of the route to it."""
        key = g, distance, direct
        if key not in self.first:
            self.first[key] = len(self.rows)
            self.rows += [*self._hops(key), (y.NONE, 0)]
        return self.target(g, distance), self.first[key]

    def latency(self, g: int, distance: int, direct: bool) -> int:
        """The time that a request to the GPU `distance` ranks away from GPU `g` takes [fs]."""
        return sum(latency for _, latency in self._hops((g, distance, direct)))

    def _hops(self, key: tuple[int, int, bool]) -> tuple[tuple[int, int], ...]:
        if key not in self.routes:
            raise InputError(
                f"the plan sends to the GPU {key[1]} ranks away from GPU {key[0]}, and there is none; choose a system "
                "with as many GPUs as the plan has ranks"
            )
        return self.routes[key]

    def table(self) -> Table:
        """The rows of all routes."""
        return np.array(self.rows or [(y.NONE, 0)], dtype=np.int64)


def _chunks(placed: PlacedKernel) -> list[tuple[str, int]]:
    """The chunks that a kernel's commands send, in order."""
    return [chunk for copy in placed.kernel.copies for chunk in copy.chunks]


def _stack(rows: list[list[list[int]]], columns: int) -> Table:
    table = np.zeros((len(rows), max(len(rows[0]), 1), columns), dtype=np.int64)
    for g, of_gpu in enumerate(rows):
        if of_gpu:
            table[g] = of_gpu
    return table
