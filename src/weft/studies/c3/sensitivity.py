"""How far the shares of the ideal move when an assumed value goes to either end of its range.

A part of the suite stands for all: the first scenario of each class, collective and boundness.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean

from weft.errors import InputError
from weft.files import write_atomically
from weft.hardware import Gpu
from weft.hardware import load as load_gpu
from weft.overlap.strategies import STRATEGIES
from weft.studies.c3.runs import (
    Progress,
    Run,
    Runs,
    as_published,
    collective_alone,
    gemm_alone,
    sharing,
    simulate,
)
from weft.studies.c3.scenarios import Scenario, Suite, declared_suite
from weft.studies.c3.study import PUBLISHED_GPU, RANKS, REQUEST_BYTES, SATURATION
from weft.sweep import Store
from weft.sweep.streams import Setting

MOVED = (
    "compute.launch_latency",
    "cache.efficiency",
    "memory_cache.",
    "memory.queue_entries",
    "memory.timing.cdlr",
    "memory.ccd_long",
    "achieved.matrix_bf16",
    "achieved.gemm_cache",
    "achieved.gemm_fill",
    "dma.",
    "link.",
)
"""Paths, or beginnings of paths, of the values that a GEMM beside a collective depends on."""


@dataclass(frozen=True)
class Row:
    """One value at one end of its range, and the mean share of the ideal by strategy; the first row is as chosen."""

    what: str
    setting: str
    shares: Mapping[str, float]


@dataclass(frozen=True)
class Sensitivity:
    """The rows, and the scenarios that they are means over."""

    scenarios: tuple[str, ...]
    rows: tuple[Row, ...]

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Heads and rows of text: per value its range, and the shares at both ends."""
        chosen = self.rows[0].shares
        cells = [["as chosen", "", *(f"{share:.0%}" for share in chosen.values())]]
        for what in dict.fromkeys(row.what for row in self.rows[1:]):
            ends = [row for row in self.rows if row.what == what]
            moved = [" / ".join(f"{row.shares[name]:.0%}" for row in ends) for name in chosen]
            cells.append([what, " / ".join(row.setting for row in ends), *moved])
        return ["value", "low / high", *chosen], cells

    def save(self, path: str | Path) -> Path:
        """Write the rows as JSON; OutputError if the path cannot be written."""
        data = {
            "study": "c3 sensitivity",
            "scenarios": self.scenarios,
            "rows": [asdict(r) for r in self.rows],
        }
        return write_atomically(path, json.dumps(data, indent=1) + "\n")


@dataclass(frozen=True)
class _Variant:
    what: str
    setting: str
    where: Setting
    units: Mapping[str, int]


def run(
    suite: Suite | None = None,
    jobs: int = 2,
    progress: Progress | None = None,
    *,
    gpu: Gpu | str = PUBLISHED_GPU,
    ranks: int = RANKS,
    request_bytes: int = REQUEST_BYTES,
    store: Store | None = None,
) -> Sensitivity:
    """Move the machine's assumed values, the clock and the collective's compute units; arguments as of the study.

    Raises what the simulations raise.
    """
    machine = load_gpu(gpu) if isinstance(gpu, str) else gpu
    chosen = representatives((suite or declared_suite()).scenarios)
    variants = list(_variants(Setting(machine, ranks, request_bytes=request_bytes)))
    tasks = [task for variant in variants for task in _tasks(chosen, variant)]
    runs = simulate(tasks, jobs, progress, store)
    rows = [Row(v.what, v.setting, _shares(chosen, v, runs)) for v in variants]
    return Sensitivity(tuple(scenario.title for scenario in chosen), tuple(rows))


def representatives(scenarios: Sequence[Scenario]) -> list[Scenario]:
    """The first scenario of each class, collective and boundness that a suite declares."""
    first: dict[tuple[str | None, ...], Scenario] = {}
    for scenario in scenarios:
        first.setdefault((scenario.kind, scenario.collective, scenario.bound), scenario)
    return list(first.values())


def _variants(where: Setting) -> Iterator[_Variant]:
    gpu = where.gpu
    yield _Variant("as chosen", "", where, SATURATION)
    for path, found in gpu.provenance.items():
        if path in gpu.paths() and path.startswith(MOVED):
            for text in filter(None, (found.low, found.high)):
                moved = _moved(gpu, path, text)
                if moved is not None:
                    yield _Variant(path, text, replace(where, gpu=moved), SATURATION)
    yield _Variant("clock", "short", replace(where, clock="short"), SATURATION)
    for what, times in (("half", 0.5), ("twice", 2.0)):
        units = {name: int(count * times) for name, count in SATURATION.items()}
        yield _Variant("units set apart for the collective", what, where, units)


def _moved(gpu: Gpu, path: str, text: str) -> Gpu | None:
    """The GPU with a value moved; None where that changes nothing or breaks a rule of the machine."""
    try:
        moved = gpu.with_values({path: text})
    except InputError:
        return None
    return None if moved.value(path) == gpu.value(path) else moved


def _tasks(scenarios: Sequence[Scenario], variant: _Variant) -> Iterator[Run]:
    for scenario in scenarios:
        yield gemm_alone(scenario, variant.where)
        yield collective_alone(scenario, variant.where)
        for strategy in STRATEGIES:
            yield as_published(scenario, variant.where, strategy, variant.units)


def _shares(scenarios: Sequence[Scenario], variant: _Variant, runs: Runs) -> dict[str, float]:
    found = [sharing(scenario, variant.where, runs, variant.units) for scenario in scenarios]
    return {strategy: fmean(one.share(strategy) for one in found) for strategy in STRATEGIES}
