"""Step times and peaks of memory of many plans: what they have in common is found once, the rest is arrays."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from weft.graph import Collective
from weft.hardware import System
from weft.models import Transformer
from weft.options import SUSTAINED, RunOptions
from weft.parallel.framework import Framework
from weft.parallel.plan import Parallelism
from weft.run.step.clock import at_held_clock, send_between, timed_chunk, train
from weft.run.step.many.layers import Key, Layers, Parts, cases_of, layer_key, part_key
from weft.run.step.many.peaks import peaks
from weft.run.step.many.structure import Shares, Structure, composition
from weft.run.step.many.tails import Fixed, Slowed, Updates, ends, fixed
from weft.run.step.memory import memory
from weft.run.step.offload import seconds_to_host
from weft.run.step.overlaps import settled
from weft.run.step.parts import rank_parts
from weft.run.step.prices import Case, Known, Prices
from weft.run.step.windows import MOST_BYTES, Windows
from weft.schedule.pipeline.many import SLOTTED, last_backwards

FloatArray = NDArray[np.float64]


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
    parts: dict[Key, Parts] = field(default_factory=dict)
    layers: dict[Key, Layers] = field(default_factory=dict)
    structures: dict[Key, Structure] = field(default_factory=dict)
    surroundings: dict[Key, list[Fixed]] = field(default_factory=dict)
    windows: dict[Key, Windows] = field(default_factory=dict)
    factors: dict[Key, tuple[float, float]] = field(default_factory=dict)


def shared_on(system: System, framework: Framework, options: RunOptions = SUSTAINED) -> Shared:
    """What plans of a framework on the GPUs of a system will share."""
    return Shared(Known(at_held_clock(system, framework)[0], options))


def many(
    model: Transformer,
    system: System,
    plans: Sequence[Parallelism],
    framework: Framework | None = None,
    options: RunOptions = SUSTAINED,
    shared: Shared | None = None,
    *,
    limit: float = np.inf,
) -> Many:
    """Step times and peaks of plans that fit the model and the system, as `train` and `memory` give them.

    1F1B, GPipe and interleaved 1F1B are timed together, plans of other schedules one by one. `shared` holds what calls
    for the same model, GPUs and framework have in common. Plans with peaks above `limit` [bytes] are not timed: their
    times are infinite.
    """
    found = Many(*np.full((5, len(plans)), np.inf))
    used = framework or Framework()
    shared = shared or shared_on(system, used, options)
    alike: dict[Key, list[int]] = {}
    for at, plan in enumerate(plans):
        if is_slotted(plan.schedule):
            alike.setdefault(tuple(sorted(plan.overlap.items())) if plan.overlap else (), []).append(at)
            continue
        found.peak_bytes[at] = memory(model, system, plan, used).peak
        if found.peak_bytes[at] <= limit:
            found.seconds[at] = train(model, system, plan, used, options, "estimate").seconds
    with _uncollected():
        for mine in alike.values():
            batch = _Batch(model, system, settled(used, plans[mine[0]]), shared)
            batch.fill(found, np.array(mine), [plans[at] for at in mine], limit)
    return found


@contextmanager
def _uncollected() -> Iterator[None]:
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
    kind, _, chunks = name.partition(":")
    return kind in SLOTTED and (chunks.isdigit() if kind == "interleaved" else not chunks)


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
    """Plans with the same layers, stages and micro-batches: forwards, backwards, and ends of the last backwards [s]."""

    layers: Layers
    plan: Parallelism
    structure: Structure
    forward: FloatArray
    backward: FloatArray
    latency: float
    busy: float
    last: FloatArray = field(default_factory=lambda: np.empty(0))

    @property
    def parts(self) -> Parts:
        """What the rank has of the model."""
        return self.layers.of


class _Batch:
    """Plans of the same framework with the same methods of overlap."""

    def __init__(self, model: Transformer, system: System, framework: Framework, shared: Shared) -> None:
        self.model, self.system, self.framework, self.shared = model, system, framework, shared

    def fill(self, found: Many, at: NDArray[np.int64], plans: Sequence[Parallelism], limit: float) -> None:
        """Write times and peaks of the plans to their places."""
        keys = [part_key(plan, self.framework) for plan in plans]
        parts = self._parts(plans, keys)
        structures = [self._structure(plan, one.names) for plan, one in zip(plans, parts, strict=True)]
        needed = found.peak_bytes[at] = peaks(plans, parts, structures, self.framework)
        fit = np.flatnonzero(needed <= limit).tolist()
        plans, structures = [plans[number] for number in fit], [structures[number] for number in fit]
        layers = self._layers(plans, [keys[number] for number in fit], [parts[number] for number in fit])
        pipes = self._pipes(plans, layers, structures)
        _run({id(one): one for one in pipes}.values())
        around = [_surroundings(plan, self.framework) for plan in plans]
        self._surround(plans, around, pipes)
        alike: dict[int, list[int]] = {}
        for number, structure in enumerate(structures):
            alike.setdefault(id(structure), []).append(number)
        for mine in alike.values():
            slowed = self._slowed([(plans[number], pipes[number], around[number]) for number in mine])
            rows = [self.shared.surroundings[around[number]] for number in mine]
            self._finish(found, at[fit][mine], [pipes[number] for number in mine], rows, slowed)

    def _surround(self, plans: Sequence[Parallelism], keys: Sequence[Key], pipes: Sequence[_Pipe]) -> None:
        """Find what surrounds the passes of plans, as far as it is not known: its operators first, then their times."""
        found, known = self.shared.surroundings, self.shared.known
        first = {key: number for number, key in reversed(list(enumerate(keys))) if key not in found}
        recorder = _Recorder(known)
        for asked in (recorder, known):
            updates: Updates = {}
            for key, number in first.items():
                plan, pipe = plans[number], pipes[number]
                prices = self._prices(plan, asked)
                found[key] = fixed(self.model, plan, self.framework, prices, pipe.structure, pipe.parts, updates)
            known.fill(recorder.cases)

    def _finish(
        self,
        found: Many,
        places: NDArray[np.int64],
        pipes: Sequence[_Pipe],
        rows: Sequence[Sequence[Fixed]],
        slowed: Sequence[Sequence[Slowed]],
    ) -> None:
        """Write times of plans with the same stages to their places."""
        last, backward = np.array([one.last for one in pipes]), np.array([one.backward for one in pipes])
        parts = ends(pipes[0].structure, self.framework, last, backward, rows, slowed)
        found.pipeline[places], found.reduce[places], found.update[places] = parts
        found.seconds[places] = sum(parts)

    def _slowed(self, plans: Sequence[tuple[Parallelism, _Pipe, Key]]) -> list[list[Slowed]]:
        """What passes and collectives of replicas cost each other, for plans with the same stages."""
        found: dict[tuple[int, Key], list[Slowed]] = {}
        windows: dict[Key, Windows] = {}
        rows = []
        for plan, pipe, key in plans:
            layers = pipe.layers.like
            case = id(layers), key
            if case not in found:
                if key not in windows:
                    windows[key] = self._windows(plan)
                shares, fixed = pipe.structure.shares, self.shared.surroundings[key]
                pairs = zip(shares, fixed, strict=True)
                found[case] = [self._slow(layers, each, one, windows[key]) for each, one in pairs]
            rows.append(found[case])
        return rows

    def _windows(self, plan: Parallelism) -> Windows:
        """The windows of the replicas under a plan, those of the same place once."""
        prices = self._prices(plan)
        key = prices.place("dp", plan.dp * plan.cp), plan.dtype, plan.overlap.get("dp")
        return self.shared.windows.setdefault(key, prices.windows)

    def _slow(self, layers: Layers, shares: Shares, fixed: Fixed, windows: Windows) -> Slowed:
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
        return Slowed(*factors(False, fixed.reduced), *factors(True, fixed.gathered), whole)

    def _parts(self, plans: Sequence[Parallelism], keys: Sequence[Key]) -> list[Parts]:
        """One rank's share of the parts of the model under each plan."""
        found = self.shared.parts
        for key, plan in zip(keys, plans, strict=True):
            if key not in found:
                base = found.get(key[1:])
                found[key] = Parts(rank_parts(self.model, plan, self.framework, base.of if base else None))
                found.setdefault(key[1:], found[key])
        return [found[key] for key in keys]

    def _layers(self, plans: Sequence[Parallelism], of: Sequence[Key], parts: Sequence[Parts]) -> list[Layers]:
        """The passes over the parts of each plan."""
        found, known = self.shared.layers, self.shared.known
        keys = [layer_key(plan, key) for plan, key in zip(plans, of, strict=True)]
        first = {key: at for at, key in reversed(list(enumerate(keys))) if key not in found}
        prices = {key: self._prices(plans[at], known) for key, at in first.items()}
        known.fill(dict.fromkeys(case for key, at in first.items() for case in cases_of(parts[at], prices[key])))
        for key, at in first.items():
            found[key] = Layers(parts[at], plans[at].dtype, self.framework, prices[key], found.get(key[1:]))
            found.setdefault(key[1:], found[key])
        return [found[key] for key in keys]

    def _prices(self, plan: Parallelism, known: Known | None = None) -> Prices:
        return Prices(self.system, plan, self.shared.known.options, known=known or self.shared.known)

    def _structure(self, plan: Parallelism, names: tuple[str, ...]) -> Structure:
        key = plan.pp, plan.chunks, plan.layers
        structures = self.shared.structures
        if key not in structures:
            structures[key] = Structure(plan.pp, composition(self.model, plan.pp * plan.chunks, plan, names))
        return structures[key]

    def _pipes(
        self, plans: Sequence[Parallelism], layers: Sequence[Layers], structures: Sequence[Structure]
    ) -> list[_Pipe]:
        """The pipeline of each plan."""
        found: dict[Key, _Pipe] = {}
        pipes = []
        for plan, one, structure in zip(plans, layers, structures, strict=True):
            gathers = (plan.shard, plan.ep) if plan.gathers_each_pass else ()
            key = id(one), id(structure), plan.schedule, plan.dp, plan.micro_batches, plan.offload, gathers
            if key not in found:
                found[key] = self._pipe(plan, one, structure)
            pipes.append(found[key])
        return pipes

    def _pipe(self, plan: Parallelism, layers: Layers, structure: Structure) -> _Pipe:
        prices = self._prices(plan)
        send = send_between(self.model, plan, self.framework, prices)
        if plan.gathers_each_pass:
            key = plan.tp, plan.cp, plan.dp, plan.dtype, plan.overlap.get("dp")
            prices.windows = self.shared.windows.setdefault(key, prices.windows)
            forward, backward = self._gathered(plan, layers, structure.of.counts[0].tolist(), prices)[:, None]
        else:
            forward, backward = layers.seconds(structure.of)
        if plan.offload == "activations":
            moved = seconds_to_host(1.0, prices.gpu) * layers.of.sent(structure.of)
            forward, backward = np.maximum(forward, moved), np.maximum(backward, moved)
        latency, busy = (float(np.max(each)) for each in (send.latency, send.sender_busy))
        return _Pipe(layers, plan, structure, forward, backward, latency, busy)

    def _gathered(self, plan: Parallelism, layers: Layers, counts: list[int], prices: Prices) -> FloatArray:
        """Forward and backward [s] of a rank that gathers its weights part by part.

        Between a part and the next but one nothing waits, so that equal layers soon take equally long, two by two.
        """

        def of(parts: Sequence[int]) -> FloatArray:
            row = [part for part, count in zip(layers.parts.values(), parts, strict=True) for _ in range(count)]
            found = timed_chunk(row, plan, self.framework, prices)
            return np.array([found.forward.seconds, found.backward.seconds])

        if len(counts) != 3 or counts[1] <= 2 * _FEW or self.framework.launch:
            return of(counts)
        few = _FEW + counts[1] % 2
        less, some, more = (of([counts[0], few + extra, counts[2]]) for extra in (0, 2, 4))
        if not np.allclose(more - some, some - less, rtol=1e-9, atol=0.0):
            return of(counts)
        pairs: FloatArray = more + (more - some) * ((counts[1] - few - 4) // 2)
        return pairs


def _run(pipes: Iterable[_Pipe]) -> None:
    """Time the pipelines, those of the same schedule at once."""
    alike: dict[Key, list[_Pipe]] = {}
    for pipe in pipes:
        plan = pipe.plan
        alike.setdefault((plan.schedule, plan.pp, plan.micro_batches, len(pipe.forward)), []).append(pipe)
    for mine in alike.values():
        plan, names = mine[0].plan, ("forward", "backward", "latency", "busy")
        kind = "gpipe" if plan.schedule == "gpipe" else "1f1b" if plan.chunks == 1 else "interleaved"
        times = (np.array([getattr(one, name) for one in mine]) for name in names)
        for one, last in zip(mine, last_backwards(kind, plan.pp, plan.chunks, plan.micro_batches, *times), strict=True):
            one.last = last


def _surroundings(plan: Parallelism, framework: Framework) -> Key:
    """All of a plan that decides what surrounds its passes, and how the framework overlaps it."""
    return (
        framework.dp_overlap, framework.gather_overlap, plan.overlap.get("dp"),
        plan.tp, plan.sp, plan.cp, plan.ep, plan.pp, plan.dp, plan.zero, plan.shard, plan.schedule, plan.layers,
        plan.dtype, plan.quantize, plan.order, plan.sequence, plan.offload,
    )  # fmt: skip
