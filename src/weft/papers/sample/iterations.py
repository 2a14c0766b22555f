"""Logs of iterations: the padded length of each, and its time on one machine or two where it was measured."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from weft.core.errors import InputError
from weft.core.files import Rows, read_text
from weft.papers.sample.seqpoint import Floats, Ints

_LARGEST_LOG = 256 << 20
"""Largest log that is read [bytes]."""
_LENGTHS = ("length", "seq_len", "sequence_length", "sl", "tokens", "samples", "frames")
_TIMES = ("time", "seconds", "duration", "iteration_time")
_UNITS = {"_s": 1.0, "_ms": 1e-3, "_us": 1e-6, "_ns": 1e-9}
_LEAST = 2
_RANGE = (1e-15, 1e15)
"""Least and largest length, and time [s], whose squares and sums a float holds with all digits."""


@dataclass(frozen=True, eq=False)
class Iterations:
    """Every iteration of an epoch: padded `lengths`, and `times` [s] by machine, NaN where it was not measured.

    Arrays have shape (n,). `step` is 10 if a log holds every tenth iteration, whose times then stand for ten each.
    Without lengths, which a log may leave out, all are 1 and iterations are alike.
    """

    lengths: Floats
    times: dict[str, Floats]
    title: str = ""
    step: int = 1

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def alike(self) -> bool:
        """Whether nothing tells one iteration from another before it is measured."""
        return bool(np.ptp(self.lengths) == 0)

    def after(self, skipped: int) -> Iterations:
        """Return the iterations without those at the start, where a program warms up."""
        kept = {name: seconds[skipped:] for name, seconds in self.times.items()}
        return iterations(self.lengths[skipped:], kept, self.title, self.step, alike=self.alike)

    def measured(self) -> Ints:
        """Places of the iterations that were measured on every machine of the log."""
        whole = np.ones(len(self), np.bool_)
        for seconds in self.times.values():
            whole &= np.isfinite(seconds)
        return np.flatnonzero(whole).astype(np.int64) if self.times else np.zeros(0, np.int64)


def iterations(
    lengths: npt.ArrayLike,
    times: Mapping[str, npt.ArrayLike] | None = None,
    title: str = "",
    step: int = 1,
    *,
    alike: bool = False,
) -> Iterations:
    """Checked iterations: lengths of an epoch, and times [s] by machine.

    Lengths that do not matter or are not known are all 1, and iterations `alike`.

    Raises InputError for fewer than two iterations, for a length or time that is not positive, for times that are not
    as many as lengths, and for iterations of one length, which any single one represents.
    """
    whole = np.atleast_1d(np.asarray(lengths, np.float64))
    if whole.ndim != 1 or len(whole) < _LEAST:
        raise InputError(f"{whole.size} iterations are no epoch to sample from; give the lengths of at least {_LEAST}")
    _check_positive("length", whole)
    if np.ptp(whole) == 0 and not alike:
        raise InputError(
            f"all {len(whole)} iterations have the length {whole[0]:g}; any one of them, measured a few times, "
            "represents them all"
        )
    columns = {name: np.atleast_1d(np.asarray(each, np.float64)) for name, each in (times or {}).items()}
    for name, each in columns.items():
        if each.shape != whole.shape:
            raise InputError(f"{name} has {len(each)} times for {len(whole)} lengths; give one for each, NaN for none")
        _check_positive(f"time of {name}", each, blank=True)
    return Iterations(whole, columns, title, step)


def _check_positive(what: str, values: Floats, blank: bool = False) -> None:
    low, high = _RANGE
    bad = ~((values >= low) & (values <= high)) & ~(np.isnan(values) & blank)
    if bad.any():
        at = int(np.flatnonzero(bad)[0])
        rule = "are positive" if not values[at] > 0 else f"lie between {low:g} and {high:g}"
        raise InputError(
            f"iteration {at + 1} has the {what} {values[at]:g}; lengths and times {rule}"
            + (" (leave the cell of an iteration that was not measured blank)" if blank else "")
        )


def read_log(path: str | Path, length: str | None = None, times: Sequence[str] = ()) -> Iterations:
    """Return the iterations of a CSV log with a header: a column of lengths, and columns of times.

    `length` and `times` name the columns; left out, those with usual names are taken ("length", "seq_len", "time_ms").
    The ending of a name is the unit of a time (_s, _ms, _us, _ns; none: seconds). A column "iteration" must count up by
    equal steps, a column "epoch" must not fall. Raises InputError for a log that breaks these rules, with the line.
    """
    text = read_text(path, _LARGEST_LOG)
    head = next(Rows(text[: text.find("\n") + 1] or text, path), [])
    head = [name.strip() for name in head]
    own = _column(head, length, _LENGTHS, path, "lengths")
    timed = [_find_column(head, name, path) for name in times] or _usual(head)
    if own is None and not timed:
        raise InputError(
            f"{path} has neither lengths nor times; name their columns, of {', '.join(head) or 'an empty header'}"
        )
    order = [name for name in ("epoch", "iteration") if name in head]
    wanted = [*([own] if own else []), *timed, *order]
    values = dict(zip(wanted, _columns(text, head, wanted, path), strict=True))
    step = _steps(values, path)
    seconds = {name: values[name] * _unit(name) for name in timed}
    try:
        lengths = values[own] if own else np.ones(len(values[timed[0]]))
        return iterations(lengths, seconds, Path(path).name, step, alike=own is None)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def _find_column(head: Sequence[str], name: str, path: str | Path) -> str:
    if name not in head:
        raise InputError(f"{path} has no column '{name}'; its columns are {', '.join(head)}")
    return name


def _column(head: Sequence[str], name: str | None, usual: Sequence[str], path: str | Path, what: str) -> str | None:
    if name is not None:
        return _find_column(head, name, path)
    found = [column for column in head if column.lower() in usual]
    if len(found) > 1:
        raise InputError(f"{path} has several columns of {what}, {', '.join(found)}; name the one that counts")
    return found[0] if found else None


def _usual(head: Sequence[str]) -> list[str]:
    """Return columns of times by their usual names."""
    return [name for name in head if name.lower().removesuffix(_suffix(name)) in _TIMES]


def _suffix(name: str) -> str:
    return next((ending for ending in _UNITS if name.lower().endswith(ending)), "")


def _unit(name: str) -> float:
    return _UNITS.get(_suffix(name), 1.0)


def _columns(text: str, head: Sequence[str], wanted: Sequence[str], path: str | Path) -> list[Floats]:
    """Columns as numbers, NaN where a cell is blank; the quick reader first, the exact one where cells are blank."""
    places = [head.index(name) for name in wanted]
    if not text.partition("\n")[2].strip():
        raise InputError(f"{path} has a header and no iterations")
    try:
        found = np.loadtxt(io.StringIO(text), delimiter=",", skiprows=1, usecols=places, ndmin=2, comments=None)
    except ValueError:
        found = _exact(text, places, wanted, path)
    return list(found.T)


def _exact(text: str, places: Sequence[int], wanted: Sequence[str], path: str | Path) -> Floats:
    rows = []
    lines = Rows(text, path)
    next(lines)
    for line, cells in enumerate(lines, start=2):
        if not cells:
            continue
        row = []
        for place, name in zip(places, wanted, strict=True):
            cell = cells[place].strip() if place < len(cells) else ""
            try:
                row.append(float(cell) if cell else np.nan)
            except ValueError:
                raise InputError(f"{path}, line {line}: '{cell}' in column '{name}' is no number") from None
        rows.append(row)
    return np.array(rows, np.float64).reshape(-1, len(places))


def _steps(values: dict[str, Floats], path: str | Path) -> int:
    """The step of the log's count of iterations; InputError for a gap, or for epochs out of order."""
    epochs = values.get("epoch")
    if epochs is not None and (np.diff(epochs) < 0).any():
        line = int(np.flatnonzero(np.diff(epochs) < 0)[0]) + 3
        raise InputError(f"{path}, line {line}: epoch {epochs[line - 2]:g} follows {epochs[line - 3]:g}; sort the log")
    counts = values.get("iteration")
    if counts is None or len(counts) < _LEAST:
        return 1
    steps = np.diff(counts)
    inside = steps[np.diff(epochs) == 0] if epochs is not None else steps
    step = inside[0] if len(inside) else 1.0
    bad = (steps != step) if epochs is None else (steps != step) & (np.diff(epochs) == 0)
    if bad.any() or step < 1:
        line = int(np.flatnonzero(bad)[0]) + 3 if bad.any() else 3
        raise InputError(
            f"{path}, line {line}: iteration {counts[line - 2]:g} follows {counts[line - 3]:g} in steps of {step:g}; "
            "a total needs the length of every iteration: add those missing, or drop the column"
        )
    return int(step)
