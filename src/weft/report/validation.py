"""The page of a validation: how far off the models are, machine by machine, and where."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from weft.files import write_atomically
from weft.report import plots
from weft.report.error_tables import bar_table, errors_table, without_rows, worst_table
from weft.report.page import Figure, Section, write_page

if TYPE_CHECKING:
    from weft.report.plots.errors import Cloud

TITLES = {
    "gemm": "GEMMs",
    "collective": "Collectives",
    "layer": "A Transformer layer",
    "overlap": "Overlapped GEMMs and collectives",
    "contention": "A GEMM beside a collective",
    "ring": "Ring reduce-scatter, simulated",
}
PICTURES = ("predicted", "error")
"""The pictures of each kind: predicted against measured time, and the error against size."""
_PICTURED = 24  # clouds in one picture: those with most rows


class Findings(Protocol):
    """What a page needs of a validation: its plain data, its rows as clouds of points, and what was wrong."""

    def to_dict(self) -> Mapping[str, Any]:
        """Groups, ranges, overall errors, worst rows and counts of rows."""

    def clouds(self) -> Mapping[str, Sequence[Cloud]]:
        """The rows of each kind."""

    def complaints(self) -> Sequence[str]:
        """Every problem of rows as a sentence, alike ones together."""


def validation_report(findings: Findings, out_dir: str | Path, lines: Sequence[Mapping[str, Any]] = ()) -> Path:
    """Write `report.html` on a validation to a folder and return its path; OutputError if that fails.

    `lines` are the demands on the models, with what was reached. The pictures are also written by themselves, like
    gemm-predicted.png and gemm-error.png: as pixels, which give no measured row away.
    """
    data = findings.to_dict()
    pictures = {kind: list(figures(kind, clouds)) for kind, clouds in findings.clouds().items()}
    for kind, drawn in pictures.items():
        for name, figure in zip(PICTURES, drawn, strict=False):
            write_atomically(Path(out_dir) / f"{kind}-{name}.png", figure.picture.png())
    lead = (
        f"{data['rows_used']:,} of {data['rows_read']:,} rows have a prediction. An error is predicted / measured − 1; "
        "mean, median and p90 are of its absolute value, the bias keeps the sign."
    )
    silent = [f"{said}." for said in [without_rows(lines)] if said]
    return write_page(
        out_dir,
        "Weft's models against measurements",
        lead,
        [
            errors_table(data["overall"]),
            Section("What must be reached", [bar_table(lines), *silent] if lines else []),
            *(_section(data, kind, drawn) for kind, drawn in pictures.items()),
            Section("Rows that are furthest off", [worst_table(data["worst"])]),
            Section("Problems of rows", [findings.complaints()] if findings.complaints() else []),
        ],
        ("How far off Weft is", "errors"),
    )


def _section(data: Mapping[str, Any], kind: str, drawn: list[Figure]) -> Section:
    groups, ranges = (
        errors_table([group for group in data[name] if group["kind"] == kind]) for name in ("groups", "ranges")
    )
    sizes = f"By class of size ({len(ranges.rows)})"
    folded = [Section(sizes, [ranges], folded=True)] if ranges.rows else []
    return Section(TITLES.get(kind, kind), [groups, *folded, *drawn])


def figures(kind: str, clouds: Sequence[Cloud]) -> Iterator[Figure]:
    """The pictures of one kind: predicted against measured, and the error against size."""
    fullest = sorted(clouds, key=lambda cloud: -len(cloud.measured))[:_PICTURED]
    shown = [cloud for cloud in clouds if any(cloud is one for one in fullest)]
    title = TITLES.get(kind, kind)
    if shown:
        yield Figure(
            plots.errors.predicted_against_measured(shown),
            f"{title}: predicted against measured time. A point is a row; the bands are 10 % and 20 %.",
        )
        yield Figure(plots.errors.error_against_size(shown), f"{title}: the error of each row against its size.")
