"""The page of a validation: errors machine by machine, and their pictures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.core.files import write_atomically
from weft.core.report import Part, Report, Section
from weft.core.report.table import Table, number, text
from weft.lab.error_tables import bar_table, errors_table, streams_table, without_rows, worst_table
from weft.lab.subjects import MEASURED, Cloud
from weft.view.figure import Axis, Figure, scatter
from weft.view.page import write_report

if TYPE_CHECKING:
    from weft.lab.run import Validation

TITLES = {
    "step": "Training steps",
    "step, nothing fitted": "Training steps, nothing fitted",
    "memory": "Peak memory of training",
    "experts": "Grouped GEMMs of inference libraries",
    "expert_layers": "MoE layers",
    "gemm": "GEMMs",
    "collective": "Collectives",
    "rnn": "Recurrent layers",
    "conv": "Convolutions",
    "channels": "Ring collectives by channels and compute units",
    "tuning": "Cost model of a collective library over nodes",
    "layer": "A Transformer layer",
    "kernel": "Kernels that mainly move data",
    "operator": "Operators alone",
    "exchange": "MoE dispatch and combine",
    "expert_trace": "MoE layers of a training trace",
    "attention": "Attention kernels of inference libraries",
    "mla": "MLA kernels of inference libraries",
    "all_reduce": "Custom all-reduces of servers",
    "small_operators": "Small operators of a layer",
    "gemm_lowbit": "FP8 and FP4 GEMMs of inference libraries",
    "serving": "Serving",
    "disaggregated": "Disaggregated serving",
    "energy": "Joules per output token",
    "kernels_alone": "Served loads by their kernels alone",
    "overlap": "Overlapped GEMMs and collectives",
    "contention": "GEMM co-running with a collective",
    "corun": "GEMM co-running with an all-reduce, by channels",
    "corun_nodes": "GEMMs co-running with an all-gather over nodes",
    "compute_units": "GEMMs on fewer compute units",
    "fused": "GEMMs and their collectives, fused and separate",
    "ring": "Collectives, simulated",
    "dram": "DRAM channel against other simulators",
}
_MEANING = (
    "An error is predicted / measured − 1; mean, median and p90 are of its absolute value, the bias keeps the sign."
)
_PROBLEMS_SHOWN = 20
PICTURES = ("predicted", "error")
"""The pictures of each kind: predicted over measured time, and the error over size."""
_PICTURED = 24  # most clouds in one picture, those with most rows
_DRAWN = 6000  # most rows in one picture: the worst of each cloud, and an even sample of the others
_WIDEST_ERROR = 1.0


def _group_name(group: Mapping[str, Any]) -> str:
    return TITLES.get(group["kind"], str(group["kind"])).lower().replace("gemm", "GEMM")


def _section(data: Mapping[str, Any], kind: str, drawn: list[Figure]) -> Section:
    own = ([group for group in data[name] if group["kind"] == kind] for name in ("groups", "ranges"))
    groups, ranges = (errors_table(found).without(["kind"]) for found in own)
    sizes = f"By class of size ({len(ranges.rows)})"
    folded = [Section(sizes, [ranges], folded=True)] if ranges.rows else []
    return Section(TITLES.get(kind, kind), [groups, *folded, *drawn])


def figures(kind: str, clouds: Sequence[Cloud]) -> Iterator[Figure]:
    """The pictures of one kind: predicted against measured, and the error against size."""
    fullest = sorted(clouds, key=lambda cloud: -len(cloud.measured))[:_PICTURED]
    shown = [cloud for cloud in clouds if any(cloud is one for one in fullest)]
    title = TITLES.get(kind, kind)
    if shown:
        yield predicted_against_measured(shown, title)
        yield error_against_size(shown, title)


def predicted_against_measured(clouds: Sequence[Cloud], title: str = "Rows") -> Figure:
    """Predicted over measured time, log-log, with bands of 10 % and 20 %; a panel for each cloud."""
    return scatter(
        f"{title}: predicted against measured time", _rows(clouds), x=Axis("measured", log=True),
        y=Axis("predicted", log=True), bands=(0.1, 0.2), facet="cloud",
    ).with_caption(f"A point is a row; the bands are 10 % and 20 %.{_thinning_note(clouds)}")  # fmt: skip


def error_against_size(clouds: Sequence[Cloud], title: str = "Rows") -> Figure:
    """Error of each prediction over the row's size, with bands of 10 % and 20 %; a panel for each cloud."""
    return scatter(
        f"{title}: the error of each row against its size",
        _rows(clouds),
        x=Axis("size", log=True, short=True),
        y=Axis("error", percent=True),
        bands=(0.1, 0.2),
        facet="cloud",
    ).with_caption(f"The bands are 10 % and 20 %; errors beyond 100 % stand at the edge.{_thinning_note(clouds)}")


def _rows(clouds: Sequence[Cloud]) -> Table:
    rows = []
    scale, unit = _unit(clouds)
    for cloud in clouds:
        sizes = cloud.size * scale if cloud.size_label == MEASURED else cloud.size
        error = cloud.predicted / cloud.measured - 1
        name = f"{cloud.title}: {len(error):,} rows, mean {np.abs(error).mean():.1%}"
        worst = np.argsort(-np.abs(error))[:5]
        some = np.linspace(0, len(error) - 1, min(len(error), _DRAWN // len(clouds))).astype(int)
        for at in np.union1d(worst, some).tolist():
            clipped = float(np.clip(error[at], -_WIDEST_ERROR, _WIDEST_ERROR))
            rows.append((name, cloud.measured[at] * scale, cloud.predicted[at] * scale, clipped, sizes[at]))
    times = f"{MEASURED} [{unit}]"
    labels = dict.fromkeys(times if cloud.size_label == MEASURED else cloud.size_label for cloud in clouds)
    columns = [
        text("cloud", "rows"), *(number(name, name, unit, ",.4g") for name in ("measured", "predicted")),
        number("error", "predicted / measured - 1", format_="+.1%"), number("size", " or ".join(labels), format_=".4g"),
    ]  # fmt: skip
    return Table(columns, rows)


def _unit(clouds: Sequence[Cloud]) -> tuple[float, str]:
    """Return the unit of time that suits most rows, and how many a second has."""
    middle = float(np.median(np.concatenate([cloud.measured for cloud in clouds])))
    return (1.0, "s") if middle > 0.3 else (1e3, "ms") if middle > 3e-3 else (1e6, "µs")


def _thinning_note(clouds: Sequence[Cloud]) -> str:
    """Return how many rows are not drawn, in a sentence."""
    whole = sum(len(cloud.measured) for cloud in clouds)
    return f" Of {whole:,} rows about {_DRAWN:,} are drawn, the worst among them." if whole > _DRAWN else ""


class ValidationReport(Report["Validation"]):
    """Errors of the models against measured rows; `lines` are the demands on the models with the values reached."""

    explained = "errors"

    def __init__(self, answer: Validation, lines: Sequence[Mapping[str, Any]] = ()) -> None:
        super().__init__(answer)
        self.data, self.lines = answer.to_dict(), lines

    def title(self) -> str:
        """Return what was compared."""
        return "Weft's models against measurements"

    def sentences(self) -> list[str]:
        """Return how many rows have a prediction, and how far each kind is off."""
        data = self.data
        errors = [f"{_group_name(one)} off by {one['median_abs_err']:.1%} in the median" for one in data["overall"]]
        kinds = "; ".join(errors) or "none can be judged"
        return [f"{data['rows_used']:,} of {data['rows_read']:,} rows have a prediction: {kinds}."]

    def notes(self) -> list[str]:
        """The first problems of rows, and demands without rows."""
        problems = self.answer.complaints()
        said = [f"problem: {problem}" for problem in problems[:_PROBLEMS_SHOWN]]
        if len(problems) > _PROBLEMS_SHOWN:
            said.append(f"and {len(problems) - _PROBLEMS_SHOWN} more problems; --json lists them all")
        return [*said, *filter(None, [without_rows(self.lines)])]

    def table(self) -> Table:
        """The errors of each group of rows."""
        title = "Errors of each group: |predicted / measured - 1|, and the bias with its sign"
        return errors_table(self.data["groups"], title)

    def on_terminal(self) -> list[Table]:
        """Errors of each kind, stream and group, the worst rows, and the demands."""
        data, demands = self.data, bar_table(self.lines) if self.lines else None
        head = f"{data['rows_used']:,} of {data['rows_read']:,} rows have a prediction"
        return [
            errors_table(data["overall"], head),
            *([streams_table(data["streams"])] if "streams" in data else []),
            *self.tables(),
            *([worst_table(data["worst"])] if data["worst"] else []),
            *([demands] if demands is not None and demands.rows else []),
        ]

    def figures(self) -> Sequence[Figure]:
        """Predicted over measured time, and the error over size, of each kind of rows."""
        return [figure for kind, clouds in self.answer.clouds().items() for figure in figures(kind, clouds)]

    def sections(self) -> list[Part]:
        """Errors of each kind, the demands, then kind by kind, and the rows that are furthest off."""
        data, lines = self.data, self.lines
        silent = [f"{said}." for said in [without_rows(lines)] if said]
        pictures = {kind: list(figures(kind, clouds)) for kind, clouds in self.answer.clouds().items()}
        return [
            _MEANING,
            errors_table(data["overall"]),
            Section("What must be reached", [bar_table(lines), *silent] if lines else []),
            *(_section(data, kind, drawn) for kind, drawn in pictures.items()),
            Section("Rows that are furthest off", [worst_table(data["worst"])] if data["worst"] else []),
            Section("Problems of rows", [self.answer.complaints()] if self.answer.complaints() else []),
        ]


def write_validation(report: ValidationReport, folder: Path) -> Path:
    """Write the page of a validation to a folder and return its path; OutputError if that fails.

    The figures are also written as image files such as gemm-predicted.png and gemm-error.png, from which no measured
    row can be read back. The page itself holds the rows that it draws.
    """
    for kind, clouds in report.answer.clouds().items():
        for name, figure in zip(PICTURES, figures(kind, clouds), strict=False):
            write_atomically(folder / f"{kind}-{name}.png", figure.png())
    return write_report(report, folder)
