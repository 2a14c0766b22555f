"""Execution plans of puts, signals and waits beside a SimPy model that reads the same file: when each workgroup ends.

Ports, caches and memory take no time but a read's latency.
"""

from __future__ import annotations

import itertools
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import simpy
from execution_plans import Op, Rank, local, plan_data, read
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from machines import finish, gpu
from simpy_machine import joined, uncontended, wires

from weft.core.options import RunOptions
from weft.core.units import to_fs
from weft.engine import layout as y
from weft.engine.program import PlacedKernel, Plan, Program, build
from weft.hardware import Fabric, System
from weft.kernels.channels import ChannelTiling
from weft.kernels.execution_kernel import FLAG, PlanKernel
from weft.overlaps.lower.machine import machine_tables

REQUEST = 512


def to_all_peers(ranks: int, blocks: int) -> Op:
    """All-gather in one step: block b puts the rank's part to every `blocks`-th peer, and hears of as many."""
    made = []
    for r in range(ranks):
        rank = Rank(r, ranks, blocks, (1, ranks, 0))
        for b in range(blocks):
            if b == 0:
                rank.add(b, "copy", [local("i", 0)], [local("o", r)])
            mine = rank.peers[b::blocks]
            heard = [p for p in rank.peers if ((r - p) % ranks - 1) % blocks == b]
            if mine:
                rank.add(b, "put", [local("i", 0)] * len(mine), [rank.far("o", p, r) for p in mine])
                rank.add(b, "signal", channel_ids=[rank.peers.index(p) for p in mine])
                rank.add(b, "wait", channel_ids=[rank.peers.index(p) for p in heard])
        made.append(rank)
    return plan_data(made, "allgather")


def around(ranks: int, lanes: int) -> Op:
    """All-gather around a ring: each block sends a lane to the next rank and waits for the one before."""
    made = []
    for r in range(ranks):
        rank = Rank(r, ranks, lanes, (lanes, ranks * lanes, 0))
        after, before = (r + 1) % ranks, (r - 1) % ranks
        for b in range(lanes):
            rank.add(b, "copy", [local("i", b)], [local("o", r * lanes + b)])
            for step in range(ranks - 1):
                at = (r - step) % ranks * lanes + b
                rank.add(b, "put", [local("o", at)], [rank.far("o", after, at)])
                rank.add(b, "signal", channel_ids=[rank.peers.index(after)])
                rank.add(b, "wait", channel_ids=[rank.peers.index(before)])
        made.append(rank)
    return plan_data(made, "allgather")


def lowered(kernel: PlanKernel, fabric: Fabric, latency: int) -> Program:
    """The program of a plan on GPUs whose memory takes no time but reads; no two workgroups begin together."""
    one = gpu(memory__channels=1, memory__bandwidth="32 GB/s", compute__compute_units=8)
    system = System(gpu=one, gpus=kernel.ranks, fabric=fabric)
    tables = machine_tables(system, kernel.ranks, RunOptions(request_bytes=REQUEST), 1)
    made = build(Plan((PlacedKernel(kernel.kernel(one)),), kernel.buffers(), ()), tables)
    uncontended(made.tables, latency)
    each = int(made.tables.kernel[0, 0, y.KERNEL_PHASES])
    for g in range(kernel.ranks):
        for block in range(kernel.plan.workgroups):
            script = made.tables.phase[g, block * each : (block + 1) * each]
            first = int((script[:, y.PHASE_ITERATIONS] > 0).argmax())
            script[first, y.PHASE_DELAY] += late(g, block)
    return made


def late(g: int, block: int) -> int:
    """How much later than planned a workgroup begins [fs]."""
    return 1_000_003 * (1 + g * 8 + block)


class Oracle:
    """All ranks of a plan, read from its file."""

    def __init__(self, made: Program, data: Op, part: int, tiling: ChannelTiling, fence: float, fabric: Fabric) -> None:
        self.env = simpy.Environment()
        self.wire = wires(self.env, made.tables, fabric)
        self.latency = int(made.tables.gpu[0, y.GPU_MEMORY_LATENCY])
        self.data, self.part, self.tiling, self.fence = data, part, tiling, fence
        self.signals: Counter[tuple[int, int, int]] = Counter()  # by receiver, sender and block
        self.signalled = self.env.event()
        self.ends: dict[tuple[int, int], int] = {}
        for rank in data["gpus"]:
            for block in rank["threadblocks"]:
                self.env.process(self.workgroup(rank, block))
        self.env.run()

    def workgroup(self, rank: Op, block: Op) -> Any:
        r, b, ranks = rank["id"], block["id"], len(self.data["gpus"])
        peers = [(r + d) % ranks for d in range(1, ranks)]
        chunk = self.part // rank["input_chunks"]
        begins = to_fs(self.tiling.start) + late(r, b)
        heard: Counter[int] = Counter()
        for op in block["ops"]:
            far = [peers[i] for i in op.get("channel_ids", ())]
            if op["name"] == "wait":
                heard.update(far)
                while any(self.signals[r, p, b] < heard[p] for p in far):
                    yield self.signalled
                yield self.env.timeout(to_fs(self.tiling.sync) + begins)
            elif op["name"] == "signal":
                yield self.env.timeout(to_fs(self.fence) + begins)
                yield from self.store(r, b, [(p, FLAG, lambda p=p: self.signal(p, r, b)) for p in far])
            else:
                yield self.env.timeout(begins)
                for target in op["dst_buff"]:
                    to = None if op["name"] == "copy" else peers[target["buffer_id"] % len(peers)]
                    yield from self.move(r, b, to, target["index"] * chunk, chunk)
            begins = 0
        self.ends[r, b] = self.env.now

    def signal(self, receiver: int, sender: int, block: int) -> None:
        self.signals[receiver, sender, block] += 1
        self.signalled.succeed()
        self.signalled = self.env.event()

    def move(self, r: int, b: int, to: int | None, begin: int, bytes_: int) -> Any:
        """Load and store `bytes_` in pieces; a slot takes its next piece when its last store has left."""
        slots, piece = self.tiling.slots, min(self.tiling.in_flight // self.tiling.slots, bytes_)
        starts = range(0, bytes_, piece)
        yield self.env.all_of(
            [
                self.env.process(self.slot(r, b, to, begin, bytes_, piece, starts[s::slots]))
                for s in range(min(slots, len(starts)))
            ]
        )

    def slot(self, r: int, b: int, to: int | None, begin: int, bytes_: int, piece: int, starts: range) -> Any:
        for start in starts:
            yield self.env.timeout(self.latency)
            first, end = begin + start, begin + min(start + piece, bytes_)
            cuts = [first, *range((first // REQUEST + 1) * REQUEST, end, REQUEST), end]
            sizes = [high - low for low, high in itertools.pairwise(cuts)]
            if to is not None:
                yield from self.store(r, b, [(to, size, lambda: None) for size in sizes])

    def store(self, r: int, b: int, messages: list[tuple[int, int, Any]]) -> Any:
        """Messages to peers; they have been stored when all have left."""
        unsent, sent = len(messages), self.env.event()

        def left() -> None:
            nonlocal unsent
            unsent -= 1
            if unsent == 0:
                sent.succeed()

        for to, size, arrived in messages:
            self.wire[r, to].send(b, size, left, arrived)
        yield sent


@pytest.mark.parametrize("made_as", [to_all_peers, around])
@pytest.mark.parametrize("mesh", [False, True], ids=["one link", "mesh"])
@settings(max_examples=20, deadline=None)
@given(
    ranks=st.integers(2, 4),
    blocks=st.integers(1, 3),
    lines=st.integers(1, 16),
    in_flight=st.sampled_from([1024, 4096, 16384]),
    slots=st.integers(1, 4),
    fence=st.sampled_from([0.0, 130e-9]),
    sync=st.sampled_from([1e-9, 700e-9]),
    rate=st.sampled_from([7, 50, 400]),
    # Off the grid of all other times: of messages that reach a link at one instant, either may be first.
    latency=st.integers(1, 900_000).map(lambda picoseconds: 1000 * picoseconds + 499),
)
def test_workgroups_end_when_the_oracle_says(
    made_as, mesh, ranks, blocks, lines, in_flight, slots, fence, sync, rate, latency
):
    part = lines * blocks * REQUEST  # chunks of whole lines: a script for all ranks cuts them at the same places
    data, fabric = made_as(ranks, blocks), joined(ranks, rate * 1e9, 500e-9, mesh=mesh)
    with tempfile.TemporaryDirectory() as folder:
        plan = read(data, Path(folder))
    tiling = ChannelTiling(blocks, in_flight=in_flight, slots=slots, sync=sync, start=2e-6)
    made = lowered(PlanKernel(plan, ranks * part, tiling, fence, 0.0), fabric, latency)
    machine = finish(made)
    oracle = Oracle(made, data, part, tiling, fence, fabric)
    assume(not any(wire.tied for wire in oracle.wire.values()))  # either message may be first
    first = int(made.tables.kernel[0, 0, y.KERNEL_FIRST_WORK])
    for (g, block), end in oracle.ends.items():
        assert machine.work_log[g, first + block, y.WORKLOG_END] == end
    links = {id(wire): wire.bytes for wire in oracle.wire.values()}
    assert machine.link_run[:, y.LINK_BYTES].tolist() == list(links.values())
