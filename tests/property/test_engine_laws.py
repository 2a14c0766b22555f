"""Conservation laws over random machines and shapes: every byte once, no peak exceeded, always the same."""

import hashlib

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from machines import BIN, SIMULATED, bare, chiplets, finish, gpu, interpret, layer, program, streams_program
from runs import CollectiveLoop, GemmLoop, Streams, link_bytes
from state import check_drained, moved, now, workgroups

from weft.engine import layout as y
from weft.engine.loop import run
from weft.engine.run import execute
from weft.engine.state import (
    EARLIER_BYTES,
    LINE_BYTES,
    LINE_COMING,
    allocate,
    margin_events,
    margin_requests,
)
from weft.graph import Gemm
from weft.hardware import System
from weft.kernels import GemmTiling
from weft.kernels.channels import ChannelRing, ChannelTiling
from weft.overlaps.arbiters import COMMUNICATION_FIRST, COMPUTE_FIRST, POLICIES, ROUND_ROBIN

laws = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def machines(draw):
    channels = draw(st.sampled_from([2, 4, 8]))
    groups = draw(st.sampled_from([2, 4]))
    return gpu(
        compute__compute_units=draw(st.integers(1, 8)),
        compute__max_workgroups_per_cu=draw(st.integers(1, 4)),
        memory__channels=channels,
        memory__bandwidth=f"{channels * draw(st.sampled_from([8, 32, 64]))} GB/s",
        memory__bank_groups=groups,
        memory__banks=groups * draw(st.integers(1, 4)),
        memory__queue_entries=draw(st.sampled_from([4, 8, 20, 64])),
        memory__latency=f"{draw(st.integers(1, 400))} ns",
        cache__capacity=draw(st.sampled_from(["256 KiB", "1 MiB"])),
        cache__ways=draw(st.sampled_from([1, 4, 16])),
        tracker__sets=draw(st.sampled_from([1, 4, 256])),
        tracker__ways=draw(st.sampled_from([1, 2, 8])),
        dma__engines=draw(st.integers(1, 5)),
        dma__window=draw(st.sampled_from(["512 B", "4 KiB", "32 KiB"])),
        link__bandwidth=f"{draw(st.sampled_from([20, 150, 900]))} GB/s",
        link__latency=f"{draw(st.integers(1, 2000))} ns",
    )


@st.composite
def layers(draw):
    tp = draw(st.integers(2, 4))
    m = draw(st.integers(1, 40)) * 16 * tp
    n = draw(st.integers(2, 12)) * 8 * tp
    k = draw(st.integers(1, 6)) * 16 * tp
    return layer(m, n, k, tp)


TILING = GemmTiling(rows=32, columns=32)
problems = st.tuples(layers(), machines(), st.sampled_from(list(SIMULATED)), st.sampled_from(list(POLICIES)))


def lowered(shared, machine, overlap, explicit=None):
    tiles = TILING.grid(shared["gemm"].op)[0] * TILING.grid(shared["gemm"].op)[1]
    if tiles < shared.ranks:
        shared = layer(32 * shared.ranks, 32 * shared.ranks, shared["gemm"].op.k * shared.ranks, shared.ranks)
    uneven = (tiles % shared.ranks, shared["gemm"].op.m % 32, shared["gemm"].op.n % 32) != (0, 0, 0)
    return program(shared, overlap, machine, explicit=uneven if explicit is None else explicit, tiling=TILING)


def output_bytes(built):
    """The bytes of all output chunks, and those of the first and the last position, over all GPUs."""
    region = built.tables.region[:, [r for r, (name, _) in enumerate(built.regions) if name == "output"], y.REGION_SIZE]
    return int(region.sum()), int(region[:, 0].sum()), int(region[:, -1].sum())


@laws
@given(problems)
def test_every_byte_is_moved_exactly_as_often_as_its_protocol_says(problem):
    shared, machine, overlap, policy = problem
    built = lowered(shared, machine, overlap)
    m = finish(built, POLICIES[policy])
    total, first, last = output_bytes(built)
    bytes_ = moved(built, m)
    gather = total - int(built.tables.region[:, [built.region("output", 0)], y.REGION_SIZE].sum())
    spills = int(built.tables.gpu[0, y.GPU_SPILL_BYTES]) * int((m.flow[:, [y.FLOW_SPILLS, y.FLOW_REFILLS]]).sum())
    assert bytes_["tracker", "read"] + bytes_["tracker", "write"] == spills
    if overlap == "sequential":
        assert bytes_["reduce_scatter", "write"] == total
        assert bytes_["gemm", "write"] == total
        assert bytes_["reduce_scatter", "read"] == 2 * total - first
    elif overlap == "fused-scatter":
        assert bytes_["gemm", "write"] == last
        assert bytes_["reduce_scatter", "write"] == bytes_["reduce_scatter", "read"] == total
    elif overlap == "rs-nmc":
        assert (bytes_["reduce_scatter", "read"], bytes_["reduce_scatter", "update"]) == (
            total - last,
            total - first,
        )
    elif overlap == "t3-direct-dma":
        assert bytes_["gemm", "update"] == total
        assert bytes_["reduce_scatter", "update"] == bytes_["reduce_scatter", "read"] == total - last
    elif overlap == "t3-direct":
        assert bytes_["gemm", "update"] == last
        assert bytes_["reduce_scatter", "update"] == total - last
        assert bytes_["reduce_scatter", "read"] == 0
    else:
        assert bytes_["gemm", "update"] == total - first
        assert bytes_["reduce_scatter", "update"] == total - first
        assert bytes_["reduce_scatter", "read"] == total - first - last
    if overlap != "rs-nmc":
        assert bytes_["all_gather", "read"] == bytes_["all_gather", "write"] == gather
        gemm = shared["gemm"].op
        assert bytes_["gemm", "read"] >= (gemm.m + gemm.n) * gemm.element_bytes * built.tables.shape[y.SIZE_GPUS]


@laws
@given(problems)
def test_nothing_is_left_over_and_every_request_is_served_once(problem):
    shared, machine, overlap, policy = problem
    m = finish(lowered(shared, machine, overlap), POLICIES[policy])
    check_drained(m)
    assert (m.entry == y.NONE).all()
    assert not m.spilled.any()
    assert not m.flow[:, y.FLOW_LIVE_ENTRIES].any()
    tracked = np.take_along_axis(m.region[:, :, y.REGION_TRACKED], m.tile[:, :, y.TILE_REGION], axis=1) > 0
    assert not m.block_left[:, : tracked.shape[1]][tracked].any()


@laws
@given(layers(), machines(), st.sampled_from(["t3", "t3-direct", "t3-direct-dma"]))
def test_every_tracked_tile_gets_exactly_its_updates(shared, machine, overlap):
    built = lowered(shared, machine, overlap)
    m = finish(built)
    updates = m.region[:, :, y.REGION_TRACKED]
    wavefronts = int(m.shape[y.SIZE_WAVEFRONTS])
    for g in range(int(m.shape[y.SIZE_GPUS])):
        tiles = m.tile[g]
        seen = m.seen[g].reshape(-1, wavefronts).sum(axis=1)
        assert np.array_equal(seen, tiles[:, y.TILE_BYTES] * updates[g, tiles[:, y.TILE_REGION]])


@laws
@given(problems)
def test_no_channel_link_or_compute_unit_exceeds_its_peak(problem):
    shared, machine, overlap, policy = problem
    m = finish(lowered(shared, machine, overlap), POLICIES[policy])
    end, width = now(m), int(m.clock[y.CLOCK_BIN])
    assert (m.channel[:, y.CHAN_BUSY] <= end).all()
    assert (m.link_run[:, y.LINK_BUSY] <= end).all()
    assert (m.unit[:, y.UNIT_BUSY] <= end).all()
    assert (m.channel[:, y.CHAN_MAX_QUEUED] <= np.maximum(m.gpu[0, y.GPU_QUEUE_BYTES], 512)).all()
    # A request is written down whole in the bin in which it starts; at its end one may be in progress in each group.
    channels, request = int(m.shape[y.SIZE_CHANNELS]), int(m.shape[y.SIZE_REQUEST])
    groups = int(m.shape[y.SIZE_GROUPS])
    per_bin = width * int(m.shape[y.SIZE_BURST]) // int(m.gpu[0, y.GPU_T_BURST])
    assert m.series.sum(axis=1).max() <= channels * (per_bin + groups * request)
    assert m.link_series.max() <= width * 64 // int(m.link[0, y.LINK_STORE64]) + request
    for events in m.dma_log[:, :, [y.COMMAND_READY, y.COMMAND_START, y.COMMAND_END]].reshape(-1, 3):
        assert list(events) == sorted(events)


@laws
@given(problems)
def test_time_never_runs_back(problem):
    shared, machine, overlap, policy = problem
    tables = lowered(shared, machine, overlap).tables
    m, compiled, times = allocate(tables, BIN), POLICIES[policy].compiled, [0]
    spare = margin_events(tables.shape), margin_requests(tables.shape)
    while run(m, compiled, 61, *spare) == y.RUNNING:
        times.append(now(m))
    assert times == sorted(times)


def digest(machine):
    return hashlib.sha256(b"".join(table.tobytes() for table in machine)).hexdigest()


@laws
@given(problems)
def test_the_same_input_gives_the_same_bytes(problem):
    shared, machine, overlap, policy = problem
    tables = lowered(shared, machine, overlap).tables
    assert digest(finish_tables(tables, policy)) == digest(finish_tables(tables, policy))


def finish_tables(tables, policy):
    status, machine = execute(tables, POLICIES[policy].compiled, BIN)
    assert status == y.FINISHED
    return machine


@laws
@given(layers(), machines(), st.sampled_from(list(SIMULATED)))
def test_mirrored_and_explicit_move_the_same_bytes(shared, machine, overlap):
    even = layer(32 * shared.ranks * 2, 32 * shared.ranks, shared["gemm"].op.k * shared.ranks, shared.ranks)
    both = [lowered(even, machine, overlap, explicit=explicit) for explicit in (False, True)]
    one, all_ = (finish(built).traffic[:, y.SYSTEM_OPERATORS * y.KINDS :] for built in both)
    # How well a cache hits may differ.
    reads = [both[0].cause("gemm", y.READ) - y.SYSTEM_OPERATORS * y.KINDS] if "gemm" in both[0].operators else []
    assert (np.delete(all_, reads, axis=1) == np.delete(one, reads, axis=1)).all()


@pytest.mark.parametrize("policy", [ROUND_ROBIN, COMPUTE_FIRST, COMMUNICATION_FIRST], ids=lambda p: p.name)
@settings(laws, max_examples=3)
@given(machine=machines(), overlap=st.sampled_from(list(SIMULATED)))
def test_compiled_and_interpreted_are_the_same_machine(policy, machine, overlap):
    built = program(layer(m=96, n=96, k=32, tp=2), overlap, machine, explicit=True, tiling=TILING)
    compiled, interpreted = finish(built, policy), interpret(built, policy)
    for name, one, other in zip(compiled._fields, compiled, interpreted, strict=True):
        assert np.array_equal(one, other), name


@laws
@given(machines(), st.integers(2, 4))
def test_a_fused_run_is_never_faster_than_link_and_matrix_units_allow(machine, tp):
    shared = layer(32 * tp * 2, 32 * tp, 64 * tp, tp)
    m = finish(lowered(shared, machine, "t3", explicit=False))
    chunk = shared["all_reduce"].op.bytes // tp
    step = chunk * int(m.link[0, y.LINK_STORE64]) // 64
    assert now(m) >= 2 * (tp - 1) * step
    assert now(m) >= shared["gemm"].op.flops / machine.matrix_rate("fp16", "boost") * 1e15 * 0.999


def test_a_bare_machine_does_nothing():
    m = bare(System(gpu=gpu(), gpus=2).gpu)
    assert run(m, ROUND_ROBIN.compiled, 10, margin_events(m.shape), margin_requests(m.shape)) == y.FINISHED
    assert now(m) == m.clock[y.CLOCK_EVENTS] == 0


# -- several kernels at once, on GPUs of several dies


@st.composite
def die_machines(draw):
    dies = draw(st.sampled_from([1, 2, 4]))
    return chiplets(
        compute__compute_units=draw(st.integers(4, 9)),
        compute__max_workgroups_per_cu=draw(st.integers(1, 4)),
        cache__partitions=dies,
        cache__capacity=f"{dies * draw(st.sampled_from([32, 128]))} KiB",
        memory_cache__capacity=draw(st.sampled_from(["0 B", "256 KiB", "1 MiB"])),
        memory_cache__dirty_at_start=draw(st.sampled_from([0, 1])),
        memory__channels=draw(st.sampled_from([4, 8])),
        memory__queue_entries=draw(st.sampled_from([8, 64])),
        link__latency=f"{draw(st.integers(1, 2000))} ns",
    )


@st.composite
def shared_gpus(draw):
    """A machine, a loop of GEMMs beside a loop of collectives on it, masks and priority, and the size of requests."""
    machine = draw(die_machines())
    units = machine.compute.compute_units
    gemm = Gemm(16 * draw(st.integers(1, 20)), 8 * draw(st.integers(1, 20)), 8 * draw(st.integers(1, 9)), "bf16")
    parts = draw(st.integers(1, min(4, -(-gemm.k // 16))))
    tiling = GemmTiling(rows=32, columns=32, step=16, resident=draw(st.integers(0, 2)), splits=parts)
    ring = ChannelTiling(draw(st.integers(1, 6)), threads=256, in_flight=16384, chunk=65536)
    collective = draw(st.sampled_from(["all_gather", "reduce_scatter", "all_reduce"]))
    masks = [
        draw(st.none() | st.sets(st.integers(0, units - 1), min_size=1).map(lambda mask: tuple(sorted(mask))))
        for _ in range(2)
    ]
    streams = Streams(
        GemmLoop(gemm, tiling, draw(st.integers(1, 2))),
        CollectiveLoop(ChannelRing(collective, draw(st.integers(1, 60)) * 4096, 4, ring), 1),
        draw(st.sampled_from(["gemm", "collective"])),
        draw(st.booleans()),
        *masks,
    )
    return machine, streams, draw(st.sampled_from([512, 4096, 8192]))


def run_shared(problem):
    machine, streams, request = problem
    return finish(streams_program(streams, machine, request))


def kernels_of(m):
    """Of every kernel its row, its workgroups and the dies that its mask leaves it."""
    for k in range(int(m.shape[y.SIZE_KERNELS])):
        dies = np.unique(m.unit[np.flatnonzero(m.unit_mask[0, k]), y.UNIT_PARTITION])
        yield k, workgroups(m, k), dies


@laws
@given(shared_gpus())
def test_every_byte_asked_for_is_served_by_one_level(problem):
    machine, streams, _ = problem
    m = run_shared(problem)
    gemm, count, parts = streams.gemms.gemm, streams.gemms.count, streams.gemms.tiling.splits
    tiles = m.work[0][(m.work[0, :, y.WORK_REGION] >= 0) & (m.work[0, :, y.WORK_SCRIPT] == 0)]  # of all GEMMs
    asked = int((tiles[:, y.WORK_ROWS] + tiles[:, y.WORK_COLUMNS]).sum()) * gemm.k * gemm.element_bytes
    partial = gemm.m * gemm.n * gemm.accumulator_bytes * parts if parts > 1 else 0
    written = gemm.output_bytes + partial
    gemms = slice(int(m.shape[y.SIZE_COMPUTE_CAUSE]), None)  # the only operator that computes
    served, dram = m.served[0, :, gemms], m.traffic[0, gemms]
    reads = served[: y.LEVEL_SIDE_WRITTEN].sum(axis=0) + dram
    assert reads[y.READ] == asked + count * partial
    # What was stored has been written beside the DRAM, or by it, or is still in a die's cache.
    own = int(m.shape[y.SIZE_PARTITIONS] * m.shape[y.SIZE_SETS] * m.shape[y.SIZE_WAYS])
    dirty = m.line[:own, LINE_BYTES].sum()
    if m.shape[y.SIZE_SIDE_SETS] == 0 and count == 1:
        assert dram[y.WRITE] + dirty == written
    elif count == 1:
        # A write finds no place beside the DRAM where all lines of its set await their data: it goes by, to the DRAM.
        assert served[y.LEVEL_SIDE_WRITTEN, y.WRITE] + dirty + dram[y.WRITE] >= written
    assert m.link_series.sum() == link_bytes(streams.collectives.collective, machine)


@laws
@given(shared_gpus())
def test_what_earlier_work_left_is_written_back_once_or_still_there(problem):
    machine, _, _ = problem
    m = run_shared(problem)
    left = machine.memory_cache.capacity * machine.memory_cache.dirty_at_start
    assert m.traffic[0, y.CAUSE_EARLIER] + m.earlier[:, EARLIER_BYTES].sum() == left


@laws
@given(shared_gpus())
def test_masks_and_dies_are_respected(problem):
    m = run_shared(problem)
    for k, groups, dies in kernels_of(m):
        assert m.unit_mask[0, k, groups.unit].all()
        dealt = dies[np.arange(len(groups.unit)) % len(dies)]
        assert np.array_equal(m.unit[groups.unit, y.UNIT_PARTITION], dealt)


@laws
@given(shared_gpus())
def test_no_compute_unit_ever_holds_more_than_it_has(problem):
    m = run_shared(problem)
    needs = {
        "threads": (y.KERNEL_THREADS, y.GPU_THREADS),
        "registers": (y.KERNEL_REGISTERS, y.GPU_REGISTERS),
        "lds": (y.KERNEL_LDS, y.GPU_LDS),
    }
    events = sorted(
        (int(moment), sign, int(unit), k)
        for k, groups, _ in kernels_of(m)
        for moments, sign in ((groups.start, 1), (groups.end, -1))
        for moment, unit in zip(moments, groups.unit, strict=True)
    )
    held = {name: np.zeros(int(m.shape[y.SIZE_CUS]), dtype=np.int64) for name in ("places", *needs)}
    for _, sign, unit, k in events:
        held["places"][unit] += sign
        assert held["places"][unit] <= m.gpu[0, y.GPU_WORKGROUPS]
        for name, (need, have) in needs.items():
            held[name][unit] += sign * m.kernel[0, k, need]
            assert held[name][unit] <= m.gpu[0, have], name


@laws
@given(shared_gpus())
def test_streams_leave_nothing_behind_and_repeat_to_the_bit(problem):
    m = run_shared(problem)
    check_drained(m)
    assert (m.held < y.NEVER).all()
    assert not m.line[:, LINE_COMING].any()
    assert digest(m) == digest(run_shared(problem))


@settings(laws, max_examples=4)
@given(shared_gpus())
def test_compiled_and_interpreted_dies_are_the_same_machine(problem):
    machine, streams, request = problem
    built = streams_program(streams, machine, request)
    compiled, interpreted = finish(built), interpret(built)
    for name, one, other in zip(compiled._fields, compiled, interpreted, strict=True):
        assert np.array_equal(one, other), name
