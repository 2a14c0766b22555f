"""Small machines and problems for tests: real programs, and bare machines whose requests the test makes."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
from interpreted import PLAIN
from runs import Streams, tiled

from weft import hardware
from weft.core.options import Memory, RunOptions
from weft.engine import layout as y
from weft.engine.loop import run
from weft.engine.program import Program, build
from weft.engine.run import execute
from weft.engine.state import (
    SERIES_BINS,
    Machine,
    Tables,
    allocate,
    margin_events,
    margin_requests,
)
from weft.graph import Graph, PaperRing, TrackedDirect, TrackedRing
from weft.hardware import Fabric, Gpu, System
from weft.kernels import GemmTiling
from weft.models import SubLayer
from weft.models.parallel import split
from weft.overlaps import Ideal, OverlapMethod, find_simulated
from weft.overlaps.arbiters import ROUND_ROBIN, ArbiterPolicy, ArbiterView
from weft.overlaps.lower.machine import machine_tables, wiring
from weft.overlaps.lowering import lower
from weft.overlaps.registry import BUILT_IN

NS = 1_000_000
"""Femtoseconds."""
BIN = 100 * NS
# Causes of traffic on a bare machine: one operator communicates, one computes.
GATHER_READ, GATHER_WRITE = (y.SYSTEM_OPERATORS * y.KINDS + kind for kind in (y.READ, y.WRITE))
GEMM_READ, GEMM_WRITE, GEMM_UPDATE = ((y.SYSTEM_OPERATORS + 1) * y.KINDS + kind for kind in (y.READ, y.WRITE, y.UPDATE))


def gpu(**changes: Any) -> Gpu:
    """The paper's GPU, with changes whose dots are written as double underscores."""
    return hardware.gpu("t3-paper").replace({path.replace("__", "."): value for path, value in changes.items()})


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
    return hardware.gpu("mi300x").replace({**small, **given})


def lowered(
    graph: Graph,
    overlap: str | OverlapMethod,
    machine: Gpu | System,
    simulated: int = 1,
    request: int = 512,
) -> Program:
    """The lowered program of a graph under an overlap."""
    system = machine if isinstance(machine, System) else System(gpu=machine, gpus=max(graph.ranks, 2))
    options = RunOptions(mode="mirrored" if simulated == 1 else "explicit")
    made = lower(find_simulated(overlap).apply(graph, system.gpu), system, options)
    hardware_ = machine_tables(
        system, simulated, RunOptions(request_bytes=request), system.gpu.compute.max_workgroups_per_cu
    )
    return build(made.plan, hardware_)


def streams_program(streams: Streams, machine: Gpu, request: int = 512) -> Program:
    """The lowered program of independent streams on one GPU."""
    hardware_ = machine_tables(
        System(gpu=machine, gpus=4),
        1,
        RunOptions(request_bytes=request),
        machine.compute.max_workgroups_per_cu,
    )
    return build(streams.plan(machine), hardware_)


def layer(m: int = 512, n: int = 512, k: int = 128, tp: int = 4) -> Graph:
    """A sub-layer whose unsplit GEMM is m x n x k."""
    return split(SubLayer.custom(m, n, k), tp)


def by_rings(one: OverlapMethod) -> bool:
    """Whether a pass runs the steps of the paper's ring, or T3's, and nothing else beside the GEMM."""
    graph = one.apply(layer(), gpu())
    moved = [node for node in graph if node.op.kind == "collective"]
    return all(isinstance(node.choice.kernel, PaperRing | TrackedRing | TrackedDirect) for node in moved)


BY_ADDING_SWITCHES = ("in-network", "t3-nvls")
"""The passes that need a switch that adds, which the paper's machine lacks; tests/unit has their own tests."""
_PASSES = tuple(one for one in BUILT_IN if one.accepts(layer()) and one.name not in BY_ADDING_SWITCHES)
SIMULATED = tuple(one.name for one in _PASSES if not isinstance(one, Ideal) and by_rings(one))
"""Every way to run a sub-layer by rings, also the one that only an ideal uses."""
OVERLAPS = tuple(one.name for one in _PASSES if one.name != "rs-nmc")
"""Every way to overlap a GEMM with its all-reduce behind any switch."""


def program(
    shared: Graph,
    overlap: str,
    machine: Gpu | System | None = None,
    explicit: bool = False,
    request: int = 512,
    tiling: GemmTiling | None = None,
) -> Program:
    """The lowered program of a sub-layer under a simulated overlap."""
    system = machine or hardware.gpu("t3-paper")
    return lowered(tiled(shared, tiling), overlap, system, shared.ranks if explicit else 1, request)


def finish(made: Program, policy: ArbiterPolicy = ROUND_ROBIN, interference: bool = False) -> Machine:
    """The final state of a run that must finish."""
    status, machine = execute(made.tables, policy.compiled, BIN, interference=interference)
    assert status == y.FINISHED, status
    return machine


def interpret(
    made: Program | Tables, policy: ArbiterPolicy = ROUND_ROBIN, engine: Any = PLAIN, interference: bool = False
) -> Machine:
    """The final state of the same run in plain Python."""
    tables = made.tables if isinstance(made, Program) else made
    status, machine = engine.execute(tables, plain_policy(policy), BIN, interference=interference)
    assert status == y.FINISHED, status
    return machine  # type: ignore[no-any-return]


def plain_policy(policy: ArbiterPolicy) -> Any:
    """The policy as an uncompiled function of what the engine passes."""
    return lambda *fields: policy.rule(ArbiterView(*(int(field) for field in fields)))


def bare(
    machine: Gpu,
    gpus: int = 1,
    request: int = 512,
    regions: int = 1,
    tiles: int = 0,
    memory: Memory = "banks",
    interference: bool = False,
) -> Machine:
    """A machine without kernels: nothing happens but what the test puts in."""
    options = RunOptions(request_bytes=request, memory=memory)
    rows, shape, wired = machine_tables(System(gpu=machine, gpus=max(gpus, 2)), gpus, options, 1)
    shape[y.SIZE_GPUS], shape[y.SIZE_REGIONS], shape[y.SIZE_TILES] = gpus, regions, tiles
    shape[y.SIZE_WAVEFRONTS] = shape[y.SIZE_BLOCK_TILES] = 1
    shape[y.SIZE_CAUSES], shape[y.SIZE_COMPUTE_CAUSE] = GEMM_READ + y.KINDS, GEMM_READ

    def table(*dims: int) -> Any:
        return np.zeros(dims, dtype=np.int64)

    tables = Tables(
        shape=shape,
        gpu=rows,
        kernel=table(gpus, 0, y.KERNEL_COLUMNS),
        successor=table(1),
        phase=table(gpus, 1, y.PHASE_COLUMNS),
        access=table(gpus, 1, y.ACCESS_COLUMNS),
        work=table(gpus, 0, y.WORK_FIELDS),
        region=table(gpus, regions, y.REGION_COLUMNS),
        tile=table(gpus, max(tiles, 1), y.TILE_COLUMNS),
        unit_mask=table(gpus, 0, int(shape[y.SIZE_CUS])),
        link=wired.link,
        route=np.array([*wired.hops(0, 1, True), (y.NONE, 0)], dtype=np.int64),
    )
    machine = allocate(tables, BIN, interference)
    machine.clock[y.CLOCK_WINDOW_END] = y.NEVER  # all events are in the heap, where tests see the next one
    return machine


class LinkBench:
    """The links of a fabric between the paper's GPUs, under messages of the test's choosing."""

    def __init__(self, fabric: Fabric) -> None:
        self.fabric, self.number = fabric, dict[int, int]()
        self.sent: list[tuple[int, int, int, int, bool]] = []
        wired = wiring(System(gpu=gpu(), gpus=fabric.gpus, fabric=fabric), fabric.gpus)
        self.hops, self.first = wired.hops, wired.first
        self.machine = SimpleNamespace(
            clock=np.zeros(y.CLOCK_COLUMNS, dtype=np.int64),
            heap=np.zeros((1 << 14, 2), dtype=np.int64),
            later=np.zeros((0, y.LATER_COLUMNS), dtype=np.int64),
            window=np.zeros(y.WINDOWS, dtype=np.int64),
            window_bits=np.zeros(y.WINDOWS // 32, dtype=np.int64),
            request=np.zeros((1 << 12, y.REQ_COLUMNS), dtype=np.int64),
            link=wired.link,
            route=wired.route,
            link_run=np.zeros((len(wired.link), y.LINK_RUN_COLUMNS), dtype=np.int64),
            sender=np.full((len(wired.link), 1, y.SENDER_COLUMNS), y.NONE, dtype=np.int64),
            shape=np.ones(y.SIZE_COLUMNS, dtype=np.int64),
            link_series=np.zeros((fabric.gpus, SERIES_BINS), dtype=np.int64),
        )
        self.machine.clock[y.CLOCK_BIN] = 1000 * BIN
        self.machine.clock[y.CLOCK_WINDOW_END] = y.NEVER  # all events are in the heap
        self.machine.link_run[:, [y.LINK_SENT, y.LINK_FIRST, y.LINK_LAST]] = y.NONE

    def route(self, source: int, target: int, direct: bool = True) -> tuple[int, int, bool]:
        """The key of a route."""
        return source, (source - target) % self.fabric.gpus, direct

    def send(self, source: int, target: int, bytes_: int, at: int, direct: bool = True) -> None:
        """Add a message that a DMA engine of `source` sends at `at` [fs]; calls come in the order of time."""
        self.sent.append((source, target, bytes_, at, direct))

    def _enter(self, source: int, target: int, bytes_: int, at: int, direct: bool) -> None:
        m = self.machine
        i = PLAIN.new_message(m, source, target, 0, 0, bytes_, False, GATHER_WRITE, y.OWNER_ENGINE, 0, -1, -1)
        self.number[int(i)] = len(self.number)
        PLAIN.send(m, self.first[self.route(source, target, direct)], i, at)

    def run(self) -> list[int]:
        """When each message has arrived [fs]."""
        m, arrived = self.machine, [0] * len(self.sent)
        while m.clock[y.CLOCK_HEAP] or len(self.number) < len(self.sent):
            entered = len(self.number)
            if entered < len(self.sent) and (not m.clock[y.CLOCK_HEAP] or self.sent[entered][3] <= m.heap[0, 0]):
                m.clock[y.CLOCK_NOW] = self.sent[entered][3]
                self._enter(*self.sent[entered])
                continue
            code = int(PLAIN.take(m))
            PLAIN.settle(m)
            kind, index, now = code >> 40, code & ((1 << 40) - 1), int(m.clock[y.CLOCK_NOW])
            if kind == y.EV_LINK:
                PLAIN.depart(m, index, now)
            elif kind == y.EV_HOP:
                PLAIN.hop(m, index, now)
            else:
                assert kind == y.EV_ARRIVE
                arrived[self.number[index]] = now
        return arrived


def steps(machine: Machine, policy: ArbiterPolicy = ROUND_ROBIN) -> Iterator[tuple[int, int, int]]:
    """Run the compiled engine event by event: time, kind and index of each, before it acts."""
    compiled = policy.compiled
    spare = margin_events(machine.shape), margin_requests(machine.shape)
    while machine.clock[y.CLOCK_HEAP] > 0:
        time, code = machine.heap[0]
        yield int(time), int(code) >> 40, int(code) & ((1 << 40) - 1)
        status = run(machine, compiled, 1, *spare)
        assert status in (y.RUNNING, y.FINISHED), status


class MemoryBench:
    """One memory channel under requests of the test's choosing."""

    def __init__(
        self, machine: Gpu | None = None, request: int = 512, memory: Memory = "banks", interference: bool = False
    ) -> None:
        one = machine or gpu(memory__channels=1, memory__bandwidth="32 GB/s")
        self.machine = bare(one, request=request, memory=memory, interference=interference)
        self.requests: list[tuple[int, int, int, int, int, int]] = []
        self.number: dict[int, int] = {}
        self.row: dict[int, int] = {}

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
        m.request[i, y.REQ_KIND], m.request[i, y.REQ_BYTES], m.request[i, y.REQ_STREAM] = kind, bytes_, stream
        m.request[i, y.REQ_OWNER_KIND], m.request[i, y.REQ_REGION] = y.OWNER_NOBODY, y.NONE
        PLAIN.enqueue(m, i, 0, 0, at)
        m.request[i, y.REQ_BANK], m.request[i, y.REQ_ROW] = bank, row
        self.number[i], self.row[number] = number, i

    def _waiting(self) -> set[int]:
        """The numbers of all requests that the DRAM has not taken."""
        m, waiting = self.machine, set[int]()
        heads = [m.channel[0, column] for column in (y.CHAN_COMPUTE_HEAD, y.CHAN_COMMUNICATION_HEAD)]
        heads += [head for column in y.BANK_HEADS for head in m.bank[:, column]]
        for head in heads:
            i = int(head)
            while i != y.NONE:
                waiting.add(self.number[i])
                i = int(m.request[i, y.REQ_NEXT])
        return waiting

    def run(self, policy: ArbiterPolicy = ROUND_ROBIN, ahead: bool = False) -> list[tuple[int, int, int | None]]:
        """For every request: when the channel chose it, when its first column began, when a read returned.

        Requests are entered when they arrive, or all `ahead` of that.
        """
        m = self.machine
        latency = int(m.gpu[0, y.GPU_MEMORY_LATENCY])
        spare = margin_events(m.shape), margin_requests(m.shape)
        chosen: dict[int, tuple[int, int]] = {}
        returned: dict[int, int] = {}
        entered = 0
        while m.clock[y.CLOCK_HEAP] > 0 or entered < len(self.requests):
            now = m.heap[0, 0] if m.clock[y.CLOCK_HEAP] > 0 else y.NEVER
            if entered < len(self.requests) and (ahead or self.requests[entered][1] <= now):
                self._enter(entered)
                entered += 1
                continue
            before = self._waiting()
            run(m, policy.compiled, 1, *spare)
            for number in before - self._waiting():
                chosen[number] = (int(now), int(m.channel[0, y.CHAN_START]))
                if self.requests[number][0] == y.READ:
                    returned[number] = int(m.request[self.row[number], y.REQ_ARRIVE]) + latency
        return [(*chosen[number], returned.get(number)) for number in range(len(self.requests))]
