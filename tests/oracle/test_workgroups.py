"""Workgroups with bounded slots on a compute unit beside a SimPy model of the same, above a memory of fixed latency."""

from __future__ import annotations

import simpy
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st
from machines import finish, gpu, layer, program

from weft.engine import layout as y
from weft.engine.program import Program
from weft.kernels import GemmTiling

FREE = (
    y.GPU_PORT64, y.GPU_SLICE64, y.GPU_T_BURST, y.GPU_T_LONG, y.GPU_T_UPDATE, y.GPU_T_RRD, y.GPU_T_RCD,
    y.GPU_T_RAS, y.GPU_T_RP,
    y.GPU_T_RC, y.GPU_T_CL, y.GPU_T_READ_TO_WRITE, y.GPU_T_WRITE_TO_READ, y.GPU_T_WRITE_TO_PRECHARGE,
    y.GPU_T_READ_TO_PRECHARGE, y.GPU_T_PATH,
)  # fmt: skip
"""Constants that are zero in a memory without contention: only latency remains."""


def uncontended(
    units: int, places: int, slots: int, steps: int, columns: int, latency: int, in_step: bool = False
) -> Program:
    """A GEMM of 2 x `columns` tiles whose every load takes the same time."""
    tiling = GemmTiling(rows=128, columns=128, step=32, slots=slots)
    machine = gpu(
        compute__compute_units=units, compute__max_workgroups_per_cu=places, compute__stages_in_step=int(in_step)
    )
    lowered = program(layer(m=256, n=128 * columns, k=64 * steps, tp=2), "t3", machine, tiling=tiling)
    tables = lowered.tables
    tables.gpu[:, FREE] = 0
    tables.kernel[:, :, y.KERNEL_LAUNCH] = 0
    tables.gpu[:, y.GPU_MEMORY_LATENCY] = latency
    tables.access[:, :, y.ACCESS_CACHED] = 0
    return lowered


def by_oracle(lowered: Program) -> tuple[list[int], int]:
    """The ends of all K loops, sorted, and the time that compute units were busy."""
    tables = lowered.tables
    g = tables.gpu[0]
    kernel, phase = tables.kernel[0, 0], tables.phase[0, tables.kernel[0, 0, y.KERNEL_FIRST_PHASE]]
    load_time = int(g[y.GPU_CACHE_OUT] + g[y.GPU_MEMORY_LATENCY] + g[y.GPU_CACHE_BACK])
    compute_time = int(phase[y.PHASE_CYCLES] * g[y.GPU_CYCLE] // 1000)
    iterations, slots = int(phase[y.PHASE_ITERATIONS]), int(phase[y.PHASE_SLOTS])
    fitting = min(
        int(g[y.GPU_WORKGROUPS]),
        int(g[y.GPU_THREADS] // kernel[y.KERNEL_THREADS]),
        int(g[y.GPU_REGISTERS] // kernel[y.KERNEL_REGISTERS]),
        int(g[y.GPU_LDS] // max(kernel[y.KERNEL_LDS], 1)),
    )
    env = simpy.Environment()
    matrix = [simpy.Resource(env, capacity=1) for _ in range(int(g[y.GPU_CUS]))]
    places = simpy.FilterStore(env)
    places.items = [unit for _ in range(fitting) for unit in range(int(g[y.GPU_CUS]))]
    stage = fitting * int(g[y.GPU_CUS]) if kernel[y.KERNEL_STAGE] else 0
    workgroups = int(kernel[y.KERNEL_WORKGROUPS])
    stage_over = [env.event() for _ in range(workgroups)]
    ends: list[int] = []
    left = 0
    busy = 0

    def iteration(unit: int, slot: simpy.Resource, before: simpy.Event, done: simpy.Event):
        nonlocal busy
        with slot.request() as turn:
            yield turn
            yield env.timeout(load_time)
            yield before
            with matrix[unit].request() as computing:
                yield computing
                yield env.timeout(compute_time)
                busy += compute_time
        done.succeed()

    def workgroup(index: int):
        nonlocal left
        if stage and index >= stage:  # every workgroup of the stage before has left its compute unit
            yield stage_over[index // stage - 1]
        unit = yield places.get()
        slot = simpy.Resource(env, capacity=slots)
        before = env.event().succeed()
        for _ in range(iterations):
            done = env.event()
            env.process(iteration(unit, slot, before, done))
            before = done
        yield before
        ends.append(env.now)
        yield env.timeout(int(g[y.GPU_CACHE_OUT]))  # the tile is on its way to memory, which takes it at once
        places.put(unit)
        left += 1
        if stage and left % stage == 0:
            stage_over[left // stage - 1].succeed()

    for index in range(workgroups):
        env.process(workgroup(index))
    env.run()
    return sorted(ends), busy


@settings(max_examples=25, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(
    units=st.integers(1, 3),
    places=st.integers(1, 2),
    slots=st.integers(1, 6),
    steps=st.integers(1, 9),
    columns=st.integers(1, 4),
    latency=st.integers(1_000, 3_000_000_000),
    in_step=st.booleans(),
)
@example(units=1, places=2, slots=1, steps=1, columns=1, latency=1_000, in_step=False)
@example(units=1, places=1, slots=2, steps=5, columns=1, latency=1_000_000_000, in_step=False)
@example(units=3, places=2, slots=6, steps=7, columns=4, latency=254_416_310, in_step=True)
def test_the_gemm_takes_as_long_as_the_oracle_says(units, places, slots, steps, columns, latency, in_step):
    lowered = uncontended(units, places, slots, steps, columns, latency, in_step)
    # All stores stay here, so that nothing but the script decides.
    tables = lowered.tables
    first = lowered.region("output", 0)
    tables.region[:, first : first + 2, y.REGION_MODE] = y.LOCAL_STORE
    tables.region[:, first : first + 2, y.REGION_TRACKED] = 0
    tables.kernel[:, 1, y.KERNEL_AFTER_COUNTER] = y.NONE
    machine = finish(lowered)
    ends, busy = by_oracle(lowered)
    stored = int(tables.gpu[0, y.GPU_CACHE_OUT])
    workgroups = int(tables.kernel[0, 0, y.KERNEL_WORKGROUPS])
    assert sorted(machine.work_log[0, :workgroups, y.WORKLOG_END].tolist()) == [end + stored for end in ends]
    assert machine.kernel_run[0, 0, y.RUN_COMPUTE] == busy


def test_with_enough_slots_the_unit_never_waits_after_the_first_load():
    lowered = uncontended(units=1, places=1, slots=8, steps=8, columns=1, latency=1_000)
    tables = lowered.tables
    compute = int(tables.phase[0, 0, y.PHASE_CYCLES] * tables.gpu[0, y.GPU_CYCLE] // 1000)
    machine = finish(lowered)
    assert machine.kernel_run[0, 0, y.RUN_COMPUTE] == 2 * 8 * compute
    load = int(tables.gpu[0, y.GPU_CACHE_OUT] + 1_000 + tables.gpu[0, y.GPU_CACHE_BACK])
    assert machine.kernel_run[0, 0, y.RUN_WAIT_LOAD] == 2 * load


def test_with_one_slot_every_step_pays_the_whole_latency():
    latency = 700_000_000
    lowered = uncontended(units=1, places=1, slots=1, steps=6, columns=1, latency=latency)
    tables = lowered.tables
    load = int(tables.gpu[0, y.GPU_CACHE_OUT] + latency + tables.gpu[0, y.GPU_CACHE_BACK])
    assert finish(lowered).kernel_run[0, 0, y.RUN_WAIT_LOAD] == 2 * 6 * load
