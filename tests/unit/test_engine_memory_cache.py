"""The memory-side cache, request by request."""

import pytest
from interpreted import PLAIN
from machines import GATHER_WRITE, GEMM_READ, NS, bare, chiplets, steps

from weft import hardware
from weft.engine import layout as y
from weft.engine.state import EARLIER_ADDRESS, EARLIER_BYTES, LINE_BYTES, SECTORS

LINE = 512
GEMM, REMOTE = GEMM_READ, GATHER_WRITE


class Bench:
    """A memory-side cache of two ways and four sets above one channel, and requests of the test's choosing."""

    def __init__(self, **changes):
        changes = {"memory_cache__capacity": "4 KiB", "memory_cache__ways": 2, **changes}
        self.m = bare(chiplets(memory__channels=1, memory__bandwidth="20 GB/s", cache__partitions=1, **changes))

    @property
    def same_set(self):
        """Addresses whose lines share a set."""
        lines = [a * LINE for a in range(64)]
        return [a for a in lines if PLAIN._line_of(self.m, 0, a) == PLAIN._line_of(self.m, 0, 0)]

    def ask(self, kind, address, at=0, bytes_=LINE, cause=GEMM):
        m = self.m
        i = int(PLAIN.new_request(m))
        r = m.request[i]
        r[[y.REQ_KIND, y.REQ_BYTES, y.REQ_CAUSE, y.REQ_STREAM]] = (
            kind,
            bytes_,
            cause,
            int(cause == REMOTE),
        )
        r[[y.REQ_OWNER_KIND, y.REQ_OWNER, y.REQ_REGION]] = y.OWNER_NOBODY, y.NONE, y.NONE
        PLAIN.reach(m, i, 0, address, at)
        return i

    def run(self):
        """Let all that was asked be served; when each read came back."""
        return {index: time for time, kind, index in steps(self.m) if kind == y.EV_READ_DONE}

    def count(self, what):
        return int(self.m.flow[0, what])

    def dram(self, cause=GEMM):
        return int(self.m.traffic[0, cause])


@pytest.fixture
def bench():
    return Bench()


def test_a_second_read_of_a_line_asks_no_dram(bench):
    bench.ask(y.READ, 0)
    bench.run()
    second = bench.ask(y.READ, 0, at=10_000 * NS)
    came = bench.run()
    assert came[second] == 10_000 * NS + int(bench.m.gpu[0, y.GPU_SIDE_LATENCY])
    assert bench.dram() == LINE
    assert (bench.count(y.FLOW_SIDE_MISSES), bench.count(y.FLOW_SIDE_HITS)) == (1, 1)


def test_reads_of_a_line_on_its_way_come_back_with_it(bench):
    first, second = bench.ask(y.READ, 0), bench.ask(y.READ, 0)
    came = bench.run()
    assert came[first] == came[second]
    assert bench.dram() == LINE
    assert bench.count(y.FLOW_SIDE_MERGES) == 1


def test_what_was_written_is_read_without_the_dram_ever_being_asked(bench):
    bench.ask(y.WRITE, 0, cause=REMOTE)
    bench.ask(y.READ, 0, at=1000 * NS)
    bench.run()
    assert not bench.m.traffic.any()
    assert bench.m.served[0, y.LEVEL_SIDE_WRITTEN, REMOTE] == LINE
    assert bench.m.served[0, y.LEVEL_SIDE_HIT, GEMM] == LINE


def test_a_dirty_victim_goes_to_the_dram_under_its_own_cause(bench):
    first, second, third = bench.same_set[:3]
    bench.ask(y.WRITE, first, cause=REMOTE)
    for address in (second, third):
        bench.run()
        bench.ask(y.READ, address, at=100_000 * NS)
    bench.run()
    assert (bench.dram(REMOTE), bench.dram()) == (LINE, 2 * LINE)
    assert bench.count(y.FLOW_SIDE_WRITEBACKS) == 1


def test_the_least_recently_used_line_goes(bench):
    first, second, third = bench.same_set[:3]
    for address in (first, second, first, third):
        bench.ask(y.READ, address, at=int(bench.m.clock[y.CLOCK_NOW]))
        bench.run()
    bench.ask(y.READ, first, at=int(bench.m.clock[y.CLOCK_NOW]))
    assert bench.count(y.FLOW_SIDE_HITS) == 2
    bench.ask(y.READ, second, at=int(bench.m.clock[y.CLOCK_NOW]))
    assert bench.count(y.FLOW_SIDE_MISSES) == 4


def test_a_set_of_lines_on_their_way_is_passed_by(bench):
    for address in bench.same_set[:3]:
        bench.ask(y.READ, address)
    assert (bench.m.held > 0).sum() == 2
    assert len(bench.run()) == 3


def test_requests_share_the_bandwidth_of_their_slice(bench):
    bench.ask(y.READ, 0)
    bench.run()
    bench.m.clock[y.CLOCK_NOW] = at = 100_000 * NS
    asked = [bench.ask(y.READ, 0, at=at) for _ in range(3)]
    came = bench.run()
    one = LINE * int(bench.m.gpu[0, y.GPU_SIDE64]) // 64
    latency = int(bench.m.gpu[0, y.GPU_SIDE_LATENCY])
    assert [came[i] - at - latency for i in asked] == [0, one, 2 * one]


def test_an_update_happens_at_the_banks_and_the_line_is_forgotten(bench):
    bench.ask(y.WRITE, 0, cause=REMOTE)
    bench.ask(y.UPDATE, 0, at=1000 * NS, cause=REMOTE)
    bench.ask(y.READ, 0, at=2000 * NS)
    bench.run()
    assert bench.dram(REMOTE) == 2 * LINE  # what was dirty, then the update
    assert bench.dram() == LINE
    assert not (bench.m.line[:, LINE_BYTES] > 0).any()


def test_a_half_of_a_line_says_nothing_about_the_other(bench):
    bench.ask(y.READ, 0, bytes_=LINE // 2)
    bench.run()
    bench.ask(y.READ, LINE // 2, at=100_000 * NS, bytes_=LINE // 2)
    bench.ask(y.READ, 0, at=100_000 * NS, bytes_=LINE // 2)
    bench.run()
    assert (bench.count(y.FLOW_SIDE_MISSES), bench.count(y.FLOW_SIDE_HITS)) == (2, 1)
    assert bench.dram() == LINE


@pytest.mark.parametrize(("offset", "bytes_", "sectors"), [(0, 512, SECTORS), (0, 1, 1), (511, 1, 1), (15, 2, 2)])
def test_a_request_touches_the_sectors_that_it_overlaps(bench, offset, bytes_, sectors):
    assert PLAIN.sectors(bench.m, 7 * LINE + offset, bytes_).bit_count() == sectors


def test_a_gpu_without_one_goes_straight_to_the_dram():
    straight = Bench(memory_cache__capacity="0 B")
    for at in (0, 100_000 * NS):
        straight.ask(y.READ, 0, at=at)
        straight.run()
    assert straight.dram() == 2 * LINE
    assert not straight.m.served.any()


def begun(share, **changes):
    """A bench whose cache begins with earlier work's lines, that share of them dirty."""
    bench = Bench(memory_cache__dirty_at_start=share, **changes)
    PLAIN.begin_used(bench.m)
    return bench


@pytest.mark.parametrize("share", [0, 0.25, 0.5, 1])
def test_a_run_pays_for_the_dirty_lines_it_pushes_out(share):
    """As many new lines as the cache holds push out everything that earlier work left."""
    bench = begun(share)
    for n in range(4096 // LINE):
        bench.ask(y.WRITE, n * LINE, at=n * 1000 * NS, cause=REMOTE)
    bench.run()
    assert bench.dram(y.CAUSE_EARLIER) == pytest.approx(share * 4096, abs=LINE)
    assert bench.dram(REMOTE) == 0  # the next work pays for these
    assert (bench.m.line[:, LINE_BYTES] > 0).sum() == 4096 // LINE


def test_a_line_of_the_run_is_written_back_once_whatever_was_there_before():
    bench = begun(1)
    for n in range(2 * 4096 // LINE):
        bench.ask(y.WRITE, n * LINE, at=n * 1000 * NS, cause=REMOTE)
    bench.run()
    assert (bench.dram(y.CAUSE_EARLIER), bench.dram(REMOTE)) == (4096, 4096)


def test_half_of_a_line_pushes_out_half_of_what_was_there():
    bench = begun(1)
    bench.ask(y.READ, 0, bytes_=LINE // 2)
    bench.run()
    assert bench.dram(y.CAUSE_EARLIER) == LINE // 2
    bench.ask(y.WRITE, LINE // 2, at=10_000 * NS, bytes_=LINE // 2, cause=REMOTE)
    bench.ask(y.WRITE, LINE // 2, at=20_000 * NS, bytes_=LINE // 2, cause=REMOTE)
    bench.run()
    assert bench.dram(y.CAUSE_EARLIER) == LINE


def test_a_read_does_not_wait_for_what_it_pushes_out():
    clean, used = Bench(), begun(1)
    alone, beside = (bench.run()[first] for bench, first in ((b, b.ask(y.READ, 0)) for b in (clean, used)))
    assert beside == alone


@pytest.mark.parametrize("cause", [GEMM, REMOTE])
def test_earlier_work_leaves_in_the_stream_of_who_needs_its_place(cause):
    bench = begun(1)
    bench.ask(y.WRITE, 0, cause=cause)
    head = y.CHAN_COMPUTE_HEAD if cause == GEMM else y.CHAN_COMMUNICATION_HEAD
    gone = bench.m.request[bench.m.channel[0, head]]
    assert (gone[y.REQ_KIND], gone[y.REQ_CAUSE], gone[y.REQ_BYTES]) == (y.WRITE, y.CAUSE_EARLIER, LINE)


@pytest.mark.parametrize("capacity", ["1 MiB", "768 KiB"])
def test_dirty_lines_of_earlier_work_lie_evenly_over_channels_and_ways(capacity):
    m = bare(chiplets(memory_cache__capacity=capacity, memory_cache__dirty_at_start=0.5))
    PLAIN.begin_used(m)
    channels, sets, ways = (int(m.shape[s]) for s in (y.SIZE_CHANNELS, y.SIZE_SIDE_SETS, y.SIZE_SIDE_WAYS))
    dirty = m.earlier[:, EARLIER_BYTES].reshape(channels, sets, ways) > 0
    for axes in ((1, 2), (0, 1)):
        assert dirty.mean(axis=axes) == pytest.approx(0.5, abs=0.1)


def test_lines_of_earlier_work_go_back_to_the_channel_whose_cache_held_them():
    m = bare(chiplets(memory_cache__dirty_at_start=1))
    PLAIN.begin_used(m)
    held = m.earlier[:, EARLIER_ADDRESS].reshape(int(m.shape[y.SIZE_CHANNELS]), -1)
    for channel, addresses in enumerate(held):
        assert {int(PLAIN.channel_of(m, int(address))) for address in addresses} == {channel}
    assert len(set(held.ravel())) == held.size


def load_latency(m, address, at):
    """How long a load of a line takes [ns]."""
    m.slot[0, y.SLOT_PENDING], m.slot[0, y.SLOT_TIME] = 0, at
    PLAIN.load(m, 0, 0, address, 64, GEMM, y.COMPUTE_STREAM, 1, at, 0)
    if m.slot[0, y.SLOT_PENDING] == 0:
        return (int(m.slot[0, y.SLOT_TIME]) - at) / NS
    for time, kind, _ in steps(m):
        if kind == y.EV_READ_DONE:
            back = (time + int(m.gpu[0, y.GPU_CACHE_BACK]) - at) / NS
        if kind == y.EV_SLOT:
            m.clock[y.CLOCK_HEAP] = 0
    return back


def test_a_load_takes_as_long_as_the_catalogue_says_at_every_level():
    """Measured on MI300X: 85 ns in the die's cache, about 240 in the Infinity Cache, 353 from HBM."""
    m = bare(hardware.gpu("mi300x").replace({"memory_cache.capacity": "16 MiB"}))
    m.resident[0, y.WG_KERNEL] = y.NONE
    first = load_latency(m, 0, 0)
    again = load_latency(m, 0, 10_000 * NS)
    m.tag[: int(m.shape[y.SIZE_PARTITIONS] * m.shape[y.SIZE_SETS] * m.shape[y.SIZE_WAYS])] = (
        y.NONE
    )  # the dies' caches only
    beside = load_latency(m, 0, 20_000 * NS)
    assert first == pytest.approx(353, abs=4)  # two bursts of one bank group
    assert again == pytest.approx(85, abs=0.1)
    assert beside == pytest.approx(240, abs=0.1)


def fabric(**changes):
    return Bench(package__bandwidth="10 GB/s", package__exchange_efficiency=0.25, **changes)


def test_requests_of_both_streams_wait_for_each_other_in_the_fabric_in_front_of_the_cache():
    """512 B take 51.2 ns at 10 GB/s; those of communication reach a quarter of it, and hits do not shorten it."""
    bench = fabric()
    for address in (0, LINE):
        bench.ask(y.READ, address)
        bench.run()
    start = int(bench.m.clock[y.CLOCK_NOW]) + 100_000 * NS
    bench.m.clock[y.CLOCK_NOW] = start
    bench.ask(y.READ, 0, at=start, cause=REMOTE)
    behind = bench.ask(y.READ, LINE, at=start)
    came = bench.run()
    assert came[behind] - start - int(bench.m.gpu[0, y.GPU_SIDE_LATENCY]) == pytest.approx(4 * 51.2 * NS, rel=1e-3)
    assert bench.m.request[behind, y.REQ_FROM] == y.FROM_FABRIC


def test_without_a_fabric_only_the_slices_of_the_cache_are_shared():
    bench = Bench(package__bandwidth="0 B/s")
    assert bench.m.gpu[0, y.GPU_FABRIC64] == 0
    bench.ask(y.READ, 0)
    bench.run()
    start = int(bench.m.clock[y.CLOCK_NOW]) + 100_000 * NS
    bench.m.clock[y.CLOCK_NOW] = start
    bench.ask(y.READ, 0, at=start, cause=REMOTE)
    behind = bench.ask(y.READ, 0, at=start)
    came = bench.run()
    slice_ = int(bench.m.gpu[0, y.GPU_SIDE64]) * LINE // 64
    assert came[behind] == start + slice_ + int(bench.m.gpu[0, y.GPU_SIDE_LATENCY])
    assert bench.m.request[behind, y.REQ_FROM] == y.FROM_SIDE
