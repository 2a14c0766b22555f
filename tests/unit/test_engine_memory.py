"""DRAM timing, one rule at a time: a command begins at its earliest moment, not before."""

import pytest
from interpreted import PLAIN
from machines import NS, MemoryBench, gpu

from weft.engine import layout as y

LATE = 2000 * NS


def begins(*requests, probe):
    """When `probe` begins, after `requests`; each is (kind, at, bank, row[, bytes])."""
    bench = MemoryBench()
    for request in (*requests, probe):
        bench.request(*request)
    return bench.run()[-1][1]


def assert_earliest(requests, kind, bank, row, earliest):
    """The probe begins at `earliest` if it comes by then, else when it comes."""
    assert begins(*requests, probe=(kind, earliest - 1, bank, row)) == earliest
    assert begins(*requests, probe=(kind, earliest, bank, row)) == earliest
    assert begins(*requests, probe=(kind, earliest + 1, bank, row)) == earliest + 1


@pytest.fixture
def t():
    return MemoryBench()


def first_column(t):
    return t[y.GPU_T_RCD]


def test_a_first_access_waits_for_its_row_to_open(t):
    assert begins(probe=(y.READ, 7, 0, 0)) == 7 + t[y.GPU_T_RCD]


def test_an_idle_read_returns_after_row_column_burst_and_path(t):
    t.request(y.READ, 0, 0, 0)
    returned = t.run()[0][2]
    assert returned == t[y.GPU_T_RCD] + t[y.GPU_T_CL] + t[y.GPU_T_BURST] + t[y.GPU_MEMORY_LATENCY]


def test_a_row_hit_in_the_same_bank_group_waits_for_the_long_column_delay(t):
    assert_earliest([(y.READ, 0, 0, 0)], y.READ, 0, 0, first_column(t) + t[y.GPU_T_LONG])


def test_a_column_in_another_bank_group_waits_for_the_bus_only(t):
    groups = [(y.READ, 0, 0, 0), (y.READ, 0, 1, 0), (y.READ, LATE, 0, 0)]
    assert_earliest(groups, y.READ, 1, 0, LATE + t[y.GPU_T_BURST])


def test_an_update_keeps_its_bank_group_for_the_update_delay(t):
    assert_earliest([(y.UPDATE, 0, 0, 0)], y.UPDATE, 0, 0, first_column(t) + t[y.GPU_T_UPDATE])
    assert t[y.GPU_T_UPDATE] == 2 * t[y.GPU_T_LONG]


def test_an_update_leaves_other_bank_groups_alone(t):
    opened = [(y.UPDATE, 0, 0, 0), (y.UPDATE, 0, 1, 0), (y.UPDATE, LATE, 0, 0)]
    assert_earliest(opened, y.UPDATE, 1, 0, LATE + t[y.GPU_T_BURST])


def test_a_write_waits_for_the_turnaround_after_a_read(t):
    assert_earliest([(y.READ, 0, 0, 0)], y.WRITE, 0, 0, first_column(t) + t[y.GPU_T_READ_TO_WRITE])


def test_a_read_waits_for_the_turnaround_after_a_write(t):
    assert_earliest([(y.WRITE, 0, 0, 0)], y.READ, 0, 0, first_column(t) + t[y.GPU_T_WRITE_TO_READ])


def test_turnaround_concerns_the_whole_channel_not_one_bank(t):
    opened = [(y.READ, 0, 0, 0), (y.READ, 0, 1, 0), (y.READ, LATE, 0, 0)]
    assert_earliest(opened, y.WRITE, 1, 0, LATE + t[y.GPU_T_READ_TO_WRITE])


def test_a_bank_conflict_closes_the_row_opens_the_other_and_keeps_the_row_cycle(t):
    conflict = begins((y.READ, 0, 0, 0), probe=(y.READ, 0, 0, 1))
    closing = max(t[y.GPU_T_RAS], t[y.GPU_T_RCD] + t[y.GPU_T_READ_TO_PRECHARGE])
    assert conflict == max(closing + t[y.GPU_T_RP], t[y.GPU_T_RC]) + t[y.GPU_T_RCD]


def test_a_conflict_after_a_write_waits_for_write_recovery(t):
    late = (y.WRITE, LATE, 0, 0)
    conflict = begins((y.WRITE, 0, 0, 0), late, probe=(y.WRITE, LATE, 0, 1))
    assert conflict == LATE + t[y.GPU_T_WRITE_TO_PRECHARGE] + t[y.GPU_T_RP] + t[y.GPU_T_RCD]


def test_a_long_idle_row_closes_at_once(t):
    assert begins((y.READ, 0, 0, 0), probe=(y.READ, LATE, 0, 1)) == LATE + t[y.GPU_T_RP] + t[y.GPU_T_RCD]


def test_activations_of_different_banks_keep_their_distance(t):
    for request in ((y.READ, 0, 0, 0), (y.READ, 0, 4, 0), (y.READ, 0, 8, 0)):
        t.request(*request)
    starts = [first for _, first, _ in t.run()]
    assert starts == [t[y.GPU_T_RCD] + n * t[y.GPU_T_RRD] for n in range(3)]


def test_long_requests_in_different_bank_groups_interleave_on_the_bus(t):
    for bank in range(4):
        t.request(y.READ, 0, bank, 0)
    for bank in range(4):
        t.request(y.READ, LATE, bank, 0, bytes_=512)
    starts = [first - LATE for _, first, _ in t.run()[4:]]
    burst, gap = t[y.GPU_T_BURST], t[y.GPU_T_LONG]
    assert gap == 2 * burst  # two groups fill the bus
    assert starts == [0, burst, 16 * gap, 16 * gap + burst]


def test_four_long_updates_fill_the_bus(t):
    for bank in range(4):
        t.request(y.READ, 0, bank, 0)
    for bank in (0, 1, 2, 3, 0):
        t.request(y.UPDATE, LATE, bank, 0, bytes_=512)
    starts = [first - LATE for _, first, _ in t.run()[4:]]
    assert starts == [*(n * t[y.GPU_T_BURST] for n in range(4)), 16 * t[y.GPU_T_UPDATE]]


def test_a_long_read_waits_until_updates_leave_it_half_of_the_bus(t):
    for bank in range(4):
        t.request(y.READ, 0, bank, 0)
    for bank in range(3):
        t.request(y.UPDATE, LATE, bank, 0, bytes_=512)
    t.request(y.WRITE, LATE, 3, 0, bytes_=512)
    assert t.run()[-1][1] == LATE + 16 * t[y.GPU_T_UPDATE]


def test_a_long_request_keeps_its_bank_group_for_all_its_bursts(t):
    t.request(y.READ, 0, 0, 0, bytes_=512)
    t.request(y.READ, 0, 0, 0)
    (_, first, _), (_, same, _) = t.run()
    assert same == first + 16 * t[y.GPU_T_LONG]


def test_a_bank_that_can_open_its_row_does_not_wait_for_one_that_cannot(t):
    t.request(y.READ, 0, 0, 0)
    t.request(y.READ, NS, 0, 1)  # its row opens when the row cycle of bank 0 is over
    t.request(y.READ, 2 * NS, 4, 0)
    (_, first, _), (_, conflict, _), (_, other, _) = t.run()
    assert other == first + t[y.GPU_T_RRD]
    assert conflict == first + t[y.GPU_T_RC]


def test_a_request_is_chosen_when_its_columns_can_begin(t):
    t.request(y.READ, 0, 0, 0)
    t.request(y.READ, 0, 0, 1)
    t.request(y.READ, t[y.GPU_T_RC], 4, 0)  # comes while the row of the second opens
    found = t.run()
    assert all(chosen == first for chosen, first, _ in found)


def test_a_row_stays_open_for_a_hit_that_comes_before_its_precharge(t):
    t.request(y.READ, 0, 0, 0)
    t.request(y.READ, NS, 0, 1)
    t.request(y.READ, t[y.GPU_T_RAS] - 1, 0, 0)
    t.request(y.READ, t[y.GPU_T_RAS] + t[y.GPU_T_LONG] + t[y.GPU_T_READ_TO_PRECHARGE], 0, 0)
    (_, _, _), (_, conflict, _), (_, hit, _), (_, miss, _) = t.run()
    assert hit == t[y.GPU_T_RAS] - 1
    assert hit < conflict < miss


def windowed(faw):
    one = {"memory__channels": 1, "memory__bandwidth": "32 GB/s"}
    return MemoryBench(gpu(**one, memory__timing__faw=f"{faw} ns"))


def test_the_fifth_activate_waits_for_the_window_of_four():
    bench = windowed(40)
    for bank in range(6):
        bench.request(y.READ, 0, bank, 0)
    starts = [first - bench[y.GPU_T_RCD] for _, first, _ in bench.run()]
    rrd = bench[y.GPU_T_RRD]
    assert starts == [0, rrd, 2 * rrd, 3 * rrd, 40 * NS, 40 * NS + rrd]


def refreshed(banks):
    one = {"memory__channels": 1, "memory__bandwidth": "32 GB/s"}
    timing = {"memory__timing__refi": "1600 ns", "memory__timing__rfc": "200 ns"}
    return MemoryBench(gpu(**one, **timing, memory__refresh_banks=banks))


def test_a_refresh_of_all_banks_closes_their_rows_and_lets_none_open_until_it_is_over():
    bench = refreshed(16)
    for at, bank in ((0, 0), (1590 * NS, 0), (1600 * NS, 0), (1700 * NS, 5)):
        bench.request(y.READ, at, bank, 0)
    _, before, reopened, other = (first for _, first, _ in bench.run())
    over = 1600 * NS + bench[y.GPU_T_RP] + 200 * NS
    assert before == 1590 * NS
    assert reopened == over + bench[y.GPU_T_RCD]
    assert other == over + bench[y.GPU_T_RRD] + bench[y.GPU_T_RCD]


def test_a_refresh_of_one_bank_leaves_the_others_alone():
    bench = refreshed(1)
    for at, bank in ((0, 0), (0, 1), (100 * NS, 0), (100 * NS, 1)):
        bench.request(y.READ, at, bank, 0)
    _, _, held_up, served = (first for _, first, _ in bench.run())
    assert bench[y.GPU_REFRESH_EVERY] == 100 * NS
    assert served == 100 * NS
    assert held_up == 100 * NS + bench[y.GPU_T_RP] + 200 * NS + bench[y.GPU_T_RCD]


def test_refreshes_that_pass_while_the_channel_is_idle_close_rows_and_are_over():
    bench = refreshed(16)
    bench.request(y.READ, 0, 0, 0)
    bench.request(y.READ, 3000 * NS, 0, 0)
    assert bench.run()[1][1] == 3000 * NS + bench[y.GPU_T_RCD]


def test_a_row_hit_overtakes_an_older_conflict(t):
    t.request(y.READ, 0, 0, 0)
    t.request(y.READ, NS, 0, 1)
    t.request(y.READ, 2 * NS, 0, 0)
    chosen = [chosen for chosen, _, _ in t.run()]
    assert chosen[0] < chosen[2] < chosen[1]


def test_equals_go_in_the_order_of_arrival(t):
    for _ in range(5):
        t.request(y.READ, 0, 0, 0)
    chosen = [chosen for chosen, _, _ in t.run()]
    assert chosen == sorted(chosen)


def test_round_robin_alternates_between_the_streams():
    bench = MemoryBench()
    for stream in (0, 0, 0, 1, 1, 1):
        bench.request(y.READ, 0, 0, 0, stream=stream)
    times = bench.run()
    assert sorted(range(6), key=lambda n: times[n][0]) == [3, 0, 4, 1, 5, 2]


def test_round_robin_gives_streams_with_requests_of_different_size_the_same_bytes():
    bench = MemoryBench()
    for _ in range(64):
        bench.request(y.READ, 0, 0, 0, bytes_=64, stream=0)
    for _ in range(8):
        bench.request(y.READ, 0, 0, 0, bytes_=512, stream=1)
    times = bench.run()
    half = sorted(range(72), key=lambda n: times[n][0])[:36]
    bytes_ = [sum(bench.requests[n][4] for n in half if bench.requests[n][5] == stream) for stream in range(2)]
    assert bytes_[0] == pytest.approx(bytes_[1], abs=512)


def test_compute_first_lets_communication_into_a_queue_below_the_threshold_only():
    from weft.overlaps.arbiters import COMPUTE_FIRST

    bench = MemoryBench()
    threshold = -(-int(bench.machine.flow[0, y.FLOW_THRESHOLD]) // 64)
    bench.request(y.READ, 0, 0, 0, stream=1)
    computes = [bench.request(y.READ, 0, 0, 0, bytes_=64) for _ in range(threshold + 3)]
    times = bench.run(COMPUTE_FIRST)
    assert times[0][0] > times[computes[0]][0]
    assert times[0][0] < times[computes[-1]][0] + threshold * 64 * NS


def test_starving_communication_goes_first():
    from weft.overlaps.arbiters import COMPUTE_FIRST

    bench = MemoryBench()
    limit = bench[y.GPU_STARVATION]
    bench.request(y.READ, 0, 0, 0, stream=1)
    # Compute has asked for more than the channel can give in that time.
    for _ in range(2 * limit // (8 * bench[y.GPU_T_LONG])):
        bench.request(y.READ, 0, 0, 0, bytes_=256)
    times = bench.run(COMPUTE_FIRST)
    assert limit < times[0][0] < limit * 1.2
    assert bench.machine.flow[0, y.FLOW_PAST_LIMIT] == 1


@pytest.mark.parametrize("channels", [1, 4, 32])
def test_the_address_map_gives_every_byte_one_place_and_every_channel_the_same(channels):
    from interpreted import PLAIN
    from machines import bare, gpu

    m = bare(gpu(memory__channels=channels, memory__bandwidth=f"{32 * channels} GB/s"))
    places = set()
    stripes = channels * 4 * 16 * 8
    per_channel = [0] * channels
    for stripe in range(stripes):
        i = PLAIN.new_request(m)
        m.request[i, y.REQ_STREAM] = 0
        PLAIN.enqueue(m, i, 0, stripe * 512, 0)
        bank, row = int(m.request[i, y.REQ_BANK]), int(m.request[i, y.REQ_ROW])
        channel = int(m.request[i, y.REQ_CHANNEL])
        assert bank // 16 == channel
        lane = stripe // channels % 4  # a row holds four stripes of its channel
        assert (bank, row, lane) not in places
        places.add((bank, row, lane))
        per_channel[channel] += 1
    assert len(set(per_channel)) == 1


def stream_order(arrivals):
    """The order in which requests that are entered ahead of their time stand in their stream."""
    m = MemoryBench().machine
    entered = []
    for at in arrivals:
        i = int(PLAIN.new_request(m))
        m.request[i, y.REQ_BYTES], m.request[i, y.REQ_REGION] = 32, y.NONE
        PLAIN.enqueue(m, i, 0, 0, at)
        entered.append(i)
    order, i = [], int(m.channel[0, y.CHAN_COMPUTE_HEAD])
    while i != y.NONE:
        order.append(entered.index(i))
        i = int(m.request[i, y.REQ_NEXT])
    return order


@pytest.mark.parametrize(
    ("arrivals", "order"),
    [((1, 2, 3), [0, 1, 2]), ((3, 1, 2), [1, 2, 0]), ((5, 5, 1), [2, 0, 1]), ((2, 9, 4), [0, 2, 1])],
)
def test_a_stream_is_served_in_the_order_of_arrival_however_early_requests_are_entered(arrivals, order):
    assert stream_order(arrivals) == order
