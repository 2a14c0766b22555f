"""A reduce-scatter of 64 MiB by DMA engines, around a ring of ranks or straight to the owners, beside closed forms."""

from __future__ import annotations

from collections import Counter

import pytest
from machines import finish, gpu

from weft.core.options import RunOptions
from weft.engine import layout as y
from weft.engine.program import Buffer, ChunkRule, DmaMap, PlacedKernel, Plan, Wait, build
from weft.engine.program.plan import PLAIN_STORE
from weft.hardware import FABRICS, Gpu, System
from weft.overlaps.joined import copy_kernel
from weft.overlaps.lower.machine import machine_tables

RATE, LATENCY, BYTES = 16e9, 500e-9, 64 << 20  # so slow that memory takes all that links bring
RANKS = dict.fromkeys(FABRICS, 8) | {"torus": 16, "nodes": 16}


def machine() -> Gpu:
    return gpu(dma__engines=16, dma__window="256 KiB", dma__setup="1 ns", compute__launch_latency="1 ns")


def around(ranks: int, gpus: int) -> Plan:
    """Each chunk visits all ranks: it is added to the next rank's and sent on from there."""
    chunk = BYTES // ranks
    rules = [DmaMap("output", p + 1, True, "reduce_scatter", direct=True) for p in range(ranks - 1)]
    kernels = [
        PlacedKernel(copy_kernel("output", p, (p,)), (p - 1,) if p else (), (Wait("output", p),) if p else ())
        for p in range(ranks - 1)
    ]
    chunks = Buffer("output", ((chunk,) * ranks,) * gpus, (*(ChunkRule(dma=rule) for rule in rules), PLAIN_STORE))
    return Plan(tuple(kernels), (chunks,), ())


def straight(ranks: int, gpus: int) -> Plan:
    """Each chunk goes to its owner at once, who adds it."""
    chunk, distances = BYTES // ranks, range(1, ranks)
    rules = tuple(
        ChunkRule(dma=DmaMap("own", 0, True, "reduce_scatter", distance, direct=True)) for distance in distances
    )
    return Plan(
        tuple(PlacedKernel(copy_kernel("output", distance - 1, (distance - 1,))) for distance in distances),
        (Buffer("own", ((chunk,),) * gpus), Buffer("output", ((chunk,) * len(rules),) * gpus, rules)),
        (),
    )


def seconds(name: str, plan: Plan, gpus: int) -> float:
    ranks = RANKS[name]
    system = System(gpu=machine(), gpus=ranks, fabric=FABRICS[name](ranks, RATE, LATENCY))
    return (
        float(finish(build(plan, machine_tables(system, gpus, RunOptions(request_bytes=4096), 1))).clock[y.CLOCK_NOW])
        * 1e-15
    )


@pytest.mark.parametrize("name", RANKS)
def test_a_ring_takes_in_every_step_what_the_link_that_most_of_it_shares_takes(name):
    ranks = RANKS[name]
    fabric = FABRICS[name](ranks, RATE, LATENCY)
    hops = [fabric.route(rank, (rank - 1) % ranks) for rank in range(ranks)]
    carried = Counter(fabric.links[k] for hop in hops for k in hop)
    slowest = max(count / (link.bandwidth * (link.payload or 1)) for link, count in carried.items())
    latency = max(sum(fabric.links[k].latency for k in hop) for hop in hops)
    step = BYTES / ranks * slowest + latency
    assert seconds(name, around(ranks, ranks), ranks) == pytest.approx((ranks - 1) * step, rel=0.03)


@pytest.mark.parametrize(
    ("name", "chunks"),
    [
        ("switch", 7),  # all leave by one port
        ("full", 1),  # a link for each
        ("ring", 1 + 2 + 3 + 4),  # those that go down, by their distance
        ("torus", 4 * (1 + 2)),  # four rows or columns' worth of what goes down in a ring of four
    ],
)
def test_straight_to_the_owners_takes_what_the_busiest_link_carries(name, chunks):
    ranks = RANKS[name]
    expected = chunks * BYTES / ranks / RATE + LATENCY
    assert seconds(name, straight(ranks, ranks), ranks) == pytest.approx(expected, rel=0.03)


@pytest.mark.parametrize("plan", [around, straight])
@pytest.mark.parametrize("name", ["switch", "full", "ring"])
def test_one_gpu_for_all_takes_as_long_as_each_for_itself(name, plan):
    one, each = (seconds(name, plan(RANKS[name], gpus), gpus) for gpus in (1, RANKS[name]))
    assert one == pytest.approx(each, rel=0.02)
