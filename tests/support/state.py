"""What tests read of an engine's state, by what it means; times in femtoseconds, GPU 0 where none is named."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import numpy as np

from weft.engine import layout as y
from weft.engine.program import Program
from weft.engine.state import Machine, Table

KINDS = {"read": y.READ, "write": y.WRITE, "update": y.UPDATE}


class Workgroups(NamedTuple):
    """Of each workgroup of a kernel when it began and ended, and on which compute unit."""

    start: Table
    end: Table
    unit: Table


class Commands(NamedTuple):
    """Of each DMA command when it was ready, taken by an engine, and over."""

    ready: Table
    start: Table
    end: Table


def now(m: Machine) -> int:
    """When the last event was."""
    return int(m.clock[y.CLOCK_NOW])


def requested(m: Machine, k: int, gpu: int = 0) -> int:
    """When all that kernel `k` follows was over."""
    return int(m.kernel_run[gpu, k, y.RUN_START])


def launched(m: Machine, k: int, gpu: int = 0) -> int:
    """When the launch of kernel `k` was over."""
    return int(m.kernel_run[gpu, k, y.RUN_LAUNCHED])


def ended(m: Machine, k: int, gpu: int = 0) -> int:
    """When kernel `k` ended."""
    return int(m.kernel_run[gpu, k, y.RUN_END])


def workgroups(m: Machine, k: int, gpu: int = 0) -> Workgroups:
    """The workgroups of kernel `k`."""
    first, count = m.kernel[gpu, k, [y.KERNEL_FIRST_WORK, y.KERNEL_WORKGROUPS]]
    log = m.work_log[gpu, first : first + count]
    return Workgroups(*(log[:, column] for column in (y.WORKLOG_START, y.WORKLOG_END, y.WORKLOG_UNIT)))


def commands(m: Machine, gpu: int = 0) -> Commands:
    """All DMA commands that ran, by the row of their first tile."""
    log = m.dma_log[gpu][m.dma_log[gpu, :, y.COMMAND_END] != y.NONE]
    return Commands(*(log[:, column] for column in (y.COMMAND_READY, y.COMMAND_START, y.COMMAND_END)))


def link_bytes(m: Machine) -> Table:
    """What every GPU has sent [bytes]."""
    return np.asarray(m.link_series.sum(axis=1))


def dram_bytes(m: Machine, kind: str) -> int:
    """DRAM traffic of a kind, of all operators on all GPUs [bytes]."""
    return int(m.traffic[:, KINDS[kind] :: y.KINDS].sum())


def moved(built: Program, m: Machine) -> Counter[tuple[str, str]]:
    """DRAM traffic by operator and kind, of all GPUs [bytes]; what is not there is 0."""
    traffic = m.traffic.sum(axis=0)
    return Counter(
        {(name, kind): int(traffic[built.cause(name, KINDS[kind])]) for name in built.operators for kind in KINDS}
    )


def check_drained(m: Machine) -> None:
    """Nothing is left in queues, on links or on compute units."""
    assert m.clock[y.CLOCK_LIVE_REQUESTS] == m.clock[y.CLOCK_LIVE_WAITERS] == 0
    assert m.clock[y.CLOCK_HEAP] == m.clock[y.CLOCK_LATER] == 0
    assert not m.channel[:, [y.CHAN_COMPUTE_COUNT, y.CHAN_COMMUNICATION_COUNT, y.CHAN_HITS, y.CHAN_MISSES]].any()
    assert not m.channel[:, y.CHAN_QUEUED_BYTES].any()
    assert not m.link_run[:, y.LINK_COUNT].any()
    assert (m.resident[:, y.WG_KERNEL] == y.NONE).all()
    assert (m.engine[:, y.DMA_BLOCK] == y.NONE).all()
    assert not m.engine[:, [y.DMA_LEFT, y.DMA_UNSENT, y.DMA_FLIGHT]].any()
    for column in (y.UNIT_THREADS, y.UNIT_REGISTERS, y.UNIT_LDS, y.UNIT_PLACES):
        for g, own in enumerate(m.gpu[:, y.GPU_CUS]):
            units = m.unit[g * int(m.shape[y.SIZE_CUS]) :][: int(own), column]
            assert (units == units[0]).all()
