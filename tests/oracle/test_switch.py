"""The switch that reduces and copies beside a plain model of its links: when sums and copies arrive."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
from machines import BIN, NS, gpu, steps

from weft.core.options import RunOptions
from weft.engine import layout as y
from weft.engine.loop import run
from weft.engine.program import (
    Buffer,
    ChunkLoad,
    ChunkRule,
    ChunkStore,
    Kernel,
    Phase,
    PlacedKernel,
    Plan,
    RemoteMap,
    build,
)
from weft.engine.state import allocate, margin_events, margin_requests
from weft.hardware import System
from weft.hardware.fabric import switch
from weft.overlaps.arbiters import ROUND_ROBIN
from weft.overlaps.lower.machine import machine_tables

RATE, LATENCY = 64e9, 500e-9
GPUS, PIECE, COUNT, REQUEST = 4, 1024, 6, 512


def machine(phase: Phase, gpus: int = GPUS, slow: int | None = None):
    """A machine before its first event, whose GPU 0 runs one workgroup of one phase, the others nothing."""
    paper = gpu(link__bandwidth=f"{RATE / 1e9} GB/s")
    variants = {} if slow is None else {slow: gpu(link__bandwidth=f"{RATE / 4e9} GB/s")}
    fabric = switch(GPUS, RATE, LATENCY, reduces=True)
    system = System(gpu=paper, gpus=GPUS, fabric=fabric, variants=variants)
    to_all = ChunkRule(remote=RemoteMap("copied", 0, False, "sum", 0, members=GPUS, member_stride=PIECE * COUNT))
    size = ((GPUS * PIECE * COUNT,),)
    buffers = (Buffer("data", size), Buffer("copied", size, (to_all,)))
    kernel = Kernel("sum", 1, 64, 4096, 0, (phase,))
    program = build(
        Plan((PlacedKernel(kernel),), buffers, ()), machine_tables(system, gpus, RunOptions(request_bytes=REQUEST), 1)
    )
    for g in range(1, gpus):
        program.tables.phase[g, :, y.PHASE_ITERATIONS] = 0
    m = allocate(program.tables, BIN)
    m.clock[y.CLOCK_WINDOW_END] = y.NEVER  # all events are in the heap, where tests see the next one
    run(m, ROUND_ROBIN.compiled, 0, margin_events(m.shape), margin_requests(m.shape))
    return m


def loading() -> Phase:
    """A loop that loads sums of all GPUs' data."""
    return Phase(COUNT, 3, 0, (ChunkLoad("data", 0, "sum", PIECE, members=GPUS, member_stride=PIECE * COUNT),))


def storing() -> Phase:
    """A loop whose stores the switch copies to all GPUs."""
    return Phase(COUNT, 3, 0, (), (ChunkStore("copied", 0, "sum", PIECE),))


def taken(m, bytes_: int, g: int = 0) -> int:
    """Return the time of the bytes on the link of a GPU [fs]."""
    return bytes_ * int(m.link[g, y.LINK_STORE64]) // 64


@pytest.mark.parametrize("slow", [None, 2])
def test_a_sum_comes_down_after_the_answers_of_all_gpus_have_come_up(slow):
    m = machine(loading(), slow=slow)
    up, down = [0] * GPUS, 0
    missing, expected, arrived = defaultdict(list), [], []
    for time, kind, i in steps(m):
        request = m.request[i].copy()
        if kind == y.EV_READ_DONE and request[y.REQ_OWNER_KIND] == y.OWNER_SUM:
            g = request[y.REQ_GPU]
            up[g] = max(time, up[g]) + taken(m, request[y.REQ_BYTES], g)
            # A route without latency takes 1 fs.
            missing[request[y.REQ_OWNER]].append(up[g] + 1)
            if len(missing[request[y.REQ_OWNER]]) == GPUS:
                expected.append((max(missing.pop(request[y.REQ_OWNER])), request[y.REQ_BYTES]))
        if kind == y.EV_ARRIVE and request[y.REQ_MEMBERS] == 0:
            arrived.append(time)
    wanted = []
    for ready, bytes_ in sorted(expected):
        down = max(ready, down) + taken(m, bytes_)
        wanted.append(down + round(LATENCY * 1e9) * NS)
    assert arrived == wanted
    assert len(arrived) == COUNT * PIECE // REQUEST


def test_a_store_goes_up_once_and_comes_down_at_every_gpu_at_once():
    m = machine(storing())
    arrived = defaultdict(list)
    for time, kind, i in steps(m):
        if kind == y.EV_ARRIVE and m.request[i, y.REQ_MEMBERS] == 0:
            place = int(m.request[i, y.REQ_ADDRESS])
            arrived[place % (PIECE * COUNT)].append((time, int(m.request[i, y.REQ_CHANNEL]), place // (PIECE * COUNT)))
    assert sorted(arrived) == list(range(0, PIECE * COUNT, REQUEST))
    for copies in arrived.values():
        assert len({time for time, _, _ in copies}) == 1
        assert {(receiver, distance) for _, receiver, distance in copies} == {(-d % GPUS, d) for d in range(GPUS)}
    first = sorted(time for copies in arrived.values() for time, _, _ in copies)[::GPUS]
    assert np.diff(first).min() >= taken(m, REQUEST)
    assert m.link_run[0, y.LINK_BYTES] == COUNT * PIECE
    assert m.link_run[GPUS : 2 * GPUS, y.LINK_BYTES].tolist() == [COUNT * PIECE] * GPUS


@pytest.mark.parametrize(("phase", "up", "down"), [(loading(), GPUS, 1), (storing(), 1, GPUS)])
def test_one_gpu_that_represents_all_answers_all_and_receives_all_copies(phase, up, down):
    m = machine(phase, gpus=1)
    for _ in steps(m):
        pass
    assert m.link_run[:, y.LINK_BYTES].tolist() == [up * COUNT * PIECE, down * COUNT * PIECE]
