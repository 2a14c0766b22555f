"""Explain why a run did not finish, from the engine's status and state."""

from __future__ import annotations

import numpy as np

from weft.engine import layout as y
from weft.engine.program import Program
from weft.engine.state import Machine


def explain(status: int, program: Program, m: Machine, policy: str) -> str:
    """Return why a run did not finish: a sentence that names the GPU, the kernel, the tile and what it waits for."""
    now = f"at {m.clock[y.CLOCK_NOW] / 1e9:.3f} us, after {m.clock[y.CLOCK_EVENTS]} events"
    if status == y.RUNNING:
        return f"the event budget is exhausted {now}; raise it, or make the problem smaller"
    starved = f"{starvation(m, policy)}, so " if status == y.STARVED else ""
    return f"the run is stuck {now}: {starved}{_stuck(program, m)}"


def starvation(m: Machine, policy: str) -> str:
    """Return which stream of which channel the policy has starved: the longest one where no event is left."""
    waiting = m.channel[:, [y.CHAN_COMPUTE_COUNT, y.CHAN_COMMUNICATION_COUNT]]
    c, stream = np.unravel_index(waiting.argmax(), waiting.shape)
    g, local = divmod(int(c), int(m.shape[y.SIZE_CHANNELS]))
    name = ("compute", "communication")[stream]
    return (
        f"arbiter policy '{policy}' has starved the {name} stream of channel {local} of GPU {g}, where "
        f"{waiting[c, stream]} requests wait"
    )


def _stuck(program: Program, m: Machine) -> str:
    """Return the first workgroup or kernel that cannot go on, and what it waits for."""
    for w in range(m.resident.shape[0]):
        if m.resident[w, y.WG_KERNEL] != y.NONE:
            return _waiting(program, m, w)
    for g in range(int(m.shape[y.SIZE_GPUS])):
        for k, name in enumerate(program.kernel_names):
            if m.kernel_run[g, k, y.RUN_STATE] == y.WAITS:
                return f"on GPU {g}, {name} never started; {_stuck_words(program, m, g)}"
            if m.kernel_run[g, k, y.RUN_PLACED] < m.kernel[g, k, y.KERNEL_WORKGROUPS]:
                return f"no compute unit of GPU {g} can hold a workgroup of {name}"
    return "all its kernels have ended"


def _waiting(program: Program, m: Machine, w: int) -> str:
    g, k = int(m.resident[w, y.WG_GPU]), int(m.resident[w, y.WG_KERNEL])
    index, phase = int(m.resident[w, y.WG_INDEX]), int(m.resident[w, y.WG_PHASE])
    who = f"workgroup {index} of {program.kernel_names[k]} on GPU {g}"
    row = m.phase[g, m.kernel[g, k, y.KERNEL_FIRST_PHASE] + phase]
    counter = int(row[y.PHASE_WAIT_COUNTER])
    if row[y.PHASE_LANED]:
        counter += int(m.work[g, m.kernel[g, k, y.KERNEL_FIRST_WORK] + index, y.WORK_LANE])
    if m.resident[w, y.WG_WAITING] and counter != y.NONE:
        return f"{who} waits for {_chunk_of(program, m, g, counter, int(row[y.PHASE_WAIT_VALUE]))}"
    tile = m.work[g, m.kernel[g, k, y.KERNEL_FIRST_WORK] + index]
    pending = m.slot[w * y.SLOTS : (w + 1) * y.SLOTS, y.SLOT_PENDING].sum()
    return f"{who} (tile row {tile[y.WORK_ROW]}, column {tile[y.WORK_COLUMN]}) waits for {pending} memory requests"


def _chunk_of(program: Program, m: Machine, g: int, counter: int, value: int) -> str:
    counters = m.region[g, :, y.REGION_COUNTER]
    region = int(np.where(counters <= counter, counters, y.NONE).argmax())
    buffer, position = program.regions[region]
    return f"chunk {position} of {buffer}, which has {m.counter[g, counter, y.COUNTER_VALUE]} of {value} bytes"


def _stuck_words(program: Program, m: Machine, g: int) -> str:
    for tile in range(m.tile.shape[1]):
        region = int(m.tile[g, tile, y.TILE_REGION])
        if m.region[g, region, y.REGION_TRACKED] > 0 and m.block_left[g, tile] > 0:
            buffer, position = program.regions[region]
            missing = int(m.block_left[g, tile])
            return f"tile {tile} in chunk {position} of {buffer} waits for updates of {missing} wavefront tiles"
    return "no tile is unfinished"
