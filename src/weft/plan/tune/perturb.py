"""Sensitivity: how answers move when values that they depend on go to the ends of their ranges.

A `ValueMove` changes tasks: assumed or uncertain values of their system, their options, or how they run. `perturb` runs
tasks unchanged and under every move.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from itertools import chain
from typing import Any, NamedTuple

from weft.core.answer import Answer
from weft.core.errors import InputError, check_type
from weft.graph import Gemm
from weft.hardware import System
from weft.overlaps import find_simulated
from weft.sweep.simulations import Jobs, Runs, Simulation

ENDS = ("low", "high")
GEMM, UNITS, COPIES = frozenset({"gemm"}), frozenset({"cu"}), frozenset({"dma"})
"""What a value may affect: a GEMM, a collective on compute units, or one by DMA engines."""
_EVERYTHING = GEMM | UNITS | COPIES


class Values(NamedTuple):
    """Values of a system that move together to the ends of their ranges; `what` describes them.

    `parts` names what depends on them: "gemm", collectives by "cu" and by "dma". Only assumed values move; with
    `any_kind` also others, on which public sources disagree. `follow` holds, by end, values that depend on these.
    """

    paths: tuple[str, ...]
    what: str = ""
    parts: frozenset[str] = _EVERYTHING
    any_kind: bool = False
    follow: Mapping[str, Mapping[str, str]] = {}


def sharing_values(system: System, dtype: str) -> tuple[Values, ...]:
    """Values of a system that may be assumed, for a GEMM of a data type co-run with a collective."""
    in_flight = tuple(path for path in system.provenance if path.endswith(("in_flight", "library.pairs")))
    return (
        Values(("clocks.sustained",), "the clock of long runs"),
        Values(("compute.launch_latency",), "the launch of a kernel"),
        Values((f"achieved.matrix_{dtype}",), "how much of the matrix rate a GEMM gets", GEMM),
        Values(("achieved.gemm_fill",), "how a tile begins", GEMM),
        Values(("achieved.gemm_issue",), "what each K step costs", GEMM),
        Values(("achieved.gemm_cache",), "how much of its bandwidth the cache reaches"),
        Values(("memory_cache.latency",), "the latency of the memory-side cache"),
        Values(("package.bandwidth", "package.exchange_efficiency"), "the fabric of the package", any_kind=True),
        Values(("memory_cache.dirty_at_start",), "what earlier work left in the memory-side cache"),
        Values(("memory.read_efficiency",), "the rate of reads"),
        Values(("memory.queue_entries",), "the queues of the memory"),
        Values(("memory.ccd_long",), "how often a group of banks can be read"),
        Values(_ROWS, "the timings of the memory's rows"),
        Values(("memory.banks", "memory.bank_groups", "memory.row_bytes"), "the banks of the memory"),
        Values(("link.latency",), "the latency of a link", UNITS | COPIES),
        Values(_COPY, "what a copy costs host and engine", COPIES),
        Values(("dma.window",), "how much an engine has in flight", COPIES),
        Values(("dma.bandwidth", "link.dma_efficiency"), "the rate of copies", COPIES, any_kind=True),
        Values(in_flight, "how much the library's workgroups have in flight", UNITS, any_kind=True),
    )


_ROWS = tuple(f"memory.timing.{name}" for name in ("rrd", "rcd", "ras", "rp", "rc", "cl", "rtp"))
_COPY = tuple(f"dma.{name}" for name in ("setup", "enqueue", "doorbell", "fetch", "drain", "sync", "signal"))
_GEMM = (
    "compute.launch_latency", "clocks.sustained", "cache.latency", "memory.latency",
    "achieved.gemm_cache", "achieved.gemm_fill", "achieved.gemm_issue",
)  # fmt: skip


def gemm_values(*dtypes: str) -> tuple[Values, ...]:
    """Values that determine the simulated time of GEMMs of some data types."""
    rates = (Values((f"achieved.matrix_{dtype}",), parts=frozenset({dtype})) for dtype in dtypes)
    return *(Values((path,)) for path in _GEMM), *rates


@dataclass(frozen=True)
class ValueMove:
    """A change of tasks: `what` moves to `setting`; only tasks that contain any of `parts` change.

    `values` are texts of values of the system, by path; `change` makes any other change of a task.
    """

    what: str
    setting: str
    values: Mapping[str, str] = field(default_factory=dict)
    parts: frozenset[str] = _EVERYTHING
    change: Callable[[Simulation], Simulation] | None = None

    def __call__(self, task: Simulation) -> Simulation:
        """The task after the change."""
        if not self.parts & parts_of(task):
            return task
        changed = task if self.change is None else self.change(task)
        return replace(changed, system=_change_values(changed.system, tuple(self.values.items())))


def option_move(what: str, **options: Any) -> ValueMove:
    """A move of options of a run, such as `clock="short"` or `request_bytes=512`."""
    setting = " ".join(map(str, options.values()))
    return ValueMove(what, setting, change=lambda t: replace(t, options=replace(t.options, **options)))


def parts_of(task: Simulation) -> frozenset[str]:
    """The parts of a run: "gemm" and the data types of GEMMs, "cu" or "dma" for the driver of collectives."""
    driver = find_simulated(task.overlap).moved_by
    ops = [node.op for node in task.graph]
    products = [{"gemm", op.dtype} for op in ops if isinstance(op, Gemm)]
    return frozenset().union(*products, {str(driver)} if len(products) < len(ops) else ())


def moves(system: System, values: Iterable[Values], measured: bool = False) -> Iterator[ValueMove]:
    """Moves of values to both ends of their ranges, each only if it changes the system and breaks no rule.

    Only assumed values move; with `measured`, all that have a range.
    """
    provenance = system.provenance
    for one in values:
        found = {path: provenance[path] for path in one.paths if path in provenance}
        for end in ENDS:
            texts = {
                path: str(getattr(p, end))
                for path, p in found.items()
                if getattr(p, end) and (p.kind == "assumed" or measured or one.any_kind)
            }
            moved = {**texts, **one.follow.get(end, {})}
            if texts and _changes(system, moved):
                setting = end if len(texts) > 1 else next(iter(texts.values()))
                yield ValueMove(_title(one.what, tuple(texts)), setting, moved, one.parts)


def _title(what: str, paths: Sequence[str]) -> str:
    """Return the words for what moves, with its paths, or their table if there are many."""
    many = f"{paths[0].partition('.')[0]}, {len(paths)} values"
    listed = ", ".join(paths) if len(paths) < 3 else many
    return f"{what} ({listed})" if what else listed


def _changes(system: System, values: Mapping[str, str]) -> bool:
    """Return whether values at those texts make a different and valid machine."""
    try:
        moved = system.replace(values)
    except InputError:
        return False
    return any(moved.value(path) != system.value(path) for path in values)


@cache
def _change_values(system: System, values: tuple[tuple[str, str], ...]) -> System:
    return system.replace(dict(values)) if values else system


AS_CHOSEN = ValueMove("as chosen", "")


@dataclass(frozen=True)
class Row:
    """A value at one end of its range, `setting`, and the resulting figures; the first row of all is unmoved."""

    what: str
    setting: str
    figures: Mapping[Any, float]


def perturb(
    tasks: Iterable[Simulation],
    moves: Iterable[ValueMove],
    figures: Callable[[Runs], Mapping[Any, float]],
    jobs: Jobs | None = None,
) -> list[Row]:
    """Return the `figures` of simulations with each uncertain value of their systems at either end of its range.

    The first row has every value as it is; a row follows for each of `moves` (from the function of that name). Equal
    simulations run once. `figures` looks up timelines by the unmoved task. Raises what the simulations raise.

    >>> import weft
    >>> from weft.sweep.simulations import Bench
    >>> bench = Bench.of("h100-sxm", ranks=2)
    >>> task = bench.collective(weft.all_gather("1 MiB", ranks=2))
    >>> ends = moves(bench.system, [Values(("link.latency",))])
    >>> rows = perturb([task], ends, lambda runs: {"time_us": runs[task].makespan * 1e6})
    >>> [row.setting for row in rows]
    ['', '250 ns', '1 us']
    """
    check_type("tasks", tasks, Iterable, "give the simulations, as weft.sweep.simulations.Bench makes them")
    check_type("moves", moves, Iterable, "give what weft.plan.tune.perturb.moves returns")
    chosen, own = [AS_CHOSEN, *moves], list(tasks)
    for move in chosen:
        check_type("a move", move, ValueMove, "give what weft.plan.tune.perturb.moves returns")
    for task in own:
        check_type("a task", task, Simulation, "give the simulations, as weft.sweep.simulations.Bench makes them")
    own = list(dict.fromkeys(own))
    todo = [[move(task) for task in own] for move in chosen]
    found = (jobs or Jobs()).run(chain.from_iterable(todo))
    return [
        Row(move.what, move.setting, figures({task: found[m] for task, m in zip(own, moved, strict=True)}))
        for move, moved in zip(chosen, todo, strict=True)
    ]


@dataclass(frozen=True, repr=False)
class Sensitivity(Answer):
    """The rows, the cases over which figures are averaged, and each figure's format."""

    kind = "sensitivity"

    study: str
    cases: Sequence[object]
    rows: Sequence[Row]
    formats: Mapping[str, str]

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Heads and rows of text: per value its range, and the figures at both ends."""
        cells = [["as chosen", "", *(self._ends(self.rows[:1], name) for name in self.formats)]]
        for what in dict.fromkeys(row.what for row in self.rows[1:]):
            ends = [row for row in self.rows if row.what == what]
            settings = " / ".join(row.setting for row in ends)
            cells.append([what, settings, *(self._ends(ends, name) for name in self.formats)])
        return ["value", "low / high", *self.formats], cells

    def _ends(self, rows: Sequence[Row], name: str) -> str:
        return " / ".join(format(row.figures[name], self.formats[name]) for row in rows)

    def to_dict(self) -> dict[str, Any]:
        """Return every row as plain data."""
        rows = [asdict(row) for row in self.rows]
        return {"study": f"{self.study} sensitivity", "cases": self.cases, "rows": rows}
