"""Advice for a GEMM co-run with a collective: the gain of every strategy, and the uncertainty of the best."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cache
from importlib import resources
from math import hypot
from typing import Any, NamedTuple

from weft.core.answer import Answer
from weft.core.catalog import read_toml
from weft.graph import Collective, Driver, Gemm
from weft.hardware import Gpu
from weft.overlaps import STRATEGIES
from weft.overlaps.lower.collectives import PUSHES, why_no_dma
from weft.plan.tune.heuristics import TIE, Choice
from weft.plan.tune.tables import SlowdownTables
from weft.simulate.result import CoRun, Timeline
from weft.sweep.simulations import Alone, by_dma

ALIKE = 0.01
"""Options whose makespans differ by no more than this share are named together."""
_FELT = 0.005
"""Uncertainties that move a speedup by less than this are combined into one."""
NOTED = 0.03
"""An isolated collective faster than the library's by at least this share is mentioned."""


class SharingOption(NamedTuple):
    """One way to share: its forecast by the tables [s], and its simulation if there is one."""

    strategy: str
    units: int | None
    forecast_s: float
    run: Timeline | None

    @property
    def makespan_s(self) -> float:
        """Time until both have ended [s]: simulated, or else forecast."""
        return self.forecast_s if self.run is None else self.run.makespan

    @property
    def channels(self) -> int | None:
        """Workgroups of the simulated collective; None without a simulation, or where DMA engines drive it."""
        if self.run is None:
            return None
        moved = self.run.graph.collectives[0].name
        return next(span.workgroups for span in self.run.spans if span.operator == moved) or None


class Doubt(NamedTuple):
    """A source of uncertainty, and the range of the speedup under it."""

    why: str
    low: float
    high: float
    copies: bool = False
    """Whether it concerns only DMA engines, so that ways without them are unaffected."""


class LibraryAlgorithm(NamedTuple):
    """The algorithm that the library would run instead of the simulated ring: name and closed-form time alone [s]."""

    name: str
    seconds: float


class Knob(NamedTuple):
    """A setting, and its public source."""

    text: str
    source: str


def knobs_for(
    gpu: Gpu, strategy: str, units: int | None, collective: str, channels: int | None = None, own: int = 0
) -> tuple[Knob, ...]:
    """Settings for a strategy with `units` reserved; none for a vendor without a known library.

    The collective has `channels` where compute units drive it (None: one for each unit reserved, else the library's
    own number, `own`).
    """
    parts = gpu.dies
    apart = units or 0
    many = apart if channels is None else channels
    end = "MIN" if channels is not None and channels > own else "MAX"
    # Rings and trees have channels of their own, sends and receives others (NVIDIA/nccl issue 1598).
    variable = "NCCL_{}_P2P_NCHANNELS" if collective in ("all_to_all", "send_recv") else _CHANNELS.get(gpu.vendor, "")
    words = {
        "units": apart,
        "share": f"{apart / parts:g}",
        "rest": gpu.compute.compute_units - apart,
        "channels": f"{variable.format(end)}={many}",
        "ctas": f"{end.lower()}CTAs = {many}",
    }
    found = list(_file().get(gpu.vendor, {}).get(strategy, ()))
    way = STRATEGIES[strategy]
    if channels is not None and way.driver is Driver.CU and not way.partition:
        found = [*_file()[gpu.vendor]["channels"], *(knob for knob in found if not knob["text"].startswith("nothing"))]
    return tuple(Knob(knob["text"].format(**words), knob["source"]) for knob in found)


_CHANNELS = {"amd": "NCCL_{}_NCHANNELS", "nvidia": "NCCL_{}_CTAS"}


@cache
def _file() -> dict[str, Any]:
    return read_toml(resources.files("weft.plan.tune") / "knobs.toml")


@dataclass(frozen=True, repr=False)
class Advice(Answer):
    """How a GEMM and a collective should share each of `tables.ranks` GPUs.

    `options` are all ways, the plainest first; `choice` is what the tables alone would choose, given both isolated
    times. Each of the `doubts` is a range of the best option's speedup under one uncertainty. `crossover` is the size
    from which DMA engines gather or exchange as fast as compute units alone, `pays` the size from which a DMA strategy
    is the best beside this GEMM [bytes]; None if there is none. `library` is the algorithm that the library would use
    instead of the simulated one, if they differ. `masked` is the best partition with a mask alone, the library keeping
    its number of channels, if that takes longer. `channels` is the number asked for on compute units (None: the
    library's own, or one for each compute unit reserved).
    """

    kind = "advice"

    gemm: Gemm
    collective: Collective
    tables: SlowdownTables
    alone: Alone
    choice: Choice
    options: tuple[SharingOption, ...]
    doubts: tuple[Doubt, ...]
    crossover: int | None
    pays: int | None
    library: LibraryAlgorithm | None = None
    masked: CoRun | None = None
    channels: int | None = None

    @property
    def gpu(self) -> Gpu:
        """The GPU."""
        return self.tables.gpu

    @property
    def best(self) -> SharingOption:
        """The fastest simulated option; among equally good ones, the plainest."""
        fastest = min(one.makespan_s for one in self.simulated)
        return next(one for one in self.simulated if one.makespan_s <= (1 + TIE) * fastest)

    @property
    def simulated(self) -> tuple[SharingOption, ...]:
        """The options that were simulated."""
        return tuple(option for option in self.options if option.run is not None)

    @property
    def speedup(self) -> float:
        """Speedup of the best option over serial execution."""
        return self.speedup_of(self.best)

    def speedup_of(self, option: SharingOption) -> float:
        """Speedup of an option over serial execution: simulated, or else forecast."""
        return self.alone.speedup(option.makespan_s)

    def is_forecast(self, option: SharingOption) -> bool:
        """Return whether the tables forecast an option: they know no other number of channels than the library's."""
        return self.channels is None or by_dma(option.strategy)

    def share_of(self, option: SharingOption) -> float:
        """Return the share of the ideal saving that an option reaches."""
        return self.alone.share(option.makespan_s)

    @property
    def loss(self) -> float:
        """How much longer the tables' choice takes than the best option, both simulated."""
        way = self.choice.strategy, self.choice.units
        chosen = next(one for one in self.simulated if one[:2] == way)
        return chosen.makespan_s / self.best.makespan_s - 1

    @property
    def low(self) -> float:
        """The speedup if every uncertainty goes against the user: independent errors, added in squares.

        Not a bound: the models' errors are means, so about every third answer lies further off.
        """
        return self.speedup - hypot(*(max(0.0, self.speedup - doubt.low) for doubt in self.doubts))

    @property
    def high(self) -> float:
        """The speedup if every uncertainty goes in the user's favour."""
        return self.speedup + hypot(*(max(0.0, doubt.high - self.speedup) for doubt in self.doubts))

    @property
    def felt(self) -> list[Doubt]:
        """The uncertainties that move the speedup by half a percent or more, and all others as one."""

        def moves(doubt: Doubt) -> bool:
            return max(abs(end / self.speedup - 1) for end in (doubt.low, doubt.high)) >= _FELT

        found, small = ([one for one in self.doubts if moves(one) is large] for large in (True, False))
        if small:
            low, high = min(doubt.low for doubt in small), max(doubt.high for doubt in small)
            found.append(Doubt(f"{len(small)} others, each by itself", low, high))
        return found

    @property
    def knobs(self) -> tuple[Knob, ...]:
        """What to set for the best option."""
        own = self.tables.collective(self.collective.name).library_units
        best = self.best
        return knobs_for(self.gpu, best.strategy, best.units, self.collective.name, self.channels, own)

    @property
    def why_no_dma(self) -> str:
        """Why the options contain no DMA strategy; empty if they do."""
        if self.collective.name in PUSHES:
            return ""
        if not self.collective.reduces:
            return f"No DMA strategy is compared: {why_no_dma(self.collective)}."
        return (
            f"DMA engines copy and cannot add, so none drives {self.collective.name}: it stays with compute units, "
            "or is split so that only its all-gather is copied."
        )

    @property
    def most_apart(self) -> int:
        """Compute units of the best simulated partition, or the smallest split of the tables."""
        tried = [one for one in self.simulated if one.strategy == "partition" and one.units]
        return max(tried, key=self.speedup_of).units or 0 if tried else self.tables.splits[0]

    def name_of(self, option: SharingOption) -> str:
        """Return a short name of a way to share."""
        return label(option.strategy, option.units, self.gpu.units_word)

    @property
    def alike(self) -> tuple[SharingOption, ...]:
        """Other simulated options within `ALIKE` of the best one."""
        limit = (1 + ALIKE) * self.best.makespan_s
        return tuple(one for one in self.simulated if one != self.best and one.makespan_s <= limit)

    @property
    def ranked(self) -> list[SharingOption]:
        """Every option, the best first, the others by speedup."""
        return sorted(self.options, key=lambda one: (one == self.best, self.speedup_of(one)), reverse=True)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data; times in seconds."""
        return {
            "gemm": asdict(self.gemm),
            "collective": self.collective.name,
            "bytes": self.collective.bytes,
            "gpu": self.gpu.name,
            "ranks": self.tables.ranks,
            "channels": self.channels,
            "gemm_alone_s": self.alone.gemm_s,
            "collective_alone_s": self.alone.collective_s,
            "ideal_speedup": self.alone.ideal,
            "best": self._option(self.best),
            "speedup_low": self.low,
            "speedup_high": self.high,
            "doubts": [doubt._asdict() for doubt in self.doubts],
            "choice_of_the_tables": asdict(self.choice),
            "loss_of_the_tables": self.loss,
            "options": [self._option(option) for option in self.options],
            "dma_faster_from_bytes": self.crossover,
            "dma_pays_from_bytes": self.pays,
            "set": [knob._asdict() for knob in self.knobs],
            "why_no_dma": self.why_no_dma,
            "mask_alone": None if self.masked is None else self._mask_data(self.masked),
            "library_takes": None if self.library is None else self.library._asdict(),
        }

    def _mask_data(self, both: CoRun) -> dict[str, Any]:
        found = {"units": self.most_apart, "channels": both.channels, "rounds": both.rounds}
        return {**found, "makespan_s": both.makespan, "speedup": self.alone.speedup(both.makespan)}

    def _option(self, option: SharingOption) -> dict[str, Any]:
        run = option.run
        return {
            "strategy": option.strategy,
            "units": option.units,
            "channels": option.channels,
            "forecast_s": option.forecast_s if self.is_forecast(option) else None,
            "simulated_s": None if run is None else run.makespan,
            "gemm_ends_s": None if run is None else run.end("gemm"),
            "collective_ends_s": None if run is None else run.end(self.collective.name),
            "speedup": self.speedup_of(option),
            "share_of_ideal": self.share_of(option),
        }


def label(strategy: str, units: int | None, word: str = "CUs") -> str:
    """Return a short name of a way to share."""
    return strategy if units is None else f"{strategy} with {units} {word}"
