"""Lists of independent GEMMs: read from CSV, tuned for a GPU, and written as a library of kernels for a runtime."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from weft.core.answer import Answer, to_plain
from weft.core.catalog import broken_rule, translate_error
from weft.core.errors import ConfigError, InputError, check_type
from weft.core.files import Rows, read_json, read_text, write_json
from weft.core.options import RunOptions
from weft.core.store import Store
from weft.core.units import LARGEST_COUNT
from weft.estimate.target import check_held
from weft.graph import Gemm
from weft.hardware import Described, Gpu
from weft.kernels import GemmTiling
from weft.plan.tune.perturb import gemm_values, moves, perturb
from weft.plan.tune.queues import (
    DEGREES,
    GoKernels,
    Judged,
    Queue,
    QueuePlans,
    WatchedQueue,
    degrees_up_to,
    judge_queues,
    plans,
    watch_queue,
)
from weft.sweep.simulations import Bench, Jobs
from weft.sweep.tasks import Progress

COLUMNS = ("m", "n", "k", "dtype", "count")
"""Required columns of a list; a column "name" is optional."""
_EXAMPLE = "512,1024,1024,fp16,8"
_MARKS = {";": "semicolons", "\t": "tabs", "|": "bars"}


@dataclass(frozen=True)
class Wanted:
    """A line of the list: `count` GEMMs of one shape that are queued together, and their name."""

    name: str
    gemm: Gemm
    count: int


def read_gemms(path: str | Path) -> tuple[Wanted, ...]:
    """Read a CSV file with the columns m, n, k, dtype, count and optionally name, in any order and case.

    Raises InputError that names file and line: for an unreadable file, missing or unknown columns, sizes that are no
    whole numbers above zero, unknown data types, and counts above the limit of co-running GEMMs.
    """
    file = Path(path)
    reader = Rows(read_text(file), file, spaces=True)
    heads = [name.strip().lower() for name in next(reader, [])]
    _check_heads(file, heads)
    rows = ((reader.line, [cell.strip() for cell in row]) for row in reader)
    wanted = [_parse_wanted(file, line, heads, row) for line, row in rows if any(row)]
    if not wanted:
        raise InputError(f"{file}: there is no GEMM below the heads; add lines such as {_EXAMPLE}")
    return tuple(wanted)


def _check_heads(file: Path, heads: Sequence[str]) -> None:
    missing = [name for name in COLUMNS if name not in heads]
    unknown = [name for name in heads if name not in (*COLUMNS, "name")]
    twice = [name for name in heads if heads.count(name) > 1]
    if len(heads) == 1 and (separator := next((mark for mark in ";\t|" if mark in heads[0]), None)):
        wrong = f"is separated by {_MARKS[separator]}; separate cells by commas"
    elif missing:
        wrong = f"misses {', '.join(missing)}"
    elif unknown:
        wrong = f"has the unknown column '{unknown[0]}'"
    elif twice:
        wrong = f"has the column '{twice[0]}' twice"
    else:
        return
    raise InputError(f"{file}, line 1: the list {wrong}; its heads are {','.join(COLUMNS)} and maybe name")


def _parse_wanted(file: Path, line: int, heads: Sequence[str], row: Sequence[str]) -> Wanted:
    place = f"{file}, line {line}"
    if len(row) != len(heads):
        raise InputError(f"{place}: the line has {len(row)} cells, the heads are {len(heads)}; write {','.join(heads)}")
    cells = dict(zip(heads, row, strict=True))
    empty = [name for name in COLUMNS if not cells[name]]
    if empty:
        raise InputError(f"{place}: {empty[0]} is empty; write {','.join(heads)}")
    m, n, k, count = (whole_size(place, name, cells[name]) for name in ("m", "n", "k", "count"))
    if count > DEGREES[-1]:
        raise InputError(f"{place}: count is {count}; at most {DEGREES[-1]} GEMMs are tried together, write that")
    try:
        gemm = Gemm(m, n, k, cells["dtype"].lower())
    except InputError as error:
        raise InputError(f"{place}: {error}") from None
    return Wanted(cells.get("name") or f"{m}x{n}x{k}", gemm, count)


def whole_size(place: str, name: str, text: str) -> int:
    """Parse a size from 1 to 2^31 - 1 from a cell; InputError with its `place` and `name` for anything else."""
    shown = text if len(text) <= 24 else f"{text[:8]}... ({len(text)} characters)"
    if not text.isdecimal() or not text.strip("0"):
        raise InputError(f"{place}: {name} is '{shown}'; it must be a whole number above zero")
    if len(text) > len(str(LARGEST_COUNT)) or int(text) > LARGEST_COUNT:
        raise InputError(f"{place}: {name} is {shown}; it must be at most {LARGEST_COUNT}")
    return int(text)


AGAIN = "write it anew with 'weft tune'"
SCHEMA = 1
"""Version of the file format; other versions are rejected."""


class _Plain(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


def _whole(tile: Any) -> Any:
    """Check a tile's fields, none missing and none unknown; `splits` is optional (default: K in one piece)."""
    if isinstance(tile, Mapping):
        known = {field.name for field in fields(GemmTiling)}
        odd = (known - {"splits"}) ^ (set(tile) - {"splits"})
        if odd:
            raise ValueError(f"a tile has exactly the fields {', '.join(sorted(known))}")
    return tile


class GoKernel(_Plain):
    """The GO-kernel of a degree, how it tiles the GEMM, and the time of all its copies [s]."""

    tile: Annotated[GemmTiling, BeforeValidator(_whole)]
    seconds: float = Field(gt=0)


class TunedGemm(_Plain):
    """A GEMM: its kernel at each degree, and the degree by number of queued GEMMs."""

    name: str
    m: int = Field(gt=0)
    n: int = Field(gt=0)
    k: int = Field(gt=0)
    dtype: str
    kernels: dict[int, GoKernel]
    degrees: dict[int, int]

    @model_validator(mode="after")
    def _complete(self) -> Self:
        """Reject a degree without a kernel, and an entry without the time of one GEMM alone."""
        missing = sorted({degree for degree in self.degrees.values() if degree not in self.kernels})
        if missing or 1 not in self.degrees:
            what = f"degree {missing[0]} has no kernel" if missing else "nothing is chosen for one GEMM alone"
            raise broken_rule(f"{self.name}: {what}; {AGAIN}")
        return self

    @property
    def gemm(self) -> Gemm:
        """The GEMM."""
        return Gemm(self.m, self.n, self.k, self.dtype)


class KernelLibrary(_Plain):
    """GO-kernels of some GEMMs on one GPU, at a "short" or a "sustained" clock."""

    weft_kernel_library: Literal[1] = 1
    gpu: str
    clock: str
    gemms: tuple[TunedGemm, ...]

    def choose(self, gemm: Gemm, queued: int) -> tuple[int, GemmTiling]:
        """Return how many of the queued copies of a GEMM to run together, and with which kernel.

        A queue length that was not tuned takes the next smaller one's choice. Raises InputError for a GEMM that the
        library does not hold, and for an empty queue.
        """
        if queued < 1:
            raise InputError(f"{queued} GEMMs are queued; at least one must be")
        entry = next((one for one in self.gemms if one.gemm == gemm), None)
        if entry is None:
            raise InputError(f"the library for {self.gpu} has no {gemm}; tune it with 'weft tune' and load that file")
        degree = entry.degrees[max(known for known in entry.degrees if known <= queued)]
        return degree, entry.kernels[degree].tile

    def save(self, path: str | Path) -> Path:
        """Write the library as JSON; OutputError if the path cannot be written."""
        return write_json(path, self.model_dump(mode="json"))


def library_of(gpu: str, clock: str, tuned: Iterable[tuple[str, GoKernels, Mapping[int, int]]]) -> KernelLibrary:
    """The library of tuned GEMMs: for each its name, its GO-kernels, and the degree by number of queued GEMMs."""
    return KernelLibrary(gpu=gpu, clock=clock, gemms=tuple(_entry(*one) for one in tuned))


def _entry(name: str, kernels: GoKernels, degrees: Mapping[int, int]) -> TunedGemm:
    gemm = kernels.gemm
    each = {degree: GoKernel(tile=kernels.best(degree), seconds=kernels.seconds(degree)) for degree in kernels.degrees}
    return TunedGemm(name=name, m=gemm.m, n=gemm.n, k=gemm.k, dtype=gemm.dtype, kernels=each, degrees=dict(degrees))


def load_library(path: str | Path) -> KernelLibrary:
    """Load the library that `weft tune --out` wrote.

    Raises InputError for an unreadable file, ConfigError for other content or another version.
    """
    content = read_json(path, "kernel library", AGAIN)
    version = content.get("weft_kernel_library")
    if version != SCHEMA:
        raise ConfigError(
            f"its version is {version!r}, but this Weft reads version {SCHEMA}; {AGAIN}",
            str(path),
            "weft_kernel_library",
        )
    try:
        return KernelLibrary(**content)
    except ValidationError as error:
        raise translate_error(error, tuple(KernelLibrary.model_fields), str(path)) from None


@dataclass(frozen=True)
class Gain:
    """A speedup, and its range when each uncertain value of the machine goes to its ends."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Tuned:
    """One line of a list, tuned: the best degree, its kernel, and the gains over the usual ways to run it.

    `degrees` is the degree by number of queued GEMMs: powers of two, and the line's count. `plans` are the batches in
    which the whole line runs.
    """

    wanted: Wanted
    judged: Judged
    kernels: GoKernels
    degrees: Mapping[int, int]
    over_default: Gain
    over_sequential: Gain
    plans: QueuePlans

    @property
    def degree(self) -> int:
        """How many to run together when the whole line is queued."""
        return self.judged.best_degree

    @property
    def kernel(self) -> GemmTiling:
        """The GO-kernel of that degree."""
        return self.kernels.best(self.degree)

    def record(self) -> dict[str, Any]:
        """Return the line as plain data, times in microseconds."""
        return to_plain(
            name=self.wanted.name, m=self.wanted.gemm.m, n=self.wanted.gemm.n, k=self.wanted.gemm.k,
            dtype=self.wanted.gemm.dtype, count=self.wanted.count, degree=self.degree, kernel=self.kernel,
            alone=self.kernels.fastest_alone, sequential_us=self.judged.sequential * 1e6,
            default_us=self.judged.default * 1e6, tuned_us=self.judged.at_degree[self.degree] * 1e6,
            over_default=self.over_default, over_sequential=self.over_sequential,
        )  # fmt: skip


@dataclass(frozen=True, repr=False)
class TunedList(Answer):
    """A tuned list and the machine that it is tuned for."""

    kind = "tuning"

    gpu: Gpu
    clock: str
    rows: Sequence[Tuned]

    def watch(self, most: int = 4) -> list[WatchedQueue]:
        """The lines that gain most over all at once, simulated again to see which GEMM held which compute unit."""
        several = [row for row in self.rows if row.wanted.count > 1]
        best = sorted(several, key=lambda row: row.over_default.value, reverse=True)[:most]
        return [watch_queue(f"{row.wanted.name}: {row.wanted.count} of {row.wanted.gemm}", row.plans) for row in best]

    @property
    def library(self) -> KernelLibrary:
        """The kernels in the form that a runtime loads."""
        each = ((row.wanted.name, row.kernels, row.degrees) for row in self.rows)
        return library_of(self.gpu.name, self.clock, each)

    def to_dict(self) -> dict[str, Any]:
        """Return every line as plain data, times in microseconds."""
        return {"gpu": self.gpu.name, "clock": self.clock, "gemms": [row.record() for row in self.rows]}


def tune(
    gemms: str | Path | Sequence[Wanted | Gemm],
    system: Described,
    options: RunOptions | None = None,
    *,
    jobs: int = 1,
    progress: Progress | None = None,
    store: Store | None = None,
) -> TunedList:
    """The best degree and kernel of every GEMM of a list, and their gains over running all at once or one by one.

    `gemms` is a CSV file that `weft.plan.tune.lists.read_gemms` reads, its lines, or GEMMs: equal ones are queued
    together. Each line is tuned on its own; lines are assumed to be queued at different times. Raises InputError for a
    data type that the GPU lacks, and what the simulations raise.

    >>> import weft
    >>> small = weft.gpu("mi100").replace({"compute.compute_units": "8"})
    >>> (line,) = tune([weft.gemm(64, 192, 64)] * 2, small).rows
    >>> line.wanted.count, line.degree
    (2, 2)
    """
    kinds = (str, Path, Sequence)
    check_type("the GEMMs", gemms, kinds, "give a CSV file, or a list like [weft.gemm(512, 512, 512)] * 4")
    wanted = read_gemms(gemms) if isinstance(gemms, str | Path) else _lines(gemms)
    bench, own = Bench.of(system, options=options), Jobs(jobs, store, progress)
    for line in wanted:
        check_held(line.gemm, bench.gpu)
    # One GEMM of each line queued, two, four, ... and all of them.
    queues = {line: [Queue((line.gemm,) * count) for count in degrees_up_to(line.count)] for line in wanted}
    every, kernels, _ = judge_queues([queue for each in queues.values() for queue in each], bench, own)
    found = {one.queue: one for one in every}
    judged = {line: [found[queue] for queue in each] for line, each in queues.items()}
    chosen = {line: plans(each[-1].queue, each[-1].best_degree, kernels, bench) for line, each in judged.items()}
    gains = _gains(chosen, bench, own)
    rows = [
        Tuned(
            line,
            judged[line][-1],
            kernels[line.gemm],
            {len(one.queue.gemms): one.best_degree for one in judged[line]},
            *gains[line],
            chosen[line],
        )
        for line in wanted
    ]
    return TunedList(bench.gpu, bench.options.clock, rows)


def _lines(gemms: Sequence[Wanted | Gemm]) -> tuple[Wanted, ...]:
    """Lines as they are, and one line for each shape of plain GEMMs."""
    counts = Counter(gemms)
    return tuple(
        one if isinstance(one, Wanted) else Wanted(f"{one.m}x{one.n}x{one.k}", one, counts[one])
        for one in dict.fromkeys(gemms)
    )


def _gains(chosen: Mapping[Wanted, QueuePlans], bench: Bench, jobs: Jobs) -> dict[Wanted, tuple[Gain, Gain]]:
    """Return what each line gains over default concurrency and one after another, kernels and degrees unchanged."""
    dtypes = sorted({line.gemm.dtype for line in chosen})
    rows = perturb(
        chain.from_iterable(chosen.values()),
        moves(bench.system, gemm_values(*dtypes), measured=True),
        lambda runs: {(line, i): g for line, plan in chosen.items() for i, g in enumerate(plan.gains(runs))},
        jobs,
    )

    def gain(line: Wanted, over: int) -> Gain:
        found = [row.figures[line, over] for row in rows]
        return Gain(found[0], min(found), max(found))

    return {line: (gain(line, 0), gain(line, 1)) for line in chosen}
