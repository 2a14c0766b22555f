"""A DRAM channel beside DRAMsim3 and Ramulator 2: what both reach on streams that are made here in the same way.

Published: umd-memsys/DRAMsim3 @2981759 (one queue of 128 bursts) and CMU-SAFARI/ramulator2 @c5b1c3a (queues of 128
bursts for reads and for writes), both at 1 GHz with the delays of `peers_channel`, requests as bursts of 32 B.
"""

import numpy as np
import pytest

from weft.lab.streams import FINEST, Stream, peers_channel
from weft.simulate.channel import Requests, replay_requests

NS = 10**6
PEAK = 32e9
COUNT = 20_000
WRITES = (1 << 27) + 20 * 1024
RANDOM = np.random.default_rng(7)


def stream(size, address, *, load=None, kind=0):
    """Requests of one size, as fast as the channel takes them or at random times that offer a share of its peak."""
    gaps = np.zeros(COUNT) if load is None else RANDOM.exponential(size / (load * PEAK) * 1e15, COUNT)
    at = (np.cumsum(gaps) // NS * NS).astype(np.int64)
    kind = np.broadcast_to(np.asarray(kind, dtype=np.int64), COUNT)
    zero = np.zeros(COUNT, dtype=np.int64)
    return Stream("made", Requests(at, kind, zero, np.asarray(address, dtype=np.int64), zero + size), {})


def sequential(size=512):
    return stream(size, np.arange(COUNT) * size)


def random(size=64, load=None):
    return stream(size, RANDOM.integers(0, (1 << 30) // size, COUNT) * size, load=load)


def alternating(size):
    """A sequential read and a sequential write of another place in turn."""
    turn = np.arange(COUNT) % 2
    return stream(size, turn * WRITES + np.arange(COUNT) // 2 * size, kind=turn)


def figures(made, piece=FINEST, **changes):
    """Share of the peak, and mean read latency [ns]."""
    timing = {f"memory.timing.{name}": value for name, value in changes.items()}
    refresh = {"memory.refresh_banks": 16} if "rfc" in changes else {}
    bandwidth, latency = made.figures(made.simulated(peers_channel().replace({**timing, **refresh}), piece))
    return bandwidth / PEAK, latency * 1e9


BANDWIDTHS = {
    "sequential reads": (sequential(), 0.999, 1.000),
    "random reads of 64 B": (random(64), 0.654, 0.654),
    "random reads of 32 B": (random(32), 0.330, 0.330),
    "reads and writes of 64 B in turn": (alternating(64), 0.850, 0.850),
}


@pytest.mark.parametrize("piece", [FINEST, 512])
@pytest.mark.parametrize("name", BANDWIDTHS)
def test_a_saturated_channel_reaches_the_bandwidth_of_both_simulators(name, piece):
    made, *theirs = BANDWIDTHS[name]
    reached, _ = figures(made, piece)
    for peer in theirs:
        assert reached == pytest.approx(peer, rel=0.02)


@pytest.mark.parametrize("piece", [FINEST, 512])
def test_long_reads_and_writes_in_turn_lie_between_the_simulators(piece):
    """DRAMsim3 reaches 0.825; Ramulator 2 gathers writes in a buffer of their own and reaches 0.847."""
    reached, _ = figures(alternating(512), piece)
    assert 0.98 * 0.825 < reached < 1.02 * 0.847


@pytest.mark.parametrize(("load", "theirs"), [(0.1, (43.2, 42.1)), (0.3, (53.8, 52.6)), (0.6, (122, 120))])
@pytest.mark.parametrize("piece", [FINEST, 512])
def test_random_reads_wait_as_long_as_in_both_simulators(load, theirs, piece):
    _, latency = figures(random(load=load), piece)
    for peer in theirs:
        assert latency == pytest.approx(peer, rel=0.1)


@pytest.mark.parametrize(
    ("made", "theirs"),
    [(sequential(), (0.923, 0.926)), (random(64), (0.605, 0.606)), (alternating(64), (0.791, 0.787))],
    ids=["sequential reads", "random reads of 64 B", "reads and writes of 64 B in turn"],
)
def test_refreshes_of_all_banks_cost_the_same_bandwidth(made, theirs):
    reached, _ = figures(made, refi="3900 ns", rfc="260 ns")
    for peer in theirs:
        assert reached == pytest.approx(peer, rel=0.02)


def test_a_window_of_four_activates_costs_random_reads_the_same_bandwidth():
    reached, _ = figures(random(64), faw="16 ns")
    assert reached == pytest.approx(0.499, rel=0.02)


def test_replayed_requests_keep_the_order_of_their_arrival_in_the_answer():
    requests = random(load=0.1).requests
    done = replay_requests(requests, peers_channel())
    assert (done > requests.at).all()
