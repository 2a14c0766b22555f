"""From a plan to integer tables: names become rows, chunks get addresses, waits get counters."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from weft.engine import layout as y
from weft.engine.state import Table, Tables
from weft.errors import InputError
from weft.program.plan import Buffer, PlacedKernel, Plan
from weft.program.rules import ChunkRule, DmaMap, RemoteMap
from weft.program.script import Kernel, Load, Phase, Store, Wait

ALIGNMENT = 1 << 21
"""Buffers start on multiples of a large page [bytes]."""
CHUNK_ALIGNMENT = 1 << 12
"""Chunks start on multiples of a page, and of the request size where that is larger [bytes]."""


@dataclass(frozen=True)
class Program:
    """The integer tables of a run, and the names of their rows."""

    tables: Tables
    kernel_names: tuple[str, ...]
    regions: tuple[tuple[str, int], ...]
    plan: Plan

    def region(self, buffer: str, position: int) -> int:
        """The row of a chunk."""
        return self.regions.index((buffer, position))


def build(plan: Plan, gpu_rows: Table, shape: Table) -> Program:
    """Lower a plan onto GPUs (`gpu_rows[g, :]`) of a common `shape`; both as `engine.layout` names their columns."""
    return _Builder(plan, gpu_rows, shape).program()


class _Builder:
    def __init__(self, plan: Plan, gpu_rows: Table, shape: Table) -> None:
        self.plan = plan
        self.gpus = gpu_rows.shape[0]
        self.gpu = gpu_rows
        self.shape = shape.copy()
        self.buffers = {buffer.name: buffer for buffer in plan.buffers}
        self.regions = tuple((b.name, p) for b in plan.buffers for p in range(len(b.sizes[0])))
        self.row = {name: row for row, name in enumerate(self.regions)}
        self.counter: dict[Wait, int] = {}
        self.counters = 0
        self.phases: list[list[list[int]]] = [[] for _ in range(self.gpus)]
        self.accesses: list[list[list[int]]] = [[] for _ in range(self.gpus)]

    def program(self) -> Program:
        self._number_counters()
        region = self._region_table()
        kernel, work = self._kernel_table(region)
        tile = self._tile_table(region)
        self._fill_shape(kernel, tile, region)
        tables = Tables(
            shape=self.shape,
            gpu=self.gpu,
            kernel=kernel,
            phase=_stack(self.phases, y.P_COLUMNS),
            access=_stack(self.accesses, y.A_COLUMNS),
            work=work,
            region=region,
            tile=tile,
            unit_mask=self._masks(),
        )
        names = tuple(placed.kernel.name for placed in self.plan.kernels)
        return Program(tables=tables, kernel_names=names, regions=self.regions, plan=self.plan)

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
        table = np.zeros((self.gpus, len(self.regions), y.M_COLUMNS), dtype=np.int64)
        grain = max(CHUNK_ALIGNMENT, int(self.shape[y.S_REQUEST]))
        for g in range(self.gpus):
            address = 0
            for buffer in self.plan.buffers:
                for position, size in enumerate(buffer.sizes[g]):
                    row = self.row[buffer.name, position]
                    if buffer.within is not None:
                        base = int(table[g, self.row[buffer.within], y.M_BASE])
                        table[g, row] = self._region_row(buffer, position, size, base)
                        continue
                    table[g, row] = self._region_row(buffer, position, size, address)
                    address += -(-size // grain) * grain
                address = -(-address // ALIGNMENT) * ALIGNMENT
        return table

    def _region_row(self, buffer: Buffer, position: int, size: int, address: int) -> list[int]:
        rule = buffer.rule(position)
        row = [y.NONE] * y.M_COLUMNS
        row[y.M_BASE], row[y.M_SIZE] = address, size
        row[y.M_MODE], row[y.M_CACHED] = int(rule.mode), int(rule.cached)
        row[y.M_COUNTER] = self.counter.get(Wait(buffer.name, position), y.NONE)
        row[y.M_SENT_COUNTER] = self.counter.get(Wait(buffer.name, position, sent=True), y.NONE)
        row[y.M_TRACKED] = rule.updates_per_element
        row[y.M_FIRST_TILE] = row[y.M_TILES] = 0
        row[y.M_LANED], row[y.M_HOPS] = int(buffer.lanes > 0), rule.hops
        row[y.M_PORT], row[y.M_SOURCE] = self._port(rule.way, rule.hops), 0
        self._link_rule(row, rule)
        return row

    def _link_rule(self, row: list[int], rule: ChunkRule) -> None:
        if rule.remote is not None:
            row[y.M_TO_REGION] = self.row[rule.remote.buffer, rule.remote.position]
            row[y.M_REMOTE_CAUSE] = int(rule.remote.cause)
        if rule.dma is not None:
            row[y.M_DMA_MODE] = y.REMOTE_UPDATE if rule.dma.update else y.REMOTE_STORE
            row[y.M_DMA_REGION] = self.row[rule.dma.buffer, rule.dma.position]
            row[y.M_DMA_CAUSE], row[y.M_DMA_REMOTE_CAUSE] = (
                int(rule.dma.read_cause),
                int(rule.dma.remote_cause),
            )
            row[y.M_SOURCE] = rule.dma.source
            if rule.dma.also is not None:
                position, hops = rule.dma.also
                row[y.M_ALSO_REGION], row[y.M_ALSO_HOPS] = self.row[rule.dma.buffer, position], hops
                row[y.M_ALSO_PORT] = self._port(rule.dma, hops)

    def _port(self, way: RemoteMap | DmaMap | None, hops: int) -> int:
        """The link that leads to the GPU `hops` neighbours away: 0, the whole egress, unless GPUs have one for each."""
        return hops if way is not None and way.direct and self.gpu[0, y.G_PEER64] > 0 else 0

    # -- tiles and work
    # --------------------------------------------------------------------------------------------

    def _tile_table(self, region: Table) -> Table:
        most = self._most_tiles()
        copies = [chunk for chunks in map(_chunks, self.plan.kernels) for chunk in chunks]
        table = np.zeros((self.gpus, max(most + len(copies), 1), y.TI_COLUMNS), dtype=np.int64)
        self._add_copies(table, region)
        if most == 0:
            return table
        first = self.row[self.plan.tile_buffer, 0]
        for g, work in enumerate(self.plan.work):
            table[g, : len(work), y.TI_REGION] = first + work[:, y.T_REGION]
            table[g, : len(work), y.TI_OFFSET] = work[:, y.T_OFFSET]
            table[g, : len(work), y.TI_BYTES] = work[:, y.T_BYTES]
            positions, starts, counts = np.unique(work[:, y.T_REGION], return_index=True, return_counts=True)
            region[g, first + positions, y.M_FIRST_TILE] = starts
            region[g, first + positions, y.M_TILES] = counts
        return table

    def _most_tiles(self) -> int:
        return max((len(work) for work in self.plan.work), default=0)

    def _add_copies(self, table: Table, region: Table) -> None:
        """Rows behind the tiles for every copy, one per chunk; a chunk is its tile."""
        tile = self._most_tiles()
        for k, placed in enumerate(self.plan.kernels):
            for copy in placed.kernel.copies:
                table[:, tile, y.TI_ROWS], table[:, tile, y.TI_AFTER] = len(copy.chunks), copy.after_fs
                table[:, tile, y.TI_ENGINE] = 0 if copy.engine is None else copy.engine + 1
                for chunk in copy.chunks:
                    row = self.row[chunk]
                    table[:, tile, y.TI_REGION], table[:, tile, y.TI_COPY] = row, k + 1
                    table[:, tile, y.TI_BYTES] = region[:, row, y.M_SIZE]
                    region[:, row, y.M_FIRST_TILE], region[:, row, y.M_TILES] = tile, 1
                    tile += 1

    def _kernel_table(self, region: Table) -> tuple[Table, Table]:
        kernels = self.plan.kernels
        table = np.zeros((self.gpus, len(kernels), y.K_COLUMNS), dtype=np.int64)
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
                table[g, k, y.K_FIRST_COPY], table[g, k, y.K_COPIES] = first_copy, len(kernel.copies)
                first_work += len(work)
                first_copy += len(_chunks(placed))
        return table, np.stack([np.concatenate(r) for r in rows]) if kernels else np.zeros(
            (self.gpus, 0, y.T_FIELDS), dtype=np.int64
        )

    def _work_of(self, g: int, kernel: Kernel) -> Table:
        if kernel.tiled:
            return self.plan.work[g] if kernel.part is None else self.plan.work[g][slice(*kernel.part)]
        work = np.zeros((kernel.workgroups, y.T_FIELDS), dtype=np.int64)
        work[:, y.T_ROW] = work[:, y.T_LANE] = np.arange(kernel.workgroups)
        work[:, y.T_REGION] = y.NONE
        work[:, y.T_SCRIPT] = kernel.script_of or 0
        return work

    def _kernel_row(self, g: int, k: int, first_work: int, first_phase: int, region: Table) -> list[int]:
        placed = self.plan.kernels[k]
        kernel = placed.kernel
        row = [0] * y.K_COLUMNS
        row[y.K_WORKGROUPS], row[y.K_FIRST_WORK] = kernel.workgroups, first_work
        row[y.K_FIRST_PHASE], row[y.K_PHASES] = first_phase, kernel.script_length
        row[y.K_THREADS], row[y.K_REGISTERS], row[y.K_LDS] = kernel.threads, kernel.registers, kernel.lds
        row[y.K_PRIORITY] = placed.priority
        row[y.K_AFTER] = y.NONE if placed.after is None else placed.after
        row[y.K_AFTER_COUNTER] = y.NONE
        if placed.after_chunks:
            row[y.K_AFTER_COUNTER] = self.counter[placed.after_chunks[0]]
            row[y.K_AFTER_VALUE] = sum(self._counter(g, wait, region)[1] for wait in placed.after_chunks)
        driven = kernel.completion_fs is not None
        row[y.K_LAUNCH] = placed.delay_fs + (0 if driven else int(self.gpu[g, y.G_LAUNCH]))
        row[y.K_COMPLETION] = kernel.completion_fs or 0
        row[y.K_RELEASE], row[y.K_MONITOR] = int(placed.release), int(placed.monitor)
        return row

    def _counter(self, g: int, wait: Wait, region: Table) -> tuple[int, int]:
        first = wait if wait.position is not None else Wait(wait.buffer, 0)
        size = (
            region[g, self.row[wait.buffer, first.position or 0], y.M_SIZE]
            if wait.bytes is None
            else wait.bytes
        )
        return self.counter[first], int(size)

    # -- scripts
    # ---------------------------------------------------------------------------------------------------

    def _add_phase(self, g: int, phase: Phase, region: Table) -> None:
        row = [y.NONE] * y.P_COLUMNS
        row[y.P_ITERATIONS] = self._iterations(g, phase, region)
        row[y.P_SHARED], row[y.P_SLOTS] = int(phase.shared), phase.slots
        row[y.P_FIRST_LOAD], row[y.P_LOADS] = len(self.accesses[g]), len(phase.loads)
        row[y.P_CYCLES] = round(phase.cycles * 1000)
        self.accesses[g] += [self._load_row(g, load, region) for load in phase.loads]
        stores = [store for store in (phase.store, phase.also) if store is not None]
        row[y.P_STORES], row[y.P_DELAY] = len(stores), phase.delay_fs
        if phase.wait is not None:
            row[y.P_LANED] = int(phase.wait.position is None or self.buffers[phase.wait.buffer].lanes > 0)
        if stores:
            row[y.P_STORE] = len(self.accesses[g])
            self.accesses[g] += [self._store_row(g, store, region) for store in stores]
        if phase.wait is not None:
            row[y.P_WAIT_COUNTER], row[y.P_WAIT_VALUE] = self._counter(g, phase.wait, region)
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
        return int(first[y.M_BASE]), int(last[y.M_BASE] + last[y.M_SIZE] - first[y.M_BASE])

    def _load_row(self, g: int, load: Load, region: Table) -> list[int]:
        base, size = self._extent(g, load.buffer, load.position, region)
        row = [y.NONE] * y.A_COLUMNS
        row[y.A_BASE], row[y.A_LIMIT] = base + load.offset, size - load.offset
        row[y.A_ROW_STRIDE], row[y.A_COLUMN_STRIDE] = load.row_stride, load.column_stride
        row[y.A_STEP_STRIDE], row[y.A_EXTENT] = load.step_stride, int(load.extent)
        row[y.A_UNIT], row[y.A_LAST_UNIT] = load.unit_bytes, load.last_unit_bytes
        row[y.A_CACHED], row[y.A_CAUSE] = int(load.cached), int(load.cause)
        rows, columns = load.shared_by_rows, load.shared_by_columns
        row[y.A_SHARE] = rows if rows > 1 else -columns if columns > 1 else 1
        return row

    def _store_row(self, g: int, store: Store, region: Table) -> list[int]:
        first = self.row[store.buffer, store.position]
        row = [0] * y.A_COLUMNS
        row[y.A_BASE], row[y.A_LIMIT] = store.offset, int(region[g, first, y.M_SIZE])
        row[y.A_ROW_STRIDE], row[y.A_STEP_STRIDE] = store.row_stride, store.step_stride
        row[y.A_UNIT], row[y.A_LAST_UNIT] = store.unit_bytes, store.last_unit_bytes or store.unit_bytes
        row[y.A_CAUSE], row[y.A_REGION] = int(store.cause), first
        return row

    # -- shape
    # -----------------------------------------------------------------------------------------------------

    def _fill_shape(self, kernel: Table, tile: Table, region: Table) -> None:
        s = self.shape
        s[y.S_GPUS], s[y.S_KERNELS], s[y.S_REGIONS] = self.gpus, kernel.shape[1], len(self.regions)
        s[y.S_TILES] = tile.shape[1] if tile.any() else 0
        s[y.S_WAVEFRONTS], s[y.S_BLOCK_TILES] = self.plan.wavefronts, self.plan.block_tiles
        s[y.S_COUNTERS] = self.counters
        s[y.S_PORTS] = 1 + int(region[:, :, [y.M_PORT, y.M_ALSO_PORT]].max(initial=0))
        for g, neighbour in enumerate(self.plan.neighbour):
            self.gpu[g, y.G_NEIGHBOUR] = neighbour

    def _masks(self) -> Table:
        units = int(self.shape[y.S_CUS])
        mask = np.ones((self.gpus, len(self.plan.kernels), units), dtype=np.int64)
        for k, placed in enumerate(self.plan.kernels):
            if placed.compute_units is not None:
                self._check_mask(placed)
                mask[:, k, :] = 0
                mask[:, k, list(placed.compute_units)] = 1
        return mask

    def _check_mask(self, placed: PlacedKernel) -> None:
        units, fewest = placed.compute_units or (), int(self.gpu[:, y.G_CUS].min())
        shown = f"the mask of kernel '{placed.kernel.name}'"
        if not units:
            raise InputError(f"{shown} leaves it no compute unit; give it at least one of {fewest}")
        if min(units) < 0 or max(units) >= fewest:
            raise InputError(
                f"{shown} names compute unit {min(units) if min(units) < 0 else max(units)}; the GPU has {fewest}, "
                f"counted from 0 to {fewest - 1}"
            )


def _chunks(placed: PlacedKernel) -> list[tuple[str, int]]:
    """The chunks that a kernel's commands send, in order."""
    return [chunk for copy in placed.kernel.copies for chunk in copy.chunks]


def _stack(rows: list[list[list[int]]], columns: int) -> Table:
    table = np.zeros((len(rows), max(len(rows[0]), 1), columns), dtype=np.int64)
    for g, of_gpu in enumerate(rows):
        if of_gpu:
            table[g] = of_gpu
    return table
