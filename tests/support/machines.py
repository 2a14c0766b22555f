"""Small machines and problems for tests: real programs, and bare machines whose requests the test makes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from interpreted import PLAIN

from weft.engine import layout as y
from weft.engine.loop import run
from weft.engine.run import execute
from weft.engine.state import Machine, Tables, allocate, margin_events, margin_requests
from weft.hardware import Gpu, System, load
from weft.kernels import GemmTiling
from weft.overlap import (
    OVERLAPS,
    ROUND_ROBIN,
    ArbiterPolicy,
    ArbiterView,
    NearMemoryReduceScatter,
    Problem,
    Simulated,
)
from weft.overlap.machine import machine_tables
from weft.overlap.streams import Streams
from weft.parallel import ShardedSubLayer, split
from weft.program import Program, build
from weft.workload import SubLayer

NS = 1_000_000
"""Femtoseconds."""
BIN = 100 * NS
SIMULATED: dict[str, Simulated] = {
    **{name: overlap for name, overlap in OVERLAPS.items() if isinstance(overlap, Simulated)},
    "rs-nmc": NearMemoryReduceScatter(),
}
"""Every overlap that the engine runs, also the one that only an ideal uses."""


def gpu(**changes: Any) -> Gpu:
    """The paper's GPU, with changes whose dots are written as double underscores."""
    return load("t3-paper").with_values({path.replace("__", "."): value for path, value in changes.items()})


def chiplets(**changes: Any) -> Gpu:
    """A small GPU of four dies of two compute units, with a memory-side cache, as far as not changed."""
    small = {
        "compute.compute_units": 8,
        "cache.partitions": 4,
        "cache.capacity": "512 KiB",
        "cache.ways": 4,
        "cache.banks": 16,
        "memory.channels": 8,
        "memory.bandwidth": "166 GB/s",
        "memory_cache.capacity": "1 MiB",
        "memory_cache.ways": 4,
        "memory_cache.bandwidth": "537 GB/s",
        "link.bandwidth": "32 GB/s",
    }
    given = {path.replace("__", "."): value for path, value in changes.items()}
    return load("mi300x").with_values({**small, **given})


def streams_program(streams: Streams, machine: Gpu, request: int = 512) -> Program:
    """The lowered program of independent streams on one GPU."""
    plan = streams.plan(machine)
    system = System(gpu=machine, gpus=4)
    rows, shape = machine_tables(system, 1, request, machine.compute.max_workgroups_per_cu)
    return build(plan, rows, shape)


def layer(m: int = 512, n: int = 512, k: int = 128, tp: int = 4) -> ShardedSubLayer:
    """A sub-layer whose unsplit GEMM is m x n x k."""
    return split(SubLayer.custom(m, n, k), tp)


def program(
    shared: ShardedSubLayer,
    overlap: str,
    machine: Gpu | System | None = None,
    explicit: bool = False,
    request: int = 512,
    tiling: GemmTiling | None = None,
) -> Program:
    """The lowered program of a sub-layer under a simulated overlap."""
    system = (
        machine if isinstance(machine, System) else System(gpu=machine or load("t3-paper"), gpus=shared.tp)
    )
    problem = Problem(shared, system, shared.tp if explicit else 1, tiling or GemmTiling())
    rows, shape = machine_tables(system, problem.ranks, request, system.gpu.compute.max_workgroups_per_cu)
    return build(SIMULATED[overlap].plan(problem), rows, shape)


def finish(lowered: Program, policy: ArbiterPolicy = ROUND_ROBIN) -> Machine:
    """The final state of a run that must finish."""
    status, machine = execute(lowered.tables, policy.compiled, BIN)
    assert status == y.FINISHED, status
    return machine


def interpret(lowered: Program | Tables, policy: ArbiterPolicy = ROUND_ROBIN, engine: Any = PLAIN) -> Machine:
    """The final state of the same run in plain Python."""
    tables = lowered.tables if isinstance(lowered, Program) else lowered
    status, machine = engine.execute(tables, plain_policy(policy), BIN)
    assert status == y.FINISHED, status
    return machine  # type: ignore[no-any-return]


def plain_policy(policy: ArbiterPolicy) -> Any:
    """The policy as an uncompiled function of what the engine passes."""
    return lambda *fields: policy.rule(ArbiterView(*(int(field) for field in fields)))


def bare(machine: Gpu, gpus: int = 1, request: int = 512, regions: int = 1, tiles: int = 0) -> Machine:
    """A machine without kernels: nothing happens but what the test puts in."""
    rows, shape = machine_tables(System(gpu=machine, gpus=2), gpus, request, 1)
    shape[y.S_GPUS], shape[y.S_REGIONS], shape[y.S_TILES] = gpus, regions, tiles
    shape[y.S_WAVEFRONTS] = shape[y.S_BLOCK_TILES] = 1
    rows[:, y.G_NEIGHBOUR] = (np.arange(gpus) - 1) % gpus

    def table(*dims: int) -> Any:
        return np.zeros(dims, dtype=np.int64)

    tables = Tables(
        shape=shape,
        gpu=rows,
        kernel=table(gpus, 0, y.K_COLUMNS),
        phase=table(gpus, 1, y.P_COLUMNS),
        access=table(gpus, 1, y.A_COLUMNS),
        work=table(gpus, 0, y.T_FIELDS),
        region=table(gpus, regions, y.M_COLUMNS),
        tile=table(gpus, max(tiles, 1), y.TI_COLUMNS),
        unit_mask=table(gpus, 0, int(shape[y.S_CUS])),
    )
    return allocate(tables, BIN)


def steps(machine: Machine, policy: ArbiterPolicy = ROUND_ROBIN) -> Iterator[tuple[int, int, int]]:
    """Run the compiled engine event by event: time, kind and index of each, before it acts."""
    compiled = policy.compiled
    spare = margin_events(machine.shape), margin_requests(machine.shape)
    while machine.clock[y.C_HEAP] > 0:
        time, code = machine.heap[0]
        yield int(time), int(code) >> 40, int(code) & ((1 << 40) - 1)
        status = run(machine, compiled, 1, *spare)
        assert status in (y.RUNNING, y.FINISHED), status


class MemoryBench:
    """One memory channel under requests of the test's choosing."""

    def __init__(self, machine: Gpu | None = None, request: int = 512) -> None:
        self.machine = bare(machine or gpu(memory__channels=1, memory__bandwidth="32 GB/s"), request=request)
        self.requests: list[tuple[int, int, int, int, int, int]] = []
        self.number: dict[int, int] = {}

    def __getitem__(self, column: int) -> int:
        """A constant of the GPU's row."""
        return int(self.machine.gpu[0, column])

    def request(self, kind: int, at: int, bank: int, row: int, bytes_: int = 32, stream: int = 0) -> int:
        """Add a request that arrives at `at` [fs]; calls come in the order of arrival. Returns its number."""
        self.requests.append((kind, at, bank, row, bytes_, stream))
        return len(self.requests) - 1

    def _enter(self, number: int) -> None:
        kind, at, bank, row, bytes_, stream = self.requests[number]
        m = self.machine
        i = int(PLAIN.new_request(m))
        m.request[i, y.R_KIND], m.request[i, y.R_BYTES], m.request[i, y.R_STREAM] = kind, bytes_, stream
        m.request[i, y.R_OWNER_KIND], m.request[i, y.R_REGION] = y.OWNER_NOBODY, y.NONE
        PLAIN.enqueue(m, i, 0, 0, at)
        m.request[i, y.R_BANK], m.request[i, y.R_ROW] = bank, row
        self.number[i] = number

    def _waiting(self) -> set[int]:
        """The numbers of all requests that the DRAM has not taken."""
        m = self.machine
        waiting = {int(i) for i in m.queue[0, : m.channel[0, y.H_QUEUED]]}
        for head in (y.H_HEAD0, y.H_HEAD1):
            i = int(m.channel[0, head])
            while i != y.NONE:
                waiting.add(i)
                i = int(m.request[i, y.R_NEXT])
        return {self.number[i] for i in waiting}

    def run(self, policy: ArbiterPolicy = ROUND_ROBIN) -> list[tuple[int, int, int | None]]:
        """For every request: when the channel chose it, when its first column began, when a read returned."""
        m = self.machine
        spare = margin_events(m.shape), margin_requests(m.shape)
        chosen: dict[int, tuple[int, int]] = {}
        returned: dict[int, int] = {}
        entered = 0
        while m.clock[y.C_HEAP] > 0 or entered < len(self.requests):
            now, code = m.heap[0] if m.clock[y.C_HEAP] > 0 else (y.NEVER, 0)
            if entered < len(self.requests) and self.requests[entered][1] <= now:
                self._enter(entered)
                entered += 1
                continue
            if code >> 40 == y.EV_READ_DONE:
                returned[self.number.pop(int(code) & ((1 << 40) - 1))] = int(now)
            before = self._waiting()
            run(m, policy.compiled, 1, *spare)
            for number in before - self._waiting():
                bursts = -(-self.requests[number][4] // int(m.shape[y.S_BURST]))
                start = int(m.channel[0, y.H_NEXT_COLUMN]) - bursts * self[y.G_T_BURST]
                chosen[number] = (int(now), start)
        return [(*chosen[number], returned.get(number)) for number in range(len(self.requests))]
