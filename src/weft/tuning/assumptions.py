"""Runs with uncertain values of a machine moved to the ends of their ranges: what gains of concurrency rest on.

All of these are values that the engine reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

from weft.collectives.fabric import fabric_of
from weft.errors import InputError
from weft.hardware import Gpu
from weft.hardware.ring_kernels import flights_of
from weft.overlap.strategies import STRATEGIES
from weft.sweep.streams import CollectiveAlone, GemmAlone, Setting, Together
from weft.units import Dimension, parse

DECIDING = (
    "compute.launch_latency",
    "clocks.sustained",
    "cache.latency",
    "memory.latency",
    "achieved.gemm_cache",
    "achieved.gemm_fill",
    "achieved.gemm_issue",
)
"""Values that decide how long simulated GEMMs take, beside the share of the matrix rate of their data type."""
ENDS = ("low", "high")
GEMM, UNITS, COPIES = frozenset({"gemm"}), frozenset({"cu"}), frozenset({"dma"})
"""What may depend on a value: a GEMM, a collective by compute units, and one by DMA engines."""
EVERYTHING = GEMM | UNITS | COPIES
StreamT = TypeVar("StreamT", bound=GemmAlone | CollectiveAlone | Together)


class Assumption(NamedTuple):
    """Values of a GPU that may move what sharing it gains, and are moved together.

    `moves` says whose time alone depends on them: "gemm", collectives by "cu" and by "dma". Measured values stay, as
    the errors of the models hold theirs, unless public measurements `disagree`.
    """

    what: str
    paths: tuple[str, ...]
    moves: frozenset[str] = EVERYTHING
    disagree: bool = False


def assumptions(dtype: str) -> tuple[Assumption, ...]:
    """What may be assumed of a GPU for a GEMM of a data type beside a collective."""
    return (
        Assumption("the clock of long runs", ("clocks.sustained",)),
        Assumption("the launch of a kernel", ("compute.launch_latency",)),
        Assumption("how much of the matrix rate a GEMM gets", (f"achieved.matrix_{dtype}",), GEMM),
        Assumption("how a tile begins", ("achieved.gemm_fill",), GEMM),
        Assumption("what each K step costs", ("achieved.gemm_issue",), GEMM),
        Assumption("how much of its bandwidth the cache reaches", ("achieved.gemm_cache",)),
        Assumption("the latency of the memory-side cache", ("memory_cache.latency",)),
        Assumption("what earlier work left in the memory-side cache", ("memory_cache.dirty_at_start",)),
        Assumption("the rate of reads", ("memory.read_efficiency",)),
        Assumption("the queues of the memory", ("memory.queue_entries",)),
        Assumption("how often a group of banks can be read", ("memory.ccd_long",)),
        Assumption("the timings of the memory's rows", _ROWS),
        Assumption("the banks of the memory", ("memory.banks", "memory.bank_groups", "memory.row_bytes")),
        Assumption("the latency of a link", ("link.latency",), UNITS | COPIES),
        Assumption("what a copy costs host and engine", _COPY, COPIES),
        Assumption("how much an engine has on its way", ("dma.window",), COPIES),
        Assumption("the rate of copies", ("dma.bandwidth", "link.dma_efficiency"), COPIES, disagree=True),
    )


_ROWS = tuple(f"memory.timing.{name}" for name in ("rrd", "rcd", "ras", "rp", "rc", "cl", "rtp"))
_COPY = tuple(f"dma.{name}" for name in ("setup", "enqueue", "doorbell", "fetch", "drain", "sync", "signal"))


@dataclass(frozen=True)
class Moved:
    """Runs as they are where `what`, the values at `paths`, lies at the `end` "low" or "high" of its range.

    `setting` is where they are made then, `moves` what depends on it, as in `Assumption`; `text` is the value where it
    is one alone, else the end.
    """

    what: str
    paths: tuple[str, ...]
    end: str
    text: str
    setting: Setting
    moves: frozenset[str] = EVERYTHING

    def run(self, task: StreamT) -> StreamT:
        """The run with the value moved; the run itself where nothing of it depends on the value."""
        return replace(task, setting=self.setting) if self.moves & _parts(task) else task

    @property
    def title(self) -> str:
        """What is moved, with its paths."""
        return f"{self.what} ({self.listed})" if self.paths else self.what

    @property
    def listed(self) -> str:
        """The paths, or their table where there are many."""
        if len(self.paths) < 3:
            return ", ".join(self.paths)
        return f"{self.paths[0].partition('.')[0]}, {len(self.paths)} values"


def _parts(task: GemmAlone | CollectiveAlone | Together) -> frozenset[str]:
    """What of "gemm", "cu" and "dma" takes part in a run."""
    if isinstance(task, GemmAlone):
        return GEMM
    if isinstance(task, CollectiveAlone):
        return frozenset({task.driver})
    return GEMM | {STRATEGIES[task.strategy].driver}


def moved_settings(here: Setting, dtype: str, measured: bool = False) -> Iterator[Moved]:
    """Every assumption at both ends of its range, each wherever that changes the machine and breaks no rule of it.

    With `measured`, values that are not assumed are moved as well where they have a range.
    """
    for one in assumptions(dtype):
        for end, values in zip(ENDS, ends(here.gpu, one, measured) or (), strict=False):
            gpu = moved_to(here.gpu, values)
            if gpu is not None:
                text = end if len(values) > 1 else next(iter(values.values()))
                yield Moved(one.what, tuple(values), end, text, replace(here, gpu=gpu), one.moves)
    for end, flight in zip(ENDS, flight_ends(here.gpu), strict=True):
        what = "how much the library's workgroups have on their way"
        yield Moved(what, (), end, end, replace(here, in_flight=flight), UNITS)


def ends(
    gpu: Gpu, assumption: Assumption, measured: bool = False
) -> tuple[Mapping[str, str], Mapping[str, str]] | None:
    """The low and the high end of each value that is assumed (or `measured`), by path; None where nothing is."""
    known = {path: gpu.provenance[path] for path in assumption.paths if path in gpu.provenance}
    found = {
        path: p
        for path, p in known.items()
        if p.low is not None
        and p.high is not None
        and (p.kind == "assumed" or measured or assumption.disagree)
    }
    if not found:
        return None
    return {path: str(p.low) for path, p in found.items()}, {path: str(p.high) for path, p in found.items()}


def flight_ends(gpu: Gpu) -> Iterator[tuple[tuple[str, int], ...]]:
    """The fewest, then the most bytes that workgroups of the library's kernels may have on their way, by kernel."""
    fabric = fabric_of(gpu)
    known = flights_of(fabric.vendor, fabric.architecture)
    for end in ENDS:
        texts = {name: getattr(p, end) for name, p in known.items()}
        yield tuple((name, int(parse(text, Dimension.BYTES))) for name, text in texts.items() if text)


@dataclass(frozen=True)
class Variant:
    """A GPU whose value at `path` is `setting`, one end of its range."""

    path: str
    setting: str
    gpu: Gpu


def variants(gpu: Gpu, dtype: str) -> Iterator[Variant]:
    """The GPU with each deciding value that has a range at its low and at its high end."""
    for path in (*DECIDING, f"achieved.matrix_{dtype}"):
        found = gpu.provenance.get(path)
        ends = () if found is None else (found.low, found.high)
        for text in filter(None, ends):
            moved = moved_to(gpu, {path: text})
            if moved is not None:
                yield Variant(path, text, moved)


def moved_to(gpu: Gpu, values: Mapping[str, str]) -> Gpu | None:
    """The GPU with values moved; None where that changes nothing or breaks a rule of the machine."""
    try:
        moved = gpu.with_values(values)
    except InputError:
        return None
    return None if all(moved.value(path) == gpu.value(path) for path in values) else moved
