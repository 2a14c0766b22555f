"""Many plans timed together: common parts are computed once, the rest is arrays. A single plan unfolds, too."""

from __future__ import annotations

import gc
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from typing import NamedTuple, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from weft.core.errors import InputError
from weft.graph import DTYPE_BYTES, Collective
from weft.models import Transformer
from weft.models.parallel.framework import Framework
from weft.models.parallel.plan import TrainingPlan, schedule_name
from weft.step.chunks import backward_seconds, forward_seconds, gather_weights, time_stage
from weft.step.durations import DurationCache, OperatorTimes
from weft.step.epilogue import EpilogueTimes, Slowdowns, StepEpilogue, Updates, epilogue, epilogue_times
from weft.step.keys import (
    EpilogueKey,
    FrameworkKey,
    GatherKey,
    LeastKey,
    OrderKey,
    PassKey,
    RankKey,
    StageKey,
    WindowKey,
)
from weft.step.layers import RankPasses, list_cases
from weft.step.lower_bounds import LeastPasses
from weft.step.memory import HELD, peaks
from weft.step.offload import seconds_to_host
from weft.step.pipeline import Durations, PipelineTimes, Schedule, Send, is_searched, run_schedule, schedule
from weft.step.pipeline.many import SLOTTED, last_backwards
from weft.step.pipeline.orders import BACKWARD, WEIGHT
from weft.step.pruning import Pruning
from weft.step.rank_parts import PlanJob, RankParts, rank_parts
from weft.step.result.step import Chunk, PartTimes
from weft.step.stages import Shares, StageLayout, chunks_of, in_rounds, stage_counts, stages_on
from weft.step.windows import Windows

FloatArray = NDArray[np.float64]
T = TypeVar("T")


_ROUND = 500
"""Plans that are timed before more are excluded."""
_FEW = 2
"""Layers after which those that gather their weights alike take equally long."""


class BatchedSteps(NamedTuple):
    """Step times [s] and peaks of memory [bytes] of plans, in their order.

    A step is its `pipeline`, then `reduce` until the gradients are summed, then `update` of the weights [s].
    """

    seconds: FloatArray
    pipeline: FloatArray
    reduce: FloatArray
    update: FloatArray
    peak_bytes: FloatArray


@contextmanager
def pause_collection() -> Iterator[None]:
    """Pause the collection of cycles, which goes over all objects again and again while many are made to stay."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def is_slotted(name: str) -> bool:
    """Return whether a schedule is timed together with others of its kind."""
    kind, options = schedule_name(name)
    return kind in SLOTTED and len(options) == (kind == "interleaved") and None not in options


@dataclass
class PipelineBatch:
    """Plans with the same layers, stages and micro-batches, such as that of `job`.

    `seconds` are those of a forward, a backward and the weight gradients on each stage. Between `begun` and `ended`
    gradients become complete, by device and stage as in the structure; devices end their last tasks at `done` [s], and
    without a flush the busiest one computes for `busy` [s].
    """

    job: PlanJob
    seconds: Sequence[FloatArray]
    send: Send
    times: PipelineTimes | None = None
    begun: FloatArray = field(default_factory=lambda: np.empty(0))
    ended: FloatArray = field(default_factory=lambda: np.empty(0))
    done: FloatArray = field(default_factory=lambda: np.empty(0))
    busy: float | None = None

    def run(self) -> None:
        """Time every task of the schedule; one that is searched is so for the seconds of the stages."""
        plan, order, durations = self.job.plan, self.job.order, Durations(*self.seconds)
        assert order is not None
        if is_searched(plan.schedule):
            order = schedule(plan.schedule, plan.pp, plan.micro_batches, durations, self.send)
        self.times = run_schedule(order, durations, self.send)
        self.begun, self.ended = gradients(self.times, self.job.structure.stages)
        self.done = np.array([self.times.end.flat[tasks].max() for tasks in order.orders])
        self.busy = None if order.flushes else float(self.times.busy.max())


class StepComposer:
    """Plans of the same framework with the same methods of overlap; `prices` are those of a single one."""

    def __init__(
        self, model: Transformer, framework: Framework, cache: DurationCache, prices: OperatorTimes | None = None
    ) -> None:
        self.model, self.framework, self.cache, self.prices = model, framework, cache, prices

    def detail(self, plan: TrainingPlan) -> tuple[tuple[Chunk, ...], PipelineBatch, StepEpilogue]:
        """Return the passes of every stage of a single plan, its pipeline task by task, and what ends its step."""
        job = self._job(plan, tasks=True)
        self._find_layers([job])
        self._time([job])
        windows = self._gather_windows(job) if plan.gathers_each_pass else job.prices.windows
        stages = self._stages(job)
        chunks = tuple(time_stage(stage, plan, self.framework, job.prices, windows) for stage in stages)
        return chunks, job.pipe, self._epilogue([job])

    def fill(
        self,
        found: BatchedSteps,
        at: NDArray[np.int64],
        plans: Sequence[TrainingPlan],
        limit: float,
        pruning: Pruning | None = None,
    ) -> None:
        """Write times and peaks of the plans to their places; without times those with peaks above `limit` [bytes], and
        those that the `pruning` excludes by lower bounds of their times.
        """
        jobs = [self._job(plan) for plan in plans]
        found.peak_bytes[at] = peaks(jobs, self.framework)
        fit = np.flatnonzero(found.peak_bytes[at] <= limit)
        at, jobs = at[fit], [jobs[number] for number in fit.tolist()]
        if pruning is None:
            self._find_layers(jobs)
            self._fill(found, at, jobs)
            return
        least = self._least_of_operators(jobs)
        order = np.argsort(least, kind="stable")
        for begin in range(0, len(order), _ROUND):
            some = order[begin : begin + _ROUND]
            for bound in (None, self._least):
                if bound:
                    least[some] = bound([jobs[number] for number in some.tolist()])
                some = some[~pruning.excludes(least[some], found.peak_bytes[at[some]])]
            self._fill(found, at[some], [jobs[number] for number in some.tolist()])
            pruning.add(found.seconds[at[some]], found.peak_bytes[at[some]])

    def _fill(self, found: BatchedSteps, at: NDArray[np.int64], jobs: Sequence[PlanJob]) -> None:
        """Write the times of plans whose layers are known to their places."""
        self._time(jobs)
        alike: dict[object, list[int]] = {}
        for number, job in enumerate(jobs):
            alike.setdefault((id(job.structure), job.pipe.busy is None), []).append(number)
        for numbers in alike.values():
            alike_jobs = [jobs[number] for number in numbers]
            parts = ends(self._epilogue(alike_jobs), [job.pipe for job in alike_jobs])
            places = at[numbers]
            found.pipeline[places], found.reduce[places], found.update[places] = parts
            found.seconds[places] = sum(parts)

    def _least_of_operators(self, jobs: Sequence[PlanJob]) -> FloatArray:
        """Return lower bounds of the times of plans [s] from their operators alone, without graphs of passes."""
        cache, framework = self.cache, self.framework
        bounds = cache.find(FrameworkKey(id(framework)), partial(LeastPasses, framework))
        first = {job.passes: job for job in reversed(jobs) if cache.get(LeastKey(job.passes)) is None}
        cache.fill(dict.fromkeys(case for job in first.values() for case in bounds.cases(job.parts, job.prices)))
        for key, job in first.items():
            cache.find(LeastKey(key), partial(bounds.of, job.parts, job.prices, key.placed))

        def seconds(job: PlanJob) -> FloatArray:
            found: FloatArray = job.structure.counts @ cache.get(LeastKey(job.passes))
            return found

        return _busiest(jobs, seconds, lambda job: job.passes)

    def _least(self, jobs: Sequence[PlanJob]) -> FloatArray:
        """Return lower bounds of the times of plans [s] from the passes over their layers, which are found for them."""
        self._find_layers(jobs)

        def seconds(job: PlanJob) -> FloatArray:
            forward, backward, weight = job.layers.seconds(job.structure.counts)
            return forward + backward + weight

        return _busiest(jobs, seconds, lambda job: id(job.layers))

    def _job(self, plan: TrainingPlan, tasks: bool = False) -> PlanJob:
        """Return a plan with its parts and stages; with the order of its `tasks`."""
        framework, rank = self.framework, RankKey.of(plan, self.framework)
        parts, order = self._parts(plan, rank), self._order(plan, tasks)
        job = PlanJob(plan, parts, self._structure(plan, parts.names, order), order)
        overlaps = framework.dp_overlap, framework.gather_overlap, plan.overlap.get("dp")
        job.rank, job.epilogue = rank, EpilogueKey(*overlaps, _EPILOGUE_FIELDS(plan))
        job.passes = PassKey.of(plan, framework, rank, job.splits)
        job.prices = self.prices or OperatorTimes(self.cache.system, plan, self.cache.options, known=self.cache)
        return job

    def _time(self, jobs: Sequence[PlanJob]) -> None:
        """Find the pipelines of plans whose layers are known, and what surrounds their passes."""
        self._find_pipes(jobs)
        _run({id(job.pipe): job.pipe for job in jobs}.values())
        self._find_epilogues(jobs)

    def _epilogue(self, jobs: Sequence[PlanJob]) -> StepEpilogue:
        """Return what ends the steps of plans with the same stages."""
        pipes, rows = [job.pipe for job in jobs], [self.cache.get(job.epilogue) for job in jobs]
        begun, ended, done = (np.array([getattr(pipe, name) for pipe in pipes]) for name in ("begun", "ended", "done"))
        slowed, hidden = self._find_slowdowns(jobs, rows), self.cache.calibration.hidden
        return epilogue(jobs[0].structure, self.framework, begun, ended, done, rows, slowed, hidden)

    def _find_epilogues(self, jobs: Sequence[PlanJob]) -> None:
        """Find what surrounds the passes of plans, as far as it is not known; all of its operators at once."""
        first = {job.epilogue: job for job in reversed(jobs) if self.cache.get(job.epilogue) is None}

        def times() -> list[list[EpilogueTimes]]:
            updates: Updates = {}
            return [
                epilogue_times(self.model, job.plan, self.framework, job.prices, job.structure, job.parts, updates)
                for job in first.values()
            ]

        for key, found in zip(first, self.cache.estimate_at_once(times), strict=True):
            self.cache.find(key, partial(list, found))

    def _find_slowdowns(
        self, jobs: Sequence[PlanJob], known: Sequence[Sequence[EpilogueTimes]]
    ) -> list[list[Slowdowns]]:
        """Return what passes and collectives of replicas cost each other, for plans with the same stages."""
        found: dict[tuple[int, int], list[Slowdowns]] = {}
        rows = []
        for job, around in zip(jobs, known, strict=True):
            layers = job.layers.like
            case = id(layers), id(around)
            if case not in found:
                windows, pairs = self._windows(job), zip(job.structure.shares, around, strict=True)
                found[case] = [_slowdowns(layers, shares, one, windows) for shares, one in pairs]
            rows.append(found[case])
        return rows

    def _windows(self, job: PlanJob) -> Windows:
        """Return the windows of the replicas under a plan, those of the same place once."""
        plan, prices = job.plan, job.prices
        key = WindowKey(prices.place("dp", plan.dp * plan.cp), plan.dtype, plan.overlap.get("dp"))
        return self.cache.find(key, lambda: prices.windows)

    def _gather_windows(self, job: PlanJob) -> Windows:
        """Return the windows of replicas that gather weights for each pass."""
        plan = job.plan
        key = WindowKey((plan.tp, plan.cp, plan.dp), plan.dtype, plan.overlap.get("dp"))
        return self.cache.find(key, lambda: job.prices.windows)

    def _parts(self, plan: TrainingPlan, key: RankKey) -> RankParts:
        """Return one rank's share of the parts of the model."""
        found = self.cache.get(key)
        if found is None:
            base, dense = self.cache.get(key.any_recompute), self.cache.get(key.dense)
            like, same = (one.of if one else None for one in (base, dense))
            found = RankParts(rank_parts(self.model, plan, self.framework, like, same, self.cache.written))
            for each in (key, key.any_recompute, key.dense):
                self.cache.find(each, partial(_same, found))
        return cast(RankParts, found)

    def _find_layers(self, jobs: Sequence[PlanJob]) -> None:
        """Time one rank's passes over the parts of the model under each plan."""
        cache = self.cache
        first = {job.passes: job for job in reversed(jobs) if cache.get(job.passes) is None}
        cases = (case for job in first.values() for case in list_cases(job.parts, job.prices))
        cache.fill(dict.fromkeys(cases))
        for key, job in first.items():
            like, dense = cache.get(key.any_recompute), cache.find(key.dense, dict[int, PartTimes])
            found = RankPasses(job.parts, job.plan.dtype, self.framework, job.prices, job.splits, like, dense)
            for each in (key, key.any_recompute):
                cache.find(each, partial(_same, found))
        for job in jobs:
            job.layers = cache.get(job.passes)

    def _order(self, plan: TrainingPlan, tasks: bool = False) -> Schedule | None:
        """Return the order of a plan's pipeline; None if it is timed without its tasks and they are not asked for."""
        if is_slotted(plan.schedule) and not tasks and (plan.pp > 1 or plan.chunks == 1):
            return None
        key = OrderKey(plan.schedule, plan.pp, plan.micro_batches)
        return self.cache.find(key, lambda: schedule(*key))

    def _structure(self, plan: TrainingPlan, names: tuple[str, ...], order: Schedule | None) -> StageLayout:
        def structure() -> StageLayout:
            count = order.stages if order else plan.pp * plan.chunks
            stages = [stages_on(order, at) for at in range(plan.pp)] if order else in_rounds(plan.pp, count)
            return StageLayout(stages, stage_counts(self.model, count, plan, names))

        return self.cache.find(StageKey(plan.pp, plan.chunks, plan.layers, id(order)), structure)

    def _find_pipes(self, jobs: Sequence[PlanJob]) -> None:
        """Find the pipeline of each plan, not yet timed."""
        found: dict[tuple[object, ...], PipelineBatch] = {}
        for job in jobs:
            plan = job.plan
            gathers = (plan.shard, plan.ep) if plan.gathers_each_pass else ()
            same = id(job.layers), id(job.structure), plan.schedule, plan.dp, plan.micro_batches, plan.offload
            key = *same, gathers
            if key not in found:
                found[key] = self._pipe(job)
            job.pipe = found[key]

    def _pipe(self, job: PlanJob) -> PipelineBatch:
        plan, counts = job.plan, job.structure.counts
        send = self._send(plan, job.prices)
        if plan.gathers_each_pass:
            windows = self._gather_windows(job)
            each = [self._time_gathers(stage, plan, job.prices, windows) for stage in self._stages(job)]
            return PipelineBatch(job, [*np.array(each).T, np.zeros(len(each))], send)
        forward, backward, weight = job.layers.seconds(counts)
        if plan.offload == "activations":
            moved = seconds_to_host(1.0, job.prices.gpu) * job.parts.offloaded_bytes(counts)
            forward, backward = np.maximum(forward, moved), np.maximum(backward, moved)
        return PipelineBatch(job, [forward, backward, weight], send)

    def _stages(self, job: PlanJob) -> list[list[PartTimes]]:
        """Return the passes over the parts of each stage, in their order."""
        names = chunks_of(self.model, len(job.structure.counts), job.plan)
        return [[job.layers.parts[name] for name in stage] for stage in names]

    def _send(self, plan: TrainingPlan, prices: OperatorTimes) -> Send:
        """Return what it takes to send a micro-batch's activations, under sequence parallelism a rank's share, to a
        stage.

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

    def _time_gathers(
        self, stage: Sequence[PartTimes], plan: TrainingPlan, prices: OperatorTimes, windows: Windows
    ) -> FloatArray:
        """Forward and backward [s] of a rank that gathers the weights of its parts one by one.

        Between a part and the next but one nothing waits, so that equal layers soon take equally long, two by two.
        """
        if self.framework.launch or plan.offload == "activations":
            chunk = time_stage(stage, plan, self.framework, prices, windows)
            return np.array([chunk.forward.seconds, chunk.backward.seconds])
        whole = gather_weights(stage, plan, self.framework, prices, windows)
        alike = id(windows), plan.shard, plan.ep, plan.sp, plan.order

        def of(most: int) -> FloatArray:
            parts, moved = ([*each[: 1 + most], each[-1]] for each in (stage, whole.gather))
            key = GatherKey(*alike, tuple(id(part.forward) for part in parts))
            own = whole._replace(gather=moved, scatter=[*whole.scatter[: 1 + most], whole.scatter[-1]])
            forward = self.cache.find(key, lambda: forward_seconds(parts, own))
            return np.array([forward, backward_seconds(parts, own)])

        count = len(stage) - 2
        if len(set(map(id, stage[1:-1]))) != 1 or count <= 2 * _FEW:
            return of(count)
        few = _FEW + count % 2
        less, some, more = (of(few + extra) for extra in (0, 2, 4))
        if not np.allclose(more - some, some - less, rtol=1e-9, atol=0.0):
            return of(count)
        pairs: FloatArray = more + (more - some) * ((count - few - 4) // 2)
        return pairs


def ends(epilogue: StepEpilogue, pipes: Sequence[PipelineBatch]) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return the ends of the steps of plans in their pipelines, as of `StepEpilogue.ends`."""
    busy, done = [pipe.busy for pipe in pipes], np.array([pipe.done for pipe in pipes])
    return epilogue.ends(done, None if busy[0] is None else np.array(busy))


def _same(found: T) -> T:
    return found


def _slowdowns(layers: RankPasses, shares: Shares, around: EpilogueTimes, windows: Windows) -> Slowdowns:
    """Return what passes and collectives of replicas cost each other on a device."""

    def factors(forward: bool, moved: Collective | None) -> tuple[float, float]:
        return (1.0, 1.0) if moved is None else windows.of_times(layers.beside(shares, forward), moved)

    whole = layers.beside(shares, True).whole
    return *factors(False, around.reduced), *factors(True, around.gathered), whole


def _busiest(
    jobs: Sequence[PlanJob], seconds: Callable[[PlanJob], FloatArray], decides: Callable[[PlanJob], Hashable]
) -> FloatArray:
    """Return lower bounds of the times of plans [s]: the passes of the busiest device alone, which waits for a
    micro-batch to reach it, and after its last task for the way back.

    `seconds` are those of a micro-batch on each stage, which `decides` names.
    """
    known: dict[tuple[object, ...], float] = {}

    def least(job: PlanJob) -> float:
        plan, structure = job.plan, job.structure
        key = decides(job), id(structure), plan.schedule, plan.micro_batches
        if key not in known:
            each = seconds(job)
            busy = plan.micro_batches * np.append(each, 0.0)[structure.stages].sum(axis=1)
            if job.order is None:  # stages go round and round the devices
                busy = busy + np.append(0.0, np.cumsum(each))[: len(busy)]
            known[key] = float(busy.max())
        return known[key]

    return np.array([least(job) for job in jobs])


def _run(pipes: Iterable[PipelineBatch]) -> None:
    """Time the pipelines, those of the same schedule without tasks at once."""
    alike: dict[tuple[object, ...], list[PipelineBatch]] = {}
    for pipe in pipes:
        plan = pipe.job.plan
        if pipe.job.order is None:
            alike.setdefault((plan.schedule, plan.pp, plan.micro_batches, len(pipe.seconds[0])), []).append(pipe)
        else:
            pipe.run()
    for mine in alike.values():
        plan = mine[0].job.plan
        kind = "gpipe" if plan.schedule == "gpipe" else "1f1b" if plan.chunks == 1 else "interleaved"
        times = (np.array([one.seconds[at] for one in mine]) for at in (0, 1))
        sends = (np.array([getattr(one.send, name) for one in mine], float) for name in ("latency", "sender_busy"))
        each = last_backwards(kind, plan.pp, plan.chunks, plan.micro_batches, *times, *sends)
        for one, last in zip(mine, each, strict=True):
            stages = one.job.structure.stages
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


_EPILOGUE_FIELDS = attrgetter(*HELD, "schedule", "layers", "order", "sequence")
"""The fields of a plan that decide what surrounds its passes, beside the method of overlap of its replicas."""
