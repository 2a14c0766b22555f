"""The search over uniform plans: all of them in closed forms, the best ones again with the engine's windows."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from math import inf
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft import hardware
from weft.errors import InputError, check_name, check_type, check_whole, shown
from weft.hardware import System
from weft.hardware.resolve import Described
from weft.models import Transformer, load_model
from weft.options import RESERVE, SUSTAINED, RunOptions
from weft.parallel.check import degrees
from weft.parallel.framework import Framework, current_frameworks
from weft.parallel.framework import framework as framework_of
from weft.parallel.plan import TrainingPlan
from weft.plan.launch import LAUNCHERS
from weft.plan.plans import Planned, Plans, Setting, roomiest_first
from weft.plan.space import Space, smaller, space
from weft.result.errors import step_error
from weft.run.step.batch import uncollected
from weft.run.step.clock import many, meetings, train
from weft.run.step.meeting import Meeting
from weft.run.step.prices import DurationCache
from weft.run.step.pruning import ParetoFront, Pruning
from weft.store import Store
from weft.store.task import question
from weft.sweep.tasks import Progress, results

FloatArray = NDArray[np.float64]
OBJECTIVES: Mapping[str, Callable[[Planned], tuple[float, ...]]] = {
    "tokens/s": lambda one: (one.step_time_s, one.peak_bytes),
    "memory": lambda one: (one.peak_bytes, one.step_time_s),
    "cost": lambda one: (one.gpu_seconds, one.step_time_s),
}
"""What is least in the best plan: the step time on all GPUs, the peak of memory, the GPU-seconds of a step."""
_BASES = ("megatron-bridge-2026", "megatron-bridge", "megatron-core", "torchtitan")
"""Frameworks under which all plans are timed, the first that runs on the machine of those with whole weights on each
rank and of those that share them; the others of `current_frameworks` run only the fastest of these plans."""
_ADOPTED = 300
"""Fastest plans of a framework that the others of its kind are tried with."""
_LARGER = (2, 4, 8, 16, 32, 64)
"""How many times more GPUs are tried for a model that does not fit."""
_EXCHANGED = 1_000
"""Fastest plans of a mixture that are tried with each library that exchanges tokens, and with EP overlap: first all run
the framework's.
"""
_BETWEEN = 8
"""Most numbers of GPUs that are tried between a machine that holds the model and its half."""


def plan(
    model: Transformer | str | Path,
    system: Described,
    *,
    batch: int | None = None,
    sequence: int | None = None,
    framework: Framework | str | None = None,
    fix: Mapping[str, Any] | None = None,
    objective: str = "tokens/s",
    top: int = 10,
    refine: int = 100,
    budget_s: float = 30.0,
    launcher: str = "",
    reserve: float = RESERVE,
    options: RunOptions = SUSTAINED,
    progress: Progress | None = None,
) -> Plans:
    """The best plans of a training step of `batch` sequences on a system, and why the others are not.

    Every uniform plan that fills the GPUs is timed in closed forms; the best `refine` again with the engine's windows,
    for at most `budget_s` seconds. The fastest plans of a mixture are also tried with the other libraries that
    exchange tokens, and with EP overlap. `fix` gives fields of the plan (`weft.TrainingPlan`) a value, or lists of
    values to choose from. Without a `framework`, those of today's frameworks are tried that run on the machine: all
    plans under one of each kind, the fastest of them under the others. The `objective` is "tokens/s" (least step time
    on all GPUs), "memory" (least peak), or "cost" (least GPU-seconds of a step, on all GPUs or fewer). Without a
    `sequence` it is the model's context. With a `launcher` ("megatron", "torchtitan" or "deepspeed"), all plans are
    ones that it has options for, timed with the defaults of its framework. `progress(done, total, what)` is called
    before each of the slow parts.

    A plan fits if it leaves a share `reserve` of each GPU's memory free. Of plans within 2 % of the fastest, the one
    that leaves most memory free is best, and of those that leave as much, the fastest.

    Raises UnknownNameError for unknown names, InputError for contradicting fields, and for a system that holds the
    model under no plan, with the least number of GPUs that would.

    >>> found = plan("gpt-3", "64xa100", batch=64, fix={"tp": 8, "pp": 8, "micro_batch": 1}, refine=0)
    >>> found.best.plan.tp
    8
    """
    begin = perf_counter()
    check_name("objective", objective, OBJECTIVES)
    if batch is None:
        raise InputError("a plan is for a number of sequences in each step; give it, like batch=512")
    for name, value, least in (("batch", batch, 1), ("top", top, 1), ("refine", refine, 0)):
        check_whole(name, value, least, 10)
    check_type("reserve", reserve, (int, float), "give the share of memory that stays free, like 0.04")
    if not 0 <= reserve < 1:
        raise InputError(f"reserve is {shown(reserve)}; give the share of memory that stays free, from 0 to below 1")
    found = load_model(model)
    where = hardware.system(system)
    length = found.sequence_length if sequence is None else sequence
    check_whole("sequence", length, 1, 2048)
    if launcher:
        check_name("launcher", launcher, LAUNCHERS)
        framework = framework or LAUNCHERS[launcher].framework
    used = _frameworks(framework, fix or {}, where)
    say = progress or (lambda done, total, what: None)
    say(0, 0, "all plans in closed forms")
    key = OBJECTIVES[objective]
    between = tuple(name for name, value in (fix or {}).items() if isinstance(value, list | tuple) and len(value) > 1)
    fronts: defaultdict[int, ParetoFront] | None = None if objective == "cost" else defaultdict(ParetoFront)
    prunes = objective == "tokens/s" and not between
    searches = [
        _Search(
            [replace(space(found, where, one, batch, length, fix or {}), launcher=launcher) for one in alike],
            options, reserve, say, max(refine, top),
        )
        for alike in used
    ]  # fmt: skip
    rejected: Counter[str] = Counter()
    with uncollected():
        timed = [
            one
            for each in searches
            for one in each.timed(rejected, front=fronts[where.gpus] if fronts is not None and prunes else None)
        ]
        if not timed:
            raise InputError(_impossible(searches, rejected))
        searched = len(timed) + sum(each.excluded for each in searches) + sum(rejected.values())
        fewer = [one for each in searches for one in each.on_fewer(fronts)]
    ranked = _ranked([*timed, *fewer] if objective == "cost" else timed, key, max(refine, top))
    refined = _refined(ranked[:refine], perf_counter() + budget_s, say)
    best = sorted(refined, key=key) + ranked[len(refined) :]
    moved = sum(one.place != place for place, one in enumerate(best[: len(refined)], 1))
    if objective != "memory":
        best = roomiest_first(best)
    low, high = best[0].range_s
    return Plans(
        found,
        where,
        objective,
        tuple(replace(one, tied=one.range_s[0] <= high and one.range_s[1] >= low) for one in best[:top]),
        searched,
        dict(rejected.most_common()),
        perf_counter() - begin,
        _front([*timed, *fewer]),
        tuple(best),
        len(refined),
        moved,
        best[0].setting.error.why,
        launcher,
        (*_notes(len(refined), min(refine, len(ranked))), *_searched(used, best[0].setting.framework)),
        between,
        partial(_all_timed, searches, key) if prunes else None,
    )


def _ranked(plans: Sequence[Planned], key: Callable[[Planned], tuple[float, ...]], placed: int) -> list[Planned]:
    """Return plans from the best on, the first `placed` with their places."""
    ranked = sorted(plans, key=key)
    return [replace(one, place=place) for place, one in enumerate(ranked[:placed], 1)] + ranked[placed:]


def _all_timed(searches: Sequence[_Search], key: Callable[[Planned], tuple[float, ...]]) -> list[Planned]:
    """Return all plans that fit, those that bounds excluded at first among them, best first."""
    with uncollected():
        return sorted((one for each in searches for one in each.timed(Counter())), key=key)


def _notes(refined: int, wanted: int) -> tuple[str, ...]:
    if refined == wanted:
        return ()
    said = (
        f"The time was up after {refined} of {wanted} plans were timed again with the engine's windows; the windows so "
        "far are kept on disk, and the next search goes on from there; --refine N, or in Python a larger "
        "budget_s, gives it more time."
    )
    return (said,)


def _searched(used: Sequence[Sequence[Framework]], chosen: Framework) -> tuple[str, ...]:
    """Say under which frameworks plans were timed, and how to see what the chosen one turns on."""
    if sum(map(len, used)) == 1:
        return ()
    bases = " and ".join(alike[0].name for alike in used)
    others = ", ".join(one.name for alike in used for one in alike[1:])
    more = f"; the {_ADOPTED} fastest of each also under {others}" if others else ""
    said = (
        f"All plans were timed under {bases}{more}; --framework names one, and 'weft frameworks show {chosen.name}' "
        "says what it turns on."
    )
    return (said,)


def _frameworks(named: Framework | str | None, fix: Mapping[str, Any], where: System) -> list[list[Framework]]:
    """Return the frameworks whose plans are searched: the one that is named, or by kind those of today that run on the
    machine under the recipes and stages of ZeRO that `fix` has, first the one under which all plans are timed.
    """
    if named is not None:
        return [[named if isinstance(named, Framework) else framework_of(named)]]
    zero, recipes = (value if isinstance(value, list | tuple) else [value] for value in map(fix.get, _DECIDING))
    running = [
        one
        for one in map(framework_of, current_frameworks())
        if not any(one.unlike(where.gpu, recipe or "") for recipe in recipes)
        and (zero == [None] or any((stage == 3) == (one.zero == 3) for stage in zero))
    ]

    def base_first(one: Framework) -> int:
        return _BASES.index(one.name) if one.name in _BASES else len(_BASES)

    kinds = ([one for one in running if (one.zero == 3) == shards] for shards in (False, True))
    return [sorted(alike, key=base_first) for alike in kinds if alike]


_DECIDING = "zero", "precision"
"""Fields of a plan that decide which frameworks are searched."""


def _fastest(seconds: FloatArray, fits: NDArray[np.bool_]) -> list[int]:
    """Places of the fastest of the plans that fit, as many as are tried with other libraries that exchange tokens."""
    places = np.flatnonzero(fits)
    found: list[int] = places[np.argsort(seconds[places], kind="stable")][:_EXCHANGED].tolist()
    return found


_AT_ONCE = 5000
"""Plans that are timed together, between two reports of progress."""
_QUICK = 20_000
"""Plans that are timed without reports: a few seconds."""


class _Search:
    """The search of a space, whose plans on all GPUs and on fewer share what they have in common.

    The fastest plans of the first of `spaces` are also timed under the frameworks of the others.
    """

    def __init__(
        self, spaces: Sequence[Space], options: RunOptions, reserve: float, say: Progress, fastest: int
    ) -> None:
        self.space, self.options, self.reserve, self._say = spaces[0], options, reserve, say
        self._spaces, self._fastest = spaces, fastest
        self.excluded = 0
        self._shared = [DurationCache(one.system, options) for one in spaces]

    def timed(self, rejected: Counter[str], gpus: int | None = None, front: ParetoFront | None = None) -> list[Planned]:
        """The plans on all GPUs, or on `gpus`, that fit the memory; the others are `rejected`, by reason.

        With a `front` to which plans are added, those that can neither be on it nor among the fastest that are asked
        for are left out, and `excluded` counts them.
        """
        self.excluded = 0
        of, *others = self._spaces if gpus is None else [smaller(one, gpus) for one in self._spaces]
        plans = list(of.candidates(rejected))
        if not plans:
            return []
        least = self._fastest if gpus is None else 0
        adopted = max(_ADOPTED if others else 1, least)
        found = self._fitting(of, self._shared[0], plans, rejected, True, adopted, front)
        fastest = [one.plan for one in sorted(found, key=lambda one: one.step_time_s)[:_ADOPTED]]
        for other, shared in zip(others, self._shared[1:], strict=True):
            exchange = other.dispatchers != of.dispatchers
            found += self._fitting(other, shared, list(other.adopted(fastest)), rejected, exchange, least, front)
        return found

    def _fitting(
        self,
        of: Space,
        shared: DurationCache,
        plans: list[TrainingPlan],
        rejected: Counter[str],
        exchange: bool,
        fastest: int,
        front: ParetoFront | None,
    ) -> list[Planned]:
        """Return those of the plans that fit; if `exchange`, also with the framework's other libraries of exchange.

        With a `front`, these are those that may be on it, and the `fastest`, so many.
        """
        if not plans:
            return []
        capacity = (1 - self.reserve) * of.system.gpu.memory.capacity
        exchange = exchange and of.exchanges_otherwise
        pruning = None if front is None else Pruning(front, max(fastest, _EXCHANGED * exchange))
        seconds, peaks = self._clocked(of, shared, plans, capacity, pruning)
        changed = _fastest(seconds, peaks <= capacity) if exchange else []
        others = list(of.exchanged_otherwise(plans[at] for at in changed))
        if others:
            if pruning:
                pruning = pruning.of_fewer(fastest)
            found = (seconds, peaks), self._clocked(of, shared, others, capacity, pruning)
            plans, (seconds, peaks) = plans + others, map(np.concatenate, zip(*found, strict=True))
        fits = peaks <= capacity
        if not fits.all():
            rejected[_too_large(peaks[~fits], of.system.gpu.memory.capacity, self.reserve, of.framework)] += int(
                (~fits).sum()
            )
        error = step_error(of.system.gpu, of.framework.name, bool(of.model.experts))
        on = Setting(of.model, of.system, of.framework, self.options, error)
        self.excluded += int((fits & np.isinf(seconds)).sum())
        rows = zip(seconds.tolist(), peaks.tolist(), strict=True)
        return [
            Planned(plan, seconds, peak, on, estimated_s=seconds)
            for plan, (seconds, peak) in zip(plans, rows, strict=True)
            if peak <= capacity and seconds < inf
        ]

    def _clocked(
        self,
        of: Space,
        shared: DurationCache,
        plans: Sequence[TrainingPlan],
        capacity: float,
        pruning: Pruning | None = None,
    ) -> tuple[FloatArray, FloatArray]:
        """Step times [s] and peaks of memory [bytes] of plans; the time of one that is excluded is infinite."""
        seconds, peaks = [], []
        for at in range(0, len(plans), _AT_ONCE):
            if len(plans) > _QUICK:
                self._say(at, len(plans), f"plans of {of.framework.name} on {of.system.gpus:,} GPUs in closed forms")
            some = plans[at : at + _AT_ONCE]
            found = many(of.model, of.system, some, of.framework, self.options, shared, limit=capacity, pruning=pruning)
            seconds.append(found.seconds)
            peaks.append(found.peak_bytes)
        return np.concatenate(seconds), np.concatenate(peaks)

    def on_fewer(self, fronts: Mapping[int, ParetoFront] | None) -> Iterator[Planned]:
        """The plans on half the GPUs, a quarter, and so on, as long as one fits; with `fronts` by their GPUs, those
        that may be on one. Numbers of GPUs that nodes cannot share evenly are left out.
        """
        gpus = self.space.system.gpus
        while gpus % 2 == 0 and self.space.fits_on(gpus // 2):
            gpus //= 2
            if not self.space.system.can_have(gpus):
                continue
            found = self.timed(Counter(), gpus, fronts[gpus] if fronts is not None else None)
            if not found:
                return
            yield from found


def _too_large(peaks: FloatArray, capacity: int, reserve: float, framework: Framework) -> str:
    room = (1 - reserve) * capacity / 1e9
    least, most = (f"{size / 1e9:,.0f}" for size in (peaks.min(), peaks.max()))
    if round(peaks.min() / 1e9) <= room:
        least = f"just over {room:,.3g}"
    free = f", of which {reserve:.0%} stay free" if reserve else ""
    who = framework.title or framework.name
    return f"needs {least} to {most} GB with {who}, and a GPU has {capacity / 1e9:,.0f}{free}"


def _refined(ranked: Sequence[Planned], until: float, say: Progress) -> list[Planned]:
    """The same plans, timed with the engine's windows, as long as there is time for the windows of the next one."""
    store, refined = Store(), list[Planned]()
    for at, one in enumerate(ranked):
        say(at, len(ranked), "plans with the engine's windows")
        on = one.setting
        asked = meetings(on.model, on.system, one.plan, on.framework, on.options)
        if not all(_simulated(task, store, until) for task in asked):
            break
        seconds = train(on.model, on.system, one.plan, on.framework, on.options, "windows").seconds
        refined.append(replace(one, step_time_s=seconds, fidelity="windows"))
    return refined


def _simulated(task: Meeting, store: Store, until: float) -> bool:
    """Whether a window is on disk, simulated now if there is time; one that the engine refuses needs none."""
    if perf_counter() > until:
        return store.get(question(task)) is not None
    with suppress(InputError):
        results([task], dict, store=store)
    return True


def _front(plans: Sequence[Planned]) -> tuple[Planned, ...]:
    """The plans that no other one beats in step time, peak of memory and number of GPUs at once, fastest first."""
    front: list[Planned] = []
    least: dict[int, float] = {}  # peak of the plans so far on so many GPUs
    for one in sorted(plans, key=lambda one: (one.step_time_s, one.peak_bytes, one.gpus)):
        gpus, peak = one.gpus, one.peak_bytes
        if not any(size <= peak for used, size in least.items() if used <= gpus):
            least[gpus] = peak
            front.append(one)
    return tuple(front)


def _impossible(searches: Sequence[_Search], rejected: Mapping[str, int]) -> str:
    """Why no plan runs, and the least number of GPUs that would hold the model, or what to give up."""
    of = searches[0].space
    gpus = of.system.gpus
    why = max(rejected, key=lambda reason: rejected[reason], default="no degrees multiply to its GPUs")
    text = f"no plan of {of.model.title} runs on {gpus:,} GPU{'s' * (gpus > 1)} like {of.system.gpu.name}: {why}"
    if any(reason.startswith("needs") for reason in rejected):
        held = _least_that_hold(searches)
        if held is not None:
            return f"{text}; {held.gpus} GPUs would hold it, as with {degrees(held.plan)}"
        text += f", and up to {_LARGER[-1] * gpus:,} GPUs do not hold it either"
    given = ", ".join(sorted(of.fixed))
    return f"{text}; " + (f"leave {given} out of fix" if given else "take a smaller batch or shorter sequences")


def _least_that_hold(searches: Sequence[_Search]) -> Planned | None:
    """The plan that needs least of each GPU on the smallest larger machine that holds the model; None if none does.

    Machines grow by doubling; then whole nodes below the first that holds it are tried, at most `_BETWEEN` numbers.
    """
    on = searches[0].space.system

    def held(gpus: int) -> Planned | None:
        plans = (one for each in searches for one in each.timed(Counter(), gpus))
        return min(plans, key=lambda one: one.peak_bytes, default=None)

    for doubled in (on.gpus * factor for factor in _LARGER):
        found = held(doubled)
        if found is not None:
            step = max(on.gpus_per_node, doubled // 2 // _BETWEEN) if on.node else max(doubled // 2 // _BETWEEN, 1)
            fewer = (held(gpus) for gpus in range(doubled // 2 + step, doubled, step))
            return next((one for one in fewer if one is not None), found)
    return None
