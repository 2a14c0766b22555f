"""The last-level cache, access by access."""

import pytest
from interpreted import PLAIN
from machines import GEMM_READ, GEMM_UPDATE, GEMM_WRITE, NS, bare, gpu

from weft.engine import layout as y
from weft.engine.state import LINE_BYTES, LINE_COMING, LINE_HERE, WAITER_NEXT

LINE = 512


class CacheBench:
    """A small cache (two ways, 16 sets) above one channel; loads and stores of one slot."""

    def __init__(self):
        small = gpu(memory__channels=1, memory__bandwidth="32 GB/s", cache__capacity="16 KiB", cache__ways=2)
        self.m = bare(small)
        self.same_set = [a * LINE for a in range(4096) if PLAIN._find(self.m, 0, 0, a) == PLAIN._find(self.m, 0, 0, 0)]

    def load(self, address, at=0, cached=1, bytes_=LINE):
        self.m.slot[0, y.SLOT_TIME] = at
        PLAIN.load(self.m, 0, 0, address, bytes_, GEMM_READ, y.COMPUTE_STREAM, cached, at, 0)

    def store(self, address, at=0, bytes_=LINE):
        PLAIN.store(self.m, 0, 0, address, bytes_, GEMM_WRITE, at, 0)

    def fill(self):
        """Let every line that is on its way arrive."""
        self.m.held[:] = 0
        self.m.line[:, LINE_HERE] |= self.m.line[:, LINE_COMING]
        self.m.line[:, LINE_COMING] = 0
        self.m.slot[0, y.SLOT_PENDING] = 0

    def count(self, what):
        return int(self.m.flow[0, what])

    def waiting(self):
        """Requests to memory so far: (kind, cause, bytes, address)."""
        found, i = [], int(self.m.channel[0, y.CHAN_COMPUTE_HEAD])
        while i != y.NONE:
            r = self.m.request[i]
            found.append(tuple(int(r[c]) for c in (y.REQ_KIND, y.REQ_CAUSE, y.REQ_BYTES, y.REQ_ADDRESS)))
            i = int(r[y.REQ_NEXT])
        return found


@pytest.fixture
def cache():
    return CacheBench()


def test_a_miss_asks_memory_once_and_later_a_hit_asks_nothing(cache):
    cache.load(0)
    assert cache.waiting() == [(y.READ, GEMM_READ, LINE, 0)]
    cache.fill()
    cache.load(0, at=1000 * NS)
    assert len(cache.waiting()) == 1
    assert (cache.count(y.FLOW_MISSES), cache.count(y.FLOW_HITS)) == (1, 1)


def test_a_hit_takes_the_way_there_and_back(cache):
    cache.load(0)
    cache.fill()
    cache.load(0, at=1000 * NS)
    latency = int(cache.m.gpu[0, y.GPU_CACHE_OUT] + cache.m.gpu[0, y.GPU_CACHE_BACK])
    assert cache.m.slot[0, y.SLOT_TIME] == 1000 * NS + latency
    assert latency == 143 * NS


def test_hits_share_the_bandwidth_of_their_slice(cache):
    cache.load(0)
    cache.fill()
    for _ in range(3):
        cache.load(0, at=1000 * NS)
    one = LINE * int(cache.m.gpu[0, y.GPU_SLICE64]) // 64
    assert cache.m.slot[0, y.SLOT_TIME] == 1000 * NS + 143 * NS + 2 * one


def test_misses_to_a_line_in_flight_merge(cache):
    for _ in range(3):
        cache.load(0)
    assert len(cache.waiting()) == 1
    assert (cache.count(y.FLOW_MISSES), cache.count(y.FLOW_MERGES)) == (1, 2)
    assert cache.m.slot[0, y.SLOT_PENDING] == 3


def test_the_least_recently_used_line_of_a_set_goes(cache):
    first, second, third = cache.same_set[:3]
    for address in (first, second):
        cache.load(address)
        cache.fill()
    cache.load(first)  # now `second` is the older one
    cache.load(third)
    cache.fill()
    cache.load(first)
    assert cache.count(y.FLOW_MISSES) == 3
    cache.load(second)
    assert cache.count(y.FLOW_MISSES) == 4


def test_a_line_in_flight_is_never_the_victim_and_a_full_set_is_passed_by(cache):
    first, second, third = cache.same_set[:3]
    for address in (first, second, third):
        cache.load(address)
    assert [request[3] for request in cache.waiting()] == [first, second, third]
    assert set(cache.m.tag[cache.m.tag != y.NONE]) == {first // LINE, second // LINE}
    assert cache.m.slot[0, y.SLOT_PENDING] == 3


def test_a_store_allocates_without_a_fetch_and_a_dirty_victim_is_written_back(cache):
    first, second, third = cache.same_set[:3]
    cache.store(first)
    assert cache.waiting() == []
    cache.load(second)
    cache.fill()
    cache.load(third)
    assert (y.WRITE, GEMM_WRITE, LINE, first) in cache.waiting()
    assert cache.count(y.FLOW_WRITEBACKS) == 1


def test_a_clean_victim_is_dropped_silently(cache):
    for address in cache.same_set[:3]:
        cache.load(address)
        cache.fill()
    assert cache.count(y.FLOW_WRITEBACKS) == 0
    assert all(kind == y.READ for kind, *_ in cache.waiting())


def test_a_load_finds_what_was_stored(cache):
    cache.store(0)
    cache.load(0)
    assert cache.waiting() == []
    assert cache.count(y.FLOW_HITS) == 1


def test_parts_of_a_line_are_written_back_together(cache):
    cache.store(0, bytes_=128)
    cache.store(128, bytes_=128)
    line = int((cache.m.line[:, LINE_BYTES] > 0).argmax())
    assert cache.m.line[line, LINE_BYTES] == 256


def test_an_uncached_load_goes_past_the_cache(cache):
    for _ in range(2):
        cache.load(0, cached=0)
    assert len(cache.waiting()) == 2
    assert (cache.m.tag == y.NONE).all()
    assert cache.count(y.FLOW_MISSES) == 0


def test_a_bypassing_store_leaves_the_cache_alone(cache):
    PLAIN.write_through(cache.m, 0, 0, LINE, y.UPDATE, GEMM_UPDATE, y.COMPUTE_STREAM, 0, 0, y.NONE, y.NONE, y.NONE)
    assert cache.waiting() == [(y.UPDATE, GEMM_UPDATE, LINE, 0)]
    assert (cache.m.tag == y.NONE).all()
    assert cache.m.slot[0, y.SLOT_PENDING] == 1


def test_release_writes_dirty_lines_back_once_and_forgets_all(cache):
    cache.store(0)
    cache.store(LINE)
    cache.load(4 * LINE)
    cache.fill()
    assert PLAIN.release(cache.m, 0, 0, 0) == 2
    assert sorted(request[3] for request in cache.waiting() if request[0] == y.WRITE) == [0, LINE]
    assert (cache.m.tag == y.NONE).all()
    assert PLAIN.release(cache.m, 0, 0, 0) == 0


def test_a_half_of_a_line_says_nothing_about_the_other(cache):
    cache.load(0, bytes_=LINE // 2)
    cache.fill()
    cache.load(LINE // 2, bytes_=LINE // 2)
    cache.load(0, bytes_=LINE // 2)
    assert [request[2] for request in cache.waiting()] == [LINE // 2, LINE // 2]
    assert (cache.count(y.FLOW_MISSES), cache.count(y.FLOW_HITS)) == (2, 1)


def test_a_load_waits_only_for_the_sectors_that_it_asked_for(cache):
    for half in (0, LINE // 2):
        cache.load(half, bytes_=LINE // 2)
    requests = [i for i in range(8) if cache.m.request[i, y.REQ_OWNER_KIND] == y.OWNER_LINE][:2]
    line = int(cache.m.request[requests[0], y.REQ_OWNER])
    node, satisfied = PLAIN.filled(cache.m, requests[0], 0, 0), []
    while node != y.NONE:
        following = int(cache.m.waiter[node, WAITER_NEXT])
        satisfied.append(PLAIN.complete_from(cache.m, line, node) < y.NEVER)
        node = following
    assert sorted(satisfied) == [False, True]
    assert cache.m.held[line] == y.NEVER + 1


def test_a_line_of_which_a_part_is_on_its_way_is_never_the_victim(cache):
    first, second, third = cache.same_set[:3]
    cache.load(first, bytes_=LINE // 2)
    cache.load(first + LINE // 2, bytes_=LINE // 2)
    cache.load(second)
    line = int((cache.m.tag == first // LINE).argmax())
    PLAIN.filled(cache.m, next(i for i in range(8) if cache.m.request[i, y.REQ_ADDRESS] == first), 0, 0)
    cache.load(third)
    assert cache.m.tag[line] == first // LINE


def test_bytes_by_level_follow_hits_and_merged_misses(cache):
    for _ in range(2):
        cache.load(0)
    cache.fill()
    cache.load(0)
    served = cache.m.served[0, :, GEMM_READ]
    assert (served[y.LEVEL_HIT], served[y.LEVEL_MERGED]) == (LINE, LINE)
