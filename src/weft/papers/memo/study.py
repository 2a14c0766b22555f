"""The study of the memo: every section's rows, which of them hold, where the memo slips, and what is left out.

The memo itself is not public. Rows name the source of their number: the memo, the paper that it cites, or the rule by
which it was worked out by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from weft.core.report import Part
from weft.core.report.table import Table
from weft.papers.headline import Conditions, HeadlineRow, PaperStudy, StudyFigure
from weft.papers.memo import kernels, models, page, parallel, planning
from weft.papers.memo.values import DECLARED, Values
from weft.papers.textbook.replicas import Consistency

SECTIONS: Mapping[str, Callable[[], Values]] = {
    "operators": models.operators,
    "sizes": models.sizes,
    "peak": models.peak,
    "recomputation": models.recomputation,
    "quantization": models.quantization,
    "utilisations": models.utilisations,
    "roofline": kernels.roofline,
    "tiling": kernels.tiling,
    "access": kernels.access,
    "launches": kernels.launches,
    "fusion": kernels.fusion,
    "rewriting": kernels.rewriting,
    "tile_search": kernels.tile_search,
    "zero": parallel.zero,
    "collectives": parallel.collectives,
    "replicas": parallel.replicas,
    "pipelines": parallel.pipelines,
    "sharding": planning.sharding,
    "planning": planning.planning,
}
"""What computes the rows of each section."""


@dataclass(frozen=True, repr=False)
class MemoStudy(PaperStudy):
    """Weft's value of each row, by section and row in the order of the page, and the rules of replicas."""

    DECLARED = DECLARED
    REPORT = page.MemoReport

    values: Mapping[str, float]
    rules: Consistency

    @classmethod
    def simulated(cls, at: Conditions) -> dict[str, Any]:
        """Compute every row in closed form."""
        values = {}
        for place, (section, rows) in enumerate(SECTIONS.items()):
            if at.jobs.progress is not None:
                at.jobs.progress(place, len(SECTIONS), section)
            values.update({f"{section}.{row}": float(value) for row, value in rows().items()})
        return {"values": values, "rules": parallel.rules()}

    @property
    def unlike(self) -> None:
        """Rows name their own machines, so that they hold beside any GPU."""
        return None

    def figures(self) -> Iterator[StudyFigure]:
        """Yield every row."""
        for row, value in self.values.items():
            yield StudyFigure(row, value, always=True)

    def holds(self, row: HeadlineRow) -> bool | None:
        """Return whether a row keeps to its tolerance; None without a published value."""
        bar = self.DECLARED.claims[row.id].bar
        return None if row.difference is None or bar is None else abs(row.difference) <= bar

    def rows(self, section: str = "") -> list[HeadlineRow]:
        """Return the rows of a section, or all."""
        return [row for row in self.headline() if not section or row.id.partition(".")[0] == section]

    @property
    def broken(self) -> list[HeadlineRow]:
        """The rows that do not keep to their tolerance."""
        return [row for row in self.rows() if self.holds(row) is False]

    @property
    def findings(self) -> Sequence[str]:
        """How many rows hold, which do not, and how often the memo slips."""
        checked = [row for row in self.rows() if self.holds(row) is not None]
        kept = len(checked) - len(self.broken)
        first = f"{kept} of {len(checked)} rows hold, to the digits that are given"
        wrong = "; ".join(f"{row.what} ({row.id})" for row in self.broken)
        slips = f"The memo slips {len(DECLARED.cases['slips'])} times, and the rows hold to what is right instead"
        return [first, *([f"These do not: {wrong}"] if wrong else []), slips]

    def tables(self) -> list[Table]:
        """Return where the memo slips."""
        return [page.slip_table(self, "Where the memo slips")]

    lead = "Rows in sections, each with the function's value, the number given, its tolerance and its source."

    work = (
        "All rows are closed forms, clocks of schedules, or small arrays executed in NumPy; nothing runs in the engine."
    )

    def own(self) -> dict[str, Any]:
        """Return every row with its tolerance, source and verdict, the slips, and the topics left out."""
        claims = self.DECLARED.claims
        rows = [
            {**row.as_json(), "section": row.id.partition(".")[0], "tolerance": claims[row.id].bar,
             "source": claims[row.id].source, "holds": self.holds(row)}
            for row in self.rows()
        ]  # fmt: skip
        slips = [{**slip, "weft": self.values[slip["row"]]} for slip in DECLARED.cases["slips"]]
        return {"green": not self.broken, "rows": rows, "slips": slips, "left_out": DECLARED.cases["left_out"]}

    def sections(self, watched: Any = None) -> list[Part]:
        """Slips, every section with its table and picture, and the topics left out."""
        return page.sections(self)


STUDY = MemoStudy
run = MemoStudy.run
