"""A recorded run concurrently with closed forms: each operator's time on a GPU, and the makespan with these times."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from weft.core.errors import InputError, check_type
from weft.core.options import SUSTAINED, RunOptions
from weft.estimate import estimate
from weft.graph import Collective, Op
from weft.hardware import System, system
from weft.hardware.resolve import Described
from weft.step.durations import BETWEEN_OTHERS, ROOM
from weft.torch.traces.comparison import ComparedOperator, TraceComparison
from weft.torch.traces.trace import PHASES, Trace


def compare_trace(trace: Trace, on: Described, options: RunOptions = SUSTAINED) -> TraceComparison:
    """Compare each operator of a trace with what a system takes for it, in closed form.

    Collectives are timed over as many GPUs as they were recorded on. Raises UnknownNameError for an unknown system,
    InputError for what is no trace.
    """
    check_type("the trace", trace, Trace, "read one with weft.read_trace('trace.json.gz')")
    where = on if isinstance(on, System) else system(on)
    used = np.unique(trace.operator[trace.operator >= 0]).tolist()
    times, bounds, refused = _time_operators(trace, used, where, options)
    rows, seconds = _rows(trace, times, bounds, where)
    known = np.isin(trace.operator, [*times])
    return TraceComparison(
        trace, where, rows, float(trace.seconds[~known].sum()), trace.replay(seconds),
        trace.replay(seconds, host=False), _notes(trace, where, refused),
    )  # fmt: skip


def _time_operators(
    trace: Trace, used: list[int], where: System, options: RunOptions
) -> tuple[dict[int, float], dict[int, str], tuple[str, ...]]:
    """Return time and bound of each operator, and why others have none."""
    roomy = where.replace({"memory.capacity": ROOM})
    times, bounds = {}, {}
    refused = set()
    for number in used:
        op = trace.operators[number]
        if op is None:
            continue
        try:
            found = estimate(op, _place(op, roomy), options=options, harness=BETWEEN_OTHERS)
        except InputError as error:
            refused.add(str(error))
            continue
        times[number], bounds[number] = float(found.seconds), str(found.bound)
    return times, bounds, tuple(sorted(refused))


def _place(op: Op, where: System) -> System:
    return where if not isinstance(op, Collective) or op.ranks == where.gpus else where.with_gpus(op.ranks)


def _rows(
    trace: Trace, times: dict[int, float], bounds: dict[int, str], where: System
) -> tuple[tuple[ComparedOperator, ...], np.ndarray[tuple[int], np.dtype[np.float64]]]:
    """Return what is compared, and the time of each piece of work: that of its call in proportion to what it took."""
    pieces: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    for piece in np.flatnonzero(np.isin(trace.operator, [*times])).tolist():
        pieces[int(trace.operator[piece]), int(trace.phase[piece])].append(piece)
    seconds = trace.seconds.copy()
    rows = []
    for (number, phase), mine in pieces.items():
        op, at = trace.operators[number], np.array(mine)
        if op is None:
            continue
        _, call = np.unique(np.where(trace.call[at] >= 0, trace.call[at], -1 - at), return_inverse=True)
        took = np.bincount(call, trace.seconds[at])
        seconds[at] *= (times[number] / np.where(took > 0, took, times[number]))[call]
        measured = float(took.sum())
        rows.append(
            ComparedOperator(
                trace.label(mine[0]), PHASES[phase], len(took), len(mine), measured, times[number] * len(took),
                bounds[number], *_reached_shares(op, measured / len(took), where),
            )
        )  # fmt: skip
    return tuple(sorted(rows, key=lambda one: -one.lost)), seconds


def _reached_shares(op: Op, seconds: float, where: System) -> tuple[float, float]:
    """Return the shares of the GPU's matrix rate and of its memory's bandwidth that a measured call reached."""
    if seconds <= 0:
        return 0.0, 0.0
    gpu = where.gpu
    dtype = op.matrix_dtype
    rate = gpu.matrix_rate(dtype, "boost") if dtype and gpu.supports(dtype) else 0.0
    return (op.flops / seconds / rate if rate else 0.0), op.least_bytes / seconds / gpu.memory.bandwidth


def _notes(trace: Trace, where: System, refused: tuple[str, ...]) -> tuple[str, ...]:
    """Return what a reader must know to trust the comparison."""
    found = trace.found
    known = f"{found.mapped:,} of {found.kernels:,} kernels have an operator that Weft can time"
    notes = [f"{known}; the others keep their measured time"]
    if found.with_shapes < found.kernels / 2:
        notes.append("most calls were recorded without shapes; record again with profile(record_shapes=True)")
    if found.inferred:
        notes.append(
            f"{found.inferred:,} waits between streams are inferred from the order of launches, since the trace does "
            "not record them"
        )
    if found.dropped:
        notes.append(f"{found.dropped:,} waits between streams contradict the recorded times and are left out")
    if trace.device and not _same(trace.device, where.gpu.title):
        notes.append(f"the trace was recorded on {trace.device}; the prediction is of {where.gpu.title}")
    return (*notes, *(f"not timed: {one}" for one in refused))


def _same(recorded: str, title: str) -> bool:
    """Return whether the profiler's GPU name holds Weft's model number: "A100" of "NVIDIA A100-SXM4-80GB"."""
    model = next((word for word in title.replace("-", " ").split() if any(sign.isdigit() for sign in word)), title)
    return model.lower() in recorded.lower()
