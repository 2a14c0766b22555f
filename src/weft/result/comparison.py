"""Several overlaps of one sub-layer side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from weft.files import write_json
from weft.result.html import comparison_html
from weft.result.result import Result


@dataclass(frozen=True)
class Comparison:
    """Results by overlap, the baseline being "sequential".

    Iterates over the results; prints as a table; `save` writes JSON; `plot` draws (weft.report.plots has more).
    """

    results: Mapping[str, Result]

    @property
    def baseline(self) -> Result:
        """The sequential run."""
        return self.results["sequential"]

    def speedup(self, overlap: str) -> float:
        """How many times faster than sequential."""
        return self[overlap].speedup_over(self.baseline)

    def __getitem__(self, overlap: str) -> Result:
        if overlap not in self.results:
            from weft.errors import UnknownNameError

            raise UnknownNameError("overlap in this comparison", overlap, self.results)
        return self.results[overlap]

    def __iter__(self) -> Iterator[Result]:
        return iter(self.results.values())

    def __len__(self) -> int:
        return len(self.results)

    def rows(self) -> list[dict[str, Any]]:
        """One plain record per overlap."""
        return [result.record(self.baseline) for result in self]

    def save(self, path: str | Path) -> Path:
        """Write the records as JSON; OutputError if the path cannot be written."""
        return write_json(path, self.rows())

    def plot(self) -> Any:
        """A matplotlib Figure of when each overlap computes and communicates (weft.report.plots has more)."""
        # By name: results know nothing of pictures, and a table must not wait for a plotting library.
        return import_module("weft.report.plots").sub_layer_times(self)

    def _repr_html_(self) -> str:
        return comparison_html(self)

    def __str__(self) -> str:
        first = self.baseline.config
        shape = f"{first.m} x {first.n} x {first.k} {first.dtype}"
        lines = [
            f"{first.model} {first.sublayer}, TP {first.tp}, {shape} on {first.gpu}",
            f"{'overlap':<14} {'GEMM us':>9} {'RS us':>9} {'AG us':>9} {'total us':>9} {'speedup':>8} {'DRAM MB':>9}",
        ]
        for result in self:
            t = result.times
            lines.append(
                f"{result.config.overlap:<14} {t.gemm * 1e6:9.1f} {t.reduce_scatter * 1e6:9.1f} "
                f"{t.all_gather * 1e6:9.1f} {t.total * 1e6:9.1f} {self.speedup(result.config.overlap):8.3f} "
                f"{result.total_bytes / 1e6:9.1f}"
            )
        return "\n".join(lines)
