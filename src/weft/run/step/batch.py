"""Many plans timed together: what they have in common is found once, the rest is arrays. A single plan unfolds, too."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from weft.errors import InputError
from weft.graph import DTYPE_BYTES, Collective
from weft.library.residual import Residual, shipped
from weft.models import Transformer
from weft.parallel.framework import Framework
from weft.parallel.plan import Parallelism, schedule_name
from weft.result.step import Chunk, PartTimes
from weft.run.step.chunks import backward_seconds, forward_seconds, gathering, timed_chunk
from weft.run.step.ends import Ends, Fixed, Slowed, Tails, Updates, ends, fixed, tails
from weft.run.step.layers import Key, Layers, cases_of, dense_key, dense_layer_key, layer_key, part_key
from weft.run.step.memory import HELD, peaks
from weft.run.step.offload import seconds_to_host
from weft.run.step.parts import Layout, Parts, Written, rank_parts
from weft.run.step.prices import Case, Known, Prices
from weft.run.step.pruning import Pruning
from weft.run.step.stages import Shares, Structure, chunks_of, composition, in_rounds, stages_on
from weft.run.step.windows import MOST_BYTES, Windows
from weft.schedule.pipeline import Durations, PipelineTimes, Schedule, Send, is_searched, run_schedule, schedule
from weft.schedule.pipeline.many import SLOTTED, last_backwards
from weft.schedule.pipeline.orders import BACKWARD, WEIGHT

FloatArray = NDArray[np.float64]


_ROUND = 500
"""Plans that are timed before more are excluded."""
_FEW = 2
"""Layers after which those that gather their weights alike take equally long."""


class Many(NamedTuple):
    """Step times [s] and peaks of memory [bytes] of plans, in their order.

    A step is its `pipeline`, then `reduce` until the gradients are summed, then `update` of the weights [s].
    """

    seconds: FloatArray
    pipeline: FloatArray
    reduce: FloatArray
    update: FloatArray
    peak_bytes: FloatArray


@dataclass
class Shared:
    """What calls of `many` for the same model, GPUs, framework and options have in common, by what decides it."""

    known: Known
    calibration: Residual = field(default_factory=shipped)
    parts: dict[Key, Parts] = field(default_factory=dict)
    written: Written = field(default_factory=dict)
    layers: dict[Key, Layers] = field(default_factory=dict)
    dense: dict[Key, dict[int, PartTimes]] = field(default_factory=dict)
    orders: dict[Key, Schedule] = field(default_factory=dict)
    structures: dict[Key, Structure] = field(default_factory=dict)
    surroundings: dict[Key, list[Fixed]] = field(default_factory=dict)
    forwards: dict[Key, float] = field(default_factory=dict)
    windows: dict[Key, Windows] = field(default_factory=dict)
    factors: dict[Key, tuple[float, float]] = field(default_factory=dict)


@contextmanager
def uncollected() -> Iterator[None]:
    """Pause the collection of cycles, which goes over all objects again and again while many are made to stay."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def is_slotted(name: str) -> bool:
    """Whether a schedule is timed together with others of its kind."""
    kind, options = schedule_name(name)
    return kind in SLOTTED and len(options) == (kind == "interleaved") and None not in options


class _Recorder(Known):
    """Operators that are asked for, none of them estimated."""

    def __init__(self, known: Known) -> None:
        self.system, self.waves, self.cases = known.system, known.waves, set[Case]()
        self.among = known.among  # type: ignore[method-assign]
        self._moved = {}

    def seconds(self, case: Case) -> float:
        """Zero, until the case is known."""
        self.cases.add(case)
        return 0.0


@dataclass
class _Pipe:
    """Plans with the same layers, stages and micro-batches, such as that of `layout`.

    `seconds` are those of a forward, a backward and the weight gradients on each stage. Between `begun` and `ended`
    gradients become complete, by device and stage as in the structure; devices end their last tasks at `done` [s], and
    without a flush the busiest one computes for `busy` [s].
    """

    layout: Layout
    seconds: Sequence[FloatArray]
    send: Send
    times: PipelineTimes | None = None
    begun: FloatArray = field(default_factory=lambda: np.empty(0))
    ended: FloatArray = field(default_factory=lambda: np.empty(0))
    done: FloatArray = field(default_factory=lambda: np.empty(0))
    busy: float | None = None

    def run(self) -> None:
        """Time every task of the schedule; one that is searched is so for the seconds of the stages."""
        plan, _, structure, order = self.layout
        durations = Durations(*self.seconds)
        assert order is not None
        if is_searched(plan.schedule):
            order = schedule(plan.schedule, plan.pp, plan.micro_batches, durations, self.send)
        self.times = run_schedule(order, durations, self.send)
        self.begun, self.ended = gradients(self.times, structure.stages)
        self.done = np.array([self.times.end.flat[tasks].max() for tasks in order.orders])
        self.busy = None if order.flushes else float(self.times.busy.max())


@dataclass
class _Job:
    """A plan whose step is timed: its layout, then the passes over its layers and its pipeline.

    `part_key` is what decides its parts, `around` what decides all that surrounds its passes.
    """

    layout: Layout
    part_key: Key
    around: Key
    layers: Layers = field(init=False)
    pipe: _Pipe = field(init=False)

    @property
    def plan(self) -> Parallelism:
        """The plan."""
        return self.layout.plan


class Unfolded(NamedTuple):
    """A plan with everything that its step is made of: the passes of every stage, every task, what ends the step."""

    chunks: tuple[Chunk, ...]
    seconds: Sequence[FloatArray]
    send: Send
    times: PipelineTimes
    tails: Tails
    ends: Ends


class Batch:
    """Plans of the same framework with the same methods of overlap; `prices` are those of a single one."""

    def __init__(self, model: Transformer, framework: Framework, shared: Shared, prices: Prices | None = None) -> None:
        self.model, self.framework, self.shared, self.prices = model, framework, shared, prices

    def unfolded(self, plan: Parallelism) -> Unfolded:
        """A single plan, task by task."""
        job = self._job(plan, unfolds=True)
        self._find_layers([job])
        self._time([job])
        pipe = job.pipe
        assert pipe.times is not None
        stages = self._stages(job.layout, job.layers)
        chunks = tuple(timed_chunk(stage, plan, self.framework, self._prices(plan)) for stage in stages)
        return Unfolded(chunks, pipe.seconds, pipe.send, pipe.times, *self._ends([job]))

    def fill(
        self,
        found: Many,
        at: NDArray[np.int64],
        plans: Sequence[Parallelism],
        limit: float,
        pruning: Pruning | None = None,
    ) -> None:
        """Write times and peaks of the plans to their places; without times those with peaks above `limit` [bytes], and
        those that the `pruning` excludes by lower bounds of their times.
        """
        jobs = [self._job(plan) for plan in plans]
        found.peak_bytes[at] = peaks([job.layout for job in jobs], self.framework)
        fit = np.flatnonzero(found.peak_bytes[at] <= limit)
        at, jobs = at[fit], [jobs[number] for number in fit.tolist()]
        self._find_layers(jobs)
        if pruning is None:
            self._fill(found, at, jobs)
            return
        least = self._least(jobs)
        order = np.argsort(least, kind="stable")
        for begin in range(0, len(order), _ROUND):
            some = order[begin : begin + _ROUND]
            some = some[~pruning.excludes(least[some], found.peak_bytes[at[some]])]
            self._fill(found, at[some], [jobs[number] for number in some.tolist()])
            pruning.add(found.seconds[at[some]], found.peak_bytes[at[some]])

    def _fill(self, found: Many, at: NDArray[np.int64], jobs: Sequence[_Job]) -> None:
        """Write the times of plans whose layers are known to their places."""
        self._time(jobs)
        alike: dict[object, list[int]] = {}
        for number, job in enumerate(jobs):
            alike.setdefault((id(job.layout.structure), job.pipe.busy is None), []).append(number)
        for numbers in alike.values():
            _, parts = self._ends([jobs[number] for number in numbers])
            places = at[numbers]
            found.pipeline[places], found.reduce[places], found.update[places] = parts
            found.seconds[places] = sum(parts)

    def _least(self, jobs: Sequence[_Job]) -> FloatArray:
        """Return lower bounds of the times of plans [s]: the passes of the busiest device alone, which waits for a
        micro-batch to reach it, and after its last task for the way back.
        """
        known: dict[Key, float] = {}

        def least(job: _Job) -> float:
            plan, layers, structure = job.plan, job.layers, job.layout.structure
            key = id(layers), id(structure), plan.schedule, plan.micro_batches
            if key not in known:
                forward, backward, weight = layers.seconds(structure.of)
                each = np.append(forward + backward + weight, 0.0)[structure.stages]
                busy = plan.micro_batches * each.sum(axis=1)
                if job.layout.order is None:  # stages go round and round the devices
                    ahead = np.append(0.0, np.cumsum(forward + backward))[: len(busy)]
                    busy = busy + ahead
                known[key] = float(busy.max())
            return known[key]

        return np.array([least(job) for job in jobs])

    def _job(self, plan: Parallelism, unfolds: bool = False) -> _Job:
        """A plan with its layout; with the order of its tasks if it `unfolds`."""
        key = part_key(plan, self.framework)
        parts, order = self._parts(plan, key), self._order(plan, unfolds)
        layout = Layout(plan, parts, self._structure(plan, parts.names, order), order)
        framework = self.framework
        overlaps = framework.dp_overlap, framework.gather_overlap, plan.overlap.get("dp")
        return _Job(layout, key, (*overlaps, *_SURROUNDINGS(plan)))

    def _time(self, jobs: Sequence[_Job]) -> None:
        """Find the pipelines of plans whose layers are known, and what surrounds their passes."""
        self._find_pipes(jobs)
        _run({id(job.pipe): job.pipe for job in jobs}.values())
        self._surround(jobs)

    def _ends(self, jobs: Sequence[_Job]) -> tuple[Tails, Ends]:
        """What ends the steps of plans with the same stages."""
        pipes, rows = [job.pipe for job in jobs], [self.shared.surroundings[job.around] for job in jobs]
        begun, ended, done = (np.array([getattr(pipe, name) for pipe in pipes]) for name in ("begun", "ended", "done"))
        structure = jobs[0].layout.structure
        late = tails(
            structure,
            self.framework,
            begun,
            ended,
            done,
            rows,
            self._slowed(jobs, rows),
            self.shared.calibration.hidden,
        )
        busy = None if pipes[0].busy is None else np.array([pipe.busy for pipe in pipes])
        return late, ends(late, done, busy)

    def _surround(self, jobs: Sequence[_Job]) -> None:
        """Find what surrounds the passes of plans, as far as it is not known: its operators first, then their times."""
        found, known = self.shared.surroundings, self.shared.known
        first = {job.around: job.layout for job in reversed(jobs) if job.around not in found}
        recorder = _Recorder(known)
        for asked in (recorder, known):
            updates: Updates = {}
            for key, (plan, parts, structure, _) in first.items():
                prices = self._prices(plan, asked)
                found[key] = fixed(self.model, plan, self.framework, prices, structure, parts, updates)
            known.fill(recorder.cases)

    def _slowed(self, jobs: Sequence[_Job], known: Sequence[Sequence[Fixed]]) -> list[list[Slowed]]:
        """What passes and collectives of replicas cost each other, for plans with the same stages."""
        found: dict[tuple[int, int], list[Slowed]] = {}
        rows = []
        for job, around in zip(jobs, known, strict=True):
            layers = job.layers.like
            case = id(layers), id(around)
            if case not in found:
                windows, pairs = self._windows(job.plan), zip(job.layout.structure.shares, around, strict=True)
                found[case] = [self._slow(layers, shares, one, windows) for shares, one in pairs]
            rows.append(found[case])
        return rows

    def _windows(self, plan: Parallelism) -> Windows:
        """The windows of the replicas under a plan, those of the same place once."""
        prices = self._prices(plan)
        key = prices.place("dp", plan.dp * plan.cp), plan.dtype, plan.overlap.get("dp")
        return self.shared.windows.setdefault(key, prices.windows)

    def _slow(self, layers: Layers, shares: Shares, around: Fixed, windows: Windows) -> Slowed:
        """What passes and collectives of replicas cost each other on a device."""

        def factors(forward: bool, moved: Collective | None) -> tuple[float, float]:
            if moved is None:
                return 1.0, 1.0
            case = id(layers), id(windows), shares, forward, moved.name, min(moved.bytes, MOST_BYTES)
            known = self.shared.factors
            if case not in known:
                known[case] = windows.mean(layers.beside(shares, forward), moved, "dp")
            return known[case]

        whole = layers.beside(shares, True).whole
        return Slowed(*factors(False, around.reduced), *factors(True, around.gathered), whole)

    def _parts(self, plan: Parallelism, key: Key) -> Parts:
        """One rank's share of the parts of the model."""
        found = self.shared.parts
        if key not in found:
            base, dense = found.get(key[1:]), found.get(dense_key(key))
            like, same = (one.of if one else None for one in (base, dense))
            found[key] = Parts(rank_parts(self.model, plan, self.framework, like, same, self.shared.written))
            for part_of in (key[1:], dense_key(key)):
                found.setdefault(part_of, found[key])
        return found[key]

    def _find_layers(self, jobs: Sequence[_Job]) -> None:
        """Time one rank's passes over the parts of the model under each plan."""
        found, known = self.shared.layers, self.shared.known
        keys = [layer_key(job.plan, self.framework, job.part_key, job.layout.splits) for job in jobs]
        first = {key: job.layout for key, job in reversed([*zip(keys, jobs, strict=True)]) if key not in found}
        prices = {key: self._prices(layout.plan) for key, layout in first.items()}
        cases = (case for key, layout in first.items() for case in cases_of(layout.parts, prices[key]))
        known.fill(dict.fromkeys(cases))
        for key, layout in first.items():
            like, dtype = found.get(key[1:]), layout.plan.dtype
            dense = self.shared.dense.setdefault(dense_layer_key(key), {})
            found[key] = Layers(layout.parts, dtype, self.framework, prices[key], layout.splits, like, dense)
            found.setdefault(key[1:], found[key])
        for key, job in zip(keys, jobs, strict=True):
            job.layers = found[key]

    def _prices(self, plan: Parallelism, known: Known | None = None) -> Prices:
        if self.prices and known in (None, self.shared.known):
            return self.prices
        known = known or self.shared.known
        return Prices(known.system, plan, self.shared.known.options, known=known, calibration=self.shared.calibration)

    def _order(self, plan: Parallelism, unfolds: bool = False) -> Schedule | None:
        """The order of a plan's pipeline; None if it is timed without its tasks and not unfolded."""
        if is_slotted(plan.schedule) and not unfolds and (plan.pp > 1 or plan.chunks == 1):
            return None
        key = plan.schedule, plan.pp, plan.micro_batches
        orders = self.shared.orders
        if key not in orders:
            orders[key] = schedule(*key)
        return orders[key]

    def _structure(self, plan: Parallelism, names: tuple[str, ...], order: Schedule | None) -> Structure:
        key = plan.pp, plan.chunks, plan.layers, id(order)
        structures = self.shared.structures
        if key not in structures:
            count = order.stages if order else plan.pp * plan.chunks
            stages = [stages_on(order, at) for at in range(plan.pp)] if order else in_rounds(plan.pp, count)
            structures[key] = Structure(stages, composition(self.model, count, plan, names))
        return structures[key]

    def _find_pipes(self, jobs: Sequence[_Job]) -> None:
        """Find the pipeline of each plan, not yet timed."""
        found: dict[Key, _Pipe] = {}
        for job in jobs:
            plan, layers = job.plan, job.layers
            gathers = (plan.shard, plan.ep) if plan.gathers_each_pass else ()
            same = id(layers), id(job.layout.structure), plan.schedule, plan.dp, plan.micro_batches, plan.offload
            key = *same, gathers
            if key not in found:
                found[key] = self._pipe(job.layout, layers)
            job.pipe = found[key]

    def _pipe(self, layout: Layout, layers: Layers) -> _Pipe:
        plan, parts, structure, _ = layout
        prices = self._prices(plan)
        send = self._send(plan, prices)
        if plan.gathers_each_pass:
            key = plan.tp, plan.cp, plan.dp, plan.dtype, plan.overlap.get("dp")
            prices.windows = self.shared.windows.setdefault(key, prices.windows)
            each = [self._gathered(stage, plan, prices) for stage in self._stages(layout, layers)]
            return _Pipe(layout, [*np.array(each).T, np.zeros(len(each))], send)
        forward, backward, weight = layers.seconds(structure.of)
        if plan.offload == "activations":
            moved = seconds_to_host(1.0, prices.gpu) * parts.sent(structure.of)
            forward, backward = np.maximum(forward, moved), np.maximum(backward, moved)
        return _Pipe(layout, [forward, backward, weight], send)

    def _stages(self, layout: Layout, layers: Layers) -> list[list[PartTimes]]:
        """The passes over the parts of each stage, in their order."""
        names = chunks_of(self.model, len(layout.structure.of.counts), layout.plan)
        return [[layers.parts[name] for name in stage] for stage in names]

    def _send(self, plan: Parallelism, prices: Prices) -> Send:
        """What it takes to send a micro-batch's activations, under sequence parallelism a rank's share, to a stage.

        A rank that does not overlap its sends computes nothing until the tensor has arrived.
        """
        if plan.pp == 1:
            return Send()
        framework = self.framework
        tokens = plan.micro_batch * plan.sequence // plan.cp
        size = tokens * self.model.hidden * DTYPE_BYTES[plan.dtype]
        shared = plan.tp if plan.sp or framework.scatter_gather else 1
        seconds = prices.of(Collective("send_recv", -(-size // shared), 2, plan.dtype), "pp")
        waits = framework.sends == "blocking" or (framework.sends == "interleaved" and plan.chunks == 1)
        return Send(seconds, sender_busy=seconds if waits else 0.0)

    def _gathered(self, stage: Sequence[PartTimes], plan: Parallelism, prices: Prices) -> FloatArray:
        """Forward and backward [s] of a rank that gathers the weights of its parts one by one.

        Between a part and the next but one nothing waits, so that equal layers soon take equally long, two by two.
        """
        if self.framework.launch or plan.offload == "activations":
            chunk = timed_chunk(stage, plan, self.framework, prices)
            return np.array([chunk.forward.seconds, chunk.backward.seconds])
        whole, known = gathering(stage, plan, self.framework, prices), self.shared.forwards
        alike = id(prices.windows), plan.shard, plan.ep, plan.sp, plan.order

        def of(most: int) -> FloatArray:
            parts, moved = ([*each[: 1 + most], each[-1]] for each in (stage, whole.gather))
            key = *alike, *(id(part.forward) for part in parts)
            own = whole._replace(gather=moved, scatter=[*whole.scatter[: 1 + most], whole.scatter[-1]])
            if key not in known:
                known[key] = forward_seconds(parts, own)
            return np.array([known[key], backward_seconds(parts, own)])

        count = len(stage) - 2
        if len(set(map(id, stage[1:-1]))) != 1 or count <= 2 * _FEW:
            return of(count)
        few = _FEW + count % 2
        less, some, more = (of(few + extra) for extra in (0, 2, 4))
        if not np.allclose(more - some, some - less, rtol=1e-9, atol=0.0):
            return of(count)
        pairs: FloatArray = more + (more - some) * ((count - few - 4) // 2)
        return pairs


def _run(pipes: Iterable[_Pipe]) -> None:
    """Time the pipelines, those of the same schedule without tasks at once."""
    alike: dict[Key, list[_Pipe]] = {}
    for pipe in pipes:
        plan = pipe.layout.plan
        if pipe.layout.order is None:
            alike.setdefault((plan.schedule, plan.pp, plan.micro_batches, len(pipe.seconds[0])), []).append(pipe)
        else:
            pipe.run()
    for mine in alike.values():
        plan = mine[0].layout.plan
        kind = "gpipe" if plan.schedule == "gpipe" else "1f1b" if plan.chunks == 1 else "interleaved"
        times = (np.array([one.seconds[at] for one in mine]) for at in (0, 1))
        sends = (np.array([getattr(one.send, name) for one in mine], float) for name in ("latency", "sender_busy"))
        each = last_backwards(kind, plan.pp, plan.chunks, plan.micro_batches, *times, *sends)
        for one, last in zip(mine, each, strict=True):
            stages = one.layout.structure.stages
            one.ended = last[stages]
            one.begun, one.done = one.ended - one.seconds[1][stages], one.ended.max(axis=1)


def gradients(times: PipelineTimes, stages: NDArray[np.int64]) -> tuple[FloatArray, FloatArray]:
    """Between when gradients of the weights of each stage on a device become complete: begin and end of its last
    backward task [s]; 0 for stages of -1. `stages` has the shape (devices, stages).
    """
    order = times.schedule
    if not order.trains:
        raise InputError(f"the pipeline schedule '{order.name}' has no backward passes; train with another one")
    found = np.zeros((2, *stages.shape))
    for device, at in np.argwhere(stages >= 0).tolist():
        stage = stages[device, at]
        mine = order.device[stage] == device
        kind = BACKWARD if order.whole[stage][mine].all() else WEIGHT
        last = int(np.nanargmax(np.where(mine, times.end[kind, stage], np.nan)))
        found[:, device, at] = times.start[kind, stage, last], times.end[kind, stage, last]
    return found[0], found[1]


_SURROUNDINGS = attrgetter(*HELD, "schedule", "layers", "order", "sequence")
"""The fields of a plan that decide what surrounds its passes, beside the method of overlap of its replicas."""
