"""GPUs that are late: clocks that differ within a system, one by a given share or all by a drawn one."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal, Self, get_args

import numpy as np

from weft.core.errors import InputError, check_whole, show_value
from weft.core.options import MOST_SPREAD, RunOptions
from weft.hardware.gpus import Gpu
from weft.hardware.systems import System

Who = Literal["one", "gpus", "iterations", "workgroups"]
_SPREAD: Mapping[str, float] = {"one": 0.08, "gpus": 0.08, "iterations": 0.08, "workgroups": 0.02}
"""Usual share by which clocks differ. Of GPUs of one cluster: 8 % on average between the slowest and the fastest, at
most 22 % (P. Sinha et al., SC 2022, arXiv:2208.11035: V100, RTX 5000, MI60; how it is distributed is not stated). Of
one GPU over iterations: as much [assumed, 0 to 22 %]. Of workgroups of one GPU: 2 % [assumed, 0 to 10 %]."""
_USUAL_DRAWS = 5
_MOST_DRAWS = 10_000
"""Most draws: each is a run of its own."""


@dataclass(frozen=True)
class Stragglers:
    """How much clocks differ within a system; memory and links stay as they are.

    `who` is one of:

    * "one": a single GPU in the middle of the ranks is slower by `share`; of several shares, one run for each.
    * "gpus": the clock of each GPU lies anywhere between half of `share` below the usual one and half of it above,
      equally likely [assumed].
    * "iterations": one GPU is slower by anything up to `share`, in each iteration another one, all equally likely
      [assumed].
    * "workgroups": as "gpus", for each workgroup of the GEMM on each GPU (`RunOptions.workgroup_spread`).

    Clocks are drawn anew for each of `draws` runs, as many machines or iterations, from the random `seed`. Raises
    InputError for shares beyond a half, fewer than one draw, and several shares of what is drawn.

    >>> Stragglers.of("one:5%")
    Stragglers(who='one', share=0.05, draws=1, seed=0)
    >>> Stragglers.of("one:1/2/5/10%").shares
    (0.01, 0.02, 0.05, 0.1)
    >>> Stragglers.of("gpus:8%,draws=3,seed=7").draws
    3
    """

    who: Who
    share: float | tuple[float, ...] = _SPREAD["gpus"]
    draws: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        who: object = self.who
        if not isinstance(who, str) or who not in get_args(Who):
            raise InputError(
                f"stragglers are {show_value(who)}; they are one, like one:5%, or gpus, like gpus:8%,draws=5, or "
                "iterations or workgroups, like workgroups:2%,draws=5"
            )
        check_whole("draws of stragglers", self.draws, 0, _USUAL_DRAWS)
        check_whole("the seed of stragglers", self.seed, 0, 1)
        shares: tuple[object, ...] = self.shares
        for share in shares or (0.0,):
            number = share if isinstance(share, int | float) and not isinstance(share, bool) else math.nan
            if not 0 < number <= MOST_SPREAD:
                by = show_value(share) if number != number else f"{number:.0%}"
                raise InputError(
                    f"stragglers differ by {by}; give a share above 0 and up to {MOST_SPREAD:.0%}, like one:5%"
                )
        if self.who != "one" and len(self.shares) > 1:
            raise InputError(f"{self.who} differ by {len(self.shares)} shares; give one, like {self.who}:8%,draws=5")
        if self.draws < 1 or (self.who == "one" and self.draws > 1):
            more = "one GPU is always as slow: leave draws out" if self.who == "one" else "take at least 1"
            raise InputError(f"stragglers have {self.draws} draws; {more}")
        if self.draws > _MOST_DRAWS:
            raise InputError(
                f"stragglers have {self.draws:,} draws; a run for each is made, of {_MOST_DRAWS:,} at most"
            )

    @classmethod
    def of(cls, given: Self | str) -> Self:
        """Stragglers from a text like "one:5%", "one:1/2/5%", "gpus:8%" or "workgroups:2%,draws=5,seed=1".

        Raises InputError for another text.
        """
        if isinstance(given, cls):
            return given
        form = r"(\w+)(?::((?:\d+(?:\.\d+)?%?/)*\d+(?:\.\d+)?)%)?(?:,draws=(\d{1,6}))?(?:,seed=(\d{1,9}))?"
        found = re.fullmatch(form, given.replace(" ", "")) if isinstance(given, str) else None
        if found is None:
            raise InputError(
                f"{show_value(given)} describes no stragglers; write them like one:5%, one:1/2/5%, "
                "gpus:8%,draws=5,seed=1 "
                "or workgroups:2%"
            )
        who, percent, draws, seed = found.groups()
        usual = 1 if who == "one" else _USUAL_DRAWS
        share: float | tuple[float, ...] = _SPREAD.get(who, _SPREAD["gpus"])
        if percent is not None:
            shares = tuple(float(one) / 100 for one in percent.replace("%", "").split("/"))
            share = shares[0] if len(shares) == 1 else shares
        return cls(who, share, usual if draws is None else int(draws), int(seed or 0))  # type: ignore[arg-type]

    @property
    def shares(self) -> tuple[float, ...]:
        """The share, or each of several."""
        return self.share if isinstance(self.share, tuple) else (self.share,)

    def systems(self, system: System) -> tuple[System, ...]:
        """Return the system with its stragglers, once for each run; InputError for one whose GPUs already differ."""
        if system.variants or any(system.start.values()):
            raise InputError("stragglers are drawn among equal GPUs, but those of this system differ; give equal ones")
        if self.who == "one":
            return tuple(_slow_system(system, {system.gpus // 2: -share}) for share in self.shares)
        if self.who == "workgroups":
            return (system,) * self.draws
        random, (share,) = np.random.default_rng(self.seed), self.shares
        if self.who == "iterations":
            ranks = random.integers(system.gpus, size=self.draws).tolist()
            late = random.uniform(0, share, self.draws).tolist()
            return tuple(_slow_system(system, {rank: -slow}) for rank, slow in zip(ranks, late, strict=True))
        drawn = random.uniform(-share / 2, share / 2, (self.draws, system.gpus))
        return tuple(_slow_system(system, dict(enumerate(map(float, each)))) for each in drawn)

    def runs(self, system: System, options: RunOptions) -> list[tuple[System, RunOptions]]:
        """Return the system and the options of each run, all GPU by GPU; raises what `systems` raises."""
        explicit = replace(options, mode="explicit")
        if self.who != "workgroups":
            return [(one, explicit) for one in self.systems(system)]
        seeds = np.random.default_rng(self.seed).integers(2**31, size=self.draws).tolist()
        return [
            (one, replace(explicit, workgroup_spread=self.shares[0], workgroup_seed=seed))
            for one, seed in zip(self.systems(system), seeds, strict=True)
        ]

    @property
    def title(self) -> str:
        """In words: "one GPU 5 % slower"."""
        shares = " / ".join(f"{100 * share:.3g}" for share in self.shares)
        if self.who == "one":
            return f"one GPU {shares} % slower"
        if self.who == "iterations":
            return f"another GPU up to {shares} % slower in each of {self.draws} iterations"
        of = " of workgroups" * (self.who == "workgroups")
        return f"clocks{of} spread over {shares} % ({self.draws} draws)"


def slowest(system: System) -> tuple[int, float] | None:
    """The GPU with the lowest clock, and by what share that is below the system's usual one; None if all are equal."""
    usual = system.gpu.compute.clock
    clocks = {rank: gpu.compute.clock for rank, gpu in system.variants.items()}
    rank = min(clocks, key=clocks.__getitem__, default=0)
    return (rank, 1 - clocks[rank] / usual) if clocks else None


def _slow_system(system: System, shares: dict[int, float]) -> System:
    return system.with_variants({rank: slower(system.gpu, -share) for rank, share in shares.items()})


_PEAK = "clocks.matrix_peak"
"""The clock of the data sheet's peak, which says how much a clock computes."""


def slower(gpu: Gpu, share: float) -> Gpu:
    """Return the GPU with every clock of its compute units lower by a share (higher, if negative)."""
    paths = ["compute.clock", *(path for path in gpu.rules() if path.startswith("clocks.") and path != _PEAK)]
    clocks = {path: gpu.value(path) for path in paths}
    return gpu.replace({path: f"{clock * (1 - share):.0f} Hz" for path, clock in clocks.items() if clock})
