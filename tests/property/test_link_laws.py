"""Laws of links and routes: time without contention, queues at every link, bytes that neither vanish nor double."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from machines import NS, LinkBench, gpu

from weft.core.errors import InputError
from weft.engine import layout as y
from weft.hardware import FABRICS, Fabric, System
from weft.hardware.fabric import full, nodes, ring, switch, torus
from weft.overlaps.lower.machine import wiring

RATE, LATENCY = 64e9, 500e-9
KIB, MIB = 1 << 10, 1 << 20


@st.composite
def fabrics(draw: st.DrawFn) -> Fabric:
    name, gpus = draw(st.sampled_from(sorted(FABRICS))), draw(st.integers(2, 9))
    if name == "nodes":
        each = draw(st.integers(2, 4))
        return nodes(
            each * draw(st.integers(1, 3)),
            RATE,
            LATENCY,
            each,
            oversubscription=draw(st.sampled_from([None, 2.0])),
        )
    try:
        return FABRICS[name](gpus, draw(st.sampled_from([32e9, 64e9, 150e9])), draw(st.sampled_from([1e-9, 500e-9])))
    except InputError:  # not of so many GPUs
        reject()


@st.composite
def traffic(draw: st.DrawFn) -> tuple[Fabric, list[tuple[int, int, int, int]]]:
    fabric = draw(fabrics())
    ends = st.sampled_from(sorted(fabric.routes))
    times, sizes = st.integers(0, 2000), st.sampled_from([64, 512, 4096, 65536])
    sent = draw(st.lists(st.tuples(ends, sizes, times), min_size=1, max_size=40))
    return fabric, sorted(((s, t, size, at * NS) for (s, t), size, at in sent), key=lambda one: one[3])


@settings(deadline=None)
@given(traffic())
def test_what_enters_a_switch_leaves_it_and_no_link_exceeds_its_rate(drawn):
    fabric, sent = drawn
    bench = LinkBench(fabric)
    for message in sent:
        bench.send(*message)
    arrived = bench.run()
    m = bench.machine
    carried = m.link_run[:, y.LINK_BYTES].tolist()
    into, out = Counter[int](), Counter[int]()
    for link, bytes_ in zip(fabric.links, carried, strict=True):
        into[link.target] += bytes_
        out[link.source] += bytes_
    received = Counter[int]()
    for source, target, size, _ in sent:
        received[target] += size
        out[source] -= size if bench.fabric.links[fabric.routes[source, target][0]].bundle is not None else 0
        received[source] -= size
    for vertex in {link.source for link in fabric.links} | set(range(fabric.gpus)):
        assert into[vertex] - out[vertex] == received[vertex], vertex
    assert (m.link_run[:, y.LINK_BUSY] <= m.clock[y.CLOCK_NOW]).all()
    assert not m.link_run[:, y.LINK_COUNT].any()
    for (source, target, size, at), end in zip(sent, arrived, strict=True):
        assert end >= at + alone(bench, source, target, size)


@settings(deadline=None)
@given(traffic())
def test_an_earlier_message_over_the_same_route_arrives_earlier(drawn):
    fabric, sent = drawn
    bench = LinkBench(fabric)
    for message in sent:
        bench.send(*message)
    last: dict[tuple[int, int], int] = {}
    for (source, target, *_), end in zip(sent, bench.run(), strict=True):
        assert end > last.get((source, target), -1)
        last[source, target] = end


def alone(bench: LinkBench, source: int, target: int, size: int) -> int:
    """What a message takes over a free route: its slowest link once, and every latency [fs]."""
    hops = bench.hops(*bench.route(source, target))
    slowest = max(size * int(bench.machine.link[link, y.LINK_DMA64]) // 64 for link in hops[:, y.ROUTE_LINK])
    return slowest + int(hops[:, y.ROUTE_LATENCY].sum())


@pytest.mark.parametrize("name", FABRICS)
def test_a_lone_message_takes_its_slowest_link_once_and_every_latency(name):
    fabric = FABRICS[name](16, RATE, LATENCY)
    bench, apart = LinkBench(fabric), 100_000 * NS
    for number, (source, target) in enumerate(fabric.routes):
        bench.send(source, target, 64 * KIB, number * apart)
    for number, (end, (source, target)) in enumerate(zip(bench.run(), fabric.routes, strict=True)):
        assert end == number * apart + alone(bench, source, target, 64 * KIB)


def burst(fabric: Fabric, senders: int, direct: bool = True) -> float:
    """How long `senders` GPUs that each send 1 MiB to GPU 0 take, less the latency [us]."""
    bench = LinkBench(fabric)
    for _ in range(256):
        for sender in range(1, senders + 1):
            bench.send(sender, 0, 4 * KIB, 0, direct)
    return (max(bench.run()) - round(LATENCY * 1e15)) * 1e-9


def test_seven_senders_into_one_gpu_take_seven_times_as_long_as_one():
    one = burst(switch(8, RATE, LATENCY), 1)
    assert one == pytest.approx(MIB / RATE * 1e6, rel=1e-3)
    assert burst(switch(8, RATE, LATENCY), 7) == pytest.approx(7 * one, rel=1e-3)
    mesh = full(8, RATE, LATENCY)
    assert burst(mesh, 7, direct=False) == pytest.approx(7 * burst(mesh, 1, direct=False), rel=1e-3)
    assert burst(mesh, 7) == pytest.approx(burst(mesh, 1), rel=0.01)  # a link from each, and ingress for all


def test_messages_of_one_gpu_to_others_share_its_egress():
    bench = LinkBench(full(8, RATE, LATENCY, egress=2 * RATE))
    for _ in range(64):
        for target in range(1, 8):
            bench.send(0, target, 4 * KIB, 0)
    assert (max(bench.run()) * 1e-15 - LATENCY) == pytest.approx(7 * 64 * 4 * KIB / (2 * RATE), rel=0.01)


def test_through_traffic_waits_where_its_route_meets_another():
    bench = LinkBench(ring(4, RATE, LATENCY))
    bench.send(3, 1, 64 * KIB, 0)
    bench.send(2, 1, 64 * KIB, round(LATENCY * 1e15) - 1)  # just before the other's head comes by
    through, own = bench.run()
    size = 64 * KIB * int(bench.machine.link[0, y.LINK_DMA64]) // 64
    assert own == 2 * round(LATENCY * 1e15) - 1 + size
    assert through == own + size


def test_an_oversubscribed_tree_is_that_much_slower_when_all_send_across_it():
    def across(oversubscription: float) -> float:
        bench = LinkBench(nodes(8, RATE, LATENCY, 4, RATE, LATENCY, oversubscription))
        for _ in range(64):
            for sender in range(4):
                bench.send(sender, sender + 4, 4 * KIB, 0)
        return max(bench.run()) * 1e-15 - LATENCY

    assert across(4) == pytest.approx(4 * across(1), rel=0.02)


def test_a_torus_cannot_be_simulated_by_one_gpu():
    system = System(gpu=gpu(), gpus=16, fabric=torus(16, RATE, LATENCY))
    assert not system.uniform
    with pytest.raises(InputError, match=r"'torus'.*explicit"):
        wiring(system, 1)
