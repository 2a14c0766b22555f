"""Comparisons as plain data and back, exactly: for records on disk and answers of other processes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields
from typing import Any

import numpy as np

from weft.overlap import PhaseTimes
from weft.result.comparison import Comparison
from weft.result.result import ChunkSpan, DmaSpan, KernelSpan, Result, RunConfig, Series, StageSpan

Plain = dict[str, Any]
_SPANS = {"kernels": KernelSpan, "stages": StageSpan, "chunks": ChunkSpan, "dmas": DmaSpan}


def as_record(comparison: Comparison, spans: bool = True) -> Plain:
    """A comparison as JSON can hold it; without `spans`, times, bytes and counters only.

    Runs that several ideals are put together from stand once.
    """
    runs: dict[str, Plain] = {}
    for result in comparison:
        _add(runs, result, spans)
    return {"overlaps": list(comparison.results), "runs": runs}


def from_record(record: Mapping[str, Any]) -> Comparison:
    """The comparison that `as_record` wrote."""
    made: dict[str, Result] = {}
    for name, run in record["runs"].items():  # the parts of an ideal stand before it
        made[name] = _result(run, tuple(made[part] for part in run["parts"]))
    return Comparison({name: made[name] for name in record["overlaps"]})


def _add(runs: dict[str, Plain], result: Result, spans: bool) -> None:
    for part in result.parts:
        _add(runs, part, spans)
    if result.config.overlap not in runs:
        runs[result.config.overlap] = _plain(result, spans)


def _plain(result: Result, spans: bool) -> Plain:
    detail = {name: _rows(getattr(result, name), kind) for name, kind in _SPANS.items()} if spans else {}
    return {
        "config": asdict(result.config),
        "times": asdict(result.times),
        "bytes": dict(result.bytes),
        "counters": dict(result.counters),
        "events": result.events,
        "requests": result.requests,
        "wall_s": result.wall_s,
        "parts": [part.config.overlap for part in result.parts],
        "spans": detail,
        "series": _series_as_plain(result.series) if spans and result.series is not None else None,
    }


def _rows(spans: Iterable[Any], kind: type) -> list[list[Any]]:
    names = [field.name for field in fields(kind)]
    return [[getattr(span, name) for name in names] for span in spans]


def _series_as_plain(series: Series) -> Plain:
    traffic = {cause: rates.tolist() for cause, rates in series.traffic.items()}
    return {"bin_fs": series.bin_fs, "traffic": traffic, "link": series.link.tolist()}


def _result(run: Mapping[str, Any], parts: tuple[Result, ...]) -> Result:
    config = {**run["config"], "changed": tuple(run["config"]["changed"])}
    spans: dict[str, Any] = {
        name: tuple(_SPANS[name](*row) for row in rows) for name, rows in run["spans"].items()
    }
    return Result(
        config=RunConfig(**config),
        times=PhaseTimes(**run["times"]),
        bytes=run["bytes"],
        counters=run["counters"],
        events=run["events"],
        requests=run["requests"],
        wall_s=run["wall_s"],
        parts=parts,
        series=None if run["series"] is None else _series(run["series"]),
        **spans,
    )


def _series(plain: Mapping[str, Any]) -> Series:
    traffic = {cause: np.array(rows, dtype=np.int64) for cause, rows in plain["traffic"].items()}
    return Series(plain["bin_fs"], traffic, np.array(plain["link"], dtype=np.int64))
