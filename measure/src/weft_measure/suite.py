"""The whole measurement: every case that the tables lack, timed and added row by row."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from weft.core.errors import UnknownNameError
from weft.graph import Gemm
from weft_measure import plan
from weft_measure.device import Device, Unsupported
from weft_measure.probes import PROBES
from weft_measure.table import RowFile
from weft_measure.timing import LEAST_SECONDS, Timing, time_work

Row = Mapping[str, object]
Watch = Callable[[str, int, int], None]

_BESIDE_SECONDS = 0.1
"""How long each side of a pair runs [s]."""
_BESIDE_QUICK = 0.002


@dataclass(frozen=True)
class Case:
    """One row to be: the values that tell it from others, and what measures the rest."""

    key: Row
    measure: Callable[[], Row]


@dataclass
class Summary:
    """What a measurement did: rows added by table, rows that were there, cases that the device refused and why."""

    added: dict[str, int] = field(default_factory=dict)
    present: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    files: list[Path] = field(default_factory=list)


@dataclass(frozen=True)
class Kind:
    """A kind of measurement: its file, the file's columns, the columns that name a case, and the cases."""

    file: str
    columns: tuple[str, ...]
    case: tuple[str, ...]
    cases: Callable[[Context], Iterable[Case]]


@dataclass(frozen=True)
class Context:
    """What is measured, where its rows come from, and whether a few cases are enough."""

    device: Device
    source: str
    quick: bool = False
    gemms: tuple[Gemm, ...] | None = None

    @property
    def least(self) -> float:
        """Shortest sample [s]."""
        return LEAST_SECONDS / 20 if self.quick else LEAST_SECONDS

    def row(self, timing: Timing, note: str) -> dict[str, object]:
        """Time, source and notes of a row."""
        state = "; ".join(f"{name}={value:.0f}" for name, value in self.device.state().items())
        notes = "; ".join(filter(None, (note, timing.note, state, self.device.about)))
        return {"time_us": f"{timing.seconds * 1e6:.6g}", "source": self.source, "notes": notes}


def measure(
    device: Device,
    folder: Path,
    kinds: Iterable[str] | None = None,
    *,
    source: str,
    quick: bool = False,
    gemms: tuple[Gemm, ...] | None = None,
    watch: Watch | None = None,
) -> Summary:
    """Measure what the tables in `folder` lack, and return what was done; an interrupted run can be continued.

    `kinds` are names of `KINDS` (all of them without); `gemms` replaces the planned shapes; `watch` is called with a
    kind, the case's number and how many there are. Raises UnknownNameError for an unknown kind, InputError for a table
    that cannot be continued, OutputError for a folder that cannot be written.
    """
    names = tuple(KINDS if kinds is None else kinds)
    for name in names:
        if name not in KINDS:
            raise UnknownNameError("kind of measurement", name, KINDS)
    context, summary = Context(device, source, quick, gemms), Summary()
    tables = {name: _table(folder, KINDS[name]) for name in names}
    for name, table in tables.items():
        try:
            _fill(name, table, list(KINDS[name].cases(context)), summary, watch)
        finally:
            table.flush()
        summary.files.append(table.path)
    return summary


def _table(folder: Path, kind: Kind) -> RowFile:
    return RowFile(folder / kind.file, kind.columns, kind.case)


def _fill(name: str, table: RowFile, cases: list[Case], summary: Summary, watch: Watch | None) -> None:
    summary.added.setdefault(name, 0)
    for number, case in enumerate(cases, start=1):
        if watch is not None:
            watch(name, number, len(cases))
        if case.key in table:
            summary.present += 1
            continue
        try:
            table.add({**case.key, **case.measure()})
        except Unsupported as refusal:
            summary.refused[str(refusal)] = summary.refused.get(str(refusal), 0) + 1
            continue
        summary.added[name] += 1


def _gemm_cases(context: Context) -> Iterator[Case]:
    for gemm in context.gemms or plan.gemms(quick=context.quick):
        shape = (gemm.m, gemm.n, gemm.k, gemm.dtype)

        def row(shape: tuple[int, int, int, str] = shape) -> Row:
            work = context.device.gemm(*shape)
            return context.row(time_work(context.device, work, least=context.least), work.note)

        key = {"gpu": context.device.name, "dtype": gemm.dtype, "m": gemm.m, "n": gemm.n, "k": gemm.k}
        yield Case(key, row)


def _operator_cases(context: Context) -> Iterator[Case]:
    planned = [*plan.operators(quick=context.quick), *plan.attention(quick=context.quick)]
    for found in planned:

        def row(found: plan.OperatorCase = found) -> Row:
            work = context.device.operator(found.name, found.dtype, found.shape)
            return context.row(time_work(context.device, work, least=context.least), work.note)

        key = {
            "gpu": context.device.name,
            "operator": found.name,
            "dtype": found.dtype,
            "shape": found.text,
        }
        yield Case(key, row)


def _copy_cases(context: Context) -> Iterator[Case]:
    for kind in plan.COPIES:
        for size in plan.copy_sizes(quick=context.quick):

            def row(kind: str = kind, size: int = size) -> Row:
                work = context.device.copy(kind, size)
                return context.row(time_work(context.device, work, least=context.least), work.note)

            yield Case({"gpu": context.device.name, "copier": kind, "bytes": size}, row)


def _pair_cases(context: Context) -> Iterator[Case]:
    for gemm, kind, size in plan.pairs(quick=context.quick):

        def row(gemm: Gemm = gemm, kind: str = kind, size: int = size) -> Row:
            return _beside(context, gemm, kind, size)

        key = {
            "system": f"1x{context.device.name}",
            "m": gemm.m,
            "n": gemm.n,
            "k": gemm.k,
            "dtype": gemm.dtype,
            "collective": f"copy_{kind}",
            "bytes": size,
        }
        yield Case(key, row)


def _beside(context: Context, gemm: Gemm, kind: str, size: int) -> Row:
    """A loop of GEMMs beside a loop of copies: alone, each while the other outlasts it, and until both have ended."""
    device = context.device
    product = device.gemm(gemm.m, gemm.n, gemm.k, gemm.dtype)
    copy = device.copy(kind, size)
    alone = [time_work(device, work, least=context.least).seconds for work in (product, copy)]
    length = _BESIDE_QUICK if context.quick else _BESIDE_SECONDS
    gemms, copies = (max(1, round(length / seconds)) for seconds in alone)
    product_time, _ = device.seconds_beside(product, gemms, copy, 3 * copies)
    _, copy_time = device.seconds_beside(product, 3 * gemms, copy, copies)
    makespan = max(device.seconds_beside(product, gemms, copy, copies))
    state = "; ".join(f"{name}={value:.0f}" for name, value in device.state().items())
    times: dict[str, float] = {
        "gemm_alone_us": alone[0],
        "gemm_concurrent_us": product_time / gemms,
        "collective_alone_us": alone[1],
        "collective_concurrent_us": copy_time / copies,
        "serial_us": gemms * alone[0] + copies * alone[1],
        "makespan_us": makespan,
    }
    return {
        "gemms": gemms,
        "collectives": copies,
        **{name: f"{seconds * 1e6:.6g}" for name, seconds in times.items()},
        "source": context.source,
        "notes": "; ".join(filter(None, ("two streams, loops that start together", copy.note, state, device.about))),
    }


def _probe_cases(context: Context) -> Iterator[Case]:
    for name, probe in PROBES.items():
        for parameter, unit, run in probe(context.device, quick=context.quick):

            def row(unit: str = unit, run: Callable[[], tuple[Any, str]] = run) -> Row:
                value, note = run()
                text = value if isinstance(value, str) else f"{value:.6g}"
                notes = "; ".join(filter(None, (note, context.device.about)))
                return {"value": text, "unit": unit, "source": context.source, "notes": notes}

            yield Case({"gpu": context.device.name, "probe": name, "parameter": parameter}, row)


_TIMED = ("time_us", "source", "notes")
_PAIR = ("system", "m", "n", "k", "dtype", "collective", "bytes")
KINDS: Mapping[str, Kind] = {
    "gemm": Kind("gemm.csv", ("gpu", "dtype", "m", "n", "k", *_TIMED), ("gpu", "dtype", "m", "n", "k"), _gemm_cases),
    "operator": Kind(
        "operators.csv",
        ("gpu", "operator", "dtype", "shape", *_TIMED),
        ("gpu", "operator", "dtype", "shape"),
        _operator_cases,
    ),
    "copy": Kind("copies.csv", ("gpu", "copier", "bytes", *_TIMED), ("gpu", "copier", "bytes"), _copy_cases),
    "beside": Kind(
        "contention.csv",
        (
            "system", "m", "n", "k", "dtype", "gemms", "collective", "bytes", "collectives", "gemm_alone_us",
            "gemm_concurrent_us", "collective_alone_us", "collective_concurrent_us", "serial_us", "makespan_us",
            "source", "notes",
        ),
        _PAIR,
        _pair_cases,
    ),
    "probe": Kind(
        "probes.csv",
        ("gpu", "probe", "parameter", "value", "unit", "source", "notes"),
        ("gpu", "probe", "parameter"),
        _probe_cases,
    ),
}  # fmt: skip
"""The kinds of measurement by name, each with its table."""
