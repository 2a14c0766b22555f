"""Measured GEMMs: by data type and by how they were timed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pandas as pd

from weft.core.options import RunOptions
from weft.estimate import GEMM_PARAMETERS, Harness, estimate
from weft.graph import Gemm
from weft.hardware import Gpu
from weft.lab.checks import gemm_floor
from weft.lab.closed_forms import ClosedForm, Columns
from weft.lab.rigs import gemm_harness, gemm_options
from weft.lab.seen import seen_gemms
from weft.lab.tables import FloatArray, seconds_of

LONG = ">= 20 us"
SHORT = "< 20 us"
_LONG_SECONDS = 20e-6


@dataclass(frozen=True)
class _Case:
    """Rows of one data type and one way of measuring."""

    harness: Harness
    options: RunOptions
    dtype: str

    def seconds(self, rows: Columns, target: Gpu) -> FloatArray:
        """Times on a GPU [s]."""
        sizes: dict[str, Any] = {name: rows[name] for name in ("m", "n", "k")}
        return estimate(Gemm(**sizes, dtype=self.dtype), target, self.options, self.harness).seconds

    def floor(self, rows: Columns, gpu: Gpu) -> FloatArray:
        """Lower bounds of the times on a GPU [s]."""
        return gemm_floor(rows["m"], rows["n"], rows["k"], self.dtype, gpu)


def _cases(rows: pd.DataFrame) -> Iterator[_Case]:
    for notes, source, dtype in zip(rows["notes"], rows["source"], rows["dtype"], strict=True):
        yield _Case(gemm_harness(notes, source), gemm_options(source), dtype)


GEMMS = ClosedForm(
    kind="gemm",
    cases=_cases,
    labels=lambda rows, gpu, target: {"dtype": rows["dtype"], "seen": seen_gemms(gpu, rows["dtype"])},
    ranges=lambda rows: {LONG: seconds_of(rows) >= _LONG_SECONDS, SHORT: seconds_of(rows) < _LONG_SECONDS},
    multiplies=True,
    parameters=lambda target: GEMM_PARAMETERS,
)
"""GEMMs of one GPU, fitted by the parameters of its closed form."""
