"""`weft.sample`: which iterations to measure, and what those measured say of all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, get_args

import numpy as np
import numpy.typing as npt

from weft.core.answer import Answer
from weft.core.errors import InputError, check_name, check_whole
from weft.papers.sample.estimators import (
    STRATA,
    Method,
    SampledTotal,
    Speedup,
    allocate,
    draw,
    estimate,
    iterations_for,
    quantile,
    residual_spread,
    speedup,
    strata,
)
from weft.papers.sample.iterations import Iterations, read_log
from weft.papers.sample.seqpoint import BASELINES, Ints, Points, baseline, seqpoints

_NOISE = 0.01
"""Variation of the time of one length, as a fraction [assumed, 0.003 to 0.03; iterations of GNMT in MLPerf 0.4 to 2.5 %
within a bucket]."""
EACH = 4
"""Iterations of each stratum, unless more are needed."""
_HALF_WIDTH = 0.01


@dataclass(frozen=True, eq=False)
class Sample(Answer):
    """Representative iterations of a log, and the total that they project.

    `chosen` are places in the log, `strata` the class of every iteration, `weights` how many iterations each of the
    chosen stands for. `totals` holds an estimate for each machine that was measured, `speedups` that of each against
    the first. `expected` is the half width [fraction] for iterations that vary by `noise`. `others` are choices of
    other methods on the log's first machine, if all of its iterations were measured.
    """

    kind: ClassVar[str] = "sample"
    log: Iterations
    chosen: Ints
    strata: Ints
    totals: dict[str, SampledTotal] = field(default_factory=dict)
    speedups: dict[str, Speedup] = field(default_factory=dict)
    others: dict[str, Points] = field(default_factory=dict)
    expected: float = 0.0
    noise: float = _NOISE
    notes: tuple[str, ...] = ()

    @property
    def weights(self) -> npt.NDArray[np.float64]:
        """How many iterations each of the chosen stands for."""
        share = np.bincount(self.strata) / np.bincount(self.strata[self.chosen], minlength=self.strata.max() + 1)
        return np.asarray(share[self.strata[self.chosen]], np.float64)

    @property
    def total(self) -> SampledTotal | None:
        """The estimate for the first machine; None if nothing was measured."""
        return next(iter(self.totals.values()), None)

    def real(self, machine: str) -> float | None:
        """Return the measured total of all iterations [s]; None if some were not measured."""
        seconds = self.log.times[machine]
        return float(seconds.sum()) * self.log.step if np.isfinite(seconds).all() else None

    @property
    def savings(self) -> tuple[float, float]:
        """How many times less is run than the epoch, if the chosen run in turn and if they run at once."""
        cost = next((one for one in self.log.times.values() if np.isfinite(one).all()), self.log.lengths)
        own = cost[self.chosen]
        return float(cost.sum() * self.log.step / own.sum()), float(cost.sum() * self.log.step / own.max())

    def representatives(self) -> list[dict[str, Any]]:
        """Return the iterations to measure, or measured, in the log's order."""
        return [
            {
                "iteration": int(at),
                "length": float(self.log.lengths[at]),
                "stratum": int(self.strata[at]),
                "weight": float(weight),
                **{name: None if np.isnan(times[at]) else float(times[at]) for name, times in self.log.times.items()},
            }
            for at, weight in zip(self.chosen.tolist(), self.weights.tolist(), strict=True)
        ]

    def to_dict(self) -> dict[str, Any]:
        """The answer as plain data: `estimate`, `low`, `high` [s] of the first machine, `representatives`, and more."""
        total = self.total
        serial, parallel = self.savings
        return {
            "estimate": total and total.value,
            "low": total and total.low,
            "high": total and total.high,
            "iterations": len(self.chosen),
            "of": len(self.log) * self.log.step,
            "representatives": self.representatives(),
            "totals": {name: vars(one) | {"measured": self.real(name)} for name, one in self.totals.items()},
            "speedups": {name: vars(one) for name, one in self.speedups.items()},
            "expected_half_width": self.expected,
            "noise": self.noise,
            "savings": {"in_turn": serial, "at_once": parallel},
            "others": {name: _plain(points, self) for name, points in self.others.items()},
            "notes": list(self.notes),
        }


def _plain(points: Points, answer: Sample) -> dict[str, Any]:
    machine, seconds = next(iter(answer.log.times.items()))
    serial, parallel = points.savings(seconds)
    total = points.total(seconds) * answer.log.step
    return {
        "chosen": points.chosen.tolist(),
        "weights": points.weights.tolist(),
        "estimate": total,
        "error": total / (answer.real(machine) or np.nan) - 1,
        "savings": {"in_turn": serial * answer.log.step, "at_once": parallel * answer.log.step},
    }


def sample(
    log: Iterations | str | Path,
    *,
    iterations: int | None = None,
    half_width: float = _HALF_WIDTH,
    method: Method = "automatic",
    noise: float = _NOISE,
    again: float = 0.0,
    skip: int = 0,
    seed: int = 0,
) -> Sample:
    """Representative iterations of a log, and the total time of all of them with an interval at 95 %.

    Without times, the answer is which `iterations` to measure: as many as the wanted `half_width` of the interval
    takes if times of one length vary by `noise`, drawn at random (by `seed`) from strata of similar lengths. With
    times of some iterations, these are the sample. With times of all, the same draw is made from them, its estimate
    stands beside the real total, and SeqPoint and its baselines beside it. `again` adds the variation between runs;
    `skip` leaves out iterations at the start, where a program warms up. Iterations without lengths are one stratum.

    Raises InputError for a log that cannot be read or sampled, and for numbers out of range.
    """
    check_name("method", method, get_args(Method))
    for name, value in (("half_width", half_width), ("noise", noise)):
        if not 0 < value < 1:
            raise InputError(f"{name} is {value:g}; give a fraction between 0 and 1, such as 0.01")
    check_whole("seed", seed, 0, 1)
    if not 0 <= again < 1:
        raise InputError(f"again is {again:g}; give the variation of whole runs as a fraction, such as 0.01")
    if iterations is not None:
        check_whole("iterations", iterations, 2, 12)
    used = log if isinstance(log, Iterations) else read_log(log)
    if not 0 <= skip < len(used) - 1:
        raise InputError(f"skip is {skip}, of {len(used)} iterations; leave at least 2")
    used = used.after(skip) if skip else used
    if used.alike:
        method, noise = "stratified", _variation(used, noise)
    measured = used.measured()
    partly = 0 < len(measured) < len(used)
    own, chosen = (
        _take_measured(used, measured) if partly else _draw_iterations(used, iterations, half_width, noise, seed)
    )
    notes = list(_notes(used, partly))
    totals, speedups = {}, {}
    if used.times:
        for name, seconds in used.times.items():
            if np.isfinite(seconds[chosen]).all():
                found = estimate(used.lengths, own, chosen, seconds[chosen], method, again)
                totals[name] = _scale_total(found, used.step)
        if not totals:
            named = ", ".join(used.times)
            raise InputError(f"the times {named} lack some of the chosen iterations; measure them, or leave these out")
        first, *rest = totals
        for name in rest:
            before, after = used.times[first][chosen], used.times[name][chosen]
            speedups[name] = speedup(used.lengths, own, chosen, before, after, method)
        notes += _warnings(totals)
    expected = _expected_width(used, own, chosen, noise)
    others = _others(used, totals) if not partly else {}
    return Sample(used, chosen, own, totals, speedups, others, expected, noise, tuple(notes))


def _variation(log: Iterations, noise: float) -> float:
    """Return the standard deviation of times that no length explains, as a fraction, where they were all measured."""
    seconds = next(iter(log.times.values()), None)
    if seconds is None or not np.isfinite(seconds).all():
        return noise
    return float(seconds.std() / seconds.mean()) or noise


def _draw_iterations(
    log: Iterations, count: int | None, half_width: float, noise: float, seed: int
) -> tuple[Ints, Ints]:
    """Strata, and iterations drawn from them at random."""
    own = _strata(log, None if count is None else count // 2)
    sizes = np.bincount(own).astype(np.int64)
    spread = residual_spread(log.lengths, own, noise)
    if count is None:
        count = iterations_for(sizes, spread, float(log.lengths.sum()), half_width)
        count = max(count, int(np.minimum(sizes, EACH).sum()))
    least = EACH if count >= EACH * len(sizes) else 2
    return own, draw(own, allocate(sizes, spread, count, least), np.random.default_rng(seed))


def _strata(log: Iterations, most: int | None) -> Ints:
    """Return strata by length, at most `most`; a single stratum if all iterations are alike."""
    if log.alike or most == 1:
        return np.zeros(len(log), np.int64)
    own = strata(log.lengths)
    return own if most is None or own.max() < most else strata(log.lengths, most)


def _take_measured(log: Iterations, measured: Ints) -> tuple[Ints, Ints]:
    """Strata that each hold at least two measured iterations, as many as these allow, and the measured ones."""
    for count in range(min(STRATA, len(measured) // 2), 0, -1):
        own = strata(log.lengths, count) if count > 1 else np.zeros(len(log), np.int64)
        if (np.bincount(own[measured], minlength=own.max() + 1) >= 2).all():
            return own, measured
    raise InputError(
        f"{len(measured)} measured iteration of {len(log)} has no variance; measure at least 2, better {EACH * STRATA}"
    )


def _scale_total(found: SampledTotal, step: int) -> SampledTotal:
    return SampledTotal(
        found.value * step, found.low * step, found.high * step, found.degrees, found.method, found.curved
    )


def _expected_width(log: Iterations, own: Ints, chosen: Ints, noise: float) -> float:
    """Return the half width that iterations which vary by `noise` about a line should give, as a fraction."""
    sizes = np.bincount(own)
    counts = np.bincount(own[chosen], minlength=len(sizes))
    spread = residual_spread(log.lengths, own, noise)
    variance = (sizes * (sizes - counts) / counts * spread**2).sum()
    return float(quantile(len(chosen) - len(sizes) - 1) * np.sqrt(variance) / log.lengths.sum())


def _notes(log: Iterations, partly: bool) -> Iterator[str]:
    if log.step > 1:
        yield f"The log holds every {log.step}th iteration; each of them stands for {log.step}."
    if partly:
        yield "The interval holds if the measured iterations were drawn at random among those of similar length."


def _warnings(totals: dict[str, SampledTotal]) -> Iterator[str]:
    for name, found in totals.items():
        if found.curved:
            yield (
                f"{name} grows along a curve, which the line that was fitted misses: its interval is too narrow; "
                "choose the method quadratic or stratified"
            )


def _others(log: Iterations, totals: dict[str, SampledTotal]) -> dict[str, Points]:
    """SeqPoint and its baselines on the first machine."""
    if not totals:
        return {}
    seconds = log.times[next(iter(totals))]
    found = {name: baseline(name, log.lengths) for name in BASELINES}
    try:
        return {"seqpoint": seqpoints(log.lengths, seconds), **found}
    except InputError:
        return found
