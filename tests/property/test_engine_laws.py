"""Conservation laws over random machines and shapes: every byte once, no peak exceeded, always the same."""

import hashlib

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from machines import BIN, SIMULATED, bare, finish, gpu, interpret, layer, program

from weft.engine import layout as y
from weft.engine.loop import run
from weft.engine.run import execute
from weft.engine.state import allocate, margin_events, margin_requests
from weft.hardware import System
from weft.kernels import GemmTiling
from weft.overlap import COMMUNICATION_FIRST, COMPUTE_FIRST, POLICIES, ROUND_ROBIN

laws = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])


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
    tiles = TILING.grid(shared.gemm)[0] * TILING.grid(shared.gemm)[1]
    if tiles < shared.tp:
        shared = layer(32 * shared.tp, 32 * shared.tp, shared.gemm.k * shared.tp, shared.tp)
    uneven = (tiles % shared.tp, shared.gemm.m % 32, shared.gemm.n % 32) != (0, 0, 0)
    return program(shared, overlap, machine, explicit=uneven if explicit is None else explicit, tiling=TILING)


def output_bytes(built):
    """The bytes of all output chunks, and those of the first and the last position, over all GPUs."""
    region = built.tables.region[
        :, [r for r, (name, _) in enumerate(built.regions) if name == "output"], y.M_SIZE
    ]
    return int(region.sum()), int(region[:, 0].sum()), int(region[:, -1].sum())


@laws
@given(problems)
def test_every_byte_is_moved_exactly_as_often_as_its_protocol_says(problem):
    shared, machine, overlap, policy = problem
    built = lowered(shared, machine, overlap)
    m = finish(built, POLICIES[policy])
    total, first, last = output_bytes(built)
    moved = dict(zip(y.CAUSE_NAMES, m.traffic.sum(axis=0).tolist(), strict=True))
    gather = total - int(built.tables.region[:, [built.region("output", 0)], y.M_SIZE].sum())
    spills = int(built.tables.gpu[0, y.G_SPILL_BYTES]) * int((m.flow[:, [y.F_SPILLS, y.F_REFILLS]]).sum())
    assert moved["tracker_spill"] == spills
    if overlap == "sequential":
        assert moved["rs_write"] == total
        assert moved["gemm_write"] == total
        assert moved["rs_read"] == 2 * total - first
    elif overlap == "fused-scatter":
        assert moved["gemm_write"] == last
        assert moved["rs_write"] == moved["rs_read"] == total
    elif overlap == "rs-nmc":
        assert (moved["rs_read"], moved["rs_update"]) == (total - last, total - first)
    else:
        assert moved["gemm_write"] == total - first
        assert moved["rs_update"] == total - first
        assert moved["rs_read"] == total - first - last
    if overlap != "rs-nmc":
        assert moved["ag_read"] == moved["ag_write"] == gather
        gemm = shared.gemm
        assert moved["gemm_read"] >= (gemm.m + gemm.n) * gemm.element_bytes * built.tables.shape[y.S_GPUS]


@laws
@given(problems)
def test_nothing_is_left_over_and_every_request_is_served_once(problem):
    shared, machine, overlap, policy = problem
    m = finish(lowered(shared, machine, overlap), POLICIES[policy])
    assert m.clock[y.C_LIVE_REQUESTS] == m.clock[y.C_LIVE_WAITERS] == m.clock[y.C_HEAP] == 0
    assert not m.channel[:, [y.H_COUNT0, y.H_COUNT1, y.H_QUEUED, y.H_QUEUED_BYTES]].any()
    assert not m.link[:, y.L_COUNT].any()
    assert (m.resident[:, y.W_KERNEL] == y.NONE).all()
    assert (m.entry == y.NONE).all()
    assert not m.spilled.any()
    assert not m.flow[:, y.F_LIVE_ENTRIES].any()
    tracked = np.take_along_axis(m.region[:, :, y.M_TRACKED], m.tile[:, :, y.TI_REGION], axis=1) > 0
    assert not m.block_left[:, : tracked.shape[1]][tracked].any()


@laws
@given(layers(), machines())
def test_every_tracked_tile_gets_exactly_its_updates(shared, machine):
    built = lowered(shared, machine, "t3")
    m = finish(built)
    updates = m.region[:, :, y.M_TRACKED]
    wavefronts = int(m.shape[y.S_WAVEFRONTS])
    for g in range(int(m.shape[y.S_GPUS])):
        tiles = m.tile[g]
        seen = m.seen[g].reshape(-1, wavefronts).sum(axis=1)
        assert np.array_equal(seen, tiles[:, y.TI_BYTES] * updates[g, tiles[:, y.TI_REGION]])


@laws
@given(problems)
def test_no_channel_link_or_compute_unit_exceeds_its_peak(problem):
    shared, machine, overlap, policy = problem
    m = finish(lowered(shared, machine, overlap), POLICIES[policy])
    now, width = int(m.clock[y.C_NOW]), int(m.clock[y.C_BIN])
    assert (m.channel[:, y.H_BUSY] <= now).all()
    assert (m.link[:, y.L_BUSY] <= now).all()
    assert (m.unit[:, y.U_BUSY] <= now).all()
    assert (m.channel[:, y.H_MAX_QUEUED] <= np.maximum(m.gpu[0, y.G_QUEUE_BYTES], 512)).all()
    # A request is written down whole in the bin in which it starts.
    channels, request = int(m.shape[y.S_CHANNELS]), int(m.shape[y.S_REQUEST])
    per_bin = width * int(m.shape[y.S_BURST]) // int(m.gpu[0, y.G_T_BURST])
    assert m.series.sum(axis=1).max() <= channels * (per_bin + request)
    assert m.link_series.max() <= width * 64 // int(m.gpu[0, y.G_LINK64]) + request
    for events in m.dma_log[:, :, [y.DL_READY, y.DL_START, y.DL_END]].reshape(-1, 3):
        assert list(events) == sorted(events)


@laws
@given(problems)
def test_time_never_runs_back(problem):
    shared, machine, overlap, policy = problem
    tables = lowered(shared, machine, overlap).tables
    m, compiled, times = allocate(tables, BIN), POLICIES[policy].compiled, [0]
    spare = margin_events(tables.shape), margin_requests(tables.shape)
    while run(m, compiled, 61, *spare) == y.RUNNING:
        times.append(int(m.clock[y.C_NOW]))
    assert times == sorted(times)


def digest(machine):
    return hashlib.sha256(b"".join(table.tobytes() for table in machine)).hexdigest()


@settings(laws, max_examples=12)
@given(problems)
def test_the_same_input_gives_the_same_bytes(problem):
    shared, machine, overlap, policy = problem
    tables = lowered(shared, machine, overlap).tables
    assert digest(finish_tables(tables, policy)) == digest(finish_tables(tables, policy))


def finish_tables(tables, policy):
    status, machine = execute(tables, POLICIES[policy].compiled, BIN)
    assert status == y.FINISHED
    return machine


@settings(laws, max_examples=12)
@given(layers(), machines(), st.sampled_from(list(SIMULATED)))
def test_mirrored_and_explicit_move_the_same_bytes(shared, machine, overlap):
    even = layer(32 * shared.tp * 2, 32 * shared.tp, shared.gemm.k * shared.tp, shared.tp)
    one, all_ = (
        finish(lowered(even, machine, overlap, explicit=explicit)).traffic[:, : y.CAUSE_TRACKER]
        for explicit in (False, True)
    )
    protocol = [
        c for c in range(y.CAUSE_TRACKER) if c != y.CAUSE_GEMM_READ
    ]  # how well a cache hits may differ
    assert (all_[:, protocol] == one[:, protocol]).all()


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
    chunk = shared.payload_bytes // tp
    step = chunk * int(m.gpu[0, y.G_LINK64]) // 64
    assert m.clock[y.C_NOW] >= 2 * (tp - 1) * step
    assert m.clock[y.C_NOW] >= shared.gemm.flops / machine.matrix_rate("fp16", "boost") * 1e15 * 0.999


def test_a_bare_machine_does_nothing():
    m = bare(System(gpu=gpu(), gpus=2).gpu)
    assert run(m, ROUND_ROBIN.compiled, 10, margin_events(m.shape), margin_requests(m.shape)) == y.FINISHED
    assert m.clock[y.C_NOW] == m.clock[y.C_EVENTS] == 0
