"""How far the shares of the ideal move when an assumed value goes to either end of its range.

A part of the suite stands for all: of each class the scenario with least to move and multiply, and a memory-bound one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

from weft.errors import InputError
from weft.hardware import Gpu
from weft.hardware import load as load_gpu
from weft.hardware.ring_kernels import ring_costs
from weft.overlap.strategies import STRATEGIES
from weft.result.stream_run import StreamRun
from weft.studies.c3.runs import (
    Progress,
    Run,
    as_published,
    collective_alone,
    gemm_alone,
    sharing,
    simulate,
)
from weft.studies.c3.scenarios import Scenario, Suite, declared_suite
from weft.studies.c3.study import PUBLISHED_GPU, RANKS, SATURATION
from weft.studies.moved import Row, Sensitivity
from weft.sweep import Store
from weft.sweep.ring_moved import RingMoved
from weft.sweep.streams import GemmAlone, Setting
from weft.units import Dimension, parse

MOVED = (
    "memory_cache.",
    "memory.queue_entries",
    "achieved.matrix_bf16",
    "achieved.gemm_cache",
    "achieved.gemm_fill",
    "dma.window",
    "link.latency",
)
"""Paths, or beginnings of paths, of the values that a GEMM beside a collective depends on."""
TOGETHER = {
    "rate of copies (engine and link)": ("dma.bandwidth", "link.dma_efficiency"),
    "costs of a copy beside its bytes": tuple(
        f"dma.{name}"
        for name in ("enqueue", "doorbell", "fetch", "trigger", "drain", "sync", "signal", "setup")
    ),
}
"""Values that only count together, moved at once: the lower rate holds, and costs add up."""
MEASURED = {"memory.read_efficiency": ("0.75", "0.89")}
"""Spread of public measurements on MI300X where the catalogue has one value: 4.0 to 4.73 of 5.3 TB/s."""
RING = "cdna.simple"
"""The library's ring of large collectives on AMD's GPUs, whose bytes in flight are moved, too."""


@dataclass(frozen=True)
class _Variant:
    what: str
    setting: str
    where: Setting
    units: Mapping[str, int] = field(default_factory=lambda: SATURATION)
    in_flight: int | None = None

    def moved(self, task: Run) -> Run | RingMoved:
        """The task as it is run here."""
        if self.in_flight is None or isinstance(task, GemmAlone):
            return task
        return RingMoved(task, ((RING, self.in_flight),))


def run(
    suite: Suite | None = None,
    jobs: int = 2,
    progress: Progress | None = None,
    *,
    gpu: Gpu | str = PUBLISHED_GPU,
    ranks: int = RANKS,
    request_bytes: int | None = None,
    store: Store | None = None,
) -> Sensitivity:
    """Move the machine's assumed values, the clock and the collective's compute units; arguments as of the study.

    Raises what the simulations raise.
    """
    machine = load_gpu(gpu) if isinstance(gpu, str) else gpu
    chosen = representatives((suite or declared_suite()).scenarios)
    variants = list(_variants(Setting(machine, ranks, request_bytes=request_bytes)))
    tasks = [variant.moved(task) for variant in variants for task in _tasks(chosen, variant)]
    runs = simulate(tasks, jobs, progress, store)
    rows = [Row(v.what, v.setting, _shares(chosen, v, runs)) for v in variants]
    formats = dict.fromkeys(STRATEGIES, ".0%")
    return Sensitivity("c3", [scenario.title for scenario in chosen], rows, formats)


def representatives(scenarios: Sequence[Scenario]) -> list[Scenario]:
    """Of each class the scenario with least to move and multiply that is not memory-bound, and the least that is."""
    least: dict[tuple[str | None, ...], Scenario] = {}
    for scenario in sorted(scenarios, key=lambda s: (s.size, s.product.flops)):
        memory = scenario.bound == "memory"
        least.setdefault(("memory",) if memory else ("compute", scenario.kind), scenario)
    return list(least.values())


def _variants(where: Setting) -> Iterator[_Variant]:
    gpu = where.gpu
    yield _Variant("as chosen", "", where)
    ranges = {
        path: (found.low, found.high)
        for path, found in gpu.provenance.items()
        if path in gpu.paths() and path.startswith(MOVED)
    }
    for path, ends in {**ranges, **(MEASURED if gpu.name == PUBLISHED_GPU else {})}.items():
        for text in filter(None, ends):
            moved = _moved(gpu, {path: text})
            if moved is not None:
                yield _Variant(path, text, replace(where, gpu=moved))
    yield from _moved_together(where)
    yield from _rings_moved(where)
    yield _Variant("clock", "short", replace(where, clock="short"))
    for what, times in (("half", 0.5), ("twice", 2.0)):
        units = {name: int(count * times) for name, count in SATURATION.items()}
        yield _Variant("units set apart for the collective", what, where, units)


def _moved_together(where: Setting) -> Iterator[_Variant]:
    """Every group of values at the low ends of their ranges, and at the high ones."""
    for what, paths in TOGETHER.items():
        known = {path: where.gpu.provenance.get(path) for path in paths}
        for end in ("low", "high"):
            values = {path: text for path, p in known.items() if p and (text := getattr(p, end))}
            moved = _moved(where.gpu, values)
            if moved is not None:
                yield _Variant(what, end, replace(where, gpu=moved))


def _rings_moved(where: Setting) -> Iterator[_Variant]:
    """The bytes that a workgroup of the library's ring has on their way, at both ends of their range."""
    if where.gpu.vendor != "amd":
        return
    found = ring_costs()[RING].provenance["in_flight"]
    for text in filter(None, (found.low, found.high)):
        yield _Variant(
            "bytes in flight of a ring's workgroup", text, where, in_flight=int(parse(text, Dimension.BYTES))
        )


def _moved(gpu: Gpu, values: Mapping[str, str]) -> Gpu | None:
    """The GPU with values moved; None where that changes nothing or breaks a rule of the machine."""
    try:
        moved = gpu.with_values(values)
    except InputError:
        return None
    return None if all(moved.value(path) == gpu.value(path) for path in values) else moved


def _tasks(scenarios: Sequence[Scenario], variant: _Variant) -> Iterator[Run]:
    for scenario in scenarios:
        yield gemm_alone(scenario, variant.where)
        yield collective_alone(scenario, variant.where)
        for strategy in STRATEGIES:
            yield as_published(scenario, variant.where, strategy, variant.units)


def _shares(
    scenarios: Sequence[Scenario], variant: _Variant, done: Mapping[Run | RingMoved, StreamRun]
) -> dict[str, float]:
    runs = {task: done[variant.moved(task)] for task in _tasks(scenarios, variant)}
    found = [sharing(scenario, variant.where, runs, variant.units) for scenario in scenarios]
    return {strategy: fmean(one.share(strategy) for one in found) for strategy in STRATEGIES}
