"""How far GOLDYLOC's gains move when an assumed value goes to either end of its range.

Kernels and degrees stay as they were chosen. The longest queue of each entry of the suite stands for all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import geometric_mean

from weft.files import write_json
from weft.hardware import Gpu
from weft.studies.goldyloc.study import Case, GoldylocStudy
from weft.sweep import Progress, Store
from weft.tuning.assumptions import variants
from weft.tuning.batches import Batch, Bench, Runs, Workshop
from weft.tuning.degree import Plans

FIGURES = ("over default", "over sequential", "default over sequential")
HARDWARE_QUEUES = 4
"""Hardware queues that ROCm's HIP runtime spreads streams over unless told otherwise (GPU_MAX_HW_QUEUES)."""


@dataclass(frozen=True)
class Row:
    """One value at one end of its range, and the geometric means; the first row is as chosen."""

    what: str
    setting: str
    figures: Mapping[str, float]


@dataclass(frozen=True)
class Sensitivity:
    """The rows, and the queues that they are means over."""

    cases: tuple[str, ...]
    rows: tuple[Row, ...]

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Heads and rows of text: per value its range, and the figures at both ends."""
        chosen = self.rows[0].figures
        cells = [["as chosen", "", *(f"{value:.2f}" for value in chosen.values())]]
        for what in dict.fromkeys(row.what for row in self.rows[1:]):
            ends = [row for row in self.rows if row.what == what]
            moved = [" / ".join(f"{row.figures[name]:.2f}" for row in ends) for name in chosen]
            cells.append([what, " / ".join(row.setting for row in ends), *moved])
        return ["value", "low / high", *chosen], cells

    def save(self, path: str | Path) -> Path:
        """Write the rows as JSON; OutputError if the path cannot be written."""
        data = {
            "study": "goldyloc sensitivity",
            "cases": self.cases,
            "rows": [asdict(row) for row in self.rows],
        }
        return write_json(path, data)


def _on(plans: Plans, bench: Bench, queues: int | None) -> Plans:
    """The same kernels on another machine; default concurrency in so many hardware queues (None: enough)."""
    alone, default, goldyloc = (
        tuple(bench.batch(batch.gemms) for batch in part)
        for part in (plans.sequential, plans.default, plans.goldyloc)
    )
    return Plans(alone, tuple(replace(batch, queues=queues) for batch in default), goldyloc)


def run(
    done: GoldylocStudy,
    gpu: Gpu,
    jobs: int = 1,
    progress: Progress | None = None,
    *,
    store: Store | None = None,
) -> Sensitivity:
    """Move the machine's assumed values, its clock and its queues; `gpu` is the one that the study ran on.

    Raises what the simulations raise.
    """
    chosen = representatives(done.cases)
    dtype = chosen[0].judged.queue.gemms[0].dtype
    bench = Bench(gpu, done.clock)
    plans = [case.plans for case in chosen]
    settings: list[tuple[str, str, Bench, int | None]] = [("as chosen", "", bench, None)]
    settings += [(v.path, v.setting, Bench(v.gpu, done.clock), None) for v in variants(gpu, dtype)]
    other = "short" if done.clock == "sustained" else "sustained"
    settings.append(("clock", other, Bench(gpu, other), None))
    settings.append(("hardware queues of default concurrency", str(HARDWARE_QUEUES), bench, HARDWARE_QUEUES))
    moved = [
        (what, text, [_on(plan, where, queues) for plan in plans]) for what, text, where, queues in settings
    ]
    batches = (batch for _, _, each in moved for plan in each for batch in plan.batches())
    runs = Workshop(jobs, store, progress).simulate(batches)
    rows = [Row(what, text, _figures(each, runs)) for what, text, each in moved]
    return Sensitivity(tuple(case.title for case in chosen), tuple(rows))


def representatives(cases: Sequence[Case]) -> list[Case]:
    """The longest queue of each entry of the suite."""
    longest: dict[tuple[str, str, bool], Case] = {}
    for case in cases:
        longest[case.network, case.layer, case.mixed] = case
    return list(longest.values())


def _figures(plans: Sequence[Plans], runs: Runs) -> dict[str, float]:
    took = [[_seconds(part, runs) for part in (p.default, p.sequential, p.goldyloc)] for p in plans]
    ratios = (
        [default / goldyloc for default, _, goldyloc in took],
        [sequential / goldyloc for _, sequential, goldyloc in took],
        [sequential / default for default, sequential, _ in took],
    )
    return {name: geometric_mean(values) for name, values in zip(FIGURES, ratios, strict=True)}


def _seconds(batches: Sequence[Batch], runs: Runs) -> float:
    return sum(runs[batch].makespan_s for batch in batches)
