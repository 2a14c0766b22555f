"""T3's reduce-scatters beside a SimPy model: round the ring, straight to the owners, and with K in parts.

The model knows the rule of each overlap: how often a tile is updated, and where it goes from there. Links, DMA engines
and compute units take their time; ports, caches and memory take none but a read's latency.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import replace
from typing import Any

import pytest
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st
from machines import finish, gpu, layer, lowered
from runs import tiled
from simpy_machine import Wire, after, joined, uncontended, unequal, wires

from weft.engine import layout as y
from weft.engine.program import Program
from weft.graph import Collective, Gemm
from weft.hardware import Fabric, System
from weft.kernels import GemmTiling

OVERLAPS = ("t3", "t3-direct", "t3-direct-dma", "t3-split-k")
REQUEST = 512


def scattered(
    overlap: str, ranks: int, fabric: Fabric, latency: int, shape: tuple[int, int, int], parts: int, **changes: Any
) -> Program:
    """A GEMM and the reduce-scatter of its output on GPUs whose memory takes no time but a read's latency."""
    m, n, k = shape
    ops = {
        "gemm": Gemm(64 * m, 64 * n, 32 * k, "fp16"),
        "all_reduce": Collective("reduce_scatter", 64 * 64 * m * n * 2, ranks, "fp16"),
    }
    graph = layer(n=64 * ranks, k=64 * ranks, tp=ranks).map(lambda node: replace(node, op=ops[node.id]))
    tiling = GemmTiling(rows=64, columns=64, step=32, slots=1, stages=1, splits=parts)
    machine = System(gpu=gpu(memory__channels=1, memory__bandwidth="32 GB/s", **changes), gpus=ranks, fabric=fabric)
    made = lowered(tiled(graph, tiling), overlap, machine, ranks, REQUEST)
    return replace(made, tables=unequal(uncontended(made.tables, latency)))


class Oracle:
    """All GPUs of a program. A tile is named by the GPU that owns its sum and by its number in the GPU's chunk."""

    def __init__(self, made: Program, overlap: str, ranks: int, parts: int, fabric: Fabric) -> None:
        self.env = simpy.Environment()
        self.tables, self.overlap, self.ranks, self.parts = made.tables, overlap, ranks, parts
        self.wire: dict[tuple[int, int], Wire] = wires(self.env, made.tables, fabric)
        self.constant = made.tables.gpu[0]
        self.kernel = made.tables.kernel[0, 0]
        self.latency = int(self.constant[y.GPU_MEMORY_LATENCY])
        self.updated: dict[tuple[int, int, int], int] = defaultdict(int)  # bytes, by GPU and tile
        causes = (("gemm", y.UPDATE), ("reduce_scatter", y.UPDATE), ("reduce_scatter", y.READ))
        self.moved = {cause: [0] * ranks for cause in causes}  # bytes at the memory of each GPU
        self.complete: dict[tuple[int, int], int] = {}  # when a GPU's part of a chunk is complete
        self.idle = [list(range(int(self.constant[y.GPU_DMA_ENGINES]))) for _ in range(ranks)]
        self.commands: list[deque[tuple[int, int, int]]] = [deque() for _ in range(ranks)]
        self.ends: list[list[int]] = [[] for _ in range(ranks)]
        self.tile_bytes = int(made.tables.work[0, 0, y.WORK_BYTES])
        for g in range(ranks):
            self.env.process(self.dispatcher(g))
        self.env.run()

    # -- the rule of each overlap: the position of a chunk is the order in which a GPU comes to it, its own last

    def stored_at(self, g: int, owner: int) -> int:
        """The GPU whose memory the GEMM's stores update."""
        own, first = owner == g, owner == (g + 1) % self.ranks
        if own or self.parts > 1 or self.overlap == "t3-direct-dma":
            return g
        return owner if self.overlap == "t3-direct" else (g - 1) % self.ranks if first else g

    def needed(self, g: int, owner: int) -> int:
        """Updates of each element until the tile is complete in the memory of GPU g."""
        if self.overlap.startswith("t3-direct"):
            return self.parts + (self.ranks - 1 if owner == g else 0)
        return self.parts + (owner != (g + 1) % self.ranks)

    def next_of(self, g: int, owner: int) -> int | None:
        """The GPU to which DMA sends a tile that is complete in the memory of GPU g."""
        if owner == g:
            return None
        return owner if self.overlap.startswith("t3-direct") else (g - 1) % self.ranks

    def engines_for(self, owner: int, g: int, tile: int) -> list[int]:
        """The DMA engines that may send a tile: straight to owners, those of an owner take its tiles in turn."""
        have, peers = int(self.constant[y.GPU_DMA_ENGINES]), self.ranks - 1
        if self.overlap != "t3-direct-dma":
            return list(range(have))
        own = range((owner - g - 1) % self.ranks % have, have, peers)
        return [own[tile % len(own)]]

    # -- memory

    def update(self, g: int, owner: int, tile: int, bytes_: int, operator: str = "reduce_scatter") -> None:
        """The memory of GPU g adds `bytes_` of a tile that come from a link, or from its own "gemm"."""
        key = (g, owner, tile)
        self.updated[key] += bytes_
        self.moved[operator, y.UPDATE][g] += bytes_
        if self.updated[key] == self.needed(g, owner) * self.tile_bytes:
            self.complete[g, owner] = self.env.now
            if self.next_of(g, owner) is not None:
                self.commands[g].append(key)
                self.start_engines(g)

    # -- DMA

    def start_engines(self, g: int) -> None:
        for key in list(self.commands[g]):
            for engine in self.engines_for(key[1], g, key[2]):
                if engine in self.idle[g]:
                    self.idle[g].remove(engine)
                    self.commands[g].remove(key)
                    self.env.process(self.copy(g, engine, key))
                    break

    def copy(self, g: int, engine: int, key: tuple[int, int, int]) -> Any:
        """One command: after its set-up it reads, at most a window ahead of what has left on the link."""
        _, owner, tile = key
        target = self.next_of(g, owner)
        yield self.env.timeout(int(self.constant[y.GPU_DMA_SETUP]))
        unread = unsent = self.tile_bytes
        flight = 0
        room = self.env.event()

        def left() -> None:
            nonlocal flight, unsent, room
            flight -= REQUEST
            unsent -= REQUEST
            room.succeed()
            room = self.env.event()

        def read() -> Any:
            yield after(self.env, self.latency, y.EV_READ_DONE)
            self.moved["reduce_scatter", y.READ][g] += REQUEST
            self.wire[g, target].send(
                ("engine", engine), REQUEST, left, lambda: self.update(target, owner, tile, REQUEST)
            )

        while unsent > 0:
            while unread > 0 and flight < self.constant[y.GPU_DMA_WINDOW]:
                self.env.process(read())
                flight += REQUEST
                unread -= REQUEST
            yield room
        self.idle[g].append(engine)
        self.start_engines(g)

    # -- compute units

    def dispatcher(self, g: int) -> Any:
        """Places workgroups in order on the emptiest unit, the lowest number on a tie; in step, stage by stage."""
        row, kernel, env = self.constant, self.kernel, self.env
        fitting = min(
            int(row[y.GPU_WORKGROUPS]),
            int(row[y.GPU_THREADS] // kernel[y.KERNEL_THREADS]),
            int(row[y.GPU_REGISTERS] // kernel[y.KERNEL_REGISTERS]),
            int(row[y.GPU_LDS] // max(kernel[y.KERNEL_LDS], 1)),
        )
        places = [fitting] * int(row[y.GPU_CUS])
        matrix = [simpy.Resource(env, capacity=1) for _ in places]
        stage = sum(places) if kernel[y.KERNEL_STAGE] else int(kernel[y.KERNEL_WORKGROUPS])
        retired = env.event()

        def done(unit: int) -> None:
            nonlocal retired
            places[unit] += 1
            self.ends[g].append(env.now)
            retired.succeed()
            retired = env.event()

        for index in range(int(kernel[y.KERNEL_WORKGROUPS])):
            while not any(places) or index >= (len(self.ends[g]) // stage + 1) * stage:
                yield retired
            unit = max(range(len(places)), key=lambda u: (places[u], -u))
            places[unit] -= 1
            env.process(self.workgroup(g, index, unit, matrix[unit], done))

    def workgroup(self, g: int, index: int, unit: int, matrix: simpy.Resource, done: Any) -> Any:
        """Loads and computes step by step, stores its tile, and leaves when the last store has left."""
        tables, env = self.tables, self.env
        work = tables.work[g, index]
        phase = tables.phase[g, int(self.kernel[y.KERNEL_FIRST_PHASE] + work[y.WORK_SCRIPT] * 2)]
        for _ in range(int(phase[y.PHASE_ITERATIONS])):
            yield env.timeout(self.latency)
            with matrix.request() as turn:
                yield turn
                yield env.timeout(int(phase[y.PHASE_CYCLES] * self.constant[y.GPU_CYCLE] // 1000))
        owner = (g + 1 + int(work[y.WORK_REGION])) % self.ranks
        tile, at = int(work[y.WORK_OFFSET]) // self.tile_bytes, self.stored_at(g, owner)
        if at == g:
            self.update(g, owner, tile, self.tile_bytes, "gemm")
        else:
            unsent, sent = self.tile_bytes, env.event()

            def left() -> None:
                nonlocal unsent
                unsent -= REQUEST
                if unsent == 0:
                    sent.succeed()

            for _ in range(self.tile_bytes // REQUEST):
                self.wire[g, at].send(unit, REQUEST, left, lambda: self.update(at, owner, tile, REQUEST))
            yield sent
        done(unit)


@pytest.mark.parametrize("overlap", OVERLAPS)
@pytest.mark.parametrize("mesh", [False, True], ids=["one link", "mesh"])
@settings(max_examples=20, deadline=None)
@given(
    ranks=st.integers(2, 4),
    units=st.integers(1, 3),
    places=st.integers(1, 2),
    shape=st.tuples(st.integers(2, 5), st.integers(2, 3), st.integers(3, 5)),
    parts=st.integers(1, 3),
    rate=st.sampled_from([7, 50, 400]),
    # Off the grid of all other times: where a read and a link end at one instant, either may be first.
    latency=st.integers(1, 900_000).map(lambda picoseconds: 1000 * picoseconds + 499),
    engines=st.integers(1, 5),
    window=st.sampled_from([1024, 4096, 65536]),
    in_step=st.booleans(),
)
def test_times_and_traffic_are_those_of_the_oracle(
    overlap, mesh, ranks, units, places, shape, parts, rate, latency, engines, window, in_step
):
    fabric = joined(ranks, rate * 1e9, 500e-9, mesh=mesh)
    parts = parts if overlap == "t3-split-k" else 1
    made = scattered(
        overlap, ranks, fabric, latency, shape, parts,
        compute__compute_units=units, compute__max_workgroups_per_cu=places, compute__stages_in_step=int(in_step),
        dma__engines=engines, dma__window=f"{window} B",
    )  # fmt: skip
    machine = finish(made)
    oracle = Oracle(made, overlap, ranks, parts, fabric)
    workgroups = int(oracle.kernel[y.KERNEL_WORKGROUPS])
    for g in range(ranks):
        assert sorted(machine.work_log[g, :workgroups, y.WORKLOG_END].tolist()) == oracle.ends[g]
        for owner in range(ranks):
            region = made.region("output", (owner - g - 1) % ranks)
            found = int(machine.chunk_log[g, region, y.CHUNK_COMPLETE])
            assert found == oracle.complete.get((g, owner), y.NONE)
    links = {id(wire): wire.bytes for wire in oracle.wire.values()}
    assert machine.link_run[:, y.LINK_BYTES].tolist() == list(links.values())
    for (operator, kind), bytes_ in oracle.moved.items():
        assert machine.traffic[:, made.cause(operator, kind)].tolist() == bytes_
