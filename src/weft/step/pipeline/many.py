"""When the stages of many pipelines end their last backwards, without their tasks: GPipe, 1F1B and interleaved 1F1B.

The tasks of these schedules lie in slots: in each slot every device runs at most one forward and one backward, and a
task needs tasks of the slot before it, or of its own slot. The recurrence over slots is the clock of `run_schedule`.
While all devices alternate, it repeats from slot to slot but for the chunk: as soon as every end is later by the same
time than a period before, whole periods are skipped.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np

from weft.estimate.machine_code import machine_code
from weft.step.pipeline.orders import Floats

SLOTTED = ("1f1b", "gpipe", "interleaved")
"""Schedules whose tasks lie in slots."""
_ALIKE = 1e-12
"""Difference between two times that counts as none, relative to the later one."""
_COMPILE_FROM = 200_000
"""Tasks from which machine code pays for its loading or compilation."""
_seen = 0


def last_backwards(
    name: str, devices: int, chunks: int, micro_batches: int, forward: Floats, backward: Floats, latency: Floats,
    busy: Floats,
) -> Floats:  # fmt: skip
    """Return when each stage ends its last whole backward, as `run_schedule` times the schedule `name` [s].

    `forward` and `backward` have the shape (pipelines, stages): seconds of a micro-batch. Of each pipeline, a tensor
    arrives `latency` after its task has ended, and its sender computes nothing for `busy` after that [s].
    """
    global _seen  # noqa: PLW0603 - how much was asked in this process decides whether machine code pays
    ends = np.empty_like(forward)
    _seen += forward.size * micro_batches
    run = compile_clock() if _seen > _COMPILE_FROM else run_all
    scratch = np.empty(6 * devices)
    run(SLOTTED.index(name), devices, chunks, micro_batches, forward, backward, latency, busy, ends, scratch)
    return ends


def run_all(
    kind: int, devices: int, chunks: int, micro_batches: int, forward: Floats, backward: Floats, latency: Floats,
    busy: Floats, ends: Floats, scratch: Floats,
) -> None:  # fmt: skip
    """Fill `ends` for every pipeline; `scratch` has room for six times of each device."""
    for at in range(len(forward)):
        if kind == 0 or devices == 1:
            _in_turn(devices, micro_batches, forward[at], backward[at], latency[at], busy[at], ends[at], scratch)
        else:
            first = (chunks - 1) * devices + devices - 1
            if kind == 1 or micro_batches == devices:  # all forwards first
                first = chunks * micro_batches + devices
            _in_waves(
                devices, chunks, micro_batches, first, forward[at], backward[at], latency[at], busy[at], ends[at],
                scratch,
            )  # fmt: skip


def _in_turn(
    devices: int, micro_batches: int, forward: Floats, backward: Floats, latency: float, busy: float, ends: Floats,
    scratch: Floats,
) -> None:  # fmt: skip
    """1F1B: in slot k, device i runs forward k + p - 1 - i, then backward k, which follows on that of device i + 1."""
    scratch[:] = 0.0
    state, before = scratch[: 2 * devices], scratch[2 * devices : 4 * devices]
    clock, sent = state[:devices], state[devices:]
    last, slot, steady = devices - 1, 1 - devices, micro_batches - devices
    while slot < micro_batches:
        done = 0.0
        for i in range(last, -1, -1):
            number = slot + last - i
            if 0 <= number < micro_batches:
                begin = clock[i] if i == 0 else max(clock[i], sent[i - 1] + latency)
                sent[i] = begin + forward[i]
                clock[i] = sent[i] + (busy if i < last else 0.0)
            if slot >= 0:
                begin = clock[i] if i == last else max(clock[i], done + latency)
                done = begin + backward[i]
                clock[i] = done + (busy if i > 0 else 0.0)
                ends[i] = done
        slot += 1
        if slot > 0 and slot % devices == 0:
            slot += devices * _skip(state, before, (steady - slot) // devices)


def _in_waves(
    devices: int, chunks: int, micro_batches: int, first: int, forward: Floats, backward: Floats, latency: float,
    busy: float, ends: Floats, scratch: Floats,
) -> None:  # fmt: skip
    """GPipe and interleaved 1F1B: forward j on device i in slot i + j, backward k in slot `first` + p - 1 - i + k.

    Both count through chunks in groups of p micro-batches; after the last device, the next chunk is on the first one.
    """
    scratch[:] = 0.0
    state, before = scratch[: 3 * devices], scratch[3 * devices :]
    clock, sent, done = state[:devices], state[devices : 2 * devices], state[2 * devices :]
    last, total, row = devices - 1, chunks * micro_batches, devices if chunks > 1 else micro_batches
    period, stages, slot = chunks * row, chunks * devices, 0
    while slot < first + last + total:
        around = sent[last]
        for i in range(last, -1, -1):
            j = slot - i
            if 0 <= j < total:
                stage = (j // row) % chunks * devices + i
                begin = clock[i]
                if stage > 0:
                    begin = max(begin, (sent[i - 1] if i > 0 else around) + latency)
                sent[i] = begin + forward[stage]
                clock[i] = sent[i] + (busy if stage < stages - 1 else 0.0)
        around = done[0]
        for i in range(devices):
            k = slot - first - last + i
            if 0 <= k < total:
                stage = (chunks - 1 - (k // row) % chunks) * devices + i
                begin = clock[i]
                if stage < stages - 1:
                    begin = max(begin, (done[i + 1] if i < last else around) + latency)
                done[i] = begin + backward[stage]
                clock[i] = done[i] + (busy if stage > 0 else 0.0)
                ends[stage] = done[i]
        slot += 1
        if chunks > 1 and slot >= first + 2 * last and slot % period == 0:
            slot += period * _skip(state, before, (total - period - devices - slot) // period)


def _skip(state: Floats, before: Floats, most: int) -> int:
    """Move all times on by as many whole periods as are left, at most `most`, if they grew alike in the last one."""
    grown, alike = state[0] - before[0], True
    for i in range(len(state)):
        alike = alike and abs(state[i] - before[i] - grown) <= _ALIKE * state[0]
        before[i] = state[i]
    if not alike or most <= 0:
        return 0
    for i in range(len(state)):
        state[i] += most * grown
        before[i] = state[i]
    return most


@cache
def compile_clock() -> Callable[..., None]:
    """`run_all` with every function that it calls as machine code, kept on disk."""
    run: Callable[..., None] = machine_code(globals(), ("run_all",))["run_all"]
    return run
