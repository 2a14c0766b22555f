"""The traces of all ranks of a run: where each rank's time went, and for which rank the others wait in collectives."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from weft.core.answer import Answer, Record, to_plain
from weft.core.errors import ConfigError, InputError, check_type, is_whole, show_value
from weft.core.files import beginning, check_path
from weft.torch.traces.kineto import KinetoReader
from weft.torch.traces.nsight import NsightReader
from weft.torch.traces.reader import Meeting, RankTrace, TraceReader
from weft.torch.traces.rocprof import RocprofReader
from weft.torch.traces.trace import Floats, Trace, covered

if TYPE_CHECKING:
    from weft.torch.traces.comparison import TraceComparison

READERS: tuple[TraceReader, ...] = (NsightReader(), RocprofReader(), KinetoReader())
"""Readers of recorded runs. A file belongs to the first that recognizes it."""
_TOGETHER = re.compile(r"all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|SendRecv", re.IGNORECASE)
"""Collectives that end on all ranks at about the same time, unlike broadcasts, sends and receives of a named group."""
_NOISE_S = 5e-6
"""Least time by which a rank is late [s]: about that of a kernel's launch; assumed, 2 to 10 us."""
_AGREE_S = 50e-6
"""By how much the ends of one collective differ between ranks [s], where the trace names no group; assumed, 20 to 100
us. It also bounds the wait that is charged wrongly where two groups run in step."""
_AGREEING = 0.9
"""Least share of the collectives of a kernel that end together on two ranks of one group."""
_STRAGGLES = 0.01
"""Least share of the step that the others wait for a rank that is called the straggler."""

Compare = Callable[[Trace], "TraceComparison"]
Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class RankTime(Record):
    """One rank's time [s], by the intervals of all streams: `compute`, `exposed`, `copies` and `idle` add to `seconds`.

    `hidden` is communication under which the rank computes, `copies` are copies from and to the host under which
    nothing else runs. Of the `exposed` communication, the rank waits for a later one during `exposed_wait`; `wait`
    counts all such waits, hidden ones, too. The rank took part in `joined` collectives that the traces of all its ranks
    hold, and was the last one into `late` of them, for which each other rank waited `caused` in all. `predicted` and
    `ahead` are times of the whole on a system, as of a TraceComparison; None without one.
    """

    rank: int
    file: str
    seconds: float
    compute: float
    hidden: float
    exposed: float
    exposed_wait: float
    copies: float
    idle: float
    joined: int
    late: int
    wait: float
    caused: float
    predicted: float | None = None
    ahead: float | None = None


@dataclass(frozen=True, repr=False, eq=False)
class DistributedTrace(Answer):
    """The recorded ranks of a run, by rank.

    Of `collectives`, kernels of them on all ranks, `matched` ones were found on all ranks of their group. `steps` are
    the numbers of the recorded steps, where the tool states them. `system` is that of the predicted times, or "".
    """

    kind = "distributed trace"

    path: str
    tool: str
    device: str
    ranks: tuple[RankTime, ...]
    steps: tuple[int, ...]
    collectives: int
    matched: int
    system: str = ""
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the ranks [s], the straggler and the notes as plain data."""
        late = self.straggler
        return to_plain(
            path=self.path, tool=self.tool, device=self.device, steps=self.steps, collectives=self.collectives,
            matched=self.matched, straggler=None if late is None else late.rank, system=self.system or None,
            ranks=self.ranks, notes=self.notes,
        )  # fmt: skip

    @property
    def seconds(self) -> float:
        """Return the longest time of a rank, from its first to its last piece of work [s]."""
        return max(one.seconds for one in self.ranks)

    @cached_property
    def straggler(self) -> RankTime | None:
        """Return the rank that causes half of the waits, and at least 1 % of the time; None if there is none."""
        latest = max(self.ranks, key=lambda one: one.caused)
        total = sum(one.caused for one in self.ranks)
        stands_out = latest.caused >= max(total / 2, _STRAGGLES * self.seconds) and latest.caused > 0
        return latest if stands_out else None

    def beyond_median(self, of: RankTime) -> tuple[float, float]:
        """Return by how much a rank computes longer, and is idle longer, than the median of the others [s]."""
        others = [one for one in self.ranks if one is not of] or [of]
        return (
            of.compute - median(one.compute for one in others),
            of.idle - median(one.idle for one in others),
        )


def read_trace(path: str | Path) -> Trace:
    """Read what a profiler recorded on one GPU, of any size, in bounded memory.

    The file is of torch.profiler, Nsight Systems or rocprofv3. Record with `record_shapes=True` of torch.profiler, else
    no kernel is known by what it computes. Raises ConfigError for a file that is cut off or no trace, InputError for
    one without work on a GPU or with several GPUs.
    """
    found = [part.trace for part in _reader_of(path).read(path)]
    if len(found) > 1:
        raise InputError(f"'{path}' holds {len(found)} GPUs; weft.read_traces and 'weft import' read all of them")
    return found[0]


def read_traces(
    path: str | Path,
    ranks: Collection[int] | None = None,
    compare: Compare | None = None,
    progress: Progress | None = None,
) -> Trace | DistributedTrace:
    """Read the traces of all ranks of a run: a folder with a file for each, or a file with several GPUs.

    One file after the other is read, and only what ranks have in common is kept. Returns a Trace for a single GPU.
    `ranks` are those to read (None: all of the run). `compare` takes each rank's trace, as `weft.compare_trace` does
    with a system. `progress(done, files, name)` is called before each file.

    Raises:
        ConfigError: a file is damaged, states no rank, the rank or other steps than another file.
        InputError: there is no trace, or a rank is missing.
    """
    check_path(path)
    if ranks is not None:
        check_type("ranks", ranks, (list, tuple, set, frozenset, range), "give their numbers, such as [0, 1]")
    if ranks is not None and not (ranks and all(is_whole(one) and one >= 0 for one in ranks)):
        raise InputError(f"ranks are {show_value(ranks)}; they should be numbers from 0, such as [0, 1]")
    reader, files, left_out = _files_of(Path(path))
    parts: list[_Part] = []
    alone: RankTrace | None = None
    for number, file in enumerate(files):
        if progress is not None and len(files) > 1:
            progress(number, len(files), file.name)
        for found in reader.read(file):
            alone = found if not parts else None
            if ranks is None or found.rank is None or found.rank in ranks:
                parts.append(_Part.of(found, file, compare))
    if progress is not None and len(files) > 1:
        progress(len(files), len(files), "matching collectives")
    if alone is not None and (not Path(path).is_dir() or ((alone.world or 1) == 1 and not alone.rank)):
        if ranks is not None:
            raise InputError(
                f"'{path}' holds one GPU, so that no ranks can be chosen; leave them out, or name a folder"
            )
        return alone.trace
    parts, numbering = _number(parts, reader, Path(path), ranks)
    _check_windows(parts)
    return _Meetings(parts).answer(Path(path), reader, (*numbering, *left_out))


def _reader_of(path: str | Path) -> TraceReader:
    """Return the reader that recognizes a file; the last one, which says what is wrong, for an unknown format."""
    check_path(path)
    start = beginning(path) if Path(path).is_file() else b""
    return next((reader for reader in READERS if reader.recognizes(Path(path), start)), READERS[-1])


def _files_of(path: Path) -> tuple[TraceReader, list[Path], tuple[str, ...]]:
    """Return the files of a run and their reader, and what of the folder is left out."""
    if not path.is_dir():
        return _reader_of(path), [path], ()
    files = sorted((one for one in path.iterdir() if one.is_file()), key=_natural)
    by_reader: dict[TraceReader, list[Path]] = defaultdict(list)
    others: list[str] = []
    for file in files:
        start = beginning(file)
        known = next((reader for reader in READERS if reader.recognizes(file, start)), None)
        if known is None and not start and file.suffix in (".gz", ".json", ".sqlite"):
            raise ConfigError("the file is empty or damaged; copy it again, or move it out of the folder", str(file))
        if known is not None:
            by_reader[known].append(file)
        elif not file.name.endswith("memory_copy_trace.csv"):
            others.append(file.name)
    if len(by_reader) > 1:
        named = " and ".join(f"{reader.tool} ({found[0].name})" for reader, found in by_reader.items())
        raise InputError(f"'{path}' holds traces of {named}; move those of one tool to a folder of their own")
    if not by_reader:
        inside = sorted(one.name for one in path.iterdir() if one.is_dir())
        step = f"name one of its folders ({', '.join(inside[:4])})" if inside else "name the folder that holds them"
        raise InputError(
            f"'{path}' holds no trace of {', '.join(one.tool for one in READERS)}; {step}, one window of the run"
        )
    [(reader, found)] = by_reader.items()
    note = f"left out, as no trace: {', '.join(others[:5])}{', ...' * (len(others) > 5)}"
    return reader, found, (note,) if others else ()


def _natural(path: Path) -> list[tuple[int, str]]:
    """Return the parts of a name so that rank10 sorts behind rank9."""
    return [(int(word), "") if word.isdigit() else (-1, word) for word in re.split(r"(\d+)", path.name) if word]


class _Part(NamedTuple):
    """What is kept of a rank: times [s], the intervals of its compute, and those of each of its collectives."""

    rank: int | None
    world: int | None
    file: Path
    trace: RankTime
    device: str
    steps: tuple[int, ...]
    computes: tuple[Floats, Floats]
    meetings: dict[Meeting, tuple[Floats, Floats]]
    remark: str
    system: str
    mapped: int

    @classmethod
    def of(cls, found: RankTrace, file: Path, compare: Compare | None) -> _Part:
        """Return what is kept of a rank's trace."""
        trace, origin = found.trace, found.origin
        start, end = trace.start + origin, trace.start + trace.seconds + origin
        compute, exposed = (
            covered(trace.start[trace.computes], (trace.start + trace.seconds)[trace.computes]),
            trace.exposed,
        )
        compared = compare(trace) if compare is not None else None
        hidden, copies = (
            max(round(one, 12), 0.0) for one in (trace.communication - exposed, trace.busy - compute - exposed)
        )
        times = RankTime(
            rank=-1, file=file.name, seconds=trace.makespan, compute=compute, hidden=hidden,
            exposed=exposed, exposed_wait=0.0, copies=copies, idle=trace.makespan - trace.busy,
            joined=0, late=0, wait=0.0, caused=0.0, predicted=compared.seconds if compared else None,
            ahead=compared.ahead if compared else None,
        )  # fmt: skip
        meetings = {}
        for number, meeting in enumerate(found.meetings):
            at = found.meeting == number
            meetings[meeting] = start[at], end[at]
        mapped = trace.found.mapped
        return cls(
            found.rank, found.world, file, times, trace.device, found.steps,
            _merged(start[trace.computes], end[trace.computes]), meetings, found.remark,
            compared.system.name if compared else "", mapped,
        )  # fmt: skip


def _merged(start: Floats, end: Floats) -> tuple[Floats, Floats]:
    """Return the union of intervals, which are in the order of their starts, as intervals that do not touch."""
    if not len(start):
        return start, end
    reached = np.maximum.accumulate(end)
    first = np.concatenate([[True], start[1:] > reached[:-1]])
    return start[first], reached[np.concatenate([np.flatnonzero(first)[1:] - 1, [len(end) - 1]])]


def _number(
    parts: list[_Part], reader: TraceReader, path: Path, ranks: Collection[int] | None
) -> tuple[list[_Part], tuple[str, ...]]:
    """Return the parts in the order of their ranks. Raises ConfigError and InputError for what is no whole set."""
    nameless = next((part for part in parts if part.rank is None), None)
    notes: tuple[str, ...] = ()
    if nameless is not None and not reader.numbered and len(parts) > 1:
        why = "it states no rank, neither in distributedInfo nor in its name"
        raise ConfigError(
            f"{why}; record after torch.distributed is initialised, or name it 'rank3.json'", str(nameless.file)
        )
    if nameless is not None:
        if ranks is not None and len(parts) > 1:
            parts = [part for number, part in enumerate(parts) if number in ranks]
        parts = [part._replace(rank=number) for number, part in enumerate(parts)]
        notes = ("ranks are numbered in the order of files and GPUs, since the files state none",) * (len(parts) > 1)
    parts.sort(key=lambda part: part.rank or 0)
    for before, after in pairwise(parts):
        if before.rank == after.rank:
            why = f"it is of rank {after.rank}, and so is '{before.file.name}'"
            raise ConfigError(f"{why}; give a folder with one window of the run", str(after.file))
    worlds = {part.world: part for part in parts if part.world}
    if len(worlds) > 1:
        (first, _), (second, other) = list(worlds.items())[:2]
        why = f"its run has {second} ranks, that of another file has {first}"
        raise ConfigError(f"{why}; give a folder with the files of one run", str(other.file))
    there = [part.rank or 0 for part in parts]
    wanted = set(range(max([*worlds, max(there, default=-1) + 1]))) if ranks is None else set(ranks)
    if missing := sorted(wanted - set(there)):
        listed = ", ".join(map(str, missing[:8])) + ", ..." * (len(missing) > 8)
        have = ",".join(map(str, there[:64]))
        raise InputError(
            f"'{path}' lacks rank {listed} of {len(wanted)}; copy the file there"
            + (f", or read what there is with --ranks {have}" if there and ranks is None else "")
        )
    if ranks is not None and worlds and len(there) < max(worlds):
        notes += (f"{len(there)} of {max(worlds)} ranks are read; waits for the others cannot be told",)
    return parts, notes


def _check_windows(parts: Sequence[_Part]) -> None:
    """Raise ConfigError unless all ranks recorded the same steps."""
    first = parts[0]
    for part in parts[1:]:
        if part.steps != first.steps:
            why = f"it holds {_steps(part.steps)}, and '{first.file.name}' holds {_steps(first.steps)}"
            raise ConfigError(f"{why}; record the same steps on all ranks", str(part.file))


def _steps(steps: tuple[int, ...]) -> str:
    return f"steps {', '.join(map(str, steps))}" if steps else "no numbered step"


class _Meetings:
    """Collectives of all ranks, matched: the n-th of a group, a collective and its sizes on one rank is that of all.

    A collective ends on all its ranks at about the same time, so that the one in which it takes least time was the last
    to start, and the others waited for it; clocks of ranks need not agree.
    """

    def __init__(self, parts: Sequence[_Part]) -> None:
        self.parts = parts
        self.joined, self.late = np.zeros(len(parts), dtype=int), np.zeros(len(parts), dtype=int)
        self.caused, self.matched, self.total, self.unpaired = np.zeros(len(parts)), 0, 0, 0
        self.waits: list[list[tuple[Floats, Floats]]] = [[] for _ in parts]
        holders: dict[Meeting, list[int]] = defaultdict(list)
        for place, part in enumerate(parts):
            for meeting in part.meetings:
                holders[meeting].append(place)
        for meeting, places in holders.items():
            counts = [len(parts[place].meetings[meeting][0]) for place in places]
            self.total += sum(counts)
            if not _TOGETHER.search(meeting.name):
                continue
            if len(set(counts)) > 1:
                self.unpaired += sum(counts)
                continue
            for group in [places] if meeting.group else self._groups(meeting, places):
                self._meet(meeting, group)

    def _groups(self, meeting: Meeting, places: list[int]) -> Iterator[list[int]]:
        """Yield the ranks whose kernels of this name end together, as those of one collective do."""
        left = places
        while left:
            first = left[0]
            end = self.parts[first].meetings[meeting][1]
            group = [first]
            for other in left[1:]:
                apart = self.parts[other].meetings[meeting][1] - end
                if self.parts[other].file != self.parts[first].file:
                    apart = apart - np.median(apart) if len(apart) > 2 else apart  # each file has a clock of its own
                if (np.abs(apart) <= _AGREE_S).mean() >= _AGREEING:
                    group.append(other)
            left = [place for place in left if place not in group]
            yield group

    def _meet(self, meeting: Meeting, places: list[int]) -> None:
        if len(places) < 2:
            return
        starts = np.array([self.parts[place].meetings[meeting][0] for place in places])
        took = np.array([self.parts[place].meetings[meeting][1] for place in places]) - starts
        waits = took - took.min(axis=0)
        last, at = took.argmin(axis=0), np.asarray(places)
        is_late = waits.max(axis=0) > _NOISE_S
        self.matched += waits.size
        self.joined[at] += waits.shape[1]
        np.add.at(self.late, at[last[is_late]], 1)
        np.add.at(self.caused, at[last], waits.sum(axis=0) / (len(places) - 1))
        for place, start, wait in zip(places, starts, waits, strict=True):
            self.waits[place].append((start, start + wait))

    def _time(self, place: int) -> RankTime:
        part, mine = self.parts[place], self.waits[place]
        wait = exposed = 0.0
        if mine:
            start, end = (np.concatenate(column) for column in zip(*mine, strict=True))
            wait = float((end - start).sum())
            begin, stop = (np.concatenate(pair) for pair in zip(part.computes, (start, end), strict=True))
            order = np.argsort(begin, kind="stable")
            exposed = covered(begin[order], stop[order]) - covered(*part.computes)
        counted = {
            "joined": int(self.joined[place]),
            "late": int(self.late[place]),
            "caused": float(self.caused[place]),
        }
        told = {"rank": part.rank or 0, "wait": wait, "exposed_wait": min(exposed, part.trace.exposed), **counted}
        return RankTime(**{**part.trace.__dict__, **told})

    def answer(self, path: Path, reader: TraceReader, notes: tuple[str, ...]) -> DistributedTrace:
        """Return the times of all ranks."""
        parts = self.parts
        systems = {part.system for part in parts}
        said = [*dict.fromkeys(part.remark for part in parts if part.remark), *notes]
        if self.unpaired:
            said.append(
                f"{self.unpaired:,} of {self.total:,} kernels of collectives differ in number between ranks, as at the "
                "edges of a recorded window, and count in no wait"
            )
        if (system := systems.pop()) and not sum(part.mapped for part in parts):
            raise InputError(
                f"no kernel of '{path}' has an operator that Weft can time on {system}; record with torch.profiler and "
                "record_shapes=True: other profilers record no shapes"
            )
        return DistributedTrace(
            str(path), reader.tool, parts[0].device, tuple(self._time(place) for place in range(len(parts))),
            parts[0].steps, self.total, self.matched, system, tuple(said),
        )  # fmt: skip
